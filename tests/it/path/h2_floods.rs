//! Floods of frames on one HTTP/2 connection (CASE 68): the connection ends, whoever else comes is answered meanwhile, and the backend is asked a
//! bounded number of times.

use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http_body::Frame;
use http_body_util::StreamBody;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use waitgate::body::{Body, BodyError};
use waitgate::clock::Clock;
use waitgate::server::Stop;

use crate::backend::{Backend, Front, PATIENCE, limits, soon};
use crate::frames::{
    CANCEL, CONTINUATION, DATA, END, Frames, HEADERS, PING, PRIORITY, RESET, SETTINGS, WHOLE, WINDOW, asking, block, frame, get, head,
    opening, request,
};

/// How many requests a flood may bring to the backend: far fewer than it has.
const BOUNDED: usize = 300;

/// Sends this to its end or the connection's, reading whatever comes. Whether the connection ended.
async fn flood(front: &Front, bytes: Vec<u8>) -> bool {
    let stream = soon(TcpStream::connect(front.address)).await.expect("connected");
    let (mut reader, mut writer) = stream.into_split();
    let sending = tokio::spawn(async move {
        let sent = writer.write_all(&bytes).await;
        (sent, writer) // it stays open after the last byte
    });
    let ended = timeout(PATIENCE, async {
        let mut scratch = vec![0; 64 * 1024];
        while reader.read(&mut scratch).await.is_ok_and(|read| read > 0) {}
    });
    let ended = ended.await.is_ok();
    sending.abort();
    ended
}

/// Asks again and again until this has happened; answers the longest wait for an answer.
async fn meanwhile<T>(front: &Front, what: impl Future<Output = T>) -> (T, Duration) {
    let mut longest = Duration::ZERO;
    let mut what = std::pin::pin!(what);
    loop {
        let began = Clock::instant();
        assert_eq!(front.get("/bystander").await.status(), 200);
        longest = longest.max(began.elapsed());
        if let Ok(happened) = timeout(Duration::from_millis(10), what.as_mut()).await {
            return (happened, longest);
        }
    }
}

/// A connection on which one request hangs, so that it is not closed for being idle, and then the same frames over and over.
fn repeated(times: usize, frames: &[u8]) -> Vec<u8> {
    let hanging = get(1, "/hanging");
    [opening(), hanging, frames.repeat(times)].concat()
}

/// As often as there are streams: what this says of each.
fn streams(times: u32, of_each: impl Fn(u32) -> Vec<u8>) -> Vec<u8> {
    let mut bytes = [opening(), get(1, "/hanging")].concat();
    for number in 1..=times {
        bytes.extend(of_each(2 * number + 1));
    }
    bytes
}

