//! The simulated crowd: thousands of visitors in a process of their own, each with its own ways, over real HTTP and real sockets.
//!
//! It knows no more than a visitor may know: what the pages, events and answers say. What it saw goes to standard output, one JSON value a
//! line ([`report::Report`]). It ends when everybody has a phone or a "no", or when its standard input is closed.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::clock::Clock;
use crate::shop::{ROOM, stop_with_input};

mod address;
pub(crate) mod audience;
mod browser;
mod buying;
mod character;
pub(crate) mod children;
mod jar;
mod landing;
pub(crate) mod progress;
pub mod report;
pub(crate) mod score;
mod seen;
mod visit;
mod waiting;
pub(crate) mod watch;
mod wire;

use browser::Browser;
use character::{Character, Purse, between};
use report::{Counts, Report, Samples};
use visit::{End, Visit};
use wire::Road;

/// What a crowd process is told.
#[derive(Clone, Debug, clap::Args)]
pub struct CrowdOptions {
    /// The gateway's public address.
    #[arg(long)]
    pub target: SocketAddr,
    /// The host that is asked for there; the address if not given.
    #[arg(long)]
    pub host: Option<String>,
    /// How many visitors come.
    #[arg(long)]
    pub visitors: u64,
    /// The number of the first; several processes share one crowd.
    #[arg(long, default_value_t = 0)]
    pub first: u64,
    /// Over how many milliseconds they come.
    #[arg(long, default_value_t = 5_000)]
    pub arrive_ms: u64,
    /// How long the shop holds a phone, in milliseconds; some pay later than that.
    #[arg(long, default_value_t = 20_000)]
    pub hold_ms: u64,
    /// Connections open at once at most.
    #[arg(long, default_value_t = 15_000)]
    pub connections: usize,
    /// Robots that ask too often.
    #[arg(long, default_value_t = 0)]
    pub robots: u64,
    /// Instead of a crowd, keep so many in line who only look around, for as long as it runs.
    #[arg(long, default_value_t = 0)]
    pub company: u64,
    /// The same seed brings the same people.
    #[arg(long, default_value_t = 42)]
    pub seed: u64,
    /// Ends after so many milliseconds, wherever everybody is; 0 for never.
    #[arg(long, default_value_t = 0)]
    pub for_ms: u64,
    /// Nobody says where it comes from, nobody sits in an office, and whoever buys pays.
    #[arg(long)]
    pub plain: bool,
    /// Where everything is.
    #[command(flatten)]
    pub sale: Sale,
    /// How everybody waits.
    #[command(flatten)]
    pub ways: Ways,
}

/// Where everything is.
#[derive(Clone, Debug, clap::Args)]
pub struct Sale {
    /// The room.
    #[arg(long, value_name = "ID", default_value = ROOM)]
    pub room: String,
    /// What the gateway's own routes begin with.
    #[arg(long, value_name = "PATH", default_value = "/.waitgate", value_parser = path)]
    pub prefix: String,
    /// The page everybody comes for.
    #[arg(long, value_name = "PATH", default_value = "/sale?ref=launch", value_parser = path)]
    pub page: String,
    /// Where a unit is asked for, with a POST; without it, visitors look around.
    #[arg(long, value_name = "PATH", value_parser = path)]
    pub claim: Option<String>,
    /// Where it is paid for, with the reservation from the claim's answer; without it, an answered claim is the end.
    #[arg(long, value_name = "PATH", value_parser = path)]
    pub pay: Option<String>,
    /// Where it is given back.
    #[arg(long, value_name = "PATH", value_parser = path)]
    pub cancel: Option<String>,
}

/// How everybody waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::Args)]
pub struct Ways {
    /// How the waiting are told.
    #[arg(long, value_name = "WAY", value_enum, default_value_t = Means::Mix)]
    pub transport: Means,
    /// Everybody waits on, also when it is called: nobody enters or leaves.
    #[arg(long)]
    pub stay: bool,
}

/// How the waiting are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Means {
    /// As people are: most by an event stream, some by a WebSocket, by polling or by the page that reloads itself.
    Mix,
    /// By an event stream.
    Sse,
    /// By a WebSocket.
    Ws,
    /// By polling.
    Poll,
    /// By the page that reloads itself.
    Page,
}

/// A path, as the line before a request's headers carries it.
fn path(text: &str) -> Result<String, String> {
    let good = text.starts_with('/') && !text.starts_with("//") && text.parse::<http::uri::PathAndQuery>().is_ok();
    good.then(|| text.to_owned())
        .ok_or_else(|| format!("`{text}` is not a path: it begins with one `/` and has no blanks"))
}

/// What all visitors of a process share.
struct World {
    road: Road,
    authority: String,
    origin: String,
    hold: Duration,
    sale: Sale,
    ways: Ways,
    plain: bool,
    clock: Clock,
    counts: Mutex<Counts>,
    samples: Mutex<Samples>,
    /// Somebody was told that everything is sold, or everybody else is done: time for the latecomers.
    over: CancellationToken,
    stop: CancellationToken,
}

impl World {
    fn new(options: &CrowdOptions) -> Arc<Self> {
        let authority = options.host.clone().unwrap_or_else(|| options.target.to_string());
        Arc::new(Self {
            road: Road {
                target: options.target,
                permits: Arc::new(Semaphore::new(options.connections.max(1))),
            },
            origin: format!("http://{authority}"),
            authority,
            hold: Duration::from_millis(options.hold_ms),
            sale: options.sale.clone(),
            ways: options.ways,
            plain: options.plain,
            clock: Clock::system(),
            counts: Mutex::new(Counts::default()),
            samples: Mutex::new(Samples::default()),
            over: CancellationToken::new(),
            stop: CancellationToken::new(),
        })
    }

