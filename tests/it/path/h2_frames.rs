//! HTTP/2 as it may be sent, frame by frame: what is malformed ends its stream and reaches no backend, and what is odd but whole is served.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use http::{Request, Response};
use http_body_util::BodyExt;
use serde_json::json;
use tokio::sync::Notify;
use waitgate::body::Body;
use waitgate::server::Stop;

use super::strict;
use crate::backend::{Backend, Front, http2, limits, nothing, soon, until};
use crate::frames::{
    CONTINUATION, DATA, END, FLOW_CONTROL_ERROR, Frames, HEADERS, NO_ERROR, Outcome, PREFACE, PROTOCOL_ERROR, REFUSED_STREAM, RESET,
    SETTINGS, WHOLE, WINDOW, asking, block, frame, get, head, request,
};
use crate::gateway::{Ask, HOST_NAME, LINE, Site, TICKET, shop_that};

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

/// A field, or one of a request line's parts, that makes a request malformed.
type Fields = Vec<(&'static str, &'static str)>;

/// A good `GET` with these fields instead of those that have the same names, or besides.
fn instead(changed: &[(&'static str, &'static str)]) -> Fields {
    let mut fields = asking("GET", "/", &[]);
    fields.retain(|(name, _)| changed.iter().all(|(other, _)| other != name));
    fields.extend(changed.iter().filter(|(name, _)| name.starts_with(':')));
    fields.extend(changed.iter().filter(|(name, _)| !name.starts_with(':')));
    fields
}

/// A good `GET` without this part.
fn without(name: &str) -> Fields {
    let mut fields = asking("GET", "/", &[]);
    fields.retain(|(found, _)| *found != name);
    fields
}

fn malformed() -> Vec<Fields> {
    let mut all = vec![
        without(":method"),
        without(":path"),
        without(":scheme"),
        without(":authority"),
        vec![
            (":method", "GET"),
            ("x", "1"),
            (":scheme", "http"),
            (":path", "/"),
            (":authority", "a"),
        ],
        asking("GET", "/", &[(":path", "/other")]),
        asking("GET", "/", &[(":method", "POST")]),
        asking("GET", "/", &[(":scheme", "https")]),
        asking("GET", "/", &[(":authority", "b")]),
        asking("GET", "/", &[(":status", "200")]),
        asking("GET", "/", &[(":unknown", "1")]),
        asking("GET", "/", &[("x", "1"), (":authority", "a")]),
        asking("CONNECT", "/", &[(":protocol", "websocket")]),
        vec![(":method", "CONNECT"), (":authority", "a:443")],
    ];
    for path in ["", "*", "sale", "http://a/", "/a b", "/\u{1}", "/a\r\nHost: b", "\\sale"] {
        all.push(instead(&[(":path", path)]));
    }
    for method in ["", "GET /", "G\u{0}T", "TRACE", "GET\r\n"] {
        all.push(instead(&[(":method", method)]));
    }
    for authority in ["", "a b", "a,b", "a/b", "u@a", "a:b", "a\r\nX: 1"] {
        all.push(instead(&[(":authority", authority)]));
    }
    for (name, value) in [
        (":scheme", "ftp"),
        ("X-Upper", "1"),
        ("", "1"),
        ("a b", "1"),
        ("a:b", "1"),
        ("x\r\ny", "1"),
        ("x", "1\r\nY: 2"),
        ("x", "1\n2"),
        ("x", "\u{0}"),
        ("connection", "close"),
        ("connection", "x-queue-user"),
        ("keep-alive", "timeout=5"),
        ("proxy-connection", "keep-alive"),
        ("transfer-encoding", "chunked"),
        ("transfer-encoding", "identity"),
        ("upgrade", "websocket"),
        ("te", "gzip"),
        ("te", "trailers, gzip"),
        ("host", "other.example"),
        ("host", ""),
        ("content-length", "3"), // and nothing follows
        ("content-length", "x"),
        ("content-length", "-1"),
        ("content-length", "+0"),
        ("content-length", "18446744073709551616"),
    ] {
        all.push(instead(&[(name, value)]));
    }
    all.push(asking("GET", "/", &[("content-length", "0"), ("content-length", "0, 0")]));
    all.push(asking("GET", "/", &[("host", "shop.example"), ("host", "shop.example")]));
    all
}

