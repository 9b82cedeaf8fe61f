//! What a backend is told, whatever the client says.

use http::{HeaderMap, HeaderValue, Request};
use http_body_util::BodyExt;
use waitgate::config::ForwardedHeader;

use crate::backend::{Backend, Front, Message, Treatment, http2, limits, nothing, settings};

fn ours() -> Treatment {
    let mut added = HeaderMap::new();
    added.insert("waitgate-user", HeaderValue::from_static("u1"));
    added.insert("idempotency-key", HeaderValue::from_static("k1"));
    Treatment {
        added,
        ..Treatment::default()
    }
}

/// What the backend sees of a request with these header lines.
async fn seen_with(treatment: Treatment, lines: &str) -> Message {
    let backend = Backend::plain().await;
    let front = Front::with(backend.origin(), limits(), settings(), treatment).await;
    let mut client = front.client().await;
    let answer = client
        .ask(format!("GET /a?b HTTP/1.1\r\nHost: Shop.example:81\r\n{lines}\r\n"))
        .await;
    assert_eq!(answer.status(), 200);
    assert_eq!(client.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.status(), 200);
    assert_eq!(backend.connections(), 1, "the connection is used again");
    backend.seen().remove(0)
}

/// CASE 55: hop-by-hop headers come off in both directions, and a `Connection` that names ours takes nothing of ours away.
#[tokio::test]
async fn what_belongs_to_one_hop_stays_there_and_cannot_take_ours_along() {
    let seen = seen_with(
        ours(),
        "Connection: X-Mine, waitgate-user, X-Forwarded-Proto, x-forwarded-for, host, keep-alive\r\nX-Mine: 1\r\nKeep-Alive: timeout=9\r\n\
         TE: trailers\r\nTrailer: x\r\nProxy-Authorization: Basic x\r\nProxy-Anything: x\r\nProxy-Connection: keep-alive\r\nProxy: evil:1\r\n\
         Upgrade: foo\r\nHTTP2-Settings: x\r\nProxied-By: shop\r\n",
    )
    .await;
    for name in [
        "x-mine",
        "keep-alive",
        "te",
        "trailer",
        "proxy-authorization",
        "proxy-anything",
        "proxy-connection",
        "proxy",
        "upgrade",
        "http2-settings",
    ] {
        assert!(seen.all(name).is_empty(), "{name}: {}", seen.head);
    }
    assert!(
        seen.all("connection").iter().all(|value| !value.contains("waitgate")),
        "{}",
        seen.head
    );
    assert_eq!(seen.one("waitgate-user"), "u1");
    assert_eq!(seen.one("x-forwarded-proto"), "http");
    assert_eq!(seen.one("x-forwarded-for"), "127.0.0.1");
    assert_eq!(seen.one("host"), "Shop.example:81");
    assert_eq!(seen.one("proxied-by"), "shop");
    assert_eq!(seen.one("via"), "1.1 waitgate");
    assert_eq!(seen.line(), "GET /a?b HTTP/1.1");
}

/// CASE 56: identity headers of a client, in any spelling, are replaced by ours, one of each.
#[tokio::test]
async fn nobody_forges_who_he_is() {
    let forged = "X-FORWARDED-for: 1.1.1.1\r\nX-Forwarded-For: 2.2.2.2\r\nx_forwarded_for: 3.3.3.3\r\nX-Forwarded_For: 3.3.3.3\r\n\
        X-Forwarded-Proto: https\r\nX-Forwarded-Host: evil\r\nX-Forwarded-Port: 1\r\nX-Forwarded-Prefix: /x\r\nForwarded: for=1.1.1.1\r\n\
        X-Real-IP: 1.1.1.1\r\nX_Real_IP: 1.1.1.1\r\nTrue-Client-IP: 1.1.1.1\r\nCF-Connecting-IP: 1.1.1.1\r\n\
        Waitgate-User: admin\r\nWAITGATE_USER: admin\r\nwaitgate-Reservation: r\r\nwaitgate_reservation: r\r\nWaitgate_Units: 9\r\n\
        Idempotency-Key: mine\r\nX-Original-URL: /claim\r\nX-Rewrite-Url: /claim\r\n";
    let seen = seen_with(ours(), forged).await;
    assert_eq!(seen.one("x-forwarded-for"), "127.0.0.1");
    assert_eq!(seen.one("x-real-ip"), "127.0.0.1");
    assert_eq!(seen.one("x-forwarded-proto"), "http");
    assert_eq!(seen.one("x-forwarded-host"), "Shop.example:81");
    assert_eq!(seen.one("waitgate-user"), "u1");
    assert_eq!(seen.one("idempotency-key"), "k1");
    for name in [
        "forwarded",
        "x-forwarded-port",
        "x-forwarded-prefix",
        "true-client-ip",
        "cf-connecting-ip",
        "waitgate-reservation",
        "x-original-url",
        "x-rewrite-url",
    ] {
        assert!(seen.all(name).is_empty(), "{name}: {}", seen.head);
    }
    assert!(
        !seen.head.contains('_') && !seen.head.contains("1.1.1.1") && !seen.head.contains("evil"),
        "{}",
        seen.head
    );
}

