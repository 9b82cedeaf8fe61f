//! Rooms that read the shop's own login: a person has one place however many devices he opens, and nobody has another's.

use std::io::Write as _;
use std::net::Ipv4Addr;

use jsonwebtoken::{EncodingKey, Header};
use serde_json::json;
use tempfile::NamedTempFile;
use waitgate::clock::Clock;

use crate::gateway::{ADMISSION, Ask, LINE, SHOP, Site, TICKET, Visitor, claimed, shop};
use crate::harness::within;

/// The login is a header of the proxy in front.
const BY_HEADER: &str = "login.header = \"X-Shop-User\"\n[client]\ntrusted_proxies = [\"127.0.0.1\"]\n";
const SECRET: &str = "a shop's secret of thirty-two byte";

/// A device of this user.
fn device(site: &Site, user: &str) -> Visitor {
    site.visitor().always("x-shop-user", user)
}

#[tokio::test]
async fn a_login_has_one_place_on_all_its_devices() {
    let site = Site::with_gates(2, shop().await, &format!("{SHOP}{BY_HEADER}")).await;
    site.tune(json!({"rate": 0})).await;
    let (phone, laptop) = (device(&site, "ann"), device(&site, "ann").moved_to(&site.gates[1]));
    let other = device(&site, "bob");
    phone.stand().await;
    other.stand().await;
    laptop.stand().await;
    assert_eq!((phone.place(), phone.ticket()), (laptop.place(), laptop.ticket()));
    assert_eq!(site.in_line().await, 2);
    site.tune(json!({"rate": "1000/s"})).await;
    phone.enter("/sale").await;
    laptop.enter("/sale").await;
    assert_eq!(phone.cookie(ADMISSION), laptop.cookie(ADMISSION), "one admission");
    within("and one session", async || site.room().await["sessions"] == 1).await;
    let (one, two) = (
        phone.claim("k1", &json!({"a": 1})).await,
        laptop.claim("k2", &json!({"b": 1})).await,
    );
    assert_eq!((one.status, two.code().as_str()), (201, "already_reserved"));
    let claims: Vec<_> = site
        .backend
        .seen()
        .into_iter()
        .filter(|request| claimed(request).is_some())
        .collect();
    assert_eq!((claims.len(), claims[0].one("waitgate-user")), (1, "ann"));
    assert_eq!(site.stock().await, [2, 1, 0]);
}

/// Even a first visit finds the place that the login has.
#[tokio::test]
async fn a_new_device_finds_the_place_with_its_first_request() {
    let site = Site::open(&format!("{LINE}{BY_HEADER}")).await;
    let phone = device(&site, "ann");
    phone.go("/sale").await;
    let laptop = device(&site, "ann");
    laptop.go("/sale").await;
    assert!(!phone.place().is_empty());
    assert_eq!((phone.place(), site.in_line().await), (laptop.place(), 1));
    // And when the turn has come, the first request of any device goes in.
    site.tune(json!({"rate": "1000/s"})).await;
    site.until_room("called", 1).await;
    assert!(device(&site, "ann").go("/sale").await.is_shop());
}

/// A place that a login was given with its first visit is given up like any other.
#[tokio::test]
async fn a_login_that_came_once_is_no_ghost() {
    let site = Site::open(&format!("{LINE}away_after = \"300ms\"\ngrace = \"500ms\"\n{BY_HEADER}")).await;
    device(&site, "ann").go("/sale").await;
    assert_eq!(site.in_line().await, 1);
    site.until_room("waiting", 0).await;
}

