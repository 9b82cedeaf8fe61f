//! Join the line, or be let in at once: who gets a ticket, who a place, and who neither.

use std::time::Duration;

use http::Request;
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::backend::{Wire, http2, nothing, until};
use crate::gateway::{ADMISSION, Ask, LINE, SHOP, Site, TICKET, Visitor, said, shop_that};
use crate::harness::within;

/// Names and values.
type Headers = &'static [(&'static str, &'static str)];

/// The `Set-Cookie` line of this name.
fn cookie_line(reply: &crate::gateway::Reply, name: &str) -> Option<String> {
    let lines = reply.headers.get_all("set-cookie").iter().map(|line| line.to_str().unwrap());
    lines.filter(|line| line.starts_with(&format!("{name}="))).map(str::to_owned).next()
}

#[tokio::test]
async fn the_first_answer_hands_out_a_ticket_and_the_next_visit_gives_the_place() {
    let site = Site::open(LINE).await;
    let visitor = site.visitor();
    let first = visitor.go("/sale?colour=red").await;
    assert_eq!((first.status, first.page().as_str()), (200, "waiting"));
    let line = cookie_line(&first, TICKET).expect("a ticket");
    for part in ["; Path=/", "; HttpOnly", "; Secure", "; SameSite=Lax"] {
        assert!(line.contains(part), "{line}");
    }
    assert!(!line.contains("Domain") && cookie_line(&first, ADMISSION).is_none());
    assert_eq!((visitor.place().as_str(), site.in_line().await), ("", 0), "nobody is in line yet");

    let second = visitor.go("/sale?colour=red").await;
    assert_eq!((second.status, second.page().as_str()), (200, "waiting"));
    assert_eq!(site.in_line().await, 1);
    let place = visitor.place();
    assert!(!place.is_empty() && second.sets(TICKET).is_some());
    assert!(second.leads_to("/sale?colour=red"), "forms lead back to this very page");

    let third = visitor.go("/sale").await;
    assert!(third.sets(TICKET).is_none(), "what is known is not said again");
    assert_eq!((visitor.place(), site.in_line().await), (place, 1));
    assert!(site.backend.seen().is_empty());
}

/// CASE 10: the shop is let to see the very bytes of the query.
#[tokio::test]
async fn when_nobody_waits_the_first_request_goes_through() {
    let site = Site::open(SHOP).await;
    let target = "/sale/p?a=1&b=%2F%20+&b=2&c&x=%E2%9C%93&d[]=1|2&tok=";
    // The gateway learns with its ticks that the door is open to newcomers.
    within("let in with the first request", async || {
        let visitor = site.visitor();
        let reply = visitor.go(target).await;
        if !reply.is_shop() {
            return false;
        }
        assert!(visitor.cookie(ADMISSION).is_some() && visitor.cookie(TICKET).is_some());
        true
    })
    .await;
    let seen = site.backend.only();
    assert_eq!(seen.line(), format!("GET {target} HTTP/1.1"));
    assert_eq!(seen.one("waitgate-room"), "42");
    assert_eq!(seen.one("waitgate-user").len(), 22);
    assert_eq!(seen.one("waitgate-admission").split('.').count(), 3);
    assert!(seen.all("cookie").is_empty());
    assert_eq!(site.in_line().await, 0);
}

