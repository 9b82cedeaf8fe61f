//! The keys of tokens are rotated while people wait and buy.

use serde_json::json;
use waitgate::clock::Clock;
use waitgate::token::keys;

use crate::gateway::{ADMISSION, Gate, SHOP, Site, TICKET, Visitor, shop};
use crate::harness::within;

/// Later than this test lasts, ms.
const LASTS_MS: u64 = 3_600_000;

fn kid(token: &str) -> String {
    jsonwebtoken::decode_header(token).expect("a token").kid.expect("a key's name")
}

/// Whether this gateway says that it verifies with this key.
async fn knows(gate: &Gate, kid: &str) -> bool {
    gate.visitor().fetch("/.well-known/waitgate/jwks.json").await.text().contains(kid)
}

/// CASE 88: the new key is known everywhere before anybody signs with it; whoever is in stays in, whoever waits keeps the place, at either gateway.
#[tokio::test]
async fn a_rotation_in_mid_sale_is_not_noticed() {
    let site = Site::with_gates(2, shop().await, SHOP).await;
    let inside = site.visitor();
    inside.enter("/sale").await;
    site.tune(json!({"rate": 0})).await;
    let waiting = site.visitor();
    waiting.stand().await;
    let (place, ticket, pass) = (waiting.place(), waiting.cookie(TICKET).unwrap(), inside.cookie(ADMISSION).unwrap());
    let both = async |visitor: &Visitor| {
        for gate in &site.gates {
            let here = visitor.moved_to(gate);
            let reply = here.go("/sale").await;
            assert!(reply.is_shop() || reply.is_line(), "{reply:?}");
            assert_eq!(reply.is_shop(), visitor.cookie(ADMISSION).is_some());
        }
    };

    let now_ms = Clock::system().now_ms();
    let far = keys::rotate(&site.keys(), now_ms, now_ms + LASTS_MS, LASTS_MS).unwrap();
    for gate in &site.gates {
        within("the key to come is known", async || knows(gate, &far).await).await;
        let newcomer = gate.visitor();
        newcomer.stand().await;
        assert_eq!(kid(&newcomer.cookie(TICKET).unwrap()), kid(&ticket), "nobody signs with it yet");
        assert_ne!(kid(&newcomer.cookie(TICKET).unwrap()), far);
    }
    both(&inside).await;
    both(&waiting).await;

    let now_ms = Clock::system().now_ms();
    let near = keys::rotate(&site.keys(), now_ms, now_ms + 1, LASTS_MS).unwrap();
    for gate in &site.gates {
        within("the new key is known", async || knows(gate, &near).await).await;
        assert!(knows(gate, &kid(&pass)).await, "a backend still finds the old one");
    }
    let newcomer = site.visitor();
    newcomer.stand().await;
    assert_eq!(kid(&newcomer.cookie(TICKET).unwrap()), near);
    both(&newcomer).await;
    both(&inside).await;
    both(&waiting).await;
    assert_eq!(waiting.place(), place);
    assert_eq!(waiting.status().await.json()["ahead"], 0);
    assert_eq!(inside.cookie(ADMISSION), Some(pass));
    assert_eq!(inside.claim("k", &json!({})).await.status, 201);
    assert_eq!(site.in_line().await, 4);
}

/// CASE 88: a key that was taken out verifies nothing any more: whoever was in is outside, and whoever waited begins anew; nothing breaks.
#[tokio::test]
async fn a_key_that_is_gone_verifies_nothing() {
    let site = Site::open(SHOP).await;
    let inside = site.visitor();
    inside.enter("/sale").await;
    let (old, pass) = (kid(&inside.cookie(TICKET).unwrap()), inside.cookie(ADMISSION).unwrap());
    site.tune(json!({"rate": 0})).await;
    let now_ms = Clock::system().now_ms();
    let near = keys::rotate(&site.keys(), now_ms, now_ms + 1, LASTS_MS).unwrap();
    within("the new key is known", async || knows(&site, &near).await).await;
    let text = std::fs::read_to_string(site.keys()).unwrap();
    let mut file: serde_json::Value = serde_json::from_str(&text).unwrap();
    let all = file["keys"].as_array_mut().expect("keys");
    assert_eq!(all.len(), 2);
    all.remove(0); // the older one
    std::fs::write(site.keys(), file.to_string()).unwrap();
    within("the old key is gone", async || !knows(&site, &old).await).await;
    let outside = site.visitor();
    outside.set_cookie(ADMISSION, &pass);
    assert!(!outside.fetch("/sale/other").await.is_shop());
    let again = inside.go("/sale").await;
    assert!(!again.is_shop() && again.status < 500, "{again:?}");
}
