//! Bodies of operators' requests: small, quick, and JSON if they are anything.

use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http_body::Body as _;
use http_body_util::{BodyExt, LengthLimitError, Limited};

use crate::body::Body;
use crate::fault::ClientFault;
use crate::response::problem::Problem;

/// Bytes of a request body at most.
const MAX_BODY: usize = 16 * 1024;
/// How long a request body may take.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// Reads a body that is small, quick, and JSON if it is anything.
pub(super) async fn read(parts: &Parts, body: Body) -> Result<Bytes, Problem> {
    let too_large = || {
        let detail = format!("A body may have {MAX_BODY} bytes.");
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", "The body is too large", detail)
    };
    if body.size_hint().lower() > MAX_BODY as u64 {
        return Err(too_large());
    }
    let collected = tokio::time::timeout(BODY_TIMEOUT, Limited::new(body, MAX_BODY).collect()).await;
    let bytes = match collected {
        Err(_) => {
            let detail = "The body stopped coming.";
            return Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", "Too slow", detail));
        }
        Ok(Err(error)) if error.is::<LengthLimitError>() => return Err(too_large()),
        // What the listener's own limits said.
        Ok(Err(error)) => {
            let fault = error.downcast::<ClientFault>().map_or(ClientFault::Gone, |fault| *fault);
            return Err(Problem::of(&fault.into()));
        }
        Ok(Ok(collected)) => collected.to_bytes(),
    };
    // A page cannot send this type to another site without being asked first, and we never say yes.
    if !bytes.is_empty() && !is_json(parts) {
        let detail = "Send the body as `Content-Type: application/json`.";
        return Err(Problem::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported_media_type",
            "The body is not JSON",
            detail,
        ));
    }
    Ok(bytes)
}

fn is_json(parts: &Parts) -> bool {
    let value = parts.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = value.map(|value| value.split(';').next().unwrap_or(value).trim());
    essence.is_some_and(|essence| essence.eq_ignore_ascii_case("application/json"))
}

/// Settling takes no body; an empty object is let pass, because some clients always send one.
pub(super) fn nothing(body: &[u8]) -> Result<(), Problem> {
    let object = serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(body);
    if body.is_empty() || object.is_ok_and(|object| object.is_empty()) {
        return Ok(());
    }
    let detail = "This route takes no body.";
    Err(Problem::new(
        StatusCode::BAD_REQUEST,
        "malformed_body",
        "The body cannot be read",
        detail,
    ))
}
