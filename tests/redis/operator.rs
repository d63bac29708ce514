//! What an operator sees: outages in the log, who waits, and whose the connections are.

use super::errors::{lease_url, set_user};
use kit::trace::{Trace, Traced};
use kit::{Server, eventually, within};
use leasehold::store::HolderId;
use leasehold::{Builder, Lease, LeaseManager, Loss, Owner};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::task::JoinSet;
use tracing::Level;

const LONG: Duration = Duration::from_secs(30);
const T: Duration = Duration::from_secs(3);
const SILENT: &str = "the server does not answer";
const BACK: &str = "the server answers again";

fn builder() -> Builder {
    LeaseManager::builder().ttl(T)
}

/// The lines about outages of a server.
fn lines(trace: &Trace, server: &Server) -> Vec<Traced> {
    let place = format!("127.0.0.1:{}", server.port());
    trace.matching(|event| {
        event.target == "leasehold::store::connect::outage" && event.field("server") == place
    })
}

fn count(trace: &Trace, server: &Server, message: &str) -> usize {
    lines(trace, server).iter().filter(|line| line.message() == message).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outage_is_two_lines_without_a_lease_and_with_many_calls() {
    let (trace, server) = (Trace::of_all_threads(), Server::start());
    let leases = builder().connect(&server.url()).await.expect("a manager");
    server.kill();
    eventually(LONG, || count(&trace, &server, SILENT) == 1).await;
    let mut calls = JoinSet::new();
    for number in 0..2_000 {
        let leases = leases.clone();
        calls.spawn(async move { leases.lock(number.to_string()).try_lock().await.is_err() });
    }
    while let Some(failed) = within(LONG, calls.join_next()).await {
        assert!(failed.expect("no panic"), "there is no server");
    }
    server.restart();
    eventually(LONG, || count(&trace, &server, BACK) == 1).await;
    drop(within(LONG, leases.lock("job").lock()).await.expect("a lease"));
    let lines = lines(&trace, &server);
    // One more line for each 10 s.
    assert!((2..8).contains(&lines.len()), "{lines:#?}");
    let (first, last) = (&lines[0], &lines[lines.len() - 1]);
    assert_eq!((first.level, first.message()), (Level::WARN, SILENT));
    assert!(first.field("cause").contains("connection refused"), "{first:?}");
    assert_eq!((last.level, last.message()), (Level::INFO, BACK));
    let silent = |line: &Traced| line.field("silent_ms").parse::<u64>().expect("a number");
    assert!(silent(first) >= 300 && silent(last) > silent(first), "{lines:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outage_of_a_server_that_stands_still_is_reported() {
    let (trace, server) = (Trace::of_all_threads(), Server::start());
    let leases = builder().connect(&server.url()).await.expect("a manager");
    server.pause();
    eventually(LONG, || count(&trace, &server, SILENT) == 1).await;
    server.resume();
    eventually(LONG, || count(&trace, &server, BACK) == 1).await;
    drop(leases);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn risk_and_loss_are_reported_with_the_failure_of_the_renewal() {
    let (trace, server) = (Trace::of_all_threads(), Server::start());
    let leases = builder().connect(&server.url()).await.expect("a manager");
    let lease = leases.lock("risky-business").lock().await.expect("a lease");
    server.kill();
    assert_eq!(within(LONG, lease.lost()).await, Loss::Expired);
    let place = format!("127.0.0.1:{}", server.port());
    for message in ["a lease is at risk: its renewal failed", "a lease is lost"] {
        let about =
            || trace.of("risky-business").into_iter().find(|line| line.message() == message);
        eventually(LONG, || about().is_some()).await;
        let error = about().expect("a line").field("error").to_owned();
        assert!(error.contains("connection"), "{message}: {error}");
        assert!(error.contains(&place), "{message}: {error}");
    }
    assert_eq!(count(&trace, &server, SILENT), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inspect_counts_those_that_wait_for_any_kind() {
    let server = Server::start();
    let mut leases = Vec::new();
    for _ in 0..3 {
        leases.push(builder().connect(&server.url()).await.expect("a manager"));
    }
    let [holder, waiters @ ..] = &leases[..] else { panic!("three") };
    let held = (
        holder.lock("plain").lock().await.expect("a lease"),
        holder.fair_lock("fair").lock().await.expect("a lease"),
        holder.rw_lock("rw").write().await.expect("a lease"),
        holder.semaphore("pool", 1).acquire().await.expect("a permit"),
    );
    for name in ["plain", "fair", "rw", "pool"] {
        let info = holder.inspect(name).await.expect("an answer").expect("held");
        assert_eq!(info.waiting, Some(0), "{name}");
    }
    let mut waiting = JoinSet::new();
    for leases in waiters {
        let all = leases.clone();
        waiting.spawn(async move { drop(all.lock("plain").lock().await) });
        let all = leases.clone();
        waiting.spawn(async move { drop(all.fair_lock("fair").lock().await) });
        let all = leases.clone();
        waiting.spawn(async move { drop(all.rw_lock("rw").read().await) });
        let all = leases.clone();
        waiting.spawn(async move { drop(all.semaphore("pool", 1).acquire().await) });
    }
    let seen = async {
        for name in ["plain", "fair", "rw", "pool"] {
            while holder.inspect(name).await.expect("an answer").expect("held").waiting != Some(2) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    };
    within(LONG, seen).await;
    let info = holder.inspect("pool").await.expect("an answer").expect("held");
    assert!(info.is_of(held.3.holder_id()) && !info.is_of(held.0.holder_id()), "{info:?}");
    let info = holder.inspect("plain").await.expect("an answer").expect("held");
    assert_eq!(info.holder.parse::<HolderId>().expect("an id"), held.0.holder_id());
    drop(held);
}

/// The connections of a server by their names.
fn connections(server: &Server) -> BTreeMap<String, usize> {
    let list = server.command(&["CLIENT", "LIST"]).text();
    let mut named = BTreeMap::new();
    for line in list.lines().filter(|line| !line.contains("cmd=client|list")) {
        let name = line.split(' ').find_map(|word| word.strip_prefix("name=")).expect("a field");
        *named.entry(name.to_owned()).or_default() += 1;
    }
    named
}

/// The guide has these numbers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_have_the_names_of_their_manager() {
    let server = Server::start();
    let owner = Owner::new("order service").version("1");
    let leases = builder().describe(owner).connect(&server.url()).await.expect("a manager");
    let connected = connections(&server);
    let [(name, 3)] = &connected.into_iter().collect::<Vec<_>>()[..] else {
        panic!("requests, renewals, wake-ups: {:?}", connections(&server))
    };
    let lease = leases.lock("job").lock().await.expect("a lease");
    assert_eq!(*name, format!("leasehold:order_service:{}", lease.holder_id().manager()));
    // One for each runtime that locks.
    let own = [(name.clone(), 4)].into_iter().collect();
    eventually(LONG, || connections(&server) == own).await;
    for kind in ["normal", "pubsub"] {
        server.command(&["CLIENT", "KILL", "TYPE", kind]);
    }
    eventually(LONG, || connections(&server) == own).await;
    lease.unlock().await.expect("a release");

    let other = builder().connect(&server.url()).await.expect("a manager");
    let manager = other.lock("other").lock().await.expect("a lease").holder_id().manager();
    let process = Owner::new("");
    let name = format!("leasehold:{}.{}:{manager}", process.host, process.pid);
    assert!(connections(&server).contains_key(&name), "{name}: {:?}", connections(&server));
}

#[tokio::test]
async fn connection_without_permission_for_a_name_works() {
    let server = Server::start();
    set_user(&server, &kit::permissions::of_one_server());
    let leases = builder().prefix("app:").connect(&lease_url(&server)).await.expect("a manager");
    leases.lock("job").lock().await.expect("a lease").unlock().await.expect("a release");
    assert_eq!(connections(&server).into_keys().collect::<Vec<_>>(), [""]);
}

fn manager_keys(server: &Server) -> Vec<String> {
    let keys = server.command(&["KEYS", "app:leasehold:manager:*"]).list();
    keys.into_iter().map(kit::Reply::text).collect()
}

/// With the permissions of the guide for these kinds, and no others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_of_all_kinds_lead_to_their_process_at_once() {
    let server = Server::start();
    let permissions =
        [kit::permissions::of_one_server(), kit::permissions::of_shared_names()].concat();
    set_user(&server, &[permissions, kit::permissions::of_fair_locks()].concat());
    let owner = Owner::new("order service").version("1.4.2");
    let described = builder().prefix("app:").describe(owner.clone());
    let leases = described.connect(&lease_url(&server)).await.expect("a manager");
    let other = builder().prefix("app:").connect(&lease_url(&server)).await.expect("a manager");
    let plain = leases.lock("plain").lock().await.expect("a lease");
    let page = leases.rw_lock("page").read().await.expect("a lease");
    let permit = leases.semaphore("pool", 2).acquire().await.expect("a permit");
    let mut kept = leases.lock("kept").min_hold(T * 10);
    kept.lock().await.expect("a lease").unlock().await.expect("a release");
    for name in ["plain", "page", "pool", "kept"] {
        let holders = other.holders(name).await.expect("an answer");
        let owners: Vec<_> = holders.iter().map(|holder| holder.owner.as_ref()).collect();
        assert_eq!(owners, [Some(&owner)], "{name}");
    }
    let mark = other.inspect("kept").await.expect("an answer").and_then(|holder| holder.closed);
    let by = other.owner_of(mark.expect("closed").by).await.expect("an answer");
    assert_eq!(by, Some(owner.clone()));

    // One that waits in a line.
    let first = other.fair_lock("fair").lock().await.expect("a lease");
    let mut waiter = leases.fair_lock("fair");
    let waiting = tokio::spawn(async move { waiter.lock().await });
    let line = async {
        loop {
            match &other.waiters("fair").await.expect("an answer")[..] {
                [] => tokio::time::sleep(Duration::from_millis(10)).await,
                line => return line.to_vec(),
            }
        }
    };
    let line = within(LONG, line).await;
    assert_eq!(line[0].owner, Some(owner.clone()));
    drop(first);
    drop(within(LONG, waiting).await.expect("no panic").expect("a lease"));

    // No key stays without a time to live, and none after the end. One is made again.
    let keys = manager_keys(&server);
    let [key] = &keys[..] else { panic!("{keys:?}") };
    let left = server.command(&["PTTL", key]).int();
    assert!((1..=30_000).contains(&left), "{left}");
    assert_eq!(server.command(&["HGET", key, "service"]).text(), "order service");
    server.command(&["DEL", key]);
    server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
    eventually(LONG, || manager_keys(&server).len() == 1).await;
    drop((plain, page, permit));
    leases.close().await.expect("nothing to release");
    assert_eq!(manager_keys(&server), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn manager_without_permission_for_its_key_says_so_once() {
    let (trace, server) = (Trace::of_all_threads(), Server::start());
    let mut permissions = kit::permissions::of_one_server();
    permissions.retain(|right| *right != "~app:*");
    permissions.extend(["~app:job*", "~app:leasehold-probe:*"]);
    set_user(&server, &permissions);
    let service = "may-not-describe-itself";
    let described = builder().prefix("app:").describe(Owner::new(service));
    let leases = described.connect(&lease_url(&server)).await.expect("a manager");
    let lease = leases.lock("job").lock().await.expect("a lease");
    let is_refusal = |event: &Traced| event.message().starts_with("this manager is not described");
    let refused = || trace.matching(is_refusal).len();
    eventually(LONG, || refused() == 1).await;
    kit::look::renewal(&server, "app:job", LONG).await;
    assert_eq!(refused(), 1);
    lease.unlock().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn managers_of_a_cluster_are_found_on_any_server() {
    let cluster = tokio::task::spawn_blocking(kit::Cluster::start_quick).await.expect("a cluster");
    let name = cluster.name_on(0, "pool");
    let mut permits = Vec::new();
    for number in 0..6 {
        let owner = Owner::new(number.to_string());
        let leases = builder().describe(owner).connect(&cluster.url()).await.expect("a manager");
        permits.push(leases.semaphore(&name, 6).acquire().await.expect("a permit"));
    }
    let other = builder().connect(&cluster.url()).await.expect("a manager");
    let holders = other.holders(&name).await.expect("an answer");
    let mut services: Vec<_> =
        holders.into_iter().map(|holder| holder.owner.expect("described").service).collect();
    services.sort();
    assert_eq!(services, ["0", "1", "2", "3", "4", "5"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outage_of_a_node_of_a_quorum_is_about_that_node() {
    let trace = Trace::of_all_threads();
    let servers = [Server::start(), Server::start(), Server::start()];
    let url = servers.each_ref().map(Server::url).join(",");
    let leases = builder().connect(&url).await.expect("a manager");
    // A node counts when it has been up for T.
    let mut lock = leases.lock("job");
    let locked = async {
        loop {
            if let Ok(lease) = lock.lock().await {
                return lease;
            }
        }
    };
    let lease = within(LONG, locked).await;
    eventually(LONG, || of_manager(&servers, &lease) == [4, 4, 4]).await;
    servers[1].kill();
    eventually(LONG, || count(&trace, &servers[1], SILENT) == 1).await;
    servers[1].restart();
    eventually(LONG, || count(&trace, &servers[1], BACK) == 1).await;
    lease.check().expect("held by two of three");
    for server in [&servers[0], &servers[2]] {
        assert_eq!(count(&trace, server, SILENT) + count(&trace, server, BACK), 0);
    }
}

/// The connections of each server that are named after the manager of a lease.
fn of_manager(servers: &[Server], lease: &Lease) -> Vec<usize> {
    let manager = lease.holder_id().manager().to_string();
    let ours = |server: &Server| {
        let named = connections(server).into_iter();
        named.filter(|(name, _)| name.ends_with(&manager)).map(|(_, count)| count).sum()
    };
    servers.iter().map(ours).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_of_fleets_are_as_many_as_the_guide_has() {
    let (cluster, sentinels) =
        tokio::task::spawn_blocking(|| (kit::Cluster::start_quick(), kit::Sentinels::start("")))
            .await
            .expect("servers");
    let leases = builder().connect(&cluster.url()).await.expect("a manager");
    let lease = leases.lock("job").lock().await.expect("a lease");
    // Three for each primary, and one at one of them for the inbox.
    eventually(LONG, || of_manager(&cluster.nodes, &lease).iter().sum::<usize>() == 10).await;
    let mut each = of_manager(&cluster.nodes, &lease);
    each.sort_unstable();
    assert_eq!(each, [0, 0, 0, 3, 3, 4]);

    let leases = builder().connect(&sentinels.url()).await.expect("a manager");
    let lease = leases.lock("job").lock().await.expect("a lease");
    let primary = || of_manager(std::slice::from_ref(sentinels.primary()), &lease)[0];
    eventually(LONG, || primary() == 4).await;
    eventually(LONG, || of_manager(&sentinels.sentinels, &lease) == [1, 1, 1]).await;
}
