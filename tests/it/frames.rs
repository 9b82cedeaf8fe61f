//! HTTP/2 by hand: frames written and read as bytes, so that a test can say what no client library would.
//!
//! Fields are written as literals that no table remembers, and the other end is told to remember nothing either: so the status of an answer can be
//! read without keeping a table.

use std::net::SocketAddr;

use crate::backend::Wire;

pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RESET: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

/// Nothing follows on this stream.
pub(crate) const END: u8 = 1;
/// The fields are complete.
pub(crate) const WHOLE: u8 = 4;

/// Codes of a reset and of a goodbye.
pub(crate) const NO_ERROR: u32 = 0;
pub(crate) const PROTOCOL_ERROR: u32 = 1;
pub(crate) const FLOW_CONTROL_ERROR: u32 = 3;
pub(crate) const REFUSED_STREAM: u32 = 7;
pub(crate) const CANCEL: u32 = 8;

/// One frame.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: impl AsRef<[u8]>) -> Vec<u8> {
    let payload = payload.as_ref();
    let length = u32::try_from(payload.len()).expect("a small payload").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Fields as literals without indexing.
pub(crate) fn block<N: AsRef<[u8]>, V: AsRef<[u8]>>(fields: &[(N, V)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        string(&mut block, name.as_ref());
        string(&mut block, value.as_ref());
    }
    block
}

fn string(block: &mut Vec<u8>, text: &[u8]) {
    match text.len() {
        short @ ..127 => block.push(u8::try_from(short).expect("short")),
        long => {
            block.push(127);
            let mut rest = long - 127;
            while rest >= 128 {
                block.push(u8::try_from(rest % 128).expect("seven bits") | 128);
                rest /= 128;
            }
            block.push(u8::try_from(rest).expect("seven bits"));
        }
    }
    block.extend(text);
}

/// The fields of a request, and more besides.
pub(crate) fn asking<'a>(method: &'a str, path: &'a str, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let mut fields = vec![
        (":method", method),
        (":scheme", "http"),
        (":path", path),
        (":authority", "shop.example"),
    ];
    fields.extend(more);
    fields
}

/// A request without a body, in one frame.
pub(crate) fn request<N: AsRef<[u8]>, V: AsRef<[u8]>>(stream: u32, fields: &[(N, V)]) -> Vec<u8> {
    frame(HEADERS, END | WHOLE, stream, block(fields))
}

/// The head of a request whose body follows.
pub(crate) fn head<N: AsRef<[u8]>, V: AsRef<[u8]>>(stream: u32, fields: &[(N, V)]) -> Vec<u8> {
    frame(HEADERS, WHOLE, stream, block(fields))
}

/// A `GET`.
pub(crate) fn get(stream: u32, path: &str) -> Vec<u8> {
    request(stream, &asking("GET", path, &[]))
}

/// One frame that came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

impl Frame {
    /// The code of a reset, or of a goodbye.
    pub(crate) fn code(&self) -> u32 {
        let at = if self.kind == GOAWAY { 4 } else { 0 };
        let bytes = self.payload.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        u32::from_be_bytes(bytes.expect("four bytes"))
    }

    /// The status, which is the first field of an answer.
    fn status(&self) -> u16 {
        let update = self.payload.iter().take_while(|byte| **byte & 0xe0 == 0x20).count();
        let block = &self.payload[update..];
        match block[0] {
            indexed @ 0x88..=0x8e => [200, 204, 206, 304, 400, 404, 500][usize::from(indexed - 0x88)],
            0x08 | 0x18 | 0x48 => {
                let length = usize::from(block[1] & 0x7f);
                let value = &block[2..2 + length];
                let digits = if block[1] & 0x80 == 0 { value.to_vec() } else { unpacked(value) };
                String::from_utf8(digits).expect("digits").parse().expect("a number")
            }
            other => panic!("not a status: {other:#x} {block:?}"),
        }
    }
}

