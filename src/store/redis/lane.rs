//! A lane of acquires and releases: what arrives while a call is in flight leaves as one call after it.
//!
//! A lone request is run in place, by whoever asks, so it costs what a bare call costs. All others are
//! run by the lane's own task, up to a hundred in a call, so they cost the client and the server less
//! than a command each. That task waits for nobody else: a caller who does not poll its request holds up
//! only itself.

use super::replies::{self, Element};
use super::requests::{REPLY_SIZE, Request, Wire};
use super::scripts::{BATCH, Call, Link};
use crate::clock::{Clock, Instant};
use crate::error::Result;
use crate::store::{Acquire, Acquired, Release, Released, StoreFuture};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

/// How many items one call carries: 100 keep the server's stall near a quarter of a millisecond.
pub(super) const BATCH_SIZE: usize = 100;

/// The entrance to a lane; the lane ends with the last of them.
#[derive(Clone)]
pub(super) struct Lane {
    road: Arc<Road>,
    items: mpsc::UnboundedSender<Item>,
    /// Fires when the lane's connection is closed, or its runtime has gone.
    ended: CancellationToken,
}

/// What a call needs.
struct Road {
    link: Link,
    wire: Wire,
    clock: Clock,
    /// Requests that have no answer yet.
    busy: AtomicUsize,
}

/// One request that waits for the lane's task.
enum Item {
    Acquire(Waiting<Acquire>),
    Release(Waiting<Release>),
}

struct Waiting<R: Request> {
    request: R,
    verdict: oneshot::Sender<Result<R::Verdict>>,
    _busy: Busy,
}

/// Counts as a request without an answer for as long as it lives.
struct Busy(Arc<Road>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Lane {
    /// A lane, and the work that must run on the runtime where the link's connection lives.
    pub(super) fn new(link: Link, wire: Wire, clock: Clock) -> (Self, impl Future<Output = ()>) {
        let (items, inbox) = mpsc::unbounded_channel();
        let ended = CancellationToken::new();
        let road = Arc::new(Road { link, wire, clock, busy: AtomicUsize::new(0) });
        let (lane_road, end) = (Arc::clone(&road), ended.clone().drop_guard());
        let work = async move {
            let _end = end;
            drive(&lane_road, inbox).await;
            lane_road.link.close().await;
        };
        (Self { road, items, ended }, work)
    }

    /// Whether nobody serves it any more.
    pub(super) fn is_closed(&self) -> bool {
        self.items.is_closed()
    }

    /// Gives up this entrance and waits for the end of the lane.
    pub(super) async fn close(self) {
        let ended = self.ended.clone();
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
        item: impl FnOnce(Waiting<R>) -> Item,
        here: bool,
    ) -> StoreFuture<R::Verdict> {
        let lone = self.road.busy.fetch_add(1, Ordering::AcqRel) == 0;
        let busy = Busy(Arc::clone(&self.road));
        if lone && here {
            return Box::pin(run_alone(request, busy, self.ended.clone()));
        }
        let (sender, verdict) = oneshot::channel();
        // If the lane has gone, the item goes with its sender, which tells the receiver.
        let _ = self.items.send(item(Waiting { request, verdict: sender, _busy: busy }));
        Box::pin(async move { verdict.await.unwrap_or_else(|_| Err(replies::gone())) })
    }
}

/// Runs a lone request in place. It may be moved to another runtime half way, and outlive its own.
async fn run_alone<R: Request>(
    request: R,
    busy: Busy,
    ended: CancellationToken,
) -> Result<R::Verdict> {
    let road = &busy.0;
    let mut call = Call::default();
    request.write(&road.wire.keys, &mut call);
    let sent = road.clock.now();
    tokio::select! {
        biased;
        () = ended.cancelled() => Err(replies::gone()),
        reply = road.link.run(&BATCH, &call, request.timeout()) => request.read(&road.wire, sent, &reply?),
    }
}

impl<R: Request> Waiting<R> {
    fn answer(self, verdict: impl FnOnce(&R) -> Result<R::Verdict>) {
        let verdict = verdict(&self.request);
        // A receiver that has gone has left the verdict to nobody: see Store's contract.
        drop(self.verdict.send(verdict));
    }
}

impl Item {
    /// Adds itself to a call; returns how long that may take.
    fn write(&self, wire: &Wire, call: &mut Call) -> Duration {
        fn write(request: &impl Request, wire: &Wire, call: &mut Call) -> Duration {
            request.write(&wire.keys, call);
            request.timeout()
        }
        match self {
            Item::Acquire(one) => write(&one.request, wire, call),
            Item::Release(one) => write(&one.request, wire, call),
        }
    }

    fn answer(self, wire: &Wire, sent: Instant, reply: Result<&[Element]>) {
        match self {
            Item::Acquire(one) => one.answer(|request| request.read(wire, sent, reply?)),
            Item::Release(one) => one.answer(|request| request.read(wire, sent, reply?)),
        }
    }
}

/// Sends what is in the lane: one call in flight, up to a hundred items in it.
async fn drive(road: &Road, mut inbox: mpsc::UnboundedReceiver<Item>) {
    let mut items = Vec::with_capacity(BATCH_SIZE);
    while inbox.recv_many(&mut items, BATCH_SIZE).await > 0 {
        // An acquire that nobody waits for was never sent: nothing is to be undone.
        items.retain(|item| !matches!(item, Item::Acquire(one) if one.verdict.is_closed()));
        if items.is_empty() {
            continue;
        }
        let mut call = Call::default();
        let timeouts = items.iter().map(|item| item.write(&road.wire, &mut call));
        let timeout = timeouts.max().unwrap_or_default();
        let sent = road.clock.now();
        let reply = match road.link.run(&BATCH, &call, timeout).await {
            Ok(reply) if reply.len() != items.len() * REPLY_SIZE => Err(replies::nonsense()),
            reply => reply,
        };
        for (index, item) in items.drain(..).enumerate() {
            let part = match &reply {
                Ok(reply) => Ok(&reply[index * REPLY_SIZE..][..REPLY_SIZE]),
                Err(error) => Err(error.clone()),
            };
            item.answer(&road.wire, sent, part);
        }
    }
}
