//! Accepting connections: the listener, the limits on connections, and the end.
//!
//! One loop for every listener; those of one port, and HTTP and HTTPS, share their limits ([`Live`]). A connection beyond the limits is told so (`503`, `Retry-After`) and closed; running out of file descriptors makes
//! the loop wait, never end. When [`Stop::draining`] is cancelled nothing more is accepted, every connection finishes what it is answering, and
//! after the drain limit the rest is cut. Nothing in here looks at what a request asks for.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use http::{Request, Response};
use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::TaskTracker;

use crate::body::Body;
pub use crate::stop::Stop;
pub use crate::visitor::Peer;

mod activity;
mod answer;
mod connection;
mod desk;
pub mod files;
mod frames;
mod head;
mod lasting;
mod moved;
pub mod proxy_protocol;
mod redirect;
mod settings;
mod slots;
mod socket;
pub mod workers;
mod tls;

use connection::{Accepted, Builders};
pub use settings::{ConnectionLimits, ListenerSettings, Live};
use slots::Taken;
pub use tls::warn_of_dates;

/// Connections the kernel holds for us while we are busy.
const BACKLOG: i32 = 4096;
/// How long the loop waits when the machine has no file descriptor left.
const BACK_OFF: Duration = Duration::from_millis(100);
/// Bytes of an answer that the kernel keeps for a client beyond what is under way to it. Without a limit it is megabytes for each that reads slowly.
#[cfg(target_os = "linux")]
const UNSENT: u32 = 128 * 1024;
/// At most one log line of a kind in this time.
const QUIET: Duration = Duration::from_secs(5);
/// What may take its time after everything was cut.
const LAST_CALL: Duration = Duration::from_secs(2);
/// Connections being refused at once; more are closed without a word.
const REFUSALS: usize = 64;
/// How long a refused client has to read why.
const REFUSAL: Duration = Duration::from_secs(1);
/// How long a silent client is believed to be there; twice as long, if it acknowledges nothing.
const DEAD_PEER: Duration = Duration::from_secs(20);

const NO_ROOM: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 2\r\nCache-Control: no-store\r\n\
    Content-Length: 0\r\nConnection: close\r\n\r\n";

/// What the connections of one listener share, as long as the settings stay.
struct Shared {
    settings: Arc<ListenerSettings>,
    stop: Stop,
    connections: TaskTracker,
    builders: Builders,
}

impl Shared {
    fn new(settings: Arc<ListenerSettings>, stop: Stop, connections: TaskTracker) -> Arc<Self> {
        Arc::new(Self {
            builders: Builders::new(&settings.limits, connections.clone()),
            settings,
            stop,
            connections,
        })
    }
}

/// What a listener's clients begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// A request.
    Http,
    /// A TLS handshake.
    Https,
}

/// Whether a port belongs to one listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortUse {
    /// To this one: a second is told that the port is taken.
    Alone,
    /// To several of this process, among which the kernel deals out what comes in (`SO_REUSEPORT`).
    Shared,
}

/// Opens a listener. Must be called inside a tokio runtime.
///
/// # Errors
///
/// What the machine says: the address is taken, or not ours.
pub fn listen(address: SocketAddr, port: PortUse) -> io::Result<TcpListener> {
    TcpListener::from_std(open(address, port)?)
}

