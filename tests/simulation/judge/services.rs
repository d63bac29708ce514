//! What a service may rely on: a job that is done is not done again while its key is closed, and terms never go back.

use super::{Judge, Sometimes};
use crate::plan::{HoldId, Plan};
use std::collections::{BTreeMap, BTreeSet};

/// Jobs of one key, and what views of one election have shown.
#[derive(Default)]
pub struct Services {
    /// When a body began, and by which hold.
    begun: Vec<(u64, HoldId)>,
    done: Vec<Done>,
    /// The greatest term that the view of a process has shown.
    terms: BTreeMap<usize, u64>,
    /// Tasks that ask for a name by a call that has the lease for a while before its caller does.
    pub asking: BTreeSet<u64>,
}

/// A body that returned `Ok`.
struct Done {
    at: u64,
    hold: HoldId,
    /// For how long the key was to be closed, in milliseconds.
    keep: u64,
    /// The store has confirmed it.
    confirmed: bool,
}

impl Done {
    /// By a server's clock that is too fast.
    fn closed_until(&self) -> u64 {
        self.at + self.keep - self.keep / 50 - 2
    }
}

impl Judge {
    /// Whether a hold is one that a candidate was granted, and has not told its value yet.
    pub(super) fn is_on_its_way(&self, hold: HoldId) -> bool {
        self.services.asking.iter().any(|task| self.seeking.get(task) == Some(&hold))
    }

    /// A leader has its lease for a while before it leads.
    pub fn leads(&mut self, belief: u64, task: u64) {
        let since = self.waits.iter().find(|wait| wait.task == task).map(|wait| wait.since);
        if let (Some(belief), Some(since)) = (self.belief(belief), since) {
            belief.granted = since;
        }
    }

    /// A fault took away what the server had granted before this time.
    fn was_wounded_before(&self, hold: HoldId, time: u64) -> bool {
        self.known.get(&hold).is_some_and(|known| known.wounded && known.created <= time)
    }

    /// The body of a job begins.
    pub fn job_begins(&mut self, now: u64, hold: HoldId) {
        let done = self.services.done.iter().filter(|done| done.confirmed);
        let sound = |done: &&Done| now < done.closed_until() && !self.is_wounded(done.hold);
        let again = done.clone().find(sound).map(|done| (done.hold, done.at));
        if let Some((other, at)) = again
            && !self.was_wounded_before(hold, at)
        {
            self.fail(now, format_args!("{hold:?} runs the job that {other:?} did at {at} ms"));
        }
        self.services.begun.push((now, hold));
    }

    /// The body returned `Ok`.
    pub fn job_is_done(&mut self, now: u64, hold: HoldId, keep: u64) {
        self.services.done.push(Done { at: now, hold, keep, confirmed: false });
    }

    /// The store has confirmed that the key is closed.
    pub fn job_ran(&mut self, now: u64, hold: HoldId) {
        self.saw(Sometimes::JobRan);
        let wounded = self.is_wounded(hold);
        let Some(done) = self.services.done.iter_mut().find(|done| done.hold == hold) else {
            self.fail(now, format_args!("{hold:?} ran a job that nobody did"));
            return;
        };
        done.confirmed = true;
        let closed = done.at + 1..done.closed_until();
        let done_at = done.at;
        let again =
            self.services.begun.iter().find(|(at, other)| {
                closed.contains(at) && !self.was_wounded_before(*other, done_at)
            });
        if let (Some((at, other)), false) = (again.copied(), wounded) {
            self.fail(now, format_args!("{other:?} runs at {at} ms the job that {hold:?} did"));
        }
    }

    /// Somebody who asked at `since` is told that the job was done before.
    pub fn job_was_before(&mut self, plan: &Plan, now: u64, since: u64) {
        self.saw(Sometimes::JobBefore);
        // A mark may arrive late, and a clock may be set back.
        let late = 4 * plan.ttl;
        let closed = |done: &Done| done.at <= now && since <= done.at + done.keep + late;
        if !self.services.done.iter().any(closed) {
            self.fail(now, format_args!("a job was done before, and nobody did it"));
        }
    }

    /// A view shows a leader.
    pub fn sees(&mut self, now: u64, client: usize, term: u64) {
        let seen = self.services.terms.entry(client).or_default();
        let before = std::mem::replace(seen, term.max(*seen));
        if term > before {
            self.saw(Sometimes::SawLeader);
        } else if term < before {
            self.fail(now, format_args!("the view of c{client} shows {term} after {before}"));
        }
    }
}
