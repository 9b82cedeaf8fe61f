//! Finds out who the primaries are.
//!
//! The crate has clients for sentinels and clusters. They are not used: the one asks sentinels without a time limit and believes the first, the
//! other repeats calls by itself, so that nobody knows whether one was done. What is left of the work is small.
//!
//! **Sentinels** are asked all at once, until more than half have answered; the answer of the latest failover (the highest `config-epoch`) is
//! taken. A minority that is cut off, and still names the primary of before, is not believed against what a majority has said.
//!
//! **Cluster nodes**: all connected ones are asked; the answer of one that says the cluster is well goes before others, and then the latest
//! (the highest `current_epoch`). If none says so, one node that is not connected is asked too, another one each time.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, RedisError, Value};

use super::StoreOptions;
use super::dial::{Dialer, Link, limited};
use super::routes::{Part, Routes, SLOTS};
use crate::config::{Host, Kind, Site};

/// Nodes of a cluster that are remembered at most.
const MAX_KNOWN: usize = 1024;

/// Who is asked who the primaries are.
pub(super) enum Surveyor {
    One(Host),
    Sentinels(Sentinels),
    Cluster(Known),
}

/// The sentinels of one primary.
pub(super) struct Sentinels {
    name: String,
    dialer: Dialer,
    limit: Duration,
    all: Vec<(Host, Option<Link>)>,
    /// The failover of which a majority told last.
    epoch: u64,
}

/// The nodes of a cluster.
pub(super) struct Known {
    hosts: Vec<Host>,
    seeds: Vec<Host>,
    next: usize,
    limit: Duration,
}

impl Surveyor {
    pub(super) fn new(site: &Site, options: StoreOptions) -> Result<Self, RedisError> {
        let limit = options.connect_timeout;
        let nobody = || RedisError::from((ErrorKind::InvalidClientConfig, "a store without a host"));
        Ok(match &site.kind {
            Kind::One => Self::One(site.hosts.first().cloned().ok_or_else(nobody)?),
            Kind::Sentinel { name } => Self::Sentinels(Sentinels {
                name: name.clone(),
                dialer: Dialer::sentinels(site, options)?,
                limit,
                all: site.hosts.iter().map(|host| (host.clone(), None)).collect(),
                epoch: 0,
            }),
            Kind::Cluster => Self::Cluster(Known {
                hosts: site.hosts.clone(),
                seeds: site.hosts.clone(),
                next: fastrand::usize(..site.hosts.len().max(1)),
                limit,
            }),
        })
    }

    /// Whether primaries change without a connection breaking.
    pub(super) fn is_movable(&self) -> bool {
        !matches!(self, Self::One(_))
    }

    /// Who has what now.
    pub(super) async fn survey(&mut self, servers: &Dialer, routes: &Routes) -> Result<Vec<Part>, RedisError> {
        match self {
            Self::One(host) => Ok(vec![Part::whole(host.clone())]),
            Self::Sentinels(sentinels) => sentinels.ask().await.map(|host| vec![Part::whole(host)]),
            Self::Cluster(known) => known.ask(servers, routes).await,
        }
    }
}

impl Sentinels {
    async fn ask(&mut self) -> Result<Host, RedisError> {
        let Self {
            name,
            dialer,
            limit,
            all,
            epoch: known,
        } = self;
        let count = all.len();
        // Who is slower than most goes on answering on its connection; nobody listens then.
        let asking = all.iter_mut().map(|(host, link)| ask_one(name, dialer, *limit, host, link));
        let mut asking: FuturesUnordered<_> = asking.collect();
        let (mut answers, mut last_error) = (Vec::new(), None);
        while let Some(answer) = asking.next().await {
            match answer {
                Ok(answer) => answers.push(answer),
                Err(error) => last_error = Some(error),
            }
            if answers.len() * 2 > count {
                break;
            }
        }
        let heard = !answers.is_empty();
        match chosen(answers, count, *known) {
            Some((epoch, primary)) => {
                *known = epoch;
                Ok(primary)
            }
            None if heard => Err(RedisError::from((
                ErrorKind::Client,
                "only sentinels that missed a failover can be reached",
            ))),
            None => Err(last_error.unwrap_or_else(|| RedisError::from((ErrorKind::Client, "no sentinel can be reached")))),
        }
    }
}

/// The failover a sentinel knows of, and the primary since.
async fn ask_one(name: &str, dialer: &Dialer, limit: Duration, host: &Host, kept: &mut Option<Link>) -> Result<(u64, Host), RedisError> {
    let mut connection = match kept {
        Some(link) => link.connection(),
        None => kept.insert(dialer.link(host).await?).connection(),
    };
    let mut command = redis::cmd("SENTINEL");
    command.arg("MASTER").arg(name);
    let answer = limited(limit, command.query_async::<HashMap<String, String>>(&mut connection)).await;
    let said = match answer {
        Ok(said) => said,
        Err(error) => {
            *kept = None;
            return Err(error);
        }
    };
    let field = |name: &str| said.get(name).map(String::as_str).unwrap_or_default();
    let port = field("port").parse().ok().filter(|_| !field("ip").is_empty());
    let port: u16 = port.ok_or_else(|| RedisError::from((ErrorKind::Client, "a sentinel names no address")))?;
    let epoch = field("config-epoch").parse().unwrap_or(0);
    Ok((epoch, Host::Tcp(field("ip").to_owned(), port)))
}

/// The answer of the latest failover; of a minority only if it knows what was known before.
fn chosen(answers: Vec<(u64, Host)>, count: usize, known: u64) -> Option<(u64, Host)> {
    let majority = answers.len() * 2 > count;
    let latest = answers.into_iter().max_by_key(|(epoch, _)| *epoch)?;
    (majority || latest.0 >= known).then_some(latest)
}

