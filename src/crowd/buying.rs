//! Buying: ask for a phone, once or by a double click, and pay; or not.

use std::time::Duration;

use http::StatusCode;
use tokio::time::sleep;

use super::browser::{Browser, Content, Kind};
use super::character::{Purse, Transport, between};
use super::landing::between_marks;
use super::micros;
use super::visit::{End, Visit};
use super::wire::{Reply, Trouble};

/// What the answer to a claim means.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Claimed {
    /// This reservation is the visitor's.
    Reserved(String),
    /// Ask again after this long, with the same key.
    Later(Duration),
    /// Nobody knows what became of the claim, and it is over: ask with a new key.
    Over,
    /// "No".
    SoldOut,
    /// The time in the shop is over.
    Outside,
    /// None of these.
    Strange(String),
}

/// Strange answers to a claim, or to a payment, before a visitor gives up.
const STRANGE_ANSWERS: u32 = 10;

impl Visit {
    /// From the shop's page to a phone, or to the reason why not.
    pub(super) async fn buy(&mut self, purse: Purse) -> Result<End, Trouble> {
        let world = std::sync::Arc::clone(&self.browser.world);
        let mut key = new_key();
        let mut strange = 0;
        let reservation = loop {
            let first_click = strange == 0 && matches!(purse, Purse::ClicksTwice { .. });
            let (claimed, took) = match purse {
                Purse::ClicksTwice { same_key } if first_click => self.click_twice(&key, same_key).await?,
                _ => {
                    let reply = self.click(&key).await?;
                    (read(&reply, self.is_paid()), reply.took)
                }
            };
            match claimed {
                Claimed::Reserved(reservation) => break reservation,
                Claimed::Later(pause) => sleep(pause + between(0, 1_000)).await,
                Claimed::Over => key = new_key(),
                Claimed::SoldOut => {
                    world.measure(|samples| samples.no_at_claim_us.push(micros(took)));
                    return Ok(End::NoAtClaim);
                }
                Claimed::Outside => {
                    world.measure(|samples| samples.wonder("the time in the shop ended before the claim was answered".to_owned()));
                    return Ok(End::Stranded);
                }
                Claimed::Strange(what) if strange < STRANGE_ANSWERS => {
                    strange += 1;
                    world.measure(|samples| samples.wonder(format!("a claim was answered {what}")));
                    sleep(between(500, 1_500)).await;
                }
                Claimed::Strange(_) => return Ok(End::Stranded),
            }
        };
        self.settle(purse, &reservation).await
    }

    fn is_paid(&self) -> bool {
        self.browser.world.sale.pay.is_some()
    }

    fn claim_path(&self) -> String {
        self.browser.world.sale.claim.clone().unwrap_or_default()
    }

    /// One click on "Buy": a form where there is no JavaScript, a script's request with a key otherwise.
    async fn click(&mut self, key: &str) -> Result<Reply, Trouble> {
        let claim = self.claim_path();
        if self.character.transport == Transport::NoScript {
            return self.browser.post(Kind::Navigate, &claim, Content::form("quantity=1")).await;
        }
        self.browser
            .post(Kind::Fetch, &claim, Content::json("{\"quantity\":1}", Some(key)))
            .await
    }

    /// Two clicks so quick that both requests are on their way at once.
    async fn click_twice(&mut self, key: &str, same_key: bool) -> Result<(Claimed, Duration), Trouble> {
        let other_key = if same_key { key.to_owned() } else { format!("{key}-again") };
        let (mut other, claim) = (self.browser.tab(), self.claim_path());
        let content = Content::json("{\"quantity\":1}", Some(&other_key));
        let (one, two) = tokio::join!(self.click(key), other.post(Kind::Fetch, &claim, content));
        let (one, two) = (one?, two?);
        let (first, second) = (read(&one, self.is_paid()), read(&two, self.is_paid()));
        if let (Claimed::Reserved(first), Claimed::Reserved(second)) = (&first, &second)
            && first != second
        {
            let oddity = format!("a double click (same key: {same_key}) got two reservations, {first} and {second}");
            self.browser.world.count(|counts| counts.twice += 1);
            self.browser.world.measure(|samples| samples.wonder(oddity));
        }
        Ok(match (first, second) {
            (reserved @ Claimed::Reserved(_), _) => (reserved, one.took),
            (_, reserved @ Claimed::Reserved(_)) => (reserved, two.took),
            (first, _) => (first, one.took),
        })
    }

    /// Pays, or not.
    async fn settle(&mut self, purse: Purse, reservation: &str) -> Result<End, Trouble> {
        let world = std::sync::Arc::clone(&self.browser.world);
        let Some(pay) = &world.sale.pay else {
            return Ok(End::Won); // a unit is reserved, and nobody knows how it is paid for
        };
        match purse {
            Purse::NeverPays => return Ok(End::Unpaid),
            Purse::Declines => {
                let Some(cancel) = &world.sale.cancel else {
                    return Ok(End::Unpaid);
                };
                sleep(between(500, 3_000)).await;
                let reply = self.send_order(cancel, reservation).await?;
                if !reply.status.is_success() {
                    let status = reply.status;
                    self.browser
                        .world
                        .measure(|samples| samples.wonder(format!("giving a phone back was answered {status}")));
                }
                return Ok(End::Declined);
            }
            Purse::PaysLate => sleep(world.hold + between(1_500, 2_500)).await,
            Purse::Pays | Purse::ClicksTwice { .. } | Purse::Looks => sleep(between(500, 4_000)).await,
        }
        for _ in 0..STRANGE_ANSWERS {
            let reply = self.send_order(pay, reservation).await?;
            match reply.status {
                StatusCode::OK => return Ok(End::Won),
                StatusCode::CONFLICT | StatusCode::GONE => return Ok(End::NoAtPayment),
                status => {
                    self.browser
                        .world
                        .measure(|samples| samples.wonder(format!("a payment was answered {status}")));
                    sleep(between(500, 1_500)).await;
                }
            }
        }
        Ok(End::Stranded)
    }

