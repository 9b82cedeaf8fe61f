//! One question to one server, and what an error says about it: was it done, was it not, and who should be asked instead.
//!
//! | the server says | so it was | and then |
//! |---|---|---|
//! | `MOVED`, `ASK` | not done | the other server is asked |
//! | `TRYAGAIN` | not done | asked again shortly: the room's keys are between two servers |
//! | `READONLY`, `LOADING`, `MASTERDOWN` | not done | this server is left, and the right one is looked for |
//! | `CLUSTERDOWN`, `NOREPLICAS` | not done | looked whether another server is the right one by now |
//! | `NOSCRIPT` | not done | the script is sent along, then asked again |
//! | `BUSY`, `OOM`, `MISCONF`, `NOPERM`, any other word | not done | nothing: it stays as it is |
//! | an error in the middle of a script | perhaps, in part | nothing |
//! | nothing: the connection broke | perhaps | asked again once on the next connection |
//! | nothing in time | perhaps | looked whether the server lives |

use std::time::Duration;

use redis::{Cmd, ErrorKind, RedisError, Script, ServerErrorKind, Value};

use super::routes::Node;
use crate::config::Host;

/// What is asked; it can be put twice.
pub(super) struct Question {
    command: Cmd,
    /// Of the script, should the server not know it.
    text: Option<&'static str>,
}

impl Question {
    pub(super) fn command(command: &Cmd) -> Self {
        Self {
            command: command.clone(),
            text: None,
        }
    }

    pub(super) fn script(script: &Script, text: &'static str, keys: &[&str], arguments: &[Vec<u8>]) -> Self {
        let mut command = redis::cmd("EVALSHA");
        command.arg(script.get_hash()).arg(keys.len()).arg(keys).arg(arguments);
        Self { command, text: Some(text) }
    }

    /// Asks `node`; `asking`: as one that another server sent here.
    pub(super) async fn put(&self, node: &Node, asking: bool) -> Result<Value, RedisError> {
        match (self.put_once(node, asking).await, self.text) {
            (Err(error), Some(text)) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                let mut connection = node.connection();
                let _hash: String = redis::cmd("SCRIPT").arg("LOAD").arg(text).query_async(&mut connection).await?;
                self.put_once(node, asking).await
            }
            (answer, _) => answer,
        }
    }

    async fn put_once(&self, node: &Node, asking: bool) -> Result<Value, RedisError> {
        let mut connection = node.connection();
        if !asking {
            return self.command.query_async(&mut connection).await;
        }
        let mut both = redis::pipe();
        both.cmd("ASKING").add_command(self.command.clone());
        // Written in one piece, so nothing of others comes between the two; the first answer is left out.
        let answers = connection.send_packed_commands(&both, 1, 1).await?;
        answers.into_iter().next().unwrap_or(Value::Nil).extract_error()
    }
}

/// What an error says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Not done: ask there. `asking`: this once only.
    Elsewhere {
        /// Whom; none: somebody who is not known yet.
        host: Host,
        asking: bool,
    },
    /// Not done: ask again shortly.
    Again,
    /// Not done, and this is not the server to ask.
    Deposed,
    /// Not done; another server may be the one to ask by now.
    Doubtful,
    /// Not done.
    Refused,
    /// Perhaps done: the connection broke.
    Broken,
    /// Perhaps done: no answer in time, or none that says so.
    Unknown,
}

/// How long to wait before [`Verdict::Again`].
pub(super) const SHORTLY: Duration = Duration::from_millis(20);

/// What `error`, which came from `from`, says.
pub(super) fn judge(error: &RedisError, from: &Host) -> Verdict {
    use ServerErrorKind::{Ask, BusyLoading, ClusterDown, MasterDown, Moved, ReadOnly, TryAgain};
    // A script that failed in the middle may have written before. What is refused before it begins names no line of it.
    let in_script = error
        .detail()
        .is_some_and(|detail| detail.contains("@user_script") || detail.contains("user_script:"));
    match error.kind() {
        ErrorKind::Server(_) | ErrorKind::Extension if in_script => Verdict::Unknown,
        ErrorKind::Server(kind @ (Moved | Ask)) => match error.redirect_node().and_then(|(address, _)| host(address, from)) {
            Some(host) => Verdict::Elsewhere { host, asking: kind == Ask },
            None => Verdict::Doubtful,
        },
        ErrorKind::Server(TryAgain) => Verdict::Again,
        ErrorKind::Server(ReadOnly | BusyLoading | MasterDown) => Verdict::Deposed,
        ErrorKind::Server(ClusterDown) => Verdict::Doubtful,
        ErrorKind::Extension if error.code() == Some("NOREPLICAS") => Verdict::Doubtful,
        ErrorKind::Server(_) | ErrorKind::Extension | ErrorKind::AuthenticationFailed => Verdict::Refused,
        _ if error.is_connection_dropped() => Verdict::Broken,
        _ => Verdict::Unknown,
    }
}

