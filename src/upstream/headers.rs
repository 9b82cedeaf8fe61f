//! What is taken off a message, and what is put on, on its way through.
//!
//! First everything that belongs to one hop or that a client may have forged comes off, then ours goes on: so a `Connection: waitgate-user` of a
//! client can never take our own headers away. Names are compared with `_` as `-`, since many backends cannot tell the two apart.

use std::fmt::Write as _;
use std::net::IpAddr;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, COOKIE, FORWARDED, HOST, TRANSFER_ENCODING, UPGRADE, VIA};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Version};
use memchr::memchr;

use super::Outgoing;
use crate::config::ForwardedHeader;
use crate::visitor::crumbs;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id"); // ours by now
const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

/// Names, besides `X-Forwarded-*`, by which somebody in front tells a backend who the client is. Only a trusted proxy may, by the one that is configured.
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
/// Headers that are put on every request.
const ADDED: usize = 5;
/// Names that make some backends serve another path than the one that was gated. Nobody may.
const OTHER_PATH: [&str; 3] = ["x-original-url", "x-original-uri", "x-rewrite-url"];

/// Makes a client's head the backend's: strips, then adds.
pub(super) fn outgoing(parts: &mut Parts, to: &Outgoing<'_>, body_length: Option<u64>, upgrade: bool) {
    let version = parts.version;
    let headers = &mut parts.headers;
    headers.reserve(ADDED + to.added.len());
    let chain = Chain::read(headers, to);
    strip(headers, |name| is_hop(name) || name == "expect" || is_forged(name, to.believed));
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
    let mut last = None;
    for (name, value) in to.added {
        if last == Some(name) {
            headers.append(name, value.clone());
        } else {
            headers.insert(name, value.clone()); // in the place of whatever the client sent
        }
        last = Some(name);
    }
}

/// Makes a backend's head the client's. The `Upgrade` of an answered pass-through is put back by its module.
pub(super) fn incoming(headers: &mut HeaderMap) {
    strip(headers, is_hop);
}

