//! Forwarding: one request to one backend, streamed both ways, under limits.
//!
//! What may be repeated is decided here and nowhere else: a request of which nothing was sent, and once a `GET`, `HEAD` or `OPTIONS` without a
//! body whose pooled connection turned out to be closed. Everything else is one try, and the fault says whether it may have run. Backends are
//! spoken to with the client's own `Host`: in HTTP/1.1, where every connection serves one request at a time ([`lane`]) and rests in between in the
//! pool of its backend ([`pool`]), or in HTTP/2, where many requests share a connection ([`shared`]). Either way a slow reader never holds another
//! visitor's answer up.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{Extensions, HeaderMap, Method, Request, Response, StatusCode, Uri, Version};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use tokio::time::{Instant, sleep};

use crate::body::{Body, Pause};
use crate::config;
use crate::fault::{ClientFault, Fault, UpstreamFault};
use crate::stop::Stop;

mod backend;
mod body;
mod carrier;
mod condition;
mod connect;
mod group;
mod headers;
mod lane;
mod pool;
mod shared;
mod upgrade;

pub use backend::BackendNow;
use backend::{Backend, Need, Seat};
use body::{Inbound, Outbound, Progress, Source};
use carrier::Carrier;
pub use group::Group;
use lane::Failed;

/// How often resting connections are looked through, at least and at most.
const SWEEPS: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// Bytes of a request that are waited for before it has a place at a backend.
const MAX_GATHERED: u64 = 64 * 1024;
/// Resting connections that may turn out closed, with nothing sent on them, before a new one is opened.
const MAX_UNSENT: u32 = 3;

/// All backends: their pools of connections, and their limits on requests in flight. Cheap to clone; every clone is the same.
#[derive(Clone)]
pub struct Upstreams {
    known: Known,
    settings: Arc<ArcSwap<config::Upstream>>,
    stop: Stop,
}

/// Backends by origin, for as long as somebody leads to them.
type Known = Arc<Mutex<HashMap<Uri, Weak<Backend>>>>;

impl std::fmt::Debug for Upstreams {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_list().entries(self.now()).finish()
    }
}

/// Where a request goes, on whose behalf, and what is put on it.
#[derive(Debug)]
pub struct Outgoing<'a> {
    /// The backend.
    pub to: &'a Group,
    /// The visitor's address.
    pub client: IpAddr,
    /// The address of the connection: the visitor's own, or a proxy's.
    pub peer: IpAddr,
    /// How the visitor reached us: `http` or `https`.
    pub scheme: &'static str,
    /// Where the peer is a trusted proxy: the header in which it names the client, which is kept and appended to, as is `X-Forwarded-*`. Whatever
    /// else names an address is the client's own word, and goes off.
    pub believed: Option<config::ForwardedHeader>,
    /// Our own headers. They replace what the client sent under the same names, and nothing the client says takes them away.
    pub added: &'a HeaderMap,
    /// Cookies whose names start with one of these are ours, and never reach the backend.
    pub cookie_prefixes: &'a [String],
    /// Where to write which backend answered, for a log.
    pub served_by: Option<&'a OnceLock<String>>,
    /// Replaces the request's own path and query.
    pub path_and_query: Option<PathAndQuery>,
}

impl Upstreams {
    /// Nothing is connected before the first request. Tunnels run in the tasks of `stop`; must be called inside a runtime.
    #[must_use]
    pub fn new(settings: config::Upstream, stop: Stop) -> Self {
        let upstreams = Self {
            known: Known::default(),
            settings: Arc::new(ArcSwap::from_pointee(settings)),
            stop,
        };
        let sweeping = sweep(Arc::downgrade(&upstreams.known), Arc::clone(&upstreams.settings));
        let stopped = upstreams.stop.cut.clone();
        tokio::spawn(async move { stopped.run_until_cancelled(sweeping).await });
        upstreams
    }

    /// From now on these settings. Backends that somebody leads to keep their connections; one that nobody leads to any more is forgotten.
    pub fn update(&self, settings: config::Upstream) {
        let most = settings.max_in_flight;
        let before = self.settings.swap(Arc::new(settings));
        if before.max_in_flight != most {
            let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            known.values().filter_map(Weak::upgrade).for_each(|backend| backend.resize(most));
        }
    }

    /// The backends at these origins, `http://host:port` or `https://host:port` each.
    #[must_use]
    pub fn group(&self, origins: &[Uri]) -> Group {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let backend = |origin: &Uri| {
            known.get(origin).and_then(Weak::upgrade).unwrap_or_else(|| {
                let backend = Arc::new(Backend::new(origin, &self.settings));
                known.insert(origin.clone(), Arc::downgrade(&backend));
                tokio::spawn(condition::ask(Arc::downgrade(&backend)));
                backend
            })
        };
        Group::new(origins.iter().map(backend).collect())
    }

