//! Which room guards a request, through real sockets: spellings, hosts, bypasses, and the rest of the site.

use serde_json::{Value, json};

use crate::backend::{Backend, Message};
use crate::gateway::{ADMISSION, Ask, LINE, SHOP, Site, claimed};
use crate::harness::within;

/// A raw request with these bytes as its target.
fn raw(method: &str, target: &str, headers: &str) -> String {
    format!("{method} {target} HTTP/1.1\r\nHost: shop.example\r\n{headers}Content-Length: 0\r\n\r\n")
}

/// What a careless backend makes of a path: decoded as often as it changes, backslashes turned, parameters dropped, dots followed, in small letters.
fn careless(target: &str) -> String {
    let mut path = target.split('?').next().unwrap().to_owned();
    for _ in 0..4 {
        let mut decoded = Vec::new();
        let bytes = path.as_bytes();
        let mut at = 0;
        while at < bytes.len() {
            let hex = path.get(at + 1..at + 3).filter(|_| bytes[at] == b'%');
            match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
                Some(byte) => {
                    decoded.push(byte);
                    at += 3;
                }
                None => {
                    decoded.push(bytes[at]);
                    at += 1;
                }
            }
        }
        path = String::from_utf8_lossy(&decoded).into_owned();
    }
    let path = path.replace('\\', "/").to_ascii_lowercase();
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/').map(|part| part.split(';').next().unwrap()) {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            name => parts.push(name),
        }
    }
    format!("/{}", parts.join("/"))
}

/// CASE 64: each spelling of a guarded path is refused or guarded, and what passes is passed on byte for byte.
#[tokio::test]
async fn no_spelling_goes_by_the_room() {
    let rest = Backend::plain().await;
    let limits = "[limits]\naddress = { rate = 10000, burst = 10000 }\n";
    let site = Site::open(&format!(
        "{LINE}ignore_case = true\n{limits}server.fallback = \"http://{}\"\n",
        rest.address
    ))
    .await;
    let spellings = [
        "/sale",
        "/sale/",
        "/sale/x",
        "/public/../sale",
        "/public%2f..%2fsale",
        "//sale",
        "/./sale",
        "/%73ale",
        "/%2573ale",
        "/%252573ale",
        "/%25252573ale",
        "/sale;x",
        "/sale;x/y",
        "/;/sale",
        "/SALE",
        "/SaLe/x",
        "/%252e%252e/sale",
        "/%2e/sale",
        "/\\sale",
        "/public\\..\\sale",
        "/public/..;/sale",
        "/public/%2e%2e/sale",
        "/public/.%2e/sale",
        "/sale%2fx",
        "/sale%00",
        "/..%c0%af/sale",
        "/sale%3bx",
        "/%5csale",
        "http://shop.example/sale",
        "HTTP://shop.example//sale",
        "/sale?x=/public",
        "/sale#x",
    ];
    for target in spellings {
        for method in ["GET", "POST"] {
            let mut wire = site.wire().await;
            let status = wire.ask(raw(method, target, "")).await.status();
            assert!(status == 429 || status == 400, "{method} {target}: {status}");
        }
    }
    assert!(site.backend.seen().is_empty() && rest.seen().is_empty(), "{:?}", rest.seen());
    for target in [
        "/",
        "/public",
        "/sales",
        "/sal",
        "/x/sale",
        "/a..b/c",
        "/100%",
        "/%zz?x=%",
        "/pub;sale",
        "/p%20q?a=b%2Fc",
    ] {
        let status = site.wire().await.ask(raw("GET", target, "")).await.status();
        assert_eq!(status, 200, "{target}");
        let seen = rest.seen().pop().unwrap();
        assert_eq!(seen.line(), format!("GET {target} HTTP/1.1"), "byte for byte");
        assert!(!careless(target).starts_with("/sale/") && careless(target) != "/sale");
    }
}

