//! A backend that does what a script says and records every byte, a gateway without rooms in front of it, and raw clients.
//!
//! Everything is a real socket on loopback. Every wait has a deadline: nothing in here hangs.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use std::future::Future;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::header::{HeaderMap, HeaderValue};
use http::{Request, Response, StatusCode, Uri};
use http_body_util::combinators::BoxBody;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use waitgate::body::Body;
use waitgate::fault::Fault;
use waitgate::server::{self, ConnectionLimits, ListenerSettings, Live, Peer, PortUse, Scheme, Stop};
use waitgate::upstream::{Group, Outgoing, Upstreams};
use waitgate::{config, intake};

/// How long anything may take before a test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Waits for something, but not for ever.
pub(crate) async fn soon<F: Future>(what: F) -> F::Output {
    timeout(PATIENCE, what).await.expect("it took too long")
}

/// Waits until a condition holds.
pub(crate) async fn until(what: &str, holds: impl Fn() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("never so: {what}"));
}

/// A message as it was on the wire.
#[derive(Clone, Debug, Default)]
pub(crate) struct Message {
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Message {
    /// All values of a header, in order, with any case.
    pub(crate) fn all(&self, name: &str) -> Vec<&str> {
        let lines = self.head.lines().skip(1).filter_map(|line| line.split_once(':'));
        lines
            .filter(|(found, _)| found.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.trim())
            .collect()
    }

    /// The value of a header that is there once.
    pub(crate) fn one(&self, name: &str) -> &str {
        let all = self.all(name);
        assert_eq!(all.len(), 1, "{name} in {}", self.head);
        all[0]
    }

    /// The first line.
    pub(crate) fn line(&self) -> &str {
        self.head.lines().next().unwrap_or_default()
    }

    /// The status of an answer.
    pub(crate) fn status(&self) -> u16 {
        self.line()
            .split(' ')
            .nth(1)
            .and_then(|code| code.parse().ok())
            .unwrap_or_else(|| panic!("no status: {:?}", self.head))
    }
}

/// One end of a raw connection.
pub(crate) struct Wire {
    pub(crate) stream: TcpStream,
    pub(crate) buffer: Vec<u8>,
    /// The how many-th connection it is, from 1.
    pub(crate) number: usize,
    seen: Option<Arc<Mutex<Vec<Message>>>>,
}

impl Wire {
    /// Connects to somewhere.
    pub(crate) async fn to(address: SocketAddr) -> Self {
        let stream = soon(TcpStream::connect(address)).await.expect("connect");
        stream.set_nodelay(true).expect("nodelay");
        Self {
            stream,
            buffer: Vec::new(),
            number: 0,
            seen: None,
        }
    }

    /// Sends bytes; the peer may be gone.
    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let _ = soon(self.stream.write_all(bytes.as_ref())).await;
    }

    /// Reads more into the buffer; 0 at the end, however it ends.
    pub(crate) async fn more(&mut self) -> usize {
        soon(self.stream.read_buf(&mut self.buffer)).await.unwrap_or(0)
    }

    /// Reads a head, `None` when the connection ends first.
    pub(crate) async fn head(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.buffer.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                let head: Vec<u8> = self.buffer.drain(..end + 4).collect();
                return Some(String::from_utf8_lossy(&head).into_owned());
            }
            if self.more().await == 0 {
                return None;
            }
        }
    }

    /// Reads this many bytes, or up to the end.
    pub(crate) async fn take(&mut self, length: usize) -> Vec<u8> {
        while self.buffer.len() < length && self.more().await > 0 {}
        let length = length.min(self.buffer.len());
        self.buffer.drain(..length).collect()
    }

    async fn line(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|bytes| bytes == b"\r\n") {
                let line: Vec<u8> = self.buffer.drain(..end + 2).collect();
                return Some(String::from_utf8_lossy(&line[..end]).into_owned());
            }
            if self.more().await == 0 {
                return None;
            }
        }
    }

    /// Reads a chunked body with its trailers, joined.
    pub(crate) async fn chunks(&mut self) -> Option<(Vec<u8>, String)> {
        let mut body = Vec::new();
        loop {
            let size = usize::from_str_radix(self.line().await?.trim(), 16).ok()?;
            if size == 0 {
                break;
            }
            let chunk = self.take(size).await;
            if chunk.len() < size {
                return None;
            }
            body.extend(chunk);
            self.line().await?;
        }
        let mut trailers = String::new();
        loop {
            let line = self.line().await?;
            if line.is_empty() {
                return Some((body, trailers));
            }
            trailers.push_str(&line);
            trailers.push('\n');
        }
    }

    async fn message(&mut self, head: String, to_the_end: bool) -> Option<Message> {
        let mut message = Message { head, body: Vec::new() };
        if message.all("transfer-encoding").iter().any(|coding| coding.contains("chunked")) {
            message.body = self.chunks().await?.0;
        } else if let Some(length) = message.all("content-length").first().and_then(|length| length.parse().ok()) {
            message.body = self.take(length).await;
            if message.body.len() < length {
                return None;
            }
        } else if to_the_end {
            while self.more().await > 0 {}
            message.body = std::mem::take(&mut self.buffer);
        }
        Some(message)
    }

    /// Reads a request with its body and records it; `None` when there is none.
    pub(crate) async fn request(&mut self) -> Option<Message> {
        let head = self.head().await?;
        let message = self.message(head, false).await?;
        if let Some(seen) = &self.seen {
            seen.lock().unwrap().push(message.clone());
        }
        Some(message)
    }

    /// Reads a whole answer; `None` when it breaks off. 1xx are skipped.
    pub(crate) async fn answer(&mut self) -> Option<Message> {
        loop {
            let head = self.head().await?;
            let status = Message {
                head: head.clone(),
                ..Message::default()
            }
            .status();
            match status {
                101 | 204 | 304 => return Some(Message { head, body: Vec::new() }),
                100..=199 => {}
                _ => return self.message(head, true).await,
            }
        }
    }

    /// Sends a request and reads its answer.
    pub(crate) async fn ask(&mut self, request: impl AsRef<[u8]>) -> Message {
        self.send(request).await;
        self.answer().await.expect("an answer")
    }

    /// Whether the peer ends the connection within this time, saying nothing more.
    pub(crate) async fn ends_within(&mut self, limit: Duration) -> bool {
        let ending = async {
            loop {
                match self.stream.read_buf(&mut self.buffer).await {
                    Ok(0) | Err(_) => return,
                    Ok(_) => {}
                }
            }
        };
        timeout(limit, ending).await.is_ok()
    }

    /// Ends the connection with a reset.
    pub(crate) fn reset(self) {
        socket2::SockRef::from(&self.stream)
            .set_linger(Some(Duration::ZERO))
            .expect("linger");
    }
}

