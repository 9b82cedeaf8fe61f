//! `admit`: the rate over all gateways, the cap, who is passed over, and what is published.

use std::time::Duration;

use tokio::sync::mpsc::Receiver;
use waitgate::clock::Clock;
use waitgate::store::News;
use waitgate::store::scripts::{Knock, Presence, Redeemed, Seed, Standing, Tuning};

use crate::harness::{TERMS, World, joining, place, seed, stocked};

async fn news(from: &mut Receiver<News>) -> News {
    tokio::time::timeout(Duration::from_secs(5), from.recv())
        .await
        .expect("news in time")
        .expect("the store lives")
}

#[tokio::test]
async fn the_rate_calls_the_lowest_places_first() {
    let world = World::of_one_a_second().await;
    let first = world.join(&["a", "b", "c"]).await;
    assert!(matches!(first[0], Standing::Admitted { .. }), "{first:?}");
    assert_eq!(world.tick().await, 0);
    world.advance_ms(999);
    assert_eq!(world.tick().await, 0);
    world.advance_ms(1);
    let ticked = world.room.admit(&TERMS).await.unwrap().unwrap();
    assert_eq!(
        (ticked.called, ticked.waiting, ticked.frontier, ticked.at_once),
        (1, 1, place(first[1]), false)
    );
    assert_eq!(world.tick().await, 0, "what was due has been called");
    assert!(matches!(world.room.redeem(&TERMS, "b").await.unwrap(), Redeemed::Admitted { .. }));
    assert_eq!(world.room.redeem(&TERMS, "c").await.unwrap(), Redeemed::Waiting);
}

