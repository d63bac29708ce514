//! Futures that are not polled: a hold that they were handed, or a call that they began, keeps a name for T at most.

use super::*;
use leasehold::MultiLock;
use leasehold::store::Quorum;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Begins a call that takes a while, and puts it aside.
macro_rules! put_aside {
    ($setup:expr, $call:expr, $future:expr) => {{
        let slow = Fault::Delay(5 * MOMENT);
        $setup.faults.add(Rule::new(slow).on($call).times(1));
        let mut unpolled = Box::pin($future);
        assert!(poll_once(unpolled.as_mut()).await.is_pending());
        unpolled
    }};
}

async fn gets_in(leases: &LeaseManager, name: &str) -> Lease {
    let (took, lease) = timed(leases.lock(name).lock_timeout(10 * T)).await;
    assert!(took <= T + 10 * MOMENT, "{took:?}");
    lease.expect("no error").expect("the name is free")
}

type Waiting = Pin<Box<dyn Future<Output = Result<Lease>>>>;

/// Puts waiters in line, to be polled no more.
async fn in_line(leases: &LeaseManager, count: usize) -> Vec<Waiting> {
    let mut waiters = Vec::new();
    for _ in 0..count {
        let mut lock = leases.lock("n");
        let mut unpolled: Waiting = Box::pin(async move { lock.lock().await });
        assert!(poll_once(unpolled.as_mut()).await.is_pending());
        waiters.push(unpolled);
    }
    waiters
}

/// A waiter behind those in line that is polled.
async fn next_in_line(leases: &LeaseManager) -> JoinHandle<Lease> {
    let mut lock = leases.lock("n");
    let next = tokio::spawn(async move { lock.lock().await.expect("its turn") });
    settle().await;
    next
}

#[tokio::test(start_paused = true)]
async fn hold_handed_to_a_future_that_nobody_polls_is_recalled() {
    let setup = Setup::new();
    let lease = setup.leases.lock("n").lock().await.expect("free");
    let unpolled = in_line(&setup.leases, 1).await.remove(0);
    lease.unlock().await.expect("held");
    let theirs = gets_in(&setup.other(), "n").await;
    assert_eq!(setup.calls(Call::Renew), 0, "nobody has it");
    theirs.unlock().await.expect("held");
    // It is not too late: it waits on, like any other.
    let lease = unpolled.await.expect("granted");
    lease.check().expect("held");
    assert_eq!(setup.recorded("n").await, Some(1));
}

#[tokio::test(start_paused = true)]
async fn hand_off_to_a_future_nobody_polls_goes_to_the_next_in_line() {
    let setup = Setup::new();
    let lease = setup.leases.lock("n").lock().await.expect("free");
    let mut unpolled = in_line(&setup.leases, 1).await.remove(0);
    let next = next_in_line(&setup.leases).await;
    let mut last = in_line(&setup.leases, 1).await.remove(0);
    lease.unlock().await.expect("held");
    let (took, next) = timed(next).await;
    assert!(took <= T, "{took:?}");
    let next = next.expect("no panic");
    assert!(poll_once(unpolled.as_mut()).await.is_pending(), "the next has it");
    next.unlock().await.expect("held");
    let lease = unpolled.await.expect("it is first again");
    assert!(poll_once(last.as_mut()).await.is_pending());
    drop(lease);
    drop(last.await.expect("its turn"));
}

#[tokio::test(start_paused = true)]
async fn futures_nobody_polls_keep_those_behind_no_longer_than_one() {
    let setup = Setup::with(LeaseManager::builder().max_local_handoffs(0));
    let lease = setup.leases.lock("n").lock().await.expect("free");
    let mut unpolled = in_line(&setup.leases, 20).await;
    let next = next_in_line(&setup.leases).await;
    lease.unlock().await.expect("held");
    let (took, lease) = timed(next).await;
    assert!(took <= T, "{took:?}");
    let last = in_line(&setup.leases, 1).await.remove(0);
    drop(lease.expect("no panic"));
    // All of them are in line again when they are polled, in the order in which they came.
    drop(timed(unpolled.remove(0)).await.1.expect("its turn"));
    drop(unpolled);
    drop(last.await.expect("its turn"));
}

