//! Futures that nobody polls: what they were handed, and what they have begun, keeps a name no longer than T.

use super::*;
use std::pin::pin;

/// Begins a call that takes a while, and puts it aside.
macro_rules! put_aside {
    ($setup:expr, $call:expr, $future:expr) => {{
        let slow = Fault::Delay(5 * MOMENT);
        $setup.faults.add(Rule::new(slow).on($call).times(1));
        let mut aside = Box::pin($future);
        assert!(poll_once(aside.as_mut()).await.is_pending());
        aside
    }};
}

async fn gets_in(leases: &LeaseManager, name: &str) -> Lease {
    let (took, lease) = timed(leases.lock(name).lock_timeout(10 * T)).await;
    assert!(took <= T + 10 * MOMENT, "{took:?}");
    lease.expect("no error").expect("the name is free")
}

#[tokio::test(start_paused = true)]
async fn what_was_handed_to_a_future_that_nobody_polls_is_taken_back() {
    let setup = Setup::new();
    let lease = setup.leases.lock("n").lock().await.expect("free");
    let mut second = setup.leases.lock("n");
    let mut aside = pin!(second.lock());
    assert!(poll_once(aside.as_mut()).await.is_pending());
    lease.unlock().await.expect("held");
    let theirs = gets_in(&setup.other(), "n").await;
    assert_eq!(setup.calls(Call::Renew), 0, "nobody has it");
    theirs.unlock().await.expect("held");
    // It is not too late: it waits on, like any other.
    let lease = aside.await.expect("granted");
    lease.check().expect("held");
    assert_eq!(setup.recorded("n").await, Some(1));
}

#[tokio::test(start_paused = true)]
async fn what_was_handed_to_a_future_that_nobody_polls_goes_to_the_next_in_line_and_it_keeps_its_place()
 {
    let setup = Setup::new();
    let lease = setup.leases.lock("n").lock().await.expect("free");
    let mut late = setup.leases.lock("n");
    let mut aside = pin!(late.lock());
    assert!(poll_once(aside.as_mut()).await.is_pending());
    let next = tokio::spawn({
        let leases = setup.leases.clone();
        async move { gets_in(&leases, "n").await }
    });
    settle().await;
    let mut last = setup.leases.lock("n");
    let mut last = pin!(last.lock());
    assert!(poll_once(last.as_mut()).await.is_pending());
    lease.unlock().await.expect("held");
    let next = next.await.expect("no panic");
    assert!(poll_once(aside.as_mut()).await.is_pending(), "the next has it");
    next.unlock().await.expect("held");
    let lease = aside.await.expect("it is first again");
    assert!(poll_once(last.as_mut()).await.is_pending());
    drop(lease);
    drop(last.await.expect("its turn"));
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_came_to_a_future_that_nobody_polls_goes_to_the_next_in_line() {
    let setup = Setup::with(LeaseManager::builder().handoff_bound(0));
    let lease = setup.leases.lock("n").lock().await.expect("free");
    let mut late = setup.leases.lock("n");
    let mut aside = pin!(late.lock());
    assert!(poll_once(aside.as_mut()).await.is_pending());
    let next = tokio::spawn({
        let leases = setup.leases.clone();
        async move { leases.lock("n").lock().await }
    });
    settle().await;
    lease.unlock().await.expect("held");
    let (took, lease) = timed(next).await;
    assert!(took <= 2 * T, "{took:?}");
    drop(lease.expect("no panic").expect("its turn"));
    drop(aside.await.expect("its turn"));
}

#[tokio::test(start_paused = true)]
async fn a_nested_lock_that_is_put_aside_renews_nothing_when_no_lease_is_left() {
    let setup = Setup::new();
    let mut lock = setup.leases.lock("n");
    let outer = lock.lock().await.expect("free");
    let aside = put_aside!(setup, Call::Acquire, lock.lock());
    drop(outer);
    let theirs = gets_in(&setup.other(), "n").await;
    assert_eq!(setup.calls(Call::Renew), 0);
    assert_eq!(lost(aside.await), Loss::Expired);
    theirs.check().expect("held");
    drop(theirs);
    drop(gets_in(&setup.leases, "n").await);
}

#[tokio::test(start_paused = true)]
async fn a_nested_unlock_that_is_put_aside_keeps_the_turn_no_longer_than_the_time_to_live() {
    let setup = Setup::new();
    let mut lock = setup.leases.lock("n");
    let outer = lock.lock().await.expect("free");
    let inner = lock.lock().await.expect("nested");
    let aside = put_aside!(setup, Call::Release, inner.unlock());
    drop(outer);
    let next = gets_in(&setup.leases, "n").await;
    // What it says now is late, and changes nothing.
    let _ = aside.await;
    next.check().expect("held");
    assert_eq!(setup.recorded("n").await, Some(1));
    next.unlock().await.expect("held");
    drop(gets_in(&setup.other(), "n").await);
}

#[tokio::test(start_paused = true)]
async fn an_unlock_that_is_put_aside_keeps_the_turn_no_longer_than_the_time_to_live() {
    let setup = Setup::new();
    let lease = setup.leases.lock("n").lock().await.expect("free");
    let aside = put_aside!(setup, Call::Release, lease.unlock());
    let next = gets_in(&setup.leases, "n").await;
    let _ = aside.await;
    next.check().expect("held");
}

#[tokio::test(start_paused = true)]
async fn a_nested_lock_that_is_put_aside_keeps_no_turn_after_the_loss() {
    let setup = Setup::new();
    let mut lock = setup.leases.lock("n");
    let lease = lock.lock().await.expect("free");
    let aside = put_aside!(setup, Call::Acquire, lock.lock());
    assert!(setup.leases.force_unlock("n").await.expect("an answer"));
    drop(lease);
    let (took, next) = timed(setup.leases.lock("n").lock()).await;
    let next = next.expect("free");
    assert_eq!(took, Duration::ZERO);
    assert_eq!(lost(aside.await), Loss::Revoked);
    next.check().expect("held");
}

#[tokio::test(start_paused = true)]
async fn a_nested_unlock_that_is_put_aside_keeps_nothing_after_max_hold() {
    let max = Duration::from_secs(5);
    let setup = Setup::with(LeaseManager::builder().max_hold(max));
    let mut lock = setup.leases.lock("n");
    let outer = lock.lock().await.expect("free");
    let inner = lock.lock().await.expect("nested");
    let aside = put_aside!(setup, Call::Release, inner.unlock());
    assert_eq!(outer.lost().await, Loss::MaxHold);
    drop(outer);
    let (took, next) = timed(setup.leases.lock("n").lock_timeout(10 * T)).await;
    assert!(took <= 2 * T, "{took:?}");
    let next = next.expect("no error").expect("free");
    let _ = aside.await;
    next.check().expect("held");
}