/// CASE 64: whatever a careless backend would take for the guarded path never reached it.
#[tokio::test]
async fn whatever_a_careless_backend_reads_as_guarded_is_guarded() {
    let rest = Backend::plain().await;
    let limits = "[limits]\naddress = { rate = 100000, burst = 100000 }\n";
    let site = Site::open(&format!(
        "{LINE}ignore_case = true\n{limits}server.fallback = \"http://{}\"\n",
        rest.address
    ))
    .await;
    let pieces = [
        "/", "//", "\\", "sale", "SALE", "%73ale", "%2573ale", "s%61le", ".", "..", "%2e", "%2E%2e", "%252e", "%2f", "%252f", "%5c", ";",
        ";x", "%3b", "x", "%", "%zz", "public",
    ];
    let mut random = fastrand::Rng::with_seed(64);
    let mut wire = site.wire().await;
    for _ in 0..600 {
        let count = random.usize(1..8);
        let path: String = (0..count).map(|_| pieces[random.usize(..pieces.len())]).collect();
        let target = format!("/{path}");
        wire.send(raw("GET", &target, "")).await;
        match wire.answer().await {
            Some(answer) if answer.all("connection").contains(&"close") => wire = site.wire().await,
            Some(_) => {}
            None => wire = site.wire().await,
        }
    }
    let seen = rest.seen();
    assert!(seen.len() > 50, "{} passed: too few to mean anything", seen.len());
    for request in &seen {
        let target = request.line().split(' ').nth(1).unwrap();
        let read = careless(target);
        assert!(read != "/sale" && !read.starts_with("/sale/"), "{target} is read as {read}");
    }
}

/// CASE 64: no spelling of the claim route reaches the shop without a reservation, not even from the admitted.
#[tokio::test]
async fn no_spelling_of_the_claim_route_goes_by_the_gate() {
    let room = SHOP.replace("stock = 3", "stock = 1000");
    let site = Site::open(&format!("{room}ignore_case = true\nclaim.limit = 1\n")).await;
    let buyer = site.visitor();
    buyer.enter("/sale").await;
    let cookie = format!("Cookie: {ADMISSION}={}\r\n", buyer.cookie(ADMISSION).unwrap());
    let spellings = [
        "/sale/claim",
        "/sale/claim/",
        "/sale//claim",
        "//sale/claim",
        "/sale/./claim",
        "/sale/x/../claim",
        "/sale/%63laim",
        "/sale/%2563laim",
        "/sale%2fclaim",
        "/sale%252fclaim",
        "/sale/claim;x",
        "/sale;x/claim",
        "/sale/;/claim",
        "/SALE/Claim",
        "/sale\\claim",
        "/sale/%5cclaim",
        "/sale/claim%3bx",
        "/sale/claim?x=1",
        "http://shop.example/sale/claim",
    ];
    for target in spellings {
        let before = site.backend.seen().len();
        let answer = site.wire().await.ask(raw("POST", target, &cookie)).await;
        let reached = site.backend.seen().split_off(before);
        match reached.as_slice() {
            [] => assert!([201, 400, 409].contains(&answer.status()), "{target}: {}", answer.status()),
            [one] => assert!(claimed(one).is_some(), "{target} came without a reservation"),
            more => panic!("{target} came {} times", more.len()),
        }
    }
    let claims: Vec<Message> = site
        .backend
        .seen()
        .into_iter()
        .filter(|request| claimed(request).is_some())
        .collect();
    assert_eq!(
        (claims.len(), site.stock().await),
        (1, [999, 1, 0]),
        "one buyer, one claim, however spelled"
    );
}

/// CASE 16: whether case matters is said in the settings, and it is the backend's reading that counts.
#[tokio::test]
async fn case_matters_where_the_backend_says_so() {
    let rooms = "[rooms.42]\npaths = [\"/Black-Friday\"]\nrate = 0\nignore_case = true\n[rooms.43]\npaths = [\"/Tickets\"]\nrate = 0\n";
    let site = Site::open(rooms).await;
    for path in [
        "/Black-Friday",
        "/black-friday",
        "/BLACK-FRIDAY/",
        "/Black-Friday/x",
        "/black-FRIDAY/X",
        "/Tickets",
        "/Tickets/x",
    ] {
        assert_eq!(site.visitor().fetch(path).await.code(), "waiting_room", "{path}");
    }
    for path in ["/tickets", "/TICKETS/x", "/Black-Friday2", "/Black"] {
        assert!(site.visitor().fetch(path).await.is_shop(), "{path}");
    }
}

