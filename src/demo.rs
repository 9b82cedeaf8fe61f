//! `waitgate demo`: a whole sale on one machine, over real HTTP. A sample shop, the gateway with its private store, and a crowd, in processes of
//! their own; a live line while it runs, and then the score, which says what was promised and what came of it.
//!
//! The demo knows the gateway only as everybody else does: by its public port, its operators' API, and its exit code.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use http::{Method, StatusCode};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{interval, sleep};

use crate::config::Rate;
use crate::crowd::audience::Audience;
use crate::crowd::children::{Part, PartFault};
use crate::crowd::progress::Progress;
use crate::crowd::score::{Score, grouped};
use crate::crowd::watch::Watch;
use crate::shop::{ROOM, ShopCounts};

mod afterwards;
mod plan;
mod stage;

use plan::Plan;
use stage::Stage;

/// What can be asked of the demo.
#[derive(Clone, Debug, clap::Args)]
pub struct DemoOptions {
    /// How many visitors come.
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub visitors: u64,
    /// How many phones there are.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub stock: u64,
    /// How many visitors are let in: 200/s, 100/min.
    #[arg(long, value_name = "RATE", default_value = "200/s")]
    pub admit: Rate,
    /// Over how long they come: 5s, 500ms, 2min.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration)]
    pub arrive: Duration,
    /// End with the score, and with exit code 1 if a promise was broken.
    #[arg(long)]
    pub once: bool,
    /// The port of the sale; 8042 or any free one if not given.
    #[arg(long, value_name = "PORT")]
    pub port: Option<u16>,
    /// Another seed brings other people.
    #[arg(long, value_name = "N", default_value_t = 42)]
    pub seed: u64,
}

impl Default for DemoOptions {
    fn default() -> Self {
        Self {
            visitors: 20_000,
            stock: 100,
            admit: Rate::from_milli(200_000),
            arrive: Duration::from_secs(5),
            once: false,
            port: None,
            seed: 42,
        }
    }
}

