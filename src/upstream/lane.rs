//! One HTTP/1.1 connection to a backend, which serves one request at a time and has no task of its own.
//!
//! Whoever uses a lane drives it: the request's future until the head has come, the answer's body after that, nobody while it rests in the
//! pool. So an exchange never wakes another task. Hyper passes heads and bodies from the connection to its caller through channels that wake
//! the caller; here both are the same task, which looks into the channel right after driving, so those wake-ups are left out: the channels are
//! asked with a waker that does nothing, and what hyper's own side of them wakes is [`Relay`], which can be muted.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU8,
    Ordering::{Relaxed, SeqCst},
};
use std::task::{Context, Poll, Wake, Waker};

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use http::{Request, Response};
use http_body::{Body as _, Frame};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::task::unconstrained;
use tokio::time::{Instant, Sleep, sleep_until};

use super::body::Outbound;
use super::connect::Wire;
use super::pool::Open;
use crate::fault::BoxError;

/// Bytes of an answer's head at most.
pub(super) const MAX_HEAD_BYTES: usize = 64 * 1024;
/// Bytes read ahead, or not yet written, per connection at most.
const MAX_BUFFER_BYTES: usize = 128 * 1024;

/// A piece of an answer, when there is one.
type Piece = Poll<Option<Result<Frame<Bytes>, hyper::Error>>>;

type Connection = http1::Connection<TokioIo<Wire>, Outbound>;

/// A connection with everything that stays with it from one request to the next.
pub(super) struct Lane {
    sender: SendRequest<Outbound>,
    connection: Connection,
    /// The connection has ended, or has become a tunnel.
    over: bool,
    relay: Arc<Relay>,
    waker: Waker,
    alarm: Alarm,
    look: Arc<AtomicBool>,
    served: bool,
    rested_at: Instant,
    _open: Open,
}

/// An exchange that did not come to an answer.
pub(super) enum Failed {
    /// Nothing came in time.
    Late,
    /// The connection broke, or what came is no answer.
    Broken(hyper::Error),
    /// Nothing was sent; here it is back.
    Unsent(Box<Request<Outbound>>, hyper::Error),
}

impl Failed {
    pub(super) fn into_error(self) -> BoxError {
        match self {
            Self::Late => "it took too long".into(),
            Self::Broken(error) | Self::Unsent(_, error) => error.into(),
        }
    }
}

impl Lane {
    /// Speaks HTTP/1.1 over this wire.
    pub(super) async fn start(wire: Wire, open: Open) -> Result<Box<Self>, BoxError> {
        let look = wire.look();
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(MAX_BUFFER_BYTES)
            .max_header_size(MAX_HEAD_BYTES)
            .handshake(TokioIo::new(wire))
            .await?;
        let relay = Arc::<Relay>::default();
        Ok(Box::new(Self {
            sender,
            connection,
            over: false,
            waker: Waker::from(Arc::clone(&relay)),
            relay,
            alarm: Alarm::default(),
            look,
            served: false,
            rested_at: Instant::now(),
            _open: open,
        }))
    }

    /// It has answered before: if it breaks now before it answers, an idle backend most likely closed it in this very moment.
    pub(super) fn served(&self) -> bool {
        self.served
    }

    /// When its last exchange ended.
    pub(super) fn rested_at(&self) -> Instant {
        self.rested_at
    }

    /// Whether it can take another request.
    pub(super) fn is_ready(&self) -> bool {
        !self.over && self.sender.is_ready()
    }

    /// Leaves the task that used it.
    pub(super) fn rest(&mut self, now: Instant) {
        self.rested_at = now;
        self.relay.task.take();
    }

    /// After a rest: whether it has not been closed meanwhile, and nothing has come that nobody asked for. `closely` asks the machine, for a
    /// request that cannot be repeated.
    pub(super) fn is_alive(&mut self, closely: bool) -> bool {
        self.look.store(closely, Relaxed);
        !self.drive(&mut Context::from_waker(Waker::noop())) && self.sender.is_ready()
    }

    /// Lets the connection do what it can; says whether it is over.
    pub(super) fn drive(&mut self, context: &mut Context<'_>) -> bool {
        if !self.over {
            self.relay.task.register(context.waker());
            let mut context = Context::from_waker(&self.waker);
            // What ended it is told to whoever waits for the answer or its body.
            self.over = Pin::new(&mut self.connection).poll(&mut context).is_ready();
        }
        self.over
    }

