//! One server: TLS, an ACL user that may do no more than it needs, and what is said when that is not so.

use std::time::Duration;

use waitgate::config;
use waitgate::fault::StoreFault;
use waitgate::store::News;
use waitgate::store::scripts::{Gate, Presence, Settled, Tuning, Verdict};

use super::process::{Process, RULES, port, users};
use super::{Crowd, open};
use crate::harness::{TERMS, stocked, within};
use crate::papers::Papers;
use crate::scripts::claim::asked;

/// A server's certificate and a file with the gateway's password.
pub fn papers() -> Papers {
    let papers = Papers::new();
    papers.issue("redis", &["127.0.0.1", "localhost"]);
    std::fs::write(papers.path("store.password"), "let-me-in\n").unwrap();
    papers
}

#[tokio::test]
async fn a_user_with_just_the_documented_rules_can_do_everything_over_tls() {
    let papers = papers();
    let port = port();
    let server = Process::start(port, &users(RULES), Some(&papers)).await;
    let settings = format!(
        "[store]\nurl = \"rediss://127.0.0.1:{port}\"\nuser = \"waitgate\"\npassword_file = \"store.password\"\ntls = {{ roots = \"redis.pem\" }}"
    );
    let store = open(papers.folder.path(), &settings).await;
    let policy = store.policy().await.unwrap();
    assert_eq!(policy.maxmemory_policy.as_deref(), Some("noeviction"));
    assert!(!policy.version.is_empty());
    let mut news = store.listen("42");
    assert_eq!(news.recv().await, Some(News::Subscribed));

    let room = store.room("42");
    assert!(room.seed(&stocked(3)).await.unwrap().fresh);
    let mut crowd = Crowd::new(&store, "43").await;
    crowd.join_many(3).await;
    crowd.check().await;
    room.tune("ann", "1", &Tuning::default()).await.unwrap();
    assert_eq!(news.recv().await, Some(News::Changed));
    room.admit(&TERMS).await.unwrap().unwrap();
    room.redeem(&TERMS, "a").await.unwrap();
    room.depart(&TERMS, &[Presence::Away("b".into())]).await.unwrap();
    room.sweep(&TERMS).await.unwrap();
    room.show().await.unwrap().unwrap();
    room.measure().await.unwrap().unwrap();
    let Gate::Reserved(reservation) = room.claim(&asked("ann", "r1")).await.unwrap() else {
        panic!("there is stock");
    };
    assert_eq!(
        room.settle(&TERMS, &reservation.id, Verdict::Confirm, None).await.unwrap(),
        Settled::Confirmed
    );
    assert!(room.reservation("r1").await.unwrap().is_some());
    // Nobody has to have a copy, but it is counted.
    room.copied(&room.primary().unwrap(), 0, Duration::from_secs(1)).await.unwrap();

    server.cli(&["ACL", "SETUSER", "waitgate", "-evalsha"]).await;
    let refused = room.show().await;
    assert!(
        matches!(&refused, Err(StoreFault::Refused(error)) if error.code() == Some("NOPERM")),
        "{refused:?}"
    );
    assert!(store.is_up(), "it is refused, not away");
}

#[tokio::test]
async fn whom_we_do_not_know_gets_no_password() {
    let papers = papers();
    papers.issue("other", &["127.0.0.1"]);
    let port = port();
    let server = Process::start(port, &users(RULES), Some(&papers)).await;
    let url = format!("[store]\nurl = \"rediss://127.0.0.1:{port}\"\nuser = \"waitgate\"\npassword_file = \"store.password\"");
    for (tls, good) in [
        ("roots = \"other.pem\"", false),
        ("roots = \"redis.pem\", name = \"another.example\"", false),
        ("roots = \"redis.pem\", name = \"localhost\"", true),
    ] {
        let settings = config::parse(&format!("{url}\ntls = {{ {tls} }}"), &papers.path("waitgate.toml")).unwrap();
        let options = waitgate::store::StoreOptions {
            call_timeout: settings.store.call_timeout,
            connect_timeout: settings.store.connect_timeout,
        };
        let site = settings.store.site.unwrap();
        let store = waitgate::store::Store::open_site(&site, waitgate::clock::Clock::system(), options).unwrap();
        let up = async || {
            tokio::time::timeout(Duration::from_secs(2), store.ups().wait_for(|up| *up))
                .await
                .is_ok()
        };
        assert_eq!(up().await, good, "{tls}");
        store.close();
    }
    assert_eq!(server.cli(&["ACL", "LOG"]).await.trim(), "", "nobody came with a wrong password");
}

