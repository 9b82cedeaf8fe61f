//! Rooms: each is its own table over `[room]` over the defaults; then what only shows when rooms are seen side by side.

use std::path::Path;
use std::time::Duration;

use toml::de::DeValue;

use super::paths::{passes, path, pattern, same, under};
use super::read::secret_file;
use super::source::{Layer, Section};
use super::values::{Read, choice, count, counted, duration, host, moment, origins, rate, sized, switch, web_origin, word};
use super::{Claim, LONGEST_POLL, Login, LoginAlgorithm, OnStoreLoss, Room};

/// Reads `[room]` as a room that lacks a name, so that mistakes in it are found even when there is no room.
pub(super) fn read_template(root: &Section<'_>, file: &Path) {
    let section = root.section("room");
    read_room(&section, "", file);
}

/// Reads every room, in the order of the file.
pub(super) fn read_rooms(root: &Section<'_>, file: &Path, prefix: &str) -> Option<Vec<Room>> {
    let rooms = root.section("rooms");
    let mut found: Vec<(Section<'_>, Option<Room>)> = Vec::new();
    for (id, at) in rooms.keys() {
        let mut layers: Vec<Layer<'_>> = rooms.layers_of(&id);
        if layers.is_empty() {
            continue; // not a table, which has been noted
        }
        layers.extend(root.layers_of("room"));
        let section = rooms.with(layers);
        if !good_id(&id) {
            rooms.wrong_key(&id, at, "a room's name is 1 to 32 of a-z, 0-9 and -");
        }
        let room = read_room(&section, &id, file);
        require(&section);
        if let Some(room) = &room {
            check_room(&section, room, prefix);
        }
        found.push((section, room));
    }
    check_paths(&found);
    rooms.finish();
    found.into_iter().map(|(_, room)| room).collect()
}

fn good_id(id: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=32).contains(&id.len()) && id.bytes().all(letter)
}

/// The most of anything that a room counts: Redis counts exactly up to 2^53.
const MANY: u64 = 1_000_000_000_000;

/// A room as far as it can be read; keys without a default are asked for by [`require`].
fn read_room(section: &Section<'_>, id: &str, file: &Path) -> Option<Room> {
    let doors = &[("hold", OnStoreLoss::Hold), ("open", OnStoreLoss::Open)];
    let upstream = section.get("upstream", origins);
    let paths = section.list("paths", path);
    let on_store_loss = section.get("on_store_loss", choice(doors));
    let claim = read_claim(&section.section("claim"));
    let login = read_login(&section.section("login"), file);
    let room = Room {
        id: id.to_owned(),
        hosts: section.list("hosts", host)?,
        paths: paths.unwrap_or_default(),
        bypass: section.list("bypass", pattern)?,
        ignore_case: section.get("ignore_case", switch)?,
        upstream: upstream.unwrap_or_default(),
        rate: section.get("rate", rate)?,
        cap: section.get("cap", count(0, MANY))?,
        stock: section.get("stock", count(0, MANY)),
        opens_at: section.get("opens_at", moment),
        closes_at: section.get("closes_at", moment),
        on_store_loss: on_store_loss.unwrap_or(OnStoreLoss::Hold),
        turn_ttl: section.get("turn_ttl", turn)?,
        admission_ttl: section.get("admission_ttl", duration)?,
        away_after: section.get("away_after", duration)?,
        ping_every: section.get("ping_every", duration)?,
        grace: section.get("grace", duration)?,
        rebuild: section.get("rebuild", duration)?,
        max_waiters: section.get("max_waiters", counted(1, 100_000_000))?,
        memory: Duration::ZERO, // known once the tokens' section has been read
        origins: section.list("origins", web_origin)?,
        login,
        claim,
    };
    section.finish();
    Some(room)
}

/// How long a turn lasts: whoever polls must not find that it came and went in between.
fn turn(value: &DeValue<'_>) -> Read<Duration> {
    match duration(value)? {
        shorter if shorter < LONGEST_POLL => {
            let least = LONGEST_POLL.as_secs();
            Err(format!("this is {least}s at least: whoever polls may hear of the turn so late"))
        }
        ttl => Ok(ttl),
    }
}

fn read_claim(section: &Section<'_>) -> Option<Claim> {
    let path = section.get("path", path);
    let claim = Claim {
        path: path.clone().unwrap_or_default(),
        hold: section.get("hold", duration)?,
        limit: section.get("limit", count(1, 1_000_000))?,
        units_field: section.get("units_field", word)?,
        max_body_bytes: section.get("max_body", sized(1, 64 << 20))?,
        memory: section.get("memory", duration)?,
        replicas: section.get("replicas", count(0, 16))?,
        replicas_timeout: section.get("replicas_timeout", duration)?,
    };
    if claim.memory < claim.hold {
        section.wrong(
            "memory",
            "this is shorter than `hold`: a reservation would be forgotten while it is held",
        );
    }
    section.finish();
    path.map(|_| claim)
}

