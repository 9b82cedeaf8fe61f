//! One connection, from its first byte to its last: what it speaks, who answers, and when patience ends.

use std::convert::Infallible;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::header::{CACHE_CONTROL, CONNECTION};
use http::{HeaderValue, Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::{HttpService, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::task::TaskTracker;

use super::activity::{Activity, Busy, Patience};
use super::answer::{Answer, Streams};
use super::slots::Slot;
use super::socket::{Socket, Spoken};
use super::{ConnectionLimits, Peer, Shared};
use crate::body::Body;
use crate::intake::{self, Upload};

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
        self.0.spawn(task);
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

/// Everything that one connection needs to answer.
struct Desk<H> {
    handle: H,
    peer: Peer,
    activity: Arc<Activity>,
    streams: Option<Streams>,
    upload: intake::Limits,
    max_headers: usize,
}

/// Serves one connection to its end.
pub(super) async fn run<H, F>(io: TcpStream, peer: Peer, slot: Slot, shared: Arc<Shared>, handle: H)
where
    H: Fn(Request<Body>, Peer) -> F + Send + Sync + 'static,
    F: Future<Output = Response<Body>> + Send + Unpin + 'static,
{
    let activity = Activity::new();
    let limits = &shared.settings.limits;
    let mut socket = Socket::new(io, Arc::clone(&activity), limits.body_timeout, slot);
    let Some(spoken) = first_words(&mut socket, &shared).await else {
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
    });
    let clerk = Arc::clone(&desk);
    let service = service_fn(move |request| clerk.answer(request));
    let io = TokioIo::new(socket);
    match spoken {
        Spoken::Http1 => {
            activity.is_http1();
            let connection = shared.builders.http1.serve_connection(io, service).with_upgrades();
            watch(connection, &shared, &activity, desk.streams.as_ref()).await;
        }
        Spoken::Http2 => {
            let connection = shared.builders.http2.serve_connection(io, service);
            watch(connection, &shared, &activity, desk.streams.as_ref()).await;
        }
    }
}

/// What the client speaks; none when it is silent for too long, leaves, or the gateway stops first.
async fn first_words(socket: &mut Socket, shared: &Shared) -> Option<Spoken> {
    let draining = async {
        shared.stop.draining.cancelled().await;
        tokio::time::sleep(FAREWELL).await; // it may have sent its request before it could know
    };
    tokio::select! {
        heard = timeout(shared.settings.limits.header_timeout, socket.listen_in()) => heard.ok()?.ok()?,
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
async fn watch<C: Closing>(connection: C, shared: &Shared, activity: &Activity, streams: Option<&Streams>) {
    let mut connection = pin!(connection);
    let limits = &shared.settings.limits;
    let patience = Patience {
        head: limits.header_timeout,
        idle: limits.idle_timeout,
    };
    let tick = patience.head.min(patience.idle).min(limits.body_timeout);
    let mut closing: Option<Instant> = None;
    loop {
        let now = Instant::now();
        let next = match closing {
            Some(end) => end.min(now + FAREWELL),
            None => activity.deadline(patience).map_or(now + tick, |end| end.min(now + tick)),
        };
        tokio::select! {
            biased;
            outcome = connection.as_mut() => {
                if let Err(error) = outcome {
                    tracing::debug!(%error, "a connection broke");
                }
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
        if let Some(streams) = streams {
            streams.drop_unread(limits.body_timeout);
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

impl<H, F> Desk<H>
where
    H: Fn(Request<Body>, Peer) -> F,
    F: Future<Output = Response<Body>> + Unpin,
{
    fn answer(self: &Arc<Self>, request: Request<Incoming>) -> Answered<H, F> {
        let busy = self.activity.begin();
        let http1 = request.version() < Version::HTTP_2;
        let (going, upload) = if request.headers().len() > self.max_headers {
            (Going::TooManyHeaders, None)
        } else {
            let (request, upload) = intake::limit(request, self.upload);
            (Going::Asked((self.handle)(request, self.peer)), Some(upload).filter(|_| http1))
        };
        Answered {
            desk: Arc::clone(self),
            busy: Some(busy),
            going,
            upload,
        }
    }

    fn send(&self, mut response: Response<Body>, upload: Option<&Upload>, busy: Busy) -> Response<Answer> {
        if upload.is_some_and(|upload| !upload.is_over()) {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            self.activity.upgrade();
        }
        *response.version_mut() = Version::HTTP_11;
        match &self.streams {
            Some(streams) => response.map(|body| streams.watch(body, busy)),
            None => response.map(|body| Answer::Plain(body, busy)),
        }
    }
}

/// An answer on its way. Written out rather than `async`: most answers are there at once, and a future is copied more than once before it is polled.
struct Answered<H, F> {
    desk: Arc<Desk<H>>,
    busy: Option<Busy>,
    going: Going<F>,
    /// What the request brings with it, where the connection has to end when not all of it is read.
    upload: Option<Upload>,
}

enum Going<F> {
    Asked(F),
    TooManyHeaders,
}

impl<H, F> Future for Answered<H, F>
where
    H: Fn(Request<Body>, Peer) -> F,
    F: Future<Output = Response<Body>> + Unpin,
{
    type Output = Result<Response<Answer>, Infallible>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let response = match &mut this.going {
            Going::Asked(answer) => ready!(Pin::new(answer).poll(context)),
            Going::TooManyHeaders => too_many_headers(),
        };
        match this.busy.take() {
            Some(busy) => Poll::Ready(Ok(this.desk.send(response, this.upload.as_ref(), busy))),
            None => Poll::Pending, // polled again after its end: hyper does not
        }
    }
}

fn too_many_headers() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
