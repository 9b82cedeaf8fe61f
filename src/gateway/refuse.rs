//! How a "no" is said: a page to a person, a problem to a script.

use bytes::Bytes;
use http::header::{ACCEPT_LANGUAGE, ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::request::Parts;
use http::{Method, Response, StatusCode};

use crate::access::Code;
use crate::body::Body;
use crate::fault::{ClientFault, Fault, UpstreamFault};
use crate::limit::Over;
use crate::response::pages::{Language, Notice, NoticePage};
use crate::response::problem::Problem;
use crate::response::{self, Reader};
use crate::waiting::hall::{Hall, House};

/// Who reads the refusal, in which language, and where "try again" leads.
#[derive(Clone, Debug)]
pub(super) struct Refusal {
    pub(super) reader: Reader,
    accept_language: Option<HeaderValue>,
    here: Option<String>,
}

impl Refusal {
    pub(super) fn of(head: &Parts) -> Self {
        let reader = response::reader(&head.method, &head.headers);
        Self {
            reader,
            accept_language: head.headers.get(ACCEPT_LANGUAGE).filter(|_| reader == Reader::Person).cloned(),
            here: (reader == Reader::Person && head.method == Method::GET).then(|| response::local(super::target(head)).into_owned()),
        }
    }

    /// A person of whom nothing else is known.
    pub(super) fn person() -> Self {
        Self {
            reader: Reader::Person,
            accept_language: None,
            here: None,
        }
    }

    /// Path and query of the page a person asked for.
    pub(super) fn here(&self) -> Option<&str> {
        self.here.as_deref()
    }

    pub(super) fn language(&self, house: &House) -> Language {
        let accepted = self.accept_language.as_ref().and_then(|value| value.to_str().ok());
        house.pages.language(accepted, None)
    }

    /// The problem, or a notice that says the same to a person.
    pub(super) fn say(&self, house: &House, room: Option<&str>, notice: Notice, problem: Problem) -> Response<Body> {
        if self.reader == Reader::Script {
            return problem.into_response();
        }
        let retry_after = problem
            .headers
            .iter()
            .find(|(name, _)| name == RETRY_AFTER)
            .map(|(_, value)| value.clone());
        let retry_after_s = retry_after
            .as_ref()
            .and_then(|value| value.to_str().ok()?.parse().ok())
            .unwrap_or(0);
        let language = self.language(house);
        let page = NoticePage {
            notice,
            room,
            here: self.here.as_deref(),
            retry_after_s,
        };
        let mut response = response::page(problem.status, house.pages.notice(language, &page), &house.pages, language);
        response.extensions_mut().insert(Code(problem.code));
        if let Some(retry_after) = retry_after {
            response.headers_mut().insert(RETRY_AFTER, retry_after);
        }
        response
    }

    pub(super) fn throttled(&self, house: &House, over: Over) -> Response<Body> {
        let after = over.retry_after_s();
        let mut response = if self.reader == Reader::Script {
            throttled_problem(after)
        } else {
            self.say(house, None, Notice::RateLimited, long_throttled(after))
        };
        for (name, value) in over.headers() {
            if let Ok(value) = HeaderValue::try_from(value) {
                response.headers_mut().insert(name, value);
            }
        }
        response
    }

    /// The address is on the list of those that are not served.
    pub(super) fn denied(&self) -> Response<Body> {
        let problem = Problem::new(StatusCode::FORBIDDEN, "denied", "Not served", "This address is not served here.");
        problem.into_response()
    }

    pub(super) fn not_found(&self, house: &House) -> Response<Body> {
        let problem = Problem::new(
            StatusCode::NOT_FOUND,
            "not_found",
            "Not found",
            "No room and no backend is known under this address.",
        );
        self.say(house, None, Notice::NotFound, problem)
    }

    pub(super) fn closed(&self, house: &House, hall: &Hall) -> Response<Body> {
        let problem = Problem::new(StatusCode::FORBIDDEN, "closed", "The room is closed", "Nobody is let in any more.");
        self.say(house, Some(&hall.room.id), Notice::Closed, problem)
    }

    /// The answer that nearly everybody gets: the same bytes for all, written once per language.
    pub(super) fn sold_out(&self, house: &House, hall: &Hall) -> Response<Body> {
        if self.reader == Reader::Script {
            return sold_out_problem();
        }
        let language = self.language(house);
        let known = hall.sold_out_pages.get(&language).map(|page| Bytes::clone(&page));
        let page = known.unwrap_or_else(|| {
            let page = NoticePage {
                notice: Notice::SoldOut,
                room: Some(&hall.room.id),
                here: Some(""), // one page for all addresses: an empty link leads to its own
                retry_after_s: 0,
            };
            let page = house.pages.notice(language, &page);
            hall.sold_out_pages.insert(language, page.clone());
            page
        });
        response::page(StatusCode::CONFLICT, page, &house.pages, language)
    }

    pub(super) fn all_held(&self, house: &House, hall: &Hall) -> Response<Body> {
        let problem = Problem::new(
            StatusCode::CONFLICT,
            "all_held",
            "All units are held",
            "Every unit is held by somebody who may still not pay; some may return.",
        )
        .header(RETRY_AFTER, 5);
        self.say(house, Some(&hall.room.id), Notice::AllHeld, problem)
    }

    /// What broke, logged here, where it stops.
    pub(super) fn fault(&self, house: &House, fault: &Fault) -> Response<Body> {
        let notice = match fault {
            Fault::Client(ClientFault::Malformed(_) | ClientFault::Gone) => Notice::BadRequest,
            Fault::Client(ClientFault::BodyTooLarge { .. }) => Notice::TooLarge,
            Fault::Client(ClientFault::BodyTimeout) => Notice::TooSlow,
            Fault::Upstream(UpstreamFault::Connect(_) | UpstreamFault::Busy) => Notice::BackendDown,
            Fault::Upstream(UpstreamFault::Timeout | UpstreamFault::Broken(_) | UpstreamFault::Malformed(_)) => Notice::BackendUnsure,
            Fault::Store(_) => Notice::Unavailable,
            Fault::Us(_) => Notice::Error,
        };
        match fault {
            Fault::Client(_) => tracing::debug!(code = fault.code(), %fault, "a request was refused"),
            Fault::Upstream(_) | Fault::Store(_) => tracing::warn!(code = fault.code(), fault = with_causes(fault), "a request failed"),
            Fault::Us(_) => tracing::error!(code = fault.code(), %fault, "a request failed by our own mistake"),
        }
        let mut problem = Problem::of(fault);
        if problem.status == StatusCode::SERVICE_UNAVAILABLE {
            problem = problem.header(RETRY_AFTER, fastrand::u64(2..6));
        }
        if matches!(fault, Fault::Upstream(_)) {
            problem = problem.with("may_have_run", fault.may_have_run());
        }
        let mut response = self.say(house, None, notice, problem);
        if fault.ends_connection() {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close")); // HTTP/2 leaves it out
        }
        response
    }
}

/// [`Problem`] would write the same, anew for each of twenty thousand.
fn sold_out_problem() -> Response<Body> {
    const BODY: &[u8] = br#"{"type":"about:blank","title":"Sold out","status":409,"code":"sold_out","detail":"All units are sold."}"#;
    let mut response = Response::new(Body::full(Bytes::from_static(BODY)));
    *response.status_mut() = StatusCode::CONFLICT;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn long_throttled(after_s: u64) -> Problem {
    let detail = format!("Ask again in {after_s} s.");
    Problem::new(StatusCode::TOO_MANY_REQUESTS, "rate_limited", "Too many requests", detail)
        .with("retry_after_s", after_s)
        .header(RETRY_AFTER, after_s)
}

/// [`Problem`] would write the same, at three times the price, to whoever asks too often.
fn throttled_problem(after_s: u64) -> Response<Body> {
    let body = format!(
        r#"{{"type":"about:blank","title":"Too many requests","status":429,"code":"rate_limited","detail":"Ask again in {after_s} s.","retry_after_s":{after_s}}}"#
    );
    let mut response = Response::new(Body::full(body));
    *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(RETRY_AFTER, HeaderValue::from(after_s));
    response
}

/// A fault and what caused it, in one line.
fn with_causes(fault: &Fault) -> String {
    let mut line = fault.to_string();
    let mut cause = std::error::Error::source(fault);
    while let Some(deeper) = cause {
        let said = deeper.to_string();
        if !line.ends_with(&said) {
            line = format!("{line}: {said}");
        }
        cause = deeper.source();
    }
    line
}

/// The public keys. They may be kept for a moment: a rotation is announced minutes before it signs.
pub(super) fn keys(jwks: Bytes) -> Response<Body> {
    let mut response = Response::new(Body::full(jwks));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/jwk-set+json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("public, max-age=60"));
    response
}

pub(super) fn wrong_method(allowed: &Method) -> Response<Body> {
    let mut problem = Problem::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "wrong_method",
        "Another method is wanted",
        format!("This route wants {allowed}."),
    );
    if let Ok(value) = HeaderValue::try_from(allowed.as_str()) {
        problem = problem.header(ALLOW, value);
    }
    problem.into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt as _;

    #[tokio::test]
    async fn the_short_no_is_the_problem_it_stands_for() {
        let long = Problem::new(StatusCode::CONFLICT, "sold_out", "Sold out", "All units are sold.").into_response();
        let short = sold_out_problem();
        assert_eq!((short.status(), short.headers()), (long.status(), long.headers()));
        let body = |response: Response<Body>| async { response.into_body().collect().await.unwrap().to_bytes() };
        assert_eq!(body(short).await, body(long).await);
        let (long, short) = (long_throttled(17).into_response(), throttled_problem(17));
        assert_eq!((short.status(), short.headers()), (long.status(), long.headers()));
        assert_eq!(body(short).await, body(long).await);
    }
}
