//! From a settings file as written to settings as checked.
//!
//! Each section is one function, which names every key once with what its value must be. The file is laid over [`DEFAULTS`], so a default
//! is never written here. What needs more than one key to judge is checked at the end of its section. Rooms are read in [`super::rooms`].

use std::path::{Path, PathBuf};

use super::paths::path;
use super::rooms::{read_rooms, read_template};
use super::source::{Layer, Mistake, Mistakes, Notes, Section, Source};
use super::store::read_store;
use super::tls::read_tls;
use super::upstream::read_upstream;
use super::values::{choice, count, counted, duration, listen, network, origins, rate, size, sized, switch, text, word};
use super::{
    AccessTarget, Client, Config, Cookies, DEFAULTS, ForwardedHeader, Limits, Log, LogFormat, MAX_ISSUER, Ops, Pages, Quota, SameSite,
    Secret, Server, Store, Tokens,
};

/// Reads and checks a settings file.
///
/// # Errors
/// All mistakes of the file, in its order; or that it cannot be read.
pub fn load(file: &Path) -> Result<Config, Mistakes> {
    let text = std::fs::read_to_string(file).map_err(|error| {
        Mistakes(vec![Mistake {
            file: file.to_path_buf(),
            line: 0,
            column: 0,
            key: String::new(),
            sentence: format!("this file cannot be read: {error}"),
        }])
    })?;
    parse(&text, file)
}

/// Checks settings that are already in memory; `file` is what mistakes name, and what relative paths are beside of.
///
/// # Errors
/// All mistakes, in the order of the text. A text that is not TOML is only told where it is not.
pub fn parse(text: &str, file: &Path) -> Result<Config, Mistakes> {
    let ours = Source::new(Path::new("waitgate's own waitgate.toml"), DEFAULTS);
    let yours = Source::new(file, text);
    let (our_table, your_table) = (ours.table()?, yours.table()?);
    let layer = |source, table| Layer {
        source,
        table,
        name: String::new(),
        at: 0,
    };
    let notes = Notes::default();
    let root = Section::new(vec![layer(&yours, &your_table), layer(&ours, &our_table)], &notes);
    let config = read_config(&root, file);
    root.finish();
    notes.finish()?;
    config.ok_or_else(|| {
        let sentence = "a key of waitgate's own defaults is missing: this is a mistake of waitgate, not of yours";
        Mistakes(vec![ours.mistake(0, String::new(), sentence.to_owned())])
    })
}

/// None only when something is missing that has no default, which has been noted then.
fn read_config(root: &Section<'_>, file: &Path) -> Option<Config> {
    let server = read_server(&root.section("server"));
    let tls = read_tls(&root.section("tls"), file);
    let ops = read_ops(&root.section("ops"), file);
    let store = read_store(&root.section("store"), file);
    let client = read_client(&root.section("client"));
    let limits = read_limits(&root.section("limits"));
    let tokens = read_tokens(&root.section("tokens"), file, store.as_ref());
    let cookies = read_cookies(&root.section("cookies"));
    let pages = read_pages(&root.section("pages"), file);
    let log = read_log(&root.section("log"), file);
    read_template(root, file);
    let prefix = server.as_ref().map_or("", |(server, _)| server.prefix.as_str());
    let rooms = read_rooms(root, file, prefix);
    let fallbacks = server.iter().flat_map(|(_, fallback)| fallback);
    let secured = fallbacks
        .chain(rooms.iter().flatten().flat_map(|room| &room.upstream))
        .any(|origin| origin.scheme_str() == Some("https"));
    let upstream = read_upstream(&root.section("upstream"), file, secured);
    if let (Some((server, _)), Some(ops)) = (&server, &ops)
        && server.listen == ops.listen
        && server.listen.port() != 0
    {
        root.section("ops").wrong(
            "listen",
            "this is also `server.listen`: visitors and operators need listeners of their own",
        );
    }
    if let (Some(tls), Some((server, _)), Some(ops)) = (&tls, &server, &ops)
        && tls.listen.port() != 0
        && [server.listen, ops.listen].contains(&tls.listen)
    {
        root.section("tls")
            .wrong("listen", "another listener has this address: HTTPS needs one of its own");
    }
    let (server, fallback) = server?;
    let tokens = tokens?;
    let mut rooms = rooms?;
    let copied = rooms
        .iter()
        .find(|room| room.claim.as_ref().is_some_and(|claim| claim.replicas > 0));
    if let (Some(room), Some(None)) = (copied, store.as_ref().map(|store| &store.site)) {
        let sentence = format!(
            "rooms.{}.claim.replicas asks for replicas, and a private store has none: name a Redis that has",
            room.id
        );
        root.section("store").wrong("url", sentence);
    }
    for room in &mut rooms {
        room.memory = room
            .claim
            .as_ref()
            .map_or(tokens.ticket_ttl, |claim| claim.memory.max(tokens.ticket_ttl));
    }
    Some(Config {
        file: file.to_path_buf(),
        server,
        tls,
        ops: ops?,
        store: store?,
        client: client?,
        limits: limits?,
        tokens,
        cookies: cookies?,
        pages: pages?,
        log: log?,
        upstream: upstream?,
        fallback,
        rooms,
    })
}

