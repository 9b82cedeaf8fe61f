//! The word of a backend on reservations.

use serde_json::json;
use waitgate::store::scripts::Held;

use super::{Answer, Listener, hold, stock};
use crate::harness::{TERMS, World, stocked};

#[tokio::test]
async fn a_reservation_is_settled_once_however_often_it_is_asked() {
    let world = World::with(stocked(2)).await;
    let listener = Listener::on(&world, None).await;
    let (sold, released) = (hold(&world, "ann").await, hold(&world, "bob").await);

    let answer = listener.settle(&sold, "confirm").await;
    assert_eq!(answer.json(), json!({ "reservation": sold, "outcome": "confirmed" }));
    assert_eq!(listener.settle(&sold, "confirm").await.json()["outcome"], "confirmed_before");
    let answer = listener.settle(&sold, "release").await;
    assert_eq!((answer.status.as_u16(), answer.code().as_str()), (409, "already_sold"));

    // Many at once: the unit comes back once.
    let all = futures_util::future::join_all((0..8).map(|_| listener.settle(&released, "release"))).await;
    let outcome = |answer: &Answer| answer.json()["outcome"].as_str().unwrap().to_owned();
    let outcomes: Vec<String> = all.iter().map(outcome).collect();
    assert_eq!(outcomes.iter().filter(|outcome| *outcome == "released").count(), 1, "{outcomes:?}");
    assert_eq!(
        outcomes.iter().filter(|outcome| *outcome == "released_before").count(),
        7,
        "{outcomes:?}"
    );
    let now = stock(&world).await;
    assert_eq!((now.free, now.held, now.sold), (1, 0, 1));
    assert_eq!(world.room.reservation(&released).await.unwrap().unwrap().state, Held::Released);

    for verb in ["confirm", "release"] {
        let answer = listener.settle("nobody", verb).await;
        assert_eq!(
            (answer.status.as_u16(), answer.code().as_str()),
            (404, "no_such_reservation"),
            "{verb}"
        );
    }
    let json = [("content-type", "application/json")];
    let path = format!("/v1/rooms/42/reservations/{sold}/confirm");
    assert_eq!(listener.ask("POST", &path, &json, "{}").await.status, 200);
    assert_eq!(listener.ask("POST", &path, &json, r#"{"units":2}"#).await.code(), "malformed_body");
}

#[tokio::test]
async fn a_payment_that_comes_too_late_is_sold_if_it_can_be_and_else_paid_back() {
    let world = World::with(stocked(1)).await;
    let listener = Listener::on(&world, None).await;
    let late = hold(&world, "ann").await;
    world.advance_ms(61_000);
    assert_eq!(world.room.sweep(&TERMS).await.unwrap().expired, 1);
    let room = listener.get(&format!("/v1/rooms/42/reservations/{late}")).await.json();
    assert_eq!(room["state"], "expired");
    hold(&world, "bob").await;
    let answer = listener.settle(&late, "confirm").await;
    assert_eq!((answer.status.as_u16(), answer.code().as_str()), (409, "refund_due"));
    assert_eq!(answer.json()["reservation"], late.as_str());

    world.advance_ms(61_000);
    assert_eq!(world.room.sweep(&TERMS).await.unwrap().expired, 1);
    assert_eq!(listener.settle("r-bob", "confirm").await.json()["outcome"], "retaken");
    assert_eq!(stock(&world).await.sold, 1);
}
