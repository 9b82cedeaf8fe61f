//! `answer`: the first answer stays. How claims replay it: `claim`.

use crate::harness::{World, stocked};
use crate::scripts::claim::asked;

#[tokio::test]
async fn the_first_answer_stays() {
    let world = World::with(stocked(1)).await;
    world.room.claim(&asked("u", "r")).await.unwrap();
    let kept = async || world.redis.ask::<Option<Vec<u8>>>(&["HGET", &world.key("answers"), "r"]).await;
    world.room.answer("r", None).await.unwrap();
    assert_eq!(kept().await, None);
    let bytes: Vec<u8> = (0..=255).collect();
    world.room.answer("r", Some(&bytes)).await.unwrap();
    world.room.answer("r", Some(b"second")).await.unwrap();
    world.room.answer("r", None).await.unwrap();
    assert_eq!(kept().await, Some(bytes));
}

#[tokio::test]
async fn an_answer_to_nothing_is_not_kept() {
    let world = World::with(stocked(1)).await;
    world.room.answer("stranger", Some(b"x")).await.unwrap();
    world.room.answer("stranger", None).await.unwrap();
    assert_eq!(
        world
            .redis
            .ask::<u64>(&["EXISTS", &world.key("answers"), &world.key("reservations")])
            .await,
        0
    );
}
