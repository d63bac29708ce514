//! Opens a quorum whose nodes are not all up when it starts.
//!
//! Two nodes must not be one server: its vote would count twice, and its failure would be that of both. A server's id
//! changes when it restarts, so a node that is opened later requests the ids of all open nodes.

use super::tally::{NoMajority, NodeVerdict, majority};
use super::{QUERY_LIMIT, Quorum};
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Fate, Result};
use crate::store::connect::preflight::Unfit;
use crate::store::{
    Acquire, Acquired, Annotate, Capabilities, Describe, ForceRelease, Inbox, Inspect, Inspection,
    List, Mode, Name, Owner, Owners, Pages, Release, Released, RenewBatch, RenewCall, Reserve,
    Reserved, Resize, SetVerdicts, Signal, Store, StoreFuture, Uptime, Wait, Wakeups, Want, failed,
};
use crate::util::sync::Mutex;
use crate::util::trace;
use async_trait::async_trait;
use std::fmt;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use tokio::sync::Mutex as AsyncMutex;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::Level;
use uuid::Uuid;

/// The pause between two attempts to open a node that is down.
const RETRY: Duration = Duration::from_secs(1);

/// Opens one node.
pub(crate) type NodeOpener = Box<dyn Fn() -> StoreFuture<Arc<dyn Store>> + Send + Sync>;

/// Opens all nodes at once. If those that are down are a minority, opens them later in the background.
///
/// Fails if a node refuses the credentials or has invalid settings.
pub(crate) async fn open_quorum(openers: Vec<NodeOpener>, clock: Clock) -> Result<Quorum> {
    let count = openers.len();
    let mut tasks = JoinSet::new();
    for (index, opener) in openers.into_iter().enumerate() {
        tasks.spawn(async move {
            let opened = open(&opener).await;
            (index, opener, opened)
        });
    }
    let mut nodes: Vec<Option<Arc<dyn Store>>> = vec![None; count];
    let mut ids = vec![None; count];
    let mut missing = Vec::new();
    let mut wrong = None;
    let mut unfit = Vec::new();
    while let Some(task) = tasks.join_next().await {
        let gone = |error| {
            Error::new(
                ErrorKind::Unavailable,
                "the task that opens a node has panicked, or its runtime has ended",
            )
            .with_source(error)
        };
        match task.map_err(gone)? {
            (index, _, Ok((store, id))) => {
                if let Some(same) = ids.iter().position(|known| id.is_some() && *known == id) {
                    wrong.get_or_insert_with(|| same_server_error(same, index));
                }
                nodes[index] = Some(store);
                ids[index] = id;
            }
            (index, opener, Err(error)) if is_down(&error) => {
                missing.push((index, opener, error));
            }
            (index, _, Err(error)) => match Unfit::of(&error) {
                Some(found) => unfit.push((index, found.clone())),
                None => wrong = Some(error),
            },
        }
    }
    if !unfit.is_empty() {
        unfit.sort_by_key(|(index, _)| *index);
        let findings = unfit.iter().flat_map(|(_, unfit)| unfit.findings());
        let findings = findings.cloned().collect();
        wrong.get_or_insert_with(|| Unfit::error(findings));
    }
    let opened = || nodes.iter().flatten().cloned().collect::<Vec<_>>();
    if let Some(error) = wrong {
        close_all(opened()).await;
        return Err(error);
    }
    if count - missing.len() < majority(count) {
        close_all(opened()).await;
        let mut verdicts = vec![NodeVerdict::Answered("up"); count];
        for (index, _, error) in missing {
            verdicts[index] = NodeVerdict::Failed(error);
        }
        return Err(NoMajority { verdicts }.into());
    }
    let open_nodes: OpenNodes = Arc::new(AsyncMutex::new(nodes.iter().map(downgrade).collect()));
    let abilities = common_abilities(&nodes);
    for (index, opener, error) in missing {
        trace::later(
            Level::WARN,
            || move || tracing::warn!(node = index + 1, %error, "a node is down; tried again in the background"),
        );
        nodes[index] = Some(PendingNode::start(
            opener,
            abilities,
            clock.clone(),
            Position { index, open_nodes: open_nodes.clone() },
        ));
    }
    Quorum::new(nodes.into_iter().flatten().collect())
}

