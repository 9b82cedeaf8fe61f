//! Whole gateways on one Redis, in this process or as the real program, a shop behind them, and visitors with cookies.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicU16, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use http::header::{ACCEPT, CONTENT_TYPE, COOKIE, HOST, SET_COOKIE};
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStderr, Command};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message as Frame;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use waitgate::config::{self, Config};
use waitgate::serve::Serving;
use waitgate::stop::Stop;

use crate::backend::{Backend, PATIENCE, soon};
use crate::harness::{Redis, patient};

/// A shop: what it answers to claims can be changed, and claims can be held back.
pub struct Shop {
    pub backend: Backend,
    pub claim_status: Arc<AtomicU16>,
    go: watch::Sender<bool>,
}

impl Shop {
    pub async fn open() -> Self {
        let claim_status = Arc::new(AtomicU16::new(201));
        let go = watch::Sender::new(true);
        let (status, gate) = (Arc::clone(&claim_status), go.subscribe());
        let backend = Backend::start(move |mut wire| {
            let (status, mut gate) = (Arc::clone(&status), gate.clone());
            async move {
                while let Some(request) = wire.request().await {
                    let (code, body) = if request.line().contains("/sale/claim") {
                        let _gone = gate.wait_for(|go| *go).await;
                        let order = format!("order of {}", request.one("waitgate-reservation"));
                        (status.load(SeqCst), order)
                    } else {
                        (200, "the shop".to_owned())
                    };
                    let length = body.len();
                    wire.send(format!("HTTP/1.1 {code} As asked\r\nContent-Length: {length}\r\n\r\n{body}"))
                        .await;
                }
            }
        })
        .await;
        Self { backend, claim_status, go }
    }

    /// Claims wait at the shop until [`Shop::answer_claims`].
    pub fn hold_claims(&self) {
        self.go.send_replace(false);
    }

    pub fn answer_claims(&self) {
        self.go.send_replace(true);
    }

    /// How many claims came.
    pub fn claims(&self) -> usize {
        let seen = self.backend.seen();
        seen.iter().filter(|message| message.line().starts_with("POST /sale/claim")).count()
    }
}

/// One Redis, one shop, one folder with keys: what several gateways share.
pub struct Crew {
    pub redis: Redis,
    pub shop: Shop,
    pub dir: TempDir,
    /// The settings of room 42 besides its paths and its shop, a line each.
    pub room: String,
    /// More settings of the whole file.
    pub more: String,
    /// How long a gateway waits for the store.
    pub store_timeout: &'static str,
    /// How long a stopping gateway waits.
    pub drain_timeout: &'static str,
    /// How long a client may refuse to read.
    pub body_timeout: &'static str,
}

impl Crew {
    /// With room 42 as these lines say; `on_store_loss` is "hold" where they are silent.
    pub async fn of(room: &str) -> Self {
        Self::on(Redis::start().await, room).await
    }

    pub async fn on(redis: Redis, room: &str) -> Self {
        let loss = if room.contains("on_store_loss") {
            ""
        } else {
            "on_store_loss = \"hold\"\n"
        };
        Self {
            redis,
            shop: Shop::open().await,
            dir: tempfile::tempdir().unwrap(),
            room: format!("{loss}{room}"),
            more: String::new(),
            store_timeout: "2s",
            drain_timeout: "10s",
            body_timeout: "7s",
        }
    }

    /// The file of a gateway on this store.
    pub fn file(&self, store_url: &str) -> String {
        let (dir, shop, timeout) = (self.dir.path().display(), self.shop.backend.address, self.store_timeout);
        let (room, more, drain, body) = (&self.room, &self.more, self.drain_timeout, self.body_timeout);
        format!(
            r#"
[server]
listen = "127.0.0.1:0"
drain_timeout = "{drain}"
body_timeout = "{body}"
max_connections_per_address = 20000
[ops]
listen = "127.0.0.1:0"
[store]
url = "{store_url}"
data_dir = "{dir}"
call_timeout = "{timeout}"
connect_timeout = "{timeout}"
[limits]
address = {{ rate = "100000/s", burst = 100000 }}
visitor = {{ rate = "100000/s", burst = 100000 }}
waiting = {{ rate = "100000/s", burst = 100000 }}
[cookies]
secure = false
[log]
format = "json"
{more}
[rooms.42]
paths = ["/sale"]
upstream = "http://{shop}"
{room}
"#
        )
    }

