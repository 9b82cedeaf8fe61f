//! One connection of a visitor to the gateway, small enough that a process holds ten thousand of them.
//!
//! Each connection takes a permit for as long as its socket is open: the crowd must not run into the machine's limit on open files, neither
//! its own nor the gateway's, because a visitor turned away by that limit would look like a fault of the gateway.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::clock::Clock;

/// How long the crowd waits for a connection or an answer. Long: on a small machine 20,000 people come at once, and a browser waits too.
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes of an answer read at most.
const BODY_LIMIT: usize = 1 << 20;

/// Why a request got no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Trouble {
    /// No connection.
    #[error("no connection: {0}")]
    Connect(#[source] std::io::Error),
    /// The connection broke; the request may have been read.
    #[error("the connection broke: {0}")]
    Broken(String),
    /// Nothing came for a long time.
    #[error("no answer in {} s", PATIENCE.as_secs())]
    Silence,
}

/// An answer, read whole.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    /// From sending the request to the head of the answer.
    pub(super) took: Duration,
}

impl Reply {
    /// The `code` of a problem body.
    pub(super) fn code(&self) -> Option<String> {
        let problem: serde_json::Value = serde_json::from_slice(&self.body).ok()?;
        Some(problem.get("code")?.as_str()?.to_owned())
    }

    /// `Retry-After` in seconds, or this long where there is none.
    pub(super) fn retry_after(&self, otherwise: Duration) -> Duration {
        let stated = self
            .headers
            .get(http::header::RETRY_AFTER)
            .and_then(|value| value.to_str().ok()?.parse().ok());
        stated.map_or(otherwise, Duration::from_secs)
    }
}

/// The way to the gateway.
#[derive(Debug)]
pub(super) struct Road {
    pub(super) target: SocketAddr,
    pub(super) permits: Arc<Semaphore>,
}

impl Road {
    /// A TCP connection from this source address, and the permit that goes with it.
    pub(super) async fn connect(&self, source: Option<Ipv4Addr>) -> Result<(TcpStream, OwnedSemaphorePermit), Trouble> {
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        let permit = permit.map_err(|closed| Trouble::Broken(closed.to_string()))?;
        let socket = if self.target.is_ipv4() {
            TcpSocket::new_v4()
        } else {
            TcpSocket::new_v6()
        };
        let socket = socket.map_err(Trouble::Connect)?;
        if let Some(source) = source {
            socket.bind(SocketAddr::from((source, 0))).map_err(Trouble::Connect)?;
        }
        let stream = timeout(PATIENCE, socket.connect(self.target)).await.map_err(|_| Trouble::Silence)?;
        let stream = stream.map_err(Trouble::Connect)?;
        stream.set_nodelay(true).map_err(Trouble::Connect)?;
        Ok((stream, permit))
    }
}

/// A kept-alive HTTP/1.1 connection.
#[derive(Debug)]
pub(super) struct Wire {
    sender: SendRequest<Full<Bytes>>,
}

impl Wire {
    /// Connects.
    pub(super) async fn open(road: &Road, source: Option<Ipv4Addr>) -> Result<Self, Trouble> {
        let (stream, permit) = road.connect(source).await?;
        let handshake = Builder::new().max_buf_size(16 * 1024).handshake(TokioIo::new(stream)).await;
        let (sender, connection) = handshake.map_err(|broken| Trouble::Broken(broken.to_string()))?;
        tokio::spawn(async move {
            // Whatever ends the connection is seen by the one who asks on it.
            let _ = connection.await;
            drop(permit);
        });
        Ok(Self { sender })
    }

    /// Whether it can still be asked.
    pub(super) fn is_open(&self) -> bool {
        !self.sender.is_closed()
    }

    /// Sends a request: the head of its answer, and how long that took. `None`: it never left, because the connection was closed meanwhile.
    pub(super) async fn send(&mut self, request: Request<Full<Bytes>>) -> Result<Option<(Response<Incoming>, Duration)>, Trouble> {
        if self.sender.ready().await.is_err() {
            return Ok(None);
        }
        let started = Clock::instant();
        match timeout(PATIENCE, self.sender.try_send_request(request)).await {
            Err(_) => Err(Trouble::Silence),
            Ok(Ok(response)) => Ok(Some((response, started.elapsed()))),
            Ok(Err(mut failed)) => match failed.take_message() {
                Some(_) => Ok(None),
                None => Err(Trouble::Broken(failed.into_error().to_string())),
            },
        }
    }
}

/// Reads an answer's body.
pub(super) async fn read(response: Response<Incoming>, took: Duration) -> Result<Reply, Trouble> {
    let (head, body) = response.into_parts();
    let body = timeout(PATIENCE, Limited::new(body, BODY_LIMIT).collect())
        .await
        .map_err(|_| Trouble::Silence)?;
    let body = body.map_err(|broken| Trouble::Broken(broken.to_string()))?.to_bytes();
    Ok(Reply {
        status: head.status,
        headers: head.headers,
        body,
        took,
    })
}
