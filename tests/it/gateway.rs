//! A whole gateway in this process, in front of a scripted backend and a real Redis, and the people who come to it.
//!
//! Everything is a real socket on loopback, every wait has a deadline, and everything ends when it is dropped. A [`Site`] may have several
//! gateways on one store. A [`Visitor`] is a browser without eyes: a cookie jar, a host, and an address of its own when a test wants one.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::header::{CACHE_CONTROL, COOKIE, ETAG, HOST, HeaderMap, LAST_MODIFIED, SET_COOKIE};
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::{TcpSocket, TcpStream};
use tokio_tungstenite::tungstenite::{self, Message as Frame};
use tokio_tungstenite::{WebSocketStream, client_async};
use waitgate::clock::Clock;
use waitgate::config;
use waitgate::serve::Serving;
use waitgate::server::Stop;

use crate::backend::{Backend, Message, PATIENCE, Wire, soon};
use crate::harness::{Redis, within};

/// The host that people ask for unless a test says otherwise.
pub const HOST_NAME: &str = "shop.example";
/// A room in which nobody is called until an operator says so.
pub const LINE: &str = "[rooms.42]\npaths = [\"/sale\"]\nrate = 0\n";
/// A room that lets everybody in and sells three phones, one to each.
pub const SHOP: &str = "[rooms.42]\npaths = [\"/sale\"]\nrate = \"1000/s\"\nstock = 3\nclaim.path = \"/sale/claim\"\n";

/// One gateway.
pub struct Gate {
    pub public: SocketAddr,
    /// Where HTTPS is, if it is.
    pub secure: Option<SocketAddr>,
    pub operators: SocketAddr,
    pub stop: Stop,
    /// What it reads its settings from.
    pub file: PathBuf,
}

/// A store, a backend, and one or more gateways between people and them.
pub struct Site {
    pub redis: Redis,
    pub backend: Backend,
    pub gates: Vec<Gate>,
    pub folder: TempDir,
}

impl Deref for Site {
    type Target = Gate;

    fn deref(&self) -> &Gate {
        &self.gates[0]
    }
}

impl Site {
    /// In front of a shop that says yes to everything. `settings` are rooms, and whatever else a test wants to be different.
    pub async fn open(settings: &str) -> Self {
        Self::before(shop().await, settings).await
    }

    /// In front of this backend.
    pub async fn before(backend: Backend, settings: &str) -> Self {
        Self::with_gates(1, backend, settings).await
    }

    /// Several gateways on one store, with one set of keys.
    pub async fn with_gates(count: usize, backend: Backend, settings: &str) -> Self {
        let redis = Redis::start().await;
        let folder = tempfile::Builder::new().prefix("gate").tempdir().expect("a folder");
        let mut site = Self {
            redis,
            backend,
            gates: Vec::new(),
            folder,
        };
        for _ in 0..count {
            let gate = site.another(settings).await;
            site.gates.push(gate);
        }
        site
    }

    /// One more gateway on the same store, keys and backend.
    pub async fn another(&self, settings: &str) -> Gate {
        let file = self.folder.path().join(format!("gate-{}.toml", fastrand::u64(..)));
        self.write(&file, settings);
        let config = config::load(&file).unwrap_or_else(|mistakes| panic!("{mistakes}\n{settings}"));
        Gate::start(config).await
    }

    /// Writes other settings for the first gateway; they are in force when it is told to read them.
    pub fn rewrite(&self, settings: &str) {
        self.write(&self.file, settings);
    }

    /// Writes other settings for the first gateway, and lets it read them. Answers what the operator is told.
    pub async fn reload(&self, settings: &str) -> Reply {
        self.rewrite(settings);
        self.operate("POST", "/v1/reload", &Value::Null).await
    }

    fn write(&self, file: &Path, settings: &str) {
        // Keys of the listeners stand first, because everything after a table's head belongs to that table.
        let (server, settings): (Vec<&str>, Vec<&str>) = settings
            .lines()
            .partition(|line| line.starts_with("server.") || line.starts_with("tls."));
        let (server, settings) = (server.join("\n"), settings.join("\n"));
        let text = format!(
            "{server}\nserver.listen = \"127.0.0.1:0\"\nops.listen = \"127.0.0.1:0\"\nstore.url = \"{}\"\nstore.data_dir = \"{}\"\nroom.upstream = \"http://{}\"\n\
             room.on_store_loss = \"hold\"\n{settings}\n",
            self.redis.url(),
            self.folder.path().display(),
            self.backend.address,
        );
        std::fs::write(file, text).expect("a file");
    }

