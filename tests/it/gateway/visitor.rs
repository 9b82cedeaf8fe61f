//! Who comes: a browser without eyes, what it asks, and what it is told.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::header::{CACHE_CONTROL, COOKIE, ETAG, HOST, HeaderMap, LAST_MODIFIED, SET_COOKIE};
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::{TcpSocket, TcpStream};
use tokio_tungstenite::{client_async, tungstenite};

use super::{Events, Gate, Socket};
use crate::backend::soon;
use crate::harness::within;

/// A request to be asked.
#[derive(Clone, Debug)]
pub struct Ask {
    method: Method,
    path: String,
    headers: Vec<(String, String)>,
    body: String,
}

impl Ask {
    pub fn new(method: &str, path: &str) -> Self {
        Self {
            method: method.parse().expect("a method"),
            path: path.to_owned(),
            headers: Vec::new(),
            body: String::new(),
        }
    }

    pub fn get(path: &str) -> Self {
        Self::new("GET", path)
    }

    pub fn post(path: &str) -> Self {
        Self::new("POST", path)
    }

    /// The same of another address.
    pub fn to(mut self, path: &str) -> Self {
        path.clone_into(&mut self.path);
        self
    }

    pub fn header(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    /// As a browser asks when the address bar changes.
    pub fn navigating(self) -> Self {
        self.header("accept", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8")
            .header("sec-fetch-mode", "navigate")
            .header("sec-fetch-dest", "document")
    }

    /// As a program asks.
    pub fn scripted(self) -> Self {
        self.header("accept", "application/json")
    }

    pub fn json(mut self, body: &Value) -> Self {
        self.body = body.to_string();
        self.header("content-type", "application/json")
    }

    /// As a form of a page of the same origin is sent.
    pub fn form(mut self, body: &str) -> Self {
        self.body = body.to_owned();
        self.navigating().header("content-type", "application/x-www-form-urlencoded")
    }
}

/// What came back.
#[derive(Clone, Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Reply {
    pub fn text(&self) -> String {
        String::from_utf8(self.body.to_vec()).expect("UTF-8")
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|fault| panic!("{fault}: {} {}", self.status, self.text()))
    }

    /// A header that may be there; empty when it is not.
    pub fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .map_or("", |value| value.to_str().expect("a header in ASCII"))
    }

    /// Whether the shop answered, and not we.
    pub fn is_shop(&self) -> bool {
        self.headers.contains_key("x-shop")
    }

    /// An answer of ours: nobody may keep it.
    pub fn ours(&self) -> &Self {
        assert!(!self.is_shop(), "the shop answered: {}", self.text());
        assert!(self.header("cache-control").contains("no-store"), "{self:?}");
        assert_eq!(self.headers.get_all(CACHE_CONTROL).iter().count(), 1);
        assert!(!self.headers.contains_key(ETAG) && !self.headers.contains_key(LAST_MODIFIED));
        self
    }

    /// The code of a problem, checked to be one.
    pub fn code(&self) -> String {
        assert_eq!(self.header("content-type"), "application/problem+json", "{}", self.text());
        let problem = self.ours().json();
        assert_eq!(problem["status"], self.status, "{problem}");
        problem["code"].as_str().expect("a code").to_owned()
    }

    /// A page of ours: its state, as `data-state` says it.
    pub fn page(&self) -> String {
        assert_eq!(
            self.header("content-type"),
            "text/html; charset=utf-8",
            "{} {}",
            self.status,
            self.text()
        );
        let text = self.ours().text();
        let state = text.split_once("<body data-state=\"").and_then(|(_, rest)| rest.split_once('"'));
        state.unwrap_or_else(|| panic!("no state: {text}")).0.to_owned()
    }

    /// Whether this is the page of somebody in line, however long it will take.
    pub fn is_line(&self) -> bool {
        self.status == 200 && ["waiting", "nearly"].contains(&self.page().as_str())
    }

    /// Whether the forms of this page lead on to this target.
    pub fn leads_to(&self, target: &str) -> bool {
        let text = self.text().replace("&#x2f;", "/").replace("&amp;", "&");
        text.contains(&format!("name=\"next\" value=\"{target}\""))
    }

    /// The value of a cookie that this answer sets; empty when it takes it back.
    pub fn sets(&self, name: &str) -> Option<String> {
        let lines = self.headers.get_all(SET_COOKIE).iter().map(|line| line.to_str().expect("ASCII"));
        lines
            .filter_map(|line| line.split(';').next()?.split_once('='))
            .find(|(found, _)| *found == name)
            .map(|(_, value)| value.to_owned())
    }
}

