//! One visitor's story: comes, waits, is let in, asks for a phone, pays; and every other way it can go.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tokio::time::{sleep, timeout};

use super::address;
use super::browser::{Browser, Content, Kind};
use super::character::{Character, Habit, Purse, Transport, between};
use super::landing::{Landing, land};
use super::report::Counts;
use super::waiting::{Memory, Waited};
use super::wire::Trouble;
use super::{World, micros};

/// How a visit ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Has a phone.
    Won,
    /// "No", on arrival.
    NoAtArrival,
    /// "No", in line.
    NoWhileWaiting,
    /// "No", when asking for a phone.
    NoAtClaim,
    /// "No", when paying too late.
    NoAtPayment,
    /// Left by the button.
    Left,
    /// Closed the page for good.
    Vanished,
    /// Was called and did not come.
    Lapsed,
    /// Changed its mind.
    Declined,
    /// Never paid.
    Unpaid,
    /// Looked around.
    Looked,
    /// Nobody said anything final.
    Stranded,
    /// The run ended first.
    Unfinished,
}

impl End {
    /// Counts it.
    pub(super) fn count(self, counts: &mut Counts) {
        match self {
            Self::Won => counts.won += 1,
            Self::NoAtArrival => counts.no_at_arrival += 1,
            Self::NoWhileWaiting => counts.no_while_waiting += 1,
            Self::NoAtClaim => counts.no_at_claim += 1,
            Self::NoAtPayment => counts.no_at_payment += 1,
            Self::Left => counts.left += 1,
            Self::Vanished => counts.vanished += 1,
            Self::Lapsed => counts.lapsed += 1,
            Self::Declined => counts.declined += 1,
            Self::Unpaid => counts.unpaid += 1,
            Self::Looked => {}
            Self::Stranded => counts.stranded += 1,
            Self::Unfinished => counts.unfinished += 1,
        }
    }
}

/// A number that is one count higher while it lives.
pub(super) struct Among<'a> {
    world: &'a World,
    which: fn(&mut Counts) -> &mut u64,
}

impl<'a> Among<'a> {
    fn new(world: &'a World, which: fn(&mut Counts) -> &mut u64) -> Self {
        world.count(|counts| *which(counts) += 1);
        Self { world, which }
    }
}

impl Drop for Among<'_> {
    fn drop(&mut self) {
        self.world.count(|counts| *(self.which)(counts) -= 1);
    }
}

/// A visit in progress.
pub(super) struct Visit {
    pub(super) browser: Browser,
    pub(super) character: Character,
    pub(super) memory: Memory,
    lost_place: bool,
}

/// Times a page is asked for that is none of those a visitor may expect, before giving up.
const STRANGE_PAGES: u32 = 10;

impl Visit {
    /// A visitor at the door.
    pub(super) fn new(world: &Arc<World>, index: u64, character: Character) -> Self {
        let known_as = if character.office {
            address::OFFICE
        } else {
            address::known_as(index)
        };
        Self {
            browser: Browser::new(Arc::clone(world), (!world.plain).then_some(known_as), world.source(index)),
            character,
            memory: Memory::new(),
            lost_place: false,
        }
    }

    /// The whole story.
    pub(super) async fn run(mut self) -> End {
        let world = Arc::clone(&self.browser.world);
        world.count(|counts| counts.arrived += 1);
        if self.character.is_willing() {
            world.count(|counts| counts.willing += 1);
        }
        match self.come_in().await {
            Ok(Some(end)) => end,
            Ok(None) => {
                let inside = Among::new(&world, |counts| &mut counts.in_shop);
                let end = self.shop().await;
                drop(inside);
                end.unwrap_or_else(|trouble| self.strand(&trouble))
            }
            Err(trouble) => self.strand(&trouble),
        }
    }

    fn strand(&self, trouble: &Trouble) -> End {
        self.browser
            .world
            .measure(|samples| samples.wonder(format!("a visitor gave up: {trouble}")));
        End::Stranded
    }

