//! Ids by which one request is found again: its own, and the trace it belongs to.
//!
//! `X-Request-Id` is believed from trusted proxies, and made here otherwise. `traceparent` and `tracestate` (W3C Trace Context) are passed on as
//! they came: we take no part in a trace. What is not well formed goes no further, so that a backend sees one of each or none.

use bytes::Bytes;
use data_encoding::HEXLOWER;
use http::header::{HeaderMap, HeaderName, HeaderValue};

/// The header of a request's id.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
/// Bytes of an id at most.
const MAX_ID: usize = 128;
/// Bytes of a `tracestate` that must be passed on; a longer one is dropped.
const MAX_STATE: usize = 512;

/// The id of a request: the one a trusted proxy gave it, or a new one of 128 random bits. It secures nothing.
#[must_use]
pub fn request_id(headers: &HeaderMap, trusted_peer: bool) -> HeaderValue {
    if trusted_peer && let Some(given) = headers.get(REQUEST_ID) {
        let id = given.as_bytes();
        if (1..=MAX_ID).contains(&id.len()) && id.iter().all(u8::is_ascii_graphic) {
            return given.clone();
        }
    }
    let mut text = vec![0; 32];
    HEXLOWER.encode_mut(&fastrand::u128(..).to_be_bytes(), &mut text);
    HeaderValue::from_maybe_shared(Bytes::from(text)).unwrap_or(HeaderValue::from_static("-")) // hexadecimal digits always are
}

/// Leaves one well-formed `traceparent` and `tracestate`, or none.
pub fn tidy(headers: &mut HeaderMap) {
    if !headers.contains_key(TRACEPARENT) && !headers.contains_key(TRACESTATE) {
        return;
    }
    if id(headers).is_none() {
        headers.remove(TRACEPARENT);
        headers.remove(TRACESTATE);
        return;
    }
    let lines: Vec<&str> = headers
        .get_all(TRACESTATE)
        .iter()
        .map(|line| line.to_str().unwrap_or("\u{0}"))
        .collect();
    let state = lines.join(",");
    let good = !state.is_empty() && state.len() <= MAX_STATE && state.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
    match HeaderValue::try_from(state).ok().filter(|_| good) {
        Some(state) => drop(headers.insert(TRACESTATE, state)),
        None => drop(headers.remove(TRACESTATE)),
    }
}

/// The id of the trace, where there is one well-formed `traceparent`.
#[must_use]
pub fn id(headers: &HeaderMap) -> Option<&str> {
    let mut lines = headers.get_all(TRACEPARENT).iter();
    let line = lines.next()?.to_str().ok()?;
    if lines.next().is_some() {
        return None;
    }
    let mut fields = line.splitn(5, '-');
    let (version, trace, parent, flags) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
    let more = fields.next().is_some();
    let hex = |field: &str, length: usize| field.len() == length && field.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let zero = |field: &str| field.bytes().all(|byte| byte == b'0');
    let good = hex(version, 2) && version != "ff" && (version != "00" || !more) && hex(trace, 32) && !zero(trace);
    (good && hex(parent, 16) && !zero(parent) && hex(flags, 2)).then_some(trace)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn tidied(lines: &[(&'static str, &str)]) -> (Vec<String>, Vec<String>) {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, value.parse().unwrap());
        }
        tidy(&mut headers);
        let all = |name: &str| {
            let values = headers.get_all(name).iter();
            values.map(|value| value.to_str().unwrap().to_owned()).collect()
        };
        (all("traceparent"), all("tracestate"))
    }

    #[test]
    fn a_good_trace_passes_and_a_bad_one_does_not() {
        let one = |parent: &str| tidied(&[("traceparent", parent), ("tracestate", "a=1")]);
        assert_eq!(one(GOOD), (vec![GOOD.to_owned()], vec!["a=1".to_owned()]));
        let later = GOOD.replacen("00", "cc", 1) + "-more";
        assert_eq!(one(&later).0, [later]);
        for bad in [
            "".to_owned(),
            GOOD.to_uppercase(),
            GOOD.replacen("00", "ff", 1),
            format!("{GOOD}-more"),
            GOOD.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            GOOD.replace("00f067aa0ba902b7", &"0".repeat(16)),
            GOOD.replace("4bf9", "4bf"),
        ] {
            assert_eq!(one(&bad), (vec![], vec![]), "{bad}");
        }
        assert_eq!(tidied(&[("traceparent", GOOD), ("traceparent", GOOD)]), (vec![], vec![]));
        assert_eq!(tidied(&[("tracestate", "a=1")]), (vec![], vec![]));
        let two = tidied(&[("traceparent", GOOD), ("tracestate", "a=1"), ("tracestate", "b=2")]);
        assert_eq!(two.1, ["a=1,b=2"]);
        assert_eq!(
            tidied(&[("traceparent", GOOD), ("tracestate", &"x".repeat(513))]).1,
            Vec::<String>::new()
        );
    }

    #[test]
    fn an_id_is_believed_from_those_we_trust() {
        let of = |value: &str, trusted| {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, HeaderValue::from_bytes(value.as_bytes()).unwrap());
            request_id(&headers, trusted)
        };
        assert_eq!(of("abc-1", true), "abc-1");
        let fresh = of("abc-1", false);
        assert!(fresh.len() == 32 && fresh != of("abc-1", false), "{fresh:?}");
        for bad in ["a b", "", "ä", &"x".repeat(129)] {
            assert_eq!(of(bad, true).len(), 32, "{bad}");
        }
    }
}
