//! Sessions that are refused, forgotten by the servers, or served by a task in which a waker panics.

use kit::polled::polled;
use kit::zookeeper::{Look, ZooKeeper, directory};
use kit::{connect_in_the_end, eventually, within};
use leasehold::{ErrorKind, Fate, LeaseManager, Loss};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};
use zookeeper_client::{Acl, AuthId, Permission};

const T: Duration = Duration::from_secs(4);
const LONG: Duration = Duration::from_secs(40);
const SESSIONS: &str = "/leasehold/sessions";

async fn connect(url: &str) -> LeaseManager {
    connect_in_the_end(LeaseManager::builder().ttl(T), url).await
}

/// Ends all sessions of leasehold, as far as leasehold knows.
async fn end_sessions(look: &Look) {
    for node in look.0.list_children(SESSIONS).await.expect("it is there") {
        let _ = look.0.delete(&format!("{SESSIONS}/{node}"), None).await;
    }
}

#[tokio::test]
async fn session_that_is_refused_is_denied_with_the_reason() {
    let server = ZooKeeper::start();
    let look = Look::at(&server.hosts()).await;
    let leases = connect(&server.url()).await;
    leases.lock("job").lock().await.expect("free").unlock().await.expect("released");
    let allow = async |permission: Permission| {
        let acls = [Acl::new(permission, AuthId::anyone())];
        look.0.set_acl(SESSIONS, &acls, None).await.expect("changed");
    };
    allow(Permission::READ | Permission::DELETE | Permission::ADMIN).await;
    end_sessions(&look).await;
    let refused = |leases: &LeaseManager| {
        let mut lock = leases.lock("job");
        async move { lock.try_lock().await.err() }
    };
    let start = Instant::now();
    // The pauses between the tries grow meanwhile.
    while start.elapsed() < T * 4 {
        if let Some(error) = refused(&leases).await
            && start.elapsed() > T
        {
            assert_eq!((error.kind(), error.fate()), (ErrorKind::Denied, Fate::NotExecuted));
            assert!(error.to_string().contains("refuses access"), "{error}");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(refused(&leases).await.is_some());
    allow(Permission::ALL).await;
    let allowed = Instant::now();
    while refused(&leases).await.is_some() {
        assert!(allowed.elapsed() < LONG);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(allowed.elapsed() < T * 3 / 4, "{:?}", allowed.elapsed());
}

/// A server that was restarted with an empty data folder: no session, no node.
#[tokio::test]
async fn servers_that_were_emptied_end_leases_and_serve_again() {
    let server = ZooKeeper::start();
    let (leases, others) = (connect(&server.url()).await, connect(&server.url()).await);
    let lease = leases.lock("job").lock().await.expect("free");
    let mut waits = others.lock("job");
    let waiter = tokio::spawn(async move {
        loop {
            match waits.lock().await {
                Ok(lease) => return lease,
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
            }
        }
    });
    server.wipe(0);
    let loss = within(LONG, lease.lost()).await;
    assert!(matches!(loss, Loss::Gone | Loss::Expired), "{loss:?}");
    let next = within(LONG, waiter).await.expect("no panic");
    next.check().expect("held");
    next.unlock().await.expect("released");
    let again = within(LONG, leases.lock("job").lock()).await.expect("free");
    again.unlock().await.expect("released");
}

#[tokio::test]
async fn host_name_that_cannot_be_resolved_is_named_as_such() {
    let builder = LeaseManager::builder().ttl(Duration::from_secs(2));
    let error =
        builder.connect("zookeeper://no-such-host.invalid:2181").await.expect_err("no host");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let text = error.to_string();
    assert!(text.contains("no-such-host.invalid") && text.contains("cannot be resolved"), "{text}");
}

#[derive(Default)]
struct Bomb(AtomicUsize);

impl Wake for Bomb {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
        panic!("a waker that panics");
    }
}

/// The waker panics in the task that serves the session.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn session_outlives_a_waker_that_panics() {
    let server = ZooKeeper::start();
    let look = Look::at(&server.hosts()).await;
    let (leases, there) = (connect(&server.url()).await, connect(&server.url()).await);
    let own = leases.lock("own").lock().await.expect("free");
    let fired = Arc::new(Bomb::default());
    let bomb = Waker::from(Arc::clone(&fired));
    for round in 0..3 {
        let name = format!("bomb:{round}");
        let held = there.lock(&name).lock().await.expect("free");
        let mut handle = leases.lock(&name);
        let mut waiting = Box::pin(handle.lock());
        let nodes = async || {
            look.0.list_children(&directory(&name)).await.map_or(0, |children| children.len())
        };
        let start = Instant::now();
        while nodes().await < 2 {
            assert!(start.elapsed() < LONG);
            assert!(polled(waiting.as_mut(), 1).await.is_none());
        }
        for _ in 0..50 {
            assert!(polled(waiting.as_mut(), 1).await.is_none());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        assert!(matches!(waiting.as_mut().poll(&mut Context::from_waker(&bomb)), Poll::Pending));
        held.unlock().await.expect("released");
        eventually(LONG, || fired.0.load(Ordering::SeqCst) > round).await;
        // Its timers would end a worker of this runtime by the same waker.
        drop(waiting);
        // The session goes on, and so do calls that wait.
        let (name, name_too) = (format!("job:{round}"), format!("job:{round}"));
        let held = there.lock(&name).lock().await.expect("free");
        let mut handle = leases.lock(&name_too);
        let waiter = tokio::spawn(async move { (handle.lock().await, Instant::now()) });
        look.until_nodes(&name, 2).await;
        held.unlock().await.expect("released");
        let released = Instant::now();
        let (lease, at) = within(LONG, waiter).await.expect("no panic");
        lease.expect("granted").unlock().await.expect("released");
        let took = at.saturating_duration_since(released);
        assert!(took < T / 2, "round {round}: {took:?}");
    }
    own.check().expect("held");
    eventually(LONG, || own.check().is_ok()).await;
    own.unlock().await.expect("released");
}
