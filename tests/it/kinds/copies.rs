//! Claims that a replica must have too: nobody is told of one that a failover could lose, and nothing is lost by asking again.

use std::time::Duration;

use futures_util::future::join_all;
use http::Method;
use waitgate::fault::StoreFault;
use waitgate::store::scripts::Gate;

use super::open;
use super::process::{Process, port};
use crate::crew::{Crew, Visitor, operate};
use crate::harness::{stocked, within};
use crate::scripts::claim::asked;

const LONG: Duration = Duration::from_secs(5);
const SHORT: Duration = Duration::from_millis(200);

/// A replica of the server on this port.
async fn replica_of(primary: &Process) -> Process {
    let replica = Process::start(port(), &format!("replicaof 127.0.0.1 {}\n", primary.port), None).await;
    within("it follows", async || {
        replica.cli(&["INFO", "replication"]).await.contains("master_link_status:up")
    })
    .await;
    replica
}

/// How often `WAIT` was called.
async fn waits(primary: &Process) -> u64 {
    let stats = primary.cli(&["INFO", "commandstats"]).await;
    let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_wait:calls="));
    line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
}

#[tokio::test]
async fn what_no_replica_has_is_not_certain_and_asking_again_finds_it() {
    let primary = Process::start(port(), "", None).await;
    let replica = replica_of(&primary).await;
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), &format!("[store]\nurl = \"redis://127.0.0.1:{}\"", primary.port)).await;
    let room = store.room("42");
    room.seed(&stocked(3)).await.unwrap();
    let at = room.primary().unwrap();
    assert!(matches!(room.claim(&asked("ann", "r1")).await, Ok(Gate::Reserved(_))));
    room.copied(&at, 1, LONG).await.unwrap();
    let on_the_other = replica.cli(&["HEXISTS", "{wg:42}:reservations", "r1"]).await;
    assert_eq!(on_the_other.trim(), "1", "the replica has it");

    replica.signal("STOP").await;
    assert!(matches!(room.claim(&asked("bob", "r2")).await, Ok(Gate::Reserved(_))));
    let alone = room.copied(&at, 1, SHORT).await;
    assert!(matches!(alone, Err(StoreFault::Copies { wanted: 1, had: 0 })), "{alone:?}");
    // However many wait, they wait together.
    let before = waits(&primary).await;
    let all = join_all((0..50).map(|_| room.copied(&at, 1, SHORT))).await;
    assert!(all.iter().all(Result::is_err));
    let more = waits(&primary).await - before;
    assert!((1..=2).contains(&more), "{more} counts for fifty callers");

    replica.signal("CONT").await;
    match room.claim(&asked("bob", "r2")).await.unwrap() {
        Gate::Reserved(reservation) | Gate::Already { reservation, .. } => assert_eq!(reservation.id, "r2"),
        other => panic!("it was taken before: {other:?}"),
    }
    room.copied(&at, 1, LONG).await.unwrap();
    // Two are more than there are.
    let too_many = room.copied(&at, 2, SHORT).await;
    assert!(matches!(too_many, Err(StoreFault::Copies { wanted: 2, had: 1 })), "{too_many:?}");
    // One that is a primary no longer promises nothing, whoever follows it.
    primary.cli(&["REPLICAOF", "127.0.0.1", "1"]).await;
    assert!(matches!(room.copied(&at, 1, SHORT).await, Err(StoreFault::Copies { had: 0, .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_reaches_the_shop_only_when_a_replica_has_it() {
    let primary = Process::start(port(), "", None).await;
    let settings = "rate = \"50/s\"\nstock = 3\nclaim.path = \"/sale/claim\"\nclaim.replicas = 1\nclaim.replicas_timeout = \"300ms\"\n";
    let crew = Crew::of(settings).await;
    let gateway = crew.gateway_through(&format!("redis://127.0.0.1:{}", primary.port)).await;
    let buyer = Visitor::new(gateway.public);
    within("let in", async || buyer.gets_in().await).await;

    for _ in 0..3 {
        let refused = buyer.claim("one").await;
        assert_eq!(refused.gist(), (503, "store_unavailable".to_owned()), "{}", refused.text());
        assert!(refused.headers.contains_key("retry-after"));
    }
    assert_eq!(crew.shop.claims(), 0, "the shop hears nothing of it");
    let held = primary.cli(&["HGET", "{wg:42}:room", "held"]).await;
    assert_eq!(held.trim(), "1", "and one unit waits for it");

    let replica = replica_of(&primary).await;
    let last = std::sync::Mutex::new(None);
    within("it is answered", async || {
        let reply = buyer.claim("one").await;
        let done = reply.status == 201;
        *last.lock().unwrap() = Some(reply);
        done
    })
    .await;
    let order = last.into_inner().unwrap().unwrap().text();
    let again = buyer.claim("one").await;
    assert_eq!((again.status.as_u16(), again.text()), (201, order.clone()));
    assert_eq!(crew.shop.claims(), 1, "once");
    let held = primary.cli(&["HGET", "{wg:42}:room", "held"]).await;
    assert_eq!(held.trim(), "1");

    // Nor is it said that it is sold, until a replica knows.
    let id = order.strip_prefix("order of ").unwrap();
    let confirm = format!("/v1/rooms/42/reservations/{id}/confirm");
    let confirmed = async || operate(gateway.operators, Method::POST, &confirm, "").await;
    replica.signal("STOP").await;
    for _ in 0..2 {
        let refused = confirmed().await;
        assert_eq!(refused.gist(), (503, "store_unavailable".to_owned()), "{}", refused.text());
        assert!(refused.text().contains("too few replicas"), "{}", refused.text());
    }
    replica.signal("CONT").await;
    within("it is said", async || confirmed().await.json()["outcome"] == "confirmed_before").await;
    assert_eq!(primary.cli(&["HGET", "{wg:42}:room", "sold"]).await.trim(), "1", "once");
}
