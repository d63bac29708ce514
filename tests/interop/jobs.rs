//! Names that a mark keeps closed: for Redisson, a held lock with a time to live.

use crate::scenarios;
use crate::world::{LONG, World};
use kit::within;
use leasehold::store::Mark;
use leasehold::{Lease, Once};
use std::time::Duration;

const T: Duration = Duration::from_secs(6);
const KEEP: Duration = Duration::from_secs(600);

scenarios! {
    closed_name_is_a_held_lock_for_java: on_a_server in_a_cluster;
    closed_name_opens_for_java_by_itself: on_a_server;
}

/// Closes a name: by a job that is done, or by a min_hold.
async fn close(world: &World, name: &str, mark: Mark, time: Duration) {
    let leases = world.rust(T).await;
    if mark == Mark::Kept {
        let lease = leases.lock(name).min_hold(time).lock().await.expect("a lease");
        return lease.unlock().await.expect("released");
    }
    let job = leases.once(name).keep(time);
    let outcome = job.run(async |_: &Lease| Ok::<_, ()>(())).await.expect("it is free");
    assert!(matches!(outcome, Once::Ran(())), "{outcome:?}");
}

async fn closed_name_is_a_held_lock_for_java(world: &World) {
    let java = world.java(Duration::from_secs(60)).await;
    for (which, mark) in [("done", Mark::Done), ("kept", Mark::Kept)] {
        let name = &*world.name(which);
        let waiter = {
            // A waiter of Java that the release wakes finds it closed, and waits on.
            close(world, name, mark, KEEP).await;
            java.on("b").begin("lock", &[name])
        };
        let a = java.on("a");
        assert!(a.call("isLocked", &[name]).await.truth(), "{which}");
        assert!(!a.call("tryLock", &[name]).await.truth(), "{which}");
        assert!(!a.call("isHeldByCurrentThread", &[name]).await.truth());
        assert_eq!(a.call("getHoldCount", &[name]).await.number::<u32>(), 0);
        let left: i64 = a.call("remainTimeToLive", &[name]).await.number();
        let keep = i64::try_from(KEEP.as_millis()).expect("it is short");
        assert!(left <= keep && left > keep - 30_000, "{which}: {left} ms");
        // An unlock of a thread that does not hold it is refused, and changes nothing.
        a.call("unlock", &[name]).await.threw("IllegalMonitorStateException");
        let holder = world.rust(T).await.inspect(name).await.expect("an answer").expect("closed");
        assert_eq!(holder.closed.map(|closed| closed.mark), Some(mark));
        assert!(!waiter.is_done());
        assert!(a.call("forceUnlock", &[name]).await.truth(), "{which}");
        within(LONG, waiter.done()).await.ok();
        java.on("b").call("unlock", &[name]).await.ok();
        assert!(!world.exists(name));
    }
}

async fn closed_name_opens_for_java_by_itself(world: &World) {
    let java = world.java(Duration::from_secs(60)).await;
    let name = &*world.name("opens");
    close(world, name, Mark::Done, Duration::from_secs(2)).await;
    // It knows the time to live, and wakes for it.
    within(LONG, java.on("a").call("lock", &[name])).await.ok();
    java.on("a").call("unlock", &[name]).await.ok();
}
