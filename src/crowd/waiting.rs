//! Waiting in line: by event stream, by WebSocket, by polling, or by a page that reloads itself.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use http::StatusCode;
use http_body_util::BodyExt;
use tokio::time::{sleep, timeout};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;

use super::browser::Browser;
use super::character::{Transport, between};
use super::report::Promise;
use super::seen::{Events, Seen, Stand};
use super::wire::Trouble;
use super::{World, micros};
use crate::clock::{Clock, millis};

/// How waiting ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waited {
    /// It is the visitor's turn.
    Turn,
    /// Let in already, in another tab, or nobody waits any more: ask for the page again.
    Inside,
    /// Everything is sold.
    SoldOut,
    /// The turn came and went.
    Lapsed,
    /// The line does not know this visitor any more, or is closed.
    Gone,
    /// The stream ended, and the visitor comes again.
    Cut,
}

/// What a visitor remembers of its wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory {
    /// When it came.
    pub(super) arrived: Instant,
    /// How many were ahead when it was last told.
    pub(super) ahead: Option<u64>,
    /// What it was first promised, and when.
    pub(super) promised: Option<(Instant, u32, u32)>,
    /// It was told, after that, that nobody is called just now.
    pub(super) interrupted: bool,
    /// It was told that it is its turn.
    pub(super) called: bool,
    /// After a cut it is to come back after so long.
    pub(super) retry: Option<Duration>,
}

impl Memory {
    pub(super) fn new() -> Self {
        Self {
            arrived: Clock::instant(),
            ahead: None,
            promised: None,
            interrupted: false,
            called: false,
            retry: None,
        }
    }

    /// Notes that it is the visitor's turn: the wait is over, and can be held against what was promised.
    pub(super) fn call(&mut self, world: &World) {
        if std::mem::replace(&mut self.called, true) {
            return;
        }
        world.count(|counts| counts.called += 1);
        let waited = short(millis(self.arrived.elapsed()));
        let promise = self.promised.map(|(when, low_s, high_s)| Promise {
            low_s,
            high_s,
            actual_ms: short(millis(when.elapsed())),
            interrupted: self.interrupted,
        });
        world.measure(|samples| {
            samples.waits_ms.push(waited);
            samples.promises.extend(promise);
        });
    }

    /// Takes in a view: is the position worse than before, and is the wait over?
    pub(super) fn look(&mut self, world: &World, seen: &Seen) -> Option<Waited> {
        if let Some(ahead) = seen.ahead {
            if let Some(before) = self.ahead.filter(|before| ahead > *before) {
                world.count(|counts| counts.worse += 1);
                world.measure(|samples| samples.wonder(format!("a visitor with {before} ahead was then told {ahead}")));
            }
            if self.ahead.replace(ahead).is_none() {
                let after_ms = short(millis(self.arrived.elapsed()));
                world.measure(|samples| samples.first_number_ms.push(after_ms));
            }
        }
        if let (None, Some(low), Some(high)) = (self.promised, seen.wait_low_s, seen.wait_high_s) {
            self.promised = Some((Clock::instant(), low, high));
        }
        if self.promised.is_some() && matches!(seen.state, Stand::AllHeld | Stand::Paused) {
            self.interrupted = true;
        }
        match seen.state {
            Stand::Countdown | Stand::Waiting | Stand::Nearly | Stand::Paused | Stand::AllHeld => None,
            Stand::Turn => {
                self.call(world);
                Some(Waited::Turn)
            }
            Stand::Admitted => Some(Waited::Inside),
            Stand::SoldOut => Some(Waited::SoldOut),
            Stand::Closed => Some(Waited::Gone),
            Stand::Gone if self.called => Some(Waited::Lapsed),
            Stand::Gone => Some(Waited::Gone),
        }
    }
}

/// A number that fits, or the largest that does.
fn short(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

/// A stream that is open: counted, and its longest silence known, until it is dropped.
struct OpenStream<'a> {
    world: &'a World,
    heard: Instant,
    longest: Duration,
}

impl<'a> OpenStream<'a> {
    fn new(world: &'a World) -> Self {
        world.count(|counts| counts.streams += 1);
        Self {
            world,
            heard: Clock::instant(),
            longest: Duration::ZERO,
        }
    }

    /// Something came.
    fn hear(&mut self) {
        let before = std::mem::replace(&mut self.heard, Clock::instant());
        self.longest = self.longest.max(self.heard.saturating_duration_since(before));
    }
}

impl Drop for OpenStream<'_> {
    fn drop(&mut self) {
        self.world.count(|counts| counts.streams -= 1);
        let longest = short(millis(self.longest));
        self.world.measure(|samples| samples.longest_gap_ms.push(longest));
    }
}

/// How long a stream may be silent: longer than a few keep-alives.
const SILENCE: Duration = Duration::from_secs(60);

impl Browser {
    /// Waits until there is something to do. `ignore_turn` is the visitor who does not come when called, and waits on.
    pub(super) async fn wait(&mut self, transport: Transport, memory: &mut Memory, ignore_turn: bool) -> Result<Waited, Trouble> {
        loop {
            let waited = match transport {
                Transport::Sse => self.wait_on_events(memory, ignore_turn).await?,
                Transport::WebSocket => self.wait_on_socket(memory, ignore_turn).await?,
                Transport::Poll => self.poll(memory, ignore_turn).await?,
                Transport::NoScript => return Ok(Waited::Inside),
            };
            match waited {
                Waited::Cut => sleep(memory.retry.unwrap_or_else(|| between(500, 1_500))).await,
                done => return Ok(done),
            }
        }
    }

