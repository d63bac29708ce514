//! Counts the answers of the nodes.

use crate::error::{Error, ErrorKind, Fate, Result};
use crate::store::{Absence, Acquired, Released};
use std::fmt;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Where a node sends its answer.
pub(super) struct Answers<T>(mpsc::UnboundedSender<(usize, Result<T>)>);

impl<T> Clone for Answers<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Answers<T> {
    pub(super) fn send(&self, node: usize, answer: Result<T>) {
        // If the others have decided already, the answer is dropped.
        drop(self.0.send((node, answer)));
    }
}

/// The answers of the nodes to one request.
pub(super) struct Tally<T> {
    inbox: mpsc::UnboundedReceiver<(usize, Result<T>)>,
    /// `None` for a node that has not answered yet.
    pub(super) answers: Vec<Option<Result<T>>>,
}

/// The number of nodes for each answer.
#[derive(Clone, Copy, Default)]
pub(super) struct Votes {
    pub(super) yes: usize,
    pub(super) no: usize,
    pub(super) failed: usize,
    pub(super) pending: usize,
}

impl<T> Tally<T> {
    pub(super) fn new(nodes: usize) -> (Self, Answers<T>) {
        let (outbox, inbox) = mpsc::unbounded_channel();
        (Self { inbox, answers: (0..nodes).map(|_| None).collect() }, Answers(outbox))
    }

    pub(super) fn majority(&self) -> usize {
        majority(self.answers.len())
    }

    /// Collects answers until `enough` returns true, all nodes have answered, or the time is over.
    pub(super) async fn collect(&mut self, limit: Duration, enough: impl Fn(&Self) -> bool) {
        let _ = timeout(limit, async {
            while !enough(self)
                && let Some((node, answer)) = self.inbox.recv().await
            {
                self.answers[node] = Some(answer);
            }
        })
        .await;
    }

    pub(super) fn votes(&self, yes: impl Fn(&T) -> bool) -> Votes {
        let mut votes = Votes::default();
        for answer in &self.answers {
            match answer {
                None => votes.pending += 1,
                Some(Err(_)) => votes.failed += 1,
                Some(Ok(verdict)) if yes(verdict) => votes.yes += 1,
                Some(Ok(_)) => votes.no += 1,
            }
        }
        votes
    }

    pub(super) fn verdicts(&self) -> impl Iterator<Item = &T> {
        self.answers.iter().flatten().flatten()
    }

    /// Returns the error of a request without a majority for any answer.
    pub(super) fn no_majority(&self, say: impl Fn(&T) -> &'static str) -> Error {
        let verdict = |answer: &Option<Result<T>>| match answer {
            Some(Ok(verdict)) => NodeVerdict::Answered(say(verdict)),
            Some(Err(error)) => NodeVerdict::Failed(error.clone()),
            None => NodeVerdict::Silent,
        };
        NoMajority { verdicts: self.answers.iter().map(verdict).collect() }.into()
    }
}

pub(super) fn majority(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// Returns `Taken` if a node reports that, and if such nodes can be a majority together with those that did not answer:
/// only then can there be another holder. A note of any node says why.
pub(super) fn absence(
    absences: impl Iterator<Item = Absence>,
    votes: Votes,
    majority: usize,
) -> Absence {
    let absences: Vec<_> = absences.collect();
    let noted = |absence: &&Absence| matches!(absence, Absence::Stolen | Absence::Forced);
    if let Some(noted) = absences.iter().find(noted) {
        return *noted;
    }
    let taken = absences.iter().filter(|absence| **absence == Absence::Taken).count();
    if taken > 0 && taken + votes.failed + votes.pending >= majority {
        Absence::Taken
    } else {
        Absence::Gone
    }
}

pub(super) fn granted(verdict: &Acquired) -> bool {
    matches!(verdict, Acquired::Granted { .. })
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

pub(super) fn describe_acquired(verdict: &Acquired) -> &'static str {
    match verdict {
        Acquired::Granted { .. } => "granted",
        Acquired::Held { .. } => "held by another",
        Acquired::NotYours(absence) => describe_absence(*absence),
    }
}

pub(super) fn describe_released(verdict: &Released) -> &'static str {
    match verdict {
        Released::Done { .. } => "done",
        Released::NotYours(absence) => describe_absence(*absence),
    }
}

pub(super) fn describe_renewed(verdict: &Option<Absence>) -> &'static str {
    verdict.map_or("renewed", describe_absence)
}

fn describe_absence(absence: Absence) -> &'static str {
    match absence {
        Absence::Gone => "gone",
        Absence::Taken => "taken by another",
        Absence::Stolen => "stolen",
        Absence::Forced => "forced open",
    }
}

/// The answer of each node of a [`Quorum`](super::Quorum) when no majority agreed: the
/// [`source`](std::error::Error::source) of the [`Error`].
#[derive(Clone, Debug)]
pub struct NoMajority {
    pub(super) verdicts: Vec<NodeVerdict>,
}

/// The answer of one node.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum NodeVerdict {
    /// The node answered; this is its answer in a word or two.
    Answered(&'static str),
    /// The node failed or refused.
    Failed(Error),
    /// The node did not answer in time.
    Silent,
}

