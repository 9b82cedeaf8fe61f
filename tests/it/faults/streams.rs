//! Many streams, slow ones, silent ones, and what each is told and how often.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use waitgate::config;
use waitgate::queue::Line;
use waitgate::queue::positions::Positions;
use waitgate::response::view::{State, View};
use waitgate::room::Room;
use waitgate::store::scripts::{Standing, Tuning};
use waitgate::telemetry::Metrics;
use waitgate::token::Ticket;
use waitgate::waiting::live::Feed;
use waitgate::waiting::seat::{Message, Next, Taken};
use waitgate::waiting::sight::Sight;
use waitgate::waiting::sse;

use crate::crew::{Crew, Event, Visitor};
use crate::harness::{NOON, TERMS, World, seed, within};

/// The feed of a room on a real store, with a clock that a test moves.
struct Stage {
    world: World,
    room: Arc<Room>,
    line: Arc<Line>,
    feed: Arc<Feed>,
    tickets: Vec<Ticket>,
}

impl Stage {
    /// So many wait at this rate.
    async fn of(rate_milli: u64, people: usize) -> Self {
        let world = World::with(seed(rate_milli)).await;
        let text = "[rooms.42]\npaths = [\"/\"]\nupstream = \"http://127.0.0.1:1\"\non_store_loss = \"hold\"\n";
        let settings = config::parse(text, std::path::Path::new("w.toml")).unwrap().rooms.remove(0);
        let room = Arc::new(Room::new(settings, world.room.clone(), world.clock.clone()));
        let line = Line::start(
            Arc::clone(&room),
            Arc::new(Metrics::new()),
            CancellationToken::new(),
            &TaskTracker::new(),
        );
        world.join(&["the one who is let in at once"]).await;
        let ids: Vec<String> = (0..people).map(|number| format!("t{number}")).collect();
        let mut tickets = Vec::new();
        for ids in ids.chunks(500) {
            let names: Vec<&str> = ids.iter().map(String::as_str).collect();
            for (id, standing) in ids.iter().zip(world.join(&names).await) {
                tickets.push(Ticket {
                    id: id.clone(),
                    epoch: 1,
                    place: crate::harness::place(standing),
                    arrived_ms: NOON,
                });
            }
        }
        let feed = Feed::new(Arc::clone(&room), Arc::clone(&line));
        let stage = Self {
            world,
            room,
            line,
            feed,
            tickets,
        };
        stage.beat(0).await;
        stage
    }

    /// Time passes, and a gateway does what it does each second.
    async fn beat(&self, ms: u64) {
        self.world.advance_ms(ms);
        let store = &self.room.store;
        let ticked = store.admit(&TERMS).await.unwrap().unwrap();
        self.room.learn_time(ticked.now_ms);
        self.room.advance(ticked.epoch, ticked.frontier);
        self.room.learn(store.show().await.unwrap().unwrap());
        self.room.learn_reach(true, ticked.at_once);
        self.line.count(Positions::new(store.measure().await.unwrap().unwrap()));
        self.line.note_pace(true);
        self.feed.pass().await;
    }

    async fn seat(&self, number: usize) -> (View, Taken) {
        let ticket = &self.tickets[number];
        let standing = self.world.join(&[&ticket.id]).await[0];
        let view = Sight::of(&self.room).standing(&self.line, standing);
        let taken = self.feed.take_seat(ticket, Some(standing), &view).unwrap();
        (view, taken)
    }
}

fn said(taken: &mut Taken) -> Option<Next> {
    taken.next().now_or_never()
}

fn json_of(next: Option<Next>) -> Value {
    match next {
        Some(Next::State(message) | Next::End(Some(message))) => serde_json::from_slice(&message.json()).unwrap(),
        other => panic!("no state but {other:?}"),
    }
}

