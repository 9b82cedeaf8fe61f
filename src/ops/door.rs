//! Who may ask the operators' listener, and under which name a change is written down.
//!
//! With a token: whoever brings it. Without one the listener is on loopback, where every program of the machine may ask, and so may every
//! page in a browser on it. A browser says where a request comes from, and a page that has pointed a name of its own at 127.0.0.1 (DNS
//! rebinding) cannot change the `Host` that the browser sends: so both are checked, and what a foreign page sends is refused.

use std::net::IpAddr;

use aws_lc_rs::{constant_time, digest};
use http::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue, ORIGIN, WWW_AUTHENTICATE};
use http::request::Parts;
use http::{Method, StatusCode};

use crate::config;
use crate::intake::Host;
use crate::response::problem::Problem;

/// The header in which operators give their name.
pub(super) const OPERATOR: HeaderName = HeaderName::from_static("waitgate-operator");
/// The header that names one operation, so that a repeat of it is known.
pub(super) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// Characters of an operator's name at most.
const MAX_NAME: usize = 64;
/// Bytes of an operation's id at most.
const MAX_OPERATION: usize = 128;

/// The check at the door.
#[derive(Debug)]
pub(super) struct Door {
    token: Option<config::Secret>,
    address: IpAddr,
}

/// A change, as it is written down.
#[derive(Debug)]
pub(super) struct Operation {
    /// Who makes it.
    pub(super) who: String,
    /// Its id: a repeat with the same one changes nothing more.
    pub(super) id: String,
}

impl Door {
    pub(super) fn new(settings: &config::Ops) -> Self {
        Self {
            token: settings.token.clone(),
            address: settings.listen.ip(),
        }
    }

    /// Lets the request in, or says why not.
    pub(super) fn check(&self, host: &Host, parts: &Parts) -> Result<(), Problem> {
        match &self.token {
            Some(token) => bearer(token.reveal(), &parts.headers),
            None => self.same_machine(host, parts),
        }
    }

    /// Under which name and id a change by this request is written down.
    pub(super) fn operation(&self, headers: &HeaderMap) -> Result<Operation, Problem> {
        let unnamed = if self.token.is_some() { "token" } else { "loopback" };
        let who = match headers.get(OPERATOR) {
            None => unnamed.to_owned(),
            Some(value) => name(value).ok_or_else(|| {
                bad_header(
                    "bad_operator",
                    format!("`Waitgate-Operator` must be 1 to {MAX_NAME} printable characters in UTF-8."),
                )
            })?,
        };
        let id = match headers.get(IDEMPOTENCY_KEY) {
            None => random_id()?,
            Some(value) => operation_id(value).ok_or_else(|| {
                bad_header(
                    "bad_idempotency_key",
                    format!("`Idempotency-Key` must be 1 to {MAX_OPERATION} printable ASCII characters."),
                )
            })?,
        };
        Ok(Operation { who, id })
    }

    /// Refuses what a foreign page in a browser on this machine sends.
    fn same_machine(&self, host: &Host, parts: &Parts) -> Result<(), Problem> {
        if !self.is_ours(host.name()) {
            return Err(forbidden(
                "foreign_host",
                "This listener has no token, so it answers only to localhost and to its own address.",
            ));
        }
        let foreign = || {
            forbidden(
                "foreign_origin",
                "This listener has no token, so it does not answer to pages of other sites.",
            )
        };
        for origin in parts.headers.get_all(ORIGIN) {
            let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
            if !origin.is_some_and(|(_, authority)| authority.eq_ignore_ascii_case(&host.authority)) {
                return Err(foreign());
            }
        }
        let says = |name: &str| parts.headers.get(name).map(HeaderValue::as_bytes);
        let elsewhere = !matches!(says("sec-fetch-site"), None | Some(b"same-origin" | b"none"));
        // Following a link to us shows nothing to the page that held it.
        let by_link =
            parts.method == Method::GET && says("sec-fetch-mode") == Some(b"navigate") && says("sec-fetch-dest") == Some(b"document");
        if elsewhere && !by_link { Err(foreign()) } else { Ok(()) }
    }

    /// Whether a page under this name can only come from this machine.
    fn is_ours(&self, name: &str) -> bool {
        let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
        match bare.parse::<IpAddr>() {
            Ok(address) => address.to_canonical().is_loopback() || address.to_canonical() == self.address.to_canonical(),
            Err(_) => name == "localhost" || name.ends_with(".localhost"),
        }
    }
}

/// Whether the request brings the token.
fn bearer(token: &str, headers: &HeaderMap) -> Result<(), Problem> {
    let refuse = |detail: &str, challenge: &'static str| {
        Err(
            Problem::new(StatusCode::UNAUTHORIZED, "token_required", "A token is required", detail)
                .header(WWW_AUTHENTICATE, HeaderValue::from_static(challenge)),
        )
    };
    let Some(value) = headers.get(AUTHORIZATION) else {
        return refuse(
            "Send `Authorization: Bearer TOKEN` with the token of this gateway's `ops.token_file`.",
            r#"Bearer realm="waitgate""#,
        );
    };
    let brought = value.as_bytes();
    let brought = match brought.split_at_checked(7) {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case(b"bearer ") => rest.trim_ascii(),
        Some(_) | None => b"",
    };
    if same(token.as_bytes(), brought) {
        return Ok(());
    }
    refuse(
        "The token is not the one of this gateway's `ops.token_file`.",
        r#"Bearer realm="waitgate", error="invalid_token""#,
    )
}

