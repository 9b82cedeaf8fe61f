//! Where the crowd goes, and how it is spread over processes.

use std::net::SocketAddr;

use http::Uri;

use super::RehearseOptions;
use crate::crowd::score::grouped;

/// Files a crowd process needs beside its connections.
const OWN_FILES: usize = 64;
/// A process that may have fewer connections than this is no use.
const FEWEST: usize = 16;
/// Visitors of one process: more than this, and it is the crowd that is slow.
const VISITORS_PER_PROCESS: u64 = 16_000;
/// Processes at most.
const MOST_PROCESSES: u64 = 256;

/// The gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) address: SocketAddr,
    /// What it is called, with port.
    pub(super) host: String,
}

impl Target {
    /// Looks the target up.
    pub(super) async fn find(target: &Uri, it_is_mine: bool) -> Result<Self, String> {
        let wrong = || format!("--target {target}: write it as http://HOST:PORT");
        if target.scheme_str() == Some("https") {
            return Err(format!(
                "--target {target}: the crowd speaks plain HTTP; send it to the gateway's plain listener"
            ));
        }
        let (Some("http"), Some(authority), "" | "/", None) = (target.scheme_str(), target.authority(), target.path(), target.query())
        else {
            return Err(wrong());
        };
        let name = authority.host().trim_start_matches('[').trim_end_matches(']');
        let port = authority.port_u16().unwrap_or(80);
        let mut found = tokio::net::lookup_host((name, port))
            .await
            .map_err(|cause| format!("--target {target}: {name} cannot be found: {cause}"))?;
        let address = found.next().ok_or_else(wrong)?;
        if !address.ip().is_loopback() && !it_is_mine {
            return Err(format!(
                "--target {target} is not on this machine. A crowd that nobody expects is an attack: send it to a gateway of your own only, \
                 and say --it-is-mine"
            ));
        }
        Ok(Self {
            address,
            host: authority.to_string(),
        })
    }
}

/// How the crowd is spread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) visitors: u64,
    pub(super) processes: u64,
    /// Connections of each.
    pub(super) connections: usize,
    /// Not everybody can be connected at once.
    pub(super) warning: Option<String>,
}

impl Plan {
    /// For a machine that lets a process open so many files.
    pub(super) fn new(options: &RehearseOptions, files: usize) -> Result<Self, String> {
        let allowed = files.saturating_sub(OWN_FILES);
        if allowed < FEWEST {
            return Err(format!(
                "a process may open only {files} files here, and a crowd needs more: raise it with `ulimit -n 20000`"
            ));
        }
        if options.lasts.is_zero() {
            return Err("--for 0s: a rehearsal that ends before it begins".to_owned());
        }
        let wished = options
            .connections
            .and_then(|wish| usize::try_from(wish).ok())
            .unwrap_or(usize::MAX);
        if options.connections.is_some() && wished > allowed {
            return Err(format!(
                "--connections {wished}: a process may open only {} files here, which leaves {} connections; raise it with `ulimit -n`, or \
                 take more --processes",
                grouped(files as u64),
                grouped(allowed as u64)
            ));
        }
        let connections = wished.min(allowed);
        let each = u64::try_from(connections).unwrap_or(u64::MAX).min(VISITORS_PER_PROCESS);
        let needed = options.visitors.div_ceil(each).clamp(1, MOST_PROCESSES);
        let processes = options.processes.unwrap_or(needed).min(options.visitors);
        let at_once = processes.saturating_mul(u64::try_from(connections).unwrap_or(u64::MAX));
        let warning = (at_once < options.visitors).then(|| {
            format!(
                "Not everybody is connected at once: {} visitors, and {} connections in all. Whoever has none waits for one.",
                grouped(options.visitors),
                grouped(at_once)
            )
        });
        Ok(Self {
            visitors: options.visitors,
            processes,
            connections,
            warning,
        })
    }

    /// The visitors of each process: the number of the first, and how many.
    pub(super) fn shares(&self) -> Vec<(u64, u64)> {
        let border = |process: u64| self.visitors * process / self.processes;
        (0..self.processes)
            .map(|process| (border(process), border(process + 1) - border(process)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(words: &[&str]) -> RehearseOptions {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            options: RehearseOptions,
        }
        let line = ["rehearse", "--target", "http://127.0.0.1:8080"].iter().chain(words);
        <Line as clap::Parser>::try_parse_from(line).map(|line| line.options).unwrap()
    }

    #[test]
    fn a_hundred_thousand_fit_where_twenty_thousand_files_may_be_open() {
        let plan = Plan::new(&options(&["--visitors", "100000"]), 20_000).unwrap();
        assert_eq!((plan.processes, plan.connections, &plan.warning), (7, 19_936, &None));
        let shares = plan.shares();
        assert_eq!(shares.iter().map(|(_, count)| count).sum::<u64>(), 100_000);
        assert!(shares.windows(2).all(|pair| pair[0].0 + pair[0].1 == pair[1].0));
    }

    #[test]
    fn what_is_missing_is_said() {
        let told = Plan::new(&options(&[]), 64).unwrap_err();
        assert!(told.contains("only 64 files") && told.contains("ulimit"), "{told}");
        let told = Plan::new(&options(&["--connections", "5000"]), 1024).unwrap_err();
        assert!(told.contains("leaves 960 connections"), "{told}");
        let plan = Plan::new(&options(&["--visitors", "500", "--processes", "2", "--connections", "100"]), 1024).unwrap();
        assert!(plan.warning.unwrap().contains("500 visitors, and 200 connections"));
        assert!(Plan::new(&options(&["--for", "0s"]), 1024).unwrap_err().contains("--for"));
    }

    #[tokio::test]
    async fn other_machines_are_left_alone() {
        let find = async |target: &str, mine| Target::find(&target.parse().unwrap(), mine).await;
        for good in ["http://127.0.0.1:8080", "http://[::1]:8080/", "http://127.9.9.9"] {
            assert!(find(good, false).await.is_ok(), "{good}");
        }
        let told = find("http://192.0.2.7:80", false).await.unwrap_err();
        assert!(told.contains("not on this machine") && told.contains("--it-is-mine"), "{told}");
        assert_eq!(find("http://192.0.2.7:80", true).await.unwrap().host, "192.0.2.7:80");
        for wrong in [
            "https://127.0.0.1",
            "http://127.0.0.1/sale",
            "http://127.0.0.1?x",
            "127.0.0.1:80",
            "/",
        ] {
            assert!(find(wrong, true).await.is_err(), "{wrong}");
        }
    }
}
