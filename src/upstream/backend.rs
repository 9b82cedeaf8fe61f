//! One backend: where it is, its connections, and the places of its requests in flight.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use arc_swap::ArcSwap;
use http::Uri;
use http::uri::Scheme;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::carrier::{Asked, Carrier};
use super::condition::Condition;
use super::connect::{Address, Wire};
use super::lane::Lane;
use super::pool::{Open, Pool};
use super::shared::{Shared, Stream};
use crate::config::{self, HttpVersion};
use crate::fault::{BoxError, UpstreamFault};

/// A backend, for as long as a room leads to it.
pub(super) struct Backend {
    address: Address,
    scheme: Scheme,
    authority: String,
    pool: Pool,
    shared: Shared,
    /// It did not agree on HTTP/2 the last time it was offered.
    declined: AtomicBool,
    places: ArcSwap<Semaphore>,
    in_flight: AtomicUsize,
    pub(super) condition: Condition,
    settings: Arc<ArcSwap<config::Upstream>>,
}

/// How a backend is at one moment.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct BackendNow {
    /// `http://host:port` or `https://host:port`, as it was written.
    pub origin: String,
    /// It is not left alone: neither for its failures nor for what it said when it was asked.
    pub up: bool,
    /// Requests in flight.
    pub in_flight: u64,
    /// Requests in flight at most.
    pub in_flight_limit: u64,
    /// Connections that are open, in use or not.
    pub connections: u64,
    /// Connections that were opened so far.
    pub connections_opened: u64,
    /// What failed by its fault so far.
    pub failures: u64,
    /// How often it was left alone so far.
    pub rests: u64,
}

/// What a request needs of its connection.
#[derive(Clone, Copy)]
pub(super) struct Need {
    /// It cannot be repeated: whether the connection is still there is asked of the machine.
    pub(super) closely: bool,
    /// It may become a tunnel.
    pub(super) upgrade: bool,
}

/// A place among the requests in flight to a backend.
pub(super) struct Seat {
    pub(super) backend: Arc<Backend>,
    _place: OwnedSemaphorePermit,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.backend.in_flight.fetch_sub(1, Relaxed);
    }
}

impl Backend {
    pub(super) fn new(origin: &Uri, settings: &Arc<ArcSwap<config::Upstream>>) -> Self {
        let address = Address::of(origin);
        Self {
            scheme: address.scheme(),
            address,
            authority: origin
                .authority()
                .map_or_else(String::new, |authority| authority.as_str().to_owned()),
            pool: Pool::new(),
            shared: Shared::new(),
            declined: AtomicBool::new(false),
            places: ArcSwap::from_pointee(Semaphore::new(settings.load().max_in_flight)),
            in_flight: AtomicUsize::new(0),
            condition: Condition::new(),
            settings: Arc::clone(settings),
        }
    }

    pub(super) fn settings(&self) -> Arc<config::Upstream> {
        self.settings.load_full()
    }

    pub(super) fn is_well(&self) -> bool {
        self.condition.is_well()
    }

    pub(super) fn rests_until_ms(&self) -> u64 {
        self.condition.rests_until_ms()
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.load(Relaxed)
    }

    pub(super) fn has_place(&self) -> bool {
        self.places.load().available_permits() > 0
    }

    pub(super) fn queue_timeout(&self) -> Duration {
        self.settings.load().queue_timeout
    }

    /// It failed, by no fault of the client's.
    pub(super) fn failed(&self) {
        if let Some(rest) = self.condition.failed(&self.settings.load()) {
            tracing::warn!(
                backend = self.authority,
                ?rest,
                "a backend fails, and is left alone while there are others"
            );
        }
    }

    pub(super) fn now(&self) -> BackendNow {
        let (connections, connections_opened) = self.pool.counts();
        let (failures, rests) = self.condition.counts();
        BackendNow {
            origin: format!("{}://{}", self.scheme, self.authority),
            up: self.is_well(),
            in_flight: self.in_flight() as u64,
            in_flight_limit: self.settings.load().max_in_flight as u64,
            connections,
            connections_opened,
            failures,
            rests,
        }
    }

    /// The host and port, as they were written.
    pub(super) fn authority(&self) -> &str {
        &self.authority
    }

