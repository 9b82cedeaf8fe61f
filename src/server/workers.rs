//! The threads that serve visitors: one for each core, each with a runtime of its own, a listener of its own and connections that never leave it.
//!
//! A request is read, decided and answered by one thread, and the backend's connection it needs rests in that thread's part of the pool: nothing
//! is handed from core to core, and no lock is shared. The kernel deals connections out among the listeners of a port (`SO_REUSEPORT`). Before a
//! port is shared it is opened once without sharing, so that another process that has it already is noticed.

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::thread::JoinHandle as Thread;

use tokio::net::TcpListener;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::{PortUse, open};

/// Listeners of one port, one for each worker.
#[derive(Debug)]
pub struct Port {
    listeners: Vec<StdListener>,
    address: SocketAddr,
}

impl Port {
    /// Opens a port for so many workers.
    ///
    /// # Errors
    /// What the machine says: the address is taken, or not ours.
    pub fn open(address: SocketAddr, workers: usize) -> io::Result<Self> {
        let alone = open(address, PortUse::Alone)?;
        let address = alone.local_addr()?;
        if workers < 2 {
            return Ok(Self {
                listeners: vec![alone],
                address,
            });
        }
        drop(alone); // it only showed that nobody else is there
        let listeners = (0..workers).map(|_| open(address, PortUse::Shared)).collect::<io::Result<_>>()?;
        Ok(Self { listeners, address })
    }

    /// The address, with the port that was found where any was asked for.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// The threads.
#[derive(Debug)]
pub struct Workers(Vec<Worker>);

#[derive(Debug)]
struct Worker {
    runtime: Handle,
    /// Dropped, the thread ends.
    _alive: oneshot::Sender<()>,
    _thread: Thread<()>,
}

impl Workers {
    /// Starts so many.
    ///
    /// # Errors
    /// The machine gives no thread.
    pub fn start(count: usize) -> io::Result<Self> {
        (0..count.max(1)).map(Worker::start).collect::<io::Result<_>>().map(Self)
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Runs something for each listener of a port, each on a thread of its own.
    pub fn each<F>(&self, port: Port, serve: impl Fn(TcpListener) -> F) -> Vec<JoinHandle<()>>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let each = self.0.iter().zip(port.listeners);
        each.filter_map(|(worker, listener)| {
            let _inside = worker.runtime.enter();
            match TcpListener::from_std(listener) {
                Ok(listener) => Some(worker.runtime.spawn(serve(listener))),
                Err(error) => {
                    tracing::error!(%error, "a listener cannot be used");
                    None
                }
            }
        })
        .collect()
    }
}

impl Worker {
    fn start(number: usize) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (alive, ended) = oneshot::channel::<()>();
        let thread = std::thread::Builder::new().name(format!("waitgate-{number}")).spawn(move || {
            let _ended = runtime.block_on(ended);
            runtime.shutdown_background();
        })?;
        Ok(Self {
            runtime: handle,
            _alive: alive,
            _thread: thread,
        })
    }
}
