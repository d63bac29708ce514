//! Several names at once: all or none, whatever the others do.

use super::*;
use leasehold::{EventKind, MultiLock};
use tokio::time::timeout;

fn both(leases: &LeaseManager) -> MultiLock {
    leases.multi_lock(["b", "a"]).expect("good names")
}

/// Which of `a` and `b` are held, as the store knows it.
async fn held(setup: &Setup) -> [bool; 2] {
    [setup.recorded("a").await.is_some(), setup.recorded("b").await.is_some()]
}

#[tokio::test(start_paused = true)]
async fn set_is_locked_and_released_as_one() {
    let setup = Setup::new();
    let mut lock = both(&setup.leases);
    assert_eq!(lock.names().collect::<Vec<_>>(), ["a", "b"]);
    let lease = lock.lock().await.unwrap();
    assert_eq!(held(&setup).await, [true; 2]);
    assert_eq!(lease.leases().map(Lease::name).collect::<Vec<_>>(), ["a", "b"]);
    assert!(lease.fence("a").is_some() && lease.fence("b").is_some() && lease.fence("c").is_none());
    lease.check().unwrap();
    let token = lease.cancellation_token();
    lease.unlock().await.unwrap();
    assert!(token.is_cancelled());
    assert_eq!(held(&setup).await, [false; 2]);
}