/// CASE 10: and so it is for whoever is inside already.
#[tokio::test]
async fn the_query_of_an_admitted_visitor_is_not_touched() {
    let site = Site::open(SHOP).await;
    let visitor = site.visitor();
    visitor.enter("/sale").await;
    let cookie = visitor.cookie(ADMISSION).unwrap();
    for target in [
        "/sale?tok=T&a=1",
        "/sale/p?a=1&tok=T&b=%2F%20+&b=2&c",
        "/sale?x=%E2%9C%93",
        "/sale?",
        "/sale?x={a:1}|[2]^`",
        "/sale?q=100%&%zz",
    ] {
        let mut wire = site.wire().await;
        let answer = wire
            .ask(format!(
                "GET {target} HTTP/1.1\r\nHost: shop.example\r\nCookie: a=1; {ADMISSION}={cookie}\r\n\r\n"
            ))
            .await;
        assert_eq!(answer.status(), 200, "{target}: {}", answer.head);
        let seen = site.backend.seen().pop().unwrap();
        assert_eq!(seen.line(), format!("GET {target} HTTP/1.1"));
        assert_eq!(seen.one("cookie"), "a=1");
    }
}

/// CASE 11: never HTML to a script, never 200, never a redirect; and it says where to wait.
#[tokio::test]
async fn a_script_gets_a_problem_and_a_person_a_page() {
    let site = Site::open(LINE).await;
    let html = "text/html,*/*;q=0.8";
    let scripts: [&[(&str, &str)]; 8] = [
        &[("accept", "application/json")],
        &[("accept", "*/*")],
        &[],
        &[("accept", html), ("x-requested-with", "XMLHttpRequest")],
        &[("accept", html), ("sec-fetch-mode", "cors")],
        &[("accept", html), ("sec-fetch-mode", "no-cors")],
        &[("accept", html), ("sec-fetch-mode", "same-origin")],
        &[("accept", "text/event-stream"), ("sec-fetch-mode", "cors")],
    ];
    for headers in scripts {
        for (method, path) in [("GET", "/sale/api"), ("POST", "/sale/api"), ("DELETE", "/sale/api")] {
            let ask = headers
                .iter()
                .fold(Ask::new(method, path), |ask, (name, value)| ask.header(name, *value));
            let reply = site.visitor().ask(ask).await;
            assert_eq!((reply.status, reply.code().as_str()), (429, "waiting_room"), "{headers:?}");
            let problem = reply.json();
            assert_eq!(problem["page_url"], "/sale");
            assert_eq!(problem["status_url"], "/.waitgate/42/status");
            assert_eq!(problem["events_url"], "/.waitgate/42/events");
            assert_eq!(reply.header("retry-after"), problem["retry_after_s"].to_string());
            assert!(problem["retry_after_s"].as_u64().unwrap() >= 1);
        }
    }
    for headers in [&[("accept", html)][..], &[("accept", "*/*"), ("sec-fetch-mode", "navigate")]] {
        let ask = headers
            .iter()
            .fold(Ask::get("/sale/api"), |ask, (name, value)| ask.header(name, *value));
        assert_eq!(site.visitor().ask(ask).await.page(), "waiting", "{headers:?}");
    }
    assert!(site.backend.seen().is_empty());
}

/// A program without a page waits by the addresses it was told.
#[tokio::test]
async fn a_program_waits_with_the_ticket_of_its_refusal() {
    let site = Site::open(LINE).await;
    let program = site.visitor();
    let refused = program.fetch("/sale/api").await;
    assert_eq!(refused.code(), "waiting_room");
    let urls = refused.json();
    assert_eq!(program.fetch(urls["status_url"].as_str().unwrap()).await.json()["state"], "waiting");
    assert_eq!(site.in_line().await, 1);
    site.tune(json!({"rate": "1000/s"})).await;
    within("called", async || program.status().await.json()["state"] == "turn").await;
    let entered = program.post(urls["enter_url"].as_str().unwrap()).await;
    assert_eq!((entered.status, &entered.json()["state"]), (200, &json!("admitted")));
    assert!(program.fetch("/sale/api").await.is_shop());
}

