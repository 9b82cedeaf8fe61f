//! Which room guards this path, and how that room is now.
//!
//! A room's live state is a copy of what the store last said. One task per room writes it (`admission`), every request reads it; to read it
//! costs a pointer and asks nobody.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::{ArcSwap, Guard};

use crate::clock::{Clock, UnixMs};
use crate::config;
use crate::store::RoomStore;
use crate::store::scripts::{Epoch, Place, Shown};

pub mod path;

use path::Readings;

/// One waiting room.
#[derive(Debug)]
pub struct Room {
    /// Its name.
    pub id: String,
    /// Its part of the store.
    pub store: RoomStore,
    /// The time.
    pub clock: Clock,
    settings: ArcSwap<config::Room>,
    live: ArcSwap<Live>,
    frontier: AtomicU64,
    /// The epoch that the frontier is of. Held while the frontier is written.
    frontier_epoch: Mutex<Epoch>,
    skew: Skew,
}

/// The store's clock less ours. An answer that is late makes it look smaller than it is, so the largest of the last few counts.
#[derive(Debug, Default)]
struct Skew {
    best_ms: AtomicI64,
    last: Mutex<VecDeque<i64>>,
}

impl Skew {
    /// As many as a few seconds bring.
    const LAST: usize = 8;
    /// A difference that no answer is late by: a clock was set.
    const STEP_MS: u64 = 1000;

    fn learn(&self, ms: i64) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if ms.abs_diff(self.best_ms.load(Relaxed)) >= Self::STEP_MS {
            last.clear();
        }
        last.truncate(Self::LAST - 1);
        last.push_front(ms);
        self.best_ms.store(last.iter().copied().max().unwrap_or(ms), Relaxed);
    }
}

/// How a room is now, as far as this gateway knows.
#[derive(Clone, Debug, Default)]
pub struct Live {
    /// What the store last said.
    pub shown: Shown,
    /// Whether the store ever said anything.
    pub known: bool,
    /// Whether the store can be reached.
    pub store_up: bool,
    /// A newcomer could be admitted at once.
    pub at_once: bool,
}

/// What the door does to those who wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Door {
    /// People are called.
    Open,
    /// Not yet open: counts down.
    Countdown,
    /// An operator paused it, or it is shut while tickets come back after a loss.
    Paused,
    /// All units are sold; nothing can return.
    SoldOut,
    /// All units are held; some may return.
    AllHeld,
    /// Past its closing time.
    Closed,
    /// The store cannot be reached: nobody is called, places are kept.
    Delayed,
}

impl Room {
    /// A room of which nothing is known yet.
    #[must_use]
    pub fn new(settings: impl Into<Arc<config::Room>>, store: RoomStore, clock: Clock) -> Self {
        let settings = settings.into();
        Self {
            id: settings.id.clone(),
            settings: ArcSwap::new(settings),
            store,
            clock,
            live: ArcSwap::default(),
            frontier: AtomicU64::new(0),
            frontier_epoch: Mutex::new(0),
            skew: Skew::default(),
        }
    }

    /// The settings in force. What is true for one request takes them once, from its hall.
    pub fn settings(&self) -> Guard<Arc<config::Room>> {
        self.settings.load()
    }

    /// Puts other settings in force. Where the room stands, and who waits in it, is not touched.
    pub fn adopt(&self, settings: Arc<config::Room>) {
        self.settings.store(settings);
    }

    /// How the room is now.
    pub fn live(&self) -> Guard<Arc<Live>> {
        self.live.load()
    }

    /// Puts in what the store said. An answer older than the one known (another connection was quicker) is dropped.
    pub fn learn(&self, shown: Shown) {
        let before = self.live.load();
        let older = shown.epoch < before.shown.epoch || (shown.epoch == before.shown.epoch && shown.version < before.shown.version);
        if before.known && older {
            return;
        }
        self.learn_time(shown.now_ms);
        self.advance(shown.epoch, shown.frontier);
        self.live.store(Arc::new(Live {
            shown,
            known: true,
            store_up: true,
            at_once: before.at_once,
        }));
    }

