//! Any future is dropped, at any await: nothing is left behind on the server.
//!
//! T is 30 s in most of these tests, so that a key that goes was released and did not expire.

use super::{exists, lock, lock_by_hand, millis};
use std::panic::{set_hook, take_hook};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

use kit::look::{calls, channel, others, subscribers};
use kit::{Mode, Proxy, Resp, Server, eventually, within};
use leasehold::{Builder, Error, ErrorKind, Fate, Lease, LeaseManager, Loss};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

const LONG: Duration = Duration::from_secs(10);
/// Much less than T: nothing expires within it.
const SOON: Duration = Duration::from_secs(5);

/// Without fencing tokens a lock is the only key, so that an empty server is one without locks.
fn bare() -> Builder {
    LeaseManager::builder().fencing(false)
}

async fn connect(server: &Server) -> LeaseManager {
    bare().connect(&server.url()).await.expect("a manager")
}

/// All keys but those that have expired and are not deleted yet, which DBSIZE counts.
#[track_caller]
fn keys(connection: &mut Resp) -> usize {
    connection.command(&["KEYS", "*"]).list().len()
}

/// Until no key is left.
async fn empty(server: &Server) {
    let mut connection = server.connection();
    eventually(SOON, || keys(&mut connection) == 0).await;
}

/// Drops a future after some polls; `None` if it was not ready by then.
struct Polls<F> {
    future: Option<Pin<Box<F>>>,
    left: usize,
}

fn polls<F: Future>(left: usize, future: F) -> Polls<F> {
    Polls { future: Some(Box::pin(future)), left }
}

impl<F: Future> Future for Polls<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let future = self.future.as_mut().expect("not ready before");
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Some(output));
        }
        self.left -= 1;
        if self.left == 0 {
            self.future = None;
            return Poll::Ready(None);
        }
        Poll::Pending
    }
}

#[tokio::test]
async fn three_thousand_leases_dropped_at_once_are_all_released() {
    let server = Server::start();
    let leases = connect(&server).await;
    let mut tasks = JoinSet::new();
    for i in 0..3_000 {
        let mut lock = leases.lock(format!("job:{i}"));
        tasks.spawn(async move { lock.lock().await.expect("a lease") });
    }
    let held = tasks.join_all().await;
    assert_eq!(keys(&mut server.connection()), 3_000);
    drop(held);
    empty(&server).await;
}

#[tokio::test]
async fn acquire_dropped_after_any_poll_leaves_nothing() {
    let server = Server::start();
    let leases = connect(&server).await;
    let mut granted = 0;
    for count in 1..50 {
        let name = format!("job:{count}");
        let mut lock = leases.lock(&name);
        if let Some(lease) = polls(count, lock.lock()).await {
            drop(lease.expect("a lease"));
            granted += 1;
        }
        // The same handle goes on, and so does everyone else.
        let lease = lock.lock_timeout(SOON).await.expect("an answer").expect("a lease");
        lease.unlock().await.expect("a release");
        if granted == 2 {
            break;
        }
    }
    assert_eq!(granted, 2);
    empty(&server).await;
}

#[tokio::test]
async fn wait_dropped_after_any_poll_leaves_nothing() {
    let server = Server::start();
    let leases = connect(&server).await;
    let mut connection = server.connection();
    let mut granted = 0;
    for count in 1..50 {
        let name = format!("job:{count}");
        lock_by_hand(&server, &name, SOON * 12);
        let mut lock = leases.lock(&name);
        let waiter = tokio::spawn(async move { polls(count, lock.lock()).await });
        // The lock becomes free once the waiter has subscribed, if it comes to that.
        let channel = channel(&name);
        eventually(SOON, || waiter.is_finished() || subscribers(&mut connection, &channel) == 1)
            .await;
        server.command(&["DEL", &name]);
        server.command(&["PUBLISH", &channel, "0"]);
        if let Some(lease) = waiter.await.expect("no panic") {
            drop(lease.expect("a lease"));
            granted += 1;
        }
        let lease = leases.lock(&name).lock_timeout(SOON).await.expect("an answer");
        lease.expect("a lease").unlock().await.expect("a release");
        if granted == 2 {
            break;
        }
    }
    assert_eq!(granted, 2);
    empty(&server).await;
    eventually(SOON, || kit::look::channels(&mut connection).is_empty()).await;
}

