//! A random crowd over two gateways, and a checker that looks at the store all the time: whatever people do, the promises hold.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use fastrand::Rng;
use futures_util::future::join_all;
use http::Method;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::timeout;
use waitgate::clock::Clock;

use crate::backend::PATIENCE;
use crate::crew::{Checker, Crew, Event, Visitor, operate};
use crate::harness::{Redis, patient, within};

const ROOM: &str = r#"
rate = "60/s"
stock = 40
away_after = "400ms"
grace = "1s"
claim.path = "/sale/claim"
claim.hold = "3s"
"#;
const RATE: u64 = 60;
const STOCK: u64 = 40;

/// What somebody saw and did, by his ticket.
#[derive(Debug, Default)]
struct Life {
    ticket: String,
    /// Never away, so the order of calls can be held against the places of such people.
    steady: bool,
    /// The number shown last, by the gateway that showed it.
    shown: BTreeMap<SocketAddr, u64>,
    confirmed: BTreeSet<String>,
}

impl Life {
    fn is_shown(&mut self, at: SocketAddr, view: &Value) {
        let Some(ahead) = view["ahead"].as_u64() else { return };
        let before = self.shown.insert(at, ahead).unwrap_or(u64::MAX);
        assert!(ahead <= before, "{ahead} after {before} for {}", self.ticket);
    }
}

/// One visitor, from the first page to the last: watches or polls, changes gateways, leaves, vanishes, enters, claims, pays or not.
async fn live(mut rng: Rng, gateways: [SocketAddr; 2], operators: SocketAddr) -> Life {
    let mut visitor = Visitor::new(gateways[rng.usize(..2)]);
    let (steady, leaves, vanishes) = (rng.f32() < 0.5, rng.f32() < 0.1, rng.f32() < 0.1);
    let mut life = Life { steady, ..Life::default() };
    while visitor.cookie("wgt_42").is_none() {
        visitor.load().await;
    }
    life.ticket = visitor.ticket();
    let mut stream = None;
    loop {
        if stream.is_none() && (steady || rng.bool()) {
            stream = Some(visitor.stream().await);
        }
        let view = match &mut stream {
            // News come when they come; now and then somebody does something else meanwhile.
            Some(events) => match timeout(Duration::from_millis(rng.u64(50..400)), events.next()).await {
                Ok(Event::View(view)) => view,
                Ok(Event::Comment) | Err(_) => Value::Null,
                Ok(Event::Bye | Event::End) => return life,
            },
            None => visitor.status().await.json(),
        };
        life.is_shown(visitor.at, &view);
        match view["state"].as_str() {
            Some("turn") if rng.f32() < 0.1 => return life,
            Some("turn") => break,
            Some("gone" | "sold_out") => return life,
            _ => {}
        }
        if !steady && rng.f32() < 0.2 {
            // Another gateway, the old stream closed before or after.
            let (old, before) = (stream.take(), rng.bool());
            if before {
                drop(old);
                visitor = visitor.at(gateways[rng.usize(..2)]);
            } else {
                visitor = visitor.at(gateways[rng.usize(..2)]);
                stream = Some(visitor.stream().await);
            }
        }
        if !steady && leaves && rng.f32() < 0.2 {
            visitor.leave().await;
            return life;
        }
        if !steady && vanishes && rng.f32() < 0.2 {
            return life;
        }
    }
    if enters(&visitor).await {
        buy(&mut life, &mut rng, &visitor, operators).await;
    }
    life
}

/// Twice at once, as double clicks do.
async fn enters(visitor: &Visitor) -> bool {
    let deadline = Clock::instant() + PATIENCE;
    loop {
        let (first, second) = tokio::join!(visitor.enter(), visitor.enter());
        match (first.gist().0, second.gist().0) {
            (200, 200) => {
                assert_eq!(first.json(), second.json(), "one admission");
                return true;
            }
            (200 | 409, 200 | 409) => assert!(Clock::instant() < deadline, "told that it is the turn, and never let in"),
            _ => return false,
        }
    }
}

async fn buy(life: &mut Life, rng: &mut Rng, visitor: &Visitor, operators: SocketAddr) {
    let (one, two) = tokio::join!(visitor.claim("one"), visitor.claim("one"));
    let orders: BTreeSet<String> = [one, two]
        .iter()
        .filter(|reply| reply.status == 201)
        .map(|reply| reply.text())
        .collect();
    assert!(orders.len() <= 1, "one claim, two orders: {orders:?}");
    let Some(id) = orders.first().and_then(|order| order.strip_prefix("order of ")) else {
        return;
    };
    let settle = async |verdict: &str| {
        let path = format!("/v1/rooms/42/reservations/{id}/{verdict}");
        operate(operators, Method::POST, &path, "").await.status.as_u16()
    };
    // Some pay, some give back, some do both at once, and some do nothing.
    let paid = match rng.u32(..4) {
        0 => settle("confirm").await == 200,
        1 => tokio::join!(settle("confirm"), settle("release")).0 == 200,
        2 => {
            assert_eq!(tokio::join!(settle("release"), settle("release")), (200, 200));
            false
        }
        _ => false,
    };
    if paid {
        life.confirmed.insert(id.to_owned());
    }
}

/// One moment of the store: time, called, stock, and who is where.
#[derive(Debug, Default)]
struct Moment {
    at: (u64, u64),
    stock: [u64; 4],
    line: BTreeMap<String, u64>,
    away: BTreeSet<String>,
    let_in: BTreeSet<String>,
}

