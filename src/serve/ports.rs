//! The ports of a gateway. They are opened before anything else, so that a taken one is said at once.

use std::net::SocketAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::StartFault;
use crate::config::Config;
use crate::gateway::Gateway;
use crate::ops::Ops;
use crate::server::workers::{Port, Workers};
use crate::server::{self, Live, PortUse, Scheme};
use crate::stop::Stop;

/// Opened, and not yet served.
pub(super) struct Ports {
    workers: Workers,
    public: Port,
    secure: Option<Port>,
    operators: TcpListener,
    pub(super) addresses: Addresses,
}

/// Where a gateway is reached.
#[derive(Clone, Copy, Debug)]
pub(super) struct Addresses {
    pub(super) public: SocketAddr,
    pub(super) secure: Option<SocketAddr>,
    pub(super) operators: SocketAddr,
}

/// Visitors' ports, served.
#[derive(Debug)]
pub(super) struct Public {
    servers: Vec<JoinHandle<()>>,
    workers: Workers,
}

impl Ports {
    pub(super) fn open(config: &Config) -> Result<Self, StartFault> {
        let workers = Workers::start(worker_count(config)).map_err(StartFault::Thread)?;
        let open = |asked| Port::open(asked, workers.count()).map_err(|fault| StartFault::Listen(asked, fault));
        let public = open(config.server.listen)?;
        let secure = config.tls.as_ref().map(|tls| open(tls.listen)).transpose()?;
        let asked = config.ops.listen;
        let operators = server::listen(asked, PortUse::Alone).map_err(|fault| StartFault::Listen(asked, fault))?;
        let addresses = Addresses {
            public: public.address(),
            secure: secure.as_ref().map(Port::address),
            operators: operators.local_addr().map_err(|fault| StartFault::Listen(asked, fault))?,
        };
        Ok(Self {
            workers,
            public,
            secure,
            operators,
            addresses,
        })
    }

    /// Begins to serve visitors, each request by the gateway that is in force when it comes; and gives the operators' listener back.
    pub(super) fn serve(self, gateway: &Arc<ArcSwap<Gateway>>, live: &Arc<Live>, stop: &Stop) -> (Public, TcpListener) {
        let serve = |port, scheme| {
            self.workers.each(port, |socket| {
                let gateway = Arc::clone(gateway);
                let handle = move |request, peer| gateway.load().handle(request, peer);
                server::serve(socket, scheme, Arc::clone(live), stop.clone(), handle)
            })
        };
        let mut servers = serve(self.public, Scheme::Http);
        servers.extend(self.secure.into_iter().flat_map(|port| serve(port, Scheme::Https)));
        let public = Public {
            servers,
            workers: self.workers,
        };
        (public, self.operators)
    }
}

impl Public {
    /// Waits until the last connection has ended.
    pub(super) async fn ended(self) {
        for server in self.servers {
            let _server = server.await;
        }
        drop(self.workers);
    }
}

/// Serves operators, in a task of its own.
pub(super) fn serve_operators(operators: TcpListener, live: Arc<Live>, stop: Stop, ops: Arc<Ops>) -> JoinHandle<()> {
    tokio::spawn(server::serve(operators, Scheme::Http, live, stop, move |request, _| {
        let ops = Arc::clone(&ops);
        Box::pin(async move { ops.handle(request).await })
    }))
}

/// As many as are asked for, else one for each core that this process may use.
fn worker_count(config: &Config) -> usize {
    match config.server.workers {
        0 => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        workers => workers,
    }
}
