//! `join`: places, at once, healing, and what a repeat does.

use waitgate::store::scripts::{Fate, Knock, Presence, Seed, Standing, Tuning};

use crate::harness::{NOON, TERMS, World, joining, place, seed, stocked};

#[tokio::test]
async fn places_are_handed_out_in_order_and_kept() {
    let world = World::with(seed(0)).await;
    let first = world.join(&["a", "b", "c"]).await;
    let places: Vec<_> = first.iter().map(|standing| place(*standing)).collect();
    assert_eq!(places, [places[0], places[0] + 1, places[0] + 2]);
    let epoch = NOON / 1000 - 1_767_225_600;
    assert_eq!(places[0], epoch * 262_144 + 1, "a place starts from the epoch's base");
    let again = world.join(&["c", "d", "a"]).await;
    assert_eq!(
        [place(again[0]), place(again[2])],
        [places[2], places[0]],
        "a lost reply gives nobody a second place"
    );
    assert_eq!(place(again[1]), places[2] + 1);
}

/// CASE 29: tabs, reloads and double clicks made a ghost each.
#[tokio::test]
async fn one_visitor_is_one_entry_however_often_it_joins() {
    let world = World::with(seed(0)).await;
    let mine = place(world.knock("me", 0, Knock::Join).await);
    world.join(&["others", "more"]).await;
    let tries = (0..20).map(|_| world.knock("me", 0, Knock::Join));
    for standing in futures_util::future::join_all(tries).await {
        assert_eq!(place(standing), mine);
    }
    let twice = world.join(&["twin", "twin"]).await;
    assert_eq!(place(twice[0]), place(twice[1]), "twice in one batch");
    assert_eq!(world.redis.ask::<u64>(&["ZCARD", &world.key("line")]).await, 4);
    let shown = world.room.show().await.unwrap().unwrap();
    assert_eq!((shown.waiting, shown.joined_total), (4, 4));
}

#[tokio::test]
async fn at_once_admits_when_nobody_waits_and_the_rate_allows() {
    let world = World::of_one_a_second().await;
    let until_ms = NOON + TERMS.admission_ms;
    assert_eq!(world.knock("a", 0, Knock::AtOnce).await, Standing::Admitted { until_ms });
    assert_eq!(
        world.knock("a", 0, Knock::AtOnce).await,
        Standing::Admitted { until_ms },
        "the same again"
    );
    world.advance_ms(1_000);
    assert!(
        matches!(world.knock("b", 0, Knock::Join).await, Standing::Admitted { .. }),
        "whoever joins an empty line need not wait"
    );
    let before = world.redis.everything().await;
    assert_eq!(world.knock("c", 0, Knock::AtOnce).await, Standing::MustWait, "the rate is used up");
    assert_eq!(world.redis.everything().await, before, "nothing was written");
    assert!(matches!(
        world.knock("c", 0, Knock::Join).await,
        Standing::Waiting { behind: false, .. }
    ));
    world.advance_ms(5_000);
    assert_eq!(world.knock("d", 0, Knock::AtOnce).await, Standing::MustWait, "there is a line");
}

#[tokio::test]
async fn at_once_is_refused_wherever_nobody_would_be_called() {
    let not_now = [
        (Seed { cap: 1, ..seed(5_000) }, "cap"),
        (
            Seed {
                opens_at_ms: NOON + 60_000,
                ..seed(5_000)
            },
            "before opening",
        ),
        (
            Seed {
                closes_at_ms: NOON,
                ..seed(5_000)
            },
            "closed",
        ),
        (stocked(0), "no stock"),
        (
            Seed {
                lost_rebuild_ms: Some(60_000),
                ..seed(5_000)
            },
            "rebuild",
        ),
        (seed(0), "rate 0"),
    ];
    for (seed, why) in not_now {
        let world = World::with(seed).await;
        if why == "cap" {
            world.knock("first", 0, Knock::AtOnce).await;
        }
        world.advance_ms(2_000);
        assert_eq!(world.knock("a", 0, Knock::AtOnce).await, Standing::MustWait, "{why}");
    }
    let world = World::with(seed(5_000)).await;
    let pause = Tuning {
        paused: Some(true),
        ..Tuning::default()
    };
    world.room.tune("me", "1", &pause).await.unwrap();
    world.advance_ms(2_000);
    assert_eq!(world.knock("a", 0, Knock::AtOnce).await, Standing::MustWait, "paused");
}

