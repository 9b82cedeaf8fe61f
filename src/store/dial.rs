//! Reaches one process of the store: a socket, TLS where it is spoken, the login, and a time limit on all of it together.
//!
//! The crate's own way to connect takes its TLS settings from the whole process and knows no name but the host's; this one takes those of the
//! settings, and the same limit holds for every step.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use redis::aio::{MultiplexedConnection, PubSub};
use redis::{AsyncConnectionConfig, ErrorKind, RedisConnectionInfo, RedisError};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::AbortHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::StoreOptions;
use crate::config::{Host, Site, StoreLogin};

/// Reaches servers, or sentinels.
pub(super) struct Dialer {
    login: RedisConnectionInfo,
    tls: Option<(Arc<ClientConfig>, Option<String>)>,
    options: StoreOptions,
}

/// A connection and the task that drives it, which ends with it.
pub(super) struct Link {
    connection: MultiplexedConnection,
    driver: AbortHandle,
}

impl Link {
    pub(super) fn connection(&self) -> MultiplexedConnection {
        self.connection.clone()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Dialer {
    /// For the servers of a store.
    pub(super) fn servers(site: &Site, options: StoreOptions) -> Result<Self, RedisError> {
        Self::new(site, &site.login, site.database, options)
    }

    /// For its sentinels.
    pub(super) fn sentinels(site: &Site, options: StoreOptions) -> Result<Self, RedisError> {
        Self::new(site, &site.sentinel_login, 0, options)
    }

    fn new(site: &Site, login: &StoreLogin, database: i64, options: StoreOptions) -> Result<Self, RedisError> {
        let mut info = RedisConnectionInfo::default().set_db(database);
        if let Some(user) = &login.user {
            info = info.set_username(user);
        }
        if let Some(password) = &login.password {
            info = info.set_password(password.reveal());
        }
        let tls = match &site.tls {
            None => None,
            Some(tls) => {
                let unready = || RedisError::from((ErrorKind::InvalidClientConfig, "TLS to the store is not set up"));
                Some((tls.client.clone().ok_or_else(unready)?, tls.name.clone()))
            }
        };
        Ok(Self { login: info, tls, options })
    }

    /// A connection for questions.
    pub(super) async fn link(&self, host: &Host) -> Result<Link, RedisError> {
        self.patient_link(host, Duration::ZERO).await
    }

    /// The same, whose answers may take so much longer.
    pub(super) async fn patient_link(&self, host: &Host, longer: Duration) -> Result<Link, RedisError> {
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(self.options.call_timeout + longer));
        let reach = async {
            let stream = self.stream(host).await?;
            MultiplexedConnection::new_with_config(&self.login, stream, config).await
        };
        let (connection, driver) = limited(self.options.connect_timeout, reach).await?;
        let driver = tokio::spawn(driver).abort_handle();
        Ok(Link { connection, driver })
    }

    /// A connection for subscriptions.
    pub(super) async fn subscriber(&self, host: &Host) -> Result<PubSub, RedisError> {
        let reach = async {
            let stream = self.stream(host).await?;
            PubSub::new(&self.login, stream).await
        };
        limited(self.options.connect_timeout, reach).await
    }

    async fn stream(&self, host: &Host) -> Result<Stream, RedisError> {
        let socket = match host {
            Host::Unix(path) => return Ok(Stream::Unix(UnixStream::connect(path).await?)),
            Host::Tcp(name, port) => TcpStream::connect((name.as_str(), *port)).await?,
        };
        socket.set_nodelay(true)?;
        let (Some((client, other)), Host::Tcp(name, _)) = (&self.tls, host) else {
            return Ok(Stream::Tcp(socket));
        };
        let name = other.as_ref().unwrap_or(name).clone();
        let name = ServerName::try_from(name).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let stream = TlsConnector::from(Arc::clone(client)).connect(name, socket).await?;
        Ok(Stream::Tls(Box::new(stream)))
    }
}

/// The same, but not for longer than this.
pub(super) async fn limited<T>(limit: Duration, what: impl Future<Output = Result<T, RedisError>>) -> Result<T, RedisError> {
    let late = |_| RedisError::from(io::Error::from(io::ErrorKind::TimedOut));
    tokio::time::timeout(limit, what).await.map_err(late)?
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// One line for each kind.
macro_rules! each {
    ($stream:expr, $inner:ident => $do:expr) => {
        match $stream {
            Stream::Tcp($inner) => $do,
            Stream::Unix($inner) => $do,
            Stream::Tls($inner) => $do,
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        each!(self.get_mut(), inner => Pin::new(inner).poll_read(context, buffer))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        each!(self.get_mut(), inner => Pin::new(inner).poll_write(context, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self.get_mut(), inner => Pin::new(inner).poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self.get_mut(), inner => Pin::new(inner).poll_shutdown(context))
    }
}
