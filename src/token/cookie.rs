//! Our cookies: their names, how they are set, how they are taken back.

use http::HeaderValue;

use crate::config::{Cookies, SameSite};

/// The names of a room's two cookies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// The ticket's.
    pub ticket: String,
    /// The admission's.
    pub admission: String,
}

/// What every cookie of ours begins with: none of them reaches a backend.
pub const PREFIXES: [&str; 4] = ["__Host-wgt_", "__Host-wga_", "wgt_", "wga_"];

impl Names {
    /// The names of a room's cookies.
    #[must_use]
    pub fn new(settings: Cookies, room: &str) -> Self {
        let host = if settings.secure { "__Host-" } else { "" };
        Self {
            ticket: format!("{host}wgt_{room}"),
            admission: format!("{host}wga_{room}"),
        }
    }
}

/// A `Set-Cookie` that lasts `max_age_s`.
#[must_use]
pub fn set(settings: Cookies, name: &str, value: &str, max_age_s: u64) -> Option<HeaderValue> {
    let secure = if settings.secure { "; Secure" } else { "" };
    let same_site = match settings.same_site {
        SameSite::Lax => "Lax",
        SameSite::Strict => "Strict",
        SameSite::None => "None",
    };
    let text = format!("{name}={value}; Path=/; Max-Age={max_age_s}; HttpOnly{secure}; SameSite={same_site}");
    let mut header = HeaderValue::try_from(text).ok()?;
    header.set_sensitive(true);
    Some(header)
}

/// A `Set-Cookie` that takes back exactly the cookie that [`set`] set.
#[must_use]
pub fn clear(settings: Cookies, name: &str) -> Option<HeaderValue> {
    set(settings, name, "", 0)
}
