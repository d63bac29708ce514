//! One node, as one handle on the quorum knows it.
//!
//! What is sent to a node for one name goes in line, so that a release never overtakes the acquire that
//! it undoes, and an own key that is still to be released is released before the name is asked for again:
//! own keys never vote against oneself.

use super::holds::Holds;
use super::place::{Lines, bounded, silent};
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

pub(super) struct Node {
    pub(super) index: usize,
    pub(super) store: Arc<dyn Store>,
    pub(super) clock: Clock,
    pub(super) lines: Lines,
    /// How many questions for the age were begun.
    asked: AtomicU64,
    age: AsyncMutex<Option<Age>>,
    closing: CancellationToken,
    /// Its last answer to an acquire was none; nobody waits long for the next.
    silent: AtomicBool,
    /// The id of its server when it was asked last.
    pub(super) server: Mutex<Option<String>>,
}

/// What a node said of its age: the `number`th answer, which came at `at`.
#[derive(Clone, Copy)]
struct Age {
    number: u64,
    at: Instant,
    /// `None`: it never forgets.
    age: Option<Duration>,
}

/// What the others of the round made of it.
pub(super) type Decision<T> = watch::Receiver<Option<T>>;

async fn decided<T: Clone>(decision: &mut Decision<T>) -> Option<T> {
    // Whoever was to decide may be gone.
    decision.wait_for(Option::is_some).await.ok().and_then(|decision| decision.clone())
}

impl Node {
    pub(super) fn new(
        index: usize,
        store: Arc<dyn Store>,
        clock: Clock,
        closing: CancellationToken,
    ) -> Self {
        let (lines, asked, age) = (Lines::default(), AtomicU64::new(0), AsyncMutex::new(None));
        let (silent, server) = Default::default();
        Self { index, store, clock, lines, asked, age, closing, silent, server }
    }

    /// The token of a hold at this node. Each node has its own: a server that the addresses of two nodes lead to
    /// has it from one of them, and votes once.
    pub(super) fn token(&self, token: HolderId) -> HolderId {
        token.at_node(u8::try_from(self.index + 1).unwrap_or(u8::MAX))
    }

    pub(super) fn is_silent(&self) -> bool {
        self.silent.load(Ordering::Relaxed)
    }

    /// Takes a name here, and gives it back unless the decision is to keep it.
    pub(super) async fn acquire(
        self: Arc<Self>,
        request: Acquire,
        sent: Instant,
        mut decision: Decision<bool>,
        answers: Answers<Acquired>,
    ) {
        let (name, token, limit) = (request.target.name.clone(), request.holder, request.timeout);
        let (ttl, until) = (request.ttl, sent + request.ttl);
        let mut place = self.place(&name).await;
        place.flush(limit).await;
        if decision.borrow().is_some() || decision.has_changed().is_err() {
            return;
        }
        let own_left = place.owes();
        place.sending(token, until);
        let (verdict, late) = bounded(limit, self.store.acquire(request)).await;
        place.answered(token, &verdict);
        let vote = match verdict {
            Ok(Acquired::Granted { .. }) => self.remembers(ttl, sent, limit).await.and(verdict),
            Ok(Acquired::Held { .. }) if own_left => {
                let message = "an earlier key of our own may still be there";
                Err(Error::new(ErrorKind::Unavailable, message).with_fate(Fate::NotExecuted))
            }
            verdict => verdict,
        };
        let silent = vote.as_ref().is_err_and(Error::is_unavailable);
        self.silent.store(silent, Ordering::Relaxed);
        answers.give(self.index, vote);
        if place.find(token).is_none() {
            return;
        }
        let keep = decided(&mut decision).await == Some(true);
        if keep {
            place.keep(token);
        } else {
            let _ = place.release(token, limit).await;
        }
        drop(place);
        match late {
            Some(call) if keep => {
                let left = until.saturating_duration_since(self.clock.now());
                if let Ok(verdict) = timeout(left, call).await {
                    let mut place = self.place(&name).await;
                    place.answered(token, &verdict);
                    place.keep(token);
                }
            }
            _ if keep => {}
            late => self.sweep(&name, token, (limit, ttl / 20), late).await,
        }
    }

