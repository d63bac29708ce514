//! The oracle: what must be true at each moment, whatever the store and the network do.

mod alone;
mod services;

use super::plan::{HoldId, Plan, ms};
use super::server::{Server, excludes, permits};
use super::service::ELECTION;
use alone::Alone;
use leasehold::clock::Instant;
use leasehold::store::{Absence, Mode, Name};
use leasehold::{ErrorKind, Lease, Loss};
use services::Services;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use tokio_util::sync::CancellationToken;

macro_rules! sometimes {
    ($($name:ident,)+) => {
        /// What must have happened in some run, or the simulation shows less than it says.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Sometimes { $($name),+ }

        impl Sometimes {
            pub const ALL: &[Self] = &[$(Self::$name),+];
        }
    };
}

sometimes! {
    Loss,
    BlipSurvived,
    Duplicate,
    LateExecution,
    Reconnect,
    HandOff,
    AskedToYield,
    ContendedWait,
    ReGrant,
    CrashTakeOver,
    ReleasedGrant,
    Sweep,
    WoundedOverlap,
    Thaw,
    Close,
    LeftAlone,
    Abandoned,
    Deserted,
    Spin,
    Flood,
    RuntimeStalled,
    RuntimeEnded,
    TaskUnwound,
    LogPanicked,
    LogPanickedInCall,
    LogBlocked,
    LogSlow,
    ReadersTogether,
    PermitsTogether,
    Downgrade,
    Upgrade,
    UpgradeRefused,
    NestedInWrite,
    Led,
    LedAgain,
    SawLeader,
    JobRan,
    JobFailed,
    JobBefore,
    JobElsewhere,
}

/// A moment, by the simulation's milliseconds and by leasehold's clock.
#[derive(Clone, Copy)]
pub struct Moment {
    pub now: u64,
    pub at: Instant,
}

/// A flow of control that has, or had until just now, the leases of one hold.
pub struct Belief {
    pub id: u64,
    pub name: Name,
    pub client: usize,
    pub task: u64,
    pub hold: HoldId,
    pub mode: Mode,
    /// It is a writer's that asked to be a reader, and may have become one.
    downgrades: bool,
    fence: u64,
    opened: u64,
    /// When it may have been granted at the earliest.
    granted: u64,
    lost: Option<Loss>,
    leases: Vec<Held>,
}

struct Held {
    id: u64,
    token: CancellationToken,
    /// Its end was asked for.
    leaving: bool,
}

impl Belief {
    fn lives(&self) -> bool {
        self.leases.iter().any(|lease| !lease.token.is_cancelled())
    }

    fn count(&self) -> u32 {
        self.leases.iter().filter(|lease| !lease.leaving).count() as u32
    }
}

/// Somebody who waits in `lock` or the like.
pub struct Wait {
    pub id: u64,
    pub name: Name,
    pub client: usize,
    pub task: u64,
    pub since: u64,
    /// It stands in line from its first moment.
    pub in_line: bool,
    /// Its turn went to a call that was not polled before, and it has not asked since.
    pub turn_taken: bool,
    /// It stays until it is served.
    pub patient: bool,
    pub mode: Mode,
}

/// What is known of a token.
#[derive(Default)]
struct Known {
    confirmed: Option<Instant>,
    /// When the server last granted it.
    created: u64,
    /// When a verdict said that it is gone.
    saw_lost: Option<u64>,
    at_risk: bool,
    /// The server lost or may have lost its key by an injected fault.
    wounded: bool,
    first_fence: u64,
    last_fence: u64,
    /// Its last lease was left to expire.
    forgotten: bool,
    /// How many holders had it.
    holders: u32,
    /// When its mode was changed: a verdict on a renewal from before that tells the holder nothing.
    changed: Option<Instant>,
    /// How many requests to make a reader of it have no answer yet. Then it may be told that the name is taken, by itself.
    downgrades: u32,
    /// Since when its holder has it, in whichever mode.
    opened: u64,
    /// When somebody who asked for it was last there.
    sought: u64,
    /// When a flow of control last had a lease of it.
    had: u64,
}

