//! Renewals: one by one and in batches, and with a store that fails.

use super::*;
use leasehold::{Fate, LeaseState};

#[tokio::test(start_paused = true)]
async fn renewals_keep_a_lease_for_as_long_as_it_lives() {
    let setup = Setup::new();
    let other = setup.other();
    let lease = setup.leases.lock("n").lock().await.unwrap();
    for _ in 0..100 {
        sleep(T / 10).await;
        lease.check().unwrap();
        assert_eq!(lease.state(), LeaseState::Held);
        assert!(lease.remaining() > C - T / 3 - MOMENT);
        assert!(other.lock("n").try_lock().await.unwrap().is_none());
    }
    // Every T/3, less up to a tenth of that.
    let renewals = setup.calls(Call::Renew);
    assert!((30..=34).contains(&renewals), "{renewals}");
}

#[tokio::test(start_paused = true)]
async fn one_failed_renewal_is_a_risk_and_no_loss() {
    for fault in [Fault::LoseReply, Fault::RunLate, Fault::Fail(unavailable()), Fault::Hang] {
        let setup = Setup::new();
        let lease = setup.leases.lock("n").lock().await.unwrap();
        let token = lease.cancellation_token();
        setup.faults.add(Rule::new(fault.clone()).on(Call::Renew).times(1));
        setup.faults.until_calls(Call::Renew, 1).await;
        // The one that hangs counts as failed after the time of an attempt.
        sleep(if matches!(fault, Fault::Hang) { ATTEMPT + MOMENT } else { MOMENT }).await;
        assert_eq!(lease.state(), LeaseState::AtRisk, "{fault:?}");
        lease.check().unwrap();

        setup.faults.until_calls(Call::Renew, 2).await;
        settle().await;
        assert_eq!(lease.state(), LeaseState::Held, "{fault:?}");
        assert!(lease.remaining() > C - 2 * MOMENT);
        setup.faults.heal();
        sleep(10 * T).await;
        assert_eq!(lease.state(), LeaseState::Held, "{fault:?}");
        assert!(!token.is_cancelled());
    }
}

