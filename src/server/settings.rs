//! What connections live by, and how it is exchanged while they go on.
//!
//! A [`Live`] is shared by every listener of a port and by whoever reads settings again. A connection takes the settings that are in force when
//! it is accepted and keeps them to its end: an exchange drops nobody, and whoever comes afterwards gets the new ones.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use ipnet::IpNet;

use super::slots::Slots;
use crate::config::{self, Config};

/// Limits on the connections of one listener.
#[derive(Clone, Debug)]
pub struct ConnectionLimits {
    /// Open connections at most.
    pub max_connections: usize,
    /// Open connections per address (v4 address or v6 network) at most.
    pub max_connections_per_address: usize,
    /// How many leading bits of a v6 address count as one address.
    pub ipv6_prefix: u8,
    /// Networks whose addresses are not counted on their own: the trusted proxies.
    pub trusted_proxies: Vec<IpNet>,
    /// For the first head from the connection's start, and for any later one from its first byte.
    pub header_timeout: Duration,
    /// How long a connection may stay idle between requests.
    pub idle_timeout: Duration,
    /// The longest pause inside a request body, and the longest time a client may refuse to read an answer.
    pub body_timeout: Duration,
    /// Bytes of a request head at most.
    pub max_header_bytes: usize,
    /// Header fields of a request at most.
    pub max_headers: usize,
    /// Bytes of a request body at most.
    pub max_body_bytes: u64,
    /// Requests at once on one HTTP/2 connection at most.
    pub max_streams: u32,
    /// How long a stop waits for what is being answered.
    pub drain_timeout: Duration,
}

impl ConnectionLimits {
    /// The limits of the settings.
    #[must_use]
    pub fn new(server: &config::Server, client: &config::Client) -> Self {
        Self {
            max_connections: server.max_connections,
            max_connections_per_address: server.max_connections_per_address,
            ipv6_prefix: client.ipv6_prefix,
            trusted_proxies: client.trusted_proxies.clone(),
            header_timeout: server.header_timeout,
            idle_timeout: server.idle_timeout,
            body_timeout: server.body_timeout,
            max_header_bytes: server.max_header_bytes,
            max_headers: server.max_headers,
            max_body_bytes: server.max_body_bytes,
            max_streams: server.max_streams,
            drain_timeout: server.drain_timeout,
        }
    }
}

/// Everything that a connection is treated by from the moment it is accepted.
#[derive(Clone, Debug)]
pub struct ListenerSettings {
    /// How many, how long, how much.
    pub limits: ConnectionLimits,
}

impl ListenerSettings {
    /// Those of visitors' listeners. `max_connections` is what the machine can afford of the setting.
    #[must_use]
    pub fn public(config: &Config, max_connections: usize) -> Self {
        Self::plain(ConnectionLimits {
            max_connections,
            ..ConnectionLimits::new(&config.server, &config.client)
        })
    }

    /// Limits and nothing else: HTTP from whoever connects.
    #[must_use]
    pub fn plain(limits: ConnectionLimits) -> Self {
        Self { limits }
    }
}

/// The settings in force, and the connections that are open. Listeners that share one share its limits.
#[derive(Debug)]
pub struct Live {
    settings: ArcSwap<ListenerSettings>,
    pub(super) slots: Arc<Slots>,
}

impl Live {
    /// These settings, until others come.
    #[must_use]
    pub fn new(settings: ListenerSettings) -> Arc<Self> {
        Arc::new(Self {
            settings: ArcSwap::from_pointee(settings),
            slots: Slots::new(),
        })
    }

    /// From now on new connections are treated by these. Open ones go on as they began.
    pub fn exchange(&self, settings: ListenerSettings) {
        self.settings.store(Arc::new(settings));
    }

    /// The settings in force.
    #[must_use]
    pub fn settings(&self) -> Arc<ListenerSettings> {
        self.settings.load_full()
    }

    pub(super) fn look(&self) -> Guard<Arc<ListenerSettings>> {
        self.settings.load()
    }
}
