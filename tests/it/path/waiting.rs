//! The waiting routes over real sockets: status, events, sockets, entering, leaving, starting again, and who may ask.

use http::Request;
use http_body_util::BodyExt;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::backend::{nothing, soon};
use crate::gateway::{ADMISSION, Ask, LINE, Reply, SHOP, Site, TICKET, Visitor, claims, shop};
use crate::harness::within;

/// A room where everything ends soon.
const HASTY: &str =
    "[rooms.42]\npaths = [\"/sale\"]\nrate = 0\nturn_ttl = \"700ms\"\nadmission_ttl = \"1s\"\naway_after = \"300ms\"\ngrace = \"500ms\"\n";

/// Somebody who has been called.
async fn called(site: &Site) -> Visitor {
    let visitor = site.visitor();
    visitor.stand().await;
    site.tune(json!({"rate": "1000/s"})).await;
    within("called", async || visitor.status().await.json()["state"] == "turn").await;
    site.tune(json!({"rate": 0})).await;
    visitor
}

fn events() -> Ask {
    Ask::get("/.waitgate/42/events").header("accept", "text/event-stream")
}

#[tokio::test]
async fn status_says_where_one_stands() {
    let site = Site::open(LINE).await;
    let stranger = site.visitor().status().await;
    assert_eq!((stranger.status, stranger.code().as_str()), (403, "no_ticket"));
    let people: Vec<Visitor> = (0..3).map(|_| site.visitor()).collect();
    for person in &people {
        person.stand().await;
    }
    for (ahead, person) in people.iter().enumerate() {
        within("counted", async || person.status().await.json()["ahead"] == json!(ahead)).await;
        let reply = person.status().await;
        assert_eq!(reply.header("content-type"), "application/json");
        let view = reply.ours().json();
        assert_eq!(view["state"], "waiting");
        assert!(view["wait_low_s"].is_null(), "nobody is called, so nothing is promised: {view}");
        assert!(view["poll_after_s"].as_u64().unwrap() >= 3 && view["updated_at_ms"].is_u64());
    }
    site.tune(json!({"rate": "1/s", "message": "Chậm mà chắc"})).await;
    within("the message", async || people[2].status().await.json()["message"] == "Chậm mà chắc").await;
    site.tune(json!({"paused": true})).await;
    within("paused", async || people[2].status().await.json()["state"] == "paused").await;
}

/// CASE 32, 38: a stream that no proxy holds back, one snapshot however it comes back.
#[tokio::test]
async fn a_stream_begins_with_everything_there_is_to_know() {
    let site = Site::open(LINE).await;
    let visitor = site.visitor();
    visitor.stand().await;
    let foreign = format!("17-{}", "x".repeat(10_000));
    for id in ["", "1", "0-0", "end", foreign.as_str()] {
        let mut stream = visitor.events_with(events().header("last-event-id", id)).await;
        assert_eq!(stream.status, 200, "{id:.10}");
        let head = |name: &str| stream.headers[name].to_str().unwrap().to_owned();
        assert_eq!(head("content-type"), "text/event-stream");
        assert_eq!(head("cache-control"), "no-store, no-transform");
        assert_eq!(head("x-accel-buffering"), "no");
        let first = stream.next().await.expect("a first event");
        assert_eq!((first.name.as_str(), &first.id), ("message", &None));
        assert_eq!((&first.view()["state"], &first.view()["ahead"]), (&json!("waiting"), &json!(0)));
        assert!((1_000..4_000).contains(&stream.retry_ms.expect("retry")));
        site.tune(json!({"message": format!("{id:.10}!")})).await;
        let next = stream.next().await.expect("the next");
        assert_eq!(next.view()["message"], format!("{id:.10}!").trim(), "nothing in between");
    }
}

