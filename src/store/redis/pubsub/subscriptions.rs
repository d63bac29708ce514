//! Wake-ups over pub/sub.
//!
//! They are hints only. A name with waiters has one subscription, whatever their number. Each runtime that waits has a
//! connection of its own for them, so that a message crosses no thread; `channels.rs` says which one has a channel.

use super::channels::{
    Channels, Command, GroupId, Subscribed, SubscriberHandle, SubscriberRef, Users, forget_unheard,
    listeners,
};
use super::fleet::FleetSubscribers;
use super::subscriber::{Origin, Subscriber};
use crate::error::{Error, ErrorKind, Result};
use crate::store::redis::link::subscription::Subscription;
use crate::store::redis::topology::Connector;
use crate::store::redis::topology::runtimes::{
    Closable, Nearest, PerRuntime, Reservation, time_is_paused,
};
use crate::store::{Inbox, Signal, Wakeups};
use crate::util::backoff::Backoff;
use crate::util::trace;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::runtime::{self, Id};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use tracing::Level;

/// The pause between two attempts of a runtime to connect.
const CONNECT_AGAIN: Duration = Duration::from_secs(1);

/// Subscribes waiters to the channels of their names.
#[derive(Clone)]
pub(in crate::store::redis) struct Subscriptions(Arc<Shared>);

struct Shared {
    channels: Channels,
    /// On the engine's runtime.
    default: Backend,
    others: PerRuntime<Backend>,
    /// `None` without a server.
    connector: Option<Connector>,
}

/// The subscribers of a runtime.
#[derive(Clone)]
enum Backend {
    One(SubscriberHandle),
    Each(Arc<FleetSubscribers>),
}

impl Backend {
    fn group(&self) -> GroupId {
        match self {
            Self::One(handle) => handle.subscriber.group,
            Self::Each(fleet) => fleet.group,
        }
    }

    /// Returns the subscriber that a channel belongs to, if there is one.
    fn subscriber_of(&self, channel: &str) -> Option<SubscriberRef> {
        match self {
            Self::One(handle) => (!handle.is_closed()).then(|| handle.subscriber.clone()),
            Self::Each(fleet) => fleet.subscriber_of(channel),
        }
    }

    async fn close(self, limit: Duration) {
        match self {
            Self::One(handle) => {
                let (done, closed) = oneshot::channel();
                if handle.send(Command::Close(done)) {
                    let _ = timeout(limit, closed).await;
                }
            }
            Self::Each(fleet) => fleet.close(limit).await,
        }
    }
}

impl Closable for Backend {
    fn is_closed(&self) -> bool {
        match self {
            Self::One(handle) => handle.is_closed(),
            Self::Each(fleet) => fleet.has_ended(),
        }
    }
}

/// What became of the wish of a waiter.
enum Sent {
    /// It is subscribed already.
    Subscribed,
    /// It is answered when it is subscribed.
    Asked(oneshot::Receiver<Subscribed>),
    /// There is no subscriber.
    Nowhere,
}

impl Subscriptions {
    /// Connects on the current runtime.
    pub(in crate::store::redis) async fn start(connector: &Connector) -> Result<Self> {
        let address = &connector.address;
        let channels = Channels::default();
        let default = match &connector.routes {
            None => {
                let client = Subscription::connect(address).await?;
                let (handle, inbox) = SubscriberHandle::new(GroupId::next(), None);
                let origin = Origin::One(connector.destination.subscribe());
                tokio::spawn(Subscriber::new(address, origin, &channels, inbox).run(Some(client)));
                Backend::One(handle)
            }
            Some(routes) => Backend::Each(FleetSubscribers::start(address, routes, &channels)),
        };
        let others = PerRuntime::new();
        let connector = Some(connector.clone());
        Ok(Self(Arc::new(Shared { channels, default, others, connector })))
    }

    /// Returns how often the server counts this process among those that a message to `channel` reaches, as far as it knows.
    ///
    /// It keeps no connection open.
    pub(in crate::store::redis) fn listeners(&self) -> Arc<dyn Fn(&str) -> u64 + Send + Sync> {
        let channels = Arc::clone(&self.0.channels);
        Arc::new(move |channel| listeners(&channels, channel))
    }

    /// Closes the connections.
    pub(in crate::store::redis) async fn close(&self, attempt: Duration) {
        let mut closing = tokio::task::JoinSet::new();
        for backend in self.0.others.close().into_iter().chain([self.0.default.clone()]) {
            closing.spawn(backend.close(attempt * 2));
        }
        while closing.join_next().await.is_some() {}
    }

