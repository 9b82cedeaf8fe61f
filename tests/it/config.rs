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
        "listen",
        "certificates",
        "certificate",
        "roots",
        "hsts",
        "url",
        "url_file",
        "program",
        "folder",
        "cookie",
        "algorithm",
        "key_file",
        "user",
        "password_file",
        "sentinel_user",
        "sentinel_password_file",
        "name",
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

/// `line:column: key: sentence` of each mistake, without the file's name.
fn places(text: &str) -> Vec<String> {
    let cut = |line: String| line.trim_start_matches("shop.toml:").to_owned();
    mistakes(text).into_iter().map(cut).collect()
}

/// Mistakes that one key makes, or two: each alone in its file.
const MISTAKES: &[(&str, &str)] = &[
    (
        "[tokens]\nissuer = \"a\\\"b\"",
        "2:10: tokens.issuer: this is 64 letters at most, of plain ASCII: it is in every admission",
    ),
    // Unknown keys.
    (
        "[server]\nlissten = \"127.0.0.1:1\"",
        "2:1: server.lissten: there is no such key; did you mean `listen`?",
    ),
    ("[sever]\nlisten = 1", "1:2: sever: there is no such key; did you mean `server`?"),
    (
        "[room.42]\nrate = 1",
        "1:7: room.42: there is no such key; a room of its own is written [rooms.42]",
    ),
    (
        "[limits]\n  address = { rat = 1 }",
        "2:15: limits.address.rat: there is no such key; did you mean `rate`?",
    ),
    (
        "[cookies]\nfoo = 1",
        "2:1: cookies.foo: there is no such key; here are same_site, secure",
    ),
    // Wrong types.
    ("server = 1", "1:10: server: this is a table, written [server], not a whole number"),
    (
        "[server]\nlisten = 8080",
        "2:10: server.listen: write an address and a port, like \"127.0.0.1:8080\", \"0.0.0.0:8080\" or \"[::]:8080\"",
    ),
    (
        "[cookies]\nsecure = \"yes\"",
        "2:10: cookies.secure: this is true or false, without quotes, not text",
    ),
    (
        "[pages]\ndefault_language = true",
        "2:20: pages.default_language: this is text in quotes, not true or false",
    ),
    (
        "[client]\ntrusted_proxies = \"10.0.0.1\"",
        "2:19: client.trusted_proxies: this is a list, written [\"…\", \"…\"], not text",
    ),
    (
        "[server]\nidle_timeout = 10",
        "2:16: server.idle_timeout: this is a time in quotes, not a whole number: write a time like \"250ms\", \"10s\", \"2min\", \"1h30m\" or \"7d\"",
    ),
    // Bad values.
    (
        "[server]\nidle_timeout = \"10 parsecs\"",
        "2:16: server.idle_timeout: `10 parsecs` is not a time: write a time like \"250ms\", \"10s\", \"2min\", \"1h30m\" or \"7d\"",
    ),
    (
        "[server]\nidle_timeout = \"0s\"",
        "2:16: server.idle_timeout: this is longer than 0",
    ),
    (
        "[server]\nmax_headers = -3",
        "2:15: server.max_headers: this is a whole number from 10 to 10000",
    ),
    (
        "[server]\nmax_header = \"4KiB\"",
        "2:14: server.max_header: this is a size from 8KiB to 1MiB",
    ),
    (
        "[server]\nmax_body = \"10 megs\"",
        "2:12: server.max_body: this is a size: write bytes (65536) or \"64KiB\", \"10MiB\", \"1GiB\"",
    ),
    (
        "[server]\nprefix = \"/\"",
        "2:10: server.prefix: this must not be the root: every path would be waitgate's own",
    ),
    (
        "[server]\nfallback = \"ftp://shop\"",
        "2:12: server.fallback: `ftp://shop` must start with http:// or https://",
    ),
    (
        "[server]\nfallback = \"http://shop/app\"",
        "2:12: server.fallback: `http://shop/app` must end after the host and port: requests keep their own path",
    ),
    (
        "[server]\nfallback = \"http://shop:99999\"",
        "2:12: server.fallback: `http://shop:99999` has no usable port",
    ),
    (
        "[client]\ntrusted_proxies = [\n  \"10.0.0.0/8\",\n  \"10.0.0.0/33\",\n]",
        "4:3: client.trusted_proxies: `10.0.0.0/33` is not an address or network: write an address or a network, like \"10.0.0.1\" or \"10.0.0.0/8\"",
    ),
    (
        "[limits]\nvisitor.rate = \"0/s\"",
        "2:16: limits.visitor.rate: this is more than 0: a limit of 0 would refuse everybody",
    ),
    (
        "[room]\nrate = \"fast\"",
        "2:8: room.rate: `fast` is not a rate: write 200, \"200/s\", \"100/min\" or \"50/h\"",
    ),
    (
        "[log]\nfilter = \"info,x=loud\"",
        "2:10: log.filter: `info,x=loud` is not a filter like \"info,waitgate::store=debug\": error parsing level filter: expected one of \"off\", \"error\", \"warn\", \"info\", \"debug\", \"trace\", or a number 0-5",
    ),
    (
        "[log]\nformat = \"xml\"",
        "2:10: log.format: this is one of \"auto\", \"human\", \"json\"",
    ),
    (
        "[store]\nurl = \"mysql://x\"",
        "2:7: store.url: a store is written redis://host:port/database, redis+unix:///path, redis+sentinel://host:port,host:port/name/database or redis+cluster://host:port,host:port; rediss:// and rediss+ speak TLS",
    ),
    (
        "[store]\nurl = \"redis://:word@x:1\"",
        "2:7: store.url: a password does not belong into this file: put the whole URL into a file of its own and name it as `store.url_file`, or the password alone and name it as `store.password_file`",
    ),
    (
        "[store]\nprogram = \"./no/such\"",
        "2:11: store.program: there is no program ./no/such",
    ),
    // More than one key.
    (
        "[cookies]\nsecure = false\nsame_site = \"none\"",
        "3:13: cookies.same_site: browsers refuse such a cookie unless it is `secure`",
    ),
    (
        "[ops]\nlisten = \"0.0.0.0:9090\"",
        "2:10: ops.listen: 0.0.0.0:9090 can be reached from other machines, so operators must prove who they are: set `ops.token_file`",
    ),
    (
        "[ops]\nlisten = \"127.0.0.1:8080\"",
        "2:10: ops.listen: this is also `server.listen`: visitors and operators need listeners of their own",
    ),
    (
        "[ops]\ntoken_file = \"/no/such/token\"",
        "2:14: ops.token_file: /no/such/token cannot be read: No such file or directory (os error 2)",
    ),
];