/// CASE 20: a form that is sent while its sender waits goes nowhere; the person goes on with a page.
#[tokio::test]
async fn a_form_is_answered_with_a_page_to_get_and_never_forwarded() {
    let site = Site::open(SHOP).await;
    site.tune(json!({"rate": 0})).await;
    let visitor = site.visitor();
    visitor.go("/sale").await;
    for (path, leads_to) in [
        ("/sale/cart?size=l", "/sale/cart?size=l"),
        ("/sale/claim", "/sale"),
        ("/sale/claim?x=1", "/sale"),
    ] {
        let reply = visitor.ask(Ask::post(path).form("item=7")).await;
        assert_eq!((reply.status, reply.ours().header("location")), (303, leads_to), "{path}");
    }
    assert_eq!(
        visitor
            .ask(Ask::post("/sale/cart").scripted().json(&json!({"item": 7})))
            .await
            .code(),
        "waiting_room"
    );
    site.tune(json!({"rate": "1000/s"})).await;
    visitor.enter("/sale").await;
    assert!(
        site.backend.seen().iter().all(|request| request.line().starts_with("GET ")),
        "{:?}",
        site.backend.seen()
    );
}

/// CASE 14: whoever keeps no cookie is no ghost in the line, and holds nobody up.
#[tokio::test]
async fn a_thousand_without_cookies_are_nobody() {
    let site = Site::open(&format!("{LINE}[limits]\naddress = {{ rate = 100000, burst = 100000 }}\n")).await;
    let mut flood = site.wire().await;
    let ask = "GET /sale HTTP/1.1\r\nHost: shop.example\r\nAccept: text/html\r\n\r\n";
    let mut people = Vec::new();
    for round in 0..1_000 {
        assert_eq!(flood.ask(ask).await.status(), 200);
        if round % 20 == 0 {
            let person = site.visitor();
            person.stand().await;
            people.push(person);
        }
    }
    let room = site.room().await;
    assert_eq!([&room["waiting"], &room["joined_total"]], [50, 50], "{room}");
    assert_eq!(site.in_line().await, 50);
    site.tune(json!({"rate": "1000/s"})).await;
    site.until_room("called", 50).await;
    for person in people {
        assert!(person.go("/sale").await.is_shop());
    }
}

/// CASE 29: reloads, tabs and streams of one visitor are one place, the first.
#[tokio::test]
async fn one_visitor_is_one_place_however_often_he_comes() {
    let site = Site::open(LINE).await;
    let visitor = site.visitor();
    visitor.stand().await;
    let place = visitor.place();
    site.visitor().stand().await;
    let visits: Vec<_> = (0..20)
        .map(|number| {
            let tab = visitor.clone();
            tokio::spawn(async move {
                match number % 4 {
                    0 => drop(tab.events().await.next().await),
                    1 => drop(tab.socket(&[]).await.expect("a socket")),
                    2 => drop(tab.status().await),
                    _ => drop(tab.go("/sale").await),
                }
            })
        })
        .collect();
    for visit in visits {
        visit.await.expect("no visit failed");
    }
    assert_eq!(site.in_line().await, 2);
    assert_eq!(visitor.place(), place);
    assert_eq!(visitor.status().await.json()["ahead"], 0);
    assert_eq!(site.room().await["joined_total"], 2);
}