impl NoMajority {
    /// Returns the verdicts, in the order of the nodes.
    pub fn verdicts(&self) -> &[NodeVerdict] {
        &self.verdicts
    }

    /// Returns the kind of error of a majority, or `Unavailable` if none has the same kind.
    fn kind(&self) -> ErrorKind {
        let failures = self.verdicts.iter().filter_map(|verdict| match verdict {
            NodeVerdict::Failed(error) => Some(error.kind()),
            _ => None,
        });
        let failures: Vec<ErrorKind> = failures.collect();
        let of = |kind: &ErrorKind| failures.iter().filter(|other| *other == kind).count();
        let agreed = failures.iter().find(|kind| of(kind) >= majority(self.verdicts.len()));
        agreed.copied().unwrap_or(ErrorKind::Unavailable)
    }

    /// Returns whether a majority serves no name at all.
    fn is_for_all_names(&self) -> bool {
        let serves_none = |verdict: &&NodeVerdict| match verdict {
            NodeVerdict::Failed(error) => error.is_for_all_names(),
            _ => false,
        };
        self.verdicts.iter().filter(serves_none).count() >= majority(self.verdicts.len())
    }

    fn fate(&self) -> Fate {
        let idle = |verdict: &NodeVerdict| match verdict {
            NodeVerdict::Failed(error) => error.fate() == Fate::NotExecuted,
            _ => false,
        };
        if self.verdicts.iter().all(idle) { Fate::NotExecuted } else { Fate::Unknown }
    }
}

impl fmt::Display for NoMajority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no majority of the {} nodes agrees", self.verdicts.len())?;
        for (index, verdict) in self.verdicts.iter().enumerate() {
            let node = index + 1;
            match verdict {
                NodeVerdict::Answered(words) => write!(f, "; node {node}: {words}")?,
                NodeVerdict::Failed(error) => write!(f, "; node {node}: {error}")?,
                NodeVerdict::Silent => write!(f, "; node {node}: no answer in time")?,
            }
        }
        Ok(())
    }
}

impl std::error::Error for NoMajority {}

impl From<NoMajority> for Error {
    fn from(none: NoMajority) -> Self {
        let kind = none.kind();
        let fate = none.fate();
        let for_all_names = none.is_for_all_names();
        let error = Error::new(kind, none.to_string()).with_fate(fate).with_source(none);
        if for_all_names { error.for_all_names() } else { error }
    }
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
    fn node_that_has_not_answered_may_be_with_somebody_else() {
        use Absence::{Gone, Taken};

        let cases: [(&[Absence], usize, Absence); 6] = [
            (&[Taken, Taken, Taken], 2, Taken),
            (&[Taken, Gone, Gone], 2, Taken),
            (&[Taken, Gone, Gone, Gone], 1, Gone),
            (&[Taken, Taken, Gone, Gone, Gone], 0, Gone),
            (&[Taken, Taken, Taken, Gone, Gone], 0, Taken),
            (&[Gone, Gone, Gone], 2, Gone),
        ];
        for (said, silent, expected) in cases {
            for (failed, pending) in [(silent, 0), (0, silent)] {
                let votes = Votes { yes: 0, no: said.len(), failed, pending };
                let counted = absence(said.iter().copied(), votes, majority(5));
                assert_eq!(counted, expected, "{said:?}, {silent} did not answer");
            }
        }
    }
    #[test]
    fn error_says_what_each_node_said() {
        use Absence::{Gone, Taken};

        fn text<T>(answers: Vec<Option<Result<T>>>, say: impl Fn(&T) -> &'static str) -> String {
            let (mut tally, _) = Tally::new(answers.len());
            tally.answers = answers;
            tally.no_majority(say).to_string()
        }

        let held = Acquired::held(None);
        let acquired = [held, Acquired::NotYours(Gone), Acquired::NotYours(Taken)];
        let text1 = text(acquired.map(|verdict| Some(Ok(verdict))).into(), describe_acquired);
        assert!(text1.contains("node 1: held by another; node 2: gone; node 3: taken by another"));
        let released = [Released::done(0), Released::NotYours(Gone)];
        let text2 = text(released.map(|verdict| Some(Ok(verdict))).into(), describe_released);
        assert!(text2.contains("node 1: done; node 2: gone"), "{text2}");
        let text3 = text(vec![Some(Ok(None)), Some(Ok(Some(Taken))), None], describe_renewed);
        let said = "node 1: renewed; node 2: taken by another; node 3: no answer in time";
        assert!(text3.contains(said), "{text3}");
    }

    #[test]
    fn nothing_was_done_if_no_node_did_it() {
        let failed =
            |fate| NodeVerdict::Failed(Error::new(ErrorKind::Unavailable, "out").with_fate(fate));
        let none = || failed(Fate::NotExecuted);
        for (other, fate) in [
            (none(), Fate::NotExecuted),
            (failed(Fate::Unknown), Fate::Unknown),
            (failed(Fate::Executed), Fate::Unknown),
            (NodeVerdict::Answered("granted"), Fate::Unknown),
            (NodeVerdict::Silent, Fate::Unknown),
        ] {
            let verdicts = vec![none(), none(), other.clone()];
            assert_eq!(Error::from(NoMajority { verdicts }).fate(), fate, "{other:?}");
        }
    }
}
