//! Every store that leasehold brings keeps the contract of `Store`.

use leasehold::store::{Acquire, HolderId, Release, Released, Target, Wait};
use leasehold::store::{MemoryStore, Name, Quorum, Store};
use leasehold::testing::{FaultyStore, Harness};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::{Mutex, PoisonError, Weak};
use std::time::Duration;

mod memory {
    leasehold::conformance_suite!(
        #[tokio::test(start_paused = true)]
        super::Memory::new()
    );
}

/// Without a fault, the wrapper is the store.
mod faulty {
    leasehold::conformance_suite!(
        #[tokio::test(start_paused = true)]
        super::Wrapped(super::Memory::new())
    );
}

mod quorum {
    leasehold::conformance_suite!(
        #[tokio::test(start_paused = true)]
        super::Nodes::new(3)
    );
}

mod quorum_of_five {
    leasehold::conformance_suite!(
        #[tokio::test(start_paused = true)]
        super::Nodes::new(5)
    );
}

mod redis {
    leasehold::conformance_suite!(
        #[tokio::test]
        super::Redis::start()
    );
}

mod zookeeper {
    leasehold::conformance_suite!(
        #[tokio::test]
        super::ZooKeeper::start()
    );
}

struct Memory(MemoryStore);

impl Memory {
    fn new() -> Self {
        Self(MemoryStore::new())
    }
}

#[async_trait::async_trait]
impl Harness for Memory {
    async fn store(&self) -> Arc<dyn Store> {
        Arc::new(self.0.clone())
    }

    async fn lose(&self, name: &Name) {
        assert!(self.0.delete(name.as_str()));
    }

    async fn occupy(&self, _: &Name) -> bool {
        false
    }

    async fn elapse(&self, time: Duration) {
        tokio::time::advance(time).await;
    }

    fn ttl(&self) -> Duration {
        Duration::from_millis(300)
    }

    fn slack(&self) -> Duration {
        Duration::ZERO
    }
}

/// A quorum of stores in memory.
struct Nodes(Vec<MemoryStore>);

impl Nodes {
    fn new(count: usize) -> Self {
        Self((0..count).map(|_| MemoryStore::new()).collect())
    }
}

#[async_trait::async_trait]
impl Harness for Nodes {
    async fn store(&self) -> Arc<dyn Store> {
        let nodes = self.0.iter().map(|node| Arc::new(node.clone()) as Arc<dyn Store>);
        Arc::new(Quorum::new(nodes.collect()).expect("enough nodes"))
    }

    async fn lose(&self, name: &Name) {
        for node in &self.0 {
            assert!(node.delete(name.as_str()));
        }
    }

    async fn occupy(&self, _: &Name) -> bool {
        false
    }

    async fn elapse(&self, time: Duration) {
        tokio::time::advance(time).await;
    }

    fn ttl(&self) -> Duration {
        Duration::from_millis(300)
    }

    fn keeps_arrivals_of_readers(&self) -> bool {
        false
    }

    fn slack(&self) -> Duration {
        Duration::ZERO
    }
}

struct Wrapped(Memory);

#[async_trait::async_trait]
impl Harness for Wrapped {
    async fn store(&self) -> Arc<dyn Store> {
        // A store that is shared is a store, as an `Arc`.
        Arc::new(FaultyStore::new(self.0.store().await).0)
    }

    async fn lose(&self, name: &Name) {
        self.0.lose(name).await;
    }

    async fn occupy(&self, name: &Name) -> bool {
        self.0.occupy(name).await
    }

    async fn elapse(&self, time: Duration) {
        self.0.elapse(time).await;
    }

    fn ttl(&self) -> Duration {
        self.0.ttl()
    }

    fn slack(&self) -> Duration {
        self.0.slack()
    }
}

struct Redis(kit::Server);

impl Redis {
    fn start() -> Self {
        let server = kit::Server::start();
        // An expired key stays in memory until a command asks for it: the harder case.
        server.command(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"]);
        Self(server)
    }
}

#[async_trait::async_trait]
impl Harness for Redis {
    async fn store(&self) -> Arc<dyn Store> {
        let store = leasehold::testing::redis_store(&self.0.url(), Duration::from_secs(30)).await;
        store.expect("the server is there")
    }

    async fn lose(&self, name: &Name) {
        let deleted = self.0.command(&["DEL", name.as_str()]);
        assert_eq!(deleted.int(), 1);
    }

    async fn occupy(&self, name: &Name) -> bool {
        let reply = self.0.command(&["SET", name.as_str(), "7"]);
        assert_eq!(reply.text(), "OK");
        true
    }

