//! The request path: what happens to a request, in the order it happens.
//!
//! `decide` is the only place that orders the steps and `act` the only one that acts on the outcome. A step never calls another step. Steps are
//! ordered by cost: nothing before `act` leaves this process, so a flood is refused without a word to the store.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use http::request::Parts;
use http::{Method, Request, Response};

use crate::body::Body;
use crate::config;
use crate::fault::{ClientFault, Fault};
use crate::intake::{self, Host};
use crate::limit::Over;
use crate::room::path::Readings;
use crate::room::{Door, Guarded, Rooms};
use crate::telemetry::NO_ROOM;
use crate::token::Pass;
use crate::upstream::{Group, Upstreams};
use crate::visitor::{Address, Peer, X_FORWARDED_FOR};
use crate::waiting::hall::{Hall, House, Presented};
use crate::waiting::{self, Asked, Route};

mod buy;
mod forward;
mod refuse;
mod wait;

use refuse::Refusal;

/// Where backends find the public keys of admissions.
const JWKS: &str = "/.well-known/waitgate/jwks.json";

/// Everything a request may meet.
pub struct Gateway {
    /// What all rooms share.
    pub house: Arc<House>,
    halls: HashMap<String, Arc<Hall>>,
    rooms: Rooms,
    upstreams: Upstreams,
    /// Where each room leads.
    groups: HashMap<String, Group>,
    /// Where all else leads, if anywhere.
    fallback: Option<Group>,
    client: config::Client,
    cookie_prefixes: Vec<String>,
    first_byte_ms: u64,
    me: Weak<Gateway>,
    warned_of_proxy: AtomicBool,
}