/// The most connections, requests or keys that can be asked for.
pub(super) const MANY: u64 = 100_000_000;

fn read_server(section: &Section<'_>) -> Option<(Server, Vec<http::Uri>)> {
    let fallback = section.get("fallback", origins).unwrap_or_default();
    let server = Server {
        listen: section.get("listen", listen)?,
        proxy_protocol: section.list("proxy_protocol", network)?,
        prefix: section.get("prefix", |value| match path(value)?.as_str() {
            "/" => Err("this must not be the root: every path would be waitgate's own".to_owned()),
            prefix => Ok(prefix.to_owned()),
        })?,
        workers: section.get("workers", counted(0, 1024))?,
        max_connections: section.get("max_connections", counted(1, MANY))?,
        max_connections_per_address: section.get("max_connections_per_address", counted(1, MANY))?,
        header_timeout: section.get("header_timeout", duration)?,
        idle_timeout: section.get("idle_timeout", duration)?,
        body_timeout: section.get("body_timeout", duration)?,
        max_header_bytes: section.get("max_header", sized(8 << 10, 1 << 20))?,
        max_headers: section.get("max_headers", counted(10, 10_000))?,
        max_body_bytes: section.get("max_body", size(0, 1 << 40))?,
        max_streams: section.get("max_streams", |value| Ok(u32::try_from(count(1, 10_000)(value)?).unwrap_or(100)))?,
        drain_timeout: section.get("drain_timeout", duration)?,
    };
    section.finish();
    Some((server, fallback))
}

fn read_ops(section: &Section<'_>, file: &Path) -> Option<Ops> {
    let token = section.get("token_file", |value| secret_file(file, &word(value)?, 16));
    let listen = section.get("listen", listen)?;
    if !listen.ip().is_loopback() && !section.has("token_file") {
        section.wrong(
            "listen",
            format!("{listen} can be reached from other machines, so operators must prove who they are: set `ops.token_file`"),
        );
    }
    section.finish();
    Some(Ops { listen, token })
}

fn read_client(section: &Section<'_>) -> Option<Client> {
    let headers = &[
        ("x-forwarded-for", ForwardedHeader::XForwardedFor),
        ("forwarded", ForwardedHeader::Forwarded),
    ];
    let client = Client {
        trusted_proxies: section.list("trusted_proxies", network)?,
        forwarded_header: section.get("forwarded_header", choice(headers))?,
        ipv6_prefix: section.get("ipv6_prefix", |value| Ok(u8::try_from(count(16, 128)(value)?).unwrap_or(128)))?,
    };
    section.finish();
    Some(client)
}

fn read_limits(section: &Section<'_>) -> Option<Limits> {
    let limits = [
        read_quota(&section.section("address")),
        read_quota(&section.section("visitor")),
        read_quota(&section.section("waiting")),
        read_quota(&section.section("forgery")),
    ];
    let max_keys = section.get("max_keys", counted(1, MANY))?;
    let (allow, deny) = (read_networks(section, "allow")?, read_networks(section, "deny")?);
    for net in &deny {
        if allow.iter().any(|other| other.trunc() == net.trunc()) {
            section.wrong_item("deny", &net.to_string(), format!("{net} is in `allow` too: it is one or the other"));
        }
    }
    section.finish();
    let [address, visitor, waiting, forgery] = limits;
    Some(Limits {
        address: address?,
        visitor: visitor?,
        waiting: waiting?,
        forgery: forgery?,
        max_keys,
        allow,
        deny,
    })
}

/// Networks listed at most.
const MAX_NETWORKS: usize = 10_000;

fn read_networks(section: &Section<'_>, key: &str) -> Option<Vec<ipnet::IpNet>> {
    let list = section.list(key, network)?;
    if list.len() > MAX_NETWORKS {
        section.wrong(key, format!("{} networks are too many: {MAX_NETWORKS} at most", list.len()));
    }
    Some(list)
}

