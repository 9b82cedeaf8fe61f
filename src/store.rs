//! The store: one Redis connection that is watched and rebuilt, time limits, and the rooms' news.
//!
//! Calls never wait for a reconnect: while the store is away they fail at once ([`StoreFault::Away`]), so that a request can be answered from
//! what this process knows. A call that was sent and not answered may have run ([`StoreFault::Unknown`]); every script may be asked again with
//! the same arguments, and a connection that broke under a call is tried once more, because the other end closing an idle connection is no
//! reason to bother a visitor.
//!
//! One task watches the connection: connect, `PING`, up; a `PING` each half second; on a failure, down and connect again with jittered
//! back-off. Another ([`news`]) holds the subscriptions. What is stored where: [`keys`]. What is done to it: [`scripts`].

pub mod embedded;
pub mod keys;
pub mod news;
pub mod scripts;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ErrorKind, FromRedisValue, IntoConnectionInfo, RedisError, Script, ScriptInvocation, ServerErrorKind,
};
use tokio::sync::{Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::fault::StoreFault;
use crate::store::keys::Keys;
pub use crate::store::news::News;
use crate::store::news::Newsroom;
use crate::telemetry::Metrics;

/// How often the connection is probed.
const PROBE: Duration = Duration::from_millis(500);
/// The shortest and the longest wait between attempts to connect.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// How long a call whose connection broke waits for the next one.
const SECOND_TRY: Duration = Duration::from_millis(250);

/// Time limits of the store.
#[derive(Clone, Copy, Debug)]
pub struct StoreOptions {
    /// How long one call may take.
    pub call_timeout: Duration,
    /// How long connecting may take.
    pub connect_timeout: Duration,
}

/// What a server says about itself at start-up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// `maxmemory-policy`; must be `noeviction`. None where `CONFIG` is forbidden.
    pub maxmemory_policy: Option<String>,
    /// Whether the append-only file is on. None where `CONFIG` is forbidden.
    pub append_only: Option<bool>,
    /// `redis_version`, as `INFO` has it; empty where it is forbidden.
    pub version: String,
}

/// A Redis, or what speaks its protocol. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Store {
    inner: Arc<Inner>,
}

/// One room in the store. Cheap to clone.
#[derive(Clone, Debug)]
pub struct RoomStore {
    store: Store,
    keys: Arc<Keys>,
    id: Arc<str>,
}

struct Inner {
    client: Client,
    database: i64,
    clock: Clock,
    options: StoreOptions,
    live: ArcSwapOption<Live>,
    up: watch::Sender<bool>,
    /// A call saw the connection fail: look now, not at the next probe.
    suspect: Notify,
    newsroom: Arc<Newsroom>,
    stop: CancellationToken,
    metrics: OnceLock<Arc<Metrics>>,
}

struct Live {
    connection: MultiplexedConnection,
}

/// What is asked of the store; it can be put twice.
enum Question<'a> {
    Command(&'a redis::Cmd),
    Script(&'a ScriptInvocation<'a>),
}

impl Question<'_> {
    async fn put<T: FromRedisValue>(&self, live: &Live) -> Result<T, RedisError> {
        let mut connection = live.connection.clone();
        match self {
            Self::Command(command) => command.query_async(&mut connection).await,
            Self::Script(invocation) => invocation.invoke_async(&mut connection).await,
        }
    }
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the client: its address may hold a password.
        to.debug_struct("Store").field("up", &*self.up.borrow()).finish_non_exhaustive()
    }
}

impl Store {
    /// Starts connecting in the background and returns at once. `url` is `redis://host:port/db` or `redis+unix:///path`.
    ///
    /// Needs a tokio runtime.
    ///
    /// # Errors
    /// [`StoreFault::Refused`] when the URL cannot be read.
    pub fn open(url: &str, clock: Clock, options: StoreOptions) -> Result<Self, StoreFault> {
        let info = url.into_connection_info().map_err(StoreFault::Refused)?;
        let database = info.redis_settings().db();
        let client = Client::open(info).map_err(StoreFault::Refused)?;
        let stop = CancellationToken::new();
        let up = watch::Sender::new(false);
        let newsroom = Newsroom::start(client.clone(), options.connect_timeout, up.subscribe(), stop.clone());
        let inner = Arc::new(Inner {
            client,
            database,
            clock,
            options,
            live: ArcSwapOption::empty(),
            up,
            suspect: Notify::new(),
            newsroom,
            stop,
            metrics: OnceLock::new(),
        });
        tokio::spawn(watch_over(Arc::clone(&inner)));
        Ok(Self { inner })
    }

