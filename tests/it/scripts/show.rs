//! `show`: counts as they are now, swept or not.

use waitgate::store::scripts::Presence;

use crate::harness::{TERMS, World};

#[tokio::test]
async fn everybody_is_counted_where_they_are() {
    let world = World::of_one_a_second().await;
    world.join(&["inside", "called", "away", "here", "left"]).await;
    world.advance_ms(1_000);
    world.tick().await;
    world
        .room
        .depart(&TERMS, &[Presence::Away("away".into()), Presence::Leave("left".into())])
        .await
        .unwrap();
    let shown = world.room.show().await.unwrap().unwrap();
    assert_eq!((shown.waiting, shown.away, shown.called, shown.sessions), (2, 1, 1, 1));
    assert_eq!((shown.joined_total, shown.called_total, shown.stock), (5, 2, None));
    assert_eq!(shown.now_ms, world.clock.now_ms());
    world.advance_ms(TERMS.admission_ms + TERMS.turn_ms);
    let shown = world.room.show().await.unwrap().unwrap();
    assert_eq!((shown.called, shown.sessions), (0, 0), "over, though nobody swept");
}
