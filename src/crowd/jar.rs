//! A visitor's cookies: name and value, no more. The demo speaks to one host, so paths and domains do not matter.

use http::header::SET_COOKIE;
use http::{HeaderMap, HeaderValue};

/// A tiny cookie jar.
#[derive(Clone, Debug, Default)]
pub(super) struct Jar {
    cookies: Vec<(String, String)>,
}

impl Jar {
    /// Takes what an answer sets, and drops what it deletes.
    pub(super) fn take(&mut self, headers: &HeaderMap) {
        for line in headers.get_all(SET_COOKIE) {
            let Ok(line) = line.to_str() else { continue };
            let mut parts = line.split(';').map(str::trim);
            let Some((name, value)) = parts.next().and_then(|pair| pair.split_once('=')) else {
                continue;
            };
            self.cookies.retain(|(known, _)| known != name);
            let deleted = value.is_empty() || parts.any(|attribute| attribute.eq_ignore_ascii_case("max-age=0"));
            if !deleted {
                self.cookies.push((name.to_owned(), value.to_owned()));
            }
        }
    }

    /// The `Cookie` header, if there are any.
    pub(super) fn header(&self) -> Option<HeaderValue> {
        if self.cookies.is_empty() {
            return None;
        }
        let line = self
            .cookies
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect::<Vec<_>>();
        HeaderValue::from_str(&line.join("; ")).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(lines: &[&str]) -> HeaderMap {
        lines
            .iter()
            .map(|line| (SET_COOKIE, HeaderValue::from_str(line).unwrap()))
            .collect()
    }

    #[test]
    fn keeps_replaces_and_deletes() {
        let mut jar = Jar::default();
        assert_eq!(jar.header(), None);
        jar.take(&answer(&["wgt_42=a.b=c; Path=/; HttpOnly", "lang=vi"]));
        assert_eq!(jar.header().unwrap(), "wgt_42=a.b=c; lang=vi");
        jar.take(&answer(&["wgt_42=new; Path=/"]));
        assert_eq!(jar.header().unwrap(), "lang=vi; wgt_42=new");
        jar.take(&answer(&["lang=; Path=/", "wgt_42=x; Max-Age=0"]));
        assert_eq!(jar.header(), None);
    }

    #[test]
    fn nonsense_is_ignored() {
        let mut jar = Jar::default();
        jar.take(&answer(&["", "novalue", ";;;"]));
        assert_eq!(jar.header(), None);
    }
}
