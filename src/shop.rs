//! The demo's sample shop: a page, an order, a till. It is what a shop behind waitgate has to do, and no more.
//!
//! It believes nothing that does not come through the gateway: a request without the visitor's name, or whose admission cannot be verified with
//! the gateway's public keys, is counted and refused. The gateway says who holds what; the shop says, over the operators' API, who has paid.
//!
//! Routes: `GET /sale` the page · `POST /sale/claim` the order, once a phone is held · `POST /sale/pay` and `POST /sale/cancel` the till ·
//! `GET /stats` its own counts, for the demo.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::{Deserialize, Serialize};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

pub(crate) mod ask;
mod doorman;
mod orders;
mod pages;

use doorman::Doorman;
use orders::{Orders, Payment};

/// The room that guards the sale.
pub const ROOM: &str = "42";

/// What the shop is told.
#[derive(Clone, Debug, clap::Args)]
pub struct ShopOptions {
    /// Address to listen on; port 0 is any.
    #[arg(long, default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
    /// The gateway's public address, where its keys are.
    #[arg(long)]
    pub gateway: Uri,
    /// The gateway's operators' API.
    #[arg(long)]
    pub ops: Uri,
}

/// The first line the shop says.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Opened {
    /// Where it listens.
    pub listening: SocketAddr,
}

/// What the shop counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShopCounts {
    /// Requests under `/sale`.
    pub requests: u64,
    /// Of these, without the name of an admitted visitor.
    pub unadmitted: u64,
    /// Of these, with an admission that the gateway's public keys do not verify, or of another visitor.
    pub unverified: u64,
    /// Claims that arrived.
    pub claims: u64,
    /// Claims without a reservation.
    pub claims_without_reservation: u64,
    /// Orders paid and confirmed.
    pub paid: u64,
    /// Orders paid too late, and paid back.
    pub refunded: u64,
    /// Orders given back.
    pub cancelled: u64,
    /// The operators' API did not answer as it should.
    pub trouble: u64,
}

/// The gateway's headers that the shop reads.
const USER: HeaderName = HeaderName::from_static("waitgate-user");
const ADMISSION: HeaderName = HeaderName::from_static("waitgate-admission");
const RESERVATION: HeaderName = HeaderName::from_static("waitgate-reservation");
const UNITS: HeaderName = HeaderName::from_static("waitgate-units");
const EXPIRES: HeaderName = HeaderName::from_static("waitgate-expires");

type Answer = Response<Full<Bytes>>;

struct Shop {
    doorman: Doorman,
    orders: Orders,
}

/// Runs the shop until standard input is closed.
pub async fn run(options: ShopOptions) -> ExitCode {
    let listener = match TcpListener::bind(options.listen).await {
        Ok(listener) => listener,
        Err(failed) => return complain(&format!("the shop cannot listen on {}: {failed}", options.listen)),
    };
    let opened = listener.local_addr().map(|listening| Opened { listening });
    if let Err(failed) = opened.and_then(|opened| say(&opened)) {
        return complain(&format!("the shop cannot say where it listens: {failed}"));
    }
    let stop = CancellationToken::new();
    stop_with_input(stop.clone());
    let shop = Arc::new(Shop {
        doorman: Doorman::new(&options.gateway),
        orders: Orders::new(&options.ops),
    });
    loop {
        tokio::select! {
            () = stop.cancelled() => return ExitCode::SUCCESS,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => { tokio::spawn(serve(Arc::clone(&shop), stream)); }
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            },
        }
    }
}

/// Cancels when standard input is closed: that is how the demo stops its processes, and how they notice that it is gone.
pub(crate) fn stop_with_input(stop: CancellationToken) {
    std::thread::spawn(move || {
        let mut nothing = [0_u8; 64];
        while matches!(std::io::Read::read(&mut std::io::stdin(), &mut nothing), Ok(1..)) {}
        stop.cancel();
    });
}

fn complain(what: &str) -> ExitCode {
    let _ = std::io::Write::write_all(&mut std::io::stderr(), format!("{what}\n").as_bytes());
    ExitCode::FAILURE
}

fn say(opened: &Opened) -> std::io::Result<()> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, opened)?;
    out.write_all(b"\n")?;
    out.flush()
}

