//! Accepting connections: the listener, the limits on connections, and the end.
//!
//! One loop for both listeners. A connection beyond the limits is told so (`503`, `Retry-After`) and closed; running out of file descriptors makes
//! the loop wait, never end. When [`Stop::draining`] is cancelled nothing more is accepted, every connection finishes what it is answering, and
//! after the drain limit the rest is cut. Nothing in here looks at what a request asks for.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use http::{Request, Response};
use ipnet::IpNet;
use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::TaskTracker;

use crate::body::Body;
use crate::config;
pub use crate::stop::Stop;

mod activity;
mod answer;
mod connection;
pub mod files;
mod slots;
mod socket;

use connection::Builders;
use slots::{Slots, Taken};

/// Connections the kernel holds for us while we are busy.
const BACKLOG: i32 = 4096;
/// How long the loop waits when the machine has no file descriptor left.
const BACK_OFF: Duration = Duration::from_millis(100);
/// At most one log line of a kind in this time.
const QUIET: Duration = Duration::from_secs(5);
/// What may take its time after everything was cut.
const LAST_CALL: Duration = Duration::from_secs(2);
/// Connections being refused at once; more are closed without a word.
const REFUSALS: usize = 64;
/// How long a refused client has to read why.
const REFUSAL: Duration = Duration::from_secs(1);
/// How long a silent or unacknowledging client is believed to be there.
const DEAD_PEER: Duration = Duration::from_secs(30);

const NO_ROOM: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 2\r\nCache-Control: no-store\r\n\
    Content-Length: 0\r\nConnection: close\r\n\r\n";

/// Limits on the connections of one listener.
#[derive(Clone, Debug)]
pub struct ConnectionLimits {
    /// Open connections at most.
    pub max_connections: usize,
    /// Open connections per address (v4 address or v6 /64) at most.
    pub max_connections_per_address: usize,
    /// Networks whose addresses are not counted on their own: the trusted proxies.
    pub trusted_proxies: Vec<IpNet>,
    /// For the first head from the connection's start, and for any later one from its first byte.
    pub header_timeout: Duration,
    /// How long a connection may stay idle between requests.
    pub idle_timeout: Duration,
    /// The longest pause inside a request body, and the longest time a client may refuse to read an answer.
    pub body_timeout: Duration,
    /// Bytes of a request head at most.
    pub max_header_bytes: usize,
    /// Header fields of a request at most.
    pub max_headers: usize,
    /// Bytes of a request body at most.
    pub max_body_bytes: u64,
    /// How long a stop waits for what is being answered.
    pub drain_timeout: Duration,
}

impl ConnectionLimits {
    /// The limits of the settings.
    #[must_use]
    pub fn new(server: &config::Server, client: &config::Client) -> Self {
        Self {
            max_connections: server.max_connections,
            max_connections_per_address: server.max_connections_per_address,
            trusted_proxies: client.trusted_proxies.clone(),
            header_timeout: server.header_timeout,
            idle_timeout: server.idle_timeout,
            body_timeout: server.body_timeout,
            max_header_bytes: server.max_header_bytes,
            max_headers: server.max_headers,
            max_body_bytes: server.max_body_bytes,
            drain_timeout: server.drain_timeout,
        }
    }
}

/// What the connections of one listener share.
struct Shared {
    limits: ConnectionLimits,
    stop: Stop,
    builders: Builders,
}

