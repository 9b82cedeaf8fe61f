//! A claim from end to end: through the gate, to the shop, and what becomes of the units whatever the shop answers.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use serde_json::{Value, json};
use tokio::sync::Semaphore;
use waitgate::clock::Clock;

use crate::backend::{Backend, Message, until};
use crate::gateway::{ADMISSION, Ask, Reply, SHOP, Site, Visitor, claimed, said, shop_that};
use crate::harness::within;

/// A room like [`SHOP`] with these lines of its own.
fn shop_with(lines: &str) -> String {
    format!("{SHOP}{lines}\n")
}

/// Somebody who is in.
async fn inside(site: &Site) -> Visitor {
    let visitor = site.visitor();
    visitor.enter("/sale").await;
    visitor
}

/// The claims the shop has seen.
fn claims_seen(site: &Site) -> Vec<Message> {
    let seen = site.backend.seen();
    seen.into_iter().filter(|request| claimed(request).is_some()).collect()
}

/// A shop that answers the how-many-th claim as this says, from 0.
async fn shop_answering(answers: impl Fn(usize, &Message) -> String + Send + Sync + 'static) -> Backend {
    let count = AtomicUsize::new(0);
    shop_that(move |request| match claimed(request) {
        Some(_) => answers(count.fetch_add(1, SeqCst), request),
        None => said(200, "the shop"),
    })
    .await
}

fn is_replay(reply: &Reply) -> bool {
    reply.header("idempotency-replayed") == "true"
}

#[tokio::test]
async fn a_unit_is_taken_paid_for_and_sold() {
    let site = Site::open(&shop_with("claim.hold = \"5min\"")).await;
    let buyer = inside(&site).await;
    let body = json!({"size": "L", "quantity": 1});
    let before_s = Clock::system().now_ms() / 1000;
    let reply = buyer.claim("key-1", &body).await;
    assert_eq!(reply.status, 201, "{}", reply.text());
    assert!(!is_replay(&reply));
    let seen = claims_seen(&site).remove(0);
    let reservation = claimed(&seen).unwrap();
    assert_eq!(reply.json()["order"], *reservation);
    assert_eq!(seen.line(), "POST /sale/claim HTTP/1.1");
    assert_eq!(seen.body, body.to_string().into_bytes());
    assert_eq!(seen.one("idempotency-key"), "key-1");
    assert_eq!(seen.one("waitgate-units"), "1");
    assert_eq!(seen.one("waitgate-user"), buyer.ticket());
    assert_eq!(seen.one("waitgate-room"), "42");
    assert_eq!(seen.one("waitgate-admission"), buyer.cookie(ADMISSION).unwrap());
    let expires_s: u64 = seen.one("waitgate-expires").parse().unwrap();
    assert!((before_s + 299..=before_s + 310).contains(&expires_s), "{before_s} {expires_s}");
    assert_eq!(site.stock().await, [2, 1, 0]);

    assert_eq!(site.settle(&reservation, "confirm").await, "confirmed");
    assert_eq!((site.stock().await, site.held(&reservation).await.as_str()), ([2, 0, 1], "sold"));
    assert_eq!(site.settle(&reservation, "confirm").await, "confirmed_before");
    assert_eq!(site.settle(&reservation, "release").await, "already_sold");
    assert_eq!(site.stock().await, [2, 0, 1]);
}

/// CASE 121: the same claim again gets the first answer again, byte for byte, and the shop hears of it once.
#[tokio::test]
async fn a_repeat_gets_the_first_answer() {
    let site = Site::open(SHOP).await;
    let buyer = inside(&site).await;
    let first = buyer.claim("k", &json!({"a": 1})).await;
    let again = buyer.claim("k", &json!({"a": 1})).await;
    assert!(is_replay(&again) && !is_replay(&first));
    assert_eq!((again.status, &again.body), (first.status, &first.body));
    assert_eq!(again.header("x-shop"), "yes", "with the shop's own headers");
    let quoted = buyer.claim("\"k\"", &json!({"a": 1})).await;
    assert_eq!((quoted.status, &quoted.body), (201, &first.body));
    site.settle(first.json()["order"].as_str().unwrap(), "confirm").await;
    let later = buyer.claim("k", &json!({"a": 1})).await;
    assert_eq!((later.status, &later.body), (201, &first.body), "paid or not");
    assert_eq!(claims_seen(&site).len(), 1);
    // The key is the buyer's own: another one's is another claim.
    let other = inside(&site).await.claim("k", &json!({"a": 1})).await;
    assert_ne!(other.json()["order"], first.json()["order"]);
    assert_eq!(site.stock().await, [1, 1, 1]);
}