/// The greatest fences of a name.
#[derive(Clone, Copy, Default)]
struct Newest {
    all: u64,
    /// Of those who did not read.
    writers: u64,
}

#[derive(Default)]
pub struct Judge {
    pub failure: Option<String>,
    pub counts: Vec<u64>,
    pub log: Option<Vec<String>>,
    pub beliefs: Vec<Belief>,
    pub waits: Vec<Wait>,
    known: BTreeMap<HoldId, Known>,
    fences: BTreeMap<Name, Newest>,
    /// The token that each task asks for.
    seeking: BTreeMap<u64, HoldId>,
    /// What the store refused a task's acquire with.
    pub refused: BTreeMap<u64, ErrorKind>,
    /// When each name was last seen taken.
    taken: BTreeMap<Name, u64>,
    /// Since when nothing goes wrong.
    pub calm_since: Option<u64>,
    /// Processes that died or were closed: what they left behind is not swept.
    pub gone: BTreeSet<usize>,
    pub crashed: BTreeSet<usize>,
    pub closing: BTreeSet<usize>,
    pub revoking: BTreeSet<usize>,
    /// Holds that were forced open, of which a note says so.
    pub forced: BTreeSet<HoldId>,
    alone: Vec<Alone>,
    /// When the store last said who has a name, to each process.
    heard: BTreeMap<(usize, Name), u64>,
    /// When a client last asked for a name by a request that never ends.
    hung: BTreeMap<(usize, Name), u64>,
    /// Until when a process may let others go first, which have heard that it gave a name back.
    paused: BTreeMap<(usize, Name), u64>,
    /// When a process last had a name.
    own: BTreeMap<(usize, Name), u64>,
    ids: u64,
    /// Jobs, and what views of an election have shown.
    pub services: Services,
}

impl Judge {
    pub fn new(keep_log: bool) -> Self {
        let counts = vec![0; Sometimes::ALL.len()];
        Self { counts, log: keep_log.then(Vec::new), ..Self::default() }
    }

    pub fn note(&mut self, now: u64, event: fmt::Arguments<'_>) {
        if let Some(log) = &mut self.log {
            log.push(format!("{now:>7} {event}"));
        }
    }

    /// The first failure counts; the rest may follow from it.
    pub fn fail(&mut self, now: u64, why: fmt::Arguments<'_>) {
        self.note(now, format_args!("FAILED: {why}"));
        if self.failure.is_none() {
            self.failure = Some(format!("at {now} ms: {why}"));
        }
    }

    pub fn saw(&mut self, what: Sometimes) {
        self.counts[what as usize] += 1;
    }

    fn id(&mut self) -> u64 {
        self.ids += 1;
        self.ids
    }

    fn known(&mut self, hold: HoldId) -> &mut Known {
        self.known.entry(hold).or_default()
    }

    pub fn is_wounded(&self, hold: HoldId) -> bool {
        self.known.get(&hold).is_some_and(|known| known.wounded)
    }

    /// An injected fault took the key away, or may have.
    pub fn wound(&mut self, now: u64, hold: HoldId) {
        self.note(now, format_args!("wounded {hold:?}"));
        self.known(hold).wounded = true;
    }

    pub fn is_calm_for(&self, now: u64, time: u64) -> bool {
        self.calm_since.is_some_and(|since| now >= since + time)
    }

    // Waiting.

    pub fn wait(&mut self, mut wait: Wait) -> u64 {
        wait.id = self.id();
        let id = wait.id;
        self.refused.remove(&wait.task);
        self.note(
            wait.since,
            format_args!("c{} t{} waits for {} {:?}", wait.client, wait.task, wait.name, wait.mode),
        );
        self.waits.push(wait);
        id
    }

