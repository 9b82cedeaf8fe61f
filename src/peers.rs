//! The gateways of a room: how many there are, and whether they go by the same settings.
//!
//! Every two seconds each says in the store that it is here, and a digest of what all must agree on, by parts, so that a disagreement can be named.
//! A room works also while they differ (a reload reaches one after the other), so this is told to operators, and nothing is refused.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use aws_lc_rs::digest;
use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};

use crate::config;
use crate::store::scripts::Greeting;
use crate::token::Tokens;
use crate::token::keys::random_id;

/// How often a gateway greets.
pub const EVERY: Duration = Duration::from_secs(2);
/// Greetings in a row that must differ before it is called a disagreement: a reload is not at all gateways at once.
const IN_A_ROW: u32 = 2;
/// Letters of a machine's name at most.
const MAX_HOST: usize = 64;

/// This process, as it is told to the others.
#[derive(Debug)]
pub struct Me {
    name: String,
    host: String,
    operators: SocketAddr,
    tokens: Arc<Tokens>,
}

impl Me {
    /// A process with this operators' listener.
    #[must_use]
    pub fn new(operators: SocketAddr, tokens: Arc<Tokens>) -> Self {
        // Where there is no such file the operators' address has to do.
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        Self {
            name: random_id(),
            host: host.trim().chars().take(MAX_HOST).collect(),
            operators,
            tokens,
        }
    }
}

/// What a gateway says of itself. Others may be of another version: what they leave out is not held against them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Words {
    version: String,
    host: String,
    operators: String,
    /// Digests of the settings that all must agree on.
    parts: BTreeMap<String, String>,
}

/// A gateway of the room, as operators see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// Its name, made up when it started.
    pub name: String,
    /// The machine.
    pub host: String,
    /// Its operators' listener.
    pub operators: String,
    /// The version of the program.
    pub version: String,
    /// When it was heard of last, in milliseconds before this gateway asked.
    pub seen_ms_ago: u64,
    /// It is the one that answers.
    pub this: bool,
    /// The settings in which it differs from the one that answers.
    pub differs: Vec<String>,
}

/// The gateways of one room, as heard last.
#[derive(Debug)]
pub struct Peers {
    me: Arc<Me>,
    heard: ArcSwap<Vec<Peer>>,
    /// How many greetings in a row have differed, by gateway.
    differing: Mutex<BTreeMap<String, u32>>,
}

impl Peers {
    /// Nobody has been heard of yet.
    #[must_use]
    pub fn new(me: Arc<Me>) -> Self {
        Self {
            me,
            heard: ArcSwap::default(),
            differing: Mutex::default(),
        }
    }

    /// This gateway's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.me.name
    }

    /// What this gateway says with these settings.
    #[must_use]
    pub fn words(&self, settings: &config::Room) -> String {
        let words = Words {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            host: self.me.host.clone(),
            operators: self.me.operators.to_string(),
            parts: parts(settings, &self.me.tokens),
        };
        serde_json::to_string(&words).unwrap_or_default()
    }

    /// Takes in what all said.
    pub fn hear(&self, room: &str, greetings: Vec<Greeting>) {
        let said: Vec<(Greeting, Words)> = greetings
            .into_iter()
            .map(|greeting| {
                let words = serde_json::from_str(&greeting.words).unwrap_or_default();
                (greeting, words)
            })
            .collect();
        let mine = said.iter().find(|(greeting, _)| greeting.name == self.me.name);
        let mine = mine.map(|(_, words)| words.parts.clone()).unwrap_or_default();
        let mut peers: Vec<Peer> = said
            .into_iter()
            .map(|(greeting, words)| Peer {
                differs: differences(&mine, &words.parts),
                this: greeting.name == self.me.name,
                name: greeting.name,
                host: words.host,
                operators: words.operators,
                version: words.version,
                seen_ms_ago: greeting.ago_ms,
            })
            .collect();
        peers.sort_by(|one, other| (&one.host, &one.operators, &one.name).cmp(&(&other.host, &other.operators, &other.name)));
        self.tell(room, &peers);
        self.heard.store(Arc::new(peers));
    }

    /// All that were heard of last.
    #[must_use]
    pub fn all(&self) -> Vec<Peer> {
        self.heard.load().as_ref().clone()
    }

    /// How many there are, this one counted; 1 before anybody was heard of.
    #[must_use]
    pub fn count(&self) -> u32 {
        u32::try_from(self.heard.load().len()).unwrap_or(u32::MAX).max(1)
    }

    /// Writes to the log where a disagreement begins and ends.
    fn tell(&self, room: &str, peers: &[Peer]) {
        let mut differing = self.differing.lock().unwrap_or_else(PoisonError::into_inner);
        for peer in peers {
            if peer.differs.is_empty() {
                if differing.remove(&peer.name).is_some_and(|times| times >= IN_A_ROW) {
                    tracing::info!(
                        room,
                        gateway = peer.operators,
                        host = peer.host,
                        "this gateway goes by the same settings again"
                    );
                }
                continue;
            }
            let times = differing.entry(peer.name.clone()).or_default();
            *times = times.saturating_add(1);
            if *times == IN_A_ROW {
                let settings = peer.differs.join(", ");
                tracing::warn!(
                    room,
                    gateway = peer.operators,
                    host = peer.host,
                    settings,
                    "this gateway goes by other settings"
                );
            }
        }
        differing.retain(|name, _| peers.iter().any(|peer| peer.name == *name));
    }
}

