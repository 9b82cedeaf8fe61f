//! The body of an answer while a connection sends it: keeps the connection busy, and on HTTP/2 lets go of a stream that is not read.
//!
//! A client that stops reading one stream stops hyper from asking for more of its body, and no time limit inside the body can ever fire. The
//! connection's watch looks at its streams instead, and drops what has been waiting too long: with it goes the turn at the backend, and the
//! stream itself, which the client is told.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::AbortHandle;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::Instant;

use super::activity::Busy;
use crate::body::{Body, BodyError};
use crate::clock::millis;

tokio::task_local! {
    /// Ends the task in which hyper answers a request of HTTP/2, and its stream with it. Set in that task.
    pub(super) static STREAM: AbortHandle;
}

/// An answer's body.
pub(super) enum Answer {
    /// HTTP/1: the socket notices when it is not read.
    Plain(Body, #[allow(dead_code, reason = "held for its drop")] Busy),
    /// HTTP/2: the connection's watch does.
    Watched(Arc<Stream>),
}

/// A body that can be taken away from the outside.
pub(super) struct Stream {
    held: Mutex<Option<(Body, Busy)>>,
    /// hyper does not ask a body for anything while its client reads nothing, so only ending its task ends the stream.
    abort: Option<AbortHandle>,
    born: Instant,
    /// Since when hyper has not asked for more, ms since `born`, plus one; 0: it is asking, and the body has nothing.
    unread_ms: AtomicU64,
}

/// Whether a body is not being read.
enum Unread {
    Not,
    /// It is not, and may stay so until then.
    Until(Instant),
    Dropped,
}

/// The streams of one HTTP/2 connection.
#[derive(Default)]
pub(super) struct Streams(Mutex<Vec<Weak<Stream>>>);

impl Streams {
    /// Watches over a body from now on.
    pub(super) fn watch(&self, body: Body, busy: Busy) -> Answer {
        let stream = Arc::new(Stream {
            held: Mutex::new(Some((body, busy))),
            abort: STREAM.try_with(AbortHandle::clone).ok(),
            born: Instant::now(),
            unread_ms: AtomicU64::new(1),
        });
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() == all.capacity() {
            all.retain(|known| known.strong_count() > 0);
        }
        all.push(Arc::downgrade(&stream));
        Answer::Watched(stream)
    }

    /// Drops the bodies that nobody has read for this long. When the next one is due, of those that nobody reads now.
    pub(super) fn drop_unread(&self, limit: Duration) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|stream| {
            let Some(stream) = stream.upgrade() else { return false };
            let due = match stream.drop_when_unread(limit) {
                Unread::Dropped => return false,
                Unread::Until(due) => Some(due),
                Unread::Not => None,
            };
            next = next.into_iter().chain(due).min();
            true
        });
        next
    }
}

impl Stream {
    fn now_ms(&self) -> u64 {
        millis(self.born.elapsed())
    }

    fn drop_when_unread(&self, limit: Duration) -> Unread {
        let since = self.unread_ms.load(Relaxed);
        if since == 0 {
            return Unread::Not;
        }
        if self.now_ms() + 1 < since + millis(limit) {
            return Unread::Until(self.born + Duration::from_millis(since) + limit);
        }
        tracing::debug!("a stream that its client does not read was dropped");
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(held); // after the lock: a body's drop may do anything
        if let Some(abort) = &self.abort {
            abort.abort();
        }
        Unread::Dropped
    }

    fn poll_frame(&self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((body, busy)) = held.as_mut() else {
            return Poll::Ready(Some(Err("the client read too slowly".into())));
        };
        let frame = Pin::new(body).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &frame {
            busy.answered(frame.data_ref().map_or(0, Bytes::len));
        }
        let since = if frame.is_ready() { self.now_ms() + 1 } else { 0 };
        self.unread_ms.store(since, Relaxed);
        frame
    }

    fn look<T>(&self, otherwise: T, look: impl FnOnce(&Body) -> T) -> T {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.as_ref().map_or(otherwise, |(body, _)| look(body))
    }
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            Self::Plain(body, _) => Pin::new(body).poll_frame(context),
            Self::Watched(stream) => stream.poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Plain(body, _) => body.is_end_stream(),
            Self::Watched(stream) => stream.look(false, Body::is_end_stream),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Plain(body, _) => body.size_hint(),
            Self::Watched(stream) => stream.look(SizeHint::new(), Body::size_hint),
        }
    }
}
