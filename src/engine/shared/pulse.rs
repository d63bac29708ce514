//! Detects a call that keeps names for its caller and is no longer polled.

use crate::clock::{Clock, Instant};
use crate::engine::machine::pulse::Pulse;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::sleep;

/// The pulse of the calls of one handle, which makes one call at a time: each poll is a pulse.
///
/// A hold of which no caller has a lease yet is lost a TTL after the last pulse. Otherwise the watchdog would renew it for a
/// future that is kept and never polled again.
#[derive(Debug, Default)]
pub(crate) struct CallPulse {
    /// The end of the last pulse, in nanoseconds since the clock's origin.
    until: AtomicU64,
}

impl CallPulse {
    /// Runs `call`, and wakes its task three times in each TTL. Each poll is a pulse.
    pub(crate) async fn during<F: Future>(
        &self,
        clock: &Clock,
        ttl: Duration,
        call: F,
    ) -> F::Output {
        let gap = ttl / 3;
        let mut call = pin!(call);
        let mut next = pin!(sleep(gap));
        let mut runtime = Handle::current().id();
        poll_fn(|cx| {
            // First, because the call may get a hold now.
            self.record(clock.now() + ttl);
            // A timer fires only while the runtime that it was made on runs.
            if let Ok(here) = Handle::try_current()
                && here.id() != runtime
            {
                runtime = here.id();
                next.set(sleep(gap));
            }
            // A new timer wakes the task only once it was polled.
            while next.as_mut().poll(cx).is_ready() {
                next.set(sleep(gap));
            }
            call.as_mut().poll(cx)
        })
        .await
    }

    fn record(&self, until: Instant) {
        self.until.store(until.to_nanos(), Ordering::Relaxed);
    }

    /// Returns the last pulse.
    pub(in crate::engine) fn last(&self) -> Pulse {
        Pulse::until(Instant::at_nanos(self.until.load(Ordering::Relaxed)))
    }
}
