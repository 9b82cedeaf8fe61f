//! A room as operators see it: the JSON of `GET /v1/rooms/{id}`, and the same numbers as metrics.

use std::fmt::{self, Write as _};

use serde::{Deserialize, Serialize};

use crate::clock::UnixMs;
use crate::config::Rate;
use crate::peers::{Peer, Peers};
use crate::store::scripts::{Held, Reservation, Shown, Stock};

/// What a room is doing, in a word. When several are true, the first of this list is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Its closing time has come.
    Closed,
    /// The store lost the stock's count: an operator must set it.
    StockUnknown,
    /// Everything is sold; nothing can return.
    SoldOut,
    /// The door is shut while tickets come back after a loss of the store.
    Shut,
    /// It has not opened yet.
    Countdown,
    /// An operator stopped it.
    Paused,
    /// Everything is held by buyers who have not paid yet.
    AllHeld,
    /// People are let in.
    Open,
}

impl fmt::Display for State {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Closed => "closed",
            Self::StockUnknown => "stock unknown",
            Self::SoldOut => "sold out",
            Self::Shut => "shut",
            Self::Countdown => "countdown",
            Self::Paused => "paused",
            Self::AllHeld => "all held",
            Self::Open => "open",
        })
    }
}

/// A room.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoomNow {
    /// Its id.
    pub id: String,
    /// What it is doing.
    pub state: State,
    /// Admissions per time, as people write it: `200/s`.
    pub rate: String,
    /// Admissions per second.
    pub rate_per_s: f64,
    /// Called and admitted at once at most; 0 is no cap.
    pub cap: u64,
    /// Nobody is called.
    pub paused: bool,
    /// The operators' word to the waiting; empty is none.
    pub message: String,
    /// When it opens (RFC 3339); none: it is open.
    pub opens_at: Option<String>,
    /// When it closes (RFC 3339); none: never.
    pub closes_at: Option<String>,
    /// Until when the door is shut after a loss of the store (RFC 3339).
    pub shut_until: Option<String>,
    /// The stock; none for a room without.
    pub stock: Option<StockNow>,
    /// Whether `free + held + sold = stock`.
    pub invariant_ok: bool,
    /// Tickets in the line, present or away.
    pub waiting: u64,
    /// Tickets that are away.
    pub away: u64,
    /// Called, not here yet.
    pub called: u64,
    /// Admitted.
    pub sessions: u64,
    /// Tickets ever given a place in this line.
    pub joined_total: u64,
    /// Tickets ever called in this line.
    pub called_total: u64,
    /// The highest place called so far.
    pub frontier: u64,
    /// Which line this is: a new one begins when the store lost the old.
    pub epoch: u64,
    /// Grows with each change.
    pub version: u64,
    /// The store's clock when all this was true.
    pub now_ms: UnixMs,
    /// The gateways of the room, as the one that answers heard of them last.
    #[serde(default)]
    pub gateways: Vec<Peer>,
}

/// The stock of a room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StockNow {
    /// All units of the sale.
    pub stock: u64,
    /// Free to be claimed.
    pub free: u64,
    /// Held until paid.
    pub held: u64,
    /// Paid.
    pub sold: u64,
    /// False after the store lost its memory, until an operator sets the stock.
    pub known: bool,
}

/// The answer of `GET /v1/rooms`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoomsNow {
    /// The rooms, in the order of the settings.
    pub rooms: Vec<RoomNow>,
    /// Rooms of the settings that the store does not know yet.
    pub not_ready: Vec<String>,
}

/// The answer of `GET /v1/rooms/{id}/reservations/{rid}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReservationNow {
    /// Its id.
    pub reservation: String,
    /// Who holds it.
    pub user: String,
    /// How many units.
    pub units: u64,
    /// `held`, `sold`, `released` or `expired`.
    pub state: String,
    /// When the hold ends or ended, milliseconds since the Unix epoch.
    pub expires_at_ms: UnixMs,
}

impl RoomNow {
    /// A room as the store shows it.
    #[must_use]
    pub fn new(id: &str, shown: &Shown) -> Self {
        let rate = Rate::from_milli(shown.rate_milli);
        Self {
            id: id.to_owned(),
            state: state(shown),
            rate: rate.to_string(),
            rate_per_s: rate.per_second(),
            cap: shown.cap,
            paused: shown.paused,
            message: shown.message.clone(),
            opens_at: written(shown.opens_at_ms),
            closes_at: written(shown.closes_at_ms),
            shut_until: written(shown.shut_until_ms).filter(|_| shown.shut_until_ms > shown.now_ms),
            stock: shown.stock.map(|stock| StockNow {
                stock: stock.stock,
                free: stock.free,
                held: stock.held,
                sold: stock.sold,
                known: stock.known,
            }),
            invariant_ok: shown.stock.as_ref().is_none_or(adds_up),
            waiting: shown.waiting,
            away: shown.away,
            called: shown.called,
            sessions: shown.sessions,
            joined_total: shown.joined_total,
            called_total: shown.called_total,
            frontier: shown.frontier,
            epoch: shown.epoch,
            version: shown.version,
            now_ms: shown.now_ms,
            gateways: Vec::new(),
        }
    }