#[tokio::test]
async fn after_closing_nobody_new_joins_and_who_waits_keeps_waiting() {
    let world = World::with(Seed {
        closes_at_ms: NOON + 1_000,
        ..seed(0)
    })
    .await;
    let mine = place(world.knock("a", 0, Knock::Join).await);
    world.advance_ms(1_000);
    assert_eq!(world.knock("b", 0, Knock::Join).await, Standing::MustWait);
    assert_eq!(place(world.knock("a", 0, Knock::Join).await), mine);
    assert_eq!(
        place(world.knock("back", mine - 5, Knock::Join).await),
        mine - 5,
        "a place given before is honoured"
    );
    world.room.depart(&TERMS, &[Presence::Leave("a".into())]).await.unwrap();
    assert_eq!(world.knock("a", 0, Knock::Again).await, Standing::Gone(Fate::Left));
}

/// CASE 106: after a loss, numbers of the old line were read as places of the new one.
#[tokio::test]
async fn after_a_loss_tickets_come_back_to_their_own_places_and_go_first() {
    let world = World::with(seed(0)).await;
    let old: Vec<_> = world.join(&["a", "b", "c"]).await.into_iter().map(place).collect();
    world.redis.ask::<String>(&["FLUSHALL"]).await;
    assert!(
        world
            .room
            .join(&TERMS, &[joining("a", old[0], Knock::Join)])
            .await
            .unwrap()
            .is_none(),
        "not seeded"
    );
    world.advance_ms(2_000);
    let seeded = world
        .seed(&Seed {
            lost_rebuild_ms: Some(10_000),
            ..seed(2_000)
        })
        .await;
    assert!(seeded.fresh);
    let newcomer = place(world.knock("new", 0, Knock::Join).await);
    let back = world
        .ask_join(&[joining("c", old[2], Knock::AtOnce), joining("a", old[0], Knock::Join)])
        .await;
    assert_eq!(
        back.standings[0],
        Standing::Waiting {
            place: old[2],
            behind: false
        },
        "nobody has been called yet, so it is not behind"
    );
    assert_eq!(place(back.standings[1]), old[0]);
    assert!(newcomer > old[2]);
    let measured = world.room.measure().await.unwrap().unwrap();
    assert_eq!(measured.first, [old[0], old[2]], "the old line is counted");
    world.advance_ms(9_999);
    assert_eq!(world.tick().await, 0, "the door is shut while tickets come back");
    world.advance_ms(1_001);
    assert_eq!(world.tick().await, 2);
    assert!(matches!(world.knock("a", 0, Knock::Join).await, Standing::Called { .. }));
    assert!(matches!(world.knock("c", 0, Knock::Join).await, Standing::Called { .. }));
    let late = world.knock("b", old[1], Knock::Join).await;
    assert_eq!(
        late,
        Standing::Waiting {
            place: old[1],
            behind: true
        },
        "late, and next"
    );
    world.advance_ms(1_000);
    assert_eq!(world.tick().await, 2);
    assert!(matches!(world.knock("b", 0, Knock::Join).await, Standing::Called { .. }));
}

#[tokio::test]
async fn places_handed_out_after_healing_are_above_all_healed_ones() {
    let world = World::with(seed(0)).await;
    let first = place(world.knock("a", 0, Knock::Join).await);
    assert_eq!(place(world.knock("b", first + 5_000, Knock::Join).await), first + 5_000);
    assert_eq!(place(world.knock("c", 0, Knock::Join).await), first + 5_001);
    let measured = world.room.measure().await.unwrap().unwrap();
    assert_eq!(
        (measured.last, measured.blocks.iter().map(|(_, count)| count).sum::<u64>()),
        (first + 5_001, 3)
    );
}

