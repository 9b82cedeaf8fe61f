//! The access log: what became of each request can be read there.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use serde_json::{Value, json};

use crate::gateway::{SHOP, Site};
use crate::harness::within;

/// Every "no" of ours has its code in the log, be it a page or a problem, and be it written once for all who get it.
#[tokio::test]
async fn every_refusal_has_its_code() {
    let site = Site::open(SHOP).await;
    let log = site.folder.path().join("access.log");
    let logged = format!(
        "{SHOP}[limits]\naddress = {{ rate = \"4/h\", burst = 40 }}\n[log]\naccess = \"{}\"\n",
        log.display()
    );
    assert_eq!(site.reload(&logged).await.status, 200);
    let early = site.visitor();
    early.enter("/sale").await;
    site.tune(json!({"stock": 0})).await;
    within("sold out", async || site.visitor().fetch("/sale/script").await.status == 409).await;
    assert_eq!(site.visitor().go("/sale/page").await.page(), "sold_out");
    assert_eq!(early.claim("k", &json!({})).await.code(), "sold_out");
    let mut greedy = site.visitor();
    greedy = greedy.at(Ipv4Addr::new(127, 0, 0, 5));
    within("over the limit", async || greedy.fetch("/limited/script").await.status == 429).await;
    assert_eq!(greedy.go("/limited/page").await.page(), "rate_limited");

    let lines = || -> Vec<Value> {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    };
    within("all is logged", async || lines().iter().any(|line| line["path"] == "/limited/page")).await;
    let code_of = |path: &str, status: u16| {
        let found: BTreeSet<String> = lines()
            .iter()
            .filter(|line| line["path"] == path && line["status"] == status)
            .map(|line| line["code"].to_string())
            .collect();
        found.into_iter().collect::<Vec<_>>().join(" ")
    };
    for path in ["/sale/script", "/sale/page", "/sale/claim"] {
        assert_eq!(code_of(path, 409), "\"sold_out\"", "{path}: {:?}", lines());
    }
    for path in ["/limited/script", "/limited/page"] {
        assert_eq!(code_of(path, 429), "\"rate_limited\"", "{path}: {:?}", lines());
    }
    for line in lines().iter().filter(|line| line["status"].as_u64().unwrap() >= 400) {
        assert!(line["code"].is_string(), "{line}");
    }
}
