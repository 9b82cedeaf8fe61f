//! WebSocket pass-through: nothing is tunnelled before the backend has said 101.

use std::time::Duration;

use tokio::io::AsyncReadExt as _;

use crate::backend::{Backend, Front, Treatment, limits, settings, until};
use crate::harness::StillTime;

const ASK: &str = "GET /chat HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\nSec-WebSocket-Version: 13\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
const SWITCH: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
    Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

/// Switches protocols, then says everything back.
async fn echo() -> Backend {
    Backend::start(|mut wire| async move {
        if wire.request().await.is_some() {
            wire.send(SWITCH).await;
            loop {
                // However long it takes: nobody has to say anything.
                if wire.buffer.is_empty() && wire.stream.read_buf(&mut wire.buffer).await.unwrap_or(0) == 0 {
                    break;
                }
                let bytes = std::mem::take(&mut wire.buffer);
                wire.send(bytes).await;
            }
        }
    })
    .await
}

/// CASE 46: a tunnel outlives every limit on requests and idle connections, however quiet it is.
#[tokio::test]
async fn bytes_run_both_ways_after_101() {
    let backend = echo().await;
    let front = Front::of(&backend).await;
    let mut client = front.client().await;
    let answer = client.ask(ASK).await;
    assert_eq!(answer.status(), 101);
    assert_eq!(answer.one("sec-websocket-accept"), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    assert_eq!(answer.one("upgrade"), "websocket");
    let seen = backend.only();
    assert_eq!((seen.one("connection"), seen.one("upgrade")), ("upgrade", "websocket"));
    assert_eq!(seen.one("sec-websocket-key"), "dGhlIHNhbXBsZSBub25jZQ==");
    client.send("hello").await;
    assert_eq!(client.take(5).await, b"hello");
    let time = StillTime::begin();
    time.pass(Duration::from_secs(600)).await;
    time.end();
    client.send(vec![7; 300_000]).await;
    assert_eq!(client.take(300_000).await.len(), 300_000);
}

#[tokio::test]
async fn a_tunnel_ends_with_either_end() {
    let backend = Backend::start(|mut wire| async move {
        wire.request().await;
        wire.send(SWITCH).await;
        wire.send("bye").await;
    })
    .await;
    let front = Front::of(&backend).await;
    let mut client = front.client().await;
    assert_eq!(client.ask(ASK).await.status(), 101);
    assert_eq!(client.take(3).await, b"bye");
    assert_eq!(client.more().await, 0);
    drop(client);
    until("the tunnel is over", || front.stop.tasks.is_empty()).await;
}

/// CASE 59: without a 101 there is no tunnel; what was pipelined behind is read and gated.
#[tokio::test]
async fn a_backend_that_says_200_gets_no_raw_bytes() {
    let backend = Backend::plain().await;
    let front = Front::of(&backend).await;
    let mut client = front.client().await;
    client.send(format!("{ASK}GET /refused/secret HTTP/1.1\r\nHost: a\r\n\r\n")).await;
    assert_eq!(client.answer().await.unwrap().status(), 200);
    assert_eq!(
        client.answer().await.unwrap().status(),
        429,
        "the second request is read and gated by us"
    );
    assert!(!backend.only().head.contains("secret"));
}

/// CASE 59: another protocol than WebSocket is not asked for at all.
#[tokio::test]
async fn another_protocol_is_no_tunnel() {
    let backend = Backend::plain().await;
    let front = Front::of(&backend).await;
    let mut client = front.client().await;
    for protocol in ["x", "h2c", "websocket, x"] {
        let first = format!("GET /public HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: {protocol}\r\n\r\n");
        client.send(format!("{first}GET /refused HTTP/1.1\r\nHost: a\r\n\r\n")).await;
        assert_eq!(client.answer().await.unwrap().status(), 200);
        assert_eq!(client.answer().await.unwrap().status(), 429);
        assert!(backend.seen().pop().unwrap().all("upgrade").is_empty());
    }
}

#[tokio::test]
async fn a_101_that_nobody_asked_for_is_502() {
    let backend = Backend::start(|mut wire| async move {
        while wire.request().await.is_some() {
            wire.send(SWITCH).await;
        }
    })
    .await;
    let front = Front::of(&backend).await;
    assert_eq!(front.get("/").await.status(), 502);
    let other = Backend::saying("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n").await;
    assert_eq!(Front::of(&other).await.ask(ASK).await.status(), 502);
}

#[tokio::test]
async fn tunnels_are_waited_for_and_then_cut() {
    let backend = echo().await;
    let mut limits = limits();
    limits.drain_timeout = Duration::from_millis(300);
    let front = Front::with(backend.origin(), limits, settings(), Treatment::default()).await;
    let mut client = front.client().await;
    assert_eq!(client.ask(ASK).await.status(), 101);
    front.stop.draining.cancel();
    client.send("still").await;
    assert_eq!(client.take(5).await, b"still");
    assert!(client.ends_within(Duration::from_secs(2)).await);
    front.stopped().await;
}

#[tokio::test]
async fn a_tunnel_holds_its_turn() {
    let backend = echo().await;
    let mut settings = settings();
    (settings.max_in_flight, settings.queue_timeout) = (1, Duration::from_millis(100));
    let front = Front::with(backend.origin(), limits(), settings, Treatment::default()).await;
    let mut client = front.client().await;
    assert_eq!(client.ask(ASK).await.status(), 101);
    assert_eq!(front.ask(ASK).await.status(), 503);
    drop(client);
    until("the tunnel is over", || front.stop.tasks.is_empty()).await;
    assert_eq!(front.ask(ASK).await.status(), 101);
}
