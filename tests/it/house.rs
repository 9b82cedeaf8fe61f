//! The house rules that a compiler does not see: the direction of modules, a word on every file, headers of scripts that are true.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use waitgate::store::keys::Keys;
use waitgate::store::scripts::{self, Verb};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn files(under: &str, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(under)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|found| found == extension) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The module at the top that a file of `src` belongs to; none for `lib.rs` and `main.rs`.
fn module_of(file: &Path) -> Option<String> {
    let first = file.strip_prefix(root().join("src")).unwrap().components().next().unwrap();
    let name = first.as_os_str().to_str().unwrap().trim_end_matches(".rs").to_owned();
    (name != "lib" && name != "main").then_some(name)
}

/// The modules named by `crate::x` or `crate::{x, y::z}` in code.
fn used_modules(source: &str) -> BTreeSet<String> {
    let code: String = source
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default())
        .collect::<Vec<_>>()
        .join("\n");
    let word = |text: &str| text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let mut used = BTreeSet::new();
    for (at, found) in code.match_indices("crate::") {
        let rest = &code[at + found.len()..];
        match rest.strip_prefix('{') {
            None => {
                used.insert(word(rest));
            }
            Some(list) => {
                let mut depth = 0;
                let mut start = true;
                for (at, letter) in list.char_indices() {
                    match letter {
                        '{' => depth += 1,
                        '}' if depth == 0 => break,
                        '}' => depth -= 1,
                        ',' if depth == 0 => start = true,
                        letter if depth == 0 && start && !letter.is_whitespace() => {
                            used.insert(word(&list[at..]));
                            start = false;
                        }
                        _ => {}
                    }
                }
            }
        }
    }
    used
}

