//! A pass over the streams: the called first, then whoever is due.
//!
//! Those that are due are told in bites, and a thread is given the next bite when it has carried the one before: so nothing piles up in front of
//! requests, and a pass over many is as long as it must be. What is urgent does not wait for its end. Whoever is called while it lasts is told between
//! two bites, and when there is nothing more to wait for it begins again with that.

use std::ops::Bound;
use std::sync::Arc;

use super::here::{Group, Key, Listener, Look};
use super::wakes::Wakes;
use super::{BITE, Feed};
use crate::clock::{UnixMs, millis};
use crate::response::view::View;
use crate::waiting::seat::{Message, Seat};
use crate::waiting::sight::Sight;

/// A stream that was told nothing for so long gets a sign of life, at the latest.
const KEEP_ALIVE_MS: u64 = 15_000;
/// Numbers are told this often near the door, and this often at the far end.
const UPDATE_MS: (u64, u64) = (1_000, 15_000);
/// How often numbers are told for each second of the wait: fifty times before the turn, if they change so often.
const UPDATE_MS_PER_S: u64 = 20;
/// The same for each visitor ahead, while nobody knows the wait.
const UPDATE_MS_PER_VISITOR: u64 = 5;

/// One pass: what it sees, and what it has said last.
pub(super) struct Pass {
    pub(super) sight: Sight,
    pub(super) look: Look,
    pub(super) wakes: Wakes,
    last: Option<(View, Message)>,
}

impl Pass {
    pub(super) fn new(sight: Sight, look: Look) -> Self {
        Self {
            sight,
            look,
            wakes: Wakes::default(),
            last: None,
        }
    }

    /// Tells a stream. What many are told is written once.
    pub(super) fn tell(&mut self, seat: &Arc<Seat>, view: View) {
        let message = match &self.last {
            Some((last, message)) if *last == view => message.clone(),
            _ => Message::new(&view),
        };
        seat.put(&view, message.clone());
        self.last = Some((view, message));
        self.wakes.add(Arc::clone(seat));
    }

    /// Gives a stream that has been quiet for too long a sign of life; when it is due again.
    pub(super) fn keep_alive(&mut self, seat: &Arc<Seat>) -> UnixMs {
        let now_ms = self.sight.now_ms;
        let patience_ms = spread(seat, KEEP_ALIVE_MS);
        let due_ms = seat.told_ms() + patience_ms;
        if due_ms > now_ms {
            return due_ms;
        }
        seat.keep_alive(now_ms);
        self.wakes.add(Arc::clone(seat));
        now_ms + patience_ms
    }
}

impl Feed {
    /// Makes a pass whenever there may be something to tell; ends with whoever runs it.
    pub async fn passes(&self) {
        loop {
            self.news.notified().await;
            self.pass().await;
        }
    }

    /// There may be something to tell.
    pub fn look(&self) {
        self.news.notify_one();
    }

    /// One pass.
    pub async fn pass(&self) {
        if !self.in_the_line_of_now().await {
            return;
        }
        loop {
            let sight = Sight::of(&self.room);
            let look = self.here().look_again(&sight);
            let mut pass = Pass::new(sight, look.unwrap_or(Look::Due));
            self.call(&mut pass);
            pass.wakes.go().await;
            let over = look.is_none() || self.go_over(&mut pass).await;
            pass.wakes.settled().await;
            if over {
                return;
            }
        }
    }

    /// Looks at all who are due. False: there is nothing more to wait for, which all must hear now.
    async fn go_over(&self, pass: &mut Pass) -> bool {
        let mut last: Option<Key> = None;
        loop {
            let from = last.map_or(Bound::Unbounded, Bound::Excluded);
            let (bite, end) = self.due(Group::Waiting, pass, from);
            last = end;
            let next = bite.into_iter().map(|(key, seat)| (key, self.update(pass, &seat))).collect();
            self.due_again(Group::Waiting, next);
            pass.wakes.go().await;
            let now = Sight::of(&self.room);
            if now.is_final() && now.face != pass.sight.face {
                return false;
            }
            let mut called = Pass::new(now, Look::Due);
            self.call(&mut called);
            called.wakes.go().await;
            if last.is_none() {
                break;
            }
            tokio::task::yield_now().await;
        }
        self.pass_over_the_rest(pass).await;
        true
    }

