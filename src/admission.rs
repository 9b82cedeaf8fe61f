//! The tick of a room: admit, learn, sweep, tell.
//!
//! Every gateway runs one such task per room, and none leads: the scripts make the rate exact over all of them. The tick's own answer carries the
//! frontier and the room's version, so a gateway whose subscription has died is a tick behind, not lost. News only make it quicker.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::mpsc::Receiver;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::fault::StoreFault;
use crate::gateway::Gateway;
use crate::peers;
use crate::queue::positions::Positions;
use crate::queue::seed;
use crate::room::Door;
use crate::store::News;
use crate::store::scripts::{Presence, Stock, Ticked};
use crate::waiting::hall::Hall;

/// How often people are called.
const TICK: Duration = Duration::from_millis(100);
/// How often positions are counted, what is over is swept, and presence is looked at.
const SECOND: Duration = Duration::from_secs(1);
/// A change of the room that no news told is read after this at the latest.
const READ_WITHIN: Duration = Duration::from_millis(250);
/// Batches of one sweep at most; the rest waits for the next second.
const MAX_SWEEPS: usize = 8;
/// Changes of presence told to the store at once.
const DEPARTURES: usize = 500;
/// Limits and tokens are tidied this often.
const TIDY: Duration = Duration::from_secs(5);

/// Runs a room until the gateway stops, and then says goodbye to its streams; or until the room itself ends, and then tells them so.
pub async fn run(hall: Arc<Hall>, mut news: Receiver<News>, draining: CancellationToken, end: CancellationToken) {
    let mut rounds = Rounds {
        hall,
        read_at: None,
        second_at: None,
        greeted_at: None,
        complained: false,
    };
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let feed = Arc::clone(&rounds.hall.feed);
    let round = async {
        loop {
            tokio::select! {
                _ = ticks.tick() => rounds.tick().await,
                Some(news) = news.recv() => rounds.hear(news).await,
            }
            feed.look();
        }
    };
    // Side by side: what happens while many are being told is heard at once.
    tokio::select! {
        () = end.cancelled() => {}
        () = round => {}
        () = feed.passes() => {}
    }
    if draining.is_cancelled() {
        feed.say_goodbye().await;
    } else {
        feed.close().await;
    }
    // Should nobody hear this, the others forget it in a few seconds.
    let _unheard = rounds.hall.room.store.greet(rounds.hall.peers.name(), "").await;
}

/// Keeps limits, remembered admissions and keys tidy until the gateway stops.
pub async fn tidy(live: Arc<ArcSwap<Gateway>>, clock: Clock, draining: CancellationToken) {
    let mut ticks = interval(TIDY);
    loop {
        tokio::select! {
            () = draining.cancelled() => return,
            _ = ticks.tick() => {}
        }
        let house = Arc::clone(&live.load().house);
        let (keeper, now_ms) = (Arc::clone(&house), clock.now_ms());
        let tidied = tokio::task::spawn_blocking(move || {
            keeper.limits.prune();
            keeper.tokens.prune(now_ms);
            keeper.tokens.reload()
        });
        match tidied.await {
            Ok(Ok(true)) => tracing::info!("the key file changed, and was read again"),
            Ok(Err(fault)) => tracing::error!(%fault, "the key file cannot be read again; the keys in use stay in use"),
            Ok(Ok(false)) | Err(_) => {}
        }
        for (limit, keys) in house.limits.keys() {
            house.metrics.limiter_keys(limit, keys);
        }
    }
}

struct Rounds {
    hall: Arc<Hall>,
    read_at: Option<Instant>,
    second_at: Option<Instant>,
    greeted_at: Option<Instant>,
    complained: bool,
}

impl Rounds {
    async fn tick(&mut self) {
        let hall = Arc::clone(&self.hall);
        match self.admit().await {
            Ok(()) => self.complained = false,
            Err(fault) => {
                hall.room.learn_reach(false, false);
                if !self.complained {
                    tracing::warn!(room = hall.room.id, %fault, "nobody is called while the store cannot be asked");
                    self.complained = true;
                }
            }
        }
        if passed(&mut self.second_at, SECOND) {
            self.each_second().await;
        }
    }

    async fn admit(&mut self) -> Result<(), StoreFault> {
        let hall = Arc::clone(&self.hall);
        let Some(ticked) = hall.room.store.admit(&hall.line.terms()).await? else {
            seed(&hall.room).await?;
            return self.read().await;
        };
        self.learn(ticked).await
    }