fn read_quota(section: &Section<'_>) -> Option<Quota> {
    let quota = Quota {
        rate: section.get("rate", |value| match rate(value)? {
            rate if rate.milli() == 0 => Err("this is more than 0: a limit of 0 would refuse everybody".to_owned()),
            rate => Ok(rate),
        })?,
        burst: section.get("burst", |value| Ok(u32::try_from(count(1, 1_000_000)(value)?).unwrap_or(u32::MAX)))?,
    };
    section.finish();
    Some(quota)
}

fn read_tokens(section: &Section<'_>, file: &Path, store: Option<&Store>) -> Option<Tokens> {
    let key_file = section.get("key_file", |value| Ok(Config::beside(file, Path::new(&word(value)?))));
    let tokens = Tokens {
        key_file: key_file
            .or_else(|| store.map(|store| store.data_dir.join("keys.json")))
            .unwrap_or_default(),
        ticket_ttl: section.get("ticket_ttl", duration)?,
        issuer: section.get("issuer", |value| {
            let issuer = word(value)?;
            let good = issuer.len() <= MAX_ISSUER && issuer.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"\\".contains(&byte));
            good.then_some(issuer)
                .ok_or_else(|| format!("this is {MAX_ISSUER} letters at most, of plain ASCII: it is in every admission"))
        })?,
    };
    section.finish();
    Some(tokens)
}

fn read_cookies(section: &Section<'_>) -> Option<Cookies> {
    let ways = &[("lax", SameSite::Lax), ("strict", SameSite::Strict), ("none", SameSite::None)];
    let cookies = Cookies {
        secure: section.get("secure", switch)?,
        same_site: section.get("same_site", choice(ways))?,
    };
    if cookies.same_site == SameSite::None && !cookies.secure {
        section.wrong("same_site", "browsers refuse such a cookie unless it is `secure`");
    }
    section.finish();
    Some(cookies)
}

fn read_pages(section: &Section<'_>, file: &Path) -> Option<Pages> {
    let pages = Pages {
        folder: section.get("folder", |value| {
            let folder = Config::beside(file, Path::new(&word(value)?));
            if folder.is_dir() {
                return Ok(folder);
            }
            Err(format!("there is no folder {}", folder.display()))
        }),
        default_language: section.get("default_language", |value| {
            let language = text(value)?;
            let letters = language.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
            if letters && (2..=16).contains(&language.len()) {
                return Ok(language);
            }
            Err(format!("`{language}` is not a language: write its code, like \"en\" or \"vi\""))
        })?,
    };
    section.finish();
    Some(pages)
}

fn read_log(section: &Section<'_>, file: &Path) -> Option<Log> {
    let formats = &[("auto", LogFormat::Auto), ("human", LogFormat::Human), ("json", LogFormat::Json)];
    let log = Log {
        filter: section.get("filter", |value| {
            let filter = text(value)?;
            match filter.parse::<tracing_subscriber::filter::Targets>() {
                Ok(_) => Ok(filter),
                Err(error) => Err(format!("`{filter}` is not a filter like \"info,waitgate::store=debug\": {error}")),
            }
        })?,
        format: section.get("format", choice(formats))?,
        access: section.get("access", |value| match word(value)?.as_str() {
            "off" => Ok(AccessTarget::Off),
            "stdout" => Ok(AccessTarget::Stdout),
            name => access_file(Config::beside(file, Path::new(name))),
        })?,
        query: section.get("query", switch)?,
    };
    section.finish();
    Some(log)
}

fn access_file(file: PathBuf) -> Result<AccessTarget, String> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    if folder.is_some_and(|folder| !folder.is_dir()) || file.is_dir() {
        return Err(format!(
            "{} is no file in a folder that is there; \"off\" and \"stdout\" are known, too",
            file.display()
        ));
    }
    Ok(AccessTarget::File(file))
}

/// The secret in a file of its own, which may end with a newline.
pub(super) fn secret_file(config: &Path, name: &str, least: usize) -> Result<Secret, String> {
    let file = Config::beside(config, Path::new(name));
    let shown = file.display();
    let secret = std::fs::read_to_string(&file).map_err(|error| format!("{shown} cannot be read: {error}"))?;
    let secret = secret.trim();
    if secret.is_empty() {
        return Err(format!("{shown} is empty"));
    }
    if secret.len() < least {
        return Err(format!("the secret in {shown} is too short: {least} characters at least"));
    }
    Ok(Secret::from_file(secret.to_owned(), file))
}
