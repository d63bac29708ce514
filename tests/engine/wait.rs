//! Waits: their order, their length, and what ends them.

use super::*;
use leasehold::Fate;
use tokio::sync::mpsc;

#[tokio::test(start_paused = true)]
async fn waiters_get_in_in_the_order_of_arrival() {
    let setup = Setup::new();
    let first = setup.leases.lock("n").lock().await.unwrap();
    let (order, mut entered) = mpsc::unbounded_channel();
    for i in 0..20 {
        let mut lock = setup.leases.lock("n");
        let order = order.clone();
        let mut waiter = Box::pin(async move {
            let lease = lock.lock().await.unwrap();
            order.send(i).unwrap();
            sleep(MOMENT).await;
            lease.unlock().await.unwrap();
        });
        // Each stands in line before the next one comes.
        assert!(poll_once(waiter.as_mut()).await.is_pending());
        tokio::spawn(waiter);
    }
    drop(order);
    first.unlock().await.unwrap();
    for i in 0..20 {
        assert_eq!(entered.recv().await, Some(i));
    }
    assert_eq!(entered.recv().await, None);
}

#[tokio::test(start_paused = true)]
async fn those_who_leave_the_line_are_passed_over() {
    let setup = Setup::new();
    let first = setup.leases.lock("n").lock().await.unwrap();
    let mut waiters = Vec::new();
    for _ in 0..6 {
        let mut lock = setup.leases.lock("n");
        let mut waiter = Box::pin(async move { lock.lock().await.unwrap() });
        assert!(poll_once(waiter.as_mut()).await.is_pending());
        waiters.push(waiter);
    }
    let mut last = waiters.pop().unwrap();
    let notified = waiters.remove(0);
    drop(waiters.remove(2));
    first.unlock().await.unwrap();
    settle().await;
    // Its turn has come, but it goes without having looked.
    drop(notified);
    waiters.clear();
    let (took, lease) = timed(&mut last).await;
    assert_eq!(took, Duration::ZERO);
    lease.check().unwrap();
}

