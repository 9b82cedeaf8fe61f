//! The private store: a `redis-server` (or `valkey-server`) that waitgate starts, watches and stops.
//!
//! It lives in `data_dir/redis`, speaks on a unix socket in a folder only its owner may enter, and writes an append-only file, so that a
//! restart finds the line as it was. One waitgate works in a `data_dir` at a time; a lock says so. The server is in a process group of its own:
//! Ctrl-C in a terminal is for waitgate, which stops it when everybody else is done. Should waitgate be killed outright, the server goes on
//! alone; the next start finds it by its socket, has it write everything down and end, and begins anew. It is never killed while it could
//! still be asked to stop.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::clock::Clock;
use crate::config;

mod line;
mod place;

use line::{Line, State};
use place::Place;

/// Why the private store does not run.
#[derive(Debug, thiserror::Error)]
pub enum EmbeddedFault {
    /// No program to run.
    #[error(
        "{asked} is not installed, and waitgate keeps its lines in it: `apt-get install redis-server` (Debian, Ubuntu), `dnf install redis` or \
         `dnf install valkey` (Fedora), `brew install redis` (macOS); or set store.url to a Redis of yours"
    )]
    Missing {
        /// The programs that were looked for.
        asked: String,
    },
    /// A program that cannot do what is needed.
    #[error("{program} is version {version}, but 7.0 or later is needed; or set store.url to a Redis of yours")]
    TooOld {
        /// The program.
        program: String,
        /// What it says it is.
        version: String,
    },
    /// Another waitgate works there.
    #[error("another waitgate works in {folder} already: stop that one, or give this one a store.data_dir of its own")]
    InUse {
        /// The `data_dir`.
        folder: String,
    },
    /// A server that an earlier waitgate left behind does not listen to reason.
    #[error("a server that an earlier waitgate left behind still works on {socket} and does not stop: stop it by hand")]
    Stubborn {
        /// Its socket.
        socket: String,
    },
    /// A path that cannot be used.
    #[error("{what} {path}: {source}")]
    Folder {
        /// What could not be done with it.
        what: &'static str,
        /// The path.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// The program cannot be run.
    #[error("{program} cannot be run: {source}")]
    Run {
        /// The program.
        program: String,
        /// Why.
        source: io::Error,
    },
    /// It ended before it answered.
    #[error("the private store ended at once; its last words:\n{last_words}")]
    Ended {
        /// The last lines of its log.
        last_words: String,
    },
    /// It runs, but does not answer.
    #[error("the private store does not answer within {}s; its last words:\n{last_words}", PATIENCE.as_secs())]
    Silent {
        /// The last lines of its log.
        last_words: String,
    },
}

/// How long a server may take to answer at all, to stop when asked, and to stop when told.
const PATIENCE: Duration = Duration::from_secs(15);
/// How long a server that died is left before it is started again, at first and at most; it doubles each time.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// A server that lived this long begins at the first back-off again.
const HEALTHY: Duration = Duration::from_secs(60);
/// How many lines of its log are kept to be told when it dies.
const LAST_LINES: usize = 12;

/// A running private store. Dropping it kills the server; [`Embedded::stop`] lets it end in peace.
#[derive(Debug)]
pub struct Embedded {
    url: String,
    stop: CancellationToken,
    supervisor: JoinHandle<()>,
    pid: watch::Receiver<Option<u32>>,
}

impl Embedded {
    /// Starts the server and waits until it answers, however long it reads its file. Needs a tokio runtime.
    ///
    /// # Errors
    /// There is no program, another waitgate works there, or the server does not run; in a sentence that says what to do.
    pub async fn start(settings: &config::Store) -> Result<Self, EmbeddedFault> {
        let place = Place::take(&settings.data_dir)?;
        let program = find(settings).await?;
        end_orphan(&place).await?;
        place.write_config(settings.max_memory)?;
        let server = Server::start(program, place).await?;
        let url = server.place.url();
        let stop = CancellationToken::new();
        let (pid, pids) = watch::channel(server.child.id());
        let supervisor = tokio::spawn(supervise(server, stop.clone(), pid));
        Ok(Self {
            url,
            stop,
            supervisor,
            pid: pids,
        })
    }

