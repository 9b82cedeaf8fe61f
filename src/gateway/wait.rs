//! Join the line, or go on waiting in it: a page for a person, a problem for a script.
//!
//! The first answer hands out a ticket without a place; the place is given when the ticket comes back, so that whoever keeps no cookie costs the
//! store nothing and is no ghost in the line. Only a person's GET joins or enters: a picture, a prefetch or a probe does neither.

use std::sync::Arc;

use http::header::RETRY_AFTER;
use http::request::Parts;
use http::{Method, Response, StatusCode};

use super::refuse::Refusal;
use super::{Arrival, Gateway, OnClaim, target};
use crate::body::Body;
use crate::clock::millis;
use crate::config::OnStoreLoss;
use crate::fault::Fault;
use crate::queue::Stood;
use crate::response::pages::WaitingPage;
use crate::response::problem::Problem;
use crate::response::view::View;
use crate::response::{self, Reader};
use crate::store::scripts::{Knock, Redeemed, Standing};
use crate::token::keys::random_id;
use crate::token::{Pass, Ticket};
use crate::waiting::hall::{FirstPage, Hall, House, Presented};
use crate::waiting::sight::Sight;
use crate::waiting::{here, page_of, place_of, stand, view};

/// How long the page of whoever has no place yet is good for all who come.
const FIRST_PAGE_MS: u64 = 250;

impl Gateway {
    pub(super) async fn wait(
        &self,
        hall: &Arc<Hall>,
        presented: Presented,
        on_claim: OnClaim,
        arrival: Box<Arrival>,
    ) -> Result<Response<Body>, Fault> {
        let refusal = Refusal::of(&arrival.head);
        let method = &arrival.head.method;
        let ahead_of_need = arrival.head.headers.contains_key("sec-purpose") || arrival.head.headers.contains_key("purpose");
        if refusal.reader == Reader::Script || ahead_of_need || *method == Method::HEAD {
            return Ok(self.must_wait(hall, &presented, &arrival.head));
        }
        if *method != Method::GET {
            // A form was posted: nothing of it is kept or repeated. The person goes on with a page.
            let to = match on_claim {
                OnClaim::Yes => hall.settings.paths.first().map_or("/", String::as_str),
                OnClaim::No => target(&arrival.head),
            };
            return Ok(response::see_other(&response::local(to)));
        }
        let user = presented.user.as_deref();
        match presented.ticket {
            Some(ticket) => self.come_back(hall, (ticket, user), arrival, &refusal).await,
            None => self.come_first(hall, user, arrival, &refusal).await,
        }
    }

    /// The first time here, or without a cookie: at once if nobody waits, else a ticket and the page.
    async fn come_first(
        &self,
        hall: &Arc<Hall>,
        user: Option<&str>,
        arrival: Box<Arrival>,
        refusal: &Refusal,
    ) -> Result<Response<Body>, Fault> {
        let ticket = hall.new_ticket(&self.house, user);
        if let Some(pass) = self.open_door(hall, &ticket, user)? {
            return self.let_in(hall, &ticket, pass, arrival).await;
        }
        let live = hall.room.live().clone();
        // A login's ticket is always the same, so even its first visit may find a place: it is looked up like any that comes back.
        let knock = if user.is_some() {
            Some(Knock::Join)
        } else {
            live.at_once.then_some(Knock::AtOnce)
        };
        let stood = match knock {
            Some(knock) if live.store_up => stand(hall, &ticket, knock).await,
            _ => None,
        };
        if let Some(until_ms) = self.admitted(hall, &ticket, stood).await {
            let pass = hall.let_in(&self.house, &ticket.id, user, until_ms)?;
            return self.let_in(hall, &ticket, pass, arrival).await;
        }
        let cookieless = came_from_itself(&arrival.head);
        let (epoch, place) = place_of(stood).unwrap_or((0, 0));
        if place > 0 {
            here(hall, &ticket.id, place); // before the number, so that it is remembered
        }
        let known = stood.filter(|stood| stood.standing != Standing::MustWait);
        let response = match known {
            None if !cookieless => first_page(&self.house, hall, refusal),
            None => {
                let shown = Sight::of(&hall.room).waiting(&hall.line, None);
                waiting_page(&self.house, hall, refusal, &shown, (false, true))
            }
            known => {
                let shown = view(hall, &ticket, known);
                waiting_page(&self.house, hall, refusal, &shown, (place_of(known).is_some(), cookieless))
            }
        };
        let (mut head, body) = response.into_parts();
        hall.set_ticket(&self.house, &Ticket { epoch, place, ..ticket }, &mut head);
        Ok(Response::from_parts(head, body))
    }

