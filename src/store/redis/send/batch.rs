//! Sends acquires and releases to one server in batches: requests that arrive while calls are in flight leave together.
//!
//! Two calls are in flight, each with half of the requests under way, so that the server has work while we read
//! its last reply.
//!
//! A lone request runs in the caller's own future, so it costs what a bare call costs. The batcher's task sends all
//! others, up to a hundred in a call, so that each costs the client and the server less than a command of its own.
//! That task waits for no caller: a caller that does not poll its request delays only itself.

use super::calls::{BATCH_SIZE, Batched, CallContext, Item, Waiting, in_place, run_alone};
use crate::store::StoreFuture;
use crate::util::join::{is_one_of_several, send_with_others};
use crate::util::panics::caught;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use tokio::sync::{Mutex, mpsc};
use tokio::task::yield_now;

/// So few items are not worth two calls.
const SMALL_BATCH: usize = 8;

/// A handle on a batcher. The batcher ends with the last handle.
#[derive(Clone)]
pub(super) struct Batcher {
    shared: Arc<Shared>,
    items: mpsc::UnboundedSender<Item<Pending>>,
}

/// The state that the handles and the task of a batcher share.
struct Shared {
    context: CallContext,
    /// The number of requests without an answer.
    pending: AtomicUsize,
    /// The number of items in calls in flight.
    in_flight: AtomicUsize,
}

type Inbox = mpsc::UnboundedReceiver<Item<Pending>>;

/// Counts as a request without an answer for as long as it lives.
struct Pending(Arc<Shared>);

impl Drop for Pending {
    fn drop(&mut self) {
        self.0.pending.fetch_sub(1, Ordering::AcqRel);
    }
}

impl AsRef<CallContext> for Pending {
    fn as_ref(&self) -> &CallContext {
        &self.0.context
    }
}

impl Batcher {
    /// Makes a batcher, and the work that must run on the runtime of the connection.
    pub(in crate::store::redis) fn new(
        context: CallContext,
    ) -> (Self, impl Future<Output = ()> + use<>) {
        let (batcher, inbox) = Self::open(context);
        let shared = Arc::clone(&batcher.shared);
        let end = batcher.shared.context.ended.clone().drop_guard();
        let work = async move {
            let _end = end;
            let inbox = Mutex::new(inbox);
            tokio::join!(keep_sending(&shared, &inbox), keep_sending(&shared, &inbox));
            shared.context.connection.close().await;
        };
        (batcher, work)
    }

    fn open(context: CallContext) -> (Self, Inbox) {
        let (items, inbox) = mpsc::unbounded_channel();
        let shared =
            Shared { context, pending: AtomicUsize::new(0), in_flight: AtomicUsize::new(0) };
        (Self { shared: Arc::new(shared), items }, inbox)
    }

    /// Returns whether its task has ended.
    pub(in crate::store::redis) fn is_closed(&self) -> bool {
        self.items.is_closed()
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
        let first = self.shared.pending.fetch_add(1, Ordering::AcqRel) == 0;
        // The first of several would leave alone, and the others only after it.
        let several = is_one_of_several();
        let lone = first && !several;
        let pending = Pending(Arc::clone(&self.shared));
        if (lone || request.is_apart()) && here {
            return in_place(|| run_alone(request, pending));
        }
        let (waiting, verdict) = Waiting::new(request, pending, several);
        let item = R::item(waiting);
        // If the task has ended, the item is dropped here, and with it the sender of its answer.
        if several {
            let items = self.items.clone();
            send_with_others(move || drop(items.send(item)));
        } else {
            drop(self.items.send(item));
        }
        verdict
    }
}

/// Sends the items of the inbox until no handle is left. A call that panics takes only its own items with it.
async fn keep_sending(shared: &Shared, inbox: &Mutex<Inbox>) {
    while caught("batcher", send_batches(shared, inbox)).await.is_none() {}
}

/// Counts items in flight for as long as it lives.
struct InFlight<'a> {
    shared: &'a Shared,
    count: usize,
}

impl<'a> InFlight<'a> {
    fn new(shared: &'a Shared, count: usize) -> Self {
        shared.in_flight.fetch_add(count, Ordering::AcqRel);
        Self { shared, count }
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.shared.in_flight.fetch_sub(self.count, Ordering::AcqRel);
    }
}

/// Sends the items of the inbox, up to a hundred in a call.
async fn send_batches(shared: &Shared, inbox: &Mutex<Inbox>) {
    loop {
        let items = collect(shared, &mut *inbox.lock().await).await;
        if items.is_empty() {
            return;
        }
        let in_flight = InFlight::new(shared, items.len());
        let result = shared.context.call(items).await;
        drop(in_flight);
        // If the other loop has the inbox, it meets the same error itself.
        if let (Err(error), Ok(mut inbox)) = (result, inbox.try_lock()) {
            while let Ok(item) = inbox.try_recv() {
                item.refuse(&error);
            }
        }
    }
}