#[tokio::test(start_paused = true)]
async fn try_lock_gets_a_free_name_offered_to_a_future_nobody_polls() {
    let setup = Setup::with(LeaseManager::builder().max_local_handoffs(0));
    let lease = setup.leases.lock("n").lock().await.expect("free");
    let mut unpolled = in_line(&setup.leases, 3).await;
    lease.unlock().await.expect("held");
    tokio::time::sleep(T).await;
    let lease = setup.leases.lock("n").try_lock().await.expect("no error").expect("free");
    assert!(poll_once(unpolled[0].as_mut()).await.is_pending());
    drop(lease);
    drop(unpolled.remove(0).await.expect("its turn"));
}

#[tokio::test(start_paused = true)]
async fn waiter_unpolled_between_requests_keeps_no_free_name() {
    let setup = Setup::new();
    let theirs = setup.other().lock("n").lock().await.expect("free");
    // It got the answer that the name is held.
    let unpolled = in_line(&setup.leases, 1).await.remove(0);
    let next = next_in_line(&setup.leases).await;
    theirs.unlock().await.expect("held");
    let (took, lease) = timed(next).await;
    let lease = lease.expect("no panic");
    assert!(took <= T, "{took:?}");
    let (took, again) = timed(setup.leases.lock("n").lock_timeout(MOMENT)).await;
    assert!(took <= 2 * MOMENT && again.expect("no error").is_none(), "{took:?}");
    drop(lease);
    drop(unpolled.await.expect("its turn"));
}

#[tokio::test(start_paused = true)]
async fn poll_bound_keeps_no_call_behind_an_unpolled_waiter() {
    let ttl = Duration::from_secs(1);
    let builder = LeaseManager::builder().ttl(ttl).max_poll_interval(Duration::from_secs(60));
    let setup = Setup::with(builder);
    let theirs = setup.other().lock("n").lock().await.expect("free");
    let _unpolled = in_line(&setup.leases, 1).await;
    let next = tokio::spawn({
        let leases = setup.leases.clone();
        async move { leases.lock("n").lock().await }
    });
    settle().await;
    theirs.unlock().await.expect("held");
    let (took, lease) = timed(next).await;
    assert!(took <= ttl, "{took:?}");
    drop(lease.expect("no panic").expect("its turn"));
}

#[tokio::test(start_paused = true)]
async fn outage_is_returned_as_soon_behind_unpolled_calls() {
    for unpolled in 0..4 {
        let setup = Setup::new();
        setup.faults.add(Rule::new(Fault::Hang).on(Call::Acquire));
        let unpolled = in_line(&setup.leases, unpolled).await;
        let short = tokio::spawn({
            let leases = setup.leases.clone();
            async move { leases.lock("n").lock_timeout(T * 3 / 5).await }
        });
        let mut lock = setup.leases.lock("n");
        let (took, result) = timed(lock.lock()).await;
        assert_eq!(failed(result), ErrorKind::Unavailable);
        assert!(took <= T + MOMENT, "{took:?} behind {}", unpolled.len());
        let short = short.await.expect("no panic");
        assert_eq!(failed(short), ErrorKind::Unavailable, "behind {}", unpolled.len());
    }
}

#[tokio::test(start_paused = true)]
async fn grant_heard_of_late_by_an_unpolled_call_is_its_own() {
    let setup = Setup::new();
    let mut lock = setup.leases.lock("n");
    setup.faults.add(Rule::new(Fault::HoldReply).on(Call::Acquire).times(1));
    let mut unpolled = Box::pin(lock.lock());
    assert!(poll_once(unpolled.as_mut()).await.is_pending());
    // It has the grant, and does not know. The next one takes the turn, and is refused.
    tokio::time::sleep(T / 3).await;
    assert!(setup.leases.lock("n").try_lock().await.expect("no error").is_none());
    setup.faults.heal();
    let lease = unpolled.await.expect("granted");
    lease.check().expect("held");
    assert!(setup.leases.lock("n").try_lock().await.expect("no error").is_none());
    lease.unlock().await.expect("held");
    drop(setup.leases.lock("n").try_lock().await.expect("no error").expect("free"));
}

