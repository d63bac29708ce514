//! The judge: reads a history and finds what must not be in it.
//!
//! # What a holder believes
//!
//! Time is `CLOCK_BOOTTIME`, one clock for all processes of the machine. A holder calls `check()` before each
//! step and notes the time just before the call. Let K be that time for its last check that was Ok. Since
//! a loss is final, that Ok vouches for all the time from the grant to K. And a step that began then may
//! still be under way: the library promises to tell a loss a *grace* (T/10, 10 ms to 2 s) before the store
//! can let anybody else in. So the belief in a lease is
//!
//! ```text
//! [ the call returned,  min(about to give it back,  K + grace) ]
//! ```
//!
//! and is empty without a check that was Ok. It needs no word of a process that was killed or frozen: those
//! do nothing, and what they believed before holds by the clock. Nothing excuses an overlap of it: no
//! stall, no slow network, no crash; only a key that was taken away from its holder (below).
//!
//! A holder who goes by the token alone believes until it wakes, without a grace. A process can wake
//! late, so this is judged only when a thread of that process which only sleeps had its time.
//!
//! # The rules
//!
//! - *overlap*: beliefs in one name never overlap, between processes and inside one.
//! - *fence*: fencing tokens of one name grow in the order of beliefs; a nested lease has that of the outer.
//! - *modes*: of a read-write lock, beliefs of readers may overlap; the fencing tokens of each are larger than those of the
//!   writers before, and smaller than those of the writers after, and no two processes have the same. Who changes the mode is at least a
//!   reader all the while. Of a semaphore, the beliefs have its size in permits together, at most, and no fencing token.
//! - *update*: the values that the guarded resource accepted are 1, 2, 3, .. with tokens that never go back.
//! - *waiting*: nobody waits for a name that is free on the server, over a path without faults, for longer
//!   than the poll bound, two attempts and a reaction; nor beyond a limit of his own; nor for ever.
//! - *orphan*: no key stays on the server of which its process knows nothing, neither a lease nor a wish, for
//!   longer than two attempts and a reaction over a path without faults; and none by a token that no lease ever
//!   had, for longer than that and two sweeps.
//! - *idle*: no key is kept alive that no flow of control has: it is gone a time to live later, and what a renewal
//!   and a request on their way may add.
//! - *silence*: a subscription that says nothing more is replaced within T/3 and a second while somebody waits.
//! - *memory*: what a process keeps in an outage does not grow with its length.
//! - *needless loss*: no lease expires, and no release fails, while nothing is broken. What goes wrong *inside* a process, a log that blocks or
//!   panics, a runtime that ends, a future that nobody polls, breaks nothing for the others and excuses nothing.
//!   Nor does a busy machine, unless threads on the way to the server were ready to run and waited for a processor nearly all the
//!   time.
//! - *term*: what a view of an election shows never goes back, and one holder has a term. That one leads at a time is
//!   *overlap*, and that terms grow is *fence*, since to lead is to hold the name.
//! - *value*: a view shows with a leader the value that it has told, or none, and never that of another.
//! - *job*: after a success, no other run of that job begins within the time for which its key was closed; and nobody is told
//!   that a job was done that nobody did.
//! - *steal*: a thief's fencing token is larger than those of all who had the name before. From some time after it, nobody
//!   with a smaller one believes: until the next renewal of the old holder, and what an attempt may take.
//! - *left over*: no lock key, no key without a time to live, no channel.
//! - *count*: at rest, the store has the hold counts that are believed.
//! - *contradiction*: what a process found by itself, such as a loss that was not final; a manager that says that it
//!   was closed.
//! - *never happened*: a run of a minute must meet what it is for.
//!
//! A *wipe* is the removal of a key by somebody else: FLUSHALL, DEL, a crash without persistence,
//! `force_unlock`. The old holder learns of it at its next contact, or by the clock: no renewal is confirmed
//! after the wipe, so its belief ends before wipe + T. Overlaps and fences out of order are excused in that
//! time, and in no other. A steal is excused in the same way, since it is documented to let two believe: only the rule *steal*
//! bounds that more closely, where nothing is broken. The rule *update* has no such excuse: there the smaller token must be refused.
//!
//! # By store
//!
//! Behind sentinels, what was granted while one primary *replaced* another may be unknown to the new one: the
//! documentation says so. Overlaps with a lease that was granted from a second before that until its end are excused
//! until then + T, as after a wipe. Of an older lease the new primary may lack the last renewal, so its key can expire up
//! to T/3 early; a holder that is awake verifies that at once, and only one that stands still after the failover is
//! excused. Where one *succeeded* another that goes on
//! granting, because the sentinels do not agree, all that are awake are told soon: for those, that is the end of it. A
//! primary that has not crashed serves until the sentinels make it a replica, up to ten seconds later, so a process that
//! stood still meanwhile may be granted a name by it until a second after it wakes.
//!
//! In a quorum there are no fencing tokens, so *fence* and *update* are not judged. And no wipe: that a node forgets
//! costs no exclusion. But if it was one of the only two that had a lease, its holder is told that it is gone, and
//! the rest is given back at once, without a grace: overlaps after his last check that was Ok are excused.
//! Whoever is let in before that check is found.
//!
//! All that is excused is counted, and the report says how much it was.

