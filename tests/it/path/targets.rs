//! Targets as browsers and ill-wishers really send them, on their way through the waiting room: kept to the byte, and never a way to another origin.

use serde_json::json;

use crate::gateway::{Ask, LINE, SHOP, Site, TICKET};

/// As it stands in a form's field, percent-encoded.
fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// Where the forms of this page lead on to, as a browser reads it.
fn next_of(page: &str) -> String {
    let (_, rest) = page.split_once("name=\"next\" value=\"").expect("a form");
    let (value, _) = rest.split_once('"').expect("its value");
    let entities = [
        ("&#x2f;", "/"),
        ("&#x27;", "'"),
        ("&quot;", "\""),
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&amp;", "&"),
    ];
    entities
        .iter()
        .fold(value.to_owned(), |text, (entity, plain)| text.replace(entity, plain))
}

/// CASES 10 and 65: whatever a browser puts into a query, the waiting page leads back to that very address, and so does its form; what is no ASCII is
/// encoded as browsers do it, and what cannot be served is refused on purpose.
#[tokio::test]
async fn a_waiting_page_leads_back_to_the_very_bytes() {
    let site = Site::open(SHOP).await;
    site.tune(json!({"rate": 0})).await;
    let visitor = site.visitor();
    visitor.stand().await;
    let ticket = visitor.cookie(TICKET).expect("a ticket");
    let mut led_back = 0;
    for target in [
        r#"/sale?x={"a":1}"#,
        "/sale/p?a[]=1|2",
        "/sale?q=100%",
        "/sale?%zz&b=%2F%20+&b=2&c",
        "/sale?",
        "/sale/p?x=%E2%9C%93&tok=T",
        "/sale?x='&y=%3Cscript%3E`^",
        "/sale?x=\"><script>alert(1)</script>",
        "/sale?x=\u{1f4f1}",
    ] {
        let asked = format!("GET {target} HTTP/1.1\r\nHost: shop.example\r\nAccept: text/html\r\nCookie: {TICKET}={ticket}\r\n\r\n");
        let answer = site.wire().await.ask(asked).await;
        if answer.status() == 400 {
            continue;
        }
        assert_eq!(answer.status(), 200, "{target}: {}", answer.head);
        let page = String::from_utf8(answer.body).expect("UTF-8");
        assert!(!page.contains("<script>alert"), "{target}");
        let target = target.replace('\u{1f4f1}', "%F0%9F%93%B1");
        assert_eq!(next_of(&page), target);
        let form = format!("next={}", encoded(&target));
        let went = visitor.ask(Ask::post("/.waitgate/42/enter").form(&form)).await;
        assert_eq!((went.status, went.header("location")), (303, target.as_str()));
        led_back += 1;
    }
    assert!(led_back >= 7, "only {led_back} were not refused");
    assert!(site.backend.seen().is_empty());
}

/// CASES 20 and 23: neither the address a form is posted to nor the page it says it stands on is a way out.
#[tokio::test]
async fn no_address_and_no_referer_leads_away() {
    let site = Site::open(&LINE.replace("/sale", "/")).await;
    for path in [
        "//e.com",
        "//e.com/x?y",
        "/%5ce.com",
        "/%09/e.com",
        "/\\e.com",
        "/.//e.com",
        "/%2f/e.com",
    ] {
        let asked = format!(
            "POST {path} HTTP/1.1\r\nHost: shop.example\r\nAccept: text/html\r\nSec-Fetch-Mode: navigate\r\nContent-Length: 0\r\n\r\n"
        );
        let answer = site.wire().await.ask(asked).await;
        if answer.status() == 400 {
            continue;
        }
        let to = (answer.status(), answer.one("location"));
        assert!(to == (303, "/") || to == (303, path) && path.starts_with("/%"), "{path}: {to:?}");
    }
    let visitor = site.visitor();
    visitor.stand().await;
    for referer in [
        "http://shop.example//e.com",
        "http://shop.example/\\e.com",
        "http://shop.example/.//e.com",
        "http://e.com//e.com/x",
        "https://e.com",
        "//e.com",
        "e.com",
    ] {
        let form = Ask::post("/.waitgate/42/join").form("next=").header("referer", referer);
        let went = visitor.ask(form).await;
        assert_eq!((went.status, went.header("location")), (303, "/"), "{referer}");
    }
    assert!(site.backend.seen().is_empty());
}

/// CASE 31: a robot's name is no way past the line, and the operators' health probe asks the store nothing.
#[tokio::test]
async fn a_name_is_no_bypass_and_a_probe_needs_no_store() {
    let mut site = Site::open(LINE).await;
    for name in [
        "Googlebot/2.1 (+http://www.google.com/bot.html)",
        "ELB-HealthChecker/2.0",
        "kube-probe/1.30",
    ] {
        let robot = site.visitor().always("user-agent", name);
        for _ in 0..2 {
            assert!(robot.go("/sale").await.is_line(), "{name}");
        }
    }
    assert_eq!(site.in_line().await, 3);
    assert!(site.backend.seen().is_empty());
    site.redis.kill().await;
    let probe = site.operate("GET", "/healthz", &json!(null)).await;
    assert_eq!((probe.status, probe.text().trim()), (200, "ok"));
}