/// Takes out of trailers what may not be there.
pub(super) fn clean_trailers(trailers: &mut HeaderMap) {
    strip(trailers, is_hop);
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

/// Takes off what is `unwanted`, and whatever `Connection` says belongs to one hop. What frames or addresses the message is never taken off on a
/// client's word. One look at each name, and nothing is allocated where nothing comes off.
fn strip(headers: &mut HeaderMap, unwanted: impl Fn(&str) -> bool) {
    let mut doomed: Vec<HeaderName> = Vec::new();
    if headers.contains_key(CONNECTION) {
        for value in headers.get_all(CONNECTION) {
            doomed.extend(words(value).filter_map(|word| HeaderName::from_bytes(word).ok()));
        }
        doomed.retain(|name| ![HOST, CONTENT_LENGTH, COOKIE, X_REQUEST_ID].contains(name));
    }
    doomed.extend(headers.keys().filter(|name| unwanted(name.as_str())).cloned());
    for name in doomed {
        headers.remove(name);
    }
}

/// Headers of one hop. `Proxy` itself too: CGI backends make `HTTP_PROXY` of it.
fn is_hop(name: &str) -> bool {
    matches!(
        name,
        "connection" | "keep-alive" | "te" | "trailer" | "transfer-encoding" | "upgrade" | "http2-settings" | "proxy"
    ) || name.starts_with("proxy-")
}

fn is_forged(name: &str, believed: Option<ForwardedHeader>) -> bool {
    if memchr(b'_', name.as_bytes()).is_some() {
        // Always, from a trusted proxy too: it writes the right name, and an underscore twin came through it from the client.
        let twin = name.replace('_', "-");
        let framing = matches!(twin.as_str(), "content-length" | "transfer-encoding");
        return framing || is_ours(&twin) || is_identity(&twin) || OTHER_PATH.contains(&twin.as_str());
    }
    let claimed = match believed {
        None => is_identity(name),
        Some(ForwardedHeader::XForwardedFor) => IDENTITY.contains(&name),
        Some(ForwardedHeader::Forwarded) => name == X_FORWARDED_FOR || (name != "forwarded" && IDENTITY.contains(&name)),
    };
    is_ours(name) || OTHER_PATH.contains(&name) || claimed
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
    crumbs(line.as_bytes())
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
        let Some(believed) = to.believed else { return chain };
        match believed {
            ForwardedHeader::XForwardedFor => chain.forwarded_for = joined(headers, X_FORWARDED_FOR).unwrap_or_default(),
            ForwardedHeader::Forwarded => chain.forwarded = joined(headers, FORWARDED),
        }
        if chain.forwarded_for.is_empty() && to.client != to.peer {
            chain.forwarded_for = to.client.to_string();
        }
        chain.proto = single(headers, X_FORWARDED_PROTO).filter(|value| value == "http" || value == "https");
        chain.host = single(headers, X_FORWARDED_HOST);
        chain
    }

    fn write(self, headers: &mut HeaderMap, to: &Outgoing<'_>) {
        let peer = written(to.peer);
        let client = if to.client == to.peer { peer.clone() } else { written(to.client) };
        if self.forwarded_for.is_empty() {
            headers.insert(X_FORWARDED_FOR, peer);
        } else {
            set(headers, X_FORWARDED_FOR, &format!("{}, {}", self.forwarded_for, to.peer));
        }
        headers.insert(X_REAL_IP, client);
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

/// An address as a header's value. The v4 one by hand: formatting it costs more than all else that is put on.
fn written(address: IpAddr) -> HeaderValue {
    let mut text = Vec::with_capacity(40);
    match address {
        IpAddr::V4(v4) => {
            for (at, octet) in v4.octets().into_iter().enumerate() {
                if at > 0 {
                    text.push(b'.');
                }
                if octet >= 100 {
                    text.push(b'0' + octet / 100);
                }
                if octet >= 10 {
                    text.push(b'0' + octet / 10 % 10);
                }
                text.push(b'0' + octet % 10);
            }
        }
        IpAddr::V6(v6) => text.extend_from_slice(v6.to_string().as_bytes()),
    }
    HeaderValue::from_maybe_shared(Bytes::from(text)).unwrap_or(HeaderValue::from_static("unknown")) // digits, dots and colons always are
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sent(lines: &[(String, String)], believed: Option<ForwardedHeader>) -> HeaderMap {
        let group = crate::upstream::Group::nobody();
        let mut head = http::Request::get("/x").body(()).unwrap().into_parts().0;
        for (name, value) in lines {
            if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_bytes(value.as_bytes())) {
                head.headers.append(name, value);
            }
        }
        head.headers.insert(HOST, HeaderValue::from_static("shop.example"));
        let mut added = HeaderMap::new();
        added.insert("waitgate-user", HeaderValue::from_static("ann"));
        let to = Outgoing {
            to: &group,
            client: "203.0.113.7".parse().unwrap(),
            peer: if believed.is_some() { "10.0.0.1" } else { "203.0.113.7" }.parse().unwrap(),
            scheme: "https",
            believed,
            added: &added,
            cookie_prefixes: &["wgt_".to_owned(), "__Host-wgt_".to_owned()],
            served_by: None,
            path_and_query: None,
        };
        outgoing(&mut head, &to, Some(0), false);
        head.headers
    }

    /// Names that mean something, in spellings that some backends take for them, and others.
    fn name() -> impl Strategy<Value = String> {
        let known = vec![
            "connection",
            "keep-alive",
            "te",
            "trailer",
            "transfer-encoding",
            "upgrade",
            "proxy-authorization",
            "proxy-connection",
            "expect",
            "x-forwarded-for",
            "x-forwarded-proto",
            "x-forwarded-host",
            "x-real-ip",
            "forwarded",
            "cf-connecting-ip",
            "true-client-ip",
            "waitgate-user",
            "waitgate-room",
            "waitgate-admission",
            "x-original-url",
            "x-rewrite-url",
            "accept",
            "x-shop",
            "cookie",
        ];
        (prop::sample::select(known), 0_u8..3).prop_map(|(name, spelling)| match spelling {
            0 => name.to_owned(),
            1 => name.to_ascii_uppercase(),
            _ => name.replace('-', "_"),
        })
    }

    proptest! {
        /// CASES 55 and 56: whatever a stranger sends, a backend sees nothing of one hop, each name by which it is told who asks once and ours, in no
        /// other spelling, and what is nobody's business but its own as it was.
        #[test]
        fn a_backend_is_told_what_we_say(lines in prop::collection::vec((name(), prop::sample::select(vec![
            "6.6.6.6", "for=6.6.6.6", "evil", "close, waitgate-user, x-forwarded-proto, host, cookie", "a, b", "https", "",
        ]).prop_map(str::to_owned)), 0..14)) {
            let seen = sent(&lines, None);
            for (name, value) in [("x-forwarded-for", "203.0.113.7"), ("x-real-ip", "203.0.113.7"), ("x-forwarded-proto", "https"), ("waitgate-user", "ann"), ("host", "shop.example")] {
                let all: Vec<_> = seen.get_all(name).iter().collect();
                prop_assert_eq!(all, vec![value], "{}", name);
            }
            for key in seen.keys().map(HeaderName::as_str) {
                let plain = key.replace('_', "-");
                prop_assert!(!is_hop(key) && key != "expect" && !OTHER_PATH.contains(&plain.as_str()), "{}", key);
                let ours = is_ours(&plain) && key != "waitgate-user";
                let told = ["x-forwarded-for", "x-real-ip", "x-forwarded-proto", "x-forwarded-host"].contains(&key);
                prop_assert!(!ours && (told || !is_identity(&plain)), "{}", key);
            }
            let named = lines.iter().any(|(name, value)| name.eq_ignore_ascii_case("connection") && value.contains("x-shop"));
            let shop = lines.iter().filter(|(name, _)| name.eq_ignore_ascii_case("x-shop")).count();
            prop_assert!(named || seen.get_all("x-shop").iter().count() == shop);
        }

        /// CASE 74: behind a proxy the backend is told the address by what the proxy is believed by, by `X-Forwarded-For` and by `X-Real-IP`, and by no
        /// name that only the client may have written.
        #[test]
        fn behind_a_proxy_only_its_word_counts(lines in prop::collection::vec((name(), Just("6.6.6.6".to_owned())), 0..14), by_forwarded: bool) {
            let believed = if by_forwarded { ForwardedHeader::Forwarded } else { ForwardedHeader::XForwardedFor };
            let seen = sent(&lines, Some(believed));
            let of = |name: &str| seen.get_all(name).iter().map(|value| value.to_str().unwrap().to_owned()).collect::<Vec<_>>();
            prop_assert_eq!(of("x-real-ip"), ["203.0.113.7"]);
            let chain = of("x-forwarded-for");
            prop_assert!(chain.len() == 1 && chain[0].ends_with("10.0.0.1"), "{:?}", chain);
            prop_assert!(!by_forwarded || !chain[0].contains("6.6.6.6"), "{:?}", chain);
            prop_assert!(by_forwarded || of("forwarded").is_empty());
            for name in ["cf-connecting-ip", "true-client-ip"] {
                prop_assert!(of(name).is_empty(), "{}", name);
            }
        }

        /// CASES 7 and 26: our cookies go nowhere, and the shop's arrive as they were, in their order, whatever they are made of and however many
        /// lines they came in.
        #[test]
        fn the_shops_cookies_arrive_as_they_were(crumbs in prop::collection::vec((0_u8..4, "[!-:<-~]{0,12}"), 1..12), lines in 1_usize..4) {
            let crumb = |(kind, value): &(u8, String)| match kind {
                0 => format!("wgt_42={value}"),
                1 => format!("__Host-wgt_42={value}"),
                2 => format!("shop={value}"),
                _ => format!("x{value}"),
            };
            let all: Vec<String> = crumbs.iter().map(crumb).collect();
            let size = all.len().div_ceil(lines);
            let sent_lines: Vec<_> = all.chunks(size).map(|chunk| ("cookie".to_owned(), chunk.join("; "))).collect();
            let expected = all.iter().filter(|crumb| !crumb.starts_with("wgt_") && !crumb.starts_with("__Host-wgt_"));
            let expected = expected.cloned().collect::<Vec<_>>().join("; ");
            let seen = sent(&sent_lines, None);
            let seen: Vec<_> = seen.get_all("cookie").iter().map(|line| line.to_str().unwrap().to_owned()).collect();
            prop_assert_eq!(seen, if expected.is_empty() { vec![] } else { vec![expected] });
        }

        /// An address is written as everybody writes it.
        #[test]
        fn an_address_is_written_as_it_is(address: std::net::IpAddr) {
            let value = written(address);
            prop_assert_eq!(value.to_str().unwrap(), address.to_string());
        }
    }
}
