//! A settings file with its positions, and sections of it laid over each other.
//!
//! A [`Section`] looks a key up in its layers, most specific first, and notes every mistake on the way. A value that is wrong is noted and
//! the next layer's is taken instead, so that reading goes on and all mistakes are found at once. What has been asked for is remembered:
//! whatever else stands in the file is an unknown key. Nothing here knows what any key means.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

/// One mistake in a settings file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mistake {
    /// The file.
    pub file: PathBuf,
    /// The line, from 1; 0 when the mistake is about the file as a whole.
    pub line: usize,
    /// The column in characters, from 1; 0 when the mistake is about the file as a whole.
    pub column: usize,
    /// The key in full, like `rooms.42.rate`; empty when the mistake is about no key.
    pub key: String,
    /// What is wrong, in a sentence.
    pub sentence: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:", self.file.display())?;
        if self.line > 0 {
            write!(formatter, "{}:{}:", self.line, self.column)?;
        }
        if !self.key.is_empty() {
            write!(formatter, " {}:", self.key)?;
        }
        write!(formatter, " {}", self.sentence)
    }
}

/// All mistakes of a settings file, in the order of the file. There is at least one. Shown one a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistakes(pub Vec<Mistake>);

impl fmt::Display for Mistakes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, mistake) in self.0.iter().enumerate() {
            if index > 0 {
                writeln!(formatter)?;
            }
            write!(formatter, "{mistake}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Mistakes {}

/// A settings file as it was written.
pub(super) struct Source<'a> {
    pub(super) file: &'a Path,
    text: &'a str,
}

impl<'a> Source<'a> {
    pub(super) fn new(file: &'a Path, text: &'a str) -> Self {
        Self { file, text }
    }

    /// The table of the file, or what keeps it from being TOML at all.
    pub(super) fn table(&self) -> Result<DeTable<'a>, Mistakes> {
        let (table, errors) = DeTable::parse_recoverable(self.text);
        if errors.is_empty() {
            return Ok(table.into_inner());
        }
        let mistakes = errors.iter().map(|error| {
            let at = error.span().map_or(0, |span| span.start);
            self.mistake(
                at,
                String::new(),
                format!("this is not TOML: {}", error.message().replace('\n', ", ")),
            )
        });
        Err(Mistakes(mistakes.collect()))
    }

    pub(super) fn mistake(&self, at: usize, key: String, sentence: String) -> Mistake {
        let before = self.text.get(..at).unwrap_or(self.text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Mistake {
            file: self.file.to_path_buf(),
            line: before.matches('\n').count() + 1,
            column: before.get(line_start..).map_or(0, |line| line.chars().count()) + 1,
            key,
            sentence,
        }
    }
}

/// The mistakes found so far.
#[derive(Default)]
pub(super) struct Notes(RefCell<Vec<Mistake>>);

impl Notes {
    pub(super) fn add(&self, mistake: Mistake) {
        self.0.borrow_mut().push(mistake);
    }

    /// All of them in the order of the file, each once.
    pub(super) fn finish(self) -> Result<(), Mistakes> {
        let mut mistakes = self.0.into_inner();
        mistakes.sort();
        mistakes.dedup();
        if mistakes.is_empty() { Ok(()) } else { Err(Mistakes(mistakes)) }
    }
}

/// One table of one file.
#[derive(Clone)]
pub(super) struct Layer<'a> {
    pub(super) source: &'a Source<'a>,
    pub(super) table: &'a DeTable<'a>,
    /// The table's own key in full; empty for the file itself.
    pub(super) name: String,
    /// Where the table's key stands, in bytes.
    pub(super) at: usize,
}

impl Layer<'_> {
    fn key(&self, key: &str) -> String {
        if self.name.is_empty() {
            return key.to_owned();
        }
        format!("{}.{key}", self.name)
    }

    fn mistake(&self, at: usize, key: &str, sentence: String) -> Mistake {
        self.source.mistake(at, self.key(key), sentence)
    }
}

/// Tables laid over each other, most specific first.
pub(super) struct Section<'a> {
    layers: Vec<Layer<'a>>,
    asked: RefCell<BTreeSet<String>>,
    notes: &'a Notes,
}

impl<'a> Section<'a> {
    pub(super) fn new(layers: Vec<Layer<'a>>, notes: &'a Notes) -> Self {
        Self {
            layers,
            asked: RefCell::new(BTreeSet::new()),
            notes,
        }
    }

    fn ask(&self, key: &str) {
        self.asked.borrow_mut().insert(key.to_owned());
    }

