//! Wake-ups: the listeners to a name, or to the description of its holder.

use super::{MemoryStore, State};
use crate::store::{HolderId, Name, NameMap, Signal, Wait, Wakeups};
use std::collections::HashSet;

/// A subscriber, and the holder id for which it is about to ask.
#[derive(Debug)]
pub(super) struct Listener {
    holder: Option<HolderId>,
    signal: Signal,
}

type Listeners = NameMap<Vec<Listener>>;

struct Subscription {
    store: MemoryStore,
    among: fn(&mut State) -> &mut Listeners,
    name: Name,
    signal: Signal,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut state = self.store.lock();
        let all = (self.among)(&mut state);
        if let Some(listeners) = all.get_mut(&self.name) {
            listeners.retain(|listener| !listener.signal.is(&self.signal));
            if listeners.is_empty() {
                all.remove(&self.name);
            }
        }
    }
}

/// Has a waiter woken from now on.
pub(super) fn listen(store: &MemoryStore, request: Wait) -> Wakeups {
    add(store, |state| &mut state.waiters, request.target.name, request.holder)
}

/// Has an observer woken from now on.
pub(super) fn observe(store: &MemoryStore, name: Name) -> Wakeups {
    add(store, |state| &mut state.observers, name, None)
}

fn add(
    store: &MemoryStore,
    among: fn(&mut State) -> &mut Listeners,
    name: Name,
    holder: Option<HolderId>,
) -> Wakeups {
    let signal = Signal::new();
    let listener = Listener { holder, signal: signal.clone() };
    among(&mut store.lock()).entry(name.clone()).or_default().push(listener);
    let subscription = Subscription { store: store.clone(), among, name, signal: signal.clone() };
    Wakeups::new(signal, subscription)
}

/// Has the waiters of a name woken as soon as the lock is free, and returns how many are of another manager than the
/// holder that releases it. Its observers are woken too.
pub(super) fn wake(state: &mut State, name: &Name, holder: Option<HolderId>) -> u64 {
    wake_observers(state, name);
    let waiters = state.waiters.get(name).map(Vec::as_slice).unwrap_or_default();
    state.to_wake.extend(waiters.iter().map(|waiter| waiter.signal.clone()));
    let manager = holder.map(HolderId::manager);
    let is_own = |waiter: &Listener| waiter.holder.map(HolderId::manager) == manager;
    waiters.iter().filter(|waiter| !is_own(waiter)).count() as u64
}

/// Has the observers of a name woken as soon as the lock is free.
pub(super) fn wake_observers(state: &mut State, name: &Name) {
    let observers = state.observers.get(name).map(Vec::as_slice).unwrap_or_default();
    state.to_wake.extend(observers.iter().map(|observer| observer.signal.clone()));
}

/// Returns the number of managers that listen to a name. Listeners without a holder are one.
pub(super) fn waiting(state: &State, name: &Name) -> u64 {
    let waiters = state.waiters.get(name).map(Vec::as_slice).unwrap_or_default();
    let managers: HashSet<_> =
        waiters.iter().map(|waiter| waiter.holder.map(HolderId::manager)).collect();
    managers.len() as u64
}
