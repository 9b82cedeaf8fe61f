//! What carries one request to a backend and its answer back: a connection of its own, or a part of one that others use too.
//!
//! The two want different heads of the same request; a request that was not sent goes on to the other in the other's shape.

use std::future::Future;

use futures_util::future::Either;
use http::header::{CONNECTION, HOST, TRANSFER_ENCODING, UPGRADE};
use http::request::Parts;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderValue, Request, Response, Uri, Version};
use hyper::body::Incoming;
use tokio::time::Instant;

use super::body::Outbound;
use super::lane::{Failed, Lane};
use super::shared::Stream;

/// A way to a backend, for one request at a time.
pub(super) enum Carrier {
    /// HTTP/1.1.
    Lane(Box<Lane>),
    /// HTTP/2.
    Stream(Stream),
}

/// As whom a backend is asked for.
pub(super) struct Asked<'a> {
    pub(super) scheme: &'a Scheme,
    /// Where the request names no host that could be asked for.
    pub(super) authority: &'a str,
}

impl Carrier {
    /// Its connection has answered before: if it breaks now before it answers, an idle backend most likely closed it in this very moment.
    pub(super) fn served(&self) -> bool {
        match self {
            Self::Lane(lane) => lane.served(),
            Self::Stream(stream) => stream.served(),
        }
    }

    /// Nobody else is to try it: the next request goes another way.
    pub(super) fn leave(&self) {
        if let Self::Stream(stream) = self {
            stream.leave();
        }
    }

    /// Sends a request, and answers with the head of what comes back. `look` says, as it is now, until when nothing need be looked at, or that it
    /// has taken too long.
    pub(super) fn exchange(
        &mut self,
        head: Parts,
        body: Outbound,
        asked: Asked<'_>,
        look: impl Fn() -> Option<Instant>,
    ) -> impl Future<Output = Result<Response<Incoming>, Failed>> {
        let mut request = Request::from_parts(head, body);
        match self {
            Self::Lane(lane) => {
                if request.version() == Version::HTTP_2 {
                    for_http1(&mut request);
                }
                Either::Left(lane.exchange(request, look))
            }
            Self::Stream(stream) => {
                for_http2(&mut request, &asked);
                Either::Right(Box::pin(stream.exchange(request, look))) // most requests go the other way, and do not carry this future
            }
        }
    }
}

/// The host becomes part of the target, and nothing is said about the connection.
fn for_http2(request: &mut Request<Outbound>, asked: &Asked<'_>) {
    let headers = request.headers_mut();
    let host = headers.remove(HOST);
    for name in [CONNECTION, UPGRADE, TRANSFER_ENCODING] {
        headers.remove(name);
    }
    let host = host.and_then(|host| Authority::try_from(host.as_bytes()).ok());
    let mut target = http::uri::Parts::default();
    target.path_and_query = request.uri().path_and_query().cloned();
    target.authority = request.uri().authority().cloned().or(host).or_else(|| asked.authority.parse().ok());
    target.scheme = Some(asked.scheme.clone());
    if let Ok(target) = Uri::from_parts(target) {
        *request.uri_mut() = target;
    }
    *request.version_mut() = Version::HTTP_2;
}

/// The way back.
fn for_http1(request: &mut Request<Outbound>) {
    let host = request.uri().authority().map(|host| HeaderValue::from_str(host.as_str()));
    if let Some(Ok(host)) = host {
        request.headers_mut().insert(HOST, host);
    }
    let target = request.uri().path_and_query().cloned();
    *request.uri_mut() = target.unwrap_or_else(|| PathAndQuery::from_static("/")).into();
    *request.version_mut() = Version::HTTP_11;
}
