//! What was seen, as numbers in a file: docs/rehearse.md says what each is.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::plan::Plan;
use super::{RehearseFault, RehearseOptions};
use crate::clock::{Clock, UnixMs, millis};
use crate::crowd::report::Counts;
use crate::crowd::score::{Score, percentile};

/// The version of this shape: a greater one may lack fields or mean something else by them.
const SHAPE: u32 = 1;

#[derive(Serialize)]
struct Written<'a> {
    shape: u32,
    version: &'static str,
    ended_at_ms: UnixMs,
    took_ms: u64,
    target: String,
    room: &'a str,
    visitors: u64,
    processes: u64,
    seed: u64,
    counts: &'a Counts,
    /// Microseconds or milliseconds, as each name ends.
    times: BTreeMap<&'static str, Spread>,
    promises: Promises,
    room_seen: Option<RoomSeen>,
    oddities: &'a BTreeMap<String, u64>,
    broken: Vec<String>,
}

#[derive(Serialize)]
struct Spread {
    count: usize,
    p50: Option<u64>,
    p90: Option<u64>,
    p99: Option<u64>,
    max: Option<u64>,
}

impl Spread {
    fn of(values: &[u32]) -> Self {
        let values: Vec<u64> = values.iter().copied().map(u64::from).collect();
        Self {
            count: values.len(),
            p50: percentile(&values, 50),
            p90: percentile(&values, 90),
            p99: percentile(&values, 99),
            max: percentile(&values, 100),
        }
    }
}

#[derive(Serialize)]
struct Promises {
    made: usize,
    kept: usize,
    interrupted: usize,
}

#[derive(Serialize)]
struct RoomSeen {
    looks: u64,
    unanswered: u64,
    called: u64,
    called_in_the_fullest_second: u64,
    highest_rate_per_s: f64,
    stock: Option<u64>,
    sold: u64,
    looks_in_which_stock_did_not_add_up: u64,
}

/// Whether the file can be there at the end is known before the crowd comes.
pub(super) fn can_be_written(options: &RehearseOptions) -> Result<(), RehearseFault> {
    let Some(path) = &options.report else { return Ok(()) };
    let beside = beside(path);
    let tried = std::fs::File::create(&beside).and_then(|_| std::fs::remove_file(&beside));
    tried.map_err(|cause| RehearseFault::File { path: path.clone(), cause })
}

/// Writes the file: all of it, or nothing.
pub(super) fn write(options: &RehearseOptions, plan: &Plan, score: &Score) -> Result<(), RehearseFault> {
    let Some(path) = &options.report else { return Ok(()) };
    let beside = beside(path);
    let written = serde_json::to_vec_pretty(&written(options, plan, score))
        .map_err(std::io::Error::other)
        .and_then(|text| {
            let mut file = std::fs::File::create(&beside)?;
            file.write_all(&text)?;
            file.write_all(b"\n")?;
            file.sync_all()?;
            std::fs::rename(&beside, path)
        });
    written.map_err(|cause| RehearseFault::File { path: path.clone(), cause })
}

/// A file in the same folder, which becomes the report when it is whole.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", std::process::id()));
    path.with_file_name(name)
}

fn written<'a>(options: &'a RehearseOptions, plan: &Plan, score: &'a Score) -> Written<'a> {
    let (samples, looks) = (&score.samples, &score.looks);
    let times = [
        ("no_at_arrival_us", &samples.no_at_arrival_us),
        ("no_while_polling_us", &samples.no_while_polling_us),
        ("no_at_claim_us", &samples.no_at_claim_us),
        ("first_number_ms", &samples.first_number_ms),
        ("longest_gap_ms", &samples.longest_gap_ms),
        ("wait_ms", &samples.waits_ms),
    ];
    Written {
        shape: SHAPE,
        version: env!("CARGO_PKG_VERSION"),
        ended_at_ms: Clock::system().now_ms(),
        took_ms: millis(score.took),
        target: options.target.to_string(),
        room: &options.sale.room,
        visitors: options.visitors,
        processes: plan.processes,
        seed: options.seed,
        counts: &score.counts,
        times: times.into_iter().map(|(name, values)| (name, Spread::of(values))).collect(),
        promises: Promises {
            made: samples.promises.len(),
            kept: samples.promises.iter().filter(|promise| promise.kept()).count(),
            interrupted: samples.promises.iter().filter(|promise| promise.interrupted).count(),
        },
        room_seen: score.watched.then(|| RoomSeen {
            looks: looks.looks,
            unanswered: looks.unanswered,
            called: looks.calls.called(),
            called_in_the_fullest_second: looks.calls.fullest(),
            highest_rate_per_s: looks.rate.map_or(0.0, |rate| rate.per_second()),
            stock: score.stock,
            sold: looks.sold,
            looks_in_which_stock_did_not_add_up: looks.uneven,
        }),
        oddities: &samples.oddities,
        broken: score.verdict(),
    }
}
