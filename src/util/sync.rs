//! A mutex without poison.

use std::sync::PoisonError;

// In tests of how threads interleave, shuttle switches threads at each lock.
#[cfg(all(test, shuttle))]
use shuttle::sync as locks;
#[cfg(not(all(test, shuttle)))]
use std::sync as locks;

pub(crate) use locks::{Condvar, MutexGuard};

/// A mutex that a panic does not poison.
///
/// What it protects is whole whenever the lock is free: no code that runs under a lock here leaves a value half changed,
/// not even when it panics. Poison would only turn one panic into one for every later caller, also in a `Drop`.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(locks::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(locks::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Explores schedules of the threads of a test, at random and by priorities that change a few times. A thread that blocks forever
/// fails the test.
#[cfg(all(test, shuttle))]
pub(crate) fn explore(test: impl Fn() + Send + Sync + 'static) {
    let schedules = std::env::var("LEASEHOLD_SCHEDULES")
        .map_or(2_000, |count| count.parse().expect("a number"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    // All threads of shuttle run on this one. Nothing drives the runtime: it only lets timers be made.
    let _in = runtime.enter();
    let test = std::sync::Arc::new(test);
    let again = std::sync::Arc::clone(&test);
    shuttle::check_random(move || test(), schedules);
    shuttle::check_pct(move || again(), schedules, 3);
}
