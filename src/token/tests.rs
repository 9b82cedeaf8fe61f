//! What tokens are held to.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::clock::Clock;

const NOW: UnixMs = 1_800_000_000_000;

fn settings(folder: &tempfile::TempDir) -> config::Tokens {
    config::Tokens {
        key_file: folder.path().join("keys.json"),
        ticket_ttl: Duration::from_secs(3600),
        issuer: "waitgate".to_owned(),
    }
}

fn tokens() -> (tempfile::TempDir, Tokens) {
    let folder = tempfile::tempdir().unwrap();
    let tokens = Tokens::new(&settings(&folder), NOW).unwrap();
    (folder, tokens)
}

fn ticket() -> Ticket {
    Ticket {
        id: keys::random_id(),
        epoch: 7,
        place: 99_999_999_999_999,
        arrived_ms: NOW,
    }
}

fn room(id: &str) -> config::Room {
    let text = format!("[rooms.{id}]\npaths = [\"/sale\"]\nupstream = \"http://127.0.0.1:1\"\non_store_loss = \"hold\"\n");
    let config = config::parse(&text, std::path::Path::new("waitgate.toml")).unwrap();
    config.rooms[0].clone()
}

fn admission(until_ms: UnixMs) -> Admission {
    Admission {
        ticket: keys::random_id(),
        user: "u1".to_owned(),
        epoch: 7,
        until_ms,
    }
}

fn signed(tokens: &Tokens, room: &config::Room, admission: Admission, at: UnixMs) -> String {
    let pass = tokens.sign_admission(room, admission, at).unwrap();
    assert!(pass.token.is_sensitive(), "no log may show it");
    pass.token.to_str().unwrap().to_owned()
}

#[test]
fn a_ticket_comes_back_as_it_was_and_is_short() {
    let (_folder, tokens) = tokens();
    let ticket = ticket();
    let signed = tokens.sign_ticket(&"r".repeat(32), &ticket, NOW).unwrap();
    assert!(signed.len() <= 320, "{} bytes", signed.len());
    assert_eq!(tokens.verify_ticket(&"r".repeat(32), &signed, NOW), Verified::Good(ticket));
    assert_eq!(
        tokens.verify_ticket("42", &signed, NOW),
        Verified::Forged,
        "a ticket of another room"
    );
    assert_eq!(tokens.verify_ticket(&"r".repeat(32), &signed, NOW + 3_600_000), Verified::Expired);
}

/// CASE 85: no leeway. CASE 26: cookies stay under 512 bytes.
#[test]
fn an_admission_ends_when_it_says() {
    let (_folder, tokens) = tokens();
    let room = room("42");
    let signed = signed(&tokens, &room, admission(NOW + 60_000), NOW);
    assert!(signed.len() <= 480, "{} bytes", signed.len());
    assert!(matches!(tokens.verify_admission("42", &signed, NOW), Verified::Good(_)));
    assert!(matches!(tokens.verify_admission("42", &signed, NOW + 59_999), Verified::Good(_)));
    assert_eq!(tokens.verify_admission("42", &signed, NOW + 60_000), Verified::Expired);
    assert_eq!(
        tokens.verify_admission("43", &signed, NOW),
        Verified::Forged,
        "remembered for one room, not for another"
    );
}

/// CASE 26: an admission of an ordinary user is 512 bytes at most, and with the longest ids that are allowed a kilobyte: far below what browsers and
/// backends refuse.
#[test]
fn the_longest_ids_fit_into_a_cookie() {
    let folder = tempfile::tempdir().unwrap();
    let issuer = "i".repeat(config::MAX_ISSUER);
    let settings = config::Tokens {
        issuer,
        ..settings(&folder)
    };
    let long = Tokens::new(&settings, NOW).unwrap();
    let (_folder, plain) = tokens();
    let uuid = "6f1c1f0e-5f3a-4a2b-9c7d-2b8e4f6a1c3d";
    let longest = "\\".repeat(crate::visitor::login::MAX_USER);
    for (tokens, room_id, user, most) in [(&plain, "autumn-sale", uuid, 512), (&long, &*"r".repeat(32), &*longest, 1024)] {
        let room = room(room_id);
        let admission = Admission {
            user: user.to_owned(),
            epoch: u64::MAX,
            ..admission(NOW + 60_000)
        };
        let signed = signed(tokens, &room, admission, NOW);
        assert!(signed.len() <= most, "{user}: {} bytes", signed.len());
        assert!(matches!(tokens.verify_admission(&room.id, &signed, NOW), Verified::Good(_)));
    }
}

#[test]
fn the_same_admission_is_the_same_token() {
    let (_folder, tokens) = tokens();
    let (room, admission) = (room("42"), admission(NOW + 60_000));
    let sign = |at| signed(&tokens, &room, admission.clone(), at);
    assert_eq!(sign(NOW), sign(NOW + 30_000));
}

