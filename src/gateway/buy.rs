//! A claim: ask the gate, send it on with its reservation, and write down what the backend answered.
//!
//! From the moment the gate has taken units, the rest runs in a task of its own: a buyer who closes the tab does not leave a claim half done.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};

use super::refuse::Refusal;
use super::{Arrival, Gateway, body_fault};
use crate::access::Code;
use crate::body::Body;
use crate::claim::asking::{IDEMPOTENCY_KEY, Unreadable};
use crate::claim::kept::{self, MAX_ANSWER};
use crate::claim::{Attempt, Claim, End, Meaning, conclude, conclude_later, meaning};
use crate::fault::{ClientFault, Fault, StoreFault, UpstreamFault};
use crate::response::pages::Notice;
use crate::response::problem::Problem;
use crate::room::Room;
use crate::store::scripts::{Answer, Gate, Held, Reservation};
use crate::token::Pass;
use crate::waiting::hall::Hall;

/// The reservation a claim was given.
const RESERVATION: HeaderName = HeaderName::from_static("waitgate-reservation");
/// How many units it holds.
const UNITS: HeaderName = HeaderName::from_static("waitgate-units");
/// When the hold ends, in Unix seconds.
const EXPIRES: HeaderName = HeaderName::from_static("waitgate-expires");

impl Gateway {
    pub(super) async fn buy(self: &Gateway, hall: &Arc<Hall>, pass: &Arc<Pass>, arrival: Box<Arrival>) -> Result<Response<Body>, Fault> {
        let refusal = Refusal::of(&arrival.head);
        let room = &hall.room;
        let Some(settings) = &hall.settings.claim else {
            return Err(Fault::Us(format!("room {} has no claim route", room.id)));
        };
        let Arrival {
            head,
            body,
            address,
            peer,
            host,
            note,
        } = *arrival;
        let bytes = collect(body, settings.max_body_bytes).await?;
        let claim = match Claim::read(settings, self.first_byte_ms, &pass.admission, &head, &bytes) {
            Ok(claim) => claim,
            Err(unreadable) => return Ok(self.refuse(hall, &refusal, "unreadable", unreadable_problem(unreadable))),
        };
        let (reservation, attempt) = match self.ask_gate(hall, &claim, &refusal).await? {
            Passed::On(reservation, attempt) => (reservation, attempt),
            Passed::Answer(response) => return Ok(*response),
        };
        let key = if claim.key().is_empty() {
            reservation.id.clone()
        } else {
            claim.key().to_owned()
        };
        let mut added = reserved_headers(&reservation, &key);
        added.extend(pass.told.clone());
        let body = Body::full(bytes);
        let arrival = Box::new(Arrival {
            head,
            body,
            address,
            peer,
            host,
            note,
        });
        self.send_claim(hall, (reservation, attempt), added, arrival).await
    }

    /// What the gate says: on with a reservation, or an answer.
    async fn ask_gate(&self, hall: &Arc<Hall>, claim: &Claim, refusal: &Refusal) -> Result<Passed, Fault> {
        let room = &hall.room;
        let gate = match claim.ask(room).await {
            Ok(gate) => gate,
            Err(fault) => {
                hall.metrics.claimed("store_unavailable");
                if matches!(fault, StoreFault::Unknown(_) | StoreFault::Copies { .. }) {
                    // It may have taken units, and nothing was sent: the next attempt need not wait for an answer that never comes.
                    self.write_down_later(room, End::unknown(claim.reservation()));
                }
                return Err(fault.into());
            }
        };
        Ok(match gate {
            Gate::Reserved(reservation) => Passed::On(reservation, Attempt::First),
            Gate::Already { reservation, answer, same } => match repeat(&reservation, answer, same) {
                Repeat::Send => Passed::On(reservation, Attempt::Again),
                Repeat::Replay(response) => {
                    hall.metrics.claimed("replayed");
                    Passed::Answer(response)
                }
                Repeat::Refuse(code, problem) => Passed::Answer(Box::new(self.refuse(hall, refusal, code, problem))),
            },
            Gate::SoldOut => {
                hall.metrics.claimed("sold_out");
                let mut answer = refusal.sold_out(&self.house, hall);
                answer.extensions_mut().insert(Code("sold_out")); // for the log: that a claim was decided upon does not say so
                Passed::Answer(Box::new(answer))
            }
            Gate::AllHeld => {
                hall.metrics.claimed("all_held");
                Passed::Answer(Box::new(refusal.all_held(&self.house, hall)))
            }
            refused => {
                let (code, problem) = gate_problem(&refused);
                Passed::Answer(Box::new(self.refuse(hall, refusal, code, problem)))
            }
        })
    }

