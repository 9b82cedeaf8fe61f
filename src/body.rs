//! The one body type of every answer: our own bytes, the upstream's stream, or a stream of ours.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};

mod pause;

pub use pause::Pause;

/// What broke while a body was being sent. The connection is cut; nothing else can be said at that point.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// Marks, among the extensions of an answer, that it goes on for as long as its client waits.
#[derive(Clone, Copy, Debug)]
pub struct Lasting;

/// The body of an answer.
#[derive(Debug)]
pub enum Body {
    /// Bytes of our own, or none.
    Full(Full<Bytes>),
    /// A stream: the upstream's answer, or live events.
    Stream(UnsyncBoxBody<Bytes, BodyError>),
}

impl Body {
    /// No body.
    #[must_use]
    pub fn empty() -> Self {
        Self::Full(Full::default())
    }

    /// These bytes.
    pub fn full(bytes: impl Into<Bytes>) -> Self {
        Self::Full(Full::new(bytes.into()))
    }

    /// All of it in memory, when it says how long it is and that is no more than `most` bytes; otherwise as it is. Trailers are left out.
    ///
    /// # Errors
    /// The body's own.
    pub async fn gathered(self, most: u64) -> Result<Self, BodyError> {
        match self {
            Self::Stream(body) if body.size_hint().exact().is_some_and(|length| (1..=most).contains(&length)) => {
                Ok(Self::full(body.collect().await?.to_bytes()))
            }
            other => Ok(other),
        }
    }

    /// Any other body, boxed.
    pub fn stream<B>(body: B) -> Self
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BodyError>,
    {
        Self::Stream(body.map_err(Into::into).boxed_unsync())
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            Self::Full(body) => Pin::new(body).poll_frame(context).map_err(|never| match never {}),
            Self::Stream(body) => Pin::new(body).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Full(body) => body.is_end_stream(),
            Self::Stream(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Full(body) => body.size_hint(),
            Self::Stream(body) => body.size_hint(),
        }
    }
}
