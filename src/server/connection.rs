//! One connection, from its first byte to its last: what it speaks, who answers, and when patience ends.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{AbortHandle, Abortable};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::{HttpService, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tokio_util::task::TaskTracker;

use super::activity::{Activity, Patience};
use super::answer::{Answer, STREAM, Streams};
use super::desk::Desk;
use super::lasting;
use super::proxy_protocol::{self, Said};
use super::slots::Slot;
use super::socket::{Line, Socket, Spoken};
use super::{ConnectionLimits, Peer, Scheme, Shared, turn_away};
use crate::body::Body;
use crate::intake;

/// What a connection is given after it was asked to end: a client that has heard it closes by itself.
const FAREWELL: Duration = Duration::from_secs(1);
/// hyper's own limit on header fields, which costs nothing.
const USUAL_HEADERS: usize = 100;
/// Bytes of one HTTP/2 stream kept ready for a client that reads slowly.
const STREAM_BUFFER: usize = 64 * 1024;
/// How often an HTTP/2 client is asked whether it is still there, and how long it may take to answer.
const PING: Duration = Duration::from_secs(20);

/// hyper's two servers, set up once.
pub(super) struct Builders {
    http1: http1::Builder,
    http2: http2::Builder<Tracked>,
}

/// Runs the tasks of HTTP/2 streams among the connections, so that a stop waits for them.
#[derive(Clone)]
pub(super) struct Tracked(TaskTracker);

impl<F> hyper::rt::Executor<F> for Tracked
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, task: F) {
        let (abort, registration) = AbortHandle::new_pair();
        self.0.spawn(STREAM.scope(abort, Abortable::new(task, registration)));
    }
}

impl Builders {
    pub(super) fn new(limits: &ConnectionLimits, connections: TaskTracker) -> Self {
        let mut http1 = http1::Builder::new();
        http1
            .timer(TokioTimer::new())
            .header_read_timeout(None) // the watch has a limit for the head, and another for idleness
            .max_header_size(limits.max_header_bytes)
            .max_buf_size(limits.max_header_bytes.saturating_mul(2).max(64 * 1024));
        if limits.max_headers != USUAL_HEADERS {
            http1.max_headers(limits.max_headers);
        }
        let mut http2 = http2::Builder::new(Tracked(connections));
        http2
            .timer(TokioTimer::new())
            .max_concurrent_streams(limits.max_streams)
            .max_pending_accept_reset_streams(20)
            .max_local_error_reset_streams(100)
            .max_header_list_size(u32::try_from(limits.max_header_bytes).unwrap_or(u32::MAX))
            .max_send_buf_size(STREAM_BUFFER)
            .initial_stream_window_size(256 * 1024)
            .initial_connection_window_size(1024 * 1024)
            .keep_alive_interval(PING)
            .keep_alive_timeout(PING);
        Self { http1, http2 }
    }
}

/// A connection that was accepted, and its place among those that are open.
pub(super) struct Accepted {
    pub(super) io: TcpStream,
    pub(super) peer: SocketAddr,
    pub(super) slot: Slot,
    pub(super) scheme: Scheme,
}

/// A connection on which the client has begun to speak HTTP.
struct Begun {
    socket: Socket,
    peer: Peer,
    spoken: Spoken,
}

/// Serves one connection to its end.
pub(super) async fn run<H, F>(accepted: Accepted, shared: Arc<Shared>, handle: H)
where
    H: Fn(Request<Body>, Peer) -> F + Send + Sync + 'static,
    F: Future<Output = Response<Body>> + Send + Unpin + 'static,
{
    let activity = Activity::new();
    let settings = &shared.settings;
    let limits = &settings.limits;
    // Boxed: what a handshake needs is not kept for as long as a connection lasts.
    let beginning = Box::pin(begin(accepted, &shared, &activity));
    let Some(Begun { socket, peer, spoken }) = in_time(beginning, &shared).await else {
        return;
    };
    let desk = Arc::new(Desk {
        handle,
        peer,
        activity: Arc::clone(&activity),
        streams: (spoken == Spoken::Http2).then(Streams::default),
        upload: intake::Limits {
            bytes: limits.max_body_bytes,
            pause: limits.body_timeout,
        },
        max_headers: limits.max_headers,
        redirect: settings.redirect.filter(|_| !peer.tls),
        hsts: settings.hsts.clone().filter(|_| peer.tls),
        lasting: Mutex::default(),
        leaves: AtomicBool::new(false),
    });
    let clerk = Arc::clone(&desk);
    let service = service_fn(move |request| clerk.answer(request));
    let io = TokioIo::new(socket);
    match spoken {
        Spoken::Http1 => {
            activity.is_http1();
            let mut connection = shared.builders.http1.serve_connection(io, service).with_upgrades();
            watch(Pin::new(&mut connection), &shared, &activity, &desk).await;
            if let (Some(answer), Some(parts)) = (desk.take_lasting(), connection.into_parts()) {
                let sending = lasting::send(parts.io.into_inner(), answer, shared.stop.clone());
                shared.connections.spawn(sending); // in a task of its own, which is much smaller than this one
            }
        }
        Spoken::Http2 => {
            // Boxed: most connections are not of this kind, which is twice as large.
            let mut connection = Box::pin(shared.builders.http2.serve_connection(io, service));
            let connection = connection.as_mut();
            watch(connection, &shared, &activity, &desk).await;
        }
    }
}