mod bounds;
mod coverage;
mod jobs;
mod keys;
mod rules;
mod shared;
mod steals;
mod terms;

pub use rules::LONG_RUN;

use crate::soak::history::{Event, What};
use crate::soak::leases::{Kind, Lease, Mode, Setting, leases, settings};
use rules::Rules;
use std::collections::{BTreeMap, HashMap, HashSet};

/// From an event that makes a waiter ask to the grant: a scheduler, a round trip.
const REACTION: u64 = 150_000_000;
/// So long nobody waits whose path is without faults, with a few dozen rivals who may hold for 2 T.
const LONGEST_WAIT: u64 = 60_000_000_000;
/// A `force_unlock` without an answer may come so much later.
const FORCED_LATE: u64 = 10_000_000_000;
const SECOND: u64 = 1_000_000_000;
/// Who says how long threads of the servers and proxies waited for a processor.
const MACHINE: &str = "soak";

#[derive(Clone, Debug)]
pub struct Finding {
    pub rule: &'static str,
    pub at: u64,
    pub text: String,
}

/// An overlap that nobody promised to prevent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excused {
    pub why: Excuse,
    pub nanos: u64,
}

/// Why others may have been let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Excuse {
    /// The key was taken away.
    Wiped,
    /// Somebody has stolen it.
    Stolen,
    /// Another primary serves, which had not been told of the grant.
    Replaced,
    /// The store had told the holder, who had no grace.
    Reported,
}

pub struct Verdict {
    pub findings: Vec<Finding>,
    pub excused: Vec<Excused>,
    /// What was met, and how often.
    pub coverage: Vec<(&'static str, u64)>,
    pub leases: Vec<Lease>,
}

/// A span in which something was so.
type Span = (u64, u64);

/// A name whose holder may be overtaken, and why.
struct Wipe {
    name: String,
    span: Span,
    why: Excuse,
    /// Whether who was awake knows of it at its end.
    known: bool,
}

struct Case<'a> {
    history: &'a [Event],
    settings: HashMap<String, Setting>,
    leases: Vec<Lease>,
    wipes: Vec<Wipe>,
    rules: Rules,
    excused: Vec<Excused>,
    /// By process or server.
    faults: Vec<(&'a str, &'a str, Span)>,
    stalls: HashMap<&'a str, Vec<Span>>,
    /// When threads waited for a processor: by process, those of the servers and the proxies by [`MACHINE`].
    starved: HashMap<&'a str, Vec<Span>>,
    /// Processes that say which token a lease has.
    known_tokens: HashSet<&'a str>,
    findings: Vec<Finding>,
}

