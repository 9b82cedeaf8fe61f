//! The scripts of the line: join, admit, redeem, depart, sweep, measure.

use super::verb::{Verb, Words};
use super::{Fate, Joined, Joining, Knock, Measured, Place, Presence, Redeemed, Standing, Swept, Terms, Ticked};
use crate::fault::StoreFault;
use crate::store::RoomStore;
use crate::store::keys::Key;

/// Called by one run of `admit` at most. A run is every 100 ms, so one gateway alone calls 50,000 a second.
const CALLED_AT_MOST: u64 = 5_000;
/// Passed over by one run of `admit` at most.
const PASSED_AT_MOST: u64 = 1_000;
/// Of each kind, ended by one run of `sweep` at most.
const SWEPT_AT_MOST: u64 = 500;
/// Places of the first block that `measure` tells, at most.
const MEASURED_AT_MOST: u64 = 1_024;

pub(super) static JOIN: Verb = Verb::new(
    "join",
    include_str!("../../../lua/join.lua"),
    &[
        Key::Room,
        Key::Line,
        Key::Blocks,
        Key::Away,
        Key::Passed,
        Key::Called,
        Key::Sessions,
        Key::Gone,
        Key::Fates,
    ],
);
pub(super) static ADMIT: Verb = Verb::new(
    "admit",
    include_str!("../../../lua/admit.lua"),
    &[
        Key::Room,
        Key::Line,
        Key::Blocks,
        Key::Away,
        Key::Passed,
        Key::Called,
        Key::Sessions,
    ],
);
pub(super) static REDEEM: Verb = Verb::new(
    "redeem",
    include_str!("../../../lua/redeem.lua"),
    &[Key::Room, Key::Line, Key::Away, Key::Passed, Key::Called, Key::Sessions, Key::Fates],
);
pub(super) static DEPART: Verb = Verb::new(
    "depart",
    include_str!("../../../lua/depart.lua"),
    &[
        Key::Room,
        Key::Line,
        Key::Blocks,
        Key::Away,
        Key::Passed,
        Key::Called,
        Key::Sessions,
        Key::Gone,
        Key::Fates,
    ],
);
pub(super) static SWEEP: Verb = Verb::new(
    "sweep",
    include_str!("../../../lua/sweep.lua"),
    &[
        Key::Room,
        Key::Line,
        Key::Blocks,
        Key::Away,
        Key::Passed,
        Key::Called,
        Key::Sessions,
        Key::Gone,
        Key::Fates,
        Key::Holds,
        Key::Reservations,
        Key::Answers,
        Key::Claims,
        Key::Buyers,
        Key::Finished,
        Key::ClaimsLog,
    ],
);
pub(super) static MEASURE: Verb = Verb::new(
    "measure",
    include_str!("../../../lua/measure.lua"),
    &[Key::Room, Key::Line, Key::Blocks],
);

impl Knock {
    fn word(self) -> &'static str {
        match self {
            Self::AtOnce => "at_once",
            Self::Join => "join",
            Self::Again => "again",
        }
    }
}

fn fate(words: &Words, word: &str) -> Result<Fate, StoreFault> {
    match word {
        "left" => Ok(Fate::Left),
        "lapsed" => Ok(Fate::Lapsed),
        "abandoned" => Ok(Fate::Abandoned),
        "ended" => Ok(Fate::Ended),
        other => Err(words.nonsense(other)),
    }
}

/// One ticket's word: its place, or what else it is and since when or why.
fn standing(words: &mut Words, frontier: Place) -> Result<Standing, StoreFault> {
    if let Some(place) = words.whole() {
        let behind = place <= frontier;
        return Ok(Standing::Waiting { place, behind });
    }
    let word = words.text()?;
    let (kind, rest) = word.split_once(' ').unwrap_or((&word, ""));
    let until_ms = || rest.parse().map_err(|_| words.nonsense(&word));
    match kind {
        "called" => Ok(Standing::Called { until_ms: until_ms()? }),
        "admitted" => Ok(Standing::Admitted { until_ms: until_ms()? }),
        "gone" => Ok(Standing::Gone(fate(words, rest)?)),
        "must_wait" => Ok(Standing::MustWait),
        _ => Err(words.nonsense(&word)),
    }
}

impl RoomStore {
    /// Gives each new ticket the next place, or admits it at once. `None`: the room is not seeded.
    ///
    /// # Errors
    /// Any [`StoreFault`]; the same call may be repeated.
    pub async fn join(&self, terms: &Terms, tickets: &[Joining]) -> Result<Option<Joined>, StoreFault> {
        let mut arguments = self.at().number(terms.admission_ms);
        for joining in tickets {
            arguments = arguments.text(&joining.ticket).number(joining.place).text(joining.knock.word());
        }
        let mut words = self.run(&JOIN, arguments).await?;
        match words.first() {
            "unseeded" => Ok(None),
            "joined" => {
                let (epoch, frontier) = (words.number()?, words.number()?);
                let standings = tickets.iter().map(|_| standing(&mut words, frontier));
                let standings = standings.collect::<Result<_, _>>()?;
                Ok(Some(Joined {
                    epoch,
                    frontier,
                    standings,
                }))
            }
            _ => Err(words.unheard()),
        }
    }