/// CASE 55, 58, 61 on HTTP/2: pseudo-headers out of order, twice, unknown or missing, fields of one connection, odd names, values, lengths and
/// hosts end their stream or are refused; nothing of them reaches the backend, and the connection goes on unless it was ended with an error.
#[tokio::test]
async fn what_is_malformed_reaches_no_backend() {
    let (backend, seen) = strict::backend().await;
    let front = Front::of(&backend).await;
    let mut let_through = Vec::new();
    for fields in malformed() {
        let mut client = Frames::to(front.address).await;
        let outcome = client.ask(1, request(1, &fields)).await;
        if !outcome.is_refusal() {
            let_through.push((fields, outcome));
            continue;
        }
        if !matches!(outcome, Outcome::GoneAway(_)) {
            let other = client.ask(3, request(3, &asking("GET", "/", &[("host", "shop.example")]))).await;
            assert_eq!(other.status(), Some(200), "the connection goes on after {fields:?}");
            let seen: Vec<_> = seen.lock().unwrap().drain(..).collect();
            assert_eq!(seen.len(), 1, "{fields:?} {outcome:?}: {seen:?}");
        }
        assert!(seen.lock().unwrap().is_empty(), "{fields:?}");
    }
    assert!(let_through.is_empty(), "{let_through:#?}");

    // A fragment cannot be seen here any more; there is one reading of it all the same.
    let outcome = Frames::to(front.address).await.ask(1, get(1, "/a#b")).await;
    assert_eq!(outcome.status(), Some(200));
    assert_eq!(seen.lock().unwrap().remove(0).unwrap().target, "/a");
}

/// CASE 55: `te: trailers` is the one field of a connection that HTTP/2 has; and cookies may come in as many crumbs as a browser likes, more than
/// a request may have fields. The backend gets no `TE`, and one line of cookies.
#[tokio::test]
async fn crumbs_of_cookies_are_one_line_however_many_there_are() {
    let (backend, seen) = strict::backend().await;
    let front = Front::of(&backend).await;
    let crumbs: Vec<String> = (0..180).map(|number| format!("c{number}={number}")).collect();
    let mut more = vec![("te", "trailers"), ("x-last", "yes")];
    more.extend(crumbs.iter().map(|crumb| ("cookie", crumb.as_str())));
    let mut client = Frames::to(front.address).await;
    let fields = asking("GET", "/p", &more);
    assert_eq!(client.ask(1, request(1, &fields)).await.status(), Some(200));
    let seen = seen.lock().unwrap().remove(0).unwrap();
    assert_eq!(seen.all("cookie"), [crumbs.join("; ")]);
    assert_eq!((seen.all("x-last"), seen.all("te").len()), (vec!["yes"], 0));

    let other: Vec<String> = (0..101).map(|number| format!("x-{number}")).collect();
    let mut more: Vec<_> = other.iter().map(|name| (name.as_str(), "1")).collect();
    more.push(("cookie", "a=1"));
    let fields = asking("GET", "/p", &more);
    assert_eq!(
        client.ask(3, request(3, &fields)).await.status(),
        Some(431),
        "other fields still count"
    );
}

