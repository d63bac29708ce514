//! Jobs on a quorum: a mark counts where a majority has it.

use super::redis::{LONG, Servers, T};
use kit::{connect_in_the_end, within};
use leasehold::store::Mark;
use leasehold::{ErrorKind, Lease, LeaseManager, Once};
use std::time::Duration;

const KEEP: Duration = Duration::from_secs(600);

async fn connect(servers: &Servers) -> LeaseManager {
    let leases = connect_in_the_end(LeaseManager::builder().ttl(T), &servers.urls()).await;
    // A node counts once it is older than T.
    let old_enough = async {
        while leases.lock("old enough").try_lock().await.is_err() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    within(LONG, old_enough).await;
    leases
}

#[tokio::test]
async fn job_that_is_done_is_closed_at_each_node() {
    let servers = Servers::start(3);
    let (leases, other) = (connect(&servers).await, connect(&servers).await);
    let job = leases.once("job").keep(KEEP).run(async |_: &Lease| Ok::<_, ()>(7));
    assert!(matches!(within(LONG, job).await.expect("an outcome"), Once::Ran(7)));
    kit::eventually(LONG, || {
        let marked =
            |node: usize| servers.0[node].command(&["HEXISTS", "job", "leasehold:done"]).int() == 1;
        (0..3).all(marked)
    })
    .await;
    let job = other.once("job").run(async |_: &Lease| Ok::<_, ()>(7));
    let Once::AlreadyDone(closed) = within(LONG, job).await.expect("an outcome") else {
        panic!("it ran again")
    };
    assert_eq!(closed.mark, Mark::Done);
    // One node forgets it, and the others keep it closed.
    servers.0[0].command(&["DEL", "job"]);
    let job = other.once("job").run(async |_: &Lease| Ok::<_, ()>(7));
    assert!(matches!(within(LONG, job).await.expect("an outcome"), Once::AlreadyDone(_)));
}

/// The body ends when only one node still has the hold, and another one is away.
#[tokio::test]
async fn mark_of_a_minority_is_not_taken_for_closed() {
    let mut servers = Servers::start(3);
    let leases = connect(&servers).await;
    let mut gone = Some(servers.0.remove(2));
    let first = &servers.0[0];
    let job = leases.once("job").keep(KEEP).run(async |_: &Lease| {
        kit::eventually(LONG, || first.command(&["EXISTS", "job"]).int() == 1).await;
        drop(gone.take());
        first.command(&["DEL", "job"]);
        Ok::<_, ()>(7)
    });
    match within(LONG, job).await {
        Ok(Once::Unconfirmed(7, error)) => assert_eq!(error.kind(), ErrorKind::Unavailable),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Lost),
        Ok(other) => panic!("{other:?}"),
    }
}