/// A backend that does what its script says.
pub(crate) struct Backend {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Vec<Message>>>,
    connections: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Backend {
    /// The script is run for every connection.
    pub(crate) async fn start<S, F>(script: S) -> Self
    where
        S: Fn(Wire) -> F + Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("address");
        let (seen, connections) = (Arc::<Mutex<Vec<Message>>>::default(), Arc::<AtomicUsize>::default());
        let (log, count) = (Arc::clone(&seen), Arc::clone(&connections));
        let task = tokio::spawn(async move {
            let mut scripts = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                stream.set_nodelay(true).expect("nodelay");
                let number = count.fetch_add(1, SeqCst) + 1;
                scripts.spawn(script(Wire {
                    stream,
                    buffer: Vec::new(),
                    number,
                    seen: Some(Arc::clone(&log)),
                }));
            }
        });
        Self {
            address,
            seen,
            connections,
            task,
        }
    }

    /// Answers every request with these bytes.
    pub(crate) async fn saying(answer: &'static str) -> Self {
        Self::start(move |mut wire| async move {
            while wire.request().await.is_some() {
                wire.send(answer).await
            }
        })
        .await
    }

    /// A small 200 to everything.
    pub(crate) async fn plain() -> Self {
        Self::saying("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await
    }

    /// All requests so far.
    pub(crate) fn seen(&self) -> Vec<Message> {
        self.seen.lock().unwrap().clone()
    }

    /// The only request so far.
    pub(crate) fn only(&self) -> Message {
        let seen = self.seen();
        assert_eq!(seen.len(), 1, "{seen:?}");
        seen[0].clone()
    }

    /// Connections so far.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(SeqCst)
    }

    pub(crate) fn origin(&self) -> Uri {
        format!("http://{}", self.address).parse().expect("uri")
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Limits that no ordinary test meets.
pub(crate) fn limits() -> ConnectionLimits {
    ConnectionLimits {
        max_connections: 1000,
        max_connections_per_address: 1000,
        ipv6_prefix: 64,
        carriers: Vec::new(),
        header_timeout: Duration::from_secs(5),
        idle_timeout: Duration::from_secs(5),
        body_timeout: Duration::from_secs(5),
        max_header_bytes: 16 * 1024,
        max_headers: 100,
        max_body_bytes: 4 * 1024 * 1024,
        max_streams: 100,
        drain_timeout: Duration::from_secs(5),
    }
}

pub(crate) fn settings() -> config::Upstream {
    config::Upstream {
        connect_timeout: Duration::from_secs(2),
        first_byte_timeout: Duration::from_secs(5),
        idle_timeout: Duration::from_secs(5),
        keep_alive: Duration::from_secs(4),
        max_in_flight: 64,
        queue_timeout: Duration::from_secs(1),
        max_failures: 3,
        rest: Duration::from_secs(2),
        http: config::HttpVersion::Http1,
        tls: config::UpstreamTls::default(),
        health: None,
    }
}

/// How a gateway without rooms treats what comes.
#[derive(Clone)]
pub(crate) struct Treatment {
    /// The peer is a trusted proxy, and names the client in this header.
    pub(crate) believed: Option<config::ForwardedHeader>,
    pub(crate) added: HeaderMap,
    pub(crate) cookie_prefixes: Vec<String>,
    /// Requests to paths beginning so are refused with 429, their bodies unread.
    pub(crate) refused: &'static str,
}

impl Default for Treatment {
    fn default() -> Self {
        Self {
            believed: None,
            added: HeaderMap::new(),
            cookie_prefixes: vec!["wga_".into(), "wgt_".into(), "__Host-wga_".into(), "__Host-wgt_".into()],
            refused: "/refused",
        }
    }
}

/// A gateway without rooms: checks, forwards, and says what broke.
pub(crate) struct Front {
    pub(crate) address: SocketAddr,
    pub(crate) live: Arc<Live>,
    pub(crate) stop: Stop,
    serving: JoinHandle<()>,
}

impl Front {
    /// In front of this backend with everything as usual.
    pub(crate) async fn of(backend: &Backend) -> Self {
        Self::with(backend.origin(), limits(), settings(), Treatment::default()).await
    }

    pub(crate) async fn with(origin: Uri, limits: ConnectionLimits, settings: config::Upstream, treatment: Treatment) -> Self {
        Self::among(&[origin], limits, settings, treatment).await
    }

    /// In front of several backends.
    pub(crate) async fn among(origins: &[Uri], limits: ConnectionLimits, settings: config::Upstream, treatment: Treatment) -> Self {
        let stop = Stop::new();
        let upstreams = Arc::new(Upstreams::new(settings, stop.clone()));
        let to = upstreams.group(origins);
        Self::serving(limits, stop, move |request, peer| {
            let (upstreams, to, treatment) = (Arc::clone(&upstreams), to.clone(), treatment.clone());
            async move {
                pass(&upstreams, &to, &treatment, request, peer).await.unwrap_or_else(|fault| {
                    let mut response = Response::new(Body::full(fault.code()));
                    *response.status_mut() = fault.status();
                    if fault.ends_connection() {
                        response.headers_mut().insert("connection", HeaderValue::from_static("close"));
                    }
                    response
                })
            }
        })
        .await
    }

    /// Any other handler.
    pub(crate) async fn serving<H, F>(limits: ConnectionLimits, stop: Stop, handle: H) -> Self
    where
        H: Fn(Request<Body>, Peer) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Response<Body>> + Send + 'static,
    {
        Self::living(Live::new(ListenerSettings::plain(limits)), Scheme::Http, stop, handle).await
    }

    /// Any other handler, and any settings.
    pub(crate) async fn living<H, F>(live: Arc<Live>, scheme: Scheme, stop: Stop, handle: H) -> Self
    where
        H: Fn(Request<Body>, Peer) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Response<Body>> + Send + 'static,
    {
        let listener = server::listen("127.0.0.1:0".parse().unwrap(), PortUse::Alone).expect("listen");
        let address = listener.local_addr().expect("address");
        let handle = move |request, peer| Box::pin(handle(request, peer));
        let serving = tokio::spawn(server::serve(listener, scheme, Arc::clone(&live), stop.clone(), handle));
        Self {
            address,
            live,
            stop,
            serving,
        }
    }

    pub(crate) async fn client(&self) -> Wire {
        Wire::to(self.address).await
    }

    /// One request on a connection of its own.
    pub(crate) async fn ask(&self, request: impl AsRef<[u8]>) -> Message {
        self.client().await.ask(request).await
    }

    /// A `GET` of this path.
    pub(crate) async fn get(&self, path: &str) -> Message {
        self.ask(format!("GET {path} HTTP/1.1\r\nHost: shop.example\r\n\r\n")).await
    }

    /// Begins to stop, and answers when all is over.
    pub(crate) async fn stopped(self) {
        self.stop.draining.cancel();
        soon(self.serving).await.expect("the server panicked");
    }

    /// Whether it has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.serving.is_finished()
    }
}

