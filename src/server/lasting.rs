//! An answer that lasts for as long as its client waits, on a connection of HTTP/1.1 that hyper has let go of.
//!
//! hyper keeps two buffers of 8 KiB for a connection, whatever it does. Somebody who only listens needs neither: once the request has been read the
//! connection is taken out of hyper, head and chunks are written here, and nothing is kept between two events but the socket and the body. Whatever
//! else the client sends is thrown away; when the answer ends, so does the connection.

use std::fmt::Write as _;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::header::{CONNECTION, DATE, TRANSFER_ENCODING};
use http::{HeaderValue, Response};
use http_body::Body as _;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::timeout;

use super::answer::Answer;
use super::socket::Socket;
use crate::clock::Clock;
use crate::stop::Stop;

/// Bytes of a client that are thrown away before it is told to stop.
const UNASKED: usize = 16 * 1024;
/// How long the end of a connection may take.
const FAREWELL: Duration = Duration::from_secs(3);
/// The end of a body in chunks.
const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// Sends an answer to its end, or to that of the client's patience.
pub(super) async fn send(mut socket: Socket, response: Response<Answer>, stop: Stop) {
    let (head, body) = {
        let (parts, body) = response.into_parts();
        (head(&parts), body)
    };
    let sending = Sending {
        socket: &mut socket,
        body,
        out: head,
        unasked: 0,
        over: false,
    };
    match stop.cut.run_until_cancelled(sending).await {
        None => return,
        Some(Err(error)) => tracing::debug!(%error, "a lasting answer broke off"),
        Some(Ok(())) => {}
    }
    let _late = timeout(FAREWELL, socket.shutdown()).await;
}

/// The head, as it goes over the wire. hyper has written nothing of it.
fn head(parts: &http::response::Parts) -> Bytes {
    let mut head = BytesMut::with_capacity(512);
    // Writing to memory cannot fail.
    let _ = write!(
        head,
        "HTTP/1.1 {} {}\r\n",
        parts.status.as_str(),
        parts.status.canonical_reason().unwrap_or_default()
    );
    let mut put = |name: &str, value: &HeaderValue| {
        head.put_slice(name.as_bytes());
        head.put_slice(b": ");
        head.put_slice(value.as_bytes());
        head.put_slice(b"\r\n");
    };
    for (name, value) in &parts.headers {
        put(name.as_str(), value);
    }
    put(TRANSFER_ENCODING.as_str(), &HeaderValue::from_static("chunked"));
    put(CONNECTION.as_str(), &HeaderValue::from_static("close"));
    if let Some(now) = date() {
        put(DATE.as_str(), &now);
    }
    head.put_slice(b"\r\n");
    head.freeze()
}

fn date() -> Option<HeaderValue> {
    let now = i64::try_from(Clock::system().now_ms()).ok()?;
    let now = jiff::Timestamp::from_millisecond(now).ok()?;
    let text = jiff::fmt::rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&now).ok()?;
    HeaderValue::try_from(text).ok()
}

/// An answer on its way.
struct Sending<'s> {
    socket: &'s mut Socket,
    body: Answer,
    /// What is yet to be written.
    out: Bytes,
    unasked: usize,
    over: bool,
}

impl Future for Sending<'_> {
    type Output = io::Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            ready!(this.poll_write(context))?;
            if this.over {
                return Poll::Ready(Ok(()));
            }
            match Pin::new(&mut this.body).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data()
                        && !data.is_empty()
                    {
                        this.out = chunk(&data);
                    }
                }
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(io::Error::other(error))),
                Poll::Ready(None) => {
                    this.out = Bytes::from_static(LAST_CHUNK);
                    this.over = true;
                }
                Poll::Pending => {
                    ready!(this.poll_hear(context))?;
                    return Poll::Ready(Ok(())); // the client left
                }
            }
        }
    }
}

impl Sending<'_> {
    /// Writes what there is to write, all of it.
    fn poll_write(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.out.is_empty() {
            return Poll::Ready(Ok(()));
        }
        while self.out.has_remaining() {
            let written = ready!(Pin::new(&mut *self.socket).poll_write(context, &self.out))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.out.advance(written);
        }
        ready!(Pin::new(&mut *self.socket).poll_flush(context))?;
        self.out = Bytes::new(); // nothing is kept of it
        Poll::Ready(Ok(()))
    }

    /// Ready when the client has left. What it says meanwhile is nobody's business, within a limit.
    fn poll_hear(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut scratch = [0; 512];
        loop {
            let mut buffer = ReadBuf::new(&mut scratch);
            ready!(Pin::new(&mut *self.socket).poll_read(context, &mut buffer))?;
            let heard = buffer.filled().len();
            if heard == 0 {
                return Poll::Ready(Ok(()));
            }
            self.unasked += heard;
            if self.unasked > UNASKED {
                return Poll::Ready(Err(io::Error::other("the client goes on asking while it is being answered")));
            }
        }
    }
}

fn chunk(data: &Bytes) -> Bytes {
    let mut chunk = BytesMut::with_capacity(data.len() + 12);
    let _ = write!(chunk, "{:x}\r\n", data.len());
    chunk.put_slice(data);
    chunk.put_slice(b"\r\n");
    chunk.freeze()
}
