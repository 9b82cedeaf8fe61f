//! The score: what a run comes to, in words, and what of it breaks a promise.

use std::fmt::{self, Write as _};
use std::time::Duration;

use super::report::{Counts, Promise, Samples};
use super::watch::Looks;
use crate::config::Rate;
use crate::shop::ShopCounts;

/// What the operating system says of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Time on a processor.
    pub(crate) cpu: Duration,
    /// Memory at the most, in bytes.
    pub(crate) peak_bytes: u64,
}

/// All of a run.
#[derive(Clone, Debug)]
pub(crate) struct Score {
    pub(crate) visitors: u64,
    /// Units of the sale, where that is known.
    pub(crate) stock: Option<u64>,
    /// The room's rate, where that is known.
    pub(crate) rate: Option<Rate>,
    /// Everybody stayed to the end, so that all who wanted a unit had a chance of one.
    pub(crate) all_sold: bool,
    /// Whoever won has paid; otherwise a unit was reserved for him, and may go back.
    pub(crate) paid: bool,
    /// The room was looked at over the operators' API.
    pub(crate) watched: bool,
    pub(crate) took: Duration,
    pub(crate) counts: Counts,
    pub(crate) samples: Samples,
    pub(crate) looks: Looks,
    /// The sample shop's own counts, where it is the sample shop.
    pub(crate) shop: Option<ShopCounts>,
    /// The gateway's.
    pub(crate) usage: Option<Usage>,
    /// Its private store's.
    pub(crate) store_usage: Option<Usage>,
    /// The show was cut short at its time limit.
    pub(crate) cut_short: bool,
}

impl Score {
    /// Every promise that was broken, in words. Empty: the run is good.
    pub(crate) fn verdict(&self) -> Vec<String> {
        let mut broken = Vec::new();
        let (counts, looks) = (&self.counts, &self.looks);
        self.judge_sales(&mut broken);
        if looks.uneven > 0 {
            broken.push(format!(
                "free + held + sold was not the stock in {} of {} looks",
                looks.uneven, looks.looks
            ));
        }
        if counts.twice > 0 {
            broken.push(format!("{} times one buyer got two reservations", counts.twice));
        }
        if counts.worse > 0 {
            broken.push(format!("{} times a visitor was shown a worse position than before", counts.worse));
        }
        let fast = self.rate.map_or(0, |rate| looks.calls.too_fast(rate));
        if fast > 0 {
            broken.push(format!(
                "the rate was exceeded in {fast} of the seconds looked at ({} called in the fullest)",
                looks.calls.fullest()
            ));
        }
        if counts.stranded > 0 {
            broken.push(format!("{} visitors got neither a phone nor a \"no\"", counts.stranded));
        }
        if self.cut_short {
            broken.push(format!("it was not over after {} s", self.took.as_secs()));
        }
        if self.watched && looks.looks == 0 {
            broken.push("the operators' API never answered, so nothing is known about stock and rate".to_owned());
        }
        broken
    }

    /// What was sold, and what reached the shop.
    fn judge_sales(&self, broken: &mut Vec<String>) {
        let (counts, sold) = (&self.counts, self.looks.sold);
        if let Some(stock) = self.stock {
            let expected = stock.min(counts.willing);
            if self.all_sold && counts.won < expected {
                broken.push(format!(
                    "{} of {stock} phones went to somebody, although {} wanted one",
                    counts.won, counts.willing
                ));
            }
            if (self.paid && counts.won > stock) || sold > stock {
                broken.push(format!(
                    "more phones were sold than there are: {} winners, {sold} sold, {stock} in stock",
                    counts.won
                ));
            }
        }
        let Some(shop) = &self.shop else { return };
        if counts.won != sold || shop.paid != sold {
            broken.push(format!(
                "the books differ: {} visitors won, the shop was paid {} times, the gateway sold {sold}",
                counts.won, shop.paid
            ));
        }
        for (count, what) in [
            (shop.unadmitted, "requests reached the shop without having been let in"),
            (shop.unverified, "requests reached the shop with an admission it could not verify"),
            (shop.claims_without_reservation, "claims reached the shop without a reservation"),
        ] {
            if count > 0 {
                broken.push(format!("{count} {what}"));
            }
        }
    }

    fn rows(&self) -> Vec<(&'static str, String)> {
        let mut rows = Vec::new();
        self.stock_rows(&mut rows);
        self.refusal_rows(&mut rows);
        self.waiting_rows(&mut rows);
        self.cost_rows(&mut rows);
        rows
    }

