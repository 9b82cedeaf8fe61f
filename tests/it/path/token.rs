//! Tokens at the door: what is believed, for how long, and by whom; and what is not lets nobody in and breaks nothing.

use std::net::Ipv4Addr;

use data_encoding::BASE64URL_NOPAD;
use jsonwebtoken::jwk::JwkSet;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use serde_json::{Value, json};
use waitgate::clock::Clock;

use crate::gateway::{ADMISSION, Ask, SHOP, Site, TICKET, Visitor, claims, shop};
use crate::harness::within;

/// Forgeries are not limited here: each must be refused for what it is.
const PATIENT: &str = "[limits]\nforgery = { rate = 100000, burst = 100000 }\nvisitor = { rate = 100000, burst = 100000 }\naddress = { rate = 100000, burst = 100000 }\n";

/// The keys of a site, as whoever can read its key file has them.
struct Keys {
    kid: String,
    admissions: EncodingKey,
    tickets: EncodingKey,
}

impl Keys {
    fn of(site: &Site, token: &str) -> Self {
        let stored: Value = serde_json::from_slice(&std::fs::read(site.keys()).unwrap()).unwrap();
        let bytes = |name: &str| {
            BASE64URL_NOPAD
                .decode(stored["keys"][0][name].as_str().unwrap().as_bytes())
                .unwrap()
        };
        Self {
            kid: jsonwebtoken::decode_header(token).unwrap().kid.unwrap(),
            admissions: EncodingKey::from_ed_der(&bytes("admission_pkcs8")),
            tickets: EncodingKey::from_secret(&bytes("ticket_secret")).unwrap(),
        }
    }

    fn sign(&self, algorithm: Algorithm, claims: &Value) -> String {
        let mut header = Header::new(algorithm);
        header.kid = Some(self.kid.clone());
        let key = if algorithm == Algorithm::EdDSA {
            &self.admissions
        } else {
            &self.tickets
        };
        jsonwebtoken::encode(&header, claims, key).unwrap()
    }
}

/// A shop that is open to one visitor, who is inside, and then to nobody.
async fn site_with_a_visitor(settings: &str) -> (Site, Visitor) {
    let site = Site::open(&format!("{settings}{PATIENT}")).await;
    let visitor = site.visitor();
    visitor.enter("/sale").await;
    site.tune(json!({"rate": 0})).await;
    (site, visitor)
}

/// The token with one part replaced.
fn with_part(token: &str, index: usize, part: &str) -> String {
    let mut parts: Vec<&str> = token.split('.').collect();
    parts[index] = part;
    parts.join(".")
}

/// What is not let through: waits, with a page or a problem, and the shop hears nothing.
async fn is_outside(site: &Site, token: &str) {
    let seen = site.backend.seen().len();
    for name in [ADMISSION, TICKET] {
        let visitor = site.visitor();
        visitor.set_cookie(name, token);
        assert_eq!(visitor.fetch("/sale/api").await.code(), "waiting_room", "{token:.80}");
        visitor.set_cookie(name, token);
        assert!(visitor.go("/sale").await.is_line(), "{token:.80}");
        visitor.set_cookie(name, token);
        assert_eq!(visitor.claim("k", &json!({})).await.code(), "waiting_room", "{token:.80}");
        for verb in ["enter", "leave"] {
            visitor.forget_everything();
            visitor.set_cookie(name, token);
            let reply = visitor.post(&format!("/.waitgate/42/{verb}")).await;
            assert_eq!(reply.code(), "no_ticket", "{verb} {token:.80}");
        }
    }
    let in_header = Ask::get("/sale/api").scripted().header("waitgate-admission", token);
    assert_eq!(site.visitor().ask(in_header).await.code(), "waiting_room", "{token:.80}");
    assert_eq!(site.backend.seen().len(), seen, "the shop heard of {token:.80}");
}

