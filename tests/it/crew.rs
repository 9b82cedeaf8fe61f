//! Whole gateways on one Redis, in this process or as the real program, a shop behind them, and visitors with cookies.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering::SeqCst};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST};
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;
use waitgate::config::{self, Config};
use waitgate::serve::Serving;
use waitgate::stop::Stop;

use crate::backend::{Backend, PATIENCE, soon};
use crate::harness::Redis;

mod checks;
mod process;
mod streams;
mod visitor;

pub use checks::{Checker, until_so, wait_and_enter};
pub use process::Process;
pub use streams::{Event, Events, Socket};
pub use visitor::Visitor;

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
    /// Turns of gateways in this process that are shorter than settings may have them, so that no test waits for one to lapse.
    pub turn_ttl: Option<Duration>,
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
            turn_ttl: None,
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
        let parsed = config::parse(&self.file(store_url), &self.dir.path().join("waitgate.toml"));
        let mut config = parsed.expect("the settings are good");
        for room in &mut config.rooms {
            room.turn_ttl = self.turn_ttl.unwrap_or(room.turn_ttl);
        }
        config
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
