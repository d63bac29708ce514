//! Releases: by unlock, drop and panic, from any thread, and with a store that fails.

use super::*;
use leasehold::Fate;
use std::cell::RefCell;

#[tokio::test(start_paused = true)]
async fn unlocking_gives_back_at_once() {
    let setup = Setup::new();
    let lease = setup.leases.lock("n").lock().await.unwrap();
    let (took, result) = timed(lease.unlock()).await;
    result.unwrap();
    assert_eq!((took, setup.calls(Call::Release)), (Duration::ZERO, 1));
    assert!(setup.memory.is_empty());
    sleep(5 * T).await;
    assert_eq!(setup.calls(Call::Renew), 0);
    assert_eq!(setup.calls(Call::Release), 1);
}

#[tokio::test(start_paused = true)]
async fn unlocking_what_was_silently_deleted_is_a_loss() {
    for taken in [false, true] {
        let setup = Setup::new();
        let lease = setup.leases.lock("n").lock().await.unwrap();
        assert!(setup.memory.delete("n"));
        let theirs = if taken { Some(setup.held_elsewhere("n").await) } else { None };
        let cause = if taken { Loss::Taken } else { Loss::Gone };
        assert_eq!(lost(lease.unlock().await), cause);
        assert_eq!(setup.memory.len(), usize::from(taken), "theirs is left alone");
        drop(theirs);
    }
}

#[tokio::test(start_paused = true)]
async fn unlock_of_a_nested_lease_discovers_no_loss() {
    let setup = Setup::new();
    let mut lock = setup.leases.lock("n");
    let (outer, inner) = (lock.lock().await.unwrap(), lock.lock().await.unwrap());
    assert!(setup.memory.delete("n"));
    inner.unlock().await.unwrap();
    outer.check().unwrap();
    assert_eq!(lost(outer.unlock().await), Loss::Gone);
}

#[tokio::test(start_paused = true)]
async fn unlock_after_an_inner_drop_of_a_deleted_key_is_a_loss() {
    // The record or the release finds it out.
    for head_start in [Duration::ZERO, MOMENT, MOMENT * 15, MOMENT * 25] {
        let setup = Setup::new();
        let mut lock = setup.leases.lock("n");
        let (outer, inner) = (lock.lock().await.unwrap(), lock.lock().await.unwrap());
        counted().await;
        let slow = Duration::from_millis(10);
        setup.faults.add(Rule::new(Fault::Delay(slow)).on(Call::Release));
        assert!(setup.memory.delete("n"));
        drop(inner);
        sleep(head_start).await;
        let result = outer.unlock().await;
        assert!(result.is_err(), "{head_start:?} after the drop it is fine");
        assert_eq!(lost(result), Loss::Gone);
    }
}

#[tokio::test(start_paused = true)]
async fn release_whose_reply_was_lost_is_done() {
    for taken in [false, true] {
        let setup = Setup::new();
        setup.faults.add(Rule::new(Fault::LoseReply).on(Call::Release).times(1));
        let lease = setup.leases.lock("n").lock().await.unwrap();
        let unlock = tokio::spawn(lease.unlock());
        setup.faults.until_calls(Call::Release, 1).await;
        // When it is asked again, another holder may have the name already.
        let theirs = if taken { Some(setup.held_elsewhere("n").await) } else { None };
        unlock.await.unwrap().unwrap();
        assert_eq!(setup.calls(Call::Release), 2);
        assert_eq!(setup.memory.len(), usize::from(taken));
        drop(theirs);
    }
}

