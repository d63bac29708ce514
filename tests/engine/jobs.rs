//! Jobs that run on one of many replicas: `once`, and the times for which a handle keeps its name.

use super::*;
use leasehold::store::Mark;
use leasehold::{Job, Once};
use std::cell::Cell;
use std::future::pending;

const KEEP: Duration = Duration::from_secs(3600);
type Outcome = Once<u32, &'static str>;

fn job(leases: &LeaseManager) -> Job {
    leases.once("job").keep(KEEP)
}

async fn good(leases: &LeaseManager) -> Result<Outcome> {
    job(leases).run(async |_| Ok(7)).await
}

async fn is_free(setup: &Setup) -> bool {
    setup.other().inspect("job").await.unwrap().is_none()
}

#[tokio::test(start_paused = true)]
async fn success_closes_the_key_for_as_long_as_it_is_kept() {
    let setup = Setup::new();
    assert!(matches!(good(&setup.leases).await.unwrap(), Once::Ran(7)));
    sleep(MOMENT * 10).await;
    for leases in [setup.leases.clone(), setup.other()] {
        let Once::AlreadyDone(closed) = good(&leases).await.unwrap() else {
            panic!("it ran again")
        };
        assert_eq!((closed.mark, closed.ago), (Mark::Done, MOMENT * 10));
    }
    assert!(setup.other().lock("job").try_lock().await.unwrap().is_none());
    sleep(KEEP - MOMENT * 11).await;
    assert!(matches!(good(&setup.leases).await.unwrap(), Once::AlreadyDone(_)));
    sleep(MOMENT * 2).await;
    assert!(matches!(good(&setup.other()).await.unwrap(), Once::Ran(7)));
    assert_eq!(setup.calls(Call::Renew), 0, "the mark is not renewed");
}

/// One request each time. The first refusal is described, and the one that ends the call.
#[tokio::test(start_paused = true)]
async fn waiting_job_asks_once_each_time() {
    let setup = Setup::new();
    let lease = setup.held_elsewhere("job").await;
    let waiting = tokio::spawn(job(&setup.leases).wait(T * 2).run(async |_| Ok::<u32, ()>(7)));
    sleep(T).await;
    lease.check().unwrap();
    let asked = setup.calls(Call::Acquire);
    assert!(asked > 2, "{asked}");
    assert_eq!(setup.calls(Call::Inspect), 1);
    lease.unlock().await.unwrap();
    assert!(matches!(waiting.await.unwrap().unwrap(), Once::Ran(7)));
    assert_eq!(setup.calls(Call::Inspect), 1);

    let busy = setup.held_elsewhere("other").await;
    let waiting = setup.leases.once("other").wait(T).run(async |_| Ok::<u32, ()>(7));
    let Once::Running(Some(holder)) = waiting.await.unwrap() else { panic!("it is held") };
    assert!(holder.is_of(busy.holder_id()));
    assert_eq!(setup.calls(Call::Inspect), 3);
}

#[tokio::test(start_paused = true)]
async fn failure_panic_and_drop_leave_the_key_free() {
    let setup = Setup::new();
    let failed = job(&setup.leases).run(async |_| Err::<u32, _>("no disk")).await.unwrap();
    assert!(matches!(failed, Once::Failed("no disk")));
    assert!(is_free(&setup).await);

    let run = job(&setup.leases);
    let panics = tokio::spawn(async move {
        let _ = run.run(async |_| -> std::result::Result<u32, ()> { panic!("a bug") }).await;
    });
    assert!(panics.await.unwrap_err().is_panic());
    settle().await;
    assert!(is_free(&setup).await);

    let mut running = Box::pin(job(&setup.leases).run(async |_| pending::<Result<u32>>().await));
    assert!(poll_once(running.as_mut()).await.is_pending());
    assert!(!is_free(&setup).await);
    drop(running);
    settle().await;
    assert!(is_free(&setup).await);
    assert!(matches!(good(&setup.leases).await.unwrap(), Once::Ran(7)));
}

