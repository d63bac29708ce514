//! The traces of leasehold: a span for each acquire, and an event for each change in the life
//! of a lease.
//!
//! These tests are a program of their own: tracing caches for each callsite whether a subscriber listens, and
//! threads that have no subscriber may get in between.

use std::sync::Arc;
use std::time::Duration;

use kit::lock;
use kit::trace::{Spanned, Trace, Traced};
use leasehold::store::MemoryStore;
use leasehold::testing::{Call, Fault, Faults, FaultyStore, Rule};
use leasehold::{Error, ErrorKind, LeaseManager, Loss};
use tokio::time::{Instant, sleep};
use tracing::Level;

const AT_RISK: &str = "a lease is at risk: its renewal failed";
const LOST: &str = "a lease is lost";
/// The default time to live; all time in these tests is tokio's, and paused.
const T: Duration = Duration::from_secs(30);

/// The spans of acquires, in their order.
fn acquires(trace: &Trace) -> Vec<Spanned> {
    trace.spans().into_iter().filter(|span| span.name == "acquire").collect()
}

/// The only event about a name with this message.
#[track_caller]
fn the(trace: &Trace, name: &str, message: &str) -> Traced {
    let mut events = trace.of(name);
    events.retain(|event| event.message() == message);
    assert_eq!(events.len(), 1, "{message}: {events:?}");
    events.remove(0)
}

fn count(trace: &Trace, name: &str, message: &str) -> usize {
    trace.messages(name).iter().filter(|text| *text == message).count()
}

fn faulty(memory: MemoryStore) -> (Arc<FaultyStore<MemoryStore>>, Faults) {
    let (store, faults) = FaultyStore::new(memory);
    (Arc::new(store), faults)
}

fn fail_renewals(faults: &Faults) {
    let error = Error::new(ErrorKind::Unavailable, "shaky");
    faults.add(Rule::new(Fault::Fail(error)).on(Call::Renew));
}

