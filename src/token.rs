//! Tickets and admissions: issue, verify, rotate keys, JWKS.
//!
//! Tickets are HS256 (ours alone). Admissions are EdDSA, so that a backend can check one by the JWKS without holding a secret; a verified
//! admission is remembered until it expires, so the costly check is paid once per token and gateway. One algorithm per key, no leeway: time
//! comes from the store's clock for everybody. Whatever is malformed is "not admitted", never an error and never "let through".

use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;
use dashmap::DashMap;
use http::{HeaderMap, HeaderName, HeaderValue};
use jsonwebtoken::{Algorithm, Header, Validation};
use serde::{Deserialize, Serialize};

use crate::clock::UnixMs;
use crate::config;
use crate::store::scripts::{Epoch, Place};

pub mod cookie;
pub mod keys;

use keys::{KeyFault, Keyring};

/// Tokens longer than this are not looked at.
const MAX_TOKEN_BYTES: usize = 1024;
/// Verified admissions remembered at most; beyond that each is checked anew.
const MAX_REMEMBERED: usize = 100_000;
/// Admissions are issued as of a moment ago, so that a verifier whose clock is behind believes them.
const BACKDATE_S: u64 = 5;
/// How far the clock of whoever signed an admission may be ahead, s; what says to be of later is not of now.
const AHEAD_S: u64 = 60;

/// Signed proof of a place in line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// Its id.
    pub id: String,
    /// The epoch of the line it has a place in; 0 when it has none yet.
    pub epoch: Epoch,
    /// Its place; 0 when it has none yet.
    pub place: Place,
    /// When the visitor first arrived, by the store's clock.
    pub arrived_ms: UnixMs,
}

/// Proof that somebody was let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// The ticket it was given for.
    pub ticket: String,
    /// The shop's user, or the ticket where the room reads no login.
    pub user: String,
    /// The epoch of the line it came from.
    pub epoch: Epoch,
    /// When it expires.
    pub until_ms: UnixMs,
}

/// An admission together with the token that proves it, as a backend is given it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pass {
    /// What it says.
    pub admission: Admission,
    /// The token, as a header's value; marked so that no log shows it.
    pub token: HeaderValue,
    /// What the backend is told of it with each request: the room, the user and the token.
    pub told: HeaderMap,
}

/// Which room let the visitor in.
pub const ROOM: HeaderName = HeaderName::from_static("waitgate-room");
/// Whom: the shop's own user, or the ticket where the room reads no login.
pub const USER: HeaderName = HeaderName::from_static("waitgate-user");
/// The admission itself.
pub const ADMISSION: HeaderName = HeaderName::from_static("waitgate-admission");

/// What a token turned out to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verified<T> {
    /// Good.
    Good(T),
    /// Was good, and is over.
    Expired,
    /// Not ours, or not whole.
    Forged,
}

#[derive(Serialize, Deserialize)]
struct TicketClaims {
    r: String,
    i: String,
    e: Epoch,
    p: Place,
    a: UnixMs,
    exp: u64,
}

#[derive(Serialize, Deserialize)]
struct AdmissionClaims {
    iss: String,
    aud: String,
    sub: String,
    jti: String,
    iat: u64,
    exp: u64,
    room: String,
    epoch: Epoch,
}

/// Issues and verifies.
#[derive(Debug)]
pub struct Tokens {
    ring: ArcSwap<Keyring>,
    file: PathBuf,
    issuer: String,
    ticket_ttl_ms: u64,
    remembered: DashMap<Box<str>, Remembered, ahash::RandomState>,
}

#[derive(Clone, Debug)]
struct Remembered {
    room: Box<str>,
    pass: Arc<Pass>,
}

impl Tokens {
    /// Reads the key file, or makes one.
    ///
    /// # Errors
    /// The file cannot be read, written or understood.
    pub fn new(settings: &config::Tokens, now_ms: UnixMs) -> Result<Self, KeyFault> {
        let ring = Keyring::read_or_make(&settings.key_file, now_ms)?;
        Ok(Self {
            ring: ArcSwap::from_pointee(ring),
            file: settings.key_file.clone(),
            issuer: settings.issuer.clone(),
            ticket_ttl_ms: crate::clock::millis(settings.ticket_ttl),
            remembered: DashMap::default(),
        })
    }

