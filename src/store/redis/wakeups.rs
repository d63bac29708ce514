//! Wake-ups over pub/sub: hints only, one connection and one subscription per waited name.
//!
//! Two tasks on the engine's runtime: the listener passes messages on and never waits for anything
//! else; the clerk subscribes and unsubscribes, one channel per command, one command at a time,
//! because fred mixes up replies otherwise.

use crate::error::{Error, ErrorKind, Result};
use crate::store::Wakeups;
use fred::clients::SubscriberClient;
use fred::interfaces::{ClientLike, EventInterface, PubsubInterface};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout};

/// How long a subscription outlives its last waiter: the next one is often there at once.
const LINGER: Duration = Duration::from_secs(1);

#[derive(Clone)]
pub(super) struct Hub {
    channels: Arc<Mutex<HashMap<String, Channel>>>,
    clerk: mpsc::UnboundedSender<Order>,
}

#[derive(Default)]
struct Channel {
    waiters: Vec<Arc<Notify>>,
    /// The server has confirmed the subscription.
    subscribed: bool,
}

enum Order {
    /// Answered when the subscription is there.
    Subscribe(String, oneshot::Sender<Result<()>>),
    /// The last waiter went away.
    Idle(String),
    Close(oneshot::Sender<()>),
}

impl Hub {
    pub(super) fn start(client: SubscriberClient, attempt: Duration) -> Self {
        let (clerk, orders) = mpsc::unbounded_channel();
        let hub = Self { channels: Arc::default(), clerk };
        tokio::spawn(listen(client.clone(), Arc::clone(&hub.channels)));
        tokio::spawn(keep(client, Arc::clone(&hub.channels), orders, attempt));
        hub
    }

    /// Whether a message to `channel` reaches us too, as far as we know.
    pub(super) fn hears(&self, channel: &str) -> bool {
        lock(&self.channels).get(channel).is_some_and(|entry| entry.subscribed)
    }

    /// Ends the connection.
    pub(super) async fn close(&self, attempt: Duration) {
        let (done, closed) = oneshot::channel();
        if self.clerk.send(Order::Close(done)).is_ok() {
            let _ = timeout(attempt * 2, closed).await;
        }
    }

    /// Subscribes a waiter and returns when the subscription is confirmed.
    pub(super) async fn subscribe(&self, channel: String) -> Result<Wakeups> {
        let notify = Arc::new(Notify::new());
        let guard =
            Guard { hub: self.clone(), channel: channel.clone(), notify: Arc::clone(&notify) };
        let subscribed = {
            let mut channels = lock(&self.channels);
            let entry = channels.entry(channel.clone()).or_default();
            entry.waiters.push(Arc::clone(&notify));
            entry.subscribed
        };
        if !subscribed {
            let (done, confirmed) = oneshot::channel();
            let closed = |_| Error::new(ErrorKind::Unavailable, "the subscriber has gone");
            self.clerk.send(Order::Subscribe(channel, done)).map_err(|_| closed(()))?;
            confirmed.await.map_err(|_| closed(()))??;
        }
        Ok(Wakeups::new(notify, guard))
    }
}

