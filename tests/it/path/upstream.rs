//! Forwarding to one backend: what is repeated, what is limited, what passes through unharmed.

use std::sync::Arc;
use std::time::Duration;

use http::Request;
use http_body_util::BodyExt;
use tokio::sync::{Notify, watch};
use waitgate::config;

use crate::backend::{Backend, Front, Treatment, Wire, http2, limits, nothing, settings, until};
use crate::harness::{StillTime, nowhere};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const GET: &str = "GET /x HTTP/1.1\r\nHost: shop.example\r\n\r\n";
const POST: &str = "POST /claim HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 3\r\n\r\nbuy";

/// Answers once, then treats the second request on that connection as told; later connections are well.
async fn closing_at_the_second(reset: bool) -> Backend {
    Backend::start(move |mut wire| async move {
        let first = wire.number == 1;
        while wire.request().await.is_some() {
            wire.send(OK).await;
            if first {
                wire.request().await;
                if reset {
                    wire.reset();
                }
                return;
            }
        }
    })
    .await
}

/// CASE 53: a kept connection that is closed as a `GET` arrives costs nobody an answer.
#[tokio::test]
async fn a_get_on_a_connection_just_closed_is_repeated_once() {
    for reset in [false, true] {
        let backend = closing_at_the_second(reset).await;
        let front = Front::of(&backend).await;
        let mut client = front.client().await;
        assert_eq!(client.ask(GET).await.status(), 200);
        assert_eq!(client.ask(GET).await.status(), 200, "reset: {reset}");
        assert_eq!((backend.seen().len(), backend.connections()), (3, 2));
        front.stopped().await;
    }
}

/// CASE 53: what may have run is not sent twice; the answer says that it may have.
#[tokio::test]
async fn a_post_is_never_repeated() {
    for reset in [false, true] {
        let backend = closing_at_the_second(reset).await;
        let front = Front::of(&backend).await;
        let mut client = front.client().await;
        assert_eq!(client.ask(GET).await.status(), 200);
        let answer = client.ask(POST).await;
        assert_eq!((answer.status(), answer.body.as_slice()), (502, b"backend_broke".as_slice()));
        assert_eq!(backend.seen().len(), 2);
    }
}

#[tokio::test]
async fn a_get_that_breaks_a_fresh_connection_is_not_repeated() {
    let backend = Backend::start(|mut wire| async move { drop(wire.request().await) }).await;
    let front = Front::of(&backend).await;
    assert_eq!(front.get("/").await.status(), 502);
    assert_eq!(backend.seen().len(), 1);
}

