//! Keeps the slot map of a fleet up to date.
//!
//! A fleet is a cluster, or a primary with its replicas under sentinels, which is treated as a cluster of one shard.
//! Each server has connections of its own, so that one that is down delays no other.

use super::discover::Discovery;
use super::slot_map::SlotMap;
use crate::error::Result;
use crate::store::Signal;
use crate::store::redis::link::address::Address;
use crate::store::redis::link::subscription::{Heard, Messages, Subscription};
use crate::store::redis::link::url::{Sentinels, Topology};
use crate::util::panics::{caught, run_wakers};
use crate::util::reached::Rare;
use crate::util::sync::Mutex;
use crate::util::trace;
use fred::types::config::Server;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::Level;

/// The bounds of the pause after a refresh.
const GAPS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// The bounds of the time between refreshes without a request: no server reports to a waiter that its slot has moved.
const REFRESH_EVERY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

/// The slot map of a fleet, and what keeps it up to date.
pub(in crate::store::redis) struct Routes {
    address: Address,
    map: Mutex<SlotMap>,
    /// Counts the changes of the map.
    changes: watch::Sender<u64>,
    /// Counts the refreshes.
    refreshes: watch::Sender<u64>,
    refresh_requested: Signal,
    reconnects: Signal,
    pub(super) discovery: Discovery,
    /// Whether channels belong to slots.
    pub(in crate::store::redis) sharded: bool,
}

impl Routes {
    /// Asks the fleet for its map, and refreshes it until `end`. Returns `None` for a single server.
    pub(in crate::store::redis) async fn start(
        address: &Address,
        reconnects: &Signal,
        end: &CancellationToken,
    ) -> Result<Option<Arc<Self>>> {
        if let Topology::Single = address.topology {
            return Ok(None);
        }
        let discovery = Discovery::default();
        let (map, sharded) = discovery.discover(address, &SlotMap::default()).await?;
        let routes = Arc::new(Self {
            address: address.clone(),
            map: Mutex::new(map),
            changes: watch::Sender::new(0),
            refreshes: watch::Sender::new(0),
            refresh_requested: Signal::new(),
            reconnects: reconnects.clone(),
            discovery,
            sharded: sharded && !address.plain_pubsub,
        });
        let kept = Arc::clone(&routes);
        let until = end.clone();
        tokio::spawn(async move {
            let keep =
                async { while caught("routes of a fleet", keep_map(&kept)).await.is_none() {} };
            until.run_until_cancelled(keep).await;
        });
        if let Topology::Sentinel(sentinels) = &address.topology {
            for sentinel in &sentinels.servers {
                tokio::spawn(watch_sentinel(
                    Arc::clone(&routes),
                    sentinels.clone(),
                    sentinel.clone(),
                    end.clone(),
                ));
            }
        }
        Ok(Some(routes))
    }

    pub(in crate::store::redis) fn is_cluster(&self) -> bool {
        matches!(self.address.topology, Topology::Cluster(_))
    }

    pub(in crate::store::redis) fn owner(&self, slot: u16) -> Option<Server> {
        self.map.lock().owner(slot).cloned()
    }

    /// Returns the index of the slot's server among all.
    pub(in crate::store::redis) fn shard(&self, slot: u16) -> usize {
        self.map.lock().index(slot)
    }

    pub(in crate::store::redis) fn servers(&self) -> Vec<Server> {
        self.map.lock().servers.clone()
    }

    pub(in crate::store::redis) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Records that a server has redirected a slot to another.
    pub(in crate::store::redis) fn moved(&self, slot: u16, server: &Server) {
        if self.is_cluster() && self.owner(slot).as_ref() != Some(server) {
            let mut map = self.map.lock().clone();
            map.assign(slot.into()..=slot.into(), server);
            self.set(map);
        }
        self.request_refresh();
    }

    /// Requests a refresh, because the map may be wrong.
    pub(in crate::store::redis) fn request_refresh(&self) {
        self.refresh_requested.set();
    }

    /// Requests a refresh, and waits for it until `until`.
    pub(super) async fn refresh(&self, until: Instant) {
        let mut refreshes = self.refreshes.subscribe();
        self.request_refresh();
        let _ = timeout_at(until, refreshes.changed()).await;
    }

    fn set(&self, map: SlotMap) -> bool {
        let failed_over = {
            let mut current = self.map.lock();
            if *current == map {
                return false;
            }
            let news = map.has_new_primary(&current);
            *current = map;
            news
        };
        run_wakers(|| self.changes.send_modify(|changes| *changes += 1));
        if failed_over {
            Rare::RedisNewPrimary.reached();
            // Writes that the old primary did not replicate are lost, so all leases are verified.
            self.reconnects.set();
        }
        true
    }
}

/// Asks the fleet for its map when a refresh is requested, and from time to time.
async fn keep_map(routes: &Routes) {
    let interval = (routes.address.ttl / 3).clamp(REFRESH_EVERY.0, REFRESH_EVERY.1);
    let longest_gap = (routes.address.ttl / 20).clamp(GAPS.0, GAPS.1);
    let mut gap = GAPS.0;
    loop {
        tokio::select! {
            () = routes.refresh_requested.recv() => {}
            () = sleep(interval) => {}
        }
        let known = routes.map.lock().clone();
        let changed = match routes.discovery.discover(&routes.address, &known).await {
            Ok((map, _)) => routes.set(map),
            Err(error) => {
                trace::later(
                    Level::DEBUG,
                    || move || tracing::debug!(%error, "refresh of the slot map failed"),
                );
                false
            }
        };
        gap = if changed { GAPS.0 } else { (gap * 2).min(longest_gap) };
        run_wakers(|| routes.refreshes.send_modify(|refreshes| *refreshes += 1));
        sleep(gap).await;
    }
}

