//! Every key of a room. They share one hash tag, so a cluster keeps a room on one node, and no script builds a key of its own.

/// The names after the tag; a key's place in the list is its [`Key`].
const NAMES: [&str; 20] = [
    "room",
    "line",
    "blocks",
    "away",
    "passed",
    "called",
    "sessions",
    "gone",
    "fates",
    "holds",
    "reservations",
    "answers",
    "claims",
    "buyers",
    "finished",
    "claims-log",
    "operations",
    "audit",
    "mark",
    "gateways",
];

/// One key of a room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// Hash: settings and counters.
    Room,
    /// Zset: ticket → place, not passed yet; present or away.
    Line,
    /// Hash: place / 1024 → how many of the line are beyond the frontier.
    Blocks,
    /// Zset: ticket → when it is abandoned, ms.
    Away,
    /// Zset: ticket → place; passed over while it was away.
    Passed,
    /// Zset: ticket → when its turn lapses, ms.
    Called,
    /// Zset: ticket → when its admission expires, ms.
    Sessions,
    /// Zset: ticket → when it is forgotten, ms.
    Gone,
    /// Hash: ticket → what became of it.
    Fates,
    /// Zset: reservation → when the hold ends, ms.
    Holds,
    /// Hash: reservation → its record.
    Reservations,
    /// Hash: reservation → the backend's first answer.
    Answers,
    /// Hash: buyer and idempotency key → reservation.
    Claims,
    /// Hash: buyer → what it holds and has.
    Buyers,
    /// Zset: reservation that came to nothing → when it is forgotten, ms.
    Finished,
    /// Stream: what happened to reservations.
    ClaimsLog,
    /// Zset: operation → the version it led to.
    Operations,
    /// Stream: who changed what.
    Audit,
    /// String: written before copies are counted; its value means nothing.
    Mark,
    /// Hash: gateway → when it was here last, and its words.
    Gateways,
}

/// The keys of one room, built once.
#[derive(Debug)]
pub struct Keys {
    all: [String; NAMES.len()],
    news: String,
}

impl Keys {
    /// The keys of room `id`. Channels are shared by all databases of a server, so the channel of any but the first carries its number.
    #[must_use]
    pub fn new(id: &str, database: i64) -> Self {
        let news = match database {
            0 => format!("{{wg:{id}}}:news"),
            other => format!("{{wg:{id}}}:news@{other}"),
        };
        Self {
            all: NAMES.map(|name| format!("{{wg:{id}}}:{name}")),
            news,
        }
    }

    /// One key, as the store knows it.
    #[must_use]
    pub fn get(&self, key: Key) -> &str {
        &self.all[key as usize]
    }

    /// The channel on which a room's news is published. Not a key.
    #[must_use]
    pub fn news(&self) -> &str {
        &self.news
    }
}
