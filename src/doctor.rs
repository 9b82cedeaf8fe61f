//! `waitgate doctor`: looks at a configuration, its store and this machine for what bites during a sale, and says it in plain sentences.

use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::clock::Clock;
use crate::config::Config;
use crate::server::files;
use crate::store::examine::Examined;
use crate::store::{Store, StoreOptions};

/// How long the store has for its first answer.
const FIRST_ANSWER: Duration = Duration::from_secs(5);
/// Bytes that one visitor takes in the store, at most: a place, a turn, a session, and what became of it.
const BYTES_PER_VISITOR: u64 = 600;
/// The oldest server whose scripts begin with `#!`.
const OLDEST: u64 = 7;
/// A clock further off than this makes waiting times wrong.
const SKEW_MS: u64 = 1_000;
/// An answer that takes longer makes everything slow.
const SLOW: Duration = Duration::from_millis(10);

/// How bad something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// As it should be.
    Fine,
    /// It may bite.
    Warning,
    /// It will bite.
    Bad,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What it is, and what to do.
    pub sentence: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self.severity {
            Severity::Fine => "fine",
            Severity::Warning => "warning",
            Severity::Bad => "BAD",
        };
        write!(out, "{word:8} {}", self.sentence)
    }
}

fn fine(sentence: impl Into<String>) -> Finding {
    finding(Severity::Fine, sentence)
}

fn warning(sentence: impl Into<String>) -> Finding {
    finding(Severity::Warning, sentence)
}

fn bad(sentence: impl Into<String>) -> Finding {
    finding(Severity::Bad, sentence)
}

fn finding(severity: Severity, sentence: impl Into<String>) -> Finding {
    let sentence = sentence.into();
    Finding { severity, sentence }
}

/// Looks at everything: exit code 0 when all is fine, 1 when something may bite, 2 when something will.
pub async fn run(config: &Config, visitors: u64) -> ExitCode {
    let findings = examine(config, visitors).await;
    let mut text = String::new();
    for finding in &findings {
        text.push_str(&format!("{finding}\n"));
    }
    // A closed pipe is nobody's mistake; the exit code says how bad it is.
    let _ = std::io::Write::write_all(&mut std::io::stdout(), text.as_bytes());
    match findings.iter().map(|finding| finding.severity).max() {
        Some(Severity::Bad) => ExitCode::from(2),
        Some(Severity::Warning) => ExitCode::from(1),
        Some(Severity::Fine) | None => ExitCode::SUCCESS,
    }
}

async fn examine(config: &Config, visitors: u64) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(sentence) = config.idle() {
        findings.push(bad(format!("{}: {sentence}", config.file.display())));
    }
    findings.push(about_files(config.server.max_connections, files::raise_limit()));
    findings.extend(about_waiters(config, visitors));
    match &config.store.site {
        None => findings.push(about_private(config)),
        Some(site) => {
            let options = StoreOptions {
                call_timeout: config.store.call_timeout,
                connect_timeout: config.store.connect_timeout,
            };
            match Store::open_site(site, Clock::system(), options) {
                Ok(store) => findings.extend(about_store(&store, config, visitors).await),
                Err(fault) => findings.push(bad(format!("the store cannot be used: {fault}"))),
            }
        }
    }
    findings
}

/// Whether the machine lets so many connect.
fn about_files(wanted: usize, limit: usize) -> Finding {
    let allowed = files::connections(wanted, limit);
    if allowed < wanted {
        warning(format!(
            "server.max_connections is {wanted}, but a process may open only {limit} files here, which is enough for {allowed}: raise it with \
             `ulimit -n` or LimitNOFILE"
        ))
    } else {
        fine(format!("a process may open {limit} files, enough for {wanted} connections"))
    }
}

fn about_waiters(config: &Config, visitors: u64) -> Vec<Finding> {
    let small = config
        .rooms
        .iter()
        .filter(|room| u64::try_from(room.max_waiters).unwrap_or(u64::MAX) < visitors);
    small
        .map(|room| {
            warning(format!(
                "rooms.{}: max_waiters is {}, and {visitors} visitors are expected: with one gateway some cannot be told their place live",
                room.id, room.max_waiters
            ))
        })
        .collect()
}

