//! HTTP/2 connections to a backend, which many requests share.
//!
//! Each worker thread has its own, each driven by a task of that thread. A connection takes as many requests as both ends allow, and the next is
//! opened only when none has room; one at a time, so that a crowd of first requests does not open one each. What is kept unread for a visitor who
//! reads slowly is bounded for each request, and the connection's own allowance is that of all of them together: nobody is held up by another.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::time::Instant;

use super::body::Outbound;
use super::connect::Wire;
use super::lane::{Alarm, Failed, MAX_HEAD_BYTES};
use super::pool::{Open, Sharded};
use crate::clock::millis;
use crate::fault::BoxError;

/// Requests on one connection at most, if the backend allows as many.
const MAX_STREAMS: usize = 100;
/// Bytes that are read ahead for one request at most.
const WINDOW: u32 = 64 * 1024;
/// The same for a connection: all its requests may be read slowly.
const CONNECTION_WINDOW: u32 = WINDOW * 100;
/// How often a backend that says nothing is asked whether it is there, and how long it may think.
const PINGS: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(5));

/// The connections of one backend.
pub(super) struct Shared {
    threads: Sharded<Thread>,
}

/// Those of one thread.
#[derive(Default)]
struct Thread {
    connections: Mutex<VecDeque<Arc<Connection>>>,
    opening: tokio::sync::Mutex<()>,
}

/// One connection.
struct Connection {
    sender: SendRequest<Outbound>,
    born: Instant,
    streams: AtomicUsize,
    /// So many at most.
    most: Arc<AtomicUsize>,
    /// When its last request ended, ms since it was opened.
    rested_at_ms: AtomicU64,
    served: AtomicBool,
    /// The backend refused a request on it: those that are under way go on, new ones go elsewhere.
    spent: AtomicBool,
}

/// A request's part of a connection, until this is dropped.
pub(super) struct Stream(Arc<Connection>);

impl Drop for Stream {
    fn drop(&mut self) {
        self.0.rested_at_ms.store(millis(self.0.born.elapsed()), Relaxed);
        self.0.streams.fetch_sub(1, Relaxed);
    }
}

impl Shared {
    pub(super) fn new() -> Self {
        Self { threads: Sharded::new() }
    }

    /// Room on a connection of this thread.
    pub(super) fn take(&self) -> Option<Stream> {
        let mut connections = self.threads.own().lock();
        connections.retain(|connection| connection.is_good());
        connections.iter().find_map(Connection::begin)
    }

    /// Only one at a time opens a connection on a thread; the others look again after it.
    pub(super) async fn turn(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.threads.own().opening.lock().await
    }

    /// Speaks HTTP/2 over this wire, for others on this thread as well.
    pub(super) async fn start(&self, wire: Wire, open: Open) -> Result<Stream, BoxError> {
        let (connection, stream) = Connection::start(wire, open).await?;
        self.threads.own().lock().push_front(connection);
        Ok(stream)
    }

    /// Lets go of what has rested for too long; a connection ends when nobody holds it any more.
    pub(super) fn sweep(&self, keep_alive: Duration) {
        for thread in self.threads.all() {
            thread.lock().retain(|connection| {
                let rested = connection
                    .born
                    .elapsed()
                    .saturating_sub(Duration::from_millis(connection.rested_at_ms.load(Relaxed)));
                connection.is_good() && (connection.streams.load(Relaxed) > 0 || rested < keep_alive)
            });
        }
    }
}

impl Thread {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<Connection>>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connection {
    async fn start(wire: Wire, open: Open) -> Result<(Arc<Self>, Stream), BoxError> {
        let (sender, mut driver) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(u32::try_from(MAX_HEAD_BYTES).unwrap_or(u32::MAX))
            .keep_alive_interval(PINGS.0)
            .keep_alive_timeout(PINGS.1)
            .handshake(TokioIo::new(wire))
            .await?;
        let most = Arc::new(AtomicUsize::new(MAX_STREAMS));
        let allowed = Arc::clone(&most);
        tokio::spawn(async move {
            let _open = open;
            let driven = std::future::poll_fn(|context| {
                let ended = Pin::new(&mut driver).poll(context);
                allowed.store(driver.current_max_send_streams().clamp(1, MAX_STREAMS), Relaxed);
                ended
            });
            if let Err(fault) = driven.await {
                tracing::debug!(%fault, "a connection to a backend broke");
            }
        });
        let connection = Arc::new(Self {
            sender,
            born: Instant::now(),
            streams: AtomicUsize::new(1),
            most,
            rested_at_ms: AtomicU64::new(0),
            served: AtomicBool::new(false),
            spent: AtomicBool::new(false),
        });
        Ok((Arc::clone(&connection), Stream(connection)))
    }

    fn is_good(&self) -> bool {
        !self.sender.is_closed() && !self.spent.load(Relaxed)
    }

    fn begin(self: &Arc<Self>) -> Option<Stream> {
        let most = self.most.load(Relaxed);
        let before = self.streams.fetch_add(1, Relaxed);
        let stream = Stream(Arc::clone(self)); // gives its place back, if there was none
        (before < most).then_some(stream)
    }
}

impl Stream {
    /// A connection that nobody shares.
    pub(super) async fn alone(wire: Wire, open: Open) -> Result<Self, BoxError> {
        Ok(Connection::start(wire, open).await?.1)
    }

    /// The connection has answered before: if it breaks now, an idle backend most likely closed it in this very moment.
    pub(super) fn served(&self) -> bool {
        self.0.served.load(Relaxed)
    }

    /// Nobody else begins on this connection.
    pub(super) fn leave(&self) {
        self.0.spent.store(true, Relaxed);
    }

    /// Sends a request, and answers with the head of what comes back. `look` says, as it is now, until when nothing need be looked at, or that it
    /// has taken too long.
    pub(super) async fn exchange(
        &self,
        request: Request<Outbound>,
        look: impl Fn() -> Option<Instant>,
    ) -> Result<Response<Incoming>, Failed> {
        let mut sender = self.0.sender.clone();
        let mut answer = pin!(sender.try_send_request(request));
        let mut alarm = Alarm::default();
        let outcome = std::future::poll_fn(|context| {
            if let Poll::Ready(outcome) = answer.as_mut().poll(context) {
                return Poll::Ready(Some(outcome));
            }
            alarm.poll_over(context, &look).map(|()| None)
        });
        match outcome.await {
            Some(Ok(response)) => {
                self.0.served.store(true, Relaxed);
                Ok(response)
            }
            Some(Err(mut failed)) => Err(match failed.take_message() {
                Some(request) => Failed::Unsent(Box::new(request), failed.into_error()),
                None => Failed::Broken(failed.into_error()),
            }),
            None => Err(Failed::Late),
        }
    }
}
