//! Asks the servers of a fleet who serves what.
//!
//! A primary that its cluster has replaced, but that we still reach, goes on telling the old map for as long as it
//! is cut off. So several are asked, each slot goes by the word of the most, and who refuses calls because its
//! cluster is down has no say.

use super::ask::{Panel, nobody, weigh};
use super::connect::Address;
use super::fleet::Fleet;
use super::link::sorted;
use super::routes::Map;
use super::scripts::Failure;
use super::sentinels::{Succession, ask_sentinels};
use super::url::Topology;
use crate::error::{Error, ErrorKind, Result};
use fred::clients::Client;
use fred::interfaces::ClientLike;
use fred::types::config::Server;
use fred::types::{ClusterHash, CustomCommand, Value};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// How many nodes are asked at a time.
const ASKED: usize = 8;
/// For how long a server has no say after it refused a call because its cluster is down.
const DOUBT: Duration = Duration::from_secs(10);
/// For how long it gets no more calls: the client library makes a new connection after each such refusal.
const REST: Duration = Duration::from_millis(250);

/// What is remembered between two times of asking.
#[derive(Default)]
pub(super) struct Inquiry {
    panel: Panel,
    succession: Succession,
    /// Has connections to the primaries.
    fleet: OnceLock<Weak<Fleet>>,
    /// When they said last that their cluster is down.
    doubted: Mutex<HashMap<Server, Instant>>,
    /// Whether there is any of these.
    doubts: AtomicBool,
}

impl Inquiry {
    /// Asks over the connections of this fleet from now on, unless another one was there before.
    pub(super) fn over(&self, fleet: &Arc<Fleet>) {
        let _ = self.fleet.set(Arc::downgrade(fleet));
    }

    /// The server refused a call because its cluster is down.
    pub(super) fn doubt(&self, server: &Server) {
        self.lock().insert(server.clone(), Instant::now());
        self.doubts.store(true, Ordering::Release);
    }