fn read_login(section: &Section<'_>, file: &Path) -> Option<Login> {
    let algorithms = &[
        ("HS256", LoginAlgorithm::Hs256),
        ("RS256", LoginAlgorithm::Rs256),
        ("ES256", LoginAlgorithm::Es256),
        ("EdDSA", LoginAlgorithm::EdDsa),
    ];
    let header = section.get("header", |value| {
        let name = word(value)?;
        name.parse::<http::HeaderName>()
            .map_err(|_| format!("`{name}` is not the name of a header"))
    });
    let cookie = section.get("cookie", |value| {
        let name = word(value)?;
        let good = name
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && !b"()<>@,;:\\\"/[]?={}".contains(&byte));
        if good {
            Ok(name)
        } else {
            Err(format!("`{name}` is not the name of a cookie"))
        }
    });
    let algorithm = section.get("algorithm", choice(algorithms));
    let key = section.get("key_file", |value| {
        let secret = secret_file(file, &word(value)?, 32)?;
        let pem = secret.reveal().starts_with("-----BEGIN ");
        match algorithm {
            Some(LoginAlgorithm::Hs256) if pem => Err("this holds a PEM key, but HS256 has a shared secret".to_owned()),
            Some(LoginAlgorithm::Rs256 | LoginAlgorithm::Es256 | LoginAlgorithm::EdDsa) if !pem => {
                Err("this must hold the public key in PEM, which starts with -----BEGIN".to_owned())
            }
            _ => Ok(secret),
        }
    });
    let claim = section.get("claim", word)?;
    section.finish();
    if section.has("header") && section.has("cookie") {
        section.wrong("cookie", "a login is read from a `header` or from a `cookie`, not both");
    }
    if section.has("cookie") {
        for needed in ["algorithm", "key_file"] {
            if !section.has(needed) {
                section.wrong("cookie", format!("a login from a cookie also needs `{needed}`"));
            }
        }
    }
    if let Some(header) = header {
        return Some(Login::Header(header));
    }
    Some(Login::Jwt {
        cookie: cookie?,
        algorithm: algorithm?,
        key: key?,
        claim,
    })
}

/// What a room cannot do without.
fn require(section: &Section<'_>) {
    if !section.has("upstream") {
        section.wrong("upstream", "a room needs its backend: upstream = \"http://127.0.0.1:3000\"");
    }
    if !section.has("paths") {
        section.wrong("paths", "a room needs the paths it guards: paths = [\"/phones/42\"]");
    }
    if !section.has("on_store_loss") {
        section.wrong(
            "on_store_loss",
            "a room needs to be told what its door does when the store is lost: on_store_loss = \"hold\" (stays shut) or \"open\" (lets visitors pass)",
        );
    }
}

/// What takes more than one key of a room to see. Keys that could not be read are left alone: they have been noted.
fn check_room(section: &Section<'_>, room: &Room, prefix: &str) {
    if room.stock.is_some() && room.on_store_loss == OnStoreLoss::Open {
        section.wrong(
            "on_store_loss",
            "a room with `stock` can only \"hold\": without the store nobody knows what is left to sell",
        );
    }
    if let (Some(opens), Some(closes)) = (room.opens_at, room.closes_at)
        && opens >= closes
    {
        section.wrong("closes_at", "the room would close before it opens");
    }
    if section.has("paths") && room.paths.is_empty() && section.is_empty_list("paths") {
        section.wrong("paths", "a room needs at least one path");
    }
    for path in &room.paths {
        if !prefix.is_empty() && under(path, prefix, false) {
            section.wrong_item("paths", path, format!("`{path}` is waitgate's own: see `server.prefix`"));
        }
        for bypass in &room.bypass {
            if passes(bypass, path) {
                section.wrong_item(
                    "bypass",
                    bypass,
                    format!("`{bypass}` would let everybody past the line to `{path}`"),
                );
            }
        }
    }
    if let Some(claim) = &room.claim {
        check_claim(section, room, claim);
    }
}

fn check_claim(section: &Section<'_>, room: &Room, claim: &Claim) {
    let claims = section.section("claim");
    if !section.has("stock") {
        claims.wrong(
            "path",
            "a room with a claim route needs `stock`: without it nothing could be claimed",
        );
    }
    if !room.paths.is_empty() && !room.paths.iter().any(|guarded| under(&claim.path, guarded, room.ignore_case)) {
        claims.wrong(
            "path",
            format!("`{}` is not under a path of this room, so no claim would ever reach it", claim.path),
        );
    }
    for bypass in &room.bypass {
        if passes(bypass, &claim.path) {
            claims.wrong(
                "path",
                format!("`{}` is let past by the bypass `{bypass}`: no claim would ask the gate", claim.path),
            );
        }
    }
}

/// Whether two rooms, or one room twice, guard the same path on the same host.
fn check_paths(rooms: &[(Section<'_>, Option<Room>)]) {
    let mut seen: Vec<(&Room, &str)> = Vec::new();
    for (section, room) in rooms {
        let Some(room) = room else { continue };
        for path in &room.paths {
            let other = seen.iter().find(|(other, guarded)| {
                let same_host = if other.hosts.is_empty() || room.hosts.is_empty() {
                    other.hosts.is_empty() && room.hosts.is_empty()
                } else {
                    room.hosts.iter().any(|host| other.hosts.contains(host))
                };
                same_host && same(path, guarded, room.ignore_case || other.ignore_case)
            });
            match other {
                Some((other, _)) if other.id == room.id => section.wrong_item("paths", path, format!("`{path}` is here twice")),
                Some((other, _)) => section.wrong_item(
                    "paths",
                    path,
                    format!("`{path}` is guarded by room {} already, on the same host", other.id),
                ),
                None => {}
            }
            seen.push((room, path));
        }
    }
}
