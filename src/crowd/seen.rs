//! What a visitor is told, as the crowd reads it: from an event, a message, `status` or a page.

use std::time::Duration;

use serde::Deserialize;

/// Where the visitor stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Stand {
    Countdown,
    Waiting,
    Nearly,
    Turn,
    Paused,
    SoldOut,
    AllHeld,
    Closed,
    Admitted,
    Gone,
}

/// One view.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Seen {
    pub(super) state: Stand,
    pub(super) ahead: Option<u64>,
    pub(super) wait_low_s: Option<u32>,
    pub(super) wait_high_s: Option<u32>,
    #[serde(default)]
    pub(super) poll_after_s: u64,
}

/// Splits an event stream into the data of its events. Events other than the default one are told apart by name.
#[derive(Debug, Default)]
pub(super) struct Events {
    rest: Vec<u8>,
    /// After a cut, come back after so long.
    pub(super) retry: Option<Duration>,
}

impl Events {
    /// Takes what came, and gives the whole events in it: their name (empty for the default) and data.
    pub(super) fn feed(&mut self, chunk: &[u8]) -> Vec<(String, String)> {
        self.rest.extend_from_slice(chunk);
        let mut events = Vec::new();
        while let Some(end) = self.rest.windows(2).position(|pair| pair == b"\n\n") {
            let block: Vec<u8> = self.rest.drain(..end + 2).collect();
            let (mut name, mut data) = (String::new(), String::new());
            for line in String::from_utf8_lossy(&block).lines() {
                if let Some(value) = line.strip_prefix("event:") {
                    value.trim().clone_into(&mut name);
                } else if let Some(value) = line.strip_prefix("retry:") {
                    self.retry = value.trim().parse().ok().map(Duration::from_millis);
                } else if let Some(value) = line.strip_prefix("data:") {
                    data.push_str(value.trim_start());
                }
            }
            if !data.is_empty() {
                events.push((name, data));
            }
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_is_read() {
        let seen: Seen = serde_json::from_str(
            r#"{"state":"all_held","ahead":3,"wait_low_s":1,"wait_high_s":4,"updated_at_ms":1,"poll_after_s":5,"message":"x"}"#,
        )
        .unwrap();
        assert_eq!((seen.state, seen.ahead, seen.poll_after_s), (Stand::AllHeld, Some(3), 5));
        let seen: Seen = serde_json::from_str(r#"{"state":"sold_out","updated_at_ms":1,"poll_after_s":5}"#).unwrap();
        assert_eq!((seen.state, seen.ahead), (Stand::SoldOut, None));
    }

    #[test]
    fn events_are_whole_whatever_the_pieces() {
        let stream = b"retry: 1000\n\n: keep-alive\n\ndata: {\"a\":1}\n\nevent: bye\ndata: {}\n\ndata: half";
        for size in 1..stream.len() {
            let mut events = Events::default();
            let seen: Vec<_> = stream.chunks(size).flat_map(|chunk| events.feed(chunk)).collect();
            let expected = [(String::new(), "{\"a\":1}".to_owned()), ("bye".to_owned(), "{}".to_owned())];
            assert_eq!(seen, expected, "in pieces of {size}");
            assert_eq!(events.retry, Some(Duration::from_secs(1)));
        }
    }
}
