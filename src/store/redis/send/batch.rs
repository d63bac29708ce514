//! Sends acquires and releases in batches: requests that arrive while calls are in flight leave together.
//!
//! A call takes keys of one slot only, so each slot has batches of its own, and a server that is down delays only its own
//! slots. All names of a single server are in one slot.
//!
//! Two calls of a slot are in flight, each with half of the requests under way, so that the server has work while we
//! read its last reply.
//!
//! A lone request runs in the caller's own future, so it costs what a bare call costs. A driver sends all others, up to a
//! hundred in a call, so that each costs the client and the server less than a command of its own. It waits for no
//! caller: a caller that does not poll its request delays only itself.
//!
//! Each runtime that locks has a batcher: see [`PerRuntime`].

use super::defer::defer_to_driver;
use crate::clock::{Clock, Instant};
use crate::error::{Error, Fate, Result};
use crate::store::StoreFuture;
use crate::store::redis::link::errors::is_unsent;
use crate::store::redis::scripts::keys::Keys;
use crate::store::redis::scripts::lock::{Batch, Codec, Request, confirmed};
use crate::store::redis::scripts::reply::{self, Element};
use crate::store::redis::scripts::{Script, ScriptCall};
use crate::store::redis::topology::runtimes::{
    Closable, Nearest, PerRuntime, Reservation, time_is_paused,
};
use crate::store::redis::topology::{Connection, Connector};
use crate::util::in_place::in_place;
use crate::util::join::{is_one_of_several, send_with_others};
use crate::util::panics::{caught, run_wakers};
use crate::util::reached::Rare;
use crate::util::runtime::spawn_on;
use crate::util::sync::Mutex;
use crate::util::trace;
use std::collections::{BTreeMap, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::Level;

/// The most items of one call. 100 keep the server's stall near a quarter of a millisecond.
pub(in crate::store::redis) const BATCH_SIZE: usize = 100;

/// So few items are not worth two calls.
const SMALL_BATCH: usize = 8;
/// The longest queue whose memory a slot keeps when it is empty.
const KEPT_CAPACITY: usize = 1024;
/// The most calls of a slot that its drivers have in flight.
const CALLS: usize = 2;

/// The pause between two attempts to connect.
const RETRY: Duration = Duration::from_secs(1);

/// The default batcher, and one for each other runtime that locks.
pub(in crate::store::redis) struct RuntimeBatchers {
    default: Batcher,
    others: PerRuntime<Batcher>,
    opener: Arc<Opener>,
}

/// What it takes to open a batcher.
struct Opener {
    connector: Connector,
    codec: Codec,
    clock: Clock,
}

impl RuntimeBatchers {
    /// Starts the default batcher, on the current runtime.
    pub(in crate::store::redis) fn start(
        connection: Connection,
        connector: Connector,
        codec: Codec,
        clock: Clock,
    ) -> Self {
        let (default, work) =
            Batcher::new(CallContext::new(connection, codec.clone(), clock.clone()));
        tokio::spawn(work);
        let opener = Arc::new(Opener { connector, codec, clock });
        Self { default, others: PerRuntime::new(), opener }
    }

    /// Sends a request by the batcher of the current runtime, or by the default one.
    pub(in crate::store::redis) fn send<R: Request>(&self, request: R) -> StoreFuture<R::Verdict> {
        let open = |reservation| open_and_serve(reservation, Arc::clone(&self.opener));
        match self.others.nearest(open) {
            Nearest::Own(batcher) => batcher.send(request, true),
            Nearest::Default { here } => self.default.send(request, here),
        }
    }

    /// Ends all batchers and their connections. Waits for at most `limit`.
    pub(in crate::store::redis) async fn close(&self, limit: Duration) {
        let batchers = self.others.close();
        let close = async {
            for batcher in batchers {
                batcher.close().await;
            }
        };
        let _ = timeout(limit, close).await;
    }
}

/// Connects on this runtime, then serves its batcher.
async fn open_and_serve(reservation: Reservation<Batcher>, opener: Arc<Opener>) {
    if time_is_paused() {
        return std::future::pending().await;
    }
    let connection = loop {
        match opener.connector.connect().await {
            Ok(connection) => break connection,
            Err(error) => trace::later(
                Level::DEBUG,
                || move || tracing::debug!(%error, "no connection for this runtime yet"),
            ),
        }
        if reservation.is_closed() {
            return;
        }
        sleep(RETRY).await;
    };
    let context = CallContext::new(connection, opener.codec.clone(), opener.clock.clone());
    let (batcher, work) = Batcher::new(context);
    // After the end, the work only closes the connection.
    reservation.fill(batcher);
    drop(reservation);
    drop(opener);
    work.await;
}

/// A handle on a batcher. The batcher ends with the last handle.
#[derive(Clone)]
struct Batcher {
    shared: Arc<Shared>,
    /// Keeps the connections open.
    _open: Arc<DropGuard>,
}

struct Shared {
    context: CallContext,
    /// The runtime of the connections.
    runtime: Handle,
    slots: Mutex<RequestsBySlot>,
}

/// The slots with requests that have no answer yet.
#[derive(Default)]
struct RequestsBySlot {
    /// The first slot, which is always there: a single server has no other.
    first: SlotRequests,
    others: BTreeMap<usize, SlotRequests>,
}

impl Shared {
    /// Changes the state of a slot. An item takes the lock when it is dropped, so `change` returns those that it takes out.
    fn change<T>(&self, number: usize, change: impl FnOnce(&mut SlotRequests) -> T) -> T {
        let mut slots = self.slots.lock();
        if number == 0 {
            return change(&mut slots.first);
        }
        let slot = slots.others.entry(number).or_default();
        let result = change(slot);
        if slot.is_idle() {
            slots.others.remove(&number);
        }
        result
    }
}

/// The requests of a slot that have no answer yet.
#[derive(Default)]
struct SlotRequests {
    /// The number of all of them.
    pending: usize,
    waiting: VecDeque<Item>,
    /// Whether a [`Driver`] collects the items of the next call.
    collecting: bool,
    /// The number of calls of drivers in flight, and of their items.
    calls: usize,
    in_flight: usize,
}

impl SlotRequests {
    fn is_idle(&self) -> bool {
        self.pending == 0 && self.calls == 0 && !self.collecting
    }

    /// Returns whether a driver collects from now on, which must be the caller: no other does, and one more call may be
    /// in flight.
    fn begin_collecting(&mut self) -> bool {
        let begins = !self.collecting && self.calls < CALLS;
        self.collecting |= begins;
        begins
    }

    /// Returns whether the next call is worth sending now: its items are as many as those in flight.
    fn has_enough(&self) -> bool {
        self.waiting.len() >= self.in_flight.clamp(1, BATCH_SIZE)
    }

    /// Takes the items of the next call, at most half of all items under way. Otherwise all would soon be in one call,
    /// and either the server or this process would always be idle.
    fn collect(&mut self) -> Vec<Item> {
        let half = (self.waiting.len() + self.in_flight).div_ceil(2);
        let count = self.waiting.len().min(half.clamp(SMALL_BATCH, BATCH_SIZE));
        self.collecting = false;
        self.calls += usize::from(count > 0);
        self.in_flight += count;
        let items = self.waiting.drain(..count).collect();
        if self.waiting.is_empty() && self.waiting.capacity() > KEPT_CAPACITY {
            self.waiting = VecDeque::new();
        }
        items
    }

    fn end_call(&mut self, items: usize) {
        self.calls -= 1;
        self.in_flight -= items;
    }
}

/// Counts as a request without an answer for as long as it lives.
struct Pending {
    shared: Arc<Shared>,
    slot: usize,
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.shared.change(self.slot, |slot| slot.pending -= 1);
    }
}