#[tokio::test]
async fn streams_follow_the_line_to_the_end() {
    let site = Site::open(LINE).await;
    let people: Vec<Visitor> = (0..3).map(|_| site.visitor()).collect();
    for person in &people {
        person.stand().await;
    }
    let mut stream = people[2].events().await;
    let mut socket = people[1].socket(&[]).await.expect("a socket");
    let first = socket.next().await.unwrap();
    assert_eq!(first["state"], "waiting");
    stream.until("two ahead", |view| view["ahead"] == 2).await;
    assert_eq!(people[0].post("/.waitgate/42/leave").await.status, 200);
    stream.until("one ahead", |view| view["ahead"] == 1).await;
    while socket.next().await.expect("open")["ahead"] != 0 {}
    site.tune(json!({"paused": true, "message": "a break"})).await;
    assert_eq!(stream.until_state("paused").await["message"], "a break");
    socket.until_state("paused").await;
    site.tune(json!({"paused": false, "rate": "1000/s"})).await;
    let turn = stream.until_state("turn").await;
    assert!(turn["turn_until_ms"].as_u64() > turn["updated_at_ms"].as_u64());
    socket.until_state("turn").await;

    assert_eq!(people[2].post("/.waitgate/42/enter").await.status, 200);
    let last = stream.until_state("admitted").await;
    assert!(last["turn_until_ms"].is_u64());
    assert_eq!(stream.rest().await, [], "and that is the end of the stream");
    assert_eq!(people[2].events().await.status, 204);
    people[1].post("/.waitgate/42/enter").await;
    socket.until_state("admitted").await;
    assert_eq!(socket.next().await, Err(1000));
    assert_eq!(people[1].socket(&[]).await.err(), Some(403));
}

/// CASE 35: after a final state the stream ends, and whoever comes back having heard it is told to stop coming.
#[tokio::test]
async fn a_final_state_is_told_once() {
    let site = Site::open(HASTY).await;
    let visitor = called(&site).await;
    let mut stream = visitor.events().await;
    let view = stream.until_state("gone").await;
    assert_eq!(view["reason"], "lapsed");
    assert!(stream.next().await.is_none());
    // A page that is loaded only now has not heard it; what it hears carries the id that its browser brings along.
    let mut late = visitor.events().await;
    let last = late.next().await.expect("the state");
    assert_eq!((&last.view()["state"], last.id.as_deref()), (&json!("gone"), Some("end")));
    assert!(late.next().await.is_none());
    let again = visitor.events_with(events().header("last-event-id", "end")).await;
    assert_eq!(again.status, 204);
    // Whoever starts again is in line, whatever an old stream had heard.
    assert_eq!(visitor.post("/.waitgate/42/join").await.json()["state"], "waiting");
    let mut fresh = visitor.events_with(events().header("last-event-id", "end")).await;
    assert_eq!(fresh.next().await.expect("a state").view()["state"], "waiting");
    // Without a ticket there is nothing to say at all.
    assert_eq!(site.visitor().events().await.status, 204);
}

/// CASE 35: over the limit, full or stopping: still a stream, which only says when to come back.
#[tokio::test]
async fn a_stream_that_cannot_be_had_is_a_stream_that_says_so() {
    let site = Site::open(&format!(
        "{LINE}max_waiters = 1\n[limits]\nwaiting = {{ rate = \"4/h\", burst = 12 }}\n"
    ))
    .await;
    let (first, second) = (site.visitor(), site.visitor());
    first.stand().await;
    let mut kept = first.events().await;
    kept.until_state("waiting").await;
    assert_eq!(second.go("/sale").await.status, 200);
    // The room of this gateway is full; the place is kept all the same.
    let full = second.status().await;
    assert_eq!((full.status, full.code().as_str()), (503, "room_full"));
    assert!(full.header("retry-after").parse::<u64>().unwrap() >= 5);
    assert_eq!(second.socket(&[]).await.err(), Some(503));
    assert_eq!(second.go("/sale").await.page(), "waiting");
    assert_eq!(site.in_line().await, 2);
    let says_come_back = async |visitor: &Visitor| {
        let mut stream = visitor.events().await;
        assert_eq!(
            (stream.status, stream.headers["content-type"].to_str().unwrap()),
            (200, "text/event-stream")
        );
        let events = stream.rest().await;
        assert_eq!(events.len(), 1);
        assert_eq!(
            (events[0].name.as_str(), events[0].view()["retry_ms"].as_u64()),
            ("bye", stream.retry_ms)
        );
        assert!(stream.retry_ms.unwrap() >= 1_000);
    };
    says_come_back(&second).await;
    within("over the limit", async || second.status().await.status == 429).await;
    says_come_back(&first).await;
    // The stream that is open stays open, and the end of the gateway is announced.
    site.tune(json!({"message": "still here"})).await;
    kept.until("the message", |view| view["message"] == "still here").await;
    site.stop.draining.cancel();
    let last = kept.next().await.expect("a goodbye");
    assert_eq!(last.name, "bye");
    assert!(kept.next().await.is_none());
}

