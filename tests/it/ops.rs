//! The operators' listener over real sockets, with a real Redis behind it.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HOST, HeaderMap, WWW_AUTHENTICATE};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use waitgate::config::{self, Secret};
use waitgate::ops::{Ops, OpsRoom};
use waitgate::peers::{Me, Peers};
use waitgate::server::{self, ConnectionLimits, ListenerSettings, Live, PortUse, Scheme, Stop};
use waitgate::store::scripts::{Asked, Gate, Stock};
use waitgate::telemetry::Metrics;
use waitgate::token::Tokens;

use crate::harness::{NOON, TERMS, World, seed, stocked, within};

mod backends;
mod change;
mod reload;
mod settle;
mod terminal;

/// An operators' listener on a port of its own: room `42` as the test made it, room `plain` without stock, room `absent` that nobody made.
struct Listener {
    address: SocketAddr,
    draining: CancellationToken,
    serving: JoinHandle<()>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// What came back.
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    text: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error} in {}", self.text))
    }

    /// The code of a problem, checked to be one.
    fn code(&self) -> String {
        assert_eq!(self.headers[CONTENT_TYPE], "application/problem+json", "{}", self.text);
        assert_eq!(self.headers[CACHE_CONTROL], "no-store");
        let problem = self.json();
        assert_eq!(problem["status"], self.status.as_u16());
        for key in ["type", "title", "detail"] {
            assert!(problem[key].is_string(), "{problem}");
        }
        problem["code"].as_str().unwrap().to_owned()
    }
}

impl Listener {
    async fn on(world: &World, token: Option<&str>) -> Self {
        world.store.room("plain").seed(&seed(1_000)).await.expect("seeded");
        let socket = server::listen("127.0.0.1:0".parse().unwrap(), PortUse::Alone).expect("a port");
        let address = socket.local_addr().expect("bound");
        let settings = config::Ops {
            listen: address,
            token: token.map(|token| Secret::new(token.to_owned())),
        };
        let dir = tempfile::tempdir().expect("a folder");
        let mut tokens = config::parse("", Path::new("waitgate.toml"))
            .expect("the defaults are right")
            .tokens;
        tokens.key_file = dir.path().join("keys");
        let tokens = Arc::new(Tokens::new(&tokens, NOON).expect("new keys"));
        let peers = Arc::new(Peers::new(Arc::new(Me::new(address, tokens))));
        let rooms = ["42", "plain", "absent"].map(|id| OpsRoom {
            id: id.to_owned(),
            store: world.store.room(id),
            terms: TERMS,
            copies: (0, Duration::ZERO),
            peers: Arc::clone(&peers),
        });
        let draining = CancellationToken::new();
        let metrics = Arc::new(Metrics::new());
        let ops = Arc::new(Ops::new(&settings, world.store.clone(), metrics, draining.clone(), rooms.to_vec()));
        let defaults = config::parse("", Path::new("waitgate.toml")).expect("the defaults are right");
        let limits = ConnectionLimits::new(&defaults.server, &defaults.client);
        let live = Live::new(ListenerSettings::plain(limits));
        Self {
            address,
            draining,
            serving: tokio::spawn(server::serve(socket, Scheme::Http, live, Stop::new(), move |request, _| {
                let ops = Arc::clone(&ops);
                Box::pin(async move { ops.handle(request).await })
            })),
        }
    }

    async fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &[], "").await
    }

    async fn patch(&self, room: &str, body: &Value) -> Answer {
        self.patch_as(room, &[], body).await
    }

    async fn patch_as(&self, room: &str, headers: &[(&str, &str)], body: &Value) -> Answer {
        let mut all = vec![("content-type", "application/json")];
        all.extend(headers);
        self.ask("PATCH", &format!("/v1/rooms/{room}"), &all, &body.to_string()).await
    }

    async fn settle(&self, reservation: &str, verb: &str) -> Answer {
        let path = format!("/v1/rooms/42/reservations/{reservation}/{verb}");
        self.ask("POST", &path, &[], "").await
    }

    async fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let stream = TcpStream::connect(self.address).await.expect("connected");
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("HTTP");
        let connection = tokio::spawn(connection);
        let mut request = Request::builder().method(method).uri(path);
        if !headers.iter().any(|(name, _)| *name == "host") {
            request = request.header(HOST, self.address.to_string());
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::from(body.to_owned()))).expect("a request");
        let (parts, body) = sender.send_request(request).await.expect("an answer").into_parts();
        let bytes = body.collect().await.expect("a body").to_bytes();
        connection.abort();
        Answer {
            status: parts.status,
            headers: parts.headers,
            text: String::from_utf8(bytes.to_vec()).expect("UTF-8"),
        }
    }
}