    /// A wait ended; `served` by an outermost grant.
    pub fn wait_ends(&mut self, now: u64, id: u64, served: bool) {
        let Some(at) = self.waits.iter().position(|wait| wait.id == id) else { return };
        let wait = self.waits.remove(at);
        self.note(now, format_args!("c{} t{} waits no longer", wait.client, wait.task));
        if let Some(hold) = self.seeking.remove(&wait.task) {
            self.known(hold).sought = now;
        }
        // A call that was not polled can be granted what it asked before. That takes the turn of the call that has asked since,
        // which learns so when it asks again.
        if served && self.was_left_alone(&wait) {
            for other in &mut self.waits {
                let behind =
                    other.id > wait.id && (other.client, &other.name) == (wait.client, &wait.name);
                other.turn_taken |= behind && self.seeking.contains_key(&other.task);
            }
        }
        let overtaken = self.waits.iter().find(|other| {
            (other.client, &other.name) == (wait.client, &wait.name)
                && other.in_line
                && !other.turn_taken
                && other.id < wait.id
                // Readers ask side by side.
                && (other.mode, wait.mode) != (Mode::Read, Mode::Read)
        });
        // An attempt for permits asks beside a request that has no answer yet.
        let beside = !wait.in_line && permits(wait.mode) > 0;
        if let (true, Some(other)) = (served && !beside, overtaken) {
            let (task, other, modes) = (wait.task, other.task, (wait.mode, other.mode));
            self.fail(
                now,
                format_args!("task {task} overtook task {other} in the line: {modes:?}"),
            );
        }
    }

    /// The holds that a process believes in, and rightly so.
    pub fn held_by(&self, client: usize) -> Vec<HoldId> {
        let sound =
            |each: &&Belief| each.client == client && each.lives() && !self.is_wounded(each.hold);
        self.beliefs.iter().filter(sound).map(|each| each.hold).collect()
    }

    // Leases.

    /// A flow of control has a new hold.
    pub fn open(
        &mut self,
        plan: &Plan,
        moment: Moment,
        who: (usize, u64),
        lease: &Lease,
    ) -> (u64, u64) {
        self.open_in(plan, moment, who, (lease, Mode::Exclusive, false))
    }