    /// The tables that stand under `key`, in the same order.
    pub(super) fn layers_of(&self, key: &str) -> Vec<Layer<'a>> {
        self.ask(key);
        let mut found = Vec::new();
        for layer in &self.layers {
            let Some((name, value)) = layer.table.get_key_value(key) else {
                continue;
            };
            match value.get_ref() {
                DeValue::Table(table) => found.push(Layer {
                    source: layer.source,
                    table,
                    name: layer.key(key),
                    at: name.span().start,
                }),
                other => {
                    let sentence = format!("this is a table, written [{}], not {}", layer.key(key), kind(other));
                    self.notes.add(layer.mistake(value.span().start, key, sentence));
                }
            }
        }
        found
    }

    /// The section under `key`.
    pub(super) fn section(&self, key: &str) -> Self {
        Self::new(self.layers_of(key), self.notes)
    }

    /// A section of other layers that notes into the same place.
    pub(super) fn with(&self, layers: Vec<Layer<'a>>) -> Self {
        Self::new(layers, self.notes)
    }

    /// Every key of the first layer and where it stands in bytes, in the order of the file.
    pub(super) fn keys(&self) -> Vec<(String, usize)> {
        let table = self.layers.first().map(|layer| layer.table);
        let keys = table.into_iter().flat_map(DeTable::keys);
        let mut keys: Vec<_> = keys.map(|key| (key.get_ref().to_string(), key.span().start)).collect();
        keys.sort_by_key(|(_, at)| *at);
        keys
    }

    /// Notes a mistake about a key itself.
    pub(super) fn wrong_key(&self, key: &str, at: usize, sentence: &str) {
        if let Some(layer) = self.layers.first() {
            self.notes.add(layer.mistake(at, key, sentence.to_owned()));
        }
    }

    /// The value of `key`: of the first layer that has a good one. Bad ones are noted.
    pub(super) fn get<T>(&self, key: &str, read: impl Fn(&DeValue<'a>) -> Result<T, String>) -> Option<T> {
        self.ask(key);
        for layer in &self.layers {
            let Some(value) = layer.table.get(key) else {
                continue;
            };
            match read(value.get_ref()) {
                Ok(good) => return Some(good),
                Err(sentence) => self.notes.add(layer.mistake(value.span().start, key, sentence)),
            }
        }
        None
    }

    /// The list under `key`: of the first layer that has one. Bad items are noted and left out.
    pub(super) fn list<T>(&self, key: &str, read: impl Fn(&DeValue<'a>) -> Result<T, String>) -> Option<Vec<T>> {
        self.ask(key);
        for layer in &self.layers {
            let Some(value) = layer.table.get(key) else {
                continue;
            };
            let DeValue::Array(items) = value.get_ref() else {
                let sentence = format!("this is a list, written [\"…\", \"…\"], not {}", kind(value.get_ref()));
                self.notes.add(layer.mistake(value.span().start, key, sentence));
                continue;
            };
            let mut good = Vec::new();
            for item in items.iter() {
                match read(item.get_ref()) {
                    Ok(item) => good.push(item),
                    Err(sentence) => self.notes.add(layer.mistake(item.span().start, key, sentence)),
                }
            }
            return Some(good);
        }
        None
    }

    /// Whether the list under `key` has nothing in it, not even something wrong.
    pub(super) fn is_empty_list(&self, key: &str) -> bool {
        let list = self.layers.iter().find_map(|layer| layer.table.get(key));
        matches!(list.map(toml::Spanned::get_ref), Some(DeValue::Array(items)) if items.is_empty())
    }

    /// Whether any layer says anything under `key`, good or bad.
    pub(super) fn has(&self, key: &str) -> bool {
        self.ask(key);
        self.layers.iter().any(|layer| layer.table.contains_key(key))
    }

    /// Notes a mistake about the value of `key`, or about the section when nobody wrote one.
    pub(super) fn wrong(&self, key: &str, sentence: impl Into<String>) {
        self.wrong_at(key, None, sentence.into());
    }

    /// Notes a mistake about one item of the list under `key`: the last that says `item`.
    pub(super) fn wrong_item(&self, key: &str, item: &str, sentence: impl Into<String>) {
        self.wrong_at(key, Some(item), sentence.into());
    }

    fn wrong_at(&self, key: &str, item: Option<&str>, sentence: String) {
        let written = self
            .layers
            .iter()
            .find_map(|layer| layer.table.get(key).map(|value| (layer, value)));
        if let Some((layer, value)) = written {
            let items = value.get_ref().as_array().into_iter().flat_map(|items| items.iter());
            let item = items.rev().find(|written| item.is_some() && written.get_ref().as_str() == item);
            let at = item.map_or(value.span().start, |item| item.span().start);
            self.notes.add(layer.mistake(at, key, sentence));
        } else if let Some(layer) = self.layers.first() {
            self.notes.add(layer.mistake(layer.at, key, sentence));
        }
    }

    /// Notes every key that nobody asked for.
    pub(super) fn finish(&self) {
        let asked = self.asked.borrow();
        for layer in &self.layers {
            for (key, value) in layer.table {
                if asked.contains(key.get_ref().as_ref()) {
                    continue;
                }
                let sentence = unknown(&layer.name, key.get_ref(), value.get_ref(), &asked);
                self.notes.add(layer.mistake(key.span().start, key.get_ref(), sentence));
            }
        }
    }
}

fn unknown(table: &str, key: &str, value: &DeValue<'_>, asked: &BTreeSet<String>) -> String {
    if table == "room" && matches!(value, DeValue::Table(_)) {
        return format!("there is no such key; a room of its own is written [rooms.{key}]");
    }
    let near = asked.iter().map(|known| (distance(key, known), known)).min();
    match near {
        Some((changes, known)) if changes <= 2.max(known.len() / 3) => format!("there is no such key; did you mean `{known}`?"),
        _ => {
            let known: Vec<_> = asked.iter().map(String::as_str).collect();
            format!("there is no such key; here are {}", known.join(", "))
        }
    }
}

/// How many characters must be put in, taken out or changed to make one word the other (Levenshtein's distance).
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (line, mine) in one.chars().enumerate() {
        let mut diagonal = line;
        let mut left = line + 1;
        for (cell, theirs) in row.iter_mut().skip(1).zip(&other) {
            let changed = diagonal + usize::from(mine != *theirs);
            diagonal = *cell;
            left = changed.min(*cell + 1).min(left + 1);
            *cell = left;
        }
        if let Some(first) = row.first_mut() {
            *first = line + 1;
        }
    }
    row.last().copied().unwrap_or(0)
}

/// What a value is, in words.
pub(super) fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "text",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a time",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}
