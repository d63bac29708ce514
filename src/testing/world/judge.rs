//! The rules that the code under test must keep, applied to what it reports.
//!
//! It takes the time and all else as values, and waits for nothing: [`World`](super::World) does that.

use super::INSTANT;
use super::story::{Seconds, Story, Who};
use crate::error::Loss;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

/// The rule that was broken in a [`World`](crate::testing::World).
///
/// Most of them are for your code to keep. [`Overlap`](Breach::Overlap) is a promise of leasehold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Breach {
    /// Work goes on after its lease was lost, for longer than the [grace](crate::Builder::grace), in which it must stop. The
    /// time for which its process was frozen does not count.
    AfterLoss,
    /// Work goes on without a lease: it was released before, or dropped, or no manager was granted that token.
    WithoutLease,
    /// The resource has accepted a write with a smaller fencing token than that of a write before.
    Order,
    /// Two work at once and have leases that exclude each other, or a lease has a smaller token than an earlier one, and no
    /// fault has made that possible. This is a defect of leasehold: report it, with the seed.
    Overlap,
    /// The code under test has panicked.
    Panic,
    /// The future that was given to [`Seeds::run`](crate::testing::Seeds::run) has returned an error.
    Error,
    /// The code under test is not finished when the [limit](crate::testing::Seeds::limit) is reached, or time stands still: it
    /// is ready again and again, and waits for no timer.
    Unfinished,
    /// No seed shows anything: no work is reported in any of them. The [`Failure`](crate::testing::Failure) is that of the last.
    NoWork,
}

impl Breach {
    /// Returns what the rule says.
    pub(super) fn rule(self) -> &'static str {
        match self {
            Self::AfterLoss => "no work after a loss",
            Self::WithoutLease => "no work without a lease",
            Self::Order => "no write with a smaller fencing token than one before",
            Self::Overlap => "no two leases at once that exclude each other",
            Self::Panic => "no panic",
            Self::Error => "no error",
            Self::Unfinished => "an end within the limit",
            Self::NoWork => "work in one of the seeds at least",
        }
    }

    /// Returns who must mend it, and how.
    pub(super) fn advice(self) -> &'static str {
        match self {
            Self::AfterLoss => {
                "the handler must stop: run the work in `lease.run(..)`, or give it the lease's cancellation token"
            }
            Self::WithoutLease => {
                "the handler must keep the lease until the work is over: bind it to a variable that lives as long"
            }
            Self::Order => {
                "the resource must refuse a token that is smaller than one it has seen: a handler that stops at its loss cannot prevent each late write"
            }
            Self::Overlap => "leasehold breaks its promise: report it, with the seed",
            Self::Panic | Self::Error => "see the message",
            Self::Unfinished => {
                "something waits forever, or takes longer: see the last lines, and `Seeds::limit`"
            }
            Self::NoWork => {
                "see whether the code comes to its work, and report it by `World::enter` or `World::write`"
            }
        }
    }
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.rule())
    }
}

/// A broken rule, and what was seen.
#[derive(Clone, Debug)]
pub(super) struct Verdict {
    pub(super) breach: Breach,
    pub(super) text: String,
}

/// What a report to the judge names: a resource, and a fencing token for it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Token {
    pub(super) name: String,
    pub(super) fence: u64,
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}, token {}", self.name, self.fence)
    }
}

/// How a lease ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Lost(Loss),
    /// Released, handed off, or changed into one of another mode.
    Over,
}

#[derive(Clone, Copy, Debug)]
struct Ended {
    at: Duration,
    how: End,
}

/// A lease as the judge knows it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lease {
    pub(super) manager: usize,
    /// Whether it is shared with other readers.
    pub(super) reads: bool,
    /// When the store granted it. A hold that was handed off has the time of the first one.
    pub(super) began: Duration,
    ended: Option<Ended>,
}

impl Lease {
    pub(super) fn new(manager: usize, reads: bool, began: Duration) -> Self {
        Self { manager, reads, began, ended: None }
    }
}

