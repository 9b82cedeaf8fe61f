//! A script as this side sees it, the arguments it gets and the words it answers.

use std::sync::OnceLock;

use redis::{FromRedisValue, ParsingError, Script, Value};

use crate::fault::StoreFault;
use crate::store::RoomStore;
use crate::store::keys::Key;

/// One file in `lua/`.
#[derive(Debug)]
pub struct Verb {
    /// Its name.
    pub name: &'static str,
    /// Its text.
    pub text: &'static str,
    /// The keys it gets, in order.
    pub keys: &'static [Key],
    script: OnceLock<Hashed>,
}

struct Hashed(Script);

impl std::fmt::Debug for Hashed {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.write_str(self.0.get_hash())
    }
}

impl Verb {
    pub(super) const fn new(name: &'static str, text: &'static str, keys: &'static [Key]) -> Self {
        Self {
            name,
            text,
            keys,
            script: OnceLock::new(),
        }
    }

    pub(in crate::store) fn script(&self) -> &Script {
        &self.script.get_or_init(|| Hashed(Script::new(self.text))).0
    }
}

/// The arguments of one call, in order.
#[derive(Default)]
pub(super) struct Arguments(Vec<Vec<u8>>);

impl Arguments {
    pub(super) fn number(mut self, value: u64) -> Self {
        self.0.push(value.to_string().into_bytes());
        self
    }

    pub(super) fn text(mut self, value: &str) -> Self {
        self.0.push(value.as_bytes().to_vec());
        self
    }

    pub(super) fn bytes(mut self, value: &[u8]) -> Self {
        self.0.push(value.to_vec());
        self
    }
}

impl RoomStore {
    pub(super) fn arguments(&self) -> Arguments {
        Arguments::default()
    }

    /// Arguments that start with the time.
    pub(super) fn at(&self) -> Arguments {
        Arguments::default().number(self.now())
    }

    pub(super) fn news(&self) -> &str {
        self.keys.news()
    }

    pub(super) async fn run(&self, verb: &'static Verb, arguments: Arguments) -> Result<Words, StoreFault> {
        let words: Vec<Word> = self.put_script(verb, &arguments.0).await?;
        Ok(Words {
            script: verb.name,
            words: words.into_iter(),
            first: Vec::new(),
        }
        .begun())
    }
}

/// One word of an answer: most are written, numbers of which there are many are not.
#[derive(Debug)]
pub(super) enum Word {
    /// Written.
    Text(Vec<u8>),
    /// A number as such.
    Number(i64),
}

impl Word {
    fn into_bytes(self) -> Vec<u8> {
        match self {
            Self::Text(text) => text,
            Self::Number(number) => number.to_string().into_bytes(),
        }
    }
}

impl FromRedisValue for Word {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        match value {
            Value::Int(number) => Ok(Self::Number(number)),
            Value::BulkString(text) => Ok(Self::Text(text)),
            other => Vec::from_redis_value(other).map(Self::Text),
        }
    }
}

/// What a script answered, read word by word. A word that is not there, or is not what it should be, is [`StoreFault::Nonsense`].
pub(super) struct Words {
    script: &'static str,
    words: std::vec::IntoIter<Word>,
    first: Vec<u8>,
}

impl Words {
    fn begun(mut self) -> Self {
        self.first = self.words.next().map(Word::into_bytes).unwrap_or_default();
        self
    }

    /// The first word: what kind of answer it is.
    pub(super) fn first(&self) -> &str {
        std::str::from_utf8(&self.first).unwrap_or_default()
    }

    pub(super) fn bytes(&mut self) -> Result<Vec<u8>, StoreFault> {
        match self.words.next() {
            Some(word) => Ok(word.into_bytes()),
            None => Err(self.nonsense("(too few words)")),
        }
    }

    /// The next word, if it is a number as such.
    pub(super) fn whole(&mut self) -> Option<u64> {
        match self.words.as_slice().first() {
            Some(Word::Number(number)) => {
                let number = u64::try_from(*number).ok()?;
                self.words.next();
                Some(number)
            }
            _ => None,
        }
    }

    pub(super) fn text(&mut self) -> Result<String, StoreFault> {
        let bytes = self.bytes()?;
        String::from_utf8(bytes).map_err(|error| self.nonsense(&String::from_utf8_lossy(error.as_bytes())))
    }

    pub(super) fn number(&mut self) -> Result<u64, StoreFault> {
        let word = self.text()?;
        word.parse().map_err(|_| self.nonsense(&word))
    }

    /// A number as a server writes scores: newer ones write 7600000000000 as `7.6e+12`. Exact below 2^53, where all our scores are.
    pub(super) fn score(&mut self) -> Result<u64, StoreFault> {
        let word = self.text()?;
        score(&word).ok_or_else(|| self.nonsense(&word))
    }

    pub(super) fn flag(&mut self) -> Result<bool, StoreFault> {
        Ok(self.number()? != 0)
    }

    pub(super) fn left(&self) -> usize {
        self.words.len()
    }

    /// This answer is none of those the script's header names.
    pub(super) fn nonsense(&self, word: &str) -> StoreFault {
        StoreFault::Nonsense {
            script: self.script,
            answer: format!("{}: {word}", self.first()).chars().take(200).collect(),
        }
    }

    /// The first word is one that the script never says.
    pub(super) fn unheard(&self) -> StoreFault {
        self.nonsense("")
    }
}

fn score(word: &str) -> Option<u64> {
    if let Ok(number) = word.parse() {
        return Some(number);
    }
    let number: f64 = word.parse().ok()?;
    let whole = (0.0..9_007_199_254_740_992.0).contains(&number) && number.fract() == 0.0;
    whole.then_some(number as u64)
}

#[cfg(test)]
mod tests {
    use super::score;

    #[test]
    fn scores_are_read_however_a_server_writes_them() {
        let exact = [
            ("7563558363137", 7_563_558_363_137),
            ("7.6e+12", 7_600_000_000_000),
            ("1.7e+15", 1_700_000_000_000_000),
            ("9.007199254740991e+15", 9_007_199_254_740_991),
            ("0", 0),
        ];
        for (word, number) in exact {
            assert_eq!(score(word), Some(number), "{word}");
        }
        for nonsense in ["1.5", "-1", "inf", "nan", "1e300", "x", ""] {
            assert_eq!(score(nonsense), None, "{nonsense}");
        }
    }
}
