//! `tune`: settings change whole, once, and leave an entry in the audit.

use std::collections::HashMap;

use waitgate::store::News;
use waitgate::store::scripts::{Seed, Stock, Tuned, Tuning};

use crate::harness::{NOON, World, seed, stocked};

#[tokio::test]
async fn every_setting_can_be_changed_at_once() {
    let world = World::with(stocked(5)).await;
    let mut listener = world.store.listen("42");
    assert_eq!(listener.recv().await, Some(News::Subscribed));
    let before = world.room.show().await.unwrap().unwrap();
    let tuning = Tuning {
        rate_milli: Some(1_700_000_000_000_000),
        cap: Some(99_999_999_999_999),
        paused: Some(true),
        stock: Some(9_007_199_254_740_991),
        message: Some("Zwölf Uhr — \"gleich\"\n".into()),
        opens_at_ms: Some(1_700_000_000_000_000),
        closes_at_ms: Some(100_000_000_000_000),
    };
    assert_eq!(
        world.room.tune("ann", "op1", &tuning).await.unwrap(),
        Tuned::Tuned {
            version: before.version + 1
        }
    );
    assert_eq!(listener.recv().await, Some(News::Changed));
    let after = world.room.show().await.unwrap().unwrap();
    assert_eq!(
        (after.rate_milli, after.cap, after.paused, after.opens_at_ms, after.closes_at_ms),
        (
            1_700_000_000_000_000,
            99_999_999_999_999,
            true,
            1_700_000_000_000_000,
            100_000_000_000_000
        )
    );
    assert_eq!(after.message, "Zwölf Uhr — \"gleich\"\n");
    let stock = Stock {
        stock: 9_007_199_254_740_991,
        free: 9_007_199_254_740_991,
        held: 0,
        sold: 0,
        known: true,
    };
    assert_eq!((after.stock, after.version), (Some(stock), before.version + 1));
}

#[tokio::test]
async fn the_same_operation_again_changes_nothing() {
    let world = World::with(seed(1_000)).await;
    let rate = |rate| Tuning {
        rate_milli: Some(rate),
        ..Tuning::default()
    };
    let first = world.room.tune("ann", "op1", &rate(2_000)).await.unwrap();
    world.room.tune("bob", "op2", &rate(3_000)).await.unwrap();
    assert_eq!(world.room.tune("ann", "op1", &rate(2_000)).await.unwrap(), first);
    assert_eq!(world.room.show().await.unwrap().unwrap().rate_milli, 3_000);
    let entries: Vec<(String, HashMap<String, String>)> = world.redis.ask(&["XRANGE", &world.key("audit"), "-", "+"]).await;
    let told: Vec<_> = entries
        .iter()
        .map(|(_, entry)| {
            (
                entry["who"].as_str(),
                entry["at"].as_str(),
                entry["before"].as_str(),
                entry["after"].as_str(),
            )
        })
        .collect();
    let at = NOON.to_string();
    let wanted = [
        ("ann", at.as_str(), r#"{"rate":"1000"}"#, r#"{"rate":"2000"}"#),
        ("bob", at.as_str(), r#"{"rate":"2000"}"#, r#"{"rate":"3000"}"#),
    ];
    assert_eq!(told, wanted);
}

#[tokio::test]
async fn one_bad_setting_refuses_all() {
    let world = World::with(stocked(5)).await;
    let before = world.redis.everything().await;
    let too_great = Tuning {
        cap: Some(1),
        rate_milli: Some(9_007_199_254_740_993),
        ..Tuning::default()
    };
    assert!(
        world
            .room
            .tune("ann", "op", &too_great)
            .await
            .unwrap_err()
            .to_string()
            .contains("rate is not a whole number")
    );
    assert_eq!(world.redis.everything().await, before);

    let world = World::with(Seed { cap: 3, ..seed(1_000) }).await;
    let stock = Tuning {
        cap: Some(1),
        stock: Some(5),
        ..Tuning::default()
    };
    assert_eq!(world.room.tune("ann", "op", &stock).await.unwrap(), Tuned::NoStock);
    assert_eq!(world.room.show().await.unwrap().unwrap().cap, 3);
}

#[tokio::test]
async fn old_operations_are_let_go() {
    let world = World::with(seed(1_000)).await;
    for n in 0..1_050 {
        world.room.tune("ann", &format!("op{n}"), &Tuning::default()).await.unwrap();
    }
    assert_eq!(world.redis.ask::<u64>(&["ZCARD", &world.key("operations")]).await, 1_000);
    let newest = world.room.tune("ann", "op1049", &Tuning::default()).await.unwrap();
    assert_eq!(
        newest,
        Tuned::Tuned {
            version: world.room.show().await.unwrap().unwrap().version
        }
    );
}
