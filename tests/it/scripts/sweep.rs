//! `sweep`: what is over ends, in bounded batches, exactly once.

use waitgate::store::scripts::{Asked, Fate, Gate, Held, Knock, Presence, Standing, Stock, Swept};

use crate::harness::{TERMS, World, joining, seed, stocked};
use crate::scripts::claim::asked;

#[tokio::test]
async fn each_kind_ends_in_its_time() {
    let world = World::of_one_a_second().await;
    world.join(&["inside", "called", "away", "here"]).await;
    world.advance_ms(1_000);
    world.tick().await;
    world.room.depart(&TERMS, &[Presence::Away("away".into())]).await.unwrap();
    assert_eq!(world.room.sweep(&TERMS).await.unwrap(), Swept::default(), "nothing is over");
    world.advance_ms(TERMS.grace_ms);
    assert_eq!(
        world.room.sweep(&TERMS).await.unwrap(),
        Swept {
            abandoned: 1,
            ..Swept::default()
        }
    );
    world.advance_ms(TERMS.turn_ms - TERMS.grace_ms);
    assert_eq!(
        world.room.sweep(&TERMS).await.unwrap(),
        Swept {
            lapsed: 1,
            ..Swept::default()
        }
    );
    world.advance_ms(TERMS.admission_ms);
    assert_eq!(
        world.room.sweep(&TERMS).await.unwrap(),
        Swept {
            ended: 1,
            ..Swept::default()
        }
    );
    assert_eq!(world.room.sweep(&TERMS).await.unwrap(), Swept::default(), "and only once");
    let fates = [("away", Fate::Abandoned), ("called", Fate::Lapsed), ("inside", Fate::Ended)];
    for (ticket, fate) in fates {
        assert_eq!(world.knock(ticket, 0, Knock::Join).await, Standing::Gone(fate), "{ticket}");
    }
    world.advance_ms(TERMS.memory_ms);
    assert_eq!(
        world.room.sweep(&TERMS).await.unwrap(),
        Swept {
            forgotten: 3,
            ..Swept::default()
        }
    );
    assert!(
        matches!(world.knock("away", 0, Knock::Join).await, Standing::Waiting { .. }),
        "forgotten, so it is new"
    );
}

/// CASE 104: holds whose end nobody saw were never given back.
#[tokio::test]
async fn overdue_holds_come_back_whenever_somebody_sweeps() {
    let world = World::with(stocked(3)).await;
    for n in 0..3 {
        let claim = Asked {
            key: format!("k{n}"),
            ..asked(&format!("u{n}"), &format!("r{n}"))
        };
        assert!(matches!(world.room.claim(&claim).await.unwrap(), Gate::Reserved(_)));
    }
    world.room.answer("r0", Some(b"answer")).await.unwrap();
    world.advance_ms(3_600_000);
    assert_eq!(world.room.sweep(&TERMS).await.unwrap().expired, 3);
    let stock = Stock {
        stock: 3,
        free: 3,
        held: 0,
        sold: 0,
        known: true,
    };
    assert_eq!(world.room.show().await.unwrap().unwrap().stock, Some(stock));
    assert_eq!(world.room.reservation("r1").await.unwrap().unwrap().state, Held::Expired);
    assert_eq!(world.room.sweep(&TERMS).await.unwrap().expired, 0);
    world.advance_ms(TERMS.memory_ms);
    assert_eq!(world.room.sweep(&TERMS).await.unwrap().forgotten, 3);
    for key in ["reservations", "answers", "claims", "finished", "holds"] {
        assert_eq!(world.redis.ask::<u64>(&["EXISTS", &world.key(key)]).await, 0, "{key}");
    }
}

/// CASE 100: one long script held up everybody.
#[tokio::test]
async fn a_crowd_that_vanished_is_swept_in_batches() {
    let world = World::with(seed(0)).await;
    let names: Vec<String> = (0..1_200).map(|n| format!("t{n}")).collect();
    let all: Vec<_> = names.iter().map(|name| joining(name, 0, Knock::Join)).collect();
    world.ask_join(&all).await;
    let away: Vec<_> = names.iter().map(|name| Presence::Away(name.clone())).collect();
    world.room.depart(&TERMS, &away).await.unwrap();
    world.advance_ms(TERMS.grace_ms);
    let mut sweeps = Vec::new();
    for _ in 0..3 {
        let swept = world.room.sweep(&TERMS).await.unwrap();
        sweeps.push((swept.abandoned, swept.more));
    }
    assert_eq!(sweeps, [(500, true), (500, true), (200, false)]);
    for key in ["line", "away", "blocks"] {
        assert_eq!(world.redis.ask::<u64>(&["EXISTS", &world.key(key)]).await, 0, "{key}");
    }
}

#[tokio::test]
async fn eight_sweepers_end_each_hold_once() {
    let world = World::with(stocked(40)).await;
    for n in 0..40 {
        world.room.claim(&asked(&format!("u{n}"), &format!("r{n}"))).await.unwrap();
    }
    world.advance_ms(3_600_000);
    let swept = futures_util::future::join_all((0..8).map(|_| world.room.sweep(&TERMS))).await;
    assert_eq!(swept.into_iter().map(|swept| swept.unwrap().expired).sum::<u64>(), 40);
    assert_eq!(world.room.show().await.unwrap().unwrap().stock.unwrap().free, 40);
}
