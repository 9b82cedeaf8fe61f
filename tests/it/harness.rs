//! What tests need of the world: a real Redis on a unix socket, a clock to move, a deadline for every wait.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use socket2::{Domain, Socket, Type};
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::sync::Mutex;
use waitgate::clock::Clock;
use waitgate::store::scripts::{Joined, Joining, Knock, Place, Seed, Seeded, Standing, Terms};
use waitgate::store::{RoomStore, Store, StoreOptions};

/// 2026-12-01 12:00 UTC, where moved clocks start.
pub const NOON: u64 = 1_796_126_400_000;

/// The terms of most tests: a minute to come, ten minutes inside, half a minute of grace, an hour of memory.
pub const TERMS: Terms = Terms {
    turn_ms: 60_000,
    admission_ms: 600_000,
    grace_ms: 30_000,
    memory_ms: 3_600_000,
};

/// A private Redis, killed when dropped.
pub struct Redis {
    dir: TempDir,
    child: Child,
    append_only: bool,
    /// The test's own connection, made when it is needed.
    connection: Mutex<Option<MultiplexedConnection>>,
}

impl Redis {
    /// A server that forgets everything when it stops.
    pub async fn start() -> Self {
        Self::start_with(false).await
    }

    /// A server that keeps an append-only file, and finds it again after [`Redis::restart`].
    pub async fn start_durable() -> Self {
        Self::start_with(true).await
    }

    async fn start_with(append_only: bool) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("waitgate")
            .tempdir()
            .expect("a directory for the socket");
        let child = Self::spawn(&dir, append_only);
        let redis = Self {
            dir,
            child,
            append_only,
            connection: Mutex::default(),
        };
        redis.answers().await;
        redis
    }

    fn spawn(dir: &TempDir, append_only: bool) -> Child {
        Command::new("redis-server")
            .args([
                "--port",
                "0",
                "--save",
                "",
                "--maxmemory-policy",
                "noeviction",
                "--appendfsync",
                "always",
            ])
            .args(["--appendonly", if append_only { "yes" } else { "no" }])
            .arg("--unixsocket")
            .arg(dir.path().join("r.sock"))
            .arg("--dir")
            .arg(dir.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("redis-server is installed")
    }

    async fn answers(&self) {
        within("redis answers", async || self.try_ask::<String>(&["PING"]).await.is_ok()).await;
    }

    /// Kills the server and waits until it is gone.
    pub async fn kill(&mut self) {
        *self.connection.lock().await = None;
        self.child.kill().await.expect("the server was running");
    }

    /// Starts it again on the same socket and files.
    pub async fn revive(&mut self) {
        self.child = Self::spawn(&self.dir, self.append_only);
        self.answers().await;
    }

    /// Kills it and starts it again.
    pub async fn restart(&mut self) {
        self.kill().await;
        self.revive().await;
    }

    /// Sends the server a signal by its name.
    pub async fn signal(&self, name: &str) {
        let pid = self.child.id().expect("the server runs").to_string();
        let sent = Command::new("kill").args(["-s", name, &pid]).status().await.expect("kill runs");
        assert!(sent.success());
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("r.sock")
    }

    pub fn url(&self) -> String {
        format!("redis+unix://{}", self.socket().display())
    }

    /// A store on this server, connected.
    pub async fn store(&self, clock: &Clock) -> Store {
        let options = StoreOptions {
            call_timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(2),
        };
        let store = Store::open(&self.url(), clock.clone(), options).expect("the URL can be read");
        up(&store).await;
        store
    }

    /// One command of the test's own.
    pub async fn ask<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        self.try_ask(words).await.expect("redis answers the test")
    }

    pub async fn try_ask<T: redis::FromRedisValue>(&self, words: &[&str]) -> Result<T, redis::RedisError> {
        let mut command = redis::cmd(words[0]);
        for word in &words[1..] {
            command.arg(*word);
        }
        let mut kept = self.connection.lock().await;
        let mut connection = match kept.take() {
            Some(connection) => connection,
            None => {
                let client = redis::Client::open(self.url()).expect("the URL can be read");
                client.get_multiplexed_async_connection_with_config(&patient()).await?
            }
        };
        let answer = command.query_async(&mut connection).await;
        // Whatever broke, the next question starts anew.
        if !answer.as_ref().is_err_and(redis::RedisError::is_io_error) {
            *kept = Some(connection);
        }
        answer
    }

    /// Everything stored, byte for byte, so that two moments can be compared.
    pub async fn everything(&self) -> Vec<(String, Vec<u8>)> {
        let mut keys: Vec<String> = self.ask(&["KEYS", "*"]).await;
        keys.sort();
        let mut all = Vec::new();
        for key in keys {
            let dump = self.ask(&["DUMP", &key]).await;
            all.push((key, dump));
        }
        all
    }
}