/// CASES 8 and 86: whatever is not exactly ours is "not admitted", and nothing panics.
#[test]
fn whatever_is_malformed_is_not_admitted() {
    let (_folder, tokens) = tokens();
    let (room, ticket) = (room("42"), ticket());
    let good = signed(&tokens, &room, admission(NOW + 60_000), NOW);
    let ticket = tokens.sign_ticket("42", &ticket, NOW).unwrap();
    let ring = tokens.ring.load();
    let key = ring.signer(NOW);
    let claims = |change: fn(&mut serde_json::Value)| {
        let mut claims = serde_json::json!({"iss": "waitgate", "aud": "42", "sub": "u1", "jti": keys::random_id(), "iat": NOW / 1000,
            "exp": NOW / 1000 + 60, "room": "42", "epoch": 7});
        change(&mut claims);
        jsonwebtoken::encode(&header(Algorithm::EdDSA, &key.kid), &claims, &key.admission_encoding).unwrap()
    };
    assert!(matches!(tokens.verify_admission("42", &claims(|_| {}), NOW), Verified::Good(_)));
    let mut bad = vec![
        claims(|c| c["aud"] = "43".into()),
        claims(|c| c["aud"] = serde_json::json!(["42", "43"])), // ours name one audience
        claims(|c| c["iat"] = (NOW / 1000 + 600).into()),
        claims(|c| c["iat"] = "now".into()),
        claims(|c| c["room"] = "43".into()),
        claims(|c| c["exp"] = "never".into()),
        claims(|c| c["exp"] = 1e300.into()),
        claims(|c| c["iss"] = "other".into()),
        claims(|c| c["sub"] = "".into()),
        ticket.clone(),
        String::new(),
        "a.b".to_owned(),
        "a.b.c".to_owned(),
        "\0".to_owned(),
        "x".repeat(1 << 20),
        good[..good.len() - 2].to_owned(),
        good.replacen('.', "..", 1),
        jsonwebtoken::encode(
            &header(Algorithm::HS256, &key.kid),
            &serde_json::json!({"aud": "42"}),
            &key.ticket_encoding,
        )
        .unwrap(),
    ];
    for name in ["aud", "exp", "sub", "iss", "room", "epoch", "jti"] {
        let mut claims = serde_json::json!({"iss": "waitgate", "aud": "42", "sub": "u1", "jti": keys::random_id(), "iat": NOW / 1000,
            "exp": NOW / 1000 + 60, "room": "42", "epoch": 7});
        claims.as_object_mut().unwrap().remove(name);
        bad.push(jsonwebtoken::encode(&header(Algorithm::EdDSA, &key.kid), &claims, &key.admission_encoding).unwrap());
    }
    for token in bad {
        assert_eq!(tokens.verify_admission("42", &token, NOW), Verified::Forged, "{token:.80}");
    }
    assert_eq!(
        tokens.verify_ticket("42", &good, NOW),
        Verified::Forged,
        "an admission is no ticket"
    );
}

/// CASE 89: gateways whose clocks differ by seconds, or were just set back, accept each other's admissions.
#[test]
fn clocks_that_differ_by_seconds_put_nobody_out() {
    let (_folder, tokens) = tokens();
    let good = signed(&tokens, &room("42"), admission(NOW + 60_000), NOW);
    for verifier in [NOW - 5_000, NOW - 2_000, NOW - 1_000, NOW, NOW + 2_000, NOW + 5_000] {
        tokens.remembered.clear();
        assert!(
            matches!(tokens.verify_admission("42", &good, verifier), Verified::Good(_)),
            "{verifier}"
        );
    }
}

