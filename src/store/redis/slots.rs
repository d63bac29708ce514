//! Lanes of a cluster, one for each slot that is asked for: a call takes keys of one slot only.
//!
//! As in the lane of one server, a lone request is run in place, and what arrives while it is under way
//! leaves as calls of up to a hundred. Slots know nothing of each other, so a server that is down holds up
//! only its own.

use super::lines::{BATCH_SIZE, Item, Lines, Waiting, in_place, run_alone};
use super::requests::Request;
use super::scripts::slot;
use crate::store::{Acquire, Acquired, Release, Released, StoreFuture};
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::runtime::Handle;
use tokio::task::yield_now;
use tokio_util::sync::{CancellationToken, DropGuard};

/// The entrance to the lanes; they end with the last of them.
#[derive(Clone)]
pub(super) struct SlotLanes {
    roads: Arc<Roads>,
    entrance: Arc<DropGuard>,
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
        let closing = CancellationToken::new();
        let (link, end) = (lines.link.clone(), lines.ended.clone().drop_guard());
        let roads = Roads { lines, runtime: Handle::current(), slots: Mutex::default() };
        let entrance = Arc::new(closing.clone().drop_guard());
        let work = async move {
            let _end = end;
            closing.cancelled().await;
            link.close().await;
        };
        (Self { roads: Arc::new(roads), entrance }, work)
    }

    /// Whether nobody serves them any more.
    pub(super) fn is_closed(&self) -> bool {
        self.roads.lines.ended.is_cancelled()
    }

    /// Gives up this entrance and waits for the end of the lanes.
    pub(super) async fn close(self) {
        let ended = self.roads.lines.ended.clone();
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
            return in_place(|| run_alone(request, busy));
        }
        let (waiting, verdict) = Waiting::new(request, busy);
        entry.waiting.push_back(item(waiting));
        let idle = !std::mem::replace(&mut entry.driven, true);
        drop(slots);
        if idle {
            let (roads, entrance) = (Arc::clone(&self.roads), Arc::clone(&self.entrance));
            let driver = Driver { roads, slot, done: false, _entrance: entrance };
            // Where the runtime has gone, the driver goes at once, and with it what waits.
            self.roads.runtime.spawn(driver.run());
        }
        verdict
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
        loop {
            // One turn for the last answers to go out, and one for those who got them to ask for more.
            yield_now().await;
            yield_now().await;
            let items = self.collect();
            if items.is_empty() {
                return;
            }
            if let Err(error) = self.roads.lines.call(items).await {
                // Each takes the lock when it goes.
                self.waiting().into_iter().for_each(|item| item.refuse(&error));
            }
        }
    }

    /// Takes all that waits.
    fn waiting(&self) -> VecDeque<Item<Busy>> {
        let mut slots = self.roads.lock();
        let slot = slots.get_mut(&self.slot);
        slot.map(|slot| std::mem::take(&mut slot.waiting)).unwrap_or_default()
    }

    /// Takes what waits; if nothing does, there is no driver any more.
    fn collect(&mut self) -> Vec<Item<Busy>> {
        let mut slots = self.roads.lock();
        let Some(slot) = slots.get_mut(&self.slot) else { return Vec::new() };
        let count = slot.waiting.len().min(BATCH_SIZE);
        let items = slot.waiting.drain(..count).collect();
        if count == 0 {
            self.done = true;
            slot.driven = false;
            if slot.busy == 0 {
                slots.remove(&self.slot);
            }
        }
        items
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::store::redis::fleet::Fleet;
    use crate::store::redis::keys::Keys;
    use crate::store::redis::link::Link;
    use crate::store::redis::requests::Wire;
    use crate::store::redis::scripts::SHARDED;
    use crate::store::redis::wakeups::Hub;
    use crate::store::{HolderId, Name, Target};
    use std::time::Duration;
    use tokio::time::timeout;
    use uuid::Uuid;

    const MOMENT: Duration = Duration::from_millis(1);

    /// Lanes of a cluster in which every call fails at once, on the current runtime.
    fn lanes() -> (SlotLanes, impl Future<Output = ()>) {
        let (keys, (hub, _)) = (Keys::new(""), Hub::of_orders());
        let wire = Wire { keys, scripts: &SHARDED, replicas: None, hub };
        let link = Link::Fleet(Fleet::nowhere());
        SlotLanes::new(Lines::new(link, wire, Clock::system()))
    }

    fn acquire(lanes: &SlotLanes, name: &str, here: bool) -> StoreFuture<Acquired> {
        let target = Target::exclusive(Name::new(name).unwrap());
        let (holder, ttl) = (HolderId::new(Uuid::new_v4(), 1), Duration::from_secs(30));
        let request = Acquire::new(target, holder, ttl, ttl);
        lanes.acquire(request, here)
    }

    /// Requests without an answer, those that wait, and whether somebody sends them, by slot.
    fn at_work(lanes: &SlotLanes) -> Vec<(usize, usize, bool)> {
        let slots = lanes.roads.lock();
        let mut all: Vec<_> =
            slots.values().map(|slot| (slot.busy, slot.waiting.len(), slot.driven)).collect();
        all.sort();
        all
    }

    async fn fails(request: StoreFuture<Acquired>) -> String {
        let answer = timeout(MOMENT, request).await.expect("an answer");
        answer.expect_err("nobody serves it").to_string()
    }

    #[tokio::test(start_paused = true)]
    async fn a_lone_request_is_run_by_whoever_asks_and_others_by_a_driver() {
        let (lanes, _work) = lanes();
        let lone = acquire(&lanes, "{a}1", true);
        assert_eq!(at_work(&lanes), [(1, 0, false)]);
        let second = acquire(&lanes, "{a}2", true);
        let third = acquire(&lanes, "{a}3", true);
        assert_eq!(at_work(&lanes), [(3, 2, true)]);
        let elsewhere = acquire(&lanes, "{b}1", false);
        assert_eq!(at_work(&lanes), [(1, 1, true), (3, 2, true)]);
        for request in [second, third, elsewhere] {
            assert!(fails(request).await.contains("no server"));
        }
        // The one that nobody polls holds up only itself.
        tokio::time::sleep(MOMENT).await;
        assert_eq!(at_work(&lanes), [(1, 0, false)]);
        let fourth = acquire(&lanes, "{a}4", true);
        assert_eq!(at_work(&lanes), [(2, 1, true)]);
        drop(lone);
        assert_eq!(at_work(&lanes), [(1, 1, true)]);
        assert!(fails(fourth).await.contains("no server"));
        tokio::time::sleep(MOMENT).await;
        assert_eq!(at_work(&lanes), []);
        let lone = acquire(&lanes, "{a}5", true);
        assert_eq!(at_work(&lanes), [(1, 0, false)]);
        assert!(fails(lone).await.contains("no server"));
        assert_eq!(at_work(&lanes), []);
    }

    /// A hundred go in one call; the rest after that.
    #[tokio::test(start_paused = true)]
    async fn everybody_has_an_answer_however_many_wait() {
        let (lanes, _work) = lanes();
        let count = 2 * BATCH_SIZE + 1;
        let requests: Vec<_> = (0..count).map(|_| acquire(&lanes, "{a}", false)).collect();
        assert_eq!(at_work(&lanes), [(count, count, true)]);
        for request in requests {
            assert!(fails(request).await.contains("no server"));
        }
        tokio::time::sleep(MOMENT).await;
        assert_eq!(at_work(&lanes), []);
    }

    #[tokio::test(start_paused = true)]
    async fn a_release_goes_the_same_way() {
        let (lanes, _work) = lanes();
        let target = Target::exclusive(Name::new("n").unwrap());
        let request = Release::new(target, HolderId::new(Uuid::new_v4(), 1), 0, MOMENT);
        let released = lanes.release(request, true);
        assert_eq!(at_work(&lanes), [(1, 0, false)]);
        assert!(released.await.is_err());
        assert_eq!(at_work(&lanes), []);
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_comes_when_the_last_entrance_has_gone() {
        let (lanes, work) = lanes();
        let work = tokio::spawn(work);
        let other = lanes.clone();
        assert!(timeout(MOMENT, lanes.close()).await.is_err(), "the other is still open");
        assert!(!other.is_closed());
        let roads = Arc::clone(&other.roads);
        timeout(MOMENT, other.close()).await.expect("all are closed");
        work.await.unwrap();
        assert!(roads.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn after_the_end_there_is_no_answer() {
        let (lanes, work) = lanes();
        drop(work);
        assert!(lanes.is_closed());
        assert!(fails(acquire(&lanes, "n", true)).await.contains("closed"));
    }

    #[test]
    fn requests_that_wait_when_the_runtime_goes_are_told() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (lanes, waiting) = {
            let _in = runtime.enter();
            let (lanes, _work) = lanes();
            let waiting = acquire(&lanes, "n", false);
            (lanes, waiting)
        };
        assert_eq!(at_work(&lanes), [(1, 1, true)]);
        drop(runtime);
        assert_eq!(at_work(&lanes), []);
        let later = acquire(&lanes, "n", false);
        assert_eq!(at_work(&lanes), []);
        let next = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        for request in [waiting, later] {
            assert!(next.block_on(fails(request)).contains("closed"));
        }
    }
}
