//! The listener: who may connect, for how long, and how it ends.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::select_all;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use tokio::process::Command;
use tokio::sync::Notify;
use tokio::time::timeout;
use waitgate::body::{Body, BodyError};
use waitgate::clock::Clock;
use waitgate::server::{self, ConnectionLimits, ListenerSettings, Live, Peer, PortUse, Scheme, Stop};

use crate::backend::{Backend, Front, Treatment, Wire, http2, limits, nothing, settings, soon, until};
use crate::crew::{Crew, Visitor};
use crate::harness::{StillTime, within};

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
/// A path of our own that leads nowhere: no backend is asked.
const LOST: &str = "GET /.waitgate/42/nowhere HTTP/1.1\r\nHost: a\r\n\r\n";
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];

fn quick() -> ConnectionLimits {
    let mut limits = limits();
    (limits.header_timeout, limits.idle_timeout) = (Duration::from_millis(400), Duration::from_millis(400));
    limits
}

async fn saying_ok(limits: ConnectionLimits) -> Front {
    Front::serving(limits, Stop::new(), |_, _| async { Response::new(Body::full("ok")) }).await
}

/// Says hello, then `bye` when the stop begins.
fn events(stop: &Stop) -> Body {
    let draining = stop.draining.clone();
    let frames = futures_util::stream::unfold(0, move |step| {
        let draining = draining.clone();
        async move {
            match step {
                0 => Some((Ok::<_, BodyError>(Frame::data(Bytes::from_static(b"hello"))), 1)),
                1 => {
                    draining.cancelled().await;
                    Some((Ok(Frame::data(Bytes::from_static(b"bye"))), 2))
                }
                _ => None,
            }
        }
    });
    Body::stream(StreamBody::new(frames))
}

#[tokio::test]
async fn the_silent_the_slow_and_the_idle_are_closed() {
    let front = saying_ok(quick()).await;
    let limit = Duration::from_millis(2500);
    let mut silent = front.client().await;
    let mut slow = front.client().await;
    let mut preface = front.client().await;
    let mut settings_only = front.client().await;
    let mut idle = front.client().await;
    slow.send("GET / HTTP/1.1\r\nHo").await;
    preface.send(&PREFACE[..10]).await;
    settings_only.send([PREFACE, SETTINGS].concat()).await;
    assert_eq!(idle.ask(GET).await.status(), 200);
    let crawl = async {
        let began = Clock::instant();
        while began.elapsed() < limit {
            slow.send("x").await; // a byte now and then buys no time
            if slow.ends_within(Duration::from_millis(100)).await {
                return true;
            }
        }
        false
    };
    let ended = tokio::join!(
        silent.ends_within(limit),
        crawl,
        preface.ends_within(limit),
        settings_only.ends_within(limit),
        idle.ends_within(limit),
    );
    assert_eq!(ended, (true, true, true, true, true));
}

#[tokio::test]
async fn a_slow_second_head_is_closed_and_a_quick_one_is_not() {
    let mut limits = quick();
    limits.idle_timeout = Duration::from_secs(5);
    let front = saying_ok(limits).await;
    let mut client = front.client().await;
    assert_eq!(client.ask(GET).await.status(), 200);
    let time = StillTime::begin();
    time.pass(Duration::from_millis(700)).await; // idle for longer than a head may take
    time.end();
    assert_eq!(client.ask(GET).await.status(), 200);
    client.send("GET / HT").await;
    assert!(client.ends_within(Duration::from_millis(2500)).await);
}

#[tokio::test]
async fn an_idle_http2_connection_is_closed_and_pings_do_not_keep_it() {
    let front = saying_ok(quick()).await;
    let mut sender = http2(front.address).await;
    let request = Request::get("http://a/").body(nothing()).unwrap();
    sender.send_request(request).await.unwrap().into_body().collect().await.unwrap();
    until("it is closed", || sender.is_closed()).await;

    let mut pinging = front.client().await;
    pinging.send([PREFACE, SETTINGS].concat()).await;
    let began = Clock::instant();
    while !pinging.ends_within(Duration::from_millis(50)).await {
        pinging.send([&[0, 0, 8, 6, 0, 0, 0, 0, 0], &[1; 8][..]].concat()).await;
        assert!(began.elapsed() < Duration::from_secs(4));
    }
}

