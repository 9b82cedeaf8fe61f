//! The program: a runtime, signals and an exit code around what [`waitgate::cli`] reads from the command line.

use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;
use waitgate::cli::{Cli, Work};
use waitgate::stop::Stop;

fn main() -> ExitCode {
    let work = match Cli::parse().prepare() {
        Ok(work) => work,
        Err(code) => return code,
    };
    let runtime = match runtime(&work) {
        Ok(runtime) => runtime,
        Err(error) => return give_up("the runtime does not start", &error),
    };
    let code = runtime.block_on(run(work));
    // Whatever blocks a thread after the end (a name being looked up) is not waited for.
    runtime.shutdown_timeout(Duration::from_secs(1));
    code
}

fn runtime(work: &Work) -> io::Result<Runtime> {
    let mut builder = Builder::new_multi_thread();
    if let Some(workers) = work.workers() {
        builder.worker_threads(workers);
    }
    builder.enable_all().build()
}

async fn run(work: Work) -> ExitCode {
    let stop = Stop::new();
    if work.ends_by_signal() {
        match Signals::listen(work.hang_ups()) {
            Ok(signals) => drop(tokio::spawn(signals.obey(stop.clone()))),
            Err(error) => return give_up("signals cannot be heard", &error),
        }
    }
    work.run(stop).await
}

/// The signals that mean something to a gateway.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// The settings are to be read again. Never a reason to stop: a terminal that closes sends it too.
    hang_up: Signal,
    hang_ups: Option<Arc<Notify>>,
}

impl Signals {
    fn listen(hang_ups: Option<Arc<Notify>>) -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
            hang_ups,
        })
    }

    /// The first ends softly, the second drops what is still running, the third ends the process.
    async fn obey(mut self, stop: Stop) {
        self.next().await;
        tracing::info!("stopping: requests in flight are answered first; a second signal ends them");
        stop.draining.cancel();
        self.next().await;
        tracing::warn!("stopping at once");
        stop.cut.cancel();
        self.next().await;
        tracing::error!("gone");
        std::process::exit(1);
    }

    async fn next(&mut self) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.hang_up.recv() => {
                    if let Some(hang_ups) = &self.hang_ups {
                        hang_ups.notify_one();
                    }
                }
            }
        }
    }
}

fn give_up(what: &str, error: &io::Error) -> ExitCode {
    use std::io::Write as _;
    let _ = writeln!(io::stderr(), "waitgate: {what}: {error}"); // nobody is left to be told
    ExitCode::FAILURE
}
