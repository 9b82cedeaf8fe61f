//! Somebody with cookies, at one gateway at a time.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use http::header::{ACCEPT, CONTENT_TYPE, COOKIE, HOST, SET_COOKIE};
use http::{HeaderMap, Method, Request};
use http_body_util::Full;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use super::{Events, Reply, Socket, ask, begin};
use crate::backend::soon;

/// Somebody with cookies, at one gateway at a time. Clones are tabs of one browser.
#[derive(Clone, Debug)]
pub struct Visitor {
    pub at: SocketAddr,
    jar: Arc<Mutex<HashMap<String, String>>>,
}

impl Visitor {
    pub fn new(at: SocketAddr) -> Self {
        Self { at, jar: Arc::default() }
    }

    /// Another tab of the same browser, which a balancer sent to this gateway.
    pub fn at(&self, at: SocketAddr) -> Self {
        Self {
            at,
            jar: Arc::clone(&self.jar),
        }
    }

    pub fn cookie(&self, name: &str) -> Option<String> {
        self.jar.lock().unwrap().get(name).cloned()
    }

    /// The ticket's id, as it is written in the ticket.
    pub fn ticket(&self) -> String {
        self.claims()["i"].as_str().expect("an id").to_owned()
    }

    /// The place, as it is written in the ticket; 0 for none.
    pub fn place(&self) -> u64 {
        self.claims()["p"].as_u64().expect("a place")
    }

    fn claims(&self) -> Value {
        let ticket = self.cookie("wgt_42").expect("a ticket");
        let claims = ticket.split('.').nth(1).expect("a JWT");
        serde_json::from_slice(&data_encoding::BASE64URL_NOPAD.decode(claims.as_bytes()).unwrap()).unwrap()
    }

    fn take(&self, headers: &HeaderMap) {
        let mut jar = self.jar.lock().unwrap();
        for line in headers.get_all(SET_COOKIE) {
            let (pair, attributes) = line.to_str().unwrap().split_once(';').unwrap();
            let (name, value) = pair.split_once('=').unwrap();
            if attributes.contains("Max-Age=0") {
                jar.remove(name);
            } else {
                jar.insert(name.to_owned(), value.to_owned());
            }
        }
    }

    fn request(&self, method: Method, path: &str) -> http::request::Builder {
        let mut request = Request::builder().method(method).uri(path).header(HOST, "shop.example");
        let jar = self.jar.lock().unwrap();
        if !jar.is_empty() {
            let cookies: Vec<_> = jar.iter().map(|(name, value)| format!("{name}={value}")).collect();
            request = request.header(COOKIE, cookies.join("; "));
        }
        request
    }

    pub async fn try_ask(&self, request: http::request::Builder, body: &str) -> Result<Reply, String> {
        let reply = ask(self.at, request.body(Full::from(body.to_owned())).unwrap()).await?;
        self.take(&reply.headers);
        Ok(reply)
    }

    async fn ask(&self, request: http::request::Builder, body: &str) -> Reply {
        self.try_ask(request, body).await.expect("an answer")
    }

    /// Loads the page of the sale, as a browser does.
    pub async fn load(&self) -> Reply {
        self.try_load().await.expect("an answer")
    }

    pub async fn try_load(&self) -> Result<Reply, String> {
        let request = self.request(Method::GET, "/sale").header(ACCEPT, "text/html");
        self.try_ask(request.header("sec-fetch-mode", "navigate"), "").await
    }

    /// Whether loading the page shows the shop.
    pub async fn gets_in(&self) -> bool {
        self.load().await.text() == "the shop"
    }

    pub async fn status(&self) -> Reply {
        self.try_status().await.expect("an answer")
    }

    pub async fn try_status(&self) -> Result<Reply, String> {
        self.try_ask(self.request(Method::GET, "/.waitgate/42/status"), "").await
    }

    pub async fn enter(&self) -> Reply {
        self.ask(self.request(Method::POST, "/.waitgate/42/enter"), "").await
    }

    pub async fn leave(&self) -> Reply {
        self.ask(self.request(Method::POST, "/.waitgate/42/leave"), "").await
    }

    pub async fn join_again(&self) -> Reply {
        self.ask(self.request(Method::POST, "/.waitgate/42/join"), "").await
    }

    pub async fn claim(&self, key: &str) -> Reply {
        self.try_claim(key).await.expect("an answer")
    }

    pub async fn try_claim(&self, key: &str) -> Result<Reply, String> {
        let request = self.request(Method::POST, "/sale/claim").header("idempotency-key", key);
        self.try_ask(request.header(CONTENT_TYPE, "application/json"), "{}").await
    }

    /// Loads the page and takes a place by the poll that follows.
    pub async fn joins(&self) -> Value {
        self.load().await;
        self.status().await.json()
    }

    /// Opens a stream of events.
    pub async fn stream(&self) -> Events {
        self.try_stream(&[]).await.expect("a stream")
    }

    pub async fn try_stream(&self, headers: &[(&'static str, &str)]) -> Result<Events, String> {
        let mut request = self
            .request(Method::GET, "/.waitgate/42/events")
            .header(ACCEPT, "text/event-stream");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (head, body) = begin(self.at, request.body(Full::default()).unwrap()).await?.into_parts();
        self.take(&head.headers);
        Ok(Events {
            status: head.status,
            headers: head.headers,
            body,
            read: Vec::new(),
        })
    }

    /// Opens a WebSocket.
    pub async fn socket(&self) -> Socket {
        self.socket_on(soon(TcpStream::connect(self.at)).await.expect("connect")).await
    }

    /// Opens a WebSocket on this connection.
    pub async fn socket_on(&self, stream: TcpStream) -> Socket {
        let mut request = format!("ws://{}/.waitgate/42/ws", self.at).into_client_request().unwrap();
        if let Some(cookies) = self.request(Method::GET, "/").body(()).unwrap().headers().get(COOKIE) {
            request.headers_mut().insert(COOKIE, cookies.clone());
        }
        let (socket, response) = soon(tokio_tungstenite::client_async(request, stream)).await.expect("a socket");
        self.take(response.headers());
        Socket(socket)
    }
}