/// CASE 22, 31: what a browser loads beside a page, and what no person looks at, joins no line.
#[tokio::test]
async fn pictures_probes_and_prefetches_do_not_join() {
    let site = Site::open("[rooms.42]\npaths = [\"/\"]\nrate = 0\n").await;
    let beside: [(&str, &str, Headers); 8] = [
        ("GET", "/favicon.ico", &[("sec-fetch-mode", "no-cors"), ("sec-fetch-dest", "image")]),
        (
            "GET",
            "/manifest.json",
            &[("sec-fetch-mode", "cors"), ("sec-fetch-dest", "manifest")],
        ),
        (
            "GET",
            "/sw.js",
            &[("sec-fetch-mode", "same-origin"), ("sec-fetch-dest", "serviceworker")],
        ),
        ("GET", "/app.css", &[("sec-fetch-mode", "no-cors"), ("sec-fetch-dest", "style")]),
        ("HEAD", "/p", &[("accept", "text/html")]),
        ("OPTIONS", "/p", &[("accept", "text/html")]),
        (
            "GET",
            "/p",
            &[("accept", "text/html"), ("sec-fetch-mode", "navigate"), ("sec-purpose", "prefetch")],
        ),
        ("GET", "/p", &[("accept", "text/html"), ("purpose", "prefetch")]),
    ];
    let person = site.visitor();
    for (method, path, headers) in beside {
        let ask = headers
            .iter()
            .fold(Ask::new(method, path), |ask, (name, value)| ask.header(name, *value));
        let reply = person.ask(ask).await;
        assert_eq!(reply.status, 429, "{method} {path}");
        assert_eq!(reply.ours().header("content-type"), "application/problem+json");
        if headers.iter().any(|(name, _)| *name == "sec-fetch-mode") || method == "OPTIONS" {
            assert!(reply.sets(TICKET).is_none(), "{method} {path} brought a ticket");
        }
    }
    person.forget_everything();
    let page = person.go("/p?x=1").await;
    assert!(page.leads_to(""), "the page leads back to itself");
    for (method, path, headers) in beside {
        let ask = headers
            .iter()
            .fold(Ask::new(method, path), |ask, (name, value)| ask.header(name, *value));
        assert!(person.ask(ask).await.sets(TICKET).is_none(), "{method} {path} changed the ticket");
    }
    assert_eq!(site.in_line().await, 0);
    person.go("/p").await;
    assert_eq!(site.in_line().await, 1);
    let again = Ask::post("/.waitgate/42/join")
        .form("next=")
        .header("referer", "http://other.example/p?x=1");
    let reply = site.visitor().ask(again).await;
    assert_eq!(
        (reply.status, reply.header("location")),
        (303, "/p?x=1"),
        "and only ever on this origin"
    );
    assert!(site.backend.seen().is_empty());
}

/// CASE 4, 19: without a cookie the page says so after the second round, and joins nobody.
#[tokio::test]
async fn whoever_keeps_no_cookie_is_told_so() {
    let site = Site::open(LINE).await;
    let hidden = |page: &str| page.contains("id=\"cookies\" class=\"note\" hidden");
    let first = site.visitor().go("/sale").await.text();
    assert!(hidden(&first) && first.contains("http-equiv=\"refresh\""), "{first}");
    let again = Ask::get("/sale").navigating().header("referer", "http://shop.example/sale");
    let second = site.visitor().ask(again).await;
    assert_eq!(second.page(), "waiting");
    assert!(!hidden(&second.text()), "the page says that cookies are needed");
    assert!(!second.text().contains("http-equiv=\"refresh\""), "and does not turn in circles");
    assert_eq!(site.in_line().await, 0);
}

/// CASE 62 (b): whoever must wait is told so before the body is sent, and never asked to send it.
#[tokio::test]
async fn a_refused_upload_is_never_asked_for() {
    let site = Site::open(LINE).await;
    let mut wire = site.wire().await;
    wire.send("POST /sale/upload HTTP/1.1\r\nHost: shop.example\r\nExpect: 100-continue\r\nContent-Length: 1048576\r\n\r\n")
        .await;
    let head = wire.head().await.expect("an answer");
    assert!(head.starts_with("HTTP/1.1 429 "), "{head}");
    assert!(wire.ends_within(Duration::from_secs(5)).await, "the connection is of no more use");
    let rest = String::from_utf8_lossy(&wire.buffer).into_owned();
    assert!(!rest.contains("100 Continue"), "{rest}");
    assert!(site.backend.seen().is_empty());
}

