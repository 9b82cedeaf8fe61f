//! What a view looks like: which texts, which numbers, which buttons. `static/waiting.js` does the same in the browser.

use jiff::Timestamp;
use minijinja::{Value, context};

use crate::clock::UnixMs;
use crate::response::view::{Reason, State, View};

use super::words::Words;

/// The name that the texts of a state go by: `head.NAME`, `next.NAME`.
fn name(view: &View) -> &'static str {
    match view.state {
        State::Waiting | State::Nearly if view.ahead.is_none() => "joining",
        State::Countdown => "countdown",
        State::Waiting => "waiting",
        State::Nearly => "nearly",
        State::Turn => "turn",
        State::Paused => "paused",
        State::SoldOut => "sold_out",
        State::AllHeld => "all_held",
        State::Closed => "closed",
        State::Admitted => "admitted",
        State::Gone => match view.reason {
            Some(Reason::Left) => "left",
            Some(Reason::Lapsed) => "lapsed",
            Some(Reason::Ended) => "ended",
            Some(Reason::Abandoned) | None => "abandoned",
        },
    }
}

/// How the state is called in `data-state`, for the style.
fn mark(state: State) -> &'static str {
    match state {
        State::Countdown => "countdown",
        State::Waiting => "waiting",
        State::Nearly => "nearly",
        State::Turn => "turn",
        State::Paused => "paused",
        State::SoldOut => "sold_out",
        State::AllHeld => "all_held",
        State::Closed => "closed",
        State::Admitted => "admitted",
        State::Gone => "gone",
    }
}

/// Nothing more will change by waiting.
pub(super) fn is_final(state: State) -> bool {
    matches!(state, State::Closed | State::Admitted | State::Gone)
}

/// What the template lays out. An empty text is not shown.
pub(super) fn face(words: &Words, view: &View, now_ms: UnixMs) -> Value {
    let name = name(view);
    let ended = is_final(view.state);
    let in_line = matches!(view.state, State::Waiting | State::Nearly);
    let (number, label) = figure(words, view, now_ms);
    let held = match (view.state, view.turn_until_ms) {
        (State::Turn, Some(until)) if until > now_ms => words.span(seconds(until, now_ms)),
        (State::Turn, Some(_)) => words.say("held.over").to_owned(),
        _ => String::new(),
    };
    context! {
        state => mark(view.state),
        title => title(words, name, view),
        head => words.say(&format!("head.{name}")),
        next => words.say(&format!("next.{name}")),
        long => number.chars().count() > 7,
        number,
        label,
        wait => if in_line { words.wait(view.wait_low_s, view.wait_high_s) } else { String::new() },
        opens => view.opens_at_ms.filter(|_| view.state == State::Countdown).map_or_else(String::new, moment),
        held,
        updated => if ended { String::new() } else { updated(words, view, now_ms) },
        keep => !ended && view.state != State::Turn,
        message => view.message.as_deref().unwrap_or_default(),
        delayed => view.delayed,
        enter => view.state == State::Turn,
        join => view.state == State::Gone,
        leave => !ended && name != "joining",
    }
}

/// The title carries the state, first, because a tab shows only its beginning.
fn title(words: &Words, name: &str, view: &View) -> String {
    let state = match (view.state, name, view.ahead) {
        (State::Turn, _, _) => return words.say("title.turn").to_owned(),
        (State::Gone, _, _) => words.say("title.gone").to_owned(),
        (_, "waiting", Some(ahead)) => words.count("title.waiting", ahead, &[]),
        _ => words.say(&format!("title.{name}")).to_owned(),
    };
    format!("{state} · {}", words.say("page"))
}

/// The large number and what it counts.
fn figure(words: &Words, view: &View, now_ms: UnixMs) -> (String, String) {
    match (view.state, view.ahead, view.opens_at_ms) {
        (State::Countdown, _, Some(opens)) => (words.span(seconds(opens, now_ms)), words.say("opens").to_owned()),
        (State::Waiting | State::Nearly | State::Paused | State::AllHeld, Some(0), _) => ("0".into(), words.say("ahead.none").to_owned()),
        (State::Waiting | State::Nearly | State::Paused | State::AllHeld, Some(ahead), _) => {
            (words.number(ahead), words.count("ahead", ahead, &[]))
        }
        _ => (String::new(), String::new()),
    }
}

/// How old the numbers are.
fn updated(words: &Words, view: &View, now_ms: UnixMs) -> String {
    let age = seconds(now_ms, view.updated_at_ms);
    let shown = match age {
        0..15 => return words.say("updated.now").to_owned(),
        15..60 => age - age % 15,
        _ => age - age % 60,
    };
    words.fill("updated.ago", &[("span", &words.span(shown))])
}

/// Whole seconds from `earlier` to `later`, never below zero.
fn seconds(later: UnixMs, earlier: UnixMs) -> u64 {
    later.saturating_sub(earlier) / 1_000
}

/// A moment as machines write it (RFC 3339, UTC); the browser shows it in the visitor's own time.
fn moment(at_ms: UnixMs) -> String {
    i64::try_from(at_ms)
        .ok()
        .and_then(|ms| Timestamp::from_millisecond(ms).ok())
        .map_or_else(String::new, |at| at.to_string())
}

/// A view of each kind, with all and with nothing said: what a page is tried with at start.
pub(super) fn samples() -> Vec<View> {
    let bare = |state, reason| View {
        state,
        reason,
        ahead: None,
        wait_low_s: None,
        wait_high_s: None,
        updated_at_ms: 0,
        opens_at_ms: None,
        turn_until_ms: None,
        message: None,
        delayed: false,
        poll_after_s: 5,
    };
    let full = |view: View| View {
        ahead: Some(12_345),
        wait_low_s: Some(185),
        wait_high_s: Some(290),
        opens_at_ms: Some(95_000_000),
        turn_until_ms: Some(110_000),
        message: Some("<Hello> & \"welcome\"".into()),
        delayed: true,
        ..view
    };
    let states = [
        State::Countdown,
        State::Waiting,
        State::Nearly,
        State::Turn,
        State::Paused,
        State::SoldOut,
        State::AllHeld,
        State::Closed,
        State::Admitted,
    ];
    let reasons = [Reason::Left, Reason::Lapsed, Reason::Abandoned, Reason::Ended];
    let alive = states.map(|state| bare(state, None));
    let gone = reasons.map(|reason| bare(State::Gone, Some(reason)));
    let bare: Vec<View> = alive.into_iter().chain(gone).collect();
    bare.iter().cloned().chain(bare.iter().cloned().map(full)).collect()
}
