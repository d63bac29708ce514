//! A mutex without poison.

use std::sync::{MutexGuard, PoisonError};

/// A mutex that a panic does not poison.
///
/// What it protects is whole whenever the lock is free: no code that runs under a lock here leaves a value half changed,
/// not even when it panics. Poison would only turn one panic into one for every later caller, also in a `Drop`.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
