//! Runs scripts on whichever server of a fleet has their keys.

use super::connect::Address;
use super::link::{Node, is_unsent, sorted};
use super::replies::{self, Element};
use super::routes::Routes;
use super::scripts::{Failure, Ready, Script};
use crate::error::{Error, ErrorKind, Fate, Result};
use crate::store::Signal;
use fred::types::config::Server;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::OnceCell;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::{CancellationToken, DropGuard};

/// After a refusal that will soon be over.
const PAUSE: Duration = Duration::from_millis(15);
/// For how long a failure to connect counts for all who want to.
const RECENT: Duration = Duration::from_millis(100);
/// For how long a server that calls were sent on to keeps its connection, though it is not in the map: it may be about to
/// get its first slot, or have it by the word of few.
const KEPT: Duration = Duration::from_secs(10);
/// How often in a row a call follows a redirection at once.
const REDIRECTIONS: usize = 5;

/// Connections to the servers of a fleet, each made when it is first needed.
pub(super) struct Fleet {
    address: Address,
    routes: Arc<Routes>,
    reconnects: Signal,
    nodes: Arc<Nodes>,
    /// Where the connections live.
    runtime: Handle,
    ended: CancellationToken,
    _end: DropGuard,
}

#[derive(Default)]
struct Nodes(Mutex<HashMap<Server, Arc<Place>>>);

/// A server, and the connection to it once it is there.
#[derive(Default)]
struct Place {
    node: OnceCell<Node>,
    failed: Mutex<Option<(Instant, Error)>>,
    /// When a call was sent on to it last.
    redirected: Mutex<Option<Instant>>,
}

impl Place {
    /// Many who want the same at once make one attempt.
    async fn connect(&self, address: &Address, reconnects: &Signal) -> Result<Node> {
        let failed = || self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        let connect = async || {
            if let Some((at, error)) = &*failed()
                && at.elapsed() < RECENT
            {
                return Err(error.clone());
            }
            match address.client().await {
                Ok(client) => Ok(Node::new(client, address.attempt, reconnects)),
                Err(error) => {
                    let error = error.with_fate(Fate::NotExecuted);
                    *failed() = Some((Instant::now(), error.clone()));
                    Err(error)
                }
            }
        };
        self.node.get_or_try_init(connect).await.cloned()
    }

    fn redirected(&self) -> MutexGuard<'_, Option<Instant>> {
        self.redirected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a call was sent on to it a while ago at most.
    fn is_new(&self) -> bool {
        let mut redirected = self.redirected();
        *redirected = redirected.filter(|at| at.elapsed() < KEPT);
        redirected.is_some()
    }
}

impl Nodes {
    fn lock(&self) -> MutexGuard<'_, HashMap<Server, Arc<Place>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn redirected(&self, server: &Server) {
        *self.lock().entry(server.clone()).or_default().redirected() = Some(Instant::now());
    }

    /// Closes the connections to all servers but some.
    async fn keep_only(&self, keep: impl Fn(&Server, &Place) -> bool) {
        let mut gone = JoinSet::new();
        self.lock().retain(|server, place| {
            let kept = keep(server, place);
            if !kept && let Some(node) = place.node.get().cloned() {
                gone.spawn(async move { node.close().await });
            }
            kept
        });
        // Unlike `join_all`, no panic when the runtime ends in the middle.
        while gone.join_next().await.is_some() {}
    }
}

/// What the server said instead of running a script.
enum Refusal {
    Moved(u16, Server),
    Ask(Server),
    /// Keys of one call are on two servers, for a moment.
    TryAgain,
    /// A primary no more, or not the slot's: the fleet is to be asked who is.
    ReadOnly,
}

impl Fleet {
    /// Connects to all servers on the current runtime; one at least must be there.
    pub(super) async fn connect(
        address: &Address,
        routes: &Arc<Routes>,
        reconnects: &Signal,
    ) -> Result<Arc<Self>> {
        let ended = CancellationToken::new();
        let fleet = Arc::new(Self {
            address: address.clone(),
            routes: Arc::clone(routes),
            reconnects: reconnects.clone(),
            nodes: Arc::default(),
            runtime: Handle::current(),
            _end: ended.clone().drop_guard(),
            ended: ended.clone(),
        });
        tokio::spawn(prune(Arc::clone(routes), Arc::clone(&fleet.nodes), ended));
        let mut connecting = JoinSet::new();
        for server in routes.servers() {
            let fleet = Arc::clone(&fleet);
            connecting.spawn(async move { fleet.node(&server).await });
        }
        let mut result = Err(unserved());
        while let Some(connected) = connecting.join_next().await {
            if let Ok(connected) = connected
                && result.is_err()
            {
                result = connected;
            }
        }
        match result {
            Ok(_) => {
                routes.inquiry.over(&fleet);
                Ok(fleet)
            }
            Err(error) => {
                fleet.close().await;
                Err(error)
            }
        }
    }

    pub(super) fn is_cluster(&self) -> bool {
        self.routes.is_cluster()
    }

