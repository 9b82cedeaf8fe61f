//! How backends are spoken to: time limits, places, the version of HTTP, and whom we believe over TLS.
//!
//! A backend at `https://` is always verified: its certificate has to lead to one of `tls.roots`, or of the machine's own where that is not set,
//! and has to be for the name in its URL or for `tls.name`. The files are read here, so that a bad one is a mistake of the settings.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, RootCertStore};
use toml::de::DeValue;

use super::Config;
use super::source::Section;
use super::tls::{Certificate, certificate, contents};
use super::values::{Read, choice, counted, duration, duration_or_zero, small, text, word};

/// How upstreams are spoken to.
#[derive(Clone, Debug)]
pub struct Upstream {
    /// Connecting, with whatever handshake belongs to it.
    pub connect_timeout: Duration,
    /// From the last byte of the request to the head of the answer.
    pub first_byte_timeout: Duration,
    /// The longest pause inside a body, either way.
    pub idle_timeout: Duration,
    /// How long an idle pooled connection is kept; below the backend's own keep-alive.
    pub keep_alive: Duration,
    /// Connections and requests in flight per upstream at most.
    pub max_in_flight: usize,
    /// How long a request may wait for its turn when that many are in flight.
    pub queue_timeout: Duration,
    /// Failures in a row after which a backend is left alone for a while.
    pub max_failures: u32,
    /// How long it is left alone the first time; each further time twice as long, up to [`Upstream::MAX_REST`].
    pub rest: Duration,
    /// What is spoken.
    pub http: HttpVersion,
    /// Backends at `https://`.
    pub tls: UpstreamTls,
    /// How backends are asked whether they are well; none: they are not asked.
    pub health: Option<Health>,
}

impl Upstream {
    /// The longest a failing backend is left alone, and the longest `rest` that can be asked for.
    pub const MAX_REST: Duration = Duration::from_secs(60);
}

/// A version of HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpVersion {
    /// One request at a time on a connection.
    Http1,
    /// Many at once. Over TLS a backend that does not offer it is spoken to in HTTP/1.1; without TLS it is begun at once, so the backend must know.
    Http2,
}

/// How backends are asked whether they are well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// What is asked for with a `GET`; any 2xx or 3xx is good.
    pub path: http::uri::PathAndQuery,
    /// How often.
    pub interval: Duration,
    /// How long the answer may take.
    pub timeout: Duration,
    /// Good answers in a row after which a backend that was down is up.
    pub rise: u32,
    /// Bad answers in a row after which it is down.
    pub fall: u32,
}

/// Backends at `https://`.
#[derive(Clone, Debug, Default)]
pub struct UpstreamTls {
    /// The file with the authorities that are believed; none: the machine's.
    pub roots: Option<PathBuf>,
    /// The name that certificates must be for, in place of that in the URL.
    pub name: Option<String>,
    /// What we show to a backend that asks who we are.
    pub certificate: Option<Certificate>,
    /// All this as rustls wants it; none where no backend is at `https://`.
    pub client: Option<TlsClient>,
}

/// What rustls needs to begin handshakes.
#[derive(Clone)]
pub struct TlsClient {
    /// For connections that are to speak HTTP/1.1.
    pub http1: Arc<ClientConfig>,
    /// For those that may speak HTTP/2.
    pub http2: Arc<ClientConfig>,
}

impl fmt::Debug for TlsClient {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("(authorities)")
    }
}

/// `secured`: there is a backend at `https://`, or may be.
pub(super) fn read_upstream(section: &Section<'_>, file: &Path, secured: bool) -> Option<Upstream> {
    let upstream = Upstream {
        connect_timeout: section.get("connect_timeout", duration)?,
        first_byte_timeout: section.get("first_byte_timeout", duration)?,
        idle_timeout: section.get("idle_timeout", duration)?,
        keep_alive: section.get("keep_alive", duration_or_zero)?,
        max_in_flight: section.get("max_in_flight", counted(1, super::read::MANY))?,
        queue_timeout: section.get("queue_timeout", duration_or_zero)?,
        max_failures: section.get("max_failures", small(1, 1000))?,
        rest: section.get("rest", |value| match duration(value)? {
            rest if rest > Upstream::MAX_REST => Err("a failing backend is left alone for 1min at most".to_owned()),
            rest => Ok(rest),
        })?,
        http: section.get("http", choice(&[("1.1", HttpVersion::Http1), ("2", HttpVersion::Http2)]))?,
        tls: read_tls(&section.section("tls"), file, secured),
        health: read_health(&section.section("health"))?,
    };
    section.finish();
    Some(upstream)
}

