//! A cluster of three primaries: two rooms on two of them, a slot that moves while people join, and failovers.

use std::time::Duration;

use super::one::papers;
use super::process::{Process, RULES, port, users};
use super::{Crowd, FAILOVER, open};
use crate::harness::within;
use crate::papers::Papers;
use waitgate::clock::Clock;
use waitgate::store::scripts::Tuning;
use waitgate::store::{News, Store};

struct Cluster {
    papers: Papers,
    secured: bool,
    /// The first three are primaries, the others replicas, once it has begun.
    nodes: Vec<Process>,
}

impl Cluster {
    /// With a replica for each primary, TLS and users; or without all that.
    async fn start(secured: bool) -> Self {
        let papers = papers();
        let tls = secured.then_some(&papers);
        let mut nodes = Vec::new();
        for _ in 0..if secured { 6 } else { 3 } {
            let (port, bus) = (port(), port());
            let mut settings = format!(
                "cluster-enabled yes\ncluster-port {bus}\ncluster-node-timeout 2000\ncluster-require-full-coverage no\n\
                 cluster-replica-validity-factor 0\n"
            );
            if secured {
                settings += &(users(RULES) + "masteruser admin\nmasterauth admin\n");
            }
            nodes.push(Process::start(port, &settings, tls).await);
        }
        let addresses: Vec<_> = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)).collect();
        let mut create = vec!["--cluster", "create"];
        create.extend(addresses.iter().map(String::as_str));
        create.extend(["--cluster-replicas", if secured { "1" } else { "0" }, "--cluster-yes"]);
        let said = nodes[0].cli(&create).await;
        assert!(said.contains("All 16384 slots covered"), "{said}");
        let cluster = Self { papers, secured, nodes };
        within("every node finds the cluster well", async || {
            for node in &cluster.nodes {
                let (info, slots) = (node.cli(&["CLUSTER", "INFO"]).await, node.cli(&["INFO", "replication"]).await);
                if !info.contains("cluster_state:ok") || slots.contains("master_link_status:down") {
                    return false;
                }
            }
            true
        })
        .await;
        cluster
    }

    async fn store(&self) -> Store {
        // Two of them are enough to find all.
        let seeds = format!("127.0.0.1:{},127.0.0.1:{}", self.nodes[0].port, self.nodes[1].port);
        let settings = match self.secured {
            true => format!(
                "[store]\nurl = \"rediss+cluster://{seeds}\"\nuser = \"waitgate\"\npassword_file = \"store.password\"\n\
                 tls = {{ roots = \"redis.pem\" }}"
            ),
            false => format!("[store]\nurl = \"redis+cluster://{seeds}\""),
        };
        let store = open(self.papers.folder.path(), &settings).await;
        // It is up with the first of them.
        within("all primaries are reached", async || {
            for node in &self.nodes[..3] {
                if !node.cli(&["CLIENT", "LIST"]).await.contains("cmd=role") && !node.cli(&["CLIENT", "LIST"]).await.contains("cmd=ping") {
                    return false;
                }
            }
            true
        })
        .await;
        store
    }

    /// The id of a room that belongs to this primary.
    async fn room_of(&self, node: usize) -> String {
        for number in 0..100 {
            let id = format!("r{number}");
            if self.owner(&id).await == node {
                return id;
            }
        }
        panic!("every primary has slots");
    }

    async fn slot(&self, id: &str) -> u16 {
        let slot = self.living().cli(&["CLUSTER", "KEYSLOT", &format!("{{wg:{id}}}:room")]).await;
        slot.trim().parse().unwrap()
    }

    fn living(&self) -> &Process {
        self.nodes.iter().find(|node| node.lives()).unwrap()
    }

    /// Which node is the primary of a room.
    async fn owner(&self, id: &str) -> usize {
        let slot = self.slot(id).await;
        for (index, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.lives()) {
            let nodes = node.cli(&["CLUSTER", "NODES"]).await;
            let mine = nodes.lines().find(|line| line.contains("myself")).unwrap_or_default();
            let has = |range: &str| {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                let within = |first: u16, last: u16| (first..=last).contains(&slot);
                matches!((first.parse(), last.parse()), (Ok(first), Ok(last)) if within(first, last))
            };
            if mine.contains("master") && mine.split(' ').skip(8).any(has) {
                return index;
            }
        }
        usize::MAX
    }

    /// Has a replica take over the room, as an operator would; the cluster may let that lapse.
    async fn fail_over_to(&self, node: usize, id: &str) {
        for _ in 0..3 {
            let said = self.nodes[node].cli(&["CLUSTER", "FAILOVER"]).await;
            let deadline = Clock::instant() + Duration::from_secs(6);
            while Clock::instant() < deadline {
                if self.owner(id).await == node {
                    return;
                }
            }
            eprintln!("no failover although {said}");
        }
        panic!("the replica takes over");
    }

    /// Moves a slot with all that is in it.
    async fn move_slot(&self, slot: &str, from: usize, to: usize, meanwhile: impl AsyncFnOnce()) {
        let (giver, taker) = (self.id(from).await, self.id(to).await);
        self.nodes[to].cli(&["CLUSTER", "SETSLOT", slot, "IMPORTING", &giver]).await;
        self.nodes[from].cli(&["CLUSTER", "SETSLOT", slot, "MIGRATING", &taker]).await;
        meanwhile().await;
        let keys = self.nodes[from].cli(&["CLUSTER", "GETKEYSINSLOT", slot, "100"]).await;
        let port = self.nodes[to].port.to_string();
        let mut migrate = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
        migrate.extend(keys.lines());
        assert_eq!(self.nodes[from].cli(&migrate).await.trim(), "OK");
        for node in [to, from] {
            self.nodes[node].cli(&["CLUSTER", "SETSLOT", slot, "NODE", &taker]).await;
        }
    }

    async fn id(&self, node: usize) -> String {
        self.nodes[node].cli(&["CLUSTER", "MYID"]).await.trim().to_owned()
    }

    async fn refusals(&self, node: usize, word: &str) -> u64 {
        let stats = self.nodes[node].cli(&["INFO", "errorstats"]).await;
        let count = stats
            .lines()
            .find_map(|line| line.strip_prefix(&format!("errorstat_{word}:count=")));
        count.map_or(0, |count| count.trim().parse().unwrap())
    }
}

