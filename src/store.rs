//! The store: connections to its primaries that are watched and rebuilt, time limits, and the rooms' news.
//!
//! It is one server, the primary that sentinels name, or a cluster, where each room has its primary; everything is read and written there, never
//! at a replica. Calls never wait for a reconnect: while a room's primary is away they fail at once ([`StoreFault::Away`]), so that a request can
//! be answered from what this process knows. A call that was sent and not answered may have run ([`StoreFault::Unknown`]); every script may be
//! asked again with the same arguments, and a connection that broke under a call is tried once more, because the other end closing an idle
//! connection is no reason to bother a visitor. What each refusal means: `question`.
//!
//! One task watches the connections (`watch`): who are the primaries (`survey`), connect (`dial`), up; a `PING` each half second; on a
//! failure, look again. Another ([`news`]) holds the subscriptions. What is stored where: [`keys`]. What is done to it: [`scripts`].

mod copies;
mod dial;
pub mod embedded;
pub mod examine;
pub mod keys;
pub mod news;
mod question;
mod routes;
pub mod scripts;
mod survey;
mod watch;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use redis::{ErrorKind, FromRedisValue, RedisError, Value};
use tokio::sync::{Notify, mpsc, watch as watched};
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::config::Site;
use crate::fault::StoreFault;
use crate::store::copies::Copies;
pub use crate::store::copies::Primary;
use crate::store::dial::Dialer;
use crate::store::keys::Keys;
pub use crate::store::news::News;
use crate::store::news::Newsroom;
use crate::store::question::{Question, SHORTLY, Verdict, judge};
use crate::store::routes::{Node, Routes, slot};
use crate::store::survey::Surveyor;
use crate::telemetry::Metrics;

/// How long a call whose connection broke, or that was sent to a server that is not known yet, waits for the next one.
const SECOND_TRY: Duration = Duration::from_millis(250);
/// How often a call is put, to one server or several, before it is given up.
const TRIES: u32 = 12;

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

impl Policy {
    /// The line may be thrown away.
    fn bites(&self) -> bool {
        self.maxmemory_policy.as_deref().is_some_and(|policy| policy != "noeviction")
    }
}

/// A Redis, or what speaks its protocol. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Store {
    inner: Arc<Inner>,
}

/// One room in the store. Cheap to clone.
#[derive(Clone)]
pub struct RoomStore {
    store: Store,
    keys: Arc<Keys>,
    slot: u16,
    id: Arc<str>,
    copies: Arc<Copies>,
}

impl std::fmt::Debug for RoomStore {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.debug_struct("RoomStore").field("id", &self.id).finish_non_exhaustive()
    }
}

struct Inner {
    dialer: Dialer,
    database: i64,
    clock: Clock,
    options: StoreOptions,
    /// Who is asked for what.
    routes: ArcSwap<Routes>,
    /// Some primary is connected.
    up: watched::Sender<bool>,
    /// Grows each time the routes are replaced.
    turns: watched::Sender<u64>,
    /// A call saw something fail: look now, not at the next probe.
    suspect: Notify,
    /// And not only whether the connections live, but whether they lead to the right servers.
    looked: AtomicBool,
    newsroom: Arc<Newsroom>,
    stop: CancellationToken,
    metrics: OnceLock<Arc<Metrics>>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the client: its address may hold a password.
        to.debug_struct("Store").field("up", &*self.up.borrow()).finish_non_exhaustive()
    }
}

impl Store {
    /// Starts connecting in the background and returns at once. `url` is as in `store.url`, without TLS.
    ///
    /// Needs a tokio runtime.
    ///
    /// # Errors
    /// [`StoreFault::Refused`] when the URL cannot be read.
    pub fn open(url: &str, clock: Clock, options: StoreOptions) -> Result<Self, StoreFault> {
        let unread = |sentence| StoreFault::Refused(RedisError::from((ErrorKind::InvalidClientConfig, "no store", sentence)));
        Self::open_site(&Site::parse(url).map_err(unread)?, clock, options)
    }

