//! Each runtime that locks has a connection of its own, for as long as it lives.

use kit::look::others;
use kit::resp::Resp;
use kit::{Mode, Proxy, Server, eventually};
use leasehold::{ErrorKind, LeaseManager};
use std::future::{Future, poll_fn};
use std::task::Poll;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};

const LONG: Duration = Duration::from_secs(10);

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

async fn work(leases: &LeaseManager) {
    for _ in 0..5 {
        leases.lock("job").lock().await.expect("free").unlock().await.expect("held");
    }
}

/// Works until there are as many connections; then they stay, whatever is done.
fn works_with(runtime: &Runtime, leases: &LeaseManager, connection: &mut Resp, count: usize) {
    runtime.block_on(async {
        let start = Instant::now();
        while others(connection) != count {
            assert!(start.elapsed() < LONG, "{} connections, not {count}", others(connection));
            work(leases).await;
        }
        for _ in 0..20 {
            work(leases).await;
            assert_eq!(others(connection), count);
        }
    });
}

#[test]
fn connection_comes_with_a_runtimes_first_lock_and_goes_with_it() {
    let server = Server::start();
    let mut connection = server.connection();
    let first = runtime();
    let leases = first.block_on(LeaseManager::connect(&server.url())).expect("the server is there");
    let home = others(&mut connection);
    works_with(&first, &leases, &mut connection, home + 1);
    // It works on while another is waited for.
    let second = Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let second = second.expect("a runtime");
    works_with(&second, &leases, &mut connection, home + 2);
    works_with(&first, &leases, &mut connection, home + 2);
    drop(first);
    second.block_on(eventually(LONG, || others(&mut connection) == home + 1));
    works_with(&second, &leases, &mut connection, home + 1);
    // The next one can have the number of the one that has gone.
    let third = runtime();
    works_with(&third, &leases, &mut connection, home + 2);
    third.block_on(leases.close()).expect("nothing is held");
    third.block_on(eventually(LONG, || others(&mut connection) == 0));
    drop((second, third));
}

/// A request that was begun on one runtime and waits on another is told at once when the first one goes, and its
/// connection with it.
fn ends_with_its_runtime<F>(ask: impl FnOnce(LeaseManager) -> F)
where
    F: Future<Output = leasehold::Result<bool>> + Send + 'static,
{
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let threads = || Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let (first, second) = (threads().expect("a runtime"), threads().expect("a runtime"));
    // The answer may take an attempt, 3 s.
    let leases = first.block_on(LeaseManager::connect(&proxy.url())).expect("up");
    let mut connection = server.connection();
    let home = others(&mut connection);
    works_with(&first, &leases, &mut connection, home + 1);
    proxy.set(Mode::HoldReplies);
    let mut request = Box::pin(ask(leases));
    first.block_on(async {
        let once = poll_fn(|context| Poll::Ready(request.as_mut().poll(context).is_pending()));
        assert!(once.await, "it waits");
    });
    let waiting = second.spawn(request);
    let sent = || proxy.requests().iter().any(|request| request.contains("slow"));
    first.block_on(eventually(LONG, sent));
    drop(first);
    let gone = Instant::now();
    let error = second.block_on(waiting).expect("no panic").expect_err("nobody knows");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(gone.elapsed() < Duration::from_secs(2), "{:?}", gone.elapsed());
}

#[test]
fn request_ends_with_the_runtime_of_its_connection() {
    ends_with_its_runtime(|leases| async move {
        leases.lock("slow").try_lock().await.map(|lease| lease.is_some())
    });
    ends_with_its_runtime(|leases| async move {
        leases.semaphore("slow", 2).try_acquire().await.map(|permit| permit.is_some())
    });
    ends_with_its_runtime(|leases| async move {
        leases.rw_lock("slow").try_write().await.map(|lease| lease.is_some())
    });
}

const T: Duration = Duration::from_secs(3);
/// How long one attempt may take, and how long a loaded machine may take for nothing.
const ATTEMPT: Duration = Duration::from_millis(300);
const SLACK: Duration = Duration::from_secs(5);

/// What waits for others to send it keeps the time by itself.
#[test]
fn request_does_not_wait_for_a_runtime_that_stands_still() {
    let server = Server::start();
    let (home, other) = (runtime(), runtime());
    let leases = LeaseManager::builder().ttl(T).dedicated_thread(false);
    let leases = home.block_on(leases.connect(&server.url())).expect("up");
    // From here on nobody drives `home`, and `other` has no connection yet.
    other.block_on(async {
        let start = Instant::now();
        let mut lock = leases.lock("job");
        let request = tokio::time::timeout(LONG, lock.try_lock());
        let error = request.await.expect("it ends").expect_err("nobody sends it");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        let took = start.elapsed();
        assert!((2 * ATTEMPT..2 * ATTEMPT + SLACK).contains(&took), "{took:?}");
        tokio::time::timeout(LONG, work(&leases)).await.expect("by a connection of its own");
    });
}

/// Until a runtime has its connection, the one at home serves; it is tried for again and again, not in a rush.
#[test]
fn runtime_without_a_connection_of_its_own_locks_all_the_same() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let runtime = runtime();
    let leases = LeaseManager::builder().ttl(Duration::from_secs(9));
    let leases = runtime.block_on(leases.connect(&proxy.url())).expect("up");
    let mut connection = server.connection();
    let (made, home) = (proxy.connections(), others(&mut connection));
    let full = (home + 1).to_string();
    assert_eq!(connection.command(&["CONFIG", "SET", "maxclients", &full]).text(), "OK");
    runtime.block_on(async {
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(1_500) {
            work(&leases).await;
        }
    });
    assert_eq!(others(&mut connection), home);
    let tries = proxy.connections() - made;
    assert!((1..100).contains(&tries), "{tries} connections");
    assert_eq!(connection.command(&["CONFIG", "SET", "maxclients", "1000"]).text(), "OK");
    works_with(&runtime, &leases, &mut connection, home + 1);
}

/// The server's time goes on in a suspend of the machine, and tokio's does not; so the two must not be mixed up. Here
/// tokio's goes on, and the server's does not.
#[test]
fn manager_without_own_thread_goes_by_the_system_clock_too() {
    let server = Server::start();
    runtime().block_on(async {
        let leases = LeaseManager::builder().dedicated_thread(false);
        let leases = leases.connect(&server.url()).await.expect("up");
        let lease = leases.lock("job").lock().await.expect("free");
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(3_600)).await;
        lease.check().expect("no time has passed");
    });
}

/// Where time is paused, every reply comes too late: connecting again and again would be all that happens.
#[test]
fn runtime_whose_time_is_paused_gets_no_connection() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let home = runtime();
    let leases = home.block_on(LeaseManager::connect(&proxy.url())).expect("up");
    let made = proxy.connections();
    let paused = Builder::new_current_thread().enable_all().start_paused(true).build();
    let paused = paused.expect("a runtime");
    paused.block_on(async {
        tokio::time::advance(Duration::from_secs(1)).await;
        for _ in 0..5 {
            drop(leases.lock("job").try_lock().await);
            tokio::time::sleep(Duration::from_secs(60)).await;
        }
    });
    assert_eq!(proxy.connections(), made);
    drop(paused);
    let mut connection = server.connection();
    let before = others(&mut connection);
    works_with(&home, &leases, &mut connection, before + 1);
}