#[tokio::test(start_paused = true)]
async fn released_name_passes_on_at_once() {
    let setup = Setup::new();
    for elsewhere in [false, true] {
        let lease = if elsewhere {
            setup.held_elsewhere("n").await
        } else {
            setup.leases.lock("n").lock().await.unwrap()
        };
        let mut lock = setup.leases.lock("n");
        let waiter = tokio::spawn(async move { timed(lock.lock()).await });
        // This is not a time at which a waiter would ask by the clock.
        let while_held = Duration::from_micros(12_345_678);
        sleep(while_held).await;
        lease.unlock().await.unwrap();
        let (took, lease) = waiter.await.unwrap();
        assert_eq!(took, while_held.max(took), "elsewhere: {elsewhere}");
        assert!(took < while_held + MOMENT, "{took:?}, elsewhere: {elsewhere}");
        lease.unwrap().unlock().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn lost_wake_up_costs_the_poll_bound_at_most() {
    let bound = Duration::from_millis(700);
    for deaf in [false, true] {
        let setup = Setup::with(LeaseManager::builder().max_poll_interval(bound));
        if deaf {
            setup.faults.add(Rule::new(Fault::Fail(unavailable())).on(Call::Subscribe));
        }
        let lease = setup.held_elsewhere("n").await;
        let mut lock = setup.leases.lock("n");
        let waiter = tokio::spawn(async move {
            let lease = lock.lock().await.unwrap();
            (Instant::now(), lease)
        });
        sleep(Duration::from_secs(10)).await;
        let free = Instant::now();
        if deaf {
            lease.unlock().await.unwrap();
        } else {
            // A deletion wakes no waiter.
            assert!(setup.memory.delete("n"));
        }
        let (entered, _lease) = waiter.await.unwrap();
        assert!(entered - free <= bound, "{:?}, deaf: {deaf}", entered - free);
    }
}

#[tokio::test(start_paused = true)]
async fn waiter_for_a_crashed_holder_enters_just_after_its_ttl() {
    // A poll bound beyond T: it is the holder's time to live that wakes the waiter.
    let setup = Setup::with(LeaseManager::builder().max_poll_interval(Duration::from_secs(60)));
    setup.held_elsewhere("n").await.forget();
    let (took, lease) = timed(setup.leases.lock("n").lock_timeout(2 * T)).await;
    assert!(lease.unwrap().is_some());
    assert!((T..T + Duration::from_millis(10)).contains(&took), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn timeout_is_neither_early_nor_late() {
    let setup = Setup::new();
    let here = setup.leases.lock("here").lock().await.unwrap();
    let there = setup.held_elsewhere("there").await;
    for name in ["here", "there"] {
        for limit in [1, 2, 999, 1_000, 12_345, 100_000].map(Duration::from_millis) {
            let (took, result) = timed(setup.leases.lock(name).lock_timeout(limit)).await;
            assert!(result.unwrap().is_none(), "{name}, {limit:?}");
            assert_eq!(took, limit, "{name}");
        }
    }
    drop((here, there));
}

/// Each is the next to ask when the one before it gives up, and gives up itself before the answer.
#[tokio::test(start_paused = true)]
async fn waiters_that_give_up_together_see_a_taken_name() {
    for limit in [20, 50, 300, 5_000].map(Duration::from_millis) {
        let setup = Setup::new();
        let theirs = setup.held_elsewhere("n").await;
        setup.faults.add(Rule::new(Fault::Delay(4 * MOMENT)).on(Call::Acquire));
        let mut waiters = tokio::task::JoinSet::new();
        for _ in 0..5 {
            let mut lock = setup.leases.lock("n");
            waiters.spawn(async move { timed(lock.lock_timeout(limit)).await });
            // Each but the first gives up while the request of the one before it is on its way.
            sleep(MOMENT).await;
        }
        while let Some(waiter) = waiters.join_next().await {
            let (took, result) = waiter.expect("no panic");
            assert!(result.expect("the store has answered").is_none(), "{limit:?}");
            assert_eq!(took, limit);
        }
        drop(theirs);
    }
}

/// It asks again after each release it hears of; the last answer is on its way when the time ends.
#[tokio::test(start_paused = true)]
async fn slow_store_that_has_answered_is_not_silent() {
    for (latency, limit) in [(20, 34), (20, 38), (50, 90), (50, 1_000)] {
        let (latency, limit) = (Duration::from_millis(latency), Duration::from_millis(limit));
        let setup = Setup::new();
        let theirs = setup.held_elsewhere("n").await;
        setup.faults.add(Rule::new(Fault::Delay(latency)).on(Call::Acquire));
        for _ in 0..3 {
            let (took, result) = timed(setup.leases.lock("n").lock_timeout(limit)).await;
            assert!(result.expect("the store has answered").is_none(), "{latency:?}, {limit:?}");
            assert_eq!(took, limit);
        }
        drop(theirs);
    }
}

/// The one before it lets waiters elsewhere go first, and asks late.
#[tokio::test(start_paused = true)]
async fn silent_store_is_not_taken_for_a_holder_after_a_pause() {
    let limit = Duration::from_millis(300);
    let setup = Setup::new();
    let lease = setup.leases.lock("n").lock().await.unwrap();
    let elsewhere = setup.other();
    let mut elsewhere = elsewhere.lock("n");
    let mut elsewhere = Box::pin(elsewhere.lock());
    assert!(poll_once(elsewhere.as_mut()).await.is_pending());
    // So long a hold is worth a long pause, and no hand-off.
    sleep(Duration::from_secs(10)).await;
    assert!(poll_once(elsewhere.as_mut()).await.is_pending());
    setup.faults.add(Rule::new(Fault::Hang).on(Call::Acquire));
    let mut lock = setup.leases.lock("n");
    let mut waiter = Box::pin(timed(lock.lock_timeout(limit)));
    assert!(poll_once(waiter.as_mut()).await.is_pending());
    lease.unlock().await.unwrap();
    let (took, result) = waiter.await;
    assert_eq!((took, failed(result)), (limit, ErrorKind::Unavailable));
    drop(elsewhere);
}

#[tokio::test(start_paused = true)]
async fn timeout_of_zero_is_one_attempt() {
    let setup = Setup::new();
    let mut lock = setup.leases.lock("n");
    let elsewhere = setup.held_elsewhere("n").await;
    let (took, result) = timed(lock.lock_timeout(Duration::ZERO)).await;
    assert!(result.unwrap().is_none());
    assert_eq!((took, setup.calls(Call::Acquire)), (Duration::ZERO, 1));

    elsewhere.unlock().await.unwrap();
    let (took, result) = timed(lock.lock_timeout(Duration::ZERO)).await;
    assert!(result.unwrap().is_some());
    assert_eq!((took, setup.calls(Call::Acquire)), (Duration::ZERO, 2));
    settle().await;

    setup.faults.add(Rule::new(Fault::Fail(unavailable())).on(Call::Acquire));
    assert_eq!(failed(lock.lock_timeout(Duration::ZERO).await), ErrorKind::Unavailable);
    assert_eq!(setup.calls(Call::Acquire), 3);
}

#[tokio::test(start_paused = true)]
async fn timeout_is_kept_also_behind_a_line_that_moves() {
    let setup = Setup::new();
    let slow = Duration::from_millis(300);
    let mut line = tokio::task::JoinSet::new();
    let first = setup.leases.lock("n").lock().await.unwrap();
    for _ in 0..100 {
        let mut lock = setup.leases.lock("n");
        line.spawn(async move {
            let _lease = lock.lock().await.unwrap();
            sleep(slow).await;
        });
    }
    settle().await;
    drop(first);
    // Within the first chain, at its end, and after many of them.
    for limit in [1, 299, 300, 2_999, 3_000, 3_001, 12_345].map(Duration::from_millis) {
        let (took, result) = timed(setup.leases.lock("n").lock_timeout(limit)).await;
        assert!(result.unwrap().is_none(), "{limit:?}");
        assert_eq!(took, limit);
    }
    line.shutdown().await;
    let lease = setup.leases.lock("n").lock_timeout(MOMENT).await.unwrap();
    assert!(lease.is_some(), "nobody else waits");
}

#[tokio::test(start_paused = true)]
async fn timeout_is_kept_although_the_subscription_hangs_or_fails() {
    let faults = [Fault::Hang, Fault::HoldReply, Fault::Delay(T), Fault::Fail(unavailable())];
    for fault in faults {
        let setup = Setup::new();
        let elsewhere = setup.held_elsewhere("n").await;
        setup.faults.add(Rule::new(fault.clone()).on(Call::Subscribe));
        for limit in [1, 999, 3_000, 3_001, 12_345].map(Duration::from_millis) {
            let (took, result) = timed(setup.leases.lock("n").lock_timeout(limit)).await;
            // The store has answered: it is held.
            assert!(result.unwrap().is_none(), "{limit:?}, {fault:?}");
            assert_eq!(took, limit, "{fault:?}");
        }
        // Nor does it keep a patient one from looking by the clock.
        let mut lock = setup.leases.lock("n");
        let waiter = tokio::spawn(async move { lock.lock().await.unwrap() });
        sleep(2 * T).await;
        elsewhere.unlock().await.unwrap();
        let (took, _lease) = timed(waiter).await;
        assert!(took <= ATTEMPT + Duration::from_secs(1), "{took:?}, {fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_waiters_cost_what_one_costs() {
    let mut costs = Vec::new();
    for waiters in [1, 10_000] {
        let setup = Setup::new();
        let elsewhere = setup.held_elsewhere("n").await;
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..waiters {
            let mut lock = setup.leases.lock("n");
            tasks.spawn(async move { drop(lock.lock().await.unwrap()) });
        }
        sleep(Duration::from_secs(20)).await;
        assert_eq!(setup.calls(Call::Subscribe), 1, "of {waiters}");
        costs.push(setup.calls(Call::Acquire));
        elsewhere.unlock().await.unwrap();
        let (took, ()) = timed(async { while tasks.join_next().await.is_some() {} }).await;
        // All of them in a moment, by chains of 128.
        assert!(took <= MOMENT, "{took:?}");
        let chains = setup.calls(Call::Acquire) - costs[costs.len() - 1];
        assert_eq!(chains, usize::div_ceil(waiters, 128));
    }
    assert_eq!(costs[0], costs[1]);
}

#[tokio::test(start_paused = true)]
async fn endless_timeout_is_one() {
    let setup = Setup::new();
    let lease = setup.leases.lock("n").lock().await.unwrap();
    let mut lock = setup.leases.lock("n");
    let waiter = tokio::spawn(async move { lock.lock_timeout(Duration::MAX).await });
    sleep(10 * T).await;
    assert!(!waiter.is_finished());
    lease.unlock().await.unwrap();
    assert!(waiter.await.unwrap().unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn trying_never_barges_and_costs_no_call() {
    let setup = Setup::new();
    let mut tried = setup.leases.lock("n");
    let lease = setup.leases.lock("n").lock().await.unwrap();
    let calls = setup.calls(Call::Acquire);
    assert!(tried.try_lock().await.unwrap().is_none(), "past the holder");
    assert!(tried.lock_timeout(Duration::ZERO).await.unwrap().is_none());
    assert_eq!(setup.calls(Call::Acquire), calls);
    lease.unlock().await.unwrap();

    // One of this process waits for another process.
    let elsewhere = setup.held_elsewhere("n").await;
    let mut lock = setup.leases.lock("n");
    let waiter = tokio::spawn(async move { lock.lock().await.unwrap() });
    settle().await;
    let calls = setup.calls(Call::Acquire);
    assert!(setup.memory.delete("n"));
    assert!(tried.try_lock().await.unwrap().is_none(), "past the waiter");
    assert_eq!(setup.calls(Call::Acquire), calls);
    let lease = waiter.await.unwrap();
    drop((lease, elsewhere));
    settle().await;
    assert!(tried.try_lock().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn hung_store_is_unavailable_within_the_callers_time() {
    for fault in [Fault::Hang, Fault::HoldReply] {
        let setup = Setup::new();
        setup.faults.add(Rule::new(fault.clone()));
        let limit = Duration::from_millis(4_321);
        let (took, result) = timed(setup.leases.lock("n").lock_timeout(limit)).await;
        assert_eq!(failed(result), ErrorKind::Unavailable);
        assert_eq!(took, limit);

        let (took, result) = timed(setup.leases.lock("m").try_lock()).await;
        assert_eq!(failed(result), ErrorKind::Unavailable);
        assert!(took <= 2 * ATTEMPT, "{took:?}");

        let (took, result) = timed(setup.leases.lock("o").lock()).await;
        assert_eq!(failed(result), ErrorKind::Unavailable);
        assert!(took <= T, "{took:?}");

        setup.faults.heal();
        // The answers come late, and the grants are released.
        settle().await;
        assert!(setup.memory.is_empty(), "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn outage_while_waiting_is_unavailable_after_t_without_answer() {
    let setup = Setup::new();
    let elsewhere = setup.held_elsewhere("n").await;
    let mut lock = setup.leases.lock("n");
    let waiter = tokio::spawn(async move { timed(lock.lock()).await });
    let sound = 3 * T;
    sleep(sound).await;
    setup.faults.add(Rule::new(Fault::Fail(unavailable())));
    let (took, result) = waiter.await.unwrap();
    assert_eq!(failed(result), ErrorKind::Unavailable);
    let silence = took - sound;
    assert!(silence > T - ATTEMPT && silence <= T, "{silence:?}");
    drop(elsewhere);
}

#[tokio::test(start_paused = true)]
async fn short_outage_is_waited_out() {
    for fault in [Fault::Fail(unavailable()), Fault::LoseReply, Fault::RunLate] {
        let setup = Setup::new();
        setup.faults.add(Rule::new(fault.clone()).on(Call::Acquire).times(5));
        let lease = setup.leases.lock("n").lock().await.unwrap();
        assert_eq!(lease.hold_count(), 1);
        assert_eq!(setup.recorded("n").await, Some(1));
        assert!(lease.remaining() > T / 2);
        setup.faults.heal();
        settle().await;
        lease.unlock().await.unwrap();
        sleep(T).await;
        assert!(setup.memory.is_empty(), "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn waiting_behind_a_holder_of_this_process_needs_no_store() {
    let setup = Setup::new();
    let lease = setup.leases.lock("n").lock().await.unwrap();
    setup.faults.add(Rule::new(Fault::Hang).on(Call::Acquire));
    let result = setup.leases.lock("n").lock_timeout(Duration::from_secs(1)).await;
    assert!(result.unwrap().is_none());
    assert!(setup.leases.lock("n").try_lock().await.unwrap().is_none());
    drop(lease);
}

#[tokio::test(start_paused = true)]
async fn error_that_waiting_cannot_mend_is_returned_at_once() {
    use ErrorKind::{Denied, Invalid, Rejected, Unsupported, WrongType};
    for kind in [Denied, Rejected, WrongType, Invalid, Unsupported] {
        for fate in [Fate::NotExecuted, Fate::Unknown] {
            let setup = Setup::new();
            let error = Error::new(kind, "no").with_fate(fate);
            setup.faults.add(Rule::new(Fault::Fail(error)).on(Call::Acquire));
            let mut lock = setup.leases.lock("n");
            let (took, result) = timed(lock.lock()).await;
            assert_eq!((failed(result), took), (kind, Duration::ZERO));
            assert_eq!(failed(lock.lock_timeout(T).await), kind);
            assert_eq!(failed(lock.try_lock().await), kind);
            assert_eq!(setup.calls(Call::Acquire), 3, "one attempt each");
            setup.faults.heal();
            assert!(lock.try_lock().await.unwrap().is_some());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn acquire_whose_reply_was_lost_is_one_grant() {
    let setup = Setup::new();
    setup.faults.add(Rule::new(Fault::LoseReply).on(Call::Acquire).times(1));
    let lease = setup.leases.lock("n").lock().await.unwrap();
    assert_eq!(setup.calls(Call::Acquire), 2);
    assert_eq!((lease.hold_count(), setup.recorded("n").await), (1, Some(1)));
    lease.unlock().await.unwrap();
    assert!(setup.memory.is_empty());
}

#[tokio::test(start_paused = true)]
async fn grant_with_less_than_half_its_time_is_released() {
    let setup = Setup::new();
    let late = T / 2;
    setup.faults.add(Rule::new(Fault::Delay(late)).on(Call::Acquire).times(1));
    let (took, lease) = timed(setup.leases.lock("n").lock()).await;
    let lease = lease.unwrap();
    assert_eq!(took, late, "and asked for anew at once");
    assert!(lease.remaining() > C - MOMENT, "{:?}", lease.remaining());
    settle().await;
    assert_eq!((lease.hold_count(), setup.recorded("n").await), (1, Some(1)));
    lease.unlock().await.unwrap();
    assert!(setup.memory.is_empty());
}

#[tokio::test(start_paused = true)]
async fn late_grant_counts_from_when_it_was_asked_for() {
    let setup = Setup::new();
    let late = Duration::from_secs(12);
    setup.faults.add(Rule::new(Fault::Delay(late)).on(Call::Acquire).times(1));
    let start = Instant::now();
    let lease = setup.leases.lock("n").lock().await.unwrap();
    assert_eq!(start.elapsed(), late);
    assert_eq!(lease.remaining(), C - late);
    // Renewed at once: the period has passed already.
    setup.faults.until_calls(Call::Renew, 1).await;
    settle().await;
    assert!(lease.remaining() > C - 2 * MOMENT);
}

#[tokio::test(start_paused = true)]
async fn waiter_in_an_outage_fails_one_ttl_after_its_start() {
    let hung = Rule::new(Fault::Hang).on(Call::Acquire);
    let refused = Rule::new(Fault::Fail(unavailable()));
    for (rule, slack) in [(refused, Duration::ZERO), (hung, ATTEMPT)] {
        let setup = Setup::new();
        setup.faults.add(rule);
        let mut waiters = tokio::task::JoinSet::new();
        for _ in 0..20 {
            let mut lock = setup.leases.lock("n");
            waiters.spawn(async move { timed(lock.lock()).await });
            sleep(T / 10).await;
        }
        while let Some(waiter) = waiters.join_next().await {
            let (took, result) = waiter.expect("no panic");
            assert_eq!(failed(result), ErrorKind::Unavailable);
            assert!(took <= T + slack, "{took:?}");
            // An outage from before its start does not count.
            assert!(took > T - ATTEMPT, "{took:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn silent_store_is_not_taken_for_a_holder_behind_a_line() {
    let limit = Duration::from_secs(5);
    for fault in [Fault::Fail(unavailable()), Fault::Hang] {
        let setup = Setup::new();
        setup.faults.add(Rule::new(fault).on(Call::Acquire));
        let mut first = setup.leases.lock("n");
        let first = tokio::spawn(async move { first.lock().await.is_ok() });
        tokio::task::yield_now().await;
        let (took, result) = timed(setup.leases.lock("n").lock_timeout(limit)).await;
        assert_eq!((took, failed(result)), (limit, ErrorKind::Unavailable));
        assert_eq!(failed(setup.leases.lock("n").try_lock().await), ErrorKind::Unavailable);
        first.abort();
    }
    // It has answered: there is a holder.
    let setup = Setup::new();
    let theirs = setup.held_elsewhere("n").await;
    let mut first = setup.leases.lock("n");
    let first = tokio::spawn(async move { first.lock().await });
    settle().await;
    assert!(setup.leases.lock("n").lock_timeout(limit).await.expect("an answer").is_none());
    assert!(setup.leases.lock("n").try_lock().await.expect("an answer").is_none());
    drop(theirs);
    drop(first.await.expect("no panic").expect("free"));
}

#[tokio::test(start_paused = true)]
async fn store_that_refuses_is_not_taken_for_silent() {
    let setup = Setup::new();
    let theirs = setup.held_elsewhere("n").await;
    let mut lock = setup.leases.lock("n");
    let first = tokio::spawn(async move { lock.lock().await });
    settle().await;
    let mut lock = setup.leases.lock("n");
    let mut second = Box::pin(lock.lock());
    assert!(poll_once(second.as_mut()).await.is_pending());
    let denied = Fault::Fail(Error::new(ErrorKind::Denied, "not for you"));
    setup.faults.add(Rule::new(denied).on(Call::Acquire).times(1));
    theirs.unlock().await.unwrap();
    assert_eq!(failed(first.await.expect("no panic")), ErrorKind::Denied);
    // The turn is with the second, which is not polled and does not ask.
    let limit = ATTEMPT / 2;
    let (took, result) = timed(setup.leases.lock("n").lock_timeout(limit)).await;
    assert_eq!(took, limit);
    assert!(result.expect("the store has answered").is_none());
    drop(second.await.expect("its turn"));
}

#[tokio::test(start_paused = true)]
async fn store_asked_when_its_clock_began_is_not_taken_for_silent() {
    let setup = Setup::new();
    setup.faults.add(Rule::new(Fault::Delay(MOMENT)).on(Call::Acquire));
    let mut lock = setup.leases.lock("n");
    let mut first = Box::pin(lock.lock());
    assert!(poll_once(first.as_mut()).await.is_pending());
    let (took, result) = timed(setup.leases.lock("n").try_lock()).await;
    assert!(result.expect("no error").is_none());
    assert_eq!(took, Duration::ZERO);
    drop(first.await.expect("free"));
}

#[tokio::test(start_paused = true)]
async fn waiter_behind_a_release_in_an_outage_fails_within_the_ttl() {
    let setup = Setup::new();
    let lease = setup.leases.lock("n").lock().await.expect("free");
    setup.faults.add(Rule::new(Fault::Fail(unavailable())));
    drop(lease);
    let (took, result) = timed(setup.leases.lock("n").lock()).await;
    assert_eq!(failed(result), ErrorKind::Unavailable);
    assert!(took <= T, "{took:?}");
    setup.faults.heal();
    drop(setup.leases.lock("n").lock().await.expect("free"));
}

#[tokio::test(start_paused = true)]
async fn waiter_handed_a_hold_lost_on_the_way_keeps_its_place() {
    let setup = Setup::new();
    let lease = setup.leases.lock("n").lock().await.unwrap();
    let (order, mut entered) = mpsc::unbounded_channel();
    for i in 0..5 {
        let (mut lock, order) = (setup.leases.lock("n"), order.clone());
        tokio::spawn(async move {
            let lease = lock.lock().await.unwrap();
            order.send(i).unwrap();
            sleep(MOMENT).await;
            lease.unlock().await.unwrap();
        });
        settle().await;
    }
    drop(order);
    // To the first, which has not looked at it yet.
    drop(lease);
    setup.leases.force_unlock("n", "test").await.unwrap();
    for i in 0..5 {
        assert_eq!(entered.recv().await, Some(i));
    }
}

/// A store may hang where it is asked for wake-ups: the clock goes on.
#[tokio::test(start_paused = true)]
async fn subscription_that_hangs_delays_no_attempt() {
    let bound = 100 * MOMENT;
    let setup = Setup::with(LeaseManager::builder().max_poll_interval(bound));
    let theirs = setup.held_elsewhere("n").await;
    setup.faults.add(Rule::new(Fault::Hang).on(Call::Subscribe));
    let mut lock = setup.leases.lock("n");
    let mut waiting = Box::pin(lock.lock());
    assert!(poll_once(waiting.as_mut()).await.is_pending());
    theirs.unlock().await.unwrap();
    let (took, lease) = timed(waiting).await;
    drop(lease.unwrap());
    assert!(took <= bound + 2 * MOMENT, "{took:?}");
}

/// One that is slower than the poll bound is made all the same.
#[tokio::test(start_paused = true)]
async fn slow_subscription_is_not_begun_again_at_each_attempt() {
    let setup = Setup::with(LeaseManager::builder().max_poll_interval(10 * MOMENT));
    let theirs = setup.held_elsewhere("n").await;
    setup.faults.add(Rule::new(Fault::Delay(95 * MOMENT)).on(Call::Subscribe));
    let mut lock = setup.leases.lock("n");
    let waiting = tokio::spawn(async move { lock.lock().await });
    sleep(200 * MOMENT).await;
    assert_eq!(setup.calls(Call::Subscribe), 1);
    theirs.unlock().await.unwrap();
    drop(waiting.await.unwrap().unwrap());
}

/// A release is under way for longer than an attempt, and one before it has failed.
async fn unanswered_unlock(setup: &Setup) {
    let lease = setup.leases.lock("n").lock().await.unwrap();
    setup.faults.add(Rule::new(Fault::HoldReply).on(Call::Release));
    setup.faults.add(Rule::new(Fault::Fail(unavailable())).on(Call::Release).times(1));
    tokio::spawn(lease.unlock());
    setup.faults.until_calls(Call::Release, 2).await;
    // As a process that stands still.
    tokio::time::advance(ATTEMPT * 3 / 2).await;
}

#[tokio::test(start_paused = true)]
async fn after_a_stall_try_lock_waits_for_the_answer_to_an_unlock() {
    let setup = Setup::new();
    unanswered_unlock(&setup).await;
    let mut lock = setup.leases.lock("n");
    let heal = async {
        sleep(MOMENT * 10).await;
        setup.faults.heal();
    };
    let ((took, lease), ()) = tokio::join!(timed(lock.try_lock()), heal);
    let lease = lease.expect("the store answers").expect("free");
    assert!(took < ATTEMPT / 10, "{took:?}");
    lease.check().unwrap();
    // Nobody takes the store for silent any more.
    assert!(setup.leases.lock("n").try_lock().await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn try_lock_behind_an_unanswered_unlock_fails_at_its_limit() {
    let setup = Setup::new();
    unanswered_unlock(&setup).await;
    for _ in 0..2 {
        let (took, result) = timed(setup.leases.lock("n").try_lock()).await;
        assert_eq!(failed(result), ErrorKind::Unavailable);
        assert!((ATTEMPT..=ATTEMPT * 2).contains(&took), "{took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn waiter_before_it_in_line_gets_the_name_after_the_unlock() {
    let setup = Setup::new();
    unanswered_unlock(&setup).await;
    let mut first = setup.leases.lock("n");
    let first = tokio::spawn(async move { first.lock().await });
    settle().await;
    let mut lock = setup.leases.lock("n");
    let heal = async {
        sleep(MOMENT * 10).await;
        setup.faults.heal();
    };
    let ((took, lease), ()) = tokio::join!(timed(lock.try_lock()), heal);
    assert!(lease.expect("the store answers").is_none());
    assert!(took < ATTEMPT / 10, "{took:?}");
    first.await.unwrap().unwrap().check().unwrap();
}

/// Its forced release had no answer, so it owes one of its own, which has none either. Meanwhile another holder has the name.
#[tokio::test(start_paused = true)]
async fn unanswered_release_of_a_lost_hold_makes_no_name_look_silent() {
    let setup = Setup::new();
    let lease = setup.leases.lock("n").lock().await.unwrap();
    setup.faults.add(Rule::new(Fault::LoseReply).on(Call::ForceRelease));
    setup.faults.add(Rule::new(Fault::LoseReply).on(Call::Release));
    setup.leases.force_unlock("n", "test").await.unwrap_err();
    drop(lease);
    let next = setup.leases.lock("n").lock_timeout(T).await.unwrap().expect("free");
    let before = setup.calls(Call::Release);
    sleep(ATTEMPT * 2).await;
    assert!(setup.calls(Call::Release) > before, "it is repeated");
    let (took, tried) = timed(setup.leases.lock("n").try_lock()).await;
    assert!(tried.unwrap().is_none());
    assert_eq!(took, Duration::ZERO);
    next.check().unwrap();
}

/// Its release has no answer either, which is no answer for those that wait for the name now.
#[tokio::test(start_paused = true)]
async fn unanswered_release_of_a_lost_hold_ends_no_silence() {
    let setup = Setup::new();
    let lease = setup.leases.lock("n").lock().await.unwrap();
    for call in [Call::ForceRelease, Call::Release, Call::Acquire] {
        setup.faults.add(Rule::new(Fault::LoseReply).on(call));
    }
    setup.leases.force_unlock("n", "test").await.unwrap_err();
    let waits = || {
        let mut lock = setup.leases.lock("n");
        tokio::spawn(async move { timed(lock.lock()).await })
    };
    let waiters = [waits(), waits()];
    settle().await;
    drop(lease);
    for waiter in waiters {
        let (took, result) = waiter.await.unwrap();
        assert_eq!(result.unwrap_err().kind(), ErrorKind::Unavailable);
        assert!(took < T + 3 * ATTEMPT, "{took:?}");
    }
}

/// A reader whose release had no answer has left. The store answers again, and another reader of the process holds on.
#[tokio::test(start_paused = true)]
async fn silence_of_a_release_ends_with_its_hold() {
    let setup = Setup::new();
    let gone = setup.leases.rw_lock("n").read().await.unwrap();
    sleep(T / 2).await;
    let stays = setup.leases.rw_lock("n").read().await.unwrap();
    assert_ne!(gone.fence(), stays.fence(), "it is another hold");
    setup.faults.add(Rule::new(Fault::LoseReply).on(Call::Release));
    drop(gone);
    sleep(2 * T).await;
    setup.faults.heal();
    sleep(T).await;
    let (took, tried) = timed(setup.leases.rw_lock("n").try_write()).await;
    assert!(tried.unwrap().is_none());
    assert_eq!(took, Duration::ZERO);
    stays.check().unwrap();
}