/// Connects to a sentinel and listens for new primaries.
async fn watch_sentinel(
    routes: Arc<Routes>,
    sentinels: Sentinels,
    sentinel: Server,
    end: CancellationToken,
) {
    let address = routes.address.of_sentinel(&sentinels, &sentinel);
    let attempt = address.attempt;
    loop {
        // This is not cancelled half way, which would leave a connection behind.
        let mut next = Subscription::connect(&address).await.ok();
        let mut before: Option<Subscription> = None;
        while let Some(mut connection) = next.take() {
            let mut successor = connection.successor(&address);
            let mut messages = connection.messages();
            let listen = async {
                let link = connection.link();
                let subscribed = timeout(attempt, link.subscribe("+switch-master", false)).await;
                if let Some(before) = before.take() {
                    before.close(attempt).await;
                }
                subscribed.ok()?.ok()?;
                tokio::select! {
                    () = connection.ended() => None,
                    _ = caught("sentinels", request_refreshes(&routes, &mut messages)) => None,
                    // It comes into use before the login of this one lapses.
                    successor = successor.made() => Some(successor),
                }
            };
            next = end.run_until_cancelled(listen).await.flatten();
            successor.abandon(attempt);
            match &next {
                // It hears of a failover until the next one does.
                Some(_) => before = Some(connection),
                None => connection.close(attempt).await,
            }
        }
        if let Some(before) = before {
            before.close(attempt).await;
        }
        tokio::select! {
            () = sleep(REFRESH_EVERY.0) => {}
            () = end.cancelled() => return,
        }
    }
}

/// Has the sentinels asked now and for each message, until the connection is lost.
async fn request_refreshes(routes: &Routes, messages: &mut Messages) {
    routes.request_refresh();
    while !matches!(messages.next().await, Heard::Nothing) {
        routes.request_refresh();
    }
}

#[cfg(test)]
impl Routes {
    /// Makes routes that are not kept up to date.
    pub(super) fn fixed(url: &str, map: SlotMap) -> Self {
        let t = Duration::from_secs(3);
        Self {
            address: Address::parse(url, &crate::store::connect::remote::Remote::default(), t, t)
                .unwrap(),
            map: Mutex::new(map),
            changes: watch::Sender::new(0),
            refreshes: watch::Sender::new(0),
            refresh_requested: Signal::new(),
            reconnects: Signal::new(),
            discovery: Discovery::default(),
            sharded: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn is_set(signal: &Signal) -> bool {
        timeout(Duration::ZERO, signal.recv()).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn slot_that_moved_is_known_at_once_and_the_fleet_is_asked() {
        let (a, b) = (Server::new("a", 1), Server::new("b", 2));
        let mut map = SlotMap::of_cluster();
        map.assign(0..=16383, &a);
        let routes = Routes::fixed("redis-cluster://a", map);
        assert!(routes.is_cluster());
        routes.moved(7, &a);
        assert_eq!(*routes.changes().borrow(), 0, "that was known");
        assert!(is_set(&routes.refresh_requested).await, "the server that redirected disagrees");
        routes.moved(7, &b);
        assert_eq!((routes.owner(7), routes.owner(8)), (Some(b.clone()), Some(a.clone())));
        assert_eq!((routes.shard(7), routes.shard(8)), (1, 0));
        assert_eq!((routes.servers(), *routes.changes().borrow()), (vec![a, b], 1));
        assert!(
            is_set(&routes.refresh_requested).await && !is_set(&routes.refresh_requested).await
        );
    }

    #[tokio::test(start_paused = true)]
    async fn under_sentinels_only_they_choose_the_primary() {
        let (a, b) = (Server::new("a", 1), Server::new("b", 2));
        let map = SlotMap::of_one(a.clone());
        let routes = Routes::fixed("redis-sentinel://s?sentinelServiceName=m", map);
        assert!(!routes.is_cluster());
        routes.moved(7, &b);
        assert_eq!((routes.owner(7), routes.servers()), (Some(a.clone()), vec![a]));
        assert!(is_set(&routes.refresh_requested).await);
    }

    /// Writes that the old primary did not replicate are lost. A slot that moves takes its keys along.
    #[tokio::test(start_paused = true)]
    async fn new_primary_has_all_leases_verified() {
        let (a, b) = (Server::new("a", 1), Server::new("b", 2));
        let mut map = SlotMap::of_cluster();
        map.assign(0..=16383, &a);
        map.assign(9..=9, &b);
        let routes = Routes::fixed("redis-cluster://a", map.clone());
        assert!(!routes.set(map.clone()), "nothing new");
        map.assign(8..=8, &b);
        assert!(routes.set(map.clone()));
        assert!(!is_set(&routes.reconnects).await);
        map.assign(8..=9, &Server::new("c", 3));
        assert!(routes.set(map));
        assert!(is_set(&routes.reconnects).await);
        assert_eq!(*routes.changes().borrow(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn refresh_waits_for_the_answer_but_not_forever() {
        let routes = Routes::fixed("redis-cluster://a", SlotMap::of_cluster());
        let start = Instant::now();
        let (moment, limit) = (Duration::from_millis(20), Duration::from_millis(50));
        let answer = async {
            routes.refresh_requested.recv().await;
            sleep(moment).await;
            routes.refreshes.send_modify(|refreshes| *refreshes += 1);
        };
        tokio::join!(routes.refresh(start + limit), answer);
        assert_eq!(start.elapsed(), moment);
        routes.refresh(start + limit).await;
        assert_eq!(start.elapsed(), limit);
    }
}
