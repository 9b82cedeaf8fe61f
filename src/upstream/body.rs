//! Bodies on their way: [`Outbound`] to the backend, telling how far it is; [`Inbound`] from it, holding the request's turn until it ends.

use std::pin::Pin;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::headers;
use crate::body::{Body, BodyError, Pause};
use crate::clock::millis;
use crate::config;
use crate::fault::{ClientFault, UpstreamFault};

/// The backend has to act: it reads what it was given.
const BACKEND: u8 = 0;
/// The client has to act: it sends more.
const CLIENT: u8 = 1;
/// All was sent.
const SENT: u8 = 2;

/// How far a request is.
#[derive(Debug)]
pub(super) struct Progress {
    born: Instant,
    turn: AtomicU8,
    at_ms: AtomicU64,
    fault: OnceLock<ClientFault>,
}

impl Progress {
    pub(super) fn new(sent: bool) -> Arc<Self> {
        Arc::new(Self {
            born: Instant::now(),
            turn: AtomicU8::new(if sent { SENT } else { BACKEND }),
            at_ms: AtomicU64::new(0),
            fault: OnceLock::new(),
        })
    }

    /// Something happened just now: limits count from here.
    pub(super) fn touch(&self) {
        self.at_ms.store(millis(self.born.elapsed()), Relaxed);
    }

    fn turn(&self, turn: u8) {
        self.touch();
        self.turn.store(turn, Relaxed);
    }

    /// Until when the backend may stay silent. While the client has to act, its own limits count and this one begins anew.
    pub(super) fn deadline(&self, settings: &config::Upstream) -> Instant {
        let since = self.born + Duration::from_millis(self.at_ms.load(Relaxed));
        match self.turn.load(Relaxed) {
            CLIENT => Instant::now() + settings.idle_timeout,
            SENT => since + settings.first_byte_timeout,
            _ => since + settings.idle_timeout,
        }
    }

    /// When to look at the deadline next: it comes nearer when the last byte has been sent, and nobody is told of that.
    pub(super) fn next_look(&self, settings: &config::Upstream) -> Instant {
        self.deadline(settings).min(Instant::now() + settings.first_byte_timeout)
    }

    /// What the client did wrong while sending, if anything.
    pub(super) fn fault(&self) -> Option<ClientFault> {
        self.fault.get().cloned()
    }
}

/// A request body on its way to the backend. Trailers of a client go nowhere: nobody has checked them.
pub(super) struct Outbound {
    inner: Body,
    progress: Arc<Progress>,
}

impl Outbound {
    pub(super) fn new(inner: Body, progress: Arc<Progress>) -> Self {
        Self { inner, progress }
    }
}

impl HttpBody for Outbound {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        loop {
            let frame = match Pin::new(&mut this.inner).poll_frame(context) {
                Poll::Pending => {
                    this.progress.turn(CLIENT);
                    return Poll::Pending;
                }
                Poll::Ready(frame) => frame,
            };
            match frame {
                Some(Ok(frame)) if frame.is_trailers() => {}
                Some(Ok(frame)) => {
                    this.progress.turn(if this.inner.is_end_stream() { SENT } else { BACKEND });
                    return Poll::Ready(Some(Ok(frame)));
                }
                Some(Err(error)) => {
                    let fault = error.downcast_ref::<ClientFault>().cloned().unwrap_or(ClientFault::Gone);
                    let _ = this.progress.fault.set(fault);
                    return Poll::Ready(Some(Err(error)));
                }
                None => {
                    this.progress.turn(SENT);
                    return Poll::Ready(None);
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// A response body on its way to the client. The turn among the requests in flight is given back when it ends, however it ends.
pub(super) struct Inbound {
    held: Option<(Incoming, OwnedSemaphorePermit)>,
    limit: Duration,
    pause: Pause,
}

impl Inbound {
    pub(super) fn new(inner: Incoming, place: OwnedSemaphorePermit, limit: Duration) -> Self {
        Self {
            held: Some((inner, place)),
            limit,
            pause: Pause::new(),
        }
    }
}

impl HttpBody for Inbound {
    type Data = Bytes;
    type Error = UpstreamFault;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, UpstreamFault>>> {
        let this = self.get_mut();
        let Some((inner, _)) = &mut this.held else {
            return Poll::Ready(None);
        };
        let outcome = match Pin::new(&mut *inner).poll_frame(context) {
            Poll::Pending => {
                if this.pause.poll_over(context, this.limit).is_pending() {
                    return Poll::Pending;
                }
                tracing::warn!("the backend stopped in the middle of a body");
                Some(Err(UpstreamFault::Timeout))
            }
            Poll::Ready(None) => None,
            Poll::Ready(Some(Err(error))) => {
                tracing::warn!(%error, "the backend broke off in the middle of a body");
                Some(Err(UpstreamFault::Broken(error.into())))
            }
            Poll::Ready(Some(Ok(mut frame))) => {
                this.pause.end();
                if let Some(trailers) = frame.trailers_mut() {
                    headers::clean_trailers(trailers);
                }
                if !inner.is_end_stream() {
                    return Poll::Ready(Some(Ok(frame)));
                }
                Some(Ok(frame))
            }
        };
        this.held = None;
        Poll::Ready(outcome)
    }

    fn is_end_stream(&self) -> bool {
        self.held.as_ref().is_none_or(|(inner, _)| inner.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.held
            .as_ref()
            .map_or_else(|| SizeHint::with_exact(0), |(inner, _)| inner.size_hint())
    }
}