fn floods() -> Vec<(&'static str, Vec<u8>)> {
    let reset = |stream| frame(RESET, 0, stream, CANCEL.to_be_bytes());
    let unfinished = [
        opening(),
        get(1, "/hanging"),
        frame(HEADERS, END, 3, block(&asking("GET", "/", &[]))),
    ]
    .concat();
    let continued = |times: usize, payload: &[u8]| [unfinished.clone(), frame(CONTINUATION, 0, 3, payload).repeat(times)].concat();
    let upload = [opening(), get(1, "/hanging"), head(3, &asking("POST", "/hanging", &[]))].concat();
    let bad = asking("GET", "/", &[("connection", "close")]);
    vec![
        (
            "opened and reset",
            streams(50_000, |stream| [get(stream, "/"), reset(stream)].concat()),
        ),
        (
            "opened and broken",
            streams(50_000, |stream| [get(stream, "/"), frame(WINDOW, 0, stream, [0; 4])].concat()),
        ),
        ("malformed", streams(50_000, |stream| request(stream, &bad))),
        (
            "data after the end",
            streams(50_000, |stream| [get(stream, "/"), frame(DATA, 0, stream, "x")].concat()),
        ),
        ("continuations", continued(20_000, &block(&[("x", "1")]))),
        ("empty continuations", continued(100_000, &[])),
        ("empty data", [upload.clone(), frame(DATA, 0, 3, []).repeat(100_000)].concat()),
        ("padding", [upload, frame(DATA, 8, 3, [3, 0, 0, 0]).repeat(100_000)].concat()),
        ("pings", repeated(100_000, &frame(PING, 0, 0, [7; 8]))),
        ("settings", repeated(100_000, &frame(SETTINGS, 0, 0, []))),
        (
            "settings that change",
            repeated(50_000, &frame(SETTINGS, 0, 0, [0, 4, 0, 0, 0xff, 0xff])),
        ),
        ("priorities", repeated(100_000, &frame(PRIORITY, 0, 1, [0, 0, 0, 0, 1]))),
        ("windows", repeated(100_000, &frame(WINDOW, 0, 0, 1_u32.to_be_bytes()))),
        ("windows of a stream", repeated(100_000, &frame(WINDOW, 0, 1, 1_u32.to_be_bytes()))),
        ("unknown frames", repeated(100_000, &frame(0x33, 0, 0, [0; 8]))),
        ("resets of nothing", repeated(100_000, &reset(1))),
        (
            "trailers without end",
            [
                opening(),
                head(3, &asking("POST", "/hanging", &[])),
                frame(HEADERS, WHOLE, 3, block(&[("x", "1")])).repeat(10_000),
            ]
            .concat(),
        ),
    ]
}

/// CASE 68: each flood is ended, the backend is asked a bounded number of times, and a bystander is answered all the while.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_flood_ends_and_holds_up_nobody() {
    let backend = Backend::start(|mut wire| async move {
        while let Some(request) = wire.request().await {
            if request.line().contains("/hanging") {
                std::future::pending::<()>().await;
            }
            wire.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
        }
    })
    .await;
    let front = Front::of(&backend).await;
    let mut wrong = Vec::new();
    for (name, bytes) in floods() {
        let before = backend.seen().len();
        let (ended, longest) = meanwhile(&front, flood(&front, bytes)).await;
        let bystanders = |request: &crate::backend::Message| request.line().contains("/bystander");
        let asked = backend.seen()[before..].iter().filter(|request| !bystanders(request)).count();
        if !ended || asked > BOUNDED || longest > Duration::from_secs(2) {
            wrong.push(format!("{name}: ended {ended}, longest wait {longest:?}, {asked} at the backend"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// An honest client that opens both windows and measures the way with a ping after each piece of an answer is served to the end, whether the pieces
/// are small or large: it sends three times as many frames as a connection may spend at its beginning.
#[tokio::test]
async fn a_client_of_many_words_is_no_flood() {
    for (pieces, length) in [(2000, 20), (1000, 16_000)] {
        let front = Front::serving(limits(), Stop::new(), move |_, _| async move {
            let piece = Bytes::from(vec![b'x'; length]);
            let frames = (0..pieces).map(move |_| Ok::<_, BodyError>(Frame::data(piece.clone())));
            Response::new(Body::stream(StreamBody::new(futures_util::stream::iter(frames))))
        })
        .await;
        let mut client = Frames::to(front.address).await;
        client.send(get(1, "/")).await;
        let (mut received, mut sent) = (0, 0);
        while received < pieces * length {
            let piece = client.next().await.expect("it is not cut off");
            if piece.kind != DATA {
                continue;
            }
            received += piece.payload.len();
            let opened = u32::try_from(piece.payload.len()).unwrap().to_be_bytes();
            let words = [frame(WINDOW, 0, 0, opened), frame(WINDOW, 0, 1, opened), frame(PING, 0, 0, [7; 8])];
            client.send(words.concat()).await;
            sent += words.len();
        }
        assert!(sent >= 3000, "{sent} frames of the client's were too few to prove anything");
    }
}
