//! Which server is asked for which room, as far as is known now.
//!
//! A key's slot is worked out as a cluster does; all keys of a room are in one. One server, and the primary that sentinels name, have all slots.
//! The routes are never changed, only replaced: whoever asks sees one state of affairs from beginning to end.

use std::ops::RangeInclusive;
use std::sync::Arc;

use redis::aio::MultiplexedConnection;

use super::dial::Link;
use crate::config::Host;

/// How many slots there are.
pub(super) const SLOTS: u16 = 16_384;

/// A server that is connected, and said that it is a primary.
pub(super) struct Node {
    pub(super) host: Host,
    link: Link,
}

impl Node {
    pub(super) fn new(host: Host, link: Link) -> Arc<Self> {
        Arc::new(Self { host, link })
    }

    pub(super) fn connection(&self) -> MultiplexedConnection {
        self.link.connection()
    }
}

/// Some slots and who has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) slots: RangeInclusive<u16>,
    pub(super) host: Host,
}

impl Part {
    /// All slots.
    pub(super) fn whole(host: Host) -> Self {
        Self {
            slots: 0..=SLOTS - 1,
            host,
        }
    }
}

/// Who has what, and who of them is connected.
#[derive(Clone, Default)]
pub(super) struct Routes {
    pub(super) parts: Vec<Part>,
    /// One for each connected host of the parts.
    pub(super) nodes: Vec<Arc<Node>>,
}

impl Routes {
    /// The connected server that has this slot.
    pub(super) fn find(&self, slot: u16) -> Option<&Arc<Node>> {
        let part = self.parts.iter().find(|part| part.slots.contains(&slot))?;
        self.node(&part.host)
    }

    pub(super) fn node(&self, host: &Host) -> Option<&Arc<Node>> {
        self.nodes.iter().find(|node| node.host == *host)
    }

    /// Hosts that have slots and are not connected.
    pub(super) fn missing(&self) -> Vec<Host> {
        let mut missing: Vec<Host> = Vec::new();
        for part in &self.parts {
            if self.node(&part.host).is_none() && !missing.contains(&part.host) {
                missing.push(part.host.clone());
            }
        }
        missing
    }

    /// The same with this server's connection, if it has a part and none yet.
    pub(super) fn with(&self, node: &Arc<Node>) -> Self {
        let mut routes = self.clone();
        if self.missing().contains(&node.host) {
            routes.nodes.push(Arc::clone(node));
        }
        routes
    }

    /// The same without this server's connection.
    pub(super) fn without(&self, node: &Arc<Node>) -> Self {
        Self {
            parts: self.parts.clone(),
            nodes: self.nodes.iter().filter(|other| !Arc::ptr_eq(node, other)).cloned().collect(),
        }
    }

    /// These parts, with the connections of those that have any.
    pub(super) fn divided(&self, parts: Vec<Part>) -> Self {
        let has_some = |node: &&Arc<Node>| parts.iter().any(|part| part.host == node.host);
        Self {
            nodes: self.nodes.iter().filter(has_some).cloned().collect(),
            parts,
        }
    }
}

/// The slot of a key: of what is between its first braces, else of all of it.
pub(super) fn slot(key: &str) -> u16 {
    let tag = key
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'))
        .map(|(tag, _)| tag)
        .filter(|tag| !tag.is_empty());
    let tag = tag.unwrap_or(key);
    // CRC-16/XMODEM, as the cluster's specification has it.
    let crc = tag.bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            (crc << 1) ^ if crc & 0x8000 == 0 { 0 } else { 0x1021 }
        })
    });
    crc % SLOTS
}

#[cfg(test)]
mod tests {
    use super::slot;

    #[test]
    fn slots_are_those_of_a_cluster() {
        assert_eq!(slot("123456789"), 0x31c3, "the specification's own example");
        assert_eq!(slot("foo"), 12_182);
        assert_eq!(slot("{wg:42}:line"), slot("{wg:42}:room"));
        assert_eq!(slot("{wg:42}:line"), slot("wg:42"));
        assert_ne!(slot("{wg:42}:line"), slot("{wg:43}:line"));
        assert_eq!(slot("{}x"), slot("{}x"), "an empty tag is none");
        assert_ne!(slot("{}x"), slot("{}y"));
    }
}