    /// The file with the keys of tokens.
    pub fn keys(&self) -> std::path::PathBuf {
        self.folder.path().join("keys.json")
    }

    /// How many tickets are in the line, as the store has them.
    pub async fn in_line(&self) -> u64 {
        self.redis.ask(&["ZCARD", "{wg:42}:line"]).await
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.stop.draining.cancel();
        self.stop.cut.cancel();
    }
}

impl Gate {
    async fn start(config: config::Config) -> Self {
        let (rooms, file) = (config.rooms.clone(), config.file.clone());
        let stop = Stop::new();
        let serving = soon(Serving::start(config, stop.clone())).await.expect("it starts");
        let (public, secure, operators) = (serving.public, serving.secure, serving.operators);
        tokio::spawn(serving.ended());
        let gate = Self {
            public,
            secure,
            operators,
            stop,
            file,
        };
        for room in rooms {
            gate.knows(&room).await;
        }
        gate
    }

    /// Waits until the gateway has heard of this room from the store. Asked from an address of its own, so that no test's budget is touched.
    async fn knows(&self, room: &config::Room) {
        let mut asker = self.visitor().at(Ipv4Addr::new(127, 9, 9, 9));
        if let Some(host) = room.hosts.first() {
            asker.host.clone_from(host);
        }
        within("the gateway knows its rooms", async || {
            let reply = asker.fetch(&room.paths[0]).await;
            asker.forget_everything();
            reply.status != 429 || reply.json()["view"]["delayed"].is_null()
        })
        .await;
    }

    /// Somebody new.
    pub fn visitor(&self) -> Visitor {
        Visitor {
            to: self.public,
            from: Ipv4Addr::LOCALHOST,
            host: HOST_NAME.to_owned(),
            jar: Arc::default(),
            headers: Vec::new(),
        }
    }

    /// A raw connection.
    pub async fn wire(&self) -> Wire {
        Wire::to(self.public).await
    }

    /// Asks the operators' listener.
    pub async fn operate(&self, method: &str, path: &str, body: &Value) -> Reply {
        let operator = Visitor {
            to: self.operators,
            host: self.operators.to_string(),
            ..self.visitor()
        };
        let ask = Ask::new(method, path);
        operator.ask(if body.is_null() { ask } else { ask.json(body) }).await
    }

    /// Changes room 42, and answers how it is then.
    pub async fn tune(&self, change: Value) -> Value {
        let reply = self.operate("PATCH", "/v1/rooms/42", &change).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply.json()
    }

    /// How room 42 is.
    pub async fn room(&self) -> Value {
        self.operate("GET", "/v1/rooms/42", &Value::Null).await.json()
    }

    /// The stock of room 42: free, held, sold. What does not add up fails.
    pub async fn stock(&self) -> [u64; 3] {
        let room = self.room().await;
        assert_eq!(room["invariant_ok"], true, "{room}");
        ["free", "held", "sold"].map(|name| room["stock"][name].as_u64().expect("a number"))
    }

    /// Waits until a member of room 42 has this value.
    pub async fn until_room(&self, member: &str, value: impl Into<Value>) {
        let value = value.into();
        within(&format!("{member} is {value}"), async || self.room().await[member] == value).await;
    }

    /// The backend's word on a reservation; answers the outcome, or the code of the problem.
    pub async fn settle(&self, reservation: &str, verb: &str) -> String {
        let path = format!("/v1/rooms/42/reservations/{reservation}/{verb}");
        let reply = self.operate("POST", &path, &Value::Null).await.json();
        let said = reply["outcome"].as_str().or(reply["code"].as_str());
        said.unwrap_or_else(|| panic!("{reply}")).to_owned()
    }

    /// What became of a reservation: `held`, `sold`, `released` or `expired`.
    pub async fn held(&self, reservation: &str) -> String {
        let path = format!("/v1/rooms/42/reservations/{reservation}");
        let reply = self.operate("GET", &path, &Value::Null).await.json();
        reply["state"].as_str().unwrap_or_else(|| panic!("{reply}")).to_owned()
    }

    /// One line of the metrics.
    pub async fn metric(&self, begins: &str) -> Option<String> {
        let reply = self.operate("GET", "/metrics", &Value::Null).await.text();
        reply.lines().find(|line| line.starts_with(begins)).map(str::to_owned)
    }
}

/// A shop that says yes: 201 with the reservation to a claim, 200 to the rest, and its name on each answer.
pub async fn shop() -> Backend {
    shop_that(|request| match claimed(request) {
        Some(reservation) => said(201, &json!({ "order": reservation }).to_string()),
        None => said(200, "the shop"),
    })
    .await
}

