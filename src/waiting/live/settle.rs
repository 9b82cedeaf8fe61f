//! Finding out where somebody stands, when a stream cannot be told from what this gateway knows.
//!
//! That is the store's to say, and it may take its time; nobody else is kept waiting for it.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Release};

use super::here::{Group, Key, Look};
use super::pass::Pass;
use super::{BITE, Feed};
use crate::clock::UnixMs;
use crate::store::scripts::Standing;
use crate::waiting::seat::Seat;
use crate::waiting::sight::Sight;

/// Streams looked up in one go at most: ten groups for the store.
const MAX_LOOKED_UP: usize = 5_000;
/// How often somebody whose standing is not known is looked up.
const LOOK_UP_MS: u64 = 1_000;

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
            here.all().cloned().collect()
        };
        seats.sort_by_key(|seat| seat.place());
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
    pub(super) async fn pass_over_the_rest(&self, pass: &mut Pass) {
        let mut lookups = Vec::new();
        for group in [Group::Unsettled, Group::Turned] {
            let mut last: Option<Key> = None;
            loop {
                let from = last.map_or(Bound::Unbounded, Bound::Excluded);
                let (bite, end) = self.due(group, pass, from);
                last = end;
                let mut next = Vec::with_capacity(bite.len());
                for (key, seat) in bite {
                    next.push((key, self.tend(group, pass, seat, &mut lookups)));
                }
                self.due_again(group, next);
                pass.wakes.go().await;
                if last.is_none() {
                    break;
                }
            }
        }
        self.look_up_beside(lookups);
    }

    /// Looks at a stream that does not just wait; when it is due again.
    fn tend(&self, group: Group, pass: &mut Pass, seat: Arc<Seat>, lookups: &mut Vec<Arc<Seat>>) -> UnixMs {
        let (now_ms, until_ms) = (pass.sight.now_ms, seat.turn_until_ms());
        let unknown = group == Group::Unsettled;
        if unknown {
            self.update(pass, &seat);
        }
        if unknown || until_ms <= now_ms {
            let room = lookups.len() < MAX_LOOKED_UP;
            if room {
                lookups.push(seat);
            }
            return now_ms + if room { LOOK_UP_MS } else { 0 };
        }
        let view = pass.sight.turn(until_ms);
        if pass.look == Look::Changed && !seat.was_told(&view) {
            pass.tell(&seat, view);
        }
        pass.keep_alive(&seat).min(until_ms)
    }

    /// One lookup at a time per room, in order of arrival; who is not in it is in the next.
    fn look_up_beside(&self, mut seats: Vec<Arc<Seat>>) {
        seats.retain(|seat| !seat.is_closed());
        let Some(me) = self.me.upgrade().filter(|_| !seats.is_empty()) else {
            return;
        };
        if self.looking.swap(true, AcqRel) {
            return;
        }
        tokio::spawn(async move {
            let lookups = seats.into_iter().map(|seat| me.look_up(seat));
            futures_util::future::join_all(lookups).await;
            me.looking.store(false, Release);
        });
    }

    /// Asks the store where somebody stands, and seats and tells them accordingly. All lookups of a pass go in one group.
    /// False when the store did not say.
    async fn look_up(&self, seat: Arc<Seat>) -> bool {
        let joining = crate::waiting::joining(&seat.ticket, seat.place());
        let standing = self.line.look_up(joining, seat.arrived_ms).await;
        let mut pass = Pass::new(Sight::of(&self.room), Look::Due);
        let known = match standing {
            Ok(stood) => {
                self.settle(&mut pass, &seat, stood.standing);
                true
            }
            Err(_) => {
                self.update(&mut pass, &seat);
                false
            }
        };
        pass.wakes.go().await;
        known
    }

    /// Seats a stream where its visitor stands, and tells it.
    fn settle(&self, pass: &mut Pass, seat: &Arc<Seat>, standing: Standing) {
        let mut view = pass.sight.standing(&self.line, standing);
        view.ahead = view.ahead.map(|ahead| ahead.min(seat.ahead()));
        let again_ms = pass.sight.now_ms + LOOK_UP_MS;
        let mut here = self.here();
        here.unseat(seat);
        if seat.is_closed() {
            return;
        }
        match standing {
            Standing::Waiting { place, behind } => {
                seat.move_to(place);
                let group = if behind { Group::Unsettled } else { Group::Waiting };
                here.seat_until(group, Arc::clone(seat), if behind { again_ms } else { 0 });
                if let Some(guest) = here.present.get_mut(&seat.ticket) {
                    guest.place = place;
                }
            }
            Standing::Called { until_ms } | Standing::Admitted { until_ms } => {
                seat.hold_turn(until_ms);
                here.seat(Group::Turned, Arc::clone(seat));
            }
            Standing::MustWait => here.seat_until(Group::Unsettled, Arc::clone(seat), again_ms),
            Standing::Gone(_) => {}
        }
        drop(here);
        if seat.was_told(&view) && matches!(standing, Standing::Waiting { .. } | Standing::MustWait) {
            self.update(pass, seat);
        } else {
            pass.tell(seat, view);
        }
    }
}
