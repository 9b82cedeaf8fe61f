//! What is taken off a message, and what is put on, on its way through.
//!
//! First everything that belongs to one hop or that a client may have forged comes off, then ours goes on: so a `Connection: waitgate-user` of a
//! client can never take our own headers away. Names are compared with `_` as `-`, since many backends cannot tell the two apart.

use std::fmt::Write as _;
use std::net::IpAddr;

use http::header::{CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, FORWARDED, HOST, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, VIA};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Version};

use super::Outgoing;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");

/// Names by which somebody in front tells a backend who the client is or what it asked for. Only a trusted proxy may.
const IDENTITY: [&str; 9] = [
    "forwarded",
    "x-real-ip",
    "x-client-ip",
    "x-cluster-client-ip",
    "client-ip",
    "true-client-ip",
    "cf-connecting-ip",
    "cf-connecting-ipv6",
    "fastly-client-ip",
];
/// Names that make some backends serve another path than the one that was gated. Nobody may.
const OTHER_PATH: [&str; 3] = ["x-original-url", "x-original-uri", "x-rewrite-url"];

/// Makes a client's head the backend's: strips, then adds.
pub(super) fn outgoing(parts: &mut Parts, to: &Outgoing<'_>, body_length: Option<u64>, upgrade: bool) {
    let version = parts.version;
    let headers = &mut parts.headers;
    let chain = Chain::read(headers, to);
    strip_hop(headers);
    headers.remove(EXPECT);
    strip_forged(headers, to.trusted_peer);
    strip_cookies(headers, to.cookie_prefixes);
    set_host(headers, parts.uri.authority());
    chain.write(headers, to);
    let via = if version >= Version::HTTP_2 {
        "2.0 waitgate"
    } else {
        "1.1 waitgate"
    };
    headers.append(VIA, HeaderValue::from_static(via));
    set_length(headers, &parts.method, body_length);
    if upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    }
    for name in to.added.keys() {
        headers.remove(name);
    }
    for (name, value) in &to.added {
        headers.append(name, value.clone());
    }
}

/// Makes a backend's head the client's. The `Upgrade` of an answered pass-through is put back by its module.
pub(super) fn incoming(headers: &mut HeaderMap) {
    strip_hop(headers);
}

/// Takes out of trailers what may not be there.
pub(super) fn clean_trailers(trailers: &mut HeaderMap) {
    strip_hop(trailers);
    trailers.remove(CONTENT_LENGTH);
    trailers.remove(HOST);
}

/// Whether a comma-separated header holds this word, whatever its case.
pub(super) fn lists(headers: &HeaderMap, name: HeaderName, word: &str) -> bool {
    headers
        .get_all(name)
        .iter()
        .any(|value| words(value).any(|found| found.eq_ignore_ascii_case(word.as_bytes())))
}

fn words(value: &HeaderValue) -> impl Iterator<Item = &[u8]> {
    value.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii)
}

/// Headers of one hop, and whatever `Connection` says is one. What frames or addresses the message is never taken off on a client's word.
fn strip_hop(headers: &mut HeaderMap) {
    let mut doomed: Vec<HeaderName> = Vec::new();
    for value in headers.get_all(CONNECTION) {
        doomed.extend(words(value).filter_map(|word| HeaderName::from_bytes(word).ok()));
    }
    doomed.retain(|name| *name != HOST && *name != CONTENT_LENGTH && *name != COOKIE);
    doomed.extend(
        headers
            .keys()
            .filter(|name| name.as_str().starts_with("proxy"))
            .filter(|name| is_proxy_header(name))
            .cloned(),
    );
    for name in doomed {
        headers.remove(name);
    }
    for name in [CONNECTION, KEEP_ALIVE, TE, TRAILER, TRANSFER_ENCODING, UPGRADE] {
        headers.remove(name);
    }
    headers.remove("http2-settings");
}

/// `Proxy` itself too: CGI backends make `HTTP_PROXY` of it.
fn is_proxy_header(name: &HeaderName) -> bool {
    matches!(name.as_str(), "proxy") || name.as_str().starts_with("proxy-")
}

fn strip_forged(headers: &mut HeaderMap, trusted_peer: bool) {
    let doomed: Vec<HeaderName> = headers
        .keys()
        .filter(|name| is_forged(name.as_str(), trusted_peer))
        .cloned()
        .collect();
    for name in doomed {
        headers.remove(name);
    }
}

fn is_forged(name: &str, trusted_peer: bool) -> bool {
    if name.contains('_') {
        // Always, from a trusted proxy too: it writes the right name, and an underscore twin came through it from the client.
        let twin = name.replace('_', "-");
        return is_ours(&twin) || is_identity(&twin) || OTHER_PATH.contains(&twin.as_str());
    }
    is_ours(name) || OTHER_PATH.contains(&name) || (!trusted_peer && is_identity(name))
}

fn is_ours(name: &str) -> bool {
    name == "waitgate" || name.starts_with("waitgate-")
}

