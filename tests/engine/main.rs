//! The life of leases, from the first `lock` to the last release, through the public face: on the
//! store in memory, with a clock that stands still until everything waits for it.

mod blocked_wakers;
mod broken_store;
mod cancel;
mod close;
mod dropped;
mod election;
mod enter;
mod face;
mod fair_lock;
mod handoff;
mod handoff_loss;
mod handoff_turns;
mod jobs;
mod linger;
mod loss;
mod multi_lock;
mod observe;
mod permit_handoff;
mod random;
mod readers;
mod release;
mod renew;
mod rounds;
mod runtimes;
mod rw_lock;
mod semaphore;
mod slots;
mod steal;
mod stress;
mod timeouts;
mod tower;
mod types;
mod unpolled;
mod wait;

use kit::reached::Must;
use leasehold::store::MemoryStore;
use leasehold::testing::{Call, Fault, Faults, FaultyStore, Rule};
use leasehold::{Builder, Error, ErrorKind, Lease, LeaseManager, Loss, Result};
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;
use tokio::task::coop::unconstrained;
use tokio::time::{Instant, sleep};

/// The time to live of all these leases, and what the documentation derives from it.
const T: Duration = Duration::from_secs(30);
/// From the send of the last confirmed request until which the lease is believed, and until its token fires.
const D: Duration = Duration::from_millis(29_698);
const C: Duration = Duration::from_millis(27_698);
const GRACE: Duration = Duration::from_secs(2);
const ATTEMPT: Duration = Duration::from_secs(3);
const MOMENT: Duration = Duration::from_millis(1);

/// A manager on a store that fails on request.
struct Setup {
    leases: LeaseManager,
    faults: Faults,
    memory: MemoryStore,
}

impl Setup {
    fn new() -> Self {
        Self::with(LeaseManager::builder())
    }

    fn with(builder: Builder) -> Self {
        let memory = MemoryStore::new();
        let (store, faults) = FaultyStore::new(memory.clone());
        let leases = builder.build(store).expect("good settings");
        Self { leases, faults, memory }
    }

    /// A store that grants each name of a set by itself.
    fn one_by_one() -> Self {
        let memory = MemoryStore::new();
        let (store, faults) = FaultyStore::new(memory.clone());
        let leases = LeaseManager::builder().build(store.one_by_one()).expect("good settings");
        Self { leases, faults, memory }
    }

    /// Another process on the same store, whose own way to it is sound.
    fn other(&self) -> LeaseManager {
        let leases = LeaseManager::builder().build(self.memory.clone());
        leases.expect("good settings")
    }

    /// Another process holds the name.
    async fn held_elsewhere(&self, name: &str) -> Lease {
        let lease = self.other().lock(name).lock().await;
        lease.expect("nobody has it")
    }

    /// The hold count that the store has of a name.
    async fn recorded(&self, name: &str) -> Option<u64> {
        let holding = self.other().inspect(name).await.expect("the store answers");
        holding.map(|holding| holding.hold_count)
    }

    fn calls(&self, call: Call) -> usize {
        self.faults.calls(call)
    }
}

/// Lets everything run until it waits: the paused clock moves only then.
async fn settle() {
    sleep(MOMENT).await;
}

/// Lets a hold count be recorded, which is done in the background.
async fn counted() {
    sleep(20 * MOMENT).await;
}

/// Polls a future just once, whatever the task has done before: a call yields when that was much.
async fn poll_once<F: Future + ?Sized>(mut future: Pin<&mut F>) -> Poll<F::Output> {
    unconstrained(poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx)))).await
}

/// Runs a story with paused time on a thread of its own, and gives up on it in real time: what spins
/// inside a poll can be stopped by no clock of its own runtime.
#[track_caller]
fn watched<F: Future>(story: impl FnOnce() -> F + Send + 'static) {
    let limit = Duration::from_secs(60);
    let (done, ended) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        let _done = done;
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().start_paused(true).build().expect("a runtime");
        runtime.block_on(story());
    });
    // Nothing is ever sent: the sender goes away with the story, also when it panics.
    let spins = ended.recv_timeout(limit) == Err(std::sync::mpsc::RecvTimeoutError::Timeout);
    assert!(!spins, "a poll did not end within {limit:?}");
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// How long a future takes, by the paused clock.
async fn timed<F: Future>(future: F) -> (Duration, F::Output) {
    let start = Instant::now();
    let output = future.await;
    (start.elapsed(), output)
}

fn unavailable() -> Error {
    Error::new(ErrorKind::Unavailable, "out of order")
}

#[track_caller]
fn lost<R: std::fmt::Debug>(result: Result<R>) -> Loss {
    match result {
        Err(error) => error.loss().unwrap_or_else(|| panic!("expected a loss, not {error:?}")),
        Ok(value) => panic!("expected a loss, not {value:?}"),
    }
}

#[track_caller]
fn failed<R: std::fmt::Debug>(result: Result<R>) -> ErrorKind {
    match result {
        Err(error) => error.kind(),
        Ok(value) => panic!("expected an error, not {value:?}"),
    }
}
