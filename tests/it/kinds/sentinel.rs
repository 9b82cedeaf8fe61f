//! A primary, a replica and three sentinels: the primary dies, or falls silent, and people go on joining on the other.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::one::papers;
use super::process::{Process, RULES, port, users};
use super::{Crowd, FAILOVER, open};
use crate::crew::Process as Gateway;
use crate::harness::within;
use crate::papers::Papers;
use waitgate::clock::Clock;
use waitgate::store::{News, Store};

struct Trio {
    papers: Papers,
    secured: bool,
    servers: [Process; 2],
    sentinels: Vec<Process>,
}

impl Trio {
    async fn start(secured: bool) -> Self {
        let papers = papers();
        std::fs::write(papers.path("sentinel.password"), "watch\n").unwrap();
        let tls = secured.then_some(&papers);
        let (one, other) = (port(), port());
        let common = users(RULES) + "masteruser admin\nmasterauth admin\n";
        let servers = [
            Process::start(one, &common, tls).await,
            Process::start(other, &format!("{common}replicaof 127.0.0.1 {one}\n"), tls).await,
        ];
        let watching = format!(
            "user default off\nuser admin on >admin ~* &* +@all\nuser waitgate on >watch -@all +sentinel|master\n\
             sentinel sentinel-user admin\nsentinel sentinel-pass admin\nsentinel monitor shop 127.0.0.1 {one} 2\n\
             sentinel auth-user shop admin\nsentinel auth-pass shop admin\n\
             sentinel down-after-milliseconds shop 1000\nsentinel failover-timeout shop 1500\n"
        );
        let mut sentinels = Vec::new();
        for _ in 0..3 {
            sentinels.push(Process::start_sentinel(port(), &watching, tls).await);
        }
        within("the sentinels know each other and the replica", async || {
            for sentinel in &sentinels {
                let master = sentinel.cli(&["SENTINEL", "MASTER", "shop"]).await;
                let field = |name: &str| master.lines().skip_while(|line| *line != name).nth(1).map(str::to_owned);
                let known = (field("num-other-sentinels"), field("num-slaves"), field("flags"));
                if known != (Some("2".into()), Some("1".into()), Some("master".into())) {
                    return false;
                }
            }
            servers[1].cli(&["INFO", "replication"]).await.contains("master_link_status:up")
        })
        .await;
        Self {
            papers,
            secured,
            servers,
            sentinels,
        }
    }

    async fn store(&self) -> Store {
        open(self.papers.folder.path(), &self.settings()).await
    }

    fn settings(&self) -> String {
        let hosts: Vec<_> = self
            .sentinels
            .iter()
            .map(|sentinel| format!("127.0.0.1:{}", sentinel.port))
            .collect();
        let (scheme, tls) = match self.secured {
            true => ("rediss+sentinel", "tls = { roots = \"redis.pem\" }\n"),
            false => ("redis+sentinel", ""),
        };
        format!(
            "[store]\nurl = \"{scheme}://{}/shop\"\nuser = \"waitgate\"\npassword_file = \"store.password\"\n\
             sentinel_user = \"waitgate\"\nsentinel_password_file = \"sentinel.password\"\n{tls}",
            hosts.join(",")
        )
    }
}

/// Waits until the replica has everything, so that nothing but the failover is seen.
async fn replicated(primary: &Process) {
    within("the replica has everything", async || {
        primary.cli(&["WAIT", "1", "1000"]).await.trim() == "1"
    })
    .await;
}

