//! One call renews several leases: each lease gets its own verdict, whatever happens to the others.

use super::*;
use leasehold::LeaseState;
use leasehold::store::{Capabilities, Name, RenewBatch, RenewCall, Renewal, Store, Uptime};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Two leases, and the call that renews both: done, and not answered before the store is healed.
async fn under_way(setup: &Setup) -> (Lease, Lease) {
    let (mut a, mut b) = (setup.leases.lock("a"), setup.leases.lock("b"));
    let both = (a.lock().await.unwrap(), b.lock().await.unwrap());
    setup.faults.add(Rule::new(Fault::HoldReply).on(Call::Renew).times(1));
    setup.faults.until_calls(Call::Renew, 1).await;
    settle().await;
    both
}

async fn is_free(setup: &Setup, name: &str) -> bool {
    setup.other().lock(name).try_lock().await.unwrap().is_some()
}

#[tokio::test(start_paused = true)]
async fn all_are_renewed_when_the_call_is() {
    let setup = Setup::new();
    let (a, b) = under_way(&setup).await;
    setup.faults.heal();
    settle().await;
    for _ in 0..30 {
        for lease in [&a, &b] {
            assert!(lease.remaining() > C - T / 3 - 2 * MOMENT, "{:?}", lease.remaining());
            assert_eq!(lease.state(), LeaseState::Held);
        }
        sleep(T / 10).await;
    }
    let renewals = setup.calls(Call::Renew);
    assert!((9..=12).contains(&renewals), "{renewals} calls for both in 3 T");
    for lease in [a, b] {
        lease.unlock().await.unwrap();
    }
    assert!(is_free(&setup, "a").await && is_free(&setup, "b").await);
}

#[tokio::test(start_paused = true)]
async fn lease_that_is_over_stays_over_when_the_call_succeeds() {
    let setup = Setup::new();
    let (a, b) = under_way(&setup).await;
    setup.leases.force_unlock("a", "test").await.unwrap();
    assert_eq!(lost(a.check()), Loss::Revoked);
    b.unlock().await.unwrap();
    setup.faults.heal();
    settle().await;
    assert_eq!(lost(a.check()), Loss::Revoked);
    assert!(is_free(&setup, "a").await && is_free(&setup, "b").await);
    let renewals = setup.calls(Call::Renew);
    sleep(3 * T).await;
    assert_eq!(setup.calls(Call::Renew), renewals, "nothing is left to renew");
    assert_eq!(lost(a.check()), Loss::Revoked);
}

#[tokio::test(start_paused = true)]
async fn lease_that_goes_leaves_the_others_renewed() {
    let setup = Setup::new();
    let (a, b) = under_way(&setup).await;
    a.unlock().await.unwrap();
    setup.faults.heal();
    settle().await;
    assert!(b.remaining() > C - 3 * MOMENT, "{:?}", b.remaining());
    sleep(3 * T).await;
    b.check().unwrap();
}

#[tokio::test(start_paused = true)]
async fn waiter_that_begins_under_way_hears_of_the_success() {
    let second = Duration::from_secs(1);
    let setup = Setup::with(LeaseManager::builder().ttl(second));
    let start = Instant::now();
    let (a, b) = under_way(&setup).await;
    // An attempt ends at 466 ms at the earliest.
    tokio::time::sleep_until(start + Duration::from_millis(420)).await;
    let mut ensured = Box::pin(a.ensure_remaining(second / 2));
    assert!(poll_once(ensured.as_mut()).await.is_pending());
    setup.faults.heal();
    let (took, result) = timed(ensured).await;
    result.unwrap();
    assert!(took <= MOMENT, "{took:?}");
    b.ensure_remaining(second / 2).await.unwrap();
}

/// The process stood still, and the answer was there when it woke up.
#[tokio::test(start_paused = true)]
async fn success_that_is_read_after_c_counts_for_nobody() {
    let setup = Setup::new();
    let start = Instant::now();
    let (a, b) = under_way(&setup).await;
    setup.faults.heal();
    // By what was confirmed before; by this answer they would be held.
    tokio::time::advance(C + MOMENT - start.elapsed()).await;
    for lease in [&a, &b] {
        assert_eq!(lost(lease.check()), Loss::Expired);
    }
    sleep(T).await;
    for lease in [&a, &b] {
        assert_eq!(lost(lease.check()), Loss::Expired);
    }
}

