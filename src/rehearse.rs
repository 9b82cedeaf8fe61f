//! `waitgate rehearse`: the demo's crowd, sent to any gateway on this machine or of one's own, before the real crowd comes.
//!
//! It knows the gateway as visitors do, and over the operators' API if it may look. What it saw is printed as the demo's score, and written to a
//! file as numbers. It ends when everybody has an answer, at the time limit, or when it is interrupted; score and file come in any case.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use http::Uri;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{interval, sleep};

use crate::clock::millis;
use crate::crowd::audience::Audience;
use crate::crowd::children::{Part, PartFault};
use crate::crowd::progress::Progress;
use crate::crowd::score::{Score, grouped};
use crate::crowd::watch::{Watch, first_look};
use crate::crowd::{Means, Sale, Ways};
use crate::demo::duration;
use crate::ops::client::token;
use crate::server::files;
use crate::shop::ask::Asker;

mod plan;
mod report;

use plan::{Plan, Target};

/// How long processes have to say their last word after the end of the time.
const LAST_WORDS: Duration = Duration::from_secs(20);
/// Nothing could be rehearsed.
const NOT_BEGUN: u8 = 2;

/// What can be asked of a rehearsal.
#[derive(Clone, Debug, clap::Args)]
pub struct RehearseOptions {
    /// The gateway's public address
    #[arg(long, value_name = "URL")]
    pub target: Uri,
    /// Where the room, its page and its claim are
    #[command(flatten)]
    pub sale: Sale,
    /// How many visitors come
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub visitors: u64,
    /// Over how long they come: 5s, 500ms, 2min
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration)]
    pub arrive: Duration,
    /// It is over after this long, wherever everybody is
    #[arg(long = "for", value_name = "TIME", default_value = "1min", value_parser = duration)]
    pub lasts: Duration,
    /// How everybody waits
    #[command(flatten)]
    pub ways: Ways,
    /// Processes the crowd is spread over [default: as many as it needs]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=256))]
    pub processes: Option<u64>,
    /// Connections that each of them has open at once at most [default: what the machine allows]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub connections: Option<u64>,
    /// The operators' listener, to see whether stock and rate are kept
    #[arg(long, value_name = "URL")]
    pub ops: Option<Uri>,
    /// File that holds its token
    #[arg(long, env = "WAITGATE_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Writes what was seen to this file, as JSON
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// The target is another machine, and it is yours: a crowd that nobody expects is an attack
    #[arg(long)]
    pub it_is_mine: bool,
    /// Another seed brings other people
    #[arg(long, value_name = "N", default_value_t = 42)]
    pub seed: u64,
}

