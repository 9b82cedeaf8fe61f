//! How big the crowd can be on this machine, and the settings of the gateway it comes to.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use super::DemoOptions;
use crate::config::Rate;
use crate::crowd::score::grouped;
use crate::shop::ROOM;

/// How long the demo's shop holds a phone: short, so that those who never pay do not make everybody wait.
pub(super) const HOLD: Duration = Duration::from_secs(10);
/// Files a gateway needs beside visitors' connections: the backend's, the store's, the operators', its own.
const GATEWAY_OWN_FILES: usize = 500;
/// Files a crowd process needs beside its connections.
const CROWD_OWN_FILES: usize = 64;
/// Connections open at once per hundred visitors: most hold a stream, some two, the others come and go.
const CONNECTIONS_PER_HUNDRED: u64 = 90;
/// Visitors of one crowd process: more than this, and it is the crowd that is slow.
const VISITORS_PER_PROCESS: u64 = 10_000;
/// Connections from one address where the crowd cannot spread over loopback addresses: the ports of an address.
const PORTS_OF_ONE_ADDRESS: usize = 14_000;

/// What this machine allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// Visitors that come.
    pub(super) visitors: u64,
    /// Connections that the gateway may have.
    pub(super) connections: usize,
    /// Crowd processes.
    pub(super) processes: u64,
    /// Connections of each.
    pub(super) connections_each: usize,
    /// Why the crowd is smaller than asked for.
    pub(super) shrunk: Option<String>,
}

impl Plan {
    /// A crowd of so many, where a process may open so many files.
    pub(super) fn new(visitors: u64, files: usize) -> Self {
        // Where few files are allowed, half of them are the visitors'.
        let gateway = files.saturating_sub(GATEWAY_OWN_FILES).max(files / 2);
        let each = files.saturating_sub(CROWD_OWN_FILES).max(files / 2);
        let ports = if cfg!(target_os = "linux") {
            usize::MAX
        } else {
            PORTS_OF_ONE_ADDRESS
        };
        let connections = gateway.min(ports);
        let most = u64::try_from(connections).unwrap_or(u64::MAX).saturating_mul(100) / CONNECTIONS_PER_HUNDRED;
        let shrunk = (visitors > most).then(|| {
            let why = if gateway <= ports {
                format!(
                    "a process may open only {} files here (raise it with `ulimit -n`)",
                    grouped(files as u64)
                )
            } else {
                "all connections come from one address here, which has only so many ports".to_owned()
            };
            format!("The crowd is {} instead of {}: {why}.", grouped(most), grouped(visitors))
        });
        let visitors = visitors.min(most);
        let processes = visitors.div_ceil(VISITORS_PER_PROCESS).max(1);
        let share = connections / usize::try_from(processes).unwrap_or(1);
        Self {
            visitors,
            connections,
            processes,
            connections_each: share.min(each),
            shrunk,
        }
    }

    /// The visitors of each process: the number of the first, and how many.
    pub(super) fn shares(&self) -> Vec<(u64, u64)> {
        let border = |process: u64| self.visitors * process / self.processes;
        (0..self.processes)
            .map(|process| (border(process), border(process + 1) - border(process)))
            .collect()
    }
}

/// Where the parts of the demo are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    pub(super) public: SocketAddr,
    pub(super) ops: SocketAddr,
    pub(super) shop: SocketAddr,
}

