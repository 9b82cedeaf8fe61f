//! The handshake: bounded in time and in number, before anything else is known of the client.
//!
//! A turn is taken only when the client's first message is complete: whoever sends half of one holds a connection, for as long as a handshake
//! may take, and keeps nobody else from having theirs.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use rustls::server::Acceptor;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;

use super::moved::Moved;
use super::socket::Spoken;
use crate::clock::UnixMs;
use crate::config::{self, Config};

/// How long before its end a certificate is complained about.
const SOON_MS: u64 = 14 * 24 * 3600 * 1000;

/// How handshakes are answered.
#[derive(Clone, Debug)]
pub(super) struct Tls {
    server: Arc<ServerConfig>,
    limit: Duration,
    turns: Arc<Semaphore>,
}

impl Tls {
    pub(super) fn new(settings: &config::Tls) -> Self {
        Self {
            server: Arc::clone(&settings.server.0),
            limit: settings.handshake_timeout,
            turns: Arc::new(Semaphore::new(settings.max_handshakes)),
        }
    }

    /// The secured connection, and what it was agreed to speak on it, if anything was.
    pub(super) async fn shake_hands(&self, io: TcpStream) -> io::Result<(TlsStream<Moved>, Option<Spoken>)> {
        let handshake = async {
            let hello = LazyConfigAcceptor::new(Acceptor::default(), Moved::new(io)).await?;
            let _turn = self.turns.acquire().await.map_err(io::Error::other)?;
            hello.into_stream(Arc::clone(&self.server)).await
        };
        let secured = timeout(self.limit, handshake).await.map_err(io::Error::from)??;
        let spoken = match secured.get_ref().1.alpn_protocol() {
            Some(b"h2") => Some(Spoken::Http2),
            Some(_) => Some(Spoken::Http1),
            None => None,
        };
        Ok((secured, spoken))
    }
}

/// Says which certificates are over, or soon will be: those that browsers are shown, and the one that backends are. To be called whenever
/// settings come into force.
pub fn warn_of_dates(settings: &Config, now_ms: UnixMs) {
    let shown = settings.tls.iter().flat_map(|tls| &tls.certificates);
    for certificate in shown.chain(&settings.upstream.tls.certificate) {
        let file = certificate.chain.display();
        if certificate.expires_at <= now_ms {
            tracing::warn!(%file, names = ?certificate.names, "this certificate has expired: whoever is shown it will not go on");
        } else if certificate.expires_at <= now_ms + SOON_MS {
            let days = (certificate.expires_at - now_ms) / (24 * 3600 * 1000);
            tracing::warn!(%file, names = ?certificate.names, days, "this certificate expires soon");
        }
    }
}
