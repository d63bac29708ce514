//! Semaphores: never more permits out than there are, and none is lost for good.

use super::cancel::{Cut, at_every_await_of};
use super::*;
use leasehold::{Permit, Semaphore};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use tokio::task::JoinSet;

fn pool(leases: &LeaseManager) -> Semaphore {
    leases.semaphore("pool", 4)
}

async fn free(leases: &LeaseManager) -> u32 {
    pool(leases).usage().await.unwrap().free()
}

#[tokio::test(start_paused = true)]
async fn permits_are_counted_across_processes() {
    let setup = Setup::new();
    let (here, there) = (pool(&setup.leases), pool(&setup.other()));
    let one = here.acquire().await.unwrap();
    let three = there.acquire_many(3).await.unwrap();
    assert_eq!((one.count(), three.count()), (1, 3));
    assert!(one.fence().is_none());
    assert!(here.try_acquire().await.unwrap().is_none());
    assert!(there.acquire_timeout(T / 10).await.unwrap().is_none());
    let usage = here.usage().await.unwrap();
    assert_eq!((usage.size, usage.held, usage.holders, usage.free()), (4, 4, 2, 0));
    three.unlock().await.unwrap();
    assert_eq!(free(&setup.leases).await, 3);
    assert!(there.try_acquire_many(4).await.unwrap().is_none());
    let (two, last) = (here.acquire_many(2).await.unwrap(), there.acquire().await.unwrap());
    assert_eq!(free(&setup.leases).await, 0);
    drop((one, two, last));
    settle().await;
    assert_eq!(free(&setup.leases).await, 4);
    assert!(setup.memory.is_empty());
}

