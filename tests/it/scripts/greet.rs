//! `greet`: the gateways of a room know of each other.

use std::time::Duration;

use waitgate::store::scripts::Greeting;

use crate::harness::{World, seed};

fn said(name: &str, ago_ms: u64, words: &str) -> Greeting {
    Greeting {
        name: name.to_owned(),
        ago_ms,
        words: words.to_owned(),
    }
}

async fn greet(world: &World, name: &str, words: &str) -> Vec<Greeting> {
    let mut heard = world.room.greet(name, words).await.unwrap();
    heard.sort_by(|one, other| one.name.cmp(&other.name));
    heard
}

#[tokio::test]
async fn all_hear_of_all_until_one_is_quiet_or_leaves() {
    let world = World::with(seed(1_000)).await;
    assert_eq!(greet(&world, "a", "x y").await, [said("a", 0, "x y")]);
    assert_eq!(greet(&world, "b", "{}").await, [said("a", 0, "x y"), said("b", 0, "{}")]);
    world.clock.advance(Duration::from_millis(9_999));
    assert_eq!(greet(&world, "b", "{}").await, [said("a", 9_999, "x y"), said("b", 0, "{}")]);
    // Other words take the place of the old ones.
    assert_eq!(greet(&world, "b", "new").await, [said("a", 9_999, "x y"), said("b", 0, "new")]);
    world.clock.advance(Duration::from_millis(1));
    assert_eq!(
        greet(&world, "b", "new").await,
        [said("b", 0, "new")],
        "it was quiet for ten seconds"
    );
    assert_eq!(
        greet(&world, "c", "").await,
        [said("b", 0, "new")],
        "whoever leaves was never there"
    );
    assert_eq!(greet(&world, "b", "").await, []);
    assert_eq!(greet(&world, "c", "z").await, [said("c", 0, "z")]);
}

#[tokio::test]
async fn there_is_a_bound_and_nothing_stays_for_ever() {
    let world = World::with(seed(1_000)).await;
    for number in 0..260 {
        let heard = greet(&world, &format!("{number:03}"), "w").await;
        assert!(
            heard.iter().any(|greeting| greeting.name == format!("{number:03}")),
            "one hears oneself"
        );
    }
    let kept: usize = world.redis.ask(&["HLEN", "{wg:42}:gateways"]).await;
    assert_eq!(kept, 256);
    let lives_ms: i64 = world.redis.ask(&["PTTL", "{wg:42}:gateways"]).await;
    assert!((1..=10_000).contains(&lives_ms), "{lives_ms}");
}

/// What somebody else wrote there is thrown away, and does no harm.
#[tokio::test]
async fn nonsense_is_forgotten() {
    let world = World::with(seed(1_000)).await;
    let _added: u64 = world
        .redis
        .ask(&["HSET", "{wg:42}:gateways", "old", "words only", "odd", "12"])
        .await;
    assert_eq!(greet(&world, "a", "x").await, [said("a", 0, "x")]);
    let kept: usize = world.redis.ask(&["HLEN", "{wg:42}:gateways"]).await;
    assert_eq!(kept, 1);
}
