//! Who is here: streams that close, visitors who vanish, turns that nobody takes, and many tabs of one visitor.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::backend::soon;
use crate::crew::{Crew, Event, Visitor};
use crate::harness::within;

const STILL: &str = "rate = 0\n";

async fn is_in(crew: &Crew, set: &str, visitor: &Visitor) -> bool {
    crew.members(set).await.contains(&visitor.ticket())
}

/// CASE 28: a phone that put the tab to sleep was dropped without a word.
#[tokio::test]
async fn who_comes_back_within_the_grace_has_the_same_place() {
    let crew = Crew::of(&format!("{STILL}away_after = \"300ms\"\ngrace = \"1min\"")).await;
    let gateway = crew.gateway().await;
    let line: Vec<_> = (0..3).map(|_| Visitor::new(gateway.public)).collect();
    let mut streams = Vec::new();
    for visitor in &line {
        visitor.joins().await;
        streams.push(visitor.stream().await);
    }
    let sleeper = &line[1];
    let place = sleeper.place();
    drop(streams.remove(1));
    within("the sleeper is away", async || is_in(&crew, "away", sleeper).await).await;
    assert!(!is_in(&crew, "away", &line[0]).await && !is_in(&crew, "away", &line[2]).await);
    let mut again = sleeper.stream().await;
    assert_eq!(again.until("the number", |view| view["ahead"].is_u64()).await["ahead"], 1);
    assert_eq!(sleeper.place(), place);
    assert_eq!(crew.count("away").await, 0);
    drop(again);
    within("away again", async || is_in(&crew, "away", sleeper).await).await;
    assert_eq!(sleeper.status().await.json()["ahead"], 1, "a poll brings back, too");
    assert_eq!(crew.count("away").await, 0);
}

#[tokio::test]
async fn beyond_the_grace_it_is_said_that_the_place_was_lost() {
    let crew = Crew::of(&format!("{STILL}away_after = \"300ms\"\ngrace = \"700ms\"")).await;
    let gateway = crew.gateway().await;
    let (lost, stays) = (Visitor::new(gateway.public), Visitor::new(gateway.public));
    lost.joins().await;
    stays.joins().await;
    let mut watching = stays.stream().await;
    drop(lost.stream().await);
    let place = lost.place();
    within("given up", async || is_in(&crew, "gone", &lost).await).await;
    watching.until("one less ahead", |view| view["ahead"] == 0).await;
    let view = lost.status().await.json();
    assert_eq!((&view["state"], &view["reason"]), (&json!("gone"), &json!("abandoned")));
    assert_eq!(lost.enter().await.gist(), (410, "abandoned".to_owned()));
    let mut stream = lost.stream().await;
    assert_eq!(stream.view().await["reason"], "abandoned");
    assert_eq!(soon(stream.next()).await, Event::End);
    let again = lost.join_again().await.json();
    assert_eq!((&again["state"], &again["ahead"]), (&json!("waiting"), &json!(1)), "{again}");
    assert!(lost.place() > place);
}

/// CASE 1: whoever had closed the page stood in the way of everybody else.
#[tokio::test]
async fn who_is_away_blocks_nobody_and_is_next_when_back() {
    let crew = Crew::of("rate = \"50/s\"\ncap = 2\naway_after = \"300ms\"\ngrace = \"1min\"").await;
    let gateway = crew.gateway().await;
    let line: Vec<_> = (0..6).map(|_| Visitor::new(gateway.public)).collect();
    for first in &line[..2] {
        within("the first two are in", async || first.gets_in().await).await;
    }
    let mut streams = Vec::new();
    for visitor in &line[2..] {
        visitor.joins().await;
        streams.push(visitor.stream().await);
    }
    streams.drain(..2);
    within("two are away", async || crew.count("away").await == 2).await;
    gateway.tune(json!({"cap": 4})).await;
    for stream in &mut streams {
        stream.state("turn").await;
    }
    assert!(!line[2].gets_in().await, "there is no room for more");
    let back = line[2].status().await.json();
    assert_eq!((&back["ahead"], &back["reason"]), (&json!(0), &Value::Null), "{back}");
    assert!(line[4].gets_in().await && line[5].gets_in().await);
    gateway.tune(json!({"cap": 6})).await;
    let mut returned = line[2].stream().await;
    returned.state("turn").await;
    assert!(is_in(&crew, "away", &line[3]).await, "who is still away is still kept");
}

