//! What holds for every script: a key that is not what it should be changes nothing, a room that is not there is said so, and a server that has
//! forgotten the scripts is told them again.

use waitgate::fault::StoreFault;
use waitgate::store::RoomStore;
use waitgate::store::scripts::{self, Asked, Gate, Knock, Presence, Redeemed, Settled, Swept, Tuned, Tuning, Verdict};

use crate::harness::{TERMS, World, joining, stocked};
use crate::scripts::claim::asked;

/// One call of the script with this name; in the room of [`full_room`] each that writes has something to write.
async fn call(room: &RoomStore, name: &str) -> Result<(), StoreFault> {
    let claim = Asked {
        key: "key".into(),
        ..asked("buyer", "new")
    };
    match name {
        "seed" => room.seed(&stocked(1)).await.map(drop),
        "join" => {
            let all = [
                joining("new", 0, Knock::Join),
                joining("left", 0, Knock::Again),
                joining("passed", 0, Knock::Join),
            ];
            room.join(&TERMS, &all).await.map(drop)
        }
        "admit" => room.admit(&TERMS).await.map(drop),
        "redeem" => room.redeem(&TERMS, "called").await.map(drop),
        "depart" => {
            let all = [
                Presence::Away("here".into()),
                Presence::Back("passed".into(), 0),
                Presence::Leave("away".into()),
            ];
            room.depart(&TERMS, &all).await
        }
        "sweep" => room.sweep(&TERMS).await.map(drop),
        "claim" => room.claim(&claim).await.map(drop),
        "answer" => room.answer("held", None).await,
        "settle" => room.settle(&TERMS, "held", Verdict::Confirm, Some(b"answer")).await.map(drop),
        "tune" => room
            .tune(
                "me",
                "op",
                &Tuning {
                    cap: Some(3),
                    ..Tuning::default()
                },
            )
            .await
            .map(drop),
        "greet" => room.greet("me", "words").await.map(drop),
        "show" => room.show().await.map(drop),
        "measure" => room.measure().await.map(drop),
        other => panic!("no call of {other}"),
    }
}

/// Somebody everywhere, and everything overdue that can be.
async fn full_room() -> World {
    let world = World::with(stocked(9)).await;
    let rate = Tuning {
        rate_milli: Some(1_000),
        ..Tuning::default()
    };
    world.room.tune("me", "first", &rate).await.unwrap();
    world.join(&["inside", "passed", "called", "away", "left", "here", "next"]).await;
    world.room.depart(&TERMS, &[Presence::Away("passed".into())]).await.unwrap();
    world.advance_ms(1_000);
    assert_eq!(world.tick().await, 1);
    world
        .room
        .depart(&TERMS, &[Presence::Away("away".into()), Presence::Leave("left".into())])
        .await
        .unwrap();
    for id in ["held", "done"] {
        let claim = Asked {
            key: "key".into(),
            ..asked(id, id)
        };
        assert!(matches!(world.room.claim(&claim).await.unwrap(), Gate::Reserved(_)));
    }
    world.room.settle(&TERMS, "done", Verdict::Release, Some(b"no")).await.unwrap();
    world.advance_ms(2_000);
    world
}

/// CASE 101: a script that failed half-way left half its writes.
#[tokio::test]
async fn a_key_of_the_wrong_kind_is_named_and_nothing_changes() {
    for verb in scripts::all() {
        let world = full_room().await;
        if verb.name == "sweep" {
            world.advance_ms(TERMS.memory_ms);
        }
        for key in verb.keys {
            let key = world.room.keys().get(*key).to_owned();
            let _: Result<String, _> = world.redis.try_ask(&["RENAME", &key, "kept"]).await;
            world.redis.ask::<String>(&["SET", &key, "text"]).await;
            let before = world.redis.everything().await;
            let error = call(&world.room, verb.name).await.expect_err(&key).to_string();
            assert!(error.contains("WRONGKEY") && error.contains(&key), "{}: {error}", verb.name);
            assert_eq!(world.redis.everything().await, before, "{} with a wrong {key}", verb.name);
            world.redis.ask::<u64>(&["DEL", &key]).await;
            let _: Result<String, _> = world.redis.try_ask(&["RENAME", "kept", &key]).await;
        }
        call(&world.room, verb.name).await.unwrap();
    }
}

