//! The real program, as a process of its own.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr, Command};

use crate::backend::soon;

/// A gateway as a process of its own; killed when dropped.
pub struct Process {
    pub public: SocketAddr,
    pub operators: SocketAddr,
    pub child: Child,
    log: Lines<BufReader<ChildStderr>>,
    /// What it logged so far.
    pub said: Vec<String>,
}

impl Process {
    /// Starts `waitgate serve` with this file, and waits until it serves.
    pub async fn spawn(file: &std::path::Path, files: Option<u32>) -> Self {
        let program = PathBuf::from(env!("CARGO_BIN_EXE_waitgate"));
        let mut command = match files {
            Some(files) => {
                let mut command = Command::new("sh");
                command.args(["-c", &format!("ulimit -n {files}; exec \"$0\" \"$@\"")]).arg(program);
                command
            }
            None => Command::new(program),
        };
        let mut child = command
            .env_remove("RUST_LOG")
            .args(["serve", "--config"])
            .arg(file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the program starts");
        let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut said = Vec::new();
        let hello = async {
            loop {
                let line = log.next_line().await.unwrap().unwrap_or_else(|| panic!("it ended: {said:?}"));
                let spoken: Value = serde_json::from_str(&line).unwrap_or_default();
                said.push(line);
                let address = |name: &str| spoken[name].as_str()?.parse().ok();
                if let (Some(public), Some(operators)) = (address("public"), address("operators")) {
                    return (public, operators);
                }
            }
        };
        let (public, operators) = soon(hello).await;
        Self {
            public,
            operators,
            child,
            log,
            said,
        }
    }

    /// Sends a signal by its name.
    pub async fn signal(&self, name: &str) {
        let pid = self.child.id().expect("it runs").to_string();
        let sent = Command::new("kill").args(["-s", name, &pid]).status().await.unwrap();
        assert!(sent.success());
    }

    /// Reads its log along, for ever: one that talks much stands still when nobody does.
    pub async fn listened_to(&mut self) {
        while let Ok(Some(line)) = self.log.next_line().await {
            self.said.push(line);
        }
        std::future::pending().await
    }

    /// Waits until it has ended, reads the rest of its log, and tells its exit code.
    pub async fn code(&mut self) -> Option<i32> {
        let ending = async {
            while let Ok(Some(line)) = self.log.next_line().await {
                self.said.push(line);
            }
            self.child.wait().await.unwrap().code()
        };
        soon(ending).await
    }
}