    /// Enters a name here once more; never makes a key.
    pub(super) async fn enter(
        self: Arc<Self>,
        request: Acquire,
        sent: Instant,
        answers: Answers<Acquired>,
    ) {
        let (ttl, limit) = (request.ttl, request.timeout);
        let vote = match bounded(limit, self.store.acquire(request)).await.0 {
            Ok(granted @ Acquired::Granted { .. }) => {
                self.remembers(ttl, sent, limit).await.map(|()| granted)
            }
            verdict => verdict,
        };
        answers.give(self.index, vote);
    }

    /// Lowers the count of a hold.
    pub(super) async fn record(self: Arc<Self>, request: Release, answers: Answers<Released>) {
        let verdict = bounded(request.timeout, self.store.release(request)).await.0;
        answers.give(self.index, verdict);
    }

    /// Gives a name back; if `owed`, until the node has confirmed it or the key has expired.
    pub(super) async fn release(
        self: Arc<Self>,
        request: Release,
        owed: Option<(Instant, Duration)>,
        answers: Answers<Released>,
    ) {
        let (name, token, limit) = (request.target.name, request.holder, request.timeout);
        let mut place = self.place(&name).await;
        match owed {
            Some((until, _)) => place.owe(token, until),
            // What was taken for it in vain.
            None => place.owe_all(token),
        }
        let verdict = place.release(token, limit).await;
        answers.give(self.index, verdict);
        if owed.is_none() {
            place.flush(limit).await;
        }
        drop(place);
        if let Some((_, ttl)) = owed {
            self.sweep(&name, token, (limit, ttl / 20), None).await;
        }
    }

    /// Releases a token again and again, also when a late answer says that it is there after all.
    async fn sweep(
        self: &Arc<Self>,
        name: &Name,
        token: HolderId,
        (limit, gap): (Duration, Duration),
        mut late: Option<StoreFuture<Acquired>>,
    ) {
        loop {
            match self.place(name).await.find(token).map(|leftover| leftover.until) {
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
                    self.place(name).await.answered(token, &verdict);
                }
                () = sleep(gap.max(Duration::from_millis(1))) => {}
                () = self.closing.cancelled() => {}
            }
            let _ = self.place(name).await.release(token, limit).await;
            if self.closing.is_cancelled() {
                return;
            }
        }
        self.place(name).await.forget(token);
    }

    /// Renews what is here; what is not, though the others have it, is made again.
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
        let verdicts = self.weigh(verdict, count, (ttl, sent, limit)).await;
        answers.give(self.index, verdicts.clone());
        let verdicts = match late {
            // Too late for the vote, not for what is to be made again.
            Some(call) => self.weigh(bounded(limit, call).await.0, count, (ttl, sent, limit)).await,
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

    /// Renewals count only at a node that remembers.
    async fn weigh(
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
            && let Err(error) = self.remembers(ttl, sent, limit).await
        {
            for verdict in &mut verdicts {
                if let Ok(None) = verdict {
                    *verdict = Err(error.clone());
                }
            }
        }
        Ok(verdicts)
    }

    /// Makes the key of a living hold again where nobody is.
    async fn heal(
        self: Arc<Self>,
        holds: Arc<Holds>,
        (target, token, ttl): (Target, HolderId, Duration),
        limit: Duration,
    ) {
        let mut place = self.place(&target.name).await;
        // A release that comes from here on waits in line behind us.
        let Some(hold) = holds.living(token) else { return };
        let token = self.token(hold.token);
        let until = self.clock.now() + ttl;
        let request = Acquire::new(target, token, ttl, limit);
        place.sending(token, until);
        let verdict = bounded(limit, self.store.acquire(request.clone())).await.0;
        place.answered(token, &verdict);
        place.keep(token);
        trace::later(Level::DEBUG, || {
            let (node, verdict) = (self.index + 1, verdict.clone());
            move || tracing::debug!(node, ?verdict, "made again")
        });
        if matches!(verdict, Ok(Acquired::Granted { .. })) && hold.count > 1 {
            let request = Acquire { count: hold.count, ..request };
            let _ = bounded(limit, self.store.acquire(request)).await;
        }
    }

    /// Whether the node has forgotten nothing that was there `ttl` before `sent`, or since. To be asked
    /// after what is to be counted was done.
    async fn remembers(&self, ttl: Duration, sent: Instant, limit: Duration) -> Result<()> {
        let before = self.asked.load(Ordering::Acquire);
        let Age { at, age, .. } = timeout(limit, self.age_after(before, limit))
            .await
            .unwrap_or_else(|_| Err(silent()))?;
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

    /// An answer to a question that was begun after the first `before`. Many who wait share one.
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
