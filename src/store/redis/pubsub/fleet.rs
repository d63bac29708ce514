//! Subscriptions in a fleet. Each server has a connection of its own for its channels, made when a waiter first needs it.
//! A channel follows its slot.

use super::channels::{Channels, Command, GroupId, SubscriberHandle, SubscriberRef, wake};
use super::subscriber::{Origin, Subscriber};
use crate::store::redis::link::address::Address;
use crate::store::redis::link::script::slot;
use crate::store::redis::topology::Server;
use crate::store::redis::topology::routes::Routes;
use crate::util::panics::caught;
use crate::util::sync::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::runtime;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

/// The pause before a channel that has moved is subscribed again, after that has failed.
const RETRY: Duration = Duration::from_secs(1);

/// The subscribers of a runtime in a fleet.
pub(super) struct FleetSubscribers {
    pub(super) group: GroupId,
    address: Address,
    routes: Arc<Routes>,
    channels: Channels,
    /// `None` after the end.
    subscribers: Mutex<Option<HashMap<Server, SubscriberHandle>>>,
    /// The runtime of the connections.
    runtime: runtime::Handle,
    /// Is cancelled when all that can use them is dropped.
    pub(super) unused: CancellationToken,
    _end: DropGuard,
    /// Is cancelled when their runtime ends, too.
    ended: CancellationToken,
}

impl FleetSubscribers {
    /// Makes them on the current runtime.
    pub(super) fn start(address: &Address, routes: &Arc<Routes>, channels: &Channels) -> Arc<Self> {
        let unused = CancellationToken::new();
        let ended = CancellationToken::new();
        let subscribers = Arc::new(Self {
            group: GroupId::next(),
            address: address.clone(),
            routes: Arc::clone(routes),
            channels: Arc::clone(channels),
            subscribers: Mutex::new(Some(HashMap::new())),
            runtime: runtime::Handle::current(),
            unused: unused.clone(),
            _end: unused.clone().drop_guard(),
            ended: ended.clone(),
        });
        let followers = Arc::downgrade(&subscribers);
        let routes = Arc::clone(routes);
        let at_end = ended.drop_guard();
        tokio::spawn(async move {
            let _at_end = at_end;
            while caught("subscribers of a fleet", follow(&followers, &routes, &unused))
                .await
                .is_none()
            {}
        });
        subscribers
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.is_cancelled()
    }

    /// Returns the subscriber that a channel belongs to. Returns `None` if the server is not known, or after the end.
    pub(super) fn subscriber_of(&self, channel: &str) -> Option<SubscriberRef> {
        let server = self.routes.owner(slot(channel.as_bytes()))?;
        self.subscriber(server)
    }

    pub(super) fn request_refresh(&self) {
        self.routes.request_refresh();
    }

    /// Returns the subscriber of a server, made now if need be.
    fn subscriber(&self, server: Server) -> Option<SubscriberRef> {
        let mut subscribers = self.subscribers.lock();
        let subscribers = subscribers.as_mut()?;
        if let Some(known) = subscribers.get(&server).filter(|subscriber| !subscriber.is_closed()) {
            return Some(known.subscriber.clone());
        }
        let (handle, inbox) = SubscriberHandle::new(self.group, Some(server.clone()));
        let subscriber = handle.subscriber.clone();
        let address = self.address.of(&server);
        subscribers.insert(server, handle);
        let origin = Origin::Of(Arc::clone(&self.routes));
        self.runtime.spawn(Subscriber::new(&address, origin, &self.channels, inbox).run(None));
        Some(subscriber)
    }

    /// Moves the channels to the servers that have their slots now.
    fn rebalance(self: &Arc<Self>) {
        let servers = self.routes.servers();
        if let Some(subscribers) = self.subscribers.lock().as_mut() {
            // A subscriber without a handle disconnects.
            subscribers.retain(|server, _| servers.contains(server));
        }
        let mut moved = Vec::new();
        self.channels.lock().retain(|channel, entry| {
            let Some(at) = entry.at.as_ref().filter(|at| at.group == self.group) else {
                return true;
            };
            let owner = self.routes.owner(slot(channel.as_bytes()));
            if owner.is_none() || at.server == owner && !at.has_ended() {
                return true;
            }
            // A channel without waiters may belong to a subscriber that has disconnected, so it is removed here.
            if !entry.is_awaited() {
                entry.give_up(channel);
                return !entry.is_over();
            }
            entry.subscribed = false;
            moved.push(channel.clone());
            true
        });
        for channel in moved {
            self.runtime.spawn(subscribe_moved(Arc::downgrade(self), channel));
        }
    }

    /// Subscribes a channel that has come from elsewhere, in the background, again and again.
    pub(super) fn adopt(self: &Arc<Self>, channel: String) {
        self.runtime.spawn(subscribe_moved(Arc::downgrade(self), channel));
    }

    /// Has a channel of its own go to the server that has its slot. Returns what is answered when it is subscribed.
    fn send(&self, channel: &str) -> Option<oneshot::Receiver<super::channels::Subscribed>> {
        let mut channels = self.channels.lock();
        let entry = channels.get_mut(channel)?;
        let (done, subscribed) = oneshot::channel();
        let subscriber = self.subscriber_of(channel)?;
        entry.go_to(channel, &subscriber);
        subscriber.send(Command::Subscribe(channel.to_owned(), done)).then_some(subscribed)
    }

    /// Returns whether a channel of its own, or of no subscriber, has waiters and is not subscribed.
    fn is_missing(&self, channel: &str) -> bool {
        let channels = self.channels.lock();
        channels.get(channel).is_some_and(|entry| {
            let is_ours = entry.at.as_ref().is_none_or(|at| at.group == self.group);
            is_ours && entry.is_awaited() && !entry.subscribed
        })
    }

    pub(super) async fn close(&self, limit: Duration) {
        let subscribers = self.subscribers.lock().take().unwrap_or_default();
        let closing: Vec<_> = subscribers
            .into_values()
            .filter_map(|subscriber| {
                let (done, closed) = oneshot::channel();
                subscriber.send(Command::Close(done)).then_some(closed)
            })
            .collect();
        let all = async {
            for closed in closing {
                let _ = closed.await;
            }
        };
        let _ = timeout(limit, all).await;
    }
}

/// Subscribes a channel whose slot has moved, or whose runtime has ended, again and again until it is subscribed or has no
/// waiter.
async fn subscribe_moved(subscribers: Weak<FleetSubscribers>, channel: String) {
    loop {
        let Some(all) = subscribers.upgrade() else { return };
        if !all.is_missing(&channel) {
            return;
        }
        let sent = all.send(&channel);
        if sent.is_none() {
            all.request_refresh();
        }
        let channels = Arc::clone(&all.channels);
        // The subscribers may end meanwhile.
        drop(all);
        if let Some(subscribed) = sent {
            let _ = subscribed.await;
        }
        // Messages of the gap are lost.
        wake(&channels, Some(&channel));
        if subscribers.upgrade().is_none_or(|all| !all.is_missing(&channel)) {
            return;
        }
        sleep(RETRY).await;
    }
}

/// Follows the routes until the end.
async fn follow(subscribers: &Weak<FleetSubscribers>, routes: &Routes, end: &CancellationToken) {
    let mut changes = routes.changes();
    loop {
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            () = end.cancelled() => return,
        }
        let Some(subscribers) = subscribers.upgrade() else { return };
        subscribers.rebalance();
    }
}
