//! Other settings, put in force while people wait.
//!
//! The file is read and checked first, and is applied whole or not at all. Everything that depends on settings sits in one [`Gateway`] behind one
//! pointer: it is made anew and exchanged, and requests that are under way end with the one they began with. Rooms, lines, streams, tokens, the
//! buckets of limits, connections and pools live on. One task does this, so two reloads never meet.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use super::rooms::Keeper;
use crate::access::AccessLog;
use crate::config::{self, Changes, Config};
use crate::gateway::Gateway;
use crate::limit::Limits;
use crate::ops::{ConfigNow, Ops, Refused, ReloadAsk, Reloaded};
use crate::response::pages::Pages;
use crate::server::{ListenerSettings, Live, warn_of_dates};
use crate::telemetry::LogFilter;
use crate::upstream::Upstreams;
use crate::waiting::hall::House;

/// Reloads that may wait for their turn.
pub(super) const MAX_WAITING: usize = 4;

/// What reaches a gateway from the process around it.
#[derive(Clone, Debug, Default)]
pub struct Outside {
    /// `SIGHUP` came.
    pub hang_ups: Arc<Notify>,
    /// The filter of the log, where this process has one that can be changed.
    pub log: Option<LogFilter>,
}

/// Puts other settings in force.
pub(super) struct Reloader {
    /// The settings in force.
    pub(super) config: Config,
    pub(super) keeper: Keeper,
    pub(super) live: Arc<ArcSwap<Gateway>>,
    pub(super) listener: Arc<Live>,
    pub(super) ops: Arc<Ops>,
    pub(super) upstreams: Arc<Upstreams>,
    pub(super) outside: Outside,
}

impl Reloader {
    /// Reloads when somebody asks, until the gateway stops.
    pub(super) async fn run(mut self, mut asks: mpsc::Receiver<ReloadAsk>, draining: CancellationToken) {
        let hang_ups = Arc::clone(&self.outside.hang_ups);
        loop {
            tokio::select! {
                () = draining.cancelled() => return,
                Some(ask) = asks.recv() => {
                    let outcome = self.reload(&ask.who, &ask.operation).await;
                    let _gone = ask.answer.send(outcome); // it was done, whoever still wants to know
                }
                () = hang_ups.notified() => drop(self.reload("SIGHUP", "-").await),
            }
        }
    }

    async fn reload(&mut self, who: &str, operation: &str) -> Result<Reloaded, Refused> {
        let outcome = self.try_reload().await;
        let house = Arc::clone(&self.live.load().house);
        if let Some(access) = &house.access {
            access.reopen(); // whoever rotates logs asks for no more than this, and gets it even where the settings are wrong
        }
        let metrics = &house.metrics;
        match &outcome {
            Ok(reloaded) => {
                let (changed, mark) = (reloaded.changed.join(", "), &reloaded.mark);
                tracing::info!(who, operation, changed, mark, "the settings were read again and are in force");
                if !reloaded.without_effect.is_empty() {
                    let keys = reloaded.without_effect.join(", ");
                    tracing::warn!(
                        keys,
                        "these say where a new room begins: rooms that are there go on as they are, and `waitgate room` changes them"
                    );
                }
            }
            Err(refused) => tracing::error!(who, operation, %refused, "the settings were not changed"),
        }
        metrics.config_reloaded(outcome.is_ok());
        outcome
    }

    async fn try_reload(&mut self) -> Result<Reloaded, Refused> {
        let file = self.config.file.clone();
        let read = tokio::task::spawn_blocking(move || config::load(&file)).await;
        let config = read
            .map_err(|broken| Refused::Unusable(format!("the file could not be read: {broken}")))?
            .map_err(Refused::Mistakes)?;
        if let Some(sentence) = config.idle() {
            return Err(Refused::Unusable(sentence.to_owned()));
        }
        let changes = Changes::between(&self.config, &config);
        if !changes.at_start.is_empty() {
            return Err(Refused::AtStart(changes.at_start));
        }
        self.apply(config, changes)
    }

    fn apply(&mut self, config: Config, changes: Changes) -> Result<Reloaded, Refused> {
        let before = self.live.load_full();
        let pages = Pages::new(&config.pages, config.cookies).map_err(|fault| Refused::Unusable(fault.to_string()))?;
        let kept = before.house.access.as_ref().filter(|log| log.is(&config.log)).cloned();
        let access = match kept {
            Some(log) => Some(log),
            None => AccessLog::open(&config.log, Arc::clone(&before.house.metrics))
                .map_err(|error| Refused::Unusable(format!("the access log cannot be opened: {error}")))?,
        };
        let limited = changes.keys.iter().any(|key| key.starts_with("limits."));
        let house = Arc::new(House {
            tokens: Arc::clone(&before.house.tokens),
            limits: if limited {
                Arc::new(Limits::after(&before.house.limits, &config.limits))
            } else {
                Arc::clone(&before.house.limits)
            },
            access,
            cookies: config.cookies,
            pages,
            metrics: Arc::clone(&before.house.metrics),
            stop: before.house.stop.clone(),
            prefix: before.house.prefix.clone(),
        });
        let plan = self
            .keeper
            .plan(&config, &house)
            .map_err(|fault| Refused::Unusable(fault.to_string()))?;
        // Whatever the keys say: authorities and certificates are files, and may be others by now. Backends that stay keep their connections.
        self.upstreams.update(config.upstream.clone());
        let gone = self.keeper.gone_after(&plan);
        let gateway = Gateway::new(&config, Arc::clone(&house), plan.halls(), Arc::clone(&self.upstreams), gone);
        // Nothing below can fail.
        warn_of_dates(&config, self.keeper.clock.now_ms());
        self.keeper.take_over(&plan);
        self.live.store(gateway);
        let connections = super::affordable(config.server.max_connections);
        self.listener.exchange(ListenerSettings::public(&config, connections));
        self.keeper.end_all_but(&plan);
        if let Some(log) = &self.outside.log {
            log.set(&config.log);
        }
        let mark = config::mark(&config);
        house.metrics.config_loaded(&mark, self.keeper.clock.now_ms());
        self.ops.take_over(
            plan.ops_rooms(),
            ConfigNow {
                mark: mark.clone(),
                loaded_at_ms: self.keeper.clock.now_ms(),
            },
        );
        self.config = config;
        Ok(Reloaded {
            changed: changes.keys,
            without_effect: changes.beginnings,
            mark,
        })
    }
}
