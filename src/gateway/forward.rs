//! On to the backend, with our own headers.

use std::sync::Arc;

use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{Request, Response};

use super::{Arrival, Gateway};
use crate::body::Body;
use crate::fault::Fault;
use crate::token::Pass;
use crate::upstream::{Group, Outgoing};
use crate::waiting::hall::{ADMISSION, Hall};

/// Which room let the visitor in.
const ROOM: HeaderName = HeaderName::from_static("waitgate-room");
/// Whom: the shop's own user, or the ticket where the room reads no login.
pub(super) const USER: HeaderName = HeaderName::from_static("waitgate-user");

impl Gateway {
    /// Forwards a request; for an admitted visitor with the room, the user and the admission's token, which the backend can check by the JWKS.
    pub(super) async fn forward(
        &self,
        to: &Group,
        admitted: Option<(&Arc<Hall>, &Pass)>,
        arrival: Box<Arrival>,
    ) -> Result<Response<Body>, Fault> {
        let mut added = HeaderMap::new();
        if let Some((hall, pass)) = admitted {
            identify(hall, pass, &mut added);
        }
        let outcome = self.send(to, added, arrival).await;
        let said = outcome.as_ref().map_or_else(Fault::code, |_| "answered");
        match admitted {
            Some((hall, _)) => hall.metrics.forwarded(said),
            None => self.elsewhere.forwarded(said),
        }
        outcome
    }

    /// Sends a request with these headers on it.
    pub(super) async fn send(&self, to: &Group, added: HeaderMap, arrival: Box<Arrival>) -> Result<Response<Body>, Fault> {
        let outgoing = Outgoing {
            to,
            client: arrival.address.ip,
            peer: arrival.peer,
            scheme: if arrival.address.https { "https" } else { "http" },
            trusted_peer: arrival.address.trusted_peer,
            added,
            cookie_prefixes: &self.cookie_prefixes,
            path_and_query: None,
        };
        self.upstreams
            .forward(outgoing, Request::from_parts(arrival.head, arrival.body))
            .await
    }
}

/// Says who was let in, and where.
pub(super) fn identify(hall: &Hall, pass: &Pass, added: &mut HeaderMap) {
    for (name, value) in [(ROOM, hall.room.id.as_str()), (USER, pass.admission.user.as_str())] {
        if let Ok(value) = HeaderValue::from_str(value) {
            added.insert(name, value);
        }
    }
    added.insert(ADMISSION, pass.token.clone());
}