    /// Reads the key file again if it changed: a rotation reaches every gateway before the new key signs.
    ///
    /// # Errors
    /// As [`Tokens::new`]; the old keys stay in use.
    pub fn reload(&self) -> Result<bool, KeyFault> {
        let Some(ring) = self.ring.load().reread(&self.file)? else {
            return Ok(false);
        };
        self.ring.store(Arc::new(ring));
        self.remembered.clear();
        Ok(true)
    }

    /// The public keys of admissions, for backends.
    #[must_use]
    pub fn jwks(&self) -> bytes::Bytes {
        self.ring.load().jwks()
    }

    /// The names of the keys that are believed, sorted.
    #[must_use]
    pub fn key_ids(&self) -> Vec<String> {
        self.ring.load().ids()
    }

    /// How long a ticket is good for.
    #[must_use]
    pub fn ticket_ttl_s(&self) -> u64 {
        self.ticket_ttl_ms / 1000
    }

    /// A new ticket's id: random, or the same for the same login, so that a login has one place however many devices it has.
    #[must_use]
    pub fn ticket_id(&self, room: &str, user: Option<&str>) -> String {
        user.map_or_else(keys::random_id, |user| self.ring.load().login_id(room, user))
    }

    /// Signs a ticket.
    ///
    /// # Errors
    /// The key cannot sign.
    pub fn sign_ticket(&self, room: &str, ticket: &Ticket, now_ms: UnixMs) -> Result<String, KeyFault> {
        let claims = TicketClaims {
            r: room.to_owned(),
            i: ticket.id.clone(),
            e: ticket.epoch,
            p: ticket.place,
            a: ticket.arrived_ms,
            exp: (now_ms + self.ticket_ttl_ms) / 1000,
        };
        let ring = self.ring.load();
        let key = ring.signer(now_ms);
        Ok(jsonwebtoken::encode(
            &header(Algorithm::HS256, &key.kid),
            &claims,
            &key.ticket_encoding,
        )?)
    }

    /// Verifies a ticket of a room.
    #[must_use]
    pub fn verify_ticket(&self, room: &str, token: &str, now_ms: UnixMs) -> Verified<Ticket> {
        let ring = self.ring.load();
        let Some(key) = known_key(&ring, token, Algorithm::HS256) else {
            return Verified::Forged;
        };
        let mut validation = strict(Algorithm::HS256);
        validation.validate_aud = false; // the room is checked below
        match jsonwebtoken::decode::<TicketClaims>(token, &key.ticket_decoding, &validation) {
            Ok(token) if token.claims.r != room || !is_id(&token.claims.i) => Verified::Forged,
            Ok(token) if token.claims.exp <= now_ms / 1000 => Verified::Expired,
            Ok(token) => Verified::Good(Ticket {
                id: token.claims.i,
                epoch: token.claims.e,
                place: token.claims.p,
                arrived_ms: token.claims.a,
            }),
            Err(_) => Verified::Forged,
        }
    }

    /// Signs an admission. The same admission is signed to the same token, however often it is asked for.
    ///
    /// # Errors
    /// The key cannot sign.
    pub fn sign_admission(&self, room: &config::Room, admission: Admission, now_ms: UnixMs) -> Result<Pass, KeyFault> {
        let lasts_s = room.admission_ttl.as_secs();
        let exp = admission.until_ms / 1000;
        let claims = AdmissionClaims {
            iss: self.issuer.clone(),
            aud: room.id.clone(),
            sub: admission.user.clone(),
            jti: admission.ticket.clone(),
            iat: exp.saturating_sub(lasts_s + BACKDATE_S),
            exp,
            room: room.id.clone(),
            epoch: admission.epoch,
        };
        let ring = self.ring.load();
        let key = ring.signer(now_ms);
        let token = jsonwebtoken::encode(&header(Algorithm::EdDSA, &key.kid), &claims, &key.admission_encoding)?;
        pass(&room.id, admission, &token).ok_or(KeyFault::Text)
    }