/// CASE 121: the same key with another body, or at another address, is refused, and nothing is taken.
#[tokio::test]
async fn a_key_is_for_one_claim() {
    let site = Site::open(&shop_with("claim.limit = 3")).await;
    let buyer = inside(&site).await;
    assert_eq!(buyer.claim("k", &json!({"quantity": 1})).await.status, 201);
    for ask in [
        Ask::post("/sale/claim").json(&json!({"quantity": 2})),
        Ask::post("/sale/claim").json(&json!({"quantity": 1, "item": 8})),
        Ask::post("/sale/claim?x=1").json(&json!({"quantity": 1})),
    ] {
        let reply = buyer.ask(ask.scripted().header("idempotency-key", "k")).await;
        assert_eq!((reply.status, reply.code().as_str()), (422, "idempotency_mismatch"));
    }
    assert_eq!((site.stock().await, claims_seen(&site).len()), ([2, 1, 0], 1));
}

/// CASE 121: a repeat while the first is on its way does not go to the shop a second time.
#[tokio::test]
async fn a_claim_on_its_way_is_not_sent_twice() {
    let gate = Arc::new(Semaphore::new(0));
    let key = Arc::clone(&gate);
    let slow = Backend::start(move |mut wire| {
        let gate = Arc::clone(&key);
        async move {
            while let Some(request) = wire.request().await {
                if claimed(&request).is_some() {
                    gate.acquire().await.unwrap().forget();
                }
                wire.send(said(if claimed(&request).is_some() { 201 } else { 200 }, "yours")).await;
            }
        }
    })
    .await;
    let site = Site::before(slow, SHOP).await;
    let buyer = inside(&site).await;
    let first = {
        let buyer = buyer.clone();
        tokio::spawn(async move { buyer.claim("k", &json!({})).await })
    };
    until("the shop has the claim", || !claims_seen(&site).is_empty()).await;
    let second = buyer.claim("k", &json!({})).await;
    assert_eq!((second.status, second.code().as_str()), (409, "claim_in_progress"));
    assert_eq!(second.header("retry-after"), "1");
    let other = buyer.claim("k2", &json!({"b": 1})).await;
    assert_eq!((other.status, other.code().as_str()), (409, "already_reserved"));
    gate.add_permits(1);
    assert_eq!(first.await.unwrap().status, 201);
    assert!(is_replay(&buyer.claim("k", &json!({})).await));
    assert_eq!((claims_seen(&site).len(), site.stock().await), (1, [2, 1, 0]));
}

/// CASE 112: check, take and record are one step: one buyer, many claims at once, one unit.
#[tokio::test]
async fn five_hundred_claims_of_one_buyer_take_one_unit() {
    let room = SHOP.replace("stock = 3", "stock = 100");
    let site = Site::open(&format!("{room}[limits]\nvisitor = {{ rate = 10000, burst = 10000 }}\n")).await;
    let buyer = inside(&site).await;
    let mut won = Vec::new();
    let mut already = BTreeSet::new();
    for batch in 0..10 {
        let claims: Vec<_> = (0..50)
            .map(|number| {
                let buyer = buyer.clone();
                tokio::spawn(async move { buyer.claim(&format!("{batch}-{number}"), &json!({"n": number, "b": batch})).await })
            })
            .collect();
        for claim in claims {
            let reply = claim.await.unwrap();
            match reply.status {
                201 => won.push(reply.json()["order"].clone()),
                _ => {
                    assert_eq!(reply.code(), "already_reserved");
                    already.insert(reply.json()["reservation"].to_string());
                }
            }
        }
    }
    assert_eq!((won.len(), already.len()), (1, 1), "{won:?} {already:?}");
    assert_eq!(won[0].to_string(), *already.first().unwrap());
    assert_eq!((site.stock().await, claims_seen(&site).len()), ([99, 1, 0], 1));
}