#[tokio::test]
async fn a_text_where_a_number_should_be_changes_nothing() {
    let world = full_room().await;
    let room = world.key("room");
    let fields = [
        "epoch",
        "last",
        "frontier",
        "rate",
        "cap",
        "free",
        "held",
        "stock_known",
        "credit",
        "credit_at",
        "version",
        "opens_at",
    ];
    let scripts = ["join", "admit", "sweep", "claim", "settle", "tune", "show", "measure"];
    world.advance_ms(TERMS.memory_ms);
    for field in fields {
        let good: String = world.redis.ask(&["HGET", &room, field]).await;
        for bad in ["text", "-1", "1.5", "9007199254740993", "inf", "nan"] {
            world.redis.ask::<u64>(&["HSET", &room, field, bad]).await;
            for name in scripts {
                let before = world.redis.everything().await;
                if let Err(error) = call(&world.room, name).await {
                    assert!(error.to_string().contains(field), "{name}: {error}");
                    assert_eq!(world.redis.everything().await, before, "{name} with {field} = {bad}");
                } else {
                    let text = scripts::all().into_iter().find(|verb| verb.name == name).unwrap().text;
                    assert!(!text.contains(&format!("'{field}'")), "{name} took {field} = {bad}");
                }
            }
        }
        world.redis.ask::<u64>(&["HSET", &room, field, &good]).await;
    }
}

#[tokio::test]
async fn broken_records_and_counts_change_nothing() {
    for (key, field, names) in [
        ("reservations", "held", &["answer", "settle", "sweep"][..]),
        ("buyers", "held", &["settle", "sweep"][..]),
        ("buyers", "buyer", &["claim"][..]),
    ] {
        for name in names {
            let world = full_room().await;
            world.advance_ms(TERMS.memory_ms);
            world.redis.ask::<u64>(&["HSET", &world.key(key), field, "{"]).await;
            let before = world.redis.everything().await;
            let error = call(&world.room, name).await.unwrap_err().to_string();
            assert!(error.contains(&world.key(key)), "{name}: {error}");
            assert_eq!(world.redis.everything().await, before, "{name} with a broken {key}");
        }
    }
    for name in ["join", "admit", "depart", "sweep", "measure"] {
        let world = full_room().await;
        world.advance_ms(TERMS.grace_ms);
        let blocks: Vec<String> = world.redis.ask(&["HKEYS", &world.key("blocks")]).await;
        world.redis.ask::<u64>(&["HSET", &world.key("blocks"), &blocks[0], "text"]).await;
        let before = world.redis.everything().await;
        let error = call(&world.room, name).await.unwrap_err().to_string();
        assert!(error.contains(&world.key("blocks")), "{name}: {error}");
        assert_eq!(world.redis.everything().await, before, "{name}");
    }
}

#[tokio::test]
async fn a_room_that_is_not_seeded_is_said_to_be_so() {
    let world = World::bare().await;
    let room = &world.room;
    assert!(room.join(&TERMS, &[joining("a", 0, Knock::Join)]).await.unwrap().is_none());
    assert!(room.admit(&TERMS).await.unwrap().is_none());
    assert!(room.show().await.unwrap().is_none());
    assert!(room.measure().await.unwrap().is_none());
    assert_eq!(room.redeem(&TERMS, "a").await.unwrap(), Redeemed::Unknown);
    room.depart(&TERMS, &[Presence::Leave("a".into())]).await.unwrap();
    assert_eq!(room.sweep(&TERMS).await.unwrap(), Swept::default());
    assert_eq!(room.claim(&asked("u", "r")).await.unwrap(), Gate::StockUnknown);
    room.answer("r", Some(b"x")).await.unwrap();
    assert_eq!(room.settle(&TERMS, "r", Verdict::Confirm, None).await.unwrap(), Settled::Missing);
    assert_eq!(room.tune("me", "op", &Tuning::default()).await.unwrap(), Tuned::Unseeded);
    assert!(world.redis.everything().await.is_empty(), "and nothing was written");
}

/// CASE 98: NOSCRIPT reached visitors.
#[tokio::test]
async fn a_server_that_forgot_the_scripts_is_told_them_again() {
    let world = full_room().await;
    for verb in scripts::all() {
        world.redis.ask::<String>(&["SCRIPT", "FLUSH"]).await;
        call(&world.room, verb.name)
            .await
            .unwrap_or_else(|error| panic!("{}: {error}", verb.name));
    }
}

/// CASE 103: with memory full, a script wrote half.
#[tokio::test]
async fn with_memory_full_a_script_is_refused_whole() {
    let world = full_room().await;
    world.redis.ask::<String>(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let before = world.redis.everything().await;
    for name in [
        "seed", "join", "admit", "redeem", "depart", "sweep", "claim", "answer", "settle", "tune",
    ] {
        let error = call(&world.room, name).await.expect_err(name).to_string();
        assert!(error.contains("OOM"), "{name}: {error}");
    }
    assert_eq!(world.redis.everything().await, before);
    for name in ["show", "measure"] {
        call(&world.room, name).await.unwrap();
    }
    world.redis.ask::<String>(&["CONFIG", "SET", "maxmemory", "0"]).await;
    call(&world.room, "join").await.unwrap();
}
