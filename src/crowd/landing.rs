//! What a page turned out to be: the shop's, the waiting page, or a notice.

use std::time::Duration;

use http::{HeaderMap, StatusCode};

use super::seen::Stand;
use super::wire::Reply;

/// What a page turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Landing {
    /// The shop's page.
    Shop,
    /// The waiting page, which reloads itself after this long where there is no JavaScript.
    Line { refresh: Duration },
    /// "No".
    SoldOut,
    /// Asked too often, or too much is going on: ask again after this long.
    TooMany { retry_after: Duration },
    /// No longer in line, or the room is closed.
    Over,
    /// None of these.
    Strange,
}

/// Tells pages apart.
pub(super) fn land(reply: &Reply) -> Landing {
    match reply.code().as_deref() {
        Some("sold_out") => return Landing::SoldOut,
        Some("rate_limited") => {
            return Landing::TooMany {
                retry_after: reply.retry_after(Duration::from_secs(1)),
            };
        }
        _ => {}
    }
    match page_state(&reply.headers, &reply.body) {
        Some(Stand::SoldOut) => Landing::SoldOut,
        Some(Stand::Gone | Stand::Closed) => Landing::Over,
        Some(_) => Landing::Line {
            refresh: refresh_after(&reply.body),
        },
        None if matches!(reply.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) => Landing::TooMany {
            retry_after: reply.retry_after(Duration::from_secs(1)),
        },
        // Whatever else is a good answer comes from behind the gateway.
        None if reply.status.is_success() => Landing::Shop,
        None => Landing::Strange,
    }
}

/// The state a waiting page is in: its `data-state`.
fn page_state(headers: &HeaderMap, body: &[u8]) -> Option<Stand> {
    let html = headers.get(http::header::CONTENT_TYPE)?.to_str().ok()?.starts_with("text/html");
    if !html {
        return None;
    }
    let text = std::str::from_utf8(body).ok()?;
    let state = between_marks(text, "<body data-state=\"", "\"")?;
    serde_json::from_value(serde_json::Value::String(state.to_owned())).ok()
}

/// When a page without JavaScript reloads itself.
fn refresh_after(body: &[u8]) -> Duration {
    let stated = std::str::from_utf8(body)
        .ok()
        .and_then(|text| between_marks(text, "http-equiv=\"refresh\" content=\"", "\"")?.parse().ok());
    Duration::from_secs(stated.unwrap_or(10))
}

/// The text between two marks.
pub(super) fn between_marks<'a>(text: &'a str, before: &str, after: &str) -> Option<&'a str> {
    let start = text.find(before)? + before.len();
    let length = text[start..].find(after)?;
    Some(&text[start..start + length])
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn reply(status: u16, headers: &[(&'static str, &str)], body: &str) -> Reply {
        Reply {
            status: StatusCode::from_u16(status).unwrap(),
            headers: headers
                .iter()
                .map(|(name, value)| (http::HeaderName::from_static(name), http::HeaderValue::from_str(value).unwrap()))
                .collect(),
            body: Bytes::copy_from_slice(body.as_bytes()),
            took: Duration::ZERO,
        }
    }

    #[test]
    fn pages_are_told_apart() {
        let html = [("content-type", "text/html; charset=utf-8")];
        assert_eq!(land(&reply(200, &[("shop-page", "sale")], "")), Landing::Shop);
        let page = "<body data-state=\"waiting\"><noscript><meta http-equiv=\"refresh\" content=\"7\"></noscript>";
        let refresh = Duration::from_secs(7);
        assert_eq!(land(&reply(200, &html, page)), Landing::Line { refresh });
        assert_eq!(land(&reply(200, &html, "<body data-state=\"sold_out\">")), Landing::SoldOut);
        assert_eq!(
            land(&reply(
                409,
                &[("content-type", "application/problem+json")],
                "{\"code\":\"sold_out\"}"
            )),
            Landing::SoldOut
        );
        let retry_after = Duration::from_secs(3);
        assert_eq!(land(&reply(429, &[("retry-after", "3")], "")), Landing::TooMany { retry_after });
        assert_eq!(land(&reply(502, &html, "<html>")), Landing::Strange);
    }
}