    /// Sends the claim, and sees to it that its end is written down even if the buyer is gone by then.
    async fn send_claim(
        &self,
        hall: &Arc<Hall>,
        (reservation, attempt): (Reservation, Attempt),
        added: HeaderMap,
        arrival: Box<Arrival>,
    ) -> Result<Response<Body>, Fault> {
        let gateway = self.me().ok_or_else(|| Fault::Us("the gateway is gone".to_owned()))?;
        let hall = Arc::clone(hall);
        let sent = self.house.stop.tasks.spawn(async move {
            let outcome = match gateway.group(&hall) {
                Ok(to) => gateway.send(to, &added, arrival).await,
                Err(fault) => Err(fault),
            };
            gateway.conclude(&hall, (reservation.id, attempt), outcome).await
        });
        sent.await
            .unwrap_or_else(|broken| Err(Fault::Us(format!("a claim's task ended: {broken}"))))
    }

    /// Reads the backend's answer, writes down what it means, and hands it on.
    async fn conclude(
        &self,
        hall: &Hall,
        (reservation, attempt): (String, Attempt),
        outcome: Result<Response<Body>, Fault>,
    ) -> Result<Response<Body>, Fault> {
        let response = match outcome {
            Ok(response) => response,
            Err(fault) => {
                hall.metrics.claimed("unknown");
                // Nothing was sent, or nobody knows: either way the same claim may be sent again, and the hold's own end settles it.
                self.write_down(&hall.room, End::unknown(&reservation)).await;
                return Err(fault);
            }
        };
        let meaning = meaning(response.status(), attempt);
        hall.metrics.claimed(match meaning {
            Meaning::Accepted => "accepted",
            Meaning::Refused => "refused",
            Meaning::Unknown => "unknown",
        });
        let (head, body) = response.into_parts();
        let read = Limited::new(body, MAX_ANSWER).collect().await.map(|collected| collected.to_bytes());
        let kept = match &read {
            Ok(bytes) if meaning != Meaning::Unknown => kept::keep(&head, bytes),
            _ => None,
        };
        let end = End {
            reservation,
            meaning,
            kept,
        };
        self.write_down(&hall.room, end).await;
        match read {
            Ok(bytes) => Ok(Response::from_parts(head, Body::full(bytes))),
            Err(fault) if fault.is::<LengthLimitError>() => Err(UpstreamFault::Malformed("a claim's answer is longer than 64 KiB").into()),
            Err(_) => Err(UpstreamFault::Malformed("a claim's answer broke off").into()),
        }
    }

    /// Writes the end of a claim down: now, or as soon as the store hears it, without keeping the buyer waiting.
    async fn write_down(&self, room: &Arc<Room>, end: End) {
        if let Err(fault) = conclude(room, &end).await {
            tracing::warn!(room = room.id, reservation = end.reservation, %fault, "the end of a claim is written down later");
            self.write_down_later(room, end);
        }
    }

    fn write_down_later(&self, room: &Arc<Room>, end: End) {
        let (telling, cut) = (conclude_later(Arc::clone(room), end), self.house.stop.cut.clone());
        self.house.stop.tasks.spawn(async move { cut.run_until_cancelled(telling).await });
    }

    fn refuse(&self, hall: &Hall, refusal: &Refusal, outcome: &'static str, problem: Problem) -> Response<Body> {
        hall.metrics.claimed(outcome);
        let notice = match problem.code {
            "already_reserved" | "limit_reached" => Notice::Already,
            "claim_in_progress" => Notice::InProgress,
            "too_few_left" => Notice::TooFew,
            "claim_over" => Notice::BackendUnsure,
            "stock_unknown" => Notice::Unavailable,
            _ => Notice::BadRequest,
        };
        refusal.say(&self.house, Some(&hall.room.id), notice, problem)
    }
}

