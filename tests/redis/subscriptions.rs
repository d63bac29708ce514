//! Subscriptions that are refused, that die, that stay at another server, and wakers that panic under them.

use super::errors::{lease_url, set_user};
use super::lock;
use kit::look::{channel, subscribers};
use kit::polled::polled;
use kit::reached::Must;
use kit::trace::{Trace, Traced};
use kit::{Proxy, Server, eventually, within};
use leasehold::{Builder, Lease, LeaseManager, Loss};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use tracing::Level;

const LONG: Duration = Duration::from_secs(40);
/// Polling comes too late to matter.
const NEVER: Duration = Duration::from_secs(60);
/// A wake-up by message, on a machine that does other work too.
const SOON: Duration = Duration::from_secs(1);

fn patient(ttl: Duration) -> Builder {
    LeaseManager::builder().ttl(ttl).max_poll_interval(NEVER)
}

async fn connect(url: &str) -> LeaseManager {
    patient(LONG).connect(url).await.expect("a manager")
}

fn wait_for(leases: &LeaseManager, name: &str) -> JoinHandle<(Lease, Instant)> {
    let mut lock = leases.lock(name);
    tokio::spawn(async move { (lock.lock().await.expect("a lease"), Instant::now()) })
}

async fn until_subscribed(server: &Server, name: &str) {
    let mut connection = server.connection();
    eventually(LONG, || subscribers(&mut connection, &channel(name)) >= 1).await;
}

fn inboxes(server: &Server) -> usize {
    server.command(&["PUBSUB", "CHANNELS", "leasehold_inbox:*"]).list().len()
}

/// How long after its release elsewhere a name is granted to a waiter that has subscribed.
async fn woken_after(server: &Server, holder: &LeaseManager, waits: &LeaseManager) -> Duration {
    let name = format!("job:{}", server.command(&["INCR", "rounds"]).int());
    let held = lock(holder, &name).await;
    let waiter = wait_for(waits, &name);
    until_subscribed(server, &name).await;
    held.unlock().await.expect("a release");
    let released = Instant::now();
    let (lease, at) = within(LONG, waiter).await.expect("no panic");
    lease.unlock().await.expect("a release");
    at.saturating_duration_since(released)
}

/// Returns how often a warning about the server at this port was logged: other tests log too.
fn warnings(trace: &Trace, port: u16, text: &str) -> usize {
    let server = format!("127.0.0.1:{port}");
    let is = |event: &Traced| {
        event.level == Level::WARN
            && event.field("server") == server
            && event.message().contains(text)
    };
    trace.matching(is).len()
}

/// As behind a balancer that drains: the connections of requests are closed, that of wake-ups is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscription_follows_the_requests_to_another_server() {
    let (old, new) = (Server::start(), Server::start());
    let proxy = Proxy::start(old.port());
    let (leases, there) = (connect(&proxy.url()).await, connect(&new.url()).await);
    lock(&leases, "warm").await.unlock().await.expect("a release");
    eventually(LONG, || inboxes(&old) == 1).await;
    proxy.lead_new_to(new.port());
    old.command(&["CLIENT", "KILL", "TYPE", "normal"]);
    // Its own inbox, and that of the other manager.
    eventually(LONG, || inboxes(&new) == 2).await;
    let took = woken_after(&new, &there, &leases).await;
    assert!(took < SOON, "{took:?}");
    let stolen = lock(&leases, "stolen").await;
    let thief = there.lock("stolen").steal("it hangs").await.expect("an answer").expect("a lease");
    let start = Instant::now();
    assert_eq!(within(LONG, stolen.lost()).await, Loss::Stolen);
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    drop(thief);
}

