//! Keeps the store's connections: looks for the primaries, connects to them, probes them, and does it again, until the store is closed.
//!
//! One task does all of it, so there is at most one attempt to connect to a server at a time, however many calls saw it fail; attempts that fail
//! are further and further apart, by a jittered wait, so that a fleet does not come back in step. While an attempt is under way everything else
//! goes on: a server that swallows packets keeps nobody from seeing that another has taken its place.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, RedisError, ServerErrorKind, Value};
use tokio::time::Instant;

use super::Inner;
use super::dial::limited;
use super::routes::{Node, Routes};
use super::survey::Surveyor;
use crate::config::Host;

/// How often connections are probed.
const PROBE: Duration = Duration::from_millis(500);
/// How often sentinels or the cluster are asked: though nothing seems to be wrong, and when something does.
const SURVEY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_millis(200));
/// The shortest and the longest wait between attempts to connect.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// However many calls fail: so long between two looks.
const LEAST_PAUSE: Duration = Duration::from_millis(25);

/// Watches until the store is closed.
pub(super) async fn watch_over(inner: Arc<Inner>, surveyor: Surveyor) {
    let mut watch = Watch {
        inner: &inner,
        surveyor,
        surveys: Rest::new(),
        resting: HashMap::new(),
        underway: HashSet::new(),
        last_error: None,
        told: false,
    };
    let mut connecting = FuturesUnordered::new();
    loop {
        let began = Instant::now();
        tokio::select! {
            () = inner.stop.cancelled() => break,
            () = watch.look() => {}
        }
        connecting.extend(watch.due().into_iter().map(|host| connected(&inner, host)));
        watch.tell();
        tokio::select! {
            () = inner.stop.cancelled() => break,
            () = tokio::time::sleep_until(watch.next_look()) => {}
            () = suspected(&inner, began) => {}
            Some((host, node)) = connecting.next() => watch.arrived(&host, node),
        }
    }
    // What was connected just when the store was closed.
    inner.routes.store(Arc::default());
    inner.told();
}

/// A call saw something fail. Not at once after the last look.
async fn suspected(inner: &Inner, last: Instant) {
    inner.suspect.notified().await;
    tokio::time::sleep_until(last + LEAST_PAUSE).await;
}

/// How often something failed in a row, and when it was, and may be, tried.
struct Rest {
    failures: u32,
    last: Instant,
    until: Instant,
}

impl Rest {
    fn new() -> Self {
        let now = Instant::now();
        Self {
            failures: 0,
            last: now,
            until: now,
        }
    }

    fn failed(&mut self) {
        self.last = Instant::now();
        self.until = self.last + back_off(self.failures);
        self.failures += 1;
    }

    fn done(&mut self, pause: Duration) {
        self.failures = 0;
        self.last = Instant::now();
        self.until = self.last + pause;
    }
}

struct Watch<'a> {
    inner: &'a Inner,
    surveyor: Surveyor,
    surveys: Rest,
    /// Servers that could not be connected to.
    resting: HashMap<Host, Rest>,
    /// Servers that are being connected to.
    underway: HashSet<Host>,
    last_error: Option<RedisError>,
    /// It was said that something is missing.
    told: bool,
}