#[test]
fn each_mistake_says_where_it_is() {
    for (text, expected) in MISTAKES {
        assert_eq!(places(text), [*expected], "{text}");
    }
    let door = "on_store_loss = \"hold\"";
    assert!(
        places(&format!("{ROOM}{door}"))[0].starts_with("5:1: this is not TOML: duplicate key"),
        "{:?}",
        places(&format!("{ROOM}{door}"))
    );
}

/// Mistakes that a room makes, each behind [`ROOM`].
const ROOM_MISTAKES: &[(&str, &str)] = &[
    (
        "turn_ttl = \"19999ms\"",
        "5:12: rooms.42.turn_ttl: this is 20s at least: whoever polls may hear of the turn so late",
    ),
    (
        "rate = true",
        "5:8: rooms.42.rate: this is a rate, not true or false: write 200, \"200/s\", \"100/min\" or \"50/h\"",
    ),
    (
        "claim.path = \"/phones/42/buy\"",
        "5:14: rooms.42.claim.path: a room with a claim route needs `stock`: without it nothing could be claimed",
    ),
    (
        "stock = 1\nclaim.path = \"/buy\"",
        "6:14: rooms.42.claim.path: `/buy` is not under a path of this room, so no claim would ever reach it",
    ),
    (
        "stock = 1\nclaim.path = \"/phones/421\"",
        "6:14: rooms.42.claim.path: `/phones/421` is not under a path of this room, so no claim would ever reach it",
    ),
    (
        "stock = 1\nclaim.path = \"/phones/42/buy\"\nclaim.memory = \"5min\"",
        "7:16: rooms.42.claim.memory: this is shorter than `hold`: a reservation would be forgotten while it is held",
    ),
    (
        "stock = 1\nclaim.path = \"/phones/42/buy\"\nbypass = [\"*/buy\"]",
        "6:14: rooms.42.claim.path: `/phones/42/buy` is let past by the bypass `*/buy`: no claim would ask the gate",
    ),
    (
        "bypass = [\"*.css\", \"/phones/4*\"]",
        "5:20: rooms.42.bypass: `/phones/4*` would let everybody past the line to `/phones/42`",
    ),
    ("bypass = [\"/*\"]", "5:11: rooms.42.bypass: `/*` would let everything pass"),
    ("stock = -1", "5:9: rooms.42.stock: this is a whole number from 0 to 1000000000000"),
    (
        "opens_at = 2026-12-01T12:00:00",
        "5:12: rooms.42.opens_at: `2026-12-01T12:00:00` is not a moment: write it with its offset, like 2026-12-01T12:00:00+07:00 or 2026-12-01T05:00:00Z",
    ),
    (
        "opens_at = 2026-12-01T12:00:00Z\ncloses_at = 2026-12-01T12:00:00Z",
        "6:13: rooms.42.closes_at: the room would close before it opens",
    ),
    (
        "hosts = [\"http://shop\"]",
        "5:10: rooms.42.hosts: `http://shop` is not a host: write it like \"shop.example.com\", without http:// and without a port",
    ),
    (
        "origins = [\"https://shop/x\"]",
        "5:12: rooms.42.origins: `https://shop/x` is not an origin: write it like \"https://www.example.com\", without a path",
    ),
    (
        "login = { cookie = \"sid\", algorithm = \"HS256\" }",
        "5:20: rooms.42.login.cookie: a login from a cookie also needs `key_file`",
    ),
    (
        "login = { header = \"X User\" }",
        "5:20: rooms.42.login.header: `X User` is not the name of a header",
    ),
    (
        "login.algorithm = \"none\"",
        "5:19: rooms.42.login.algorithm: this is one of \"HS256\", \"RS256\", \"ES256\", \"EdDSA\"",
    ),
    (
        "[rooms.Sale]\npaths=[\"/s\"]\nupstream=\"http://x\"\non_store_loss=\"open\"",
        "5:8: rooms.Sale: a room's name is 1 to 32 of a-z, 0-9 and -",
    ),
    (
        "[rooms.b]\npaths=[\"/b\", \"/phones/42\"]\nupstream=\"http://x\"\non_store_loss=\"open\"",
        "6:14: rooms.b.paths: `/phones/42` is guarded by room 42 already, on the same host",
    ),
    (
        "[rooms.b]\npaths=[\"/b\", \"/b\"]\nupstream=\"http://x\"\non_store_loss=\"open\"",
        "6:14: rooms.b.paths: `/b` is here twice",
    ),
    (
        "[rooms.b]\npaths=[\"/.waitgate/x\"]\nupstream=\"http://x\"\non_store_loss=\"open\"",
        "6:8: rooms.b.paths: `/.waitgate/x` is waitgate's own: see `server.prefix`",
    ),
    (
        "[rooms.b]\npaths=[\"/b\"]\nupstream=\"http://x\"\nstock = 5\non_store_loss=\"open\"",
        "9:15: rooms.b.on_store_loss: a room with `stock` can only \"hold\": without the store nobody knows what is left to sell",
    ),
    (
        "[rooms.b]\npaths=[]\nupstream=\"http://x\"\non_store_loss=\"open\"",
        "6:7: rooms.b.paths: a room needs at least one path",
    ),
    (
        "[rooms.b]\npaths=[\"/b\"]\non_store_loss=\"open\"",
        "5:8: rooms.b.upstream: a room needs its backend: upstream = \"http://127.0.0.1:3000\"",
    ),
    (
        "[rooms]\nb = 3",
        "6:5: rooms.b: this is a table, written [rooms.b], not a whole number",
    ),
];

