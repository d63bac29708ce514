//! Lanes of a cluster, one for each slot that is asked for: a call takes keys of one slot only.
//!
//! As in the lane of one server, a lone request is run in place, and what arrives while it is under way
//! leaves as calls of up to a hundred. Slots know nothing of each other, so a server that is down holds up
//! only its own.

use super::lane::{BATCH_SIZE, Item, Lines, Waiting, run_alone};
use super::replies;
use super::requests::Request;
use super::scripts::slot;
use crate::store::{Acquire, Acquired, Release, Released, StoreFuture};
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio_util::sync::{CancellationToken, DropGuard};

/// The entrance to the lanes; they end with the last of them.
#[derive(Clone)]
pub(super) struct SlotLanes {
    roads: Arc<Roads>,
    entrance: Arc<DropGuard>,
    /// Fires when the connections are closed, or their runtime has gone.
    ended: CancellationToken,
}

struct Roads {
    lines: Lines,
    /// Where the connections live.
    runtime: Handle,
    /// Only slots with requests that have no answer yet.
    slots: Mutex<HashMap<u16, Slot>>,
}

#[derive(Default)]
struct Slot {
    /// Requests that have no answer yet.
    busy: usize,
    waiting: VecDeque<Item<Busy>>,
    /// A task sends what waits.
    driven: bool,
}

/// Counts as a request without an answer for as long as it lives.
struct Busy {
    roads: Arc<Roads>,
    slot: u16,
}

impl Drop for Busy {
    fn drop(&mut self) {
        let mut slots = self.roads.lock();
        if let Some(slot) = slots.get_mut(&self.slot) {
            slot.busy -= 1;
            if slot.busy == 0 && !slot.driven {
                slots.remove(&self.slot);
            }
        }
    }
}

impl AsRef<Lines> for Busy {
    fn as_ref(&self) -> &Lines {
        &self.roads.lines
    }
}

impl Roads {
    fn lock(&self) -> MutexGuard<'_, HashMap<u16, Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SlotLanes {
    /// Lanes, and the work that must run on the runtime where the link's connections live: this one.
    pub(super) fn new(lines: Lines) -> (Self, impl Future<Output = ()> + use<>) {
        let (closing, ended) = (CancellationToken::new(), CancellationToken::new());
        let (link, end) = (lines.link.clone(), ended.clone().drop_guard());
        let roads = Roads { lines, runtime: Handle::current(), slots: Mutex::default() };
        let entrance = Arc::new(closing.clone().drop_guard());
        let work = async move {
            let _end = end;
            closing.cancelled().await;
            link.close().await;
        };
        (Self { roads: Arc::new(roads), entrance, ended }, work)
    }

    /// Whether nobody serves them any more.
    pub(super) fn is_closed(&self) -> bool {
        self.ended.is_cancelled()
    }

    /// Gives up this entrance and waits for the end of the lanes.
    pub(super) async fn close(self) {
        let ended = self.ended.clone();
        drop(self);
        ended.cancelled().await;
    }

    /// `here`: whether the caller is on the lanes' runtime.
    pub(super) fn acquire(&self, request: Acquire, here: bool) -> StoreFuture<Acquired> {
        self.send(request, Item::Acquire, here)
    }

    /// `here`: whether the caller is on the lanes' runtime.
    pub(super) fn release(&self, request: Release, here: bool) -> StoreFuture<Released> {
        self.send(request, Item::Release, here)
    }

    fn send<R: Request>(
        &self,
        request: R,
        item: impl FnOnce(Waiting<R, Busy>) -> Item<Busy>,
        here: bool,
    ) -> StoreFuture<R::Verdict> {
        let key = self.roads.lines.wire.keys.lock(request.name()).concat();
        let slot = slot(key.as_bytes());
        let mut slots = self.roads.lock();
        let entry = slots.entry(slot).or_default();
        entry.busy += 1;
        let busy = Busy { roads: Arc::clone(&self.roads), slot };
        if entry.busy == 1 && here {
            drop(slots);
            return Box::pin(run_alone(request, busy, self.ended.clone()));
        }
        let (sender, verdict) = oneshot::channel();
        entry.waiting.push_back(item(Waiting { request, verdict: sender, _busy: busy }));
        let idle = !std::mem::replace(&mut entry.driven, true);
        drop(slots);
        if idle {
            let (roads, entrance) = (Arc::clone(&self.roads), Arc::clone(&self.entrance));
            let driver = Driver { roads, slot, done: false, _entrance: entrance };
            // Where the runtime has gone, the driver goes at once, and with it what waits.
            self.roads.runtime.spawn(driver.run());
        }
        Box::pin(async move { verdict.await.unwrap_or_else(|_| Err(replies::gone())) })
    }
}

/// Sends what waits for a slot, until nothing does.
struct Driver {
    roads: Arc<Roads>,
    slot: u16,
    done: bool,
    /// The connections stay for what waits.
    _entrance: Arc<DropGuard>,
}

impl Driver {
    async fn run(mut self) {
        let mut items = Vec::new();
        loop {
            // Those whom the last reply woke are about to ask for more: one turn for them all.
            yield_now().await;
            if !self.collect(&mut items) {
                return;
            }
            self.roads.lines.call(&mut items).await;
        }
    }

    /// Takes what waits; false, and no driver any more, if nothing does.
    fn collect(&mut self, items: &mut Vec<Item<Busy>>) -> bool {
        let mut slots = self.roads.lock();
        let Some(slot) = slots.get_mut(&self.slot) else { return false };
        let count = slot.waiting.len().min(BATCH_SIZE);
        items.extend(slot.waiting.drain(..count));
        if count == 0 {
            self.done = true;
            slot.driven = false;
            if slot.busy == 0 {
                slots.remove(&self.slot);
            }
        }
        count > 0
    }
}

impl Drop for Driver {
    /// The runtime has gone: nobody sends what waits.
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let left = {
            let mut slots = self.roads.lock();
            let Some(slot) = slots.get_mut(&self.slot) else { return };
            slot.driven = false;
            std::mem::take(&mut slot.waiting)
        };
        // Each takes the lock when it goes.
        drop(left);
    }
}
