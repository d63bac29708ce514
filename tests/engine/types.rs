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
    free::<LeaseManager>();
    free::<Builder>();
    free::<Lock>();
    free::<Holder>();
    free::<Lease>();
    free::<LeaseState>();
    free::<HolderInfo>();
    free::<Error>();
    free::<ErrorKind>();
    free::<Fate>();
    free::<Loss>();
    free::<CloseError>();
    free::<CancellationToken>();
    free::<Clock>();
    free::<clock::Instant>();
    free::<MemoryStore>();
    free::<Name>();
    free::<HolderId>();
    free::<Wakeups>();
    free::<Signal>();
    free::<store::Target>();
    free::<store::Capabilities>();
    free::<store::Wait>();
    free::<store::Inspect>();
    free::<store::Inspection>();
    free::<store::ForceRelease>();
    free::<store::RenewBatch>();
    free::<store::Acquire>();
    free::<store::Acquired>();
    free::<store::Release>();
    free::<store::Released>();
    free::<store::Renewal>();
    free::<store::Renewed>();
    free::<FaultyStore<MemoryStore>>();
    free::<Faults>();
    free::<Fault>();
    free::<Rule>();
    free::<leasehold::View>();
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

#[tokio::test(start_paused = true)]
async fn lease_moves_to_another_task() {
    let leases = LeaseManager::in_memory();
    let lease = leases.lock("n").lock().await.unwrap();
    let task = tokio::spawn(async move {
        sleep(5 * T).await;
        lease.check().unwrap();
        lease.unlock().await
    });
    task.await.unwrap().unwrap();
    assert!(leases.inspect("n").await.unwrap().is_none());
}

#[test]
fn each_time_to_live_of_the_documented_range_is_taken_as_it_is() {
    for seconds in [1, 13 * 3600, 365 * 24 * 3600] {
        let builder =
            LeaseManager::builder().ttl(Duration::from_secs(seconds)).dedicated_thread(true);
        builder.build(MemoryStore::new()).unwrap_or_else(|error| panic!("{seconds} s: {error}"));
    }
}
