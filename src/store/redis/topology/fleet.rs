//! Runs scripts on the servers of a fleet that have their keys.

use super::pool::{KEPT, Nodes, Pool, silent_unless_answered};
use super::routes::Routes;
use crate::error::{Error, ErrorKind, Fate, Result};
use crate::store::Signal;
use crate::store::redis::link::address::Address;
use crate::store::redis::link::errors::{Failure, classify, is_unsent};
use crate::store::redis::link::node::Node;
use crate::store::redis::link::script::Ready;
use crate::store::redis::scripts::Script;
use crate::store::redis::scripts::reply::Element;
use crate::util::panics::caught;
use crate::util::reached::Rare;
use fred::types::config::Server;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

/// The pause after a refusal that will soon be over.
const PAUSE: Duration = Duration::from_millis(15);
/// The number of redirections in a row that a call follows at once.
const REDIRECTIONS: usize = 5;

/// The servers of a fleet, and which of them has which slot.
pub(in crate::store::redis) struct Fleet {
    routes: Arc<Routes>,
    pool: Arc<Pool>,
}

/// The refusal of a server to run a script.
enum Refusal {
    Moved(u16, Server),
    Ask(Server),
    /// The keys of the call are on two servers for a moment.
    TryAgain,
    /// The server is no longer the primary of the slot; the map must be refreshed.
    ReadOnly,
}

impl Fleet {
    /// Connects to all servers on the current runtime. At least one must be up.
    pub(in crate::store::redis) async fn connect(
        address: &Address,
        routes: &Arc<Routes>,
        reconnects: &Signal,
    ) -> Result<Arc<Self>> {
        let pool = Arc::new(Pool::new(address.clone(), reconnects.clone()));
        let nodes = Arc::clone(&pool.nodes);
        let ended = pool.ended.clone();
        let followed = Arc::clone(routes);
        tokio::spawn(async move {
            while caught("pool", prune(&followed, &nodes, &ended)).await.is_none() {}
        });
        let mut connecting = JoinSet::new();
        for server in routes.servers() {
            let pool = Arc::clone(&pool);
            connecting.spawn(async move { pool.node(&server).await });
        }
        let mut result = Err(silent_unless_answered());
        while let Some(connected) = connecting.join_next().await {
            if let Ok(connected) = connected
                && result.is_err()
            {
                result = connected;
            }
        }
        match result {
            Ok(_) => {
                routes.discovery.use_pool(&pool);
                Ok(Arc::new(Self { routes: Arc::clone(routes), pool }))
            }
            Err(error) => {
                pool.close().await;
                Err(error)
            }
        }
    }

    pub(super) fn routes(&self) -> &Routes {
        &self.routes
    }

    /// Returns the connection to a server.
    pub(super) async fn node(&self, server: &Server) -> Result<Node> {
        if self.routes.discovery.is_resting(server) {
            self.routes.request_refresh();
            return Err(down());
        }
        let node = self.pool.node(server).await;
        node.inspect_err(|_| self.routes.request_refresh())
    }

    pub(in crate::store::redis) fn is_cluster(&self) -> bool {
        self.routes.is_cluster()
    }

    /// Runs a script at most once: only a call that was refused is sent again.
    pub(in crate::store::redis) async fn run(
        &self,
        script: &'static Script,
        call: Ready,
        limit: Duration,
    ) -> Result<Vec<Element>> {
        let until = Instant::now() + limit;
        let slot = call.slot();
        let mut ask: Option<Server> = None;
        let mut redirections = 0;
        loop {
            let asking = ask.take();
            let Some(server) = asking.clone().or_else(|| self.routes.owner(slot)) else {
                self.routes.request_refresh();
                return Err(silent_unless_answered());
            };
            if self.routes.discovery.is_resting(&server) {
                self.routes.request_refresh();
                return Err(down());
            }
            let node = match timeout_at(until, self.pool.node(&server)).await {
                Ok(Ok(node)) => node,
                failed => {
                    self.routes.request_refresh();
                    return Err(failed.map_or_else(
                        |_| silent_unless_answered(),
                        |node| node.err().unwrap_or_else(silent_unless_answered),
                    ));
                }
            };
            let left = until.saturating_duration_since(Instant::now());
            let reply = node.run(script, &call, left, asking.is_some()).await;
            let refusal = match refusal(&reply, &server) {
                Some(Refusal::TryAgain) if call.divisible => {
                    Rare::RedisTryAgain.reached();
                    return reply.map_err(|failure| classify(&failure));
                }
                Some(refusal) => refusal,
                None => {
                    return reply.map_err(|failure| node.at(self.failed(&failure, &server)));
                }
            };
            redirections += 1;
            let pause = match refusal {
                Refusal::Moved(slot, server) => {
                    Rare::RedisMoved.reached();
                    self.pool.nodes.redirected(&server);
                    self.routes.moved(slot, &server);
                    redirections > REDIRECTIONS
                }
                Refusal::Ask(server) => {
                    Rare::RedisAsked.reached();
                    self.pool.nodes.redirected(&server);
                    ask = Some(server);
                    redirections > REDIRECTIONS
                }
                Refusal::TryAgain => {
                    Rare::RedisTryAgain.reached();
                    true
                }
                Refusal::ReadOnly => {
                    Rare::RedisReadOnly.reached();
                    self.routes.refresh(until).await;
                    true
                }
            };
            if pause {
                sleep(PAUSE).await;
            }
            if Instant::now() >= until {
                return Err(refused());
            }
        }
    }

    /// Asks one server about itself.
    pub(in crate::store::redis) async fn info(&self, server: &Server) -> Result<String> {
        self.pool.node(server).await?.info().await
    }

