//! The command line: exit codes, what goes where, and that wrong settings stop everything before a port is bound.

use std::io::Read as _;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};

use waitgate::config;

fn waitgate(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_waitgate"));
    command.env_remove("RUST_LOG").env_remove("WAITGATE_CONFIG");
    command.args(arguments).output().unwrap()
}

fn said(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn file(folder: &Path, text: &str) -> String {
    let file = folder.join("shop.toml");
    std::fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn check_prints_the_settings_in_force() {
    let folder = tempfile::tempdir().unwrap();
    let file = file(folder.path(), include_str!("../configs/0.1-shop.toml"));
    let (code, out, err) = said(&waitgate(&["check", "--config", &file]));
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let shown = config::parse(&out, Path::new(&file)).unwrap();
    assert_eq!(config::show(&shown), out);
    assert_eq!(shown.room("42").unwrap().stock, Some(100));
}

#[test]
fn check_accepts_the_documented_example_and_says_that_it_does_nothing() {
    let (code, out, err) = said(&waitgate(&["check", "--config", "config/waitgate.toml"]));
    assert_eq!(code, Some(0));
    assert!(out.starts_with("[server]\n"), "{out}");
    assert!(err.contains("no rooms"), "{err}");
}

#[test]
fn wrong_settings_are_told_all_at_once_before_a_port_is_bound() {
    let folder = tempfile::tempdir().unwrap();
    // A port that is taken: binding it would be another mistake than the one that is told.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let text = format!(
        "[server]\nlisten = \"{}\"\nlissten = 1\n[rooms.42]\nstock = \"many\"\n",
        taken.local_addr().unwrap()
    );
    let file = file(folder.path(), &text);
    for command in ["check", "serve"] {
        let (code, out, err) = said(&waitgate(&[command, "--config", &file]));
        assert_eq!((code, out.as_str()), (Some(78), ""), "{err}");
        let lines: Vec<_> = err.lines().collect();
        assert_eq!(lines[0], "waitgate: 5 mistakes in the configuration", "{err}");
        assert_eq!(
            lines[1],
            format!("{file}:3:1: server.lissten: there is no such key; did you mean `listen`?")
        );
        assert!(lines[5].starts_with(&format!("{file}:5:9: rooms.42.stock: ")), "{err}");
    }
}

#[test]
fn a_gateway_without_anything_to_do_does_not_start() {
    let folder = tempfile::tempdir().unwrap();
    let file = file(folder.path(), "");
    let (code, _, err) = said(&waitgate(&["serve", "--config", &file]));
    assert_eq!(code, Some(78));
    assert!(err.contains("no rooms"), "{err}");
    assert!(!folder.path().join("waitgate-data").exists());
}

#[test]
fn a_wrong_command_line_is_told_with_its_own_code() {
    for arguments in [
        &["serv"][..],
        &["serve"],
        &["check", "--config"],
        &["check", "--config", "x", "--loud"],
    ] {
        let (code, out, err) = said(&waitgate(arguments));
        assert_eq!((code, out.as_str()), (Some(2), ""), "{arguments:?}: {err}");
    }
    let folder = tempfile::tempdir().unwrap();
    let file = file(folder.path(), "");
    let (code, _, err) = said(&waitgate(&["--log", "loud=loud", "serve", "--config", &file]));
    assert_eq!(code, Some(2), "{err}");
    assert!(err.contains("is not a log filter"), "{err}");
    let (code, _, err) = said(&waitgate(&["check", "--config", "/no/such/file"]));
    assert_eq!(code, Some(78), "{err}");
}

#[test]
fn a_reader_that_goes_away_is_nobodys_mistake() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_waitgate"))
        .args(["check", "--config", "config/waitgate.toml"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let mut err = String::new();
    child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{err}");
    assert!(!err.contains("panicked"), "{err}");
}
