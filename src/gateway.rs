//! The request path: what happens to a request, in the order it happens.
//!
//! `decide` is the only place that orders the steps; `answer` and `act` are the only ones that act on the outcome. A step never calls another step.
//! Steps are ordered by cost: nothing before `act` leaves this process, so a flood is refused without a word to the store.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use http::request::Parts;
use http::{Method, Request, Response};

use crate::access::{Begun, Note, trace};
use crate::body::Body;
use crate::config;
use crate::fault::{ClientFault, Fault};
use crate::intake::{self, Host};
use crate::limit::Listed;
use crate::room::path::Readings;
use crate::room::{Door, Guarded, Rooms};
use crate::telemetry::{NO_ROOM, RoomMetrics};
use crate::upstream::{Group, Upstreams};
use crate::visitor::{Address, Peer, X_FORWARDED_FOR};
use crate::waiting::hall::{Enough, Hall, House};
use crate::waiting::{self, Asked, Route};

mod buy;
mod decision;
mod forward;
mod refuse;
mod wait;

pub use decision::Answering;
use decision::{Decision, Errand, OnClaim, Ready};
use refuse::Refusal;

/// What is decided about an address that is not served.
const DENIED: &str = "denied";
/// Where backends find the public keys of admissions.
const JWKS: &str = "/.well-known/waitgate/jwks.json";

/// Everything a request may meet.
pub struct Gateway {
    /// What all rooms share.
    pub house: Arc<House>,
    halls: HashMap<String, Arc<Hall>, ahash::RandomState>,
    rooms: Rooms,
    /// Rooms that were taken out of the settings: whoever waits there is told.
    gone: Vec<Arc<Hall>>,
    upstreams: Arc<Upstreams>,
    /// Where each room leads.
    groups: HashMap<String, Group, ahash::RandomState>,
    /// Where all else leads, if anywhere.
    fallback: Option<Group>,
    client: config::Client,
    cookie_prefixes: Vec<String>,
    first_byte_ms: u64,
    me: Weak<Gateway>,
    warned_of_proxy: AtomicBool,
    /// Counts what is no room's business.
    elsewhere: RoomMetrics,
}

/// A request on its way.
struct Arrival {
    head: Parts,
    body: Body,
    address: Address,
    peer: IpAddr,
    host: Host,
    /// For the access log, where there is one.
    note: Option<Arc<Note>>,
}

impl std::fmt::Debug for Gateway {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Gateway")
            .field("rooms", &self.halls.keys())
            .finish_non_exhaustive()
    }
}

impl Gateway {
    /// A gateway of these rooms.
    #[must_use]
    pub fn new(
        settings: &config::Config,
        house: Arc<House>,
        halls: Vec<Arc<Hall>>,
        upstreams: Arc<Upstreams>,
        gone: Vec<Arc<Hall>>,
    ) -> Arc<Self> {
        let rooms = Rooms::new(halls.iter().map(|hall| Arc::clone(&hall.settings)).collect());
        let lead = |hall: &Arc<Hall>| (hall.room.id.clone(), upstreams.group(&hall.settings.upstream));
        let groups = halls.iter().map(lead).collect();
        let fallback = Some(&settings.fallback)
            .filter(|origins| !origins.is_empty())
            .map(|origins| upstreams.group(origins));
        Arc::new_cyclic(|me| Self {
            elsewhere: house.metrics.room(NO_ROOM),
            house,
            groups,
            fallback,
            halls: halls.into_iter().map(|hall| (hall.room.id.clone(), hall)).collect(),
            rooms,
            gone,
            upstreams,
            client: settings.client.clone(),
            cookie_prefixes: crate::token::cookie::PREFIXES.map(str::to_owned).to_vec(),
            first_byte_ms: crate::clock::millis(settings.upstream.first_byte_timeout),
            me: me.clone(),
            warned_of_proxy: AtomicBool::new(false),
        })
    }

    /// This gateway, for what outlives a request.
    fn me(&self) -> Option<Arc<Self>> {
        self.me.upgrade()
    }