    /// Where it is reached: `redis+unix:///…`. The same for as long as it runs, through restarts.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The server's process; none while it is down.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        *self.pid.borrow()
    }

    /// The same, to be waited on: it changes each time the server dies and comes back.
    #[must_use]
    pub fn pids(&self) -> watch::Receiver<Option<u32>> {
        self.pid.clone()
    }

    /// Has the server write everything down and end. Whoever uses the store should be done by now.
    pub async fn stop(mut self) {
        self.stop.cancel();
        // The supervisor has time limits of its own.
        if let Err(error) = (&mut self.supervisor).await {
            tracing::error!(%error, "the private store's supervisor broke");
        }
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        // Ends the task at its next await, which drops the child, which kills the server. What it had answered is in its file already.
        self.supervisor.abort();
    }
}

/// The program to run: as configured, or the first that is there.
async fn find(settings: &config::Store) -> Result<PathBuf, EmbeddedFault> {
    let programs = match &settings.program {
        Some(program) => vec![program.clone()],
        None => vec![PathBuf::from("redis-server"), PathBuf::from("valkey-server")],
    };
    for program in &programs {
        let shown = program.display().to_string();
        match Command::new(program).arg("--version").stdin(Stdio::null()).output().await {
            Ok(output) => {
                let version = version(&String::from_utf8_lossy(&output.stdout));
                let major: Option<u32> = version.split('.').next().and_then(|major| major.parse().ok());
                if major.is_none_or(|major| major < 7) {
                    return Err(EmbeddedFault::TooOld { program: shown, version });
                }
                return Ok(program.clone());
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(EmbeddedFault::Run { program: shown, source }),
        }
    }
    let asked: Vec<_> = programs.iter().map(|program| program.display().to_string()).collect();
    Err(EmbeddedFault::Missing { asked: asked.join(" or ") })
}

/// From `Redis server v=7.0.15 sha=…`.
fn version(said: &str) -> String {
    let word = said.split_whitespace().find_map(|word| word.strip_prefix("v="));
    word.unwrap_or("unknown").to_owned()
}

/// Ends the server that a killed waitgate left behind.
async fn end_orphan(place: &Place) -> Result<(), EmbeddedFault> {
    let Some(mut line) = Line::open(place.socket()).await else {
        return Ok(()); // nobody there
    };
    tracing::warn!(socket = %place.socket().display(), "an earlier waitgate left its store running; it is stopped and started again");
    if line.shut_down(PATIENCE).await {
        return Ok(());
    }
    let socket = place.socket().display().to_string();
    Err(EmbeddedFault::Stubborn { socket })
}

/// What a server says: all of it goes to our log, its last lines are kept.
#[derive(Debug, Default)]
struct Words {
    last: Arc<Mutex<VecDeque<String>>>,
    followers: TaskTracker,
}

impl Words {
    fn follow(&self, output: impl AsyncRead + Send + Unpin + 'static) {
        let last = Arc::clone(&self.last);
        self.followers.spawn(async move {
            let mut lines = BufReader::new(output).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                if line.contains(" # ") {
                    tracing::info!("redis: {line}");
                } else {
                    tracing::debug!("redis: {line}");
                }
                let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
                if last.len() == LAST_LINES {
                    last.pop_front();
                }
                last.push_back(line);
            }
        });
    }

    /// The last lines of a server that has ended.
    async fn last(&self) -> String {
        self.followers.close();
        // A child of its own may hold its output open.
        let _ = timeout(Duration::from_secs(1), self.followers.wait()).await;
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let lines: Vec<_> = last.iter().map(|line| format!("  {line}")).collect();
        lines.join("\n")
    }
}

/// One run of the server.
struct Server {
    program: PathBuf,
    place: Place,
    child: Child,
    words: Words,
}

