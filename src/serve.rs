//! `waitgate serve`: puts everything together, and takes it apart again.
//!
//! Settings are checked by the time they come here. Ports are opened first, so that a taken one is said at once; requests are answered once the
//! store has been asked what its policy is.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use dashmap::DashMap;
use governor::{DefaultDirectRateLimiter, Quota};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;

use crate::admission;
use crate::clock::Clock;
use crate::config::{self, Config, OnStoreLoss};
use crate::fault::StoreFault;
use crate::gateway::Gateway;
use crate::limit::Limits;
use crate::ops::{Ops, OpsRoom};
use crate::queue::{Line, terms};
use crate::response::pages::{Pages, PagesError};
use crate::room::Room;
use crate::server::workers::{Port, Workers};
use crate::server::{self, ListenerSettings, Live, PortUse, Scheme};
use crate::stop::Stop;
use crate::store::embedded::{Embedded, EmbeddedFault};
use crate::store::{Store, StoreOptions};
use crate::telemetry::Metrics;
use crate::token::Tokens;
use crate::token::cookie::Names;
use crate::token::keys::KeyFault;
use crate::upstream::Upstreams;
use crate::visitor::login::Reader;
use crate::waiting::hall::{Hall, House};
use crate::waiting::live::Feed;

/// How long a store of yours is waited for at start before requests are answered without it.
const FIRST_ANSWER: Duration = Duration::from_secs(5);

/// How long operators' requests in flight are waited for when everything else has ended.
const LAST_ANSWER: Duration = Duration::from_secs(1);

