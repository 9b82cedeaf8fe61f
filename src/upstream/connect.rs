//! Connecting to a backend, under one time limit that covers its name and the handshake as well.

use std::io::{self, IoSlice, Read as _};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use http::uri::Scheme;
use rustls::pki_types::ServerName;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::config::UpstreamTls;
use crate::fault::BoxError;

/// How long a backend may leave our bytes unacknowledged before the machine gives its connection up.
const UNACKNOWLEDGED: Duration = Duration::from_secs(60);
/// How often a silent connection is asked whether it still lives.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// Addresses of one name that are tried at most.
const MAX_ADDRESSES: usize = 8;

/// Where a backend is, and how it is known there.
#[derive(Debug)]
pub(super) struct Address {
    host: String,
    port: u16,
    secured: bool,
}

impl Address {
    /// Of `http://host:port` or `https://host:port`.
    pub(super) fn of(origin: &Uri) -> Self {
        let secured = origin.scheme_str() == Some("https");
        Self {
            // The brackets belong to the URL, not to the address.
            host: origin
                .host()
                .unwrap_or_default()
                .trim_start_matches('[')
                .trim_end_matches(']')
                .to_owned(),
            port: origin.port_u16().unwrap_or(if secured { 443 } else { 80 }),
            secured,
        }
    }

    pub(super) fn scheme(&self) -> Scheme {
        if self.secured { Scheme::HTTPS } else { Scheme::HTTP }
    }

    /// Opens a connection, within `limit` in all. At `https://` nothing is sent before the other end has proven that it is who it should be.
    pub(super) async fn dial(&self, tls: &UpstreamTls, http2: bool, limit: Duration) -> Result<Wire, BoxError> {
        let end = Instant::now() + limit;
        let socket = reach(&self.host, self.port, end).await?;
        if !self.secured {
            return Ok(Wire::Plain(socket));
        }
        let client = tls.client.as_ref().ok_or("no authorities are known that could vouch for it")?;
        let client = if http2 { &client.http2 } else { &client.http1 };
        let name = tls.name.as_deref().unwrap_or(&self.host);
        let name = ServerName::try_from(name)?.to_owned();
        let handshake = TlsConnector::from(Arc::clone(client)).connect(name, socket);
        let secured = timeout_at(end, handshake).await.map_err(|_| late())??;
        Ok(Wire::Secured(Box::new(secured)))
    }
}

fn late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "it took too long")
}

/// Each address of the name gets its share of the time, so that one that swallows everything does not use it all up.
async fn reach(host: &str, port: u16, end: Instant) -> Result<Socket, BoxError> {
    let found = timeout_at(end, lookup_host((host, port))).await.map_err(|_| late())??;
    let addresses: Vec<SocketAddr> = found.take(MAX_ADDRESSES).collect();
    let mut fault = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for (number, address) in addresses.iter().enumerate() {
        let left = end.saturating_duration_since(Instant::now());
        let share = left / u32::try_from(addresses.len() - number).unwrap_or(1);
        match timeout_at(Instant::now() + share, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(Socket::new(stream)?),
            Ok(Err(refused)) => fault = refused,
            Err(_) => fault = late(),
        }
    }
    Err(fault.into())
}

/// A connection to a backend, as the machine has it.
#[derive(Debug)]
pub(super) struct Socket {
    stream: TcpStream,
    look: Arc<AtomicBool>,
}

impl Socket {
    fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let socket = SockRef::from(&stream);
        socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEP_ALIVE))?;
        #[cfg(target_os = "linux")]
        socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED))?;
        Ok(Self {
            stream,
            look: Arc::default(),
        })
    }
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.look.load(Relaxed) {
            self.look.store(false, Relaxed);
            match (&*SockRef::from(&self.stream)).read(buffer.initialize_unfilled()) {
                Err(fault) if fault.kind() == io::ErrorKind::WouldBlock => {}
                read => {
                    buffer.advance(read?);
                    return Poll::Ready(Ok(()));
                }
            }
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
    }
}

/// A connection to a backend, as HTTP sees it.
#[derive(Debug)]
pub(super) enum Wire {
    Plain(Socket),
    Secured(Box<TlsStream<Socket>>),
}

impl Wire {
    /// Set, the next read asks the machine itself instead of believing that nothing has come because nobody said so yet.
    pub(super) fn look(&self) -> Arc<AtomicBool> {
        Arc::clone(match self {
            Self::Plain(socket) => &socket.look,
            Self::Secured(secured) => &secured.get_ref().0.look,
        })
    }

    /// Whether both ends agreed on HTTP/2.
    pub(super) fn agreed_on_http2(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Secured(secured) => secured.get_ref().1.alpn_protocol() == Some(b"h2"),
        }
    }
}

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_read(context, buffer),
            Self::Secured(secured) => Pin::new(secured).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_write(context, bytes),
            Self::Secured(secured) => Pin::new(secured).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_flush(context),
            Self::Secured(secured) => Pin::new(secured).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_shutdown(context),
            Self::Secured(secured) => Pin::new(secured).poll_shutdown(context),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(socket) => socket.is_write_vectored(),
            Self::Secured(secured) => secured.is_write_vectored(),
        }
    }

    fn poll_write_vectored(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_write_vectored(context, bytes),
            Self::Secured(secured) => Pin::new(secured).poll_write_vectored(context, bytes),
        }
    }
}