/// Opens a listener. Must be called inside a tokio runtime.
///
/// # Errors
///
/// What the machine says: the address is taken, or not ours.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?; // [::] is everybody, v4 too
    }
    // Accepted sockets inherit these on Linux.
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(DEAD_PEER).with_interval(Duration::from_secs(10)))?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(DEAD_PEER * 2))?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Serves a listener until `stop` begins, then drains it, and returns when all is over: every connection, and every task of [`Stop::tasks`].
///
/// `handle` is given a request whose body is already limited ([`crate::intake::limit`]) and the address of the peer, IPv4-mapped IPv6 as IPv4. It
/// is dropped when its client leaves: what must be finished belongs into a task of its own.
pub async fn serve<H, F>(listener: TcpListener, limits: ConnectionLimits, stop: Stop, handle: H)
where
    H: Fn(Request<Body>, SocketAddr) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let connections = TaskTracker::new();
    let drain_timeout = limits.drain_timeout;
    let door = Door {
        slots: Slots::new(
            limits.max_connections,
            limits.max_connections_per_address,
            limits.trusted_proxies.clone(),
        ),
        refusals: Arc::new(Semaphore::new(REFUSALS)),
        shared: Arc::new(Shared {
            builders: Builders::new(&limits, connections.clone()),
            limits,
            stop: stop.clone(),
        }),
        connections: connections.clone(),
        handle,
        turned_away: Grumble::default(),
    };
    accept(listener, door, &stop).await;

    connections.close();
    stop.tasks.close();
    let over = async {
        connections.wait().await;
        stop.tasks.wait().await;
    };
    let all_over = tokio::select! {
        () = over => true,
        () = sleep(drain_timeout) => false,
        () = stop.cut.cancelled() => false,
    };
    if !all_over {
        tracing::warn!(
            connections = connections.len(),
            tasks = stop.tasks.len(),
            "cutting what has not ended"
        );
        stop.cut.cancel();
        let over = async {
            connections.wait().await;
            stop.tasks.wait().await;
        };
        if timeout(LAST_CALL, over).await.is_err() {
            tracing::warn!(connections = connections.len(), tasks = stop.tasks.len(), "these do not end");
        }
    }
}

/// Accepts until the drain begins, and then what already waits at the door.
async fn accept<H, F>(listener: TcpListener, mut door: Door<H>, stop: &Stop)
where
    H: Fn(Request<Body>, SocketAddr) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let mut out_of_files = Grumble::default();
    loop {
        let accepted = tokio::select! {
            biased;
            () = stop.draining.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((io, peer)) => door.admit(io, peer),
            Err(error) if is_one_connection(&error) => {}
            Err(error) => {
                if let Some(times) = out_of_files.speak() {
                    tracing::error!(%error, times, "no connection can be accepted; trying again");
                }
                tokio::select! {
                    () = stop.draining.cancelled() => break,
                    () = sleep(BACK_OFF) => {}
                }
            }
        }
    }
    for _ in 0..BACKLOG {
        let Some(Ok((io, peer))) = listener.accept().now_or_never() else {
            break;
        };
        door.admit(io, peer);
    }
}

/// The error is about the connection that was being accepted, not about accepting.
fn is_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

/// Who is let in.
struct Door<H> {
    slots: Arc<Slots>,
    refusals: Arc<Semaphore>,
    shared: Arc<Shared>,
    connections: TaskTracker,
    handle: H,
    turned_away: Grumble,
}

impl<H, F> Door<H>
where
    H: Fn(Request<Body>, SocketAddr) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<Body>> + Send + 'static,
{
    fn admit(&mut self, io: TcpStream, peer: SocketAddr) {
        let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
        let _ = io.set_nodelay(true); // fails only on a socket that is gone already
        match self.slots.take(peer.ip()) {
            Ok(slot) => {
                let serving = connection::run(io, peer, slot, Arc::clone(&self.shared), self.handle.clone());
                self.connections.spawn(serving);
            }
            Err(taken) => self.refuse(io, peer, taken),
        }
    }

    fn refuse(&mut self, mut io: TcpStream, peer: SocketAddr, taken: Taken) {
        if let Some(times) = self.turned_away.speak() {
            tracing::warn!(%peer, ?taken, times, "a connection was refused: the limit is reached");
        }
        let Ok(permit) = Arc::clone(&self.refusals).try_acquire_owned() else {
            return;
        };
        self.connections.spawn(async move {
            let _permit = permit;
            let farewell = async {
                io.write_all(NO_ROOM).await?;
                io.shutdown().await?;
                let mut rest = (&mut io).take(64 * 1024); // unread bytes would reset the connection, and the answer with it
                tokio::io::copy(&mut rest, &mut tokio::io::sink()).await
            };
            let _ = timeout(REFUSAL, farewell).await;
        });
    }
}

/// Says a thing once in a while, with how often it happened.
#[derive(Default)]
struct Grumble {
    last: Option<Instant>,
    times: u64,
}

impl Grumble {
    /// How often it has happened since it was last said; none: too early to say it again.
    fn speak(&mut self) -> Option<u64> {
        self.times += 1;
        let now = Instant::now();
        if self.last.is_some_and(|last| now < last + QUIET) {
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.times))
    }
}
