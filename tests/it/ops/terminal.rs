//! `waitgate room`, the program itself, against a listener.

use std::path::Path;
use std::process::Output;

use serde_json::Value;
use tokio::process::Command;

use super::{Listener, hold, stock};
use crate::harness::{World, nowhere, stocked};

const TOKEN: &str = "0123456789abcdef";

/// What the program said and how it ended.
struct Said {
    code: Option<i32>,
    out: String,
    err: String,
}

async fn room(url: &str, words: &[&str]) -> Said {
    let mut command = Command::new(env!("CARGO_BIN_EXE_waitgate"));
    command.arg("room").args(words);
    for name in ["WAITGATE_TOKEN_FILE", "WAITGATE_OPERATOR", "RUST_LOG"] {
        command.env_remove(name);
    }
    command.env("WAITGATE_OPS_URL", url).env("USER", "ann").kill_on_drop(true);
    let Output { status, stdout, stderr } = command.output().await.expect("the program runs");
    Said {
        code: status.code(),
        out: String::from_utf8(stdout).expect("UTF-8"),
        err: String::from_utf8(stderr).expect("UTF-8"),
    }
}

impl Listener {
    async fn room(&self, words: &[&str]) -> Said {
        room(&format!("http://{}", self.address), words).await
    }

    async fn good(&self, words: &[&str]) -> String {
        let said = self.room(words).await;
        assert_eq!((said.code, said.err.as_str()), (Some(0), ""), "{words:?}");
        said.out
    }

    async fn bad(&self, words: &[&str]) -> String {
        let said = self.room(words).await;
        assert_eq!((said.code, said.out.as_str()), (Some(1), ""), "{words:?}: {}", said.err);
        said.err
    }
}

#[tokio::test]
async fn a_room_is_seen_and_changed_from_a_terminal() {
    let world = World::with(stocked(100)).await;
    let listener = Listener::on(&world, None).await;
    let list = listener.good(&["list"]).await;
    let rows: Vec<Vec<&str>> = list.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0][..3], ["ROOM", "STATE", "RATE"]);
    assert_eq!(rows[1], ["42", "open", "1000/s", "none", "0", "0", "0", "100", "0", "0"]);
    assert_eq!(rows[3], ["absent", "not", "ready"]);

    let shown = async || world.room.show().await.unwrap().unwrap();
    for (words, line) in [
        (&["admit", "42", "300/min"][..], "rate         5/s"),
        (&["cap", "42", "7"], "cap          7"),
        (&["stock", "42", "120"], "stock        120 = 120 free + 0 held + 0 sold"),
        (&["message", "42", "Back at two"], "message      Back at two"),
        (&["opens", "42", "2026-12-01T19:30:00+07:00"], "opens at     2026-12-01T12:30:00Z"),
        (&["opens", "42", "now"], "state        open"),
        (&["closes", "42", "2026-12-01T13:00:00Z"], "closes at    2026-12-01T13:00:00Z"),
        (&["closes", "42", "never"], "state        open"),
        (&["pause", "42"], "state        paused"),
        (&["resume", "42"], "state        open"),
    ] {
        let text = listener.good(words).await;
        assert!(text.lines().any(|written| written == line), "{line} in\n{text}");
    }
    let now = shown().await;
    assert_eq!((now.rate_milli, now.cap, now.message.as_str()), (5_000, 7, "Back at two"));
    assert!(!listener.good(&["message", "42", ""]).await.contains("message"));
    assert_eq!(shown().await.message, "");

    let json: Value = serde_json::from_str(&listener.good(&["show", "42", "--json"]).await).unwrap();
    assert_eq!(json["stock"]["stock"], 120);
    let audit: Vec<(String, Vec<String>)> = world.redis.ask(&["XREVRANGE", &world.key("audit"), "+", "-", "COUNT", "1"]).await;
    assert_eq!(audit[0].1[..2], ["who", "ann"]);
}