/// Compares in a time that tells nothing of either, not even the length.
fn same(ours: &[u8], theirs: &[u8]) -> bool {
    let (ours, theirs) = (digest::digest(&digest::SHA256, ours), digest::digest(&digest::SHA256, theirs));
    constant_time::verify_slices_are_equal(ours.as_ref(), theirs.as_ref()).is_ok()
}

/// An operator's name, if it is one.
fn name(value: &HeaderValue) -> Option<String> {
    let name = std::str::from_utf8(value.as_bytes()).ok()?.trim();
    let fits = (1..=MAX_NAME).contains(&name.chars().count()) && !name.chars().any(char::is_control);
    fits.then(|| name.to_owned())
}

/// An operation's id, if it is one.
fn operation_id(value: &HeaderValue) -> Option<String> {
    let id = value.to_str().ok()?.trim();
    (1..=MAX_OPERATION).contains(&id.len()).then(|| id.to_owned())
}

/// A new operation's id.
pub(super) fn random_id() -> Result<String, Problem> {
    let mut bytes = [0; 16];
    aws_lc_rs::rand::fill(&mut bytes).map_err(|_| {
        Problem::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal_error",
            "Something went wrong here",
            "The machine gave no random numbers.",
        )
    })?;
    Ok(data_encoding::HEXLOWER.encode(&bytes))
}

fn forbidden(code: &'static str, detail: &str) -> Problem {
    Problem::new(StatusCode::FORBIDDEN, code, "Not from there", detail)
}

fn bad_header(code: &'static str, detail: String) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, code, "A header is wrong", detail)
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn door(token: Option<&str>) -> Door {
        Door::new(&config::Ops {
            listen: "127.0.0.1:9090".parse().unwrap(),
            token: token.map(|token| config::Secret::new(token.to_owned())),
        })
    }

    fn refused(door: &Door, method: &str, headers: &[(&str, &str)]) -> Option<&'static str> {
        let mut request = Request::builder().method(method).uri("/v1/rooms");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(()).unwrap();
        let host = crate::intake::check(&request).unwrap();
        let (parts, ()) = request.into_parts();
        door.check(&host, &parts).err().map(|problem| problem.code)
    }

    #[test]
    fn without_a_token_only_this_machine_is_answered() {
        let door = door(None);
        for host in [
            "127.0.0.1:9090",
            "localhost:9090",
            "LOCALHOST",
            "[::1]:9090",
            "127.9.9.9",
            "ops.localhost",
        ] {
            assert_eq!(refused(&door, "PATCH", &[("host", host)]), None, "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:9090",
            "10.0.0.7",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "notlocalhost",
        ] {
            assert_eq!(refused(&door, "GET", &[("host", host)]), Some("foreign_host"), "{host}");
        }
    }

    #[test]
    fn a_foreign_page_is_refused() {
        let door = door(None);
        let ours = ("host", "127.0.0.1:9090");
        for origin in ["http://evil.example", "null", "http://127.0.0.1:8080", "http://localhost:9090"] {
            assert_eq!(
                refused(&door, "POST", &[ours, ("origin", origin)]),
                Some("foreign_origin"),
                "{origin}"
            );
        }
        assert_eq!(refused(&door, "POST", &[ours, ("origin", "http://127.0.0.1:9090")]), None);
        for site in ["cross-site", "same-site"] {
            assert_eq!(refused(&door, "GET", &[ours, ("sec-fetch-site", site)]), Some("foreign_origin"));
        }
        let link = [
            ours,
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-mode", "navigate"),
            ("sec-fetch-dest", "document"),
        ];
        assert_eq!(refused(&door, "GET", &link), None);
        assert_eq!(refused(&door, "POST", &link), Some("foreign_origin"));
        assert_eq!(refused(&door, "GET", &[ours, ("sec-fetch-site", "none")]), None);
    }

    #[test]
    fn with_a_token_only_the_token_counts() {
        let door = door(Some("0123456789abcdef"));
        let host = ("host", "ops.example");
        assert_eq!(refused(&door, "GET", &[host]), Some("token_required"));
        for wrong in [
            "Bearer 0123456789abcde",
            "Bearer ",
            "Bearer",
            "",
            "Basic 0123456789abcdef",
            "0123456789abcdef",
        ] {
            assert_eq!(
                refused(&door, "GET", &[host, ("authorization", wrong)]),
                Some("token_required"),
                "{wrong}"
            );
        }
        for right in ["Bearer 0123456789abcdef", "bearer  0123456789abcdef "] {
            assert_eq!(refused(&door, "GET", &[host, ("authorization", right)]), None, "{right}");
        }
    }

    #[test]
    fn a_change_is_written_down_under_a_name() {
        let mut headers = HeaderMap::new();
        let first = door(None).operation(&headers).unwrap();
        assert_eq!(first.who, "loopback");
        assert_eq!(first.id.len(), 32);
        assert_eq!(door(Some("t")).operation(&headers).unwrap().who, "token");
        headers.insert(OPERATOR, HeaderValue::from_bytes(" Hoàng ".as_bytes()).unwrap());
        headers.insert(IDEMPOTENCY_KEY, HeaderValue::from_static("k-1"));
        let named = door(None).operation(&headers).unwrap();
        assert_eq!((named.who.as_str(), named.id.as_str()), ("Hoàng", "k-1"));
        for bad in [vec![b'a'; 65], vec![0xff], vec![b'\t'], Vec::new(), "a\u{85}b".as_bytes().to_vec()] {
            headers.insert(OPERATOR, HeaderValue::from_bytes(&bad).unwrap());
            assert_eq!(door(None).operation(&headers).unwrap_err().code, "bad_operator", "{bad:?}");
        }
    }
}
