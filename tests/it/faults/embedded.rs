//! The private store: it starts, keeps its data, comes back when killed, is one to a folder, and says what is missing.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use waitgate::config::{self, Store};
use waitgate::store::embedded::{Embedded, EmbeddedFault};

fn settings(folder: &Path) -> Store {
    let mut settings = config::parse("", &folder.join("waitgate.toml")).unwrap().store;
    settings.data_dir = folder.join("data");
    settings
}

async fn ask(url: &str, words: &[&str]) -> redis::RedisResult<Option<String>> {
    let mut connection = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
    let mut command = redis::cmd(words[0]);
    for word in &words[1..] {
        command.arg(word);
    }
    command.query_async(&mut connection).await
}

async fn start(folder: &TempDir) -> Embedded {
    Embedded::start(&settings(folder.path()))
        .await
        .unwrap_or_else(|fault| panic!("{fault}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn data_survives_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let store = start(&folder).await;
    let url = store.url().to_owned();
    ask(&url, &["SET", "line", "as it was"]).await.unwrap();
    let pid = store.pid().unwrap();
    store.stop().await;
    assert!(ask(&url, &["PING"]).await.is_err(), "it has stopped");
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
    let store = start(&folder).await;
    assert_eq!(store.url(), url);
    assert_eq!(ask(&url, &["GET", "line"]).await.unwrap().as_deref(), Some("as it was"));
    store.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_set_up_as_promised() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let mut settings = settings(folder.path());
    settings.max_memory = 64 << 20;
    let store = Embedded::start(&settings).await.unwrap();
    let client = redis::Client::open(store.url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    for (key, expected) in [
        ("appendonly", "yes"),
        ("appendfsync", "everysec"),
        ("maxmemory-policy", "noeviction"),
        ("maxmemory", "67108864"),
        ("save", ""),
        ("port", "0"),
    ] {
        let mut command = redis::cmd("CONFIG");
        let (_, value): (String, String) = command.arg("GET").arg(key).query_async(&mut connection).await.unwrap();
        assert_eq!(value, expected, "{key}");
    }
    let mode = std::fs::metadata(settings.data_dir.join("redis")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    // Ctrl-C goes to the terminal's process group, which is not the server's.
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", store.pid().unwrap())).unwrap();
    let group = stat.rsplit(") ").next().unwrap().split(' ').nth(2).unwrap().to_owned();
    assert_eq!(group, store.pid().unwrap().to_string());
    store.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_it_comes_back_with_its_data() {
    let folder = tempfile::tempdir().unwrap();
    let store = start(&folder).await;
    ask(store.url(), &["SET", "line", "as it was"]).await.unwrap();
    let first = store.pid().unwrap();
    let mut pids = store.pids();
    assert!(Command::new("kill").args(["-9", &first.to_string()]).status().unwrap().success());
    let again = tokio::time::timeout(Duration::from_secs(10), pids.wait_for(|pid| pid.is_some_and(|pid| pid != first)));
    assert!(again.await.unwrap().unwrap().is_some());
    assert_eq!(ask(store.url(), &["GET", "line"]).await.unwrap().as_deref(), Some("as it was"));
    store.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_has_one_waitgate() {
    let folder = tempfile::tempdir().unwrap();
    let store = start(&folder).await;
    let fault = Embedded::start(&settings(folder.path())).await.unwrap_err();
    assert!(matches!(fault, EmbeddedFault::InUse { .. }), "{fault}");
    assert!(fault.to_string().starts_with("another waitgate works in "), "{fault}");
    assert_eq!(
        ask(store.url(), &["PING"]).await.unwrap().as_deref(),
        Some("PONG"),
        "the first is left alone"
    );
    store.stop().await;
    start(&folder).await.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_waitgate_left_behind_is_taken_over() {
    let folder = tempfile::tempdir().unwrap();
    let store = start(&folder).await;
    let url = store.url().to_owned();
    store.stop().await;
    // The same server with the same settings, and nobody who watches it.
    let mut orphan = Command::new("redis-server")
        .arg(folder.path().join("data/redis/redis.conf"))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let written = async {
        while ask(&url, &["SET", "line", "of the orphan"]).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), written).await.unwrap();
    let store = start(&folder).await;
    assert!(orphan.wait().unwrap().success(), "it was asked to stop, not killed");
    assert_eq!(ask(&url, &["GET", "line"]).await.unwrap().as_deref(), Some("of the orphan"));
    store.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_too_long_for_a_socket_works() {
    let folder = tempfile::tempdir().unwrap();
    let mut settings = settings(folder.path());
    settings.data_dir = folder.path().join("a long way ".repeat(12)).join("data");
    let store = Embedded::start(&settings).await.unwrap();
    ask(store.url(), &["SET", "a", "b"]).await.unwrap();
    let url = store.url().to_owned();
    store.stop().await;
    let store = Embedded::start(&settings).await.unwrap();
    assert_eq!(store.url(), url);
    assert_eq!(ask(&url, &["GET", "a"]).await.unwrap().as_deref(), Some("b"));
    store.stop().await;
    let socket = PathBuf::from(url.strip_prefix("redis+unix://").unwrap());
    std::fs::remove_dir_all(socket.parent().unwrap()).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_program_is_told_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let mut settings = settings(folder.path());
    settings.program = Some(PathBuf::from("no-such-server"));
    let fault = Embedded::start(&settings).await.unwrap_err().to_string();
    assert!(fault.starts_with("no-such-server is not installed"), "{fault}");
    for advice in ["apt-get install redis-server", "dnf install", "brew install redis", "store.url"] {
        assert!(fault.contains(advice), "{fault}");
    }
}

/// A program that says it is a server and does as `script` says.
fn script(folder: &Path, script: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let file = folder.join("server");
    std::fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    file
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_is_too_old_or_dies_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let mut settings = settings(folder.path());
    settings.program = Some(script(folder.path(), "echo Redis server v=6.0.16 sha=00000000:0"));
    let fault = Embedded::start(&settings).await.unwrap_err().to_string();
    assert!(fault.contains("is version 6.0.16, but 7.0 or later is needed"), "{fault}");
    let dies =
        "[ \"$1\" = --version ] && echo 'Redis server v=7.2.0' && exit 0; echo 'Bad file format reading the append only file'; exit 1";
    settings.program = Some(script(folder.path(), dies));
    let fault = Embedded::start(&settings).await.unwrap_err().to_string();
    assert!(fault.contains("Bad file format reading the append only file"), "{fault}");
}
