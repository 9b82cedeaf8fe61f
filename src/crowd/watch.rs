//! Watching the room over the operators' API, ten times a second: does the stock add up, and how many are called?

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode};
use serde::Deserialize;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use crate::config::Rate;
use crate::shop::ask::Asker;

/// How long a gateway may take until it can answer for its room.
const NOT_THERE_YET: Duration = Duration::from_secs(5);
/// It is asked again so much later.
const AGAIN_AFTER: Duration = Duration::from_millis(100);

/// A room, as far as it is looked at.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(crate) struct RoomLook {
    pub(crate) stock: Option<StockLook>,
    pub(crate) called_total: u64,
    pub(crate) now_ms: u64,
    #[serde(default)]
    pub(crate) rate_per_s: f64,
}

/// Its stock.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(crate) struct StockLook {
    pub(crate) stock: u64,
    pub(crate) free: u64,
    pub(crate) held: u64,
    pub(crate) sold: u64,
}

/// All looks taken together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Looks {
    /// Looks that were answered.
    pub(crate) looks: u64,
    /// Looks that were not.
    pub(crate) unanswered: u64,
    /// Looks in which `free + held + sold` was not the stock.
    pub(crate) uneven: u64,
    /// Sold, at the last look.
    pub(crate) sold: u64,
    /// The first look at which everything was sold, by the store's clock.
    pub(crate) sold_out_at_ms: Option<u64>,
    /// How many were called, and when.
    pub(crate) calls: Calls,
    /// The last look.
    pub(crate) last: RoomLook,
    /// The highest rate that was seen.
    pub(crate) rate: Option<Rate>,
}

impl Looks {
    fn take(&mut self, room: RoomLook) {
        self.looks += 1;
        self.last = room;
        self.rate = self.rate.max(Some(rate_of(room.rate_per_s)));
        let free = room.stock.is_some_and(|stock| stock.free > 0);
        self.calls.note(room.now_ms, room.called_total, free);
        let Some(stock) = room.stock else { return };
        self.sold = stock.sold;
        if stock.free + stock.held + stock.sold != stock.stock {
            self.uneven += 1;
        }
        if stock.sold == stock.stock && self.sold_out_at_ms.is_none() {
            self.sold_out_at_ms = Some(room.now_ms);
        }
    }
}

/// How many had been called at which time of the store's clock.
#[derive(Clone, Debug, Default)]
pub(crate) struct Calls {
    looks: Vec<(u64, u64)>,
    /// Milliseconds and calls between looks that both saw free stock, without what had been saved up before the first call.
    open: (u64, u64),
    was_free: bool,
}

impl Calls {
    /// One look, and whether there was free stock.
    pub(crate) fn note(&mut self, now_ms: u64, called_total: u64, free: bool) {
        let before = self.looks.last().copied();
        if before.is_some_and(|(last_ms, _)| now_ms <= last_ms) {
            return;
        }
        if let Some((last_ms, last)) = before.filter(|(_, last)| free && self.was_free && *last > 0) {
            self.open.0 += now_ms - last_ms;
            self.open.1 += called_total.saturating_sub(last);
        }
        self.was_free = free;
        self.looks.push((now_ms, called_total));
    }

    /// Called, from the first look to the last.
    pub(crate) fn called(&self) -> u64 {
        self.looks.last().map_or(0, |(_, called)| *called)
    }

    /// From each look to the last one within a second of it; or to the next, where that is further away: (milliseconds, called).
    fn seconds(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let mut end = 0;
        self.looks.iter().enumerate().filter_map(move |(start, (from_ms, before))| {
            end = end.max(start + 1);
            while self.looks.get(end + 1).is_some_and(|(at_ms, _)| at_ms - from_ms <= 1000) {
                end += 1;
            }
            let (to_ms, after) = self.looks.get(end)?;
            Some((to_ms - from_ms, after.saturating_sub(*before)))
        })
    }

    /// The most that were called in any second looked at.
    pub(crate) fn fullest(&self) -> u64 {
        self.seconds()
            .filter(|(length_ms, _)| *length_ms <= 1000)
            .map(|(_, called)| called)
            .max()
            .unwrap_or(0)
    }

    /// Seconds in which more were called than the rate, 1 % and a burst of one second allow. A look that came late makes a longer stretch; it is
    /// held against the rate for as long as it was.
    pub(crate) fn too_fast(&self, rate: Rate) -> usize {
        let per_second = u128::from(rate.milli());
        let burst = per_second.max(1_000) * 1_000;
        let allowed = |length_ms: u64| per_second * u128::from(length_ms.max(1000)) * 101 / 100 + burst;
        self.seconds()
            .filter(|(length_ms, called)| u128::from(*called) * 1_000_000 > allowed(*length_ms))
            .count()
    }

    /// Called per second while there was free stock: without it, nobody is called.
    #[allow(clippy::cast_precision_loss, reason = "counts and milliseconds of one run, far below 2^52")]
    pub(crate) fn mean_per_second(&self) -> f64 {
        let (length_ms, called) = self.open;
        if length_ms == 0 {
            0.0
        } else {
            called as f64 * 1000.0 / length_ms as f64
        }
    }
}

/// A task that looks, until dropped.
#[derive(Debug)]
pub(crate) struct Watch {
    looks: Arc<Mutex<Looks>>,
    ops: Asker,
    room: String,
    task: JoinHandle<()>,
}