#[tokio::test]
async fn a_trusted_proxy_keeps_its_chain() {
    let treatment = |believed| Treatment {
        believed: Some(believed),
        ..ours()
    };
    let chain = "X-Forwarded-For: 203.0.113.7\r\nX-Forwarded-For: 10.0.0.9\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: shop\r\n\
        Forwarded: for=203.0.113.7\r\nTrue-Client-IP: 6.6.6.6\r\nx_forwarded_for: 6.6.6.6\r\nWaitgate-User: admin\r\n";
    let seen = seen_with(treatment(ForwardedHeader::XForwardedFor), chain).await;
    assert_eq!(seen.one("x-forwarded-for"), "203.0.113.7, 10.0.0.9, 127.0.0.1");
    assert_eq!(seen.one("x-forwarded-proto"), "https");
    assert_eq!(seen.one("x-forwarded-host"), "shop");
    assert_eq!(seen.one("x-real-ip"), "203.0.113.7");
    assert!(
        seen.all("forwarded").is_empty(),
        "a proxy that writes the one lets a client's own word in the other through"
    );
    assert_eq!(seen.one("waitgate-user"), "u1");
    assert!(!seen.head.contains("6.6.6.6"));

    let other = seen_with(treatment(ForwardedHeader::Forwarded), &chain.replace("10.0.0.9", "6.6.6.6")).await;
    assert_eq!(other.one("forwarded"), "for=203.0.113.7, for=127.0.0.1");
    assert_eq!(other.one("x-forwarded-for"), "203.0.113.7, 127.0.0.1");
    assert!(!other.head.contains("6.6.6.6"));

    let bare = seen_with(treatment(ForwardedHeader::XForwardedFor), "X-Forwarded-Proto: gopher\r\n").await;
    assert_eq!(bare.one("x-forwarded-for"), "203.0.113.7, 127.0.0.1");
    assert_eq!(bare.one("x-forwarded-proto"), "http");
}

#[tokio::test]
async fn our_cookies_never_reach_the_backend() {
    let cookies = |line: &'static str| async move { seen_with(ours(), line).await.all("cookie").join("|") };
    assert_eq!(
        cookies("Cookie: a=1; wga_42=x; b=\"2 3\" ;wgt_42=y; __Host-wga_42=z; xwga_=1\r\n").await,
        "a=1; b=\"2 3\"; xwga_=1"
    );
    assert_eq!(cookies("Cookie: wga_42=x\r\n").await, "");
    assert_eq!(
        cookies("Cookie: a=1;b=2;  c\r\n").await,
        "a=1;b=2;  c",
        "untouched when none is ours"
    );
    assert_eq!(cookies("Cookie: a=1\r\nCookie: wgt_1=2; b=3\r\n").await, "a=1; b=3");
}

