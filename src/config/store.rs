//! Where lines and stock are kept: a private Redis, or one of yours in one of three kinds.
//!
//! What stands in `store.url` is read in [`site`]. Passwords are never in the settings file itself: the whole URL can be in a file of its own, or
//! the password alone. A store that is spoken to over TLS is always verified, by the same rules as a backend at `https://`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::ServerName;

use super::read::secret_file;
use super::source::Section;
use super::tls::{Certificate, certificate};
use super::upstream::{clients, machine, roots};
use super::values::{duration, size, word};
use super::{Config, Secret};

mod site;

pub use site::{Host, Kind, Login, Site, Tls};

/// Where lines and stock are kept.
#[derive(Clone, Debug)]
pub struct Store {
    /// As it is written: `redis://…` of a Redis of yours; none: waitgate runs a private one in `data_dir`.
    pub url: Option<Secret>,
    /// The same as it is used, with users, passwords and TLS.
    pub site: Option<Site>,
    /// Who we are to the Redis, where the URL does not say.
    pub user: Option<String>,
    /// The word that goes with it.
    pub password: Option<Secret>,
    /// Who we are to the sentinels.
    pub sentinel_user: Option<String>,
    /// The word that goes with it.
    pub sentinel_password: Option<Secret>,
    /// Whom we believe, and who we are, over TLS.
    pub tls: StoreTls,
    /// Where the private Redis, and the keys of tokens, live.
    pub data_dir: PathBuf,
    /// The server program of the private Redis; none: `redis-server`, else `valkey-server`, from `PATH`.
    pub program: Option<PathBuf>,
    /// How long one call may take.
    pub call_timeout: Duration,
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// Memory the private Redis may use, in bytes; 0 is no limit.
    pub max_memory: u64,
}

/// A store that is spoken to over TLS.
#[derive(Clone, Debug, Default)]
pub struct StoreTls {
    /// The file with the authorities that are believed; none: the machine's.
    pub roots: Option<PathBuf>,
    /// The name that certificates must be for, in place of that by which a server is reached.
    pub name: Option<String>,
    /// What we show to a server that asks who we are.
    pub certificate: Option<Certificate>,
}

pub(super) fn read_store(section: &Section<'_>, file: &Path) -> Option<Store> {
    let url = section.get("url", |value| {
        let url = word(value)?;
        if Site::parse(&url)?.has_password() {
            return Err(
                "a password does not belong into this file: put the whole URL into a file of its own and name it as `store.url_file`, or the password \
                 alone and name it as `store.password_file`"
                    .to_owned(),
            );
        }
        Ok(Secret::new(url))
    });
    let url_file = section.get("url_file", |value| {
        let secret = secret_file(file, &word(value)?, 1)?;
        Site::parse(secret.reveal())?;
        Ok(secret)
    });
    if section.has("url") && section.has("url_file") {
        section.wrong("url_file", "the store has one URL: set `url` or `url_file`");
    }
    let url = url_file.or(url);
    let site = url.as_ref().and_then(|url| Site::parse(url.reveal()).ok());
    let secret = |key| section.get(key, |value| secret_file(file, &word(value)?, 1));
    let mut store = Store {
        url,
        site: None,
        user: section.get("user", word),
        password: secret("password_file"),
        sentinel_user: section.get("sentinel_user", word),
        sentinel_password: secret("sentinel_password_file"),
        tls: StoreTls::default(),
        data_dir: section.get("data_dir", |value| Ok(Config::beside(file, Path::new(&word(value)?))))?,
        program: section.get("program", |value| program(file, &word(value)?)),
        call_timeout: section.get("call_timeout", duration)?,
        connect_timeout: section.get("connect_timeout", duration)?,
        max_memory: section.get("max_memory", size(0, 1 << 50))?,
    };
    let ready = read_tls(
        &section.section("tls"),
        file,
        site.as_ref().is_some_and(Site::is_secured),
        &mut store.tls,
    );
    check_logins(section, &store, site.as_ref());
    section.finish();
    store.site = site.map(|site| with_settings(site, &store, ready));
    Some(store)
}

