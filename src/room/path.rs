//! Paths as a backend may read them.
//!
//! A rule is matched against *every* reading a backend could make of a path: percent-encodings undone once, twice, three times; `;parameters`
//! kept or dropped; dots and spaces at a segment's end too; backslashes and doubled slashes as slashes, or the name of a host after those at the
//! beginning; what is decoded to a query left out; fullwidth letters and signs as plain ones; case
//! ignored where the backend ignores it. Guards and claim routes match when *any* reading matches; a bypass only when there is just one reading. Dot segments, in any spelling, are refused: browsers never send them.

use crate::fault::ClientFault;

/// How often percent-encodings are undone; what is still encoded after that is refused.
const MAX_DECODINGS: usize = 3;

/// A path and all the ways to read it, each normalised: one leading slash, no empty segment, no trailing slash, no parameters.
#[derive(Debug, PartialEq, Eq)]
pub struct Readings<'a> {
    plain: &'a str,
    others: Vec<String>,
}

impl<'a> Readings<'a> {
    /// All readings of the path of a request.
    ///
    /// # Errors
    /// The path cannot be read safely: dot segments, control characters, over-long or endless encodings.
    pub fn of(path: &'a str) -> Result<Self, ClientFault> {
        if !path.starts_with('/') {
            return Err(ClientFault::Malformed("the path does not start with a slash"));
        }
        if is_plain(path) {
            return Ok(Self {
                plain: without_trailing_slash(path),
                others: Vec::new(),
            });
        }
        let mut others = Vec::new();
        let mut bytes = path.as_bytes().to_vec();
        for round in 0..=MAX_DECODINGS {
            for written in [Some(&bytes), folded(&bytes).as_ref()].into_iter().flatten() {
                for path in [Some(&**written), without_authority(written)].into_iter().flatten() {
                    for path in [Some(path), without_query(path)].into_iter().flatten() {
                        others.push(normalise(path, Ends::Kept)?);
                        others.push(normalise(path, Ends::Dropped)?);
                    }
                }
            }
            bytes = folded(&bytes).unwrap_or(bytes); // a fullwidth percent sign may begin an encoding
            match decode(&bytes) {
                None => break,
                Some(_) if round == MAX_DECODINGS => return Err(ClientFault::Malformed("the path is encoded too often")),
                Some(decoded) => bytes = decoded,
            }
        }
        others.dedup();
        Ok(Self { plain: "", others })
    }

    /// Any reading is the rule's path itself.
    #[must_use]
    pub fn any_is(&self, path: &str, ignore_case: bool) -> bool {
        self.any(|reading| same(reading, path, ignore_case))
    }

    /// Any reading is the prefix or under it, at a segment's border.
    #[must_use]
    pub fn any_under(&self, prefix: &str, ignore_case: bool) -> bool {
        let prefix = without_trailing_slash(prefix);
        self.any(|reading| under(reading, prefix, ignore_case))
    }

    /// The only reading there is, when there is only one.
    #[must_use]
    pub fn only(&self) -> Option<&str> {
        self.others.is_empty().then_some(self.plain)
    }

    fn any(&self, matches: impl Fn(&str) -> bool) -> bool {
        match self.only() {
            Some(plain) => matches(plain),
            None => self.others.iter().any(|reading| matches(reading)),
        }
    }
}

/// Nothing in it that two readers could read differently.
fn is_plain(path: &str) -> bool {
    let mut before = b' ';
    for &byte in path.as_bytes() {
        let odd = matches!(byte, b'%' | b';' | b'\\' | 0..=0x20 | 0x7f..)
            || (before == b'/' && matches!(byte, b'/' | b'.'))
            || (before == b'.' && byte == b'/');
        if odd {
            return false;
        }
        before = byte;
    }
    before != b'.'
}

fn without_trailing_slash(path: &str) -> &str {
    path.strip_suffix('/').unwrap_or(path)
}

/// What becomes of dots and spaces at the end of a segment: Windows drops them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ends {
    Kept,
    Dropped,
}

/// One reading: segments without parameters, joined by single slashes.
fn normalise(bytes: &[u8], ends: Ends) -> Result<String, ClientFault> {
    let mut normal = Vec::with_capacity(bytes.len());
    for segment in bytes.split(|&byte| byte == b'/' || byte == b'\\') {
        let name = segment.split(|&byte| byte == b';').next().unwrap_or_default();
        if is_dots(name) || is_dots(segment) {
            return Err(ClientFault::Malformed("the path has dot segments"));
        }
        if segment.iter().any(|&byte| byte < 0x20 || byte == 0x7f) {
            return Err(ClientFault::Malformed("the path has control characters"));
        }
        let over_long = |pair: &[u8]| matches!(pair, [0xe0, 0x80..=0x9f] | [0xf0, 0x80..=0x8f]);
        if segment.iter().any(|&byte| matches!(byte, 0xc0 | 0xc1 | 0xf8..)) || segment.windows(2).any(over_long) {
            return Err(ClientFault::Malformed("the path has over-long encodings"));
        }
        if segment.windows(6).any(is_unicode_escape) {
            return Err(ClientFault::Malformed("the path has %u encodings"));
        }
        let name = if ends == Ends::Dropped { without_end(name) } else { name };
        if !name.is_empty() {
            normal.push(b'/');
            normal.extend_from_slice(name);
        }
    }
    Ok(String::from_utf8_lossy(&normal).into_owned())
}

