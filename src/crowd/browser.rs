//! What a visitor's browser does: keeps cookies and one connection, and says of each request what a browser says of it.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, ACCEPT_LANGUAGE, CONTENT_TYPE, COOKIE, HOST, HeaderName, ORIGIN, USER_AGENT};
use http::{HeaderValue, Method, Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;

use super::World;
use super::jar::Jar;
use super::wire::{Reply, Trouble, Wire, read};

/// How a request is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The address bar, a link or a reload.
    Navigate,
    /// A script of the page, reading JSON.
    Fetch,
    /// A script of the page, opening an event stream.
    Events,
}

/// What is sent beside method and path.
#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    pub(super) body: Bytes,
    pub(super) form: bool,
    pub(super) idempotency_key: Option<String>,
}

impl Content {
    /// A form.
    pub(super) fn form(fields: &str) -> Self {
        Self {
            body: Bytes::copy_from_slice(fields.as_bytes()),
            form: true,
            idempotency_key: None,
        }
    }

    /// JSON, with an idempotency key where a repeat must not count twice.
    pub(super) fn json(body: &str, key: Option<&str>) -> Self {
        Self {
            body: Bytes::copy_from_slice(body.as_bytes()),
            form: false,
            idempotency_key: key.map(str::to_owned),
        }
    }
}

/// One visitor's browser.
pub(super) struct Browser {
    pub(super) world: Arc<World>,
    /// The address it says it has, where it says one.
    pub(super) known_as: Option<IpAddr>,
    pub(super) source: Option<Ipv4Addr>,
    pub(super) jar: Jar,
    wire: Option<Wire>,
}

/// How often a request is sent before a visitor gives up.
const ATTEMPTS: u32 = 8;
const AGENT: HeaderValue = HeaderValue::from_static("Mozilla/5.0 (waitgate's crowd)");
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
const FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

impl Browser {
    /// A browser without cookies.
    pub(super) fn new(world: Arc<World>, known_as: Option<IpAddr>, source: Option<Ipv4Addr>) -> Self {
        Self {
            world,
            known_as,
            source,
            jar: Jar::default(),
            wire: None,
        }
    }

    /// Another tab: the same cookies and address, a connection of its own.
    pub(super) fn tab(&self) -> Self {
        Self {
            world: Arc::clone(&self.world),
            known_as: self.known_as,
            source: self.source,
            jar: self.jar.clone(),
            wire: None,
        }
    }

    /// Closes the connection, as a phone does that will not need it for a while.
    pub(super) fn hang_up(&mut self) {
        self.wire = None;
    }

    /// Gets a page.
    pub(super) async fn navigate(&mut self, path: &str) -> Result<Reply, Trouble> {
        self.ask(Kind::Navigate, Method::GET, path, Content::default()).await
    }

    /// Gets JSON.
    pub(super) async fn fetch(&mut self, path: &str) -> Result<Reply, Trouble> {
        self.ask(Kind::Fetch, Method::GET, path, Content::default()).await
    }

    /// Sends something.
    pub(super) async fn post(&mut self, kind: Kind, path: &str, content: Content) -> Result<Reply, Trouble> {
        self.ask(kind, Method::POST, path, content).await
    }

    /// Opens an event stream. The connection is the stream's from then on, and ends with it.
    pub(super) async fn open_events(&mut self, path: &str) -> Result<Response<Incoming>, Trouble> {
        let (response, _) = self.send(Kind::Events, Method::GET, path, Content::default()).await?;
        self.wire = None;
        Ok(response)
    }

    async fn ask(&mut self, kind: Kind, method: Method, path: &str, content: Content) -> Result<Reply, Trouble> {
        let (response, took) = self.send(kind, method, path, content).await?;
        let reply = read(response, took).await;
        if reply.is_err() {
            self.wire = None;
        }
        reply
    }

