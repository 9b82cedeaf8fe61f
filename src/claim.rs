//! The stock gate: one step in the store takes the units, and what the backend answers decides whether they stay taken.
//!
//! A 2xx leaves the hold standing until it is confirmed, released or not paid in time. A definite refusal (4xx) releases at once. A time-out or
//! a 5xx releases nothing: the command may have run, and the hold's own end or the backend's word settles it.

use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;

use crate::clock::millis;
use crate::config;
use crate::fault::StoreFault;
use crate::queue::terms;
use crate::room::Room;
use crate::store::scripts::{Answer, Asked, Gate, Verdict};
use crate::token::Admission;
use crate::token::keys::random_id;

pub mod asking;
pub mod kept;

use asking::Unreadable;

/// How much longer than the backend may take a claim counts as in flight.
const FLIGHT_MARGIN_MS: u64 = 2_000;

/// How often the store is told again of the end of a claim, and how many times.
const AGAIN_AFTER: Duration = Duration::from_millis(500);
const ATTEMPTS: usize = 120;

/// Whether this claim goes to the backend for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// Nobody has sent it before.
    First,
    /// It was sent before, and nobody knows what came of it.
    Again,
}

/// A claim, read.
#[derive(Clone, Debug)]
pub struct Claim {
    asked: Asked,
    /// How many replicas must have it before anybody hears of it, and how long they have.
    replicas: (u64, Duration),
}

impl Claim {
    /// Reads a claim's head and body.
    ///
    /// # Errors
    /// The key or the units cannot be read.
    pub fn read(
        settings: &config::Claim,
        first_byte_ms: u64,
        admission: &Admission,
        head: &Parts,
        body: &[u8],
    ) -> Result<Self, Unreadable> {
        let asked = Asked {
            user: admission.user.clone(),
            key: asking::key(head)?,
            fingerprint: asking::fingerprint(head, body),
            reservation: random_id(),
            units: asking::units(head, body, &settings.units_field)?,
            limit: settings.limit,
            hold_ms: millis(settings.hold),
            flight_ms: first_byte_ms + FLIGHT_MARGIN_MS,
        };
        Ok(Self {
            asked,
            replicas: (settings.replicas, settings.replicas_timeout),
        })
    }

    /// The key the client chose; empty when it chose none.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.asked.key
    }

    /// The reservation it would get.
    #[must_use]
    pub fn reservation(&self) -> &str {
        &self.asked.reservation
    }

    /// Asks the gate. A lost reply is asked for once more: the reservation's id is ours, so a repeat finds it.
    ///
    /// # Errors
    /// The store did not answer.
    pub async fn ask(&self, room: &Room) -> Result<Gate, StoreFault> {
        let gate = match self.attempt(room).await {
            Err(StoreFault::Unknown(_)) => self.attempt(room).await?,
            answer => answer?,
        };
        Ok(match gate {
            // A call before this one took the units and its reply was lost: nobody else can know this id, so this is its answer.
            Gate::Already { reservation, .. } if reservation.id == self.asked.reservation => Gate::Reserved(reservation),
            gate => gate,
        })
    }

    /// Asks once. What holds units is true only when as many replicas as the room wants have it, too.
    async fn attempt(&self, room: &Room) -> Result<Gate, StoreFault> {
        let (replicas, limit) = self.replicas;
        if replicas == 0 {
            return room.store.claim(&self.asked).await;
        }
        let primary = room.store.primary()?;
        let gate = room.store.claim(&self.asked).await?;
        let (Gate::Reserved(reservation) | Gate::Already { reservation, .. }) = &gate else {
            return Ok(gate);
        };
        let copied = room.store.copied(&primary, replicas, limit).await;
        if let Err(fault) = copied {
            // It will not be sent now. Whoever was told to send it gives that back, or the next attempt waits for an answer that never comes.
            if !matches!(
                &gate,
                Gate::Already {
                    answer: Answer::InFlight | Answer::Kept(_),
                    ..
                }
            ) {
                let _later = room.store.answer(&reservation.id, None).await;
            }
            return Err(fault);
        }
        Ok(gate)
    }
}

/// What the status of the backend's answer means for the units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// Taken: the hold stands, the answer is kept.
    Accepted,
    /// Refused for good: the units go back, the answer is kept.
    Refused,
    /// Nobody knows: the hold stands, and the claim may be sent again.
    Unknown,
}

/// What the backend's status means. "Come back later" is not a refusal; a conflict on a repeat may be the first attempt's own order.
#[must_use]
pub fn meaning(status: http::StatusCode, attempt: Attempt) -> Meaning {
    match status.as_u16() {
        408 | 425 | 429 => Meaning::Unknown,
        409 if attempt == Attempt::Again => Meaning::Unknown,
        400..=499 => Meaning::Refused,
        200..=399 => Meaning::Accepted,
        _ => Meaning::Unknown,
    }
}

/// What became of a claim, to be written down.
#[derive(Clone, Debug)]
pub struct End {
    /// The reservation's id.
    pub reservation: String,
    /// What it means for the units.
    pub meaning: Meaning,
    /// The backend's answer, where it is kept.
    pub kept: Option<Vec<u8>>,
}

impl End {
    /// Nobody knows what became of it.
    #[must_use]
    pub fn unknown(reservation: &str) -> Self {
        Self {
            reservation: reservation.to_owned(),
            meaning: Meaning::Unknown,
            kept: None,
        }
    }
}

/// Writes down what became of a claim.
///
/// # Errors
/// The store did not hear it; it may be told again.
pub async fn conclude(room: &Room, end: &End) -> Result<(), StoreFault> {
    let (store, id, kept) = (&room.store, end.reservation.as_str(), end.kept.as_deref());
    match end.meaning {
        Meaning::Accepted => store.answer(id, kept).await,
        Meaning::Unknown => store.answer(id, None).await,
        Meaning::Refused => store.settle(&terms(&room.settings()), id, Verdict::Release, kept).await.map(drop),
    }
}

/// Tells the store until it has heard it, a minute at most; what it does not hear is settled by the end of the hold.
pub async fn conclude_later(room: Arc<Room>, end: End) {
    for _attempt in 0..ATTEMPTS {
        tokio::time::sleep(AGAIN_AFTER).await;
        if conclude(&room, &end).await.is_ok() {
            return;
        }
    }
    tracing::error!(
        room = room.id,
        reservation = end.reservation,
        "the end of a claim was never written down"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::StatusCode;

    #[test]
    fn only_a_definite_refusal_gives_units_back() {
        let first = |status| meaning(StatusCode::from_u16(status).unwrap(), Attempt::First);
        assert_eq!([200, 201, 202, 303].map(first), [Meaning::Accepted; 4]);
        assert_eq!([400, 402, 404, 409, 410, 422].map(first), [Meaning::Refused; 6]);
        assert_eq!([408, 425, 429, 500, 502, 503, 504].map(first), [Meaning::Unknown; 7]);
        assert_eq!(meaning(StatusCode::CONFLICT, Attempt::Again), Meaning::Unknown);
    }
}