    /// A flow of control has a new hold, or one in another mode.
    pub fn open_in(
        &mut self,
        plan: &Plan,
        moment: Moment,
        (client, task): (usize, u64),
        (lease, mode, changed): (&Lease, Mode, bool),
    ) -> (u64, u64) {
        let Moment { now, at } = moment;
        let name = Name::new(lease.name()).expect("it was locked");
        let fence = lease.fence().unwrap_or_default();
        let hold = (client, number_of(lease));
        self.note(
            now,
            format_args!(
                "c{client} t{task} has {name} as {hold:?}, fence +{}",
                fence % 1_000_000_000
            ),
        );
        let wounded = self.is_wounded(hold);
        let mut failures = Vec::new();
        let (mut overlaps, mut together) = (0, None);
        let here = |other: &&Belief| other.name == name && other.lives();
        let sure: u32 = self
            .beliefs
            .iter()
            .filter(|other| here(other) && !self.is_wounded(other.hold))
            .map(|other| permits(other.mode))
            .sum();
        if let (Mode::Permits { size, take }, false) = (mode, wounded)
            && sure + take > size
        {
            failures.push(format!("t{task} has {take} permits of {name}, of which {sure} are out"));
        }
        for other in self.beliefs.iter().filter(here) {
            if !excludes(mode, other.mode) {
                if mode == Mode::Read && hold != other.hold && fence == other.fence {
                    failures.push(format!("t{task} and t{} share a fence", other.task));
                }
                together = Some(match mode {
                    Mode::Read => Sometimes::ReadersTogether,
                    _ => Sometimes::PermitsTogether,
                });
                continue;
            }
            if !wounded && !self.is_wounded(other.hold) {
                failures.push(format!("t{task} and t{} both hold {name}", other.task));
            } else if !wounded && fence <= other.fence {
                failures.push(format!("t{task}'s fence is not above that of t{}", other.task));
            }
            overlaps += 1;
        }
        if overlaps > 0 {
            self.saw(Sometimes::WoundedOverlap);
        }
        together.into_iter().for_each(|what| self.saw(what));
        let newest = self.fences.entry(name.clone()).or_default();
        // Readers at one time may be answered in any order, or join a hold that is older than that of another.
        let before = if mode == Mode::Read { newest.writers } else { newest.all };
        if fence <= before && !wounded && permits(mode) == 0 {
            failures.push(format!("the fence {fence} of {name} comes after {before}"));
        }
        newest.all = newest.all.max(fence);
        if mode != Mode::Read {
            newest.writers = newest.writers.max(fence);
        }
        let known = self.known(hold);
        if changed {
            (known.holders, known.changed) = (0, Some(at));
        }
        let passed = known.holders > 0;
        // A reader of the same process joins the hold, and has its fence. `max_hold` counts from the grant.
        let joins = passed && mode == Mode::Read;
        if !changed && !joins {
            known.opened = now;
        }
        let opened = known.opened;
        if passed {
            if joins && fence != known.last_fence {
                failures.push(format!("{hold:?} was joined with another fence"));
            }
            if fence <= known.last_fence && permits(mode) == 0 && !joins {
                failures.push(format!("{hold:?} was passed on with no greater fence"));
            }
            if known.at_risk {
                failures.push(format!("{hold:?} was passed on at risk"));
            }
        } else {
            known.first_fence = fence;
        }
        known.last_fence = fence;
        known.had = now;
        known.holders += u32::from(!joins);
        if known.holders > plan.handoff + 1 {
            failures.push(format!("{hold:?} was passed on {} times", known.holders - 1));
        }
        match known.confirmed {
            None => failures.push(format!("{hold:?} was never granted")),
            Some(sent) => {
                let left = (sent + plan.deadline()).saturating_duration_since(at);
                // A campaign also writes its value before it returns, which takes two attempts if nothing answers.
                let writes = if name.as_str() == ELECTION { 2 * plan.attempt() } else { 0 };
                if left < ms((plan.ttl / 2).saturating_sub(writes)) {
                    failures.push(format!("a new holder has but {left:?} of {hold:?}"));
                }
            }
        }
        if passed && !joins {
            self.saw(Sometimes::HandOff);
        }
        for failure in failures {
            self.fail(now, format_args!("{failure}"));
        }
        let id = self.id();
        self.beliefs.push(Belief {
            id,
            name,
            client,
            task,
            hold,
            mode,
            downgrades: false,
            fence,
            opened,
            granted: opened,
            lost: None,
            leases: Vec::new(),
        });
        (id, self.enter(id, lease))
    }

    /// A writer asks to become a reader: from now on it believes in no more than that.
    pub fn downgrades(&mut self, id: u64) {
        if let Some(belief) = self.belief(id) {
            (belief.mode, belief.downgrades) = (Mode::Read, true);
        }
    }

    fn belief(&mut self, id: u64) -> Option<&mut Belief> {
        self.beliefs.iter_mut().find(|belief| belief.id == id)
    }

    /// One lease more of a hold.
    pub fn enter(&mut self, belief: u64, lease: &Lease) -> u64 {
        let id = self.id();
        let held = Held { id, token: lease.cancellation_token(), leaving: false };
        if let Some(belief) = self.belief(belief) {
            belief.leases.push(held);
        }
        id
    }

    /// The end of a lease is asked for.
    pub fn leave(&mut self, belief: u64, lease: u64) {
        let leases = self.belief(belief).map(|belief| &mut belief.leases);
        if let Some(held) = leases.and_then(|all| all.iter_mut().find(|held| held.id == lease)) {
            held.leaving = true;
        }
    }

    /// A lease is left to expire.
    pub fn forgets(&mut self, id: u64) {
        if let Some(hold) = self.belief(id).filter(|each| each.count() == 0).map(|each| each.hold) {
            self.known(hold).forgotten = true;
        }
    }

    pub fn is_forgotten(&self, hold: HoldId) -> bool {
        self.known.get(&hold).is_some_and(|known| known.forgotten)
    }