#[tokio::test]
async fn a_quiet_stream_is_not_idle() {
    let stop = Stop::new();
    let inner = stop.clone();
    let front = Front::serving(quick(), stop, move |_, _| {
        let body = events(&inner);
        async { Response::new(body) }
    })
    .await;
    let mut client = front.client().await;
    client.send(GET).await;
    assert!(client.head().await.is_some());
    let mut sender = http2(front.address).await;
    let request = || Request::get("http://a/").body(nothing()).unwrap();
    let mut stream = sender.send_request(request()).await.unwrap().into_body();
    assert_eq!(stream.frame().await.unwrap().unwrap().into_data().unwrap(), "hello");
    let time = StillTime::begin();
    time.pass(Duration::from_secs(5)).await; // much longer than a connection may be idle
    time.end();
    assert!(!sender.is_closed());
    front.stop.draining.cancel();
    assert_eq!(client.chunks().await.unwrap().0, b"hellobye");
    assert_eq!(soon(stream.frame()).await.unwrap().unwrap().into_data().unwrap(), "bye");
    front.stopped().await;
}

#[tokio::test]
async fn what_is_in_flight_is_answered_before_the_end() {
    let (arrived, go) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let (count, wait) = (Arc::clone(&arrived), Arc::clone(&go));
    let front = Front::serving(limits(), Stop::new(), move |_, _| {
        let (count, wait) = (Arc::clone(&count), Arc::clone(&wait));
        async move {
            let notified = wait.notified();
            count.fetch_add(1, SeqCst);
            notified.await;
            Response::new(Body::full("sold"))
        }
    })
    .await;
    let (mut claiming, mut idle) = (front.client().await, front.client().await);
    claiming.send("POST /claim HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n").await;
    idle.send("GE").await;
    let mut sender = http2(front.address).await;
    let claim = tokio::spawn(async move { sender.send_request(Request::post("http://a/").body(nothing()).unwrap()).await });
    until("both are being answered", || arrived.load(SeqCst) == 2).await;
    front.stop.draining.cancel();
    until("nobody else is accepted", || {
        std::net::TcpStream::connect_timeout(&front.address, Duration::from_millis(50)).is_err()
    })
    .await;
    assert!(!front.is_over());
    go.notify_waiters();
    let answer = claiming.answer().await.unwrap();
    assert_eq!((answer.status(), answer.one("connection")), (200, "close"));
    assert_eq!(claim.await.unwrap().unwrap().status(), 200);
    front.stopped().await;
}

#[tokio::test]
async fn after_the_drain_limit_everything_is_cut_and_a_second_signal_cuts_at_once() {
    for impatient in [false, true] {
        let mut limits = limits();
        limits.drain_timeout = Duration::from_millis(if impatient { 60_000 } else { 300 });
        let front = Front::serving(limits, Stop::new(), |_, _| std::future::pending::<Response<Body>>()).await;
        let mut client = front.client().await;
        client.send(GET).await;
        let mut sender = http2(front.address).await;
        let pending = tokio::spawn(async move { sender.send_request(Request::get("http://a/").body(nothing()).unwrap()).await });
        front.stop.tasks.spawn(front.stop.cut.clone().cancelled_owned());
        tokio::task::yield_now().await;
        front.stop.draining.cancel();
        if impatient {
            front.stop.cut.cancel();
        }
        let began = Clock::instant();
        front.stopped().await;
        assert!(began.elapsed() < Duration::from_secs(4));
        assert!(client.ends_within(Duration::from_secs(1)).await);
        assert!(soon(pending).await.unwrap().is_err());
    }
}

#[tokio::test]
async fn connections_beyond_the_limits_are_told_so() {
    for by_address in [false, true] {
        let mut limits = limits();
        if by_address {
            limits.max_connections_per_address = 3;
        } else {
            limits.max_connections = 3;
        }
        let front = saying_ok(limits).await;
        let mut open = Vec::new();
        for _ in 0..3 {
            let mut client = front.client().await;
            assert_eq!(client.ask(GET).await.status(), 200);
            open.push(client);
        }
        let refused = front.ask(GET).await;
        assert_eq!((refused.status(), refused.one("cache-control")), (503, "no-store"));
        assert_eq!(refused.one("retry-after"), "2");
        assert_eq!(open[0].ask(GET).await.status(), 200, "the others do not notice");
        drop(open);
        let free = async {
            while front.ask(GET).await.status() != 200 {
                tokio::task::yield_now().await;
            }
        };
        soon(free).await;
    }
}