    /// The same, with the room's gateways.
    #[must_use]
    pub fn at(mut self, peers: &Peers) -> Self {
        self.gateways = peers.all();
        self
    }
}

impl From<Reservation> for ReservationNow {
    fn from(reservation: Reservation) -> Self {
        let state = match reservation.state {
            Held::Held => "held",
            Held::Sold => "sold",
            Held::Released => "released",
            Held::Expired => "expired",
        };
        Self {
            reservation: reservation.id,
            user: reservation.user,
            units: reservation.units,
            state: state.to_owned(),
            expires_at_ms: reservation.until_ms,
        }
    }
}

fn state(shown: &Shown) -> State {
    let now_ms = shown.now_ms;
    let (free, held, known) = shown.stock.map_or((1, 0, true), |stock| (stock.free, stock.held, stock.known));
    if shown.closes_at_ms != 0 && now_ms >= shown.closes_at_ms {
        State::Closed
    } else if !known {
        State::StockUnknown
    } else if free == 0 && held == 0 {
        State::SoldOut
    } else if now_ms < shown.shut_until_ms {
        State::Shut
    } else if now_ms < shown.opens_at_ms {
        State::Countdown
    } else if shown.paused {
        State::Paused
    } else if free == 0 {
        State::AllHeld
    } else {
        State::Open
    }
}

/// The one promise about stock.
pub(super) fn adds_up(stock: &Stock) -> bool {
    stock.free.checked_add(stock.held).and_then(|sum| sum.checked_add(stock.sold)) == Some(stock.stock)
}

/// A time as people write it; none for 0.
fn written(at_ms: UnixMs) -> Option<String> {
    let at_ms = i64::try_from(at_ms).ok().filter(|at_ms| *at_ms != 0)?;
    jiff::Timestamp::from_millisecond(at_ms).ok().map(|stamp| stamp.to_string())
}

