//! `claim`: a unit is taken exactly once.

use std::sync::Arc;

use tokio::sync::Barrier;
use waitgate::clock::Clock;
use waitgate::store::News;
use waitgate::store::scripts::{Answer, Asked, Gate, Held, Reservation, Seed, Stock, Tuning, Verdict};

use crate::harness::{NOON, Redis, TERMS, World, stocked};

/// One unit, at most one a buyer, without an idempotency key.
pub fn asked(user: &str, reservation: &str) -> Asked {
    Asked {
        user: user.into(),
        key: String::new(),
        fingerprint: "f".into(),
        reservation: reservation.into(),
        units: 1,
        limit: 1,
        hold_ms: 120_000,
        flight_ms: 10_000,
    }
}

fn keyed(user: &str, key: &str, reservation: &str) -> Asked {
    Asked {
        key: key.into(),
        ..asked(user, reservation)
    }
}

fn reserved(user: &str, id: &str) -> Reservation {
    Reservation {
        id: id.into(),
        user: user.into(),
        units: 1,
        until_ms: NOON + 120_000,
        state: Held::Held,
    }
}

async fn stock(world: &World) -> Stock {
    let stock = world.room.show().await.unwrap().unwrap().stock.unwrap();
    assert_eq!(stock.free + stock.held + stock.sold, stock.stock, "{stock:?}");
    stock
}

async fn claim(world: &World, asked: &Asked) -> Gate {
    world.room.claim(asked).await.unwrap()
}

#[tokio::test]
async fn a_claim_takes_a_unit_and_holds_it() {
    let world = World::with(stocked(2)).await;
    assert_eq!(claim(&world, &keyed("u", "k", "r")).await, Gate::Reserved(reserved("u", "r")));
    assert_eq!(
        stock(&world).await,
        Stock {
            stock: 2,
            free: 1,
            held: 1,
            sold: 0,
            known: true
        }
    );
    assert_eq!(world.room.reservation("r").await.unwrap(), Some(reserved("u", "r")));
    assert_eq!(world.room.reservation("other").await.unwrap(), None);
    assert_eq!(world.redis.ask::<u64>(&["XLEN", &world.key("claims-log")]).await, 1);
}

/// CASE 91: the reply was lost, the caller asks again, and a second unit was taken.
#[tokio::test]
async fn the_same_call_again_finds_its_own_hold() {
    let world = World::with(stocked(2)).await;
    for claim in [keyed("u", "k", "r"), asked("v", "s")] {
        let first = world.room.claim(&claim).await.unwrap();
        assert!(matches!(first, Gate::Reserved(_)));
        world.advance_ms(1);
        assert_eq!(world.room.claim(&claim).await.unwrap(), first);
    }
    assert_eq!(stock(&world).await.held, 2);
    assert_eq!(claim(&world, &asked("thief", "r")).await, Gate::Mismatch, "somebody else's id");
}

/// CASE 121: a key asked with another body took a second unit, or got the first one's answer.
#[tokio::test]
async fn a_key_belongs_to_one_buyer_and_one_body() {
    let world = World::with(stocked(5)).await;
    let first = keyed("u", "k", "r1");
    claim(&world, &first).await;
    let in_flight = Gate::Already {
        reservation: reserved("u", "r1"),
        answer: Answer::InFlight,
        same: true,
    };
    assert_eq!(claim(&world, &keyed("u", "k", "r2")).await, in_flight);
    let other_body = Asked {
        fingerprint: "g".into(),
        ..keyed("u", "k", "r3")
    };
    assert_eq!(claim(&world, &other_body).await, Gate::Mismatch);
    assert!(
        matches!(claim(&world, &keyed("v", "k", "r4")).await, Gate::Reserved(_)),
        "another buyer's key is another key"
    );
    assert!(matches!(claim(&world, &keyed("u|1", "k", "r5")).await, Gate::Reserved(_)));
    assert!(
        matches!(claim(&world, &keyed("u", "1|k", "r6")).await, Gate::Already { .. }),
        "no two pairs share a field"
    );
    world.room.answer("r1", Some(b"HTTP 201 \xff\x00")).await.unwrap();
    world.room.answer("r1", Some(b"later")).await.unwrap();
    let kept = Gate::Already {
        reservation: reserved("u", "r1"),
        answer: Answer::Kept(b"HTTP 201 \xff\x00".to_vec()),
        same: true,
    };
    assert_eq!(claim(&world, &keyed("u", "k", "r7")).await, kept, "byte for byte the first answer");
    assert_eq!(claim(&world, &first).await, kept, "also for the very same call");
    assert_eq!(stock(&world).await.held, 3);
}