/// CASE 52: with no file left the accept loop died, or spun.
#[tokio::test]
async fn out_of_files_it_waits_and_serves_again() {
    let crew = Crew::of("rate = 0\n").await;
    let mut process = crew.process(None).await;
    let pid = process.child.id().unwrap().to_string();
    let used = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    let few = used + 15; // a crowd will not fit, and whatever a busy gateway opens for itself will
    let lowered = Command::new("prlimit")
        .args(["--pid", &pid, &format!("--nofile={few}:{few}")])
        .status()
        .await;
    assert!(lowered.unwrap().success());
    let mut open = Vec::new();
    for _ in 0..100 {
        let mut client = Wire::to(process.public).await; // the kernel accepts
        client.send(LOST).await;
        open.push(client);
    }
    // Each worker takes from a queue of its own, and one of them may have taken all the files: somebody is in, not necessarily the first.
    let (_, first, _) = soon(select_all(open.iter().map(|client| Box::pin(client.stream.readable())))).await;
    let mut inside = open.remove(first);
    assert_eq!(inside.answer().await.unwrap().status(), 404);
    let last = open.last_mut().unwrap();
    assert!(
        timeout(Duration::from_millis(500), last.stream.readable()).await.is_err(),
        "there were files enough: {used} were in use before"
    );
    assert_eq!(inside.ask(LOST).await.status(), 404, "who is in is served");
    let mut late = open.pop().unwrap();
    drop((open, inside));
    assert_eq!(late.answer().await.unwrap().status(), 404, "who waited is served");
    assert_eq!(Wire::to(process.public).await.ask(LOST).await.status(), 404);
    process.signal("TERM").await;
    assert_eq!(process.code().await, Some(0), "{:#?}", process.said);
    let complaints = process.said.iter().filter(|line| line.contains("accept")).count();
    assert!(
        (1..=3).contains(&complaints),
        "it is said, and not again and again: {:#?}",
        process.said
    );
}

/// CASE 52: a machine with few files is known from the start, and whoever is one too many is told so.
#[tokio::test]
async fn with_few_files_fewer_are_let_in() {
    let crew = Crew::of("rate = 0\n").await;
    let process = crew.process(Some(128)).await;
    let lowered = process.said.iter().any(|line| line.contains("max_connections is lowered"));
    assert!(lowered, "{:#?}", process.said);
    let mut open = Vec::new();
    let mut refused = 0;
    for number in 0..200 {
        let mut client = Wire::to(process.public).await;
        client.send(GET).await;
        match soon(client.head()).await {
            Some(head) if head.starts_with("HTTP/1.1 503") => refused += 1,
            Some(_) => open.push(client),
            None => assert!(number > 60, "closed without a word"),
        }
    }
    assert_eq!((open.len(), refused > 0), (64, true), "{refused} refused");
    drop(open);
    let visitor = Visitor::new(process.public);
    within("served again", async || {
        visitor.try_load().await.is_ok_and(|page| page.status == 200)
    })
    .await;
    let mut stream = visitor.stream().await;
    assert_eq!(stream.view().await["ahead"], 0);
}

/// CASE 67: too many or too long headers are 431, never a reset.
#[tokio::test]
async fn heads_that_are_too_much_are_431() {
    let front = saying_ok(limits()).await;
    let many: String = (0..101).map(|number| format!("x-{number}: 1\r\n")).collect();
    assert_eq!(front.ask(format!("GET / HTTP/1.1\r\nHost: a\r\n{many}\r\n")).await.status(), 431);
    let mut client = front.client().await;
    client
        .send(format!("GET / HTTP/1.1\r\nHost: a\r\nx: {}\r\n\r\n", "v".repeat(1 << 20)))
        .await;
    assert_eq!(client.answer().await.unwrap().status(), 431);
    assert!(client.ends_within(Duration::from_secs(5)).await);

    let mut sender = http2(front.address).await;
    let mut request = Request::get("http://a/");
    for number in 0..101 {
        request = request.header(format!("x-{number}"), "1");
    }
    assert_eq!(sender.send_request(request.body(nothing()).unwrap()).await.unwrap().status(), 431);
    let request = Request::get("http://a/").header("x", "v".repeat(30_000)).body(nothing()).unwrap();
    let outcome = sender.send_request(request).await;
    assert!(outcome.map_or(true, |response| response.status() == 431));
}

/// CASE 70: an early refusal is read by whoever is still sending.
#[tokio::test]
async fn an_upload_that_is_refused_at_once_reads_its_refusal() {
    let backend = Backend::plain().await;
    let mut limits = limits();
    limits.max_body_bytes = 64 << 20;
    let front = Front::with(backend.origin(), limits, settings(), Treatment::default()).await;
    let mut upload = b"POST /refused HTTP/1.1\r\nHost: a\r\nContent-Length: 20971520\r\n\r\n".to_vec();
    upload.resize(upload.len() + (20 << 20), b'x');
    for _ in 0..10 {
        let mut client = front.client().await;
        let sent = soon(tokio::io::AsyncWriteExt::write_all(&mut client.stream, &upload)).await;
        assert!(
            sent.is_ok(),
            "all of it goes out before anything is read, and nothing is reset: {sent:?}"
        );
        let answer = client.answer().await.expect("the refusal");
        assert_eq!((answer.status(), answer.one("connection")), (429, "close"));
    }
    assert_eq!(backend.connections(), 0);
}

