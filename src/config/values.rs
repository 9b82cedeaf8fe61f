//! Values as people write them: rates, durations, sizes, times.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use http::Uri;
use ipnet::IpNet;
use toml::de::DeValue;

use super::source::kind;
use crate::clock::UnixMs;

/// Admissions or requests per time, kept as a whole number per 1,000 seconds. Written `200`, `200/s`, `100/min` or `50/h`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate {
    milli: u64,
}

/// The fastest rate that can be asked for: a million a second.
const MAX_MILLI: u64 = 1_000_000_000;

impl Rate {
    /// From a whole number per 1,000 seconds.
    #[must_use]
    pub const fn from_milli(milli: u64) -> Self {
        Self {
            milli: if milli > MAX_MILLI { MAX_MILLI } else { milli },
        }
    }

    /// As a whole number per 1,000 seconds.
    #[must_use]
    pub const fn milli(self) -> u64 {
        self.milli
    }

    /// Per second.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "at most 10^9, which a double holds exactly")]
    pub fn per_second(self) -> f64 {
        self.milli as f64 / 1000.0
    }
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not a rate: write 200, \"200/s\", \"100/min\" or \"50/h\"");
        let (count, unit) = text.split_once('/').map_or((text, "s"), |(count, unit)| (count, unit));
        let seconds = match unit.trim() {
            "s" | "sec" | "second" => 1.0,
            "min" | "m" | "minute" => 60.0,
            "h" | "hour" => 3600.0,
            _ => return Err(wrong()),
        };
        let count: f64 = count.trim().parse().map_err(|_| wrong())?;
        // A rate that was shown reads back as itself although 1.001 * 1000 is a hair below 1001.
        let milli = (count * 1000.0 / seconds + 1e-6).floor();
        if !(0.0..=1_000_000_000.0).contains(&milli) {
            return Err(format!("`{text}` is out of range: a rate is from 0 to 1000000 per second"));
        }
        if count > 0.0 && milli < 1.0 {
            return Err(format!(
                "`{text}` is too slow to be kept: the slowest rate besides 0 is 0.001/s, which is 3.6/h"
            ));
        }
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "checked to be in range just above"
        )]
        Ok(Self { milli: milli as u64 })
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.milli.is_multiple_of(1000) {
            write!(formatter, "{}/s", self.milli / 1000)
        } else {
            write!(formatter, "{}/s", self.per_second())
        }
    }
}

/// What every reader of a value gives: the value, or what is wrong with it in a sentence.
pub(super) type Read<T> = Result<T, String>;

/// Text in quotes.
pub(super) fn text(value: &DeValue<'_>) -> Read<String> {
    value
        .as_str()
        .map(str::to_owned)
        .ok_or_else(|| format!("this is text in quotes, not {}", kind(value)))
}

/// Text that is not empty.
pub(super) fn word(value: &DeValue<'_>) -> Read<String> {
    let word = text(value)?;
    if word.trim().is_empty() {
        return Err("this is empty; leave the key out instead".to_owned());
    }
    Ok(word)
}

/// `true` or `false`.
pub(super) fn switch(value: &DeValue<'_>) -> Read<bool> {
    value
        .as_bool()
        .ok_or_else(|| format!("this is true or false, without quotes, not {}", kind(value)))
}

/// A whole number within a range.
pub(super) fn count(least: u64, most: u64) -> impl Fn(&DeValue<'_>) -> Read<u64> {
    move |value| {
        let wrong = || format!("this is a whole number from {least} to {most}");
        let number = value.as_integer().ok_or_else(|| format!("{}, not {}", wrong(), kind(value)))?;
        let number = u64::from_str_radix(number.as_str(), number.radix()).map_err(|_| wrong())?;
        if number < least || number > most {
            return Err(wrong());
        }
        Ok(number)
    }
}

/// The same as a `usize`.
pub(super) fn counted(least: u64, most: u64) -> impl Fn(&DeValue<'_>) -> Read<usize> {
    let count = count(least, most);
    move |value| usize::try_from(count(value)?).map_err(|_| "this machine cannot count that far".to_owned())
}

