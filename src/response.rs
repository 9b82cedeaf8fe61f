//! The gateway's own answers: pages and problems, HTML or JSON.
//!
//! A navigation gets a page, a script gets JSON: never HTML to a fetch. Every answer made here is `no-store`.

use std::borrow::Cow;
use std::fmt::Write as _;

use bytes::Bytes;
use http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_LANGUAGE, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue, LOCATION, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, Method, Response, StatusCode};
use serde::Serialize;

use crate::body::Body;

pub mod pages;
pub mod problem;
pub mod view;

use pages::{Language, Pages};

const X_REQUESTED_WITH: HeaderName = HeaderName::from_static("x-requested-with");
const SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
const SEC_FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");
const X_ROBOTS_TAG: HeaderName = HeaderName::from_static("x-robots-tag");

/// Who reads the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// A person: the browser shows what comes.
    Person,
    /// A script, or a program.
    Script,
}

/// Who reads the answer to this request. `Sec-Fetch-Mode` knows; where it is missing, `Accept` and `X-Requested-With` decide.
#[must_use]
pub fn reader(method: &Method, headers: &HeaderMap) -> Reader {
    if !matches!(*method, Method::GET | Method::HEAD | Method::POST) {
        return Reader::Script;
    }
    if let Some(mode) = headers.get(SEC_FETCH_MODE) {
        let shown = headers.get(SEC_FETCH_DEST).is_none_or(|dest| dest != "empty");
        return if mode == "navigate" && shown {
            Reader::Person
        } else {
            Reader::Script
        };
    }
    if headers.contains_key(X_REQUESTED_WITH) {
        return Reader::Script;
    }
    let html = headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|range| range.trim_start().starts_with("text/html"));
    if html { Reader::Person } else { Reader::Script }
}

/// A page of ours.
#[must_use]
pub fn page(status: StatusCode, html: Bytes, pages: &Pages, language: Language) -> Response<Body> {
    let mut response = Response::new(Body::full(html));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(CONTENT_SECURITY_POLICY, pages.policy());
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    headers.insert(X_ROBOTS_TAG, HeaderValue::from_static("noindex"));
    if let Ok(tag) = HeaderValue::try_from(pages.tag(language)) {
        headers.insert(CONTENT_LANGUAGE, tag);
    }
    response
}

/// JSON of ours.
#[must_use]
pub fn json(status: StatusCode, value: &impl Serialize) -> Response<Body> {
    // Numbers, words and maps with string keys always become JSON.
    let mut response = Response::new(Body::full(serde_json::to_vec(value).unwrap_or_default()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// "See other": a form was posted, and the person goes on there with a GET. The target must have come through [`local`].
#[must_use]
pub fn see_other(target: &str) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SEE_OTHER;
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(LOCATION, HeaderValue::try_from(target).unwrap_or(HeaderValue::from_static("/")));
    response
}

/// A path and query of this very origin, or `/`: whatever a browser could read as another origin is not followed. What is no ASCII is encoded, as
/// browsers do it: a `Location` holds nothing else.
#[must_use]
pub fn local(target: &str) -> Cow<'_, str> {
    let path = target.split(['?', '#']).next().unwrap_or_default();
    let good = path.starts_with('/')
        && target.len() <= 2048
        && target.bytes().all(|byte| byte > b' ' && byte != 0x7f && byte != b'\\')
        && !path.contains("//")
        && !path.split('/').any(|segment| matches!(segment, "." | ".."));
    match good {
        false => Cow::Borrowed("/"),
        true if target.is_ascii() => Cow::Borrowed(target),
        true => Cow::Owned(encoded(target)),
    }
}

fn encoded(target: &str) -> String {
    let mut ascii = String::with_capacity(target.len() * 3);
    for byte in target.bytes() {
        if byte.is_ascii() {
            ascii.push(char::from(byte));
        } else {
            let _ = write!(ascii, "%{byte:02X}"); // a string takes everything
        }
    }
    ascii
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(method: &Method, headers: &[(&'static str, &str)]) -> Reader {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().unwrap());
        }
        reader(method, &map)
    }

    /// CASE 11: never HTML to a fetch.
    #[test]
    fn a_page_for_a_person_and_json_for_a_script() {
        let browser = ("accept", "text/html,application/xhtml+xml,*/*;q=0.8");
        assert_eq!(read(&Method::GET, &[browser]), Reader::Person);
        assert_eq!(read(&Method::GET, &[browser, ("sec-fetch-mode", "navigate")]), Reader::Person);
        assert_eq!(
            read(&Method::GET, &[("accept", "*/*"), ("sec-fetch-mode", "navigate")]),
            Reader::Person
        );
        for mode in ["cors", "no-cors", "same-origin", "websocket"] {
            assert_eq!(read(&Method::GET, &[browser, ("sec-fetch-mode", mode)]), Reader::Script);
        }
        assert_eq!(
            read(&Method::GET, &[browser, ("x-requested-with", "XMLHttpRequest")]),
            Reader::Script
        );
        assert_eq!(read(&Method::GET, &[("accept", "application/json")]), Reader::Script);
        assert_eq!(read(&Method::GET, &[("accept", "*/*")]), Reader::Script);
        assert_eq!(read(&Method::GET, &[]), Reader::Script);
        assert_eq!(read(&Method::DELETE, &[browser]), Reader::Script);
    }

    /// CASE 23: no way out to another origin.
    #[test]
    fn a_return_target_stays_at_home() {
        for foreign in [
            "//e.com",
            "/\\e.com",
            "\\\\e.com",
            "https:e.com",
            "https://e.com",
            "/.//e.com",
            "/x/..//e.com",
            "/a\r\nSet-Cookie: x=1",
            "/a b",
            "/\te.com",
            "",
            "e.com",
            "/../x",
        ] {
            assert_eq!(local(foreign), "/", "{foreign:?}");
        }
        for own in [
            "/",
            "/sale",
            "/sale?a=1&b=%2F%20+&next=//x",
            "/%09/e.com",
            "/%5ce.com",
            "/sale/x?x=%E2%9C%93#part",
        ] {
            assert_eq!(local(own), own);
        }
        assert_eq!(local("/sale?x=\u{2713}"), "/sale?x=%E2%9C%93");
        assert_eq!(local("/\u{ff0f}e.com"), "/%EF%BC%8Fe.com", "what looks like a slash is none");
    }
}
