//! Limits over real sockets: who is counted by what, and who is not held up by whom.

use std::net::Ipv4Addr;
use std::time::Duration;

use serde_json::json;
use waitgate::clock::Clock;

use crate::gateway::{ADMISSION, Ask, Gate, LINE, Reply, SHOP, Site, TICKET, Visitor};
use crate::harness::within;

/// Three requests of an address, and no more for a long time.
const THREE: &str = "[limits]\naddress = { rate = \"4/h\", burst = 3 }\n";

/// How many of these requests pass.
async fn passing(gate: &Gate, requests: impl IntoIterator<Item = Ask>) -> usize {
    let mut passed = 0;
    for ask in requests {
        let reply = gate.visitor().ask(ask.scripted()).await;
        match reply.code().as_str() {
            "waiting_room" => passed += 1,
            code => assert_eq!((reply.status, code), (429, "rate_limited")),
        }
    }
    passed
}

fn from(header: &str, value: impl Into<String>) -> Ask {
    Ask::get("/sale/api").header(header, value)
}

fn any(seed: u32) -> String {
    Ipv4Addr::from(0x0b00_0000 + seed * 7919).to_string()
}

/// CASE 74: whoever is trusted by nobody does not choose the address that is counted.
#[tokio::test]
async fn a_header_is_no_address() {
    let site = Site::open(&format!("{LINE}{THREE}")).await;
    for header in ["x-forwarded-for", "x-real-ip", "cf-connecting-ip", "true-client-ip"] {
        passing(&site, (0..10).map(|number| from(header, any(number)))).await;
    }
    let many = (0..1_000).map(|number| from("x-forwarded-for", any(number)).header("forwarded", format!("for={}", any(number))));
    assert_eq!(passing(&site, many).await, 0, "the budget was used up by the first");
    let elsewhere = site.visitor().at(Ipv4Addr::new(127, 0, 0, 2));
    assert_eq!(elsewhere.fetch("/sale/api").await.code(), "waiting_room");
}

/// CASE 74: behind a proxy of ours the right-most foreign entry is counted, and what cannot be read is no way out.
#[tokio::test]
async fn behind_a_trusted_proxy_the_last_foreign_entry_counts() {
    let site = Site::open(&format!(
        "{LINE}{THREE}[client]\ntrusted_proxies = [\"127.0.0.1\", \"10.0.0.0/8\"]\n"
    ))
    .await;
    let forged = (0..20).map(|number| from("x-forwarded-for", format!("{}, 203.0.113.7", any(number))));
    assert_eq!(passing(&site, forged).await, 3);
    let by_two = (0..20).map(|number| from("x-forwarded-for", format!("{}, 203.0.113.7, 10.0.0.9", any(number))));
    assert_eq!(passing(&site, by_two).await, 0, "another proxy of ours behind it changes nothing");
    let two_lines = (0..5).map(|number| from("x-forwarded-for", any(number)).header("x-forwarded-for", "203.0.113.8"));
    assert_eq!(passing(&site, two_lines).await, 3, "two lines are one list");
    let others = (0..20).map(|number| from("x-forwarded-for", any(number)));
    assert_eq!(passing(&site, others).await, 20, "and everybody else has a budget of his own");
    let garbage = (0..20).map(|number| from("x-forwarded-for", format!("rubbish{number}")));
    assert_eq!(passing(&site, garbage).await, 3, "no address is the proxy's address, not no limit");
    let other_names = (0..20).map(|number| from("x-real-ip", any(number)).header("forwarded", format!("for={}", any(number))));
    assert_eq!(passing(&site, other_names).await, 0);
}

/// CASE 79: one network of IPv6 is one visitor, and a mapped address is the address.
#[tokio::test]
async fn a_network_is_counted_as_one() {
    let site = Site::open(&format!("{LINE}{THREE}[client]\ntrusted_proxies = [\"127.0.0.1\"]\n")).await;
    let in_one = (0..50).map(|number| from("x-forwarded-for", format!("2001:db8:1:2:{number:x}::{number:x}")));
    assert_eq!(passing(&site, in_one).await, 3);
    assert_eq!(
        passing(&site, [from("x-forwarded-for", "2001:db8:1:3::1")]).await,
        1,
        "the next network is another"
    );
    let forms = [
        "198.51.100.4",
        "::ffff:198.51.100.4",
        "198.51.100.4:8080",
        "[::ffff:198.51.100.4]:443",
        "::ffff:c633:6404",
    ];
    assert_eq!(
        passing(&site, forms.map(|form| from("x-forwarded-for", form))).await,
        3,
        "one address in five spellings"
    );
}