#[tokio::test]
async fn a_claim_nobody_knows_the_end_of_is_sent_again_by_one_caller() {
    let world = World::with(stocked(5)).await;
    claim(&world, &keyed("u", "k", "r1")).await;
    let answer = async || match claim(&world, &keyed("u", "k", "r2")).await {
        Gate::Already { answer, same: true, .. } => answer,
        other => panic!("{other:?}"),
    };
    assert_eq!(answer().await, Answer::InFlight);
    world.room.answer("r1", None).await.unwrap();
    assert_eq!(answer().await, Answer::Unknown);
    assert_eq!(answer().await, Answer::InFlight, "the first of them is on its way");
    world.advance_ms(10_000);
    assert_eq!(answer().await, Answer::Unknown, "it died on the way");
    world.room.answer("r1", Some(b"201")).await.unwrap();
    world.room.answer("r1", None).await.unwrap();
    assert_eq!(
        answer().await,
        Answer::Kept(b"201".to_vec()),
        "a late unknown does not unmake an answer"
    );
    assert_eq!(stock(&world).await.held, 1);
}

/// CASES 112 and 122: one buyer sent many claims, each with a new key, and each took a unit.
#[tokio::test]
async fn one_buyer_has_one_live_claim() {
    let world = World::with(stocked(100)).await;
    let claims: Vec<_> = (0..200).map(|n| keyed("u", &format!("k{n}"), &format!("r{n}"))).collect();
    let gates = futures_util::future::join_all(claims.iter().map(|claim| world.room.claim(claim))).await;
    let gates: Vec<_> = gates.into_iter().map(Result::unwrap).collect();
    let won: Vec<_> = gates
        .iter()
        .filter_map(|gate| if let Gate::Reserved(it) = gate { Some(it.clone()) } else { None })
        .collect();
    assert_eq!(won.len(), 1);
    let same = gates
        .iter()
        .filter(|gate| matches!(gate, Gate::Already { reservation, same: true, .. } if *reservation == won[0]));
    assert_eq!((same.count(), stock(&world).await.free), (199, 99));
    let other = Asked {
        fingerprint: "g".into(),
        ..keyed("u", "new", "x")
    };
    assert!(matches!(claim(&world, &other).await, Gate::Already { same: false, .. }));
}

#[tokio::test]
async fn the_limit_counts_what_was_bought() {
    let world = World::with(stocked(10)).await;
    let two = |key: &str, id: &str, units| Asked {
        units,
        limit: 3,
        fingerprint: key.into(),
        ..keyed("u", key, id)
    };
    assert_eq!(claim(&world, &two("k0", "r0", 4)).await, Gate::Limit);
    assert!(matches!(claim(&world, &two("k1", "r1", 2)).await, Gate::Reserved(_)));
    world.room.settle(&TERMS, "r1", Verdict::Confirm, None).await.unwrap();
    let over = claim(&world, &two("k2", "r2", 2)).await;
    assert!(
        matches!(over, Gate::Already { ref reservation, same: false, .. } if reservation.id == "r1" && reservation.state == Held::Sold),
        "{over:?}"
    );
    assert!(matches!(claim(&world, &two("k3", "r3", 1)).await, Gate::Reserved(_)));
    assert_eq!(
        stock(&world).await,
        Stock {
            stock: 10,
            free: 7,
            held: 1,
            sold: 2,
            known: true
        }
    );
}