/// The nodes that are open, by their position. Locked while one is admitted, so that two are not admitted at once.
type OpenNodes = Arc<AsyncMutex<Vec<Option<Weak<dyn Store>>>>>;

/// The position of a node among those that are open.
struct Position {
    index: usize,
    open_nodes: OpenNodes,
}

fn downgrade(node: &Option<Arc<dyn Store>>) -> Option<Weak<dyn Store>> {
    node.as_ref().map(Arc::downgrade)
}

/// Returns the abilities of a node that is not open yet: those that all open nodes have. A quorum is asked once what it can
/// do, so a node that is down at the start must not cost the others their abilities. It refuses what it turns out not to have.
fn common_abilities(nodes: &[Option<Arc<dyn Store>>]) -> Capabilities {
    let open = || nodes.iter().flatten().map(|node| node.capabilities());
    let modes = [Mode::Read, Mode::Write].into_iter();
    modes
        .filter(|mode| open().all(|node| node.supports(*mode)))
        .fold(abilities_of_all(open()), Capabilities::with_mode)
}

/// Returns what nodes can do together, but for their modes.
pub(super) fn abilities_of_all(nodes: impl Iterator<Item = Capabilities> + Clone) -> Capabilities {
    let all = |has: fn(&Capabilities) -> bool| nodes.clone().all(|node| has(&node));
    // Each node proposes a token, and stores the one that is chosen.
    let numbers = |node: &Capabilities| node.fencing && node.reserves;
    Capabilities::default()
        .with_fencing(all(numbers))
        .with_reserves(all(numbers))
        .with_fence_blocks(all(|node| node.fence_blocks))
        .with_longest_fence_block(
            nodes.clone().map(|node| node.longest_fence_block).min().unwrap_or(1),
        )
        .with_keeps(all(|node| node.keeps))
        .with_own_ttl(all(|node| node.own_ttl))
        .with_counts(all(|node| node.counts))
        .with_time_left(all(|node| node.time_left))
        // The hints of one node are enough.
        .with_wakeups(nodes.clone().any(|node| node.wakeups))
        .with_announces(all(|node| node.announces))
        .with_renewal_batch(nodes.map(|node| node.renewal_batch).min().unwrap_or(1))
}

fn same_server_error(first: usize, second: usize) -> Error {
    let [first, second] = [first.min(second) + 1, first.max(second) + 1];
    Error::invalid(format!(
        "node {first} and node {second} of the quorum are the same server, whose vote would count twice; name each \
         server once"
    ))
}

fn is_down(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Rejected)
}

/// Opens a node and requests its server's id. Fails if the node does not report its age, since it could never count.
async fn open(opener: &NodeOpener) -> Result<(Arc<dyn Store>, Option<String>)> {
    let store = opener().await?;
    match store.uptime(QUERY_LIMIT).await {
        Ok(uptime) => Ok((store, uptime.server)),
        Err(error) => {
            store.close(QUERY_LIMIT).await;
            Err(error)
        }
    }
}

async fn close_all(stores: Vec<Arc<dyn Store>>) {
    for store in stores {
        store.close(QUERY_LIMIT).await;
    }
}

/// A node that is down until it is opened.
struct PendingNode {
    store: OnceLock<Arc<dyn Store>>,
    /// Why it was refused when it was up.
    refused: Mutex<Option<Error>>,
    clock: Clock,
    /// Until it is opened.
    capabilities: Capabilities,
    reconnects: Signal,
}

impl PendingNode {
    fn start(
        opener: NodeOpener,
        capabilities: Capabilities,
        clock: Clock,
        position: Position,
    ) -> Arc<dyn Store> {
        let (store, refused, reconnects) = Default::default();
        let pending = Arc::new(Self { store, refused, clock, capabilities, reconnects });
        tokio::spawn(open_in_background(Arc::downgrade(&pending), opener, position));
        pending
    }