    fn ttl(&self) -> Duration {
        Duration::from_millis(300)
    }
}

/// A JVM takes its time, so the tests share one as long as they run together.
struct ZooKeeper(Arc<kit::zookeeper::ZooKeeper>);

impl ZooKeeper {
    fn start() -> Self {
        static SHARED: Mutex<Weak<kit::zookeeper::ZooKeeper>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let server = shared.upgrade().unwrap_or_else(|| {
            let server = Arc::new(kit::zookeeper::ZooKeeper::start());
            *shared = Arc::downgrade(&server);
            server
        });
        Self(server)
    }
}

#[async_trait::async_trait]
impl Harness for ZooKeeper {
    async fn store(&self) -> Arc<dyn Store> {
        let ttl = Duration::from_secs(60);
        let store = leasehold::testing::zookeeper_store(&self.0.url(), ttl).await;
        store.expect("the server is there")
    }

    async fn lose(&self, name: &Name) {
        let client = zookeeper_client::Client::connect(&self.0.hosts()).await.expect("a session");
        let directory = kit::zookeeper::directory(name.as_str());
        let nodes = client.list_children(&directory).await.expect("it is held");
        assert_eq!(nodes.len(), 1);
        client.delete(&format!("{directory}/{}", nodes[0]), None).await.expect("deleted");
    }

    async fn occupy(&self, _: &Name) -> bool {
        false
    }

    fn ttl(&self) -> Duration {
        Duration::from_millis(500)
    }

    /// A lease is ended late by a fiftieth of the longest time to live, and by a round trip.
    fn slack(&self) -> Duration {
        Duration::from_secs(2)
    }
}

/// The manager's own subscription outlives its last waiter, and does not count.
#[tokio::test]
async fn release_counts_the_subscribers_of_others() {
    let harness = Redis::start();
    let (here, there) = (harness.store().await, harness.store().await);
    let target = Target::exclusive(Name::new("job").expect("a name"));
    let (ttl, timeout) = (Duration::from_secs(30), Duration::from_secs(10));
    let wait = || Wait::new(target.clone(), None, timeout);
    let channel = kit::look::channel("job");
    let mut connection = harness.0.connection();
    let mut heard = Vec::new();
    let mut others = None;
    for number in 0..4 {
        match number {
            1 => drop(here.subscribe(wait()).await.expect("subscribed")),
            2 => others = there.subscribe(wait()).await.expect("subscribed"),
            3 => {
                kit::eventually(Duration::from_secs(10), || {
                    kit::look::subscribers(&mut connection, &channel) == 1
                })
                .await
            }
            _ => {}
        }
        let holder = HolderId::new(uuid::Uuid::new_v4(), number);
        let request = Acquire::new(target.clone(), holder, ttl, timeout);
        here.acquire(request).await.expect("granted");
        match here.release(Release::new(target.clone(), holder, 0, timeout)).await {
            Ok(Released::Done { listeners, .. }) => heard.push(listeners),
            other => panic!("{other:?}"),
        }
    }
    // No listener; this manager alone; both; the other alone.
    assert_eq!(heard, [0, 0, 1, 1]);
    drop(others);
}

fn manifest() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).expect("the sources are there");
    entries.map(|entry| entry.expect("readable").path()).collect()
}

/// The text of a module: of its file, or of all files in its directory.
fn module(path: &Path) -> String {
    if path.is_dir() {
        files(path).iter().filter(|path| path.is_file()).map(read).collect()
    } else {
        read(path)
    }
}

#[test]
fn every_store_has_its_run() {
    let here = read(manifest().join("tests/stores/conformance.rs"));
    let mut stores = BTreeSet::new();
    for path in files(&manifest().join("src/store")) {
        if !path.ends_with("mod.rs") && module(&path).contains(" Store for ") {
            let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
            stores.insert(name);
        }
    }
    assert!(stores.contains("memory") && stores.contains("redis"), "{stores:?}");
    for store in stores {
        let run = format!("mod {store} {{\n    leasehold::conformance_suite!(");
        assert!(here.contains(&run), "src/store/{store} is a store; let the suite run with it");
    }
}

#[test]
fn every_case_is_in_the_suite() {
    let suite = read(manifest().join("src/testing/conformance/mod.rs"));
    let (_, list) = suite.split_once("@each [").expect("the list of cases");
    let (list, _) = list.split_once('}').expect("the end of the list");
    let listed: BTreeSet<&str> = list.lines().skip(1).map(str::trim).collect();
    let cases = module(&manifest().join("src/testing/conformance"));
    let cases: BTreeSet<&str> = cases
        .lines()
        .filter_map(|line| line.strip_prefix("pub async fn "))
        .filter_map(|line| line.split_once('('))
        .map(|(name, _)| name)
        .collect();
    assert!(cases.len() > 20, "{cases:?}");
    for case in cases {
        assert!(listed.contains(case), "{case} is not in conformance_suite!");
    }
}
