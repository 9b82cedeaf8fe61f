//! Sold out, all held, and back again: said the moment it is true, and taken back when stock returns.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::timeout;

use crate::gateway::{ADMISSION, Ask, Events, SHOP, Site, Visitor, shop};
use crate::harness::within;

/// How soon everybody must know.
const SOON: Duration = Duration::from_secs(1);

async fn inside(site: &Site, gate: usize) -> Visitor {
    let visitor = site.gates[gate].visitor();
    visitor.enter("/sale").await;
    visitor
}

async fn buy(buyer: &Visitor, key: &str) -> String {
    let reply = buyer.claim(key, &json!({})).await;
    assert_eq!(reply.status, 201, "{}", reply.text());
    reply.json()["order"].as_str().unwrap().to_owned()
}

/// Whether a view says this; `waiting` is said in two words, by how long it will take.
fn says(view: &Value, state: &str) -> bool {
    view["state"] == state || state == "waiting" && view["state"] == "nearly"
}

/// Waits until every stream says this.
async fn all_hear(streams: &mut [Events], state: &str) {
    let hear = streams.iter_mut().map(|stream| stream.until(state, |view| says(view, state)));
    timeout(SOON, futures_util::future::join_all(hear))
        .await
        .unwrap_or_else(|_| panic!("not all heard of {state} in time"));
}

/// Waits until a newcomer at every gateway is answered so.
async fn all_answer(site: &Site, status: u16, code: &str) {
    for gate in &site.gates {
        timeout(
            SOON,
            within(code, async || {
                let reply = gate.visitor().fetch("/sale").await;
                reply.status == status && reply.code() == code
            }),
        )
        .await
        .unwrap_or_else(|_| panic!("not every gateway says {code} in time"));
    }
}

/// CASE 115: three gateways sell out, and sell again when stock returns; who waits is told both times and keeps the place.
#[tokio::test]
async fn every_gateway_sells_out_and_sells_again() {
    let site = Site::with_gates(3, shop().await, SHOP).await;
    let (mut first, mut second, mut third) = (Vec::new(), Vec::new(), Vec::new());
    for gate in 0..3 {
        first.push(inside(&site, gate).await);
        second.push(inside(&site, gate).await);
        third.push(inside(&site, gate).await);
    }
    site.tune(json!({"rate": 0})).await;
    let (mut waiters, mut streams) = (Vec::new(), Vec::new());
    for gate in &site.gates {
        let waiter = gate.visitor();
        waiter.stand().await;
        streams.push(waiter.events().await);
        waiters.push(waiter);
    }
    let mut socket = waiters[2].socket(&[]).await.expect("a socket");
    let places: Vec<String> = waiters.iter().map(Visitor::place).collect();

    let mut orders = Vec::new();
    for buyer in &first {
        orders.push(buy(buyer, "k").await);
    }
    // All are held, and any may come back: the line stays, and takes people in.
    all_hear(&mut streams, "all_held").await;
    socket.until_state("all_held").await;
    all_answer(&site, 429, "waiting_room").await;
    for buyer in &second {
        let reply = buyer.claim("k", &json!({})).await;
        assert_eq!((reply.status, reply.code().as_str()), (409, "all_held"));
        assert_eq!(reply.header("retry-after"), "5");
    }
    // One comes back: whichever gateway is asked can sell it.
    assert_eq!(site.settle(&orders.pop().unwrap(), "release").await, "released");
    all_hear(&mut streams, "waiting").await;
    orders.push(buy(&second[0], "k2").await);
    all_hear(&mut streams, "all_held").await;

    for order in &orders {
        assert_eq!(site.settle(order, "confirm").await, "confirmed");
    }
    all_hear(&mut streams, "sold_out").await;
    socket.until_state("sold_out").await;
    all_answer(&site, 409, "sold_out").await;
    for buyer in &third {
        let reply = buyer.claim("k", &json!({})).await;
        assert_eq!((reply.status, reply.code().as_str()), (409, "sold_out"));
    }

    site.tune(json!({"stock": 6})).await;
    all_hear(&mut streams, "waiting").await;
    while !says(&socket.next().await.expect("open"), "waiting") {}
    all_answer(&site, 429, "waiting_room").await;
    for buyer in &third {
        buy(buyer, "k2").await;
    }
    assert_eq!(site.stock().await, [0, 3, 3]);
    assert_eq!(waiters.iter().map(Visitor::place).collect::<Vec<_>>(), places);
    site.tune(json!({"stock": 7, "rate": "1000/s"})).await;
    all_hear(&mut streams, "turn").await;
}