/// Over the limit: said with a time, to a person as a page.
#[tokio::test]
async fn over_the_limit_is_said_with_a_time() {
    let site = Site::open(&format!("{LINE}[limits]\naddress = {{ rate = \"1/s\", burst = 1 }}\n")).await;
    let one = |reply: &Reply| {
        let after: u64 = reply.header("retry-after").parse().unwrap();
        assert!((1..=2).contains(&after), "{after}");
    };
    within("over", async || site.visitor().fetch("/sale").await.code() == "rate_limited").await;
    let page = site.visitor().go("/sale").await;
    if page.status == 429 {
        assert_eq!(page.page(), "rate_limited");
        one(&page);
    }
    let problem = site.visitor().fetch("/sale").await;
    assert_eq!(problem.code(), "rate_limited");
    one(&problem);
    within("and over it is", async || {
        site.visitor().fetch("/sale").await.code() == "waiting_room"
    })
    .await;
    assert!(site.backend.seen().is_empty());
}

/// `Retry-After` is right to the second: whoever comes that late is served, and a second earlier not yet.
#[tokio::test]
async fn the_time_that_is_told_is_right_to_the_second() {
    let site = Site::open(&format!("{LINE}[limits]\naddress = {{ rate = \"20/min\", burst = 1 }}\n")).await;
    within("over", async || site.visitor().fetch("/sale").await.code() == "rate_limited").await;
    let told = site.visitor().fetch("/sale").await;
    let asked = Clock::instant();
    let after_s: u64 = told.header("retry-after").parse().unwrap();
    within("and over it is", async || {
        site.visitor().fetch("/sale").await.code() == "waiting_room"
    })
    .await;
    let waited = asked.elapsed();
    let late = Duration::from_secs(after_s) + Duration::from_millis(500); // a busy machine's own delay
    let early = Duration::from_secs(after_s.saturating_sub(1)).saturating_sub(Duration::from_millis(100));
    assert!((early..late).contains(&waited), "told {after_s} s, and it was {waited:?}");
}

/// CASE 80: three hundred behind one address, each with a ticket: all wait, and all buy, while the address itself is over its limit.
#[tokio::test]
async fn an_office_behind_one_address_waits_and_buys() {
    let room = SHOP.replace("stock = 3", "stock = 300");
    let site = Site::open(&format!("{room}[limits]\naddress = {{ rate = \"4/h\", burst = 300 }}\n")).await;
    site.tune(json!({"rate": 0})).await;
    let mut people: Vec<Visitor> = Vec::new();
    for _ in 0..300 {
        let person = site.visitor();
        assert_eq!(person.go("/sale").await.status, 200);
        people.push(person);
    }
    assert_eq!(
        site.visitor().go("/sale").await.page(),
        "rate_limited",
        "whoever shows nothing shares what is left"
    );
    for person in &people {
        assert_eq!(person.go("/sale").await.page(), "waiting");
        assert_eq!(person.status().await.json()["state"], "waiting");
    }
    assert_eq!(site.in_line().await, 300);
    site.tune(json!({"rate": "1000/s"})).await;
    site.until_room("called", 300).await;
    for some in people.chunks(20) {
        let buying = some.iter().map(async |person| {
            let page = person.go("/sale").await;
            assert!(page.is_shop(), "{} {}", page.status, page.text());
            let bought = person.claim("k", &json!({})).await;
            assert_eq!(bought.status, 201, "{}", bought.text());
        });
        futures_util::future::join_all(buying).await;
    }
    assert_eq!(site.stock().await, [0, 300, 0]);
    assert_eq!(site.visitor().go("/sale").await.page(), "rate_limited");
}

/// Forged tokens are counted against the address, and whoever forges too much is not even looked at.
#[tokio::test]
async fn forgeries_are_counted() {
    let site = Site::open(&format!("{SHOP}[limits]\nforgery = {{ rate = \"4/h\", burst = 5 }}\n")).await;
    let honest = site.visitor();
    honest.enter("/sale").await;
    let forger = site.visitor();
    let mut answers = Vec::new();
    for number in 0..10 {
        forger.set_cookie(ADMISSION, &format!("forged.{number}.token"));
        answers.push(forger.fetch("/sale/api").await.code());
    }
    assert_eq!(answers, [vec!["waiting_room"; 5], vec!["rate_limited"; 5]].concat());
    forger.forget_everything();
    forger.set_cookie(TICKET, "forged.ticket.too");
    assert_eq!(forger.status().await.code(), "rate_limited");
    assert_eq!(forger.post("/.waitgate/42/enter").await.code(), "rate_limited");
    assert!(honest.go("/sale").await.is_shop(), "a good token of the same address is no forgery");
    let elsewhere = site.visitor().at(Ipv4Addr::new(127, 0, 0, 2));
    elsewhere.set_cookie(ADMISSION, "forged.by.another");
    assert_eq!(elsewhere.fetch("/sale/api").await.code(), "waiting_room");
}