const LOOK: &str = r"
local t = redis.call('TIME')
local r = redis.call('HMGET', '{wg:42}:room', 'called_total', 'free', 'held', 'sold', 'stock')
local function all(name, ...) return redis.call('ZRANGE', '{wg:42}:' .. name, 0, -1, ...) end
return {string.format('%.0f', t[1] * 1000 + math.floor(t[2] / 1000)), r, all('line', 'WITHSCORES'), all('away'), all('passed'),
  all('called'), all('sessions'), all('gone')}
";

type Looked = (
    u64,
    Vec<u64>,
    Vec<String>,
    Vec<String>,
    Vec<String>,
    Vec<String>,
    Vec<String>,
    Vec<String>,
);

impl Moment {
    fn read((now_ms, numbers, line, away, passed, called, sessions, gone): Looked) -> Self {
        let line: BTreeMap<String, u64> = line.chunks(2).map(|pair| (pair[0].clone(), pair[1].parse().unwrap())).collect();
        let all: Vec<&String> = line.keys().chain(&passed).chain(&called).chain(&sessions).chain(&gone).collect();
        let different: BTreeSet<&&String> = all.iter().collect();
        assert_eq!(all.len(), different.len(), "somebody is in two places at once");
        let stock = [numbers[1], numbers[2], numbers[3], numbers[4]];
        assert_eq!(stock[0] + stock[1] + stock[2], stock[3], "free, held and sold make the stock");
        Self {
            at: (now_ms, numbers[0]),
            stock,
            line,
            away: away.into_iter().collect(),
            let_in: called.into_iter().chain(sessions).collect(),
        }
    }
}

/// Looks until told to stop, and says all moments.
async fn look(redis: &Redis, mut stop: watch::Receiver<bool>) -> Vec<Moment> {
    let client = redis::Client::open(redis.url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection_with_config(&patient()).await.unwrap();
    let mut moments = Vec::new();
    while !*stop.borrow_and_update() {
        let looked = redis::cmd("EVAL").arg(LOOK).arg(0).query_async(&mut connection).await;
        moments.push(Moment::read(looked.unwrap()));
        let _changed = timeout(Duration::from_millis(5), stop.changed()).await;
    }
    moments
}

/// Nobody was called while somebody steady with a better place waited on.
fn assert_order(moments: &[Moment], steady: &BTreeSet<String>) {
    let mut places: BTreeMap<&String, u64> = BTreeMap::new();
    for pair in moments.windows(2) {
        let [before, after] = pair else { continue };
        places.extend(before.line.iter().map(|(ticket, place)| (ticket, *place)));
        let called = after.let_in.difference(&before.let_in);
        let Some(last) = called.filter_map(|ticket| places.get(ticket)).max() else {
            continue;
        };
        for (ticket, place) in &after.line {
            let waited = before.line.contains_key(ticket) && !before.away.contains(ticket) && !after.away.contains(ticket);
            assert!(
                !(waited && steady.contains(ticket) && place < last),
                "{last} was called before {ticket} at {place}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_people_do_the_promises_hold() {
    let seed = fastrand::u64(..);
    #[allow(clippy::print_stdout, reason = "shown when the test fails, to look at the same crowd again")]
    {
        println!("the crowd's seed is {seed}");
    }
    let mut crew = Crew::of(ROOM).await;
    crew.turn_ttl = Some(Duration::from_secs(3));
    let gateways = [crew.gateway().await, crew.gateway().await];
    let public = gateways.each_ref().map(|gateway| gateway.public);
    let mut rng = Rng::with_seed(seed);
    let (stop, stopping) = watch::channel(false);
    let crowd = async {
        let people: Vec<_> = (0..200)
            .map(|number| {
                let (rng, operators) = (rng.fork(), gateways[number % 2].operators);
                tokio::spawn(timeout(Duration::from_secs(60), live(rng, public, operators)))
            })
            .collect();
        let lives: Vec<Life> = join_all(people)
            .await
            .into_iter()
            .map(|life| life.expect("a life without a broken promise").expect("a life that ends"))
            .collect();
        within("holds end", async || crew.stock().await[1] == 0).await;
        stop.send_replace(true);
        lives
    };
    let (lives, moments) = tokio::join!(crowd, look(&crew.redis, stopping));

    let samples: Vec<(u64, u64)> = moments.iter().map(|moment| moment.at).collect();
    Checker::of(samples).assert_rate(RATE, RATE);
    let steady = lives.iter().filter(|life| life.steady).map(|life| life.ticket.clone()).collect();
    assert_order(&moments, &steady);
    let tickets: BTreeSet<&String> = lives.iter().map(|life| &life.ticket).collect();
    assert_eq!(tickets.len(), 200, "everybody is somebody else");
    assert!(crew.number("joined_total").await <= 200, "nobody joined twice");
    assert!(crew.number("called_total").await <= 200, "nobody was called twice");
    let confirmed = lives.iter().map(|life| life.confirmed.len() as u64).sum();
    assert_eq!(crew.stock().await, [STOCK - confirmed, 0, confirmed, STOCK]);
    assert!(
        moments.iter().any(|moment| moment.stock[1] > 0) && confirmed > 0,
        "something was sold"
    );
}