#[tokio::test]
async fn with_tls_and_users_a_killed_primary_is_replaced_and_everybody_keeps_their_place() {
    let mut trio = Trio::start(true).await;
    let store = trio.store().await;
    let mut crowd = Crowd::new(&store, "42").await;
    let mut news = store.listen("42");
    assert_eq!(news.recv().await, Some(News::Subscribed));
    crowd.join_many(20).await;
    replicated(&trio.servers[0]).await;

    trio.servers[0].kill().await;
    crowd.join_many(20).await;
    eprintln!("kill -9 of the primary under sentinels: {:?} without an answer", crowd.longest_wait);
    assert!(crowd.longest_wait < FAILOVER);
    assert!(trio.servers[1].cli(&["ROLE"]).await.starts_with("master"));
    crowd.check().await;
    assert_eq!(
        tokio::time::timeout(FAILOVER, news.recv()).await.unwrap(),
        Some(News::Subscribed),
        "at the new primary"
    );
    crowd.room.tune("ann", "1", &Default::default()).await.unwrap();
    assert_eq!(tokio::time::timeout(FAILOVER, news.recv()).await.unwrap(), Some(News::Changed));
    // The first sentinel of the list dies too: the others are enough.
    trio.sentinels[0].kill().await;
    crowd.join_many(5).await;
    crowd.check().await;
}

/// CASE 97: stuck for ever on a server that had become a replica.
#[tokio::test]
async fn a_silent_primary_is_replaced_and_not_believed_when_it_speaks_again() {
    let trio = Trio::start(false).await;
    // One that is silent, the first of the list, is not waited for.
    trio.sentinels[0].signal("STOP").await;
    let began = Clock::instant();
    let store = trio.store().await;
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    trio.sentinels[0].signal("CONT").await;
    let mut crowd = Crowd::new(&store, "42").await;
    crowd.join_many(20).await;
    replicated(&trio.servers[0]).await;

    trio.servers[0].signal("STOP").await;
    crowd.join_many(20).await;
    eprintln!("SIGSTOP of the primary under sentinels: {:?} without an answer", crowd.longest_wait);
    assert!(crowd.longest_wait < FAILOVER);
    // It thinks that it is the primary, and says so to whoever asks, until the sentinels get round to it.
    let asked = async || {
        let stats = trio.servers[0].cli(&["INFO", "commandstats"]).await;
        stats.lines().find(|line| line.contains("cmdstat_evalsha")).map(str::to_owned)
    };
    trio.servers[0].signal("CONT").await;
    within("what had been sent to it is done", async || {
        let before = asked().await;
        crowd.room.show().await.is_ok() && before == asked().await
    })
    .await;
    let before = asked().await;
    crowd.join_many(50).await;
    crowd.check().await;
    assert_eq!(asked().await, before, "nobody asks it any more");
}

async fn get(from: SocketAddr, path: &str, cookie: &str) -> String {
    let mut socket = TcpStream::connect(from).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nCookie: {cookie}\r\n\r\n");
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).await.unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

/// The program as it is run, with a file of settings.
#[tokio::test]
async fn a_gateway_starts_on_sentinels_and_is_ready_again_after_a_failover() {
    let mut trio = Trio::start(true).await;
    let file = trio.papers.path("gate.toml");
    let room = "[rooms.42]\npaths = [\"/sale\"]\nupstream = \"http://127.0.0.1:1\"\nrate = 0\non_store_loss = \"hold\"\n";
    let listeners = "[server]\nlisten = \"127.0.0.1:0\"\n[ops]\nlisten = \"127.0.0.1:0\"\n[log]\nformat = \"json\"\n";
    std::fs::write(&file, format!("{}\n{listeners}{room}", trio.settings())).unwrap();
    let gate = Gateway::spawn(&file, None).await;
    let ready = async || get(gate.operators, "/readyz", "").await.starts_with("HTTP/1.1 200");
    within("it is ready", ready).await;
    // Whoever brings the ticket of the first answer back has a place.
    let first = get(gate.public, "/sale", "").await;
    let cookie = first
        .lines()
        .find_map(|line| line.strip_prefix("set-cookie: "))
        .unwrap()
        .split(';')
        .next()
        .unwrap();
    let place = async || {
        get(gate.public, "/.waitgate/42/status", cookie).await;
        get(gate.operators, "/v1/rooms/42", "").await.contains("\"waiting\":1")
    };
    within("somebody waits", place).await;
    replicated(&trio.servers[0]).await;

    trio.servers[0].kill().await;
    within("it says that it is not", async || !ready().await).await;
    within("it is ready again", ready).await;
    within("the room is where it was", async || {
        get(gate.operators, "/v1/rooms/42", "").await.contains("\"waiting\":1")
    })
    .await;
}