/// What is wrong with `[store]` is told with its file, line and key.
#[test]
fn mistakes_about_a_store_are_told_by_file_line_and_key() {
    let papers = papers();
    for (store, mistake) in [
        (
            "url = \"redis+sentinel://a:1\"",
            "2:7: store.url: say what the sentinels call the primary",
        ),
        ("url = \"redis+cluster://a:1/2\"", "2:7: store.url: a cluster has only database 0"),
        (
            "url = \"redis+sentinel://u:hidden@a/m\"",
            "2:7: store.url: a password does not belong into this file",
        ),
        ("url = \"redis://a\"\nuser = \"x\"", "3:8: store.user: a user needs a password"),
        (
            "url = \"redis://a\"\nsentinel_user = \"x\"",
            "3:17: store.sentinel_user: a user needs a password",
        ),
        (
            "url = \"redis://a\"\nsentinel_password_file = \"store.password\"",
            "3:26: store.sentinel_password_file: there are no sentinels",
        ),
        (
            "password_file = \"store.password\"",
            "2:17: store.password_file: this is for a Redis of yours",
        ),
        ("url = \"redis://a\"\npassword_file = \"none\"", "3:17: store.password_file: "),
        (
            "url = \"redis://a\"\ntls = { roots = \"redis.pem\" }",
            "3:17: store.tls.roots: the store is not spoken to over TLS",
        ),
        (
            "url = \"rediss://a\"\ntls = { roots = \"redis.key\" }",
            "3:17: store.tls.roots: there is no certificate in ",
        ),
    ] {
        let read = config::parse(&format!("[store]\n{store}\n"), &papers.path("shop.toml"));
        let said = read.expect_err(store).to_string();
        assert!(said.contains("shop.toml:") && said.contains(mistake), "{store}: {said}");
        assert!(!said.contains("hidden"), "{said}");
    }
}

/// CASE 97, as sentinels see it: a server that was made a replica while nobody asked is not connected to.
#[tokio::test]
async fn a_replica_is_not_taken_for_a_primary() {
    let (one, other) = (port(), port());
    let primary = Process::start(one, "", None).await;
    let replica = Process::start(other, &format!("replicaof 127.0.0.1 {one}\n"), None).await;
    let options = waitgate::store::StoreOptions {
        call_timeout: Duration::from_secs(1),
        connect_timeout: Duration::from_secs(1),
    };
    let url = format!("redis://127.0.0.1:{other}");
    let store = waitgate::store::Store::open(&url, waitgate::clock::Clock::system(), options).unwrap();
    within("it was tried", async || {
        let stats = replica.cli(&["INFO", "stats"]).await;
        let total = stats.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
        total
            .and_then(|total| total.trim().parse::<u64>().ok())
            .is_some_and(|total| total > 8)
    })
    .await;
    assert!(!store.is_up());
    replica.cli(&["REPLICAOF", "NO", "ONE"]).await;
    crate::harness::up(&store).await;
    drop(primary);
}

/// A server that still reads its file says so; it is not the store yet.
#[tokio::test]
async fn a_server_that_is_loading_is_waited_for() {
    let port = port();
    let slow = "key-load-delay 100000\nloading-process-events-interval-bytes 1024\n";
    let mut server = Process::start(port, slow, None).await;
    let options = waitgate::store::StoreOptions {
        call_timeout: Duration::from_secs(1),
        connect_timeout: Duration::from_secs(1),
    };
    let url = format!("redis://127.0.0.1:{port}");
    let store = waitgate::store::Store::open(&url, waitgate::clock::Clock::system(), options).unwrap();
    crate::harness::up(&store).await;
    let mut crowd = Crowd::new(&store, "42").await;
    crowd.join_many(3).await;
    let filler = "for n = 1, 20 do redis.call('SET', 'filler' .. n, string.rep('x', 2000)) end";
    server.cli(&["EVAL", filler, "0"]).await;
    assert_eq!(server.cli(&["SAVE"]).await.trim(), "OK");
    server.kill().await;
    within("it is gone", async || !store.is_up()).await;
    let mut loading = 0;
    let back = async {
        server
            .revive_with(async |said| {
                if said.contains("LOADING") {
                    loading += 1;
                    assert!(!store.is_up(), "it is not the store yet");
                    assert!(matches!(crowd.room.show().await, Err(StoreFault::Away)));
                }
            })
            .await;
    };
    back.await;
    assert!(loading > 0, "it was slow");
    crate::harness::up(&store).await;
    crowd.check().await;
}

#[test]
fn what_is_shown_of_a_store_reads_back_as_the_same() {
    let papers = papers();
    let file = papers.path("shop.toml");
    let text = "[store]\nurl = \"rediss+sentinel://a,b:7/shop/2\"\nuser = \"ann\"\npassword_file = \"store.password\"\nsentinel_user = \"bob\"\n\
                sentinel_password_file = \"store.password\"\n\
                tls = { roots = \"redis.pem\", name = \"x.example\", certificate = { chain = \"redis.pem\", key = \"redis.key\" } }\n";
    let shown = config::show(&config::parse(text, &file).unwrap());
    assert!(!shown.contains("let-me-in"), "{shown}");
    let again = config::parse(&shown, &file).unwrap();
    assert_eq!(config::show(&again), shown);
    let site = again.store.site.unwrap();
    assert_eq!((site.database, site.hosts.len(), site.is_secured()), (2, 2, true));
    assert_eq!(site.login.user.as_deref(), Some("ann"));
    assert_eq!(site.sentinel_login.user.as_deref(), Some("bob"));
    assert_eq!(site.login.password.unwrap().reveal(), "let-me-in");
}
