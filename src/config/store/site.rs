//! The address of a store: which kind it is, which hosts are asked first, and who we are to them.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use redis::{ConnectionAddr, IntoConnectionInfo};
use rustls::ClientConfig;

use crate::config::Secret;

/// What is written as a store.
const FORMS: &str = "redis://host:port/database, redis+unix:///path, redis+sentinel://host:port,host:port/name/database or \
                     redis+cluster://host:port,host:port; rediss:// and rediss+ speak TLS";
/// The port of a Redis, and of a sentinel.
const PORTS: (u16, u16) = (6379, 26379);

/// A store, as it is reached.
#[derive(Clone, Debug)]
pub struct Site {
    /// What kind it is.
    pub kind: Kind,
    /// The server, the sentinels, or the nodes that are asked first; at least one.
    pub hosts: Vec<Host>,
    /// The number of the database; 0 on a cluster.
    pub database: i64,
    /// Who we are to the servers.
    pub login: Login,
    /// Who we are to the sentinels.
    pub sentinel_login: Login,
    /// How TLS is spoken; none: it is not.
    pub tls: Option<Tls>,
}

/// The kinds of stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One server.
    One,
    /// One primary at a time, which the sentinels name.
    Sentinel {
        /// What they call it.
        name: String,
    },
    /// Several primaries, each for a part of the keys.
    Cluster,
}

/// Where a process listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Host {
    /// A name or address, and a port.
    Tcp(String, u16),
    /// A socket's path.
    Unix(PathBuf),
}

impl fmt::Display for Host {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(name, port) if name.contains(':') => write!(to, "[{name}]:{port}"),
            Self::Tcp(name, port) => write!(to, "{name}:{port}"),
            Self::Unix(path) => path.display().fmt(to),
        }
    }
}

/// Who we are.
#[derive(Clone, Debug, Default)]
pub struct Login {
    /// The ACL user; none: `default`.
    pub user: Option<String>,
    /// Its password; none: nobody asks.
    pub password: Option<Secret>,
}

/// How TLS is spoken.
#[derive(Clone, Default)]
pub struct Tls {
    /// The name that certificates must be for, in place of the host's.
    pub name: Option<String>,
    /// What rustls needs; none as long as only the URL was read.
    pub client: Option<Arc<ClientConfig>>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("Tls").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Site {
    /// Reads a URL.
    ///
    /// # Errors
    /// What is wrong with it, in a sentence that does not repeat it: there may be a password in it.
    pub fn parse(url: &str) -> Result<Self, String> {
        let (scheme, rest) = url.split_once("://").ok_or_else(|| format!("a store is written {FORMS}"))?;
        let (secured, kind) = match scheme {
            "redis" | "redis+unix" => (false, Kind::One),
            "rediss" => (true, Kind::One),
            "redis+sentinel" | "rediss+sentinel" => (scheme.starts_with("rediss"), Kind::Sentinel { name: String::new() }),
            "redis+cluster" | "rediss+cluster" => (scheme.starts_with("rediss"), Kind::Cluster),
            _ => return Err(format!("a store is written {FORMS}")),
        };
        if rest.contains('#') {
            return Err("nothing follows a `#` here: certificates are always verified".to_owned());
        }
        let mut site = match kind {
            Kind::One => Self::one(if secured { "redis" } else { scheme }, rest)?,
            kind => Self::several(kind, rest)?,
        };
        site.tls = secured.then(Tls::default);
        Ok(site)
    }

    fn one(scheme: &str, rest: &str) -> Result<Self, String> {
        let not_one = || format!("this is not the URL of a Redis: write {FORMS}");
        let url = redis::parse_redis_url(&format!("{scheme}://{rest}")).ok_or_else(not_one)?;
        let info = url.into_connection_info().map_err(|_| not_one())?;
        let host = match info.addr() {
            ConnectionAddr::Tcp(name, port) => Host::Tcp(bare(name).to_owned(), *port),
            ConnectionAddr::Unix(path) => Host::Unix(path.clone()),
            _ => return Err(not_one()),
        };
        let settings = info.redis_settings();
        Ok(Self {
            kind: Kind::One,
            hosts: vec![host],
            database: settings.db(),
            login: Login {
                user: settings.username().map(str::to_owned),
                password: settings.password().map(|password| Secret::new(password.to_owned())),
            },
            sentinel_login: Login::default(),
            tls: None,
        })
    }

    /// Several hosts, between commas.
    fn several(kind: Kind, rest: &str) -> Result<Self, String> {
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = authority.rsplit_once('@').map_or(("", authority), |(login, hosts)| (login, hosts));
        let (kind, database, port) = match kind {
            Kind::Sentinel { .. } => {
                let (name, database) = path.split_once('/').unwrap_or((path, ""));
                let named = !name.is_empty()
                    && name
                        .bytes()
                        .all(|letter| letter.is_ascii_alphanumeric() || b".-_".contains(&letter));
                if !named {
                    return Err(
                        "say what the sentinels call the primary, after a slash: redis+sentinel://host:port,host:port/mymaster".to_owned(),
                    );
                }
                (Kind::Sentinel { name: name.to_owned() }, database, PORTS.1)
            }
            kind => (kind, path, PORTS.0),
        };
        let number = if database.is_empty() { Some(0) } else { database.parse().ok() };
        let number: u16 = number.ok_or_else(|| "the database, after the last slash, is a number".to_owned())?;
        if kind == Kind::Cluster && number != 0 {
            return Err("a cluster has only database 0".to_owned());
        }
        let hosts: Vec<_> = hosts.split(',').map(|written| host(written, port)).collect::<Result<_, _>>()?;
        // The login is written as it is for one server, percent signs and all.
        let login = match login {
            "" => Login::default(),
            login => Self::one("redis", &format!("{login}@x"))?.login,
        };
        Ok(Self {
            kind,
            hosts,
            database: i64::from(number),
            login,
            sentinel_login: Login::default(),
            tls: None,
        })
    }

    /// Whether TLS is spoken.
    #[must_use]
    pub fn is_secured(&self) -> bool {
        self.tls.is_some()
    }

    /// Whether there is a user or a password in it.
    #[must_use]
    pub fn has_password(&self) -> bool {
        self.login.user.is_some() || self.login.password.is_some()
    }
}

/// An address of IPv6 without its brackets.
fn bare(name: &str) -> &str {
    name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name)
}

