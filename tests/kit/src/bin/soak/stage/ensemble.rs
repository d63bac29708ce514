//! Three ZooKeeper servers that see each other.

use super::{Harm, Key, Servers, Strike, main_key};
use crate::faults::ServerKind;
use crate::line::Line;
use kit::topology::until;
use kit::zookeeper::{Look, ZooKeeper, directory};
use std::future::Future;
use std::io;
use std::thread;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;
use zookeeper_client::Error;

pub const PEERS: usize = 3;

pub struct Ensemble {
    peers: ZooKeeper,
}

impl Ensemble {
    pub fn three() -> Vec<Box<dyn Servers>> {
        vec![Box::new(Self { peers: ZooKeeper::ensemble() })]
    }

    fn leader(&self) -> usize {
        let mut leader = None;
        let leads = |peer: &usize| self.peers.mode(*peer).as_deref() == Some("leader");
        until("a leader", || {
            leader = (0..PEERS).find(leads);
            leader.is_some()
        });
        leader.unwrap_or_default()
    }

    fn crash(&self, peers: &[usize], lasts: Duration) {
        peers.iter().for_each(|peer| self.peers.kill(*peer));
        thread::sleep(lasts);
        peers.iter().for_each(|peer| self.peers.launch(*peer));
    }

    fn freeze(&self, peers: &[usize], lasts: Duration) {
        peers.iter().for_each(|peer| self.peers.freeze(*peer));
        thread::sleep(lasts);
        peers.iter().for_each(|peer| self.peers.thaw(*peer));
    }

    /// Looks once at any of them, with a session of its own.
    fn once<T, F: Future<Output = Result<T, Error>>>(
        &self,
        look: impl FnOnce(Look) -> F,
    ) -> Result<T, String> {
        once_at(&self.peers.hosts(), look)
    }
}

impl Servers for Ensemble {
    fn lines(&self) -> Vec<Line> {
        (0..PEERS).map(|peer| Line::to_zookeeper(self.peers.port(peer))).collect()
    }

    fn url(&self, ports: &[u16]) -> String {
        let hosts: Vec<_> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        format!("zookeeper://{}", hosts.join(","))
    }

    fn strike(&self, fault: Strike<'_>) -> Harm {
        let Strike { kind, at, lasts, names } = fault;
        let leader = self.leader();
        let follower = (leader + 1 + at % (PEERS - 1)) % PEERS;
        let majority: Vec<usize> = (0..PEERS).filter(|peer| *peer != at).collect();
        let mut harm = Harm::default();
        match kind {
            ServerKind::CrashPrimary => self.crash(&[leader], lasts),
            ServerKind::CrashReplica => self.crash(&[follower], lasts),
            ServerKind::CrashMajority => self.crash(&majority, lasts),
            ServerKind::FreezePrimary => self.freeze(&[leader], lasts),
            ServerKind::FreezeReplica => self.freeze(&[follower], lasts),
            ServerKind::FreezeMajority => self.freeze(&majority, lasts),
            ServerKind::Delete => {
                let name = names[at].clone();
                let deleted = self.once(async |look| {
                    // The second is a waiter's, mostly, which finds out when the first is gone.
                    for node in queue(&look.0, &name).await?.iter().take(2).rev() {
                        match look.0.delete(node, None).await {
                            // Its owner was quicker.
                            Ok(()) | Err(Error::NoNode) => {}
                            Err(error) => return Err(error),
                        }
                    }
                    Ok(())
                });
                if let Err(error) = deleted {
                    eprintln!("{name}: {error}");
                }
                harm.wiped.push(name);
            }
            _ => eprintln!("{kind:?} is no fault of an ensemble"),
        }
        if !self.peers.wait_for(&[0, 1, 2]) {
            eprintln!("a member has ended: {kind:?}");
        }
        harm
    }