#[tokio::test(start_paused = true)]
async fn grant_heard_of_too_late_by_an_unpolled_call_is_no_lease() {
    let setup = Setup::new();
    let mut lock = setup.leases.lock("n");
    setup.faults.add(Rule::new(Fault::HoldReply).on(Call::Acquire).times(1));
    let mut unpolled = Box::pin(lock.lock());
    assert!(poll_once(unpolled.as_mut()).await.is_pending());
    tokio::time::sleep(T).await;
    let lease = setup.leases.lock("n").try_lock().await.expect("no error").expect("free");
    setup.faults.heal();
    assert!(poll_once(unpolled.as_mut()).await.is_pending());
    lease.check().expect("held");
    lease.unlock().await.expect("held");
    drop(unpolled.await.expect("its turn"));
}

/// The turn was reclaimed, and nothing of this process was left under the name when it was forced open.
#[tokio::test(start_paused = true)]
async fn grant_from_before_a_force_unlock_is_no_lease() {
    let setup = Setup::new();
    let mut lock = setup.leases.lock("n");
    setup.faults.add(Rule::new(Fault::HoldReply).on(Call::Acquire).times(1));
    let mut unpolled = Box::pin(lock.lock());
    assert!(poll_once(unpolled.as_mut()).await.is_pending());
    tokio::time::sleep(ATTEMPT * 3 + MOMENT).await;
    setup.faults.heal();
    let taken = setup.leases.lock("n").try_lock().await.expect("an answer");
    assert!(taken.is_none(), "the store has granted the name to the other one");
    assert!(setup.leases.force_unlock("n", "test").await.expect("an answer"));
    let theirs = setup.other().lock("n").try_lock().await.expect("an answer").expect("free");
    assert!(poll_once(unpolled.as_mut()).await.is_pending(), "two believe at once");
    theirs.check().expect("held");
    theirs.unlock().await.expect("held");
    drop(unpolled.await.expect("its turn"));
}

#[tokio::test(start_paused = true)]
async fn unlock_unpolled_keeps_the_turn_for_the_ttl() {
    let setup = Setup::new();
    let lease = setup.leases.lock("n").lock().await.expect("free");
    let unpolled = put_aside!(setup, Call::Release, lease.unlock());
    let next = gets_in(&setup.leases, "n").await;
    let _ = unpolled.await;
    next.check().expect("held");
}

/// Polls it so many times, and puts it aside.
async fn unpolled_after<F: Future>(polls: usize, mut call: Pin<&mut F>) {
    for _ in 0..polls {
        assert!(poll_once(call.as_mut()).await.is_pending());
        settle().await;
    }
}

fn both(leases: &LeaseManager) -> MultiLock {
    leases.multi_lock(["a", "b"]).expect("good names")
}

/// It has `b` when it is put aside, and the answer for `a` is on its way.
#[tokio::test(start_paused = true)]
async fn set_unpolled_keeps_a_name_for_the_ttl() {
    let setup = Setup::new();
    let (mut lock, other) = (both(&setup.leases), setup.other());
    setup.faults.add(Rule::new(Fault::Delay(5 * MOMENT)).on(Call::Acquire).name("a").times(1));
    let mut unpolled = Box::pin(lock.lock());
    unpolled_after(2, unpolled.as_mut()).await;
    let (a, b) = (gets_in(&other, "a").await, gets_in(&other, "b").await);
    // It is not too late: it asks for all of them again.
    drop((a, b));
    let lease = timeout(T, unpolled).await.expect("both are free").expect("granted");
    lease.check().expect("held");
    sleep(3 * T).await;
    lease.check().expect("renewed");
    lease.unlock().await.expect("held");
}

