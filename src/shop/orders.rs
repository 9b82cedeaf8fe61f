//! The shop's orders, and what it tells the gateway about them: paid, or given back.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use http::{Method, StatusCode, Uri};
use serde::{Deserialize, Serialize};

use super::ROOM;
use super::ShopCounts;
use super::ask::Asker;
/// What became of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Payment {
    /// Paid, and confirmed by the gateway.
    Paid,
    /// Paid after the hold ended, and the phone was somebody else's.
    Refunded,
    /// Given back.
    Cancelled,
    /// Paid before, and cannot be given back.
    SoldAlready,
    /// The gateway does not know the reservation.
    Missing,
}

/// The operators' API on what became of a reservation.
#[derive(Debug, Deserialize)]
struct Settled {
    outcome: Option<String>,
    code: Option<String>,
}

/// All orders.
pub(super) struct Orders {
    ops: Asker,
    book: Mutex<Book>,
}

#[derive(Debug, Default)]
struct Book {
    counts: ShopCounts,
    orders: HashMap<String, Order>,
}

#[derive(Debug)]
struct Order {
    owner: String,
    /// What was last said of it: a till that is asked twice, because the first answer was lost, counts once.
    settled: Option<Payment>,
}

impl Orders {
    pub(super) fn new(ops: &Uri) -> Self {
        Self {
            ops: Asker::new(ops),
            book: Mutex::new(Book::default()),
        }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes a count.
    pub(super) fn count(&self, change: impl FnOnce(&mut ShopCounts)) {
        change(&mut self.book().counts);
    }

    /// The counts so far.
    pub(super) fn counts(&self) -> ShopCounts {
        self.book().counts.clone()
    }

    /// Opens an order; the same reservation again is the same order.
    pub(super) fn open(&self, reservation: &str, user: &str) {
        self.book().orders.entry(reservation.to_owned()).or_insert_with(|| Order {
            owner: user.to_owned(),
            settled: None,
        });
    }

    /// Whether this is an order of this visitor.
    pub(super) fn belongs_to(&self, reservation: &str, user: &str) -> bool {
        self.book().orders.get(reservation).is_some_and(|order| order.owner == user)
    }

    /// Tells the gateway that an order is paid, or given back. Both may be said again.
    pub(super) async fn settle(&self, reservation: &str, pay: bool) -> Result<Payment, String> {
        let verb = if pay { "confirm" } else { "release" };
        let path = format!("/v1/rooms/{ROOM}/reservations/{reservation}/{verb}");
        let (status, body) = self.ops.ask(Method::POST, &path, "").await?;
        if status == StatusCode::NOT_FOUND {
            return Ok(Payment::Missing);
        }
        let unread = || format!("{verb} was answered {status}: {}", String::from_utf8_lossy(&body));
        let settled: Settled = serde_json::from_slice(&body).map_err(|_| unread())?;
        let word = settled.outcome.or(settled.code).unwrap_or_default();
        let payment = match word.as_str() {
            "confirmed" | "confirmed_before" | "retaken" => Payment::Paid,
            "refund_due" => Payment::Refunded,
            "released" | "released_before" => Payment::Cancelled,
            "already_sold" => Payment::SoldAlready,
            _ => return Err(unread()),
        };
        self.note(reservation, payment);
        Ok(payment)
    }
    /// Counts what became of an order, once.
    fn note(&self, reservation: &str, payment: Payment) {
        let mut book = self.book();
        let Some(order) = book.orders.get_mut(reservation) else { return };
        if order.settled.replace(payment) == Some(payment) {
            return;
        }
        match payment {
            Payment::Paid => book.counts.paid += 1,
            Payment::Refunded => book.counts.refunded += 1,
            Payment::Cancelled => book.counts.cancelled += 1,
            Payment::SoldAlready | Payment::Missing => {}
        }
    }
}
