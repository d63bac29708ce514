//! One node, as one handle on the quorum sees it.
//!
//! Requests for a name go to a node one at a time, so that a release never overtakes the acquire that it undoes. A key of
//! this process that must be released is released before the name is acquired again. So its own keys never vote against
//! it. For a read-write lock it is one request of each holder at a time.

pub(super) mod admission;
mod coalesce;
pub(super) mod convert;
pub(super) mod queue;
mod repair;
mod reserve;
pub(super) mod same_server;
pub(super) mod sweep;
mod voters;

use super::holds::{Holds, KeyNodes};
use super::node_modes::{either, stray};
use super::tally::{Answers, granted};
use super::tokens::{SecondRound, TokenVote};
use crate::clock::{Clock, Instant};
use crate::error::{Error, ErrorKind, Fate, Result};
use crate::store::{
    Absence, Acquire, Acquired, Fencing, HolderId, Mode, Release, Released, RenewBatch, RenewCall,
    Renewed, Reservation, Store, TokenVerdict, Uptime,
};
use crate::util::reached::Rare;
use crate::util::sync::Mutex;
use admission::{Admission, Permit, refused};
use coalesce::Coalesced;
use queue::{NameQueues, bounded, timed_out};
use repair::{Repair, heal, set_right};
use reserve::Reservations;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use sweep::sweep;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use voters::Voters;

/// A node of a quorum.
pub(super) struct Node {
    pub(super) index: usize,
    pub(super) store: Arc<dyn Store>,
    pub(super) clock: Clock,
    pub(super) queues: Arc<NameQueues>,
    pub(super) admission: Arc<Admission>,
    uptimes: Coalesced<Reported>,
    reservations: Reservations,
    pub(super) closing: CancellationToken,
    /// Whether it did not answer the last acquire. Then the next one does not wait long for it.
    silent: AtomicBool,
    /// The id of its server when it was last requested.
    pub(super) server: Mutex<Option<String>>,
}

/// What a node reported at `at`.
#[derive(Clone)]
struct Reported {
    at: Instant,
    uptime: Uptime,
}

/// One question to all nodes.
#[derive(Clone)]
pub(super) struct Ballot<T> {
    /// When it was begun.
    pub(super) sent: Instant,
    /// The decision, once it is made.
    pub(super) decision: watch::Receiver<Option<T>>,
    pub(super) voters: Arc<Voters>,
}

/// Where a node sends its answers to an acquire.
pub(super) struct BallotAnswers {
    pub(super) verdicts: Answers<Acquired>,
    /// The second round, if the grant is to have a fencing token.
    pub(super) round: Option<SecondRound>,
}

impl BallotAnswers {
    /// Sends the vote of the first round. One that is no grant is that of the second round, too.
    fn send(&self, node: usize, vote: Result<Acquired>) {
        if let Some(round) = &self.round
            && !vote.as_ref().is_ok_and(granted)
        {
            let message = "it has not granted the name";
            let none = || Error::new(ErrorKind::Unavailable, message).with_fate(Fate::NotExecuted);
            round.votes.send(node, Err(vote.as_ref().err().cloned().unwrap_or_else(none)));
        }
        self.verdicts.send(node, vote);
    }
}

impl<T: Clone> Ballot<T> {
    /// Begins a ballot. Returns where its decision is made, too.
    pub(super) fn new(sent: Instant) -> (watch::Sender<Option<T>>, Self) {
        let (decide, decision) = watch::channel(None);
        (decide, Self { sent, decision, voters: Arc::default() })
    }

    pub(super) fn is_over(&self) -> bool {
        self.decision.borrow().is_some() || self.decision.has_changed().is_err()
    }

    pub(super) async fn decided(&mut self) -> Option<T> {
        // If the request was dropped, no decision comes.
        self.decision.wait_for(Option::is_some).await.ok().and_then(|decision| decision.clone())
    }
}

impl Node {
    pub(super) fn new(
        index: usize,
        store: Arc<dyn Store>,
        clock: Clock,
        closing: CancellationToken,
    ) -> Self {
        let admission = Arc::default();
        let queues = NameQueues::new(Arc::clone(&store), clock.clone(), Arc::clone(&admission));
        let queues = Arc::new(queues);
        let (uptimes, reservations, silent, server) = Default::default();
        Self {
            index,
            store,
            clock,
            queues,
            admission,
            uptimes,
            reservations,
            closing,
            silent,
            server,
        }
    }

    /// Returns the holder id of a hold at this node. Each node has its own, so that a server behind the addresses of two
    /// nodes grants only one of them, and votes once.
    pub(super) fn holder_id(&self, holder: HolderId) -> HolderId {
        holder.at_node(u8::try_from(self.index + 1).unwrap_or(u8::MAX))
    }

