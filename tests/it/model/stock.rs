//! The stock: no unit is taken twice, given back twice or lost, whatever claims, payments, releases and expiries do to each other.

use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use waitgate::store::scripts::{Asked, Gate, Held, Seed, Settled, Stock, Tuned, Tuning, Verdict};

use super::{Game, play};
use crate::harness::{TERMS, seed};

const STOCK: u64 = 4;
const LIMIT: u64 = 2;
const HOLD_MS: u64 = 1_000;
const MEMORY_MS: u64 = 2_500;

#[derive(Clone, Debug)]
enum Event {
    Claim {
        buyer: usize,
        key: usize,
        units: u64,
    },
    /// The n-th reservation ever made, counted around.
    Settle {
        nth: usize,
        verdict: Verdict,
    },
    Sweep,
    Restock {
        units: u64,
    },
    Pass {
        ms: u64,
    },
}

fn event() -> impl Strategy<Value = Event> {
    let verdict = prop_oneof![Just(Verdict::Confirm), Just(Verdict::Release)];
    prop_oneof![
        5 => (0..4_usize, 0..3_usize, 1..=3_u64).prop_map(|(buyer, key, units)| Event::Claim { buyer, key, units }),
        5 => (0..12_usize, verdict).prop_map(|(nth, verdict)| Event::Settle { nth, verdict }),
        2 => Just(Event::Sweep),
        1 => (0..7_u64).prop_map(|units| Event::Restock { units }),
        3 => prop_oneof![Just(1), 1..400_u64, 900..1_500_u64].prop_map(|ms| Event::Pass { ms }),
    ]
}

struct Reserved {
    buyer: usize,
    /// 0 is none.
    key: usize,
    units: u64,
    until: u64,
    state: Held,
    refund: bool,
    forget: Option<u64>,
    forgotten: bool,
}

struct Model {
    now: u64,
    stock: u64,
    all: Vec<Reserved>,
}

impl Model {
    fn units(&self, state: Held, buyer: Option<usize>) -> u64 {
        let of = self
            .all
            .iter()
            .filter(|it| it.state == state && buyer.is_none_or(|buyer| it.buyer == buyer));
        of.map(|it| it.units).sum()
    }

    fn free(&self) -> u64 {
        self.stock - self.units(Held::Held, None) - self.units(Held::Sold, None)
    }

    fn already(&self, at: usize, units: u64) -> String {
        format!("already {at} {:?} {}", self.all[at].state, self.all[at].units == units)
    }

    fn claim(&mut self, buyer: usize, key: usize, units: u64) -> String {
        let known = |it: &&Reserved| !it.forgotten && it.buyer == buyer;
        if key > 0
            && let Some(at) = self.all.iter().rposition(|it| known(&it) && it.key == key)
        {
            return if self.all[at].units == units {
                self.already(at, units)
            } else {
                "mismatch".into()
            };
        }
        if let Some(at) = self.all.iter().position(|it| known(&it) && it.state == Held::Held) {
            return self.already(at, units);
        }
        let has = self.units(Held::Sold, Some(buyer));
        if has + units > LIMIT {
            // Which of several bought ones it is told of does not matter to anybody.
            return if has > 0 { "already bought".into() } else { "limit".into() };
        }
        match self.free() {
            0 if self.units(Held::Held, None) > 0 => "all held".into(),
            0 => "sold out".into(),
            free if free < units => format!("too few {free}"),
            _ => {
                self.all.push(Reserved {
                    buyer,
                    key,
                    units,
                    until: self.now + HOLD_MS,
                    state: Held::Held,
                    refund: false,
                    forget: None,
                    forgotten: false,
                });
                format!("reserved {}", self.all.len() - 1)
            }
        }
    }

    fn settle(&mut self, at: usize, verdict: Verdict) -> Settled {
        let Some(it) = self.all.get(at).filter(|it| !it.forgotten) else {
            return Settled::Missing;
        };
        let (state, buyer, units, refund) = (it.state, it.buyer, it.units, it.refund);
        let one_lives = self.all.iter().any(|it| it.buyer == buyer && it.state == Held::Held);
        let fits = !one_lives && self.units(Held::Sold, Some(buyer)) + units <= LIMIT && self.free() >= units && !refund;
        let forget = Some(self.now + MEMORY_MS);
        let it = &mut self.all[at];
        match (verdict, state) {
            (Verdict::Release, Held::Held) => {
                (it.state, it.forget) = (Held::Released, forget);
                Settled::Released
            }
            (Verdict::Release, Held::Sold) => Settled::Sold,
            (Verdict::Release, _) => Settled::ReleasedBefore,
            (Verdict::Confirm, Held::Held) => {
                it.state = Held::Sold;
                Settled::Confirmed
            }
            (Verdict::Confirm, Held::Sold) => Settled::ConfirmedBefore,
            (Verdict::Confirm, _) if fits => {
                (it.state, it.forget) = (Held::Sold, None);
                Settled::Retaken
            }
            (Verdict::Confirm, _) => {
                it.refund = true;
                Settled::Refund
            }
        }
    }