/// The watchdog stood still, and a task waits already when it starts the renewal.
#[tokio::test(start_paused = true)]
async fn waiter_before_the_call_leaves_hears_of_its_success() {
    let setup = Setup::new();
    let lease = setup.leases.lock("a").lock().await.unwrap();
    let late = tokio::time::advance(T * 6 / 10);
    let (_, (took, result)) = tokio::join!(late, timed(lease.ensure_remaining(T / 2)));
    result.unwrap();
    assert!(took <= MOMENT, "{took:?}");
}

/// Counts renewals, and those that prolong the memory of the fencing token. Each name has a shard of its own.
#[derive(Debug)]
struct Counting {
    store: MemoryStore,
    sharded: bool,
    calls: Arc<AtomicUsize>,
    all: Arc<AtomicUsize>,
    kept: Arc<AtomicUsize>,
}

impl Counting {
    fn new(sharded: bool) -> Self {
        let (calls, all, kept) = Default::default();
        Self { store: MemoryStore::new(), sharded, calls, all, kept }
    }
}

#[async_trait::async_trait]
#[deny(clippy::missing_trait_methods)]
impl Store for Counting {
    kit::delegate_store! { store:
        clock acquire acquire_all is_atomic release resize inspect annotate describe
        owners force_release subscribe reconnects want inbox reserve list
    }

    fn capabilities(&self) -> Capabilities {
        // As many as there are.
        self.store.capabilities().with_renewal_batch(usize::MAX)
    }
    fn shard(&self, name: &Name) -> usize {
        name.as_str().bytes().map(usize::from).sum()
    }
    fn renew(&self, batch: RenewBatch) -> Vec<RenewCall> {
        let kept = batch.items.iter().filter(|item| batch.retention_of(item).is_some()).count();
        self.all.fetch_add(batch.items.len(), Ordering::Relaxed);
        self.kept.fetch_add(kept, Ordering::Relaxed);
        let shard = |item: &Renewal| if self.sharded { self.shard(&item.target.name) } else { 0 };
        RenewCall::divide(batch, usize::MAX, shard, |part| {
            self.calls.fetch_add(1, Ordering::Relaxed);
            RenewCall::join(self.store.renew(part))
        })
    }
    fn guard_key(&self, name: &Name) -> Option<String> {
        Some(name.as_str().to_owned())
    }
    async fn uptime(&self, timeout: Duration) -> Result<Uptime> {
        self.store.uptime(timeout).await
    }
    async fn close(&self, _: Duration) {}
}

#[tokio::test(start_paused = true)]
async fn fencing_token_kept_in_memory_is_known_to_each() {
    let store = Counting::new(false);
    let (all, kept) = (Arc::clone(&store.all), Arc::clone(&store.kept));
    // A renewal in 20 s to 30 s prolongs it: every second one or third one.
    let leases = LeaseManager::builder().fence_retention(Some(T * 8 / 3)).build(store).unwrap();
    let both = (leases.lock("a").lock().await.unwrap(), leases.lock("b").lock().await.unwrap());
    sleep(10 * T).await;
    let (all, kept) = (all.load(Ordering::Relaxed), kept.load(Ordering::Relaxed));
    assert!(all >= 58, "{all}");
    assert!((all / 3 - 2..=all / 2 + 2).contains(&kept), "{kept} of {all}");
    drop(both);
}

#[tokio::test(start_paused = true)]
async fn parts_of_a_store_that_fail_alone_have_their_own_calls() {
    for sharded in [false, true] {
        let store = Counting::new(sharded);
        let (calls, all) = (Arc::clone(&store.calls), Arc::clone(&store.all));
        let leases = LeaseManager::builder().build(store).unwrap();
        let (a, b) =
            (leases.lock("a").lock().await.unwrap(), leases.lock("b").lock().await.unwrap());
        sleep(10 * T).await;
        let (calls, all) = (calls.load(Ordering::Relaxed), all.load(Ordering::Relaxed));
        assert_eq!(calls == all, sharded, "{calls} calls for {all} renewals");
        for lease in [a, b] {
            lease.check().unwrap();
        }
    }
}

/// The guard names the holder id, which a hand-off keeps.
#[tokio::test(start_paused = true)]
async fn lease_with_a_guard_is_released_and_not_handed_off() {
    for guarded in [false, true] {
        let leases = LeaseManager::builder().build(Counting::new(false)).unwrap();
        let old = leases.lock("a").lock().await.unwrap();
        let guard = guarded.then(|| old.guard().unwrap());
        let mut lock = leases.lock("a");
        let mut next = Box::pin(lock.lock());
        assert!(poll_once(next.as_mut()).await.is_pending());
        let holder = old.holder_id();
        old.unlock().await.unwrap();
        let next = next.await.unwrap();
        assert_eq!(next.holder_id() == holder, guard.is_none());
    }
}