fn host(written: &str, otherwise: u16) -> Result<Host, String> {
    let wrong = || format!("`{written}` is not a host: write host:port, and commas between several");
    let bracketed = written.rfind(']').map_or(0, |end| end + 1);
    let (name, port) = match written[bracketed..].find(':') {
        Some(colon) => written.split_at(bracketed + colon),
        None => (written, ""),
    };
    let port = match port.strip_prefix(':') {
        Some(port) => port.parse().ok().filter(|port| *port != 0).ok_or_else(wrong)?,
        None => otherwise,
    };
    let letter = |letter: char| letter.is_ascii_alphanumeric() || ".-_:".contains(letter);
    let name = bare(name);
    if name.is_empty() || !name.chars().all(letter) {
        return Err(wrong());
    }
    Ok(Host::Tcp(name.to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(url: &str) -> String {
        let hosts: Vec<_> = Site::parse(url).unwrap().hosts.iter().map(Host::to_string).collect();
        hosts.join(" ")
    }

    #[test]
    fn each_kind_is_read() {
        let one = Site::parse("rediss://ann:s%40me@h:1/3").unwrap();
        assert_eq!((one.kind.clone(), one.database, one.is_secured()), (Kind::One, 3, true));
        assert_eq!(one.login.user.as_deref(), Some("ann"));
        assert_eq!(one.login.password.unwrap().reveal(), "s@me");
        assert_eq!(hosts("redis://[::1]:7"), "[::1]:7");
        assert_eq!(hosts("redis+unix:///r.sock"), "/r.sock");
        let sentinel = Site::parse("redis+sentinel://:pw@a,b:7,[::1]:9,[::2]/my.master-1/2").unwrap();
        let name = "my.master-1".to_owned();
        assert_eq!((sentinel.kind, sentinel.database), (Kind::Sentinel { name }, 2));
        assert_eq!(sentinel.login.password.unwrap().reveal(), "pw");
        assert_eq!(hosts("redis+sentinel://a,b:7,[::1]:9,[::2]/m"), "a:26379 b:7 [::1]:9 [::2]:26379");
        assert_eq!(hosts("rediss+cluster://a,b:7/0"), "a:6379 b:7");
    }

    #[test]
    fn what_is_no_store_is_said_without_its_password() {
        let wrong = [
            ("redis+cluster://a/1", "only database 0"),
            ("redis+sentinel://a:1", "what the sentinels call"),
            ("redis+sentinel://a:1/m/x", "is a number"),
            ("redis+cluster://u:hidden@a:0", "`a:0` is not a host"),
            ("redis+cluster://a,,b", "`` is not a host"),
            ("redis+cluster://a:1?x=1", "is not a host"),
            ("rediss://a:1/#insecure", "always verified"),
            ("redis+sentinels://a", "a store is written"),
            ("rediss+unix:///x", "a store is written"),
            ("redis://u:hidden@:x", "not the URL of a Redis"),
        ];
        for (url, words) in wrong {
            let sentence = Site::parse(url).unwrap_err();
            assert!(sentence.contains(words) && !sentence.contains("hidden"), "{url}: {sentence}");
        }
    }
}