/// CASE 58 on HTTP/2: where the body's length is not what was said, the stream ends, and the backend never sees a whole request, nor takes the next
/// one for a part of it.
#[tokio::test]
async fn a_length_that_is_not_true_never_becomes_a_request() {
    let (backend, seen) = strict::backend().await;
    let front = Front::of(&backend).await;
    let post = |length| head(1, &asking("POST", "/claim", &[("content-length", length)]));
    let data = |flags, bytes: &str| frame(DATA, flags, 1, bytes);
    let trailers = frame(HEADERS, END | WHOLE, 1, block(&[("sum", "1")]));
    let lies = [
        ("shorter", [post("10"), data(END, "abc")].concat()),
        ("none", [post("10"), data(END, "")].concat()),
        ("shorter, in parts", [post("10"), data(0, "abc"), data(END, "def")].concat()),
        ("shorter, with trailers", [post("10"), data(0, "abc"), trailers].concat()),
        ("longer", [post("2"), data(END, "abcdef")].concat()),
        (
            "longer, in parts",
            [post("4"), data(0, "abcd"), data(END, "GET /x HTTP/1.1\r\nHost: a\r\n\r\n")].concat(),
        ),
        (
            "some where there is none",
            [post("0"), data(END, "GET /x HTTP/1.1\r\nHost: a\r\n\r\n")].concat(),
        ),
        (
            "after the end",
            [request(1, &asking("POST", "/claim", &[])), data(END, "abc")].concat(),
        ),
    ];
    for (what, bytes) in lies {
        let mut client = Frames::to(front.address).await;
        let outcome = client.ask(1, bytes).await;
        // Up to what was said, these were whole requests.
        let may_be_answered = ["some where there is none", "after the end"].contains(&what);
        let whole: &[u8] = match what {
            "longer, in parts" => b"abcd",
            _ if may_be_answered => b"",
            _ => b"never",
        };
        assert!(may_be_answered || outcome.is_refusal(), "{what}: {outcome:?}");
        for _ in 0..3 {
            assert_eq!(front.get("/next").await.status(), 200, "{what}");
        }
        for request in seen.lock().unwrap().drain(..) {
            let request = request.unwrap_or_else(|odd| panic!("{what}: {odd}"));
            let wanted = if request.target == "/next" { b"" } else { whole };
            assert_eq!(request.body, wanted, "{what}: {request:?}");
        }
    }
}

/// Fields after a body end it like its last byte: the request is whole.
#[tokio::test]
async fn a_body_that_ends_with_trailers_is_whole() {
    let (backend, seen) = strict::backend().await;
    let front = Front::of(&backend).await;
    let mut client = Frames::to(front.address).await;
    let trailers = frame(HEADERS, END | WHOLE, 1, block(&[("sum", "1"), ("waitgate-user", "me")]));
    let post = head(1, &asking("POST", "/p", &[]));
    let outcome = client.ask(1, [post, frame(DATA, 0, 1, "abc"), trailers].concat()).await;
    assert_eq!(outcome.status(), Some(200));
    let request = seen.lock().unwrap().remove(0).unwrap();
    assert_eq!(
        (request.body.as_slice(), request.all("waitgate-user").len()),
        (b"abc".as_slice(), 0)
    );
}

/// An answer in every form: with trailers, after a 103, without a body. The next one on the same connection is read right.
#[tokio::test]
async fn answers_of_every_form_are_framed_right() {
    let backend = shop_that(|request| {
        let answer = match request.line().split(' ').nth(1).unwrap() {
            "/trailers" => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nsum: 42\r\n\r\n",
            "/hints" => "HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
            "/204" => "HTTP/1.1 204 No Content\r\n\r\n",
            "/304" => "HTTP/1.1 304 Not Modified\r\nContent-Length: 99\r\n\r\n",
            _ => "HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n", // to HEAD
        };
        answer.to_owned()
    })
    .await;
    let front = Front::of(&backend).await;
    let mut client = Frames::to(front.address).await;
    let asked = [
        ("GET", "/trailers", 200, "ok", true),
        ("GET", "/hints", 200, "ok", false),
        ("GET", "/204", 204, "", false),
        ("GET", "/304", 304, "", false),
        ("HEAD", "/", 200, "", false),
        ("GET", "/hints", 200, "ok", false),
    ];
    for (stream, (method, path, status, body, trailers)) in (1..).step_by(2).zip(asked) {
        let Outcome::Answer(answer) = client.ask(stream, request(stream, &asking(method, path, &[]))).await else {
            panic!("no answer to {path}");
        };
        assert_eq!(
            (answer.status, answer.body.as_slice(), answer.trailers),
            (status, body.as_bytes(), trailers),
            "{path}"
        );
    }
}

