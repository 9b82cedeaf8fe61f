//! What a crowd process tells whoever started it: one JSON value a line on standard output, counts as they grow and samples at the end.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Declares [`Counts`] and how two of them are added, so that a count is named in one place.
macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// How many visitors are where, and what became of the others.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub struct Counts { $($(#[$doc])* pub $name: u64,)* }

        impl Counts {
            /// Adds what another process counted.
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

counts! {
    /// Came to the sale.
    arrived,
    /// In line at this moment.
    waiting,
    /// Let in so far: told that it is their turn, or let in at once.
    called,
    /// In the shop at this moment.
    in_shop,
    /// Paid for a phone.
    won,
    /// Told "no" on arrival: everything was sold.
    no_at_arrival,
    /// Told "no" while in line.
    no_while_waiting,
    /// Told "no" when they asked for a phone.
    no_at_claim,
    /// Paid after the hold had ended and the phone was somebody else's: the money goes back.
    no_at_payment,
    /// Robots that asked too often and were told so.
    no_to_robots,
    /// Answers that said "too many requests" to people rather than robots; they waited and asked again.
    slowed,
    /// Left the line by the button.
    left,
    /// Closed the page and never came back.
    vanished,
    /// Were called and did not come.
    lapsed,
    /// Changed their mind at the till: the phone went back.
    declined,
    /// Held a phone and never paid.
    unpaid,
    /// Got neither a phone nor a "no": nobody answered them.
    stranded,
    /// Were in line or in the shop when the run ended before their visit did.
    unfinished,
    /// Those of all who arrived that would have bought a phone if they had got one.
    willing,
    /// Lost their place while they waited, and started again at the end.
    lost_place,
    /// Open streams at this moment, SSE and WebSocket together.
    streams,
    /// HTTP requests answered.
    requests,
    /// Updates received on streams.
    updates,
    /// Times a visitor was shown a worse position than before.
    worse,
    /// Times one buyer was given two reservations.
    twice,
    /// Connections that failed and were tried again.
    troubles,
}

/// What was measured. Costs are round trips as the client sees them, in microseconds, from the first byte sent to the answer's head.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Samples {
    /// Cost of a "no" at arrival.
    pub no_at_arrival_us: Vec<u32>,
    /// Cost of a "no" to whoever polls or reloads in line.
    pub no_while_polling_us: Vec<u32>,
    /// Cost of a "no" at the claim.
    pub no_at_claim_us: Vec<u32>,
    /// Cost of a "too many requests".
    pub too_many_us: Vec<u32>,
    /// From the first request to the first view that says how many are ahead.
    pub first_number_ms: Vec<u32>,
    /// The longest time between two signs of life of each stream.
    pub longest_gap_ms: Vec<u32>,
    /// How long those who were called after waiting had waited.
    pub waits_ms: Vec<u32>,
    /// What the called had been promised when they were first told, and what it was.
    pub promises: Vec<Promise>,
    /// When those on a stream were told "no", milliseconds since the Unix epoch.
    pub told_no_at_ms: Vec<u64>,
    /// What went otherwise than a visitor may expect, and how often: the first few kinds.
    pub oddities: BTreeMap<String, u64>,
}

/// A wait as it was promised, and as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Promise {
    /// The range's lower end.
    pub low_s: u32,
    /// The range's upper end.
    pub high_s: u32,
    /// How long it took from then on.
    pub actual_ms: u32,
    /// Meanwhile nobody was called, because everything was on hold: no range can foresee that.
    pub interrupted: bool,
}

impl Promise {
    /// Whether the wait was inside the range.
    #[must_use]
    pub fn kept(&self) -> bool {
        (self.low_s.saturating_mul(1000)..=self.high_s.saturating_mul(1000)).contains(&self.actual_ms)
    }
}

/// Kinds of oddities kept at most: enough to see what is wrong, not a second log.
const ODDITIES: usize = 12;

impl Samples {
    /// Adds what another process measured.
    pub fn add(&mut self, other: Self) {
        self.no_at_arrival_us.extend(other.no_at_arrival_us);
        self.no_while_polling_us.extend(other.no_while_polling_us);
        self.no_at_claim_us.extend(other.no_at_claim_us);
        self.too_many_us.extend(other.too_many_us);
        self.first_number_ms.extend(other.first_number_ms);
        self.longest_gap_ms.extend(other.longest_gap_ms);
        self.waits_ms.extend(other.waits_ms);
        self.promises.extend(other.promises);
        self.told_no_at_ms.extend(other.told_no_at_ms);
        for (oddity, times) in other.oddities {
            self.wonder_often(oddity, times);
        }
    }

    /// Notes something odd, as long as there is room.
    pub fn wonder(&mut self, oddity: String) {
        self.wonder_often(oddity, 1);
    }

    fn wonder_often(&mut self, oddity: String, times: u64) {
        if self.oddities.len() < ODDITIES || self.oddities.contains_key(&oddity) {
            *self.oddities.entry(oddity).or_default() += times;
        }
    }
}

/// One line of a crowd process.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Report {
    /// How it stands, about twice a second.
    Now {
        /// The counts so far.
        counts: Counts,
    },
    /// The last line.
    Done {
        /// The final counts.
        counts: Counts,
        /// All that was measured.
        samples: Box<Samples>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_two_processes_add_up() {
        let mut sum = Counts {
            arrived: 3,
            won: 1,
            ..Counts::default()
        };
        sum.add(&Counts {
            arrived: 4,
            worse: 2,
            ..Counts::default()
        });
        assert_eq!((sum.arrived, sum.won, sum.worse), (7, 1, 2));
    }

    #[test]
    fn a_promise_is_kept_within_its_range_and_not_beyond() {
        let promise = |actual_ms| Promise {
            low_s: 10,
            high_s: 20,
            actual_ms,
            interrupted: false,
        };
        assert!(promise(10_000).kept() && promise(15_000).kept() && promise(20_000).kept());
        assert!(!promise(9_999).kept() && !promise(20_001).kept());
    }

    #[test]
    fn a_report_survives_its_line() {
        let line = serde_json::to_string(&Report::Done {
            counts: Counts::default(),
            samples: Box::new(Samples {
                waits_ms: vec![1, 2],
                ..Samples::default()
            }),
        })
        .unwrap();
        assert!(!line.contains('\n'));
        assert!(matches!(serde_json::from_str(&line).unwrap(), Report::Done { samples, .. } if samples.waits_ms == [1, 2]));
    }
}
