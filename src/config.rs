//! Settings, checked: what the rest of the program is given. A value of these types cannot hold nonsense.
//!
//! `config/waitgate.toml` holds every key with its default and a sentence; it is compiled in, and it is what a file of yours is laid over.
//! [`load`] reads a file once as written ([`source`]) and once checked ([`read`], [`rooms`], [`values`]), and reports *all* mistakes at once,
//! each with file, line, column and key. Adding a setting: its field here, its key in `config/waitgate.toml`, its line in the reader and in
//! [`mod@show`].

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::Uri;
use ipnet::IpNet;

use crate::clock::UnixMs;

mod changes;
mod paths;
mod read;
mod rooms;
mod show;
mod source;
mod store;
mod tls;
mod upstream;
mod values;

pub use changes::{Changes, mark};
pub use read::{load, parse};
pub use show::show;
pub use source::{Mistake, Mistakes};
pub use store::{Host, Kind, Login as StoreLogin, Site, Store, StoreTls, Tls as SiteTls};
pub use tls::{Certificate, Tls, TlsServer, TlsVersion};
pub use upstream::{Health, HttpVersion, TlsClient, Upstream, UpstreamTls};
pub use values::Rate;

/// Letters of `tokens.issuer` at most: it is in every admission, and those have to stay small.
pub const MAX_ISSUER: usize = 64;

/// Who polls is told to ask again after this long at the most: whatever he is to hear must last as long.
pub const LONGEST_POLL: Duration = Duration::from_secs(20);

/// The documented example, which is also where every default comes from.
pub const DEFAULTS: &str = include_str!("../config/waitgate.toml");

/// Everything `waitgate serve` needs to know.
#[derive(Clone, Debug)]
pub struct Config {
    /// The file it was read from.
    pub file: PathBuf,
    /// The public listener.
    pub server: Server,
    /// The HTTPS listener beside it; none: only plain HTTP.
    pub tls: Option<Tls>,
    /// The operators' listener.
    pub ops: Ops,
    /// Where lines and stock are kept.
    pub store: Store,
    /// How the address of a visitor is found.
    pub client: Client,
    /// Request limits.
    pub limits: Limits,
    /// Tickets, admissions and their keys.
    pub tokens: Tokens,
    /// How our cookies are set.
    pub cookies: Cookies,
    /// The waiting page.
    pub pages: Pages,
    /// Logging.
    pub log: Log,
    /// How upstreams are spoken to.
    pub upstream: Upstream,
    /// Where requests go that no room guards: backends of the same site. None: to those of a room of the same host, else such requests are
    /// answered 404.
    pub fallback: Vec<Uri>,
    /// The rooms, in the order of the file.
    pub rooms: Vec<Room>,
}

/// The public listener and its limits.
#[derive(Clone, Debug)]
pub struct Server {
    /// Address to listen on.
    pub listen: SocketAddr,
    /// Networks of load balancers whose connections begin with a PROXY header, and must.
    pub proxy_protocol: Vec<IpNet>,
    /// Path prefix of waitgate's own routes, without a trailing slash: `/.waitgate`.
    pub prefix: String,
    /// Worker threads; 0 is one per core.
    pub workers: usize,
    /// Open connections at most. The machine's limit on open files may lower it.
    pub max_connections: usize,
    /// Open connections per address (v4 address, or v6 network as in [`Client::ipv6_prefix`]) at most.
    pub max_connections_per_address: usize,
    /// How long a new connection may take to send the head of its request.
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
    /// How long a stopping gateway waits for requests in flight.
    pub drain_timeout: Duration,
}

/// The operators' listener.
#[derive(Clone, Debug)]
pub struct Ops {
    /// Address to listen on.
    pub listen: SocketAddr,
    /// The bearer token, read from `ops.token_file`. Required when `listen` is not loopback.
    pub token: Option<Secret>,
}

/// How the address of a visitor is found.
#[derive(Clone, Debug)]
pub struct Client {
    /// Proxies whose `X-Forwarded-For` / `Forwarded` is believed.
    pub trusted_proxies: Vec<IpNet>,
    /// Which of the two is read.
    pub forwarded_header: ForwardedHeader,
    /// The prefix of an IPv6 address that counts as one visitor's network.
    pub ipv6_prefix: u8,
}