#[tokio::test]
async fn who_is_gone_stays_gone_until_it_asks_to_start_again() {
    let world = World::of_one_a_second().await;
    world.join(&["used", "a", "b"]).await;
    world.room.depart(&TERMS, &[Presence::Leave("a".into())]).await.unwrap();
    assert_eq!(world.knock("a", 0, Knock::Join).await, Standing::Gone(Fate::Left));
    let fresh = place(world.knock("a", 0, Knock::Again).await);
    assert_eq!(
        place(world.knock("a", 0, Knock::Again).await),
        fresh,
        "a repeat does not start again again"
    );
    world.advance_ms(1_000);
    assert_eq!(world.tick().await, 1);
    world.advance_ms(TERMS.turn_ms);
    assert_eq!(
        world.knock("b", 0, Knock::Join).await,
        Standing::Gone(Fate::Lapsed),
        "over, though nobody swept"
    );
    world.advance_ms(TERMS.admission_ms);
    assert_eq!(
        world.knock("used", 0, Knock::Join).await,
        Standing::Gone(Fate::Ended),
        "over, though nobody swept"
    );
    let again = world
        .ask_join(&[joining("b", 1, Knock::Again), joining("used", 0, Knock::Again)])
        .await;
    assert!(place(again.standings[0]) > fresh, "not at the place it carries");
    assert!(place(again.standings[1]) > fresh);
    world.room.sweep(&TERMS).await.unwrap();
    for ticket in ["b", "used"] {
        let kept = place(world.knock(ticket, 0, Knock::Join).await);
        assert!(kept > fresh, "the sweep does not end what was forgiven: {ticket}");
    }
}

/// Lua cannot unpack thousands of values at once.
#[tokio::test]
async fn a_batch_of_thousands_is_one_call() {
    let world = World::with(seed(0)).await;
    let names: Vec<String> = (0..5_000).map(|n| format!("t{n}")).collect();
    let all: Vec<_> = names.iter().map(|name| joining(name, 0, Knock::Join)).collect();
    let joined = world.ask_join(&all).await;
    assert_eq!(joined.standings.len(), 5_000);
    let measured = world.room.measure().await.unwrap().unwrap();
    assert_eq!(measured.blocks.iter().map(|(_, count)| count).sum::<u64>(), 5_000);
    assert!(measured.blocks.len() >= 5, "{:?}", measured.blocks);
    assert_eq!(measured.blocks[0].1, measured.first.len() as u64);
}

/// CASE 102: places came back rounded.
#[tokio::test]
async fn great_numbers_keep_every_digit() {
    let world = World::with(seed(0)).await;
    for great in [
        99_999_999_999_999,
        100_000_000_000_000,
        1_700_000_000_000_000,
        9_007_199_254_740_989,
    ] {
        let ticket = format!("t{great}");
        assert_eq!(place(world.knock(&ticket, great, Knock::Join).await), great);
        assert_eq!(place(world.knock(&ticket, 0, Knock::Join).await), great);
        assert_eq!(world.room.measure().await.unwrap().unwrap().last, great);
    }
    assert_eq!(place(world.knock("next", 0, Knock::Join).await), 9_007_199_254_740_990);
    assert_eq!(place(world.knock("last", 0, Knock::Join).await), 9_007_199_254_740_991);
    let before = world.redis.everything().await;
    let refused = world.room.join(&TERMS, &[joining("over", 0, Knock::Join)]).await.unwrap_err();
    assert!(refused.to_string().contains("last is used up"), "{refused}");
    let refused = world
        .room
        .join(
            &TERMS,
            &[joining("ok", 5, Knock::Join), joining("over", 9_007_199_254_740_993, Knock::Join)],
        )
        .await;
    assert!(refused.unwrap_err().to_string().contains("place is not a whole number"));
    assert_eq!(world.redis.everything().await, before, "no half of a batch");
}