    /// The same, with users, passwords and TLS as the settings have them.
    ///
    /// # Errors
    /// [`StoreFault::Refused`] when TLS is not set up.
    pub fn open_site(site: &Site, clock: Clock, options: StoreOptions) -> Result<Self, StoreFault> {
        let surveyor = Surveyor::new(site, options).map_err(StoreFault::Refused)?;
        let inner = Arc::new(Inner {
            dialer: Dialer::servers(site, options).map_err(StoreFault::Refused)?,
            database: site.database,
            clock,
            options,
            routes: ArcSwap::default(),
            up: watched::Sender::new(false),
            turns: watched::Sender::new(0),
            suspect: Notify::new(),
            looked: AtomicBool::new(false),
            newsroom: Arc::default(),
            stop: CancellationToken::new(),
            metrics: OnceLock::new(),
        });
        news::follow(&inner);
        tokio::spawn(watch::watch_over(Arc::clone(&inner), surveyor));
        Ok(Self { inner })
    }

    /// Whether a primary of the store is connected. On a cluster others may be away: their rooms' calls fail.
    #[must_use]
    pub fn is_up(&self) -> bool {
        *self.inner.up.borrow()
    }

    /// [`Store::is_up`]; changes wake.
    #[must_use]
    pub fn ups(&self) -> watched::Receiver<bool> {
        self.inner.up.subscribe()
    }

