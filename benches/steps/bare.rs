//! Bare hyper: the sold-out answer and nothing before it. What the gateway's own steps are measured beside.
//!
//! `bare PORT` serves HTTP/1.1 and cleartext HTTP/2 on loopback, on one thread, until it is ended.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::Full;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpListener;

const BODY: &[u8] = br#"{"type":"about:blank","title":"Sold out","status":409,"code":"sold_out","detail":"All units are sold."}"#;

fn main() -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(serve())
}

async fn serve() -> std::io::Result<()> {
    let port = std::env::args().nth(1).and_then(|port| port.parse().ok()).unwrap_or(0);
    let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await?;
    loop {
        let (socket, _) = listener.accept().await?;
        socket.set_nodelay(true)?;
        tokio::spawn(async move {
            let mut first = [0; 3];
            let http2 = matches!(socket.peek(&mut first).await, Ok(3)) && &first == b"PRI";
            let answer = service_fn(|_request| async {
                let mut response = Response::new(Full::new(Bytes::from_static(BODY)));
                *response.status_mut() = StatusCode::CONFLICT;
                let headers = response.headers_mut();
                headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
                headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
                Ok::<_, Infallible>(response)
            });
            let io = TokioIo::new(socket);
            let _ended = if http2 {
                http2::Builder::new(TokioExecutor::new())
                    .timer(TokioTimer::new())
                    .serve_connection(io, answer)
                    .await
            } else {
                http1::Builder::new().timer(TokioTimer::new()).serve_connection(io, answer).await
            };
        });
    }
}