/// `host:port` as a cluster writes it: without brackets, and without a name when it is the one that said so.
pub(super) fn host(address: &str, from: &Host) -> Option<Host> {
    let (name, port) = address.rsplit_once(':')?;
    let name = match (name, from) {
        ("" | "?", Host::Tcp(name, _)) => name,
        ("" | "?", Host::Unix(_)) => return None,
        (name, _) => name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name),
    };
    Some(Host::Tcp(name.to_owned(), port.parse().ok().filter(|port| *port != 0)?))
}

#[cfg(test)]
mod tests {
    use redis::parse_redis_value;

    use super::*;

    fn said(line: &str) -> Verdict {
        let error = match parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap() {
            Value::ServerError(error) => RedisError::from(error),
            other => panic!("{other:?}"),
        };
        judge(&error, &Host::Tcp("a".into(), 1))
    }

    #[test]
    fn each_refusal_is_known_for_what_it_is() {
        let there = |name: &str, asking| Verdict::Elsewhere {
            host: Host::Tcp(name.into(), 7),
            asking,
        };
        assert_eq!(said("MOVED 1 10.0.0.1:7"), there("10.0.0.1", false));
        assert_eq!(said("MOVED 1 ::1:7"), there("::1", false));
        assert_eq!(said("MOVED 1 :7"), there("a", false), "the one that said so");
        assert_eq!(said("ASK 1 b:7"), there("b", true));
        assert_eq!(said("MOVED nonsense"), Verdict::Doubtful);
        assert_eq!(said("TRYAGAIN Multiple keys request during rehashing of slot"), Verdict::Again);
        assert_eq!(
            said("READONLY Can not run script with write flag on readonly replica."),
            Verdict::Deposed
        );
        assert_eq!(said("LOADING Redis is loading the dataset in memory"), Verdict::Deposed);
        assert_eq!(
            said("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'."),
            Verdict::Deposed
        );
        assert_eq!(said("CLUSTERDOWN Hash slot not served"), Verdict::Doubtful);
        assert_eq!(said("NOREPLICAS Not enough good replicas to write."), Verdict::Doubtful);
        for refused in [
            "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
            "OOM allow-oom flag is not set on the script, can not run it when used memory > 'maxmemory'",
            "MISCONF Redis is configured to save RDB snapshots",
            "NOPERM this user has no permissions to run the 'evalsha' command",
            "NOAUTH Authentication required.",
            "NOSCRIPT No matching script. Please use EVAL.",
            "CROSSSLOT Keys in request don't hash to the same slot",
            "ERR unknown command",
        ] {
            assert_eq!(said(refused), Verdict::Refused, "{refused}");
        }
    }

    #[test]
    fn what_failed_in_the_middle_may_have_been_done() {
        assert_eq!(
            said("WRONGTYPE Operation against a key holding the wrong kind of value script: ab, on @user_script:12."),
            Verdict::Unknown
        );
        assert_eq!(
            said("ERR user_script:3: attempt to index a nil value script: ab, on @user_script:3."),
            Verdict::Unknown
        );
        let io = |kind| RedisError::from(std::io::Error::from(kind));
        let here = Host::Tcp("a".into(), 1);
        assert_eq!(judge(&io(std::io::ErrorKind::TimedOut), &here), Verdict::Unknown);
        assert_eq!(judge(&io(std::io::ErrorKind::ConnectionReset), &here), Verdict::Broken);
        assert_eq!(judge(&io(std::io::ErrorKind::UnexpectedEof), &here), Verdict::Broken);
    }
}
