//! What is said about the work: log lines and metrics.
//!
//! Every metric of a process is declared once, in [`Metrics::new`], with its unit in its name. [`Metrics`] is passed, never global. What the
//! store knows about a room (who waits, what is sold) is not counted here: the operators' listener reads it when it is asked.

use std::fmt::Write as _;
use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder, prometheus_text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::clock::UnixMs;
use crate::config::{self, LogFormat};

/// Starts logging, on standard error. `filter` (from `RUST_LOG`) wins over the settings' own.
///
/// # Errors
/// The filter cannot be read, or logging has been started already; in a sentence.
pub fn start_log(settings: &config::Log, filter: Option<&str>) -> Result<LogFilter, String> {
    let written = filter.unwrap_or(&settings.filter);
    let targets: Targets = written
        .parse()
        .map_err(|error| format!("`{written}` is not a log filter like \"info,waitgate::store=debug\": {error}"))?;
    let (targets, handle) = tracing_subscriber::reload::Layer::new(targets);
    let terminal = std::io::stderr().is_terminal();
    let human = match settings.format {
        LogFormat::Human => true,
        LogFormat::Json => false,
        LogFormat::Auto => terminal,
    };
    let registry = tracing_subscriber::registry().with(targets);
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let started = if human {
        registry.with(lines.with_ansi(terminal)).try_init()
    } else {
        registry.with(lines.json().flatten_event(true)).try_init()
    };
    started.map_err(|error| error.to_string())?;
    Ok(LogFilter {
        handle,
        fixed: filter.is_some(),
    })
}

/// What is logged, to be changed while the process runs.
#[derive(Clone, Debug)]
pub struct LogFilter {
    handle: tracing_subscriber::reload::Handle<Targets, tracing_subscriber::Registry>,
    /// It came from outside the settings, and wins over them.
    fixed: bool,
}

impl LogFilter {
    /// Puts the settings' filter in force, unless one from outside them is.
    pub fn set(&self, settings: &config::Log) {
        if let Ok(targets) = settings.filter.parse::<Targets>()
            && !self.fixed
        {
            let _gone = self.handle.reload(targets); // fails only when logging is over
        }
    }
}

/// The media type of what [`Metrics::encode`] gives.
pub const METRICS_TYPE: &str = prometheus_text::CONTENT_TYPE;

/// The `room` of what belongs to none.
pub const NO_ROOM: &str = "-";
/// How a forwarded request ends that nothing broke.
pub const ANSWERED: &str = "answered";
/// What may be decided about a request; the gateway names one for each.
const DECISIONS: [&str; 15] = [
    "throttle",
    "not_found",
    "keys",
    "come_back",
    "wrong_method",
    "preflight",
    "sold_out",
    "closed",
    "gone",
    "denied",
    "waiting",
    "pass",
    "forward",
    "claim",
    "wait",
];

/// A room's name as a label: shared, so that counting copies nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct RoomName(Arc<str>);

