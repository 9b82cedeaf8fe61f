//! Several gateways on one Redis: one rate, one line, one presence, whoever of them lives.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::join_all;
use http::Method;
use serde_json::{Value, json};
use tokio::sync::watch;
use waitgate::clock::Clock;

use crate::backend::{PATIENCE, soon};
use crate::between::{Between, Mode};
use crate::crew::{Checker, Crew, Event, Visitor, metric, operate, wait_and_enter};
use crate::harness::{Redis, within};

/// A room of this rate, and a second of it as burst.
fn at(rate: u64) -> String {
    format!("rate = \"{rate}/s\"")
}

/// A room in which nobody is called.
const STILL: &str = "rate = 0\n";

/// So many visitors, spread over the gateways.
fn people(count: usize, gateways: &[SocketAddr]) -> Vec<Visitor> {
    (0..count).map(|number| Visitor::new(gateways[number % gateways.len()])).collect()
}

/// Lets all these in while every window of time is held against the rate; `meanwhile` happens meanwhile.
async fn hold_the_rate(crew: &Crew, rate: u64, people: Vec<Visitor>, gateways: &[SocketAddr], meanwhile: impl Future<Output = ()>) {
    let (stop, stopping) = watch::channel(false);
    let count = people.len();
    let all_in = async {
        let crowd = people.into_iter().map(|visitor| {
            let gateways = gateways.to_vec();
            tokio::spawn(async move { wait_and_enter(visitor, &gateways).await })
        });
        let (shown, ()) = tokio::join!(join_all(crowd), meanwhile);
        stop.send_replace(true);
        shown.into_iter().map(|shown| shown.expect("a visitor got in"))
    };
    let (shown, checker) = tokio::join!(all_in, Checker::watch(&crew.redis, stopping));
    checker.assert_rate(rate, rate);
    for shown in shown {
        assert!(shown.is_sorted_by(|before, after| before >= after), "a number got worse: {shown:?}");
    }
    assert_eq!(checker.called(), count as u64, "everybody was called once, and nobody else");
    assert_eq!(crew.number("joined_total").await, count as u64, "everybody joined once");
    let seen = crew.shop.backend.seen();
    let users: BTreeSet<_> = seen.iter().map(|request| request.one("waitgate-user")).collect();
    assert_eq!(users.len(), count, "and each saw the shop");
}

/// CASE 17: several gateways together admitted more than the rate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_gateways_admit_no_more_than_the_rate() {
    let crew = Crew::of(&at(20)).await;
    let (a, b) = (crew.gateway().await, crew.gateway().await);
    let both = [a.public, b.public];
    hold_the_rate(&crew, 20, people(100, &both), &both, async {}).await;
}

