//! The store away, slow, silent, restarted, or no longer the one to ask.

use std::time::Duration;

use tokio::sync::mpsc::Receiver;
use waitgate::clock::Clock;
use waitgate::fault::StoreFault;
use waitgate::store::scripts::{Gate, Knock, Presence, Settled, Standing, Tuning, Verdict};
use waitgate::store::{News, RoomStore, Store, StoreOptions};

use crate::between::{Between, Mode};
use crate::harness::{NOON, Redis, TERMS, World, joining, place, seed, stocked, up, within};
use crate::scripts::claim::asked;

const IMPATIENT: StoreOptions = StoreOptions {
    call_timeout: Duration::from_millis(250),
    connect_timeout: Duration::from_millis(250),
};

/// A seeded room behind a proxy.
async fn behind(redis: &Redis, units: u64) -> (Between, Store, RoomStore) {
    let between = Between::start(redis);
    let store = Store::open(&between.url(), Clock::moved(NOON), IMPATIENT).unwrap();
    up(&store).await;
    let room = store.room("42");
    room.seed(&stocked(units)).await.unwrap();
    (between, store, room)
}

async fn next(listener: &mut Receiver<News>) -> News {
    tokio::time::timeout(Duration::from_secs(9), listener.recv())
        .await
        .expect("news in time")
        .expect("the store lives")
}

/// CASE 83: with Redis down, requests hung until they failed.
#[tokio::test]
async fn away_is_said_at_once_and_ends_by_itself() {
    let mut redis = Redis::start_durable().await;
    let clock = Clock::moved(NOON);
    let store = redis.store(&clock).await;
    let room = store.room("42");
    room.seed(&seed(0)).await.unwrap();
    let joined = room.join(&TERMS, &[joining("a", 0, Knock::Join)]).await.unwrap().unwrap();
    redis.kill().await;
    within("down", async || !store.is_up()).await;
    let start = Clock::instant();
    for _ in 0..100 {
        assert!(matches!(room.show().await, Err(StoreFault::Away)));
    }
    assert!(start.elapsed() < Duration::from_millis(200), "{:?}", start.elapsed());
    redis.revive().await;
    up(&store).await;
    let again = room.join(&TERMS, &[joining("a", 0, Knock::Join)]).await.unwrap().unwrap();
    assert_eq!(
        (again.epoch, again.standings),
        (joined.epoch, joined.standings),
        "the line is as it was"
    );
}

#[tokio::test]
async fn a_store_opened_before_redis_finds_it() {
    let mut redis = Redis::start().await;
    redis.kill().await;
    let store = Store::open(&redis.url(), Clock::system(), IMPATIENT).unwrap();
    assert!(!store.is_up());
    assert!(matches!(store.room("42").show().await, Err(StoreFault::Away)));
    let mut listener = store.listen("42");
    redis.revive().await;
    up(&store).await;
    assert_eq!(next(&mut listener).await, News::Subscribed);
    assert!(Store::open("nonsense", Clock::system(), IMPATIENT).is_err());
}

/// CASE 91: the call ran, its reply was lost, and the caller asked again.
#[tokio::test]
async fn a_lost_reply_is_unknown_and_asking_again_is_safe() {
    let redis = Redis::start().await;
    let (between, store, room) = behind(&redis, 2).await;
    room.join(&TERMS, &[joining("inside", 0, Knock::Join), joining("a", 0, Knock::Join)])
        .await
        .unwrap();
    // A script that the server does not know yet would be lost before it ran.
    let other = store.room("43");
    other.tune("ann", "op", &Tuning::default()).await.unwrap();
    other.settle(&TERMS, "r", Verdict::Release, None).await.unwrap();
    other.claim(&asked("u", "r")).await.unwrap();
    other.depart(&TERMS, &[]).await.unwrap();
    let lost = async |ask: &dyn Fn(RoomStore) -> tokio::task::JoinHandle<Result<(), StoreFault>>| {
        between.set(Mode::Swallow);
        let answer = ask(room.clone()).await.unwrap();
        assert!(matches!(answer, Err(StoreFault::Unknown(_))), "{answer:?}");
        between.set(Mode::Cut);
        within("down", async || !store.is_up()).await;
        between.set(Mode::Pass);
        up(&store).await;
    };
    lost(&|room| tokio::spawn(async move { room.join(&TERMS, &[joining("b", 0, Knock::Join)]).await.map(drop) })).await;
    lost(&|room| tokio::spawn(async move { room.claim(&asked("u", "r")).await.map(drop) })).await;
    assert!(
        matches!(room.claim(&asked("u", "r")).await.unwrap(), Gate::Reserved(_)),
        "this very claim had won"
    );
    let tuning = Tuning {
        cap: Some(7),
        ..Tuning::default()
    };
    let operation = tuning.clone();
    lost(&move |room| {
        let tuning = operation.clone();
        tokio::spawn(async move { room.tune("ann", "op", &tuning).await.map(drop) })
    })
    .await;
    room.tune("ann", "op", &tuning).await.unwrap();
    lost(&|room| tokio::spawn(async move { room.settle(&TERMS, "r", Verdict::Release, None).await.map(drop) })).await;
    assert_eq!(
        room.settle(&TERMS, "r", Verdict::Release, None).await.unwrap(),
        Settled::ReleasedBefore
    );
    lost(&|room| tokio::spawn(async move { room.depart(&TERMS, &[Presence::Leave("b".into())]).await })).await;
    room.depart(&TERMS, &[Presence::Leave("b".into())]).await.unwrap();
    let shown = room.show().await.unwrap().unwrap();
    let stock = shown.stock.unwrap();
    assert_eq!(
        (stock.free, stock.held, shown.waiting, shown.joined_total, shown.cap),
        (2, 0, 1, 3, 7)
    );
    assert_eq!(redis.ask::<u64>(&["XLEN", "{wg:42}:audit"]).await, 1);
}