#[tokio::test(start_paused = true)]
async fn waiter_enters_when_enough_permits_come_back() {
    let setup = Setup::new();
    for waits_here in [true, false] {
        let other = setup.other();
        let leases = if waits_here { &setup.leases } else { &other };
        let held = [(); 4].map(|()| pool(&setup.leases));
        let mut out = Vec::new();
        for semaphore in &held {
            out.push(semaphore.acquire().await.unwrap());
        }
        let semaphore = pool(leases);
        let waits = tokio::spawn(async move { timed(semaphore.acquire_many(3)).await });
        for _ in 0..3 {
            assert!(!waits.is_finished());
            sleep(Duration::from_millis(1_700)).await;
            out.pop().unwrap().unlock().await.unwrap();
        }
        let (took, bundle) = waits.await.unwrap();
        assert!(took < Duration::from_millis(5_110), "woken by the release: {took:?}");
        bundle.unwrap().unlock().await.unwrap();
        drop(out);
        settle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn many_permits_are_not_overtaken_by_few() {
    let setup = Setup::new();
    let held = pool(&setup.leases).acquire_many(3).await.unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut waiters = JoinSet::new();
    for count in [3, 1, 1] {
        let (semaphore, order) = (pool(&setup.leases), Arc::clone(&order));
        waiters.spawn(async move {
            let permit = semaphore.acquire_many(count).await.unwrap();
            order.lock().unwrap().push(count);
            sleep(Duration::from_millis(10)).await;
            permit.unlock().await.unwrap();
        });
        settle().await;
    }
    assert!(pool(&setup.leases).try_acquire().await.unwrap().is_none(), "others wait");
    assert!(order.lock().unwrap().is_empty(), "one is free, and the first wants three");
    held.unlock().await.unwrap();
    waiters.join_all().await;
    assert_eq!(*order.lock().unwrap(), [3, 1, 1]);
}

#[tokio::test(start_paused = true)]
async fn attempts_at_once_are_granted_what_is_free() {
    let setup = Setup::new();
    setup.faults.add(Rule::new(Fault::Delay(MOMENT)).on(Call::Acquire));
    for limit in [None, Some(Duration::ZERO)] {
        let mut attempts = JoinSet::new();
        for _ in 0..6 {
            let semaphore = pool(&setup.leases);
            attempts.spawn(async move {
                match limit {
                    None => semaphore.try_acquire().await.unwrap(),
                    Some(limit) => semaphore.acquire_timeout(limit).await.unwrap(),
                }
            });
        }
        let (took, permits) = timed(attempts.join_all()).await;
        assert_eq!(permits.iter().flatten().count(), 4);
        assert!(took <= MOMENT * 3, "side by side: {took:?}");
        drop(permits);
        settle().await;
        assert_eq!(free(&setup.leases).await, 4);
    }
}

/// Also not while it is the only one, and so not in the queue.
#[tokio::test(start_paused = true)]
async fn attempt_does_not_overtake_one_that_waits_for_many() {
    let setup = Setup::new();
    let held = pool(&setup.leases).acquire_many(2).await.unwrap();
    let semaphore = pool(&setup.leases);
    let waits = tokio::spawn(async move { semaphore.acquire_many(3).await.unwrap() });
    settle().await;
    assert!(pool(&setup.leases).try_acquire().await.unwrap().is_none(), "two are free");
    held.unlock().await.unwrap();
    drop(waits.await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn permits_of_a_dead_process_come_back_after_the_ttl() {
    let setup = Setup::new();
    let dead = pool(&setup.other()).acquire_many(2).await.unwrap();
    let alive = pool(&setup.leases).acquire_many(2).await.unwrap();
    dead.into_lease().forget();
    let (took, permit) = timed(pool(&setup.leases).acquire()).await;
    permit.unwrap().unlock().await.unwrap();
    assert!(took > T * 9 / 10 && took < T + Duration::from_secs(2), "{took:?}");
    alive.check().unwrap();
    assert_eq!(free(&setup.leases).await, 2);
}

#[tokio::test(start_paused = true)]
async fn loss_of_one_permit_leaves_the_others_alone() {
    let setup = Setup::new();
    let (here, there) = (pool(&setup.leases).acquire().await, pool(&setup.other()).acquire().await);
    let (here, there) = (here.unwrap(), there.unwrap());
    setup.faults.add(Rule::new(Fault::Fail(unavailable())).on(Call::Renew));
    let (took, loss) = timed(here.lost()).await;
    assert_eq!((took, loss), (C, Loss::Expired));
    there.check().unwrap();
    setup.faults.heal();
    sleep(T).await;
    assert_eq!(free(&setup.leases).await, 3);
    let again = pool(&setup.leases).acquire().await.unwrap();
    assert!(setup.leases.force_unlock("pool", "test").await.unwrap());
    assert_eq!(lost(again.check()), Loss::Revoked);
    sleep(T / 2).await;
    assert_eq!(lost(there.check()), Loss::Revoked);
}

#[tokio::test(start_paused = true)]
async fn bad_numbers_are_refused_and_nothing_is_held() {
    let setup = Setup::new();
    let calls = setup.calls(Call::Acquire);
    for (size, count) in [(0, 1), (4, 0), (4, 5), (0, 0)] {
        let semaphore = setup.leases.semaphore("pool", size);
        assert_eq!(failed(semaphore.acquire_many(count).await), ErrorKind::Invalid);
        assert_eq!(failed(semaphore.try_acquire_many(count).await), ErrorKind::Invalid);
    }
    assert_eq!(failed(setup.leases.semaphore("", 1).acquire().await), ErrorKind::Invalid);
    assert_eq!(setup.calls(Call::Acquire), calls, "nothing was sent");
    let permit = pool(&setup.leases).acquire().await.unwrap();
    for held in [true, false] {
        let other = setup.leases.semaphore("pool", 7);
        let error = other.acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("has 4 permits and was asked for with 7"), "{error}");
        if held {
            permit.check().unwrap();
        }
    }
    permit.unlock().await.unwrap();
    assert_eq!(setup.leases.semaphore("pool", 7).usage().await.unwrap().size, 4);
    assert_eq!(free(&setup.leases).await, 4);
}

#[tokio::test(start_paused = true)]
async fn resize_lets_waiters_of_all_processes_in() {
    let setup = Setup::new();
    let (here, there) = (pool(&setup.leases), pool(&setup.other()));
    let all = here.acquire_many(4).await.unwrap();
    let mut waits = JoinSet::new();
    for semaphore in [here.clone(), there.clone()] {
        waits.spawn(async move { timed(semaphore.acquire()).await });
    }
    sleep(T / 10).await;
    assert_eq!(waits.len(), 2);
    here.clone().resize(6).await.unwrap();
    for (took, permit) in waits.join_all().await {
        assert!(took < T / 10 + MOMENT * 100, "woken by the resize: {took:?}");
        permit.unwrap().unlock().await.unwrap();
    }
    // Clones know of it. Others go on, up to their own size at once.
    assert_eq!((here.size(), there.size(), free(&setup.leases).await), (6, 4, 2));
    all.unlock().await.unwrap();
    assert_eq!(failed(there.try_acquire_many(5).await), ErrorKind::Invalid);
    drop(here.try_acquire_many(6).await.unwrap().expect("all of them"));
    settle().await;
    drop(there.try_acquire_many(4).await.unwrap().expect("as many as it knows of"));
}

#[tokio::test(start_paused = true)]
async fn resize_to_fewer_waits_until_enough_have_come_back() {
    let setup = Setup::new();
    let (here, there) = (pool(&setup.leases), pool(&setup.other()));
    let (two, rest) = (here.acquire_many(2).await.unwrap(), there.acquire_many(2).await.unwrap());
    there.resize(1).await.unwrap();
    let usage = here.usage().await.unwrap();
    assert_eq!((usage.size, usage.held, usage.free()), (1, 4, 0));
    sleep(T * 2).await;
    two.check().unwrap();
    two.unlock().await.unwrap();
    assert!(here.try_acquire().await.unwrap().is_none(), "2 of 1 are out");
    rest.unlock().await.unwrap();
    let one = here.try_acquire().await.unwrap().expect("it is free");
    assert!(there.try_acquire().await.unwrap().is_none());
    assert_eq!(failed(here.try_acquire_many(2).await), ErrorKind::Invalid, "there is one");
    assert_eq!(failed(setup.leases.semaphore("pool", 3).acquire().await), ErrorKind::Invalid);
    one.unlock().await.unwrap();
}

/// Callers that use the four permits of a pool all the time, and what they see after it has one.
#[derive(Default)]
struct Callers {
    out: AtomicU32,
    shrunk: Mutex<Option<Instant>>,
    /// When a permit was granted while others were out, after that.
    beyond: Mutex<Vec<Duration>>,
}

impl Callers {
    async fn of(leases: &LeaseManager, use_for: Duration) -> Arc<Self> {
        let callers = Arc::new(Self::default());
        for _ in 0..50 {
            let (pool, callers) = (pool(leases), Arc::clone(&callers));
            tokio::spawn(async move {
                loop {
                    let permit = pool.acquire().await.unwrap();
                    let others = callers.out.fetch_add(1, Ordering::SeqCst);
                    let shrunk = *callers.shrunk.lock().unwrap();
                    if let Some(shrunk) = shrunk.filter(|_| others > 0) {
                        callers.beyond.lock().unwrap().push(shrunk.elapsed());
                    }
                    sleep(use_for).await;
                    callers.out.fetch_sub(1, Ordering::SeqCst);
                    permit.unlock().await.unwrap();
                }
            });
        }
        sleep(use_for * 5 / 2).await;
        assert_eq!(callers.out.load(Ordering::SeqCst), 4);
        callers
    }

    /// Returns when permits were granted beyond the one that there is.
    async fn shrink_to_one(&self, leases: &LeaseManager) -> Vec<Duration> {
        pool(leases).resize(1).await.unwrap();
        self.beyond_one(leases).await
    }

    /// As `shrink_to_one`, after the resize.
    async fn beyond_one(&self, leases: &LeaseManager) -> Vec<Duration> {
        *self.shrunk.lock().unwrap() = Some(Instant::now());
        sleep(2 * T).await;
        assert!(pool(leases).usage().await.unwrap().held <= 1);
        std::mem::take(&mut *self.beyond.lock().unwrap())
    }
}

#[tokio::test(start_paused = true)]
async fn resize_to_fewer_ends_the_hand_offs_of_its_manager() {
    let _reached = Must::reach("SemaphoreShrunk");
    let setup = Setup::new();
    let callers = Callers::of(&setup.leases, MOMENT * 10).await;
    assert_eq!(callers.shrink_to_one(&setup.leases).await, []);
}

#[tokio::test(start_paused = true)]
async fn resize_that_is_dropped_ends_hand_offs_too() {
    let setup = Setup::new();
    let callers = Callers::of(&setup.leases, MOMENT * 10).await;
    setup.faults.add(Rule::new(Fault::HoldReply).on(Call::Resize).times(1));
    let resize = tokio::time::timeout(MOMENT, pool(&setup.leases).resize(1)).await;
    assert!(resize.is_err(), "it has no answer");
    assert_eq!(callers.beyond_one(&setup.leases).await, []);
}

#[tokio::test(start_paused = true)]
async fn resize_elsewhere_ends_hand_offs_after_a_tenth_of_the_ttl() {
    let (setup, use_for) = (Setup::new(), MOMENT * 100);
    let callers = Callers::of(&setup.leases, use_for).await;
    let beyond = callers.shrink_to_one(&setup.other()).await;
    assert!(beyond.iter().all(|after| *after <= T / 10 + use_for), "{beyond:?}");
}

#[tokio::test(start_paused = true)]
async fn resize_elsewhere_ends_hand_offs_after_their_number() {
    let setup = Setup::with(LeaseManager::builder().max_local_handoffs(5));
    let callers = Callers::of(&setup.leases, MOMENT).await;
    let beyond = callers.shrink_to_one(&setup.other()).await;
    assert!(beyond.len() <= 4 * 5, "{beyond:?}");
}

#[tokio::test(start_paused = true)]
async fn resize_that_fails_can_be_called_again() {
    let setup = Setup::new();
    let semaphore = pool(&setup.leases);
    let permit = semaphore.acquire().await.unwrap();
    assert_eq!(failed(semaphore.resize(0).await), ErrorKind::Invalid);
    assert_eq!(failed(setup.leases.semaphore("", 1).resize(2).await), ErrorKind::Invalid);
    assert_eq!(setup.calls(Call::Resize), 0, "nothing was sent");
    setup.faults.add(Rule::new(Fault::Fail(unavailable())).on(Call::Resize));
    assert_eq!(failed(semaphore.resize(5).await), ErrorKind::Unavailable);
    assert_eq!((semaphore.size(), free(&setup.leases).await), (4, 3));
    setup.faults.heal();
    semaphore.resize(5).await.unwrap();
    assert_eq!((semaphore.size(), free(&setup.leases).await), (5, 4));
    permit.unlock().await.unwrap();
    setup.leases.close().await.unwrap();
    assert_eq!(failed(semaphore.resize(6).await), ErrorKind::Closed);
}

#[tokio::test(start_paused = true)]
async fn close_releases_all_permits() {
    let setup = Setup::new();
    let semaphore = pool(&setup.leases);
    let (one, two) = (semaphore.acquire().await.unwrap(), semaphore.acquire().await.unwrap());
    let waits = tokio::spawn({
        let semaphore = semaphore.clone();
        async move { semaphore.acquire_many(4).await }
    });
    settle().await;
    setup.leases.close().await.unwrap();
    assert_eq!(lost(one.check()), Loss::Closed);
    assert_eq!(lost(two.check()), Loss::Closed);
    assert_eq!(failed(waits.await.unwrap()), ErrorKind::Closed);
    assert_eq!(free(&setup.other()).await, 4);
}

#[tokio::test(start_paused = true)]
async fn dropped_call_leaves_no_permit_behind() {
    async fn enters(leases: &LeaseManager) -> Result<Option<Lease>> {
        Ok(pool(leases).acquire_many_timeout(4, T).await?.map(Permit::into_lease))
    }
    async fn acquire(setup: &Setup, cut: Cut) -> bool {
        cut.run(pool(&setup.leases).acquire_many(4)).await.is_some()
    }
    at_every_await_of(enters, acquire).await;
}
