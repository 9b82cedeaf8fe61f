//! Who is over the limit, and for how long.
//!
//! governor does the arithmetic (GCRA); the store below bounds how many keys are remembered. Beyond the bound newcomers share one bucket:
//! a flood of addresses costs no memory, and those already known keep their own.
//!
//! Limits may be exchanged for others while requests go on ([`Limits::after`]): whoever owes requests goes on owing as many, a full new burst at
//! most, and works them off at the new rate. So a change pardons nobody, and a higher rate helps those who were throttled at once.

use std::hash::Hash;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use ahash::RandomState;
use dashmap::DashMap;
use governor::clock::{Clock, DefaultClock, Reference as _};
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::StateStore;
use governor::state::keyed::ShrinkableKeyedStateStore;
use governor::{Quota, RateLimiter};

use crate::config;
use crate::visitor::Address;

mod networks;
mod open_door;

pub use networks::Listed;
use networks::Networks;
pub use open_door::OpenDoor;

/// Over a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Over {
    /// Which limit.
    pub limit: &'static str,
    /// What it grants.
    pub quota: config::Quota,
    /// When the next request will be let through.
    pub retry_after: Duration,
}

impl Over {
    /// `RateLimit-Policy` and `RateLimit`, as draft-ietf-httpapi-ratelimit-headers-11 writes them: so many requests in so many seconds, and when
    /// the next one is granted.
    #[must_use]
    pub fn headers(self) -> [(&'static str, String); 2] {
        let config::Quota { rate, burst } = self.quota;
        // The time in which a bucket fills up, rounded up: not more than the burst is granted in it.
        let window_s = (u64::from(burst) * 1000).div_ceil(rate.milli().max(1)).max(1);
        [
            ("ratelimit-policy", format!("\"{}\";q={burst};w={window_s}", self.limit)),
            ("ratelimit", format!("\"{}\";r=0;t={}", self.limit, self.retry_after_s())),
        ]
    }

    /// `Retry-After`: whole seconds, rounded up, never 0.
    #[must_use]
    pub fn retry_after_s(self) -> u64 {
        self.retry_after.as_secs() + u64::from(self.retry_after.subsec_nanos() > 0).max(u64::from(self.retry_after.is_zero()))
    }
}

/// The limits of this gateway.
#[derive(Debug)]
pub struct Limits {
    address: Bucket<IpAddr>,
    visitor: Bucket<u64>,
    waiting: Bucket<IpAddr>,
    forgery: Bucket<IpAddr>,
    hasher: RandomState,
    networks: Networks,
}

impl Limits {
    /// Buckets as the settings say, all full.
    #[must_use]
    pub fn new(settings: &config::Limits) -> Self {
        Self {
            address: Bucket::new("address", settings.address, settings.max_keys),
            visitor: Bucket::new("visitor", settings.visitor, settings.max_keys),
            waiting: Bucket::new("waiting", settings.waiting, settings.max_keys),
            forgery: Bucket::new("forgery", settings.forgery, settings.max_keys),
            hasher: RandomState::new(),
            networks: Networks::new(&settings.allow, &settings.deny),
        }
    }

    /// Other limits, in which everybody owes what they owed before.
    #[must_use]
    pub fn after(before: &Self, settings: &config::Limits) -> Self {
        Self {
            address: before.address.with(settings.address, settings.max_keys),
            visitor: before.visitor.with(settings.visitor, settings.max_keys),
            waiting: before.waiting.with(settings.waiting, settings.max_keys),
            forgery: before.forgery.with(settings.forgery, settings.max_keys),
            hasher: before.hasher.clone(),
            networks: Networks::new(&settings.allow, &settings.deny),
        }
    }

    /// What the lists say of an address.
    #[must_use]
    pub fn listed(&self, ip: IpAddr) -> Option<Listed> {
        self.networks.find(ip)
    }

