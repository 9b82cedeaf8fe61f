//! Connecting to a backend, under one time limit that covers the name as well, and remembering whether a connection has served before.
//!
//! That memory decides what may be repeated: a connection that answered earlier and breaks now was most likely closed by an idle backend in the
//! very moment; a fresh one that breaks is the backend's fault.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tower_service::Service;

use crate::fault::BoxError;

/// How long a backend may leave our bytes unacknowledged before the machine gives its connection up.
const UNACKNOWLEDGED: Duration = Duration::from_secs(60);
/// How often a silent connection is asked whether it still lives.
const KEEP_ALIVE: Duration = Duration::from_secs(30);

/// Whether a connection has answered before.
#[derive(Clone, Debug, Default)]
pub(super) struct Served(Arc<AtomicBool>);

impl Served {
    pub(super) fn already(&self) -> bool {
        self.0.load(Relaxed)
    }

    pub(super) fn note(&self) {
        self.0.store(true, Relaxed);
    }
}

/// Opens connections.
#[derive(Clone)]
pub(super) struct Connector {
    http: HttpConnector,
    limit: Duration,
}

impl Connector {
    pub(super) fn new(limit: Duration) -> Self {
        let mut http = HttpConnector::new();
        http.set_nodelay(true);
        http.set_connect_timeout(Some(limit));
        http.set_keepalive(Some(KEEP_ALIVE));
        #[cfg(target_os = "linux")]
        http.set_tcp_user_timeout(Some(UNACKNOWLEDGED));
        Self { http, limit }
    }
}

impl Service<Uri> for Connector {
    type Response = Wire;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Wire, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.http.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connecting = self.http.call(uri);
        let limit = self.limit;
        Box::pin(async move {
            let io = timeout(limit, connecting).await??;
            Ok(Wire {
                io,
                served: Served::default(),
            })
        })
    }
}

/// A connection to a backend.
pub(super) struct Wire {
    io: TokioIo<TcpStream>,
    served: Served,
}

impl Connection for Wire {
    fn connected(&self) -> Connected {
        Connected::new().extra(self.served.clone())
    }
}

impl Read for Wire {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(context, buffer)
    }
}

impl Write for Wire {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(context, bytes)
    }
}
