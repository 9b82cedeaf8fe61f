//! The access log: one line of JSON for each request, written when its answer has ended or its client has gone.
//!
//! A request fills a [`Note`] on its way; when the last holder lets go of it, the note goes through a bounded channel to one thread, which alone
//! writes. A request never waits for the log: what does not fit is dropped and counted. Without the log there are no notes, and it costs nothing.
//!
//! Never written: cookies, authorizations, tokens, and the query unless the settings say so. Every text is cut at a length.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::time::Duration;

use crate::config::{self, AccessTarget};
use crate::telemetry::Metrics;

mod note;
pub mod trace;

pub use note::{Begun, Code, Note};

/// Notes that may wait for the thread.
const MAX_WAITING: usize = 16 * 1024;
/// How long a stop waits for what is not yet written.
const LAST_LINES: Duration = Duration::from_secs(2);

/// Where notes go.
#[derive(Debug)]
pub struct AccessLog {
    target: AccessTarget,
    query: bool,
    orders: SyncSender<Order>,
    metrics: Arc<Metrics>,
}

/// What the thread is told.
enum Order {
    Write(Box<note::Line>),
    Reopen,
    Finish(SyncSender<()>),
}

impl AccessLog {
    /// Opens the log; none where the settings want none.
    ///
    /// # Errors
    /// The file cannot be opened, or the thread cannot be had.
    pub fn open(settings: &config::Log, metrics: Arc<Metrics>) -> io::Result<Option<Arc<Self>>> {
        if settings.access == AccessTarget::Off {
            return Ok(None);
        }
        let target = settings.access.clone();
        let to = Target::open(&target)?;
        let (orders, ordered) = sync_channel(MAX_WAITING);
        let scribe = std::thread::Builder::new().name("waitgate-access".to_owned());
        let mut writer = Writer { to, target };
        let _detached = scribe.spawn(move || writer.run(&ordered))?; // ends when nobody can order anything any more
        Ok(Some(Arc::new(Self {
            target: settings.access.clone(),
            query: settings.query,
            orders,
            metrics,
        })))
    }

    /// Whether these settings want this very log.
    #[must_use]
    pub fn is(&self, settings: &config::Log) -> bool {
        self.target == settings.access && self.query == settings.query
    }

    /// Whether queries are written.
    #[must_use]
    pub fn keeps_query(&self) -> bool {
        self.query
    }

    /// Lets go of the file and opens it again by its name: whoever rotates logs has moved it.
    pub fn reopen(&self) {
        let _full = self.orders.try_send(Order::Reopen); // with so much to write, the next one will do
    }

    /// Waits until everything is written that was noted before, or for two seconds.
    pub fn finish(&self) {
        let (done, finished) = sync_channel(1);
        if self.orders.try_send(Order::Finish(done)).is_ok() {
            let _too_slow = finished.recv_timeout(LAST_LINES);
        }
    }

    fn write(&self, line: note::Line) {
        match self.orders.try_send(Order::Write(Box::new(line))) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => self.metrics.access_line_dropped(),
        }
    }
}

/// What is written to.
enum Target {
    Stdout(io::Stdout),
    File(BufWriter<File>),
}

impl Target {
    fn open(target: &AccessTarget) -> io::Result<Self> {
        match target {
            AccessTarget::File(file) => Ok(Self::File(BufWriter::with_capacity(64 * 1024, append(file)?))),
            AccessTarget::Stdout | AccessTarget::Off => Ok(Self::Stdout(io::stdout())),
        }
    }

    fn as_write(&mut self) -> &mut dyn Write {
        match self {
            Self::Stdout(to) => to,
            Self::File(to) => to,
        }
    }
}

fn append(file: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    OpenOptions::new().append(true).create(true).mode(0o640).open(file)
}

/// The thread that alone writes.
struct Writer {
    to: Target,
    target: AccessTarget,
}

impl Writer {
    fn run(&mut self, ordered: &Receiver<Order>) {
        let mut line = Vec::with_capacity(1024);
        loop {
            let order = match ordered.try_recv() {
                Ok(order) => order,
                Err(TryRecvError::Disconnected) => break,
                Err(TryRecvError::Empty) => {
                    self.flush();
                    match ordered.recv() {
                        Ok(order) => order,
                        Err(_) => break,
                    }
                }
            };
            match order {
                Order::Write(note) => {
                    line.clear();
                    if serde_json::to_writer(&mut line, &*note).is_ok() {
                        line.push(b'\n');
                        self.put(&line);
                    }
                }
                Order::Reopen => self.reopen(),
                Order::Finish(done) => {
                    self.flush();
                    let _gone = done.send(());
                }
            }
        }
        self.flush();
    }

    fn put(&mut self, line: &[u8]) {
        if let Err(error) = self.to.as_write().write_all(line) {
            tracing::debug!(%error, "a line of the access log could not be written");
        }
    }

    fn flush(&mut self) {
        if let Err(error) = self.to.as_write().flush() {
            tracing::debug!(%error, "the access log could not be written");
        }
    }

    fn reopen(&mut self) {
        self.flush();
        match Target::open(&self.target) {
            Ok(to) => self.to = to,
            Err(error) => tracing::error!(%error, "the access log cannot be opened again; the file that is open stays open"),
        }
    }
}