#[tokio::test(start_paused = true)]
async fn job_of_another_replica_is_reported_without_waiting() {
    let setup = Setup::new();
    let theirs = setup.held_elsewhere("job").await;
    let (took, outcome) = timed(good(&setup.leases)).await;
    let Ok(Once::Running(Some(holder))) = outcome else { panic!("{outcome:?}") };
    assert_eq!(holder.holder, theirs.holder_id().to_string());
    assert!(took < MOMENT * 5, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn waiting_job_ends_with_the_end_of_the_other() {
    for succeeds in [true, false] {
        let setup = Setup::new();
        let other = setup.other();
        let theirs = tokio::spawn(async move {
            let work = async |_: &Lease| {
                sleep(Duration::from_secs(5)).await;
                if succeeds { Ok(1) } else { Err("no") }
            };
            job(&other).run(work).await
        });
        settle().await;
        let waiting = job(&setup.leases).wait(Duration::from_secs(60));
        let (took, outcome) = timed(waiting.run(async |_| Ok::<u32, ()>(7))).await;
        match outcome.unwrap() {
            Once::AlreadyDone(closed) => assert!(succeeds && closed.mark == Mark::Done),
            Once::Ran(7) => assert!(!succeeds),
            other => panic!("{other:?}"),
        }
        assert!(took < Duration::from_secs(5) + MOMENT * 20, "it heard of the end: {took:?}");
        let _ = theirs.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn waiting_job_gives_up_in_time() {
    let setup = Setup::new();
    let _theirs = setup.held_elsewhere("job").await;
    let wait = Duration::from_secs(10);
    let run = job(&setup.leases).wait(wait).run(async |_| Ok::<u32, ()>(7));
    let (took, outcome) = timed(run).await;
    assert!(matches!(outcome.unwrap(), Once::Running(Some(_))));
    assert!(took >= wait && took < wait + MOMENT * 50, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn loss_drops_the_body_and_closes_nothing() {
    let setup = Setup::new();
    let dropped = Cell::new(false);
    struct Sees<'a>(&'a Cell<bool>);
    impl Drop for Sees<'_> {
        fn drop(&mut self) {
            self.0.set(true);
        }
    }
    let body = async |_: &Lease| {
        let _sees = Sees(&dropped);
        pending::<std::result::Result<u32, ()>>().await
    };
    let mut running = Box::pin(job(&setup.leases).run(body));
    assert!(poll_once(running.as_mut()).await.is_pending());
    setup.leases.force_unlock("job", "test").await.unwrap();
    assert_eq!(lost(running.await), Loss::Revoked);
    assert!(dropped.get() && is_free(&setup).await);
}

/// The body ends in the same poll in which the lease is found lost.
#[tokio::test(start_paused = true)]
async fn success_at_the_moment_of_the_loss_is_a_loss() {
    let setup = Setup::new();
    setup.faults.add(Rule::new(Fault::Fail(unavailable())).on(Call::Renew));
    for late in [Duration::ZERO, MOMENT] {
        let body = async |_: &Lease| {
            sleep(C + late).await;
            Ok::<u32, ()>(7)
        };
        assert_eq!(lost(job(&setup.leases).run(body).await), Loss::Expired, "{late:?}");
        sleep(T).await;
        assert!(is_free(&setup).await);
    }
    // A moment before, it is a success, and the name is closed though no renewal succeeds.
    let body = async |_: &Lease| {
        sleep(C - MOMENT).await;
        Ok::<u32, ()>(7)
    };
    assert!(matches!(job(&setup.leases).run(body).await.unwrap(), Once::Ran(7)));
    assert!(matches!(good(&setup.other()).await.unwrap(), Once::AlreadyDone(_)));
}

/// The store has lost the hold, or another holder has it, and only the release finds out.
#[tokio::test(start_paused = true)]
async fn success_after_a_silent_loss_closes_nothing() {
    for taken in [false, true] {
        let setup = Setup::new();
        let (memory, other) = (setup.memory.clone(), setup.other());
        let body = async |_: &Lease| {
            assert!(memory.delete("job"));
            if taken {
                other.lock("job").lock().await.unwrap().forget();
            }
            Ok::<u32, ()>(7)
        };
        let cause = if taken { Loss::Taken } else { Loss::Gone };
        assert_eq!(lost(job(&setup.leases).run(body).await), cause);
        let left = setup.other().inspect("job").await.unwrap();
        assert_eq!(left.is_some(), taken, "{left:?}");
        assert!(left.is_none_or(|holder| holder.closed.is_none()), "theirs is left alone");
    }
}

/// A loss that the process decides, after the body has returned and before its release: the next await is that of the
/// release.
#[tokio::test(start_paused = true)]
async fn success_while_the_manager_closes_is_a_loss() {
    let setup = Setup::new();
    let leases = setup.leases.clone();
    let body = async |_: &Lease| {
        let closing = tokio::spawn(async move { leases.close().await.map_err(|_| ()) });
        tokio::task::yield_now().await;
        drop(closing);
        Ok::<u32, ()>(7)
    };
    assert_eq!(lost(job(&setup.leases).run(body).await), Loss::Closed);
    sleep(GRACE + ATTEMPT).await;
    assert!(is_free(&setup).await, "it was released without a mark");
}

#[tokio::test(start_paused = true)]
async fn success_whose_answer_is_lost_closes_the_key() {
    let setup = Setup::new();
    setup.faults.add(Rule::new(Fault::LoseReply).on(Call::Release).times(1));
    assert!(
        matches!(good(&setup.leases).await.unwrap(), Once::Ran(7)),
        "the store tells that it is done"
    );
    assert_eq!(setup.calls(Call::Release), 2);
    assert!(matches!(good(&setup.other()).await.unwrap(), Once::AlreadyDone(_)));
}

/// The hold is gone at the second release. The first one has not left a mark, or it would be there.
#[tokio::test(start_paused = true)]
async fn success_whose_mark_is_not_there_is_unconfirmed() {
    let setup = Setup::new();
    setup.faults.add(Rule::new(Fault::RunLate).on(Call::Release).times(1));
    let memory = setup.memory.clone();
    let body = async |_: &Lease| {
        assert!(memory.delete("job"));
        Ok::<u32, ()>(7)
    };
    let outcome = job(&setup.leases).run(body).await.unwrap();
    let Once::Unconfirmed(7, error) = outcome else { panic!("{outcome:?}") };
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(is_free(&setup).await);
}

#[tokio::test(start_paused = true)]
async fn success_that_the_store_does_not_confirm_is_distinct() {
    let setup = Setup::new();
    setup.faults.add(Rule::new(Fault::Fail(unavailable())).on(Call::Release));
    let outcome = good(&setup.leases).await.unwrap();
    let Once::Unconfirmed(7, error) = outcome else { panic!("{outcome:?}") };
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    // The engine goes on in the background.
    setup.faults.heal();
    sleep(ATTEMPT).await;
    assert!(matches!(good(&setup.other()).await.unwrap(), Once::AlreadyDone(_)));
}

#[tokio::test(start_paused = true)]
async fn success_closes_the_key_though_its_future_is_dropped() {
    let setup = Setup::new();
    setup.faults.add(Rule::new(Fault::Delay(MOMENT * 10)).on(Call::Release));
    let mut running = Box::pin(good(&setup.leases));
    while setup.calls(Call::Release) == 0 {
        assert!(poll_once(running.as_mut()).await.is_pending());
        tokio::task::yield_now().await;
    }
    drop(running);
    sleep(ATTEMPT).await;
    assert!(matches!(good(&setup.other()).await.unwrap(), Once::AlreadyDone(_)));
}

#[tokio::test(start_paused = true)]
async fn bad_times_and_stores_are_refused_before_the_body() {
    let never = async |_: &Lease| -> std::result::Result<u32, ()> { panic!("it must not run") };
    let setup = Setup::new();
    for keep in [Duration::ZERO, Duration::from_micros(999), Duration::MAX] {
        assert_eq!(failed(job(&setup.leases).keep(keep).run(never).await), ErrorKind::Invalid);
    }
    assert_eq!(failed(setup.leases.once("").run(never).await), ErrorKind::Invalid);
    let (store, faults) = FaultyStore::new(MemoryStore::new());
    let store = store.with_capabilities(leasehold::store::Capabilities::default());
    let leases = LeaseManager::builder().build(store).unwrap();
    assert_eq!(failed(job(&leases).run(never).await), ErrorKind::Unsupported);
    assert_eq!(faults.calls(Call::Acquire), 0);
}

/// One of many tasks of several managers runs it, whatever they meet.
#[tokio::test(start_paused = true)]
async fn one_of_many_runs_the_job() {
    let setup = Setup::new();
    let ran = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..30 {
        let leases = if number % 2 == 0 { setup.leases.clone() } else { setup.other() };
        let ran = std::sync::Arc::clone(&ran);
        tasks.spawn(async move {
            let work = async |_: &Lease| {
                sleep(MOMENT * 5).await;
                ran.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                Ok::<u32, ()>(number)
            };
            matches!(job(&leases).wait(T).run(work).await.unwrap(), Once::Ran(_))
        });
    }
    let runs = tasks.join_all().await.into_iter().filter(|ran| *ran).count();
    assert_eq!((runs, ran.load(std::sync::atomic::Ordering::Relaxed)), (1, 1));
}

const MIN: Duration = Duration::from_secs(55);

/// Whether the name is free for another process.
async fn opens(setup: &Setup) -> bool {
    setup.other().lock("n").try_lock().await.unwrap().is_some()
}

#[tokio::test(start_paused = true)]
async fn min_hold_keeps_the_name_closed_however_the_lease_ends() {
    for how in ["unlock", "drop", "nested"] {
        let setup = Setup::new();
        let mut lock = setup.leases.lock("n").min_hold(MIN);
        let start = Instant::now();
        let lease = lock.lock().await.unwrap();
        sleep(Duration::from_secs(1)).await;
        match how {
            "unlock" => lease.unlock().await.unwrap(),
            "drop" => drop(lease),
            _ => {
                let inner = lock.lock().await.unwrap();
                lease.unlock().await.unwrap();
                assert_eq!(setup.recorded("n").await, Some(1), "one lease is left");
                inner.unlock().await.unwrap();
            }
        }
        settle().await;
        let holder = setup.other().inspect("n").await.unwrap().expect("closed");
        assert_eq!(holder.closed.map(|closed| closed.mark), Some(Mark::Kept), "{how}");
        assert!(lock.try_lock().await.unwrap().is_none(), "{how}: also for its own handle");
        sleep(MIN - start.elapsed() - MOMENT).await;
        assert!(!opens(&setup).await, "{how}");
        sleep(MOMENT * 2).await;
        assert!(opens(&setup).await, "{how}");
    }
}

/// The store grants the name, and the call ends without a lease.
#[tokio::test(start_paused = true)]
async fn min_hold_of_a_grant_that_no_caller_gets_is_none() {
    for how in ["closed", "dropped", "late"] {
        let setup = Setup::new();
        setup.faults.add(Rule::new(Fault::HoldReply).on(Call::Acquire));
        let mut lock = setup.leases.lock("n").min_hold(MIN);
        let mut locking = Box::pin(lock.lock_timeout(T));
        assert!(poll_once(locking.as_mut()).await.is_pending());
        assert!(!opens(&setup).await, "{how}: it is granted");
        if how == "late" {
            sleep(T * 9 / 10).await;
        }
        setup.faults.heal();
        match how {
            "closed" => {
                let mut closing = Box::pin(setup.leases.close());
                assert!(poll_once(closing.as_mut()).await.is_pending());
                assert_eq!(failed(locking.await), ErrorKind::Closed);
                closing.await.unwrap();
            }
            "dropped" => drop(locking),
            _ => {
                // The grant is undone, and it asks once more.
                setup.faults.add(Rule::new(Fault::Fail(unavailable())).on(Call::Acquire));
                assert_eq!(failed(locking.await), ErrorKind::Unavailable);
            }
        }
        sleep(ATTEMPT).await;
        assert!(opens(&setup).await, "{how}");
    }
}

#[tokio::test(start_paused = true)]
async fn min_hold_that_has_passed_costs_nothing() {
    let setup = Setup::new();
    let lease = setup.leases.lock("n").min_hold(MIN).lock().await.unwrap();
    sleep(MIN).await;
    lease.unlock().await.unwrap();
    assert!(setup.memory.is_empty());
}

#[tokio::test(start_paused = true)]
async fn hold_is_not_handed_off_before_its_min_hold() {
    let setup = Setup::new();
    let mut lock = setup.leases.lock("n").min_hold(Duration::from_secs(2));
    let lease = lock.lock().await.unwrap();
    let leases = setup.leases.clone();
    let waiter = tokio::spawn(async move { timed(leases.lock("n").lock()).await });
    settle().await;
    drop(lease);
    let (took, lease) = waiter.await.unwrap();
    let lease = lease.unwrap();
    assert!(
        took >= Duration::from_secs(2) - MOMENT && took < Duration::from_secs(2) + MOMENT * 50,
        "{took:?}"
    );
    assert_eq!(setup.calls(Call::Release), 1);
    // And one without a min_hold is handed off, whose new holder keeps its own.
    let leases = setup.leases.clone();
    let waiter = tokio::spawn(async move {
        leases.lock("n").min_hold(MIN).lock().await.unwrap().unlock().await.unwrap();
    });
    settle().await;
    drop(lease);
    waiter.await.unwrap();
    assert_eq!(setup.calls(Call::Acquire), setup.calls(Call::Acquire));
    sleep(MIN - MOMENT * 10).await;
    assert!(!opens(&setup).await);
    sleep(MOMENT * 11).await;
    assert!(opens(&setup).await);
}

#[tokio::test(start_paused = true)]
async fn min_hold_does_not_outlive_a_crash() {
    let setup = Setup::new();
    setup.faults.add(Rule::new(Fault::Fail(unavailable())).on(Call::Release));
    setup.faults.add(Rule::new(Fault::Fail(unavailable())).on(Call::Renew));
    drop(setup.leases.lock("n").min_hold(MIN).lock().await.unwrap());
    sleep(T - MOMENT).await;
    assert!(!opens(&setup).await);
    sleep(MOMENT * 2).await;
    assert!(opens(&setup).await);
}

#[tokio::test(start_paused = true)]
async fn close_keeps_a_min_hold() {
    let setup = Setup::new();
    let lease = setup.leases.lock("n").min_hold(MIN).lock().await.unwrap();
    let close = tokio::spawn({
        let leases = setup.leases.clone();
        async move { leases.close().await.unwrap() }
    });
    assert_eq!(lease.lost().await, Loss::Closed);
    drop(lease);
    close.await.unwrap();
    assert!(!opens(&setup).await);
    sleep(MIN).await;
    assert!(opens(&setup).await);
}

/// As ZooKeeper.
fn without_marks(memory: &MemoryStore) -> (LeaseManager, Faults) {
    let (store, faults) = FaultyStore::new(memory.clone());
    let store = store.with_capabilities(leasehold::store::Capabilities::default());
    (LeaseManager::builder().build(store).unwrap(), faults)
}

/// Also to a steal, before the holder hears of it.
#[tokio::test(start_paused = true)]
async fn min_hold_is_refused_where_the_store_cannot_keep_a_name() {
    let setup = Setup::new();
    let (leases, faults) = without_marks(&setup.memory);
    let lock = || leases.lock("n").min_hold(MIN);
    let error = lock().lock().await.unwrap_err();
    assert!(error.to_string().contains("no min_hold; hold the lease"), "{error}");
    let slots = leases.slots("n", 2).min_hold(MIN);
    let mut set = leases.multi_lock(["m", "n"]).unwrap().min_hold(MIN);
    for refused in [
        error.kind(),
        failed(lock().try_lock().await),
        failed(lock().lock_timeout(T).await),
        failed(lock().steal("test").await),
        failed(lock().steal_after(T, "test").await),
        failed(slots.take().await),
        failed(slots.try_take().await),
        failed(slots.try_take_index(1).await),
        failed(set.lock().await),
        failed(set.try_lock().await),
    ] {
        assert_eq!(refused, ErrorKind::Unsupported);
    }
    let calls = [Call::Acquire, Call::Inspect, Call::Want, Call::Release];
    assert_eq!(calls.map(|call| faults.calls(call)), [0; 4]);
    let mut none = leases.lock("n").min_hold(Duration::ZERO);
    none.lock().await.unwrap().unlock().await.unwrap();
}

const DELAY: Duration = Duration::from_secs(20);

#[tokio::test(start_paused = true)]
async fn lock_delay_keeps_a_name_closed_after_a_crash_only() {
    let setup = Setup::new();
    let lock = || setup.leases.lock("n").lock_delay(DELAY);
    lock().lock().await.unwrap().unlock().await.unwrap();
    assert!(opens(&setup).await, "a clean release ends it");
    drop(lock().lock().await.unwrap());
    settle().await;
    assert!(opens(&setup).await, "so does a drop");

    let lease = lock().lock().await.unwrap();
    sleep(T).await;
    lease.check().expect("it was renewed");
    setup.faults.add(Rule::new(Fault::Fail(unavailable())).on(Call::Renew));
    let renewed = Instant::now();
    assert_eq!(lease.lost().await, Loss::Expired);
    assert!(renewed.elapsed() <= C, "T alone is believed");
    setup.faults.heal();
    drop(lease);
    sleep(D.saturating_sub(renewed.elapsed())).await;
    assert!(!opens(&setup).await, "the drop of a lost lease does not end it");
    sleep(DELAY - MOMENT * 20 - T / 3).await;
    assert!(!opens(&setup).await);
    sleep(T / 3 + MOMENT * 500).await;
    assert!(opens(&setup).await);
}

/// A renewal runs in the store and is confirmed only after C, so the store keeps the name for T and the delay.
#[tokio::test(start_paused = true)]
async fn late_confirmation_with_a_delay_is_left_to_expire() {
    for (delay, releases) in [(Duration::ZERO, 1), (DELAY, 0)] {
        let setup = Setup::new();
        let mut lock = setup.leases.lock("n").lock_delay(delay);
        let lease = lock.lock().await.unwrap();
        setup.faults.add(Rule::new(Fault::Fail(unavailable())).on(Call::Renew));
        sleep(C - ATTEMPT).await;
        setup.faults.heal();
        setup.faults.add(Rule::new(Fault::HoldReply).on(Call::Renew));
        setup.faults.until_calls(Call::Renew, setup.calls(Call::Renew) + 1).await;
        assert_eq!(lost(lease.ensure_remaining(T / 2).await), Loss::Expired);
        setup.faults.heal();
        drop(lease);
        sleep(ATTEMPT * 2).await;
        assert_eq!(setup.calls(Call::Release).min(1), releases, "{delay:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn close_does_not_end_the_delay_of_a_lease_in_use() {
    let setup = Setup::new();
    let lease = setup.leases.lock("n").lock_delay(DELAY).lock().await.unwrap();
    let error = setup.leases.close().await.unwrap_err();
    assert_eq!(error.failed().len(), 1, "{error}");
    assert!(!opens(&setup).await);
    drop(lease);
    sleep(T + DELAY).await;
    assert!(opens(&setup).await);

    let setup = Setup::new();
    let lease = setup.leases.lock("n").lock_delay(DELAY).lock().await.unwrap();
    let leases = setup.leases.clone();
    let close = tokio::spawn(async move { leases.close().await });
    lease.lost().await;
    drop(lease);
    let error = close.await.unwrap().unwrap_err();
    assert_eq!(error.failed().len(), 1, "{error}");
    assert!(!opens(&setup).await, "nor does a drop in the grace");
    sleep(T + DELAY).await;
    assert!(opens(&setup).await);
}

/// `run` drops the work, and then the lease goes, within the grace.
#[tokio::test(start_paused = true)]
async fn loss_by_the_process_is_followed_by_the_delay() {
    let builders = [
        (Loss::MaxHold, LeaseManager::builder().max_hold(T)),
        (Loss::Stalled, LeaseManager::builder().stall_after(T)),
    ];
    for (loss, builder) in builders {
        let setup = Setup::with(builder);
        let mut lock = setup.leases.lock("n").lock_delay(DELAY);
        let work = async |_: &mut leasehold::Lock, _: &Lease| pending::<()>().await;
        assert_eq!(lost(lock.with(work).await), loss);
        sleep(DELAY).await;
        assert!(!opens(&setup).await, "{loss:?}: it is left to expire");
        assert_eq!(setup.calls(Call::Release), 0, "{loss:?}");
        sleep(T + MOMENT).await;
        assert!(opens(&setup).await, "{loss:?}");
    }
    // The mark of a `min_hold` is left all the same.
    let setup = Setup::with(LeaseManager::builder().max_hold(T));
    let mut lock = setup.leases.lock("n").lock_delay(DELAY).min_hold(T * 10);
    let lease = lock.lock().await.unwrap();
    assert_eq!(lease.lost().await, Loss::MaxHold);
    drop(lease);
    sleep(T * 9 - MOMENT).await;
    assert!(!opens(&setup).await);
    sleep(MOMENT * 2).await;
    assert!(opens(&setup).await);
}

/// The waiter in between, which has the same delay, gives up.
#[tokio::test(start_paused = true)]
async fn hold_with_a_delay_is_not_handed_off_to_one_without() {
    let setup = Setup::new();
    let lease = setup.leases.lock("n").lock_delay(DELAY).lock().await.unwrap();
    let (mut with, mut without) =
        (setup.leases.lock("n").lock_delay(DELAY), setup.leases.lock("n"));
    let mut between = Box::pin(with.lock());
    let mut last = Box::pin(without.lock());
    assert!(poll_once(between.as_mut()).await.is_pending());
    assert!(poll_once(last.as_mut()).await.is_pending());
    lease.unlock().await.unwrap();
    drop(between);
    last.await.unwrap().forget();
    let left = setup.other().inspect("n").await.unwrap().unwrap().remaining;
    assert!(left.unwrap() <= T, "{left:?}");
}

/// A lease that was never renewed, so that the store keeps the name for T and the delay from the grant.
#[tokio::test(start_paused = true)]
async fn min_hold_and_lock_delay_do_not_shorten_each_other() {
    let lost_at = T / 10;
    for min in [T / 2, T + DELAY - MOMENT * 100, T + DELAY + MOMENT * 100, T * 10] {
        for (loss, in_use) in [Loss::MaxHold, Loss::Stalled, Loss::Closed]
            .into_iter()
            .flat_map(|loss| [(loss, true), (loss, false)])
        {
            let what = format!("{loss:?} with {min:?}, in use: {in_use}");
            let setup = Setup::with(match loss {
                Loss::MaxHold => LeaseManager::builder().max_hold(lost_at),
                Loss::Stalled => LeaseManager::builder().stall_after(lost_at),
                _ => LeaseManager::builder(),
            });
            let mut lock = setup.leases.lock("n").min_hold(min).lock_delay(DELAY);
            let start = Instant::now();
            let mut lease = Some(lock.lock().await.unwrap());
            let leases = setup.leases.clone();
            let closing = (loss == Loss::Closed).then(|| {
                tokio::spawn(async move {
                    sleep(lost_at).await;
                    leases.close().await
                })
            });
            assert_eq!(lease.as_ref().unwrap().lost().await, loss);
            lease.take_if(|_| !in_use);
            let longer = min.max(T + DELAY);
            sleep(longer - start.elapsed() - MOMENT).await;
            assert!(!opens(&setup).await, "{what}");
            sleep(T / 5).await;
            assert!(opens(&setup).await, "{what}");
            if let Some(closing) = closing {
                // A mark is a release; one that is left to expire is reported.
                assert_eq!(closing.await.unwrap().is_ok(), min > D + DELAY, "{what}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn hold_is_handed_off_to_a_waiter_with_the_same_delay_only() {
    for (delay, handed_off) in [(DELAY, true), (Duration::ZERO, false)] {
        let setup = Setup::new();
        let lease = setup.leases.lock("n").lock_delay(DELAY).lock().await.unwrap();
        let leases = setup.leases.clone();
        let waiter = tokio::spawn(async move { leases.lock("n").lock_delay(delay).lock().await });
        settle().await;
        drop(lease);
        let _next = waiter.await.unwrap().unwrap();
        assert_eq!(setup.calls(Call::Release), usize::from(!handed_off), "{delay:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn bad_options_are_refused_before_anything_is_sent() {
    let setup = Setup::new();
    let long = Duration::from_secs(61);
    assert_eq!(failed(setup.leases.lock("n").lock_delay(long).lock().await), ErrorKind::Invalid);
    assert_eq!(
        failed(setup.leases.lock("n").min_hold(Duration::MAX).lock().await),
        ErrorKind::Invalid
    );
    let leases = &setup.leases;
    assert_eq!(failed(leases.lock("n").stall_after(MOMENT).lock().await), ErrorKind::Invalid);
    let long = "x".repeat(257);
    let mut multi = leases.multi_lock(["m1", "m2"]).unwrap().label(&long);
    for refused in [
        failed(leases.lock("n").label(&long).lock().await),
        failed(leases.fair_lock("n").label(&long).try_lock().await),
        failed(leases.rw_lock("n").label(&long).read().await),
        failed(leases.semaphore("n", 2).label(&long).acquire().await),
        failed(leases.slots("n", 2).label(&long).take().await),
        failed(multi.lock().await),
        failed(leases.election("n").candidate("me").label(&long).campaign().await),
        failed(leases.once("n").label(&long).run(async |_| Ok::<_, ()>(())).await),
    ] {
        assert_eq!(refused, ErrorKind::Invalid);
    }
    let (leases, faults) = without_marks(&setup.memory);
    let delayed = leases.lock("n").lock_delay(MOMENT).try_lock().await;
    assert_eq!(failed(delayed), ErrorKind::Unsupported);
    assert_eq!(faults.calls(Call::Acquire) + setup.calls(Call::Acquire), 0);
}

const STALL: Duration = Duration::from_secs(60);

#[tokio::test(start_paused = true)]
async fn lease_without_progress_is_lost_and_then_released() {
    let setup = Setup::with(LeaseManager::builder().stall_after(STALL));
    let lease = setup.leases.lock("n").lock().await.unwrap();
    for _ in 0..5 {
        sleep(STALL - MOMENT).await;
        lease.check().unwrap();
        lease.progress();
    }
    let (took, loss) = timed(lease.lost()).await;
    assert_eq!((took, loss), (STALL, Loss::Stalled));
    assert!(!opens(&setup).await, "the token fires first");
    lease.progress();
    assert_eq!(lost(lease.check()), Loss::Stalled);
    sleep(GRACE + MOMENT * 2).await;
    assert!(opens(&setup).await);
}

/// The time comes while a renewal hangs.
#[tokio::test(start_paused = true)]
async fn lease_stalls_in_time_while_a_renewal_is_under_way() {
    let setup = Setup::with(LeaseManager::builder().stall_after(T / 3 + MOMENT * 500));
    let lease = setup.leases.lock("n").lock().await.unwrap();
    setup.faults.add(Rule::new(Fault::Hang).on(Call::Renew));
    let (took, loss) = timed(lease.lost()).await;
    assert_eq!((took, loss), (T / 3 + MOMENT * 500, Loss::Stalled));
}

#[tokio::test(start_paused = true)]
async fn progress_counts_for_the_hold_and_a_handoff_begins_with_it() {
    let setup = Setup::with(LeaseManager::builder().stall_after(STALL));
    let mut lock = setup.leases.lock("n");
    let (outer, inner) = (lock.lock().await.unwrap(), lock.lock().await.unwrap());
    sleep(STALL - MOMENT).await;
    inner.progress();
    sleep(MOMENT * 2).await;
    outer.check().unwrap();
    drop((inner, outer));

    let setup = Setup::with(LeaseManager::builder().stall_after(T / 20));
    let lease = setup.leases.lock("n").lock().await.unwrap();
    let leases = setup.leases.clone();
    let waiter = tokio::spawn(async move { leases.lock("n").lock().await });
    sleep(T / 20 - MOMENT).await;
    lease.unlock().await.unwrap();
    let next = waiter.await.unwrap().unwrap();
    assert_eq!(setup.calls(Call::Acquire), 1, "it was handed off");
    let (took, loss) = timed(next.lost()).await;
    assert_eq!(loss, Loss::Stalled);
    assert!(took >= T / 20 - MOMENT * 2, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn lease_that_is_added_to_a_hold_is_a_report() {
    let setup = Setup::with(LeaseManager::builder().stall_after(T / 20));
    let mut lock = setup.leases.lock("n");
    let _outer = lock.lock().await.unwrap();
    sleep(T / 20 - MOMENT).await;
    let inner = lock.lock().await.unwrap();
    let (took, loss) = timed(inner.lost()).await;
    assert_eq!((took, loss), (T / 20, Loss::Stalled), "a re-entry");

    let (mut first, mut second) = (setup.leases.rw_lock("rw"), setup.leases.rw_lock("rw"));
    let _reader = first.read().await.unwrap();
    sleep(T / 20 - MOMENT).await;
    let joined = second.read().await.unwrap();
    assert_eq!(setup.calls(Call::Acquire), 2, "the hold is shared");
    sleep(T / 20 - MOMENT).await;
    joined.check().unwrap();
    let again = first.read().await.unwrap();
    let (took, loss) = timed(again.lost()).await;
    assert_eq!((took, loss), (T / 20, Loss::Stalled), "readers");
}

/// Of a handle that has a limit of its own. Readers share their holds, and have none.
#[tokio::test(start_paused = true)]
async fn every_other_kind_of_handle_has_a_stall_of_its_own() {
    let setup = Setup::with(LeaseManager::builder().stall_after(STALL * 3));
    let leases = &setup.leases;
    let election = leases.election("e");
    let mut candidate = election.candidate("me").stall_after(STALL);
    let stalls = async |lease: &Lease| {
        let (took, loss) = timed(lease.lost()).await;
        assert_eq!((took, loss), (STALL, Loss::Stalled), "{}", lease.name());
    };
    stalls(&leases.lock("l").stall_after(STALL).lock().await.unwrap()).await;
    stalls(&leases.fair_lock("f").stall_after(STALL).lock().await.unwrap()).await;
    stalls(&leases.semaphore("s", 2).stall_after(STALL).acquire().await.unwrap()).await;
    stalls(&leases.slots("n", 2).stall_after(STALL).take().await.unwrap()).await;
    stalls(&candidate.campaign().await.unwrap()).await;
    let multi = leases.multi_lock(["m1", "m2"]).unwrap().stall_after(STALL).lock().await.unwrap();
    assert_eq!(timed(multi.lost()).await, (STALL, Loss::Stalled));
    let job = leases.once("j").stall_after(STALL).run(async |lease| {
        stalls(lease).await;
        Ok::<_, ()>(())
    });
    assert_eq!(lost(job.await), Loss::Stalled);
    // That of the builder counts for a handle without.
    let lease = leases.lock("plain").lock().await.unwrap();
    assert_eq!(timed(lease.lost()).await, (STALL * 3, Loss::Stalled));
}

#[tokio::test(start_paused = true)]
async fn waiter_that_a_hold_is_handed_off_to_has_its_own_stall() {
    let setup = Setup::new();
    let lease = setup.leases.lock("n").lock().await.unwrap();
    let leases = setup.leases.clone();
    let waiter = tokio::spawn(async move { leases.lock("n").stall_after(STALL).lock().await });
    settle().await;
    lease.unlock().await.unwrap();
    let next = waiter.await.unwrap().unwrap();
    assert_eq!(setup.calls(Call::Acquire), 1, "it was handed off");
    let (took, loss) = timed(next.lost()).await;
    assert!(loss == Loss::Stalled && took > STALL - MOMENT * 2 && took <= STALL, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn grace_that_is_long_makes_ensuring_renew_at_once() {
    let setup = Setup::with(LeaseManager::builder().grace(T / 3));
    let lease = setup.leases.lock("n").lock().await.unwrap();
    while lease.remaining() >= T / 2 {
        sleep(MOMENT * 10).await;
    }
    let calls = setup.calls(Call::Renew);
    let (took, result) = timed(lease.ensure_remaining(T / 2)).await;
    result.unwrap();
    assert!(took <= MOMENT * 2, "{took:?}");
    assert_eq!(setup.calls(Call::Renew), calls + 1);
}

#[tokio::test(start_paused = true)]
async fn grace_moves_the_token_and_not_the_deadline() {
    let grace = Duration::from_secs(8);
    let setup = Setup::with(LeaseManager::builder().grace(grace));
    let lease = setup.leases.lock("n").lock().await.unwrap();
    assert_eq!(lease.remaining(), D - grace);
    setup.faults.add(Rule::new(Fault::Fail(unavailable())).on(Call::Renew));
    let (took, loss) = timed(lease.lost()).await;
    assert_eq!((took, loss), (D - grace, Loss::Expired));
    for bad in [MOMENT * 9, T / 3 + MOMENT] {
        let error = LeaseManager::builder().grace(bad).build(MemoryStore::new()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
    let error = LeaseManager::builder().stall_after(MOMENT).build(MemoryStore::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

/// Waits for a job that is held elsewhere. So long before the end of the wait the key is released, so that it asks once more, and
/// meets this fault.
async fn waited_until_a_fault(wait: Duration, left: Duration, fault: Fault) -> Result<Outcome> {
    let setup = Setup::new();
    let theirs = setup.held_elsewhere("job").await;
    let job = job(&setup.leases).wait(wait);
    let mut waiter = Box::pin(job.run(async |_| Ok(7)));
    assert!(poll_once(waiter.as_mut()).await.is_pending());
    let release = async {
        sleep(wait - left).await;
        setup.faults.add(Rule::new(fault).on(Call::Acquire));
        theirs.unlock().await.unwrap();
    };
    tokio::join!(waiter, release).0
}

#[tokio::test(start_paused = true)]
async fn last_answer_lost_is_no_silence() {
    let (wait, left) = (Duration::from_secs(3), Duration::from_millis(20));
    let outcome = waited_until_a_fault(wait, left, Fault::Fail(unavailable())).await;
    assert!(matches!(outcome.expect("the store has answered"), Once::Running(_)));
}

#[tokio::test(start_paused = true)]
async fn last_request_that_hangs_for_an_attempt_is_silence() {
    let outcome = waited_until_a_fault(4 * ATTEMPT, ATTEMPT + MOMENT, Fault::Hang).await;
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Unavailable);
}
