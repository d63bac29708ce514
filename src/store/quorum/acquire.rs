//! Acquires names, in ballots in which all nodes are asked at once.

use super::convert::convert;
use super::holds::Held;
use super::node::admission::refused;
use super::node::same_server::abstain;
use super::node::sweep::sweep_to_the_end;
use super::node::{Ballot, BallotAnswers};
use super::release::release;
use super::tally::{Tally, describe_acquired, granted, remaining};
use super::tokens::Numbering;
use super::{Inner, SHORTEST_WAIT, node_limit, random, stale};
use crate::error::{Error, ErrorKind, Fate, Result};
use crate::store::contract::mode::Kind;
use crate::store::{Acquire, Acquired, Arrival, Mark, Mode, Release, StoreFuture, failed};
use crate::util::reached::Rare;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::sleep;

/// The longest pause after the first split ballot. The bound doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
/// The most ballots of one acquire. After these, the name may not be split, but have a holder that lacks a node.
const MAX_BALLOTS: u32 = 6;

/// The outcome of a ballot.
enum Outcome {
    Over(Result<Acquired>),
    /// Some nodes granted, others were held, perhaps for several that got no majority either.
    Split(Acquired),
}

pub(super) fn acquire(inner: Arc<Inner>, request: Acquire) -> StoreFuture<Acquired> {
    let accepted = inner.require(request.target.mode).and_then(|()| request.require_no_line());
    if let Err(error) = accepted {
        return failed(error);
    }
    let (answer, verdict) = oneshot::channel();
    let quorum = Arc::clone(&inner);
    inner.spawn(async move {
        let target = request.target.clone();
        let holder = request.holder;
        let timeout = request.timeout;
        let converts = request.converts;
        let verdict = decide(&quorum, request).await;
        let is_new = !converts && verdict.as_ref().is_ok_and(granted);
        if answer.send(verdict).is_err() && is_new {
            Rare::QuorumCallerGone.reached();
            // The caller is gone.
            let _ = release(quorum, Release::new(target, holder, 0, timeout)).await;
        }
    });
    Box::pin(async move {
        verdict.await.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Unavailable, "the runtime of the quorum has gone"))
        })
    })
}

async fn decide(inner: &Arc<Inner>, mut request: Acquire) -> Result<Acquired> {
    let shares = request.target.mode.kind() == Kind::ReadWrite;
    if shares && request.converts {
        // Boxed, so that the other tasks stay small.
        return Box::pin(convert(Arc::clone(inner), request)).await;
    }
    match inner.holds.living(request.holder).filter(|_| shares) {
        // A late copy of a request: the holder has changed its mode since.
        Some(held) if (request.target.mode, held.mode) == (Mode::Write, Mode::Read) => {
            let left = held.until.saturating_duration_since(inner.clock.now());
            Ok(Acquired::held(Some(left)))
        }
        Some(held) => {
            request.target.mode = held.mode;
            acquire_new(inner, request).await
        }
        None => acquire_new(inner, request).await,
    }
}

/// Acquires a name that this process does not hold, or grants it again to a holder that has it.
async fn acquire_new(inner: &Arc<Inner>, request: Acquire) -> Result<Acquired> {
    let start = inner.clock.now();
    let mut ballot = 0;
    loop {
        let asked = inner.clock.now();
        let verdict = match run_ballot(inner, &request).await {
            Outcome::Over(verdict) => return verdict,
            Outcome::Split(verdict) => verdict,
        };
        Rare::QuorumSplit.reached();
        // If the pause is longer than a ballot, the first process to wake has all nodes for itself.
        let now = inner.clock.now();
        let pause = (now.saturating_duration_since(asked) * 2).max(FIRST_PAUSE) * (1 << ballot);
        let pause = pause.min(request.ttl / 20).mul_f64(random());
        ballot += 1;
        let left = request.timeout.saturating_sub(now.saturating_duration_since(start));
        if ballot == MAX_BALLOTS || pause * 2 >= left || inner.closing.is_cancelled() {
            return Ok(verdict);
        }
        sleep(pause).await;
    }
}