/// Users and passwords have to belong to somebody, once.
fn check_logins(section: &Section<'_>, store: &Store, site: Option<&Site>) {
    if !(section.has("url") || section.has("url_file")) {
        for key in ["user", "password_file", "sentinel_user", "sentinel_password_file"] {
            if section.has(key) {
                section.wrong(
                    key,
                    "this is for a Redis of yours: set `store.url`; the private one lets nobody else in anyway",
                );
            }
        }
        return;
    }
    let Some(site) = site else { return };
    for (user, password) in [("user", "password_file"), ("sentinel_user", "sentinel_password_file")] {
        if section.has(user) && !section.has(password) {
            section.wrong(user, format!("a user needs a password: set `store.{password}`"));
        }
    }
    if !matches!(site.kind, Kind::Sentinel { .. }) {
        for key in ["sentinel_user", "sentinel_password_file"] {
            if section.has(key) {
                section.wrong(key, "there are no sentinels: `store.url` does not begin with redis+sentinel://");
            }
        }
    }
    if site.has_password() && store.password.is_some() {
        section.wrong("password_file", "there is a password in the URL already: it is one or the other");
    }
}

fn with_settings(mut site: Site, store: &Store, tls: Option<Arc<rustls::ClientConfig>>) -> Site {
    let login = |user: &Option<String>, password: &Option<Secret>| Login {
        user: user.clone(),
        password: password.clone(),
    };
    if store.password.is_some() {
        site.login = login(&store.user, &store.password);
    }
    site.sentinel_login = login(&store.sentinel_user, &store.sentinel_password);
    if let Some(secured) = &mut site.tls {
        secured.name.clone_from(&store.tls.name);
        secured.client = tls;
    }
    site
}

/// What rustls needs; none where the store is not spoken to over TLS, or something of it is wrong, which has been noted then.
fn read_tls(section: &Section<'_>, file: &Path, secured: bool, tls: &mut StoreTls) -> Option<Arc<rustls::ClientConfig>> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let authorities = section.get("roots", |value| roots(value, file));
    tls.name = section.get("name", |value| {
        let name = word(value)?;
        let fits = ServerName::try_from(name.as_str()).is_ok();
        fits.then_some(name.clone())
            .ok_or_else(|| format!("`{name}` is not the name of a host"))
    });
    tls.certificate = section.get("certificate", |value| certificate(value, file, &provider));
    section.finish();
    if !secured {
        for key in ["roots", "name", "certificate"] {
            if section.has(key) {
                section.wrong(
                    key,
                    "the store is not spoken to over TLS: `store.url` begins with rediss:// or rediss+ where it is",
                );
            }
        }
        return None;
    }
    let authorities = match authorities {
        Some((file, authorities)) => {
            tls.roots = Some(file);
            authorities
        }
        None if section.has("roots") => return None,
        None => machine(),
    };
    if authorities.is_empty() {
        section.wrong(
            "roots",
            "this machine knows no authorities: name a file with those that the store's certificates lead to",
        );
        return None;
    }
    match clients(&provider, authorities, tls.certificate.as_ref()) {
        Ok(client) => {
            let mut plain = client.http1.as_ref().clone();
            plain.alpn_protocols.clear();
            Some(Arc::new(plain))
        }
        Err(error) => {
            section.wrong("roots", format!("TLS to the store cannot be set up: {error}"));
            None
        }
    }
}

/// A bare name is looked up in `PATH` later; anything with a slash is a file.
fn program(file: &Path, name: &str) -> Result<PathBuf, String> {
    if !name.contains('/') {
        return Ok(PathBuf::from(name));
    }
    let program = Config::beside(file, Path::new(name));
    if program.is_file() {
        return Ok(program);
    }
    Err(format!("there is no program {}", program.display()))
}
