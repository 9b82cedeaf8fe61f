//! The keys of tokens: a file of ours, generated on first start, readable by its owner only.
//!
//! A key verifies from the moment it is in the file and signs from `signs_from_ms` on, so that a rotation reaches every gateway first. The
//! keys that signed before stay to verify what they signed for as long as any of it may be good: no rotation costs anybody a place.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use aws_lc_rs::signature::Ed25519KeyPair;
use aws_lc_rs::{hmac, rand};
use bytes::Bytes;
use data_encoding::BASE64URL_NOPAD;
use jsonwebtoken::jwk::{Jwk, JwkSet, PublicKeyUse, ThumbprintHash};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey};
use serde::{Deserialize, Serialize};

use crate::clock::UnixMs;

/// Keys that a file may hold at most: the one that signs, those before whose tickets may still be good, and those to come.
const MAX_KEYS: usize = 8;
/// How long a gateway may go on signing with a key after the next one's time has come: it reads the file every few seconds.
const LATE_MS: u64 = 60_000;

/// What may be wrong with keys.
#[derive(Debug, thiserror::Error)]
pub enum KeyFault {
    /// The file cannot be read or written.
    #[error("the key file {} cannot be read or written", .0.display())]
    File(PathBuf, #[source] std::io::Error),
    /// The file is not what we write.
    #[error("the key file {} is damaged: {what}; restore it from a backup, or move it away to begin with new keys (whoever waits then starts again)", .file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// Too many keys are still needed.
    #[error("the key file {} holds {MAX_KEYS} keys whose tickets may still be good, or that are still to come; rotate again when the oldest is not needed any more", .0.display())]
    Crowded(PathBuf),
    /// The library refused.
    #[error("a token cannot be signed")]
    Sign(#[from] jsonwebtoken::errors::Error),
    /// A token that cannot be sent.
    #[error("a token was signed that is no header's value")]
    Text,
    /// The machine has no randomness.
    #[error("no random bytes can be had from this machine")]
    Random,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyFile {
    /// Names the visitor behind a login; never rotates, so that a login keeps its place.
    login_secret: String,
    keys: Vec<Stored>,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    signs_from_ms: UnixMs,
    ticket_secret: String,
    admission_pkcs8: String,
}

/// One key: a secret for tickets, and a pair for admissions.
pub struct Key {
    /// Its name in the header of tokens.
    pub kid: String,
    signs_from_ms: UnixMs,
    /// Signs tickets.
    pub ticket_encoding: EncodingKey,
    /// Verifies tickets.
    pub ticket_decoding: DecodingKey,
    /// Signs admissions.
    pub admission_encoding: EncodingKey,
    /// Verifies admissions.
    pub admission_decoding: DecodingKey,
    public: Jwk,
}

/// All keys in force.
pub struct Keyring {
    keys: Vec<Key>,
    login: hmac::Key,
    text: String,
}

impl std::fmt::Debug for Keyring {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_list().entries(self.keys.iter().map(|key| &key.kid)).finish()
    }
}

impl Keyring {
    /// Reads the file, or makes one with a first key.
    ///
    /// # Errors
    /// It cannot be read, written or understood.
    pub fn read_or_make(file: &Path, now_ms: UnixMs) -> Result<Self, KeyFault> {
        let made = KeyFile {
            login_secret: random_text(32)?,
            keys: vec![Stored::make(now_ms.saturating_sub(1))?],
        };
        match write(file, &made, fs::OpenOptions::new().create_new(true)) {
            Ok(()) => {}
            Err(KeyFault::File(_, fault)) if fault.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(fault) => return Err(fault),
        }
        Self::parse(file, read(file)?)
    }

    /// The file's keys, if it changed since this ring was read.
    ///
    /// # Errors
    /// It cannot be read or understood.
    pub fn reread(&self, file: &Path) -> Result<Option<Self>, KeyFault> {
        let text = read(file)?;
        if text == self.text {
            return Ok(None);
        }
        Self::parse(file, text).map(Some)
    }

    fn parse(file: &Path, text: String) -> Result<Self, KeyFault> {
        let damaged = |what: &str| KeyFault::Damaged {
            file: file.to_path_buf(),
            what: what.to_owned(),
        };
        let stored: KeyFile = serde_json::from_str(&text).map_err(|fault| damaged(&fault.to_string()))?;
        let login = decode(&stored.login_secret).ok_or_else(|| damaged("login_secret is not base64url of 32 bytes"))?;
        let keys = stored
            .keys
            .iter()
            .map(Key::open)
            .collect::<Option<Vec<_>>>()
            .ok_or_else(|| damaged("a key cannot be read"))?;
        if keys.is_empty() {
            return Err(damaged("there is no key in it"));
        }
        Ok(Self {
            keys,
            login: hmac::Key::new(hmac::HMAC_SHA256, &login),
            text,
        })
    }

    /// The key of this name.
    #[must_use]
    pub fn named(&self, kid: &str) -> Option<&Key> {
        self.keys.iter().find(|key| key.kid == kid)
    }

    /// The names of all, sorted.
    pub(super) fn ids(&self) -> Vec<String> {
        let mut ids: Vec<String> = self.keys.iter().map(|key| key.kid.clone()).collect();
        ids.sort();
        ids
    }

    /// The key that signs now: the newest whose time has come.
    #[must_use]
    pub fn signer(&self, now_ms: UnixMs) -> &Key {
        let due = self
            .keys
            .iter()
            .filter(|key| key.signs_from_ms <= now_ms)
            .max_by_key(|key| key.signs_from_ms);
        due.unwrap_or(&self.keys[0])
    }

    /// The public keys, for backends.
    #[must_use]
    pub fn jwks(&self) -> Bytes {
        let set = JwkSet {
            keys: self.keys.iter().map(|key| key.public.clone()).collect(),
        };
        serde_json::to_vec(&set).unwrap_or_default().into()
    }

    /// The ticket id of a login in a room.
    #[must_use]
    pub fn login_id(&self, room: &str, user: &str) -> String {
        let tag = hmac::sign(&self.login, format!("{room}\n{user}").as_bytes());
        BASE64URL_NOPAD.encode(&tag.as_ref()[..16])
    }
}

/// Adds a key that signs from `signs_from_ms` on, and drops those of which nothing can be good any more: tickets and admissions last `lasts_ms` at
/// most, and a key signs until the next one does. Gateways read the file again by themselves.
///
/// # Errors
/// The file cannot be read, written or understood, or too many of its keys are still needed.
pub fn rotate(file: &Path, now_ms: UnixMs, signs_from_ms: UnixMs, lasts_ms: u64) -> Result<String, KeyFault> {
    let damaged = |what: String| KeyFault::Damaged {
        file: file.to_path_buf(),
        what,
    };
    let mut stored: KeyFile = serde_json::from_str(&read(file)?).map_err(|fault| damaged(fault.to_string()))?;
    let added = Stored::make(signs_from_ms)?;
    let kid = Key::open(&added).map(|key| key.kid).ok_or(KeyFault::Random)?;
    stored.keys.push(added);
    stored.keys.sort_by_key(|key| key.signs_from_ms);
    let over = |next: &Stored| next.signs_from_ms.saturating_add(lasts_ms).saturating_add(LATE_MS) <= now_ms;
    let surplus = stored.keys.iter().skip(1).take_while(|next| over(next)).count();
    stored.keys.drain(..surplus);
    if stored.keys.len() > MAX_KEYS {
        return Err(KeyFault::Crowded(file.to_path_buf()));
    }
    let beside = file.with_extension("new");
    write(&beside, &stored, fs::OpenOptions::new().create(true).truncate(true))?;
    fs::rename(&beside, file).map_err(|fault| KeyFault::File(file.to_path_buf(), fault))?;
    Ok(kid)
}

impl Stored {
    fn make(signs_from_ms: UnixMs) -> Result<Self, KeyFault> {
        // Version 1 of the format, without the public half: the only one from which a JWK can be made.
        let pair = Ed25519KeyPair::generate()
            .and_then(|pair| pair.to_pkcs8v1())
            .map_err(|_| KeyFault::Random)?;
        Ok(Self {
            signs_from_ms,
            ticket_secret: random_text(32)?,
            admission_pkcs8: BASE64URL_NOPAD.encode(pair.as_ref()),
        })
    }
}

impl Key {
    fn open(stored: &Stored) -> Option<Self> {
        let secret = decode(&stored.ticket_secret)?;
        let pkcs8 = BASE64URL_NOPAD.decode(stored.admission_pkcs8.as_bytes()).ok()?;
        let admission_encoding = EncodingKey::from_ed_der(&pkcs8);
        let mut public = Jwk::from_encoding_key(&admission_encoding, Algorithm::EdDSA).ok()?;
        let kid = public.thumbprint(ThumbprintHash::SHA256).ok()?[..16].to_owned();
        public.common.key_id = Some(kid.clone());
        public.common.public_key_use = Some(PublicKeyUse::Signature);
        Some(Self {
            kid,
            signs_from_ms: stored.signs_from_ms,
            ticket_encoding: EncodingKey::from_secret(&secret).ok()?,
            ticket_decoding: DecodingKey::from_secret(&secret).ok()?,
            admission_decoding: DecodingKey::from_jwk(&public).ok()?,
            admission_encoding,
            public,
        })
    }
}

fn decode(text: &str) -> Option<Vec<u8>> {
    BASE64URL_NOPAD.decode(text.as_bytes()).ok().filter(|bytes| bytes.len() == 32)
}

fn read(file: &Path) -> Result<String, KeyFault> {
    fs::read_to_string(file).map_err(|fault| KeyFault::File(file.to_path_buf(), fault))
}

fn write(file: &Path, keys: &KeyFile, how: &mut fs::OpenOptions) -> Result<(), KeyFault> {
    let fault = |fault| KeyFault::File(file.to_path_buf(), fault);
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder).map_err(fault)?;
    }
    let text = serde_json::to_string_pretty(keys).map_err(|broken| KeyFault::Damaged {
        file: file.to_path_buf(),
        what: broken.to_string(),
    })?;
    let mut opened = how.write(true).mode(0o600).open(file).map_err(fault)?;
    opened.write_all(text.as_bytes()).and_then(|()| opened.sync_all()).map_err(fault)
}

fn random_text(bytes: usize) -> Result<String, KeyFault> {
    let mut random = vec![0; bytes];
    rand::fill(&mut random).map_err(|_| KeyFault::Random)?;
    Ok(BASE64URL_NOPAD.encode(&random))
}

/// 128 random bits, as text: for tickets, reservations and operations.
#[must_use]
#[allow(
    clippy::expect_used,
    reason = "the kernel's generator does not fail once it has begun, and an id that can be guessed is worse than a stop"
)]
pub fn random_id() -> String {
    let mut random = [0; 16];
    rand::fill(&mut random).expect("the kernel gives random bytes");
    BASE64URL_NOPAD.encode(&random)
}