    fn config(&self, store_url: &str) -> Config {
        config::parse(&self.file(store_url), &self.dir.path().join("waitgate.toml")).expect("the settings are good")
    }

    /// One more gateway in this process.
    pub async fn gateway(&self) -> Gateway {
        self.gateway_through(&self.redis.url()).await
    }

    /// One more, whose store is reached this way.
    pub async fn gateway_through(&self, store_url: &str) -> Gateway {
        let stop = Stop::new();
        let serving = Serving::start(self.config(store_url), stop.clone()).await.expect("it starts");
        Gateway {
            public: serving.public,
            operators: serving.operators,
            stop,
            serving,
        }
    }

    /// One more as a process of its own, the real program, with few files if `files` says so.
    pub async fn process(&self, files: Option<u32>) -> Process {
        let file = self.dir.path().join("process.toml");
        std::fs::write(&file, self.file(&self.redis.url())).unwrap();
        Process::spawn(&file, files).await
    }

    /// A field of the room's hash, as a number.
    pub async fn number(&self, field: &str) -> u64 {
        let text: Option<String> = self.redis.ask(&["HGET", "{wg:42}:room", field]).await;
        text.map_or(0, |text| text.parse().expect("a number"))
    }

    /// How many are in a sorted set of the room.
    pub async fn count(&self, set: &str) -> usize {
        self.redis.ask(&["ZCARD", &format!("{{wg:42}}:{set}")]).await
    }

    /// Members of a sorted set of the room, in order.
    pub async fn members(&self, set: &str) -> Vec<String> {
        self.redis.ask(&["ZRANGE", &format!("{{wg:42}}:{set}"), "0", "-1"]).await
    }

    /// Free, held, sold and stock, of one moment.
    pub async fn stock(&self) -> [u64; 4] {
        let fields: Vec<Option<String>> = self.redis.ask(&["HMGET", "{wg:42}:room", "free", "held", "sold", "stock"]).await;
        let numbers: Vec<u64> = fields
            .into_iter()
            .map(|field| field.map_or(0, |field| field.parse().expect("a number")))
            .collect();
        numbers.try_into().unwrap()
    }
}

/// A gateway in this process.
pub struct Gateway {
    pub public: SocketAddr,
    pub operators: SocketAddr,
    pub stop: Stop,
    serving: Serving,
}

impl Gateway {
    /// Ends softly, and waits for it.
    pub async fn stopped(self) {
        self.stop.draining.cancel();
        soon(self.serving.ended()).await;
    }

    /// Changes the room as an operator does.
    pub async fn tune(&self, change: Value) {
        tune(self.operators, change).await;
    }
}

/// A gateway as a process of its own; killed when dropped.
pub struct Process {
    pub public: SocketAddr,
    pub operators: SocketAddr,
    pub child: Child,
    log: Lines<BufReader<ChildStderr>>,
    /// What it logged so far.
    pub said: Vec<String>,
}

