//! Bodies on their way: [`Outbound`] to the backend, telling how far it is; [`Inbound`] from it, driving the connection it comes from.

use std::pin::Pin;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::Instant;

use super::backend::Seat;
use super::headers;
use super::lane::Lane;
use super::shared::Stream;
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
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            born: Instant::now(),
            turn: AtomicU8::new(BACKEND),
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
    fn deadline(&self, settings: &config::Upstream) -> Instant {
        let since = self.born + Duration::from_millis(self.at_ms.load(Relaxed));
        match self.turn.load(Relaxed) {
            CLIENT => Instant::now() + settings.idle_timeout,
            SENT => since + settings.first_byte_timeout,
            _ => since + settings.idle_timeout,
        }
    }

    /// When to look at the deadline next: it comes nearer when the last byte has been sent, and nobody is told of that. None: it has passed.
    pub(super) fn next_look(&self, settings: &config::Upstream) -> Option<Instant> {
        let (now, deadline) = (Instant::now(), self.deadline(settings));
        (now < deadline).then(|| deadline.min(now + settings.first_byte_timeout))
    }

    /// Whether nothing more of the request is to come.
    pub(super) fn is_sent(&self) -> bool {
        self.turn.load(Relaxed) == SENT
    }

    /// What the client did wrong while sending, if anything.
    pub(super) fn fault(&self) -> Option<ClientFault> {
        self.fault.get().cloned()
    }
}

/// What a client did wrong while sending its body.
pub(super) fn whose(fault: &(dyn std::error::Error + Send + Sync + 'static)) -> ClientFault {
    fault.downcast_ref::<ClientFault>().cloned().unwrap_or(ClientFault::Gone)
}

/// A request body on its way to the backend. Trailers of a client go nowhere: nobody has checked them.
pub(super) struct Outbound {
    inner: Body,
    /// None: there is no body, and nothing to follow.
    progress: Option<Arc<Progress>>,
}

impl Outbound {
    pub(super) fn new(inner: Body, progress: Option<Arc<Progress>>) -> Self {
        Self { inner, progress }
    }

    pub(super) fn empty() -> Self {
        Self::new(Body::empty(), None)
    }

    fn turn(&self, turn: u8) {
        if let Some(progress) = &self.progress {
            progress.turn(turn);
        }
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
                    this.turn(CLIENT);
                    return Poll::Pending;
                }
                Poll::Ready(frame) => frame,
            };
            match frame {
                Some(Ok(frame)) if frame.is_trailers() => {}
                Some(Ok(frame)) => {
                    this.turn(if this.inner.is_end_stream() { SENT } else { BACKEND });
                    return Poll::Ready(Some(Ok(frame)));
                }
                Some(Err(error)) => {
                    let fault = whose(&*error);
                    if let Some(progress) = &this.progress {
                        let _ = progress.fault.set(fault);
                    }
                    return Poll::Ready(Some(Err(error)));
                }
                None => {
                    this.turn(SENT);
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

/// A response body on its way to the client, which drives the connection it comes from. The place among the requests in flight is given back
/// when it ends, however it ends; the connection only when it ends well.
pub(super) struct Inbound {
    incoming: Incoming,
    from: Option<(Source, Seat)>,
    limit: Duration,
    silent_since: Option<Instant>,
}

/// What an answer comes from.
pub(super) enum Source {
    /// A connection that is driven here.
    Lane(Box<Lane>),
    /// A connection that goes on by itself.
    Alone {
        pause: Pause,
        /// Our part of it, where others use it too.
        _part: Option<Stream>,
    },
}

impl Inbound {
    pub(super) fn new(incoming: Incoming, source: Source, seat: Seat, limit: Duration) -> Self {
        Self {
            incoming,
            from: Some((source, seat)),
            limit,
            silent_since: None,
        }
    }

    /// All has come.
    fn finish(&mut self, context: &mut Context<'_>) {
        if let Some((Source::Lane(mut lane), seat)) = self.from.take() {
            if !lane.is_ready() {
                lane.drive(context); // it has not yet seen that this was the end
            }
            seat.backend.give_back(lane);
        }
    }
}

impl Source {
    fn poll_frame(&mut self, incoming: &mut Incoming, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match self {
            Self::Lane(lane) => lane.poll_frame(incoming, context),
            Self::Alone { .. } => Pin::new(incoming).poll_frame(context),
        }
    }

    fn poll_late(&mut self, context: &mut Context<'_>, since: &mut Option<Instant>, limit: Duration) -> Poll<()> {
        match self {
            Self::Lane(lane) => {
                let since = *since.get_or_insert_with(Instant::now);
                lane.poll_late(context, since + limit)
            }
            Self::Alone { pause, .. } => pause.poll_over(context, limit),
        }
    }
}

impl HttpBody for Inbound {
    type Data = Bytes;
    type Error = UpstreamFault;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, UpstreamFault>>> {
        let this = self.get_mut();
        let Some((source, _)) = &mut this.from else {
            return Poll::Ready(None);
        };
        match source.poll_frame(&mut this.incoming, context) {
            Poll::Pending => {
                if source.poll_late(context, &mut this.silent_since, this.limit).is_pending() {
                    return Poll::Pending;
                }
                tracing::warn!("the backend stopped in the middle of a body");
                this.from = None;
                Poll::Ready(Some(Err(UpstreamFault::Timeout)))
            }
            Poll::Ready(None) => {
                this.finish(context);
                Poll::Ready(None)
            }
            Poll::Ready(Some(Err(error))) => {
                tracing::warn!(%error, "the backend broke off in the middle of a body");
                this.from = None;
                Poll::Ready(Some(Err(UpstreamFault::Broken(error.into()))))
            }
            Poll::Ready(Some(Ok(mut frame))) => {
                this.silent_since = None;
                if let Source::Alone { pause, .. } = source {
                    pause.end();
                }
                if let Some(trailers) = frame.trailers_mut() {
                    headers::clean_trailers(trailers);
                }
                if this.incoming.is_end_stream() {
                    this.finish(context);
                }
                Poll::Ready(Some(Ok(frame)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.from.is_none() || self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        if self.from.is_none() {
            return SizeHint::with_exact(0);
        }
        self.incoming.size_hint()
    }
}
