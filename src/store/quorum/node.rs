//! One node, as one handle on the quorum sees it.
//!
//! Requests for a name go to a node one at a time, so that a release never overtakes the acquire that it undoes. A key of
//! this process that must be released is released before the name is acquired again. So its own keys never vote against
//! it.

use super::holds::{Holds, Places};
use super::load::{Load, Permit, refused};
use super::queue::{NameQueues, bounded, timed_out};
use super::tally::Answers;
use crate::clock::{Clock, Instant};
use crate::error::{Error, ErrorKind, Fate, Result};
use crate::store::{
    Absence, Acquire, Acquired, HolderId, Release, Released, RenewBatch, Renewed, Store, Target,
};
use crate::sync::Mutex;
use crate::trace;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Mutex as AsyncMutex, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::Level;

/// A node of a quorum.
pub(super) struct Node {
    pub(super) index: usize,
    pub(super) store: Arc<dyn Store>,
    pub(super) clock: Clock,
    pub(super) queues: Arc<NameQueues>,
    pub(super) load: Arc<Load>,
    /// The number of requests for the age that were begun.
    asked: AtomicU64,
    /// The last answer, and the number of its request.
    age: AsyncMutex<(u64, Option<Result<Age>>)>,
    pub(super) closing: CancellationToken,
    /// Whether it did not answer the last acquire. Then the next one does not wait long for it.
    silent: AtomicBool,
    /// The id of its server when it was last requested.
    pub(super) server: Mutex<Option<String>>,
}

/// The age that a node reported at `at`.
#[derive(Clone, Copy)]
struct Age {
    at: Instant,
    /// `None` if the node never forgets.
    age: Option<Duration>,
}

/// The decision of the ballot, once it is made.
pub(super) type Decision<T> = watch::Receiver<Option<T>>;

async fn decided<T: Clone>(decision: &mut Decision<T>) -> Option<T> {
    // If the request was dropped, no decision comes.
    decision.wait_for(Option::is_some).await.ok().and_then(|decision| decision.clone())
}

impl Node {
    pub(super) fn new(
        index: usize,
        store: Arc<dyn Store>,
        clock: Clock,
        closing: CancellationToken,
    ) -> Self {
        let load = Arc::default();
        let queues = NameQueues::new(Arc::clone(&store), clock.clone(), Arc::clone(&load));
        let queues = Arc::new(queues);
        let (asked, age, silent, server) = Default::default();
        Self { index, store, clock, queues, load, asked, age, closing, silent, server }
    }

    /// Returns the holder id of a hold at this node. Each node has its own, so that a server behind the addresses of two
    /// nodes grants only one of them, and votes once.
    pub(super) fn holder_id(&self, holder: HolderId) -> HolderId {
        holder.at_node(u8::try_from(self.index + 1).unwrap_or(u8::MAX))
    }

    pub(super) fn is_silent(&self) -> bool {
        self.silent.load(Ordering::Relaxed)
    }

    fn refuses(&self, limit: Duration) -> bool {
        self.load.refuses(self.clock.now(), limit)
    }

    /// Acquires a name here. Releases it unless the decision is to keep it.
    pub(super) async fn acquire(
        self: Arc<Self>,
        request: Acquire,
        (sent, places): (Instant, Places),
        decision: Decision<bool>,
        answers: Answers<Acquired>,
    ) {
        let limit = request.timeout;
        match self.load.admit(self.clock.now(), limit) {
            Some(permit) => {
                self.ask(&request, (sent, places, permit), decision, answers).await;
            }
            None => {
                self.silent.store(true, Ordering::Relaxed);
                answers.send(self.index, Err(refused()));
            }
        }
        self.sweep(limit).await;
    }

