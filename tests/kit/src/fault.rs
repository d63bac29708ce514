//! What the fault tests share: moments that all processes of the machine agree on, and phases
//! that are repeated if the machine itself stood still in them.

use std::io::{self, Write};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use leasehold::{Error, Lease, LeaseManager, Loss};
use rustix::time::{ClockId, clock_gettime};
use tokio::task::JoinHandle;

pub use super::look::exists;
use super::{Server, connect_in_the_end, look, within};
pub use super::{lock, millis};

/// Far above what any step takes.
pub const LONG: Duration = Duration::from_secs(15);

/// What `CLOCK_BOOTTIME` shows: one order for the events of all processes.
pub fn boottime() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    let whole = u64::try_from(now.tv_sec).expect("the machine has been started");
    Duration::new(whole, u32::try_from(now.tv_nsec).expect("below a second"))
}

pub async fn connect(url: &str, ttl: Duration) -> LeaseManager {
    connect_in_the_end(LeaseManager::builder().ttl(ttl), url).await
}

/// Notes the cause of a loss, and when it was told.
pub fn watch(lease: &Lease) -> JoinHandle<(Loss, Duration)> {
    let lost = within(LONG, lease.lost());
    tokio::spawn(async move { (lost.await, boottime()) })
}

/// A waiter, and when it was done.
pub fn wait_for(leases: &LeaseManager, name: &str) -> JoinHandle<(Result<Lease, Error>, Duration)> {
    let mut lock = leases.lock(name);
    tokio::spawn(async move { (within(LONG, lock.lock()).await, boottime()) })
}

/// The lease of a waiter, and when it was granted.
pub async fn let_in(waiting: JoinHandle<(Result<Lease, Error>, Duration)>) -> (Lease, Duration) {
    let (lease, at) = waiting.await.expect("no panic");
    (lease.expect("a lease"), at)
}

/// Who has a lock, as the server knows it.
pub fn owner(server: &Server, key: &str) -> String {
    let mut pairs = server.command(&["HGETALL", key]).pairs();
    assert_eq!(pairs.len(), 1, "one field for one holder: {pairs:?}");
    pairs.remove(0).0
}

/// When the server will let a key go, at the earliest.
pub fn end_of(server: &Server, key: &str) -> Duration {
    let now = boottime();
    let left = server.command(&["PTTL", key]).int();
    now + millis(u64::try_from(left).expect("a key with a time to live"))
}

/// Waits for the next renewal of `key`.
pub async fn renewal(server: &Server, key: &str) {
    look::renewal(server, key, LONG).await;
}

/// A resource that refuses whoever comes with a smaller fencing token than it has seen.
#[derive(Default)]
pub struct Resource {
    seen: u64,
}

impl Resource {
    pub fn write(&mut self, lease: &Lease) -> bool {
        self.write_with(lease.fence().expect("fencing is on"))
    }

    pub fn write_with(&mut self, fence: u64) -> bool {
        let accepted = fence >= self.seen;
        self.seen = self.seen.max(fence);
        accepted
    }
}

/// A thread that wants to run every few milliseconds and notes for how long it could not.
struct Stalls {
    over: Arc<AtomicBool>,
    longest: Arc<AtomicU64>,
}

impl Stalls {
    fn watch() -> Self {
        const STEP: Duration = millis(5);
        let stalls = Self { over: Arc::default(), longest: Arc::default() };
        let (over, longest) = (Arc::clone(&stalls.over), Arc::clone(&stalls.longest));
        thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                let start = boottime();
                thread::sleep(STEP);
                let late = (boottime() - start).saturating_sub(STEP);
                longest.fetch_max(late.as_millis() as u64, Ordering::Relaxed);
            }
        });
        stalls
    }

    fn longest(&self) -> Duration {
        millis(self.longest.load(Ordering::Relaxed))
    }
}

impl Drop for Stalls {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

/// Runs a phase, which asserts how soon things happen. If it fails and the machine stood still
/// meanwhile, that says nothing: it is run again, up to three times in all.
pub async fn undisturbed<F>(phase: impl Fn() -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    const TRIES: usize = 3;
    const NOTABLE: Duration = millis(40);
    for run in 1..=TRIES {
        let stalls = Stalls::watch();
        let Err(failed) = tokio::spawn(phase()).await else {
            return;
        };
        let longest = stalls.longest();
        if run == TRIES || longest < NOTABLE {
            resume_unwind(failed.into_panic());
        }
        // Not by a macro: what those print is shown for failed tests only.
        let text = format!("run {run} of {TRIES} does not count: the machine stood still for");
        let _ = writeln!(io::stderr(), "{text} {longest:?}");
    }
}
