//! Who may ask: pages of other origins, preflights, and tokens in addresses.

use serde_json::json;

use super::called;
use crate::gateway::{ADMISSION, Ask, LINE, Reply, SHOP, Site, TICKET};
use crate::harness::within;

/// CASE 49: a foreign page opens no socket and does nothing in a visitor's name.
#[tokio::test]
async fn foreign_pages_do_not_act() {
    let site = Site::open(&format!("{LINE}origins = [\"https://www.example\"]\n")).await;
    let visitor = site.visitor();
    visitor.stand().await;
    let foreign: [&[(&str, &str)]; 6] = [
        &[("origin", "https://evil.example")],
        &[("origin", "null")],
        &[("origin", "http://shop.example:8443")],
        &[("origin", "http://shop.example.evil.example")],
        &[("origin", "http://www.example")],
        &[("sec-fetch-site", "cross-site")],
    ];
    for headers in foreign {
        assert_eq!(visitor.socket(headers).await.err(), Some(403), "{headers:?}");
        for verb in ["enter", "leave", "join"] {
            for ask in [Ask::post("").scripted(), Ask::post("").form("next=/sale")] {
                let ask = headers
                    .iter()
                    .fold(ask, |ask, (name, value)| ask.header(name, *value))
                    .to(&format!("/.waitgate/42/{verb}"));
                assert_eq!(visitor.ask(ask).await.code(), "foreign_origin", "{verb} {headers:?}");
            }
        }
    }
    assert_eq!(site.in_line().await, 1);
    for headers in [
        &[][..],
        &[("origin", "http://shop.example")],
        &[("origin", "https://shop.example")],
        &[("origin", "https://www.example")],
        &[("sec-fetch-site", "same-origin")],
    ] {
        let mut socket = visitor
            .socket(headers)
            .await
            .unwrap_or_else(|status| panic!("{status}: {headers:?}"));
        assert_eq!(socket.next().await.unwrap()["state"], "waiting");
    }
    for method in ["POST", "PUT", "DELETE"] {
        let reply = visitor.ask(Ask::new(method, "/.waitgate/42/ws").scripted()).await;
        assert_eq!((reply.status, reply.header("allow")), (405, "GET"));
    }
    let plain = visitor.fetch("/.waitgate/42/ws").await;
    assert_eq!(
        (plain.status, plain.header("upgrade"), plain.code().as_str()),
        (426, "websocket", "not_a_websocket")
    );
    assert_eq!(visitor.fetch("/.waitgate/42/enter").await.header("allow"), "POST");
    assert_eq!(visitor.fetch("/.waitgate/42/nothing").await.status, 404);
    assert_eq!(visitor.fetch("/.waitgate/43/status").await.status, 404);
}

/// CASE 13, 82: a script of a listed origin may read every answer of ours, refusals and faults included; others may read none.
#[tokio::test]
async fn listed_origins_may_read() {
    let settings = format!("{SHOP}origins = [\"https://www.example\"]\n[limits]\nwaiting = {{ rate = \"4/h\", burst = 8 }}\n");
    let mut site = Site::open(&settings).await;
    let buyer = site.visitor();
    buyer.enter("/sale").await;
    site.tune(json!({"rate": 0})).await;
    let visitor = site.visitor();
    visitor.stand().await;
    let readable = |reply: &Reply| {
        assert_eq!(reply.header("access-control-allow-origin"), "https://www.example", "{reply:?}");
        assert_eq!(reply.header("access-control-allow-credentials"), "true");
        assert_eq!(reply.header("access-control-expose-headers"), "retry-after, idempotency-replayed");
        assert_eq!(reply.header("vary"), "Origin");
    };
    let from = |ask: Ask, origin: &str| ask.scripted().header("origin", origin).header("sec-fetch-mode", "cors");
    let listed = |ask: Ask| from(ask, "https://www.example");
    for (ask, status) in [
        (Ask::get("/sale/api"), 429),
        (Ask::get("/.waitgate/42/status"), 200),
        (Ask::post("/.waitgate/42/enter"), 409),
        (Ask::get("/.waitgate/42/enter"), 405),
        (Ask::post("/sale/claim").json(&json!({})), 429),
    ] {
        let reply = visitor.ask(listed(ask.clone())).await;
        assert_eq!(reply.status, status, "{}", reply.text());
        readable(&reply);
        let reply = visitor.ask(from(ask, "https://evil.example")).await;
        assert!(!reply.headers.contains_key("access-control-allow-origin"), "{reply:?}");
        assert_eq!(reply.header("vary"), "Origin");
    }
    within("over the limit", async || {
        let reply = visitor.ask(listed(Ask::get("/.waitgate/42/status"))).await;
        readable(&reply);
        reply.status == 429
    })
    .await;
    site.redis.kill().await;
    let lost = buyer.ask(listed(Ask::post("/sale/claim").json(&json!({})))).await;
    assert_eq!(lost.status, 503, "{}", lost.text());
    readable(&lost);
    // What the shop itself says is the shop's to share.
    let shops = buyer.ask(listed(Ask::get("/sale/api"))).await;
    assert!(shops.is_shop() && !shops.headers.contains_key("access-control-allow-origin"));
}

