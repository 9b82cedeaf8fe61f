//! Hundreds of raw requests, each on a connection of its own: what reaches the backend can be read in one way only, and is exactly what the client
//! sent and the gateway says it forwarded.

use std::path::Path;
use std::time::Duration;

use futures_util::StreamExt as _;
use serde::Deserialize;
use tokio::io::AsyncReadExt as _;

use super::strict;
use crate::backend::{Front, Treatment, Wire, limits, settings, soon, until};

#[derive(Deserialize)]
struct Sample {
    name: String,
    raw: String,
}

/// Where the collection lies when the repository is beside it.
const COLLECTION: &str = "../shared/data/raw-requests.json";

/// Used where the collection is missing: a few of each kind, good and odd.
const OWN: [&str; 24] = [
    "GET /a HTTP/1.1\r\nHost: a\r\n\r\nGET /b HTTP/1.1\r\nHost: a\r\n\r\n",
    "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabcGET /b HTTP/1.1\r\nHost: a\r\n\r\n",
    "POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\nT: 1\r\n\r\nGET /b HTTP/1.1\r\nHost: a\r\n\r\n",
    "\r\nGET http://a/x?y HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nKeep-Alive: 1\r\nConnection: X\r\nX: 1\r\n\r\n",
    "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /b HTTP/1.1\r\nHost: a\r\n\r\n",
    "POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\nGET /b HTTP/1.1\r\nHost: a\r\n\r\n",
    "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabcGET /b HTTP/1.1\r\nHost: a\r\n\r\n",
    "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 3, 3\r\n\r\nabc",
    "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: +3\r\n\r\nabc",
    "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 18446744073709551616\r\n\r\nabc",
    "GET /a HTTP/1.1\nHost: a\n\nGET /b HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /a HTTP/1.1\r\nHost: a\nX: b\r\n\r\n",
    "GET /a HTTP/1.1\r\nHost: a\r\nX: b\r\r\n\r\n",
    "GET /a HTTP/1.1\r\nHost: a\r\nX: b\r\n c\r\n\r\n",
    "GET /a HTTP/1.1\r\nHost : a\r\n\r\n",
    "GET  /a HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /a HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\nGET /b HTTP/1.1\r\nHost: a\r\n\r\n",
    "POST /a HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n",
    "POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n-3\r\nabc\r\n0\r\n\r\n",
    "POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n",
    "POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nabc\r\n0\r\n\r\n",
];

fn samples() -> Vec<Sample> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(COLLECTION);
    match std::fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes).expect("the collection can be read"),
        Err(_) => {
            eprintln!("{COLLECTION} is not here: {} requests of our own are sent instead", OWN.len());
            let own = OWN.iter().enumerate();
            own.map(|(number, raw)| Sample {
                name: format!("own#{number}"),
                raw: (*raw).to_owned(),
            })
            .collect()
        }
    }
}

