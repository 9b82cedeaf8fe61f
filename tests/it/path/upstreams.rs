//! Several backends of one shop: who gets a request, who is left alone, who is asked how it is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use http::Uri;
use waitgate::config::{self, Health};

use crate::backend::{Backend, Front, Treatment, limits, settings, until};
use crate::harness::nowhere;

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const POST: &str = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nok";

async fn among(backends: &[&Backend], settings: config::Upstream) -> Front {
    let origins: Vec<Uri> = backends.iter().map(|backend| backend.origin()).collect();
    Front::among(&origins, limits(), settings, Treatment::default()).await
}

/// A backend that is busy with a slow request gets no second one while another has nothing to do; among equals each has its turn.
#[tokio::test]
async fn the_one_with_the_fewest_in_flight_is_chosen() {
    let held = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&held);
    let slow = Backend::start(move |mut wire| {
        let held = Arc::clone(&seen);
        async move {
            while wire.request().await.is_some() {
                held.fetch_add(1, SeqCst);
                std::future::pending::<()>().await; // it never answers
            }
        }
    })
    .await;
    let quick = Backend::plain().await;
    let front = among(&[&slow, &quick], settings()).await;
    let mut first = front.client().await;
    first.send(GET).await;
    let mut second = front.client().await;
    second.send(GET).await;
    until("one of the two hangs at the slow one", || held.load(SeqCst) == 1).await;
    for _ in 0..20 {
        assert_eq!(front.ask(GET).await.status(), 200);
    }
    assert_eq!(held.load(SeqCst), 1, "nobody else was sent to where somebody waits");
}

/// Equals share: none of two idle backends is left without work.
#[tokio::test]
async fn equals_have_their_turns() {
    let (one, other) = (Backend::plain().await, Backend::plain().await);
    let front = among(&[&one, &other], settings()).await;
    for _ in 0..20 {
        assert_eq!(front.ask(GET).await.status(), 200);
    }
    assert_eq!((one.seen().len(), other.seen().len()), (10, 10));
}

/// Nothing was sent where nobody listens, so any method goes on to another backend.
#[tokio::test]
async fn who_cannot_be_reached_costs_nobody_an_answer() {
    let there = Backend::plain().await;
    let (_taken, nowhere) = nowhere();
    let nowhere: Uri = format!("http://{nowhere}").parse().unwrap();
    let front = Front::among(&[nowhere, there.origin()], limits(), settings(), Treatment::default()).await;
    for number in 0..20 {
        let asked = if number % 2 == 0 { GET } else { POST };
        assert_eq!(front.ask(asked).await.status(), 200);
    }
    assert_eq!(there.seen().len(), 20);
}

/// When no backend is there the answer is 502, and not because nobody was tried: one that comes back is found.
#[tokio::test]
async fn all_bad_is_still_tried() {
    let up = Arc::new(AtomicBool::new(false));
    let is_up = Arc::clone(&up);
    let flapping = Backend::start(move |mut wire| {
        let up = Arc::clone(&is_up);
        async move {
            while wire.request().await.is_some() {
                if !up.load(SeqCst) {
                    return wire.reset();
                }
                wire.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
            }
        }
    })
    .await;
    let (_taken, nowhere) = nowhere();
    let nowhere: Uri = format!("http://{nowhere}").parse().unwrap();
    let front = Front::among(&[nowhere, flapping.origin()], limits(), settings(), Treatment::default()).await;
    for _ in 0..12 {
        assert_eq!(front.ask(GET).await.status(), 502);
    }
    up.store(true, SeqCst);
    let mut statuses = Vec::new();
    for _ in 0..6 {
        statuses.push(front.ask(GET).await.status());
    }
    assert!(statuses.contains(&200), "{statuses:?}");
    assert!(front.ask(GET).await.status() == 200, "and stays");
}

/// Whoever sends a small body slowly holds no place at the backend meanwhile, and loses nothing: the body goes on whole.
#[tokio::test]
async fn a_slow_upload_holds_no_place() {
    let backend = Backend::plain().await;
    let mut settings = settings();
    (settings.max_in_flight, settings.queue_timeout) = (1, Duration::from_millis(50));
    let front = among(&[&backend], settings).await;
    let mut slow = front.client().await;
    slow.send("POST /slow HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\n\r\nsl").await;
    for _ in 0..5 {
        assert_eq!(front.ask(GET).await.status(), 200);
    }
    assert!(
        !backend.seen().iter().any(|seen| seen.line().contains("/slow")),
        "nothing of it was sent"
    );
    slow.send("owly").await;
    assert_eq!(slow.answer().await.unwrap().status(), 200);
    assert_eq!(backend.seen().last().unwrap().body, b"slowly");
}

/// A backend that fails is left alone for its rest and not a moment longer than that; meanwhile the other does it all.
#[tokio::test]
async fn a_failing_backend_rests_and_comes_back() {
    let bad = Backend::start(|mut wire| async move {
        wire.request().await;
        wire.send("nonsense\r\n\r\n").await;
    })
    .await;
    let good = Backend::plain().await;
    let mut settings = settings();
    (settings.max_failures, settings.rest) = (2, Duration::from_millis(400));
    let front = among(&[&bad, &good], settings).await;
    let mut failed = 0;
    for _ in 0..30 {
        failed += usize::from(front.ask(GET).await.status() != 200);
    }
    assert_eq!((failed, bad.seen().len()), (2, 2), "two failures, and it was left alone");
    let again = async {
        while bad.seen().len() < 3 {
            front.ask(GET).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), again)
        .await
        .expect("it is tried again after its rest");
}

/// Asked regularly, a backend that says it is not well gets nothing, and work again once it has said so twice.
#[tokio::test]
async fn who_is_not_well_by_its_own_word_gets_nothing() {
    let well = Arc::new(AtomicBool::new(true));
    let asked = Arc::new(AtomicUsize::new(0));
    let (is_well, count) = (Arc::clone(&well), Arc::clone(&asked));
    let moody = Backend::start(move |mut wire| {
        let (well, asked) = (Arc::clone(&is_well), Arc::clone(&count));
        async move {
            while let Some(request) = wire.request().await {
                let health = request.line().starts_with("GET /well ");
                asked.fetch_add(usize::from(health), SeqCst);
                let status = if health && !well.load(SeqCst) { "503 No" } else { "200 OK" };
                wire.send(format!("HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\nok")).await;
            }
        }
    })
    .await;
    let steady = Backend::plain().await;
    let mut settings = settings();
    settings.health = Some(Health {
        path: "/well".parse().unwrap(),
        interval: Duration::from_millis(30),
        timeout: Duration::from_secs(2),
        rise: 2,
        fall: 2,
    });
    let front = among(&[&moody, &steady], settings).await;
    let works = || moody.seen().iter().filter(|request| request.line().starts_with("GET / ")).count();
    let answers = |more: usize| {
        let asked = Arc::clone(&asked);
        async move {
            let before = asked.load(SeqCst);
            until("it was asked again", || asked.load(SeqCst) >= before + more).await;
        }
    };
    for _ in 0..4 {
        assert_eq!(front.ask(GET).await.status(), 200);
    }
    assert_eq!(works(), 2, "while it is well, it has its share");
    well.store(false, SeqCst);
    answers(4).await;
    for _ in 0..10 {
        assert_eq!(front.ask(GET).await.status(), 200);
    }
    assert_eq!(works(), 2, "nothing while it is not");
    well.store(true, SeqCst);
    answers(4).await;
    for _ in 0..4 {
        assert_eq!(front.ask(GET).await.status(), 200);
    }
    assert_eq!(works(), 4, "its share again");
}
