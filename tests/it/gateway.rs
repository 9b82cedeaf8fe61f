//! A whole gateway in this process, in front of a scripted backend and a real Redis, and the people who come to it.
//!
//! Everything is a real socket on loopback, every wait has a deadline, and everything ends when it is dropped. A [`Site`] may have several
//! gateways on one store. A [`Visitor`] is a browser without eyes: a cookie jar, a host, and an address of its own when a test wants one.

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use waitgate::config::{self, Config};
use waitgate::serve::Serving;
use waitgate::server::Stop;

use crate::backend::{Backend, Message, Wire, soon};
use crate::harness::{Redis, within};

mod streams;
mod visitor;

pub use streams::{Events, Socket};
pub use visitor::{ADMISSION, Ask, Reply, TICKET, Visitor, claims};

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

    /// With turns shorter than settings may have them, so that no test waits for one to lapse.
    pub async fn in_haste(settings: &str, turn_ttl: Duration) -> Self {
        let mut site = Self::with_gates(0, shop().await, settings).await;
        let mut config = site.settings(settings);
        for room in &mut config.rooms {
            room.turn_ttl = turn_ttl;
        }
        site.gates.push(Gate::start(config).await);
        site
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
        Gate::start(self.settings(settings)).await
    }

    fn settings(&self, settings: &str) -> Config {
        let file = self.folder.path().join(format!("gate-{}.toml", fastrand::u64(..)));
        self.write(&file, settings);
        config::load(&file).unwrap_or_else(|mistakes| panic!("{mistakes}\n{settings}"))
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
