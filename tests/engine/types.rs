//! Which public types are `Send`, `Sync` and `'static`, as a table, and which futures can be spawned.

use super::*;
use leasehold::clock::{self, Clock};
use leasehold::store::{self, HolderId, Name, Signal, Wakeups};
use leasehold::{CancellationToken, CloseError, Fate, Holder, HolderInfo, LeaseState, Lock};
use std::fmt::Debug;

fn free<T: Send + Sync + Unpin + Debug + 'static>() {}

fn clone<T: Clone>() {}

fn sent<F: Future + Send>(future: F) -> F {
    future
}

#[test]
fn every_type_can_be_sent_shared_and_shown() {
    macro_rules! all_free {
        ($($type:ty)*) => { $(free::<$type>();)* };
    }
    all_free! {
        LeaseManager Builder Lock Holder Lease LeaseState HolderInfo Error ErrorKind Fate
        Loss CloseError CancellationToken Clock clock::Instant MemoryStore Name HolderId
        Wakeups Signal store::Target store::Capabilities store::Wait store::Inspect
        store::Inspection store::ForceRelease store::RenewBatch store::Acquire
        store::Acquired store::Release store::Released store::Renewal store::Renewed
        FaultyStore<MemoryStore> Faults Fault Rule leasehold::View
    }
    clone::<leasehold::View>();
    clone::<LeaseManager>();
    clone::<Builder>();
    clone::<Error>();
    clone::<MemoryStore>();
    clone::<Faults>();
}

#[tokio::test(start_paused = true)]
async fn every_future_can_be_spawned() {
    let leases = LeaseManager::in_memory();
    let mut lock = leases.lock("n");
    let mut holder = leases.holder();
    drop(sent(lock.lock()).await);
    drop(sent(lock.try_lock()).await);
    drop(sent(lock.lock_timeout(T)).await);
    drop(sent(holder.lock("n")).await);
    drop(sent(holder.try_lock("n")).await);
    drop(sent(holder.lock_timeout("n", T)).await);
    let lease = sent(holder.lock("m")).await.unwrap();
    sent(lease.run(async {})).await.unwrap();
    sent(lease.ensure_remaining(MOMENT)).await.unwrap();
    drop(sent(lease.lost()));
    sent(lease.unlock()).await.unwrap();
    sent(leases.inspect("n")).await.unwrap();
    sent(leases.force_unlock("n", "test")).await.unwrap();
    drop(sent(LeaseManager::connect("memory:")));
    drop(sent(LeaseManager::builder().connect("memory:")));
    sent(leases.close()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn with_can_be_spawned_with_a_body_that_borrows() {
    let leases = LeaseManager::in_memory();
    let mut lock = leases.lock("n");
    let task = tokio::spawn(async move {
        let mut seen = Vec::new();
        let count = lock
            .with(async |lock, lease| {
                seen.push(lease.name().to_owned());
                let inner = lock.lock().await?;
                seen.push(inner.name().to_owned());
                Ok::<_, Error>(lease.hold_count())
            })
            .await??;
        Ok::<_, Error>((count, seen.len()))
    });
    assert_eq!(task.await.unwrap().unwrap(), (2, 2));
}

#[test]
fn each_time_to_live_of_the_documented_range_is_taken_as_it_is() {
    for seconds in [1, 13 * 3600, 365 * 24 * 3600] {
        let builder =
            LeaseManager::builder().ttl(Duration::from_secs(seconds)).dedicated_thread(true);
        builder.build(MemoryStore::new()).unwrap_or_else(|error| panic!("{seconds} s: {error}"));
    }
}
