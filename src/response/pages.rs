//! The pages people see: the waiting page and the notices, in their language.
//!
//! The files are in `static/` and compiled in; each may be replaced by one of the same name in a folder of the operators', and a folder may
//! add languages (`lang/TAG.json`). Everything is read, compiled and rendered once at start, so that a mistake is a sentence before a port
//! is bound, and nothing here opens a file afterwards. Style and script stand inside the page and are allowed by their digests: there is
//! no second request, and a page that was tampered with runs nothing.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use http::HeaderValue;
use minijinja::value::Serde;
use minijinja::{Value, context};
use serde::Serialize;

use crate::clock::UnixMs;
use crate::config;
use crate::response::view::View;

mod face;
mod kit;
mod language;
#[cfg(test)]
mod tests;
mod words;

use kit::Kit;
pub use language::Language;
use words::Words;

const WAITING: &str = "waiting.html";
const NOTICE: &str = "notice.html";

/// A mistake in the operators' pages, found at start.
#[derive(Debug, thiserror::Error)]
pub enum PagesError {
    /// A file that cannot be read.
    #[error("{}: {cause}", file.display())]
    Unreadable {
        /// The file, or the folder.
        file: PathBuf,
        /// Why.
        #[source]
        cause: io::Error,
    },
    /// A language file that does not hold what the page needs.
    #[error("language {tag}: {mistake}")]
    Language {
        /// Its tag.
        tag: String,
        /// What is wrong with it.
        mistake: String,
    },
    /// The default language is none of those there are.
    #[error("pages.default_language is `{tag}`, and there is no lang/{tag}.json; there are: {known}")]
    NoSuchLanguage {
        /// The tag in the settings.
        tag: String,
        /// The tags that could be.
        known: String,
    },
    /// A template that does not compile or render.
    #[error("{cause}")]
    Template {
        /// The template.
        file: &'static str,
        /// What is wrong, with its line.
        #[source]
        cause: Box<minijinja::Error>,
    },
    /// A page that the content policy would break.
    #[error("{file}: {mistake}")]
    Inline {
        /// The file.
        file: &'static str,
        /// What is wrong with it.
        mistake: &'static str,
    },
}

/// What a waiting page is made from.
#[derive(Clone, Copy, Debug)]
pub struct WaitingPage<'a> {
    /// The room's name.
    pub room: &'a str,
    /// Where its waiting routes are: `/.waitgate/42`.
    pub routes: &'a str,
    /// Where the visitor stands.
    pub view: &'a View,
    /// Path and query of this page: where a form leads back to.
    pub here: &'a str,
    /// The clock, so that the browser can tell its own clock's error.
    pub now_ms: UnixMs,
    /// A place has been given; else the page is about to ask for one.
    pub has_place: bool,
    /// Here for the second time without the cookie: the page says that cookies are needed.
    pub cookieless: bool,
}

/// What a notice is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Over the limit.
    RateLimited,
    /// Everything is sold, and nobody joins.
    SoldOut,
    /// Everything is held by others.
    AllHeld,
    /// This buyer has all that one may have.
    Already,
    /// The same claim is on its way.
    InProgress,
    /// Fewer are left than asked for.
    TooFew,
    /// The room is closed.
    Closed,
    /// This gateway keeps as many waiters as it may.
    Full,
    /// No room and no backend for this address.
    NotFound,
    /// A request that cannot be read, or could be read in two ways.
    BadRequest,
    /// The body is too long.
    TooLarge,
    /// The body stopped coming.
    TooSlow,
    /// The backend was not reached: nothing was done.
    BackendDown,
    /// The backend did not answer: something may have been done.
    BackendUnsure,
    /// The store is away, or too much is waiting for it.
    Unavailable,
    /// Our own mistake.
    Error,
}

impl Notice {
    const ALL: [Self; 16] = [
        Self::RateLimited,
        Self::SoldOut,
        Self::AllHeld,
        Self::Already,
        Self::InProgress,
        Self::TooFew,
        Self::Closed,
        Self::Full,
        Self::NotFound,
        Self::BadRequest,
        Self::TooLarge,
        Self::TooSlow,
        Self::BackendDown,
        Self::BackendUnsure,
        Self::Unavailable,
        Self::Error,
    ];

