//! A reader of HTTP/1 requests that accepts only what can be read in one way, to judge what the gateway lets through; and a backend that has it
//! read every byte.

use std::sync::{Arc, Mutex};

use crate::backend::Backend;

/// One request, as the strict reader reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) method: String,
    pub(super) target: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
    /// Nothing after it on its connection is read.
    pub(super) closes: bool,
}

/// What became of reading one request.
#[derive(Debug)]
pub(super) enum Read {
    /// A request, and how many bytes it had.
    Whole(Request, usize),
    /// Not yet all of one.
    Partial,
    /// Two readers could read it differently: why.
    Odd(&'static str),
}

impl Request {
    /// All values of a header.
    pub(super) fn all(&self, name: &str) -> Vec<&str> {
        let lines = self.headers.iter().filter(|(found, _)| found.eq_ignore_ascii_case(name));
        lines.map(|(_, value)| value.as_str()).collect()
    }

    /// Method, target in origin form, body: what must be the same on both sides.
    pub(super) fn gist(&self) -> (String, String, Vec<u8>) {
        let target = match self.target.split_once("://") {
            Some((_, rest)) if !self.target.starts_with('/') => rest.find(['/', '?']).map_or("/", |at| &rest[at..]),
            _ => &self.target,
        };
        let target = if target.starts_with('?') {
            format!("/{target}")
        } else {
            target.to_owned()
        };
        (self.method.clone(), target, self.body.clone())
    }
}

/// All requests in these bytes, and what stopped the reading: nothing more, a part of one, or an odd one.
pub(super) fn all(bytes: &[u8]) -> (Vec<Request>, Result<usize, &'static str>) {
    let mut requests = Vec::new();
    let mut rest = bytes;
    loop {
        match read(rest) {
            Read::Whole(request, length) => {
                requests.push(request);
                rest = &rest[length..];
            }
            Read::Partial => return (requests, Ok(rest.len())),
            Read::Odd(why) => return (requests, Err(why)),
        }
    }
}

/// Reads the first request.
pub(super) fn read(bytes: &[u8]) -> Read {
    let mut lines = Lines { bytes, at: 0 };
    match whole(&mut lines) {
        Ok(Some(request)) => Read::Whole(request, lines.at),
        Ok(None) => Read::Partial,
        Err(why) => Read::Odd(why),
    }
}

struct Lines<'a> {
    bytes: &'a [u8],
    at: usize,
}

type Part<T> = Result<Option<T>, &'static str>;

impl<'a> Lines<'a> {
    /// A line without its end. Half a line is judged as well: what is wrong in it stays wrong.
    fn line(&mut self) -> Part<&'a [u8]> {
        let rest = &self.bytes[self.at..];
        let end = rest.windows(2).position(|pair| pair == b"\r\n");
        let line = &rest[..end.unwrap_or(rest.len())];
        let checked = if end.is_none() {
            line.strip_suffix(b"\r").unwrap_or(line)
        } else {
            line
        };
        if checked.contains(&b'\n') {
            return Err("bare LF");
        }
        if checked.contains(&b'\r') {
            return Err("bare CR");
        }
        if checked.contains(&0) {
            return Err("NUL");
        }
        if end.is_some() {
            self.at += line.len() + 2;
        }
        Ok(end.map(|_| line))
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let taken = self.bytes[self.at..].get(..length)?;
        self.at += length;
        Some(taken)
    }
}

fn whole(lines: &mut Lines<'_>) -> Part<Request> {
    let mut first = lines.line()?;
    while first.is_some_and(<[u8]>::is_empty) {
        first = lines.line()?; // an empty line before a request is passed over
    }
    let Some(first) = first else { return Ok(None) };
    let (method, target, version) = request_line(first)?;
    let mut headers = Vec::new();
    loop {
        let Some(line) = lines.line()? else { return Ok(None) };
        if line.is_empty() {
            break;
        }
        headers.push(field(line)?);
    }
    let mut request = Request {
        method,
        target,
        headers,
        body: Vec::new(),
        closes: version == "HTTP/1.0",
    };
    let connection = request.all("connection").join(",").to_ascii_lowercase();
    request.closes |= connection.split(',').any(|word| word.trim() == "close");
    let hosts = request.all("host");
    if hosts.len() != 1 {
        return Err("not one Host");
    }
    if hosts[0].is_empty() || hosts[0].contains([' ', '\t', ',', '/', '@']) {
        return Err("no host in Host");
    }
    let (codings, lengths) = (request.all("transfer-encoding"), request.all("content-length"));
    if !codings.is_empty() && (!lengths.is_empty() || version == "HTTP/1.0" || codings.len() > 1) {
        return Err("Transfer-Encoding with something else");
    }
    if codings.iter().any(|coding| !coding.eq_ignore_ascii_case("chunked")) {
        return Err("a Transfer-Encoding that is not chunked");
    }
    if lengths.len() > 1
        || lengths
            .iter()
            .any(|length| length.is_empty() || !length.bytes().all(|byte| byte.is_ascii_digit()))
    {
        return Err("not one Content-Length");
    }
    let body = if !codings.is_empty() {
        chunks(lines)?
    } else {
        let length = lengths
            .first()
            .map_or(Ok(0), |length| length.parse())
            .map_err(|_| "an endless Content-Length")?;
        lines.take(length).map(<[u8]>::to_vec)
    };
    let Some(body) = body else { return Ok(None) };
    request.body = body;
    Ok(Some(request))
}

