//! A line of which so many bytes are heard, and no more until more may be heard.
//!
//! Whatever a client sends is counted before it is looked at: frames, headers of frames that carry nothing, pings, pieces of a message that never
//! ends. So none of it can be had for nothing.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Says that the bytes are used up.
pub(super) const USED_UP: io::ErrorKind = io::ErrorKind::QuotaExceeded;

/// The line.
#[derive(Debug)]
pub(super) struct Hearing<T> {
    line: T,
    left: usize,
}

impl<T> Hearing<T> {
    pub(super) fn new(line: T, bytes: usize) -> Self {
        Self { line, left: bytes }
    }

    /// From now on so many bytes are heard.
    pub(super) fn hear(&mut self, bytes: usize) {
        self.left = bytes;
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Hearing<T> {
    /// One read may go beyond what is left: its reader asks for little.
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.left == 0 {
            return Poll::Ready(Err(USED_UP.into()));
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.line).poll_read(context, buffer))?;
        self.left = self.left.saturating_sub(buffer.filled().len() - before);
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Hearing<T> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.line).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.line).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.line).poll_shutdown(context)
    }
}
