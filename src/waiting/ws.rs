//! The feed as a WebSocket: the same messages, for whom a stream of events does not reach.
//!
//! Buffers are small and bounded. A client that does not read is dropped; so is one that answers no ping, and one that talks. Whoever breaks the
//! protocol is told how by the close code.

use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use http::header::{CONNECTION, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, UPGRADE};
use http::{HeaderMap, Response, StatusCode, Version};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::error::ProtocolError;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error as Fault, Message as Frame, Utf8Bytes};

mod hearing;

use super::seat::{Message, Next, Taken};
use crate::body::Body;
use hearing::{Hearing, USED_UP};

/// How long one message may take to be taken by the client.
const SEND_LIMIT: Duration = Duration::from_secs(10);
/// How long a goodbye may take, from the first word of it to the end of the connection.
const GOODBYE_LIMIT: Duration = Duration::from_secs(3);
/// Bytes that are read at once, and kept ready for it all the time: a pong is a few.
const READ_BUFFER: usize = 128;
/// Bytes of a message of the client's at most: it has nothing to say but pongs and goodbyes.
const MAX_INCOMING: usize = 4096;
/// Bytes of everything it says between two pings at most.
const MAX_HEARD: usize = 16 << 10;
/// Bytes of everything it still says while we part at most: enough for what was on its way.
const MAX_LINGER: usize = 256 << 10;

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
pub async fn carry(upgrade: OnUpgrade, first: Message, taken: Option<Taken>, ping_every: Duration) {
    let Ok(upgraded) = upgrade.await else { return };
    let config = WebSocketConfig::default()
        .read_buffer_size(READ_BUFFER)
        .write_buffer_size(0)
        .max_write_buffer_size(32 << 10)
        .max_message_size(Some(MAX_INCOMING))
        .max_frame_size(Some(MAX_INCOMING));
    let line = Hearing::new(TokioIo::new(upgraded), MAX_HEARD);
    let mut socket = WebSocketStream::from_raw_socket(line, Role::Server, Some(config)).await;
    let end = match taken {
        _ if !send(&mut socket, text(&first)).await => End::Gone,
        Some(taken) => converse(&mut socket, taken, ping_every).await,
        None => End::Ours(CloseCode::Normal),
    };
    // In a box: what parting needs is not kept for those who stay.
    let _in_time = timeout(GOODBYE_LIMIT, Box::pin(part(socket, end))).await;
}

type Socket = WebSocketStream<Hearing<TokioIo<hyper::upgrade::Upgraded>>>;

/// How a conversation ends.
enum End {
    /// We say goodbye, with this code.
    Ours(CloseCode),
    /// The client has said goodbye.
    Theirs,
    /// Nobody is there to hear anything.
    Gone,
}

impl End {
    /// What the client has done to be answered like this.
    fn of(fault: &Fault) -> Self {
        match fault {
            Fault::Protocol(ProtocolError::ResetWithoutClosingHandshake) => Self::Gone,
            Fault::Protocol(_) => Self::Ours(CloseCode::Protocol),
            Fault::Utf8(_) => Self::Ours(CloseCode::Invalid),
            Fault::Capacity(_) => Self::Ours(CloseCode::Size),
            Fault::Io(error) if error.kind() == USED_UP => Self::Ours(CloseCode::Policy),
            _ => Self::Gone,
        }
    }
}

async fn converse(socket: &mut Socket, mut taken: Taken, ping_every: Duration) -> End {
    let mut pings = interval_at(Instant::now() + ping_every, ping_every);
    // A machine that slept must not take everybody for gone at once.
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut heard = true;
    loop {
        tokio::select! {
            next = taken.next() => match next {
                Next::State(message) if send(socket, text(&message)).await => {}
                Next::State(_) => return End::Gone,
                Next::KeepAlive => {}
                Next::Bye => return End::Ours(CloseCode::Away),
                Next::End(last) => {
                    if let Some(message) = last {
                        send(socket, text(&message)).await;
                    }
                    return End::Ours(CloseCode::Normal);
                }
            },
            incoming = socket.next() => match incoming {
                Some(Ok(Frame::Close(_))) => return End::Theirs,
                Some(Ok(_)) => heard = true,
                Some(Err(fault)) => return End::of(&fault),
                None => return End::Gone,
            },
            _ = pings.tick() => {
                if !heard || !send(socket, Frame::Ping(bytes::Bytes::new())).await {
                    return End::Gone;
                }
                heard = false;
                socket.get_mut().hear(MAX_HEARD);
            }
        }
    }
}

/// Says goodbye, hears the other's, and ends the connection so that both are read: a socket that is closed with unread bytes in it is reset, and
/// the reset may overtake our last word.
async fn part(mut socket: Socket, end: End) {
    socket.get_mut().hear(MAX_LINGER);
    let said = match end {
        End::Gone => return,
        End::Theirs => socket.flush().await,
        End::Ours(code) => {
            // Before the goodbye, or a pong that has yet to be sent would come after it.
            let _pong = socket.flush().await;
            let reason = Utf8Bytes::default();
            socket.close(Some(CloseFrame { code, reason })).await
        }
    };
    if said.is_err() {
        return;
    }
    while let Some(Ok(frame)) = socket.next().await {
        if frame.is_close() {
            break;
        }
    }
    let line = socket.get_mut();
    let mut thrown_away = [0; 512];
    if line.shutdown().await.is_ok() {
        while line.read(&mut thrown_away).await.is_ok_and(|read| read > 0) {}
    }
}

async fn send(socket: &mut Socket, frame: Frame) -> bool {
    matches!(timeout(SEND_LIMIT, socket.send(frame)).await, Ok(Ok(())))
}

fn text(message: &Message) -> Frame {
    Utf8Bytes::try_from(message.json()).map_or_else(|_| Frame::Text(Utf8Bytes::default()), Frame::Text)
}