    /// With a ticket: whoever was called goes in, the others see where they stand.
    async fn come_back(
        &self,
        hall: &Arc<Hall>,
        (ticket, user): (Ticket, Option<&str>),
        arrival: Box<Arrival>,
        refusal: &Refusal,
    ) -> Result<Response<Body>, Fault> {
        if let Some(pass) = self.open_door(hall, &ticket, user)? {
            return self.let_in(hall, &ticket, pass, arrival).await;
        }
        let stood = stand(hall, &ticket, Knock::Join).await;
        if let Some(until_ms) = self.admitted(hall, &ticket, stood).await {
            let pass = hall.let_in(&self.house, &ticket.id, user, until_ms)?;
            return self.let_in(hall, &ticket, pass, arrival).await;
        }
        let place = place_of(stood);
        here(hall, &ticket.id, place.map_or(ticket.place, |(_, place)| place)); // before the number, so that it is remembered
        let shown = view(hall, &ticket, stood);
        let (mut head, body) = waiting_page(&self.house, hall, refusal, &shown, (place.is_some(), false)).into_parts();
        if let Some(place) = place {
            hall.set_place(&self.house, &ticket, place, &mut head);
        }
        Ok(Response::from_parts(head, body))
    }

    /// Until when this ticket is let in, if it is: a turn is taken here and now, because a person came for it. Should the store not answer, the
    /// page says that it is the visitor's turn, and tries again.
    async fn admitted(&self, hall: &Hall, ticket: &Ticket, stood: Option<Stood>) -> Option<u64> {
        match stood?.standing {
            Standing::Admitted { until_ms } => Some(until_ms),
            Standing::Called { .. } => match hall.line.redeem(&ticket.id).await {
                Ok(Redeemed::Admitted { until_ms }) => Some(until_ms),
                Ok(Redeemed::Waiting | Redeemed::Gone(_) | Redeemed::Unknown) => None,
                Err(fault) => {
                    tracing::warn!(room = hall.room.id, %fault, "a turn could not be taken");
                    None
                }
            },
            Standing::Waiting { .. } | Standing::Gone(_) | Standing::MustWait => None,
        }
    }

    /// With the store lost, a room may be set to let people pass at its rate. Never a room with stock.
    fn open_door(&self, hall: &Hall, ticket: &Ticket, user: Option<&str>) -> Result<Option<Pass>, Fault> {
        let settings = &hall.settings;
        let lost = !hall.room.live().store_up && settings.on_store_loss == OnStoreLoss::Open;
        if !lost || hall.open_door.as_ref().is_none_or(|door| !door.lets_pass(hall.peers.count())) {
            return Ok(None);
        }
        let until_ms = hall.room.now_ms() + millis(settings.admission_ttl);
        let id = if ticket.id.is_empty() { random_id() } else { ticket.id.clone() };
        hall.let_in(&self.house, &id, user, until_ms).map(Some)
    }

    /// In, with this very request: the page of the shop is the answer, and the cookies come with it.
    async fn let_in(&self, hall: &Arc<Hall>, ticket: &Ticket, pass: Pass, arrival: Box<Arrival>) -> Result<Response<Body>, Fault> {
        hall.feed.tell(&ticket.id, &Sight::of(&hall.room).admitted(pass.admission.until_ms));
        let answer = self.forward(self.group(hall)?, Some((hall, &pass)), arrival).await;
        // Whatever the shop answers, even nothing: the admission was given, and must not be lost with a bad answer.
        let response = match answer {
            Ok(response) => response,
            Err(fault) => {
                self.house.metrics.faulted(fault.code());
                Refusal::person().fault(&self.house, &fault)
            }
        };
        let (mut head, body) = response.into_parts();
        hall.set_ticket(&self.house, ticket, &mut head);
        hall.set_pass(&self.house, &pass, &mut head);
        Ok(Response::from_parts(head, body))
    }

