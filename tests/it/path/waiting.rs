//! The waiting routes over real sockets: status, events, sockets, entering, leaving, starting again, and who may ask.

use std::time::Duration;

use serde_json::json;

use crate::gateway::{ADMISSION, Ask, LINE, Reply, Site, TICKET, Visitor, claims};
use crate::harness::within;

mod numbers;
mod origins;
mod streams;

/// A room where everything ends soon, turns included.
const HASTY: &str = "[rooms.42]\npaths = [\"/sale\"]\nrate = 0\nadmission_ttl = \"1s\"\naway_after = \"300ms\"\ngrace = \"500ms\"\n";

async fn hasty(settings: &str) -> Site {
    Site::in_haste(settings, Duration::from_millis(700)).await
}

/// Somebody who has been called.
async fn called(site: &Site) -> Visitor {
    let visitor = site.visitor();
    visitor.stand().await;
    site.tune(json!({"rate": "1000/s"})).await;
    within("called", async || visitor.status().await.json()["state"] == "turn").await;
    site.tune(json!({"rate": 0})).await;
    visitor
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
    let site = hasty(HASTY).await;
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
    let site = hasty(&HASTY.replace("grace = \"500ms\"", "grace = \"1min\"")).await;
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
    let site = hasty(&HASTY.replace("away_after = \"300ms\"", "away_after = \"2s\"")).await;
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
    let site = hasty(HASTY).await;
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
