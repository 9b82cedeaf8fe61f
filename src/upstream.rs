//! Forwarding: one request to one backend, streamed both ways, under limits.
//!
//! What may be repeated is decided here and nowhere else: a request of which nothing was sent (by the pool itself), and once a `GET`, `HEAD` or
//! `OPTIONS` without a body whose pooled connection turned out to be closed. Everything else is one try, and the fault says whether it may have
//! run. Backends are spoken to in HTTP/1.1 with the client's own `Host`; every connection of the pool serves one request at a time, so a slow
//! reader never holds another visitor's answer up.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use dashmap::DashMap;
use http::uri::{Authority, PathAndQuery};
use http::{Extensions, HeaderMap, Method, Request, Response, StatusCode, Uri, Version};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper_util::client::legacy::connect::capture_connection;
use hyper_util::client::legacy::{self, Client};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, sleep_until, timeout};

use crate::body::Body;
use crate::config;
use crate::fault::{ClientFault, Fault, UpstreamFault};
use crate::stop::Stop;

mod body;
mod connect;
mod headers;
mod upgrade;

use body::{Inbound, Outbound, Progress};
use connect::{Connector, Served};

/// About how many bytes a response head of a backend may have (a bigger one may pass when it comes in one piece); also the size of the buffers between it and us.
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// What is added to the connect limit before a request that got no connection is given up by us as well.
const CONNECT_MARGIN: Duration = Duration::from_millis(500);

/// All backends: their pools of connections, and their limits on requests in flight.
pub struct Upstreams {
    pooled: Client<Connector, Outbound>,
    fresh: Client<Connector, Outbound>,
    settings: config::Upstream,
    places: DashMap<Authority, Arc<Semaphore>>,
    stop: Stop,
}

/// Where a request goes, on whose behalf, and what is put on it.
#[derive(Debug)]
pub struct Outgoing<'a> {
    /// The backend: `http://host:port`.
    pub origin: &'a Uri,
    /// The visitor's address.
    pub client: IpAddr,
    /// The address of the connection: the visitor's own, or a proxy's.
    pub peer: IpAddr,
    /// How the visitor reached us: `http` or `https`.
    pub scheme: &'static str,
    /// The peer is a trusted proxy: its `X-Forwarded-*` and `Forwarded` are kept and appended to.
    pub trusted_peer: bool,
    /// Our own headers. They replace what the client sent under the same names, and nothing the client says takes them away.
    pub added: HeaderMap,
    /// Cookies whose names start with one of these are ours, and never reach the backend.
    pub cookie_prefixes: &'a [String],
    /// Replaces the request's own path and query.
    pub path_and_query: Option<PathAndQuery>,
}

impl Upstreams {
    /// Nothing is connected before the first request. Tunnels run in the tasks of `stop`.
    #[must_use]
    pub fn new(settings: config::Upstream, stop: Stop) -> Self {
        let connector = Connector::new(settings.connect_timeout);
        let client = |idle: usize| {
            Client::builder(TokioExecutor::new())
                .pool_timer(TokioTimer::new())
                .timer(TokioTimer::new())
                .pool_idle_timeout(settings.keep_alive)
                .pool_max_idle_per_host(idle)
                .http1_max_buf_size(MAX_HEAD_BYTES)
                .set_host(false)
                .build(connector.clone())
        };
        Self {
            pooled: client(settings.max_in_flight),
            fresh: client(0),
            settings,
            places: DashMap::new(),
            stop,
        }
    }

    /// Sends a request to its backend and answers the backend's head; the body follows as it comes. `request.extensions()` carries hyper's
    /// `OnUpgrade` for a WebSocket. Dropping the future gives the request up and closes its connection.
    ///
    /// # Errors
    ///
    /// [`Fault::Upstream`] says what the backend did and [`Fault::may_have_run`] whether the request may have run; [`Fault::Client`] what the
    /// client did while sending its body.
    pub async fn forward(&self, outgoing: Outgoing<'_>, request: Request<Body>) -> Result<Response<Body>, Fault> {
        let place = self.place(outgoing.origin).await?;
        let (mut parts, body) = request.into_parts();
        let client = upgrade::asked(&mut parts);
        let sent = body.is_end_stream();
        let length = if sent { Some(0) } else { body.size_hint().exact() };
        headers::outgoing(&mut parts, &outgoing, length, client.is_some());
        parts.uri = target(outgoing.origin, outgoing.path_and_query.as_ref().or(parts.uri.path_and_query()))?;
        parts.version = Version::HTTP_11;
        parts.extensions = Extensions::new();

        let safe = matches!(parts.method, Method::GET | Method::HEAD | Method::OPTIONS);
        let again = (safe && sent && client.is_none()).then(|| parts.clone());
        let response = match self.exchange(&self.pooled, Request::from_parts(parts, body)).await {
            Ok(response) => response,
            Err(Broken { fault, stale: true }) => match again {
                Some(parts) => self
                    .exchange(&self.fresh, Request::from_parts(parts, Body::empty()))
                    .await
                    .map_err(|broken| broken.fault)?,
                None => return Err(fault),
            },
            Err(broken) => return Err(broken.fault),
        };
        self.answer(response, client, place)
    }

