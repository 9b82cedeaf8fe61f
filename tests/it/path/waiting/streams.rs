//! Streams and sockets of those who wait: how they begin, what they tell, and how they end.

use http::Request;
use http_body_util::BodyExt;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::net::TcpStream;

use super::{HASTY, called, hasty};
use crate::backend::{PATIENCE, nothing, soon};
use crate::gateway::{Ask, HOST_NAME, LINE, Site, TICKET, Visitor, shop};
use crate::harness::within;

fn events() -> Ask {
    Ask::get("/.waitgate/42/events").header("accept", "text/event-stream")
}

/// CASE 32, 38: a stream that no proxy holds back, one snapshot however it comes back.
#[tokio::test]
async fn a_stream_begins_with_everything_there_is_to_know() {
    let site = Site::open(LINE).await;
    let visitor = site.visitor();
    visitor.stand().await;
    let foreign = format!("17-{}", "x".repeat(10_000));
    for id in ["", "1", "0-0", "end", foreign.as_str()] {
        let mut stream = visitor.events_with(events().header("last-event-id", id)).await;
        assert_eq!(stream.status, 200, "{id:.10}");
        let head = |name: &str| stream.headers[name].to_str().unwrap().to_owned();
        assert_eq!(head("content-type"), "text/event-stream");
        assert_eq!(head("cache-control"), "no-store, no-transform");
        assert_eq!(head("x-accel-buffering"), "no");
        let first = stream.next().await.expect("a first event");
        assert_eq!((first.name.as_str(), &first.id), ("message", &None));
        assert_eq!((&first.view()["state"], &first.view()["ahead"]), (&json!("waiting"), &json!(0)));
        assert!((1_000..4_000).contains(&stream.retry_ms.expect("retry")));
        site.tune(json!({"message": format!("{id:.10}!")})).await;
        let next = stream.next().await.expect("the next");
        assert_eq!(next.view()["message"], format!("{id:.10}!").trim(), "nothing in between");
    }
}

#[tokio::test]
async fn streams_follow_the_line_to_the_end() {
    let site = Site::open(LINE).await;
    let people: Vec<Visitor> = (0..3).map(|_| site.visitor()).collect();
    for person in &people {
        person.stand().await;
    }
    let mut stream = people[2].events().await;
    let mut socket = people[1].socket(&[]).await.expect("a socket");
    let first = socket.next().await.unwrap();
    assert_eq!(first["state"], "waiting");
    stream.until("two ahead", |view| view["ahead"] == 2).await;
    assert_eq!(people[0].post("/.waitgate/42/leave").await.status, 200);
    stream.until("one ahead", |view| view["ahead"] == 1).await;
    while socket.next().await.expect("open")["ahead"] != 0 {}
    site.tune(json!({"paused": true, "message": "a break"})).await;
    assert_eq!(stream.until_state("paused").await["message"], "a break");
    socket.until_state("paused").await;
    site.tune(json!({"paused": false, "rate": "1000/s"})).await;
    let turn = stream.until_state("turn").await;
    assert!(turn["turn_until_ms"].as_u64() > turn["updated_at_ms"].as_u64());
    socket.until_state("turn").await;

    assert_eq!(people[2].post("/.waitgate/42/enter").await.status, 200);
    let last = stream.until_state("admitted").await;
    assert!(last["turn_until_ms"].is_u64());
    assert_eq!(stream.rest().await, [], "and that is the end of the stream");
    assert_eq!(people[2].events().await.status, 204);
    people[1].post("/.waitgate/42/enter").await;
    socket.until_state("admitted").await;
    assert_eq!(socket.next().await, Err(1000));
    assert_eq!(people[1].socket(&[]).await.err(), Some(403));
}

/// CASE 35: after a final state the stream ends, and whoever comes back having heard it is told to stop coming.
#[tokio::test]
async fn a_final_state_is_told_once() {
    let site = hasty(HASTY).await;
    let visitor = called(&site).await;
    let mut stream = visitor.events().await;
    let view = stream.until_state("gone").await;
    assert_eq!(view["reason"], "lapsed");
    assert!(stream.next().await.is_none());
    // A page that is loaded only now has not heard it; what it hears carries the id that its browser brings along.
    let mut late = visitor.events().await;
    let last = late.next().await.expect("the state");
    assert_eq!((&last.view()["state"], last.id.as_deref()), (&json!("gone"), Some("end")));
    assert!(late.next().await.is_none());
    let again = visitor.events_with(events().header("last-event-id", "end")).await;
    assert_eq!(again.status, 204);
    // Whoever starts again is in line, whatever an old stream had heard.
    assert_eq!(visitor.post("/.waitgate/42/join").await.json()["state"], "waiting");
    let mut fresh = visitor.events_with(events().header("last-event-id", "end")).await;
    assert_eq!(fresh.next().await.expect("a state").view()["state"], "waiting");
    // Without a ticket there is nothing to say at all.
    assert_eq!(site.visitor().events().await.status, 204);
}