    /// Returns the request that this node gets for that of a caller: none steals, waits in an order or has a fencing token.
    pub(super) fn request(
        &self,
        request: &Acquire,
        holder: HolderId,
        timeout: Duration,
    ) -> Acquire {
        Acquire {
            target: request.target.clone(),
            holder: self.holder_id(holder),
            arrival: None,
            fencing: None,
            steal: None,
            timeout,
            ..*request
        }
    }

    pub(super) fn is_silent(&self) -> bool {
        self.silent.load(Ordering::Relaxed)
    }

    fn refuses(&self, limit: Duration) -> bool {
        self.admission.refuses(self.clock.now(), limit)
    }

    /// Acquires a name here. Releases it unless the decision is to keep it.
    pub(super) async fn acquire(
        self: Arc<Self>,
        request: Acquire,
        ballot: Ballot<bool>,
        key_nodes: KeyNodes,
        counts: bool,
        answers: BallotAnswers,
    ) {
        let limit = request.timeout;
        match self.admission.admit(self.clock.now(), limit) {
            Some(permit) => {
                self.ask(&request, ballot, key_nodes, permit, counts, answers).await;
            }
            None => {
                self.silent.store(true, Ordering::Relaxed);
                answers.send(self.index, Err(refused()));
            }
        }
        sweep(&self, limit).await;
    }

    /// Acquires a name here when its turn comes, unless the decision was made by then.
    async fn ask(
        &self,
        request: &Acquire,
        mut ballot: Ballot<bool>,
        key_nodes: KeyNodes,
        permit: Permit,
        counts: bool,
        answers: BallotAnswers,
    ) {
        let fencing = answers.round.as_ref().map(|_| Fencing::proposal());
        let request = &Acquire { fencing, ..request.clone() };
        let target = &request.target;
        let holder = request.holder;
        let limit = request.timeout;
        let mut head = self.queues.head(target, holder).await;
        if ballot.is_over() {
            return;
        }
        head.flush(limit).await;
        let others_left = timeout(limit, self.queues.flush_others(target, holder, limit)).await;
        if ballot.is_over() {
            return;
        }
        let own_left = others_left.unwrap_or(true) || head.owes();
        head.sending(request, ballot.sent);
        head.keep_open(holder, permit);
        let (verdict, late) = head.acquire(request).await;
        head.answered(holder, &verdict);
        if head.find(holder).is_some() {
            key_nodes.add(self.index);
        }
        let vote = match verdict {
            Ok(Acquired::Granted { .. }) if !counts => Err(stray()),
            Ok(Acquired::Granted { .. }) if answers.round.is_none() => {
                self.check(request, &ballot).await.and(verdict)
            }
            Ok(Acquired::Held { .. }) if own_left => {
                Rare::QuorumOwnKeyLeft.reached();
                let message = "an earlier key of our own may still be there";
                Err(Error::new(ErrorKind::Unavailable, message).with_fate(Fate::NotExecuted))
            }
            verdict => verdict,
        };
        let silent = vote.as_ref().is_err_and(Error::is_unavailable);
        self.silent.store(silent, Ordering::Relaxed);
        let proposed = vote.as_ref().is_ok_and(granted);
        answers.send(self.index, vote);
        if head.find(holder).is_none() {
            return;
        }
        if proposed && let Some(round) = answers.round {
            self.store_tokens(request, &mut ballot, round).await;
        }
        if ballot.decided().await == Some(true) {
            head.keep(holder);
        } else if !self.refuses(limit) {
            let _ = head.release(holder, target.mode, limit).await;
        }
        drop(head);
        // A call that does not keep its time limit is given up in the end. Its holder id is swept.
        if let Some(call) = late
            && let Ok(verdict) = timeout(limit, call).await
        {
            let mut head = self.queues.head(target, holder).await;
            head.answered(holder, &verdict);
            match head.find(holder).map(|orphan| orphan.owed) {
                Some(true) => _ = head.release(holder, target.mode, limit).await,
                Some(false) => head.keep(holder),
                None => {}
            }
        }
    }

    /// Records the hold count here.
    pub(super) async fn record(self: Arc<Self>, request: Release, answers: Answers<Released>) {
        let mut request = request;
        request.target.mode = either(request.target.mode);
        let verdict = bounded(request.timeout, self.store.release(request)).await.0;
        answers.send(self.index, verdict);
    }