/// CASE 2: a turn that nobody took, and an admission that ended, kept their slot, and whoever came late was told nothing.
#[tokio::test]
async fn a_turn_not_taken_lapses_and_the_next_one_is_called() {
    let mut crew = Crew::of("rate = \"50/s\"\ncap = 1\nadmission_ttl = \"2s\"").await;
    crew.turn_ttl = Some(Duration::from_secs(1));
    let gateway = crew.gateway().await;
    let line: Vec<_> = (0..3).map(|_| Visitor::new(gateway.public)).collect();
    within("the first is in", async || line[0].gets_in().await).await;
    let mut streams = Vec::new();
    for visitor in &line[1..] {
        visitor.joins().await;
        streams.push(visitor.stream().await);
    }
    streams[0].state("turn").await;
    let lapsed = streams[0].state("gone").await;
    assert_eq!(lapsed["reason"], "lapsed");
    assert_eq!(soon(streams[0].next()).await, Event::End);
    streams[1].state("turn").await;
    assert_eq!(line[1].enter().await.gist(), (410, "turn_lapsed".to_owned()));
    assert_eq!(line[1].status().await.json()["reason"], "lapsed");
    assert!(!line[0].gets_in().await, "the time inside is over");
    assert_eq!(line[0].enter().await.gist(), (410, "session_ended".to_owned()));
    assert_eq!(line[0].status().await.json()["reason"], "ended");
}

/// CASE 29: each tab, reload and double click added a ghost.
#[tokio::test]
async fn twenty_tabs_are_one_visitor() {
    let crew = Crew::of(STILL).await;
    let (a, b) = (crew.gateway().await, crew.gateway().await);
    let (first, many, last) = (Visitor::new(a.public), Visitor::new(b.public), Visitor::new(a.public));
    first.joins().await;
    many.load().await;
    let tabs: Vec<_> = (0..20).map(|tab| many.at(if tab % 2 == 0 { a.public } else { b.public })).collect();
    let polls = join_all(tabs[..10].iter().map(Visitor::status));
    let streams = join_all(tabs[10..15].iter().map(Visitor::stream));
    let sockets = join_all(tabs[15..].iter().map(Visitor::socket));
    let (polled, mut streams, sockets) = tokio::join!(polls, streams, sockets);
    let place = many.place();
    last.joins().await;
    assert_eq!(crew.members("line").await, [&first, &many, &last].map(Visitor::ticket));
    assert_eq!(crew.number("joined_total").await, 3);
    assert!(polled.iter().all(|reply| reply.json()["state"] == "waiting"));
    within("counted", async || last.status().await.json()["ahead"] == 2).await;
    join_all(tabs.iter().map(Visitor::load)).await;
    assert_eq!((many.status().await.json()["ahead"].clone(), many.place()), (json!(1), place));
    drop(sockets);
    streams.truncate(1);
    many.leave().await;
    assert_eq!(crew.members("line").await, [&first, &last].map(Visitor::ticket));
}

/// Polls are a sign of life; and a socket that ends without a goodbye is none.
#[tokio::test]
async fn who_polls_is_here_and_who_hangs_up_is_not() {
    let crew = Crew::of(&format!("{STILL}away_after = \"1s\"\ngrace = \"1min\"")).await;
    let gateway = crew.gateway().await;
    let (polls, hangs_up) = (Visitor::new(gateway.public), Visitor::new(gateway.public));
    polls.joins().await;
    hangs_up.joins().await;
    drop(hangs_up.socket().await);
    let mut ticks = tokio::time::interval(Duration::from_millis(100));
    let hung_up = async || {
        ticks.tick().await;
        polls.status().await;
        assert!(!is_in(&crew, "away", &polls).await);
        is_in(&crew, "away", &hangs_up).await
    };
    crate::crew::until_so("who hung up is away", hung_up).await;
}