/// A dot segment, also for backends that drop the spaces at its end.
fn is_dots(segment: &[u8]) -> bool {
    matches!(segment.trim_ascii_end(), b"." | b"..")
}

/// What is left where a backend takes `//name/` at the beginning for the name of a host, as parsers of whole URLs do.
fn without_authority(bytes: &[u8]) -> Option<&[u8]> {
    let is_slash = |byte: &u8| matches!(byte, b'/' | b'\\');
    let host = bytes.iter().position(|byte| !is_slash(byte)).filter(|slashes| *slashes >= 2)?;
    let length = bytes[host..].iter().position(is_slash)?;
    Some(&bytes[host + length..])
}

/// What is left where a backend looks for the query only after decoding.
fn without_query(bytes: &[u8]) -> Option<&[u8]> {
    let end = bytes.iter().position(|byte| matches!(byte, b'?' | b'#'))?;
    Some(&bytes[..end])
}

/// Fullwidth letters and signs (U+FF01 to U+FF5E) as the plain ones that they look like, and some backends read; none when there are none.
fn folded(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut plain = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let [first, tail @ ..] = rest {
        let letter = match rest {
            [0xef, 0xbc, low @ 0x81..=0xbf, ..] => Some(low - 0x60),
            [0xef, 0xbd, low @ 0x80..=0x9e, ..] => Some(low - 0x20),
            _ => None,
        };
        plain.push(letter.unwrap_or(*first));
        rest = if letter.is_some() { &rest[3..] } else { tail };
    }
    (plain.len() < bytes.len()).then_some(plain)
}

fn without_end(name: &[u8]) -> &[u8] {
    let kept = name
        .iter()
        .rposition(|byte| !matches!(byte, b'.' | b' '))
        .map_or(0, |last| last + 1);
    &name[..kept]
}

/// `%u0073`: a letter to some backends, and nothing to the rest.
fn is_unicode_escape(bytes: &[u8]) -> bool {
    matches!(bytes, [b'%', b'u' | b'U', digits @ ..] if digits.iter().all(u8::is_ascii_hexdigit))
}

/// Percent-encodings undone once; none when there are none. A stray `%` stays as it is.
fn decode(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    let mut changed = false;
    while let [first, tail @ ..] = rest {
        if let (b'%', [high, low, after @ ..]) = (first, tail)
            && let (Some(high), Some(low)) = (hex(*high), hex(*low))
        {
            decoded.push(high << 4 | low);
            rest = after;
            changed = true;
        } else {
            decoded.push(*first);
            rest = tail;
        }
    }
    changed.then_some(decoded)
}

fn hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

fn same(left: &str, right: &str, ignore_case: bool) -> bool {
    let right = without_trailing_slash(right);
    if ignore_case {
        left.eq_ignore_ascii_case(right)
    } else {
        left == right
    }
}

fn under(reading: &str, prefix: &str, ignore_case: bool) -> bool {
    let (head, rest) = match reading.as_bytes().split_at_checked(prefix.len()) {
        Some(parts) => parts,
        None => return false,
    };
    let same = if ignore_case {
        head.eq_ignore_ascii_case(prefix.as_bytes())
    } else {
        head == prefix.as_bytes()
    };
    same && (rest.is_empty() || rest[0] == b'/')
}

