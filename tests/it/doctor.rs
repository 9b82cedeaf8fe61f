//! `waitgate doctor` with real servers: what is fine, what may bite, and what will.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::timeout;

use crate::crew::Crew;
use crate::harness::Redis;

/// Exit code, and what was said.
async fn doctor(file: &Path, visitors: &str) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_waitgate"));
    command
        .args(["doctor", "--config"])
        .arg(file)
        .args(["--visitors", visitors])
        .kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = timeout(Duration::from_secs(30), command.output()).await.expect("it ends").unwrap();
    let words = [output.stderr, output.stdout].concat();
    (output.status.code().unwrap(), String::from_utf8(words).unwrap())
}

#[tokio::test]
async fn what_will_do_is_fine_and_what_bites_is_named_with_its_cure() {
    let redis = Redis::start().await;
    for (setting, value) in [("maxmemory-policy", "noeviction"), ("appendonly", "yes"), ("maxmemory", "1gb")] {
        redis.ask::<()>(&["CONFIG", "SET", setting, value]).await;
    }
    let mut crew = Crew::on(redis, "rate = 0\nstock = 5\n").await;
    crew.more = String::new();
    let file = crew.dir.path().join("waitgate.toml");
    let text = crew.file(&crew.redis.url()).replace("[ops]", "max_connections = 100\n[ops]");
    std::fs::write(&file, &text).unwrap();
    let (code, words) = doctor(&file, "1000").await;
    assert_eq!(code, 0, "{words}");
    for part in [
        "noeviction",
        "append-only file",
        "1000 visitors fit",
        "runs scripts",
        "clock agrees",
        "enough for 100 connections",
    ] {
        assert!(words.contains(part), "{part}: {words}");
    }
    let (code, words) = doctor(&file, "50000000").await;
    assert_eq!(code, 2, "{words}");
    assert!(
        words.contains("nobody can join or claim") && words.contains("max_waiters"),
        "{words}"
    );
    crew.redis.ask::<()>(&["CONFIG", "SET", "appendonly", "no"]).await;
    let (code, words) = doctor(&file, "1000").await;
    assert_eq!(code, 1, "{words}");
    assert!(words.contains("forgets the count of the stock"), "{words}");
    crew.redis.ask::<()>(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).await;
    let (code, words) = doctor(&file, "1000").await;
    assert_eq!(code, 2, "{words}");
    assert!(
        words.contains("throws places and stock away: CONFIG SET maxmemory-policy noeviction"),
        "{words}"
    );
}

#[tokio::test]
async fn what_cannot_be_reached_or_read_is_said() {
    let mut redis = Redis::start().await;
    let url = redis.url();
    redis.kill().await;
    let crew = Crew::of("rate = 0\n").await;
    let file = crew.dir.path().join("waitgate.toml");
    std::fs::write(&file, crew.file(&url)).unwrap();
    let (code, words) = doctor(&file, "10").await;
    assert_eq!(code, 2, "{words}");
    assert!(words.contains("does not answer within 5 s"), "{words}");
    std::fs::write(&file, "[store]\nurl = 5\n").unwrap();
    let (code, words) = doctor(&file, "10").await;
    assert_eq!(code, 78, "{words}");
    assert!(words.contains("store.url"), "{words}");
}