    fn get(&self) -> Result<&Arc<dyn Store>> {
        self.store.get().ok_or_else(|| {
            let refused = self.refused.lock().clone();
            let down = || Error::new(ErrorKind::Unavailable, "not reached yet");
            refused.unwrap_or_else(down).with_fate(Fate::NotExecuted)
        })
    }

    fn refuse(&self, error: Error) {
        *self.refused.lock() = Some(error);
    }
}

/// Admits a node that has been opened, unless another node is the same server.
async fn admit(store: &Arc<dyn Store>, id: Option<String>, position: &Position) -> Result<()> {
    let mut open_nodes = position.open_nodes.lock().await;
    for (other, node) in open_nodes.iter().enumerate() {
        let Some(node) = node.as_ref().and_then(Weak::upgrade) else { continue };
        // A node that does not answer now is another server, since this one does.
        if id.is_some() && node.uptime(QUERY_LIMIT).await.is_ok_and(|other| other.server == id) {
            return Err(same_server_error(other, position.index));
        }
    }
    open_nodes[position.index] = Some(Arc::downgrade(store));
    Ok(())
}

/// Keeps why a node that is up does not count, and reports it once.
fn refuse(pending: &Weak<PendingNode>, error: Error, reported: &mut bool) {
    if !std::mem::replace(reported, true) {
        let error = error.clone();
        trace::later(Level::ERROR, || move || tracing::error!(%error, "a node does not count"));
    }
    if let Some(pending) = pending.upgrade() {
        pending.refuse(error);
    }
}

/// Tries until the node is open, then forwards its reconnects.
async fn open_in_background(pending: Weak<PendingNode>, opener: NodeOpener, position: Position) {
    let mut warned = false;
    let store = loop {
        sleep(RETRY).await;
        if pending.strong_count() == 0 {
            return;
        }
        match open(&opener).await {
            Ok((store, id)) => match admit(&store, id, &position).await {
                Ok(()) => break store,
                Err(error) => {
                    store.close(QUERY_LIMIT).await;
                    refuse(&pending, error, &mut warned);
                }
            },
            Err(error) if Unfit::of(&error).is_some() => refuse(&pending, error, &mut warned),
            Err(error) => trace::later(
                Level::DEBUG,
                || move || tracing::debug!(%error, "a node is still down"),
            ),
        }
    };
    let (reconnected, reconnects) = match pending.upgrade() {
        Some(pending) => {
            let reconnects = pending.reconnects.clone();
            let reconnected = store.reconnects();
            // Only this task sets it.
            let _ = pending.store.set(Arc::clone(&store));
            (reconnected, reconnects)
        }
        None => return store.close(QUERY_LIMIT).await,
    };
    drop(store);
    // The node is up for the first time: renewals make the keys of all holds there.
    reconnects.set();
    while let Some(reconnected) = &reconnected
        && pending.strong_count() > 0
    {
        reconnected.recv().await;
        reconnects.set();
    }
}

impl fmt::Debug for PendingNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.store.get() {
            Some(store) => store.fmt(f),
            None => f.write_str("PendingNode"),
        }
    }
}

