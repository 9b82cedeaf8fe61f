//! Connections of one backend that rest between two requests.
//!
//! Each worker thread has a shard of its own, so that taking a connection and giving it back meets nobody else's lock; the newest is taken
//! first, so that the others grow old and are closed. A thread whose shard is empty opens a connection, unless the backend has as many as it
//! may: then it takes one from another shard. Nothing runs on a resting connection: whether it has been closed is asked when it is taken.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::lane::Lane;

/// Shards at most.
const MAX_SHARDS: usize = 64;

/// Threads that have forwarded something so far.
static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// This thread's number, which says nothing but which shard it uses.
    static THREAD: usize = THREADS.fetch_add(1, Relaxed);
}

type Shard = Vec<Box<Lane>>;

/// Something for each worker thread.
pub(super) struct Sharded<T>(Box<[T]>);

impl<T: Default> Sharded<T> {
    pub(super) fn new() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self((0..threads.min(MAX_SHARDS)).map(|_| T::default()).collect())
    }

    /// This thread's.
    pub(super) fn own(&self) -> &T {
        let thread = THREAD.with(|thread| *thread);
        &self.0[thread % self.0.len()]
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &T> {
        self.0.iter()
    }
}

/// What rests, by thread.
pub(super) struct Pool {
    shards: Sharded<Mutex<Shard>>,
    counts: Arc<Counts>,
}

/// Connections of a backend.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Open now, in use or not.
    open: AtomicUsize,
    /// Opened so far.
    opened: AtomicU64,
}

/// An open connection, or one about to be, counted until this is dropped.
#[derive(Debug)]
pub(super) struct Open(Arc<Counts>);

impl Open {
    /// A connection that is no request's: it counts for nobody.
    pub(super) fn beside() -> Self {
        let counts = Counts::default();
        counts.open.store(1, Relaxed);
        Self(Arc::new(counts))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Relaxed);
    }
}

impl Pool {
    pub(super) fn new() -> Self {
        Self {
            shards: Sharded::new(),
            counts: Arc::default(),
        }
    }

    /// The connection of this thread that was used last and is still good. `closely` is for requests that cannot be repeated.
    pub(super) fn take(&self, keep_alive: Duration, closely: bool) -> Option<Box<Lane>> {
        let oldest = Instant::now().checked_sub(keep_alive);
        loop {
            let mut lane = self.own().pop()?;
            if oldest.is_none_or(|oldest| oldest < lane.rested_at()) && lane.is_alive(closely) {
                return Some(lane);
            }
        }
    }

    /// Leave to open a connection; or, when there are `most` already, one that rests in another thread's shard. With neither, the connections
    /// are all in use by answers that nobody waits for any more, and one more is opened.
    pub(super) fn open(&self, most: usize, closely: bool) -> Result<Open, Box<Lane>> {
        let before = self.counts.open.fetch_add(1, Relaxed);
        let open = Open(Arc::clone(&self.counts));
        if before >= most {
            for shard in self.shards.all() {
                while let Some(mut lane) = lock(shard).pop() {
                    if lane.is_alive(closely) {
                        return Err(lane);
                    }
                }
            }
        }
        Ok(open)
    }

    /// Connections open now, and opened so far.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.counts.open.load(Relaxed) as u64, self.counts.opened.load(Relaxed))
    }

    /// A connection has been opened.
    pub(super) fn note_opened(&self) {
        self.counts.opened.fetch_add(1, Relaxed);
    }

    /// Keeps a connection for the next request, if it can take one.
    pub(super) fn put(&self, mut lane: Box<Lane>, keep_alive: Duration) {
        if lane.is_ready() && !keep_alive.is_zero() {
            lane.rest(Instant::now());
            self.own().push(lane);
        }
    }

    /// Closes what has rested for too long, or has been closed by the other end.
    pub(super) fn sweep(&self, keep_alive: Duration) {
        let oldest = Instant::now().checked_sub(keep_alive);
        for shard in self.shards.all() {
            // The others go on in between: what is looked at here is looked at without the lock.
            let resting = std::mem::take(&mut *lock(shard));
            let mut good: Shard = resting
                .into_iter()
                .filter_map(|mut lane| (oldest.is_none_or(|oldest| oldest < lane.rested_at()) && lane.is_alive(false)).then_some(lane))
                .collect();
            let mut shard = lock(shard);
            good.append(&mut shard);
            *shard = good;
        }
    }

    fn own(&self) -> MutexGuard<'_, Shard> {
        lock(self.shards.own())
    }
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}
