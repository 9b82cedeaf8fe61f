//! One request to the operators' listener, and its failures in plain sentences.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use http::{Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::command::Reach;
use crate::ops::door::{IDEMPOTENCY_KEY, OPERATOR, random_id};

/// How long connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// How long an answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of an answer at most.
const MAX_ANSWER: usize = 16 * 1024 * 1024;

/// The way to a listener.
pub(super) struct Line {
    url: String,
    authority: String,
    address: (String, u16),
    token: Option<HeaderValue>,
    operator: Option<HeaderValue>,
}

/// A good answer.
pub(super) struct Asked {
    /// Its body.
    pub(super) text: String,
}

impl Line {
    /// Checks everything that can be checked before asking.
    pub(super) fn new(reach: &Reach) -> Result<Self, String> {
        let wrong = || format!("--url {}: write it as http://HOST:PORT", reach.url);
        let uri: Uri = reach.url.parse().map_err(|_| wrong())?;
        if uri.scheme_str() == Some("https") {
            return Err(format!(
                "--url {}: the operators' listener speaks plain HTTP; reach it on its own machine, or through an SSH tunnel",
                reach.url
            ));
        }
        let (Some("http"), Some(authority), "" | "/", None) = (uri.scheme_str(), uri.authority(), uri.path(), uri.query()) else {
            return Err(wrong());
        };
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        Ok(Self {
            url: reach.url.clone(),
            authority: authority.to_string(),
            address: (host, authority.port_u16().unwrap_or(80)),
            token: token(reach.token_file.as_deref())?,
            operator: operator(reach)?,
        })
    }

    /// Asks once. Every answer but a good one is an error.
    pub(super) async fn ask(&self, method: Method, path: &str, body: Option<Value>) -> Result<Asked, String> {
        let change = method != Method::GET;
        let request = self.request(method, path, body)?;
        let stream = match timeout(CONNECT_TIMEOUT, TcpStream::connect((self.address.0.as_str(), self.address.1))).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Err(self.unreachable(&error.to_string())),
            Err(_) => return Err(self.unreachable("no answer in 3 seconds")),
        };
        let lost = |why: &str| {
            let unsure = "; the change may have been made or not, `waitgate room show` tells";
            format!("{} broke off: {why}{}", self.url, if change { unsure } else { "" })
        };
        let answer = async {
            let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
            let connection = tokio::spawn(connection);
            let answer = sender.send_request(request).await;
            let (parts, body) = answer?.into_parts();
            let bytes = Limited::new(body, MAX_ANSWER).collect().await?.to_bytes();
            connection.abort();
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>((parts.status, bytes))
        };
        match timeout(ANSWER_TIMEOUT, answer).await {
            Ok(Ok((status, bytes))) => self.judge(status, &bytes),
            Ok(Err(error)) => Err(lost(&error.to_string())),
            Err(_) => Err(lost("no answer in 10 seconds")),
        }
    }

    fn request(&self, method: Method, path: &str, body: Option<Value>) -> Result<Request<Full<Bytes>>, String> {
        let change = method != Method::GET;
        let mut request = Request::builder().method(method).uri(path).header(HOST, &self.authority);
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, token);
        }
        if change {
            request = request.header(IDEMPOTENCY_KEY, random_id().map_err(|problem| problem.detail)?);
            if let Some(operator) = &self.operator {
                request = request.header(OPERATOR, operator);
            }
        }
        let bytes = match body {
            None => Bytes::new(),
            Some(body) => {
                request = request.header(CONTENT_TYPE, "application/json");
                Bytes::from(body.to_string())
            }
        };
        request.body(Full::new(bytes)).map_err(|error| format!("cannot be asked: {error}"))
    }

    fn unreachable(&self, why: &str) -> String {
        format!(
            "cannot reach the operators' listener at {}: {why}. Is the gateway running? Its address is `ops.listen` in the settings; give it with --url or WAITGATE_OPS_URL",
            self.url
        )
    }

    /// An answer, or the sentence of the problem it is.
    fn judge(&self, status: StatusCode, bytes: &Bytes) -> Result<Asked, String> {
        let text = String::from_utf8_lossy(bytes).into_owned();
        if status.is_success() {
            return Ok(Asked { text });
        }
        let problem: Value = serde_json::from_str(&text).unwrap_or_default();
        if status == StatusCode::UNAUTHORIZED {
            return Err(if self.token.is_some() {
                format!(
                    "{} does not take the token of --token-file (or WAITGATE_TOKEN_FILE): it must be the one in the gateway's `ops.token_file`",
                    self.url
                )
            } else {
                format!(
                    "{} wants a token: name the file that holds it with --token-file or WAITGATE_TOKEN_FILE",
                    self.url
                )
            });
        }
        if let Some(reasons) = problem["reasons"].as_array() {
            let reasons: Vec<&str> = reasons.iter().filter_map(Value::as_str).collect();
            return Err(format!("not ready: {}", reasons.join(", ")));
        }
        match (problem["detail"].as_str(), problem["code"].as_str()) {
            (Some(detail), Some(code)) => Err(format!("{detail} ({code})")),
            _ => Err(format!("{} answered {status}: it is no operators' listener of waitgate", self.url)),
        }
    }
}

/// The token as a header.
pub(crate) fn token(file: Option<&Path>) -> Result<Option<HeaderValue>, String> {
    // An empty variable is one that was not set.
    let Some(file) = file.filter(|file| !file.as_os_str().is_empty()) else {
        return Ok(None);
    };
    let text = std::fs::read_to_string(file).map_err(|error| format!("cannot read the token in {}: {error}", file.display()))?;
    let value = HeaderValue::from_str(&format!("Bearer {}", text.trim()));
    let mut value = value.map_err(|_| format!("{} holds no token: it must be one line of printable characters", file.display()))?;
    value.set_sensitive(true);
    Ok(Some(value))
}

/// The operator's name as a header: the one given, else the login's if it can be sent.
fn operator(reach: &Reach) -> Result<Option<HeaderValue>, String> {
    let header = |name: &str| {
        HeaderValue::from_bytes(name.trim().as_bytes())
            .ok()
            .filter(|value| !value.is_empty())
    };
    match (&reach.operator, &reach.login) {
        (Some(name), _) => header(name)
            .map(Some)
            .ok_or_else(|| "--operator must be printable characters".to_owned()),
        (None, Some(login)) => Ok(header(login)),
        (None, None) => Ok(None),
    }
}

/// A path segment, escaped.
pub(super) fn segment(text: &str) -> String {
    text.bytes().fold(String::new(), |mut escaped, byte| {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'~') {
            escaped.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(escaped, "%{byte:02X}");
        }
        escaped
    })
}