    /// Answers a request, whatever happens.
    pub fn handle(self: &Arc<Self>, request: Request<Body>, peer: Peer) -> Answering {
        let checked = intake::check(&request);
        let (head, body) = request.into_parts();
        let mut address = Address::find(&self.client, peer, &head.headers);
        let listed = self.house.limits.listed(address.ip);
        address.unlimited = listed == Some(Listed::Allowed);
        let peer = peer.address.ip();
        self.warn_of_proxy(address, peer, &head);
        let asker = Refusal::of(&head);
        let host = match checked {
            // Before anything else: it costs next to nothing, and says next to nothing.
            _ if listed == Some(Listed::Denied) => {
                self.elsewhere.decided(DENIED);
                let note = self.note(&head, "", &address, peer);
                return Answering::now(noted(note, DENIED, asker.denied()));
            }
            Ok(host) => host,
            Err(fault) => {
                let note = self.note(&head, "", &address, peer);
                return Answering::now(noted(note, "refused", self.broke(&asker, &fault.into())));
            }
        };
        let note = self.note(&head, &host.authority, &address, peer);
        let arrival = Arrival {
            head,
            body,
            address,
            peer,
            host,
            note,
        };
        match self.decide(&arrival) {
            Ok(Decision::Answer(ready)) => Answering::now(self.answer(ready, &arrival, &asker)),
            Ok(Decision::Ask(errand)) => {
                let (gateway, arrival) = (Arc::clone(self), Box::new(arrival));
                Answering::later(async move { gateway.run(errand, arrival, &asker).await })
            }
            Err(fault) => Answering::now(noted(arrival.note.clone(), "refused", self.broke(&asker, &fault))),
        }
    }

    /// What the access log will say of a request, where there is one.
    fn note(&self, head: &Parts, host: &str, address: &Address, peer: IpAddr) -> Option<Arc<Note>> {
        let log = self.house.access.as_ref()?;
        let begun = Begun {
            id: trace::request_id(&head.headers, address.trusted_peer)
                .to_str()
                .unwrap_or("-")
                .to_owned(),
            client: address.ip,
            peer,
            head,
            host,
        };
        Some(Note::begin(log, begun))
    }

    /// Behind a proxy that is not listed all visitors look like one, and share one limit: the mistake everybody makes once, said once.
    fn warn_of_proxy(&self, address: Address, peer: IpAddr, head: &Parts) {
        let near = match peer {
            IpAddr::V4(ip) => ip.is_private() || ip.is_loopback(),
            IpAddr::V6(ip) => ip.is_loopback() || ip.is_unique_local(),
        };
        let unlisted = !address.trusted_peer && near && head.headers.contains_key(X_FORWARDED_FOR);
        if unlisted && !self.warned_of_proxy.swap(true, Relaxed) {
            tracing::warn!(
                %peer,
                "requests come through a proxy that client.trusted_proxies does not list: all its visitors count as one address"
            );
        }
    }

    /// Answers what nobody needs to be asked about.
    fn answer(&self, ready: Ready<'_>, arrival: &Arrival, asker: &Refusal) -> Response<Body> {
        let hall = ready.hall();
        self.count(hall, ready.name(), arrival);
        let mut response = match ready {
            Ready::Throttle(_, over) => asker.throttled(&self.house, over),
            Ready::NotFound => asker.not_found(&self.house),
            Ready::Keys => refuse::keys(self.house.tokens.jwks()),
            Ready::WrongMethod(_, method) => refuse::wrong_method(&method),
            Ready::Preflight(_, answer) => answer,
            Ready::ComeBack(_) => waiting::sse::come_back(),
            Ready::SoldOut(hall, presented) => wait::sold_out(&self.house, hall, &presented, asker),
            Ready::Closed(hall) => asker.closed(&self.house, hall),
            Ready::Gone(hall, route) => waiting::gone(hall, route).unwrap_or_else(|| asker.closed(&self.house, hall)),
        };
        if let Some(hall) = hall {
            let origin = arrival.head.headers.get(http::header::ORIGIN);
            waiting::origin::allow(origin, &hall.settings.origins, response.headers_mut());
        }
        match &arrival.note {
            None => response,
            Some(note) => Arc::clone(note).answer(response),
        }
    }

