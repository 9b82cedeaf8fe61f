//! What a claim asks for: its body's fingerprint, its key, its units.

use aws_lc_rs::digest;
use data_encoding::{BASE64URL_NOPAD, HEXLOWER_PERMISSIVE};
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderName};
use http::request::Parts;
use memchr::memchr;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};

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

/// Units asked for: the body's field, JSON or form; one where it is missing. What a backend could read as another number than we do is refused: the
/// field twice, in an odd spelling, in a body that is packed, in one of a kind that is not read here, or another number of them in the query.
///
/// # Errors
/// The field is there and is no whole number from 1, or it is not clear what it says.
pub fn units(head: &Parts, body: &[u8], field: &str) -> Result<u64, Unreadable> {
    let units = in_body(head, body, field)?;
    // Where a framework makes one of both, the query's word may count before the body's.
    let query = in_form(head.uri.query().unwrap_or_default().as_bytes(), field)?;
    let agreed = query.iter().all(|text| text.parse() == Ok(units));
    agreed.then_some(units).ok_or(Unreadable::Units)
}

fn in_body(head: &Parts, body: &[u8], field: &str) -> Result<u64, Unreadable> {
    if body.is_empty() {
        return Ok(1);
    }
    if head.headers.contains_key(CONTENT_ENCODING) {
        return Err(Unreadable::Units);
    }
    let mut kinds = head.headers.get_all(CONTENT_TYPE).iter();
    let kind = kinds.next().and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let said = match kind.as_str() {
        _ if kinds.next().is_some() => None,
        "application/x-www-form-urlencoded" => Some(in_form(body, field)?),
        json if json == "application/json" || json.ends_with("+json") => match in_json(body, field) {
            None if hides_names(body) => return Err(Unreadable::Units),
            said => said,
        },
        _ => None,
    };
    match said.as_deref() {
        Some([]) => Ok(1),
        Some([text]) => text
            .parse()
            .ok()
            .filter(|units| (1..=MAX_UNITS).contains(units))
            .ok_or(Unreadable::Units),
        Some(_) => Err(Unreadable::Units),
        // The backend may have its own opinion of it, but then not of the units.
        None if mentions(body, field) || mentions(unescaped(body).as_bytes(), field) => Err(Unreadable::Units),
        None => Ok(1),
    }
}

/// Whatever an object says under the field's name, whose case some backends do not heed. None: it is no object.
fn in_json(body: &[u8], field: &str) -> Option<Vec<String>> {
    let Pairs(pairs) = serde_json::from_slice(body).ok()?;
    let named = pairs.into_iter().filter(|(name, _)| name.eq_ignore_ascii_case(field));
    Some(
        named
            .map(|(_, value)| value.as_str().map_or_else(|| value.to_string(), str::to_owned))
            .collect(),
    )
}

/// A JSON object with each of its names, also those that are there twice.
struct Pairs(Vec<(String, serde_json::Value)>);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;

        impl<'de> Visitor<'de> for Object {
            type Value = Pairs;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }

        deserializer.deserialize_map(Object)
    }
}

/// Whatever a form says under the field's name. Some backends part fields at `;` too, cut spaces off a name and take `quantity[]` for `quantity`:
/// what names the field only for them is refused.
fn in_form(body: &[u8], field: &str) -> Result<Vec<String>, Unreadable> {
    let mut said = Vec::new();
    for pair in body.split(|byte| *byte == b'&') {
        for (at, piece) in pair.split(|byte| *byte == b';').enumerate() {
            let name = unescaped(piece.split(|byte| *byte == b'=').next().unwrap_or_default());
            let bare = name.split(['[', '\0']).next().unwrap_or_default().trim();
            if at == 0 && name.eq_ignore_ascii_case(field) {
                let value = memchr(b'=', pair).and_then(|at| pair.get(at + 1..));
                said.push(unescaped(value.unwrap_or_default()));
            } else if [name.trim(), bare].iter().any(|name| name.eq_ignore_ascii_case(field)) {
                return Err(Unreadable::Units);
            }
        }
    }
    Ok(said)
}

