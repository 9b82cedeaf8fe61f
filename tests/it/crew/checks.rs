//! What is held against the whole crew: the rate, and that everybody gets in.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::watch;
use tokio::time::timeout;

use super::Visitor;
use crate::backend::PATIENCE;
use crate::harness::{Redis, patient};

/// Samples how many were ever called by the store's own clock, and holds every window of time against the rate.
pub struct Checker {
    samples: Vec<(u64, u64)>,
}

impl Checker {
    /// Of samples taken elsewhere: when, in ms, and how many had been called by then.
    pub fn of(samples: Vec<(u64, u64)>) -> Self {
        Self { samples }
    }

    /// Samples until `stop` says so.
    pub async fn watch(redis: &Redis, mut stop: watch::Receiver<bool>) -> Self {
        const SAMPLE: &str = "local t = redis.call('TIME') return {t[1] * 1000 + math.floor(t[2] / 1000), \
             tonumber(redis.call('HGET', '{wg:42}:room', 'called_total') or '0')}";
        let client = redis::Client::open(redis.url()).unwrap();
        let mut connection = client.get_multiplexed_async_connection_with_config(&patient()).await.unwrap();
        let mut samples = Vec::new();
        while !*stop.borrow_and_update() {
            let sample = redis::cmd("EVAL").arg(SAMPLE).arg(0).query_async(&mut connection).await;
            samples.push(sample.unwrap());
            let _changed = timeout(Duration::from_millis(7), stop.changed()).await;
        }
        Self { samples }
    }

    /// How many were called in all.
    pub fn called(&self) -> u64 {
        self.samples.last().map_or(0, |(_, called)| *called)
    }

    /// No window has more than `per_second` times its length, and the burst.
    pub fn assert_rate(&self, per_second: u64, burst: u64) {
        for (index, (from, before)) in self.samples.iter().enumerate() {
            for (to, after) in &self.samples[index..] {
                let allowed = per_second * (to - from + 2) / 1000 + burst;
                assert!(
                    after - before <= allowed,
                    "{} called in {} ms, {allowed} are allowed",
                    after - before,
                    to - from
                );
            }
        }
    }
}

/// Waits in line by polling, wherever a gateway still answers, until the shop is shown. Tells every number that was shown on the way.
pub async fn wait_and_enter(mut visitor: Visitor, gateways: &[SocketAddr]) -> Vec<u64> {
    let mut shown = Vec::new();
    let mut polls = tokio::time::interval(Duration::from_millis(100));
    let getting_in = async {
        loop {
            polls.tick().await;
            let polled = if visitor.cookie("wgt_42").is_none() {
                visitor.try_load().await
            } else {
                visitor.try_status().await
            };
            let polled = match polled {
                Ok(reply) if reply.status == 200 => reply,
                _ => {
                    // A balancer sends the next request to somebody who answers.
                    let at = gateways.iter().position(|at| *at == visitor.at).unwrap_or(0);
                    visitor = visitor.at(gateways[(at + 1) % gateways.len()]);
                    continue;
                }
            };
            if polled.text() == "the shop" {
                return;
            }
            let view: Value = serde_json::from_slice(&polled.body).unwrap_or_default();
            shown.extend(view["ahead"].as_u64());
            assert_ne!(view["state"], "gone", "{view}");
            if view["state"] == "turn" && visitor.try_load().await.is_ok_and(|page| page.text() == "the shop") {
                return;
            }
        }
    };
    timeout(Duration::from_secs(60), getting_in).await.expect("everybody gets in");
    shown
}

/// As [`crate::harness::within`], for what changes something of its own meanwhile.
pub async fn until_so(what: &str, mut so: impl AsyncFnMut() -> bool) {
    let trying = async { while !so().await {} };
    timeout(PATIENCE, trying).await.unwrap_or_else(|_| panic!("in time: {what}"));
}
