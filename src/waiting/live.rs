//! The feed of a room: who is here, and what each is told.
//!
//! One task per room makes a pass over the streams; nothing runs per stream. Who is called is told at once: seats are ordered by place, so that
//! one look at the frontier finds them. Numbers are told less often the further away somebody is, and only when the number shown would change.
//! The feed also keeps presence: whoever has no stream and has not polled for a while is reported away, once.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

mod settle;

use super::seat::{Message, Seat, Taken};
use super::sight::{Face, Sight};
use crate::clock::{UnixMs, millis};
use crate::queue::Line;
use crate::response::view::{State, View};
use crate::room::Room;
use crate::store::scripts::{Epoch, Place, Presence, Standing};
use crate::token::Ticket;

/// A stream that was told nothing for so long gets a sign of life.
const KEEP_ALIVE_MS: u64 = 15_000;
/// Numbers are told this often near the door, and this often at the far end.
const UPDATE_MS: (u64, u64) = (1_000, 15_000);
/// Streams in one bite of a pass: between bites, requests get their turn.
const BITE: usize = 1_000;

type Key = (Place, u64);

/// Who is here, and what each is told.
#[derive(Debug)]
pub struct Feed {
    room: Arc<Room>,
    line: Arc<Line>,
    here: Mutex<Here>,
    serial: AtomicU64,
    /// Some are being looked up.
    looking: AtomicBool,
    me: Weak<Feed>,
}

#[derive(Debug, Default)]
struct Here {
    /// Streams of those who wait, by place.
    waiting: BTreeMap<Key, Arc<Seat>>,
    /// Streams of those who have been called.
    turned: HashMap<u64, Arc<Seat>>,
    /// Streams of those whose place the frontier had passed before they came (back), and of those who have no place yet.
    unsettled: HashMap<u64, Arc<Seat>>,
    /// Everybody who is here, by stream or by poll.
    present: HashMap<String, Guest>,
    /// What all were told of the room last, and when all were looked at last.
    told: (Option<Face>, UnixMs),
    /// Goodbye has been said: nobody is seated any more.
    closing: bool,
    /// The epoch of the line that everybody here is known to be in.
    epoch: Epoch,
}

/// Somebody who is here.
#[derive(Debug)]
struct Guest {
    place: Place,
    seats: Vec<Arc<Seat>>,
    seen_ms: UnixMs,
    /// The best number that a page, a poll or a stream which has ended was told.
    ahead: u64,
}

