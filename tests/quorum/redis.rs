//! A quorum of real servers, which are killed, stopped, flushed and restarted.

use kit::look::{channel, subscribers};
use kit::{Mode, Proxy, Reply, Server, connect_in_the_end, eventually, within};
use leasehold::store::{Name, Quorum, Reserve, Reserved, Store, Uptime};
use leasehold::testing::Harness;
use leasehold::{Error, ErrorKind, Lease, LeaseManager, LeaseState, Loss};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

mod of_three {
    leasehold::conformance_suite!(
        #[tokio::test]
        super::Servers::start(3)
    );
}

mod of_five {
    leasehold::conformance_suite!(
        #[tokio::test]
        super::Servers::start(5)
    );
}

pub(super) const T: Duration = Duration::from_secs(3);
pub(super) const LONG: Duration = Duration::from_secs(30);

pub(super) struct Servers(pub(super) Vec<Server>);

impl Servers {
    pub(super) fn start(count: usize) -> Self {
        Self::start_with(count, &[])
    }

    fn start_with(count: usize, options: &[&str]) -> Self {
        Self((0..count).map(|_| Server::start_with(options)).collect())
    }

    /// In whole seconds.
    fn uptime(&self, node: usize) -> u64 {
        let info = self.0[node].command(&["INFO", "server"]).text();
        let line = info.lines().find_map(|line| line.strip_prefix("uptime_in_seconds:"));
        line.expect("a line of INFO").trim().parse().expect("a number")
    }

    pub(super) fn urls(&self) -> String {
        let urls: Vec<String> = self.0.iter().map(Server::url).collect();
        urls.join(",")
    }

    pub(super) fn holds(&self, node: usize, key: &str) -> bool {
        // A server that was just restarted may still be loading.
        matches!(self.0[node].command(&["EXISTS", key]), Reply::Int(1))
    }
}

/// A server of the conformance suite, which restarts none, so that it need not wait until they are old enough.
#[derive(Debug)]
struct Steady(Arc<dyn Store>);

#[async_trait::async_trait]
#[deny(clippy::missing_trait_methods)]
impl Store for Steady {
    kit::delegate_store! { 0:
        clock capabilities shard acquire acquire_all is_atomic release renew resize
        inspect annotate describe owners force_release subscribe reconnects want inbox
        guard_key list
    }

    async fn uptime(&self, timeout: Duration) -> Result<Uptime, Error> {
        // A server that was never restarted has forgotten nothing. The suite checks that it reports its age.
        let uptime = self.0.uptime(timeout).await?;
        Ok(Uptime::new(None).with_server(uptime.server))
    }
    async fn reserve(&self, request: Reserve) -> Result<Reserved, Error> {
        let Reserved { uptime, verdicts, .. } = self.0.reserve(request).await?;
        Ok(Reserved::new(Uptime::new(None).with_server(uptime.server), verdicts))
    }
    async fn close(&self, timeout: Duration) {
        self.0.close(timeout).await;
    }
}

#[async_trait::async_trait]
impl Harness for Servers {
    async fn store(&self) -> Arc<dyn Store> {
        let mut nodes = Vec::new();
        for server in &self.0 {
            let url = server.url();
            let node = leasehold::testing::redis_store(&url, Duration::from_secs(30)).await;
            let node = Steady(node.expect("the server is there"));
            nodes.push(Arc::new(node) as Arc<dyn Store>);
        }
        Arc::new(Quorum::new(nodes).expect("enough nodes"))
    }

    async fn lose(&self, name: &Name) {
        for server in &self.0 {
            server.command(&["DEL", name.as_str()]).int();
        }
    }

    async fn occupy(&self, name: &Name) -> bool {
        for server in &self.0 {
            assert_eq!(server.command(&["SET", name.as_str(), "7"]).text(), "OK");
        }
        true
    }

    fn ttl(&self) -> Duration {
        Duration::from_millis(600)
    }

    fn keeps_arrivals_of_readers(&self) -> bool {
        false
    }

    /// Several servers do not run an operation at the same moment.
    fn slack(&self) -> Duration {
        Duration::from_millis(50)
    }
}

pub(super) async fn connect(urls: &str) -> LeaseManager {
    connect_in_the_end(LeaseManager::builder().ttl(T), urls).await
}

/// A stall of the machine longer than the time limit of an attempt fails it, so ask again.
pub(super) async fn lock(leases: &LeaseManager, name: &str) -> Lease {
    let start = Instant::now();
    loop {
        match leases.lock(name).lock().await {
            Ok(lease) => return lease,
            Err(error) => assert!(start.elapsed() < LONG, "{error}"),
        }
    }
}

