//! Calls in groups: whatever comes while one call is in flight goes together in the next.
//!
//! A spike of 200,000 joins costs a few hundred scripts, not 200,000. Whoever came first is first in the next group, however late the ask is made;
//! every caller gets its own answer. What waits in front of the store is bounded, and so is how long it waits: when the store falls behind, those
//! who can come back are told so at once, until it has caught up.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};
use tokio::time::sleep;

use crate::clock::{Clock, UnixMs};
use crate::fault::StoreFault;

/// Asks waiting for the store at most.
const MAX_WAITING: usize = 65_536;
/// An ask that has waited for so long shows that the store has fallen behind.
const BEHIND: Duration = Duration::from_secs(1);
/// When none has waited for so long, it has caught up.
const CAUGHT_UP: Duration = Duration::from_millis(500);

/// A batch of so many is a crowd: those who come right after it go together, too, if they wait so long. A call for each few would cost the store
/// three times as much.
const CROWD: usize = 6;
const GATHER: Duration = Duration::from_millis(2);

/// What to do with an ask when the store is behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// It waits: whoever asks has nobody else to ask, or has waited already.
    Waits,
    /// It is told at once: whoever asks can come back and loses nothing by it.
    ComesBack,
}

/// One ask, and whoever waits for its answer.
pub type Ask<T, R> = (T, Caller<R>);

/// Somebody who waits for an answer.
#[derive(Debug)]
pub struct Caller<R> {
    since: Instant,
    answer: oneshot::Sender<Result<R, StoreFault>>,
    /// The thread that waits.
    home: Handle,
}

impl<R> Caller<R> {
    fn answer(self, answer: Result<R, StoreFault>) {
        let _gone = self.answer.send(answer); // whoever asked may be gone
    }

    /// For how long it has waited.
    #[must_use]
    pub fn waited(&self) -> Duration {
        Clock::instant().saturating_duration_since(self.since)
    }
}

/// Answers many, each on the thread that waits for it: one message for each thread, not one for each answer.
pub fn answer_all<R: Send + 'static>(answers: impl IntoIterator<Item = (Caller<R>, Result<R, StoreFault>)>) {
    let mut homes: Vec<(Handle, Vec<_>)> = Vec::new();
    for answer in answers {
        let home = &answer.0.home;
        match homes.iter_mut().find(|(known, _)| known.id() == home.id()) {
            Some((_, answers)) => answers.push(answer),
            None => homes.push((home.clone(), vec![answer])),
        }
    }
    for (home, answers) in homes {
        home.spawn(async move {
            for (caller, answer) in answers {
                caller.answer(answer);
            }
        });
    }
}

/// First by when somebody came, and then by when the ask was made.
type Turn = (UnixMs, u64);

#[derive(Debug)]
struct Waiting<T, R> {
    asks: BTreeMap<Turn, Ask<T, R>>,
    serial: u64,
    /// The call in flight began then.
    calling: Option<Instant>,
    ended: bool,
}

#[derive(Debug)]
struct Queue<T, R> {
    waiting: Mutex<Waiting<T, R>>,
    came: Notify,
    behind: AtomicBool,
}

impl<T, R> Queue<T, R> {
    fn waiting(&self) -> MutexGuard<'_, Waiting<T, R>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Callers hold this end.
#[derive(Debug)]
pub struct Batcher<T, R>(Arc<Queue<T, R>>);

/// The task that makes the calls holds this end. Dropped, nobody is kept waiting.
#[derive(Debug)]
pub struct Batches<T, R> {
    queue: Arc<Queue<T, R>>,
    max: usize,
    /// The last batch was of many, and the next will be.
    crowd: bool,
}

/// Both ends; a batch has `max` asks at most.
#[must_use]
pub fn batches<T, R>(max: usize) -> (Batcher<T, R>, Batches<T, R>) {
    let queue = Arc::new(Queue {
        waiting: Mutex::new(Waiting {
            asks: BTreeMap::new(),
            serial: 0,
            calling: None,
            ended: false,
        }),
        came: Notify::new(),
        behind: AtomicBool::new(false),
    });
    let batches = Batches {
        queue: Arc::clone(&queue),
        max,
        crowd: false,
    };
    (Batcher(queue), batches)
}

impl<T, R> Batcher<T, R> {
    /// Asks, and waits for the answer: for somebody who came then.
    ///
    /// # Errors
    /// Too much is waiting already, the store is behind and this one comes back, the store did not answer, or the gateway is stopping.
    pub async fn ask(&self, what: T, came_ms: UnixMs, patience: Patience) -> Result<R, StoreFault> {
        let (answer, answered) = oneshot::channel();
        {
            let mut waiting = self.0.waiting();
            if waiting.ended {
                return Err(StoreFault::Away);
            }
            let now = Clock::instant();
            let stuck = waiting.calling.is_some_and(|began| now.saturating_duration_since(began) > BEHIND);
            if stuck {
                self.0.behind.store(true, Relaxed);
            }
            let refused = patience == Patience::ComesBack && self.is_behind();
            if refused || waiting.asks.len() >= MAX_WAITING {
                return Err(StoreFault::Full);
            }
            let turn = (came_ms, waiting.serial);
            waiting.serial += 1;
            let home = Handle::current();
            let caller = Caller { since: now, answer, home };
            waiting.asks.insert(turn, (what, caller));
        }
        self.0.came.notify_one();
        answered.await.unwrap_or(Err(StoreFault::Away))
    }

    /// Whether those who can come back are told so.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.0.behind.load(Relaxed)
    }

    /// How many asks wait for the next call.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.0.waiting().asks.len()
    }
}