/// It has waited for long, so it takes the names in their order: it has `a` when it is put aside.
#[tokio::test(start_paused = true)]
async fn set_that_waits_in_order_keeps_its_names_while_it_is_polled() {
    let setup = Setup::new();
    let (mut lock, other) = (both(&setup.leases), setup.other());
    let b = setup.held_elsewhere("b").await;
    let mut unpolled = Box::pin(lock.lock());
    assert!(timeout(T / 2, unpolled.as_mut()).await.is_err());
    let a = setup.held_elsewhere("a").await;
    b.unlock().await.expect("held");
    assert!(timeout(MOMENT, unpolled.as_mut()).await.is_err());
    let b = setup.held_elsewhere("b").await;
    a.unlock().await.expect("held");
    // It is polled for long, and keeps `a` meanwhile.
    assert!(timeout(4 * T, unpolled.as_mut()).await.is_err());
    assert!(other.lock("a").try_lock().await.expect("an answer").is_none());
    // The time counts from its last poll.
    for pause in [T / 2, T / 5, T - MOMENT * 10] {
        assert!(poll_once(unpolled.as_mut()).await.is_pending());
        sleep(pause).await;
    }
    assert_eq!(setup.leases.stats().lost, 0);
    drop(gets_in(&other, "a").await);
    assert_eq!(setup.leases.stats().lost, 1);
    drop(b);
    let lease = timeout(T, unpolled).await.expect("both are free").expect("granted");
    lease.check().expect("held");
}

#[tokio::test(start_paused = true)]
async fn campaign_unpolled_keeps_a_leadership_for_the_ttl() {
    let setup = Setup::new();
    let election = setup.leases.election("n");
    let mut candidate = election.candidate("me");
    setup.faults.add(Rule::new(Fault::Delay(5 * MOMENT)).on(Call::Annotate).times(1));
    let mut unpolled = Box::pin(candidate.campaign());
    while setup.calls(Call::Annotate) == 0 {
        assert!(poll_once(unpolled.as_mut()).await.is_pending());
        settle().await;
    }
    drop(gets_in(&setup.other(), "n").await);
    assert!(setup.leases.holdings().is_empty());
    let leader = timeout(T, unpolled).await.expect("free").expect("granted");
    sleep(3 * T).await;
    leader.check().expect("renewed");
    leader.resign().await.expect("led");
}