    /// Calls as many as are due. `None`: the room is not seeded.
    ///
    /// # Errors
    /// Any [`StoreFault`]; the same call may be repeated.
    pub async fn admit(&self, terms: &Terms) -> Result<Option<Ticked>, StoreFault> {
        let arguments = self.at().number(terms.turn_ms).number(CALLED_AT_MOST).number(PASSED_AT_MOST);
        let mut words = self.run(&ADMIT, arguments.text(self.news())).await?;
        match words.first() {
            "unseeded" => Ok(None),
            "ticked" => Ok(Some(Ticked {
                epoch: words.number()?,
                version: words.number()?,
                frontier: words.number()?,
                called: words.number()?,
                waiting: words.number()?,
                at_once: words.flag()?,
                now_ms: words.number()?,
            })),
            _ => Err(words.unheard()),
        }
    }

    /// Turns "called" into one admission. In a room that is not seeded every ticket is unknown.
    ///
    /// # Errors
    /// Any [`StoreFault`]; the same call may be repeated.
    pub async fn redeem(&self, terms: &Terms, ticket: &str) -> Result<Redeemed, StoreFault> {
        let mut words = self.run(&REDEEM, self.at().number(terms.admission_ms).text(ticket)).await?;
        match words.first() {
            "admitted" => Ok(Redeemed::Admitted { until_ms: words.number()? }),
            "waiting" => Ok(Redeemed::Waiting),
            "gone" => {
                let word = words.text()?;
                Ok(Redeemed::Gone(fate(&words, &word)?))
            }
            "unknown" | "unseeded" => Ok(Redeemed::Unknown),
            _ => Err(words.unheard()),
        }
    }

    /// Marks visitors away or back, and takes leavers out. Does nothing in a room that is not seeded.
    ///
    /// # Errors
    /// Any [`StoreFault`]; the same call may be repeated.
    pub async fn depart(&self, terms: &Terms, changes: &[Presence]) -> Result<(), StoreFault> {
        let mut arguments = self.at().number(terms.grace_ms).number(terms.memory_ms).text(self.news());
        for change in changes {
            let (word, ticket, place) = match change {
                Presence::Away(ticket) => ("away", ticket, 0),
                Presence::Back(ticket, place) => ("back", ticket, *place),
                Presence::Leave(ticket) => ("leave", ticket, 0),
            };
            arguments = arguments.text(word).text(ticket).number(place);
        }
        let words = self.run(&DEPART, arguments).await?;
        match words.first() {
            "departed" | "unseeded" => Ok(()),
            _ => Err(words.unheard()),
        }
    }

    /// Ends what is over, a batch of each kind. Nothing is over in a room that is not seeded.
    ///
    /// # Errors
    /// Any [`StoreFault`]; the same call may be repeated.
    pub async fn sweep(&self, terms: &Terms) -> Result<Swept, StoreFault> {
        let arguments = self.at().number(terms.memory_ms).number(SWEPT_AT_MOST).text(self.news());
        let mut words = self.run(&SWEEP, arguments).await?;
        match words.first() {
            "unseeded" => Ok(Swept::default()),
            "swept" => Ok(Swept {
                abandoned: words.number()?,
                lapsed: words.number()?,
                ended: words.number()?,
                expired: words.number()?,
                forgotten: words.number()?,
                more: words.flag()?,
            }),
            _ => Err(words.unheard()),
        }
    }

    /// What positions are worked out from. `None`: the room is not seeded.
    ///
    /// # Errors
    /// Any [`StoreFault`].
    pub async fn measure(&self) -> Result<Option<Measured>, StoreFault> {
        let mut words = self.run(&MEASURE, self.arguments().number(MEASURED_AT_MOST)).await?;
        match words.first() {
            "unseeded" => return Ok(None),
            "measured" => {}
            _ => return Err(words.unheard()),
        }
        let (epoch, frontier, last) = (words.number()?, words.number()?, words.number()?);
        let mut blocks = (0..words.number()?)
            .map(|_| Ok((words.number()?, words.number()?)))
            .collect::<Result<Vec<_>, StoreFault>>()?;
        blocks.sort_unstable();
        let first = (0..words.left()).map(|_| words.score()).collect::<Result<_, _>>()?;
        Ok(Some(Measured {
            epoch,
            frontier,
            last,
            blocks,
            first,
        }))
    }
}
