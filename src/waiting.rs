//! The routes under the prefix: how a visitor waits, enters and leaves.
//!
//! | route | answers |
//! |---|---|
//! | `GET /.waitgate/{room}/status` | the [`View`] as JSON, for whoever polls |
//! | `GET /.waitgate/{room}/events` | the same as a stream of events |
//! | `GET /.waitgate/{room}/ws` | the same over a WebSocket |
//! | `POST /.waitgate/{room}/enter` | redeems a turn: 200 and the admission's cookie, 409 `not_called`, 410 when the turn is gone |
//! | `POST /.waitgate/{room}/leave` | gives the place up |
//! | `POST /.waitgate/{room}/join` | starts again at the end, after the place was lost |
//! | `GET /.well-known/waitgate/jwks.json` | the public keys of admissions |
//!
//! Forms of the page work without a script: a person is sent on with 303 to the form's `next`, which stays on this origin.
//!
//! [`View`]: crate::response::view::View

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::{Method, Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use hyper::upgrade::OnUpgrade;
use serde_json::json;

use crate::body::Body;
use crate::fault::{ClientFault, Fault};
use crate::queue::Stood;
use crate::response::problem::Problem;
use crate::response::view::View;
use crate::response::{self, Reader};
use crate::room::Door;
use crate::store::scripts::{Fate, Joining, Knock, Place, Presence, Redeemed, Standing};
use crate::token::Ticket;

pub mod hall;
pub mod live;
pub mod origin;
pub mod seat;
pub mod sight;
pub mod sse;
pub mod ws;

use hall::{Hall, House, Presented};
use seat::Message;
use sight::Sight;

/// Bytes of a form of ours at most, and how long it may take to come.
const MAX_FORM: usize = 8 * 1024;
const FORM_LIMIT: Duration = Duration::from_secs(5);

/// Whoever cannot be told a place for now asks again after so long.
const PUT_OFF_S: std::ops::RangeInclusive<u64> = 3..=10;

/// A route under a room's prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// The view, once.
    Status,
    /// The view, as events.
    Events,
    /// The view, over a WebSocket.
    Socket,
    /// Redeem a turn.
    Enter,
    /// Give the place up.
    Leave,
    /// Start again.
    Join,
}

impl Route {
    /// The route of this name, and the method it wants.
    #[must_use]
    pub fn named(name: &str) -> Option<(Self, Method)> {
        Some(match name {
            "status" => (Self::Status, Method::GET),
            "events" => (Self::Events, Method::GET),
            "ws" => (Self::Socket, Method::GET),
            "enter" => (Self::Enter, Method::POST),
            "leave" => (Self::Leave, Method::POST),
            "join" => (Self::Join, Method::POST),
            _ => return None,
        })
    }
}

/// A request to a waiting route: its head, who sent it, and its body.
#[derive(Debug)]
pub struct Asked {
    /// The head.
    pub head: Parts,
    /// What it presents.
    pub presented: Presented,
    /// The body.
    pub body: Body,
    /// The host it was sent to, with port.
    pub authority: String,
}

/// Answers a request to a waiting route.
///
/// # Errors
/// What broke, and whose fault it is.
pub async fn answer(house: &House, hall: &Arc<Hall>, route: Route, asked: Asked) -> Result<Response<Body>, Fault> {
    if let Some(refusal) = origin::refuse_foreign(&asked.head, route, &asked.authority, &hall.settings.origins) {
        return Ok(refusal);
    }
    let mut response = match route {
        Route::Status => status(house, hall, &asked.presented).await,
        Route::Events => {
            let heard_the_end = asked.head.headers.get("last-event-id").is_some_and(|id| id == sse::END);
            events(house, hall, &asked.presented, heard_the_end).await
        }
        Route::Socket => socket(house, hall, asked).await,
        Route::Enter => enter(house, hall, asked).await,
        Route::Leave => leave(house, hall, asked).await,
        Route::Join => join_again(house, hall, asked).await,
    }?;
    response
        .headers_mut()
        .entry(http::header::CACHE_CONTROL)
        .or_insert(http::HeaderValue::from_static("no-store"));
    Ok(response)
}

/// What a page that waits in a room that is gone is told; none: what everybody is told.
#[must_use]
pub fn gone(hall: &Hall, route: Route) -> Option<Response<Body>> {
    let view = Sight::of(&hall.room).closed();
    match route {
        Route::Status => Some(response::json(StatusCode::OK, &view)),
        Route::Events => Some(sse::stream(&Message::new(&view), None, None)),
        Route::Socket | Route::Enter | Route::Leave | Route::Join => None,
    }
}

