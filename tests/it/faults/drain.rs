//! How a gateway ends: everybody is told, what is in flight is answered and written down, and nobody waits for ever (CASE 42).

use std::time::Duration;

use futures_util::future::join_all;
use http::Method;
use serde_json::json;
use tokio::net::TcpStream;
use waitgate::clock::Clock;

use crate::backend::{PATIENCE, soon};
use crate::between::{Between, Mode};
use crate::crew::{Crew, Event, Process, Visitor, metric, operate, tune};
use crate::harness::within;

const SALE: &str = "rate = \"5/s\"\nstock = 5\nclaim.path = \"/sale/claim\"\n";

/// Somebody who has been let in by this process.
async fn buyer(process: &Process) -> Visitor {
    let buyer = Visitor::new(process.public);
    within("the buyer is let in", async || buyer.gets_in().await).await;
    buyer
}

async fn refuses(process: &Process) {
    within("nobody else is accepted", async || {
        TcpStream::connect(process.public).await.is_err()
    })
    .await;
}

/// CASE 42: a stop never ended while a stream was open, and upgraded sockets were not waited for at all. A hundred of each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_are_told_claims_are_answered_and_it_ends() {
    let crew = Crew::of(SALE).await;
    let mut process = crew.process(None).await;
    let (patient, impatient) = (buyer(&process).await, buyer(&process).await);
    tune(process.operators, json!({"rate": "0/s"})).await;
    let line: Vec<_> = (0..200).map(|_| Visitor::new(process.public)).collect();
    join_all(line.iter().map(Visitor::joins)).await;
    let mut streams = join_all(line[..100].iter().map(Visitor::stream)).await;
    let mut sockets = join_all(line[100..].iter().map(Visitor::socket)).await;
    join_all(streams.iter_mut().map(|stream| stream.view())).await;
    for first in join_all(sockets.iter_mut().map(|socket| socket.next())).await {
        first.expect("a view");
    }
    crew.shop.hold_claims();
    let claim = tokio::spawn(async move { patient.claim("mine").await });
    let closed_tab = tokio::spawn(async move { impatient.claim("forgotten").await });
    within("both claims are at the shop", async || crew.shop.claims() == 2).await;
    closed_tab.abort();

    let began = Clock::instant();
    process.signal("TERM").await;
    let goodbyes = streams.iter_mut().map(async |stream| {
        let bye = loop {
            match soon(stream.next()).await {
                Event::View(_) | Event::Comment => {}
                other => break other,
            }
        };
        assert_eq!((bye, soon(stream.next()).await), (Event::Bye, Event::End));
    });
    let closed = sockets.iter_mut().map(async |socket| {
        let code = loop {
            match socket.next().await {
                Ok(_) => {}
                Err(code) => break code,
            }
        };
        assert_eq!(code, Some(1001), "going away");
    });
    tokio::join!(join_all(goodbyes), join_all(closed), refuses(&process));
    assert!(process.child.try_wait().unwrap().is_none(), "it waits for the claims");
    let ready = operate(process.operators, Method::GET, "/readyz", "").await;
    assert_eq!(ready.status, 503, "operators are still answered, and told");

    crew.shop.answer_claims();
    let answer = soon(claim).await.unwrap();
    assert_eq!(answer.status, 201, "{}", answer.text());
    assert_eq!(process.code().await, Some(0), "{:#?}", process.said);
    assert!(began.elapsed() < PATIENCE, "{:?}: within the drain limit", began.elapsed());
    assert_eq!(crew.stock().await, [3, 2, 0, 5]);
    let kept: usize = crew.redis.ask(&["HLEN", "{wg:42}:answers"]).await;
    assert_eq!(kept, 2, "what the shop said is written down, though one buyer was gone");
    assert_eq!(crew.count("line").await, 200, "nobody lost the place");
}

#[tokio::test]
async fn what_does_not_end_is_cut_at_the_limit() {
    let mut crew = Crew::of(SALE).await;
    crew.drain_timeout = "500ms";
    let mut process = crew.process(None).await;
    let patient = buyer(&process).await;
    crew.shop.hold_claims();
    let claim = tokio::spawn(async move { patient.try_claim("mine").await });
    within("the claim is at the shop", async || crew.shop.claims() == 1).await;
    process.signal("TERM").await;
    assert_eq!(process.code().await, Some(0), "{:#?}", process.said);
    assert!(soon(claim).await.unwrap().is_err());
    assert_eq!(
        crew.stock().await,
        [4, 1, 0, 5],
        "nobody knows what became of it: the unit stays held"
    );
}

#[tokio::test]
async fn a_second_signal_cuts_at_once() {
    let mut crew = Crew::of(SALE).await;
    crew.drain_timeout = "60s";
    let mut process = crew.process(None).await;
    let patient = buyer(&process).await;
    crew.shop.hold_claims();
    let claim = tokio::spawn(async move { patient.try_claim("mine").await });
    within("the claim is at the shop", async || crew.shop.claims() == 1).await;
    process.signal("TERM").await;
    refuses(&process).await;
    process.signal("INT").await;
    assert_eq!(process.code().await, Some(0), "{:#?}", process.said);
    assert!(soon(claim).await.unwrap().is_err());
}

/// A stream that was being opened when goodbye was said missed it, and was cut at the drain limit.
#[tokio::test]
async fn a_stream_that_opens_while_the_gateway_stops_is_told_too() {
    let mut crew = Crew::of("rate = 0\n").await;
    crew.drain_timeout = "60s";
    let between = Between::start(&crew.redis);
    let gateway = crew.gateway_through(&between.url()).await;
    let line: Vec<_> = (0..20).map(|_| Visitor::new(gateway.public)).collect();
    join_all(line.iter().map(Visitor::joins)).await;
    let decided = "waitgate_decisions_total{room=\"42\",decision=\"waiting\"}";
    let before = metric(gateway.operators, decided).await;
    between.set(Mode::Freeze);
    let opening = line.iter().cloned().map(|visitor| {
        tokio::spawn(async move {
            let mut stream = visitor.stream().await;
            loop {
                match soon(stream.next()).await {
                    Event::View(_) | Event::Comment => {}
                    other => return other,
                }
            }
        })
    });
    let opening: Vec<_> = opening.collect();
    let operators = gateway.operators;
    within("all are being opened", async || metric(operators, decided).await >= before + 20.0).await;
    let began = Clock::instant();
    let stopped = gateway.stopped();
    let (_, told) = tokio::join!(stopped, join_all(opening));
    for event in told {
        assert_eq!(event.unwrap(), Event::Bye);
    }
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
}
