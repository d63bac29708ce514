//! The calls of batchers: their items, their replies, and the verdicts.

use super::defer::defer_to_driver;
use crate::clock::{Clock, Instant};
use crate::error::{Error, Fate, Result};
use crate::store::redis::link::errors::is_unsent;
use crate::store::redis::scripts::keys::Keys;
use crate::store::redis::scripts::lock::{Batch, Codec, Request, confirmed};
use crate::store::redis::scripts::reply::{self, Element};
use crate::store::redis::scripts::set::AcquireAll;
use crate::store::redis::scripts::{Call, Script};
use crate::store::redis::topology::Connection;
use crate::store::{Acquire, Release, StoreFuture};
use crate::util::panics::run_wakers;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

/// The most items of one call. 100 keep the server's stall near a quarter of a millisecond.
pub(in crate::store::redis) const BATCH_SIZE: usize = 100;

/// Sends calls and reads their replies.
pub(in crate::store::redis) struct CallContext {
    pub(in crate::store::redis) connection: Connection,
    pub(in crate::store::redis) codec: Codec,
    clock: Clock,
    /// Fires when the connection is closed, or its runtime has gone.
    pub(in crate::store::redis) ended: CancellationToken,
}

impl CallContext {
    pub(in crate::store::redis) fn new(connection: Connection, codec: Codec, clock: Clock) -> Self {
        Self { connection, codec, clock, ended: CancellationToken::new() }
    }
}

/// A request that waits for the batcher's task. `P` counts it as pending for as long as it lives.
pub(in crate::store::redis) enum Item<P> {
    Acquire(Waiting<Acquire, P>),
    AcquireAll(Waiting<AcquireAll, P>),
    Release(Waiting<Release, P>),
}

/// A request that can be an item.
pub(in crate::store::redis) trait Batched: Request + Sized {
    fn item<P>(waiting: Waiting<Self, P>) -> Item<P>;
}

impl Batched for Acquire {
    fn item<P>(waiting: Waiting<Self, P>) -> Item<P> {
        Item::Acquire(waiting)
    }
}

impl Batched for AcquireAll {
    fn item<P>(waiting: Waiting<Self, P>) -> Item<P> {
        Item::AcquireAll(waiting)
    }
}

impl Batched for Release {
    fn item<P>(waiting: Waiting<Self, P>) -> Item<P> {
        Item::Release(waiting)
    }
}