/// The gateway's settings.
pub(super) fn settings(options: &DemoOptions, plan: &Plan, places: &Places, data: &Path) -> String {
    // A tenth of the crowd sits in one office, and must not be taken for one visitor gone mad.
    let office = plan.visitors / 10;
    let mut text = String::new();
    let mut line = |words: &str| {
        let _ = writeln!(text, "{words}");
    };
    line("# Written by `waitgate demo`. Loopback only: `secure` is off because the demo speaks plain HTTP, and loopback is believed when");
    line("# it names the client, because the crowd comes from many addresses.");
    line("[server]");
    line(&format!("listen = \"{}\"", places.public));
    line(&format!("max_connections = {}", plan.connections));
    line(&format!("max_connections_per_address = {}", plan.connections));
    line("drain_timeout = \"3s\"");
    line("[ops]");
    line(&format!("listen = \"{}\"", places.ops));
    line("[store]");
    line(&format!("data_dir = {}", quoted(data)));
    line("[client]");
    line("trusted_proxies = [\"127.0.0.0/8\", \"::1/128\"]");
    line("[limits]");
    line(&format!(
        "address = {{ rate = \"{}/s\", burst = {} }}",
        50 + office / 10,
        200 + 2 * office
    ));
    line(&format!(
        "waiting = {{ rate = \"{}/s\", burst = {} }}",
        200 + office / 2,
        2_000 + 2 * office
    ));
    line("[cookies]");
    line("secure = false");
    line("[log]");
    line("filter = \"warn\"");
    line("format = \"human\"");
    line(&format!("[rooms.{ROOM}]"));
    line("paths = [\"/sale\"]");
    line(&format!("upstream = \"http://{}\"", places.shop));
    line(&format!("rate = \"{}\"", options.admit));
    line(&format!("stock = {}", options.stock));
    line("on_store_loss = \"hold\"");
    line("turn_ttl = \"20s\"");
    line("grace = \"30s\"");
    line("claim.path = \"/sale/claim\"");
    line(&format!("claim.hold = \"{}s\"", HOLD.as_secs()));
    text
}

/// A path as a TOML string.
fn quoted(path: &Path) -> String {
    let text = path.to_string_lossy().replace('\\', "\\\\").replace('"', "\\\"");
    format!("\"{text}\"")
}

/// How long the whole show may take before it counts as stuck: everybody comes, everybody is let in, and time to pay twice over.
pub(super) fn time_limit(visitors: u64, arrive: Duration, rate: Rate) -> Duration {
    let all_in_s = visitors.saturating_mul(1000) / rate.milli().max(1);
    // A run longer than an hour is nobody's wish; the sale is over long before everybody is let in.
    arrive + Duration::from_secs(all_in_s.min(3_600)) + HOLD * 2 + Duration::from_secs(100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twenty_thousand_fit_where_twenty_thousand_files_may_be_open() {
        if !cfg!(target_os = "linux") {
            return;
        }
        let plan = Plan::new(20_000, 20_000);
        assert_eq!((plan.visitors, plan.processes, plan.shrunk.as_ref()), (20_000, 2, None));
        assert!(plan.connections <= 19_500 && plan.connections_each * 2 <= plan.connections);
        assert_eq!(plan.shares(), [(0, 10_000), (10_000, 10_000)]);
    }

    #[test]
    fn a_small_limit_shrinks_the_crowd_and_says_so() {
        let plan = Plan::new(20_000, 1024);
        assert!((500..700).contains(&plan.visitors), "{plan:?}");
        let words = plan.shrunk.unwrap();
        assert!(
            words.contains("may open only 1,024 files") && words.contains("instead of 20,000"),
            "{words}"
        );
        assert!(Plan::new(20_000, 256).visitors > 100);
    }

    #[test]
    fn shares_leave_nobody_out() {
        for visitors in [1, 7, 200, 20_001, 55_555] {
            let shares = Plan::new(visitors, 1 << 20).shares();
            assert_eq!(shares.iter().map(|(_, count)| count).sum::<u64>(), visitors);
            assert!(shares.windows(2).all(|pair| pair[0].0 + pair[0].1 == pair[1].0));
        }
    }

    #[test]
    fn the_settings_are_ones_the_gateway_reads() {
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let places = Places {
            public: at(8042),
            ops: at(9042),
            shop: at(7042),
        };
        let text = settings(
            &DemoOptions::default(),
            &Plan::new(20_000, 20_000),
            &places,
            Path::new("/tmp/a \"quoted\" folder"),
        );
        let config = crate::config::parse(&text, Path::new("demo.toml")).unwrap_or_else(|mistakes| panic!("{mistakes}"));
        let room = config.room(ROOM).unwrap();
        assert_eq!(
            (room.stock, room.rate, config.server.listen),
            (Some(100), Rate::from_milli(200_000), places.public)
        );
        assert_eq!(room.claim.as_ref().map(|claim| claim.hold), Some(HOLD));
    }
}
