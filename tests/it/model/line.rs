//! The line: one entry a visitor, first come first called among those present, places that never get worse, a rate that is never exceeded.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use waitgate::store::scripts::{Fate, Knock, Presence, Redeemed, Seed, Standing, Terms};

use super::{Game, play};
use crate::harness::joining;

const VISITORS: usize = 7;
const RATE_MILLI: u64 = 2_500;
const CAP: u64 = 4;
const TERMS: Terms = Terms {
    turn_ms: 900,
    admission_ms: 2_500,
    grace_ms: 700,
    memory_ms: 6_000,
};

#[derive(Clone, Debug)]
enum Event {
    Join(usize, Knock),
    /// Several in one call.
    Crowd(Vec<usize>),
    Away(usize),
    Back(usize),
    Leave(usize),
    Redeem(usize),
    Tick,
    Sweep,
    Pass {
        ms: u64,
    },
}

fn event() -> impl Strategy<Value = Event> {
    let who = 0..VISITORS;
    prop_oneof![
        4 => (who.clone(), prop_oneof![Just(Knock::Join), Just(Knock::AtOnce), Just(Knock::Again)]).prop_map(|(who, knock)| Event::Join(who, knock)),
        1 => prop::collection::vec(who.clone(), 1..6).prop_map(Event::Crowd),
        3 => who.clone().prop_map(Event::Away),
        1 => who.clone().prop_map(Event::Back),
        1 => who.clone().prop_map(Event::Leave),
        2 => who.prop_map(Event::Redeem),
        4 => Just(Event::Tick),
        2 => Just(Event::Sweep),
        4 => prop_oneof![2 => Just(1), 3 => 1..200_u64, 3 => 300..1_500_u64, 1 => Just(2_600)].prop_map(|ms| Event::Pass { ms }),
    ]
}

/// Where a visitor is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum At {
    Outside,
    Line { place: u64, away_until: Option<u64>, passed: bool },
    Called { until: u64 },
    Inside { until: u64 },
    Gone { fate: Fate, until: u64 },
}

struct Model {
    at: Vec<At>,
    now: u64,
    last: u64,
    frontier: u64,
    /// Millionths of an admission.
    credit: u64,
    credit_at: u64,
    /// When each admission was.
    admitted: Vec<u64>,
}

impl Model {
    fn refill(&mut self) {
        self.credit = (self.credit + (self.now - self.credit_at) * RATE_MILLI).min(RATE_MILLI * 1_000);
        self.credit_at = self.now;
    }

    /// What everybody would agree on: a turn or a session whose time is over is over.
    fn seen(&self, who: usize) -> At {
        match self.at[who] {
            At::Called { until } if until <= self.now => At::Gone {
                fate: Fate::Lapsed,
                until: 0,
            },
            At::Inside { until } if until <= self.now => At::Gone {
                fate: Fate::Ended,
                until: 0,
            },
            at => at,
        }
    }

    fn inside(&self) -> u64 {
        (0..VISITORS)
            .filter(|who| matches!(self.seen(*who), At::Called { .. } | At::Inside { .. }))
            .count() as u64
    }

    fn line(&self) -> impl Iterator<Item = (u64, usize, bool)> {
        self.at.iter().enumerate().filter_map(|(who, at)| match at {
            At::Line {
                place,
                away_until,
                passed: false,
            } => Some((*place, who, away_until.is_some())),
            _ => None,
        })
    }

    fn spend(&mut self) {
        self.credit -= 1_000_000;
        self.admitted.push(self.now);
    }

    fn join(&mut self, who: usize, knock: Knock) -> Standing {
        match self.seen(who) {
            At::Inside { until } => return Standing::Admitted { until_ms: until },
            At::Called { until } => return Standing::Called { until_ms: until },
            At::Gone { fate, .. } if knock != Knock::Again => return Standing::Gone(fate),
            At::Line { place, .. } => {
                self.at[who] = here(place);
                return Standing::Waiting {
                    place,
                    behind: place <= self.frontier,
                };
            }
            At::Gone { .. } | At::Outside => {}
        }
        self.refill();
        let at_once = self.at_once();
        if !at_once && knock == Knock::AtOnce {
            return Standing::MustWait;
        }
        self.last += 1;
        if at_once {
            self.frontier = self.last;
            self.spend();
            let until = self.now + TERMS.admission_ms;
            self.at[who] = At::Inside { until };
            return Standing::Admitted { until_ms: until };
        }
        let place = self.last;
        self.at[who] = here(place);
        Standing::Waiting { place, behind: false }
    }

    fn at_once(&self) -> bool {
        self.line().next().is_none() && self.credit >= 1_000_000 && self.inside() < CAP
    }