/// CASE 88: the new key verifies before it signs; what the old one signed stays good.
#[test]
fn rotation_throws_nobody_out() {
    let (folder, tokens) = tokens();
    let file = settings(&folder).key_file;
    let other = Tokens::new(&settings(&folder), NOW).unwrap();
    let before = tokens.sign_ticket("42", &ticket(), NOW).unwrap();
    let login = tokens.ticket_id("42", Some("ann"));
    let kid = keys::rotate(&file, NOW, NOW + 10_000, 3_600_000).unwrap();
    assert!(tokens.reload().unwrap());
    assert!(!tokens.reload().unwrap(), "nothing changed since");
    let kid_of = |token: &str| jsonwebtoken::decode_header(token).unwrap().kid.unwrap();
    assert_ne!(
        kid_of(&tokens.sign_ticket("42", &ticket(), NOW).unwrap()),
        kid,
        "it must not sign before its time"
    );
    assert!(other.reload().unwrap());
    let after = tokens.sign_ticket("42", &ticket(), NOW + 10_000).unwrap();
    assert_eq!(kid_of(&after), kid);
    for token in [&before, &after] {
        assert!(matches!(other.verify_ticket("42", token, NOW + 10_000), Verified::Good(_)));
    }
    assert_eq!(tokens.ticket_id("42", Some("ann")), login, "a login keeps its place");
    assert_ne!(tokens.ticket_id("43", Some("ann")), login);
    assert_eq!(
        serde_json::from_slice::<serde_json::Value>(&tokens.jwks()).unwrap()["keys"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
}

/// CASE 88: however often keys are rotated, nothing that may still be good is refused, and no key stays for longer than that; one too many is refused whole.
#[test]
fn many_rotations_throw_nobody_out() {
    let (folder, tokens) = tokens();
    let file = settings(&folder).key_file;
    let lasts_ms = 3_600_000;
    let first = tokens.sign_ticket("42", &ticket(), NOW).unwrap();
    let pass = signed(&tokens, &room("42"), admission(NOW + 600_000), NOW);
    for minute in 1..=7 {
        let now = NOW + minute * 60_000;
        keys::rotate(&file, now, now, lasts_ms).unwrap();
        assert!(tokens.reload().unwrap());
        assert!(
            matches!(tokens.verify_ticket("42", &first, now), Verified::Good(_)),
            "after {minute} rotations"
        );
        assert!(
            matches!(tokens.verify_admission("42", &pass, now), Verified::Good(_)),
            "after {minute} rotations"
        );
    }
    let kept = std::fs::read(&file).unwrap();
    let late = NOW + 8 * 60_000;
    assert!(matches!(keys::rotate(&file, late, late, lasts_ms), Err(KeyFault::Crowded(_))));
    assert_eq!(std::fs::read(&file).unwrap(), kept, "and the file is as it was");
    // The first key signed until the first minute was over: an hour and a minute later nothing of it is good.
    let over = NOW + 60_000 + lasts_ms + 60_000;
    keys::rotate(&file, over, over, lasts_ms).unwrap();
    assert!(tokens.reload().unwrap());
    assert_eq!(
        tokens.verify_ticket("42", &first, NOW),
        Verified::Forged,
        "a retired key signs for nothing"
    );
    assert_eq!(tokens.verify_admission("42", &pass, NOW), Verified::Forged);
}

#[test]
fn the_key_file_is_for_its_owner_only_and_damage_is_said() {
    use std::os::unix::fs::PermissionsExt as _;
    let (folder, tokens) = tokens();
    let file = settings(&folder).key_file;
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    std::fs::write(&file, "{").unwrap();
    assert!(matches!(tokens.reload(), Err(KeyFault::Damaged { .. })));
    let signed = tokens.sign_ticket("42", &ticket(), Clock::moved(NOW).now_ms()).unwrap();
    assert!(
        matches!(tokens.verify_ticket("42", &signed, NOW), Verified::Good(_)),
        "the old keys stay in use"
    );
}

/// Changes a token somewhere: another letter, one less, one more, a part twice, the end cut off.
fn changed(token: &str, kind: u8, at: usize, letter: char) -> String {
    let mut letters: Vec<char> = token.chars().collect();
    let at = at % letters.len();
    match kind % 5 {
        0 => letters[at] = letter,
        1 => drop(letters.remove(at)),
        2 => letters.insert(at, letter),
        3 => {
            let tail = letters[at..].to_vec();
            letters.extend(tail);
        }
        _ => letters.truncate(at),
    }
    letters.into_iter().collect()
}

proptest! {
    /// CASE 8: nothing but the very token that was signed is good, for a ticket as for an admission.
    #[test]
    fn whatever_is_changed_is_not_ours(changes in prop::collection::vec((0_u8..5, any::<usize>(), prop::char::range('!', '~')), 1..4)) {
        let (_folder, tokens) = tokens();
        let pass = signed(&tokens, &room("42"), admission(NOW + 60_000), NOW);
        let ticket = tokens.sign_ticket("42", &ticket(), NOW).unwrap();
        let change = |token: &str| changes.iter().fold(token.to_owned(), |token, (kind, at, letter)| {
            if token.is_empty() { token } else { changed(&token, *kind, *at, *letter) }
        });
        let (other_pass, other_ticket) = (change(&pass), change(&ticket));
        prop_assert!(other_pass == pass || matches!(tokens.verify_admission("42", &other_pass, NOW), Verified::Forged), "{other_pass}");
        prop_assert!(other_ticket == ticket || matches!(tokens.verify_ticket("42", &other_ticket, NOW), Verified::Forged), "{other_ticket}");
    }

    /// Any text is looked at without harm.
    #[test]
    fn any_text_is_no_token(text in "\\PC{0,80}") {
        let (_folder, tokens) = tokens();
        prop_assert!(matches!(tokens.verify_admission("42", &text, NOW), Verified::Forged));
        prop_assert!(matches!(tokens.verify_ticket("42", &text, NOW), Verified::Forged));
    }
}