    /// Until inside (`None`), or told otherwise.
    async fn come_in(&mut self) -> Result<Option<End>, Trouble> {
        let world = Arc::clone(&self.browser.world);
        let mut in_line: Option<Among<'_>> = None;
        let mut strange = 0;
        loop {
            let reply = self.browser.navigate(&world.sale.page).await?;
            match land(&reply) {
                Landing::Shop => {
                    if in_line.is_none() && !self.memory.called {
                        world.count(|counts| counts.called += 1);
                        self.memory.called = true; // let in at once: there was no wait to measure
                    }
                    self.memory.call(&world);
                    return Ok(None);
                }
                Landing::SoldOut if in_line.is_none() => {
                    world.measure(|samples| samples.no_at_arrival_us.push(micros(reply.took)));
                    return Ok(Some(End::NoAtArrival));
                }
                Landing::SoldOut => {
                    world.measure(|samples| samples.no_while_polling_us.push(micros(reply.took)));
                    return Ok(Some(End::NoWhileWaiting));
                }
                Landing::TooMany { retry_after } => {
                    world.count(|counts| counts.slowed += 1);
                    sleep(retry_after + between(0, 500)).await;
                }
                Landing::Line { refresh } => {
                    in_line.get_or_insert_with(|| Among::new(&world, |counts| &mut counts.waiting));
                    if let Some(end) = self.stay_in_line(refresh).await? {
                        return Ok(end);
                    }
                }
                Landing::Over if self.memory.called => return Ok(Some(End::Lapsed)),
                Landing::Over => {
                    if let Some(end) = self.join_again().await? {
                        return Ok(end);
                    }
                }
                Landing::Strange if strange < STRANGE_PAGES => {
                    strange += 1;
                    let status = reply.status;
                    world.measure(|samples| samples.wonder(format!("the page was answered {status} and is neither the shop's nor ours")));
                    sleep(between(500, 2_000)).await;
                }
                Landing::Strange => return Ok(Some(End::Stranded)),
            }
        }
    }

    /// Waits once. `None`: ask for the page again. `Some(None)`: inside. `Some(Some(end))`: it is over.
    async fn stay_in_line(&mut self, refresh: Duration) -> Result<Option<Option<End>>, Trouble> {
        let habit = self.character.habit;
        let transport = self.character.transport;
        match habit {
            Habit::NoShow if transport == Transport::NoScript => {
                sleep(between(2_000, 6_000)).await;
                return Ok(Some(Some(End::Vanished)));
            }
            Habit::Leaves => return Ok(Some(Some(self.leave_after_a_while().await?))),
            Habit::ComesBack => {
                self.character.habit = Habit::Patient;
                return self.close_and_come_back().await;
            }
            Habit::Patient | Habit::NoShow | Habit::Tabs | Habit::Stays => {}
        }
        let waited = match transport {
            Transport::NoScript => {
                self.browser.hang_up();
                sleep(refresh).await;
                Waited::Inside
            }
            _ if habit == Habit::Tabs => self.wait_in_two_tabs().await?,
            _ => {
                self.browser
                    .wait(transport, &mut self.memory, matches!(habit, Habit::NoShow | Habit::Stays))
                    .await?
            }
        };
        self.act_on(waited).await
    }

    async fn act_on(&mut self, waited: Waited) -> Result<Option<Option<End>>, Trouble> {
        match waited {
            Waited::Inside if self.character.habit == Habit::NoShow && self.memory.called => Ok(Some(Some(End::Lapsed))),
            Waited::Inside | Waited::Cut => Ok(None),
            Waited::Turn => self.enter().await,
            Waited::SoldOut => Ok(Some(Some(End::NoWhileWaiting))),
            Waited::Lapsed => Ok(Some(Some(End::Lapsed))),
            Waited::Gone => self.join_again().await,
        }
    }

