//! Time, passed in. The machine's clock, or one that a test moves.
//!
//! Nothing else may ask the machine for the time (clippy bans it). Decisions that several gateways share are made by the store's own clock;
//! [`Clock::store_now`] says which of the two a script should use.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Milliseconds since the Unix epoch.
pub type UnixMs = u64;

/// The machine's clock, or a moved one. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    moved: Option<Arc<AtomicU64>>,
}

impl Clock {
    /// The machine's clock.
    #[must_use]
    pub fn system() -> Self {
        Self { moved: None }
    }

    /// A clock that stands still at `at_ms` until [`Clock::advance`] moves it.
    #[must_use]
    pub fn moved(at_ms: UnixMs) -> Self {
        Self {
            moved: Some(Arc::new(AtomicU64::new(at_ms))),
        }
    }

    /// Moves a moved clock forward. The machine's clock is left alone.
    pub fn advance(&self, by: Duration) {
        if let Some(at) = &self.moved {
            at.fetch_add(millis(by), SeqCst);
        }
    }

    /// Wall-clock time, milliseconds since the Unix epoch.
    #[must_use]
    #[allow(clippy::disallowed_methods, reason = "this is the clock that everybody else is sent to")]
    pub fn now_ms(&self) -> UnixMs {
        match &self.moved {
            Some(at) => at.load(SeqCst),
            None => SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, millis),
        }
    }

    /// What a script gets for its `now`: 0 for "ask the store's clock", or the moved time of a test.
    #[must_use]
    pub fn store_now(&self) -> UnixMs {
        self.moved.as_ref().map_or(0, |at| at.load(SeqCst))
    }

    /// A monotonic instant of the machine, for measuring how long something took.
    #[must_use]
    #[allow(clippy::disallowed_methods, reason = "this is the clock that everybody else is sent to")]
    pub fn instant() -> Instant {
        Instant::now()
    }
}

/// A duration in whole milliseconds; durations that do not fit are as long as can be said.
#[must_use]
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