/// From the first byte to where HTTP begins: who it is, the handshake, and what is spoken. There is no limit in here but the handshake's own.
async fn begin(accepted: Accepted, shared: &Shared, activity: &Arc<Activity>) -> io::Result<Option<Begun>> {
    let Accepted {
        mut io,
        mut peer,
        mut slot,
        scheme,
    } = accepted;
    let settings = &shared.settings;
    if settings.names_others(peer.ip())
        && let Said::Client(client) = proxy_protocol::read(&mut io).await?
    {
        peer = client;
        if slot.belongs_to(peer.ip(), &settings.limits).is_err() {
            if scheme == Scheme::Http {
                turn_away(io).await;
            }
            return Ok(None);
        }
    }
    let tls = match scheme {
        Scheme::Http => None,
        // The listener is still open, and settings have come that know nothing of it.
        Scheme::Https if settings.tls.is_none() => return Ok(None),
        Scheme::Https => settings.tls.as_ref(),
    };
    let (line, agreed) = match tls {
        None => (Line::Plain(io), None),
        Some(tls) => {
            let (secured, agreed) = tls.shake_hands(io).await?;
            (Line::Tls(Box::new(secured)), agreed)
        }
    };
    let mut socket = Socket::new(line, Arc::clone(activity), settings.limits.body_timeout, slot);
    let spoken = match agreed {
        Some(agreed) => {
            socket.speaks(agreed);
            Some(agreed)
        }
        None => socket.listen_in().await?,
    };
    let peer = Peer {
        address: peer,
        tls: tls.is_some(),
    };
    Ok(spoken.map(|spoken| Begun { socket, peer, spoken }))
}

/// What has begun; none when it took too long, went wrong, or the gateway stops first.
async fn in_time(beginning: impl Future<Output = io::Result<Option<Begun>>>, shared: &Shared) -> Option<Begun> {
    let end = Instant::now() + shared.settings.limits.header_timeout;
    let draining = async {
        shared.stop.draining.cancelled().await;
        sleep(FAREWELL).await; // it may have sent its request before it could know
    };
    tokio::select! {
        begun = timeout_at(end, beginning) => match begun {
            Ok(Ok(begun)) => begun,
            Ok(Err(error)) => {
                tracing::debug!(%error, "a connection did not begin");
                None
            }
            Err(_) => None,
        },
        () = draining => None,
        () = shared.stop.cut.cancelled() => None,
    }
}

/// The two kinds of connection, seen as one.
trait Closing: Future<Output = Result<(), hyper::Error>> {
    /// Answers what is being answered, and then ends.
    fn close(self: Pin<&mut Self>);
}

impl<S> Closing for http1::UpgradeableConnection<TokioIo<Socket>, S>
where
    S: HttpService<Incoming, ResBody = Answer>,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    fn close(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

impl<S> Closing for http2::Connection<TokioIo<Socket>, S, Tracked>
where
    S: HttpService<Incoming, ResBody = Answer>,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    S::Future: Send + 'static,
    Tracked: hyper::rt::bounds::Http2ServerConnExec<S::Future, Answer>,
{
    fn close(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

/// Drives a connection until it ends, its patience does, or the gateway stops.
async fn watch<C: Closing, H>(mut connection: Pin<&mut C>, shared: &Shared, activity: &Activity, desk: &Desk<H>) {
    let limits = &shared.settings.limits;
    let patience = Patience {
        head: limits.header_timeout,
        idle: limits.idle_timeout,
    };
    let tick = patience.head.min(patience.idle).min(limits.body_timeout);
    let mut closing: Option<Instant> = None;
    loop {
        let now = Instant::now();
        let mut next = match closing {
            Some(end) => end.min(now + FAREWELL),
            None => activity.deadline(patience).map_or(now + tick, |end| end.min(now + tick)),
        };
        if let Some(due) = desk.streams.as_ref().and_then(|streams| streams.drop_unread(limits.body_timeout)) {
            next = next.min(due);
        }
        tokio::select! {
            biased;
            outcome = connection.as_mut() => {
                if let Err(error) = outcome {
                    tracing::debug!(%error, "a connection broke");
                }
                return;
            }
            // Looked at right after the connection, which is where it happens.
            () = desk.has_lasting() => {
                activity.upgrade();
                return;
            }
            // A cut drains as well, so one of the two is enough to look at.
            () = shared.stop.cut.cancelled(), if closing.is_some() => return,
            () = shared.stop.draining.cancelled(), if closing.is_none() => {
                connection.as_mut().close();
                closing = Some(Instant::now() + limits.drain_timeout);
                continue;
            }
            () = sleep_until(next) => {}
        }
        let now = Instant::now();
        match closing {
            Some(end) if now >= end || activity.idle_for() >= FAREWELL => return,
            Some(_) => {}
            None if activity.deadline(patience).is_some_and(|end| end <= now) => {
                connection.as_mut().close();
                closing = Some(now + FAREWELL);
            }
            None => {}
        }
    }
}
