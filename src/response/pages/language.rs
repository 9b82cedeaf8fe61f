//! The languages there are, and which of them a visitor is answered in: RFC 9110's `Accept-Language`, matched as RFC 4647 "lookup" does.

use std::fs;
use std::io;
use std::path::Path;

use super::PagesError;
use super::words::Words;

const LANGUAGES: [(&str, &str); 2] = [
    ("en", include_str!("../../../static/lang/en.json")),
    ("vi", include_str!("../../../static/lang/vi.json")),
];
/// What every other language is held against.
const MODEL: &str = "en";

/// One of the languages that [`super::Pages`] holds. Only good for the `Pages` that gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Language(pub(super) usize);

/// Ranges looked at, of however many a header names.
const RANGES: usize = 16;

/// All languages, English first: built in, replaced, and added.
pub(super) fn read(folder: Option<&Path>) -> Result<Vec<Words>, PagesError> {
    let mut sources: Vec<(String, String)> = LANGUAGES
        .iter()
        .map(|(tag, source)| ((*tag).to_owned(), (*source).to_owned()))
        .collect();
    for (tag, source) in folder.map_or(Ok(Vec::new()), added)? {
        match sources.iter_mut().find(|(known, _)| *known == tag) {
            Some(known) => known.1 = source,
            None => sources.push((tag, source)),
        }
    }
    let parse = |tag: &str, source: &str| {
        Words::read(tag, source).map_err(|mistake| PagesError::Language {
            tag: tag.to_owned(),
            mistake,
        })
    };
    let model = parse(MODEL, LANGUAGES[0].1)?;
    let mut all = Vec::with_capacity(sources.len());
    for (tag, source) in sources {
        let words = parse(&tag, &source)?;
        words
            .check_against(&model)
            .map_err(|mistake| PagesError::Language { tag, mistake })?;
        all.push(words);
    }
    Ok(all)
}

/// The `lang/*.json` of a folder, in the order of their names.
fn added(folder: &Path) -> Result<Vec<(String, String)>, PagesError> {
    let unreadable = |file: &Path| {
        let file = file.to_owned();
        move |cause| PagesError::Unreadable { file, cause }
    };
    fs::read_dir(folder).map_err(unreadable(folder))?; // a folder that is named but not there is a mistake
    let place = folder.join("lang");
    let files = match fs::read_dir(&place) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        files => files.map_err(unreadable(&place))?,
    };
    let mut found = Vec::new();
    for file in files {
        let path = file.map_err(unreadable(&place))?.path();
        let tag = path
            .file_stem()
            .and_then(|stem| stem.to_str())
            .filter(|_| path.extension().is_some_and(|end| end == "json"));
        if let Some(tag) = tag {
            found.push((tag.to_owned(), fs::read_to_string(&path).map_err(unreadable(&path))?));
        }
    }
    found.sort();
    Ok(found)
}

/// The language that was chosen, else the best of those the header names, else the default.
pub(super) fn negotiate(all: &[Words], default: Language, accept: Option<&str>, chosen: Option<&str>) -> Language {
    if let Some(language) = chosen.and_then(|tag| find(all, tag.trim())) {
        return language;
    }
    let mut ranges: Vec<(&str, u16)> = accept.unwrap_or_default().split(',').take(RANGES).filter_map(range).collect();
    ranges.sort_by_key(|(_, quality)| std::cmp::Reverse(*quality)); // a stable sort: equals stay in the header's order
    let named = |(tag, quality): &(&str, u16)| match *tag {
        _ if *quality == 0 => None,
        "*" => Some(default),
        tag => find(all, tag),
    };
    ranges.iter().find_map(named).unwrap_or(default)
}

/// One range with its quality in thousandths. A malformed one is as if it were not there.
fn range(item: &str) -> Option<(&str, u16)> {
    let (tag, quality) = match item.split_once(';') {
        None => (item, 1_000),
        Some((tag, parameter)) => (
            tag,
            thousandths(parameter.trim().strip_prefix(['q', 'Q'])?.trim_start().strip_prefix('=')?)?,
        ),
    };
    let tag = tag.trim();
    (!tag.is_empty() && tag.len() <= 64).then_some((tag, quality))
}

/// `0`, `0.5`, `1.000`: as the grammar has it, and nothing else.
fn thousandths(quality: &str) -> Option<u16> {
    let (whole, part) = quality.trim().split_once('.').unwrap_or((quality.trim(), ""));
    if part.len() > 3 || !part.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let part: u16 = format!("{part:0<3}").parse().ok()?;
    match (whole, part) {
        ("0", part) => Some(part),
        ("1", 0) => Some(1_000),
        _ => None,
    }
}

/// The language of that tag; else of the tag shortened from its end (`vi-VN` → `vi`); else the first of another region (`pt` → `pt-BR`).
pub(super) fn find(all: &[Words], tag: &str) -> Option<Language> {
    let mut wanted = tag;
    loop {
        if let Some(at) = all.iter().position(|words| words.tag.eq_ignore_ascii_case(wanted)) {
            return Some(Language(at));
        }
        match wanted.rsplit_once('-') {
            Some((shorter, _)) => wanted = shorter,
            None => break,
        }
    }
    let base = |words: &Words| words.tag.split('-').next().is_some_and(|base| base.eq_ignore_ascii_case(wanted));
    all.iter().position(base).map(Language)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_negotiation_table() {
        let words = |tag| Words::read(tag, include_str!("../../../static/lang/en.json")).unwrap();
        let all = [words("en"), words("vi"), words("pt-BR")];
        for (accept, chosen, tag) in [
            (None, None, "en"),
            (Some(""), None, "en"),
            (Some("vi"), None, "vi"),
            (Some("vi-VN,vi;q=0.9,en;q=0.8"), None, "vi"),
            (Some("VI-vn"), None, "vi"),
            (Some("fr, vi;q=0.5, en;q=0.7"), None, "en"),
            (Some("en;q=0.3, vi ; q=0.301"), None, "vi"),
            (Some("en;q=0, vi;q=0.001"), None, "vi"),
            (Some("de, *;q=0.5, vi;q=0.1"), None, "en"),
            (Some("vi;q=0"), None, "en"),
            (Some("pt"), None, "pt-BR"),
            (Some("pt-PT"), None, "pt-BR"),
            (Some("zh-Hant-TW"), None, "en"),
            (Some("vi;q=2, en"), None, "en"),
            (Some("vi;q=0.12345"), None, "en"),
            (Some(";;;,,,q=;vi;q"), None, "en"),
            (Some("en"), Some("vi"), "vi"),
            (Some("vi"), Some("xx"), "vi"),
            (Some("en"), Some(" vi-VN "), "vi"),
        ] {
            let Language(at) = negotiate(&all, Language(0), accept, chosen);
            assert_eq!(all[at].tag, tag, "{accept:?} {chosen:?}");
        }
    }
}
