//! What differs between two sets of settings, by the names of keys; and the mark by which gateways with different settings are told apart.
//!
//! Both are read off the settings as [`super::show()`] writes them, so a setting that can be shown can be compared, and none is forgotten here.
//! Secrets are compared too, by a digest that goes nowhere else.

use std::collections::{BTreeMap, BTreeSet};

use aws_lc_rs::digest;
use data_encoding::HEXLOWER;

use super::{Config, Login, Secret, show};

/// Keys that are read once, when a gateway starts: whole tables end with a dot.
const AT_START: [&str; 8] = [
    "server.listen",
    "tls.listen",
    "server.prefix",
    "server.workers",
    "ops.",
    "store.",
    "tokens.",
    "log.format",
];
/// Where a new room begins: an existing one has these from the store, and operators change them there.
const BEGINNINGS: [&str; 5] = ["rate", "cap", "stock", "opens_at", "closes_at"];
/// What may differ between two gateways of one site, and is left out of the mark.
const OF_THE_MACHINE: [&str; 10] = [
    "log.access",
    "server.listen",
    "tls.listen",
    "server.workers",
    "server.max_connections",
    "ops.listen",
    "ops.token_file",
    "store.",
    "tokens.key_file",
    "pages.folder",
];

/// The keys that differ between two sets of settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// All of them, in order.
    pub keys: Vec<String>,
    /// Those among them that only a restart can change.
    pub at_start: Vec<String>,
    /// Those among them that say where a new room begins, of rooms that have begun: they change nothing.
    pub beginnings: Vec<String>,
    /// Rooms that are new.
    pub added: Vec<String>,
    /// Rooms that are gone.
    pub removed: Vec<String>,
}

impl Changes {
    /// What differs between these two.
    #[must_use]
    pub fn between(before: &Config, after: &Config) -> Self {
        let (mine, theirs) = (keys(before), keys(after));
        let all: BTreeSet<&String> = mine.keys().chain(theirs.keys()).collect();
        let keys: Vec<String> = all.into_iter().filter(|key| mine.get(*key) != theirs.get(*key)).cloned().collect();
        let lacks = |config: &Config, other: &Config| {
            let rooms = config.rooms.iter().map(|room| room.id.clone());
            rooms.filter(|id| other.room(id).is_none()).collect()
        };
        let begun = |key: &&String| {
            let room = key.strip_prefix("rooms.").and_then(|rest| rest.split_once('.'));
            room.is_some_and(|(id, key)| BEGINNINGS.contains(&key) && before.room(id).is_some() && after.room(id).is_some())
        };
        Self {
            at_start: keys.iter().filter(|key| listed(&AT_START, key)).cloned().collect(),
            beginnings: keys.iter().filter(begun).cloned().collect(),
            added: lacks(after, before),
            removed: lacks(before, after),
            keys,
        }
    }
}

/// A short mark of the settings: the same on every gateway that was given the same, whatever its address, folders and keys.
#[must_use]
pub fn mark(config: &Config) -> String {
    let mut written = String::new();
    for (key, value) in shown(config) {
        if !listed(&OF_THE_MACHINE, &key) && !key.ends_with("_file") {
            written.push_str(&format!("{key}={value}\n"));
        }
    }
    short(written.as_bytes())
}

fn short(bytes: &[u8]) -> String {
    HEXLOWER.encode(&digest::digest(&digest::SHA256, bytes).as_ref()[..8])
}

fn listed(names: &[&str], key: &str) -> bool {
    names
        .iter()
        .any(|name| key == *name || (name.ends_with('.') && key.starts_with(name)))
}

/// Every key as it is shown, by its full name.
fn shown(config: &Config) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let table = show(config).parse::<toml::Table>().unwrap_or_default(); // what is shown reads back: a test holds it true
    flatten("", &toml::Value::Table(table), &mut found);
    found
}

/// The same, and a digest of each secret.
fn keys(config: &Config) -> BTreeMap<String, String> {
    let mut found = shown(config);
    let mut add = |key: String, secret: &Secret| drop(found.insert(key, HEXLOWER.encode(digest_of(secret).as_ref())));
    if let Some(token) = &config.ops.token {
        add("ops.token_file".to_owned(), token);
    }
    if let Some(url) = &config.store.url {
        add("store.url".to_owned(), url);
    }
    if let Some(password) = &config.store.password {
        add("store.password_file".to_owned(), password);
    }
    if let Some(password) = &config.store.sentinel_password {
        add("store.sentinel_password_file".to_owned(), password);
    }
    for room in &config.rooms {
        if let Some(Login::Jwt { key, .. }) = &room.login {
            add(format!("rooms.{}.login.key_file", room.id), key);
        }
    }
    found
}

fn digest_of(secret: &Secret) -> digest::Digest {
    digest::digest(&digest::SHA256, secret.reveal().as_bytes())
}

fn flatten(name: &str, value: &toml::Value, into: &mut BTreeMap<String, String>) {
    match value {
        toml::Value::Table(table) => {
            for (key, value) in table {
                let name = if name.is_empty() { key.clone() } else { format!("{name}.{key}") };
                flatten(&name, value, into);
            }
        }
        value => drop(into.insert(name.to_owned(), value.to_string())),
    }
}