/// CASE 42: a stopping gateway says goodbye to its sockets.
#[tokio::test]
async fn sockets_are_told_to_go_elsewhere() {
    let site = Site::open(LINE).await;
    let visitor = site.visitor();
    visitor.stand().await;
    let mut socket = visitor.socket(&[]).await.expect("a socket");
    socket.until_state("waiting").await;
    site.stop.draining.cancel();
    assert_eq!(socket.next().await, Err(1001));
}

/// CASE 41: a reader that stalls misses what is old and gets what is newest, and nobody else waits for it.
#[tokio::test]
async fn a_stalled_reader_gets_the_newest_and_stays() {
    let site = Site::open(LINE).await;
    let (slow, quick) = (site.visitor(), site.visitor());
    slow.stand().await;
    quick.stand().await;
    let mut reading = quick.events().await;
    // An HTTP/2 stream that takes 16 KiB and no more, until it is read.
    let socket = TcpStream::connect(site.public).await.unwrap();
    let (mut client, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(16 * 1024)
        .handshake(TokioIo::new(socket))
        .await
        .unwrap();
    tokio::spawn(connection);
    let request = Request::get("http://shop.example/.waitgate/42/events")
        .header("cookie", format!("{TICKET}={}", slow.cookie(TICKET).unwrap()))
        .body(nothing())
        .unwrap();
    let mut stalled = soon(client.send_request(request)).await.unwrap().into_body();
    let word = "w".repeat(190);
    for number in 0..400 {
        site.tune(json!({"message": format!("{word}{number:03}")})).await;
        reading.until("each", |view| view["message"] == format!("{word}{number:03}")).await;
    }
    let mut text = String::new();
    while !text.contains(&format!("{word}399")) {
        let frame = soon(stalled.frame()).await.expect("still open").expect("not broken");
        text.push_str(std::str::from_utf8(&frame.into_data().unwrap()).unwrap());
    }
    let received = text.matches("data: ").count();
    assert!(received < 390, "{received} of 400: nothing was left out");
    site.tune(json!({"message": "after all"})).await;
    while !text.contains("after all") {
        let frame = soon(stalled.frame()).await.expect("still open").expect("not broken");
        text.push_str(std::str::from_utf8(&frame.into_data().unwrap()).unwrap());
    }
    reading.until("the same", |view| view["message"] == "after all").await;
}

#[tokio::test]
async fn entering_is_for_the_called_and_once() {
    let site = Site::open(LINE).await;
    let visitor = site.visitor();
    assert_eq!(visitor.post("/.waitgate/42/enter").await.code(), "no_ticket");
    visitor.stand().await;
    let early = visitor.post("/.waitgate/42/enter").await;
    assert_eq!((early.status, early.code().as_str()), (409, "not_called"));
    assert_eq!(early.json()["view"]["state"], "waiting");
    assert!(visitor.cookie(ADMISSION).is_none());
    site.tune(json!({"rate": "1000/s"})).await;
    within("called", async || visitor.status().await.json()["state"] == "turn").await;
    let tab = site.visitor();
    tab.set_cookie(TICKET, &visitor.cookie(TICKET).unwrap());
    let (one, two) = tokio::join!(visitor.post("/.waitgate/42/enter"), tab.post("/.waitgate/42/enter"));
    assert_eq!((one.status, two.status), (200, 200));
    assert_eq!(one.json(), two.json(), "one admission for one place");
    assert_eq!(one.sets(ADMISSION), two.sets(ADMISSION));
    assert_eq!(site.room().await["sessions"], 1);
    let exp = claims(&visitor.cookie(ADMISSION).unwrap())["exp"].as_u64().unwrap();
    assert_eq!(exp, one.json()["expires_at_ms"].as_u64().unwrap() / 1000);
    assert!(visitor.go("/sale").await.is_shop());
}

/// CASE 2, 28: a turn that nobody takes, a session that is over, a page that was away for too long: each has its word, and a way back.
#[tokio::test]
async fn what_is_lost_has_a_name_and_a_way_back() {
    let site = Site::open(HASTY).await;
    let gone_with = async |visitor: &Visitor, reason: &str, code: &str| {
        within(reason, async || {
            let view = visitor.status().await.json();
            view["state"] == "gone" && view["reason"] == reason
        })
        .await;
        let refused = visitor.post("/.waitgate/42/enter").await;
        assert_eq!((refused.status, refused.code().as_str()), (410, code));
        assert_eq!(
            [&refused.json()["view"]["state"], &refused.json()["view"]["reason"]],
            ["gone", reason]
        );
        let page = visitor.go("/sale?x=1").await;
        assert_eq!((page.status, page.page().as_str()), (200, "gone"));
        let form = visitor.ask(Ask::post("/.waitgate/42/enter").form("next=%2Fsale")).await;
        assert_eq!((form.status, form.header("location")), (303, "/sale"));
        let old = visitor.place();
        let back = visitor.post("/.waitgate/42/join").await;
        assert_eq!((back.status, &back.json()["state"]), (200, &json!("waiting")), "{}", back.text());
        assert_ne!(visitor.place(), old);
    };
    gone_with(&called(&site).await, "lapsed", "turn_lapsed").await;
    let guest = called(&site).await;
    assert_eq!(guest.post("/.waitgate/42/enter").await.status, 200);
    gone_with(&guest, "ended", "session_ended").await;
    let sleeper = site.visitor();
    sleeper.stand().await;
    within("given up", async || {
        let fate: Option<String> = site.redis.ask(&["HGET", "{wg:42}:fates", &sleeper.ticket()]).await;
        fate.as_deref() == Some("abandoned")
    })
    .await;
    gone_with(&sleeper, "abandoned", "abandoned").await;
}

/// CASE 28: within the grace a page that slept finds its place.
#[tokio::test]
async fn a_page_that_slept_a_little_finds_its_place() {
    let site = Site::open(&HASTY.replace("grace = \"500ms\"", "grace = \"1min\"")).await;
    let (sleeper, other) = (site.visitor(), site.visitor());
    sleeper.stand().await;
    let place = sleeper.place();
    site.until_room("away", 1).await;
    other.stand().await;
    let mut stream = sleeper.events().await;
    assert_eq!(stream.until_state("waiting").await["ahead"], 0);
    site.until_room("away", 1).await; // now it is the other who is away
    assert_eq!(sleeper.place(), place);
    // Whoever is passed over while away comes next when back.
    drop(stream);
    site.until_room("away", 2).await;
    let third = site.visitor();
    third.stand().await;
    let mut stream = third.events().await;
    site.tune(json!({"rate": "1000/s"})).await;
    stream.until_state("turn").await;
    within("called when back", async || sleeper.status().await.json()["state"] == "turn").await;
}

/// Whoever only polls is here as much as whoever holds a stream.
#[tokio::test]
async fn a_poll_keeps_the_place() {
    let site = Site::open(&HASTY.replace("away_after = \"300ms\"", "away_after = \"2s\"")).await;
    let (polling, silent) = (site.visitor(), site.visitor());
    polling.stand().await;
    silent.stand().await;
    within("the silent one is given up", async || {
        assert_eq!(polling.status().await.json()["state"], "waiting");
        site.in_line().await == 1
    })
    .await;
    assert_eq!(polling.status().await.json()["state"], "waiting");
}

/// Nobody stays in the line by an answer alone: what joins or asks once, and is never heard of again, is given up.
#[tokio::test]
async fn whoever_joins_again_and_vanishes_is_given_up() {
    let site = Site::open(HASTY).await;
    let visitor = site.visitor();
    visitor.stand().await;
    visitor.post("/.waitgate/42/leave").await;
    assert_eq!(visitor.post("/.waitgate/42/join").await.json()["state"], "waiting");
    assert_eq!(site.in_line().await, 1);
    site.until_room("waiting", 0).await;

    let other = site.visitor();
    other.stand().await;
    site.until_room("away", 1).await;
    assert_eq!(other.post("/.waitgate/42/enter").await.code(), "not_called");
    site.until_room("waiting", 0).await;
}

/// CASE 25: leaving takes back exactly the cookie that was set, and tells the other tabs.
#[tokio::test]
async fn leaving_gives_the_place_up() {
    let site = Site::open(LINE).await;
    let visitor = site.visitor();
    visitor.stand().await;
    let tab = visitor.clone();
    let mut stream = tab.events().await;
    let ticket = visitor.cookie(TICKET).unwrap();
    let left = visitor.post("/.waitgate/42/leave").await;
    assert_eq!([&left.json()["state"], &left.json()["reason"]], ["gone", "left"]);
    let line = left.headers["set-cookie"].to_str().unwrap();
    assert_eq!(line, format!("{TICKET}=; Path=/; Max-Age=0; HttpOnly; Secure; SameSite=Lax"));
    assert!(visitor.cookie(TICKET).is_none());
    assert_eq!(stream.until_state("gone").await["reason"], "left");
    assert!(stream.next().await.is_none());
    assert_eq!(site.in_line().await, 0);
    visitor.set_cookie(TICKET, &ticket);
    assert_eq!(visitor.status().await.json()["reason"], "left", "an old ticket is no way back");
    assert_eq!(visitor.post("/.waitgate/42/enter").await.code(), "left");
}

#[tokio::test]
async fn forms_do_the_same_without_a_script() {
    let site = Site::open(LINE).await;
    let visitor = site.visitor();
    visitor.stand().await;
    let place = visitor.place();
    let form = |verb: &str| {
        Ask::post(&format!("/.waitgate/42/{verb}"))
            .form("next=%2Fsale%3Fa%3D1%26b%3D%252F")
            .header("origin", "http://shop.example")
    };
    let on = |reply: &Reply| (reply.status, reply.ours().header("location").to_owned());
    let here = (303, "/sale?a=1&b=%2F".to_owned());
    assert_eq!(on(&visitor.ask(form("enter")).await), here);
    assert_eq!(on(&visitor.ask(form("join")).await), here);
    assert_eq!(visitor.place(), place, "whoever is in line keeps the place");
    assert_eq!(on(&visitor.ask(form("leave")).await), here);
    assert_eq!(visitor.go("/sale").await.page(), "gone");
    assert_eq!(on(&visitor.ask(form("join")).await), here);
    assert!(visitor.place() > place);
    assert_eq!(visitor.go("/sale").await.page(), "waiting");
    site.tune(json!({"rate": "1000/s"})).await;
    within("called", async || visitor.status().await.json()["state"] == "turn").await;
    assert_eq!(on(&visitor.ask(form("enter")).await), here);
    assert!(visitor.go("/sale").await.is_shop());
}

/// CASE 23: no form leads to another origin.
#[tokio::test]
async fn a_form_leads_nowhere_else() {
    let site = Site::open(LINE).await;
    let visitor = site.visitor();
    visitor.stand().await;
    for next in [
        "//e.com",
        "/\\e.com",
        "%2F%2Fe.com",
        "%2F%5Ce.com",
        "\\\\e.com",
        "https:e.com",
        "https%3A%2F%2Fe.com",
        "/.//e.com",
        "/x/..//e.com",
        "/a%0D%0ASet-Cookie:x=1",
        "%2F%09%2Fe.com",
        "",
        "e.com",
    ] {
        for verb in ["enter", "join", "leave"] {
            let reply = visitor
                .ask(Ask::post(&format!("/.waitgate/42/{verb}")).form(&format!("next={next}")))
                .await;
            assert_eq!((reply.status, reply.header("location")), (303, "/"), "{next}");
        }
    }
    // An encoded one stays what it is: a strange path of this origin.
    let reply = visitor.ask(Ask::post("/.waitgate/42/enter").form("next=%2F%2509%2Fe.com")).await;
    assert_eq!(reply.header("location"), "/%09/e.com");
    let long = format!("next=/{}", "x".repeat(9_000));
    assert_eq!(visitor.ask(Ask::post("/.waitgate/42/enter").form(&long)).await.status, 413);
}

/// CASE 49: a foreign page opens no socket and does nothing in a visitor's name.
#[tokio::test]
async fn foreign_pages_do_not_act() {
    let site = Site::open(&format!("{LINE}origins = [\"https://www.example\"]\n")).await;
    let visitor = site.visitor();
    visitor.stand().await;
    let foreign: [&[(&str, &str)]; 6] = [
        &[("origin", "https://evil.example")],
        &[("origin", "null")],
        &[("origin", "http://shop.example:8443")],
        &[("origin", "http://shop.example.evil.example")],
        &[("origin", "http://www.example")],
        &[("sec-fetch-site", "cross-site")],
    ];
    for headers in foreign {
        assert_eq!(visitor.socket(headers).await.err(), Some(403), "{headers:?}");
        for verb in ["enter", "leave", "join"] {
            for ask in [Ask::post("").scripted(), Ask::post("").form("next=/sale")] {
                let ask = headers
                    .iter()
                    .fold(ask, |ask, (name, value)| ask.header(name, *value))
                    .to(&format!("/.waitgate/42/{verb}"));
                assert_eq!(visitor.ask(ask).await.code(), "foreign_origin", "{verb} {headers:?}");
            }
        }
    }
    assert_eq!(site.in_line().await, 1);
    for headers in [
        &[][..],
        &[("origin", "http://shop.example")],
        &[("origin", "https://shop.example")],
        &[("origin", "https://www.example")],
        &[("sec-fetch-site", "same-origin")],
    ] {
        let mut socket = visitor
            .socket(headers)
            .await
            .unwrap_or_else(|status| panic!("{status}: {headers:?}"));
        assert_eq!(socket.next().await.unwrap()["state"], "waiting");
    }
    for method in ["POST", "PUT", "DELETE"] {
        let reply = visitor.ask(Ask::new(method, "/.waitgate/42/ws").scripted()).await;
        assert_eq!((reply.status, reply.header("allow")), (405, "GET"));
    }
    let plain = visitor.fetch("/.waitgate/42/ws").await;
    assert_eq!(
        (plain.status, plain.header("upgrade"), plain.code().as_str()),
        (426, "websocket", "not_a_websocket")
    );
    assert_eq!(visitor.fetch("/.waitgate/42/enter").await.header("allow"), "POST");
    assert_eq!(visitor.fetch("/.waitgate/42/nothing").await.status, 404);
    assert_eq!(visitor.fetch("/.waitgate/43/status").await.status, 404);
}

/// CASE 13, 82: a script of a listed origin may read every answer of ours, refusals and faults included; others may read none.
#[tokio::test]
async fn listed_origins_may_read() {
    let settings = format!("{SHOP}origins = [\"https://www.example\"]\n[limits]\nwaiting = {{ rate = \"4/h\", burst = 8 }}\n");
    let mut site = Site::open(&settings).await;
    let buyer = site.visitor();
    buyer.enter("/sale").await;
    site.tune(json!({"rate": 0})).await;
    let visitor = site.visitor();
    visitor.stand().await;
    let readable = |reply: &Reply| {
        assert_eq!(reply.header("access-control-allow-origin"), "https://www.example", "{reply:?}");
        assert_eq!(reply.header("access-control-allow-credentials"), "true");
        assert_eq!(reply.header("access-control-expose-headers"), "retry-after, idempotency-replayed");
        assert_eq!(reply.header("vary"), "Origin");
    };
    let from = |ask: Ask, origin: &str| ask.scripted().header("origin", origin).header("sec-fetch-mode", "cors");
    let listed = |ask: Ask| from(ask, "https://www.example");
    for (ask, status) in [
        (Ask::get("/sale/api"), 429),
        (Ask::get("/.waitgate/42/status"), 200),
        (Ask::post("/.waitgate/42/enter"), 409),
        (Ask::get("/.waitgate/42/enter"), 405),
        (Ask::post("/sale/claim").json(&json!({})), 429),
    ] {
        let reply = visitor.ask(listed(ask.clone())).await;
        assert_eq!(reply.status, status, "{}", reply.text());
        readable(&reply);
        let reply = visitor.ask(from(ask, "https://evil.example")).await;
        assert!(!reply.headers.contains_key("access-control-allow-origin"), "{reply:?}");
        assert_eq!(reply.header("vary"), "Origin");
    }
    within("over the limit", async || {
        let reply = visitor.ask(listed(Ask::get("/.waitgate/42/status"))).await;
        readable(&reply);
        reply.status == 429
    })
    .await;
    site.redis.kill().await;
    let lost = buyer.ask(listed(Ask::post("/sale/claim").json(&json!({})))).await;
    assert_eq!(lost.status, 503, "{}", lost.text());
    readable(&lost);
    // What the shop itself says is the shop's to share.
    let shops = buyer.ask(listed(Ask::get("/sale/api"))).await;
    assert!(shops.is_shop() && !shops.headers.contains_key("access-control-allow-origin"));
}

/// CASE 82: a preflight is nobody's visit: not counted, not limited, not queued, not asked of the store.
#[tokio::test]
async fn preflights_cost_nothing() {
    let settings = format!(
        "{LINE}origins = [\"https://www.example\"]\n[limits]\nwaiting = {{ rate = \"4/h\", burst = 1 }}\naddress = {{ rate = \"4/h\", burst = 1 }}\n"
    );
    let mut site = Site::open(&settings).await;
    site.redis.kill().await;
    let browser = site.visitor();
    for _ in 0..5 {
        for path in ["/sale/api", "/.waitgate/42/enter", "/.waitgate/42/status"] {
            let ask = Ask::new("OPTIONS", path)
                .header("origin", "https://www.example")
                .header("access-control-request-method", "POST")
                .header("access-control-request-headers", "idempotency-key");
            let reply = browser.ask(ask).await;
            assert_eq!(reply.status, 204, "{path}: {}", reply.text());
            assert_eq!(reply.header("access-control-allow-origin"), "https://www.example");
            assert!(reply.header("access-control-allow-methods").contains("POST"));
            assert!(reply.header("access-control-allow-headers").contains("idempotency-key"));
            assert!(reply.sets(TICKET).is_none());
        }
    }
    assert_eq!(browser.go("/sale").await.status, 200, "the budget is untouched");
    assert_eq!(browser.status().await.status, 200);
}

#[tokio::test]
async fn the_page_speaks_the_language_of_the_visitor() {
    let site = Site::open(LINE).await;
    for (accepted, tag, word) in [
        ("vi-VN,vi;q=0.9,en;q=0.5", "vi", "Phòng chờ"),
        ("en-GB,en;q=0.9", "en", "Waiting room"),
        ("xx", "en", "Waiting room"),
    ] {
        let visitor = site.visitor().always("accept-language", accepted);
        for _ in 0..2 {
            let page = visitor.go("/sale").await;
            assert_eq!((page.page().as_str(), page.header("content-language")), ("waiting", tag));
            let text = page.text();
            assert!(text.contains(&format!("<html lang=\"{tag}\"")) && text.contains(word), "{accepted}");
            assert!(page.header("content-security-policy").contains("default-src 'none'"), "{page:?}");
        }
    }
    site.tune(json!({"closes_at": "2026-01-02T00:00:00Z"})).await;
    let late = site.visitor().always("accept-language", "vi");
    within("closed", async || late.go("/sale").await.status == 403).await;
    assert!(late.go("/sale").await.text().contains("<html lang=\"vi\""));
}

/// CASE 50: no token is taken from an address, be it for a stream, a socket or the shop; and none is written to the access log, even where it keeps queries.
#[tokio::test]
async fn a_token_in_the_address_is_no_token() {
    let site = Site::open(LINE).await;
    let log = site.folder.path().join("access.log");
    let logged = format!("{LINE}[log]\naccess = \"{}\"\nquery = true\n", log.display());
    assert_eq!(site.reload(&logged).await.status, 200);
    let visitor = called(&site).await;
    visitor.post("/.waitgate/42/enter").await;
    let (ticket, admission) = (visitor.cookie(TICKET).unwrap(), visitor.cookie(ADMISSION).unwrap());
    let stranger = site.visitor();
    for path in ["/.waitgate/42/status", "/.waitgate/42/events", "/.waitgate/42/ws", "/sale/api"] {
        let query =
            format!("{path}?{TICKET}={ticket}&{ADMISSION}={admission}&token={admission}&access_token={admission}&tok={ticket}&last=1");
        let ask = Ask::get(&query).scripted();
        let reply = if path.ends_with("/ws") {
            let ask = ask.header("connection", "Upgrade").header("upgrade", "websocket");
            let ask = ask.header("sec-websocket-version", "13");
            stranger.ask(ask.header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")).await
        } else {
            stranger.ask(ask).await
        };
        assert!([403, 204, 429].contains(&reply.status), "{path}: {}", reply.status);
        stranger.forget_everything();
    }
    assert!(site.backend.seen().is_empty());
    let lines = || std::fs::read_to_string(&log).unwrap_or_default();
    within("all are logged", async || lines().matches("last=1").count() == 4).await;
    let written = lines();
    for secret in [&ticket, &admission]
        .into_iter()
        .flat_map(|token| token.split('.'))
        .filter(|part| part.len() > 16)
    {
        assert!(!written.contains(secret), "{secret} in {written}");
    }
}

/// Two gateways, one line: a place given by one is known to the other, and its call is heard there.
#[tokio::test]
async fn any_gateway_knows_every_ticket() {
    let site = Site::with_gates(2, shop().await, LINE).await;
    let visitor = site.visitor();
    visitor.stand().await;
    let place = visitor.place();
    let elsewhere = visitor.moved_to(&site.gates[1]);
    let mut stream = elsewhere.events().await;
    stream.until_state("waiting").await;
    assert_eq!((elsewhere.place(), site.in_line().await), (place, 1));
    site.tune(json!({"rate": "1000/s"})).await;
    stream.until_state("turn").await;
    assert_eq!(visitor.post("/.waitgate/42/enter").await.status, 200);
    assert!(elsewhere.go("/sale").await.is_shop(), "and what one signs the other believes");
    let state: Value = elsewhere.status().await.json()["state"].clone();
    assert_eq!(state, "admitted");
}

/// A stream that ends because its reader left is counted no more.
#[tokio::test]
async fn streams_are_counted_while_they_are_open() {
    let site = Site::open(LINE).await;
    let visitor = site.visitor();
    visitor.stand().await;
    let open = async |kind: &str| {
        site.metric(&format!("waitgate_waiting_streams{{room=\"42\",kind=\"{kind}\"}}"))
            .await
    };
    let (stream, socket) = (visitor.events().await, visitor.socket(&[]).await.expect("a socket"));
    within("both are counted", async || {
        let (sse, ws) = (open("sse").await, open("ws").await);
        sse.is_some_and(|line| line.ends_with(" 1")) && ws.is_some_and(|line| line.ends_with(" 1"))
    })
    .await;
    drop((stream, socket));
    within("and gone", async || {
        let (sse, ws) = (open("sse").await, open("ws").await);
        sse.is_some_and(|line| line.ends_with(" 0")) && ws.is_some_and(|line| line.ends_with(" 0"))
    })
    .await;
}