/// A private store is set up by the gateway; only the program must be there.
fn about_private(config: &Config) -> Finding {
    let programs: Vec<PathBuf> = match &config.store.program {
        Some(program) => vec![program.clone()],
        None => vec!["redis-server".into(), "valkey-server".into()],
    };
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = programs.iter().find(|program| {
        let beside = std::env::split_paths(&path).map(|folder| folder.join(program));
        program.components().count() > 1 && program.is_file() || beside.into_iter().any(|file| file.is_file())
    });
    match found {
        Some(program) => warning(format!(
            "the store is a private {} in {}: good for one gateway; several need a Redis of yours in store.url",
            program.display(),
            config.store.data_dir.display()
        )),
        None => {
            bad("there is no redis-server and no valkey-server on this machine, and store.url names no Redis: install one, or name yours")
        }
    }
}

async fn about_store(store: &Store, config: &Config, visitors: u64) -> Vec<Finding> {
    let mut ups = store.ups();
    if tokio::time::timeout(FIRST_ANSWER, ups.wait_for(|up| *up)).await.is_err() {
        return vec![bad(format!("the store does not answer within {} s", FIRST_ANSWER.as_secs()))];
    }
    let sells = config.rooms.iter().any(|room| room.stock.is_some());
    let claims = config.rooms.iter().filter_map(|room| room.claim.as_ref());
    let copies = claims.map(|claim| claim.replicas).max().unwrap_or(0);
    match store.examine().await {
        Ok(servers) => {
            let copies = servers.iter().filter_map(|server| about_copies(server, copies)).collect::<Vec<_>>();
            let all = servers.iter().flat_map(|server| about(server, visitors, sells));
            all.chain(copies).collect()
        }
        Err(fault) => vec![bad(format!("the store cannot be asked about itself: {fault}"))],
    }
}

/// What one server's answers mean.
fn about(server: &Examined, visitors: u64, sells: bool) -> Vec<Finding> {
    let host = &server.host;
    let mut findings = Vec::new();
    findings.push(match server.maxmemory_policy.as_deref() {
        Some("noeviction") => fine(format!("{host}: maxmemory-policy is noeviction")),
        Some(other) => bad(format!(
            "{host}: maxmemory-policy is {other}, so a full store throws places and stock away: CONFIG SET maxmemory-policy noeviction"
        )),
        None => warning(format!("{host} does not say its maxmemory-policy; it must be noeviction")),
    });
    findings.push(about_memory(server, visitors));
    findings.push(match server.append_only {
        Some(true) => fine(format!("{host}: keeps an append-only file")),
        Some(false) if sells => warning(format!(
            "{host}: keeps no append-only file, so a restart forgets the count of the stock, and nothing is sold until you set it: CONFIG SET \
             appendonly yes"
        )),
        Some(false) => warning(format!(
            "{host}: keeps no append-only file: after a restart tickets bring the line back, and the door stays shut meanwhile"
        )),
        None => warning(format!("{host} does not say whether it keeps an append-only file")),
    });
    if let (Some(replicas @ 1..), Some(0)) = (server.replicas, server.min_replicas) {
        findings.push(warning(format!(
            "{host}: has {replicas} replicas and min-replicas-to-write 0, so a primary that is cut off goes on taking writes that a failover loses: \
             CONFIG SET min-replicas-to-write 1"
        )));
    }
    let old = server
        .version
        .as_deref()
        .and_then(|version| version.split('.').next()?.parse::<u64>().ok());
    findings.push(match (server.scripts, old) {
        (false, _) => bad(format!(
            "{host}: does not run our scripts: it must be Redis 7 or Valkey, and our user must be allowed SCRIPT LOAD and EVALSHA"
        )),
        (true, Some(major)) if major < OLDEST => bad(format!("{host}: is version {major}, and must be {OLDEST} at least")),
        (true, _) => fine(format!(
            "{host}: runs scripts, version {}",
            server.version.as_deref().unwrap_or("unknown")
        )),
    });
    findings.push(if server.ahead_ms.unsigned_abs() > SKEW_MS {
        warning(format!(
            "{host}: its clock and this machine's are {} ms apart. The store's decides; people are shown wrong times meanwhile: run NTP on both",
            server.ahead_ms.unsigned_abs()
        ))
    } else {
        fine(format!("{host}: its clock agrees with this machine's"))
    });
    findings.push(if server.round_trip > SLOW {
        warning(format!(
            "{host}: an answer takes {} ms; the store should be near",
            server.round_trip.as_millis()
        ))
    } else {
        fine(format!("{host}: an answer takes {} µs", server.round_trip.as_micros()))
    });
    findings
}

