//! A subscriber that panics: in the task of a user, where the span of a call is entered, left and closed, and on the
//! log's thread.
//!
//! In a program of its own. Other tests of paused time would wait for its log. And while a process has one subscriber,
//! tracing caches the interest of the thread that first reaches a callsite (`Rebuilder::JustOne` in tracing-core
//! 0.1.36): the thread of a test without a subscriber would disable the callsite for these tests too.

use leasehold::store::MemoryStore;
use leasehold::testing::{Call, Fault, FaultyStore, Rule};
use leasehold::{Error, ErrorKind, LeaseManager, Loss};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::time::sleep;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// The default time to live.
const T: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq)]
enum At {
    Enter,
    Exit,
    Close,
}

/// Panics once, at the call of this number of one kind.
struct Panics {
    at: At,
    left: AtomicU64,
    home: std::thread::ThreadId,
    struck: Arc<AtomicU64>,
}

impl Panics {
    fn met(&self, at: At) {
        // The log's own thread is tested elsewhere.
        if at == self.at
            && std::thread::current().id() == self.home
            && self.left.fetch_sub(1, Ordering::SeqCst) == 1
        {
            self.struck.fetch_add(1, Ordering::SeqCst);
            // Without the panic hook, whose backtraces would keep the processors from other tests.
            std::panic::resume_unwind(Box::new("a subscriber"));
        }
    }
}

impl Subscriber for Panics {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, _: &Id) {
        self.met(At::Enter);
    }

    fn exit(&self, _: &Id) {
        self.met(At::Exit);
    }

    fn try_close(&self, _: Id) -> bool {
        self.met(At::Close);
        true
    }
}

fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

#[tokio::test(start_paused = true)]
async fn subscriber_that_panics_in_a_call_keeps_no_name() {
    let mut struck = [0; 3];
    for (kind, at) in [At::Enter, At::Exit, At::Close].into_iter().enumerate() {
        for number in 1..=12 {
            let store = MemoryStore::new();
            let [leases, others] = [store.clone(), store]
                .map(|store| LeaseManager::builder().build(store).expect("a manager"));
            let count = Arc::new(AtomicU64::new(0));
            let panics = Panics {
                at,
                left: AtomicU64::new(number),
                home: std::thread::current().id(),
                struck: Arc::clone(&count),
            };
            let guard = tracing::subscriber::set_default(panics);
            let holder = leases.lock("n").lock().await.expect("free");
            // One that is dropped while it waits, and one that has its turn.
            let late = leases.lock("n").lock_timeout(Duration::from_millis(100)).await;
            assert!(late.expect("an answer").is_none());
            let mut lock = leases.lock("n");
            let mut next = Box::pin(lock.lock());
            assert!(poll(next.as_mut()).is_pending());
            holder.unlock().await.expect("held");
            next.await.expect("its turn").unlock().await.expect("held");
            drop(guard);
            struck[kind] += count.load(Ordering::SeqCst);
            let free = others.lock("n").try_lock().await.expect("an answer");
            free.expect("nothing keeps the name").unlock().await.expect("held");
        }
    }
    assert!(struck.iter().all(|struck| *struck > 2), "it met too little: {struck:?}");
}

/// A subscriber that panics in the middle of a batch costs one line.
#[tokio::test(start_paused = true)]
async fn subscriber_that_panics_leaves_no_lease_unwatched() {
    for panics_at in 1..=3 {
        let reported = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&reported);
        let log =
            tracing_subscriber::fmt().with_max_level(tracing::Level::INFO).with_writer(move || {
                // Three times "at risk", then three times "lease recovered".
                assert_ne!(counted.fetch_add(1, Ordering::Relaxed), 2 + panics_at, "on purpose");
                std::io::sink()
            });
        let _log = tracing::subscriber::set_default(log.finish());
        let (store, faults) = FaultyStore::new(MemoryStore::new());
        let manager = LeaseManager::builder().build(store).expect("a manager");
        let mut leases = Vec::new();
        for i in 0..3 {
            leases.push(manager.lock(format!("n:{i}")).lock().await.unwrap());
        }
        let error = Error::new(ErrorKind::Unavailable, "on purpose");
        faults.add(Rule::new(Fault::Fail(error)).on(Call::Renew).times(1));
        sleep(5 * T).await;
        // The log has a thread of its own, which knows no paused time.
        let start = std::time::Instant::now();
        while reported.load(Ordering::Relaxed) < 6 {
            assert!(start.elapsed() < Duration::from_secs(60), "it goes on after the panic");
            std::thread::yield_now();
        }
        for lease in &leases {
            lease.check().unwrap_or_else(|error| panic!("{panics_at}: {error:?}"));
        }
        // All of them are watched still.
        faults.add(Rule::new(Fault::Hang).on(Call::Renew));
        for lease in &leases {
            assert_eq!(lease.lost().await, Loss::Expired);
        }
    }
}
