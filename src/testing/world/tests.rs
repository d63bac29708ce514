use super::judge::Breach;
use super::seeds::{Failure, Played, Seeds};
use super::{Strike, World};
use crate::error::{Loss, Result};
use crate::manager::LeaseManager;
use crate::util::sync::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::sleep;

pub(super) const TTL: Duration = Duration::from_secs(30);
pub(super) const SECOND: Duration = Duration::from_secs(1);

pub(super) fn by_hand<T: Future<Output = Result<()>>>(test: impl Fn(World) -> T) {
    World::by_hand().managers(2).run(test).unwrap();
}

pub(super) fn breach_of<T: Future<Output = Result<()>>>(test: impl Fn(World) -> T) -> Failure {
    World::by_hand().managers(2).run(test).unwrap_err()
}

// The faults.

#[test]
fn cut_manager_loses_its_leases_and_heals() {
    by_hand(|world| async move {
        let there = world.manager(0);
        let lease = there.lock("n").lock().await?;
        world.cut(0);
        let next = world.manager(1).lock("n").lock().await?;
        assert_eq!(lease.check().unwrap_err().loss(), Some(Loss::Expired));
        assert!((TTL..TTL + 2 * SECOND).contains(&world.now()), "{:?}", world.now());
        next.unlock().await?;
        drop(lease);
        assert!(there.lock("n").try_lock().await.is_err(), "it is cut off still");
        world.heal(0);
        assert!(there.lock("n").lock().await?.check().is_ok());
        Ok(())
    });
}

#[test]
fn cut_that_heals_in_time_costs_no_lease() {
    by_hand(|world| async move {
        let lease = world.manager(0).lock("n").lock().await?;
        world.cut(0);
        sleep(TTL / 2).await;
        world.heal(0);
        sleep(10 * TTL).await;
        lease.check()
    });
}

#[test]
fn frozen_process_stands_still_and_others_go_on() {
    by_hand(|world| async move {
        let ticks = |manager| {
            let count = Arc::new(AtomicU64::new(0));
            let counts = Arc::clone(&count);
            let _ticking = world.spawn(manager, async move {
                loop {
                    sleep(SECOND).await;
                    counts.fetch_add(1, Ordering::Relaxed);
                }
            });
            count
        };
        let counts = [ticks(0), ticks(1)];
        let lease = world.manager(0).lock("n").lock().await?;
        world.freeze(0, 2 * TTL);
        world.freeze(0, TTL); // is over before the first one
        sleep(2 * TTL - SECOND / 2).await;
        assert_eq!(counts.each_ref().map(|count| count.load(Ordering::Relaxed)), [0, 59]);
        assert_eq!(lease.check().unwrap_err().loss(), Some(Loss::Expired));
        sleep(10 * SECOND).await;
        // The first poll of that task is after the thaw.
        assert_eq!(counts.each_ref().map(|count| count.load(Ordering::Relaxed)), [9, 69]);
        drop(lease);
        world.manager(0).lock("n").lock().await?.unlock().await
    });
}

#[test]
fn thaw_does_not_heal_a_cut_and_heal_does_not_thaw() {
    by_hand(|world| async move {
        let there = world.manager(0);
        world.cut(0);
        world.freeze(0, SECOND);
        sleep(2 * SECOND).await;
        assert!(there.lock("n").try_lock().await.is_err(), "cut");
        world.freeze(0, 4 * TTL);
        world.heal(0);
        assert!(there.lock("n").try_lock().await.is_err(), "frozen");
        sleep(4 * TTL).await;
        assert!(there.lock("n").try_lock().await?.is_some());
        Ok(())
    });
}

#[test]
fn delay_makes_each_request_late_until_it_is_healed() {
    by_hand(|world| async move {
        let mut lock = world.manager(0).lock("n");
        world.delay(0, SECOND);
        lock.lock().await?.unlock().await?;
        assert_eq!(world.now(), 2 * SECOND, "of the lock and of the unlock");
        world.heal(0);
        lock.lock().await?.unlock().await?;
        assert_eq!(world.now(), 2 * SECOND);
        Ok(())
    });
}

