//! What broke, and whose fault it is. To be turned away is not a fault: that is `gateway::Decision`.
//!
//! A fault keeps its cause, becomes a status in one exhaustive match, and is logged once, where it stops travelling.

use http::StatusCode;

/// Something broke on the way of a request.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The client sent something that cannot be served.
    #[error("{0}")]
    Client(#[from] ClientFault),
    /// The backend did not answer as it should.
    #[error("{0}")]
    Upstream(#[from] UpstreamFault),
    /// The store did not answer as it should.
    #[error("{0}")]
    Store(#[from] StoreFault),
    /// Our own mistake.
    #[error("our own mistake: {0}")]
    Us(String),
}

/// What a client may get wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClientFault {
    /// A request that two readers could read differently, or that cannot be read.
    #[error("{0}")]
    Malformed(&'static str),
    /// The body is longer than allowed.
    #[error("the request body is longer than {limit} bytes")]
    BodyTooLarge {
        /// Bytes allowed.
        limit: u64,
    },
    /// The body stopped coming.
    #[error("the request body stopped coming")]
    BodyTimeout,
    /// The client went away while sending.
    #[error("the client went away")]
    Gone,
}

/// What a backend may get wrong.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamFault {
    /// No connection: nothing was sent.
    #[error("no connection to the backend")]
    Connect(#[source] BoxError),
    /// No answer in time: the request may have run.
    #[error("the backend did not answer in time")]
    Timeout,
    /// Too many requests in flight to it, and no place became free in time: nothing was sent.
    #[error("the backend is busy")]
    Busy,
    /// The connection broke in mid-request: the request may have run.
    #[error("the connection to the backend broke")]
    Broken(#[source] BoxError),
    /// An answer that cannot be passed on.
    #[error("the backend's answer cannot be passed on: {0}")]
    Malformed(&'static str),
}

/// What the store may get wrong.
#[derive(Debug, thiserror::Error)]
pub enum StoreFault {
    /// There is no connection: nothing was sent.
    #[error("the store cannot be reached")]
    Away,
    /// Sent, but no answer: it may have run. The same operation may be asked again.
    #[error("the store did not answer: {0}")]
    Unknown(#[source] redis::RedisError),
    /// The store refused it: nothing was done.
    #[error("the store refused: {0}")]
    Refused(#[source] redis::RedisError),
    /// The store answered something that no script of ours says.
    #[error("the store answered what {script} never says: {answer}")]
    Nonsense {
        /// The script that was called.
        script: &'static str,
        /// What came back, shortened.
        answer: String,
    },
    /// Done, but too few replicas have it yet: it may be lost with the primary. The same operation may be asked again.
    #[error("{had} of {wanted} replicas have it")]
    Copies {
        /// How many must have it.
        wanted: u64,
        /// How many do.
        had: u64,
    },
    /// Too much is waiting for the store already.
    #[error("too much is waiting for the store")]
    Full,
}

/// Any cause.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

impl Fault {
    /// The status a client sees.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Client(ClientFault::Malformed(_) | ClientFault::Gone) => StatusCode::BAD_REQUEST,
            Self::Client(ClientFault::BodyTooLarge { .. }) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Client(ClientFault::BodyTimeout) => StatusCode::REQUEST_TIMEOUT,
            Self::Upstream(UpstreamFault::Timeout) => StatusCode::GATEWAY_TIMEOUT,
            Self::Upstream(UpstreamFault::Busy) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Upstream(UpstreamFault::Connect(_) | UpstreamFault::Broken(_) | UpstreamFault::Malformed(_)) => StatusCode::BAD_GATEWAY,
            Self::Store(
                StoreFault::Away
                | StoreFault::Unknown(_)
                | StoreFault::Refused(_)
                | StoreFault::Nonsense { .. }
                | StoreFault::Copies { .. }
                | StoreFault::Full,
            ) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Us(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// The stable `code` of the problem body.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Client(ClientFault::Malformed(_)) => "malformed_request",
            Self::Client(ClientFault::BodyTooLarge { .. }) => "body_too_large",
            Self::Client(ClientFault::BodyTimeout) => "body_timeout",
            Self::Client(ClientFault::Gone) => "client_gone",
            Self::Upstream(UpstreamFault::Connect(_)) => "backend_unreachable",
            Self::Upstream(UpstreamFault::Timeout) => "backend_timeout",
            Self::Upstream(UpstreamFault::Busy) => "backend_busy",
            Self::Upstream(UpstreamFault::Broken(_)) => "backend_broke",
            Self::Upstream(UpstreamFault::Malformed(_)) => "backend_malformed",
            Self::Store(
                StoreFault::Away
                | StoreFault::Unknown(_)
                | StoreFault::Refused(_)
                | StoreFault::Nonsense { .. }
                | StoreFault::Copies { .. },
            ) => "store_unavailable",
            Self::Store(StoreFault::Full) => "busy",
            Self::Us(_) => "internal_error",
        }
    }

    /// Whether the connection is not to be trusted further: what a client sent could be read in two ways, and so could what follows.
    #[must_use]
    pub fn ends_connection(&self) -> bool {
        matches!(self, Self::Client(ClientFault::Malformed(_)))
    }

    /// Whether the backend may have acted on the request although no good answer came.
    #[must_use]
    pub fn may_have_run(&self) -> bool {
        match self {
            Self::Upstream(UpstreamFault::Timeout | UpstreamFault::Broken(_) | UpstreamFault::Malformed(_))
            | Self::Store(StoreFault::Unknown(_) | StoreFault::Nonsense { .. } | StoreFault::Copies { .. })
            | Self::Us(_) => true,
            Self::Client(_)
            | Self::Upstream(UpstreamFault::Connect(_) | UpstreamFault::Busy)
            | Self::Store(StoreFault::Away | StoreFault::Refused(_) | StoreFault::Full) => false,
        }
    }
}
