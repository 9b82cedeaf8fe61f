//! The waiting WebSocket, byte for byte: what a client may send and what becomes of it. Raw frames over a raw connection.

use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::backend::{Wire, soon};
use crate::gateway::{LINE, Site, Socket, TICKET, Visitor};
use crate::harness::within;

const FIN: u8 = 0x80;
const CONTINUED: u8 = 0;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;
const MASK: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];
/// Bytes of one message at most, and of everything between two pings.
const MAX_MESSAGE: usize = 4096;
const MAX_HEARD: usize = 16 << 10;

/// A frame as a client sends it: its first byte, and what it carries, masked.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let masked = payload.iter().zip(MASK.iter().cycle()).map(|(byte, mask)| byte ^ mask);
    announced(first, payload.len() as u64).into_iter().chain(masked).collect()
}

/// The head of a frame that will be this long.
fn announced(first: u8, length: u64) -> Vec<u8> {
    match length {
        0..126 => [&[first, 0x80 | length as u8][..], &MASK].concat(),
        126..65536 => [&[first, 0x80 | 126][..], &(length as u16).to_be_bytes(), &MASK].concat(),
        _ => [&[first, 0x80 | 127][..], &length.to_be_bytes(), &MASK].concat(),
    }
}

/// A goodbye with a code and a reason.
fn goodbye(code: u16, reason: &[u8]) -> Vec<u8> {
    frame(FIN | CLOSE, &[&code.to_be_bytes()[..], reason].concat())
}

/// A client of the waiting socket that writes frames itself.
struct Raw(Wire);

impl Raw {
    async fn open(site: &Site, visitor: &Visitor) -> Self {
        let mut wire = site.wire().await;
        let answer = wire
            .ask(format!(
                "GET /.waitgate/42/ws HTTP/1.1\r\nHost: shop.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                 Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nCookie: {TICKET}={}\r\n\r\n",
                visitor.cookie(TICKET).expect("a ticket")
            ))
            .await;
        assert_eq!(answer.status(), 101, "{}", answer.head);
        assert_eq!(answer.one("sec-websocket-accept"), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        let mut raw = Self(wire);
        let (first, payload) = raw.next().await.expect("the first view");
        assert_eq!(first, FIN | TEXT);
        assert!(String::from_utf8(payload).unwrap().contains("waiting"));
        raw
    }

    async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.send(bytes).await;
    }

    /// The next frame: its first byte and what it carries; none at the end. The gateway never masks.
    async fn next(&mut self) -> Option<(u8, Vec<u8>)> {
        let head = self.0.take(2).await;
        let [first, length] = head.try_into().ok()?;
        let length = match length {
            126 => {
                let length = self.0.take(2).await;
                u16::from_be_bytes(length.try_into().ok()?).into()
            }
            length => length.into(),
        };
        assert!(length < 2048, "a frame of ours is short: {length}");
        let payload = self.0.take(length).await;
        (payload.len() == length).then_some((first, payload))
    }

    /// The next frame that is no view.
    async fn reply(&mut self) -> Option<(u8, Vec<u8>)> {
        loop {
            match self.next().await {
                Some((first, _)) if first == FIN | TEXT => {}
                other => return other,
            }
        }
    }

    /// What the gateway says goodbye with; pongs that come before are passed over. After it the connection ends.
    async fn goodbye(mut self) -> Vec<u8> {
        let said = loop {
            match self.reply().await.expect("a goodbye") {
                (first, _) if first == FIN | PONG => {}
                (first, payload) => {
                    assert_eq!(first, FIN | CLOSE, "{payload:?}");
                    break payload;
                }
            }
        };
        self.send(goodbye(1000, b"")).await;
        assert!(
            self.0.ends_within(Duration::from_secs(8)).await,
            "and that is the end of the connection"
        );
        said
    }

    /// The code the gateway ends with.
    async fn code(self) -> u16 {
        let said = self.goodbye().await;
        assert_eq!(said.len(), 2, "a code and no reason: {said:?}");
        u16::from_be_bytes([said[0], said[1]])
    }
}

/// A line in which somebody waits undisturbed, and somebody else tries things.
struct Hall {
    site: Site,
    culprit: Visitor,
    bystander: Socket,
    rounds: usize,
}

