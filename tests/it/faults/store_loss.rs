//! A running gateway whose Redis is killed, frozen, cut off, emptied, or told to forget its scripts: nobody loses a place, nothing is sold
//! twice, and all comes back by itself.

use std::time::Duration;

use futures_util::future::join_all;
use http::Method;
use serde_json::json;
use waitgate::clock::Clock;

use crate::between::{Between, Mode};
use crate::crew::{Crew, Event, Gateway, Reply, Visitor, operate};
use crate::harness::{Redis, within};

const SALE: &str = "rate = \"5/s\"\nstock = 10\nclaim.path = \"/sale/claim\"\n";

/// Somebody who has been let in; then nobody more is.
async fn last_one_in(gateway: &Gateway) -> Visitor {
    let buyer = Visitor::new(gateway.public);
    within("the buyer is let in", async || buyer.gets_in().await).await;
    gateway.tune(json!({"rate": "0/s"})).await;
    buyer
}

/// Joins one after the other.
async fn line_of(people: usize, gateways: &[&Gateway]) -> Vec<Visitor> {
    let mut line = Vec::new();
    for number in 0..people {
        let visitor = Visitor::new(gateways[number % gateways.len()].public);
        let view = visitor.joins().await;
        assert!(visitor.place() > 0, "{view}");
        line.push(visitor);
    }
    line
}

fn unavailable(reply: &Reply) {
    assert_eq!(reply.gist(), (503, "store_unavailable".to_owned()), "{}", reply.text());
    let after: u64 = reply.headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=10).contains(&after));
}

/// What must be so while the store is away, and how it ends.
async fn outage(crew: &mut Crew, gateway: &Gateway, lose: impl AsyncFnOnce(&mut Redis), find: impl AsyncFnOnce(&mut Redis)) {
    let buyer = last_one_in(gateway).await;
    let line = line_of(4, &[gateway]).await;
    let places: Vec<u64> = line.iter().map(Visitor::place).collect();
    let mut streams = join_all(line[..3].iter().map(Visitor::stream)).await;
    let mut socket = line[3].socket().await;
    within("all are counted", async || line[3].status().await.json()["ahead"] == 3).await;
    lose(&mut crew.redis).await;

    let shown = streams[2].until("it is delayed", |view| view["delayed"] == true).await;
    assert!(shown["ahead"].as_u64().is_some_and(|ahead| ahead <= 2), "{shown}");
    while socket.next().await.expect("it stays open")["delayed"] != true {}
    assert!(buyer.gets_in().await, "the admitted go on");
    unavailable(&buyer.claim("one").await);
    let polled = line[1].status().await.json();
    assert_eq!((&polled["delayed"], &polled["ahead"]), (&json!(true), &json!(1)), "{polled}");
    let page = line[0].load().await;
    assert!(page.status == 200 && page.text().contains("<html"), "{page:?}");
    let newcomer = Visitor::new(gateway.public);
    assert_eq!(newcomer.load().await.status, 200);
    let parked = newcomer.status().await.json();
    assert_eq!((&parked["delayed"], newcomer.place()), (&json!(true), 0), "{parked}");
    let mut parked = newcomer.stream().await;
    unavailable(&line[0].enter().await);
    unavailable(&line[0].leave().await);

    find(&mut crew.redis).await;
    for stream in &mut streams {
        stream.until("it is as before", |view| view["delayed"].is_null()).await;
    }
    parked
        .until("the newcomer has a place", |view| view["delayed"].is_null() && view["ahead"] == 4)
        .await;
    newcomer.status().await;
    assert!(newcomer.place() > places[3], "behind the others");
    let now: Vec<u64> = join_all(line.iter().map(async |visitor| {
        visitor.status().await;
        visitor.place()
    }))
    .await;
    assert_eq!(now, places);
    within("the claim goes through", async || buyer.claim("one").await.status == 201).await;
    assert_eq!(crew.stock().await, [9, 1, 0, 10], "one unit, once");
    gateway.tune(json!({"rate": "50/s"})).await;
    for stream in &mut streams {
        stream.state("turn").await;
    }
    socket.state("turn").await;
    parked.state("turn").await;
}

