//! The kinds of stores, with real processes: one server with TLS and an ACL user, sentinels, a cluster. Each test starts its own on ports of its
//! own, loses primaries, and ends them.

mod cluster;
mod copies;
mod one;
mod process;
mod refusals;
mod sentinel;

use std::time::Duration;

use waitgate::clock::Clock;
use waitgate::config;
use waitgate::fault::StoreFault;
use waitgate::store::scripts::{Knock, Place, Standing};
use waitgate::store::{RoomStore, Store, StoreOptions};

use crate::harness::{TERMS, joining, seed, up};

/// A primary that is lost must be replaced within this.
const FAILOVER: Duration = Duration::from_secs(10);

/// Reads a file of settings whose `[store]` is this, and opens that store.
async fn open(folder: &std::path::Path, store: &str) -> Store {
    let settings = config::parse(store, &folder.join("waitgate.toml")).expect("good settings");
    let options = StoreOptions {
        call_timeout: settings.store.call_timeout,
        connect_timeout: settings.store.connect_timeout,
    };
    let site = settings.store.site.expect("a store of ours");
    let store = Store::open_site(&site, Clock::system(), options).expect("a store");
    up(&store).await;
    store
}

/// People who join one after the other, whatever happens, and ask until they are answered.
struct Crowd {
    room: RoomStore,
    places: Vec<(String, Place)>,
    longest_wait: Duration,
}

impl Crowd {
    async fn new(store: &Store, id: &str) -> Self {
        let room = store.room(id);
        let began = Clock::instant();
        while let Err(fault) = room.seed(&seed(0)).await {
            assert!(began.elapsed() < FAILOVER, "{id} is seeded in time: {fault}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Self {
            room,
            places: Vec::new(),
            longest_wait: Duration::ZERO,
        }
    }

    /// One more; how often it had to ask.
    async fn join(&mut self) -> u32 {
        let ticket = format!("{}-{}", self.room.id(), self.places.len());
        let began = Clock::instant();
        for asked in 1.. {
            match self.ask(&ticket, 0).await {
                Ok(Standing::Waiting { place, .. }) => {
                    self.longest_wait = self.longest_wait.max(began.elapsed());
                    self.places.push((ticket, place));
                    return asked;
                }
                Ok(other) => panic!("{ticket} waits, and is not {other:?}"),
                Err(fault) => assert!(began.elapsed() < FAILOVER, "{ticket} is answered in time: {fault}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        0
    }

    async fn join_many(&mut self, count: usize) {
        for _ in 0..count {
            self.join().await;
        }
    }

    async fn ask(&self, ticket: &str, place: Place) -> Result<Standing, StoreFault> {
        let joined = self.room.join(&TERMS, &[joining(ticket, place, Knock::Join)]).await?;
        Ok(joined.expect("the room is there").standings[0])
    }

    /// Everybody still stands at the place that was shown, nobody at that of another, and whoever came later is behind.
    async fn check(&self) {
        for pair in self.places.windows(2) {
            assert!(pair[0].1 < pair[1].1, "{pair:?}");
        }
        for (ticket, place) in &self.places {
            match self.ask(ticket, *place).await {
                Ok(Standing::Waiting { place: now, .. }) => assert_eq!(now, *place, "{ticket}"),
                other => panic!("{ticket}: {other:?}"),
            }
        }
    }
}