impl Batcher {
    /// Makes a batcher, and the work that must run on the runtime of the connection, which is the current one.
    fn new(context: CallContext) -> (Self, impl Future<Output = ()> + use<>) {
        let closing = CancellationToken::new();
        let open = Arc::new(closing.clone().drop_guard());
        let connection = context.connection.clone();
        let end = context.ended.clone().drop_guard();
        let work = async move {
            let _end = end;
            closing.cancelled().await;
            connection.close().await;
        };
        let shared = Shared { context, runtime: Handle::current(), slots: Mutex::default() };
        (Self { shared: Arc::new(shared), _open: open }, work)
    }

    /// Drops this handle and waits for the end of the batcher.
    async fn close(self) {
        let ended = self.shared.context.ended.clone();
        drop(self);
        ended.cancelled().await;
    }

    /// Sends a request. `here`: whether the caller is on the batcher's runtime.
    fn send<R: Request>(&self, request: R, here: bool) -> StoreFuture<R::Verdict> {
        let slot = self.shared.context.slot(&request);
        // The first of several would leave alone, and the others only after it.
        let several = is_one_of_several();
        let first = self.shared.change(slot, |slot| {
            slot.pending += 1;
            slot.pending == 1
        });
        let pending = Pending { shared: Arc::clone(&self.shared), slot };
        if here && (first && !several || request.is_apart()) {
            return Box::pin(run_alone(request, pending));
        }
        let (item, verdict) = Waiting::queue(request, pending, several);
        let batcher = self.clone();
        send_with_others(move || batcher.push(slot, item));
        verdict
    }