/// CASE 83.
#[tokio::test]
async fn redis_killed_and_started_again() {
    let mut crew = Crew::on(Redis::start_durable().await, SALE).await;
    let gateway = crew.gateway().await;
    outage(
        &mut crew,
        &gateway,
        async |redis| redis.kill().await,
        async |redis| redis.revive().await,
    )
    .await;
}

#[tokio::test]
async fn redis_frozen_and_woken() {
    let mut crew = Crew::of(SALE).await;
    crew.store_timeout = "300ms";
    crew.more = "[upstream]\nfirst_byte_timeout = \"500ms\"\n".to_owned();
    let gateway = crew.gateway().await;
    let (stop, go_on) = (
        async |redis: &mut Redis| redis.signal("STOP").await,
        async |redis: &mut Redis| {
            redis.signal("CONT").await;
        },
    );
    outage(&mut crew, &gateway, stop, go_on).await;
}

#[tokio::test]
async fn redis_cut_off() {
    let mut crew = Crew::of(SALE).await;
    let between = Between::start(&crew.redis);
    let gateway = crew.gateway_through(&between.url()).await;
    let (cut, mend) = (
        async |_: &mut Redis| between.set(Mode::Cut),
        async |_: &mut Redis| between.set(Mode::Pass),
    );
    outage(&mut crew, &gateway, cut, mend).await;
}

/// CASE 91: calls run, and their replies are lost.
#[tokio::test]
async fn replies_are_lost() {
    let mut crew = Crew::of(SALE).await;
    crew.store_timeout = "200ms";
    crew.more = "[upstream]\nfirst_byte_timeout = \"500ms\"\n".to_owned();
    let between = Between::start(&crew.redis);
    let gateway = crew.gateway_through(&between.url()).await;
    let buyer = last_one_in(&gateway).await;
    let other_buyer = buyer.at(gateway.public);
    let waiter = Visitor::new(gateway.public);
    waiter.load().await;
    between.set(Mode::Swallow);
    let (claim, same_claim, joined) = tokio::join!(buyer.claim("one"), other_buyer.claim("one"), waiter.status());
    for claim in [claim, same_claim] {
        assert!(
            claim.status == 503 || claim.gist() == (409, "claim_in_progress".to_owned()),
            "{}",
            claim.text()
        );
    }
    assert_eq!(joined.json()["delayed"], true);
    between.set(Mode::Cut);
    within("it knows", async || waiter.status().await.json()["delayed"] == true).await;
    between.set(Mode::Pass);
    within("the waiter is in line", async || waiter.status().await.json()["ahead"] == 0).await;
    within("the claim goes through", async || buyer.claim("one").await.status == 201).await;
    assert_eq!(crew.stock().await, [9, 1, 0, 10], "one unit, once");
    assert_eq!(
        (crew.count("line").await, crew.number("joined_total").await),
        (1, 2),
        "one entry, once"
    );
    assert_eq!(crew.shop.claims(), 1, "the shop was asked once");
}

/// The store was away when the shop's answer had to be written down.
#[tokio::test]
async fn an_answer_of_the_shop_is_written_down_when_the_store_is_back() {
    for (status, stock) in [(201, [9, 1, 0, 10]), (422, [10, 0, 0, 10])] {
        let mut crew = Crew::on(Redis::start_durable().await, SALE).await;
        let gateway = crew.gateway().await;
        let buyer = last_one_in(&gateway).await;
        crew.shop.claim_status.store(status, std::sync::atomic::Ordering::SeqCst);
        crew.shop.hold_claims();
        let claiming = buyer.clone();
        let claim = tokio::spawn(async move { claiming.claim("one").await });
        within("the claim is at the shop", async || crew.shop.claims() == 1).await;
        crew.redis.kill().await;
        within("it knows", async || buyer.claim("two").await.status == 503).await;
        crew.shop.answer_claims();
        let answer = crate::backend::soon(claim).await.unwrap();
        assert_eq!(answer.status, status, "the buyer is told at once: {}", answer.text());
        crew.redis.revive().await;
        within("the store knows", async || crew.stock().await == stock).await;
        within("a repeat gets the first answer", async || buyer.claim("one").await.status == status).await;
        let repeat = buyer.claim("one").await;
        assert_eq!(
            (repeat.body, repeat.headers["idempotency-replayed"].as_bytes()),
            (answer.body, &b"true"[..])
        );
        assert_eq!(crew.shop.claims(), 1, "the shop was asked once");
    }
}