impl Watch<'_> {
    /// Probes, and asks who the primaries are when it is time to.
    async fn look(&mut self) {
        self.probe().await;
        let routes = self.inner.routes.load_full();
        if self.next_survey(&routes).is_none_or(|then| then > Instant::now()) {
            return;
        }
        self.inner.looked.store(false, Ordering::Relaxed);
        match self.surveyor.survey(&self.inner.dialer, &routes).await {
            Ok(parts) => {
                self.surveys.done(SURVEY.0);
                if parts != routes.parts {
                    self.inner.turn(|routes| routes.divided(parts.clone()));
                }
            }
            // Nobody tells who the primary is; whoever is connected goes on.
            Err(error) => {
                self.surveys.failed();
                self.last_error = Some(error);
            }
        }
    }

    /// When the primaries are asked for next; none: there is nobody to ask.
    fn next_survey(&self, routes: &Routes) -> Option<Instant> {
        if !self.surveyor.is_movable() {
            return routes.parts.is_empty().then(Instant::now);
        }
        let urgent = self.inner.looked.load(Ordering::Relaxed) || !routes.missing().is_empty();
        Some(match urgent && self.surveys.failures == 0 {
            true => self.surveys.until.min(self.surveys.last + SURVEY.1),
            false => self.surveys.until,
        })
    }

    /// Leaves out what does not answer any more.
    async fn probe(&self) {
        let routes = self.inner.routes.load_full();
        let probes = routes.nodes.iter().map(async |node| (node, ping(node.connection()).await));
        for (node, answer) in join_all(probes).await {
            if answer.is_err() {
                self.inner.turn(|routes| routes.without(node));
            }
        }
    }

    /// Who is to be connected to now.
    fn due(&mut self) -> Vec<Host> {
        let missing = self.inner.routes.load().missing();
        self.resting.retain(|host, _| missing.contains(host));
        let rested = |host: &Host| self.resting.get(host).is_none_or(|rest| rest.until <= Instant::now());
        let due: Vec<Host> = missing
            .into_iter()
            .filter(|host| rested(host) && !self.underway.contains(host))
            .collect();
        self.underway.extend(due.iter().cloned());
        due
    }

    fn next_look(&self) -> Instant {
        let routes = self.inner.routes.load();
        let resting = self
            .resting
            .iter()
            .filter(|(host, _)| !self.underway.contains(*host))
            .map(|(_, rest)| rest.until);
        resting.chain(self.next_survey(&routes)).fold(Instant::now() + PROBE, Instant::min)
    }

    /// An attempt to connect has ended.
    fn arrived(&mut self, host: &Host, node: Result<Arc<Node>, RedisError>) {
        self.underway.remove(host);
        match node {
            Ok(node) => {
                self.resting.remove(host);
                self.inner.turn(|routes| routes.with(&node));
            }
            Err(error) => {
                self.resting.entry(host.clone()).or_insert_with(Rest::new).failed();
                self.last_error = Some(error);
            }
        }
    }

    fn tell(&mut self) {
        let routes = self.inner.routes.load();
        if self.surveys.failures == 0 && routes.missing().is_empty() {
            self.last_error = None;
            if std::mem::take(&mut self.told) {
                tracing::info!("all of the store is reached again");
            }
        } else if let Some(error) = &self.last_error
            && !std::mem::replace(&mut self.told, true)
        {
            match routes.nodes.is_empty() {
                true => tracing::warn!(%error, "the store cannot be reached; trying until it can"),
                false => tracing::warn!(%error, "a part of the store, or who knows its primaries, cannot be reached; trying until it can"),
            }
        }
    }
}

/// A connection to a server that answers and says it is a primary.
async fn connected(inner: &Inner, host: Host) -> (Host, Result<Arc<Node>, RedisError>) {
    let reach = async {
        let link = inner.dialer.link(&host).await?;
        let primary = limited(inner.options.connect_timeout, is_primary(link.connection())).await?;
        let kind = ErrorKind::Server(ServerErrorKind::ReadOnly);
        let replica = || RedisError::from((kind, "this server is a replica now", host.to_string()));
        primary.then(|| Node::new(host.clone(), link)).ok_or_else(replica)
    };
    let node = reach.await;
    (host, node)
}

async fn is_primary(mut connection: MultiplexedConnection) -> Result<bool, RedisError> {
    ping(connection.clone()).await?;
    match redis::cmd("ROLE").query_async::<Vec<Value>>(&mut connection).await {
        Ok(said) => {
            let role = said
                .into_iter()
                .next()
                .and_then(|role| redis::from_redis_value::<String>(role).ok());
            Ok(role.is_none_or(|role| role == "master"))
        }
        // Who may not ask goes without: what it writes to a replica is refused.
        Err(error) if is_answer(&error) => Ok(true),
        Err(error) => Err(error),
    }
}

fn is_answer(error: &RedisError) -> bool {
    matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension)
}

async fn ping(mut connection: MultiplexedConnection) -> Result<(), RedisError> {
    redis::cmd("PING").query_async::<String>(&mut connection).await.map(drop)
}

/// How long to wait after so many failures: doubling, and jittered so that a fleet does not come back in step.
pub(super) fn back_off(failures: u32) -> Duration {
    let longest = BACK_OFF.0.saturating_mul(1 << failures.min(10)).min(BACK_OFF.1);
    longest.mul_f64(0.5 + fastrand::f64() / 2.0)
}

impl Inner {
    /// Replaces the routes.
    pub(super) fn turn(&self, change: impl Fn(&Routes) -> Routes) {
        if self.stop.is_cancelled() {
            return;
        }
        self.routes.rcu(|routes| change(routes));
        self.told();
    }

    /// Tells everybody who waits.
    pub(super) fn told(&self) {
        let up = !self.routes.load().nodes.is_empty();
        self.up.send_if_modified(|was| std::mem::replace(was, up) != up);
        self.turns.send_modify(|turn| *turn = turn.wrapping_add(1));
    }
}