    /// Whether it did so a moment ago.
    pub(super) fn rests(&self, server: &Server) -> bool {
        self.doubts.load(Ordering::Acquire)
            && self.lock().get(server).is_some_and(|at| at.elapsed() < REST)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Server, Instant>> {
        self.doubted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn doubted(&self) -> Vec<Server> {
        let mut doubted = self.lock();
        doubted.retain(|_, at| at.elapsed() < DOUBT);
        self.doubts.store(!doubted.is_empty(), Ordering::Release);
        doubted.keys().cloned().collect()
    }

    /// The map, and whether the servers know sharded channels, which is asked for only at first.
    pub(super) async fn discover(&self, address: &Address, known: &Map) -> Result<(Map, bool)> {
        match &address.topology {
            Topology::Single => Err(Error::invalid("one server is no fleet")),
            Topology::Sentinel(sentinels) => {
                let memory = (&self.panel, &self.succession);
                Ok((ask_sentinels(address, sentinels, known, memory).await?, false))
            }
            Topology::Cluster(seeds) => self.ask_nodes(address, seeds, known).await,
        }
    }

    async fn ask_nodes(
        &self,
        address: &Address,
        seeds: &[Server],
        known: &Map,
    ) -> Result<(Map, bool)> {
        let mut worst = nobody();
        let steps = whom_to_ask(known, seeds, &self.doubted());
        let last = steps.len().saturating_sub(1);
        for (step, nodes) in steps.into_iter().enumerate() {
            let ask = |node: Server| {
                let fleet = self.fleet.get().and_then(Weak::upgrade);
                let fleet = fleet.filter(|_| known.servers.contains(&node));
                ask_node(fleet, address.of(&node), node)
            };
            // There are others that can be asked.
            let limit = (step < last).then(|| address.attempt / 4);
            let (found, error) = self.panel.ask(nodes, limit, ask).await;
            let sharded = found.iter().any(|(_, sharded)| *sharded);
            let maps: Vec<Map> = found.into_iter().map(|(map, _)| map).collect();
            if let Some(map) = agree(maps, known) {
                return Ok((map, sharded));
            }
            weigh(&mut worst, error);
        }
        Err(worst)
    }
}

/// Those with whom there are connections; if none of them answers, the others; and at last those without a say.
fn whom_to_ask(known: &Map, seeds: &[Server], doubted: &[Server]) -> Vec<Vec<Server>> {
    let mut steps: [Vec<Server>; 3] = Default::default();
    for (step, nodes) in [(0, &known.servers[..]), (1, seeds), (1, &known.replicas)] {
        for node in nodes {
            let step = if doubted.contains(node) { 2 } else { step };
            if steps[step].len() < ASKED && !steps.iter().any(|nodes| nodes.contains(node)) {
                steps[step].push(node.clone());
            }
        }
    }
    steps.into_iter().filter(|nodes| !nodes.is_empty()).collect()
}

/// Gives each slot to whom most name for it; of equals to whom the map names, and then to who was named first.
fn agree(mut maps: Vec<Map>, known: &Map) -> Option<Map> {
    if maps.iter().all(|map| *map == maps[0]) {
        return maps.pop();
    }
    let mut agreed = Map::of_a_cluster();
    for slot in 0..Map::SLOTS {
        let named: Vec<&Server> = maps.iter().filter_map(|map| map.owner(slot)).collect();
        let votes = |server: &Server| named.iter().filter(|named| **named == server).count();
        let worth = |server: &Server| (votes(server), known.owner(slot) == Some(server));
        // Of equals, this is the last.
        if let Some(owner) = named.iter().rev().max_by_key(|server| worth(server)) {
            agreed.give(slot.into()..=slot.into(), owner);
        }
    }
    agreed.replicas = maps.swap_remove(0).replicas;
    Some(agreed)
}

async fn ask_node(
    fleet: Option<Arc<Fleet>>,
    address: Address,
    node: Server,
) -> Result<(Map, bool)> {
    let (slots, sharded) = match fleet {
        Some(fleet) => {
            let connection = fleet.node(&node).await?;
            (ask(connection.client(), "CLUSTER", "SLOTS").await, false)
        }
        None => {
            let client = address.client().await?;
            let slots = ask(&client, "CLUSTER", "SLOTS").await;
            let shards = ask(&client, "PUBSUB", "SHARDNUMSUB").await;
            let _ = timeout(address.attempt, client.quit()).await;
            // Without the right to ask, the refusal tells that the command is known.
            let sharded =
                shards.map_or_else(|error| error.details().starts_with("NOPERM"), |_| true);
            (slots, sharded)
        }
    };
    let slots = slots.map_err(|error| {
        if error.details().contains("cluster support disabled") {
            Error::invalid("the server is not part of a cluster; use redis:// for it")
        } else {
            sorted(&error)
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
fn slot_map(reply: Value, asked: &Server) -> Option<Map> {
    let mut map = Map::of_a_cluster();
    for range in reply.into_array() {
        let mut parts = range.into_array().into_iter();
        let (first, last) = (parts.next()?.as_usize()?, parts.next()?.as_usize()?);
        map.give(first..=last, &server(parts.next()?, asked)?);
        for replica in parts.filter_map(|part| server(part, asked)) {
            if !map.replicas.contains(&replica) {
                map.replicas.push(replica);
            }
        }
    }
    // Each node has an order of its own.
    map.replicas.sort_by(|one, other| (&one.host, one.port).cmp(&(&other.host, other.port)));
    Some(map)
}

/// A node: where it is to be reached, its port, its id, and what else is known of it in pairs. One that does not know
/// its own address leaves it out, and one that was to have a host name and has none is called `?`.
fn server(node: Value, asked: &Server) -> Option<Server> {
    let mut parts = node.into_array().into_iter();
    let host = parts.next()?.as_string().unwrap_or_default();
    let port = u16::try_from(parts.next()?.as_usize()?).ok()?;
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
    fn a_few_are_asked_each_once_and_first_those_with_a_connection() {
        let mut known = Map::of_one(server("a"));
        known.replicas = ["c", "d"].map(server).to_vec();
        let seeds = ["b", "a", "c"].map(server);
        let rest = ["b", "c", "d"].map(server).to_vec();
        assert_eq!(whom_to_ask(&known, &seeds, &[]), [vec![server("a")], rest]);
        // Whoever is in doubt is asked last, also where it is the only one.
        let [ac, bd] = [["a", "c"], ["b", "d"]].map(|names| names.map(server).to_vec());
        assert_eq!(whom_to_ask(&known, &seeds, &ac), [bd, ac]);
        assert_eq!(whom_to_ask(&Map::default(), &[server("a")], &[server("a")]), [[server("a")]]);
        let seeds: Vec<Server> = (0..ASKED + 3).map(|at| server(&format!("s{at}"))).collect();
        let asked = whom_to_ask(&Map::default(), &seeds, &[]);
        assert_eq!((asked.len(), asked[0].len(), &asked[0][1]), (1, ASKED, &seeds[1]));
    }

    fn of_two(first: &str, second: &str) -> Map {
        let mut map = Map::of_a_cluster();
        map.give(0..=9, &server(first));
        map.give(10..=19, &server(second));
        map
    }

    #[test]
    fn each_slot_goes_by_the_word_of_the_most() {
        let (old, new) = (of_two("a", "b"), of_two("c", "b"));
        let owner = |maps: &[&Map], known: &Map| {
            let agreed = agree(maps.iter().map(|map| (*map).clone()).collect(), known).unwrap();
            [0, 10].map(|slot| agreed.owner(slot).unwrap().host.to_string())
        };
        // The one that was replaced answers first.
        assert_eq!(owner(&[&old, &new, &new], &old), ["c", "b"]);
        assert_eq!(owner(&[&new, &old, &new], &old), ["c", "b"]);
        assert_eq!(owner(&[&new, &old, &old], &new), ["a", "b"]);
        // Of equals what is known, whoever is first; else the first.
        assert_eq!(owner(&[&new, &old], &old), ["a", "b"]);
        assert_eq!(owner(&[&old, &new], &new), ["c", "b"]);
        assert_eq!(owner(&[&new, &old], &Map::of_a_cluster()), ["c", "b"]);
        // Who serves nothing names nobody.
        assert_eq!(owner(&[&Map::of_a_cluster(), &new], &old), ["c", "b"]);
        assert_eq!(agree(Vec::new(), &old), None);
    }

    #[tokio::test(start_paused = true)]
    async fn server_in_doubt_rests_and_has_no_say_for_a_while() {
        let (inquiry, a) = (Inquiry::default(), server("a"));
        assert!(!inquiry.rests(&a) && inquiry.doubted().is_empty());
        inquiry.doubt(&a);
        assert!(inquiry.rests(&a) && !inquiry.rests(&server("b")));
        tokio::time::sleep(REST).await;
        assert!(!inquiry.rests(&a));
        assert_eq!(inquiry.doubted(), std::slice::from_ref(&a));
        tokio::time::sleep(DOUBT).await;
        assert!(inquiry.doubted().is_empty());
    }

    /// With `cluster-preferred-endpoint-type` and without, as Redis 7 tells them.
    #[test]
    fn a_node_is_where_it_says_or_where_it_was_asked() {
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
