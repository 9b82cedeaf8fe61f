//! What a request must be before anybody looks at it: one reading of its head, and a body with limits.
//!
//! hyper is lenient where a gateway must not be: a request that the backend could read differently is refused, never repaired. [`check`] is
//! called first for every request; [`limit`] is put on every request by the listener.

use http::header::{CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, Method, Request, Version};
use hyper::body::Incoming;

use crate::body::Body;
use crate::fault::ClientFault;

mod upload;

use upload::Limited;
pub use upload::{Limits, Upload};

/// The host a request is for: the same for rules, for cookies and for the backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// As the client wrote it, in lower case, with the port: `shop.example:8080`.
    pub authority: String,
    /// How much of it is the name.
    name_length: usize,
}

impl Host {
    /// Lower case, without port and without the root's trailing dot: what rules are matched on.
    #[must_use]
    pub fn name(&self) -> &str {
        self.authority.get(..self.name_length).unwrap_or_default()
    }
}

/// Refuses what two readers could read differently. Answers the host the request is for.
///
/// # Errors
///
/// [`ClientFault::Malformed`] says which rule was broken.
pub fn check<B>(request: &Request<B>) -> Result<Host, ClientFault> {
    check_target(request)?;
    check_framing(request)?;
    if let Some(Announced { limit }) = request.extensions().get() {
        return Err(ClientFault::BodyTooLarge { limit: *limit });
    }
    host(request).map_err(ClientFault::Malformed)
}

/// The body's announced length is over the limit: [`check`] refuses it before a byte is read, or the backend is told.
#[derive(Clone, Copy)]
struct Announced {
    limit: u64,
}

fn check_target<B>(request: &Request<B>) -> Result<(), ClientFault> {
    let method = request.method();
    if method == Method::CONNECT {
        return Err(ClientFault::Malformed("CONNECT is not served here"));
    }
    if method == Method::TRACE {
        return Err(ClientFault::Malformed("TRACE is not served here"));
    }
    let uri = request.uri();
    if uri.scheme_str().is_some_and(|scheme| scheme != "http" && scheme != "https") {
        return Err(ClientFault::Malformed("the target's scheme is neither http nor https"));
    }
    let path = uri.path();
    if !path.starts_with('/') {
        return Err(ClientFault::Malformed("the target does not start with a slash"));
    }
    let target = uri.path_and_query().map_or(path, |target| target.as_str());
    if target.bytes().any(|byte| byte <= b' ' || byte == 0x7f) {
        return Err(ClientFault::Malformed("the target holds a control character"));
    }
    Ok(())
}

fn check_framing<B>(request: &Request<B>) -> Result<(), ClientFault> {
    let headers = request.headers();
    if let Some(coding) = headers.get(TRANSFER_ENCODING) {
        let plain = coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked");
        let several = headers.get_all(TRANSFER_ENCODING).iter().nth(1).is_some();
        if !plain || several || request.version() != Version::HTTP_11 {
            return Err(ClientFault::Malformed("Transfer-Encoding may only be `chunked`, once"));
        }
    }
    if headers.contains_key(UPGRADE) && has_body(headers) {
        return Err(ClientFault::Malformed("an Upgrade may not carry a body"));
    }
    if request.version() >= Version::HTTP_2 && (headers.contains_key(CONNECTION) || headers.contains_key(UPGRADE)) {
        return Err(ClientFault::Malformed("HTTP/2 has no Connection and no Upgrade"));
    }
    Ok(())
}

fn has_body(headers: &HeaderMap) -> bool {
    headers.contains_key(TRANSFER_ENCODING)
        || headers
            .get(CONTENT_LENGTH)
            .is_some_and(|length| length.as_bytes().trim_ascii() != b"0")
}

/// The one host of a request, from `Host`, the absolute target or `:authority`; what is given twice must agree.
fn host<B>(request: &Request<B>) -> Result<Host, &'static str> {
    let mut lines = request.headers().get_all(HOST).iter();
    let line = lines.next();
    if lines.next().is_some() {
        return Err("there is more than one Host");
    }
    let line = match line {
        Some(line) => Some(line.to_str().map_err(|_| "the Host cannot be read")?.trim_ascii()),
        None if request.version() < Version::HTTP_2 => return Err("there is no Host"),
        None => None,
    };
    let target = request.uri().authority().map(http::uri::Authority::as_str);
    let written = match (line, target) {
        (Some(line), Some(target)) if !line.eq_ignore_ascii_case(target) => return Err("the Host is not the target's"),
        (Some(given), _) | (None, Some(given)) => given,
        (None, None) => return Err("there is no Host"),
    };
    let authority = written.to_ascii_lowercase();
    let name_length = name_of(&authority).ok_or("the Host is not a host")?.len();
    Ok(Host { authority, name_length })
}