    /// Whether the store is connected.
    #[must_use]
    pub fn is_up(&self) -> bool {
        *self.inner.up.borrow()
    }

    /// True while connected; changes wake.
    #[must_use]
    pub fn ups(&self) -> watch::Receiver<bool> {
        self.inner.up.subscribe()
    }

    /// The room with this id.
    #[must_use]
    pub fn room(&self, id: &str) -> RoomStore {
        RoomStore {
            store: self.clone(),
            keys: Arc::new(Keys::new(id, self.inner.database)),
            id: id.into(),
        }
    }

    /// The news of a room, from now on. Whoever reads too slowly gets [`News::Subscribed`] in place of what was missed.
    #[must_use]
    pub fn listen(&self, id: &str) -> mpsc::Receiver<News> {
        self.inner.newsroom.listen(Keys::new(id, self.inner.database).news())
    }

    /// What the server says of its memory policy, for the check at start-up.
    ///
    /// # Errors
    /// [`StoreFault::Away`] or [`StoreFault::Unknown`] as any call. A server that forbids the questions answers with less.
    pub async fn policy(&self) -> Result<Policy, StoreFault> {
        let maxmemory_policy = self.setting("maxmemory-policy").await?;
        let append_only = self.setting("appendonly").await?.map(|value| value == "yes");
        let info: Option<String> = allowed(self.ask(redis::cmd("INFO").arg("server")).await)?;
        let version = info
            .iter()
            .flat_map(|text| text.lines())
            .find_map(|line| line.strip_prefix("redis_version:"))
            .map(|version| version.trim().to_owned())
            .unwrap_or_default();
        Ok(Policy {
            maxmemory_policy,
            append_only,
            version,
        })
    }

    /// Stops the background tasks and drops the connections. Calls answer [`StoreFault::Away`] from then on.
    pub fn close(&self) {
        self.inner.stop.cancel();
        self.inner.live.store(None);
        self.inner.up.send_replace(false);
    }

    async fn setting(&self, name: &str) -> Result<Option<String>, StoreFault> {
        let pair: Option<Vec<String>> = allowed(self.ask(redis::cmd("CONFIG").arg("GET").arg(name)).await)?;
        Ok(pair.and_then(|pair| pair.into_iter().nth(1)))
    }

    /// One plain command.
    async fn ask<T: FromRedisValue>(&self, command: &redis::Cmd) -> Result<T, StoreFault> {
        self.put("a plain command", &Question::Command(command)).await
    }

    /// One script, whose answer is words.
    async fn run<T: FromRedisValue>(
        &self,
        name: &'static str,
        script: &Script,
        keys: &[&str],
        arguments: &[Vec<u8>],
    ) -> Result<T, StoreFault> {
        let mut invocation = script.prepare_invoke();
        for key in keys {
            invocation.key(*key);
        }
        for argument in arguments {
            invocation.arg(argument.as_slice());
        }
        self.put(name, &Question::Script(&invocation)).await
    }

