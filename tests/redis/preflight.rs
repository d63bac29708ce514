//! What connecting finds in the settings of real servers.

use kit::trace::Trace;
use kit::{Cluster, Proxy, Sentinels, Server, eventually, permissions, within};
use leasehold::store::{Check, ConnectOptions, Quorum, RedisStore, Unfit};
use leasehold::{Builder, Error, ErrorKind, LeaseManager, Preflight};
use std::error::Error as _;
use std::time::Duration;
use tracing::Level;

const LONG: Duration = Duration::from_secs(30);
/// Keeps all that a single server should keep.
const DURABLE: [&str; 2] = ["--appendonly", "yes"];
/// May evict leases.
const EVICTING: [&str; 4] = ["--maxmemory", "100mb", "--maxmemory-policy", "volatile-ttl"];

/// Its lines are written under the subscriber of the test, not that of all threads.
fn here(preflight: Preflight) -> Builder {
    LeaseManager::builder().dedicated_thread(false).preflight(preflight)
}

/// The warnings about settings, each with the server that it names.
fn warnings(trace: &Trace) -> Vec<(String, String)> {
    let of_settings = trace.events().into_iter().filter(|event| !event.field("check").is_empty());
    of_settings
        .map(|event| {
            assert_eq!(event.level, Level::WARN);
            assert_eq!(event.target, "leasehold::store::redis::checks::settings");
            (event.field("server").to_owned(), event.message().to_owned())
        })
        .collect()
}

/// What was found, in order, as (server, check).
fn found(error: &Error) -> Vec<(String, Check)> {
    assert_eq!(error.kind(), ErrorKind::Unfit, "{error}");
    assert!(!error.is_retryable());
    let unfit = error.source().and_then(|source| source.downcast_ref::<Unfit>()).expect("typed");
    for finding in unfit.findings() {
        assert!(error.to_string().contains(&finding.to_string()), "{error} lacks {finding}");
    }
    unfit.findings().iter().map(|finding| (finding.server.clone(), finding.check)).collect()
}

async fn refused(url: &str) -> Error {
    here(Preflight::refuse()).connect(url).await.expect_err("refused")
}

fn place(server: &Server) -> String {
    format!("127.0.0.1:{}", server.port())
}

fn evict(server: &Server) {
    server.command(&["CONFIG", "SET", "maxmemory", "100mb"]);
    server.command(&["CONFIG", "SET", "maxmemory-policy", "volatile-ttl"]);
}

#[tokio::test]
async fn server_that_keeps_leases_is_connected_without_a_word() {
    let server = Server::start_with(&DURABLE);
    let (trace, _guard) = Trace::of_this_thread();
    let leases = here(Preflight::refuse()).connect(server.url()).await.expect("a manager");
    leases.close().await.expect("closed");
    // A limit alone evicts nothing.
    server.command(&["CONFIG", "SET", "maxmemory", "100mb"]);
    let leases = LeaseManager::builder().dedicated_thread(false);
    leases.connect(server.url()).await.expect("a manager").close().await.expect("closed");
    assert_eq!(warnings(&trace), []);
}

#[tokio::test]
async fn each_setting_that_costs_leases_is_one_warning_by_default() {
    let server = Server::start_with(&EVICTING);
    let (trace, _guard) = Trace::of_this_thread();
    let leases = LeaseManager::builder().dedicated_thread(false);
    let leases = leases.connect(server.url()).await.expect("a manager");
    let lines = warnings(&trace);
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines.iter().all(|(named, _)| *named == place(&server)), "{lines:?}");
    assert!(lines[0].1.contains("volatile-ttl; set maxmemory-policy noeviction"), "{lines:?}");
    assert!(lines[1].1.contains("set appendonly yes"), "{lines:?}");
    // It serves all the same.
    leases.lock("job").lock().await.expect("a lease").unlock().await.expect("released");
}