#[tokio::test]
async fn units_are_counted_and_limits_kept() {
    let site = Site::open(&shop_with("claim.limit = 5")).await;
    let buyer = inside(&site).await;
    let refused = buyer.claim("a", &json!({"quantity": 4})).await;
    assert_eq!((refused.status, refused.code().as_str()), (409, "too_few_left"));
    assert_eq!(refused.json()["free"], 3);
    let refused = buyer.claim("b", &json!({"quantity": 6})).await;
    assert_eq!((refused.status, refused.code().as_str()), (409, "limit_reached"));
    for bad in [json!({"quantity": 0}), json!({"quantity": -1}), json!({"quantity": "two"})] {
        let refused = buyer.claim("c", &bad).await;
        assert_eq!((refused.status, refused.code().as_str()), (422, "bad_units"));
    }
    for key in ["", "a b", &"x".repeat(129)] {
        let refused = buyer.claim(key, &json!({})).await;
        assert_eq!((refused.status, refused.code().as_str()), (400, "bad_idempotency_key"));
    }
    assert_eq!(buyer.claim("big", &json!({"x": "y".repeat(70_000)})).await.status, 413);
    assert_eq!((site.stock().await, claims_seen(&site).len()), ([3, 0, 0], 0));
    // A key that took nothing is free to be used with better units.
    assert_eq!(buyer.claim("a", &json!({"quantity": 2})).await.status, 201);
    assert_eq!(claims_seen(&site)[0].one("waitgate-units"), "2");
    assert_eq!(site.stock().await, [1, 2, 0]);
}

/// CASE 113: claims of several sizes at once: never more than there is, and nothing is taken by a claim that fails.
#[tokio::test]
async fn many_buyers_at_once_share_what_there_is() {
    let room = SHOP.replace("stock = 3", "stock = 10");
    let site = Site::open(&format!(
        "{room}claim.limit = 3\n[limits]\naddress = {{ rate = 10000, burst = 10000 }}\n"
    ))
    .await;
    let mut buyers = Vec::new();
    for _ in 0..40 {
        buyers.push(inside(&site).await);
    }
    let claims: Vec<_> = buyers
        .into_iter()
        .enumerate()
        .map(|(number, buyer)| {
            let units = number as u64 % 3 + 1;
            tokio::spawn(async move { (units, buyer.claim("k", &json!({"quantity": units})).await) })
        })
        .collect();
    let mut taken = 0;
    for claim in claims {
        let (units, reply) = claim.await.unwrap();
        match reply.status {
            201 => taken += units,
            _ => assert!(["too_few_left", "all_held"].contains(&reply.code().as_str()), "{}", reply.text()),
        }
    }
    assert_eq!((taken, site.stock().await), (10, [0, 10, 0]));
}

#[tokio::test]
async fn a_definite_refusal_of_the_shop_gives_the_unit_back_at_once() {
    let shop = shop_answering(|count, _| match count {
        0 => said(402, "no money"),
        1 => said(409, "no address"),
        _ => said(201, "yours"),
    })
    .await;
    let site = Site::before(shop, SHOP).await;
    let buyer = inside(&site).await;
    let refused = buyer.claim("k", &json!({})).await;
    assert_eq!((refused.status, refused.text().as_str()), (402, "no money"));
    let reservation = claimed(&claims_seen(&site)[0]).unwrap();
    assert_eq!(
        (site.stock().await, site.held(&reservation).await.as_str()),
        ([3, 0, 0], "released")
    );
    let again = buyer.claim("k", &json!({})).await;
    assert_eq!((again.status, is_replay(&again)), (402, true), "a refusal is an answer, too");
    assert_eq!(buyer.claim("k2", &json!({})).await.status, 409);
    assert_eq!(site.stock().await, [3, 0, 0]);
    assert_eq!(buyer.claim("k3", &json!({})).await.status, 201, "and another try is another claim");
    let ids: BTreeSet<_> = claims_seen(&site).iter().filter_map(claimed).collect();
    assert_eq!((ids.len(), site.stock().await), (3, [2, 1, 0]));
    assert_eq!(site.settle(&reservation, "release").await, "released_before");
    assert_eq!(site.stock().await, [2, 1, 0]);
}

