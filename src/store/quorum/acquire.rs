//! Acquires names, in ballots in which all nodes are asked at once.

use super::holds::Held;
use super::load::refused;
use super::same::abstain;
use super::tally::{Tally, absence, describe_acquired};
use super::{Inner, node_limit};
use crate::clock::Instant;
use crate::error::{Error, ErrorKind, Fate, Result};
use crate::store::{Absence, Acquire, Acquired, Mode, Release, StoreFuture, failed, usable};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{oneshot, watch};
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

fn granted(verdict: &Acquired) -> bool {
    matches!(verdict, Acquired::Granted { .. })
}

/// Returns whether too little of the time to live is left for a grant to be of use.
fn stale(ttl: Duration, sent: Instant, now: Instant) -> bool {
    usable(ttl).saturating_sub(now.saturating_duration_since(sent)) < ttl / 2
}

impl Inner {
    pub(super) fn acquire(self: Arc<Self>, request: Acquire) -> StoreFuture<Acquired> {
        match request.target.mode {
            // Any two majorities have a node in common, which grants once.
            Mode::Exclusive => {}
            // Each node would have to count all readers, and permits do not add up over majorities.
            mode @ (Mode::Read | Mode::Write | Mode::Permits { .. }) => {
                return failed(mode.unsupported());
            }
        }
        let (answer, verdict) = oneshot::channel();
        let inner = Arc::clone(&self);
        self.spawn(async move {
            let (target, holder, timeout) =
                (request.target.clone(), request.holder, request.timeout);
            let verdict = if request.count > 1 {
                inner.reenter(request).await
            } else {
                inner.acquire_outermost(request).await
            };
            let outermost = verdict.as_ref().is_ok_and(granted) && inner.is_outermost(holder);
            if answer.send(verdict).is_err() && outermost {
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

    fn is_outermost(&self, holder: crate::store::HolderId) -> bool {
        self.holds.living(holder).is_some_and(|held| held.count == 1)
    }

    /// Acquires a name that this process does not hold.
    async fn acquire_outermost(self: &Arc<Self>, request: Acquire) -> Result<Acquired> {
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
        let places = self.holds.living(request.holder).map(|held| held.places).unwrap_or_default();
        let (decision, decided) = watch::channel(None);
        // Before the first send: the deadline counts from here.
        let sent = self.clock.now();
        let mut tally = self.ask(|node, answers| {
            let holder = node.holder_id(holder);
            let request = Acquire { holder, fencing: None, timeout: limit, ..request.clone() };
            node.acquire(request, (sent, places.clone()), decided.clone(), answers)
        });
        let majority = tally.majority();
        let clear = |tally: &Tally<Acquired>| {
            let votes = tally.votes(granted);
            votes.yes >= majority || votes.yes + votes.pending < majority
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
            let held = Held { holder, count: 1, ttl, until, releasing: false, places };
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
        if votes.no > 0 {
            let held = Acquired::held(remaining(&tally));
            return if votes.yes > 0 { Outcome::Split(held) } else { Outcome::Over(Ok(held)) };
        }
        // Whatever single nodes grant is released here.
        Outcome::Over(Err(tally.no_majority(describe_acquired).with_fate(Fate::NotExecuted)))
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

    /// Acquires re-entrantly: makes no key, and keeps the existing ones.
    async fn reenter(self: &Arc<Self>, request: Acquire) -> Result<Acquired> {
        let (holder, limit) = (self.holds.holder_of(request.holder), node_limit(request.timeout));
        let sent = self.clock.now();
        let mut tally = self.ask(|node, answers| {
            let holder = node.holder_id(holder);
            let request = Acquire { holder, fencing: None, timeout: limit, ..request.clone() };
            node.reacquire(request, sent, answers)
        });
        let majority = tally.majority();
        tally
            .collect(request.timeout, |tally| {
                let votes = tally.votes(granted);
                votes.yes >= majority || votes.no >= majority
            })
            .await;
        let votes = tally.votes(granted);
        if votes.yes >= majority {
            let until = sent + request.ttl;
            self.holds.update(request.holder, |held| {
                held.count = request.count;
                held.until = held.until.max(until);
            });
            return Ok(Acquired::granted(sent, None));
        }
        if votes.no >= majority {
            let absences = tally.verdicts().filter_map(|verdict| match verdict {
                Acquired::Granted { .. } => None,
                Acquired::Held { .. } => Some(Absence::Taken),
                Acquired::NotYours(absence) => Some(*absence),
            });
            return Ok(Acquired::NotYours(absence(absences, votes, majority)));
        }
        Err(tally.no_majority(describe_acquired))
    }
}

/// Returns the error of a node that was not asked, because a majority refuses.
fn not_needed() -> Error {
    let message = "not asked, because a majority answers nothing";
    Error::new(ErrorKind::Unavailable, message).with_fate(Fate::NotExecuted)
}

/// Returns when a majority of the nodes may be free, as far as is known.
fn remaining(tally: &Tally<Acquired>) -> Option<Duration> {
    let left = |verdict: &Acquired| match verdict {
        Acquired::Held { remaining } => *remaining,
        _ => Some(Duration::ZERO),
    };
    let mut times: Vec<Duration> = tally.verdicts().filter_map(left).collect();
    times.sort();
    times.get(tally.majority() - 1).or(times.last()).copied()
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