    /// Any request, by address.
    ///
    /// # Errors
    /// The address is over its limit.
    pub fn address(&self, address: &Address) -> Result<(), Over> {
        if address.unlimited {
            return Ok(());
        }
        self.address.check(&address.network)
    }

    /// A request of a known visitor of a room, by ticket or user.
    ///
    /// # Errors
    /// The visitor is over its limit.
    pub fn visitor(&self, address: &Address, room: &str, visitor: &str) -> Result<(), Over> {
        if address.unlimited {
            return Ok(());
        }
        self.visitor.check(&self.hasher.hash_one((room, visitor)))
    }

    /// The waiting page's own calls, by address: their own budget, so that a waiter never locks himself out.
    ///
    /// # Errors
    /// The address is over its limit.
    pub fn waiting(&self, address: &Address) -> Result<(), Over> {
        if address.unlimited {
            return Ok(());
        }
        self.waiting.check(&address.network)
    }

    /// Counts a bad signature, or says that there were too many of them already.
    ///
    /// # Errors
    /// The address sent too many.
    pub fn forgery(&self, address: &Address) -> Result<(), Over> {
        if address.unlimited {
            return Ok(());
        }
        self.forgery.check(&address.network)
    }

    /// Forgets keys whose buckets are full again. To be called now and then, off the request path.
    pub fn prune(&self) {
        self.address.prune();
        self.visitor.prune();
        self.waiting.prune();
        self.forgery.prune();
    }