    fn push(self, slot: usize, item: Item) {
        let begins = self.shared.change(slot, |slot| {
            slot.waiting.push_back(item);
            slot.begin_collecting()
        });
        if begins {
            Driver::start(self, slot);
        }
    }
}

impl Closable for Batcher {
    fn is_closed(&self) -> bool {
        self.shared.context.ended.is_cancelled()
    }
}

/// Sends the waiting items of a slot until none is left. Keeps the batcher open for them.
struct Driver {
    batcher: Batcher,
    slot: usize,
    stage: Stage,
}

/// What a driver is about.
enum Stage {
    Collecting,
    /// A call with so many items.
    Calling(usize),
    Ended,
}

impl Driver {
    /// Starts a driver, which collects.
    fn start(batcher: Batcher, slot: usize) {
        let runtime = batcher.shared.runtime.clone();
        // If the runtime has ended, the driver is dropped here, and with it the waiting items.
        spawn_on(&runtime, Self { batcher, slot, stage: Stage::Collecting }.run());
    }

    async fn run(mut self) {
        loop {
            // The first yield lets the last answers go out, the second lets their callers send more.
            for _ in 0..2 {
                if !self.change(|slot| slot.has_enough()) {
                    yield_now().await;
                }
            }
            let items = self.collect();
            if items.is_empty() {
                return;
            }
            // A call that panics takes only its own items with it.
            let call = in_place(|| self.batcher.shared.context.call(items));
            let refused = caught("batcher", call).await.and_then(Result::err);
            let waiting = self.end_call(refused.is_some());
            if let Some(error) = refused {
                waiting.into_iter().for_each(|item| item.refuse(&error));
            }
            if let Stage::Ended = self.stage {
                return;
            }
        }
    }

    fn change<T>(&self, change: impl FnOnce(&mut SlotRequests) -> T) -> T {
        self.batcher.shared.change(self.slot, change)
    }

    /// Takes the items of the next call. If there are none, this driver ends; if some are left, another one sends them.
    fn collect(&mut self) -> Vec<Item> {
        let (items, others) = self.change(|slot| {
            let items = slot.collect();
            (items, !slot.waiting.is_empty() && slot.begin_collecting())
        });
        self.stage = match items.len() {
            0 => Stage::Ended,
            count => Stage::Calling(count),
        };
        if others {
            Self::start(self.batcher.clone(), self.slot);
        }
        items
    }

    /// Ends the call, and this driver if another one collects. Takes the waiting items if they are refused.
    fn end_call(&mut self, refuse: bool) -> VecDeque<Item> {
        let Stage::Calling(count) = self.stage else { return VecDeque::new() };
        let (collects, refused) = self.change(|slot| {
            slot.end_call(count);
            let refused = if refuse { std::mem::take(&mut slot.waiting) } else { VecDeque::new() };
            (slot.begin_collecting(), refused)
        });
        Rare::RedisBatchRefused.reached_if(|| !refused.is_empty());
        self.stage = if collects { Stage::Collecting } else { Stage::Ended };
        refused
    }
}

impl Drop for Driver {
    /// Drops the waiting items if the runtime has ended: no task would send them.
    fn drop(&mut self) {
        let waiting = self.change(|slot| {
            match self.stage {
                Stage::Collecting => slot.collecting = false,
                Stage::Calling(count) => slot.end_call(count),
                Stage::Ended => return VecDeque::new(),
            }
            std::mem::take(&mut slot.waiting)
        });
        Rare::RedisDriverDropped.reached_if(|| !waiting.is_empty());
        drop(waiting);
    }
}