/// A machine that builds something else meanwhile is slow, and no test is about that.
pub fn patient() -> redis::AsyncConnectionConfig {
    let patience = Some(Duration::from_secs(10));
    redis::AsyncConnectionConfig::new()
        .set_response_timeout(patience)
        .set_connection_timeout(patience)
}

/// Waits until the store is connected.
pub async fn up(store: &Store) {
    let mut ups = store.ups();
    tokio::time::timeout(Duration::from_secs(10), ups.wait_for(|up| *up))
        .await
        .expect("the store connects in time")
        .expect("the store lives");
}

/// An address where nobody listens, and where for as long as the socket lives nobody will.
pub fn nowhere() -> (Socket, SocketAddr) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("a port");
    let at = socket.local_addr().ok().and_then(|at| at.as_socket()).expect("its address");
    (socket, at)
}

/// Waits until it is so, or fails.
pub async fn within(what: &str, so: impl AsyncFn() -> bool) {
    let deadline = Clock::instant() + Duration::from_secs(10);
    while !so().await {
        assert!(Clock::instant() < deadline, "in time: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The time of this test's own runtime, standing still: it passes when the test says so. For what runs in this runtime alone; what waits for a
/// machine to do something (and sleeps meanwhile) must be done before.
pub struct StillTime {
    /// While it lives, time does not run ahead on its own when everybody waits for bytes.
    _hold: std::sync::mpsc::Sender<()>,
}

impl StillTime {
    /// From here on.
    pub fn begin() -> Self {
        let (hold, held) = std::sync::mpsc::channel::<()>();
        tokio::time::pause();
        // A test that waits for what never comes shall fail and not hang: then time runs again, and with it every deadline.
        tokio::task::spawn_blocking(move || held.recv_timeout(Duration::from_secs(10)));
        Self { _hold: hold }
    }

    /// So much time passes, in small steps, so that whoever waits for some of it acts before the rest has passed.
    pub async fn pass(&self, time: Duration) {
        for _ in 0..20 {
            tokio::time::advance(time / 20).await;
            tokio::task::yield_now().await;
        }
    }

    /// Time passes again as it does for everybody.
    pub fn end(self) {
        tokio::time::resume();
    }
}

/// A server, a moved clock, a store and a room that is seeded.
pub struct World {
    pub redis: Redis,
    pub clock: Clock,
    pub store: Store,
    pub room: RoomStore,
}

impl World {
    /// With a room as `seed` says.
    pub async fn with(seed: Seed) -> Self {
        let world = Self::bare().await;
        assert!(world.room.seed(&seed).await.expect("seeded").fresh);
        world
    }

    /// A room of 1 a second without stock, whose first admission has been used up.
    pub async fn of_one_a_second() -> Self {
        Self::with(seed(1_000)).await
    }

    /// The room is not seeded.
    pub async fn bare() -> Self {
        let redis = Redis::start().await;
        let clock = Clock::moved(NOON);
        let store = redis.store(&clock).await;
        let room = store.room("42");
        Self { redis, clock, store, room }
    }

    pub fn advance_ms(&self, ms: u64) {
        self.clock.advance(Duration::from_millis(ms));
    }

    pub fn key(&self, name: &str) -> String {
        format!("{{wg:42}}:{name}")
    }

    pub async fn seed(&self, seed: &Seed) -> Seeded {
        self.room.seed(seed).await.expect("seeded")
    }

    /// Joins, one call for all.
    pub async fn join(&self, tickets: &[&str]) -> Vec<Standing> {
        let tickets: Vec<_> = tickets.iter().map(|ticket| joining(ticket, 0, Knock::Join)).collect();
        self.ask_join(&tickets).await.standings
    }

    pub async fn ask_join(&self, tickets: &[Joining]) -> Joined {
        self.room.join(&TERMS, tickets).await.expect("joined").expect("seeded")
    }

    pub async fn knock(&self, ticket: &str, place: Place, knock: Knock) -> Standing {
        self.ask_join(&[joining(ticket, place, knock)]).await.standings[0]
    }

    /// Called by one tick.
    pub async fn tick(&self) -> u64 {
        self.room.admit(&TERMS).await.expect("ticked").expect("seeded").called
    }
}

/// A room without stock at this rate.
pub fn seed(rate_milli: u64) -> Seed {
    Seed {
        rate_milli,
        ..Seed::default()
    }
}

/// A room with stock, at a rate that is in nobody's way.
pub fn stocked(units: u64) -> Seed {
    Seed {
        stock: Some(units),
        ..seed(1_000_000)
    }
}

pub fn joining(ticket: &str, place: Place, knock: Knock) -> Joining {
    Joining {
        ticket: ticket.to_owned(),
        place,
        knock,
    }
}

/// The place of someone who waits.
pub fn place(standing: Standing) -> Place {
    match standing {
        Standing::Waiting { place, .. } => place,
        other => panic!("not waiting: {other:?}"),
    }
}
