//! Sends acquires and releases to a cluster in batches, slot by slot: a call takes keys of one slot only.
//!
//! As in [`Batcher`](super::batch::Batcher), a lone request runs in the caller's own future, and requests that arrive
//! while it is under way leave in calls of up to a hundred. Slots are independent, so a server that is down delays only
//! its own.

use super::calls::{BATCH_SIZE, Batched, CallContext, Item, Waiting, in_place, run_alone};
use crate::store::StoreFuture;
use crate::store::redis::link::script::slot;
use crate::util::sync::{Mutex, MutexGuard};
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::task::yield_now;
use tokio_util::sync::{CancellationToken, DropGuard};

/// A handle on a batcher. The batcher ends with the last handle.
#[derive(Clone)]
pub(super) struct SlotBatcher {
    shared: Arc<Shared>,
    close_on_drop: Arc<DropGuard>,
}

struct Shared {
    context: CallContext,
    /// The runtime of the connections.
    runtime: Handle,
    /// The slots with requests that have no answer yet.
    slots: Mutex<HashMap<u16, Slot>>,
}

#[derive(Default)]
struct Slot {
    /// The number of requests without an answer.
    pending: usize,
    waiting: VecDeque<Item<Pending>>,
    /// Whether a [`Driver`] sends the waiting items.
    driven: bool,
}

/// Counts as a request without an answer for as long as it lives.
struct Pending {
    shared: Arc<Shared>,
    slot: u16,
}

impl Drop for Pending {
    fn drop(&mut self) {
        let mut slots = self.shared.lock();
        if let Some(slot) = slots.get_mut(&self.slot) {
            slot.pending -= 1;
            if slot.pending == 0 && !slot.driven {
                slots.remove(&self.slot);
            }
        }
    }
}

impl AsRef<CallContext> for Pending {
    fn as_ref(&self) -> &CallContext {
        &self.shared.context
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, HashMap<u16, Slot>> {
        self.slots.lock()
    }
}

impl SlotBatcher {
    /// Makes a batcher, and the work that must run on the runtime of the connection, which is the current one.
    pub(in crate::store::redis) fn new(
        context: CallContext,
    ) -> (Self, impl Future<Output = ()> + use<>) {
        let closing = CancellationToken::new();
        let connection = context.connection.clone();
        let end = context.ended.clone().drop_guard();
        let shared = Shared { context, runtime: Handle::current(), slots: Mutex::default() };
        let close_on_drop = Arc::new(closing.clone().drop_guard());
        let work = async move {
            let _end = end;
            closing.cancelled().await;
            connection.close().await;
        };
        (Self { shared: Arc::new(shared), close_on_drop }, work)
    }

    /// Returns whether its work has ended.
    pub(in crate::store::redis) fn is_closed(&self) -> bool {
        self.shared.context.ended.is_cancelled()
    }

    /// Drops this handle and waits for the end of the batcher.
    pub(in crate::store::redis) async fn close(self) {
        let ended = self.shared.context.ended.clone();
        drop(self);
        ended.cancelled().await;
    }

    /// Sends a request. `here`: whether the caller is on the batcher's runtime.
    pub(in crate::store::redis) fn send<R: Batched>(
        &self,
        request: R,
        here: bool,
    ) -> StoreFuture<R::Verdict> {
        let key = self.shared.context.codec.keys.lock(request.name()).concat();
        let slot = slot(key.as_bytes());
        let mut slots = self.shared.lock();
        let entry = slots.entry(slot).or_default();
        entry.pending += 1;
        let pending = Pending { shared: Arc::clone(&self.shared), slot };
        if (entry.pending == 1 || request.is_apart()) && here {
            drop(slots);
            return in_place(|| run_alone(request, pending));
        }
        let (waiting, verdict) = Waiting::new(request, pending, false);
        entry.waiting.push_back(R::item(waiting));
        let idle = !std::mem::replace(&mut entry.driven, true);
        drop(slots);
        if idle {
            let shared = Arc::clone(&self.shared);
            let close_on_drop = Arc::clone(&self.close_on_drop);
            let driver = Driver { shared, slot, done: false, _keep_open: close_on_drop };
            // If the runtime has ended, the driver is dropped here, and with it the waiting items.
            self.shared.runtime.spawn(driver.run());
        }
        verdict
    }
}

/// Sends the waiting items of a slot until none is left.
struct Driver {
    shared: Arc<Shared>,
    slot: u16,
    done: bool,
    /// Keeps the connections open for the waiting items.
    _keep_open: Arc<DropGuard>,
}

impl Driver {
    async fn run(mut self) {
        loop {
            // The first yield lets the last answers go out, the second lets their callers send more.
            yield_now().await;
            yield_now().await;
            let items = self.collect();
            if items.is_empty() {
                return;
            }
            if let Err(error) = self.shared.context.call(items).await {
                // Each item takes the lock when it is dropped.
                self.waiting().into_iter().for_each(|item| item.refuse(&error));
            }
        }
    }