/// What should happen to a request. Being turned away is not an error: it is the product working. What breaks is a [`Fault`].
#[derive(Debug)]
enum Decision<'g> {
    /// Over a limit.
    Throttle(Option<&'g Arc<Hall>>, Over),
    /// Nothing is known under this host and path.
    NotFound,
    /// The public keys of admissions.
    Keys,
    /// A call of a waiting page, or of a program that waits.
    Waiting(&'g Arc<Hall>, Route, Presented),
    /// A stream of events over a limit.
    ComeBack(&'g Arc<Hall>),
    /// The route is there, and wants another method.
    WrongMethod(&'g Arc<Hall>, Method),
    /// A script of a listed origin asks whether it may ask.
    Preflight(&'g Arc<Hall>, Response<Body>),
    /// No room's business: to the backend as it is.
    Pass(&'g Group),
    /// Admitted: to the backend.
    Forward(&'g Arc<Hall>, Arc<Pass>),
    /// Admitted, and asks for units.
    Claim(&'g Arc<Hall>, Arc<Pass>),
    /// All units are sold, and this visitor is not among the buyers.
    SoldOut(&'g Arc<Hall>, Presented),
    /// Past the closing time.
    Closed(&'g Arc<Hall>),
    /// Join the line, or go on waiting in it.
    Wait(&'g Arc<Hall>, Presented, OnClaim),
}

/// Whether a request that must wait was sent to a claim route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnClaim {
    Yes,
    No,
}

/// A request on its way.
struct Arrival {
    head: Parts,
    body: Body,
    address: Address,
    peer: IpAddr,
    host: Host,
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
    pub fn new(settings: &config::Config, house: Arc<House>, halls: Vec<Arc<Hall>>, upstreams: Upstreams) -> Arc<Self> {
        let rooms = Rooms::new(halls.iter().map(|hall| Arc::clone(&hall.settings)).collect());
        let lead = |hall: &Arc<Hall>| (hall.room.id.clone(), upstreams.group(&hall.settings.upstream));
        let groups = halls.iter().map(lead).collect();
        let fallback = settings.fallback.as_ref().map(|origin| upstreams.group(origin));
        Arc::new_cyclic(|me| Self {
            house,
            groups,
            fallback,
            halls: halls.into_iter().map(|hall| (hall.room.id.clone(), hall)).collect(),
            rooms,
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
    pub async fn handle(self: Arc<Self>, request: Request<Body>, peer: Peer) -> Response<Body> {
        let checked = intake::check(&request);
        let (head, body) = request.into_parts();
        let address = Address::find(&self.client, peer, &head.headers);
        let peer = peer.address.ip();
        self.warn_of_proxy(address, peer, &head);
        let asker = Refusal::of(&head);
        let outcome = match checked {
            Ok(host) => {
                let arrival = Arrival {
                    head,
                    body,
                    address,
                    peer,
                    host,
                };
                self.serve(arrival, &asker).await
            }
            Err(fault) => Err(fault.into()),
        };
        outcome.unwrap_or_else(|fault| self.broke(&asker, &fault))
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

    async fn serve(&self, arrival: Arrival, asker: &Refusal) -> Result<Response<Body>, Fault> {
        let decision = self.decide(&arrival)?;
        let hall = decision.hall();
        let to_shop = matches!(decision, Decision::Pass(_) | Decision::Forward(..));
        let origin = arrival.head.headers.get(http::header::ORIGIN).cloned();
        let outcome = self.act(decision, arrival).await;
        // What the shop says is for the shop to share; what we say, faults included, a script of a listed origin may read.
        let shared = hall.filter(|_| !to_shop || outcome.is_err());
        let mut response = outcome.unwrap_or_else(|fault| self.broke(asker, &fault));
        if let Some(hall) = shared {
            waiting::origin::allow(origin.as_ref(), &hall.settings.origins, response.headers_mut());
        }
        Ok(response)
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
            return Ok(self
                .house
                .limits
                .waiting(arrival.address.network)
                .map_or_else(|over| Decision::Throttle(None, over), |()| Decision::Keys));
        }
        // Every reading a backend could make of the path, so that no spelling goes by a room.
        let readings = Readings::of(path)?;
        let (room, claims) = match self.rooms.find(&arrival.host.name, &readings) {
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
            return Ok(Decision::Preflight(hall, answer));
        }
        // Who it is comes before the limits: three hundred in one office are told apart by their tickets, and whoever shows none shares the
        // budget of its address. What a forged one costs is counted, too.
        let presented = match hall.identify(&self.house, arrival.address, &arrival.head.headers) {
            Ok(presented) => presented,
            Err(over) => return Ok(Decision::Throttle(Some(hall), over)),
        };
        let limits = &self.house.limits;
        let limited = match presented.name() {
            Some(visitor) => limits.visitor(&room.id, visitor),
            None => limits.address(arrival.address.network),
        };
        if let Err(over) = limited {
            return Ok(Decision::Throttle(Some(hall), over));
        }
        // An admitted visitor passes whatever the door does now: he may hold a reservation, and must be able to pay for it.
        if let Some(pass) = presented.pass {
            return Ok(if claims {
                Decision::Claim(hall, pass)
            } else {
                Decision::Forward(hall, pass)
            });
        }
        Ok(match hall.room.door() {
            Door::SoldOut => Decision::SoldOut(hall, presented),
            Door::Closed => Decision::Closed(hall),
            _ => Decision::Wait(hall, presented, if claims { OnClaim::Yes } else { OnClaim::No }),
        })
    }

    /// Our own routes: with their own budget, so that a waiter never locks himself out.
    fn own_route(&self, own: &str, arrival: &Arrival) -> Decision<'_> {
        let Some((hall, (route, method))) = own
            .split_once('/')
            .and_then(|(room, name)| Some((self.halls.get(room)?, Route::named(name)?)))
        else {
            return Decision::NotFound;
        };
        if let Some(answer) = waiting::origin::preflight(&arrival.head, &hall.settings.origins) {
            return Decision::Preflight(hall, answer);
        }
        let throttle = |over| match route {
            // An EventSource that is answered anything but a stream gives up for good.
            Route::Events => Decision::ComeBack(hall),
            _ => Decision::Throttle(Some(hall), over),
        };
        if let Err(over) = self.house.limits.waiting(arrival.address.network) {
            return throttle(over);
        }
        if arrival.head.method != method {
            return Decision::WrongMethod(hall, method);
        }
        match hall.identify(&self.house, arrival.address, &arrival.head.headers) {
            Ok(presented) => Decision::Waiting(hall, route, presented),
            Err(over) => throttle(over),
        }
    }

    /// What no room guards goes to the backend of the rest of the site, within the limit of its address.
    fn ungated<'g>(&'g self, room: Option<&'g Arc<config::Room>>, arrival: &Arrival) -> Decision<'g> {
        if let Err(over) = self.house.limits.address(arrival.address.network) {
            return Decision::Throttle(None, over);
        }
        let to = self.fallback.as_ref().or_else(|| self.groups.get(&room?.id));
        to.map_or(Decision::NotFound, Decision::Pass)
    }

    /// Where a room leads.
    fn group(&self, hall: &Hall) -> Result<&Group, Fault> {
        let id = &hall.settings.id;
        self.groups.get(id).ok_or_else(|| Fault::Us(format!("room {id} leads nowhere")))
    }

    /// Acts on the outcome.
    async fn act(&self, decision: Decision<'_>, arrival: Arrival) -> Result<Response<Body>, Fault> {
        self.count(&decision);
        let refusal = Refusal::of(&arrival.head);
        Ok(match decision {
            Decision::Throttle(_, over) => refusal.throttled(&self.house, over),
            Decision::NotFound => refusal.not_found(&self.house),
            Decision::Keys => refuse::keys(self.house.tokens.jwks()),
            Decision::WrongMethod(_, method) => refuse::wrong_method(&method),
            Decision::Preflight(_, answer) => answer,
            Decision::ComeBack(_) => waiting::sse::come_back(),
            Decision::SoldOut(hall, presented) => wait::sold_out(&self.house, hall, &presented, &refusal),
            Decision::Closed(hall) => refusal.closed(&self.house, hall),
            Decision::Waiting(hall, route, presented) => {
                let Arrival { head, body, host, .. } = arrival;
                let authority = host.authority;
                waiting::answer(
                    &self.house,
                    hall,
                    route,
                    Asked {
                        head,
                        presented,
                        body,
                        authority,
                    },
                )
                .await?
            }
            Decision::Wait(hall, presented, on_claim) => self.wait(hall, presented, on_claim, arrival).await?,
            Decision::Pass(to) => self.forward(to, None, arrival).await?,
            Decision::Forward(hall, pass) => self.forward(self.group(hall)?, Some((hall, &pass)), arrival).await?,
            Decision::Claim(hall, pass) => self.buy(hall, &pass, arrival).await?,
        })
    }

    fn count(&self, decision: &Decision<'_>) {
        match decision.hall() {
            Some(hall) => hall.metrics.decided(decision.name()),
            None => self.house.metrics.room(NO_ROOM).decided(decision.name()),
        }
    }
}

impl<'g> Decision<'g> {
    fn hall(&self) -> Option<&'g Arc<Hall>> {
        match self {
            Self::Throttle(hall, _) => *hall,
            Self::Waiting(hall, ..)
            | Self::ComeBack(hall)
            | Self::WrongMethod(hall, _)
            | Self::Preflight(hall, _)
            | Self::Forward(hall, _)
            | Self::Claim(hall, _)
            | Self::SoldOut(hall, _)
            | Self::Closed(hall)
            | Self::Wait(hall, ..) => Some(hall),
            Self::NotFound | Self::Keys | Self::Pass(_) => None,
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Throttle(..) => "throttle",
            Self::NotFound => "not_found",
            Self::Keys => "keys",
            Self::Waiting(..) => "waiting",
            Self::ComeBack(_) => "come_back",
            Self::WrongMethod(..) => "wrong_method",
            Self::Preflight(..) => "preflight",
            Self::Pass(_) => "pass",
            Self::Forward(..) => "forward",
            Self::Claim(..) => "claim",
            Self::SoldOut(..) => "sold_out",
            Self::Closed(_) => "closed",
            Self::Wait(..) => "wait",
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