/// CASE 82: a preflight is nobody's visit: not counted, not limited, not queued, not asked of the store.
#[tokio::test]
async fn preflights_cost_nothing() {
    let settings = format!(
        "{LINE}origins = [\"https://www.example\"]\n[limits]\nwaiting = {{ rate = \"4/h\", burst = 1 }}\naddress = {{ rate = \"4/h\", burst = 1 }}\n"
    );
    let mut site = Site::open(&settings).await;
    site.redis.kill().await;
    let browser = site.visitor();
    for _ in 0..5 {
        for path in ["/sale/api", "/.waitgate/42/enter", "/.waitgate/42/status"] {
            let ask = Ask::new("OPTIONS", path)
                .header("origin", "https://www.example")
                .header("access-control-request-method", "POST")
                .header("access-control-request-headers", "idempotency-key");
            let reply = browser.ask(ask).await;
            assert_eq!(reply.status, 204, "{path}: {}", reply.text());
            assert_eq!(reply.header("access-control-allow-origin"), "https://www.example");
            assert!(reply.header("access-control-allow-methods").contains("POST"));
            assert!(reply.header("access-control-allow-headers").contains("idempotency-key"));
            assert!(reply.sets(TICKET).is_none());
        }
    }
    assert_eq!(browser.go("/sale").await.status, 200, "the budget is untouched");
    assert_eq!(browser.status().await.status, 200);
}

/// CASE 50: no token is taken from an address, be it for a stream, a socket or the shop; and none is written to the access log, even where it keeps queries.
#[tokio::test]
async fn a_token_in_the_address_is_no_token() {
    let site = Site::open(LINE).await;
    let log = site.folder.path().join("access.log");
    let logged = format!("{LINE}[log]\naccess = \"{}\"\nquery = true\n", log.display());
    assert_eq!(site.reload(&logged).await.status, 200);
    let visitor = called(&site).await;
    visitor.post("/.waitgate/42/enter").await;
    let (ticket, admission) = (visitor.cookie(TICKET).unwrap(), visitor.cookie(ADMISSION).unwrap());
    let stranger = site.visitor();
    for path in ["/.waitgate/42/status", "/.waitgate/42/events", "/.waitgate/42/ws", "/sale/api"] {
        let query =
            format!("{path}?{TICKET}={ticket}&{ADMISSION}={admission}&token={admission}&access_token={admission}&tok={ticket}&last=1");
        let ask = Ask::get(&query).scripted();
        let reply = if path.ends_with("/ws") {
            let ask = ask.header("connection", "Upgrade").header("upgrade", "websocket");
            let ask = ask.header("sec-websocket-version", "13");
            stranger.ask(ask.header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")).await
        } else {
            stranger.ask(ask).await
        };
        assert!([403, 204, 429].contains(&reply.status), "{path}: {}", reply.status);
        stranger.forget_everything();
    }
    assert!(site.backend.seen().is_empty());
    let lines = || std::fs::read_to_string(&log).unwrap_or_default();
    within("all are logged", async || lines().matches("last=1").count() == 4).await;
    let written = lines();
    for secret in [&ticket, &admission]
        .into_iter()
        .flat_map(|token| token.split('.'))
        .filter(|part| part.len() > 16)
    {
        assert!(!written.contains(secret), "{secret} in {written}");
    }
}