impl Process {
    /// Starts `waitgate serve` with this file, and waits until it serves.
    pub async fn spawn(file: &std::path::Path, files: Option<u32>) -> Self {
        let program = PathBuf::from(env!("CARGO_BIN_EXE_waitgate"));
        let mut command = match files {
            Some(files) => {
                let mut command = Command::new("sh");
                command.args(["-c", &format!("ulimit -n {files}; exec \"$0\" \"$@\"")]).arg(program);
                command
            }
            None => Command::new(program),
        };
        let mut child = command
            .env_remove("RUST_LOG")
            .args(["serve", "--config"])
            .arg(file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the program starts");
        let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut said = Vec::new();
        let hello = async {
            loop {
                let line = log.next_line().await.unwrap().unwrap_or_else(|| panic!("it ended: {said:?}"));
                let spoken: Value = serde_json::from_str(&line).unwrap_or_default();
                said.push(line);
                let address = |name: &str| spoken[name].as_str()?.parse().ok();
                if let (Some(public), Some(operators)) = (address("public"), address("operators")) {
                    return (public, operators);
                }
            }
        };
        let (public, operators) = soon(hello).await;
        Self {
            public,
            operators,
            child,
            log,
            said,
        }
    }

    /// Sends a signal by its name.
    pub async fn signal(&self, name: &str) {
        let pid = self.child.id().expect("it runs").to_string();
        let sent = Command::new("kill").args(["-s", name, &pid]).status().await.unwrap();
        assert!(sent.success());
    }

    /// Reads its log along, for ever: one that talks much stands still when nobody does.
    pub async fn listened_to(&mut self) {
        while let Ok(Some(line)) = self.log.next_line().await {
            self.said.push(line);
        }
        std::future::pending().await
    }

    /// Waits until it has ended, reads the rest of its log, and tells its exit code.
    pub async fn code(&mut self) -> Option<i32> {
        let ending = async {
            while let Ok(Some(line)) = self.log.next_line().await {
                self.said.push(line);
            }
            self.child.wait().await.unwrap().code()
        };
        soon(ending).await
    }
}

/// Changes room 42 as an operator does, at this gateway.
pub async fn tune(operators: SocketAddr, change: Value) {
    let reply = operate(operators, Method::PATCH, "/v1/rooms/42", &change.to_string()).await;
    assert_eq!(reply.status, 200, "{change}: {}", reply.text());
}

/// A request to the operators' listener.
pub async fn operate(operators: SocketAddr, method: Method, path: &str, body: &str) -> Reply {
    let request = Request::builder().method(method).uri(path).header(HOST, "localhost");
    let request = request.header(CONTENT_TYPE, "application/json").body(Full::from(body.to_owned()));
    ask(operators, request.unwrap()).await.expect("the operators' listener answers")
}

/// A metric's value; 0 where it has not been counted yet.
pub async fn metric(operators: SocketAddr, name: &str) -> f64 {
    let text = operate(operators, Method::GET, "/metrics", "").await.text();
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.map_or(0.0, |value| value.parse().expect("a number"))
}

/// An answer, read whole.
#[derive(Clone, Debug)]
pub struct Reply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Reply {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }

    /// The status, and the `code` of a problem or the `state` of a view.
    pub fn gist(&self) -> (u16, String) {
        let json: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        let word = json["code"].as_str().or(json["state"].as_str()).unwrap_or_default();
        (self.status.as_u16(), word.to_owned())
    }
}

async fn begin(at: SocketAddr, request: Request<Full<Bytes>>) -> Result<http::Response<Incoming>, String> {
    let sent = async {
        let stream = TcpStream::connect(at).await.map_err(|error| error.to_string())?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| error.to_string())?;
        tokio::spawn(connection);
        sender.send_request(request).await.map_err(|error| error.to_string())
    };
    timeout(PATIENCE, sent).await.unwrap_or_else(|_| Err("no answer".to_owned()))
}

async fn ask(at: SocketAddr, request: Request<Full<Bytes>>) -> Result<Reply, String> {
    let (head, body) = begin(at, request).await?.into_parts();
    let body = timeout(PATIENCE, body.collect()).await.map_err(|_| "the answer hangs")?;
    Ok(Reply {
        status: head.status,
        headers: head.headers,
        body: body.map_err(|error| error.to_string())?.to_bytes(),
    })
}

/// Somebody with cookies, at one gateway at a time. Clones are tabs of one browser.
#[derive(Clone, Debug)]
pub struct Visitor {
    pub at: SocketAddr,
    jar: Arc<Mutex<HashMap<String, String>>>,
}

impl Visitor {
    pub fn new(at: SocketAddr) -> Self {
        Self { at, jar: Arc::default() }
    }