/// A ticket that comes to the line.
#[must_use]
pub fn joining(ticket: &str, place: Place) -> Joining {
    Joining {
        ticket: ticket.to_owned(),
        place,
        knock: Knock::Join,
    }
}

/// Where a ticket stands now. None while the store cannot say.
pub async fn stand(hall: &Hall, ticket: &Ticket, knock: Knock) -> Option<Stood> {
    let closed = hall.room.door() == Door::Closed && ticket.place == 0;
    if closed {
        return None;
    }
    let joining = Joining {
        knock,
        ..joining(&ticket.id, ticket.place)
    };
    match hall.line.join(joining, ticket.arrived_ms).await {
        Ok(stood) => Some(stood),
        Err(fault) => {
            tracing::debug!(room = hall.room.id, %fault, "a ticket could not be looked up");
            None
        }
    }
}

/// The view of a ticket that stands like this, never worse than its own place says, nor than what this gateway told it before.
#[must_use]
pub fn view(hall: &Hall, ticket: &Ticket, stood: Option<Stood>) -> View {
    let sight = Sight::of(&hall.room);
    let mut view = match stood {
        Some(stood) => sight.standing(&hall.line, stood.standing),
        None => {
            let mut view = sight.waiting(&hall.line, (ticket.place > 0).then_some(ticket.place));
            view.delayed |= hall.room.door() != Door::Closed;
            if view.ahead.is_none() && view.delayed {
                // All who are told so at one moment must not come back at one moment.
                view.poll_after_s = fastrand::u64(PUT_OFF_S);
            }
            view
        }
    };
    hall.feed.no_worse(&ticket.id, &mut view);
    view
}

/// The place of somebody who waits, to be signed into the ticket.
#[must_use]
pub fn place_of(stood: Option<Stood>) -> Option<(u64, Place)> {
    match stood {
        Some(Stood {
            epoch,
            standing: Standing::Waiting { place, .. },
        }) => Some((epoch, place)),
        _ => None,
    }
}

/// Somebody asked and is here: whoever is given a place is also missed when gone. Where no more can be kept, the place is given all the same.
pub fn here(hall: &Hall, ticket: &str, place: Place) {
    if hall.feed.seen(ticket, place).is_err() {
        tracing::warn!(
            room = hall.room.id,
            "as many wait at this gateway as may: presence is not kept for more"
        );
    }
}

fn no_ticket() -> Response<Body> {
    Problem::new(
        StatusCode::FORBIDDEN,
        "no_ticket",
        "There is no ticket",
        "Load the page of the sale first, and keep the cookie it sets.",
    )
    .into_response()
}

fn full() -> Response<Body> {
    Problem::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "room_full",
        "This gateway keeps as many waiting as it may",
        "Ask again in a moment: the place is kept.",
    )
    .header(http::header::RETRY_AFTER, http::HeaderValue::from(fastrand::u64(5..15)))
    .into_response()
}

async fn status(house: &House, hall: &Hall, presented: &Presented) -> Result<Response<Body>, Fault> {
    if let Some(pass) = &presented.pass {
        let view = Sight::of(&hall.room).admitted(pass.admission.until_ms);
        return Ok(response::json(StatusCode::OK, &view));
    }
    let Some(ticket) = &presented.ticket else {
        return Ok(no_ticket());
    };
    let stood = stand(hall, ticket, Knock::Join).await;
    let place = place_of(stood);
    if hall.feed.seen(&ticket.id, place.map_or(ticket.place, |(_, place)| place)).is_err() {
        return Ok(full());
    }
    let shown = view(hall, ticket, stood);
    Ok(with_place(house, hall, ticket, stood, response::json(StatusCode::OK, &shown)))
}

fn with_place(house: &House, hall: &Hall, ticket: &Ticket, stood: Option<Stood>, response: Response<Body>) -> Response<Body> {
    let Some(place) = place_of(stood) else { return response };
    let (mut head, body) = response.into_parts();
    hall.set_place(house, ticket, place, &mut head);
    Response::from_parts(head, body)
}

fn is_final(view: &View) -> bool {
    use crate::response::view::State;
    matches!(view.state, State::Admitted | State::Gone | State::Closed)
}

