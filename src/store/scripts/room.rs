//! The scripts of the room as a whole: seed, show, tune.

use super::verb::Verb;
use super::{Greeting, Seed, Seeded, Shown, Stock, Tuned, Tuning};
use crate::fault::StoreFault;
use crate::store::RoomStore;
use crate::store::keys::Key;

pub(super) static SEED: Verb = Verb::new("seed", include_str!("../../../lua/seed.lua"), &[Key::Room]);
pub(super) static SHOW: Verb = Verb::new(
    "show",
    include_str!("../../../lua/show.lua"),
    &[Key::Room, Key::Line, Key::Away, Key::Called, Key::Sessions],
);
pub(super) static TUNE: Verb = Verb::new(
    "tune",
    include_str!("../../../lua/tune.lua"),
    &[Key::Room, Key::Operations, Key::Audit],
);
pub(super) static GREET: Verb = Verb::new("greet", include_str!("../../../lua/greet.lua"), &[Key::Gateways]);

/// A gateway that has been quiet for so long is forgotten.
const QUIET_MS: u64 = 10_000;
/// Gateways that are written down at most.
const MOST_GATEWAYS: u64 = 256;

impl RoomStore {
    /// Says that the gateway of this name is here and what it goes by, and hears of all. Without words it leaves.
    ///
    /// # Errors
    /// Any [`StoreFault`]; the same call may be repeated.
    pub async fn greet(&self, name: &str, words: &str) -> Result<Vec<Greeting>, StoreFault> {
        let arguments = self.at().text(name).text(words).number(QUIET_MS).number(MOST_GATEWAYS);
        let mut heard = self.run(&GREET, arguments).await?;
        if heard.first() != "greeted" {
            return Err(heard.unheard());
        }
        let now_ms = heard.number()?;
        let mut greetings = Vec::with_capacity(heard.left() / 3);
        while heard.left() > 0 {
            greetings.push(Greeting {
                name: heard.text()?,
                ago_ms: now_ms.saturating_sub(heard.number()?),
                words: heard.text()?,
            });
        }
        Ok(greetings)
    }

    /// Makes the room, once.
    ///
    /// # Errors
    /// Any [`StoreFault`]; the same call may be repeated.
    pub async fn seed(&self, seed: &Seed) -> Result<Seeded, StoreFault> {
        let optional = |number: Option<u64>| number.map(|number| number.to_string()).unwrap_or_default();
        let arguments = self.at().number(seed.rate_milli).number(seed.cap).text(&optional(seed.stock));
        let arguments = arguments.number(seed.opens_at_ms).number(seed.closes_at_ms);
        let mut words = self.run(&SEED, arguments.text(&optional(seed.lost_rebuild_ms))).await?;
        let fresh = match words.first() {
            "seeded" => true,
            "exists" => false,
            _ => return Err(words.unheard()),
        };
        Ok(Seeded {
            epoch: words.number()?,
            fresh,
        })
    }

    /// How the room is now. `None`: it is not seeded.
    ///
    /// # Errors
    /// Any [`StoreFault`].
    pub async fn show(&self) -> Result<Option<Shown>, StoreFault> {
        let mut words = self.run(&SHOW, self.at()).await?;
        match words.first() {
            "unseeded" => return Ok(None),
            "shown" => {}
            _ => return Err(words.unheard()),
        }
        let mut shown = Shown {
            message: words.text()?,
            now_ms: words.number()?,
            waiting: words.number()?,
            away: words.number()?,
            called: words.number()?,
            sessions: words.number()?,
            epoch: words.number()?,
            version: words.number()?,
            frontier: words.number()?,
            rate_milli: words.number()?,
            cap: words.number()?,
            paused: words.flag()?,
            opens_at_ms: words.number()?,
            closes_at_ms: words.number()?,
            shut_until_ms: words.number()?,
            ..Shown::default()
        };
        let stocked = words.flag()?;
        let stock = Stock {
            stock: words.number()?,
            free: words.number()?,
            held: words.number()?,
            sold: words.number()?,
            known: words.flag()?,
        };
        shown.stock = stocked.then_some(stock);
        shown.joined_total = words.number()?;
        shown.called_total = words.number()?;
        Ok(Some(shown))
    }

    /// Changes settings. `operation` is the change's own id: asked again, it changes nothing.
    ///
    /// # Errors
    /// Any [`StoreFault`]; the same call may be repeated.
    pub async fn tune(&self, who: &str, operation: &str, tuning: &Tuning) -> Result<Tuned, StoreFault> {
        let numbers = [
            ("rate", tuning.rate_milli),
            ("cap", tuning.cap),
            ("paused", tuning.paused.map(u64::from)),
            ("stock", tuning.stock),
            ("opens_at", tuning.opens_at_ms),
            ("closes_at", tuning.closes_at_ms),
        ];
        let mut arguments = self.at().text(operation).text(who).text(self.news());
        for (name, value) in numbers {
            if let Some(value) = value {
                arguments = arguments.text(name).number(value);
            }
        }
        if let Some(message) = &tuning.message {
            arguments = arguments.text("message").text(message);
        }
        let mut words = self.run(&TUNE, arguments).await?;
        match words.first() {
            "unseeded" => Ok(Tuned::Unseeded),
            "tuned" => Ok(Tuned::Tuned { version: words.number()? }),
            "stock_too_low" => Ok(Tuned::StockTooLow { taken: words.number()? }),
            "no_stock" => Ok(Tuned::NoStock),
            _ => Err(words.unheard()),
        }
    }
}