#[test]
fn expired_name_is_gone_or_taken() {
    by_hand(|world| async move {
        assert!(!world.expire("n"), "it is not held");
        let lease = world.manager(0).lock("n").lock().await?;
        assert!(world.expire("n"));
        assert_eq!(lease.lost().await, Loss::Gone);
        drop(lease);
        let lease = world.manager(0).lock("n").lock().await?;
        assert!(world.expire("n"));
        let _next = world.manager(1).lock("n").lock().await?;
        assert_eq!(lease.lost().await, Loss::Taken);
        Ok(())
    });
}

#[test]
fn stolen_name_goes_to_the_next_waiter() {
    by_hand(|world| async move {
        assert!(!world.steal("n"), "it is not held");
        let lease = world.manager(0).lock("n").lock().await?;
        let other = world.manager(1);
        let next = world.spawn(1, async move { other.lock("n").lock().await });
        sleep(SECOND).await;
        assert!(world.steal("n"));
        assert_eq!(lease.lost().await, Loss::Stolen);
        let next = next.await.expect("no panic")?;
        assert_eq!(world.now(), SECOND);
        assert!(next.fence() > lease.fence());
        let _reader = world.manager(0).rw_lock("shared").read().await?;
        assert!(!world.steal("shared"));
        next.check()
    });
}

#[test]
fn flushed_store_has_forgotten_all_names() {
    by_hand(|world| async move {
        let one = world.manager(0).lock("one").lock().await?;
        let two = world.manager(1).rw_lock("two").read().await?;
        world.flush();
        assert_eq!(one.lost().await, Loss::Gone);
        assert_eq!(two.lost().await, Loss::Gone);
        Ok(())
    });
}

#[test]
fn failover_forgets_the_last_grants_alone() {
    by_hand(|world| async move {
        let old = world.manager(0).lock("old").lock().await?;
        sleep(TTL).await;
        let young = world.manager(1).lock("young").lock().await?;
        sleep(SECOND / 2).await;
        assert_eq!(world.forget_last_grants(SECOND), 1);
        assert_eq!(young.lost().await, Loss::Gone);
        sleep(TTL).await;
        assert_eq!(world.forget_last_grants(SECOND), 0);
        old.check()
    });
}

#[test]
fn lease_is_lost_on_request_with_its_cause() {
    by_hand(|world| async move {
        assert!(!world.lose("n", Loss::MaxHold));
        let lease = world.manager(1).lock("n").lock().await?;
        assert!(world.lose("n", Loss::MaxHold));
        assert_eq!(lease.check().unwrap_err().loss(), Some(Loss::MaxHold));
        Ok(())
    });
}

// The rules.

