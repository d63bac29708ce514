//! The lane of acquires and releases: one call in flight, what arrives meanwhile leaves as the next.
//!
//! A lone request never waits, so it costs what a bare call costs; many share a call, so they cost
//! the client and the server less than a command each.

use super::keys::Keys;
use super::replies::{self, Code, Element};
use super::scripts::{BATCH, Call, Link};
use crate::clock::{Clock, Instant};
use crate::error::{Error, Result};
use crate::store::{Acquire, Acquired, Release, Released, Renewal, StoreFuture};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// How many items one call carries: 100 keep the server's stall near a quarter of a millisecond.
pub(super) const BATCH_SIZE: usize = 100;

/// The entrance to the lane; the lane ends with it.
pub(super) struct Lane(mpsc::UnboundedSender<Item>);

/// One request in the lane.
enum Item {
    Acquire(Acquire, oneshot::Sender<Result<Acquired>>),
    Release(Release, oneshot::Sender<Result<Released>>),
}

impl Lane {
    /// Starts the lane on the current runtime.
    pub(super) fn start(link: Link, keys: Keys, clock: Clock) -> Self {
        let (lane, inbox) = mpsc::unbounded_channel();
        tokio::spawn(drive(link, keys, clock, inbox));
        Self(lane)
    }

    pub(super) fn acquire(&self, request: Acquire) -> StoreFuture<Acquired> {
        self.send(|sender| Item::Acquire(request, sender))
    }

    pub(super) fn release(&self, request: Release) -> StoreFuture<Released> {
        self.send(|sender| Item::Release(request, sender))
    }

    fn send<T: Send + 'static>(
        &self,
        item: impl FnOnce(oneshot::Sender<Result<T>>) -> Item,
    ) -> StoreFuture<T> {
        let (sender, verdict) = oneshot::channel();
        // If the lane has gone, the item goes with its sender, which tells the receiver.
        let _ = self.0.send(item(sender));
        Box::pin(async move { verdict.await.unwrap_or_else(|_| Err(replies::gone())) })
    }
}

/// Sends what is in the lane: one call in flight, up to a hundred items in it.
async fn drive(link: Link, keys: Keys, clock: Clock, mut inbox: mpsc::UnboundedReceiver<Item>) {
    let mut items = Vec::with_capacity(BATCH_SIZE);
    while inbox.recv_many(&mut items, BATCH_SIZE).await > 0 {
        // An acquire that nobody waits for was never sent: nothing is to be undone.
        items.retain(|item| !matches!(item, Item::Acquire(_, sender) if sender.is_closed()));
        let timeout = items.iter().map(Item::timeout).max().unwrap_or_default();
        let call = batch(&keys, &items);
        if items.is_empty() {
            continue;
        }
        let sent = clock.now();
        match link.run(&BATCH, &call, timeout).await {
            Ok(reply) if reply.len() == items.len() * 2 => {
                for (item, reply) in items.drain(..).zip(reply.chunks(2)) {
                    item.answer(sent, reply);
                }
            }
            Ok(_) => items.drain(..).for_each(|item| item.fail(replies::nonsense())),
            Err(error) => items.drain(..).for_each(|item| item.fail(error.clone())),
        }
    }
}

impl Item {
    fn timeout(&self) -> Duration {
        match self {
            Item::Acquire(request, _) => request.timeout,
            Item::Release(request, _) => request.timeout,
        }
    }

    fn answer(self, sent: Instant, reply: &[Element]) {
        // A receiver that has gone has left the verdict to nobody: see Store's contract.
        match self {
            Item::Acquire(request, sender) => drop(sender.send(acquired(&request, sent, reply))),
            Item::Release(_, sender) => drop(sender.send(released(reply))),
        }
    }

    fn fail(self, error: Error) {
        match self {
            Item::Acquire(_, sender) => drop(sender.send(Err(error))),
            Item::Release(_, sender) => drop(sender.send(Err(error))),
        }
    }
}

fn acquired(request: &Acquire, sent: Instant, reply: &[Element]) -> Result<Acquired> {
    let [code, value] = reply else {
        return Err(replies::nonsense());
    };
    let code = code.code()?;
    let value = value.int()?;
    match code {
        Code::Yes => {
            let fence = u64::try_from(value).map_err(|_| replies::nonsense())?;
            let fence = request.fencing.is_some().then_some(fence);
            Ok(Acquired::Granted { sent, fence })
        }
        Code::No => Ok(Acquired::Held { remaining: replies::remaining(value) }),
        Code::Absent(absence) => Ok(Acquired::NotYours(absence)),
    }
}

fn released(reply: &[Element]) -> Result<Released> {
    let [code, value] = reply else {
        return Err(replies::nonsense());
    };
    match (code.code()?, value.int()?) {
        (Code::Yes, listeners) => {
            if listeners < 0 {
                tracing::warn!(
                    "the server refused to wake waiters; check the channel rights of its ACL"
                );
            }
            Ok(Released::Done { listeners: u64::try_from(listeners).unwrap_or_default() })
        }
        (Code::Absent(absence), _) => Ok(Released::NotYours(absence)),
        (Code::No, _) => Err(replies::nonsense()),
    }
}

fn batch(keys: &Keys, items: &[Item]) -> Call {
    let mut call = Call::default();
    for item in items {
        match item {
            Item::Acquire(request, _) => {
                call.key(keys.lock(&request.name));
                call.key(keys.fence(&request.name));
                call.word("A");
                call.text(request.token.to_string());
                call.number(millis(request.ttl));
                call.number(request.count.into());
                call.number(request.fencing.map_or(0, |fencing| fencing.block.into()));
                call.number(
                    request.fencing.and_then(|fencing| fencing.retention).map_or(0, millis),
                );
            }
            Item::Release(request, _) => {
                call.key(keys.lock(&request.name));
                call.word("R");
                call.text(request.token.to_string());
                call.number(request.count.into());
                call.text(keys.channel(&request.name));
            }
        }
    }
    call
}

pub(super) fn renewal(keys: &Keys, batch: &[Renewal]) -> Call {
    let mut call = Call::default();
    call.number(batch.first().map_or(0, |renewal| millis(renewal.ttl)));
    for renewal in batch {
        call.key(keys.lock(&renewal.name));
        if renewal.fence_retention.is_some() {
            call.key(keys.fence(&renewal.name));
        }
        call.text(renewal.token.to_string());
        call.number(renewal.fence_retention.map_or(0, millis));
    }
    call
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