/// A waiter never locks himself out: his page's own calls have their own budget, and he has his own beside his neighbours'.
#[tokio::test]
async fn waiting_has_a_budget_of_its_own() {
    let limits = "[limits]\naddress = { rate = \"4/h\", burst = 3 }\nvisitor = { rate = \"4/h\", burst = 4 }\nwaiting = { rate = \"4/h\", burst = 30 }\n";
    let site = Site::open(&format!("{LINE}{limits}")).await;
    let (one, other) = (site.visitor(), site.visitor());
    one.stand().await;
    other.stand().await;
    for _ in 0..10 {
        assert_eq!(one.status().await.json()["state"], "waiting");
    }
    let mut pages = Vec::new();
    for _ in 0..6 {
        pages.push(one.go("/sale").await.page());
    }
    assert_eq!(pages, ["waiting", "waiting", "waiting", "waiting", "rate_limited", "rate_limited"]);
    assert_eq!(one.status().await.json()["state"], "waiting", "the place is not lost by this");
    assert_eq!(other.go("/sale").await.page(), "waiting", "and nobody else is held up");
    within("the routes have a limit, too", async || one.status().await.status == 429).await;
    assert_eq!(other.go("/sale").await.page(), "waiting");
    assert_eq!(site.in_line().await, 2);
}

/// The admitted are counted by who they are, not by where they come from.
#[tokio::test]
async fn the_admitted_have_their_own_budget() {
    let limits = "[limits]\naddress = { rate = \"4/h\", burst = 20 }\nvisitor = { rate = \"4/h\", burst = 10 }\n";
    let site = Site::open(&format!("{SHOP}{limits}")).await;
    let (one, other) = (site.visitor(), site.visitor());
    one.enter("/sale").await;
    other.enter("/sale").await;
    within("one is over his limit", async || !one.go("/sale").await.is_shop()).await;
    assert_eq!(one.claim("k", &json!({})).await.code(), "rate_limited");
    assert!(other.go("/sale").await.is_shop());
    let elsewhere = one.clone().at(Ipv4Addr::new(127, 0, 0, 2));
    assert_eq!(
        elsewhere.fetch("/sale").await.code(),
        "rate_limited",
        "another address is no other visitor"
    );
}

/// CASE 77: a gateway that two thousand addresses come to remembers as many as it was told; the others share one bucket, and tidying pardons nobody.
#[tokio::test]
async fn addresses_are_remembered_up_to_a_number() {
    let limits = format!("{THREE}max_keys = 500\n[client]\ntrusted_proxies = [\"127.0.0.1\"]\n");
    let site = Site::open(&format!("{LINE}{limits}")).await;
    let first = || (0..4).map(|_| from("x-forwarded-for", "203.0.113.7"));
    assert_eq!(passing(&site, first()).await, 3);
    let flood = (0..2_000).map(|number| from("x-forwarded-for", any(number)));
    let passed = passing(&site, flood).await;
    assert!(
        (498..=502).contains(&passed),
        "one each for those remembered, and three for all others: {passed}"
    );
    let remembered = "waitgate_limiter_keys{limit=\"address\"} 500";
    within("tidied, and counted", async || site.metric(remembered).await.is_some()).await;
    assert_eq!(passing(&site, first()).await, 0, "whoever was over the limit still is");
}

/// CASE 83: without the store the limits of this process hold, the loss is seen on the metrics, and nobody has to do anything when it is back.
#[tokio::test]
async fn limits_hold_without_the_store() {
    let mut site = Site::open(&format!("{LINE}{THREE}")).await;
    let up = async |site: &Site, value: &str| site.metric("waitgate_store_up").await.is_some_and(|line| line.ends_with(value));
    within("the store is there", async || up(&site, " 1").await).await;
    site.redis.kill().await;
    within("its loss is seen", async || up(&site, " 0").await).await;
    assert_eq!(passing(&site, (0..20).map(|_| Ask::get("/sale/api"))).await, 3);
    site.redis.revive().await;
    within("it is back", async || up(&site, " 1").await).await;
    assert_eq!(passing(&site, [Ask::get("/sale/api")]).await, 0, "and what was used up still is");
}