/// Sends calls and reads their replies.
struct CallContext {
    connection: Connection,
    codec: Codec,
    clock: Clock,
    /// Fires when the connection is closed, or its runtime has gone.
    ended: CancellationToken,
}

impl CallContext {
    fn new(connection: Connection, codec: Codec, clock: Clock) -> Self {
        Self { connection, codec, clock, ended: CancellationToken::new() }
    }

    /// Returns the slot of a request, as [`Connection::slot`] does.
    fn slot(&self, request: &impl Request) -> usize {
        self.connection.slot(self.codec.keys.lock(request.name())).into()
    }
}

/// A request that waits to be sent with others.
type Item = Box<dyn Queued>;

// One implementor: it has the verdict of a request, of which there are several.
/// What a call does with each of its items.
trait Queued: Send + Sync {
    /// Returns whether the caller has gone.
    fn is_given_up(&self) -> bool;
    fn is_apart(&self) -> bool;
    fn is_of_several(&self) -> bool;
    fn timeout(&self) -> Duration;
    fn lone_call(&self, codec: &Codec) -> (&'static Script, ScriptCall);
    fn write(&self, keys: &Keys, batch: &mut Batch);
    /// Reads the reply, and keeps the verdict.
    fn read(&mut self, context: &CallContext, reply: ItemReply<'_>);
    /// Gives the caller the verdict.
    fn answer(self: Box<Self>);
    /// Answers a request that was not sent.
    fn refuse(self: Box<Self>, error: &Error);
    /// Sends the item in a call of its own, because one of the items of its batch cannot share a call. Only its caller
    /// waits for it, so it may take its whole time limit.
    fn go_alone(self: Box<Self>);
}

/// A request, and where its verdict goes.
struct Waiting<R: Request> {
    request: R,
    /// Whether its task waits for other requests that were sent with it.
    of_several: bool,
    reply_to: ReplyTo<Result<R::Verdict>>,
    verdict: Option<Result<R::Verdict>>,
    pending: Pending,
}

/// Where the verdict of a request goes. Sending it, or dropping this, runs the waker of the caller, which may panic. That
/// must not reach the task that answers others.
struct ReplyTo<T>(Option<oneshot::Sender<T>>);

impl<T> ReplyTo<T> {
    fn is_closed(&self) -> bool {
        self.0.as_ref().is_none_or(oneshot::Sender::is_closed)
    }

    fn send(mut self, verdict: T) {
        let sender = self.0.take();
        // If the receiver is gone, the verdict is dropped: the contract of `Store` allows it.
        run_wakers(|| drop(sender.map(|sender| sender.send(verdict))));
    }
}

impl<T> Drop for ReplyTo<T> {
    fn drop(&mut self) {
        if let Some(sender) = self.0.take() {
            run_wakers(|| drop(sender));
        }
    }
}

/// The reply to one item of a call.
struct ItemReply<'a> {
    sent: Instant,
    elements: Result<&'a [Element]>,
    /// Whether enough replicas have what the call did.
    confirmed: &'a Result<()>,
}

/// Returns the part of a reply that belongs to one item of `count`: one element, or all if the item was alone.
fn part_of(reply: &Result<Vec<Element>>, index: usize, count: usize) -> Result<&[Element]> {
    let reply = reply.as_ref().map_err(Error::clone)?;
    if count == 1 {
        return Ok(reply);
    }
    reply.get(index..=index).ok_or_else(reply::malformed_reply)
}

/// Runs a lone request in the caller's future. The future may move to another runtime half way, and outlive its own.
/// `pending` counts the request.
#[expect(
    clippy::manual_async_fn,
    reason = "the future of an async fn has space for the request twice"
)]
#[inline]
fn run_alone<R: Request>(
    request: R,
    pending: Pending,
) -> impl Future<Output = Result<R::Verdict>> + Send {
    async move {
        let context = &pending.shared.context;
        let mut call = pin!(context.call_alone(&request));
        // The call must not be polled once its runtime has ended, because its timers have ended too. Checking here is
        // cheaper than waiting for `ended`, which would cost as much as a timer: the client ends with the runtime and
        // wakes us.
        poll_fn(|task| match context.ended.is_cancelled() {
            true => Poll::Ready(Err(reply::connection_closed())),
            false => call.as_mut().poll(task),
        })
        .await
    }
}