#[tokio::test]
async fn reservations_are_settled_from_a_terminal() {
    let world = World::with(stocked(2)).await;
    let listener = Listener::on(&world, None).await;
    let (paid, returned) = (hold(&world, "ann").await, hold(&world, "bob").await);
    assert!(listener.good(&["reservation", "42", &paid]).await.contains("state        held\n"));
    assert_eq!(listener.good(&["confirm", "42", &paid]).await, "r-ann: sold\n");
    assert_eq!(listener.good(&["confirm", "42", &paid]).await, "r-ann: was sold before\n");
    assert_eq!(listener.good(&["release", "42", &returned]).await, "r-bob: released\n");
    let refused = listener.bad(&["release", "42", &paid]).await;
    assert!(refused.contains("is paid: it cannot be released. (already_sold)"), "{refused}");
    assert!(
        listener
            .bad(&["confirm", "42", "../../rooms"])
            .await
            .contains("no_such_reservation")
    );
    assert_eq!(stock(&world).await.sold, 1);
}

#[tokio::test]
async fn what_goes_wrong_is_said_in_a_sentence() {
    let world = World::with(stocked(2)).await;
    let listener = Listener::on(&world, None).await;
    for (words, sentence) in [
        (&["show", "43"][..], "no room of that id"),
        (&["admit", "42", "fast"], "`fast` is not a rate"),
        (&["opens", "42", "noon"], "`opens_at` must be a time such as"),
        (&["show", "42", "--url", "https://127.0.0.1:1"], "speaks plain HTTP"),
        (&["show", "42", "--url", "localhost"], "write it as http://HOST:PORT"),
        (&["show", "42", "--token-file", "/nowhere"], "cannot read the token in /nowhere"),
    ] {
        let said = listener.bad(words).await;
        assert!(said.starts_with("waitgate: ") && said.contains(sentence), "{words:?}: {said}");
    }
    // A port that nobody listens on.
    let (_taken, nobody) = nowhere();
    let url = format!("http://{nobody}");
    let said = room(&url, &["list"]).await;
    assert_eq!(said.code, Some(1));
    for part in ["cannot reach", "Is the gateway running?", "--url", "`ops.listen`"] {
        assert!(said.err.contains(part), "{part} in {}", said.err);
    }
}

#[tokio::test]
async fn a_token_comes_from_a_file() {
    let world = World::with(stocked(2)).await;
    let listener = Listener::on(&world, Some(TOKEN)).await;
    let folder = tempfile::tempdir().unwrap();
    let (right, wrong) = (folder.path().join("right"), folder.path().join("wrong"));
    std::fs::write(&right, format!("{TOKEN}\n")).unwrap();
    std::fs::write(&wrong, "0123456789abcdeF").unwrap();
    let path = |file: &Path| file.to_str().unwrap().to_owned();
    assert!(
        listener
            .bad(&["list"])
            .await
            .contains("wants a token: name the file that holds it with --token-file")
    );
    let refused = listener.bad(&["list", "--token-file", &path(&wrong)]).await;
    assert!(refused.contains("does not take the token"), "{refused}");
    assert!(!refused.contains("0123456789"), "{refused}");
    assert!(listener.good(&["--token-file", &path(&right), "list"]).await.contains("42"));
    // Health checks need none.
    assert_eq!(listener.good(&["health"]).await, "alive\n");
}

#[tokio::test]
async fn health_is_an_exit_code() {
    let world = World::with(stocked(2)).await;
    let listener = Listener::on(&world, None).await;
    assert_eq!(listener.good(&["health"]).await, "alive\n");
    assert_eq!(listener.good(&["health", "--ready"]).await, "ready\n");
    listener.draining.cancel();
    assert_eq!(listener.good(&["health"]).await, "alive\n");
    assert_eq!(listener.bad(&["health", "--ready"]).await, "waitgate: not ready: draining\n");
}