    /// The next of a group that are due, and where to go on; none: that was the end.
    pub(super) fn due(&self, group: Group, pass: &Pass, from: Bound<Key>) -> (Vec<(Key, Arc<Seat>)>, Option<Key>) {
        let mut here = self.here();
        let all = here.group(group).range((from, Bound::Unbounded)).take(BITE);
        let (mut due, mut seen, mut last) = (Vec::new(), 0, None);
        for (key, listener) in all {
            (seen, last) = (seen + 1, Some(*key));
            if pass.look != Look::Due || listener.due_ms <= pass.sight.now_ms {
                due.push((*key, Arc::clone(&listener.seat)));
            }
        }
        (due, last.filter(|_| seen == BITE))
    }

    /// Notes when these are due again.
    pub(super) fn due_again(&self, group: Group, next: Vec<(Key, UnixMs)>) {
        let mut here = self.here();
        let group = here.group(group);
        for (key, due_ms) in next {
            if let Some(listener) = group.get_mut(&key) {
                listener.due_ms = due_ms;
            }
        }
    }

    /// Tells those whose place the frontier has reached.
    fn call(&self, pass: &mut Pass) {
        let frontier = self.room.frontier();
        let mut here = self.here();
        if here.waiting.first_key_value().is_none_or(|((place, _), _)| *place > frontier) {
            return;
        }
        let rest = here.waiting.split_off(&(frontier + 1, 0));
        let called = std::mem::replace(&mut here.waiting, rest);
        let view = pass.sight.turn(pass.sight.now_ms + millis(self.room.settings().turn_ttl));
        for Listener { seat, .. } in called.into_values() {
            seat.hold_turn(view.turn_until_ms.unwrap_or(0));
            pass.tell(&seat, view.clone());
            here.seat(Group::Turned, seat);
        }
    }

    /// Tells one waiting stream its number, if there is news for it; when it is due again.
    pub(super) fn update(&self, pass: &mut Pass, seat: &Arc<Seat>) -> UnixMs {
        let (place, now_ms) = (seat.place(), pass.sight.now_ms);
        let mut view = pass.sight.waiting(&self.line, (place > 0).then_some(place));
        let before = seat.ahead();
        // Never worse than before, whatever a count of another moment says.
        view.ahead = view.ahead.map(|ahead| ahead.min(before));
        let every_ms = spread(seat, every_ms(&view));
        let quiet_ms = now_ms.saturating_sub(seat.told_ms());
        let news = view.ahead.is_some_and(|ahead| ahead != before) && quiet_ms >= every_ms;
        if pass.look == Look::Changed || news || !seat.was_told(&view) {
            pass.tell(seat, view);
            return now_ms + every_ms;
        }
        let alive_ms = pass.keep_alive(seat);
        // A number that has not changed is looked at again soon, so that the news of it is no older than a quarter of what it may be.
        let again_ms = now_ms + (every_ms / 4).max(UPDATE_MS.0);
        (seat.told_ms() + every_ms).max(again_ms).min(alive_ms)
    }
}

/// How often somebody who sees this is told a number.
fn every_ms(view: &View) -> u64 {
    let by_wait = view.wait_low_s.map(|low_s| low_s.saturating_mul(UPDATE_MS_PER_S));
    let by_number = view.ahead.map(|ahead| ahead.saturating_mul(UPDATE_MS_PER_VISITOR));
    by_wait.or(by_number).unwrap_or(0).clamp(UPDATE_MS.0, UPDATE_MS.1)
}

/// Three quarters of a time to all of it, by stream: whoever was told at one moment is not told at one moment ever after.
fn spread(seat: &Seat, ms: u64) -> u64 {
    let part = seat.serial.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56;
    ms * 3 / 4 + ms / 4 * part / 255
}