/// Two reports that must be looked at again a moment later: what happens at the same instant has no order.
#[derive(Clone, Debug)]
pub(super) struct Doubt {
    pub(super) earlier: Token,
    pub(super) later: Token,
    /// When it came up.
    at: Duration,
    what: &'static str,
}

/// Whether the leases of a doubt lived when it came up, lost or not.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Kept {
    pub(super) earlier: bool,
    pub(super) later: bool,
}

/// What there was to be judged.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    /// Work was reported.
    work: bool,
    /// Leases were granted that have a token.
    tokens: bool,
    /// Leases were granted that have none, so that no work of theirs can be reported.
    permits: bool,
}

impl Seen {
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            work: self.work || other.work,
            tokens: self.tokens || other.tokens,
            permits: self.permits || other.permits,
        }
    }

    pub(super) fn shows_nothing(self) -> bool {
        !self.work && (self.tokens || !self.permits)
    }
}

/// The answer to a report of work that begins.
#[derive(Debug)]
pub(super) struct Entered {
    /// The number of the visit.
    pub(super) id: u64,
    pub(super) doubts: Vec<Doubt>,
}

#[derive(Debug, Default)]
pub(super) struct Judge {
    story: Story,
    verdict: Option<Verdict>,
    leases: BTreeMap<Token, Lease>,
    /// The work that goes on, by its number.
    visits: BTreeMap<u64, Token>,
    last_visit: u64,
    /// The largest token of work on each name, without those of readers.
    entered: BTreeMap<String, u64>,
    /// The same of writes.
    written: BTreeMap<String, u64>,
    /// When a fault last made the store forget a name.
    forgotten: BTreeMap<String, Duration>,
    /// When a fault last made the store forget all of them.
    flushed: Option<Duration>,
    frozen: BTreeSet<usize>,
    /// When each process last began to run again.
    thawed: BTreeMap<usize, Duration>,
    /// The time in which work must stop after a loss.
    grace: Duration,
    seen: Seen,
}

impl Judge {
    pub(super) fn new(grace: Duration) -> Self {
        Self { grace, ..Self::default() }
    }

    pub(super) fn seen(&self) -> Seen {
        self.seen
    }

    pub(super) fn verdict(&self) -> Option<&Verdict> {
        self.verdict.as_ref()
    }

    pub(super) fn story(&self) -> &Story {
        &self.story
    }

    /// Adds a line to the story, which ends with the verdict.
    pub(super) fn add_line(&mut self, now: Duration, who: Who, what: String) {
        if self.verdict.is_none() {
            self.story.add(now, who, what);
        }
    }

    /// Ends the run. The first verdict counts.
    pub(super) fn fail(&mut self, now: Duration, breach: Breach, text: String) {
        self.add_line(now, Who::Judge, format!("the rule is broken: {breach}"));
        self.verdict.get_or_insert(Verdict { breach, text });
    }

    pub(super) fn freezes(&mut self, manager: usize) {
        self.frozen.insert(manager);
    }

    pub(super) fn thaws(&mut self, now: Duration, manager: usize) {
        self.frozen.remove(&manager);
        self.thawed.insert(manager, now);
    }

    /// Records that the store forgets a name, or all of them: by a fault, or because it is taken by force.
    pub(super) fn forgets(&mut self, at: Duration, name: Option<&str>) {
        match name {
            Some(name) => {
                let last = self.forgotten.entry(name.to_owned()).or_insert(at);
                *last = at.max(*last);
            }
            None => self.flushed = Some(at),
        }
    }

    pub(super) fn granted(&mut self, token: Token, lease: Lease) {
        self.seen.tokens = true;
        self.leases.entry(token).or_insert(lease);
    }

    /// Records the grant of a lease that has no token.
    pub(super) fn granted_without_token(&mut self) {
        self.seen.permits = true;
    }

    pub(super) fn began(&self, token: &Token) -> Option<Duration> {
        self.leases.get(token).map(|lease| lease.began)
    }