#[tokio::test]
async fn refusal_lists_all_findings_and_leaves_nothing_connected() {
    let server = Server::start_with(&EVICTING);
    let mut look = server.connection();
    let mut clients = || look.command(&["CLIENT", "LIST"]).text().lines().count();
    assert_eq!(clients(), 1);
    let expected = [Check::Eviction, Check::Persistence].map(|check| (place(&server), check));
    assert_eq!(found(&refused(&server.url()).await), expected);
    eventually(LONG, || clients() == 1).await;
    // On threads of its own, and without a manager.
    let error = LeaseManager::builder().preflight(Preflight::refuse()).connect(server.url()).await;
    assert_eq!(found(&error.expect_err("refused")), expected);
    let options = ConnectOptions::new().preflight(Preflight::refuse());
    let error = RedisStore::connect_with(&server.url(), &options).await.expect_err("refused");
    assert_eq!(found(&error), expected);
    eventually(LONG, || clients() == 1).await;
    assert_eq!(server.command(&["DBSIZE"]).int(), 0, "and nothing was tried out");
}

#[tokio::test]
async fn info_is_asked_for_once_and_not_at_all_when_off() {
    let server = Server::start();
    let mut counts = Vec::new();
    for preflight in [Preflight::off(), Preflight::warn()] {
        let (trace, _guard) = Trace::of_this_thread();
        let proxy = Proxy::start(server.port());
        let leases = here(preflight).connect(proxy.url()).await.expect("a manager");
        leases.lock("job").lock().await.expect("a lease").unlock().await.expect("released");
        leases.close().await.expect("closed");
        counts.push((proxy.count("INFO"), warnings(&trace).len()));
    }
    // The client asks once for each connection, by itself. The check asks once, and the connection for wake-ups, which
    // must lead to the same server.
    let [off, warn] = counts[..] else { unreachable!() };
    assert_eq!((off.1, warn), (0, (off.0 + 2, 1)), "{counts:?}");
}

#[tokio::test]
async fn finding_that_is_allowed_is_neither_refused_nor_a_warning() {
    let server = Server::start_with(&EVICTING);
    let (trace, _guard) = Trace::of_this_thread();
    let one = Preflight::refuse().allow(Check::Eviction);
    let error = here(one).connect(server.url()).await.expect_err("refused for the other");
    assert_eq!(found(&error), [(place(&server), Check::Persistence)]);
    let leases = here(one.allow(Check::Persistence)).connect(server.url()).await.expect("fit");
    leases.close().await.expect("closed");
    assert_eq!(warnings(&trace), []);
    let warn = Preflight::warn().allow(Check::Persistence);
    let leases = here(warn).connect(server.url()).await.expect("a manager");
    leases.close().await.expect("closed");
    let lines = warnings(&trace);
    assert!(matches!(&lines[..], [(_, line)] if line.contains("noeviction")), "{lines:?}");
}

#[tokio::test]
async fn user_that_may_not_ask_is_the_one_finding() {
    let server = Server::start_with(&DURABLE);
    let permissions = permissions::of_one_server();
    server.command(&[&["ACL", "SETUSER", "lease", "on", ">secret"], &permissions[..]].concat());
    let url = server.url_as("lease", "secret", 0);
    let builder = here(Preflight::warn()).prefix("app:");
    let (trace, _guard) = Trace::of_this_thread();
    let leases = builder.clone().connect(&url).await.expect("a manager");
    let lines = warnings(&trace);
    assert!(matches!(&lines[..], [(_, line)] if line.contains("grant +info")), "{lines:?}");
    leases.close().await.expect("closed");
    let error = builder.clone().preflight(Preflight::refuse()).connect(&url).await;
    let error = error.expect_err("refused");
    assert_eq!(found(&error), [(place(&server), Check::Info)]);
    assert!(!format!("{error:?}").contains("secret"), "{error:?}");
    server.command(&["ACL", "SETUSER", "lease", "+info"]);
    let leases = builder.preflight(Preflight::refuse()).connect(&url).await.expect("fit");
    leases.close().await.expect("closed");
}

