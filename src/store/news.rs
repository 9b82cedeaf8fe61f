//! The rooms' news: one subscriber connection for all rooms, rebuilt for ever.
//!
//! It leads to a primary; a cluster passes on what is published at any other. When the primary changes, so does the connection.
//!
//! News is only ever a hint that makes things quicker: whatever it says can be read from the store. So nothing is kept for a slow listener;
//! it is told [`News::Subscribed`] ("read everything again") in place of what it missed, as after each new subscription. A subscription can be
//! dead though its connection looks alive, so silence counts as failure: every room that is ticked says something once a second. On a cluster, where
//! each room is heard by way of its own primary, that holds for each room whose primary is connected.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use redis::RedisError;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use crate::config::Host;
use crate::store::Inner;
use crate::store::dial::limited;
use crate::store::routes::{Routes, slot};
use crate::store::scripts::{Epoch, Place};
use crate::store::watch::back_off;

/// What a listener may leave unread.
const UNREAD: usize = 1024;
/// Silence for this long, while the store is up, means the subscription is dead.
const SILENCE: Duration = Duration::from_secs(5);
/// How often an overflowed listener is tried again.
const RETRY: Duration = Duration::from_millis(100);

/// Something happened in a room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// The frontier moved, or stands where it stood (a beat, once a second).
    Frontier {
        /// The epoch of the line.
        epoch: Epoch,
        /// The highest place called or passed over so far.
        frontier: Place,
        /// Tickets called from behind the old frontier.
        late: Vec<String>,
    },
    /// Settings, stock or hours changed: read the room again.
    Changed,
    /// These tickets were marked away. Whoever holds a stream of one should say that it is here.
    Away(Vec<String>),
    /// Subscribed (again), or something was missed: read everything again.
    Subscribed,
}

impl News {
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        match words.next()? {
            "changed" => Some(Self::Changed),
            "away" => Some(Self::Away(words.map(str::to_owned).collect())),
            "frontier" => Some(Self::Frontier {
                epoch: words.next()?.parse().ok()?,
                frontier: words.next()?.parse().ok()?,
                late: words.map(str::to_owned).collect(),
            }),
            _ => None,
        }
    }
}

struct Listener {
    to: mpsc::Sender<News>,
    /// It missed something, and must be told so before it gets anything else.
    missed: bool,
}

impl Listener {
    /// False when nobody listens any more.
    fn tell(&mut self, news: News) -> bool {
        let news = if self.missed { News::Subscribed } else { news };
        match self.to.try_send(news) {
            Ok(()) => self.missed = false,
            Err(mpsc::error::TrySendError::Full(_)) => self.missed = true,
            Err(mpsc::error::TrySendError::Closed(_)) => return false,
        }
        true
    }
}

#[derive(Default)]
struct Channel {
    listeners: Vec<Listener>,
    /// When something was heard on it last; none: it is not subscribed.
    heard: Option<Instant>,
}

/// Who listens to what.
#[derive(Default)]
pub(super) struct Newsroom {
    channels: Mutex<HashMap<String, Channel>>,
    /// A channel was added.
    wanted: Notify,
}

impl Newsroom {
    pub(super) fn listen(&self, channel: &str) -> mpsc::Receiver<News> {
        let (to, from) = mpsc::channel(UNREAD);
        self.with(|channels| {
            let channel = channels.entry(channel.to_owned()).or_default();
            let mut listener = Listener { to, missed: false };
            if channel.heard.is_some() {
                listener.tell(News::Subscribed);
            }
            channel.listeners.push(listener);
        });
        self.wanted.notify_one();
        from
    }

