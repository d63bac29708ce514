//! A store that breaks its contract must cost a lease at worst, never let one be believed for ever.

use super::*;
use leasehold::clock::Clock;
use leasehold::store::{
    Acquire, Acquired, Capabilities, Holding, Name, Release, Released, Renewal, Renewed, Store,
    StoreFuture, Wakeups,
};
use std::sync::{Arc, Mutex};

/// Does not renew as it should.
#[derive(Debug)]
struct Broken {
    store: MemoryStore,
    renewals: Renewals,
}

#[derive(Debug)]
enum Renewals {
    /// Answers with so many verdicts, whatever was asked.
    Miscount(usize),
    /// Blocks the thread that asks, until this is unlocked.
    Block(Arc<Mutex<()>>),
}

#[async_trait::async_trait]
impl Store for Broken {
    fn clock(&self) -> Clock {
        self.store.clock()
    }
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }
    fn acquire(&self, request: Acquire) -> StoreFuture<Acquired> {
        self.store.acquire(request)
    }
    fn release(&self, request: Release) -> StoreFuture<Released> {
        self.store.release(request)
    }
    fn renew(&self, _: Vec<Renewal>, _: Duration) -> StoreFuture<Renewed> {
        let verdicts = match &self.renewals {
            Renewals::Miscount(verdicts) => *verdicts,
            Renewals::Block(gate) => {
                drop(gate.lock());
                0
            }
        };
        let (sent, verdicts) = (self.clock().now(), (0..verdicts).map(|_| Ok(None)).collect());
        Box::pin(std::future::ready(Ok(Renewed { sent, verdicts })))
    }
    async fn inspect(&self, name: &Name) -> Result<Option<Holding>> {
        self.store.inspect(name).await
    }
    async fn force_release(&self, name: &Name) -> Result<bool> {
        self.store.force_release(name).await
    }
    async fn subscribe(&self, name: &Name) -> Result<Option<Wakeups>> {
        self.store.subscribe(name).await
    }
    async fn close(&self) {}
}

#[tokio::test(start_paused = true)]
async fn verdicts_for_another_number_of_leases_renew_none_and_the_token_fires_at_c() {
    for verdicts in [0, 2] {
        let renewals = Renewals::Miscount(verdicts);
        let store = Broken { store: MemoryStore::new(), renewals };
        let leases = LeaseManager::builder().store(store).unwrap();
        let lease = leases.lock("n").lock().await.unwrap();
        let (took, loss) = tokio::time::timeout(T, timed(lease.lost())).await.expect("it is told");
        assert_eq!(loss, Loss::Expired);
        assert_eq!(took, C, "{verdicts}");
    }
}

/// In real time: a thread that is blocked knows no other. What fires tokens asks no store.
#[tokio::test]
async fn a_store_that_blocks_its_thread_delays_no_token() {
    let (memory, gate) = (MemoryStore::new(), Arc::new(Mutex::new(())));
    let ttl = Duration::from_secs(1);
    let store = Broken { store: memory.clone(), renewals: Renewals::Block(Arc::clone(&gate)) };
    let here = LeaseManager::builder().ttl(ttl).own_thread(true).store(store).unwrap();
    let there = LeaseManager::builder().ttl(ttl).store(memory).unwrap();
    let lease = here.lock("n").lock().await.unwrap();
    let token = lease.token();
    let blocked = gate.lock().unwrap();
    let next = there.lock("n").lock().await.unwrap();
    assert!(token.is_cancelled());
    drop(blocked);
    next.check().unwrap();
}