    /// Releases a name. `owed` is set for a hold: when its key has surely expired, and where it may be. Then it is released
    /// again and again until the node has confirmed it or the key has expired.
    pub(super) async fn release(
        self: Arc<Self>,
        request: Release,
        owed: Option<(Instant, KeyNodes)>,
        answers: Answers<Released>,
    ) {
        let mode = request.target.mode;
        let holder = request.holder;
        let limit = request.timeout;
        let mut head = self.queues.head(&request.target, holder).await;
        let is_hold = owed.is_some();
        match owed {
            Some((_, key_nodes))
                if !key_nodes.contain(self.index) && head.find(holder).is_none() =>
            {
                // It never got there.
                return answers.send(self.index, Ok(Released::NotYours(Absence::Gone)));
            }
            Some((until, _)) => {
                head.owe(holder, mode, until);
                head.mark(holder, request.keep);
            }
            // The holder ids of attempts that came to nothing.
            None => head.owe_all(holder),
        }
        if self.refuses(limit) {
            answers.send(self.index, Err(refused()));
        } else {
            answers.send(self.index, head.release(holder, mode, limit).await);
            if !is_hold {
                head.flush(limit).await;
            }
        }
        drop(head);
        sweep(&self, limit).await;
    }

    /// Renews the holds that are here. Makes those again that are gone here, but that a majority has.
    pub(super) async fn renew(
        self: Arc<Self>,
        holds: Arc<Holds>,
        batch: RenewBatch,
        holders: Vec<HolderId>,
        limit: Duration,
        mut ballot: Ballot<Arc<[bool]>>,
        answers: Answers<Vec<Result<Option<Absence>>>>,
    ) {
        let mut asked = RenewBatch { timeout: limit, ..batch.clone() };
        for (item, holder) in asked.items.iter_mut().zip(holders) {
            item.holder = self.holder_id(holder);
            // A node that lacks the change to a writer keeps the reader, until it is set right. It does not count.
            item.target.mode = either(item.target.mode);
        }
        let (verdict, late) = bounded(limit, RenewCall::join(self.store.renew(asked))).await;
        if let Ok(Renewed { verdicts, .. }) = &verdict {
            verdicts.iter().for_each(|verdict| self.admission.answered(verdict));
        }
        let verdicts = self.renewal_votes(verdict, &holds, &batch, &ballot, limit).await;
        answers.send(self.index, verdicts.clone());
        let verdicts = match late {
            // This is too late for the vote, but not for making keys again.
            Some(call) => {
                let verdict = bounded(limit, call).await.0;
                self.renewal_votes(verdict, &holds, &batch, &ballot, limit).await
            }
            None => verdicts,
        };
        let Ok(verdicts) = verdicts else { return };
        let Some(renewed) = ballot.decided().await else { return };
        let mut repairs = JoinSet::new();
        for ((item, verdict), renewed) in batch.items.into_iter().zip(verdicts).zip(renewed.iter())
        {
            let repair = Repair {
                holds: Arc::clone(&holds),
                outer: item.holder,
                ttl: item.ttl.unwrap_or(batch.ttl),
                target: item.target,
                limit,
            };
            match verdict {
                Ok(Some(Absence::Gone | Absence::Stolen | Absence::Forced)) if *renewed => {
                    repairs.spawn(heal(Arc::clone(&self), repair));
                }
                Ok(Some(_)) => {}
                // It is here.
                verdict if is_shared(repair.target.mode) && has_run(&verdict) => {
                    repairs.spawn(set_right(Arc::clone(&self), repair));
                }
                _ => {}
            }
        }
        while repairs.join_next().await.is_some() {}
        sweep(&self, limit).await;
    }

    /// Returns the verdicts of this node. Renewals count only if its uptime is sufficient, those of a writer only if it is
    /// the writer here, and those of a reader once for each server.
    async fn renewal_votes<T: Clone>(
        &self,
        verdict: Result<Renewed>,
        holds: &Holds,
        batch: &RenewBatch,
        ballot: &Ballot<T>,
        limit: Duration,
    ) -> Result<Vec<Result<Option<Absence>>>> {
        let mut verdicts = verdict?.verdicts;
        if verdicts.len() != batch.items.len() {
            return Err(Error::protocol("answered for a different number of leases"));
        }
        let shared = |index: usize| is_shared(batch.items[index].target.mode);
        let has_shared = (0..verdicts.len()).any(shared);
        let is_renewed = verdicts.iter().any(|verdict| matches!(verdict, Ok(None)));
        let reported = if is_renewed { Some(self.uptime(limit).await) } else { None };
        let (uptime, server) = match &reported {
            None => (Ok(()), Ok(())),
            Some(Err(error)) => (Err(error.clone()), Err(error.clone())),
            Some(Ok(reported)) => {
                let uptime = reported.check_age(batch.ttl, ballot.sent);
                let server = if has_shared { self.count(reported, &ballot.voters) } else { Ok(()) };
                (uptime, server)
            }
        };
        for (index, verdict) in verdicts.iter_mut().enumerate() {
            let vote = match verdict {
                Ok(None) if shared(index) => {
                    let hold = holds.living(batch.items[index].holder);
                    let counts = hold.is_none_or(|hold| hold.counts(self.index));
                    let side = if counts { Ok(()) } else { Err(stray()) };
                    uptime.clone().and(server.clone()).and(side)
                }
                Ok(None) => uptime.clone(),
                Ok(Some(_)) if shared(index) => {
                    holds.update(batch.items[index].holder, |hold| {
                        hold.node_modes
                            .iter_mut()
                            .for_each(|node_modes| node_modes.forget(self.index));
                    });
                    Ok(())
                }
                _ => Ok(()),
            };
            if let Err(error) = vote {
                *verdict = Err(error);
            }
        }
        Ok(verdicts)
    }