/// CASE 34: a balancer cut the stream of somebody whose number did not change for a minute. Not all at one moment: they were told at one moment.
#[tokio::test]
async fn a_silent_stream_shows_a_sign_of_life_within_fifteen_seconds() {
    let stage = Stage::of(0, 20).await;
    let (view, taken) = stage.seat(2).await;
    let mut watched = Vec::new();
    for number in 3..20 {
        watched.push(stage.seat(number).await.1);
    }
    let mut body = sse::stream(&Message::new(&view), Some(taken), None).into_body();
    let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
    assert!(first.starts_with(b"retry: ") && first.ends_with(b"\n\n"), "{first:?}");
    let (mut quiet_s, mut quiet) = (0, vec![0; watched.len()]);
    let mut waits = std::collections::BTreeSet::new();
    for _ in 0..40 {
        stage.beat(1_000).await;
        quiet_s += 1;
        if let Some(sign) = body.frame().now_or_never() {
            assert_eq!(sign.unwrap().unwrap().into_data().unwrap(), ":\n\n");
            assert!((11..=15).contains(&std::mem::take(&mut quiet_s)));
        }
        for (taken, quiet) in watched.iter_mut().zip(&mut quiet) {
            *quiet += 1;
            if let Some(next) = said(taken) {
                assert_eq!(next, Next::KeepAlive);
                waits.insert(std::mem::take(quiet));
            }
        }
        assert!(quiet_s <= 15 && quiet.iter().all(|&quiet| quiet <= 15), "{quiet_s} {quiet:?}");
    }
    assert!(waits.len() > 2 && waits.iter().all(|wait| (11..=15).contains(wait)), "{waits:?}");
}

/// CASES 41 and 43: whoever read slowly was dropped, or was kept every message.
#[tokio::test]
async fn a_slow_reader_gets_the_newest_alone() {
    let stage = Stage::of(0, 2).await;
    let ((view, mut slow), (_, mut quick)) = (stage.seat(0).await, stage.seat(1).await);
    for number in 0..100_000_u64 {
        let view = View {
            message: Some(number.to_string()),
            ..view.clone()
        };
        stage.feed.tell(&stage.tickets[0].id, &view);
        if number % 100 == 0 {
            stage.feed.tell(&stage.tickets[1].id, &view);
            assert_eq!(json_of(said(&mut quick))["message"], number.to_string());
        }
    }
    assert_eq!(json_of(said(&mut slow))["message"], "99999");
    assert_eq!(said(&mut slow), None);
    let view = View {
        state: State::Admitted,
        ..view
    };
    stage.feed.tell(&stage.tickets[0].id, &view);
    assert_eq!(json_of(said(&mut slow))["state"], "admitted", "and it goes on to the end");
}

/// News near the door matters each second; at the far end it would only cost.
#[tokio::test]
async fn the_further_away_the_less_often_numbers_are_told() {
    let stage = Stage::of(1_000, 900).await;
    let (_, mut near) = stage.seat(45).await;
    let (_, mut middle) = stage.seat(400).await;
    let (_, mut far) = stage.seat(899).await;
    let mut told = [0, 0, 0];
    let mut least = [u64::MAX; 3];
    for _ in 0..40 {
        stage.beat(1_000).await;
        for (index, seat) in [&mut near, &mut middle, &mut far].into_iter().enumerate() {
            while let Some(next) = said(seat) {
                if next != Next::KeepAlive {
                    let ahead = json_of(Some(next))["ahead"].as_u64().unwrap();
                    assert!(ahead <= least[index], "{ahead} after {}", least[index]);
                    (least[index], told[index]) = (ahead, told[index] + 1);
                }
            }
        }
    }
    let [near, middle, far] = told;
    assert!((35..=41).contains(&near), "{told:?}");
    assert!((4..=12).contains(&middle), "{told:?}");
    assert!((1..=4).contains(&far), "{told:?}");
}

fn is_turn(next: &Next) -> bool {
    matches!(next, Next::State(message) if message.event().starts_with(b"data: {\"state\":\"turn\""))
}