/// CASE 67, 68: a head that is too large is `431` or the end of its stream, in one frame or in several, and small frames that a table unfolds into
/// a huge head end the connection. None of them reaches the backend.
#[tokio::test]
async fn heads_that_are_too_large_are_refused() {
    let backend = Backend::plain().await;
    let front = Front::of(&backend).await;
    let value = "v".repeat(4000);
    let large: Vec<_> = ["x-a", "x-b", "x-c", "x-d", "x-e"].map(|name| (name, value.as_str())).into();
    let large = block(&asking("GET", "/", &large));
    let (first, rest) = large.split_at(10_000);
    let whole = [
        frame(HEADERS, END, 1, first),
        frame(CONTINUATION, 0, 1, &rest[..5000]),
        frame(CONTINUATION, WHOLE, 1, &rest[5000..]),
    ];
    let mut client = Frames::to(front.address).await;
    let outcome = client.ask(1, whole.concat()).await;
    assert!(
        outcome.status().is_none_or(|status| status == 431) && outcome.is_refusal(),
        "{outcome:?}"
    );

    // One long field that the table remembers (index 62), named again and again by one byte.
    let mut bomb = block(&asking("GET", "/", &[]));
    bomb.extend([0x40, 1, b'x', 0x7f, 0xa1, 0x1e]);
    bomb.extend(value.as_bytes());
    bomb.extend([0x80 | 62; 8000]);
    let mut client = Frames::to(front.address).await;
    let outcome = client.ask(1, frame(HEADERS, END | WHOLE, 1, bomb)).await;
    assert!(outcome.is_refusal(), "{outcome:?}");
    assert_eq!(backend.connections(), 0);
    assert_eq!(front.ask(GET).await.status(), 200);
}

/// More streams than the settings allow are refused as such, so that a client knows that nothing was done, and one that ends makes room.
#[tokio::test]
async fn streams_over_the_limit_are_refused() {
    let (asked, go) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let (count, wait) = (Arc::clone(&asked), Arc::clone(&go));
    let mut limits = limits();
    limits.max_streams = 3;
    let front = Front::serving(limits, Stop::new(), move |_, _| {
        count.fetch_add(1, SeqCst);
        let wait = Arc::clone(&wait);
        async move {
            wait.notified().await;
            Response::new(Body::full("ok"))
        }
    })
    .await;
    let mut client = Frames::to(front.address).await;
    client
        .send((0..3).flat_map(|number| get(2 * number + 1, "/")).collect::<Vec<_>>())
        .await;
    until("three are asked", || asked.load(SeqCst) == 3).await;
    while client.next().await.is_some_and(|frame| frame.kind != SETTINGS || frame.flags == 0) {} // until ours are acknowledged
    client.send(frame(SETTINGS, 1, 0, [])).await; // the limit is known
    assert_eq!(client.ask(7, get(7, "/")).await, Outcome::Reset(REFUSED_STREAM));
    go.notify_waiters();
    let mut ended = 0;
    while ended < 3 {
        let frame = client.next().await.expect("the connection goes on");
        ended += u32::from(frame.kind == DATA && frame.flags & END > 0);
    }
    client.send(get(9, "/")).await;
    until("another is asked", || asked.load(SeqCst) == 4).await;
    go.notify_waiters();
    assert_eq!(client.outcome(9).await.status(), Some(200));
}

