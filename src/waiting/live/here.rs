//! Who is here: the streams of a room in the order in which they are told, and everybody whose presence is kept.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::Full;
use crate::clock::UnixMs;
use crate::store::scripts::{Epoch, Place, Presence};
use crate::waiting::seat::Seat;
use crate::waiting::sight::{Face, Sight};

/// How often due streams are looked for.
pub(super) const LOOK_MS: u64 = 250;

/// What a stream is found by: where it stands, and which of those that stand there it is.
pub(super) type Key = (u64, u64);
/// Streams in order.
pub(super) type Streams = BTreeMap<Key, Listener>;

/// A stream, and when there may be something to tell it. Kept in the map, so that looking for those that are due reads nothing else.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) seat: Arc<Seat>,
    pub(super) due_ms: UnixMs,
}

/// One of the three groups of streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Group {
    /// Those who wait, by place.
    Waiting,
    /// Those who have been called.
    Turned,
    /// Those whose place the frontier had passed before they came (back), and those who have no place yet, by arrival.
    Unsettled,
}

/// Which streams a pass looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// Those that are due.
    Due,
    /// All: the numbers of all may be others now.
    All,
    /// All, and all are told: the room has changed.
    Changed,
}

#[derive(Debug, Default)]
pub(super) struct Here {
    pub(super) waiting: Streams,
    pub(super) turned: Streams,
    pub(super) unsettled: Streams,
    /// Everybody who is here, by stream or by poll.
    pub(super) present: HashMap<Arc<str>, Guest>,
    /// When each of them is next looked after, by the second.
    rounds: BTreeMap<u64, Vec<Arc<str>>>,
    /// What all were told of the room last.
    told: Option<(Face, u64)>,
    /// When due streams were looked for last.
    looked_ms: UnixMs,
    /// Goodbye has been said: nobody is seated any more.
    pub(super) closing: bool,
    /// The epoch of the line that everybody here is known to be in.
    pub(super) epoch: Epoch,
}

/// Somebody who is here.
#[derive(Debug)]
pub(super) struct Guest {
    pub(super) place: Place,
    pub(super) seats: Vec<Arc<Seat>>,
    pub(super) seen_ms: UnixMs,
    /// The best number that a page, a poll or a stream which has ended was told.
    pub(super) ahead: u64,
    /// The second in which it is looked after.
    round: u64,
}

impl Here {
    /// Somebody is here; the name it is kept under.
    pub(super) fn greet(&mut self, ticket: &str, place: Place, now_ms: UnixMs, max: usize) -> Result<Arc<str>, Full> {
        if let Some((name, _)) = self.present.get_key_value(ticket) {
            let name = Arc::clone(name);
            if let Some(guest) = self.present.get_mut(ticket) {
                guest.seen_ms = now_ms;
                if place > guest.place {
                    // Another place: it has numbers of its own.
                    (guest.place, guest.ahead) = (place, u64::MAX);
                }
            }
            return Ok(name);
        }
        if self.present.len() >= max {
            return Err(Full);
        }
        let name: Arc<str> = ticket.into();
        let guest = Guest {
            place,
            seats: Vec::new(),
            seen_ms: now_ms,
            ahead: u64::MAX,
            round: 0,
        };
        self.present.insert(Arc::clone(&name), guest);
        self.look_after(Arc::clone(&name), now_ms);
        Ok(name)
    }

    /// Whoever is here and has no round yet gets one: the next that could find it gone.
    fn look_after(&mut self, name: Arc<str>, at_ms: UnixMs) {
        let second = at_ms / 1000;
        if let Some(guest) = self.present.get_mut(&name) {
            guest.round = second;
            self.rounds.entry(second).or_default().push(name);
        }
    }

    /// Who has neither a stream nor been seen for so long; they are forgotten.
    pub(super) fn gone_quiet(&mut self, now_ms: UnixMs, away_after_ms: u64) -> Vec<Presence> {
        let mut away = Vec::new();
        let later = self.rounds.split_off(&(now_ms / 1000 + 1));
        for (second, names) in std::mem::replace(&mut self.rounds, later) {
            for name in names {
                // Whoever left and came back has another round.
                let Some(guest) = self.present.get(&name).filter(|guest| guest.round == second) else {
                    continue;
                };
                let listens = !guest.seats.is_empty();
                let away_ms = if listens { now_ms } else { guest.seen_ms } + away_after_ms;
                if listens || away_ms > now_ms {
                    self.look_after(name, away_ms.max(now_ms + 1000));
                } else {
                    if guest.place > 0 {
                        away.push(Presence::Away(name.as_ref().to_owned()));
                    }
                    self.present.remove(&name);
                }
            }
        }
        away
    }

    pub(super) fn group(&mut self, group: Group) -> &mut Streams {
        match group {
            Group::Waiting => &mut self.waiting,
            Group::Turned => &mut self.turned,
            Group::Unsettled => &mut self.unsettled,
        }
    }