    /// The room with this id.
    #[must_use]
    pub fn room(&self, id: &str) -> RoomStore {
        let keys = Arc::new(Keys::new(id, self.inner.database));
        RoomStore {
            store: self.clone(),
            slot: slot(keys.get(keys::Key::Room)),
            keys,
            id: id.into(),
            copies: Arc::default(),
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
        let nodes = self.inner.routes.load_full().nodes.clone();
        let mut found: Option<Policy> = None;
        for node in &nodes {
            let policy = self.policy_of(node).await?;
            // Of several the one that bites: any that evicts, any that forgets.
            let worse = |before: &Policy| {
                (policy.bites() && !before.bites()) || (policy.append_only == Some(false) && before.append_only != Some(false))
            };
            if found.as_ref().is_none_or(worse) {
                found = Some(policy);
            }
        }
        found.ok_or(StoreFault::Away)
    }

    async fn policy_of(&self, node: &Arc<Node>) -> Result<Policy, StoreFault> {
        let setting = async |name: &str| {
            let pair: Option<Vec<String>> = allowed(self.ask_node(node, redis::cmd("CONFIG").arg("GET").arg(name)).await)?;
            Ok::<_, StoreFault>(pair.and_then(|pair| pair.into_iter().nth(1)))
        };
        let maxmemory_policy = setting("maxmemory-policy").await?;
        let append_only = setting("appendonly").await?.map(|value| value == "yes");
        let info: Option<String> = allowed(self.ask_node(node, redis::cmd("INFO").arg("server")).await)?;
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
        self.inner.routes.store(Arc::default());
        self.inner.told();
    }

    /// Counts calls and their time in these metrics from now on.
    pub fn count_in(&self, metrics: Arc<Metrics>) {
        let _before = self.inner.metrics.set(metrics);
    }

    async fn ask_node<T: FromRedisValue>(&self, node: &Arc<Node>, command: &redis::Cmd) -> Result<T, StoreFault> {
        match Question::command(command).put(node, false).await {
            Ok(answer) => read("a plain command", answer),
            Err(error) => Err(self.inner.fault(error, node, &None)),
        }
    }

    /// One question about what is in `slot`, to whoever has it: to those it sends us to as well, and again where that is safe.
    async fn put<T: FromRedisValue>(&self, name: &'static str, slot: u16, question: &Question) -> Result<T, StoreFault> {
        let began = Clock::instant();
        let answer = self.put_to_all(slot, question).await;
        if let Some(metrics) = self.inner.metrics.get()
            && !matches!(answer, Err(StoreFault::Away))
        {
            metrics.store_called(name, began.elapsed());
        }
        read(name, answer?)
    }

    async fn put_to_all(&self, slot: u16, question: &Question) -> Result<Value, StoreFault> {
        let inner = &self.inner;
        let mut node = inner.routes.load().find(slot).cloned().ok_or(StoreFault::Away)?;
        let mut asking = false;
        // An earlier try may have done it: whatever the last one says, that is not certain any more.
        let mut doubt = None;
        for tries in 1.. {
            let error = match question.put(&node, asking).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let verdict = judge(&error, &node.host);
            if tries == TRIES || (doubt.is_some() && verdict == Verdict::Broken) {
                return Err(inner.fault(error, &node, &doubt));
            }
            let next = match &verdict {
                Verdict::Elsewhere { host, asking: ask } => {
                    inner.look();
                    asking = *ask;
                    inner.next(|routes| routes.node(host)).await
                }
                Verdict::Again => {
                    tokio::time::sleep(SHORTLY).await;
                    Some(Arc::clone(&node))
                }
                Verdict::Broken => {
                    inner.leave(&node);
                    asking = false;
                    let broken = Arc::clone(&node);
                    inner
                        .next(|routes| routes.find(slot).filter(|next| !Arc::ptr_eq(next, &broken)))
                        .await
                }
                _ => None,
            };
            let Some(next) = next else {
                return Err(inner.fault(error, &node, &doubt));
            };
            node = next;
            if verdict == Verdict::Broken {
                doubt = Some(error);
            }
        }
        Err(StoreFault::Away)
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

    /// One script, whose answer is words.
    async fn put_script<T: FromRedisValue>(&self, verb: &scripts::Verb, arguments: &[Vec<u8>]) -> Result<T, StoreFault> {
        let keys: Vec<&str> = verb.keys.iter().map(|key| self.keys.get(*key)).collect();
        let question = Question::script(verb.script(), verb.text, &keys, arguments);
        self.store.put(verb.name, self.slot, &question).await
    }

    /// One plain command about the room.
    async fn ask<T: FromRedisValue>(&self, command: &redis::Cmd) -> Result<T, StoreFault> {
        self.store.put("a plain command", self.slot, &Question::command(command)).await
    }

    /// What scripts get for their `now`.
    fn now(&self) -> u64 {
        self.store.inner.clock.store_now()
    }
}

impl Inner {
    /// Looks soon who the primaries are.
    fn look(&self) {
        self.looked.store(true, Ordering::Relaxed);
        self.suspect.notify_one();
    }

    /// Leaves this connection, and looks soon for another.
    fn leave(&self, node: &Arc<Node>) {
        self.turn(|routes| routes.without(node));
        self.suspect.notify_one();
    }

    /// Whom `find` finds, if it finds anybody soon.
    async fn next(&self, find: impl Fn(&Routes) -> Option<&Arc<Node>>) -> Option<Arc<Node>> {
        let mut turns = self.turns.subscribe();
        let next = async {
            loop {
                if let Some(node) = find(&self.routes.load()) {
                    return Some(Arc::clone(node));
                }
                turns.changed().await.ok()?;
            }
        };
        let wait = SECOND_TRY.min(self.options.call_timeout);
        tokio::time::timeout(wait, next).await.ok().flatten()
    }

    /// What is told of `error`, which `node` gave; and what it means for `node`. With a doubt nothing is certain.
    fn fault(&self, error: RedisError, node: &Arc<Node>, doubt: &Option<RedisError>) -> StoreFault {
        let verdict = judge(&error, &node.host);
        match verdict {
            Verdict::Deposed => {
                self.leave(node);
                self.look();
            }
            Verdict::Doubtful => self.look(),
            Verdict::Broken => self.leave(node),
            Verdict::Unknown => self.suspect.notify_one(),
            Verdict::Elsewhere { .. } | Verdict::Again | Verdict::Refused => {}
        }
        if doubt.is_some() || matches!(verdict, Verdict::Broken | Verdict::Unknown) {
            return StoreFault::Unknown(error);
        }
        StoreFault::Refused(error)
    }
}

/// An answer as what it should be.
fn read<T: FromRedisValue>(script: &'static str, answer: Value) -> Result<T, StoreFault> {
    redis::from_redis_value(answer).map_err(|error| StoreFault::Nonsense {
        script,
        answer: error.to_string().chars().take(200).collect(),
    })
}

/// A server that forbids a question has no answer to it; that is not a fault.
fn allowed<T>(answer: Result<T, StoreFault>) -> Result<Option<T>, StoreFault> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(StoreFault::Refused(_)) => Ok(None),
        Err(fault) => Err(fault),
    }
}
