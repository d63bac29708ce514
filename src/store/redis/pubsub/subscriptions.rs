//! Wake-ups over pub/sub.
//!
//! They are hints only. A name with waiters has one subscription, whatever their number.

use super::channels::{Channel, Channels, Command};
use super::fleet::FleetSubscribers;
use super::subscriber::{Origin, Subscriber};
use crate::error::{Error, ErrorKind, Result};
use crate::store::redis::topology::Connector;
use crate::store::{Inbox, Signal, Wakeups};
use crate::util::pauses::Pauses;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};

/// Subscribes waiters to the channels of their names.
#[derive(Clone)]
pub(in crate::store::redis) struct Subscriptions {
    channels: Channels,
    backend: Backend,
}

/// The receiver of commands.
#[derive(Clone)]
enum Backend {
    One(mpsc::UnboundedSender<Command>),
    Each(Arc<FleetSubscribers>),
}

impl Subscriptions {
    /// Connects on the current runtime.
    pub(in crate::store::redis) async fn start(connector: &Connector) -> Result<Self> {
        let address = &connector.address;
        let channels = Channels::default();
        let backend = match &connector.routes {
            None => {
                let client = address.subscriber().await?;
                let (commands, inbox) = mpsc::unbounded_channel();
                let origin = Origin::One(connector.destination.subscribe());
                tokio::spawn(Subscriber::new(address, origin, &channels, inbox).run(Some(client)));
                Backend::One(commands)
            }
            Some(routes) => Backend::Each(FleetSubscribers::start(address, routes, &channels)),
        };
        Ok(Self { channels, backend })
    }

    fn send(&self, command: Command) -> Result<()> {
        let sent = match &self.backend {
            Backend::One(commands) => commands.send(command).is_ok(),
            Backend::Each(fleet) => fleet.send(command),
        };
        sent.then_some(())
            .ok_or_else(|| Error::new(ErrorKind::Unavailable, "the subscriber has gone"))
    }

    /// Returns whether a message to `channel` reaches this process too, as far as it knows.
    pub(in crate::store::redis) fn is_subscribed(&self, channel: &str) -> bool {
        self.channels.lock().get(channel).is_some_and(|entry| entry.subscribed)
    }

    /// Closes the connections.
    pub(in crate::store::redis) async fn close(&self, attempt: Duration) {
        if let Backend::Each(fleet) = &self.backend {
            return fleet.close(attempt * 2).await;
        }
        let (done, closed) = oneshot::channel();
        if self.send(Command::Close(done)).is_ok() {
            let _ = timeout(attempt * 2, closed).await;
        }
    }

    /// Subscribes a waiter. Returns when the server has the subscription: a message after that is not missed.
    pub(in crate::store::redis) async fn subscribe(&self, channel: String) -> Result<Wakeups> {
        let signal = Signal::new();
        let guard =
            Guard { subscriptions: self.clone(), channel: channel.clone(), signal: signal.clone() };
        let subscribed = {
            let mut channels = self.channels.lock();
            let entry = channels.entry(channel.clone()).or_default();
            entry.waiters.push(signal.clone());
            entry.subscribed
        };
        if !subscribed {
            let (done, confirmed) = oneshot::channel();
            self.send(Command::Subscribe(channel, done))?;
            confirmed.await.unwrap_or_else(|_| {
                Err(Error::new(ErrorKind::Unavailable, "the subscriber has gone"))
            })?;
        }
        Ok(Wakeups::new(signal, guard))
    }
}

/// The bounds of the time between two attempts to subscribe an inbox.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));

impl Subscriptions {
    /// Subscribes the inbox that has this channel, in the background on a runtime. It is there after a moment, and again
    /// after a reconnect, or once the server allows it. Until then holders learn of what was done at their next renewal.
    pub(in crate::store::redis) fn inbox(&self, channel: String, runtime: &Handle) -> Inbox {
        let subscriptions = self.clone();
        let name = channel.clone();
        let (sender, inbox) = Inbox::new(InboxGuard { subscriptions, channel: name });
        self.channels.lock().entry(channel.clone()).or_default().inbox = Some(sender.clone());
        let subscriptions = self.clone();
        runtime.spawn(async move {
            let mut pauses = Pauses::new(RETRY.0, RETRY.1);
            while !sender.is_closed() {
                let (done, confirmed) = oneshot::channel();
                if subscriptions.send(Command::Subscribe(channel.clone(), done)).is_ok()
                    && let Ok(Ok(())) = confirmed.await
                {
                    return;
                }
                sleep(pauses.next()).await;
            }
        });
        inbox
    }
}

/// Ends the subscription of an inbox when it is dropped.
struct InboxGuard {
    subscriptions: Subscriptions,
    channel: String,
}

impl Drop for InboxGuard {
    fn drop(&mut self) {
        let mut channels = self.subscriptions.channels.lock();
        if let Some(channel) = channels.get_mut(&self.channel) {
            channel.inbox = None;
        }
        drop(channels);
        let _ = self.subscriptions.send(Command::Idle(self.channel.clone()));
    }
}

