//! What holds also for those whose futures nobody polls: they keep a name from nobody for longer than T.

use super::{Judge, Moment, Sometimes};
use crate::plan::{HoldId, Plan};
use crate::server::Server;
use leasehold::Lease;
use leasehold::store::Name;

/// A future that nobody polls, or nobody polled for a while.
pub struct Alone {
    client: usize,
    /// Without one it is many.
    task: Option<u64>,
    /// Without one it is any name.
    name: Option<Name>,
    /// Until when those who want the name in its process may have to wait for it.
    until: u64,
    /// Since when it is polled again, or gone; not yet if it is never.
    polled: u64,
}

/// Not yet.
const NEVER: u64 = u64::MAX;

/// For so long a hold may still be renewed: until its next renewal is due, and a request of its own is answered.
fn late(plan: &Plan) -> u64 {
    plan.ttl / 3 + 2 * plan.attempt() + plan.slack()
}

impl Judge {
    /// A future is left alone; `until` says for how long it may keep its own process waiting.
    pub fn left_alone(
        &mut self,
        now: u64,
        (client, task): (usize, u64),
        name: &str,
        until: u64,
    ) -> usize {
        self.saw(Sometimes::LeftAlone);
        self.note(now, format_args!("c{client} t{task} is not polled"));
        let name = Some(Name::new(name).expect("it was locked"));
        self.alone.push(Alone { client, task: Some(task), name, until, polled: NEVER });
        self.alone.len() - 1
    }

    /// Tasks of a process are not polled before `polled`, for which it may have to wait until then.
    pub fn all_alone(&mut self, client: usize, until: u64, polled: u64) {
        self.alone.push(Alone { client, task: None, name: None, until, polled });
    }

    pub fn polled_again(&mut self, now: u64, which: usize) {
        let alone = &mut self.alone[which];
        (alone.until, alone.polled) = (alone.until.min(now), now);
    }

    /// Until when those who want a name in a process may have to wait for a future of its own.
    pub fn held_up(&self, client: usize, name: &Name) -> u64 {
        self.alone_with(client, name).map(|each| each.until).max().unwrap_or(0)
    }

    /// Whether what a process asks now must be answered: nothing goes wrong, and its tasks have all been polled for long.
    pub fn is_fair(&self, plan: &Plan, now: u64, client: usize) -> bool {
        let stalls = self.alone.iter().filter(|each| each.client == client && each.task.is_none());
        let polled = stalls.map(|each| each.polled).max().unwrap_or(0);
        self.is_calm_for(now, plan.settled()) && now > polled.saturating_add(plan.settled())
    }

    /// Whether its own future was not polled for a while.
    pub(super) fn was_left_alone(&self, wait: &super::Wait) -> bool {
        self.alone_with(wait.client, &wait.name)
            .any(|each| each.task == Some(wait.task) && each.polled >= wait.since)
    }

    /// Since when all are polled that want a name in a process.
    fn all_polled(&self, client: usize, name: &Name) -> u64 {
        self.alone_with(client, name).map(|each| each.polled).max().unwrap_or(0)
    }

    fn alone_with(&self, client: usize, name: &Name) -> impl Iterator<Item = &Alone> {
        let own = move |each: &&Alone| {
            each.client == client && each.name.as_ref().is_none_or(|own| own == name)
        };
        self.alone.iter().filter(own)
    }

    /// Nobody else believes in what a lease says it has.
    pub fn has_no_other(&mut self, now: u64, client: usize, lease: &Lease) {
        let hold = (client, super::number_of(lease));
        let other = |each: &&super::Belief| {
            each.name.as_str() == lease.name() && each.hold != hold && each.lives()
        };
        let other = self.beliefs.iter().find(other).map(|each| each.task);
        if let (Some(task), false) = (other, self.is_wounded(hold)) {
            self.fail(now, format_args!("{hold:?} comes late, and t{task} has the name"));
        }
    }

