//! A store that breaks its contract may cost a lease. It must never keep a lease alive forever.

use super::*;
use leasehold::store::{
    Acquire, Acquired, Mode, Name, Release, Released, RenewBatch, RenewCall, Renewed, SetVerdicts,
    Signal, Store, StoreFuture, Uptime, Wait, Wakeups,
};
use leasehold::{Fate, LeaseState};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};

/// Does one thing not as it should.
#[derive(Debug)]
struct Broken {
    store: MemoryStore,
    breaks: Breaks,
}

#[derive(Debug)]
enum Breaks {
    /// Answers a renewal with so many verdicts, whatever was asked.
    Miscount(usize),
    /// Makes one call of a renewal, for the items at these positions, whatever was asked.
    Misplace(Vec<usize>),
    /// Blocks the thread that asks for a renewal, until the other end is dropped.
    Block(Mutex<mpsc::Receiver<()>>),
    /// Reports that free names are held, for the longest time there is, this many times.
    HeldForEver(AtomicUsize),
    /// Panics when it is asked for a release, so many times; not when that is polled.
    PanicAtRelease(AtomicUsize),
    /// The same for a renewal.
    PanicAtRenewal(AtomicUsize),
    /// Panics whenever it is asked for the part that keeps a name.
    PanicAtShard,
    /// Panics when it is closed.
    PanicAtClose,
    /// Grants the first so many names of a set, and answers for the others that they were spared.
    GrantPartOfSet(usize),
    /// Makes no reader of a writer.
    KeepWriters,
    /// Panics when it is asked whether it grants names in one step.
    PanicAtSet,
    /// Fails renewals by an error whose source takes this long to drop.
    SlowSource(Duration),
    /// Wakes each waiter with each request, of whatever name.
    WakeAlways(Signal),
    /// Reports the thread that drops the store.
    ReportDrop(#[expect(dead_code, reason = "dropped with the store")] DropsOn),
}

/// Sends the name of the thread that drops it.
#[derive(Debug)]
struct DropsOn(mpsc::Sender<Option<String>>);

impl Drop for DropsOn {
    fn drop(&mut self) {
        let thread = std::thread::current().name().map(str::to_owned);
        self.0.send(thread).expect("the test waits");
    }
}

/// What an error of a store may have in it.
#[derive(Debug)]
struct SlowToDrop(Duration);

impl Drop for SlowToDrop {
    fn drop(&mut self) {
        std::thread::sleep(self.0);
    }
}

impl std::fmt::Display for SlowToDrop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("slow to drop")
    }
}

impl std::error::Error for SlowToDrop {}

/// Whether it is still to be done, of so many times.
fn once_more(times: &AtomicUsize) -> bool {
    times.fetch_update(SeqCst, SeqCst, |times| times.checked_sub(1)).is_ok()
}

#[async_trait::async_trait]
#[deny(clippy::missing_trait_methods)]
impl Store for Broken {
    kit::delegate_store! { store:
        clock capabilities resize inspect annotate describe owners force_release
        reconnects want inbox guard_key reserve list
    }