/// Whether claims that wait for replicas will ever be answered.
fn about_copies(server: &Examined, wanted: u64) -> Option<Finding> {
    let (host, replicas) = (&server.host, server.replicas?);
    (replicas < wanted).then(|| {
        bad(format!(
            "{host}: has {replicas} replicas, and claim.replicas is {wanted}: no claim would be answered"
        ))
    })
}

fn about_memory(server: &Examined, visitors: u64) -> Finding {
    let host = &server.host;
    let needed = visitors.saturating_mul(BYTES_PER_VISITOR);
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    match (server.max_memory, server.used_memory) {
        (Some(0), _) => fine(format!(
            "{host}: memory is not limited; {visitors} visitors take {} MiB at most",
            mib(needed)
        )),
        (Some(most), Some(used)) if used.saturating_add(needed) > most => bad(format!(
            "{host}: maxmemory is {} MiB, of which {} are used, and {visitors} visitors take up to {} MiB: then nobody can join or claim",
            mib(most),
            mib(used),
            mib(needed)
        )),
        (Some(most), Some(used)) => fine(format!(
            "{host}: {visitors} visitors fit: {} of {} MiB used, {} more at most",
            mib(used),
            mib(most),
            mib(needed)
        )),
        _ => warning(format!(
            "{host} does not say how much memory it may use; {visitors} visitors take up to {} MiB",
            mib(needed)
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Examined {
        Examined {
            host: "10.0.0.1:6379".to_owned(),
            version: Some("7.0.15".to_owned()),
            maxmemory_policy: Some("noeviction".to_owned()),
            max_memory: Some(1 << 30),
            used_memory: Some(10 << 20),
            append_only: Some(true),
            replicas: Some(1),
            min_replicas: Some(1),
            ahead_ms: -3,
            round_trip: Duration::from_micros(200),
            scripts: true,
        }
    }

    #[test]
    fn a_good_server_is_fine() {
        let findings = about(&good(), 100_000, true);
        assert!(findings.iter().all(|finding| finding.severity == Severity::Fine), "{findings:?}");
    }

    #[test]
    fn each_thing_that_bites_is_named() {
        type Break = fn(&mut Examined);
        let cases: [(Severity, &str, Break); 10] = [
            (Severity::Bad, "throws places", |server| {
                server.maxmemory_policy = Some("allkeys-lru".to_owned())
            }),
            (Severity::Warning, "must be noeviction", |server| server.maxmemory_policy = None),
            (Severity::Bad, "nobody can join", |server| server.max_memory = Some(40 << 20)),
            (Severity::Warning, "does not say how much", |server| server.max_memory = None),
            (Severity::Warning, "count of the stock", |server| server.append_only = Some(false)),
            (Severity::Warning, "a failover loses", |server| server.min_replicas = Some(0)),
            (Severity::Bad, "does not run our scripts", |server| server.scripts = false),
            (Severity::Bad, "must be 7", |server| server.version = Some("6.2.14".to_owned())),
            (Severity::Warning, "4000 ms apart", |server| server.ahead_ms = -4_000),
            (Severity::Warning, "takes 30 ms", |server| {
                server.round_trip = Duration::from_millis(30)
            }),
        ];
        for (severity, words, damage) in cases {
            let mut server = good();
            damage(&mut server);
            let findings = about(&server, 100_000, true);
            let bites: Vec<_> = findings.iter().filter(|finding| finding.severity != Severity::Fine).collect();
            assert_eq!(bites.len(), 1, "{words}: {findings:?}");
            assert!(
                bites[0].severity == severity && bites[0].sentence.contains(words),
                "{words}: {bites:?}"
            );
        }
    }

    #[test]
    fn few_files_are_a_warning() {
        assert_eq!(about_files(10_000, 20_000).severity, Severity::Fine);
        let few = about_files(50_000, 1024);
        assert!(few.severity == Severity::Warning && few.sentence.contains("1024 files"), "{few}");
    }
}
