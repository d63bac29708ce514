//! Losses: their causes, how the holder learns of them, and that a lost lease stays lost.

use super::*;
use leasehold::LeaseState;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use tokio::time::timeout;

/// The renewal that finds it out comes within the period.
const PERIOD: Duration = Duration::from_secs(10);

#[tokio::test(start_paused = true)]
async fn deleted_lease_is_gone() {
    let setup = Setup::new();
    let lease = setup.leases.lock("n").lock().await.unwrap();
    assert!(setup.memory.delete("n"));
    let (took, loss) = timed(lease.lost()).await;
    assert_eq!(loss, Loss::Gone);
    assert!(took <= PERIOD, "{took:?}");
    assert!(lease.cancellation_token().is_cancelled());
    assert_eq!(lost(lease.check()), Loss::Gone);
    assert!(setup.memory.is_empty(), "it is not made anew");
}

#[tokio::test(start_paused = true)]
async fn lease_that_somebody_else_has_is_taken() {
    let setup = Setup::new();
    let lease = setup.leases.lock("n").lock().await.unwrap();
    assert!(setup.memory.delete("n"));
    let theirs = setup.held_elsewhere("n").await;
    assert_eq!(lease.lost().await, Loss::Taken);
    assert_eq!(lost(lease.check()), Loss::Taken);
    drop(lease);
    settle().await;
    theirs.check().unwrap();
    theirs.unlock().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn forced_unlock_revokes_at_once() {
    let setup = Setup::new();
    let other = setup.other();
    let mut lock = setup.leases.lock("n");
    let (outer, inner) = (lock.lock().await.unwrap(), lock.lock().await.unwrap());
    // The tokens come first: they fire even if the store cannot be reached.
    setup.faults.add(Rule::new(Fault::Fail(unavailable())).on(Call::ForceRelease).times(1));
    assert_eq!(failed(setup.leases.force_unlock("n", "test").await), ErrorKind::Unavailable);
    for lease in [&outer, &inner] {
        assert!(lease.cancellation_token().is_cancelled());
        assert_eq!(lost(lease.check()), Loss::Revoked);
    }
    assert!(other.lock("n").try_lock().await.unwrap().is_none());
    assert!(setup.leases.force_unlock("n", "test").await.unwrap());
    assert!(!setup.leases.force_unlock("n", "test").await.unwrap());
    assert!(other.lock("n").try_lock().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn forced_unlock_elsewhere_is_seen_at_once() {
    let setup = Setup::new();
    let lease = setup.leases.lock("n").lock().await.unwrap();
    let mut lock = setup.leases.lock("n");
    let waiter = tokio::spawn(async move { lock.lock().await });
    settle().await;
    assert!(setup.other().force_unlock("n", "test").await.unwrap());
    let (took, loss) = timed(lease.lost()).await;
    assert_eq!(loss, Loss::Revoked);
    assert!(took < MOMENT, "{took:?}");
    // Nothing has to be released for it, so the waiters here continue at once.
    let (took, lease) = timed(waiter).await;
    assert_eq!(took, Duration::ZERO);
    lease.unwrap().unwrap().check().unwrap();
}

#[tokio::test(start_paused = true)]
async fn forced_unlock_wakes_who_waits() {
    let setup = Setup::new();
    let theirs = setup.held_elsewhere("n").await;
    let mut lock = setup.leases.lock("n");
    let waiter = tokio::spawn(async move { lock.lock().await });
    sleep(Duration::from_micros(5_555_555)).await;
    assert!(setup.other().force_unlock("n", "test").await.unwrap());
    let (took, lease) = timed(waiter).await;
    assert!(took < MOMENT, "{took:?}");
    lease.unwrap().unwrap().check().unwrap();
    drop(theirs);
}

#[tokio::test(start_paused = true)]
async fn lost_is_for_good() {
    let setup = Setup::new();
    let lease = setup.leases.lock("n").lock().await.unwrap();
    setup.leases.force_unlock("n", "test").await.unwrap();
    let renewals = setup.calls(Call::Renew);
    // Neither other causes nor time change it, nor the name in other hands.
    assert!(!setup.leases.force_unlock("n", "test").await.unwrap());
    for _ in 0..20 {
        sleep(T / 4).await;
        assert_eq!(lost(lease.check()), Loss::Revoked);
        assert_eq!(lease.lost().await, Loss::Revoked);
        assert_eq!(lease.state(), LeaseState::Lost);
        assert_eq!(lost(lease.ensure_remaining(MOMENT).await), Loss::Revoked);
        assert_eq!(lost(lease.run(async {}).await), Loss::Revoked);
    }
    assert_eq!(setup.calls(Call::Renew), renewals);
    assert_eq!(lost(lease.unlock().await), Loss::Revoked);
}

#[tokio::test(start_paused = true)]
async fn no_new_lease_while_one_of_a_lost_hold_is_alive() {
    let setup = Setup::new();
    let mut lock = setup.leases.lock("n");
    let (outer, inner) = (lock.lock().await.unwrap(), lock.lock().await.unwrap());
    let fence = outer.fence();
    setup.leases.force_unlock("n", "test").await.unwrap();
    assert_eq!(lost(lock.lock().await), Loss::Revoked);
    assert_eq!(lost(lock.try_lock().await), Loss::Revoked);
    drop(outer);
    assert_eq!(lost(lock.lock_timeout(T).await), Loss::Revoked);
    // For another handle it is a name like any other.
    let theirs = setup.leases.lock("n").try_lock().await.unwrap().unwrap();
    theirs.unlock().await.unwrap();
    assert_eq!(lost(inner.unlock().await), Loss::Revoked);

    let lease = lock.lock().await.unwrap();
    assert_eq!(lease.hold_count(), 1);
    assert!(lease.fence() > fence, "a new hold");
    lease.check().unwrap();
}

#[tokio::test(start_paused = true)]
async fn record_of_a_nested_lock_finds_out_that_the_hold_is_gone() {
    for taken in [false, true] {
        let setup = Setup::new();
        let mut lock = setup.leases.lock("n");
        let lease = lock.lock().await.unwrap();
        assert!(setup.memory.delete("n"));
        let theirs = if taken { Some(setup.held_elsewhere("n").await) } else { None };
        let cause = if taken { Loss::Taken } else { Loss::Gone };
        let inner = lock.lock().await.unwrap();
        lease.check().unwrap();
        counted().await;
        assert!(lease.cancellation_token().is_cancelled());
        assert_eq!((lost(lease.check()), lost(inner.check())), (cause, cause));
        assert_eq!(lost(lock.lock().await), cause);
        drop((lease, inner, theirs));
        settle().await;
        assert!(setup.memory.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn nested_lease_ends_with_its_hold() {
    let setup = Setup::new();
    let mut lock = setup.leases.lock("n");
    let lease = lock.lock().await.unwrap();
    setup.faults.add(Rule::new(Fault::Hang));
    sleep(T / 2).await;
    let inner = lock.lock().await.unwrap();
    assert!(inner.remaining() < T / 2, "{:?}", inner.remaining());
    let (took, loss) = timed(inner.lost()).await;
    assert_eq!((loss, took), (Loss::Expired, C - T / 2));
    assert_eq!(lost(lock.lock().await), Loss::Expired);
    assert_eq!(lease.hold_count(), 2);
}

#[tokio::test(start_paused = true)]
async fn clean_end_is_no_loss() {
    let setup = Setup::new();
    for end in ["unlock", "drop", "forget"] {
        let lease = setup.leases.lock(end).lock().await.unwrap();
        let lost = lease.lost();
        match end {
            "unlock" => lease.unlock().await.unwrap(),
            "drop" => drop(lease),
            _ => lease.forget(),
        }
        assert!(timeout(5 * T, lost).await.is_err(), "after {end}");
    }
}

#[tokio::test(start_paused = true)]
async fn future_of_a_loss_outlives_the_lease() {
    let setup = Setup::new();
    let mut lock = setup.leases.lock("n");
    let (outer, inner) = (lock.lock().await.unwrap(), lock.lock().await.unwrap());
    let heard = tokio::spawn(outer.lost());
    drop(outer);
    settle().await;
    assert!(!heard.is_finished());
    setup.leases.force_unlock("n", "test").await.unwrap();
    assert_eq!(heard.await.unwrap(), Loss::Revoked);
    drop(inner);
}

#[tokio::test(start_paused = true)]
async fn token_fires_at_any_end() {
    let setup = Setup::new();
    for end in ["unlock", "drop", "forget", "loss"] {
        let lease = setup.leases.lock(end).lock().await.unwrap();
        let (one, two) = (lease.cancellation_token(), lease.cancellation_token());
        settle().await;
        assert!(!one.is_cancelled() && !two.is_cancelled());
        match end {
            "unlock" => lease.unlock().await.unwrap(),
            "drop" => drop(lease),
            "forget" => lease.forget(),
            _ => {
                setup.leases.force_unlock(end, "test").await.unwrap();
                assert!(lease.cancellation_token().is_cancelled(), "asked for after the loss");
            }
        }
        assert!(one.is_cancelled() && two.is_cancelled(), "{end}");
    }
}

#[tokio::test(start_paused = true)]
async fn token_fires_before_the_release_is_sent() {
    let setup = Setup::new();
    setup.faults.add(Rule::new(Fault::Hang).on(Call::Release));
    let lease = setup.leases.lock("n").lock().await.unwrap();
    let token = lease.cancellation_token();
    let mut unlock = Box::pin(lease.unlock());
    assert!(!token.is_cancelled());
    assert!(poll_once(unlock.as_mut()).await.is_pending());
    assert!(token.is_cancelled());
    assert_eq!(setup.memory.len(), 1);
    setup.faults.heal();
    unlock.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn cancelling_a_token_affects_nobody_else() {
    let setup = Setup::new();
    let mut lock = setup.leases.lock("n");
    let (outer, inner) = (lock.lock().await.unwrap(), lock.lock().await.unwrap());
    let token = outer.cancellation_token();
    token.cancel();
    settle().await;
    for lease in [&outer, &inner] {
        assert!(!lease.cancellation_token().is_cancelled());
        lease.check().unwrap();
        assert_eq!(lease.run(async { 7 }).await.unwrap(), 7);
    }
    counted().await;
    assert_eq!(setup.recorded("n").await, Some(2));
}

/// Tells when it is dropped.
struct Dropped(Arc<AtomicBool>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn work_is_dropped_at_once_when_its_lease_is_lost() {
    let setup = Setup::new();
    let lease = setup.leases.lock("n").lock().await.unwrap();
    let dropped = Arc::new(AtomicBool::new(false));
    let guard = Dropped(Arc::clone(&dropped));
    let mut work = Box::pin(lease.run(async move {
        let _guard = guard;
        std::future::pending::<()>().await;
    }));
    assert!(poll_once(work.as_mut()).await.is_pending());
    sleep(T).await;
    assert!(poll_once(work.as_mut()).await.is_pending());
    setup.leases.force_unlock("n", "test").await.unwrap();
    let (took, result) = timed(work).await;
    assert_eq!((lost(result), took), (Loss::Revoked, Duration::ZERO));
    assert!(dropped.load(Ordering::SeqCst));
}

#[tokio::test(start_paused = true)]
async fn no_work_is_begun_without_a_lease() {
    let setup = Setup::new();
    let lease = setup.leases.lock("n").lock().await.unwrap();
    setup.leases.force_unlock("n", "test").await.unwrap();
    let mut begun = false;
    assert_eq!(lost(lease.run(async { begun = true }).await), Loss::Revoked);
    assert!(!begun);
}

#[tokio::test(start_paused = true)]
async fn late_copy_of_a_lost_holds_acquire_does_not_keep_the_name() {
    for cause in [Loss::Revoked, Loss::Gone, Loss::Taken] {
        let setup = Setup::new();
        setup.faults.add(Rule::new(Fault::RunLate).on(Call::Acquire).times(1));
        let lease = setup.leases.lock("n").lock().await.unwrap();
        match cause {
            Loss::Revoked => drop(setup.leases.force_unlock("n", "test").await.unwrap()),
            _ => assert!(setup.memory.delete("n")),
        }
        if cause == Loss::Taken {
            let theirs = setup.held_elsewhere("n").await;
            assert_eq!(lease.lost().await, cause);
            theirs.unlock().await.unwrap();
        } else {
            assert_eq!(lease.lost().await, cause);
        }
        drop(lease);
        settle().await;
        // It arrives here, when no task knows of it anymore.
        setup.faults.heal();
        let (took, lease) = timed(setup.other().lock("n").lock()).await;
        drop(lease.unwrap());
        assert!(took <= T / 10 + MOMENT, "{took:?} after {cause:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn work_that_ends_after_the_loss_without_an_await_is_not_ok() {
    let max = Duration::from_secs(5);
    let setup = Setup::with(LeaseManager::builder().max_hold(max));
    let lease = setup.leases.lock("n").lock().await.unwrap();
    let revoked = async {
        // Within one poll, as work that blocks.
        lease.check().unwrap();
        assert!(
            poll_once(Box::pin(setup.leases.force_unlock("n", "test")).as_mut()).await.is_ready()
        );
        7
    };
    assert_eq!(lost(lease.run(revoked).await), Loss::Revoked);
    drop(lease);
    let result = setup
        .leases
        .lock("n")
        .with(async |_, lease| {
            assert!(
                poll_once(Box::pin(setup.leases.force_unlock("n", "test")).as_mut())
                    .await
                    .is_ready()
            );
            lost(lease.check())
        })
        .await;
    assert_eq!(lost(result), Loss::Revoked);
}

#[tokio::test(start_paused = true)]
async fn with_reports_a_loss_that_the_release_finds() {
    let setup = Setup::new();
    let result = setup.leases.lock("n").with(async |_, _| setup.memory.delete("n")).await;
    assert_eq!(lost(result), Loss::Gone);
}

#[tokio::test(start_paused = true)]
async fn grant_while_its_name_is_forced_open_is_lost() {
    let slow = Fault::Delay(5 * MOMENT);
    for answers in [true, false] {
        let setup = Setup::new();
        let theirs = setup.held_elsewhere("n").await;
        let mut lock = setup.leases.lock("n");
        let waiter = tokio::spawn(async move { lock.lock().await.unwrap() });
        settle().await;
        setup.faults.add(Rule::new(slow.clone()).on(Call::ForceRelease));
        let leases = setup.leases.clone();
        let forced = tokio::spawn(async move { leases.force_unlock("n", "test").await });
        settle().await;
        theirs.unlock().await.unwrap();
        let ours = waiter.await.unwrap();
        ours.check().unwrap();
        if !answers {
            setup.faults.add(Rule::new(Fault::Hang).on(Call::Renew));
        }
        assert!(forced.await.unwrap().unwrap());
        assert_eq!(lost(ours.check()), Loss::Revoked);
        assert!(ours.cancellation_token().is_cancelled());
        drop(ours);
        drop(setup.other().lock("n").lock().await.unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn grant_after_its_name_was_forced_open_is_verified_and_stays() {
    let setup = Setup::new();
    let theirs = setup.held_elsewhere("n").await;
    let mut lock = setup.leases.lock("n");
    let waiter = tokio::spawn(async move { lock.lock().await.unwrap() });
    settle().await;
    // It is done at once, and the answer takes a while.
    setup.faults.add(Rule::new(Fault::HoldReply).on(Call::ForceRelease));
    let leases = setup.leases.clone();
    let forced = tokio::spawn(async move { leases.force_unlock("n", "test").await });
    let ours = waiter.await.unwrap();
    settle().await;
    setup.faults.heal();
    assert!(forced.await.unwrap().unwrap());
    ours.check().unwrap();
    assert_eq!(setup.calls(Call::Renew), 1);
    ours.unlock().await.unwrap();
    drop(theirs);
}

/// Asks for the name at the moment when it is woken, and notes whether it may.
struct Asks {
    leases: LeaseManager,
    may: Mutex<Option<bool>>,
}

impl Wake for Asks {
    fn wake(self: Arc<Self>) {
        let mut lock = self.leases.lock("n");
        let mut asking = Box::pin(lock.try_lock());
        let poll = asking.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        // The task that may ask waits for the store.
        *self.may.lock().unwrap() = Some(poll.is_pending());
    }
}

#[tokio::test(start_paused = true)]
async fn holder_after_a_loss_finds_the_turn_free() {
    let setup = Setup::new();
    let lease = setup.leases.lock("n").lock().await.unwrap();
    setup.faults.add(Rule::new(Fault::Hang).on(Call::Renew));
    setup.faults.add(Rule::new(Fault::Hang).on(Call::Acquire));
    let asks = Arc::new(Asks { leases: setup.leases.clone(), may: Mutex::new(None) });
    let waker = Waker::from(Arc::clone(&asks));
    let mut lost = Box::pin(lease.lost());
    while lost.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
        sleep(MOMENT).await;
    }
    assert_eq!(*asks.may.lock().unwrap(), Some(true));
}
