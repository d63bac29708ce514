//! A manager closes, or a hold reaches `max_hold`: tokens fire first, keys go later.

use super::*;
use leasehold::LeaseState;
use std::collections::BTreeSet;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use tokio::task::coop::consume_budget;

#[tokio::test(start_paused = true)]
async fn close_fires_tokens_at_once_and_releases_after_the_grace() {
    let setup = Setup::new();
    let lease = setup.leases.lock("n").lock().await.unwrap();
    let leases = setup.leases.clone();
    let start = Instant::now();
    let closing = tokio::spawn(async move { leases.close().await });
    assert_eq!(lease.lost().await, Loss::Closed);
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert!(lease.cancellation_token().is_cancelled());
    assert_eq!(lost(lease.check()), Loss::Closed);

    // Work whose token has fired may need the grace to stop. No other holder may begin meanwhile.
    let theirs = setup.other().lock("n").lock().await.unwrap();
    assert!(start.elapsed() >= GRACE && start.elapsed() <= GRACE + MOMENT, "{:?}", start.elapsed());
    closing.await.unwrap().unwrap();
    assert!(start.elapsed() <= GRACE + MOMENT);
    assert_eq!(lost(lease.unlock().await), Loss::Closed);
    theirs.check().unwrap();
    assert_eq!(setup.calls(Call::Close), 1);
}

