//! `depart`: away, back, and gone for good.

use waitgate::store::scripts::{Fate, Knock, Presence, Redeemed, Standing};

use crate::harness::{TERMS, World, place, seed};

fn away(ticket: &str) -> Presence {
    Presence::Away(ticket.into())
}

fn back(ticket: &str) -> Presence {
    Presence::Back(ticket.into(), 0)
}

fn leave(ticket: &str) -> Presence {
    Presence::Leave(ticket.into())
}

/// CASE 28: a phone that slept was dropped from the line.
#[tokio::test]
async fn back_within_the_grace_keeps_the_place() {
    let world = World::with(seed(0)).await;
    let mine = place(world.join(&["a", "b"]).await[0]);
    world.room.depart(&TERMS, &[away("a")]).await.unwrap();
    world.advance_ms(TERMS.grace_ms - 1);
    world.room.depart(&TERMS, &[away("a")]).await.unwrap();
    world.room.sweep(&TERMS).await.unwrap();
    world.room.depart(&TERMS, &[back("a")]).await.unwrap();
    world.advance_ms(TERMS.grace_ms * 3);
    assert_eq!(world.room.sweep(&TERMS).await.unwrap().abandoned, 0);
    assert_eq!(place(world.knock("a", 0, Knock::Join).await), mine);
}

#[tokio::test]
async fn joining_again_says_that_one_is_here() {
    let world = World::with(seed(0)).await;
    world.join(&["a"]).await;
    world.room.depart(&TERMS, &[away("a")]).await.unwrap();
    assert_eq!(world.room.show().await.unwrap().unwrap().away, 1);
    world.join(&["a"]).await;
    assert_eq!(world.room.show().await.unwrap().unwrap().away, 0);
}

#[tokio::test]
async fn a_second_away_does_not_move_the_deadline() {
    let world = World::with(seed(0)).await;
    world.join(&["a"]).await;
    world.room.depart(&TERMS, &[away("a"), away("a")]).await.unwrap();
    world.advance_ms(TERMS.grace_ms / 2);
    world.room.depart(&TERMS, &[away("a")]).await.unwrap();
    world.advance_ms(TERMS.grace_ms / 2);
    assert_eq!(world.room.sweep(&TERMS).await.unwrap().abandoned, 1);
    assert_eq!(world.knock("a", 0, Knock::Join).await, Standing::Gone(Fate::Abandoned));
}

#[tokio::test]
async fn only_those_in_line_can_be_away() {
    let world = World::of_one_a_second().await;
    world.join(&["inside", "called", "waiting"]).await;
    world.advance_ms(1_000);
    world.tick().await;
    world
        .room
        .depart(&TERMS, &[away("inside"), away("called"), away("stranger"), back("stranger")])
        .await
        .unwrap();
    assert_eq!(world.room.show().await.unwrap().unwrap().away, 0);
    assert!(matches!(
        world.room.redeem(&TERMS, "called").await.unwrap(),
        Redeemed::Admitted { .. }
    ));
    assert_eq!(world.room.redeem(&TERMS, "stranger").await.unwrap(), Redeemed::Unknown);
}

#[tokio::test]
async fn leaving_is_for_good_and_is_counted_once() {
    let world = World::of_one_a_second().await;
    world.join(&["inside", "called", "a", "b", "c"]).await;
    world.advance_ms(1_000);
    world.tick().await;
    let all = [leave("inside"), leave("called"), leave("a"), away("b"), leave("b"), leave("a")];
    for _ in 0..2 {
        world.room.depart(&TERMS, &all).await.unwrap();
    }
    for ticket in ["called", "a", "b"] {
        assert_eq!(world.knock(ticket, 0, Knock::Join).await, Standing::Gone(Fate::Left), "{ticket}");
    }
    assert!(
        matches!(world.knock("inside", 0, Knock::Join).await, Standing::Admitted { .. }),
        "a session goes on"
    );
    let measured = world.room.measure().await.unwrap().unwrap();
    assert_eq!(
        (measured.blocks.iter().map(|(_, count)| count).sum::<u64>(), measured.first.len()),
        (1, 1)
    );
    let shown = world.room.show().await.unwrap().unwrap();
    assert_eq!((shown.waiting, shown.away, shown.called), (1, 0, 0));
    world.advance_ms(TERMS.memory_ms);
    world.room.sweep(&TERMS).await.unwrap();
    assert_eq!(
        world.redis.ask::<u64>(&["HLEN", &world.key("fates")]).await,
        1,
        "only the session that ended just now"
    );
}

#[tokio::test]
async fn leaving_after_being_passed_over_leaves_no_trace_in_line() {
    let world = World::of_one_a_second().await;
    world.join(&["used", "a", "b"]).await;
    world.room.depart(&TERMS, &[away("a")]).await.unwrap();
    world.advance_ms(1_000);
    assert_eq!(world.tick().await, 1);
    world.room.depart(&TERMS, &[leave("a"), back("a")]).await.unwrap();
    assert_eq!(world.knock("a", 0, Knock::Join).await, Standing::Gone(Fate::Left));
    assert_eq!(world.room.show().await.unwrap().unwrap().waiting, 0);
}