    /// Records the end of a lease, and returns the time of it: that of the first report.
    pub(super) fn ended(&mut self, now: Duration, token: &Token, how: End) -> Duration {
        let Some(lease) = self.leases.get_mut(token) else { return now };
        lease.ended.get_or_insert(Ended { at: now, how }).at
    }

    /// Returns when work must have stopped, if its lease was lost: its process has run for the grace by then, unless it is
    /// frozen now.
    pub(super) fn must_stop(&self, token: &Token) -> Option<Stop> {
        let Lease { manager, ended, .. } = *self.leases.get(token)?;
        let Some(Ended { at: lost, how: End::Lost(_) }) = ended else { return None };
        let thawed = self.thawed.get(&manager).copied().unwrap_or_default();
        Some(Stop { manager, at: lost.max(thawed).saturating_add(self.grace) })
    }

    /// Returns a lost lease under which work goes on.
    pub(super) fn work_after_loss(&self) -> Option<Token> {
        self.visits.values().find(|token| self.must_stop(token).is_some()).cloned()
    }

    /// Work begins. Without a lease the judge has yet to look for one: see [`Self::without_lease`].
    pub(super) fn enter(&mut self, now: Duration, token: Token, lease: Option<Lease>) -> Entered {
        self.seen.work = true;
        self.last_visit += 1;
        let id = self.last_visit;
        let mut doubts = Vec::new();
        let who = lease.map_or(Who::Test, |lease| Who::Manager(lease.manager));
        self.add_line(now, who, format!("works on {token}"));
        if let Some(lease) = lease {
            self.granted(token.clone(), lease);
            let doubt = |earlier: &Token, what| Doubt {
                earlier: earlier.clone(),
                later: token.clone(),
                at: now,
                what,
            };
            let others = self.visits.values().filter(|other| {
                other.name == token.name && other.fence != token.fence && {
                    let reads = self.leases.get(other).is_some_and(|other| other.reads);
                    !(reads && lease.reads)
                }
            });
            doubts.extend(others.map(|other| doubt(other, "work at once")));
            let last = self.entered.entry(token.name.clone()).or_insert(token.fence);
            if token.fence < *last {
                let earlier = Token { fence: *last, ..token.clone() };
                doubts.push(doubt(&earlier, "work in the wrong order"));
            } else if !lease.reads {
                *last = token.fence;
            }
        }
        let stop = self.must_stop(&token).filter(|stop| !self.frozen.contains(&stop.manager));
        self.visits.insert(id, token);
        if stop.is_some_and(|stop| now >= stop.at + INSTANT) {
            self.after_loss(now, id, "begins to work on");
        }
        Entered { id, doubts }
    }

    pub(super) fn leave(&mut self, now: Duration, id: u64) {
        if let Some(token) = self.visits.remove(&id) {
            let lease = self.leases.get(&token);
            let who = lease.map_or(Who::Test, |lease| Who::Manager(lease.manager));
            self.add_line(now, who, format!("stops the work on {token}"));
        }
    }

    /// Looks at two reports again, a moment after the second of them.
    pub(super) fn settle(&mut self, now: Duration, doubt: &Doubt, kept: Kept) {
        let Doubt { earlier, later, at, what } = doubt;
        let known = |token: &Token| self.leases.get(token).copied();
        let (Some(first), Some(second)) = (known(earlier), known(later)) else { return };
        let is_gone = |lease: Lease, is_kept: bool| match lease.ended {
            Some(Ended { at: lost, how: End::Lost(loss) }) => {
                let is_early = *at < lost.saturating_add(self.grace);
                !(is_kept && is_early && comes_early(loss))
            }
            _ => false,
        };
        let began = first.began.min(second.began);
        let forgotten = self.flushed.max(self.forgotten.get(&later.name).copied());
        let by_store = forgotten.is_some_and(|at| at >= began);
        let is_frozen = |lease: Lease| self.frozen.contains(&lease.manager);
        let managers = format!("managers {} and {}", first.manager, second.manager);
        let text = format!(
            "{managers} {what} on {:?}, with the tokens {} and {}",
            later.name, earlier.fence, later.fence
        );
        let is_gone = is_gone(first, kept.earlier) || is_gone(second, kept.later);
        if is_gone || by_store || is_frozen(first) || is_frozen(second) {
            let text =
                format!("{text}: a fault did that, and the resource must refuse the smaller");
            self.add_line(now, Who::Test, text);
        } else {
            let lost = [first, second].iter().find_map(|lease| match lease.ended {
                Some(Ended { how: End::Lost(loss), .. }) => Some(loss),
                _ => None,
            });
            let text = match lost {
                Some(loss) => {
                    format!(
                        "{text}, within the grace after a loss ({loss}): no other may have the name then"
                    )
                }
                None => format!("{text}; both leases are held, and no fault has taken one of them"),
            };
            self.fail(now, Breach::Overlap, text);
        }
    }

