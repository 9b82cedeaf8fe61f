//! `settle`: a unit is given back exactly once, and sold exactly once.

use waitgate::store::scripts::{Answer, Asked, Gate, Held, Settled, Stock, Tuned, Tuning, Verdict};

use crate::harness::{TERMS, World, stocked};
use crate::scripts::claim::asked;

async fn stock(world: &World) -> Stock {
    let stock = world.room.show().await.unwrap().unwrap().stock.unwrap();
    assert_eq!(stock.free + stock.held + stock.sold, stock.stock, "{stock:?}");
    stock
}

async fn settle(world: &World, id: &str, verdict: Verdict) -> Settled {
    world.room.settle(&TERMS, id, verdict, None).await.unwrap()
}

async fn claim(world: &World, user: &str, id: &str) -> Gate {
    world.room.claim(&asked(user, id)).await.unwrap()
}

#[tokio::test]
async fn confirmed_once_and_never_released() {
    let world = World::with(stocked(2)).await;
    claim(&world, "u", "r").await;
    assert_eq!(settle(&world, "r", Verdict::Confirm).await, Settled::Confirmed);
    assert_eq!(settle(&world, "r", Verdict::Confirm).await, Settled::ConfirmedBefore);
    assert_eq!(settle(&world, "r", Verdict::Release).await, Settled::Sold);
    assert_eq!(
        stock(&world).await,
        Stock {
            stock: 2,
            free: 1,
            held: 0,
            sold: 1,
            known: true
        }
    );
    assert_eq!(world.room.reservation("r").await.unwrap().unwrap().state, Held::Sold);
    world.advance_ms(TERMS.memory_ms * 10);
    world.room.sweep(&TERMS).await.unwrap();
    assert_eq!(
        settle(&world, "r", Verdict::Confirm).await,
        Settled::ConfirmedBefore,
        "what was sold is not forgotten"
    );
    assert_eq!(settle(&world, "stranger", Verdict::Confirm).await, Settled::Missing);
    assert_eq!(settle(&world, "stranger", Verdict::Release).await, Settled::Missing);
}

/// CASE 116: expiry, the buyer, the operator and a failed payment each gave the unit back.
#[tokio::test]
async fn a_release_asked_for_by_many_gives_back_once() {
    let world = World::with(stocked(5)).await;
    let three = Asked {
        units: 3,
        limit: 3,
        ..asked("u", "r")
    };
    world.room.claim(&three).await.unwrap();
    world.advance_ms(120_000);
    let (settled, swept) = tokio::join!(
        futures_util::future::join_all((0..10).map(|_| world.room.settle(&TERMS, "r", Verdict::Release, None))),
        futures_util::future::join_all((0..10).map(|_| world.room.sweep(&TERMS))),
    );
    let released = settled.into_iter().filter(|it| matches!(it, Ok(Settled::Released))).count() as u64;
    let expired: u64 = swept.into_iter().map(|it| it.unwrap().expired).sum();
    assert_eq!(released + expired, 1);
    assert_eq!(
        stock(&world).await,
        Stock {
            stock: 5,
            free: 5,
            held: 0,
            sold: 0,
            known: true
        }
    );
    assert_eq!(settle(&world, "r", Verdict::Release).await, Settled::ReleasedBefore);
}

#[tokio::test]
async fn after_a_release_the_buyer_may_claim_with_a_new_key() {
    let world = World::with(stocked(1)).await;
    let keyed = |key: &str, id: &str| Asked {
        key: key.into(),
        ..asked("u", id)
    };
    world.room.claim(&keyed("k1", "r1")).await.unwrap();
    let refused = world
        .room
        .settle(&TERMS, "r1", Verdict::Release, Some(b"402 card refused"))
        .await
        .unwrap();
    assert_eq!(refused, Settled::Released);
    let replay = world.room.claim(&keyed("k1", "r2")).await.unwrap();
    let Gate::Already {
        reservation,
        answer,
        same: true,
    } = replay
    else {
        panic!("{replay:?}")
    };
    assert_eq!(
        (reservation.state, answer),
        (Held::Released, Answer::Kept(b"402 card refused".to_vec()))
    );
    assert!(matches!(world.room.claim(&keyed("k2", "r3")).await.unwrap(), Gate::Reserved(_)));
}

