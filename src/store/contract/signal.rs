//! Signals from a store to the engine.

use crate::util::panics::run_wakers;
use std::any::Any;
use std::sync::Arc;
use tokio::runtime::{Handle, Id};
use tokio::sync::Notify;

/// Notifies one task of an event. Clones are the same signal.
///
/// It is a flag, not a queue: a signal that is set without a waiter wakes the next one, once.
///
/// ```
/// use leasehold::store::Signal;
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let signal = Signal::new();
/// signal.set();
/// signal.clone().recv().await;
/// # });
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Signal(Arc<Notify>);

impl Signal {
    /// Creates a signal that is not set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Wakes the waiter, or the next one.
    pub fn set(&self) {
        run_wakers(|| self.0.notify_one());
    }

    /// Waits until it is set.
    ///
    /// # Cancel safety
    ///
    /// Safe: a signal is not lost.
    pub async fn recv(&self) {
        self.0.notified().await;
    }

    /// Returns whether the other is a clone of this one.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// A subscription to the wake-ups of one name. It ends when dropped.
#[derive(Debug)]
pub struct Wakeups {
    signal: Signal,
    _subscription: Box<dyn Any + Send + Sync>,
    /// The runtime that it was made on.
    runtime: Option<Id>,
}

impl Wakeups {
    /// Creates a subscription that the store wakes by `signal`. `subscription` is dropped with it.
    #[must_use]
    pub fn new(signal: Signal, subscription: impl Any + Send + Sync) -> Self {
        let runtime = Handle::try_current().ok().map(|runtime| runtime.id());
        Self { signal, _subscription: Box::new(subscription), runtime }
    }

    /// Returns whether it was made on the current runtime. Another one may be blocked or not driven, and with it the hints.
    pub(crate) fn is_of_this_runtime(&self) -> bool {
        Handle::try_current().ok().map(|runtime| runtime.id()) == self.runtime
    }

    /// Waits for a hint, unless one came since the last call.
    ///
    /// # Cancel safety
    ///
    /// Safe: a hint is not lost.
    pub async fn recv(&mut self) {
        self.heard().await;
    }

    /// Waits for a hint, as [`recv`](Self::recv) does.
    pub(crate) async fn heard(&self) {
        self.signal.recv().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wakeups_know_the_runtime_they_were_made_on() {
        let runtime = || tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let (first, second) = (runtime(), runtime());
        let made = first.block_on(async { Wakeups::new(Signal::new(), ()) });
        assert!(first.block_on(async { made.is_of_this_runtime() }));
        assert!(!second.block_on(async { made.is_of_this_runtime() }));
        assert!(!made.is_of_this_runtime());
    }
}
