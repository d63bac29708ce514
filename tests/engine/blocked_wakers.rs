//! Wakers of waiting calls that block, or that call the library: no token of another lease is late for them.

use super::*;
use leasehold::store::{Name, Release, Store, Target};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};

const S: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

/// A waker that blocks its thread, once armed.
struct Blocks {
    is_armed: AtomicBool,
    used: AtomicBool,
}

impl Blocks {
    const FOR: Duration = Duration::from_secs(4);

    fn new() -> Arc<Self> {
        Arc::new(Self { is_armed: AtomicBool::new(false), used: AtomicBool::new(false) })
    }
}

impl Wake for Blocks {
    fn wake(self: Arc<Self>) {
        if self.is_armed.load(Ordering::SeqCst) && !self.used.swap(true, Ordering::SeqCst) {
            std::thread::sleep(Self::FOR);
        }
    }
}

/// Polls a call once with this waker. It waits then.
fn wait_with<F: Future + ?Sized>(call: Pin<&mut F>, waker: Arc<impl Wake + Send + Sync + 'static>) {
    assert!(call.poll(&mut Context::from_waker(&Waker::from(waker))).is_pending());
}

/// Returns how many of these names another manager gets while the token of their lease here is silent.
async fn held_twice(other: &LeaseManager, leases: &[Lease]) -> usize {
    let mut twice = 0;
    for lease in leases {
        let theirs = other.lock(lease.name()).try_lock().await.expect("an answer");
        twice += usize::from(theirs.is_some() && !lease.cancellation_token().is_cancelled());
    }
    twice
}

async fn twenty(leases: &LeaseManager) -> Vec<Lease> {
    let mut held = Vec::new();
    for number in 0..20 {
        held.push(leases.lock(format!("a{number}")).lock().await.expect("free"));
    }
    held
}

fn managers(store: impl Store, memory: &MemoryStore) -> (LeaseManager, LeaseManager) {
    let own = LeaseManager::builder().ttl(600 * MS).dedicated_thread(true).build(store);
    let other = LeaseManager::builder().ttl(30 * S).dedicated_thread(true).build(memory.clone());
    (own.expect("a manager"), other.expect("a manager"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn waker_that_blocks_in_a_renewal_delays_no_token() {
    let memory = MemoryStore::new();
    let (leases, other) = managers(memory.clone(), &memory);
    let held = twenty(&leases).await;
    let lost = leases.lock("x").lock().await.expect("free");
    // They are renewed together from the second renewal on.
    sleep(450 * MS).await;
    let (blocks, waiting) = (Blocks::new(), leases.clone());
    let mut waits = Box::pin(async move { waiting.lock("x").lock().await });
    wait_with(waits.as_mut(), Arc::clone(&blocks));
    sleep(70 * MS).await;
    blocks.is_armed.store(true, Ordering::SeqCst);
    let target = Target::exclusive(Name::new("x").expect("a name"));
    memory.release(Release::new(target, lost.holder_id(), 0, S)).await.expect("released");
    sleep(1200 * MS).await;
    assert!(blocks.used.load(Ordering::SeqCst), "its call was woken");
    assert_eq!(held_twice(&other, &held).await, 0);
    drop((waits, held));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn waker_that_blocks_at_a_loss_delays_no_token() {
    let memory = MemoryStore::new();
    let (store, faults) = FaultyStore::new(memory.clone());
    let (leases, other) = managers(store, &memory);
    let first = leases.lock("x").lock().await.expect("free");
    sleep(20 * MS).await;
    let held = twenty(&leases).await;
    let work = leases.lock("y").lock().await.expect("free");
    let work = tokio::spawn(async move { work.run(std::future::pending::<()>()).await });
    let (blocks, waiting) = (Blocks::new(), leases.clone());
    let mut waits = Box::pin(async move { waiting.lock("x").lock().await });
    wait_with(waits.as_mut(), Arc::clone(&blocks));
    sleep(70 * MS).await;
    blocks.is_armed.store(true, Ordering::SeqCst);
    faults.outage(20 * S);
    sleep(900 * MS).await;
    assert!(blocks.used.load(Ordering::SeqCst), "its call was woken");
    assert!(work.is_finished(), "the work goes on after the loss");
    assert_eq!(held_twice(&other, &held).await, 0);
    drop((waits, held, first));
}

/// Two readers wait behind a writer. The first is granted the name, and wakes the second, which joins, and a third one, whose
/// waker blocks.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn reader_that_joins_is_watched_whatever_a_waker_does() {
    let memory = MemoryStore::new();
    let (leases, other) = managers(memory.clone(), &memory);
    let write = leases.rw_lock("n").write().await.expect("free");
    let first = leases.clone();
    let first = tokio::spawn(async move {
        let lease = first.rw_lock("n").read().await.expect("its turn");
        sleep(2 * S).await;
        drop(lease);
    });
    sleep(20 * MS).await;
    let (second, (sender, token)) = (leases.clone(), tokio::sync::oneshot::channel());
    let second = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async move {
            let lease = second.rw_lock("n").read().await.expect("its turn");
            let _ = sender.send(lease.cancellation_token());
            sleep(2 * S).await;
            drop(lease);
        });
    });
    sleep(20 * MS).await;
    let (blocks, third) = (Blocks::new(), leases.clone());
    let mut third = Box::pin(async move { third.rw_lock("n").read().await });
    wait_with(third.as_mut(), Arc::clone(&blocks));
    sleep(40 * MS).await;
    blocks.is_armed.store(true, Ordering::SeqCst);
    write.unlock().await.expect("held");
    let token = token.await.expect("it joins");
    let theirs = other.rw_lock("n").write_timeout(S).await.expect("an answer");
    assert!(theirs.is_none() || token.is_cancelled(), "a reader and a writer at once");
    drop((theirs, third));
    first.await.expect("no panic");
    second.join().expect("no panic");
}

/// A waker that calls the handle of the writer, which would wait for the lock of its hold.
struct Enters {
    handle: Mutex<Option<leasehold::RwLock>>,
    is_armed: AtomicBool,
}

impl Wake for Enters {
    fn wake(self: Arc<Self>) {
        if !self.is_armed.swap(false, Ordering::SeqCst) {
            return;
        }
        let handle = self.handle.lock().expect("no panic").take();
        if let Some(mut handle) = handle {
            let mut enters = Box::pin(handle.try_read());
            let _ = enters.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        }
    }
}

#[test]
fn no_waker_runs_while_a_mode_changes_under_a_lock() {
    watched(|| async {
        let setup = Setup::new();
        let mut lock = setup.leases.rw_lock("n");
        let write = lock.write().await.expect("free");
        let is_armed = AtomicBool::new(false);
        let enters = Arc::new(Enters { handle: Mutex::new(Some(lock)), is_armed });
        let waiting = setup.leases.clone();
        let mut waits = Box::pin(async move { waiting.rw_lock("n").read().await });
        wait_with(waits.as_mut(), Arc::clone(&enters));
        enters.is_armed.store(true, Ordering::SeqCst);
        let read = write.downgrade().await.expect("held");
        assert!(!enters.is_armed.load(Ordering::SeqCst), "its call was woken");
        drop(read);
    });
}