async fn events(house: &House, hall: &Arc<Hall>, presented: &Presented, heard_the_end: bool) -> Result<Response<Body>, Fault> {
    let Some(ticket) = presented.ticket.as_ref().filter(|_| presented.pass.is_none()) else {
        return Ok(sse::nothing());
    };
    if house.stop.draining.is_cancelled() {
        return Ok(sse::come_back());
    }
    let stood = stand(hall, ticket, Knock::Join).await;
    let view = view(hall, ticket, stood);
    let message = Message::new(&view);
    if is_final(&view) {
        return Ok(if heard_the_end {
            sse::nothing()
        } else {
            sse::stream(&message, None, None)
        });
    }
    let Ok(taken) = hall.feed.take_seat(ticket, stood.map(|stood| stood.standing), &view) else {
        return Ok(sse::come_back());
    };
    let counted = hall.metrics.stream("sse");
    Ok(with_place(
        house,
        hall,
        ticket,
        stood,
        sse::stream(&message, Some(taken), Some(counted)),
    ))
}

async fn socket(house: &House, hall: &Arc<Hall>, mut asked: Asked) -> Result<Response<Body>, Fault> {
    let upgrade = asked.head.extensions.remove::<OnUpgrade>();
    let handshake = ws::handshake(asked.head.version, &asked.head.headers);
    let (Some(upgrade), Some(accept)) = (upgrade, handshake) else {
        let upgrade = http::HeaderValue::from_static("websocket");
        return Ok(Problem::new(
            StatusCode::UPGRADE_REQUIRED,
            "not_a_websocket",
            "This is a WebSocket",
            "Ask with a WebSocket handshake.",
        )
        .header(http::header::UPGRADE, upgrade)
        .into_response());
    };
    let Some(ticket) = asked.presented.ticket.filter(|_| asked.presented.pass.is_none()) else {
        return Ok(no_ticket());
    };
    if house.stop.draining.is_cancelled() {
        return Ok(full());
    }
    let stood = stand(hall, &ticket, Knock::Join).await;
    let view = view(hall, &ticket, stood);
    let taken = if is_final(&view) {
        None
    } else {
        match hall.feed.take_seat(&ticket, stood.map(|stood| stood.standing), &view) {
            Ok(taken) => Some(taken),
            Err(live::Full) => return Ok(full()),
        }
    };
    let Some(response) = ws::switch(&accept) else { return Ok(full()) };
    let counted = hall.metrics.stream("ws");
    let cut = house.stop.cut.clone();
    let ping_every = hall.settings.ping_every;
    house.stop.tasks.spawn(async move {
        // Pinned here, so that it is kept once and not in every future around it.
        let carried = pin!(ws::carry(upgrade, Message::new(&view), taken, ping_every));
        let _cut = cut.run_until_cancelled(carried).await;
        drop(counted);
    });
    Ok(with_place(house, hall, &ticket, stood, response))
}

async fn enter(house: &House, hall: &Arc<Hall>, asked: Asked) -> Result<Response<Body>, Fault> {
    let reader = response::reader(&asked.head.method, &asked.head.headers);
    let next = form_next(&asked.head, asked.body).await?;
    let Some(ticket) = asked.presented.ticket else {
        return Ok(no_ticket());
    };
    let redeemed = hall.line.redeem(&ticket.id).await?;
    if reader == Reader::Person && !matches!(redeemed, Redeemed::Admitted { .. }) {
        return Ok(response::see_other(&next));
    }
    let sight = Sight::of(&hall.room);
    match redeemed {
        Redeemed::Admitted { until_ms } => {
            let pass = hall.let_in(house, &ticket.id, asked.presented.user.as_deref(), until_ms)?;
            let response = match reader {
                Reader::Person => response::see_other(&next),
                Reader::Script => response::json(StatusCode::OK, &json!({"state": "admitted", "expires_at_ms": until_ms})),
            };
            let (mut head, body) = response.into_parts();
            hall.set_pass(house, &pass, &mut head);
            hall.feed.tell(&ticket.id, &sight.admitted(until_ms));
            Ok(Response::from_parts(head, body))
        }
        Redeemed::Waiting | Redeemed::Unknown => {
            hall.feed.unsettle(&ticket.id);
            let stood = stand(hall, &ticket, Knock::Join).await;
            if let Some((_, place)) = place_of(stood) {
                here(hall, &ticket.id, place);
            }
            let view = view(hall, &ticket, stood);
            let problem = Problem::new(
                StatusCode::CONFLICT,
                "not_called",
                "Not your turn yet",
                "The place is kept; wait for the turn.",
            );
            Ok(problem
                .with("view", serde_json::to_value(&view).unwrap_or_default())
                .into_response())
        }
        Redeemed::Gone(fate) => {
            hall.feed.tell(&ticket.id, &sight.gone(fate));
            let (code, detail) = match fate {
                Fate::Left => ("left", "The place was given up."),
                Fate::Lapsed => ("turn_lapsed", "The turn came and nobody took it in time."),
                Fate::Abandoned => ("abandoned", "The page was away for too long, and the place was given up."),
                Fate::Ended => ("session_ended", "The time in the shop is over."),
            };
            let problem = Problem::new(StatusCode::GONE, code, "The place is gone", detail);
            Ok(problem
                .with("view", serde_json::to_value(sight.gone(fate)).unwrap_or_default())
                .into_response())
        }
    }
}

