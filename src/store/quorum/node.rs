//! One node, as one handle on the quorum sees it.
//!
//! Requests for a name go to a node one at a time, so that a release never overtakes the acquire that it undoes. A key of
//! this process that must be released is released before the name is acquired again. So its own keys never vote against
//! it.

use super::holds::Holds;
use super::queue::{NameQueues, bounded, timed_out};
use super::tally::Answers;
use crate::clock::{Clock, Instant};
use crate::error::{Error, ErrorKind, Fate, Result};
use crate::store::{
    Absence, Acquire, Acquired, HolderId, Name, Release, Released, RenewBatch, Renewed, Store,
    StoreFuture, Target,
};
use crate::trace;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{Mutex as AsyncMutex, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::Level;

/// A node of a quorum.
pub(super) struct Node {
    pub(super) index: usize,
    pub(super) store: Arc<dyn Store>,
    pub(super) clock: Clock,
    queues: Arc<NameQueues>,
    /// The number of requests for the age that were begun.
    asked: AtomicU64,
    age: AsyncMutex<Option<Age>>,
    closing: CancellationToken,
    /// Whether it did not answer the last acquire. Then the next one does not wait long for it.
    silent: AtomicBool,
    /// The id of its server when it was last requested.
    pub(super) server: Mutex<Option<String>>,
}

/// The age that a node reported: the `number`th answer, which came at `at`.
#[derive(Clone, Copy)]
struct Age {
    number: u64,
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
        let queues = Arc::new(NameQueues::new(Arc::clone(&store), clock.clone()));
        let (asked, age) = (AtomicU64::new(0), AsyncMutex::new(None));
        let (silent, server) = Default::default();
        Self { index, store, clock, queues, asked, age, closing, silent, server }
    }

    /// Returns the token of a hold at this node. Each node has its own, so that a server behind the addresses of two nodes
    /// grants only one of them, and votes once.
    pub(super) fn token(&self, token: HolderId) -> HolderId {
        token.at_node(u8::try_from(self.index + 1).unwrap_or(u8::MAX))
    }

    pub(super) fn is_silent(&self) -> bool {
        self.silent.load(Ordering::Relaxed)
    }

    /// Acquires a name here. Releases it unless the decision is to keep it.
    pub(super) async fn acquire(
        self: Arc<Self>,
        request: Acquire,
        sent: Instant,
        mut decision: Decision<bool>,
        answers: Answers<Acquired>,
    ) {
        let (name, token, limit) = (request.target.name.clone(), request.holder, request.timeout);
        let (ttl, until) = (request.ttl, sent + request.ttl);
        let mut head = self.queues.head(&name).await;
        head.flush(limit).await;
        if decision.borrow().is_some() || decision.has_changed().is_err() {
            return;
        }
        let own_left = head.owes();
        head.sending(token, until);
        let (verdict, late) = bounded(limit, self.store.acquire(request)).await;
        head.answered(token, &verdict);
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
        if head.find(token).is_none() {
            return;
        }
        let keep = decided(&mut decision).await == Some(true);
        if keep {
            head.keep(token);
        } else {
            let _ = head.release(token, limit).await;
        }
        drop(head);
        match late {
            Some(call) if keep => {
                let left = until.saturating_duration_since(self.clock.now());
                if let Ok(verdict) = timeout(left, call).await {
                    let mut head = self.queues.head(&name).await;
                    head.answered(token, &verdict);
                    head.keep(token);
                }
            }
            _ if keep => {}
            late => self.sweep(&name, token, (limit, ttl / 20), late).await,
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

    /// Releases a name; if `owed`, again and again until the node has confirmed it or the key has expired.
    pub(super) async fn release(
        self: Arc<Self>,
        request: Release,
        owed: Option<(Instant, Duration)>,
        answers: Answers<Released>,
    ) {
        let (name, token, limit) = (request.target.name, request.holder, request.timeout);
        let mut head = self.queues.head(&name).await;
        match owed {
            Some((until, _)) => head.owe(token, until),
            // The tokens of attempts that came to nothing.
            None => head.owe_all(token),
        }
        let verdict = head.release(token, limit).await;
        answers.send(self.index, verdict);
        if owed.is_none() {
            head.flush(limit).await;
        }
        drop(head);
        if let Some((_, ttl)) = owed {
            self.sweep(&name, token, (limit, ttl / 20), None).await;
        }
    }

    /// Releases a token again and again, also when a late answer grants it after all.
    async fn sweep(
        self: &Arc<Self>,
        name: &Name,
        token: HolderId,
        (limit, gap): (Duration, Duration),
        mut late: Option<StoreFuture<Acquired>>,
    ) {
        loop {
            match self.queues.head(name).await.find(token).map(|orphan| orphan.until) {
                None => return,
                Some(until) if until <= self.clock.now() => break,
                Some(_) => {}
            }
            let answer = async {
                match &mut late {
                    Some(call) => call.await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                verdict = answer => {
                    late = None;
                    self.queues.head(name).await.answered(token, &verdict);
                }
                () = sleep(gap.max(Duration::from_millis(1))) => {}
                () = self.closing.cancelled() => {}
            }
            let _ = self.queues.head(name).await.release(token, limit).await;
            if self.closing.is_cancelled() {
                return;
            }
        }
        self.queues.head(name).await.forget(token);
    }

    /// Renews the holds that are here. Makes those again that are gone here, but that a majority has.
    pub(super) async fn renew(
        self: Arc<Self>,
        (holds, batch, tokens): (Arc<Holds>, RenewBatch, Vec<HolderId>),
        (sent, limit): (Instant, Duration),
        mut decision: Decision<Arc<[bool]>>,
        answers: Answers<Vec<Result<Option<Absence>>>>,
    ) {
        let (ttl, count) = (batch.ttl, batch.items.len());
        let mut asked = RenewBatch { timeout: limit, ..batch.clone() };
        for (item, token) in asked.items.iter_mut().zip(tokens) {
            item.holder = self.token(token);
        }
        let (verdict, late) = bounded(limit, self.store.renew(asked)).await;
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
        (target, token, ttl): (Target, HolderId, Duration),
        limit: Duration,
    ) {
        let mut head = self.queues.head(&target.name).await;
        // A release that comes from here on waits behind this request.
        let Some(hold) = holds.living(token) else { return };
        let token = self.token(hold.token);
        let until = self.clock.now() + ttl;
        let request = Acquire::new(target, token, ttl, limit);
        head.sending(token, until);
        let verdict = bounded(limit, self.store.acquire(request.clone())).await.0;
        head.answered(token, &verdict);
        head.keep(token);
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
        let Age { at, age, .. } = timeout(limit, self.age_after(before, limit))
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

    /// Returns the answer to a request that was begun after the first `before` ones. Concurrent callers share one.
    async fn age_after(&self, before: u64, limit: Duration) -> Result<Age> {
        let mut last = self.age.lock().await;
        if let Some(age) = *last
            && age.number > before
        {
            return Ok(age);
        }
        let number = self.asked.fetch_add(1, Ordering::AcqRel) + 1;
        let age = self.store.age(limit).await?;
        Ok(*last.insert(Age { number, at: self.clock.now(), age }))
    }
}
