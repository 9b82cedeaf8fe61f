//! What a visitor is told, worked out from the room, the line and where the visitor stands.
//!
//! One [`Sight`] is taken per pass over a room's streams, or per request: what is the same for all is looked up once.

use crate::clock::UnixMs;
use crate::config::LONGEST_POLL;
use crate::queue::Line;
use crate::response::view::{Reason, State, View};
use crate::room::{Door, Room};
use crate::store::scripts::{Fate, Place, Standing};

/// A wait at most this long is "nearly".
const NEARLY_S: u64 = 30;
/// Who polls asks again after this long at the least, and at the most. The most stays well under the shortest sensible `away_after`.
const POLL_S: (u64, u64) = (3, LONGEST_POLL.as_secs());

/// What is the same for all who wait: when it changes, all are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Face {
    door: Door,
    message: Option<String>,
    opens_at_ms: UnixMs,
}

/// The room at one moment.
#[derive(Clone, Debug)]
pub struct Sight {
    /// What is the same for all.
    pub face: Face,
    /// The time by the store's clock.
    pub now_ms: UnixMs,
    /// Admissions per 1,000 seconds.
    pub rate_milli: u64,
}

impl Sight {
    /// Looks at a room.
    #[must_use]
    pub fn of(room: &Room) -> Self {
        let live = room.live();
        let message = &live.shown.message;
        Self {
            face: Face {
                door: room.door(),
                message: (!message.is_empty()).then(|| message.clone()),
                opens_at_ms: live.shown.opens_at_ms,
            },
            now_ms: room.now_ms(),
            rate_milli: live.shown.rate_milli,
        }
    }

    /// Whether there is nothing more to wait for.
    #[must_use]
    pub fn is_final(&self) -> bool {
        matches!(self.face.door, Door::Closed | Door::SoldOut)
    }

    /// The view of somebody who stands like this.
    #[must_use]
    pub fn standing(&self, line: &Line, standing: Standing) -> View {
        match standing {
            Standing::Waiting { place, .. } => self.waiting(line, Some(place)),
            Standing::MustWait => self.waiting(line, None),
            Standing::Called { until_ms } | Standing::Admitted { until_ms } => self.turn(until_ms),
            Standing::Gone(fate) => self.gone(fate),
        }
    }

    /// The view of somebody in line; without a place, of somebody about to get one.
    #[must_use]
    pub fn waiting(&self, line: &Line, place: Option<Place>) -> View {
        let mut view = self.plain(match self.face.door {
            Door::Closed => State::Closed,
            Door::SoldOut => State::SoldOut,
            Door::Countdown => State::Countdown,
            Door::Paused => State::Paused,
            Door::AllHeld => State::AllHeld,
            Door::Delayed | Door::Open => State::Waiting,
        });
        if self.is_final() {
            return view;
        }
        view.opens_at_ms = (self.face.door == Door::Countdown).then_some(self.face.opens_at_ms);
        view.ahead = place.and_then(|place| line.ahead(place));
        let Some(ahead) = view.ahead.filter(|_| matches!(self.face.door, Door::Open | Door::Countdown)) else {
            return view;
        };
        let Some((low, high)) = line.wait_s(ahead) else { return view };
        if self.face.door == Door::Countdown {
            // The wait begins when the door opens.
            let shut_s = self.face.opens_at_ms.saturating_sub(self.now_ms).div_ceil(1000);
            (view.wait_low_s, view.wait_high_s) = (Some(low + shut_s), Some(high + shut_s));
            return view;
        }
        (view.wait_low_s, view.wait_high_s) = (Some(low), Some(high));
        view.poll_after_s = (low / 8).clamp(POLL_S.0, POLL_S.1);
        if high <= NEARLY_S {
            view.state = State::Nearly;
        }
        view
    }

    /// The view of somebody who has been called, or let in and not yet entered.
    #[must_use]
    pub fn turn(&self, until_ms: UnixMs) -> View {
        if self.face.door == Door::SoldOut {
            // To be called into an empty shop is no turn.
            return self.plain(State::SoldOut);
        }
        View {
            turn_until_ms: Some(until_ms),
            ..self.plain(State::Turn)
        }
    }

    /// The view of somebody who has entered.
    #[must_use]
    pub fn admitted(&self, until_ms: UnixMs) -> View {
        View {
            turn_until_ms: Some(until_ms),
            ..self.plain(State::Admitted)
        }
    }

    /// The view of everybody once the room is closed.
    #[must_use]
    pub fn closed(&self) -> View {
        self.plain(State::Closed)
    }

    /// The view of somebody who is no longer in line.
    #[must_use]
    pub fn gone(&self, fate: Fate) -> View {
        View {
            reason: Some(reason(fate)),
            ..self.plain(State::Gone)
        }
    }

    fn plain(&self, state: State) -> View {
        let poll_after_s = match state {
            State::SoldOut | State::Countdown | State::Paused | State::AllHeld => 10,
            _ => POLL_S.0,
        };
        View {
            state,
            reason: None,
            ahead: None,
            wait_low_s: None,
            wait_high_s: None,
            updated_at_ms: self.now_ms,
            opens_at_ms: None,
            turn_until_ms: None,
            message: self.face.message.clone(),
            delayed: self.face.door == Door::Delayed,
            poll_after_s,
        }
    }
}

/// What became of a ticket, in the words of a view.
#[must_use]
pub fn reason(fate: Fate) -> Reason {
    match fate {
        Fate::Left => Reason::Left,
        Fate::Lapsed => Reason::Lapsed,
        Fate::Abandoned => Reason::Abandoned,
        Fate::Ended => Reason::Ended,
    }
}
