//! Finding out where somebody stands, when a stream cannot be told from what this gateway knows.
//!
//! That is the store's to say, and it may take its time; nobody else is kept waiting for it.

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Relaxed, Release};

use super::{BITE, Feed, KEEP_ALIVE_MS};
use crate::store::scripts::Standing;
use crate::waiting::seat::{Message, Seat};
use crate::waiting::sight::Sight;

/// Streams looked up in one go at most: ten groups for the store.
const MAX_LOOKED_UP: usize = 5_000;

impl Feed {
    /// After the store lost the line, everybody here is put back at his place before anybody is told anything. False while that fails.
    pub(super) async fn in_the_line_of_now(&self) -> bool {
        let (known, epoch) = {
            let live = self.room.live();
            (live.known, live.shown.epoch)
        };
        let mut seats: Vec<Arc<Seat>> = {
            let mut here = self.here();
            if !known || here.epoch == epoch {
                return true;
            }
            if here.epoch == 0 {
                here.epoch = epoch;
                return true;
            }
            here.turned
                .values()
                .chain(here.waiting.values())
                .chain(here.unsettled.values())
                .cloned()
                .collect()
        };
        seats.sort_by_key(|seat| seat.place.load(Relaxed));
        tracing::warn!(
            room = self.room.id,
            epoch,
            streams = seats.len(),
            "a new line: those who wait here are put back"
        );
        for bite in seats.chunks(BITE) {
            let back = futures_util::future::join_all(bite.iter().map(|seat| self.look_up(Arc::clone(seat)))).await;
            if back.contains(&false) {
                return false;
            }
        }
        self.here().epoch = epoch;
        true
    }

    /// Those with a turn are told of changes, and those whose standing is not known are looked up, beside the pass: it does not wait for them.
    pub(super) fn pass_over_the_rest(&self, sight: &Sight, changed: bool) {
        let (turned, unsettled): (Vec<Arc<Seat>>, Vec<Arc<Seat>>) = {
            let here = self.here();
            (here.turned.values().cloned().collect(), here.unsettled.values().cloned().collect())
        };
        for seat in &unsettled {
            self.update(sight, seat, changed);
        }
        let mut lookups = unsettled;
        for seat in turned {
            let until_ms = seat.turn_until_ms.load(Relaxed);
            if until_ms <= sight.now_ms {
                lookups.push(seat);
            } else if changed && !seat.was_told(&sight.turn(until_ms)) {
                let view = sight.turn(until_ms);
                seat.tell(&view, Message::new(&view));
            } else if sight.now_ms.saturating_sub(seat.told_ms.load(Relaxed)) >= KEEP_ALIVE_MS {
                seat.keep_alive(sight.now_ms);
            }
        }
        self.look_up_beside(lookups);
    }

    /// One lookup at a time per room; who is not in it is in the next.
    fn look_up_beside(&self, mut seats: Vec<Arc<Seat>>) {
        seats.retain(|seat| !seat.is_closed());
        let Some(me) = self.me.upgrade().filter(|_| !seats.is_empty()) else {
            return;
        };
        if self.looking.swap(true, AcqRel) {
            return;
        }
        seats.sort_by_key(|seat| seat.serial);
        seats.truncate(MAX_LOOKED_UP);
        tokio::spawn(async move {
            let lookups = seats.into_iter().map(|seat| me.look_up(seat));
            futures_util::future::join_all(lookups).await;
            me.looking.store(false, Release);
        });
    }

    /// Asks the store where somebody stands, and seats and tells them accordingly. All lookups of a pass go in one group.
    /// False when the store did not say.
    async fn look_up(&self, seat: Arc<Seat>) -> bool {
        let joining = crate::waiting::joining(&seat.ticket, seat.place.load(Relaxed));
        let standing = self.line.join(joining).await;
        let sight = Sight::of(&self.room);
        let Ok(stood) = standing else {
            self.update(&sight, &seat, false);
            return false;
        };
        let mut view = sight.standing(&self.line, stood.standing);
        view.ahead = view.ahead.map(|ahead| ahead.min(seat.ahead.load(Relaxed)));
        let mut here = self.here();
        here.waiting.remove(&(seat.place.load(Relaxed), seat.serial));
        here.turned.remove(&seat.serial);
        here.unsettled.remove(&seat.serial);
        if seat.is_closed() {
            return true;
        }
        match stood.standing {
            Standing::Waiting { place, behind } => {
                seat.place.store(place, Relaxed);
                if behind {
                    here.unsettled.insert(seat.serial, Arc::clone(&seat));
                } else {
                    here.waiting.insert((place, seat.serial), Arc::clone(&seat));
                }
                if let Some(guest) = here.present.get_mut(&seat.ticket) {
                    guest.place = place;
                }
            }
            Standing::Called { until_ms } | Standing::Admitted { until_ms } => {
                seat.turn_until_ms.store(until_ms, Relaxed);
                here.turned.insert(seat.serial, Arc::clone(&seat));
            }
            Standing::MustWait => drop(here.unsettled.insert(seat.serial, Arc::clone(&seat))),
            Standing::Gone(_) => {}
        }
        drop(here);
        if seat.was_told(&view) && matches!(stood.standing, Standing::Waiting { .. } | Standing::MustWait) {
            self.update(&sight, &seat, false);
        } else {
            seat.tell(&view, Message::new(&view));
        }
        true
    }
}
