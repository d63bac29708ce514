//! Steals, polite and not, forced releases with a reason, and what the old holder learns.

use super::cancel::{at_every_await, expect_free};
use super::*;
use leasehold::Act;
use leasehold::store::{HolderId, Name};
use leasehold::testing::{Fault, Rule};
use tokio::time::timeout;

const WHY: &str = "it hangs";

async fn steal(leases: &LeaseManager) -> Result<Option<Lease>> {
    leases.lock("n").steal(WHY).await
}

#[tokio::test(start_paused = true)]
async fn steal_from_another_manager_ends_the_lease_at_once() {
    let setup = Setup::new();
    let old = setup.held_elsewhere("n").await;
    settle().await;
    let new = steal(&setup.leases).await.unwrap().expect("nothing came between");
    let (took, loss) = timed(old.lost()).await;
    assert_eq!(loss, Loss::Stolen);
    assert!(took < Duration::from_millis(5), "{took:?}");
    assert!(old.fence() < new.fence());
    let note = old.note().await.unwrap().expect("a note");
    assert_eq!((note.act, &*note.why, note.fence_to_beat), (Act::Stolen, WHY, new.fence()));
    assert!(note.by.ends_with(&format!(":{}", std::process::id())), "{note:?}");
    assert_eq!(new.note().await.unwrap(), None);
    assert_eq!(lost(old.unlock().await), Loss::Stolen);
    new.check().unwrap();
    sleep(T).await;
    new.check().unwrap();
    new.unlock().await.unwrap();
    expect_free(&setup, "a steal").await;
}

#[tokio::test(start_paused = true)]
async fn steal_without_a_hint_is_found_by_the_next_renewal() {
    let setup = Setup::new();
    let leases = setup.other();
    let old = leases.lock("n").lock().await.unwrap();
    settle().await;
    // Another inbox of this manager takes the hints.
    let _inbox = leasehold::store::Store::inbox(&setup.memory, old.holder_id().manager());
    let new = steal(&setup.leases).await.unwrap().expect("nothing came between");
    let (took, loss) = timed(old.lost()).await;
    assert_eq!(loss, Loss::Stolen);
    assert!(took > Duration::from_secs(5) && took < T / 3 + MOMENT, "{took:?}");
    new.check().unwrap();
}

#[tokio::test(start_paused = true)]
async fn steal_from_the_own_manager_fires_the_token_first() {
    let setup = Setup::new();
    let mut lock = setup.leases.lock("n");
    let (outer, inner) = (lock.lock().await.unwrap(), lock.lock().await.unwrap());
    setup.faults.add(Rule::new(Fault::Delay(Duration::from_secs(1))).on(Call::Steal));
    let thief = setup.leases.clone();
    let stealing = tokio::spawn(async move { steal(&thief).await });
    settle().await;
    assert!(!stealing.is_finished());
    for lease in [&outer, &inner] {
        assert_eq!(lost(lease.check()), Loss::Stolen);
        assert!(lease.cancellation_token().is_cancelled());
    }
    let new = stealing.await.unwrap().unwrap().expect("nothing came between");
    assert!(outer.fence() < new.fence());
    assert_eq!(lost(lock.lock().await), Loss::Stolen);
    drop((outer, inner));
    sleep(GRACE + ATTEMPT).await;
    new.check().unwrap();
    assert_eq!(setup.calls(Call::Release), 0, "the old holder owes nothing");
    new.unlock().await.unwrap();
    expect_free(&setup, "a local steal").await;
}

#[tokio::test(start_paused = true)]
async fn steal_that_fails_owes_the_release_of_the_own_hold() {
    let setup = Setup::new();
    let old = setup.leases.lock("n").lock().await.unwrap();
    setup.faults.add(Rule::new(Fault::Fail(unavailable())).on(Call::Steal));
    assert_eq!(failed(steal(&setup.leases).await), ErrorKind::Unavailable);
    assert_eq!(lost(old.check()), Loss::Stolen);
    drop(old);
    setup.faults.heal();
    expect_free(&setup, "a failed steal").await;
}