/// CASE 8: whatever is malformed is "not admitted": never a fault, never let through.
#[tokio::test]
async fn what_is_malformed_lets_nobody_in() {
    let (site, visitor) = site_with_a_visitor(SHOP).await;
    let (good, ticket) = (visitor.cookie(ADMISSION).unwrap(), visitor.cookie(TICKET).unwrap());
    let none = BASE64URL_NOPAD.encode(br#"{"alg":"none"}"#);
    let long = "a".repeat(8_000);
    let tokens = [
        "",
        ".",
        "..",
        "a.b",
        "a.b.c",
        "a.b.c.d",
        "null",
        "%00",
        "\"\"",
        long.as_str(),
        &good[..good.len() - 2],
        &format!("{good}A"),
        &format!(".{good}"),
        &format!("{good}."),
        &with_part(&good, 0, &none),
        &with_part(&good, 0, "e30"),
        &with_part(&good, 1, "e30"),
        &with_part(&good, 2, ""),
        &with_part(&good, 0, ticket.split('.').next().unwrap()),
        &with_part(&good, 1, ticket.split('.').nth(1).unwrap()),
        &good.to_uppercase(),
    ];
    for token in tokens {
        is_outside(&site, token).await;
    }
    // Each token is good for one thing only.
    let swapped = site.visitor();
    swapped.set_cookie(ADMISSION, &ticket);
    swapped.set_cookie(TICKET, &good);
    assert_eq!(swapped.fetch("/sale/api").await.code(), "waiting_room");
    // Bytes that are no text, and tokens in places where none is looked for.
    for (line, query) in [
        (&b"Cookie: __Host-wga_42=\xff\xfe\r\n"[..], ""),
        (b"Waitgate-Admission: \xff\r\n", ""),
        (b"Waitgate-Admission: a\r\nWaitgate-Admission: b\r\n", ""),
        (b"", "?tok[]=x&tok=1&tok=2"),
        (b"Authorization: Bearer x\r\n", "?wga_42=x"),
    ] {
        let mut request = format!("GET /sale/api{query} HTTP/1.1\r\nHost: shop.example\r\n").into_bytes();
        request.extend_from_slice(line);
        request.extend_from_slice(b"\r\n");
        assert_eq!(
            site.wire().await.ask(request).await.status(),
            429,
            "{}",
            String::from_utf8_lossy(line)
        );
    }
    let mut wire = site.wire().await;
    wire.send("GET /sale HTTP/1.1\r\nHost: shop.example\r\nCookie: __Host-wga_42=\0\r\n\r\n")
        .await;
    assert_eq!(wire.answer().await.expect("an answer").status(), 400);
    let huge = format!("GET /sale?tok={} HTTP/1.1\r\nHost: shop.example\r\n\r\n", "x".repeat(1 << 20));
    let mut wire = site.wire().await;
    wire.send(huge).await;
    let status = wire.answer().await.map(|answer| answer.status());
    assert!(matches!(status, None | Some(414 | 431)), "{status:?}");
    assert_eq!(site.backend.seen().len(), 1, "the one visitor who is in");
    assert!(visitor.go("/sale").await.is_shop(), "and still is");
}

/// CASE 8, 86: signed by ourselves and yet wrong: other types, other audiences, things missing.
#[tokio::test]
async fn what_is_signed_must_also_be_right() {
    let (site, visitor) = site_with_a_visitor(SHOP).await;
    let good = visitor.cookie(ADMISSION).unwrap();
    let keys = Keys::of(&site, &good);
    let right = claims(&good);
    let with = |name: &str, value: Value| {
        let mut claims = right.clone();
        claims[name] = value;
        keys.sign(Algorithm::EdDSA, &claims)
    };
    let without = |name: &str| {
        let mut claims = right.clone();
        claims.as_object_mut().unwrap().remove(name);
        keys.sign(Algorithm::EdDSA, &claims)
    };
    // The way these are made is right: with nothing changed such a token is believed.
    let same = site.visitor();
    same.set_cookie(ADMISSION, &keys.sign(Algorithm::EdDSA, &right));
    assert!(same.fetch("/sale/api").await.is_shop());
    let mut wrong: Vec<String> = ["aud", "exp", "sub", "iss", "jti", "room", "epoch", "iat"].map(without).to_vec();
    wrong.extend([
        with("aud", json!("43")),
        with("aud", json!(["43"])),
        with("aud", json!([])),
        with("aud", json!(42)),
        with("room", json!("43")),
        with("iss", json!("another")),
        with("sub", json!("")),
        with("sub", json!(7)),
        with("jti", json!("../../x")),
        with("exp", json!("never")),
        with("exp", json!(-1)),
        with("exp", json!(1.5e300)),
        with("exp", json!(null)),
        with("exp", json!(0)),
        with("epoch", json!("x")),
        keys.sign(Algorithm::HS256, &right),
    ]);
    // A number that no JSON reader can hold.
    let text = right.to_string().replace(&format!("\"exp\":{}", right["exp"]), "\"exp\":1e400");
    let head = good.split('.').next().unwrap();
    let body = format!("{head}.{}", BASE64URL_NOPAD.encode(text.as_bytes()));
    let signature = jsonwebtoken::crypto::sign(body.as_bytes(), &keys.admissions, Algorithm::EdDSA).unwrap();
    wrong.push(format!("{body}.{signature}"));
    for token in &wrong {
        is_outside(&site, token).await;
    }
    let ticket = claims(&visitor.cookie(TICKET).unwrap());
    for (name, value) in [
        ("r", json!("43")),
        ("i", json!("short")),
        ("e", json!("x")),
        ("p", json!(-1)),
        ("exp", json!(1)),
    ] {
        let mut claims = ticket.clone();
        claims[name] = value;
        is_outside(&site, &keys.sign(Algorithm::HS256, &claims)).await;
    }
}

/// How exactly a gateway knows the store's clock on a busy machine, ms.
const CLOCK_ERROR_MS: u64 = 100;

/// CASE 85: a token is good until the second it names by the store's clock, and not a moment longer, remembered or not.
#[tokio::test]
async fn an_admission_ends_when_it_says() {
    let (site, visitor) = site_with_a_visitor(SHOP).await;
    let good = visitor.cookie(ADMISSION).unwrap();
    let keys = Keys::of(&site, &good);
    let until = |exp_s: u64| {
        let mut claims = claims(&good);
        claims["exp"] = json!(exp_s);
        keys.sign(Algorithm::EdDSA, &claims)
    };
    let now_ms = || Clock::system().now_ms();
    let now_s = now_ms() / 1000;
    for exp_s in [now_s - 1, now_s, now_s - 60] {
        is_outside(&site, &until(exp_s)).await;
    }
    let exp_s = now_s + 3;
    let guest = site.visitor();
    guest.set_cookie(ADMISSION, &until(exp_s));
    assert!(guest.fetch("/sale/api").await.is_shop());
    within("over", async || {
        let asked_ms = now_ms();
        let inside = guest.fetch("/sale/api").await.is_shop();
        let end_ms = exp_s * 1000;
        assert!(
            !inside || asked_ms < end_ms + CLOCK_ERROR_MS,
            "let in {} ms late",
            asked_ms - end_ms
        );
        assert!(inside || now_ms() + CLOCK_ERROR_MS >= end_ms, "put out too early");
        !inside
    })
    .await;
}

/// CASE 25: of two cookies with our name, one that is good is enough, whichever comes first.
#[tokio::test]
async fn a_stale_cookie_does_not_hide_a_good_one() {
    let (site, visitor) = site_with_a_visitor(SHOP).await;
    let good = visitor.cookie(ADMISSION).unwrap();
    let old = with_part(&good, 2, "AAAA");
    let waiter = site.visitor();
    waiter.stand().await;
    let ticket = waiter.cookie(TICKET).unwrap();
    for (first, second) in [(&good, &old), (&old, &good)] {
        let one_line = format!("Cookie: {ADMISSION}={first}; x=1; {ADMISSION}={second}\r\n");
        let two_lines = format!("Cookie: {ADMISSION}={first}\r\nCookie: {ADMISSION}={second}\r\n");
        for lines in [one_line, two_lines] {
            let request = format!("GET /sale/api HTTP/1.1\r\nHost: shop.example\r\n{lines}\r\n");
            assert_eq!(site.wire().await.ask(request).await.status(), 200);
        }
    }
    for (first, second) in [("a.b.c", ticket.as_str()), (&ticket, "a.b.c")] {
        let request =
            format!("GET /.waitgate/42/status HTTP/1.1\r\nHost: shop.example\r\nCookie: {TICKET}={first}; {TICKET}={second}\r\n\r\n");
        let answer = site.wire().await.ask(request).await;
        let view: Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(view["state"], "waiting");
    }
    assert_eq!(site.in_line().await, 1);
}

/// CASE 26: our cookies are short and stay here; many foreign ones pass, and too many are said to be.
#[tokio::test]
async fn our_cookies_leave_room_for_those_of_the_shop() {
    let room = "a".repeat(32);
    let site = Site::open(&SHOP.replace("rooms.42", &format!("rooms.{room}"))).await;
    let visitor = site.visitor();
    visitor.enter("/sale").await;
    for kind in ["wga", "wgt"] {
        let token = visitor.cookie(&format!("__Host-{kind}_{room}")).unwrap();
        assert!(token.len() <= 512, "{kind} takes {} bytes", token.len());
    }
    for number in 0..3 {
        visitor.set_cookie(&format!("shop{number}"), &"v".repeat(4_000));
    }
    assert!(visitor.go("/sale").await.is_shop());
    let seen = site.backend.seen().pop().unwrap();
    let cookies = seen.one("cookie");
    assert!(cookies.len() > 12_000 && !cookies.contains("wg"), "{cookies:.100}");
    for number in 3..5 {
        visitor.set_cookie(&format!("shop{number}"), &"v".repeat(4_000));
    }
    assert_eq!(visitor.go("/sale").await.status, 431);
}

/// What another room or another gateway's keys have signed is nothing here.
#[tokio::test]
async fn tokens_of_elsewhere_are_no_tokens() {
    let two = SHOP.replace("[rooms.42]", "[rooms.43]").replace("/sale", "/other");
    let (site, _) = site_with_a_visitor(&format!("{SHOP}{two}")).await;
    let neighbour = site.visitor();
    neighbour.enter("/other").await;
    let admission = neighbour.cookie("__Host-wga_43").unwrap();
    is_outside(&site, &admission).await;
    is_outside(&site, &neighbour.cookie("__Host-wgt_43").unwrap()).await;
    let (_elsewhere, stranger) = site_with_a_visitor(SHOP).await;
    is_outside(&site, &stranger.cookie(ADMISSION).unwrap()).await;
    is_outside(&site, &stranger.cookie(TICKET).unwrap()).await;
}

/// A program may keep its admission in a header; and what the shop is told in that header is what the gateway says, never the client.
#[tokio::test]
async fn an_admission_may_come_in_a_header() {
    let (site, visitor) = site_with_a_visitor(SHOP).await;
    let good = visitor.cookie(ADMISSION).unwrap();
    let program = site.visitor();
    let ask = || Ask::get("/sale/api").scripted().header("waitgate-admission", good.as_str());
    assert!(program.ask(ask()).await.is_shop());
    let seen = site.backend.seen().pop().unwrap();
    assert_eq!(
        (seen.one("waitgate-admission"), seen.one("waitgate-user")),
        (good.as_str(), visitor.ticket().as_str())
    );
    // A forged header beside a good cookie: the visitor is in, and the forgery goes no further.
    let forged = Ask::get("/sale/api")
        .header("waitgate-admission", "forged")
        .header("waitgate-user", "admin");
    assert!(visitor.ask(forged).await.is_shop());
    let seen = site.backend.seen().pop().unwrap();
    assert_eq!(
        (seen.one("waitgate-admission"), seen.one("waitgate-user")),
        (good.as_str(), visitor.ticket().as_str())
    );
    let claimed = program
        .ask(
            Ask::post("/sale/claim")
                .scripted()
                .header("waitgate-admission", good.as_str())
                .json(&json!({})),
        )
        .await;
    assert_eq!(claimed.status, 201, "{}", claimed.text());
}

/// A backend checks what it is given by the public keys alone.
#[tokio::test]
async fn the_public_keys_verify_what_the_shop_is_given() {
    let (site, visitor) = site_with_a_visitor(SHOP).await;
    let reply = site.visitor().fetch("/.well-known/waitgate/jwks.json").await;
    assert_eq!((reply.status, reply.header("content-type")), (200, "application/jwk-set+json"));
    let keys: JwkSet = serde_json::from_slice(&reply.body).unwrap();
    assert!(
        reply.json()["keys"].as_array().unwrap().iter().all(|key| key.get("d").is_none()),
        "no secret is in it"
    );
    let seen = site.backend.only();
    let token = seen.one("waitgate-admission");
    let key = keys
        .find(&jsonwebtoken::decode_header(token).unwrap().kid.unwrap())
        .expect("the key is there");
    let mut validation = Validation::new(Algorithm::EdDSA);
    validation.set_audience(&["42"]);
    validation.set_issuer(&["waitgate"]);
    validation.set_required_spec_claims(&["exp", "aud", "iss", "sub"]);
    let checked = jsonwebtoken::decode::<Value>(token, &DecodingKey::from_jwk(key).unwrap(), &validation).expect("verified");
    assert_eq!(checked.claims["sub"], visitor.ticket());
    assert_eq!(checked.claims["sub"], seen.one("waitgate-user"));
    assert!(
        checked.claims["iat"].as_u64().unwrap() <= Clock::system().now_ms() / 1000,
        "a verifier may be behind a little"
    );
}

/// All gateways of a line sign with one set of keys.
#[tokio::test]
async fn gateways_believe_each_other() {
    let site = Site::with_gates(2, shop().await, SHOP).await;
    let visitor = site.visitor();
    visitor.enter("/sale").await;
    let elsewhere = visitor.moved_to(&site.gates[1]).at(Ipv4Addr::new(127, 0, 0, 7));
    assert!(elsewhere.go("/sale").await.is_shop());
    assert_eq!(elsewhere.claim("k", &json!({})).await.status, 201);
    assert!(visitor.claim("k", &json!({})).await.header("idempotency-replayed") == "true");
}