fn open(address: SocketAddr, port: PortUse) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if port == PortUse::Shared {
        socket.set_reuse_port(true)?;
    }
    if address.is_ipv6() {
        socket.set_only_v6(false)?; // [::] is everybody, v4 too
    }
    // Accepted sockets inherit these.
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(DEAD_PEER).with_interval(Duration::from_secs(10)))?;
    #[cfg(target_os = "linux")]
    {
        socket.set_tcp_user_timeout(Some(DEAD_PEER * 2))?;
        socket.set_tcp_notsent_lowat(UNSENT)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Serves a listener until `stop` begins, then drains it, and returns when all is over: every connection, and every task of [`Stop::tasks`].
///
/// `handle` is given a request whose body is already limited ([`crate::intake::limit`]) and the peer, whose IPv4-mapped IPv6 address is IPv4. It
/// is dropped when its client leaves: what must be finished belongs into a task of its own.
pub async fn serve<H, F>(listener: TcpListener, scheme: Scheme, live: Arc<Live>, stop: Stop, handle: H)
where
    H: Fn(Request<Body>, Peer) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<Body>> + Send + Unpin + 'static,
{
    let connections = TaskTracker::new();
    let door = Door {
        scheme,
        refusals: Arc::new(Semaphore::new(REFUSALS)),
        shared: Shared::new(live.settings(), stop.clone(), connections.clone()),
        live: Arc::clone(&live),
        connections: connections.clone(),
        handle,
        turned_away: Grumble::default(),
    };
    accept(listener, door, &stop).await;

    drain(&connections, &stop, live.look().limits.drain_timeout).await;
}

/// Waits for the end of everything; what has not ended when the limit has passed is cut.
async fn drain(connections: &TaskTracker, stop: &Stop, limit: Duration) {
    connections.close();
    stop.tasks.close();
    let over = || async {
        connections.wait().await;
        stop.tasks.wait().await;
    };
    tokio::select! {
        biased;
        () = over() => return,
        () = stop.cut.cancelled() => {} // whoever asked for it has said so
        () = sleep(limit) => {
            tracing::warn!(connections = connections.len(), tasks = stop.tasks.len(), "cutting what has not ended");
            stop.cut.cancel();
        }
    }
    if timeout(LAST_CALL, over()).await.is_err() {
        tracing::warn!(connections = connections.len(), tasks = stop.tasks.len(), "these do not end");
    }
}

/// Accepts until the drain begins, and then what already waits at the door.
async fn accept<H, F>(listener: TcpListener, mut door: Door<H>, stop: &Stop)
where
    H: Fn(Request<Body>, Peer) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<Body>> + Send + Unpin + 'static,
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
    scheme: Scheme,
    refusals: Arc<Semaphore>,
    live: Arc<Live>,
    shared: Arc<Shared>,
    connections: TaskTracker,
    handle: H,
    turned_away: Grumble,
}

impl<H, F> Door<H>
where
    H: Fn(Request<Body>, Peer) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<Body>> + Send + Unpin + 'static,
{
    fn admit(&mut self, io: TcpStream, peer: SocketAddr) {
        let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
        self.follow_settings();
        match self.live.slots.take(peer.ip(), &self.shared.settings.limits) {
            Ok(slot) => {
                let accepted = Accepted {
                    io,
                    peer,
                    slot,
                    scheme: self.scheme,
                };
                let serving = connection::run(accepted, Arc::clone(&self.shared), self.handle.clone());
                self.connections.spawn(serving);
            }
            Err(taken) => self.refuse(io, peer, taken),
        }
    }

    /// Takes up settings that were exchanged since the last connection came.
    fn follow_settings(&mut self) {
        let settings = self.live.look();
        if !Arc::ptr_eq(&settings, &self.shared.settings) {
            self.shared = Shared::new(Arc::clone(&settings), self.shared.stop.clone(), self.connections.clone());
        }
    }

    fn refuse(&mut self, io: TcpStream, peer: SocketAddr, taken: Taken) {
        if let Some(times) = self.turned_away.speak() {
            tracing::warn!(%peer, ?taken, times, "a connection was refused: the limit is reached");
        }
        if self.scheme == Scheme::Https {
            return; // it would have to be told in secret, and a handshake costs more than there is to give
        }
        let Ok(permit) = Arc::clone(&self.refusals).try_acquire_owned() else {
            return;
        };
        self.connections.spawn(async move {
            let _permit = permit;
            turn_away(io).await;
        });
    }
}

/// Tells a client that there is no room for it.
async fn turn_away(mut io: TcpStream) {
    let farewell = async {
        io.write_all(NO_ROOM).await?;
        io.shutdown().await?;
        let mut rest = (&mut io).take(64 * 1024); // unread bytes would reset the connection, and the answer with it
        tokio::io::copy(&mut rest, &mut tokio::io::sink()).await
    };
    let _ = timeout(REFUSAL, farewell).await;
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
