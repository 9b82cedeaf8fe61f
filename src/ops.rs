//! The operators' listener.
//!
//! | route | answers |
//! |---|---|
//! | `GET /healthz` | 200 `ok` as long as the process answers; for anybody |
//! | `GET /readyz` | 200 or 503 `{"ready", "reasons": ["draining" \| "store_unavailable"]}`; for anybody |
//! | `GET /metrics` | Prometheus' text format |
//! | `GET /v1/config` | `{"mark", "loaded_at_ms"}`: the mark is the same on every gateway with the same settings |
//! | `POST /v1/reload` | reads the settings' file again: `{"changed", "without_effect", "mark"}`, or 422 `bad_settings`, `restart_needed`, `unusable_settings` |
//! | `GET /v1/backends` | `{"backends": [backend…]}`: [`BackendNow`](crate::upstream::BackendNow) each |
//! | `GET /v1/rooms` | `{"rooms": [room…], "not_ready": [id…]}` |
//! | `GET /v1/rooms/{id}` | the room: [`RoomNow`] |
//! | `PATCH /v1/rooms/{id}` | changes `rate cap stock paused message opens_at closes_at`, whichever the JSON body names, all or nothing; answers the room after |
//! | `GET /v1/rooms/{id}/reservations/{rid}` | the reservation: [`ReservationNow`] |
//! | `POST /v1/rooms/{id}/reservations/{rid}/confirm` | it is paid: `{"reservation", "outcome": "confirmed" \| "confirmed_before" \| "retaken"}`, or 409 `refund_due` |
//! | `POST /v1/rooms/{id}/reservations/{rid}/release` | give it back: `{"reservation", "outcome": "released" \| "released_before"}`, or 409 `already_sold` |
//!
//! With `ops.token_file` each route but the first two wants `Authorization: Bearer TOKEN`; without one, `door` keeps foreign pages out.
//! A change is written down under `Waitgate-Operator` and the operation's id under `Idempotency-Key`, where they are sent. Both settle routes
//! may be repeated: units return once. Whatever is refused is a problem (RFC 9457) with a `code`. `HEAD` is answered as `GET`.
//!
//! Nothing here is on the path of a visitor's request.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use aws_lc_rs::digest;
use data_encoding::HEXLOWER;
use futures_util::future::join_all;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Method, Request, Response, StatusCode};
use http_body::Body as _;
use serde::Serialize;
use serde_json::json;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::body::Body;
use crate::config;
use crate::fault::{Fault, StoreFault};
use crate::intake;
use crate::peers::Peers;
use crate::response::problem::Problem;
use crate::store::scripts::{Settled, Shown, Terms, Tuned, Verdict};
use crate::store::{RoomStore, Store};
use crate::telemetry::{METRICS_TYPE, Metrics};
use crate::upstream::{BackendNow, Upstreams};

mod backends;
mod body;
mod change;
pub mod client;
mod door;
mod reload;
mod shown;

use backends::BackendsNow;
use door::{Door, Operation};
pub use reload::{ConfigNow, Refused, ReloadAsk, Reloaded};
pub use shown::{ReservationNow, RoomNow, RoomsNow, State, StockNow};

/// Bytes of a reservation's id at most.
const MAX_RESERVATION: usize = 128;

/// What the operators' listener answers from.
#[derive(Debug)]
pub struct Ops {
    rooms: ArcSwap<Vec<OpsRoom>>,
    config: ArcSwap<ConfigNow>,
    asks: Option<mpsc::Sender<ReloadAsk>>,
    backends: Option<Upstreams>,
    store: Store,
    metrics: Arc<Metrics>,
    door: Door,
    draining: CancellationToken,
}

/// A room in the operators' hands.
#[derive(Clone, Debug)]
pub struct OpsRoom {
    /// Its id.
    pub id: String,
    /// Its scripts.
    pub store: RoomStore,
    /// Its terms: how long what is settled is remembered.
    pub terms: Terms,
    /// How many replicas must have a sale before it is said to be done, and how long they have.
    pub copies: (u64, Duration),
    /// Its gateways.
    pub peers: Arc<Peers>,
}

/// What a path asks for.
#[derive(Clone, Copy)]
enum Route<'a> {
    Health,
    Ready,
    Metrics,
    Config,
    Backends,
    Reload,
    Rooms,
    Room(&'a str),
    Reservation(&'a str, &'a str),
    Settle(&'a str, &'a str, Verdict),
}