    /// A lease is no more.
    pub fn left(&mut self, belief: u64, lease: u64) {
        if let Some(belief) = self.belief(belief) {
            belief.leases.retain(|held| held.id != lease);
        }
        self.beliefs.retain(|belief| !belief.leases.is_empty());
    }

    /// What a lease says now, against what must be so.
    pub fn sample(&mut self, plan: &Plan, moment: Moment, id: u64, lease: &Lease) {
        let Moment { now, at } = moment;
        let (check, remaining) = (lease.check(), lease.remaining());
        let fired = lease.cancellation_token().is_cancelled();
        let (closing, revoking) = (self.closing.clone(), self.revoking.clone());
        let forced = self.forced.clone();
        let Some(belief) = self.beliefs.iter().find(|each| each.id == id) else { return };
        let known = &self.known[&belief.hold];
        let end = known.confirmed.map(|sent| sent + plan.believed());
        let ended = end.map_or(now, |end| {
            now.saturating_sub(at.saturating_duration_since(end).as_millis() as u64)
        });
        let (hold, client, was_lost) = (belief.hold, belief.client, belief.lost);
        let loss = check.as_ref().err().and_then(leasehold::Error::loss);
        let mut failures = Vec::new();
        if check.is_ok() == fired {
            failures.push(format!("check() of {hold:?} is {check:?}, the token fired: {fired}"));
        }
        if was_lost.is_some() && loss != was_lost {
            failures.push(format!("{hold:?} was {was_lost:?} and is {loss:?}"));
        }
        if loss.is_some() != remaining.is_zero() {
            failures.push(format!("{hold:?} is {loss:?} with {remaining:?} remaining"));
        }
        if end.is_none_or(|end| remaining > end.saturating_duration_since(at)) {
            failures.push(format!("{hold:?} remains for {remaining:?}, longer than until C"));
        }
        if lease.hold_count() != belief.count() {
            failures.push(format!(
                "{hold:?} counts {}, {} are alive",
                lease.hold_count(),
                belief.count()
            ));
        }
        let fenced = permits(belief.mode) == 0;
        if lease.fence() != fenced.then_some(belief.fence) {
            failures.push(format!("the fence of {hold:?} changed"));
        }
        if let (Some(loss), None) = (loss, was_lost) {
            let justified = match loss {
                // In fair weather it is renewed.
                Loss::Expired => {
                    end.is_some_and(|end| at >= end) && !self.is_calm_for(ended, plan.settled())
                }
                Loss::Gone | Loss::Taken => known.wounded,
                Loss::MaxHold => plan.max_hold.is_some_and(|max| now + 1 >= belief.granted + max),
                Loss::Revoked => revoking.contains(&client) || forced.contains(&hold),
                Loss::Closed => closing.contains(&client),
                _ => false,
            };
            if !justified {
                failures.push(format!("{hold:?} was lost for no reason: {loss:?}"));
            }
            self.saw(Sometimes::Loss);
            self.note(now, format_args!("{hold:?} is lost: {loss:?}"));
        }
        for failure in failures {
            self.fail(now, format_args!("{failure}"));
        }
        if let (Some(belief), Some(_)) = (self.belief(id), loss) {
            belief.lost = loss;
        }
    }

    // What is sent, done by the server, and heard.

    pub fn acquire_sent(&mut self, now: u64, hold: HoldId, task: Option<u64>) {
        let Some(task) = task else { return };
        let asks = self.waits.iter_mut().filter(|wait| wait.task == task);
        asks.for_each(|wait| wait.turn_taken = false);
        let before = self.seeking.insert(task, hold);
        if let Some(before) = before.filter(|before| *before != hold) {
            // It was granted too late, or its future was not polled for a while.
            self.known(before).sought = now;
        }
    }

    /// Who believes in a hold, in whichever mode.
    pub fn believer(&self, hold: HoldId) -> Option<(u64, Mode)> {
        let believer = self.beliefs.iter().find(|each| each.hold == hold && each.lives());
        believer.map(|each| (each.id, each.mode))
    }

