//! What the waiting routes and the gateway share: what all rooms have in common, and one room with its line and its feed.

use std::sync::Arc;

use bytes::Bytes;
use dashmap::DashMap;
use http::HeaderMap;
use http::header::SET_COOKIE;
use http::response::Parts;

use super::live::Feed;
use super::sight::Face;
use crate::access::AccessLog;
use crate::clock::UnixMs;
use crate::config;
use crate::fault::Fault;
use crate::limit::{Limits, OpenDoor, Over};
use crate::peers::Peers;
use crate::queue::Line;
use crate::response::pages::{Language, Pages};
use crate::room::Room;
use crate::stop::Stop;
use crate::store::scripts::{Epoch, Place};
use crate::telemetry::{Metrics, RoomMetrics};
use crate::token::cookie::{self, Names};
use crate::token::{ADMISSION, Admission, Pass, Ticket, Tokens, Verified};
use crate::visitor::login::Reader;
use crate::visitor::{Address, cookies};

/// What all rooms of a gateway share.
#[derive(Debug)]
pub struct House {
    /// Issues and verifies.
    pub tokens: Arc<Tokens>,
    /// Who is over the limit.
    pub limits: Arc<Limits>,
    /// How cookies are set.
    pub cookies: config::Cookies,
    /// The access log, where there is one.
    pub access: Option<Arc<AccessLog>>,
    /// The pages people see.
    pub pages: Pages,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// How everything ends.
    pub stop: Stop,
    /// `/.waitgate`.
    pub prefix: String,
}

/// One room, its line and its feed.
#[derive(Debug)]
pub struct Hall {
    /// The room's settings in force.
    pub settings: Arc<config::Room>,
    /// The room.
    pub room: Arc<Room>,
    /// Its line.
    pub line: Arc<Line>,
    /// Its streams.
    pub feed: Arc<Feed>,
    /// The names of its cookies.
    pub names: Names,
    /// What is counted of it.
    pub metrics: RoomMetrics,
    /// Reads the shop's login, where the room reads one.
    pub login: Option<Reader>,
    /// `/.waitgate/42`.
    pub routes: String,
    /// The page of whoever has no place yet, by language.
    pub first_pages: DashMap<Language, FirstPage>,
    /// What is told to newcomers once everything is sold, by language.
    pub sold_out_pages: DashMap<Language, Bytes>,
    /// The room's rate in this process, for a room that opens when the store is lost.
    pub open_door: Option<Arc<OpenDoor>>,
    /// The gateways of the room.
    pub peers: Arc<Peers>,
}

/// A page that is the same for all who come within a moment.
#[derive(Clone, Debug)]
pub struct FirstPage {
    /// What the room looked like.
    pub face: Face,
    /// When it was made.
    pub made_ms: UnixMs,
    /// The page.
    pub html: Bytes,
}

/// Who is in front of a room, as far as signatures say.
#[derive(Clone, Debug, Default)]
pub struct Presented {
    /// The shop's user, where the room reads a login.
    pub user: Option<String>,
    /// A ticket of this room.
    pub ticket: Option<Ticket>,
    /// An admission to this room.
    pub pass: Option<Arc<Pass>>,
}

/// When the looking ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enough {
    /// An admission is enough.
    Admission,
    /// All is looked at.
    All,
}

impl Presented {
    /// What limits count this visitor by.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        let ticket = self.ticket.as_ref().map(|ticket| ticket.id.as_str());
        let admission = self.pass.as_ref().map(|pass| pass.admission.user.as_str());
        self.user.as_deref().or(admission).or(ticket)
    }
}

impl Hall {
    /// Verifies what a request presents. Bad signatures count against the address. Whoever shows an admission needs no ticket to pass: `enough` says
    /// that it ends there.
    ///
    /// # Errors
    /// The address has sent too many bad signatures.
    pub fn identify(&self, house: &House, address: Address, headers: &HeaderMap, enough: Enough) -> Result<Presented, Over> {
        let now_ms = self.room.now_ms();
        let user = self.login.as_ref().and_then(|login| login.user(headers, address, now_ms));
        // Where the room reads a login, a ticket or an admission of another user is not this visitor's.
        let pass = self.show_pass(house, address, headers, now_ms)?;
        let pass = pass.filter(|pass| user.as_ref().is_none_or(|user| pass.admission.user == *user));
        let ticket = match &pass {
            Some(_) if enough == Enough::Admission => None,
            _ => self.show_ticket(house, address, headers, now_ms)?,
        };
        let ticket = ticket.filter(|ticket| {
            let own = user.as_ref().map(|user| house.tokens.ticket_id(&self.room.id, Some(user)));
            own.is_none_or(|own| ticket.id == own)
        });
        Ok(Presented { user, ticket, pass })
    }

