//! One set of pages: the templates with the style and the script that stand inside them, and the policy that allows just these.

use std::fs;
use std::io;
use std::path::Path;

use aws_lc_rs::digest::{SHA256, digest};
use data_encoding::BASE64;
use http::HeaderValue;
use minijinja::{Environment, UndefinedBehavior, Value};

use super::{NOTICE, PagesError, WAITING};

const STYLE: &str = "waiting.css";
const SCRIPT: &str = "waiting.js";
const BUILT_IN: [(&str, &str); 4] = [
    (WAITING, include_str!("../../../static/waiting.html")),
    (NOTICE, include_str!("../../../static/notice.html")),
    (STYLE, include_str!("../../../static/waiting.css")),
    (SCRIPT, include_str!("../../../static/waiting.js")),
];
/// Should the script not run through, in a browser too old for it say, the page reloads itself as it does without any. In the words of the
/// oldest browsers; the script says `kept` when it is up.
const RESCUE: &str = "setTimeout(function(){if(document.documentElement.className!=='kept')location.reload()},15e3+Math.random()*1e4)";
/// Steps a template may take: a hundred times what ours take, and an endless loop ends.
const FUEL: u64 = 200_000;

/// One set of templates with the style and the script that belong to it.
#[derive(Debug)]
pub(super) struct Kit {
    templates: Environment<'static>,
    pub(super) style: Value,
    pub(super) script: Value,
    pub(super) rescue: Value,
}

impl Kit {
    pub(super) fn read(folder: Option<&Path>) -> Result<Self, PagesError> {
        let mut templates = Environment::new();
        templates.set_undefined_behavior(UndefinedBehavior::Strict);
        templates.set_fuel(Some(FUEL));
        let (mut style, mut script) = (String::new(), String::new());
        for (file, ours) in BUILT_IN {
            let theirs = folder
                .map(|folder| folder.join(file))
                .map_or(Ok(None), |path| read_if_there(&path))?;
            match file {
                STYLE => style = theirs.unwrap_or_else(|| squeeze_style(ours)),
                SCRIPT => script = theirs.unwrap_or_else(|| squeeze_script(ours)),
                _ => templates
                    .add_template_owned(file, theirs.unwrap_or_else(|| ours.to_owned()))
                    .map_err(|cause| PagesError::Template {
                        file,
                        cause: Box::new(cause),
                    })?,
            }
        }
        for (file, text, end) in [(STYLE, &style, "</style"), (SCRIPT, &script, "</script"), (SCRIPT, &script, "<!--")] {
            if text.to_ascii_lowercase().contains(end) {
                let mistake = "it stands inside a page, so it must not contain `</style`, `</script` or `<!--`";
                return Err(PagesError::Inline { file, mistake });
            }
        }
        Ok(Self {
            templates,
            style: Value::from_safe_string(style),
            script: Value::from_safe_string(script),
            rescue: Value::from_safe_string(RESCUE.to_owned()),
        })
    }

    pub(super) fn render(&self, file: &str, context: Value) -> Result<String, minijinja::Error> {
        self.templates.get_template(file)?.render(context)
    }

    /// Nothing is allowed but our own scripts and style, by digest, and talking to where the page came from.
    pub(super) fn policy(&self, frames: &str) -> Result<HeaderValue, PagesError> {
        let policy = format!(
            "default-src 'none'; script-src '{}' '{}'; style-src '{}'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors {frames}",
            hash(text(&self.script)),
            hash(RESCUE),
            hash(text(&self.style)),
        );
        HeaderValue::from_str(&policy).map_err(|_| PagesError::Inline {
            file: SCRIPT,
            mistake: "its digest cannot stand in a header",
        })
    }

    /// The browser takes the digest of exactly what stands between the tags, so a blank too many would stop the page.
    pub(super) fn check_inline(&self, file: &'static str, html: &str) -> Result<(), PagesError> {
        let mistake = "`<style>{{ css }}</style>`, `<script>{{ rescue }}</script>` and `<script>{{ js }}</script>` must stand as they are, and no other style or script will run";
        let styles = inner(html, "style");
        let scripts = inner(html, "script");
        let styled = !styles.is_empty() && styles.iter().all(|found| *found == text(&self.style));
        if styled && scripts.iter().all(|found| *found == RESCUE || *found == text(&self.script)) {
            return Ok(());
        }
        Err(PagesError::Inline { file, mistake })
    }
}

fn text(inline: &Value) -> &str {
    inline.as_str().unwrap_or_default()
}

/// What stands between each `<tag>` without attributes and its end.
pub(super) fn inner<'a>(html: &'a str, tag: &str) -> Vec<&'a str> {
    let end = format!("</{tag}>");
    html.split(&format!("<{tag}>"))
        .skip(1)
        .filter_map(|rest| rest.split_once(&end))
        .map(|(text, _)| text)
        .collect()
}

/// The digest as a content policy writes it.
pub(super) fn hash(text: &str) -> String {
    format!("sha256-{}", BASE64.encode(digest(&SHA256, text.as_bytes()).as_ref()))
}

/// Our style without comments and indentation: the page is sent to a crowd.
fn squeeze_style(source: &str) -> String {
    let bare = source.split("/*").enumerate().map(|(at, piece)| {
        if at == 0 {
            piece
        } else {
            piece.split_once("*/").map_or("", |(_, rest)| rest)
        }
    });
    bare.collect::<String>().lines().map(str::trim).collect()
}

/// Our script without whole-line comments and indentation. It has no text that runs over a line's end, and a test says so.
fn squeeze_script(source: &str) -> String {
    let lines = source
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

fn read_if_there(path: &Path) -> Result<Option<String>, PagesError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(PagesError::Unreadable {
            file: path.to_owned(),
            cause,
        }),
    }
}