/// The outer none says that a key is wrong, the inner that nobody wants to ask.
fn read_health(section: &Section<'_>) -> Option<Option<Health>> {
    let path = section.get("path", |value| {
        let text = text(value)?;
        let path = text.parse().ok().filter(|_| text.starts_with('/'));
        path.ok_or_else(|| format!("`{text}` is not a path: write it like \"/healthz\""))
    });
    let (interval, timeout) = (section.get("interval", duration), section.get("timeout", duration));
    let (rise, fall) = (section.get("rise", small(1, 100)), section.get("fall", small(1, 100)));
    section.finish();
    let (interval, timeout, rise, fall) = (interval?, timeout?, rise?, fall?);
    Some(path.map(|path| Health {
        path,
        interval,
        timeout,
        rise,
        fall,
    }))
}

fn read_tls(section: &Section<'_>, file: &Path, secured: bool) -> UpstreamTls {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let authorities = section.get("roots", |value| roots(value, file));
    let name = section.get("name", |value| {
        let name = word(value)?;
        let fits = ServerName::try_from(name.as_str()).is_ok();
        fits.then_some(name.clone())
            .ok_or_else(|| format!("`{name}` is not the name of a host"))
    });
    let ours = section.get("certificate", |value| certificate(value, file, &provider));
    section.finish();
    let mut tls = UpstreamTls {
        roots: None,
        name,
        certificate: ours,
        client: None,
    };
    let authorities = match authorities {
        Some((file, authorities)) => {
            tls.roots = Some(file);
            authorities
        }
        None if secured && !section.has("roots") => {
            let authorities = machine();
            if authorities.is_empty() {
                section.wrong(
                    "roots",
                    "this machine knows no authorities: name a file with those that the backends' certificates lead to",
                );
            }
            authorities
        }
        None => return tls,
    };
    match clients(&provider, authorities, tls.certificate.as_ref()) {
        Ok(client) => tls.client = Some(client),
        Err(error) => section.wrong("roots", format!("TLS to backends cannot be set up: {error}")),
    }
    tls
}

/// The authorities in a file, with its place.
pub(super) fn roots(value: &DeValue<'_>, file: &Path) -> Read<(PathBuf, RootCertStore)> {
    let file = Config::beside(file, Path::new(&word(value)?));
    let mut authorities = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&contents(&file)?) {
        let certificate = certificate.map_err(|error| format!("{} is not PEM as it should be: {error}", file.display()))?;
        let refused = |error| format!("a certificate in {} cannot be an authority: {error}", file.display());
        authorities.add(certificate).map_err(refused)?;
    }
    if authorities.is_empty() {
        return Err(format!("there is no certificate in {}", file.display()));
    }
    Ok((file, authorities))
}

/// The authorities this machine believes. What of them cannot be read is left out, as everybody does.
pub(super) fn machine() -> RootCertStore {
    let mut authorities = RootCertStore::empty();
    authorities.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    authorities
}

pub(super) fn clients(
    provider: &Arc<CryptoProvider>,
    authorities: RootCertStore,
    ours: Option<&Certificate>,
) -> Result<TlsClient, rustls::Error> {
    let builder = ClientConfig::builder_with_provider(Arc::clone(provider))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(authorities);
    let mut http1 = match ours {
        Some(ours) => builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(ours.ready()))),
        None => builder.with_no_client_auth(),
    };
    http1.alpn_protocols = vec![b"http/1.1".to_vec()];
    let mut http2 = http1.clone();
    http2.alpn_protocols.insert(0, b"h2".to_vec());
    Ok(TlsClient {
        http1: Arc::new(http1),
        http2: Arc::new(http2),
    })
}