    /// The store's clock read `store_ms` just now.
    pub fn learn_time(&self, store_ms: UnixMs) {
        let skew = i128::from(store_ms) - i128::from(self.clock.now_ms());
        self.skew.learn(i64::try_from(skew).unwrap_or(0));
    }

    /// Whether the store can be reached, and whether a newcomer could be admitted at once.
    pub fn learn_reach(&self, store_up: bool, at_once: bool) {
        let before = self.live.load();
        if before.store_up != store_up || before.at_once != at_once {
            self.live.store(Arc::new(Live {
                store_up,
                at_once: at_once && store_up,
                ..Live::clone(&before)
            }));
        }
    }

    /// The frontier is at least here. Within an epoch it only grows; a new epoch begins with a frontier of its own, since the tickets of the lost
    /// line come back to their old places.
    pub fn advance(&self, epoch: Epoch, frontier: Place) {
        let mut known = self.frontier_epoch.lock().unwrap_or_else(PoisonError::into_inner);
        if epoch > *known {
            *known = epoch;
            self.frontier.store(frontier, Relaxed);
        } else if epoch == *known {
            self.frontier.fetch_max(frontier, Relaxed);
        }
    }

    /// The highest place called so far.
    #[must_use]
    pub fn frontier(&self) -> Place {
        self.frontier.load(Relaxed)
    }

    /// The time by the store's clock: what tickets, turns and admissions are measured by.
    #[must_use]
    pub fn now_ms(&self) -> UnixMs {
        self.clock.now_ms().saturating_add_signed(self.skew.best_ms.load(Relaxed))
    }

    /// What the door does now.
    #[must_use]
    pub fn door(&self) -> Door {
        door(&self.live.load(), self.now_ms())
    }
}

/// What the door does, from what is known. The order matters: the end of a sale outranks a pause, and a lost store outranks the hours.
fn door(live: &Live, now_ms: UnixMs) -> Door {
    let shown = &live.shown;
    let stock = shown.stock.filter(|stock| stock.known);
    if shown.closes_at_ms > 0 && now_ms >= shown.closes_at_ms {
        Door::Closed
    } else if stock.is_some_and(|stock| stock.free == 0 && stock.held == 0) {
        Door::SoldOut
    } else if !live.store_up || !live.known {
        Door::Delayed
    } else if now_ms < shown.opens_at_ms {
        Door::Countdown
    } else if shown.paused || now_ms < shown.shut_until_ms || shown.stock.is_some_and(|stock| !stock.known) {
        Door::Paused
    } else if stock.is_some_and(|stock| stock.free == 0) {
        Door::AllHeld
    } else {
        Door::Open
    }
}

