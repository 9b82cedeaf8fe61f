//! One backend: where it is, its connections, and the places of its requests in flight.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use arc_swap::ArcSwap;
use http::Uri;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::condition::Condition;
use super::connect::dial;
use super::lane::Lane;
use super::pool::Pool;
use crate::config;
use crate::fault::{BoxError, UpstreamFault};

/// A backend, for as long as a room leads to it.
pub(super) struct Backend {
    host: String,
    port: u16,
    authority: String,
    pool: Pool,
    places: ArcSwap<Semaphore>,
    in_flight: AtomicUsize,
    pub(super) condition: Condition,
    settings: Arc<ArcSwap<config::Upstream>>,
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
        let host = origin.host().unwrap_or_default();
        Self {
            // The brackets belong to the URL, not to the address.
            host: host.trim_start_matches('[').trim_end_matches(']').to_owned(),
            port: origin.port_u16().unwrap_or(80),
            authority: origin
                .authority()
                .map_or_else(String::new, |authority| authority.as_str().to_owned()),
            pool: Pool::new(),
            places: ArcSwap::from_pointee(Semaphore::new(settings.load().max_in_flight)),
            in_flight: AtomicUsize::new(0),
            condition: Condition::new(),
            settings: Arc::clone(settings),
        }
    }

    pub(super) fn settings(&self) -> Arc<config::Upstream> {
        self.settings.load_full()
    }

    pub(super) fn address(&self) -> (&str, u16) {
        (&self.host, self.port)
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

    /// A connection that rests, if there is one; it may be closed in this very moment.
    pub(super) fn resting(&self, closely: bool) -> Option<Box<Lane>> {
        self.pool.take(self.settings.load().keep_alive, closely)
    }

    /// A new connection.
    pub(super) async fn connect(&self) -> Result<Box<Lane>, BoxError> {
        let (limit, most) = {
            let settings = self.settings.load();
            (settings.connect_timeout, settings.max_in_flight)
        };
        let open = match self.pool.open(most, true) {
            Ok(open) => open,
            Err(resting) => return Ok(resting),
        };
        let wire = dial(&self.host, self.port, limit).await?;
        self.pool.note_opened();
        Lane::start(wire, open).await
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
        self.pool.sweep(self.settings.load().keep_alive);
    }
}