    fn stock_rows(&self, rows: &mut Vec<(&'static str, String)>) {
        let (counts, looks) = (&self.counts, &self.looks);
        let (what, got) = if self.paid {
            ("phones sold", looks.sold.max(counts.won))
        } else {
            ("phones reserved", looks.sold)
        };
        if let Some(stock) = self.stock {
            let over = got.saturating_sub(stock);
            rows.push((what, format!("{} of {}, {over} too many", grouped(counts.won), grouped(stock))));
            let even = if looks.uneven == 0 {
                "always".to_owned()
            } else {
                format!("broken {} times", looks.uneven)
            };
            rows.push(("free + held + sold = stock", format!("{even}, in {} looks", grouped(looks.looks))));
        } else if counts.won > 0 {
            rows.push((what, grouped(counts.won)));
        }
        let gave_back = counts.declined + counts.unpaid;
        if gave_back > 0 || counts.no_at_payment > 0 {
            rows.push((
                "went back into stock",
                format!(
                    "{} given back at the till, {} never paid, {} paid too late and paid back",
                    counts.declined, counts.unpaid, counts.no_at_payment
                ),
            ));
        }
    }

    fn refusal_rows(&self, rows: &mut Vec<(&'static str, String)>) {
        let (counts, samples) = (&self.counts, &self.samples);
        let no = counts.no_at_arrival + counts.no_while_waiting + counts.no_at_claim + counts.no_at_payment;
        rows.push((
            "told \"no\"",
            format!("{} (costs are round trips as the client sees them)", grouped(no)),
        ));
        rows.push(("  on arrival", refusals(counts.no_at_arrival, &samples.no_at_arrival_us)));
        rows.push(("  in line", self.refusals_in_line()));
        rows.push(("  when asking for a phone", refusals(counts.no_at_claim, &samples.no_at_claim_us)));
        rows.push(("  \"too many requests\"", refusals(counts.no_to_robots, &samples.too_many_us)));
        rows.push((
            "neither",
            format!(
                "{} left, {} went away for good, {} let their turn pass, {} without an answer",
                grouped(counts.left),
                grouped(counts.vanished),
                grouped(counts.lapsed),
                grouped(counts.stranded)
            ),
        ));
        if counts.unfinished > 0 {
            rows.push((
                "not at an end",
                format!("{} still in line or in the shop when it ended", grouped(counts.unfinished)),
            ));
        }
    }

    fn refusals_in_line(&self) -> String {
        let mut line = grouped(self.counts.no_while_waiting);
        if let Some(sold_out_at_ms) = self.looks.sold_out_at_ms {
            let lags: Vec<u64> = self
                .samples
                .told_no_at_ms
                .iter()
                .map(|at_ms| at_ms.saturating_sub(sold_out_at_ms))
                .collect();
            if let (Some(p50), Some(p99)) = (percentile(&lags, 50), percentile(&lags, 99)) {
                let _ = write!(
                    line,
                    ", streams told {p50} ms (p50) and {p99} ms (p99) after the last phone was sold"
                );
            }
        }
        if let Some(costs) = costs(&self.samples.no_while_polling_us) {
            let _ = write!(line, "; polls {costs}");
        }
        line
    }

    fn waiting_rows(&self, rows: &mut Vec<(&'static str, String)>) {
        let (counts, samples) = (&self.counts, &self.samples);
        let calls = &self.looks.calls;
        if let Some(rate) = self.rate {
            rows.push((
                "let in",
                format!(
                    "{}; of {rate} there were {:.1} a second while phones were free, and {} in the fullest second",
                    grouped(calls.called()),
                    calls.mean_per_second(),
                    calls.fullest()
                ),
            ));
        }
        let waits: Vec<u64> = samples.waits_ms.iter().copied().map(u64::from).collect();
        if let (Some(p50), Some(p90), Some(p99)) = (percentile(&waits, 50), percentile(&waits, 90), percentile(&waits, 99)) {
            let seconds = |ms: u64| format!("{}.{} s", ms / 1000, ms % 1000 / 100);
            rows.push((
                "wait of those called",
                format!(
                    "p50 {}, p90 {}, p99 {}, after {} waits",
                    seconds(p50),
                    seconds(p90),
                    seconds(p99),
                    grouped(waits.len() as u64)
                ),
            ));
        }
        if !samples.promises.is_empty() {
            let (broken_off, whole): (Vec<&Promise>, Vec<&Promise>) = samples.promises.iter().partition(|promise| promise.interrupted);
            let kept = |promises: &[&Promise]| {
                let kept = promises.iter().filter(|promise| promise.kept()).count();
                format!("{} % of {}", kept * 100 / promises.len().max(1), grouped(promises.len() as u64))
            };
            let low: Vec<u64> = samples.promises.iter().map(|promise| u64::from(promise.low_s)).collect();
            let high: Vec<u64> = samples.promises.iter().map(|promise| u64::from(promise.high_s)).collect();
            rows.push((
                "wait as first predicted",
                format!(
                    "p50 {} to {} s, p90 {} to {} s; kept for {}, and for {} whose wait was broken off while all was on hold",
                    percentile(&low, 50).unwrap_or(0),
                    percentile(&high, 50).unwrap_or(0),
                    percentile(&low, 90).unwrap_or(0),
                    percentile(&high, 90).unwrap_or(0),
                    kept(&whole),
                    kept(&broken_off)
                ),
            ));
        }
        rows.push(("positions that got worse", grouped(counts.worse)));
    }

    fn cost_rows(&self, rows: &mut Vec<(&'static str, String)>) {
        let (counts, shop) = (&self.counts, &self.shop);
        rows.push((
            "requests to the gateway",
            format!("{} and {} updates on streams", grouped(counts.requests), grouped(counts.updates)),
        ));
        if let Some(shop) = shop {
            rows.push((
                "requests that reached the shop",
                format!(
                    "{}, of these {} not let in and {} not verified",
                    grouped(shop.requests),
                    shop.unadmitted,
                    shop.unverified
                ),
            ));
        }
        if let Some(usage) = self.usage {
            let each = usage.cpu.as_micros() / u128::from(counts.requests.max(1));
            rows.push((
                "the gateway's cost",
                format!(
                    "{:.1} s of processor, {each} µs a request with its updates; {} MiB of memory at most",
                    usage.cpu.as_secs_f64(),
                    usage.peak_bytes >> 20
                ),
            ));
        }
        if let Some(usage) = self.store_usage {
            let (cpu_s, mib) = (usage.cpu.as_secs_f64(), usage.peak_bytes >> 20);
            rows.push((
                "its private store's",
                format!("{cpu_s:.1} s of processor; {mib} MiB of memory at most"),
            ));
        }
        let trouble = [
            (counts.lost_place, "visitors away too long, who started again"),
            (counts.troubles, "connections tried again"),
            (counts.slowed, "times people were told to slow down"),
            (shop.as_ref().map_or(0, |shop| shop.trouble), "times the till did not work"),
            (self.looks.unanswered, "looks without an answer"),
        ];
        let trouble: Vec<String> = trouble
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{} {what}", grouped(*count)))
            .collect();
        if !trouble.is_empty() {
            rows.push(("trouble on the way", trouble.join(", ")));
        }
    }
}

impl fmt::Display for Score {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut sale = format!("{} visitors", grouped(self.visitors));
        if let Some(stock) = self.stock {
            let _ = write!(sale, ", {} phones", grouped(stock));
        }
        if let Some(rate) = self.rate {
            let _ = write!(sale, ", {rate}");
        }
        writeln!(formatter, "\nThe score: {sale}, {:.1} s\n", self.took.as_secs_f64())?;
        let rows = self.rows();
        let width = rows.iter().map(|(label, _)| label.chars().count()).max().unwrap_or(0);
        for (label, value) in rows {
            writeln!(formatter, "  {label:width$}   {value}")?;
        }
        if !self.samples.oddities.is_empty() {
            writeln!(formatter, "\n  Odd things visitors met:")?;
            for (oddity, times) in &self.samples.oddities {
                writeln!(formatter, "  - {oddity} ({})", grouped(*times))?;
            }
        }
        let broken = self.verdict();
        if broken.is_empty() {
            return writeln!(formatter, "\n  Every promise was kept.");
        }
        writeln!(formatter, "\n  Broken:")?;
        for promise in broken {
            writeln!(formatter, "  - {promise}")?;
        }
        Ok(())
    }
}

fn refusals(count: u64, costs_us: &[u32]) -> String {
    match costs(costs_us) {
        Some(costs) => format!("{}, {costs}", grouped(count)),
        None => grouped(count),
    }
}

fn costs(costs_us: &[u32]) -> Option<String> {
    let costs_us: Vec<u64> = costs_us.iter().copied().map(u64::from).collect();
    let (p50, p99) = (percentile(&costs_us, 50)?, percentile(&costs_us, 99)?);
    Some(format!("p50 {} µs, p99 {} µs", grouped(p50), grouped(p99)))
}

/// The smallest value that so many per cent of the values do not exceed (nearest rank).
pub(crate) fn percentile(values: &[u64], percent: usize) -> Option<u64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}

/// 12345 as 12,345.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests;
