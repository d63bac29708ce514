//! Asks the servers of a fleet who serves what, over connections of a moment.

use super::connect::Address;
use super::link::sorted;
use super::routes::Map;
use super::scripts::Failure;
use super::url::{Sentinels, Topology};
use crate::error::{Error, ErrorKind, Result};
use fred::interfaces::ClientLike;
use fred::types::config::Server;
use fred::types::{ClusterHash, CustomCommand, Value};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

/// How many nodes are asked at a time.
const ASKED: usize = 8;
/// How long the other sentinels may take once one has answered.
const PATIENCE: Duration = Duration::from_millis(200);

/// The map, and whether the servers know sharded channels.
pub(super) async fn discover(address: &Address, known: &Map) -> Result<(Map, bool)> {
    match &address.topology {
        Topology::Single => Err(Error::invalid("one server is no fleet")),
        Topology::Sentinel(sentinels) => Ok((ask_sentinels(address, sentinels).await?, false)),
        Topology::Cluster(seeds) => ask_nodes(address, seeds, known).await,
    }
}

/// The first answer counts: what is wrong in it, the nodes themselves put right.
async fn ask_nodes(address: &Address, seeds: &[Server], known: &Map) -> Result<(Map, bool)> {
    let (sender, mut answers) = mpsc::unbounded_channel();
    for node in whom_to_ask(known, seeds) {
        let (address, sender) = (address.of(&node), sender.clone());
        // To its end, whoever is first: an abandoned client would keep its connection.
        tokio::spawn(async move {
            let _ = sender.send(ask_node(&address, &node).await);
        });
    }
    drop(sender);
    let mut worst = nobody();
    while let Some(answer) = answers.recv().await {
        match answer {
            Ok(answer) => return Ok(answer),
            Err(error) => weigh(&mut worst, error),
        }
    }
    Err(worst)
}

/// Primaries first, then what the URL names.
fn whom_to_ask(known: &Map, seeds: &[Server]) -> Vec<Server> {
    let mut nodes: Vec<Server> = Vec::with_capacity(ASKED);
    for node in known.servers.iter().chain(seeds).chain(&known.replicas) {
        if nodes.len() < ASKED && !nodes.contains(node) {
            nodes.push(node.clone());
        }
    }
    nodes
}

/// What somebody says who was reached tells more than that another was not.
fn weigh(worst: &mut Error, error: Error) {
    if !error.is_unavailable() || worst.is_unavailable() {
        *worst = error;
    }
}

async fn ask_node(address: &Address, node: &Server) -> Result<(Map, bool)> {
    let client = address.client().await?;
    let ask = async |verb, word: &'static str| {
        let command = CustomCommand::new_static(verb, ClusterHash::FirstKey, false);
        client.custom::<Value, _>(command, vec![word]).await
    };
    let slots = ask("CLUSTER", "SLOTS").await;
    let shards: Result<Value, Failure> = ask("PUBSUB", "SHARDNUMSUB").await;
    let _ = timeout(address.attempt, client.quit()).await;
    let slots = slots.map_err(|error| {
        if error.details().contains("cluster support disabled") {
            Error::invalid("the server is not part of a cluster; use redis:// for it")
        } else {
            sorted(&error)
        }
    })?;
    // Without the right to ask, the refusal tells that the command is known.
    let sharded = shards.map_or_else(|error| error.details().starts_with("NOPERM"), |_| true);
    let map = slot_map(slots, node).filter(|map| !map.servers.is_empty());
    let map = map.ok_or_else(|| Error::new(ErrorKind::Unavailable, "the cluster has no slots"))?;
    Ok((map, sharded))
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
    Some(map)
}

/// A node that does not know its own address leaves it out.
fn server(node: Value, asked: &Server) -> Option<Server> {
    let mut parts = node.into_array().into_iter();
    let host = parts.next()?.as_string().unwrap_or_default();
    let port = parts.next()?.as_usize()?;
    let host = if host.is_empty() { asked.host.to_string() } else { host };
    Some(Server::new(host, u16::try_from(port).ok()?))
}

