//! Processes of a show or a rehearsal: each a waitgate of its own, with its words in a file, and none left behind.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use super::score::Usage;

/// How long a process may take to stop before it is killed.
const FAREWELL: Duration = Duration::from_secs(8);
/// Lines of its last words that are shown when a process fails.
const LAST_WORDS: usize = 15;

/// Why a process is no more, or never was.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PartFault {
    #[error("{name} could not be started: {cause}")]
    Start {
        name: &'static str,
        #[source]
        cause: std::io::Error,
    },
    #[error("{name} ended too early ({status}){}", told(words))]
    Ended {
        name: &'static str,
        status: ExitStatus,
        words: String,
    },
    #[error("the crowd fell silent")]
    Silent,
}

fn told(words: &str) -> String {
    if words.is_empty() {
        String::new()
    } else {
        format!(". Its last words:\n{words}")
    }
}

/// One process.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) name: &'static str,
    process: Child,
    /// Kept here, because waiting for a process closes the input that it still owns.
    input: Option<ChildStdin>,
    log: PathBuf,
}

impl Part {
    /// Starts this very program with other arguments. It gets a process group of its own: a Ctrl-C is for whoever starts it, who stops its parts in order.
    pub(crate) fn start<A: AsRef<OsStr>>(
        name: &'static str,
        log: PathBuf,
        arguments: impl IntoIterator<Item = A>,
    ) -> Result<Self, PartFault> {
        let failed = |cause| PartFault::Start { name, cause };
        let program = std::env::current_exe().map_err(failed)?;
        let words = File::options().create(true).append(true).open(&log).map_err(failed)?;
        let mut process = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::from(words))
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        let input = process.stdin.take();
        Ok(Self { name, process, input, log })
    }

    /// What it says on standard output. Once.
    pub(crate) fn listen(&mut self) -> Option<ChildStdout> {
        self.process.stdout.take()
    }

    /// Waits for its end.
    pub(crate) async fn ended(&mut self) -> PartFault {
        match self.process.wait().await {
            Ok(status) => self.fault(status),
            Err(cause) => PartFault::Start { name: self.name, cause },
        }
    }

    /// Its end, told with its last words.
    fn fault(&self, status: ExitStatus) -> PartFault {
        PartFault::Ended {
            name: self.name,
            status,
            words: last_words(&self.log),
        }
    }

    /// Asks it to finish by closing its input: crowd and shop end by that.
    pub(crate) fn dismiss(&mut self) {
        self.input = None;
    }

    /// Stops it: by its input, by a signal, and at last by force.
    pub(crate) async fn stop(&mut self) {
        self.dismiss();
        if let Some(pid) = self.pid() {
            let _ = kill_process(pid, Signal::TERM);
        }
        if timeout(FAREWELL, self.process.wait()).await.is_err() {
            let _ = self.process.kill().await;
        }
    }

    fn pid(&self) -> Option<Pid> {
        Pid::from_raw(i32::try_from(self.process.id()?).ok()?)
    }

    /// What the operating system says of it. Linux only.
    pub(crate) fn usage(&self) -> Option<Usage> {
        usage_of(self.process.id()?)
    }

    /// The same of the first process it has started itself: the gateway's private store.
    pub(crate) fn usage_of_its_own(&self) -> Option<Usage> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.process.id()?)).ok()?;
        let listed = tasks
            .flatten()
            .filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
        listed
            .into_iter()
            .find_map(|ids| usage_of(ids.split_ascii_whitespace().next()?.parse().ok()?))
    }
}

fn usage_of(process: u32) -> Option<Usage> {
    let folder = PathBuf::from(format!("/proc/{process}"));
    let stat = std::fs::read_to_string(folder.join("stat")).ok()?;
    let status = std::fs::read_to_string(folder.join("status")).ok()?;
    read_usage(&stat, &status)
}

/// Reads `/proc/PID/stat` and `/proc/PID/status`. Times are in hundredths of a second: Linux counts them so for user space on every machine.
fn read_usage(stat: &str, status: &str) -> Option<Usage> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    let (user, system): (u64, u64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let peak_kib: u64 = peak.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(Usage {
        cpu: Duration::from_millis((user + system) * 10),
        peak_bytes: peak_kib << 10,
    })
}

/// The end of a log.
fn last_words(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LAST_WORDS)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_read_although_a_name_has_spaces_and_brackets() {
        let stat = "12 (a b) c) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0 4 0";
        let status = "Name:\twaitgate\nVmPeak:\t  900 kB\nVmHWM:\t   2048 kB\n";
        let usage = read_usage(stat, status).unwrap();
        assert_eq!(usage.cpu, Duration::from_secs(2));
        assert_eq!(usage.peak_bytes, 2 << 20);
        assert!(read_usage("", status).is_none());
    }
}
