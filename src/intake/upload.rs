//! A request body with limits: bytes in all, the longest pause, and the slowest pace a client may keep.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};

use crate::body::Pause;
use crate::fault::ClientFault;

/// Bytes a second below which a client is thought to keep a connection busy rather than to send.
const SLOWEST_PACE: u64 = 512;

/// Limits on a request body.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes at most.
    pub bytes: u64,
    /// The longest pause, and what a slow body is given in all beside the time its bytes earn it.
    pub pause: Duration,
}

/// Whether a request's body has been read to its end.
#[derive(Clone, Debug)]
pub struct Upload(Option<Arc<AtomicBool>>);

impl Upload {
    /// There is no body.
    pub(super) fn none() -> Self {
        Self(None)
    }

    /// There is one, and nothing of it has been read.
    pub(super) fn begun() -> Self {
        Self(Some(Arc::default()))
    }

    /// Whether all of the body has been read (or there was none).
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.0.as_ref().is_none_or(|over| over.load(Relaxed))
    }

    pub(super) fn finish(&self) {
        if let Some(over) = &self.0 {
            over.store(true, Relaxed);
        }
    }
}

/// The body itself.
pub(super) struct Limited<B> {
    inner: B,
    limits: Limits,
    upload: Upload,
    received: u64,
    waited: Duration,
    pause: Pause,
    broken: bool,
}

impl<B: HttpBody> Limited<B> {
    pub(super) fn new(inner: B, limits: Limits, upload: Upload) -> Self {
        Self {
            inner,
            limits,
            upload,
            received: 0,
            waited: Duration::ZERO,
            pause: Pause::new(),
            broken: false,
        }
    }

    /// How much longer may be waited: the pause's limit, or what is left of the patience that bytes earn. Only time spent waiting for the
    /// client counts, so a slow backend is never held against it.
    fn patience(&self) -> Duration {
        let earned = self.limits.pause + Duration::from_secs(self.received / SLOWEST_PACE);
        earned.saturating_sub(self.waited).min(self.limits.pause)
    }

    fn fail(&mut self, fault: ClientFault) -> Poll<Option<Result<Frame<Bytes>, ClientFault>>> {
        self.broken = true;
        Poll::Ready(Some(Err(fault)))
    }
}

impl<B> HttpBody for Limited<B>
where
    B: HttpBody<Data = Bytes> + Unpin,
{
    type Data = Bytes;
    type Error = ClientFault;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, ClientFault>>> {
        let this = self.get_mut();
        if this.broken {
            return Poll::Ready(None);
        }
        let limit = this.limits.bytes;
        if this.inner.size_hint().lower() > limit.saturating_sub(this.received) {
            return this.fail(ClientFault::BodyTooLarge { limit });
        }
        let Poll::Ready(frame) = Pin::new(&mut this.inner).poll_frame(context) else {
            let patience = this.patience();
            ready!(this.pause.poll_over(context, patience));
            return this.fail(ClientFault::BodyTimeout);
        };
        this.waited += this.pause.end();
        match frame {
            Some(Ok(frame)) => {
                let length = frame.data_ref().map_or(0, |data| data.len() as u64);
                this.received = this.received.saturating_add(length);
                if this.received > limit {
                    return this.fail(ClientFault::BodyTooLarge { limit });
                }
                if this.inner.is_end_stream() {
                    this.upload.finish();
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Some(Err(_)) => this.fail(ClientFault::Gone),
            None => {
                this.upload.finish();
                Poll::Ready(None)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.broken || self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