    fn shard(&self, name: &Name) -> usize {
        match &self.breaks {
            Breaks::PanicAtShard => panic!("the store was told to panic"),
            _ => self.store.shard(name),
        }
    }
    async fn subscribe(&self, request: Wait) -> Result<Option<Wakeups>> {
        match &self.breaks {
            Breaks::WakeAlways(signal) => Ok(Some(Wakeups::new(signal.clone(), ()))),
            _ => self.store.subscribe(request).await,
        }
    }
    fn acquire(&self, request: Acquire) -> StoreFuture<Acquired> {
        match &self.breaks {
            Breaks::WakeAlways(signal) => {
                signal.set();
                self.store.acquire(request)
            }
            Breaks::HeldForEver(times) if once_more(times) => {
                let remaining = Some(Duration::MAX);
                Box::pin(std::future::ready(Ok(Acquired::held(remaining))))
            }
            Breaks::KeepWriters if request.converts && request.target.mode == Mode::Read => {
                Box::pin(std::future::ready(Ok(Acquired::held(None))))
            }
            _ => self.store.acquire(request),
        }
    }
    fn acquire_all(&self, requests: Vec<Acquire>) -> StoreFuture<SetVerdicts> {
        match self.breaks {
            Breaks::GrantPartOfSet(size) => {
                let (store, count) = (self.store.clone(), requests.len());
                let part = requests.into_iter().take(size).collect();
                Box::pin(async move {
                    let mut verdicts = store.acquire_all(part).await?;
                    verdicts.resize(count, Ok(None));
                    Ok(verdicts)
                })
            }
            _ => self.store.acquire_all(requests),
        }
    }
    fn is_atomic(&self, names: &[&Name]) -> bool {
        match self.breaks {
            Breaks::PanicAtSet => panic!("the store was told to panic"),
            _ => self.store.is_atomic(names),
        }
    }
    fn release(&self, request: Release) -> StoreFuture<Released> {
        match &self.breaks {
            Breaks::PanicAtRelease(times) if once_more(times) => {
                panic!("the store was told to panic")
            }
            _ => self.store.release(request),
        }
    }
    fn renew(&self, batch: RenewBatch) -> Vec<RenewCall> {
        let verdicts = match &self.breaks {
            Breaks::Miscount(verdicts) => *verdicts,
            Breaks::Block(gate) => {
                let _ = gate.lock().map(|gate| gate.recv());
                0
            }
            Breaks::PanicAtRenewal(times) if once_more(times) => {
                panic!("the store was told to panic")
            }
            _ => 1,
        };
        let (sent, verdicts) = (self.clock().now(), (0..verdicts).map(|_| Ok(None)).collect());
        if let Breaks::SlowSource(time) = self.breaks {
            let error =
                Error::new(ErrorKind::Unavailable, "by the test").with_source(SlowToDrop(time));
            return vec![RenewCall::new(vec![0], Box::pin(std::future::ready(Err(error))))];
        }
        let (items, verdicts) = match &self.breaks {
            Breaks::Misplace(items) => (items.clone(), items.iter().map(|_| Ok(None)).collect()),
            _ => ((0..batch.items.len()).collect(), verdicts),
        };
        vec![RenewCall::new(items, Box::pin(std::future::ready(Ok(Renewed::new(sent, verdicts)))))]
    }
    async fn uptime(&self, timeout: Duration) -> Result<Uptime> {
        self.store.uptime(timeout).await
    }
    async fn close(&self, _: Duration) {
        assert!(!matches!(self.breaks, Breaks::PanicAtClose), "the store was told to panic");
    }
}

#[tokio::test(start_paused = true)]
async fn verdicts_for_a_wrong_number_of_leases_renew_none() {
    for verdicts in [0, 2] {
        let store = Broken { store: MemoryStore::new(), breaks: Breaks::Miscount(verdicts) };
        let leases = LeaseManager::builder().build(store).unwrap();
        let lease = leases.lock("n").lock().await.unwrap();
        let (took, loss) = tokio::time::timeout(T, timed(lease.lost())).await.expect("it is told");
        assert_eq!(loss, Loss::Expired);
        assert_eq!(took, C, "{verdicts}");
    }
}

#[tokio::test(start_paused = true)]
async fn calls_for_other_leases_than_those_asked_for_renew_none() {
    for items in [vec![], vec![1], vec![0, 0], vec![0, 1]] {
        let case = format!("{items:?}");
        let store = Broken { store: MemoryStore::new(), breaks: Breaks::Misplace(items) };
        let leases = LeaseManager::builder().build(store).unwrap();
        let lease = leases.lock("n").lock().await.unwrap();
        let (took, loss) = tokio::time::timeout(T, timed(lease.lost())).await.expect("it is told");
        assert_eq!((loss, took), (Loss::Expired, C), "{case}");
    }
}

/// Locks on a store that breaks so, and elsewhere on a sound way to the same names. The token fires before the other one gets in.
/// In real time: a thread that is blocked knows no other.
async fn token_fires_before_the_next_enters(breaks: Breaks) -> Lease {
    let memory = MemoryStore::new();
    let ttl = Duration::from_secs(1);
    let store = Broken { store: memory.clone(), breaks };
    let here = LeaseManager::builder().ttl(ttl).dedicated_thread(true).build(store).unwrap();
    let there = LeaseManager::builder().ttl(ttl).build(memory).unwrap();
    let lease = here.lock("n").lock().await.unwrap();
    let token = lease.cancellation_token();
    let next = there.lock("n").lock().await.unwrap();
    assert!(token.is_cancelled());
    next
}

/// What fires tokens asks no store.
#[tokio::test]
async fn store_that_blocks_its_thread_delays_no_token() {
    let (blocked, gate) = mpsc::channel();
    let next = token_fires_before_the_next_enters(Breaks::Block(Mutex::new(gate))).await;
    drop(blocked);
    next.check().unwrap();
}

#[tokio::test]
async fn errors_that_are_slow_to_drop_delay_no_token() {
    let breaks = Breaks::SlowSource(Duration::from_secs(1));
    token_fires_before_the_next_enters(breaks).await.check().unwrap();
}

