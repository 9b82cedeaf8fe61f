//! What each server says of itself, for whoever wants to know before a sale whether it will do.

use std::time::Duration;

use redis::cmd;

use super::{Store, allowed};
use crate::clock::{Clock, UnixMs};
use crate::fault::StoreFault;

/// One server that holds lines. What it forbids us to ask is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Examined {
    /// Where it is.
    pub host: String,
    /// `redis_version`.
    pub version: Option<String>,
    /// `maxmemory-policy`; must be `noeviction`.
    pub maxmemory_policy: Option<String>,
    /// Bytes it may use; 0 is no limit.
    pub max_memory: Option<u64>,
    /// Bytes it uses.
    pub used_memory: Option<u64>,
    /// Whether it keeps an append-only file.
    pub append_only: Option<bool>,
    /// Replicas that follow it.
    pub replicas: Option<u64>,
    /// `min-replicas-to-write`.
    pub min_replicas: Option<u64>,
    /// Its clock less ours, in milliseconds.
    pub ahead_ms: i64,
    /// How long an answer takes.
    pub round_trip: Duration,
    /// Whether it runs scripts like ours.
    pub scripts: bool,
}

/// A script that begins like all of ours.
const PROBE: &str = "#!lua flags=no-writes\nreturn redis.call('TIME')[1]";

impl Store {
    /// Asks every connected server of the store.
    ///
    /// # Errors
    /// [`StoreFault::Away`] or [`StoreFault::Unknown`]: one did not answer.
    pub async fn examine(&self) -> Result<Vec<Examined>, StoreFault> {
        let nodes = self.inner.routes.load_full().nodes.clone();
        if nodes.is_empty() {
            return Err(StoreFault::Away);
        }
        let mut found = Vec::with_capacity(nodes.len());
        for node in &nodes {
            let info: Option<String> = allowed(self.ask_node(node, &cmd("INFO")).await)?;
            let info = Info(info.unwrap_or_default());
            let setting: Option<Vec<String>> = allowed(self.ask_node(node, cmd("CONFIG").arg("GET").arg("min-replicas-to-write")).await)?;
            let loaded: Option<String> = allowed(self.ask_node(node, cmd("SCRIPT").arg("LOAD").arg(PROBE)).await)?;
            let ran: Option<u64> = match loaded {
                Some(hash) => allowed(self.ask_node(node, cmd("EVALSHA").arg(hash).arg(0)).await)?,
                None => None,
            };
            let (began, asked_ms) = (Clock::instant(), Clock::system().now_ms());
            let (seconds, micros): (u64, u64) = self.ask_node(node, &cmd("TIME")).await?;
            let round_trip = began.elapsed();
            found.push(Examined {
                host: node.host.to_string(),
                version: info.text("redis_version").or_else(|| info.text("valkey_version")),
                maxmemory_policy: info.text("maxmemory_policy"),
                max_memory: info.number("maxmemory"),
                used_memory: info.number("used_memory"),
                append_only: info.number("aof_enabled").map(|on| on == 1),
                replicas: info.number("connected_slaves"),
                min_replicas: setting.and_then(|pair| pair.into_iter().nth(1)?.parse().ok()),
                ahead_ms: ahead_ms(seconds * 1000 + micros / 1000, asked_ms, round_trip),
                round_trip,
                scripts: ran.is_some(),
            });
        }
        Ok(found)
    }
}

/// Their clock less ours, as it was half-way between question and answer.
fn ahead_ms(theirs_ms: UnixMs, asked_ms: UnixMs, round_trip: Duration) -> i64 {
    let half_way_ms = asked_ms.saturating_add(crate::clock::millis(round_trip / 2));
    i64::try_from(theirs_ms)
        .unwrap_or(i64::MAX)
        .saturating_sub(i64::try_from(half_way_ms).unwrap_or(i64::MAX))
}

/// The answer to `INFO`.
struct Info(String);

impl Info {
    fn text(&self, name: &str) -> Option<String> {
        let mut lines = self.0.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(field, _)| *field == name).map(|(_, value)| value.trim().to_owned())
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.text(name)?.parse().ok()
    }
}
