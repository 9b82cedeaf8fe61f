//! A wait with a limit, for bodies and sockets: how long nothing has come, or nothing could be sent.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep, sleep_until};

/// One pause after the other. The timer is made at the first pause and used again.
#[derive(Debug, Default)]
pub struct Pause {
    since: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Pause {
    /// No pause yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Nothing came: ready when this pause has lasted for `limit`. The limit counts from the first call after [`Pause::end`].
    pub fn poll_over(&mut self, context: &mut Context<'_>, limit: Duration) -> Poll<()> {
        if self.since.is_none() {
            let now = Instant::now();
            self.since = Some(now);
            match (&mut self.timer, now.checked_add(limit)) {
                (Some(timer), Some(at)) => timer.as_mut().reset(at),
                (timer, Some(at)) => *timer = Some(Box::pin(sleep_until(at))),
                (timer, None) => *timer = Some(Box::pin(sleep(limit))),
            }
        }
        match &mut self.timer {
            Some(timer) => timer.as_mut().poll(context),
            None => Poll::Pending,
        }
    }

    /// Something came: the pause is over. Answers how long it lasted.
    pub fn end(&mut self) -> Duration {
        self.since.take().map_or(Duration::ZERO, |since| since.elapsed())
    }
}