#[tokio::test]
async fn nested_call_dropped_after_any_poll_changes_no_count() {
    let server = Server::start();
    let leases = connect(&server).await;
    let mut lock = leases.lock("job");
    let outer = lock.lock().await.expect("a lease");
    let mut granted = 0;
    for count in 1..50 {
        if let Some(lease) = polls(count, lock.lock()).await {
            lease.expect("a nested lease").unlock().await.expect("a release");
            granted += 1;
        }
        assert_eq!(outer.hold_count(), 1);
        let recorded = || server.command(&["HVALS", "job"]).list()[0].int();
        eventually(SOON, || recorded() == 1).await;
        if granted == 2 {
            break;
        }
    }
    assert_eq!(granted, 2);
    outer.check().expect("held");
    outer.unlock().await.expect("a release");
    empty(&server).await;
}

#[tokio::test]
async fn acquire_that_arrives_after_its_drop_is_released() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let leases = bare().connect(&proxy.url()).await.expect("a manager");
    proxy.set(Mode::HoldRequests);
    let error = leases.lock("job").lock_timeout(millis(200)).await.expect_err("no answer");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let about = || proxy.requests().iter().filter(|text| text.contains(" job ")).count();
    assert_eq!(about(), 0);
    proxy.set(Mode::Pass);
    // It is granted, no task receives it, and it is released.
    eventually(SOON, || about() >= 2).await;
    empty(&server).await;
    let lease = leases.lock("job").lock_timeout(SOON).await.expect("an answer");
    lease.expect("it is free").unlock().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquire_that_arrives_after_it_was_given_up_is_swept() {
    // An attempt takes up to a second here, a sweep comes every second, and a key lives for ten.
    const T: Duration = Duration::from_secs(10);
    let server = Server::start();
    let mut tasks = JoinSet::new();
    for i in 0..4 {
        let proxy = Proxy::start(server.port());
        let leases = bare().ttl(T).connect(&proxy.url()).await.expect("a manager");
        tasks.spawn(async move {
            let name = format!("job:{i}");
            proxy.set(Mode::HoldRequests);
            let start = Instant::now();
            let mut lock = leases.lock(&name);
            let error = lock.try_lock().await.expect_err("no answer");
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            assert!(start.elapsed() >= T / 20, "the attempt was not given up: {error}");
            // Its connection was given up, but what it carried is still on the way.
            tokio::time::sleep(millis(300) * i).await;
            proxy.set(Mode::Pass);
            eventually(LONG, || proxy.requests().iter().any(|text| text.contains(&name))).await;
            (proxy, leases)
        });
    }
    // The managers are still there to sweep.
    let kept = tasks.join_all().await;
    let mut connection = server.connection();
    eventually(T / 2, || keys(&mut connection) == 0).await;
    drop(kept);
}

