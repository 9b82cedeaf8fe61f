//! Place → position, for everybody, from one number per block of 1,024 places.
//!
//! A place never changes and the line is served in order, so a visitor's position is the number of live tickets with a lower place. The store
//! keeps a count per block; a gateway reads the counts at most once a second and works out every local visitor's position itself: exact in the
//! first block, an upper bound within the visitor's own block further back, and exact again for whoever joined since. Every part of the sum can
//! only shrink while a ticket waits, so the number shown never gets worse.

use crate::store::scripts::{Epoch, Measured, Place};

/// Places per block, as the scripts count them.
pub const BLOCK: u64 = 1024;

/// What positions are worked out from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Positions {
    epoch: Epoch,
    frontier: Place,
    last: Place,
    first: Vec<Place>,
    /// Block, live tickets in the blocks before it, live tickets in it.
    blocks: Vec<(u64, u64, u64)>,
    total: u64,
}

impl Positions {
    /// From what the store counted.
    #[must_use]
    pub fn new(measured: Measured) -> Self {
        let mut total = 0;
        let blocks = measured
            .blocks
            .iter()
            .map(|&(block, count)| {
                let before = total;
                total += count;
                (block, before, count)
            })
            .collect();
        Self {
            epoch: measured.epoch,
            frontier: measured.frontier,
            last: measured.last,
            first: measured.first,
            blocks,
            total,
        }
    }

    /// The epoch these positions are of.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The last place that had been given when it was counted.
    #[must_use]
    pub fn last(&self) -> Place {
        self.last
    }

    /// How many live tickets are ahead of this place. `frontier` is where it stands by now; the count may be a moment older. Whom the frontier
    /// has passed since is left out, so that gateways which counted at different moments say the same.
    #[must_use]
    pub fn ahead(&self, place: Place, frontier: Place) -> u64 {
        if place <= self.frontier.max(frontier) {
            return 0;
        }
        let passed = self.passed(frontier);
        if place > self.last {
            // Joined since the count: everybody in between whom the frontier has not reached is taken to be there still.
            let counted = if frontier >= self.last { 0 } else { self.total - passed };
            return counted + (place - self.last.max(frontier) - 1);
        }
        let block = place / BLOCK;
        let index = self.index(block);
        let counted = match self.blocks.get(index) {
            Some(&(known, before, count)) if known == block => before + self.within(index, place, (count, frontier)),
            Some(&(_, before, _)) => before,
            None => self.total,
        };
        counted.saturating_sub(passed)
    }

    fn index(&self, block: u64) -> usize {
        self.blocks.partition_point(|&(known, ..)| known < block)
    }

    /// How many of those counted the frontier has passed since, as far as that is known: whole blocks, and the places of the first.
    fn passed(&self, frontier: Place) -> u64 {
        if frontier <= self.frontier {
            return 0;
        }
        match self.blocks.get(self.index(frontier / BLOCK)) {
            Some(&(_, 0, _)) => self.first.partition_point(|&other| other <= frontier) as u64,
            Some(&(_, before, _)) => before,
            None => self.total,
        }
    }

    fn within(&self, index: usize, place: Place, (count, frontier): (u64, Place)) -> u64 {
        if index == 0 && !self.first.is_empty() {
            return self.first.partition_point(|&other| other < place) as u64;
        }
        let begins = (place / BLOCK * BLOCK).max(self.frontier.max(frontier) + 1);
        (place - begins).min(count.saturating_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn measured(frontier: Place, last: Place, live: &BTreeSet<Place>) -> Measured {
        let beyond: Vec<Place> = live.range(frontier + 1..).copied().collect();
        let mut blocks: Vec<(u64, u64)> = Vec::new();
        for place in &beyond {
            match blocks.last_mut() {
                Some((block, count)) if *block == place / BLOCK => *count += 1,
                _ => blocks.push((place / BLOCK, 1)),
            }
        }
        let first = beyond.iter().copied().take_while(|place| place / BLOCK == blocks[0].0).collect();
        Measured {
            epoch: 1,
            frontier,
            last,
            blocks,
            first,
        }
    }

    #[test]
    fn exact_in_the_first_block_and_for_newcomers() {
        let live: BTreeSet<Place> = [1000, 1003, 1010, 1030, 1031].into();
        let positions = Positions::new(measured(999, 1031, &live));
        assert_eq!([1000, 1003, 1010].map(|place| positions.ahead(place, 0)), [0, 1, 2]);
        assert_eq!(positions.ahead(1031, 0), 4);
        assert_eq!(positions.ahead(1032, 0), 5, "joined since: all five are ahead");
        assert_eq!(positions.ahead(1034, 0), 7, "and so are the two who came in between");
        assert_eq!(positions.ahead(999, 0), 0);
        assert_eq!(positions.ahead(1034, 1033), 0, "called since: nobody is ahead any more");
        assert_eq!(positions.ahead(1036, 1033), 2);
    }

    proptest! {
        /// However people leave, are called and join: never under the truth, exact in the first block, never worse than before.
        #[test]
        fn a_position_never_gets_worse(
            start in 1_u64..5000,
            people in 1_u64..6000,
            steps in prop::collection::vec((0_u64..8000, 0_u64..700, 0_u64..900), 1..12),
            watched in 0_u64..6000,
        ) {
            let mut live: BTreeSet<Place> = (start + 1..=start + people).collect();
            let (mut frontier, mut last) = (start, start + people);
            let mine = start + 1 + watched % people;
            let mut shown = Positions::new(measured(frontier, last, &live)).ahead(mine, frontier);
            for (leaver, called, joining) in steps {
                for leaving in (start + leaver % people..).step_by(7).take(40) {
                    if leaving != mine { live.remove(&leaving); }
                }
                let popped: Vec<Place> = live.iter().copied().filter(|&place| place < mine).take(usize::try_from(called).unwrap()).collect();
                for place in popped { live.remove(&place); frontier = frontier.max(place); }
                // The gateway's count is a moment old: people joined since.
                let positions = Positions::new(measured(frontier, last, &live));
                live.extend(last + 1..=last + joining);
                last += joining;
                let truth = live.range(frontier + 1..mine).count() as u64;
                let ahead = positions.ahead(mine, frontier);
                // In the block that still fills, the bound grows when somebody joins behind: the feed keeps what was shown.
                let fills = mine / BLOCK == last / BLOCK || mine / BLOCK == (last - joining) / BLOCK;
                prop_assert!(ahead >= truth && (ahead <= shown || fills), "truth {}, said {}, before {}", truth, ahead, shown);
                if mine / BLOCK == live.range(frontier + 1..).next().unwrap() / BLOCK {
                    prop_assert_eq!(ahead, truth);
                }
                let newcomer = Positions::new(measured(frontier, last - joining, &live.range(..=last - joining).copied().collect())).ahead(last, frontier);
                prop_assert!(newcomer >= live.range(frontier + 1..last).count() as u64);
                shown = ahead;
                // Some are called before the next count: a gateway that counts only then must not have said less.
                let soon: Vec<Place> = live.range(frontier + 1..mine).copied().take(usize::try_from(called / 2).unwrap()).collect();
                for place in soon { live.remove(&place); frontier = place; }
                let old = positions.ahead(mine, frontier);
                let new = Positions::new(measured(frontier, last, &live)).ahead(mine, frontier);
                prop_assert!((new <= old || fills) && old <= shown, "counted before {}, after {}, shown {}", old, new, shown);
                if mine / BLOCK == positions.blocks[0].0 {
                    prop_assert_eq!(old, new, "gateways agree");
                }
                shown = old;
            }
        }
    }
}
