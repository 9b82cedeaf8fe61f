//! Who comes: every visitor's ways are drawn from its number and the seed, so that a run can be repeated.

use std::time::Duration;

use fastrand::Rng;

use super::{Means, Ways};

/// How a visitor waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Transport {
    /// A browser with an event stream.
    Sse,
    /// A browser whose event stream is cut somewhere, on a WebSocket.
    WebSocket,
    /// Only polls.
    Poll,
    /// No JavaScript: the page reloads itself.
    NoScript,
}

/// What a visitor does in line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Habit {
    /// Waits.
    Patient,
    /// Closes the page and comes back.
    ComesBack,
    /// Does not come when called.
    NoShow,
    /// Has the page open in several tabs.
    Tabs,
    /// Leaves by the button.
    Leaves,
    /// Waits on, whatever it is told.
    Stays,
}

/// What a visitor does in the shop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Purse {
    /// Buys.
    Pays,
    /// Clicks twice; the second click may carry the same key, or a new one.
    ClicksTwice {
        /// The same idempotency key.
        same_key: bool,
    },
    /// Changes its mind at the till.
    Declines,
    /// Pays after the hold has ended.
    PaysLate,
    /// Walks away with a phone on hold.
    NeverPays,
    /// Looks around and goes. Only those who keep the line alive for a person at a browser.
    Looks,
}

/// Everything about a visitor that is known before it comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Character {
    pub(super) transport: Transport,
    pub(super) habit: Habit,
    pub(super) purse: Purse,
    /// Sits in the office, behind one address with everybody there.
    pub(super) office: bool,
    /// Comes when the sale is over.
    pub(super) latecomer: bool,
}

impl Character {
    /// Draws a visitor.
    pub(super) fn draw(seed: u64, index: u64) -> Self {
        let mut rng = Rng::with_seed(seed.rotate_left(32) ^ index.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let transport = match rng.u8(..100) {
            0..68 => Transport::Sse,
            68..74 => Transport::WebSocket,
            74..92 => Transport::Poll,
            _ => Transport::NoScript,
        };
        let habit = match rng.u8(..100) {
            0..5 => Habit::ComesBack,
            5..9 => Habit::NoShow,
            9..14 => Habit::Tabs,
            14..15 => Habit::Leaves,
            _ => Habit::Patient,
        };
        let purse = match rng.u8(..100) {
            0..5 => Purse::ClicksTwice { same_key: rng.bool() },
            5..13 => Purse::Declines,
            13..15 => Purse::PaysLate,
            15..18 => Purse::NeverPays,
            _ => Purse::Pays,
        };
        Self {
            transport,
            habit,
            purse,
            office: rng.u8(..100) < 10,
            latecomer: rng.u8(..100) < 2,
        }
    }

    /// The same without what only the demo knows of: nobody in an office, nobody who pays late on purpose.
    pub(super) fn plain(mut self, takes_back: bool) -> Self {
        self.office = false;
        if self.purse == Purse::PaysLate || (self.purse == Purse::Declines && !takes_back) {
            self.purse = Purse::Pays;
        }
        self
    }

    /// The same, told like this.
    pub(super) fn told_by(mut self, ways: Ways) -> Self {
        match ways.transport {
            Means::Mix => {}
            Means::Sse => self.transport = Transport::Sse,
            Means::Ws => self.transport = Transport::WebSocket,
            Means::Poll => self.transport = Transport::Poll,
            Means::Page => self.transport = Transport::NoScript,
        }
        if ways.stay {
            (self.habit, self.latecomer) = (Habit::Stays, false);
        }
        self
    }

    /// One of the small line that a person at a browser finds when the sale is over.
    pub(super) fn company() -> Self {
        Self {
            transport: Transport::Sse,
            habit: Habit::Patient,
            purse: Purse::Looks,
            office: false,
            latecomer: false,
        }
    }

    /// Whether it would buy a phone if it got to the till.
    pub(super) fn is_willing(&self) -> bool {
        matches!(self.purse, Purse::Pays | Purse::ClicksTwice { .. }) && !matches!(self.habit, Habit::NoShow | Habit::Leaves | Habit::Stays)
    }
}

/// A time between two, of this visitor's own choosing.
pub(super) fn between(low_ms: u64, high_ms: u64) -> Duration {
    Duration::from_millis(fastrand::u64(low_ms..=high_ms))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn a_crowd_can_be_told_how_to_wait() {
        let ways = |transport, stay| Ways { transport, stay };
        for index in 0..500 {
            let one = Character::draw(7, index);
            assert_eq!(one.told_by(ways(Means::Mix, false)), one);
            let stays = one.told_by(ways(Means::Ws, true));
            assert_eq!(
                (stays.transport, stays.habit, stays.latecomer),
                (Transport::WebSocket, Habit::Stays, false)
            );
            assert!(!stays.is_willing());
            let plain = one.plain(false);
            assert!(!plain.office && !matches!(plain.purse, Purse::PaysLate | Purse::Declines));
            assert_eq!(one.plain(true).purse == Purse::Declines, one.purse == Purse::Declines);
        }
    }

    #[test]
    fn a_crowd_has_all_sorts_and_is_the_same_again() {
        let crowd: Vec<_> = (0..10_000).map(|index| Character::draw(7, index)).collect();
        assert_eq!(crowd, (0..10_000).map(|index| Character::draw(7, index)).collect::<Vec<_>>());
        let mut transports = HashMap::new();
        let mut habits = HashMap::new();
        for one in &crowd {
            *transports.entry(one.transport).or_insert(0) += 1;
            *habits.entry(one.habit).or_insert(0) += 1;
        }
        assert!((6_500..7_100).contains(&transports[&Transport::Sse]), "{transports:?}");
        assert!(
            (350..450).contains(&habits[&Habit::NoShow]) && (450..550).contains(&habits[&Habit::Tabs]),
            "{habits:?}"
        );
        let office = crowd.iter().filter(|one| one.office).count();
        assert!((900..1_100).contains(&office), "{office}");
        let willing = crowd.iter().filter(|one| one.is_willing()).count();
        assert!((8_000..8_700).contains(&willing), "{willing}");
    }
}