    /// How all backends are at this moment, by their origins.
    #[must_use]
    pub fn now(&self) -> Vec<BackendNow> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let backends: Vec<_> = known.values().filter_map(Weak::upgrade).collect();
        drop(known);
        let mut now: Vec<_> = backends.iter().map(|backend| backend.now()).collect();
        now.sort_by(|one, other| one.origin.cmp(&other.origin));
        now
    }

    /// Sends a request to its backend and answers the backend's head; the body follows as it comes. `head.extensions` carries hyper's `OnUpgrade`
    /// for a WebSocket; the head is used up. Dropping the future gives the request up and closes its connection.
    ///
    /// # Errors
    ///
    /// [`Fault::Upstream`] says what the backend did and [`Fault::may_have_run`] whether the request may have run; [`Fault::Client`] what the
    /// client did while sending its body.
    pub async fn forward(&self, outgoing: &Outgoing<'_>, head: &mut Parts, body: Body) -> Result<Response<Body>, Fault> {
        // A small body is waited for before a place is taken: whoever sends it slowly keeps nobody else from the backend.
        let body = match body {
            Body::Full(_) => body,
            Body::Stream(_) => Box::pin(body.gathered(MAX_GATHERED))
                .await
                .map_err(|fault| Fault::Client(body::whose(&*fault)))?,
        };
        let seat = match outgoing.to.seat_now() {
            Some(seat) => seat,
            None => Box::pin(outgoing.to.seat(None)).await?,
        };
        let client = upgrade::asked(head);
        let sent = body.is_end_stream();
        let length = if sent { Some(0) } else { body.size_hint().exact() };
        headers::outgoing(head, outgoing, length, client.is_some());
        aim(head, outgoing.path_and_query.as_ref())?;
        head.version = Version::HTTP_11;
        head.extensions = Extensions::new();

        let progress = (!sent).then(Progress::new);
        let safe = matches!(head.method, Method::GET | Method::HEAD | Method::OPTIONS) && sent && client.is_none();
        let way = Way {
            to: outgoing.to,
            need: Need {
                closely: !safe,
                upgrade: client.is_some(),
            },
            progress: progress.as_deref(),
        };
        let body = Outbound::new(body, progress.clone());
        let (response, carrier, seat) = self.exchange(way, seat, head, body).await?;
        if let Some(log) = outgoing.served_by {
            let _once = log.set(seat.backend.authority().to_owned());
        }
        self.answer(response, client, (carrier, seat), progress.as_deref())
    }

    /// Up to the head of an answer, on whatever connection it takes, and at another backend where one cannot be reached or fails what may be repeated.
    ///
    /// The head stays where it is until it is sent: whatever is kept across a wait is kept for each request in flight, and copied more than once.
    async fn exchange(
        &self,
        way: Way<'_>,
        mut seat: Seat,
        head: &mut Parts,
        mut body: Outbound,
    ) -> Result<(Response<Incoming>, Carrier, Seat), Fault> {
        let Way { to, need, progress } = way;
        let settings = self.settings.load_full();
        let (mut fresh, mut unsent, mut moved) = (false, 0, false);
        loop {
            let resting = if fresh { None } else { seat.backend.resting(need) };
            let mut carrier = match resting {
                Some(carrier) => carrier,
                None => match Box::pin(seat.backend.connect(need)).await {
                    Ok(carrier) => carrier,
                    Err(fault) => {
                        seat.backend.failed();
                        if moved || !to.has_another() {
                            return Err(UpstreamFault::Connect(fault).into());
                        }
                        (seat, moved) = (Box::pin(to.seat(Some(&seat.backend))).await?, true); // nothing was sent
                        continue;
                    }
                },
            };
            let copy = (!need.closely && carrier.served() && !fresh).then(|| copy(head));
            let began = Instant::now();
            if let Some(progress) = progress {
                progress.touch(); // limits on the answer count from the connection
            }
            let whole = began + settings.first_byte_timeout;
            let look = || match progress {
                Some(progress) => progress.next_look(&settings),
                None => (Instant::now() < whole).then_some(whole),
            };
            let fault = match carrier.exchange(take(head), body, seat.backend.asked(), look).await {
                Ok(response) => {
                    seat.backend.condition.answered();
                    return Ok((response, carrier, seat));
                }
                Err(Failed::Unsent(back, fault)) if unsent < MAX_UNSENT => {
                    tracing::debug!(%fault, "a connection was closed before anything was sent on it");
                    (*head, body) = back.into_parts();
                    unsent += 1;
                    fresh = unsent == MAX_UNSENT;
                    continue;
                }
                Err(failed) => Broken::read(failed, progress, carrier.served()),
            };
            match (copy, fault) {
                (Some(again), Broken { stale: true, .. }) => {
                    carrier.leave();
                    (*head, body, fresh) = (*again, Outbound::empty(), true);
                }
                (_, broken) => {
                    if matches!(broken.fault, Fault::Upstream(_)) {
                        seat.backend.failed();
                    }
                    return Err(broken.fault);
                }
            }
        }
    }

    fn answer(
        &self,
        response: Response<Incoming>,
        client: Option<OnUpgrade>,
        (carrier, seat): (Carrier, Seat),
        progress: Option<&Progress>,
    ) -> Result<Response<Body>, Fault> {
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let Carrier::Lane(lane) = carrier else {
                return Err(UpstreamFault::Malformed("it switched protocols where that cannot be done").into());
            };
            return Ok(upgrade::begin(client, response, (lane, seat), &self.stop)?);
        }
        let (mut parts, incoming) = response.into_parts();
        headers::incoming(&mut parts.headers);
        parts.extensions = Extensions::new();
        parts.version = Version::HTTP_11;
        let body = if incoming.is_end_stream() {
            if let Carrier::Lane(lane) = carrier {
                seat.backend.give_back(lane);
            }
            Body::empty()
        } else {
            let alone = |_part| Source::Alone {
                pause: Pause::new(),
                _part,
            };
            let source = match carrier {
                Carrier::Lane(lane) if progress.is_none_or(Progress::is_sent) => Source::Lane(lane),
                Carrier::Lane(lane) => {
                    lane.run_alone();
                    alone(None)
                }
                Carrier::Stream(stream) => alone(Some(stream)),
            };
            Body::stream(Inbound::new(incoming, source, seat, self.settings.load().idle_timeout))
        };
        Ok(Response::from_parts(parts, body))
    }
}