/// A bypass rule: a whole path, `/assets/*` for everything under a path, or `*.css` for a suffix. Matched on plain paths only.
#[must_use]
pub fn bypasses(rule: &str, path: &str) -> bool {
    if let Some(suffix) = rule.strip_prefix('*') {
        return path.ends_with(suffix);
    }
    match rule.strip_suffix('*') {
        Some(prefix) => path.starts_with(prefix),
        None => same(path, rule, false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn guarded(path: &str, ignore_case: bool) -> Result<bool, ClientFault> {
        Readings::of(path).map(|readings| readings.any_under("/sale", ignore_case))
    }

    /// CASE 64: each spelling is either refused or guarded.
    #[test]
    fn no_spelling_of_a_guarded_path_goes_by() {
        let spellings = [
            "/public/../sale",
            "/public%2f..%2fsale",
            "//sale",
            "/./sale",
            "/%73ale",
            "/sale;x",
            "/SALE",
            "/%252e%252e/sale",
            "/\\sale",
            "/sale/",
            "/%2573ale",
            "/public/..;/sale",
            "/%2e/sale",
            "/sale%00",
            "/..%c0%af/sale",
            "/%25252573ale",
            "/sale%2fx",
            "/;/sale",
            "/sale%3bx",
            "/%u0073ale",
            "/%25u0073ale",
            "/sale.",
            "/sale./x",
            "/sale%20",
            "/sale...;x",
            "/%ef%bd%93ale",
            "/\u{ff53}ale",
            "/%EF%BC%B3%EF%BC%A1LE/x",
            "/sale%ef%bc%8fx",
            "/x%ef%bc%8f%ef%bc%8e%ef%bc%8e%ef%bc%8fsale",
            "/%25ef%25bd%2593ale",
            "/%ef%bc%8573ale",
            "/;x%c0%afsale",
            "/;x%e0%80%afsale",
            "/;%u002fsale",
            "/%f8%80%80%81%b3ale",
            "/%e0%81%b3ale",
            "/%e0%81%93ale",
            "/%f0%80%81%b3ale",
            "//x/sale",
            "///x/sale",
            "/\\x/sale",
            "//u@h:1/sale/y",
            "/%2fx/sale",
            "/sale%3fx",
            "/sale%23x/y",
            "/%2573ale%253fx",
            "/x/..%20/sale",
            "/x/%2e%2e%20/sale",
        ];
        for spelling in spellings {
            assert!(guarded(spelling, true) != Ok(false), "{spelling} went by");
        }
        assert_eq!(guarded("/SALE", false), Ok(false), "case matters where the backend says so");
        for free in [
            "/public",
            "/sales",
            "/sal",
            "/",
            "/x/sale",
            "/pub;sale",
            "/.well-known/x",
            "/a..b/c",
            "/%zz",
            "/100%",
        ] {
            assert_eq!(guarded(free, true), Ok(false), "{free}");
        }
    }

    #[test]
    fn a_bypass_needs_a_plain_path() {
        let plain = |path| Readings::of(path).ok().and_then(|readings| readings.only().map(str::to_owned));
        assert_eq!(plain("/sale/app.css").as_deref(), Some("/sale/app.css"));
        assert_eq!(plain("/sale%2fapp.css"), None);
        assert_eq!(plain("/sale;/app.css"), None);
        assert!(bypasses("*.css", "/sale/app.css") && !bypasses("*.css", "/sale/app.css2"));
        assert!(bypasses("/sale/assets/*", "/sale/assets/x") && !bypasses("/sale/assets/*", "/sale/assetsx"));
        assert!(bypasses("/sale/hook", "/sale/hook") && !bypasses("/sale/hook", "/sale/hook/x"));
    }

    /// A backend that decodes up to three times, drops parameters and merges slashes, as careless ones do; or reads what it has decoded as a whole URL.
    fn careless_backend(path: &str, decodings: usize, url: bool) -> String {
        let mut bytes = path.as_bytes().to_vec();
        for _ in 0..decodings {
            bytes = decode(&bytes).unwrap_or(bytes);
        }
        let folded: String = String::from_utf8_lossy(&bytes)
            .chars()
            .map(|letter| match letter {
                '\u{ff01}'..='\u{ff5e}' => char::from_u32(u32::from(letter) - 0xfee0).unwrap(),
                other => other,
            })
            .collect();
        let text = folded.replace('\\', "/").to_ascii_lowercase();
        let text = if url {
            text.split_once(['?', '#']).map_or(text.as_str(), |(path, _)| path).to_owned()
        } else {
            text
        };
        let text = match text.trim_start_matches('/').split_once('/') {
            Some((_host, rest)) if url && text.starts_with("//") => rest.to_owned(),
            _ => text,
        };
        let mut stack: Vec<String> = Vec::new();
        for segment in text.split('/') {
            match segment.split(';').next().unwrap_or_default() {
                "" | "." => {}
                ".." => drop(stack.pop()),
                name => match name.trim_end_matches(['.', ' ']) {
                    "" => {}
                    name => stack.push(name.to_owned()),
                },
            }
        }
        format!("/{}", stack.join("/"))
    }

    proptest! {
        // As many more as `PROPTEST_CASES` says: a fixed number would not heed it.
        #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.saturating_mul(16), ..ProptestConfig::default() })]

        /// If a careless backend ends up at the guarded path, then we guarded or refused it.
        #[test]
        fn whatever_a_backend_reads_as_guarded_is_guarded(
            pieces in prop::collection::vec(prop::sample::select(vec![
                "/", "//", "\\", "sale", "SALE", "%73ale", "%2573ale", "s%61le", ".", "..", "%2e", "%2E%2e", "%252e", "%2f", "%252f", "%5c", ";", ";x", "%3b", "x", "%", "%zz", "public", "%20", "%ef%bd%93ale", "\u{ff33}ale", "%ef%bc%8f", "%ef%bc%8e", "%25ef%25bd%2593", "%3f", "%23", "%253f",
            ]), 0..9),
            decodings in 0_usize..=3,
            url: bool,
        ) {
            let path = format!("/{}", pieces.concat());
            let read = careless_backend(&path, decodings, url);
            if read == "/sale" || read.starts_with("/sale/") {
                prop_assert!(guarded(&path, true) != Ok(false), "{} is read as {}", path, read);
            }
        }

        /// Nothing panics on any path.
        #[test]
        fn any_text_is_read_or_refused(path in "\\PC{0,60}") {
            let _outcome = Readings::of(&path);
        }
    }
}