/// Calls the node if it is open.
fn forward<T: Send + 'static>(
    pending: &PendingNode,
    call: impl FnOnce(&Arc<dyn Store>) -> StoreFuture<T>,
) -> StoreFuture<T> {
    match pending.get() {
        Ok(store) => call(store),
        Err(error) => failed(error),
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Store for PendingNode {
    fn clock(&self) -> Clock {
        self.clock.clone()
    }

    fn capabilities(&self) -> Capabilities {
        self.store.get().map_or(self.capabilities, |store| store.capabilities())
    }

    fn shard(&self, name: &Name) -> usize {
        self.store.get().map_or(0, |store| store.shard(name))
    }

    fn acquire(&self, request: Acquire) -> StoreFuture<Acquired> {
        forward(self, |store| store.acquire(request))
    }

    fn acquire_all(&self, requests: Vec<Acquire>) -> StoreFuture<SetVerdicts> {
        forward(self, |store| store.acquire_all(requests))
    }

    fn is_atomic(&self, names: &[&Name]) -> bool {
        self.get().is_ok_and(|store| store.is_atomic(names))
    }

    fn release(&self, request: Release) -> StoreFuture<Released> {
        forward(self, |store| store.release(request))
    }

    fn renew(&self, batch: RenewBatch) -> Vec<RenewCall> {
        match self.get() {
            Ok(store) => store.renew(batch),
            Err(error) => RenewCall::divide(batch, usize::MAX, |_| 0, |_| failed(error.clone())),
        }
    }

    async fn resize(&self, request: Resize) -> Result<Option<u32>> {
        self.get()?.resize(request).await
    }

    async fn inspect(&self, request: Inspect) -> Result<Inspection> {
        self.get()?.inspect(request).await
    }

    async fn annotate(&self, request: Annotate) -> Result<bool> {
        self.get()?.annotate(request).await
    }

    async fn describe(&self, request: Describe) -> Result<()> {
        self.get()?.describe(request).await
    }

    async fn owners(&self, request: Owners) -> Result<Vec<Option<Owner>>> {
        self.get()?.owners(request).await
    }

    fn list(&self, request: List) -> Result<Box<dyn Pages>> {
        self.get()?.list(request)
    }

    async fn force_release(&self, request: ForceRelease) -> Result<bool> {
        self.get()?.force_release(request).await
    }

    async fn subscribe(&self, request: Wait) -> Result<Option<Wakeups>> {
        self.get()?.subscribe(request).await
    }

    fn reconnects(&self) -> Option<Signal> {
        Some(self.reconnects.clone())
    }

    async fn want(&self, request: Want) -> Result<bool> {
        self.get()?.want(request).await
    }

    /// Returns the inbox at the node that is up now; one that comes up later reports nothing, but renewals do.
    fn inbox(&self, manager: Uuid) -> Option<Inbox> {
        self.store.get().and_then(|store| store.inbox(manager))
    }

    fn guard_key(&self, name: &Name) -> Option<String> {
        self.store.get().and_then(|store| store.guard_key(name))
    }

    async fn uptime(&self, timeout: Duration) -> Result<Uptime> {
        self.get()?.uptime(timeout).await
    }

    async fn reserve(&self, request: Reserve) -> Result<Reserved> {
        self.get()?.reserve(request).await
    }

    async fn close(&self, timeout: Duration) {
        if let Ok(store) = self.get() {
            store.close(timeout).await;
        }
    }
}

#[cfg(test)]
#[cfg(feature = "testing")]
mod tests {
    use super::*;
    use crate::store::{HolderId, MemoryStore, Target};
    use crate::testing::{Call, Fault, Faults, FaultyStore, Rule};
    use std::sync::Mutex;
    use uuid::Uuid;

    const T: Duration = Duration::from_secs(30);

    /// A server that answers when it is up.
    struct Server {
        store: MemoryStore,
        down: Arc<Mutex<Option<ErrorKind>>>,
        /// One for each connection, that came about or did not.
        opened: Arc<Mutex<Vec<Faults>>>,
    }

    impl Server {
        fn new(down: Option<ErrorKind>) -> Self {
            let down = Arc::new(Mutex::new(down));
            Self { store: MemoryStore::new(), down, opened: Arc::default() }
        }

        fn opener(&self) -> NodeOpener {
            let (store, down) = (self.store.clone(), Arc::clone(&self.down));
            let opened = Arc::clone(&self.opened);
            Box::new(move || {
                let (store, faults) = FaultyStore::new(store.clone());
                opened.lock().unwrap().push(faults);
                let answer = match *down.lock().unwrap() {
                    None => Ok(Arc::new(store) as Arc<dyn Store>),
                    Some(kind) => Err(Error::new(kind, "no entry")),
                };
                Box::pin(std::future::ready(answer))
            })
        }

        fn start(&self) {
            *self.down.lock().unwrap() = None;
        }

        fn tries(&self) -> usize {
            self.opened.lock().unwrap().len()
        }

        fn closed(&self) -> usize {
            self.opened.lock().unwrap().iter().map(|faults| faults.calls(Call::Close)).sum()
        }
    }

    /// The only node.
    fn alone() -> Position {
        Position { index: 0, open_nodes: Arc::new(AsyncMutex::new(vec![None])) }
    }

    async fn open_all(servers: &[Server]) -> Result<Quorum> {
        let openers = servers.iter().map(Server::opener).collect();
        open_quorum(openers, servers[0].store.clock()).await
    }

    fn up_and(down: &[ErrorKind], count: usize) -> Vec<Server> {
        (0..count).map(|at| Server::new(down.get(at).copied())).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn majority_must_be_up_at_the_start() {
        use ErrorKind::{Rejected, Unavailable};
        let down = [Unavailable, Rejected, Unavailable];
        for (count, missing, enough) in
            [(3, 1, true), (3, 2, false), (4, 1, true), (4, 2, false), (5, 2, true), (5, 3, false)]
        {
            let servers = up_and(&down[..missing], count);
            let opened = open_all(&servers).await;
            assert_eq!(opened.is_ok(), enough, "{missing} of {count}: {opened:?}");
            let closed: Vec<usize> = servers[missing..].iter().map(Server::closed).collect();
            assert!(closed.iter().all(|closed| *closed == usize::from(!enough)), "{closed:?}");
            if let Err(error) = opened {
                assert_eq!(error.kind(), Unavailable);
                let text = error.to_string();
                assert!(text.contains("node 1: ") && text.contains("no entry"), "{text}");
                assert!(text.contains(&format!("node {count}: up")), "{text}");
            }
        }
    }

    /// The engine asks a quorum for its abilities before all nodes are up.
    #[tokio::test(start_paused = true)]
    async fn node_that_is_down_does_not_cost_what_the_others_can() {
        let mut abilities = Vec::new();
        for down in [0, 1] {
            let servers = up_and(&[ErrorKind::Unavailable][..down], 3);
            let can = open_all(&servers).await.expect("a majority").capabilities();
            abilities.push([can.keeps, can.own_ttl, can.time_left, can.wakeups, can.announces]);
            assert!(can.supports(Mode::Read) && can.supports(Mode::Write), "{down} down");
            assert!(!can.supports(Mode::Permits { size: 2, take: 1 }));
        }
        assert_eq!(abilities[0], abilities[1]);
        assert!(abilities[1][0], "a name can be kept closed");
    }

    #[tokio::test(start_paused = true)]
    async fn node_that_refuses_us_fails_the_whole() {
        for kind in [ErrorKind::Denied, ErrorKind::Invalid] {
            let servers = up_and(&[kind], 3);
            assert_eq!(open_all(&servers).await.expect_err("refused").kind(), kind);
            assert_eq!([servers[1].closed(), servers[2].closed()], [1, 1]);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn node_that_does_not_report_its_age_is_closed_again() {
        let (store, faults) = FaultyStore::new(MemoryStore::new());
        let denied = Error::new(ErrorKind::Denied, "no right");
        faults.add(Rule::new(Fault::Fail(denied)).on(Call::Uptime));
        let store: Arc<dyn Store> = Arc::new(store);
        let opener: NodeOpener = Box::new(move || {
            let store = Arc::clone(&store);
            Box::pin(async move { Ok(store) })
        });
        assert_eq!(open(&opener).await.expect_err("no age").kind(), ErrorKind::Denied);
        assert_eq!(faults.calls(Call::Close), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn server_that_is_there_twice_is_refused() {
        let mut servers = up_and(&[], 3);
        servers[2].store = servers[0].store.clone();
        let error = open_all(&servers).await.expect_err("one of them is there twice");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("node 1 and node 3"), "{error}");
        assert_eq!([0, 1, 2].map(|at| servers[at].closed()), [1, 1, 1]);
    }

    /// Two that were down come at the same moment, and are one server.
    #[tokio::test(start_paused = true)]
    async fn server_that_comes_twice_is_refused_until_it_is_another_one() {
        let mut servers = up_and(&[ErrorKind::Unavailable; 2], 5);
        servers[1].store = servers[0].store.clone();
        let quorum = open_all(&servers).await.expect("three of five");
        let nodes = || quorum.inner.nodes.iter().map(|node| &node.store);
        servers[..2].iter().for_each(Server::start);
        sleep(RETRY * 2 + RETRY / 2).await;
        let mut counts = Vec::new();
        for node in nodes() {
            counts.push(node.uptime(T).await);
        }
        assert_eq!(counts.iter().filter(|count| count.is_ok()).count(), 4, "{counts:?}");
        let (other, refused) = counts
            .iter()
            .enumerate()
            .find_map(|(at, count)| Some((at, count.as_ref().err()?)))
            .unwrap();
        assert!(refused.to_string().contains("node 1 and node 2"), "{refused}");
        assert!(servers[other].closed() > 0, "its connections are closed again");
        // The admitted one fails, and its claim ends.
        servers[1 - other]
            .opened
            .lock()
            .unwrap()
            .last()
            .unwrap()
            .add(Rule::new(Fault::Fail(Error::new(ErrorKind::Unavailable, "out of order"))));
        sleep(RETRY + RETRY / 2).await;
        nodes().nth(other).unwrap().uptime(T).await.expect("no other node is this server now");
    }

    #[tokio::test(start_paused = true)]
    async fn node_that_is_down_answers_errors_and_then_as_the_node() {
        let server = Server::new(Some(ErrorKind::Unavailable));
        let node = PendingNode::start(
            server.opener(),
            Capabilities::default(),
            server.store.clock(),
            alone(),
        );
        let target = Target::exclusive(Name::new("job").unwrap());
        let inspect = || Inspect::new(target.clone(), T);
        let force = || ForceRelease::new(target.clone(), T);
        let wait = || Wait::new(target.clone(), None, T);
        let pending = |fate: Option<Fate>| assert_eq!(fate, Some(Fate::NotExecuted));
        let error = node.inspect(inspect()).await.expect_err("down");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        pending(Some(error.fate()));
        pending(node.force_release(force()).await.err().map(|error| error.fate()));
        pending(node.subscribe(wait()).await.err().map(|error| error.fate()));
        pending(node.uptime(T).await.err().map(|error| error.fate()));
        let acquire = Acquire::new(target.clone(), HolderId::new(Uuid::new_v4(), 1), T, T);
        pending(node.acquire(acquire.clone()).await.err().map(|error| error.fate()));
        assert_eq!(node.capabilities(), Capabilities::default());
        assert_eq!(format!("{node:?}"), "PendingNode");
        node.close(T).await;

        let reconnected = node.reconnects().expect("it will come");
        sleep(RETRY + RETRY / 2).await;
        assert_eq!(server.tries(), 1);
        server.start();
        reconnected.recv().await;
        assert_eq!(server.tries(), 2);
        assert_eq!(node.capabilities(), server.store.capabilities());
        assert!(format!("{node:?}").contains("Memory"), "{node:?}");
        assert_eq!(node.uptime(T).await.expect("up").age, None);
        node.acquire(acquire).await.expect("up");
        assert!(node.inspect(inspect()).await.expect("up").into_holder().is_some());
        assert!(node.subscribe(wait()).await.expect("up").is_some());
        assert!(node.force_release(force()).await.expect("up"));
        assert!(!node.force_release(force()).await.expect("up"));
        server.store.restart();
        sleep(T).await;
        assert_eq!(node.uptime(T).await.expect("up").age, Some(T));
        // Its own reconnects are forwarded.
        for _ in 0..2 {
            server.opened.lock().unwrap()[1].reconnect();
            tokio::time::timeout(RETRY, reconnected.recv()).await.expect("reconnected");
        }
        node.close(T).await;
        assert_eq!(server.closed(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn store_without_a_quorum_is_not_opened_any_more() {
        let server = Server::new(Some(ErrorKind::Unavailable));
        let node = PendingNode::start(
            server.opener(),
            Capabilities::default(),
            server.store.clock(),
            alone(),
        );
        sleep(RETRY * 2 + RETRY / 2).await;
        assert_eq!(server.tries(), 2);
        drop(node);
        server.start();
        sleep(RETRY * 3).await;
        assert_eq!(server.tries(), 2);
    }
}
