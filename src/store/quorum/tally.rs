//! Counts what the nodes say.

use crate::error::{Error, ErrorKind, Fate, Result};
use crate::store::{Absence, Acquired, Released};
use std::fmt;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Where a node leaves its answer.
pub(super) struct Answers<T>(mpsc::UnboundedSender<(usize, Result<T>)>);

impl<T> Clone for Answers<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Answers<T> {
    pub(super) fn give(&self, node: usize, answer: Result<T>) {
        // The others may have decided it already.
        drop(self.0.send((node, answer)));
    }
}

/// The answers of one round.
pub(super) struct Tally<T> {
    inbox: mpsc::UnboundedReceiver<(usize, Result<T>)>,
    /// `None`: not yet.
    pub(super) answers: Vec<Option<Result<T>>>,
}

/// How many nodes said what.
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

    /// Takes answers until `enough` says so, or all are there, or the time is over.
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

    /// The error of a round without a majority for anything.
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

/// Taken if somebody says so, and if with those that said nothing it can be a majority: then, and only then,
/// somebody else can hold the name.
pub(super) fn absence(
    absences: impl Iterator<Item = Absence>,
    votes: Votes,
    majority: usize,
) -> Absence {
    let taken = absences.filter(|absence| *absence == Absence::Taken).count();
    if taken > 0 && taken + votes.failed + votes.pending >= majority {
        Absence::Taken
    } else {
        Absence::Gone
    }
}

pub(super) fn say_acquired(verdict: &Acquired) -> &'static str {
    match verdict {
        Acquired::Granted { .. } => "granted",
        Acquired::Held { .. } => "held by another",
        Acquired::NotYours(absence) => say_absence(*absence),
    }
}

pub(super) fn say_released(verdict: &Released) -> &'static str {
    match verdict {
        Released::Done { .. } => "done",
        Released::NotYours(absence) => say_absence(*absence),
    }
}

pub(super) fn say_renewed(verdict: &Option<Absence>) -> &'static str {
    verdict.map_or("renewed", say_absence)
}

fn say_absence(absence: Absence) -> &'static str {
    match absence {
        Absence::Gone => "gone",
        Absence::Taken => "taken by another",
    }
}

/// What each node of a [`Quorum`](super::Quorum) said when no majority agreed: the
/// [`source`](std::error::Error::source) of the [`Error`].
#[derive(Clone, Debug)]
pub struct NoMajority {
    pub(super) verdicts: Vec<NodeVerdict>,
}

/// What one node said.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum NodeVerdict {
    /// Its answer, in a word or two.
    Answered(&'static str),
    /// It could not, or would not.
    Failed(Error),
    /// Nothing in time.
    Silent,
}

impl NoMajority {
    /// The verdicts, in the order of the nodes.
    pub fn verdicts(&self) -> &[NodeVerdict] {
        &self.verdicts
    }

    /// That of a majority, if they fail for one reason; else it is not known.
    fn kind(&self) -> ErrorKind {
        let kinds = self.verdicts.iter().filter_map(|verdict| match verdict {
            NodeVerdict::Failed(error) => Some(error.kind()),
            _ => None,
        });
        let kinds: Vec<ErrorKind> = kinds.collect();
        let of = |kind: &ErrorKind| kinds.iter().filter(|other| *other == kind).count();
        let agreed = kinds.iter().find(|kind| of(kind) >= majority(self.verdicts.len()));
        agreed.copied().unwrap_or(ErrorKind::Unavailable)
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
        let (kind, fate) = (none.kind(), none.fate());
        Error::new(kind, none.to_string()).with_fate(fate).with_source(none)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
                let told = absence(said.iter().copied(), votes, majority(5));
                assert_eq!(told, expected, "{said:?}, {silent} said nothing");
            }
        }
    }
    #[test]
    fn an_error_says_what_each_node_said() {
        use Absence::{Gone, Taken};

        fn text<T>(answers: Vec<Option<Result<T>>>, say: impl Fn(&T) -> &'static str) -> String {
            let (mut tally, _) = Tally::new(answers.len());
            tally.answers = answers;
            tally.no_majority(say).to_string()
        }

        let held = Acquired::held(None);
        let acquired = [held, Acquired::NotYours(Gone), Acquired::NotYours(Taken)];
        let text1 = text(acquired.map(|verdict| Some(Ok(verdict))).into(), say_acquired);
        assert!(text1.contains("node 1: held by another; node 2: gone; node 3: taken by another"));
        let released = [Released::done(0), Released::NotYours(Gone)];
        let text2 = text(released.map(|verdict| Some(Ok(verdict))).into(), say_released);
        assert!(text2.contains("node 1: done; node 2: gone"), "{text2}");
        let text3 = text(vec![Some(Ok(None)), Some(Ok(Some(Taken))), None], say_renewed);
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