/// CASE 73: two sales on two hosts under one path have nothing to do with each other.
#[tokio::test]
async fn each_host_has_its_own_room() {
    let room = |id: &str, host: &str| {
        SHOP.replace("rooms.42", &format!("rooms.{id}"))
            .replace("paths", &format!("hosts = [\"{host}\"]\npaths"))
            .replace("stock = 3", "stock = 1")
    };
    let site = Site::open(&format!("{}{}", room("42", "one.example"), room("43", "two.example"))).await;
    let at = |host: &str| {
        let mut visitor = site.visitor();
        visitor.host = host.to_owned();
        visitor
    };
    let buyer = at("one.example");
    buyer.enter("/sale").await;
    assert_eq!(site.backend.seen().pop().unwrap().one("waitgate-room"), "42");
    let order = buyer.claim("k", &json!({})).await.json()["order"].as_str().unwrap().to_owned();
    site.settle(&order, "confirm").await;
    within("one is sold out", async || at("one.example").fetch("/sale").await.status == 409).await;
    for _ in 0..3 {
        assert_eq!(at("one.example").fetch("/sale").await.code(), "sold_out");
        assert_eq!(at("ONE.example:8080").fetch("/sale").await.code(), "sold_out");
        let other = at("two.example");
        other.enter("/sale").await;
        assert_eq!(site.backend.seen().pop().unwrap().one("waitgate-room"), "43");
    }
    // The admission to one is none to the other, whatever the browser sends along.
    let crossing = at("two.example");
    crossing.set_cookie(ADMISSION, &buyer.cookie(ADMISSION).unwrap());
    site.operate("PATCH", "/v1/rooms/43", &json!({"rate": 0})).await;
    within("two is shut", async || !at("two.example").go("/sale").await.is_shop()).await;
    assert!(!crossing.go("/sale").await.is_shop());
    let nowhere = at("three.example").fetch("/sale").await;
    assert_eq!((nowhere.status, nowhere.code().as_str()), (404, "not_found"));
    let page = at("three.example").go("/sale").await;
    assert_eq!((page.status, page.page().as_str()), (404, "not_found"));
}

/// What no room guards: to the room's own backend, or to the rest of the site where that is elsewhere.
#[tokio::test]
async fn the_rest_of_the_site_is_served_as_it_is() {
    let site = Site::open(LINE).await;
    assert!(site.visitor().go("/about").await.is_shop());
    let rest = Backend::plain().await;
    let site = Site::open(&format!(
        "{LINE}hosts = [\"shop.example\"]\nbypass = [\"/sale/hook\"]\nserver.fallback = \"http://{}\"\n",
        rest.address
    ))
    .await;
    let visitor = site.visitor();
    assert_eq!(visitor.go("/about").await.text(), "ok");
    let mut elsewhere = site.visitor();
    elsewhere.host = "www.example".to_owned();
    assert_eq!(elsewhere.go("/sale").await.text(), "ok");
    assert_eq!(rest.seen().len(), 2);
    let forged = Ask::post("/about")
        .header("waitgate-user", "admin")
        .header("waitgate-reservation", "r")
        .header("waitgate-room", "42");
    assert_eq!(visitor.ask(forged).await.text(), "ok");
    let seen = rest.seen().pop().unwrap();
    assert!(!seen.head.to_ascii_lowercase().contains("waitgate-"), "{}", seen.head);
    assert!(site.backend.seen().is_empty());
    let hook: Value = json!({"paid": true});
    assert_eq!(visitor.ask(Ask::post("/sale/hook").json(&hook)).await.status, 200);
}