/// CASE 17.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_gateways_admit_no_more_than_the_rate() {
    let crew = Crew::of(&at(30)).await;
    let gateways = [
        crew.gateway().await,
        crew.gateway().await,
        crew.gateway().await,
        crew.gateway().await,
    ];
    let all = gateways.each_ref().map(|gateway| gateway.public);
    hold_the_rate(&crew, 30, people(120, &all), &all, async {}).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_stops_softly_and_the_other_goes_on() {
    let crew = Crew::of(STILL).await;
    let (a, b) = (crew.gateway().await, crew.gateway().await);
    let both = [a.public, b.public];
    let line = people(80, &both);
    join_all(line.iter().map(Visitor::joins)).await;
    b.tune(json!({"rate": "20/s"})).await;
    let stop = async {
        within("it is in full swing", async || crew.number("called_total").await >= 30).await;
        a.stopped().await;
    };
    hold_the_rate(&crew, 20, line, &both, stop).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_is_killed_and_the_other_goes_on() {
    let crew = Crew::of(STILL).await;
    let b = crew.gateway().await;
    let mut a = crew.process(None).await;
    let both = [a.public, b.public];
    let line = people(80, &both);
    join_all(line.iter().map(Visitor::joins)).await;
    b.tune(json!({"rate": "20/s"})).await;
    let kill = async {
        within("it is in full swing", async || crew.number("called_total").await >= 30).await;
        a.child.kill().await.unwrap();
    };
    hold_the_rate(&crew, 20, line, &both, kill).await;
}

/// CASE 17: a gateway that cannot reach the store admitted by itself.
#[tokio::test]
async fn a_gateway_cut_from_the_store_admits_nobody_and_the_other_goes_on() {
    let crew = Crew::of(&at(10)).await;
    let between = Between::start(&crew.redis);
    let (well, cut) = (crew.gateway().await, crew.gateway_through(&between.url()).await);
    between.set(Mode::Cut);
    let waiter = Visitor::new(cut.public);
    let delayed = || async {
        waiter.load().await;
        waiter.status().await.json()["delayed"] == true
    };
    within("it knows", async || delayed().await).await;
    let only = [well.public];
    let others: Vec<_> = (0..15).map(|_| wait_and_enter(Visitor::new(well.public), &only)).collect();
    let tries = async {
        for _ in 0..20 {
            assert!(!waiter.gets_in().await);
        }
    };
    tokio::join!(join_all(others), tries);
    assert_eq!(crew.number("called_total").await, 15);
    between.set(Mode::Pass);
    wait_and_enter(waiter, &[cut.public]).await;
}

#[tokio::test]
async fn whoever_goes_from_one_gateway_to_the_other_is_not_away() {
    let crew = Crew::of(&format!("{STILL}away_after = \"500ms\"\ngrace = \"1s\"")).await;
    let (a, b) = (crew.gateway().await, crew.gateway().await);
    let (mover, leaver) = (Visitor::new(a.public), Visitor::new(a.public));
    mover.joins().await;
    leaver.joins().await;
    let place = mover.place();
    let (on_a, leaving) = (mover.stream().await, leaver.stream().await);
    let mut on_b = mover.at(b.public).stream().await;
    on_b.view().await;
    drop(on_a);
    drop(leaving);
    let gone = async |visitor: &Visitor| crew.members("gone").await.contains(&visitor.ticket());
    within("who left for good is given up", async || gone(&leaver).await).await;
    assert_eq!(crew.members("line").await, [mover.ticket()], "who moved is in line");
    assert_eq!(crew.members("away").await, Vec::<String>::new());
    assert_eq!(mover.status().await.json()["state"], "waiting");
    assert_eq!(mover.place(), place);
    a.tune(json!({"rate": "1/s"})).await;
    on_b.state("turn").await;
}

/// CASE 95: "away" was said while the subscription of the gateway that knew better was being rebuilt.
#[tokio::test]
async fn who_is_here_is_not_away_though_the_news_of_it_was_missed() {
    let crew = Crew::of(&format!("{STILL}grace = \"1min\"")).await;
    let gateway = crew.gateway().await;
    let visitor = Visitor::new(gateway.public);
    visitor.joins().await;
    let mut stream = visitor.stream().await;
    stream.view().await;
    let other = crew.redis.store(&Clock::system()).await.room("42");
    let terms = crate::harness::TERMS;
    let away = [waitgate::store::scripts::Presence::Away(visitor.ticket())];
    crew.redis.ask::<u64>(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
    other.depart(&terms, &away).await.unwrap();
    within("its gateway says that it is here", async || crew.count("away").await == 0).await;
    assert_eq!(crew.members("line").await, [visitor.ticket()]);
}

#[tokio::test]
async fn tabs_at_two_gateways_are_both_told_and_enter_once() {
    let crew = Crew::of(STILL).await;
    let (a, b) = (crew.gateway().await, crew.gateway().await);
    let visitor = Visitor::new(a.public);
    visitor.joins().await;
    let other_tab = visitor.at(b.public);
    let (mut on_a, mut on_b, mut socket) = (visitor.stream().await, other_tab.stream().await, other_tab.socket().await);
    a.tune(json!({"message": "soon"})).await;
    for stream in [&mut on_a, &mut on_b] {
        stream.until("the message", |view| view["message"] == "soon").await;
    }
    b.tune(json!({"rate": "5/s"})).await;
    tokio::join!(on_a.state("turn"), on_b.state("turn"), socket.state("turn"));
    let (first, second) = tokio::join!(visitor.enter(), other_tab.enter());
    assert_eq!((first.status.as_u16(), second.status.as_u16()), (200, 200));
    assert_eq!(first.json()["expires_at_ms"], second.json()["expires_at_ms"], "one admission");
    assert_eq!(crew.number("called_total").await, 1);
    for stream in [&mut on_a, &mut on_b] {
        stream.state("admitted").await;
        assert_eq!(soon(stream.next()).await, Event::End);
    }
    assert!(visitor.gets_in().await && other_tab.gets_in().await);
}

/// The number shown came from counts that each gateway took at a moment of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_number_is_no_worse_at_the_other_gateway() {
    let crew = Crew::of(STILL).await;
    let (a, b) = (crew.gateway().await, crew.gateway().await);
    let mut line = Vec::new();
    for number in 0..100 {
        let visitor = Visitor::new(if number % 2 == 0 { a.public } else { b.public });
        visitor.load().await;
        line.push(visitor);
    }
    join_all(line.iter().map(Visitor::status)).await;
    let last = Visitor::new(a.public);
    last.joins().await;
    within("it is counted", async || last.status().await.json()["ahead"] == 100).await;
    a.tune(json!({"rate": "30/s"})).await;
    let mut shown = vec![100];
    let deadline = Clock::instant() + PATIENCE;
    while shown.last() != Some(&0) && Clock::instant() < deadline {
        for at in [a.public, b.public] {
            let mut stream = last.at(at).stream().await;
            let view = stream.view().await;
            shown.extend(view["ahead"].as_u64().or((view["state"] == "turn").then_some(0)));
            shown.extend(last.at(at).status().await.json()["ahead"].as_u64());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(shown.is_sorted_by(|before, after| before >= after), "{shown:?}");
    assert!(shown.len() > 20, "{shown:?}");
}

/// What a gateway shows of the gateways of its room.
async fn known_to(operators: SocketAddr) -> Vec<Value> {
    let room = operate(operators, Method::GET, "/v1/rooms/42", "").await.json();
    room["gateways"].as_array().cloned().unwrap_or_default()
}

/// The settings in which others differ from the one that is asked.
async fn disagreements(operators: SocketAddr) -> Vec<Value> {
    let others = known_to(operators).await.into_iter().filter(|peer| peer["this"] == false);
    others.map(|peer| peer["differs"].clone()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateways_know_of_each_other_and_whether_they_agree() {
    let mut crew = Crew::of(STILL).await;
    let (a, b) = (crew.gateway().await, crew.gateway().await);
    within("both know both", async || {
        known_to(a.operators).await.len() == 2 && known_to(b.operators).await.len() == 2
    })
    .await;
    assert_eq!(disagreements(a.operators).await, [json!([])]);
    let me = known_to(a.operators).await.into_iter().find(|peer| peer["this"] == true).unwrap();
    assert_eq!(me["operators"], a.operators.to_string());
    assert_eq!(me["version"], env!("CARGO_PKG_VERSION"));

    crew.room += "grace = \"77s\"\n";
    let mut other = crew.process(None).await;
    let third = other.operators.to_string();
    within("the third is named with what is other", async || {
        let known = known_to(a.operators).await;
        known.len() == 3
            && known
                .iter()
                .any(|peer| peer["operators"] == third && peer["differs"] == json!(["times"]))
    })
    .await;
    within("it is counted", async || {
        let counted = async |name: &str| metric(b.operators, &format!("waitgate_room_{name}{{room=\"42\"}}")).await;
        counted("gateways").await == 3.0 && counted("settings_differ").await == 1.0
    })
    .await;

    // One that stops says so; one that is killed is forgotten.
    b.stopped().await;
    within("two are left", async || known_to(a.operators).await.len() == 2).await;
    other.child.kill().await.unwrap();
    let deadline = Clock::instant() + Duration::from_secs(20);
    while known_to(a.operators).await.len() > 1 {
        assert!(Clock::instant() < deadline, "it is forgotten");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// With the store lost, a room that opens then lets pass at its rate, whatever the number of its gateways.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_door_is_shared_by_the_gateways_seen_last() {
    let mut crew = Crew::on(Redis::start_durable().await, "rate = \"10/s\"\non_store_loss = \"open\"\n").await;
    let gateways = [crew.gateway().await, crew.gateway().await];
    within("both know both", async || {
        known_to(gateways[0].operators).await.len() == 2 && known_to(gateways[1].operators).await.len() == 2
    })
    .await;
    crew.redis.kill().await;
    let began = Clock::instant();
    let mut inside = 0;
    while began.elapsed() < Duration::from_secs(2) {
        for gateway in &gateways {
            inside += u32::from(Visitor::new(gateway.public).gets_in().await);
            let allowed = 10.0 * began.elapsed().as_secs_f64() + 10.0 + 2.0;
            assert!(f64::from(inside) <= allowed, "{inside} after {:?}", began.elapsed());
        }
    }
    assert!(inside >= 15, "{inside} passed");
}