/// CASE 1: those who vanish from the line, and those whose time is over, hold up nobody.
#[tokio::test]
async fn the_gone_make_way_for_the_rest() {
    let site = Site::open(
        "[rooms.42]\npaths = [\"/sale\"]\nrate = 0\ncap = 10\nadmission_ttl = \"2s\"\nturn_ttl = \"30s\"\naway_after = \"300ms\"\ngrace = \"500ms\"\n",
    )
    .await;
    let mut people: Vec<(Visitor, Option<crate::gateway::Events>)> = Vec::new();
    for _ in 0..30 {
        let person = site.visitor();
        person.go("/sale").await;
        let mut events = person.events().await;
        events.until_state("waiting").await;
        people.push((person, Some(events)));
    }
    for (_, events) in &mut people[10..20] {
        *events = None; // the phone is off
    }
    site.until_room("waiting", 20).await;
    site.tune(json!({"rate": "1000/s"})).await;
    for (person, events) in &mut people[..10] {
        events.as_mut().unwrap().until_state("turn").await;
        assert_eq!(person.post("/.waitgate/42/enter").await.status, 200);
    }
    assert_eq!(site.room().await["sessions"], 10, "as many as may");
    for (_, events) in &mut people[20..] {
        events.as_mut().unwrap().until_state("turn").await;
    }
    let room = site.room().await;
    assert_eq!(
        [&room["called_total"], &room["waiting"]],
        [20, 0],
        "nobody was called in vain: {room}"
    );
    let gone = people[10].0.status().await.json();
    assert_eq!(
        [&gone["state"], &gone["reason"]],
        ["gone", "abandoned"],
        "and is told what happened"
    );
}

fn three_cookies() -> impl Fn(&crate::backend::Message) -> String {
    |_| said(200, "in").replacen("\r\n", "\r\nSet-Cookie: a=1; Path=/\r\nSet-Cookie: b=2\r\nSet-Cookie: a=3\r\n", 1)
}

/// CASE 7: the shop's cookies and ours stand beside each other, in order, on HTTP/1 and HTTP/2.
#[tokio::test]
async fn our_cookies_do_not_push_out_those_of_the_shop() {
    let site = Site::before(shop_that(three_cookies()).await, SHOP).await;
    let kept = |lines: Vec<String>| {
        let names: Vec<&str> = lines.iter().map(|line| line.split('=').next().unwrap()).collect();
        assert_eq!(names, ["a", "b", "a", TICKET, ADMISSION], "{lines:?}");
        assert_eq!(&lines[..3], ["a=1; Path=/", "b=2", "a=3"]);
    };
    let visitor = site.visitor();
    let entered = visitor.enter("/sale").await;
    let lines = entered.headers.get_all("set-cookie").iter();
    kept(lines.map(|line| line.to_str().unwrap().to_owned()).collect());

    // Let in once more with the ticket alone, over HTTP/2: the same admission comes again.
    let mut client = http2(site.public).await;
    let request = Request::get("http://shop.example/sale")
        .header("accept", "text/html")
        .header("cookie", format!("{TICKET}={}", visitor.cookie(TICKET).unwrap()))
        .body(nothing())
        .unwrap();
    let response = client.send_request(request).await.unwrap();
    let lines = response.headers().get_all("set-cookie").iter();
    kept(lines.map(|line| line.to_str().unwrap().to_owned()).collect());
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "in");
}