    fn redeem(&mut self, who: usize) -> Redeemed {
        match self.seen(who) {
            At::Outside => Redeemed::Unknown,
            At::Line { .. } => Redeemed::Waiting,
            At::Called { .. } => {
                let until = self.now + TERMS.admission_ms;
                self.at[who] = At::Inside { until };
                Redeemed::Admitted { until_ms: until }
            }
            At::Inside { until } => Redeemed::Admitted { until_ms: until },
            At::Gone { fate, .. } => Redeemed::Gone(fate),
        }
    }

    fn tick(&mut self) -> u64 {
        self.refill();
        let mut called = 0;
        let mut next: Vec<_> = self.line().collect();
        next.sort_unstable();
        for (place, who, away) in next {
            if self.credit < 1_000_000 || self.inside() >= CAP {
                break;
            }
            self.frontier = self.frontier.max(place);
            if away {
                if let At::Line { passed, .. } = &mut self.at[who] {
                    *passed = true;
                }
            } else {
                self.spend();
                self.at[who] = At::Called {
                    until: self.now + TERMS.turn_ms,
                };
                called += 1;
            }
        }
        called
    }

    fn sweep(&mut self) -> [u64; 4] {
        let mut counts = [0; 4];
        for at in &mut self.at {
            let (kind, fate) = match *at {
                At::Line {
                    away_until: Some(until), ..
                } if until <= self.now => (0, Fate::Abandoned),
                At::Called { until } if until <= self.now => (1, Fate::Lapsed),
                At::Inside { until } if until <= self.now => (2, Fate::Ended),
                At::Gone { until, .. } if until <= self.now => {
                    counts[3] += 1;
                    *at = At::Outside;
                    continue;
                }
                _ => continue,
            };
            counts[kind] += 1;
            *at = At::Gone {
                fate,
                until: self.now + TERMS.memory_ms,
            };
        }
        counts
    }
}

/// In line, and present.
fn here(place: u64) -> At {
    At::Line {
        place,
        away_until: None,
        passed: false,
    }
}

fn ticket(who: usize) -> String {
    format!("v{who}")
}

async fn step(game: &Game<'_>, model: &mut Model, event: &Event) -> Result<(), TestCaseError> {
    let room = &game.room;
    match event {
        Event::Join(who, knock) => joins(game, model, &[*who], *knock).await,
        Event::Crowd(all) => joins(game, model, all, Knock::Join).await,
        Event::Away(who) => {
            if let At::Line {
                away_until: away @ None, ..
            } = &mut model.at[*who]
            {
                *away = Some(model.now + TERMS.grace_ms);
            }
            departs(game, Presence::Away(ticket(*who))).await
        }
        Event::Back(who) => {
            if let At::Line { place, .. } = model.at[*who] {
                model.at[*who] = here(place);
            }
            departs(game, Presence::Back(ticket(*who), 0)).await
        }
        Event::Leave(who) => {
            // Whoever is inside goes on; whose turn lapsed unswept leaves as one who was called.
            if !matches!(model.at[*who], At::Inside { .. } | At::Gone { .. }) {
                let until = model.now + TERMS.memory_ms;
                model.at[*who] = At::Gone { fate: Fate::Left, until };
            }
            departs(game, Presence::Leave(ticket(*who))).await
        }
        Event::Redeem(who) => {
            let wanted = model.redeem(*who);
            prop_assert_eq!(room.redeem(&TERMS, &ticket(*who)).await.unwrap(), wanted);
            Ok(())
        }
        Event::Tick => {
            let called = model.tick();
            let wanted = (called, model.frontier, model.line().count() as u64, model.at_once());
            let ticked = room.admit(&TERMS).await.unwrap().unwrap();
            prop_assert_eq!((ticked.called, ticked.frontier, ticked.waiting, ticked.at_once), wanted);
            Ok(())
        }
        Event::Sweep => {
            let wanted = model.sweep();
            let swept = room.sweep(&TERMS).await.unwrap();
            prop_assert_eq!([swept.abandoned, swept.lapsed, swept.ended, swept.forgotten], wanted);
            Ok(())
        }
        Event::Pass { ms } => {
            game.bench.clock.advance(Duration::from_millis(*ms));
            model.now += ms;
            Ok(())
        }
    }
}

async fn joins(game: &Game<'_>, model: &mut Model, all: &[usize], knock: Knock) -> Result<(), TestCaseError> {
    let wanted: Vec<_> = all.iter().map(|who| model.join(*who, knock)).collect();
    let tickets: Vec<_> = all.iter().map(|who| joining(&ticket(*who), 0, knock)).collect();
    let joined = game.room.join(&TERMS, &tickets).await.unwrap().unwrap();
    prop_assert_eq!((joined.standings, joined.frontier), (wanted, model.frontier));
    Ok(())
}

async fn departs(game: &Game<'_>, change: Presence) -> Result<(), TestCaseError> {
    game.room.depart(&TERMS, &[change]).await.unwrap();
    Ok(())
}