    async fn send_order(&mut self, path: &str, reservation: &str) -> Result<Reply, Trouble> {
        let fields = Content::form(&format!("reservation={reservation}"));
        self.browser.post(self.kind(), path, fields).await
    }

    fn kind(&self) -> Kind {
        if self.character.transport == Transport::NoScript {
            Kind::Navigate
        } else {
            Kind::Fetch
        }
    }
}

/// A key for one purchase.
fn new_key() -> String {
    format!("{:016x}", fastrand::u64(..))
}

/// What a claim's answer means; `paid` when its reservation is needed to pay for it.
fn read(reply: &Reply, paid: bool) -> Claimed {
    if reply.status.is_success() {
        return match reservation_in(reply) {
            Some(reservation) => Claimed::Reserved(reservation),
            None if !paid => Claimed::Reserved(String::new()),
            None => Claimed::Strange(format!("{} without a reservation", reply.status)),
        };
    }
    let code = reply.code().unwrap_or_default();
    let second = Duration::from_secs(1);
    match (reply.status, code.as_str()) {
        (StatusCode::CONFLICT, "sold_out") => Claimed::SoldOut,
        (StatusCode::CONFLICT, "all_held" | "claim_in_progress") => Claimed::Later(reply.retry_after(second)),
        (StatusCode::CONFLICT, "claim_over") => Claimed::Over,
        // The other click holds it: the first answer comes with the same key.
        (StatusCode::CONFLICT, "already_reserved" | "limit_reached") => Claimed::Later(second),
        (StatusCode::TOO_MANY_REQUESTS, "waiting_room") => Claimed::Outside,
        (StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE, _) => Claimed::Later(reply.retry_after(second)),
        (status, code) => match page_code(reply) {
            Some("sold_out") => Claimed::SoldOut,
            Some("all_held") => Claimed::Later(reply.retry_after(second)),
            Some(page) => Claimed::Strange(format!("{status} with the page {page}")),
            None => Claimed::Strange(format!("{status} {code}")),
        },
    }
}

/// The state a page of the gateway shows.
fn page_code(reply: &Reply) -> Option<&str> {
    between_marks(std::str::from_utf8(&reply.body).ok()?, "<body data-state=\"", "\"")
}

/// The reservation in the shop's order, JSON or page.
fn reservation_in(reply: &Reply) -> Option<String> {
    let text = std::str::from_utf8(&reply.body).ok()?;
    between_marks(text, "\"reservation\":\"", "\"")
        .or_else(|| between_marks(text, "name=\"reservation\" value=\"", "\""))
        .map(str::to_owned)
}

/// A robot: one ticket, several connections, and as fast as it can. It is no visitor: the "no" it gets is "too many requests".
pub(super) async fn hammer(mut browser: Browser, connections: usize, requests: u32) -> Result<(), Trouble> {
    let page = browser.world.sale.page.clone();
    browser.navigate(&page).await?;
    let arms = (0..connections).map(|_| {
        let (mut arm, page) = (browser.tab(), page.clone());
        async move {
            for _ in 0..requests {
                let reply = arm.fetch(&page).await?;
                if reply.code().as_deref() == Some("rate_limited") {
                    arm.world.count(|counts| counts.no_to_robots += 1);
                    arm.world.measure(|samples| samples.too_many_us.push(micros(reply.took)));
                }
            }
            Ok(())
        }
    });
    futures_util::future::try_join_all(arms).await.map(drop)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::HeaderMap;

    use super::*;

    fn reply(status: u16, body: &str) -> Reply {
        Reply {
            status: StatusCode::from_u16(status).unwrap(),
            headers: HeaderMap::new(),
            body: Bytes::copy_from_slice(body.as_bytes()),
            took: Duration::ZERO,
        }
    }

    #[test]
    fn answers_to_a_claim_are_read() {
        assert_eq!(
            read(&reply(200, "{\"reservation\":\"r1\",\"state\":\"held\"}"), true),
            Claimed::Reserved("r1".to_owned())
        );
        let page = "<input type=\"hidden\" name=\"reservation\" value=\"r2\">";
        assert_eq!(read(&reply(200, page), true), Claimed::Reserved("r2".to_owned()));
        assert_eq!(read(&reply(409, "{\"code\":\"sold_out\"}"), true), Claimed::SoldOut);
        assert_eq!(read(&reply(409, "<body data-state=\"sold_out\">"), true), Claimed::SoldOut);
        assert!(matches!(read(&reply(409, "{\"code\":\"all_held\"}"), true), Claimed::Later(_)));
        assert_eq!(read(&reply(429, "{\"code\":\"waiting_room\"}"), true), Claimed::Outside);
        assert!(matches!(read(&reply(500, ""), true), Claimed::Strange(_)));
        assert!(matches!(read(&reply(200, ""), true), Claimed::Strange(_)));
    }
}
