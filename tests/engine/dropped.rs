//! More futures are dropped at any await, beside those of `cancel`: nested ones with a time limit, those
//! in line behind their own process, those whose replies come only after the drop.

use super::cancel::{at_every_await, busy_elsewhere, busy_here, expect_free};
use super::*;

#[tokio::test(start_paused = true)]
async fn lock_timeout_while_another_handle_holds_keeps_no_place() {
    for limit in [5, 50, 150, 300] {
        at_every_await(async |setup, cut| {
            busy_here(setup).await;
            let limit = Duration::from_millis(limit);
            cut.run(setup.leases.lock("n").lock_timeout(limit)).await.is_some()
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn lock_timeout_of_a_free_name_leaves_nothing() {
    for limit in [0, 5, 10, 15, 100] {
        at_every_await(async |setup, cut| {
            let limit = Duration::from_millis(limit);
            cut.run(setup.leases.lock("n").lock_timeout(limit)).await.is_some()
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn with_while_somebody_else_holds_leaves_nothing() {
    for here in [false, true] {
        at_every_await(async |setup, cut| {
            if here {
                busy_here(setup).await;
            } else {
                busy_elsewhere(setup).await;
            }
            let mut lock = setup.leases.lock("n");
            cut.run(lock.with(async |_, lease| lease.check())).await.is_some()
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn unlock_with_a_line_behind_lets_the_line_in() {
    at_every_await(async |setup, cut| {
        // Those in line have another delay, so the hold is not handed off in memory.
        let mut lock = setup.leases.lock("n").lock_delay(MOMENT);
        let lease = lock.lock().await.expect("free");
        let mut line = tokio::task::JoinSet::new();
        for _ in 0..2 {
            let mut lock = setup.leases.lock("n");
            line.spawn(async move { lock.lock_timeout(T).await.expect("an answer").is_some() });
        }
        settle().await;
        let faster = cut.run(lease.unlock()).await.is_some();
        assert_eq!(line.join_all().await, [true, true], "{cut:?}");
        faster
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn inspect_changes_nothing() {
    at_every_await(async |setup, cut| {
        let lease = setup.leases.lock("n").lock().await.expect("free");
        let faster = cut.run(setup.leases.inspect("n")).await.is_some();
        lease.check().expect("held");
        faster
    })
    .await;
}

/// It waits for a renewal, because renewals fail. The one that it asked for goes on without it.
#[tokio::test(start_paused = true)]
async fn ensure_remaining_leaves_the_lease_and_its_renewal_alone() {
    for polls in 1..=4 {
        let setup = Setup::new();
        let lease = setup.leases.lock("n").lock().await.expect("free");
        setup.faults.add(Rule::new(Fault::Fail(unavailable())).on(Call::Renew));
        sleep(T * 2 / 3).await;
        {
            let mut call = Box::pin(lease.ensure_remaining(T / 2));
            for _ in 0..polls {
                assert!(poll_once(call.as_mut()).await.is_pending());
                settle().await;
            }
        }
        lease.check().expect("held");
        setup.faults.heal();
        sleep(T / 10).await;
        assert!(lease.remaining() > T / 2, "renewed after {polls} polls: {:?}", lease.remaining());
        lease.ensure_remaining(T / 2).await.expect("enough remains");
    }
}

#[tokio::test(start_paused = true)]
async fn force_unlock_of_anothers_hold_takes_nothing_of_ours() {
    at_every_await(async |setup, cut| {
        let theirs = setup.held_elsewhere("n").await;
        let faster = cut.run(setup.leases.force_unlock("n", "test")).await.is_some();
        drop(theirs);
        faster
    })
    .await;
}

/// How long after an answer all must be over.
const LATER: Duration = Duration::from_millis(100);

#[tokio::test(start_paused = true)]
async fn call_dropped_while_its_reply_is_held_is_settled_by_the_reply() {
    for what in ["lock", "try_lock", "lock_timeout", "with", "unlock"] {
        for polls in 1..=3 {
            let setup = Setup::new();
            let mut lock = setup.leases.lock("n");
            let lease = match what {
                "unlock" => Some(lock.lock().await.expect("free")),
                _ => None,
            };
            setup.faults.add(Rule::new(Fault::HoldReply));
            let mut work: Pin<Box<dyn Future<Output = ()>>> = match (what, lease) {
                (_, Some(lease)) => Box::pin(async move { drop(lease.unlock().await) }),
                ("try_lock", _) => Box::pin(async { drop(lock.try_lock().await) }),
                ("lock_timeout", _) => Box::pin(async { drop(lock.lock_timeout(T).await) }),
                ("with", _) => Box::pin(async { drop(lock.with(async |_, _| ()).await) }),
                _ => Box::pin(async { drop(lock.lock().await) }),
            };
            for _ in 0..polls {
                assert!(poll_once(work.as_mut()).await.is_pending(), "{what}: the reply is held");
                settle().await;
            }
            drop(work);
            settle().await;
            setup.faults.heal();
            sleep(LATER).await;
            // At once, not when something expires.
            assert_eq!(setup.recorded("n").await, None, "{what}, {polls} polls");
            expect_free(&setup, what).await;
            let renewals = setup.calls(Call::Renew);
            sleep(3 * T).await;
            assert_eq!(setup.calls(Call::Renew), renewals, "{what}: somebody renews still");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn lease_that_is_not_kept_is_released_at_once() {
    let setup = Setup::new();
    let mut lock = setup.leases.lock("n");
    let is_free = async || {
        settle().await;
        setup.other().lock("n").try_lock().await.unwrap().is_some()
    };
    // The forms that the guide lists.
    let _ = lock.lock().await.unwrap();
    assert!(is_free().await, "let _");
    if lock.try_lock().await.unwrap().is_some() {
        assert!(is_free().await, "is_some");
    }
    if lock.lock().await.is_ok() {
        assert!(is_free().await, "is_ok");
    }
    lock.lock().await.map(|_| ()).unwrap();
    assert!(is_free().await, "map");
    let token = lock.lock().await.unwrap().cancellation_token();
    assert!(token.is_cancelled() && is_free().await, "a token");
}
