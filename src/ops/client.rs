//! `waitgate room …`, `waitgate backends`, `waitgate reload`: the operators' API from a terminal.
//!
//! `command` is what can be typed, `ask` carries a request, `table` prints what came back. Nothing is decided here: the listener checks.

use std::io::Write as _;

use http::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::ops::backends::BackendsNow;
use crate::ops::reload::Reloaded;
use crate::ops::shown::{ReservationNow, RoomNow, RoomsNow};

mod ask;
mod command;
mod table;

pub(crate) use ask::token;
use ask::{Asked, Line};
pub use command::{Reach, RoomCommand, What};

/// Does what was typed. What went wrong comes back as sentences for the terminal.
///
/// # Errors
///
/// The listener cannot be reached, or refused; nothing has been printed then.
pub async fn run(command: RoomCommand) -> Result<(), String> {
    let line = Line::new(&command.reach)?;
    let printed = match command.what {
        What::Health { ready } => health(&line, ready).await?,
        what => {
            let (method, path, body) = request(&what);
            let asked = line.ask(method, &path, body).await?;
            if command.reach.json { asked.text } else { human(&what, &asked)? }
        }
    };
    print(&printed)
}

/// Prints how the backends are.
///
/// # Errors
///
/// The listener cannot be reached, or refused; nothing has been printed then.
pub async fn backends(reach: &Reach) -> Result<(), String> {
    let asked = Line::new(reach)?.ask(Method::GET, "/v1/backends", None).await?;
    if reach.json {
        return print(&asked.text);
    }
    print(&table::backends(&read::<BackendsNow>(&asked)?.backends))
}

/// Lets the gateway read its settings again, and prints what changed.
///
/// # Errors
///
/// The listener cannot be reached, or the settings were refused; nothing has been changed then.
pub async fn reload(reach: &Reach) -> Result<(), String> {
    let line = Line::new(reach)?;
    let asked = line.ask(Method::POST, "/v1/reload", None).await?;
    if reach.json {
        return print(&asked.text);
    }
    let Reloaded {
        changed,
        without_effect,
        mark,
    } = read(&asked)?;
    let mut text = if changed.is_empty() {
        format!("nothing changed; the settings in force are {mark}\n")
    } else {
        format!("changed: {}\nthe settings in force are {mark}\n", changed.join(", "))
    };
    if !without_effect.is_empty() {
        let keys = without_effect.join(", ");
        text.push_str(&format!(
            "where a new room begins, and no change to one that is there: {keys}; use `waitgate room`\n"
        ));
    }
    print(&text)
}

/// Which request a command is.
fn request(what: &What) -> (Method, String, Option<Value>) {
    let room = |id: &str| format!("/v1/rooms/{}", ask::segment(id));
    let change = |id: &str, body: Value| (Method::PATCH, room(id), Some(body));
    let settle = |id: &str, reservation: &str, verb: &str| {
        let path = format!("{}/reservations/{}/{verb}", room(id), ask::segment(reservation));
        (Method::POST, path, None)
    };
    match what {
        What::Health { .. } => (Method::GET, "/healthz".to_owned(), None),
        What::List => (Method::GET, "/v1/rooms".to_owned(), None),
        What::Show { id } => (Method::GET, room(id), None),
        What::Admit { id, rate } => change(id, json!({ "rate": rate })),
        What::Cap { id, cap } => change(id, json!({ "cap": cap })),
        What::Pause { id } => change(id, json!({ "paused": true })),
        What::Resume { id } => change(id, json!({ "paused": false })),
        What::Stock { id, stock } => change(id, json!({ "stock": stock })),
        What::Message { id, text } => change(id, json!({ "message": text })),
        What::Opens { id, at } if at == "now" => change(id, json!({ "opens_at": null })),
        What::Opens { id, at } => change(id, json!({ "opens_at": at })),
        What::Closes { id, at } if at == "never" => change(id, json!({ "closes_at": null })),
        What::Closes { id, at } => change(id, json!({ "closes_at": at })),
        What::Reservation { id, reservation } => (
            Method::GET,
            format!("{}/reservations/{}", room(id), ask::segment(reservation)),
            None,
        ),
        What::Confirm { id, reservation } => settle(id, reservation, "confirm"),
        What::Release { id, reservation } => settle(id, reservation, "release"),
    }
}

/// What a person reads.
fn human(what: &What, asked: &Asked) -> Result<String, String> {
    Ok(match what {
        What::List => table::rooms(&read::<RoomsNow>(asked)?),
        What::Reservation { .. } => table::reservation(&read::<ReservationNow>(asked)?),
        What::Confirm { .. } | What::Release { .. } => table::settled(&read(asked)?),
        _ => table::room(&read::<RoomNow>(asked)?),
    })
}

async fn health(line: &Line, ready: bool) -> Result<String, String> {
    line.ask(Method::GET, "/healthz", None).await?;
    if ready {
        line.ask(Method::GET, "/readyz", None).await?;
    }
    Ok(if ready { "ready\n" } else { "alive\n" }.to_owned())
}

fn read<'a, T: Deserialize<'a>>(asked: &'a Asked) -> Result<T, String> {
    serde_json::from_str(&asked.text)
        .map_err(|error| format!("the answer is not one this version of waitgate knows ({error}); --json prints it as it came"))
}

fn print(text: &str) -> Result<(), String> {
    let mut out = std::io::stdout().lock();
    let written = out
        .write_all(text.as_bytes())
        .and_then(|()| if text.ends_with('\n') { Ok(()) } else { out.write_all(b"\n") });
    match written.and_then(|()| out.flush()) {
        // Whoever reads has seen enough: `waitgate room list | head -1`.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(|error| format!("cannot print: {error}")),
    }
}