    /// Trying again may help.
    fn may_pass(self) -> bool {
        match self {
            Self::Closed | Self::NotFound | Self::BadRequest | Self::TooLarge | Self::Already | Self::TooFew => false,
            Self::RateLimited | Self::SoldOut | Self::AllHeld | Self::InProgress | Self::Full | Self::TooSlow => true,
            Self::BackendDown | Self::BackendUnsure | Self::Unavailable | Self::Error => true,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::RateLimited => "rate_limited",
            Self::SoldOut => "sold_out",
            Self::AllHeld => "all_held",
            Self::Already => "already",
            Self::InProgress => "in_progress",
            Self::TooFew => "too_few",
            Self::Closed => "closed",
            Self::Full => "full",
            Self::NotFound => "not_found",
            Self::BadRequest => "bad_request",
            Self::TooLarge => "too_large",
            Self::TooSlow => "too_slow",
            Self::BackendDown => "backend_down",
            Self::BackendUnsure => "backend_unsure",
            Self::Unavailable => "unavailable",
            Self::Error => "error",
        }
    }
}

/// What a notice is made from.
#[derive(Clone, Copy, Debug)]
pub struct NoticePage<'a> {
    /// What it is about.
    pub notice: Notice,
    /// The room, where the request met one.
    pub room: Option<&'a str>,
    /// Path and query for "try again", or the empty text for whatever address the page is shown at; none where that would repeat a command. Not shown where trying again cannot help.
    pub here: Option<&'a str>,
    /// When trying again makes sense, the same number as in `Retry-After`.
    pub retry_after_s: u64,
}

/// The pages, ready. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Pages {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// The pages, with the operators' own files over ours.
    own: Kit,
    /// The built-in ones, for the day an operator's template fails on something it was not tried with.
    spare: Kit,
    words: Vec<Words>,
    /// Of each language: its texts for a template, and those for the script, as JSON that may stand in HTML.
    texts: Vec<(Value, Value)>,
    default: Language,
    policy: HeaderValue,
}

impl Pages {
    /// Reads, compiles and tries everything.
    ///
    /// # Errors
    /// When a file in the folder cannot be read, a template does not compile or render, a language misses a text, or the default language
    /// is not there.
    pub fn new(settings: &config::Pages, cookies: config::Cookies) -> Result<Self, PagesError> {
        let folder = settings.folder.as_deref();
        let words = language::read(folder)?;
        let default = words.iter().position(|words| words.tag == settings.default_language);
        let default = default.map(Language).ok_or_else(|| PagesError::NoSuchLanguage {
            tag: settings.default_language.clone(),
            known: words.iter().map(|words| words.tag.as_str()).collect::<Vec<_>>().join(", "),
        })?;
        let texts = words
            .iter()
            .map(|words| (words.texts(), script_json(&words.for_script())))
            .collect();
        let own = Kit::read(folder)?;
        // Cookies that go along in a foreign frame are asked for by a shop that lives in one.
        let frames = if cookies.same_site == config::SameSite::None {
            "*"
        } else {
            "'self'"
        };
        let policy = own.policy(frames)?;
        let shared = Shared {
            spare: Kit::read(None)?,
            own,
            words,
            texts,
            default,
            policy,
        };
        shared.rehearse()?;
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The language to answer in: `cookie_or_none` is what the visitor once chose, where the shop keeps such a thing.
    #[must_use]
    pub fn language(&self, accept_language: Option<&str>, cookie_or_none: Option<&str>) -> Language {
        language::negotiate(&self.shared.words, self.shared.default, accept_language, cookie_or_none)
    }

    /// The language's tag, for `Content-Language`.
    #[must_use]
    pub fn tag(&self, language: Language) -> &str {
        &self.shared.words(language).tag
    }

    /// The waiting page.
    #[must_use]
    pub fn waiting(&self, language: Language, page: &WaitingPage<'_>) -> Bytes {
        let shared = &self.shared;
        shared.render(WAITING, |kit| shared.waiting(kit, language, page))
    }

    /// A notice.
    #[must_use]
    pub fn notice(&self, language: Language, page: &NoticePage<'_>) -> Bytes {
        let shared = &self.shared;
        shared.render(NOTICE, |kit| shared.notice(kit, language, page))
    }

    /// `Content-Security-Policy` for every page of ours.
    #[must_use]
    pub fn policy(&self) -> HeaderValue {
        self.shared.policy.clone()
    }
}

impl Shared {
    fn words(&self, language: Language) -> &Words {
        &self.words[language.0.min(self.words.len() - 1)]
    }