/// One metric of a room: its name, type and sentence, and how it is read.
type Metric = (&'static str, &'static str, &'static str, fn(&Shown) -> Option<String>);

/// The metrics of a room, as `show` has them at the moment of the scrape. They are missing while the store is away: a stale number would be a lie.
const METRICS: [Metric; 17] = [
    ("waiting", "gauge", "Tickets in the line, present or away.", |shown| {
        some(shown.waiting)
    }),
    ("away", "gauge", "Tickets that are away.", |shown| some(shown.away)),
    ("called", "gauge", "Tickets called that have not come yet.", |shown| {
        some(shown.called)
    }),
    ("sessions", "gauge", "Admitted visitors.", |shown| some(shown.sessions)),
    ("joined_total", "counter", "Tickets given a place in this line.", |shown| {
        some(shown.joined_total)
    }),
    ("called_total", "counter", "Tickets called in this line.", |shown| {
        some(shown.called_total)
    }),
    ("frontier", "gauge", "The highest place called so far.", |shown| {
        some(shown.frontier)
    }),
    (
        "epoch_seconds",
        "gauge",
        "When this line began, in seconds since 2026-01-01.",
        |shown| some(shown.epoch),
    ),
    ("rate_per_second", "gauge", "Admissions per second that are allowed.", |shown| {
        some(Rate::from_milli(shown.rate_milli).per_second())
    }),
    ("cap", "gauge", "Called and admitted at once at most; 0 is no cap.", |shown| {
        some(shown.cap)
    }),
    ("paused", "gauge", "1 while an operator has stopped the room.", |shown| {
        flag(shown.paused)
    }),
    ("open", "gauge", "1 while people are let in.", |shown| {
        flag(state(shown) == State::Open)
    }),
    ("stock_units", "gauge", "All units of the sale.", |shown| {
        of(shown, |stock| stock.stock)
    }),
    ("free_units", "gauge", "Units free to be claimed.", |shown| {
        of(shown, |stock| stock.free)
    }),
    ("held_units", "gauge", "Units held until paid.", |shown| {
        of(shown, |stock| stock.held)
    }),
    ("sold_units", "gauge", "Units paid.", |shown| of(shown, |stock| stock.sold)),
    ("stock_known", "gauge", "0 after the store lost the stock's count.", |shown| {
        of(shown, |stock| u64::from(stock.known))
    }),
];

/// The rooms' metrics as Prometheus' text format 0.0.4. Ids of rooms need no escaping: the settings allow `[a-z0-9-]` only.
pub(super) fn metrics(rooms: &[(&str, Shown)]) -> String {
    let mut text = String::new();
    for (name, kind, sentence, read) in METRICS {
        let mut samples = String::new();
        for (id, shown) in rooms {
            if let Some(value) = read(shown) {
                // Writing to a string cannot fail.
                let _ = writeln!(samples, "waitgate_room_{name}{{room=\"{id}\"}} {value}");
            }
        }
        if !samples.is_empty() {
            let _ = write!(
                text,
                "# HELP waitgate_room_{name} {sentence}\n# TYPE waitgate_room_{name} {kind}\n{samples}"
            );
        }
    }
    text
}

/// A count of gateways: its name, its sentence, and how it is counted.
type Counted = (&'static str, &'static str, fn(&[Peer]) -> usize);

/// How many gateways each room has, and how many of them go by other settings than this one.
pub(super) fn peer_metrics(rooms: &[(&str, Vec<Peer>)]) -> String {
    let counts: [Counted; 2] = [
        (
            "gateways",
            "Gateways of the room that were heard of in the last seconds.",
            <[Peer]>::len,
        ),
        (
            "settings_differ",
            "Gateways of the room that go by other settings than this one.",
            |peers| peers.iter().filter(|peer| !peer.differs.is_empty()).count(),
        ),
    ];
    let mut text = String::new();
    for (name, sentence, count) in counts {
        if !rooms.is_empty() {
            let _ = write!(text, "# HELP waitgate_room_{name} {sentence}\n# TYPE waitgate_room_{name} gauge\n");
        }
        for (id, peers) in rooms {
            let _ = writeln!(text, "waitgate_room_{name}{{room=\"{id}\"}} {}", count(peers));
        }
    }
    text
}

fn some(value: impl ToString) -> Option<String> {
    Some(value.to_string())
}

fn flag(value: bool) -> Option<String> {
    some(u8::from(value))
}

fn of(shown: &Shown, read: fn(Stock) -> u64) -> Option<String> {
    shown.stock.map(|stock| read(stock).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room() -> Shown {
        Shown {
            now_ms: 1_000_000,
            rate_milli: 200_000,
            stock: Some(Stock {
                stock: 100,
                free: 60,
                held: 30,
                sold: 10,
                known: true,
            }),
            ..Shown::default()
        }
    }

    #[test]
    fn a_room_says_what_it_does_in_a_word() {
        let with = |change: fn(&mut Shown)| {
            let mut shown = room();
            change(&mut shown);
            RoomNow::new("42", &shown).state
        };
        let stock = |free, held, known| {
            let mut shown = room();
            shown.stock = Some(Stock {
                stock: 100,
                free,
                held,
                sold: 100 - free - held,
                known,
            });
            RoomNow::new("42", &shown).state
        };
        assert_eq!(with(|_| ()), State::Open);
        assert_eq!(with(|shown| shown.stock = None), State::Open);
        assert_eq!(with(|shown| shown.paused = true), State::Paused);
        assert_eq!(with(|shown| shown.opens_at_ms = 1_000_001), State::Countdown);
        assert_eq!(with(|shown| shown.opens_at_ms = 1_000_000), State::Open);
        assert_eq!(with(|shown| shown.closes_at_ms = 1_000_000), State::Closed);
        assert_eq!(with(|shown| shown.closes_at_ms = 1_000_001), State::Open);
        assert_eq!(with(|shown| shown.shut_until_ms = 1_000_001), State::Shut);
        assert_eq!(stock(0, 0, true), State::SoldOut);
        assert_eq!(stock(0, 1, true), State::AllHeld);
        assert_eq!(stock(0, 0, false), State::StockUnknown);
    }

    #[test]
    fn stock_that_does_not_add_up_is_told() {
        let mut shown = room();
        assert!(RoomNow::new("42", &shown).invariant_ok);
        shown.stock = Some(Stock {
            stock: 100,
            free: 61,
            held: 30,
            sold: 10,
            known: true,
        });
        assert!(!RoomNow::new("42", &shown).invariant_ok);
    }

    #[test]
    fn metrics_are_declared_once_and_have_a_sample_per_room() {
        let mut plain = room();
        plain.stock = None;
        let text = metrics(&[("42", room()), ("shoes", plain)]);
        assert_eq!(text.matches("# TYPE waitgate_room_waiting gauge\n").count(), 1);
        assert!(text.contains("waitgate_room_waiting{room=\"42\"} 0\nwaitgate_room_waiting{room=\"shoes\"} 0\n"));
        assert!(text.contains("waitgate_room_rate_per_second{room=\"42\"} 200\n"));
        assert!(!text.contains("sold_units{room=\"shoes\"}"));
        assert_eq!(metrics(&[]), "");
    }
}