    pub fn release_sent(&mut self, now: u64, hold: HoldId, count: u32) {
        let believer = self.beliefs.iter().find(|each| each.hold == hold && each.lives());
        if let (0, Some(task)) = (count, believer.map(|each| each.task)) {
            self.fail(now, format_args!("{hold:?} is released while t{task} believes"));
        }
    }

    pub fn renewal_sent(&mut self, plan: &Plan, moment: Moment, hold: HoldId) {
        let confirmed = self.known(hold).confirmed;
        if confirmed.is_none_or(|sent| moment.at >= sent + plan.believed()) {
            self.fail(moment.now, format_args!("a renewal of {hold:?} is sent after C"));
        }
        self.is_renewed(plan, moment.now, hold);
    }

    /// The server granted the name to a new token, or in another mode.
    pub fn created(&mut self, now: u64, name: &Name, hold: HoldId, mode: Mode) {
        self.taken.insert(name.clone(), now);
        self.known(hold).created = now;
        let wounded = |belief: &&Belief| self.is_wounded(belief.hold);
        let believers = self.beliefs.iter().filter(|each| each.name == *name && each.lives());
        let strangers = believers.filter(|each| each.hold != hold && !wounded(each));
        let mut others = strangers.clone().filter(|each| excludes(each.mode, mode));
        if let Some(task) = others.next().map(|each| each.task) {
            self.fail(now, format_args!("{name} goes to {hold:?} while t{task} believes"));
            return;
        }
        let out: u32 = strangers.map(|each| permits(each.mode)).sum();
        if let Mode::Permits { size, take } = mode
            && out + take > size
        {
            let text = format_args!("{take} permits of {name} go to {hold:?} while {out} are out");
            self.fail(now, text);
        }
    }

    /// The server took a name back. After a long hold its process may wait for a tenth of that time, to let others go first.
    pub fn released(&mut self, now: u64, name: &Name, hold: HoldId) {
        self.note(now, format_args!("{name} is given back by {hold:?}"));
        let opened = self.known.get(&hold).map(|known| known.opened).filter(|opened| *opened > 0);
        let opened = opened.unwrap_or(now);
        let pause = (now.saturating_sub(opened) / 10).min(500);
        self.paused.insert((hold.0, name.clone()), now + pause);
    }

    /// The client heard a confirmation of what it sent at `sent`.
    pub fn confirmed(&mut self, plan: &Plan, moment: Moment, hold: HoldId, sent: Instant) {
        let lives = self.beliefs.iter().any(|each| each.hold == hold && each.lives());
        let known = self.known(hold);
        let at_risk = std::mem::take(&mut known.at_risk);
        // After C nothing counts.
        if known.confirmed.is_none_or(|before| moment.at < before + plan.believed()) {
            known.confirmed = known.confirmed.max(Some(sent));
            if at_risk && lives {
                self.saw(Sometimes::BlipSurvived);
            }
        }
    }

    /// A renewal failed that was sent at `sent`.
    pub fn failed(&mut self, hold: HoldId, sent: Instant) {
        let known = self.known(hold);
        if known.changed.is_some_and(|changed| sent < changed) {
            return;
        }
        known.at_risk |= known.confirmed.is_none_or(|since| since < sent);
    }

    pub fn saw_lost(&mut self, now: u64, hold: HoldId) {
        self.known(hold).saw_lost.get_or_insert(now);
    }

    /// A renewal told its holder that it is not there.
    pub fn saw_absent(&mut self, now: u64, hold: HoldId, absence: Absence) {
        if absence != Absence::Taken || self.known(hold).downgrades == 0 {
            self.saw_lost(now, hold);
        }
    }

    pub fn downgrade_sent(&mut self, hold: HoldId) {
        self.known(hold).downgrades += 1;
    }

    pub fn downgrade_answered(&mut self, hold: HoldId) {
        self.known(hold).downgrades -= 1;
    }

    pub fn was_held(&self, hold: HoldId) -> bool {
        self.known.get(&hold).is_some_and(|known| known.holders > 0)
    }

    // At any time.

