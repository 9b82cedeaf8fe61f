//! Whether replicas have what was written, for claims and sales that must outlive their primary.
//!
//! `WAIT` holds its connection up, so it has one of its own, made when it is first needed. It counts what its own connection wrote, so a mark is
//! written before it: replicas that have the mark have everything older. Callers who come while one is under way share the next, so that a replica
//! that is slow, or gone, costs nobody more than two time limits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use redis::RedisError;
use tokio::sync::Mutex;

use super::dial::Link;
use super::keys::Key;
use super::routes::Node;
use super::{Inner, RoomStore};
use crate::clock::millis;
use crate::fault::StoreFault;

/// The primary of a room, as it was at some moment.
#[derive(Clone)]
pub struct Primary(Arc<Node>);

impl std::fmt::Debug for Primary {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(to, "Primary({})", self.0.host)
    }
}

/// Those of a room who wait for copies.
#[derive(Default)]
pub(super) struct Copies {
    /// How many counts have begun.
    begun: AtomicU64,
    line: Mutex<Line>,
}

/// The connection, and what was counted last.
#[derive(Default)]
struct Line {
    link: Option<(Arc<Node>, Link)>,
    /// The number of the count.
    number: u64,
    /// Of which primary.
    at: Option<Arc<Node>>,
    replicas: u64,
}

impl RoomStore {
    /// The room's primary now; to be asked for before something is written of which copies are wanted.
    ///
    /// # Errors
    /// [`StoreFault::Away`].
    pub fn primary(&self) -> Result<Primary, StoreFault> {
        self.store.inner.primary(self.slot).map(Primary).ok_or(StoreFault::Away)
    }

    /// Waits until so many replicas have all that was written at this primary so far.
    ///
    /// # Errors
    /// [`StoreFault::Copies`]: too few have it in time, or it is the primary no longer. What was written stands there, and may be lost with it.
    pub async fn copied(&self, primary: &Primary, replicas: u64, limit: Duration) -> Result<(), StoreFault> {
        let before = self.copies.begun.load(SeqCst);
        let mut line = self.copies.line.lock().await;
        let same = |at: &Arc<Node>| Arc::ptr_eq(at, &primary.0);
        // A count that began after that load began after everything this caller wrote.
        if line.number <= before || !line.at.as_ref().is_some_and(same) {
            line.number = self.copies.begun.fetch_add(1, SeqCst) + 1;
            line.at = Some(Arc::clone(&primary.0));
            line.replicas = match self.count(&mut line.link, primary, replicas, limit).await {
                Ok(counted) => counted,
                Err(error) => {
                    tracing::warn!(room = self.id(), %error, "copies cannot be counted");
                    line.link = None;
                    0
                }
            };
        }
        let had = line.replicas;
        if had >= replicas && self.store.inner.primary(self.slot).as_ref().is_some_and(same) {
            return Ok(());
        }
        Err(StoreFault::Copies { wanted: replicas, had })
    }

    async fn count(
        &self,
        link: &mut Option<(Arc<Node>, Link)>,
        primary: &Primary,
        replicas: u64,
        limit: Duration,
    ) -> Result<u64, RedisError> {
        let mut connection = match link {
            Some((at, link)) if Arc::ptr_eq(at, &primary.0) => link.connection(),
            other => {
                let made = self.store.inner.dialer.patient_link(&primary.0.host, limit).await?;
                let connection = made.connection();
                *other = Some((Arc::clone(&primary.0), made));
                connection
            }
        };
        let mut both = redis::pipe();
        both.cmd("SET").arg(self.keys.get(Key::Mark)).arg(1).ignore();
        both.cmd("WAIT").arg(replicas).arg(millis(limit));
        let (counted,): (u64,) = both.query_async(&mut connection).await?;
        Ok(counted)
    }
}

impl Inner {
    fn primary(&self, slot: u16) -> Option<Arc<Node>> {
        self.routes.load().find(slot).cloned()
    }
}
