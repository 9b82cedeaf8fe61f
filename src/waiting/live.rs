//! The feed of a room: who is here, and what each is told.
//!
//! One task per room makes a pass over the streams; nothing runs per stream. Who is called is told at once: seats are ordered by place, so that
//! one look at the frontier finds them. Numbers are told less often the further away somebody is, and only when the number shown would change.
//! The feed also keeps presence: whoever has no stream and has not polled for a while is reported away, once.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::Notify;

mod here;
mod pass;
mod settle;
mod wakes;

use super::seat::{Message, Seat, Taken};
use super::sight::Sight;
use crate::clock::millis;
use crate::queue::Line;
use crate::response::view::{State, View};
use crate::room::Room;
use crate::store::scripts::{Place, Presence, Standing};
use crate::token::Ticket;
use here::{Group, Here};
use wakes::Wakes;

/// Streams in one bite of a pass: between bites, whoever was called meanwhile is told, and requests get their turn.
const BITE: usize = 256;

/// Who is here, and what each is told.
#[derive(Debug)]
pub struct Feed {
    room: Arc<Room>,
    line: Arc<Line>,
    here: Mutex<Here>,
    serial: AtomicU64,
    /// There may be something to tell.
    news: Notify,
    /// Some are being looked up.
    looking: AtomicBool,
    me: Weak<Feed>,
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
            news: Notify::new(),
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
        let mut here = self.here();
        if here.closing {
            return Err(Full);
        }
        let name = here.greet(&ticket.id, place, self.room.clock.now_ms(), self.room.settings().max_waiters)?;
        let seat = Arc::new(Seat::new(Arc::clone(&name), ticket.arrived_ms, serial, place, view));
        if let Some(guest) = here.present.get_mut(&name) {
            guest.seats.reserve_exact(1); // hardly anybody has two
            guest.seats.push(Arc::clone(&seat));
        }
        let group = match standing {
            Some(Standing::Waiting { behind: false, .. }) => Group::Waiting,
            Some(Standing::Called { .. } | Standing::Admitted { .. }) => Group::Turned,
            _ => Group::Unsettled,
        };
        here.seat(group, Arc::clone(&seat));
        drop(here);
        Ok(Taken::new(seat, self.me.clone()))
    }

    /// Somebody polled: is here.
    ///
    /// # Errors
    /// As many are kept waiting here as may be.
    pub fn seen(&self, ticket: &str, place: Place) -> Result<(), Full> {
        let (now_ms, most) = (self.room.clock.now_ms(), self.room.settings().max_waiters);
        self.here().greet(ticket, place, now_ms, most).map(drop)
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
        self.here().streams()
    }

    pub(super) fn give_up(&self, seat: &Seat) {
        let mut here = self.here();
        here.unseat(seat);
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
        for seat in seats {
            seat.tell(view, message.clone());
            if view.state == State::Turn {
                here.unseat(&seat);
                seat.hold_turn(view.turn_until_ms.unwrap_or(0));
                here.seat(Group::Turned, seat);
            } else {
                here.waiting.remove(&here::key(Group::Waiting, &seat));
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
            here.unseat(&seat);
            here.seat(Group::Unsettled, seat);
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
        let found = tickets.iter().filter_map(|ticket| here.present.get_key_value(ticket.as_str()));
        found
            .map(|(ticket, guest)| Presence::Back(ticket.as_ref().to_owned(), guest.place))
            .collect()
    }

    /// Everybody who is here: after news were missed, some of them may have been reported away by a gateway they came from.
    #[must_use]
    pub fn all_here(&self) -> Vec<Presence> {
        let here = self.here();
        let all = here.present.iter();
        all.map(|(ticket, guest)| Presence::Back(ticket.as_ref().to_owned(), guest.place))
            .collect()
    }

    /// Who is gone for longer than `away_after`; they are forgotten here.
    #[must_use]
    pub fn gone_quiet(&self) -> Vec<Presence> {
        let away_after_ms = millis(self.room.settings().away_after);
        self.here().gone_quiet(self.room.clock.now_ms(), away_after_ms)
    }

    /// Says goodbye to every stream, and seats nobody any more.
    pub async fn say_goodbye(&self) {
        self.end(|seat| seat.bye()).await;
    }

    /// The room is gone: everybody is told that it is closed, and nobody is seated any more.
    pub async fn close(&self) {
        let view = Sight::of(&self.room).closed();
        let message = Message::new(&view);
        self.end(|seat| seat.put(&view, message.clone())).await;
    }

    async fn end(&self, last_word: impl Fn(&Seat)) {
        let seats: Vec<Arc<Seat>> = {
            let mut here = self.here();
            here.closing = true;
            here.all().cloned().collect()
        };
        let mut wakes = Wakes::default();
        for bite in seats.chunks(BITE) {
            for seat in bite {
                last_word(seat);
                wakes.add(Arc::clone(seat));
            }
            wakes.go().await;
        }
        wakes.settled().await;
    }
}