async fn pass(
    upstreams: &Upstreams,
    to: &Group,
    treatment: &Treatment,
    request: Request<Body>,
    peer: Peer,
) -> Result<Response<Body>, Fault> {
    intake::check(&request)?;
    if request.uri().path().starts_with(treatment.refused) {
        let mut response = Response::new(Body::full("wait"));
        *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
        return Ok(response);
    }
    let outgoing = Outgoing {
        to,
        client: if treatment.believed.is_some() {
            "203.0.113.7".parse().expect("address")
        } else {
            peer.address.ip()
        },
        peer: peer.address.ip(),
        scheme: "http",
        believed: treatment.believed,
        added: &treatment.added,
        cookie_prefixes: &treatment.cookie_prefixes,
        served_by: None,
        path_and_query: None,
    };
    let (mut head, body) = request.into_parts();
    upstreams.forward(&outgoing, &mut head, body).await
}

/// A body that an HTTP/2 client sends.
pub(crate) type Sent = BoxBody<Bytes, std::convert::Infallible>;

/// An HTTP/2 client on one connection.
pub(crate) async fn http2(address: SocketAddr) -> hyper::client::conn::http2::SendRequest<Sent> {
    let stream = TcpStream::connect(address).await.expect("connect");
    let (sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .expect("handshake");
    tokio::spawn(connection);
    sender
}

/// No body.
pub(crate) fn nothing() -> Sent {
    BoxBody::new(http_body_util::Empty::new())
}