    /// Keys remembered now, by limit.
    #[must_use]
    pub fn keys(&self) -> [(&'static str, usize); 4] {
        [
            ("address", self.address.len()),
            ("visitor", self.visitor.len()),
            ("waiting", self.waiting.len()),
            ("forgery", self.forgery.len()),
        ]
    }
}

/// One limit: a bucket per key, a bounded number of keys.
#[derive(Debug)]
struct Bucket<K: Hash + Eq + Clone, C: Clock + Clone = DefaultClock> {
    name: &'static str,
    settings: config::Quota,
    limiter: RateLimiter<K, Cells<K>, C, NoOpMiddleware<C::Instant>>,
    cells: Cells<K>,
    clock: C,
    /// What the cells' times are counted from.
    start: C::Instant,
}

impl<K: Hash + Eq + Clone> Bucket<K> {
    fn new(name: &'static str, settings: config::Quota, max_keys: usize) -> Self {
        Self::by(DefaultClock::default(), (name, settings), Capped::new(max_keys))
    }
}

impl<K: Hash + Eq + Clone, C: Clock + Clone> Bucket<K, C> {
    fn by(clock: C, (name, settings): (&'static str, config::Quota), cells: Capped<K>) -> Self {
        let cells = Cells(Arc::new(cells));
        Self {
            name,
            settings,
            start: clock.now(),
            limiter: RateLimiter::new(quota(settings), Cells(Arc::clone(&cells.0)), clock.clone()),
            cells,
            clock,
        }
    }

    /// A bucket of other settings in which every key owes what it owed in this one.
    fn with(&self, settings: config::Quota, max_keys: usize) -> Self {
        let now: u64 = self.clock.now().duration_since(self.start).into();
        let (before, after) = (quota(self.settings), quota(settings));
        let period = |quota: Quota| u64::try_from(quota.replenish_interval().as_nanos()).unwrap_or(u64::MAX);
        let (old, new) = (u128::from(period(before)), u128::from(period(after)));
        // governor's time of a bucket that has been used up lies one request more than the burst ahead.
        let most = new * (u128::from(settings.burst) + 1);
        let owed = |cell: &AtomicU64| {
            let ahead = u128::from(cell.load(Relaxed).saturating_sub(now));
            u64::try_from((ahead * new / old.max(1)).min(most)).unwrap_or(u64::MAX)
        };
        let fresh = Capped::new(max_keys);
        for cell in &self.cells.0.cells {
            if fresh.count.load(Relaxed) >= max_keys {
                break;
            }
            let owed = owed(cell.value());
            if owed > 0 {
                fresh.cells.insert(cell.key().clone(), AtomicU64::new(owed));
                fresh.count.fetch_add(1, Relaxed);
            }
        }
        fresh.overflow.store(owed(&self.cells.0.overflow), Relaxed);
        Self::by(self.clock.clone(), (self.name, settings), fresh)
    }

    fn check(&self, key: &K) -> Result<(), Over> {
        self.limiter.check_key(key).map_err(|not_until| Over {
            limit: self.name,
            quota: self.settings,
            retry_after: not_until.wait_time_from(self.clock.now()),
        })
    }

    fn prune(&self) {
        self.limiter.retain_recent();
        self.limiter.shrink_to_fit();
    }

    fn len(&self) -> usize {
        self.limiter.len()
    }
}

fn quota(settings: config::Quota) -> Quota {
    let burst = NonZeroU32::new(settings.burst).unwrap_or(NonZeroU32::MIN);
    let nanos_per_request = 1_000_000_000_000_u64 / settings.rate.milli().max(1);
    Quota::with_period(Duration::from_nanos(nanos_per_request.max(1)))
        .unwrap_or(Quota::per_second(NonZeroU32::MIN))
        .allow_burst(burst)
}

/// governor's state, bounded.
#[derive(Debug)]
struct Capped<K: Hash + Eq> {
    cells: DashMap<K, AtomicU64, RandomState>,
    count: AtomicUsize,
    max: usize,
    overflow: AtomicU64,
}

impl<K: Hash + Eq> Capped<K> {
    fn new(max: usize) -> Self {
        Self {
            cells: DashMap::with_hasher(RandomState::new()),
            count: AtomicUsize::new(0),
            max,
            overflow: AtomicU64::new(0),
        }
    }
}

/// Measures one cell; 0 means "never used".
fn measure<T, F, E>(cell: &AtomicU64, decide: F) -> Result<T, E>
where
    F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
{
    let mut before = cell.load(Relaxed);
    loop {
        let (outcome, after) = decide((before != 0).then(|| Nanos::from(before)))?;
        match cell.compare_exchange_weak(before, u64::from(after).max(1), Relaxed, Relaxed) {
            Ok(_) => return Ok(outcome),
            Err(seen) => before = seen,
        }
    }
}

/// The same, held by the limiter and by its bucket.
#[derive(Debug)]
struct Cells<K: Hash + Eq>(Arc<Capped<K>>);

impl<K: Hash + Eq + Clone> StateStore for Cells<K> {
    type Key = K;

    fn measure_and_replace<T, F, E>(&self, key: &K, decide: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        if let Some(cell) = self.0.cells.get(key) {
            return measure(&cell, decide);
        }
        if self.0.count.load(Relaxed) >= self.0.max {
            return measure(&self.0.overflow, decide);
        }
        let cell = self.0.cells.entry(key.clone()).or_insert_with(|| {
            self.0.count.fetch_add(1, Relaxed);
            AtomicU64::new(0)
        });
        measure(&cell, decide)
    }
}

impl<K: Hash + Eq + Clone> ShrinkableKeyedStateStore<K> for Cells<K> {
    fn retain_recent(&self, drop_below: Nanos) {
        let keep_from = u64::from(drop_below);
        self.0.cells.retain(|_, cell| {
            let keep = cell.load(Relaxed) >= keep_from;
            if !keep {
                self.0.count.fetch_sub(1, Relaxed);
            }
            keep
        });
    }

    fn shrink_to_fit(&self) {
        self.0.cells.shrink_to_fit();
    }

    fn len(&self) -> usize {
        self.0.cells.len()
    }