/// The answers to what was under way are there when it goes on: the server was not silent.
#[tokio::test]
async fn stall_of_this_process_costs_no_connection() {
    // An attempt takes 600 ms.
    const T: Duration = Duration::from_secs(6);
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    // All on this thread, which stalls.
    let leases =
        bare().ttl(T).dedicated_thread(false).connect(&proxy.url()).await.expect("a manager");
    let turns = Arc::new(AtomicUsize::new(0));
    let mut workers = JoinSet::new();
    for worker in 0..8 {
        let (mut lock, turns) = (leases.lock(format!("job:{worker}")), Arc::clone(&turns));
        workers.spawn(async move {
            loop {
                // What was under way may fail.
                if let Ok(Some(lease)) = lock.try_lock().await {
                    let _ = lease.unlock().await;
                }
                turns.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
        });
    }
    let connections = proxy.connections();
    for stall in 0..7 {
        let seen = turns.load(Ordering::Relaxed);
        eventually(LONG, || turns.load(Ordering::Relaxed) > seen + 100).await;
        assert_eq!(proxy.connections(), connections, "after {stall} stalls");
        thread::sleep(T / 4);
    }
}

/// Silence makes the connection anew, and with it goes what else is on it: the client library has one text for what
/// it cannot send any more, and it has sent it before.
#[tokio::test]
async fn requests_under_way_at_a_reconnect_may_have_run() {
    // An attempt takes two seconds.
    const T: Duration = Duration::from_secs(20);
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let leases = bare().ttl(T).connect(&proxy.url()).await.expect("a manager");
    let mut connection = server.connection();
    let mut round = async |releases: bool| {
        let held = lock(&leases, "held").await;
        proxy.set(Mode::HoldReplies);
        let mut silent = leases.lock("silent");
        let silent = tokio::spawn(async move { silent.try_lock().await.map(drop) });
        eventually(SOON, || exists(&server, "silent")).await;
        // The second is not given up before the connection is made anew for the first.
        tokio::time::sleep(T / 20).await;
        let mut other = leases.lock("other");
        let second = tokio::spawn(async move {
            match releases {
                true => held.unlock().await,
                false => other.try_lock().await.map(drop),
            }
        });
        eventually(SOON, || {
            if releases { !exists(&server, "held") } else { exists(&server, "other") }
        })
        .await;
        let connections = proxy.connections();
        let error = silent.await.expect("no panic").expect_err("no answer");
        assert_eq!(
            (error.kind(), error.fate()),
            (ErrorKind::Unavailable, Fate::Unknown),
            "{error}"
        );
        // Nothing comes by the old one any more.
        eventually(SOON, || proxy.connections() > connections).await;
        proxy.set(Mode::Pass);
        let result = second.await.expect("no panic");
        // Long before they would expire.
        eventually(T / 2, || keys(&mut connection) == 0).await;
        result
    };
    let mut result = Ok(());
    // If another connection is made before that of the requests, the reply comes after all.
    for _ in 0..4 {
        result = round(false).await;
        if result.is_err() {
            break;
        }
    }
    let error = result.expect_err("no answer");
    assert_eq!(error.fate(), Fate::Unknown, "{error}");
    assert!(error.to_string().contains("lost before the server answered"), "{error}");
    round(true).await.expect("it is done, and nothing else took it");
}

/// Nothing that leaves grows with an outage, so nothing has to be made up for after it.
#[tokio::test]
async fn requests_made_in_an_outage_never_leave() {
    const ASKED: usize = 500;
    let server = Server::start();
    let mut connection = server.connection();
    for mode in [Mode::Refuse, Mode::BlackHole] {
        let proxy = Proxy::start(server.port());
        let builder = bare().ttl(Duration::from_secs(8));
        let leases = builder.connect(&proxy.url()).await.expect("a manager");
        lock(&leases, "before").await.unlock().await.expect("a release");
        proxy.set(mode);
        // The first is under way when it is noticed.
        let noticed = async {
            let mut first = 0;
            loop {
                let error = leases.lock("first").try_lock().await.expect_err("an outage");
                if error.fate() == Fate::NotExecuted {
                    return first;
                }
                first += 1;
            }
        };
        let first = within(LONG, noticed).await;
        connection.command(&["CONFIG", "RESETSTAT"]);
        let mut asked = JoinSet::new();
        for i in 0..ASKED {
            let mut lock = leases.lock(format!("asked:{i}"));
            asked.spawn(async move {
                let error = match i % 2 {
                    0 => lock.try_lock().await.expect_err("an outage"),
                    // Given up by its caller before there can be an answer.
                    _ => return drop(tokio::time::timeout(millis(5), lock.try_lock()).await),
                };
                assert_eq!(error.fate(), Fate::NotExecuted, "{error}");
            });
        }
        asked.join_all().await;
        proxy.set(Mode::Pass);
        drop(lock(&leases, "after").await);
        eventually(SOON, || keys(&mut connection) == 0).await;
        // What was under way at first may be released several times.
        let released = calls(&mut connection, "hdel");
        assert!(released <= 1 + 20 * first, "{mode:?}: {released} releases, {first} at first");
    }
}

#[tokio::test]
async fn acquire_whose_reply_is_lost_is_granted_once() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let leases = LeaseManager::connect(&proxy.url()).await.expect("a manager");
    let mut lock = leases.lock("job");
    let hash = || server.command(&["HGETALL", "job"]).pairs();
    proxy.drop_reply_of(1, "job");
    let outer = lock.lock().await.expect("the second attempt finds the first one's grant");
    assert_eq!(proxy.dropped(), 1);
    let [(owner, count)] = hash().try_into().expect("one owner");
    assert_eq!(count, "1");
    // The same fencing token as was reserved the first time.
    let last = server.command(&["GET", "redisson_lock_token:{job}"]).int();
    let fence = i64::try_from(outer.fence().expect("a fencing token")).expect("a small one");
    assert!((fence..fence + 128).contains(&last), "{fence} {last}");

    proxy.drop_reply_of(1, &owner);
    let inner = lock.lock().await.expect("a nested lease");
    eventually(LONG, || proxy.dropped() == 2).await;
    // On a busy machine the lost reply may be that of a renewal.
    eventually(LONG, || hash() == [(owner.clone(), "2".to_owned())]).await;
    assert_eq!((outer.hold_count(), outer.fence()), (2, inner.fence()));

    proxy.drop_reply_of(1, &owner);
    inner.unlock().await.expect("the count here is what matters");
    assert_eq!(outer.hold_count(), 1);
    // Whichever request with this owner comes next, its reply is lost, and so is the release's.
    proxy.drop_reply_of(1, &owner);
    outer.unlock().await.expect("the second attempt finds it done");
    assert!(!exists(&server, "job"));
}