impl CallContext {
    async fn call_alone<R: Request>(&self, request: &R) -> Result<R::Verdict> {
        let (script, call) = self.codec.lone_call(request);
        let sent = self.clock.now();
        let wait = call.wait;
        let mut reply = match pin!(self.connection.run(script, call, request.timeout())).await {
            // Boxed, so that the future of a usual call stays small.
            Err(error) if self.connection.is_split(&error) => {
                Box::pin(self.call_with_one_key(request, sent, error)).await?
            }
            reply => reply?,
        };
        let confirmed = confirmed(wait, &mut reply);
        self.read(request, ItemReply { sent, elements: Ok(&reply), confirmed: &confirmed })
    }

    /// Sends a request that was refused because only some of its keys have moved, in the time that is left.
    async fn call_with_one_key<R: Request>(
        &self,
        request: &R,
        sent: Instant,
        refused: Error,
    ) -> Result<Vec<Element>> {
        let (script, call) = request.with_one_key(&self.codec).ok_or(refused)?;
        Rare::RedisWithOneKey.reached();
        let left = (sent + request.timeout()).saturating_duration_since(self.clock.now());
        self.connection.run(script, call, left).await
    }

    fn read<R: Request>(&self, request: &R, reply: ItemReply<'_>) -> Result<R::Verdict> {
        let verdict = request.read(&self.codec, reply.sent, reply.elements?)?;
        match reply.confirmed {
            Ok(()) => Ok(verdict),
            Err(error) => request.unconfirmed(verdict, error),
        }
    }

    /// Sends items as one call and gives each its verdict. Returns an error if the call did not run and a call with later
    /// items would not run either.
    async fn call(&self, mut items: Vec<Item>) -> Result<()> {
        // A request without a caller was never sent, so there is nothing to undo, and a release is sent again if it is
        // still needed.
        Rare::RedisGivenUp.reached_if(|| items.iter().any(|item| item.is_given_up()));
        items.retain(|item| !item.is_given_up());
        if items.len() > 1 && items.iter().any(|item| item.is_apart()) {
            let (apart, others): (Vec<Item>, _) =
                items.into_iter().partition(|item| item.is_apart());
            items = others;
            apart.into_iter().for_each(Queued::go_alone);
        }
        if items.is_empty() {
            return Ok(());
        }
        let (sent, reply, confirmed) = self.run(&items).await;
        let failure = match &reply {
            Err(error)
                if self.connection.is_split(error)
                    || items.len() > 1 && reply::is_key_out_of_reach(error) =>
            {
                Rare::RedisBatchSplit.reached();
                items.into_iter().for_each(Queued::go_alone);
                return Ok(());
            }
            Err(error)
                if error.is_unavailable() && error.fate() == Fate::NotExecuted
                    || is_unsent(error) =>
            {
                Err(error.clone())
            }
            _ => Ok(()),
        };
        let count = items.len();
        for (index, item) in items.iter_mut().enumerate() {
            let elements = part_of(&reply, index, count);
            item.read(self, ItemReply { sent, elements, confirmed: &confirmed });
        }
        // Requests of one task wake only that task.
        if items.iter().all(|item| item.is_of_several()) {
            items.into_iter().for_each(Queued::answer);
        } else {
            defer_to_driver(|| items.into_iter().for_each(Queued::answer));
        }
        failure
    }

    /// Runs items as one call. Returns the instant before it was sent, the reply with one element per item, and whether
    /// enough replicas confirmed it.
    async fn run(&self, items: &[Item]) -> (Instant, Result<Vec<Element>>, Result<()>) {
        let (script, mut call) = match items {
            [one] => one.lone_call(&self.codec),
            _ => {
                let mut batch = Batch::of(items.len());
                items.iter().for_each(|item| item.write(&self.codec.keys, &mut batch));
                (&self.codec.scripts.batch, batch.finish(self.codec.replicas))
            }
        };
        call.divisible = true;
        let timeout = items.iter().map(|item| item.timeout()).max().unwrap_or_default();
        let sent = self.clock.now();
        let wait = call.wait;
        let mut reply = self.connection.run(script, call, timeout).await;
        let confirmed = match &mut reply {
            Ok(reply) => confirmed(wait, reply),
            Err(_) => Ok(()),
        };
        let reply = match reply {
            // An item that is alone checks its reply itself.
            Ok(reply) if items.len() > 1 && reply.len() != items.len() => {
                Err(reply::malformed_reply())
            }
            reply => reply,
        };
        (sent, reply, confirmed)
    }
}

