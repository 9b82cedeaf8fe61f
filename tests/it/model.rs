//! The line and the stock against a small model of each, in any order of events.
//!
//! The models know nothing of Redis: they are a few lines of obvious Rust. After each step the scripts' answers, everybody's whereabouts and all
//! counts must be those of the model; a failing order is printed, made as short as can be.

mod line;
mod stock;

use proptest::prelude::*;
use proptest::strategy::Strategy;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use waitgate::clock::Clock;
use waitgate::store::{RoomStore, Store};

use crate::harness::{NOON, Redis};

/// What a property is tried on: one server for all cases, a room for each.
struct Bench {
    redis: Redis,
    clock: Clock,
    store: Store,
}

/// One room being played in.
struct Game<'a> {
    bench: &'a Bench,
    room: RoomStore,
}

impl Game<'_> {
    fn now_ms(&self) -> u64 {
        self.bench.clock.now_ms()
    }

    /// One command whose first argument is a key of the room.
    async fn ask<T: redis::FromRedisValue>(&self, command: &str, name: &str, rest: &[&str]) -> T {
        let key = format!("{{wg:{}}}:{name}", self.room.id());
        let words: Vec<&str> = [command, key.as_str()].into_iter().chain(rest.iter().copied()).collect();
        self.bench.redis.ask(&words).await
    }
}

/// Plays `cases` orders of up to `steps` events.
fn play<E: std::fmt::Debug + Clone>(
    cases: u32,
    steps: usize,
    event: impl Strategy<Value = E>,
    one: impl AsyncFn(&Game<'_>, Vec<E>) -> Result<(), TestCaseError>,
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let bench = runtime.block_on(async {
        let redis = Redis::start().await;
        let clock = Clock::moved(NOON);
        let store = redis.store(&clock).await;
        Bench { redis, clock, store }
    });
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 400,
        ..Config::default()
    };
    let rooms = std::cell::Cell::new(0_u32);
    let played = TestRunner::new(config).run(&prop::collection::vec(event, 1..steps), |events| {
        rooms.set(rooms.get() + 1);
        let room = bench.store.room(&format!("case{}", rooms.get()));
        runtime.block_on(one(&Game { bench: &bench, room }, events))
    });
    if let Err(failure) = played {
        panic!("{failure}");
    }
}
