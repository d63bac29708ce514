//! Fair locks: the order of arrival among processes, with a manager for each.

use super::cancel::{Cut, at_every_await_of};
use super::*;
use leasehold::WaitingManager;
use leasehold::store::{Capabilities, Line, Quorum, Store};
use std::sync::{Arc, Mutex};
use tokio::task::{JoinHandle, JoinSet};

/// The time for which a place is kept after its last refresh.
const W: Duration = Duration::from_secs(6);

/// The grants so far, by the names of the waiters.
#[derive(Clone, Default)]
struct Grants(Arc<Mutex<Vec<&'static str>>>);

impl Grants {
    /// Waits as `who`, and holds the lock for a while.
    fn wait(&self, leases: &LeaseManager, who: &'static str, hold: Duration) -> JoinHandle<()> {
        let (mut lock, grants) = (leases.fair_lock("n"), self.clone());
        tokio::spawn(async move {
            let lease = lock.lock().await.unwrap();
            grants.0.lock().unwrap().push(who);
            sleep(hold).await;
            lease.unlock().await.unwrap();
        })
    }

    fn so_far(&self) -> Vec<&'static str> {
        self.0.lock().unwrap().clone()
    }
}

async fn join(tasks: impl IntoIterator<Item = JoinHandle<()>>) {
    for task in tasks {
        task.await.unwrap();
    }
}