/// Parts that both have, and that are not the same.
fn differences(mine: &BTreeMap<String, String>, theirs: &BTreeMap<String, String>) -> Vec<String> {
    let both = mine.iter().filter_map(|(part, digest)| Some((part, digest, theirs.get(part)?)));
    both.filter(|(_, mine, theirs)| mine != theirs)
        .map(|(part, ..)| part.clone())
        .collect()
}

/// Digests of what visitors are promised by each gateway's own settings. Where a room begins (rate, cap, stock, hours) is the store's business, and
/// where a gateway listens its own.
fn parts(settings: &config::Room, tokens: &Tokens) -> BTreeMap<String, String> {
    let login = settings.login.as_ref().map(|login| match login {
        config::Login::Header(name) => format!("header {name}"),
        config::Login::Jwt {
            cookie, algorithm, claim, ..
        } => format!("cookie {cookie} {algorithm:?} {claim}"),
    });
    let claim = settings.claim.as_ref().map(|claim| {
        let (path, limit, field) = (&claim.path, claim.limit, &claim.units_field);
        format!("{path} {:?} {limit} {field} {:?} {}", claim.hold, claim.memory, claim.replicas)
    });
    let sorted = |list: &[String]| {
        let mut list = list.to_vec();
        list.sort();
        list
    };
    let paths = (
        sorted(&settings.hosts),
        sorted(&settings.paths),
        sorted(&settings.bypass),
        settings.ignore_case,
    );
    let times = (
        (settings.turn_ttl, settings.admission_ttl, settings.away_after),
        (settings.grace, settings.rebuild, settings.memory, tokens.ticket_ttl_s()),
    );
    let texts = [
        ("paths", format!("{paths:?}")),
        ("times", format!("{times:?}")),
        ("on_store_loss", format!("{:?}", settings.on_store_loss)),
        ("login", format!("{login:?}")),
        ("claim", format!("{claim:?}")),
        ("keys", format!("{:?}", tokens.key_ids())),
    ];
    texts.into_iter().map(|(part, text)| (part.to_owned(), short(&text))).collect()
}

fn short(text: &str) -> String {
    let digest = digest::digest(&digest::SHA256, text.as_bytes());
    HEXLOWER.encode(&digest.as_ref()[..4])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(part, digest)| ((*part).to_owned(), (*digest).to_owned()))
            .collect()
    }

    #[test]
    fn only_what_both_say_can_differ() {
        let mine = parts(&[("claim", "1"), ("keys", "2"), ("new", "3")]);
        assert_eq!(differences(&mine, &mine), Vec::<String>::new());
        assert_eq!(differences(&mine, &parts(&[("claim", "9"), ("keys", "2")])), ["claim"]);
        assert_eq!(differences(&mine, &parts(&[("old", "9")])), Vec::<String>::new());
        assert_eq!(differences(&mine, &Words::default().parts), Vec::<String>::new());
    }

    #[test]
    fn words_of_another_version_can_be_read() {
        let words: Words = serde_json::from_str(r#"{"version":"9","colour":"blue"}"#).unwrap();
        assert_eq!((words.version.as_str(), words.parts.len()), ("9", 0));
    }
}
