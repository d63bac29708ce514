//! A lane of acquires and releases: what arrives while calls are in flight leaves together.
//!
//! Two calls are in flight, each with half of what is under way, so that the server has work while we read
//! its last reply.
//!
//! A lone request is run in place, by whoever asks, so it costs what a bare call costs. All others are
//! run by the lane's own task, up to a hundred in a call, so they cost the client and the server less
//! than a command each. That task waits for nobody else: a caller who does not poll its request holds up
//! only itself.

use super::lines::{BATCH_SIZE, Item, Lines, Waiting, in_place, run_alone};
use super::requests::Request;
use crate::store::{Acquire, Acquired, Release, Released, StoreFuture};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use tokio::sync::{Mutex, mpsc};
use tokio::task::yield_now;

/// How many items are not worth two calls.
const FEW: usize = 8;

/// The entrance to a lane; the lane ends with the last of them.
#[derive(Clone)]
pub(super) struct Lane {
    road: Arc<Road>,
    items: mpsc::UnboundedSender<Item<Busy>>,
}

/// What a lane of one server needs.
struct Road {
    lines: Lines,
    /// Requests that have no answer yet.
    busy: AtomicUsize,
    /// Items of calls in flight.
    flying: AtomicUsize,
}

type Inbox = mpsc::UnboundedReceiver<Item<Busy>>;

/// Counts as a request without an answer for as long as it lives.
struct Busy(Arc<Road>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::AcqRel);
    }
}

impl AsRef<Lines> for Busy {
    fn as_ref(&self) -> &Lines {
        &self.0.lines
    }
}

impl Lane {
    /// A lane, and the work that must run on the runtime where the link's connection lives.
    pub(super) fn new(lines: Lines) -> (Self, impl Future<Output = ()> + use<>) {
        let (lane, inbox) = Self::entrance(lines);
        let (road, end) = (Arc::clone(&lane.road), lane.road.lines.ended.clone().drop_guard());
        let work = async move {
            let _end = end;
            let inbox = Mutex::new(inbox);
            tokio::join!(drive(&road, &inbox), drive(&road, &inbox));
            road.lines.link.close().await;
        };
        (lane, work)
    }

    fn entrance(lines: Lines) -> (Self, Inbox) {
        let (items, inbox) = mpsc::unbounded_channel();
        let road = Road { lines, busy: AtomicUsize::new(0), flying: AtomicUsize::new(0) };
        (Self { road: Arc::new(road), items }, inbox)
    }

    /// Whether nobody serves it any more.
    pub(super) fn is_closed(&self) -> bool {
        self.items.is_closed()
    }

    /// Gives up this entrance and waits for the end of the lane.
    pub(super) async fn close(self) {
        let ended = self.road.lines.ended.clone();
        drop(self);
        ended.cancelled().await;
    }

    /// `here`: whether the caller is on the lane's runtime.
    pub(super) fn acquire(&self, request: Acquire, here: bool) -> StoreFuture<Acquired> {
        self.send(request, Item::Acquire, here)
    }

    /// `here`: whether the caller is on the lane's runtime.
    pub(super) fn release(&self, request: Release, here: bool) -> StoreFuture<Released> {
        self.send(request, Item::Release, here)
    }

    fn send<R: Request>(
        &self,
        request: R,
        item: impl FnOnce(Waiting<R, Busy>) -> Item<Busy>,
        here: bool,
    ) -> StoreFuture<R::Verdict> {
        let lone = self.road.busy.fetch_add(1, Ordering::AcqRel) == 0;
        let busy = Busy(Arc::clone(&self.road));
        if lone && here {
            return in_place(|| run_alone(request, busy));
        }
        let (waiting, verdict) = Waiting::new(request, busy);
        // If the lane has gone, the item goes with its sender, which tells the receiver.
        let _ = self.items.send(item(waiting));
        verdict
    }
}

/// Sends what is in the lane: up to a hundred items in a call.
async fn drive(road: &Road, inbox: &Mutex<Inbox>) {
    loop {
        let items = collect(road, &mut *inbox.lock().await).await;
        if items.is_empty() {
            return;
        }
        let count = items.len();
        road.flying.fetch_add(count, Ordering::AcqRel);
        let result = road.lines.call(items).await;
        road.flying.fetch_sub(count, Ordering::AcqRel);
        // If the other task is at the inbox, it finds out for itself.
        if let (Err(error), Ok(mut inbox)) = (result, inbox.try_lock()) {
            while let Ok(item) = inbox.try_recv() {
                item.refuse(&error);
            }
        }
    }
}