/// Why there is no score.
#[derive(Debug, thiserror::Error)]
enum DemoFault {
    #[error(transparent)]
    Part(#[from] PartFault),
    #[error("the gateway was not ready in {} s", .0.as_secs())]
    NotReady(Duration),
    #[error("the folder {} cannot be used: {cause}", path.display())]
    Folder {
        path: PathBuf,
        #[source]
        cause: std::io::Error,
    },
    #[error("port {port} cannot be used: {cause}")]
    Port {
        port: u16,
        #[source]
        cause: std::io::Error,
    },
    #[error("{0}")]
    Ops(String),
    #[error("the signals of this process cannot be waited for: {0}")]
    Signals(#[source] std::io::Error),
}

/// Says something on standard output. The reader may be gone; the show goes on.
fn tell(words: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{words}");
    let _ = out.flush();
}

/// Runs the demo to its end: exit code 0, 1 if `--once` found a broken promise, 2 if there was no show, 130 if it was stopped during it.
pub async fn run(options: DemoOptions) -> ExitCode {
    match play(&options).await {
        Ok(code) => code,
        Err(fault) => {
            let _ = writeln!(std::io::stderr(), "\nwaitgate demo: {fault}");
            ExitCode::from(2)
        }
    }
}

async fn play(options: &DemoOptions) -> Result<ExitCode, DemoFault> {
    let mut interrupts = signal(SignalKind::interrupt()).map_err(DemoFault::Signals)?;
    let mut terms = signal(SignalKind::terminate()).map_err(DemoFault::Signals)?;
    let plan = Plan::new(options.visitors, crate::server::files::raise_limit());
    tell(&format!(
        "waitgate demo: {} visitors want {} phones; they come within {:.1} s, and {} are let in.",
        grouped(plan.visitors),
        grouped(options.stock),
        options.arrive.as_secs_f64(),
        options.admit
    ));
    plan.shrunk.iter().for_each(|sentence| tell(sentence));
    let mut stage = tokio::select! {
        stage = Stage::set_up(options, &plan) => stage?,
        _ = interrupts.recv() => return Ok(ExitCode::from(130)),
        _ = terms.recv() => return Ok(ExitCode::from(130)),
    };
    let public = stage.places.public;
    tell(&format!(
        "The sale is at http://{public}/sale (gateway, private store, shop and crowd are processes of their own).\n"
    ));
    let code = tokio::select! {
        outcome = perform(options, &plan, &mut stage) => outcome,
        _ = interrupts.recv() => Ok(stopped()),
        _ = terms.recv() => Ok(stopped()),
    };
    let code = match code {
        Ok(code) if !options.once && code != ExitCode::from(130) => tokio::select! {
            fault = afterwards::stay_open(&mut stage) => Err(fault),
            _ = interrupts.recv() => Ok(ExitCode::SUCCESS),
            _ = terms.recv() => Ok(ExitCode::SUCCESS),
        },
        other => other,
    };
    let _ = writeln!(std::io::stderr(), "Stopping.");
    stage.strike().await;
    code
}

fn stopped() -> ExitCode {
    let _ = writeln!(std::io::stderr(), "\nStopped before the score.");
    ExitCode::from(130)
}

/// From the first visitor to the score.
async fn perform(options: &DemoOptions, plan: &Plan, stage: &mut Stage) -> Result<ExitCode, DemoFault> {
    let watch = Watch::begin(stage.ops.clone(), ROOM);
    let mut progress = Progress::begin();
    stage.start_crowd(options, plan)?;
    let mut audience = Audience::listen(&mut stage.parts);
    let limit = sleep(plan::time_limit(plan.visitors, options.arrive, options.admit));
    tokio::pin!(limit);
    let mut ticks = interval(progress.pace());
    let mut cut_short = false;
    while !audience.is_done() {
        tokio::select! {
            heard = audience.reports.recv() => audience.take(heard, &mut stage.parts).await?,
            _ = ticks.tick() => progress.show(&audience.counts(), &watch.last().0),
            () = &mut limit, if !cut_short => {
                cut_short = true;
                stage.parts.iter_mut().for_each(Part::dismiss);
            }
            fault = stage.gateway.ended() => return Err(fault.into()),
            fault = stage.shop.ended() => return Err(fault.into()),
        }
    }
    progress.show(&audience.counts(), &watch.last().0);
    progress.end();
    let score = Score {
        visitors: plan.visitors,
        stock: Some(options.stock),
        rate: Some(options.admit),
        all_sold: true,
        paid: true,
        watched: true,
        took: progress.elapsed(),
        usage: stage.gateway.usage(),
        store_usage: stage.gateway.usage_of_its_own(),
        looks: watch.end().await,
        shop: Some(shop_counts(stage).await?),
        counts: audience.counts(),
        samples: std::mem::take(&mut audience.samples),
        cut_short,
    };
    tell(&score.to_string());
    Ok(if score.verdict().is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

async fn shop_counts(stage: &Stage) -> Result<ShopCounts, DemoFault> {
    let (status, body) = stage.shop_counts.ask(Method::GET, "/stats", "").await.map_err(DemoFault::Ops)?;
    if status != StatusCode::OK {
        return Err(DemoFault::Ops(format!("the shop's counts were answered {status}")));
    }
    serde_json::from_slice(&body).map_err(|unreadable| DemoFault::Ops(format!("the shop's counts cannot be read: {unreadable}")))
}

/// A time on the command line.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is not a time: write 5s, 500ms or 2min");
    let digits = text
        .find(|letter: char| !letter.is_ascii_digit() && letter != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let unit_s = match unit.trim() {
        "ms" => 0.001,
        "s" | "" => 1.0,
        "min" | "m" => 60.0,
        _ => return Err(wrong()),
    };
    let seconds = number * unit_s;
    if !(0.0..=3_600.0).contains(&seconds) {
        return Err(format!("`{text}` is out of range: from nothing to an hour"));
    }
    Ok(Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_on_the_command_line() {
        assert_eq!(duration("5s"), Ok(Duration::from_secs(5)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("1.5min"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("3"), Ok(Duration::from_secs(3)));
        for wrong in ["", "s", "5h", "-1s", "1..2s", "2h", "90min"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_defaults_are_those_of_the_command_line() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            options: DemoOptions,
        }
        let read = <Line as clap::Parser>::parse_from(["demo"]).options;
        assert_eq!(format!("{read:?}"), format!("{:?}", DemoOptions::default()));
    }
}