    /// Runs an errand, and says what broke on it.
    async fn run(&self, errand: Errand, arrival: Box<Arrival>, asker: &Refusal) -> Response<Body> {
        let hall = errand.hall().cloned();
        self.count(hall.as_ref(), errand.name(), &arrival);
        let note = arrival.note.clone();
        let to_shop = matches!(errand, Errand::Pass(_) | Errand::Forward(..));
        let origin = arrival.head.headers.get(http::header::ORIGIN).cloned();
        let outcome = self.act(errand, arrival).await;
        // What the shop says is for the shop to share; what we say, faults included, a script of a listed origin may read.
        let shared = hall.filter(|_| !to_shop || outcome.is_err());
        let mut response = outcome.unwrap_or_else(|fault| self.broke(asker, &fault));
        if let Some(hall) = shared {
            waiting::origin::allow(origin.as_ref(), &hall.settings.origins, response.headers_mut());
        }
        match note {
            None => response,
            Some(note) => note.answer(response),
        }
    }

    fn broke(&self, asker: &Refusal, fault: &Fault) -> Response<Body> {
        self.house.metrics.faulted(fault.code());
        asker.fault(&self.house, fault)
    }

    /// The steps, cheapest first. Asks nobody outside this process.
    fn decide(&self, arrival: &Arrival) -> Result<Decision<'_>, Fault> {
        let path = arrival.head.uri.path();
        if let Some(own) = path.strip_prefix(&self.house.prefix).and_then(|rest| rest.strip_prefix('/')) {
            return Ok(self.own_route(own, arrival));
        }
        if path == JWKS {
            let limited = self.house.limits.waiting(&arrival.address);
            return Ok(limited.map_or_else(|over| Ready::Throttle(None, over), |()| Ready::Keys).into());
        }
        // Every reading a backend could make of the path, so that no spelling goes by a room.
        let readings = Readings::of(path)?;
        let (room, claims) = match self.rooms.find(arrival.host.name(), &readings) {
            Guarded::Claim(room) => (room, may_be_read_as_post(&arrival.head)),
            Guarded::Room(room) => (room, false),
            Guarded::Bypass(room) => return Ok(self.ungated(Some(room), arrival)),
            Guarded::Nobody(neighbour) => return Ok(self.ungated(neighbour, arrival)),
        };
        let Some(hall) = self.halls.get(&room.id) else {
            return Err(Fault::Us(format!("room {} has no hall", room.id)));
        };
        // A browser's own question, which costs nobody anything and brings no cookie: counted, it would use up what its script needs.
        if let Some(answer) = waiting::origin::preflight(&arrival.head, &room.origins) {
            return Ok(Ready::Preflight(hall, answer).into());
        }
        // Who it is comes before the limits: three hundred in one office are told apart by their tickets, and whoever shows none shares the
        // budget of its address. What a forged one costs is counted, too.
        let presented = match hall.identify(&self.house, arrival.address, &arrival.head.headers, Enough::Admission) {
            Ok(presented) => presented,
            Err(over) => return Ok(Ready::Throttle(Some(hall), over).into()),
        };
        let limits = &self.house.limits;
        let limited = match presented.name() {
            Some(visitor) => limits.visitor(&arrival.address, &room.id, visitor),
            None => limits.address(&arrival.address),
        };
        if let Err(over) = limited {
            return Ok(Ready::Throttle(Some(hall), over).into());
        }
        // An admitted visitor passes whatever the door does now: he may hold a reservation, and must be able to pay for it.
        if let Some(pass) = presented.pass {
            let hall = Arc::clone(hall);
            return Ok(if claims {
                Errand::Claim(hall, pass)
            } else {
                Errand::Forward(hall, pass)
            }
            .into());
        }
        Ok(match hall.room.door() {
            Door::SoldOut => Ready::SoldOut(hall, presented).into(),
            Door::Closed => Ready::Closed(hall).into(),
            _ => Errand::Wait(Arc::clone(hall), presented, if claims { OnClaim::Yes } else { OnClaim::No }).into(),
        })
    }

    /// Our own routes: with their own budget, so that a waiter never locks himself out.
    fn own_route(&self, own: &str, arrival: &Arrival) -> Decision<'_> {
        let Some((hall, (route, method))) = own
            .split_once('/')
            .and_then(|(room, name)| Some((self.halls.get(room)?, Route::named(name)?)))
        else {
            return self.gone_route(own).unwrap_or(Ready::NotFound).into();
        };
        if let Some(answer) = waiting::origin::preflight(&arrival.head, &hall.settings.origins) {
            return Ready::Preflight(hall, answer).into();
        }
        let throttle = |over| match route {
            // An EventSource that is answered anything but a stream gives up for good.
            Route::Events => Ready::ComeBack(hall).into(),
            _ => Ready::Throttle(Some(hall), over).into(),
        };
        if let Err(over) = self.house.limits.waiting(&arrival.address) {
            return throttle(over);
        }
        if arrival.head.method != method {
            return Ready::WrongMethod(hall, method).into();
        }
        match hall.identify(&self.house, arrival.address, &arrival.head.headers, Enough::All) {
            Ok(presented) => Errand::Waiting(Arc::clone(hall), route, presented).into(),
            Err(over) => throttle(over),
        }
    }

    /// A route of a room that is gone.
    fn gone_route(&self, own: &str) -> Option<Ready<'_>> {
        let (room, name) = own.split_once('/')?;
        let (route, _) = Route::named(name)?;
        let hall = self.gone.iter().find(|hall| hall.room.id == room)?;
        Some(Ready::Gone(hall, route))
    }

    /// What no room guards goes to the backend of the rest of the site, within the limit of its address.
    fn ungated<'g>(&'g self, room: Option<&'g Arc<config::Room>>, arrival: &Arrival) -> Decision<'g> {
        if let Err(over) = self.house.limits.address(&arrival.address) {
            return Ready::Throttle(None, over).into();
        }
        let to = self.fallback.as_ref().or_else(|| self.groups.get(&room?.id));
        to.map_or_else(|| Ready::NotFound.into(), |to| Errand::Pass(to.clone()).into())
    }

    /// Where a room leads.
    fn group(&self, hall: &Hall) -> Result<&Group, Fault> {
        let id = &hall.settings.id;
        self.groups.get(id).ok_or_else(|| Fault::Us(format!("room {id} leads nowhere")))
    }

    /// Acts on an outcome that takes time. The longer ways are boxed once more: the short one, to the backend, is what most of the admitted go.
    async fn act(&self, errand: Errand, arrival: Box<Arrival>) -> Result<Response<Body>, Fault> {
        match errand {
            Errand::Waiting(hall, route, presented) => {
                let Arrival { head, body, host, .. } = *arrival;
                let authority = host.authority;
                let asked = Asked {
                    head,
                    presented,
                    body,
                    authority,
                };
                Box::pin(waiting::answer(&self.house, &hall, route, asked)).await
            }
            Errand::Wait(hall, presented, on_claim) => Box::pin(self.wait(&hall, presented, on_claim, arrival)).await,
            Errand::Pass(to) => self.forward(&to, None, arrival).await,
            Errand::Forward(hall, pass) => self.forward(self.group(&hall)?, Some((&hall, &pass)), arrival).await,
            Errand::Claim(hall, pass) => Box::pin(self.buy(&hall, &pass, arrival)).await,
        }
    }

    fn count(&self, hall: Option<&Arc<Hall>>, decision: &'static str, arrival: &Arrival) {
        if let Some(note) = &arrival.note {
            note.decided(decision, hall.map(|hall| hall.room.id.as_str()));
        }
        match hall {
            Some(hall) => hall.metrics.decided(decision),
            None => self.elsewhere.decided(decision),
        }
    }
}

/// An answer of which nothing else is to be said, for the log as well.
fn noted(note: Option<Arc<Note>>, decision: &'static str, response: Response<Body>) -> Response<Body> {
    match note {
        None => response,
        Some(note) => {
            note.decided(decision, None);
            note.answer(response)
        }
    }
}

/// A `POST`, or what asks a lenient backend to be read as another method than it has: neither gets to a claim route without the gate.
fn may_be_read_as_post(head: &Parts) -> bool {
    const OVERRIDES: [&str; 3] = ["x-http-method-override", "x-http-method", "x-method-override"];
    head.method == Method::POST || OVERRIDES.iter().any(|name| head.headers.contains_key(*name))
}

/// The target of a request: its path and query.
fn target(head: &Parts) -> &str {
    head.uri.path_and_query().map_or("/", |target| target.as_str())
}

/// The body's own fault, where one of ours is inside.
fn body_fault(fault: &(dyn std::error::Error + 'static)) -> ClientFault {
    fault.downcast_ref::<ClientFault>().cloned().unwrap_or(ClientFault::Gone)
}
