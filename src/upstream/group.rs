//! The backends of a room: which of them a request goes to.
//!
//! The one with the fewest requests in flight, among those that are well and have a place; in turn where several have as few. Where none has a
//! place, the first that gets one, within the bounded wait. When none is well the one that has rested longest is tried: a request is never refused
//! only because all looked bad.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use futures_util::future::select_all;
use tokio::time::timeout;

use super::backend::{Backend, Seat};
use crate::fault::UpstreamFault;

/// Where a room leads, or what no room guards. Two groups with the same backend share its connections and its limits.
#[derive(Clone)]
pub struct Group {
    backends: Arc<[Arc<Backend>]>,
    /// Whose turn it is among equals.
    turn: Arc<AtomicUsize>,
}

impl std::fmt::Debug for Group {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let backends = self.backends.iter().map(|backend| backend.authority());
        formatter.debug_list().entries(backends).finish()
    }
}

impl Group {
    /// At least one.
    pub(super) fn new(backends: Vec<Arc<Backend>>) -> Self {
        Self {
            backends: backends.into(),
            turn: Arc::default(),
        }
    }

    /// Leads nowhere, for tests of what does not lead anywhere.
    #[cfg(test)]
    pub(super) fn nobody() -> Self {
        Self::new(Vec::new())
    }

    /// A place at once, where there is only one backend and it has one.
    pub(super) fn seat_now(&self) -> Option<Seat> {
        match &*self.backends {
            [only] => only.seat_now(),
            _ => None,
        }
    }

    /// A place at a backend, another than `not` where there is one.
    pub(super) async fn seat(&self, not: Option<&Arc<Backend>>) -> Result<Seat, UpstreamFault> {
        if let [only] = &*self.backends {
            return only.seat().await;
        }
        let other = |backend: &&Arc<Backend>| not.is_none_or(|not| !Arc::ptr_eq(not, backend));
        let well: Vec<&Arc<Backend>> = self.backends.iter().filter(other).filter(|backend| backend.is_well()).collect();
        let choice = if well.is_empty() {
            let rested = self.backends.iter().filter(other).min_by_key(|backend| backend.rests_until_ms());
            rested.or(self.backends.first()).into_iter().collect()
        } else {
            well
        };
        let first = self.turn.fetch_add(1, Relaxed);
        let fewest = (0..choice.len())
            .map(|at| choice[(first + at) % choice.len()])
            .filter(|backend| backend.has_place())
            .min_by_key(|backend| backend.in_flight());
        if let Some(seat) = fewest.and_then(Backend::seat_now) {
            return Ok(seat);
        }
        let Some(limit) = choice.first().map(|backend| backend.queue_timeout()) else {
            return Err(UpstreamFault::Busy);
        };
        let waits = select_all(choice.into_iter().map(|backend| Box::pin(Backend::seat_later(backend))));
        match timeout(limit, waits).await {
            Ok((Some(seat), ..)) => Ok(seat),
            Ok((None, ..)) | Err(_) => Err(UpstreamFault::Busy),
        }
    }

    /// Whether there is another backend than this one.
    pub(super) fn has_another(&self) -> bool {
        self.backends.len() > 1
    }
}