impl<R: Request> Waiting<R> {
    /// Returns a waiting request, and the future of its verdict.
    fn queue(request: R, pending: Pending, of_several: bool) -> (Item, StoreFuture<R::Verdict>) {
        let (sender, verdict) = oneshot::channel();
        let reply_to = ReplyTo(Some(sender));
        let verdict =
            async move { verdict.await.unwrap_or_else(|_| Err(reply::connection_closed())) };
        let item = Self { request, of_several, reply_to, verdict: None, pending };
        (Box::new(item), Box::pin(verdict))
    }
}

impl<R: Request> Queued for Waiting<R> {
    fn is_given_up(&self) -> bool {
        self.reply_to.is_closed()
    }

    fn is_apart(&self) -> bool {
        self.request.is_apart()
    }

    fn is_of_several(&self) -> bool {
        self.of_several
    }

    fn timeout(&self) -> Duration {
        self.request.timeout()
    }

    fn lone_call(&self, codec: &Codec) -> (&'static Script, ScriptCall) {
        codec.lone_call(&self.request)
    }

    fn write(&self, keys: &Keys, batch: &mut Batch) {
        self.request.write(keys, batch);
    }

    fn read(&mut self, context: &CallContext, reply: ItemReply<'_>) {
        self.verdict = Some(context.read(&self.request, reply));
    }

    fn answer(self: Box<Self>) {
        let Self { reply_to, verdict, pending, .. } = *self;
        // Before the verdict: the caller may send its next request at once, and that one should count as alone.
        drop(pending);
        if let Some(verdict) = verdict {
            reply_to.send(verdict);
        }
    }

    fn refuse(mut self: Box<Self>, error: &Error) {
        self.verdict = Some(Err(error.clone()));
        self.answer();
    }