/// Why a gateway does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartFault {
    /// A port cannot be had.
    #[error("{0} cannot be listened on: {1}")]
    Listen(SocketAddr, #[source] std::io::Error),
    /// The line's thread cannot be had.
    #[error("the thread of the line does not start: {0}")]
    Thread(#[source] std::io::Error),
    /// The private Redis does not start.
    #[error(transparent)]
    Embedded(#[from] EmbeddedFault),
    /// The store's address is not one.
    #[error("store.url cannot be used: {0}")]
    Url(#[source] StoreFault),
    /// The store would throw the line away.
    #[error("the store's maxmemory-policy is `{0}`: it must be `noeviction`, or the line is thrown away when memory is full")]
    Policy(String),
    /// The keys cannot be had.
    #[error(transparent)]
    Keys(#[from] KeyFault),
    /// The pages cannot be used.
    #[error("the pages cannot be used: {0}")]
    Pages(#[from] PagesError),
    /// The login's key is not one.
    #[error("the login key of room {0} cannot be used: {1}")]
    Login(String, #[source] jsonwebtoken::errors::Error),
}

/// Serves until `stop` begins, and returns when everything has ended.
///
/// # Errors
/// Why it does not start.
pub async fn run(config: Config, stop: Stop) -> Result<(), StartFault> {
    Serving::start(config, stop).await?.ended().await;
    Ok(())
}

/// A gateway that serves.
#[derive(Debug)]
pub struct Serving {
    /// Where visitors are served.
    pub public: SocketAddr,
    /// Where they are served by HTTPS, if they are.
    pub secure: Option<SocketAddr>,
    /// Where operators are.
    pub operators: SocketAddr,
    /// The process of the private Redis, if there is one.
    pub store_pid: Option<u32>,
    public_servers: Vec<JoinHandle<()>>,
    workers: Workers,
    operators_server: JoinHandle<()>,
    operators_stop: Stop,
    rounds: TaskTracker,
    store: Store,
    embedded: Option<Embedded>,
    own: OwnThread,
}

/// The line's own thread: the tick, the batches and the store's connections. Among the tasks of a crowd that has just arrived they would wait
/// for their turn for seconds, and whoever is due is not called meanwhile.
#[derive(Debug)]
struct OwnThread(Option<Runtime>);

impl OwnThread {
    fn start() -> Result<Self, StartFault> {
        let mut builder = Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).thread_name("waitgate-line").enable_all().build();
        runtime.map(|runtime| Self(Some(runtime))).map_err(StartFault::Thread)
    }

    /// Runs this here; what it spawns, it spawns there.
    fn run<T>(&self, start: impl FnOnce() -> T) -> T {
        let _there = self.0.as_ref().map(Runtime::enter);
        start()
    }
}

impl Drop for OwnThread {
    fn drop(&mut self) {
        // A runtime must not be waited for inside another.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl Serving {
    /// Opens the ports and the store, and begins to serve; ends by itself when `stop` begins.
    ///
    /// # Errors
    /// Why it does not start.
    pub async fn start(config: Config, stop: Stop) -> Result<Self, StartFault> {
        let clock = Clock::system();
        let workers = Workers::start(worker_count(&config)).map_err(StartFault::Thread)?;
        let open = |asked| Port::open(asked, workers.count()).map_err(|fault| StartFault::Listen(asked, fault));
        let public = open(config.server.listen)?;
        let secure = config.tls.as_ref().map(|tls| open(tls.listen)).transpose()?;
        let operators = listen(config.ops.listen)?;
        let address = |listener: &TcpListener, asked| listener.local_addr().map_err(|fault| StartFault::Listen(asked, fault));
        let (public_address, operators_address) = (public.address(), address(&operators, config.ops.listen)?);
        let secure_address = secure.as_ref().map(Port::address);
        if let Some(tls) = &config.tls {
            server::warn_of_dates(tls, clock.now_ms());
        }
        let house = Arc::new(house(&config, &clock, &stop)?);
        let (embedded, url) = open_embedded(&config.store).await?;
        let options = StoreOptions {
            call_timeout: config.store.call_timeout,
            connect_timeout: config.store.connect_timeout,
        };
        let own = OwnThread::start()?;
        let store = own.run(|| Store::open(&url, clock.clone(), options)).map_err(StartFault::Url)?;
        store.count_in(Arc::clone(&house.metrics));
        check_policy(&store, embedded.is_some()).await?;

        let rounds = TaskTracker::new();
        let halls = own.run(|| {
            let settings = config.rooms.iter();
            settings
                .map(|room| hall(room, &store, &house, &clock, &rounds))
                .collect::<Result<Vec<_>, _>>()
        })?;
        let ops_rooms = halls.iter().map(|hall| ops_room(hall)).collect();
        own.run(|| {
            for hall in &halls {
                let news = store.listen(&hall.room.id);
                rounds.spawn(admission::run(Arc::clone(hall), news, stop.draining.clone()));
            }
        });
        rounds.spawn(admission::tidy(Arc::clone(&house), clock, stop.draining.clone()));
        rounds.spawn(watch_store(store.clone(), Arc::clone(&house.metrics), stop.clone()));
        let metrics = Arc::clone(&house.metrics);
        let ops = Arc::new(Ops::new(&config.ops, store.clone(), metrics, stop.draining.clone(), ops_rooms));
        let gateway = Gateway::new(&config, house, halls, Upstreams::new(config.upstream, stop.clone()));

        let settings = ListenerSettings::public(&config, affordable(config.server.max_connections));
        let operators_live = Live::new(ListenerSettings::plain(settings.limits.clone()));
        let live = Live::new(settings);
        say_hello(&config, (public_address, secure_address, operators_address), embedded.is_some());
        // The operators' listener lives until the public one has drained: health and metrics are wanted most while a gateway stops.
        let operators_stop = Stop::new();
        let operators_server = server::serve(
            operators,
            Scheme::Http,
            operators_live,
            operators_stop.clone(),
            move |request, _| {
                let ops = Arc::clone(&ops);
                Box::pin(async move { ops.handle(request).await })
            },
        );
        let serve = |port, scheme| {
            workers.each(port, |listener| {
                let gateway = Arc::clone(&gateway);
                let handle = move |request, peer| gateway.handle(request, peer);
                server::serve(listener, scheme, Arc::clone(&live), stop.clone(), handle)
            })
        };
        let mut public_servers = serve(public, Scheme::Http);
        public_servers.extend(secure.into_iter().flat_map(|secure| serve(secure, Scheme::Https)));
        Ok(Self {
            public: public_address,
            secure: secure_address,
            operators: operators_address,
            store_pid: embedded.as_ref().and_then(Embedded::pid),
            public_servers,
            workers,
            operators_server: tokio::spawn(operators_server),
            operators_stop,
            rounds,
            store,
            embedded,
            own,
        })
    }

    /// Waits until everything has ended.
    pub async fn ended(self) {
        for server in self.public_servers {
            let _public = server.await;
        }
        self.operators_stop.draining.cancel();
        let mut operators = self.operators_server;
        if tokio::time::timeout(LAST_ANSWER, &mut operators).await.is_err() {
            self.operators_stop.cut.cancel();
            let _operators = operators.await;
        }
        self.rounds.close();
        self.rounds.wait().await;
        self.store.close();
        if let Some(embedded) = self.embedded {
            embedded.stop().await;
        }
        drop((self.own, self.workers));
        tracing::info!("stopped");
    }
}

fn house(config: &Config, clock: &Clock, stop: &Stop) -> Result<House, StartFault> {
    Ok(House {
        tokens: Tokens::new(&config.tokens, clock.now_ms())?,
        limits: Limits::new(&config.limits),
        cookies: config.cookies,
        pages: Pages::new(&config.pages, config.cookies)?,
        metrics: Arc::new(Metrics::new()),
        stop: stop.clone(),
        prefix: config.server.prefix.clone(),
    })
}

/// As many as are asked for, else one for each core that this process may use.
fn worker_count(config: &Config) -> usize {
    match config.server.workers {
        0 => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        workers => workers,
    }
}

fn listen(address: SocketAddr) -> Result<TcpListener, StartFault> {
    server::listen(address, PortUse::Alone).map_err(|fault| StartFault::Listen(address, fault))
}

async fn open_embedded(settings: &config::Store) -> Result<(Option<Embedded>, String), StartFault> {
    match &settings.url {
        Some(url) => Ok((None, url.reveal().to_owned())),
        None => {
            let embedded = Embedded::start(settings).await?;
            let url = embedded.url().to_owned();
            Ok((Some(embedded), url))
        }
    }
}

/// Refuses a store that would evict; warns about one that forgets at a restart, or cannot be asked.
async fn check_policy(store: &Store, private: bool) -> Result<(), StartFault> {
    let mut ups = store.ups();
    if tokio::time::timeout(FIRST_ANSWER, ups.wait_for(|up| *up)).await.is_err() {
        tracing::warn!("the store cannot be reached yet: visitors wait, and places are given when it answers");
        return Ok(());
    }
    let policy = match store.policy().await {
        Ok(policy) => policy,
        Err(fault) => {
            tracing::warn!(%fault, "the store's policy could not be read; it must be noeviction");
            return Ok(());
        }
    };
    match policy.maxmemory_policy.as_deref() {
        Some("noeviction") => {}
        Some(other) => return Err(StartFault::Policy(other.to_owned())),
        None => tracing::warn!("the store does not say its maxmemory-policy; it must be noeviction"),
    }
    if policy.append_only == Some(false) && !private {
        tracing::warn!(
            "the store keeps no append-only file: a restart of it loses the line (tickets bring it back) and the count of the stock"
        );
    }
    Ok(())
}

fn hall(settings: &config::Room, store: &Store, house: &House, clock: &Clock, rounds: &TaskTracker) -> Result<Arc<Hall>, StartFault> {
    let settings = Arc::new(settings.clone());
    let room = Arc::new(Room::new(Arc::clone(&settings), store.room(&settings.id), clock.clone()));
    let line = Line::start(Arc::clone(&room), Arc::clone(&house.metrics), house.stop.draining.clone(), rounds);
    let login = settings.login.as_ref().map(Reader::new).transpose();
    Ok(Arc::new(Hall {
        feed: Feed::new(Arc::clone(&room), Arc::clone(&line)),
        line,
        names: Names::new(house.cookies, &settings.id),
        metrics: house.metrics.room(&settings.id),
        login: login.map_err(|fault| StartFault::Login(settings.id.clone(), fault))?,
        routes: format!("{}/{}", house.prefix, settings.id),
        first_pages: DashMap::new(),
        sold_out_pages: DashMap::new(),
        open_door: (settings.on_store_loss == OnStoreLoss::Open).then(|| open_door(&settings)),
        room,
        settings,
    }))
}

/// As many connections as the machine's limit on open files allows.
fn affordable(wanted: usize) -> usize {
    let files = server::files::raise_limit();
    let max_connections = server::files::connections(wanted, files);
    if max_connections < wanted {
        tracing::warn!(
            files,
            max_connections,
            wanted,
            "this machine lets a process open few files: server.max_connections is lowered"
        );
    }
    max_connections
}

/// The room's rate, for this process alone.
fn open_door(settings: &config::Room) -> DefaultDirectRateLimiter {
    let milli = settings.rate.milli().max(1);
    let period = Duration::from_nanos(1_000_000_000_000 / milli).max(Duration::from_nanos(1));
    let quota = Quota::with_period(period).unwrap_or(Quota::per_second(NonZeroU32::MIN));
    let burst = u32::try_from(milli / 1000)
        .ok()
        .and_then(NonZeroU32::new)
        .unwrap_or(NonZeroU32::MIN);
    DefaultDirectRateLimiter::direct(quota.allow_burst(burst))
}

fn ops_room(hall: &Hall) -> OpsRoom {
    OpsRoom {
        id: hall.room.id.clone(),
        store: hall.room.store.clone(),
        terms: terms(&hall.room),
    }
}

async fn watch_store(store: Store, metrics: Arc<Metrics>, stop: Stop) {
    let mut ups = store.ups();
    let mut was_up = None;
    loop {
        let up = *ups.borrow_and_update();
        metrics.store_is_up(up);
        if was_up != Some(up) {
            match (was_up, up) {
                (Some(true), false) => tracing::error!("the store is lost: nobody is called, places are kept, admitted visitors go on"),
                (Some(false), true) => tracing::info!("the store is back"),
                _ => {}
            }
            was_up = Some(up);
        }
        tokio::select! {
            () = stop.draining.cancelled() => return,
            changed = ups.changed() => if changed.is_err() { return },
        }
    }
}

fn say_hello(config: &Config, (public, secure, operators): (SocketAddr, Option<SocketAddr>, SocketAddr), private: bool) {
    let store = if private {
        format!("a private Redis in {}", config.store.data_dir.display())
    } else {
        "your Redis".to_owned()
    };
    let rooms = config.rooms.iter().map(|room| room.id.as_str()).collect::<Vec<_>>().join(", ");
    let secure = secure.map(tracing::field::display);
    tracing::info!(%public, secure, %operators, rooms, store, "waitgate serves");
}
