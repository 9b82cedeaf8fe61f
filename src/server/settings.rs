//! What connections live by, and how it is exchanged while they go on.
//!
//! A [`Live`] is shared by every listener of a port and by whoever reads settings again. A connection takes the settings that are in force when
//! it is accepted and keeps them to its end: an exchange drops nobody, and whoever comes afterwards gets the new ones.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use http::HeaderValue;
use ipnet::IpNet;

use super::slots::Slots;
use super::tls::Tls;
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
    /// Networks whose addresses are not counted on their own, because everybody comes from there: trusted proxies and load balancers.
    pub carriers: Vec<IpNet>,
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
            carriers: client.trusted_proxies.iter().chain(&server.proxy_protocol).copied().collect(),
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
    /// Networks whose connections begin with a PROXY header, and must.
    pub proxy_protocol: Vec<IpNet>,
    /// How handshakes are answered; none: there is no HTTPS.
    pub(super) tls: Option<Tls>,
    /// Plain HTTP is only sent on to https, on this port.
    pub(super) redirect: Option<u16>,
    /// What browsers that came by https are told about the future.
    pub(super) hsts: Option<HeaderValue>,
}

impl ListenerSettings {
    /// Those of visitors' listeners. `max_connections` is what the machine can afford of the setting.
    #[must_use]
    pub fn public(config: &Config, max_connections: usize) -> Self {
        let limits = ConnectionLimits {
            max_connections,
            ..ConnectionLimits::new(&config.server, &config.client)
        };
        Self {
            proxy_protocol: config.server.proxy_protocol.clone(),
            ..Self::plain(limits).secured(config.tls.as_ref())
        }
    }

    /// The same with HTTPS beside it.
    #[must_use]
    pub fn secured(self, tls: Option<&config::Tls>) -> Self {
        let hsts = tls.and_then(|tls| tls.hsts).map(|hsts| format!("max-age={}", hsts.as_secs()));
        Self {
            tls: tls.map(Tls::new),
            redirect: tls.filter(|tls| tls.redirect).map(|tls| tls.redirect_port),
            hsts: hsts.and_then(|hsts| HeaderValue::from_str(&hsts).ok()),
            ..self
        }
    }

    /// Limits and nothing else: HTTP from whoever connects.
    #[must_use]
    pub fn plain(limits: ConnectionLimits) -> Self {
        Self {
            limits,
            proxy_protocol: Vec::new(),
            tls: None,
            redirect: None,
            hsts: None,
        }
    }

    /// Whether a connection from this address begins with whose it is.
    pub(super) fn names_others(&self, peer: IpAddr) -> bool {
        self.proxy_protocol.iter().any(|net| net.contains(&peer))
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
