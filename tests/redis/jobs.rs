//! Jobs on real servers: marks and their times to live, permissions, and many at once.

use super::errors::{app, lease_url, set_user};
use super::refused_only;
use kit::{Cluster, Reply, Server, eventually, within};
use leasehold::store::Mark;
use leasehold::{Lease, LeaseManager, Once};
use std::time::Duration;
use tokio::task::JoinSet;

const LONG: Duration = Duration::from_secs(30);
const T: Duration = Duration::from_secs(3);
const KEEP: Duration = Duration::from_secs(600);

async fn connect(url: &str) -> LeaseManager {
    LeaseManager::builder().ttl(T).connect(url).await.expect("a manager")
}

async fn run(leases: &LeaseManager, key: &str) -> Once<u32, ()> {
    leases.once(key).keep(KEEP).run(async |_: &Lease| Ok(7)).await.expect("an outcome")
}

fn left(server: &Server, key: &str) -> Duration {
    Duration::from_millis(server.command(&["PTTL", key]).int().try_into().expect("it expires"))
}

#[tokio::test]
async fn job_that_is_done_leaves_one_field_and_a_time_to_live() {
    let server = Server::start();
    let (leases, other) = (connect(&server.url()).await, connect(&server.url()).await);
    assert!(matches!(run(&leases, "job").await, Once::Ran(7)));
    let fields = server.command(&["HGETALL", "job"]).list();
    let fields: Vec<_> = fields.into_iter().map(Reply::text).collect();
    let [field, value] = &fields[..] else { panic!("{fields:?}") };
    assert!(field == "leasehold:done" && value.starts_with("600000 "), "{fields:?}");
    assert!(left(&server, "job") > KEEP - LONG, "the time is that of the mark");
    for leases in [&leases, &other] {
        let Once::AlreadyDone(closed) = run(leases, "job").await else { panic!("it ran again") };
        assert_eq!(closed.mark, Mark::Done);
        assert!(closed.ago < LONG && value.ends_with(&closed.by), "{closed:?}");
    }
    assert!(other.force_unlock("job", "a test").await.expect("an answer"));
    assert!(matches!(run(&other, "job").await, Once::Ran(7)));
}

/// Those of plain locks.
#[tokio::test]
async fn permissions_of_the_guide_are_enough_for_jobs() {
    let server = Server::start();
    set_user(&server, &kit::permissions::of_one_server());
    let leases = app().ttl(T).connect(&lease_url(&server)).await.expect("a manager");
    server.command(&["ACL", "LOG", "RESET"]);
    assert!(matches!(run(&leases, "app:job").await, Once::Ran(7)));
    assert!(matches!(run(&leases, "app:job").await, Once::AlreadyDone(_)));
    let mut lock = leases.lock("app:kept").min_hold(KEEP);
    lock.lock().await.expect("a lease").unlock().await.expect("a release");
    assert!(lock.try_lock().await.expect("an answer").is_none());
    refused_only(&server, &["leasehold_meta:{app:app:job}"]);
}

/// Releases with and without a mark that leave together.
async fn many_at_once(url: &str) {
    let leases = connect(url).await;
    let mut tasks = JoinSet::new();
    for number in 0..60 {
        let leases = leases.clone();
        tasks.spawn(async move {
            let name = format!("many:{number}");
            if number % 3 == 0 {
                let lease = leases.lock(&name).lock().await.expect("a lease");
                lease.unlock().await.expect("a release");
            } else {
                assert!(matches!(run(&leases, &name).await, Once::Ran(7)));
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.expect("no panic");
    }
    for number in 0..60 {
        let holder = leases.inspect(format!("many:{number}")).await.expect("an answer");
        assert_eq!(holder.is_some(), number % 3 != 0, "{number}: {holder:?}");
        assert!(holder.is_none_or(|holder| holder.closed.is_some()));
    }
}

#[tokio::test]
async fn marks_are_left_by_many_releases_at_once() {
    many_at_once(&Server::start().url()).await;
}

#[tokio::test]
async fn marks_are_left_in_a_cluster_too() {
    let cluster = Cluster::start();
    many_at_once(&cluster.url()).await;
}

#[tokio::test]
async fn waiting_job_hears_of_the_end_of_the_other() {
    let server = Server::start();
    let builder = || LeaseManager::builder().ttl(Duration::from_secs(60));
    let slow = || builder().max_poll_interval(Duration::from_secs(20));
    let (leases, other) = (
        slow().connect(&server.url()).await.expect("a manager"),
        slow().connect(&server.url()).await.expect("a manager"),
    );
    let (finish, finished) = tokio::sync::oneshot::channel::<()>();
    let theirs = tokio::spawn(async move {
        let work = async move |_: &Lease| finished.await.map_err(|_| ());
        other.once("job").keep(KEEP).run(work).await
    });
    eventually(LONG, || server.command(&["EXISTS", "job"]).int() == 1).await;
    let waits = tokio::spawn(async move {
        leases.once("job").wait(LONG * 2).run(async |_: &Lease| Ok::<_, ()>(())).await
    });
    eventually(LONG, || {
        let channel = "redisson_lock__channel:{job}";
        let reply = server.command(&["PUBSUB", "NUMSUB", channel]).list();
        reply[1] == Reply::Int(1)
    })
    .await;
    finish.send(()).expect("it listens");
    let outcome = within(Duration::from_secs(10), waits).await.expect("no panic");
    assert!(matches!(outcome.expect("an outcome"), Once::AlreadyDone(_)));
    assert!(matches!(theirs.await.expect("no panic").expect("an outcome"), Once::Ran(())));
}

/// Renewals carry it, in one batch with those of other leases.
#[tokio::test]
async fn lock_delay_is_part_of_the_time_to_live() {
    let server = Server::start();
    let leases = connect(&server.url()).await;
    let delay = Duration::from_secs(40);
    let mut held = Vec::new();
    for number in 0..6 {
        let lock = leases.lock(format!("n{number}"));
        let mut lock = if number % 2 == 0 { lock } else { lock.lock_delay(delay) };
        held.push(lock.lock().await.expect("a lease"));
    }
    tokio::time::sleep(T * 2).await;
    for number in 0..6 {
        let left = left(&server, &format!("n{number}"));
        let lowest = if number % 2 == 0 { Duration::ZERO } else { delay };
        assert!(left > lowest && left <= lowest + T, "n{number}: {left:?}");
    }
    for lease in &held {
        lease.check().expect("it was renewed");
    }
    held.truncate(2);
    drop(held.remove(0));
    held.remove(0).unlock().await.expect("a clean release");
    assert_eq!(server.command(&["EXISTS", "n1"]).int(), 0);
}

/// Full memory refuses the mark as a first write, and the name would be open as soon as the lease ends.
#[tokio::test]
async fn mark_is_left_in_full_memory_too() {
    let server = Server::start();
    let leases = connect(&server.url()).await;
    let mut lock = leases.lock("kept").min_hold(KEEP);
    let lease = lock.lock().await.expect("a lease");
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    lease.unlock().await.expect("a release");
    assert!(left(&server, "kept") > KEEP - LONG);
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    assert!(lock.try_lock().await.expect("an answer").is_none());
}