impl<T, R> Batches<T, R> {
    /// The next batch: waits for one ask, then takes whatever else is there, in order. After a crowd it waits a moment for the rest of the crowd.
    pub async fn next(&mut self) -> Vec<Ask<T, R>> {
        self.queue.waiting().calling = None;
        if std::mem::take(&mut self.crowd) {
            sleep(GATHER).await;
        }
        loop {
            let batch = self.take();
            if !batch.is_empty() {
                self.crowd = (CROWD..self.max).contains(&batch.len());
                return batch;
            }
            self.queue.came.notified().await;
        }
    }

    fn take(&self) -> Vec<Ask<T, R>> {
        let mut waiting = self.queue.waiting();
        let mut batch = Vec::with_capacity(waiting.asks.len().min(self.max));
        let mut longest = Duration::ZERO;
        while batch.len() < self.max {
            let Some((_, (what, caller))) = waiting.asks.pop_first() else {
                break;
            };
            // Whoever is gone, or has been told that it takes too long, will ask again.
            if !caller.answer.is_closed() {
                longest = longest.max(caller.waited());
                batch.push((what, caller));
            }
        }
        waiting.calling = (!batch.is_empty()).then(Clock::instant);
        drop(waiting);
        if longest > BEHIND {
            self.queue.behind.store(true, Relaxed);
        } else if longest < CAUGHT_UP {
            self.queue.behind.store(false, Relaxed);
        }
        batch
    }
}

impl<T, R> Drop for Batches<T, R> {
    fn drop(&mut self) {
        let mut waiting = self.queue.waiting();
        waiting.ended = true;
        waiting.asks.clear();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use proptest::prelude::*;
    use tokio::time::timeout;

    use super::*;

    proptest! {
        /// Whoever came first goes first, groups are as large as they may be, and everybody gets its own answer; whoever is gone is left out.
        #[test]
        fn groups_are_full_in_order_and_answered_one_by_one(
            came in prop::collection::vec((0..20_u64, prop::bool::weighted(0.2)), 1..200),
            max in 1..50_usize,
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
            let _inside = runtime.enter();
            let (batcher, mut batches) = batches::<usize, usize>(max);
            let mut callers = Vec::new();
            for (number, (came_ms, leaves)) in came.iter().enumerate() {
                let mut asking = Box::pin(batcher.ask(number, *came_ms, Patience::ComesBack));
                prop_assert!((&mut asking).now_or_never().is_none());
                callers.push((!leaves).then_some(asking));
            }
            let mut expected: Vec<usize> = (0..came.len()).filter(|&number| !came[number].1).collect();
            expected.sort_by_key(|&number| came[number].0); // a stable sort: of one moment, as they asked
            let mut order = Vec::new();
            while let Ok(batch) = runtime.block_on(async { timeout(GATHER * 2, batches.next()).await }) {
                prop_assert!(batch.len() == max || order.len() + batch.len() == expected.len());
                for (what, caller) in batch {
                    order.push(what);
                    caller.answer(Ok(what * 10));
                }
            }
            prop_assert_eq!(order, expected);
            for (number, caller) in callers.into_iter().enumerate() {
                if let Some(caller) = caller {
                    prop_assert_eq!(caller.now_or_never().unwrap().unwrap(), number * 10);
                }
            }
        }
    }

    #[tokio::test]
    async fn beyond_the_bound_callers_are_told_at_once() {
        let (batcher, mut batches) = batches::<usize, usize>(1);
        let mut callers: Vec<_> = (0..MAX_WAITING)
            .map(|number| Box::pin(batcher.ask(number, 0, Patience::Waits)))
            .collect();
        for caller in &mut callers {
            assert!(caller.now_or_never().is_none());
        }
        assert!(matches!(batcher.ask(1, 0, Patience::Waits).await, Err(StoreFault::Full)));
        let _first = batches.next().await;
        let mut again = Box::pin(batcher.ask(1, 0, Patience::Waits));
        assert!((&mut again).now_or_never().is_none(), "there is room again");
        drop(batches);
        assert!(
            matches!(again.await, Err(StoreFault::Away)),
            "nobody is kept waiting when it is over"
        );
        assert!(matches!(batcher.ask(1, 0, Patience::Waits).await, Err(StoreFault::Away)));
    }

    #[tokio::test]
    async fn while_the_store_is_behind_whoever_can_comes_back() {
        let (batcher, mut batches) = batches::<usize, usize>(2);
        let mut asking = Box::pin(batcher.ask(1, 0, Patience::ComesBack));
        assert!((&mut asking).now_or_never().is_none());
        let stuck = batches.next().await;
        let long_ago = Clock::instant().checked_sub(BEHIND * 2).unwrap();
        batches.queue.waiting().calling = Some(long_ago);
        assert!(matches!(batcher.ask(2, 0, Patience::ComesBack).await, Err(StoreFault::Full)));
        let mut patient = Box::pin(batcher.ask(3, 0, Patience::Waits));
        assert!((&mut patient).now_or_never().is_none());
        assert!(batcher.is_behind());
        for (_, caller) in stuck {
            caller.answer(Ok(0));
        }
        // It is over only when nothing waits for long any more.
        for (_, caller) in batches.queue.waiting().asks.values_mut() {
            caller.since = Clock::instant().checked_sub(CAUGHT_UP + Duration::from_millis(100)).unwrap();
        }
        let late = batches.next().await;
        assert_eq!(late.len(), 1);
        assert!(matches!(batcher.ask(4, 0, Patience::ComesBack).await, Err(StoreFault::Full)));
        let mut next = Box::pin(batcher.ask(5, 0, Patience::Waits));
        assert!((&mut next).now_or_never().is_none());
        assert_eq!(batches.next().await.len(), 1);
        let mut well = Box::pin(batcher.ask(6, 0, Patience::ComesBack));
        assert!((&mut well).now_or_never().is_none() && !batcher.is_behind());
    }
}