#[test]
fn each_mistake_of_a_room_says_where_it_is() {
    for (text, expected) in ROOM_MISTAKES {
        if text.starts_with("[rooms]") {
            assert_eq!(places("\n\n\n\n[rooms]\nb = 3"), [*expected]);
            continue;
        }
        assert_eq!(places(&format!("{ROOM}{text}")), [*expected], "{text}");
    }
    // The same path on another host, or a longer one, is another room's business.
    let other = "[rooms.b]\nhosts=[\"b.example\"]\npaths=[\"/phones/42\", \"/phones/42/x\"]\nupstream=\"http://x\"\non_store_loss=\"open\"";
    assert_eq!(places(&format!("{ROOM}{other}")), Vec::<String>::new());
}

#[test]
fn paths_that_could_be_read_two_ways_are_mistakes() {
    let bad = [
        "shop", "", "/a//b", "/a/", "/a/./b", "/a/../b", "/a?b", "/a#b", "/a b", "/é", "/a\\\\b", "/%61", "/%2f", "/%2F", "/%c3%a9", "/%2",
        "/%zz", "/%00", "/a*",
    ];
    for path in bad {
        let found = places(&ROOM.replace("/phones/42", path));
        assert!(
            found.len() == 1 && found[0].starts_with("2:10: rooms.42.paths: `"),
            "{path}: {found:?}"
        );
    }
    for path in ["/", "/a", "/a/b.c", "/%C3%A9", "/a;b=1", "/a%20b"] {
        assert_eq!(places(&ROOM.replace("/phones/42", path)), Vec::<String>::new(), "{path}");
    }
}