    /// Seats a stream in its group, to be looked at with the next pass.
    pub(super) fn seat(&mut self, group: Group, seat: Arc<Seat>) {
        self.seat_until(group, seat, 0);
    }

    /// The same, not to be looked at before then.
    pub(super) fn seat_until(&mut self, group: Group, seat: Arc<Seat>, due_ms: UnixMs) {
        let key = key(group, &seat);
        self.group(group).insert(key, Listener { seat, due_ms });
    }

    /// Takes a stream out of whatever group it is in.
    pub(super) fn unseat(&mut self, seat: &Seat) {
        for group in [Group::Waiting, Group::Turned, Group::Unsettled] {
            self.group(group).remove(&key(group, seat));
        }
    }

    pub(super) fn streams(&self) -> usize {
        self.waiting.len() + self.turned.len() + self.unsettled.len()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Seat>> {
        let all = self.turned.values().chain(self.waiting.values()).chain(self.unsettled.values());
        all.map(|listener| &listener.seat)
    }

    /// Whom to look at now; none: nobody yet.
    pub(super) fn look_again(&mut self, sight: &Sight) -> Option<Look> {
        // A clock that went back would leave everybody undue for as long.
        let back = sight.now_ms < self.looked_ms;
        let (face, rate) = (&sight.face, sight.rate_milli);
        let look = match &self.told {
            Some((told, _)) if told != face => Look::Changed,
            None => Look::Changed,
            Some((_, known)) if *known != rate || back => Look::All,
            Some(_) if sight.now_ms >= self.looked_ms + LOOK_MS => Look::Due,
            Some(_) => return None,
        };
        if look != Look::Due {
            self.told = Some((face.clone(), rate));
        }
        self.looked_ms = sight.now_ms;
        Some(look)
    }
}

/// What a stream is found by in a group.
pub(super) fn key(group: Group, seat: &Seat) -> Key {
    let first = match group {
        Group::Waiting => seat.place(),
        Group::Turned => 0,
        Group::Unsettled => seat.arrived_ms,
    };
    (first, seat.serial)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const AWAY_AFTER_MS: u64 = 4_000;

    #[derive(Clone, Debug)]
    enum Step {
        /// This one polls.
        Poll(u8),
        /// This one was let in: nobody waits for it any more.
        Forget(u8),
        /// So many milliseconds pass; at each full second who is gone is asked for.
        Wait(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..6_u8).prop_map(Step::Poll),
            1 => (0..6_u8).prop_map(Step::Forget),
            3 => (1..6_000_u64).prop_map(Step::Wait),
        ]
    }

    proptest! {
        /// The rounds find whoever a look at everybody would find, in the same second, and keep nobody twice.
        #[test]
        fn whoever_is_quiet_for_too_long_is_found_in_that_second(steps in prop::collection::vec(step(), 1..60)) {
            let mut here = Here::default();
            let mut seen: BTreeMap<u8, UnixMs> = BTreeMap::new();
            let mut now_ms = 1_000_000_u64;
            for step in steps {
                match step {
                    Step::Poll(who) => {
                        here.greet(&who.to_string(), 7, now_ms, 100).unwrap();
                        seen.insert(who, now_ms);
                    }
                    Step::Forget(who) => {
                        here.present.remove(who.to_string().as_str());
                        seen.remove(&who);
                    }
                    Step::Wait(ms) => {
                        let until_ms = now_ms + ms;
                        while now_ms / 1000 < until_ms / 1000 {
                            now_ms = (now_ms / 1000 + 1) * 1000;
                            let gone = here.gone_quiet(now_ms, AWAY_AFTER_MS).into_iter();
                            let mut gone: Vec<_> = gone.map(|presence| format!("{presence:?}")).collect();
                            gone.sort_unstable();
                            let quiet = seen.iter().filter(|(_, seen_ms)| **seen_ms + AWAY_AFTER_MS <= now_ms);
                            let expected: Vec<u8> = quiet.map(|(who, _)| *who).collect();
                            seen.retain(|who, _| !expected.contains(who));
                            let expected: Vec<_> = expected.iter().map(|who| format!("{:?}", Presence::Away(who.to_string()))).collect();
                            prop_assert_eq!(gone, expected);
                        }
                        now_ms = until_ms;
                    }
                }
                prop_assert_eq!(here.present.len(), seen.len());
                let rounds: usize = here.rounds.values().map(Vec::len).sum();
                // Whoever is forgotten has a round left, which ends by itself.
                prop_assert!(rounds <= seen.len() + 60);
            }
            here.gone_quiet(now_ms + 3 * AWAY_AFTER_MS, AWAY_AFTER_MS);
            prop_assert!(here.present.is_empty() && here.rounds.is_empty());
        }
    }
}