async fn leave(house: &House, hall: &Arc<Hall>, asked: Asked) -> Result<Response<Body>, Fault> {
    let reader = response::reader(&asked.head.method, &asked.head.headers);
    let next = form_next(&asked.head, asked.body).await?;
    let Some(ticket) = asked.presented.ticket else {
        return Ok(no_ticket());
    };
    hall.line.depart(Presence::Leave(ticket.id.clone())).await?;
    let view = Sight::of(&hall.room).gone(Fate::Left);
    hall.feed.tell(&ticket.id, &view);
    if reader == Reader::Person {
        // The cookie stays: the page then says that the place was given up, and offers to start again.
        return Ok(response::see_other(&next));
    }
    let (mut head, body) = response::json(StatusCode::OK, &view).into_parts();
    let keeps_login = asked.presented.user.is_some();
    if !keeps_login {
        hall.clear_ticket(house, &mut head);
    }
    Ok(Response::from_parts(head, body))
}

async fn join_again(house: &House, hall: &Arc<Hall>, asked: Asked) -> Result<Response<Body>, Fault> {
    let reader = response::reader(&asked.head.method, &asked.head.headers);
    let next = form_next(&asked.head, asked.body).await?;
    let user = asked.presented.user.as_deref();
    // Whoever is still in line keeps the place: only a lost one is replaced.
    let ticket = asked.presented.ticket.unwrap_or_else(|| hall.new_ticket(house, user));
    let mut stood = stand(hall, &ticket, Knock::Join).await;
    let mut ticket = ticket;
    if matches!(
        stood,
        Some(Stood {
            standing: Standing::Gone(_),
            ..
        })
    ) {
        ticket = hall.new_ticket(house, user);
        stood = stand(hall, &ticket, Knock::Again).await;
    }
    if let Some((_, place)) = place_of(stood) {
        here(hall, &ticket.id, place);
    }
    let response = match reader {
        Reader::Person => response::see_other(&next),
        Reader::Script => response::json(StatusCode::OK, &view(hall, &ticket, stood)),
    };
    let (mut head, body) = response.into_parts();
    let (epoch, place) = place_of(stood).unwrap_or((ticket.epoch, ticket.place));
    hall.set_ticket(house, &Ticket { epoch, place, ..ticket }, &mut head);
    Ok(Response::from_parts(head, body))
}

/// Where a form wants to go on: what it says, else the page it stands on. `/` where neither is known, or names another origin.
async fn form_next(head: &Parts, body: Body) -> Result<String, Fault> {
    let collected = tokio::time::timeout(FORM_LIMIT, Limited::new(body, MAX_FORM).collect()).await;
    let bytes = match collected {
        Ok(Ok(collected)) => collected.to_bytes(),
        Ok(Err(_)) => return Err(ClientFault::BodyTooLarge { limit: MAX_FORM as u64 }.into()),
        Err(_) => return Err(ClientFault::BodyTimeout.into()),
    };
    let text = std::str::from_utf8(&bytes).unwrap_or_default();
    let said = text.split('&').find_map(|pair| pair.strip_prefix("next=")).map(form_decode);
    let next = said
        .filter(|next| !next.is_empty())
        .or_else(|| page_of(&head.headers).map(str::to_owned));
    Ok(response::local(next.as_deref().unwrap_or_default()).into_owned())
}

/// Path and query of the page that a request came from. The origin is not looked at: what is taken from it leads nowhere else.
#[must_use]
pub fn page_of(headers: &http::HeaderMap) -> Option<&str> {
    let from = headers.get(http::header::REFERER)?.to_str().ok()?;
    let (_, rest) = from.split_once("://")?;
    rest.find('/').map(|at| &rest[at..])
}

/// A value of a form, as browsers encode it.
fn form_decode(value: &str) -> String {
    let bytes = value.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut index = 0;
    while let Some(&byte) = bytes.get(index) {
        let hex = value
            .get(index + 1..index + 3)
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match (byte, hex) {
            (b'%', Some(plain)) => {
                decoded.push(plain);
                index += 3;
                continue;
            }
            (b'+', _) => decoded.push(b' '),
            _ => decoded.push(byte),
        }
        index += 1;
    }
    String::from_utf8_lossy(&decoded).into_owned()
}
