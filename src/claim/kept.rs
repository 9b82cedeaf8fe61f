//! The backend's first answer to a claim, kept in the store so that every repeat gets the same one.

use bytes::{BufMut as _, Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, DATE, HeaderName, HeaderValue, SET_COOKIE, TRANSFER_ENCODING};
use http::response::Parts;
use http::{Response, StatusCode};
use serde::{Deserialize, Serialize};

use crate::body::Body;

/// Answers longer than this are passed on and not kept.
pub const MAX_ANSWER: usize = 64 * 1024;
/// Says that this answer was given before.
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

#[derive(Serialize, Deserialize)]
struct Head {
    status: u16,
    headers: Vec<(String, String)>,
}

/// An answer as it is kept: its head as a line of JSON, then its body as it was.
#[must_use]
pub fn keep(head: &Parts, body: &[u8]) -> Option<Vec<u8>> {
    let headers = head
        .headers
        .iter()
        .filter(|(name, _)| ![CONNECTION, CONTENT_LENGTH, DATE, SET_COOKIE, TRANSFER_ENCODING].contains(name))
        .filter_map(|(name, value)| Some((name.as_str().to_owned(), value.to_str().ok()?.to_owned())))
        .collect();
    let status = head.status.as_u16();
    let mut kept = serde_json::to_vec(&Head { status, headers }).ok()?;
    kept.push(b'\n');
    kept.extend_from_slice(body);
    (kept.len() <= MAX_ANSWER).then_some(kept)
}

/// The answer that was kept, marked as a repeat. None when it is not what [`keep`] wrote.
#[must_use]
pub fn replay(kept: &[u8]) -> Option<Response<Body>> {
    let end = kept.iter().position(|&byte| byte == b'\n')?;
    let head: Head = serde_json::from_slice(&kept[..end]).ok()?;
    let mut body = BytesMut::with_capacity(kept.len() - end);
    body.put_slice(&kept[end + 1..]);
    let mut response = Response::new(Body::full(Bytes::from(body)));
    *response.status_mut() = StatusCode::from_u16(head.status).ok()?;
    for (name, value) in head.headers {
        response
            .headers_mut()
            .append(HeaderName::try_from(name).ok()?, HeaderValue::try_from(value).ok()?);
    }
    response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    Some(response)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt as _;

    #[tokio::test]
    async fn a_repeat_is_the_first_answer() {
        let first = Response::builder()
            .status(201)
            .header("content-type", "text/plain")
            .header("location", "/order/7")
            .header("set-cookie", "shop=1")
            .body(())
            .unwrap();
        let kept = keep(&first.into_parts().0, b"yours\n\x00\xff").unwrap();
        let response = replay(&kept).unwrap();
        assert_eq!(response.status(), 201);
        assert_eq!(response.headers()["location"], "/order/7");
        assert_eq!(response.headers()["idempotency-replayed"], "true");
        assert!(
            !response.headers().contains_key("set-cookie"),
            "a session of another moment is not repeated"
        );
        assert_eq!(&response.into_body().collect().await.unwrap().to_bytes()[..], b"yours\n\x00\xff");
    }

    #[test]
    fn what_was_not_kept_by_us_is_not_replayed() {
        assert!(replay(b"").is_none());
        assert!(replay(b"{}\n").is_none());
        assert!(replay(b"{\"status\":99999,\"headers\":[]}\n").is_none());
        let long = Response::new(()).into_parts().0;
        assert!(keep(&long, &vec![0; MAX_ANSWER]).is_none());
    }
}
