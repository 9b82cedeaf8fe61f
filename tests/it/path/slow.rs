//! Slow and silent clients at the settings as they are shipped (CASE 66): each is closed within seconds, none is in the way of others, nor of a stop.
//!
//! The gateway is a process of its own, and its file says nothing but where things are. Time is real in here: all clients are slow at once.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use http::Response;
use http_body::Frame;
use http_body_util::StreamBody;
use serde_json::Value;
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio::time::{interval, sleep, timeout};
use waitgate::body::{Body, BodyError};
use waitgate::clock::Clock;
use waitgate::server::Stop;

use super::tls;
use crate::backend::{Backend, Front, Wire, limits, until};
use crate::crew::Process;
use crate::frames::{DATA, Frames, Outcome, PREFACE, asking, frame, get, head, opening};
use crate::harness::Redis;
use crate::papers::Papers;

/// Within this every one of them is closed.
const LIMIT: Duration = Duration::from_secs(10);
const GET: &str = "GET /page HTTP/1.1\r\nHost: shop.example\r\n\r\n";

/// A gateway with everything as shipped, before a shop whose `/big` is far larger than all buffers on the way.
struct Shipped {
    process: Process,
    secure: SocketAddr,
    shop: Backend,
    papers: Papers,
    _redis: Redis,
}

impl Shipped {
    async fn start() -> Self {
        let shop = Backend::start(|mut wire| async move {
            while let Some(request) = wire.request().await {
                let length = if request.line().contains("/big") { 32 << 20 } else { 2 };
                let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{}", "x".repeat(length));
                let _ = wire.stream.write_all(answer.as_bytes()).await; // for as long as it takes
            }
        })
        .await;
        let redis = Redis::start().await;
        let papers = Papers::new();
        papers.issue("a", &["shop.example"]);
        let file = papers.path("waitgate.toml");
        let text = format!(
            "{}\nserver.listen = \"127.0.0.1:0\"\nserver.fallback = \"http://{}\"\nops.listen = \"127.0.0.1:0\"\nstore.url = \"{}\"\n\
             store.data_dir = \"{}\"\nlimits.allow = [\"127.0.0.2\"]\n",
            papers.lines(&["a"], ""),
            shop.address,
            redis.url(),
            papers.path("data").display(),
        );
        std::fs::write(&file, text).unwrap();
        let process = Process::spawn(&file, None).await;
        let hello: Value = serde_json::from_str(process.said.last().unwrap()).unwrap();
        Self {
            secure: hello["secure"].as_str().unwrap().parse().unwrap(),
            process,
            shop,
            papers,
            _redis: redis,
        }
    }

    fn public(&self) -> SocketAddr {
        self.process.public
    }
}

/// One slow client; it ends when it has been closed.
type Slow = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Sends this, and then nothing.
fn silent_after(at: SocketAddr, bytes: impl Into<Vec<u8>>) -> Slow {
    let bytes = bytes.into();
    Box::pin(async move {
        let mut client = Wire::to(at).await;
        client.send(bytes).await;
        while !client.ends_within(Duration::from_secs(1)).await {}
    })
}

/// Sends this, and then a byte of the rest now and then.
fn dripping(at: SocketAddr, first: &'static str, rest: &'static str, pause: Duration) -> Slow {
    Box::pin(async move {
        let mut client = Wire::to(at).await;
        client.send(first).await;
        for byte in rest.bytes().cycle() {
            if client.ends_within(pause).await {
                return;
            }
            client.send([byte]).await;
        }
    })
}

/// One request is answered; the next one begins and does not go on.
fn stuck_in_the_second(at: SocketAddr) -> Slow {
    Box::pin(async move {
        let mut client = Wire::to(at).await;
        assert_eq!(client.ask(GET).await.status(), 200);
        client.send("GET /page HT").await;
        while !client.ends_within(Duration::from_secs(1)).await {}
    })
}