/// CASE 35: over the limit, full or stopping: still a stream, which only says when to come back.
#[tokio::test]
async fn a_stream_that_cannot_be_had_is_a_stream_that_says_so() {
    let site = Site::open(&format!(
        "{LINE}max_waiters = 1\n[limits]\nwaiting = {{ rate = \"4/h\", burst = 12 }}\n"
    ))
    .await;
    let (first, second) = (site.visitor(), site.visitor());
    first.stand().await;
    let mut kept = first.events().await;
    kept.until_state("waiting").await;
    assert_eq!(second.go("/sale").await.status, 200);
    // The room of this gateway is full; the place is kept all the same.
    let full = second.status().await;
    assert_eq!((full.status, full.code().as_str()), (503, "room_full"));
    assert!(full.header("retry-after").parse::<u64>().unwrap() >= 5);
    assert_eq!(second.socket(&[]).await.err(), Some(503));
    assert_eq!(second.go("/sale").await.page(), "waiting");
    assert_eq!(site.in_line().await, 2);
    let says_come_back = async |visitor: &Visitor| {
        let mut stream = visitor.events().await;
        assert_eq!(
            (stream.status, stream.headers["content-type"].to_str().unwrap()),
            (200, "text/event-stream")
        );
        let events = stream.rest().await;
        assert_eq!(events.len(), 1);
        assert_eq!(
            (events[0].name.as_str(), events[0].view()["retry_ms"].as_u64()),
            ("bye", stream.retry_ms)
        );
        assert!(stream.retry_ms.unwrap() >= 1_000);
    };
    says_come_back(&second).await;
    within("over the limit", async || second.status().await.status == 429).await;
    says_come_back(&first).await;
    // The stream that is open stays open, and the end of the gateway is announced.
    site.tune(json!({"message": "still here"})).await;
    kept.until("the message", |view| view["message"] == "still here").await;
    site.stop.draining.cancel();
    let last = kept.next().await.expect("a goodbye");
    assert_eq!(last.name, "bye");
    assert!(kept.next().await.is_none());
}

/// CASE 42: a stopping gateway says goodbye to its sockets.
#[tokio::test]
async fn sockets_are_told_to_go_elsewhere() {
    let site = Site::open(LINE).await;
    let visitor = site.visitor();
    visitor.stand().await;
    let mut socket = visitor.socket(&[]).await.expect("a socket");
    socket.until_state("waiting").await;
    site.stop.draining.cancel();
    assert_eq!(socket.next().await, Err(1001));
}