/// Takes what waits once it is as much as what is in flight, or what has come when one turn is over; nothing at
/// the end.
///
/// Half of both at most, or soon all would be in one call, and always either the server idle or we.
async fn collect(road: &Road, inbox: &mut Inbox) -> Vec<Item<Busy>> {
    let mut items = Vec::with_capacity(FEW);
    if inbox.recv_many(&mut items, 1).await == 0 {
        return items;
    }
    let flying = || road.flying.load(Ordering::Acquire);
    // Those whom the last reply woke are about to ask for more.
    let mut turn = pin!(yield_now());
    loop {
        let all = items.len() + inbox.len() + flying();
        let share = all.div_ceil(2).clamp(FEW, BATCH_SIZE);
        while items.len() < share
            && let Ok(item) = inbox.try_recv()
        {
            items.push(item);
        }
        if items.len() >= flying().min(BATCH_SIZE) {
            return items;
        }
        tokio::select! {
            biased;
            more = inbox.recv_many(&mut items, 1) => if more == 0 {
                return items;
            },
            // The last reply wakes this task too.
            () = poll_fn(|_| if flying() == 0 { Poll::Ready(()) } else { Poll::Pending }) => {}
            () = &mut turn => return items,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::error::Fate;
    use crate::store::redis::fleet::Fleet;
    use crate::store::redis::keys::Keys;
    use crate::store::redis::link::Link;
    use crate::store::redis::requests::Wire;
    use crate::store::redis::scripts::PLAIN;
    use crate::store::redis::wakeups::Hub;
    use crate::store::{HolderId, Name, Target};
    use std::task::{Context, Waker};
    use std::time::Duration;
    use uuid::Uuid;

    /// A lane to a server that is not there.
    fn lane() -> (Lane, Inbox) {
        let (keys, (hub, _)) = (Keys::new(""), Hub::of_orders());
        let wire = Wire { keys, scripts: &PLAIN, replicas: None, hub };
        let link = Link::Fleet(Fleet::nowhere());
        Lane::entrance(Lines::new(link, wire, Clock::system()))
    }

    fn acquire() -> Acquire {
        let target = Target::exclusive(Name::new("n").unwrap());
        let ttl = Duration::from_secs(30);
        Acquire::new(target, HolderId::new(Uuid::nil(), 1), ttl, ttl)
    }

    fn release() -> Release {
        let Acquire { target, holder, timeout, .. } = acquire();
        Release::new(target, holder, 0, timeout)
    }

    #[tokio::test]
    async fn requests_that_nobody_waits_for_are_not_sent() {
        let (lane, mut inbox) = lane();
        let mut call = async || {
            let items = collect(&lane.road, &mut inbox).await;
            (items.len(), lane.road.lines.call(items).await.map_err(|error| error.fate()))
        };
        drop((lane.acquire(acquire(), false), lane.release(release(), false)));
        assert_eq!(call().await, (2, Ok(())));
        let release = lane.release(release(), false);
        drop(lane.acquire(acquire(), false));
        assert_eq!(call().await, (2, Err(Fate::NotExecuted)));
        release.await.expect_err("nobody is there");
    }

    #[tokio::test(start_paused = true)]
    async fn requests_behind_a_call_that_could_not_be_sent_are_told_too() {
        let (lane, inbox) = lane();
        let requests: Vec<_> = (0..300).map(|_| lane.release(release(), false)).collect();
        let inbox = Mutex::new(inbox);
        let drive = drive(&lane.road, &inbox);
        tokio::select! {
            () = drive => panic!("the lane is still open"),
            () = async {
                for request in requests {
                    let error = request.await.expect_err("nobody is there");
                    assert_eq!(error.fate(), Fate::NotExecuted, "{error}");
                }
            } => {}
        }
        assert_eq!(lane.road.busy.load(Ordering::Acquire), 0);
    }

    /// What leaves when so many items are in flight and so many wait: at once, and else after one turn.
    fn leaves(flying: usize, waiting: usize, entrance: bool) -> (Option<usize>, usize) {
        let (lane, mut inbox) = lane();
        let road = Arc::clone(&lane.road);
        road.flying.store(flying, Ordering::Release);
        for _ in 0..waiting {
            drop(lane.acquire(acquire(), false));
        }
        let _lane = entrance.then_some(lane);

        let mut collected = pin!(collect(&road, &mut inbox));
        let mut context = Context::from_waker(Waker::noop());
        let mut poll = || match collected.as_mut().poll(&mut context) {
            Poll::Ready(items) => Some(items.len()),
            Poll::Pending => None,
        };
        let at_once = poll();
        (at_once, at_once.or_else(poll).expect("a turn is enough"))
    }

    #[tokio::test]
    async fn half_of_what_is_under_way_leaves_at_once_when_it_is_there() {
        // Nothing is in flight: whatever waits leaves; few together, of more the half.
        for (waiting, expected) in [(1, 1), (8, 8), (9, 8), (20, 10), (21, 11), (64, 32)] {
            assert_eq!(leaves(0, waiting, true), (Some(expected), expected), "{waiting}");
        }
        for (flying, waiting, expected) in [
            (10, 10, 10),
            (10, 30, 20),
            (1, 3, 3),
            (100, 100, 100),
            (100, 500, 100),
            (150, 120, 100),
        ] {
            assert_eq!(
                leaves(flying, waiting, true),
                (Some(expected), expected),
                "{flying} {waiting}"
            );
        }
    }

    #[tokio::test]
    async fn less_than_what_is_in_flight_waits_for_one_turn() {
        for (flying, waiting) in [(2, 1), (10, 9), (100, 99), (150, 30)] {
            assert_eq!(leaves(flying, waiting, true), (None, waiting), "{flying} {waiting}");
        }
    }

    #[tokio::test]
    async fn when_nothing_more_can_come_what_waits_leaves() {
        assert_eq!(leaves(10, 4, false), (Some(4), 4));
        assert_eq!(leaves(10, 0, false), (Some(0), 0), "the end");
    }
}
