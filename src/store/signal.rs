//! How a store tells that something has happened.

use std::any::Any;
use std::sync::Arc;
use tokio::sync::Notify;

/// Tells one task that something has happened; clones are the same signal.
///
/// It is a flag, not a queue: what is set while nobody waits is told to whoever waits next, once.
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
    /// Makes a signal that is not set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Wakes whoever waits, or whoever waits next.
    pub fn set(&self) {
        self.0.notify_one();
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

/// A subscription to one name's wake-ups; it ends when dropped.
#[derive(Debug)]
pub struct Wakeups {
    signal: Signal,
    _subscription: Box<dyn Any + Send + Sync>,
}

impl Wakeups {
    /// Makes a subscription, which the store wakes by `signal`; `subscription` is dropped with it.
    #[must_use]
    pub fn new(signal: Signal, subscription: impl Any + Send + Sync) -> Self {
        Self { signal, _subscription: Box::new(subscription) }
    }

    /// Waits for a hint that came since the last call.
    ///
    /// # Cancel safety
    ///
    /// Safe: a hint is not lost.
    pub async fn recv(&mut self) {
        self.signal.recv().await;
    }
}
