//! How everything ends: first softly, then at once.
//!
//! One [`Stop`] is shared by the listeners and by whatever outlives a connection. Cancelling `draining` asks everybody to finish; cancelling
//! `cut` drops what is left, and begins the draining where it has not begun: whoever looks at `draining` misses neither. The listener cancels
//! `cut` itself when its drain limit has passed.

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The end, in two steps. Cheap to clone; every clone is the same end.
#[derive(Clone, Debug)]
pub struct Stop {
    /// Cancelled when the gateway begins to stop: nothing new is accepted, streams say goodbye, requests in flight are answered.
    pub draining: CancellationToken,
    /// Cancelled when patience ends (the drain limit, or a second signal): whatever still runs is dropped.
    pub cut: CancellationToken,
    /// Everything that outlives a connection: upgraded sockets, tunnels, streams.
    pub tasks: TaskTracker,
}

impl Stop {
    /// An end that has not begun.
    #[must_use]
    pub fn new() -> Self {
        let cut = CancellationToken::new();
        Self {
            draining: cut.child_token(),
            cut,
            tasks: TaskTracker::new(),
        }
    }
}

impl Default for Stop {
    fn default() -> Self {
        Self::new()
    }
}