    async fn put<T: FromRedisValue>(&self, name: &'static str, question: &Question<'_>) -> Result<T, StoreFault> {
        let Some(live) = self.inner.live.load_full() else {
            return Err(StoreFault::Away);
        };
        let began = Clock::instant();
        let first = question.put(&live).await;
        if let Some(metrics) = self.inner.metrics.get() {
            metrics.store_called(name, began.elapsed());
        }
        let error = match first {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        if !error.is_connection_dropped() {
            return Err(self.fault(name, error, &live));
        }
        self.inner.drop_connection(&live);
        match self.next_connection(&live).await {
            Some(next) => question.put(&next).await.map_err(|error| self.fault(name, error, &next)),
            None => Err(StoreFault::Unknown(error)),
        }
    }

    /// Counts calls and their time in these metrics from now on.
    pub fn count_in(&self, metrics: Arc<Metrics>) {
        let _before = self.inner.metrics.set(metrics);
    }

    /// The connection after `broken`, if it comes soon.
    async fn next_connection(&self, broken: &Arc<Live>) -> Option<Arc<Live>> {
        let mut ups = self.ups();
        let wait = SECOND_TRY.min(self.inner.options.call_timeout);
        let next = async {
            loop {
                if let Some(live) = self.inner.live.load_full()
                    && !Arc::ptr_eq(&live, broken)
                {
                    return Some(live);
                }
                ups.changed().await.ok()?;
            }
        };
        tokio::time::timeout(wait, next).await.ok().flatten()
    }

    fn fault(&self, script: &'static str, error: RedisError, live: &Arc<Live>) -> StoreFault {
        match error.kind() {
            // This server is no longer, or not yet, the one to ask.
            ErrorKind::Server(ServerErrorKind::ReadOnly | ServerErrorKind::BusyLoading | ServerErrorKind::MasterDown) => {
                self.inner.drop_connection(live);
                StoreFault::Refused(error)
            }
            ErrorKind::Server(_) | ErrorKind::Extension | ErrorKind::AuthenticationFailed => StoreFault::Refused(error),
            ErrorKind::UnexpectedReturnType => StoreFault::Nonsense {
                script,
                answer: error.to_string().chars().take(200).collect(),
            },
            _ => {
                self.inner.suspect.notify_one();
                StoreFault::Unknown(error)
            }
        }
    }
}

impl RoomStore {
    /// The room's id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The room's keys.
    #[must_use]
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// What scripts get for their `now`.
    fn now(&self) -> u64 {
        self.store.inner.clock.store_now()
    }
}

impl Inner {
    fn drop_connection(&self, live: &Arc<Live>) {
        if self.live.load().as_ref().is_some_and(|current| Arc::ptr_eq(current, live)) {
            self.live.store(None);
            self.up.send_replace(false);
        }
        self.suspect.notify_one();
    }

    async fn connect(&self) -> Result<MultiplexedConnection, RedisError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.options.connect_timeout))
            .set_response_timeout(Some(self.options.call_timeout));
        let mut connection = self.client.get_multiplexed_async_connection_with_config(&config).await?;
        probe(&mut connection).await?;
        Ok(connection)
    }
}

async fn probe(connection: &mut MultiplexedConnection) -> Result<(), RedisError> {
    redis::cmd("PING").query_async::<String>(connection).await.map(drop)
}

/// Connects, watches the connection, and connects again, until the store is closed.
async fn watch_over(inner: Arc<Inner>) {
    let mut failures = 0;
    let mut told = false;
    while !inner.stop.is_cancelled() {
        match inner.connect().await {
            Ok(connection) => {
                failures = 0;
                if told {
                    tracing::info!("the store is back");
                }
                told = false;
                let live = Arc::new(Live { connection });
                inner.live.store(Some(Arc::clone(&live)));
                inner.up.send_replace(true);
                tokio::select! {
                    () = inner.stop.cancelled() => {}
                    () = until_broken(&inner, &live) => {}
                }
                inner.live.store(None);
                inner.up.send_replace(false);
            }
            Err(error) => {
                if !told {
                    tracing::warn!(%error, "the store cannot be reached; trying until it can");
                }
                told = true;
                tokio::select! {
                    () = inner.stop.cancelled() => {}
                    () = tokio::time::sleep(back_off(failures)) => {}
                }
                failures += 1;
            }
        }
    }
}

async fn until_broken(inner: &Inner, live: &Arc<Live>) {
    let mut connection = live.connection.clone();
    loop {
        tokio::select! {
            () = tokio::time::sleep(PROBE) => {}
            () = inner.suspect.notified() => {}
        }
        let current = inner.live.load().as_ref().is_some_and(|current| Arc::ptr_eq(current, live));
        if !current || probe(&mut connection).await.is_err() {
            return;
        }
    }
}

/// How long to wait after so many failures: doubling, and jittered so that a fleet does not come back in step.
fn back_off(failures: u32) -> Duration {
    let longest = BACK_OFF.0.saturating_mul(1 << failures.min(10)).min(BACK_OFF.1);
    longest.mul_f64(0.5 + fastrand::f64() / 2.0)
}

/// A server that forbids a question has no answer to it; that is not a fault.
fn allowed<T>(answer: Result<T, StoreFault>) -> Result<Option<T>, StoreFault> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(StoreFault::Refused(_)) => Ok(None),
        Err(fault) => Err(fault),
    }
}
