//! A store that breaks its contract must cost a lease at worst, never let one be believed for ever.

use super::*;
use leasehold::clock::Clock;
use leasehold::store::{
    Acquire, Acquired, Capabilities, Holding, Name, Release, Released, Renewal, Renewed, Store,
    StoreFuture, Wakeups,
};

/// Answers renewals with so many verdicts, whatever was asked.
#[derive(Debug)]
struct Miscounts {
    store: MemoryStore,
    verdicts: usize,
}

#[async_trait::async_trait]
impl Store for Miscounts {
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
        let (sent, verdicts) = (self.clock().now(), (0..self.verdicts).map(|_| Ok(None)).collect());
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
        let store = Miscounts { store: MemoryStore::new(), verdicts };
        let leases = LeaseManager::builder().store(store).unwrap();
        let lease = leases.lock("n").lock().await.unwrap();
        let (took, loss) = tokio::time::timeout(T, timed(lease.lost())).await.expect("it is told");
        assert_eq!(loss, Loss::Expired);
        assert_eq!(took, C, "{verdicts}");
    }
}
