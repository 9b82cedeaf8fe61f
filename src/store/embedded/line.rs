//! The few words that are spoken with the private server itself: is it ready, and please stop. Everything else goes through the store.

use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::timeout;

/// How long one answer may take.
const ANSWER: Duration = Duration::from_secs(1);

/// What a server says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It serves.
    Ready,
    /// It still reads its file.
    Loading {
        /// How much of it has been read, as the server says it.
        percent: String,
    },
    /// It does not answer.
    Silent,
}

/// A connection to a server's socket.
pub(super) struct Line(UnixStream);

impl Line {
    /// None when nobody listens there.
    pub(super) async fn open(socket: &Path) -> Option<Self> {
        let stream = timeout(ANSWER, UnixStream::connect(socket)).await.ok()?.ok()?;
        Some(Self(stream))
    }

    async fn ask(&mut self, words: &str) -> io::Result<String> {
        let exchange = async {
            self.0.write_all(words.as_bytes()).await?;
            let mut answer = vec![0; 16 << 10];
            let mut length = 0;
            // All that is asked here fits one buffer; an answer ends with a line end.
            while length < answer.len() && !answer[..length].ends_with(b"\r\n") {
                let more = self.0.read(&mut answer[length..]).await?;
                if more == 0 {
                    break;
                }
                length += more;
            }
            Ok(String::from_utf8_lossy(&answer[..length]).into_owned())
        };
        timeout(ANSWER, exchange).await?
    }

    pub(super) async fn state(&mut self) -> State {
        match self.ask("PING\r\n").await {
            Ok(answer) if answer.starts_with("+PONG") => State::Ready,
            Ok(answer) if answer.starts_with("-LOADING") => {
                let told = self.ask("INFO persistence\r\n").await.unwrap_or_default();
                let percent = told.lines().find_map(|line| line.strip_prefix("loading_loaded_perc:"));
                let percent = percent.unwrap_or("?").to_owned();
                State::Loading { percent }
            }
            _ => State::Silent,
        }
    }

    /// Asks the server to end, which writes its append-only file out first, and waits for it. False: it is still there.
    pub(super) async fn shut_down(&mut self, patience: Duration) -> bool {
        // NOSAVE is about snapshots, which are off.
        if self.0.write_all(b"SHUTDOWN NOSAVE\r\n").await.is_err() {
            return true; // it is gone already
        }
        let mut said = Vec::new();
        let ended = timeout(patience, self.0.read_to_end(&mut said)).await;
        // A reset is an end, too. A server that refuses says so and keeps the connection open, which takes the patience.
        ended.is_ok()
    }
}