#[test]
fn work_must_stop_in_the_grace_after_a_loss() {
    let works_for = |time: Duration| {
        World::by_hand().run(move |world| async move {
            let lease = world.manager(0).lock("n").lock().await?;
            let work = world.enter("n", lease.fence());
            sleep(SECOND).await;
            world.lose("n", Loss::Expired);
            sleep(time).await;
            drop(work);
            sleep(TTL).await;
            Ok(())
        })
    };
    works_for(SECOND * 2).unwrap();
    let failure = works_for(SECOND * 2 + SECOND / 2).unwrap_err();
    assert_eq!(failure.breach(), Breach::AfterLoss);
    assert_eq!(failure.seed(), None);
    let text = failure.to_string();
    let seen = "manager 0 still works on \"n\", token 1 at 3.001 s; its lease was lost at 1.000 s";
    for part in [
        "the rule is broken: no work after a loss",
        seen,
        "lease.run(..)",
        "ends the leases of \"n\"",
        "     0.000 s  manager 0   gets \"n\", token 1\n",
        "     3.001 s  judge ",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    assert!(!text.contains("A second run"), "{text}");
}

#[test]
fn frozen_work_has_the_grace_after_the_thaw() {
    let works_for = |time: Duration| {
        World::by_hand().run(move |world| async move {
            let lease = world.manager(0).lock("n").lock().await?;
            let here = world.clone();
            let work = world.spawn(0, async move {
                let _work = here.enter("n", lease.fence());
                sleep(time).await;
                lease
            });
            sleep(SECOND).await;
            world.freeze(0, 3 * TTL);
            let next = world.manager(1).lock("n").lock().await?;
            let _work = world.enter("n", next.fence());
            let _lease = work.await.expect("no panic");
            Ok(())
        })
    };
    works_for(3 * TTL + 2 * SECOND).unwrap();
    assert_eq!(works_for(3 * TTL + 4 * SECOND).unwrap_err().breach(), Breach::AfterLoss);
}

#[test]
fn work_without_its_lease_is_found() {
    let dropped = breach_of(|world| async move {
        let fence = world.manager(0).lock("n").lock().await?.fence();
        drop(world.enter("n", fence));
        Ok(())
    });
    let released = breach_of(|world| async move {
        let lease = world.manager(0).lock("n").lock().await?;
        let _work = world.enter("n", lease.fence());
        sleep(SECOND).await;
        lease.unlock().await?;
        sleep(SECOND).await;
        Ok(())
    });
    let of_another = breach_of(|world| async move {
        let lease = world.manager(0).lock("other").lock().await?;
        let _work = world.enter("n", lease.fence());
        sleep(SECOND).await;
        Ok(())
    });
    let no_token = breach_of(|world| async move {
        drop(world.enter("n", None));
        Ok(())
    });
    let long_lost = breach_of(|world| async move {
        let lease = world.manager(0).lock("n").lock().await?;
        world.cut(0);
        let _next = world.manager(1).lock("n").lock().await?;
        sleep(TTL).await;
        let _work = world.enter("n", lease.fence());
        sleep(SECOND).await;
        Ok(())
    });
    let texts = [
        (dropped, Breach::WithoutLease, "its lease was released at"),
        (released, Breach::WithoutLease, "at 1.000 s, when its lease is released"),
        (of_another, Breach::WithoutLease, "that token is one of \"other\""),
        (no_token, Breach::WithoutLease, "turn fencing on"),
        (long_lost, Breach::AfterLoss, "its lease was lost at 27."),
    ];
    for (failure, breach, part) in texts {
        assert_eq!(failure.breach(), breach, "{failure}");
        assert!(failure.to_string().contains(part), "{part} is not in\n{failure}");
    }
}

#[test]
fn work_ends_before_its_lease_in_one_step() {
    by_hand(|world| async move {
        let lease = world.manager(0).lock("n").lock().await?;
        let work = world.enter("n", lease.fence());
        sleep(SECOND).await;
        drop(lease);
        drop(work); // in the wrong order, and at the same instant: nothing can come between
        sleep(SECOND).await;
        Ok(())
    });
}

#[test]
fn store_that_forgets_without_a_fault_breaks_the_promise() {
    let failure = breach_of(|world| async move {
        let lease = world.manager(0).lock("n").lock().await?;
        let _work = world.enter("n", lease.fence());
        world.0.store.delete("n"); // no fault of the world
        let next = world.manager(1).lock("n").lock().await?;
        let _more = world.enter("n", next.fence());
        sleep(SECOND).await;
        Ok(())
    });
    assert_eq!(failure.breach(), Breach::Overlap);
    assert!(failure.to_string().contains("managers 0 and 1 work at once"), "{failure}");
}

#[test]
fn overlap_after_a_fault_is_no_breach() {
    by_hand(|world| async move {
        let lease = world.manager(0).lock("n").lock().await?;
        let work = world.enter("n", lease.fence());
        world.expire("n");
        let next = world.manager(1).lock("n").lock().await?;
        let _more = world.enter("n", next.fence());
        lease.lost().await;
        drop(work);
        sleep(TTL).await;
        Ok(())
    });
}

/// The hold that is handed off was granted before the store forgot it.
#[test]
fn overlap_with_a_hold_that_was_handed_off_is_no_breach() {
    by_hand(|world| async move {
        let here = world.manager(0);
        let lease = here.lock("n").lock().await?;
        let next = world.spawn(0, async move { here.lock("n").lock().await });
        sleep(SECOND / 10).await;
        world.flush();
        sleep(SECOND / 10).await;
        drop(lease);
        let next = next.await.expect("no panic")?;
        let _work = world.enter("n", next.fence());
        let other = world.manager(1).lock("n").lock().await?;
        let _more = world.enter("n", other.fence());
        sleep(SECOND).await;
        Ok(())
    });
}

#[test]
fn panics_errors_and_hangs_end_the_world() {
    let in_test = breach_of(|_| async { panic!("in the test") });
    let in_process = breach_of(|world| async move {
        let _task = world.spawn(1, async { panic!("in a process") });
        std::future::pending().await
    });
    let error = breach_of(|world| async move {
        let _lease = world.manager(0).lock("").lock().await?;
        Ok(())
    });
    let hangs = breach_of(|world| async move {
        let held = world.manager(0).lock("n").lock().await?;
        let _lease = world.manager(1).lock("n").lock().await?;
        drop(held);
        Ok(())
    });
    let found = [
        (in_test, Breach::Panic, "panicked: in the test"),
        (in_process, Breach::Panic, "manager 1: panicked: in a process"),
        (error, Breach::Error, "invalid"),
        (hangs, Breach::Unfinished, "not finished after 3600.000 s"),
    ];
    for (failure, breach, part) in found {
        assert_eq!(failure.breach(), breach, "{failure}");
        assert!(failure.to_string().contains(part), "{part} is not in\n{failure}");
    }
}

#[test]
fn error_of_a_handler_is_a_line_of_the_story() {
    let failure = breach_of(|world| async move {
        let handler = |leases: LeaseManager| async move {
            let _lease = leases.lock("").lock().await?;
            Ok(())
        };
        world.in_each_process(handler).await;
        panic!("to see the story")
    });
    assert!(failure.to_string().contains("manager 1   has ended with an error: invalid"));
}

// The seeds.

/// A resource that refuses a token which is smaller than one that it has seen; readers only read.
#[derive(Clone)]
struct Resource {
    world: World,
    seen: Arc<Mutex<BTreeMap<String, u64>>>,
}

impl Resource {
    fn new(world: &World) -> Self {
        Self { world: world.clone(), seen: Arc::default() }
    }

    fn write(&self, name: &str, fence: u64) {
        let mut all = self.seen.lock();
        let seen = all.entry(name.to_owned()).or_default();
        if *seen <= fence {
            *seen = fence;
            self.world.write(name, fence);
        }
    }

    async fn work(&self, lease: &crate::Lease, step: Duration) {
        let fence = lease.fence().unwrap();
        let _work = self.world.enter(lease.name(), fence);
        for _ in 0..5 {
            sleep(step).await;
            self.write(lease.name(), fence);
        }
    }

    async fn read(&self, lease: &crate::Lease) {
        let _work = self.world.enter(lease.name(), lease.fence());
        sleep(SECOND * 7).await;
    }
}

/// A handler of all modes that have tokens, which does all that it must.
async fn right(leases: LeaseManager, resource: Resource) -> Result<()> {
    let waits = 20 * TTL;
    // What is held for a short time is handed off.
    for step in [SECOND * 3, SECOND / 10, SECOND] {
        if let Some(lease) = leases.lock("plain").lock_timeout(waits).await? {
            let _lost = lease.run(resource.work(&lease, step)).await;
        }
        if let Some(lease) = leases.fair_lock("fair").lock_timeout(waits).await? {
            let _lost = lease.run(resource.work(&lease, step)).await;
            let _lost = lease.unlock().await;
        }
        let mut shared = leases.rw_lock("shared");
        if let Some(lease) = shared.read_timeout(waits).await? {
            let _lost = lease.run(resource.read(&lease)).await;
        }
        if let Some(lease) = shared.write_timeout(waits).await? {
            let _lost = lease.run(resource.work(&lease, step)).await;
        }
    }
    Ok(())
}

/// Two tasks in each process, so that leases are handed off and readers share a hold.
async fn rightly(world: World) -> Result<()> {
    let resource = Resource::new(&world);
    let twice = |leases: LeaseManager| {
        let resource = resource.clone();
        async move {
            let one = right(leases.clone(), resource.clone());
            let two = right(leases, resource);
            let ends = tokio::join!(one, two);
            ends.0.and(ends.1)
        }
    };
    world.in_each_process(twice).await;
    Ok(())
}

#[test]
fn right_handler_breaks_no_rule_in_200_seeds() {
    let worlds = World::seeds([]).managers(3);
    let mut never = vec![
        "cuts manager".to_owned(),
        "heals the network of manager".to_owned(),
        "freezes manager".to_owned(),
        "lets manager".to_owned(),
        "delays the requests of manager".to_owned(),
        "deletes \"".to_owned(),
        "steals \"".to_owned(),
        "flushes the store".to_owned(),
        "the store forgets \"".to_owned(),
        "from here on nothing goes wrong".to_owned(),
        "hands \"".to_owned(),
        "may lose \"".to_owned(),
        "a fault did that".to_owned(),
    ];
    let losses = [Loss::Expired, Loss::Gone, Loss::Taken, Loss::Stolen];
    never.extend(losses.iter().map(Loss::to_string));
    for seed in 0..200 {
        let Played { verdict, story, .. } = worlds.play(seed, &rightly);
        assert!(verdict.is_none(), "seed {seed}: {verdict:?}\n{story}");
        let lines = story.all_lines();
        never.retain(|part| !lines.contains(part));
    }
    assert!(never.is_empty(), "{never:?} never happened");
}

#[test]
fn same_seed_makes_the_same_story_each_time() {
    let worlds = World::seeds([]).managers(3);
    let mut before = None;
    for seed in 1000..1015 {
        let first = worlds.play(seed, &rightly).story;
        let second = worlds.play(seed, &rightly).story;
        assert_eq!(first.first_difference(&second), None, "seed {seed}");
        assert_ne!(before.as_ref(), Some(&first), "seed {seed}");
        before = Some(first);
    }
}

#[test]
fn seeds_strike_only_with_what_is_allowed() {
    let worlds = World::seeds([]).managers(2).only([Strike::Freeze]);
    let story = worlds.play(3, &rightly).story.all_lines();
    assert!(story.contains("freezes manager"));
    for part in ["cuts", "delays", "deletes", "steals", "flushes", "fails over,"] {
        assert!(!story.contains(&format!("  {part} ")), "{story}");
    }
}

#[test]
fn code_that_the_seed_does_not_decide_is_reported() {
    let runs = AtomicU64::new(0);
    let failure = breach_of(|world| {
        let run = runs.fetch_add(1, Ordering::Relaxed);
        async move {
            world.note(format!("run {run}"));
            panic!("to see the story")
        }
    });
    let text = failure.to_string();
    assert!(text.contains("A second run of the same seed was another story"), "{text}");
    assert!(text.contains("run 0\n  and then\n") && text.contains("run 1"), "{text}");
}

/// The resource does not look at tokens, and is written to by a process that was frozen meanwhile.
#[test]
fn seeds_find_a_resource_that_accepts_late_writes() {
    let worlds: Seeds = World::seeds(0..200).managers(3).only([Strike::Freeze]);
    let run = worlds.run(|world| async move {
        let handler = |leases: LeaseManager| {
            let world = world.clone();
            async move {
                for _ in 0..5 {
                    let lease = leases.lock("n").lock().await?;
                    let fence = lease.fence().unwrap();
                    if lease.check().is_ok() {
                        sleep(SECOND * 5).await; // the request is on its way
                        world.write("n", fence);
                    }
                }
                Ok(())
            }
        };
        world.in_each_process(handler).await;
        Ok(())
    });
    let failure = run.unwrap_err();
    assert_eq!(failure.breach(), Breach::Order);
    assert!(failure.seed().is_some());
}

#[test]
#[should_panic(expected = "there is no manager 2: this world has 2, counted from 0")]
fn number_of_a_manager_is_checked() {
    let worlds = World::by_hand();
    let run = worlds.run(|world| async move {
        world.cut(2);
        Ok(())
    });
    run.unwrap();
}
