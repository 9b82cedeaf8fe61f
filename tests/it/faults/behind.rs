//! The store falls behind: who is asked for first, and who is told to come back.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use waitgate::clock::Clock;
use waitgate::config;
use waitgate::queue::Line;
use waitgate::room::Room;
use waitgate::store::scripts::Knock;
use waitgate::telemetry::Metrics;

use crate::crew::{Crew, Visitor, metric};
use crate::harness::{NOON, World, joining, place, seed, within};

/// Loads the page so many times, one after the other: each has a ticket that says when it came, and no place.
async fn arrive(at: std::net::SocketAddr, people: usize) -> Vec<Visitor> {
    let mut all = Vec::new();
    for _ in 0..people {
        let visitor = Visitor::new(at);
        visitor.load().await;
        assert_eq!(visitor.place(), 0);
        all.push(visitor);
        // Tickets say when in milliseconds: each comes in one of its own.
        let came = Clock::system().now_ms();
        within("the next millisecond", async || Clock::system().now_ms() > came).await;
    }
    all
}

/// Asks made while a call is in flight go in the next one, in the order in which people came, not in that of the asks.
#[tokio::test]
async fn whoever_came_first_is_first_however_late_he_asks() {
    let world = World::with(seed(0)).await;
    let text = "[rooms.42]\npaths = [\"/\"]\nupstream = \"http://127.0.0.1:1\"\non_store_loss = \"hold\"\n";
    let settings = config::parse(text, std::path::Path::new("w.toml")).unwrap().rooms.remove(0);
    let room = Arc::new(Room::new(settings, world.room.clone(), world.clock.clone()));
    let metrics = Arc::new(Metrics::new());
    let line = Line::start(room, Arc::clone(&metrics), CancellationToken::new(), &TaskTracker::new());
    world.redis.signal("STOP").await;
    let ask = |name: &str, came_ms| {
        let line = Arc::clone(&line);
        let joining = joining(name, 0, Knock::Join);
        tokio::spawn(async move { line.join(joining, came_ms).await.unwrap().standing })
    };
    let first = ask("the last to come", NOON + 99);
    within("its call is in flight", async || {
        metrics.encode().contains("join_batch_tickets_count 1")
    })
    .await;
    let others: Vec<_> = (0..50).rev().map(|number| ask(&format!("t{number}"), NOON + number)).collect();
    // Not before all of them have asked.
    within("all wait", async || line.waiting() == 50).await;
    world.redis.signal("CONT").await;
    let before = place(first.await.unwrap());
    for (number, other) in (0..50).rev().zip(others) {
        assert_eq!(place(other.await.unwrap()), before + 1 + number);
    }
    assert!(metrics.encode().contains("join_batch_tickets_count 2"), "in one call");
}

/// A store that does not keep up: newcomers hear at once that it takes longer and when to come back, whoever has a place or a stream waits, and
/// afterwards all are in the order in which they came.
#[tokio::test]
async fn when_the_store_is_behind_newcomers_come_back_and_lose_nothing() {
    let mut crew = Crew::of("rate = 0\n").await;
    crew.store_timeout = "20s";
    let gateway = crew.gateway().await;
    let people = arrive(gateway.public, 6).await;
    crew.redis.signal("STOP").await;
    // This one's call does not come back.
    let stuck = tokio::spawn({
        let visitor = people[5].at(gateway.public);
        async move { visitor.status().await }
    });
    within("they are put off", async || {
        let began = Clock::instant();
        let told = people[0].try_status().await;
        began.elapsed() < Duration::from_millis(500) && told.is_ok_and(|reply| reply.json()["delayed"] == true)
    })
    .await;
    for newcomer in people[..5].iter().rev() {
        let began = Clock::instant();
        let told = newcomer.status().await.json();
        assert!(began.elapsed() < Duration::from_millis(500), "{:?}", began.elapsed());
        assert_eq!(
            (&told["delayed"], &told["ahead"]),
            (&true.into(), &serde_json::Value::Null),
            "{told}"
        );
        assert!((3..=10).contains(&told["poll_after_s"].as_u64().unwrap()), "{told}");
        assert_eq!(newcomer.place(), 0);
    }
    // Who has a stream waits in it.
    let mut stream = people[0].stream().await;
    assert_eq!(stream.view().await["delayed"], true);
    crew.redis.signal("CONT").await;
    assert!(metric(gateway.operators, "waitgate_joins_put_off_total").await >= 5.0);
    stuck.await.unwrap();
    within("it has caught up", async || people[0].status().await.json()["delayed"].is_null()).await;
    join_all(people.iter().rev().map(Visitor::status)).await;
    stream.until("it has a place", |view| view["delayed"].is_null()).await;
    let mut places: Vec<u64> = Vec::new();
    let line = crew.members("line").await;
    for visitor in &people {
        let place = line.iter().position(|ticket| *ticket == visitor.ticket());
        places.push(place.expect("everybody is in line") as u64);
    }
    assert_eq!(places.len(), line.len());
}