async fn serve(shop: Arc<Shop>, stream: TcpStream) {
    let service = service_fn(move |request| {
        let shop = Arc::clone(&shop);
        async move { Ok::<_, Infallible>(shop.answer(request).await) }
    });
    // What breaks a connection here is seen by the gateway.
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

impl Shop {
    async fn answer(&self, request: Request<Incoming>) -> Answer {
        let path = request.uri().path();
        if path == "/stats" && request.method() == Method::GET {
            return json(StatusCode::OK, &self.orders.counts());
        }
        if path != "/sale" && !path.starts_with("/sale/") {
            return text(StatusCode::NOT_FOUND, "There is nothing here. The sale is at /sale.");
        }
        self.orders.count(|counts| counts.requests += 1);
        let Some(user) = named(request.headers(), &USER) else {
            self.orders.count(|counts| counts.unadmitted += 1);
            return text(StatusCode::FORBIDDEN, "Nobody comes in here but through the waiting room.");
        };
        let admission = named(request.headers(), &ADMISSION).unwrap_or_default();
        if let Err(why) = self.doorman.verify(&admission, &user).await {
            self.orders.count(|counts| counts.unverified += 1);
            return text(StatusCode::FORBIDDEN, &format!("This admission is not good here: {why}."));
        }
        match (request.method().clone(), request.uri().path()) {
            (Method::GET | Method::HEAD, "/sale") => page(StatusCode::OK, "sale", pages::sale(&user, request.uri().query())),
            (Method::POST, "/sale/claim") => self.order(&user, &request),
            (Method::POST, "/sale/pay") => self.settle(&user, request, true).await,
            (Method::POST, "/sale/cancel") => self.settle(&user, request, false).await,
            _ => text(StatusCode::NOT_FOUND, "There is nothing here. The sale is at /sale."),
        }
    }

    /// A phone is held for this visitor: the order is open.
    fn order(&self, user: &str, request: &Request<Incoming>) -> Answer {
        self.orders.count(|counts| counts.claims += 1);
        let headers = request.headers();
        let Some(reservation) = named(headers, &RESERVATION) else {
            self.orders.count(|counts| counts.claims_without_reservation += 1);
            return text(StatusCode::FORBIDDEN, "An order needs a reservation.");
        };
        self.orders.open(&reservation, user);
        let units = named(headers, &UNITS).unwrap_or_else(|| "1".to_owned());
        let expires: u64 = named(headers, &EXPIRES).and_then(|text| text.parse().ok()).unwrap_or(0);
        if wants_html(headers) {
            return page(StatusCode::OK, "order", pages::order(&reservation, &units, expires));
        }
        json(
            StatusCode::OK,
            &serde_json::json!({"reservation": reservation, "units": units, "pay_before_s": expires}),
        )
    }

    /// Pays for an order, or gives it back.
    async fn settle(&self, user: &str, request: Request<Incoming>, pay: bool) -> Answer {
        let html = wants_html(request.headers());
        let Some(reservation) = reservation_of(request).await else {
            return text(StatusCode::BAD_REQUEST, "Which order?");
        };
        if !self.orders.belongs_to(&reservation, user) {
            return text(StatusCode::NOT_FOUND, "There is no such order of yours.");
        }
        let (status, payment) = match self.orders.settle(&reservation, pay).await {
            Ok(payment @ (Payment::Paid | Payment::Cancelled)) => (StatusCode::OK, payment),
            Ok(payment) => (StatusCode::CONFLICT, payment),
            Err(why) => {
                self.orders.count(|counts| counts.trouble += 1);
                complain(&format!("the till: {why}"));
                return text(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "The till does not work just now. Please try again.",
                );
            }
        };
        if html {
            return page(status, "paid", pages::settled(payment));
        }
        json(status, &serde_json::json!({"reservation": reservation, "state": payment}))
    }
}

/// A header's text, where it is one and not empty.
fn named(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    let text = headers.get(name)?.to_str().ok()?;
    (!text.is_empty()).then(|| text.to_owned())
}

/// Whether the answer is for a person's eyes.
fn wants_html(headers: &HeaderMap) -> bool {
    headers
        .get(ACCEPT)
        .and_then(|accept| accept.to_str().ok())
        .is_some_and(|accept| accept.contains("text/html"))
}

/// The form field `reservation`.
async fn reservation_of(request: Request<Incoming>) -> Option<String> {
    let body = Limited::new(request.into_body(), 4096).collect().await.ok()?.to_bytes();
    let text = std::str::from_utf8(&body).ok()?;
    let value = text.split('&').find_map(|pair| pair.strip_prefix("reservation="))?;
    let plain = value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    (plain && !value.is_empty()).then(|| value.to_owned())
}

fn answer(status: StatusCode, content_type: &'static str, body: Vec<u8>) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from(body)));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

fn page(status: StatusCode, which: &'static str, html: String) -> Answer {
    let mut answer = answer(status, "text/html; charset=utf-8", html.into_bytes());
    answer.headers_mut().insert("shop-page", HeaderValue::from_static(which));
    answer
}

fn text(status: StatusCode, words: &str) -> Answer {
    answer(status, "text/plain; charset=utf-8", format!("{words}\n").into_bytes())
}

fn json(status: StatusCode, value: &impl Serialize) -> Answer {
    answer(status, "application/json", serde_json::to_vec(value).unwrap_or_default())
}