    /// The lease of work that goes on was lost, and the time to stop is over.
    pub(super) fn after_loss(&mut self, now: Duration, id: u64, what: &str) {
        let Some(token) = self.visits.get(&id) else { return };
        let Some(lease) = self.leases.get(token) else { return };
        let Some(Ended { at, how: End::Lost(loss) }) = lease.ended else { return };
        let text = format!(
            "manager {} {what} {token} at {}; its lease was lost at {} ({loss}), and the {} to stop are over",
            lease.manager,
            Seconds(now),
            Seconds(at),
            Seconds(self.grace),
        );
        self.fail(now, Breach::AfterLoss, text);
    }

    /// The lease of work that goes on was released.
    pub(super) fn after_release(&mut self, now: Duration, id: u64) {
        if let Some(token) = self.visits.get(&id) {
            let who = self.leases.get(token).map_or(Who::Test, |lease| Who::Manager(lease.manager));
            let at = Seconds(now);
            let text = format!("{who} still works on {token} at {at}, when its lease is released");
            self.fail(now, Breach::WithoutLease, text);
        }
    }

    /// Judges work that began with a token of which no manager had a lease any more. If the lease was lost, there is time to
    /// stop.
    pub(super) fn without_lease(&mut self, now: Duration, token: &Token) {
        let text = match self.leases.get(token) {
            Some(Lease { ended: None | Some(Ended { how: End::Lost(_), .. }), .. }) => return,
            Some(Lease { manager, ended: Some(Ended { at, .. }), .. }) => format!(
                "manager {manager} works on {token} at {}; its lease was released at {}",
                Seconds(now),
                Seconds(*at)
            ),
            None => {
                let other = self.leases.keys().find(|other| other.fence == token.fence);
                let but = other.map_or(String::new(), |other| {
                    format!("; that token is one of {:?}", other.name)
                });
                format!("work on {token} begins, but no manager was granted it{but}")
            }
        };
        self.fail(now, Breach::WithoutLease, text);
    }

    /// A resource has accepted a write. `lease` is that of the token, if a manager has it now.
    pub(super) fn write(&mut self, now: Duration, token: Token, lease: Option<Lease>) {
        self.seen.work = true;
        if let Some(lease) = lease {
            self.granted(token.clone(), lease);
        }
        let lease = self.leases.get(&token).copied();
        let who = lease.map_or(Who::Test, |lease| Who::Manager(lease.manager));
        self.add_line(now, who, format!("has written to {token}"));
        let last = self.written.get(&token.name).copied().unwrap_or(token.fence);
        if token.fence < last {
            let stop = self.must_stop(&token).filter(|stop| now > stop.at + INSTANT);
            let late = match stop {
                Some(stop) => format!(
                    "; its lease was lost, and the time to stop was over at {}: the handler must stop too",
                    Seconds(stop.at)
                ),
                None => String::new(),
            };
            let text = format!(
                "{who} has written to {token} at {}, after a write with token {last}{late}",
                Seconds(now)
            );
            self.fail(now, Breach::Order, text);
        } else if !lease.is_some_and(|lease| lease.reads) {
            self.written.insert(token.name, token.fence);
        }
    }
}

/// When the work of a manager must have stopped.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stop {
    pub(super) manager: usize,
    pub(super) at: Duration,
}