/// The header in which trusted proxies name the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardedHeader {
    /// `X-Forwarded-For`.
    XForwardedFor,
    /// `Forwarded` (RFC 7239).
    Forwarded,
}

/// One token bucket: `rate` a second on the long run, `burst` at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Requests per second.
    pub rate: Rate,
    /// Requests at once.
    pub burst: u32,
}

/// Request limits. Each is per key and per gateway.
#[derive(Clone, Debug)]
pub struct Limits {
    /// By address.
    pub address: Quota,
    /// By visitor (the user of the shop's login, or the ticket).
    pub visitor: Quota,
    /// The waiting page's own calls, by address: an office may wait behind one address.
    pub waiting: Quota,
    /// Bad signatures and malformed tokens, by address.
    pub forgery: Quota,
    /// Keys remembered at most per limit; beyond it newcomers share one bucket.
    pub max_keys: usize,
    /// Networks that are never limited.
    pub allow: Vec<IpNet>,
    /// Networks that are never served.
    pub deny: Vec<IpNet>,
}

/// Tickets, admissions and their keys.
#[derive(Clone, Debug)]
pub struct Tokens {
    /// The key file; generated on first start. Gateways of one room share it.
    pub key_file: PathBuf,
    /// How long a ticket is good for.
    pub ticket_ttl: Duration,
    /// `iss` of admissions.
    pub issuer: String,
}

/// How our cookies are set.
#[derive(Clone, Copy, Debug)]
pub struct Cookies {
    /// `Secure` and the `__Host-` prefix. Only a demo on plain HTTP turns this off.
    pub secure: bool,
    /// The `SameSite` attribute.
    pub same_site: SameSite,
}

/// The `SameSite` attribute of our cookies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SameSite {
    /// `Lax`, the default.
    Lax,
    /// `Strict`.
    Strict,
    /// `None`, for a shop inside somebody else's frame.
    None,
}

/// The waiting page.
#[derive(Clone, Debug)]
pub struct Pages {
    /// A folder whose files replace the built-in ones of the same name.
    pub folder: Option<PathBuf>,
    /// The language for visitors whose own is not there.
    pub default_language: String,
}

/// Logging.
#[derive(Clone, Debug)]
pub struct Log {
    /// `RUST_LOG`-style filter.
    pub filter: String,
    /// Human lines, JSON lines, or human on a terminal and JSON elsewhere.
    pub format: LogFormat,
    /// Where the access log goes.
    pub access: AccessTarget,
    /// Whether the access log keeps queries.
    pub query: bool,
}

/// Where the access log goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessTarget {
    /// There is none.
    Off,
    /// Standard output.
    Stdout,
    /// A file, which is appended to.
    File(PathBuf),
}

/// The shape of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Human on a terminal, JSON elsewhere.
    Auto,
    /// For people.
    Human,
    /// For machines.
    Json,
}

/// One waiting room.
#[derive(Clone, Debug)]
pub struct Room {
    /// Its name: `[a-z0-9-]`, 32 characters at most.
    pub id: String,
    /// Hosts it guards (lower case, without port); none: any host.
    pub hosts: Vec<String>,
    /// Path prefixes it guards, normalised, matched at segment borders.
    pub paths: Vec<String>,
    /// Paths under them that pass untouched and uncounted. A trailing `*` makes a prefix of it, a leading `*` a suffix.
    pub bypass: Vec<String>,
    /// The paths' case does not matter to the backend.
    pub ignore_case: bool,
    /// The backends, one at least, which all serve the same shop.
    pub upstream: Vec<Uri>,
    /// Admissions per second, over all gateways. Where a new room begins; operators change it live.
    pub rate: Rate,
    /// Called and admitted visitors at once at most; 0 is no cap. Where a new room begins.
    pub cap: u64,
    /// Units for sale; none: a room without stock. Where a new room begins.
    pub stock: Option<u64>,
    /// Before this the page counts down and nobody is admitted.
    pub opens_at: Option<UnixMs>,
    /// From this on nobody joins.
    pub closes_at: Option<UnixMs>,
    /// What the door does when the store is lost.
    pub on_store_loss: OnStoreLoss,
    /// How long a called visitor has to come.
    pub turn_ttl: Duration,
    /// How long an admission lasts.
    pub admission_ttl: Duration,
    /// No stream and no poll for this long: away.
    pub away_after: Duration,
    /// How often a WebSocket is pinged; whoever has not answered by the next ping is gone.
    pub ping_every: Duration,
    /// Away for this long: abandoned.
    pub grace: Duration,
    /// After the store lost its memory, how long the door stays shut while tickets come back.
    pub rebuild: Duration,
    /// Waiters kept by one gateway at most.
    pub max_waiters: usize,
    /// How long what happened to a ticket or a reservation is remembered: as long as `claim.memory` says, and never shorter than a ticket lives,
    /// or one that was given up could come back to its place.
    pub memory: Duration,
    /// Origins, besides the room's own, that may open the waiting routes from a script.
    pub origins: Vec<String>,
    /// The shop's own login, when the room reads one: one place per login.
    pub login: Option<Login>,
    /// The claim route; none: the room only guards.
    pub claim: Option<Claim>,
}

