//! `redeem`: one admission for one turn.

use waitgate::store::scripts::{Fate, Knock, Presence, Redeemed, Standing};

use crate::harness::{NOON, TERMS, World};

#[tokio::test]
async fn a_turn_becomes_one_admission_however_often_it_is_asked() {
    let world = World::of_one_a_second().await;
    world.join(&["used", "a", "b"]).await;
    world.advance_ms(1_000);
    world.tick().await;
    world.advance_ms(5_000);
    let until_ms = NOON + 6_000 + TERMS.admission_ms;
    // CASE 28: two views of one entry.
    let tries = (0..8).map(|_| world.room.redeem(&TERMS, "a"));
    for redeemed in futures_util::future::join_all(tries).await {
        assert_eq!(redeemed.unwrap(), Redeemed::Admitted { until_ms });
    }
    world.advance_ms(1_000);
    assert_eq!(
        world.room.redeem(&TERMS, "a").await.unwrap(),
        Redeemed::Admitted { until_ms },
        "and not longer for asking later"
    );
    assert_eq!(world.knock("a", 0, Knock::Join).await, Standing::Admitted { until_ms });
    let shown = world.room.show().await.unwrap().unwrap();
    assert_eq!((shown.called, shown.sessions), (0, 2));
}

/// CASE 2: a late claim of the turn failed without a reason, and the slot stayed taken.
#[tokio::test]
async fn whoever_comes_too_late_is_told_so() {
    let world = World::of_one_a_second().await;
    world.join(&["used", "a", "b"]).await;
    world.advance_ms(1_000);
    world.tick().await;
    world.advance_ms(TERMS.turn_ms);
    assert_eq!(world.room.redeem(&TERMS, "a").await.unwrap(), Redeemed::Gone(Fate::Lapsed));
    world.room.sweep(&TERMS).await.unwrap();
    assert_eq!(world.room.redeem(&TERMS, "a").await.unwrap(), Redeemed::Gone(Fate::Lapsed));
    assert_eq!(world.room.show().await.unwrap().unwrap().called, 0);
}

#[tokio::test]
async fn whoever_was_not_called_gets_nothing() {
    let world = World::of_one_a_second().await;
    world.join(&["used", "a", "b"]).await;
    assert_eq!(world.room.redeem(&TERMS, "a").await.unwrap(), Redeemed::Waiting);
    assert_eq!(world.room.redeem(&TERMS, "stranger").await.unwrap(), Redeemed::Unknown);
    world.room.depart(&TERMS, &[Presence::Leave("a".into())]).await.unwrap();
    assert_eq!(world.room.redeem(&TERMS, "a").await.unwrap(), Redeemed::Gone(Fate::Left));
    world.advance_ms(TERMS.admission_ms);
    assert_eq!(world.room.redeem(&TERMS, "used").await.unwrap(), Redeemed::Gone(Fate::Ended));
}