#[tokio::test]
async fn password_that_is_missing_is_no_finding() {
    let server = Server::start_with(&["--requirepass", "secret"]);
    for preflight in [Preflight::warn(), Preflight::refuse()] {
        let error = here(preflight).connect(server.url()).await.expect_err("no password");
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    }
}

#[tokio::test]
async fn replica_is_found_before_it_refuses_writes() {
    let primary = Server::start();
    let of = ["--replicaof", "127.0.0.1", &primary.port().to_string()];
    let replica = Server::start_with(&[&DURABLE[..], &of].concat());
    let (trace, _guard) = Trace::of_this_thread();
    assert_eq!(found(&refused(&replica.url()).await), [(place(&replica), Check::Role)]);
    let error = here(Preflight::warn()).connect(replica.url()).await.expect_err("read-only");
    assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
    let lines = warnings(&trace);
    assert!(matches!(&lines[..], [(_, line)] if line.contains("is a replica")), "{lines:?}");
}

#[tokio::test]
async fn replicas_that_are_demanded_and_not_there_are_found() {
    let server = Server::start_with(&DURABLE);
    let builder = here(Preflight::refuse()).replicas(1, Duration::from_millis(500));
    let error = builder.clone().connect(server.url()).await.expect_err("refused");
    assert_eq!(found(&error), [(place(&server), Check::Replicas)]);
    assert!(error.to_string().contains("too few replicas (0)"), "{error}");
    let of = ["--replicaof", "127.0.0.1", &server.port().to_string()];
    let _replica = Server::start_with(&of);
    eventually(LONG, || server.command(&["INFO", "replication"]).text().contains("state=online"))
        .await;
    builder.connect(server.url()).await.expect("fit").close().await.expect("closed");
}

#[tokio::test]
async fn reconnect_finds_what_has_changed_and_repeats_nothing() {
    let server = Server::start();
    let (trace, _guard) = Trace::of_this_thread();
    let leases = here(Preflight::warn()).connect(server.url()).await.expect("a manager");
    assert_eq!(warnings(&trace).len(), 1);
    evict(&server);
    for _ in 0..2 {
        server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
        eventually(LONG, || warnings(&trace).len() > 1).await;
        // Answered over the new connection.
        let lease = within(LONG, leases.lock("job").lock()).await.expect("a lease");
        lease.unlock().await.expect("released");
    }
    let lines = warnings(&trace);
    assert!(matches!(&lines[..], [_, (_, line)] if line.contains("noeviction")), "{lines:?}");
}

#[tokio::test]
async fn quorum_names_its_nodes_and_needs_no_file() {
    let [one, two, three] = [0, 1, 2].map(|_| Server::start());
    let urls = [&one, &two, &three].map(Server::url).join(",");
    here(Preflight::refuse()).connect(&urls).await.expect("fit").close().await.expect("closed");
    evict(&two);
    evict(&three);
    let expected = [2, 3].map(|node| (format!("node {node}"), Check::Eviction));
    assert_eq!(found(&refused(&urls).await), expected);
    let options = ConnectOptions::new().preflight(Preflight::refuse());
    let error = Quorum::connect_with(&urls, &options).await.expect_err("refused");
    assert_eq!(found(&error), expected);
    let (trace, _guard) = Trace::of_this_thread();
    let leases = here(Preflight::warn()).connect(&urls).await.expect("a manager");
    let mut lines = warnings(&trace);
    lines.sort();
    assert!(matches!(&lines[..], [(two, _), (three, _)] if two == "node 2" && three == "node 3"));
    drop(leases);
}

