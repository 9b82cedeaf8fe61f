//! admit.

use crate::harness::TERMS;
use crate::harness::{World, place};
use waitgate::store::scripts::{Redeemed, Standing};

#[tokio::test]
async fn the_rate_calls_the_lowest_places_first() {
    let world = World::of_one_a_second().await;
    let first = world.join(&["a", "b", "c"]).await;
    assert!(matches!(first[0], Standing::Admitted { .. }), "{first:?}");
    assert!(place(first[1]) < place(first[2]));
    assert_eq!(world.tick().await, 0);
    world.advance_ms(1_000);
    assert_eq!(world.tick().await, 1);
    assert_eq!(world.tick().await, 0);
    assert!(matches!(world.room.redeem(&TERMS, "b").await.unwrap(), Redeemed::Admitted { .. }));
    assert_eq!(world.room.redeem(&TERMS, "c").await.unwrap(), Redeemed::Waiting);
    world.room.show().await.unwrap().unwrap();
    world.room.measure().await.unwrap().unwrap();
    world.room.sweep(&TERMS).await.unwrap();
    world.room.depart(&TERMS, &[]).await.unwrap();
}
