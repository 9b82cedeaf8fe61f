//! Paths that settings name: only such as every reader reads alike, so that they can be compared with a request's normalised path.

use toml::de::DeValue;

use super::values::{Read, text};

/// A path as every reader reads it: the only kind that can be compared with a request's.
pub(super) fn path(value: &DeValue<'_>) -> Read<String> {
    let text = text(value)?;
    match path_fault(&text) {
        Some(fault) => Err(format!("`{text}` {fault}")),
        None => Ok(text),
    }
}

fn path_fault(path: &str) -> Option<&'static str> {
    if !path.starts_with('/') {
        return Some("must start with a slash");
    }
    if path.contains(['?', '#']) {
        return Some("must be a path alone, without `?` or `#`");
    }
    if path.contains('*') {
        return Some("must not have a `*`: everything below it is meant anyway");
    }
    if path.contains('\\') || path.bytes().any(|byte| byte <= b' ' || byte >= 0x7f) {
        return Some("must be written as a request carries it: ASCII, without spaces and backslashes, anything else as %XX");
    }
    if path.contains("//") {
        return Some("must not have two slashes in a row");
    }
    if path.split('/').any(|segment| segment == "." || segment == "..") {
        return Some("must not have `.` or `..` in it");
    }
    if path.len() > 1 && path.ends_with('/') {
        return Some("must not end with a slash: everything below it is meant anyway");
    }
    percent_fault(path)
}

fn percent_fault(path: &str) -> Option<&'static str> {
    for escape in path.split('%').skip(1) {
        let code = escape.get(..2).filter(|code| code.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let Some(byte) = code.and_then(|code| u8::from_str_radix(code, 16).ok()) else {
            return Some("has a `%` without two hexadecimal digits after it");
        };
        if code.is_some_and(|code| code.bytes().any(|digit| digit.is_ascii_lowercase())) {
            return Some("must have its %XX in capital letters");
        }
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            return Some("has a %XX for a letter that needs none: write the letter itself");
        }
        if byte < b' ' || byte == b'/' || byte == b'\\' || byte == 0x7f {
            return Some("has a %XX that two readers could read differently");
        }
    }
    None
}

/// What passes untouched: a path, `/begins*` or `*.ends`.
pub(super) fn pattern(value: &DeValue<'_>) -> Read<String> {
    let text = text(value)?;
    let bare = text.strip_suffix('*').or_else(|| text.strip_prefix('*')).unwrap_or(&text);
    if bare.is_empty() || bare == "/" && text.ends_with('*') {
        return Err(format!("`{text}` would let everything pass"));
    }
    if bare.contains('*') {
        return Err(format!("`{text}` may have one `*`, at its beginning or at its end"));
    }
    let as_path = if text.starts_with('*') {
        format!("/x{bare}")
    } else {
        // `/pay/*` is the one path that may end with a slash: the slash belongs to what must follow.
        bare.strip_suffix('/').filter(|_| text.ends_with('*')).unwrap_or(bare).to_owned()
    };
    match path_fault(&as_path) {
        Some(fault) => Err(format!("`{text}` {fault}")),
        None => Ok(text),
    }
}

/// Whether two paths are the same to a backend that may not mind the case.
pub(super) fn same(one: &str, other: &str, ignore_case: bool) -> bool {
    one == other || ignore_case && one.eq_ignore_ascii_case(other)
}

/// Whether `path` is `guarded` or lies below it.
pub(super) fn under(path: &str, guarded: &str, ignore_case: bool) -> bool {
    if guarded == "/" || same(path, guarded, ignore_case) {
        return true;
    }
    let (head, rest) = path.split_at_checked(guarded.len()).unwrap_or(("", ""));
    same(head, guarded, ignore_case) && rest.starts_with('/')
}

/// Whether a bypass lets this very path pass.
pub(super) fn passes(bypass: &str, path: &str) -> bool {
    if let Some(begin) = bypass.strip_suffix('*') {
        path.starts_with(begin)
    } else if let Some(end) = bypass.strip_prefix('*') {
        path.ends_with(end)
    } else {
        path == bypass
    }
}
