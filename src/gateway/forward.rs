//! On to the backend, with our own headers.

use std::sync::{Arc, LazyLock, OnceLock};

use http::{HeaderMap, HeaderValue, Response};

use super::{Arrival, Gateway};
use crate::access::trace;
use crate::body::Body;
use crate::clock::{Clock, millis};
use crate::fault::Fault;
use crate::telemetry::ANSWERED;
use crate::token::Pass;
use crate::upstream::{Group, Outgoing};
use crate::waiting::hall::Hall;

/// Nothing of ours.
static NOTHING: LazyLock<HeaderMap> = LazyLock::new(HeaderMap::new);

impl Gateway {
    /// Forwards a request; for an admitted visitor with the room, the user and the admission's token, which the backend can check by the JWKS.
    pub(super) async fn forward(
        &self,
        to: &Group,
        admitted: Option<(&Arc<Hall>, &Pass)>,
        arrival: Box<Arrival>,
    ) -> Result<Response<Body>, Fault> {
        let added = admitted.map_or_else(|| &*NOTHING, |(_, pass)| &pass.told);
        let outcome = self.send(to, added, arrival).await;
        let said = outcome.as_ref().map_or_else(Fault::code, |_| ANSWERED);
        match admitted {
            Some((hall, _)) => hall.metrics.forwarded(said),
            None => self.elsewhere.forwarded(said),
        }
        outcome
    }

    /// Sends a request with these headers on it.
    pub(super) async fn send(&self, to: &Group, added: &HeaderMap, mut arrival: Box<Arrival>) -> Result<Response<Body>, Fault> {
        let id = match &arrival.note {
            Some(note) => HeaderValue::try_from(note.id()).unwrap_or(HeaderValue::from_static("-")),
            None => trace::request_id(&arrival.head.headers, arrival.address.trusted_peer),
        };
        trace::tidy(&mut arrival.head.headers);
        arrival.head.headers.insert(trace::REQUEST_ID, id.clone());
        let served_by = OnceLock::new();
        let outgoing = Outgoing {
            to,
            client: arrival.address.ip,
            peer: arrival.peer,
            scheme: if arrival.address.https { "https" } else { "http" },
            believed: arrival.address.trusted_peer.then_some(self.client.forwarded_header),
            added,
            cookie_prefixes: &self.cookie_prefixes,
            served_by: arrival.note.is_some().then_some(&served_by),
            path_and_query: None,
        };
        let note = arrival.note.take();
        let began = note.is_some().then(Clock::instant);
        let body = std::mem::replace(&mut arrival.body, Body::empty());
        let outcome = self.upstreams.forward(&outgoing, &mut arrival.head, body).await;
        if let (Some(note), Some(began)) = (note, began) {
            note.forwarded(served_by.get().map_or("", String::as_str), millis(began.elapsed()));
        }
        outcome.map(|mut response| {
            response.headers_mut().insert(trace::REQUEST_ID, id);
            response
        })
    }
}