/// Collects the items of the next call. Returns them once they are as many as those in flight, or when the tasks that
/// the last reply woke have run. Returns none at the end.
///
/// It takes at most half of all items under way. Otherwise all would soon be in one call, and either the server or this
/// process would always be idle.
async fn collect(shared: &Shared, inbox: &mut Inbox) -> Vec<Item<Pending>> {
    let mut items = Vec::with_capacity(SMALL_BATCH);
    if inbox.recv_many(&mut items, 1).await == 0 {
        return items;
    }
    let in_flight = || shared.in_flight.load(Ordering::Acquire);
    // The callers that the last reply woke are about to send more.
    let mut yielded = pin!(yield_now());
    loop {
        let all = items.len() + inbox.len() + in_flight();
        let share = all.div_ceil(2).clamp(SMALL_BATCH, BATCH_SIZE);
        while items.len() < share
            && let Ok(item) = inbox.try_recv()
        {
            items.push(item);
        }
        if items.len() >= in_flight().min(BATCH_SIZE) {
            return items;
        }
        tokio::select! {
            biased;
            more = inbox.recv_many(&mut items, 1) => if more == 0 {
                return items;
            },
            // The last reply wakes this task as well.
            () = poll_fn(|_| if in_flight() == 0 { Poll::Ready(()) } else { Poll::Pending }) => {}
            () = &mut yielded => return items,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::error::Fate;
    use crate::store::redis::scripts::PLAIN;
    use crate::store::redis::scripts::keys::Keys;
    use crate::store::redis::scripts::lock::Codec;
    use crate::store::redis::topology::Connection;
    use crate::store::redis::topology::fleet::Fleet;
    use crate::store::{Acquire, HolderId, Name, Release, Target};
    use std::task::{Context, Waker};
    use std::time::Duration;
    use uuid::Uuid;

    /// A batcher to a server that is not there.
    fn batcher() -> (Batcher, Inbox) {
        let own_listeners = Arc::new(|_: &str| 0);
        let codec = Codec { keys: Keys::new(""), scripts: &PLAIN, replicas: None, own_listeners };
        let connection = Connection::Fleet(Fleet::nowhere());
        Batcher::open(CallContext::new(connection, codec, Clock::system()))
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
    async fn requests_without_a_caller_are_not_sent() {
        let (batcher, mut inbox) = batcher();
        let mut call = async || {
            let items = collect(&batcher.shared, &mut inbox).await;
            (items.len(), batcher.shared.context.call(items).await.map_err(|error| error.fate()))
        };
        drop((batcher.send(acquire(), false), batcher.send(release(), false)));
        assert_eq!(call().await, (2, Ok(())));
        let release = batcher.send(release(), false);
        drop(batcher.send(acquire(), false));
        assert_eq!(call().await, (2, Err(Fate::NotExecuted)));
        release.await.expect_err("no server is there");
    }

    #[tokio::test(start_paused = true)]
    async fn requests_behind_a_call_that_was_not_sent_fail_too() {
        let (batcher, inbox) = batcher();
        let requests: Vec<_> = (0..300).map(|_| batcher.send(release(), false)).collect();
        let inbox = Mutex::new(inbox);
        let send_batches = send_batches(&batcher.shared, &inbox);
        tokio::select! {
            () = send_batches => panic!("the batcher is still open"),
            () = async {
                for request in requests {
                    let error = request.await.expect_err("no server is there");
                    assert_eq!(error.fate(), Fate::NotExecuted, "{error}");
                }
            } => {}
        }
        assert_eq!(batcher.shared.pending.load(Ordering::Acquire), 0);
    }

    /// Returns how many items leave at once, and how many after at most one yield, with so many in flight and waiting.
    fn leaves(in_flight: usize, waiting: usize, open: bool) -> (Option<usize>, usize) {
        let (batcher, mut inbox) = batcher();
        let shared = Arc::clone(&batcher.shared);
        shared.in_flight.store(in_flight, Ordering::Release);
        for _ in 0..waiting {
            drop(batcher.send(acquire(), false));
        }
        let _handle = open.then_some(batcher);

        let mut collected = pin!(collect(&shared, &mut inbox));
        let mut context = Context::from_waker(Waker::noop());
        let mut poll = || match collected.as_mut().poll(&mut context) {
            Poll::Ready(items) => Some(items.len()),
            Poll::Pending => None,
        };
        let at_once = poll();
        (at_once, at_once.or_else(poll).expect("one yield is enough"))
    }

    #[tokio::test]
    async fn half_of_all_items_leaves_at_once_when_it_is_there() {
        // Nothing is in flight: few items leave together, of more only half.
        for (waiting, expected) in [(1, 1), (8, 8), (9, 8), (20, 10), (21, 11), (64, 32)] {
            assert_eq!(leaves(0, waiting, true), (Some(expected), expected), "{waiting}");
        }
        for (in_flight, waiting, expected) in [
            (10, 10, 10),
            (10, 30, 20),
            (1, 3, 3),
            (100, 100, 100),
            (100, 500, 100),
            (150, 120, 100),
        ] {
            assert_eq!(
                leaves(in_flight, waiting, true),
                (Some(expected), expected),
                "{in_flight} {waiting}"
            );
        }
    }

    #[tokio::test]
    async fn less_than_what_is_in_flight_waits_for_one_yield() {
        for (in_flight, waiting) in [(2, 1), (10, 9), (100, 99), (150, 30)] {
            assert_eq!(leaves(in_flight, waiting, true), (None, waiting), "{in_flight} {waiting}");
        }
    }

    #[tokio::test]
    async fn last_items_leave_when_no_handle_is_left() {
        assert_eq!(leaves(10, 4, false), (Some(4), 4));
        assert_eq!(leaves(10, 0, false), (Some(0), 0), "the end");
    }
}
