//! One typed method per file in `lua/`.
//!
//! Every script answers in words; a word becomes a variant here and nowhere else. All methods may be repeated with the same arguments: the
//! header of each script says what a repeat does. The methods: `line`, `room`, `stock`.

mod line;
mod room;
mod stock;
mod verb;

use crate::clock::UnixMs;
pub use verb::Verb;

/// Every script.
#[must_use]
pub fn all() -> [&'static Verb; 13] {
    [
        &room::SEED,
        &line::JOIN,
        &line::ADMIT,
        &line::REDEEM,
        &line::DEPART,
        &line::SWEEP,
        &stock::CLAIM,
        &stock::ANSWER,
        &stock::SETTLE,
        &room::TUNE,
        &room::SHOW,
        &line::MEASURE,
        &room::GREET,
    ]
}

/// Seconds since 2026-01-01 at which a line began. A new one begins when the store has lost the old.
pub type Epoch = u64;
/// The number handed out on joining; lower goes first; never changes. Far below 2^53.
pub type Place = u64;

/// What a gateway of a room said of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// Its name.
    pub name: String,
    /// How long ago, by the store's clock.
    pub ago_ms: u64,
    /// What it goes by.
    pub words: String,
}

/// Why a ticket is no longer in the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The visitor left by the button.
    Left,
    /// Called, and did not come in time.
    Lapsed,
    /// Away for too long.
    Abandoned,
    /// Was admitted, and the session is over.
    Ended,
}

/// How a ticket comes to the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knock {
    /// Admit at once or do nothing: the visitor has not shown yet that it keeps a cookie.
    AtOnce,
    /// Take a place, or keep the one it has. Also says "I am here": an away ticket is present again, a passed-over one is put back at its place.
    Join,
    /// As `Join`, but what happened to this ticket before is forgiven: it starts again at the end of the line.
    Again,
}

/// One ticket of a `join` call.
#[derive(Clone, Debug)]
pub struct Joining {
    /// The ticket's id.
    pub ticket: String,
    /// The place the signed ticket carries; 0 when it has none yet. A ticket unknown to the store is put back there.
    pub place: Place,
    /// How it comes.
    pub knock: Knock,
}

/// What `join` said about one ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// In the line at this place. `behind` when the frontier is past it already: it is called at the next tick.
    Waiting {
        /// Its place.
        place: Place,
        /// The frontier is past it.
        behind: bool,
    },
    /// Called: its turn is held until then.
    Called {
        /// When the turn lapses.
        until_ms: UnixMs,
    },
    /// Admitted (just now, or before): the admission is good until then.
    Admitted {
        /// When the admission expires.
        until_ms: UnixMs,
    },
    /// No longer in the line.
    Gone(Fate),
    /// Nothing was written: `Knock::AtOnce`, and there is a line; or new, and the room has closed.
    MustWait,
}

/// The answer of `join`.
#[derive(Clone, Debug)]
pub struct Joined {
    /// The epoch of the line.
    pub epoch: Epoch,
    /// The frontier at that moment.
    pub frontier: Place,
    /// One per ticket asked, in order.
    pub standings: Vec<Standing>,
}

/// What a gateway must know to tell a room's script how to act; from the room's settings.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// How long a called visitor has to come.
    pub turn_ms: u64,
    /// How long an admission lasts.
    pub admission_ms: u64,
    /// Away for this long: abandoned.
    pub grace_ms: u64,
    /// How long what happened to a ticket is remembered.
    pub memory_ms: u64,
}

/// The answer of `admit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticked {
    /// The epoch of the line.
    pub epoch: Epoch,
    /// Grows with each change of the room that `show` would show.
    pub version: u64,
    /// The frontier now.
    pub frontier: Place,
    /// How many were called by this very call.
    pub called: u64,
    /// Tickets in the line now (present or away, not yet passed).
    pub waiting: u64,
    /// A newcomer could be admitted at once: nobody waits, and rate, cap, stock and hours allow it.
    pub at_once: bool,
    /// The store's clock.
    pub now_ms: UnixMs,
}

/// The answer of `redeem`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redeemed {
    /// Admitted until then; the same answer however often it is asked.
    Admitted {
        /// When the admission expires.
        until_ms: UnixMs,
    },
    /// Not called yet.
    Waiting,
    /// No longer in the line.
    Gone(Fate),
    /// The store does not know the ticket.
    Unknown,
}

/// One change of presence.
#[derive(Clone, Debug)]
pub enum Presence {
    /// The ticket's last stream closed and it has not polled.
    Away(String),
    /// It is here (again).
    Back(String, Place),
    /// It leaves for good.
    Leave(String),
}

/// The answer of `sweep`: how many of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Away too long.
    pub abandoned: u64,
    /// Called and did not come.
    pub lapsed: u64,
    /// Sessions over.
    pub ended: u64,
    /// Holds whose payment did not come.
    pub expired: u64,
    /// Old records deleted.
    pub forgotten: u64,
    /// A batch was full: there is more to do now.
    pub more: bool,
}

/// A claim as the gate sees it.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The buyer: the login's user, or the ticket.
    pub user: String,
    /// The `Idempotency-Key`; empty when the client sent none.
    pub key: String,
    /// Fingerprint of method, path, query and body.
    pub fingerprint: String,
    /// The reservation's id, should there be one: made by the gateway, so that a repeat finds it.
    pub reservation: String,
    /// Units asked for; at least 1.
    pub units: u64,
    /// Units one buyer may have.
    pub limit: u64,
    /// How long to hold.
    pub hold_ms: u64,
    /// How long the backend has to answer: until then the same claim counts as in flight.
    pub flight_ms: u64,
}