/// Works on under the lock for a while; the lease must be held all the time.
pub(super) async fn held_for(lease: &Lease, time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        lease.check().expect("held");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn lease_outlives_two_of_five_servers_and_not_three() {
    let servers = Servers::start(5);
    let leases = connect(&servers.urls()).await;
    let lease = lock(&leases, "job").await;
    servers.0[0].kill();
    servers.0[1].pause();
    held_for(&lease, T * 2).await;
    lock(&leases, "other").await.unlock().await.expect("three of five are enough");

    servers.0[2].kill();
    let killed = Instant::now();
    assert_eq!(within(LONG, lease.lost()).await, Loss::Expired);
    assert!(killed.elapsed() <= T, "{:?}", killed.elapsed());
    let error = leases.lock("third").try_lock().await.expect_err("two of five");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("node 1: "), "{error}");

    servers.0[1].resume();
    servers.0[0].restart();
    lock(&leases, "job").await.unlock().await.expect("three of five again");
}

#[tokio::test]
async fn flushed_or_restarted_server_gets_the_key_back() {
    let servers = Servers::start(3);
    let leases = connect(&servers.urls()).await;
    // They were just started, and count after T.
    let lease = lock(&leases, "job").await;
    servers.0[0].command(&["FLUSHALL"]);
    eventually(LONG, || servers.holds(0, "job")).await;
    servers.0[1].restart();
    eventually(LONG, || servers.holds(1, "job")).await;
    lease.check().expect("held all the time");
    lease.unlock().await.expect("held");
    eventually(LONG, || (0..3).all(|node| !servers.holds(node, "job"))).await;
}

/// A has servers 1 and 2, server 2 restarts empty, and B reaches 2 and 3.
#[tokio::test]
async fn restarted_server_does_not_help_a_second_holder() {
    one_at_a_time_though_a_server_forgets(&[]).await;
}

/// The same where the servers keep their keys on disk, and one comes back with another, empty disk.
#[tokio::test]
async fn server_replaced_with_an_aof_does_not_help_a_second_holder() {
    one_at_a_time_though_a_server_forgets(&["--appendonly", "yes"]).await;
}

async fn one_at_a_time_though_a_server_forgets(options: &[&str]) {
    let servers = Servers::start_with(3, options);
    let proxy = Proxy::start(servers.0[2].port());
    let [one, two, _] = [0, 1, 2].map(|node: usize| servers.0[node].url());
    let here = connect(&format!("{one},{two},{}", proxy.url())).await;
    let there = connect(&servers.urls()).await;
    lock(&there, "warm").await.unlock().await.expect("all are old enough");
    proxy.set(Mode::Refuse);
    let lease = lock(&here, "job").await;
    assert!(servers.holds(0, "job") && servers.holds(1, "job") && !servers.holds(2, "job"));

    servers.0[1].kill();
    servers.0[1].wipe();
    servers.0[1].restart();
    assert!(!servers.holds(1, "job"), "it has forgotten");
    let mut other = there.lock("job");
    let start = Instant::now();
    let second = loop {
        if let Ok(Some(second)) = other.try_lock().await {
            break second;
        }
        assert!(start.elapsed() < LONG);
    };
    assert!(lease.check().is_err(), "two holders {:?} after the restart", start.elapsed());
    drop(second);
}

#[tokio::test]
async fn replies_that_stay_away_from_one_server_cost_a_bounded_time() {
    let servers = Servers::start(3);
    let proxies: Vec<Proxy> = servers.0.iter().map(|server| Proxy::start(server.port())).collect();
    let urls: Vec<String> = proxies.iter().map(Proxy::url).collect();
    let leases = connect(&urls.join(",")).await;
    let lease = lock(&leases, "job").await;
    for proxy in &proxies {
        proxy.set(Mode::HoldReplies);
        held_for(&lease, T).await;
        lock(&leases, "other").await.unlock().await.expect("two of three answer");
        proxy.set(Mode::Pass);
        // Its connections are made again. The next server is disturbed only after that.
        held_for(&lease, T).await;
    }
    lease.unlock().await.expect("held");
    let clean = |server: &Server| server.command(&["EXISTS", "job", "other"]).int() == 0;
    eventually(LONG, || servers.0.iter().all(clean)).await;
}