impl<'a> Route<'a> {
    fn find(path: &'a str) -> Option<Self> {
        let segments: Vec<&str> = path.split('/').skip(1).collect();
        Some(match *segments.as_slice() {
            ["healthz"] => Self::Health,
            ["readyz"] => Self::Ready,
            ["metrics"] => Self::Metrics,
            ["v1", "config"] => Self::Config,
            ["v1", "backends"] => Self::Backends,
            ["v1", "reload"] => Self::Reload,
            ["v1", "rooms"] => Self::Rooms,
            ["v1", "rooms", room] => Self::Room(room),
            ["v1", "rooms", room, "reservations", id] => Self::Reservation(room, id),
            ["v1", "rooms", room, "reservations", id, "confirm"] => Self::Settle(room, id, Verdict::Confirm),
            ["v1", "rooms", room, "reservations", id, "release"] => Self::Settle(room, id, Verdict::Release),
            _ => return None,
        })
    }

    /// The methods it has, for `Allow`.
    fn methods(self) -> &'static str {
        match self {
            Self::Health | Self::Ready | Self::Metrics | Self::Config | Self::Backends | Self::Rooms | Self::Reservation(..) => "GET, HEAD",
            Self::Room(_) => "GET, HEAD, PATCH",
            Self::Settle(..) | Self::Reload => "POST",
        }
    }
}

impl Ops {
    /// The operators' listener for these rooms. `draining` is cancelled when the gateway begins to stop.
    #[must_use]
    pub fn new(settings: &config::Ops, store: Store, metrics: Arc<Metrics>, draining: CancellationToken, rooms: Vec<OpsRoom>) -> Self {
        Self {
            rooms: ArcSwap::from_pointee(rooms),
            config: ArcSwap::default(),
            asks: None,
            backends: None,
            store,
            metrics,
            door: Door::new(settings),
            draining,
        }
    }

    /// Lets operators see the backends.
    #[must_use]
    pub fn showing(mut self, backends: Upstreams) -> Self {
        self.backends = Some(backends);
        self
    }

    fn backends(&self) -> Vec<BackendNow> {
        self.backends.as_ref().map(Upstreams::now).unwrap_or_default()
    }

    /// Lets operators ask for a reload here.
    #[must_use]
    pub fn reloaded_by(mut self, asks: mpsc::Sender<ReloadAsk>) -> Self {
        self.asks = Some(asks);
        self
    }

    /// Other settings are in force, with these rooms.
    pub fn take_over(&self, rooms: Vec<OpsRoom>, config: ConfigNow) {
        self.rooms.store(Arc::new(rooms));
        self.config.store(Arc::new(config));
    }

    /// Answers a request.
    pub async fn handle(&self, mut request: Request<Body>) -> Response<Body> {
        let head = *request.method() == Method::HEAD;
        if head {
            *request.method_mut() = Method::GET;
        }
        let mut response = self.answer(request).await.unwrap_or_else(Problem::into_response);
        let headers = response.headers_mut();
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
        if head {
            let length = response.body().size_hint().exact().unwrap_or(0);
            response.headers_mut().insert(CONTENT_LENGTH, length.into());
            *response.body_mut() = Body::empty();
        }
        response
    }