/// CASE 118: a payment at the deadline, and the sweeper at the same moment.
#[tokio::test]
async fn payment_and_expiry_race_and_one_wins() {
    let world = World::bare().await;
    let other = world.redis.store(&world.clock).await;
    let (mut paid, mut expired_first) = (0, 0);
    for round in 0..300_u64 {
        let id = format!("room{round}");
        let (here, there) = (world.store.room(&id), other.room(&id));
        here.seed(&stocked(1)).await.unwrap();
        here.claim(&asked("u", "r")).await.unwrap();
        world.advance_ms(119_999 + round % 3);
        let pay = here.settle(&TERMS, "r", Verdict::Confirm, None);
        // Neither is always the first to be sent.
        let (confirmed, swept) = if round % 2 == 0 {
            tokio::join!(pay, there.sweep(&TERMS))
        } else {
            let (swept, confirmed) = tokio::join!(there.sweep(&TERMS), pay);
            (confirmed, swept)
        };
        match (confirmed.unwrap(), swept.unwrap().expired) {
            (Settled::Confirmed, 0) => paid += 1,
            (Settled::Retaken, 1) => expired_first += 1,
            other => panic!("in round {round}: {other:?}"),
        }
        let sold = Stock {
            stock: 1,
            free: 0,
            held: 0,
            sold: 1,
            known: true,
        };
        assert_eq!(here.show().await.unwrap().unwrap().stock, Some(sold));
    }
    assert!(
        paid > 0 && expired_first > 0,
        "both came first at times: {paid} and {expired_first}"
    );
}

#[tokio::test]
async fn a_late_payment_takes_the_unit_again_or_is_refunded_for_good() {
    let world = World::with(stocked(1)).await;
    claim(&world, "u", "r").await;
    world.advance_ms(120_000);
    world.room.sweep(&TERMS).await.unwrap();
    assert!(matches!(claim(&world, "v", "s").await, Gate::Reserved(_)));
    assert_eq!(settle(&world, "r", Verdict::Confirm).await, Settled::Refund);
    assert_eq!(settle(&world, "s", Verdict::Release).await, Settled::Released);
    assert_eq!(
        settle(&world, "r", Verdict::Confirm).await,
        Settled::Refund,
        "the money is on its way back, whatever came free since"
    );
    assert_eq!(stock(&world).await.sold, 0);
    assert_eq!(
        settle(&world, "s", Verdict::Confirm).await,
        Settled::Retaken,
        "released, paid all the same, and there is one"
    );
    assert_eq!(settle(&world, "s", Verdict::Confirm).await, Settled::ConfirmedBefore);
    assert_eq!(
        stock(&world).await,
        Stock {
            stock: 1,
            free: 0,
            held: 0,
            sold: 1,
            known: true
        }
    );
}

#[tokio::test]
async fn a_late_payment_does_not_give_a_buyer_more_than_allowed() {
    let world = World::with(stocked(5)).await;
    claim(&world, "u", "r1").await;
    world.advance_ms(120_000);
    world.room.sweep(&TERMS).await.unwrap();
    assert!(matches!(claim(&world, "u", "r2").await, Gate::Reserved(_)));
    assert_eq!(
        settle(&world, "r1", Verdict::Confirm).await,
        Settled::Refund,
        "a newer hold of the same buyer lives"
    );
    settle(&world, "r2", Verdict::Confirm).await;
    assert_eq!(stock(&world).await.sold, 1);
}

/// CASE 124: what came free was given to more people than there were units.
#[tokio::test]
async fn after_shrinking_the_sale_a_release_frees_what_is_left() {
    let world = World::with(stocked(10)).await;
    for n in 0..6 {
        claim(&world, &format!("u{n}"), &format!("r{n}")).await;
    }
    for n in 0..3 {
        settle(&world, &format!("r{n}"), Verdict::Confirm).await;
    }
    let shrink = |units| Tuning {
        stock: Some(units),
        ..Tuning::default()
    };
    assert_eq!(
        world.room.tune("me", "1", &shrink(5)).await.unwrap(),
        Tuned::StockTooLow { taken: 6 }
    );
    assert!(matches!(world.room.tune("me", "2", &shrink(6)).await.unwrap(), Tuned::Tuned { .. }));
    assert_eq!(claim(&world, "late", "x").await, Gate::AllHeld);
    settle(&world, "r3", Verdict::Release).await;
    settle(&world, "r4", Verdict::Release).await;
    let mut won = 0;
    for n in 0..5 {
        won += u64::from(matches!(claim(&world, &format!("v{n}"), &format!("s{n}")).await, Gate::Reserved(_)));
    }
    assert_eq!(
        (won, stock(&world).await),
        (
            2,
            Stock {
                stock: 6,
                free: 0,
                held: 3,
                sold: 3,
                known: true
            }
        )
    );
}