    fn with<T>(&self, act: impl FnOnce(&mut HashMap<String, Channel>) -> T) -> T {
        act(&mut self.channels.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn tell(&self, channel: &str, news: &News) {
        self.with(|channels| {
            if let Some(channel) = channels.get_mut(channel) {
                channel.heard = Some(Instant::now());
                channel.listeners.retain_mut(|listener| listener.tell(news.clone()));
            }
        });
    }

    /// Those who overflowed and have room again.
    fn tell_missed(&self) {
        self.with(|channels| {
            for channel in channels.values_mut() {
                channel
                    .listeners
                    .retain_mut(|listener| !listener.missed || listener.tell(News::Subscribed));
            }
        });
    }

    async fn follow(&self, inner: &Inner) {
        let mut up = inner.up.subscribe();
        let mut failures = 0;
        loop {
            // The other task tells when there is somebody to subscribe to.
            if up.wait_for(|up| *up).await.is_err() {
                return;
            }
            match self.subscribed(inner).await {
                Ok(()) => failures = 0,
                Err(error) => {
                    tracing::debug!(%error, "the subscription to the rooms' news ended");
                    failures += 1;
                }
            }
            self.with(|channels| channels.values_mut().for_each(|channel| channel.heard = None));
            tokio::time::sleep(back_off(failures)).await;
        }
    }

    /// One subscriber connection, until it breaks, falls silent, or leads to the wrong server.
    async fn subscribed(&self, inner: &Inner) -> Result<(), RedisError> {
        let limit = inner.options.connect_timeout;
        let mut turns = inner.turns.subscribe();
        let Some(host) = anybody(&inner.routes.load()) else { return Ok(()) };
        let (mut sink, mut stream) = inner.dialer.subscriber(&host).await?.split();
        let mut retry = tokio::time::interval(RETRY);
        self.wanted.notify_one();
        loop {
            tokio::select! {
                () = self.wanted.notified() => {
                    for channel in self.unsubscribed() {
                        limited(limit, sink.subscribe(&channel)).await?;
                        self.tell(&channel, &News::Subscribed);
                    }
                }
                message = stream.next() => {
                    let Some(message) = message else { return Ok(()) };
                    match std::str::from_utf8(message.get_payload_bytes()).ok().and_then(News::parse) {
                        Some(news) => self.tell(message.get_channel_name(), &news),
                        None => tracing::warn!(channel = message.get_channel_name(), "news that cannot be read"),
                    }
                }
                turned = turns.changed() => {
                    if turned.is_err() || !leads_on(&host, &inner.routes.load()) {
                        return Ok(());
                    }
                }
                _ = retry.tick() => {
                    self.tell_missed();
                    if self.is_silent(&inner.routes.load()) {
                        tracing::debug!("the rooms' news fell silent; subscribing again");
                        return Ok(());
                    }
                }
            }
        }
    }

    fn is_silent(&self, routes: &Routes) -> bool {
        let quiet = |channel: &Channel| channel.heard.is_some_and(|heard| heard.elapsed() > SILENCE);
        self.with(|channels| match routes.nodes.len() {
            0 => false,
            1 => !channels.is_empty() && channels.values().all(quiet),
            _ => channels
                .iter()
                .any(|(name, channel)| quiet(channel) && routes.find(slot(name)).is_some()),
        })
    }

    fn unsubscribed(&self) -> Vec<String> {
        self.with(|channels| {
            let waiting = channels.iter().filter(|(_, channel)| channel.heard.is_none());
            waiting.map(|(name, _)| name.clone()).collect()
        })
    }
}

/// A connected server: its name only, for whoever keeps the connection keeps it open.
fn anybody(routes: &Routes) -> Option<Host> {
    let any = fastrand::usize(..routes.nodes.len().max(1));
    routes.nodes.get(any).map(|node| node.host.clone())
}

/// Whether this is still a server to be subscribed at: it has a part of the store, and is not the only one that cannot be reached.
fn leads_on(host: &Host, routes: &Routes) -> bool {
    let has_part = routes.parts.iter().any(|part| part.host == *host);
    has_part && (routes.node(host).is_some() || routes.nodes.is_empty())
}

/// Follows the news until the store is closed.
pub(super) fn follow(inner: &Arc<Inner>) {
    let inner = Arc::clone(inner);
    tokio::spawn(async move {
        tokio::select! {
            () = inner.stop.cancelled() => {}
            () = inner.newsroom.follow(&inner) => {}
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_missed_something_is_told_so_before_anything_else() {
        let (to, mut from) = mpsc::channel(1);
        let mut listener = Listener { to, missed: false };
        assert!(listener.tell(News::Away(vec!["a".into()])));
        assert!(listener.tell(News::Changed), "there is no room, and it does not wait");
        assert_eq!(from.try_recv(), Ok(News::Away(vec!["a".into()])));
        assert!(listener.tell(News::Away(vec!["b".into()])));
        assert_eq!(from.try_recv(), Ok(News::Subscribed), "in place of both");
        assert!(listener.tell(News::Changed));
        assert_eq!(from.try_recv(), Ok(News::Changed));
        drop(from);
        assert!(!listener.tell(News::Changed), "nobody listens");
    }
}
