//! `waitgate serve`: puts everything together, and takes it apart again.
//!
//! Settings are checked by the time they come here. Ports are opened first, so that a taken one is said at once; requests are answered once the
//! store has been asked what its policy is.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;

use crate::access::AccessLog;
use crate::admission;
use crate::clock::Clock;
use crate::config::{self, Config, Site};
use crate::fault::StoreFault;
use crate::gateway::Gateway;
use crate::limit::Limits;
use crate::ops::{ConfigNow, Ops};
use crate::peers::Me;
use crate::response::pages::{Pages, PagesError};
use crate::server::{self, ListenerSettings, Live};
use crate::stop::Stop;
use crate::store::embedded::{Embedded, EmbeddedFault};
use crate::store::{Store, StoreOptions};
use crate::telemetry::Metrics;
use crate::token::Tokens;
use crate::token::keys::KeyFault;
use crate::upstream::Upstreams;
use crate::waiting::hall::House;

mod ports;
mod reload;
mod rooms;

use ports::{Addresses, Ports, Public, serve_operators};
pub use reload::Outside;
use reload::Reloader;
use rooms::Keeper;

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
    /// Nor is that of the private one.
    #[error("store.data_dir cannot be used: {0}")]
    Private(String),
    /// The store would throw the line away.
    #[error("the store's maxmemory-policy is `{0}`: it must be `noeviction`, or the line is thrown away when memory is full")]
    Policy(String),
    /// The keys cannot be had.
    #[error(transparent)]
    Keys(#[from] KeyFault),
    /// The access log cannot be opened.
    #[error("the access log cannot be opened: {0}")]
    Access(#[source] std::io::Error),
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
pub async fn run(config: Config, stop: Stop, outside: Outside) -> Result<(), StartFault> {
    Serving::start_in(config, stop, outside).await?.ended().await;
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
    served: Public,
    operators_server: JoinHandle<()>,
    operators_stop: Stop,
    rounds: TaskTracker,
    live: Arc<ArcSwap<Gateway>>,
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

    fn handle(&self) -> Handle {
        self.0.as_ref().map_or_else(Handle::current, |runtime| runtime.handle().clone())
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
        Self::start_in(config, stop, Outside::default()).await
    }

    /// The same, with what reaches it from the process around it.
    ///
    /// # Errors
    /// Why it does not start.
    pub async fn start_in(config: Config, stop: Stop, outside: Outside) -> Result<Self, StartFault> {
        let clock = Clock::system();
        let ports = Ports::open(&config)?;
        let addresses = ports.addresses;
        server::warn_of_dates(&config, clock.now_ms());
        let house = Arc::new(house(&config, &clock, &stop)?);
        let own = OwnThread::start()?;
        let (store, embedded) = open_store(&config.store, &clock, &house, &own).await?;

        let mut keeper = Keeper::new(
            store.clone(),
            clock.clone(),
            stop.clone(),
            own.handle(),
            Me::new(addresses.operators, Arc::clone(&house.tokens)),
        );
        let rounds = keeper.rounds.clone();
        let plan = keeper.plan(&config, &house)?;
        keeper.take_over(&plan);
        rounds.spawn(watch_store(store.clone(), Arc::clone(&house.metrics), stop.clone()));
        let upstreams = Arc::new(Upstreams::new(config.upstream.clone(), stop.clone()));
        let gateway = Gateway::new(&config, Arc::clone(&house), plan.halls(), Arc::clone(&upstreams), Vec::new());
        let live = Arc::new(ArcSwap::new(gateway));
        rounds.spawn(admission::tidy(Arc::clone(&live), clock.clone(), stop.draining.clone()));
        let (asks, asked) = mpsc::channel(reload::MAX_WAITING);
        let metrics = Arc::clone(&house.metrics);
        let ops = Ops::new(&config.ops, store.clone(), metrics, stop.draining.clone(), plan.ops_rooms());
        let ops = Arc::new(ops.reloaded_by(asks).showing((*upstreams).clone()));
        let loaded_at_ms = clock.now_ms();
        let mark = config::mark(&config);
        house.metrics.config_loaded(&mark, loaded_at_ms);
        ops.take_over(plan.ops_rooms(), ConfigNow { mark, loaded_at_ms });

        let settings = ListenerSettings::public(&config, affordable(config.server.max_connections));
        let operators_live = Live::new(ListenerSettings::plain(settings.limits.clone()));
        let listener = Live::new(settings);
        say_hello(&config, addresses, embedded.is_some());
        let (public, operators) = ports.serve(&live, &listener, &stop);
        // The operators' listener lives until the public one has drained: health and metrics are wanted most while a gateway stops.
        let operators_stop = Stop::new();
        let operators_server = serve_operators(operators, operators_live, operators_stop.clone(), Arc::clone(&ops));
        let reloader = Reloader {
            config,
            keeper,
            live: Arc::clone(&live),
            listener,
            ops,
            upstreams,
            outside,
        };
        rounds.spawn(reloader.run(asked, stop.draining.clone()));
        Ok(Self {
            public: addresses.public,
            secure: addresses.secure,
            operators: addresses.operators,
            store_pid: embedded.as_ref().and_then(Embedded::pid),
            served: public,
            operators_server,
            operators_stop,
            rounds,
            live,
            store,
            embedded,
            own,
        })
    }

    /// Waits until everything has ended.
    pub async fn ended(self) {
        self.served.ended().await;
        self.operators_stop.draining.cancel();
        let mut operators = self.operators_server;
        if tokio::time::timeout(LAST_ANSWER, &mut operators).await.is_err() {
            self.operators_stop.cut.cancel();
            let _operators = operators.await;
        }
        self.rounds.close();
        self.rounds.wait().await;
        if let Some(access) = self.live.load().house.access.clone() {
            let _written = tokio::task::spawn_blocking(move || access.finish()).await;
        }
        self.store.close();
        if let Some(embedded) = self.embedded {
            embedded.stop().await;
        }
        drop(self.own);
        tracing::info!("stopped");
    }
}

fn house(config: &Config, clock: &Clock, stop: &Stop) -> Result<House, StartFault> {
    let metrics = Arc::new(Metrics::new());
    Ok(House {
        tokens: Arc::new(Tokens::new(&config.tokens, clock.now_ms())?),
        limits: Arc::new(Limits::new(&config.limits)),
        access: AccessLog::open(&config.log, Arc::clone(&metrics)).map_err(StartFault::Access)?,
        cookies: config.cookies,
        pages: Pages::new(&config.pages, config.cookies)?,
        metrics,
        stop: stop.clone(),
        prefix: config.server.prefix.clone(),
    })
}

async fn open_store(
    settings: &config::Store,
    clock: &Clock,
    house: &House,
    own: &OwnThread,
) -> Result<(Store, Option<Embedded>), StartFault> {
    let (embedded, site) = open_embedded(settings).await?;
    let options = StoreOptions {
        call_timeout: settings.call_timeout,
        connect_timeout: settings.connect_timeout,
    };
    let store = own
        .run(|| Store::open_site(&site, clock.clone(), options))
        .map_err(StartFault::Url)?;
    store.count_in(Arc::clone(&house.metrics));
    check_policy(&store, embedded.is_some()).await?;
    Ok((store, embedded))
}

async fn open_embedded(settings: &config::Store) -> Result<(Option<Embedded>, Site), StartFault> {
    match &settings.site {
        Some(site) => Ok((None, site.clone())),
        None => {
            let embedded = Embedded::start(settings).await?;
            let site = Site::parse(embedded.url()).map_err(StartFault::Private)?;
            Ok((Some(embedded), site))
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

fn say_hello(config: &Config, addresses: Addresses, private: bool) {
    let store = if private {
        format!("a private Redis in {}", config.store.data_dir.display())
    } else {
        "your Redis".to_owned()
    };
    let rooms = config.rooms.iter().map(|room| room.id.as_str()).collect::<Vec<_>>().join(", ");
    let Addresses { public, secure, operators } = addresses;
    let secure = secure.map(tracing::field::display);
    tracing::info!(%public, secure, %operators, rooms, store, "waitgate serves");
}
