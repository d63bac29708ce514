//! Acquires names, in ballots in which all nodes are asked at once.

use super::holds::Held;
use super::node::Ballot;
use super::node::admission::refused;
use super::node::same_server::abstain;
use super::tally::{Tally, describe_acquired};
use super::{Inner, node_limit};
use crate::clock::Instant;
use crate::error::{Error, ErrorKind, Fate, Result};
use crate::store::contract::mode::Kind;
use crate::store::{Acquire, Acquired, Mark, Mode, Place, Release, StoreFuture, failed, usable};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::sleep;
use uuid::Uuid;

/// The longest pause after the first split ballot. The bound doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
/// The most ballots of one acquire. After these, the name may not be split, but have a holder that lacks a node.
const MAX_BALLOTS: u32 = 6;

/// The shortest time that nodes which were silent before have once the others have answered.
const SHORTEST_WAIT: Duration = Duration::from_millis(5);

/// The outcome of a ballot.
enum Outcome {
    Over(Result<Acquired>),
    /// Some nodes granted, others were held, perhaps for several that got no majority either.
    Split(Acquired),
}

pub(super) fn granted(verdict: &Acquired) -> bool {
    matches!(verdict, Acquired::Granted { .. })
}

/// Returns whether too little of the time to live is left for a grant to be of use.
pub(super) fn stale(ttl: Duration, sent: Instant, now: Instant) -> bool {
    usable(ttl).saturating_sub(now.saturating_duration_since(sent)) < ttl / 2
}

impl Inner {
    pub(super) fn acquire(self: Arc<Self>, request: Acquire) -> StoreFuture<Acquired> {
        let accepted = self.require(request.target.mode).and_then(|()| request.require_no_line());
        if let Err(error) = accepted {
            return failed(error);
        }
        let (answer, verdict) = oneshot::channel();
        let inner = Arc::clone(&self);
        self.spawn(async move {
            let (target, holder, timeout) =
                (request.target.clone(), request.holder, request.timeout);
            let converts = request.converts;
            let verdict = inner.decide(request).await;
            let is_new = !converts && verdict.as_ref().is_ok_and(granted);
            if answer.send(verdict).is_err() && is_new {
                // The caller is gone.
                let _ = inner.release(Release::new(target, holder, 0, timeout)).await;
            }
        });
        Box::pin(async move {
            verdict.await.unwrap_or_else(|_| {
                Err(Error::new(ErrorKind::Unavailable, "the runtime of the quorum has gone"))
            })
        })
    }

    async fn decide(self: &Arc<Self>, mut request: Acquire) -> Result<Acquired> {
        let shares = request.target.mode.kind() == Kind::ReadWrite;
        if shares && request.converts {
            // Boxed, so that the other tasks stay small.
            return Box::pin(Arc::clone(self).convert(request)).await;
        }
        match self.holds.living(request.holder).filter(|_| shares) {
            // A late copy of a request: the holder has changed its mode since.
            Some(held) if (request.target.mode, held.mode) == (Mode::Write, Mode::Read) => {
                let left = held.until.saturating_duration_since(self.clock.now());
                Ok(Acquired::held(Some(left)))
            }
            Some(held) => {
                request.target.mode = held.mode;
                self.acquire_new(request).await
            }
            None => self.acquire_new(request).await,
        }
    }

    /// Acquires a name that this process does not hold, or grants it again to a holder that has it.
    async fn acquire_new(self: &Arc<Self>, request: Acquire) -> Result<Acquired> {
        let start = self.clock.now();
        let mut ballot = 0;
        loop {
            let asked = self.clock.now();
            let verdict = match self.ballot(&request).await {
                Outcome::Over(verdict) => return verdict,
                Outcome::Split(verdict) => verdict,
            };
            // If the pause is longer than a ballot, the first process to wake has all nodes for itself.
            let now = self.clock.now();
            let pause = (now.saturating_duration_since(asked) * 2).max(FIRST_PAUSE) * (1 << ballot);
            let pause = pause.min(request.ttl / 20).mul_f64(random());
            ballot += 1;
            let left = request.timeout.saturating_sub(now.saturating_duration_since(start));
            if ballot == MAX_BALLOTS || pause * 2 >= left || self.closing.is_cancelled() {
                return Ok(verdict);
            }
            sleep(pause).await;
        }
    }

