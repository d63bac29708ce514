//! Permits that change hands within a process: without a request, in order, and with turns for others.

use super::cancel::{Cut, at_every_await_of};
use super::*;
use leasehold::{Permit, Semaphore};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio::task::JoinSet;

fn pool(leases: &LeaseManager) -> Semaphore {
    leases.semaphore("pool", 2)
}

/// The requests, releases and subscriptions so far.
fn sent(setup: &Setup) -> [usize; 3] {
    [Call::Acquire, Call::Release, Call::Subscribe].map(|call| setup.calls(call))
}

/// A waiter that says when it enters, and keeps its permit until it is told.
fn waits(
    leases: &LeaseManager,
    count: u32,
    order: &Arc<Mutex<Vec<usize>>>,
    number: usize,
) -> tokio::task::JoinHandle<Permit> {
    let (semaphore, order) = (pool(leases), Arc::clone(order));
    tokio::spawn(async move {
        let permit = semaphore.acquire_many(count).await.unwrap();
        order.lock().unwrap().push(number);
        permit
    })
}

#[tokio::test(start_paused = true)]
async fn permits_are_handed_off_in_order_without_a_request() {
    let setup = Setup::new();
    let mut held = Vec::from([pool(&setup.leases).acquire().await.unwrap()]);
    held.push(pool(&setup.leases).acquire().await.unwrap());
    let order = Arc::default();
    let mut waiters = Vec::new();
    for i in 0..10 {
        waiters.push(waits(&setup.leases, 1, &order, i));
        settle().await;
    }
    // The first has asked, subscribed, and asked once more.
    let before = sent(&setup);
    assert_eq!(before, [4, 0, 1]);
    // One by one, and two at once, before the first of them is polled.
    let mut waiters = waiters.into_iter();
    for many in [1, 1, 2, 1, 2, 1, 2] {
        let leaving: Vec<_> = held.drain(..many).collect();
        for (i, permit) in leaving.into_iter().enumerate() {
            if i % 2 == 0 { permit.unlock().await.unwrap() } else { drop(permit) }
        }
        for waiter in waiters.by_ref().take(many) {
            held.push(waiter.await.unwrap());
        }
        settle().await;
        assert!(held.iter().all(|permit| permit.check().is_ok() && permit.count() == 1));
    }
    assert_eq!(*order.lock().unwrap(), (0..10).collect::<Vec<_>>());
    assert_eq!(sent(&setup), before);
    assert_eq!(pool(&setup.leases).usage().await.unwrap().held, 2);
    sleep(T * 2).await;
    for permit in held {
        permit.unlock().await.unwrap();
    }
    assert!(setup.memory.is_empty());
}

/// A waiter whose request is not answered yet gets the permit at once.
#[tokio::test(start_paused = true)]
async fn waiter_with_a_request_in_flight_is_handed_the_permit() {
    let setup = Setup::new();
    let bundle = pool(&setup.leases).acquire_many(2).await.unwrap();
    setup.faults.add(Rule::new(Fault::Delay(MOMENT * 100)).on(Call::Acquire));
    let waiter = waits(&setup.leases, 2, &Arc::default(), 0);
    settle().await;
    bundle.unlock().await.unwrap();
    let (took, next) = timed(waiter).await;
    assert!(took <= MOMENT, "{took:?}");
    assert_eq!(setup.calls(Call::Release), 0);
    // The late answer refuses what the waiter has by now.
    sleep(T).await;
    let next = next.unwrap();
    next.check().unwrap();
    next.unlock().await.unwrap();
    sleep(T).await;
    assert!(setup.memory.is_empty());
}

#[tokio::test(start_paused = true)]
async fn bundle_of_another_weight_is_released() {
    let setup = Setup::new();
    let (one, two) = (pool(&setup.leases).acquire().await, pool(&setup.leases).acquire().await);
    let order = Arc::default();
    let many = waits(&setup.leases, 2, &order, 0);
    settle().await;
    let few = waits(&setup.leases, 1, &order, 1);
    settle().await;
    let asked = setup.calls(Call::Acquire);
    one.unwrap().unlock().await.unwrap();
    settle().await;
    assert_eq!(setup.calls(Call::Release), 1);
    assert!(!many.is_finished() && !few.is_finished(), "one permit is free");
    two.unwrap().unlock().await.unwrap();
    let bundle = many.await.unwrap();
    assert!(setup.calls(Call::Acquire) > asked);
    assert!(!few.is_finished());
    bundle.unlock().await.unwrap();
    assert_eq!(few.await.unwrap().count(), 1);
    assert_eq!(*order.lock().unwrap(), [0, 1]);
}