/// What guards a path.
#[derive(Debug)]
pub enum Guarded<'r> {
    /// This room, on its claim route.
    Claim(&'r Arc<config::Room>),
    /// This room.
    Room(&'r Arc<config::Room>),
    /// This room's backend, past the room, by a bypass rule.
    Bypass(&'r Arc<config::Room>),
    /// Nobody. The first room of the same host, if any, tells where the rest of the site is.
    Nobody(Option<&'r Arc<config::Room>>),
}

/// All rooms, longest path first.
#[derive(Debug)]
pub struct Rooms {
    rooms: Vec<Arc<config::Room>>,
    routes: Vec<(String, usize)>,
}

impl Rooms {
    /// These rooms.
    #[must_use]
    pub fn new(rooms: Vec<Arc<config::Room>>) -> Self {
        let mut routes: Vec<(String, usize)> = rooms
            .iter()
            .enumerate()
            .flat_map(|(index, room)| room.paths.iter().map(move |path| (path.clone(), index)))
            .collect();
        routes.sort_by_key(|(path, _)| std::cmp::Reverse(path.len()));
        Self { rooms, routes }
    }

    /// What guards this host and path.
    #[must_use]
    pub fn find(&self, host: &str, readings: &Readings<'_>) -> Guarded<'_> {
        let mut on_host = None;
        for (path, index) in &self.routes {
            let room = &self.rooms[*index];
            if !room.hosts.is_empty() && !room.hosts.iter().any(|guarded| guarded == host) {
                continue;
            }
            on_host = on_host.or(Some(room));
            if !readings.any_under(path, room.ignore_case) {
                continue;
            }
            if let Some(claim) = &room.claim
                && readings.any_is(&claim.path, room.ignore_case)
            {
                return Guarded::Claim(room);
            }
            let passes = readings
                .only()
                .is_some_and(|plain| room.bypass.iter().any(|rule| path::bypasses(rule, plain)));
            return if passes { Guarded::Bypass(room) } else { Guarded::Room(room) };
        }
        Guarded::Nobody(on_host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::scripts::Stock;

    fn live(stock: Stock) -> Live {
        Live {
            shown: Shown {
                stock: Some(Stock { known: true, ..stock }),
                ..Shown::default()
            },
            known: true,
            store_up: true,
            at_once: false,
        }
    }

    /// An answer that is late does not make the store's clock go back; a clock that was set is followed, either way.
    #[test]
    fn late_answers_do_not_turn_the_clock_back() {
        let skew = Skew::default();
        let now = |learned: &[i64]| {
            learned.iter().for_each(|ms| skew.learn(*ms));
            skew.best_ms.load(Relaxed)
        };
        assert_eq!(now(&[-3, -1, -40, -2, -300]), -1);
        assert_eq!(now(&[-20; Skew::LAST]), -20, "it drifts");
        assert_eq!(now(&[5_000]), 5_000);
        assert_eq!(now(&[-5_000]), -5_000);
    }

    /// CASE 106: a line that begins anew has a frontier of its own, and news of the old line change nothing any more.
    #[test]
    fn a_new_epoch_begins_with_its_own_frontier() {
        let settings = crate::config::parse(
            "[rooms.r]\npaths = [\"/\"]\nupstream = \"http://127.0.0.1:1\"\non_store_loss = \"hold\"\n",
            std::path::Path::new("w.toml"),
        );
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _inside = runtime.enter();
        let options = crate::store::StoreOptions {
            call_timeout: std::time::Duration::from_secs(1),
            connect_timeout: std::time::Duration::from_secs(1),
        };
        let store = crate::store::Store::open("redis://127.0.0.1:1/", Clock::system(), options).unwrap();
        let room = Room::new(settings.unwrap().rooms[0].clone(), store.room("r"), Clock::system());
        room.advance(5, 100);
        room.advance(5, 90);
        assert_eq!(room.frontier(), 100);
        room.advance(6, 0);
        room.advance(5, 200);
        assert_eq!(room.frontier(), 0);
        room.advance(6, 3);
        assert_eq!(room.frontier(), 3);
    }

    /// CASE 115: sold out and all held are two different things, and neither is a pause.
    #[test]
    fn the_door_says_what_is_true() {
        let stock = |free, held, sold| {
            live(Stock {
                stock: free + held + sold,
                free,
                held,
                sold,
                known: true,
            })
        };
        assert_eq!(door(&stock(1, 0, 9), 5), Door::Open);
        assert_eq!(door(&stock(0, 1, 9), 5), Door::AllHeld);
        assert_eq!(door(&stock(0, 0, 10), 5), Door::SoldOut);
        let with = |change: fn(&mut Live)| {
            let mut live = stock(1, 0, 0);
            change(&mut live);
            door(&live, 5)
        };
        assert_eq!(with(|live| live.shown.paused = true), Door::Paused);
        assert_eq!(with(|live| live.shown.opens_at_ms = 6), Door::Countdown);
        assert_eq!(with(|live| live.shown.opens_at_ms = 5), Door::Open);
        assert_eq!(with(|live| live.shown.closes_at_ms = 5), Door::Closed);
        assert_eq!(with(|live| live.shown.shut_until_ms = 6), Door::Paused);
        assert_eq!(with(|live| live.store_up = false), Door::Delayed);
        let mut lost = stock(0, 0, 10);
        lost.store_up = false;
        assert_eq!(door(&lost, 5), Door::SoldOut, "sold out is answered without the store");
        if let Some(stock) = &mut lost.shown.stock {
            stock.known = false;
        }
        lost.store_up = true;
        assert_eq!(door(&lost, 5), Door::Paused, "a count that was lost is not a sold-out");
    }
}