/// Returns whether a loss comes a grace before the store lets the name go.
fn comes_early(loss: Loss) -> bool {
    matches!(loss, Loss::Expired | Loss::MaxHold | Loss::Stalled)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn token(fence: u64) -> Token {
        Token { name: "n".to_owned(), fence }
    }

    /// Managers 0 and 1 work at once, with the tokens 1 and 2. Returns what is in doubt.
    fn both_work(judge: &mut Judge, reads: bool) -> Vec<Doubt> {
        let _ = judge.enter(at(1), token(1), Some(Lease::new(0, reads, at(1))));
        judge.enter(at(2), token(2), Some(Lease::new(1, reads, at(2)))).doubts
    }

    fn breach(judge: &Judge) -> Option<Breach> {
        judge.verdict().map(|verdict| verdict.breach)
    }

    #[test]
    fn overlap_without_a_fault_is_a_broken_promise() {
        let mut judge = Judge::default();
        let doubts = both_work(&mut judge, false);
        doubts.iter().for_each(|doubt| judge.settle(at(2), doubt, Kept::default()));
        assert_eq!(breach(&judge), Some(Breach::Overlap));
    }

    #[test]
    fn overlap_that_a_fault_has_made_possible_is_in_the_story() {
        let faults: [fn(&mut Judge); 4] = [
            |judge| judge.forgets(at(1), Some("n")),
            |judge| judge.forgets(at(1), None),
            |judge| judge.freezes(0),
            |judge| {
                judge.ended(at(2), &token(1), End::Lost(Loss::Revoked));
            },
        ];
        for fault in faults {
            let mut judge = Judge::default();
            let doubts = both_work(&mut judge, false);
            fault(&mut judge);
            doubts.iter().for_each(|doubt| judge.settle(at(2), doubt, Kept::default()));
            assert_eq!(breach(&judge), None);
            assert!(judge.story.to_string().contains("a fault did that"), "{}", judge.story);
        }
        let mut judge = Judge::default();
        judge.forgets(at(0), Some("n"));
        judge.forgets(at(1), Some("other"));
        let doubts = both_work(&mut judge, false);
        doubts.iter().for_each(|doubt| judge.settle(at(2), doubt, Kept::default()));
        assert_eq!(breach(&judge), Some(Breach::Overlap), "those faults were none of it");
    }

    #[test]
    fn readers_and_those_of_one_hold_may_work_at_once() {
        let mut judge = Judge::default();
        assert!(both_work(&mut judge, true).is_empty());
        let again = judge.enter(at(3), token(2), Some(Lease::new(1, false, at(2))));
        assert_eq!(again.doubts.len(), 1, "with the reader that has token 1");
        let mut judge = Judge::default();
        let _ = judge.enter(at(1), token(1), Some(Lease::new(0, false, at(1))));
        let nested = judge.enter(at(1), token(1), Some(Lease::new(0, false, at(1))));
        assert!(nested.doubts.is_empty());
    }

    #[test]
    fn work_in_the_wrong_order_is_in_doubt() {
        let mut judge = Judge::default();
        let first = judge.enter(at(1), token(2), Some(Lease::new(0, false, at(1))));
        judge.leave(at(2), first.id);
        let second = judge.enter(at(3), token(1), Some(Lease::new(1, false, at(3))));
        assert_eq!(second.doubts.len(), 1);
        judge.settle(at(3), &second.doubts[0], Kept::default());
        assert_eq!(breach(&judge), Some(Breach::Overlap));
    }

    #[test]
    fn writes_are_accepted_in_the_order_of_their_tokens() {
        let mut judge = Judge::default();
        judge.granted(token(5), Lease::new(0, true, at(0)));
        for fence in [1, 1, 3, 5, 4] {
            judge.write(at(1), token(fence), None);
        }
        assert_eq!(breach(&judge), None, "that of a reader binds no writer");
        judge.write(at(1), token(3), None);
        assert_eq!(breach(&judge), Some(Breach::Order));
    }
}
