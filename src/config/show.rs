//! The settings in force, as a file that reads back as the same settings.
//!
//! A secret is never shown: where it came from a file, the file is named; where it did not, a comment says that there is one.

use std::fmt::Display;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use super::values::{show_duration, show_moment, show_size};
use super::{
    AccessTarget, Certificate, Claim, Client, Config, Cookies, ForwardedHeader, HttpVersion, Limits, Log, LogFormat, Login, LoginAlgorithm,
    OnStoreLoss, Ops, Quota, Room, SameSite, Secret, Server, Store, Tls, TlsVersion, Tokens, Upstream, UpstreamTls,
};

/// The settings in force, as TOML that [`super::parse`] reads as the same settings.
#[must_use]
pub fn show(config: &Config) -> String {
    let mut page = Page::default();
    show_server(&mut page, &config.server, &config.fallback);
    if let Some(tls) = &config.tls {
        show_tls(&mut page, tls);
    }
    show_ops(&mut page, &config.ops);
    show_store(&mut page, &config.store);
    show_client(&mut page, &config.client);
    show_limits(&mut page, &config.limits);
    show_tokens(&mut page, &config.tokens);
    show_cookies(&mut page, config.cookies);
    page.table("pages");
    page.file("folder", config.pages.folder.as_deref());
    page.text("default_language", &config.pages.default_language);
    show_log(&mut page, &config.log);
    show_upstream(&mut page, &config.upstream);
    for room in &config.rooms {
        show_room(&mut page, room);
    }
    page.0
}

/// TOML as it is written, a line a key.
#[derive(Default)]
struct Page(String);

impl Page {
    fn line(&mut self, line: &dyn Display) {
        let _ = writeln!(self.0, "{line}"); // writing to a String cannot fail
    }

    fn table(&mut self, name: &str) {
        if !self.0.is_empty() {
            self.0.push('\n');
        }
        self.line(&format_args!("[{name}]"));
    }

    fn bare(&mut self, key: &str, value: &dyn Display) {
        self.line(&format_args!("{key} = {value}"));
    }

    fn text(&mut self, key: &str, value: &dyn Display) {
        self.bare(key, &quoted(value));
    }

    fn time(&mut self, key: &str, value: Duration) {
        self.text(key, &show_duration(value));
    }

    fn size(&mut self, key: &str, bytes: u64) {
        self.text(key, &show_size(bytes));
    }

    fn file(&mut self, key: &str, file: Option<&Path>) {
        if let Some(file) = file {
            self.text(key, &file.display());
        }
    }

    fn list<T: Display>(&mut self, key: &str, items: &[T]) {
        let items: Vec<_> = items.iter().map(|item| quoted(item)).collect();
        self.bare(key, &format_args!("[{}]", items.join(", ")));
    }

    /// One as text, several as a list.
    fn origins(&mut self, key: &str, origins: &[http::Uri]) {
        let shown: Vec<_> = origins.iter().map(show_origin).collect();
        match shown.as_slice() {
            [one] => self.text(key, one),
            several => self.list(key, several),
        }
    }

    fn secret(&mut self, key: &str, secret: &Secret) {
        match secret.file() {
            Some(file) => self.text(key, &file.display()),
            None => self.line(&format_args!("# {key}: (secret)")),
        }
    }
}

fn quoted(value: &dyn Display) -> String {
    toml::Value::String(value.to_string()).to_string()
}

fn show_server(page: &mut Page, server: &Server, fallback: &[http::Uri]) {
    page.table("server");
    page.text("listen", &server.listen);
    if !fallback.is_empty() {
        page.origins("fallback", fallback);
    }
    page.list("proxy_protocol", &server.proxy_protocol);
    page.text("prefix", &server.prefix);
    page.bare("workers", &server.workers);
    page.bare("max_connections", &server.max_connections);
    page.bare("max_connections_per_address", &server.max_connections_per_address);
    page.time("header_timeout", server.header_timeout);
    page.time("idle_timeout", server.idle_timeout);
    page.time("body_timeout", server.body_timeout);
    page.size("max_header", server.max_header_bytes as u64);
    page.bare("max_headers", &server.max_headers);
    page.size("max_body", server.max_body_bytes);
    page.bare("max_streams", &server.max_streams);
    page.time("drain_timeout", server.drain_timeout);
}

