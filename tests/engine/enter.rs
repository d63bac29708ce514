//! Grants: which handle is granted a name, and with which hold count.

use super::*;
use leasehold::{LeaseState, Lock};

/// A function that locks what its caller has locked.
async fn nested(lock: &mut Lock) -> Result<Lease> {
    lock.lock().await
}

#[tokio::test(start_paused = true)]
async fn nested_call_enters_and_leaves() {
    let setup = Setup::new();
    let mut lock = setup.leases.lock("n");
    let outer = lock.lock().await.unwrap();
    assert_eq!((outer.hold_count(), setup.recorded("n").await), (1, Some(1)));

    let inner = nested(&mut lock).await.unwrap();
    assert_eq!((outer.hold_count(), inner.hold_count()), (2, 2));
    counted().await;
    assert_eq!(setup.recorded("n").await, Some(2));
    assert_eq!(inner.fence(), outer.fence());

    inner.unlock().await.unwrap();
    counted().await;
    assert_eq!((outer.hold_count(), setup.recorded("n").await), (1, Some(1)));
    outer.check().unwrap();
    outer.unlock().await.unwrap();
    assert_eq!(setup.recorded("n").await, None);
}

#[tokio::test(start_paused = true)]
async fn every_way_of_asking_enters_again() {
    let setup = Setup::new();
    let mut lock = setup.leases.lock("n");
    let leases = [
        lock.try_lock().await.unwrap().unwrap(),
        lock.try_lock().await.unwrap().unwrap(),
        lock.lock_timeout(Duration::ZERO).await.unwrap().unwrap(),
        lock.lock_timeout(T).await.unwrap().unwrap(),
        lock.lock().await.unwrap(),
    ];
    assert_eq!(leases[0].hold_count(), 5);
    counted().await;
    assert_eq!(setup.recorded("n").await, Some(5));
    let mut count = 5;
    for lease in leases {
        assert_eq!(lease.hold_count(), count);
        drop(lease);
        counted().await;
        count -= 1;
        assert_eq!(setup.recorded("n").await, (count > 0).then_some(count.into()));
    }
}