/// One word of a few.
pub(super) fn choice<T: Copy + 'static>(choices: &'static [(&'static str, T)]) -> impl Fn(&DeValue<'_>) -> Read<T> {
    move |value| {
        let word = value.as_str();
        let found = choices.iter().find(|(name, _)| Some(*name) == word);
        found.map(|(_, choice)| *choice).ok_or_else(|| {
            let names: Vec<_> = choices.iter().map(|(name, _)| format!("\"{name}\"")).collect();
            format!("this is one of {}", names.join(", "))
        })
    }
}

/// A rate: a number, or text like `100/min`.
pub(super) fn rate(value: &DeValue<'_>) -> Read<Rate> {
    match value {
        DeValue::String(text) => text.parse(),
        DeValue::Integer(number) => number.to_string().parse(),
        DeValue::Float(number) => number.to_string().parse(),
        other => Err(format!(
            "this is a rate, not {}: write 200, \"200/s\", \"100/min\" or \"50/h\"",
            kind(other)
        )),
    }
}

/// The longest time that makes sense anywhere.
const MAX_DURATION: Duration = Duration::from_secs(366 * 24 * 3600);

/// A time longer than nothing.
pub(super) fn duration(value: &DeValue<'_>) -> Read<Duration> {
    let duration = duration_or_zero(value)?;
    if duration.is_zero() {
        return Err("this is longer than 0".to_owned());
    }
    Ok(duration)
}

/// A time that may be nothing.
pub(super) fn duration_or_zero(value: &DeValue<'_>) -> Read<Duration> {
    let wrong = "write a time like \"250ms\", \"10s\", \"2min\", \"1h30m\" or \"7d\"";
    let text = value
        .as_str()
        .ok_or_else(|| format!("this is a time in quotes, not {}: {wrong}", kind(value)))?;
    let duration = parse_duration(text).ok_or_else(|| format!("`{text}` is not a time: {wrong}"))?;
    if duration > MAX_DURATION {
        return Err(format!("`{text}` is too long: 366d at most"));
    }
    Ok(duration)
}

fn parse_duration(text: &str) -> Option<Duration> {
    let mut rest = text.trim();
    let mut sum = Duration::ZERO;
    if rest.is_empty() {
        return None;
    }
    if rest == "0" {
        return Some(sum);
    }
    while !rest.is_empty() {
        let digits = rest.find(|letter: char| !letter.is_ascii_digit())?;
        let (number, unit) = rest.split_at(digits);
        let letters = unit.find(|letter: char| !letter.is_ascii_alphabetic()).unwrap_or(unit.len());
        let (unit, after) = unit.split_at(letters);
        let unit = match unit {
            "ms" => Duration::from_millis(1),
            "s" | "sec" => Duration::from_secs(1),
            "m" | "min" => Duration::from_secs(60),
            "h" => Duration::from_secs(3600),
            "d" => Duration::from_secs(86_400),
            _ => return None,
        };
        sum = sum.checked_add(unit.checked_mul(number.parse().ok()?)?)?;
        rest = after.trim_start();
    }
    Some(sum)
}

/// A duration as [`duration`] reads it, in the largest unit that says it exactly.
pub(super) fn show_duration(duration: Duration) -> String {
    let millis = crate::clock::millis(duration);
    let units = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s")];
    let unit = units.iter().find(|(unit, _)| millis > 0 && millis.is_multiple_of(*unit));
    unit.map_or_else(|| format!("{millis}ms"), |(unit, name)| format!("{}{name}", millis / unit))
}

/// A size in bytes within a range: a number, or text like `64KiB`.
pub(super) fn size(least: u64, most: u64) -> impl Fn(&DeValue<'_>) -> Read<u64> {
    move |value| {
        let wrong = || "this is a size: write bytes (65536) or \"64KiB\", \"10MiB\", \"1GiB\"".to_owned();
        let bytes = match value {
            DeValue::Integer(number) => u64::from_str_radix(number.as_str(), number.radix()).map_err(|_| wrong())?,
            DeValue::String(text) => parse_size(text).ok_or_else(wrong)?,
            _ => return Err(wrong()),
        };
        if bytes < least || bytes > most {
            return Err(format!("this is a size from {} to {}", show_size(least), show_size(most)));
        }
        Ok(bytes)
    }
}

/// The same as a `usize`.
pub(super) fn sized(least: u64, most: u64) -> impl Fn(&DeValue<'_>) -> Read<usize> {
    let size = size(least, most);
    move |value| usize::try_from(size(value)?).map_err(|_| "this machine cannot count that far".to_owned())
}

const SIZE_UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];

fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let (number, unit) = SIZE_UNITS
        .iter()
        .find_map(|(unit, name)| text.strip_suffix(name).map(|number| (number, *unit)))
        .unwrap_or((text, 1));
    number.trim().parse::<u64>().ok()?.checked_mul(unit)
}

/// A size as [`size`] reads it.
pub(super) fn show_size(bytes: u64) -> String {
    let unit = SIZE_UNITS.iter().find(|(unit, _)| bytes > 0 && bytes.is_multiple_of(*unit));
    unit.map_or_else(|| bytes.to_string(), |(unit, name)| format!("{}{name}", bytes / unit))
}

/// A moment, as RFC 3339 writes it, with an offset.
pub(super) fn moment(value: &DeValue<'_>) -> Read<UnixMs> {
    let wrong = "write it with its offset, like 2026-12-01T12:00:00+07:00 or 2026-12-01T05:00:00Z";
    let text = match value {
        DeValue::Datetime(written) => written.to_string(),
        DeValue::String(text) => text.to_string(),
        other => return Err(format!("this is a moment, not {}: {wrong}", kind(other))),
    };
    let moment: jiff::Timestamp = text.parse().map_err(|_| format!("`{text}` is not a moment: {wrong}"))?;
    UnixMs::try_from(moment.as_millisecond()).map_err(|_| format!("`{text}` is before 1970"))
}

