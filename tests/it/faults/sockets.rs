//! Sockets whose other end is no good: it never reads, or it is not there any more and nobody says so.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;
use socket2::{SockFilter, SockRef};
use tokio::net::{TcpSocket, TcpStream};
use waitgate::clock::Clock;
use waitgate::server::{self, PortUse};

use crate::backend::soon;
use crate::crew::{Crew, Process, Socket, Visitor, metric, tune};
use crate::harness::within;

const OPEN: &str = "waitgate_waiting_streams{room=\"42\",kind=\"ws\"}";

/// Bytes of memory that a process has.
fn memory(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}

/// Files that a process has open.
fn files(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs").count()
}

/// A connection for which neither machine keeps much.
async fn narrow(at: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    SockRef::from(&socket).set_tcp_mss(536).unwrap();
    soon(socket.connect(at)).await.unwrap()
}

/// So many who stand in line, each with a socket that has told the first view.
async fn sockets(process: &Process, count: usize) -> Vec<Socket> {
    let people: Vec<_> = (0..count).map(|_| Visitor::new(process.public)).collect();
    join_all(people.iter().map(Visitor::joins)).await;
    let opening = people
        .iter()
        .map(async |visitor| visitor.socket_on(narrow(process.public).await).await);
    let mut sockets = join_all(opening).await;
    for first in join_all(sockets.iter_mut().map(|socket| socket.next())).await {
        first.expect("a view");
    }
    sockets
}

/// CASE 43: a hundred never read, a thousand updates each; only the newest is kept for them, and they are dropped when a message cannot be sent in time.
/// Whoever reads is told every one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_socket_that_is_never_read_costs_little_and_is_dropped() {
    let mut crew = Crew::of("rate = 0\nping_every = \"1min\"\n").await;
    crew.body_timeout = "2s";
    let mut process = crew.process(None).await;
    let (pid, operators) = (process.child.id().expect("it runs"), process.operators);
    let deaf = sockets(&process, 100).await;
    let mut reading = sockets(&process, 1).await.remove(0);
    let before = memory(pid);
    let word = "w".repeat(195);
    let telling = async {
        let mut most = before;
        for number in 0..1_000 {
            let message = format!("{number:04} {word}");
            tune(operators, json!({ "message": message })).await;
            while reading.next().await.expect("it stays open")["message"] != message {}
            most = most.max(memory(pid));
        }
        within("those who do not read are dropped", async || metric(operators, OPEN).await <= 1.0).await;
        tune(operators, json!({"message": "and it goes on"})).await;
        while reading.next().await.expect("it stays open")["message"] != "and it goes on" {}
        (most - before) / 100
    };
    let grown = tokio::select! {
        grown = telling => grown,
        () = process.listened_to() => unreachable!("it is listened to for ever"),
    };
    assert!(grown < 256 * 1024, "{grown} bytes a socket");
    drop(deaf);
}

/// What waiting costs: a stream of events two and a half kilobytes of memory, and after ten events no more than before; a socket a little more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_costs_little_memory() {
    const MANY: usize = 1_000;
    let crew = Crew::of("rate = 0\n").await;
    let process = crew.process(None).await;
    let pid = process.child.id().expect("it runs");
    let warm: Vec<_> = sockets(&process, 50).await;
    let people: Vec<_> = (0..2 * MANY).map(|_| Visitor::new(process.public)).collect();
    join_all(people.iter().map(Visitor::joins)).await;
    let (watchers, talkers) = people.split_at(MANY);
    let before = memory(pid);
    let mut streams = join_all(watchers.iter().map(Visitor::stream)).await;
    join_all(streams.iter_mut().map(|stream| stream.view())).await;
    let with_streams = memory(pid);
    let opening = talkers
        .iter()
        .map(async |visitor| visitor.socket_on(narrow(process.public).await).await);
    let mut sockets = join_all(opening).await;
    join_all(sockets.iter_mut().map(|socket| socket.next())).await;
    let with_sockets = memory(pid);
    for number in 0..10 {
        let message = format!("news {number}");
        tune(process.operators, json!({ "message": message })).await;
        join_all(
            streams
                .iter_mut()
                .map(|stream| stream.until("told", |view| view["message"] == message)),
        )
        .await;
        join_all(
            sockets
                .iter_mut()
                .map(async |socket| while socket.next().await.expect("open")["message"] != message {}),
        )
        .await;
    }
    let told = memory(pid);
    let each = |bytes: u64| bytes / MANY as u64;
    let (stream, socket, grown) = (
        each(with_streams - before),
        each(with_sockets - with_streams),
        each(told.saturating_sub(with_sockets)),
    );
    assert!(stream <= 4096, "{stream} bytes a stream");
    assert!(socket <= 6144, "{socket} bytes a socket");
    assert!(grown <= 2048, "{grown} bytes more for both after ten events");
    drop(warm);
}

/// CASE 44: peers that vanish without a word. Their own machine throws away every packet that arrives, so that nothing is acknowledged and nothing is
/// refused, as when a phone is off. Within two pings their sockets are closed, their files are given back, and they are away; the others stay.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_vanishes_is_noticed_within_two_pings() {
    const PING: Duration = Duration::from_secs(2);
    let crew = Crew::of("rate = 0\nping_every = \"2s\"\naway_after = \"200ms\"\n").await;
    let process = crew.process(None).await;
    let pid = process.child.id().expect("it runs");
    let mut alive = sockets(&process, 5).await;
    let alone = files(pid);
    let gone = sockets(&process, 100).await;
    assert!(files(pid) >= alone + 100, "{} and {alone}", files(pid));
    let drop_all = [SockFilter::new(0x06, 0, 0, 0)]; // "return 0 bytes of it"
    for socket in &gone {
        SockRef::from(socket.0.get_ref()).attach_filter(&drop_all).expect("a filter");
    }
    let began = Clock::instant();
    let listening = alive.iter_mut().map(|socket| async move {
        while let Ok(view) = socket.next().await {
            if view["message"] == "over" {
                return true;
            }
        }
        false
    });
    let noticed = async {
        within("they are closed", async || metric(process.operators, OPEN).await <= 5.0).await;
        let took = began.elapsed();
        assert!(took < 2 * PING + Duration::from_secs(1), "{took:?}");
        within("their files are back", async || files(pid) <= alone).await;
        within("they are away", async || crew.count("away").await == 100).await;
        tune(process.operators, json!({"message": "over"})).await;
    };
    let (stayed, ()) = tokio::join!(join_all(listening), noticed);
    assert_eq!(stayed, [true; 5]);
    drop(gone);
}

/// CASE 44, for streams of events and everything else: the machine gives up a visitor who acknowledges nothing, and asks one that is silent.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_machine_gives_up_whoever_acknowledges_nothing() {
    let listener = server::listen("127.0.0.1:0".parse().unwrap(), PortUse::Alone).unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (accepted, _) = listener.accept().await.unwrap();
    let accepted = SockRef::from(&accepted);
    assert!(accepted.keepalive().unwrap());
    assert!(accepted.tcp_keepalive_time().unwrap() <= Duration::from_secs(20));
    let limit = accepted.tcp_user_timeout().unwrap().expect("a limit");
    assert!(limit <= Duration::from_secs(40), "{limit:?}");
    drop(client);
}