#[tokio::test(start_paused = true)]
async fn nested_leases_end_in_any_order() {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        for by_drop in [false, true] {
            let setup = Setup::new();
            let mut lock = setup.leases.lock("n");
            let mut leases = Vec::new();
            for _ in 0..3 {
                leases.push(Some(lock.lock().await.unwrap()));
            }
            for (left, i) in [2, 1, 0].into_iter().zip(order) {
                let lease = leases[i].take().unwrap();
                let token = lease.cancellation_token();
                if by_drop {
                    drop(lease);
                } else {
                    lease.unlock().await.unwrap();
                }
                assert!(token.is_cancelled());
                counted().await;
                assert_eq!(setup.recorded("n").await, (left > 0).then_some(left), "{order:?}");
                for lease in leases.iter().flatten() {
                    lease.check().unwrap();
                    assert_eq!(u64::from(lease.hold_count()), left);
                    assert!(!lease.cancellation_token().is_cancelled());
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn handles_in_one_task_exclude_each_other() {
    let setup = Setup::new();
    let (mut here, mut there) = (setup.leases.lock("n"), setup.leases.lock("n"));
    let lease = here.lock().await.unwrap();
    assert!(there.try_lock().await.unwrap().is_none());
    assert!(there.lock_timeout(T).await.unwrap().is_none());
    lease.unlock().await.unwrap();
    let lease = there.lock().await.unwrap();
    assert!(here.try_lock().await.unwrap().is_none());
    drop(lease);
}

#[tokio::test(start_paused = true)]
async fn lease_outlives_its_handle_and_the_manager() {
    let setup = Setup::new();
    let lease = setup.leases.lock("n").lock().await.unwrap();
    let Setup { leases, faults, memory } = setup;
    drop(leases);
    sleep(5 * T).await;
    lease.check().unwrap();
    assert_eq!(lease.name(), "n");
    assert_eq!(memory.len(), 1);
    lease.unlock().await.unwrap();
    assert!(memory.is_empty());
    // That was the last of them: the engine disconnects.
    faults.until_calls(Call::Close, 1).await;
}

#[tokio::test(start_paused = true)]
async fn holder_takes_many_names() {
    let setup = Setup::new();
    let mut holder = setup.leases.holder();
    let mut contender = setup.leases.holder();
    let a = holder.lock("a").await.unwrap();
    let b = holder.try_lock("b").await.unwrap().unwrap();
    let again = holder.lock_timeout("a", T).await.unwrap().unwrap();
    assert_eq!((a.hold_count(), b.hold_count(), again.hold_count()), (2, 1, 2));
    assert!(contender.try_lock("a").await.unwrap().is_none());
    assert!(contender.lock_timeout("b", MOMENT).await.unwrap().is_none());
    let c = contender.lock("c").await.unwrap();
    a.unlock().await.unwrap();
    again.unlock().await.unwrap();
    assert!(contender.try_lock("a").await.unwrap().is_some());
    drop((b, c));
}

#[tokio::test(start_paused = true)]
async fn holder_re_enters_after_thousands_of_other_names() {
    let setup = Setup::new();
    let mut holder = setup.leases.holder();
    let kept = holder.lock("kept").await.unwrap();
    for i in 0..2000 {
        let name = format!("passing:{i}");
        holder.lock(&name).await.unwrap().unlock().await.unwrap();
    }
    let again = holder.try_lock("kept").await.unwrap().expect("nested");
    assert_eq!(kept.hold_count(), 2);
    drop((kept, again));
    settle().await;
    assert!(setup.memory.is_empty());
}

#[tokio::test(start_paused = true)]
async fn bad_name_fails_at_the_first_attempt() {
    let setup = Setup::new();
    let long = "x".repeat(513);
    for (name, hint) in [
        ("", "at least one byte"),
        (long.as_str(), "at most 512"),
        ("a{b", "balanced"),
        ("a}b", "balanced"),
        ("{}", "not empty"),
    ] {
        let mut lock = setup.leases.lock(name);
        for error in [
            lock.lock().await.expect_err(hint),
            lock.try_lock().await.expect_err(hint),
            lock.lock_timeout(T).await.expect_err(hint),
            setup.leases.holder().lock(name).await.expect_err(hint),
            setup.leases.inspect(name).await.expect_err(hint),
            setup.leases.force_unlock(name, "test").await.expect_err(hint),
        ] {
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
            assert!(error.to_string().contains(hint), "{error}");
        }
    }
    assert_eq!(setup.calls(Call::Acquire), 0);
}

#[tokio::test(start_paused = true)]
async fn nested_call_asks_nothing_of_the_store() {
    let setup = Setup::new();
    let mut lock = setup.leases.lock("n");
    let outer = lock.lock().await.unwrap();
    setup.faults.add(Rule::new(Fault::Hang));
    for limit in [None, Some(Duration::ZERO), Some(T)] {
        let (took, inner) = timed(async {
            match limit {
                None => lock.try_lock().await,
                Some(limit) => lock.lock_timeout(limit).await,
            }
        })
        .await;
        let inner = inner.unwrap().expect("nested");
        assert_eq!((took, inner.hold_count()), (Duration::ZERO, 2));
        let (took, unlocked) = timed(inner.unlock()).await;
        unlocked.unwrap();
        assert_eq!((took, outer.hold_count()), (Duration::ZERO, 1));
    }
    counted().await;
    assert_eq!((setup.calls(Call::Acquire), setup.calls(Call::Release)), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn count_is_recorded_unless_it_is_one_again_a_moment_later() {
    let setup = Setup::new();
    let mut lock = setup.leases.lock("n");
    let outer = lock.lock().await.unwrap();
    for (millis, records) in [(5, 0), (15, 2)] {
        let before = setup.calls(Call::Release);
        let inner = lock.lock().await.unwrap();
        sleep(millis * MOMENT).await;
        inner.unlock().await.unwrap();
        counted().await;
        assert_eq!(setup.calls(Call::Release) - before, records);
        assert_eq!(setup.recorded("n").await, Some(1));
    }
    drop(outer);
}

#[tokio::test(start_paused = true)]
async fn records_are_in_flight_one_at_a_time() {
    let setup = Setup::new();
    let mut lock = setup.leases.lock("n");
    let mut leases = vec![lock.lock().await.unwrap()];
    setup.faults.add(Rule::new(Fault::Delay(100 * MOMENT)).on(Call::Release).times(1));
    for count in 2..=5 {
        leases.push(lock.lock().await.unwrap());
        counted().await;
        assert_eq!(setup.calls(Call::Release), 1, "{count} leases");
    }
    sleep(100 * MOMENT).await;
    assert_eq!((setup.calls(Call::Release), setup.recorded("n").await), (2, Some(5)));
    let renewals = setup.calls(Call::Renew);
    drop(leases);
    settle().await;
    assert_eq!((setup.recorded("n").await, setup.calls(Call::Renew)), (None, renewals));
}

#[tokio::test(start_paused = true)]
async fn record_that_fails_costs_nothing_and_is_set_right_by_the_next() {
    let faults = [
        Fault::LoseReply,
        Fault::HoldReply,
        Fault::RunLate,
        Fault::Fail(unavailable()),
        Fault::Hang,
    ];
    for fault in faults {
        let setup = Setup::new();
        let mut lock = setup.leases.lock("n");
        let outer = lock.lock().await.unwrap();
        setup.faults.add(Rule::new(fault.clone()).on(Call::Release));
        let inner = lock.lock().await.unwrap();
        sleep(ATTEMPT * 3).await;
        assert_eq!((outer.state(), inner.hold_count()), (LeaseState::Held, 2), "{fault:?}");
        assert_eq!(setup.calls(Call::Release), 1, "{fault:?}: it is not repeated");
        setup.faults.heal();
        settle().await;
        inner.unlock().await.unwrap();
        counted().await;
        assert_eq!(setup.recorded("n").await, Some(1), "{fault:?}");
        outer.unlock().await.unwrap();
        assert!(setup.memory.is_empty(), "{fault:?}");
    }
}
