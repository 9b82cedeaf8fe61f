//! How a backend is: what its own answers say of it, and what it says when it is asked.
//!
//! Failures in a row send it to rest, each time for longer, with some chance in it so that several gateways do not come back at once; one good
//! answer makes it well. Asked regularly it may also be down, until it has answered well for some time.

use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use http::{HeaderValue, Request, header};
use tokio::time::{Instant, sleep, timeout};

use super::backend::Backend;
use super::body::Outbound;
use super::carrier::Carrier;
use super::lane::Failed;
use crate::clock::millis;
use crate::config;
use crate::fault::BoxError;

/// How often it is looked whether backends are to be asked at all.
const UNASKED: Duration = Duration::from_secs(2);
/// The longest exponent of a rest.
const MAX_DOUBLINGS: u32 = 10;

/// The condition of one backend.
#[derive(Debug)]
pub(super) struct Condition {
    born: Instant,
    failures: AtomicU32,
    rests: AtomicU32,
    /// Until when it is left alone, ms since `born`.
    until_ms: AtomicU64,
    down: AtomicBool,
    /// Failures and rests so far.
    failed_total: AtomicU64,
    rested_total: AtomicU64,
}

impl Condition {
    pub(super) fn new() -> Self {
        Self {
            born: Instant::now(),
            failures: AtomicU32::new(0),
            rests: AtomicU32::new(0),
            until_ms: AtomicU64::new(0),
            down: AtomicBool::new(false),
            failed_total: AtomicU64::new(0),
            rested_total: AtomicU64::new(0),
        }
    }

    pub(super) fn is_well(&self) -> bool {
        !self.down.load(Relaxed) && self.until_ms.load(Relaxed) <= millis(self.born.elapsed())
    }

    pub(super) fn rests_until_ms(&self) -> u64 {
        self.until_ms.load(Relaxed)
    }

    /// Failures and rests so far.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.failed_total.load(Relaxed), self.rested_total.load(Relaxed))
    }

    /// It answered.
    pub(super) fn answered(&self) {
        if self.failures.load(Relaxed) > 0 || self.rests.load(Relaxed) > 0 {
            self.failures.store(0, Relaxed);
            self.rests.store(0, Relaxed);
            self.until_ms.store(0, Relaxed);
        }
    }

    /// It did not. Answers for how long it is left alone, if it is.
    pub(super) fn failed(&self, settings: &config::Upstream) -> Option<Duration> {
        self.failed_total.fetch_add(1, Relaxed);
        let failures = self.failures.fetch_add(1, Relaxed) + 1;
        if failures < settings.max_failures {
            return None;
        }
        self.failures.store(0, Relaxed);
        self.rested_total.fetch_add(1, Relaxed);
        let doublings = self.rests.fetch_add(1, Relaxed).min(MAX_DOUBLINGS);
        let longest = settings.rest.saturating_mul(1 << doublings).min(config::Upstream::MAX_REST);
        let rest = longest.mul_f64(0.75 + fastrand::f64() / 4.0);
        self.until_ms.store(millis(self.born.elapsed() + rest), Relaxed);
        Some(rest)
    }
}

/// Asks a backend how it is, for as long as there is somebody who leads to it.
pub(super) async fn ask(backend: Weak<Backend>) {
    let (mut good, mut bad) = (0, 0);
    loop {
        let Some(known) = backend.upgrade() else { return };
        let settings = known.settings();
        let Some(health) = &settings.health else {
            known.condition.down.store(false, Relaxed);
            drop(known);
            sleep(UNASKED).await;
            continue;
        };
        let answer = timeout(health.timeout, visit(&known, health))
            .await
            .unwrap_or_else(|late| Err(late.into()));
        match &answer {
            Ok(()) => (good, bad) = (good + 1, 0),
            Err(_) => (good, bad) = (0, bad + 1),
        }
        let down = known.condition.down.load(Relaxed);
        if down && good >= health.rise {
            known.condition.down.store(false, Relaxed);
            tracing::info!(backend = known.authority(), "a backend is up again");
        } else if let Err(fault) = &answer
            && !down
            && bad >= health.fall
        {
            known.condition.down.store(true, Relaxed);
            tracing::warn!(backend = known.authority(), %fault, "a backend is down");
        }
        let pause = health.interval.mul_f64(0.9 + fastrand::f64() / 5.0);
        drop((known, answer));
        sleep(pause).await;
    }
}

/// One question, on a connection of its own.
async fn visit(backend: &Backend, health: &config::Health) -> Result<(), BoxError> {
    let mut carrier = backend.visit(health.timeout).await?;
    let request = Request::get(health.path.as_str())
        .header(header::HOST, backend.authority())
        .header(header::USER_AGENT, "waitgate")
        .body(Outbound::empty())?;
    let (mut head, body) = request.into_parts();
    if matches!(carrier, Carrier::Lane(_)) {
        head.headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    let end = Instant::now() + health.timeout;
    let answer = carrier
        .exchange(head, body, backend.asked(), || (Instant::now() < end).then_some(end))
        .await;
    let status = answer.map_err(Failed::into_error)?.status();
    if status.is_success() || status.is_redirection() {
        return Ok(());
    }
    Err(format!("it says {status}").into())
}