/// CASE 41: a reader that stalls misses what is old and gets what is newest, and nobody else waits for it.
#[tokio::test]
async fn a_stalled_reader_gets_the_newest_and_stays() {
    let site = Site::open(LINE).await;
    let (slow, quick) = (site.visitor(), site.visitor());
    slow.stand().await;
    quick.stand().await;
    let mut reading = quick.events().await;
    // An HTTP/2 stream that takes 16 KiB and no more, until it is read.
    let socket = TcpStream::connect(site.public).await.unwrap();
    let (mut client, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(16 * 1024)
        .handshake(TokioIo::new(socket))
        .await
        .unwrap();
    tokio::spawn(connection);
    let request = Request::get("http://shop.example/.waitgate/42/events")
        .header("cookie", format!("{TICKET}={}", slow.cookie(TICKET).unwrap()))
        .body(nothing())
        .unwrap();
    let mut stalled = soon(client.send_request(request)).await.unwrap().into_body();
    let word = "w".repeat(190);
    for number in 0..400 {
        site.tune(json!({"message": format!("{word}{number:03}")})).await;
        reading.until("each", |view| view["message"] == format!("{word}{number:03}")).await;
    }
    let mut text = String::new();
    while !text.contains(&format!("{word}399")) {
        let frame = soon(stalled.frame()).await.expect("still open").expect("not broken");
        text.push_str(std::str::from_utf8(&frame.into_data().unwrap()).unwrap());
    }
    let received = text.matches("data: ").count();
    assert!(received < 390, "{received} of 400: nothing was left out");
    site.tune(json!({"message": "after all"})).await;
    while !text.contains("after all") {
        let frame = soon(stalled.frame()).await.expect("still open").expect("not broken");
        text.push_str(std::str::from_utf8(&frame.into_data().unwrap()).unwrap());
    }
    reading.until("the same", |view| view["message"] == "after all").await;
}

/// Two gateways, one line: a place given by one is known to the other, and its call is heard there.
#[tokio::test]
async fn any_gateway_knows_every_ticket() {
    let site = Site::with_gates(2, shop().await, LINE).await;
    let visitor = site.visitor();
    visitor.stand().await;
    let place = visitor.place();
    let elsewhere = visitor.moved_to(&site.gates[1]);
    let mut stream = elsewhere.events().await;
    stream.until_state("waiting").await;
    assert_eq!((elsewhere.place(), site.in_line().await), (place, 1));
    site.tune(json!({"rate": "1000/s"})).await;
    stream.until_state("turn").await;
    assert_eq!(visitor.post("/.waitgate/42/enter").await.status, 200);
    assert!(elsewhere.go("/sale").await.is_shop(), "and what one signs the other believes");
    let state: Value = elsewhere.status().await.json()["state"].clone();
    assert_eq!(state, "admitted");
}

/// A stream that ends because its reader left is counted no more.
#[tokio::test]
async fn streams_are_counted_while_they_are_open() {
    let site = Site::open(LINE).await;
    let visitor = site.visitor();
    visitor.stand().await;
    let counted = async |kind: &str, number: u8| {
        let is = async || {
            let line = site
                .metric(&format!("waitgate_waiting_streams{{room=\"42\",kind=\"{kind}\"}}"))
                .await;
            line.is_some_and(|line| line.ends_with(&format!(" {number}")))
        };
        within(&format!("{number} of {kind}"), is).await;
    };
    let (stream, socket) = (visitor.events().await, visitor.socket(&[]).await.expect("a socket"));
    counted("sse", 1).await;
    counted("ws", 1).await;
    drop(socket);
    counted("ws", 0).await;
    drop(stream);
    counted("sse", 0).await;
}

/// A stream of HTTP/1.1 goes over the wire as any answer: a head with its framing, chunks, a last one and the end. What a client sends meanwhile is
/// not answered, and ends the stream when it is much; a client of HTTP/1.0 is sent the same without chunks.
#[tokio::test]
async fn a_stream_is_framed_like_any_answer() {
    let site = Site::open(LINE).await;
    let visitor = site.visitor();
    visitor.stand().await;
    let ticket = visitor.cookie(TICKET).unwrap();
    let asked =
        |version: &str| format!("GET /.waitgate/42/events HTTP/{version}\r\nHost: {HOST_NAME}\r\nCookie: {TICKET}={ticket}\r\n\r\n");
    let mut wire = site.wire().await;
    wire.send(asked("1.1") + "GET /.waitgate/42/status HTTP/1.1\r\nHost: a\r\n\r\n")
        .await;
    let head = wire.head().await.unwrap().to_ascii_lowercase();
    for line in [
        "http/1.1 200 ok",
        "content-type: text/event-stream",
        "transfer-encoding: chunked",
        "connection: close",
    ] {
        assert!(head.lines().any(|written| written == line), "{line} in {head}");
    }
    assert!(head.contains("\r\ndate: ") && head.contains(" gmt\r\n"), "{head}");
    assert!(!head.contains("content-length"), "{head}");
    let mut old = site.wire().await;
    old.send(asked("1.0")).await;
    let head = old.head().await.unwrap().to_ascii_lowercase();
    assert!(head.contains("text/event-stream") && !head.contains("chunked"), "{head}");

    let mut talking = site.wire().await;
    talking.send(asked("1.1")).await;
    talking.head().await.unwrap();
    talking.send(vec![b'x'; 64 << 10]).await;
    assert!(talking.ends_within(PATIENCE).await, "whoever goes on talking is not listened to");

    site.tune(json!({"closes_at": "2020-01-01T00:00:00Z"})).await;
    let (body, _) = wire.chunks().await.expect("all chunks, and the last one");
    let body = String::from_utf8(body).unwrap();
    assert!(body.starts_with("retry: ") && body.contains("\"state\":\"closed\""), "{body}");
    assert!(wire.ends_within(PATIENCE).await && wire.buffer.is_empty(), "and nothing after it");
    assert!(old.ends_within(PATIENCE).await, "without chunks the end is the end");
    assert!(String::from_utf8_lossy(&old.buffer).contains("\"state\":\"closed\""));
}
