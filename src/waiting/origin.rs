//! Whose script asks: the waiting routes answer this origin, and those a room lists.
//!
//! A foreign page must not open a visitor's WebSocket, nor enter or leave in his name. A script of a listed origin is told so by CORS.

use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Response, StatusCode};

use super::Route;
use crate::body::Body;
use crate::response::problem::Problem;

/// Refuses what a foreign page asks in a visitor's name. Reading a status is left to the browser's own rules.
#[must_use]
pub fn refuse_foreign(head: &Parts, route: Route, authority: &str, listed: &[String]) -> Option<Response<Body>> {
    let acts = matches!(route, Route::Socket | Route::Enter | Route::Leave | Route::Join);
    let foreign = acts && !may_act(&head.headers, authority, listed);
    foreign.then(|| {
        let detail = "This may be asked by pages of the same origin, or of one that the room lists, only.";
        Problem::new(StatusCode::FORBIDDEN, "foreign_origin", "Asked by a foreign page", detail).into_response()
    })
}

fn may_act(headers: &HeaderMap, authority: &str, listed: &[String]) -> bool {
    match headers.get(ORIGIN) {
        Some(origin) => {
            let origin = origin.to_str().unwrap_or_default();
            is_own(origin, authority) || listed.iter().any(|known| known == origin)
        }
        // No Origin: not a browser's script, or a navigation; Sec-Fetch-Site tells the two apart from a foreign form.
        None => headers
            .get("sec-fetch-site")
            .is_none_or(|site| site == "same-origin" || site == "none"),
    }
}

fn is_own(origin: &str, authority: &str) -> bool {
    let host = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
    host.is_some_and(|host| host.eq_ignore_ascii_case(authority))
}

/// Answers a preflight of a listed origin; nobody is counted or asked for it. None: not a preflight, or not one of ours.
#[must_use]
pub fn preflight(head: &Parts, listed: &[String]) -> Option<Response<Body>> {
    let asked = || head.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD);
    (head.method == http::Method::OPTIONS && asked() && listed_origin(&head.headers, listed).is_some()).then(|| {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NO_CONTENT;
        let headers = response.headers_mut();
        headers.insert(http::header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST"));
        headers.insert(
            ACCESS_CONTROL_ALLOW_HEADERS,
            HeaderValue::from_static("content-type, idempotency-key, waitgate-admission"),
        );
        headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
        response
    })
}

/// Lets a script of a listed origin read an answer of ours, refusals included.
pub fn allow(origin: Option<&HeaderValue>, listed: &[String], headers: &mut HeaderMap) {
    if listed.is_empty() {
        return;
    }
    headers.append(VARY, HeaderValue::from_static("Origin"));
    let Some(origin) = origin.filter(|origin| listed.iter().any(|known| known.as_bytes() == origin.as_bytes())) else {
        return;
    };
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
    headers.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
    headers.insert(
        ACCESS_CONTROL_EXPOSE_HEADERS,
        HeaderValue::from_static("retry-after, idempotency-replayed"),
    );
}

fn listed_origin<'h>(headers: &'h HeaderMap, listed: &[String]) -> Option<&'h HeaderValue> {
    headers
        .get(ORIGIN)
        .filter(|origin| listed.iter().any(|known| known.as_bytes() == origin.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn may(headers: &[(&'static str, &str)]) -> bool {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, value.parse().unwrap());
        }
        may_act(&map, "shop.example:8443", &["https://m.example".to_owned()])
    }

    /// CASE 49: a foreign page does not act in a visitor's name.
    #[test]
    fn only_own_and_listed_pages_act() {
        assert!(may(&[("origin", "https://shop.example:8443")]));
        assert!(may(&[("origin", "https://m.example")]));
        assert!(may(&[]));
        assert!(may(&[("sec-fetch-site", "same-origin")]));
        for foreign in [
            "https://evil.example",
            "https://shop.example",
            "null",
            "https://shop.example:8443.evil.example",
            "file://",
        ] {
            assert!(!may(&[("origin", foreign)]), "{foreign}");
        }
        assert!(!may(&[("sec-fetch-site", "cross-site")]));
        assert!(!may(&[("sec-fetch-site", "same-site")]));
    }

    proptest! {
        /// CASE 49: whatever else an `Origin` is made of, however near to one of ours, and whatever else the browser says of the page: it does not act.
        #[test]
        fn whatever_is_not_ours_does_not_act(
            (scheme, before, host, port, after) in (
                prop::sample::select(vec!["https://", "http://", "HTTPS://", "ws://", "", "https:", "https:///", "null"]),
                prop::sample::select(vec!["", "", "", "evil.", "evil@", "m.example@", " ", "\t", "."]),
                prop::sample::select(vec!["shop.example", "SHOP.example", "m.example", "M.example", "evil.example", "[::1]", ""]),
                prop::sample::select(vec![":8443", ":443", ":", "", ":08443", ":8443:8443"]),
                prop::sample::select(vec!["", "", "", "/", ".", ".evil.example", "#", "?", "%00", ", https://m.example", " ", "\\", "\u{e9}"]),
            ),
            site in prop::sample::select(vec!["same-origin", "none", "same-site", "cross-site"]),
        ) {
            let origin = format!("{scheme}{before}{host}{port}{after}");
            let seen = http::HeaderValue::from_bytes(origin.as_bytes()).unwrap();
            let mut headers = HeaderMap::new();
            headers.insert("origin", seen);
            headers.insert("sec-fetch-site", site.parse().unwrap());
            let own = ["https://shop.example:8443", "http://shop.example:8443", "https://SHOP.example:8443", "http://SHOP.example:8443", "https://m.example"];
            let acts = may_act(&headers, "shop.example:8443", &["https://m.example".to_owned()]);
            prop_assert_eq!(acts, own.contains(&origin.as_str()), "{}", origin);
        }

        /// And so it is with any bytes at all.
        #[test]
        fn any_bytes_are_no_origin_of_ours(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            if let Ok(origin) = HeaderValue::from_bytes(&bytes) {
                let headers = HeaderMap::from_iter([(ORIGIN, origin)]);
                prop_assert!(!may_act(&headers, "shop.example:8443", &["https://m.example".to_owned()]));
            }
        }
    }
}
