//! `waitgate demo` as a process: what it leaves behind, and what it says when it cannot begin. That a sale comes out even is `tests/run demo`.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::harness::within;

fn demo(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_waitgate"));
    command.arg("demo").args(arguments).env("TMPDIR", folder).kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The processes a process has started (Linux).
fn children(process: &Child) -> Vec<u32> {
    let id = process.id().unwrap();
    let mut found = Vec::new();
    for task in std::fs::read_dir(format!("/proc/{id}/task")).unwrap() {
        let listed = std::fs::read_to_string(task.unwrap().path().join("children")).unwrap_or_default();
        found.extend(listed.split_ascii_whitespace().map(|child| child.parse::<u32>().unwrap()));
    }
    found
}

#[tokio::test]
async fn an_interrupt_in_mid_sale_stops_every_process_and_leaves_no_file() {
    let folder = TempDir::new().unwrap();
    let mut process = demo(folder.path(), &["--visitors", "300", "--arrive", "2min", "--port", "0"])
        .spawn()
        .unwrap();
    let mut words = BufReader::new(process.stdout.take().unwrap()).lines();
    let opened = async { while !words.next_line().await.unwrap().unwrap().contains("The sale is at") {} };
    timeout(Duration::from_secs(30), opened).await.expect("the sale opens");
    within("shop, gateway and crowd run", async || children(&process).len() >= 3).await;
    let parts = children(&process);
    kill_process(Pid::from_raw(i32::try_from(process.id().unwrap()).unwrap()).unwrap(), Signal::INT).unwrap();
    let status = timeout(Duration::from_secs(30), process.wait()).await.expect("it stops").unwrap();
    assert_eq!(status.code(), Some(130));
    for part in parts {
        assert!(!Path::new(&format!("/proc/{part}")).exists(), "process {part} was left behind");
    }
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn without_a_redis_server_it_says_how_to_get_one() {
    let folder = TempDir::new().unwrap();
    let output = demo(folder.path(), &["--visitors", "10", "--once", "--port", "0"])
        .env("PATH", folder.path())
        .output();
    let output = timeout(Duration::from_secs(30), output).await.expect("it gives up").unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{words}");
    assert!(words.contains("redis-server") && words.contains("apt-get install"), "{words}");
    assert!(std::fs::read_dir(folder.path()).unwrap().next().is_none());
}