    /// Another tab of the same browser, which a balancer sent to this gateway.
    pub fn at(&self, at: SocketAddr) -> Self {
        Self {
            at,
            jar: Arc::clone(&self.jar),
        }
    }

    pub fn cookie(&self, name: &str) -> Option<String> {
        self.jar.lock().unwrap().get(name).cloned()
    }

    /// The ticket's id, as it is written in the ticket.
    pub fn ticket(&self) -> String {
        self.claims()["i"].as_str().expect("an id").to_owned()
    }

    /// The place, as it is written in the ticket; 0 for none.
    pub fn place(&self) -> u64 {
        self.claims()["p"].as_u64().expect("a place")
    }

    fn claims(&self) -> Value {
        let ticket = self.cookie("wgt_42").expect("a ticket");
        let claims = ticket.split('.').nth(1).expect("a JWT");
        serde_json::from_slice(&data_encoding::BASE64URL_NOPAD.decode(claims.as_bytes()).unwrap()).unwrap()
    }

    fn take(&self, headers: &HeaderMap) {
        let mut jar = self.jar.lock().unwrap();
        for line in headers.get_all(SET_COOKIE) {
            let (pair, attributes) = line.to_str().unwrap().split_once(';').unwrap();
            let (name, value) = pair.split_once('=').unwrap();
            if attributes.contains("Max-Age=0") {
                jar.remove(name);
            } else {
                jar.insert(name.to_owned(), value.to_owned());
            }
        }
    }

    fn request(&self, method: Method, path: &str) -> http::request::Builder {
        let mut request = Request::builder().method(method).uri(path).header(HOST, "shop.example");
        let jar = self.jar.lock().unwrap();
        if !jar.is_empty() {
            let cookies: Vec<_> = jar.iter().map(|(name, value)| format!("{name}={value}")).collect();
            request = request.header(COOKIE, cookies.join("; "));
        }
        request
    }

    pub async fn try_ask(&self, request: http::request::Builder, body: &str) -> Result<Reply, String> {
        let reply = ask(self.at, request.body(Full::from(body.to_owned())).unwrap()).await?;
        self.take(&reply.headers);
        Ok(reply)
    }

    async fn ask(&self, request: http::request::Builder, body: &str) -> Reply {
        self.try_ask(request, body).await.expect("an answer")
    }

    /// Loads the page of the sale, as a browser does.
    pub async fn load(&self) -> Reply {
        self.try_load().await.expect("an answer")
    }

    pub async fn try_load(&self) -> Result<Reply, String> {
        let request = self.request(Method::GET, "/sale").header(ACCEPT, "text/html");
        self.try_ask(request.header("sec-fetch-mode", "navigate"), "").await
    }

    /// Whether loading the page shows the shop.
    pub async fn gets_in(&self) -> bool {
        self.load().await.text() == "the shop"
    }

    pub async fn status(&self) -> Reply {
        self.try_status().await.expect("an answer")
    }

    pub async fn try_status(&self) -> Result<Reply, String> {
        self.try_ask(self.request(Method::GET, "/.waitgate/42/status"), "").await
    }

    pub async fn enter(&self) -> Reply {
        self.ask(self.request(Method::POST, "/.waitgate/42/enter"), "").await
    }

    pub async fn leave(&self) -> Reply {
        self.ask(self.request(Method::POST, "/.waitgate/42/leave"), "").await
    }

    pub async fn join_again(&self) -> Reply {
        self.ask(self.request(Method::POST, "/.waitgate/42/join"), "").await
    }

    pub async fn claim(&self, key: &str) -> Reply {
        self.try_claim(key).await.expect("an answer")
    }

    pub async fn try_claim(&self, key: &str) -> Result<Reply, String> {
        let request = self.request(Method::POST, "/sale/claim").header("idempotency-key", key);
        self.try_ask(request.header(CONTENT_TYPE, "application/json"), "{}").await
    }

    /// Loads the page and takes a place by the poll that follows.
    pub async fn joins(&self) -> Value {
        self.load().await;
        self.status().await.json()
    }