/// A body that is no JSON object to us may still be one to a lenient reader, and name the field by escapes or in another encoding.
fn hides_names(body: &[u8]) -> bool {
    body.windows(2).any(|pair| matches!(pair, b"\\u" | b"\\x" | [0, _] | [_, 0]))
}

/// A name or a value of a form, as it was before it was escaped.
fn unescaped(text: &[u8]) -> String {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, tail @ ..] = rest {
        let escaped = (*first == b'%').then(|| tail.get(..2)).flatten();
        let byte = escaped.and_then(|digits| HEXLOWER_PERMISSIVE.decode(digits).ok());
        plain.push(byte.as_ref().map_or(if *first == b'+' { b' ' } else { *first }, |byte| byte[0]));
        rest = if byte.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8_lossy(&plain).into_owned()
}

fn mentions(body: &[u8], field: &str) -> bool {
    body.windows(field.len().max(1))
        .any(|part| part.eq_ignore_ascii_case(field.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
        assert_eq!(units(&head(&[]), b"any 9", "quantity"), Ok(1));
        assert_eq!(units(&json, br#"{"Quantity":3}"#, "quantity"), Ok(3));
        assert_eq!(units(&form, b"%71uantity=%33", "quantity"), Ok(3));
        for bad in [
            &br#"{"quantity":0}"#[..],
            br#"{"quantity":-1}"#,
            br#"{"quantity":1.5}"#,
            br#"{"quantity":[1]}"#,
            br#"{"quantity":1e9}"#,
        ] {
            assert_eq!(units(&json, bad, "quantity"), Err(Unreadable::Units));
        }
        assert_eq!(units(&form, b"x=1;y=2&quantity=3", "quantity"), Ok(3));
        assert_eq!(units(&form, b"order%5Bquantity%5D=3", "order[quantity]"), Ok(3));
        let queried = |query: &str, body: &[u8]| {
            let mut head = form.clone();
            head.uri = format!("/sale/claim?{query}").parse().unwrap();
            units(&head, body, "quantity")
        };
        assert_eq!(queried("quantity=3", b"quantity=3"), Ok(3));
        assert_eq!(queried("quantity=1&x=2", b""), Ok(1));
        for (query, body) in [
            ("quantity=3", &b""[..]),
            ("q%75antity=3", b"quantity=1"),
            ("quantity[]=3", b""),
            ("quantity", b""),
        ] {
            assert_eq!(queried(query, body), Err(Unreadable::Units), "{query}");
        }
    }

    /// What a backend could read as another number: the first or the last, its own form, after unpacking.
    #[test]
    fn units_that_are_not_clear_are_refused() {
        let json = head(&[("content-type", "application/json; charset=utf-8")]);
        let form = head(&[("content-type", "application/x-www-form-urlencoded")]);
        let packed = head(&[("content-type", "application/json"), ("content-encoding", "gzip")]);
        let parts = head(&[("content-type", "multipart/form-data; boundary=x")]);
        let two = head(&[("content-type", "application/json"), ("content-type", "text/plain")]);
        for (kind, unclear) in [
            (&json, &br#"{"quantity":1,"quantity":5}"#[..]),
            (&json, br#"{"quantity":1,"Quantity":5}"#),
            (&json, br#"{'quantity':5}"#),
            (&json, br#"[{"quantity":5}]"#),
            (&form, b"quantity=1&quantity=5"),
            (&form, b"quantity=1&%71uantity=5"),
            (&json, br#"{"\u0071uantity":5,}"#),
            (&json, br#"[{"\u0071uantity":5}]"#),
            (&json, br#"{'\x71uantity':5}"#),
            (&json, b"{\x00\"\x00q\x00u\x00\"\x00:\x005\x00}\x00"),
            (&json, b"\xef\xbb\xbf{\"quantity\":5}"),
            (&form, b"x=1;quantity=5"),
            (&form, b"quantity=1;quantity=5"),
            (&form, b"quantity[]=5"),
            (&form, b"quantity%5B0%5D=5"),
            (&form, b"+quantity=5"),
            (&form, b"quantity%00x=5"),
            (&head(&[]), b"q%75antity=9"),
            (&packed, b"\x1f\x8b"),
            (
                &parts,
                b"--x\r\nContent-Disposition: form-data; name=\"quantity\"\r\n\r\n5\r\n--x--",
            ),
            (&two, br#"{"quantity":5}"#),
            (&head(&[]), b"quantity=9"),
        ] {
            assert_eq!(
                units(kind, unclear, "quantity"),
                Err(Unreadable::Units),
                "{}",
                String::from_utf8_lossy(unclear)
            );
        }
        assert_eq!(units(&form, b"quantity=", "quantity"), Err(Unreadable::Units));
        assert_eq!(units(&form, b"quantity=+1x", "quantity"), Err(Unreadable::Units));
    }

    proptest! {
        /// Any body is read or refused, and nothing but a number that it says is taken for the units.
        #[test]
        fn any_body_is_read_or_refused(body in prop::collection::vec(any::<u8>(), 0..80), form: bool) {
            let kind = if form { "application/x-www-form-urlencoded" } else { "application/json" };
            let read = units(&head(&[("content-type", kind)]), &body, "quantity");
            let digits = body.iter().any(u8::is_ascii_digit);
            prop_assert!(matches!(read, Ok(1) | Err(_)) || digits);
        }

        /// A form says what was put into it, however it is escaped, and refuses to be read in two ways.
        #[test]
        fn a_form_says_what_was_put_into_it(count in 1_u64..5000, escaped in prop::collection::vec(any::<bool>(), 8), again: bool) {
            let name: String = "quantity".bytes().zip(&escaped).map(|(byte, escape)| if *escape { format!("%{byte:02X}") } else { char::from(byte).to_string() }).collect();
            let mut body = format!("size=L&{name}={count}&x=%zz");
            if again {
                body.push_str(&format!("&quantity={count}"));
            }
            let read = units(&head(&[("content-type", "application/x-www-form-urlencoded")]), body.as_bytes(), "quantity");
            prop_assert_eq!(read, if again { Err(Unreadable::Units) } else { Ok(count) });
        }
    }

    /// Names of the field that some backend takes for it, and what stands between fields for one.
    fn odd_name() -> impl Strategy<Value = String> {
        let ends = prop::sample::select(vec!["", "[]", "[0]", "%5b%5D", "+", "%20", "%00x", " "]);
        let spellings = prop::collection::vec(0_u8..4, 8);
        (prop::sample::select(vec!["", "+", "%20"]), spellings, ends).prop_map(|(begin, spellings, end)| {
            let letter = |(byte, spelling): (u8, u8)| match spelling {
                0 => format!("%{byte:02x}"),
                1 => char::from(byte.to_ascii_uppercase()).to_string(),
                _ => char::from(byte).to_string(),
            };
            let name: String = "quantity".bytes().zip(spellings).map(letter).collect();
            format!("{begin}{name}{end}")
        })
    }

    /// The units that a lenient backend finds in a form, with everything forgiven.
    fn lenient_backend(form: &str) -> Vec<u64> {
        let pairs = form.split(['&', ';']).filter_map(|pair| pair.split_once('='));
        let named = pairs.filter(|(name, _)| {
            let name = unescaped(name.as_bytes()).to_ascii_lowercase();
            name.trim().split(['[', '\0']).next().is_some_and(|name| name.trim() == "quantity")
        });
        named.filter_map(|(_, value)| value.parse().ok()).collect()
    }

    proptest! {
        /// CASE 121: no backend, however lenient, finds another number in a form than the one that was taken from the stock.
        #[test]
        fn nobody_finds_other_units_in_a_form(pairs in prop::collection::vec((prop_oneof![3 => odd_name(), 1 => Just("quantity".to_owned()), 3 => Just("size".to_owned())], 1_u64..9, prop::sample::select(vec!["&", ";"])), 0..4)) {
            let form: String = pairs.iter().map(|(name, units, after)| format!("{name}={units}{after}")).collect();
            let found = lenient_backend(&form);
            if let Ok(units) = units(&head(&[("content-type", "application/x-www-form-urlencoded")]), form.as_bytes(), "quantity") {
                prop_assert!(found.iter().all(|other| *other == units), "{form}: {units}, or {found:?}");
            }
        }
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
