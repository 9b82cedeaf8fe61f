//! The number that somebody in line is shown: never worse than one he was shown before, however he looks.

use serde_json::{Value, json};
use waitgate::clock::Clock;
use waitgate::store::RoomStore;
use waitgate::store::scripts::{Knock, Presence};

use crate::gateway::{LINE, Reply, Site, Visitor, shop};
use crate::harness::{TERMS, joining, place, within};

fn names(what: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{what}{number:0>20}")).collect()
}

/// They join; answers the place of the last.
async fn joined(room: &RoomStore, tickets: &[String]) -> u64 {
    let mut last = 0;
    for some in tickets.chunks(200) {
        let some: Vec<_> = some.iter().map(|ticket| joining(ticket, 0, Knock::Join)).collect();
        let answer = room.join(&TERMS, &some).await.expect("joined").expect("seeded");
        last = place(*answer.standings.last().unwrap());
    }
    last
}

async fn leave(room: &RoomStore, tickets: &[String]) {
    for some in tickets.chunks(200) {
        let some: Vec<_> = some.iter().cloned().map(Presence::Leave).collect();
        room.depart(&TERMS, &some).await.expect("left");
    }
}

async fn ahead(visitor: &Visitor) -> u64 {
    visitor.status().await.json()["ahead"].as_u64().expect("a number")
}

/// The number on the page, as a person without a script reads it.
fn on(page: &Reply) -> u64 {
    let text = page.text();
    let (_, rest) = text.split_once("<span id=\"number\"").expect("a number");
    let (_, rest) = rest.split_once('>').unwrap();
    rest.split_once('<').unwrap().0.replace([',', '.'], "").parse().expect("a number")
}

/// Every way in which this visitor is shown a number now.
async fn everywhere(visitor: &Visitor) -> Vec<u64> {
    let mut shown = vec![on(&visitor.go("/sale").await), ahead(visitor).await];
    shown.push(
        visitor.events().await.next().await.expect("a view").view()["ahead"]
            .as_u64()
            .expect("a number"),
    );
    shown.push(
        visitor.socket(&[]).await.expect("a socket").next().await.unwrap()["ahead"]
            .as_u64()
            .expect("a number"),
    );
    let numbers = |reply: Reply, of: fn(&Value) -> &Value| of(&reply.json())["ahead"].as_u64().expect("a number");
    shown.push(numbers(visitor.post("/.waitgate/42/enter").await, |problem| &problem["view"]));
    shown.push(numbers(visitor.fetch("/sale/api").await, |problem| &problem["view"]));
    shown.push(numbers(visitor.post("/.waitgate/42/join").await, |view| view));
    shown.push(on(&visitor.go("/sale").await));
    shown
}

/// The bound of a place grows while its block of places fills up behind it. Whoever comes back to the page, polls, or opens a stream is shown no
/// more for that, whether it was a page or a stream, open still or not, that told him less.
#[tokio::test]
async fn whoever_comes_back_is_shown_no_worse_number() {
    let site = Site::with_gates(2, shop().await, LINE).await;
    let room = site.redis.store(&Clock::system()).await.room("42");
    let mut before = names("first", 1);
    let first = joined(&room, &before).await;
    // So many that the next ones stand in the middle of the second block of 1,024 places.
    before.extend(names("before", usize::try_from(1_024 - first % 1_024 + 500).unwrap()));
    joined(&room, &before).await;
    let (heard, listens, reads) = (site.visitor(), site.visitor(), site.visitor());
    let people = [&heard, &listens, &reads];
    for person in people {
        person.stand().await;
    }
    let mut first = heard.events().await;
    let mut second = listens.events().await;
    within("counted", async || ahead(&reads).await > 400).await;
    leave(&room, &before[1..]).await;
    let told = |view: &Value| view["ahead"].as_u64().is_some_and(|ahead| ahead <= 3);
    let by_a_stream = first.until("nearly alone", told).await["ahead"].as_u64().unwrap();
    drop(first); // and this one hears nothing further
    let by_an_open_stream = second.until("nearly alone", told).await["ahead"].as_u64().unwrap();
    within("and so says the page", async || on(&reads.go("/sale").await) <= 3).await;
    let by_a_page = on(&reads.go("/sale").await);

    let behind = names("behind", 300);
    joined(&room, &behind).await;
    leave(&room, &behind[250..]).await;
    let newcomer = site.visitor();
    newcomer.stand().await;
    for gate in &site.gates {
        let newcomer = newcomer.moved_to(gate);
        within("who left is not counted any more", async || ahead(&newcomer).await < 260).await;
    }
    for (person, best) in people.into_iter().zip([by_a_stream, by_an_open_stream, by_a_page]) {
        // The other gateway never told him anything: it shows what the bound has become.
        let elsewhere = person.moved_to(&site.gates[1]);
        let grown = ahead(&elsewhere).await;
        assert!(grown > 100, "the bound has grown: {grown} at {}", person.place());
        let shown = everywhere(person).await;
        assert!(shown.iter().all(|number| *number <= best), "{best}, and then {shown:?}");
    }
    site.tune(json!({"paused": true})).await;
    let shown = on(&reads.go("/sale").await);
    assert!(shown <= by_a_page, "a paused room: {shown}");
}