/// What the door does when the store is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnStoreLoss {
    /// It stays shut: the only choice for a room with stock.
    Hold,
    /// It opens: visitors pass, at the room's rate, shared by the gateways seen last.
    Open,
}

/// The shop's own login.
#[derive(Clone, Debug)]
pub enum Login {
    /// A header that a trusted proxy sets; believed from trusted proxies only.
    Header(http::HeaderName),
    /// A JWT of the shop in a cookie, checked with the shop's key.
    Jwt {
        /// The cookie's name.
        cookie: String,
        /// Which algorithm the key is for.
        algorithm: LoginAlgorithm,
        /// The key: the shared secret, or the public key in PEM.
        key: Secret,
        /// The claim that names the user.
        claim: String,
    },
}

/// Algorithms a shop's login may be signed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoginAlgorithm {
    /// HMAC with SHA-256.
    Hs256,
    /// RSA with SHA-256.
    Rs256,
    /// ECDSA on P-256.
    Es256,
    /// Ed25519.
    EdDsa,
}

/// The claim route of a room.
#[derive(Clone, Debug)]
pub struct Claim {
    /// Its normalised path; only `POST` claims.
    pub path: String,
    /// How long a reservation is held for payment.
    pub hold: Duration,
    /// Units one buyer may have, held and bought together.
    pub limit: u64,
    /// The body's field (JSON or form) that says how many units are asked for; one unit where it is missing.
    pub units_field: String,
    /// Bytes of a claim's body at most: it is kept in memory while the gate is asked.
    pub max_body_bytes: usize,
    /// How long idempotency keys and finished reservations are remembered.
    pub memory: Duration,
    /// How many replicas of the store must have a claim before it is sent on.
    pub replicas: u64,
    /// How long they have.
    pub replicas_timeout: Duration,
}

/// Something that is never logged or printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    text: String,
    file: Option<PathBuf>,
}

impl Secret {
    /// Wraps a secret.
    #[must_use]
    pub fn new(secret: String) -> Self {
        Self { text: secret, file: None }
    }

    /// Wraps a secret that was read from `file`.
    #[must_use]
    pub fn from_file(secret: String, file: PathBuf) -> Self {
        Self {
            text: secret,
            file: Some(file),
        }
    }

    /// The file it was read from, which may be printed.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// The secret itself, for the one place that needs it.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.text
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("(secret)")
    }
}

impl Config {
    /// What keeps a gateway with these settings from having anything to do, in a sentence; none: it has.
    ///
    /// Not a mistake of the file, which `waitgate check` accepts, but a reason for `waitgate serve` not to start.
    #[must_use]
    pub fn idle(&self) -> Option<&'static str> {
        (self.rooms.is_empty() && self.fallback.is_empty())
            .then_some("no rooms: this configuration guards nothing and forwards nothing; add a [rooms.NAME], or server.fallback")
    }

    /// The settings of a room.
    #[must_use]
    pub fn room(&self, id: &str) -> Option<&Room> {
        self.rooms.iter().find(|room| room.id == id)
    }

    /// Where a path of the config, relative to the file, points.
    #[must_use]
    pub fn beside(file: &Path, path: &Path) -> PathBuf {
        if path.is_absolute() {
            return path.to_path_buf();
        }
        file.parent().map_or_else(|| path.to_path_buf(), |folder| folder.join(path))
    }
}