/// As many are kept waiting here as may be, or this gateway is stopping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl Feed {
    /// An empty feed.
    #[must_use]
    pub fn new(room: Arc<Room>, line: Arc<Line>) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            room,
            line,
            here: Mutex::default(),
            serial: AtomicU64::new(0),
            looking: AtomicBool::new(false),
            me: me.clone(),
        })
    }

    fn here(&self) -> MutexGuard<'_, Here> {
        self.here.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a stream its seat. `view` is what it has been told already; without a standing the store has not said yet where it stands.
    ///
    /// # Errors
    /// As many are kept waiting here as may be.
    pub fn take_seat(&self, ticket: &Ticket, standing: Option<Standing>, view: &View) -> Result<Taken, Full> {
        let serial = self.serial.fetch_add(1, Relaxed);
        let place = match standing {
            Some(Standing::Waiting { place, .. }) => place,
            // What the ticket says: should the store have lost the line, this is where it is put back.
            _ => ticket.place,
        };
        let ticket = ticket.id.as_str();
        let seat = Arc::new(Seat::new(ticket.to_owned(), serial, place, view));
        let mut here = self.here();
        if here.closing {
            return Err(Full);
        }
        here.greet(ticket, place, self.room.clock.now_ms(), self.room.settings().max_waiters)?;
        if let Some(guest) = here.present.get_mut(ticket) {
            guest.seats.push(Arc::clone(&seat));
        }
        match standing {
            Some(Standing::Waiting { place, behind: false }) => drop(here.waiting.insert((place, serial), Arc::clone(&seat))),
            Some(Standing::Called { .. } | Standing::Admitted { .. }) => drop(here.turned.insert(serial, Arc::clone(&seat))),
            _ => drop(here.unsettled.insert(serial, Arc::clone(&seat))),
        }
        drop(here);
        Ok(Taken::new(seat, self.me.clone()))
    }

    /// Somebody polled: is here.
    ///
    /// # Errors
    /// As many are kept waiting here as may be.
    pub fn seen(&self, ticket: &str, place: Place) -> Result<(), Full> {
        self.here()
            .greet(ticket, place, self.room.clock.now_ms(), self.room.settings().max_waiters)
    }

    /// Whoever is here is told no worse number than before, be it by a page, a poll or a stream: a bound may grow while the last block of places
    /// still fills.
    pub fn no_worse(&self, ticket: &str, view: &mut View) {
        if let (Some(guest), Some(ahead)) = (self.here().present.get_mut(ticket), &mut view.ahead) {
            let heard = guest.seats.iter().filter_map(|seat| seat.heard_at(guest.place)).min();
            guest.ahead = guest.ahead.min(heard.unwrap_or(u64::MAX)).min(*ahead);
            *ahead = guest.ahead;
        }
    }

    /// How many streams are open.
    #[must_use]
    pub fn streams(&self) -> usize {
        let here = self.here();
        here.waiting.len() + here.turned.len() + here.unsettled.len()
    }

    pub(super) fn give_up(&self, seat: &Arc<Seat>) {
        let mut here = self.here();
        here.waiting.remove(&(seat.place.load(Relaxed), seat.serial));
        here.turned.remove(&seat.serial);
        here.unsettled.remove(&seat.serial);
        if let Some(guest) = here.present.get_mut(&seat.ticket) {
            guest.seats.retain(|other| other.serial != seat.serial);
            guest.ahead = guest.ahead.min(seat.heard_at(guest.place).unwrap_or(u64::MAX));
            guest.seen_ms = self.room.clock.now_ms();
        }
    }

    /// Tells all streams of one ticket: it entered in another tab, or left.
    pub fn tell(&self, ticket: &str, view: &View) {
        let message = Message::new(view);
        let mut here = self.here();
        let ends = matches!(view.state, State::Admitted | State::Gone | State::Closed);
        let seats = match here.present.get(ticket) {
            Some(guest) => guest.seats.clone(),
            None => return,
        };
        for seat in &seats {
            seat.tell(view, message.clone());
            here.waiting.remove(&(seat.place.load(Relaxed), seat.serial));
            if view.state == State::Turn {
                seat.turn_until_ms.store(view.turn_until_ms.unwrap_or(0), Relaxed);
                here.unsettled.remove(&seat.serial);
                here.turned.insert(seat.serial, Arc::clone(seat));
            }
        }
        if ends {
            here.present.remove(ticket);
        }
    }

    /// The ticket was told that it was called, and the store says that it was not: it is looked up again with the next passes.
    pub fn unsettle(&self, ticket: &str) {
        let mut here = self.here();
        let seats = here.present.get(ticket).map(|guest| guest.seats.clone()).unwrap_or_default();
        for seat in seats {
            here.waiting.remove(&(seat.place.load(Relaxed), seat.serial));
            here.turned.remove(&seat.serial);
            here.unsettled.insert(seat.serial, seat);
        }
    }

    /// These were called although the frontier was past them already.
    pub fn called_late(&self, tickets: &[String]) {
        let sight = Sight::of(&self.room);
        let view = sight.turn(sight.now_ms + millis(self.room.settings().turn_ttl));
        for ticket in tickets {
            self.tell(ticket, &view);
        }
    }

    /// Of tickets that some gateway reported away, those that are here after all.
    #[must_use]
    pub fn here_after_all(&self, tickets: &[String]) -> Vec<Presence> {
        let here = self.here();
        let found = tickets.iter().filter_map(|ticket| here.present.get_key_value(ticket));
        found.map(|(ticket, guest)| Presence::Back(ticket.clone(), guest.place)).collect()
    }

    /// Everybody who is here: after news were missed, some of them may have been reported away by a gateway they came from.
    #[must_use]
    pub fn all_here(&self) -> Vec<Presence> {
        let here = self.here();
        let all = here.present.iter();
        all.map(|(ticket, guest)| Presence::Back(ticket.clone(), guest.place)).collect()
    }

    /// Who is gone for longer than `away_after`; they are forgotten here.
    #[must_use]
    pub fn gone_quiet(&self) -> Vec<Presence> {
        let now_ms = self.room.clock.now_ms();
        let away_after_ms = millis(self.room.settings().away_after);
        let mut away = Vec::new();
        self.here().present.retain(|ticket, guest| {
            let quiet = guest.seats.is_empty() && guest.seen_ms + away_after_ms <= now_ms;
            if quiet && guest.place > 0 {
                away.push(Presence::Away(ticket.clone()));
            }
            !quiet
        });
        away
    }

    /// Ends every stream with a word to come back in a moment, and seats nobody after that.
    pub fn say_goodbye(&self) {
        let mut here = self.here();
        here.closing = true;
        for seat in here.waiting.values().chain(here.turned.values()).chain(here.unsettled.values()) {
            seat.bye();
        }
    }

    /// The room is gone: everybody is told that it is closed, and nobody is seated any more.
    pub fn close(&self) {
        let view = Sight::of(&self.room).closed();
        let message = Message::new(&view);
        let mut here = self.here();
        here.closing = true;
        for seat in here.waiting.values().chain(here.turned.values()).chain(here.unsettled.values()) {
            seat.tell(&view, message.clone());
        }
    }

    /// One pass: the called first, then numbers where they are due. Gives way to requests in between.
    pub async fn pass(&self) {
        let sight = Sight::of(&self.room);
        if !self.in_the_line_of_now().await {
            return;
        }
        self.call(&sight);
        let (changed, due) = self.here().look_again(&sight);
        if !changed && !due {
            return;
        }
        let mut last: Option<Key> = None;
        loop {
            let bite: Vec<(Key, Arc<Seat>)> = {
                let here = self.here();
                let from = last.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
                here.waiting
                    .range((from, std::ops::Bound::Unbounded))
                    .take(BITE)
                    .map(|(key, seat)| (*key, Arc::clone(seat)))
                    .collect()
            };
            let Some((key, _)) = bite.last() else { break };
            last = Some(*key);
            for (_, seat) in &bite {
                self.update(&sight, seat, changed);
            }
            tokio::task::yield_now().await;
        }
        self.pass_over_the_rest(&sight, changed);
    }

    /// Tells those whose place the frontier has reached.
    fn call(&self, sight: &Sight) {
        let frontier = self.room.frontier();
        let mut here = self.here();
        if here.waiting.first_key_value().is_none_or(|((place, _), _)| *place > frontier) {
            return;
        }
        let rest = here.waiting.split_off(&(frontier + 1, 0));
        let called = std::mem::replace(&mut here.waiting, rest);
        let view = sight.turn(sight.now_ms + millis(self.room.settings().turn_ttl));
        let message = Message::new(&view);
        for (_, seat) in called {
            seat.turn_until_ms.store(view.turn_until_ms.unwrap_or(0), Relaxed);
            seat.tell(&view, message.clone());
            here.turned.insert(seat.serial, seat);
        }
    }

    /// Tells one waiting stream its number, if that is due.
    fn update(&self, sight: &Sight, seat: &Seat, changed: bool) {
        let place = seat.place.load(Relaxed);
        let mut view = sight.waiting(&self.line, (place > 0).then_some(place));
        let before = seat.ahead.load(Relaxed);
        // Never worse than before, whatever a count of another moment says.
        view.ahead = view.ahead.map(|ahead| ahead.min(before));
        let told_ms = seat.told_ms.load(Relaxed);
        let quiet_ms = sight.now_ms.saturating_sub(told_ms);
        let every_ms = view
            .wait_low_s
            .map_or(UPDATE_MS.0, |low| (low * 1000 / 50).clamp(UPDATE_MS.0, UPDATE_MS.1));
        let news = view.ahead.is_some_and(|ahead| ahead != before) && quiet_ms >= every_ms;
        if changed || news || !seat.was_told(&view) {
            let message = Message::new(&view);
            seat.tell(&view, message);
        } else if quiet_ms >= KEEP_ALIVE_MS {
            seat.keep_alive(sight.now_ms);
        }
    }
}

impl Here {
    fn greet(&mut self, ticket: &str, place: Place, now_ms: UnixMs, max: usize) -> Result<(), Full> {
        if let Some(guest) = self.present.get_mut(ticket) {
            guest.seen_ms = now_ms;
            if place > guest.place {
                // Another place: it has numbers of its own.
                (guest.place, guest.ahead) = (place, u64::MAX);
            }
            return Ok(());
        }
        if self.present.len() >= max {
            return Err(Full);
        }
        let guest = Guest {
            place,
            seats: Vec::new(),
            seen_ms: now_ms,
            ahead: u64::MAX,
        };
        self.present.insert(ticket.to_owned(), guest);
        Ok(())
    }

    /// Whether the room changed since everybody was told, and whether numbers are due again.
    fn look_again(&mut self, sight: &Sight) -> (bool, bool) {
        let due = sight.now_ms >= self.told.1 + UPDATE_MS.0 || sight.now_ms < self.told.1;
        if due {
            self.told.1 = sight.now_ms;
        }
        let changed = self.told.0.as_ref() != Some(&sight.face);
        if changed {
            self.told.0 = Some(sight.face.clone());
        }
        (changed, due)
    }
}