    fn texts(&self, language: Language) -> &(Value, Value) {
        &self.texts[language.0.min(self.texts.len() - 1)]
    }

    /// The operators' template; should it fail, ours; should even that fail, a bare line, because somebody is looking.
    fn render(&self, file: &'static str, context: impl Fn(&Kit) -> Value) -> Bytes {
        let rendered = self.own.render(file, context(&self.own)).or_else(|error| {
            tracing::error!(
                file,
                error = format!("{error:#}"),
                "a page could not be rendered; the built-in one is shown"
            );
            self.spare.render(file, context(&self.spare))
        });
        rendered.map_or_else(
            |_| Bytes::from_static(b"<!doctype html><title>Please wait</title><p>Please wait, then load this page again.</p>"),
            Bytes::from,
        )
    }

    fn waiting(&self, kit: &Kit, language: Language, page: &WaitingPage<'_>) -> Value {
        let words = self.words(language);
        let (texts, catalogue) = self.texts(language);
        // Without the cookie a reload changes nothing, and after the end nothing will.
        let refresh = (!page.cookieless && !face::is_final(page.view.state)).then_some(page.view.poll_after_s.max(1));
        context! {
            tag => words.tag.as_str(),
            direction => words.say("direction"),
            css => kit.style.clone(),
            js => kit.script.clone(),
            rescue => kit.rescue.clone(),
            texts => texts.clone(),
            catalogue => catalogue.clone(),
            face => face::face(words, page.view, page.now_ms),
            refresh,
            refresh_text => refresh.map(|seconds| words.fill("refresh", &[("span", &words.span(seconds))])),
            room_text => words.fill("room", &[("room", page.room)]),
            routes => page.routes,
            here => page.here,
            has_place => page.has_place,
            cookieless => page.cookieless,
            page => Value::from(Serde(ForScript { routes: page.routes, view: page.view, now_ms: page.now_ms, cookieless: page.cookieless })),
        }
    }

    fn notice(&self, kit: &Kit, language: Language, page: &NoticePage<'_>) -> Value {
        let words = self.words(language);
        let name = page.notice.name();
        let span = words.span(page.retry_after_s.max(1));
        context! {
            tag => words.tag.as_str(),
            direction => words.say("direction"),
            css => kit.style.clone(),
            texts => self.texts(language).0.clone(),
            kind => name,
            head => words.say(&format!("notice.{name}.head")),
            text => words.fill(&format!("notice.{name}.text"), &[("span", &span)]),
            here => page.here.filter(|_| page.notice.may_pass()),
            room => page.room,
            room_text => page.room.map(|room| words.fill("room", &[("room", room)])),
        }
    }

    /// Renders each page in each language, so that what is wrong is said at start and not to a visitor.
    fn rehearse(&self) -> Result<(), PagesError> {
        let wrong = |file| {
            move |cause| PagesError::Template {
                file,
                cause: Box::new(cause),
            }
        };
        for language in (0..self.words.len()).map(Language) {
            for view in face::samples() {
                let page = WaitingPage {
                    room: "42",
                    routes: "/.waitgate/42",
                    view: &view,
                    here: "/",
                    now_ms: 0,
                    has_place: true,
                    cookieless: false,
                };
                let html = self
                    .own
                    .render(WAITING, self.waiting(&self.own, language, &page))
                    .map_err(wrong(WAITING))?;
                self.own.check_inline(WAITING, &html)?;
            }
            for notice in Notice::ALL {
                let page = NoticePage {
                    notice,
                    room: Some("42"),
                    here: Some("/"),
                    retry_after_s: 1,
                };
                let html = self
                    .own
                    .render(NOTICE, self.notice(&self.own, language, &page))
                    .map_err(wrong(NOTICE))?;
                self.own.check_inline(NOTICE, &html)?;
            }
        }
        Ok(())
    }
}

/// What the script is given.
#[derive(Serialize)]
struct ForScript<'a> {
    routes: &'a str,
    view: &'a View,
    now_ms: UnixMs,
    cookieless: bool,
}

/// JSON that may stand inside a `<script>` that holds data.
fn script_json(texts: &impl Serialize) -> Value {
    let json = serde_json::to_string(texts).unwrap_or_else(|_| "{}".into());
    Value::from_safe_string(json.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026"))
}