/// Whoever is refused in the middle of saying something may go on, and reads why: a head that is odd or too large, as the first on its connection, or
/// right behind one that is being answered. A socket closed at once would answer the next bytes with a reset, and the refusal be lost.
#[tokio::test]
async fn a_refusal_is_read_by_who_goes_on_sending() {
    let front = saying_ok(limits()).await;
    let large = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}", "v".repeat(17 << 10));
    for (odd, status) in [("GET /#b HTTP/1.1\r\nHost: a\r\n\r\n", 400), (large.as_str(), 431)] {
        for before in ["", GET] {
            let mut client = front.client().await;
            client.send(format!("{before}{odd}")).await;
            let (refusal, mut here) = (format!("HTTP/1.1 {status} "), vec![0; 4096]);
            let refused = async {
                loop {
                    let length = client.stream.peek(&mut here).await.unwrap();
                    if String::from_utf8_lossy(&here[..length]).contains(&refusal) {
                        return;
                    }
                    tokio::task::yield_now().await;
                }
            };
            soon(refused).await;
            let sent = soon(tokio::io::AsyncWriteExt::write_all(&mut client.stream, &vec![b'x'; 8 << 20])).await;
            assert!(sent.is_ok(), "{status} behind {before:?}: {sent:?}");
            if !before.is_empty() {
                assert_eq!(client.answer().await.expect("the answer").status(), 200);
            }
            assert_eq!(client.answer().await.expect("the refusal").status(), status);
        }
    }
}

#[tokio::test]
async fn a_client_that_never_reads_is_dropped() {
    let mut limits = limits();
    limits.body_timeout = Duration::from_millis(300);
    let dropped = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&dropped);
    let front = Front::serving(limits, Stop::new(), move |_, _| {
        let guard = Counted(Arc::clone(&count));
        async move {
            let chunk = Bytes::from(vec![0; 64 * 1024]);
            let frames = futures_util::stream::unfold(guard, move |guard| {
                let chunk = chunk.clone();
                async move { Some((Ok::<_, BodyError>(Frame::data(chunk)), guard)) }
            });
            Response::new(Body::stream(StreamBody::new(frames)))
        }
    })
    .await;
    let mut deaf: Wire = front.client().await;
    deaf.send(GET).await;
    until("the HTTP/1 answer is dropped", || dropped.load(SeqCst) == 1).await;

    let mut sender = http2(front.address).await;
    let request = || Request::get("http://a/").body(nothing()).unwrap();
    let unread = sender.send_request(request()).await.unwrap();
    until("the HTTP/2 answer is dropped", || dropped.load(SeqCst) == 2).await;
    let mut read = sender.send_request(request()).await.unwrap().into_body();
    assert!(soon(read.frame()).await.unwrap().is_ok(), "the connection goes on");
    drop(unread);
}

struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
    }
}

#[tokio::test]
async fn one_unread_stream_does_not_hold_up_the_others() {
    let backend = Backend::start(|mut wire| async move {
        while let Some(request) = wire.request().await {
            if request.line().contains("/big") {
                wire.send(format!("HTTP/1.1 200 OK\r\nContent-Length: 8388608\r\n\r\n{}", "x".repeat(8 << 20)))
                    .await;
            }
            wire.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
        }
    })
    .await;
    let front = Front::of(&backend).await;
    let mut sender = http2(front.address).await;
    let unread = sender
        .send_request(Request::get("http://a/big").body(nothing()).unwrap())
        .await
        .unwrap();
    for _ in 0..20 {
        let response = soon(sender.send_request(Request::get("http://a/events").body(nothing()).unwrap()))
            .await
            .unwrap();
        assert_eq!(soon(response.into_body().collect()).await.unwrap().to_bytes(), "ok");
    }
    drop(unread);
}