/// A unit held by `user` for a minute.
async fn hold(world: &World, user: &str) -> String {
    let asked = Asked {
        user: user.to_owned(),
        key: format!("key-{user}"),
        fingerprint: "f".to_owned(),
        reservation: format!("r-{user}"),
        units: 1,
        limit: 1,
        hold_ms: 60_000,
        flight_ms: 5_000,
    };
    match world.room.claim(&asked).await.expect("claimed") {
        Gate::Reserved(reservation) => reservation.id,
        other => panic!("not reserved: {other:?}"),
    }
}

async fn stock(world: &World) -> Stock {
    let stock = world.room.show().await.unwrap().unwrap().stock.expect("a room with stock");
    assert_eq!(stock.free + stock.held + stock.sold, stock.stock, "{stock:?}");
    stock
}

#[tokio::test]
async fn every_route_that_reads_answers() {
    let world = World::with(stocked(100)).await;
    let listener = Listener::on(&world, None).await;
    let id = hold(&world, "ann").await;

    let alive = listener.get("/healthz").await;
    assert_eq!((alive.status.as_u16(), alive.text.as_str()), (200, "ok\n"));
    let ready = listener.get("/readyz").await;
    assert_eq!(
        (ready.status.as_u16(), ready.json()),
        (200, json!({ "ready": true, "reasons": [] }))
    );

    let room = listener.get("/v1/rooms/42").await;
    assert_eq!(room.status, 200, "{}", room.text);
    assert_eq!(room.headers[CACHE_CONTROL], "no-store");
    let room = room.json();
    assert_eq!(room["state"], "open");
    assert_eq!((&room["rate"], &room["rate_per_s"]), (&json!("1000/s"), &json!(1000.0)));
    assert_eq!(
        room["stock"],
        json!({ "stock": 100, "free": 99, "held": 1, "sold": 0, "known": true })
    );
    assert_eq!(room["opens_at"], Value::Null);
    assert_eq!(room["invariant_ok"], true);
    assert_eq!(room["now_ms"], NOON);

    let rooms = listener.get("/v1/rooms").await.json();
    let ids: Vec<_> = rooms["rooms"].as_array().unwrap().iter().map(|room| room["id"].clone()).collect();
    assert_eq!(ids, ["42", "plain"]);
    assert_eq!(rooms["rooms"][1]["stock"], Value::Null);
    assert_eq!(rooms["not_ready"], json!(["absent"]));

    let reservation = listener.get(&format!("/v1/rooms/42/reservations/{id}")).await;
    assert_eq!(
        reservation.json(),
        json!({ "reservation": id, "user": "ann", "units": 1, "state": "held", "expires_at_ms": NOON + 60_000 })
    );

    let metrics = listener.get("/metrics").await;
    assert!(
        metrics.headers[CONTENT_TYPE]
            .to_str()
            .unwrap()
            .starts_with("text/plain; version=0.0.4")
    );
    for line in [
        "waitgate_room_free_units{room=\"42\"} 99",
        "waitgate_room_rate_per_second{room=\"plain\"} 1",
        "waitgate_stock_invariant_broken{room=\"42\"} 0",
    ] {
        assert!(metrics.text.lines().any(|written| written == line), "{line} in {}", metrics.text);
    }
    assert!(!metrics.text.contains("absent"));
}

#[tokio::test]
async fn head_is_get_without_a_body() {
    let world = World::with(stocked(1)).await;
    let listener = Listener::on(&world, None).await;
    let head = listener.ask("HEAD", "/healthz", &[], "").await;
    assert_eq!((head.status.as_u16(), head.text.as_str()), (200, ""));
    assert_eq!(head.headers["content-length"], "3");
}