    /// A request about a name never ends, not even by its own time limit.
    pub fn hangs(&mut self, now: u64, client: usize, name: &Name) {
        self.hung.insert((client, name.clone()), now);
    }

    /// The store said who has a name.
    pub fn hears(&mut self, now: u64, client: usize, name: &Name) {
        self.heard.insert((client, name.clone()), now);
    }

    /// A renewal is sent for a hold that somebody has.
    pub(super) fn is_renewed(&mut self, plan: &Plan, now: u64, hold: HoldId) {
        let known = self.known(hold);
        let had = known.had.max(known.sought);
        if known.had == 0 && self.is_on_its_way(hold) {
            return;
        }
        if now > had + late(plan) && !self.gone.contains(&hold.0) {
            self.fail(now, format_args!("{hold:?} is renewed, and nobody has it since {had} ms"));
        }
    }

    pub(super) fn watch_alone(&mut self, plan: &Plan, Moment { now, .. }: Moment) {
        for belief in &self.beliefs {
            self.own.insert((belief.client, belief.name.clone()), now);
            // A call that changes the mode has the lease.
            if belief.lives() && (belief.count() > 0 || belief.downgrades) {
                self.known.entry(belief.hold).or_default().had = now;
            }
        }
        self.watch_silence(plan, now);
    }

    /// Who waits for a name of which the store says nothing is told so.
    fn watch_silence(&mut self, plan: &Plan, now: u64) {
        let mut failures = Vec::new();
        for wait in self.waits.iter().filter(|wait| wait.patient) {
            let place = (wait.client, wait.name.clone());
            let (heard, own) = (self.heard.get(&place), self.own.get(&place));
            // A release that finds no server keeps the turn until the hold's end.
            let own = own.map_or(0, |own| own + plan.ttl);
            let alone = self.held_up(wait.client, &wait.name);
            // A call whose request never ends gives up after T. What another one heard meanwhile does not shorten that.
            let hung = self.hung.get(&place).map_or(0, |hung| hung + plan.ttl);
            let silent = wait.since.max(heard.copied().unwrap_or(0)).max(own).max(alone).max(hung);
            // Each of those before it asks once more.
            let before = |other: &&super::Wait| {
                (other.client, &other.name) == (wait.client, &wait.name) && other.id <= wait.id
            };
            let line = self.waits.iter().filter(before).count() as u64;
            let bound = plan.ttl + plan.poll + 2 * (line + 1) * plan.attempt() + plan.slack();
            let excused = self.gone.contains(&wait.client) || self.closing.contains(&wait.client);
            if now > silent.saturating_add(bound) && !excused {
                failures.push(format!(
                    "t{} waits for {}, and is not told that the store is silent since {silent} ms",
                    wait.task, wait.name
                ));
            }
        }
        for failure in failures {
            self.fail(now, format_args!("{failure}"));
        }
    }

    /// No key is kept for a hold that nobody has: if all are polled, no longer than it takes to give it back; else
    /// no longer than T.
    pub(super) fn watch_kept(&mut self, plan: &Plan, now: u64, server: &mut Server) {
        let settled = self.calm_since.map_or(now, |since| since + plan.settled());
        for (name, entry) in server.entries(now) {
            let hold = entry.hold;
            let all_polled = self.all_polled(hold.0, &name);
            let gone = self.gone.contains(&hold.0);
            let known = self.known.entry(hold).or_default();
            let released = known.holders > 0 && !known.forgotten && !gone;
            let had = known.had.max(entry.granted).max(settled);
            // What was left alone may have been a call that is never answered.
            let all_polled = all_polled.saturating_add(2 * plan.attempt());
            let soon = had.max(all_polled).saturating_add(plan.grace() + plan.slack());
            let since = entry.granted.max(known.had + late(plan)).max(settled);
            let at_last = since + plan.ttl + plan.slack();
            if (now > at_last || released && now > soon) && !known.wounded {
                known.wounded = true;
                self.fail(now, format_args!("{name} stays with {hold:?}, nobody's since {had}"));
            }
        }
    }
}