/// What was ordered during the outage may come to the server after it, when nobody waits any more.
#[tokio::test]
async fn outage_of_a_server_leaves_no_subscription_there() {
    const NAMES: usize = 8;
    let servers = Servers::start(3);
    let proxy = Proxy::start(servers.0[0].port());
    let urls = format!("{},{},{}", proxy.url(), servers.0[1].url(), servers.0[2].url());
    let (here, there) = (connect(&urls).await, connect(&servers.urls()).await);
    let names: Vec<String> = (0..NAMES).map(|at| format!("job:{at}")).collect();
    let mut held = vec![lock(&there, "last").await];
    for name in &names {
        held.push(lock(&there, name).await);
    }
    let mut connection = servers.0[0].connection();
    for round in 0..5 {
        let mut waiters = JoinSet::new();
        proxy.set(Mode::Refuse);
        for (at, name) in names.iter().enumerate() {
            let mut lock = here.lock(name);
            waiters.spawn(async move {
                let time = Duration::from_millis(20 * (1 + round) + 10 * at as u64);
                assert!(!matches!(lock.lock_timeout(time).await, Ok(Some(_))), "held by another");
            });
        }
        while let Some(waited) = waiters.join_next().await {
            waited.expect("no panic");
        }
        proxy.set(Mode::Pass);
        let mut last = here.lock("last");
        waiters.spawn(async move { assert!(last.lock().await.is_err(), "held by another") });
        eventually(LONG, || subscribers(&mut connection, &channel("last")) == 1).await;
        waiters.shutdown().await;
        eventually(LONG, || kit::look::channels(&mut connection).is_empty()).await;
    }
    drop(held);
}

#[tokio::test]
async fn server_that_is_down_at_the_start_joins_later() {
    let servers = Servers::start(3);
    servers.0[1].kill();
    let leases = connect(&servers.urls()).await;
    let lease = lock(&leases, "job").await;
    servers.0[1].restart();
    eventually(LONG, || {
        lease.check().expect("held");
        servers.holds(1, "job")
    })
    .await;
    // It counts when it has been up for T, by its count of whole seconds.
    eventually(LONG, || servers.uptime(1) > T.as_secs() + 2).await;
    servers.0[0].kill();
    held_for(&lease, T * 2).await;
    lease.unlock().await.expect("held by the other two");
}

#[tokio::test]
async fn connect_without_a_majority_fails_and_names_each_node() {
    let servers = Servers::start(3);
    servers.0[0].kill();
    servers.0[1].kill();
    let error = LeaseManager::connect(&servers.urls()).await.expect_err("one of three");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    for part in ["node 1: unavailable", "node 2: unavailable", "node 3: up"] {
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[tokio::test]
async fn wrong_credentials_at_one_node_fail_the_whole() {
    let servers = Servers::start(3);
    let wrong = servers.0[2].url_as("nobody", "hunter2", 0);
    let urls = format!("{},{},{wrong}", servers.0[0].url(), servers.0[1].url());
    let error = LeaseManager::connect(&urls).await.expect_err("a wrong password");
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(!format!("{error:?} {error}").contains("hunter2"));
}

/// Its vote would count twice, and its end would be that of two nodes.
#[tokio::test]
async fn one_server_under_two_names_is_refused() {
    let servers = Servers::start(2);
    let [one, two] = [0, 1].map(|node: usize| servers.0[node].url());
    let other_name = one.replace("127.0.0.1", "localhost");
    let error = LeaseManager::connect(&format!("{one},{two},{other_name}")).await;
    let error = error.expect_err("two servers are no quorum");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("node 1 and node 3"), "{error}");
    // The same text is seen before any process connects.
    let error = LeaseManager::connect(&format!("{one},{two},{one}")).await.expect_err("twice");
    assert!(error.to_string().contains("URL 1 and URL 3"), "{error}");
}

/// The address of node 2 leads to the server of node 1 after the start.
///
/// The other two servers are held by another manager, which cannot reach the first.
#[tokio::test]
async fn server_that_two_addresses_lead_to_votes_once() {
    const NAMES: usize = 150;
    let servers = Servers::start(3);
    let (moved, cut) = (Proxy::start(servers.0[1].port()), Proxy::start(servers.0[0].port()));
    let [one, two, three] = [0, 1, 2].map(|node: usize| servers.0[node].url());
    let here = connect(&format!("{one},{},{three}", moved.url())).await;
    let there = connect(&format!("{},{two},{three}", cut.url())).await;
    for leases in [&here, &there] {
        lock(leases, "warm").await.unlock().await.expect("all are old enough");
    }
    cut.set(Mode::Refuse);
    moved.lead_to(servers.0[0].port());
    let mut held = Vec::new();
    for at in 0..NAMES {
        held.push(lock(&there, &format!("job:{at}")).await);
    }
    let mut both = 0;
    for (at, lease) in held.iter().enumerate() {
        let second = here.lock(format!("job:{at}")).try_lock().await;
        both += usize::from(matches!(second, Ok(Some(_))) && lease.check().is_ok());
    }
    assert_eq!(both, 0, "of {NAMES} names have two holders");
    // What is free has two servers of three.
    lock(&here, "other").await.unlock().await.expect("held");
}

/// The same for a lease that is held: its renewals have one server of three.
#[tokio::test]
async fn lease_is_not_renewed_twice_at_one_server() {
    let servers = Servers::start(3);
    let (moved, cut) = (Proxy::start(servers.0[1].port()), Proxy::start(servers.0[2].port()));
    let here = connect(&format!("{},{},{}", servers.0[0].url(), moved.url(), cut.url())).await;
    let there = connect(&servers.urls()).await;
    for leases in [&here, &there] {
        lock(leases, "warm").await.unlock().await.expect("all are old enough");
    }
    cut.set(Mode::Refuse);
    let lease = lock(&here, "job").await;
    assert!(servers.holds(0, "job") && servers.holds(1, "job") && !servers.holds(2, "job"));

    moved.lead_to(servers.0[0].port());
    let mut other = there.lock("job");
    let start = Instant::now();
    let second = loop {
        if let Ok(Some(second)) = other.lock_timeout(T).await {
            break second;
        }
        assert!(start.elapsed() < LONG);
    };
    assert!(lease.check().is_err(), "two holders {:?} after the move", start.elapsed());
    second.unlock().await.expect("held");
    let error = here.lock("free").try_lock().await.expect_err("one server of three");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("which votes once"), "{error}");
    // With the third server there are two again.
    cut.set(Mode::Pass);
    let lease = lock(&here, "job").await;
    held_for(&lease, T * 2).await;
    lease.unlock().await.expect("held");
}