/// Judges a history, whose events are in the order of time.
pub fn judge(history: &[Event]) -> Verdict {
    let mut case = Case {
        history,
        settings: settings(history),
        leases: leases(history),
        wipes: wipes(history),
        rules: rules(history),
        excused: Vec::new(),
        faults: Vec::new(),
        stalls: HashMap::new(),
        starved: HashMap::new(),
        known_tokens: keys::known_tokens(history),
        findings: Vec::new(),
    };
    for Event { at, who, what } in history {
        match what {
            What::Fault { until, on, kind } => case.faults.push((on, kind, (*at, *until))),
            What::Stalled { ms } => {
                let span = (at.saturating_sub(ms * 1_000_000), *at);
                case.stalls.entry(who).or_default().push(span);
            }
            What::Starved { ms } => {
                let span = (at.saturating_sub(ms * 1_000_000), *at);
                case.starved.entry(who).or_default().push(span);
            }
            _ => {}
        }
    }
    let beliefs: Vec<_> = case.leases.iter().map(|lease| case.belief(lease)).collect();
    for (lease, belief) in case.leases.iter_mut().zip(beliefs) {
        lease.believed = belief;
    }
    case.overlaps_and_fences();
    case.updates();
    case.jobs();
    case.steals();
    case.terms();
    case.waits();
    case.keys_of_nobody();
    case.needless();
    case.silences();
    case.floods();
    case.ends();
    let coverage = case.coverage();
    case.missing(&coverage);
    case.findings.sort_by_key(|finding| finding.at);
    Verdict { findings: case.findings, excused: case.excused, coverage, leases: case.leases }
}

fn rules(history: &[Event]) -> Rules {
    let store = history.iter().find_map(|event| match &event.what {
        What::Run { store, .. } => Some(store.as_str()),
        _ => None,
    });
    Rules::of(store.unwrap_or_default())
}

fn wipes(history: &[Event]) -> Vec<Wipe> {
    let mut wipes = Vec::new();
    // Forced releases and steals that have begun.
    let mut forcing: BTreeMap<(&str, u64), usize> = BTreeMap::new();
    for Event { at, who, what } in history {
        let mut wipe = |name: &String, until: u64, why| {
            wipes.push(Wipe { name: name.clone(), span: (*at, until), why, known: false });
        };
        match what {
            What::Wiped { until, name } => wipe(name, *until, Excuse::Wiped),
            What::Replaced { until, name } => wipe(name, *until, Excuse::Replaced),
            What::Succeeded { until, name } => {
                wipe(name, *until, Excuse::Replaced);
                wipes.last_mut().expect("just made").known = true;
            }
            What::Forcing { ask, name } => {
                wipe(name, at + FORCED_LATE, Excuse::Wiped);
                forcing.insert((who, *ask), wipes.len() - 1);
            }
            What::Stealing { ask, name } => {
                wipe(name, at + FORCED_LATE, Excuse::Stolen);
                forcing.insert((who, *ask), wipes.len() - 1);
            }
            What::Forced { ask } | What::Stolen { ask } => {
                if let Some(which) = forcing.get(&(who.as_str(), *ask)) {
                    wipes[*which].span.1 = *at;
                }
            }
            _ => {}
        }
    }
    wipes
}

fn overlap(one: Span, other: Span) -> Option<Span> {
    let common = (one.0.max(other.0), one.1.min(other.1));
    (common.0 < common.1).then_some(common)
}

