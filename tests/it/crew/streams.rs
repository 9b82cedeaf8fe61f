//! What a visitor holds open: a stream of events, or a WebSocket.

use futures_util::StreamExt;
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message as Frame;

use crate::backend::{PATIENCE, soon};

/// What came on a stream of events.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A view.
    View(Value),
    /// "Come back in a moment."
    Bye,
    /// A comment.
    Comment,
    /// The end.
    End,
}

/// An open stream of events.
pub struct Events {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub(super) body: Incoming,
    pub(super) read: Vec<u8>,
}

impl Events {
    /// The next event, whatever it is; waits for it.
    pub async fn next(&mut self) -> Event {
        loop {
            if let Some(end) = self.read.windows(2).position(|bytes| bytes == b"\n\n") {
                let block: Vec<u8> = self.read.drain(..end + 2).collect();
                return parse(std::str::from_utf8(&block).expect("text"));
            }
            match self.body.frame().await {
                Some(Ok(frame)) => self.read.extend_from_slice(&frame.into_data().unwrap_or_default()),
                Some(Err(_)) | None => return Event::End,
            }
        }
    }

    /// The next view; comments are passed over.
    pub async fn view(&mut self) -> Value {
        loop {
            match soon(self.next()).await {
                Event::View(view) => return view,
                Event::Comment => {}
                other => panic!("no view but {other:?}"),
            }
        }
    }

    /// Reads until a view is like this.
    pub async fn until(&mut self, what: &str, so: impl Fn(&Value) -> bool) -> Value {
        let mut seen = Vec::new();
        let reading = async {
            loop {
                let view = self.view().await;
                if so(&view) {
                    return view;
                }
                seen.push(view);
            }
        };
        let found = timeout(PATIENCE, reading).await;
        found.unwrap_or_else(|_| panic!("never told: {what}; but {seen:?}"))
    }

    /// Reads until this state is told.
    pub async fn state(&mut self, state: &str) -> Value {
        self.until(state, |view| view["state"] == state).await
    }
}

fn parse(block: &str) -> Event {
    let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    match (field("event"), field("data")) {
        (Some("bye"), _) => Event::Bye,
        (None, Some(data)) => Event::View(serde_json::from_str(data).expect("JSON")),
        (None, None) if block.starts_with(':') => Event::Comment,
        _ => panic!("not an event of ours: {block:?}"),
    }
}

/// An open WebSocket.
pub struct Socket(pub WebSocketStream<TcpStream>);

impl Socket {
    /// The next view, or the code it was closed with.
    pub async fn next(&mut self) -> Result<Value, Option<u16>> {
        loop {
            match soon(self.0.next()).await {
                Some(Ok(Frame::Text(text))) => return Ok(serde_json::from_str(&text).expect("JSON")),
                Some(Ok(Frame::Close(frame))) => {
                    let _said_back = self.0.close(None).await;
                    return Err(frame.map(|frame| frame.code.into()));
                }
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return Err(None),
            }
        }
    }

    /// Reads until this state is told.
    pub async fn state(&mut self, state: &str) -> Value {
        let reading = async {
            loop {
                let view = self.next().await.expect("it stays open");
                if view["state"] == state {
                    return view;
                }
            }
        };
        timeout(PATIENCE, reading).await.unwrap_or_else(|_| panic!("never told: {state}"))
    }
}