#[tokio::test(start_paused = true)]
async fn no_error_keeps_the_watchdog_from_trying_again() {
    use ErrorKind::{Closed, Denied, Invalid, Rejected, Unavailable, Unsupported};
    for kind in [Closed, Denied, Invalid, Rejected, Unavailable, Unsupported] {
        for fate in [Fate::Executed, Fate::NotExecuted, Fate::Unknown] {
            let setup = Setup::new();
            let lease = setup.leases.lock("n").lock().await.unwrap();
            let error = Error::new(kind, "no").with_fate(fate);
            setup.faults.add(Rule::new(Fault::Fail(error)).on(Call::Renew));
            setup.faults.until_calls(Call::Renew, 1).await;
            sleep(T / 4).await;
            assert_eq!(lease.state(), LeaseState::AtRisk, "{kind:?}");
            assert!(setup.calls(Call::Renew) >= 3, "it tries again");
            setup.faults.heal();
            sleep(T / 10).await;
            assert_eq!(lease.state(), LeaseState::Held, "{kind:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn panic_of_the_store_is_a_failed_renewal() {
    let setup = Setup::new();
    let lease = setup.leases.lock("n").lock().await.unwrap();
    setup.faults.add(Rule::new(Fault::Panic).on(Call::Renew).times(2));
    setup.faults.until_calls(Call::Renew, 3).await;
    settle().await;
    assert_eq!(lease.state(), LeaseState::Held);
    sleep(5 * T).await;
    lease.check().unwrap();
}

#[tokio::test(start_paused = true)]
async fn token_fires_before_the_store_lets_go_without_confirmation() {
    let faults = [Fault::Hang, Fault::HoldReply, Fault::LoseReply, Fault::Fail(unavailable())];
    for fault in faults {
        for renewals in [0, 1, 3] {
            let setup = Setup::new();
            let mut lock = setup.leases.lock("n");
            let lease = lock.lock().await.unwrap();
            let mut confirmed = Instant::now();
            for done in 1..=renewals {
                setup.faults.until_calls(Call::Renew, done).await;
                confirmed = Instant::now();
            }
            settle().await;
            setup.faults.add(Rule::new(fault.clone()).on(Call::Renew));
            assert_eq!(lease.lost().await, Loss::Expired, "{fault:?}");
            let believed = confirmed.elapsed();
            assert!(believed < D && believed >= C - MOMENT, "{believed:?}, {fault:?}");
            assert!(lease.cancellation_token().is_cancelled());
            assert_eq!(lost(lease.check()), Loss::Expired);
            assert_eq!(lease.state(), LeaseState::Lost);
            assert_eq!(lease.remaining(), Duration::ZERO);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_else_gets_in_before_the_token_has_fired() {
    for renewals in [0, 2] {
        let setup = Setup::new();
        let lease = setup.leases.lock("n").lock().await.unwrap();
        setup.faults.until_calls(Call::Renew, renewals).await;
        settle().await;
        setup.faults.add(Rule::new(Fault::Hang));
        let mut waiter = setup.other().lock("n");
        let waiter = tokio::spawn(async move { (waiter.lock().await.unwrap(), Instant::now()) });
        lease.cancellation_token().cancelled().await;
        let fired = Instant::now();
        assert!(!waiter.is_finished());
        let (_theirs, entered) = waiter.await.unwrap();
        let apart = entered - fired;
        assert!(apart >= GRACE && apart < GRACE + Duration::from_secs(1), "{apart:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_renewed_and_no_answer_counts_once_the_token_fired() {
    for fault in [Fault::Hang, Fault::HoldReply, Fault::RunLate, Fault::Fail(unavailable())] {
        let setup = Setup::new();
        let lease = setup.leases.lock("n").lock().await.unwrap();
        setup.faults.add(Rule::new(fault.clone()).on(Call::Renew));
        lease.cancellation_token().cancelled().await;
        let renewals = setup.calls(Call::Renew);
        assert!(renewals > 1, "{fault:?}");
        setup.faults.heal();
        sleep(3 * T).await;
        assert_eq!(setup.calls(Call::Renew), renewals, "{fault:?}");
        assert_eq!(lost(lease.check()), Loss::Expired);
        assert!(setup.memory.is_empty(), "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn lease_that_left_since_is_not_renewed_with_the_others() {
    let setup = Setup::new();
    let mut leases = Vec::new();
    for i in 0..300 {
        leases.push(setup.leases.lock(format!("n:{i}")).lock().await.unwrap());
    }
    setup.faults.until_calls(Call::Renew, 3).await;
    settle().await;
    // A third of each batch stays.
    let (stay, leave): (Vec<_>, Vec<_>) =
        leases.into_iter().enumerate().partition(|(i, _)| i % 3 == 0);
    for (_, lease) in leave {
        lease.unlock().await.unwrap();
    }
    sleep(T).await;
    let calls = setup.calls(Call::Renew);
    sleep(10 * T).await;
    for (_, lease) in &stay {
        lease.check().unwrap();
    }
    // Those of three batches go together, up to 34 times.
    let calls = setup.calls(Call::Renew) - calls;
    assert!((30..=34 * 2).contains(&calls), "{calls}");
    for (_, lease) in stay {
        lease.unlock().await.unwrap();
    }
    let calls = setup.calls(Call::Renew);
    sleep(T).await;
    assert_eq!(setup.calls(Call::Renew), calls, "nobody is there");
}

/// Whoever moved on since stands elsewhere, and is not renewed with the others too: neither when their time
/// comes, nor when they are taken along before, with the third, which is as a rule in one of two cases.
#[tokio::test(start_paused = true)]
async fn lease_that_was_confirmed_since_is_renewed_in_its_own_time() {
    for _ in 0..10 {
        let setup = Setup::with(LeaseManager::builder().grace(T / 3));
        let mut locks = ["a", "b", "c"].map(|name| setup.leases.lock(name));
        let [a, b, c] = locks.each_mut();
        let (_a, lease) = (a.lock().await.unwrap(), b.lock().await.unwrap());
        setup.faults.until_calls(Call::Renew, 1).await;
        settle().await;
        let _c = c.lock().await.unwrap();
        sleep(T / 6).await;
        lease.ensure_remaining(T / 2).await.unwrap();
        let (alone, fresh) = (Instant::now(), lease.remaining());
        assert_eq!(setup.calls(Call::Renew), 2, "it alone");
        setup.faults.until_calls(Call::Renew, 3).await;
        settle().await;
        assert!(alone.elapsed() < T / 5, "the time of the others");
        let since = fresh - lease.remaining();
        assert!(since >= alone.elapsed(), "{since:?}: renewed with them");
        setup.faults.until_calls(Call::Renew, 4).await;
        settle().await;
        assert!(lease.remaining() > fresh - 2 * MOMENT);
    }
}

#[test]
fn ensuring_waits_for_a_renewal_if_too_little_remains() {
    watched(async || {
        let setup = Setup::new();
        let lease = setup.leases.lock("n").lock().await.unwrap();
        let (took, result) = timed(lease.ensure_remaining(T / 2)).await;
        result.unwrap();
        assert_eq!((took, setup.calls(Call::Renew)), (Duration::ZERO, 0));

        setup.faults.add(Rule::new(Fault::Fail(unavailable())).on(Call::Renew));
        sleep(T / 2).await;
        assert!(lease.remaining() < T / 2);
        let (took, result) = timed(lease.ensure_remaining(lease.remaining())).await;
        result.unwrap();
        assert_eq!(took, Duration::ZERO, "enough remains");
        let mut ensured = Box::pin(lease.ensure_remaining(T / 2));
        assert!(poll_once(ensured.as_mut()).await.is_pending());
        sleep(T / 10).await;
        assert!(poll_once(ensured.as_mut()).await.is_pending());
        setup.faults.heal();
        ensured.await.unwrap();
        assert!(lease.remaining() >= T / 2);
    });
}

#[test]
fn ensuring_ends_with_the_lease_at_the_latest() {
    watched(async || {
        let setup = Setup::new();
        let lease = setup.leases.lock("n").lock().await.unwrap();
        setup.faults.add(Rule::new(Fault::Hang).on(Call::Renew));
        sleep(T / 2).await;
        let (took, result) = timed(lease.ensure_remaining(T / 2)).await;
        assert_eq!(lost(result), Loss::Expired);
        assert_eq!(took, C - T / 2);
        assert_eq!(lost(lease.ensure_remaining(MOMENT).await), Loss::Expired);
    });
}

#[tokio::test(start_paused = true)]
async fn after_a_reconnect_every_lease_is_verified_at_once() {
    let setup = Setup::new();
    let mut leases = Vec::new();
    for i in 0..150 {
        leases.push(setup.leases.lock(format!("n:{i}")).lock().await.unwrap());
    }
    // The server was restarted without the first of them; and again, when the others were renewed together.
    for first in 0..2 {
        settle().await;
        assert!(setup.memory.delete(&format!("n:{first}")));
        setup.faults.reconnect();
        settle().await;
        assert_eq!(setup.calls(Call::Renew), 2 * (first + 1), "100 at a time");
        assert_eq!(lost(leases[first].check()), Loss::Gone);
        for lease in &leases[first + 1..] {
            assert!(lease.remaining() > C - 2 * MOMENT);
        }
        sleep(T / 10).await;
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_freeze_that_was_too_long_nothing_is_renewed() {
    // The timer and the reconnect are there together; whichever the engine sees first.
    for _ in 0..30 {
        let setup = Setup::new();
        let lease = setup.leases.lock("n").lock().await.unwrap();
        settle().await;
        setup.faults.reconnect();
        tokio::time::advance(C).await;
        assert_eq!(lease.lost().await, Loss::Expired);
        assert_eq!(setup.calls(Call::Renew), 0);
    }
}

/// The freeze begins just when a renewal was decided and before it is sent, in some of these.
#[tokio::test(start_paused = true)]
async fn freeze_before_a_renewal_is_sent_leaves_no_lease_unseen() {
    let ttl = Duration::from_millis(100);
    for _ in 0..40 {
        // When renewals fall due, less the jitter.
        for due in 29..=34 {
            let setup = Setup::with(LeaseManager::builder().ttl(ttl));
            let lease = setup.leases.lock("n").lock().await.unwrap();
            let token = lease.cancellation_token();
            // Not in the test's own task, which would run before the watchdog.
            let freeze = tokio::spawn(async move {
                sleep(Duration::from_millis(due)).await;
                tokio::time::advance(2 * ttl).await;
            });
            freeze.await.unwrap();
            settle().await;
            assert!(token.is_cancelled(), "frozen after {due} ms");
            assert_eq!(lease.lost().await, Loss::Expired);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn ensure_beyond_what_is_possible_is_invalid() {
    let setup = Setup::with(LeaseManager::builder().max_hold(T / 3));
    let lease = setup.leases.lock("n").lock().await.unwrap();
    assert_eq!(failed(lease.ensure_remaining(T / 2 + MOMENT).await), ErrorKind::Invalid);
    let error = lease.ensure_remaining(T / 2).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "max_hold is shorter");
    assert!(error.to_string().contains("max_hold") && error.to_string().contains("ask for less"));
    lease.ensure_remaining(T / 4).await.unwrap();
}

/// On the machine's clock: no timer can fire while the only thread is frozen.
#[tokio::test]
async fn frozen_runtime_is_noticed_without_an_event() {
    let ttl = Duration::from_millis(200);
    let setup = Setup::with(LeaseManager::builder().ttl(ttl));
    let mut lock = setup.leases.lock("n");
    let lease = lock.lock().await.unwrap();
    lease.check().unwrap();
    std::thread::sleep(ttl);
    assert_eq!(lost(lease.check()), Loss::Expired);
    assert_eq!(lease.remaining(), Duration::ZERO);
    assert_eq!(lease.state(), LeaseState::Lost);
    assert!(lease.cancellation_token().is_cancelled());
    let mut worked = false;
    let work = lease.run(async { worked = true });
    assert_eq!(lost(work.await), Loss::Expired);
    assert!(!worked, "not one step without the lease");
    assert_eq!(lost(lease.unlock().await), Loss::Expired);
}

/// The same, seen by what asks the lease first.
#[tokio::test]
async fn frozen_runtime_is_noticed_by_whatever_asks_first() {
    let ttl = Duration::from_millis(200);
    let setup = Setup::with(LeaseManager::builder().ttl(ttl));
    let mut lock = setup.leases.lock("n");
    let asks: [fn(&Lease) -> bool; 3] = [
        |lease| lease.state() == LeaseState::Lost,
        |lease| lease.remaining().is_zero(),
        |lease| format!("{lease:?}").contains("Lost"),
    ];
    for ask in asks {
        let lease = lock.lock().await.unwrap();
        assert!(!ask(&lease));
        std::thread::sleep(ttl);
        assert!(ask(&lease));
        drop(lease);
    }
    let lease = lock.lock().await.unwrap();
    std::thread::sleep(ttl);
    assert_eq!(lost(lock.lock().await), Loss::Expired, "no re-entry");
    drop(lease);
    lock.lock().await.unwrap().unlock().await.unwrap();
}

/// More than one call leaves at a time; none of them may be forgotten.
#[tokio::test(start_paused = true)]
async fn all_batches_of_a_burst_that_hang_are_tried_again() {
    let setup = Setup::new();
    let mut leases = Vec::new();
    for i in 0..250 {
        leases.push(setup.leases.lock(format!("n:{i}")).lock().await.unwrap());
    }
    setup.faults.add(Rule::new(Fault::Hang).on(Call::Renew).times(3));
    // All are looked after at once.
    setup.faults.reconnect();
    setup.faults.until_calls(Call::Renew, 3).await;
    sleep(ATTEMPT + MOMENT).await;
    for lease in &leases {
        assert_eq!(lease.state(), LeaseState::AtRisk, "{}", lease.name());
    }
    setup.faults.until_calls(Call::Renew, 6).await;
    sleep(ATTEMPT).await;
    for lease in &leases {
        assert_eq!(lease.state(), LeaseState::Held, "{}", lease.name());
    }
    setup.faults.heal();
}

#[tokio::test(start_paused = true)]
async fn held_lease_costs_no_calls_between_its_renewals() {
    let setup = Setup::new();
    let lease = setup.leases.lock("n").lock().await.unwrap();
    sleep(T / 3 - T / 30 - MOMENT).await;
    assert_eq!(setup.calls(Call::Renew), 0);
    setup.faults.until_calls(Call::Renew, 1).await;
    assert_eq!(setup.calls(Call::Acquire) + setup.calls(Call::Inspect), 1);
    drop(lease);
}
