//! Asking one server for JSON, over kept-alive connections: the shop asks the gateway, the demo asks both.

use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use http::{Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::time::timeout;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(15);
/// Bytes of an answer at most.
const BODY_LIMIT: usize = 1 << 20;

/// One server, and how to ask it.
#[derive(Clone, Debug)]
pub(crate) struct Asker {
    client: Client<HttpConnector, Full<Bytes>>,
    base: String,
    token: Option<HeaderValue>,
}

impl Asker {
    /// Asks the server at this address.
    pub(crate) fn new(base: &Uri) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        Self {
            client: Client::builder(TokioExecutor::new())
                .pool_timer(TokioTimer::new())
                .pool_idle_timeout(Duration::from_secs(4))
                .build(connector),
            base: base.to_string().trim_end_matches('/').to_owned(),
            token: None,
        }
    }

    /// The same with what goes into `Authorization`.
    pub(crate) fn with_token(mut self, token: Option<HeaderValue>) -> Self {
        self.token = token;
        self
    }

    /// Status and body of the answer.
    ///
    /// # Errors
    /// In words: no answer, not in time, or one too long.
    pub(crate) async fn ask(&self, method: Method, path: &str, body: &'static str) -> Result<(StatusCode, Bytes), String> {
        let request = Request::builder()
            .method(&method)
            .uri(format!("{}{path}", self.base))
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from_static(body.as_bytes())))
            .map_err(|malformed| malformed.to_string())?;
        self.send(request)
            .await
            .map_err(|why| format!("{method} {}{path}: {why}", self.base))
    }

    /// As [`Asker::ask`], with a body made on the spot.
    ///
    /// # Errors
    /// As [`Asker::ask`].
    pub(crate) async fn patch(&self, path: &str, body: &serde_json::Value) -> Result<(StatusCode, Bytes), String> {
        let request = Request::patch(format!("{}{path}", self.base))
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body.to_string())))
            .map_err(|malformed| malformed.to_string())?;
        self.send(request).await.map_err(|why| format!("PATCH {}{path}: {why}", self.base))
    }

    async fn send(&self, mut request: Request<Full<Bytes>>) -> Result<(StatusCode, Bytes), String> {
        if let Some(token) = &self.token {
            request.headers_mut().insert(AUTHORIZATION, token.clone());
        }
        let exchange = async {
            let answer = self.client.request(request).await.map_err(|failed| failed.to_string())?;
            let status = answer.status();
            let body = Limited::new(answer.into_body(), BODY_LIMIT)
                .collect()
                .await
                .map_err(|failed| failed.to_string())?;
            Ok((status, body.to_bytes()))
        };
        timeout(PATIENCE, exchange)
            .await
            .unwrap_or_else(|_| Err(format!("no answer in {} s", PATIENCE.as_secs())))
    }
}
