//! What operators read in a terminal.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::ops::shown::{ReservationNow, RoomNow, RoomsNow};
use crate::upstream::BackendNow;

/// All rooms, one line each.
pub(super) fn rooms(now: &RoomsNow) -> String {
    let mut lines = vec![
        [
            "ROOM", "STATE", "RATE", "CAP", "WAITING", "CALLED", "INSIDE", "FREE", "HELD", "SOLD",
        ]
        .map(str::to_owned),
    ];
    for room in &now.rooms {
        let stock = |read: fn(&crate::ops::shown::StockNow) -> u64| {
            room.stock.as_ref().map_or_else(|| "-".to_owned(), |stock| read(stock).to_string())
        };
        lines.push([
            room.id.clone(),
            room.state.to_string(),
            room.rate.clone(),
            cap(room.cap),
            room.waiting.to_string(),
            room.called.to_string(),
            room.sessions.to_string(),
            stock(|stock| stock.free),
            stock(|stock| stock.held),
            stock(|stock| stock.sold),
        ]);
    }
    for id in &now.not_ready {
        let mut line = [const { String::new() }; 10];
        line[0].clone_from(id);
        line[1].push_str("not ready");
        lines.push(line);
    }
    columns(&lines)
}

/// All backends, one line each.
pub(super) fn backends(now: &[BackendNow]) -> String {
    let mut lines = vec![
        [
            "BACKEND",
            "STATE",
            "IN FLIGHT",
            "AT MOST",
            "CONNECTIONS",
            "OPENED",
            "FAILURES",
            "RESTS",
        ]
        .map(str::to_owned),
    ];
    lines.extend(now.iter().map(|backend| {
        [
            backend.origin.clone(),
            if backend.up { "up" } else { "left alone" }.to_owned(),
            backend.in_flight.to_string(),
            backend.in_flight_limit.to_string(),
            backend.connections.to_string(),
            backend.connections_opened.to_string(),
            backend.failures.to_string(),
            backend.rests.to_string(),
        ]
    }));
    columns(&lines)
}

/// Lines under each other: two columns of words, then numbers to the right.
fn columns<const N: usize>(lines: &[[String; N]]) -> String {
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    let mut text = String::new();
    for line in lines {
        let mut row = String::new();
        for (column, cell) in line.iter().enumerate() {
            let width = widths[column];
            // Writing to a string cannot fail.
            let _ = if column < 2 {
                write!(row, "{cell:<width$}  ")
            } else {
                write!(row, "{cell:>width$}  ")
            };
        }
        text.push_str(row.trim_end());
        text.push('\n');
    }
    text
}

/// How many gateways there are, and a line for each that goes by other settings.
fn gateways(room: &RoomNow) -> Vec<(&'static str, String)> {
    let mut lines = Vec::new();
    if !room.gateways.is_empty() {
        lines.push(("gateways", room.gateways.len().to_string()));
    }
    for peer in room.gateways.iter().filter(|peer| !peer.differs.is_empty()) {
        let settings = peer.differs.join(", ");
        lines.push(("DIFFERS", format!("{} on {}: other {settings}", peer.operators, peer.host)));
    }
    lines
}

/// One room.
pub(super) fn room(room: &RoomNow) -> String {
    let mut lines: Vec<(&str, String)> = vec![
        ("room", room.id.clone()),
        ("state", room.state.to_string()),
        ("rate", room.rate.clone()),
        ("cap", cap(room.cap)),
        ("paused", yes(room.paused)),
    ];
    let times = [
        ("opens at", &room.opens_at),
        ("closes at", &room.closes_at),
        ("shut until", &room.shut_until),
    ];
    lines.extend(times.into_iter().filter_map(|(name, at)| Some((name, at.clone()?))));
    if !room.message.is_empty() {
        lines.push(("message", room.message.clone()));
    }
    if let Some(stock) = &room.stock {
        let sum = format!("{} = {} free + {} held + {} sold", stock.stock, stock.free, stock.held, stock.sold);
        let doubt = match (stock.known, room.invariant_ok) {
            (false, _) => " (lost with the store: set it with `waitgate room stock`)",
            (true, false) => " (DOES NOT ADD UP)",
            (true, true) => "",
        };
        lines.push(("stock", sum + doubt));
    }
    lines.extend([
        ("waiting", format!("{} ({} away)", room.waiting, room.away)),
        ("called", room.called.to_string()),
        ("inside", room.sessions.to_string()),
        ("ever joined", room.joined_total.to_string()),
        ("ever called", room.called_total.to_string()),
    ]);
    lines.extend(gateways(room));
    pairs(&lines)
}

/// One reservation.
pub(super) fn reservation(now: &ReservationNow) -> String {
    let at = i64::try_from(now.expires_at_ms)
        .ok()
        .and_then(|at| jiff::Timestamp::from_millisecond(at).ok());
    pairs(&[
        ("reservation", now.reservation.clone()),
        ("state", now.state.clone()),
        ("user", now.user.clone()),
        ("units", now.units.to_string()),
        ("hold ends", at.map_or_else(String::new, |at| at.to_string())),
    ])
}

/// What became of a reservation.
pub(super) fn settled(answer: &BTreeMap<String, String>) -> String {
    let word = |key: &str| answer.get(key).map_or("", String::as_str);
    let outcome = match word("outcome") {
        "confirmed" => "sold",
        "confirmed_before" => "was sold before",
        "retaken" => "sold; its hold had ended, and the units were still free",
        "released" => "released",
        "released_before" => "was released before",
        other => other,
    };
    format!("{}: {outcome}\n", word("reservation"))
}

fn pairs(lines: &[(&str, String)]) -> String {
    let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    lines.iter().fold(String::new(), |mut text, (name, value)| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:<width$}  {}", printable(value));
        text
    })
}

/// Users' ids come from the shop, messages from operators: neither may move the cursor of a terminal.
fn printable(value: &str) -> String {
    value
        .chars()
        .map(|letter| if letter.is_control() { '\u{fffd}' } else { letter })
        .collect()
}

fn cap(cap: u64) -> String {
    if cap == 0 { "none".to_owned() } else { cap.to_string() }
}

fn yes(flag: bool) -> String {
    if flag { "yes" } else { "no" }.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::scripts::{Shown, Stock};

    fn shown(message: &str) -> RoomNow {
        RoomNow::new(
            "42",
            &Shown {
                now_ms: 1,
                rate_milli: 200_000,
                waiting: 19_000,
                called: 12,
                message: message.to_owned(),
                stock: Some(Stock {
                    stock: 100,
                    free: 60,
                    held: 30,
                    sold: 10,
                    known: true,
                }),
                ..Shown::default()
            },
        )
    }

    #[test]
    fn rooms_stand_under_each_other() {
        let now = RoomsNow {
            rooms: vec![shown("")],
            not_ready: vec!["a-longer-name".to_owned()],
        };
        assert_eq!(
            rooms(&now),
            "ROOM           STATE       RATE   CAP  WAITING  CALLED  INSIDE  FREE  HELD  SOLD\n\
             42             open       200/s  none    19000      12       0    60    30    10\n\
             a-longer-name  not ready\n"
        );
    }

    #[test]
    fn a_room_is_read_line_by_line() {
        let text = room(&shown("Slow\u{1b}[2J today"));
        assert!(text.contains("stock        100 = 60 free + 30 held + 10 sold\n"), "{text}");
        assert!(text.contains("message      Slow\u{fffd}[2J today\n"), "{text}");
        assert!(!text.contains("opens at"), "{text}");
    }
}
