//! Refusals and faults as `application/problem+json` (RFC 9457), with a stable `code` for programs.

use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::access::Code;
use crate::body::Body;
use crate::fault::Fault;

/// A problem to be told to whoever asked.
#[derive(Clone, Debug)]
pub struct Problem {
    /// The status of the answer, repeated in the body.
    pub status: StatusCode,
    /// What programs look at: stable, snake_case.
    pub code: &'static str,
    /// The same for every problem of this code.
    pub title: &'static str,
    /// A sentence about this very request.
    pub detail: String,
    /// Further members of the body.
    pub fields: Map<String, Value>,
    /// Further headers of the answer: `Retry-After`, `Allow`, …
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

/// The body as it is written.
#[derive(Serialize)]
struct Written<'a> {
    r#type: &'static str,
    title: &'a str,
    status: u16,
    code: &'a str,
    detail: &'a str,
    #[serde(flatten)]
    fields: &'a Map<String, Value>,
}

impl Problem {
    /// A problem without further members or headers.
    pub fn new(status: StatusCode, code: &'static str, title: &'static str, detail: impl Into<String>) -> Self {
        Self {
            status,
            code,
            title,
            detail: detail.into(),
            fields: Map::new(),
            headers: Vec::new(),
        }
    }

    /// What a fault looks like from outside: its own sentence, never its causes.
    #[must_use]
    pub fn of(fault: &Fault) -> Self {
        let title = match fault {
            Fault::Client(_) => "The request cannot be served",
            Fault::Upstream(_) => "The shop did not answer",
            Fault::Store(_) => "The line cannot be reached",
            Fault::Us(_) => "Something went wrong here",
        };
        let detail = match fault {
            Fault::Us(_) => "The fault is ours and has been logged.".to_owned(),
            Fault::Store(_) => "The store of the line did not answer; asking again in a moment is safe.".to_owned(),
            Fault::Client(_) | Fault::Upstream(_) => fault.to_string(),
        };
        Self::new(fault.status(), fault.code(), title, detail)
    }

    /// Adds a member to the body. The standard members cannot be replaced.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        if !matches!(key, "type" | "title" | "status" | "code" | "detail") {
            self.fields.insert(key.to_owned(), value.into());
        }
        self
    }

    /// Adds a header to the answer.
    #[must_use]
    pub fn header(mut self, name: HeaderName, value: impl Into<HeaderValue>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// The answer.
    #[must_use]
    pub fn into_response(self) -> Response<Body> {
        let written = Written {
            r#type: "about:blank",
            title: self.title,
            status: self.status.as_u16(),
            code: self.code,
            detail: &self.detail,
            fields: &self.fields,
        };
        // Strings, numbers and maps with string keys always become JSON.
        let bytes = serde_json::to_vec(&written).unwrap_or_default();
        let mut response = Response::new(Body::full(bytes));
        *response.status_mut() = self.status;
        response.extensions_mut().insert(Code(self.code));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        for (name, value) in self.headers {
            headers.append(name, value);
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use http::header::RETRY_AFTER;
    use http_body_util::BodyExt;

    use super::*;
    use crate::fault::StoreFault;

    #[tokio::test]
    async fn a_problem_is_written_with_its_members_and_headers() {
        let response = Problem::new(StatusCode::TOO_MANY_REQUESTS, "waiting_room", "There is a line", "Wait a little.")
            .with("retry_after_s", 3)
            .with("status", 200)
            .header(RETRY_AFTER, 3)
            .into_response();
        assert_eq!(response.status(), 429);
        assert_eq!(response.headers()[RETRY_AFTER], "3");
        assert_eq!(response.headers()[CACHE_CONTROL], "no-store");
        assert_eq!(response.headers()[CONTENT_TYPE], "application/problem+json");
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(
            std::str::from_utf8(&bytes).unwrap(),
            r#"{"type":"about:blank","title":"There is a line","status":429,"code":"waiting_room","detail":"Wait a little.","retry_after_s":3}"#
        );
    }

    #[test]
    fn a_fault_keeps_its_causes_to_itself() {
        let fault = Fault::Us("the cause, with a path in it".to_owned());
        assert!(!Problem::of(&fault).detail.contains("cause"));
        let problem = Problem::of(&Fault::Store(StoreFault::Away));
        assert_eq!((problem.status.as_u16(), problem.code), (503, "store_unavailable"));
    }
}