/// A shop that answers as this says.
pub async fn shop_that(answers: impl Fn(&Message) -> String + Send + Sync + 'static) -> Backend {
    let answers = Arc::new(answers);
    Backend::start(move |mut wire| {
        let answers = Arc::clone(&answers);
        async move {
            while let Some(request) = wire.request().await {
                wire.send(answers(&request)).await;
            }
        }
    })
    .await
}

/// An answer of the shop.
pub fn said(status: u16, body: &str) -> String {
    format!(
        "HTTP/1.1 {status} Said\r\nX-Shop: yes\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// The reservation a request of the backend came with, if it is a claim.
pub fn claimed(request: &Message) -> Option<String> {
    request.all("waitgate-reservation").first().map(|id| (*id).to_owned())
}

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
    to: SocketAddr,
    from: Ipv4Addr,
    pub host: String,
    jar: Jar,
    headers: Vec<(String, String)>,
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

    /// Stands in line: the ticket, and then the place. Answers the status.
    pub async fn stand(&self) -> Value {
        assert_eq!(self.go("/sale").await.status, 200);
        let reply = self.status().await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        assert!(!self.place().is_empty(), "{}", reply.text());
        reply.json()
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

/// One event of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// Its type; `message` when it has none.
    pub name: String,
    pub data: String,
    pub id: Option<String>,
}

impl Event {
    pub fn view(&self) -> Value {
        serde_json::from_str(&self.data).unwrap_or_else(|fault| panic!("{fault}: {self:?}"))
    }
}

/// An open stream of events. Dropping it leaves.
pub struct Events {
    pub status: u16,
    pub headers: HeaderMap,
    pub retry_ms: Option<u64>,
    body: Incoming,
    buffer: String,
}

impl Events {
    /// The next event; none at the end of the stream. Comments are skipped.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some((block, rest)) = self.buffer.split_once("\n\n") {
                let (block, rest) = (block.to_owned(), rest.to_owned());
                self.buffer = rest;
                match self.read(&block) {
                    Some(event) => return Some(event),
                    None => continue,
                }
            }
            let frame = soon(self.body.frame()).await?.ok()?;
            let data = frame.into_data().expect("data");
            self.buffer.push_str(std::str::from_utf8(&data).expect("UTF-8"));
        }
    }

    fn read(&mut self, block: &str) -> Option<Event> {
        let mut event = Event {
            name: "message".to_owned(),
            ..Event::default()
        };
        for line in block.lines() {
            match line.split_once(": ") {
                Some(("retry", value)) => self.retry_ms = value.parse().ok(),
                Some(("event", value)) => value.clone_into(&mut event.name),
                Some(("data", value)) => value.clone_into(&mut event.data),
                Some(("id", value)) => event.id = Some(value.to_owned()),
                _ => assert!(line.starts_with(':'), "a line that is none of ours: {line}"),
            }
        }
        (!event.data.is_empty()).then_some(event)
    }

    /// The next view that is like this; panics when the stream ends first.
    pub async fn until(&mut self, what: &str, like: impl Fn(&Value) -> bool) -> Value {
        let deadline = Clock::instant() + PATIENCE;
        loop {
            let event = self.next().await.unwrap_or_else(|| panic!("the stream ended before {what}"));
            let view = event.view();
            if like(&view) {
                return view;
            }
            assert!(Clock::instant() < deadline, "never {what}, but {view}");
        }
    }

    pub async fn until_state(&mut self, state: &str) -> Value {
        self.until(state, |view| view["state"] == state).await
    }

    /// All events up to the end.
    pub async fn rest(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        while let Some(event) = self.next().await {
            events.push(event);
        }
        events
    }
}

/// An open WebSocket.
pub struct Socket(WebSocketStream<TcpStream>);

impl Socket {
    /// The next view, or the code that the socket was closed with.
    pub async fn next(&mut self) -> Result<Value, u16> {
        use futures_util::StreamExt as _;
        loop {
            match soon(self.0.next()).await {
                Some(Ok(Frame::Text(text))) => return Ok(serde_json::from_str(&text).expect("JSON")),
                Some(Ok(Frame::Close(frame))) => {
                    let _said_back = self.0.close(None).await;
                    return Err(frame.map_or(1005, |frame| frame.code.into()));
                }
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return Err(1006),
            }
        }
    }

    pub async fn until_state(&mut self, state: &str) -> Value {
        loop {
            let view = self.next().await.unwrap_or_else(|code| panic!("closed with {code} before {state}"));
            if view["state"] == state {
                return view;
            }
        }
    }
}