impl Case<'_> {
    fn find(&mut self, rule: &'static str, at: u64, text: String) {
        self.findings.push(Finding { rule, at, text });
    }

    fn setting(&self, name: &str) -> Setting {
        let setting = self.settings.get(name).cloned();
        let kind = Kind::of(name);
        setting.unwrap_or(Setting { server: String::new(), ttl: SECOND, kind })
    }

    /// When somebody believed to have the name by this lease.
    fn belief(&self, lease: &Lease) -> Option<Span> {
        let (granted, since) = (lease.granted?, lease.held_since()?);
        let end = if lease.by_token {
            self.token_reported(lease)?
        } else {
            // A holder that was told and has unlocked needs no grace: a renewal that was confirmed too late is released then.
            let unlocked = lease.unreleased.as_ref().map(|(at, _)| *at);
            let known = lease.last_ok + self.setting(&lease.name).grace();
            lease.released.into_iter().chain(unlocked).fold(known, u64::min)
        };
        let empty = end <= granted || (!lease.by_token && lease.last_ok < granted);
        (!empty).then_some((since, end))
    }

    /// When the token had told it, if the process was awake then.
    fn token_reported(&self, lease: &Lease) -> Option<u64> {
        let end = lease.ended()?;
        let awake_since = end.saturating_sub(SECOND);
        let asleep = |span: &Span| overlap(*span, (awake_since, end + SECOND / 10)).is_some();
        let stalled =
            self.stalls.get(lease.who.as_str()).is_some_and(|stalls| stalls.iter().any(asleep));
        let frozen =
            self.faults_on(&lease.who).any(|(kind, span)| kind == "Freeze" && asleep(&span));
        (!stalled && !frozen).then_some(end)
    }

    fn faults_on<'a>(&'a self, on: &'a str) -> impl Iterator<Item = (&'a str, Span)> {
        self.faults
            .iter()
            .filter(move |(where_, _, _)| *where_ == on)
            .map(|(_, kind, span)| (*kind, *span))
    }

    /// Whether a fault may hold up anybody but who is in it: what goes wrong inside a process does not.
    fn excuses(&self, kind: &str) -> bool {
        const INSIDE: [&str; 7] = [
            "BlockLog",
            "SlowLog",
            "PanicInLog",
            "EndRuntime",
            "UnwindRuntime",
            "Burst",
            "Silence",
        ];
        !INSIDE.contains(&keys::base(kind))
    }

    /// Returns whether the wipe of its name excuses the holder of this lease.
    fn serves(&self, wipe: &Wipe, older: &Lease) -> bool {
        let may_be_lost = || wipe.why != Excuse::Replaced || Self::is_new(wipe, older);
        wipe.name == older.name && (may_be_lost() || self.may_lack_a_renewal(wipe, older))
    }

    /// Returns whether the lease was granted so shortly before a failover that the new primary may not know it.
    fn is_new(wipe: &Wipe, lease: &Lease) -> bool {
        lease.granted.is_some_and(|granted| granted + SECOND >= wipe.span.0)
    }

    /// Returns whether the new primary may lack a renewal of an older lease, and the holder could not verify that, because
    /// its process stood still after the failover.
    fn may_lack_a_renewal(&self, wipe: &Wipe, lease: &Lease) -> bool {
        let (_, until) = wipe.span;
        let after = (until, until + self.setting(&lease.name).ttl);
        wipe.why == Excuse::Replaced && !wipe.known && self.asleep(lease, after) >= SECOND / 4
    }

    /// Returns when the process of a lease stood still.
    fn standstills<'a>(&'a self, lease: &'a Lease) -> impl Iterator<Item = Span> + use<'a> {
        let stalls = self.stalls.get(lease.who.as_str()).into_iter().flatten();
        let freezes = self.faults_on(&lease.who).filter(|(kind, _)| *kind == "Freeze");
        stalls.copied().chain(freezes.map(|(_, freeze)| freeze))
    }

    /// Returns for how long the process of a lease stood still in a span.
    fn asleep(&self, lease: &Lease, span: Span) -> u64 {
        let parts = self.standstills(lease).filter_map(|part| overlap(part, span));
        parts.map(|part| part.1 - part.0).sum()
    }

    /// Returns the span that is excused: until the lease must have expired, or its holder has been told.
    fn served(&self, wipe: &Wipe, older: &Lease) -> Span {
        let (from, until) = wipe.span;
        let ttl = self.setting(&older.name).ttl;
        if wipe.why == Excuse::Replaced && !Self::is_new(wipe, older) {
            // The renewal before the one that is lost was at most T/3 older, and the key lives for T after that.
            return (from.max(from.saturating_sub(SECOND) + ttl / 3 * 2), until + ttl);
        }
        let awake = || self.asleep(older, (from, until)) < SECOND / 4;
        (from, if wipe.known && awake() { until } else { until + ttl })
    }

    /// What of a span is not excused by a wipe of the name, which `older` had.
    fn unexcused(&self, older: &Lease, span: Span) -> Option<Span> {
        let wipes = self.wipes.iter().filter(|wipe| self.serves(wipe, older));
        let mut wipes: Vec<Span> = wipes.map(|wipe| self.served(wipe, older)).collect();
        if self.was_reported(older) {
            wipes.push((older.last_ok, u64::MAX));
        }
        wipes.sort_unstable();
        let mut from = span.0;
        for wipe in wipes {
            if wipe.0 <= from {
                from = from.max(wipe.1);
            }
        }
        // What comes before the first excuse is not excused; what comes after the last neither.
        (from < span.1).then_some((from, span.1))
    }

    /// Returns whether the primary that was replaced is gone, so that it grants nothing any more.
    fn has_crashed(&self, wipe: &Wipe) -> bool {
        let server = self.setting(&wipe.name).server;
        let mut faults = self.faults_on(&server);
        faults.any(|(kind, fault)| {
            kind.starts_with("CrashPrimary") && overlap(fault, wipe.span).is_some()
        })
    }

    /// Returns the span in which a living primary that was replaced may have granted this lease, because its process
    /// stood still and has not heard of the new one.
    fn misled(&self, wipe: &Wipe, lease: &Lease) -> Option<Span> {
        if wipe.why != Excuse::Replaced || wipe.name != lease.name || self.has_crashed(wipe) {
            return None;
        }
        let asleep = self.standstills(lease).filter(|part| overlap(*part, wipe.span).is_some());
        let woke = asleep.map(|part| part.1).max()?;
        Some((wipe.span.0, woke + SECOND))
    }

    /// Whether the store told the loss, where that means no grace.
    fn was_reported(&self, lease: &Lease) -> bool {
        let by_the_store =
            lease.fired.as_ref().is_some_and(|(_, cause)| cause == "gone" || cause == "taken");
        self.rules.reported_without_grace && !lease.by_token && by_the_store
    }

    /// Of an overlap, the part that is excused.
    fn excuse(&self, older: &Lease, both: Span) -> Option<Excused> {
        let from = self.unexcused(older, both).map_or(both.1, |left| left.0);
        let covers = |wipe: &&Wipe| {
            self.serves(wipe, older) && overlap(self.served(wipe, older), both).is_some()
        };
        let wipe = self.wipes.iter().filter(covers).map(|wipe| wipe.why).min();
        let why = wipe.unwrap_or(Excuse::Reported);
        (from > both.0).then_some(Excused { why, nanos: from - both.0 })
    }

    fn overlaps_and_fences(&mut self) {
        let mut names: BTreeMap<&str, Vec<(Span, &Lease)>> = BTreeMap::new();
        for lease in &self.leases {
            if let Some(belief) = lease.believed {
                names.entry(&lease.name).or_default().push((belief, lease));
            }
        }
        let mut found = Vec::new();
        let mut excused = Vec::new();
        for (name, mut beliefs) in names {
            beliefs.sort_by_key(|(belief, _)| belief.0);
            if let Kind::Semaphore { size } = Kind::of(name) {
                self.permits(name, size, &beliefs, &mut found, &mut excused);
                continue;
            }
            // Those who still believe, and the greatest fence so far, of all and of those who did not read.
            let mut here: Vec<(Span, &Lease)> = Vec::new();
            let (mut greatest, mut writer): (Option<&Lease>, Option<&Lease>) = (None, None);
            for (belief, lease) in beliefs {
                here.retain(|(other, _)| other.1 > belief.0);
                for (both, holder) in here.iter().filter_map(|(other, holder)| {
                    overlap(*other, belief).map(|both| (both, *holder))
                }) {
                    if !holder.mode.excludes(lease.mode) {
                        found.extend(self.strange_reader(holder, lease, both));
                    } else if self.is_misled(lease, both) {
                        excused.push(Excused { why: Excuse::Replaced, nanos: both.1 - both.0 });
                    } else {
                        excused.extend(self.excuse(holder, both));
                        if let Some(both) = self.unexcused(holder, both) {
                            let text = format!(
                                "{name}: {} (fence {}) and {} (fence {}) both believe for {:.3} ms",
                                holder.words(),
                                holder.fence,
                                lease.words(),
                                lease.fence,
                                (both.1 - both.0) as f64 / 1e6
                            );
                            found.push(("overlap", both.0, text));
                        }
                    }
                }
                here.push((belief, lease));
                let reads = lease.mode == Mode::Read;
                match if reads { writer } else { greatest } {
                    Some(before) if self.comes_too_late(before, lease) => {
                        if self.unexcused(before, (belief.0, belief.0 + 1)).is_some() {
                            let text = format!(
                                "{name}: {} was granted fence {} after {} had {}",
                                lease.words(),
                                lease.fence,
                                before.words(),
                                before.fence
                            );
                            found.push(("fence", belief.0, text));
                        }
                    }
                    _ => {
                        greatest =
                            greatest.filter(|before| before.fence > lease.fence).or(Some(lease));
                        writer = if reads { writer } else { Some(lease) };
                    }
                }
            }
        }
        for lease in &self.leases {
            for (at, fence) in &lease.nested {
                if *fence != lease.fence {
                    let text =
                        format!("{}: nested in fence {}, has {fence}", lease.name, lease.fence);
                    found.push(("fence", *at, text));
                }
            }
        }
        self.excused.extend(excused);
        for (rule, at, text) in found {
            self.find(rule, at, text);
        }
    }

    fn updates(&mut self) {
        let mut last: HashMap<&str, (u64, u64)> = HashMap::new();
        for Event { at, who, what } in self.history {
            let What::Wrote { name, value, fence } = what else { continue };
            let (before, seen) = last.insert(name, (*value, *fence)).unwrap_or((0, 0));
            if *value != before + 1 {
                let text = format!(
                    "{name}: {who} wrote {value} after {before} (fence {fence} after {seen})"
                );
                self.findings.push(Finding { rule: "update", at: *at, text });
            }
            if *fence < seen {
                let text = format!("{name}: the resource took fence {fence} of {who} after {seen}");
                self.findings.push(Finding { rule: "update", at: *at, text });
            }
        }
    }

    fn waits(&mut self) {
        let end = self.history.last().map_or(0, |event| event.at);
        let mut grants: HashMap<&str, Vec<u64>> = HashMap::new();
        for lease in &self.leases {
            if let Some(granted) = lease.granted {
                grants.entry(&lease.name).or_default().push(granted);
            }
        }
        let free: Vec<(&String, Span)> = self
            .history
            .iter()
            .filter_map(|event| match &event.what {
                What::Free { until, name } => Some((name, (event.at, *until))),
                _ => None,
            })
            .collect();
        let mut found = Vec::new();
        for lease in &self.leases {
            let wait = (lease.asked, lease.answered().unwrap_or(end));
            let setting = self.setting(&lease.name);
            let killed =
                self.faults_on(&lease.who).any(|(kind, span)| kind == "Kill" && span.1 >= wait.0);
            if killed && lease.answered().is_none() {
                continue;
            }
            let bound = setting.longest_free() + REACTION;
            for (name, span) in &free {
                let waits_for_it = **name == lease.name && (lease.how == "try" || lease.waits());
                let Some(idle) = overlap(*span, wait).filter(|_| waits_for_it) else {
                    continue;
                };
                let mut moments: Vec<Span> =
                    grants.get(name.as_str()).into_iter().flatten().map(|at| (*at, *at)).collect();
                moments.extend(self.behind_asides(lease, &setting));
                moments.sort_unstable();
                let longest = longest_uncovered(idle, &moments);
                let trouble = self.trouble(&lease.who, &setting, longest);
                if longest.1 - longest.0 > bound + trouble.stalled && !trouble.faulty {
                    let text = format!(
                        "{name}: {} waits by {} for a free name for {} ms",
                        lease.who,
                        lease.how,
                        (longest.1 - longest.0) / 1_000_000
                    );
                    found.push(("waiting", longest.0, text));
                }
            }
            let trouble = self.trouble(&lease.who, &setting, wait);
            let limit = if lease.limit > 0 {
                lease.limit + setting.attempt() + REACTION
            } else {
                LONGEST_WAIT
            };
            if wait.1 - wait.0 > limit + trouble.stalled + trouble.broken_for {
                let text = format!(
                    "{}: {} waits by {} for {} ms",
                    lease.name,
                    lease.who,
                    lease.how,
                    (wait.1 - wait.0) / 1_000_000
                );
                found.push(("waiting", wait.0, text));
            }
        }
        for (rule, at, text) in found {
            self.find(rule, at, text);
        }
    }

    /// When futures of the same process, which nobody polled, may have kept its place in the line.
    fn behind_asides(&self, lease: &Lease, setting: &Setting) -> Vec<Span> {
        let own = |other: &&Lease| other.who == lease.who && other.name == lease.name;
        let own = self.leases.iter().filter(own);
        let until = |other: &Lease| match other.unpolled {
            Some(unpolled) => Some((unpolled, other.answered().unwrap_or(u64::MAX))),
            None => other.forgot.map(|forgot| (forgot, forgot + setting.ttl)),
        };
        own.filter_map(until).collect()
    }

    /// What may have held up a process and its server in a span.
    fn trouble(&self, who: &str, setting: &Setting, span: Span) -> Trouble {
        // What a fault leaves behind lives for a time to live, and reconnects take a while.
        let settle = setting.ttl + self.rules.recovery;
        let path = self.faults_on(who).chain(self.faults_on(&setting.server));
        let path = path.filter(|(kind, _)| self.excuses(kind));
        let faults: Vec<Span> = path.map(|(_, fault)| (fault.0, fault.1 + settle)).collect();
        let broken = faults.iter().filter_map(|fault| overlap(*fault, span));
        let broken_for = broken.map(|part| part.1 - part.0).sum();
        let stalls = self.stalls.get(who).into_iter().flatten();
        let stalled: u64 =
            stalls.filter_map(|stall| overlap(*stall, span)).map(|part| part.1 - part.0).sum();
        let stalled = stalled.max(self.starved_for(who, span));
        Trouble { faulty: broken_for > 0, broken_for, stalled }
    }

    /// Returns for how much of a span a thread of a process, or one on its way to a server, waited for a processor.
    fn starved_for(&self, who: &str, span: Span) -> u64 {
        let waits = [who, MACHINE].into_iter().filter_map(|who| self.starved.get(who));
        covered(span, waits.flatten())
    }

    fn ends(&mut self) {
        for Event { at, who, what } in self.history {
            let (rule, text) = match what {
                What::Undying { key } => ("left over", format!("{key} has no time to live")),
                What::Left { text } => ("left over", text.to_string()),
                What::Broken { text } => ("contradiction", format!("{who}: {text}")),
                What::Counted { name, believed, stored, fields } => {
                    let is_right = believed == stored && *fields == u64::from(*believed > 0);
                    if is_right {
                        continue;
                    }
                    (
                        "count",
                        format!(
                            "{name}: believed {believed}, the store has {stored} in {fields} fields"
                        ),
                    )
                }
                _ => continue,
            };
            self.findings.push(Finding { rule, at: *at, text });
        }
    }
}

struct Trouble {
    faulty: bool,
    broken_for: u64,
    stalled: u64,
}

/// The longest part of a span that none of these spans, in order, covers.
fn longest_uncovered(span: Span, covers: &[Span]) -> Span {
    let mut longest = (span.0, span.0);
    let mut from = span.0;
    for cover in covers.iter().copied().chain([(span.1, span.1)]) {
        if cover.1 < from {
            continue;
        }
        let until = cover.0.min(span.1);
        if until > from && until - from > longest.1 - longest.0 {
            longest = (from, until);
        }
        from = from.max(cover.1);
    }
    longest
}

/// Returns how much of a span these spans cover together.
fn covered<'a>(span: Span, covers: impl Iterator<Item = &'a Span>) -> u64 {
    let mut covers: Vec<Span> = covers.copied().collect();
    covers.sort_unstable();
    let (mut sum, mut from) = (0, span.0);
    for cover in covers {
        if let Some(part) = overlap((cover.0.max(from), cover.1), span) {
            sum += part.1 - part.0;
            from = part.1;
        }
    }
    sum
}

pub fn wiped(history: &[Event]) -> Vec<(String, Span)> {
    wipes(history).into_iter().map(|wipe| (wipe.name, wipe.span)).collect()
}