/// Somebody's turn came while thousands were being told a number, and was told after them all.
#[tokio::test]
async fn whoever_is_called_during_a_pass_does_not_wait_for_its_end() {
    let stage = Stage::of(0, 6_000).await;
    let mut seats = Vec::new();
    for number in 0..6_000 {
        let standing = Standing::Waiting {
            place: stage.tickets[number].place,
            behind: false,
        };
        let view = Sight::of(&stage.room).standing(&stage.line, standing);
        seats.push(stage.feed.take_seat(&stage.tickets[number], Some(standing), &view).unwrap());
    }
    // All have something to hear.
    let message = Some("Hello".to_owned());
    let tuning = Tuning {
        message,
        ..Tuning::default()
    };
    stage.room.store.tune("a test", "hello", &tuning).await.unwrap();
    stage.room.learn(stage.room.store.show().await.unwrap().unwrap());
    let mut pass = Box::pin(stage.feed.pass());
    assert!((&mut pass).now_or_never().is_none());
    stage.room.advance(stage.room.live().shown.epoch, stage.tickets[5_999].place);
    let mut turns = 0;
    while (&mut pass).now_or_never().is_none() {
        turns += seats.iter_mut().filter_map(said).filter(is_turn).count();
        tokio::task::yield_now().await;
    }
    assert!(turns > 0, "nobody was told before it was over");
}

/// CASE 38: a stale or absurd `Last-Event-ID` brought the whole history, or nothing.
#[tokio::test]
async fn what_was_heard_before_does_not_matter() {
    let crew = Crew::of("rate = 0\n").await;
    let gateway = crew.gateway().await;
    let visitor = Visitor::new(gateway.public);
    visitor.joins().await;
    within("it is counted", async || visitor.status().await.json()["ahead"] == 0).await;
    let long = "9".repeat(10 * 1024);
    for id in ["", "17", "end", "epoch 3; 18446744073709551616", &long] {
        let mut stream = visitor.try_stream(&[("last-event-id", id)]).await.unwrap();
        assert_eq!(stream.status, 200);
        assert_eq!(stream.headers["content-type"], "text/event-stream");
        assert_eq!(stream.headers["cache-control"], "no-store, no-transform");
        assert_eq!(stream.headers["x-accel-buffering"], "no");
        let first = stream.view().await;
        assert_eq!((&first["state"], &first["ahead"]), (&json!("waiting"), &json!(0)), "{first}");
        // Nothing of what was: whatever comes next is news of the room, made after the snapshot.
        match tokio::time::timeout(Duration::from_millis(100), stream.next()).await {
            Err(_) => {}
            Ok(Event::View(next)) => assert!(next["updated_at_ms"].as_u64() > first["updated_at_ms"].as_u64(), "{first} {next}"),
            Ok(other) => panic!("one snapshot, and no more: {other:?}"),
        }
    }
}

/// Two hundred watch while people leave and others are let in: no number gets worse, and each stream hears its end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numbers_only_get_better() {
    let crew = Crew::of("rate = 0\nturn_ttl = \"1min\"\n").await;
    let gateways = [crew.gateway().await, crew.gateway().await];
    let people: Vec<_> = (0..200).map(|number| Visitor::new(gateways[number % 2].public)).collect();
    join_all(people.iter().map(Visitor::joins)).await;
    within("all are counted", async || {
        let views = join_all(people.iter().map(Visitor::status)).await;
        let mut ahead: Vec<_> = views.iter().filter_map(|view| view.json()["ahead"].as_u64()).collect();
        ahead.sort_unstable();
        ahead == (0..200).collect::<Vec<_>>()
    })
    .await;
    let streams = join_all(people.iter().map(Visitor::stream)).await;
    let watching = streams.into_iter().map(|mut stream| {
        tokio::spawn(async move {
            let mut shown = Vec::new();
            loop {
                let view = stream.view().await;
                shown.extend(view["ahead"].as_u64());
                let state = view["state"].as_str().unwrap_or_default().to_owned();
                if ["turn", "gone"].contains(&state.as_str()) {
                    return (state, shown, stream);
                }
            }
        })
    });
    let watching: Vec<_> = watching.collect();
    gateways[0].tune(json!({"rate": "40/s"})).await;
    let leavers: Vec<_> = people.iter().skip(110).step_by(4).collect();
    for reply in join_all(leavers.iter().map(|leaver| leaver.leave())).await {
        assert_eq!(reply.status, 200);
    }
    let mut left = 0;
    for told in join_all(watching).await {
        let (state, shown, mut stream) = told.unwrap();
        assert!(shown.is_sorted_by(|before, after| before >= after), "{shown:?}");
        if state == "gone" {
            left += 1;
            assert_eq!(stream.next().await, Event::End);
        }
    }
    assert_eq!(left, leavers.len());
    assert_eq!(crew.number("called_total").await, 200 - leavers.len() as u64);
}
