//! What is decided about a request, and how its answer comes.
//!
//! Two kinds: what is answered from this process's own memory is answered within the call, without a future, a task or an allocation for it; what
//! asks somebody is boxed, so that a "no" does not carry the room that a claim would need.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Method, Response};

use crate::body::Body;
use crate::limit::Over;
use crate::token::Pass;
use crate::upstream::Group;
use crate::waiting::Route;
use crate::waiting::hall::{Hall, Presented};

/// What should happen to a request. Being turned away is not an error: it is the product working. What breaks is a [`crate::fault::Fault`].
#[derive(Debug)]
pub(super) enum Decision<'g> {
    /// Answered at once.
    Answer(Ready<'g>),
    /// Somebody else is asked: the store, a backend, the visitor's own body.
    Ask(Errand),
}

/// What is answered from memory.
#[derive(Debug)]
pub(super) enum Ready<'g> {
    /// Over a limit.
    Throttle(Option<&'g Arc<Hall>>, Over),
    /// Nothing is known under this host and path.
    NotFound,
    /// The public keys of admissions.
    Keys,
    /// A stream of events over a limit.
    ComeBack(&'g Arc<Hall>),
    /// The route is there, and wants another method.
    WrongMethod(&'g Arc<Hall>, Method),
    /// A script of a listed origin asks whether it may ask.
    Preflight(&'g Arc<Hall>, Response<Body>),
    /// All units are sold, and this visitor is not among the buyers.
    SoldOut(&'g Arc<Hall>, Presented),
    /// Past the closing time.
    Closed(&'g Arc<Hall>),
    /// The room is no longer configured.
    Gone(&'g Arc<Hall>, Route),
}

/// What takes time.
#[derive(Debug)]
pub(super) enum Errand {
    /// A call of a waiting page, or of a program that waits.
    Waiting(Arc<Hall>, Route, Presented),
    /// No room's business: to the backend as it is.
    Pass(Group),
    /// Admitted: to the backend.
    Forward(Arc<Hall>, Arc<Pass>),
    /// Admitted, and asks for units.
    Claim(Arc<Hall>, Arc<Pass>),
    /// Join the line, or go on waiting in it.
    Wait(Arc<Hall>, Presented, OnClaim),
}

/// Whether a request that must wait was sent to a claim route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnClaim {
    Yes,
    No,
}

impl<'g> From<Ready<'g>> for Decision<'g> {
    fn from(ready: Ready<'g>) -> Self {
        Self::Answer(ready)
    }
}

impl From<Errand> for Decision<'_> {
    fn from(errand: Errand) -> Self {
        Self::Ask(errand)
    }
}

impl<'g> Ready<'g> {
    pub(super) fn hall(&self) -> Option<&'g Arc<Hall>> {
        match self {
            Self::Throttle(hall, _) => *hall,
            Self::ComeBack(hall)
            | Self::WrongMethod(hall, _)
            | Self::Preflight(hall, _)
            | Self::SoldOut(hall, _)
            | Self::Closed(hall)
            | Self::Gone(hall, _) => Some(hall),
            Self::NotFound | Self::Keys => None,
        }
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Throttle(..) => "throttle",
            Self::NotFound => "not_found",
            Self::Keys => "keys",
            Self::ComeBack(_) => "come_back",
            Self::WrongMethod(..) => "wrong_method",
            Self::Preflight(..) => "preflight",
            Self::SoldOut(..) => "sold_out",
            Self::Closed(_) => "closed",
            Self::Gone(..) => "gone",
        }
    }
}

impl Errand {
    pub(super) fn hall(&self) -> Option<&Arc<Hall>> {
        match self {
            Self::Waiting(hall, ..) | Self::Forward(hall, _) | Self::Claim(hall, _) | Self::Wait(hall, ..) => Some(hall),
            Self::Pass(_) => None,
        }
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Waiting(..) => "waiting",
            Self::Pass(_) => "pass",
            Self::Forward(..) => "forward",
            Self::Claim(..) => "claim",
            Self::Wait(..) => "wait",
        }
    }
}

/// An answer that is there, or comes. Dropped before it has come, the request is given up.
pub enum Answering {
    /// It is there; taken once.
    Now(Option<Response<Body>>),
    /// It comes.
    Later(Pin<Box<dyn Future<Output = Response<Body>> + Send>>),
}

impl Answering {
    pub(super) fn now(response: Response<Body>) -> Self {
        Self::Now(Some(response))
    }

    pub(super) fn later(response: impl Future<Output = Response<Body>> + Send + 'static) -> Self {
        Self::Later(Box::pin(response))
    }
}

impl std::fmt::Debug for Answering {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Now(_) => "Now",
            Self::Later(_) => "Later",
        })
    }
}

impl Future for Answering {
    type Output = Response<Body>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Response<Body>> {
        match self.get_mut() {
            Self::Now(response) => response.take().map_or(Poll::Pending, Poll::Ready),
            Self::Later(response) => response.as_mut().poll(context),
        }
    }
}