/// A store may take long to drop. One thread fires the tokens of all managers whose runtime has ended or is blocked.
#[test]
fn store_is_not_dropped_on_the_thread_that_fires_tokens() {
    for _ in 0..20 {
        let (sender, dropped) = mpsc::channel();
        let first = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let leases = first.block_on(async {
            let breaks = Breaks::ReportDrop(DropsOn(sender));
            let store = Broken { store: MemoryStore::new(), breaks };
            let leases = LeaseManager::builder().dedicated_thread(false).build(store).unwrap();
            leases.lock("n").lock().await.unwrap().forget();
            leases
        });
        drop(first);
        drop(leases);
        let thread = dropped.recv_timeout(T).expect("dropped");
        assert_ne!(thread.as_deref(), Some("leasehold-spare"));
    }
}

#[tokio::test]
async fn waiter_that_is_woken_always_starves_no_other_task() {
    let breaks = Breaks::WakeAlways(Signal::new());
    let store = Arc::new(Broken { store: MemoryStore::new(), breaks });
    let manager = || LeaseManager::builder().build(Arc::clone(&store)).unwrap();
    let lease = manager().lock("n").lock().await.unwrap();
    let leases = manager();
    let waiting = tokio::spawn(async move { leases.lock("n").lock().await });
    for _ in 0..20 {
        sleep(MOMENT).await;
    }
    assert!(!waiting.is_finished());
    lease.unlock().await.unwrap();
    drop(waiting.await.unwrap().unwrap());
}

#[tokio::test(start_paused = true)]
async fn time_to_live_that_no_clock_can_count_is_only_a_long_one() {
    let breaks = Breaks::HeldForEver(AtomicUsize::new(2));
    let store = Broken { store: MemoryStore::new(), breaks };
    let leases = LeaseManager::builder().build(store).unwrap();
    let (took, lease) = timed(leases.lock("n").lock()).await;
    drop(lease.unwrap());
    assert!(took <= Duration::from_secs(2), "the poll bound counts: {took:?}");
}

#[tokio::test(start_paused = true)]
async fn store_that_panics_at_a_release_is_asked_again() {
    let memory = MemoryStore::new();
    let breaks = Breaks::PanicAtRelease(AtomicUsize::new(1));
    let store = Broken { store: memory.clone(), breaks };
    let leases = LeaseManager::builder().build(store).unwrap();
    drop(leases.lock("n").lock().await.unwrap());
    let there = LeaseManager::builder().build(memory).unwrap();
    let (took, lease) = timed(there.lock("n").lock()).await;
    drop(lease.unwrap());
    assert!(took < T / 2, "{took:?}");
    drop(leases.lock("n").lock().await.unwrap());
}