    async fn wait_on_events(&mut self, memory: &mut Memory, ignore_turn: bool) -> Result<Waited, Trouble> {
        let world = std::sync::Arc::clone(&self.world);
        let mut response = self.open_events(&world.route("events")).await?;
        match response.status() {
            StatusCode::OK => {}
            StatusCode::NO_CONTENT => return Ok(Waited::Inside),
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                world.count(|counts| counts.slowed += 1);
                return Ok(Waited::Cut);
            }
            status => {
                world.measure(|samples| samples.wonder(format!("the event stream was answered {status}")));
                return Ok(Waited::Cut);
            }
        }
        let mut open = OpenStream::new(&world);
        let mut events = Events::default();
        loop {
            let frame = match timeout(SILENCE, response.body_mut().frame()).await {
                Err(_) => {
                    world.measure(|samples| samples.wonder("a stream was silent for a minute".to_owned()));
                    return Ok(Waited::Cut);
                }
                Ok(None | Some(Err(_))) => return Ok(Waited::Cut),
                Ok(Some(Ok(frame))) => frame,
            };
            let Ok(chunk) = frame.into_data() else { continue };
            open.hear();
            let heard = events.feed(&chunk);
            memory.retry = events.retry.or(memory.retry);
            for (name, data) in heard {
                if name == "bye" {
                    return Ok(Waited::Cut);
                }
                if let Some(done) = told(&world, memory, &data, ignore_turn) {
                    return Ok(done);
                }
            }
        }
    }

    async fn wait_on_socket(&mut self, memory: &mut Memory, ignore_turn: bool) -> Result<Waited, Trouble> {
        let world = std::sync::Arc::clone(&self.world);
        self.hang_up();
        let request = self.socket_request(&world.route("ws"))?;
        let (stream, _permit) = world.road.connect(self.source).await?;
        let config = WebSocketConfig::default()
            .read_buffer_size(2048)
            .write_buffer_size(0)
            .max_write_buffer_size(16 << 10)
            .max_message_size(Some(16 << 10));
        let opening = tokio_tungstenite::client_async_with_config(request, stream, Some(config));
        let mut socket = match timeout(SILENCE, opening).await {
            Err(_) => return Err(Trouble::Silence),
            Ok(Err(refused)) => {
                // A browser's script cannot see why; it asks `status`, and so does the crowd.
                return self.ask_after_refusal(memory, ignore_turn, &refused.to_string()).await;
            }
            Ok(Ok((socket, _))) => socket,
        };
        world.count(|counts| counts.requests += 1);
        let mut open = OpenStream::new(&world);
        loop {
            let heard = timeout(SILENCE, socket.next()).await;
            open.hear();
            match heard {
                Ok(Some(Ok(Message::Text(text)))) => {
                    if let Some(done) = told(&world, memory, text.as_str(), ignore_turn) {
                        return Ok(done);
                    }
                }
                Ok(Some(Ok(message))) if !message.is_close() => {}
                _ => return Ok(Waited::Cut),
            }
        }
    }

    async fn ask_after_refusal(&mut self, memory: &mut Memory, ignore_turn: bool, why: &str) -> Result<Waited, Trouble> {
        let reply = self.fetch(&self.world.route("status")).await?;
        let world = std::sync::Arc::clone(&self.world);
        let Ok(seen) = serde_json::from_slice::<Seen>(&reply.body) else {
            let status = reply.status;
            world.measure(|samples| samples.wonder(format!("a WebSocket was refused ({why}) and status answered {status}")));
            return Ok(Waited::Cut);
        };
        Ok(memory
            .look(&world, &seen)
            .filter(|done| !(ignore_turn && *done == Waited::Turn))
            .unwrap_or(Waited::Cut))
    }

    async fn poll(&mut self, memory: &mut Memory, ignore_turn: bool) -> Result<Waited, Trouble> {
        let world = std::sync::Arc::clone(&self.world);
        loop {
            let reply = self.fetch(&self.world.route("status")).await?;
            self.hang_up();
            let pause_s = match serde_json::from_slice::<Seen>(&reply.body) {
                Ok(seen) => {
                    let done = memory.look(&world, &seen);
                    if done == Some(Waited::SoldOut) {
                        world.measure(|samples| samples.no_while_polling_us.push(micros(reply.took)));
                    }
                    match done {
                        Some(Waited::Turn) if ignore_turn => {}
                        Some(done) => return Ok(done),
                        None => {}
                    }
                    seen.poll_after_s.clamp(1, 60)
                }
                Err(_) if reply.status == StatusCode::TOO_MANY_REQUESTS => {
                    world.count(|counts| counts.slowed += 1);
                    reply.retry_after(Duration::from_secs(2)).as_secs().max(1)
                }
                Err(_) => {
                    let status = reply.status;
                    world.measure(|samples| samples.wonder(format!("status answered {status} without a view")));
                    5
                }
            };
            sleep(between(pause_s * 1000, pause_s * 1200)).await;
        }
    }
}

/// A view came on a stream.
fn told(world: &World, memory: &mut Memory, data: &str, ignore_turn: bool) -> Option<Waited> {
    world.count(|counts| counts.updates += 1);
    let seen: Seen = match serde_json::from_str(data) {
        Ok(seen) => seen,
        Err(unreadable) => {
            world.measure(|samples| samples.wonder(format!("a view that cannot be read ({unreadable}): {data}")));
            return None;
        }
    };
    let done = memory.look(world, &seen)?;
    match done {
        Waited::Turn if ignore_turn => return None,
        Waited::SoldOut => world.measure(|samples| samples.told_no_at_ms.push(world.clock.now_ms())),
        _ => {}
    }
    Some(done)
}