/// Sends this, and takes a byte of the large answer now and then.
fn sipping(at: SocketAddr, bytes: impl Into<Vec<u8>>) -> Slow {
    let bytes = bytes.into();
    Box::pin(async move {
        let mut client = Wire::to(at).await;
        client.send(bytes).await;
        let mut byte = [0; 1];
        // What was read by the kernel is still there after a reset, so it is the socket that is asked.
        while !is_broken(&client.stream) {
            let _ = timeout(Duration::from_millis(200), client.stream.read(&mut byte)).await;
            sleep(Duration::from_millis(200)).await;
        }
    })
}

fn is_broken(stream: &tokio::net::TcpStream) -> bool {
    SockRef::from(stream).take_error().is_ok_and(|error| error.is_some())
}

/// An upload on HTTP/2 of a byte a second.
fn dripping_frames(at: SocketAddr) -> Slow {
    Box::pin(async move {
        let mut client = Frames::to(at).await;
        client.send(head(1, &asking("POST", "/upload", &[]))).await;
        let mut seconds = interval(Duration::from_secs(1));
        loop {
            seconds.tick().await;
            client.send(frame(DATA, 0, 1, "x")).await;
            if let Ok(outcome) = timeout(Duration::from_millis(900), client.outcome(1)).await {
                assert_ne!(outcome.status(), Some(200), "it was never whole");
                return;
            }
        }
    })
}

/// A large answer on HTTP/2 whose window is never opened: its stream ends.
fn shut_window(at: SocketAddr) -> Slow {
    Box::pin(async move {
        let mut client = Frames::to(at).await;
        client.send(get(1, "/big")).await;
        loop {
            if let Ok(outcome) = timeout(Duration::from_secs(1), client.outcome(1)).await {
                assert!(!matches!(outcome, Outcome::Answer(_)), "it was never whole");
                return;
            }
        }
    })
}

/// Over TLS: a handshake, then this, then nothing is sent or read.
fn secured(shipped: &Shipped, bytes: &'static str) -> Slow {
    let (at, client) = (shipped.secure, tls::client(tls::NEW, &["http/1.1"]));
    Box::pin(async move {
        let mut line = tls::connect(&client, at, "shop.example").await.unwrap();
        line.write_all(bytes.as_bytes()).await.unwrap();
        line.flush().await.unwrap();
        let (io, _) = line.get_mut();
        let mut scratch = [0; 16 << 10]; // tickets come, and perhaps a goodbye
        loop {
            sleep(Duration::from_millis(200)).await;
            let ended = bytes.is_empty() && matches!(timeout(Duration::from_millis(50), io.read(&mut scratch)).await, Ok(Ok(0) | Err(_)));
            if ended || is_broken(io) {
                return;
            }
        }
    })
}

fn all(shipped: &Shipped) -> Vec<(&'static str, Slow)> {
    let at = shipped.public();
    let second = Duration::from_secs(1);
    let hello = [0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3];
    let chunked = "POST /chunks HTTP/1.1\r\nHost: shop.example\r\nTransfer-Encoding: chunked\r\n\r\n";
    let upload = "POST /upload HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 1000\r\n\r\n";
    vec![
        ("silent", silent_after(at, [])),
        ("half a preface", silent_after(at, &PREFACE[..10])),
        ("a preface", silent_after(at, PREFACE)),
        ("a preface and settings", silent_after(at, opening())),
        ("half a request line", silent_after(at, "GET /pa")),
        ("half a head", silent_after(at, "GET /page HTTP/1.1\r\nHost: shop.ex")),
        ("half a second head", stuck_in_the_second(at)),
        ("a head byte by byte", dripping(at, "GET /page HTTP/1.1\r\nX: ", "x", 2 * second)),
        ("heads line by line", dripping(at, "GET /page HTTP/1.1\r\n", "X: 1\r\n", second / 4)),
        ("a body that never begins", silent_after(at, upload)),
        ("a body byte by byte", dripping(at, upload, "x", second)),
        ("chunks of a byte", dripping(at, chunked, "1\r\nx\r\n", second / 6)),
        ("a chunk's size without end", dripping(at, chunked, "0", second)),
        ("a body on HTTP/2 byte by byte", dripping_frames(at)),
        (
            "a large answer byte by byte",
            sipping(at, "GET /big HTTP/1.1\r\nHost: shop.example\r\n\r\n"),
        ),
        (
            "many answers asked for and not read",
            sipping(at, "GET /big HTTP/1.1\r\nHost: shop.example\r\n\r\n".repeat(20)),
        ),
        ("a large answer on HTTP/2, window shut", shut_window(at)),
        ("half a hello", silent_after(shipped.secure, hello)),
        ("no hello", silent_after(shipped.secure, [])),
        ("TLS and silence", secured(shipped, "")),
        (
            "TLS and a large answer unread",
            secured(shipped, "GET /big HTTP/1.1\r\nHost: shop.example\r\n\r\n"),
        ),
    ]
}