#[tokio::test(start_paused = true)]
async fn steal_that_the_store_cannot_do_costs_no_lease() {
    let memory = MemoryStore::new();
    let (store, faults) = FaultyStore::new(memory);
    let can = leasehold::store::Capabilities::default().with_steals(false);
    let leases = LeaseManager::builder().build(store.with_capabilities(can)).unwrap();
    let old = leases.lock("n").lock().await.unwrap();
    assert_eq!(failed(steal(&leases).await), ErrorKind::Unsupported);
    old.check().unwrap();
    assert_eq!(faults.calls(Call::Steal), 0);
}

#[tokio::test(start_paused = true)]
async fn steal_with_a_bad_reason_or_by_the_holder_does_nothing() {
    let setup = Setup::new();
    let mut lock = setup.leases.lock("n");
    let lease = lock.lock().await.unwrap();
    assert_eq!(failed(lock.steal(WHY).await), ErrorKind::Invalid);
    assert_eq!(failed(lock.steal_after(T, WHY).await), ErrorKind::Invalid);
    let long = "x".repeat(1025);
    for why in ["", " ", &long] {
        assert_eq!(failed(setup.leases.lock("n").steal(why).await), ErrorKind::Invalid);
        assert_eq!(failed(setup.leases.lock("n").steal_after(T, why).await), ErrorKind::Invalid);
        assert_eq!(failed(setup.leases.force_unlock("n", why).await), ErrorKind::Invalid);
    }
    assert_eq!(failed(setup.leases.lock("").steal(WHY).await), ErrorKind::Invalid);
    lease.check().unwrap();
    for call in [Call::Inspect, Call::Steal, Call::Want, Call::ForceRelease] {
        assert_eq!(setup.calls(call), 0, "{call:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn steal_of_a_free_name_acquires_it() {
    let setup = Setup::new();
    let lease = steal(&setup.leases).await.unwrap().expect("it is free");
    assert_eq!(setup.calls(Call::Steal), 0);
    assert_eq!(lease.note().await.unwrap(), None);
    lease.unlock().await.unwrap();
    expect_free(&setup, "a steal of nothing").await;
}

#[tokio::test(start_paused = true)]
async fn steal_overtakes_local_waiters_which_go_on_waiting() {
    for local in [true, false] {
        let setup = Setup::new();
        let from = if local { setup.leases.clone() } else { setup.other() };
        let old = from.lock("n").lock().await.unwrap();
        let mut waiters = Vec::new();
        for _ in 0..3 {
            let mut lock = setup.leases.lock("n");
            waiters.push(tokio::spawn(async move { lock.lock().await }));
            settle().await;
        }
        let new = steal(&setup.leases).await.unwrap().expect("nothing came between");
        sleep(Duration::from_secs(5)).await;
        assert!(waiters.iter().all(|waiter| !waiter.is_finished()));
        new.check().unwrap();
        new.unlock().await.unwrap();
        for waiter in waiters {
            let lease = timeout(T, waiter).await.expect("in time").unwrap().unwrap();
            assert!(lease.fence() > old.fence());
            lease.unlock().await.unwrap();
        }
        drop(old);
        expect_free(&setup, "waiters").await;
    }
}

/// The copy runs while the old holder is still there, after the thief has given up.
#[tokio::test(start_paused = true)]
async fn steal_that_runs_late_is_released() {
    let setup = Setup::new();
    let old = setup.held_elsewhere("n").await;
    setup.faults.add(Rule::new(Fault::RunLate).on(Call::Steal).times(1));
    assert_eq!(failed(steal(&setup.leases).await), ErrorKind::Unavailable);
    old.check().unwrap();
    setup.faults.heal();
    settle().await;
    assert_eq!(old.lost().await, Loss::Stolen);
    sleep(T / 10).await;
    expect_free(&setup, "a late steal").await;
}

#[tokio::test(start_paused = true)]
async fn steal_that_runs_late_takes_nothing_from_the_next_holder() {
    let setup = Setup::new();
    let old = setup.held_elsewhere("n").await;
    setup.faults.add(Rule::new(Fault::RunLate).on(Call::Steal).times(1));
    assert_eq!(failed(steal(&setup.leases).await), ErrorKind::Unavailable);
    old.unlock().await.unwrap();
    let next = setup.held_elsewhere("n").await;
    setup.faults.heal();
    sleep(T).await;
    next.check().unwrap();
}

#[tokio::test(start_paused = true)]
async fn steal_whose_reply_is_lost_leaves_nothing_behind() {
    let setup = Setup::new();
    let old = setup.held_elsewhere("n").await;
    setup.faults.add(Rule::new(Fault::LoseReply).on(Call::Steal).times(1));
    assert_eq!(failed(steal(&setup.leases).await), ErrorKind::Unavailable);
    assert_eq!(old.lost().await, Loss::Stolen);
    expect_free(&setup, "a lost reply").await;
}

#[tokio::test(start_paused = true)]
async fn steal_takes_from_the_holder_that_was_seen_only() {
    let setup = Setup::new();
    let old = setup.held_elsewhere("n").await;
    setup.faults.add(Rule::new(Fault::Hang).on(Call::Steal).times(1));
    let thief = setup.leases.clone();
    let stealing = tokio::spawn(async move { steal(&thief).await });
    settle().await;
    old.unlock().await.unwrap();
    let next = setup.held_elsewhere("n").await;
    setup.faults.heal();
    assert!(stealing.await.unwrap().unwrap().is_none());
    sleep(T).await;
    next.check().unwrap();
}

#[tokio::test(start_paused = true)]
async fn steal_of_a_name_that_becomes_free_meanwhile_acquires_it() {
    let setup = Setup::new();
    let old = setup.held_elsewhere("n").await;
    setup.faults.add(Rule::new(Fault::Hang).on(Call::Steal).times(1));
    let thief = setup.leases.clone();
    let stealing = tokio::spawn(async move { steal(&thief).await });
    settle().await;
    old.unlock().await.unwrap();
    setup.faults.heal();
    let new = stealing.await.unwrap().unwrap().expect("it is free");
    new.unlock().await.unwrap();
    expect_free(&setup, "a steal of what became free").await;
}

#[tokio::test(start_paused = true)]
async fn steal_while_the_own_release_is_in_flight_holds_on() {
    for fault in [Fault::Hang, Fault::HoldReply] {
        let setup = Setup::new();
        let old = setup.leases.lock("n").lock().await.unwrap();
        setup.faults.add(Rule::new(fault.clone()).on(Call::Release).times(1));
        let releasing = tokio::spawn(async move { old.unlock().await });
        settle().await;
        let new = steal(&setup.leases).await.unwrap().expect("nothing came between");
        setup.faults.heal();
        let _ = releasing.await.unwrap();
        sleep(T).await;
        new.check().unwrap();
        assert_eq!(setup.recorded("n").await, Some(1), "{fault:?}");
        new.unlock().await.unwrap();
        expect_free(&setup, "a release in flight").await;
    }
}

#[tokio::test(start_paused = true)]
async fn steal_from_a_hold_that_is_handed_off_takes_it_from_the_next() {
    let setup = Setup::new();
    let old = setup.leases.lock("n").lock().await.unwrap();
    let mut lock = setup.leases.lock("n");
    let mut next = Box::pin(lock.lock());
    assert!(poll_once(next.as_mut()).await.is_pending());
    // Handed off, and not accepted yet.
    old.unlock().await.unwrap();
    let new = steal(&setup.leases).await.unwrap().expect("nothing came between");
    assert!(timeout(Duration::from_secs(5), next.as_mut()).await.is_err(), "it waits again");
    new.check().unwrap();
    new.unlock().await.unwrap();
    let lease = timeout(T, next).await.expect("in time").unwrap();
    lease.check().unwrap();
    lease.unlock().await.unwrap();
    expect_free(&setup, "a hand-off").await;
}

#[tokio::test(start_paused = true)]
async fn two_thieves_leave_one_holder() {
    for apart in [true, false] {
        let setup = Setup::new();
        let old = setup.held_elsewhere("n").await;
        setup.faults.add(Rule::new(Fault::Delay(MOMENT)).on(Call::Steal));
        let (one, other) = (&setup.leases, setup.other());
        let other = if apart { &other } else { one };
        let (first, second) = tokio::join!(steal(one), steal(other));
        let stolen: Vec<Lease> = [first, second].into_iter().filter_map(|s| s.unwrap()).collect();
        sleep(T).await;
        let held = stolen.iter().filter(|lease| lease.check().is_ok()).count();
        assert_eq!((held, lost(old.check())), (1, Loss::Stolen), "{}", stolen.len());
        drop(stolen);
        expect_free(&setup, "two thieves").await;
    }
}

/// The store has granted the name to a flow of the same manager, which does not know it yet.
#[tokio::test(start_paused = true)]
async fn grant_that_is_stolen_on_its_way_is_no_lease() {
    for is_lock in [true, false] {
        let setup = Setup::new();
        let _old = if is_lock { None } else { Some(setup.held_elsewhere("n").await) };
        let call = if is_lock { Call::Acquire } else { Call::Steal };
        setup.faults.add(Rule::new(Fault::HoldReply).on(call).times(1));
        let leases = setup.leases.clone();
        let first = tokio::spawn(async move {
            match is_lock {
                true => leases.lock("n").lock().await.map(Some),
                false => steal(&leases).await,
            }
        });
        settle().await;
        let second = steal(&setup.leases).await.unwrap().expect("nothing came between");
        second.unlock().await.unwrap();
        let contender = setup.held_elsewhere("n").await;
        setup.faults.heal();
        sleep(MOMENT).await;
        assert_eq!(first.is_finished(), !is_lock, "a lock waits again");
        contender.check().unwrap();
        contender.unlock().await.unwrap();
        let first = first.await.unwrap().unwrap();
        assert_eq!(first.is_some(), is_lock);
        if let Some(lease) = first {
            lease.unlock().await.unwrap();
        }
        expect_free(&setup, "a stolen grant").await;
    }
}

#[tokio::test(start_paused = true)]
async fn grant_taken_elsewhere_on_its_way_is_verified_at_once() {
    for by_force in [true, false] {
        let setup = Setup::new();
        setup.faults.add(Rule::new(Fault::HoldReply).on(Call::Acquire).times(1));
        let leases = setup.leases.clone();
        let first = tokio::spawn(async move { leases.lock("n").lock().await });
        settle().await;
        let other = setup.other();
        let contender = if by_force {
            assert!(other.force_unlock("n", WHY).await.unwrap());
            other.lock("n").lock().await.unwrap()
        } else {
            steal(&other).await.unwrap().expect("nothing came between")
        };
        sleep(MOMENT).await;
        setup.faults.heal();
        let (took, loss) = timed(first.await.unwrap().unwrap().lost()).await;
        assert_ne!(loss, Loss::Expired);
        assert!(took < Duration::from_millis(5), "by force: {by_force}: {took:?}");
        contender.unlock().await.unwrap();
        expect_free(&setup, "a grant that was taken").await;
    }
}

#[tokio::test(start_paused = true)]
async fn stolen_lease_can_be_stolen_again() {
    let (setup, mut leases) = (Setup::new(), Vec::new());
    let others = [setup.other(), setup.other()];
    let mut fence = None;
    for round in 0..6 {
        let lease = steal(&others[round % 2]).await.unwrap().expect("nothing came between");
        assert!(lease.fence() > fence);
        fence = lease.fence();
        leases.push(lease);
        settle().await;
    }
    let last = leases.pop().unwrap();
    last.check().unwrap();
    assert!(leases.iter().all(|lease| lost(lease.check()) == Loss::Stolen));
}

#[tokio::test(start_paused = true)]
async fn close_ends_a_steal() {
    for fault in [Fault::Hang, Fault::HoldReply, Fault::Delay(MOMENT)] {
        for call in [Call::Inspect, Call::Steal] {
            let setup = Setup::new();
            let old = setup.held_elsewhere("n").await;
            setup.faults.add(Rule::new(fault.clone()).on(call));
            let thief = setup.leases.clone();
            let stealing = tokio::spawn(async move { steal(&thief).await });
            settle().await;
            let closing = setup.leases.clone();
            let closing = tokio::spawn(async move { closing.close().await });
            settle().await;
            setup.faults.heal();
            match stealing.await.unwrap() {
                Err(error) => assert_eq!(error.kind(), ErrorKind::Closed),
                Ok(lease) => assert_eq!(lost(lease.expect("a lease").check()), Loss::Closed),
            }
            let _ = closing.await.unwrap();
            drop(old);
            sleep(GRACE).await;
            let entered = setup.other().lock("n").lock_timeout(T).await.unwrap();
            entered.expect("nothing is left").unlock().await.unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn steal_dropped_at_any_await_leaves_nothing() {
    for elsewhere in [true, false] {
        at_every_await(async |setup, cut| {
            let old = match elsewhere {
                true => setup.held_elsewhere("n").await,
                // The weather may have lost its first reply.
                false => match setup.leases.lock("n").lock().await {
                    Ok(old) => old,
                    Err(_) => return cut.polls > 50,
                },
            };
            let faster = match cut.run(steal(&setup.leases)).await {
                None => false,
                Some(result) => {
                    drop(result);
                    true
                }
            };
            drop(old);
            faster
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn steal_after_gets_what_a_polite_holder_releases() {
    for local in [true, false] {
        let setup = Setup::new();
        let from = if local { setup.leases.clone() } else { setup.other() };
        let old = from.lock("n").lock().await.unwrap();
        settle().await;
        let polite = tokio::spawn(async move {
            old.wanted().await;
            let note = old.note().await.unwrap().expect("a note");
            assert_eq!((note.act, &*note.why), (Act::Wanted, WHY));
            // Who asks late hears of it, too.
            old.wanted().await;
            sleep(Duration::from_secs(1)).await;
            old.unlock().await.unwrap();
        });
        let mut lock = setup.leases.lock("n");
        let (took, lease) = timed(lock.steal_after(Duration::from_secs(10), WHY)).await;
        let lease = lease.unwrap().expect("it was released");
        assert!(took >= Duration::from_secs(1) && took < Duration::from_secs(3), "{took:?}");
        assert_eq!(setup.calls(Call::Steal), 0);
        polite.await.unwrap();
        lease.unlock().await.unwrap();
        expect_free(&setup, "a polite steal").await;
    }
}

#[tokio::test(start_paused = true)]
async fn steal_after_takes_from_a_deaf_holder_when_its_patience_ends() {
    let setup = Setup::new();
    let old = setup.held_elsewhere("n").await;
    let mut lock = setup.leases.lock("n");
    let patience = Duration::from_secs(10);
    let stealing = tokio::spawn(async move { lock.steal_after(patience, WHY).await });
    sleep(patience - MOMENT).await;
    old.check().unwrap();
    let new = stealing.await.unwrap().unwrap().expect("nothing came between");
    assert_eq!(old.lost().await, Loss::Stolen);
    new.unlock().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn steal_after_takes_nothing_from_a_holder_not_reached() {
    let setup = Setup::new();
    let old = setup.held_elsewhere("n").await;
    let mut lock = setup.leases.lock("n");
    setup.faults.add(Rule::new(Fault::Hang).on(Call::Acquire));
    let patience = Duration::from_secs(2);
    let stealing = tokio::spawn(async move { lock.steal_after(patience, WHY).await });
    settle().await;
    old.unlock().await.unwrap();
    let next = setup.held_elsewhere("n").await;
    setup.faults.heal();
    assert!(stealing.await.unwrap().unwrap().is_none());
    sleep(T).await;
    next.check().unwrap();
}

#[tokio::test(start_paused = true)]
async fn steal_after_dropped_while_it_waits_takes_nothing() {
    let setup = Setup::new();
    let old = setup.held_elsewhere("n").await;
    let mut lock = setup.leases.lock("n");
    assert!(timeout(T / 2, lock.steal_after(T, WHY)).await.is_err());
    sleep(T).await;
    old.check().unwrap();
}

#[tokio::test(start_paused = true)]
async fn forced_release_elsewhere_ends_the_lease_with_its_reason() {
    let setup = Setup::new();
    let old = setup.held_elsewhere("n").await;
    settle().await;
    assert!(setup.leases.force_unlock("n", WHY).await.unwrap());
    let (took, loss) = timed(old.lost()).await;
    assert_eq!(loss, Loss::Revoked);
    assert!(took < Duration::from_millis(5), "{took:?}");
    let note = old.note().await.unwrap().expect("a note");
    assert_eq!((note.act, &*note.why, note.fence_to_beat), (Act::Forced, WHY, None));
    assert_eq!(note.to_string(), format!("forced open by {}: {WHY}", note.by));
    expect_free(&setup, "a forced release").await;
}

#[tokio::test(start_paused = true)]
async fn hint_without_an_act_costs_no_lease() {
    let setup = Setup::new();
    let leases = setup.other();
    let lease = leases.lock("n").lock().await.unwrap();
    settle().await;
    let store = &setup.memory;
    let from = HolderId::new(lease.holder_id().manager(), 999);
    // Neither of these holds the name, so nobody is told.
    let target = leasehold::store::Target::exclusive(Name::new("n").unwrap());
    let reason = leasehold::store::Reason::new("a", "b").unwrap();
    let want = leasehold::store::Want::new(target, from.to_string(), reason, T);
    assert!(!leasehold::store::Store::want(store, want).await.unwrap());
    let wanted = timeout(T, lease.wanted()).await;
    assert!(wanted.is_err());
    lease.check().unwrap();
}

/// A wanted hold is released in the store: a waiter of its own process, which nothing asked to go, would have its holder id.
#[tokio::test(start_paused = true)]
async fn wanted_hold_is_not_handed_off() {
    let setup = Setup::new();
    let old = setup.leases.lock("n").lock().await.unwrap();
    let mut lock = setup.leases.lock("n");
    let next = tokio::spawn(async move { lock.lock().await });
    settle().await;
    let other = setup.other();
    let stealing = tokio::spawn(async move { other.lock("n").steal_after(T, WHY).await });
    timeout(T, old.wanted()).await.expect("it is told");
    let holder = old.holder_id();
    old.unlock().await.unwrap();
    settle().await;
    assert!(setup.calls(Call::Release) > 0);
    sleep(T / 10).await;
    // Whichever is first, none takes it from the other.
    if next.is_finished() {
        let next = next.await.unwrap().unwrap();
        assert_ne!(next.holder_id(), holder);
        assert!(timeout(T * 2, stealing).await.expect("in time").unwrap().unwrap().is_none());
        next.check().unwrap();
    } else {
        drop(stealing.await.unwrap().unwrap().expect("it was released"));
        next.await.unwrap().unwrap().check().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn steal_with_options_out_of_range_is_invalid() {
    let setup = Setup::new();
    let lease = setup.leases.lock("other").lock().await.unwrap();
    let old = setup.held_elsewhere("n").await;
    let lock = || setup.leases.lock("n");
    for mut lock in [lock().lock_delay(Duration::MAX), lock().min_hold(Duration::MAX)] {
        assert_eq!(failed(lock.steal(WHY).await), ErrorKind::Invalid);
    }
    sleep(T * 2).await;
    lease.check().unwrap();
    old.check().unwrap();
}

#[tokio::test(start_paused = true)]
async fn stolen_lease_has_its_lock_delay_at_once() {
    let setup = Setup::new();
    let _old = setup.held_elsewhere("n").await;
    let delay = Duration::from_secs(20);
    let new = setup.leases.lock("n").lock_delay(delay).steal(WHY).await.unwrap();
    let holding = setup.leases.inspect("n").await.unwrap().expect("held");
    assert!(holding.remaining > Some(T + delay - MOMENT * 5), "{:?}", holding.remaining);
    drop(new);
}

/// The hold was forced open and the name taken elsewhere, and the hint is lost.
#[tokio::test(start_paused = true)]
async fn steal_beside_a_stale_hold_of_the_own_manager_is_kept() {
    let setup = Setup::new();
    let stale = setup.leases.lock("n").lock().await.unwrap();
    settle().await;
    let _inbox = leasehold::store::Store::inbox(&setup.memory, stale.holder_id().manager());
    assert!(setup.other().force_unlock("n", WHY).await.unwrap());
    let elsewhere = setup.held_elsewhere("n").await;
    stale.check().unwrap();
    let new = steal(&setup.leases).await.unwrap().expect("nothing came between");
    assert!(stale.check().is_err());
    assert_eq!(elsewhere.lost().await, Loss::Stolen);
    drop(stale);
    sleep(T).await;
    new.check().unwrap();
    new.unlock().await.unwrap();
    expect_free(&setup, "a steal beside a stale hold").await;
}

#[tokio::test(start_paused = true)]
async fn wish_about_a_name_that_cannot_be_looked_at_ends_in_time() {
    let setup = Setup::new();
    setup.faults.add(Rule::new(Fault::Hang).on(Call::Inspect));
    let mut lock = setup.leases.lock("n");
    let asked = timeout(T, lock.steal_after(MOMENT, WHY)).await.expect("in time");
    assert_eq!(failed(asked), ErrorKind::Unavailable);
}
