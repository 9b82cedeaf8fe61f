//! `waitgate rehearse` against a real gateway: every way to wait, a whole sale, and every way not to begin.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use futures_util::future::join_all;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use tokio::process::Command;
use tokio::time::timeout;

use crate::backend::Backend;
use crate::crew::Crew;
use crate::harness::within;

/// Counts of ends: everybody who came has exactly one.
const ENDS: [&str; 12] = [
    "won",
    "no_at_arrival",
    "no_while_waiting",
    "no_at_claim",
    "no_at_payment",
    "left",
    "vanished",
    "lapsed",
    "declined",
    "unpaid",
    "stranded",
    "unfinished",
];

fn rehearse(target: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_waitgate"));
    command.args(["rehearse", "--target", target]).args(arguments).kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Exit code, and all that was said.
async fn played(mut command: Command) -> (i32, String) {
    let output = timeout(Duration::from_secs(60), command.output()).await.expect("it ends").unwrap();
    let words = [output.stderr, output.stdout].concat();
    (output.status.code().unwrap(), String::from_utf8(words).unwrap())
}

fn read(report: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap()
}

fn count(report: &Value, name: &str) -> u64 {
    report["counts"][name].as_u64().unwrap_or_else(|| panic!("{name} in {report}"))
}

/// All who came have one end.
fn adds_up(report: &Value) {
    let ends: u64 = ENDS.iter().map(|end| count(report, end)).sum();
    assert_eq!(ends, count(report, "arrived"), "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_is_rehearsed_over_two_processes_and_the_report_adds_up() {
    let crew = Crew::of("rate = \"100/s\"\nstock = 30\nclaim.path = \"/sale/claim\"\nclaim.hold = \"1min\"\n").await;
    let gateway = crew.gateway().await;
    let report = crew.dir.path().join("report.json");
    let (target, ops) = (format!("http://{}", gateway.public), format!("http://{}", gateway.operators));
    let arguments = [
        ["--ops", &ops],
        ["--report", report.to_str().unwrap()],
        ["--page", "/sale?ref=launch"],
        ["--claim", "/sale/claim"],
        ["--visitors", "300"],
        ["--arrive", "1s"],
        ["--for", "14s"],
        ["--processes", "2"],
    ];
    let (code, words) = played(rehearse(&target, arguments.as_flattened())).await;
    assert_eq!(code, 0, "{words}");
    assert!(
        words.contains("Every promise was kept.") && words.contains("in 2 processes"),
        "{words}"
    );
    let report = read(&report);
    adds_up(&report);
    assert_eq!((report["shape"].as_u64(), report["processes"].as_u64()), (Some(1), Some(2)));
    assert_eq!(count(&report, "won"), 30, "{report}");
    assert_eq!(crew.stock().await[..2], [0, 30]);
    assert_eq!((count(&report, "worse"), count(&report, "stranded")), (0, 0), "{report}");
    let seen = &report["room_seen"];
    assert_eq!(
        (&seen["stock"], &seen["looks_in_which_stock_did_not_add_up"]),
        (&30.into(), &0.into()),
        "{report}"
    );
    assert!(seen["called"].as_u64().unwrap() >= 30, "{report}");
    assert!(report["times"]["first_number_ms"]["p50"].as_u64().is_some(), "{report}");
    assert_eq!(report["broken"], serde_json::json!([]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_stays_waits_to_the_end_in_every_way() {
    let crew = Crew::of("rate = 0\n").await;
    let gateway = crew.gateway().await;
    let target = format!("http://{}", gateway.public);
    let runs = ["sse", "ws", "poll", "page", "mix"].map(|way| {
        let report: PathBuf = crew.dir.path().join(format!("{way}.json"));
        let path = report.to_str().unwrap().to_owned();
        let arguments = ["--transport", way, "--stay", "--visitors", "40", "--arrive", "500ms", "--for", "6s"];
        let mut command = rehearse(&target, &arguments);
        command.args(["--page", "/sale", "--processes", "2", "--report", &path]);
        async move { (way, played(command).await, read(&report)) }
    });
    for (way, (code, words), report) in join_all(runs).await {
        assert_eq!(code, 0, "{way}: {words}");
        adds_up(&report);
        assert_eq!(
            (count(&report, "arrived"), count(&report, "unfinished")),
            (40, 40),
            "{way}: {report}"
        );
        let streams = report["times"]["longest_gap_ms"]["count"].as_u64().unwrap();
        match way {
            "sse" | "ws" => assert_eq!(streams, 40, "{way}: {report}"),
            "poll" | "page" => assert_eq!(streams, 0, "{way}: {report}"),
            _ => assert!((1..=40).contains(&streams), "{way}: {report}"),
        }
        assert!(report["room_seen"].is_null(), "nobody was asked");
    }
}

#[tokio::test]
async fn an_interrupt_ends_it_with_score_and_report() {
    let crew = Crew::of("rate = 0\n").await;
    let gateway = crew.gateway().await;
    let report = crew.dir.path().join("report.json");
    let mut command = rehearse(
        &format!("http://{}", gateway.public),
        &["--page", "/sale", "--visitors", "20", "--arrive", "0s"],
    );
    command.args([
        "--transport",
        "sse",
        "--stay",
        "--for",
        "10min",
        "--report",
        report.to_str().unwrap(),
    ]);
    let process = command.spawn().unwrap();
    within("all wait", async || crew.count("line").await == 20).await;
    kill_process(Pid::from_raw(i32::try_from(process.id().unwrap()).unwrap()).unwrap(), Signal::INT).unwrap();
    let output = timeout(Duration::from_secs(30), process.wait_with_output())
        .await
        .expect("it stops")
        .unwrap();
    let words = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{words}");
    assert!(words.contains("20 still in line or in the shop when it ended"), "{words}");
    assert_eq!(count(&read(&report), "unfinished"), 20);
}

/// A gateway that shows everybody a worse number each time: a promise is broken, and the exit code says so.
#[tokio::test]
async fn a_broken_promise_is_the_exit_code() {
    let ahead = Arc::new(AtomicU64::new(5));
    let liar = Backend::start(move |mut wire| {
        let ahead = Arc::clone(&ahead);
        async move {
            while let Some(request) = wire.request().await {
                let (kind, body) = if request.line().contains("/status") {
                    let ahead = ahead.fetch_add(1, SeqCst);
                    let view = format!("{{\"state\":\"waiting\",\"ahead\":{ahead},\"updated_at_ms\":1,\"poll_after_s\":1}}");
                    ("application/json", view)
                } else {
                    ("text/html", "<body data-state=\"waiting\">".to_owned())
                };
                let length = body.len();
                wire.send(format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n{body}"
                ))
                .await;
            }
        }
    })
    .await;
    let arguments = ["--transport", "poll", "--stay", "--visitors", "3", "--arrive", "0s", "--for", "4s"];
    let (code, words) = played(rehearse(&format!("http://{}", liar.address), &arguments)).await;
    assert_eq!(code, 1, "{words}");
    assert!(words.contains("times a visitor was shown a worse position than before"), "{words}");
}

#[tokio::test]
async fn what_cannot_be_rehearsed_is_said_before_anybody_comes() {
    let folder = TempDir::new().unwrap();
    let nowhere = folder.path().join("no/such/folder/report.json");
    let here = "http://127.0.0.1:9";
    let cases: [(&str, &[&str], &str); 6] = [
        ("http://192.0.2.1:80", &[], "is not on this machine"),
        ("https://127.0.0.1", &[], "speaks plain HTTP"),
        (here, &["--for", "0s"], "ends before it begins"),
        (here, &["--report", nowhere.to_str().unwrap()], "No such file or directory"),
        (here, &["--ops", "http://127.0.0.1:9"], "the operators' listener"),
        (here, &["--page", "no-path"], "is not a path"),
    ];
    for (target, arguments, expected) in cases {
        let (code, words) = played(rehearse(target, arguments)).await;
        assert_eq!(code, 2, "{words}");
        assert!(words.contains(expected), "{expected}: {words}");
    }
    let mut few = Command::new("sh");
    few.arg("-c")
        .arg("ulimit -n 64 && exec \"$0\" rehearse --target http://127.0.0.1:9");
    few.arg(env!("CARGO_BIN_EXE_waitgate")).kill_on_drop(true);
    let (code, words) = played(few).await;
    assert_eq!(code, 2, "{words}");
    assert!(words.contains("may open only 64 files"), "{words}");
}