#[tokio::test]
async fn rooms_live_on_their_own_primaries_and_outlive_them() {
    let mut cluster = Cluster::start(true).await;
    let store = cluster.store().await;
    let (one, other) = (cluster.room_of(0).await, cluster.room_of(1).await);
    let (mut ones, mut others) = (Crowd::new(&store, &one).await, Crowd::new(&store, &other).await);
    let (mut one_news, mut other_news) = (store.listen(&one), store.listen(&other));
    assert_eq!(one_news.recv().await, Some(News::Subscribed));
    assert_eq!(other_news.recv().await, Some(News::Subscribed));
    for (room, news) in [(&ones.room, &mut one_news), (&others.room, &mut other_news)] {
        room.tune("ann", "1", &Tuning::default()).await.unwrap();
        assert_eq!(news.recv().await, Some(News::Changed), "whichever primary said it");
    }
    ones.join_many(10).await;
    others.join_many(10).await;
    for (node, crowd) in [(0, &ones), (1, &others)] {
        let keys = cluster.nodes[node].cli(&["KEYS", "*"]).await;
        assert!(keys.contains(&format!("{{wg:{}}}:line", crowd.room.id())), "{keys}");
        within("the replica has everything", async || {
            // WAIT is about writes of the same connection; a store that has nothing more to say is what the offsets show.
            let info = cluster.nodes[node].cli(&["INFO", "replication"]).await;
            let field = |name: &str| {
                info.lines()
                    .find_map(|line| line.split_once(name))
                    .map(|(_, rest)| rest.trim().to_owned())
            };
            let lag = field("slave0:").unwrap_or_default();
            field("master_repl_offset:").is_some_and(|offset| lag.contains(&format!("offset={offset}")))
        })
        .await;
    }

    cluster.nodes[0].kill().await;
    let ((), ()) = tokio::join!(ones.join_many(10), others.join_many(50));
    eprintln!(
        "kill -9 of a primary of the cluster: {:?} without an answer in its room, {:?} in another",
        ones.longest_wait, others.longest_wait
    );
    assert!(ones.longest_wait < FAILOVER);
    assert!(
        others.longest_wait < Duration::from_secs(2),
        "another room has nothing to do with it"
    );
    ones.check().await;
    others.check().await;
    ones.room.tune("ann", "2", &Tuning::default()).await.unwrap();
    let mut heard = async || {
        loop {
            if one_news.recv().await == Some(News::Changed) {
                return;
            }
        }
    };
    tokio::time::timeout(FAILOVER, heard()).await.expect("news of the new primary");

    comes_back(&mut cluster, &mut ones).await;
    falls_silent(&cluster, &mut ones, &mut others).await;
}