    /// The whole of it, in the order of the list above.
    async fn answer(&self, request: Request<Body>) -> Result<Response<Body>, Problem> {
        let host = intake::check(&request);
        let (parts, body) = request.into_parts();
        let route = Route::find(parts.uri.path());
        // A probe may be as plain as HTTP/1.0 without a Host.
        if !matches!(route, Some(Route::Health | Route::Ready)) {
            let host = host.map_err(|fault| Problem::of(&fault.into()))?;
            self.door.check(&host, &parts)?;
        }
        let route = route.ok_or_else(|| {
            let detail = "There is no such route here.";
            Problem::new(StatusCode::NOT_FOUND, "no_such_route", "Not found", detail)
        })?;
        match (&parts.method, route) {
            (&Method::GET, Route::Health) => Ok(text(StatusCode::OK, "text/plain; charset=utf-8", "ok\n".to_owned())),
            (&Method::GET, Route::Ready) => Ok(self.ready()),
            (&Method::GET, Route::Metrics) => Ok(self.scrape().await),
            (&Method::GET, Route::Config) => Ok(answer(StatusCode::OK, &**self.config.load())),
            (&Method::GET, Route::Backends) => Ok(answer(StatusCode::OK, &BackendsNow { backends: self.backends() })),
            (&Method::POST, Route::Reload) => {
                let operation = self.door.operation(&parts.headers)?;
                body::nothing(&body::read(&parts, body).await?)?;
                reload::reload(self.asks.as_ref(), &operation.who, &operation.id).await
            }
            (&Method::GET, Route::Rooms) => self.list().await,
            (&Method::GET, Route::Room(id)) => self.show(&self.room(id)?).await,
            (&Method::PATCH, Route::Room(id)) => {
                let room = self.room(id)?;
                let operation = self.door.operation(&parts.headers)?;
                let body = body::read(&parts, body).await?;
                self.change(&room, &operation, &body).await
            }
            (&Method::GET, Route::Reservation(id, reservation)) => self.reservation(&self.room(id)?, reservation).await,
            (&Method::POST, Route::Settle(id, reservation, verdict)) => {
                let room = self.room(id)?;
                let operation = self.door.operation(&parts.headers)?;
                body::nothing(&body::read(&parts, body).await?)?;
                self.settle(&room, &operation, reservation, verdict).await
            }
            (_, route) => Err(Problem::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "method_not_allowed",
                "Not with this method",
                format!("This route has {}.", route.methods()),
            )
            .header(ALLOW, HeaderValue::from_static(route.methods()))),
        }
    }

    fn room(&self, id: &str) -> Result<OpsRoom, Problem> {
        self.rooms.load().iter().find(|room| room.id == id).cloned().ok_or_else(|| {
            let detail = "The settings of this gateway have no room of that id.";
            Problem::new(StatusCode::NOT_FOUND, "no_such_room", "No such room", detail)
        })
    }

    fn ready(&self) -> Response<Body> {
        let mut reasons = Vec::new();
        if self.draining.is_cancelled() {
            reasons.push("draining");
        }
        if !self.store.is_up() {
            reasons.push("store_unavailable");
        }
        let status = if reasons.is_empty() {
            StatusCode::OK
        } else {
            StatusCode::SERVICE_UNAVAILABLE
        };
        answer(status, &json!({ "ready": reasons.is_empty(), "reasons": reasons }))
    }

    /// All metrics: those of the process, those of the rooms as the store has them now, and those of the backends.
    async fn scrape(&self) -> Response<Body> {
        let known = self.rooms.load_full();
        let rooms = join_all(known.iter().map(|room| async { (room.id.as_str(), room.store.show().await) })).await;
        let shown: Vec<(&str, Shown)> = rooms
            .into_iter()
            .filter_map(|(id, shown)| Some((id, shown.ok().flatten()?)))
            .collect();
        for (id, shown) in &shown {
            if let Some(stock) = &shown.stock {
                self.metrics.room(id).stock_adds_up(shown::adds_up(stock));
            }
        }
        let mut written = self.metrics.encode();
        written.push_str(&shown::metrics(&shown));
        let ready = known.iter().filter(|room| shown.iter().any(|(id, _)| *id == room.id));
        let peers: Vec<_> = ready.map(|room| (room.id.as_str(), room.peers.all())).collect();
        written.push_str(&shown::peer_metrics(&peers));
        written.push_str(&backends::metrics(&self.backends()));
        text(StatusCode::OK, METRICS_TYPE, written)
    }

    async fn list(&self) -> Result<Response<Body>, Problem> {
        let mut now = RoomsNow {
            rooms: Vec::new(),
            not_ready: Vec::new(),
        };
        let known = self.rooms.load_full();
        let shown = join_all(known.iter().map(|room| room.store.show())).await;
        for (room, shown) in known.iter().zip(shown) {
            match shown.map_err(unread)? {
                Some(shown) => now.rooms.push(RoomNow::new(&room.id, &shown).at(&room.peers)),
                None => now.not_ready.push(room.id.clone()),
            }
        }
        Ok(answer(StatusCode::OK, &now))
    }

    async fn show(&self, room: &OpsRoom) -> Result<Response<Body>, Problem> {
        let shown = room.store.show().await.map_err(unread)?;
        let shown = shown.ok_or_else(not_ready)?;
        Ok(answer(StatusCode::OK, &RoomNow::new(&room.id, &shown).at(&room.peers)))
    }

    async fn change(&self, room: &OpsRoom, operation: &Operation, body: &[u8]) -> Result<Response<Body>, Problem> {
        let tuning = change::read(body)?;
        // A key that comes again with another body is another change, not a repeat.
        let digest = digest::digest(&digest::SHA256, body);
        let operation_id = format!("{}:{}", operation.id, HEXLOWER.encode(&digest.as_ref()[..8]));
        let tuned = room.store.tune(&operation.who, &operation_id, &tuning).await;
        match tuned.map_err(undone)? {
            Tuned::Tuned { version } => {
                let change = String::from_utf8_lossy(body);
                let (room_id, who) = (&room.id, &operation.who);
                tracing::info!(room = room_id, who, operation = operation_id, version, %change, "room changed");
                self.show(room).await.map_err(|mut problem| {
                    problem.detail = "The change was made, but the store did not show the room afterwards.".to_owned();
                    problem.with("changed", true)
                })
            }
            Tuned::StockTooLow { taken } => {
                let detail = format!("{taken} units are held or sold: the stock cannot be less. Nothing was changed.");
                Err(Problem::new(StatusCode::CONFLICT, "stock_too_low", "The stock is too low", detail).with("taken", taken))
            }
            Tuned::NoStock => {
                let detail = "This room was made without stock and cannot be given one. Nothing was changed.";
                Err(Problem::new(StatusCode::CONFLICT, "no_stock", "A room without stock", detail))
            }
            Tuned::Unseeded => Err(not_ready()),
        }
    }

    async fn reservation(&self, room: &OpsRoom, id: &str) -> Result<Response<Body>, Problem> {
        if id.is_empty() || id.len() > MAX_RESERVATION {
            return Err(no_such_reservation(id));
        }
        let found = room.store.reservation(id).await.map_err(unread)?;
        let found = found.ok_or_else(|| no_such_reservation(id))?;
        Ok(answer(StatusCode::OK, &ReservationNow::from(found)))
    }

    async fn settle(&self, room: &OpsRoom, operation: &Operation, id: &str, verdict: Verdict) -> Result<Response<Body>, Problem> {
        if id.is_empty() || id.len() > MAX_RESERVATION {
            return Err(no_such_reservation(id));
        }
        let settled = settle(room, id, verdict).await.map_err(undone)?;
        tracing::info!(
            room = room.id,
            who = operation.who,
            operation = operation.id,
            reservation = id,
            ?verdict,
            ?settled,
            "reservation settled"
        );
        let done = |outcome: &str| Ok(answer(StatusCode::OK, &json!({ "reservation": id, "outcome": outcome })));
        let refuse = |code, title, detail: &str| Err(Problem::new(StatusCode::CONFLICT, code, title, detail).with("reservation", id));
        match settled {
            Settled::Confirmed => done("confirmed"),
            Settled::ConfirmedBefore => done("confirmed_before"),
            Settled::Retaken => done("retaken"),
            Settled::Released => done("released"),
            Settled::ReleasedBefore => done("released_before"),
            Settled::Refund => refuse(
                "refund_due",
                "Too late to sell",
                "The hold had ended and the units are gone: pay the buyer back.",
            ),
            Settled::Sold => refuse("already_sold", "Sold already", "The reservation is paid: it cannot be released."),
            Settled::Missing => Err(no_such_reservation(id)),
        }
    }
}

