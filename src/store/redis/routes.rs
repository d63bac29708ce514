//! Which server of a fleet has which slot, and whom to ask when that has changed.
//!
//! A fleet is a cluster, or a primary with its replicas under sentinels, which is a cluster of one shard
//! here. Every server has connections of its own, so that one that is down holds up no other.

use super::connect::Address;
use super::discover::Inquiry;
use super::url::{Sentinels, Topology};
use crate::error::Result;
use crate::store::Signal;
use crate::trace;
use fred::clients::SubscriberClient;
use fred::interfaces::{ClientLike, EventInterface, PubsubInterface};
use fred::types::config::Server;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::Level;

/// Between two times of asking.
const GAPS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// How often the fleet is asked although nobody wants it: nobody tells a waiter that its slot has moved.
const ROUNDS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
const NOBODY: u16 = u16::MAX;

/// Who serves what, as the fleet told it last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Map {
    /// The primaries.
    pub(super) servers: Vec<Server>,
    /// An index into `servers` for each slot; empty if one serves all.
    slots: Vec<u16>,
    /// Servers that can be asked, too.
    pub(super) replicas: Vec<Server>,
}

impl Map {
    /// How many slots a cluster has.
    pub(super) const SLOTS: u16 = 16384;

    pub(super) fn of_one(server: Server) -> Self {
        Self { servers: vec![server], ..Self::default() }
    }

    pub(super) fn of_a_cluster() -> Self {
        Self { slots: vec![NOBODY; Self::SLOTS.into()], ..Self::default() }
    }

    /// Gives slots to a server.
    pub(super) fn give(&mut self, slots: std::ops::RangeInclusive<usize>, server: &Server) {
        let known = self.servers.iter().position(|known| known == server);
        let index = known.unwrap_or_else(|| {
            self.servers.push(server.clone());
            self.servers.len() - 1
        });
        if let Some(slots) = self.slots.get_mut(slots) {
            slots.fill(u16::try_from(index).unwrap_or(NOBODY));
        }
    }

    pub(super) fn owner(&self, slot: u16) -> Option<&Server> {
        self.servers.get(self.index(slot))
    }

    fn index(&self, slot: u16) -> usize {
        self.slots.get(usize::from(slot)).copied().unwrap_or_default().into()
    }

    /// Whether it names a primary that `other` does not.
    fn has_news_for(&self, other: &Self) -> bool {
        self.servers.iter().any(|server| !other.servers.contains(server))
    }
}

pub(super) struct Routes {
    address: Address,
    map: RwLock<Map>,
    /// Counts the changes of the map.
    changes: watch::Sender<u64>,
    /// Counts how often the fleet was asked.
    rounds: watch::Sender<u64>,
    wanted: Signal,
    reconnects: Signal,
    pub(super) inquiry: Inquiry,
    /// Whether channels belong to slots.
    pub(super) sharded: bool,
}

impl Routes {
    /// Asks the fleet, and goes on asking it until `end`; `None` if there is only one server.
    pub(super) async fn start(
        address: &Address,
        reconnects: &Signal,
        end: &CancellationToken,
    ) -> Result<Option<Arc<Self>>> {
        if let Topology::Single = address.topology {
            return Ok(None);
        }
        let inquiry = Inquiry::default();
        let (map, sharded) = inquiry.discover(address, &Map::default()).await?;
        let routes = Arc::new(Self {
            address: address.clone(),
            map: RwLock::new(map),
            changes: watch::Sender::new(0),
            rounds: watch::Sender::new(0),
            wanted: Signal::new(),
            reconnects: reconnects.clone(),
            inquiry,
            sharded: sharded && !address.plain_pubsub,
        });
        tokio::spawn(until(end.clone(), keep(Arc::clone(&routes))));
        if let Topology::Sentinel(sentinels) = &address.topology {
            for sentinel in &sentinels.servers {
                tokio::spawn(watch(
                    Arc::clone(&routes),
                    sentinels.clone(),
                    sentinel.clone(),
                    end.clone(),
                ));
            }
        }
        Ok(Some(routes))
    }

    pub(super) fn is_cluster(&self) -> bool {
        matches!(self.address.topology, Topology::Cluster(_))
    }

    pub(super) fn owner(&self, slot: u16) -> Option<Server> {
        self.read().owner(slot).cloned()
    }

    /// The place of the slot's server among all.
    pub(super) fn shard(&self, slot: u16) -> usize {
        self.read().index(slot)
    }