fn request_line(line: &[u8]) -> Result<(String, String, &'static str), &'static str> {
    let mut words = line.split(|byte| *byte == b' ');
    let (Some(method), Some(target), Some(version), None) = (words.next(), words.next(), words.next(), words.next()) else {
        return Err("not three words in the request line");
    };
    if !is_token(method) {
        return Err("the method is no token");
    }
    if target.is_empty() || target.iter().any(|byte| *byte <= b' ' || *byte == 0x7f || *byte == b'#') {
        return Err("the target is none");
    }
    let version = match version {
        b"HTTP/1.1" => "HTTP/1.1",
        b"HTTP/1.0" => "HTTP/1.0",
        _ => return Err("another version"),
    };
    Ok((latin(method), latin(target), version))
}

fn field(line: &[u8]) -> Result<(String, String), &'static str> {
    if line.starts_with(b" ") || line.starts_with(b"\t") {
        return Err("a folded line");
    }
    let colon = line.iter().position(|byte| *byte == b':').ok_or("no colon")?;
    let (name, value) = (&line[..colon], &line[colon + 1..]);
    if !is_token(name) {
        return Err("the name is no token");
    }
    if value.iter().any(|byte| (*byte < b' ' && *byte != b'\t') || *byte == 0x7f) {
        return Err("a control character in a value");
    }
    Ok((latin(name), latin(value.trim_ascii())))
}

fn chunks(lines: &mut Lines<'_>) -> Part<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let Some(line) = lines.line()? else { return Ok(None) };
        let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        let extension = line[digits..].trim_ascii_start();
        if digits == 0 || digits > 8 || !(line.len() == digits || extension.starts_with(b";")) {
            return Err("no chunk size");
        }
        let size = usize::from_str_radix(&latin(&line[..digits]), 16).map_err(|_| "no chunk size")?;
        if size == 0 {
            break;
        }
        let Some(chunk) = lines.take(size) else { return Ok(None) };
        body.extend(chunk);
        let end = &lines.bytes[lines.at..];
        if !b"\r\n".starts_with(&end[..end.len().min(2)]) {
            return Err("a chunk that does not end");
        }
        if lines.take(2).is_none() {
            return Ok(None);
        }
    }
    loop {
        let Some(line) = lines.line()? else { return Ok(None) };
        if line.is_empty() {
            return Ok(Some(body));
        }
        field(line)?;
    }
}

fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty()
        && bytes
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte))
}

pub(super) fn latin(bytes: &[u8]) -> String {
    bytes.iter().copied().map(char::from).collect()
}

/// Why a backend should not have been sent this.
pub(super) fn unfit(request: &Request) -> Option<&'static str> {
    if !request.target.starts_with('/') {
        return Some("not in origin form");
    }
    let upgrade = request.all("upgrade");
    if upgrade.is_empty() != request.all("connection").is_empty() || upgrade.iter().any(|protocol| *protocol != "websocket") {
        return Some("a Connection or an Upgrade");
    }
    let hop = [
        "keep-alive",
        "te",
        "trailer",
        "http2-settings",
        "proxy",
        "expect",
        "content_length",
        "transfer_encoding",
    ];
    let found = |name: &str| hop.contains(&name) || name.starts_with("proxy-");
    if request.headers.iter().any(|(name, _)| found(&name.to_ascii_lowercase())) {
        return Some("a field of one hop");
    }
    None
}

/// What reached a backend, request by request; an odd one ends its connection.
pub(super) type Seen = Arc<Mutex<Vec<Result<Request, String>>>>;

/// A backend that reads strictly. Each of its answers says the how many-th request it answers.
pub(super) async fn backend() -> (Backend, Seen) {
    let seen = Seen::default();
    let log = Arc::clone(&seen);
    let backend = Backend::start(move |mut wire| {
        let log = Arc::clone(&log);
        async move {
            loop {
                let outcome = match read(&wire.buffer) {
                    Read::Partial if wire.more().await == 0 => return,
                    Read::Partial => continue,
                    Read::Odd(why) => Err(why.to_owned()),
                    Read::Whole(request, length) => {
                        wire.buffer.drain(..length);
                        unfit(&request).map_or(Ok(request), |why| Err(why.to_owned()))
                    }
                };
                let odd = outcome.is_err();
                let outcome = outcome.map_err(|why| format!("{why}: {:?}", latin(&wire.buffer)));
                let number = {
                    let mut log = log.lock().unwrap();
                    log.push(outcome);
                    log.len()
                };
                if odd {
                    return;
                }
                wire.send(format!("HTTP/1.1 200 OK\r\nBackend-Number: {number}\r\nContent-Length: 0\r\n\r\n"))
                    .await;
            }
        }
    })
    .await;
    (backend, seen)
}