/// When it is asked, or when that is polled.
#[tokio::test(start_paused = true)]
async fn lease_is_renewed_as_soon_after_a_store_panic_as_a_failure() {
    for (asked, polled) in
        [(0, None), (0, Some(Fault::Fail(unavailable()))), (0, Some(Fault::Panic)), (1, None)]
    {
        let breaks = Breaks::PanicAtRenewal(AtomicUsize::new(asked));
        let (store, faults) = FaultyStore::new(Broken { store: MemoryStore::new(), breaks });
        let case = format!("{asked} {polled:?}");
        let fails = asked > 0 || polled.is_some();
        if let Some(fault) = polled {
            faults.add(Rule::new(fault).on(Call::Renew).times(1));
        }
        let leases = LeaseManager::builder().build(store).unwrap();
        let lease = leases.lock("n").lock().await.unwrap();
        faults.until_calls(Call::Renew, 1).await;
        let (took, ()) = timed(faults.until_calls(Call::Renew, 2)).await;
        assert_eq!(took <= T / 60, fails, "{case}: {took:?}");
        settle().await;
        assert_eq!(lease.state(), LeaseState::Held, "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn store_that_panics_when_asked_for_a_shard_loses_no_lease() {
    let store = Broken { store: MemoryStore::new(), breaks: Breaks::PanicAtShard };
    let leases = LeaseManager::builder().build(store).unwrap();
    let lease = leases.lock("n").lock().await.unwrap();
    sleep(T * 2).await;
    assert_eq!(lease.state(), LeaseState::Held);
}

#[tokio::test(start_paused = true)]
async fn inspect_that_panics_harms_nothing() {
    let setup = Setup::new();
    let lease = setup.leases.lock("n").lock().await.unwrap();
    setup.faults.add(Rule::new(Fault::Panic).on(Call::Inspect).times(1));
    let error = setup.leases.inspect("n").await.unwrap_err();
    assert_eq!((error.kind(), error.fate()), (ErrorKind::Unavailable, Fate::Unknown));
    assert!(setup.leases.inspect("n").await.unwrap().is_some());
    sleep(T * 2).await;
    lease.unlock().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn force_unlock_that_panics_is_tried_again() {
    let setup = Setup::new();
    let theirs = setup.held_elsewhere("theirs").await;
    let ours = setup.leases.lock("ours").lock().await.unwrap();
    setup.faults.add(Rule::new(Fault::Panic).on(Call::ForceRelease).times(2));
    for name in ["theirs", "ours"] {
        let error = setup.leases.force_unlock(name, "test").await.unwrap_err();
        assert_eq!((error.kind(), error.fate()), (ErrorKind::Unavailable, Fate::Unknown));
    }
    assert_eq!(ours.check().unwrap_err().loss(), Some(Loss::Revoked));
    drop(ours);
    let (took, again) = timed(setup.leases.lock("ours").lock()).await;
    drop(again.unwrap());
    assert!(took <= GRACE, "what was ours is owed to the store: {took:?}");
    assert!(setup.leases.force_unlock("theirs", "test").await.unwrap());
    drop(theirs);
}

/// The waiter goes by the clock, and subscribes again the next time. So does one behind a hold of its own process.
#[tokio::test(start_paused = true)]
async fn store_that_panics_at_subscribe_costs_no_more_than_a_failure() {
    let setup = Setup::new();
    let lease = setup.held_elsewhere("n").await;
    setup.faults.add(Rule::new(Fault::Panic).on(Call::Subscribe).times(1));
    let mut lock = setup.leases.lock("n");
    let waiter = tokio::spawn(async move { lock.lock().await });
    let again = setup.faults.until_calls(Call::Subscribe, 2);
    tokio::time::timeout(T, again).await.expect("the waiter subscribes again");
    settle().await;
    let (took, next) = timed(async {
        lease.unlock().await.unwrap();
        waiter.await.unwrap().unwrap()
    })
    .await;
    assert!(took <= MOMENT * 200, "the second one is heard: {took:?}");
    drop(next);
}

#[tokio::test(start_paused = true)]
async fn store_that_panics_at_close_leaves_the_manager_closed() {
    let memory = MemoryStore::new();
    let store = Broken { store: memory.clone(), breaks: Breaks::PanicAtClose };
    let leases = LeaseManager::builder().build(store).unwrap();
    drop(leases.lock("n").lock().await.unwrap());
    leases.close().await.unwrap();
    assert_eq!(failed(leases.lock("n").lock().await), ErrorKind::Closed);
    assert!(memory.is_empty());
}

#[tokio::test(start_paused = true)]
async fn downgrade_that_is_refused_does_not_give_the_writer_back() {
    let memory = MemoryStore::new();
    let store = Broken { store: memory.clone(), breaks: Breaks::KeepWriters };
    let leases = LeaseManager::builder().build(store).unwrap();
    let edit = leases.rw_lock("n").write().await.unwrap();
    let token = edit.cancellation_token();
    assert_eq!(failed(edit.downgrade().await), ErrorKind::Unavailable);
    assert!(token.is_cancelled());
    settle().await;
    assert!(memory.is_empty());
}

/// A set is granted whole, or not at all.
#[tokio::test(start_paused = true)]
async fn part_of_a_set_is_no_lease() {
    for size in 0..3 {
        let store = MemoryStore::new();
        let broken = Broken { store: store.clone(), breaks: Breaks::GrantPartOfSet(size) };
        let leases = LeaseManager::builder().build(broken).unwrap();
        let mut set = leases.multi_lock(["a", "b", "c"]).unwrap();
        assert_eq!(failed(set.try_lock().await.map(drop)), ErrorKind::Protocol, "{size}");
        assert_eq!(failed(set.lock().await.map(drop)), ErrorKind::Protocol, "{size}");
        settle().await;
        for name in ["a", "b", "c"] {
            assert!(leases.inspect(name).await.unwrap().is_none(), "{size}: {name}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn store_that_panics_at_a_set_takes_each_name_by_itself() {
    let broken = Broken { store: MemoryStore::new(), breaks: Breaks::PanicAtSet };
    let leases = LeaseManager::builder().build(broken).unwrap();
    let mut set = leases.multi_lock(["a", "b"]).unwrap();
    assert!(!set.is_atomic());
    set.lock().await.unwrap().unlock().await.unwrap();
}
