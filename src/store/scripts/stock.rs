//! The scripts of the stock gate: claim, answer, settle.

use super::verb::{Verb, Words};
use super::{Answer, Asked, Gate, Held, Reservation, Settled, Terms, Verdict};
use crate::fault::StoreFault;
use crate::store::RoomStore;
use crate::store::keys::Key;

pub(super) static CLAIM: Verb = Verb::new(
    "claim",
    include_str!("../../../lua/claim.lua"),
    &[
        Key::Room,
        Key::Holds,
        Key::Reservations,
        Key::Answers,
        Key::Claims,
        Key::Buyers,
        Key::ClaimsLog,
    ],
);
pub(super) static ANSWER: Verb = Verb::new(
    "answer",
    include_str!("../../../lua/answer.lua"),
    &[Key::Reservations, Key::Answers],
);
pub(super) static SETTLE: Verb = Verb::new(
    "settle",
    include_str!("../../../lua/settle.lua"),
    &[
        Key::Room,
        Key::Holds,
        Key::Reservations,
        Key::Answers,
        Key::Buyers,
        Key::Finished,
        Key::ClaimsLog,
    ],
);

/// A reservation as the store keeps it; every value is a string, so that none passes through Lua's numbers.
#[derive(serde::Deserialize)]
struct Record {
    user: String,
    units: String,
    until: String,
    state: String,
}

fn held(word: &str) -> Option<Held> {
    match word {
        "held" => Some(Held::Held),
        "sold" => Some(Held::Sold),
        "released" => Some(Held::Released),
        "expired" => Some(Held::Expired),
        _ => None,
    }
}

fn reservation(words: &mut Words) -> Result<Reservation, StoreFault> {
    Ok(Reservation {
        id: words.text()?,
        user: words.text()?,
        units: words.number()?,
        until_ms: words.number()?,
        state: {
            let word = words.text()?;
            held(&word).ok_or_else(|| words.nonsense(&word))?
        },
    })
}

impl RoomStore {
    /// Takes units and holds them, unless this claim was made before. In a room that is not seeded the stock is unknown.
    ///
    /// # Errors
    /// Any [`StoreFault`]; the same call, with the same reservation id, may be repeated.
    pub async fn claim(&self, asked: &Asked) -> Result<Gate, StoreFault> {
        let arguments = self
            .at()
            .text(&asked.user)
            .text(&asked.key)
            .text(&asked.fingerprint)
            .text(&asked.reservation);
        let arguments = arguments
            .number(asked.units)
            .number(asked.limit)
            .number(asked.hold_ms)
            .number(asked.flight_ms);
        let mut words = self.run(&CLAIM, arguments.text(self.news())).await?;
        match words.first() {
            "reserved" => Ok(Gate::Reserved(reservation(&mut words)?)),
            "already" => {
                let reservation = reservation(&mut words)?;
                let (word, bytes) = (words.text()?, words.bytes()?);
                let answer = match word.as_str() {
                    "in_flight" => Answer::InFlight,
                    "unknown" => Answer::Unknown,
                    "kept" => Answer::Kept(bytes),
                    other => return Err(words.nonsense(other)),
                };
                Ok(Gate::Already {
                    reservation,
                    answer,
                    same: words.flag()?,
                })
            }
            "mismatch" => Ok(Gate::Mismatch),
            "sold_out" => Ok(Gate::SoldOut),
            "all_held" => Ok(Gate::AllHeld),
            "too_few" => Ok(Gate::TooFew { free: words.number()? }),
            "limit" => Ok(Gate::Limit),
            "stock_unknown" | "unseeded" => Ok(Gate::StockUnknown),
            _ => Err(words.unheard()),
        }
    }

    /// Keeps the backend's answer to a claim. `None`: nobody knows it, and the claim may be sent again.
    ///
    /// # Errors
    /// Any [`StoreFault`]; the same call may be repeated. The first answer stays.
    pub async fn answer(&self, reservation: &str, answer: Option<&[u8]>) -> Result<(), StoreFault> {
        let outcome = if answer.is_some() { "kept" } else { "unknown" };
        let arguments = self.arguments().text(reservation).text(outcome).bytes(answer.unwrap_or_default());
        let words = self.run(&ANSWER, arguments).await?;
        match words.first() {
            "kept" | "kept_before" | "unknown" | "missing" => Ok(()),
            _ => Err(words.unheard()),
        }
    }

    /// Confirms or releases one reservation, exactly once. `answer` is kept as the backend's first, if there is none yet.
    ///
    /// # Errors
    /// Any [`StoreFault`]; the same call may be repeated.
    pub async fn settle(&self, terms: &Terms, reservation: &str, verdict: Verdict, answer: Option<&[u8]>) -> Result<Settled, StoreFault> {
        let verdict = match verdict {
            Verdict::Confirm => "confirm",
            Verdict::Release => "release",
        };
        let arguments = self.at().number(terms.memory_ms).text(reservation).text(verdict);
        let arguments = arguments.bytes(answer.unwrap_or_default()).text(self.news());
        let words = self.run(&SETTLE, arguments).await?;
        match words.first() {
            "confirmed" => Ok(Settled::Confirmed),
            "confirmed_before" => Ok(Settled::ConfirmedBefore),
            "retaken" => Ok(Settled::Retaken),
            "refund" => Ok(Settled::Refund),
            "released" => Ok(Settled::Released),
            "released_before" => Ok(Settled::ReleasedBefore),
            "sold" => Ok(Settled::Sold),
            "missing" | "unseeded" => Ok(Settled::Missing),
            _ => Err(words.unheard()),
        }
    }

    /// One reservation, if it is known.
    ///
    /// # Errors
    /// Any [`StoreFault`].
    pub async fn reservation(&self, id: &str) -> Result<Option<Reservation>, StoreFault> {
        let key = self.keys.get(Key::Reservations);
        let kept: Option<Vec<u8>> = self.ask(redis::cmd("HGET").arg(key).arg(id)).await?;
        let Some(kept) = kept else { return Ok(None) };
        let nonsense = || StoreFault::Nonsense {
            script: "a plain command",
            answer: String::from_utf8_lossy(&kept).chars().take(200).collect(),
        };
        let record: Record = serde_json::from_slice(&kept).map_err(|_| nonsense())?;
        Ok(Some(Reservation {
            id: id.to_owned(),
            user: record.user,
            units: record.units.parse().map_err(|_| nonsense())?,
            until_ms: record.until.parse().map_err(|_| nonsense())?,
            state: held(&record.state).ok_or_else(nonsense)?,
        }))
    }
}