fn runtime(multi_thread: bool) -> Runtime {
    let mut builder = if multi_thread {
        tokio::runtime::Builder::new_multi_thread()
    } else {
        tokio::runtime::Builder::new_current_thread()
    };
    builder.worker_threads(1).enable_all().build().expect("a runtime")
}

/// Waits without a runtime.
#[track_caller]
fn wait_until(mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < SOON, "it did not come true within {SOON:?}");
        thread::sleep(millis(5));
    }
}

#[test]
fn runtime_that_is_shut_down_releases_what_its_tasks_hold() {
    for multi_thread in [false, true] {
        for background in [false, true] {
            let server = Server::start();
            let runtime = runtime(multi_thread);
            let leases = runtime.block_on(async {
                let leases = connect(&server).await;
                for i in 0..10 {
                    let mut lock = leases.lock(format!("job:{i}"));
                    let (held, holding) = tokio::sync::oneshot::channel();
                    tokio::spawn(async move {
                        let _lease = lock.lock().await.expect("a lease");
                        let _ = held.send(());
                        std::future::pending::<()>().await;
                    });
                    holding.await.expect("held");
                }
                // And of some it is not known yet whether they hold.
                for i in 0..10 {
                    let mut lock = leases.lock(format!("more:{i}"));
                    tokio::spawn(async move {
                        let _lease = lock.lock().await.expect("a lease");
                        std::future::pending::<()>().await;
                    });
                }
                tokio::task::yield_now().await;
                leases
            });
            assert!(keys(&mut server.connection()) >= 10);
            if background {
                runtime.shutdown_background();
            } else {
                drop(runtime);
            }
            wait_until(|| keys(&mut server.connection()) == 0);

            // The manager works on in another runtime.
            self::runtime(!multi_thread).block_on(async {
                let lease = lock(&leases, "job").await;
                lease.unlock().await.expect("a release");
            });
            drop(leases);
        }
    }
}

#[test]
fn lease_outlives_its_runtime_and_is_released_on_drop() {
    const T: Duration = millis(1_500);
    let server = Server::start();
    let runtime = runtime(true);
    let lease = runtime.block_on(async {
        let leases = bare().ttl(T).connect(&server.url()).await.expect("a manager");
        lock(&leases, "job").await
    });
    drop(runtime);
    thread::sleep(T * 2);
    lease.check().expect("it is renewed all the time");
    assert!(exists(&server, "job"));
    drop(lease);
    let mut connection = server.connection();
    wait_until(|| connection.command(&["EXISTS", "job"]).int() == 0);
    wait_until(|| others(&mut connection) == 0);
}

/// How often this thread has panicked from now on, panics caught by a runtime included.
fn count_panics() -> Arc<AtomicUsize> {
    let panics = Arc::new(AtomicUsize::new(0));
    let (thread, counted) = (thread::current().id(), Arc::clone(&panics));
    let before = take_hook();
    set_hook(Box::new(move |info| {
        if thread::current().id() == thread {
            counted.fetch_add(1, Ordering::Relaxed);
        }
        before(info);
    }));
    panics
}