#[tokio::test]
async fn sold_out_is_said_without_the_store() {
    let mut crew = Crew::on(
        Redis::start_durable().await,
        "rate = \"50/s\"\nstock = 1\nclaim.path = \"/sale/claim\"\n",
    )
    .await;
    let gateway = crew.gateway().await;
    let (buyer, late) = (Visitor::new(gateway.public), Visitor::new(gateway.public));
    for visitor in [&buyer, &late] {
        within("in", async || visitor.gets_in().await).await;
    }
    let order = buyer.claim("one").await.text();
    let id = order.strip_prefix("order of ").expect("an order");
    let paid = operate(
        gateway.operators,
        Method::POST,
        &format!("/v1/rooms/42/reservations/{id}/confirm"),
        "",
    )
    .await;
    assert_eq!(paid.status, 200, "{}", paid.text());
    let newcomer = Visitor::new(gateway.public);
    let sold_out = async || newcomer.try_claim("x").await.unwrap().gist() == (409, "sold_out".to_owned());
    within("all know", sold_out).await;
    crew.redis.kill().await;
    within("it knows", async || late.claim("two").await.status == 503).await;
    assert!(
        sold_out().await && buyer.gets_in().await,
        "sold-out answers go on, and whoever bought can pay"
    );
    crew.redis.revive().await;
    within("the late one is told", async || {
        late.claim("two").await.gist() == (409, "sold_out".to_owned())
    })
    .await;
}

