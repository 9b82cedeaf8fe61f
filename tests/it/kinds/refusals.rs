//! What a server refuses, with the server's own words: nothing was done, and that is certain; or it is said that nobody knows.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redis::ErrorKind;
use tokio::net::TcpListener;
use waitgate::clock::Clock;
use waitgate::fault::StoreFault;
use waitgate::store::scripts::{Joined, Knock, Standing};
use waitgate::store::{RoomStore, Store, StoreOptions};

use crate::between::{Between, Mode};
use crate::harness::{NOON, Redis, TERMS, World, joining, seed, up, within};

const OPTIONS: StoreOptions = StoreOptions {
    call_timeout: Duration::from_secs(2),
    connect_timeout: Duration::from_secs(2),
};

async fn join(room: &RoomStore, ticket: &str) -> Result<Option<Joined>, StoreFault> {
    room.join(&TERMS, &[joining(ticket, 0, Knock::Join)]).await
}

/// Refused with this word, although the server is still there.
async fn refused(world: &World, ticket: &str, word: &str) {
    match join(&world.room, ticket).await {
        Err(StoreFault::Refused(error)) => assert!(error.to_string().contains(word) || error.code() == Some(word), "{error}"),
        other => panic!("{word}: {other:?}"),
    }
    assert!(world.store.is_up(), "{word} is no loss of the store");
}

/// CASES 98, 100, 103.
#[tokio::test]
async fn what_is_refused_was_not_done_and_the_store_stays() {
    let world = World::with(seed(0)).await;
    let config = async |name: &str, value: &str| world.redis.ask::<String>(&["CONFIG", "SET", name, value]).await;
    let before = world.redis.everything().await;
    config("maxmemory", "1").await;
    refused(&world, "a", "OOM").await;
    config("maxmemory", "0").await;
    config("min-replicas-to-write", "1").await;
    refused(&world, "a", "NOREPLICAS").await;
    config("min-replicas-to-write", "0").await;
    assert_eq!(world.redis.everything().await, before, "nothing was done");
    assert!(
        matches!(world.knock("a", 0, Knock::Join).await, Standing::Waiting { .. }),
        "and now it is"
    );
    world.redis.ask::<String>(&["SCRIPT", "FLUSH"]).await;
    assert!(
        matches!(world.knock("b", 0, Knock::Join).await, Standing::Waiting { .. }),
        "nobody notices"
    );
}

/// CASE 100: one long script stopped everybody.
#[tokio::test]
async fn a_busy_server_refuses_and_serves_again() {
    let world = World::with(seed(0)).await;
    world.redis.ask::<String>(&["CONFIG", "SET", "busy-reply-threshold", "50"]).await;
    let url = world.redis.url();
    let endless = tokio::spawn(async move {
        let client = redis::Client::open(url).unwrap();
        let mut connection = client
            .get_multiplexed_async_connection_with_config(&crate::harness::patient())
            .await
            .unwrap();
        redis::cmd("EVAL")
            .arg("while true do end")
            .arg(0)
            .query_async::<()>(&mut connection)
            .await
    });
    within("it is refused, or was noticed before", async || {
        matches!(join(&world.room, "a").await,
            Err(StoreFault::Refused(error)) if error.code() == Some("BUSY") || error.kind() == ErrorKind::Extension)
            || !world.store.is_up()
    })
    .await;
    // The test's own connection is told the same, but for this command.
    within("the script is ended", async || {
        world.redis.try_ask::<String>(&["SCRIPT", "KILL"]).await.is_ok()
    })
    .await;
    assert!(endless.await.unwrap().is_err());
    up(&world.store).await;
    within("people join", async || join(&world.room, "a").await.is_ok()).await;
}

/// A first try that may have been done, and a second that was refused: that is not "not done".
#[tokio::test]
async fn a_refusal_after_a_lost_answer_is_not_certain() {
    let redis = Redis::start().await;
    let between = Between::start(&redis);
    let store = Store::open(&between.url(), Clock::moved(NOON), OPTIONS).unwrap();
    up(&store).await;
    let room = store.room("42");
    room.seed(&seed(0)).await.unwrap();
    join(&room, "first").await.unwrap();
    between.set(Mode::Swallow);
    let asked = tokio::spawn({
        let room = room.clone();
        async move { join(&room, "a").await }
    });
    within("it was done", async || redis.ask::<u64>(&["ZCARD", "{wg:42}:line"]).await == 2).await;
    redis.ask::<String>(&["CONFIG", "SET", "maxmemory", "1"]).await;
    between.set(Mode::Cut);
    within("the connection breaks", async || !store.is_up()).await;
    between.set(Mode::Pass);
    match asked.await.unwrap() {
        Err(StoreFault::Unknown(_)) => {}
        other => panic!("nobody can say: {other:?}"),
    }
    let refusals: String = redis.ask(&["INFO", "errorstats"]).await;
    assert!(refusals.contains("errorstat_OOM:count=1"), "the second try was refused: {refusals}");
    redis.ask::<String>(&["CONFIG", "SET", "maxmemory", "0"]).await;
    up(&store).await;
    within(
        "the same answer, once",
        async || matches!(join(&room, "a").await, Ok(Some(joined)) if matches!(joined.standings[0], Standing::Waiting { .. })),
    )
    .await;
    assert_eq!(redis.ask::<u64>(&["ZCARD", "{wg:42}:line"]).await, 2);
}

/// A server that comes back finds no crowd of connections at its door.
#[tokio::test]
async fn however_many_calls_fail_one_connection_at_a_time_is_tried() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let (tried, open, most) = (
        Arc::new(AtomicUsize::new(0)),
        Arc::new(AtomicUsize::new(0)),
        Arc::new(AtomicUsize::new(0)),
    );
    let counts = (Arc::clone(&tried), Arc::clone(&open), Arc::clone(&most));
    let server = tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let (tried, open, most) = counts.clone();
            tokio::spawn(async move {
                tried.fetch_add(1, Ordering::Relaxed);
                most.fetch_max(open.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                // Slow to say no, as one that has just started.
                tokio::time::sleep(Duration::from_millis(30)).await;
                open.fetch_sub(1, Ordering::Relaxed);
                drop(socket);
            });
        }
    });
    let store = Store::open(&url, Clock::system(), OPTIONS).unwrap();
    let until = Clock::instant() + Duration::from_secs(2);
    let callers = (0..200).map(async |n| {
        let room = store.room(&format!("r{n}"));
        while Clock::instant() < until {
            assert!(matches!(room.show().await, Err(StoreFault::Away)));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    futures_util::future::join_all(callers).await;
    let (tried, most) = (tried.load(Ordering::Relaxed), most.load(Ordering::Relaxed));
    assert!((2..=12).contains(&tried), "in two seconds: {tried}");
    assert_eq!(most, 1);
    server.abort();
}