/// A reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// Its id.
    pub id: String,
    /// Who holds it.
    pub user: String,
    /// How many units.
    pub units: u64,
    /// When the hold ends.
    pub until_ms: UnixMs,
    /// What became of it.
    pub state: Held,
}

/// What became of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// Held until paid.
    Held,
    /// Paid.
    Sold,
    /// Given back.
    Released,
    /// Not paid in time.
    Expired,
}

/// What the backend's answer to a claim is known to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The request is on its way.
    InFlight,
    /// Nobody knows: it timed out, or the gateway died. It may be sent again with the same reservation.
    Unknown,
    /// The first answer, as it was kept.
    Kept(Vec<u8>),
}

/// The answer of `claim`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gate {
    /// Units are held: forward the request.
    Reserved(Reservation),
    /// This claim was made before, or this buyer holds one already.
    Already {
        /// The reservation it led to.
        reservation: Reservation,
        /// The backend's first answer.
        answer: Answer,
        /// Asked with the same key and the same body (else: another key of the same buyer).
        same: bool,
    },
    /// Same key, other body: nothing was taken.
    Mismatch,
    /// Nothing left, and nothing can return.
    SoldOut,
    /// Nothing left, but held units may return.
    AllHeld,
    /// Some are left, but fewer than asked for.
    TooFew {
        /// How many are left.
        free: u64,
    },
    /// The buyer would have more than allowed.
    Limit,
    /// The store lost the stock's count; an operator must set it.
    StockUnknown,
}

/// What a backend says of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Paid.
    Confirm,
    /// Give it back.
    Release,
}

/// The answer of `settle`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// Sold now.
    Confirmed,
    /// Was sold before.
    ConfirmedBefore,
    /// The hold had ended, but the units were still free and are sold now.
    Retaken,
    /// The hold had ended and the units are gone: pay the buyer back.
    Refund,
    /// Given back now.
    Released,
    /// Was given back (or had expired) before.
    ReleasedBefore,
    /// Sold already: a release is refused.
    Sold,
    /// No such reservation.
    Missing,
}

/// How a room is now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// The epoch of the line.
    pub epoch: Epoch,
    /// Grows with each change.
    pub version: u64,
    /// The store's clock.
    pub now_ms: UnixMs,
    /// The highest place called or passed over so far.
    pub frontier: Place,
    /// Admissions per 1,000 seconds.
    pub rate_milli: u64,
    /// Called and admitted at once at most; 0 is no cap.
    pub cap: u64,
    /// Nobody is called.
    pub paused: bool,
    /// The operators' word to the waiting; empty is none.
    pub message: String,
    /// Before this nobody is called; 0 is open.
    pub opens_at_ms: UnixMs,
    /// From this on nobody joins; 0 is never.
    pub closes_at_ms: UnixMs,
    /// The door stays shut until then while tickets come back after a loss.
    pub shut_until_ms: UnixMs,
    /// The stock; none for a room without.
    pub stock: Option<Stock>,
    /// Tickets in the line (present or away, not yet passed).
    pub waiting: u64,
    /// Of all tickets known, how many are away.
    pub away: u64,
    /// Called, has not come yet.
    pub called: u64,
    /// Admitted visitors whose admission has not expired.
    pub sessions: u64,
    /// Tickets ever given a place in this epoch.
    pub joined_total: u64,
    /// Tickets ever called in this epoch (admitted at once included).
    pub called_total: u64,
}

/// The stock of a room. `free + held + sold = stock`, always.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stock {
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

/// What positions are worked out from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// The epoch of the line.
    pub epoch: Epoch,
    /// The frontier at that moment.
    pub frontier: Place,
    /// The highest place handed out at that moment.
    pub last: Place,
    /// Live tickets beyond the frontier per block of 1,024 places: (place / 1024, count), ascending.
    pub blocks: Vec<(u64, u64)>,
    /// The places beyond the frontier of all live tickets in the first such block, ascending.
    pub first: Vec<Place>,
}

/// A change an operator makes. `None` leaves a setting alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tuning {
    /// Admissions per 1,000 seconds.
    pub rate_milli: Option<u64>,
    /// Called and admitted at once at most; 0 is no cap.
    pub cap: Option<u64>,
    /// Nobody is called.
    pub paused: Option<bool>,
    /// All units of the sale.
    pub stock: Option<u64>,
    /// The operators' word to the waiting; empty is none.
    pub message: Option<String>,
    /// Opening time; 0 is open.
    pub opens_at_ms: Option<UnixMs>,
    /// Closing time; 0 is never.
    pub closes_at_ms: Option<UnixMs>,
}

/// The answer of `tune`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tuned {
    /// Done; the room is now at this version.
    Tuned {
        /// The room's version.
        version: u64,
    },
    /// The stock cannot be less than what is held and sold.
    StockTooLow {
        /// Held and sold.
        taken: u64,
    },
    /// The room was made without stock, and cannot be given one.
    NoStock,
    /// There is no such room yet.
    Unseeded,
}

/// Where a new room begins.
#[derive(Clone, Debug, Default)]
pub struct Seed {
    /// Admissions per 1,000 seconds.
    pub rate_milli: u64,
    /// Called and admitted at once at most; 0 is no cap.
    pub cap: u64,
    /// Units for sale; none for a room without stock.
    pub stock: Option<u64>,
    /// Opening time; 0 is open.
    pub opens_at_ms: UnixMs,
    /// Closing time; 0 is never.
    pub closes_at_ms: UnixMs,
    /// There was a line before, and the store forgot it: the door stays shut for so long, and the stock's count is unknown.
    pub lost_rebuild_ms: Option<u64>,
}

/// The answer of `seed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seeded {
    /// The epoch of the line.
    pub epoch: Epoch,
    /// This call made the room (else it was there).
    pub fresh: bool,
}
