//! A client's socket: reports what it does, gives up on a client that never reads, and closes so that the last answer can be read.
//!
//! Closing a socket with unread bytes in it makes the kernel reset the connection, and the reset may overtake the answer: an early refusal of an
//! upload would be lost. So after our last byte the client's are read and thrown away for a moment, within limits.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};
use tokio_rustls::server::TlsStream;

use super::activity::Activity;
use super::frames::{Frames, PREFACE};
use super::head::{Heads, POISON};
use super::moved::Moved;
use super::slots::Slot;
use crate::body::Pause;

/// Bytes that are read before it is known what is spoken: most heads are shorter.
const FIRST_READ: usize = 1024;
/// How long unread bytes are thrown away before a socket is closed.
const LINGER: Duration = Duration::from_secs(2);
/// How many of them at most.
const LINGER_BYTES: usize = 32 * 1024 * 1024;

/// What a client's bytes come on.
pub(super) enum Line {
    /// As they are.
    Plain(TcpStream),
    /// Secured.
    Tls(Box<TlsStream<Moved>>),
}

/// Does this with whichever kind it is.
macro_rules! on {
    ($line:expr, $io:ident => $act:expr) => {
        match $line {
            Line::Plain($io) => $act,
            Line::Tls($io) => $act,
        }
    };
}

impl Line {
    /// The connection below, for what is said after the last secured byte.
    fn below(&mut self) -> &mut TcpStream {
        match self {
            Self::Plain(io) => io,
            Self::Tls(io) => &mut io.get_mut().0.io,
        }
    }

    /// Whether the kernel took anything in a write that came to this.
    fn has_moved<T>(&mut self, outcome: &Poll<T>) -> bool {
        match self {
            Self::Plain(_) => outcome.is_ready(),
            Self::Tls(io) => io.get_mut().0.take(),
        }
    }

    /// Whether there is more that it did not take.
    fn is_stuck<T>(&self, outcome: &Poll<T>) -> bool {
        outcome.is_pending() || matches!(self, Self::Tls(io) if io.get_ref().1.wants_write())
    }
}

/// A client's socket.
pub(super) struct Socket {
    line: Line,
    seen: Bytes,
    heads: Option<Heads>,
    frames: Option<Frames>,
    activity: Arc<Activity>,
    stall_limit: Duration,
    stall: Pause,
    ended: bool,
    closing: Option<Closing>,
    _slot: Slot,
}

struct Closing {
    until: Pin<Box<Sleep>>,
    left: usize,
}

/// What the client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spoken {
    Http1,
    Http2,
}

impl Socket {
    pub(super) fn new(line: Line, activity: Arc<Activity>, stall_limit: Duration, slot: Slot) -> Self {
        Self {
            line,
            seen: Bytes::new(),
            heads: None,
            frames: None,
            activity,
            stall_limit,
            stall: Pause::new(),
            ended: false,
            closing: None,
            _slot: slot,
        }
    }

    /// Reads until it is clear what the client speaks. There is no limit in here: the caller has one. None: the client left.
    pub(super) async fn listen_in(&mut self) -> io::Result<Option<Spoken>> {
        let mut bytes = [0; FIRST_READ];
        let mut filled = 0;
        loop {
            let rest = &mut bytes[filled..];
            let read = on!(&mut self.line, io => io.read(rest).await)?;
            if read == 0 {
                return Ok(None);
            }
            filled += read;
            let first = &bytes[..filled.min(PREFACE.len())];
            let http2 = PREFACE.starts_with(first);
            if http2 && first.len() < PREFACE.len() {
                continue;
            }
            self.seen = Bytes::copy_from_slice(&bytes[..filled]);
            let spoken = if http2 { Spoken::Http2 } else { Spoken::Http1 };
            self.speaks(spoken);
            return Ok(Some(spoken));
        }
    }

    /// It is clear now. Heads of HTTP/1 are looked at before hyper reads them, and frames of HTTP/2 are counted.
    pub(super) fn speaks(&mut self, spoken: Spoken) {
        self.heads = (spoken == Spoken::Http1).then(Heads::new);
        self.frames = (spoken == Spoken::Http2).then(Frames::new);
    }

    /// Whether nothing of the client's is left unread, and nothing is to be expected: then its socket is closed at once.
    fn poll_has_said_all(&mut self, context: &mut Context<'_>) -> bool {
        let Line::Plain(io) = &mut self.line else { return false };
        // A head that was refused, or is too large, may have come while the request before it was being answered.
        let in_mid_sentence = self.heads.as_ref().is_some_and(|heads| !heads.at_rest());
        if self.activity.is_upgraded() || self.activity.may_go_on() || in_mid_sentence {
            return false;
        }
        let mut scratch = [0; 1];
        Pin::new(io).poll_read(context, &mut ReadBuf::new(&mut scratch)).is_pending()
    }