#[tokio::test]
async fn node_that_comes_later_counts_when_it_is_fit() {
    let servers = [0, 1, 2].map(|_| Server::start());
    let urls = servers.each_ref().map(Server::url).join(",");
    servers[2].kill();
    let (trace, _guard) = Trace::of_this_thread();
    let leases = here(Preflight::refuse()).connect(&urls).await.expect("two of three");
    servers[2].restart();
    // It is asked once a second; this is there before.
    evict(&servers[2]);
    let refusals = || {
        let events = trace.events();
        let refused = events.iter().filter(|event| event.message() == "a node does not count");
        refused.map(|event| event.field("error").to_owned()).collect::<Vec<_>>()
    };
    eventually(LONG, || !refusals().is_empty()).await;
    assert!(refusals()[0].contains("node 3 may evict"), "{:?}", refusals());
    servers[2].command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    // A node that counts is renewed and subscribed to: it has connections that stay.
    let mut look = servers[2].connection();
    eventually(LONG, || look.command(&["CLIENT", "LIST"]).text().lines().count() > 3).await;
    assert_eq!(refusals().len(), 1, "told once: {:?}", refusals());
    leases.close().await.expect("closed");
}

#[tokio::test]
async fn cluster_names_the_server_and_one_denial_for_all() {
    let cluster = tokio::task::spawn_blocking(Cluster::start_durable).await.expect("a cluster");
    cluster.nodes.iter().for_each(|node| _ = node.command(&["CONFIG", "SET", "appendonly", "yes"]));
    let fit = here(Preflight::refuse().allow(Check::Failover)).connect(cluster.url()).await;
    fit.expect("fit").close().await.expect("");
    evict(&cluster.nodes[1]);
    let server = format!("127.0.0.1:{}", cluster.nodes[1].port());
    let checks = found(&refused(&cluster.url()).await);
    assert!(checks.contains(&(server, Check::Eviction)), "{checks:?}");
    // As if it were a single server.
    let one = format!("redis://127.0.0.1:{}", cluster.nodes[0].port());
    let error = refused(&one).await;
    assert_eq!(found(&error), [(place(&cluster.nodes[0]), Check::ClusterMode)]);
    assert!(error.to_string().contains("write redis-cluster://"), "{error}");
    // It holds for all servers, and is said once.
    let failovers = checks.iter().filter(|(_, check)| *check == Check::Failover);
    assert_eq!((failovers.count(), checks.len()), (1, 2), "{checks:?}");
    let permissions = ["ACL", "SETUSER", "lease", "on", ">secret", "~*", "&*", "+@all", "-info"];
    cluster.nodes.iter().for_each(|node| _ = node.command(&permissions));
    let url = cluster.url().replace("redis-cluster://", "redis-cluster://lease:secret@");
    let error = refused(&url).await;
    let checks: Vec<Check> = found(&error).into_iter().map(|(_, check)| check).collect();
    assert_eq!(checks, [Check::Info, Check::Failover], "each is allowed by its own name");
}

#[tokio::test]
async fn next_primary_is_checked_after_a_failover() {
    let all = tokio::task::spawn_blocking(|| Sentinels::start("")).await.expect("sentinels");
    let (trace, _guard) = Trace::of_this_thread();
    let leases = here(Preflight::warn()).connect(all.url()).await.expect("a manager");
    let lines = warnings(&trace);
    assert!(lines.iter().all(|(server, _)| *server == place(&all.servers[0])), "{lines:?}");
    let [(_, durable), (_, failover)] = &lines[..] else { panic!("{lines:?}") };
    assert!(durable.contains("appendonly") && failover.contains("set replicas(1"), "{lines:?}");
    all.servers[1..].iter().for_each(evict);
    let asked = all.sentinels[0].command(&["SENTINEL", "FAILOVER", kit::topology::SERVICE]);
    assert_eq!(asked.text(), "OK");
    let evicting = || warnings(&trace).into_iter().find(|(_, line)| line.contains("noeviction"));
    eventually(LONG, || evicting().is_some()).await;
    let (server, _) = evicting().expect("a warning");
    assert!(all.servers[1..].iter().any(|next| place(next) == server), "{server}");
    let failovers = warnings(&trace).iter().filter(|(_, line)| line.contains("replicas(1")).count();
    assert_eq!(failovers, 1, "it holds for each primary, and is said once");
    leases.close().await.expect("closed");
}