#[tokio::test]
async fn each_no_has_its_reason() {
    let world = World::with(stocked(3)).await;
    let units = |user: &str, units| Asked {
        units,
        limit: 9,
        ..asked(user, user)
    };
    claim(&world, &units("a", 2)).await;
    assert_eq!(claim(&world, &units("b", 2)).await, Gate::TooFew { free: 1 });
    claim(&world, &units("c", 1)).await;
    assert_eq!(claim(&world, &units("d", 1)).await, Gate::AllHeld);
    world.room.settle(&TERMS, "a", Verdict::Confirm, None).await.unwrap();
    assert_eq!(claim(&world, &units("d", 1)).await, Gate::AllHeld);
    world.room.settle(&TERMS, "c", Verdict::Confirm, None).await.unwrap();
    assert_eq!(claim(&world, &units("d", 1)).await, Gate::SoldOut);
    assert!(
        world
            .room
            .claim(&Asked {
                units: 0,
                ..asked("e", "e")
            })
            .await
            .is_err()
    );

    let world = World::with(Seed {
        lost_rebuild_ms: Some(1),
        ..stocked(3)
    })
    .await;
    assert_eq!(claim(&world, &asked("a", "a")).await, Gate::StockUnknown);
    world
        .room
        .tune(
            "me",
            "1",
            &Tuning {
                stock: Some(2),
                ..Tuning::default()
            },
        )
        .await
        .unwrap();
    assert!(matches!(claim(&world, &asked("a", "a")).await, Gate::Reserved(_)));

    let world = World::of_one_a_second().await;
    assert!(
        world
            .room
            .claim(&asked("a", "a"))
            .await
            .unwrap_err()
            .to_string()
            .contains("sells nothing")
    );
}

/// CASE 119: two checked, both acted.
#[tokio::test]
async fn of_claims_released_together_one_wins() {
    let redis = Redis::start().await;
    let clock = Clock::moved(NOON);
    let stores = [redis.store(&clock).await, redis.store(&clock).await];
    for round in 0..200 {
        let id = format!("room{round}");
        stores[0].room(&id).seed(&stocked(1)).await.unwrap();
        let barrier = Arc::new(Barrier::new(6));
        let claims = (0..6).map(|n| {
            let (room, barrier) = (stores[n % 2].room(&id), Arc::clone(&barrier));
            tokio::spawn(async move {
                barrier.wait().await;
                room.claim(&asked(&format!("u{n}"), &format!("r{n}"))).await.unwrap()
            })
        });
        let gates: Vec<_> = futures_util::future::join_all(claims)
            .await
            .into_iter()
            .map(Result::unwrap)
            .collect();
        let won = gates.iter().filter(|gate| matches!(gate, Gate::Reserved(_))).count();
        let held = gates.iter().filter(|gate| matches!(gate, Gate::AllHeld)).count();
        assert_eq!((won, held), (1, 5), "round {round}");
    }
}

/// CASE 113: a counter went below zero and hid stock from others.
#[tokio::test]
async fn a_thousand_claims_of_one_to_three_units_sell_exactly_ten() {
    let world = World::with(stocked(10)).await;
    let claims: Vec<_> = (0..1_000)
        .map(|n| Asked {
            units: 1 + n % 3,
            limit: 3,
            ..asked(&format!("u{n}"), &format!("r{n}"))
        })
        .collect();
    let gates = futures_util::future::join_all(claims.iter().map(|claim| world.room.claim(claim))).await;
    let won: u64 = gates
        .into_iter()
        .map(|gate| if let Gate::Reserved(it) = gate.unwrap() { it.units } else { 0 })
        .sum();
    assert_eq!((won, stock(&world).await.free), (10, 0));
}

/// CASES 115 and 125: a sold-out flag stuck after stock came back.
#[tokio::test]
async fn what_can_be_bought_is_published_when_it_changes() {
    let world = World::with(stocked(2)).await;
    let mut listener = world.store.listen("42");
    assert_eq!(listener.recv().await, Some(News::Subscribed));
    let version = async || world.room.show().await.unwrap().unwrap().version;
    let start = version().await;
    claim(&world, &asked("a", "a")).await;
    assert_eq!(version().await, start, "some are left: nothing to tell");
    let mut told = async |what: &str, grown: u64| {
        assert_eq!(version().await, start + grown, "{what}");
        assert_eq!(listener.recv().await, Some(News::Changed), "{what}");
    };
    claim(&world, &asked("b", "b")).await;
    told("all held", 1).await;
    world.room.settle(&TERMS, "a", Verdict::Confirm, None).await.unwrap();
    assert_eq!(version().await, start + 1, "still all held");
    world.room.settle(&TERMS, "b", Verdict::Release, None).await.unwrap();
    told("one came back", 2).await;
    claim(&world, &asked("c", "c")).await;
    told("all held again", 3).await;
    world.advance_ms(120_000);
    assert_eq!(world.room.sweep(&TERMS).await.unwrap().expired, 1);
    told("one expired", 4).await;
    assert!(matches!(claim(&world, &asked("d", "d")).await, Gate::Reserved(_)));
    told("and taken", 5).await;
    world.room.settle(&TERMS, "d", Verdict::Confirm, None).await.unwrap();
    told("sold out", 6).await;
}