/// The requests are at the new server, and a balancer leads the first connections for wake-ups to the old one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscription_that_came_to_another_server_is_made_again() {
    let (old, new) = (Server::start(), Server::start());
    let proxy = Proxy::start(new.port());
    let leases = connect(&proxy.url()).await;
    eventually(LONG, || inboxes(&new) == 1).await;
    proxy.lead_new_to(old.port());
    new.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    let before = proxy.connections();
    eventually(LONG, || proxy.connections() > before + 1).await;
    proxy.lead_new_to(new.port());
    eventually(LONG, || inboxes(&new) == 1 && inboxes(&old) == 0).await;
    let there = connect(&new.url()).await;
    let took = woken_after(&new, &there, &leases).await;
    assert!(took < SOON, "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscription_that_dies_at_once_is_made_less_and_less_often() {
    const DEATHS: usize = 7;
    const T: Duration = Duration::from_secs(4);
    let trace = Trace::of_all_threads();
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let leases = patient(T).connect(&proxy.url()).await.expect("a manager");
    let there = connect(&server.url()).await;
    eventually(LONG, || inboxes(&server) == 2).await;
    let warned = |text: &str| warnings(&trace, proxy.port(), text);
    let before = proxy.connections();
    for n in 1..=DEATHS {
        proxy.drop_request(n, "SUBSCRIBE");
    }
    let start = Instant::now();
    server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    eventually(LONG, || inboxes(&server) == 2 && proxy.dropped() == DEATHS).await;
    // Pauses that double from 20 ms, less half of each.
    assert!(start.elapsed() > Duration::from_millis(600), "{:?}", start.elapsed());
    // Its last connection is no victim.
    assert_eq!(proxy.connections(), before + DEATHS + 1);
    assert_eq!(warned("the connection for wake-ups ends soon after it is made"), 1);
    let took = woken_after(&server, &there, &leases).await;
    assert!(took < SOON, "{took:?}");
    // It is as good as new once it has lived for a while.
    tokio::time::sleep(T).await;
    let again = Instant::now();
    proxy.close_all();
    eventually(LONG, || inboxes(&server) == 2).await;
    assert!(again.elapsed() < Duration::from_millis(700), "{:?}", again.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscription_follows_a_permission_that_goes_and_comes_back() {
    let _reached = Must::reach("RedisSubscriptionRefused");
    const T: Duration = Duration::from_secs(8);
    let trace = Trace::of_all_threads();
    let server = Server::start();
    set_user(&server, &["~*", "&*", "+@all"]);
    let leases = patient(T).connect(&lease_url(&server)).await.expect("a manager");
    let there = connect(&server.url()).await;
    eventually(LONG, || inboxes(&server) == 2).await;
    let held = lock(&there, "held").await;
    let waiter = wait_for(&leases, "held");
    until_subscribed(&server, "held").await;
    let steal = async |name: &str| {
        let mine = lock(&leases, name).await;
        let thief = there.lock(name).steal("it hangs").await.expect("an answer").expect("a lease");
        let start = Instant::now();
        assert_eq!(within(LONG, mine.lost()).await, Loss::Stolen);
        drop(thief);
        start.elapsed()
    };
    let took = steal("before").await;
    assert!(took < SOON, "{took:?}");
    let refused = || warnings(&trace, server.port(), "no wake-ups; polling instead");
    assert_eq!(refused(), 0);
    // The server closes connections with channels that are no longer allowed.
    server.command(&["ACL", "SETUSER", "lease", "resetchannels"]);
    eventually(LONG, || refused() == 1).await;
    let late = wait_for(&leases, "late");
    within(LONG, late).await.expect("no panic").0.forget();
    let took = steal("without").await;
    assert!(took < T, "{took:?}");
    tokio::time::sleep(T).await;
    server.command(&["ACL", "SETUSER", "lease", "allchannels"]);
    eventually(LONG, || inboxes(&server) == 2).await;
    until_subscribed(&server, "held").await;
    let took = steal("after").await;
    assert!(took < SOON, "{took:?}");
    let released = Instant::now();
    held.unlock().await.expect("a release");
    let (lease, at) = within(LONG, waiter).await.expect("no panic");
    assert!(at.saturating_duration_since(released) < SOON);
    lease.unlock().await.expect("a release");
    assert_eq!(refused(), 1, "it is logged once");
}

/// A waiter that came while channels were refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_refused_at_first_is_subscribed_once_permitted() {
    const T: Duration = Duration::from_secs(4);
    let server = Server::start();
    set_user(&server, &["~*", "resetchannels", "+@all"]);
    let leases = patient(T).connect(&lease_url(&server)).await.expect("a manager");
    let there = connect(&server.url()).await;
    let held = lock(&there, "held").await;
    let waiter = wait_for(&leases, "held");
    tokio::time::sleep(T / 4).await;
    server.command(&["ACL", "SETUSER", "lease", "allchannels"]);
    until_subscribed(&server, "held").await;
    held.unlock().await.expect("a release");
    let released = Instant::now();
    let (_lease, at) = within(LONG, waiter).await.expect("no panic");
    assert!(at.saturating_duration_since(released) < SOON);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscription_that_the_server_does_not_know_is_logged_once() {
    const T: Duration = Duration::from_secs(2);
    let trace = Trace::of_all_threads();
    let server = Server::start_with(&["--rename-command", "SUBSCRIBE", ""]);
    let builder = LeaseManager::builder().ttl(T).max_poll_interval(Duration::from_millis(200));
    let leases = builder.connect(&server.url()).await.expect("a manager");
    let there = connect(&server.url()).await;
    let refused = || warnings(&trace, server.port(), "no wake-ups; polling instead");
    // One of each manager.
    eventually(LONG, || refused() == 2).await;
    let held = lock(&there, "held").await;
    let waiter = wait_for(&leases, "held");
    tokio::time::sleep(T * 2).await;
    held.unlock().await.expect("a release");
    let (_lease, _) = within(LONG, waiter).await.expect("no panic");
    assert_eq!(refused(), 2);
}

struct Bomb;

impl Wake for Bomb {
    fn wake(self: Arc<Self>) {
        panic!("a waker that panics");
    }
}

/// A waiter whose waker panics, once it has subscribed, whenever a message comes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscription_outlives_a_waker_that_panics() {
    let server = Server::start();
    let (leases, there) = (connect(&server.url()).await, connect(&server.url()).await);
    let bomb = Waker::from(Arc::new(Bomb));
    for round in 0..5 {
        let name = format!("bomb:{round}");
        let held = lock(&there, &name).await;
        let mut handle = leases.lock(&name);
        let mut waiting = pin!(handle.lock());
        let mut connection = server.connection();
        // Until it waits for a message.
        while subscribers(&mut connection, &channel(&name)) == 0 {
            assert!(polled(waiting.as_mut(), 1).await.is_none());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        for _ in 0..50 {
            assert!(polled(waiting.as_mut(), 1).await.is_none());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let mut context = Context::from_waker(&bomb);
        assert!(matches!(waiting.as_mut().poll(&mut context), Poll::Pending));
        held.unlock().await.expect("a release");
        let took = woken_after(&server, &there, &leases).await;
        assert!(took < SOON, "round {round}: {took:?}");
    }
    assert_eq!(inboxes(&server), 2);
}