async fn line(leases: &LeaseManager) -> Vec<WaitingManager> {
    leases.waiters("n").await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn fair_lock_goes_in_the_order_of_arrival() {
    let setup = Setup::new();
    let (b, c) = (setup.other(), setup.other());
    let grants = Grants::default();
    let blocker = setup.held_elsewhere("n").await;
    let mut tasks = Vec::new();
    // The second waiters of `b` and of the first manager come back with their own age.
    for (leases, who) in [
        (&b, "1"),
        (&setup.leases, "2"),
        (&b, "3"),
        (&c, "4"),
        (&setup.leases, "5"),
        (&b, "6"),
        (&c, "7"),
        (&c, "8"),
        (&setup.leases, "9"),
    ] {
        tasks.push(grants.wait(leases, who, Duration::from_millis(300)));
        sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(line(&c).await.len(), 3, "one place for each manager");
    blocker.unlock().await.unwrap();
    join(tasks).await;
    assert_eq!(grants.so_far(), ["1", "2", "3", "4", "5", "6", "7", "8", "9"]);
    settle().await;
    assert!(line(&c).await.is_empty());
    assert!(setup.memory.is_empty());
}

/// The release takes the place of the next local waiter in the same step, before a waiter elsewhere can ask.
#[tokio::test(start_paused = true)]
async fn waiters_behind_a_hold_of_their_own_keep_their_age() {
    let setup = Setup::with(LeaseManager::builder().max_local_handoffs(0));
    let other = setup.other();
    let grants = Grants::default();
    let hold = Duration::from_millis(300);
    let mut tasks = vec![grants.wait(&setup.leases, "1", hold)];
    for (leases, who) in [(&setup.leases, "2"), (&other, "3"), (&setup.leases, "4"), (&other, "5")]
    {
        sleep(Duration::from_millis(10)).await;
        tasks.push(grants.wait(leases, who, hold));
    }
    // The first manager asks late each time, but not by more than the others are apart.
    setup.faults.add(Rule::new(Fault::Delay(MOMENT * 4)).on(Call::Acquire));
    join(tasks).await;
    assert_eq!(grants.so_far(), ["1", "2", "3", "4", "5"]);
}

#[tokio::test(start_paused = true)]
async fn handoff_goes_only_to_those_before_the_oldest_elsewhere() {
    let setup = Setup::new();
    let other = setup.other();
    let grants = Grants::default();
    let blocker = setup.held_elsewhere("n").await;
    let mut tasks = Vec::new();
    for (leases, who) in [
        (&setup.leases, "1"),
        (&setup.leases, "2"),
        (&setup.leases, "3"),
        (&other, "4"),
        (&setup.leases, "5"),
        (&setup.leases, "6"),
    ] {
        tasks.push(grants.wait(leases, who, MOMENT));
        sleep(MOMENT * 2).await;
    }
    blocker.unlock().await.unwrap();
    join(tasks).await;
    assert_eq!(grants.so_far(), ["1", "2", "3", "4", "5", "6"]);
    // Those of 2, 3 and 6 were handed off. The others were released to the store.
    assert_eq!(setup.calls(Call::Release), 2);
}

#[tokio::test(start_paused = true)]
async fn handoff_of_a_plain_hold_goes_to_no_fair_waiter() {
    let setup = Setup::new();
    let other = setup.other();
    let grants = Grants::default();
    let plain = setup.leases.lock("n").lock().await.unwrap();
    let elsewhere = grants.wait(&other, "1", MOMENT);
    settle().await;
    let here = grants.wait(&setup.leases, "2", MOMENT);
    settle().await;
    plain.unlock().await.unwrap();
    join([elsewhere, here]).await;
    assert_eq!(grants.so_far(), ["1", "2"]);
}

/// With nobody elsewhere, a fair lock is handed off as a plain one.
#[tokio::test(start_paused = true)]
async fn handoff_without_others_needs_no_store() {
    let setup = Setup::new();
    let grants = Grants::default();
    let tasks = ["1", "2", "3"].map(|who| grants.wait(&setup.leases, who, MOMENT));
    join(tasks).await;
    assert_eq!(grants.so_far(), ["1", "2", "3"]);
    assert_eq!((setup.calls(Call::Acquire), setup.calls(Call::Release)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn fair_and_plain_handles_exclude_each_other() {
    let setup = Setup::new();
    let other = setup.other();
    let mut fair = setup.leases.fair_lock("n");
    let lease = fair.lock().await.unwrap();
    let again = fair.try_lock().await.unwrap().unwrap();
    assert_eq!(again.hold_count(), 2);
    assert!(other.lock("n").try_lock().await.unwrap().is_none());
    assert!(other.fair_lock("n").try_lock().await.unwrap().is_none());
    drop((lease, again));
    settle().await;
    let plain = other.lock("n").try_lock().await.unwrap().unwrap();
    assert!(fair.try_lock().await.unwrap().is_none());
    plain.unlock().await.unwrap();
    let sum = fair.with(async |fair, _| fair.lock().await.unwrap().hold_count()).await;
    assert_eq!(sum.unwrap(), 2);
}

/// A future that was polled until it waits, and is then kept without a poll.
async fn frozen(leases: &LeaseManager) -> Pin<Box<dyn Future<Output = Result<Lease>> + Send>> {
    let mut lock = leases.fair_lock("n");
    let mut waits: Pin<Box<dyn Future<Output = Result<Lease>> + Send>> =
        Box::pin(async move { lock.lock().await });
    for _ in 0..4 {
        assert!(poll_once(waits.as_mut()).await.is_pending());
        settle().await;
    }
    assert_eq!(line(leases).await.len(), 1);
    waits
}

#[tokio::test(start_paused = true)]
async fn try_lock_neither_enters_the_line_nor_passes_it() {
    let setup = Setup::new();
    let other = setup.other();
    let blocker = setup.held_elsewhere("n").await;
    assert!(other.fair_lock("n").try_lock().await.unwrap().is_none());
    assert!(line(&other).await.is_empty());
    let waits = frozen(&setup.leases).await;
    blocker.unlock().await.unwrap();
    assert!(setup.memory.is_empty(), "the name is free");
    assert!(other.fair_lock("n").try_lock().await.unwrap().is_none());
    assert!(other.fair_lock("n").lock_timeout(Duration::ZERO).await.unwrap().is_none());
    assert_eq!(line(&other).await.len(), 1);
    // A plain handle takes it.
    other.lock("n").try_lock().await.unwrap().unwrap().unlock().await.unwrap();
    drop(waits);
    settle().await;
    assert!(other.fair_lock("n").try_lock().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn dead_head_delays_others_by_its_place_and_costs_no_spinning() {
    let setup = Setup::new();
    let dead = setup.other();
    let blocker = setup.held_elsewhere("n").await;
    let kept = frozen(&dead).await;
    let mut lock = setup.leases.fair_lock("n");
    let waits = tokio::spawn(async move { lock.lock().await });
    settle().await;
    let before = setup.calls(Call::Acquire);
    blocker.unlock().await.unwrap();
    let (took, lease) = timed(waits).await;
    assert!(took <= W && took > W / 2, "{took:?}");
    // One for each poll interval, and one for the message.
    let asked = setup.calls(Call::Acquire) - before;
    assert!(asked <= 8, "{asked}");
    lease.unwrap().unwrap().unlock().await.unwrap();
    drop(kept);
}

/// A waiter that stalls loses its place and keeps its age.
#[tokio::test(start_paused = true)]
async fn waiter_that_stalled_comes_back_at_its_age() {
    let setup = Setup::new();
    let (stalls, other) = (setup.other(), setup.other());
    let blocker = setup.held_elsewhere("n").await;
    let waits = frozen(&stalls).await;
    sleep(MOMENT).await;
    let grants = Grants::default();
    let second = grants.wait(&other, "2", MOMENT);
    sleep(W * 2).await;
    assert_eq!(line(&other).await.len(), 1, "the place has lapsed");
    let first = tokio::spawn({
        let grants = grants.clone();
        async move {
            let lease = waits.await.unwrap();
            grants.0.lock().unwrap().push("1");
            lease.unlock().await.unwrap();
        }
    });
    settle().await;
    let all = line(&other).await;
    assert!(all.len() == 2 && all[0].waited >= all[1].waited + MOMENT, "{all:?}");
    blocker.unlock().await.unwrap();
    join([first, second]).await;
    assert_eq!(grants.so_far(), ["1", "2"]);
}

#[tokio::test(start_paused = true)]
async fn line_has_each_manager_once_and_how_long_it_waits() {
    let setup = Setup::new();
    let other = setup.other();
    assert!(line(&other).await.is_empty());
    let holder = setup.leases.fair_lock("n").lock().await.unwrap();
    assert!(line(&other).await.is_empty(), "a holder does not wait");
    let grants = Grants::default();
    let tasks = ["1", "2"].map(|who| grants.wait(&other, who, MOMENT));
    sleep(Duration::from_secs(20)).await;
    let all = line(&setup.leases).await;
    let [WaitingManager { waited, manager, .. }] = &all[..] else { panic!("{all:?}") };
    assert!(waited.abs_diff(Duration::from_secs(20)) < MOMENT * 5, "{waited:?}");
    let mut elsewhere = other.lock("elsewhere");
    let own = elsewhere.lock().await.unwrap();
    assert_eq!(*manager, own.holder_id().manager().to_string());
    holder.unlock().await.unwrap();
    join(tasks).await;
    assert!(line(&other).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn place_is_left_when_the_last_waiter_goes() {
    let setup = Setup::new();
    let (goes, other) = (setup.other(), setup.other());
    let blocker = setup.held_elsewhere("n").await;
    let grants = Grants::default();
    let tasks = ["1", "2", "3"].map(|who| grants.wait(&goes, who, MOMENT));
    settle().await;
    let waits = grants.wait(&other, "4", MOMENT);
    settle().await;
    for (task, left) in tasks.into_iter().zip([2, 2, 1]) {
        task.abort();
        settle().await;
        assert_eq!(line(&other).await.len(), left);
    }
    blocker.unlock().await.unwrap();
    let (took, ()) = timed(join([waits])).await;
    assert!(took < MOMENT * 5, "{took:?}");
    assert_eq!(grants.so_far(), ["4"]);
}

/// The others wait for a place to lapse while the name is free; they are woken when it is left.
#[tokio::test(start_paused = true)]
async fn place_that_is_left_wakes_the_next() {
    let setup = Setup::new();
    let goes = setup.other();
    let blocker = setup.held_elsewhere("n").await;
    let waits = frozen(&goes).await;
    let grants = Grants::default();
    let next = grants.wait(&setup.leases, "2", MOMENT);
    settle().await;
    blocker.unlock().await.unwrap();
    sleep(MOMENT * 100).await;
    assert!(grants.so_far().is_empty());
    drop(waits);
    let (took, ()) = timed(join([next])).await;
    assert!(took < MOMENT * 5, "{took:?}");
}

/// The next waiter of the process came after one elsewhere, who was refused for the first one.
#[tokio::test(start_paused = true)]
async fn place_of_a_waiter_that_never_asked_is_not_the_next_ones() {
    let setup = Setup::with(LeaseManager::builder().max_local_handoffs(0));
    let (other, grants) = (setup.other(), Grants::default());
    let lease = setup.leases.fair_lock("n").lock().await.unwrap();
    let mut handle = setup.leases.fair_lock("n");
    let mut first = Box::pin(handle.lock());
    assert!(poll_once(first.as_mut()).await.is_pending());
    sleep(MOMENT).await;
    let elsewhere = grants.wait(&other, "elsewhere", MOMENT);
    sleep(MOMENT).await;
    let next = grants.wait(&setup.leases, "next", MOMENT);
    sleep(MOMENT).await;
    lease.unlock().await.unwrap();
    settle().await;
    drop(first);
    let (took, ()) = timed(join([elsewhere, next])).await;
    assert_eq!(grants.so_far(), ["elsewhere", "next"]);
    assert!(took < MOMENT * 5, "{took:?}");
}

/// The name becomes free, its first waiter goes, and the request of the next one is slower than the one that gives the place up.
#[tokio::test(start_paused = true)]
async fn arrival_of_a_waiter_that_goes_is_inherited() {
    let setup = Setup::with(LeaseManager::builder().max_local_handoffs(0));
    let (other, grants) = (setup.other(), Grants::default());
    let lease = setup.held_elsewhere("n").await;
    let first = grants.wait(&setup.leases, "first", MOMENT);
    sleep(MOMENT * 10).await;
    let next = grants.wait(&setup.leases, "next", MOMENT);
    sleep(MOMENT * 10).await;
    let elsewhere = grants.wait(&other, "elsewhere", MOMENT);
    sleep(MOMENT * 10).await;
    // By less than the others are apart.
    setup.faults.add(Rule::new(Fault::Delay(MOMENT * 5)).on(Call::Acquire));
    first.abort();
    lease.unlock().await.unwrap();
    join([next, elsewhere]).await;
    assert_eq!(grants.so_far(), ["next", "elsewhere"]);
}

/// A release takes the place for a waiter that goes before it asks.
#[tokio::test(start_paused = true)]
async fn place_of_a_release_is_left_with_its_waiter() {
    for asks in [false, true] {
        let setup = Setup::with(LeaseManager::builder().max_local_handoffs(0));
        let (other, grants) = (setup.other(), Grants::default());
        let lease = setup.leases.fair_lock("n").lock().await.unwrap();
        let waits = grants.wait(&setup.leases, "2", MOMENT);
        settle().await;
        let call = if asks { Call::Acquire } else { Call::Release };
        setup.faults.add(Rule::new(Fault::HoldReply).on(call));
        let release = tokio::spawn(async move { lease.unlock().await });
        settle().await;
        let placed = line(&other).await.len();
        assert_eq!(placed, usize::from(!asks), "it asks and has it, or the place is taken");
        waits.abort();
        settle().await;
        setup.faults.heal();
        release.await.unwrap().unwrap();
        settle().await;
        assert!(line(&other).await.is_empty());
        let (took, _lease) = timed(async {
            other.fair_lock("n").lock().await.unwrap().unlock().await.unwrap();
        })
        .await;
        assert!(took < MOMENT * 10, "{took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn timeout_gives_up_the_place() {
    let setup = Setup::new();
    let other = setup.other();
    let _blocker = setup.held_elsewhere("n").await;
    assert!(other.fair_lock("n").lock_timeout(T / 10).await.unwrap().is_none());
    settle().await;
    assert!(line(&other).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn fair_lock_dropped_at_any_await_leaves_nothing() {
    let enters = async |leases: &LeaseManager| leases.fair_lock("n").lock_timeout(T).await;
    at_every_await_of(enters, async |setup, cut: Cut| {
        cut.run(setup.leases.fair_lock("n").lock()).await.is_some()
    })
    .await;
    // In line behind another process, and behind a flow of control of its own.
    for own in [false, true] {
        at_every_await_of(enters, async |setup, cut: Cut| {
            let manager = if own { setup.leases.clone() } else { setup.other() };
            let lease = tokio::spawn(async move {
                let lease = manager.fair_lock("n").lock().await;
                sleep(MOMENT * 100).await;
                drop(lease);
            });
            settle().await;
            let faster = cut.run(setup.leases.fair_lock("n").lock()).await.is_some();
            lease.await.unwrap();
            faster
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn store_without_an_order_is_asked_for_nothing() {
    let (store, faults) = FaultyStore::new(MemoryStore::new());
    let store = store.with_capabilities(Capabilities::default());
    let leases = LeaseManager::builder().build(store).unwrap();
    let mut lock = leases.fair_lock("n");
    assert_eq!(failed(lock.lock().await), ErrorKind::Unsupported);
    assert_eq!(failed(lock.try_lock().await), ErrorKind::Unsupported);
    assert_eq!(failed(lock.lock_timeout(T).await), ErrorKind::Unsupported);
    assert_eq!(failed(lock.with(async |_, _| ()).await), ErrorKind::Unsupported);
    assert_eq!(failed(lock.steal("test").await), ErrorKind::Unsupported);
    assert_eq!(failed(lock.steal_after(T, "test").await), ErrorKind::Unsupported);
    assert_eq!(failed(leases.waiters("n").await), ErrorKind::Unsupported);
    let calls = [Call::Acquire, Call::Inspect, Call::Want, Call::Line];
    assert_eq!(calls.map(|call| faults.calls(call)), [0; 4]);
    let nodes = (0..3).map(|_| Arc::new(MemoryStore::new()) as Arc<dyn Store>).collect();
    let leases = LeaseManager::builder().build(Quorum::new(nodes).unwrap()).unwrap();
    let error = leases.fair_lock("n").lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("use `lock`"), "{error}");
}

/// And its release leaves the order to the store.
#[tokio::test(start_paused = true)]
async fn steal_by_a_fair_handle_passes_the_line() {
    let setup = Setup::new();
    let other = setup.other();
    let grants = Grants::default();
    let holder = setup.held_elsewhere("n").await;
    let first = grants.wait(&other, "1", MOMENT);
    settle().await;
    let second = grants.wait(&setup.leases, "2", MOMENT);
    settle().await;
    let mut thief = setup.leases.fair_lock("n").label("import");
    let lease = thief.steal("test").await.unwrap().expect("none between");
    assert_eq!(holder.lost().await, Loss::Stolen);
    assert_eq!(thief.lock().await.unwrap().hold_count(), 2);
    assert!(grants.so_far().is_empty());
    lease.unlock().await.unwrap();
    join([first, second]).await;
    assert_eq!(grants.so_far(), ["1", "2"]);
}

/// It waits in the line, and takes the name from its holder when the time has passed.
#[tokio::test(start_paused = true)]
async fn steal_after_by_a_fair_handle_waits_in_the_line() {
    let setup = Setup::new();
    let other = setup.other();
    let holder = setup.held_elsewhere("n").await;
    let mut thief = setup.leases.fair_lock("n");
    let stealing = tokio::spawn(async move { thief.steal_after(T, "test").await });
    settle().await;
    assert_eq!(line(&other).await.len(), 1);
    let lease = stealing.await.unwrap().unwrap().expect("none between");
    assert_eq!(holder.lost().await, Loss::Stolen);
    settle().await;
    assert!(line(&other).await.is_empty());
    lease.unlock().await.unwrap();
}

/// Where the store has a queue of its own, the requests are those of a plain lock.
#[tokio::test(start_paused = true)]
async fn store_with_a_queue_gets_no_places() {
    let (store, faults) = FaultyStore::new(MemoryStore::new());
    let store = store.with_capabilities(Capabilities::default().with_line(Line::Queue));
    let leases = LeaseManager::builder().build(store).unwrap();
    let lease = leases.fair_lock("n").lock().await.unwrap();
    let mut other = leases.fair_lock("n");
    assert!(other.lock_timeout(MOMENT).await.unwrap().is_none());
    lease.unlock().await.unwrap();
    settle().await;
    assert_eq!(faults.calls(Call::Leave), 0);
}

/// Several managers with many tasks: whoever came first by the clock is served first.
#[tokio::test(start_paused = true)]
async fn waiters_of_several_managers_are_served_in_order() {
    let setup = Setup::new();
    let managers: Vec<_> = (0..4).map(|_| setup.other()).collect();
    let blocker = setup.held_elsewhere("n").await;
    let arrivals = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = JoinSet::new();
    for task in 0..32_u64 {
        let (mut lock, arrivals) =
            (managers[task as usize % 4].fair_lock("n"), Arc::clone(&arrivals));
        tasks.spawn(async move {
            for round in 0..8 {
                // No two arrive at the same time.
                sleep(Duration::from_micros(7000 + task * 10_001 + round * 97)).await;
                let arrived = Instant::now();
                let lease = lock.lock().await.unwrap();
                arrivals.lock().unwrap().push(arrived);
                sleep(MOMENT * 10).await;
                lease.unlock().await.unwrap();
            }
        });
    }
    sleep(Duration::from_secs(1)).await;
    blocker.unlock().await.unwrap();
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    let arrivals = arrivals.lock().unwrap();
    assert_eq!(arrivals.len(), 32 * 8);
    let late = arrivals.windows(2).filter(|pair| pair[0] > pair[1] + MOMENT * 2).count();
    assert_eq!(late, 0, "{arrivals:?}");
}