fn show_tls(page: &mut Page, tls: &Tls) {
    page.table("tls");
    page.text("listen", &tls.listen);
    let certificates: Vec<_> = tls.certificates.iter().map(show_certificate).collect();
    page.bare("certificates", &format_args!("[{}]", certificates.join(", ")));
    let oldest = match tls.min_version {
        TlsVersion::V1_2 => "1.2",
        TlsVersion::V1_3 => "1.3",
    };
    page.text("min_version", &oldest);
    page.time("handshake_timeout", tls.handshake_timeout);
    page.bare("max_handshakes", &tls.max_handshakes);
    page.bare("redirect", &tls.redirect);
    page.bare("redirect_port", &tls.redirect_port);
    if let Some(hsts) = tls.hsts {
        page.time("hsts", hsts);
    }
}

fn show_certificate(certificate: &Certificate) -> String {
    let (chain, key) = (quoted(&certificate.chain.display()), quoted(&certificate.key.display()));
    format!("{{ chain = {chain}, key = {key} }}")
}

/// `http` writes an origin with a slash at its end, which is no part of one.
fn show_origin(origin: &http::Uri) -> String {
    origin.to_string().trim_end_matches('/').to_owned()
}

fn show_ops(page: &mut Page, ops: &Ops) {
    page.table("ops");
    page.text("listen", &ops.listen);
    if let Some(token) = &ops.token {
        page.secret("token_file", token);
    }
}

fn show_store(page: &mut Page, store: &Store) {
    page.table("store");
    if let Some(url) = &store.url {
        // A URL in the file itself has no password: that is checked when it is read.
        let plain = url.file().is_none()
            && store
                .site
                .as_ref()
                .is_some_and(|site| !site.has_password() || store.password.is_some());
        if plain {
            page.text("url", &url.reveal());
        } else {
            page.secret("url_file", url);
        }
    }
    for (key, user) in [("user", &store.user), ("sentinel_user", &store.sentinel_user)] {
        if let Some(user) = user {
            page.text(key, user);
        }
    }
    for (key, password) in [
        ("password_file", &store.password),
        ("sentinel_password_file", &store.sentinel_password),
    ] {
        if let Some(password) = password {
            page.secret(key, password);
        }
    }
    page.text("data_dir", &store.data_dir.display());
    page.file("program", store.program.as_deref());
    page.time("call_timeout", store.call_timeout);
    page.time("connect_timeout", store.connect_timeout);
    page.size("max_memory", store.max_memory);
    let tls = &store.tls;
    if tls.roots.is_none() && tls.name.is_none() && tls.certificate.is_none() {
        return;
    }
    page.table("store.tls");
    page.file("roots", tls.roots.as_deref());
    if let Some(name) = &tls.name {
        page.text("name", name);
    }
    if let Some(certificate) = &tls.certificate {
        page.bare("certificate", &show_certificate(certificate));
    }
}

fn show_client(page: &mut Page, client: &Client) {
    page.table("client");
    page.list("trusted_proxies", &client.trusted_proxies);
    let header = match client.forwarded_header {
        ForwardedHeader::XForwardedFor => "x-forwarded-for",
        ForwardedHeader::Forwarded => "forwarded",
    };
    page.text("forwarded_header", &header);
    page.bare("ipv6_prefix", &client.ipv6_prefix);
}

fn show_limits(page: &mut Page, limits: &Limits) {
    page.table("limits");
    let mut quota = |key: &str, quota: Quota| {
        let Quota { rate, burst } = quota;
        page.bare(key, &format_args!("{{ rate = \"{rate}\", burst = {burst} }}"));
    };
    quota("address", limits.address);
    quota("visitor", limits.visitor);
    quota("waiting", limits.waiting);
    quota("forgery", limits.forgery);
    page.bare("max_keys", &limits.max_keys);
    page.list("allow", &limits.allow);
    page.list("deny", &limits.deny);
}

fn show_tokens(page: &mut Page, tokens: &Tokens) {
    page.table("tokens");
    page.text("key_file", &tokens.key_file.display());
    page.time("ticket_ttl", tokens.ticket_ttl);
    page.text("issuer", &tokens.issuer);
}

fn show_cookies(page: &mut Page, cookies: Cookies) {
    page.table("cookies");
    page.bare("secure", &cookies.secure);
    let same_site = match cookies.same_site {
        SameSite::Lax => "lax",
        SameSite::Strict => "strict",
        SameSite::None => "none",
    };
    page.text("same_site", &same_site);
}

