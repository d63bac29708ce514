//! Subscriptions in a fleet: each server has a connection of its own for its channels, made when somebody
//! waits there, and a channel follows its slot.

use super::connect::Address;
use super::routes::Routes;
use super::scripts::slot;
use super::wakeups::{Channels, Line, Order, lock, serve, wake};
use crate::trace;
use fred::types::config::Server;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::Level;

type Clerk = mpsc::UnboundedSender<Order>;

pub(super) struct Clerks {
    address: Address,
    routes: Arc<Routes>,
    channels: Channels,
    /// None after the end.
    clerks: Mutex<Option<HashMap<Server, Clerk>>>,
    /// Where the connections live.
    runtime: Handle,
    _end: DropGuard,
}

impl Clerks {
    pub(super) fn start(address: &Address, routes: &Arc<Routes>, channels: &Channels) -> Arc<Self> {
        let end = CancellationToken::new();
        let clerks = Arc::new(Self {
            address: address.clone(),
            routes: Arc::clone(routes),
            channels: Arc::clone(channels),
            clerks: Mutex::new(Some(HashMap::new())),
            runtime: Handle::current(),
            _end: end.clone().drop_guard(),
        });
        tokio::spawn(follow(Arc::downgrade(&clerks), Arc::clone(routes), end));
        clerks
    }

    /// Passes an order on to the server's clerk; false if there is none.
    pub(super) fn order(self: &Arc<Self>, order: Order) -> bool {
        match &order {
            Order::Subscribe(channel, _) => {
                let Some(server) = self.routes.owner(slot(channel.as_bytes())) else {
                    self.routes.want();
                    return false;
                };
                let before = lock(&self.channels)
                    .get_mut(channel)
                    .and_then(|entry| entry.server.replace(server.clone()));
                if let Some(before) = before.filter(|before| *before != server) {
                    self.pass(&before, Order::Idle(channel.clone()));
                }
                self.clerk(server).is_some_and(|clerk| clerk.send(order).is_ok())
            }
            Order::Idle(channel) => {
                let server =
                    lock(&self.channels).get(channel).and_then(|entry| entry.server.clone());
                server.is_some_and(|server| self.pass(&server, order))
            }
            Order::Close(_) => false,
        }
    }

    /// To a clerk who is there.
    fn pass(&self, server: &Server, order: Order) -> bool {
        let clerks = lock(&self.clerks);
        let clerk = clerks.as_ref().and_then(|clerks| clerks.get(server));
        clerk.is_some_and(|clerk| clerk.send(order).is_ok())
    }

    /// The clerk of a server, who connects first if need be.
    fn clerk(self: &Arc<Self>, server: Server) -> Option<Clerk> {
        let mut clerks = lock(&self.clerks);
        let clerks = clerks.as_mut()?;
        if let Some(clerk) = clerks.get(&server).filter(|clerk| !clerk.is_closed()) {
            return Some(clerk.clone());
        }
        let (clerk, orders) = mpsc::unbounded_channel();
        clerks.insert(server.clone(), clerk.clone());
        let address = self.address.of(&server);
        let (channels, routes) = (Arc::clone(&self.channels), Arc::clone(&self.routes));
        self.runtime.spawn(async move {
            match address.subscriber().await {
                Ok(client) => {
                    let line =
                        Line::new(client, &channels, &address, Some((server, routes.sharded)));
                    serve(line, orders).await;
                }
                // What was ordered goes with the orders, which tells who waits for it.
                Err(error) => {
                    trace::later(
                        Level::DEBUG,
                        || move || tracing::debug!(%error, "no connection for wake-ups"),
                    );
                    routes.want();
                }
            }
        });
        Some(clerk)
    }

    /// Moves channels to the servers that have their slots now.
    fn settle(self: &Arc<Self>) {
        let servers = self.routes.servers();
        if let Some(clerks) = lock(&self.clerks).as_mut() {
            // Without its entrance, a clerk hangs up.
            clerks.retain(|server, _| servers.contains(server));
        }
        let mut channels = lock(&self.channels);
        // Who was to give up what nobody waits for any more has hung up perhaps; nobody else would.
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
            let (done, subscribed) = oneshot::channel();
            if self.order(Order::Subscribe(channel.clone(), done)) {
                let channels = Arc::clone(&self.channels);
                self.runtime.spawn(async move {
                    let _ = subscribed.await;
                    // Messages of the gap are lost.
                    wake(&channels, Some(&channel));
                });
            }
        }
    }

    pub(super) async fn close(&self, limit: Duration) {
        let clerks = lock(&self.clerks).take().unwrap_or_default();
        let closing: Vec<_> = clerks
            .into_values()
            .filter_map(|clerk| {
                let (done, closed) = oneshot::channel();
                clerk.send(Order::Close(done)).ok().map(|()| closed)
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

/// Follows the routes until the end.
async fn follow(clerks: Weak<Clerks>, routes: Arc<Routes>, end: CancellationToken) {
    let mut changes = routes.changes();
    loop {
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            () = end.cancelled() => return,
        }
        let Some(clerks) = clerks.upgrade() else { return };
        clerks.settle();
    }
}
