//! One language: its texts, and how it says numbers, lengths of time and waits.
//!
//! A language is one JSON file, `static/lang/TAG.json`. Nothing about a language is in code: the plural rule is an expression in the file
//! (`'one' if n == 1 else 'other'`), and a text with a number has a form for each word that the rule may say. `static/waiting.js` says the
//! same things in the browser; the two must agree.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use minijinja::value::Serde;
use minijinja::{Environment, Expression, Value, context};

/// The plural forms a rule may choose (CLDR's names).
const FORMS: [&str; 6] = ["zero", "one", "two", "few", "many", "other"];

/// What plural rules are compiled by. It holds nothing and never changes; a rule must outlive no one else.
static RULES: LazyLock<Environment<'static>> = LazyLock::new(Environment::empty);

/// The texts of one language, checked.
#[derive(Debug)]
pub(super) struct Words {
    /// Its BCP 47 tag, from the file's name.
    pub(super) tag: String,
    texts: BTreeMap<String, String>,
    plural: Expression<'static, 'static>,
}

impl Words {
    /// Reads a language's file. The error says what is wrong with it.
    pub(super) fn read(tag: &str, source: &str) -> Result<Self, String> {
        let texts: BTreeMap<String, String> = serde_json::from_str(source).map_err(|error| error.to_string())?;
        for key in ["name", "direction", "group", "plural"] {
            if !texts.contains_key(key) {
                return Err(format!("`{key}` is missing"));
            }
        }
        if !["ltr", "rtl"].contains(&texts["direction"].as_str()) {
            return Err("`direction` must be `ltr` or `rtl`".into());
        }
        let plural = RULES
            .compile_expression_owned(texts["plural"].clone())
            .map_err(|error| format!("the rule in `plural` cannot be read: {error}"))?;
        let tag = tag.to_owned();
        let words = Self { tag, texts, plural };
        let said: BTreeSet<String> = (0..=200).map(|n| words.form(n)).collect::<Result<_, _>>()?;
        words.check_forms(&said)?;
        Ok(words)
    }

    /// Every text that the rule can ask for is there.
    fn check_forms(&self, said: &BTreeSet<String>) -> Result<(), String> {
        for base in self.texts.keys().filter_map(|key| counted(key)) {
            for form in said.iter().map(String::as_str).chain(["other"]) {
                if !self.texts.contains_key(&format!("{base}.{form}")) {
                    return Err(format!("`{base}.{form}` is missing: the plural rule asks for it"));
                }
            }
        }
        Ok(())
    }

    /// Holds this language against another, whose keys and placeholders are taken as right.
    pub(super) fn check_against(&self, model: &Self) -> Result<(), String> {
        let (ours, theirs) = (self.shape(), model.shape());
        if let Some(key) = theirs.keys().find(|key| !ours.contains_key(*key)) {
            return Err(format!("`{key}` is missing"));
        }
        if let Some(key) = ours.keys().find(|key| !theirs.contains_key(*key)) {
            return Err(format!("`{key}` is not a text of the page"));
        }
        for (key, names) in &ours {
            if let Some(name) = names.iter().find(|name| !theirs[key].contains(*name)) {
                return Err(format!("`{key}` has no `{{{name}}}` to fill in"));
            }
        }
        Ok(())
    }

    /// Keys, plural forms folded into one, with the placeholders in them.
    fn shape(&self) -> BTreeMap<&str, BTreeSet<&str>> {
        let mut shape: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (key, text) in &self.texts {
            let names = if key == "plural" { BTreeSet::new() } else { placeholders(text) };
            shape.entry(counted(key).unwrap_or(key)).or_default().extend(names);
        }
        shape
    }

    /// The plural form that this language's rule chooses.
    fn form(&self, n: u64) -> Result<String, String> {
        let form = self
            .plural
            .eval(context! { n })
            .map_err(|error| format!("the rule in `plural` fails for {n}: {error}"))?;
        match form.as_str() {
            Some(form) if FORMS.contains(&form) => Ok(form.to_owned()),
            _ => Err(format!(
                "the rule in `plural` says {form} for {n}; it must say one of {}",
                FORMS.join(", ")
            )),
        }
    }

    /// All texts, for the template.
    pub(super) fn texts(&self) -> Value {
        Value::from(Serde(&self.texts))
    }

