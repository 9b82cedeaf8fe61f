//! Everything the show needs, set up and taken down again: a folder, a shop, a gateway, and the crowd.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::{Method, StatusCode, Uri};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::time::{sleep, timeout};

use super::plan::{HOLD, Places, Plan, settings};
use super::{DemoFault, DemoOptions};
use crate::clock::millis;
use crate::crowd::children::Part;
use crate::shop::Opened;
use crate::shop::ask::Asker;

/// The port the demo asks for first.
const USUAL_PORT: u16 = 8042;
/// How long shop and gateway may take to be ready.
const READY_IN: Duration = Duration::from_secs(30);
/// Robots per crowd process.
const ROBOTS: u64 = 5;

/// A folder of the demo's own, gone when dropped.
#[derive(Debug)]
pub(super) struct Folder(PathBuf);

impl Folder {
    fn make() -> Result<Self, DemoFault> {
        let path = std::env::temp_dir().join(format!("waitgate-demo-{}-{:04x}", std::process::id(), fastrand::u16(..)));
        let made = std::fs::DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|cause| DemoFault::Folder { path: path.clone(), cause })?;
        Ok(Self(path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be deleted is in the folder for such things.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The stage.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) places: Places,
    pub(super) ops: Asker,
    pub(super) shop_counts: Asker,
    pub(super) gateway: Part,
    pub(super) shop: Part,
    /// Crowd processes.
    pub(super) parts: Vec<Part>,
    // Last, so that it goes when nobody writes there any more.
    pub(super) folder: Folder,
}

impl Stage {
    /// Starts shop and gateway, and returns when both answer.
    pub(super) async fn set_up(options: &DemoOptions, plan: &Plan) -> Result<Self, DemoFault> {
        let folder = Folder::make()?;
        let (public, ops) = pick_ports(options.port)?;
        let (gateway_uri, ops_uri) = (uri(public)?, uri(ops)?);
        let arguments = ["shop".to_owned(), format!("--gateway={gateway_uri}"), format!("--ops={ops_uri}")];
        let mut shop = Part::start("the shop", folder.path().join("shop.log"), arguments)?;
        let opened = first_line(&mut shop).await?;
        let places = Places {
            public,
            ops,
            shop: opened.listening,
        };
        let config = folder.path().join("waitgate.toml");
        let text = settings(options, plan, &places, &folder.path().join("data"));
        std::fs::write(&config, text).map_err(|cause| DemoFault::Folder {
            path: config.clone(),
            cause,
        })?;
        let arguments = ["serve".into(), "--config".into(), config.into_os_string()];
        let gateway = Part::start("the gateway", folder.path().join("gateway.log"), arguments)?;
        let mut stage = Self {
            places,
            ops: Asker::new(&ops_uri),
            shop_counts: Asker::new(&uri(places.shop)?),
            gateway,
            shop,
            parts: Vec::new(),
            folder,
        };
        if let Some(mut words) = stage.gateway.listen() {
            let log = stage.folder.path().join("gateway.out");
            tokio::spawn(async move {
                let mut file = tokio::fs::File::create(log).await?;
                tokio::io::copy(&mut words, &mut file).await
            });
        }
        stage.wait_until_ready().await?;
        Ok(stage)
    }

    async fn wait_until_ready(&mut self) -> Result<(), DemoFault> {
        let ops = self.ops.clone();
        let ready = async {
            while !matches!(ops.ask(Method::GET, "/readyz", "").await, Ok((StatusCode::OK, _))) {
                sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::select! {
            outcome = timeout(READY_IN, ready) => outcome.map_err(|_| DemoFault::NotReady(READY_IN)),
            fault = self.gateway.ended() => Err(fault.into()),
        }
    }

    /// Lets the crowd in the street: a process for each share.
    pub(super) fn start_crowd(&mut self, options: &DemoOptions, plan: &Plan) -> Result<(), DemoFault> {
        for (first, visitors) in plan.shares() {
            let arguments = [
                "crowd".to_owned(),
                format!("--target={}", self.places.public),
                format!("--visitors={visitors}"),
                format!("--first={first}"),
                format!("--arrive-ms={}", millis(options.arrive)),
                format!("--hold-ms={}", millis(HOLD)),
                format!("--connections={}", plan.connections_each),
                format!("--robots={ROBOTS}"),
                format!("--seed={}", options.seed),
                "--claim=/sale/claim".to_owned(),
                "--pay=/sale/pay".to_owned(),
                "--cancel=/sale/cancel".to_owned(),
            ];
            self.parts
                .push(Part::start("the crowd", self.folder.path().join("crowd.log"), arguments)?);
        }
        Ok(())
    }

    /// Stops everything, the crowd first.
    pub(super) async fn strike(mut self) {
        for part in &mut self.parts {
            part.stop().await;
        }
        self.gateway.stop().await;
        self.shop.stop().await;
    }
}

fn uri(address: SocketAddr) -> Result<Uri, DemoFault> {
    format!("http://{address}")
        .parse()
        .map_err(|_| DemoFault::Ops(format!("{address} is no address to ask")))
}

/// Two free ports on loopback: the usual one or the one asked for, and any other.
fn pick_ports(wish: Option<u16>) -> Result<(SocketAddr, SocketAddr), DemoFault> {
    let bind = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port));
    let public = match wish {
        Some(port) => bind(port).map_err(|cause| DemoFault::Port { port, cause })?,
        None => bind(USUAL_PORT)
            .or_else(|_| bind(0))
            .map_err(|cause| DemoFault::Port { port: 0, cause })?,
    };
    let ops = bind(0).map_err(|cause| DemoFault::Port { port: 0, cause })?;
    let address = |listener: &TcpListener| listener.local_addr().map_err(|cause| DemoFault::Port { port: 0, cause });
    Ok((address(&public)?, address(&ops)?))
}

async fn first_line(shop: &mut Part) -> Result<Opened, DemoFault> {
    let mut words = BufReader::new(shop.listen().ok_or(DemoFault::NotReady(READY_IN))?);
    let mut line = String::new();
    match timeout(READY_IN, words.read_line(&mut line)).await {
        Err(_) => Err(DemoFault::NotReady(READY_IN)),
        Ok(Ok(1..)) => serde_json::from_str(&line).map_err(|unreadable| DemoFault::Ops(format!("the shop said {line:?}: {unreadable}"))),
        Ok(_) => Err(shop.ended().await.into()),
    }
}
