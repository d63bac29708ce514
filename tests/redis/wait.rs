//! Waits end by a message, or else by the clock. They are bounded, and cost the server little.

use super::{lock, lock_by_hand, millis};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use kit::look::{calls, channel, channels, subscribers};
use kit::trace::{Trace, Traced};
use kit::{Mode, Proxy, Reply, Resp, Server, eventually, within};
use leasehold::{Builder, Error, ErrorKind, Lease, LeaseManager};
use tokio::task::{JoinHandle, JoinSet};
use tracing::Level;

const LONG: Duration = Duration::from_secs(10);
/// Far above what any test waits for: a waiter that wakes before it was woken by something else.
const NEVER: Duration = Duration::from_secs(60);

/// T is 30 s, and polling comes too late to matter.
fn patient() -> Builder {
    LeaseManager::builder().max_poll_interval(NEVER)
}

async fn connect(builder: Builder, server: &Server) -> LeaseManager {
    builder.connect(&server.url()).await.expect("a manager")
}

/// A waiter, and the moment when it was done.
fn wait_for(leases: &LeaseManager, name: &str) -> JoinHandle<(Result<Lease, Error>, Instant)> {
    let mut lock = leases.lock(name);
    tokio::spawn(async move { (lock.lock().await, Instant::now()) })
}

/// Waits until a waiter has subscribed, and has made the attempt that follows.
async fn waits(server: &Server, name: &str) {
    let mut connection = server.connection();
    eventually(LONG, || subscribers(&mut connection, &channel(name)) >= 1).await;
    settled(server).await;
}

/// Until no more scripts are called.
async fn settled(server: &Server) {
    let mut connection = server.connection();
    let mut before = calls(&mut connection, "evalsha");
    loop {
        tokio::time::sleep(millis(100)).await;
        let now = calls(&mut connection, "evalsha");
        if now == before {
            return;
        }
        before = now;
    }
}

/// Such as a process that is stopped, or a monitor.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listener_that_never_asks_keeps_no_call_from_a_free_name() {
    let server = Server::start();
    let leases = connect(patient(), &server).await;
    let mut listener = server.connection();
    listener.subscribe(&channel("job"));
    let mut refused = 0;
    for _ in 0..40 {
        let lease = lock(&leases, "job").await;
        tokio::time::sleep(millis(60)).await;
        lease.unlock().await.expect("a release");
        // Shorter than many pauses.
        match leases.lock("job").lock_timeout(millis(12)).await {
            Ok(Some(lease)) => {
                tokio::time::sleep(millis(60)).await;
                lease.unlock().await.expect("a release");
            }
            Ok(None) => refused += 1,
            // The pause has left no time for the request; or the machine is slow, which it is not most of the time.
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable);
                refused += 1;
            }
        }
    }
    assert!(refused <= 10, "{refused} of 40");
}