    pub fn watch(&mut self, plan: &Plan, moment: Moment, server: &mut Server) {
        self.watch_beliefs(plan, moment, server);
        self.watch_alone(plan, moment);
        if self.is_calm_for(moment.now, plan.settled()) {
            self.watch_waits(plan, moment.now, server);
            self.watch_orphans(plan, moment.now, server);
            self.watch_kept(plan, moment.now, server);
        }
    }

    fn watch_beliefs(&mut self, plan: &Plan, Moment { now, at }: Moment, server: &mut Server) {
        let mut failures = Vec::new();
        for belief in self.beliefs.iter().filter(|belief| belief.lives()) {
            let (hold, known) = (belief.hold, &self.known[&belief.hold]);
            let Some(sent) = known.confirmed else { continue };
            if at > sent + plan.believed() + ms(2) {
                failures.push(format!("{hold:?} is believed after C"));
            }
            if plan.max_hold.is_some_and(|max| now > belief.opened + max + 2) {
                failures.push(format!("{hold:?} outlived max_hold"));
            }
            if known.saw_lost.is_some_and(|reported| now > reported + 2) && known.changed.is_none()
            {
                failures.push(format!("{hold:?} is believed though the store said it is gone"));
            }
            let left = server.left_of(&belief.name, hold, now).unwrap_or(0);
            let believed = (sent + plan.deadline()).saturating_duration_since(at);
            if !known.wounded && u128::from(left) < believed.as_micros() {
                failures.push(format!("{hold:?} has {left} µs, less than until D: {believed:?}"));
            }
        }
        for failure in failures {
            self.fail(now, format_args!("{failure}"));
        }
    }

    /// No wake-up is lost for longer than the poll bound.
    fn watch_waits(&mut self, plan: &Plan, now: u64, server: &mut Server) {
        let settled = self.calm_since.map_or(now, |since| since + plan.settled());
        let mut names: Vec<Name> = self.waits.iter().map(|wait| wait.name.clone()).collect();
        names.sort();
        names.dedup();
        for name in names {
            let believed = self.beliefs.iter().any(|each| each.name == name && each.lives());
            if believed || server.is_taken(&name, now) {
                self.taken.insert(name, now);
                continue;
            }
            let taken = self.taken.get(&name).copied().unwrap_or(0).max(settled);
            let waiting = |wait: &&Wait| {
                wait.name == name && wait.patient && !self.gone.contains(&wait.client)
            };
            let since = |wait: &Wait| {
                let paused = self.paused.get(&(wait.client, wait.name.clone()));
                wait.since
                    .max(self.held_up(wait.client, &wait.name))
                    .max(paused.copied().unwrap_or(0))
            };
            let first = self.waits.iter().filter(waiting).map(since).min();
            // The place of a reader or writer that went away is kept for three.
            let polls = if name.as_str().starts_with('r') { 4 } else { 1 };
            let bound = polls * plan.poll + plan.slack();
            if first.is_some_and(|first| now > first.max(taken).saturating_add(bound)) {
                self.taken.insert(name.clone(), now);
                self.fail(now, format_args!("{name} is free and waited for since {taken} ms"));
            }
        }
    }

    /// What was granted to nobody is given back.
    fn watch_orphans(&mut self, plan: &Plan, now: u64, server: &mut Server) {
        let bound = plan.ttl / 10 + 2 * plan.attempt() + plan.ttl / 20 + plan.slack();
        for (name, entry) in server.entries(now) {
            let hold = entry.hold;
            let sought = self.seeking.values().any(|sought| *sought == hold);
            let known = self.known.entry(hold).or_default();
            let excused =
                known.holders > 0 || known.wounded || sought || self.gone.contains(&hold.0);
            if !excused && now > entry.granted.max(known.sought) + bound {
                known.wounded = true;
                self.fail(now, format_args!("{name} stays with {hold:?}, which nobody has"));
            }
        }
    }
}

/// Which token a lease has.
pub fn number_of(lease: &Lease) -> u64 {
    lease.holder_id().number()
}
