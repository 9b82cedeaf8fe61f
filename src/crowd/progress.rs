//! The live line: one line that is written over on a terminal, a line every other second elsewhere.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use super::report::Counts;
use super::score::grouped;
use super::watch::RoomLook;
use crate::clock::Clock;

/// Where it stands, as it is shown.
#[derive(Debug)]
pub(crate) struct Progress {
    started: Instant,
    terminal: bool,
    before: Option<(u64, u64)>,
}

impl Progress {
    /// Begins now.
    pub(crate) fn begin() -> Self {
        Self {
            started: Clock::instant(),
            terminal: std::io::stderr().is_terminal(),
            before: None,
        }
    }

    /// How often to show it.
    pub(crate) fn pace(&self) -> Duration {
        Duration::from_secs(if self.terminal { 1 } else { 2 })
    }

    /// Since the beginning.
    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Shows it.
    pub(crate) fn show(&mut self, counts: &Counts, room: &RoomLook) {
        let per_second = self.per_second(room);
        let line = line(self.elapsed(), counts, room, per_second);
        let mut out = std::io::stderr().lock();
        // Nothing can be done for a terminal that is gone.
        let _ = if self.terminal {
            write!(out, "\r\x1b[2K{line}")
        } else {
            writeln!(out, "{line}")
        };
        let _ = out.flush();
    }

    /// Leaves the last line standing.
    pub(crate) fn end(&self) {
        if self.terminal {
            let _ = writeln!(std::io::stderr());
        }
    }

    fn per_second(&mut self, room: &RoomLook) -> u64 {
        let now = (room.now_ms, room.called_total);
        let (before_ms, before) = self.before.replace(now).unwrap_or(now);
        let length_ms = now.0.saturating_sub(before_ms);
        now.1.saturating_sub(before) * 1000 / length_ms.max(1)
    }
}

fn line(elapsed: Duration, counts: &Counts, room: &RoomLook, per_second: u64) -> String {
    let stock = room.stock.unwrap_or_default();
    let no = counts.no_at_arrival + counts.no_while_waiting + counts.no_at_claim + counts.no_at_payment;
    format!(
        "{:5.1} s  arrived {}  waiting {}  called {} ({per_second}/s)  in the shop {}  held {}  sold {}/{}  told no {}  streams {}",
        elapsed.as_secs_f64(),
        grouped(counts.arrived),
        grouped(counts.waiting),
        grouped(counts.called),
        grouped(counts.in_shop),
        stock.held,
        stock.sold,
        stock.stock,
        grouped(no),
        grouped(counts.streams)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crowd::watch::StockLook;

    #[test]
    fn the_line_says_where_everybody_is() {
        let counts = Counts {
            arrived: 20_000,
            waiting: 18_000,
            no_at_claim: 3,
            ..Counts::default()
        };
        let room = RoomLook {
            stock: Some(StockLook {
                stock: 100,
                free: 20,
                held: 30,
                sold: 50,
            }),
            ..RoomLook::default()
        };
        let line = line(Duration::from_millis(3_050), &counts, &room, 200);
        for part in ["arrived 20,000", "waiting 18,000", "(200/s)", "held 30", "sold 50/100", "told no 3"] {
            assert!(line.contains(part), "{line}");
        }
    }
}
