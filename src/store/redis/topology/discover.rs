//! Asks the servers of a fleet for its slot map.
//!
//! A primary that its cluster has replaced, but that we still reach, reports the old map for as long as it is cut off. So
//! several servers are asked, most votes win each slot, and a server that refuses calls because its cluster is down
//! has no vote.

use super::pool::Pool;
use super::sentinels::{Succession, ask_sentinels};
use super::slot_map::SlotMap;
use super::survey::{Panel, keep_worst, none_reachable};
use crate::error::{Error, ErrorKind, Result};
use crate::store::redis::link::address::Address;
use crate::store::redis::link::errors::{Failure, classify};
use crate::store::redis::link::url::Topology;
use crate::util::reached::Rare;
use crate::util::sync::{Mutex, MutexGuard};
use fred::clients::Client;
use fred::interfaces::ClientLike;
use fred::types::config::Server;
use fred::types::{ClusterHash, CustomCommand, Value};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// The most nodes that are asked at a time.
const ASKED: usize = 8;
/// For how long a server has no vote after it refused a call because its cluster is down.
const DISTRUST: Duration = Duration::from_secs(10);
/// For how long it gets no calls: fred makes a new connection after each such refusal.
const REST: Duration = Duration::from_millis(250);

/// Asks a fleet, and remembers what matters for the next time.
#[derive(Default)]
pub(super) struct Discovery {
    panel: Panel,
    succession: Succession,
    /// The connections to the primaries.
    pool: OnceLock<Weak<Pool>>,
    /// When servers last reported that their cluster is down.
    distrusted: Mutex<HashMap<Server, Instant>>,
    /// Whether there are any of these.
    any_distrusted: AtomicBool,
}

impl Discovery {
    /// Asks over the connections of this pool from now on, unless another one was there before.
    pub(super) fn use_pool(&self, pool: &Arc<Pool>) {
        let _ = self.pool.set(Arc::downgrade(pool));
    }

    /// Records that the server refused a call because its cluster is down.
    pub(super) fn distrust(&self, server: &Server) {
        self.lock().insert(server.clone(), Instant::now());
        self.any_distrusted.store(true, Ordering::Release);
    }

