//! The body of `PATCH /v1/rooms/{id}`, read strictly: every mistake is named, and nothing is changed unless all of it is right.

use std::fmt;

use http::StatusCode;
use serde::Deserialize;
use serde::de::{MapAccess, Visitor};
use serde_json::{Value, json};

use crate::clock::UnixMs;
use crate::config::Rate;
use crate::response::problem::Problem;
use crate::store::scripts::Tuning;

/// Characters of a message at most: it is read on a phone.
const MAX_MESSAGE: usize = 500;
/// Stock and cap at most.
const MAX_COUNT: u64 = 1_000_000_000;

/// The members of a JSON object as they were written: `serde_json` would keep the last of two of one name.
struct Members(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Members;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Reader)
    }
}

/// What the body asks to change.
pub(super) fn read(body: &[u8]) -> Result<Tuning, Problem> {
    let Members(members) = serde_json::from_slice(body).map_err(|error| {
        let detail = format!("The body is not a JSON object that can be read: {error}.");
        Problem::new(StatusCode::BAD_REQUEST, "malformed_body", "The body cannot be read", detail)
    })?;
    let mut tuning = Tuning::default();
    let mut mistakes: Vec<(String, String)> = Vec::new();
    let mut seen: Vec<&str> = Vec::new();
    for (key, value) in &members {
        let outcome = if seen.contains(&key.as_str()) {
            Err("is there twice".to_owned())
        } else {
            set(&mut tuning, key, value)
        };
        if let Err(wrong) = outcome {
            mistakes.push((key.clone(), wrong));
        }
        seen.push(key);
    }
    if members.is_empty() {
        let detail = "The body names nothing to change.";
        return Err(Problem::new(
            StatusCode::BAD_REQUEST,
            "nothing_to_change",
            "Nothing to change",
            detail,
        ));
    }
    if let (Some(opens), Some(closes)) = (tuning.opens_at_ms, tuning.closes_at_ms)
        && closes != 0
        && closes <= opens
    {
        mistakes.push(("closes_at".to_owned(), "must be later than opens_at".to_owned()));
    }
    if mistakes.is_empty() { Ok(tuning) } else { Err(refuse(&mistakes)) }
}

/// Sets one member, or says what is wrong with it.
fn set(tuning: &mut Tuning, key: &str, value: &Value) -> Result<(), String> {
    match key {
        "rate" => tuning.rate_milli = Some(rate(value)?.milli()),
        "cap" => tuning.cap = Some(count(value)?),
        "stock" => tuning.stock = Some(count(value)?),
        "paused" => tuning.paused = Some(value.as_bool().ok_or("must be true or false")?),
        "message" => tuning.message = Some(message(value)?),
        "opens_at" => tuning.opens_at_ms = Some(time(value)?),
        "closes_at" => tuning.closes_at_ms = Some(time(value)?),
        _ => return Err("is not known: rate, cap, stock, paused, message, opens_at and closes_at are".to_owned()),
    }
    Ok(())
}

fn rate(value: &Value) -> Result<Rate, String> {
    match value {
        Value::Number(number) => number.to_string().parse(),
        Value::String(text) => text.parse(),
        _ => Err("must be a rate: 200, \"200/s\", \"100/min\" or \"50/h\"".to_owned()),
    }
}

fn count(value: &Value) -> Result<u64, String> {
    let fits = value.as_u64().filter(|count| *count <= MAX_COUNT);
    fits.ok_or_else(|| format!("must be a whole number from 0 to {MAX_COUNT}"))
}

fn message(value: &Value) -> Result<String, String> {
    let wrong = || format!("must be a text of at most {MAX_MESSAGE} characters in one line; \"\" takes it away");
    let text = value.as_str().map(str::trim).ok_or_else(wrong)?;
    let fits = text.chars().count() <= MAX_MESSAGE && !text.chars().any(char::is_control);
    if fits { Ok(text.to_owned()) } else { Err(wrong()) }
}