#[tokio::test]
async fn what_is_not_there_is_not_found() {
    let world = World::with(stocked(1)).await;
    let listener = Listener::on(&world, None).await;
    for (path, code) in [
        ("/", "no_such_route"),
        ("/v1", "no_such_route"),
        ("/v1/rooms/", "no_such_room"),
        ("/v1/rooms/43", "no_such_room"),
        ("/v1/rooms/43/reservations/x", "no_such_room"),
        ("/v1/rooms/42/reservations/none", "no_such_reservation"),
        ("/v1/rooms/42/reservations/", "no_such_reservation"),
        ("/v1/rooms/42/reservations/x/y", "no_such_route"),
        ("/healthz/", "no_such_route"),
    ] {
        let answer = listener.get(path).await;
        assert_eq!((answer.status.as_u16(), answer.code().as_str()), (404, code), "{path}");
    }
    let long = format!("/v1/rooms/42/reservations/{}", "x".repeat(129));
    assert_eq!(listener.get(&long).await.code(), "no_such_reservation");
    let absent = listener.get("/v1/rooms/absent").await;
    assert_eq!((absent.status.as_u16(), absent.code().as_str()), (503, "room_not_ready"));
    let absent = listener.patch("absent", &json!({ "cap": 1 })).await;
    assert_eq!((absent.status.as_u16(), absent.code().as_str()), (503, "room_not_ready"));
}

#[tokio::test]
async fn a_wrong_method_is_told_the_right_ones() {
    let world = World::with(stocked(1)).await;
    let listener = Listener::on(&world, None).await;
    for (method, path, allow) in [
        ("POST", "/healthz", "GET, HEAD"),
        ("DELETE", "/metrics", "GET, HEAD"),
        ("PUT", "/v1/rooms/42", "GET, HEAD, PATCH"),
        ("OPTIONS", "/v1/rooms", "GET, HEAD"),
        ("GET", "/v1/rooms/42/reservations/x/confirm", "POST"),
        ("POST", "/v1/rooms/42/reservations/x", "GET, HEAD"),
    ] {
        let answer = listener.ask(method, path, &[], "").await;
        assert_eq!(
            (answer.status.as_u16(), answer.code().as_str()),
            (405, "method_not_allowed"),
            "{method} {path}"
        );
        assert_eq!(answer.headers[ALLOW], allow);
    }
}

#[tokio::test]
async fn with_a_token_only_probes_are_for_anybody() {
    let world = World::with(stocked(1)).await;
    let listener = Listener::on(&world, Some("0123456789abcdef")).await;
    let everything = world.redis.everything().await;
    for path in ["/healthz", "/readyz"] {
        assert_eq!(listener.get(path).await.status, 200, "{path}");
    }
    for (method, path) in [
        ("GET", "/metrics"),
        ("GET", "/v1/rooms"),
        ("GET", "/v1/rooms/42"),
        ("PATCH", "/v1/rooms/42"),
        ("GET", "/v1/rooms/42/reservations/x"),
        ("POST", "/v1/rooms/42/reservations/x/confirm"),
        ("POST", "/v1/rooms/42/reservations/x/release"),
        ("GET", "/v1/rooms/no-such-room"),
        ("GET", "/no-such-route"),
    ] {
        for headers in [&[][..], &[("authorization", "Bearer 0123456789abcdeF")][..]] {
            let answer = listener.ask(method, path, headers, "").await;
            assert_eq!(
                (answer.status.as_u16(), answer.code().as_str()),
                (401, "token_required"),
                "{method} {path}"
            );
            let challenge = answer.headers[WWW_AUTHENTICATE].to_str().unwrap();
            assert!(challenge.starts_with("Bearer"), "{challenge}");
        }
    }
    assert_eq!(world.redis.everything().await, everything);
    let ours = [("authorization", "Bearer 0123456789abcdef"), ("host", "ops.shop.example")];
    assert_eq!(listener.ask("GET", "/v1/rooms/42", &ours, "").await.status, 200);
}