    /// Sends until there is an answer, as people do: whatever the crowd asks may be asked again, because a repeat of a claim carries its key and
    /// the rest is the same however often it is said.
    async fn send(&mut self, kind: Kind, method: Method, path: &str, content: Content) -> Result<(Response<Incoming>, Duration), Trouble> {
        let mut attempt = 0;
        loop {
            let request = self.request(kind, &method, path, content.clone())?;
            let trouble = match self.try_once(request).await {
                Ok(Some(answered)) => return Ok(answered),
                Ok(None) => Trouble::Broken(format!("sent {ATTEMPTS} times, and never read")),
                Err(trouble) => trouble,
            };
            self.world.count(|counts| counts.troubles += 1);
            attempt += 1;
            if attempt == ATTEMPTS {
                return Err(trouble);
            }
            let most = 100_u64 << attempt.min(5);
            tokio::time::sleep(Duration::from_millis(fastrand::u64(most / 2..=most))).await;
        }
    }

    /// Sends once. `None`: a kept connection was closed before the request left.
    async fn try_once(&mut self, request: Request<Full<Bytes>>) -> Result<Option<(Response<Incoming>, Duration)>, Trouble> {
        let mut wire = match self.wire.take().filter(Wire::is_open) {
            Some(wire) => wire,
            None => Wire::open(&self.world.road, self.source).await?,
        };
        let Some((response, took)) = wire.send(request).await? else {
            return Ok(None);
        };
        self.jar.take(response.headers());
        self.wire = Some(wire);
        self.world.count(|counts| counts.requests += 1);
        Ok(Some((response, took)))
    }

    fn request(&self, kind: Kind, method: &Method, path: &str, content: Content) -> Result<Request<Full<Bytes>>, Trouble> {
        let (accept, mode, destination) = match kind {
            Kind::Navigate => ("text/html,application/xhtml+xml;q=0.9,*/*;q=0.8", "navigate", "document"),
            Kind::Fetch => ("application/json", "cors", "empty"),
            Kind::Events => ("text/event-stream", "cors", "empty"),
        };
        let mut builder = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, &self.world.authority)
            .header(ACCEPT, accept)
            .header(ACCEPT_LANGUAGE, "en")
            .header(FETCH_SITE, "same-origin")
            .header(FETCH_MODE, mode)
            .header(FETCH_DEST, destination)
            .header(USER_AGENT, AGENT);
        if let Some(known_as) = self.known_as {
            builder = builder.header(FORWARDED_FOR, known_as.to_string());
        }
        if let Some(cookies) = self.jar.header() {
            builder = builder.header(COOKIE, cookies);
        }
        if method == Method::POST {
            let content_type = if content.form {
                "application/x-www-form-urlencoded"
            } else {
                "application/json"
            };
            builder = builder.header(ORIGIN, &self.world.origin).header(CONTENT_TYPE, content_type);
        }
        if let Some(key) = content.idempotency_key {
            builder = builder.header(IDEMPOTENCY_KEY, key);
        }
        builder
            .body(Full::new(content.body))
            .map_err(|malformed| Trouble::Broken(malformed.to_string()))
    }

    /// The headers of a WebSocket's opening, beside those tungstenite sets itself.
    pub(super) fn socket_request(&self, path: &str) -> Result<Request<()>, Trouble> {
        let mut builder = Request::builder()
            .uri(format!("ws://{}{path}", self.world.authority))
            .header(HOST, &self.world.authority)
            .header("connection", "Upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-version", "13")
            .header(
                "sec-websocket-key",
                tokio_tungstenite::tungstenite::handshake::client::generate_key(),
            )
            .header(USER_AGENT, AGENT)
            .header(ORIGIN, &self.world.origin);
        if let Some(known_as) = self.known_as {
            builder = builder.header(FORWARDED_FOR, known_as.to_string());
        }
        if let Some(cookies) = self.jar.header() {
            builder = builder.header(COOKIE, cookies);
        }
        builder.body(()).map_err(|malformed| Trouble::Broken(malformed.to_string()))
    }
}