    /// Acquires a name here when its turn comes, unless the decision was made by then.
    async fn ask(
        &self,
        request: &Acquire,
        (sent, places, permit): (Instant, Places, Permit),
        mut decision: Decision<bool>,
        answers: Answers<Acquired>,
    ) {
        let (name, holder, limit) = (&request.target.name, request.holder, request.timeout);
        let ttl = request.ttl;
        let over = |decision: &Decision<bool>| {
            decision.borrow().is_some() || decision.has_changed().is_err()
        };
        let mut head = self.queues.head(name).await;
        if over(&decision) {
            return;
        }
        head.flush(limit).await;
        if over(&decision) {
            return;
        }
        let own_left = head.owes();
        head.sending(holder, sent, ttl);
        head.keep_open(holder, permit);
        let (verdict, late) = head.acquire(request).await;
        head.answered(holder, &verdict);
        if head.find(holder).is_some() {
            places.add(self.index);
        }
        let vote = match verdict {
            Ok(Acquired::Granted { .. }) => self.check_uptime(ttl, sent, limit).await.and(verdict),
            Ok(Acquired::Held { .. }) if own_left => {
                let message = "an earlier key of our own may still be there";
                Err(Error::new(ErrorKind::Unavailable, message).with_fate(Fate::NotExecuted))
            }
            verdict => verdict,
        };
        let silent = vote.as_ref().is_err_and(Error::is_unavailable);
        self.silent.store(silent, Ordering::Relaxed);
        answers.send(self.index, vote);
        if head.find(holder).is_none() {
            return;
        }
        if decided(&mut decision).await == Some(true) {
            head.keep(holder);
        } else if !self.refuses(limit) {
            let _ = head.release(holder, limit).await;
        }
        drop(head);
        // A call that does not keep its time limit is given up in the end. Its holder id is swept.
        if let Some(call) = late
            && let Ok(verdict) = timeout(limit, call).await
        {
            let mut head = self.queues.head(name).await;
            head.answered(holder, &verdict);
            match head.find(holder).map(|orphan| orphan.owed) {
                Some(true) => _ = head.release(holder, limit).await,
                Some(false) => head.keep(holder),
                None => {}
            }
        }
    }

    /// Acquires a name here re-entrantly. Never makes a key.
    pub(super) async fn reacquire(
        self: Arc<Self>,
        request: Acquire,
        sent: Instant,
        answers: Answers<Acquired>,
    ) {
        let (ttl, limit) = (request.ttl, request.timeout);
        let vote = match bounded(limit, self.store.acquire(request)).await.0 {
            Ok(granted @ Acquired::Granted { .. }) => {
                self.check_uptime(ttl, sent, limit).await.map(|()| granted)
            }
            verdict => verdict,
        };
        answers.send(self.index, vote);
    }

    /// Lowers the hold count here.
    pub(super) async fn record(self: Arc<Self>, request: Release, answers: Answers<Released>) {
        let verdict = bounded(request.timeout, self.store.release(request)).await.0;
        answers.send(self.index, verdict);
    }

    /// Releases a name. `owed` is set for a hold: when its key has surely expired, and where it may be. Then it is released
    /// again and again until the node has confirmed it or the key has expired.
    pub(super) async fn release(
        self: Arc<Self>,
        request: Release,
        owed: Option<(Instant, Places)>,
        answers: Answers<Released>,
    ) {
        let (name, holder, limit) = (request.target.name, request.holder, request.timeout);
        let mut head = self.queues.head(&name).await;
        let is_hold = owed.is_some();
        match owed {
            Some((_, places)) if !places.contain(self.index) && head.find(holder).is_none() => {
                // It never got there.
                return answers.send(self.index, Ok(Released::NotYours(Absence::Gone)));
            }
            Some((until, _)) => head.owe(holder, until),
            // The holder ids of attempts that came to nothing.
            None => head.owe_all(holder),
        }
        if self.refuses(limit) {
            answers.send(self.index, Err(refused()));
        } else {
            answers.send(self.index, head.release(holder, limit).await);
            if !is_hold {
                head.flush(limit).await;
            }
        }
        drop(head);
        self.sweep(limit).await;
    }