#[tokio::test(start_paused = true)]
async fn close_dropped_after_its_first_poll_has_fired_all_tokens() {
    let setup = Setup::new();
    let lease = setup.leases.lock("n").lock().await.unwrap();
    let (leases, token) = (setup.leases.clone(), lease.cancellation_token());
    let dropped = tokio::spawn(async move {
        // Without a budget the call yields at its first await.
        poll_fn(|context| {
            while pin!(consume_budget()).poll(context).is_ready() {}
            let pending = pin!(leases.close()).poll(context).is_pending();
            Poll::Ready(pending)
        })
        .await
    });
    assert!(dropped.await.unwrap(), "it has not ended");
    assert!(token.is_cancelled());
    assert_eq!(lost(lease.check()), Loss::Closed);
    drop(lease);
    drop(setup.other().lock("n").lock().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn closing_is_done_as_soon_as_the_leases_are_dropped() {
    let setup = Setup::new();
    let mut lock = setup.leases.lock("n");
    let (outer, inner) = (lock.lock().await.unwrap(), lock.lock().await.unwrap());
    let idle = setup.leases.lock("m").lock().await.unwrap();
    let leases = setup.leases.clone();
    let closing = tokio::spawn(async move { timed(leases.close()).await });
    outer.cancellation_token().cancelled().await;
    drop((idle, inner));
    settle().await;
    assert_eq!(setup.memory.len(), 1, "one lease of it is alive");
    drop(outer);
    let (took, result) = closing.await.unwrap();
    result.unwrap();
    assert!(took <= 2 * MOMENT, "{took:?}");
    assert!(setup.memory.is_empty());
}

#[tokio::test(start_paused = true)]
async fn closing_waits_for_no_record_of_a_count() {
    for hangs in [Duration::ZERO, MOMENT * 20] {
        let setup = Setup::new();
        let mut lock = setup.leases.lock("n");
        let outer = lock.lock().await.unwrap();
        setup.faults.add(Rule::new(Fault::Hang).on(Call::Release).times(1));
        let inner = lock.lock().await.unwrap();
        sleep(hangs).await;
        if hangs.is_zero() {
            setup.faults.heal();
        }
        inner.unlock().await.unwrap();
        outer.unlock().await.unwrap();
        let (took, result) = timed(setup.leases.close()).await;
        result.unwrap();
        assert!(took <= 2 * MOMENT, "{took:?}");
        assert!(setup.memory.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn closed_manager_refuses_everything() {
    let setup = Setup::new();
    let (clone, mut lock) = (setup.leases.clone(), setup.leases.lock("n"));
    let mut holder = setup.leases.holder();
    drop(holder.lock("m").await.unwrap());
    setup.leases.close().await.unwrap();
    for leases in [&setup.leases, &clone] {
        assert_eq!(failed(leases.lock("n").lock().await), ErrorKind::Closed);
        assert_eq!(failed(leases.inspect("n").await), ErrorKind::Closed);
        assert_eq!(failed(leases.force_unlock("n", "test").await), ErrorKind::Closed);
    }
    assert_eq!(failed(lock.lock().await), ErrorKind::Closed);
    assert_eq!(failed(lock.try_lock().await), ErrorKind::Closed);
    assert_eq!(failed(lock.lock_timeout(T).await), ErrorKind::Closed);
    assert_eq!(failed(lock.with(async |_, _| ()).await), ErrorKind::Closed);
    assert_eq!(failed(holder.lock("m").await), ErrorKind::Closed);
    clone.close().await.unwrap();
    assert_eq!(setup.calls(Call::Close), 1);
}

#[tokio::test(start_paused = true)]
async fn waiters_end_at_close_at_once() {
    let setup = Setup::new();
    let elsewhere = setup.held_elsewhere("elsewhere").await;
    let here = setup.leases.lock("here").lock().await.unwrap();
    setup.faults.add(Rule::new(Fault::Fail(unavailable())).on(Call::Acquire).name("failing"));
    let mut waiters = tokio::task::JoinSet::new();
    for name in ["elsewhere", "elsewhere", "here", "here", "failing", "failing"] {
        let (mut lock, mut other) = (setup.leases.lock(name), setup.leases.lock(name));
        waiters.spawn(async move { (name, failed(lock.lock().await), Instant::now()) });
        waiters.spawn(async move { (name, failed(other.lock_timeout(T).await), Instant::now()) });
    }
    sleep(Duration::from_secs(5)).await;
    let start = Instant::now();
    let closing = tokio::spawn({
        let leases = setup.leases.clone();
        async move { leases.close().await }
    });
    while let Some(told) = waiters.join_next().await {
        let (name, kind, at) = told.unwrap();
        assert_eq!(kind, ErrorKind::Closed, "{name}");
        assert_eq!(at, start, "{name}");
    }
    drop(here);
    closing.await.unwrap().unwrap();
    drop(elsewhere);
    setup.faults.heal();
    settle().await;
    assert!(setup.memory.is_empty());
}

#[tokio::test(start_paused = true)]
async fn waiter_at_a_hung_store_ends_at_close() {
    let setup = Setup::new();
    setup.faults.add(Rule::new(Fault::Hang).on(Call::Acquire));
    let mut lock = setup.leases.lock("n");
    let waiter = tokio::spawn(async move { (failed(lock.lock().await), Instant::now()) });
    settle().await;
    setup.leases.close().await.unwrap();
    let closed = Instant::now();
    let (kind, told) = waiter.await.unwrap();
    assert_eq!(kind, ErrorKind::Closed);
    assert!(told <= closed, "{:?} after the closing", told - closed);
}

#[tokio::test(start_paused = true)]
async fn acquire_under_way_brings_no_lease_to_a_closed_manager() {
    let setup = Setup::new();
    let slow = Duration::from_millis(100);
    setup.faults.add(Rule::new(Fault::Delay(slow)).on(Call::Acquire));
    let mut lock = setup.leases.lock("n");
    let acquire = tokio::spawn(async move { lock.lock().await });
    settle().await;
    setup.leases.close().await.unwrap();
    match acquire.await.unwrap() {
        Ok(lease) => assert_eq!(lost(lease.check()), Loss::Closed),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Closed),
    }
    sleep(GRACE).await;
    assert!(setup.memory.is_empty());
}

#[tokio::test(start_paused = true)]
async fn close_names_what_could_not_be_released() {
    let setup = Setup::new();
    let failing: BTreeSet<String> = [7, 8, 77].map(|i| format!("n:{i}")).into();
    let mut leases = Vec::new();
    for i in 0..100 {
        leases.push(setup.leases.lock(format!("n:{i}")).lock().await.unwrap());
    }
    for name in &failing {
        setup.faults.add(Rule::new(Fault::Fail(unavailable())).on(Call::Release).name(name));
    }
    let (took, result) = timed(setup.leases.close()).await;
    let report = result.unwrap_err();
    assert_eq!(report.released(), 97);
    let names: BTreeSet<String> = report.failed().iter().map(|(name, _)| name.clone()).collect();
    assert_eq!(names, failing);
    assert_eq!(report.failed().len(), 3);
    for (_, error) in report.failed() {
        assert_eq!(error.kind(), ErrorKind::Unavailable);
    }
    assert!(report.to_string().starts_with("3 of 100 leases"), "{report}");
    assert!(took <= GRACE + 2 * ATTEMPT, "{took:?}");
    assert_eq!(setup.memory.len(), 3);
    drop(leases);
    let first = report.failed()[0].0.clone();
    let error = leasehold::Error::from(report);
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let said = format!("unavailable: 3 of 100 leases could not be released; the first: {first:?}");
    assert!(error.to_string().starts_with(&said), "{error}");
}

#[tokio::test(start_paused = true)]
async fn close_at_a_hung_store_ends() {
    let setup = Setup::new();
    let lease = setup.leases.lock("n").lock().await.unwrap();
    setup.faults.add(Rule::new(Fault::Hang));
    let (took, result) = timed(setup.leases.close()).await;
    let report = result.unwrap_err();
    assert_eq!((report.released(), report.failed().len()), (0, 1));
    assert!(took <= GRACE + 2 * ATTEMPT, "{took:?}");
    assert_eq!(lost(lease.check()), Loss::Closed);
}

#[tokio::test(start_paused = true)]
async fn closing_settles_what_was_dropped_just_before() {
    let setup = Setup::new();
    let slow = Duration::from_millis(100);
    setup.faults.add(Rule::new(Fault::Delay(slow)).on(Call::Release));
    for i in 0..10 {
        drop(setup.leases.lock(format!("n:{i}")).lock().await.unwrap());
    }
    let (took, result) = timed(setup.leases.close()).await;
    result.unwrap();
    assert!(setup.memory.is_empty());
    assert!(took <= GRACE, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn holder_for_too_long_loses_the_lease_and_later_the_name() {
    let max = 2 * T;
    let setup = Setup::with(LeaseManager::builder().max_hold(max));
    let other = setup.other();
    let lease = setup.leases.lock("n").lock().await.unwrap();
    let start = Instant::now();
    let renewals = {
        assert_eq!(lease.lost().await, Loss::MaxHold);
        setup.calls(Call::Renew)
    };
    assert!(start.elapsed() >= max && start.elapsed() <= max + MOMENT, "{:?}", start.elapsed());
    assert_eq!(lost(lease.check()), Loss::MaxHold);
    assert_eq!(lease.state(), LeaseState::Lost);
    // Tokens first: the name is kept for the grace, so that the work can stop.
    assert!(other.lock("n").try_lock().await.unwrap().is_none());
    let theirs = other.lock("n").lock().await.unwrap();
    let kept = start.elapsed() - max;
    assert!(kept >= GRACE && kept <= GRACE + 2 * MOMENT, "{kept:?}");
    assert_eq!(setup.calls(Call::Renew), renewals);
    assert_eq!(lost(lease.unlock().await), Loss::MaxHold);
    settle().await;
    theirs.check().unwrap();
    theirs.unlock().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn hold_kept_too_long_is_released_when_its_leases_are_dropped() {
    let max = T / 10;
    let setup = Setup::with(LeaseManager::builder().max_hold(max));
    let mut lock = setup.leases.lock("n");
    let outer = lock.lock().await.unwrap();
    sleep(max / 2).await;
    let inner = lock.lock().await.unwrap();
    // Counted from the first of them.
    let (took, loss) = timed(inner.lost()).await;
    assert_eq!(loss, Loss::MaxHold);
    assert!(took <= max / 2 + MOMENT, "{took:?}");
    drop(outer);
    settle().await;
    assert_eq!(setup.memory.len(), 1, "one lease of it is alive");
    assert_eq!(lost(lock.lock().await), Loss::MaxHold);
    assert_eq!(lost(inner.unlock().await), Loss::MaxHold);
    settle().await;
    assert!(setup.memory.is_empty());
    // And the next one has all the time again.
    let lease = lock.lock().await.unwrap();
    sleep(max - 2 * MOMENT).await;
    lease.check().unwrap();
}

#[tokio::test(start_paused = true)]
async fn value_that_no_setting_allows_is_invalid() {
    let (millis, builder) = (Duration::from_millis, LeaseManager::builder);
    for (builder, hint) in [
        (builder().ttl(millis(99)), "100 ms"),
        (builder().ttl(Duration::MAX), "365 days"),
        (builder().max_poll_interval(Duration::ZERO), "1 ms"),
        (builder().max_poll_interval(millis(60_001)), ""),
        (builder().max_hold(millis(9)), "10 ms"),
        (builder().fence_retention(Some(2 * T - MOMENT)), "60s"),
    ] {
        let error = builder.build(MemoryStore::new()).expect_err(hint);
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains(hint), "{error}");
    }
}

/// Closes the manager while this call pauses after a failure of its requests.
async fn ends_its_pause<F>(error: Error, call: impl FnOnce(LeaseManager) -> F)
where
    F: Future<Output = Result<()>> + Send + 'static,
{
    let setup = Setup::new();
    setup.faults.add(Rule::new(Fault::Fail(error)).on(Call::Acquire));
    let call = tokio::spawn(call(setup.leases.clone()));
    sleep(T / 3).await;
    setup.leases.close().await.unwrap();
    let (took, ended) = timed(call).await;
    assert_eq!(failed(ended.unwrap()), ErrorKind::Closed);
    assert_eq!(took, Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn pause_of_a_candidate_ends_with_the_manager() {
    for error in [Error::new(ErrorKind::Denied, "test"), unavailable()] {
        ends_its_pause(error, |leases| async move {
            let mut candidate = leases.election("n").candidate("me");
            candidate.lead(async move |_| std::ops::ControlFlow::Break(())).await
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn pause_of_a_call_ends_with_the_manager() {
    ends_its_pause(unavailable(), |leases| async move { leases.lock("n").lock().await.map(drop) })
        .await;
    ends_its_pause(
        unavailable(),
        |leases| async move { leases.slots("n", 3).take().await.map(drop) },
    )
    .await;
    ends_its_pause(unavailable(), |leases| async move {
        let set = leases.multi_lock(["a", "b"]);
        set.unwrap().lock().await.map(drop)
    })
    .await;
    ends_its_pause(unavailable(), |leases| async move {
        let job = leases.once("n").wait(T);
        job.run(async |_| Ok::<_, Error>(())).await.map(drop)
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn wait_of_a_job_ends_with_the_manager() {
    let setup = Setup::with(LeaseManager::builder().max_poll_interval(T));
    let held = setup.held_elsewhere("n").await;
    let job = setup.leases.once("n").wait(10 * T);
    let job = tokio::spawn(async move { job.run(async |_| Ok::<_, Error>(())).await });
    sleep(T / 3).await;
    setup.leases.close().await.unwrap();
    let (took, ended) = timed(job).await;
    assert_eq!(failed(ended.unwrap()), ErrorKind::Closed);
    assert_eq!(took, Duration::ZERO);
    drop(held);
}

/// Counts how often a call that is always ready returns before another task of its thread runs.
async fn calls_until_another_task_runs<F: Future>(mut call: impl FnMut() -> F) -> usize {
    let ran = tokio::spawn(std::future::ready(()));
    let mut calls = 0;
    while !ran.is_finished() && calls < 2000 {
        call().await;
        calls += 1;
    }
    calls
}

/// A loop that makes the call again after an error is common at a shutdown.
#[tokio::test]
async fn errors_that_are_ready_starve_no_other_task() {
    let setup = Setup::new();
    let leases = &setup.leases;
    let lease = leases.lock("held").lock().await.expect("free");
    macro_rules! yields {
        ($call:expr) => {
            let calls = calls_until_another_task_runs(async || drop($call.await)).await;
            assert!(calls < 2000, "{}", stringify!($call));
        };
    }
    yields!(leases.lock("").lock());
    yields!(leases.fair_lock("").try_lock());
    yields!(leases.lock("a").steal(""));
    yields!(leases.rw_lock("").read());
    yields!(leases.semaphore("", 1).acquire());
    yields!(leases.semaphore("a", 1).resize(0));
    yields!(leases.slots("", 1).take());
    yields!(leases.election("").candidate("me").campaign());
    yields!(leases.once("").run(async |_| Ok::<_, Error>(())));
    leases.close().await.expect("closed");
    yields!(leases.lock("a").lock());
    yields!(leases.inspect("a"));
    yields!(leases.holders("a"));
    yields!(leases.waiters("a"));
    yields!(leases.owner_of("a"));
    yields!(leases.force_unlock("a", "why"));
    yields!(leases.semaphore("a", 1).usage());
    yields!(leases.lock("a").steal("why"));
    yields!(leases.once("a").run(async |_| Ok::<_, Error>(())));
    yields!(lease.note());
}
