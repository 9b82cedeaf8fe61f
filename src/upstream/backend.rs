//! One backend: where it is, its connections, and the places of its requests in flight.

use std::sync::Arc;

use arc_swap::ArcSwap;
use http::Uri;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

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
    settings: Arc<ArcSwap<config::Upstream>>,
}

/// A place among the requests in flight to a backend.
pub(super) struct Seat {
    pub(super) backend: Arc<Backend>,
    _place: OwnedSemaphorePermit,
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
            settings: Arc::clone(settings),
        }
    }

    /// The host and port, as they were written.
    pub(super) fn authority(&self) -> &str {
        &self.authority
    }

    /// A place at once, or after others have given theirs back.
    pub(super) async fn seat(self: &Arc<Self>) -> Result<Seat, UpstreamFault> {
        let places = self.places.load_full();
        let place = match Arc::clone(&places).try_acquire_owned() {
            Ok(place) => place,
            Err(_) => match timeout(self.settings.load().queue_timeout, places.acquire_owned()).await {
                Ok(Ok(place)) => place,
                Ok(Err(_)) | Err(_) => return Err(UpstreamFault::Busy),
            },
        };
        Ok(Seat {
            backend: Arc::clone(self),
            _place: place,
        })
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