#[tokio::test(start_paused = true)]
async fn release_with_a_lost_reply_is_done_after_an_inner_drop_too() {
    for nth in 1..=3 {
        let setup = Setup::new();
        let mut lock = setup.leases.lock("n");
        let (outer, inner) = (lock.lock().await.unwrap(), lock.lock().await.unwrap());
        let slow = || Rule::new(Fault::Delay(Duration::from_millis(10))).on(Call::Release);
        setup.faults.add(slow());
        setup.faults.add(Rule::new(Fault::LoseReply).on(Call::Release).times(1));
        setup.faults.add(slow().times(nth - 1));
        // Both have something to record in the store, one of them in the background.
        drop(inner);
        settle().await;
        let result = outer.unlock().await;
        assert!(result.is_ok(), "{result:?}, when reply {nth} was lost");
        settle().await;
        assert!(setup.memory.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn release_that_fails_is_tried_again() {
    let setup = Setup::new();
    setup.faults.add(Rule::new(Fault::Fail(unavailable())).on(Call::Release).times(2));
    let lease = setup.leases.lock("n").lock().await.unwrap();
    lease.unlock().await.unwrap();
    assert_eq!(setup.calls(Call::Release), 3);
    assert!(setup.memory.is_empty());
}

#[tokio::test(start_paused = true)]
async fn release_that_goes_on_failing_is_tried_on() {
    for kind in [ErrorKind::Unavailable, ErrorKind::Denied, ErrorKind::Rejected] {
        let setup = Setup::new();
        let error = Error::new(kind, "no").with_fate(Fate::NotExecuted);
        setup.faults.add(Rule::new(Fault::Fail(error)).on(Call::Release));
        let lease = setup.leases.lock("n").lock().await.unwrap();
        let (took, result) = timed(lease.unlock()).await;
        assert_eq!(failed(result), kind);
        assert!(took <= ATTEMPT, "{took:?}");
        sleep(T / 3).await;
        setup.faults.heal();
        sleep(T / 20).await;
        assert!(setup.memory.is_empty(), "{kind:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn unlocking_at_a_hung_store_ends_within_about_an_attempt() {
    let setup = Setup::new();
    let lease = setup.leases.lock("n").lock().await.unwrap();
    setup.faults.add(Rule::new(Fault::Hang).on(Call::Release));
    let (took, result) = timed(tokio::time::timeout(T, lease.unlock())).await;
    let result = result.expect("it waits for ever");
    assert_eq!(failed(result), ErrorKind::Unavailable);
    assert!(took <= 2 * ATTEMPT, "{took:?}");
    setup.faults.heal();
    settle().await;
    assert!(setup.memory.is_empty());
}

#[tokio::test(start_paused = true)]
async fn hold_that_cannot_be_released_expires() {
    let setup = Setup::new();
    let mut lock = setup.leases.lock("n");
    let lease = lock.lock().await.unwrap();
    setup.faults.add(Rule::new(Fault::Fail(unavailable())).on(Call::Release));
    drop(lease);
    let (took, theirs) = timed(setup.other().lock("n").lock()).await;
    theirs.unwrap().unlock().await.unwrap();
    assert!(took <= T + Duration::from_millis(10), "{took:?}");
    let calls = setup.calls(Call::Release);
    assert!(calls > 3);
    sleep(T).await;
    assert_eq!(setup.calls(Call::Release), calls, "it is given up then");
    assert_eq!(setup.calls(Call::Renew), 0, "what is given back is not renewed");
    drop(lock.lock().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn count_that_cannot_be_lowered_does_not_matter() {
    let setup = Setup::new();
    let mut lock = setup.leases.lock("n");
    let (outer, inner) = (lock.lock().await.unwrap(), lock.lock().await.unwrap());
    counted().await;
    let full = Error::new(ErrorKind::Rejected, "out of memory");
    setup.faults.add(Rule::new(Fault::Fail(full)).on(Call::Release).times(1));
    inner.unlock().await.unwrap();
    counted().await;
    assert_eq!((outer.hold_count(), setup.recorded("n").await), (1, Some(2)));
    sleep(2 * T).await;
    outer.check().unwrap();
    outer.unlock().await.unwrap();
    assert!(setup.memory.is_empty());
}

#[tokio::test(start_paused = true)]
async fn dropping_gives_back_without_waiting() {
    let setup = Setup::new();
    let mut lock = setup.leases.lock("n");
    drop(lock.lock().await.unwrap());
    setup.faults.until_calls(Call::Release, 1).await;
    settle().await;
    assert!(setup.memory.is_empty());
    // The handle itself waits for its own release.
    drop(lock.lock().await.unwrap());
    assert!(lock.try_lock().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn panic_gives_back() {
    let setup = Setup::new();
    let mut lock = setup.leases.lock("n");
    let task = tokio::spawn(async move {
        let _outer = lock.lock().await.unwrap();
        let _inner = lock.lock().await.unwrap();
        panic!("while it holds");
    });
    assert!(task.await.unwrap_err().is_panic());
    let (took, lease) = timed(setup.leases.lock("n").lock()).await;
    drop(lease.unwrap());
    assert_eq!(took, Duration::ZERO);
}

/// In real time: there is no runtime to pause.
#[test]
fn unlock_that_panics_for_want_of_a_runtime_is_done() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let memory = MemoryStore::new();
    let manager =
        |store| LeaseManager::builder().dedicated_thread(true).build(store).expect("a manager");
    let (here, there) = runtime.block_on(async { (manager(memory.clone()), manager(memory)) });
    let lease = runtime.block_on(here.lock("n").lock()).expect("free");
    let mut unlocking = Box::pin(lease.unlock());
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    let poll = std::panic::AssertUnwindSafe(|| unlocking.as_mut().poll(&mut cx).is_ready());
    std::panic::catch_unwind(poll).expect_err("there is no timer");
    drop(unlocking);
    // Long before the lease would expire.
    let mut next = there.lock("n");
    let entered = runtime.block_on(next.lock_timeout(Duration::from_secs(10)));
    drop(entered.unwrap().expect("released"));
}

#[tokio::test(start_paused = true)]
async fn panic_of_the_store_keeps_no_name() {
    for call in [Call::Acquire, Call::Release] {
        for background in [false, true] {
            let setup = Setup::new();
            let mut lock = setup.leases.lock("n");
            let rule = Rule::new(Fault::Panic).on(call).times(1);
            let task = tokio::spawn({
                let faults = setup.faults.clone();
                async move {
                    let (outer, inner) = (lock.lock().await.unwrap(), lock.lock().await.unwrap());
                    faults.add(rule);
                    if background {
                        drop((outer, inner, lock.lock().await));
                    } else {
                        drop(inner);
                        drop(lock.lock().await);
                        drop(outer.unlock().await);
                    }
                }
            });
            // Whether it goes through to the caller is not the point.
            drop(task.await);
            let (took, lease) = timed(setup.leases.lock("n").lock_timeout(T)).await;
            assert!(lease.unwrap().is_some(), "{call:?}, background: {background}");
            assert!(took <= T / 10, "{took:?}, {call:?}, background: {background}");
        }
    }
}

/// Also when the thread drops it with its own variables, at its end.
#[tokio::test(start_paused = true)]
async fn thread_without_a_runtime_gives_back() {
    thread_local! {
        static KEPT: RefCell<Option<Lease>> = const { RefCell::new(None) };
    }
    for keeps in [false, true] {
        let setup = Setup::new();
        let lease = setup.leases.lock("n").lock().await.unwrap();
        let token = lease.cancellation_token();
        let thread = std::thread::spawn(move || {
            if keeps {
                KEPT.with(|kept| *kept.borrow_mut() = Some(lease));
            }
        });
        thread.join().expect("no panic");
        assert!(token.is_cancelled());
        let (took, lease) = timed(setup.other().lock("n").lock()).await;
        drop(lease.unwrap());
        assert!(took <= MOMENT, "{took:?}");
    }
}

fn runtime() -> tokio::runtime::Runtime {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime")
}

/// In real time: two runtimes share no paused clock.
#[test]
fn lease_outlives_its_runtime_and_goes_with_the_next() {
    // Also if that was so short that the engine never had its turn.
    for turns in [1, 0] {
        let first = runtime();
        let (setup, dropped, kept) = first.block_on(async {
            let setup = Setup::new();
            let dropped = setup.leases.lock("dropped").lock().await.unwrap();
            let kept = setup.leases.lock("kept").lock().await.unwrap();
            for _ in 0..turns {
                tokio::task::yield_now().await;
            }
            (setup, dropped, kept)
        });
        drop(first);
        drop(dropped);
        runtime().block_on(async {
            // The next call to the manager runs it here.
            let next = setup.leases.lock("dropped").lock_timeout(Duration::from_secs(3)).await;
            let next = next.unwrap().unwrap_or_else(|| panic!("not given back, {turns} turns"));
            next.unlock().await.unwrap();
            kept.check().unwrap();
            kept.unlock().await.unwrap();
            assert!(setup.memory.is_empty());
        });
    }
}

/// In real time: the runtime of the engine has gone.
#[test]
fn hold_handed_to_another_runtime_is_renewed_there() {
    let runtime = || {
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
    };
    let (first, second) = (runtime(), runtime());
    // A tenth of it may pass from the grant to the hand-off.
    let ttl = Duration::from_secs(3);
    let memory = MemoryStore::new();
    let leases =
        first.block_on(async { LeaseManager::builder().ttl(ttl).build(memory.clone()).unwrap() });
    let lease = first.block_on(async { leases.lock("n").lock().await.unwrap() });
    let mut lock = leases.lock("n");
    let mut waiting = Box::pin(async move { lock.lock().await.unwrap() });
    let polled = second.block_on(async { poll_once(waiting.as_mut()).await.is_pending() });
    assert!(polled, "it is in line");
    let waiter = second.spawn(waiting);
    drop(first);
    drop(lease);
    let lease = second.block_on(waiter).unwrap();
    std::thread::sleep(2 * ttl);
    lease.check().unwrap();
}

/// In real time: what comes back because the runtime ends must not be begun again and again.
#[test]
fn runtime_ends_while_its_engine_ends() {
    let (done, ended) = std::sync::mpsc::channel::<()>();
    std::thread::spawn(move || {
        let _done = done;
        for _ in 0..25 {
            let mut runtime = tokio::runtime::Builder::new_multi_thread();
            let runtime = runtime.worker_threads(2).enable_all().build().expect("a runtime");
            let (leases, held) = runtime.block_on(async {
                let leases = LeaseManager::in_memory();
                let mut held = Vec::new();
                for i in 0..2_000 {
                    held.push(leases.lock(format!("n:{i}")).lock().await.unwrap());
                }
                (leases, held)
            });
            drop((held, leases));
            drop(runtime);
        }
    });
    // What spins never ends; all this is a second's work, but the machine may have other things to do.
    let limit = Duration::from_secs(60);
    let spins = ended.recv_timeout(limit) == Err(std::sync::mpsc::RecvTimeoutError::Timeout);
    assert!(!spins, "it did not end within {limit:?}");
}

#[tokio::test(start_paused = true)]
async fn forgotten_lease_is_kept_until_it_expires() {
    let setup = Setup::new();
    let lease = setup.leases.lock("n").lock().await.unwrap();
    setup.faults.until_calls(Call::Renew, 1).await;
    let renewed = Instant::now();
    settle().await;
    lease.forget();
    let theirs = setup.other().lock("n").lock().await.unwrap();
    let kept = renewed.elapsed();
    assert!(kept >= T && kept < T + Duration::from_secs(1), "{kept:?}");
    assert_eq!((setup.calls(Call::Renew), setup.calls(Call::Release)), (1, 0));
    drop(theirs);
}

#[tokio::test(start_paused = true)]
async fn forgotten_lease_leaves_the_others_of_its_hold() {
    let setup = Setup::new();
    let mut lock = setup.leases.lock("n");
    let (outer, inner) = (lock.lock().await.unwrap(), lock.lock().await.unwrap());
    inner.forget();
    assert_eq!(outer.hold_count(), 1);
    sleep(3 * T).await;
    outer.check().unwrap();
    outer.unlock().await.unwrap();
    assert!(setup.memory.is_empty());
}

#[tokio::test(start_paused = true)]
async fn handle_of_a_forgotten_lease_waits_like_any_other() {
    let setup = Setup::new();
    let mut lock = setup.leases.lock("n");
    lock.lock().await.unwrap().forget();
    assert!(lock.try_lock().await.unwrap().is_none());
    let (took, lease) = timed(lock.lock_timeout(2 * T)).await;
    assert_eq!(lease.unwrap().expect("expired").hold_count(), 1);
    assert!(took >= T && took < T + Duration::from_secs(1), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn with_returns_what_its_body_returns() {
    let setup = Setup::new();
    let mut lock = setup.leases.lock("n");
    let sum = lock.with(async |_, lease| 40 + lease.hold_count() + 1).await.unwrap();
    assert_eq!(sum, 42);
    assert!(setup.memory.is_empty());

    let own = lock.with(async |_, _| Err::<(), _>("its own error")).await.unwrap();
    assert_eq!(own, Err("its own error"));
    assert!(setup.memory.is_empty());
}

#[tokio::test(start_paused = true)]
async fn release_that_fails_takes_nothing_from_with() {
    let setup = Setup::new();
    let mut lock = setup.leases.lock("n");
    setup.faults.add(Rule::new(Fault::Fail(unavailable())).on(Call::Release));
    let own = lock.with(async |_, _| Err::<(), _>("its own error")).await.unwrap();
    assert_eq!(own, Err("its own error"));
}

#[tokio::test(start_paused = true)]
async fn with_is_lost_with_its_lease() {
    let setup = Setup::new();
    let mut lock = setup.leases.lock("n");
    let mut body = Box::pin(lock.with(async |_, _| std::future::pending::<()>().await));
    assert!(poll_once(body.as_mut()).await.is_pending());
    setup.leases.force_unlock("n", "test").await.unwrap();
    assert_eq!(lost(body.await), Loss::Revoked);
    // Nothing of it is left in the handle.
    lock.lock().await.unwrap().check().unwrap();
}

#[tokio::test(start_paused = true)]
async fn with_gives_back_when_its_body_panics() {
    let setup = Setup::new();
    let mut lock = setup.leases.lock("n");
    let task = tokio::spawn(async move { lock.with(async |_, _| panic!("in the body")).await });
    assert!(task.await.unwrap_err().is_panic());
    let (took, lease) = timed(setup.other().lock("n").lock()).await;
    drop(lease.unwrap());
    assert_eq!(took, Duration::ZERO);
}

/// Panics at the call itself, not when what it returned is polled, or at each release.
#[tokio::test(start_paused = true)]
async fn store_that_panics_at_each_release_is_asked_no_more_often() {
    let calls = async |fault: Fault| {
        let setup = Setup::new();
        setup.faults.add(Rule::new(fault).on(Call::Release));
        let lease = setup.leases.lock("n").lock().await.unwrap();
        let error = lease.unlock().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        sleep(2 * T).await;
        drop(setup.leases.lock("n").lock().await.unwrap());
        sleep(2 * T).await;
        setup.calls(Call::Release)
    };
    let (fails, panics) = (calls(Fault::Fail(unavailable())).await, calls(Fault::Panic).await);
    assert!(panics <= 2 * fails, "{panics} to {fails}");
}

#[tokio::test(start_paused = true)]
async fn sweeps_follow_a_failure_as_soon_as_with_any_time_to_live() {
    let ttl = Duration::from_secs(3600);
    let setup = Setup::with(LeaseManager::builder().ttl(ttl));
    // It is granted, no task receives the grant, and the first release is not sent either.
    setup.faults.add(Rule::new(Fault::LoseReply).on(Call::Acquire).times(1));
    setup.faults.add(Rule::new(Fault::Fail(unavailable())).on(Call::Release).times(1));
    assert_eq!(failed(setup.leases.lock("n").try_lock().await), ErrorKind::Unavailable);
    let (took, lease) = timed(setup.other().lock("n").lock()).await;
    drop(lease.unwrap());
    assert!(took <= Duration::from_secs(4), "{took:?}");
}

/// A server that stands still runs what it was sent when it goes on.
#[tokio::test(start_paused = true)]
async fn request_that_runs_after_its_time_to_live_is_released() {
    let setup = Setup::new();
    setup.faults.add(Rule::new(Fault::Fail(unavailable())));
    setup.faults.add(Rule::new(Fault::RunLate).on(Call::Acquire).times(1));
    assert_eq!(failed(setup.leases.lock("n").try_lock().await), ErrorKind::Unavailable);
    sleep(3 * T).await;
    setup.faults.heal();
    settle().await;
    assert_eq!(setup.recorded("n").await, Some(1), "it runs now");
    let (took, lease) = timed(setup.other().lock("n").lock()).await;
    drop(lease.unwrap());
    assert!(took <= T / 5, "{took:?}");
    // In the end it gives up.
    setup.faults.add(Rule::new(Fault::Fail(unavailable())));
    assert_eq!(failed(setup.leases.lock("n").try_lock().await), ErrorKind::Unavailable);
    sleep(20 * T).await;
    let calls = setup.calls(Call::Release);
    sleep(20 * T).await;
    assert_eq!(setup.calls(Call::Release), calls);
}

/// The last request was not sent, but one before it was.
#[tokio::test(start_paused = true)]
async fn fate_of_a_call_is_that_of_all_its_requests() {
    for first in [true, false] {
        let setup = Setup::new();
        let unsent = unavailable().with_fate(Fate::NotExecuted);
        setup.faults.add(Rule::new(Fault::Fail(unsent)).on(Call::Acquire));
        if first {
            setup.faults.add(Rule::new(Fault::LoseReply).on(Call::Acquire).times(1));
        }
        let error = setup.leases.lock("n").lock_timeout(2 * T).await.expect_err("no answer");
        let fate = if first { Fate::Unknown } else { Fate::NotExecuted };
        assert_eq!((error.kind(), error.fate()), (ErrorKind::Unavailable, fate));
    }
}
