//! The frames of an HTTP/2 connection, counted on their way to hyper.
//!
//! hyper and h2 bound what frames may hold and how many streams may be broken, but not how often a client may say what asks for nothing: pings,
//! settings, priorities, windows, frames of kinds that nobody knows. Each costs little, and a connection that is answering is never idle: so they
//! could be sent for ever. Here such a frame is an expense. Requests, answers and time earn more than any honest client spends ([`Ledger`]); whoever
//! is in debt is cut off. Frames themselves are read elsewhere: only their heads are looked at, and nothing is judged in here.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// How every HTTP/2 connection begins.
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Bytes of a frame's head.
const HEAD: usize = 9;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
/// On a frame of data: nothing follows.
const END_STREAM: u8 = 1;

/// What a connection may spend from its beginning.
const START: u64 = 1000;
/// What a second earns: an answer to a ping, a change of mind.
const BY_SECOND: u64 = 20;
/// What a request earns: its priority, its window, its end.
const BY_REQUEST: u64 = 10;
/// What a piece of an answer earns: the windows that are opened for it, and a ping that measures how fast it goes.
const BY_PIECE: u64 = 4;
/// So many bytes of an answer earn one more: a client that opens windows for each few kilobytes is not thrifty, but honest.
const BYTES_FOR_ONE: usize = 1024;

/// What a connection has earned and spent, in frames.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    earned: AtomicU64,
    spent: AtomicU64,
}

impl Ledger {
    /// A piece of an answer of this length is on its way.
    pub(super) fn answered(&self, length: usize) {
        self.earned.fetch_add(BY_PIECE + (length / BYTES_FOR_ONE) as u64, Relaxed);
    }

    /// Whether more was spent than a connection of this age has earned.
    pub(super) fn is_in_debt(&self, age: impl FnOnce() -> Duration) -> bool {
        let (earned, spent) = (self.earned.load(Relaxed).saturating_add(START), self.spent.load(Relaxed));
        spent > earned && spent > earned.saturating_add(age().as_secs().saturating_mul(BY_SECOND))
    }
}

/// Follows the bytes that a client sends.
#[derive(Debug)]
pub(super) struct Frames {
    /// Bytes to come before the next head: of the preface, or of a frame.
    rest: usize,
    head: [u8; HEAD],
    filled: usize,
}

impl Frames {
    pub(super) fn new() -> Self {
        Self {
            rest: PREFACE.len(),
            head: [0; HEAD],
            filled: 0,
        }
    }

    /// Counts what these bytes are about.
    pub(super) fn follow(&mut self, mut bytes: &[u8], ledger: &Ledger) {
        let (mut earned, mut spent) = (0, 0);
        while !bytes.is_empty() {
            let skipped = self.rest.min(bytes.len());
            self.rest -= skipped;
            bytes = &bytes[skipped..];
            let taken = (HEAD - self.filled).min(bytes.len());
            self.head[self.filled..][..taken].copy_from_slice(&bytes[..taken]);
            self.filled += taken;
            bytes = &bytes[taken..];
            if self.filled < HEAD {
                break;
            }
            self.filled = 0;
            let [first, second, third, kind, flags, ..] = self.head;
            self.rest = usize::from(first) << 16 | usize::from(second) << 8 | usize::from(third);
            match kind {
                HEADERS => earned += BY_REQUEST,
                DATA if self.rest > 0 || flags & END_STREAM > 0 => {}
                _ => spent += 1,
            }
        }
        if earned > 0 {
            ledger.earned.fetch_add(earned, Relaxed);
        }
        if spent > 0 {
            ledger.spent.fetch_add(spent, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: usize) -> Vec<u8> {
        let length = u8::try_from(payload).unwrap();
        [vec![0, 0, length, kind, flags, 0, 0, 0, 1], vec![0xff; payload]].concat()
    }

    /// What was earned and spent with these bytes, in reads of this size.
    fn counted(bytes: &[u8], read: usize) -> (u64, u64) {
        let (mut frames, ledger) = (Frames::new(), Ledger::default());
        for part in bytes.chunks(read) {
            frames.follow(part, &ledger);
        }
        (ledger.earned.load(Relaxed), ledger.spent.load(Relaxed))
    }

    /// Requests earn, data costs nothing unless it is empty and ends nothing, and everything else costs; wherever a read ends.
    #[test]
    fn frames_are_told_apart_in_reads_of_any_size() {
        let settings = [PREFACE.to_vec(), frame(4, 0, 6)].concat();
        let requests = [
            frame(HEADERS, 4, 30),
            frame(DATA, 0, 200),
            frame(DATA, END_STREAM, 0),
            frame(HEADERS, 5, 0),
        ]
        .concat();
        let idle = [frame(6, 0, 8), frame(DATA, 0, 0), frame(8, 0, 4), frame(2, 0, 5), frame(0x33, 0, 0)].concat();
        let all = [settings, requests, idle].concat();
        for read in 1..=all.len() {
            assert_eq!(counted(&all, read), (2 * BY_REQUEST, 6), "in reads of {read}");
        }
    }

    /// Debt begins where the start is used up, and time, answers and requests pay for it.
    #[test]
    fn debt_is_paid_by_time_and_by_answers() {
        let (mut frames, ledger) = (Frames::new(), Ledger::default());
        let at = |seconds| move || Duration::from_secs(seconds);
        frames.follow(PREFACE, &ledger);
        let ping = frame(6, 0, 8);
        frames.follow(&ping.repeat(1000), &ledger);
        assert!(!ledger.is_in_debt(at(0)));
        frames.follow(&ping, &ledger);
        assert!(ledger.is_in_debt(at(0)) && !ledger.is_in_debt(at(1)));
        ledger.answered(16 * 1024);
        frames.follow(&ping.repeat(19), &ledger);
        assert!(!ledger.is_in_debt(at(0)), "four and sixteen were earned");
        frames.follow(&ping, &ledger);
        assert!(ledger.is_in_debt(at(0)));
    }
}
