//! Other settings while people wait: applied whole or not at all, within a second, and nobody is dropped.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStderr, Command};
use waitgate::clock::Clock;

use crate::backend::soon;
use crate::gateway::{LINE, SHOP, Site, said, shop_that};
use crate::harness::within;
use crate::papers::Papers;

/// CASE 47: whatever may be changed is changed while streams stay open, and they go on telling what happens.
#[tokio::test]
async fn a_reload_drops_no_stream_and_no_connection() {
    let site = Site::open(LINE).await;
    let (waiter, other) = (site.visitor(), site.visitor());
    waiter.stand().await;
    other.stand().await;
    let mut events = waiter.events().await;
    events.until_state("waiting").await;
    let mut socket = other.socket(&[]).await.expect("a socket");
    socket.next().await.expect("a first view");
    let place = waiter.place();

    let another = shop_that(|_| said(200, "another shop")).await;
    let changed = format!(
        "{}server.fallback = \"http://{}\"\nbypass = [\"*.css\"]\nturn_ttl = \"90s\"\norigins = [\"https://www.shop.example\"]\n\
         [rooms.43]\npaths = [\"/other\"]\nrate = \"100/s\"\nupstream = \"http://{}\"\n\
         [limits]\nwaiting = {{ rate = \"100/s\", burst = 900 }}\n[client]\ntrusted_proxies = [\"127.0.0.9\"]\n[log]\nfilter = \"warn\"\n\
         [upstream]\nqueue_timeout = \"4s\"\n[pages]\ndefault_language = \"vi\"\n",
        LINE, another.address, another.address,
    );
    let reply = site.reload(&changed).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let told = reply.json();
    let keys: Vec<&str> = told["changed"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    for key in [
        "server.fallback",
        "rooms.42.bypass",
        "rooms.42.turn_ttl",
        "rooms.42.origins",
        "rooms.43.paths",
        "limits.waiting.burst",
        "client.trusted_proxies",
        "log.filter",
        "upstream.queue_timeout",
        "pages.default_language",
    ] {
        assert!(keys.contains(&key), "{key} in {keys:?}");
    }
    // In force with the very next request: a bypass, a fallback, a new room.
    assert_eq!(site.visitor().fetch("/sale/a.css").await.text(), "another shop");
    assert_eq!(site.visitor().fetch("/elsewhere").await.text(), "another shop");
    let newcomer = site.visitor();
    assert!(newcomer.enter("/other").await.text().contains("another shop"));
    assert!(site.visitor().go("/sale").await.text().contains("lang=\"vi\""));
    assert_eq!(site.operate("GET", "/v1/rooms/43", &Value::Null).await.json()["rate"], "100/s");

    // And nobody was dropped: the same streams tell what happens next.
    site.tune(json!({"message": "after the reload"})).await;
    events.until("the news", |view| view["message"] == "after the reload").await;
    while socket.next().await.expect("still open")["message"] != "after the reload" {}
    assert_eq!(waiter.status().await.json()["state"], "waiting");
    assert_eq!(waiter.place(), place);
    site.tune(json!({"rate": "1000/s"})).await;
    let turn = events.until_state("turn").await;
    let lasts = turn["turn_until_ms"].as_u64().unwrap() - turn["updated_at_ms"].as_u64().unwrap();
    assert!((80_000..=90_000).contains(&lasts), "the new time of a turn: {lasts}");
    assert!(waiter.enter("/sale").await.is_shop());

    let now = site.operate("GET", "/v1/config", &Value::Null).await.json();
    assert_eq!(now["mark"], told["mark"]);
    let mark = told["mark"].as_str().unwrap();
    assert_eq!(
        site.metric("waitgate_config_mark").await,
        Some(format!("waitgate_config_mark{{mark=\"{mark}\"}} 1"))
    );
    assert!(site.metric("waitgate_config_loaded_seconds").await.is_some());
}

/// Mistakes are all told, and nothing of such a file is in force; so it is with what only a restart changes.
#[tokio::test]
async fn a_reload_is_whole_or_not_at_all() {
    let site = Site::open(SHOP).await;
    let before = site.operate("GET", "/v1/config", &Value::Null).await.json();
    let wrong = format!("{SHOP}bypas = [\"*.css\"]\nhosts = [\"http://x\"]\n[limits]\ndeny = [\"127.0.0.1\"]\n");
    let reply = site.reload(&wrong).await;
    assert_eq!((reply.status, reply.code().as_str()), (422, "bad_settings"), "{}", reply.text());
    let problem = reply.json();
    let keys: Vec<&str> = problem["mistakes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["key"].as_str().unwrap())
        .collect();
    assert_eq!(keys, ["rooms.42.bypas", "rooms.42.hosts"], "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("did you mean `bypass`?"), "{problem}");
    assert_eq!(site.visitor().fetch("/sale").await.code(), "waiting_room", "nobody is denied");

    // A listener cannot be opened meanwhile: HTTPS that was not there at the start needs a restart, too.
    let papers = Papers::new();
    papers.issue("a", &["a.example"]);
    let folder = papers.folder.path().display();
    let secured =
        format!("tls.listen = \"127.0.0.1:0\"\ntls.certificates = [{{ chain = \"{folder}/a.pem\", key = \"{folder}/a.key\" }}]\n{SHOP}");
    let reply = site.reload(&secured).await;
    assert_eq!((reply.status, reply.code().as_str()), (422, "restart_needed"), "{}", reply.text());
    assert_eq!(reply.json()["keys"], json!(["tls.listen"]));

    let restart = format!("server.prefix = \"/.elsewhere\"\n{SHOP}bypass = [\"*.css\"]\n[tokens]\nissuer = \"somebody\"\n");
    let reply = site.reload(&restart).await;
    assert_eq!((reply.status, reply.code().as_str()), (422, "restart_needed"), "{}", reply.text());
    assert_eq!(reply.json()["keys"], json!(["server.prefix", "tokens.issuer"]));
    assert!(
        !site.visitor().fetch("/sale/a.css").await.is_shop(),
        "the bypass is not in force either"
    );

    let reply = site.reload("not toml at all").await;
    assert_eq!(reply.code(), "bad_settings");
    std::fs::remove_file(&site.file).unwrap();
    assert_eq!(site.operate("POST", "/v1/reload", &Value::Null).await.code(), "bad_settings");
    assert_eq!(site.operate("GET", "/v1/config", &Value::Null).await.json(), before);
    assert_eq!(
        site.metric("waitgate_config_reloads_total{outcome=\"refused\"}").await.as_deref(),
        Some("waitgate_config_reloads_total{outcome=\"refused\"} 5")
    );

    // Where a room begins is told to be without effect: the store has the word.
    let reply = site.reload(&SHOP.replace("stock = 3", "stock = 9")).await.json();
    assert_eq!(
        (&reply["changed"], &reply["without_effect"]),
        (&json!(["rooms.42.stock"]), &json!(["rooms.42.stock"]))
    );
    assert_eq!(site.stock().await, [3, 0, 0]);
}

/// A room that is taken out: whoever waits there is told that it is closed, by stream, socket and poll; put back in, it goes on with its line.
#[tokio::test]
async fn a_room_that_is_taken_out_tells_its_visitors() {
    let site = Site::open(LINE).await;
    let (waiter, other, third) = (site.visitor(), site.visitor(), site.visitor());
    for person in [&waiter, &other, &third] {
        person.stand().await;
    }
    let mut events = waiter.events().await;
    events.until_state("waiting").await;
    let mut socket = other.socket(&[]).await.expect("a socket");
    let only_another = "[rooms.43]\npaths = [\"/other\"]\nrate = \"100/s\"\n";
    assert_eq!(site.reload(only_another).await.status, 200);
    events.until_state("closed").await;
    assert_eq!(events.rest().await, [], "and the stream ends");
    socket.until_state("closed").await;
    assert_eq!(socket.next().await, Err(1000));
    assert_eq!(third.status().await.json()["state"], "closed");
    assert_eq!(third.post("/.waitgate/42/enter").await.code(), "closed");
    assert!(third.fetch("/sale").await.is_shop(), "nobody guards it any more");
    assert_eq!(site.operate("GET", "/v1/rooms/42", &Value::Null).await.status, 404);

    assert_eq!(site.reload(LINE).await.status, 200);
    within("the room is back", async || site.visitor().go("/sale").await.is_line()).await;
    within("in its place", async || third.status().await.json()["ahead"] == 2).await;
}

/// Limits and lists change at once; whoever was throttled stays so when the rate falls, and is helped when it rises.
#[tokio::test]
async fn limits_change_without_a_pardon() {
    let with = |limits: &str| format!("{LINE}[limits]\n{limits}\n");
    let site = Site::open(&with("address = { rate = \"4/h\", burst = 3 }")).await;
    let ask = async || site.visitor().fetch("/sale/api").await;
    within("used up", async || ask().await.code() == "rate_limited").await;
    let reply = ask().await;
    assert_eq!(
        reply.header("ratelimit-policy"),
        "\"address\";q=3;w=3000",
        "a rate is kept in thousandths a second"
    );
    assert_eq!(
        reply.header("ratelimit"),
        format!("\"address\";r=0;t={}", reply.header("retry-after"))
    );

    assert_eq!(site.reload(&with("address = { rate = \"5/h\", burst = 3 }")).await.status, 200);
    assert_eq!(ask().await.code(), "rate_limited", "another rate is no pardon");
    assert_eq!(site.reload(&with("address = { rate = \"1000/s\", burst = 3 }")).await.status, 200);
    within("helped at once", async || ask().await.code() == "waiting_room").await;

    assert_eq!(
        site.reload(&with("deny = [\"127.0.0.0/8\"]\nallow = [\"127.0.0.7\"]")).await.status,
        200
    );
    let denied = ask().await;
    assert_eq!((denied.status, denied.code().as_str()), (403, "denied"));
    for path in ["/.waitgate/42/status", "/.well-known/waitgate/jwks.json", "/elsewhere"] {
        assert_eq!(site.visitor().fetch(path).await.code(), "denied");
    }
    assert!(site.backend.seen().is_empty());
}

/// `SIGHUP` does the same, and never ends a gateway; `waitgate reload` says what changed, or why nothing did.
#[tokio::test]
async fn a_hang_up_is_a_reload() {
    let site = Site::open(LINE).await;
    let text = std::fs::read_to_string(&site.file).unwrap();
    let file = site.folder.path().join("process.toml");
    let mut gateway = Running::with(&site, &text);
    let serves = gateway.until("waitgate serves").await.pop().unwrap();
    let operators: SocketAddr = serves["operators"].as_str().unwrap().parse().unwrap();

    std::fs::write(&file, format!("{text}bypass = [\"*.css\"]\n")).unwrap();
    gateway.hang_up();
    let said = gateway.until("read again").await.pop().unwrap();
    assert_eq!(
        (&said["who"], &said["changed"]),
        (&json!("SIGHUP"), &json!("rooms.42.bypass")),
        "{said}"
    );
    std::fs::write(&file, format!("{text}bypas = [\"*.css\"]\n")).unwrap();
    gateway.hang_up();
    let said = gateway.until("not changed").await.pop().unwrap();
    assert!(said["refused"].as_str().unwrap().contains("did you mean `bypass`?"), "{said}");

    let reload = async || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_waitgate"));
        command.args(["reload", "--url", &format!("http://{operators}"), "--operator", "ana"]);
        command.env_remove("WAITGATE_TOKEN_FILE");
        let output = soon(command.output()).await.unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (code, _, error) = reload().await;
    assert_eq!(code, Some(1));
    assert!(
        error.contains("did you mean `bypass`?") && error.contains("(bad_settings)"),
        "{error}"
    );
    std::fs::write(&file, &text).unwrap();
    let (code, out, error) = reload().await;
    assert_eq!((code, error.as_str()), (Some(0), ""));
    assert!(out.starts_with("changed: rooms.42.bypass\n"), "{out}");
    assert_eq!(gateway.until("read again").await.pop().unwrap()["who"], "ana");
    assert!(gateway.child.try_wait().unwrap().is_none(), "it runs on");
}

/// A certificate that is over, or soon will be, is said to be at start and whenever settings are read again, though nothing changed but the file's
/// contents: browsers' and the one that backends are shown.
#[tokio::test]
async fn dates_of_certificates_are_looked_at_with_every_reading() {
    let site = Site::open(LINE).await;
    let papers = Papers::new();
    let lasting = |file: &str, days: u64| {
        let ends = Duration::from_millis(Clock::system().now_ms()) + Duration::from_secs(days * 24 * 3600);
        papers.issue_that(file, &["shop.example"], |params| {
            params.not_after = rcgen::date_time_ymd(1970, 1, 1) + ends - Duration::from_secs(24 * 3600 - 60);
        });
    };
    lasting("public", 4);
    lasting("ours", 0);
    let item = |file: &str| {
        format!(
            "{{ chain = {:?}, key = {:?} }}",
            papers.path(&format!("{file}.pem")),
            papers.path(&format!("{file}.key"))
        )
    };
    let settings = std::fs::read_to_string(&site.file).unwrap();
    let text = format!(
        "tls.listen = \"127.0.0.1:0\"\ntls.certificates = [{}]\nupstream.tls.certificate = {}\n{settings}",
        item("public"),
        item("ours")
    );
    let mut process = Running::with(&site, &text);
    let at_start = process.until("waitgate serves").await;
    assert_eq!(dates(&at_start), ["ours.pem: has expired", "public.pem: expires soon, 3"]);
    lasting("public", 0);
    lasting("ours", 400);
    process.hang_up();
    assert_eq!(dates(&process.until("read again").await), ["public.pem: has expired"]);
    lasting("public", 400);
    process.hang_up();
    assert_eq!(dates(&process.until("read again").await), Vec::<String>::new(), "both were renewed");
}

/// What was complained about in these lines of the log, in order of files.
fn dates(lines: &[Value]) -> Vec<String> {
    let mut said: Vec<String> = lines
        .iter()
        .filter(|line| line["level"] == "WARN" && line["file"].is_string())
        .map(|line| {
            let file = line["file"].as_str().unwrap().rsplit('/').next().unwrap();
            match line["days"].as_u64() {
                Some(days) => format!("{file}: expires soon, {days}"),
                None => format!("{file}: has expired"),
            }
        })
        .collect();
    said.sort();
    said
}

/// The real program, whose log is read line by line.
struct Running {
    child: Child,
    log: Lines<BufReader<ChildStderr>>,
}

impl Running {
    fn with(site: &Site, settings: &str) -> Self {
        let file = site.folder.path().join("process.toml");
        std::fs::write(&file, settings).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_waitgate"))
            .args(["serve", "--config", file.to_str().unwrap()])
            .env("RUST_LOG", "info")
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let log = BufReader::new(child.stderr.take().unwrap()).lines();
        Self { child, log }
    }

    /// The lines up to the one that says this.
    async fn until(&mut self, what: &str) -> Vec<Value> {
        let mut lines = Vec::new();
        loop {
            let line = soon(self.log.next_line()).await.unwrap().expect("it runs");
            let line: Value = serde_json::from_str(&line).unwrap_or_default();
            let found = line["message"].as_str().is_some_and(|message| message.contains(what));
            lines.push(line);
            if found {
                return lines;
            }
        }
    }

    fn hang_up(&self) {
        let pid = i32::try_from(self.child.id().unwrap()).unwrap();
        rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), rustix::process::Signal::HUP).unwrap();
    }
}
