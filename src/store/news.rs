//! The rooms' news: one subscriber connection for all rooms, rebuilt for ever.
//!
//! News is only ever a hint that makes things quicker: whatever it says can be read from the store. So nothing is kept for a slow listener;
//! it is told [`News::Subscribed`] ("read everything again") in place of what it missed, as after each new subscription. A subscription can be
//! dead though its connection looks alive, so silence counts as failure: every room that is ticked says something once a second.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use redis::Client;
use tokio::sync::{Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::store::back_off;
use crate::store::scripts::{Epoch, Place};

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
    subscribed: bool,
}

/// Who listens to what.
pub(super) struct Newsroom {
    channels: Mutex<HashMap<String, Channel>>,
    /// A channel was added.
    wanted: Notify,
}

impl Newsroom {
    pub(super) fn start(client: Client, limit: Duration, up: watch::Receiver<bool>, stop: CancellationToken) -> Arc<Self> {
        let newsroom = Arc::new(Self {
            channels: Mutex::default(),
            wanted: Notify::new(),
        });
        let task = Arc::clone(&newsroom);
        tokio::spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = task.follow(&client, limit, up) => {}
            }
        });
        newsroom
    }

    pub(super) fn listen(&self, channel: &str) -> mpsc::Receiver<News> {
        let (to, from) = mpsc::channel(UNREAD);
        self.with(|channels| {
            let channel = channels.entry(channel.to_owned()).or_default();
            let mut listener = Listener { to, missed: false };
            if channel.subscribed {
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

    async fn follow(&self, client: &Client, limit: Duration, mut up: watch::Receiver<bool>) {
        let mut failures = 0;
        loop {
            // The other connection tells when there is somebody to subscribe to.
            if up.wait_for(|up| *up).await.is_err() {
                return;
            }
            match self.subscribed(client, limit, &up).await {
                Ok(()) => failures = 0,
                Err(error) => {
                    tracing::debug!(%error, "the subscription to the rooms' news ended");
                    failures += 1;
                }
            }
            self.with(|channels| channels.values_mut().for_each(|channel| channel.subscribed = false));
            tokio::time::sleep(back_off(failures)).await;
        }
    }

    /// One subscriber connection, until it breaks or falls silent.
    async fn subscribed(&self, client: &Client, limit: Duration, up: &watch::Receiver<bool>) -> Result<(), redis::RedisError> {
        let timeout = |_| redis::RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut));
        let connection = tokio::time::timeout(limit, client.get_async_pubsub()).await.map_err(timeout)??;
        let (mut sink, mut stream) = connection.split();
        let mut last_heard = tokio::time::Instant::now();
        let mut retry = tokio::time::interval(RETRY);
        self.wanted.notify_one();
        loop {
            tokio::select! {
                () = self.wanted.notified() => {
                    for channel in self.unsubscribed() {
                        tokio::time::timeout(limit, sink.subscribe(&channel)).await.map_err(timeout)??;
                        self.with(|channels| {
                            if let Some(channel) = channels.get_mut(&channel) {
                                channel.subscribed = true;
                            }
                        });
                        self.tell(&channel, &News::Subscribed);
                        last_heard = tokio::time::Instant::now();
                    }
                }
                message = stream.next() => {
                    let Some(message) = message else { return Ok(()) };
                    last_heard = tokio::time::Instant::now();
                    match std::str::from_utf8(message.get_payload_bytes()).ok().and_then(News::parse) {
                        Some(news) => self.tell(message.get_channel_name(), &news),
                        None => tracing::warn!(channel = message.get_channel_name(), "news that cannot be read"),
                    }
                }
                _ = retry.tick() => {
                    self.tell_missed();
                    let silent = last_heard.elapsed() > SILENCE && !self.with(|channels| channels.is_empty());
                    if silent && *up.borrow() {
                        tracing::debug!("the rooms' news fell silent; subscribing again");
                        return Ok(());
                    }
                }
            }
        }
    }

    fn unsubscribed(&self) -> Vec<String> {
        self.with(|channels| {
            let waiting = channels.iter().filter(|(_, channel)| !channel.subscribed);
            waiting.map(|(name, _)| name.clone()).collect()
        })
    }
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