    /// The texts that the page's script needs: those of states and numbers. Buttons and labels stand in the page already.
    pub(super) fn for_script(&self) -> BTreeMap<&str, &str> {
        const NEEDED: [&str; 6] = ["page", "group", "opens", "held.over", "slow", "trouble"];
        const FAMILIES: [&str; 8] = ["title.", "head.", "next.", "ahead.", "wait.", "updated.", "span.", "say."];
        let needed = |key: &str| NEEDED.contains(&key) || FAMILIES.iter().any(|family| key.starts_with(family));
        let texts = self.texts.iter().filter(|(key, _)| needed(key));
        texts.map(|(key, text)| (key.as_str(), text.as_str())).collect()
    }

    /// A text. One that is not there is its own key, which the check at start rules out.
    pub(super) fn say<'a>(&'a self, key: &'a str) -> &'a str {
        self.texts.get(key).map_or(key, String::as_str)
    }

    /// A text with its placeholders filled in, in one pass: what is filled in is not looked at again.
    pub(super) fn fill(&self, key: &str, values: &[(&str, &str)]) -> String {
        let mut rest = self.say(key);
        let mut said = String::with_capacity(rest.len() + 16);
        while let Some((before, after)) = rest.split_once('{') {
            said.push_str(before);
            let Some((name, tail)) = after.split_once('}') else {
                said.push('{');
                rest = after;
                continue;
            };
            match values.iter().find(|(known, _)| *known == name) {
                Some((_, value)) => said.push_str(value),
                None => said.extend(["{", name, "}"]),
            }
            rest = tail;
        }
        said.push_str(rest);
        said
    }

    /// A text in the plural form for `n`, which it may show as `{n}`.
    pub(super) fn count(&self, key: &str, n: u64, more: &[(&str, &str)]) -> String {
        let form = self.form(n).unwrap_or_else(|_| "other".into());
        let number = self.number(n);
        let mut values = vec![("n", number.as_str())];
        values.extend(more);
        self.fill(&format!("{key}.{form}"), &values)
    }

    /// A number with its thousands grouped.
    pub(super) fn number(&self, n: u64) -> String {
        let digits = n.to_string();
        let mut said = String::with_capacity(digits.len() + 8);
        for (at, digit) in digits.chars().enumerate() {
            if at > 0 && (digits.len() - at).is_multiple_of(3) {
                said.push_str(self.say("group"));
            }
            said.push(digit);
        }
        said
    }

    /// A length of time in its two largest units; seconds only below ten minutes.
    pub(super) fn span(&self, seconds: u64) -> String {
        let (large, small, size, part) = match seconds {
            86_400.. => ("days", "hours", 86_400, 3_600),
            3_600.. => ("hours", "minutes", 3_600, 60),
            60.. => ("minutes", "seconds", 60, 1),
            _ => return self.count("span.seconds", seconds, &[]),
        };
        let whole = self.count(&format!("span.{large}"), seconds / size, &[]);
        let rest = if part == 1 && seconds >= 600 { 0 } else { seconds % size / part };
        if rest == 0 {
            return whole;
        }
        format!("{whole} {}", self.count(&format!("span.{small}"), rest, &[]))
    }

    /// A wait as a range, coarser the longer it is: whole minutes, then fives, then tens.
    pub(super) fn wait(&self, low: Option<u64>, high: Option<u64>) -> String {
        let (Some(low), Some(high)) = (low, high) else {
            return self.say("wait.unknown").to_owned();
        };
        let step = match high {
            0..60 => return self.say("wait.soon").to_owned(),
            86_400.. => return self.say("wait.long").to_owned(),
            60..=1_200 => 1,
            1_201..=5_400 => 5,
            _ => 10,
        };
        let from = (low / 60 / step * step).max(1);
        let to = high.div_ceil(60 * step) * step;
        if from == to {
            return self.count("wait.minutes", to, &[]);
        }
        if high <= 5_400 {
            return self.count("wait.between", to, &[("low", &self.number(from))]);
        }
        self.fill("wait.hours", &[("low", &self.span(from * 60)), ("high", &self.span(to * 60))])
    }
}

/// The key without its plural form, where it has one.
fn counted(key: &str) -> Option<&str> {
    let (base, form) = key.rsplit_once('.')?;
    FORMS.contains(&form).then_some(base)
}

