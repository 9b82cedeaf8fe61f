//! The feed as a WebSocket: the same messages, for whom a stream of events does not reach.
//!
//! Buffers are small and bounded. A client that does not read is dropped; so is one that answers no ping.

use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use http::header::{CONNECTION, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, UPGRADE};
use http::{HeaderMap, Response, StatusCode, Version};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::time::{Instant, interval_at, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Message as Frame, Utf8Bytes};

use super::seat::{Message, Next, Taken};
use crate::body::Body;

/// A ping is sent this often; two without an answer end the socket.
const PING_EVERY: Duration = Duration::from_secs(25);
/// How long one message may take to be taken by the client.
const SEND_LIMIT: Duration = Duration::from_secs(10);
/// Bytes a client may send at once: it has nothing to say but pongs and goodbyes.
const MAX_INCOMING: usize = 4096;

/// The key of a WebSocket handshake (HTTP/1.1), if this is one.
#[must_use]
pub fn handshake(version: Version, headers: &HeaderMap) -> Option<String> {
    let has = |name, word: &str| {
        headers
            .get_all(name)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .any(|token| token.trim().eq_ignore_ascii_case(word))
    };
    let key = headers.get(SEC_WEBSOCKET_KEY)?;
    let good = version == Version::HTTP_11
        && has(UPGRADE, "websocket")
        && has(CONNECTION, "upgrade")
        && headers.get("sec-websocket-version").is_some_and(|value| value == "13")
        && key.len() == 24;
    good.then(|| derive_accept_key(key.as_bytes()))
}

/// The answer that opens the socket.
#[must_use]
pub fn switch(accept: &str) -> Option<Response<Body>> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(SEC_WEBSOCKET_ACCEPT, HeaderValue::try_from(accept).ok()?);
    Some(response)
}

/// Carries the feed until the visitor, the feed or the gateway ends it.
pub async fn carry(upgrade: OnUpgrade, first: Message, taken: Option<Taken>) {
    let Ok(upgraded) = upgrade.await else { return };
    let config = WebSocketConfig::default()
        .read_buffer_size(1024)
        .write_buffer_size(0)
        .max_write_buffer_size(32 << 10)
        .max_message_size(Some(MAX_INCOMING))
        .max_frame_size(Some(MAX_INCOMING));
    let mut socket = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, Some(config)).await;
    if !send(&mut socket, text(&first)).await {
        return;
    }
    let code = match taken {
        Some(taken) => converse(&mut socket, taken).await,
        None => Some(CloseCode::Normal),
    };
    if let Some(code) = code {
        let frame = CloseFrame {
            code,
            reason: Utf8Bytes::default(),
        };
        let _closed = timeout(SEND_LIMIT, socket.close(Some(frame))).await;
    }
}

type Socket = WebSocketStream<TokioIo<hyper::upgrade::Upgraded>>;

/// The close code to say goodbye with; none when nobody is there to hear it.
async fn converse(socket: &mut Socket, mut taken: Taken) -> Option<CloseCode> {
    let mut pings = interval_at(Instant::now() + PING_EVERY, PING_EVERY);
    let mut unanswered = 0;
    loop {
        tokio::select! {
            next = taken.next() => match next {
                Next::State(message) if send(socket, text(&message)).await => {}
                Next::State(_) => return None,
                Next::KeepAlive => {}
                Next::Bye => return Some(CloseCode::Away),
                Next::End(last) => {
                    if let Some(message) = last {
                        send(socket, text(&message)).await;
                    }
                    return Some(CloseCode::Normal);
                }
            },
            incoming = socket.next() => match incoming {
                Some(Ok(Frame::Close(_)) | Err(_)) | None => return None,
                Some(Ok(_)) => unanswered = 0,
            },
            _ = pings.tick() => {
                unanswered += 1;
                if unanswered > 2 || !send(socket, Frame::Ping(bytes::Bytes::new())).await {
                    return None;
                }
            }
        }
    }
}

async fn send(socket: &mut Socket, frame: Frame) -> bool {
    matches!(timeout(SEND_LIMIT, socket.send(frame)).await, Ok(Ok(())))
}

fn text(message: &Message) -> Frame {
    Utf8Bytes::try_from(message.json()).map_or_else(|_| Frame::Text(Utf8Bytes::default()), Frame::Text)
}
