//! The line of a room, seen from one gateway: join, redeem, depart; place → position; waiting time.
//!
//! Joins and changes of presence go to the store in groups. Positions and waits are worked out here, from a few numbers per room.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::clock::{UnixMs, millis};
use crate::config;
use crate::fault::StoreFault;
use crate::room::Room;
use crate::store::scripts::{Epoch, Joined, Joining, Place, Presence, Redeemed, Seed, Standing, Terms};
use crate::telemetry::Metrics;

pub mod batch;
pub mod pace;
pub mod positions;

use batch::{Batcher, Batches, Caller, Patience, answer_all, batches};
use pace::Pace;
use positions::Positions;

/// Tickets in one `join` or `depart` call at most: long enough to be cheap, short enough not to hold the store up.
const MAX_BATCH: usize = 500;
/// How long the answer to one visitor may wait for its batch; after that it is told that things are slow, and asks again.
const PATIENCE: Duration = Duration::from_secs(3);

/// Where a ticket stands, and the line around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stood {
    /// The epoch of the line.
    pub epoch: Epoch,
    /// Where the ticket stands.
    pub standing: Standing,
}

/// The line of a room, seen from this gateway.
#[derive(Debug)]
pub struct Line {
    room: Arc<Room>,
    joins: Batcher<Joining, Stood>,
    departures: Batcher<Presence, ()>,
    positions: ArcSwap<Positions>,
    pace: Mutex<Pace>,
    metrics: Arc<Metrics>,
}

impl Line {
    /// Begins to carry joins and departures to the store, until `stop`.
    #[must_use]
    pub fn start(room: Arc<Room>, metrics: Arc<Metrics>, stop: CancellationToken, tasks: &TaskTracker) -> Arc<Self> {
        let (joins, joining) = batches(MAX_BATCH);
        let (departures, departing) = batches(MAX_BATCH);
        let line = Arc::new(Self {
            room,
            joins,
            departures,
            positions: ArcSwap::default(),
            pace: Mutex::default(),
            metrics,
        });
        tasks.spawn(until(stop.clone(), carry_joins(Arc::clone(&line), joining)));
        tasks.spawn(until(stop, carry_departures(Arc::clone(&line), departing)));
        line
    }

    /// Takes a place, keeps the one there is, or is admitted at once. Whoever came first is asked for first. While the store is behind, newcomers
    /// are told at once to come back.
    ///
    /// # Errors
    /// The store did not answer in time. Asking again with the same ticket is safe.
    pub async fn join(&self, joining: Joining, came_ms: UnixMs) -> Result<Stood, StoreFault> {
        let patience = if joining.place == 0 { Patience::ComesBack } else { Patience::Waits };
        let stood = in_time(self.joins.ask(joining, came_ms, patience)).await;
        if matches!(stood, Err(StoreFault::Full)) {
            self.metrics.join_put_off();
        }
        stood
    }

    /// Whether newcomers are told to come back, because the store cannot keep up.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.joins.is_behind()
    }

    /// How many wait for the next call of `join`.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.joins.waiting()
    }

    /// Where whoever is here and stays stands: asked for however far behind the store is.
    ///
    /// # Errors
    /// The store did not answer in time.
    pub async fn look_up(&self, joining: Joining, came_ms: UnixMs) -> Result<Stood, StoreFault> {
        in_time(self.joins.ask(joining, came_ms, Patience::Waits)).await
    }

    /// Tells the store of a change of presence, with the next group.
    ///
    /// # Errors
    /// The store did not answer in time. A change may be told again.
    pub async fn depart(&self, change: Presence) -> Result<(), StoreFault> {
        in_time(self.departures.ask(change, 0, Patience::Waits)).await
    }

    /// Turns a call into an admission.
    ///
    /// # Errors
    /// The store did not answer. Asking again gives the same admission.
    pub async fn redeem(&self, ticket: &str) -> Result<Redeemed, StoreFault> {
        match self.room.store.redeem(&self.terms(), ticket).await {
            Err(StoreFault::Unknown(_)) => self.room.store.redeem(&self.terms(), ticket).await,
            other => other,
        }
    }

    /// How scripts are told to act.
    #[must_use]
    pub fn terms(&self) -> Terms {
        terms(&self.room.settings())
    }

    /// How many live visitors are ahead of this place. None for a place in a line that has not been counted yet.
    #[must_use]
    pub fn ahead(&self, place: Place) -> Option<u64> {
        let positions = self.positions.load();
        let of_this_line = positions.epoch() > 0 && positions.epoch() == self.room.live().shown.epoch;
        (of_this_line || place <= positions.last()).then(|| positions.ahead(place, self.room.frontier()))
    }

    /// Puts in a new count.
    pub fn count(&self, positions: Positions) {
        self.positions.store(Arc::new(positions));
    }

    /// The wait of somebody with so many ahead, in seconds from low to high.
    #[must_use]
    pub fn wait_s(&self, ahead: u64) -> Option<(u64, u64)> {
        let rate_milli = self.room.live().shown.rate_milli;
        let mut pace = self.pace();
        pace.believe(rate_milli);
        pace.wait_s(ahead)
    }

    /// Notes how the line moved; `open` is whether people are being called.
    pub fn note_pace(&self, open: bool) {
        let live = self.room.live();
        let mut pace = self.pace();
        if open {
            pace.note(live.shown.now_ms, live.shown.called_total, live.shown.rate_milli);
        } else {
            pace.forget();
        }
    }

    fn pace(&self) -> std::sync::MutexGuard<'_, Pace> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a room's settings tell its scripts to act.