async fn run_ballot(inner: &Arc<Inner>, request: &Acquire) -> Outcome {
    let limit = node_limit(request.timeout);
    if let Some(error) = refuse(inner, limit) {
        return Outcome::Over(Err(error));
    }
    let holder = inner.holds.holder_for(request.holder);
    let living = inner.holds.living(request.holder);
    let key_nodes = living.as_ref().map(|held| held.key_nodes.clone()).unwrap_or_default();
    let arrival = request.arrival.map(|arrival| arrival_at_node(request.target.mode, arrival));
    // Before the first send: the deadline counts from here.
    let sent = inner.clock.now();
    let (decision, ballot) = Ballot::new(sent);
    // A hold that is there keeps its token.
    let fence = living.as_ref().and_then(|held| held.fence);
    let fencing = inner.fencing_of(request).filter(|_| fence.is_none());
    let (numbering, round) = fencing
        .map(|fencing| Numbering::new(inner.nodes.len(), request.target.mode, fencing))
        .unzip();
    let mut tally = inner.ask(|node, answers| {
        let request = Acquire { arrival, ..node.request(request, holder, limit) };
        let counts = living.as_ref().is_none_or(|held| held.counts(node.index));
        let answers = BallotAnswers { verdicts: answers, round: round.clone() };
        node.acquire(request, ballot.clone(), key_nodes.clone(), counts, answers)
    });
    let majority = tally.majority();
    let clear = |tally: &Tally<Acquired>| {
        let votes = tally.votes(granted);
        // The others may have the same reason.
        let reason =
            |answer: &Result<Acquired>| answer.as_ref().is_err_and(|error| !error.is_unavailable());
        let has_reason = votes.pending > 0 && tally.answers.iter().flatten().any(reason);
        votes.yes >= majority || votes.yes + votes.pending < majority && !has_reason
    };
    // Our grants block others while we wait, so nodes that were silent before get little time.
    let silent: Vec<bool> = inner.nodes.iter().map(|node| node.is_silent()).collect();
    let answered = |tally: &Tally<Acquired>| {
        tally.answers.iter().zip(&silent).all(|(answer, silent)| *silent || answer.is_some())
    };
    tally.collect(request.timeout, |tally| clear(tally) || answered(tally)).await;
    let passed = inner.clock.now().saturating_duration_since(sent);
    let more = if answered(&tally) { (passed * 2).max(SHORTEST_WAIT) } else { Duration::ZERO };
    tally.collect(more.min(request.timeout), clear).await;
    abstain(&inner.nodes, &mut tally);
    let passed = inner.clock.now().saturating_duration_since(sent);
    let fence = match numbering {
        Some(numbering) => {
            numbering.number(&mut tally, request.timeout.saturating_sub(passed)).await
        }
        None => fence,
    };
    let votes = tally.votes(granted);
    let now = inner.clock.now();
    if votes.yes >= majority && !stale(request.ttl, sent, now) {
        let held = Held {
            holder,
            count: 1,
            ttl: request.ttl,
            until: sent + request.ttl,
            releasing: false,
            key_nodes,
            mode: request.target.mode,
            fence,
            node_modes: living.and_then(|held| held.node_modes),
        };
        inner.holds.insert(request.holder, held, now);
        decision.send_replace(Some(true));
        return Outcome::Over(Ok(Acquired::granted(sent, fence)));
    }
    // The tasks of the nodes release each grant, including those still to come.
    inner.holds.remove(request.holder);
    decision.send_replace(Some(false));
    Rare::QuorumMinorityUndone.reached_if(|| (1..majority).contains(&votes.yes));
    if votes.yes >= majority {
        Rare::QuorumTooLate.reached();
        let message = "a majority granted it, but too late to be of use";
        return Outcome::Over(Err(Error::new(ErrorKind::Unavailable, message)));
    }
    // Whatever single nodes grant is released here.
    let error = tally.no_majority(describe_acquired).with_fate(Fate::NotExecuted);
    // What a majority refuses for the same reason, no other holder releases.
    if votes.no > 0 && error.is_unavailable() {
        let held = Acquired::held(remaining(&tally)).with_closed(closed(&tally));
        return if votes.yes > 0 { Outcome::Split(held) } else { Outcome::Over(Ok(held)) };
    }
    Outcome::Over(Err(error))
}

/// Returns an error if a majority is out of reach because too many nodes refuse. Then the others are not asked either,
/// and have nothing to release.
fn refuse(inner: &Arc<Inner>, limit: Duration) -> Option<Error> {
    let now = inner.clock.now();
    let silent: Vec<bool> =
        inner.nodes.iter().map(|node| node.admission.refuses(now, limit)).collect();
    if silent.iter().filter(|silent| !**silent).count() >= inner.majority() {
        return None;
    }
    Rare::QuorumNotAsked.reached();
    let (mut tally, _) = Tally::<Acquired>::new(inner.nodes.len());
    for (node, silent) in inner.nodes.iter().zip(silent) {
        let error = if silent { refused() } else { not_needed() };
        tally.answers[node.index] = Some(Err(error));
        if let Some(sweeping) = node.queues.begin_sweep() {
            inner.spawn(sweep_to_the_end(Arc::clone(node), sweeping, limit));
        }
    }
    Some(tally.no_majority(describe_acquired))
}

/// Returns the arrival of a waiter at the nodes.
///
/// Nodes that keep both sides in an order can disagree about it: with one that lets the reader go first and one that lets the
/// writer go first, none of them gets a majority. So they keep the arrivals of writers only. A reader waits for the writers that came
/// before it, and no writer waits for a reader that has not been granted the name.
fn arrival_at_node(mode: Mode, arrival: Arrival) -> Arrival {
    match mode {
        Mode::Read => Arrival::new(arrival.waited, Duration::ZERO),
        _ => arrival,
    }
}

/// Returns the error of a node that was not asked, because a majority refuses.
fn not_needed() -> Error {
    let message = "not asked, because a majority answers nothing";
    Error::new(ErrorKind::Unavailable, message).with_fate(Fate::NotExecuted)
}

/// Returns the mark of work that is done, if a node names it. A majority has it, or it is left over; who sees it asks for the
/// holders. Of the nodes that refuse, some may not have the mark yet.
fn closed(tally: &Tally<Acquired>) -> Option<Mark> {
    let is_done =
        |verdict: &Acquired| matches!(verdict, Acquired::Held { closed: Some(Mark::Done), .. });
    tally.verdicts().any(is_done).then_some(Mark::Done)
}