    /// Takes all waiting items.
    fn waiting(&self) -> VecDeque<Item<Pending>> {
        let mut slots = self.shared.lock();
        let slot = slots.get_mut(&self.slot);
        slot.map(|slot| std::mem::take(&mut slot.waiting)).unwrap_or_default()
    }

    /// Takes the items of the next call. If there are none, this driver ends.
    fn collect(&mut self) -> Vec<Item<Pending>> {
        let mut slots = self.shared.lock();
        let Some(slot) = slots.get_mut(&self.slot) else { return Vec::new() };
        let count = slot.waiting.len().min(BATCH_SIZE);
        let items = slot.waiting.drain(..count).collect();
        if count == 0 {
            self.done = true;
            slot.driven = false;
            if slot.pending == 0 {
                slots.remove(&self.slot);
            }
        }
        items
    }
}

impl Drop for Driver {
    /// Drops the waiting items if the runtime has ended: no task would send them.
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let left = {
            let mut slots = self.shared.lock();
            let Some(slot) = slots.get_mut(&self.slot) else { return };
            slot.driven = false;
            std::mem::take(&mut slot.waiting)
        };
        // Each item takes the lock when it is dropped.
        drop(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::store::redis::scripts::SHARDED;
    use crate::store::redis::scripts::keys::Keys;
    use crate::store::redis::scripts::lock::Codec;
    use crate::store::redis::topology::Connection;
    use crate::store::redis::topology::fleet::Fleet;
    use crate::store::{Acquire, Acquired, HolderId, Name, Release, Target};
    use std::time::Duration;
    use tokio::time::timeout;
    use uuid::Uuid;

    const MOMENT: Duration = Duration::from_millis(1);

    /// A batcher for a cluster in which every call fails at once, on the current runtime.
    fn batcher() -> (SlotBatcher, impl Future<Output = ()>) {
        let own_listeners = Arc::new(|_: &str| 0);
        let codec = Codec { keys: Keys::new(""), scripts: &SHARDED, replicas: None, own_listeners };
        let connection = Connection::Fleet(Fleet::nowhere());
        SlotBatcher::new(CallContext::new(connection, codec, Clock::system()))
    }

    fn acquire(batcher: &SlotBatcher, name: &str, here: bool) -> StoreFuture<Acquired> {
        let target = Target::exclusive(Name::new(name).unwrap());
        let (holder, ttl) = (HolderId::new(Uuid::new_v4(), 1), Duration::from_secs(30));
        let request = Acquire::new(target, holder, ttl, ttl);
        batcher.send(request, here)
    }

    /// For each slot: the requests without an answer, those that wait, and whether a driver sends them.
    fn at_work(batcher: &SlotBatcher) -> Vec<(usize, usize, bool)> {
        let slots = batcher.shared.lock();
        let mut all: Vec<_> =
            slots.values().map(|slot| (slot.pending, slot.waiting.len(), slot.driven)).collect();
        all.sort();
        all
    }

    async fn fails(request: StoreFuture<Acquired>) -> String {
        let answer = timeout(MOMENT, request).await.expect("an answer");
        answer.expect_err("no server has the slot").to_string()
    }

    #[tokio::test(start_paused = true)]
    async fn lone_request_runs_in_its_caller_and_others_in_a_driver() {
        let (batcher, _work) = batcher();
        let lone = acquire(&batcher, "{a}1", true);
        assert_eq!(at_work(&batcher), [(1, 0, false)]);
        let second = acquire(&batcher, "{a}2", true);
        let third = acquire(&batcher, "{a}3", true);
        assert_eq!(at_work(&batcher), [(3, 2, true)]);
        let elsewhere = acquire(&batcher, "{b}1", false);
        assert_eq!(at_work(&batcher), [(1, 1, true), (3, 2, true)]);
        for request in [second, third, elsewhere] {
            assert!(fails(request).await.contains("no server"));
        }
        // The one that is not polled delays only itself.
        tokio::time::sleep(MOMENT).await;
        assert_eq!(at_work(&batcher), [(1, 0, false)]);
        let fourth = acquire(&batcher, "{a}4", true);
        assert_eq!(at_work(&batcher), [(2, 1, true)]);
        drop(lone);
        assert_eq!(at_work(&batcher), [(1, 1, true)]);
        assert!(fails(fourth).await.contains("no server"));
        tokio::time::sleep(MOMENT).await;
        assert_eq!(at_work(&batcher), []);
        let lone = acquire(&batcher, "{a}5", true);
        assert_eq!(at_work(&batcher), [(1, 0, false)]);
        assert!(fails(lone).await.contains("no server"));
        assert_eq!(at_work(&batcher), []);
    }

    /// A hundred go in one call; the rest after that.
    #[tokio::test(start_paused = true)]
    async fn every_request_has_an_answer_however_many_wait() {
        let (batcher, _work) = batcher();
        let count = 2 * BATCH_SIZE + 1;
        let requests: Vec<_> = (0..count).map(|_| acquire(&batcher, "{a}", false)).collect();
        assert_eq!(at_work(&batcher), [(count, count, true)]);
        for request in requests {
            assert!(fails(request).await.contains("no server"));
        }
        tokio::time::sleep(MOMENT).await;
        assert_eq!(at_work(&batcher), []);
    }

    #[tokio::test(start_paused = true)]
    async fn release_goes_the_same_way() {
        let (batcher, _work) = batcher();
        let target = Target::exclusive(Name::new("n").unwrap());
        let request = Release::new(target, HolderId::new(Uuid::new_v4(), 1), 0, MOMENT);
        let released = batcher.send(request, true);
        assert_eq!(at_work(&batcher), [(1, 0, false)]);
        assert!(released.await.is_err());
        assert_eq!(at_work(&batcher), []);
    }

    #[tokio::test(start_paused = true)]
    async fn end_comes_when_the_last_handle_is_dropped() {
        let (batcher, work) = batcher();
        let work = tokio::spawn(work);
        let other = batcher.clone();
        assert!(timeout(MOMENT, batcher.close()).await.is_err(), "the other is still open");
        assert!(!other.is_closed());
        let shared = Arc::clone(&other.shared);
        timeout(MOMENT, other.close()).await.expect("all are closed");
        work.await.unwrap();
        assert!(shared.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn after_the_end_there_is_no_answer() {
        let (batcher, work) = batcher();
        drop(work);
        assert!(batcher.is_closed());
        assert!(fails(acquire(&batcher, "n", true)).await.contains("closed"));
    }

    #[test]
    fn requests_that_wait_when_the_runtime_ends_are_answered() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (batcher, waiting) = {
            let _in = runtime.enter();
            let (batcher, _work) = batcher();
            let waiting = acquire(&batcher, "n", false);
            (batcher, waiting)
        };
        assert_eq!(at_work(&batcher), [(1, 1, true)]);
        drop(runtime);
        assert_eq!(at_work(&batcher), []);
        let later = acquire(&batcher, "n", false);
        assert_eq!(at_work(&batcher), []);
        let next = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        for request in [waiting, later] {
            assert!(next.block_on(fails(request)).contains("closed"));
        }
    }
}