    /// One of the room's own routes.
    fn route(&self, name: &str) -> String {
        format!("{}/{}/{name}", self.sale.prefix, self.sale.room)
    }

    /// Where a visitor's connections come from; none: from wherever the machine likes.
    fn source(&self, index: u64) -> Option<Ipv4Addr> {
        address::connects_from(index).filter(|_| self.road.target.ip().is_loopback() && self.road.target.is_ipv4())
    }

    /// A visitor as this crowd has them.
    fn character(&self, seed: u64, index: u64) -> Character {
        let mut drawn = Character::draw(seed, index);
        if self.plain {
            drawn = drawn.plain(self.sale.cancel.is_some());
        }
        if self.sale.claim.is_none() {
            drawn.purse = Purse::Looks;
        }
        drawn.told_by(self.ways)
    }

    /// Changes a count.
    fn count(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut held(&self.counts));
    }

    /// Notes a measurement.
    fn measure(&self, change: impl FnOnce(&mut Samples)) {
        change(&mut held(&self.samples));
    }

    /// Counts how a visit ended, and lets the latecomers come when it was a "no".
    fn end(&self, end: End) {
        if matches!(end, End::NoAtArrival | End::NoWhileWaiting | End::NoAtClaim) {
            self.over.cancel();
        }
        self.count(|counts| end.count(counts));
    }
}

/// The value behind a lock. A count is whole after every change, so one left by a panic is as good as any.
fn held<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A duration in whole microseconds.
fn micros(duration: Duration) -> u32 {
    u32::try_from(duration.as_micros()).unwrap_or(u32::MAX)
}

/// Runs a crowd process to its end.
pub async fn run(options: CrowdOptions) -> ExitCode {
    let world = World::new(&options);
    stop_with_input(world.stop.clone());
    if options.for_ms > 0 {
        let (stop, after) = (world.stop.clone(), Duration::from_millis(options.for_ms));
        tokio::spawn(async move {
            sleep(after).await;
            stop.cancel();
        });
    }
    let reporter = tokio::spawn(report_regularly(Arc::clone(&world)));
    let people = TaskTracker::new();
    if options.company > 0 {
        invite_company(&world, &options, &people);
    } else {
        invite(&world, &options, &people).await;
    }
    people.close();
    people.wait().await;
    reporter.abort();
    let last = Report::Done {
        counts: held(&world.counts).clone(),
        samples: Box::new(std::mem::take(&mut *held(&world.samples))),
    };
    if say(&last).is_err() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

/// Brings everybody, the latecomers last, and returns when all but they have ended.
async fn invite(world: &Arc<World>, options: &CrowdOptions, people: &TaskTracker) {
    let start = Instant::now();
    let ordinary = TaskTracker::new();
    for index in options.first..options.first + options.visitors {
        let character = world.character(options.seed, index);
        let tracker = if character.latecomer { people } else { &ordinary };
        let after = Duration::from_millis(fastrand::u64(..=options.arrive_ms));
        let world = Arc::clone(world);
        tracker.spawn(async move {
            let coming = async {
                sleep_until(start + after).await;
                if character.latecomer {
                    world.over.cancelled().await;
                    sleep(between(2_000, 8_000)).await;
                }
            };
            tokio::select! {
                () = coming => {}
                () = world.stop.cancelled() => return,
            }
            let visit = Box::pin(Visit::new(&world, index, character).run());
            let end = tokio::select! {
                end = visit => end,
                () = world.stop.cancelled() => End::Unfinished,
            };
            world.end(end);
        });
    }
    for robot in 0..options.robots {
        let browser = Browser::new(Arc::clone(world), Some(address::ROBOTS), world.source(options.first + robot));
        let stop = world.stop.clone();
        let pause = Duration::from_millis(options.arrive_ms) + between(500, 1_500);
        ordinary.spawn(async move {
            sleep_until(start + pause).await;
            tokio::select! {
                _ = buying::hammer(browser, 10, 30) => {}
                () = stop.cancelled() => {}
            }
        });
    }
    ordinary.close();
    ordinary.wait().await;
    world.over.cancel();
}

/// Keeps a small line alive: whoever has looked around is followed by somebody new.
fn invite_company(world: &Arc<World>, options: &CrowdOptions, people: &TaskTracker) {
    for seat in 0..options.company {
        let world = Arc::clone(world);
        let (first, seats) = (options.first, options.company);
        people.spawn(async move {
            let visits = async {
                for round in 0.. {
                    let visit = Visit::new(&world, first + round * seats + seat, Character::company());
                    let end = Box::pin(visit.run()).await;
                    world.end(end);
                    sleep(between(500, 3_000)).await;
                }
            };
            tokio::select! {
                () = visits => {}
                () = world.stop.cancelled() => {}
            }
        });
    }
}

async fn report_regularly(world: Arc<World>) {
    loop {
        sleep(Duration::from_millis(400)).await;
        let counts = held(&world.counts).clone();
        if say(&Report::Now { counts }).is_err() {
            world.stop.cancel(); // nobody listens any more
        }
    }
}

/// Writes one line on standard output.
fn say(report: &Report) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, report)?;
    out.write_all(b"\n")?;
    out.flush()
}