/// CASE 95: the subscription was gone, and nobody noticed.
#[tokio::test]
async fn subscriptions_are_killed_again_and_again() {
    let crew = Crew::of("rate = 0\n").await;
    let gateway = crew.gateway().await;
    let line = line_of(3, &[&gateway]).await;
    let mut streams = join_all(line.iter().map(Visitor::stream)).await;
    for word in ["one", "two", "three", "four"] {
        crew.redis.ask::<u64>(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
        let began = Clock::instant();
        gateway.tune(json!({"message": word})).await;
        for stream in &mut streams {
            stream.until(word, |view| view["message"] == word).await;
        }
        assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    }
    crew.redis.ask::<u64>(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
    gateway.tune(json!({"rate": "50/s"})).await;
    for stream in &mut streams {
        stream.state("turn").await;
    }
}

/// CASE 98: a script was not known any more.
#[tokio::test]
async fn scripts_are_forgotten_again_and_again() {
    let crew = Crew::of(SALE).await;
    let gateway = crew.gateway().await;
    let flush = async || crew.redis.ask::<String>(&["SCRIPT", "FLUSH"]).await;
    let buyer = last_one_in(&gateway).await;
    for round in 0..5 {
        let visitor = Visitor::new(gateway.public);
        visitor.load().await;
        flush().await;
        let waits = visitor.status().await.gist();
        assert!(["waiting", "nearly"].contains(&waits.1.as_str()), "{waits:?}");
        assert!(visitor.place() > 0);
        flush().await;
        assert_eq!(visitor.enter().await.gist(), (409, "not_called".to_owned()));
        flush().await;
        assert_eq!(visitor.leave().await.gist(), (200, "gone".to_owned()));
        flush().await;
        let claim = buyer.claim(&format!("key-{round}")).await;
        let order = claim.text();
        let id = order.strip_prefix("order of ").expect("the order, and later the same one again");
        flush().await;
        gateway.tune(json!({"message": format!("round {round}")})).await;
        flush().await;
        let verdict = if round < 4 { "confirm" } else { "release" };
        let path = format!("/v1/rooms/42/reservations/{id}/{verdict}");
        let settled = operate(gateway.operators, Method::POST, &path, "").await;
        assert_eq!(settled.status, if round < 4 { 200 } else { 409 }, "{}", settled.text());
    }
}

/// Two gateways, and a line of theirs in which nobody was ever called.
async fn about_to_be_emptied(room: &str) -> (Crew, [Gateway; 2]) {
    let crew = Crew::of(room).await;
    let gateways = [crew.gateway().await, crew.gateway().await];
    (crew, gateways)
}

/// Empties the store, not in the second in which its line began.
async fn empty(crew: &Crew) {
    let epoch = crew.number("epoch").await;
    let another_second = async || {
        let time: Vec<u64> = crew.redis.ask(&["TIME"]).await;
        time[0] - 1_767_225_600 > epoch
    };
    within("another second", another_second).await;
    crew.redis.ask::<String>(&["FLUSHALL"]).await;
}

/// CASES 106 and 83: a line began anew after its data was lost, and old places meant nothing, or everything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emptied_store_gets_its_line_back_in_order() {
    let sale = format!("{SALE}rebuild = \"3s\"\n");
    let (crew, [a, b]) = about_to_be_emptied(&sale).await;
    let buyer = last_one_in(&a).await;
    let line = line_of(30, &[&a, &b]).await;
    let mut order: Vec<String> = line.iter().map(Visitor::ticket).collect();
    let places: Vec<u64> = line.iter().map(Visitor::place).collect();
    // Most watch a stream, some only poll.
    let mut streams = join_all(line.iter().filter(|visitor| visitor.place() % 5 > 0).map(Visitor::stream)).await;
    let pollers: Vec<&Visitor> = line.iter().filter(|visitor| visitor.place() % 5 == 0).collect();
    within("all are counted", async || line[29].status().await.json()["ahead"] == 29).await;
    empty(&crew).await;
    let newcomer = Visitor::new(b.public);
    let early = async || {
        let view = newcomer.joins().await;
        newcomer.place() > 0 && view["state"] != "turn"
    };
    within("a newcomer has a place", early).await;
    order.push(newcomer.ticket());
    join_all(pollers.iter().map(|visitor| visitor.status())).await;
    within("all tickets are back", async || crew.count("line").await == order.len()).await;
    assert_eq!(
        crew.members("line").await,
        order,
        "in the order of their places, and newcomers after them"
    );
    for (visitor, place) in line.iter().zip(&places) {
        visitor.status().await;
        assert_eq!(visitor.place(), *place);
    }
    let last = line[29].status().await.json();
    assert!(last["ahead"].as_u64().is_none_or(|ahead| ahead <= 29), "{last}");
    assert!(buyer.gets_in().await, "the admitted go on");
    let claim = buyer.claim("one").await;
    assert_eq!(claim.gist(), (503, "stock_unknown".to_owned()), "{}", claim.text());

    a.tune(json!({"rate": "10/s", "stock": 10})).await;
    let (shut_until, mut opened) = (crew.number("shut_until").await, false);
    assert!(shut_until > 0);
    let emptied = async || {
        let time: Vec<u64> = crew.redis.ask(&["TIME"]).await;
        let (now_ms, called, still) = (
            time[0] * 1000 + time[1] / 1000,
            crew.number("called_total").await,
            crew.members("line").await,
        );
        assert!(now_ms >= shut_until || called == 0, "the door is shut while tickets come back");
        let tail = &order[order.len() - still.len()..];
        assert_eq!(still, tail, "called in the order of places");
        still.is_empty()
    };
    within("all are called", emptied).await;
    opened |= crew.number("called_total").await == order.len() as u64;
    assert!(opened);
    for stream in &mut streams {
        stream.state("turn").await;
    }
    assert!(line[0].gets_in().await && newcomer.gets_in().await);
    assert_eq!(buyer.claim("two").await.status, 201);
    assert_eq!(crew.stock().await, [9, 1, 0, 10]);
}

/// CASE 106: the stream came while the store was away, the store came back without its memory, and the ticket was taken for a new one.
#[tokio::test]
async fn a_stream_opened_without_the_store_keeps_its_place_though_the_store_forgot() {
    let mut crew = Crew::of("rate = 0\nrebuild = \"500ms\"\n").await;
    let gateway = crew.gateway().await;
    let line = line_of(5, &[&gateway]).await;
    let order: Vec<String> = line.iter().map(Visitor::ticket).collect();
    let others = join_all(line[1..].iter().map(Visitor::stream)).await;
    let epoch = crew.number("epoch").await;
    crew.redis.kill().await;
    within("it knows", async || line[0].status().await.json()["delayed"] == true).await;
    let mut stream = line[0].stream().await;
    assert_eq!(stream.view().await["delayed"], true);
    within("another second", async || {
        waitgate::clock::Clock::system().now_ms() / 1000 - 1_767_225_600 > epoch
    })
    .await;
    crew.redis.revive().await;
    within("all tickets are back", async || crew.count("line").await == 5).await;
    assert_eq!(crew.members("line").await, order, "at their own places");
    line[0].status().await;
    assert_eq!(crew.count("line").await, 5);
    drop(others);
}

/// A gateway that starts while the store is away has counted nothing, and made up a number.
#[tokio::test]
async fn a_gateway_that_starts_without_the_store_makes_up_no_numbers() {
    let mut crew = Crew::on(Redis::start_durable().await, "rate = 0\n").await;
    let before = crew.gateway().await;
    let line = line_of(3, &[&before]).await;
    crew.redis.kill().await;
    before.stopped().await;
    let gateway = crew.gateway().await;
    let visitor = line[2].at(gateway.public);
    assert_eq!(visitor.load().await.status, 200);
    let view = visitor.status().await.json();
    assert_eq!((&view["delayed"], &view["ahead"]), (&json!(true), &json!(null)), "{view}");
    let mut stream = visitor.stream().await;
    assert_eq!(stream.view().await["ahead"], json!(null));
    crew.redis.revive().await;
    stream.until("the number", |view| view["ahead"] == 2).await;
    assert!(soon_over(&mut stream).await);
}

/// Whether a stream goes on.
async fn soon_over(stream: &mut crate::crew::Events) -> bool {
    !matches!(
        tokio::time::timeout(Duration::from_millis(50), stream.next()).await,
        Ok(Event::End | Event::Bye)
    )
}

/// A room that opens when the store is lost lets pass at its rate, and no more.
#[tokio::test]
async fn an_open_door_lets_pass_at_the_rate() {
    let mut crew = Crew::on(Redis::start_durable().await, "rate = \"10/s\"\non_store_loss = \"open\"\n").await;
    let gateway = crew.gateway().await;
    crew.redis.kill().await;
    let line: Vec<_> = (0..60).map(|_| Visitor::new(gateway.public)).collect();
    let began = Clock::instant();
    let mut inside: Vec<Visitor> = Vec::new();
    let mut outside = line;
    while began.elapsed() < Duration::from_secs(3) {
        for visitor in std::mem::take(&mut outside) {
            let list = if visitor.gets_in().await { &mut inside } else { &mut outside };
            list.push(visitor);
            let allowed = 10.0 * began.elapsed().as_secs_f64() + 10.0 + 1.0;
            assert!((inside.len() as f64) <= allowed, "{} after {:?}", inside.len(), began.elapsed());
        }
    }
    assert!(inside.len() >= 25, "{} passed", inside.len());
    assert!(inside[0].gets_in().await, "whoever is in goes on");
    crew.redis.revive().await;
    let next = &outside[0];
    within("the store is found", async || next.status().await.json()["delayed"].is_null()).await;
    within("the next one gets in", async || next.gets_in().await).await;
    assert_eq!(crew.number("called_total").await, 1, "by the store again");
    assert!(inside[0].gets_in().await);
}