    /// What a write came to: progress, or a client that has not read for too long.
    fn written<T>(&mut self, context: &mut Context<'_>, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        let stuck = self.line.is_stuck(&outcome);
        if self.line.has_moved(&outcome) {
            self.activity.wrote();
            self.stall.end();
        }
        if !stuck {
            self.stall.end();
            return outcome;
        }
        if self.stall.poll_over(context, self.stall_limit).is_pending() {
            return outcome;
        }
        // What it has not read is thrown away: otherwise the kernel would keep that for it long after this socket is closed.
        let _ = SockRef::from(&*self.line.below()).set_linger(Some(Duration::ZERO));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read")))
    }

    /// Cuts off what hyper must not see of the bytes that just came. After an upgrade they are none of our business.
    fn look_over(&mut self, buffer: &mut ReadBuf<'_>, before: usize) {
        let Some(heads) = &mut self.heads else { return };
        if self.activity.is_upgraded() {
            self.heads = None;
            return;
        }
        if heads.refused() {
            buffer.set_filled(before); // as if the client had ended
            return;
        }
        let read = buffer.filled().len() - before;
        let passed = heads.pass(&buffer.filled()[before..]);
        if passed < read {
            buffer.set_filled(before + passed);
            let (now, later) = POISON.split_at(POISON.len().min(buffer.remaining()));
            buffer.put_slice(now);
            self.seen = Bytes::from_static(later);
        }
    }

    /// Counts the frames among these bytes. An error: the client has sent far more of them than it had any use for.
    fn count(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(frames) = &mut self.frames else { return Ok(()) };
        frames.follow(bytes, &self.activity.ledger);
        if self.activity.is_in_debt() {
            return Err(io::Error::new(
                io::ErrorKind::ConnectionAborted,
                "a flood of frames that ask for nothing",
            ));
        }
        Ok(())
    }

    /// Throws away what the client still sends, until it ends, or a limit does.
    fn poll_linger(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(closing) = &mut self.closing else {
            return Poll::Ready(());
        };
        let mut scratch = [0; 8 * 1024];
        while !self.ended && closing.left > 0 {
            if closing.until.as_mut().poll(context).is_ready() {
                return Poll::Ready(());
            }
            let mut buffer = ReadBuf::new(&mut scratch);
            match ready!(Pin::new(self.line.below()).poll_read(context, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => closing.left = closing.left.saturating_sub(buffer.filled().len()),
                Ok(()) | Err(_) => self.ended = true,
            }
        }
        Poll::Ready(())
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.seen.has_remaining() {
            let length = this.seen.remaining().min(buffer.remaining());
            let before = buffer.filled().len();
            buffer.put_slice(&this.seen.split_to(length));
            if !this.heads.as_ref().is_some_and(Heads::refused) {
                this.look_over(buffer, before); // otherwise it is the rest of the poison
            }
            return Poll::Ready(this.count(&buffer.filled()[before..]));
        }
        let before = buffer.filled().len();
        ready!(on!(&mut this.line, io => Pin::new(io).poll_read(context, buffer)))?;
        if buffer.filled().len() > before {
            this.activity.read();
            this.look_over(buffer, before);
            this.count(&buffer.filled()[before..])?;
        } else if buffer.remaining() > 0 {
            this.ended = true;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let outcome = on!(&mut this.line, io => Pin::new(io).poll_write(context, bytes));
        this.written(context, outcome)
    }

    fn poll_write_vectored(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let outcome = on!(&mut this.line, io => Pin::new(io).poll_write_vectored(context, bytes));
        this.written(context, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        on!(&self.line, io => io.is_write_vectored())
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        match &mut this.line {
            Line::Plain(io) => Pin::new(io).poll_flush(context),
            // Here bytes wait that a write has taken already: only a flush can notice that nobody reads them.
            Line::Tls(io) => {
                let outcome = Pin::new(io).poll_flush(context);
                this.written(context, outcome)
            }
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.closing.is_none() {
            if this.poll_has_said_all(context) {
                return Poll::Ready(Ok(()));
            }
            ready!(on!(&mut this.line, io => Pin::new(io).poll_shutdown(context)))?;
            if this.ended || this.activity.is_upgraded() {
                return Poll::Ready(Ok(()));
            }
            this.closing = Some(Closing {
                until: Box::pin(sleep(LINGER)),
                left: LINGER_BYTES,
            });
        }
        ready!(this.poll_linger(context));
        Poll::Ready(Ok(()))
    }
}