impl Hall {
    async fn open() -> Self {
        let site = Site::open(LINE).await;
        let (culprit, other) = (site.visitor(), site.visitor());
        culprit.stand().await;
        other.stand().await;
        let mut bystander = other.socket(&[]).await.expect("a socket");
        bystander.until_state("waiting").await;
        Self {
            site,
            culprit,
            bystander,
            rounds: 0,
        }
    }

    async fn raw(&self) -> Raw {
        Raw::open(&self.site, &self.culprit).await
    }

    /// The other one is told what happens, no place is lost, no socket is left over, and nothing went to the shop or into the line.
    async fn is_undisturbed(&mut self) {
        self.rounds += 1;
        let word = format!("round {}", self.rounds);
        self.site.tune(json!({ "message": word })).await;
        while self.bystander.next().await.expect("it stays open")["message"] != word {}
        within("one socket is left", async || {
            let open = self.site.metric("waitgate_waiting_streams{room=\"42\",kind=\"ws\"}").await;
            open.is_some_and(|line| line.ends_with(" 1"))
        })
        .await;
        assert_eq!((self.site.in_line().await, self.site.backend.seen().len()), (2, 0));
    }
}

/// Whatever breaks the protocol is answered with 1002, and the connection ends.
#[tokio::test]
async fn a_breach_is_1002() {
    let mut hall = Hall::open().await;
    let mut breaches = vec![
        ("not masked", vec![FIN | TEXT, 2, b'h', b'i']),
        ("a ping in pieces", frame(PING, b"")),
        ("a goodbye in pieces", frame(CLOSE, b"")),
        ("a ping of 126 bytes", frame(FIN | PING, &[b'p'; 126])),
        ("a pong of 126 bytes", frame(FIN | PONG, &[b'p'; 126])),
        (
            "a goodbye of 126 bytes",
            frame(FIN | CLOSE, &[&1000_u16.to_be_bytes()[..], &[b'x'; 124]].concat()),
        ),
        ("nothing to continue", frame(FIN | CONTINUED, b"more")),
        (
            "another message begins within one",
            [frame(TEXT, b"one"), frame(FIN | TEXT, b"two")].concat(),
        ),
        ("half a code", frame(FIN | CLOSE, &[3])),
    ];
    for reserved in [0x40, 0x20, 0x10] {
        breaches.push(("a reserved bit", frame(FIN | reserved | TEXT, b"hi")));
        breaches.push(("a reserved bit on a ping", frame(FIN | reserved | PING, b"")));
    }
    for reserved in [3, 4, 5, 6, 7, 11, 12, 13, 14, 15] {
        breaches.push(("a reserved kind", frame(FIN | reserved, b"")));
    }
    for code in [0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65535] {
        breaches.push(("a code that may not be sent", goodbye(code, b"")));
    }
    for (what, bytes) in breaches {
        let mut raw = hall.raw().await;
        raw.send(&bytes).await;
        let said = raw.goodbye().await;
        assert_eq!(said.first_chunk(), Some(&1002_u16.to_be_bytes()), "{what}: {bytes:?}");
    }
    hall.is_undisturbed().await;
}

/// Text that is no UTF-8 is answered with 1007, in one piece or several, and in the reason of a goodbye.
#[tokio::test]
async fn what_is_no_text_is_1007() {
    let mut hall = Hall::open().await;
    for bytes in [&b"\xff"[..], b"ok \xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"cut \xe2\x82"] {
        for sent in [
            frame(FIN | TEXT, bytes),
            [frame(TEXT, b"well begun "), frame(FIN | CONTINUED, bytes)].concat(),
            goodbye(1000, bytes),
        ] {
            let mut raw = hall.raw().await;
            raw.send(&sent).await;
            assert_eq!(raw.code().await, 1007, "{bytes:?} in {sent:?}");
        }
    }
    // A letter may be cut in two by the end of a piece.
    let mut raw = hall.raw().await;
    raw.send([frame(TEXT, b"\xe2\x82"), frame(FIN | CONTINUED, b"\xac"), frame(FIN | PING, b"?")].concat())
        .await;
    assert_eq!(raw.reply().await, Some((FIN | PONG, b"?".to_vec())));
    drop(raw);
    hall.is_undisturbed().await;
}