#[test]
fn a_module_uses_only_those_listed_above_it() {
    let library = fs::read_to_string(root().join("src/lib.rs")).unwrap();
    let order: Vec<&str> = library
        .lines()
        .filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'))
        .collect();
    assert!(order.len() > 10, "lib.rs lists the modules: {order:?}");
    let at = |name: &str| order.iter().position(|listed| *listed == name);
    let mut wrong = Vec::new();
    for file in files("src", "rs") {
        let Some(own) = module_of(&file) else { continue };
        let own_at = at(&own).unwrap_or_else(|| panic!("lib.rs does not list {own}"));
        for used in used_modules(&fs::read_to_string(&file).unwrap()) {
            if at(&used).is_some_and(|used_at| used_at > own_at) {
                wrong.push(format!("{} uses {used}, which is listed below {own}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn grouped_uses_are_read_too() {
    let used = used_modules("use crate::{clock::{Clock, UnixMs}, fault};\nfn x() { crate::store::f() } // crate::gateway");
    assert_eq!(used, ["clock", "fault", "store"].map(str::to_owned).into());
}

#[test]
fn every_file_says_what_it_is_for() {
    let silent: Vec<_> = files("src", "rs")
        .into_iter()
        .chain(files("tests", "rs"))
        .filter(|file| !fs::read_to_string(file).unwrap().starts_with("//! "))
        .collect();
    assert!(silent.is_empty(), "these do not start with //!: {silent:?}");
}

/// A script's header and body, taken apart.
struct Script {
    name: &'static str,
    /// Of the header: `KEYS[1]` → name.
    declared: BTreeMap<String, String>,
    header: String,
    /// The lines that bind names.
    binding: String,
    /// All the rest.
    body: String,
}

impl Script {
    fn read(verb: &'static Verb) -> Self {
        let text = verb.text;
        let header: Vec<&str> = text.lines().skip(1).take_while(|line| line.starts_with("--")).collect();
        let declared = header
            .iter()
            .filter_map(|line| {
                let mut words = line.strip_prefix("-- ")?.split_whitespace();
                let place = words.next().filter(|word| word.starts_with("KEYS[") || word.starts_with("ARGV["))?;
                Some((place.to_owned(), words.next()?.to_owned()))
            })
            .collect();
        let code: Vec<&str> = text.lines().skip(1 + header.len()).collect();
        let bound = code
            .iter()
            .position(|line| line.starts_with("-- [the same words"))
            .expect("the shared part");
        Self {
            name: verb.name,
            declared,
            header: header.join("\n"),
            binding: code[..bound].join("\n"),
            body: code[bound..].join("\n"),
        }
    }

    /// `KEYS[1]` → the name it is bound to.
    fn bound(&self) -> BTreeMap<String, String> {
        let mut bound = BTreeMap::new();
        for statement in self.binding.split("local ").skip(1) {
            let (names, values) = statement.split_once('=').expect("a name and a value");
            for (name, value) in names.split(',').zip(values.split(',')) {
                let value = value.split_whitespace().next().unwrap_or_default();
                if value.starts_with("KEYS[") || value.starts_with("ARGV[") {
                    bound.insert(value.to_owned(), name.trim().to_owned());
                }
            }
        }
        for line in self.binding.lines().filter(|line| line.starts_with("for i = ")) {
            // for i = 3, #ARGV do asked[i - 2] = ARGV[i] end
            let from: usize = line["for i = ".len()..].split(',').next().unwrap().parse().unwrap();
            let name = line.split(" do ").nth(1).unwrap().split('[').next().unwrap();
            let wanted = format!("for i = {from}, #ARGV do {name}[i - {}] = ARGV[i] end", from - 1);
            assert_eq!(line, wanted, "{}", self.name);
            bound.insert(format!("ARGV[{from}..]"), name.to_owned());
        }
        bound
    }
}

/// The quoted words of the header's `returns`.
fn told_words(header: &str) -> BTreeSet<String> {
    let returns = header.split("\n-- returns ").nth(1).unwrap().split("\n-- repeats ").next().unwrap();
    let quoted = returns.split('"').skip(1).step_by(2).filter(|word| !word.is_empty());
    quoted.map(str::to_owned).collect()
}

/// The first words of all `return { 'word', … }` of the body.
fn said_words(body: &str) -> BTreeSet<String> {
    let said = body.split("return { '").skip(1).map(|rest| rest.split('\'').next().unwrap());
    said.map(str::to_owned).collect()
}

#[test]
fn the_header_of_each_script_is_true() {
    for verb in scripts::all() {
        let script = Script::read(verb);
        let name = verb.name;
        assert!(
            verb.text.starts_with("#!lua"),
            "{name}: a script without #! goes on writing when memory is full"
        );
        assert!(
            script.header.starts_with(&format!("-- {name}: ")),
            "{name}: the header starts with its name"
        );
        for part in ["returns", "repeats", "lives", "cost"] {
            assert!(
                script.header.contains(&format!("\n-- {part} ")),
                "{name}: the header says nothing of {part}"
            );
        }
        assert_eq!(script.declared, script.bound(), "{name}: the header and the names bound");
        assert!(
            !script.body.contains("KEYS[") && !script.body.contains("ARGV["),
            "{name}: raw KEYS or ARGV after the names are bound"
        );
        let keys = Keys::new("42", 0);
        let given: Vec<String> = verb
            .keys
            .iter()
            .map(|key| keys.get(*key).rsplit(':').next().unwrap().replace("claims-log", "log"))
            .collect();
        let wanted: Vec<String> = (1..=given.len())
            .map(|n| script.declared.get(&format!("KEYS[{n}]")).cloned().unwrap_or_default())
            .collect();
        assert_eq!(wanted, given, "{name}: the keys of the header and those it gets");
        let declared_keys = script.declared.keys().filter(|key| key.starts_with("KEYS")).count();
        assert_eq!(declared_keys, given.len(), "{name}");
        let (told, said) = (told_words(&script.header), said_words(&script.body));
        assert!(said.is_subset(&told), "{name}: says {said:?}, its header {told:?}");
        for word in &told {
            assert!(script.body.contains(&format!("'{word}'")), "{name}: never says {word}");
        }
    }
}

#[test]
fn each_file_in_lua_has_its_method() {
    let mut known: Vec<String> = scripts::all().iter().map(|verb| format!("{}.lua", verb.name)).collect();
    known.sort();
    let found: Vec<String> = files("lua", "lua")
        .iter()
        .map(|file| file.file_name().unwrap().to_str().unwrap().to_owned())
        .collect();
    assert_eq!(found, known);
}

/// Lua has no includes here, so what several scripts share is written several times, between `-- [title` and `-- ]`.
#[test]
fn what_scripts_share_is_the_same_everywhere() {
    let mut shared: BTreeMap<&str, (&str, &str)> = BTreeMap::new();
    for verb in scripts::all() {
        for part in verb.text.split("\n-- [").skip(1) {
            let (title, rest) = part.split_once('\n').unwrap();
            let text = rest.split("\n-- ]").next().unwrap();
            let (first, wanted) = shared.entry(title).or_insert((verb.name, text));
            assert_eq!(*wanted, text, "{title}: {first} and {} differ", verb.name);
        }
    }
    assert_eq!(shared.len(), 3, "{:?}", shared.keys());
}
