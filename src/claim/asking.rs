//! What a claim asks for: its body's fingerprint, its key, its units.

use aws_lc_rs::digest;
use data_encoding::BASE64URL_NOPAD;
use http::header::{CONTENT_TYPE, HeaderName};
use http::request::Parts;

/// The header of the same name (IETF draft), as payment APIs use it.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// Bytes of an idempotency key at most.
const MAX_KEY: usize = 128;
/// Units that one claim may ask for at most, whatever the room's limit.
const MAX_UNITS: u64 = 1_000_000;

/// A claim that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// The key is too long, repeated, or not printable.
    Key,
    /// The units are no whole number from 1.
    Units,
}

/// The `Idempotency-Key`, without the quotes of the draft's grammar; empty when there is none.
///
/// # Errors
/// There are several, or it is too long or not printable.
pub fn key(head: &Parts) -> Result<String, Unreadable> {
    let mut values = head.headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(first) = values.next() else {
        return Ok(String::new());
    };
    let text = first.to_str().map_err(|_| Unreadable::Key)?.trim();
    let text = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(text);
    let good = values.next().is_none() && !text.is_empty() && text.len() <= MAX_KEY && text.bytes().all(|byte| byte.is_ascii_graphic());
    good.then(|| text.to_owned()).ok_or(Unreadable::Key)
}

/// The same for the same method, path, query and body, and for nothing else.
#[must_use]
pub fn fingerprint(head: &Parts, body: &[u8]) -> String {
    let mut hash = digest::Context::new(&digest::SHA256);
    for part in [
        head.method.as_str().as_bytes(),
        b"\n",
        head.uri.path_and_query().map_or("/", |path| path.as_str()).as_bytes(),
        b"\n",
        body,
    ] {
        hash.update(part);
    }
    BASE64URL_NOPAD.encode(hash.finish().as_ref())
}

/// Units asked for: the body's field, JSON or form; one where it is missing.
///
/// # Errors
/// The field is there and is no whole number from 1.
pub fn units(head: &Parts, body: &[u8], field: &str) -> Result<u64, Unreadable> {
    let kind = head
        .headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    let found = if kind.eq_ignore_ascii_case("application/x-www-form-urlencoded") {
        in_form(body, field)
    } else if kind.eq_ignore_ascii_case("application/json") || kind.to_ascii_lowercase().ends_with("+json") {
        in_json(body, field)?
    } else {
        None
    };
    match found {
        None => Ok(1),
        Some(text) => text
            .parse()
            .ok()
            .filter(|units| (1..=MAX_UNITS).contains(units))
            .ok_or(Unreadable::Units),
    }
}

fn in_json(body: &[u8], field: &str) -> Result<Option<String>, Unreadable> {
    match serde_json::from_slice::<serde_json::Value>(body) {
        Ok(serde_json::Value::Object(object)) => match object.get(field) {
            None => Ok(None),
            Some(serde_json::Value::Number(number)) => Ok(Some(number.to_string())),
            Some(serde_json::Value::String(text)) => Ok(Some(text.clone())),
            Some(_) => Err(Unreadable::Units),
        },
        // A body that is no object says nothing of units; the backend will have its own opinion of it.
        _ => Ok(None),
    }
}

fn in_form(body: &[u8], field: &str) -> Option<String> {
    let text = std::str::from_utf8(body).ok()?;
    text.split('&').find_map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (name == field).then(|| value.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(headers: &[(&str, &str)]) -> Parts {
        let mut request = http::Request::post("/sale/claim?x=1");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn units_come_from_the_body() {
        let json = head(&[("content-type", "application/json; charset=utf-8")]);
        let form = head(&[("content-type", "application/x-www-form-urlencoded")]);
        assert_eq!(units(&json, br#"{"quantity":3}"#, "quantity"), Ok(3));
        assert_eq!(units(&json, br#"{"quantity":"2"}"#, "quantity"), Ok(2));
        assert_eq!(units(&json, br#"{"size":"L"}"#, "quantity"), Ok(1));
        assert_eq!(units(&json, b"not json", "quantity"), Ok(1));
        assert_eq!(units(&form, b"size=L&quantity=2", "quantity"), Ok(2));
        assert_eq!(units(&form, b"", "quantity"), Ok(1));
        assert_eq!(units(&head(&[]), b"quantity=9", "quantity"), Ok(1));
        for bad in [
            &br#"{"quantity":0}"#[..],
            br#"{"quantity":-1}"#,
            br#"{"quantity":1.5}"#,
            br#"{"quantity":[1]}"#,
            br#"{"quantity":1e9}"#,
        ] {
            assert_eq!(units(&json, bad, "quantity"), Err(Unreadable::Units));
        }
        assert_eq!(units(&form, b"quantity=", "quantity"), Err(Unreadable::Units));
        assert_eq!(units(&form, b"quantity=+1x", "quantity"), Err(Unreadable::Units));
    }

    #[test]
    fn a_key_is_one_short_printable_word() {
        assert_eq!(key(&head(&[])), Ok(String::new()));
        assert_eq!(key(&head(&[("idempotency-key", "\"abc-1\"")])), Ok("abc-1".to_owned()));
        assert_eq!(key(&head(&[("idempotency-key", "abc-1")])), Ok("abc-1".to_owned()));
        for bad in ["", "a b", "\u{e9}", &"x".repeat(129)] {
            assert_eq!(key(&head(&[("idempotency-key", bad)])), Err(Unreadable::Key), "{bad}");
        }
        assert_eq!(
            key(&head(&[("idempotency-key", "a"), ("idempotency-key", "b")])),
            Err(Unreadable::Key)
        );
    }

    /// CASE 121: another body, path or query is another claim.
    #[test]
    fn a_fingerprint_is_of_the_whole_claim() {
        let one = fingerprint(&head(&[]), b"a");
        assert_eq!(one, fingerprint(&head(&[("user-agent", "x")]), b"a"));
        assert_ne!(one, fingerprint(&head(&[]), b"b"));
        let mut other = head(&[]);
        other.uri = "/sale/claim?x=2".parse().unwrap();
        assert_ne!(one, fingerprint(&other, b"a"));
    }
}
