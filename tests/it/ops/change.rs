//! Changes of a room: made whole or not at all, told to every gateway, and written down.

use std::time::Duration;

use serde_json::{Value, json};
use waitgate::store::News;

use super::{Listener, hold, stock};
use crate::harness::{World, stocked};

#[tokio::test]
async fn a_change_is_made_told_to_all_gateways_and_written_down() {
    let world = World::with(stocked(100)).await;
    let listener = Listener::on(&world, None).await;
    let elsewhere = world.redis.store(&world.clock).await;
    let mut news = elsewhere.listen("42");
    assert!(matches!(news.recv().await, Some(News::Subscribed)));

    let body = json!({
        "rate": "300/min", "cap": 7, "paused": true, "stock": 120, "message": "Hết hàng tạm thời",
        "opens_at": "2026-12-01T19:30:00+07:00", "closes_at": "2026-12-01T13:00:00Z"
    });
    let headers = [("waitgate-operator", "Hoàng"), ("idempotency-key", "op-1")];
    let answer = listener.patch_as("42", &headers, &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let room = answer.json();
    assert_eq!(room["rate"], "5/s");
    assert_eq!((&room["cap"], &room["paused"]), (&json!(7), &json!(true)));
    assert_eq!(room["message"], "Hết hàng tạm thời");
    assert_eq!(room["opens_at"], "2026-12-01T12:30:00Z");
    assert_eq!(room["closes_at"], "2026-12-01T13:00:00Z");
    assert_eq!(room["stock"]["stock"], 120);
    assert_eq!(room["state"], "countdown");
    let told = tokio::time::timeout(Duration::from_secs(1), news.recv()).await;
    assert!(matches!(told, Ok(Some(News::Changed))), "{told:?}");

    // The same operation again changes nothing and is not written down twice; the same key with another body is another change.
    let again = listener.patch_as("42", &headers, &body).await.json();
    assert_eq!(again["version"], room["version"]);
    let other = listener
        .patch_as("42", &headers, &json!({ "opens_at": null, "closes_at": null }))
        .await
        .json();
    assert_eq!((&other["opens_at"], &other["state"]), (&Value::Null, &json!("paused")));

    let audit: Vec<(String, Vec<String>)> = world.redis.ask(&["XRANGE", &world.key("audit"), "-", "+"]).await;
    assert_eq!(audit.len(), 2, "{audit:?}");
    let field = |name: &str| {
        let entry = &audit[0].1;
        let at = entry.iter().step_by(2).position(|key| key == name).expect("in the entry");
        entry[at * 2 + 1].clone()
    };
    assert_eq!(field("who"), "Hoàng");
    assert!(field("operation").starts_with("op-1:"));
    let (before, after): (Value, Value) = (
        serde_json::from_str(&field("before")).unwrap(),
        serde_json::from_str(&field("after")).unwrap(),
    );
    assert_eq!((&before["stock"], &after["stock"]), (&json!("100"), &json!("120")));
    assert_eq!((&before["rate"], &after["rate"]), (&json!("1000000"), &json!("5000")));
    elsewhere.close();
}

#[tokio::test]
async fn who_is_written_down_without_a_name() {
    let world = World::with(stocked(1)).await;
    let who = async || {
        let audit: Vec<(String, Vec<String>)> = world.redis.ask(&["XREVRANGE", &world.key("audit"), "+", "-", "COUNT", "1"]).await;
        audit[0].1[1].clone()
    };
    let open = Listener::on(&world, None).await;
    assert_eq!(open.patch("42", &json!({ "cap": 1 })).await.status, 200);
    assert_eq!(who().await, "loopback");
    let closed = Listener::on(&world, Some("0123456789abcdef")).await;
    let ours = [("authorization", "Bearer 0123456789abcdef")];
    assert_eq!(closed.patch_as("42", &ours, &json!({ "cap": 2 })).await.status, 200);
    assert_eq!(who().await, "token");
}

#[tokio::test]
async fn nothing_is_changed_unless_all_of_it_is_right() {
    let world = World::with(stocked(10)).await;
    let listener = Listener::on(&world, None).await;
    let everything = world.redis.everything().await;
    let answer = listener.patch("42", &json!({ "rate": "300/s", "cap": "many", "sped": 1 })).await;
    assert_eq!((answer.status.as_u16(), answer.code().as_str()), (400, "bad_value"));
    let problem = answer.json();
    let keys: Vec<_> = problem["errors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|error| error["key"].clone())
        .collect();
    assert_eq!(keys, ["cap", "sped"]);
    assert!(
        problem["detail"].as_str().unwrap().contains("`cap` must be a whole number"),
        "{problem}"
    );

    let json = [("content-type", "application/json")];
    for (body, status, code) in [
        ("", 400, "malformed_body"),
        ("[1]", 400, "malformed_body"),
        ("{}", 400, "nothing_to_change"),
        (r#"{"cap":1,"cap":2}"#, 400, "bad_value"),
        (&format!(r#"{{"message":"{}"}}"#, "x".repeat(17_000)), 413, "body_too_large"),
    ] {
        let answer = listener.ask("PATCH", "/v1/rooms/42", &json, body).await;
        assert_eq!((answer.status.as_u16(), answer.code().as_str()), (status, code));
    }
    for (name, value, code) in [
        ("waitgate-operator", "", "bad_operator"),
        ("waitgate-operator", &"x".repeat(65), "bad_operator"),
        ("idempotency-key", &"x".repeat(129), "bad_idempotency_key"),
    ] {
        let answer = listener.patch_as("42", &[(name, value)], &json!({ "cap": 1 })).await;
        assert_eq!((answer.status.as_u16(), answer.code().as_str()), (400, code));
    }
    assert_eq!(world.redis.everything().await, everything);
}

#[tokio::test]
async fn the_stock_cannot_be_less_than_what_is_taken() {
    let world = World::with(stocked(10)).await;
    let listener = Listener::on(&world, None).await;
    for user in ["ann", "bob", "cat"] {
        hold(&world, user).await;
    }
    assert_eq!(listener.settle("r-ann", "confirm").await.status, 200);

    let answer = listener.patch("42", &json!({ "stock": 2, "rate": 5 })).await;
    assert_eq!((answer.status.as_u16(), answer.code().as_str()), (409, "stock_too_low"));
    assert_eq!(answer.json()["taken"], 3);
    let room = listener.get("/v1/rooms/42").await.json();
    assert_eq!((&room["rate"], &room["stock"]["stock"]), (&json!("1000/s"), &json!(10)));

    // Down to what is taken: nothing is free; what is given back then is free once, and nothing more.
    let room = listener.patch("42", &json!({ "stock": 3 })).await.json();
    assert_eq!((&room["stock"]["free"], &room["state"]), (&json!(0), &json!("all_held")));
    assert_eq!(listener.settle("r-bob", "release").await.status, 200);
    assert_eq!(stock(&world).await.free, 1);
    // Sold out, and then not any more.
    let room = listener.patch("42", &json!({ "stock": 2 })).await.json();
    assert_eq!(room["state"], "all_held");
    assert_eq!(listener.settle("r-cat", "confirm").await.status, 200);
    assert_eq!(listener.get("/v1/rooms/42").await.json()["state"], "sold_out");
    assert_eq!(listener.patch("42", &json!({ "stock": 4 })).await.json()["state"], "open");

    let plain = listener.patch("plain", &json!({ "stock": 4 })).await;
    assert_eq!((plain.status.as_u16(), plain.code().as_str()), (409, "no_stock"));
}