/// The body of a claim, in memory while the gate is asked.
async fn collect(body: Body, max: usize) -> Result<Bytes, Fault> {
    match Limited::new(body, max).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(fault) if fault.is::<LengthLimitError>() => Err(ClientFault::BodyTooLarge { limit: max as u64 }.into()),
        Err(fault) => Err(body_fault(fault.as_ref()).into()),
    }
}

/// What came of asking the gate.
enum Passed {
    /// Units are held: the claim goes to the backend.
    On(Reservation, Attempt),
    /// The claim ends here.
    Answer(Box<Response<Body>>),
}

/// What a repeat gets.
enum Repeat {
    /// It goes to the backend again, with the same reservation.
    Send,
    /// The first answer.
    Replay(Box<Response<Body>>),
    /// No.
    Refuse(&'static str, Problem),
}

fn repeat(reservation: &Reservation, answer: Answer, same: bool) -> Repeat {
    let conflict = |code, title, detail: &str| {
        let state = match reservation.state {
            Held::Held => "held",
            Held::Sold => "sold",
            Held::Released => "released",
            Held::Expired => "expired",
        };
        Problem::new(StatusCode::CONFLICT, code, title, detail)
            .with("reservation", reservation.id.as_str())
            .with("units", reservation.units)
            .with("state", state)
    };
    match answer {
        Answer::Kept(kept) if same => match kept::replay(&kept) {
            Some(response) => Repeat::Replay(Box::new(response)),
            None => Repeat::Send,
        },
        Answer::InFlight if same => {
            let problem = conflict(
                "claim_in_progress",
                "The same claim is on its way",
                "Ask again in a moment for its answer.",
            );
            Repeat::Refuse("in_progress", problem.header(RETRY_AFTER, 1))
        }
        Answer::Unknown if same && reservation.state == Held::Held => Repeat::Send,
        Answer::Unknown if same => {
            let detail = "Nobody knows what the shop answered to this claim, and its units are no longer held. Claim again with a new key.";
            Repeat::Refuse("over", conflict("claim_over", "The claim is over", detail))
        }
        Answer::Kept(_) | Answer::InFlight | Answer::Unknown => {
            let detail = "This buyer holds a reservation already; this is its id.";
            Repeat::Refuse("already", conflict("already_reserved", "Already reserved", detail))
        }
    }
}

fn gate_problem(gate: &Gate) -> (&'static str, Problem) {
    let conflict = |code, title, detail: &str| Problem::new(StatusCode::CONFLICT, code, title, detail);
    match gate {
        Gate::Mismatch => {
            let detail = "This key was used for another claim. Nothing was taken.";
            (
                "mismatch",
                Problem::new(
                    StatusCode::UNPROCESSABLE_ENTITY,
                    "idempotency_mismatch",
                    "The key was used before",
                    detail,
                ),
            )
        }
        Gate::TooFew { free } => {
            let detail = format!("Only {free} are left. Nothing was taken.");
            ("too_few", conflict("too_few_left", "Not enough left", &detail).with("free", *free))
        }
        Gate::Limit => (
            "limit",
            conflict("limit_reached", "The limit is reached", "This buyer may have no more."),
        ),
        Gate::StockUnknown | Gate::Reserved(_) | Gate::Already { .. } | Gate::SoldOut | Gate::AllHeld => {
            let detail = "The count of the stock was lost; an operator must set it before anything is sold.";
            let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "stock_unknown", "The stock is not known", detail);
            ("stock_unknown", problem.header(RETRY_AFTER, 10))
        }
    }
}

fn unreadable_problem(unreadable: Unreadable) -> Problem {
    match unreadable {
        Unreadable::Key => Problem::new(
            StatusCode::BAD_REQUEST,
            "bad_idempotency_key",
            "The key cannot be read",
            "Send one Idempotency-Key of 1 to 128 printable characters without spaces.",
        ),
        Unreadable::Units => Problem::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "bad_units",
            "The units cannot be read",
            "The number of units must be a whole number from 1.",
        ),
    }
}

fn reserved_headers(reservation: &Reservation, key: &str) -> HeaderMap {
    let mut added = HeaderMap::new();
    added.insert(UNITS, reservation.units.into());
    added.insert(EXPIRES, (reservation.until_ms / 1000).into());
    for (name, value) in [(RESERVATION, reservation.id.as_str()), (IDEMPOTENCY_KEY, key)] {
        if let Ok(value) = HeaderValue::from_str(value) {
            added.insert(name, value);
        }
    }
    added
}