#[tokio::test]
async fn what_nobody_knows_keeps_the_unit_and_may_be_sent_again() {
    let shop = shop_answering(|count, _| match count {
        0 => said(500, "oops"),
        1 => said(503, "oops"),
        2 => said(429, "later"),
        3 => said(409, "such an order is there"),
        _ => said(201, "yours"),
    })
    .await;
    let site = Site::before(shop, SHOP).await;
    let buyer = inside(&site).await;
    for status in [500, 503, 429, 409] {
        let reply = buyer.claim("k", &json!({})).await;
        assert_eq!((reply.status, is_replay(&reply)), (status, false));
        assert_eq!(site.stock().await, [2, 1, 0], "after {status}");
    }
    assert_eq!(buyer.claim("k", &json!({})).await.text(), "yours");
    assert!(is_replay(&buyer.claim("k", &json!({})).await));
    let seen = claims_seen(&site);
    let ids: BTreeSet<_> = seen.iter().filter_map(claimed).collect();
    assert_eq!((seen.len(), ids.len()), (5, 1), "one reservation all the time");
    assert!(seen.iter().all(|claim| claim.one("idempotency-key") == "k"));
    assert_eq!(site.stock().await, [2, 1, 0]);
}

/// CASE 121: a time-out frees neither the unit nor the key.
#[tokio::test]
async fn a_shop_that_does_not_answer_in_time_is_asked_again_with_the_same_reservation() {
    let count = Arc::new(AtomicUsize::new(0));
    let shop = Backend::start(move |mut wire| {
        let count = Arc::clone(&count);
        async move {
            while let Some(request) = wire.request().await {
                let silent = claimed(&request).is_some() && count.fetch_add(1, SeqCst) == 0;
                if silent {
                    while wire.more().await > 0 {}
                    return;
                }
                wire.send(said(201, "yours")).await;
            }
        }
    })
    .await;
    let site = Site::before(shop, &format!("{SHOP}[upstream]\nfirst_byte_timeout = \"300ms\"\n")).await;
    let buyer = inside(&site).await;
    let lost = buyer.claim("k", &json!({})).await;
    assert_eq!(
        (lost.status, lost.json()["may_have_run"].clone()),
        (504, json!(true)),
        "{}",
        lost.text()
    );
    assert_eq!(site.stock().await, [2, 1, 0]);
    assert_eq!(buyer.claim("k2", &json!({"b": 1})).await.code(), "already_reserved");
    assert_eq!(buyer.claim("k", &json!({})).await.text(), "yours");
    let seen = claims_seen(&site);
    assert_eq!((seen.len(), claimed(&seen[0])), (2, claimed(&seen[1])));
    assert_eq!(site.stock().await, [2, 1, 0]);
}

/// A buyer who closes the tab while the shop is thinking finds the order when he comes back.
#[tokio::test]
async fn a_claim_goes_on_without_its_buyer() {
    let gate = Arc::new(Semaphore::new(0));
    let key = Arc::clone(&gate);
    let slow = Backend::start(move |mut wire| {
        let gate = Arc::clone(&key);
        async move {
            while let Some(request) = wire.request().await {
                if claimed(&request).is_some() {
                    gate.acquire().await.unwrap().forget();
                }
                wire.send(said(201, "yours")).await;
            }
        }
    })
    .await;
    let site = Site::before(slow, SHOP).await;
    let buyer = inside(&site).await;
    let mut wire = site.wire().await;
    let cookie = format!("{ADMISSION}={}", buyer.cookie(ADMISSION).unwrap());
    wire.send(format!(
        "POST /sale/claim HTTP/1.1\r\nHost: shop.example\r\nCookie: {cookie}\r\nIdempotency-Key: k\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{{}}"
    ))
    .await;
    until("the shop has the claim", || !claims_seen(&site).is_empty()).await;
    drop(wire);
    gate.add_permits(1);
    within("the answer is kept", async || {
        let reply = buyer.claim("k", &json!({})).await;
        reply.status == 201 && is_replay(&reply) && reply.text() == "yours"
    })
    .await;
    assert_eq!((claims_seen(&site).len(), site.stock().await), (1, [2, 1, 0]));
}