/// The answers of the gateway: the status, and the backend's number where it is the backend's answer.
fn answers(bytes: &[u8]) -> Vec<(u16, Option<usize>)> {
    let text = strict::latin(bytes);
    let mut found = Vec::new();
    let mut rest = text.as_str();
    while let Some((head, tail)) = rest.split_once("\r\n\r\n") {
        let Some(status) = head.strip_prefix("HTTP/1.").and_then(|line| line.get(2..5)?.parse().ok()) else {
            break; // not HTTP/1: it asked for HTTP/2
        };
        let field = |name: &str| {
            let lines = head.lines().filter_map(|line| line.split_once(": "));
            lines
                .filter(|(found, _)| found.eq_ignore_ascii_case(name))
                .map(|(_, value)| value)
                .next()
        };
        if status != 100 {
            found.push((status, field("backend-number").and_then(|number| number.parse().ok())));
        }
        let length: usize = field("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        rest = tail.get(length..).unwrap_or_default();
    }
    found
}

/// What is wrong with the way this request was treated.
async fn judge(raw: &[u8]) -> Result<(), String> {
    let (backend, seen) = strict::backend().await;
    let mut short = limits();
    let brief = Duration::from_millis(600);
    (short.header_timeout, short.idle_timeout, short.body_timeout) = (brief, brief, brief);
    let front = Front::with(backend.origin(), short, settings(), Treatment::default()).await;
    let mut client = Wire::to(front.address).await;
    client.send(raw).await;
    let mut said = Vec::new();
    let _ = soon(client.stream.read_to_end(&mut said)).await; // to the end: what is ambiguous, partial or idle is closed, or this fails
    let answers = answers(&said);

    let mut reached = Vec::new();
    for request in seen.lock().unwrap().iter() {
        reached.push(request.clone().map_err(|why| format!("the backend was sent {why}"))?.gist());
    }
    let claimed: Vec<usize> = answers.iter().filter_map(|(_, number)| *number).collect();
    if claimed != (1..=reached.len()).collect::<Vec<_>>() {
        return Err(format!(
            "{} reached the backend, forwarded were {claimed:?}: {reached:?}",
            reached.len()
        ));
    }
    let (meant, rest) = strict::all(raw);
    let over = !reached.is_empty() && meant.get(reached.len() - 1).is_some_and(|last| last.closes);
    let meant: Vec<_> = meant.iter().map(strict::Request::gist).collect();
    if !meant.starts_with(&reached) {
        return Err(format!("the client meant {meant:?}, and {reached:?} arrived"));
    }
    let refused = answers.iter().position(|(status, _)| (400..=599).contains(status));
    if refused.is_some_and(|at| at + 1 < answers.len()) {
        return Err(format!("it went on after a refusal: {answers:?}"));
    }
    let endless = !raw.windows(4).any(|end| end == b"\r\n\r\n"); // a head that never ended was waited for, and then closed
    match rest {
        Err(why) if refused.is_none() && !over && !endless => Err(format!("{why} was not refused: {answers:?}")),
        Ok(_) if refused.is_none() && !over && reached.len() < meant.len() => Err(format!("{answers:?} to {meant:?}")),
        _ => Ok(()),
    }
}

/// CASE 58 and 61, and all of request smuggling: 0 odd requests reach a backend, and what is odd is refused and the connection closed.
#[tokio::test]
async fn nothing_that_can_be_read_in_two_ways_reaches_a_backend() {
    let samples = samples();
    let own = OWN.iter().map(|raw| ((*raw).to_owned(), raw.bytes().collect::<Vec<u8>>()));
    let theirs = samples
        .iter()
        .map(|sample| (sample.name.clone(), sample.raw.chars().map(|byte| byte as u8).collect()));
    let judged = futures_util::stream::iter(own.chain(theirs).map(|(name, raw)| async move { (judge(&raw).await, name, raw) }));
    let wrong: Vec<String> = judged
        .buffer_unordered(96)
        .filter_map(|(outcome, name, raw)| async move { outcome.err().map(|why| format!("{name}: {why}\n    {:?}", strict::latin(&raw))) })
        .collect()
        .await;
    assert!(wrong.is_empty(), "{} are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// The same bytes one by one: where a read ends makes no difference to what is seen.
#[tokio::test]
async fn where_a_read_ends_makes_no_difference() {
    for raw in OWN {
        let (backend, seen) = strict::backend().await;
        let front = Front::with(backend.origin(), limits(), settings(), Treatment::default()).await;
        let whole = {
            let mut client = Wire::to(front.address).await;
            client.send(raw).await;
            client.answer().await.map_or(400, |answer| answer.status())
        };
        let before = seen.lock().unwrap().len();
        let mut client = Wire::to(front.address).await;
        for byte in raw.bytes() {
            client.send([byte]).await;
            tokio::task::yield_now().await;
        }
        // A connection that is closed while the client still sends may lose its answer.
        assert_eq!(client.answer().await.map_or(400, |answer| answer.status()), whole, "{raw:?}");
        let (meant, _) = strict::all(raw.as_bytes());
        until("as many arrive", || {
            let seen = seen.lock().unwrap();
            seen.iter().all(Result::is_ok) && seen.len() <= before + meant.len()
        })
        .await;
    }
}