/// A moment as [`moment`] reads it.
pub(super) fn show_moment(at_ms: UnixMs) -> String {
    let moment = i64::try_from(at_ms)
        .ok()
        .and_then(|at_ms| jiff::Timestamp::from_millisecond(at_ms).ok());
    moment.map_or_else(|| at_ms.to_string(), |moment| moment.to_string())
}

/// An address and a port to listen on.
pub(super) fn listen(value: &DeValue<'_>) -> Read<SocketAddr> {
    let wrong = "write an address and a port, like \"127.0.0.1:8080\", \"0.0.0.0:8080\" or \"[::]:8080\"";
    let text = value.as_str().ok_or_else(|| wrong.to_owned())?;
    text.parse().map_err(|_| format!("`{text}` cannot be listened on: {wrong}"))
}

/// A network, or one address of it.
pub(super) fn network(value: &DeValue<'_>) -> Read<IpNet> {
    let wrong = "write an address or a network, like \"10.0.0.1\" or \"10.0.0.0/8\"";
    let text = value.as_str().ok_or_else(|| wrong.to_owned())?;
    let network = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
    network.map_err(|_| format!("`{text}` is not an address or network: {wrong}"))
}

/// The same as a `u32`.
pub(super) fn small(least: u32, most: u32) -> impl Fn(&DeValue<'_>) -> Read<u32> {
    let count = count(least.into(), most.into());
    move |value| u32::try_from(count(value)?).map_err(|_| "this machine cannot count that far".to_owned())
}

/// One backend, or several of the same shop in a list.
pub(super) fn origins(value: &DeValue<'_>) -> Read<Vec<Uri>> {
    let DeValue::Array(items) = value else {
        return Ok(vec![origin(value)?]);
    };
    let mut origins = Vec::new();
    for item in items.iter() {
        let origin = origin(item.get_ref())?;
        if origins.contains(&origin) {
            return Err(format!("`{}` is here twice", origin.to_string().trim_end_matches('/')));
        }
        origins.push(origin);
    }
    if origins.is_empty() {
        return Err("this list is empty: name one backend at least".to_owned());
    }
    if origins.len() > MAX_BACKENDS {
        return Err(format!("these are too many: {MAX_BACKENDS} backends at most"));
    }
    Ok(origins)
}

/// Backends of one room at most.
const MAX_BACKENDS: usize = 64;

/// A backend: `http://host` or `https://host`, perhaps with a port.
pub(super) fn origin(value: &DeValue<'_>) -> Read<Uri> {
    let text = text(value)?;
    if !text.starts_with("http://") && !text.starts_with("https://") {
        return Err(format!("`{text}` must start with http:// or https://"));
    }
    let uri: Uri = text.parse().map_err(|_| format!("`{text}` is not a URL"))?;
    if uri.host().is_none_or(str::is_empty) || uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        return Err(format!("`{text}` must be http:// or https://, a host and perhaps a port"));
    }
    let port = uri.authority().and_then(|authority| {
        authority
            .as_str()
            .rsplit_once(']')
            .map_or(Some(authority.as_str()), |(_, port)| Some(port))
    });
    if port.is_some_and(|port| port.contains(':')) && uri.port_u16().is_none_or(|port| port == 0) {
        return Err(format!("`{text}` has no usable port"));
    }
    if uri.path() != "/" || uri.query().is_some() || text.ends_with('/') {
        return Err(format!("`{text}` must end after the host and port: requests keep their own path"));
    }
    Ok(uri)
}

/// A host name without port, in lower case.
pub(super) fn host(value: &DeValue<'_>) -> Read<String> {
    let text = text(value)?.to_ascii_lowercase();
    let name = |letter: char| letter.is_ascii_alphanumeric() || letter == '-' || letter == '.' || letter == '_';
    let literal = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let good = match literal {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => text.chars().all(name) && !text.starts_with('.') && !text.ends_with('.') && !text.contains(".."),
    };
    if text.is_empty() || !good {
        return Err(format!(
            "`{text}` is not a host: write it like \"shop.example.com\", without http:// and without a port"
        ));
    }
    Ok(text)
}

/// An origin as browsers send it: `https://www.example.com`.
pub(super) fn web_origin(value: &DeValue<'_>) -> Read<String> {
    let text = text(value)?.to_ascii_lowercase();
    let wrong = || format!("`{text}` is not an origin: write it like \"https://www.example.com\", without a path");
    let rest = text
        .strip_prefix("https://")
        .or_else(|| text.strip_prefix("http://"))
        .ok_or_else(wrong)?;
    let authority: http::uri::Authority = rest.parse().map_err(|_| wrong())?;
    if authority.as_str().contains('@') {
        return Err(wrong());
    }
    Ok(text.clone())
}
