//! What a visitor holds open: a stream of events, or a WebSocket.

use http::header::HeaderMap;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message as Frame;
use waitgate::clock::Clock;

use crate::backend::{PATIENCE, soon};

/// One event of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// Its type; `message` when it has none.
    pub name: String,
    pub data: String,
    pub id: Option<String>,
}

impl Event {
    pub fn view(&self) -> Value {
        serde_json::from_str(&self.data).unwrap_or_else(|fault| panic!("{fault}: {self:?}"))
    }
}

/// An open stream of events. Dropping it leaves.
pub struct Events {
    pub status: u16,
    pub headers: HeaderMap,
    pub retry_ms: Option<u64>,
    pub(super) body: Incoming,
    pub(super) buffer: String,
}

impl Events {
    /// The next event; none at the end of the stream. Comments are skipped.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some((block, rest)) = self.buffer.split_once("\n\n") {
                let (block, rest) = (block.to_owned(), rest.to_owned());
                self.buffer = rest;
                match self.read(&block) {
                    Some(event) => return Some(event),
                    None => continue,
                }
            }
            let frame = soon(self.body.frame()).await?.ok()?;
            let data = frame.into_data().expect("data");
            self.buffer.push_str(std::str::from_utf8(&data).expect("UTF-8"));
        }
    }

    fn read(&mut self, block: &str) -> Option<Event> {
        let mut event = Event {
            name: "message".to_owned(),
            ..Event::default()
        };
        for line in block.lines() {
            match line.split_once(": ") {
                Some(("retry", value)) => self.retry_ms = value.parse().ok(),
                Some(("event", value)) => value.clone_into(&mut event.name),
                Some(("data", value)) => value.clone_into(&mut event.data),
                Some(("id", value)) => event.id = Some(value.to_owned()),
                _ => assert!(line.starts_with(':'), "a line that is none of ours: {line}"),
            }
        }
        (!event.data.is_empty()).then_some(event)
    }

    /// The next view that is like this; panics when the stream ends first.
    pub async fn until(&mut self, what: &str, like: impl Fn(&Value) -> bool) -> Value {
        let deadline = Clock::instant() + PATIENCE;
        loop {
            let event = self.next().await.unwrap_or_else(|| panic!("the stream ended before {what}"));
            let view = event.view();
            if like(&view) {
                return view;
            }
            assert!(Clock::instant() < deadline, "never {what}, but {view}");
        }
    }

    pub async fn until_state(&mut self, state: &str) -> Value {
        self.until(state, |view| view["state"] == state).await
    }

    /// All events up to the end.
    pub async fn rest(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        while let Some(event) = self.next().await {
            events.push(event);
        }
        events
    }
}

/// An open WebSocket.
pub struct Socket(pub(super) WebSocketStream<TcpStream>);

impl Socket {
    /// The next view, or the code that the socket was closed with.
    pub async fn next(&mut self) -> Result<Value, u16> {
        use futures_util::StreamExt as _;
        loop {
            match soon(self.0.next()).await {
                Some(Ok(Frame::Text(text))) => return Ok(serde_json::from_str(&text).expect("JSON")),
                Some(Ok(Frame::Close(frame))) => {
                    let _said_back = self.0.close(None).await;
                    return Err(frame.map_or(1005, |frame| frame.code.into()));
                }
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return Err(1006),
            }
        }
    }

    pub async fn until_state(&mut self, state: &str) -> Value {
        loop {
            let view = self.next().await.unwrap_or_else(|code| panic!("closed with {code} before {state}"));
            if view["state"] == state {
                return view;
            }
        }
    }
}