/// Polls it until this is met, and puts it aside.
async fn unpolled_when<F: Future>(mut call: Pin<&mut F>, met: impl Fn() -> bool) {
    while !met() {
        assert!(poll_once(call.as_mut()).await.is_pending());
        settle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn campaign_unpolled_after_a_lost_leadership_keeps_none() {
    let setup = Setup::new();
    let election = setup.leases.election("n");
    let mut candidate = election.candidate("me");
    let lost = candidate.campaign().await.expect("free");
    setup.leases.force_unlock("n", "test").await.expect("an answer");
    setup.faults.add(Rule::new(Fault::Delay(5 * MOMENT)).on(Call::Annotate).times(1));
    let mut unpolled = Box::pin(candidate.campaign());
    unpolled_when(unpolled.as_mut(), || setup.calls(Call::Annotate) == 2).await;
    drop(gets_in(&setup.other(), "n").await);
    drop((unpolled, lost));
}

/// The answer that it has written its value comes while it is put aside.
#[tokio::test(start_paused = true)]
async fn campaign_unpolled_for_long_returns_no_lost_leadership() {
    let setup = Setup::new();
    let election = setup.leases.election("n");
    let mut candidate = election.candidate("me");
    setup.faults.add(Rule::new(Fault::HoldReply).on(Call::Annotate).times(1));
    let mut unpolled = Box::pin(candidate.campaign());
    unpolled_when(unpolled.as_mut(), || setup.calls(Call::Annotate) == 1).await;
    setup.faults.heal();
    sleep(2 * T).await;
    unpolled.await.expect("granted again").check().expect("held");
    assert_eq!(setup.leases.stats().lost, 1);
}

#[tokio::test(start_paused = true)]
async fn set_unpolled_behind_its_unlock_keeps_no_name() {
    let setup = Setup::new();
    let mut lock = both(&setup.leases);
    let lease = lock.lock().await.expect("free");
    setup.faults.add(Rule::new(Fault::Hang).on(Call::Release).name("a").times(1));
    let mut unlock = Box::pin(lease.unlock());
    assert!(poll_once(unlock.as_mut()).await.is_pending());
    setup.faults.add(Rule::new(Fault::Hang).on(Call::Acquire).name("a").times(1));
    let mut unpolled = Box::pin(lock.lock());
    unpolled_after(3, unpolled.as_mut()).await;
    drop(gets_in(&setup.other(), "b").await);
    drop((unpolled, unlock));
}

/// No caller had it, so no use of it has to end.
#[tokio::test(start_paused = true)]
async fn set_unpolled_leaves_no_lock_delay() {
    let setup = Setup::new();
    let mut lock = both(&setup.leases).lock_delay(T);
    setup.faults.add(Rule::new(Fault::Hang).on(Call::Acquire).name("a").times(1));
    let mut unpolled = Box::pin(lock.lock());
    unpolled_after(2, unpolled.as_mut()).await;
    drop(gets_in(&setup.other(), "b").await);
    drop(unpolled);
}

/// Puts a call aside that changes the mode: with its request on its way, or its answer.
macro_rules! change_put_aside {
    ($enter:ident, $change:ident) => {
        for fault in [Fault::Delay(5 * MOMENT), Fault::Hang, Fault::HoldReply] {
            let setup = Setup::new();
            let lease = setup.leases.rw_lock("n").$enter().await.expect("free");
            let token = lease.cancellation_token();
            setup.faults.add(Rule::new(fault).on(Call::Acquire).times(1));
            let mut unpolled = Box::pin(lease.$change());
            assert!(poll_once(unpolled.as_mut()).await.is_pending());
            let mut theirs = setup.other().rw_lock("n");
            let (took, edit) = timed(theirs.write_timeout(10 * T)).await;
            assert!(took <= T + 10 * MOMENT, "{took:?}");
            let edit = edit.expect("no error").expect("free");
            assert!(token.is_cancelled());
            assert_eq!(setup.calls(Call::Renew), 0, "nobody has it");
            // Its answer is late, and changes nothing.
            setup.faults.heal();
            assert_eq!(lost(unpolled.await.map(drop)), Loss::Expired);
            edit.check().expect("held");
            edit.unlock().await.expect("held");
            drop(setup.leases.rw_lock("n").write().await.expect("free"));
        }
    };
}

#[tokio::test(start_paused = true)]
async fn try_upgrade_unpolled_keeps_a_name_for_the_ttl() {
    change_put_aside!(read, try_upgrade);
}

#[tokio::test(start_paused = true)]
async fn downgrade_unpolled_keeps_a_name_for_the_ttl() {
    change_put_aside!(write, downgrade);
}

/// The other handle shares no hold of which nobody has a lease.
#[tokio::test(start_paused = true)]
async fn try_upgrade_unpolled_lets_a_reader_in_after_the_ttl() {
    let setup = Setup::new();
    let page = setup.leases.rw_lock("n").read().await.expect("free");
    setup.faults.add(Rule::new(Fault::Hang).on(Call::Acquire).times(1));
    let mut unpolled = Box::pin(page.try_upgrade());
    assert!(poll_once(unpolled.as_mut()).await.is_pending());
    let (took, theirs) = timed(setup.leases.rw_lock("n").read_timeout(10 * T)).await;
    assert!(took <= T + 10 * MOMENT, "{took:?}");
    let theirs = theirs.expect("no error").expect("free");
    drop(unpolled);
    sleep(3 * T).await;
    theirs.check().expect("renewed");
}

type Unpolled = Pin<Box<dyn Future<Output = ()>>>;

/// Makes each of these calls by its name, after what has to come before it. A test in `tests/house` checks that no future of the
/// public API is missing.
macro_rules! calls {
    ($($name:literal => $leases:ident, $has:ident = $make:expr, $call:expr;)*) => {
        const CALLS: &[&str] = &[$($name),*];

        #[allow(unused_mut)]
        async fn call(name: &str, leases: &LeaseManager) -> Unpolled {
            match name {
                $($name => {
                    let $leases = leases.clone();
                    let mut $has = $make;
                    Box::pin(async move { drop($call.await) })
                })*
                _ => panic!("no such call"),
            }
        }
    };
}

calls! {
    "Lock::lock" => leases, lock = leases.lock("n"), lock.lock();
    "Lock::try_lock" => leases, lock = leases.lock("n"), lock.try_lock();
    "Lock::lock_timeout" => leases, lock = leases.lock("n"), lock.lock_timeout(T);
    "Lock::with" => leases, lock = leases.lock("n"), lock.with(async |_, _| ());
    "Lock::steal" => leases, lock = leases.lock("n"), lock.steal("test");
    "Lock::steal_after" => leases, lock = leases.lock("n"), lock.steal_after(T, "test");
    "Lock::lock, fair" => leases, lock = leases.fair_lock("n"), lock.lock();
    "Lock::try_lock, fair" => leases, lock = leases.fair_lock("n"), lock.try_lock();
    "Lock::lock_timeout, fair" => leases, lock = leases.fair_lock("n"), lock.lock_timeout(T);
    "Lock::with, fair" => leases, lock = leases.fair_lock("n"), lock.with(async |_, _| ());
    "Lock::steal, fair" => leases, lock = leases.fair_lock("n"), lock.steal("test");
    "Lock::steal_after, fair" => leases, lock = leases.fair_lock("n"), lock.steal_after(T, "test");
    "Holder::lock" => leases, holder = leases.holder(), holder.lock("n");
    "Holder::try_lock" => leases, holder = leases.holder(), holder.try_lock("n");
    "Holder::lock_timeout" => leases, holder = leases.holder(), holder.lock_timeout("n", T);
    "Lease::unlock" => leases, lease = leases.lock("n").lock().await.unwrap(), lease.unlock();
    "Lease::unlock_now" => leases, lease = leases.lock("n").lock().await.unwrap(), lease.unlock_now();
    "LeaseManager::force_unlock" => leases, lease = leases.lock("n").lock().await.unwrap(), async { (leases.force_unlock("n", "test").await, lease) };
    "LeaseManager::close" => leases, lease = leases.lock("n").lock().await.unwrap(), async { (leases.close().await, lease) };
    "RwLock::read" => leases, lock = leases.rw_lock("n"), lock.read();
    "RwLock::try_read" => leases, lock = leases.rw_lock("n"), lock.try_read();
    "RwLock::read_timeout" => leases, lock = leases.rw_lock("n"), lock.read_timeout(T);
    "RwLock::with_read" => leases, lock = leases.rw_lock("n"), lock.with_read(async |_, _| ());
    "RwLock::write" => leases, lock = leases.rw_lock("n"), lock.write();
    "RwLock::try_write" => leases, lock = leases.rw_lock("n"), lock.try_write();
    "RwLock::write_timeout" => leases, lock = leases.rw_lock("n"), lock.write_timeout(T);
    "RwLock::with_write" => leases, lock = leases.rw_lock("n"), lock.with_write(async |_, _| ());
    "ReadLease::unlock" => leases, page = leases.rw_lock("n").read().await.unwrap(), page.unlock();
    "ReadLease::try_upgrade" => leases, page = leases.rw_lock("n").read().await.unwrap(), page.try_upgrade();
    "WriteLease::unlock" => leases, edit = leases.rw_lock("n").write().await.unwrap(), edit.unlock();
    "WriteLease::downgrade" => leases, edit = leases.rw_lock("n").write().await.unwrap(), edit.downgrade();
    "Semaphore::acquire" => leases, pool = leases.semaphore("n", 2), pool.acquire();
    "Semaphore::try_acquire" => leases, pool = leases.semaphore("n", 2), pool.try_acquire();
    "Semaphore::acquire_timeout" => leases, pool = leases.semaphore("n", 2), pool.acquire_timeout(T);
    "Semaphore::acquire_many" => leases, pool = leases.semaphore("n", 2), pool.acquire_many(2);
    "Semaphore::try_acquire_many" => leases, pool = leases.semaphore("n", 2), pool.try_acquire_many(2);
    "Semaphore::acquire_many_timeout" => leases, pool = leases.semaphore("n", 2), pool.acquire_many_timeout(2, T);
    "Permit::unlock" => leases, permit = leases.semaphore("n", 2).acquire().await.unwrap(), permit.unlock();
    "Slots::take" => leases, slots = leases.slots("n", 2), slots.take();
    "Slots::try_take" => leases, slots = leases.slots("n", 2), slots.try_take();
    "Slots::take_timeout" => leases, slots = leases.slots("n", 2), slots.take_timeout(T);
    "Slots::take_index" => leases, slots = leases.slots("n", 2), slots.take_index(0);
    "Slots::try_take_index" => leases, slots = leases.slots("n", 2), slots.try_take_index(0);
    "Slot::unlock" => leases, slot = leases.slots("n", 2).take().await.unwrap(), slot.unlock();
    "MultiLock::lock" => leases, lock = both(&leases), lock.lock();
    "MultiLock::try_lock" => leases, lock = both(&leases), lock.try_lock();
    "MultiLock::lock_timeout" => leases, lock = both(&leases), lock.lock_timeout(T);
    "MultiLock::with" => leases, lock = both(&leases), lock.with(async |_, _| ());
    "MultiLease::unlock" => leases, lease = both(&leases).lock().await.unwrap(), lease.unlock();
    "Candidate::campaign" => leases, me = leases.election("n").candidate("me"), me.campaign();
    "Candidate::lead" => leases, me = leases.election("n").candidate("me"), me.lead(async |_| ControlFlow::Break(()));
    "Leadership::resign" => leases, me = leases.election("n").candidate("me").campaign().await.unwrap(), me.resign();
    "Job::run" => leases, job = leases.once("n"), job.run(async |_| Err::<(), _>("it fails"));
}

/// Takes what a call of this name may keep.
async fn takes_all_of(name: &str, leases: &LeaseManager) {
    let of = name.split("::").next().expect("a type");
    match of {
        "RwLock" | "ReadLease" | "WriteLease" => {
            drop(leases.rw_lock("n").write().await.expect("free"))
        }
        "Semaphore" | "Permit" => {
            drop(leases.semaphore("n", 2).acquire_many(2).await.expect("free"))
        }
        "Slots" | "Slot" => {
            let slots = leases.slots("n", 2);
            drop((
                slots.take_index(0).await.expect("free"),
                slots.take_index(1).await.expect("free"),
            ));
        }
        "MultiLock" | "MultiLease" => drop(both(leases).lock().await.expect("free")),
        _ => drop(leases.lock("n").lock().await.expect("free")),
    }
}

/// The answer to each request is on its way when its call is put aside.
#[tokio::test(start_paused = true)]
async fn calls_unpolled_after_any_poll_keep_names_for_the_ttl() {
    for name in CALLS {
        for polls in 1.. {
            let setup = Setup::new();
            let mut unpolled = call(name, &setup.leases).await;
            setup.faults.add(Rule::new(Fault::Delay(5 * MOMENT)));
            let mut is_over = false;
            for _ in 0..polls {
                is_over |= poll_once(unpolled.as_mut()).await.is_ready();
                if is_over {
                    break;
                }
                sleep(6 * MOMENT).await;
            }
            if is_over {
                assert!(polls > 1, "{name} asks the store");
                break;
            }
            let other = setup.other();
            let taken = timeout(T + 100 * MOMENT, takes_all_of(name, &other)).await;
            assert!(taken.is_ok(), "{name} after {polls} polls");
        }
    }
}

/// A manager on a quorum of nodes that answer after a while: a grant takes a while in each round.
fn on_slow_nodes() -> LeaseManager {
    let node = |_| {
        let (store, faults) = FaultyStore::new(MemoryStore::new());
        faults.add(Rule::new(Fault::Delay(MOMENT)));
        Arc::new(store) as _
    };
    let quorum = Quorum::new((0..3).map(node).collect()).expect("three nodes");
    LeaseManager::builder().build(quorum).expect("good settings")
}

#[tokio::test(start_paused = true)]
async fn request_that_failed_while_unpolled_is_repeated() {
    let (store, within) = FaultyStore::new(MemoryStore::new());
    within.add(Rule::new(Fault::unavailable()).on(Call::Acquire).times(1));
    let (store, faults) = FaultyStore::new(store);
    faults.add(Rule::new(Fault::Delay(MOMENT)));
    let leases = LeaseManager::builder().build(store).expect("good settings");
    let unpolled = in_line(&leases, 1).await.remove(0);
    sleep(2 * T).await;
    let (took, lease) = timed(unpolled).await;
    lease.expect("the store failed once").check().expect("held");
    assert!(took < ATTEMPT, "{took:?}");
    assert_eq!(within.calls(Call::Acquire), 2);
}

#[tokio::test(start_paused = true)]
async fn grant_that_came_while_unpolled_is_asked_for_again() {
    let leases = on_slow_nodes();
    // A node of a quorum is asked when it has been up for a while.
    sleep(2 * T).await;
    let mut unpolled = in_line(&leases, 1).await.remove(0);
    sleep(2 * T).await;
    // The grant is there, and too old.
    assert!(poll_once(unpolled.as_mut()).await.is_pending());
    let (took, lease) = timed(unpolled).await;
    lease.expect("the store was never silent").check().expect("held");
    assert!(took < ATTEMPT, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn waiters_that_were_not_polled_take_no_silence_for_the_stores() {
    let leases = on_slow_nodes();
    sleep(2 * T).await;
    let mut unpolled = in_line(&leases, 3).await;
    sleep(2 * T).await;
    // The last one sees first that the request of the first one has no answer.
    for waiter in unpolled.iter_mut().rev() {
        assert!(poll_once(waiter.as_mut()).await.is_pending());
    }
    let ends = |waiter: Waiting| async { waiter.await.map(drop) };
    let [first, second, third] = <[Waiting; 3]>::try_from(unpolled).unwrap_or_else(|_| panic!("3"));
    tokio::try_join!(ends(first), ends(second), ends(third)).expect("the store was never silent");
}

/// A runtime that stalls, or a task that is busy: what counts is the time in which the call was polled.
#[tokio::test(start_paused = true)]
async fn outage_ends_a_call_that_is_always_polled_late() {
    let setup = Setup::new();
    setup.faults.add(Rule::new(Fault::unavailable()).on(Call::Acquire));
    let mut unpolled = in_line(&setup.leases, 1).await.remove(0);
    let start = Instant::now();
    let ended = loop {
        sleep(3 * ATTEMPT).await;
        assert!(start.elapsed() < 10 * T, "it goes on");
        if let Poll::Ready(ended) = poll_once(unpolled.as_mut()).await {
            break ended;
        }
    };
    assert_eq!(failed(ended), ErrorKind::Unavailable);
    assert!(start.elapsed() > T, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn time_that_passes_while_unpolled_is_no_contention() {
    let leases = on_slow_nodes();
    sleep(2 * T).await;
    let mut lock = leases.lock("n");
    let mut unpolled = Box::pin(lock.lock_timeout(T));
    assert!(poll_once(unpolled.as_mut()).await.is_pending());
    sleep(2 * T).await;
    assert_eq!(failed(unpolled.await), ErrorKind::Unavailable);
}
