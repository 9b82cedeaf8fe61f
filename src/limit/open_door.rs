//! The door of a room that opens when its store is lost: the room's rate, shared by the gateways that were there last.

use std::num::NonZeroU32;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use governor::{DefaultDirectRateLimiter, Quota};

use crate::config::Rate;

/// This gateway's share of a rate.
#[derive(Debug)]
pub struct OpenDoor {
    rate: Rate,
    /// Between how many gateways, and what comes of it.
    shared: Mutex<(u32, DefaultDirectRateLimiter)>,
}

impl OpenDoor {
    /// The whole rate, until others are known.
    #[must_use]
    pub fn new(rate: Rate) -> Self {
        Self {
            rate,
            shared: Mutex::new((1, limiter(rate, 1))),
        }
    }

    /// Whether one more may pass, where so many gateways share the rate.
    #[must_use]
    pub fn lets_pass(&self, gateways: u32) -> bool {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        if shared.0 != gateways {
            *shared = (gateways, limiter(self.rate, gateways));
        }
        shared.1.check().is_ok()
    }
}

/// A second's worth of its share at once, and one in any case.
fn limiter(rate: Rate, gateways: u32) -> DefaultDirectRateLimiter {
    let milli = rate.milli().max(1);
    let share = u64::from(gateways.max(1));
    let period = Duration::from_nanos((1_000_000_000_000 / milli).saturating_mul(share)).max(Duration::from_nanos(1));
    let quota = Quota::with_period(period).unwrap_or(Quota::per_second(NonZeroU32::MIN));
    let burst = u32::try_from(milli / 1000 / share)
        .ok()
        .and_then(NonZeroU32::new)
        .unwrap_or(NonZeroU32::MIN);
    DefaultDirectRateLimiter::direct(quota.allow_burst(burst))
}

#[cfg(test)]
mod tests {
    use super::OpenDoor;
    use crate::config::Rate;

    fn at_once(door: &OpenDoor, gateways: u32) -> usize {
        (0..1000).filter(|_| door.lets_pass(gateways)).count()
    }

    #[test]
    fn gateways_share_the_rate() {
        let rate = Rate::from_milli(10_000);
        assert_eq!(at_once(&OpenDoor::new(rate), 1), 10);
        assert_eq!(at_once(&OpenDoor::new(rate), 3), 3);
        assert_eq!(at_once(&OpenDoor::new(Rate::from_milli(1_000)), 4), 1, "each lets somebody pass");
    }
}