/// A form has no key, and a person clicks twice: one order, and both clicks see it.
#[tokio::test]
async fn a_form_without_a_key_buys_once() {
    let site = Site::open(&shop_with("claim.limit = 2\nclaim.units_field = \"seats\"")).await;
    let buyer = inside(&site).await;
    let click = || Ask::post("/sale/claim").form("seats=2&row=A");
    let first = buyer.ask(click()).await;
    let second = buyer.ask(click()).await;
    assert_eq!((first.status, second.status), (201, 201));
    assert_eq!((first.body.clone(), is_replay(&second)), (second.body, true));
    let seen = claims_seen(&site);
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].one("idempotency-key"), claimed(&seen[0]).unwrap());
    assert_eq!(seen[0].one("waitgate-units"), "2");
    assert_eq!(seen[0].body, b"seats=2&row=A");
    assert_eq!(site.stock().await, [1, 2, 0]);
    site.settle(&claimed(&seen[0]).unwrap(), "confirm").await;
    assert!(is_replay(&buyer.ask(click()).await), "and after paying it is the same order still");
    assert_eq!(site.stock().await, [1, 0, 2]);
}

#[tokio::test]
async fn what_is_not_paid_for_in_time_comes_back() {
    let room = shop_with("claim.hold = \"1s\"").replace("stock = 3", "stock = 1");
    let site = Site::open(&room).await;
    let (slow, quick) = (inside(&site).await, inside(&site).await);
    let order = slow.claim("k", &json!({})).await.json()["order"].as_str().unwrap().to_owned();
    assert_eq!(quick.claim("q", &json!({})).await.code(), "all_held");
    within("the unit is back", async || site.stock().await == [1, 0, 0]).await;
    assert_eq!(site.held(&order).await, "expired");
    let bought = quick.claim("q", &json!({})).await;
    assert_eq!(bought.status, 201, "{}", bought.text());
    let bought = bought.json()["order"].as_str().unwrap().to_owned();
    assert_eq!(site.settle(&bought, "confirm").await, "confirmed");
    assert_eq!(site.settle(&order, "confirm").await, "refund_due", "paid, but gone");
    assert_eq!(site.settle(&order, "confirm").await, "refund_due");
    assert_eq!(site.stock().await, [0, 0, 1]);
}

#[tokio::test]
async fn a_late_payment_takes_the_unit_again_while_there_is_one() {
    let site = Site::open(&shop_with("claim.hold = \"500ms\"")).await;
    let buyer = inside(&site).await;
    let order = buyer.claim("k", &json!({})).await.json()["order"].as_str().unwrap().to_owned();
    within("the unit is back", async || site.stock().await == [3, 0, 0]).await;
    assert_eq!(site.settle(&order, "confirm").await, "retaken");
    assert_eq!((site.stock().await, site.held(&order).await.as_str()), ([2, 0, 1], "sold"));
}

