//! Handlers that are right, and must not be accused; and faults that do what their documentation says.

use super::judge::Breach;
use super::tests::{SECOND, TTL, breach_of, by_hand};
use super::{Strike, World};
use crate::error::{Loss, Result};
use crate::manager::LeaseManager;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// Waits for ten seconds, and then takes the name by force.
async fn impatient(leases: LeaseManager, world: World) -> Result<()> {
    for _ in 0..5 {
        let lease = match leases.lock("n").lock_timeout(SECOND * 10).await? {
            Some(lease) => lease,
            None => match leases.lock("n").steal("it hangs").await? {
                Some(lease) => lease,
                None => continue,
            },
        };
        let work = async {
            let _work = world.enter("n", lease.fence());
            sleep(SECOND * 20).await;
        };
        let _lost = lease.run(work).await;
    }
    Ok(())
}

#[test]
fn theft_by_the_code_under_test_is_a_fault() {
    World::seeds(0..50)
        .managers(3)
        .run(|world| async move {
            world.in_each_process(|leases| impatient(leases, world.clone())).await;
            Ok(())
        })
        .unwrap();
    for forces in [false, true] {
        by_hand(|world| async move {
            let lease = world.manager(0).lock("n").lock().await?;
            let work = world.enter("n", lease.fence());
            sleep(SECOND).await;
            world.cut(0);
            let there = world.manager(1);
            let next = if forces {
                assert!(there.force_unlock("n", "why").await?);
                there.lock("n").lock().await?
            } else {
                there.lock("n").steal("why").await?.expect("it is held")
            };
            let _more = world.enter("n", next.fence());
            lease.lost().await;
            drop(work);
            Ok(())
        });
    }
}

/// Other names are not excused.
#[test]
fn theft_of_another_name_excuses_no_overlap() {
    let failure = breach_of(|world| async move {
        let lease = world.manager(0).lock("n").lock().await?;
        let _other = world.manager(0).lock("other").lock().await?;
        let _work = world.enter("n", lease.fence());
        sleep(SECOND).await;
        world.manager(1).force_unlock("other", "why").await?;
        assert!(!world.expire("m") && !world.steal("m"));
        world.0.store.delete("n"); // no fault of the world
        let next = world.manager(1).lock("n").lock().await?;
        let _more = world.enter("n", next.fence());
        sleep(SECOND).await;
        Ok(())
    });
    assert_eq!(failure.breach(), Breach::Overlap, "{failure}");
}

#[test]
fn grace_begins_again_with_the_thaw() {
    let works_for = |time: Duration, early: bool| {
        World::by_hand().managers(1).run(move |world| async move {
            let here = world.clone();
            let task = world.spawn(0, async move {
                let lease = here.manager(0).lock("n").lock().await?;
                let before = early.then(|| here.enter("n", lease.fence()));
                sleep(SECOND * 10).await; // is over in the freeze
                let after = (!early).then(|| here.enter("n", lease.fence()));
                sleep(time).await;
                drop((before, after));
                Ok::<(), crate::Error>(())
            });
            sleep(SECOND).await;
            world.freeze(0, 2 * TTL);
            task.await.expect("no panic")
        })
    };
    for early in [true, false] {
        works_for(SECOND / 2, early).unwrap();
        let failure = works_for(SECOND * 3, early).unwrap_err();
        assert_eq!(failure.breach(), Breach::AfterLoss, "{failure}");
    }
}

#[test]
fn write_of_a_reader_binds_no_other_reader() {
    by_hand(|world| async move {
        let one = world.manager(0).rw_lock("n").read().await?;
        sleep(SECOND).await;
        let two = world.manager(1).rw_lock("n").read().await?;
        world.write("n", two.fence().expect("a token")); // at the instant of its grant
        sleep(SECOND).await;
        world.write("n", one.fence().expect("a token"));
        Ok(())
    });
}