    /// Verifies an admission to a room, from memory where it was verified before.
    #[must_use]
    pub fn verify_admission(&self, room: &str, token: &str, now_ms: UnixMs) -> Verified<Arc<Pass>> {
        if let Some(known) = self.remembered.get(token).filter(|known| &*known.room == room) {
            let good = known.pass.admission.until_ms > now_ms;
            return if good {
                Verified::Good(Arc::clone(&known.pass))
            } else {
                Verified::Expired
            };
        }
        let verified = self.check_admission(room, token, now_ms);
        if let Verified::Good(pass) = &verified
            && self.remembered.len() < MAX_REMEMBERED
        {
            let remembered = Remembered {
                room: room.into(),
                pass: Arc::clone(pass),
            };
            self.remembered.insert(token.into(), remembered);
        }
        verified
    }

    fn check_admission(&self, room: &str, token: &str, now_ms: UnixMs) -> Verified<Arc<Pass>> {
        let ring = self.ring.load();
        let Some(key) = known_key(&ring, token, Algorithm::EdDSA) else {
            return Verified::Forged;
        };
        let mut validation = strict(Algorithm::EdDSA);
        validation.set_audience(&[room]);
        validation.set_issuer(&[&self.issuer]);
        validation.set_required_spec_claims(&["exp", "aud", "iss", "sub"]);
        match jsonwebtoken::decode::<AdmissionClaims>(token, &key.admission_decoding, &validation) {
            Ok(token) if token.claims.room != room || token.claims.sub.is_empty() || !is_id(&token.claims.jti) => Verified::Forged,
            Ok(token) if token.claims.iat > now_ms / 1000 + AHEAD_S => Verified::Forged,
            Ok(token) if token.claims.exp <= now_ms / 1000 => Verified::Expired,
            Ok(checked) => {
                let admission = Admission {
                    ticket: checked.claims.jti,
                    user: checked.claims.sub,
                    epoch: checked.claims.epoch,
                    until_ms: checked.claims.exp * 1000,
                };
                pass(room, admission, token).map_or(Verified::Forged, |pass| Verified::Good(Arc::new(pass)))
            }
            Err(_) => Verified::Forged,
        }
    }

    /// Forgets admissions that are over. To be called now and then, off the request path.
    pub fn prune(&self, now_ms: UnixMs) {
        self.remembered.retain(|_, known| known.pass.admission.until_ms > now_ms);
    }
}

fn pass(room: &str, admission: Admission, token: &str) -> Option<Pass> {
    let mut value = HeaderValue::from_str(token).ok()?;
    value.set_sensitive(true);
    let mut told = HeaderMap::new();
    for (name, value) in [(ROOM, room), (USER, admission.user.as_str())] {
        if let Ok(value) = HeaderValue::from_str(value) {
            told.insert(name, value);
        }
    }
    told.insert(ADMISSION, value.clone());
    Some(Pass {
        admission,
        token: value,
        told,
    })
}

fn header(algorithm: Algorithm, kid: &str) -> Header {
    let mut header = Header::new(algorithm);
    header.kid = Some(kid.to_owned());
    header
}

/// Time is checked by us, against the store's clock and without leeway; everything else by the library.
fn strict(algorithm: Algorithm) -> Validation {
    let mut validation = Validation::new(algorithm);
    validation.leeway = 0;
    validation.validate_exp = false;
    validation
}

/// The key a token names, if it is short enough to look at, whole, and of the one algorithm expected.
fn known_key<'r>(ring: &'r Keyring, token: &str, algorithm: Algorithm) -> Option<&'r keys::Key> {
    if token.len() > MAX_TOKEN_BYTES {
        return None;
    }
    let header = jsonwebtoken::decode_header(token).ok()?;
    (header.alg == algorithm).then_some(())?;
    ring.named(&header.kid?)
}

/// Ids are ours: short, and of the base64url alphabet.
#[must_use]
pub fn is_id(id: &str) -> bool {
    (16..=44).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
}

#[cfg(test)]
mod tests;
