//! The public face: settings that a store does not have, identities, and calls outside a runtime.

use super::*;
use leasehold::store::{Quorum, Store};
use leasehold::{Preflight, TlsLibrary};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};

fn quorum() -> Quorum {
    Quorum::new((0..3).map(|_| Arc::new(MemoryStore::new()) as _).collect()).expect("three nodes")
}

/// One of its nodes can reserve no token that it is given.
fn quorum_without_tokens() -> Quorum {
    let node = |index: usize| -> Arc<dyn Store> {
        let (store, _) = FaultyStore::new(MemoryStore::new());
        let can = store.capabilities().with_reserves(index > 0);
        Arc::new(store.with_capabilities(can))
    };
    Quorum::new((0..3).map(node).collect()).expect("three nodes")
}

#[tokio::test(start_paused = true)]
async fn settings_that_a_store_does_not_have_are_refused() {
    let new = LeaseManager::builder;
    let timeout = Duration::from_millis(10);
    for (name, builder) in [
        ("prefix", new().prefix("app:")),
        ("replicas", new().replicas(1, timeout)),
        ("preflight", new().preflight(Preflight::refuse())),
        ("preflight", new().preflight(Preflight::off())),
        ("sharded_pubsub", new().sharded_pubsub(true)),
        ("sharded_pubsub", new().sharded_pubsub(false)),
        ("tls_ca", new().tls_ca("pem")),
        ("tls_ca_file", new().tls_ca_file("ca.pem")),
        ("tls_identity", new().tls_identity("chain", "key")),
        ("tls_identity_files", new().tls_identity_files("chain.pem", "key.pem")),
        ("tls_library", new().tls_library(TlsLibrary::Rustls)),
    ] {
        let connect = |url| builder.clone().connect(url);
        for (store, result) in [
            ("memory:", connect("memory:").await),
            ("a quorum in memory", connect("memory:,memory:,memory:").await),
            ("a store", builder.clone().build(MemoryStore::new())),
            ("a quorum", builder.clone().build(quorum())),
        ] {
            let error = result.expect_err(store);
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{name}, {store}: {error}");
            assert!(error.to_string().contains(&format!("setting {name} ")), "{store}: {error}");
        }
    }
    // Before anything is sent.
    let error = new().sharded_pubsub(true).connect("redis://127.0.0.1:1").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    for (name, builder) in [
        ("replicas", new().replicas(1, timeout)),
        ("preflight", new().preflight(Preflight::warn())),
        ("sharded_pubsub", new().sharded_pubsub(false)),
    ] {
        let error = builder.connect("zookeeper://127.0.0.1:1").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains(name), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn prefix_has_the_same_limits_for_all_stores() {
    let long = || LeaseManager::builder().prefix("p".repeat(257));
    for (store, result) in [
        ("memory:", long().connect("memory:").await),
        ("redis:", long().connect("redis://127.0.0.1:1").await),
        ("zookeeper:", long().connect("zookeeper://127.0.0.1:1").await),
        ("a store", long().build(MemoryStore::new())),
    ] {
        let error = result.expect_err(store);
        assert_eq!(error.kind(), ErrorKind::Invalid, "{store}: {error}");
        assert!(error.to_string().contains("257 bytes"), "{store}: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn fencing_that_is_required_is_there_or_refused() {
    let builder = || LeaseManager::builder().require_fencing(true);
    for leases in [
        builder().connect("memory:").await.expect("memory has fencing tokens"),
        builder().build(MemoryStore::new()).expect("memory has fencing tokens"),
        builder().connect("memory:,memory:,memory:").await.expect("its nodes reserve tokens"),
        builder().build(quorum()).expect("its nodes reserve tokens"),
    ] {
        assert!(leases.lock("n").lock().await.expect("free").fence().is_some());
    }
    let remembering = || LeaseManager::builder().fence_retention(Some(3 * T));
    for (setting, result) in [
        ("require_fencing", builder().build(quorum_without_tokens())),
        ("fence_retention", remembering().build(quorum_without_tokens())),
    ] {
        let error = result.expect_err(setting);
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains(setting), "{error}");
    }
    for (setting, builder) in [("require_fencing", builder()), ("fence_retention", remembering())] {
        let error = builder.fencing(false).build(MemoryStore::new()).expect_err(setting);
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains(setting), "{error}");
    }
    // Without the wish a quorum still grants.
    let leases = LeaseManager::builder().build(quorum_without_tokens()).expect("good settings");
    assert_eq!(leases.lock("n").lock().await.expect("free").fence(), None);
}

#[tokio::test(start_paused = true)]
async fn holder_id_is_the_one_that_inspect_reports() {
    let leases = LeaseManager::in_memory();
    let mut lock = leases.lock("n");
    let outer = lock.lock().await.unwrap();
    let inner = lock.lock().await.unwrap();
    let holder = leases.inspect("n").await.unwrap().expect("held").holder;
    assert_eq!(outer.holder_id().to_string(), holder);
    assert_eq!(inner.holder_id(), outer.holder_id());
    let first = outer.holder_id();
    drop((outer, inner));
    settle().await;
    assert_ne!(lock.lock().await.unwrap().holder_id(), first);
}

#[tokio::test(start_paused = true)]
async fn names_and_urls_are_anything_that_is_a_str() {
    let url = String::from("memory:");
    drop(LeaseManager::connect(&url).await.unwrap());
    let leases = LeaseManager::builder().connect(url).await.unwrap();
    let name = || String::from("n");
    let mut holder = leases.holder();
    let lease = holder.lock(name()).await.unwrap();
    assert!(holder.try_lock(&name()).await.unwrap().is_some());
    assert!(holder.lock_timeout("n", T).await.unwrap().is_some());
    assert!(leases.inspect(name()).await.unwrap().is_some());
    assert!(leases.lock(name()).try_lock().await.unwrap().is_none());
    drop(lease);
}

/// Polls once where there is no runtime.
fn panic_of<F: Future>(future: F) -> String {
    let polled = catch_unwind(AssertUnwindSafe(|| {
        let _ = pin!(future).poll(&mut Context::from_waker(Waker::noop()));
    }));
    let panic: Box<dyn Any + Send> = polled.expect_err("there is no runtime");
    let text = panic.downcast_ref::<&str>().copied().map(str::to_owned);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).expect("a text")
}

#[test]
fn calls_outside_a_runtime_panic_with_what_to_do() {
    let leases = LeaseManager::in_memory();
    let dedicated = LeaseManager::builder().dedicated_thread(true);
    let dedicated = dedicated.build(MemoryStore::new()).expect("good settings");
    let mut panics = Vec::new();
    for leases in [leases, dedicated] {
        let (mut lock, mut holder) = (leases.lock("n"), leases.holder());
        panics.extend([
            panic_of(lock.lock()),
            panic_of(lock.try_lock()),
            panic_of(lock.lock_timeout(T)),
            panic_of(lock.with(async |_, _| ())),
            panic_of(holder.lock("n")),
            panic_of(holder.try_lock("n")),
            panic_of(holder.lock_timeout("n", T)),
        ]);
    }
    panics.push(panic_of(LeaseManager::connect("memory:")));
    panics.push(panic_of(LeaseManager::connect("redis://127.0.0.1:1")));
    for panic in panics {
        assert!(panic.contains("leasehold needs a tokio runtime"), "{panic}");
    }
}

/// A future is polled far from the line that is to be changed.
#[test]
fn calls_outside_a_runtime_panic_with_their_place() {
    let leases = LeaseManager::in_memory();
    let (mut lock, mut rw, mut holder) = (leases.lock("n"), leases.rw_lock("n"), leases.holder());
    let (pool, slots) = (leases.semaphore("n", 1), leases.slots("n", 1));
    let mut set = leases.multi_lock(["a", "b"]).expect("good names");
    let panics = [
        panic_of(lock.lock()),
        panic_of(holder.lock("n")),
        panic_of(rw.read()),
        panic_of(pool.acquire()),
        panic_of(slots.take()),
        panic_of(set.lock()),
        panic_of(leases.once("n").run(async |_| Ok::<_, Error>(()))),
    ];
    for panic in panics {
        assert!(panic.contains(&format!("in the call at {}", file!())), "{panic}");
    }
}

/// A question to the store has no deadline of its own, so the call has one, whatever the store does.
#[tokio::test(start_paused = true)]
async fn questions_to_a_store_that_hangs_end_in_two_attempts() {
    let setup = Setup::new();
    let (leases, semaphore) = (&setup.leases, setup.leases.semaphore("s", 2));
    let lease = leases.lock("n").lock().await.unwrap();
    setup.faults.add(Rule::new(Fault::Hang));
    let ends = async |what: &str, call: Pin<Box<dyn Future<Output = Option<Error>> + '_>>| {
        let (took, error) = timed(call).await;
        let error = error.unwrap_or_else(|| panic!("{what}: it hangs"));
        assert_eq!((error.kind(), took), (ErrorKind::Unavailable, ATTEMPT * 2), "{what}: {error}");
    };
    ends("inspect", Box::pin(async { leases.inspect("n").await.err() })).await;
    ends("holders", Box::pin(async { leases.holders("n").await.err() })).await;
    ends("waiters", Box::pin(async { leases.waiters("n").await.err() })).await;
    ends("usage", Box::pin(async { semaphore.usage().await.err() })).await;
    ends("resize", Box::pin(async { semaphore.resize(3).await.err() })).await;
    ends("note", Box::pin(async { lease.note().await.err() })).await;
    ends("force", Box::pin(async { leases.force_unlock("n", "test").await.err() })).await;
}

async fn others_run<'a>(what: &str, call: impl Fn() -> Pin<Box<dyn Future<Output = ()> + 'a>>) {
    let other = tokio::spawn(async {});
    for _ in 0..1000 {
        call().await;
    }
    assert!(other.is_finished(), "{what}");
}

#[tokio::test]
async fn calls_that_are_always_ready_let_other_tasks_run() {
    let leases = LeaseManager::in_memory();
    let leader = leases.election("scheduler").candidate("a").campaign().await.expect("elected");
    let revoked = leases.lock("n").lock().await.expect("free");
    leases.force_unlock("n", "test").await.expect("done");
    let slots = leases.slots("gpu", 2);
    let (leader, revoked, slots) = (&leader, &revoked, &slots);
    others_run("wanted", || Box::pin(revoked.wanted())).await;
    others_run("lost", || Box::pin(async { _ = revoked.lost().await })).await;
    others_run("proclaim", || Box::pin(async { leader.proclaim("b").await.expect("leads") })).await;
    others_run("take_index", || Box::pin(async { drop(slots.take_index(2).await) })).await;
    others_run("try_take_index", || Box::pin(async { drop(slots.try_take_index(2).await) })).await;
}
