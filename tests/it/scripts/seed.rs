//! `seed`: a room begins once.

use waitgate::store::scripts::{Seed, Seeded, Stock};

use crate::harness::{NOON, World, seed, stocked};

#[tokio::test]
async fn the_first_makes_the_room_and_the_others_find_it() {
    let world = World::bare().await;
    let seeds: Vec<Seed> = (0..8).map(|n| seed(1_000 + n)).collect();
    let all = futures_util::future::join_all(seeds.iter().map(|seed| world.room.seed(seed))).await;
    let all: Vec<Seeded> = all.into_iter().map(Result::unwrap).collect();
    assert_eq!(all.iter().filter(|seeded| seeded.fresh).count(), 1);
    assert!(all.iter().all(|seeded| seeded.epoch == all[0].epoch));
    assert_eq!(all[0].epoch, NOON / 1_000 - 1_767_225_600);
    world.advance_ms(60_000);
    let again = world
        .seed(&Seed {
            lost_rebuild_ms: Some(5_000),
            ..seed(7)
        })
        .await;
    assert_eq!(again, Seeded { fresh: false, ..all[0] }, "a room that is there was not lost");
}

#[tokio::test]
async fn all_it_was_told_can_be_seen() {
    let world = World::bare().await;
    let given = Seed {
        rate_milli: 300_000,
        cap: 50,
        stock: Some(120),
        opens_at_ms: NOON + 1,
        closes_at_ms: NOON + 2,
        lost_rebuild_ms: None,
    };
    world.seed(&given).await;
    let shown = world.room.show().await.unwrap().unwrap();
    assert_eq!(
        (shown.rate_milli, shown.cap, shown.opens_at_ms, shown.closes_at_ms),
        (300_000, 50, NOON + 1, NOON + 2)
    );
    assert_eq!((shown.paused, shown.message.as_str(), shown.shut_until_ms), (false, "", 0));
    assert_eq!(
        shown.stock,
        Some(Stock {
            stock: 120,
            free: 120,
            held: 0,
            sold: 0,
            known: true
        })
    );
}

#[tokio::test]
async fn after_a_loss_the_door_is_shut_and_the_stock_unknown() {
    let world = World::bare().await;
    world
        .seed(&Seed {
            lost_rebuild_ms: Some(5_000),
            ..stocked(120)
        })
        .await;
    let shown = world.room.show().await.unwrap().unwrap();
    assert_eq!(shown.shut_until_ms, NOON + 5_000);
    assert!(!shown.stock.unwrap().known);
}

#[tokio::test]
async fn a_later_life_has_a_greater_epoch_and_version() {
    let world = World::with(seed(1)).await;
    let first = world.room.show().await.unwrap().unwrap();
    world.redis.ask::<String>(&["FLUSHALL"]).await;
    world.advance_ms(1_000);
    world.seed(&seed(1)).await;
    let second = world.room.show().await.unwrap().unwrap();
    assert!(second.epoch > first.epoch && second.version > first.version);
}

#[tokio::test]
async fn rooms_do_not_meet() {
    let world = World::with(seed(0)).await;
    let other = world.store.room("43");
    other.seed(&seed(0)).await.unwrap();
    world.join(&["a", "b"]).await;
    assert_eq!(other.show().await.unwrap().unwrap().waiting, 0);
    assert_eq!((other.id(), world.room.id()), ("43", "42"));
}