/// A request, and where its verdict goes.
pub(in crate::store::redis) struct Waiting<R: Request, P> {
    request: R,
    /// Whether its task waits for other requests that were sent with it.
    of_several: bool,
    reply_to: ReplyTo<Result<R::Verdict>>,
    verdict: Option<Result<R::Verdict>>,
    pending: P,
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

/// Boxes a future and writes it in its final place. The future of a call takes six kilobytes, which `Box::pin` would
/// copy.
pub(super) fn in_place<F: Future>(make: impl FnOnce() -> F) -> Pin<Box<F>> {
    Box::into_pin(Box::write(Box::new_uninit(), make()))
}

/// Runs a lone request in the caller's future. The future may move to another runtime half way, and outlive its own.
/// `pending` counts the request.
#[expect(
    clippy::manual_async_fn,
    reason = "the future of an async fn has space for the request twice"
)]
pub(super) fn run_alone<R: Request>(
    request: R,
    pending: impl AsRef<CallContext> + Send,
) -> impl Future<Output = Result<R::Verdict>> + Send {
    async move {
        let context = pending.as_ref();
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
    pub(super) async fn call_alone<R: Request>(&self, request: &R) -> Result<R::Verdict> {
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
    pub(in crate::store::redis) async fn call<P>(&self, mut items: Vec<Item<P>>) -> Result<()>
    where
        P: AsRef<CallContext> + Send + Sync + 'static,
    {
        // A request without a caller was never sent, so there is nothing to undo, and a release is sent again if it is
        // still needed.
        items.retain(|item| !item.is_given_up());
        if items.len() > 1 && items.iter().any(Item::is_apart) {
            let (apart, others) = items.into_iter().partition(Item::is_apart);
            items = others;
            apart.into_iter().for_each(Item::go_alone);
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
                items.into_iter().for_each(Item::go_alone);
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
        if items.iter().all(Item::is_of_several) {
            items.into_iter().for_each(Item::answer);
        } else {
            defer_to_driver(|| items.into_iter().for_each(Item::answer));
        }
        failure
    }

    /// Runs items as one call. Returns the instant before it was sent, the reply with one element per item, and whether
    /// enough replicas confirmed it.
    async fn run<P>(&self, items: &[Item<P>]) -> (Instant, Result<Vec<Element>>, Result<()>) {
        let (script, mut call) = match items {
            [one] => one.lone_call(&self.codec),
            _ => {
                let mut batch = Batch::of(items.len());
                items.iter().for_each(|item| item.write(&self.codec.keys, &mut batch));
                (&self.codec.scripts.batch, batch.finish(self.codec.replicas))
            }
        };
        call.divisible = true;
        let timeout = items.iter().map(Item::timeout).max().unwrap_or_default();
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

impl<R: Request, P> Waiting<R, P> {
    /// Returns a waiting request, and the future of its verdict.
    pub(in crate::store::redis) fn new(
        request: R,
        pending: P,
        of_several: bool,
    ) -> (Self, StoreFuture<R::Verdict>) {
        let (sender, verdict) = oneshot::channel();
        let verdict =
            Box::pin(
                async move { verdict.await.unwrap_or_else(|_| Err(reply::connection_closed())) },
            );
        (
            Self { request, of_several, reply_to: ReplyTo(Some(sender)), verdict: None, pending },
            verdict,
        )
    }

    fn read(&mut self, context: &CallContext, reply: ItemReply<'_>) {
        self.verdict = Some(context.read(&self.request, reply));
    }

    fn answer(self) {
        // Before the verdict: the caller may send its next request at once, and that one should count as alone.
        drop(self.pending);
        if let Some(verdict) = self.verdict {
            self.reply_to.send(verdict);
        }
    }

    /// Answers a request that was not sent.
    fn refuse(mut self, error: &Error) {
        self.verdict = Some(Err(error.clone()));
        self.answer();
    }
}

impl<R: Request, P: AsRef<CallContext> + Send + Sync + 'static> Waiting<R, P> {
    async fn alone(mut self) {
        self.verdict = Some(self.pending.as_ref().call_alone(&self.request).await);
        self.answer();
    }
}

impl<P: AsRef<CallContext> + Send + Sync + 'static> Item<P> {
    /// Sends the item in a call of its own, because one of the items of its batch cannot share a call. Only its caller
    /// waits for it, so it may take its whole time limit.
    fn go_alone(self) {
        match self {
            Item::Acquire(one) => drop(tokio::spawn(one.alone())),
            Item::AcquireAll(one) => drop(tokio::spawn(one.alone())),
            Item::Release(one) => drop(tokio::spawn(one.alone())),
        }
    }
}

impl<P> Item<P> {
    /// Returns whether the caller has gone.
    fn is_given_up(&self) -> bool {
        match self {
            Item::Acquire(one) => one.reply_to.is_closed(),
            Item::AcquireAll(one) => one.reply_to.is_closed(),
            Item::Release(one) => one.reply_to.is_closed(),
        }
    }

    /// Answers a request that was not sent.
    pub(super) fn refuse(self, error: &Error) {
        match self {
            Item::Acquire(one) => one.refuse(error),
            Item::AcquireAll(one) => one.refuse(error),
            Item::Release(one) => one.refuse(error),
        }
    }

    fn is_apart(&self) -> bool {
        match self {
            Item::Acquire(one) => one.request.is_apart(),
            Item::AcquireAll(one) => one.request.is_apart(),
            Item::Release(one) => one.request.is_apart(),
        }
    }

    fn is_of_several(&self) -> bool {
        match self {
            Item::Acquire(one) => one.of_several,
            Item::AcquireAll(one) => one.of_several,
            Item::Release(one) => one.of_several,
        }
    }

    fn timeout(&self) -> Duration {
        match self {
            Item::Acquire(one) => one.request.timeout(),
            Item::AcquireAll(one) => one.request.timeout(),
            Item::Release(one) => one.request.timeout(),
        }
    }

    fn lone_call(&self, codec: &Codec) -> (&'static Script, Call) {
        match self {
            Item::Acquire(one) => codec.lone_call(&one.request),
            Item::AcquireAll(one) => codec.lone_call(&one.request),
            Item::Release(one) => codec.lone_call(&one.request),
        }
    }

    fn write(&self, keys: &Keys, batch: &mut Batch) {
        match self {
            Item::Acquire(one) => one.request.write(keys, batch),
            Item::AcquireAll(one) => one.request.write(keys, batch),
            Item::Release(one) => one.request.write(keys, batch),
        }
    }

    fn read(&mut self, context: &CallContext, reply: ItemReply<'_>) {
        match self {
            Item::Acquire(one) => one.read(context, reply),
            Item::AcquireAll(one) => one.read(context, reply),
            Item::Release(one) => one.read(context, reply),
        }
    }

    fn answer(self) {
        match self {
            Item::Acquire(one) => one.answer(),
            Item::AcquireAll(one) => one.answer(),
            Item::Release(one) => one.answer(),
        }
    }
}