    /// Runs a script once, as far as anybody can tell: only what was refused is sent again.
    pub(super) async fn run(
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
                self.routes.want();
                return Err(unserved());
            };
            if self.routes.inquiry.rests(&server) {
                self.routes.want();
                return Err(down());
            }
            let node = match timeout_at(until, self.node(&server)).await {
                Ok(Ok(node)) => node,
                failed => {
                    self.routes.want();
                    return Err(failed
                        .map_or_else(|_| unserved(), |node| node.err().unwrap_or_else(unserved)));
                }
            };
            let left = until.saturating_duration_since(Instant::now());
            let reply = node.run(script, &call, left, asking.is_some()).await;
            let refusal = match refusal(&reply, &server) {
                Some(Refusal::TryAgain) if call.divisible => {
                    return reply.map_err(|failure| sorted(&failure));
                }
                Some(refusal) => refusal,
                None => return reply.map_err(|failure| self.failed(&failure, &server)),
            };
            redirections += 1;
            let pause = match refusal {
                Refusal::Moved(slot, server) => {
                    self.nodes.redirected(&server);
                    self.routes.moved(slot, &server);
                    redirections > REDIRECTIONS
                }
                Refusal::Ask(server) => {
                    self.nodes.redirected(&server);
                    ask = Some(server);
                    redirections > REDIRECTIONS
                }
                Refusal::TryAgain => true,
                Refusal::ReadOnly => {
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

    fn failed(&self, failure: &Failure, server: &Server) -> Error {
        let error = sorted(failure);
        // Not when it only has no owner for this slot: it serves its own.
        if failure.details().starts_with("CLUSTERDOWN The cluster is down") {
            self.routes.inquiry.doubt(server);
        }
        if error.is_unavailable() || is_unsent(&error) {
            self.routes.want();
        }
        error
    }

    /// The connection to a server, made now if need be.
    pub(super) async fn node(&self, server: &Server) -> Result<Node> {
        if self.ended.is_cancelled() {
            return Err(replies::gone().with_fate(Fate::NotExecuted));
        }
        let place = Arc::clone(self.nodes.lock().entry(server.clone()).or_default());
        if let Some(node) = place.node.get() {
            return Ok(node.clone());
        }
        let (address, reconnects) = (self.address.of(server), self.reconnects.clone());
        let (nodes, server) = (Arc::clone(&self.nodes), server.clone());
        // In a task of its own: who asks may give up, and may be on another runtime.
        let connecting = self.runtime.spawn(async move {
            let node = place.connect(&address, &reconnects).await?;
            let wanted = nodes.lock().get(&server).is_some_and(|known| Arc::ptr_eq(known, &place));
            if !wanted {
                node.close().await;
                return Err(unserved());
            }
            Ok(node)
        });
        connecting.await.unwrap_or_else(|_| Err(replies::gone().with_fate(Fate::NotExecuted)))
    }

    pub(super) async fn close(&self) {
        self.ended.cancel();
        self.nodes.keep_only(|_, _| false).await;
    }
}

/// Closes connections to servers that are primaries no more, and in the end all.
async fn prune(routes: Arc<Routes>, nodes: Arc<Nodes>, ended: CancellationToken) {
    let mut changes = routes.changes();
    loop {
        let some_are_new = nodes.lock().values().any(|place| place.redirected().is_some());
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { break },
            () = ended.cancelled() => break,
            // They are not that for ever.
            () = sleep(KEPT), if some_are_new => {}
        }
        let servers = routes.servers();
        nodes.keep_only(|server, place| place.is_new() || servers.contains(server)).await;
    }
    nodes.keep_only(|_, _| false).await;
}

fn refusal(reply: &Result<Vec<Element>, Failure>, asked: &Server) -> Option<Refusal> {
    let error = match reply {
        Err(error) => error,
        // Commands in a script are refused one by one: if one is, so are all that write.
        Ok(elements) => {
            let read_only =
                |one: &Element| matches!(one, Element::Text(text) if text.starts_with("READONLY"));
            return elements.iter().any(read_only).then_some(Refusal::ReadOnly);
        }
    };
    let text = error.details();
    let mut words = text.split(' ');
    match words.next()? {
        // Only the map tells where that is.
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

/// `host:port`; without a host it is the one that was asked.
fn address(text: &str, asked: &Server) -> Option<Server> {
    let (host, port) = text.rsplit_once(':')?;
    let host = if host.is_empty() { asked.host.to_string() } else { host.to_owned() };
    Some(Server::new(host, port.parse().ok()?))
}

fn unserved() -> Error {
    Error::new(ErrorKind::Unavailable, "no server can be reached that serves this name now")
        .with_fate(Fate::NotExecuted)
}

fn down() -> Error {
    let message = "the server that serves this name said a moment ago that its cluster is down";
    Error::new(ErrorKind::Unavailable, message).with_fate(Fate::NotExecuted)
}

fn refused() -> Error {
    Error::new(ErrorKind::Unavailable, "the servers do not agree yet on who serves this name")
        .with_fate(Fate::NotExecuted)
}

#[cfg(test)]
impl Fleet {
    /// A cluster on the current runtime of which nobody serves anything.
    pub(super) fn nowhere() -> Arc<Self> {
        let (url, map) = ("redis-cluster://nowhere", super::routes::Map::of_a_cluster());
        let t = Duration::from_secs(1);
        let ended = CancellationToken::new();
        Arc::new(Self {
            address: Address::parse(url, "", t, t).unwrap(),
            routes: Arc::new(Routes::fixed(url, map)),
            reconnects: Signal::new(),
            nodes: Arc::default(),
            runtime: Handle::current(),
            _end: ended.clone().drop_guard(),
            ended,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(text: &str) -> Result<Vec<Element>, Failure> {
        Err(Failure::new(fred::error::ErrorKind::Unknown, text.to_owned()))
    }

    #[test]
    fn a_refusal_says_where_to_go() {
        let asked = Server::new("a", 7000);
        let told = |reply: &Result<Vec<Element>, Failure>| match refusal(reply, &asked) {
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
            assert_eq!(told(&failure(text)), expected, "{text}");
        }
        let items = |text: &str| Ok(vec![Element::Int(1), Element::Text(text.to_owned())]);
        assert_eq!(told(&items("READONLY You can't write")), "read only");
        assert_eq!(told(&items("OOM command not allowed")), "none");
        assert_eq!(told(&Ok(Vec::new())), "none");
    }
}