    fn go_alone(mut self: Box<Self>) {
        tokio::spawn(async move {
            self.verdict = Some(self.pending.shared.context.call_alone(&self.request).await);
            self.answer();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::error::Fate;
    use crate::store::connect::layout::Layout;
    use crate::store::redis::scripts::Scripts;
    use crate::store::redis::scripts::keys::Keys;
    use crate::store::redis::scripts::lock::Codec;
    use crate::store::redis::topology::Connection;
    use crate::store::redis::topology::fleet::Fleet;
    use crate::store::{Acquire, Acquired, HolderId, Name, Target};
    use crate::util::join::Outbox;
    use std::time::Duration;
    use tokio::runtime::Builder;
    use tokio::time::{sleep, timeout};
    use uuid::Uuid;

    const MOMENT: Duration = Duration::from_millis(1);
    /// The slot of the name `n`.
    const N: usize = 3432;

    /// A batcher for a cluster in which every call fails at once, on the current runtime.
    fn batcher() -> (Batcher, impl Future<Output = ()>) {
        let own_listeners = Arc::new(|_: &str| 0);
        let codec = Codec {
            keys: Keys::new(""),
            scripts: Scripts::of(Layout::Redisson, true),
            replicas: None,
            own_listeners,
        };
        let connection = Connection::Fleet(Fleet::nowhere());
        Batcher::new(CallContext::new(connection, codec, Clock::system()))
    }

    fn acquire(batcher: &Batcher, name: &str, here: bool) -> StoreFuture<Acquired> {
        let target = Target::exclusive(Name::new(name).unwrap());
        let (holder, ttl) = (HolderId::new(Uuid::new_v4(), 1), Duration::from_secs(30));
        batcher.send(Acquire::new(target, holder, ttl, ttl), here)
    }

    /// For each slot: the requests without an answer, those that wait, and whether a driver collects them.
    fn at_work(batcher: &Batcher) -> Vec<(usize, usize, bool)> {
        let slots = batcher.shared.slots.lock();
        let mut all: Vec<_> = slots
            .others
            .values()
            .map(|slot| (slot.pending, slot.waiting.len(), slot.collecting))
            .collect();
        all.sort();
        all
    }

    async fn fails(request: StoreFuture<Acquired>) -> String {
        let answer = timeout(MOMENT, request).await.expect("an answer");
        let error = answer.expect_err("no server has the slot");
        assert_eq!(error.fate(), Fate::NotExecuted);
        error.to_string()
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
        sleep(MOMENT).await;
        assert_eq!(at_work(&batcher), [(1, 0, false)]);
        let fourth = acquire(&batcher, "{a}4", true);
        assert_eq!(at_work(&batcher), [(2, 1, true)]);
        drop(lone);
        assert_eq!(at_work(&batcher), [(1, 1, true)]);
        assert!(fails(fourth).await.contains("no server"));
        sleep(MOMENT).await;
        assert_eq!(at_work(&batcher), []);
        let lone = acquire(&batcher, "{a}5", true);
        assert_eq!(at_work(&batcher), [(1, 0, false)]);
        assert!(fails(lone).await.contains("no server"));
        assert_eq!(at_work(&batcher), []);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_of_several_calls_wait_for_each_other() {
        let (batcher, _work) = batcher();
        let outbox = Outbox::open();
        let requests = ["{a}1", "{a}2"].map(|name| acquire(&batcher, name, true));
        assert_eq!(at_work(&batcher), [(2, 0, false)]);
        drop(outbox);
        assert_eq!(at_work(&batcher), [(2, 2, true)]);
        for request in requests {
            assert!(fails(request).await.contains("no server"));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn slots_that_were_used_are_forgotten() {
        let (batcher, _work) = batcher();
        for number in 0..100 {
            let here = number % 2 == 0;
            assert!(
                fails(acquire(&batcher, &number.to_string(), here)).await.contains("no server")
            );
        }
        sleep(MOMENT).await;
        assert!(batcher.shared.slots.lock().others.is_empty());
    }

    /// If a call was not sent, those that wait behind it would not be either.
    #[tokio::test(start_paused = true)]
    async fn every_request_has_an_answer_however_many_wait() {
        let (batcher, _work) = batcher();
        let count = 4 * BATCH_SIZE + 1;
        let requests: Vec<_> = (0..count).map(|_| acquire(&batcher, "{a}", false)).collect();
        assert_eq!(at_work(&batcher), [(count, count, true)]);
        for request in requests {
            assert!(fails(request).await.contains("no server"));
        }
        sleep(MOMENT).await;
        assert_eq!(at_work(&batcher), []);
    }

    #[tokio::test]
    async fn requests_without_a_caller_are_not_sent() {
        let (batcher, _work) = batcher();
        let call = async |requests: Vec<StoreFuture<Acquired>>| {
            let items = batcher.shared.change(N, SlotRequests::collect);
            drop(requests);
            batcher.shared.context.call(items).await.map_err(|error| error.fate())
        };
        let mut requests: Vec<_> = (0..2).map(|_| acquire(&batcher, "n", false)).collect();
        assert_eq!(call(requests).await, Ok(()));
        requests = (0..2).map(|_| acquire(&batcher, "n", false)).collect();
        let kept = requests.pop();
        assert_eq!(call(requests).await, Err(Fate::NotExecuted));
        kept.unwrap().await.expect_err("no server is there");
    }

    /// Returns whether so many items leave at once, and how many do, with so many in flight.
    fn leaves(in_flight: usize, waiting: usize) -> (bool, usize) {
        let (batcher, _work) = batcher();
        let mut state = SlotRequests { calls: 1, in_flight, ..SlotRequests::default() };
        for _ in 0..waiting {
            drop(acquire(&batcher, "n", false));
        }
        let items = batcher.shared.change(N, |from| std::mem::take(&mut from.waiting));
        state.waiting = items;
        (state.has_enough(), state.collect().len())
    }

    #[tokio::test]
    async fn half_of_all_items_leaves_at_once_when_it_is_there() {
        // Nothing is in flight: few items leave together, of more only half.
        for (waiting, expected) in [(1, 1), (8, 8), (9, 8), (20, 10), (21, 11), (64, 32)] {
            assert_eq!(leaves(0, waiting), (true, expected), "{waiting}");
        }
        for (in_flight, waiting, expected) in [
            (10, 10, 10),
            (10, 30, 20),
            (1, 3, 3),
            (100, 100, 100),
            (100, 500, 100),
            (150, 120, 100),
        ] {
            assert_eq!(leaves(in_flight, waiting), (true, expected), "{in_flight} {waiting}");
        }
    }

    #[tokio::test]
    async fn less_than_what_is_in_flight_waits_for_more() {
        for (in_flight, waiting) in [(0, 0), (2, 1), (10, 9), (100, 99), (150, 30)] {
            assert_eq!(leaves(in_flight, waiting), (false, waiting), "{in_flight} {waiting}");
        }
    }

    #[tokio::test]
    async fn two_calls_at_most_are_in_flight_and_one_driver_collects() {
        let (batcher, _work) = batcher();
        let requests: Vec<_> = (0..40).map(|_| acquire(&batcher, "n", false)).collect();
        let taken = batcher.shared.change(N, |slot| {
            assert!(slot.collecting && !slot.begin_collecting(), "one collects");
            let first = slot.collect();
            assert_eq!((first.len(), slot.waiting.len()), (20, 20));
            assert!(slot.begin_collecting(), "the other half");
            let second = slot.collect();
            assert_eq!((second.len(), slot.waiting.len()), (20, 0));
            assert!(!slot.begin_collecting(), "two are in flight");
            slot.end_call(first.len());
            assert!(slot.begin_collecting() && !slot.begin_collecting());
            assert_eq!((slot.collect().len(), slot.calls, slot.in_flight), (0, 1, 20));
            slot.end_call(second.len());
            assert_eq!((slot.calls, slot.in_flight), (0, 0));
            (first, second)
        });
        drop((taken, requests));
    }

    #[tokio::test(start_paused = true)]
    async fn end_comes_when_the_last_handle_is_dropped() {
        let (batcher, work) = batcher();
        let work = tokio::spawn(work);
        let other = batcher.clone();
        assert!(timeout(MOMENT, batcher.close()).await.is_err(), "the other is still open");
        assert!(!other.is_closed());
        let last = acquire(&other, "n", false);
        timeout(MOMENT, other.close()).await.expect("all are closed");
        assert!(fails(last).await.contains("no server"), "it was sent before the end");
        work.await.unwrap();
    }

    #[test]
    fn requests_that_wait_when_the_runtime_ends_are_answered() {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
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
        let next = Builder::new_current_thread().enable_all().build().unwrap();
        for request in [waiting, later] {
            let answer = next.block_on(request);
            assert!(answer.expect_err("it is closed").to_string().contains("closed"));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn after_the_end_there_is_no_answer() {
        let (batcher, work) = batcher();
        drop(work);
        assert!(batcher.is_closed());
        let answer = acquire(&batcher, "n", true).await;
        assert!(answer.expect_err("it is closed").to_string().contains("closed"));
    }

    /// How threads interleave at the lock of a batcher, explored by shuttle: `.ci/long shuttle`.
    #[cfg(shuttle)]
    mod interleavings {
        use super::*;
        use crate::util::sync::explore;
        use shuttle::future::block_on;
        use shuttle::thread;
        use std::task::{Context, Waker};

        /// Sends a request, waits for its answer, and sends the next one.
        fn ask(batcher: &Batcher) {
            for here in [false, true] {
                let error =
                    block_on(acquire(batcher, "n", here)).expect_err("no server has the slot");
                assert_eq!(error.fate(), Fate::NotExecuted);
            }
        }

        /// Drops requests: at once, and while they wait. A call of such requests alone is not refused, so those behind them are
        /// sent by the next one.
        fn give_up(batcher: &Batcher) {
            drop(acquire(batcher, "n", false));
            let mut request = acquire(batcher, "n", false);
            let _ = request.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            thread::yield_now();
        }

        fn look(batcher: &Batcher) {
            for _ in 0..3 {
                batcher.shared.change(N, |slot| {
                    assert!(slot.calls <= CALLS, "{} calls", slot.calls);
                    assert!(slot.waiting.len() <= slot.pending, "one has its answer and waits");
                    let is_driven = slot.collecting || slot.calls > 0;
                    assert!(is_driven || slot.waiting.is_empty(), "no driver sends what waits");
                });
                thread::yield_now();
            }
        }

        #[test]
        fn every_request_has_a_driver_until_it_is_answered() {
            explore(|| {
                let (batcher, _work) = batcher();
                let works = [ask as fn(&_), ask, give_up, give_up, look];
                let threads = works.map(|work| {
                    let batcher = batcher.clone();
                    thread::spawn(move || work(&batcher))
                });
                threads.into_iter().for_each(|thread| thread.join().unwrap());
                // The last driver ends by itself. If it does not, this is a schedule without an end.
                while !at_work(&batcher).is_empty() {
                    thread::yield_now();
                }
            });
        }
    }
}
