//! What the pages must hold true, whatever is put into them.

use std::fs;

use super::kit::{hash, inner};
use super::*;

const COOKIES: config::Cookies = config::Cookies {
    secure: true,
    same_site: config::SameSite::Lax,
};

fn settings(folder: Option<PathBuf>) -> config::Pages {
    config::Pages {
        folder,
        default_language: "en".into(),
    }
}

fn pages() -> Pages {
    Pages::new(&settings(None), COOKIES).unwrap()
}

fn waiting(pages: &Pages, tag: &str, view: &View, here: &str) -> String {
    let page = WaitingPage {
        room: "42",
        routes: "/.waitgate/42",
        view,
        here,
        now_ms: 1_000_000,
        has_place: true,
        cookieless: false,
    };
    String::from_utf8(pages.waiting(pages.language(Some(tag), None), &page).to_vec()).unwrap()
}

fn notice(pages: &Pages, tag: &str, notice: Notice) -> String {
    let page = NoticePage {
        notice,
        room: Some("42"),
        here: Some("/sale?a=1&b=2"),
        retry_after_s: 65,
    };
    String::from_utf8(pages.notice(pages.language(Some(tag), None), &page).to_vec()).unwrap()
}

/// The text between `start` and `end`.
fn between<'a>(html: &'a str, start: &str, end: &str) -> &'a str {
    html.split_once(start)
        .and_then(|(_, rest)| rest.split_once(end))
        .map(|(text, _)| text)
        .unwrap()
}

/// A page with its comments, style, script and data left out: what a person reads, and where attributes stand.
fn markup(html: &str) -> String {
    let mut rest = html;
    let mut kept = String::new();
    while let Some((at, end)) = [("<style", "</style>"), ("<script", "</script>")]
        .iter()
        .filter_map(|(tag, end)| Some((rest.find(tag)?, *end)))
        .min()
    {
        kept.push_str(&rest[..at]);
        rest = rest[at..].split_once(end).unwrap().1;
    }
    kept + rest
}

#[test]
fn every_state_is_said_in_every_language_within_thirty_kibibytes() {
    let pages = pages();
    for tag in ["en", "vi"] {
        for view in face::samples() {
            let html = waiting(&pages, tag, &view, "/sale?x=1");
            assert!(html.len() < 30 * 1024, "{tag} {:?}: {} bytes", view.state, html.len());
            let head = between(&html, "<h1 id=\"head\">", "</h1>");
            assert!(!head.is_empty() && !head.contains("head."), "{tag} {:?}: {head}", view.state);
            assert!(
                !markup(&html).contains(['{', '}']),
                "{tag} {:?}: something was not filled in",
                view.state
            );
            assert!(html.contains(&format!("<html lang=\"{tag}\" dir=\"ltr\">")));
        }
        for kind in Notice::ALL {
            let html = notice(&pages, tag, kind);
            assert!(html.len() < 10 * 1024);
            assert!(
                !markup(&html).contains(['{', '}']) && !markup(&html).contains("notice."),
                "{tag} {kind:?}"
            );
        }
    }
}

#[test]
fn nothing_is_asked_of_anybody_else() {
    let pages = pages();
    let [waiting, notice] = [
        waiting(&pages, "en", &face::samples()[1], "/"),
        notice(&pages, "en", Notice::SoldOut),
    ];
    for html in [waiting, notice] {
        for outside in [
            "http://", "https://", "//fonts", "src=", "<link", "@import", "url(", "onclick", "style=",
        ] {
            assert!(!html.contains(outside), "{outside}");
        }
    }
}