impl EncodeLabelValue for RoomName {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        encoder.write_str(&self.0)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfRoom {
    room: RoomName,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Decided {
    room: RoomName,
    decision: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Ended {
    room: RoomName,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Carried {
    room: RoomName,
    kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Code {
    code: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Script {
    script: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Limit {
    limit: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Mark {
    mark: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Build {
    version: &'static str,
}

/// Every metric of this process.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    rooms: RoomFamilies,
    faults: Family<Code, Counter>,
    connections: Gauge,
    connections_refused: Counter,
    join_batch_tickets: Histogram,
    join_wait_seconds: Histogram,
    joins_put_off: Counter,
    store_call_seconds: Family<Script, Histogram, fn() -> Histogram>,
    store_up: Gauge,
    limiter_keys: Family<Limit, Gauge>,
    access_lines_dropped: Counter,
    config_loaded_seconds: Gauge,
    config_mark: Family<Mark, Gauge>,
    config_reloads: Family<Outcome, Counter>,
}

/// The metrics that are kept for each room.
#[derive(Clone, Debug, Default)]
struct RoomFamilies {
    decisions: Family<Decided, Counter>,
    upstream_requests: Family<Ended, Counter>,
    claims: Family<Ended, Counter>,
    admitted: Family<OfRoom, Counter>,
    waiting_streams: Family<Carried, Gauge>,
    stock_invariant_broken: Family<OfRoom, Gauge>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Every metric, at nothing.
    #[must_use]
    pub fn new() -> Self {
        let rooms = RoomFamilies::default();
        let mut metrics = Self {
            registry: Registry::with_prefix("waitgate"),
            rooms,
            faults: Family::default(),
            connections: Gauge::default(),
            connections_refused: Counter::default(),
            join_batch_tickets: Histogram::new(exponential_buckets(1.0, 4.0, 7)),
            join_wait_seconds: Histogram::new(exponential_buckets(0.001, 4.0, 7)),
            joins_put_off: Counter::default(),
            store_call_seconds: Family::new_with_constructor(store_call_histogram),
            store_up: Gauge::default(),
            limiter_keys: Family::default(),
            access_lines_dropped: Counter::default(),
            config_loaded_seconds: Gauge::default(),
            config_mark: Family::default(),
            config_reloads: Family::default(),
        };
        metrics.register();
        metrics.register_config();
        metrics
    }

    fn register(&mut self) {
        let (registry, rooms) = (&mut self.registry, &self.rooms);
        let build = Family::<Build, Gauge>::default();
        let version = env!("CARGO_PKG_VERSION");
        build.get_or_create(&Build { version }).set(1);
        registry.register("build_info", "The version that runs", build);
        registry.register("decisions", "What was decided about requests", rooms.decisions.clone());
        registry.register("faults", "What broke, by its code", self.faults.clone());
        registry.register(
            "upstream_requests",
            "Requests forwarded, by how they ended",
            rooms.upstream_requests.clone(),
        );
        registry.register("claims", "Claims, by how they ended", rooms.claims.clone());
        registry.register("admitted", "Visitors called by this gateway", rooms.admitted.clone());
        registry.register("waiting_streams", "Streams open to waiting pages", rooms.waiting_streams.clone());
        registry.register(
            "stock_invariant_broken",
            "1 while free + held + sold is not the stock",
            rooms.stock_invariant_broken.clone(),
        );
        registry.register("connections", "Connections open to the public listener", self.connections.clone());
        registry.register(
            "connections_refused",
            "Connections closed at once because there were too many",
            self.connections_refused.clone(),
        );
        registry.register(
            "join_batch_tickets",
            "Tickets that joined in one call",
            self.join_batch_tickets.clone(),
        );
        registry.register_with_unit(
            "join_wait",
            "Longest wait for the store in each of these calls",
            Unit::Seconds,
            self.join_wait_seconds.clone(),
        );
        registry.register(
            "joins_put_off",
            "Visitors told to come back because the store could not keep up",
            self.joins_put_off.clone(),
        );
        registry.register_with_unit(
            "store_call",
            "Time of calls to the store",
            Unit::Seconds,
            self.store_call_seconds.clone(),
        );
        registry.register("store_up", "1 while the store can be reached", self.store_up.clone());
        registry.register("limiter_keys", "Keys that a limit remembers", self.limiter_keys.clone());
    }

    fn register_config(&mut self) {
        let registry = &mut self.registry;
        registry.register_with_unit(
            "config_loaded",
            "When the settings in force were read, in seconds since 1970",
            Unit::Seconds,
            self.config_loaded_seconds.clone(),
        );
        registry.register(
            "access_lines_dropped",
            "Lines of the access log that were dropped because too many were waiting",
            self.access_lines_dropped.clone(),
        );
        registry.register("config_mark", "1 for the mark of the settings in force", self.config_mark.clone());
        registry.register(
            "config_reloads",
            "Reloads of the settings, by how they ended",
            self.config_reloads.clone(),
        );
    }

    /// A line of the access log was dropped because too many were waiting.
    pub fn access_line_dropped(&self) {
        self.access_lines_dropped.inc();
    }

    /// These settings are in force from now on.
    pub fn config_loaded(&self, mark: &str, at_ms: UnixMs) {
        self.config_loaded_seconds.set(i64::try_from(at_ms / 1000).unwrap_or(i64::MAX));
        self.config_mark.clear();
        self.config_mark.get_or_create(&Mark { mark: mark.to_owned() }).set(1);
    }

    /// A reload ended: the settings are in force, or were refused.
    pub fn config_reloaded(&self, applied: bool) {
        let outcome = if applied { "applied" } else { "refused" };
        self.config_reloads.get_or_create(&Outcome { outcome }).inc();
    }

    /// The metrics of one room; [`NO_ROOM`] for what belongs to none. Cheap to keep and to clone.
    #[must_use]
    pub fn room(&self, id: &str) -> RoomMetrics {
        let room = RoomName(Arc::from(id));
        let counter = |decision| {
            let room = room.clone();
            self.rooms.decisions.get_or_create(&Decided { room, decision }).clone()
        };
        RoomMetrics {
            decided: DECISIONS.map(counter).into(),
            answered: self
                .rooms
                .upstream_requests
                .get_or_create(&Ended {
                    room: room.clone(),
                    outcome: ANSWERED,
                })
                .clone(),
            room,
            families: self.rooms.clone(),
        }
    }

    /// A fault ended its travels.
    pub fn faulted(&self, code: &'static str) {
        self.faults.get_or_create(&Code { code }).inc();
    }

    /// A connection to the public listener is open until the guard is dropped.
    #[must_use]
    pub fn connection(&self) -> Counted {
        Counted::new(self.connections.clone())
    }

    /// A connection was closed at once because there were too many.
    pub fn connection_refused(&self) {
        self.connections_refused.inc();
    }

    /// So many tickets joined in one call, of which one had waited for so long.
    #[allow(clippy::cast_precision_loss, reason = "a batch is far below 2^53")]
    pub fn joined(&self, tickets: usize, longest: Duration) {
        self.join_batch_tickets.observe(tickets as f64);
        self.join_wait_seconds.observe(longest.as_secs_f64());
    }

    /// Somebody was told to come back, because the store cannot keep up.
    pub fn join_put_off(&self) {
        self.joins_put_off.inc();
    }

    /// A call to the store took so long.
    pub fn store_called(&self, script: &'static str, took: Duration) {
        self.store_call_seconds
            .get_or_create(&Script { script })
            .observe(took.as_secs_f64());
    }

    /// The store can be reached, or cannot.
    pub fn store_is_up(&self, up: bool) {
        self.store_up.set(i64::from(up));
    }

    /// A limit remembers so many keys.
    pub fn limiter_keys(&self, limit: &'static str, keys: usize) {
        let keys = i64::try_from(keys).unwrap_or(i64::MAX);
        self.limiter_keys.get_or_create(&Limit { limit }).set(keys);
    }

    /// Everything, in the text format that Prometheus reads ([`METRICS_TYPE`]). More lines may be appended to it.
    #[must_use]
    pub fn encode(&self) -> String {
        let mut text = String::new();
        if prometheus_text::encode(&mut text, &self.registry).is_err() {
            let _ = writeln!(text, "# waitgate: this list is not complete"); // writing to a String cannot fail
        }
        text
    }
}

/// From a tenth of a millisecond to three seconds.
fn store_call_histogram() -> Histogram {
    Histogram::new(exponential_buckets(0.0001, 2.0, 16))
}

/// The metrics of one room.
#[derive(Clone, Debug)]
pub struct RoomMetrics {
    room: RoomName,
    families: RoomFamilies,
    /// The counters of [`DECISIONS`], looked up once: one of them counts at every request.
    decided: Arc<[Counter]>,
    /// The counter of forwarded requests that were answered.
    answered: Counter,
}

impl RoomMetrics {
    fn name(&self) -> RoomName {
        self.room.clone()
    }

    /// A request was decided upon.
    pub fn decided(&self, decision: &'static str) {
        if let Some(at) = DECISIONS.iter().position(|known| *known == decision) {
            self.decided[at].inc();
        }
    }

    /// A forwarded request ended.
    pub fn forwarded(&self, outcome: &'static str) {
        if outcome == ANSWERED {
            self.answered.inc();
            return;
        }
        let room = self.name();
        self.families.upstream_requests.get_or_create(&Ended { room, outcome }).inc();
    }

    /// A claim ended.
    pub fn claimed(&self, outcome: &'static str) {
        let room = self.name();
        self.families.claims.get_or_create(&Ended { room, outcome }).inc();
    }

    /// This gateway called so many visitors.
    pub fn admitted(&self, visitors: u64) {
        self.families.admitted.get_or_create(&OfRoom { room: self.name() }).inc_by(visitors);
    }

    /// A stream (`sse` or `ws`) is open until the guard is dropped.
    #[must_use]
    pub fn stream(&self, kind: &'static str) -> Counted {
        let room = self.name();
        Counted::new(self.families.waiting_streams.get_or_create_owned(&Carried { room, kind }))
    }

    /// Whether `free + held + sold = stock` holds.
    pub fn stock_adds_up(&self, adds_up: bool) {
        let gauge = self
            .families
            .stock_invariant_broken
            .get_or_create_owned(&OfRoom { room: self.name() });
        gauge.set(i64::from(!adds_up));
    }
}

/// Counted in a gauge for as long as it lives.
#[derive(Debug)]
pub struct Counted(Gauge);

impl Counted {
    fn new(gauge: Gauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_named_with_their_units_and_come_down_again() {
        let metrics = Metrics::new();
        let room = metrics.room("42");
        room.decided("wait");
        room.decided("wait");
        metrics.room(NO_ROOM).decided("throttle");
        room.claimed("reserved");
        room.admitted(20);
        room.stock_adds_up(true);
        metrics.faulted("busy");
        metrics.store_called("join", Duration::from_millis(3));
        metrics.joined(512, Duration::from_millis(20));
        metrics.join_put_off();
        metrics.limiter_keys("address", 7);
        let open = (room.stream("sse"), metrics.connection());
        let text = metrics.encode();
        for line in [
            "waitgate_decisions_total{room=\"42\",decision=\"wait\"} 2",
            "waitgate_decisions_total{room=\"-\",decision=\"throttle\"} 1",
            "waitgate_claims_total{room=\"42\",outcome=\"reserved\"} 1",
            "waitgate_admitted_total{room=\"42\"} 20",
            "waitgate_stock_invariant_broken{room=\"42\"} 0",
            "waitgate_faults_total{code=\"busy\"} 1",
            "waitgate_store_call_seconds_count{script=\"join\"} 1",
            "waitgate_join_batch_tickets_sum 512",
            "waitgate_join_wait_seconds_sum 0.02",
            "waitgate_joins_put_off_total 1",
            "waitgate_limiter_keys{limit=\"address\"} 7",
            "waitgate_waiting_streams{room=\"42\",kind=\"sse\"} 1",
            "waitgate_connections 1",
            "waitgate_store_up 0",
            concat!("waitgate_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1"),
        ] {
            assert!(
                text.lines().any(|written| written.trim_end_matches(".0") == line),
                "{line} in\n{text}"
            );
        }
        drop(open);
        let text = metrics.encode();
        assert!(
            text.contains("waitgate_connections 0") && text.contains("kind=\"sse\"} 0"),
            "{text}"
        );
    }
}