    /// Returns an error unless the grant of this node counts. Call this after the operation that is to be counted.
    pub(super) async fn check<T>(&self, request: &Acquire, ballot: &Ballot<T>) -> Result<()> {
        let reported = self.uptime(request.timeout).await?;
        reported.check_age(request.ttl, ballot.sent)?;
        if request.target.mode == Mode::Read {
            self.count(&reported, &ballot.voters)
        } else {
            Ok(())
        }
    }

    /// Stores each fencing token that the ballot chooses, until it is decided.
    pub(super) async fn store_tokens(
        &self,
        request: &Acquire,
        ballot: &mut Ballot<bool>,
        mut round: SecondRound,
    ) {
        loop {
            let first = tokio::select! {
                biased;
                _ = ballot.decided() => return,
                first = round.chosen() => first,
            };
            let vote = self.store_token(request, ballot, round.fencing, first).await;
            if vote.as_ref().is_err_and(Error::is_unavailable) {
                self.silent.store(true, Ordering::Relaxed);
            }
            round.votes.send(self.index, vote);
        }
    }

    /// Stores a fencing token here, and returns an error unless the grant of this node counts.
    async fn store_token(
        &self,
        request: &Acquire,
        ballot: &Ballot<bool>,
        fencing: Fencing,
        first: u64,
    ) -> Result<TokenVote> {
        let limit = request.timeout;
        let item = Reservation::new(request.target.clone(), request.holder, first, fencing);
        let ask = self.reservations.send(&*self.store, &self.clock, item, limit);
        let (reported, verdict) = timeout(limit, ask).await.unwrap_or_else(|_| Err(timed_out()))?;
        reported.check_age(request.ttl, ballot.sent)?;
        if request.target.mode == Mode::Read {
            self.count(&reported, &ballot.voters)?;
        }
        match verdict? {
            TokenVerdict::Stored => Ok(TokenVote::Stored { first }),
            TokenVerdict::Outrun { last } => Ok(TokenVote::Outrun { first, last }),
            TokenVerdict::NotYours(_) => {
                let message = "it no longer has what it has granted a moment ago";
                Err(Error::new(ErrorKind::Unavailable, message).with_fate(Fate::Executed))
            }
        }
    }

    /// Asks the node for its uptime, after this call.
    async fn uptime(&self, limit: Duration) -> Result<Reported> {
        let ask = self.uptimes.after(|| async {
            let uptime = self.store.uptime(limit).await?;
            Ok(Reported { at: self.clock.now(), uptime })
        });
        timeout(limit, ask).await.unwrap_or_else(|_| Err(timed_out()))
    }

    /// Counts the vote of the server of this node. Returns an error if it has voted as another node.
    fn count(&self, reported: &Reported, voters: &Voters) -> Result<()> {
        voters.count(reported.uptime.server.clone(), self.index)
    }
}

impl Reported {
    /// Returns an error if the node may have forgotten a key that it had `ttl` before `sent`, or later.
    fn check_age(&self, ttl: Duration, sent: Instant) -> Result<()> {
        let needed = ttl + self.at.saturating_duration_since(sent);
        match self.uptime.age {
            Some(age) if age < needed => {
                Rare::QuorumTooYoung.reached();
                Err(Error::new(
                    ErrorKind::Unavailable,
                    format!("up for {age:?} only; it counts after the time to live, {ttl:?}"),
                )
                .with_fate(Fate::Executed))
            }
            _ => Ok(()),
        }
    }
}

fn is_shared(mode: Mode) -> bool {
    matches!(mode, Mode::Read | Mode::Write)
}

fn has_run<T>(verdict: &Result<T>) -> bool {
    verdict.as_ref().map_or_else(|error| error.fate() == Fate::Executed, |_| true)
}