    fn failed(&self, failure: &Failure, server: &Server) -> Error {
        let error = classify(failure);
        // Not if only this slot has no owner: the server still serves its own slots.
        if failure.details().starts_with("CLUSTERDOWN The cluster is down") {
            Rare::RedisDistrusted.reached();
            self.routes.discovery.distrust(server);
        }
        if error.is_unavailable() || is_unsent(&error) {
            self.routes.request_refresh();
        }
        error
    }

    pub(in crate::store::redis) async fn close(&self) {
        self.pool.close().await;
    }
}

/// Closes connections to servers that are no longer primaries, and in the end all.
async fn prune(routes: &Routes, nodes: &Nodes, ended: &CancellationToken) {
    let mut changes = routes.changes();
    loop {
        let some_are_new = nodes.any_redirected();
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { break },
            () = ended.cancelled() => break,
            // They do not stay new forever.
            () = sleep(KEPT), if some_are_new => {}
        }
        let servers = routes.servers();
        nodes.keep_only(|server, slot| slot.is_new() || servers.contains(server)).await;
    }
    nodes.keep_only(|_, _| false).await;
}

fn refusal(reply: &Result<Vec<Element>, Failure>, asked: &Server) -> Option<Refusal> {
    let error = match reply {
        Err(error) => error,
        // Commands in a script are refused one by one. If one is, so are all others that write.
        Ok(elements) => {
            let read_only =
                |one: &Element| matches!(one, Element::Text(text) if text.starts_with("READONLY"));
            return elements.iter().any(read_only).then_some(Refusal::ReadOnly);
        }
    };
    let text = error.details();
    let mut words = text.split(' ');
    match words.next()? {
        // The server does not know the address; the map has it.
        "MOVED" if text.contains(" ?:") => Some(Refusal::ReadOnly),
        "ASK" if text.contains(" ?:") => Some(Refusal::TryAgain),
        "MOVED" => {
            let slot = words.next()?.parse().ok()?;
            Some(Refusal::Moved(slot, address(words.next()?, asked)?))
        }
        "ASK" => Some(Refusal::Ask(address(words.nth(1)?, asked)?)),
        "TRYAGAIN" => Some(Refusal::TryAgain),
        "READONLY" => Some(Refusal::ReadOnly),
        _ => None,
    }
}

/// Parses `host:port`; without a host, it is that of the server that was asked.
fn address(text: &str, asked: &Server) -> Option<Server> {
    let (host, port) = text.rsplit_once(':')?;
    let host = if host.is_empty() { asked.host.to_string() } else { host.to_owned() };
    Some(Server::new(host, port.parse().ok()?))
}

fn down() -> Error {
    let message = "the server that serves this name reported a moment ago that its cluster is down";
    Error::new(ErrorKind::Unavailable, message).with_fate(Fate::NotExecuted)
}

fn refused() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the cluster is still being reconfigured for the slot of this name",
    )
    .with_fate(Fate::NotExecuted)
}

#[cfg(test)]
impl Fleet {
    /// Makes a cluster on the current runtime in which no server has any slot.
    pub(in crate::store::redis) fn nowhere() -> Arc<Self> {
        let url = "redis-cluster://nowhere";
        let map = super::slot_map::SlotMap::of_cluster();
        let t = Duration::from_secs(1);
        let address =
            Address::parse(url, &crate::store::connect::remote::Remote::default(), t, t).unwrap();
        let pool = Arc::new(Pool::new(address, Signal::new()));
        Arc::new(Self { routes: Arc::new(Routes::fixed(url, map)), pool })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(text: &str) -> Result<Vec<Element>, Failure> {
        Err(Failure::new(fred::error::ErrorKind::Unknown, text.to_owned()))
    }

    #[test]
    fn refusal_names_the_next_server() {
        let asked = Server::new("a", 7000);
        let refused_by = |reply: &Result<Vec<Element>, Failure>| match refusal(reply, &asked) {
            None => "none".to_owned(),
            Some(Refusal::Moved(slot, server)) => format!("{slot} is at {server}"),
            Some(Refusal::Ask(server)) => format!("ask {server}"),
            Some(Refusal::TryAgain) => "again".to_owned(),
            Some(Refusal::ReadOnly) => "read only".to_owned(),
        };
        for (text, expected) in [
            ("MOVED 3999 b:6381", "3999 is at b:6381"),
            ("MOVED 3999 :6381", "3999 is at a:6381"),
            ("MOVED 3999 ::1:6381", "3999 is at ::1:6381"),
            ("MOVED 3999 b", "none"),
            ("MOVED 99999 b:6381", "none"),
            ("MOVED", "none"),
            ("MOVED 3999 ?:6381", "read only"),
            ("ASK 3999 ?:6381", "again"),
            ("ASK 3999 b:6381", "ask b:6381"),
            ("ASK 3999 :6381", "ask a:6381"),
            ("TRYAGAIN Multiple keys request during rehashing of slot", "again"),
            ("READONLY You can't write against a read only replica.", "read only"),
            ("Too many failed write attempts.", "none"),
            ("NOSCRIPT No matching script.", "none"),
            ("Request timed out.", "none"),
        ] {
            assert_eq!(refused_by(&failure(text)), expected, "{text}");
        }
        let items = |text: &str| Ok(vec![Element::Int(1), Element::Text(text.to_owned())]);
        assert_eq!(refused_by(&items("READONLY You can't write")), "read only");
        assert_eq!(refused_by(&items("OOM command not allowed")), "none");
        assert_eq!(refused_by(&Ok(Vec::new())), "none");
    }
}