impl Server {
    async fn start(program: PathBuf, place: Place) -> Result<Self, EmbeddedFault> {
        let (child, words) = run(&program, &place)?;
        let mut server = Self {
            program,
            place,
            child,
            words,
        };
        server.wait_until_ready().await?;
        Ok(server)
    }

    async fn restart(&mut self) -> Result<(), EmbeddedFault> {
        (self.child, self.words) = run(&self.program, &self.place)?;
        self.wait_until_ready().await
    }

    /// Waits for an answer; reading a long file takes as long as it takes.
    async fn wait_until_ready(&mut self) -> Result<(), EmbeddedFault> {
        let begun = Clock::instant();
        let mut reading = false;
        let mut told = begun;
        loop {
            if let Ok(Some(_)) = self.child.try_wait() {
                let last_words = self.words.last().await;
                return Err(EmbeddedFault::Ended { last_words });
            }
            let state = match Line::open(self.place.socket()).await {
                Some(mut line) => line.state().await,
                None => State::Silent,
            };
            match state {
                State::Ready => break,
                State::Loading { percent } => {
                    reading = true;
                    if told.elapsed() > Duration::from_secs(1) {
                        told = Clock::instant();
                        tracing::info!(percent, "the private store is reading its file");
                    }
                }
                State::Silent if !reading && begun.elapsed() > PATIENCE => {
                    let last_words = self.words.last().await;
                    return Err(EmbeddedFault::Silent { last_words });
                }
                State::Silent => {}
            }
            sleep(Duration::from_millis(if reading { 100 } else { 10 })).await;
        }
        let program = self.program.display();
        tracing::info!(pid = self.child.id(), folder = %self.place.folder().display(), %program, "the private store runs");
        Ok(())
    }

    /// Asks, then tells, then kills.
    async fn stop(&mut self) {
        if let Some(mut line) = Line::open(self.place.socket()).await {
            line.shut_down(PATIENCE).await;
        }
        if timeout(Duration::from_secs(2), self.child.wait()).await.is_ok() {
            tracing::info!("the private store has stopped");
            return;
        }
        if let Some(pid) = self.child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw) {
            tracing::warn!(?pid, "the private store did not stop when asked");
            let _ = kill_process(pid, Signal::TERM); // it may have ended just now
        }
        if timeout(PATIENCE, self.child.wait()).await.is_err() {
            tracing::error!("the private store is killed: it did not stop");
            let _ = self.child.kill().await; // it may have ended just now
        }
    }
}

fn run(program: &PathBuf, place: &Place) -> Result<(Child, Words), EmbeddedFault> {
    let mut child = Command::new(program)
        .arg(place.config_file())
        .current_dir(place.folder())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(|source| EmbeddedFault::Run {
            program: program.display().to_string(),
            source,
        })?;
    let words = Words::default();
    if let Some(output) = child.stdout.take() {
        words.follow(output);
    }
    if let Some(output) = child.stderr.take() {
        words.follow(output);
    }
    Ok((child, words))
}

/// Keeps the server running until `stop`, then stops it.
async fn supervise(mut server: Server, stop: CancellationToken, pid: watch::Sender<Option<u32>>) {
    let mut back_off = BACK_OFF.0;
    loop {
        let begun = Clock::instant();
        tokio::select! {
            () = stop.cancelled() => return server.stop().await,
            ended = server.child.wait() => {
                pid.send_replace(None);
                let status = ended.map_or_else(|error| error.to_string(), |status| status.to_string());
                let last_words = server.words.last().await;
                tracing::error!(status, "the private store died; it is started again. Its last words:\n{last_words}");
            }
        }
        if begun.elapsed() > HEALTHY {
            back_off = BACK_OFF.0;
        }
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep(back_off) => {}
            }
            back_off = (back_off * 2).min(BACK_OFF.1);
            tokio::select! {
                () = stop.cancelled() => return server.stop().await,
                restarted = server.restart() => match restarted {
                    Ok(()) => break,
                    Err(error) => tracing::error!(%error, "the private store does not come back; it is tried again"),
                }
            }
        }
        pid.send_replace(server.child.id());
    }
}
