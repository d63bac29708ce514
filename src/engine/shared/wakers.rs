//! The wakers of the waiters, by their numbers.

use super::options::Options;
use super::queue::HandedOff;
use crate::util::panics::run_wakers;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use tokio::sync::oneshot;

/// Brings a waiter its wake-up: with a hold that is handed off to it, or with `None` for a pulse.
pub(super) type WakeSender = oneshot::Sender<Option<HandedOff>>;

/// Receives the wake-up of a waiter.
pub(in crate::engine) type WakeReceiver = oneshot::Receiver<Option<HandedOff>>;

/// The numbers of a turn.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct TurnNumber {
    pub(in crate::engine) number: u64,
    /// That of its waiter, by which waiters are in order.
    pub(in crate::engine) waiter: u64,
}

/// A map from numbers that are drawn one after the other. What it had at its peak costs no memory later.
pub(super) struct ByNumber<T>(HashMap<u64, T, BuildHasherDefault<NumberHasher>>);

/// The wakers of waiters, by their numbers.
#[derive(Default)]
pub(super) struct Wakers(ByNumber<WaitingCall>);

/// A waiter that may be woken.
pub(super) struct WaitingCall {
    pub(super) waker: Option<WakeSender>,
    /// The options of its handle.
    options: Options,
}

/// Spreads numbers that are drawn one after the other.
#[derive(Default)]
struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn write_u64(&mut self, number: u64) {
        self.0 = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(self.0 ^ u64::from(*byte));
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl<T> Default for ByNumber<T> {
    fn default() -> Self {
        Self(HashMap::default())
    }
}

impl<T> ByNumber<T> {
    /// The number of items for which memory is kept.
    const RESERVED: usize = 64;

    pub(super) fn insert(&mut self, number: u64, item: T) -> Option<T> {
        self.0.insert(number, item)
    }

    #[inline]
    pub(super) fn remove(&mut self, number: u64) -> Option<T> {
        if self.0.is_empty() { None } else { self.remove_present(number) }
    }

    fn remove_present(&mut self, number: u64) -> Option<T> {
        let removed = self.0.remove(&number)?;
        let reserved = 2 * self.0.len() + Self::RESERVED;
        if self.0.capacity() > 4 * reserved {
            self.0.shrink_to(reserved);
        }
        Some(removed)
    }

    /// Returns the number of items, and that for which memory is kept.
    #[cfg(test)]
    pub(super) fn size(&self) -> (usize, usize) {
        (self.0.len(), self.0.capacity())
    }
}

impl Wakers {
    /// Returns a new wake-up for this number, unless it has one.
    pub(super) fn listen(&mut self, number: u64, options: &Options) -> Option<WakeReceiver> {
        let new = || WaitingCall { waker: None, options: options.clone() };
        let waiting = self.0.0.entry(number).or_insert_with(new);
        if waiting.waker.is_some() {
            return None;
        }
        let (waker, woken) = oneshot::channel();
        waiting.waker = Some(waker);
        Some(woken)
    }

    pub(super) fn take(&mut self, number: u64) -> Option<WakeSender> {
        self.0.0.get_mut(&number)?.waker.take()
    }

    #[inline]
    pub(super) fn remove(&mut self, number: u64) -> Option<WaitingCall> {
        self.0.remove(number)
    }

    /// Returns the number of waiters, and that for which memory is kept.
    #[cfg(test)]
    pub(super) fn size(&self) -> (usize, usize) {
        self.0.size()
    }

    /// Removes the wakers of a turn.
    pub(super) fn remove_of(&mut self, turn: TurnNumber) -> [Option<WaitingCall>; 2] {
        [self.remove(turn.number), self.remove(turn.waiter)]
    }

    pub(super) fn options(&self, number: u64) -> Options {
        self.0.0.get(&number).map(|waiting| waiting.options.clone()).unwrap_or_default()
    }
}

/// Wakes a waiter, with a hold that is handed off to it, if there is one.
pub(super) fn wake(waker: WakeSender, offered: Option<HandedOff>) {
    // A waiter that was dropped needs no wake-up, and its hold goes to the next one.
    run_wakers(|| drop(waker.send(offered)));
}