    /// Renews the holds that are here. Makes those again that are gone here, but that a majority has.
    pub(super) async fn renew(
        self: Arc<Self>,
        (holds, batch, holders): (Arc<Holds>, RenewBatch, Vec<HolderId>),
        (sent, limit): (Instant, Duration),
        mut decision: Decision<Arc<[bool]>>,
        answers: Answers<Vec<Result<Option<Absence>>>>,
    ) {
        let (ttl, count) = (batch.ttl, batch.items.len());
        let mut asked = RenewBatch { timeout: limit, ..batch.clone() };
        for (item, holder) in asked.items.iter_mut().zip(holders) {
            item.holder = self.holder_id(holder);
        }
        let (verdict, late) = bounded(limit, self.store.renew(asked)).await;
        if let Ok(Renewed { verdicts, .. }) = &verdict {
            verdicts.iter().for_each(|verdict| self.load.answered(verdict));
        }
        let verdicts = self.renewal_votes(verdict, count, (ttl, sent, limit)).await;
        answers.send(self.index, verdicts.clone());
        let verdicts = match late {
            // This is too late for the vote, but not for making keys again.
            Some(call) => {
                self.renewal_votes(bounded(limit, call).await.0, count, (ttl, sent, limit)).await
            }
            None => verdicts,
        };
        let Ok(verdicts) = verdicts else { return };
        let Some(renewed) = decided(&mut decision).await else { return };
        let mut heals = JoinSet::new();
        for ((item, verdict), renewed) in batch.items.into_iter().zip(verdicts).zip(renewed.iter())
        {
            if *renewed && matches!(verdict, Ok(Some(Absence::Gone))) {
                let lost = (item.target, item.holder, ttl);
                heals.spawn(Arc::clone(&self).heal(Arc::clone(&holds), lost, limit));
            }
        }
        while heals.join_next().await.is_some() {}
        self.sweep(limit).await;
    }

    /// Returns the verdicts of this node. Renewals count only if its uptime is sufficient.
    async fn renewal_votes(
        &self,
        verdict: Result<Renewed>,
        count: usize,
        (ttl, sent, limit): (Duration, Instant, Duration),
    ) -> Result<Vec<Result<Option<Absence>>>> {
        let mut verdicts = verdict?.verdicts;
        if verdicts.len() != count {
            return Err(Error::protocol("answered for a different number of leases"));
        }
        if verdicts.iter().any(|verdict| matches!(verdict, Ok(None)))
            && let Err(error) = self.check_uptime(ttl, sent, limit).await
        {
            for verdict in &mut verdicts {
                if let Ok(None) = verdict {
                    *verdict = Err(error.clone());
                }
            }
        }
        Ok(verdicts)
    }

    /// Makes the key of a living hold again, where there is none.
    async fn heal(
        self: Arc<Self>,
        holds: Arc<Holds>,
        (target, holder, ttl): (Target, HolderId, Duration),
        limit: Duration,
    ) {
        let mut head = self.queues.head(&target.name).await;
        // A release that comes from here on waits behind this request.
        let Some(hold) = holds.living(holder) else { return };
        let holder = self.holder_id(hold.holder);
        let request = Acquire::new(target, holder, ttl, limit);
        hold.places.add(self.index);
        head.sending(holder, self.clock.now(), ttl);
        let verdict = head.acquire(&request).await.0;
        head.answered(holder, &verdict);
        head.keep(holder);
        trace::later(Level::DEBUG, || {
            let (node, verdict) = (self.index + 1, verdict.clone());
            move || tracing::debug!(node, ?verdict, "made again")
        });
        if matches!(verdict, Ok(Acquired::Granted { .. })) && hold.count > 1 {
            let request = Acquire { count: hold.count, ..request };
            let _ = bounded(limit, self.store.acquire(request)).await;
        }
    }

    /// Returns an error if the node may have forgotten a key that it had `ttl` before `sent`, or later. Call this after the
    /// operation that is to be counted.
    async fn check_uptime(&self, ttl: Duration, sent: Instant, limit: Duration) -> Result<()> {
        let before = self.asked.load(Ordering::Acquire);
        let Age { at, age } = timeout(limit, self.age_after(before, limit))
            .await
            .unwrap_or_else(|_| Err(timed_out()))?;
        let needed = ttl + at.saturating_duration_since(sent);
        match age {
            Some(age) if age < needed => Err(Error::new(
                ErrorKind::Unavailable,
                format!("up for {age:?} only; it counts after the time to live, {ttl:?}"),
            )
            .with_fate(Fate::Executed)),
            _ => Ok(()),
        }
    }

    /// Returns the answer to a request that was begun after the first `before` ones. Concurrent callers share one, also if
    /// it is an error.
    async fn age_after(&self, before: u64, limit: Duration) -> Result<Age> {
        let mut last = self.age.lock().await;
        if let (number, Some(age)) = &*last
            && *number > before
        {
            return age.clone();
        }
        let number = self.asked.fetch_add(1, Ordering::AcqRel) + 1;
        let age = self.store.age(limit).await.map(|age| Age { at: self.clock.now(), age });
        *last = (number, Some(age.clone()));
        age
    }
}