    fn is_empty(&self) -> bool {
        self.0.cells.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Rate;
    use governor::clock::FakeRelativeClock;
    use proptest::prelude::*;

    fn bucket(per_second: u64, burst: u32, max_keys: usize) -> Bucket<u64> {
        let rate = Rate::from_milli(per_second * 1000);
        Bucket::new("test", config::Quota { rate, burst }, max_keys)
    }

    #[test]
    fn a_burst_passes_and_the_next_one_is_told_when() {
        let bucket = bucket(1, 3, 10);
        assert!((0..3).all(|_| bucket.check(&7).is_ok()));
        let over = bucket.check(&7).unwrap_err();
        assert_eq!(over.retry_after_s(), 1);
        assert!(bucket.check(&8).is_ok(), "another key has a bucket of its own");
    }

    #[test]
    fn retry_after_is_rounded_up_and_never_zero() {
        let after = |ms| {
            Over {
                limit: "test",
                quota: config::Quota {
                    rate: Rate::from_milli(1000),
                    burst: 1,
                },
                retry_after: Duration::from_millis(ms),
            }
            .retry_after_s()
        };
        assert_eq!([after(0), after(1), after(1000), after(1001)], [1, 1, 1, 2]);
    }

    /// CASE 77: five million keys are remembered as a thousand; beyond the bound newcomers share a bucket, and whoever was throttled stays so.
    #[test]
    fn keys_are_bounded_and_those_known_keep_their_own() {
        let rate = Rate::from_milli(1); // nobody is served twice while this runs
        let bucket = Bucket::new("test", config::Quota { rate, burst: 1 }, 1000);
        assert!(bucket.check(&0).is_ok());
        let passed = (1..5_000_000_u64).filter(|key| bucket.check(key).is_ok()).count();
        assert_eq!(bucket.len(), 1000);
        assert!(passed <= 1000 + 5, "the shared bucket let {} newcomers through", passed - 999);
        assert!(bucket.check(&0).is_err());
        bucket.prune();
        assert!(bucket.check(&0).is_err(), "pruning must not pardon anybody");
    }

    proptest! {
        /// What `Retry-After` and `RateLimit` tell is right to the second, for any limit and at any moment: a second earlier is refused, and just then
        /// it passes, once.
        #[test]
        fn the_time_that_is_told_is_right_to_the_second(milli in 1_u64..50_000, burst in 1_u32..40, late_ms in 0_u64..200_000) {
            let clock = FakeRelativeClock::default();
            let quota = config::Quota { rate: Rate::from_milli(milli), burst };
            let bucket = Bucket::by(clock.clone(), ("test", quota), Capped::new(10));
            clock.advance(Duration::from_millis(late_ms));
            for _ in 0..burst {
                prop_assert!(bucket.check(&7).is_ok());
            }
            let idle = u64::from(burst) * 1_000_000 / milli; // what works off the whole burst, ms
            clock.advance(Duration::from_millis(late_ms % (idle + 1)));
            while bucket.check(&7).is_ok() {}
            let over = bucket.check(&7).unwrap_err();
            let told_s = over.retry_after_s();
            prop_assert_eq!(&over.headers()[1].1, &format!("\"test\";r=0;t={told_s}"));
            clock.advance(Duration::from_secs(told_s - 1));
            prop_assert!(bucket.check(&7).is_err(), "served a second before the {} s it was told", told_s);
            clock.advance(Duration::from_secs(1));
            prop_assert!(bucket.check(&7).is_ok(), "refused after the {} s it was told", told_s);
        }
    }

    #[test]
    fn full_buckets_are_forgotten() {
        let bucket = bucket(1_000_000, 1, 1000);
        for key in 0..500 {
            assert!(bucket.check(&key).is_ok());
        }
        let deadline = crate::clock::Clock::instant() + Duration::from_secs(5);
        while bucket.len() > 0 && crate::clock::Clock::instant() < deadline {
            bucket.prune();
        }
        assert_eq!(bucket.len(), 0);
        assert_eq!(bucket.limiter.len(), 0);
    }
}