    /// The place is lost: the page offers to start again at the end, and the visitor does, once.
    async fn join_again(&mut self) -> Result<Option<Option<End>>, Trouble> {
        let world = Arc::clone(&self.browser.world);
        if std::mem::replace(&mut self.lost_place, true) {
            return Ok(Some(Some(End::Stranded)));
        }
        world.count(|counts| counts.lost_place += 1);
        self.memory.ahead = None;
        (self.memory.promised, self.memory.interrupted) = (None, false);
        let reply = self
            .browser
            .post(Kind::Fetch, &world.route("join"), Content::json("{}", None))
            .await?;
        if !reply.status.is_success() {
            let status = reply.status;
            world.measure(|samples| samples.wonder(format!("joining again was answered {status}")));
        }
        Ok(None)
    }

    async fn leave_after_a_while(&mut self) -> Result<End, Trouble> {
        let waiting = self.browser.wait(self.character.transport, &mut self.memory, true);
        if let Ok(waited) = timeout(between(500, 4_000), waiting).await
            && waited? == Waited::SoldOut
        {
            return Ok(End::NoWhileWaiting);
        }
        self.browser.hang_up();
        for _ in 0..5 {
            let reply = self
                .browser
                .post(Kind::Fetch, &self.browser.world.route("leave"), Content::json("{}", None))
                .await?;
            if reply.status.is_success() {
                break;
            }
            let status = reply.status;
            self.browser
                .world
                .measure(|samples| samples.wonder(format!("leaving was answered {status}")));
            sleep(reply.retry_after(Duration::from_secs(1))).await;
        }
        Ok(End::Left)
    }

    async fn close_and_come_back(&mut self) -> Result<Option<Option<End>>, Trouble> {
        let waiting = self.browser.wait(self.character.transport, &mut self.memory, false);
        if let Ok(waited) = timeout(between(500, 3_000), waiting).await {
            let waited = waited?;
            return self.act_on(waited).await;
        }
        self.browser.hang_up();
        sleep(between(1_000, 4_000)).await;
        Ok(None)
    }

    /// Two tabs of one browser: the first that hears something acts on it.
    async fn wait_in_two_tabs(&mut self) -> Result<Waited, Trouble> {
        let transport = self.character.transport;
        let mut tab = self.browser.tab();
        let page = tab.world.sale.page.clone();
        let mut tab_memory = self.memory;
        let second = async {
            sleep(between(200, 2_000)).await;
            let landed = land(&tab.navigate(&page).await?);
            match landed {
                Landing::Line { .. } => tab.wait(transport, &mut tab_memory, false).await,
                _ => Ok(Waited::Inside),
            }
        };
        let (waited, by_the_second) = tokio::select! {
            waited = self.browser.wait(transport, &mut self.memory, false) => (waited?, false),
            waited = second => (waited?, true),
        };
        if by_the_second {
            self.memory = tab_memory;
            self.browser = tab;
        }
        Ok(waited)
    }

    async fn enter(&mut self) -> Result<Option<Option<End>>, Trouble> {
        let reply = self
            .browser
            .post(Kind::Fetch, &self.browser.world.route("enter"), Content::json("{}", None))
            .await?;
        let world = Arc::clone(&self.browser.world);
        match (reply.status, reply.code().as_deref()) {
            (StatusCode::OK, _) => Ok(None),
            (StatusCode::GONE, _) => Ok(Some(Some(End::Lapsed))),
            (StatusCode::CONFLICT, Some("sold_out")) => Ok(Some(Some(End::NoWhileWaiting))),
            (StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE, _) => {
                world.count(|counts| counts.slowed += 1);
                sleep(reply.retry_after(Duration::from_secs(1))).await;
                Ok(None)
            }
            (status, code) => {
                let code = code.unwrap_or("no code").to_owned();
                world.measure(|samples| samples.wonder(format!("entering in turn was answered {status} ({code})")));
                sleep(between(500, 1_500)).await;
                Ok(None)
            }
        }
    }

    /// Inside.
    async fn shop(&mut self) -> Result<End, Trouble> {
        match self.character.purse {
            Purse::Looks => {
                sleep(between(2_000, 6_000)).await;
                Ok(End::Looked)
            }
            purse => {
                sleep(between(500, 6_000)).await;
                self.buy(purse).await
            }
        }
    }
}