    /// Returns the subscribers of the current runtime, or the default ones. Those of this runtime are made in the background
    /// if there are none.
    fn nearest(&self) -> Backend {
        let Some(connector) = &self.0.connector else { return self.0.default.clone() };
        let open = |reservation| {
            let opening = Opening { connector: connector.clone(), shared: Arc::downgrade(&self.0) };
            open_and_serve(reservation, opening)
        };
        match self.0.others.nearest(open) {
            Nearest::Own(backend) => backend,
            Nearest::Default { .. } => self.0.default.clone(),
        }
    }

    /// Subscribes a waiter. Returns when the server has the subscription: a message after that is not missed.
    pub(in crate::store::redis) async fn subscribe(&self, channel: String) -> Result<Wakeups> {
        let signal = Signal::new();
        let guard =
            Guard { subscriptions: self.clone(), channel: channel.clone(), signal: signal.clone() };
        {
            let runtime = runtime::Handle::try_current().ok().map(|runtime| runtime.id());
            let mut channels = self.0.channels.lock();
            let entry = channels.entry(channel.clone()).or_default();
            entry.waiters.push(signal.clone());
            entry.used_by(runtime);
        }
        // After the channel is there: what is made meanwhile for this runtime moves it.
        let near = self.nearest();
        let mut sent = self.0.send(&channel, &near);
        if let Sent::Asked(confirmed) = sent {
            match confirmed.await {
                Ok(Ok(())) => return Ok(Wakeups::new(signal, guard)),
                // The default one may have a connection.
                Ok(Err(error)) => {
                    let is_own = near.group() != self.0.default.group();
                    if !is_own || !error.is_unavailable() {
                        return Err(error);
                    }
                    sent = self.0.send(&channel, &self.0.default);
                }
                // Its runtime has ended meanwhile.
                Err(_) => sent = self.0.send(&channel, &self.0.default),
            }
        }
        match sent {
            Sent::Subscribed => {}
            Sent::Asked(confirmed) => confirmed.await.unwrap_or_else(|_| Err(gone()))?,
            Sent::Nowhere => return Err(gone()),
        }
        Ok(Wakeups::new(signal, guard))
    }
}

fn gone() -> Error {
    Error::new(ErrorKind::Unavailable, "the subscriber has gone")
}

impl Shared {
    /// Has a channel subscribed where it belongs, for a waiter that is near these subscribers.
    fn send(&self, channel: &str, near: &Backend) -> Sent {
        let sent = self.send_there(channel, near);
        if let (Sent::Nowhere, Backend::Each(fleet)) = (&sent, &self.default) {
            fleet.request_refresh();
        }
        sent
    }

    fn send_there(&self, channel: &str, near: &Backend) -> Sent {
        let mut channels = self.channels.lock();
        let Some(entry) = channels.get_mut(channel) else { return Sent::Nowhere };
        let is_own = matches!(entry.users, Users::One(_)) && entry.inbox.is_none();
        // It was made for the only runtime that waits, after `near` was chosen.
        let own = entry.at.clone().filter(|at| {
            is_own && near.group() == self.default.group() && at.group != near.group()
        });
        if let Some(own) = own.filter(|own| !own.has_ended() && !own.has_lost_its_connection()) {
            if entry.subscribed {
                return Sent::Subscribed;
            }
            let (done, confirmed) = oneshot::channel();
            if own.send(Command::Subscribe(channel.to_owned(), done)) {
                return Sent::Asked(confirmed);
            }
        }
        for backend in [if is_own { near } else { &self.default }, &self.default] {
            // One that has lost its connection hears nothing. With the next one of the default subscribers all waiters are woken.
            let hears = |at: &SubscriberRef| {
                backend.group() == self.default.group() || !at.has_lost_its_connection()
            };
            if entry.subscribed
                && entry
                    .at
                    .as_ref()
                    .is_some_and(|at| at.group == backend.group() && !at.has_ended() && hears(at))
            {
                return Sent::Subscribed;
            }
            let Some(subscriber) = backend.subscriber_of(channel).filter(hears) else { continue };
            entry.go_to(channel, &subscriber);
            let (done, confirmed) = oneshot::channel();
            // Under the lock, so that a command to leave comes after it.
            if subscriber.send(Command::Subscribe(channel.to_owned(), done)) {
                return Sent::Asked(confirmed);
            }
        }
        Sent::Nowhere
    }