    async fn ballot(self: &Arc<Self>, request: &Acquire) -> Outcome {
        let limit = node_limit(request.timeout);
        if let Some(error) = self.refuse(limit) {
            return Outcome::Over(Err(error));
        }
        let holder = self.holds.holder_for(request.holder);
        let living = self.holds.living(request.holder);
        let places = living.as_ref().map(|held| held.places.clone()).unwrap_or_default();
        let place = request.place.map(|place| place_at_node(request.target.mode, place));
        // Before the first send: the deadline counts from here.
        let sent = self.clock.now();
        let (decision, ballot) = Ballot::new(sent);
        let mut tally = self.ask(|node, answers| {
            let (holder, target) = (node.holder_id(holder), request.target.clone());
            let request = Acquire {
                target,
                holder,
                place,
                fencing: None,
                steal: None,
                timeout: limit,
                ..*request
            };
            let counts = living.as_ref().is_none_or(|held| held.counts(node.index));
            node.acquire(request, (ballot.clone(), places.clone(), counts), answers)
        });
        let majority = tally.majority();
        let clear = |tally: &Tally<Acquired>| {
            let votes = tally.votes(granted);
            // The others may have the same reason.
            let reason = |answer: &Result<Acquired>| {
                answer.as_ref().is_err_and(|error| !error.is_unavailable())
            };
            let has_reason = votes.pending > 0 && tally.answers.iter().flatten().any(reason);
            votes.yes >= majority || votes.yes + votes.pending < majority && !has_reason
        };
        // Our grants block others while we wait, so nodes that were silent before get little time.
        let silent: Vec<bool> = self.nodes.iter().map(|node| node.is_silent()).collect();
        let answered = |tally: &Tally<Acquired>| {
            tally.answers.iter().zip(&silent).all(|(answer, silent)| *silent || answer.is_some())
        };
        tally.collect(request.timeout, |tally| clear(tally) || answered(tally)).await;
        let passed = self.clock.now().saturating_duration_since(sent);
        let more = if answered(&tally) { (passed * 2).max(SHORTEST_WAIT) } else { Duration::ZERO };
        tally.collect(more.min(request.timeout), clear).await;
        abstain(&self.nodes, &mut tally);
        let votes = tally.votes(granted);
        let now = self.clock.now();
        if votes.yes >= majority && !stale(request.ttl, sent, now) {
            let (ttl, until) = (request.ttl, sent + request.ttl);
            let (mode, releasing) = (request.target.mode, false);
            let sides = living.and_then(|held| held.sides);
            let held = Held { holder, count: 1, ttl, until, releasing, places, mode, sides };
            self.holds.insert(request.holder, held, now);
            decision.send_replace(Some(true));
            return Outcome::Over(Ok(Acquired::granted(sent, None)));
        }
        // The tasks of the nodes release each grant, including those still to come.
        self.holds.remove(request.holder);
        decision.send_replace(Some(false));
        if votes.yes >= majority {
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
    fn refuse(self: &Arc<Self>, limit: Duration) -> Option<Error> {
        let now = self.clock.now();
        let silent: Vec<bool> =
            self.nodes.iter().map(|node| node.load.refuses(now, limit)).collect();
        if silent.iter().filter(|silent| !**silent).count() >= self.majority() {
            return None;
        }
        let (mut tally, _) = Tally::<Acquired>::new(self.nodes.len());
        for (node, silent) in self.nodes.iter().zip(silent) {
            let error = if silent { refused() } else { not_needed() };
            tally.answers[node.index] = Some(Err(error));
            if let Some(sweeping) = node.queues.begin_sweep() {
                self.spawn(Arc::clone(node).sweep_to_the_end(sweeping, limit));
            }
        }
        Some(tally.no_majority(describe_acquired))
    }
}

/// Returns the place of a waiter at the nodes.
///
/// Nodes that keep both sides in an order can disagree about it: with one that lets the reader go first and one that lets the
/// writer go first, none of them gets a majority. So they keep the places of writers only. A reader waits for the writers that came
/// before it, and no writer waits for a reader that has not been granted the name.
fn place_at_node(mode: Mode, place: Place) -> Place {
    match mode {
        Mode::Read => Place::new(place.waited, Duration::ZERO),
        _ => place,
    }
}

/// Returns the error of a node that was not asked, because a majority refuses.
fn not_needed() -> Error {
    let message = "not asked, because a majority answers nothing";
    Error::new(ErrorKind::Unavailable, message).with_fate(Fate::NotExecuted)
}

/// Returns when a majority of the nodes may be free, as far as is known.
pub(super) fn remaining(tally: &Tally<Acquired>) -> Option<Duration> {
    let left = |verdict: &Acquired| match verdict {
        Acquired::Held { remaining, .. } => *remaining,
        _ => Some(Duration::ZERO),
    };
    let mut times: Vec<Duration> = tally.verdicts().filter_map(left).collect();
    times.sort();
    times.get(tally.majority() - 1).or(times.last()).copied()
}

/// Returns the mark of work that is done, if a node names it. A majority has it, or it is left over; who sees it asks for the
/// holders. Of the nodes that refuse, some may not have the mark yet.
fn closed(tally: &Tally<Acquired>) -> Option<Mark> {
    let is_done =
        |verdict: &Acquired| matches!(verdict, Acquired::Held { closed: Some(Mark::Done), .. });
    tally.verdicts().any(is_done).then_some(Mark::Done)
}

/// Returns a random number in [0, 1).
fn random() -> f64 {
    // The other half has bits that are the same in all UUIDs.
    let bits = (Uuid::new_v4().as_u128() >> 64) as u64;
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    #[test]
    fn majority_may_be_free_when_the_fastest_are() {
        let held = |seconds| Ok(Acquired::held(Some(Duration::from_secs(seconds))));
        let here = Clock::system().now();
        let granted = || Ok(Acquired::granted(here, None));
        let undying = || Ok(Acquired::held(None));
        let lost = || Err(Error::new(ErrorKind::Unavailable, "out of order"));
        for (answers, expected) in [
            (vec![Some(held(9)), Some(held(5)), Some(granted())], Some(5)),
            (vec![Some(held(9)), Some(held(5)), Some(held(7))], Some(7)),
            (vec![Some(held(9)), Some(granted()), Some(granted())], Some(0)),
            // Of those that answered, the last.
            (vec![Some(held(9)), Some(lost()), None], Some(9)),
            (vec![Some(held(9)), Some(undying()), None], Some(9)),
            (vec![Some(lost()), None, None], None),
        ] {
            let (mut tally, _) = Tally::new(3);
            tally.answers = answers;
            assert_eq!(remaining(&tally), expected.map(Duration::from_secs), "{:?}", tally.answers);
        }
    }

    #[test]
    fn chance_is_below_one() {
        let numbers: Vec<f64> = (0..2000).map(|_| random()).collect();
        assert!(numbers.iter().all(|number| (0.0..1.0).contains(number)));
        let mean = numbers.iter().sum::<f64>() / 2000.0;
        assert!((0.45..0.55).contains(&mean), "{mean}");
    }
}