#[tokio::test]
async fn a_frozen_store_is_given_up_and_found_again() {
    let redis = Redis::start().await;
    let (between, store, room) = behind(&redis, 1).await;
    between.set(Mode::Freeze);
    let start = Clock::instant();
    assert!(matches!(room.claim(&asked("u", "r")).await, Err(StoreFault::Unknown(_))));
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    within("down", async || !store.is_up()).await;
    assert!(matches!(room.claim(&asked("u", "r")).await, Err(StoreFault::Away)));
    between.set(Mode::Pass);
    up(&store).await;
    assert!(matches!(room.claim(&asked("u", "r")).await.unwrap(), Gate::Reserved(_)));
}

/// CASE 94: the first command after an idle disconnect failed.
#[tokio::test]
async fn a_connection_closed_by_the_other_end_is_nobodys_trouble() {
    let world = World::with(seed(0)).await;
    let mine = place(world.knock("a", 0, Knock::Join).await);
    for _ in 0..20 {
        world.redis.ask::<u64>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
        assert_eq!(place(world.knock("a", 0, Knock::Join).await), mine);
    }
}

/// CASE 95: the subscription was gone after a reconnect, and nobody noticed.
#[tokio::test]
async fn a_killed_subscription_comes_back_and_says_so() {
    let mut redis = Redis::start_durable().await;
    let clock = Clock::moved(NOON);
    let store = redis.store(&clock).await;
    let room = store.room("42");
    room.seed(&seed(1_000)).await.unwrap();
    let mut listener = store.listen("42");
    assert_eq!(next(&mut listener).await, News::Subscribed);
    let changed = async |listener: &mut Receiver<News>, operation: &str| {
        room.tune("ann", operation, &Tuning::default()).await.unwrap();
        while next(listener).await != News::Changed {}
    };
    changed(&mut listener, "1").await;
    for round in 0..3 {
        let start = Clock::instant();
        redis.ask::<u64>(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
        assert_eq!(next(&mut listener).await, News::Subscribed, "so everything is read again");
        changed(&mut listener, &format!("k{round}")).await;
        assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    }
    redis.restart().await;
    assert_eq!(next(&mut listener).await, News::Subscribed);
    up(&store).await;
    changed(&mut listener, "2").await;
}

#[tokio::test]
async fn silence_is_taken_for_a_dead_subscription() {
    let world = World::with(seed(1_000)).await;
    let mut listener = world.store.listen("42");
    assert_eq!(next(&mut listener).await, News::Subscribed);
    let start = Clock::instant();
    assert_eq!(next(&mut listener).await, News::Subscribed, "nobody ticks, so nothing is heard");
    assert!(start.elapsed() >= Duration::from_secs(4), "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_slow_listener_is_told_that_it_missed_something_and_holds_up_nobody() {
    let world = World::with(seed(0)).await;
    let (mut slow, mut quick) = (world.store.listen("42"), world.store.listen("42"));
    assert_eq!(next(&mut quick).await, News::Subscribed);
    for _ in 0..30 {
        let changes: Vec<_> = (0..100)
            .map(|_| world.redis.ask::<u64>(&["PUBLISH", "{wg:42}:news", "changed"]))
            .collect();
        futures_util::future::join_all(changes).await;
        for _ in 0..100 {
            assert_eq!(next(&mut quick).await, News::Changed);
        }
    }
    let mut read = 0;
    while let Ok(news) = slow.try_recv() {
        read += 1;
        assert_eq!(news == News::Subscribed, read == 1, "at {read}");
    }
    assert_eq!(read, 1_024);
    assert_eq!(next(&mut slow).await, News::Subscribed, "for all it missed");
    world.redis.ask::<u64>(&["PUBLISH", "{wg:42}:news", "changed"]).await;
    assert_eq!(next(&mut slow).await, News::Changed);
    world.redis.ask::<u64>(&["PUBLISH", "{wg:42}:news", "frontier x"]).await;
    world
        .redis
        .ask::<u64>(&["PUBLISH", "{wg:42}:news", "frontier 7 1700000000000000 a b"])
        .await;
    let late = vec!["a".into(), "b".into()];
    let frontier = News::Frontier {
        epoch: 7,
        frontier: 1_700_000_000_000_000,
        late,
    };
    assert_eq!(next(&mut slow).await, frontier, "what cannot be read is passed over");
}

#[tokio::test]
async fn databases_of_one_server_do_not_hear_each_other() {
    let redis = Redis::start().await;
    let clock = Clock::moved(NOON);
    let open = |database: u8| Store::open(&format!("{}?db={database}", redis.url()), clock.clone(), IMPATIENT).unwrap();
    let (zero, two) = (open(0), open(2));
    let (mut from_zero, mut from_two) = (zero.listen("42"), two.listen("42"));
    assert_eq!(
        (next(&mut from_zero).await, next(&mut from_two).await),
        (News::Subscribed, News::Subscribed)
    );
    for store in [&zero, &two] {
        assert!(store.room("42").seed(&seed(0)).await.unwrap().fresh);
    }
    two.room("42").tune("ann", "1", &Tuning::default()).await.unwrap();
    assert_eq!(next(&mut from_two).await, News::Changed);
    two.room("42").admit(&TERMS).await.unwrap();
    zero.room("42").admit(&TERMS).await.unwrap();
    assert!(matches!(next(&mut from_zero).await, News::Frontier { .. }), "only its own");
}

/// CASE 97: stuck for ever on a server that had become a replica.
#[tokio::test]
async fn a_demoted_server_is_left_and_asked_anew() {
    let world = World::with(seed(0)).await;
    let connections = async || {
        let list: String = world.redis.ask(&["CLIENT", "LIST"]).await;
        let ids = list.lines().filter_map(|line| line.split(' ').next());
        ids.map(str::to_owned).collect::<std::collections::BTreeSet<String>>()
    };
    let before = connections().await;
    world.redis.ask::<String>(&["REPLICAOF", "127.0.0.1", "1"]).await;
    let refused = world.room.join(&TERMS, &[joining("a", 0, Knock::Join)]).await;
    assert!(
        matches!(&refused, Err(StoreFault::Refused(error)) if error.code() == Some("READONLY")),
        "{refused:?}"
    );
    within("the connection to it is closed", async || !before.is_subset(&connections().await)).await;
    world.redis.ask::<String>(&["REPLICAOF", "NO", "ONE"]).await;
    up(&world.store).await;
    assert!(matches!(world.knock("a", 0, Knock::Join).await, Standing::Waiting { .. }));
}

/// CASE 92: the reply to one command answered the next.
#[tokio::test]
async fn each_reply_belongs_to_its_call_though_thousands_were_given_up() {
    let world = World::with(seed(0)).await;
    let names: Vec<String> = (0..1_000).map(|n| format!("t{n}")).collect();
    let all: Vec<_> = names.iter().map(|name| joining(name, 0, Knock::Join)).collect();
    let first = place(world.ask_join(&all).await.standings[0]);
    let given_up = (0..5_000_u64).map(async |n| {
        let ticket = [joining(&names[n as usize % 1_000], 0, Knock::Join)];
        let _ = tokio::time::timeout(Duration::from_micros(n % 500), world.room.join(&TERMS, &ticket)).await;
    });
    futures_util::future::join_all(given_up).await;
    let asked = (0..1_000).map(async |n| assert_eq!(place(world.knock(&names[n], 0, Knock::Join).await), first + n as u64));
    futures_util::future::join_all(asked).await;
}

/// CASE 103: eviction deleted queue and stock.
#[tokio::test]
async fn the_policy_can_be_read_where_the_server_allows() {
    let world = World::bare().await;
    let policy = world.store.policy().await.unwrap();
    assert_eq!(
        (policy.maxmemory_policy.as_deref(), policy.append_only),
        (Some("noeviction"), Some(false))
    );
    assert!(policy.version.contains('.'), "{policy:?}");
    world.redis.ask::<String>(&["ACL", "SETUSER", "default", "-config"]).await;
    let policy = world.store.policy().await.unwrap();
    assert_eq!((policy.maxmemory_policy, policy.append_only), (None, None));
}

#[tokio::test]
async fn a_closed_store_is_away_for_good() {
    let world = World::with(seed(0)).await;
    world.store.close();
    assert!(matches!(world.room.redeem(&TERMS, "a").await, Err(StoreFault::Away)));
    assert!(!world.store.is_up());
    within("connections closed", async || {
        world
            .redis
            .ask::<String>(&["CLIENT", "LIST", "TYPE", "normal"])
            .await
            .lines()
            .count()
            == 1
    })
    .await;
    assert!(!world.store.is_up());
}