struct Guard {
    hub: Hub,
    channel: String,
    notify: Arc<Notify>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut channels = lock(&self.hub.channels);
        let Some(channel) = channels.get_mut(&self.channel) else {
            return;
        };
        channel.waiters.retain(|waiter| !Arc::ptr_eq(waiter, &self.notify));
        if channel.waiters.is_empty() {
            drop(channels);
            let _ = self.hub.clerk.send(Order::Idle(std::mem::take(&mut self.channel)));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Wakes who waits on one channel, or on all. Each of them is the first in line of its name, and
/// two names may share a channel, so nobody is woken in vain.
fn wake(channels: &Mutex<HashMap<String, Channel>>, channel: Option<&str>) {
    let waiters: Vec<Arc<Notify>> = {
        let channels = lock(channels);
        match channel {
            Some(channel) => channels
                .get(channel)
                .into_iter()
                .flat_map(|entry| &entry.waiters)
                .cloned()
                .collect(),
            None => channels.values().flat_map(|entry| &entry.waiters).cloned().collect(),
        }
    };
    // Wakers run with no lock held.
    waiters.iter().for_each(|waiter| waiter.notify_one());
}

/// Passes messages on until the client ends.
async fn listen(client: SubscriberClient, channels: Arc<Mutex<HashMap<String, Channel>>>) {
    let mut messages = client.message_rx();
    loop {
        match messages.recv().await {
            Ok(message) => wake(&channels, Some(&message.channel)),
            // We were too slow; who was meant is lost, so it is everybody.
            Err(RecvError::Lagged(_)) => wake(&channels, None),
            Err(RecvError::Closed) => return,
        }
    }
}

/// Subscribes, unsubscribes what has been idle for a while, and subscribes anew after a reconnect.
async fn keep(
    client: SubscriberClient,
    channels: Arc<Mutex<HashMap<String, Channel>>>,
    mut orders: mpsc::UnboundedReceiver<Order>,
    attempt: Duration,
) {
    let mut reconnects = client.reconnect_rx();
    let mut idle: VecDeque<(Instant, String)> = VecDeque::new();
    loop {
        let next = idle.front().map(|(at, _)| *at);
        tokio::select! {
            order = orders.recv() => match order {
                Some(Order::Subscribe(channel, done)) => {
                    // An earlier waiter's order may have done it.
                    let there = lock(&channels).get(&channel).is_none_or(|entry| entry.subscribed);
                    let result = if there { Ok(()) } else { subscribe(&client, &channels, &channel, attempt).await };
                    let _ = done.send(result);
                }
                Some(Order::Idle(channel)) => idle.push_back((Instant::now() + LINGER, channel)),
                Some(Order::Close(done)) => {
                    let _ = timeout(attempt, client.quit()).await;
                    let _ = done.send(());
                    return;
                }
                None => break,
            },
            () = async { sleep_until(next.unwrap_or_else(Instant::now)).await }, if next.is_some() => {
                if let Some((_, channel)) = idle.pop_front() {
                    unsubscribe(&client, &channels, &channel, attempt).await;
                }
            }
            event = reconnects.recv() => {
                if let Err(RecvError::Closed) = event {
                    break;
                }
                let all: Vec<String> = {
                    let mut channels = lock(&channels);
                    channels.values_mut().for_each(|channel| channel.subscribed = false);
                    channels.keys().cloned().collect()
                };
                for channel in all {
                    let _ = subscribe(&client, &channels, &channel, attempt).await;
                }
                // Messages of the gap are lost.
                wake(&channels, None);
            }
        }
    }
    let _ = timeout(attempt, client.quit()).await;
}

async fn subscribe(
    client: &SubscriberClient,
    channels: &Mutex<HashMap<String, Channel>>,
    channel: &str,
    attempt: Duration,
) -> Result<()> {
    match timeout(attempt, client.subscribe(channel)).await {
        Ok(Ok(())) => {
            if let Some(entry) = lock(channels).get_mut(channel) {
                entry.subscribed = true;
            }
            Ok(())
        }
        Ok(Err(error)) => Err(super::scripts::sorted(&error)),
        Err(_) => {
            Err(Error::new(ErrorKind::Unavailable, "the subscription was not confirmed in time"))
        }
    }
}

async fn unsubscribe(
    client: &SubscriberClient,
    channels: &Mutex<HashMap<String, Channel>>,
    channel: &str,
    attempt: Duration,
) {
    {
        let mut channels = lock(channels);
        if channels.get(channel).is_none_or(|entry| !entry.waiters.is_empty()) {
            return;
        }
        // From here on a new waiter orders a new subscription, which comes after this command.
        channels.remove(channel);
    }
    let _ = timeout(attempt, client.unsubscribe(channel)).await;
}
