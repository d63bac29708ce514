//! A quorum of memory stores, in virtual time: nodes fail, are slow, or restart empty.

mod changes;
mod fates;
mod jobs;
mod nodes;
mod outage;
mod redis;
mod redis_shared;
mod redis_tokens;
mod shared;
mod shared_random;
mod splits;
mod store;
mod tokens;
mod verdicts;

use leasehold::store::{MemoryStore, Name, Quorum, Store};
use leasehold::testing::{Fault, Faults, FaultyStore, Rule};
use leasehold::{Error, ErrorKind, LeaseManager};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// The time to live of all these leases, and what follows from it.
const T: Duration = Duration::from_secs(30);
const C: Duration = Duration::from_millis(27_698);
const PERIOD: Duration = Duration::from_secs(10);
const MOMENT: Duration = Duration::from_millis(1);

/// Servers, in memory.
struct Nodes(Vec<MemoryStore>);

impl Nodes {
    fn new(count: usize) -> Self {
        Self((0..count).map(|_| MemoryStore::new()).collect())
    }

    /// One more process, whose way to each node can be disturbed.
    fn process(&self) -> (LeaseManager, Vec<Faults>) {
        let (stores, faults) = self.handles();
        let quorum = Quorum::new(stores).expect("enough nodes");
        (LeaseManager::builder().ttl(T).build(quorum).expect("good settings"), faults)
    }

    fn handles(&self) -> (Vec<Arc<dyn Store>>, Vec<Faults>) {
        let handle = |node: &MemoryStore| {
            let (store, faults) = FaultyStore::new(node.clone());
            (Arc::new(store) as Arc<dyn Store>, faults)
        };
        self.0.iter().map(handle).unzip()
    }

    /// How many keys each node has.
    fn keys(&self) -> Vec<usize> {
        self.0.iter().map(MemoryStore::len).collect()
    }

    fn free(&self) -> bool {
        self.keys().iter().all(|keys| *keys == 0)
    }
}

/// Lets everything run until it waits.
async fn settle() {
    sleep(MOMENT).await;
}

async fn timed<F: Future>(future: F) -> (Duration, F::Output) {
    let start = Instant::now();
    let output = future.await;
    (start.elapsed(), output)
}

fn down() -> Rule {
    Rule::new(Fault::Fail(Error::new(ErrorKind::Unavailable, "out of order")))
}

fn name(name: &str) -> Name {
    Name::new(name).expect("a good name")
}
