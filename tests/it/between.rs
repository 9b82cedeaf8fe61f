//! A proxy between us and Redis that a test tells to swallow replies, freeze, or cut.

use std::path::PathBuf;

use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

use crate::harness::Redis;

/// What the proxy does with what it reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Passes everything.
    Pass,
    /// Requests arrive, replies are lost.
    Swallow,
    /// Nothing arrives either way, and nothing is lost.
    Freeze,
    /// Connections break, and new ones too.
    Cut,
}

/// The proxy; gone when dropped.
pub struct Between {
    dir: TempDir,
    mode: watch::Sender<Mode>,
}

impl Between {
    pub fn start(redis: &Redis) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("between")
            .tempdir()
            .expect("a directory for the socket");
        let listener = UnixListener::bind(dir.path().join("b.sock")).expect("a socket");
        let mode = watch::Sender::new(Mode::Pass);
        let modes = mode.subscribe();
        tokio::spawn(serve(listener, redis.socket(), modes));
        Self { dir, mode }
    }

    pub fn url(&self) -> String {
        format!("redis+unix://{}", self.dir.path().join("b.sock").display())
    }

    pub fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }
}

async fn serve(listener: UnixListener, to: PathBuf, mut modes: watch::Receiver<Mode>) {
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((near, _)) = accepted else { return };
                let Ok(far) = UnixStream::connect(&to).await else { continue };
                let (near, far) = (near.into_split(), far.into_split());
                tokio::spawn(pump(near.0, far.1, modes.clone(), false));
                tokio::spawn(pump(far.0, near.1, modes.clone(), true));
            }
            changed = modes.changed() => if changed.is_err() { return },
        }
    }
}

async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut modes: watch::Receiver<Mode>, replies: bool) {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let cut = modes.clone();
        let read = tokio::select! {
            read = from.read(&mut buffer) => read,
            () = until_cut(cut) => return,
        };
        let Ok(read @ 1..) = read else { return };
        let Ok(mode) = modes.wait_for(|mode| *mode != Mode::Freeze).await.map(|mode| *mode) else {
            return;
        };
        match mode {
            Mode::Cut => return,
            Mode::Swallow if replies => {}
            _ => {
                if to.write_all(&buffer[..read]).await.is_err() {
                    return;
                }
            }
        }
    }
}

async fn until_cut(mut modes: watch::Receiver<Mode>) {
    let _gone = modes.wait_for(|mode| *mode == Mode::Cut).await;
}
