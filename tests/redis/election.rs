//! Elections and metadata on a real server: the key, the permissions, the processes in wait, and a failover.

use super::errors::{app, lease_url, set_user};
use super::{refused_only, script};
use kit::{Cluster, Reply, Server, within};
use leasehold::{ErrorKind, Leader, LeaseManager, View};
use std::sync::LazyLock;
use std::time::Duration;

static ANNOTATE: LazyLock<String> = LazyLock::new(|| script("annotate"));

const KEYS: [&str; 2] = ["n", "leasehold_meta:{n}"];
const LONG: Duration = Duration::from_secs(30);
const T: Duration = Duration::from_secs(3);

async fn connect(url: &str) -> LeaseManager {
    LeaseManager::builder().ttl(T).connect(url).await.expect("a manager")
}

fn run(server: &Server, arguments: &[&str]) -> Reply {
    let mut words = vec!["EVAL", &ANNOTATE, "2"];
    words.extend(KEYS);
    words.extend(arguments);
    server.command(&words)
}

async fn until(view: &mut View, shows: impl Fn(&Leader) -> bool) -> Leader {
    let shown = async {
        loop {
            let leader = view.current();
            if shows(&leader) {
                return leader;
            }
            view.changed().await;
        }
    };
    within(LONG, shown).await
}

#[tokio::test]
async fn metadata_is_beside_the_lock_and_has_a_time_to_live() {
    let server = Server::start();
    let leases = connect(&server.url()).await;
    let me = leases.election("n").candidate("here").campaign().await.expect("it leads");
    let fields = server.command(&["HLEN", "n"]).int();
    assert_eq!(fields, 1, "the lock stays as it is");
    let value = server.command(&["HGET", KEYS[1], "value"]);
    assert_eq!(value, Reply::Text("here".into()));
    let left = server.command(&["PTTL", KEYS[1]]).int();
    assert!((3_500_000..=3_600_000).contains(&left), "{left}");
    me.resign().await.expect("released");
    kit::eventually(LONG, || server.command(&["EXISTS", KEYS[1]]).int() == 0).await;
}

/// By hand, as a copy that comes late or a server in trouble would run it.
#[tokio::test]
async fn annotation_changes_nothing_unless_the_holder_has_the_lock() {
    let server = Server::start();
    let exists = || server.command(&["EXISTS", KEYS[1]]).int();
    assert_eq!(run(&server, &["m:1", "5000", "c", "1", "value", "a"]), Reply::Int(0));
    assert_eq!(exists(), 0);
    server.command(&["HSET", "n", "m:1", "1"]);
    for bad in [["m:1", "x", "c", "1"], ["m:1", "-1", "c", "1"], ["m:1", "5000", "c", "x"]] {
        assert!(run(&server, &bad).error().is_some(), "{bad:?}");
        assert_eq!(exists(), 0);
    }
    assert_eq!(run(&server, &["m:1", "5000", "c", "2", "value", "a"]), Reply::Int(1));
    assert_eq!(run(&server, &["m:1", "5000", "c", "1", "value", "late"]), Reply::Int(1));
    assert_eq!(server.command(&["HGET", KEYS[1], "value"]), Reply::Text("a".into()));
    assert_eq!(run(&server, &["m:2", "0", "c", "0"]), Reply::Int(0));
    assert_eq!(run(&server, &["m:2", "5000", "c", "9", "value", "b"]), Reply::Int(0));
    assert_eq!(server.command(&["HGET", KEYS[1], "value"]), Reply::Text("a".into()));
    // Another holder replaces all of it.
    server.command(&["DEL", "n"]);
    server.command(&["HSET", "n", "m:2", "1"]);
    assert_eq!(run(&server, &["m:2", "5000", "c", "1", "label", "l"]), Reply::Int(1));
    assert_eq!(server.command(&["HLEN", KEYS[1]]).int(), 3);
    assert!(server.command(&["PTTL", KEYS[1]]).int() > 0);
    server.command(&["HSET", KEYS[1], "value", "of a write before"]);
    assert_eq!(run(&server, &["m:2", "5000", "c", "2", "label", "l"]), Reply::Int(1));
    assert_eq!(server.command(&["HLEN", KEYS[1]]).int(), 3, "nothing of the write before");
    assert_eq!(run(&server, &["m:2", "0", "c", "0"]), Reply::Int(1));
    assert_eq!(run(&server, &["m:2", "0", "c", "0"]), Reply::Int(0));
}

/// The permissions that the guide lists for them, and no more.
#[tokio::test]
async fn permissions_of_the_guide_are_enough_for_an_election() {
    let server = Server::start();
    let mut permissions = kit::permissions::of_one_server();
    set_user(&server, &permissions);
    let leases = app().ttl(T).connect(&lease_url(&server)).await.expect("a manager");
    let denied = leases.election("app:n").candidate("a").campaign().await.expect_err("denied");
    assert_eq!(denied.kind(), ErrorKind::Denied, "{denied}");
    let lease = leases.lock("app:n").label("l").lock().await.expect("a lease");
    let holder = leases.inspect("app:n").await.expect("allowed").expect("held");
    assert!(holder.metadata.is_none());
    lease.unlock().await.expect("released");
    permissions.extend(kit::permissions::of_elections());
    set_user(&server, &permissions);
    let leases = app().ttl(T).connect(&lease_url(&server)).await.expect("a manager");
    server.command(&["ACL", "LOG", "RESET"]);
    let election = leases.election("app:n");
    let mut view = election.observe();
    let me = election.candidate("a").campaign().await.expect("it leads");
    assert_eq!(until(&mut view, |leader| leader.value.is_some()).await.term, me.term());
    me.proclaim("b").await.expect("written");
    until(&mut view, |leader| leader.value.as_deref() == Some("b")).await;
    me.resign().await.expect("released");
    until(&mut view, Leader::is_vacant).await;
    refused_only(&server, &[]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn terms_of_a_view_grow_over_a_failover_of_a_cluster() {
    let cluster = tokio::task::spawn_blocking(Cluster::start_quick).await.expect("a cluster");
    let name = cluster.name_on(0, "leader");
    let leases = connect(&cluster.url()).await;
    let mut view = leases.election(&name).observe();
    let candidates = [connect(&cluster.url()).await, connect(&cluster.url()).await];
    let mut tasks = tokio::task::JoinSet::new();
    for (number, leases) in candidates.into_iter().enumerate() {
        let mut candidate = leases.election(&name).candidate(number.to_string());
        tasks.spawn(async move {
            let led = candidate.lead(async |_| {
                tokio::time::sleep(T).await;
                std::ops::ControlFlow::Continue(())
            });
            led.await
        });
    }
    let mut last = until(&mut view, |leader| leader.term.is_some()).await.term;
    cluster.nodes[0].kill();
    for _ in 0..3 {
        let leader = until(&mut view, |leader| leader.term.is_some() && leader.term != last).await;
        assert!(leader.term > last, "{leader:?}");
        last = leader.term;
    }
    assert!(tasks.try_join_next().is_none(), "nobody has given up");
}
