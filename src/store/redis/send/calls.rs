//! The calls of batchers: their items, their replies, and the verdicts.

use super::defer::defer_to_driver;
use crate::clock::{Clock, Instant};
use crate::error::{Error, Fate, Result};
use crate::store::StoreFuture;
use crate::store::redis::link::errors::is_unsent;
use crate::store::redis::scripts::keys::Keys;
use crate::store::redis::scripts::lock::{Batch, Codec, Request, confirmed};
use crate::store::redis::scripts::reply::{self, Element};
use crate::store::redis::scripts::{Call, Script};
use crate::store::redis::topology::Connection;
use crate::util::panics::run_wakers;
use std::future::{Future, poll_fn};
use std::pin::pin;
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

    /// Returns the slot of a request, as [`Connection::slot`] does.
    pub(super) fn slot(&self, request: &impl Request) -> u16 {
        self.connection.slot(self.codec.keys.lock(request.name()))
    }
}

/// A request that waits to be sent with others.
pub(super) type Item = Box<dyn Queued>;

// One implementor: it has the verdict of a request, of which there are several.
/// What a call does with each of its items.
pub(super) trait Queued: Send + Sync {
    /// Returns whether the caller has gone.
    fn is_given_up(&self) -> bool;
    fn is_apart(&self) -> bool;
    fn is_of_several(&self) -> bool;
    fn timeout(&self) -> Duration;
    fn lone_call(&self, codec: &Codec) -> (&'static Script, Call);
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

/// A request, and where its verdict goes. `P` counts it as pending for as long as it lives.
pub(super) struct Waiting<R: Request, P> {
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
pub(super) struct ItemReply<'a> {
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
    pub(super) async fn call(&self, mut items: Vec<Item>) -> Result<()> {
        // A request without a caller was never sent, so there is nothing to undo, and a release is sent again if it is
        // still needed.
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

impl<R: Request, P: AsRef<CallContext> + Send + Sync + 'static> Waiting<R, P> {
    /// Returns a waiting request, and the future of its verdict.
    pub(super) fn new(request: R, pending: P, of_several: bool) -> (Item, StoreFuture<R::Verdict>) {
        let (sender, verdict) = oneshot::channel();
        let reply_to = ReplyTo(Some(sender));
        let verdict =
            async move { verdict.await.unwrap_or_else(|_| Err(reply::connection_closed())) };
        let item = Self { request, of_several, reply_to, verdict: None, pending };
        (Box::new(item), Box::pin(verdict))
    }
}

impl<R: Request, P: AsRef<CallContext> + Send + Sync + 'static> Queued for Waiting<R, P> {
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

    fn lone_call(&self, codec: &Codec) -> (&'static Script, Call) {
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
            self.verdict = Some(self.pending.as_ref().call_alone(&self.request).await);
            self.answer();
        });
    }
}