#[tokio::test]
async fn newcomers_get_a_short_answer_and_those_who_wait_keep_their_page() {
    let site = Site::open(&SHOP.replace("stock = 3", "stock = 1")).await;
    let buyer = inside(&site, 0).await;
    site.tune(json!({"rate": 0})).await;
    let waiter = site.visitor();
    waiter.stand().await;
    let order = buy(&buyer, "k").await;
    site.settle(&order, "confirm").await;
    within("sold out", async || site.visitor().fetch("/sale").await.status == 409).await;

    let newcomer = site.visitor();
    let page = newcomer.go("/sale?x=1").await;
    assert_eq!((page.status, page.page().as_str()), (409, "sold_out"));
    assert!(newcomer.cookie("__Host-wgt_42").is_none(), "nobody is given a ticket to nowhere");
    let claim = newcomer.claim("k", &json!({})).await;
    assert_eq!((claim.status, claim.code().as_str()), (409, "sold_out"));
    assert_eq!(newcomer.ask(Ask::post("/sale/claim").form("")).await.page(), "sold_out");
    assert_eq!(
        newcomer.ask(Ask::get("/sale/api").header("sec-fetch-mode", "cors")).await.code(),
        "sold_out"
    );

    let page = waiter.go("/sale").await;
    assert_eq!((page.status, page.page().as_str()), (200, "sold_out"));
    assert_eq!(waiter.status().await.json()["state"], "sold_out");
    let mut events = waiter.events().await;
    events.until_state("sold_out").await;

    // Whoever is in goes on, above all to pay.
    assert!(buyer.go("/sale/pay").await.is_shop());
    assert!(buyer.claim("k", &json!({})).await.is_shop(), "and finds the order again");
    site.tune(json!({"stock": 2, "rate": "1000/s"})).await;
    events.until_state("turn").await;
    assert!(waiter.go("/sale").await.is_shop());
}

/// Sold out is said without the store.
#[tokio::test]
async fn sold_out_is_known_while_the_store_is_away() {
    let mut site = Site::open(&SHOP.replace("stock = 3", "stock = 1")).await;
    let buyer = inside(&site, 0).await;
    let order = buy(&buyer, "k").await;
    site.settle(&order, "confirm").await;
    within("sold out", async || site.visitor().fetch("/sale").await.status == 409).await;
    site.redis.kill().await;
    let site = site;
    within("the loss is seen", async || {
        site.operate("GET", "/readyz", &Value::Null).await.status == 503
    })
    .await;
    assert_eq!(site.visitor().fetch("/sale").await.code(), "sold_out");
    assert_eq!(site.visitor().go("/sale").await.page(), "sold_out");
    assert!(buyer.go("/sale/pay").await.is_shop());
}

/// A turn in an empty shop is no turn, and it is one again when there is something to buy.
#[tokio::test]
async fn the_called_are_told_when_there_is_nothing_left() {
    let site = Site::open(&SHOP.replace("stock = 3", "stock = 1")).await;
    let buyer = inside(&site, 0).await;
    site.tune(json!({"rate": 0})).await;
    let called = site.visitor();
    called.stand().await;
    let mut events = called.events().await;
    site.tune(json!({"rate": "1000/s"})).await;
    events.until_state("turn").await;
    let order = buy(&buyer, "k").await;
    site.settle(&order, "confirm").await;
    events.until_state("sold_out").await;
    assert_eq!(called.status().await.json()["state"], "sold_out");
    assert!(called.cookie(ADMISSION).is_none());
    site.tune(json!({"stock": 2})).await;
    events.until_state("turn").await;
    called.enter("/sale").await;
    buy(&called, "k").await;
}