    /// Sends a request, and answers with the head of what comes back. `look` says, as it is now, until
    /// when nothing need be looked at, or that it has taken too long.
    pub(super) fn exchange(
        &mut self,
        request: Request<Outbound>,
        look: impl Fn() -> Option<Instant>,
    ) -> impl Future<Output = Result<Response<Incoming>, Failed>> {
        // Outside of the future, which need not carry the request: it goes to the connection here.
        let answer = self.sender.try_send_request(request);
        let (connection, over, relay, waker, alarm) = (&mut self.connection, &mut self.over, &self.relay, &self.waker, &mut self.alarm);
        let served = &mut self.served;
        async move {
            // The answer is looked for right after driving, so nobody need be woken for it; and a waker that does nothing must not meet tokio's
            // budget, which counts on it.
            let mut answer = pin!(unconstrained(answer));
            let outcome = std::future::poll_fn(|context| {
                if !*over {
                    relay.task.register(context.waker());
                    *over = Pin::new(&mut *connection).poll(&mut Context::from_waker(waker)).is_ready();
                }
                if let Poll::Ready(outcome) = answer.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                    return Poll::Ready(Some(outcome));
                }
                // A connection that is over without a word is not waited for.
                if *over || alarm.poll_over(context, &look).is_ready() {
                    return Poll::Ready(None);
                }
                Poll::Pending
            });
            match outcome.await {
                Some(Ok(response)) => {
                    *served = true;
                    Ok(response)
                }
                Some(Err(mut failed)) => Err(match failed.take_message() {
                    Some(request) => Failed::Unsent(Box::new(request), failed.into_error()),
                    None => Failed::Broken(failed.into_error()),
                }),
                None => Err(Failed::Late),
            }
        }
    }

    /// The next piece of an answer of this lane.
    pub(super) fn poll_frame(&mut self, incoming: &mut Incoming, context: &mut Context<'_>) -> Piece {
        let (frame, _) = self.take_frame(incoming);
        if frame.is_ready() {
            return frame;
        }
        loop {
            self.drive(context);
            let (frame, missed) = self.take_frame(incoming);
            if frame.is_ready() || !missed {
                return frame;
            }
        }
    }

    /// Taking a piece makes room for the next one, which hyper tells the connection; but the connection is driven again only when more is
    /// asked for, and then in any case. Says as well whether anything was told meanwhile.
    fn take_frame(&self, incoming: &mut Incoming) -> (Piece, bool) {
        self.relay.state.store(MUTED, SeqCst);
        let frame = Pin::new(incoming).poll_frame(&mut Context::from_waker(Waker::noop()));
        (frame, self.relay.state.swap(OPEN, SeqCst) == MISSED)
    }

    /// Ready when nothing more may be waited for.
    pub(super) fn poll_late(&mut self, context: &mut Context<'_>, deadline: Instant) -> Poll<()> {
        self.alarm.poll_over(context, &|| (Instant::now() < deadline).then_some(deadline))
    }

    /// Goes on by itself, until the other end or hyper ends it: for an answer that came before its request was sent, because those two must
    /// not wait for each other.
    pub(super) fn run_alone(self) {
        let Self {
            connection, over, _open, ..
        } = self;
        if !over {
            tokio::spawn(async move {
                let _open = _open;
                if let Err(fault) = connection.await {
                    tracing::debug!(%fault, "a connection to a backend broke");
                }
            });
        }
    }

    /// After an answer that switched protocols: the wire itself, and what came on it already.
    pub(super) async fn into_tunnel(mut self: Box<Self>) -> (Wire, Bytes) {
        std::future::poll_fn(|context| if self.drive(context) { Poll::Ready(()) } else { Poll::Pending }).await;
        let parts = self.connection.into_parts();
        (parts.io.into_inner(), parts.read_buf)
    }
}

/// Every wake-up is passed on.
const OPEN: u8 = 0;
/// Whoever drives the lane is looking at it right now, and need not be told.
const MUTED: u8 = 1;
/// As before, and something happened meanwhile.
const MISSED: u8 = 2;

/// Wakes whoever drives the lane now.
#[derive(Debug, Default)]
struct Relay {
    task: AtomicWaker,
    state: AtomicU8,
}

impl Wake for Relay {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // One step: between looking and noting it may have been opened again.
        if self.state.compare_exchange(MUTED, MISSED, SeqCst, SeqCst).is_err() && self.state.load(SeqCst) == OPEN {
            self.task.wake();
        }
    }
}

/// A timer that stays with its lane. It is set only when it has run out: a limit that moved away meanwhile is seen when it rings, and so a
/// request that is answered in time costs no work on timers.
#[derive(Debug, Default)]
pub(super) struct Alarm {
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Alarm {
    /// Ready when `look` answers that it has taken too long. Otherwise it answers when to look again.
    pub(super) fn poll_over(&mut self, context: &mut Context<'_>, look: &impl Fn() -> Option<Instant>) -> Poll<()> {
        let Some(at) = look() else { return Poll::Ready(()) };
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(at)));
        if sleep.is_elapsed() || at < sleep.deadline() {
            sleep.as_mut().reset(at);
        }
        while sleep.as_mut().poll(context).is_ready() {
            match look() {
                Some(at) => sleep.as_mut().reset(at),
                None => return Poll::Ready(()),
            }
        }
        Poll::Pending
    }
}
