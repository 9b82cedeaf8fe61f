//! Keeps the store's connections: looks for the primaries, connects to them, probes them, and does it again, until the store is closed.
//!
//! One task does all of it, so there is at most one attempt to connect to a server at a time, however many calls saw it fail; attempts that fail
//! are further and further apart, by a jittered wait, so that a fleet does not come back in step.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, RedisError, ServerErrorKind, Value};
use tokio::time::Instant;

use super::Inner;
use super::dial::{Dialer, limited};
use super::routes::{Node, Routes};
use super::survey::Surveyor;
use crate::config::Host;

/// How often connections are probed.
const PROBE: Duration = Duration::from_millis(500);
/// How often sentinels or the cluster are asked, though nothing seems to be wrong.
const SURVEY: Duration = Duration::from_secs(1);
/// The shortest and the longest wait between attempts to connect.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// However many calls fail: so long between two looks.
const LEAST_PAUSE: Duration = Duration::from_millis(25);

/// Watches until the store is closed.
pub(super) async fn watch_over(inner: Arc<Inner>, surveyor: Surveyor) {
    let mut watch = Watch {
        inner: &inner,
        surveyor,
        surveyed: None,
        told: false,
    };
    let mut failures = 0;
    loop {
        let began = Instant::now();
        let failed = tokio::select! {
            () = inner.stop.cancelled() => break,
            failed = watch.round() => failed,
        };
        let waited = if let Some(error) = failed {
            watch.tell(&error);
            failures += 1;
            back_off(failures - 1)
        } else {
            watch.tell_good();
            failures = 0;
            PROBE
        };
        tokio::select! {
            () = inner.stop.cancelled() => break,
            () = tokio::time::sleep(waited) => {}
            () = suspected(&inner, began), if failures == 0 => {}
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

struct Watch<'a> {
    inner: &'a Inner,
    surveyor: Surveyor,
    surveyed: Option<Instant>,
    /// It was said that something is missing.
    told: bool,
}

impl Watch<'_> {
    /// One look at everything; what went wrong, if anything did.
    async fn round(&mut self) -> Option<RedisError> {
        self.probe().await;
        let routes = self.inner.routes.load_full();
        let due = self.surveyor.is_movable() && self.surveyed.is_none_or(|then| then.elapsed() >= SURVEY);
        let looked = self.inner.looked.swap(false, std::sync::atomic::Ordering::Relaxed);
        let mut failed = None;
        if due || looked || routes.parts.is_empty() || !routes.missing().is_empty() {
            match self.surveyor.survey(&self.inner.dialer, &routes).await {
                Ok(parts) => {
                    self.surveyed = Some(Instant::now());
                    if parts != routes.parts {
                        self.inner.turn(|routes| routes.divided(parts.clone()));
                    }
                }
                // Nobody tells who the primary is; whoever is connected goes on.
                Err(error) => failed = Some(error),
            }
        }
        let missing = self.inner.routes.load().missing();
        let mut connecting: FuturesUnordered<_> = missing.into_iter().map(|host| connected(self.inner, host)).collect();
        while let Some(node) = connecting.next().await {
            match node {
                Ok(node) => self.inner.turn(|routes| {
                    let mut routes = routes.clone();
                    routes.nodes.push(Arc::clone(&node));
                    routes
                }),
                Err(error) => failed = Some(error),
            }
        }
        failed
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

    fn tell(&mut self, error: &RedisError) {
        if !self.told {
            self.told = true;
            if self.inner.routes.load().nodes.is_empty() {
                tracing::warn!(%error, "the store cannot be reached; trying until it can");
            } else {
                tracing::warn!(%error, "a part of the store cannot be reached; trying until it can");
            }
        }
    }

    fn tell_good(&mut self) {
        if std::mem::take(&mut self.told) {
            tracing::info!("all of the store is reached again");
        }
    }
}

/// A connection to a server that answers and says it is a primary.
async fn connected(inner: &Inner, host: Host) -> Result<Arc<Node>, RedisError> {
    let dialer: &Dialer = &inner.dialer;
    let link = dialer.link(&host).await?;
    let primary = async {
        ping(link.connection()).await?;
        let said: Result<Value, RedisError> = redis::cmd("ROLE").query_async(&mut link.connection()).await;
        match said {
            Ok(said) => Ok(redis::from_redis_value::<Vec<Value>>(said)?
                .into_iter()
                .next()
                .and_then(|role| redis::from_redis_value::<String>(role).ok())
                .is_none_or(|role| role == "master")),
            // Who may not ask goes without: what it writes to a replica is refused.
            Err(error) if is_answer(&error) => Ok(true),
            Err(error) => Err(error),
        }
    };
    if limited(inner.options.connect_timeout, primary).await? {
        return Ok(Node::new(host, link));
    }
    let kind = ErrorKind::Server(ServerErrorKind::ReadOnly);
    Err(RedisError::from((kind, "this server is a replica now", host.to_string())))
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