#[tokio::test]
async fn pages_of_other_sites_and_rebound_names_are_refused() {
    let world = World::with(stocked(1)).await;
    let listener = Listener::on(&world, None).await;
    let everything = world.redis.everything().await;
    let body = json!({ "paused": true });
    for (headers, status, code) in [
        (&[("host", "evil.example")][..], 403, "foreign_host"),
        (&[("origin", "http://evil.example")], 403, "foreign_origin"),
        (&[("origin", "null")], 403, "foreign_origin"),
        (&[("sec-fetch-site", "cross-site")], 403, "foreign_origin"),
        (&[("host", "a.example"), ("host", "localhost")], 400, "malformed_request"),
    ] {
        let answer = listener.patch_as("42", headers, &body).await;
        assert_eq!((answer.status.as_u16(), answer.code().as_str()), (status, code), "{headers:?}");
    }
    // A form may be sent by any page without asking; it is not JSON.
    for kind in ["text/plain", "application/x-www-form-urlencoded", ""] {
        let answer = listener
            .ask("PATCH", "/v1/rooms/42", &[("content-type", kind)], &body.to_string())
            .await;
        assert_eq!(
            (answer.status.as_u16(), answer.code().as_str()),
            (415, "unsupported_media_type"),
            "{kind}"
        );
    }
    assert_eq!(world.redis.everything().await, everything);
    for host in ["localhost", "127.0.0.1:1", "[::1]:9090"] {
        assert_eq!(listener.ask("GET", "/v1/rooms", &[("host", host)], "").await.status, 200, "{host}");
    }
}

#[tokio::test]
async fn a_store_that_is_away_is_told_and_nothing_hangs() {
    let mut world = World::with(stocked(5)).await;
    let listener = Listener::on(&world, None).await;
    world.redis.kill().await;
    within("the store is away", async || !world.store.is_up()).await;

    for answer in [
        listener.get("/v1/rooms").await,
        listener.get("/v1/rooms/42").await,
        listener.get("/v1/rooms/42/reservations/x").await,
        listener.patch("42", &json!({ "cap": 1 })).await,
        listener.settle("x", "release").await,
    ] {
        assert_eq!((answer.status.as_u16(), answer.code().as_str()), (503, "store_unavailable"));
        assert_eq!(answer.headers["retry-after"], "1");
    }
    assert_eq!(listener.patch("42", &json!({ "cap": 1 })).await.json()["may_have_run"], false);
    let ready = listener.get("/readyz").await;
    assert_eq!(ready.status, 503);
    assert_eq!(ready.json(), json!({ "ready": false, "reasons": ["store_unavailable"] }));
    assert_eq!(listener.get("/healthz").await.status, 200);
    let metrics = listener.get("/metrics").await;
    assert_eq!(metrics.status, 200);
    assert!(!metrics.text.contains("waitgate_room_waiting"));

    world.redis.revive().await;
    within("ready again", async || listener.get("/readyz").await.status == 200).await;
    assert_eq!(listener.get("/v1/rooms/42").await.code(), "room_not_ready");
}

#[tokio::test]
async fn a_full_store_refuses_a_change_whole() {
    let world = World::with(stocked(5)).await;
    let listener = Listener::on(&world, None).await;
    let id = hold(&world, "ann").await;
    world.redis.ask::<()>(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let everything = world.redis.everything().await;
    for answer in [
        listener.patch("42", &json!({ "stock": 6 })).await,
        listener.settle(&id, "release").await,
    ] {
        assert_eq!((answer.status.as_u16(), answer.code().as_str()), (503, "store_unavailable"));
        assert_eq!(answer.json()["may_have_run"], false);
    }
    assert_eq!(world.redis.everything().await, everything);
    world.redis.ask::<()>(&["CONFIG", "SET", "maxmemory", "0"]).await;
    assert_eq!(listener.settle(&id, "release").await.status, 200);
}

#[tokio::test]
async fn a_gateway_that_stops_is_not_ready() {
    let world = World::with(stocked(5)).await;
    let listener = Listener::on(&world, None).await;
    listener.draining.cancel();
    let ready = listener.get("/readyz").await;
    assert_eq!((ready.status.as_u16(), &ready.json()["reasons"]), (503, &json!(["draining"])));
    assert_eq!(listener.get("/healthz").await.status, 200);
    assert_eq!(listener.get("/v1/rooms/42").await.status, 200);
}