    pub(super) fn servers(&self) -> Vec<Server> {
        self.read().servers.clone()
    }

    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// A server told that another has the slot.
    pub(super) fn moved(&self, slot: u16, server: &Server) {
        if self.is_cluster() && self.owner(slot).as_ref() != Some(server) {
            let mut map = self.read().clone();
            map.give(slot.into()..=slot.into(), server);
            self.set(map);
        }
        self.want();
    }

    /// The map may be wrong: the fleet is to be asked.
    pub(super) fn want(&self) {
        self.wanted.set();
    }

    /// Has the fleet asked, and waits for the answer.
    pub(super) async fn refresh(&self, until: Instant) {
        let mut rounds = self.rounds.subscribe();
        self.want();
        let _ = timeout_at(until, rounds.changed()).await;
    }

    fn set(&self, map: Map) -> bool {
        let failed_over = {
            let mut current = self.map.write().unwrap_or_else(PoisonError::into_inner);
            if *current == map {
                return false;
            }
            let news = map.has_news_for(&current);
            *current = map;
            news
        };
        self.changes.send_modify(|changes| *changes += 1);
        if failed_over {
            // What the server before did not pass on is lost: all leases are verified.
            self.reconnects.set();
        }
        true
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Map> {
        self.map.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Asks the fleet when somebody wants it.
async fn keep(routes: Arc<Routes>) {
    let round = (routes.address.ttl / 3).clamp(ROUNDS.0, ROUNDS.1);
    let longest_gap = (routes.address.ttl / 20).clamp(GAPS.0, GAPS.1);
    let mut gap = GAPS.0;
    loop {
        tokio::select! {
            () = routes.wanted.recv() => {}
            () = sleep(round) => {}
        }
        let known = routes.read().clone();
        let changed = match routes.inquiry.discover(&routes.address, &known).await {
            Ok((map, _)) => routes.set(map),
            Err(error) => {
                trace::later(
                    Level::DEBUG,
                    || move || tracing::debug!(%error, "nobody tells who serves what"),
                );
                false
            }
        };
        gap = if changed { GAPS.0 } else { (gap * 2).min(longest_gap) };
        routes.rounds.send_modify(|rounds| *rounds += 1);
        sleep(gap).await;
    }
}

/// Listens to a sentinel for a new primary.
async fn watch(
    routes: Arc<Routes>,
    sentinels: Sentinels,
    sentinel: Server,
    end: CancellationToken,
) {
    let address = routes.address.of_sentinel(&sentinels, &sentinel);
    loop {
        // Not given up half way, which would leave a connection behind.
        if let Ok(client) = address.subscriber().await {
            until(end.clone(), listen(&routes, &client, address.attempt)).await;
            let _ = timeout(address.attempt, client.quit()).await;
        }
        tokio::select! {
            () = sleep(ROUNDS.0) => {}
            () = end.cancelled() => return,
        }
    }
}

async fn listen(routes: &Routes, client: &SubscriberClient, attempt: Duration) {
    let (mut messages, mut reconnects) = (client.message_rx(), client.reconnect_rx());
    loop {
        let subscribed = timeout(attempt, client.subscribe("+switch-master")).await;
        if !matches!(subscribed, Ok(Ok(()))) {
            return;
        }
        routes.want();
        loop {
            tokio::select! {
                message = messages.recv() => match message {
                    Err(tokio::sync::broadcast::error::RecvError::Closed) => return,
                    _ => routes.want(),
                },
                _ = reconnects.recv() => break,
            }
        }
    }
}

async fn until(end: CancellationToken, work: impl Future<Output = ()>) {
    tokio::select! {
        () = end.cancelled() => {}
        () = work => {}
    }
}

#[cfg(test)]
impl Routes {
    /// Routes that nobody keeps up to date.
    pub(super) fn fixed(url: &str, map: Map) -> Self {
        let t = Duration::from_secs(3);
        Self {
            address: Address::parse(url, "", t, t).unwrap(),
            map: RwLock::new(map),
            changes: watch::Sender::new(0),
            rounds: watch::Sender::new(0),
            wanted: Signal::new(),
            reconnects: Signal::new(),
            inquiry: Inquiry::default(),
            sharded: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_tells_who_has_a_slot() {
        let (a, b) = (Server::new("a", 1), Server::new("b", 2));
        let mut map = Map::of_a_cluster();
        map.give(0..=9, &a);
        map.give(10..=16383, &b);
        assert_eq!((map.owner(9), map.owner(10)), (Some(&a), Some(&b)));
        map.give(10..=10, &a);
        assert_eq!((map.owner(10), map.owner(11)), (Some(&a), Some(&b)));
        assert_eq!(Map::of_a_cluster().owner(5), None);
        assert_eq!(Map::of_one(b.clone()).owner(16383), Some(&b));
    }

    #[test]
    fn only_a_new_primary_is_a_failover() {
        let (a, b) = (Server::new("a", 1), Server::new("b", 2));
        let mut before = Map::of_a_cluster();
        before.give(0..=9, &a);
        before.give(10..=19, &b);
        let mut moved = before.clone();
        moved.give(5..=5, &b);
        assert!(!moved.has_news_for(&before));
        let mut failed_over = before.clone();
        failed_over.give(0..=9, &Server::new("c", 3));
        assert!(failed_over.has_news_for(&before));
    }
    async fn told(signal: &Signal) -> bool {
        timeout(Duration::ZERO, signal.recv()).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn a_slot_that_moved_is_known_at_once_and_the_fleet_is_asked() {
        let (a, b) = (Server::new("a", 1), Server::new("b", 2));
        let mut map = Map::of_a_cluster();
        map.give(0..=16383, &a);
        let routes = Routes::fixed("redis-cluster://a", map);
        assert!(routes.is_cluster());
        routes.moved(7, &a);
        assert_eq!(*routes.changes().borrow(), 0, "that was known");
        assert!(told(&routes.wanted).await, "who told it thinks otherwise");
        routes.moved(7, &b);
        assert_eq!((routes.owner(7), routes.owner(8)), (Some(b.clone()), Some(a.clone())));
        assert_eq!((routes.shard(7), routes.shard(8)), (1, 0));
        assert_eq!((routes.servers(), *routes.changes().borrow()), (vec![a, b], 1));
        assert!(told(&routes.wanted).await && !told(&routes.wanted).await);
    }

    #[tokio::test(start_paused = true)]
    async fn under_sentinels_only_they_tell_who_is_the_primary() {
        let (a, b) = (Server::new("a", 1), Server::new("b", 2));
        let map = Map::of_one(a.clone());
        let routes = Routes::fixed("redis-sentinel://s?sentinelServiceName=m", map);
        assert!(!routes.is_cluster());
        routes.moved(7, &b);
        assert_eq!((routes.owner(7), routes.servers()), (Some(a.clone()), vec![a]));
        assert!(told(&routes.wanted).await);
    }

    /// What the old primary did not pass on is lost, so all is looked at; a slot that moves takes its keys along.
    #[tokio::test(start_paused = true)]
    async fn a_new_primary_has_all_leases_verified() {
        let (a, b) = (Server::new("a", 1), Server::new("b", 2));
        let mut map = Map::of_a_cluster();
        map.give(0..=16383, &a);
        map.give(9..=9, &b);
        let routes = Routes::fixed("redis-cluster://a", map.clone());
        assert!(!routes.set(map.clone()), "nothing new");
        map.give(8..=8, &b);
        assert!(routes.set(map.clone()));
        assert!(!told(&routes.reconnects).await);
        map.give(8..=9, &Server::new("c", 3));
        assert!(routes.set(map));
        assert!(told(&routes.reconnects).await);
        assert_eq!(*routes.changes().borrow(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refresh_waits_for_the_answer_but_not_for_ever() {
        let routes = Routes::fixed("redis-cluster://a", Map::of_a_cluster());
        let start = Instant::now();
        let (moment, limit) = (Duration::from_millis(20), Duration::from_millis(50));
        let answer = async {
            routes.wanted.recv().await;
            sleep(moment).await;
            routes.rounds.send_modify(|rounds| *rounds += 1);
        };
        tokio::join!(routes.refresh(start + limit), answer);
        assert_eq!(start.elapsed(), moment);
        routes.refresh(start + limit).await;
        assert_eq!(start.elapsed(), limit);
    }

    #[tokio::test(start_paused = true)]
    async fn work_goes_on_until_its_end() {
        let end = CancellationToken::new();
        let start = Instant::now();
        until(end.clone(), sleep(Duration::from_secs(1))).await;
        assert_eq!(start.elapsed(), Duration::from_secs(1));
        end.cancel();
        until(end, std::future::pending()).await;
    }
}
