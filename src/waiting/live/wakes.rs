//! Waking many streams, each by the thread that carries it.
//!
//! A stream that is woken from another thread costs a lock of that thread's queue, and often a call of the kernel. So streams are told first and woken
//! after, all of one thread by one task that runs there: a few at a time, so that a new request waits for those few and not for all.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::task::{JoinHandle, yield_now};

use crate::waiting::seat::Seat;

/// Streams that a thread wakes before it looks at anything else.
const A_FEW: usize = 64;
/// Bites that threads are given before they have carried the first: one to carry, and one to go on with.
const IN_HAND: usize = 2;

/// Streams that have something to say, by the thread that carries them.
#[derive(Debug, Default)]
pub(super) struct Wakes {
    homes: Vec<(Handle, Vec<Arc<Seat>>)>,
    under_way: VecDeque<Vec<JoinHandle<()>>>,
}

impl Wakes {
    /// This one has something to say.
    pub(super) fn add(&mut self, seat: Arc<Seat>) {
        let home = seat.home();
        match self.homes.iter_mut().find(|(known, _)| known.id() == home.id()) {
            Some((_, seats)) => seats.push(seat),
            None => self.homes.push((home.clone(), vec![seat])),
        }
    }

    /// Begins to wake them, once those of the bite before the last have been woken: no thread ever has more before it.
    pub(super) async fn go(&mut self) {
        if self.homes.is_empty() {
            return;
        }
        self.until_left(IN_HAND - 1).await;
        let homes = self.homes.drain(..);
        self.under_way
            .push_back(homes.map(|(home, seats)| home.spawn(wake(seats))).collect());
    }

    /// Waits until all have been woken.
    pub(super) async fn settled(&mut self) {
        self.until_left(0).await;
    }

    async fn until_left(&mut self, bites: usize) {
        while self.under_way.len() > bites {
            for woken in self.under_way.pop_front().into_iter().flatten() {
                // A thread that ends takes its streams along.
                let _ended = woken.await;
            }
        }
    }
}

async fn wake(seats: Vec<Arc<Seat>>) {
    for few in seats.chunks(A_FEW) {
        few.iter().for_each(|seat| seat.wake());
        yield_now().await;
    }
}