    fn looker<'a>(&'a self, names: &'a [String]) -> Box<dyn FnMut() -> io::Result<Vec<Key>> + 'a> {
        /// To connect, and to look.
        const PATIENCE: Duration = Duration::from_secs(1);
        let runtime = runtime();
        let hosts = self.peers.hosts();
        let mut client = None;
        Box::new(move || {
            let runtime = runtime.as_ref().map_err(|error| io::Error::other(error.to_string()))?;
            let looking = async {
                let session = match client.take() {
                    Some(session) => session,
                    None => zookeeper_client::Client::connect(&hosts).await?,
                };
                let mut keys = Vec::new();
                for name in names {
                    if let Some((_, token)) = first(&session, name).await? {
                        keys.push(Key { name: main_key(name), ttl: 0, tokens: vec![token] });
                    }
                }
                client = Some(session);
                Ok::<_, Error>(keys)
            };
            // A time limit begins on a runtime.
            let looked = runtime.block_on(async { timeout(PATIENCE, looking).await });
            looked.map_err(io::Error::other)?.map_err(io::Error::other)
        })
    }

    fn left_over(&self) -> Result<Vec<String>, String> {
        // Each by itself: the tree of one server may differ from that of the others.
        let mut left = Vec::new();
        for peer in 0..PEERS {
            let host = format!("127.0.0.1:{}", self.peers.port(peer));
            left.extend(once_at(&host, async |look| {
                look.0.sync("/").await?;
                let mut left = Vec::new();
                for name in children(&look.0, "/leasehold/locks").await? {
                    for node in children(&look.0, &format!("/leasehold/locks/{name}")).await? {
                        left.push(format!("the node {node} of {name}, on member {peer}"));
                    }
                }
                Ok(left)
            })?);
        }
        Ok(left)
    }

    fn counts(&self, name: &str) -> Vec<u64> {
        let counts = self.once(async |look| {
            let mut counts = Vec::new();
            for node in look.nodes(name).await {
                let (data, _) = look.0.get_data(&format!("{}/{node}", directory(name))).await?;
                counts.extend(record(&data).map(|(_, count)| count));
            }
            Ok(counts)
        });
        counts.unwrap_or_default()
    }
}

/// Looks once at one of these servers, with a session of its own.
fn once_at<T, F: Future<Output = Result<T, Error>>>(
    hosts: &str,
    look: impl FnOnce(Look) -> F,
) -> Result<T, String> {
    let runtime = runtime().map_err(|error| error.to_string())?;
    let looked = runtime.block_on(async { look(Look::at(hosts).await).await });
    looked.map_err(|error| error.to_string())
}

fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

async fn children(client: &zookeeper_client::Client, path: &str) -> Result<Vec<String>, Error> {
    match client.list_children(path).await {
        Err(Error::NoNode) => Ok(Vec::new()),
        found => found,
    }
}

/// The node of whoever has a name, and its token; of one who may have it and does not know yet, nobody's.
async fn first(
    client: &zookeeper_client::Client,
    name: &str,
) -> Result<Option<(String, String)>, Error> {
    let Some(node) = queue(client, name).await?.into_iter().next() else { return Ok(None) };
    match client.get_data(&node).await {
        Ok((data, _)) => {
            let token = record(&data).map(|(token, _)| token);
            Ok(Some((node, token.unwrap_or_else(|| Key::UNKNOWN.to_owned()))))
        }
        // It has just gone, and somebody follows perhaps.
        Err(Error::NoNode) => Ok(Some((node, Key::UNKNOWN.to_owned()))),
        Err(error) => Err(error),
    }
}

/// The nodes of a name, in their order.
async fn queue(client: &zookeeper_client::Client, name: &str) -> Result<Vec<String>, Error> {
    let directory = directory(name);
    let sequence = |node: &String| node.rsplit('~').next()?.parse::<i64>().ok();
    let mut nodes = children(client, &directory).await?;
    nodes.sort_by_key(sequence);
    Ok(nodes.into_iter().map(|node| format!("{directory}/{node}")).collect())
}

/// The token and hold count that a node says.
fn record(data: &[u8]) -> Option<(String, u64)> {
    let (token, count) = std::str::from_utf8(data).ok()?.split_once(' ')?;
    Some((token.to_owned(), count.parse().ok()?))
}