    /// Opens a stream of events.
    pub async fn stream(&self) -> Events {
        self.try_stream(&[]).await.expect("a stream")
    }

    pub async fn try_stream(&self, headers: &[(&'static str, &str)]) -> Result<Events, String> {
        let mut request = self
            .request(Method::GET, "/.waitgate/42/events")
            .header(ACCEPT, "text/event-stream");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (head, body) = begin(self.at, request.body(Full::default()).unwrap()).await?.into_parts();
        self.take(&head.headers);
        Ok(Events {
            status: head.status,
            headers: head.headers,
            body,
            read: Vec::new(),
        })
    }

    /// Opens a WebSocket.
    pub async fn socket(&self) -> Socket {
        self.socket_on(soon(TcpStream::connect(self.at)).await.expect("connect")).await
    }

    /// Opens a WebSocket on this connection.
    pub async fn socket_on(&self, stream: TcpStream) -> Socket {
        let mut request = format!("ws://{}/.waitgate/42/ws", self.at).into_client_request().unwrap();
        if let Some(cookies) = self.request(Method::GET, "/").body(()).unwrap().headers().get(COOKIE) {
            request.headers_mut().insert(COOKIE, cookies.clone());
        }
        let (socket, response) = soon(tokio_tungstenite::client_async(request, stream)).await.expect("a socket");
        self.take(response.headers());
        Socket(socket)
    }
}

/// What came on a stream of events.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A view.
    View(Value),
    /// "Come back in a moment."
    Bye,
    /// A comment.
    Comment,
    /// The end.
    End,
}

/// An open stream of events.
pub struct Events {
    pub status: StatusCode,
    pub headers: HeaderMap,
    body: Incoming,
    read: Vec<u8>,
}

impl Events {
    /// The next event, whatever it is; waits for it.
    pub async fn next(&mut self) -> Event {
        loop {
            if let Some(end) = self.read.windows(2).position(|bytes| bytes == b"\n\n") {
                let block: Vec<u8> = self.read.drain(..end + 2).collect();
                return parse(std::str::from_utf8(&block).expect("text"));
            }
            match self.body.frame().await {
                Some(Ok(frame)) => self.read.extend_from_slice(&frame.into_data().unwrap_or_default()),
                Some(Err(_)) | None => return Event::End,
            }
        }
    }

    /// The next view; comments are passed over.
    pub async fn view(&mut self) -> Value {
        loop {
            match soon(self.next()).await {
                Event::View(view) => return view,
                Event::Comment => {}
                other => panic!("no view but {other:?}"),
            }
        }
    }

    /// Reads until a view is like this.
    pub async fn until(&mut self, what: &str, so: impl Fn(&Value) -> bool) -> Value {
        let mut seen = Vec::new();
        let reading = async {
            loop {
                let view = self.view().await;
                if so(&view) {
                    return view;
                }
                seen.push(view);
            }
        };
        let found = timeout(PATIENCE, reading).await;
        found.unwrap_or_else(|_| panic!("never told: {what}; but {seen:?}"))
    }

    /// Reads until this state is told.
    pub async fn state(&mut self, state: &str) -> Value {
        self.until(state, |view| view["state"] == state).await
    }
}

fn parse(block: &str) -> Event {
    let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    match (field("event"), field("data")) {
        (Some("bye"), _) => Event::Bye,
        (None, Some(data)) => Event::View(serde_json::from_str(data).expect("JSON")),
        (None, None) if block.starts_with(':') => Event::Comment,
        _ => panic!("not an event of ours: {block:?}"),
    }
}

/// An open WebSocket.
pub struct Socket(pub WebSocketStream<TcpStream>);

impl Socket {
    /// The next view, or the code it was closed with.
    pub async fn next(&mut self) -> Result<Value, Option<u16>> {
        loop {
            match soon(self.0.next()).await {
                Some(Ok(Frame::Text(text))) => return Ok(serde_json::from_str(&text).expect("JSON")),
                Some(Ok(Frame::Close(frame))) => {
                    let _said_back = self.0.close(None).await;
                    return Err(frame.map(|frame| frame.code.into()));
                }
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return Err(None),
            }
        }
    }