#[tokio::test(start_paused = true)]
async fn nested_call_enters_all_names_again() {
    let setup = Setup::new();
    let mut lock = both(&setup.leases);
    let outer = lock.lock().await.unwrap();
    let inner = lock.try_lock().await.unwrap().unwrap();
    assert!(inner.leases().all(|lease| lease.hold_count() == 2));
    inner.unlock().await.unwrap();
    outer.check().unwrap();
    assert_eq!(held(&setup).await, [true; 2]);
    let (outside, inside) = (outer.cancellation_token(), lock.lock().await.unwrap());
    setup.leases.force_unlock("a", "test").await.unwrap();
    assert!(outside.is_cancelled() && inside.cancellation_token().is_cancelled());
    drop((outer, inside));
    settle().await;
    lock.lock().await.unwrap().unlock().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn nothing_stays_held_when_one_name_is_refused() {
    let setup = Setup::new();
    for (held_elsewhere, free) in [("a", "b"), ("b", "a")] {
        let elsewhere = setup.held_elsewhere(held_elsewhere).await;
        assert!(both(&setup.leases).try_lock().await.unwrap().is_none());
        settle().await;
        assert_eq!(setup.recorded(free).await, None);
        let (took, lease) = timed(both(&setup.leases).lock_timeout(T * 2)).await;
        assert!(lease.unwrap().is_none() && took == T * 2, "{took:?}");
        settle().await;
        assert_eq!(setup.recorded(free).await, None);
        elsewhere.unlock().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn refused_set_takes_no_name_even_for_a_moment() {
    let setup = Setup::new();
    let elsewhere = setup.held_elsewhere("b").await;
    let mut lock = both(&setup.leases);
    assert!(lock.is_atomic());
    assert!(lock.try_lock().await.unwrap().is_none());
    settle().await;
    assert_eq!(setup.calls(Call::Acquire), 1, "one call for both");
    assert_eq!(setup.calls(Call::Release), 0, "nothing to release");
    elsewhere.unlock().await.unwrap();
    lock.try_lock().await.unwrap().expect("free").unlock().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn set_with_a_name_that_is_held_in_this_process_asks_for_none() {
    for setup in [Setup::new(), Setup::one_by_one()] {
        let lease = setup.leases.lock("b").lock().await.unwrap();
        let before = setup.calls(Call::Acquire);
        assert!(both(&setup.leases).try_lock().await.unwrap().is_none());
        settle().await;
        assert_eq!(setup.calls(Call::Acquire), before);
        lease.unlock().await.unwrap();
        both(&setup.leases).try_lock().await.unwrap().expect("free").unlock().await.unwrap();
    }
}

/// Each name has a request of its own, and all of them wait for one answer.
#[tokio::test(start_paused = true)]
async fn set_that_is_dropped_before_its_answer_leaves_no_name() {
    for fault in [Fault::HoldReply, Fault::Hang] {
        let setup = Setup::new();
        setup.faults.add(Rule::new(fault).on(Call::Acquire).times(1));
        let mut lock = both(&setup.leases);
        let mut call = Box::pin(lock.lock());
        assert!(poll_once(call.as_mut()).await.is_pending());
        settle().await;
        drop(call);
        settle().await;
        setup.faults.heal();
        settle().await;
        assert_eq!(held(&setup).await, [false; 2]);
        timeout(T, lock.lock()).await.expect("free").unwrap().unlock().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn set_that_is_dropped_before_it_is_sent_asks_for_none() {
    let setup = Setup::new();
    let lease = setup.leases.lock("b").lock().await.unwrap();
    let before = setup.calls(Call::Acquire);
    // The release of `b` is on its way, which the set awaits: `a` has its turn already.
    setup.faults.add(Rule::new(Fault::HoldReply).on(Call::Release).times(1));
    drop(lease);
    let mut lock = both(&setup.leases);
    let mut call = Box::pin(lock.lock());
    assert!(poll_once(call.as_mut()).await.is_pending());
    drop(call);
    setup.faults.heal();
    settle().await;
    assert_eq!(setup.calls(Call::Acquire), before);
    assert_eq!(held(&setup).await, [false; 2]);
}

/// The set has the turn of `b`, for which nothing was asked.
#[tokio::test(start_paused = true)]
async fn set_that_waits_for_a_silent_name_makes_no_other_look_silent() {
    for setup in [Setup::new(), Setup::one_by_one()] {
        let lease = setup.leases.lock("a").lock().await.unwrap();
        setup.faults.add(Rule::new(Fault::HoldReply).on(Call::Release).name("a"));
        drop(lease);
        sleep(ATTEMPT * 3).await;
        let mut lock = both(&setup.leases);
        let call = tokio::spawn(async move { lock.try_lock().await });
        settle().await;
        let asked = setup.calls(Call::Acquire);
        let other = setup.leases.lock("b").lock_timeout(ATTEMPT / 2).await;
        assert!(other.expect("the store is not silent").is_none());
        assert_eq!(setup.calls(Call::Acquire), asked, "nothing is sent before all can be");
        let error = call.await.unwrap().expect_err("`a` is silent");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("\"a\""), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn refused_set_reports_the_name_that_was_refused() {
    for here in [true, false] {
        let setup = Setup::new();
        let elsewhere = setup.other();
        let from = if here { &setup.leases } else { &elsewhere };
        let lease = from.lock("b").lock().await.unwrap();
        let mut events = setup.leases.events(100);
        assert!(both(&setup.leases).try_lock().await.unwrap().is_none());
        lease.unlock().await.unwrap();
        settle().await;
        let mut refused = Vec::new();
        while let Ok(Some(event)) = timeout(MOMENT, events.next()).await {
            if let EventKind::NotGranted { .. } = event.kind() {
                refused.push(event.name().map(str::to_owned));
            }
        }
        assert_eq!(refused, [Some("b".to_owned())]);
    }
}

/// While it waits for one name, it holds none of the others.
#[tokio::test(start_paused = true)]
async fn wait_for_one_name_leaves_the_others_free() {
    let setup = Setup::new();
    let elsewhere = setup.held_elsewhere("b").await;
    let mut lock = both(&setup.leases);
    let waiting = tokio::spawn(async move { lock.lock().await.unwrap() });
    settle().await;
    for _ in 0..3 {
        let lease = setup.other().lock("a").try_lock().await.unwrap();
        lease.expect("it waits for `b` alone").unlock().await.unwrap();
    }
    elsewhere.unlock().await.unwrap();
    let (took, lease) = timed(waiting).await;
    assert!(took < Duration::from_secs(2), "{took:?}");
    lease.unwrap().check().unwrap();
}

/// Two names that are never free together, but each in turn.
#[tokio::test(start_paused = true)]
async fn names_that_are_never_free_together_are_granted() {
    let setup = Setup::new();
    // Two handles for each name, so that one of them always waits for it.
    let others = ["a", "a", "b", "b"].map(|name| {
        let mut lock = setup.leases.lock(name);
        tokio::spawn(async move {
            loop {
                let lease = lock.lock().await.unwrap();
                sleep(Duration::from_millis(700)).await;
                lease.unlock().await.unwrap();
            }
        })
    });
    settle().await;
    let (took, lease) = timed(both(&setup.leases).lock_timeout(T)).await;
    lease.unwrap().expect("granted in time").check().unwrap();
    assert!(took < T, "{took:?}");
    others.iter().for_each(tokio::task::JoinHandle::<()>::abort);
}

#[tokio::test(start_paused = true)]
async fn name_held_as_another_kind_fails_the_call() {
    let setup = Setup::new();
    let page = setup.leases.rw_lock("b").read().await.unwrap();
    let result = timeout(T, both(&setup.leases).lock()).await.expect("at once");
    assert_eq!(failed(result.map(drop)), ErrorKind::WrongType);
    settle().await;
    assert_eq!(setup.recorded("a").await, None);
    page.unlock().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn loss_of_one_name_fires_the_token_of_the_set() {
    let setup = Setup::new();
    let mut lock = both(&setup.leases);
    let lease = lock.lock().await.unwrap();
    let (token, early) = (lease.cancellation_token(), lease.lost());
    setup.leases.force_unlock("b", "test").await.unwrap();
    assert!(token.is_cancelled());
    assert_eq!((early.await, lease.lost().await), (Loss::Revoked, Loss::Revoked));
    let error = lease.check().unwrap_err();
    assert_eq!(error.to_string(), "lost: \"b\": force_unlock released the name");
    assert_eq!(lease.run(std::future::ready(1)).await.unwrap_err().to_string(), error.to_string());
    assert!(lease.remaining().is_zero());
    // The other name stays held until the lease ends.
    assert_eq!(held(&setup).await, [true, false]);
    assert_eq!(lost(lock.lock().await), Loss::Revoked);
    let error = lease.unlock().await.unwrap_err();
    assert_eq!(error.to_string(), "lost: \"b\": force_unlock released the name");
    assert_eq!(held(&setup).await, [false; 2]);
    lock.lock().await.unwrap().unlock().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn token_of_the_set_fires_when_renewals_fail() {
    let setup = Setup::new();
    let lease = both(&setup.leases).lock().await.unwrap();
    setup.faults.add(Rule::new(Fault::Fail(unavailable())).on(Call::Renew));
    let (took, loss) = timed(lease.lost()).await;
    assert_eq!(loss, Loss::Expired);
    assert!(took <= C, "{took:?}");
    assert!(lease.cancellation_token().is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn unlock_releases_all_and_reports_each_failure() {
    let setup = Setup::new();
    let lease = setup.leases.multi_lock(["a", "b", "c"]).unwrap().lock().await.unwrap();
    setup.leases.force_unlock("a", "test").await.unwrap();
    setup.leases.force_unlock("c", "test").await.unwrap();
    let error = lease.unlock().await.unwrap_err();
    assert_eq!((error.kind(), error.loss()), (ErrorKind::Lost, Some(Loss::Revoked)));
    let text = error.to_string();
    assert!(
        text.contains("\"a\": ") && text.contains("; \"c\": ") && !text.contains("\"b\""),
        "{text}"
    );
    assert_eq!(setup.recorded("b").await, None);
}

#[tokio::test(start_paused = true)]
async fn failure_of_one_name_is_named_and_leaves_nothing() {
    let setup = Setup::new();
    let denied = Error::new(ErrorKind::Denied, "not allowed");
    setup.faults.add(Rule::new(Fault::Fail(denied)).on(Call::Acquire).name("b"));
    for once in [true, false] {
        let mut lock = both(&setup.leases);
        let error = match once {
            true => lock.try_lock().await.map(drop).unwrap_err(),
            false => lock.lock().await.map(drop).unwrap_err(),
        };
        assert_eq!(error.to_string(), "denied: \"b\": not allowed");
        settle().await;
        assert_eq!(held(&setup).await, [false; 2]);
    }
}

#[tokio::test(start_paused = true)]
async fn outage_is_waited_out_for_one_ttl() {
    let [brief, setup] = [Setup::new(), Setup::new()];
    for setup in [&brief, &setup] {
        setup.faults.add(Rule::new(Fault::Fail(unavailable())).on(Call::Acquire).name("b"));
    }
    assert_eq!(failed(both(&brief.leases).try_lock().await), ErrorKind::Unavailable);
    let limit = Duration::from_secs(1);
    assert_eq!(failed(both(&brief.leases).lock_timeout(limit).await), ErrorKind::Unavailable);
    let (took, result) = timed(both(&setup.leases).lock()).await;
    assert_eq!(failed(result), ErrorKind::Unavailable);
    // As `Lock::lock`, it ends before a retry that would come later.
    assert!((T - T / 20..T + ATTEMPT).contains(&took), "{took:?}");
    settle().await;
    assert_eq!(held(&setup).await, [false; 2]);

    let mut lock = both(&setup.leases);
    let waiting = tokio::spawn(async move { lock.lock().await.map(drop) });
    sleep(T / 2).await;
    setup.faults.heal();
    timeout(T / 10, waiting).await.expect("granted in time").unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn time_limit_holds_though_the_store_hangs() {
    let setup = Setup::new();
    setup.faults.add(Rule::new(Fault::Hang).on(Call::Acquire).name("b"));
    let limit = Duration::from_millis(100);
    let (took, result) = timed(both(&setup.leases).lock_timeout(limit)).await;
    assert_eq!((failed(result), took), (ErrorKind::Unavailable, limit));
    setup.faults.heal();
    sleep(T).await;
    assert_eq!(held(&setup).await, [false; 2]);
    // Without time it is one attempt.
    let elsewhere = setup.held_elsewhere("a").await;
    let (took, result) = timed(both(&setup.leases).lock_timeout(Duration::ZERO)).await;
    assert!(result.unwrap().is_none() && took < MOMENT, "{took:?}");
    drop(elsewhere);
}

#[tokio::test(start_paused = true)]
async fn time_limit_that_passes_while_not_polled_ends_the_call() {
    let setup = Setup::new();
    setup.faults.add(Rule::new(Fault::Hang).on(Call::Acquire));
    let mut lock = both(&setup.leases);
    let mut call = Box::pin(lock.lock_timeout(ATTEMPT / 2));
    assert!(poll_once(call.as_mut()).await.is_pending());
    sleep(ATTEMPT * 5 / 2).await;
    let (took, result) = timed(call).await;
    assert_eq!(failed(result), ErrorKind::Unavailable);
    assert!(took < MOMENT, "{took:?}");
}

/// A name was lost before the answer for the other one came.
#[tokio::test(start_paused = true)]
async fn time_limit_that_has_passed_allows_no_second_round() {
    let setup = Setup::one_by_one();
    setup.faults.add(Rule::new(Fault::Hang).on(Call::Acquire).name("b"));
    let mut lock = both(&setup.leases);
    let mut call = Box::pin(lock.lock_timeout(ATTEMPT / 2));
    for _ in 0..20 {
        assert!(poll_once(call.as_mut()).await.is_pending());
        settle().await;
    }
    assert!(setup.leases.force_unlock("a", "a test").await.unwrap());
    setup.faults.heal();
    sleep(ATTEMPT).await;
    setup.faults.add(Rule::new(Fault::Hang).on(Call::Acquire));
    let (took, result) = timed(call).await;
    assert!(result.unwrap().is_none());
    assert!(took < MOMENT, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn call_dropped_at_each_poll_leaves_nothing() {
    for polls in 0..40 {
        let setup = Setup::new();
        let elsewhere = setup.held_elsewhere("b").await;
        let mut lock = setup.leases.multi_lock(["a", "b", "c"]).unwrap();
        {
            let mut call = Box::pin(lock.lock());
            let mut elsewhere = Some(elsewhere);
            for poll in 0..polls {
                if poll == 10
                    && let Some(lease) = elsewhere.take()
                {
                    lease.unlock().await.unwrap();
                }
                if poll_once(call.as_mut()).await.is_ready() {
                    break;
                }
                settle().await;
            }
            drop(call);
            drop(elsewhere);
        }
        settle().await;
        for name in ["a", "b", "c"] {
            assert_eq!(setup.recorded(name).await, None, "{name} after {polls} polls");
        }
        assert!(timed(lock.try_lock()).await.1.unwrap().is_some(), "after {polls} polls");
    }
}

const MIN: Duration = Duration::from_secs(3600);

#[tokio::test(start_paused = true)]
async fn set_that_is_refused_begins_no_min_hold() {
    let setup = Setup::new();
    let set = || both(&setup.leases).min_hold(MIN);
    for (taken, free) in [("a", "b"), ("b", "a")] {
        let elsewhere = setup.held_elsewhere(taken).await;
        assert!(set().try_lock().await.unwrap().is_none());
        settle().await;
        assert_eq!(setup.recorded(free).await, None);
        // Long enough for all its ways to ask.
        assert!(set().lock_timeout(T).await.unwrap().is_none());
        settle().await;
        assert_eq!(setup.recorded(free).await, None);
        elsewhere.unlock().await.unwrap();
    }
    setup.faults.add(Rule::new(Fault::Fail(unavailable())).on(Call::Acquire).name("b"));
    assert_eq!(failed(set().try_lock().await), ErrorKind::Unavailable);
    settle().await;
    assert_eq!(setup.recorded("a").await, None);
}

#[tokio::test(start_paused = true)]
async fn set_whose_call_is_dropped_begins_no_min_hold() {
    for polls in 0.. {
        let setup = Setup::new();
        let mut elsewhere = Some(setup.held_elsewhere("b").await);
        let mut lock = both(&setup.leases).min_hold(MIN);
        let mut call = Box::pin(lock.lock());
        for poll in 0..polls {
            if poll == 10 {
                elsewhere.take().unwrap().unlock().await.unwrap();
            }
            if poll_once(call.as_mut()).await.is_ready() {
                return;
            }
            settle().await;
        }
        drop((call, elsewhere));
        settle().await;
        assert_eq!(held(&setup).await, [false; 2], "after {polls} polls");
    }
}

#[tokio::test(start_paused = true)]
async fn min_hold_of_a_set_begins_when_the_caller_gets_it() {
    // The second name is waited for while nothing else is held, or while the first one is.
    for waited in [MOMENT * 100, T / 2] {
        let setup = Setup::new();
        let elsewhere = setup.held_elsewhere("b").await;
        let mut lock = both(&setup.leases).min_hold(MIN);
        let waiting = tokio::spawn(async move { lock.lock().await.unwrap().unlock().await });
        sleep(waited).await;
        elsewhere.unlock().await.unwrap();
        waiting.await.unwrap().unwrap();
        sleep(MIN - MOMENT * 10).await;
        assert_eq!(held(&setup).await, [true; 2], "closed");
        sleep(MOMENT * 10).await;
        assert_eq!(held(&setup).await, [false; 2]);
    }
}

#[tokio::test(start_paused = true)]
async fn closing_ends_the_wait_and_the_lease() {
    let setup = Setup::new();
    let lease = both(&setup.leases).lock().await.unwrap();
    let mut lock = both(&setup.leases);
    let waiting = tokio::spawn(async move { lock.lock().await.map(drop) });
    settle().await;
    let token = lease.cancellation_token();
    let closing = tokio::spawn({
        let leases = setup.leases.clone();
        async move { leases.close().await }
    });
    timeout(MOMENT, token.cancelled()).await.expect("fired at once");
    assert_eq!(waiting.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
    drop(lease);
    closing.await.unwrap().unwrap();
}

#[test]
fn bad_sets_are_refused_at_once() {
    let leases = LeaseManager::in_memory();
    let message = |names: &[String]| leases.multi_lock(names).unwrap_err().to_string();
    let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(message(&[]), "invalid: a multi-lock has 0 names; give it 1 to 64");
    assert_eq!(
        message(&names(&["a", "b", "a"])),
        "invalid: the name \"a\" is given twice; give each name of a set once"
    );
    assert_eq!(
        message(&names(&["a", ""])),
        "invalid: a lock's name is empty; give it at least one byte"
    );
    let many: Vec<_> = (0..65).map(|number| number.to_string()).collect();
    assert_eq!(message(&many), "invalid: a multi-lock has 65 names; give it 1 to 64");
}

#[tokio::test(start_paused = true)]
async fn name_released_at_the_end_of_the_wait_is_no_silence() {
    let limit = Duration::from_millis(300);
    for before in [35, 45, 55].map(Duration::from_millis) {
        let setup = Setup::new();
        let theirs = setup.held_elsewhere("a").await;
        setup.faults.add(Rule::new(Fault::Delay(Duration::from_millis(30))).on(Call::Acquire));
        let mut lock = both(&setup.leases);
        let mut waiter = Box::pin(lock.lock_timeout(limit));
        assert!(poll_once(waiter.as_mut()).await.is_pending());
        let release = async {
            sleep(limit - before).await;
            theirs.unlock().await.unwrap();
        };
        let (result, ()) = tokio::join!(waiter, release);
        assert!(result.expect("the store has answered").is_none(), "{before:?} before the end");
    }
}

/// Each of the names is asked for at once, and the answer for `a` comes last.
#[tokio::test(start_paused = true)]
async fn set_of_which_a_name_was_lost_meanwhile_is_taken_again() {
    for limit in [None, Some(Duration::ZERO), Some(T)] {
        let setup = Setup::one_by_one();
        let slow = Rule::new(Fault::Delay(ATTEMPT / 2)).on(Call::Acquire).name("a").times(1);
        setup.faults.add(slow);
        let mut lock = both(&setup.leases);
        let call = tokio::spawn(async move {
            match limit {
                None => lock.lock().await.unwrap(),
                Some(limit) => lock.lock_timeout(limit).await.unwrap().expect("free"),
            }
        });
        settle().await;
        assert!(setup.leases.force_unlock("b", "test").await.unwrap());
        let lease = timeout(T, call).await.expect("taken again").unwrap();
        lease.check().unwrap();
        assert!(!lease.cancellation_token().is_cancelled());
        assert_eq!(held(&setup).await, [true; 2]);
    }
}

/// The time after which a holder is lost, in two ways.
const LIMIT: Duration = Duration::from_millis(200);

/// A manager and a handle of it with a limit of its own, and the loss that it brings.
fn limited() -> [(Setup, MultiLock, Loss); 2] {
    let stalls = Setup::new();
    let lock = both(&stalls.leases).stall_after(LIMIT);
    let ends = Setup::with(LeaseManager::builder().ttl(T).max_hold(LIMIT));
    let other = both(&ends.leases);
    [(stalls, lock, Loss::Stalled), (ends, other, Loss::MaxHold)]
}

#[tokio::test(start_paused = true)]
async fn limits_of_a_set_begin_when_the_caller_gets_it() {
    for (setup, mut lock, loss) in limited() {
        let slow = Rule::new(Fault::Delay(LIMIT * 2)).on(Call::Acquire).name("a").times(1);
        setup.faults.add(slow);
        let (took, lease) = timed(lock.lock()).await;
        let lease = lease.unwrap();
        assert!(took < LIMIT * 3, "{took:?}");
        lease.check().unwrap();
        // A nested lease does not begin them again.
        sleep(LIMIT / 2).await;
        let (until, lost) = match loss {
            Loss::MaxHold => {
                let _nested = lock.lock().await.unwrap();
                timed(lease.lost()).await
            }
            _ => timed(lease.lost()).await,
        };
        assert_eq!(lost, loss);
        assert!(until.abs_diff(LIMIT / 2) <= MOMENT * 2, "{until:?}");
        assert_eq!(setup.leases.stats().lost, 2);
    }
}

/// At last it waits for `b` while it holds `a`, on which a caller without a lease cannot report.
#[tokio::test(start_paused = true)]
async fn limits_of_a_set_do_not_count_while_it_waits_in_order() {
    for (setup, mut lock, loss) in limited() {
        let [a, b] = ["a", "b"];
        let elsewhere = setup.held_elsewhere(b).await;
        let waiting = tokio::spawn(async move { lock.lock().await.unwrap() });
        sleep(T / 2).await;
        let first = setup.held_elsewhere(a).await;
        // It has waited for long: when it gets `b` without `a`, it takes them in their order.
        elsewhere.unlock().await.unwrap();
        settle().await;
        let second = setup.held_elsewhere(b).await;
        first.unlock().await.unwrap();
        sleep(LIMIT * 3).await;
        assert_eq!(setup.leases.holdings().len(), 1, "it waits with the first");
        second.unlock().await.unwrap();
        let lease = waiting.await.unwrap();
        lease.check().unwrap();
        assert_eq!(setup.leases.stats().lost, 0);
        assert_eq!(lease.lost().await, loss);
    }
}