/// CASE 4: nothing that we say may be kept by anybody on the way.
#[tokio::test]
async fn none_of_our_answers_may_be_kept() {
    let site = Site::open(&format!("{SHOP}[limits]\nwaiting = {{ rate = \"4/h\", burst = 12 }}\n")).await;
    site.tune(json!({"rate": 0})).await;
    let visitor = site.visitor();
    visitor.stand().await;
    for ask in [
        Ask::get("/sale").navigating(),
        Ask::get("/sale/app.js").header("sec-fetch-mode", "no-cors"),
        Ask::get("/sale/api").scripted(),
        Ask::new("HEAD", "/sale"),
        Ask::post("/sale").form(""),
        Ask::get("/sale/%2e%2e/x").navigating(),
        Ask::get("/.waitgate/42/status").scripted(),
        Ask::get("/.waitgate/42/enter").scripted(),
        Ask::post("/.waitgate/42/enter").scripted(),
        Ask::post("/.waitgate/42/join").scripted(),
        Ask::get("/.waitgate/42/ws").scripted(),
        Ask::get("/.waitgate/nowhere/status").scripted(),
        Ask::post("/.waitgate/42/leave").form("next=/sale"),
    ] {
        visitor.ask(ask).await.ours();
    }
    visitor.events().await.headers["cache-control"]
        .to_str()
        .unwrap()
        .split(", ")
        .find(|word| *word == "no-store")
        .expect("no-store");
    let statuses = site.visitor();
    within("over the limit", async || statuses.status().await.ours().status == 429).await;
    assert!(site.backend.seen().is_empty());
}

/// A room before its time, and after it.
#[tokio::test]
async fn a_room_counts_down_opens_and_closes() {
    let site = Site::open(&format!("{LINE}opens_at = 2099-01-01T00:00:00Z\n")).await;
    let early = site.visitor();
    assert_eq!(early.go("/sale").await.page(), "countdown");
    let mut events = early.events().await;
    let view = events.until_state("countdown").await;
    assert_eq!((&view["opens_at_ms"], &view["ahead"]), (&json!(4_070_908_800_000_u64), &json!(0)));
    site.tune(json!({"rate": "1000/s", "opens_at": null})).await;
    events.until_state("turn").await;
    assert!(early.go("/sale").await.is_shop());
    site.tune(json!({"closes_at": "2026-01-02T00:00:00Z"})).await;
    within("closed", async || site.visitor().go("/sale").await.status == 403).await;
    let late = site.visitor();
    assert_eq!(late.go("/sale").await.page(), "closed");
    assert_eq!(late.fetch("/sale").await.code(), "closed");
    assert!(early.go("/sale").await.is_shop(), "whoever is in, is in");
}

/// CASE 31: what a bypass rule names, and health probes, are nobody's visit.
#[tokio::test]
async fn what_is_let_past_is_not_counted() {
    let site = Site::open(&format!("{LINE}bypass = [\"/sale/hook\", \"/sale/assets/*\", \"*.css\"]\n")).await;
    for path in ["/sale/hook", "/sale/assets/x.js", "/sale/app.css"] {
        let reply = site.visitor().go(path).await;
        assert!(reply.is_shop() && reply.sets(TICKET).is_none(), "{path}");
        let seen = site.backend.seen().pop().unwrap();
        assert!(seen.all("waitgate-user").is_empty() && seen.all("waitgate-admission").is_empty());
    }
    for path in [
        "/sale/hook/x",
        "/sale/assets",
        "/sale/app.css/x",
        "/sale/assets;/x.js",
        "/sale/assets/%2e%2e/x",
    ] {
        assert!(!site.visitor().go(path).await.is_shop(), "{path}");
    }
    assert_eq!(site.room().await["joined_total"], 0);
}

/// What a visitor may find in place of a shop that is down: the admission all the same.
#[tokio::test]
async fn a_bad_answer_of_the_shop_loses_nobody_the_turn() {
    let dead = crate::backend::Backend::start(|wire: Wire| async move { wire.reset() }).await;
    let site = Site::before(dead, SHOP).await;
    let visitor = site.visitor();
    within("let in", async || {
        visitor.go("/sale").await;
        visitor.cookie(ADMISSION).is_some()
    })
    .await;
    let reply = visitor.go("/sale").await;
    assert!(matches!(reply.status, 502..=504), "{reply:?}");
    let _page = reply.page();
    assert_eq!(site.room().await["sessions"], 1);
    until("the shop was asked", || site.backend.connections() > 0).await;
    let state: Value = visitor.status().await.json()["state"].clone();
    assert_eq!(state, "admitted");
}