#[tokio::test]
async fn a_flood_of_resets_is_ended_and_others_are_served() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let front = Front::serving(limits(), Stop::new(), move |_, _| {
        count.fetch_add(1, SeqCst);
        async { Response::new(Body::full("ok")) }
    })
    .await;
    let mut flood = [PREFACE, SETTINGS].concat();
    for stream in (1..20_000u32).step_by(2) {
        // :method GET, :scheme http, :path /, :authority a; then RST_STREAM (CANCEL).
        flood.extend([&[0, 0, 6, 1, 5][..], &stream.to_be_bytes(), &[0x82, 0x86, 0x84, 0x41, 0x01, b'a']].concat());
        flood.extend([&[0, 0, 4, 3, 0][..], &stream.to_be_bytes(), &[0, 0, 0, 8]].concat());
    }
    let mut client = front.client().await;
    client.send(&flood).await;
    assert!(client.ends_within(Duration::from_secs(8)).await, "the flood goes on");
    let looked_at = asked.load(SeqCst);
    assert!((1..1000).contains(&looked_at), "{looked_at} requests were looked at");
    assert_eq!(front.ask(GET).await.status(), 200);
}

/// CASE 76 and 79: the peer is known over real sockets; IPv4 inside IPv6 is IPv4.
#[tokio::test]
async fn the_peer_is_known_over_real_sockets_v4_in_v6_too() {
    let listener = server::listen("[::]:0".parse().unwrap(), PortUse::Alone).unwrap();
    let port = listener.local_addr().unwrap().port();
    let stop = Stop::new();
    let serving = tokio::spawn(server::serve(
        listener,
        Scheme::Http,
        Live::new(ListenerSettings::plain(limits())),
        stop.clone(),
        |_, peer: Peer| Box::pin(async move { Response::new(Body::full(peer.address.ip().to_string())) }),
    ));
    for address in ["127.0.0.1", "::1"] {
        let mut client = Wire::to(SocketAddr::new(address.parse().unwrap(), port)).await;
        assert_eq!(client.ask(GET).await.body, address.as_bytes());
    }
    stop.draining.cancel();
    soon(serving).await.unwrap();
}

#[tokio::test]
async fn a_request_is_given_up_when_its_client_leaves() {
    let gone = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&gone);
    let began = Arc::new(AtomicBool::new(false));
    let begin = Arc::clone(&began);
    let front = Front::serving(limits(), Stop::new(), move |_, _| {
        let guard = Flag(Arc::clone(&flag));
        begin.store(true, SeqCst);
        async move {
            let _guard = guard;
            std::future::pending::<Response<Body>>().await
        }
    })
    .await;
    let mut client = front.client().await;
    client.send(GET).await;
    until("it is being answered", || began.load(SeqCst)).await;
    drop(client);
    until("it is given up", || gone.load(SeqCst)).await;
}

struct Flag(Arc<AtomicBool>);

impl Drop for Flag {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Settings are exchanged while people are connected: whoever is in stays in by the old ones, whoever comes gets the new ones, and the count of
/// open connections goes on.
#[tokio::test]
async fn new_settings_are_for_new_connections() {
    let front = saying_ok(limits()).await;
    let mut old = front.client().await;
    let long = format!("GET / HTTP/1.1\r\nHost: a\r\nx: {}\r\n\r\n", "v".repeat(12_000));
    assert_eq!(old.ask(&long).await.status(), 200);
    let mut fewer = limits();
    (fewer.max_header_bytes, fewer.max_connections_per_address) = (8 << 10, 2);
    front.live.exchange(ListenerSettings::plain(fewer));
    let mut new = front.client().await;
    assert_eq!(new.ask(GET).await.status(), 200);
    let mut third = front.client().await;
    third.send(GET).await;
    assert_eq!(third.answer().await.unwrap().status(), 503, "the old connection counts");
    assert_eq!(old.ask(&long).await.status(), 200, "the old connection goes on as it began");
    assert_eq!(new.ask(&long).await.status(), 431);
    front.live.exchange(ListenerSettings::plain(limits()));
    assert_eq!(front.ask(&long).await.status(), 200);
}

/// A stop that nothing stands in the way of is not told as one that had to cut something.
#[tokio::test]
async fn a_clean_stop_says_nothing_of_cutting() {
    let crew = Crew::of("rate = 0\n").await;
    let mut process = crew.process(None).await;
    let mut idle = Wire::to(process.public).await;
    assert_eq!(idle.ask(LOST).await.status(), 404);
    process.signal("TERM").await;
    assert_eq!(process.code().await, Some(0), "{:#?}", process.said);
    let mut at_the_end = process.said.iter().skip_while(|line| !line.contains("stopping:"));
    assert!(
        at_the_end.next().is_some() && !at_the_end.any(|line| line.contains("WARN")),
        "{:#?}",
        process.said
    );
}
