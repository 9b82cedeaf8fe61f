//! Who answers on a connection: counts it busy, limits what it brings, asks the gateway, and puts on what every answer of a listener has.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Release},
};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use http::header::{CACHE_CONTROL, CONNECTION, COOKIE, STRICT_TRANSPORT_SECURITY};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version};
use hyper::body::Incoming;

use super::activity::{Activity, Busy};
use super::answer::{Answer, Streams};
use super::{Peer, redirect};
use crate::body::{Body, Lasting};
use crate::intake::{self, Upload};

/// Everything that one connection needs to answer.
pub(super) struct Desk<H> {
    pub(super) handle: H,
    pub(super) peer: Peer,
    pub(super) activity: Arc<Activity>,
    pub(super) streams: Option<Streams>,
    pub(super) upload: intake::Limits,
    pub(super) max_headers: usize,
    /// Requests are only sent on to https, on this port.
    pub(super) redirect: Option<u16>,
    /// What browsers are told about coming by https.
    pub(super) hsts: Option<HeaderValue>,
    /// An answer with which the connection leaves hyper, and whether there is one: that is asked whenever a connection is looked at.
    pub(super) lasting: Mutex<Option<Response<Answer>>>,
    pub(super) leaves: AtomicBool,
}

impl<H> Desk<H> {
    fn leave_with(&self, answer: Response<Answer>) {
        *self.lasting.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
        self.leaves.store(true, Release);
    }

    pub(super) fn take_lasting(&self) -> Option<Response<Answer>> {
        self.lasting.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Ready when there is an answer with which the connection leaves hyper. Wakes nobody: it is looked at whenever the connection is.
    pub(super) fn has_lasting(&self) -> impl Future<Output = ()> {
        std::future::poll_fn(|_| {
            if self.leaves.load(Acquire) {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
    }
}

impl<H, F> Desk<H>
where
    H: Fn(Request<Body>, Peer) -> F,
    F: Future<Output = Response<Body>> + Unpin,
{
    pub(super) fn answer(self: &Arc<Self>, request: Request<Incoming>) -> Answered<H, F> {
        let busy = self.activity.begin();
        let http1 = request.version() < Version::HTTP_2;
        let may_last = request.version() == Version::HTTP_11 && request.method() == Method::GET;
        let (going, upload) = if request.headers().len() > self.max_headers && fields_of(request.headers()) > self.max_headers {
            (Going::TooManyHeaders, None)
        } else {
            let (request, upload) = intake::limit(request, self.upload);
            let going = match self.redirect {
                Some(port) => Going::SentOn(Box::new(redirect::to_https(&request, port))),
                None => Going::Asked((self.handle)(request, self.peer)),
            };
            (going, Some(upload).filter(|_| http1))
        };
        Answered {
            desk: Arc::clone(self),
            busy: Some(busy),
            going,
            upload,
            may_last,
        }
    }

    fn send(&self, mut response: Response<Body>, upload: Option<&Upload>, busy: Busy) -> Response<Answer> {
        if upload.is_some_and(|upload| !upload.is_over()) {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            self.activity.leaves_unread();
        }
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            self.activity.upgrade();
        }
        *response.version_mut() = Version::HTTP_11;
        if let Some(hsts) = &self.hsts {
            response
                .headers_mut()
                .entry(STRICT_TRANSPORT_SECURITY)
                .or_insert_with(|| hsts.clone());
        }
        match &self.streams {
            Some(streams) => response.map(|body| streams.watch(body, busy)),
            None => response.map(|body| Answer::Plain(body, busy)),
        }
    }
}

/// An answer on its way. Written out rather than `async`: most answers are there at once, and a future is copied more than once before it is polled.
pub(super) struct Answered<H, F> {
    desk: Arc<Desk<H>>,
    busy: Option<Busy>,
    going: Going<F>,
    /// What the request brings with it, where the connection has to end when not all of it is read.
    upload: Option<Upload>,
    /// Whether its connection may leave hyper with an answer that lasts.
    may_last: bool,
}

enum Going<F> {
    Asked(F),
    SentOn(Box<Response<Body>>),
    TooManyHeaders,
}

impl<H, F> Future for Answered<H, F>
where
    H: Fn(Request<Body>, Peer) -> F,
    F: Future<Output = Response<Body>> + Unpin,
{
    type Output = Result<Response<Answer>, Infallible>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let response = match &mut this.going {
            Going::Asked(answer) => ready!(Pin::new(answer).poll(context)),
            Going::SentOn(answer) => std::mem::replace(&mut **answer, Response::new(Body::empty())),
            Going::TooManyHeaders => too_many_headers(),
        };
        match this.busy.take() {
            Some(busy) => {
                let lasts =
                    this.may_last && response.extensions().get::<Lasting>().is_some() && this.upload.as_ref().is_none_or(Upload::is_over);
                let response = this.desk.send(response, this.upload.as_ref(), busy);
                if lasts {
                    this.desk.leave_with(response);
                    return Poll::Pending; // hyper hears no more of it
                }
                Poll::Ready(Ok(response))
            }
            None => Poll::Pending, // polled again after its end: hyper does not
        }
    }
}

/// How many fields a head has. In HTTP/2 a browser sends each cookie as a field of its own, to be put together again: they are one.
fn fields_of(headers: &HeaderMap) -> usize {
    let crumbs = headers.get_all(COOKIE).iter().count();
    headers.len() - crumbs.saturating_sub(1)
}

fn too_many_headers() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