#[test]
fn runtime_without_io_is_enough_to_lock() {
    let panics = count_panics();
    let server = Server::start();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let leases = runtime.block_on(async {
        let leases = connect(&server).await;
        for _ in 0..3 {
            let lease = lock(&leases, "job").await;
            assert!(exists(&server, "job"));
            lease.unlock().await.expect("a release");
            tokio::task::yield_now().await;
        }
        leases
    });
    let other =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    other.block_on(leases.close()).expect("closed");
    // Also the task that found it out.
    runtime.block_on(async {
        let tasks = tokio::runtime::Handle::current().metrics();
        kit::eventually(Duration::from_secs(10), || tasks.num_alive_tasks() == 0).await;
    });
    drop(runtime);
    // Nothing tells beforehand whether a runtime has I/O; a task finds it out, and that once only.
    assert!(panics.load(Ordering::Relaxed) <= 1, "panics in the caller's runtime");
}

#[test]
fn manager_without_its_own_thread_ends_with_its_runtime() {
    const T: Duration = millis(1_000);
    let server = Server::start();
    let first = runtime(true);
    let (leases, lease) = first.block_on(async {
        let builder = bare().ttl(T).dedicated_thread(false);
        let leases = builder.connect(&server.url()).await.expect("a manager");
        let lease = lock(&leases, "job").await;
        (leases, lease)
    });
    drop(first);
    let mut connection = server.connection();
    wait_until(|| others(&mut connection) == 0);
    // Nothing can be renewed anymore: that is reported in time, and no call waits forever.
    runtime(false).block_on(async {
        let start = Instant::now();
        match leases.lock("other").lock().await {
            Ok(lease) => assert_eq!(within(LONG, lease.lost()).await, Loss::Expired),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
        }
        assert_eq!(within(LONG, lease.lost()).await, Loss::Expired);
        assert!(start.elapsed() < T * 3, "{:?}", start.elapsed());
        drop(lease);
        let closed = tokio::time::timeout(T * 3, leases.close()).await;
        closed.expect("in bounded time").expect("nothing to release");
    });
    wait_until(|| keys(&mut connection) == 0);
}

#[tokio::test]
async fn manager_that_is_dropped_disconnects() {
    let server = Server::start();
    let mut connection = server.connection();
    for dedicated_thread in [true, true, true, false, false] {
        let builder = bare().dedicated_thread(dedicated_thread);
        let leases = builder.connect(&server.url()).await.expect("a manager");
        lock(&leases, "job").await.unlock().await.expect("a release");
        assert!(others(&mut connection) >= 3);
        drop(leases);
        eventually(SOON, || others(&mut connection) == 0).await;
    }
    // Together with its leases, in any order.
    for lease_first in [false, true] {
        let leases = connect(&server).await;
        let held = [lock(&leases, "a").await, lock(&leases, "b").await];
        if lease_first {
            drop(held);
            drop(leases);
        } else {
            drop(leases);
            drop(held);
        }
        empty(&server).await;
        eventually(SOON, || others(&mut connection) == 0).await;
    }
    // A waiter waits meanwhile.
    lock_by_hand(&server, "job", SOON * 12);
    let leases = connect(&server).await;
    let mut lock = leases.lock("job");
    let waiter = tokio::spawn(async move { lock.lock().await });
    eventually(SOON, || subscribers(&mut connection, &channel("job")) == 1).await;
    drop(leases);
    waiter.abort();
    eventually(SOON, || others(&mut connection) == 0).await;
}

#[tokio::test]
async fn connect_that_fails_disconnects() {
    let server = Server::start();
    let mut connection = server.connection();
    server.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    for dedicated_thread in [true, false] {
        let builder = bare().dedicated_thread(dedicated_thread);
        builder.connect(&server.url()).await.expect_err("refused");
        eventually(SOON, || others(&mut connection) == 0).await;
    }
    assert_eq!(keys(&mut connection), 0);
}

#[tokio::test]
async fn connect_dropped_after_any_poll_disconnects() {
    let server = Server::start();
    let url = server.url();
    let mut connection = server.connection();
    for dedicated_thread in [true, false] {
        let builder = bare().dedicated_thread(dedicated_thread);
        let mut connected = 0;
        for count in 1..50 {
            let connecting = builder.clone().connect(&url);
            if let Some(leases) = polls(count, connecting).await {
                drop(leases.expect("a manager"));
                connected += 1;
            }
            if connected == 2 {
                break;
            }
        }
        assert_eq!(connected, 2);
        eventually(SOON, || others(&mut connection) == 0).await;
        // An abandoned try-out's key lives for 5 s.
        eventually(LONG, || keys(&mut connection) == 0).await;
    }
}

