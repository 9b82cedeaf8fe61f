//! One open stream of one visitor, and the one thing it has yet to be told.
//!
//! State is absolute, so only the newest matters: a slow reader never has more than one message waiting for it, and nothing grows.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};

use bytes::{BufMut as _, Bytes, BytesMut};
use futures_util::task::AtomicWaker;
use tokio::runtime::Handle;

use super::live::Feed;
use crate::clock::UnixMs;
use crate::response::view::{State, View};
use crate::store::scripts::Place;

/// How a message begins on a stream of events; a WebSocket leaves it out.
const DATA: &[u8] = b"data: ";
/// How it ends.
const END: &[u8] = b"\n\n";

/// A view, written once: for streams of events as it is, for WebSockets without its frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message(Bytes);

impl Message {
    /// Writes a view.
    #[must_use]
    pub fn new(view: &View) -> Self {
        let mut bytes = BytesMut::with_capacity(192);
        bytes.put_slice(DATA);
        let mut writer = bytes.writer();
        // Numbers, words and text always become JSON.
        let _written = serde_json::to_writer(&mut writer, view);
        let mut bytes = writer.into_inner();
        bytes.put_slice(END);
        Self(bytes.freeze())
    }

    /// As a stream of events carries it.
    #[must_use]
    pub fn event(&self) -> &[u8] {
        &self.0
    }

    /// The same, to be sent as it is.
    #[must_use]
    pub fn into_event(self) -> Bytes {
        self.0
    }

    /// The JSON alone.
    #[must_use]
    pub fn json(&self) -> Bytes {
        self.0.slice(DATA.len()..self.0.len() - END.len())
    }
}

/// What a stream says next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// A new state.
    State(Message),
    /// Nothing new, but the line is alive.
    KeepAlive,
    /// A last state, if there is one, and the end of the stream.
    End(Option<Message>),
    /// This gateway is stopping, or wants streams spread anew: come back in a moment.
    Bye,
}

#[derive(Debug, Default)]
struct Slot {
    state: Option<Message>,
    keep_alive: bool,
    end: bool,
    bye: bool,
}

/// One open stream.
#[derive(Debug)]
pub struct Seat {
    /// Whose it is.
    pub ticket: Arc<str>,
    /// When that visitor came first.
    pub arrived_ms: UnixMs,
    /// Tells seats of one place apart.
    pub serial: u64,
    /// The thread that carries the stream.
    home: Handle,
    slot: Mutex<Slot>,
    reader: AtomicWaker,
    closed: AtomicBool,
    /// What the feed remembers of it. Only the feed writes these.
    place: AtomicU64,
    turn_until_ms: AtomicU64,
    told_ms: AtomicU64,
    ahead: AtomicU64,
    told: AtomicU8,
}

impl Seat {
    /// A seat, carried by the thread that asks, that has been told this view already.
    #[must_use]
    pub(super) fn new(ticket: Arc<str>, arrived_ms: UnixMs, serial: u64, place: Place, view: &View) -> Self {
        Self {
            ticket,
            arrived_ms,
            serial,
            home: Handle::current(),
            slot: Mutex::default(),
            reader: AtomicWaker::new(),
            closed: AtomicBool::new(false),
            place: AtomicU64::new(place),
            turn_until_ms: AtomicU64::new(view.turn_until_ms.unwrap_or(0)),
            told_ms: AtomicU64::new(view.updated_at_ms),
            ahead: AtomicU64::new(view.ahead.unwrap_or(u64::MAX)),
            told: AtomicU8::new(kind(view)),
        }
    }

    pub(super) fn home(&self) -> &Handle {
        &self.home
    }

    pub(super) fn place(&self) -> Place {
        self.place.load(Relaxed)
    }

    pub(super) fn move_to(&self, place: Place) {
        self.place.store(place, Relaxed);
    }

    pub(super) fn turn_until_ms(&self) -> UnixMs {
        self.turn_until_ms.load(Relaxed)
    }

    pub(super) fn hold_turn(&self, until_ms: UnixMs) {
        self.turn_until_ms.store(until_ms, Relaxed);
    }

    /// When it was told something last.
    pub(super) fn told_ms(&self) -> UnixMs {
        self.told_ms.load(Relaxed)
    }

    /// The number it was told last.
    pub(super) fn ahead(&self) -> u64 {
        self.ahead.load(Relaxed)
    }

    /// Puts a view in, in place of whatever was not read yet, and wakes the reader.
    pub(super) fn tell(&self, view: &View, message: Message) {
        self.put(view, message);
        self.wake();
    }

    /// The same without waking: for whoever has many to tell.
    pub(super) fn put(&self, view: &View, message: Message) {
        self.told_ms.store(view.updated_at_ms, Relaxed);
        self.ahead.store(view.ahead.unwrap_or(u64::MAX), Relaxed);
        self.told.store(kind(view), Relaxed);
        let ends = matches!(view.state, State::Admitted | State::Gone | State::Closed);
        let mut slot = self.slot();
        slot.state = Some(message);
        slot.end |= ends;
    }

    /// Whether the last view told was of this kind.
    pub(super) fn was_told(&self, view: &View) -> bool {
        self.told.load(Relaxed) == kind(view)
    }

    /// The number it was told last, as somebody at this place.
    pub(super) fn heard_at(&self, place: Place) -> Option<u64> {
        (self.place() == place).then(|| self.ahead())
    }

    /// Puts a sign of life in.
    pub(super) fn keep_alive(&self, now_ms: UnixMs) {
        self.told_ms.store(now_ms, Relaxed);
        self.slot().keep_alive = true;
    }

    /// Puts a goodbye in.
    pub(super) fn bye(&self) {
        self.slot().bye = true;
    }

    pub(super) fn wake(&self) {
        self.reader.wake();
    }

    pub(super) fn close(&self) {
        self.closed.store(true, Relaxed);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Relaxed)
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<Next> {
        let mut slot = self.slot();
        let state = slot.state.take();
        if slot.end {
            return Some(Next::End(state));
        }
        if let Some(state) = state {
            return Some(Next::State(state));
        }
        if slot.bye {
            return Some(Next::Bye);
        }
        std::mem::take(&mut slot.keep_alive).then_some(Next::KeepAlive)
    }
}

/// A seat as its stream holds it. Dropping it gives the seat up.
#[derive(Debug)]
pub struct Taken {
    seat: Arc<Seat>,
    feed: Weak<Feed>,
}

impl Taken {
    pub(super) fn new(seat: Arc<Seat>, feed: Weak<Feed>) -> Self {
        Self { seat, feed }
    }

    /// What the stream says next.
    pub fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Next> {
        // Registered before looking, so that nothing told in between is slept through.
        self.seat.reader.register(context.waker());
        self.seat.take().map_or(Poll::Pending, Poll::Ready)
    }

    /// Waits for what the stream says next.
    pub async fn next(&mut self) -> Next {
        std::future::poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.seat.close();
        if let Some(feed) = self.feed.upgrade() {
            feed.give_up(&self.seat);
        }
    }
}

/// What tells two views apart, numbers and text aside.
fn kind(view: &View) -> u8 {
    (view.state as u8) << 1 | u8::from(view.delayed)
}
