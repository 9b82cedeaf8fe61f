//! Connecting to a backend, under one time limit that covers its name as well.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, timeout_at};

use crate::fault::BoxError;

/// How long a backend may leave our bytes unacknowledged before the machine gives its connection up.
const UNACKNOWLEDGED: Duration = Duration::from_secs(60);
/// How often a silent connection is asked whether it still lives.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// Addresses of one name that are tried at most.
const MAX_ADDRESSES: usize = 8;

/// Opens a connection. Each address of the name gets its share of the time, so that one that swallows everything does not use it all up.
pub(super) async fn dial(host: &str, port: u16, limit: Duration) -> Result<Wire, BoxError> {
    let end = Instant::now() + limit;
    let late = || io::Error::new(io::ErrorKind::TimedOut, "it took too long");
    let found = timeout_at(end, lookup_host((host, port))).await.map_err(|_| late())??;
    let addresses: Vec<SocketAddr> = found.take(MAX_ADDRESSES).collect();
    let mut fault = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for (number, address) in addresses.iter().enumerate() {
        let left = end.saturating_duration_since(Instant::now());
        let share = left / u32::try_from(addresses.len() - number).unwrap_or(1);
        match timeout_at(Instant::now() + share, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(Wire::new(stream)?),
            Ok(Err(refused)) => fault = refused,
            Err(_) => fault = late(),
        }
    }
    Err(fault.into())
}

/// A connection to a backend.
#[derive(Debug)]
pub(super) struct Wire {
    stream: TcpStream,
    look: Arc<AtomicBool>,
}

impl Wire {
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

    /// Set, the next read asks the machine itself instead of believing that nothing has come because nobody said so yet.
    pub(super) fn look(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.look)
    }

    /// Whether the other end has closed, or has sent something, whatever the event loop knows by now.
    fn has_news(&self) -> bool {
        let mut byte = [MaybeUninit::uninit()];
        !matches!(SockRef::from(&self.stream).peek(&mut byte), Err(fault) if fault.kind() == io::ErrorKind::WouldBlock)
    }
}

impl AsyncRead for Wire {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.look.load(Relaxed) {
            self.look.store(false, Relaxed);
            if self.has_news() {
                return Poll::Ready(Ok(())); // read as the end: whatever it is, nobody asked for it
            }
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Wire {
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