    /// A turn among the requests in flight to this backend.
    async fn place(&self, origin: &Uri) -> Result<OwnedSemaphorePermit, Fault> {
        let authority = origin
            .authority()
            .ok_or_else(|| Fault::Us(format!("the upstream {origin} has no host")))?;
        let known = self.places.get(authority).map(|places| Arc::clone(&places));
        let places = known.unwrap_or_else(|| {
            let entry = self.places.entry(authority.clone());
            Arc::clone(&entry.or_insert_with(|| Arc::new(Semaphore::new(self.settings.max_in_flight))))
        });
        match timeout(self.settings.queue_timeout, places.acquire_owned()).await {
            Ok(Ok(place)) => Ok(place),
            Ok(Err(_)) | Err(_) => Err(UpstreamFault::Busy.into()),
        }
    }

    /// One try: from here to the head of the answer.
    async fn exchange(&self, client: &Client<Connector, Outbound>, request: Request<Body>) -> Result<Response<Incoming>, Broken> {
        let progress = Progress::new(request.body().is_end_stream());
        let mut request = request.map(|body| Outbound::new(body, Arc::clone(&progress)));
        let mut connection = capture_connection(&mut request);
        let mut answer = std::pin::pin!(client.request(request));

        let connected = async {
            connection.wait_for_connection_metadata().await;
        };
        let early = tokio::select! {
            biased;
            answer = answer.as_mut() => Some(answer),
            () = connected => None,
            () = sleep(self.settings.connect_timeout + CONNECT_MARGIN) => return Err(UpstreamFault::Connect("it took too long".into()).into()),
        };
        progress.touch(); // limits on the answer count from the connection
        let answer = match early {
            Some(answer) => answer,
            None => loop {
                tokio::select! {
                    biased;
                    answer = answer.as_mut() => break answer,
                    () = sleep_until(progress.next_look(&self.settings)) => {
                        if progress.deadline(&self.settings) <= tokio::time::Instant::now() {
                            return Err(UpstreamFault::Timeout.into());
                        }
                    }
                }
            },
        };
        let mut extras = Extensions::new();
        if let Some(connected) = connection.connection_metadata().as_ref() {
            connected.get_extras(&mut extras);
        }
        let served = extras.get::<Served>();
        match answer {
            Ok(response) => {
                if let Some(served) = served {
                    served.note();
                }
                Ok(response)
            }
            Err(error) => Err(Broken::read(error, &progress, served.is_some_and(Served::already))),
        }
    }

    fn answer(
        &self,
        response: Response<Incoming>,
        client: Option<hyper::upgrade::OnUpgrade>,
        place: OwnedSemaphorePermit,
    ) -> Result<Response<Body>, Fault> {
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return Ok(upgrade::begin(client, response, place, &self.stop)?);
        }
        let (mut parts, body) = response.into_parts();
        headers::incoming(&mut parts.headers);
        parts.extensions = Extensions::new();
        parts.version = Version::HTTP_11;
        let body = if body.is_end_stream() {
            Body::empty()
        } else {
            Body::stream(Inbound::new(body, place, self.settings.idle_timeout))
        };
        Ok(Response::from_parts(parts, body))
    }
}

/// A try that failed.
struct Broken {
    fault: Fault,
    /// The connection had served before and was closed before an answer began: nobody may be to blame.
    stale: bool,
}

impl From<UpstreamFault> for Broken {
    fn from(fault: UpstreamFault) -> Self {
        Self {
            fault: fault.into(),
            stale: false,
        }
    }
}

impl Broken {
    fn read(error: legacy::Error, progress: &Progress, served_before: bool) -> Self {
        if let Some(fault) = progress.fault() {
            return Self {
                fault: Fault::Client(fault),
                stale: false,
            };
        }
        if error.is_connect() {
            return UpstreamFault::Connect(error.into()).into();
        }
        let cause = causes(&error).find_map(|cause| cause.downcast_ref::<hyper::Error>());
        if cause.is_some_and(hyper::Error::is_parse_too_large) {
            return UpstreamFault::Malformed("its head is too long").into();
        }
        if cause.is_some_and(hyper::Error::is_parse) {
            return UpstreamFault::Malformed("it is not HTTP").into();
        }
        if cause.is_some_and(hyper::Error::is_canceled) {
            return UpstreamFault::Connect(error.into()).into(); // hyper gave the request back: nothing was sent
        }
        let stale = served_before && (cause.is_some_and(hyper::Error::is_incomplete_message) || is_reset(&error));
        Self {
            fault: UpstreamFault::Broken(error.into()).into(),
            stale,
        }
    }
}

fn causes<'a>(error: &'a (dyn std::error::Error + 'static)) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |error| error.source())
}

fn is_reset(error: &(dyn std::error::Error + 'static)) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    causes(error)
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|error| matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof))
}

/// The backend's host with the request's own path and query, byte for byte.
fn target(origin: &Uri, path_and_query: Option<&PathAndQuery>) -> Result<Uri, Fault> {
    let mut parts = origin.clone().into_parts();
    parts.path_and_query = Some(path_and_query.cloned().unwrap_or_else(|| PathAndQuery::from_static("/")));
    Uri::from_parts(parts).map_err(|_| Fault::Client(ClientFault::Malformed("the target cannot be forwarded")))
}