/// Windows that are opened too far or by nothing, frames on streams that are not, and openings that are none end what they are about, with the
/// code that says why.
#[tokio::test]
async fn what_breaks_the_protocol_is_ended_with_its_code() {
    let front = Front::serving(limits(), Stop::new(), |_, _| std::future::pending::<Response<Body>>()).await;
    let most = 0x7fff_ffff_u32.to_be_bytes();
    let of_a_stream = [
        (frame(WINDOW, 0, 1, most), FLOW_CONTROL_ERROR),
        (frame(WINDOW, 0, 1, [0; 4]), PROTOCOL_ERROR),
    ];
    for (bytes, code) in of_a_stream {
        let mut client = Frames::to(front.address).await;
        let outcome = client.ask(1, [get(1, "/"), bytes].concat()).await;
        assert!([Outcome::Reset(code), Outcome::GoneAway(code)].contains(&outcome), "{outcome:?}");
    }
    let of_the_connection = [
        frame(WINDOW, 0, 0, most),
        frame(WINDOW, 0, 0, [0; 4]),
        frame(DATA, END, 0, "x"),
        frame(DATA, END, 5, "x"),
        frame(RESET, 0, 7, [0; 4]),
        frame(HEADERS, END | WHOLE, 2, block(&asking("GET", "/", &[]))),
        frame(CONTINUATION, WHOLE, 1, []),
        frame(SETTINGS, 0, 0, [0; 5]),
        frame(SETTINGS, 0, 1, []),
        frame(6, 0, 0, [0; 7]),
        frame(DATA, 8, 1, [9, 1]),                // more padding than there is
        [[0xff; 3].as_slice(), &[0; 6]].concat(), // a frame of sixteen million bytes
    ];
    for bytes in of_the_connection {
        let mut client = Frames::to(front.address).await;
        let outcome = client.ask(1, [get(1, "/"), bytes.clone()].concat()).await;
        assert!(
            matches!(outcome, Outcome::GoneAway(code) if code != NO_ERROR),
            "{bytes:?}: {outcome:?}"
        );
        assert!(client.wire.ends_within(Duration::from_secs(5)).await, "{bytes:?}");
    }
    let openings = [
        [&PREFACE[..18], b"XX\r\n\r\n".as_slice()].concat(),
        [PREFACE, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"].concat(),
        PREFACE[..18].to_vec(),
    ];
    for bytes in openings {
        let mut client = front.client().await;
        client.send(&bytes).await;
        assert!(client.ends_within(Duration::from_secs(8)).await, "{bytes:?}");
        assert!(!client.buffer.starts_with(b"HTTP/1.1 2"), "{bytes:?}");
    }
}

/// CASE 70 on HTTP/2: a refusal of an upload is read while the upload goes on, the client is told to stop without an error, and what it had sent
/// does not use up the connection: more than the window of the connection is thrown away, and the next request is answered.
#[tokio::test]
async fn a_refused_upload_ends_and_its_connection_goes_on() {
    let backend = Backend::plain().await;
    let front = Front::of(&backend).await;
    let mut client = Frames::to(front.address).await;
    let part = vec![b'x'; 16_000];
    for number in 0..40 {
        let stream = 2 * number + 1;
        let mut upload = head(stream, &asking("POST", "/refused", &[]));
        for _ in 0..4 {
            upload.extend(frame(DATA, 0, stream, &part)); // no more than one may send unasked
        }
        assert_eq!(client.ask(stream, upload).await.status(), Some(429));
        let told = loop {
            let frame = client.next().await.expect("the connection goes on");
            if (frame.kind, frame.stream) == (RESET, stream) {
                break frame;
            }
        };
        assert_eq!(told.code(), NO_ERROR);
        client.send(frame(DATA, 0, stream, "late")).await;
    }
    assert_eq!(client.ask(99, get(99, "/")).await.status(), Some(200));
    assert_eq!(backend.seen().len(), 1);
}

/// CASE 40: somebody downloads on the same connection what is never read, and the events of the waiting room go on.
#[tokio::test]
async fn an_unread_download_does_not_hold_up_events() {
    let shop = shop_that(|_| format!("HTTP/1.1 200 OK\r\nContent-Length: 8388608\r\n\r\n{}", "x".repeat(8 << 20))).await;
    let site = Site::before(shop, LINE).await;
    let visitor = site.visitor();
    visitor.ask(Ask::get("/sale").navigating()).await;
    visitor.ask(Ask::get("/sale").navigating()).await;
    let ticket = visitor.cookie(TICKET).expect("a ticket");
    let mut sender = http2(site.public).await;
    let ask = |path: &str| {
        let request = Request::get(format!("http://{HOST_NAME}{path}")).header("cookie", format!("{TICKET}={ticket}"));
        request.body(nothing()).unwrap()
    };
    let unread = sender.send_request(ask("/big")).await.unwrap();
    assert_eq!(unread.status(), 200);
    let mut events = sender.send_request(ask("/.waitgate/42/events")).await.unwrap();
    assert_eq!(events.status(), 200);
    for number in 0..5 {
        let message = format!("message {number}");
        site.tune(json!({ "message": message })).await;
        let told = async {
            let mut text = String::new();
            while !text.contains(&message) {
                let frame = events.body_mut().frame().await.expect("it goes on").expect("it is whole");
                text.push_str(std::str::from_utf8(&frame.into_data().expect("data")).expect("UTF-8"));
            }
        };
        soon(told).await;
    }
    drop(unread);
}