/// A time, or 0 for `null`.
fn time(value: &Value) -> Result<UnixMs, String> {
    let wrong = "must be a time such as \"2026-12-01T12:00:00Z\" or \"2026-12-01T19:00:00+07:00\", or null for none";
    match value {
        Value::Null => Ok(0),
        Value::String(text) => {
            let stamp: jiff::Timestamp = text.parse().map_err(|_| wrong)?;
            let at_ms = u64::try_from(stamp.as_millisecond()).map_err(|_| wrong)?;
            if at_ms == 0 { Err(wrong.to_owned()) } else { Ok(at_ms) }
        }
        _ => Err(wrong.to_owned()),
    }
}

fn refuse(mistakes: &[(String, String)]) -> Problem {
    let sentences: Vec<String> = mistakes.iter().map(|(key, wrong)| format!("`{}` {wrong}.", shown(key))).collect();
    let errors: Vec<Value> = mistakes
        .iter()
        .map(|(key, wrong)| json!({ "key": shown(key), "detail": wrong }))
        .collect();
    Problem::new(
        StatusCode::BAD_REQUEST,
        "bad_value",
        "The change cannot be made",
        format!("{} Nothing was changed.", sentences.join(" ")),
    )
    .with("errors", errors)
}

/// A key as it may be repeated: it came from outside.
fn shown(key: &str) -> String {
    key.chars().filter(|letter| !letter.is_control()).take(40).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong_keys(body: &str) -> Vec<String> {
        let problem = read(body.as_bytes()).unwrap_err();
        assert_eq!(problem.status, 400);
        problem.fields.get("errors").map_or_else(
            || vec![problem.code.to_owned()],
            |errors| {
                let errors = errors.as_array().unwrap();
                errors.iter().map(|error| error["key"].as_str().unwrap().to_owned()).collect()
            },
        )
    }

    #[test]
    fn a_whole_change_is_read() {
        let body = r#"{"rate":"100/min","cap":0,"paused":true,"stock":120,"message":" Chậm lại ","opens_at":"2026-12-01T19:00:00+07:00","closes_at":null}"#;
        let tuning = read(body.as_bytes()).unwrap();
        assert_eq!(
            tuning,
            Tuning {
                rate_milli: Some(1666),
                cap: Some(0),
                paused: Some(true),
                stock: Some(120),
                message: Some("Chậm lại".to_owned()),
                opens_at_ms: Some(1_796_126_400_000),
                closes_at_ms: Some(0),
            }
        );
        for (written, milli) in [("2.5", 2500), ("\"300/s\"", 300_000), ("0", 0), ("1e3", 1_000_000)] {
            let tuning = read(format!("{{\"rate\":{written}}}").as_bytes()).unwrap();
            assert_eq!(tuning.rate_milli, Some(milli), "{written}");
        }
    }

    #[test]
    fn every_mistake_is_named_at_once() {
        assert_eq!(
            wrong_keys(r#"{"rate":"fast","cap":-1,"paused":"yes","stock":1.5,"message":7,"opens_at":"noon","speed":1}"#),
            ["rate", "cap", "paused", "stock", "message", "opens_at", "speed"]
        );
        assert_eq!(wrong_keys(r#"{"cap":1,"cap":2}"#), ["cap"]);
        assert_eq!(wrong_keys(r#"{"rate":null}"#), ["rate"]);
        assert_eq!(wrong_keys(r#"{"stock":1000000001}"#), ["stock"]);
        assert_eq!(wrong_keys(&format!(r#"{{"message":"{}"}}"#, "x".repeat(501))), ["message"]);
        assert_eq!(wrong_keys(r#"{"message":"a\u0000b"}"#), ["message"]);
        assert_eq!(
            wrong_keys(r#"{"opens_at":"2026-12-01T12:00:00Z","closes_at":"2026-12-01T12:00:00Z"}"#),
            ["closes_at"]
        );
        assert_eq!(wrong_keys(r#"{"opens_at":"1960-01-01T00:00:00Z"}"#), ["opens_at"]);
    }

    #[test]
    fn what_is_not_an_object_is_refused() {
        for body in ["", "[]", "1", "null", "{", "{\"cap\":1}x", "\u{feff}{}"] {
            assert_eq!(wrong_keys(body), ["malformed_body"], "{body}");
        }
        assert_eq!(wrong_keys("{}"), ["nothing_to_change"]);
    }
}