#[must_use]
pub fn terms(settings: &config::Room) -> Terms {
    Terms {
        turn_ms: millis(settings.turn_ttl),
        admission_ms: millis(settings.admission_ttl),
        grace_ms: millis(settings.grace),
        memory_ms: millis(settings.memory),
    }
}

/// Makes the room in the store if it is not there. A gateway that knew a line before knows that it was lost.
///
/// # Errors
/// The store did not answer.
pub async fn seed(room: &Room) -> Result<(), StoreFault> {
    let settings = room.settings();
    let lost = room.live().known;
    let seed = Seed {
        rate_milli: settings.rate.milli(),
        cap: settings.cap,
        stock: settings.stock,
        opens_at_ms: settings.opens_at.unwrap_or(0),
        closes_at_ms: settings.closes_at.unwrap_or(0),
        lost_rebuild_ms: lost.then(|| millis(settings.rebuild)),
    };
    let seeded = room.store.seed(&seed).await?;
    if seeded.fresh && lost {
        tracing::error!(
            room = room.id,
            epoch = seeded.epoch,
            "the store lost the line: tickets are being put back, the door stays shut meanwhile"
        );
    } else if seeded.fresh {
        tracing::info!(room = room.id, epoch = seeded.epoch, "a new line begins");
    }
    Ok(())
}

async fn until(stop: CancellationToken, work: impl Future<Output = ()>) {
    let _stopped = stop.run_until_cancelled(work).await;
}

async fn in_time<R>(asking: impl Future<Output = Result<R, StoreFault>>) -> Result<R, StoreFault> {
    tokio::time::timeout(PATIENCE, asking).await.unwrap_or(Err(StoreFault::Full))
}

async fn carry_joins(line: Arc<Line>, mut batches: Batches<Joining, Stood>) {
    loop {
        let (tickets, callers): (Vec<_>, Vec<_>) = batches.next().await.into_iter().unzip();
        let longest = callers.iter().map(Caller::waited).max().unwrap_or_default();
        line.metrics.joined(tickets.len(), longest);
        match join_all(&line, &tickets).await {
            Ok(joined) => {
                line.room.advance(joined.epoch, joined.frontier);
                let epoch = joined.epoch;
                let stood = joined.standings.into_iter().map(|standing| Ok(Stood { epoch, standing }));
                answer_all(callers.into_iter().zip(stood));
            }
            Err(fault) => refuse(callers, &fault),
        }
    }
}

/// One call for all. A lost reply is asked for once more: each ticket finds what it was given.
async fn join_all(line: &Line, tickets: &[Joining]) -> Result<Joined, StoreFault> {
    let store = &line.room.store;
    for _attempt in 0..3 {
        match store.join(&line.terms(), tickets).await {
            Ok(Some(joined)) if joined.standings.len() == tickets.len() => return Ok(joined),
            Ok(Some(joined)) => {
                return Err(StoreFault::Nonsense {
                    script: "join",
                    answer: format!("{} answers to {} tickets", joined.standings.len(), tickets.len()),
                });
            }
            Ok(None) => seed(&line.room).await?,
            Err(StoreFault::Unknown(_)) => {}
            Err(fault) => return Err(fault),
        }
    }
    Err(StoreFault::Away)
}

async fn carry_departures(line: Arc<Line>, mut batches: Batches<Presence, ()>) {
    loop {
        let (changes, callers): (Vec<_>, Vec<_>) = batches.next().await.into_iter().unzip();
        match line.room.store.depart(&line.terms(), &changes).await {
            Ok(()) => answer_all(callers.into_iter().map(|caller| (caller, Ok(())))),
            Err(fault) => refuse(callers, &fault),
        }
    }
}

fn refuse<R: Send + 'static>(callers: Vec<Caller<R>>, fault: &StoreFault) {
    tracing::warn!(%fault, waiting = callers.len(), "the store did not take a group of calls");
    answer_all(callers.into_iter().map(|caller| (caller, Err(StoreFault::Away))));
}