/// CASE 53: a backend that closes idle connections is not noticed.
#[tokio::test]
async fn connections_that_idled_out_are_not_noticed() {
    let backend = Backend::start(|mut wire| async move {
        wire.request().await;
        wire.send(OK).await; // and closes at once
    })
    .await;
    let front = Front::of(&backend).await;
    let mut client = front.client().await;
    for _ in 0..5 {
        assert_eq!(client.ask(GET).await.status(), 200);
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn connections_are_used_again() {
    let backend = Backend::plain().await;
    let front = Front::of(&backend).await;
    let mut client = front.client().await;
    for _ in 0..20 {
        assert_eq!(client.ask(GET).await.status(), 200);
    }
    assert!(backend.connections() <= 2, "{}", backend.connections());
}

#[tokio::test]
async fn no_backend_is_502_and_nothing_was_sent() {
    let (_taken, gone) = nowhere();
    let front = Front::with(
        format!("http://{gone}").parse().unwrap(),
        limits(),
        settings(),
        Treatment::default(),
    )
    .await;
    let answer = front.ask(POST).await;
    assert_eq!((answer.status(), answer.body.as_slice()), (502, b"backend_unreachable".as_slice()));
}

#[tokio::test]
async fn a_silent_backend_is_504() {
    let backend = Backend::start(|mut wire| async move { while wire.request().await.is_some() {} }).await;
    let mut settings = settings();
    // Not after the pause that a body may make: it was over with the first look at it.
    (settings.first_byte_timeout, settings.idle_timeout) = (Duration::from_millis(200), Duration::from_secs(60));
    let front = Front::with(backend.origin(), limits(), settings, Treatment::default()).await;
    let answer = front.ask(POST).await;
    assert_eq!((answer.status(), answer.body.as_slice()), (504, b"backend_timeout".as_slice()));
    assert_eq!(backend.seen().len(), 1);
}

#[tokio::test]
async fn a_backend_that_stops_in_mid_body_is_cut_and_its_turn_given_back() {
    let backend = Backend::start(|mut wire| async move {
        wire.request().await;
        wire.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf").await;
        while wire.more().await > 0 {}
    })
    .await;
    let mut settings = settings();
    settings.idle_timeout = Duration::from_millis(200);
    settings.max_in_flight = 1;
    let front = Front::with(backend.origin(), limits(), settings, Treatment::default()).await;
    for _ in 0..2 {
        let mut client = front.client().await;
        client.send(GET).await;
        assert!(client.answer().await.is_none(), "the length was not reached");
        assert!(client.ends_within(Duration::from_secs(2)).await);
    }
}

/// CASE 46: a stream of events runs ten minutes, beyond every limit but the one on its own pauses; the limit on the first byte goes on holding for others.
#[tokio::test]
async fn a_stream_outlives_every_limit_but_its_own() {
    let (say, said) = (watch::Sender::new(0), Arc::new(Notify::new()));
    let (mut listen, asked) = (say.subscribe(), Arc::clone(&said));
    listen.mark_unchanged();
    let backend = Backend::start(move |mut wire| {
        let (mut listen, asked) = (listen.clone(), Arc::clone(&asked));
        async move {
            let request = wire.request().await.expect("a request");
            asked.notify_one();
            if request.line().contains("/silent") {
                std::future::pending::<()>().await;
            }
            wire.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
                .await;
            while listen.changed().await.is_ok() {
                wire.send("3\r\n:\n\n\r\n").await;
            }
            std::future::pending::<()>().await;
        }
    })
    .await;
    let front = Front::with(backend.origin(), limits(), settings_as_shipped(), Treatment::default()).await;
    let (mut stream, mut silent) = (front.client().await, front.client().await);
    stream.send("GET /events HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert!(stream.head().await.expect("a head").contains("text/event-stream"));
    said.notified().await;
    silent.send("GET /silent HTTP/1.1\r\nHost: a\r\n\r\n").await;
    said.notified().await;

    let time = StillTime::begin();
    time.pass(Duration::from_secs(31)).await;
    let answer = silent.answer().await.expect("an answer");
    assert_eq!((answer.status(), answer.body.as_slice()), (504, b"backend_timeout".as_slice()));
    for round in 1..=20 {
        say.send_replace(round);
        assert_eq!(stream.take(8).await, b"3\r\n:\n\n\r\n", "after {round} half minutes");
        time.pass(Duration::from_secs(30)).await;
    }
    time.pass(Duration::from_secs(31)).await;
    time.end();
    assert!(
        stream.ends_within(Duration::from_secs(2)).await,
        "a minute's silence is the end of it"
    );
    assert!(stream.buffer.is_empty(), "and it is broken off, not ended");
}

/// The limits that waitgate is shipped with.
fn settings_as_shipped() -> config::Upstream {
    let room = "[rooms.1]\npaths = [\"/\"]\nupstream = \"http://127.0.0.1:1\"\non_store_loss = \"hold\"\n";
    config::parse(room, std::path::Path::new("w.toml")).expect("good settings").upstream
}

#[tokio::test]
async fn beyond_the_requests_in_flight_one_waits_for_a_turn_and_then_gives_up() {
    let backend = Backend::start(|mut wire| async move {
        while let Some(request) = wire.request().await {
            if request.line().contains("/hang") {
                wire.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no").await;
                wire.more().await;
            }
            wire.send(OK).await;
        }
    })
    .await;
    let mut settings = settings();
    (settings.max_in_flight, settings.queue_timeout) = (1, Duration::from_millis(300));
    let front = Front::with(backend.origin(), limits(), settings, Treatment::default()).await;
    let mut hanging = front.client().await;
    hanging.send("GET /hang HTTP/1.1\r\nHost: a\r\n\r\n").await;
    hanging.head().await.expect("its head has come, its body has not");
    let answer = front.get("/").await;
    assert_eq!((answer.status(), answer.body.as_slice()), (503, b"backend_busy".as_slice()));
    drop(hanging); // the turn comes back when the client leaves
    assert_eq!(front.get("/").await.status(), 200);
}

/// CASE 71: 1xx answers before the answer, several in a row, leave the pool in order.
#[tokio::test]
async fn early_hints_never_confuse_the_pool() {
    let hints = "HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </b.css>\r\n\r\n\
                 HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    let backend = Backend::saying(hints).await;
    let front = Front::of(&backend).await;
    let mut client = front.client().await;
    for _ in 0..3 {
        let answer = client.ask(GET).await;
        assert_eq!((answer.status(), answer.body.as_slice()), (200, b"ok".as_slice()));
        assert!(answer.all("link").is_empty());
    }
    assert_eq!(backend.connections(), 1);
}

/// CASE 71: trailers pass where they can, and are left out where they cannot.
#[tokio::test]
async fn trailers_pass_on_http2_and_are_dropped_on_http1() {
    let backend = Backend::saying(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: sum, connection\r\n\r\n2\r\nok\r\n0\r\nsum: 42\r\nconnection: x\r\n\r\n",
    )
    .await;
    let front = Front::of(&backend).await;
    let mut sender = http2(front.address).await;
    let request = Request::get("http://shop.example/").body(nothing()).unwrap();
    let body = sender.send_request(request).await.unwrap().into_body().collect().await.unwrap();
    let trailers = body.trailers().cloned().unwrap();
    assert_eq!((trailers.len(), trailers["sum"].to_str().unwrap()), (1, "42"));
    assert_eq!(body.to_bytes(), "ok");

    let mut client = front.client().await;
    client.send("GET / HTTP/1.1\r\nHost: a\r\nTE: trailers\r\n\r\n").await;
    let head = client.head().await.unwrap();
    assert!(!head.to_ascii_lowercase().contains("trailer:"), "{head}");
    assert_eq!(client.chunks().await.unwrap(), (b"ok".to_vec(), String::new()));
    assert_eq!(client.ask(GET).await.status(), 200, "the connection goes on");
}

#[tokio::test]
async fn answers_without_a_body_pass() {
    let backend = Backend::start(|mut wire| async move {
        while let Some(request) = wire.request().await {
            let answer = match request.line().split(' ').nth(1) {
                Some("/204") => "HTTP/1.1 204 No Content\r\n\r\n",
                Some("/304") => "HTTP/1.1 304 Not Modified\r\nETag: \"a\"\r\nContent-Length: 99\r\n\r\n",
                _ => "HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n",
            };
            wire.send(answer).await;
        }
    })
    .await;
    let front = Front::of(&backend).await;
    let mut client = front.client().await;
    assert_eq!(client.ask("GET /204 HTTP/1.1\r\nHost: a\r\n\r\n").await.status(), 204);
    assert_eq!(client.ask("GET /304 HTTP/1.1\r\nHost: a\r\n\r\n").await.one("etag"), "\"a\"");
    client.send("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let head = client.head().await.unwrap();
    assert!(
        head.contains("200 OK") && head.to_ascii_lowercase().contains("content-length: 1234"),
        "{head}"
    );
    assert_eq!(client.ask("GET /204 HTTP/1.1\r\nHost: a\r\n\r\n").await.status(), 204);
    assert_eq!(backend.connections(), 1);

    let mut sender = http2(front.address).await;
    for (method, path, status) in [("HEAD", "/", 200), ("GET", "/304", 304), ("GET", "/204", 204)] {
        let request = Request::builder()
            .method(method)
            .uri(format!("http://a{path}"))
            .body(nothing())
            .unwrap();
        assert_eq!(sender.send_request(request).await.unwrap().status(), status);
    }
}

/// CASE 67: a backend whose head is too much is 502, and one within the limits passes.
#[tokio::test]
async fn a_head_that_is_too_much_is_502() {
    let backend = Backend::start(|mut wire| async move {
        while let Some(request) = wire.request().await {
            let (lines, width) = match request.line().split(' ').nth(1) {
                Some("/long") => (4, 60_000),
                Some("/many") => (120, 10),
                _ => (90, 600),
            };
            let headers: String = (0..lines).map(|number| format!("x-{number}: {}\r\n", "v".repeat(width))).collect();
            wire.send(format!("HTTP/1.1 200 OK\r\n{headers}Content-Length: 0\r\n\r\n")).await;
        }
    })
    .await;
    let front = Front::of(&backend).await;
    for path in ["/long", "/many"] {
        let answer = front.get(path).await;
        assert_eq!(
            (answer.status(), answer.body.as_slice()),
            (502, b"backend_malformed".as_slice()),
            "{path}"
        );
    }
    let answer = front.get("/within").await;
    assert_eq!(
        (answer.status(), answer.one("x-89")),
        (200, "v".repeat(600).as_str()),
        "what is within both passes whole"
    );
    let nonsense = Backend::saying("220 smtp.example ESMTP\r\n\r\n").await;
    assert_eq!(Front::of(&nonsense).await.get("/").await.body, b"backend_malformed");
}

/// CASE 62: `100 Continue` comes when the body is wanted, and not before a refusal.
#[tokio::test]
async fn a_client_that_waits_for_100_gets_it_when_admitted_and_only_then() {
    let backend = Backend::plain().await;
    let front = Front::of(&backend).await;
    let mut client = front.client().await;
    client
        .send("POST /up HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 1048576\r\n\r\n")
        .await;
    assert!(client.head().await.unwrap().starts_with("HTTP/1.1 100"));
    assert_eq!(client.ask(vec![b'x'; 1 << 20]).await.status(), 200);
    assert_eq!(backend.only().body.len(), 1 << 20);
    assert!(backend.only().all("expect").is_empty());

    let mut refused = front.client().await;
    refused
        .send("POST /refused HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 1048576\r\n\r\n")
        .await;
    let head = refused.head().await.unwrap();
    assert!(
        head.starts_with("HTTP/1.1 429") && head.contains("connection: close"),
        "no 100 before the refusal: {head}"
    );
    assert_eq!(refused.take(4).await, b"wait");
    drop(refused);
    assert_eq!(backend.seen().len(), 1);
}

#[tokio::test]
async fn a_body_over_the_limit_is_413() {
    let backend = Backend::plain().await;
    let mut limits = limits();
    limits.max_body_bytes = 1000;
    let front = Front::with(backend.origin(), limits, settings(), Treatment::default()).await;
    let announced = front
        .ask(format!(
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1001\r\n\r\n{}",
            "x".repeat(1001)
        ))
        .await;
    assert_eq!((announced.status(), announced.one("connection")), (413, "close"));
    assert_eq!(backend.connections(), 0, "the backend is not told");

    let chunk = format!("1f4\r\n{}\r\n", "x".repeat(500));
    let chunked = format!(
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{}0\r\n\r\n",
        chunk.repeat(3)
    );
    let answer = front.ask(chunked).await;
    assert_eq!((answer.status(), answer.body.as_slice()), (413, b"body_too_large".as_slice()));
    assert!(backend.seen().is_empty(), "what it got was no whole request");
    assert_eq!(
        front
            .ask(format!(
                "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n{}",
                "x".repeat(1000)
            ))
            .await
            .status(),
        200
    );
}

#[tokio::test]
async fn a_body_that_stops_or_crawls_is_408() {
    let backend = Backend::plain().await;
    let mut limits = limits();
    limits.body_timeout = Duration::from_millis(300);
    let front = Front::with(backend.origin(), limits, settings(), Treatment::default()).await;
    let mut stopped = front.client().await;
    stopped.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nhalf").await;
    assert_eq!(stopped.answer().await.unwrap().status(), 408);
    assert_eq!(backend.connections(), 0, "half of a small body concerns nobody");

    let mut client = front.client().await;
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n").await;
    until("the backend is asked", || backend.connections() == 1).await;
    let time = StillTime::begin();
    for _ in 0..60 {
        client.send("x").await; // a byte now and then buys no time
        time.pass(Duration::from_millis(50)).await;
        if client.stream.try_read_buf(&mut client.buffer).is_ok_and(|read| read > 0) {
            break;
        }
    }
    time.end();
    assert!(!client.buffer.is_empty(), "a byte now and then keeps it alive");
    let answer = client.answer().await.unwrap();
    assert_eq!(answer.status(), 408);
}

#[tokio::test]
async fn a_client_that_leaves_in_mid_body_leaves_nothing_behind() {
    let backend = Backend::plain().await;
    let mut settings = settings();
    settings.max_in_flight = 1;
    let front = Front::with(backend.origin(), limits(), settings, Treatment::default()).await;
    let mut client = front.client().await;
    client
        .send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\nhalf")
        .await;
    until("the backend is asked", || backend.connections() == 1).await;
    drop(client);
    assert_eq!(front.get("/").await.status(), 200);
    assert_eq!(backend.seen().len(), 1);
}

#[tokio::test]
async fn bodies_arrive_however_they_are_framed() {
    let backend = Backend::plain().await;
    let front = Front::of(&backend).await;
    for method in ["GET", "POST", "DELETE"] {
        let chunked =
            format!("{method} / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\nwaitgate-user: me\r\n\r\n");
        assert_eq!(front.ask(chunked).await.status(), 200);
        let seen = backend.seen().pop().unwrap();
        assert_eq!(
            (seen.body.as_slice(), seen.one("transfer-encoding")),
            (b"ab".as_slice(), "chunked"),
            "{method}"
        );
    }
    assert_eq!(front.ask(POST).await.status(), 200);
    assert_eq!(backend.seen().pop().unwrap().one("content-length"), "3");
    let empty = front.ask("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n").await;
    assert_eq!((empty.status(), backend.seen().pop().unwrap().one("content-length")), (200, "0"));

    let mut sender = http2(front.address).await;
    let request = Request::post("http://a/")
        .body(http_body_util::Full::new("h2".into()).boxed())
        .unwrap();
    assert_eq!(sender.send_request(request).await.unwrap().status(), 200);
    assert_eq!(backend.seen().pop().unwrap().body, b"h2");
}

/// CASE 65: what browsers send in targets is forwarded to the byte, or refused on purpose.
#[tokio::test]
async fn odd_targets_of_browsers_arrive_byte_for_byte() {
    let backend = Backend::plain().await;
    let front = Front::of(&backend).await;
    for target in [
        r#"/sale?x={"a":1}"#,
        "/s?a[]=1|2",
        "/s?q=100%",
        "/s?%zz",
        "/p?a=1&b=%2F%20+&b=2&c",
        "/p?",
        "/p?x=%E2%9C%93",
        "//a/./b",
    ] {
        let status = front.get(target).await.status();
        assert!(status == 200 || status == 400, "{target}: {status}");
        if status == 200 {
            assert_eq!(backend.seen().pop().unwrap().line(), format!("GET {target} HTTP/1.1"));
        }
    }
    assert!(backend.seen().len() >= 6, "{}", backend.seen().len());
}

#[tokio::test]
async fn an_answer_before_the_upload_ends_is_passed_on() {
    let backend = Backend::start(|mut wire| async move {
        wire.head().await;
        wire.send("HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno")
            .await;
        while wire.more().await > 0 {}
    })
    .await;
    let front = Front::of(&backend).await;
    let mut client: Wire = front.client().await;
    client
        .send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\nfirst")
        .await;
    let answer = client.answer().await.unwrap();
    assert_eq!((answer.status(), answer.one("connection")), (401, "close"));
}
