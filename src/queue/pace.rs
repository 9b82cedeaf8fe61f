//! How fast the line moves, measured, and what that means for a wait: always a range, never a promise.

use std::collections::VecDeque;

use crate::clock::UnixMs;

/// How far back is looked.
const WINDOW_MS: u64 = 60_000;
/// Shorter than this says nothing yet.
const ENOUGH_MS: u64 = 3_000;
/// The recent past, in which a slow-down shows first.
const RECENT_MS: u64 = 12_000;
/// Samples kept at most.
const MAX_SAMPLES: usize = 128;

/// The pace of a line.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    /// When, and how many had ever been called by then.
    samples: VecDeque<(UnixMs, u64)>,
    rate_milli: u64,
}

impl Pace {
    /// Notes how many have ever been called, and at what rate they should be.
    pub fn note(&mut self, now_ms: UnixMs, called_total: u64, rate_milli: u64) {
        self.believe(rate_milli);
        let backwards = self.samples.back().is_some_and(|&(at, total)| at > now_ms || total > called_total);
        if backwards {
            self.samples.clear();
        }
        if self.samples.back().is_some_and(|&(at, _)| now_ms < at + 500) {
            return;
        }
        self.samples.push_back((now_ms, called_total));
        while self.samples.len() > MAX_SAMPLES || self.samples.front().is_some_and(|&(at, _)| at + WINDOW_MS < now_ms) {
            self.samples.pop_front();
        }
    }

    /// This is the rate now. Another one begins another measurement.
    pub fn believe(&mut self, rate_milli: u64) {
        if rate_milli != self.rate_milli {
            self.samples.clear();
            self.rate_milli = rate_milli;
        }
    }

    /// Forgets what was measured: the door was shut, and the pace of a shut door is nobody's wait.
    pub fn forget(&mut self) {
        self.samples.clear();
    }

    /// The wait of somebody with so many ahead, in seconds from low to high; none when nobody will be called.
    #[must_use]
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "counts and seconds far below 2^52, and never negative"
    )]
    pub fn wait_s(&self, ahead: u64) -> Option<(u64, u64)> {
        let rate = self.rate_milli as f64 / 1000.0;
        if rate <= 0.0 {
            return None;
        }
        let people = ahead as f64 + 1.0;
        let (slow, fast) = match (self.measured(RECENT_MS), self.measured(WINDOW_MS)) {
            (Some(recent), Some(long)) => (recent.min(long), recent.max(long)),
            _ => (rate * 0.7, rate),
        };
        let fast = fast.clamp(rate * 0.1, rate);
        let slow = slow.clamp(rate * 0.1, fast);
        let low = people / fast * 0.9;
        let high = people / slow * 1.25 + 1.0;
        Some((low.floor() as u64, high.ceil() as u64))
    }

    #[allow(clippy::cast_precision_loss, reason = "counts and milliseconds far below 2^52")]
    fn measured(&self, back_ms: u64) -> Option<f64> {
        let &(now, total) = self.samples.back()?;
        let &(then, before) = self.samples.iter().find(|&&(at, _)| at + back_ms >= now)?;
        let passed = now - then;
        (passed >= ENOUGH_MS).then(|| (total - before) as f64 * 1000.0 / passed as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steady(per_second: u64, rate: u64, seconds: u64) -> Pace {
        let mut pace = Pace::default();
        for second in 0..=seconds {
            pace.note(second * 1000, second * per_second, rate * 1000);
        }
        pace
    }

    #[test]
    fn before_anything_is_measured_the_rate_speaks() {
        let (low, high) = steady(0, 10, 0).wait_s(99).unwrap();
        assert!(low <= 10 && (10..30).contains(&high), "{low}–{high}");
    }

    #[test]
    fn the_measured_pace_counts_when_it_is_slower() {
        let (low, high) = steady(5, 10, 30).wait_s(99).unwrap();
        assert!(low <= 20 && (20..=30).contains(&high), "{low}–{high}");
    }

    #[test]
    fn a_new_rate_is_believed_at_once_and_no_rate_promises_nothing() {
        let mut pace = steady(5, 10, 30);
        pace.note(31_000, 155, 100_000);
        assert!(pace.wait_s(99).unwrap().1 < 10);
        pace.note(32_000, 155, 0);
        assert_eq!(pace.wait_s(99), None);
        pace.believe(100_000);
        assert!(pace.wait_s(99).unwrap().1 < 10, "not only when it is noted next");
    }

    #[test]
    fn a_stand_still_is_never_an_endless_number() {
        let (_, high) = steady(0, 10, 60).wait_s(99).unwrap();
        assert!(high < 1000, "{high}");
    }
}