    /// Moves the channels that only this runtime waits for from the default subscribers to its own.
    fn promote(&self, runtime: Id, own: &Backend) {
        let mut channels = self.channels.lock();
        for (name, entry) in channels.iter_mut() {
            if entry.users != Users::One(runtime) || entry.inbox.is_some() {
                continue;
            }
            let Some(subscriber) = own.subscriber_of(name) else { continue };
            entry.go_to(name, &subscriber);
            let (done, _) = oneshot::channel();
            subscriber.send(Command::Subscribe(name.clone(), done));
            if !entry.is_awaited() {
                subscriber.send(Command::Idle(name.clone()));
            }
        }
    }

    /// Moves the channels of subscribers that have ended with their runtime to the default ones.
    fn adopt_all(&self, ended: GroupId) {
        let mut moved = Vec::new();
        self.channels.lock().retain(|name, entry| {
            entry.leaves_with(ended);
            if entry.at.as_ref().is_none_or(|at| at.group != ended) {
                return !entry.is_over();
            }
            if !entry.is_awaited() {
                entry.give_up(name);
                return !entry.is_over();
            }
            let subscriber = match &self.default {
                Backend::One(handle) => Some(&handle.subscriber),
                Backend::Each(_) => None,
            };
            entry.go_on_at(subscriber);
            if let Some(subscriber) = subscriber {
                let (done, _) = oneshot::channel();
                subscriber.send(Command::Subscribe(name.clone(), done));
            }
            moved.push(name.clone());
            true
        });
        if let Backend::Each(fleet) = &self.default {
            moved.into_iter().for_each(|channel| fleet.adopt(channel));
        }
    }

    /// Has a channel unsubscribed after a while, once it has no waiters.
    fn leave(&self, channel: &str) {
        let is_heard = {
            let channels = self.channels.lock();
            let Some(entry) = channels.get(channel) else { return };
            if entry.is_awaited() {
                return;
            }
            let at = entry.at.as_ref();
            at.is_some_and(|at| at.send(Command::Idle(channel.to_owned())))
        };
        if !is_heard {
            forget_unheard(&self.channels, channel);
        }
    }
}

/// What it takes to make the subscribers of a runtime.
struct Opening {
    connector: Connector,
    /// They end when nothing else has it.
    shared: Weak<Shared>,
}

/// Moves the channels to the default subscribers when the runtime ends.
struct Departure {
    group: GroupId,
    shared: Weak<Shared>,
}

impl Drop for Departure {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.adopt_all(self.group);
        }
    }
}

/// Connects on this runtime, then receives its wake-ups.
async fn open_and_serve(reservation: Reservation<Backend>, opening: Opening) {
    if time_is_paused() {
        return std::future::pending().await;
    }
    let Opening { connector, shared } = opening;
    let address = connector.address.clone();
    let Some(channels) = shared.upgrade().map(|shared| Arc::clone(&shared.channels)) else {
        return;
    };
    let open = |own: &Backend| {
        reservation.fill(own.clone());
        if let Some(shared) = shared.upgrade() {
            shared.promote(reservation.runtime(), own);
        }
    };
    if let Some(routes) = &connector.routes {
        let fleet = FleetSubscribers::start(&address, routes, &channels);
        let _departure = Departure { group: fleet.group, shared: shared.clone() };
        let unused = fleet.unused.clone();
        open(&Backend::Each(fleet));
        drop(reservation);
        return unused.cancelled().await;
    }
    let client = loop {
        match Subscription::connect(&address).await {
            Ok(client) => break client,
            Err(error) => trace::later(
                Level::DEBUG,
                || move || tracing::debug!(%error, "no connection for wake-ups on this runtime yet"),
            ),
        }
        if reservation.is_closed() {
            return;
        }
        sleep(CONNECT_AGAIN).await;
    };
    if reservation.is_closed() {
        return client.close(address.attempt).await;
    }
    let (handle, inbox) = SubscriberHandle::new(GroupId::next(), None);
    let _departure = Departure { group: handle.subscriber.group, shared: shared.clone() };
    let origin = Origin::One(connector.destination.subscribe());
    let subscriber = Subscriber::new(&address, origin, &channels, inbox);
    open(&Backend::One(handle));
    drop(reservation);
    drop(connector);
    subscriber.run(Some(client)).await;
}

/// The bounds of the time between two attempts to subscribe an inbox.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));