fn is_identity(name: &str) -> bool {
    name == "x-forwarded" || name.starts_with("x-forwarded-") || IDENTITY.contains(&name)
}

/// Cookies whose name starts with one of ours come off; the crumbs of HTTP/2 become one line again.
fn strip_cookies(headers: &mut HeaderMap, prefixes: &[String]) {
    let ours = |cookie: &[u8]| prefixes.iter().any(|prefix| cookie.starts_with(prefix.as_bytes()));
    let mut lines = headers.get_all(COOKIE).iter();
    let Some(first) = lines.next() else { return };
    let several = lines.next().is_some();
    if !several && !cookies(first).any(ours) {
        return; // untouched, to the byte
    }
    let mut kept: Vec<u8> = Vec::new();
    for cookie in headers.get_all(COOKIE).iter().flat_map(cookies).filter(|cookie| !ours(cookie)) {
        if !kept.is_empty() {
            kept.extend_from_slice(b"; ");
        }
        kept.extend_from_slice(cookie);
    }
    headers.remove(COOKIE);
    if let (false, Ok(line)) = (kept.is_empty(), HeaderValue::from_bytes(&kept)) {
        headers.insert(COOKIE, line);
    }
}

fn cookies(line: &HeaderValue) -> impl Iterator<Item = &[u8]> {
    line.as_bytes()
        .split(|byte| *byte == b';')
        .map(<[u8]>::trim_ascii)
        .filter(|cookie| !cookie.is_empty())
}

/// One `Host`, as the client sent it; of an HTTP/2 request it is the authority.
fn set_host(headers: &mut HeaderMap, authority: Option<&http::uri::Authority>) {
    if headers.contains_key(HOST) {
        return;
    }
    if let Some(Ok(host)) = authority.map(|authority| HeaderValue::from_str(authority.as_str())) {
        headers.insert(HOST, host);
    }
}

/// Exactly one way to say where the body ends. Methods that rarely have a body say it aloud, or the body would be left behind.
fn set_length(headers: &mut HeaderMap, method: &Method, body_length: Option<u64>) {
    match body_length {
        Some(0) => {
            if headers.remove(CONTENT_LENGTH).is_some() {
                headers.insert(CONTENT_LENGTH, HeaderValue::from(0));
            }
        }
        Some(length) => {
            headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
        }
        None => {
            headers.remove(CONTENT_LENGTH);
            if matches!(*method, Method::GET | Method::HEAD) {
                headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
            }
        }
    }
}

/// Who forwarded the request, up to us.
struct Chain {
    forwarded_for: String,
    forwarded: Option<String>,
    proto: Option<HeaderValue>,
    host: Option<HeaderValue>,
}

impl Chain {
    /// Read before anything is stripped. From an untrusted peer there is no chain.
    fn read(headers: &HeaderMap, to: &Outgoing<'_>) -> Self {
        let mut chain = Self {
            forwarded_for: String::new(),
            forwarded: None,
            proto: None,
            host: None,
        };
        if !to.trusted_peer {
            return chain;
        }
        chain.forwarded_for = joined(headers, X_FORWARDED_FOR).unwrap_or_default();
        if chain.forwarded_for.is_empty() && to.client != to.peer {
            chain.forwarded_for = to.client.to_string();
        }
        chain.forwarded = joined(headers, FORWARDED);
        chain.proto = single(headers, X_FORWARDED_PROTO).filter(|value| value == "http" || value == "https");
        chain.host = single(headers, X_FORWARDED_HOST);
        chain
    }

    fn write(self, headers: &mut HeaderMap, to: &Outgoing<'_>) {
        let mut forwarded_for = self.forwarded_for;
        if !forwarded_for.is_empty() {
            forwarded_for.push_str(", ");
        }
        let _ = write!(forwarded_for, "{}", to.peer);
        set(headers, X_FORWARDED_FOR, &forwarded_for);
        set(headers, X_REAL_IP, &to.client.to_string());
        if let Some(mut forwarded) = self.forwarded {
            let peer = match to.peer {
                IpAddr::V4(address) => address.to_string(),
                IpAddr::V6(address) => format!("\"[{address}]\""),
            };
            let _ = write!(forwarded, ", for={peer}");
            set(headers, FORWARDED, &forwarded);
        }
        headers.insert(X_FORWARDED_PROTO, self.proto.unwrap_or_else(|| HeaderValue::from_static(to.scheme)));
        if let Some(host) = self.host.or_else(|| headers.get(HOST).cloned()) {
            headers.insert(X_FORWARDED_HOST, host);
        }
    }
}

fn set(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

/// All lines of a list header as one.
fn joined(headers: &HeaderMap, name: HeaderName) -> Option<String> {
    let lines: Vec<&str> = headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    (!lines.is_empty()).then(|| lines.join(", "))
}

/// The value of a header that is there exactly once.
fn single(headers: &HeaderMap, name: HeaderName) -> Option<HeaderValue> {
    let mut lines = headers.get_all(name).iter();
    let value = lines.next()?;
    lines.next().is_none().then(|| value.clone())
}
