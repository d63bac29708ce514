//! Another kind of Redisson lock under the same name.

use crate::peer::now;
use crate::scenarios;
use crate::world::{LONG, World};
use kit::within;
use leasehold::store::Mode;
use leasehold::{ErrorKind, Loss};
use std::time::Duration;

const T: Duration = Duration::from_secs(6);

scenarios! {
    read_write_lock_is_of_another_type: on_a_server in_a_cluster;
}

/// Redisson grants it over any lock, so the holder of that must be told.
async fn read_write_lock_is_of_another_type(world: &World) {
    let (leases, java) = (world.rust(T).await, world.java(Duration::from_secs(60)).await);
    let bystander = leases.lock(world.name("other")).lock().await.expect("a lease");
    for which in ["read", "write"] {
        let name = &*world.name(which);
        let lease = leases.lock(name).lock().await.expect("a lease");
        let start = now();
        assert!(java.on("a").call("readWrite", &[name, which, "tryLock"]).await.truth());
        assert_eq!(within(LONG, lease.lost()).await, Loss::Taken);
        let reported = now() - start;
        world.note(&format!(
            "a {which} lock over a lease is noticed after {reported:.2?}, T = {T:?}"
        ));
        assert!(reported < T * 2 / 3, "{reported:?}");
        bystander.check().expect("it has nothing to do with that");
        for error in [
            lease.unlock().await.expect_err("lost"),
            leases.lock(name).try_lock().await.expect_err("no lock"),
            leases.lock(name).lock().await.expect_err("no lock"),
            leases.semaphore(name, 2).try_acquire().await.expect_err("no semaphore"),
        ] {
            assert!([ErrorKind::Lost, ErrorKind::WrongType].contains(&error.kind()), "{error}");
        }
        let holder = leases.inspect(name).await.expect("an answer").expect("a holder");
        assert_eq!(holder.mode, if which == "read" { Mode::Read } else { Mode::Write });
        // Nothing of ours is left that would keep it from being released, and others of its kind from being woken.
        let waiter = java.on("b").begin("readWrite", &[name, "write", "lock"]);
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(!waiter.is_done());
        let unlocked = java.on("a").call("readWrite", &[name, which, "unlock"]).await;
        let granted = within(LONG, waiter.done()).await;
        // By the clock it would wait for a minute.
        let waited = granted.ended.saturating_sub(unlocked.began);
        assert!(waited < Duration::from_secs(10), "{waited:?}");
        unlocked.ok();
        granted.ok();
        java.on("b").call("readWrite", &[name, "write", "unlock"]).await.ok();
        assert!(!world.exists(name));
        drop(leases.lock(name).try_lock().await.expect("an answer").expect("it is free"));
    }
}