fn show_log(page: &mut Page, log: &Log) {
    page.table("log");
    page.text("filter", &log.filter);
    let format = match log.format {
        LogFormat::Auto => "auto",
        LogFormat::Human => "human",
        LogFormat::Json => "json",
    };
    page.text("format", &format);
    match &log.access {
        AccessTarget::Off => page.text("access", &"off"),
        AccessTarget::Stdout => page.text("access", &"stdout"),
        AccessTarget::File(file) => page.text("access", &file.display()),
    }
    page.bare("query", &log.query);
}

fn show_upstream(page: &mut Page, upstream: &Upstream) {
    page.table("upstream");
    page.time("connect_timeout", upstream.connect_timeout);
    page.time("first_byte_timeout", upstream.first_byte_timeout);
    page.time("idle_timeout", upstream.idle_timeout);
    page.time("keep_alive", upstream.keep_alive);
    page.bare("max_in_flight", &upstream.max_in_flight);
    page.time("queue_timeout", upstream.queue_timeout);
    page.bare("max_failures", &upstream.max_failures);
    page.time("rest", upstream.rest);
    let http = match upstream.http {
        HttpVersion::Http1 => "1.1",
        HttpVersion::Http2 => "2",
    };
    page.text("http", &http);
    show_upstream_tls(page, &upstream.tls);
    if let Some(health) = &upstream.health {
        page.table("upstream.health");
        page.text("path", &health.path);
        page.time("interval", health.interval);
        page.time("timeout", health.timeout);
        page.bare("rise", &health.rise);
        page.bare("fall", &health.fall);
    }
}

fn show_upstream_tls(page: &mut Page, tls: &UpstreamTls) {
    if tls.roots.is_none() && tls.name.is_none() && tls.certificate.is_none() {
        return;
    }
    page.table("upstream.tls");
    page.file("roots", tls.roots.as_deref());
    if let Some(name) = &tls.name {
        page.text("name", name);
    }
    if let Some(certificate) = &tls.certificate {
        page.bare("certificate", &show_certificate(certificate));
    }
}

fn show_room(page: &mut Page, room: &Room) {
    let name = format!("rooms.{}", room.id);
    page.table(&name);
    page.list("hosts", &room.hosts);
    page.list("paths", &room.paths);
    page.list("bypass", &room.bypass);
    page.bare("ignore_case", &room.ignore_case);
    page.origins("upstream", &room.upstream);
    page.text("rate", &room.rate);
    page.bare("cap", &room.cap);
    if let Some(stock) = room.stock {
        page.bare("stock", &stock);
    }
    if let Some(opens_at) = room.opens_at {
        page.bare("opens_at", &show_moment(opens_at));
    }
    if let Some(closes_at) = room.closes_at {
        page.bare("closes_at", &show_moment(closes_at));
    }
    let door = match room.on_store_loss {
        OnStoreLoss::Hold => "hold",
        OnStoreLoss::Open => "open",
    };
    page.text("on_store_loss", &door);
    page.time("turn_ttl", room.turn_ttl);
    page.time("admission_ttl", room.admission_ttl);
    page.time("away_after", room.away_after);
    page.time("ping_every", room.ping_every);
    page.time("grace", room.grace);
    page.time("rebuild", room.rebuild);
    page.bare("max_waiters", &room.max_waiters);
    page.list("origins", &room.origins);
    if let Some(claim) = &room.claim {
        show_claim(page, &name, claim);
    }
    if let Some(login) = &room.login {
        show_login(page, &name, login);
    }
}

fn show_claim(page: &mut Page, room: &str, claim: &Claim) {
    page.table(&format!("{room}.claim"));
    page.text("path", &claim.path);
    page.time("hold", claim.hold);
    page.bare("limit", &claim.limit);
    page.text("units_field", &claim.units_field);
    page.size("max_body", claim.max_body_bytes as u64);
    page.time("memory", claim.memory);
    page.bare("replicas", &claim.replicas);
    page.time("replicas_timeout", claim.replicas_timeout);
}

fn show_login(page: &mut Page, room: &str, login: &Login) {
    page.table(&format!("{room}.login"));
    match login {
        Login::Header(header) => page.text("header", header),
        Login::Jwt {
            cookie,
            algorithm,
            key,
            claim,
        } => {
            let algorithm = match algorithm {
                LoginAlgorithm::Hs256 => "HS256",
                LoginAlgorithm::Rs256 => "RS256",
                LoginAlgorithm::Es256 => "ES256",
                LoginAlgorithm::EdDsa => "EdDSA",
            };
            page.text("cookie", cookie);
            page.text("algorithm", &algorithm);
            page.secret("key_file", key);
            page.text("claim", claim);
        }
    }
}