/// The names in braces.
fn placeholders(text: &str) -> BTreeSet<&str> {
    text.split('{')
        .skip(1)
        .filter_map(|piece| piece.split_once('}'))
        .map(|(name, _)| name)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(tag: &str) -> Words {
        let source = match tag {
            "en" => include_str!("../../../static/lang/en.json"),
            _ => include_str!("../../../static/lang/vi.json"),
        };
        Words::read(tag, source).unwrap()
    }

    #[test]
    fn numbers_are_grouped_as_the_language_does() {
        for (n, english, vietnamese) in [
            (0, "0", "0"),
            (999, "999", "999"),
            (1_000, "1,000", "1.000"),
            (1_234_567, "1,234,567", "1.234.567"),
        ] {
            assert_eq!(words("en").number(n), english);
            assert_eq!(words("vi").number(n), vietnamese);
        }
    }

    #[test]
    fn spans_have_two_units_at_most() {
        for (seconds, english, vietnamese) in [
            (0, "0 seconds", "0 giây"),
            (1, "1 second", "1 giây"),
            (61, "1 minute 1 second", "1 phút 1 giây"),
            (120, "2 minutes", "2 phút"),
            (659, "10 minutes", "10 phút"),
            (3_660, "1 hour 1 minute", "1 giờ 1 phút"),
            (90_000, "1 day 1 hour", "1 ngày 1 giờ"),
        ] {
            assert_eq!(words("en").span(seconds), english);
            assert_eq!(words("vi").span(seconds), vietnamese);
        }
    }

    #[test]
    fn waits_are_ranges_and_coarser_when_long() {
        for (low, high, said) in [
            (10, 59, "less than a minute"),
            (20, 60, "about 1 minute"),
            (185, 290, "about 3–5 minutes"),
            (1_300, 2_000, "about 20–35 minutes"),
            (5_000, 7_300, "about 1 hour 20 minutes to 2 hours 10 minutes"),
            (80_000, 90_000, "more than a day"),
        ] {
            assert_eq!(words("en").wait(Some(low), Some(high)), said);
        }
        assert_eq!(words("vi").wait(Some(185), Some(290)), "khoảng 3–5 phút");
        assert_eq!(words("en").wait(None, None), "not known yet");
    }

    #[test]
    fn what_is_filled_in_is_not_filled_again() {
        let words = words("en");
        assert_eq!(words.fill("room", &[("room", "{room}")]), "Room {room}");
    }

    #[test]
    fn a_language_with_many_plural_forms_is_one_file() {
        let source = include_str!("../../../static/lang/en.json");
        let rule = "'one' if n % 10 == 1 and n % 100 != 11 else 'few' if n % 10 in [2, 3, 4] and n % 100 not in [12, 13, 14] else 'many'";
        let mut texts: BTreeMap<String, String> = serde_json::from_str(source).unwrap();
        texts.insert("plural".into(), rule.into());
        let read = |texts: &BTreeMap<String, String>| Words::read("ru", &serde_json::to_string(texts).unwrap());
        assert!(read(&texts).unwrap_err().contains(".few` is missing"));
        for (key, text) in texts.clone() {
            if let Some(base) = key.strip_suffix(".other") {
                texts.insert(format!("{base}.few"), format!("{text} (few)"));
                texts.insert(format!("{base}.many"), format!("{text} (many)"));
            }
        }
        let words = read(&texts).unwrap();
        assert_eq!(words.span(23), "23 seconds (few)");
        assert_eq!(words.span(12), "12 seconds (many)");
        assert_eq!(words.span(21), "21 second");
    }

    #[test]
    fn mistakes_are_said() {
        let texts = |change: &dyn Fn(&mut BTreeMap<String, String>)| {
            let mut texts = serde_json::from_str(include_str!("../../../static/lang/en.json")).unwrap();
            change(&mut texts);
            serde_json::to_string(&texts).unwrap()
        };
        let model = words("en");
        let said = |source: &str| Words::read("xx", source).and_then(|words| words.check_against(&model)).unwrap_err();
        assert_eq!(said(&texts(&|texts| drop(texts.remove("join")))), "`join` is missing");
        assert_eq!(
            said(&texts(&|texts| drop(texts.insert("jion".into(), "x".into())))),
            "`jion` is not a text of the page"
        );
        assert_eq!(
            said(&texts(&|texts| drop(texts.insert("room".into(), "{rom}".into())))),
            "`room` has no `{rom}` to fill in"
        );
        assert_eq!(
            said(&texts(&|texts| drop(texts.remove("wait.minutes.one")))),
            "`wait.minutes.one` is missing: the plural rule asks for it"
        );
        assert!(said(&texts(&|texts| drop(texts.insert("plural".into(), "'some'".into())))).contains("it must say one of"));
        assert!(said(&texts(&|texts| drop(texts.insert("plural".into(), "'one' if".into())))).contains("cannot be read"));
        assert!(said("{").contains("line 1"));
    }
}