#[test]
fn all_mistakes_come_at_once_in_the_order_of_the_file() {
    let text = "[server]\nlisten = 1\nmax_headers = \"x\"\n\n[rooms.a]\npaths = [\"x\", \"/ok\", \"/y/\"]\nupstream = \"ftp://x\"\nrats = 1\n[rooms.b]\n";
    let found = places(text);
    let starts = [
        "2:10: server.listen: ",
        "3:15: server.max_headers: ",
        "5:8: rooms.a.on_store_loss: ",
        "6:10: rooms.a.paths: ",
        "6:22: rooms.a.paths: ",
        "7:12: rooms.a.upstream: ",
        "8:1: rooms.a.rats: there is no such key; did you mean `rate`?",
        "9:8: rooms.b.on_store_loss: ",
        "9:8: rooms.b.paths: ",
        "9:8: rooms.b.upstream: ",
    ];
    assert_eq!(found.len(), starts.len(), "{found:#?}");
    for (found, start) in found.iter().zip(starts) {
        assert!(found.starts_with(start), "{found}");
    }
    // A mistake in what all rooms start from is told once.
    let shared = format!("[room]\nturn_ttl = 3\n{ROOM}{}", ROOM.replace("42", "43"));
    assert_eq!(places(&shared).len(), 1, "{:?}", places(&shared));
    // A turn of just so long as somebody may not hear of it is none too short.
    assert_eq!(places(&format!("{ROOM}turn_ttl = \"20s\"\n")), Vec::<String>::new());
    assert_eq!(places(&format!("[room]\nturn_ttl = \"19s\"\n{ROOM}")).len(), 1);
    // And so are several places that are not TOML at all.
    let broken = places("a = \nb = [1\n[server\nx = 1 2\n");
    assert!(
        broken.len() > 1 && broken.iter().all(|line| line.contains("this is not TOML: ")),
        "{broken:#?}"
    );
}

#[test]
fn secrets_come_from_files_and_must_be_worth_the_name() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("shop.toml");
    let parse = |text: &str| {
        config::parse(text, &file)
            .err()
            .map(|mistakes| mistakes.to_string())
            .unwrap_or_default()
    };
    std::fs::write(folder.path().join("short"), "abc\n").unwrap();
    std::fs::write(folder.path().join("empty"), " \n").unwrap();
    std::fs::write(
        folder.path().join("pem"),
        "-----BEGIN PUBLIC KEY-----\nMFkw\n-----END PUBLIC KEY-----\n",
    )
    .unwrap();
    assert!(parse("[ops]\ntoken_file = \"short\"").contains("is too short: 16 characters at least"));
    assert!(parse("[ops]\ntoken_file = \"empty\"").contains("is empty"));
    let login = |algorithm: &str| format!("{ROOM}[rooms.42.login]\ncookie = \"c\"\nalgorithm = \"{algorithm}\"\nkey_file = \"pem\"");
    assert!(parse(&login("HS256")).contains("HS256 has a shared secret"));
    assert_eq!(parse(&login("ES256")), "");
    assert!(parse("[store]\nurl = \"redis://x\"\nurl_file = \"pem\"").contains("redis+cluster://host:port"));
}

#[test]
fn files_are_beside_the_config() {
    let config = config::parse("", Path::new("/etc/waitgate/shop.toml")).unwrap();
    assert_eq!(config.store.data_dir, Path::new("/etc/waitgate/waitgate-data"));
    assert_eq!(config.tokens.key_file, Path::new("/etc/waitgate/waitgate-data/keys.json"));
    let missing = config::load(Path::new("/no/such/file.toml")).unwrap_err().to_string();
    assert_eq!(
        missing,
        "/no/such/file.toml: this file cannot be read: No such file or directory (os error 2)"
    );
}

/// Every configuration that was ever shipped, or shown in the README, is kept in `tests/configs` and must go on being read.
#[test]
fn shipped_configs_keep_booting() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/configs");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let file = entry.unwrap().path();
        if file.extension().is_some_and(|extension| extension == "toml") {
            let config = config::load(&file).unwrap_or_else(|mistakes| panic!("{mistakes}"));
            let again = config::parse(&config::show(&config), &file).unwrap_or_else(|mistakes| panic!("{mistakes}"));
            assert_eq!(format!("{config:?}"), format!("{again:?}"), "{}", file.display());
            count += 1;
        }
    }
    assert!(count >= 2);
}

/// What happened to a ticket must be remembered for as long as the ticket can be shown.
#[test]
fn memory_outlives_tickets() {
    let memory = |text: &str| {
        let text = format!("{text}\n[rooms.r]\npaths = [\"/r\"]\nupstream = \"http://127.0.0.1:1\"\non_store_loss = \"hold\"\nstock = 1\n");
        let text = format!("{text}claim.path = \"/r/buy\"\nclaim.memory = \"2h\"\n");
        waitgate::config::parse(&text, std::path::Path::new("w.toml")).unwrap().rooms[0].memory
    };
    assert_eq!(memory("[tokens]\nticket_ttl = \"1h\"").as_secs(), 7200);
    assert_eq!(memory("[tokens]\nticket_ttl = \"3h\"").as_secs(), 10_800);
}