/// Three digits in the Huffman code of HPACK: 0 to 2 have five bits, the others six.
fn unpacked(packed: &[u8]) -> Vec<u8> {
    let bits: Vec<u8> = packed.iter().flat_map(|byte| (0..8).rev().map(move |at| byte >> at & 1)).collect();
    let number = |bits: &[u8]| bits.iter().fold(0, |number, bit| number << 1 | bit);
    let mut digits = Vec::new();
    let mut rest = bits.as_slice();
    while digits.len() < 3 {
        let short = number(&rest[..5]);
        let (digit, length) = if short < 3 {
            (short, 5)
        } else {
            (number(&rest[..6]) - 0x19 + 3, 6)
        };
        digits.push(b'0' + digit);
        rest = &rest[length..];
    }
    digits
}

/// What became of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Answer(Answer),
    Reset(u32),
    /// The whole connection was ended, with this code.
    GoneAway(u32),
    /// It was ended without a word.
    Closed,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
    /// Fields came after the body.
    pub(crate) trailers: bool,
}

impl Outcome {
    /// The status of an answer.
    pub(crate) fn status(&self) -> Option<u16> {
        match self {
            Self::Answer(answer) => Some(answer.status),
            Self::Reset(_) | Self::GoneAway(_) | Self::Closed => None,
        }
    }

    /// Whether the request was turned down: by a status that says so, or by ending the stream or the connection for an error.
    pub(crate) fn is_refusal(&self) -> bool {
        match self {
            Self::Answer(answer) => (400..500).contains(&answer.status),
            Self::Reset(code) | Self::GoneAway(code) => *code != NO_ERROR,
            Self::Closed => false,
        }
    }
}

/// One end of an HTTP/2 connection.
pub(crate) struct Frames {
    pub(crate) wire: Wire,
}

impl Frames {
    /// Connects, and begins as one must.
    pub(crate) async fn to(address: SocketAddr) -> Self {
        let mut frames = Self {
            wire: Wire::to(address).await,
        };
        frames.send(opening()).await;
        frames
    }

    /// Sends bytes; the peer may be gone.
    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.wire.send(bytes).await;
    }

    /// The next frame; none: the connection has ended.
    pub(crate) async fn next(&mut self) -> Option<Frame> {
        let head = self.wire.take(9).await;
        let head: [u8; 9] = head.try_into().ok()?;
        let number = |bytes: &[u8]| bytes.iter().fold(0_u32, |number, byte| number << 8 | u32::from(*byte));
        let length = number(&head[..3]) as usize;
        let payload = self.wire.take(length).await;
        (payload.len() == length).then(|| Frame {
            kind: head[3],
            flags: head[4],
            stream: number(&head[5..]),
            payload,
        })
    }

    /// Reads until it is known what became of a stream. A goodbye without an error is no end of what was begun before it.
    pub(crate) async fn outcome(&mut self, stream: u32) -> Outcome {
        let mut answer: Option<Answer> = None;
        while let Some(frame) = self.next().await {
            match (frame.kind, answer.as_mut()) {
                (GOAWAY, _) if frame.code() != NO_ERROR => return Outcome::GoneAway(frame.code()),
                _ if frame.stream != stream => continue,
                (RESET, _) => return Outcome::Reset(frame.code()),
                (HEADERS, None) => {
                    answer = Some(Answer {
                        status: frame.status(),
                        body: Vec::new(),
                        trailers: false,
                    });
                }
                (HEADERS, Some(answer)) => answer.trailers = true,
                (DATA, Some(answer)) => answer.body.extend(&frame.payload),
                _ => continue,
            }
            if frame.flags & END > 0
                && let Some(answer) = answer.take()
            {
                return Outcome::Answer(answer);
            }
        }
        Outcome::Closed
    }

    /// Sends this and reads what becomes of the stream.
    pub(crate) async fn ask(&mut self, stream: u32, bytes: impl AsRef<[u8]>) -> Outcome {
        self.send(bytes).await;
        self.outcome(stream).await
    }
}

/// How a connection begins: nothing is to be remembered of fields.
pub(crate) fn opening() -> Vec<u8> {
    [PREFACE, &frame(SETTINGS, 0, 0, [0, 1, 0, 0, 0, 0])].concat()
}
