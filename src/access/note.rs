//! What is noted of one request while it is answered, and the line that becomes of it.

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::Bytes;
use http::header::USER_AGENT;
use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode, Version};
use http_body::{Body as HttpBody, Frame, SizeHint};
use serde::Serialize;

use super::{AccessLog, trace};
use crate::body::{Body, BodyError};
use crate::clock::{Clock, UnixMs, millis};

/// Bytes of a path, and of a query, that are written at most.
const MAX_PATH: usize = 2048;
/// Bytes of any other text.
const MAX_TEXT: usize = 256;
/// Names of parameters whose values are never written.
const SECRET: [&str; 9] = ["tok", "token", "ticket", "admission", "code", "key", "password", "secret", "sig"];

/// The `code` of a problem, on the response that tells it.
#[derive(Clone, Copy, Debug)]
pub struct Code(pub &'static str);

/// What is known of a request when it comes.
#[derive(Debug)]
pub struct Begun<'r> {
    /// Its id.
    pub id: String,
    /// The visitor's address.
    pub client: IpAddr,
    /// The connection's.
    pub peer: IpAddr,
    /// Its head.
    pub head: &'r Parts,
    /// The host it is for; empty where it names none that can be used.
    pub host: &'r str,
}

/// What is noted of one request. The line is written when it is dropped.
#[derive(Debug)]
pub struct Note {
    log: Arc<AccessLog>,
    started: Instant,
    at_ms: UnixMs,
    id: String,
    client: IpAddr,
    peer: IpAddr,
    method: Method,
    version: Version,
    host: String,
    path: String,
    query: Option<String>,
    query_bytes: usize,
    user_agent: Option<String>,
    trace_id: Option<String>,
    decided: OnceLock<(&'static str, Option<String>)>,
    upstream: OnceLock<(String, u64)>,
    code: OnceLock<&'static str>,
    status: AtomicU16,
    head_ms: AtomicU64,
    bytes: AtomicU64,
    whole: AtomicBool,
}

impl Note {
    /// Begins to note.
    #[must_use]
    pub fn begin(log: &Arc<AccessLog>, begun: Begun<'_>) -> Arc<Self> {
        let head = begun.head;
        let query = head.uri.query();
        let agent = head.headers.get(USER_AGENT).map(|agent| String::from_utf8_lossy(agent.as_bytes()));
        Arc::new(Self {
            log: Arc::clone(log),
            started: Clock::instant(),
            at_ms: Clock::system().now_ms(),
            id: begun.id,
            client: begun.client,
            peer: begun.peer,
            method: head.method.clone(),
            version: head.version,
            host: cut(begun.host, MAX_TEXT).to_owned(),
            path: cut(head.uri.path(), MAX_PATH).to_owned(),
            query: query
                .filter(|_| log.keeps_query())
                .map(|query| cut(&without_secrets(query), MAX_PATH).to_owned()),
            query_bytes: query.map_or(0, str::len),
            user_agent: agent.map(|agent| cut(&agent, MAX_TEXT).to_owned()),
            trace_id: trace::id(&head.headers).map(str::to_owned),
            decided: OnceLock::new(),
            upstream: OnceLock::new(),
            code: OnceLock::new(),
            status: AtomicU16::new(0),
            head_ms: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            whole: AtomicBool::new(false),
        })
    }

    /// The request's id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// What was decided, and for which room.
    pub fn decided(&self, decision: &'static str, room: Option<&str>) {
        let _before = self.decided.set((decision, room.map(str::to_owned)));
    }

    /// A backend had the request for so long, until the head of its answer or its failure.
    pub fn forwarded(&self, to: &str, took_ms: u64) {
        let _before = self.upstream.set((to.to_owned(), took_ms));
    }