#[tokio::test(start_paused = true)]
async fn permit_that_is_lost_is_not_handed_off() {
    for deletes in [true, false] {
        let setup = Setup::new();
        let bundle = pool(&setup.leases).acquire_many(2).await.unwrap();
        let waiter = waits(&setup.leases, 2, &Arc::default(), 0);
        settle().await;
        let holder = bundle.holder_id();
        if deletes {
            assert!(setup.leases.force_unlock("pool", "test").await.unwrap());
        } else {
            // Not sure any more, so the waiter asks the store.
            setup.faults.add(Rule::new(Fault::Fail(unavailable())).on(Call::Renew));
            sleep(T / 2).await;
            setup.faults.heal();
        }
        let _ = bundle.unlock().await;
        let next = waiter.await.unwrap();
        assert_ne!(next.holder_id(), holder);
        next.check().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn permit_handed_to_a_waiter_that_is_gone_moves_on() {
    let setup = Setup::new();
    let bundle = pool(&setup.leases).acquire_many(2).await.unwrap();
    let holder = bundle.holder_id();
    let order = Arc::default();
    let mut gone = Vec::new();
    for i in 0..3 {
        gone.push(waits(&setup.leases, 2, &order, i));
        settle().await;
    }
    let stays = waits(&setup.leases, 2, &order, 3);
    settle().await;
    // To the first, which has not looked at it yet; then it goes, and so does the second.
    bundle.unlock().await.unwrap();
    for waiter in &gone {
        waiter.abort();
    }
    let last = stays.await.unwrap();
    assert_eq!((last.holder_id(), setup.calls(Call::Release)), (holder, 0));
    assert_eq!(*order.lock().unwrap(), [3]);
    last.unlock().await.unwrap();
    assert!(setup.memory.is_empty());
}

#[tokio::test(start_paused = true)]
async fn permit_not_accepted_is_released_before_it_expires() {
    let setup = Setup::new();
    let bundle = pool(&setup.leases).acquire_many(2).await.unwrap();
    let semaphore = pool(&setup.leases);
    let mut unpolled = Box::pin(semaphore.acquire_many(2));
    for _ in 0..3 {
        assert!(poll_once(unpolled.as_mut()).await.is_pending());
        settle().await;
    }
    bundle.unlock().await.unwrap();
    let (took, next) = timed(pool(&setup.leases).acquire_many(2)).await;
    assert!(took < T / 2, "{took:?}");
    next.unwrap().unlock().await.unwrap();
    let late = unpolled.await.unwrap();
    late.check().unwrap();
    drop(late);
    settle().await;
    assert!(setup.memory.is_empty());
}

/// Tasks that want permits all the time.
fn callers(
    leases: &LeaseManager,
    size: usize,
    ends: &Arc<AtomicBool>,
) -> (JoinSet<()>, Arc<AtomicUsize>) {
    let (mut tasks, turns) = (JoinSet::new(), Arc::<AtomicUsize>::default());
    for _ in 0..size {
        let (semaphore, turns, ends) = (pool(leases), Arc::clone(&turns), Arc::clone(ends));
        tasks.spawn(async move {
            while !ends.load(Ordering::Relaxed) {
                let permit = semaphore.acquire().await.unwrap();
                turns.fetch_add(1, Ordering::Relaxed);
                sleep(MOMENT * 5).await;
                permit.unlock().await.unwrap();
            }
        });
    }
    (tasks, turns)
}

/// Runs a crowd for T, and returns how often one of it got a permit.
async fn turns_of_callers(setup: &Setup) -> usize {
    let ends = Arc::default();
    let (mut tasks, turns) = callers(&setup.leases, 12, &ends);
    sleep(T).await;
    ends.store(true, Ordering::Relaxed);
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    turns.load(Ordering::Relaxed)
}

#[tokio::test(start_paused = true)]
async fn waiters_of_other_managers_get_their_turn() {
    for bound in [0, 3, 127] {
        let setup = Setup::with(LeaseManager::builder().max_local_handoffs(bound));
        let ends = Arc::default();
        let (mut tasks, turns) = callers(&setup.leases, 12, &ends);
        let other = setup.other();
        sleep(T / 10).await;
        for round in 1..=20u32 {
            sleep(MOMENT * 7 * round).await;
            let before = turns.load(Ordering::Relaxed);
            let (took, permit) = timed(pool(&other).acquire()).await;
            permit.unwrap().unlock().await.unwrap();
            let ahead = turns.load(Ordering::Relaxed) - before;
            assert!(took < Duration::from_secs(1), "{took:?} and {ahead} ahead, bound {bound}");
        }
        assert!(turns.load(Ordering::Relaxed) > 500);
        ends.store(true, Ordering::Relaxed);
        while let Some(ended) = tasks.join_next().await {
            ended.unwrap();
        }
        settle().await;
        assert!(setup.memory.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn contention_alone_sends_few_requests() {
    let setup = Setup::new();
    let turns = turns_of_callers(&setup).await;
    let [asked, released, subscribed] = sent(&setup);
    assert!(turns > 10_000, "{turns}");
    let all = asked + released + subscribed;
    assert!(all < turns / 20, "{asked}, {released}, {subscribed} for {turns} turns");
    settle().await;
    assert!(setup.memory.is_empty());
}

/// Permits that change hands faster than the store answers: what the requests bring is used, and the next flow does not ask
/// again at each change.
#[tokio::test(start_paused = true)]
async fn contention_faster_than_the_store_sends_few_requests() {
    for slow in [&[Call::Acquire][..], &[Call::Acquire, Call::Subscribe]] {
        let setup = Setup::new();
        for call in slow {
            setup.faults.add(Rule::new(Fault::Delay(MOMENT * 50)).on(*call));
        }
        let (turns, asked) = (turns_of_callers(&setup).await, setup.calls(Call::Acquire));
        assert!(turns > 8_000, "{turns}");
        assert!(asked < turns / 20, "{asked} requests for {turns} turns, {slow:?} slow");
        settle().await;
        assert!(setup.memory.is_empty());
    }
}

/// The request of a flow that is handed a permit meanwhile brings one for the next flow, which asks once at most.
#[tokio::test(start_paused = true)]
async fn grant_that_no_call_waits_for_goes_to_the_next() {
    for slow in [&[Call::Acquire][..], &[Call::Acquire, Call::Subscribe]] {
        let setup = Setup::new();
        let here = pool(&setup.leases).acquire().await.unwrap();
        for call in slow {
            setup.faults.add(Rule::new(Fault::Delay(MOMENT * 50)).on(*call));
        }
        let order = Arc::default();
        let first = waits(&setup.leases, 1, &order, 0);
        settle().await;
        let next = waits(&setup.leases, 1, &order, 1);
        settle().await;
        here.unlock().await.unwrap();
        let first = first.await.unwrap();
        let (took, next) = timed(next).await;
        assert!(took <= MOMENT * 51, "{took:?}");
        assert!(setup.calls(Call::Acquire) <= 3, "{slow:?} slow");
        let next = next.unwrap();
        sleep(T * 2).await;
        drop((first, next));
        settle().await;
        assert!(setup.memory.is_empty());
    }
}

/// A permit that another process releases goes to the flow that waits in place of the one before it.
#[tokio::test(start_paused = true)]
async fn permit_released_elsewhere_reaches_the_next_call() {
    for wait in [1, 30, 60, 90, 120, 200] {
        let setup = Setup::new();
        let elsewhere = pool(&setup.other()).acquire().await.unwrap();
        let here = pool(&setup.leases).acquire().await.unwrap();
        setup.faults.add(Rule::new(Fault::Delay(MOMENT * 50)).on(Call::Acquire));
        let order = Arc::default();
        let first = waits(&setup.leases, 1, &order, 0);
        settle().await;
        let next = waits(&setup.leases, 1, &order, 1);
        settle().await;
        // To the first, whose request is not answered yet.
        here.unlock().await.unwrap();
        let first = first.await.unwrap();
        sleep(MOMENT * wait).await;
        elsewhere.unlock().await.unwrap();
        let (took, next) = timed(next).await;
        assert!(took <= MOMENT * 160, "{took:?} after {wait}");
        drop((first, next.unwrap()));
        settle().await;
    }
}

/// Permits that are free are granted one round trip after the other, each with the grant before.
#[tokio::test(start_paused = true)]
async fn grant_lets_the_next_waiter_ask_at_once() {
    let setup = Setup::new();
    setup.faults.add(Rule::new(Fault::Delay(MOMENT * 10)).on(Call::Acquire));
    let semaphore = setup.leases.semaphore("pool", 10);
    let mut tasks = JoinSet::new();
    for _ in 0..10 {
        let semaphore = semaphore.clone();
        tasks.spawn(async move { semaphore.acquire().await.unwrap() });
    }
    let (took, permits) = timed(tasks.join_all()).await;
    assert!(took <= MOMENT * 101, "{took:?}");
    assert_eq!((permits.len(), setup.calls(Call::Acquire)), (10, 10));
}

#[tokio::test(start_paused = true)]
async fn waiter_dropped_at_any_await_leaves_no_permit_behind() {
    async fn enters(leases: &LeaseManager) -> Result<Option<Lease>> {
        Ok(pool(leases).acquire_many_timeout(2, T).await?.map(Permit::into_lease))
    }
    /// While a permit is handed to it.
    async fn handed(setup: &Setup, cut: Cut) -> bool {
        let Ok(bundle) = pool(&setup.leases).acquire_many(2).await else { return true };
        let hands = tokio::spawn(async move {
            sleep(MOMENT * 15).await;
            let _ = bundle.unlock().await;
        });
        let next = cut.run(pool(&setup.leases).acquire_many(2)).await;
        hands.await.unwrap();
        next.is_some()
    }
    at_every_await_of(enters, handed).await;
}

#[test]
fn permits_are_never_more_than_there_are_on_many_threads() {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(4).enable_all().build().unwrap();
    runtime.block_on(async {
        let memory = MemoryStore::new();
        let managers = [(); 2].map(|()| LeaseManager::builder().build(memory.clone()).unwrap());
        let out = Arc::<AtomicUsize>::default();
        let mut tasks = JoinSet::new();
        for i in 0..16 {
            let (semaphore, out) = (pool(&managers[usize::from(i % 4 == 0)]), Arc::clone(&out));
            tasks.spawn(async move {
                for round in 0..200 {
                    let count = if i == 3 && round % 4 == 0 { 2 } else { 1 };
                    if round % 9 == 0 {
                        let waits = semaphore.acquire_many(count);
                        let _ = tokio::time::timeout(Duration::from_micros(50), waits).await;
                    }
                    let permit = semaphore.acquire_many(count).await.unwrap();
                    let now = out.fetch_add(count as usize, Ordering::SeqCst) + count as usize;
                    assert!(now <= 2, "{now} of 2 are out");
                    tokio::task::yield_now().await;
                    permit.check().unwrap();
                    out.fetch_sub(count as usize, Ordering::SeqCst);
                    if round % 2 == 0 {
                        drop(permit);
                    } else {
                        permit.unlock().await.unwrap();
                    }
                }
            });
        }
        tasks.join_all().await;
        for manager in managers {
            manager.close().await.unwrap();
        }
        assert!(memory.is_empty());
    });
}

/// The request of the first flow is granted before the force, and its answer comes when another flow asks.
#[tokio::test(start_paused = true)]
async fn request_left_before_a_force_brings_no_permit() {
    let setup = Setup::new();
    let one = setup.leases.semaphore("n", 1);
    setup.faults.add(Rule::new(Fault::HoldReply).on(Call::Acquire).times(1));
    let acquire = || {
        let one = one.clone();
        tokio::spawn(async move { one.acquire().await.expect("granted") })
    };
    let first = acquire();
    settle().await;
    assert!(setup.leases.force_unlock("n", "test").await.expect("done"));
    let third = one.try_acquire().await.expect("an answer").expect("free");
    let second = acquire();
    settle().await;
    third.unlock().await.expect("held");
    let permit = first.await.expect("no panic");
    assert_eq!(setup.leases.stats().handed_off, 1);
    setup.faults.heal();
    sleep(MOMENT).await;
    assert!(!second.is_finished(), "the grant of before the force is gone");
    permit.check().expect("held");
    permit.unlock().await.expect("held");
    second.await.expect("no panic").unlock().await.expect("held");
}