/// A message that is too long is answered with 1009 as soon as that is known: when a frame announces it, or when its pieces add up to it.
#[tokio::test]
async fn what_is_too_long_is_1009() {
    let mut hall = Hall::open().await;
    let piece = vec![b'x'; 1024];
    let pieces: Vec<u8> = (0..5)
        .flat_map(|number| frame(if number == 0 { TEXT } else { CONTINUED }, &piece))
        .collect();
    for (what, bytes) in [
        ("one byte too many", frame(FIN | TEXT, &vec![b'x'; MAX_MESSAGE + 1])),
        ("announced only", announced(FIN | TEXT, MAX_MESSAGE as u64 + 1)),
        ("a gigabyte, announced", announced(FIN | BINARY, 1 << 30)),
        ("as long as can be said, announced", announced(FIN | BINARY, u64::MAX >> 1)),
        ("pieces that never end", pieces),
    ] {
        let mut raw = hall.raw().await;
        raw.send(&bytes).await;
        assert_eq!(raw.code().await, 1009, "{what}");
    }
    let mut raw = hall.raw().await;
    raw.send([frame(FIN | TEXT, &vec![b'x'; MAX_MESSAGE]), frame(FIN | PING, b"!")].concat())
        .await;
    assert_eq!(
        raw.reply().await,
        Some((FIN | PONG, b"!".to_vec())),
        "what is just short enough is let pass"
    );
    drop(raw);
    hall.is_undisturbed().await;
}

/// A client that talks and talks is told 1008 after a bounded number of bytes, whatever it talks: also where no message ever ends. One that does not
/// stop then is cut off.
#[tokio::test]
async fn whoever_floods_is_1008() {
    let mut hall = Hall::open().await;
    let piece = "empty pieces of one message";
    for (what, bytes) in [
        ("pings", frame(FIN | PING, &[b'p'; 125])),
        ("empty pings", frame(FIN | PING, b"")),
        ("pongs", frame(FIN | PONG, b"")),
        ("texts", frame(FIN | TEXT, &[b't'; 1000])),
        ("binary", frame(FIN | BINARY, &[0; 1000])),
        ("empty texts", frame(FIN | TEXT, b"")),
        (piece, frame(CONTINUED, b"")),
    ] {
        for for_ever in [false, true] {
            let mut raw = hall.raw().await;
            raw.send(frame(if what == piece { TEXT } else { FIN | TEXT }, b"")).await;
            let (mut reading, mut writing) = raw.0.stream.into_split();
            let flood = bytes.repeat(1 + 2 * MAX_HEARD / bytes.len());
            let flooding = tokio::spawn(async move {
                // As fast as it will go, until nobody takes it any more.
                while writing.write_all(&flood).await.is_ok() && for_ever {}
                writing
            });
            let mut heard = raw.0.buffer;
            // The flood itself does not keep us from being heard.
            while soon(reading.read_buf(&mut heard)).await.is_ok_and(|read| read > 0) {
                assert!(heard.len() < 2 * MAX_HEARD, "what comes back is bounded: {what}");
            }
            let close = [FIN | CLOSE, 2, 3, 240];
            assert!(for_ever || heard.ends_with(&close), "{what}: {:?}", heard.last_chunk::<8>());
            drop(soon(flooding).await.unwrap());
        }
    }
    hall.is_undisturbed().await;
}

/// A ping is answered with what it carries, also between the pieces of a message.
#[tokio::test]
async fn a_ping_is_answered() {
    let mut hall = Hall::open().await;
    let mut raw = hall.raw().await;
    for payload in [&b""[..], b"hello", &[0xfe; 125]] {
        raw.send(frame(FIN | PING, payload)).await;
        assert_eq!(raw.reply().await, Some((FIN | PONG, payload.to_vec())));
    }
    raw.send(frame(TEXT, b"one ")).await;
    raw.send(frame(FIN | PING, b"between")).await;
    assert_eq!(raw.reply().await, Some((FIN | PONG, b"between".to_vec())));
    raw.send(frame(FIN | CONTINUED, b"two")).await;
    // One byte at a time is as good.
    for byte in frame(FIN | PING, b"slowly") {
        raw.send([byte]).await;
    }
    assert_eq!(raw.reply().await, Some((FIN | PONG, b"slowly".to_vec())));
    // A pong that nobody asked for says nothing.
    raw.send([frame(FIN | PONG, b"unasked"), frame(FIN | PING, b"still?")].concat())
        .await;
    assert_eq!(raw.reply().await, Some((FIN | PONG, b"still?".to_vec())));
    drop(raw);
    hall.is_undisturbed().await;
}