#[tokio::test]
async fn lease_dropped_during_an_outage_is_released_after_it() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let leases = bare().connect(&proxy.url()).await.expect("a manager");
    for mode in [Mode::Refuse, Mode::BlackHole, Mode::DropReplies] {
        let mut held = Vec::new();
        for i in 0..20 {
            held.push(lock(&leases, &format!("job:{i}")).await);
        }
        proxy.set(mode);
        drop(held);
        tokio::time::sleep(millis(300)).await;
        proxy.set(Mode::Pass);
        // The next attempt comes within 3 s, and may first have to reconnect.
        let mut connection = server.connection();
        eventually(Duration::from_secs(15), || keys(&mut connection) == 0).await;
    }
}

/// Returns whether all ways to lock report that the manager is closed.
async fn assert_closed(leases: &LeaseManager) {
    let errors: [Error; 6] = [
        leases.lock("new").lock().await.expect_err("closed"),
        leases.lock("new").try_lock().await.expect_err("closed"),
        leases.lock("new").lock_timeout(LONG).await.expect_err("closed"),
        leases.holder().lock("new").await.expect_err("closed"),
        leases.inspect("new").await.expect_err("closed"),
        leases.force_unlock("new", "test").await.expect_err("closed"),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    }
}

async fn disconnected(connection: &mut Resp) {
    eventually(SOON, || others(connection) == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn close_waits_for_work_that_stops_and_releases_everything() {
    let server = Server::start();
    let mut connection = server.connection();
    let leases = connect(&server).await;
    let mut workers = JoinSet::new();
    for i in 0..150 {
        let mut lock = leases.lock(format!("job:{i}"));
        let outer = lock.lock().await.expect("a lease");
        let inner = lock.lock().await.expect("a nested lease");
        workers.spawn(async move {
            assert_eq!(within(LONG, outer.lost()).await, Loss::Closed);
            // Some work is wound up first.
            tokio::time::sleep(millis(50)).await;
            drop(inner);
            drop(outer);
        });
    }
    // The grace is 2 s, and no holder needed it.
    within(millis(1_900), leases.close()).await.expect("all released");
    assert_eq!(keys(&mut connection), 0);
    disconnected(&mut connection).await;
    assert_closed(&leases).await;
    assert_closed(&leases.clone()).await;
    leases.close().await.expect("a second time is fine");
    while let Some(worker) = workers.join_next().await {
        worker.expect("no panic");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn close_in_the_middle_of_traffic_leaves_nothing() {
    for round in 0..10 {
        let server = Server::start();
        let leases = connect(&server).await;
        let mut tasks = JoinSet::new();
        for i in 0..40 {
            let leases = leases.clone();
            tasks.spawn(async move {
                loop {
                    let mut lock = leases.lock(format!("job:{}", i % 30));
                    match lock.lock().await {
                        Ok(lease) if i % 2 == 0 => drop(lease),
                        Ok(lease) => drop(lease.unlock().await),
                        Err(error) => break error.kind(),
                    }
                }
            });
        }
        tokio::time::sleep(millis(20 + round * 7)).await;
        leases.close().await.expect("all released");
        for kind in tasks.join_all().await {
            assert_eq!(kind, ErrorKind::Closed);
        }
        empty(&server).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn close_reports_what_a_dead_server_does_not_take_back() {
    const T: Duration = Duration::from_secs(6);
    for hung in [false, true] {
        let server = Server::start();
        let leases = bare().ttl(T).connect(&server.url()).await.expect("a manager");
        let mut held = Vec::new();
        for i in 0..100 {
            held.push(lock(&leases, &format!("job:{i}")).await);
        }
        if hung {
            server.pause();
        } else {
            server.kill();
        }
        let tokens: Vec<_> = held.iter().map(Lease::cancellation_token).collect();
        drop(held.split_off(50));
        let start = Instant::now();
        let error = leases.close().await.expect_err("nobody takes them back");
        // The grace and two attempts are 1.8 s, and two more are for the disconnecting.
        assert!(start.elapsed() < T, "{:?}", start.elapsed());
        assert!(tokens.iter().all(|token| token.is_cancelled()));
        assert_eq!(error.released(), 0);
        let mut names: Vec<&str> = error.failed().iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 100);
        for (_, error) in error.failed() {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        }
        let text = error.to_string();
        assert!(text.starts_with("100 of 100 leases could not be released"), "{text}");
        assert_closed(&leases).await;
    }
}