/// The host of an authority in lower case, when it is one: a name or an address, and perhaps a port. It is what the authority begins with.
fn name_of(authority: &str) -> Option<&str> {
    let (name, rest) = match authority.strip_prefix('[') {
        Some(inner) => {
            let (address, rest) = inner.split_once(']')?;
            address.parse::<std::net::Ipv6Addr>().ok()?;
            (&authority[..address.len() + 2], rest)
        }
        None => authority.find(':').map_or((authority, ""), |at| authority.split_at(at)),
    };
    if !rest.is_empty() {
        let port = rest.strip_prefix(':')?;
        if !port.bytes().all(|digit| digit.is_ascii_digit()) || (!port.is_empty() && port.parse::<u16>().is_err()) {
            return None;
        }
    }
    if name.starts_with('[') {
        return Some(name);
    }
    let name = name.strip_suffix('.').unwrap_or(name);
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    let empty_label = name.starts_with('.') || name.ends_with('.') || name.contains("..");
    (!name.is_empty() && !empty_label && name.bytes().all(fine)).then_some(name)
}

/// Puts the limits of the listener on a request's body. [`Upload`] tells afterwards whether all of it has been read.
///
/// The body's errors are [`ClientFault`]s, boxed.
#[must_use]
pub fn limit(request: Request<Incoming>, limits: Limits) -> (Request<Body>, Upload) {
    let (mut parts, body) = request.into_parts();
    if http_body::Body::size_hint(&body).lower() > limits.bytes {
        parts.extensions.insert(Announced { limit: limits.bytes });
    }
    if http_body::Body::is_end_stream(&body) {
        return (Request::from_parts(parts, Body::empty()), Upload::none());
    }
    let upload = Upload::begun();
    let body = Body::stream(Limited::new(body, limits, upload.clone()));
    (Request::from_parts(parts, body), upload)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request(uri: &str, headers: &[(&str, &str)], version: Version) -> Request<()> {
        let mut builder = Request::builder().uri(uri).version(version);
        for (name, value) in headers {
            builder = builder.header(*name, *value);
        }
        builder.body(()).unwrap()
    }

    fn name(uri: &str, headers: &[(&str, &str)], version: Version) -> Option<String> {
        check(&request(uri, headers, version)).ok().map(|host| host.name().to_owned())
    }

    #[test]
    fn a_host_is_read_in_one_way() {
        let h1 = |uri, host| name(uri, &[("host", host)], Version::HTTP_11);
        assert_eq!(h1("/", "Shop.Example:8080").as_deref(), Some("shop.example"));
        assert_eq!(h1("/", "shop.example.").as_deref(), Some("shop.example"));
        assert_eq!(h1("/", "[::1]:80").as_deref(), Some("[::1]"));
        assert_eq!(h1("http://a/", "a").as_deref(), Some("a"));
        for bad in [
            "", "a b", "a:b", "a:99999", "[::1", "[x]:1", "a@b", "a/b", "a,b", ".", "a:1:2", "a..", ".a", "a..b",
        ] {
            assert_eq!(h1("/", bad), None, "{bad}");
        }
        assert_eq!(h1("http://a/", "b"), None);
        assert_eq!(name("/", &[], Version::HTTP_11), None);
        assert_eq!(name("/", &[("host", "a"), ("host", "a")], Version::HTTP_11), None);
        assert_eq!(name("http://a/", &[], Version::HTTP_2).as_deref(), Some("a"));
        assert_eq!(name("http://a/", &[("host", "b")], Version::HTTP_2), None);
    }

    proptest! {
        /// CASE 61: a host is read in one way or refused, and what is read is a host: the same for rules, for cookies and for the backend.
        #[test]
        fn any_host_is_read_in_one_way_or_refused(host in "[ -~]{0,30}", target in "[a-zA-Z0-9.:@-]{0,12}") {
            let uri = if target.is_empty() { "/x".to_owned() } else { format!("http://{target}/x") };
            let request = Request::builder().uri(uri).version(Version::HTTP_11).header("host", host.trim()).body(());
            if let Ok(request) = request && let Ok(read) = check(&request) {
                prop_assert_eq!(&read.authority, &host.trim().to_ascii_lowercase());
                prop_assert!(read.authority.starts_with(read.name()) && !read.name().is_empty());
                prop_assert!(!read.name().contains(['@', '/', ' ', ',']), "{:?}", read.name());
                prop_assert!(target.is_empty() || target.eq_ignore_ascii_case(host.trim()));
            }
        }
    }

    #[test]
    fn odd_framing_is_refused() {
        let with = |name, value| check(&request("/", &[("host", "a"), (name, value)], Version::HTTP_11)).is_ok();
        assert!(with("transfer-encoding", "chunked"));
        assert!(with("upgrade", "websocket"));
        for coding in ["gzip, chunked", "chunked, chunked", "identity", "xchunked", ""] {
            assert!(!with("transfer-encoding", coding), "{coding}");
        }
        let upgrade = |length| {
            check(&request(
                "/",
                &[("host", "a"), ("upgrade", "x"), ("content-length", length)],
                Version::HTTP_11,
            ))
        };
        assert!(upgrade("5").is_err());
        assert!(upgrade("0").is_ok());
    }

    #[test]
    fn browsers_odd_targets_pass() {
        for target in ["/sale?a[]=1", "/sale?q=100%", "/%zz", "/sale?x=%E2%9C%93", "/a;b?c"] {
            assert!(name(target, &[("host", "a")], Version::HTTP_11).is_some(), "{target}");
        }
    }
}