    /// A place at once, if there is one.
    pub(super) fn seat_now(self: &Arc<Self>) -> Option<Seat> {
        let place = self.places.load_full().try_acquire_owned().ok()?;
        Some(self.sit(place))
    }

    /// A place, however long it takes.
    pub(super) async fn seat_later(self: &Arc<Self>) -> Option<Seat> {
        let place = self.places.load_full().acquire_owned().await.ok()?;
        Some(self.sit(place))
    }

    /// A place at once, or after others have given theirs back.
    pub(super) async fn seat(self: &Arc<Self>) -> Result<Seat, UpstreamFault> {
        if let Some(seat) = self.seat_now() {
            return Ok(seat);
        }
        let seat = timeout(self.queue_timeout(), self.seat_later()).await;
        seat.ok().flatten().ok_or(UpstreamFault::Busy)
    }

    fn sit(self: &Arc<Self>, place: OwnedSemaphorePermit) -> Seat {
        self.in_flight.fetch_add(1, Relaxed);
        Seat {
            backend: Arc::clone(self),
            _place: place,
        }
    }

    /// As whom it is asked for.
    pub(super) fn asked(&self) -> Asked<'_> {
        Asked {
            scheme: &self.scheme,
            authority: &self.authority,
        }
    }

    /// A connection that is open, if there is one with room; it may be closed in this very moment.
    pub(super) fn resting(&self, need: Need) -> Option<Carrier> {
        let settings = self.settings.load();
        if settings.http == HttpVersion::Http2
            && !need.upgrade
            && let Some(stream) = self.shared.take()
        {
            return Some(Carrier::Stream(stream));
        }
        self.pool.take(settings.keep_alive, need.closely).map(Carrier::Lane)
    }

    /// A new connection.
    pub(super) async fn connect(&self, need: Need) -> Result<Carrier, BoxError> {
        let settings = self.settings.load_full();
        let share = settings.http == HttpVersion::Http2 && !need.upgrade;
        let _turn = if share && !self.declined.load(Relaxed) {
            let turn = timeout(settings.connect_timeout, self.shared.turn()).await?;
            if let Some(stream) = self.shared.take() {
                return Ok(Carrier::Stream(stream));
            }
            Some(turn)
        } else {
            None
        };
        let open = match self.pool.open(settings.max_in_flight, true) {
            Ok(open) => open,
            Err(resting) => return Ok(Carrier::Lane(resting)),
        };
        let wire = self.address.dial(&settings.tls, share, settings.connect_timeout).await?;
        self.pool.note_opened();
        if share && self.speaks_http2(&wire) {
            return Ok(Carrier::Stream(self.shared.start(wire, open).await?));
        }
        Ok(Carrier::Lane(Lane::start(wire, open).await?))
    }

    /// A connection for one question only.
    pub(super) async fn visit(&self, limit: Duration) -> Result<Carrier, BoxError> {
        let settings = self.settings.load_full();
        let share = settings.http == HttpVersion::Http2;
        let open = Open::beside();
        let wire = self.address.dial(&settings.tls, share, limit).await?;
        if share && self.speaks_http2(&wire) {
            return Ok(Carrier::Stream(Stream::alone(wire, open).await?));
        }
        Ok(Carrier::Lane(Lane::start(wire, open).await?))
    }

    /// Over TLS that was agreed on; without it the settings say so.
    fn speaks_http2(&self, wire: &Wire) -> bool {
        let speaks = matches!(wire, Wire::Plain(_)) || wire.agreed_on_http2();
        self.declined.store(!speaks, Relaxed);
        speaks
    }

    /// The exchange is over.
    pub(super) fn give_back(&self, lane: Box<Lane>) {
        self.pool.put(lane, self.settings.load().keep_alive);
    }

    /// Requests in flight keep the places they have; the new number counts for those that come.
    pub(super) fn resize(&self, most: usize) {
        self.places.store(Arc::new(Semaphore::new(most)));
    }

    pub(super) fn sweep(&self) {
        let keep_alive = self.settings.load().keep_alive;
        self.pool.sweep(keep_alive);
        self.shared.sweep(keep_alive);
    }
}