type Jar = Arc<Mutex<BTreeMap<String, String>>>;

/// The ticket's cookie of room 42.
pub const TICKET: &str = "__Host-wgt_42";
/// The admission's.
pub const ADMISSION: &str = "__Host-wga_42";

/// Somebody who comes: a browser, or a program. A clone is another tab: it has the same cookies.
#[derive(Clone)]
pub struct Visitor {
    pub(super) to: SocketAddr,
    pub(super) from: Ipv4Addr,
    pub host: String,
    pub(super) jar: Jar,
    pub(super) headers: Vec<(String, String)>,
}

impl Visitor {
    /// From this address of loopback.
    pub fn at(mut self, from: Ipv4Addr) -> Self {
        self.from = from;
        self
    }

    /// With this header on every request.
    pub fn always(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The same browser at another gateway.
    pub fn moved_to(&self, gate: &Gate) -> Self {
        Self {
            to: gate.public,
            ..self.clone()
        }
    }

    pub fn cookie(&self, name: &str) -> Option<String> {
        self.jar.lock().unwrap().get(name).cloned()
    }

    pub fn set_cookie(&self, name: &str, value: &str) {
        self.jar.lock().unwrap().insert(name.to_owned(), value.to_owned());
    }

    pub fn forget_everything(&self) {
        self.jar.lock().unwrap().clear();
    }

    fn request(&self, ask: &Ask) -> Request<Full<Bytes>> {
        let mut request = Request::builder().method(ask.method.clone()).uri(&ask.path);
        if !ask.headers.iter().any(|(name, _)| name == "host") {
            request = request.header(HOST, &self.host);
        }
        for (name, value) in self.headers.iter().chain(&ask.headers) {
            request = request.header(name, value);
        }
        let cookies: Vec<String> = self
            .jar
            .lock()
            .unwrap()
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        if !cookies.is_empty() {
            request = request.header(COOKIE, cookies.join("; "));
        }
        request.body(Full::new(Bytes::from(ask.body.clone()))).expect("a request")
    }

    async fn connect(&self) -> TcpStream {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind(SocketAddr::new(IpAddr::V4(self.from), 0)).expect("an address");
        let stream = soon(socket.connect(self.to)).await.expect("connected");
        stream.set_nodelay(true).expect("nodelay");
        stream
    }

    fn keep(&self, headers: &HeaderMap) {
        let mut jar = self.jar.lock().unwrap();
        for line in headers.get_all(SET_COOKIE) {
            let line = line.to_str().expect("a cookie in ASCII");
            let Some((name, value)) = line.split(';').next().and_then(|pair| pair.split_once('=')) else {
                continue;
            };
            if line.contains("Max-Age=0") {
                jar.remove(name);
            } else {
                jar.insert(name.to_owned(), value.to_owned());
            }
        }
    }

    async fn begin(&self, ask: &Ask) -> http::Response<Incoming> {
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(self.connect().await))
            .await
            .expect("HTTP");
        tokio::spawn(connection);
        let response = soon(sender.send_request(self.request(ask))).await.expect("an answer");
        self.keep(response.headers());
        response
    }

    /// Asks, and reads the whole answer.
    pub async fn ask(&self, ask: Ask) -> Reply {
        let (head, body) = self.begin(&ask).await.into_parts();
        let body = soon(body.collect()).await.expect("a whole answer").to_bytes();
        Reply {
            status: head.status.as_u16(),
            headers: head.headers,
            body,
        }
    }