/// It comes back as a replica, and an operator makes it the primary again.
async fn comes_back(cluster: &mut Cluster, ones: &mut Crowd) {
    cluster.nodes[0].revive().await;
    within("it is a replica in step", async || {
        cluster.nodes[0]
            .cli(&["INFO", "replication"])
            .await
            .contains("master_link_status:up")
    })
    .await;
    ones.longest_wait = Duration::ZERO;
    cluster.fail_over_to(0, ones.room.id()).await;
    ones.join_many(10).await;
    assert!(ones.longest_wait < Duration::from_secs(2), "{:?}", ones.longest_wait);
    ones.check().await;
}

/// The primary of the others: it is a black hole to whoever is connected.
async fn falls_silent(cluster: &Cluster, ones: &mut Crowd, others: &mut Crowd) {
    others.longest_wait = Duration::ZERO;
    cluster.nodes[1].signal("STOP").await;
    others.join_many(10).await;
    eprintln!("SIGSTOP of a primary of the cluster: {:?} without an answer", others.longest_wait);
    assert!(others.longest_wait < FAILOVER);
    cluster.nodes[1].signal("CONT").await;
    ones.join_many(10).await;
    others.join_many(10).await;
    ones.check().await;
    others.check().await;
}

/// CASE 91: a slot moved, and a client went on asking the wrong server.
#[tokio::test]
async fn a_slot_may_move_while_people_join() {
    let cluster = Cluster::start(false).await;
    let store = cluster.store().await;
    let id = cluster.room_of(0).await;
    let mut crowd = Crowd::new(&store, &id).await;
    crowd.join_many(10).await;
    let slot = cluster.slot(&id).await.to_string();

    let steps = cluster.move_slot(&slot, 0, 1, async || {
        // A key that is not there might be at the other already: this one is asked for at both.
        assert_eq!(store.room(&id).reservation("none").await.unwrap(), None);
        assert!(cluster.refusals(0, "ASK").await > 0, "it was sent there");
    });
    let done = std::cell::Cell::new(false);
    let steps = async {
        steps.await;
        done.set(true);
    };
    let joining = async {
        while !done.get() {
            crowd.join().await;
        }
    };
    tokio::join!(steps, joining);
    let halves = cluster.refusals(0, "TRYAGAIN").await + cluster.refusals(1, "TRYAGAIN").await;
    assert!(halves > 0, "somebody came while the keys were at two servers");
    crowd.join_many(10).await;
    eprintln!("a slot moved: {:?} without an answer", crowd.longest_wait);
    assert!(crowd.longest_wait < Duration::from_secs(2), "{:?}", crowd.longest_wait);
    assert_eq!(cluster.owner(&id).await, 1);
    crowd.check().await;

    // With nobody there to notice before: whoever comes next is sent on. Now and then somebody looked just in time.
    let mut at = 1;
    while cluster.refusals(0, "MOVED").await + cluster.refusals(1, "MOVED").await == 0 {
        cluster.move_slot(&slot, at, 1 - at, async || ()).await;
        at = 1 - at;
        assert_eq!(crowd.join().await, 1, "it is sent on, and not refused");
    }
    let known = async || {
        let before = cluster.refusals(1 - at, "MOVED").await;
        crowd.check().await;
        cluster.refusals(1 - at, "MOVED").await == before
    };
    within("nobody is sent on any more", known).await;
}
