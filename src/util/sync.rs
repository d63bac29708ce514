//! A mutex without poison.

use std::sync::PoisonError;

// In the tests of `src/engine/interleavings.rs`, shuttle switches threads at each lock.
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