    /// A navigation.
    pub async fn go(&self, path: &str) -> Reply {
        self.ask(Ask::get(path).navigating()).await
    }

    /// A program's question.
    pub async fn fetch(&self, path: &str) -> Reply {
        self.ask(Ask::get(path).scripted()).await
    }

    /// A `POST` of the page's script.
    pub async fn post(&self, path: &str) -> Reply {
        self.ask(Ask::post(path).scripted().header("origin", format!("http://{}", self.host)))
            .await
    }

    /// A claim of room 42 with this key.
    pub async fn claim(&self, key: &str, body: &Value) -> Reply {
        self.ask(Ask::post("/sale/claim").scripted().header("idempotency-key", key).json(body))
            .await
    }

    /// Loads this page until the shop answers it: how a person without a script comes in.
    pub async fn enter(&self, path: &str) -> Reply {
        let last = Mutex::new(None);
        within("let in", async || {
            let reply = self.go(path).await;
            let done = reply.is_shop();
            *last.lock().unwrap() = Some(reply);
            done
        })
        .await;
        last.into_inner().unwrap().expect("an answer")
    }

    /// Stands in line: the ticket, and then the place, which on a busy machine may be there only at the next look. Answers the status.
    pub async fn stand(&self) -> Value {
        assert_eq!(self.go("/sale").await.status, 200);
        let last = Mutex::new(Value::Null);
        within("in line", async || {
            let reply = self.status().await;
            assert_eq!(reply.status, 200, "{}", reply.text());
            *last.lock().unwrap() = reply.json();
            !self.place().is_empty()
        })
        .await;
        last.into_inner().unwrap()
    }

    /// What `status` of room 42 answers.
    pub async fn status(&self) -> Reply {
        self.fetch("/.waitgate/42/status").await
    }

    /// The place signed into the ticket, as text; empty when it has none.
    pub fn place(&self) -> String {
        let place = self.cookie(TICKET).map(|token| claims(&token)["p"].clone());
        place
            .filter(|place| *place != json!(0))
            .map_or(String::new(), |place| place.to_string())
    }

    /// The id of the ticket.
    pub fn ticket(&self) -> String {
        let token = self.cookie(TICKET).expect("a ticket");
        claims(&token)["i"].as_str().expect("an id").to_owned()
    }

    /// Opens the events of room 42.
    pub async fn events(&self) -> Events {
        self.events_with(Ask::get("/.waitgate/42/events").header("accept", "text/event-stream"))
            .await
    }

    pub async fn events_with(&self, ask: Ask) -> Events {
        let (head, body) = self.begin(&ask).await.into_parts();
        Events {
            status: head.status.as_u16(),
            headers: head.headers,
            body,
            buffer: String::new(),
            retry_ms: None,
        }
    }

    /// Opens the WebSocket of room 42; the status of the answer when it is refused.
    pub async fn socket(&self, headers: &[(&str, &str)]) -> Result<Socket, u16> {
        let key = tungstenite::handshake::client::generate_key();
        let mut ask = Ask::get("/.waitgate/42/ws")
            .header("connection", "Upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", key);
        for (name, value) in headers {
            ask = ask.header(name, *value);
        }
        let (mut head, _) = self.request(&ask).into_parts();
        head.uri = format!("ws://{}/.waitgate/42/ws", self.host).parse().expect("an address");
        let stream = self.connect().await;
        match soon(client_async(Request::from_parts(head, ()), stream)).await {
            Ok((socket, answer)) => {
                self.keep(answer.headers());
                Ok(Socket(socket))
            }
            Err(tungstenite::Error::Http(answer)) => Err(answer.status().as_u16()),
            Err(fault) => panic!("{fault}"),
        }
    }
}

/// The claims of a token, unchecked.
pub fn claims(token: &str) -> Value {
    let middle = token.split('.').nth(1).expect("three parts");
    let bytes = data_encoding::BASE64URL_NOPAD.decode(middle.as_bytes()).expect("base64url");
    serde_json::from_slice(&bytes).expect("JSON")
}