/// What one node says.
struct View {
    well: bool,
    epoch: u64,
    parts: Vec<Part>,
    /// Replicas among them: they may be primaries one day.
    hosts: Vec<Host>,
}

impl Known {
    async fn ask(&mut self, servers: &Dialer, routes: &Routes) -> Result<Vec<Part>, RedisError> {
        let limit = self.limit;
        let connected = routes
            .nodes
            .iter()
            .map(async |node| limited(limit, view(node.connection(), &node.host)).await);
        let mut views: Vec<View> = join_all(connected).await.into_iter().filter_map(Result::ok).collect();
        let mut last_error = None;
        if !views.iter().any(|view| view.well) {
            let others: Vec<Host> = self.hosts.iter().filter(|host| routes.node(host).is_none()).cloned().collect();
            for _ in 0..others.len() {
                let host = &others[self.next % others.len()];
                self.next = self.next.wrapping_add(1);
                let seen = async {
                    let link = servers.link(host).await?;
                    view(link.connection(), host).await
                };
                match limited(limit, seen).await {
                    Ok(view) => views.push(view),
                    Err(error) => last_error = Some(error),
                }
                // One is enough, as long as there is one.
                if !views.is_empty() {
                    break;
                }
            }
        }
        let best = views.into_iter().max_by_key(|view| (view.well, view.epoch));
        let Some(best) = best else {
            return Err(last_error.unwrap_or_else(|| RedisError::from((ErrorKind::Client, "no node of the cluster can be reached"))));
        };
        self.hosts.clone_from(&self.seeds);
        let new = best.hosts.into_iter().filter(|host| !self.seeds.contains(host));
        self.hosts.extend(new.take(MAX_KNOWN));
        Ok(best.parts)
    }
}

async fn view(mut connection: MultiplexedConnection, from: &Host) -> Result<View, RedisError> {
    let mut both = redis::pipe();
    both.cmd("CLUSTER").arg("INFO").cmd("CLUSTER").arg("SLOTS");
    let (info, slots): (String, Value) = both.query_async(&mut connection).await?;
    let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let mut view = View {
        well: field("cluster_state") == Some("ok"),
        epoch: field("cluster_current_epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or(0),
        parts: Vec::new(),
        hosts: Vec::new(),
    };
    let ranges: Vec<Vec<Value>> = redis::from_redis_value(slots)?;
    for range in ranges {
        let mut range = range.into_iter();
        let (Some(first), Some(last)) = (range.next(), range.next()) else {
            continue;
        };
        let (first, last): (u16, u16) = (redis::from_redis_value(first)?, redis::from_redis_value(last)?);
        let hosts: Vec<Host> = range.filter_map(|node| host(node, from)).collect();
        if let Some(primary) = hosts.first()
            && last < SLOTS
        {
            let slots = first..=last;
            view.parts.push(Part {
                slots,
                host: primary.clone(),
            });
        }
        view.hosts
            .extend(hosts.into_iter().filter(|host| !view.hosts.contains(host)).collect::<Vec<_>>());
    }
    if view.parts.is_empty() {
        return Err(RedisError::from((ErrorKind::Client, "the cluster has given its slots to nobody")));
    }
    Ok(view)
}

/// A node as `CLUSTER SLOTS` writes it. One that does not know its own name is the one that was asked.
fn host(node: Value, from: &Host) -> Option<Host> {
    let mut words = redis::from_redis_value::<Vec<Value>>(node).ok()?.into_iter();
    let name: Option<String> = redis::from_redis_value(words.next()?).ok()?;
    let port: u16 = redis::from_redis_value(words.next()?).ok()?;
    super::question::host(&format!("{}:{port}", name.unwrap_or_default()), from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str) -> Host {
        Host::Tcp(name.into(), 1)
    }

    #[test]
    fn the_latest_failover_counts_and_a_minority_that_missed_it_does_not() {
        let (old, new) = ((3, host("old")), (4, host("new")));
        assert_eq!(chosen(vec![old.clone(), new.clone()], 3, 3), Some(new.clone()));
        assert_eq!(chosen(vec![old.clone()], 3, 3), Some(old.clone()), "nothing else is known");
        assert_eq!(chosen(vec![old.clone()], 3, 4), None, "it missed one");
        assert_eq!(chosen(vec![new.clone()], 3, 3), Some(new), "one is enough to tell of a later one");
        let anew = vec![(0, host("a")), (0, host("a"))];
        assert!(
            chosen(anew, 3, 4).is_some(),
            "sentinels that were made anew count from the beginning"
        );
        assert_eq!(chosen(Vec::new(), 3, 0), None);
    }

    #[test]
    fn nodes_are_read_as_a_cluster_writes_them() {
        let text = |text: &str| Value::BulkString(text.into());
        let node = |name, port| Value::Array(vec![name, Value::Int(port), text("id"), Value::Array(Vec::new())]);
        let read = |name, port| super::host(node(name, port), &host("asked"));
        assert_eq!(read(text("10.0.0.1"), 7), Some(Host::Tcp("10.0.0.1".into(), 7)));
        assert_eq!(read(text(""), 7), Some(Host::Tcp("asked".into(), 7)));
        assert_eq!(read(Value::Nil, 7), Some(Host::Tcp("asked".into(), 7)));
        assert_eq!(read(text("?"), 7), Some(Host::Tcp("asked".into(), 7)));
        assert_eq!(read(text("::1"), 7), Some(Host::Tcp("::1".into(), 7)));
        assert_eq!(read(text("a"), 0), None, "it has no port yet");
    }
}
