//! What a visitor is told: the one shape behind the page, the live events and `status`.

use serde::Serialize;

use crate::clock::UnixMs;

/// Where a visitor stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// The room has not opened: the page counts down.
    Countdown,
    /// In line.
    Waiting,
    /// In line, and among the next.
    Nearly,
    /// Called: the turn is held until `turn_until_ms`.
    Turn,
    /// In line, and nobody is being called.
    Paused,
    /// Everything is sold; nothing can return.
    SoldOut,
    /// Everything is held by somebody who may still not pay; units may return, and the place is kept.
    AllHeld,
    /// The room is closed.
    Closed,
    /// Let in.
    Admitted,
    /// No longer in line; `reason` says why.
    Gone,
}

/// Why a visitor is no longer in line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Left by the button.
    Left,
    /// The turn came, and nobody took it.
    Lapsed,
    /// Away for too long.
    Abandoned,
    /// The time in the shop is over.
    Ended,
}

/// Absolute state: whoever sees one of these needs none before it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct View {
    /// Where the visitor stands.
    pub state: State,
    /// Only with `gone`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// How many live visitors are ahead. Missing where there is no line to be in, or no place yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ahead: Option<u64>,
    /// The wait, as a range in seconds, from the measured rate. Missing while nobody is being called.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_low_s: Option<u64>,
    /// The upper end of the range.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_high_s: Option<u64>,
    /// When the numbers were true.
    pub updated_at_ms: UnixMs,
    /// When the room opens. Only with `countdown`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub opens_at_ms: Option<UnixMs>,
    /// Until when the turn is held, or the admission lasts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn_until_ms: Option<UnixMs>,
    /// The operators' word to the waiting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The line's store is away: the place is kept, and nobody is called until it is back.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub delayed: bool,
    /// When to ask again, for whoever polls.
    pub poll_after_s: u64,
}