    /// Reads until this state is told.
    pub async fn state(&mut self, state: &str) -> Value {
        let reading = async {
            loop {
                let view = self.next().await.expect("it stays open");
                if view["state"] == state {
                    return view;
                }
            }
        };
        timeout(PATIENCE, reading).await.unwrap_or_else(|_| panic!("never told: {state}"))
    }
}

/// Samples how many were ever called by the store's own clock, and holds every window of time against the rate.
pub struct Checker {
    samples: Vec<(u64, u64)>,
}

impl Checker {
    /// Of samples taken elsewhere: when, in ms, and how many had been called by then.
    pub fn of(samples: Vec<(u64, u64)>) -> Self {
        Self { samples }
    }

    /// Samples until `stop` says so.
    pub async fn watch(redis: &Redis, mut stop: watch::Receiver<bool>) -> Self {
        const SAMPLE: &str = "local t = redis.call('TIME') return {t[1] * 1000 + math.floor(t[2] / 1000), \
             tonumber(redis.call('HGET', '{wg:42}:room', 'called_total') or '0')}";
        let client = redis::Client::open(redis.url()).unwrap();
        let mut connection = client.get_multiplexed_async_connection_with_config(&patient()).await.unwrap();
        let mut samples = Vec::new();
        while !*stop.borrow_and_update() {
            let sample = redis::cmd("EVAL").arg(SAMPLE).arg(0).query_async(&mut connection).await;
            samples.push(sample.unwrap());
            let _changed = timeout(Duration::from_millis(7), stop.changed()).await;
        }
        Self { samples }
    }

    /// How many were called in all.
    pub fn called(&self) -> u64 {
        self.samples.last().map_or(0, |(_, called)| *called)
    }

    /// No window has more than `per_second` times its length, and the burst.
    pub fn assert_rate(&self, per_second: u64, burst: u64) {
        for (index, (from, before)) in self.samples.iter().enumerate() {
            for (to, after) in &self.samples[index..] {
                let allowed = per_second * (to - from + 2) / 1000 + burst;
                assert!(
                    after - before <= allowed,
                    "{} called in {} ms, {allowed} are allowed",
                    after - before,
                    to - from
                );
            }
        }
    }
}

/// Waits in line by polling, wherever a gateway still answers, until the shop is shown. Tells every number that was shown on the way.
pub async fn wait_and_enter(mut visitor: Visitor, gateways: &[SocketAddr]) -> Vec<u64> {
    let mut shown = Vec::new();
    let mut polls = tokio::time::interval(Duration::from_millis(100));
    let getting_in = async {
        loop {
            polls.tick().await;
            let polled = if visitor.cookie("wgt_42").is_none() {
                visitor.try_load().await
            } else {
                visitor.try_status().await
            };
            let polled = match polled {
                Ok(reply) if reply.status == 200 => reply,
                _ => {
                    // A balancer sends the next request to somebody who answers.
                    let at = gateways.iter().position(|at| *at == visitor.at).unwrap_or(0);
                    visitor = visitor.at(gateways[(at + 1) % gateways.len()]);
                    continue;
                }
            };
            if polled.text() == "the shop" {
                return;
            }
            let view: Value = serde_json::from_slice(&polled.body).unwrap_or_default();
            shown.extend(view["ahead"].as_u64());
            assert_ne!(view["state"], "gone", "{view}");
            if view["state"] == "turn" && visitor.try_load().await.is_ok_and(|page| page.text() == "the shop") {
                return;
            }
        }
    };
    timeout(Duration::from_secs(60), getting_in).await.expect("everybody gets in");
    shown
}

/// As [`crate::harness::within`], for what changes something of its own meanwhile.
pub async fn until_so(what: &str, mut so: impl AsyncFnMut() -> bool) {
    let trying = async { while !so().await {} };
    timeout(PATIENCE, trying).await.unwrap_or_else(|_| panic!("in time: {what}"));
}
