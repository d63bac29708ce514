//! The calls of lanes: what they carry, and what becomes of it.

use super::keys::Keys;
use super::link::{Link, is_unsent};
use super::replies::{self, Element};
use super::requests::{Batch, Request, Wire, confirmed};
use super::turn::at_the_turn;
use crate::clock::{Clock, Instant};
use crate::error::{Error, Fate, Result};
use crate::store::{Acquire, Release, StoreFuture};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

/// How many items one call carries: 100 keep the server's stall near a quarter of a millisecond.
pub(super) const BATCH_SIZE: usize = 100;

/// What a call needs.
pub(super) struct Lines {
    pub(super) link: Link,
    pub(super) wire: Wire,
    clock: Clock,
    /// Fires when the connection is closed, or its runtime has gone.
    pub(super) ended: CancellationToken,
}

impl Lines {
    pub(super) fn new(link: Link, wire: Wire, clock: Clock) -> Self {
        Self { link, wire, clock, ended: CancellationToken::new() }
    }
}

/// One request that waits for the lane's task; `B` counts it for as long as it lives.
pub(super) enum Item<B> {
    Acquire(Waiting<Acquire, B>),
    Release(Waiting<Release, B>),
}

pub(super) struct Waiting<R: Request, B> {
    request: R,
    asker: oneshot::Sender<Result<R::Verdict>>,
    verdict: Option<Result<R::Verdict>>,
    busy: B,
}

/// What the server said to one item of a call.
struct Said<'a> {
    sent: Instant,
    reply: Result<&'a Element>,
    /// Whether enough replicas have what the call did.
    confirmed: &'a Result<()>,
}

/// What a reply says to one item.
fn part(reply: &Result<Vec<Element>>, index: usize) -> Result<&Element> {
    reply.as_ref().map_err(Error::clone)?.get(index).ok_or_else(replies::nonsense)
}

/// A future in a box, written where it stays: one of a call takes six kilobytes, which `Box::pin` copies.
pub(super) fn in_place<F: Future>(make: impl FnOnce() -> F) -> Pin<Box<F>> {
    Box::into_pin(Box::write(Box::new_uninit(), make()))
}

/// Runs a lone request in place. It may be moved to another runtime half way, and outlive its own. `busy`
/// counts it.
pub(super) async fn run_alone<R: Request>(
    request: R,
    busy: impl AsRef<Lines>,
) -> Result<R::Verdict> {
    let lines = busy.as_ref();
    let mut call = pin!(lines.call_alone(&request));
    // Not polled when its runtime has gone, and its timers with it. To wait for the end costs as much as a timer;
    // the client's own end, which wakes us, comes with it.
    poll_fn(|context| match lines.ended.is_cancelled() {
        true => Poll::Ready(Err(replies::gone())),
        false => call.as_mut().poll(context),
    })
    .await
}

impl Lines {
    pub(super) async fn call_alone<R: Request>(&self, request: &R) -> Result<R::Verdict> {
        let mut batch = Batch::of(1);
        batch.add(request, &self.wire.keys);
        let (call, timeout) = batch.finish(&self.wire);
        let (sent, wait) = (self.clock.now(), call.wait);
        let mut reply = self.link.run(&self.wire.scripts.batch, call, timeout).await?;
        let confirmed = confirmed(wait, &mut reply);
        let [reply] = &reply[..] else { return Err(replies::nonsense()) };
        self.read(request, Said { sent, reply: Ok(reply), confirmed: &confirmed })
    }

    fn read<R: Request>(&self, request: &R, said: Said<'_>) -> Result<R::Verdict> {
        let verdict = request.read(&self.wire, said.sent, said.reply?)?;
        match said.confirmed {
            Ok(()) => Ok(verdict),
            Err(error) => request.unconfirmed(verdict, error),
        }
    }