    async fn learn(&mut self, ticked: Ticked) -> Result<(), StoreFault> {
        let hall = Arc::clone(&self.hall);
        if ticked.called > 0 {
            hall.metrics.admitted(ticked.called);
        }
        let room = &hall.room;
        room.learn_time(ticked.now_ms);
        room.advance(ticked.epoch, ticked.frontier);
        let known = {
            let live = room.live();
            live.known && live.shown.version == ticked.version && live.shown.epoch == ticked.epoch
        };
        let unread = !room.live().known || room.live().shown.epoch != ticked.epoch;
        if unread || (!known && passed(&mut self.read_at, READ_WITHIN)) {
            self.read().await?;
        }
        room.learn_reach(true, ticked.at_once);
        Ok(())
    }

    /// Reads the whole room.
    async fn read(&mut self) -> Result<(), StoreFault> {
        let room = &self.hall.room;
        if let Some(shown) = room.store.show().await? {
            self.hall.metrics.stock_adds_up(shown.stock.is_none_or(adds_up));
            room.learn(shown);
        }
        self.read_at = Some(Instant::now());
        Ok(())
    }

    async fn hear(&mut self, news: News) {
        let hall = Arc::clone(&self.hall);
        match news {
            News::Frontier { epoch, frontier, late } => {
                hall.room.advance(epoch, frontier);
                hall.feed.called_late(&late);
            }
            News::Changed => self.read_again().await,
            News::Subscribed => {
                self.read_again().await;
                self.report_back(hall.feed.all_here()).await;
            }
            News::Away(tickets) => self.report_back(hall.feed.here_after_all(&tickets)).await,
        }
    }

    async fn read_again(&mut self) {
        if let Err(fault) = self.read().await {
            let room = &self.hall.room.id;
            tracing::debug!(room, %fault, "a change could not be read; the next tick reads it");
        }
    }

    async fn report_back(&self, back: Vec<Presence>) {
        for batch in back.chunks(DEPARTURES) {
            if let Err(fault) = self.hall.room.store.depart(&self.hall.line.terms(), batch).await {
                let room = &self.hall.room.id;
                tracing::warn!(room, %fault, "visitors who are here could not be reported back");
                return;
            }
        }
    }

    async fn each_second(&mut self) {
        let hall = Arc::clone(&self.hall);
        if !hall.room.live().store_up {
            return;
        }
        if passed(&mut self.greeted_at, peers::EVERY)
            && let Err(fault) = greet(&hall).await
        {
            tracing::debug!(room = hall.room.id, %fault, "the other gateways could not be asked");
        }
        if let Err(fault) = self.count_and_sweep().await {
            tracing::warn!(room = hall.room.id, %fault, "the line could not be counted or swept this second");
        }
        hall.line.note_pace(hall.room.door() == Door::Open);
    }

    async fn count_and_sweep(&mut self) -> Result<(), StoreFault> {
        let hall = Arc::clone(&self.hall);
        let (store, terms) = (&hall.room.store, hall.line.terms());
        if let Some(measured) = store.measure().await? {
            hall.line.count(Positions::new(measured));
        }
        for _batch in 0..MAX_SWEEPS {
            let swept = store.sweep(&terms).await?;
            if swept.lapsed + swept.abandoned + swept.expired > 0 {
                tracing::debug!(
                    room = hall.room.id,
                    lapsed = swept.lapsed,
                    abandoned = swept.abandoned,
                    expired = swept.expired,
                    "swept"
                );
            }
            if !swept.more {
                break;
            }
        }
        let away = hall.feed.gone_quiet();
        for batch in away.chunks(DEPARTURES) {
            store.depart(&terms, batch).await?;
        }
        Ok(())
    }
}

/// Says to the other gateways of the room that this one is here, and hears of them.
async fn greet(hall: &Hall) -> Result<(), StoreFault> {
    let words = hall.peers.words(&hall.room.settings());
    let greetings = hall.room.store.greet(hall.peers.name(), &words).await?;
    hall.peers.hear(&hall.room.id, greetings);
    Ok(())
}

fn adds_up(stock: Stock) -> bool {
    !stock.known || stock.free + stock.held + stock.sold == stock.stock
}

/// Whether so much time has passed since the last time this said yes.
fn passed(last: &mut Option<Instant>, every: Duration) -> bool {
    let now = Instant::now();
    let due = last.is_none_or(|last| now.duration_since(last) >= every);
    if due {
        *last = Some(now);
    }
    due
}
