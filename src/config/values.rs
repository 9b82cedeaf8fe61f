//! Values as people write them: rates, durations, sizes, times.

use std::fmt;
use std::str::FromStr;

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
        let milli = (count * 1000.0 / seconds).floor();
        if !(0.0..=1_000_000_000.0).contains(&milli) {
            return Err(format!("`{text}` is out of range: a rate is from 0 to 1000000 per second"));
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
        if self.milli % 1000 == 0 {
            write!(formatter, "{}/s", self.milli / 1000)
        } else {
            write!(formatter, "{}/s", self.per_second())
        }
    }
}