/// A goodbye is said back with its own code, and then the connection ends.
#[tokio::test]
async fn a_goodbye_is_said_back() {
    let mut hall = Hall::open().await;
    for code in [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000, 4999] {
        let mut raw = hall.raw().await;
        raw.send(goodbye(code, b"")).await;
        assert_eq!(raw.code().await, code);
    }
    let mut silent = hall.raw().await;
    silent.send(frame(FIN | CLOSE, b"")).await;
    assert_eq!(silent.goodbye().await, b"");
    let mut wordy = hall.raw().await;
    wordy.send(goodbye(1000, "tạm biệt".as_bytes())).await;
    assert_eq!(wordy.goodbye().await, [&1000_u16.to_be_bytes()[..], "tạm biệt".as_bytes()].concat());
    // What comes after a goodbye is not heard, and does not keep the answer from arriving.
    let mut talkative = hall.raw().await;
    talkative
        .send([goodbye(1000, b""), frame(FIN | PING, b"psst").repeat(200)].concat())
        .await;
    assert_eq!(talkative.code().await, 1000);
    hall.is_undisturbed().await;
}

/// What a visitor says is nobody's business: it goes nowhere, is answered by nothing, and the views go on.
#[tokio::test]
async fn what_a_visitor_says_costs_nothing() {
    let mut hall = Hall::open().await;
    let mut raw = hall.raw().await;
    for said in [&b"{\"state\":\"turn\"}"[..], b"enter", b"\0"] {
        raw.send([frame(FIN | TEXT, said), frame(FIN | BINARY, said)].concat()).await;
    }
    raw.send(frame(FIN | PING, b"heard all that?")).await;
    assert_eq!(
        raw.reply().await,
        Some((FIN | PONG, b"heard all that?".to_vec())),
        "no answer but this"
    );
    hall.site.tune(json!({"message": "none the wiser"})).await;
    let told = loop {
        let (_, payload) = raw.next().await.expect("open");
        let text = String::from_utf8(payload).unwrap();
        if text.contains("none the wiser") {
            break text;
        }
    };
    assert!(told.contains("\"state\":\"waiting\""), "{told}");
    drop(raw);
    hall.is_undisturbed().await;
}

/// A client that only stops sending, one that is reset, and one that stops within a frame: each ends, and is counted no more.
#[tokio::test]
async fn half_closed_and_broken_sockets_end() {
    let mut hall = Hall::open().await;
    let mut half = hall.raw().await;
    half.0.stream.shutdown().await.unwrap();
    assert!(half.0.ends_within(Duration::from_secs(2)).await, "half a connection is none");
    hall.raw().await.0.reset();
    for begun in [&[FIN | TEXT][..], &announced(FIN | TEXT, 100), &frame(TEXT, b"the first of many")] {
        let mut raw = hall.raw().await;
        raw.send(begun).await;
        raw.0.stream.shutdown().await.unwrap();
        assert!(raw.0.ends_within(Duration::from_secs(2)).await, "{begun:?}");
    }
    hall.is_undisturbed().await;
}

/// Whoever answers no ping is gone by the next one; whoever answers stays, though it says nothing else; half a frame is no answer.
#[tokio::test]
async fn whoever_answers_no_ping_is_gone() {
    let site = Site::open(&format!("{LINE}ping_every = \"400ms\"\n")).await;
    let visitor = site.visitor();
    visitor.stand().await;
    let (mut alive, mut mute) = (Raw::open(&site, &visitor).await, Raw::open(&site, &visitor).await);
    let mut dripping = Raw::open(&site, &visitor).await;
    let mut pings = 0;
    while pings < 5 {
        if alive.reply().await.expect("it stays open") == (FIN | PING, Vec::new()) {
            alive.send(frame(FIN | PONG, b"")).await;
            dripping.send([FIN | TEXT]).await;
            pings += 1;
        }
    }
    for (who, raw) in [("mute", &mut mute), ("dripping", &mut dripping)] {
        assert_eq!(raw.reply().await, Some((FIN | PING, Vec::new())), "{who}");
        assert_eq!(raw.reply().await, None, "{who}: a plain end");
    }
    alive.send(frame(FIN | PING, b"me?")).await;
    assert_eq!(alive.reply().await, Some((FIN | PONG, b"me?".to_vec())));
}