/// The time-based losses come a grace before the store lets the name go.
#[test]
fn overlap_in_the_grace_after_a_loss_by_time_is_found() {
    let overlap = |loss: Loss, drops: bool| {
        World::by_hand().run(move |world| async move {
            let lease = world.manager(0).lock("n").lock().await?;
            let _work = world.enter("n", lease.fence());
            sleep(SECOND).await;
            world.lose("n", loss);
            let _kept = (!drops).then_some(lease);
            sleep(SECOND / 10).await;
            world.0.store.delete("n"); // no fault of the world
            let next = world.manager(1).lock("n").lock().await?;
            let _more = world.enter("n", next.fence());
            sleep(SECOND).await;
            Ok(())
        })
    };
    for loss in [Loss::Expired, Loss::MaxHold, Loss::Stalled] {
        let failure = overlap(loss, false).unwrap_err();
        assert_eq!(failure.breach(), Breach::Overlap, "{failure}");
        overlap(loss, true).unwrap(); // then the name is free
    }
    overlap(Loss::Gone, false).unwrap();
}

// The faults.

#[test]
fn theft_of_the_world_is_from_the_holder_in_the_store() {
    by_hand(|world| async move {
        let _stale = world.manager(0).lock("n").lock().await?;
        world.expire("n");
        let lease = world.manager(1).lock("n").lock().await?;
        assert!(world.steal("n"));
        assert_eq!(lease.lost().await, Loss::Stolen);
        Ok(())
    });
}

/// What is under way when a manager is cut off, or frozen, arrives after that.
#[test]
fn delayed_request_does_not_arrive_in_a_cut() {
    for freezes in [false, true] {
        by_hand(|world| async move {
            world.delay(0, SECOND);
            let here = world.manager(0);
            let task = world.spawn(0, async move { here.lock("n").lock().await });
            sleep(SECOND / 2).await;
            if freezes {
                world.freeze(0, SECOND * 4)
            } else {
                world.cut(0)
            }
            sleep(SECOND * 3).await;
            assert!(world.0.store.is_empty(), "it has arrived");
            world.heal(0);
            assert!(timeout(TTL, task).await.is_ok(), "it waits still");
            Ok(())
        });
    }
}

#[test]
fn failover_forgets_the_last_of_several_holders() {
    by_hand(|world| async move {
        let old = world.manager(0).semaphore("s", 5).acquire().await?;
        let old_reader = world.manager(0).rw_lock("r").read().await?;
        let deleted = world.manager(0).lock("n").lock().await?;
        sleep(TTL).await;
        let new = world.manager(1).semaphore("s", 5).acquire().await?;
        let new_reader = world.manager(1).rw_lock("r").read().await?;
        assert_eq!(world.forget_last_grants(SECOND), 2);
        sleep(TTL).await;
        assert_eq!(new.lost().await, Loss::Gone);
        assert_eq!(new_reader.lost().await, Loss::Gone);
        deleted.check()?;
        let young = world.manager(1).lock("young").lock().await?;
        assert!(world.expire("young"));
        assert_eq!(world.forget_last_grants(SECOND), 0, "the store has it no longer");
        drop(young);
        old.check()?;
        old_reader.check()
    });
}

#[test]
fn faults_of_a_seed_end_after_ten_times_to_live() {
    for seed in 0..40 {
        let worlds = World::seeds([]).managers(3).only([Strike::Freeze, Strike::Cut]);
        let played = worlds.play(seed, &|_: World| async {
            sleep(12 * TTL).await;
            Ok(())
        });
        let lines = played.story.all_lines();
        let last = lines.lines().last().unwrap_or_default();
        assert!(last.contains("300.00") && last.contains("nothing goes wrong"), "{seed}: {last}");
    }
}

#[test]
fn settings_of_servers_do_not_count() {
    let settings = LeaseManager::builder()
        .prefix("shop:")
        .layout(crate::Layout::Redisson)
        .on_overrun(crate::Overrun::Abort);
    World::by_hand()
        .settings(settings)
        .run(|world| async move { world.manager(0).lock("n").lock().await?.unlock().await })
        .unwrap();
}