/// Settles a reservation. That something is sold is said when replicas have it, too: a unit that somebody paid for is not sold again after a
/// failover.
async fn settle(room: &OpsRoom, id: &str, verdict: Verdict) -> Result<Settled, StoreFault> {
    let (replicas, limit) = room.copies;
    if replicas == 0 {
        return room.store.settle(&room.terms, id, verdict, None).await;
    }
    let primary = room.store.primary()?;
    let settled = room.store.settle(&room.terms, id, verdict, None).await?;
    if matches!(settled, Settled::Confirmed | Settled::ConfirmedBefore | Settled::Retaken) {
        room.store.copied(&primary, replicas, limit).await?;
    }
    Ok(settled)
}

fn not_ready() -> Problem {
    let detail = "The store does not know this room yet; the gateway makes it as soon as it can.";
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "room_not_ready", "Not ready yet", detail).header(RETRY_AFTER, 1)
}

fn no_such_reservation(id: &str) -> Problem {
    let detail = "The store knows no such reservation: it never was, or it was settled long ago and is forgotten.";
    let id: String = id.chars().take(MAX_RESERVATION).collect();
    Problem::new(StatusCode::NOT_FOUND, "no_such_reservation", "No such reservation", detail).with("reservation", id)
}

/// A fault of the store while reading: logged here, where it stops travelling.
fn unread(fault: StoreFault) -> Problem {
    let fault = Fault::from(fault);
    tracing::warn!(%fault, "an operator could not be answered");
    Problem::of(&fault).header(RETRY_AFTER, 1)
}

/// A fault of the store while changing something.
fn undone(fault: StoreFault) -> Problem {
    let few_copies = matches!(fault, StoreFault::Copies { .. });
    let fault = Fault::from(fault);
    tracing::warn!(%fault, "an operator's change failed");
    let mut problem = Problem::of(&fault).header(RETRY_AFTER, 1);
    problem.detail = if few_copies {
        "It was done, but too few replicas of the store have it yet, and a failover could lose it. The same request may be sent again."
    } else if fault.may_have_run() {
        "The store did not answer in time: it may have been done, or not. The same request may be sent again."
    } else {
        "The store cannot be reached, or refuses: nothing was done. The same request may be sent again."
    }
    .to_owned();
    problem.with("may_have_run", fault.may_have_run())
}

fn answer(status: StatusCode, value: &impl Serialize) -> Response<Body> {
    // Our own answers are structs of strings and numbers: they always become JSON.
    let bytes = serde_json::to_vec(value).unwrap_or_default();
    let mut response = Response::new(Body::full(bytes));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn text(status: StatusCode, kind: &'static str, text: String) -> Response<Body> {
    let mut response = Response::new(Body::full(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