    fn show_pass(&self, house: &House, address: Address, headers: &HeaderMap, now_ms: UnixMs) -> Result<Option<Arc<Pass>>, Over> {
        // An API client without a cookie jar may send its admission in the header in which a backend is told of it.
        let in_header = headers.get(ADMISSION).and_then(|value| value.to_str().ok());
        for token in cookies(headers, &self.names.admission).chain(in_header) {
            match house.tokens.verify_admission(&self.room.id, token, now_ms) {
                Verified::Good(pass) => return Ok(Some(pass)),
                Verified::Expired => {}
                Verified::Forged => house.limits.forgery(&address)?,
            }
        }
        Ok(None)
    }

    fn show_ticket(&self, house: &House, address: Address, headers: &HeaderMap, now_ms: UnixMs) -> Result<Option<Ticket>, Over> {
        for token in cookies(headers, &self.names.ticket) {
            match house.tokens.verify_ticket(&self.room.id, token, now_ms) {
                Verified::Good(ticket) => return Ok(Some(ticket)),
                Verified::Expired => {}
                Verified::Forged => house.limits.forgery(&address)?,
            }
        }
        Ok(None)
    }

    /// A new ticket without a place.
    #[must_use]
    pub fn new_ticket(&self, house: &House, user: Option<&str>) -> Ticket {
        Ticket {
            id: house.tokens.ticket_id(&self.room.id, user),
            epoch: 0,
            place: 0,
            arrived_ms: self.room.now_ms(),
        }
    }

    /// Sets the ticket's cookie.
    pub fn set_ticket(&self, house: &House, ticket: &Ticket, head: &mut Parts) {
        let now_ms = self.room.now_ms();
        match house.tokens.sign_ticket(&self.room.id, ticket, now_ms) {
            Ok(token) => set(
                head,
                cookie::set(house.cookies, &self.names.ticket, &token, house.tokens.ticket_ttl_s()),
            ),
            Err(fault) => tracing::error!(%fault, "a ticket could not be signed"),
        }
    }

    /// Sets the ticket's cookie if what the visitor holds does not say its place.
    pub fn set_place(&self, house: &House, held: &Ticket, (epoch, place): (Epoch, Place), head: &mut Parts) {
        if held.place != place {
            let ticket = Ticket {
                epoch,
                place,
                ..held.clone()
            };
            self.set_ticket(house, &ticket, head);
        }
    }

    /// Lets a ticket in until then: the same pass for the same admission, however often it is asked for.
    ///
    /// # Errors
    /// The key cannot sign.
    pub fn let_in(&self, house: &House, ticket: &str, user: Option<&str>, until_ms: UnixMs) -> Result<Pass, Fault> {
        let admission = Admission {
            ticket: ticket.to_owned(),
            user: user.unwrap_or(ticket).to_owned(),
            epoch: self.room.live().shown.epoch,
            until_ms,
        };
        let signed = house.tokens.sign_admission(&self.settings, admission, self.room.now_ms());
        signed.map_err(|fault| Fault::Us(format!("an admission could not be signed: {fault}")))
    }

    /// Sets the admission's cookie.
    pub fn set_pass(&self, house: &House, pass: &Pass, head: &mut Parts) {
        let lasts_s = pass.admission.until_ms.saturating_sub(self.room.now_ms()).div_ceil(1000);
        let token = pass.token.to_str().unwrap_or_default();
        set(head, cookie::set(house.cookies, &self.names.admission, token, lasts_s));
    }

    /// Takes the ticket's cookie back.
    pub fn clear_ticket(&self, house: &House, head: &mut Parts) {
        set(head, cookie::clear(house.cookies, &self.names.ticket));
    }
}

fn set(head: &mut Parts, value: Option<http::HeaderValue>) {
    if let Some(value) = value {
        head.headers.append(SET_COOKIE, value);
    }
}