/// A ticket or an admission of somebody else is not this user's.
#[tokio::test]
async fn what_belongs_to_another_login_is_not_believed() {
    let site = Site::open(&format!("{SHOP}{BY_HEADER}")).await;
    let ann = device(&site, "ann");
    ann.enter("/sale").await;
    site.tune(json!({"rate": 0})).await;
    let waiter = device(&site, "cat");
    waiter.stand().await;
    let thief = device(&site, "bob");
    thief.set_cookie(ADMISSION, &ann.cookie(ADMISSION).unwrap());
    assert_eq!(thief.fetch("/sale/api").await.code(), "waiting_room");
    assert_eq!(thief.claim("k", &json!({})).await.code(), "waiting_room");
    assert!(thief.go("/sale").await.is_line());
    let header = Ask::get("/sale/api")
        .scripted()
        .header("waitgate-admission", ann.cookie(ADMISSION).unwrap());
    assert_eq!(thief.ask(header).await.code(), "waiting_room");
    thief.forget_everything();
    thief.set_cookie(TICKET, &waiter.cookie(TICKET).unwrap());
    thief.go("/sale").await;
    assert_ne!(
        (thief.ticket(), thief.place()),
        (waiter.ticket(), waiter.place()),
        "he has a place of his own"
    );
    thief.set_cookie(TICKET, &waiter.cookie(TICKET).unwrap());
    assert_eq!(thief.post("/.waitgate/42/leave").await.code(), "no_ticket");
    assert_eq!(waiter.status().await.json()["state"], "waiting");
    assert!(ann.go("/sale").await.is_shop());
    let seen = site.backend.seen();
    assert!(seen.iter().all(|request| request.one("waitgate-user") == "ann"), "{seen:?}");
}

/// The header is believed from the proxy only; whoever comes past it is nobody in particular.
#[tokio::test]
async fn a_login_header_of_a_stranger_is_nothing() {
    let site = Site::open(&format!("{LINE}{BY_HEADER}")).await;
    let ann = device(&site, "ann");
    ann.stand().await;
    let stranger = device(&site, "ann").at(Ipv4Addr::new(127, 0, 0, 5));
    stranger.stand().await;
    assert_ne!(stranger.ticket(), ann.ticket());
    assert_eq!(site.in_line().await, 2);
    for odd in ["", " ", "a b", &"x".repeat(129)] {
        let nobody = device(&site, odd);
        nobody.go("/sale").await;
        assert_eq!(nobody.place(), "", "{odd:.10} is no login: it waits for its ticket to come back");
    }
}

/// The login may be a token of the shop in a cookie, checked with the shop's key; leaving and starting again keep it one place.
#[tokio::test]
async fn a_login_may_be_a_token_of_the_shop() {
    let mut file = NamedTempFile::new().unwrap();
    writeln!(file, "{SECRET}").unwrap();
    let login = format!(
        "login = {{ cookie = \"shop\", algorithm = \"HS256\", key_file = \"{}\" }}\n",
        file.path().display()
    );
    let site = Site::open(&format!("{LINE}{login}")).await;
    let exp = Clock::system().now_ms() / 1000 + 600;
    let token = |claims: &serde_json::Value, secret: &str| {
        jsonwebtoken::encode(&Header::default(), claims, &EncodingKey::from_secret(secret.as_bytes()).unwrap()).unwrap()
    };
    let browser = |token: &str| {
        let visitor = site.visitor();
        visitor.set_cookie("shop", token);
        visitor
    };
    let ann = token(&json!({"sub": "ann", "exp": exp}), SECRET);
    let (phone, laptop) = (browser(&ann), browser(&ann));
    phone.stand().await;
    laptop.stand().await;
    assert_eq!((phone.place(), site.in_line().await), (laptop.place(), 1));
    for forged in [
        token(&json!({"sub": "ann", "exp": exp}), "another secret of thirty-two byte"),
        token(&json!({"sub": "ann", "exp": exp - 3_600}), SECRET),
        token(&json!({"sub": "ann"}), SECRET),
        "x.y.z".to_owned(),
    ] {
        let stranger = browser(&forged);
        stranger.go("/sale").await;
        assert_ne!(stranger.ticket(), phone.ticket());
    }
    assert_eq!(site.in_line().await, 1);
    // Leaving on one device is leaving; starting again anywhere is one new place for both.
    let place = phone.place();
    assert_eq!(laptop.post("/.waitgate/42/leave").await.json()["reason"], "left");
    assert_eq!(phone.status().await.json()["state"], "gone");
    assert_eq!(phone.post("/.waitgate/42/join").await.json()["state"], "waiting");
    assert!(phone.place() > place);
    laptop.go("/sale").await;
    assert_eq!((laptop.place(), site.in_line().await), (phone.place(), 1));
    // The shop's own cookie still reaches the shop, ours does not.
    site.tune(json!({"rate": "1000/s"})).await;
    phone.enter("/sale").await;
    let seen = site.backend.seen().pop().unwrap();
    assert_eq!(
        (seen.one("cookie"), seen.one("waitgate-user")),
        (format!("shop={ann}").as_str(), "ann")
    );
}