impl Subscriptions {
    /// Subscribes the inbox that has this channel, in the background on a runtime. It is there after a moment, and again
    /// after a reconnect, or once the server allows it. Until then holders learn of what was done at their next renewal.
    pub(in crate::store::redis) fn inbox(
        &self,
        channel: String,
        runtime: &runtime::Handle,
    ) -> Inbox {
        let subscriptions = self.clone();
        let name = channel.clone();
        let (sender, inbox) = Inbox::new(InboxGuard { subscriptions, channel: name });
        self.0.channels.lock().entry(channel.clone()).or_default().inbox = Some(sender.clone());
        let subscriptions = self.clone();
        runtime.spawn(async move {
            let mut pauses = Backoff::new(RETRY.0, RETRY.1);
            while !sender.is_closed() {
                match subscriptions.0.send(&channel, &subscriptions.0.default) {
                    Sent::Subscribed => return,
                    Sent::Asked(confirmed) => {
                        if let Ok(Ok(())) = confirmed.await {
                            return;
                        }
                    }
                    Sent::Nowhere => {}
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
        let shared = &self.subscriptions.0;
        if let Some(channel) = shared.channels.lock().get_mut(&self.channel) {
            channel.inbox = None;
        }
        shared.leave(&self.channel);
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
        let shared = &self.subscriptions.0;
        if let Some(channel) = shared.channels.lock().get_mut(&self.channel) {
            channel.waiters.retain(|waiter| !waiter.is(&self.signal));
        }
        shared.leave(&self.channel);
    }
}

#[cfg(any(test, feature = "testing"))]
use tokio::sync::mpsc;

#[cfg(any(test, feature = "testing"))]
impl Subscriptions {
    /// Makes subscriptions without a connection, and returns the commands that they send.
    pub(in crate::store::redis) fn detached() -> (Self, mpsc::UnboundedReceiver<Command>) {
        let (handle, inbox) = SubscriberHandle::new(GroupId::next(), None);
        let shared = Shared {
            channels: Channels::default(),
            default: Backend::One(handle),
            others: PerRuntime::new(),
            connector: None,
        };
        (Self(Arc::new(shared)), inbox.commands)
    }

    /// Takes the next command and confirms it.
    #[cfg(test)]
    pub(in crate::store::redis) async fn confirm(
        &self,
        commands: &mut mpsc::UnboundedReceiver<Command>,
    ) {
        let Some(Command::Subscribe(channel, done)) = commands.recv().await else {
            panic!("another command");
        };
        self.0.channels.lock().get_mut(&channel).unwrap().subscribed = true;
        drop(done.send(Ok(())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::pubsub::channels::{Channel, wake};
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
        assert!((subscriptions.listeners())("c") == 1 && (subscriptions.listeners())("d") == 0);
        drop(first);
        assert!(commands.try_recv().is_err(), "one waiter is left");
        assert_eq!(waits(&subscriptions.0.channels), 1);
        drop(second);
        assert!(matches!(commands.try_recv(), Ok(Command::Idle(channel)) if channel == "c"));
        assert_eq!(
            (waits(&subscriptions.0.channels), subscriptions.0.channels.lock().len()),
            (0, 1)
        );
        assert!((subscriptions.listeners())("c") == 1, "until it is unsubscribed");
    }

    #[tokio::test(start_paused = true)]
    async fn backend_without_a_subscriber_keeps_nothing() {
        let (subscriptions, commands) = Subscriptions::detached();
        let Backend::One(handle) = &subscriptions.0.default else { unreachable!() };
        let mut entry = Channel::default();
        entry.go_to("c", &handle.subscriber);
        entry.subscribed = true;
        subscriptions.0.channels.lock().insert("c".to_owned(), entry);
        let (first, second) = (
            subscriptions.subscribe("c".to_owned()).await.unwrap(),
            subscriptions.subscribe("c".to_owned()).await.unwrap(),
        );
        drop(commands);
        drop(first);
        assert_eq!(waits(&subscriptions.0.channels), 1);
        drop(second);
        assert!(subscriptions.0.channels.lock().is_empty());
        let Err(error) = subscriptions.subscribe("c".to_owned()).await else {
            panic!("no subscriber is left")
        };
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(subscriptions.0.channels.lock().is_empty());
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
        wake(&subscriptions.0.channels, Some("c"));
        timeout(moment, c.recv()).await.expect("woken");
        timeout(moment, d.recv()).await.expect_err("not meant");
        wake(&subscriptions.0.channels, None);
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
