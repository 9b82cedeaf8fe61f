//! Redis processes on TCP ports, each with a folder of its own, ended when dropped.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tokio::process::{Child, Command};
use waitgate::clock::Clock;

use crate::harness::within;
use crate::papers::Papers;

/// What a gateway's user may do, as the README says it.
pub const RULES: &str = "~{wg:* &{wg:* -@all +@read +@write +@pubsub +@connection -@dangerous +evalsha +script|load +time +role +info +config|get \
                         +cluster|slots +cluster|info +asking +wait";

/// One `redis-server`.
pub struct Process {
    pub port: u16,
    folder: TempDir,
    child: Child,
    /// The authority of its certificate.
    roots: Option<String>,
    sentinel: bool,
}

/// A port that nobody listens on, below those that outgoing connections get.
pub fn port() -> u16 {
    for _ in 0..10_000 {
        let port = fastrand::u16(20_000..30_000);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no port is free");
}

/// The lines by which a server speaks TLS and nothing else on `port`.
pub fn listening(port: u16, papers: Option<&Papers>) -> String {
    let Some(papers) = papers else { return format!("port {port}\n") };
    let (chain, key) = (papers.path("redis.pem"), papers.path("redis.key"));
    let (chain, key) = (chain.display(), key.display());
    format!(
        "port 0\ntls-port {port}\ntls-cert-file {chain}\ntls-key-file {key}\ntls-ca-cert-file {chain}\ntls-auth-clients no\ntls-replication yes\n\
         tls-cluster yes\n"
    )
}

/// The lines by which only those get in who have a password.
pub fn users(rules: &str) -> String {
    format!("user default off\nuser waitgate on >let-me-in {rules}\nuser admin on >admin ~* &* +@all\n")
}

impl Process {
    /// A server with these settings.
    pub async fn start(port: u16, settings: &str, papers: Option<&Papers>) -> Self {
        let common = "save \"\"\nappendonly no\nmaxmemory-policy noeviction\nrepl-diskless-sync-delay 0\nrepl-ping-replica-period 1\n";
        Self::begin(port, &format!("{common}{settings}"), papers, false).await
    }

    /// A sentinel with these settings.
    pub async fn start_sentinel(port: u16, settings: &str, papers: Option<&Papers>) -> Self {
        Self::begin(port, settings, papers, true).await
    }

    async fn begin(port: u16, settings: &str, papers: Option<&Papers>, sentinel: bool) -> Self {
        let folder = tempfile::Builder::new().prefix("waitgate-redis").tempdir().expect("a folder");
        let dir = folder.path().display();
        let settings = format!(
            "bind 127.0.0.1\ndir {dir}\nlogfile {dir}/log\n{}{settings}",
            listening(port, papers)
        );
        std::fs::write(folder.path().join("redis.conf"), settings).expect("settings");
        let process = Self {
            port,
            child: spawn(folder.path(), sentinel),
            folder,
            roots: papers.map(|papers| papers.path("redis.pem").display().to_string()),
            sentinel,
        };
        process.answers().await;
        process
    }

    async fn answers(&self) {
        within("a server answers", async || self.cli(&["PING"]).await.contains("PONG")).await;
    }

    /// Starts it again, on the same port and with the same settings.
    pub async fn revive(&mut self) {
        self.child = spawn(self.folder.path(), self.sentinel);
        self.answers().await;
    }

    /// The same, telling what it answers meanwhile.
    pub async fn revive_with(&mut self, mut told: impl AsyncFnMut(String)) {
        self.child = spawn(self.folder.path(), self.sentinel);
        let deadline = Clock::instant() + Duration::from_secs(15);
        loop {
            assert!(Clock::instant() < deadline, "it answers in time");
            let said = self.cli(&["PING"]).await;
            if said.contains("PONG") {
                return;
            }
            told(said).await;
        }
    }

    /// `redis-cli` with what it needs to be let in, and these words.
    pub async fn cli(&self, words: &[&str]) -> String {
        let output = self.run(words).await;
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    }

    async fn run(&self, words: &[&str]) -> Output {
        let mut cli = Command::new("redis-cli");
        cli.args(["-p", &self.port.to_string(), "--no-auth-warning"]);
        let settings = std::fs::read_to_string(self.folder.path().join("redis.conf")).expect("settings");
        if settings.contains("user default off") {
            cli.args(["--user", "admin", "--pass", "admin"]);
        }
        if let Some(roots) = &self.roots {
            cli.args(["--tls", "--cacert", roots]);
        }
        cli.args(words).stdin(Stdio::null()).kill_on_drop(true);
        cli.output().await.expect("redis-cli is installed")
    }

    /// Kills it, and waits until it is gone.
    pub async fn kill(&mut self) {
        self.child.kill().await.expect("it was running");
    }

    /// Whether it runs: it has not been killed.
    pub fn lives(&self) -> bool {
        self.child.id().is_some()
    }

    /// Sends it a signal by its name.
    pub async fn signal(&self, name: &str) {
        let pid = self.child.id().expect("it runs").to_string();
        let sent = Command::new("kill").args(["-s", name, &pid]).status().await.expect("kill runs");
        assert!(sent.success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
            let lines: Vec<_> = log.lines().rev().take(25).collect();
            let last = lines.into_iter().rev().collect::<Vec<_>>().join("\n");
            eprintln!("the last words of {}:\n{last}", self.port);
        }
    }
}

fn spawn(folder: &Path, sentinel: bool) -> Child {
    let mut command = Command::new("redis-server");
    command.arg(folder.join("redis.conf"));
    if sentinel {
        command.arg("--sentinel");
    }
    command.stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    command.spawn().expect("redis-server is installed")
}