#[test]
fn numbers_are_there_without_a_script() {
    let pages = pages();
    let mut view = face::samples()
        .into_iter()
        .find(|view| view.ahead.is_some() && view.state == crate::response::view::State::Waiting)
        .unwrap();
    view.updated_at_ms = 1_000_000 - 130_000;
    let english = waiting(&pages, "en", &view, "/");
    assert!(english.contains("<title>12,345 ahead · Waiting room</title>"));
    assert!(
        english.contains(r#"<span id="number" class="number">12,345</span> <span id="label" class="label">people ahead of you</span>"#)
    );
    assert!(english.contains("<dd>about 3–5 minutes</dd>") && english.contains("<dd>2 minutes ago</dd>"));
    assert!(english.contains(r#"<noscript><meta http-equiv="refresh" content="5"></noscript>"#));
    assert!(english.contains("This page reloads by itself every 5 seconds."));
    let vietnamese = waiting(&pages, "vi-VN", &view, "/");
    assert!(vietnamese.contains("<title>Còn 12.345 người · Phòng chờ</title>"));
    assert!(vietnamese.contains("người đang đứng trước bạn") && vietnamese.contains("<dd>khoảng 3–5 phút</dd>"));
}

#[test]
fn a_page_that_has_ended_does_not_reload_itself() {
    let pages = pages();
    for view in face::samples() {
        let html = waiting(&pages, "en", &view, "/");
        assert_eq!(
            html.contains("http-equiv=\"refresh\""),
            !face::is_final(view.state),
            "{:?}",
            view.state
        );
    }
    let view = &face::samples()[1];
    let page = WaitingPage {
        room: "42",
        routes: "/q",
        view,
        here: "/",
        now_ms: 0,
        has_place: false,
        cookieless: true,
    };
    let html = String::from_utf8(pages.waiting(pages.language(None, None), &page).to_vec()).unwrap();
    assert!(
        !html.contains("http-equiv=\"refresh\""),
        "a reload without the cookie would turn in circles"
    );
    assert!(html.contains(r#"<p id="cookies" class="note">"#));
}

#[test]
fn what_others_wrote_is_never_markup() {
    let pages = pages();
    let evil = r#""><script>alert(1)</script><!-- ' & {{ 1 }}"#;
    for view in face::samples() {
        let html = waiting(
            &pages,
            "en",
            &View {
                message: Some(evil.into()),
                ..view
            },
            &format!("/p?q={evil}"),
        );
        assert_eq!(
            html.matches("<script").count(),
            4,
            "the page's data, its texts and its own two scripts"
        );
        assert_eq!(html.matches("</script").count(), 4);
        assert!(!html.contains("<!--"));
        let data = between(&html, r#"<script type="application/json" id="page">"#, "</script>");
        let data: serde_json::Value = serde_json::from_str(data).unwrap();
        assert_eq!(data["view"]["message"], evil, "and it is whole where it belongs");
        assert_eq!(data["routes"], "/.waitgate/42");
    }
    let page = NoticePage {
        notice: Notice::BadRequest,
        room: Some(evil),
        here: Some(evil),
        retry_after_s: 1,
    };
    let html = String::from_utf8(pages.notice(pages.language(None, None), &page).to_vec()).unwrap();
    assert!(!html.contains("<script"));
}

#[test]
fn the_policy_allows_just_what_stands_in_the_pages() {
    let pages = pages();
    let policy = pages.policy();
    let policy = policy.to_str().unwrap();
    assert!(policy.starts_with("default-src 'none'; script-src 'sha256-"));
    assert!(policy.ends_with("frame-ancestors 'self'") && !policy.contains("unsafe"));
    let directive = |name: &str| policy.split("; ").find(|directive| directive.starts_with(name)).unwrap();
    for html in [
        waiting(&pages, "vi", &face::samples()[1], "/"),
        notice(&pages, "vi", Notice::Closed),
    ] {
        for (tag, from) in [("script", "script-src"), ("style", "style-src")] {
            for text in inner(&html, tag) {
                assert!(directive(from).contains(&format!("'{}'", hash(text))), "{tag}");
            }
        }
    }
    let framed = config::Cookies {
        same_site: config::SameSite::None,
        ..COOKIES
    };
    let framed = Pages::new(&settings(None), framed).unwrap().policy();
    assert!(
        framed.to_str().unwrap().ends_with("frame-ancestors *"),
        "CASE 19: the shop lives in a frame"
    );
}

#[test]
fn trying_again_is_offered_where_it_can_help() {
    let pages = pages();
    let link = |notice, here| {
        let page = NoticePage {
            notice,
            room: None,
            here,
            retry_after_s: 1,
        };
        let html = String::from_utf8(pages.notice(pages.language(None, None), &page).to_vec()).unwrap();
        html.contains("<a ").then(|| between(&html, "href=\"", "\"").to_owned())
    };
    assert_eq!(link(Notice::RateLimited, Some("/sale?a=1")).as_deref(), Some("&#x2f;sale?a=1"));
    assert_eq!(link(Notice::SoldOut, Some("")).as_deref(), Some(""), "the address it is shown at");
    assert_eq!(link(Notice::BackendUnsure, None), None);
    assert_eq!(link(Notice::Closed, Some("/sale")), None);
}

#[test]
fn the_squeezed_script_still_says_the_same() {
    let source = include_str!("../../../static/waiting.js");
    for (at, line) in source.lines().enumerate() {
        assert!(
            line.matches('`').count() % 2 == 0,
            "line {}: a text over several lines would be changed",
            at + 1
        );
        assert!(
            !line.contains("/*"),
            "line {}: comments stand on lines of their own, after //",
            at + 1
        );
    }
}

#[test]
fn a_folder_replaces_files_and_adds_languages() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("lang")).unwrap();
    let german = include_str!("../../../static/lang/en.json").replace("Waiting room", "Warteraum");
    fs::write(folder.path().join("lang/de.json"), german).unwrap();
    fs::write(folder.path().join("waiting.css"), "body { color: red }\n").unwrap();
    let pages = Pages::new(&settings(Some(folder.path().into())), COOKIES).unwrap();
    let html = waiting(&pages, "de-CH", &face::samples()[1], "/");
    assert!(html.contains("Warteraum") && html.contains("<style>body { color: red }\n</style>") && html.contains("lang=\"de\""));
    assert!(pages.policy().to_str().unwrap().contains(&hash("body { color: red }\n")));
}

#[test]
fn a_mistake_in_the_folder_is_one_clear_sentence() {
    let said = |file: &str, text: &str| {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("lang")).unwrap();
        fs::write(folder.path().join(file), text).unwrap();
        Pages::new(&settings(Some(folder.path().into())), COOKIES).unwrap_err().to_string()
    };
    let unreadable = said("waiting.html", "<style>{{ css }}</style>\n{% if %}");
    assert!(unreadable.ends_with("(in waiting.html:2)"), "{unreadable}");
    let misspelt = said("waiting.html", "<style>{{ css }}</style>{{ faec.head }}");
    assert_eq!(misspelt, "undefined value: `faec` is undefined (in waiting.html:1)");
    assert!(said("waiting.html", "<style>{{ css }}</style><script> {{ js }}</script>").contains("must stand as they are"));
    assert!(said("notice.html", "<p>").contains("must stand as they are"));
    assert!(said("waiting.js", "document.write('</script>')").contains("must not contain"));
    assert!(said("lang/fr.json", "{\"name\": \"Français\"}").starts_with("language fr: `direction` is missing"));
    assert!(said("lang/vi.json", "{").starts_with("language vi: "));
    let nowhere = Pages::new(&settings(Some("/nowhere/at/all".into())), COOKIES)
        .unwrap_err()
        .to_string();
    assert!(nowhere.starts_with("/nowhere/at/all: "), "{nowhere}");
    let unknown = Pages::new(
        &config::Pages {
            folder: None,
            default_language: "xx".into(),
        },
        COOKIES,
    )
    .unwrap_err()
    .to_string();
    assert_eq!(
        unknown,
        "pages.default_language is `xx`, and there is no lang/xx.json; there are: en, vi"
    );
}

#[test]
fn a_template_that_fails_on_a_visitor_gives_way_to_the_built_in_page() {
    let folder = tempfile::tempdir().unwrap();
    let text = "<style>{{ css }}</style>{% if room_text == 'Room 7' %}{{ nothing.at.all }}{% endif %}mine";
    fs::write(folder.path().join("notice.html"), text).unwrap();
    let pages = Pages::new(&settings(Some(folder.path().into())), COOKIES).unwrap();
    let render = |room| {
        let page = NoticePage {
            notice: Notice::SoldOut,
            room: Some(room),
            here: None,
            retry_after_s: 1,
        };
        String::from_utf8(pages.notice(pages.language(None, None), &page).to_vec()).unwrap()
    };
    assert!(render("42").ends_with("mine"));
    assert!(render("7").contains("<h1>Sold out</h1>"));
}