    /// Returns whether it did so a moment ago.
    pub(super) fn is_resting(&self, server: &Server) -> bool {
        self.any_distrusted.load(Ordering::Acquire)
            && self.lock().get(server).is_some_and(|at| at.elapsed() < REST)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Server, Instant>> {
        self.distrusted.lock()
    }

    fn distrusted(&self) -> Vec<Server> {
        let mut distrusted = self.lock();
        distrusted.retain(|_, at| at.elapsed() < DISTRUST);
        self.any_distrusted.store(!distrusted.is_empty(), Ordering::Release);
        distrusted.keys().cloned().collect()
    }

    /// Returns the map, and whether the servers know sharded channels, which only the first call asks for.
    pub(super) async fn discover(
        &self,
        address: &Address,
        known: &SlotMap,
    ) -> Result<(SlotMap, bool)> {
        match &address.topology {
            Topology::Single => Err(Error::invalid("one server is no fleet")),
            Topology::Sentinel(sentinels) => {
                let Self { panel, succession, .. } = self;
                Ok((ask_sentinels(address, sentinels, known, panel, succession).await?, false))
            }
            Topology::Cluster(seeds) => self.ask_nodes(address, seeds, known).await,
        }
    }

    async fn ask_nodes(
        &self,
        address: &Address,
        seeds: &[Server],
        known: &SlotMap,
    ) -> Result<(SlotMap, bool)> {
        let mut worst = none_reachable();
        let distrusted = self.distrusted();
        let mut steps = query_order(known, seeds, &distrusted).into_iter().peekable();
        while let Some(nodes) = steps.next() {
            let ask = |node: Server| {
                let pool = self.pool.get().and_then(Weak::upgrade);
                let pool = pool.filter(|_| known.servers.contains(&node));
                ask_node(pool, address.of(&node), node)
            };
            // Other nodes can be asked. But a slow answer is better than that of a server without a vote.
            let limit = steps.peek().map(|next| match distrusted.contains(&next[0]) {
                true => address.attempt,
                false => address.attempt / 4,
            });
            let (found, error) = self.panel.ask(nodes, limit, ask).await;
            let sharded = found.iter().any(|(_, sharded)| *sharded);
            let maps: Vec<SlotMap> = found.into_iter().map(|(map, _)| map).collect();
            if let Some(map) = merge(maps, known) {
                // The addresses of a fleet may change all the time.
                let lists = [&map.servers[..], &map.replicas, seeds];
                self.panel.keep_only(|server| lists.iter().any(|list| list.contains(server)));
                return Ok((map, sharded));
            }
            keep_worst(&mut worst, error);
        }
        Err(worst)
    }
}

/// Returns the nodes to ask, step by step: those with connections, if none of them answers the others, and at last those
/// without a vote.
fn query_order(known: &SlotMap, seeds: &[Server], distrusted: &[Server]) -> Vec<Vec<Server>> {
    let mut steps: [Vec<Server>; 3] = Default::default();
    for (step, nodes) in [(0, &known.servers[..]), (1, seeds), (1, &known.replicas)] {
        for node in nodes {
            let step = if distrusted.contains(node) { 2 } else { step };
            if steps[step].len() < ASKED && !steps.iter().any(|nodes| nodes.contains(node)) {
                steps[step].push(node.clone());
            }
        }
    }
    steps.into_iter().filter(|nodes| !nodes.is_empty()).collect()
}

/// Assigns each slot to the server with most votes. If several have most, the known map decides, then the order of the
/// answers.
fn merge(mut maps: Vec<SlotMap>, known: &SlotMap) -> Option<SlotMap> {
    if maps.iter().all(|map| *map == maps[0]) {
        return maps.pop();
    }
    Rare::RedisOwnersDiffer.reached();
    let mut agreed = SlotMap::of_cluster();
    for slot in 0..SlotMap::SLOTS {
        let named: Vec<&Server> = maps.iter().filter_map(|map| map.owner(slot)).collect();
        let votes = |server: &Server| named.iter().filter(|named| **named == server).count();
        let worth = |server: &Server| (votes(server), known.owner(slot) == Some(server));
        // Of equals, `max_by_key` takes the last.
        if let Some(owner) = named.iter().rev().max_by_key(|server| worth(server)) {
            agreed.assign(slot.into()..=slot.into(), owner);
        }
    }
    agreed.replicas = maps.swap_remove(0).replicas;
    Some(agreed)
}

async fn ask_node(
    pool: Option<Arc<Pool>>,
    address: Address,
    node: Server,
) -> Result<(SlotMap, bool)> {
    let (slots, sharded) = match pool {
        Some(pool) => {
            let connection = pool.node(&node).await?;
            (ask(&connection.client(), "CLUSTER", "SLOTS").await, false)
        }
        None => {
            let client = address.client().await?.client;
            let slots = ask(&client, "CLUSTER", "SLOTS").await;
            let shards = ask(&client, "PUBSUB", "SHARDNUMSUB").await;
            let _ = timeout(address.attempt, client.quit()).await;
            // Without the permission, the refusal shows that the server knows the command.
            let sharded =
                shards.map_or_else(|error| error.details().starts_with("NOPERM"), |_| true);
            (slots, sharded)
        }
    };
    let slots = slots.map_err(|error| {
        if error.details().contains("cluster support disabled") {
            Error::invalid("the server is not part of a cluster; use redis:// for it")
        } else {
            classify(&error)
        }
    })?;
    let map = slot_map(slots, &node).filter(|map| !map.servers.is_empty());
    let map = map.ok_or_else(|| Error::new(ErrorKind::Unavailable, "the cluster has no slots"))?;
    Ok((map, sharded))
}

async fn ask(client: &Client, verb: &'static str, word: &'static str) -> Result<Value, Failure> {
    let command = CustomCommand::new_static(verb, ClusterHash::FirstKey, false);
    client.custom(command, vec![word]).await
}

/// Reads the reply to `CLUSTER SLOTS`: ranges, each with its primary and its replicas.
fn slot_map(reply: Value, asked: &Server) -> Option<SlotMap> {
    let mut map = SlotMap::of_cluster();
    for range in reply.into_array() {
        let mut parts = range.into_array().into_iter();
        let first = parts.next()?.as_usize()?;
        let last = parts.next()?.as_usize()?;
        let primary = server(parts.next()?, asked);
        if let Some(primary) = primary {
            map.assign(first..=last, &primary);
        }
        for replica in parts.filter_map(|part| server(part, asked)) {
            if !map.replicas.contains(&replica) {
                map.replicas.push(replica);
            }
        }
    }
    // Each node reports them in an order of its own.
    map.replicas.sort_by(|one, other| (&one.host, one.port).cmp(&(&other.host, other.port)));
    Some(map)
}

/// Reads a node: its address, its port, its id, and further properties in pairs. A node that does not know its own address
/// leaves it out. A node without a host name, where one is preferred, reports `?`. Returns `None` for a node that no longer
/// has an address, as one that was replaced by an empty server: its port is 0, and its slots are not served.
fn server(node: Value, asked: &Server) -> Option<Server> {
    let mut parts = node.into_array().into_iter();
    let host = parts.next()?.as_string().unwrap_or_default();
    let port = u16::try_from(parts.next()?.as_usize()?).ok().filter(|port| *port > 0)?;
    let host = match &*host {
        "" => asked.host.to_string(),
        "?" => {
            let more = parts.nth(1).map(Value::into_array).unwrap_or_default();
            let ip = more.chunks_exact(2).find(|pair| pair[0].as_str().as_deref() == Some("ip"));
            let ip = ip.and_then(|pair| pair[1].as_string()).filter(|ip| !ip.is_empty());
            ip.unwrap_or_else(|| asked.host.to_string())
        }
        _ => host,
    };
    Some(Server::new(host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(name: &str) -> Server {
        Server::new(name, 1)
    }

    #[test]
    fn few_are_asked_each_once_and_first_those_with_a_connection() {
        let mut known = SlotMap::of_one(server("a"));
        known.replicas = ["c", "d"].map(server).to_vec();
        let seeds = ["b", "a", "c"].map(server);
        let rest = ["b", "c", "d"].map(server).to_vec();
        assert_eq!(query_order(&known, &seeds, &[]), [vec![server("a")], rest]);
        // A distrusted server is asked last, also if it is the only one.
        let [ac, bd] = [["a", "c"], ["b", "d"]].map(|names| names.map(server).to_vec());
        assert_eq!(query_order(&known, &seeds, &ac), [bd, ac]);
        assert_eq!(
            query_order(&SlotMap::default(), &[server("a")], &[server("a")]),
            [[server("a")]]
        );
        let seeds: Vec<Server> = (0..ASKED + 3).map(|at| server(&format!("s{at}"))).collect();
        let asked = query_order(&SlotMap::default(), &seeds, &[]);
        assert_eq!((asked.len(), asked[0].len(), &asked[0][1]), (1, ASKED, &seeds[1]));
    }

    fn of_two(first: &str, second: &str) -> SlotMap {
        let mut map = SlotMap::of_cluster();
        map.assign(0..=9, &server(first));
        map.assign(10..=19, &server(second));
        map
    }

    #[test]
    fn most_votes_win_each_slot() {
        let (old, new) = (of_two("a", "b"), of_two("c", "b"));
        let owner = |maps: &[&SlotMap], known: &SlotMap| {
            let agreed = merge(maps.iter().map(|map| (*map).clone()).collect(), known).unwrap();
            [0, 10].map(|slot| agreed.owner(slot).unwrap().host.to_string())
        };
        // The one that was replaced answers first.
        assert_eq!(owner(&[&old, &new, &new], &old), ["c", "b"]);
        assert_eq!(owner(&[&new, &old, &new], &old), ["c", "b"]);
        assert_eq!(owner(&[&new, &old, &old], &new), ["a", "b"]);
        // Of equals the known one, whichever is first; else the first.
        assert_eq!(owner(&[&new, &old], &old), ["a", "b"]);
        assert_eq!(owner(&[&old, &new], &new), ["c", "b"]);
        assert_eq!(owner(&[&new, &old], &SlotMap::of_cluster()), ["c", "b"]);
        // A map without servers has no votes.
        assert_eq!(owner(&[&SlotMap::of_cluster(), &new], &old), ["c", "b"]);
        assert_eq!(merge(Vec::new(), &old), None);
    }

    #[tokio::test(start_paused = true)]
    async fn distrusted_server_rests_and_has_no_vote_for_a_while() {
        let (discovery, a) = (Discovery::default(), server("a"));
        assert!(!discovery.is_resting(&a) && discovery.distrusted().is_empty());
        discovery.distrust(&a);
        assert!(discovery.is_resting(&a) && !discovery.is_resting(&server("b")));
        tokio::time::sleep(REST).await;
        assert!(!discovery.is_resting(&a));
        assert_eq!(discovery.distrusted(), std::slice::from_ref(&a));
        tokio::time::sleep(DISTRUST).await;
        assert!(discovery.distrusted().is_empty());
    }

    #[test]
    fn slots_of_a_node_without_an_address_are_not_served() {
        let node = |host: &str, port: i64| Value::Array(vec![host.into(), port.into()]);
        let range = |first: i64, last: i64, nodes: &[Value]| {
            Value::Array([&[first.into(), last.into()], nodes].concat())
        };
        let gone = range(0, 9, &[node("", 0), node("c", 1)]);
        let reply = Value::Array(vec![gone, range(10, 19, &[node("b", 1)])]);
        let map = slot_map(reply, &Server::new("asked", 1)).unwrap();
        assert_eq!((map.owner(0), map.owner(10)), (None, Some(&server("b"))));
        assert_eq!((map.servers, map.replicas), (vec![server("b")], vec![server("c")]));
    }

    /// With `cluster-preferred-endpoint-type` and without, as Redis 7 reports them.
    #[test]
    fn node_is_where_it_says_or_where_it_was_asked() {
        let asked = Server::new("asked", 7000);
        let node = |host: &str, more: &[&str]| {
            let more =
                Value::Array(more.iter().map(|word| Value::String((*word).into())).collect());
            let parts = [Value::String(host.into()), 7001.into(), Value::String("id".into()), more];
            super::server(Value::Array(parts.to_vec()), &asked).unwrap()
        };
        assert_eq!(node("b", &[]), Server::new("b", 7001));
        assert_eq!(node("", &[]), Server::new("asked", 7001));
        assert_eq!(node("?", &["ip", "10.0.0.7"]), Server::new("10.0.0.7", 7001));
        assert_eq!(node("?", &["hostname", "", "ip", "10.0.0.7"]), Server::new("10.0.0.7", 7001));
        assert_eq!(node("?", &[]), Server::new("asked", 7001));
    }
}
