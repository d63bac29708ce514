//! Shows that a call which keeps names before its caller gets them is still polled.

use crate::clock::{Clock, Instant};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::sleep;

/// The heartbeat of the calls of one handle, which makes one call at a time.
///
/// A hold that was granted to such a call is lost a TTL after the last beat, until the caller has the lease. Otherwise the
/// watchdog would renew it for a future that is kept and never polled again.
#[derive(Debug, Default)]
pub(crate) struct Heartbeat {
    /// The time since the clock's origin, in nanoseconds.
    last: AtomicU64,
    /// The leases that callers have.
    leases: AtomicU32,
}

/// A lease that a caller has: its holds need no heartbeat.
#[derive(Debug)]
pub(crate) struct NeedsNone(Arc<Heartbeat>);

impl Heartbeat {
    /// Runs `call`, and beats while it is polled.
    pub(crate) async fn during<F: Future>(
        &self,
        clock: &Clock,
        ttl: Duration,
        call: F,
    ) -> F::Output {
        let gap = ttl / 3;
        self.beat(clock.now());
        let (mut call, mut next) = (pin!(call), pin!(sleep(gap)));
        poll_fn(|cx| {
            // First, because a call that was not polled for long may get a hold now.
            while next.as_mut().poll(cx).is_ready() {
                self.beat(clock.now());
                next.set(sleep(gap));
            }
            call.as_mut().poll(cx)
        })
        .await
    }

    fn beat(&self, now: Instant) {
        let nanos = u64::try_from(now.since_origin().as_nanos()).unwrap_or(u64::MAX);
        self.last.store(nanos, Ordering::Relaxed);
    }

    /// Records that a caller gets a lease, until the returned value is dropped.
    pub(crate) fn stop(self: &Arc<Self>) -> NeedsNone {
        self.leases.fetch_add(1, Ordering::Relaxed);
        NeedsNone(Arc::clone(self))
    }

    /// Returns the time at which a hold is lost without another beat; `None` while a caller has a lease.
    pub(super) fn ends_at(&self, ttl: Duration) -> Option<Instant> {
        let last = Duration::from_nanos(self.last.load(Ordering::Relaxed));
        (self.leases.load(Ordering::Relaxed) == 0).then(|| Instant::ZERO + last + ttl)
    }
}

impl Drop for NeedsNone {
    fn drop(&mut self) {
        self.0.leases.fetch_sub(1, Ordering::Relaxed);
    }
}
