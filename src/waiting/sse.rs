//! The feed as a stream of events.
//!
//! The first lines say how soon to come back after a cut, jittered, so that a restart does not bring everybody at once. Nothing here depends on
//! having seen an earlier event, and no timer runs per stream: the feed sends the keep-alives.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use http_body::{Body as HttpBody, Frame};

use super::seat::{Message, Next, Taken};
use crate::body::{Body, Lasting};
use crate::telemetry::Counted;

/// Proxies of nginx's kind buffer a stream unless told.
const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");
/// A comment line: proves that the stream is alive, and is no event.
const KEEP_ALIVE: Bytes = Bytes::from_static(b":\n\n");

/// The id of a last event. Whoever comes back with it has heard the end.
pub const END: &str = "end";

/// The body of a stream.
#[derive(Debug)]
struct Events {
    first: Option<Bytes>,
    taken: Option<Taken>,
    _counted: Option<Counted>,
}

impl HttpBody for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        let Some(taken) = &mut self.taken else {
            return Poll::Ready(None);
        };
        let bytes = match ready!(Pin::new(taken).poll_next(context)) {
            Next::State(message) => message.into_event(),
            Next::KeepAlive => KEEP_ALIVE,
            Next::Bye => {
                self.taken = None;
                bye(1_000, 6_000)
            }
            Next::End(last) => {
                self.taken = None;
                match last {
                    Some(message) => end(&message),
                    None => return Poll::Ready(None),
                }
            }
        };
        Poll::Ready(Some(Ok(Frame::data(bytes))))
    }
}

/// A stream that begins with this view; without a seat it ends there.
#[must_use]
pub fn stream(view: &Message, taken: Option<Taken>, counted: Option<Counted>) -> Response<Body> {
    let mut first = format!("retry: {}\n", fastrand::u32(1_000..4_000)).into_bytes();
    match &taken {
        Some(_) => first.extend_from_slice(view.event()),
        None => first.extend_from_slice(&end(view)),
    }
    let lasts = taken.is_some();
    let mut response = answer(Events {
        first: Some(first.into()),
        taken,
        _counted: counted,
    });
    if lasts {
        response.extensions_mut().insert(Lasting);
    }
    response
}

/// A stream that only says "come back in a moment": an answer other than 200 would make an EventSource give up for good.
#[must_use]
pub fn come_back() -> Response<Body> {
    answer(Events {
        first: Some(bye(3_000, 10_000)),
        taken: None,
        _counted: None,
    })
}

/// A last event: the browser brings its id along when it comes back by itself, and is told then that there is nothing more.
fn end(view: &Message) -> Bytes {
    [format!("id: {END}\n").as_bytes(), view.event()].concat().into()
}

/// No stream: there is nothing more to say to this visitor, and its EventSource shall not try again.
#[must_use]
pub fn nothing() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn bye(from_ms: u32, to_ms: u32) -> Bytes {
    let retry = fastrand::u32(from_ms..to_ms);
    format!("retry: {retry}\nevent: bye\ndata: {{\"retry_ms\":{retry}}}\n\n").into()
}

fn answer(events: Events) -> Response<Body> {
    let mut response = Response::new(Body::stream(events));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store, no-transform"));
    headers.insert(ACCEL_BUFFERING, HeaderValue::from_static("no"));
    response
}
