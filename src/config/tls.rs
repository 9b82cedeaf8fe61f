//! The HTTPS listener's settings: certificates and keys are read, matched and made ready here, so that a bad file is a mistake of the settings.
//!
//! A server chooses the certificate by the name the client asks for: the exact name first, then a wildcard one level up, else the first of the
//! list. Names are the certificates' own. Sessions are resumed by tickets whose keys belong to one reading of the settings.

use std::collections::HashMap;
use std::fmt;
use std::io::Read as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ServerConfig, SupportedProtocolVersion, version};
use toml::de::DeValue;
use x509_parser::extensions::GeneralName;

use super::Config;
use super::source::{Section, kind};
use super::values::{Read, choice, count, counted, duration, listen, switch, word};
use crate::clock::UnixMs;

/// A certificate's or a key's file at most.
const MAX_FILE: u64 = 1 << 20;
/// No handshake may take longer than this.
const LONGEST_HANDSHAKE: Duration = Duration::from_secs(10);

/// The HTTPS listener.
#[derive(Clone, Debug)]
pub struct Tls {
    /// Address to listen on.
    pub listen: SocketAddr,
    /// At least one; the first answers whoever asks for a name that none has.
    pub certificates: Vec<Certificate>,
    /// The oldest version that is spoken.
    pub min_version: TlsVersion,
    /// How long a handshake may take.
    pub handshake_timeout: Duration,
    /// Handshakes at once at most; more wait for their turn.
    pub max_handshakes: usize,
    /// The plain listener only sends on to https.
    pub redirect: bool,
    /// The port it sends to.
    pub redirect_port: u16,
    /// How long browsers are told to come by https only; none: they are told nothing.
    pub hsts: Option<Duration>,
    /// All this as rustls wants it.
    pub server: TlsServer,
}

/// A version of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsVersion {
    /// TLS 1.2.
    V1_2,
    /// TLS 1.3.
    V1_3,
}

/// A certificate with its key, read and matched.
#[derive(Clone)]
pub struct Certificate {
    /// The file with the certificate and those that lead to its root.
    pub chain: PathBuf,
    /// The file with the private key.
    pub key: PathBuf,
    /// The DNS names it is for, in lower case; `*.example.com` is every name one level below.
    pub names: Vec<String>,
    /// When it is over.
    pub expires_at: UnixMs,
    ready: Arc<CertifiedKey>,
}

impl Certificate {
    pub(super) fn ready(&self) -> CertifiedKey {
        self.ready.as_ref().clone()
    }
}

impl fmt::Debug for Certificate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = formatter.debug_struct("Certificate");
        shown
            .field("chain", &self.chain)
            .field("key", &self.key)
            .field("names", &self.names);
        shown.field("expires_at", &self.expires_at).finish_non_exhaustive()
    }
}

/// What rustls needs to answer handshakes.
#[derive(Clone)]
pub struct TlsServer(pub Arc<ServerConfig>);

impl fmt::Debug for TlsServer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("(keys)")
    }
}

/// None where nobody asks for HTTPS, or something of it is wrong, which has been noted then.
pub(super) fn read_tls(section: &Section<'_>, file: &Path) -> Option<Tls> {
    let versions = &[("1.2", TlsVersion::V1_2), ("1.3", TlsVersion::V1_3)];
    let provider = Arc::new(aws_lc_rs::default_provider());
    let listen = section.get("listen", listen);
    let certificates = section.list("certificates", |value| certificate(value, file, &provider));
    let min_version = section.get("min_version", choice(versions));
    let handshake_timeout = section.get("handshake_timeout", |value| match duration(value)? {
        longer if longer > LONGEST_HANDSHAKE => Err("this is 10s at most: whoever stalls must not hold a connection".to_owned()),
        limit => Ok(limit),
    });
    let max_handshakes = section.get("max_handshakes", counted(1, 1 << 20));
    let redirect = section.get("redirect", switch);
    let redirect_port = section.get("redirect_port", |value| Ok(u16::try_from(count(1, 65535)(value)?).unwrap_or(443)));
    let hsts = section.get("hsts", duration);
    section.finish();
    if listen.is_none() {
        for key in ["hsts", "redirect"] {
            if section.has(key) && (key == "hsts" || redirect == Some(true)) {
                section.wrong(key, "this needs HTTPS: set `tls.listen` and `tls.certificates`");
            }
        }
        return None;
    }
    let certificates = certificates.unwrap_or_default();
    if certificates.is_empty() {
        if !section.has("certificates") || section.is_empty_list("certificates") {
            section.wrong("listen", "HTTPS needs a certificate: set `tls.certificates`");
        }
        return None;
    }
    let min_version = min_version?;
    let server = match server(provider, min_version, &certificates) {
        Ok(server) => TlsServer(Arc::new(server)),
        Err(error) => {
            section.wrong("listen", format!("TLS cannot be set up: {error}"));
            return None;
        }
    };
    Some(Tls {
        listen: listen?,
        certificates,
        min_version,
        handshake_timeout: handshake_timeout?,
        max_handshakes: max_handshakes?,
        redirect: redirect?,
        redirect_port: redirect_port?,
        hsts,
        server,
    })
}