    /// To a script: where to wait, and when to ask again.
    fn must_wait(&self, hall: &Hall, presented: &Presented, head: &Parts) -> Response<Body> {
        let sight = Sight::of(&hall.room);
        let place = presented.ticket.as_ref().map(|ticket| ticket.place).filter(|place| *place > 0);
        let mut view = sight.waiting(&hall.line, place);
        if let Some(ticket) = &presented.ticket {
            hall.feed.no_worse(&ticket.id, &mut view);
        }
        let page = hall.settings.paths.first().map_or("/", String::as_str);
        let retry_after_s = view.poll_after_s;
        let problem = Problem::new(
            StatusCode::TOO_MANY_REQUESTS,
            "waiting_room",
            "There is a line",
            "Wait at one of these addresses.",
        )
        .with("room", hall.room.id.as_str())
        .with("page_url", page)
        .with("status_url", format!("{}/status", hall.routes))
        .with("events_url", format!("{}/events", hall.routes))
        .with("enter_url", format!("{}/enter", hall.routes))
        .with("retry_after_s", retry_after_s)
        .with("view", serde_json::to_value(&view).unwrap_or_default())
        .header(RETRY_AFTER, retry_after_s);
        let (mut answered, body) = problem.into_response().into_parts();
        // A program gets its ticket here. A browser's script does not: pictures and scripts that load beside the page would each bring another.
        if presented.ticket.is_none() && !head.headers.contains_key("sec-fetch-mode") && head.method != Method::OPTIONS {
            hall.set_ticket(&self.house, &hall.new_ticket(&self.house, presented.user.as_deref()), &mut answered);
        }
        Response::from_parts(answered, body)
    }
}

/// Everything is sold. Whoever waits keeps the page, which will know when stock returns; everybody else gets a short answer, the same for all.
pub(super) fn sold_out(house: &House, hall: &Hall, presented: &Presented, refusal: &Refusal) -> Response<Body> {
    match (&presented.ticket, refusal.here()) {
        (Some(ticket), Some(_)) if ticket.place > 0 => {
            let view = Sight::of(&hall.room).waiting(&hall.line, Some(ticket.place));
            waiting_page(house, hall, refusal, &view, (true, false))
        }
        _ => refusal.sold_out(house, hall),
    }
}

/// The page of whoever has no place yet: the same for all who come within a moment, and so made once for all of them.
fn first_page(house: &House, hall: &Hall, refusal: &Refusal) -> Response<Body> {
    let language = refusal.language(house);
    let sight = Sight::of(&hall.room);
    let known = hall.first_pages.get(&language).map(|page| page.clone());
    let fresh = known.filter(|page| page.face == sight.face && sight.now_ms.abs_diff(page.made_ms) < FIRST_PAGE_MS);
    let html = match fresh {
        Some(page) => page.html,
        None => {
            let page = WaitingPage {
                room: &hall.room.id,
                routes: &hall.routes,
                view: &sight.waiting(&hall.line, None),
                // Empty leads back to the page itself: this one stands at many addresses.
                here: "",
                now_ms: sight.now_ms,
                has_place: false,
                cookieless: false,
            };
            let html = house.pages.waiting(language, &page);
            let (face, made_ms) = (sight.face, sight.now_ms);
            hall.first_pages.insert(
                language,
                FirstPage {
                    face,
                    made_ms,
                    html: html.clone(),
                },
            );
            html
        }
    };
    response::page(StatusCode::OK, html, &house.pages, language)
}

fn waiting_page(house: &House, hall: &Hall, refusal: &Refusal, view: &View, (has_place, cookieless): (bool, bool)) -> Response<Body> {
    let language = refusal.language(house);
    let page = WaitingPage {
        room: &hall.room.id,
        routes: &hall.routes,
        view,
        here: refusal.here().unwrap_or("/"),
        now_ms: hall.room.now_ms(),
        has_place,
        cookieless,
    };
    response::page(StatusCode::OK, house.pages.waiting(language, &page), &house.pages, language)
}

/// The page refreshed itself and came without the cookie it was given: cookies are not kept here.
fn came_from_itself(head: &Parts) -> bool {
    page_of(&head.headers).is_some_and(|page| page == target(head))
}