/// A node whose user may not read the age could never count.
#[tokio::test]
async fn missing_right_to_info_shows_at_the_start() {
    let servers = Servers::start(3);
    for server in &servers.0 {
        server.command(&["ACL", "SETUSER", "lease", "on", ">pw", "~*", "&*", "+@all", "-info"]);
    }
    let urls: Vec<String> = servers.0.iter().map(|s| s.url_as("lease", "pw", 0)).collect();
    let error = LeaseManager::connect(&urls.join(",")).await.expect_err("no right");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
}

/// What one server needs (see `redis_errors`), and `+info`.
#[tokio::test]
async fn documented_permissions_are_enough_for_a_quorum() {
    let servers = Servers::start(3);
    let keys = ["~app:*", "~redisson_lock_token:{app:*", "&redisson_lock__channel:{app:*"];
    let permissions = "-@all +eval +evalsha +hset +hdel +hexists +hgetall +pexpire +pttl +time +get +set +exists +del \
                  +publish +subscribe +unsubscribe +info";
    for server in &servers.0 {
        let mut user = vec!["ACL", "SETUSER", "lease", "on", ">pw"];
        user.extend(keys);
        user.extend(permissions.split_whitespace());
        assert_eq!(server.command(&user).error(), None);
    }
    let urls: Vec<String> = servers.0.iter().map(|s| s.url_as("lease", "pw", 0)).collect();
    // The keys may begin with a prefix, or the names without one.
    for (prefix, name) in [("app:", "job"), ("", "app:job")] {
        let leases = LeaseManager::builder().ttl(T).prefix(prefix).connect(&urls.join(",")).await;
        let leases = leases.expect("permissions enough");
        let lease = lock(&leases, name).await;
        held_for(&lease, T).await;
        assert!(leases.inspect(name).await.expect("permissions enough").is_some());
        lease.unlock().await.expect("held");
    }
}

/// A managed endpoint as a node: its server is demoted and keeps its connections, new ones lead to the next primary.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_that_is_demoted_behind_its_address_votes_again() {
    let servers = Servers::start(3);
    let next = Server::start_with(&["--replicaof", "127.0.0.1", &servers.0[2].port().to_string()]);
    let proxy = Proxy::start(servers.0[2].port());
    let urls = [servers.0[0].url(), servers.0[1].url(), proxy.url()].join(",");
    // Servers count once they are old enough.
    eventually(LONG, || servers.uptime(2) > T.as_secs() + 2).await;
    let leases = connect(&urls).await;
    let held = lock(&leases, "job").await;
    eventually(LONG, || matches!(next.command(&["EXISTS", "job"]), Reply::Int(1))).await;
    next.command(&["REPLICAOF", "NO", "ONE"]);
    proxy.lead_new_to(next.port());
    servers.0[2].command(&["REPLICAOF", "127.0.0.1", &next.port().to_string()]);
    // A key at the next primary shows that the node is asked there, and grants.
    let start = Instant::now();
    for round in 0.. {
        let name = format!("free {round}");
        let mut lock = leases.lock(&name);
        let lease = within(LONG, lock.lock()).await.expect("two nodes grant");
        tokio::time::sleep(Duration::from_millis(100)).await;
        if next.command(&["EXISTS", &name]).int() == 1 {
            lease.unlock().await.expect("a release");
            break;
        }
        assert!(start.elapsed() < LONG, "the node stays at the server that was demoted");
    }
    assert_eq!(held.state(), LeaseState::Held);
    held.unlock().await.expect("a release");
}