/// One item of the list: `{ chain = "…", key = "…" }`.
pub(super) fn certificate(value: &DeValue<'_>, file: &Path, provider: &CryptoProvider) -> Read<Certificate> {
    let wrong = "a certificate is written { chain = \"fullchain.pem\", key = \"privkey.pem\" }";
    let DeValue::Table(table) = value else {
        return Err(format!("{wrong}, not {}", kind(value)));
    };
    if let Some(other) = table.keys().find(|key| !["chain", "key"].contains(&key.get_ref().as_ref())) {
        return Err(format!("there is no `{}` in it: {wrong}", other.get_ref()));
    }
    let named = |key: &str| {
        let value = table.get(key).ok_or_else(|| format!("`{key}` is missing: {wrong}"))?;
        Ok::<_, String>(Config::beside(file, Path::new(&word(value.get_ref())?)))
    };
    load(named("chain")?, named("key")?, provider)
}

fn load(chain: PathBuf, key: PathBuf, provider: &CryptoProvider) -> Read<Certificate> {
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(&contents(&chain)?)
        .collect::<Result<_, _>>()
        .map_err(|error| format!("{} is not PEM as it should be: {error}", chain.display()))?;
    let Some(first) = certificates.first() else {
        return Err(format!("there is no certificate in {}", chain.display()));
    };
    let (names, expires_at) = passport(first).ok_or_else(|| format!("the first certificate in {} cannot be read", chain.display()))?;
    let private = PrivateKeyDer::from_pem_slice(&contents(&key)?)
        .map_err(|_| format!("there is no private key in {} (PEM, without a password)", key.display()))?;
    let ready = CertifiedKey::from_der(certificates, private, provider).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => {
            format!("the key in {} is not that of the certificate in {}", key.display(), chain.display())
        }
        other => format!("the key in {} cannot be used: {other}", key.display()),
    })?;
    Ok(Certificate {
        chain,
        key,
        names,
        expires_at,
        ready: Arc::new(ready),
    })
}

pub(super) fn contents(file: &Path) -> Read<Vec<u8>> {
    let unreadable = |error: std::io::Error| format!("{} cannot be read: {error}", file.display());
    let mut bytes = Vec::new();
    let opened = std::fs::File::open(file).map_err(unreadable)?;
    opened.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(format!("{} is too large for what it should be", file.display()));
    }
    Ok(bytes)
}

/// The DNS names of a certificate, and when it is over.
fn passport(certificate: &[u8]) -> Option<(Vec<String>, UnixMs)> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let others = parsed.subject_alternative_name().ok()?;
    let names = others.iter().flat_map(|names| &names.value.general_names);
    let names = names.filter_map(|name| match name {
        GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
        _ => None,
    });
    let seconds = u64::try_from(parsed.validity().not_after.timestamp()).unwrap_or(0);
    Some((names.collect(), seconds.saturating_mul(1000)))
}

fn server(provider: Arc<CryptoProvider>, oldest: TlsVersion, certificates: &[Certificate]) -> Result<ServerConfig, rustls::Error> {
    const BOTH: &[&SupportedProtocolVersion] = &[&version::TLS13, &version::TLS12];
    const NEW: &[&SupportedProtocolVersion] = &[&version::TLS13];
    let versions = match oldest {
        TlsVersion::V1_2 => BOTH,
        TlsVersion::V1_3 => NEW,
    };
    let mut server = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(ByName::of(certificates)));
    server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    server.ticketer = aws_lc_rs::Ticketer::new()?;
    Ok(server)
}

/// Certificates by the names they are for.
struct ByName {
    names: HashMap<String, Arc<CertifiedKey>>,
    otherwise: Option<Arc<CertifiedKey>>,
}

impl ByName {
    fn of(certificates: &[Certificate]) -> Self {
        let mut names = HashMap::new();
        for certificate in certificates {
            for name in &certificate.names {
                // The first that has a name keeps it.
                names.entry(name.clone()).or_insert_with(|| Arc::clone(&certificate.ready));
            }
        }
        Self {
            names,
            otherwise: certificates.first().map(|certificate| Arc::clone(&certificate.ready)),
        }
    }

    fn find(&self, name: &str) -> Option<&Arc<CertifiedKey>> {
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        let exact = self.names.get(&name);
        exact.or_else(|| self.names.get(&format!("*.{}", name.split_once('.')?.1)))
    }
}

impl fmt::Debug for ByName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.names.keys()).finish()
    }
}

impl ResolvesServerCert for ByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let found = hello.server_name().and_then(|name| self.find(name));
        found.or(self.otherwise.as_ref()).map(Arc::clone)
    }
}