/// Everybody is in exactly one place, and that is where the model has them.
async fn whereabouts(game: &Game<'_>, model: &Model) -> Result<(), TestCaseError> {
    let mut found: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for name in ["line", "passed", "called", "sessions", "gone", "away"] {
        found.insert(name, game.ask("ZRANGE", name, &["0", "-1"]).await);
    }
    let mut wanted: BTreeMap<&str, BTreeSet<String>> = found.keys().map(|name| (*name, BTreeSet::new())).collect();
    for (who, at) in model.at.iter().enumerate() {
        let name = match at {
            At::Outside => continue,
            At::Line { passed: true, .. } => "passed",
            At::Line { .. } => "line",
            At::Called { .. } => "called",
            At::Inside { .. } => "sessions",
            At::Gone { .. } => "gone",
        };
        wanted.entry(name).or_default().insert(ticket(who));
        if matches!(at, At::Line { away_until: Some(_), .. }) {
            wanted.entry("away").or_default().insert(ticket(who));
        }
    }
    prop_assert_eq!(&found, &wanted);
    let fates: BTreeSet<String> = game.ask("HKEYS", "fates", &[]).await;
    prop_assert_eq!(&fates, &wanted["gone"]);
    Ok(())
}

/// Positions as a gateway works them out: exact in the first block, by the counts of the blocks before further back.
async fn positions(game: &Game<'_>, model: &Model) -> Result<BTreeMap<u64, u64>, TestCaseError> {
    let measured = game.room.measure().await.unwrap().unwrap();
    let mut beyond: Vec<u64> = model
        .line()
        .map(|(place, ..)| place)
        .filter(|place| *place > model.frontier)
        .collect();
    beyond.sort_unstable();
    let mut blocks: BTreeMap<u64, u64> = BTreeMap::new();
    for place in &beyond {
        *blocks.entry(place / 1_024).or_default() += 1;
    }
    prop_assert_eq!(measured.blocks.clone(), blocks.into_iter().collect::<Vec<_>>());
    prop_assert_eq!((measured.frontier, measured.last), (model.frontier, model.last));
    let first_block = beyond.first().map(|place| place / 1_024);
    let first: Vec<u64> = beyond.iter().copied().filter(|place| Some(place / 1_024) == first_block).collect();
    prop_assert_eq!(&measured.first, &first);
    let mut positions = BTreeMap::new();
    for (ahead, place) in beyond.iter().enumerate() {
        let before: u64 = measured
            .blocks
            .iter()
            .filter(|(block, _)| *block < place / 1_024)
            .map(|(_, count)| count)
            .sum();
        let within = if Some(place / 1_024) == first_block {
            measured.first.iter().filter(|other| *other < place).count() as u64
        } else {
            place % 1_024
        };
        if Some(place / 1_024) == first_block {
            prop_assert_eq!(before + within, ahead as u64);
        }
        prop_assert!(before + within >= ahead as u64, "shown to be nearer than it is");
        positions.insert(*place, before + within);
    }
    Ok(positions)
}

async fn game(game: &Game<'_>, events: Vec<Event>) -> Result<(), TestCaseError> {
    let seed = Seed {
        rate_milli: RATE_MILLI,
        cap: CAP,
        ..Seed::default()
    };
    let seeded = game.room.seed(&seed).await.unwrap();
    // Places cross from one block to the next after three.
    let last = seeded.epoch * 262_144 + 1_020;
    game.ask::<u64>("HSET", "room", &["last", &last.to_string()]).await;
    let mut model = Model {
        at: vec![At::Outside; VISITORS],
        now: game.now_ms(),
        last,
        frontier: 0,
        credit: 1_000_000,
        credit_at: game.now_ms(),
        admitted: Vec::new(),
    };
    let mut before = BTreeMap::new();
    for event in &events {
        step(game, &mut model, event).await?;
        whereabouts(game, &model).await?;
        let now = positions(game, &model).await?;
        for (place, position) in &now {
            let worse = before.get(place).is_some_and(|was| was < position);
            prop_assert!(
                !worse,
                "place {place} was {:?}, and is {position} after {event:?}",
                before.get(place)
            );
        }
        before = now;
    }
    // In any stretch of time: the rate, and a second of it saved up.
    for (n, from) in model.admitted.iter().enumerate() {
        for (m, to) in model.admitted.iter().enumerate().skip(n) {
            let most = (RATE_MILLI * (to - from) + RATE_MILLI * 1_000) / 1_000_000;
            prop_assert!((m - n + 1) as u64 <= most, "{} from {from} to {to}", m - n + 1);
        }
    }
    Ok(())
}

#[test]
fn the_line_is_that_of_the_model() {
    play(120, 70, event(), game);
}