    /// Sends what waited, as one call, and passes the answers on. An error says that the call did not run and
    /// why: what came meanwhile would not fare better.
    pub(super) async fn call<B>(&self, mut items: Vec<Item<B>>) -> Result<()>
    where
        B: AsRef<Lines> + Send + Sync + 'static,
    {
        // What nobody waits for was never sent: nothing is to be undone, and a release is asked for again by
        // those who still want it.
        items.retain(|item| !item.is_given_up());
        if items.is_empty() {
            return Ok(());
        }
        let (sent, reply, confirmed) = self.run(&items).await;
        let failure = match &reply {
            Err(error)
                if self.link.is_split(error)
                    || items.len() > 1 && replies::is_key_out_of_reach(error) =>
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
        for (index, item) in items.iter_mut().enumerate() {
            let reply = part(&reply, index);
            item.read(self, Said { sent, reply, confirmed: &confirmed });
        }
        at_the_turn(|| items.into_iter().for_each(Item::answer));
        failure
    }

    /// Runs items as one call: when it was sent, the reply with all its elements, and whether enough
    /// replicas have it.
    async fn run<B>(&self, items: &[Item<B>]) -> (Instant, Result<Vec<Element>>, Result<()>) {
        let mut batch = Batch::of(items.len());
        items.iter().for_each(|item| item.write(&self.wire.keys, &mut batch));
        let (mut call, timeout) = batch.finish(&self.wire);
        call.divisible = true;
        let (sent, wait) = (self.clock.now(), call.wait);
        let mut reply = self.link.run(&self.wire.scripts.batch, call, timeout).await;
        let confirmed = match &mut reply {
            Ok(reply) => confirmed(wait, reply),
            Err(_) => Ok(()),
        };
        let reply = match reply {
            Ok(reply) if reply.len() != items.len() => Err(replies::nonsense()),
            reply => reply,
        };
        (sent, reply, confirmed)
    }
}

impl<R: Request, B> Waiting<R, B> {
    /// A request that waits, and what is to become of it.
    pub(super) fn new(request: R, busy: B) -> (Self, StoreFuture<R::Verdict>) {
        let (asker, verdict) = oneshot::channel();
        let verdict =
            Box::pin(async move { verdict.await.unwrap_or_else(|_| Err(replies::gone())) });
        (Self { request, asker, verdict: None, busy }, verdict)
    }

    fn read(&mut self, lines: &Lines, said: Said<'_>) {
        self.verdict = Some(lines.read(&self.request, said));
    }

    fn answer(self) {
        // Who is answered may ask again at once, and alone.
        drop(self.busy);
        if let Some(verdict) = self.verdict {
            // A receiver that has gone has left the verdict to nobody: see Store's contract.
            drop(self.asker.send(verdict));
        }
    }

    /// Answers without having been sent.
    fn refuse(mut self, error: &Error) {
        self.verdict = Some(Err(error.clone()));
        self.answer();
    }
}

impl<R: Request, B: AsRef<Lines> + Send + Sync + 'static> Waiting<R, B> {
    async fn alone(mut self) {
        self.verdict = Some(self.busy.as_ref().call_alone(&self.request).await);
        self.answer();
    }
}

impl<B: AsRef<Lines> + Send + Sync + 'static> Item<B> {
    /// Has a call of its own, since one of those that it was with cannot be in a call with others. Nobody waits
    /// for it but its asker: it may take as long as it is given.
    fn go_alone(self) {
        match self {
            Item::Acquire(one) => drop(tokio::spawn(one.alone())),
            Item::Release(one) => drop(tokio::spawn(one.alone())),
        }
    }
}

impl<B> Item<B> {
    /// Whether nobody waits for its answer any more.
    fn is_given_up(&self) -> bool {
        match self {
            Item::Acquire(one) => one.asker.is_closed(),
            Item::Release(one) => one.asker.is_closed(),
        }
    }

    /// Answers without having been sent.
    pub(super) fn refuse(self, error: &Error) {
        match self {
            Item::Acquire(one) => one.refuse(error),
            Item::Release(one) => one.refuse(error),
        }
    }

    fn write(&self, keys: &Keys, batch: &mut Batch) {
        match self {
            Item::Acquire(one) => batch.add(&one.request, keys),
            Item::Release(one) => batch.add(&one.request, keys),
        }
    }

    fn read(&mut self, lines: &Lines, said: Said<'_>) {
        match self {
            Item::Acquire(one) => one.read(lines, said),
            Item::Release(one) => one.read(lines, said),
        }
    }

    fn answer(self) {
        match self {
            Item::Acquire(one) => one.answer(),
            Item::Release(one) => one.answer(),
        }
    }
}
