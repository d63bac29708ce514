//! Handlers that are wrong, and must be found.

use super::judge::Breach;
use super::tests::{SECOND, TTL, breach_of};
use super::{Strike, World};
use crate::error::{Loss, Result};
use crate::manager::LeaseManager;
use std::time::Duration;
use tokio::time::sleep;

/// A fake of a database whose insert takes no time.
fn insert(world: &World, fence: Option<u64>) {
    drop(world.enter("n", fence));
}

#[test]
fn work_in_instants_is_found_after_a_loss() {
    let failure = breach_of(|world| async move {
        let lease = world.manager(0).lock("n").lock().await?;
        world.cut(0);
        for _ in 0..100 {
            sleep(SECOND).await;
            insert(&world, lease.fence());
        }
        Ok(())
    });
    assert_eq!(failure.breach(), Breach::AfterLoss, "{failure}");
    let dropped = breach_of(|world| async move {
        let lease = world.manager(0).lock("n").lock().await?;
        world.lose("n", Loss::Gone);
        sleep(2 * TTL).await;
        let fence = lease.fence();
        drop(lease);
        sleep(SECOND).await;
        insert(&world, fence);
        Ok(())
    });
    assert_eq!(dropped.breach(), Breach::AfterLoss, "{dropped}");
}

#[test]
fn work_in_instants_has_the_grace_too() {
    World::by_hand()
        .run(|world| async move {
            let lease = world.manager(0).lock("n").lock().await?;
            world.lose("n", Loss::Gone);
            insert(&world, lease.fence());
            sleep(SECOND * 2).await;
            insert(&world, lease.fence());
            Ok(())
        })
        .unwrap();
}

/// Only the handle of the task is dropped when the lease is lost.
async fn detached(leases: LeaseManager, world: World, time: Duration) -> Result<()> {
    let lease = leases.lock("n").lock().await?;
    let fence = lease.fence();
    let work = async move {
        let _work = world.enter("n", fence);
        sleep(time).await;
    };
    lease.run(async { tokio::spawn(work).await.expect("no panic") }).await
}

#[test]
fn work_that_outlives_the_test_is_found() {
    for managers in [1, 3] {
        let run = World::seeds(0..200).managers(managers).run(|world| async move {
            world.in_each_process(|leases| detached(leases, world.clone(), SECOND * 40)).await;
            Ok(())
        });
        let failure = run.unwrap_err();
        assert_eq!(failure.breach(), Breach::AfterLoss, "{failure}");
    }
    let at_the_end = breach_of(|world| async move {
        let lease = world.manager(0).lock("n").lock().await?;
        let work = world.enter("n", lease.fence());
        tokio::spawn(async move {
            sleep(20 * TTL).await;
            drop(work);
        });
        world.lose("n", Loss::Expired);
        world.freeze(0, TTL);
        Ok(())
    });
    assert_eq!(at_the_end.breach(), Breach::AfterLoss, "{at_the_end}");
}

#[test]
fn work_that_stops_soon_after_the_test_is_right() {
    World::by_hand()
        .managers(1)
        .run(|world| async move {
            let lease = world.manager(0).lock("n").lock().await?;
            let work = world.enter("n", lease.fence());
            tokio::spawn(async move {
                sleep(SECOND).await;
                drop(work);
            });
            world.lose("n", Loss::Expired);
            Ok(())
        })
        .unwrap();
}

#[test]
fn run_in_which_time_stands_still_ends() {
    let asks = breach_of(|world| async move {
        let _held = world.manager(1).lock("n").lock().await?;
        let here = world.manager(0);
        while here.lock("n").try_lock().await?.is_none() {}
        Ok(())
    });
    let yields = breach_of(|world| async move {
        while world.now() < SECOND {
            tokio::task::yield_now().await;
        }
        Ok(())
    });
    let in_process = breach_of(|world| async move {
        let here = world.clone();
        let task = world.spawn(0, async move {
            while here.now() < SECOND {
                tokio::task::yield_now().await;
            }
        });
        task.await.expect("no panic");
        Ok(())
    });
    for failure in [asks, yields, in_process] {
        assert_eq!(failure.breach(), Breach::Unfinished, "{failure}");
        assert!(failure.to_string().contains("time stands still"), "{failure}");
    }
}

#[test]
fn seeds_in_which_no_work_is_reported_show_nothing() {
    let run = World::seeds(0..20).run(|world| async move {
        let handler = |leases: LeaseManager| async move {
            let _lease = leases.lock("").lock().await?;
            Ok(())
        };
        world.in_each_process(handler).await;
        Ok(())
    });
    let failure = run.unwrap_err();
    assert_eq!(failure.breach(), Breach::NoWork, "{failure}");
    assert!(failure.to_string().contains("has ended with an error: invalid"), "{failure}");
    let silent = World::seeds(0..3)
        .run(|world| async move { world.manager(0).lock("n").lock().await?.unlock().await });
    assert_eq!(silent.unwrap_err().breach(), Breach::NoWork);
    // What has no token cannot be reported.
    let permits = World::seeds(0..3).run(|world| async move {
        world.manager(0).semaphore("s", 2).acquire().await?.unlock().await
    });
    permits.unwrap();
}

#[test]
#[should_panic(expected = "a world has at least one manager")]
fn world_without_a_manager_is_refused() {
    let _ = World::seeds(0..3).managers(0);
}

#[test]
#[should_panic(expected = "there are no seeds")]
fn run_without_a_seed_is_refused() {
    let _ = World::seeds([]).only([Strike::Cut]).run(|_| async { Ok(()) });
}

#[tokio::test]
#[should_panic(expected = "in a `#[test]` without tokio's")]
async fn world_in_a_runtime_is_refused() {
    let _ = World::by_hand().run(|_| async { Ok(()) });
}