/// Removes a waiter when it is dropped.
struct Guard {
    subscriptions: Subscriptions,
    channel: String,
    signal: Signal,
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut channels = self.subscriptions.channels.lock();
        let Some(channel) = channels.get_mut(&self.channel) else {
            return;
        };
        channel.waiters.retain(|waiter| !waiter.is(&self.signal));
        if channel.is_awaited() {
            return;
        }
        drop(channels);
        if self.subscriptions.send(Command::Idle(self.channel.clone())).is_err() {
            // No connection is left to unsubscribe on.
            let mut channels = self.subscriptions.channels.lock();
            if !channels.get(&self.channel).is_none_or(Channel::is_awaited) {
                channels.remove(&self.channel);
            }
        }
    }
}

#[cfg(test)]
impl Subscriptions {
    /// Makes subscriptions without a connection, and returns the commands that they send.
    pub(in crate::store::redis) fn detached() -> (Self, mpsc::UnboundedReceiver<Command>) {
        let (commands, inbox) = mpsc::unbounded_channel();
        (Self { channels: Channels::default(), backend: Backend::One(commands) }, inbox)
    }

    /// Takes the next command and confirms it.
    pub(in crate::store::redis) async fn confirm(
        &self,
        commands: &mut mpsc::UnboundedReceiver<Command>,
    ) {
        let Some(Command::Subscribe(channel, done)) = commands.recv().await else {
            panic!("another command");
        };
        self.channels.lock().get_mut(&channel).unwrap().subscribed = true;
        drop(done.send(Ok(())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::pubsub::channels::wake;
    use tokio::time::Instant;

    fn waits(channels: &Channels) -> usize {
        channels.lock().values().filter(|channel| channel.is_awaited()).count()
    }

    #[tokio::test(start_paused = true)]
    async fn channel_is_subscribed_once_and_idle_after_its_last_waiter() {
        let (subscriptions, mut commands) = Subscriptions::detached();
        let (first, ()) = tokio::join!(
            subscriptions.subscribe("c".to_owned()),
            subscriptions.confirm(&mut commands)
        );
        let (first, second) =
            (first.unwrap(), subscriptions.subscribe("c".to_owned()).await.unwrap());
        assert!(commands.try_recv().is_err(), "it is subscribed");
        assert!(subscriptions.is_subscribed("c") && !subscriptions.is_subscribed("d"));
        drop(first);
        assert!(commands.try_recv().is_err(), "one waiter is left");
        assert_eq!(waits(&subscriptions.channels), 1);
        drop(second);
        assert!(matches!(commands.try_recv(), Ok(Command::Idle(channel)) if channel == "c"));
        assert_eq!((waits(&subscriptions.channels), subscriptions.channels.lock().len()), (0, 1));
        assert!(subscriptions.is_subscribed("c"), "until it is unsubscribed");
    }

    #[tokio::test(start_paused = true)]
    async fn backend_without_a_subscriber_keeps_nothing() {
        let (subscriptions, commands) = Subscriptions::detached();
        let entry = Channel { subscribed: true, ..Channel::default() };
        subscriptions.channels.lock().insert("c".to_owned(), entry);
        let (first, second) = (
            subscriptions.subscribe("c".to_owned()).await.unwrap(),
            subscriptions.subscribe("c".to_owned()).await.unwrap(),
        );
        drop(commands);
        drop(first);
        assert_eq!(waits(&subscriptions.channels), 1);
        drop(second);
        assert!(subscriptions.channels.lock().is_empty());
        let Err(error) = subscriptions.subscribe("c".to_owned()).await else {
            panic!("no subscriber is left")
        };
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(subscriptions.channels.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn message_wakes_the_waiters_of_its_channel() {
        let (subscriptions, mut commands) = Subscriptions::detached();
        let mut waiters = Vec::new();
        for channel in ["c", "d"] {
            let (waiter, ()) = tokio::join!(
                subscriptions.subscribe(channel.to_owned()),
                subscriptions.confirm(&mut commands)
            );
            waiters.push(waiter.unwrap());
        }
        let [c, d] = &mut waiters[..] else { unreachable!() };
        let moment = Duration::from_millis(1);
        wake(&subscriptions.channels, Some("c"));
        timeout(moment, c.recv()).await.expect("woken");
        timeout(moment, d.recv()).await.expect_err("not meant");
        wake(&subscriptions.channels, None);
        timeout(moment, c.recv()).await.expect("woken");
        timeout(moment, d.recv()).await.expect("woken");
    }

    #[tokio::test(start_paused = true)]
    async fn closing_waits_for_the_subscriber_but_not_forever() {
        let (subscriptions, mut commands) = Subscriptions::detached();
        let attempt = Duration::from_millis(100);
        let start = Instant::now();
        let answer = async {
            let Some(Command::Close(done)) = commands.recv().await else {
                panic!("another command")
            };
            tokio::time::sleep(attempt).await;
            done.send(()).unwrap();
        };
        tokio::join!(subscriptions.close(attempt), answer);
        assert_eq!(start.elapsed(), attempt);
        subscriptions.close(attempt).await;
        assert_eq!(start.elapsed(), attempt * 3);
    }
}
