//! Calls in groups: whatever comes while one call is in flight goes together in the next.
//!
//! A spike of 200,000 joins costs a few hundred scripts, not 200,000. Order of arrival is kept, every caller gets its own answer, and the queue
//! in front of the store is bounded: beyond it callers are told at once that too much is waiting.

use tokio::sync::{mpsc, oneshot};

use crate::fault::StoreFault;

/// Asks waiting for the store at most.
const MAX_WAITING: usize = 65_536;

/// One ask, and where its answer goes.
pub type Ask<T, R> = (T, oneshot::Sender<Result<R, StoreFault>>);

/// Callers hold this end.
#[derive(Debug)]
pub struct Batcher<T, R> {
    asks: mpsc::Sender<Ask<T, R>>,
}

/// The task that makes the calls holds this end.
#[derive(Debug)]
pub struct Batches<T, R> {
    asks: mpsc::Receiver<Ask<T, R>>,
    max: usize,
}

/// Both ends; a batch has `max` asks at most.
#[must_use]
pub fn batches<T, R>(max: usize) -> (Batcher<T, R>, Batches<T, R>) {
    let (sender, receiver) = mpsc::channel(MAX_WAITING);
    (Batcher { asks: sender }, Batches { asks: receiver, max })
}

impl<T, R> Batcher<T, R> {
    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// Too much is waiting already, the store did not answer, or the gateway is stopping.
    pub async fn ask(&self, what: T) -> Result<R, StoreFault> {
        let (answer, waiting) = oneshot::channel();
        self.asks.try_send((what, answer)).map_err(|_| StoreFault::Full)?;
        waiting.await.unwrap_or(Err(StoreFault::Away))
    }
}

impl<T, R> Batches<T, R> {
    /// The next batch: waits for one ask, then takes whatever else is there. None when all callers are gone.
    pub async fn next(&mut self) -> Option<Vec<Ask<T, R>>> {
        let mut batch = Vec::new();
        let count = self.asks.recv_many(&mut batch, self.max).await;
        (count > 0).then_some(batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_waits_goes_together_and_in_order() {
        let (batcher, mut batches) = batches::<u32, u32>(3);
        let batcher = std::sync::Arc::new(batcher);
        let callers: Vec<_> = (0..5)
            .map(|number| {
                let batcher = std::sync::Arc::clone(&batcher);
                tokio::spawn(async move { batcher.ask(number).await.unwrap() })
            })
            .collect();
        let mut sizes = Vec::new();
        let mut order = Vec::new();
        while order.len() < 5 {
            let batch = batches.next().await.unwrap();
            sizes.push(batch.len());
            for (number, answer) in batch {
                order.push(number);
                answer.send(Ok(number * 10)).unwrap();
            }
        }
        assert_eq!(order, [0, 1, 2, 3, 4]);
        assert!(sizes.iter().all(|&size| size <= 3));
        for (number, caller) in callers.into_iter().enumerate() {
            assert_eq!(caller.await.unwrap(), u32::try_from(number).unwrap() * 10);
        }
    }

    #[tokio::test]
    async fn beyond_the_bound_callers_are_told_at_once() {
        let (batcher, _batches) = batches::<u32, u32>(1);
        for number in 0..MAX_WAITING {
            let (answer, _) = oneshot::channel();
            batcher.asks.try_send((u32::try_from(number).unwrap(), answer)).unwrap();
        }
        assert!(matches!(batcher.ask(1).await, Err(StoreFault::Full)));
    }
}