/// Of all answers the newest counts: a sentinel that was cut off may still name the old primary.
async fn ask_sentinels(address: &Address, sentinels: &Sentinels) -> Result<Map> {
    let (sender, mut answers) = mpsc::unbounded_channel();
    for sentinel in &sentinels.servers {
        let sender = sender.clone();
        let (address, service) =
            (address.of_sentinel(sentinels, sentinel), sentinels.service.clone());
        tokio::spawn(async move {
            let _ = sender.send(ask_sentinel(&address, service).await);
        });
    }
    drop(sender);
    let mut newest = None;
    let mut worst = nobody();
    loop {
        let answer = tokio::select! {
            answer = answers.recv() => answer,
            () = sleep(PATIENCE), if newest.is_some() => None,
        };
        match answer {
            None => break,
            Some(Ok(found)) => prefer(&mut newest, found),
            Some(Err(error)) => weigh(&mut worst, error),
        }
    }
    newest.map(|(_, server)| Map::of_one(server)).ok_or(worst)
}

/// A primary, and in which epoch of the sentinels it became so.
type Named = (usize, Server);

fn prefer(newest: &mut Option<Named>, found: Named) {
    if newest.as_ref().is_none_or(|(epoch, _)| found.0 > *epoch) {
        *newest = Some(found);
    }
}

async fn ask_sentinel(address: &Address, service: String) -> Result<Named> {
    let client = address.client().await?;
    let command = CustomCommand::new_static("SENTINEL", ClusterHash::FirstKey, false);
    let words = vec!["MASTER".to_owned(), service];
    let reply: Result<Value, Failure> = client.custom(command, words).await;
    let _ = timeout(address.attempt, client.quit()).await;
    let reply = reply.map_err(|error| {
        if error.details().contains("No such master") {
            Error::invalid("the sentinels know no primary by the name of sentinelServiceName")
        } else {
            sorted(&error)
        }
    })?;
    primary(reply)
        .ok_or_else(|| Error::invalid("a sentinel's reply makes no sense; is it a Redis Sentinel?"))
}

fn primary(reply: Value) -> Option<(usize, Server)> {
    let fields: Vec<String> =
        reply.into_array().iter().map(|field| field.as_string().unwrap_or_default()).collect();
    let field = |name: &str| {
        fields.chunks_exact(2).find(|pair| pair[0] == name).map(|pair| pair[1].as_str())
    };
    let server = Server::new(field("ip")?, field("port")?.parse().ok()?);
    Some((field("config-epoch")?.parse().ok()?, server))
}

fn nobody() -> Error {
    Error::new(ErrorKind::Unavailable, "none of the servers in the URL answers")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(name: &str) -> Server {
        Server::new(name, 1)
    }

    #[test]
    fn of_several_errors_the_word_of_who_was_reached_is_told() {
        use ErrorKind::{Denied, Rejected, Unavailable};
        for (kinds, told) in [
            (&[Unavailable][..], Unavailable),
            (&[Denied, Unavailable], Denied),
            (&[Unavailable, Denied, Unavailable], Denied),
            (&[Denied, Rejected], Rejected),
        ] {
            let mut worst = nobody();
            for kind in kinds {
                weigh(&mut worst, Error::new(*kind, "no"));
            }
            assert_eq!(worst.kind(), told, "{kinds:?}");
            assert!(worst.to_string().contains("no"), "{worst}");
        }
        let mut worst = nobody();
        weigh(&mut worst, Error::new(Unavailable, "out of order"));
        assert!(worst.to_string().contains("out of order"), "{worst}");
    }

    #[test]
    fn the_primary_of_the_newest_epoch_counts_and_of_these_the_first() {
        let mut newest = None;
        for (epoch, name) in [(3, "a"), (2, "b"), (3, "c"), (5, "d"), (4, "e")] {
            prefer(&mut newest, (epoch, server(name)));
            let expected = if epoch < 4 { "a" } else { "d" };
            assert_eq!(newest.as_ref().map(|(_, server)| &*server.host), Some(expected));
        }
    }

    #[test]
    fn a_few_are_asked_each_once() {
        let known = Map::of_one(server("a"));
        let seeds = ["b", "a", "c"].map(server);
        assert_eq!(whom_to_ask(&known, &seeds), ["a", "b", "c"].map(server));
        let seeds: Vec<Server> = (0..ASKED + 3).map(|at| server(&format!("s{at}"))).collect();
        let asked = whom_to_ask(&known, &seeds);
        assert_eq!((asked.len(), &asked[1]), (ASKED, &seeds[0]));
    }
}
