//! WebSocket pass-through. Nothing is tunnelled before the backend has said 101; after that the bytes are none of our business.
//!
//! Only HTTP/1.1, only `websocket`: any other `Upgrade` is a header of one hop, and is left out. A tunnel lives in the tasks of [`Stop`], holds
//! its turn among the requests in flight, and is cut when the drain limit has passed.

use http::header::{CONNECTION, UPGRADE};
use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode, Version};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncWriteExt as _, copy_bidirectional};

use super::backend::Seat;
use super::headers;
use super::lane::Lane;
use crate::body::Body;
use crate::fault::UpstreamFault;
use crate::stop::Stop;

/// The client's end of a tunnel, when the request asks for a WebSocket.
pub(super) fn asked(parts: &mut Parts) -> Option<OnUpgrade> {
    let client = parts.extensions.remove::<OnUpgrade>()?;
    let mut protocols = parts.headers.get_all(UPGRADE).iter();
    let websocket = protocols
        .next()
        .is_some_and(|protocol| protocol.as_bytes().trim_ascii().eq_ignore_ascii_case(b"websocket"));
    let asked = websocket
        && protocols.next().is_none()
        && parts.method == Method::GET
        && parts.version == Version::HTTP_11
        && headers::lists(&parts.headers, CONNECTION, "upgrade");
    asked.then_some(client)
}

/// The backend said 101: answers the client the same, and lets the bytes run.
pub(super) fn begin(
    client: Option<OnUpgrade>,
    response: Response<Incoming>,
    (lane, seat): (Box<Lane>, Seat),
    stop: &Stop,
) -> Result<Response<Body>, UpstreamFault> {
    let Some(client) = client else {
        return Err(UpstreamFault::Malformed("it switched protocols and nobody had asked"));
    };
    if !headers::lists(response.headers(), UPGRADE, "websocket") {
        return Err(UpstreamFault::Malformed("it switched to another protocol than was asked for"));
    }
    let cut = stop.cut.clone();
    stop.tasks.spawn(async move {
        let _seat = seat;
        tokio::select! {
            () = cut.cancelled() => {}
            () = tunnel(client, lane) => {}
        }
    });
    let (mut parts, _) = response.into_parts();
    headers::incoming(&mut parts.headers);
    parts.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    parts.headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    parts.status = StatusCode::SWITCHING_PROTOCOLS;
    parts.version = Version::HTTP_11;
    Ok(Response::from_parts(parts, Body::empty()))
}

async fn tunnel(client: OnUpgrade, lane: Box<Lane>) {
    let (mut backend, first) = lane.into_tunnel().await;
    let mut client = match client.await {
        Ok(client) => TokioIo::new(client),
        Err(error) => {
            tracing::debug!(%error, "a tunnel was given up before it began");
            return;
        }
    };
    let ends = async {
        client.write_all(&first).await?;
        copy_bidirectional(&mut client, &mut backend).await
    };
    if let Err(error) = ends.await {
        tracing::debug!(%error, "a tunnel broke");
    }
}