#[tokio::test(start_paused = true)]
async fn acquire_is_one_span_with_its_wait_and_its_outcome() {
    let (trace, _guard) = Trace::of_this_thread();
    let leases = LeaseManager::in_memory();
    let mut mine = leases.lock("job");
    let outer = mine.lock().await.expect("a lease");
    let inner = mine.lock().await.expect("a nested lease");
    assert!(leases.lock("job").try_lock().await.expect("an answer").is_none());
    let limit = Duration::from_secs(2);
    assert!(leases.lock("job").lock_timeout(limit).await.expect("an answer").is_none());
    drop(inner);
    let mut other = leases.lock("job");
    let (waited, ()) = tokio::join!(other.lock(), async {
        sleep(Duration::from_secs(3)).await;
        drop(outer);
    });
    drop(waited.expect("a lease"));
    leases.close().await.expect("all released");
    leases.lock("job").lock().await.expect_err("closed");

    let spans = acquires(&trace);
    let expected = [
        (0, "granted"),
        (0, "granted"),
        (0, "not granted"),
        (2_000, "not granted"),
        (3_000, "granted"),
        (0, "failed"),
    ];
    assert_eq!(spans.len(), expected.len(), "{spans:?}");
    for (span, (waited, outcome)) in spans.iter().zip(expected) {
        assert_eq!(span.fields["name"], "job");
        assert_eq!(span.fields["outcome"], outcome, "{span:?}");
        let millis: f64 = span.fields["waited_ms"].parse().expect("a number");
        assert!((millis - f64::from(waited)).abs() < 100.0, "{span:?}");
        assert!(span.closed, "{span:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn dropped_acquire_closes_its_span() {
    let (trace, _guard) = Trace::of_this_thread();
    let leases = LeaseManager::in_memory();
    let lease = lock(&leases, "job").await;
    let mut other = leases.lock("job");
    tokio::select! {
        _ = other.lock() => panic!("it is held"),
        () = sleep(Duration::from_secs(1)) => {}
    }
    let spans = acquires(&trace);
    assert_eq!(spans.len(), 2);
    assert!(spans.iter().all(|span| span.closed), "{spans:?}");
    assert!(!spans[1].fields.contains_key("outcome"));
    drop(lease);
}

#[tokio::test(start_paused = true)]
async fn grant_and_the_release_are_traced_with_the_fencing_token() {
    let (trace, _guard) = Trace::of_this_thread();
    let leases = LeaseManager::in_memory();
    let mut handle = leases.lock("job");
    let outer = handle.lock().await.expect("a lease");
    let inner = handle.lock().await.expect("a nested lease");
    let fence = outer.fence().expect("a fencing token").to_string();
    let grants = trace.of("job");
    assert_eq!(grants.len(), 2, "{grants:?}");
    for (grant, count) in grants.iter().zip(["1", "2"]) {
        assert_eq!(grant.message(), "granted");
        assert_eq!(grant.level, Level::DEBUG);
        assert_eq!(grant.field("fence"), fence);
        assert_eq!(grant.field("count"), count);
        assert_eq!(grant.within, ["acquire"]);
    }
    inner.unlock().await.expect("a release");
    assert_eq!(count(&trace, "job", "released"), 0, "a partial release is none");
    outer.unlock().await.expect("a release");
    let released = the(&trace, "job", "released");
    assert_eq!(released.level, Level::DEBUG);
    assert_eq!(released.field("fence"), fence);

    // By Drop just as well, and by a panicking body.
    drop(lock(&leases, "dropped").await);
    leases.lock("with").with(async |_, _| ()).await.expect("it ran");
    sleep(Duration::from_secs(1)).await;
    the(&trace, "dropped", "released");
    the(&trace, "with", "released");
}

#[tokio::test(start_paused = true)]
async fn each_renewal_is_traced_for_those_who_ask_for_everything() {
    let (trace, _guard) = Trace::of_this_thread();
    let leases = LeaseManager::in_memory();
    let lease = lock(&leases, "job").await;
    sleep(T).await;
    let renewals = trace.of("job");
    let renewals: Vec<_> = renewals.iter().filter(|event| event.message() == "renewed").collect();
    // Every 9 to 10 s.
    assert_eq!(renewals.len(), 3, "{renewals:?}");
    assert!(renewals.iter().all(|event| event.level == Level::TRACE));
    // Nothing else is traced of a lease that stays held.
    assert_eq!(trace.messages("job"), ["granted", "renewed", "renewed", "renewed"]);
    drop(lease);
}

#[tokio::test(start_paused = true)]
async fn risk_is_traced_once_with_the_time_left_and_so_is_its_end() {
    let (trace, _guard) = Trace::of_this_thread();
    let (store, faults) = faulty(MemoryStore::new());
    let leases = LeaseManager::builder().build(store.clone()).expect("a manager");
    let lease = lock(&leases, "job").await;
    fail_renewals(&faults);
    sleep(T / 2).await;
    let risk = the(&trace, "job", AT_RISK);
    assert_eq!(risk.level, Level::WARN);
    // At the first renewal, after 9 to 10 s, of the 27.7 s until the token would fire.
    let left: u64 = risk.field("left_ms").parse().expect("a number");
    assert!((17_000..19_000).contains(&left), "{left}");
    assert!(count(&trace, "job", "renewal failed") >= 2);

    faults.heal();
    sleep(T / 10).await;
    let safe = the(&trace, "job", "lease recovered");
    assert_eq!(safe.level, Level::INFO);
    assert_eq!(count(&trace, "job", LOST), 0);
    lease.check().expect("held");
    drop(lease);
}

#[tokio::test(start_paused = true)]
async fn loss_is_traced_once_with_its_cause() {
    let (trace, _guard) = Trace::of_this_thread();
    let memory = MemoryStore::new();
    let (store, faults) = faulty(memory.clone());
    let builder = LeaseManager::builder();
    let leases = builder.clone().build(store.clone()).expect("a manager");
    let others = builder.clone().build(memory.clone()).expect("a manager");
    let bounded = builder.max_hold(T / 3).build(store.clone()).expect("a manager");

    let gone = lock(&leases, "gone").await;
    let taken = lock(&leases, "taken").await;
    let revoked = lock(&leases, "revoked").await;
    let bound = lock(&bounded, "bound").await;
    assert!(memory.delete("gone"));
    assert!(memory.delete("taken"));
    let next = lock(&others, "taken").await;
    assert!(leases.force_unlock("revoked", "test").await.expect("an answer"));
    sleep(T / 2).await;
    let expired = lock(&leases, "expired").await;
    fail_renewals(&faults);
    let start = Instant::now();
    assert_eq!(expired.lost().await, Loss::Expired);
    assert!(start.elapsed() < T);
    faults.heal();
    let closing = lock(&leases, "closing").await;
    leases.close().await.expect("all released");

    for (name, cause) in [
        ("gone", "Gone"),
        ("taken", "Taken"),
        ("revoked", "Revoked"),
        ("bound", "MaxHold"),
        ("expired", "Expired"),
        ("closing", "Closed"),
    ] {
        let event = the(&trace, name, LOST);
        assert_eq!(event.level, Level::WARN, "{name}");
        assert_eq!(event.field("cause"), cause, "{name}");
        assert!(!event.field("fence").is_empty(), "{name}");
    }
    drop((gone, taken, revoked, bound, expired, closing, next));
    sleep(T).await;
    for name in ["gone", "taken", "revoked", "expired"] {
        assert!(count(&trace, name, LOST) == 1, "{name}");
    }
}

/// A handle of its own, in a nested call, waits for its caller forever.
#[tokio::test(start_paused = true)]
async fn waiter_behind_its_own_process_is_reported_once() {
    const MESSAGE: &str =
        "waiting for a name that this process holds; a nested call needs the handle of its caller";
    let (trace, _guard) = Trace::of_this_thread();
    let store = MemoryStore::new();
    let leases = LeaseManager::builder().build(store.clone()).expect("a manager");
    let others = LeaseManager::builder().build(store).expect("a manager");
    let (ours, theirs) = (lock(&leases, "ours").await, lock(&others, "theirs").await);
    let waits = |name, limit| {
        let mut lock = leases.lock(name);
        async move { assert!(lock.lock_timeout(limit).await.expect("an answer").is_none()) }
    };
    waits("ours", T - T / 100).await;
    assert_eq!(count(&trace, "ours", MESSAGE), 0, "it may yet be released");
    tokio::join!(waits("ours", 5 * T), waits("theirs", 5 * T));
    assert_eq!(count(&trace, "theirs", MESSAGE), 0);
    waits("ours", 2 * T).await;
    drop((ours, theirs));
    leases.close().await.expect("all released");
    let mut events = trace.of("ours");
    events.retain(|event| event.message() == MESSAGE);
    assert_eq!(events.len(), 2, "once for each wait: {events:?}");
    for event in events {
        assert_eq!(event.level, Level::WARN);
        let waited: u128 = event.field("waited_ms").parse().expect("a number");
        assert!((T.as_millis()..T.as_millis() * 9 / 8).contains(&waited), "{waited}");
    }
}

/// Each call gets permits of its own, so to wait for those of others is no mistake.
#[tokio::test(start_paused = true)]
async fn waiter_for_permits_of_its_own_process_is_not_reported() {
    let (trace, _guard) = Trace::of_this_thread();
    let leases = LeaseManager::builder().build(MemoryStore::new()).expect("a manager");
    let pool = leases.semaphore("pool", 1);
    let permit = pool.acquire().await.expect("free");
    assert!(
        tokio::join!(pool.acquire_timeout(3 * T), pool.acquire_timeout(3 * T))
            .0
            .expect("an answer")
            .is_none()
    );
    drop(permit);
    leases.close().await.expect("all released");
    let warned = trace.of("pool").into_iter().filter(|event| event.level == Level::WARN);
    assert_eq!(warned.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn no_event_shows_the_token_of_a_holder() {
    let (trace, _guard) = Trace::of_this_thread();
    let (store, faults) = faulty(MemoryStore::new());
    let leases = LeaseManager::builder().build(store.clone()).expect("a manager");
    let lease = lock(&leases, "job").await;
    let holder = leases.inspect("job").await.expect("an answer").expect("a holder").holder;
    let (uuid, _) = holder.split_once(':').expect("a colon");
    fail_renewals(&faults);
    assert_eq!(lease.lost().await, Loss::Expired);
    drop(lease);
    leases.close().await.expect("all released");
    assert!(trace.messages("job").contains(&LOST.to_owned()));
    let all = format!("{:?} {:?}", trace.events(), trace.spans());
    assert!(!all.contains(uuid), "{all}");
}

#[tokio::test(start_paused = true)]
async fn lease_that_is_held_for_long_is_reported_once_with_its_place() {
    let (trace, _guard) = Trace::of_this_thread();
    let age = Duration::from_secs(600);
    let builder = LeaseManager::builder().warn_held(age);
    let leases = builder.build(MemoryStore::new()).expect("good settings");
    let line = line!() + 1;
    let lease = leases.lock("leaked").lock().await.expect("a lease");
    let _permit = leases.semaphore("permits", 2).acquire().await.expect("a permit");
    let _index = leases.slots("index", 2).take_index(1).await.expect("a slot");
    let _set = leases.multi_lock(["set"]).expect("a set").lock().await.expect("all");
    let mut holder = leases.holder();
    let _held = holder.lock("one of many").await.expect("a lease");
    let mut own = leases.rw_lock("own").warn_held(age / 2);
    let _reader = own.read().await.expect("a lease");
    leases.lock("short").lock().await.expect("a lease").unlock().await.expect("released");
    sleep(age - Duration::from_millis(1)).await;
    assert_eq!(count(&trace, "leaked", "still held; is it leaked?"), 0);
    let event = the(&trace, "own", "still held; is it leaked?");
    let place = event.field("caller");
    assert!(place.contains(&format!("traces.rs:{}:", line + 7)), "{place}");
    sleep(age * 3).await;
    let event = the(&trace, "leaked", "still held; is it leaked?");
    assert_eq!(event.level, Level::WARN);
    let place = event.field("caller");
    assert!(place.contains(&format!("traces.rs:{line}:")), "{place}");
    for (after, name) in [(1, "permits"), (2, "index#1"), (3, "set"), (5, "one of many")] {
        let event = the(&trace, name, "still held; is it leaked?");
        let place = event.field("caller");
        assert!(place.contains(&format!("traces.rs:{}:", line + after)), "{name}: {place}");
    }
    assert_eq!(count(&trace, "short", "still held; is it leaked?"), 0);
    lease.check().expect("nothing happens to it");
}