/// Several holders of each manager take turns at `job`; panics if two are in at once or if a fencing
/// token is not larger than the one before it. Returns how often somebody was in.
async fn take_turns(managers: &[LeaseManager], until: Instant) -> usize {
    let inside = Arc::new(AtomicBool::new(false));
    let last = Arc::new(AtomicU64::new(0));
    let turns = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for leases in managers {
        for _ in 0..3 {
            let mut lock = leases.lock("job");
            let (inside, last, turns) =
                (Arc::clone(&inside), Arc::clone(&last), Arc::clone(&turns));
            tasks.spawn(async move {
                while Instant::now() < until {
                    let lease = lock.lock().await.expect("a lease");
                    assert!(!inside.swap(true, Ordering::SeqCst), "two are in");
                    let fence = lease.fence().expect("a fencing token");
                    let before = last.swap(fence, Ordering::SeqCst);
                    assert!(before < fence, "{fence} after {before}");
                    tokio::task::yield_now().await;
                    lease.check().expect("it is held");
                    inside.store(false, Ordering::SeqCst);
                    turns.fetch_add(1, Ordering::Relaxed);
                    // A grant that is not confirmed is released in the background.
                    let _ = lease.unlock().await;
                }
            });
        }
    }
    while let Some(task) = within(LONG, tasks.join_next()).await {
        task.expect("no panic");
    }
    turns.load(Ordering::Relaxed)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_in_twice_though_connections_break_all_the_time() {
    const T: Duration = millis(3_000);
    let server = Server::start();
    let (mut managers, mut proxies) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let proxy = Proxy::start(server.port());
        let builder = LeaseManager::builder().ttl(T);
        managers.push(builder.connect(&proxy.url()).await.expect("a manager"));
        proxies.push(proxy);
    }
    let until = Instant::now() + T;
    let breaking = tokio::spawn(async move {
        for proxy in proxies.iter().cycle() {
            tokio::time::sleep(millis(60)).await;
            if Instant::now() >= until {
                break;
            }
            proxy.close_all();
        }
        proxies
    });
    let turns = take_turns(&managers, until).await;
    assert!(turns > 50, "only {turns} turns");
    drop(breaking.await.expect("no panic"));
    // Nothing is left but the memory of the fencing token.
    eventually(T / 2, || server.command(&["EXISTS", "job"]) == Reply::Int(0)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_that_share_a_channel_take_no_message_from_each_other() {
    let server = Server::start();
    let leases = connect(patient(), &server).await;
    // Redisson puts braces around a name that has none.
    for (first, second) in [("job", "{job}"), ("{job}", "job")] {
        lock_by_hand(&server, first, Duration::from_secs(30));
        lock_by_hand(&server, second, Duration::from_secs(30));
        let one = wait_for(&leases, first);
        waits(&server, "job").await;
        let two = wait_for(&leases, second);
        settled(&server).await;
        for (name, waiter) in [(second, two), (first, one)] {
            assert!(!waiter.is_finished(), "{name}");
            server.command(&["DEL", name]);
            server.command(&["PUBLISH", &channel("job"), "0"]);
            let entered = tokio::time::timeout(LONG, waiter).await;
            let (lease, _) = entered.unwrap_or_else(|_| panic!("{name} was not woken")).expect("");
            lease.expect("a lease").unlock().await.expect("a release");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_release_is_missed_however_it_meets_the_waiter() {
    const ROUNDS: usize = 60;
    // A missed message would cost 30 s.
    let server = Server::start();
    lock_by_hand(&server, "job", Duration::from_secs(30));
    let rounds = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    let mut managers = Vec::new();
    for _ in 0..3 {
        managers.push(connect(patient(), &server).await);
    }
    for leases in &managers {
        for _ in 0..2 {
            let mut lock = leases.lock("job");
            let rounds = Arc::clone(&rounds);
            tasks.spawn(async move {
                for round in 0..ROUNDS {
                    let lease = lock.lock().await.expect("a lease");
                    rounds.fetch_add(1, Ordering::Relaxed);
                    // The moments at which the others meet a release are to differ.
                    tokio::time::sleep(Duration::from_micros(97 * (round as u64 % 7))).await;
                    if round % 2 == 0 {
                        lease.unlock().await.expect("a release");
                    }
                }
            });
        }
    }
    // While its subscription is on the way, a waiter may have to poll; here all are there.
    let mut connection = server.connection();
    eventually(LONG, || subscribers(&mut connection, &channel("job")) == 3).await;
    settled(&server).await;
    server.command(&["DEL", "job"]);
    server.command(&["PUBLISH", &channel("job"), "0"]);
    let all = tokio::time::timeout(Duration::from_secs(25), tasks.join_all()).await;
    assert!(all.is_ok(), "only {rounds:?} rounds of {}", 6 * ROUNDS);
}

/// The subscription travels over a connection of its own, and may be slower than the request that follows it.
#[tokio::test]
async fn release_is_not_missed_though_the_subscription_is_late() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let holder = connect(patient(), &server).await;
    let waiter = patient().connect(&proxy.url()).await.expect("a manager");
    let lease = lock(&holder, "job").await;
    proxy.delay_request(1, &channel("job"), millis(400));
    let next = wait_for(&waiter, "job");
    // It has asked once, and perhaps once more.
    eventually(LONG, || proxy.requests().iter().any(|words| words.contains(&"job".to_owned())))
        .await;
    tokio::time::sleep(millis(200)).await;
    lease.unlock().await.expect("held");
    let (next, _) = within(LONG, next).await.expect("no panic");
    next.expect("granted").unlock().await.expect("held");
}

/// One waiter looks every so often; by itself it would be every second.
async fn polls(server: &Server, bound: Duration) {
    let mut connection = server.connection();
    let before = calls(&mut connection, "evalsha");
    // A loaded machine delays this as it delays the waiter.
    for _ in 0..10 {
        tokio::time::sleep(bound).await;
    }
    let looks = calls(&mut connection, "evalsha") - before;
    assert!((6..=13).contains(&looks), "{looks} looks");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_without_a_right_to_the_channel_polls() {
    const BOUND: Duration = millis(200);
    let trace = Trace::of_all_threads();
    let server = Server::start();
    server.command(&["ACL", "SETUSER", "deaf", "on", ">secret", "~*", "+@all", "resetchannels"]);
    let url = server.url_as("deaf", "secret", 0);
    let leases = LeaseManager::builder()
        .max_poll_interval(BOUND)
        .connect(&url)
        .await
        .expect("messages are a hint only");
    // Its try-out could not be heard.
    let warns = |event: &Traced| {
        event.level == Level::WARN && event.message().contains("refused to wake waiters")
    };
    let warnings = || trace.matching(warns).len();
    let reported = warnings();
    assert!(reported > 0);
    for round in 1..=2 {
        lock_by_hand(&server, "unheard", Duration::from_secs(30));
        let waiter = wait_for(&leases, "unheard");
        polls(&server, BOUND).await;
        assert!(!waiter.is_finished());
        server.command(&["DEL", "unheard"]);
        let (lease, _) = within(LONG, waiter).await.expect("no panic");
        // Its release cannot be published, and is one all the same.
        lease.expect("a lease").unlock().await.expect("a release");
        assert_eq!(server.command(&["EXISTS", "unheard"]), Reply::Int(0));
        assert!(warnings() >= reported + round);
    }
}

/// Waits until the connection for wake-ups of a waiting runtime is there, beside those of this many inboxes, and has the
/// channels of these names.
async fn until_at_runtime(connection: &mut Resp, inboxes: usize, names: &[impl AsRef<str>]) {
    eventually(LONG, || {
        let list = connection.command(&["CLIENT", "LIST", "TYPE", "pubsub"]).text();
        let has_all = list.contains(&format!(" sub={} ", names.len()));
        let mut subscribed =
            names.iter().map(|name| subscribers(connection, &channel(name.as_ref())));
        list.lines().count() == inboxes + 1 && has_all && subscribed.all(|count| count == 1)
    })
    .await;
}

/// As behind a router that forgets connections on which nothing moves: nobody is told, and new ones work.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscription_gone_silent_is_replaced_while_somebody_waits() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let here = connect(patient(), &server).await;
    let there = patient().ttl(Duration::from_secs(3)).connect(&proxy.url()).await;
    let there = there.expect("a manager");
    let mut connection = server.connection();
    let mut ids = || {
        let list = connection.command(&["CLIENT", "LIST", "TYPE", "pubsub"]).text();
        let id = |line: &str| line.split(' ').next().map(str::to_owned);
        list.lines().filter_map(id).collect::<Vec<_>>()
    };
    let lease = lock(&here, "job").await;
    let waiter = wait_for(&there, "job");
    waits(&server, "job").await;
    // One of each manager, for its inbox, and one of this runtime, which waits.
    eventually(LONG, || ids().len() == 3).await;
    let before = ids();
    proxy.silence_subscribers();
    eventually(LONG, || ids().iter().filter(|id| !before.contains(id)).count() == 2).await;
    // Polling would come too late.
    let mut connection = server.connection();
    eventually(LONG, || subscribers(&mut connection, &channel("job")) >= 1).await;
    lease.unlock().await.expect("a release");
    let (lease, _) = within(LONG, waiter).await.expect("no panic");
    lease.expect("a lease").unlock().await.expect("a release");
}

/// What was tried in it is not made up for after it, one reconnect after the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_is_subscribed_once_after_an_outage_however_long() {
    let server = Server::start();
    lock_by_hand(&server, "job", Duration::from_secs(3_000));
    for mode in [Mode::Refuse, Mode::BlackHole] {
        let proxy = Proxy::start(server.port());
        let builder = LeaseManager::builder().ttl(Duration::from_secs(1));
        let leases = builder.connect(&proxy.url()).await.expect("a manager");
        let reported = Arc::new(AtomicUsize::new(0));
        let waiter = tokio::spawn({
            let (mut lock, reported) = (leases.lock("job"), Arc::clone(&reported));
            async move {
                while lock.lock().await.is_err() {
                    reported.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let mut connection = server.connection();
        until_at_runtime(&mut connection, 1, &["job"]).await;
        proxy.set(mode);
        eventually(LONG, || reported.load(Ordering::Relaxed) >= 5).await;
        connection.command(&["CONFIG", "RESETSTAT"]);
        proxy.set(Mode::Pass);
        eventually(LONG, || calls(&mut connection, "subscribe") >= 1).await;
        // Signs of life, between which the connection could be made anew many times.
        let signs = calls(&mut connection, "ping");
        eventually(LONG, || calls(&mut connection, "ping") >= signs + 4).await;
        let times = calls(&mut connection, "subscribe");
        assert!(times <= 2, "{mode:?}: subscribed {times} times");
        waiter.abort();
    }
}

/// A refusal is a sign of life as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signs_of_life_need_no_permission() {
    let server = Server::start();
    server.command(&["ACL", "SETUSER", "lease", "on", ">pw", "~*", "&*", "+@all", "-ping"]);
    let short = || patient().ttl(Duration::from_secs(1));
    let leases = short().connect(&server.url_as("lease", "pw", 0)).await.expect("a manager");
    let refused = |connection: &mut Resp| {
        let stats = connection.command(&["INFO", "commandstats"]).text();
        let line = stats.lines().find(|line| line.starts_with("cmdstat_ping:"));
        let count = line.and_then(|line| line.split("rejected_calls=").nth(1)?.split(',').next());
        count.map_or(0, |count| count.parse::<u64>().expect("a number"))
    };
    let mut connection = server.connection();
    let here = connect(patient(), &server).await;
    let lease = lock(&here, "job").await;
    let waiter = wait_for(&leases, "job");
    waits(&server, "job").await;
    let ids = |connection: &mut Resp| {
        let list = connection.command(&["CLIENT", "LIST", "TYPE", "pubsub"]).text();
        let id = |line: &str| line.split(' ').next().map(str::to_owned);
        // The server rotates its list.
        list.lines().map(id).collect::<BTreeSet<_>>()
    };
    let before = ids(&mut connection);
    eventually(LONG, || refused(&mut connection) >= 3).await;
    assert_eq!(ids(&mut connection), before, "the connections are the same");
    lease.unlock().await.expect("a release");
    let (lease, _) = within(LONG, waiter).await.expect("no panic");
    lease.expect("a lease").unlock().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_of_all_names_are_woken_and_subscribed_on_reconnect() {
    const NAMES: usize = 20;
    let server = Server::start();
    let leases = connect(patient(), &server).await;
    let mut connection = server.connection();
    let names: Vec<String> = (0..NAMES).map(|i| format!("job:{i}")).collect();
    let mut waiters = Vec::new();
    for name in &names {
        lock_by_hand(&server, name, Duration::from_secs(30));
        waiters.push(wait_for(&leases, name));
    }
    until_at_runtime(&mut connection, 1, &names).await;
    settled(&server).await;
    // Half of them become free while no client listens.
    connection.send(&["CLIENT", "KILL", "TYPE", "pubsub"]).expect("sent");
    for name in &names[..NAMES / 2] {
        connection.send(&["DEL", name]).expect("sent");
    }
    // That of the inbox, and that of this runtime.
    assert_eq!(connection.receive().expect("a reply"), Reply::Int(2));
    for _ in 0..NAMES / 2 {
        assert_eq!(connection.receive().expect("a reply"), Reply::Int(1));
    }
    let still = waiters.split_off(NAMES / 2);
    let enter = async |waiter: JoinHandle<(Result<Lease, Error>, Instant)>| {
        let (lease, _) = within(LONG, waiter).await.expect("no panic");
        lease.expect("a lease").forget();
    };
    for waiter in waiters {
        enter(waiter).await;
    }
    // The others wait on, and hear it when their turn has come.
    eventually(LONG, || {
        names[NAMES / 2..].iter().all(|name| subscribers(&mut connection, &channel(name)) == 1)
    })
    .await;
    settled(&server).await;
    for (name, waiter) in names[NAMES / 2..].iter().zip(still) {
        assert!(!waiter.is_finished(), "{name}");
        connection.command(&["DEL", name]);
        connection.command(&["PUBLISH", &channel(name), "0"]);
        enter(waiter).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_behind_a_crashed_holder_enters_when_the_lease_ends() {
    const T: Duration = millis(1_000);
    let server = Server::start();
    let fill = "for i = 1, 200000 do redis.call('SET', 'volatile:' .. i, '', 'EX', 86400) end";
    let mut connection = server.connection();
    connection.set_timeout(Duration::from_secs(60));
    assert_eq!(connection.command(&["EVAL", fill, "0"]).error(), None);
    let leases = connect(patient(), &server).await;
    let crashing = connect(LeaseManager::builder().ttl(T), &server).await;

    // Nobody tells of an expiry, and the server itself notices it late, or never.
    for active in ["1", "0"] {
        server.command(&["DEBUG", "SET-ACTIVE-EXPIRE", active]);
        lock_by_hand(&server, "java", T);
        let java = wait_for(&leases, "java");
        let start = Instant::now();
        lock(&crashing, "job").await.forget();
        let ours = wait_for(&leases, "job");
        for waiter in [java, ours] {
            let (lease, at) = waiter.await.expect("no panic");
            // Much later it would be the poll bound.
            assert!(at - start < T * 2, "{:?}", at - start);
            lease.expect("a lease").unlock().await.expect("a release");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarted_server_wakes_the_waiters() {
    let server = Server::start();
    let leases = connect(patient(), &server).await;
    lock_by_hand(&server, "job", Duration::from_secs(30));
    let waiter = wait_for(&leases, "job");
    waits(&server, "job").await;
    server.restart();
    let (lease, _) = within(LONG, waiter).await.expect("no panic");
    lease.expect("a lease").unlock().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_by_the_ten_thousand_share_one_subscription() {
    let server = Server::start();
    let leases = connect(patient(), &server).await;
    lock_by_hand(&server, "job", Duration::from_secs(30));
    let before = calls(&mut server.connection(), "evalsha");
    let started = Arc::new(AtomicUsize::new(0));
    let mut waiters = JoinSet::new();
    for _ in 0..10_000 {
        let mut lock = leases.lock("job");
        let started = Arc::clone(&started);
        waiters.spawn(async move {
            started.fetch_add(1, Ordering::Relaxed);
            lock.lock().await
        });
    }
    eventually(LONG, || started.load(Ordering::Relaxed) == 10_000).await;
    waits(&server, "job").await;
    let mut connection = server.connection();
    assert_eq!(subscribers(&mut connection, &channel("job")), 1);
    // The first in line has asked, and once more after the subscription.
    tokio::time::sleep(millis(200)).await;
    let evalsha = calls(&mut connection, "evalsha") - before;
    assert!((1..=3).contains(&evalsha), "{evalsha} calls");
    // Names share the connection.
    for i in 0..20 {
        lock_by_hand(&server, &format!("other:{i}"), Duration::from_secs(30));
        let mut lock = leases.lock(format!("other:{i}"));
        waiters.spawn(async move { lock.lock().await });
    }
    for i in 0..20 {
        waits(&server, &format!("other:{i}")).await;
    }
    let list = connection.command(&["CLIENT", "LIST", "TYPE", "pubsub"]).text();
    // The other one has the inbox.
    assert_eq!(list.lines().count(), 2, "{list}");
    assert!(list.contains(" sub=21 ") && list.contains(" sub=1 "), "{list}");

    waiters.shutdown().await;
    eventually(LONG, || channels(&mut connection).is_empty()).await;
    // And comes back with the next one.
    let waiter = wait_for(&leases, "job");
    waits(&server, "job").await;
    server.command(&["DEL", "job"]);
    server.command(&["PUBLISH", &channel("job"), "0"]);
    let (lease, _) = within(LONG, waiter).await.expect("no panic");
    drop(lease);
}

/// The next waiter is often there at once.
#[tokio::test]
async fn subscription_outlives_its_last_waiter_for_a_moment() {
    let server = Server::start();
    let leases = connect(patient(), &server).await;
    lock_by_hand(&server, "job", LONG);
    let mut connection = server.connection();
    // Until this runtime has a connection of its own.
    lock_by_hand(&server, "first", LONG);
    let first = wait_for(&leases, "first");
    until_at_runtime(&mut connection, 1, &["first"]).await;
    first.abort();
    eventually(LONG, || channels(&mut connection).is_empty()).await;
    connection.command(&["CONFIG", "RESETSTAT"]);
    for _ in 0..3 {
        let granted = leases.lock("job").lock_timeout(millis(50)).await.expect("an answer");
        assert!(granted.is_none(), "held by hand");
    }
    assert_eq!(calls(&mut connection, "subscribe"), 1);
    eventually(LONG, || channels(&mut connection).is_empty()).await;
    assert_eq!(calls(&mut connection, "unsubscribe"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn release_costs_at_most_one_attempt_per_waiting_process() {
    const PROCESSES: i64 = 6;
    let server = Server::start();
    let here = connect(patient(), &server).await;
    let lease = lock(&here, "job").await;
    let mut waiters = JoinSet::new();
    let mut others = Vec::new();
    for _ in 0..PROCESSES {
        let leases = connect(patient(), &server).await;
        for _ in 0..10 {
            let mut lock = leases.lock("job");
            // The first one in keeps it.
            waiters.spawn(async move { lock.lock().await.expect("a lease").forget() });
        }
        others.push(leases);
    }
    let mut connection = server.connection();
    eventually(LONG, || subscribers(&mut connection, &channel("job")) == PROCESSES).await;
    settled(&server).await;
    connection.command(&["CONFIG", "RESETSTAT"]);
    lease.unlock().await.expect("a release");
    waiters.join_next().await.expect("a waiter").expect("no panic");
    settled(&server).await;
    let evalsha = calls(&mut connection, "evalsha");
    // The forgetful winner's manager has a next one in line.
    assert!(evalsha <= 1 + PROCESSES + 2, "{evalsha} calls");
    waiters.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_outlasts_an_outage_shorter_than_the_ttl() {
    const T: Duration = millis(2_000);
    let server = Server::start();
    let mut outages = JoinSet::new();
    for mode in [Mode::BlackHole, Mode::DropReplies, Mode::Refuse] {
        let name = format!("job:{mode:?}");
        lock_by_hand(&server, &name, Duration::from_secs(60));
        let proxy = Proxy::start(server.port());
        let builder = LeaseManager::builder().ttl(T).max_poll_interval(millis(100));
        let leases = builder.connect(&proxy.url()).await.expect("a manager");
        let waiter = wait_for(&leases, &name);
        waits_polling(&proxy).await;
        proxy.set(mode);
        let mut connection = server.connection();
        outages.spawn(async move {
            tokio::time::sleep(T / 2).await;
            assert!(!waiter.is_finished(), "{mode:?}");
            proxy.set(Mode::Pass);
            connection.command(&["DEL", &name]);
            let healed = Instant::now();
            let (lease, at) = waiter.await.expect("no panic");
            lease.expect("a lease").unlock().await.expect("a release");
            assert!(at - healed < T, "{mode:?}: {:?}", at - healed);
        });
    }
    outages.join_all().await;
}

/// Waits until a client behind the proxy has asked a few times.
async fn waits_polling(proxy: &Proxy) {
    let asked = proxy.count("EVALSHA");
    eventually(LONG, || proxy.count("EVALSHA") >= asked + 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn longer_outage_is_unavailable() {
    const T: Duration = millis(2_000);
    let server = Server::start();
    let mut outages = JoinSet::new();
    for mode in [Mode::BlackHole, Mode::DropReplies, Mode::Refuse] {
        let name = format!("job:{mode:?}");
        lock_by_hand(&server, &name, Duration::from_secs(60));
        let proxy = Proxy::start(server.port());
        let builder = LeaseManager::builder().ttl(T).max_poll_interval(millis(50));
        let leases = builder.connect(&proxy.url()).await.expect("a manager");
        let waiter = wait_for(&leases, &name);
        waits_polling(&proxy).await;
        proxy.set(mode);
        let start = Instant::now();
        outages.spawn(async move {
            let (lease, at) = waiter.await.expect("no panic");
            let error = lease.expect_err("nobody answers");
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{mode:?}: {error}");
            let took = at - start;
            assert!(took > T * 2 / 3, "{mode:?}: given up after {took:?}");
            assert!(took < T * 2, "{mode:?}: told after {took:?}");
            // Nothing is broken for good, though a connection may still be found dead.
            proxy.set(Mode::Pass);
            let works = async || leases.lock("other").lock().await?.unlock().await;
            let healed = Instant::now();
            while let Err(error) = works().await {
                assert!(healed.elapsed() < LONG, "{mode:?}: {error}");
            }
        });
    }
    outages.join_all().await;
}