/// CASE 61: an authority becomes one `Host`; crumbs of cookies one line.
#[tokio::test]
async fn http2_becomes_http1_with_one_host_and_one_cookie_line() {
    let backend = Backend::plain().await;
    let front = Front::with(backend.origin(), limits(), settings(), ours()).await;
    let request = Request::get("http://shop.example/p?q=1")
        .header("cookie", "a=1")
        .header("cookie", "wga_1=x")
        .header("cookie", "b=2");
    let response = http2(front.address)
        .await
        .send_request(request.body(nothing()).unwrap())
        .await
        .unwrap();
    assert_eq!(response.status(), 200);
    let seen = backend.only();
    assert_eq!(seen.line(), "GET /p?q=1 HTTP/1.1");
    assert_eq!(seen.one("host"), "shop.example");
    assert_eq!(seen.one("cookie"), "a=1; b=2");
    assert_eq!(seen.one("via"), "2.0 waitgate");
}

/// CASE 7: several `Set-Cookie` of a backend arrive as several, in order.
#[tokio::test]
async fn an_answer_is_cleaned_too_and_keeps_its_cookies_in_order() {
    let backend = Backend::saying(
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\nProxy-Authenticate: Basic\r\n\
         Upgrade: h2c\r\nSet-Cookie: a=1; Path=/\r\nX-Kept: y\r\nSet-Cookie: b=2\r\nSet-Cookie: a=3\r\n\r\nok",
    )
    .await;
    let front = Front::of(&backend).await;
    let mut client = front.client().await;
    for _ in 0..2 {
        let answer = client.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        assert_eq!(answer.all("set-cookie"), ["a=1; Path=/", "b=2", "a=3"]);
        assert_eq!(answer.one("x-kept"), "y");
        for name in ["x-hop", "keep-alive", "proxy-authenticate", "upgrade", "connection"] {
            assert!(answer.all(name).is_empty(), "{name}: {}", answer.head);
        }
    }
    let request = Request::get("http://a/").body(nothing()).unwrap();
    let response = http2(front.address).await.send_request(request).await.unwrap();
    let cookies: Vec<_> = response.headers().get_all("set-cookie").iter().collect();
    assert_eq!(cookies, ["a=1; Path=/", "b=2", "a=3"]);
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "ok");
}

/// CASE 58 and 61: odd codings, repeated lengths and hosts that disagree are refused, and the backend is not touched.
#[tokio::test]
async fn a_request_that_can_be_read_in_two_ways_reaches_no_backend() {
    let backend = Backend::plain().await;
    let front = Front::of(&backend).await;
    let odd = [
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost:\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a, b\r\n\r\n",
        "GET http://a/ HTTP/1.1\r\nHost: b\r\n\r\n",
        "GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n",
        "CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n",
        "TRACE / HTTP/1.1\r\nHost: a\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +4\r\n\r\nabcd",
        "GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n",
        "GET /sale HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\nContent-Length: 5\r\n\r\nhello",
    ];
    for request in odd {
        let mut client = front.client().await;
        client.send(request).await;
        let status = client.answer().await.map_or(400, |answer| answer.status());
        assert!(matches!(status, 400 | 501 | 505), "{status}: {request:?}");
    }
    assert_eq!(backend.connections(), 0, "{:?}", backend.seen());
    let two = Request::get("http://a/").header("host", "b").body(nothing()).unwrap();
    assert_eq!(http2(front.address).await.send_request(two).await.unwrap().status(), 400);
    assert_eq!(backend.connections(), 0);
}

#[tokio::test]
async fn both_lengths_at_once_are_refused() {
    let backend = Backend::plain().await;
    let front = Front::of(&backend).await;
    let mut client = front.client().await;
    client
        .send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\nGET /sale/secret HTTP/1.1\r\nHost: a\r\n\r\n")
        .await;
    assert_eq!(client.answer().await.unwrap().status(), 400);
    assert!(client.answer().await.is_none(), "what follows is not read");
    assert_eq!(backend.connections(), 0, "{:?}", backend.seen());
}

/// CASE 61: an absolute target is forwarded in origin form with one `Host`.
#[tokio::test]
async fn an_absolute_target_is_forwarded_in_origin_form() {
    let backend = Backend::plain().await;
    let front = Front::of(&backend).await;
    assert_eq!(
        front
            .ask("GET http://shop.example/a?b=1 HTTP/1.1\r\nHost: shop.example\r\n\r\n")
            .await
            .status(),
        200
    );
    assert_eq!(
        (backend.only().line(), backend.only().one("host")),
        ("GET /a?b=1 HTTP/1.1", "shop.example")
    );
}
