//! Wake-ups: who listens to a name.

use super::{MemoryStore, State};
use crate::store::{HolderId, Name, Signal, Wait, Wakeups};

/// A subscriber, and the holder id for which it is about to ask.
#[derive(Debug)]
pub(super) struct Listener {
    holder: Option<HolderId>,
    signal: Signal,
}

struct Subscription {
    store: MemoryStore,
    name: Name,
    signal: Signal,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut state = self.store.lock();
        if let Some(waiters) = state.waiters.get_mut(&self.name) {
            waiters.retain(|waiter| !waiter.signal.is(&self.signal));
            if waiters.is_empty() {
                state.waiters.remove(&self.name);
            }
        }
    }
}

impl MemoryStore {
    /// Has a waiter woken from now on.
    pub(super) fn listen(&self, request: Wait) -> Wakeups {
        let (name, signal) = (request.target.name, Signal::new());
        let listener = Listener { holder: request.holder, signal: signal.clone() };
        self.lock().waiters.entry(name.clone()).or_default().push(listener);
        let subscription = Subscription { store: self.clone(), name, signal: signal.clone() };
        Wakeups::new(signal, subscription)
    }
}

impl State {
    /// Has the waiters of a name woken as soon as the lock is free, and returns how many are of another manager than the
    /// holder that releases it.
    pub(super) fn wake(&mut self, name: &Name, holder: Option<HolderId>) -> u64 {
        let waiters = self.waiters.get(name).map(Vec::as_slice).unwrap_or_default();
        self.to_wake.extend(waiters.iter().map(|waiter| waiter.signal.clone()));
        let manager = holder.map(HolderId::manager);
        let is_own = |waiter: &Listener| waiter.holder.map(HolderId::manager) == manager;
        waiters.iter().filter(|waiter| !is_own(waiter)).count() as u64
    }
}
