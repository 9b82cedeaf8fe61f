//! Settings: every mistake with its line and column, several at once, and files that keep booting for ever.

use std::path::Path;

use waitgate::config::{self, Config, DEFAULTS};

fn parse(text: &str) -> Result<Config, config::Mistakes> {
    config::parse(text, Path::new("shop.toml"))
}

/// The mistakes of a text, one a line.
fn mistakes(text: &str) -> Vec<String> {
    let mistakes = parse(text).err().map(|mistakes| mistakes.0).unwrap_or_default();
    mistakes.iter().map(ToString::to_string).collect()
}

/// A room that is right, for tests that put one thing wrong.
const ROOM: &str = r#"[rooms.42]
paths = ["/phones/42"]
upstream = "http://127.0.0.1:3000"
on_store_loss = "hold"
"#;

#[test]
fn the_documented_example_is_a_good_file() {
    let config = parse(DEFAULTS).unwrap();
    assert_eq!(config::show(&config), config::show(&parse("").unwrap()));
    assert!(config.rooms.is_empty());
    assert!(config.idle().unwrap().starts_with("no rooms"));
}

#[test]
fn every_documented_key_is_one_that_is_read() {
    // With the `# key = value` lines uncommented, apart from what excludes each other or needs files.
    let needs_files = [
        "token_file",
        "url",
        "url_file",
        "program",
        "folder",
        "cookie",
        "algorithm",
        "key_file",
    ];
    let uncommented: String = DEFAULTS
        .lines()
        .map(|line| {
            match line
                .strip_prefix("# ")
                .filter(|rest| rest.split_once(" = ").is_some_and(|(key, _)| !key.contains(' ')))
            {
                Some(rest) if !needs_files.iter().any(|key| rest.starts_with(&format!("{key} = "))) => format!("{rest}\n"),
                _ => format!("{line}\n"),
            }
        })
        .collect();
    assert_eq!(mistakes(&uncommented), Vec::<String>::new());
    assert_ne!(uncommented, DEFAULTS);
}

#[test]
fn what_is_shown_reads_back_as_the_same() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("ops.token"), "a-token-of-operators\n").unwrap();
    std::fs::write(folder.path().join("store.url"), "redis://:word@10.0.0.9:6379/3\n").unwrap();
    std::fs::write(folder.path().join("login.secret"), "0123456789abcdef0123456789abcdef").unwrap();
    let file = folder.path().join("shop.toml");
    let text = r#"
        [server]
        listen = "[::1]:8443"
        fallback = "http://[::1]:3000"
        header_timeout = "1500ms"
        [ops]
        listen = "0.0.0.0:9090"
        token_file = "ops.token"
        [store]
        url_file = "store.url"
        [client]
        trusted_proxies = ["10.0.0.0/8", "::1"]
        [limits]
        visitor.rate = "100/min"
        [room]
        cap = 7
        [rooms.b-2]
        hosts = ["Shop.Example.com"]
        paths = ["/b", "/c%20d"]
        bypass = ["/b/assets/*", "*.css"]
        upstream = "http://shop.internal"
        rate = "1.001/s"
        stock = 100
        on_store_loss = "hold"
        opens_at = 2026-12-01T12:00:00+07:00
        closes_at = "2026-12-01T05:00:00.250Z"
        [rooms.b-2.claim]
        path = "/b/buy"
        [rooms.b-2.login]
        cookie = "sid"
        algorithm = "HS256"
        key_file = "login.secret"
        [rooms.a]
        paths = ["/"]
        upstream = "http://127.0.0.1:1"
        on_store_loss = "open"
        login.header = "X-User"
    "#;
    let once = config::parse(text, &file).unwrap_or_else(|mistakes| panic!("{mistakes}"));
    let shown = config::show(&once);
    assert!(
        !shown.contains("word@") && !shown.contains("a-token") && !shown.contains("0123456789abcdef"),
        "{shown}"
    );
    let twice = config::parse(&shown, &file).unwrap_or_else(|mistakes| panic!("{mistakes}\n{shown}"));
    assert_eq!(format!("{once:?}"), format!("{twice:?}"));
    let ids: Vec<_> = once.rooms.iter().map(|room| room.id.as_str()).collect();
    assert_eq!(ids, ["b-2", "a"], "in the order of the file");
    assert_eq!(once.room("b-2").unwrap().cap, 7);
    assert_eq!(once.room("b-2").unwrap().opens_at, Some(1_796_101_200_000));
}