#[tokio::test]
async fn at_most_one_second_of_the_rate_is_saved_up() {
    let world = World::with(seed(10_000)).await;
    world.advance_ms(3_600_000);
    let names: Vec<String> = (0..30).map(|n| format!("t{n}")).collect();
    let joined = world.join(&names.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let at_once = joined
        .iter()
        .filter(|standing| matches!(standing, Standing::Admitted { .. }))
        .count();
    assert_eq!((at_once, world.tick().await), (10, 0));
    world.advance_ms(3_600_000);
    assert_eq!(world.tick().await, 10);
    world.advance_ms(450);
    assert_eq!(world.tick().await, 4);
    world.advance_ms(50);
    assert_eq!(world.tick().await, 1, "parts of an admission are not lost");
}

/// CASE 17: several gateways together admitted more than the rate.
#[tokio::test]
async fn four_gateways_together_keep_the_rate() {
    let world = World::with(seed(50_000)).await;
    let names: Vec<String> = (0..3_000).map(|n| format!("t{n}")).collect();
    let all: Vec<_> = names.iter().map(|name| joining(name, 0, Knock::Join)).collect();
    let mut gateways = Vec::new();
    for _ in 0..4 {
        gateways.push(world.redis.store(&world.clock).await.room("42"));
    }
    futures_util::future::join_all(
        all.chunks(100)
            .zip(gateways.iter().cycle())
            .map(|(some, gateway)| gateway.join(&TERMS, some)),
    )
    .await;
    let mut called = 0;
    for step in 1..=40_u64 {
        world.advance_ms(100);
        let ticks = (0..3).flat_map(|_| gateways.iter()).map(|gateway| gateway.admit(&TERMS));
        for ticked in futures_util::future::join_all(ticks).await {
            called += ticked.unwrap().unwrap().called;
        }
        assert!(called <= 5 * step, "{called} after {step} ticks");
    }
    // One was saved at the start, and went at once to the first of the line.
    assert_eq!(called, 200, "and no fewer");
}

/// The same by the store's own clock.
#[tokio::test]
async fn four_gateways_keep_the_rate_by_the_stores_clock() {
    let world = World::bare().await;
    let mut gateways = Vec::new();
    for _ in 0..4 {
        gateways.push(world.redis.store(&Clock::system()).await.room("real"));
    }
    gateways[0].seed(&seed(200_000)).await.unwrap();
    let names: Vec<String> = (0..1_000).map(|n| format!("t{n}")).collect();
    let all: Vec<_> = names.iter().map(|name| joining(name, 0, Knock::Join)).collect();
    gateways[0].join(&TERMS, &all).await.unwrap();
    let first = gateways[0].admit(&TERMS).await.unwrap().unwrap();
    let start = first.now_ms;
    let runs = gateways.iter().map(async |gateway| {
        let (mut called, mut end) = (0, start);
        while end < start + 700 {
            let ticked = gateway.admit(&TERMS).await.unwrap().unwrap();
            called += ticked.called;
            end = ticked.now_ms;
        }
        (called, end)
    });
    let runs = futures_util::future::join_all(runs).await;
    let called: u64 = runs.iter().map(|run| run.0).sum();
    let took_ms = runs.iter().map(|run| run.1).max().unwrap() - start;
    assert!(called * 1_000 <= 200 * took_ms + 1_000, "{called} in {took_ms} ms");
    assert!((called + 2) * 1_000 >= 200 * 700, "{called} in {took_ms} ms");
}

#[tokio::test]
async fn the_cap_counts_the_called_and_the_admitted() {
    let world = World::with(Seed { cap: 2, ..seed(100_000) }).await;
    world.join(&["a", "b", "c", "d"]).await;
    world.advance_ms(1_000);
    assert_eq!(world.tick().await, 1, "one was admitted at once");
    world.advance_ms(TERMS.turn_ms - 1);
    assert_eq!(world.tick().await, 0);
    world.advance_ms(1);
    assert_eq!(world.tick().await, 1, "a turn that lapsed makes room, swept or not");
    world.advance_ms(TERMS.admission_ms);
    assert_eq!(world.tick().await, 1, "only d is left");
    assert!(
        world.room.admit(&TERMS).await.unwrap().unwrap().at_once,
        "and there is room for one more"
    );
}

/// CASE 1: people who vanished blocked the line for everybody.
#[tokio::test]
async fn whoever_is_away_is_passed_over_and_comes_back_to_its_own_place() {
    let world = World::with(seed(10_000)).await;
    let names: Vec<String> = (1..=31).map(|n| format!("t{n:02}")).collect();
    let joined = world.join(&names.iter().map(String::as_str).collect::<Vec<_>>()).await;
    world.advance_ms(1_000);
    assert_eq!(world.tick().await, 10, "t02 to t11; t01 went at once");
    let away: Vec<_> = names[11..21].iter().map(|name| Presence::Away(name.clone())).collect();
    world.room.depart(&TERMS, &away).await.unwrap();
    world.advance_ms(1_000);
    let ticked = world.room.admit(&TERMS).await.unwrap().unwrap();
    assert_eq!((ticked.called, ticked.waiting), (10, 0), "t22 to t31, at no cost to them");
    assert_eq!(ticked.frontier, place(joined[30]));
    assert!(matches!(world.knock("t31", 0, Knock::Join).await, Standing::Called { .. }));
    assert_eq!(world.room.redeem(&TERMS, "t15").await.unwrap(), Redeemed::Waiting);
    let back = world.knock("t15", 0, Knock::Join).await;
    assert_eq!(
        back,
        Standing::Waiting {
            place: place(joined[14]),
            behind: true
        }
    );
    world.join(&["new"]).await;
    world.advance_ms(100);
    assert_eq!(world.tick().await, 1);
    assert!(
        matches!(world.knock("t15", 0, Knock::Join).await, Standing::Called { .. }),
        "before whoever came later"
    );
    world.advance_ms(TERMS.grace_ms);
    assert_eq!(world.room.sweep(&TERMS).await.unwrap().abandoned, 9);
    let measured = world.room.measure().await.unwrap().unwrap();
    assert_eq!(
        measured.blocks.iter().map(|(_, count)| count).sum::<u64>(),
        1,
        "only the newcomer is counted"
    );
}

#[tokio::test]
async fn more_away_than_one_run_passes_over_only_delays() {
    let world = World::with(seed(0)).await;
    let names: Vec<String> = (0..2_500).map(|n| format!("t{n}")).collect();
    let all: Vec<_> = names.iter().map(|name| joining(name, 0, Knock::Join)).collect();
    world.ask_join(&all).await;
    let away: Vec<_> = names[..2_400].iter().map(|name| Presence::Away(name.clone())).collect();
    world.room.depart(&TERMS, &away).await.unwrap();
    let rate = Tuning {
        rate_milli: Some(60_000),
        ..Tuning::default()
    };
    world.room.tune("me", "1", &rate).await.unwrap();
    world.advance_ms(1_000);
    let called = [world.tick().await, world.tick().await, world.tick().await];
    assert_eq!(called, [0, 0, 60]);
    assert_eq!(world.room.measure().await.unwrap().unwrap().first.len(), 40);
}

#[tokio::test]
async fn nobody_is_called_while_paused_before_opening_or_without_stock() {
    let world = World::with(Seed {
        opens_at_ms: crate::harness::NOON + 10_000,
        ..stocked(1)
    })
    .await;
    let tune = async |tuning: Tuning| world.room.tune("me", &fastrand::u64(..).to_string(), &tuning).await.unwrap();
    tune(Tuning {
        rate_milli: Some(1_000),
        ..Tuning::default()
    })
    .await;
    world.join(&["a", "b", "c", "d"]).await;
    world.advance_ms(9_999);
    assert_eq!(world.tick().await, 0, "not open");
    world.advance_ms(1);
    assert_eq!(world.tick().await, 1, "the one saved at the start");
    world.advance_ms(500);
    tune(Tuning {
        paused: Some(true),
        ..Tuning::default()
    })
    .await;
    world.advance_ms(60_000);
    assert_eq!(world.tick().await, 0, "paused");
    tune(Tuning {
        paused: Some(false),
        ..Tuning::default()
    })
    .await;
    world.advance_ms(999);
    assert_eq!(world.tick().await, 0, "a pause saves nothing up");
    world.advance_ms(1);
    assert_eq!(world.tick().await, 1);
    tune(Tuning {
        stock: Some(0),
        ..Tuning::default()
    })
    .await;
    world.advance_ms(60_000);
    assert_eq!(world.tick().await, 0, "nothing to sell");
    tune(Tuning {
        stock: Some(1),
        ..Tuning::default()
    })
    .await;
    world.advance_ms(1_000);
    assert_eq!(world.tick().await, 1);
}

#[tokio::test]
async fn a_raised_rate_does_not_pay_for_the_past() {
    let world = World::with(seed(1_000)).await;
    let names: Vec<String> = (0..100).map(|n| format!("t{n}")).collect();
    world.join(&names.iter().map(String::as_str).collect::<Vec<_>>()).await;
    world.advance_ms(900);
    let rate = Tuning {
        rate_milli: Some(100_000),
        ..Tuning::default()
    };
    world.room.tune("me", "1", &rate).await.unwrap();
    assert_eq!(world.tick().await, 0);
    world.advance_ms(10);
    assert_eq!(world.tick().await, 1, "0.9 of the old rate and 1 of the new");
}

#[tokio::test]
async fn a_clock_that_steps_back_neither_pays_twice_nor_shuts_the_door() {
    let world = World::with(seed(10_000)).await;
    let names: Vec<String> = (0..100).map(|n| format!("t{n}")).collect();
    world.join(&names.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let at = async |clock: u64| {
        world
            .redis
            .store(&Clock::moved(clock))
            .await
            .room("42")
            .admit(&TERMS)
            .await
            .unwrap()
            .unwrap()
            .called
    };
    let noon = crate::harness::NOON;
    assert_eq!(at(noon + 1_000).await, 10);
    assert_eq!(at(noon + 500).await, 0);
    assert_eq!(at(noon + 1_000).await, 0, "that second was paid for");
    assert_eq!(at(noon + 1_100).await, 1);
    assert_eq!(at(noon - 3_600_000).await, 0, "an hour back");
    assert_eq!(at(noon - 3_599_900).await, 1, "goes on from there");
}

#[tokio::test]
async fn what_happens_is_published_with_a_beat_each_second() {
    let world = World::of_one_a_second().await;
    let mut listener = world.store.listen("42");
    assert_eq!(news(&mut listener).await, News::Subscribed);
    let joined = world.join(&["used", "a", "b"]).await;
    let epoch = world.room.show().await.unwrap().unwrap().epoch;
    assert_eq!(world.tick().await, 0);
    let frontier = place(joined[1]) - 1;
    assert_eq!(
        news(&mut listener).await,
        News::Frontier {
            epoch,
            frontier,
            late: vec![]
        },
        "the first beat"
    );
    world.advance_ms(999);
    assert_eq!(world.tick().await, 0, "no beat yet");
    world.room.depart(&TERMS, &[Presence::Away("a".into())]).await.unwrap();
    assert_eq!(news(&mut listener).await, News::Away(vec!["a".into()]));
    world.advance_ms(1);
    assert_eq!(world.tick().await, 1);
    let frontier = place(joined[2]);
    assert_eq!(
        news(&mut listener).await,
        News::Frontier {
            epoch,
            frontier,
            late: vec![]
        }
    );
    world
        .room
        .depart(&TERMS, &[Presence::Back("a".into(), place(joined[1]))])
        .await
        .unwrap();
    world.advance_ms(1_000);
    assert_eq!(world.tick().await, 1);
    assert_eq!(
        news(&mut listener).await,
        News::Frontier {
            epoch,
            frontier,
            late: vec!["a".into()]
        },
        "called from behind the frontier"
    );
    world.advance_ms(1_000);
    assert!(world.room.admit(&TERMS).await.unwrap().unwrap().at_once);
    assert_eq!(
        news(&mut listener).await,
        News::Frontier {
            epoch,
            frontier,
            late: vec![]
        },
        "a beat"
    );
}