impl Watch {
    /// Begins to look.
    pub(crate) fn begin(ops: Asker, room: &str) -> Self {
        let looks = Arc::new(Mutex::new(Looks::default()));
        let into = Arc::clone(&looks);
        let (asker, name) = (ops.clone(), room.to_owned());
        let task = tokio::spawn(async move {
            let mut ticks = interval(Duration::from_millis(100));
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                let room = look(&asker, &name).await;
                let mut looks = lock(&into);
                match room {
                    Ok(room) => looks.take(room),
                    Err(_) => looks.unanswered += 1,
                }
            }
        });
        Self {
            looks,
            ops,
            room: room.to_owned(),
            task,
        }
    }

    /// What has been seen so far.
    pub(crate) fn looks(&self) -> Looks {
        lock(&self.looks).clone()
    }

    /// The last look, and how many were answered.
    pub(crate) fn last(&self) -> (RoomLook, u64) {
        let looks = lock(&self.looks);
        (looks.last, looks.looks)
    }

    /// Looks once more, so that what just happened is in, and ends.
    pub(crate) async fn end(self) -> Looks {
        self.task.abort();
        let mut looks = self.looks();
        if let Ok(room) = look(&self.ops, &self.room).await {
            looks.take(room);
        }
        looks
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rate as the gateway writes it, far below 2^53"
)]
fn rate_of(per_second: f64) -> Rate {
    Rate::from_milli((per_second.max(0.0) * 1000.0).round() as u64)
}

fn lock(looks: &Mutex<Looks>) -> MutexGuard<'_, Looks> {
    looks.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads the room for the first time: a gateway that has just started, or whose store is slow to answer, is asked again for a while.
pub(crate) async fn first_look(ops: &Asker, room: &str) -> Result<RoomLook, String> {
    let asking = async {
        loop {
            let (status, body) = ask(ops, room).await?;
            if status != StatusCode::SERVICE_UNAVAILABLE {
                return read(status, &body);
            }
            sleep(AGAIN_AFTER).await;
        }
    };
    match timeout(NOT_THERE_YET, asking).await {
        Ok(looked) => looked,
        Err(_) => look(ops, room).await,
    }
}

/// Reads the room once.
pub(crate) async fn look(ops: &Asker, room: &str) -> Result<RoomLook, String> {
    let (status, body) = ask(ops, room).await?;
    read(status, &body)
}

async fn ask(ops: &Asker, room: &str) -> Result<(StatusCode, Bytes), String> {
    ops.ask(Method::GET, &format!("/v1/rooms/{room}"), "").await
}

fn read(status: StatusCode, body: &[u8]) -> Result<RoomLook, String> {
    if status != StatusCode::OK {
        return Err(format!("the room was answered {status}"));
    }
    serde_json::from_slice(body).map_err(|unreadable| format!("the room cannot be read: {unreadable}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(looks: &[(u64, u64)]) -> Calls {
        let mut calls = Calls::default();
        looks.iter().for_each(|(now_ms, called)| calls.note(*now_ms, *called, true));
        calls
    }

    #[test]
    fn a_burst_and_the_rate_are_allowed_in_one_second_and_no_more() {
        let rate = Rate::from_milli(200_000);
        let allowed = calls(&[(0, 0), (100, 200), (500, 300), (1_000, 402), (2_000, 602)]);
        assert_eq!((allowed.fullest(), allowed.too_fast(rate)), (402, 0));
        let too_many = calls(&[(0, 0), (100, 200), (500, 300), (1_000, 403)]);
        assert_eq!((too_many.fullest(), too_many.too_fast(rate)), (403, 1));
    }

    #[test]
    fn a_late_look_is_held_against_its_own_length() {
        let rate = Rate::from_milli(200_000);
        assert_eq!(calls(&[(0, 0), (5_000, 1_210)]).too_fast(rate), 0);
        assert_eq!(calls(&[(0, 0), (5_000, 1_211)]).too_fast(rate), 1);
    }

    #[test]
    fn a_slow_rate_may_call_one_at_once() {
        let rate = Rate::from_milli(333);
        assert_eq!(calls(&[(0, 0), (100, 1), (3_100, 2)]).too_fast(rate), 0);
        assert_eq!(calls(&[(0, 0), (100, 2)]).too_fast(rate), 1);
    }

    #[test]
    fn the_mean_is_taken_without_the_first_burst_and_while_there_is_stock() {
        let mut steady = calls(&[(0, 0), (100, 200), (1_100, 400), (2_100, 600)]);
        steady.note(9_000, 600, false);
        steady.note(10_000, 650, true);
        assert!((steady.mean_per_second() - 200.0).abs() < f64::EPSILON);
        assert!(calls(&[(0, 0)]).mean_per_second() < f64::EPSILON);
    }

    #[test]
    fn looks_notice_stock_that_does_not_add_up() {
        let mut looks = Looks::default();
        let room = |free, held, sold| RoomLook {
            stock: Some(StockLook {
                stock: 100,
                free,
                held,
                sold,
            }),
            now_ms: 5,
            ..RoomLook::default()
        };
        looks.take(room(90, 10, 0));
        looks.take(room(0, 0, 100));
        assert_eq!((looks.uneven, looks.sold_out_at_ms), (0, Some(5)));
        looks.take(room(90, 11, 0));
        assert_eq!(looks.uneven, 1);
    }
}