/// Why nothing was rehearsed, or nothing can be said of it.
#[derive(Debug, thiserror::Error)]
enum RehearseFault {
    #[error("{0}")]
    Asked(String),
    #[error(transparent)]
    Part(#[from] PartFault),
    #[error("the operators' listener: {0}")]
    Ops(String),
    #[error("{}: {cause}", path.display())]
    File {
        path: PathBuf,
        #[source]
        cause: std::io::Error,
    },
    #[error("the signals of this process cannot be waited for: {0}")]
    Signals(#[source] std::io::Error),
}

/// Runs it: exit code 0 when every promise was kept, 1 when one was broken, 2 when nothing could be rehearsed.
pub async fn run(options: RehearseOptions) -> ExitCode {
    match rehearse(&options).await {
        Ok(score) => {
            // The reader may be gone; the exit code still says how it went.
            let _ = writeln!(std::io::stdout(), "{score}");
            if score.verdict().is_empty() {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            }
        }
        Err(fault) => {
            let _ = writeln!(std::io::stderr(), "waitgate rehearse: {fault}");
            ExitCode::from(NOT_BEGUN)
        }
    }
}

async fn rehearse(options: &RehearseOptions) -> Result<Score, RehearseFault> {
    let mut signals = Signals::listen().map_err(RehearseFault::Signals)?;
    let target = Target::find(&options.target, options.it_is_mine)
        .await
        .map_err(RehearseFault::Asked)?;
    let plan = Plan::new(options, files::raise_limit()).map_err(RehearseFault::Asked)?;
    report::can_be_written(options)?;
    let ops = operators(options).await?;
    tell(&format!(
        "waitgate rehearse: {} visitors come to room {} at {} within {:.1} s, in {} processes; it is over after {} s at the latest.",
        grouped(options.visitors),
        options.sale.room,
        options.target,
        options.arrive.as_secs_f64(),
        plan.processes,
        options.lasts.as_secs()
    ));
    plan.warning.iter().for_each(|sentence| tell(sentence));
    let log = tempfile_for_words();
    let mut parts = start(options, &target, &plan, &log)?;
    let score = perform(options, ops, &mut parts, &mut signals).await;
    for part in &mut parts {
        part.stop().await;
    }
    let _ = std::fs::remove_file(&log);
    let score = score?;
    report::write(options, &plan, &score)?;
    Ok(score)
}

/// Says something on standard error: standard output is for the score.
fn tell(words: &str) {
    let _ = writeln!(std::io::stderr(), "{words}");
}

fn tempfile_for_words() -> PathBuf {
    let name = format!("waitgate-rehearse-{}-{:04x}.log", std::process::id(), fastrand::u16(..));
    std::env::temp_dir().join(name)
}

/// The way to the operators' listener, once it has shown that it knows the room.
async fn operators(options: &RehearseOptions) -> Result<Option<Asker>, RehearseFault> {
    let Some(uri) = &options.ops else { return Ok(None) };
    let token = token(options.token_file.as_deref()).map_err(RehearseFault::Ops)?;
    let asker = Asker::new(uri).with_token(token);
    first_look(&asker, &options.sale.room).await.map_err(RehearseFault::Ops)?;
    Ok(Some(asker))
}

/// Starts the processes of the crowd.
fn start(options: &RehearseOptions, target: &Target, plan: &Plan, log: &std::path::Path) -> Result<Vec<Part>, RehearseFault> {
    let mut parts = Vec::new();
    for (first, visitors) in plan.shares() {
        let arguments = arguments(options, target, plan, first, visitors);
        parts.push(Part::start("the crowd", log.to_owned(), arguments)?);
    }
    Ok(parts)
}

fn arguments(options: &RehearseOptions, target: &Target, plan: &Plan, first: u64, visitors: u64) -> Vec<String> {
    let (sale, ways) = (&options.sale, options.ways);
    let transport = match ways.transport {
        Means::Mix => "mix",
        Means::Sse => "sse",
        Means::Ws => "ws",
        Means::Poll => "poll",
        Means::Page => "page",
    };
    let mut arguments = vec![
        "crowd".to_owned(),
        "--plain".to_owned(),
        format!("--target={}", target.address),
        format!("--host={}", target.host),
        format!("--visitors={visitors}"),
        format!("--first={first}"),
        format!("--arrive-ms={}", millis(options.arrive)),
        format!("--for-ms={}", millis(options.lasts)),
        format!("--connections={}", plan.connections),
        format!("--seed={}", options.seed),
        format!("--room={}", sale.room),
        format!("--prefix={}", sale.prefix),
        format!("--page={}", sale.page),
        format!("--transport={transport}"),
    ];
    let paths = [("claim", &sale.claim), ("pay", &sale.pay), ("cancel", &sale.cancel)];
    arguments.extend(
        paths
            .iter()
            .filter_map(|(name, path)| path.as_ref().map(|path| format!("--{name}={path}"))),
    );
    if ways.stay {
        arguments.push("--stay".to_owned());
    }
    arguments
}

/// From the first visitor to the last word of the last process.
async fn perform(options: &RehearseOptions, ops: Option<Asker>, parts: &mut [Part], signals: &mut Signals) -> Result<Score, RehearseFault> {
    let watch = ops.map(|ops| Watch::begin(ops, &options.sale.room));
    let mut progress = Progress::begin();
    let mut audience = Audience::listen(parts);
    let mut ticks = interval(progress.pace());
    let limit = sleep(options.lasts + LAST_WORDS);
    tokio::pin!(limit);
    while !audience.is_done() {
        tokio::select! {
            heard = audience.reports.recv() => audience.take(heard, parts).await?,
            _ = ticks.tick() => {
                let room = watch.as_ref().map(|watch| watch.last().0).unwrap_or_default();
                progress.show(&audience.counts(), &room);
            }
            () = signals.next() => parts.iter_mut().for_each(Part::dismiss),
            () = &mut limit => return Err(PartFault::Silent.into()),
        }
    }
    let took = progress.elapsed();
    let watched = watch.is_some();
    let looks = match watch {
        Some(watch) => watch.end().await,
        None => Default::default(),
    };
    progress.show(&audience.counts(), &looks.last);
    progress.end();
    let counts = audience.counts();
    Ok(Score {
        visitors: options.visitors,
        stock: looks.last.stock.map(|stock| stock.stock),
        rate: looks.rate,
        all_sold: false,
        paid: options.sale.pay.is_some(),
        watched,
        took,
        counts,
        samples: std::mem::take(&mut audience.samples),
        looks,
        shop: None,
        usage: None,
        store_usage: None,
        cut_short: false,
    })
}

/// What ends it early.
struct Signals {
    interrupts: Signal,
    terms: Signal,
}

impl Signals {
    fn listen() -> std::io::Result<Self> {
        Ok(Self {
            interrupts: signal(SignalKind::interrupt())?,
            terms: signal(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupts.recv() => {}
            _ = self.terms.recv() => {}
        }
    }
}
