//! The stages of an engine, from the first call to the last request.

use crate::clock::Instant;
use crate::error::{Error, ErrorKind, Result};
use std::pin::{Pin, pin};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::sleep;

/// A stage of an engine. None comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Stage {
    Open,
    /// No call gets a lease any more.
    Closed,
    /// The engine is no longer needed: it finishes what it has begun, within bounds.
    Ending,
    /// Nothing is sent any more, and the connections are closed.
    Ended,
}

/// The stage of an engine, and its calls in progress.
pub(crate) struct Lifecycle {
    stage: AtomicU8,
    /// True if a panic of the engine has closed it.
    panicked: AtomicBool,
    /// The time at which `close` stops retrying releases.
    closing_until: OnceLock<Instant>,
    calls: AtomicUsize,
    /// Notifies of a new stage, and of the last call that ends after the engine is closed.
    changed: Notify,
}

/// A call in progress, which may still send a request or leave a job to the worker; see [`Lifecycle::begin_call`].
pub(crate) struct CallGuard<'a>(&'a Lifecycle);

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        if self.0.calls.fetch_sub(1, Ordering::SeqCst) == 1 && self.0.is_closed() {
            self.0.changed.notify_waiters();
        }
    }
}

impl Lifecycle {
    pub(super) fn new() -> Self {
        Self {
            stage: AtomicU8::new(Stage::Open as u8),
            panicked: AtomicBool::new(false),
            closing_until: OnceLock::new(),
            calls: AtomicUsize::new(0),
            changed: Notify::new(),
        }
    }

    fn is(&self, stage: Stage) -> bool {
        self.stage.load(Ordering::SeqCst) >= stage as u8
    }

    /// Returns whether no call gets a lease any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.is(Stage::Closed)
    }

    /// Returns whether the engine is no longer needed.
    pub(crate) fn is_ending(&self) -> bool {
        self.is(Stage::Ending)
    }

    /// Returns whether the engine has ended.
    pub(crate) fn is_ended(&self) -> bool {
        self.is(Stage::Ended)
    }

    /// Returns whether a panic of the engine has closed it.
    pub(crate) fn has_panicked(&self) -> bool {
        self.panicked.load(Ordering::Acquire)
    }

    /// Records that a part of the engine has panicked. A change to [`Stage::Closed`] follows.
    pub(super) fn set_panicked(&self) {
        self.panicked.store(true, Ordering::Release);
    }

    /// Enters a stage, unless a later one was entered before.
    pub(crate) fn enter(&self, stage: Stage) {
        self.stage.fetch_max(stage as u8, Ordering::SeqCst);
        self.changed.notify_waiters();
    }

    /// Waits until the engine has entered a stage.
    pub(crate) async fn until(&self, stage: Stage) {
        self.until_is(|| self.is(stage)).await;
    }

    /// Waits until no call is in progress. Call it when the engine is closed: only then does the last guard notify.
    pub(crate) async fn until_no_call(&self) {
        self.until_is(|| self.calls.load(Ordering::SeqCst) == 0).await;
    }

    async fn until_is(&self, is: impl Fn() -> bool) {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            if is() {
                return;
            }
            changed.await;
        }
    }

    /// Ends `work` with an error when the engine is closed. A waiter in the queue needs none of this, because it is woken.
    pub(crate) async fn unless_closed<T>(
        &self,
        work: Pin<&mut impl Future<Output = Result<T>>>,
    ) -> Result<T> {
        tokio::select! {
            biased;
            result = work => result,
            () = self.until(Stage::Closed) => Err(self.error()),
        }
    }

    /// Pauses for this time, or until the engine is closed.
    pub(crate) async fn pause(&self, time: Duration) {
        tokio::select! {
            biased;
            () = self.until(Stage::Closed) => {}
            () = sleep(time) => {}
        }
    }

    /// Returns an error if no call gets a lease any more.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_closed() { Err(self.error()) } else { Ok(()) }
    }

    /// Returns the error of calls of a closed engine.
    pub(crate) fn error(&self) -> Error {
        if self.has_panicked() {
            return Error::new(
                ErrorKind::Closed,
                "the watchdog has panicked and closed this manager; make a new one to lock again",
            );
        }
        Error::closed()
    }

    /// Begins a call. Drop the guard after everything else that the call owns.
    pub(crate) fn begin_call(&self) -> CallGuard<'_> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        CallGuard(self)
    }

    /// Sets the time at which `close` stops retrying releases, once. Returns the one that is in force.
    pub(crate) fn close_by(&self, time: Instant) -> Instant {
        *self.closing_until.get_or_init(|| time)
    }

    /// Returns `time`, or the time at which `close` stops retrying releases if that is earlier.
    pub(crate) fn bounded(&self, time: Instant) -> Instant {
        self.closing_until.get().map_or(time, |closing| time.min(*closing))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tokio::task::yield_now;

    #[test]
    fn later_stage_includes_the_earlier_ones_and_stays() {
        let life = Lifecycle::new();
        assert!(!life.is_closed());
        life.enter(Stage::Ending);
        life.enter(Stage::Closed);
        assert!(life.is_closed() && life.is_ending() && !life.is_ended());
    }

    #[tokio::test]
    async fn wait_for_a_stage_ends_with_it_or_with_a_later_one() {
        let life = Arc::new(Lifecycle::new());
        let until = |stage| {
            let life = Arc::clone(&life);
            tokio::spawn(async move { life.until(stage).await })
        };
        let (closed, ended) = (until(Stage::Closed), until(Stage::Ended));
        yield_now().await;
        assert!(!closed.is_finished());
        life.enter(Stage::Ending);
        closed.await.unwrap();
        assert!(!ended.is_finished());
        life.enter(Stage::Ended);
        ended.await.unwrap();
        life.until(Stage::Closed).await;
    }

    #[tokio::test]
    async fn wait_for_calls_ends_with_the_last_one_of_a_closed_engine() {
        let life = Arc::new(Lifecycle::new());
        let first = life.begin_call();
        let last = life.begin_call();
        life.enter(Stage::Closed);
        let waiting = Arc::clone(&life);
        let none = tokio::spawn(async move { waiting.until_no_call().await });
        drop(first);
        yield_now().await;
        assert!(!none.is_finished());
        drop(last);
        none.await.unwrap();
    }
}