    fn sweep(&mut self) -> (u64, u64) {
        let (mut expired, mut forgotten) = (0, 0);
        for it in &mut self.all {
            if it.state == Held::Held && it.until <= self.now {
                (it.state, it.forget) = (Held::Expired, Some(self.now + MEMORY_MS));
                expired += 1;
            } else if !it.forgotten && it.forget.is_some_and(|forget| forget <= self.now) {
                it.forgotten = true;
                forgotten += 1;
            }
        }
        (expired, forgotten)
    }
}

fn told(gate: Gate, model: &Model, buyer: usize, bought: bool) -> String {
    match gate {
        Gate::Reserved(it) => format!("reserved {}", it.id),
        Gate::Already { reservation, same, .. } => {
            let at: usize = reservation.id.parse().unwrap();
            assert_eq!(model.all[at].buyer, buyer, "told of somebody else's");
            if bought && reservation.state == Held::Sold {
                return "already bought".into();
            }
            format!("already {} {:?} {same}", reservation.id, reservation.state)
        }
        Gate::Mismatch => "mismatch".into(),
        Gate::SoldOut => "sold out".into(),
        Gate::AllHeld => "all held".into(),
        Gate::TooFew { free } => format!("too few {free}"),
        Gate::Limit => "limit".into(),
        Gate::StockUnknown => "unknown".into(),
    }
}

async fn step(game: &Game<'_>, model: &mut Model, event: &Event) -> Result<(), TestCaseError> {
    let room = &game.room;
    let terms = waitgate::store::scripts::Terms {
        memory_ms: MEMORY_MS,
        ..TERMS
    };
    match *event {
        Event::Claim { buyer, key, units } => {
            let asked = Asked {
                user: format!("b{buyer}"),
                key: if key == 0 { String::new() } else { format!("k{key}") },
                fingerprint: format!("{units} units"),
                reservation: model.all.len().to_string(),
                units,
                limit: LIMIT,
                hold_ms: HOLD_MS,
                flight_ms: 100,
            };
            let wanted = model.claim(buyer, key, units);
            let gate = room.claim(&asked).await.unwrap();
            prop_assert_eq!(told(gate, model, buyer, wanted == "already bought"), wanted);
        }
        Event::Settle { nth, verdict } => {
            // Sometimes one that was never made.
            let nth = nth % (model.all.len() + 1);
            let wanted = model.settle(nth, verdict);
            prop_assert_eq!(room.settle(&terms, &nth.to_string(), verdict, None).await.unwrap(), wanted);
        }
        Event::Sweep => {
            let wanted = model.sweep();
            let swept = room.sweep(&terms).await.unwrap();
            prop_assert_eq!((swept.expired, swept.forgotten), wanted);
        }
        Event::Restock { units } => {
            let taken = model.units(Held::Held, None) + model.units(Held::Sold, None);
            let tuning = Tuning {
                stock: Some(units),
                ..Tuning::default()
            };
            let tuned = room.tune("ann", &fastrand::u64(..).to_string(), &tuning).await.unwrap();
            if units < taken {
                prop_assert_eq!(tuned, Tuned::StockTooLow { taken });
            } else {
                prop_assert!(matches!(tuned, Tuned::Tuned { .. }), "refused: {tuned:?}");
                model.stock = units;
            }
        }
        Event::Pass { ms } => {
            game.bench.clock.advance(Duration::from_millis(ms));
            model.now += ms;
        }
    }
    Ok(())
}

async fn game(game: &Game<'_>, events: Vec<Event>) -> Result<(), TestCaseError> {
    let room = Seed {
        stock: Some(STOCK),
        ..seed(1_000)
    };
    game.room.seed(&room).await.unwrap();
    let mut model = Model {
        now: game.now_ms(),
        stock: STOCK,
        all: Vec::new(),
    };
    for event in &events {
        step(game, &mut model, event).await?;
        let wanted = Stock {
            stock: model.stock,
            free: model.free(),
            held: model.units(Held::Held, None),
            sold: model.units(Held::Sold, None),
            known: true,
        };
        let found = game.room.show().await.unwrap().unwrap().stock.unwrap();
        prop_assert_eq!(found.free + found.held + found.sold, found.stock);
        prop_assert_eq!(found, wanted);
        let holds: usize = game.ask("ZCARD", "holds", &[]).await;
        prop_assert_eq!(holds, model.all.iter().filter(|it| it.state == Held::Held).count());
        let kept: usize = game.ask("HLEN", "reservations", &[]).await;
        prop_assert_eq!(kept, model.all.iter().filter(|it| !it.forgotten).count());
        for (at, it) in model.all.iter().enumerate() {
            let found = game.room.reservation(&at.to_string()).await.unwrap().map(|it| it.state);
            prop_assert_eq!(found, (!it.forgotten).then_some(it.state));
        }
    }
    Ok(())
}

#[test]
fn the_stock_is_that_of_the_model() {
    play(120, 70, event(), game);
}