    /// The answer begins: notes its head, and watches its body to the end.
    #[must_use]
    pub fn answer(self: Arc<Self>, mut response: Response<Body>) -> Response<Body> {
        if let Ok(id) = HeaderValue::from_str(&self.id) {
            response.headers_mut().insert(trace::REQUEST_ID, id);
        }
        self.status.store(response.status().as_u16(), Relaxed);
        self.head_ms.store(millis(self.started.elapsed()), Relaxed);
        if let Some(Code(code)) = response.extensions().get() {
            let _before = self.code.set(code);
        }
        // The short "no"s carry nothing along: what was decided says which it was.
        let short = match (self.decided.get(), response.status()) {
            (Some(("sold_out", _)), StatusCode::CONFLICT) => Some("sold_out"),
            (Some(("throttle", _)), StatusCode::TOO_MANY_REQUESTS) => Some("rate_limited"),
            _ => None,
        };
        if let Some(code) = short {
            let _before = self.code.set(code);
        }
        // An answer to HEAD is whole without its body.
        self.whole.store(self.method == Method::HEAD, Relaxed);
        response.map(|body| Body::stream(Watched { body, note: self }))
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        let (decision, room) = self.decided.take().unzip();
        let (upstream, upstream_ms) = self.upstream.take().unzip();
        let status = self.status.load(Relaxed);
        let line = Line {
            time: stamp(self.at_ms),
            request_id: std::mem::take(&mut self.id),
            client: self.client,
            peer: self.peer,
            method: self.method.to_string(),
            host: std::mem::take(&mut self.host),
            path: std::mem::take(&mut self.path),
            query: self.query.take(),
            query_bytes: self.query_bytes,
            protocol: protocol(self.version),
            status,
            bytes: self.bytes.load(Relaxed),
            head_ms: (status > 0).then(|| self.head_ms.load(Relaxed)),
            duration_ms: millis(self.started.elapsed()),
            // The client left, or the backend broke off.
            broken: !self.whole.load(Relaxed),
            decision,
            room: room.flatten(),
            code: self.code.take(),
            upstream,
            upstream_ms,
            user_agent: self.user_agent.take(),
            trace_id: self.trace_id.take(),
        };
        self.log.write(line);
    }
}

/// A line as it is written.
#[derive(Serialize)]
pub(super) struct Line {
    time: String,
    request_id: String,
    client: IpAddr,
    peer: IpAddr,
    method: String,
    host: String,
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    query: Option<String>,
    query_bytes: usize,
    protocol: &'static str,
    status: u16,
    bytes: u64,
    head_ms: Option<u64>,
    duration_ms: u64,
    broken: bool,
    decision: Option<&'static str>,
    room: Option<String>,
    code: Option<&'static str>,
    upstream: Option<String>,
    upstream_ms: Option<u64>,
    user_agent: Option<String>,
    trace_id: Option<String>,
}

/// An answer's body, on its way to the client.
struct Watched {
    body: Body,
    note: Arc<Note>,
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        match &frame {
            Some(Ok(frame)) => {
                let bytes = frame.data_ref().map_or(0, Bytes::len);
                self.note.bytes.fetch_add(bytes as u64, Relaxed);
            }
            Some(Err(_)) => {}
            None => self.note.whole.store(true, Relaxed),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if self.body.is_end_stream() {
            self.note.whole.store(true, Relaxed);
        }
    }
}

fn stamp(at_ms: UnixMs) -> String {
    let at = i64::try_from(at_ms).ok().and_then(|at| jiff::Timestamp::from_millisecond(at).ok());
    at.map_or_else(String::new, |at| format!("{at:.3}"))
}

fn protocol(version: Version) -> &'static str {
    match version {
        Version::HTTP_09 | Version::HTTP_10 => "HTTP/1.0",
        Version::HTTP_2 => "HTTP/2",
        Version::HTTP_3 => "HTTP/3",
        _ => "HTTP/1.1",
    }
}

/// The beginning of a text, whole characters only.
fn cut(text: &str, most: usize) -> &str {
    let mut end = most.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// A query whose secrets have lost their values.
fn without_secrets(query: &str) -> String {
    let pairs = query.split('&').map(|pair| {
        let name = pair.split_once('=').map_or(pair, |(name, _)| name);
        let plain = name.to_ascii_lowercase();
        let secret = SECRET.contains(&plain.as_str())
            || ["wgt", "wga", "waitgate", "__host-", "x-amz-"]
                .iter()
                .any(|begin| plain.starts_with(begin));
        // A name that is written in another way than plainly may be one of them.
        if secret || plain.contains('%') || plain.ends_with("token") {
            format!("{name}=…")
        } else {
            pair.to_owned()
        }
    });
    pairs.collect::<Vec<_>>().join("&")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_between_characters() {
        assert_eq!(cut("ghế", 3), "gh");
        assert_eq!(cut("ghế", 5), "ghế");
        assert_eq!(cut("", 5), "");
    }

    /// CASE 50: a token in a query is not written, even where queries are.
    #[test]
    fn secrets_of_a_query_are_left_out() {
        assert_eq!(without_secrets("a=1&tok=SECRET&b=%2F"), "a=1&tok=…&b=%2F");
        assert_eq!(
            without_secrets("Access_Token=S&wgt_42=S&t%6Fk=S&plain"),
            "Access_Token=…&wgt_42=…&t%6Fk=…&plain"
        );
    }

    #[test]
    fn times_have_milliseconds() {
        assert_eq!(stamp(1_796_126_400_007), "2026-12-01T12:00:00.007Z");
        assert_eq!(stamp(0), "1970-01-01T00:00:00.000Z");
    }
}
