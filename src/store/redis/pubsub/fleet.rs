//! Subscriptions in a fleet. Each server has a connection of its own for its channels, made when a waiter first needs it.
//! A channel follows its slot.

use super::channels::{Channels, Command, wake};
use super::subscriber::{Origin, Subscriber};
use crate::store::redis::link::address::Address;
use crate::store::redis::link::script::slot;
use crate::store::redis::topology::routes::Routes;
use crate::util::panics::caught;
use crate::util::sync::Mutex;
use fred::types::config::Server;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

/// The pause before a channel that has moved is subscribed again, after that has failed.
const RETRY: Duration = Duration::from_secs(1);

/// Sends commands to the subscriber of a server.
type SubscriberHandle = mpsc::UnboundedSender<Command>;

/// The subscribers of a fleet.
pub(super) struct FleetSubscribers {
    address: Address,
    routes: Arc<Routes>,
    channels: Channels,
    /// `None` after the end.
    subscribers: Mutex<Option<HashMap<Server, SubscriberHandle>>>,
    /// The runtime of the connections.
    runtime: Handle,
    _end: DropGuard,
}

impl FleetSubscribers {
    pub(in crate::store::redis) fn start(
        address: &Address,
        routes: &Arc<Routes>,
        channels: &Channels,
    ) -> Arc<Self> {
        let end = CancellationToken::new();
        let subscribers = Arc::new(Self {
            address: address.clone(),
            routes: Arc::clone(routes),
            channels: Arc::clone(channels),
            subscribers: Mutex::new(Some(HashMap::new())),
            runtime: Handle::current(),
            _end: end.clone().drop_guard(),
        });
        let followers = Arc::downgrade(&subscribers);
        let routes = Arc::clone(routes);
        tokio::spawn(async move {
            while caught("subscribers of a fleet", follow(&followers, &routes, &end))
                .await
                .is_none()
            {}
        });
        subscribers
    }

    /// Sends a command to the subscriber of the server. Returns false if there is none.
    pub(in crate::store::redis) fn send(self: &Arc<Self>, command: Command) -> bool {
        match &command {
            Command::Subscribe(channel, _) => {
                let Some(server) = self.routes.owner(slot(channel.as_bytes())) else {
                    self.routes.request_refresh();
                    return false;
                };
                let before = self
                    .channels
                    .lock()
                    .get_mut(channel)
                    .and_then(|entry| entry.server.replace(server.clone()));
                if let Some(before) = before.filter(|before| *before != server) {
                    self.send_to(&before, Command::Idle(channel.clone()));
                }
                self.subscriber(server).is_some_and(|subscriber| subscriber.send(command).is_ok())
            }
            Command::Idle(channel) => {
                let server =
                    self.channels.lock().get(channel).and_then(|entry| entry.server.clone());
                server.is_some_and(|server| self.send_to(&server, command))
            }
            Command::Close(_) => false,
        }
    }

    /// Sends a command to a subscriber that exists. Returns whether it was sent.
    fn send_to(&self, server: &Server, command: Command) -> bool {
        let subscribers = self.subscribers.lock();
        let subscriber = subscribers.as_ref().and_then(|subscribers| subscribers.get(server));
        subscriber.is_some_and(|subscriber| subscriber.send(command).is_ok())
    }

    /// Returns the subscriber of a server, made now if need be.
    fn subscriber(self: &Arc<Self>, server: Server) -> Option<SubscriberHandle> {
        let mut subscribers = self.subscribers.lock();
        let subscribers = subscribers.as_mut()?;
        if let Some(subscriber) =
            subscribers.get(&server).filter(|subscriber| !subscriber.is_closed())
        {
            return Some(subscriber.clone());
        }
        let (subscriber, commands) = mpsc::unbounded_channel();
        subscribers.insert(server.clone(), subscriber.clone());
        let address = self.address.of(&server);
        let routes = Arc::clone(&self.routes);
        let origin = Origin::Of(server, routes);
        self.runtime.spawn(Subscriber::new(&address, origin, &self.channels, commands).run(None));
        Some(subscriber)
    }

    /// Moves the channels to the servers that have their slots now.
    fn rebalance(self: &Arc<Self>) {
        let servers = self.routes.servers();
        if let Some(subscribers) = self.subscribers.lock().as_mut() {
            // A subscriber without a handle disconnects.
            subscribers.retain(|server, _| servers.contains(server));
        }
        let mut channels = self.channels.lock();
        // A channel without waiters may belong to a subscriber that has disconnected, so it is removed here.
        channels.retain(|channel, entry| {
            let owner = self.routes.owner(slot(channel.as_bytes()));
            entry.is_awaited() || owner.is_none() || entry.server == owner
        });
        let moved: Vec<String> = channels
            .iter_mut()
            .filter(|(channel, entry)| {
                let owner = self.routes.owner(slot(channel.as_bytes()));
                owner.is_some() && entry.server != owner
            })
            .map(|(channel, entry)| {
                entry.subscribed = false;
                channel.clone()
            })
            .collect();
        drop(channels);
        for channel in moved {
            self.runtime.spawn(subscribe_moved(Arc::downgrade(self), channel));
        }
    }

    /// Returns whether a channel has waiters and is not subscribed.
    fn is_missing(&self, channel: &str) -> bool {
        let channels = self.channels.lock();
        channels.get(channel).is_some_and(|entry| entry.is_awaited() && !entry.subscribed)
    }

    pub(in crate::store::redis) async fn close(&self, limit: Duration) {
        let subscribers = self.subscribers.lock().take().unwrap_or_default();
        let closing: Vec<_> = subscribers
            .into_values()
            .filter_map(|subscriber| {
                let (done, closed) = oneshot::channel();
                subscriber.send(Command::Close(done)).ok().map(|()| closed)
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

/// Subscribes a channel whose slot has moved, again and again until it is subscribed or has no waiter.
async fn subscribe_moved(subscribers: Weak<FleetSubscribers>, channel: String) {
    loop {
        let Some(all) = subscribers.upgrade() else { return };
        let (done, subscribed) = oneshot::channel();
        all.send(Command::Subscribe(channel.clone(), done));
        let channels = Arc::clone(&all.channels);
        // The subscribers may end meanwhile.
        drop(all);
        let _ = subscribed.await;
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