/// Now and then, for as long as there are upstreams.
async fn sweep(known: Weak<Mutex<HashMap<Uri, Weak<Backend>>>>, settings: Arc<ArcSwap<config::Upstream>>) {
    loop {
        let pause = (settings.load().keep_alive / 2).clamp(SWEEPS.0, SWEEPS.1);
        sleep(pause).await;
        let Some(known) = known.upgrade() else { return };
        let mut backends = Vec::new();
        known.lock().unwrap_or_else(PoisonError::into_inner).retain(|_, backend| {
            let backend = backend.upgrade();
            backends.extend(backend.clone());
            backend.is_some()
        });
        for backend in backends {
            backend.sweep();
        }
    }
}

/// The same head once more; it has no body.
fn copy(head: &Parts) -> Box<Parts> {
    let mut copy = Box::new(nothing());
    copy.method.clone_from(&head.method);
    copy.uri.clone_from(&head.uri);
    copy.headers.clone_from(&head.headers);
    copy
}

fn take(head: &mut Parts) -> Parts {
    std::mem::replace(head, nothing())
}

/// A head that says nothing.
fn nothing() -> Parts {
    Request::new(()).into_parts().0
}

/// How a request may go.
#[derive(Clone, Copy)]
struct Way<'a> {
    to: &'a Group,
    need: Need,
    /// How far its body is, where it has one.
    progress: Option<&'a Progress>,
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
    fn read(failed: Failed, progress: Option<&Progress>, served_before: bool) -> Self {
        if let Some(fault) = progress.and_then(Progress::fault) {
            return Self {
                fault: Fault::Client(fault),
                stale: false,
            };
        }
        match failed {
            Failed::Late => UpstreamFault::Timeout.into(),
            Failed::Unsent(_, error) => UpstreamFault::Connect(error.into()).into(),
            Failed::Broken(error) if error.is_parse_too_large() => UpstreamFault::Malformed("its head is too long").into(),
            Failed::Broken(error) if error.is_parse() => UpstreamFault::Malformed("it is not HTTP").into(),
            Failed::Broken(error) if was_refused(&error) => Self {
                fault: UpstreamFault::Connect(error.into()).into(),
                stale: true,
            },
            Failed::Broken(error) => {
                let stale = served_before && (error.is_incomplete_message() || is_reset(&error));
                Self {
                    fault: UpstreamFault::Broken(error.into()).into(),
                    stale,
                }
            }
        }
    }
}

fn causes<'a>(error: &'a (dyn std::error::Error + 'static)) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |error| error.source())
}

/// The backend said that it has not looked at the request: it is going away, or has too much to do.
fn was_refused(error: &(dyn std::error::Error + 'static)) -> bool {
    causes(error).filter_map(|cause| cause.downcast_ref::<h2::Error>()).any(|error| {
        let leaving = error.is_go_away() && error.is_remote() && error.reason() == Some(h2::Reason::NO_ERROR);
        leaving || (error.is_reset() && error.is_remote() && error.reason() == Some(h2::Reason::REFUSED_STREAM))
    })
}

fn is_reset(error: &(dyn std::error::Error + 'static)) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    causes(error)
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|error| matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof))
}

/// Makes the target what a backend wants: the path and query alone, byte for byte.
fn aim(parts: &mut Parts, other: Option<&PathAndQuery>) -> Result<(), Fault> {
    let whole = parts.uri.authority().is_some() || parts.uri.scheme().is_some();
    if other.is_none() && !whole && parts.uri.path_and_query().is_some() {
        return Ok(());
    }
    let target = other
        .or(parts.uri.path_and_query())
        .cloned()
        .unwrap_or_else(|| PathAndQuery::from_static("/"));
    let mut uri = http::uri::Parts::default();
    uri.path_and_query = Some(target);
    parts.uri = Uri::from_parts(uri).map_err(|_| Fault::Client(ClientFault::Malformed("the target cannot be forwarded")))?;
    Ok(())
}