/// CASE 116, 118: releases, payments and the end of the hold, all at once and again and again: each unit returns once or is sold once.
#[tokio::test]
async fn a_unit_returns_once_however_many_say_so() {
    let room = format!(
        "{}claim.limit = 2\nclaim.hold = \"1s\"\n[limits]\naddress = {{ rate = 10000, burst = 10000 }}\n",
        SHOP.replace("stock = 3", "stock = 24")
    );
    let site = Site::open(&room).await;
    let mut orders = Vec::new();
    for _ in 0..12 {
        let order = inside(&site).await.claim("k", &json!({"quantity": 2})).await.json()["order"].clone();
        orders.push(order.as_str().unwrap().to_owned());
    }
    let settling = orders.iter().enumerate().flat_map(|(number, order)| {
        // Four are only released, four paid for and released, four released the moment their hold ends.
        let verbs: &[&str] = [&["release"; 6][..], &["release", "confirm", "release", "confirm"], &["release"; 4]][number / 4];
        let site = &site;
        verbs.iter().map(move |verb| async move {
            if number >= 8 {
                let path = format!("/v1/rooms/42/reservations/{order}");
                let ends_ms = site.operate("GET", &path, &Value::Null).await.json()["expires_at_ms"]
                    .as_u64()
                    .unwrap();
                within("the hold ends", async || Clock::system().now_ms() >= ends_ms).await;
            }
            (order.clone(), site.settle(order, verb).await)
        })
    });
    let settled = futures_util::future::join_all(settling).await;
    let mut effects = std::collections::BTreeMap::<String, Vec<String>>::new();
    for (order, outcome) in settled {
        let idle = ["released_before", "confirmed_before", "already_sold"].contains(&outcome.as_str());
        let said = effects.entry(order).or_default();
        if !idle {
            said.push(outcome);
        }
    }
    let mut sold = 0;
    for (number, order) in orders.iter().enumerate() {
        let said = &effects[order];
        let state = site.held(order).await;
        match state.as_str() {
            "released" => assert_eq!(said[..], ["released"]),
            "expired" => assert!(said.is_empty(), "{said:?}"),
            _ => assert!(said[..] == ["confirmed"] || said[..] == ["released", "retaken"], "{said:?}"),
        }
        sold += if state == "sold" { 2 } else { 0 };
        assert!(number >= 4 || state == "released", "{state}");
        assert!(number < 8 || state != "sold", "{state}");
    }
    assert_eq!(site.stock().await, [24 - sold, 0, sold]);
    let line = site.metric("waitgate_stock_invariant_broken{room=\"42\"}").await;
    assert!(line.as_ref().is_some_and(|line| line.ends_with(" 0")), "{line:?}");
}

#[tokio::test]
async fn whoever_is_not_in_claims_nothing() {
    let site = Site::open(SHOP).await;
    site.tune(json!({"rate": 0})).await;
    let visitor = site.visitor();
    visitor.stand().await;
    let refused = visitor.claim("k", &json!({})).await;
    assert_eq!((refused.status, refused.code().as_str()), (429, "waiting_room"));
    visitor.set_cookie(ADMISSION, "a.b.c");
    assert_eq!(visitor.claim("k", &json!({})).await.code(), "waiting_room");
    assert!(site.backend.seen().is_empty());
    assert_eq!(site.stock().await, [3, 0, 0]);
}

/// Only a `POST` claims; the shop's page under the same address is a page.
#[tokio::test]
async fn other_methods_on_the_claim_route_are_ordinary_requests() {
    let site = Site::open(SHOP).await;
    let buyer = inside(&site).await;
    for method in ["GET", "HEAD", "OPTIONS", "DELETE"] {
        assert!(buyer.ask(Ask::new(method, "/sale/claim").scripted()).await.is_shop(), "{method}");
    }
    assert_eq!((claims_seen(&site).len(), site.stock().await), (0, [3, 0, 0]));
}

/// CASE 83: without the store those inside go on, and nothing is sold; when it is back, everything is as it was.
#[tokio::test]
async fn without_the_store_nothing_is_claimed_and_nobody_is_thrown_out() {
    let mut site = Site::open(SHOP).await;
    let buyer = inside(&site).await;
    site.redis.kill().await;
    let refused = buyer.claim("k", &json!({})).await;
    assert_eq!((refused.status, refused.code().as_str()), (503, "store_unavailable"));
    assert!(refused.header("retry-after").parse::<u64>().unwrap() >= 1);
    assert!(buyer.go("/sale/p").await.is_shop());
    let stranger = site.visitor();
    assert_eq!(stranger.go("/sale").await.page(), "waiting");
    assert_eq!(stranger.status().await.json()["delayed"], true);
    site.redis.revive().await;
    // The store has lost everything: nobody knows what is left, and an operator must say.
    site.until_room("state", "stock_unknown").await;
    within("the loss is seen", async || {
        buyer.claim("k", &json!({})).await.code() == "stock_unknown"
    })
    .await;
    assert!(buyer.go("/sale/p").await.is_shop());
    site.tune(json!({"stock": 2})).await;
    assert_eq!(buyer.claim("k", &json!({})).await.status, 201);
    assert_eq!(site.stock().await, [1, 1, 0]);
    let lost: Value = site.room().await["stock"].clone();
    assert_eq!(lost["known"], true);
}
