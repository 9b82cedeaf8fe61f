//! The plain listener's only answer when everybody is to come by https.

use http::header::{CACHE_CONTROL, LOCATION};
use http::{HeaderValue, Request, Response, StatusCode};

use crate::body::Body;
use crate::fault::Fault;
use crate::intake;

/// The same address by https: the host without its port, and the path and query byte for byte.
pub(super) fn to_https(request: &Request<Body>, port: u16) -> Response<Body> {
    let (status, location) = match intake::check(request) {
        Ok(host) => {
            let port = if port == 443 { String::new() } else { format!(":{port}") };
            let target = request.uri().path_and_query().map_or("/", |target| target.as_str());
            let location = HeaderValue::from_str(&format!("https://{}{port}{target}", host.name()));
            location.map_or((StatusCode::BAD_REQUEST, None), |location| {
                (StatusCode::PERMANENT_REDIRECT, Some(location))
            })
        }
        Err(fault) => (Fault::from(fault).status(), None),
    };
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(location) = location {
        response.headers_mut().insert(LOCATION, location);
    }
    response
}
