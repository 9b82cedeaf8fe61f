//! The connection below TLS, which notices whether the kernel took anything.
//!
//! What TLS answers to a write says little: it takes bytes into a buffer of its own while the client reads nothing.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// A connection, and whether bytes of ours have gone down it.
pub(super) struct Moved {
    pub(super) io: TcpStream,
    moved: bool,
}

impl Moved {
    pub(super) fn new(io: TcpStream) -> Self {
        Self { io, moved: false }
    }

    /// Whether any have since this was last asked.
    pub(super) fn take(&mut self) -> bool {
        std::mem::take(&mut self.moved)
    }
}

impl AsyncRead for Moved {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(context, buffer)
    }
}

impl AsyncWrite for Moved {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.io).poll_write(context, bytes);
        self.moved |= outcome.is_ready();
        outcome
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.io).poll_write_vectored(context, bytes);
        self.moved |= outcome.is_ready();
        outcome
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}
