//! What a connection is doing, and until when it may go on doing it.
//!
//! hyper has no time limit before the version is known, none for an idle HTTP/2 connection, and one for both head and idleness in HTTP/1: so the
//! limits are kept here, outside of it. [`Busy`] must live as long as the answer's *body*: a stream of events is not an idle connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use tokio::time::Instant;

use super::frames::Ledger;
use crate::clock::millis;

/// Shared by a connection's socket, its requests and the loop that watches over it.
#[derive(Debug)]
pub(super) struct Activity {
    born: Instant,
    http1: AtomicBool,
    /// Requests being answered.
    busy: AtomicUsize,
    /// When the connection last did something useful, ms since `born`; before its first request: 0.
    last_ms: AtomicU64,
    /// When the first byte of a head came that is not yet complete, ms since `born`, plus one; 0: there is none.
    head_ms: AtomicU64,
    served: AtomicBool,
    /// A request was answered before its body had been read.
    unread: AtomicBool,
    upgraded: AtomicBool,
    /// In HTTP/2: frames that ask for nothing, and what they are paid with.
    pub(super) ledger: Ledger,
}

/// A request being answered.
#[derive(Debug)]
pub(super) struct Busy(Arc<Activity>);

/// Limits on a connection that is not answering a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// For a head, from its first byte (the first head: from the connection).
    pub(super) head: Duration,
    /// Between requests.
    pub(super) idle: Duration,
}

impl Activity {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            born: Instant::now(),
            http1: AtomicBool::new(false),
            busy: AtomicUsize::new(0),
            last_ms: AtomicU64::new(0),
            head_ms: AtomicU64::new(1),
            served: AtomicBool::new(false),
            unread: AtomicBool::new(false),
            upgraded: AtomicBool::new(false),
            ledger: Ledger::default(),
        })
    }

    fn now_ms(&self) -> u64 {
        millis(self.born.elapsed())
    }

    pub(super) fn is_http1(&self) {
        self.http1.store(true, Relaxed);
    }

    /// A request begins.
    pub(super) fn begin(self: &Arc<Self>) -> Busy {
        self.busy.fetch_add(1, Relaxed);
        self.head_ms.store(0, Relaxed);
        self.served.store(true, Relaxed);
        Busy(Arc::clone(self))
    }

    /// Bytes came. In HTTP/1 the first ones between two requests begin a head; in HTTP/2 they may be anything, and prove nothing.
    pub(super) fn read(&self) {
        if self.http1.load(Relaxed) && self.busy.load(Relaxed) == 0 {
            let _ = self.head_ms.compare_exchange(0, self.now_ms() + 1, Relaxed, Relaxed);
        }
    }

    /// Bytes were taken by the client. In HTTP/1 that is an answer making its way; in HTTP/2 it may be the echo of a ping.
    pub(super) fn wrote(&self) {
        if self.http1.load(Relaxed) {
            self.last_ms.store(self.now_ms(), Relaxed);
        }
    }

    /// A request was answered before its body had been read: more of it may come.
    pub(super) fn leaves_unread(&self) {
        self.unread.store(true, Relaxed);
    }

    /// The client may be in the middle of saying something.
    pub(super) fn may_go_on(&self) -> bool {
        !self.served.load(Relaxed) || self.unread.load(Relaxed) || self.head_ms.load(Relaxed) > 0
    }

    /// The socket has become a tunnel, and is no longer ours to watch.
    pub(super) fn upgrade(&self) {
        self.upgraded.store(true, Relaxed);
    }

    pub(super) fn is_upgraded(&self) -> bool {
        self.upgraded.load(Relaxed)
    }

    /// Whether the client has sent far more frames than it had any use for.
    pub(super) fn is_in_debt(&self) -> bool {
        self.ledger.is_in_debt(|| self.born.elapsed())
    }

    pub(super) fn is_busy(&self) -> bool {
        self.busy.load(Relaxed) > 0
    }

    /// How long nothing has been answered.
    pub(super) fn idle_for(&self) -> Duration {
        if self.is_busy() {
            return Duration::ZERO;
        }
        Duration::from_millis(self.now_ms().saturating_sub(self.last_ms.load(Relaxed)))
    }

    /// When the connection's patience ends; while it is answering: never (`None`).
    pub(super) fn deadline(&self, patience: Patience) -> Option<Instant> {
        if self.is_busy() {
            return None;
        }
        let after = |ms: u64, limit: Duration| self.born + Duration::from_millis(ms) + limit;
        let head_ms = self.head_ms.load(Relaxed);
        if !self.served.load(Relaxed) {
            return Some(after(0, patience.head));
        }
        let idle = after(self.last_ms.load(Relaxed), patience.idle);
        Some(if head_ms > 0 { after(head_ms - 1, patience.head) } else { idle })
    }
}

impl Busy {
    /// A piece of the answer is on its way.
    pub(super) fn answered(&self, length: usize) {
        self.0.ledger.answered(length);
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.last_ms.store(self.0.now_ms(), Relaxed);
        self.0.busy.fetch_sub(1, Relaxed);
    }
}