/// CASE 66: a silent connect, a bare preface, half a head, a byte now and then, slow bodies, slow readers, half a handshake: at the settings as
/// shipped each is closed within ten seconds, and whoever else comes is answered at once meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_clients_are_closed_and_hold_up_nobody() {
    let shipped = Shipped::start().await;
    let slow = all(&shipped).into_iter().map(|(name, client)| async move {
        let began = Clock::instant();
        let ended = timeout(2 * LIMIT, client).await.is_ok();
        (name, ended.then(|| began.elapsed()))
    });
    let mut slow = tokio::spawn(join_all(slow.collect::<Vec<_>>()));
    let mut longest = Duration::ZERO;
    let ended = loop {
        let began = Clock::instant();
        assert_eq!(Wire::to(shipped.public()).await.ask(GET).await.status(), 200);
        longest = longest.max(began.elapsed());
        if let Ok(ended) = timeout(Duration::from_millis(100), &mut slow).await {
            break ended.unwrap();
        }
    };
    let late: Vec<_> = ended.iter().filter(|(_, took)| took.is_none_or(|took| took > LIMIT)).collect();
    assert!(late.is_empty(), "these were not closed within {LIMIT:?}: {late:#?}");
    assert!(longest < Duration::from_secs(1), "somebody waited for {longest:?}");
}

/// What a client does not read is not fetched for it: a slow reader costs a few hundred kilobytes here and in the kernel, not megabytes, and when it
/// is given up nothing is kept.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn an_answer_that_is_not_read_is_hardly_begun() {
    let mut limits = limits();
    limits.body_timeout = Duration::from_millis(500);
    let made = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&made);
    let front = Front::serving(limits, Stop::new(), move |_, _| {
        let count = Arc::clone(&count);
        async move {
            let chunk = Bytes::from_static(&[0; 16 << 10]);
            let frames = futures_util::stream::repeat_with(move || {
                count.fetch_add(chunk.len(), SeqCst);
                Ok::<_, BodyError>(Frame::data(chunk.clone()))
            });
            Response::new(Body::stream(StreamBody::new(frames)))
        }
    })
    .await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut deaf = socket.connect(front.address).await.unwrap();
    deaf.write_all(GET.as_bytes()).await.unwrap();
    until("it is given up, and told so", || is_broken(&deaf)).await;
    let made = made.load(SeqCst);
    assert!((1..768 << 10).contains(&made), "{made} bytes were made for nobody");
}

/// CASE 66 and 42: whoever is slow when the gateway is told to stop does not keep it from stopping, long before its drain limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_clients_do_not_hold_up_a_stop() {
    let mut shipped = Shipped::start().await;
    let slow: Vec<_> = all(&shipped).into_iter().map(|(_, client)| tokio::spawn(client)).collect();
    until("those who ask anything have got through to the shop", || {
        shipped.shop.connections() >= 5
    })
    .await;
    assert_eq!(Wire::to(shipped.public()).await.ask(GET).await.status(), 200);
    let began = Clock::instant();
    shipped.process.signal("TERM").await;
    assert_eq!(shipped.process.code().await, Some(0), "{:#?}", shipped.process.said);
    let cut = shipped.process.said.iter().any(|line| line.contains("cutting"));
    assert!(
        !cut && began.elapsed() < LIMIT,
        "{:?}: {:#?}",
        began.elapsed(),
        shipped.process.said
    );
    for client in slow {
        client.abort();
    }
    drop(shipped.papers);
}
