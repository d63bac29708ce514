//! What a server keeps, against what its process knows of; and what is lost or closed for nothing.

use super::{Case, REACTION, SECOND, Span, longest_uncovered, overlap};
use crate::soak::history::{Event, What};
use crate::soak::leases::{Lease, Setting};
use std::collections::{HashMap, HashSet};

/// Faults that hold up no renewal, or that no renewal may be held up by.
const HARMLESS: [&str; 4] = ["MoveSlot", "HalfMoveSlot", "FlushScripts", "KillSubscribers"];
/// Faults of a server that lose nothing: what was sent is done when they are over.
const STALLS: [&str; 3] = ["Freeze", "Sleep", "PauseClients"];

/// A key with one token, as long as it was seen.
struct Key<'a> {
    who: &'a str,
    name: &'a str,
    number: u64,
    span: Span,
    setting: Setting,
    /// What its process knows of.
    own: Vec<&'a Lease>,
}

/// The rule that is broken, since when, and how.
type Found = (&'static str, u64, String);

/// `Crash` of `Crash(1)`.
pub fn base(kind: &str) -> &str {
    kind.split('(').next().unwrap_or(kind)
}

impl Case<'_> {
    fn keys(&self) -> impl Iterator<Item = Key<'_>> {
        let managers: HashMap<&str, &str> = self
            .history
            .iter()
            .filter_map(|event| match &event.what {
                What::Manager { id } => Some((id.as_str(), event.who.as_str())),
                _ => None,
            })
            .collect();
        self.history.iter().filter_map(move |event| {
            let What::Kept { until, name, id, number } = &event.what else { return None };
            // The id of a permit has but the beginning of its manager's.
            let whole = managers.iter().find(|(whole, _)| whole.starts_with(id.as_str()));
            let who = *whole?.1;
            let span = (event.at, *until);
            let own = self.leases.iter().filter(|lease| lease.who == who && lease.name == *name);
            let (setting, own) = (self.setting(name), own.collect());
            Some(Key { who, name, number: *number, span, setting, own })
        })
    }

    /// No key stays of which its process knows nothing, or which nobody has.
    pub(super) fn keys_of_nobody(&mut self) {
        let mut found = Vec::new();
        for key in self.keys() {
            found.extend(self.unknown(&key));
            found.extend(self.untaken(&key));
            found.extend(self.idle(&key));
        }
        for (rule, at, text) in found {
            self.find(rule, at, text);
        }
    }

    /// Neither a lease nor a wish for one is known.
    fn unknown(&self, key: &Key<'_>) -> Option<Found> {
        let Key { setting, own, .. } = key;
        let end = self.end();
        let mut known: Vec<Span> = own
            .iter()
            .map(|lease| {
                let until = match lease.granted {
                    Some(_) => had_until(lease, setting),
                    None => lease.answered(),
                };
                (lease.asked, until.unwrap_or(end))
            })
            .collect();
        known.sort_unstable();
        let unknown = longest_uncovered(key.span, &known);
        let trouble = self.trouble(key.who, setting, unknown);
        let bound = 2 * setting.attempt() + REACTION + trouble.stalled;
        key.longer_than(bound, unknown, "orphan", "knows nothing of it").filter(|_| !trouble.faulty)
    }

    /// It was granted to a token that no lease has: swept, at the latest some attempts after it was done.
    fn untaken(&self, key: &Key<'_>) -> Option<Found> {
        let Key { setting, own, .. } = key;
        if !self.known_tokens.contains(key.who)
            || own.iter().any(|lease| lease.number == Some(key.number))
        {
            return None;
        }
        let short = self.rules.recovery;
        let stall = |kind: &str| STALLS.contains(&base(kind));
        let of_server = self.faults_on(&setting.server).map(|(kind, span)| {
            let settle = if stall(kind) { short } else { setting.ttl + short };
            (kind, (span.0, span.1 + settle))
        });
        let of_process = self
            .faults_on(key.who)
            .map(|(kind, span)| (kind, (span.0, span.1 + setting.ttl + short)));
        let faults = of_server.chain(of_process).filter(|(kind, _)| self.excuses(kind));
        let mut excused: Vec<Span> = faults.map(|(_, span)| span).collect();
        // A grant for a future that nobody polls ends with its time to live.
        let asides = own.iter().filter_map(|lease| Some((lease.unpolled?, lease.answered())));
        excused.extend(asides.map(|(from, until)| {
            (from.saturating_sub(setting.ttl), until.unwrap_or(self.end()) + setting.ttl)
        }));
        // A call for a set may have some of its names while it waits for another.
        let sets = own.iter().filter(|lease| lease.how == "set");
        excused.extend(sets.map(|lease| (lease.asked, lease.answered().unwrap_or(self.end()))));
        excused.sort_unstable();
        let untaken = longest_uncovered(key.span, &excused);
        let stalled = self.trouble(key.who, setting, untaken).stalled;
        let bound = setting.ttl / 5 + 2 * setting.attempt() + REACTION + stalled;
        key.longer_than(bound, untaken, "orphan", "no lease of it was ever there")
    }

    /// It is kept alive, and no flow of control has a lease of it.
    fn idle(&self, key: &Key<'_>) -> Option<Found> {
        let Key { setting, own, .. } = key;
        let end = self.end();
        let had = own
            .iter()
            .filter_map(|lease| Some((lease.granted?, had_until(lease, setting).unwrap_or(end))));
        let settle = setting.ttl + self.rules.recovery;
        let faults = self.faults_on(key.who).chain(self.faults_on(&setting.server));
        let faults = faults.filter(|(kind, _)| self.excuses(kind));
        let mut covered: Vec<Span> =
            had.chain(faults.map(|(_, span)| (span.0, span.1 + settle))).collect();
        covered.sort_unstable();
        let idle = longest_uncovered(key.span, &covered);
        let stalled = self.trouble(key.who, setting, idle).stalled;
        // Until a renewal is due, and a request of its own is answered; then the time to live.
        let bound = setting.ttl * 4 / 3 + 2 * setting.attempt() + REACTION + stalled;
        key.longer_than(bound, idle, "idle", "nobody there has it")
    }

    /// Nobody loses a lease while nothing is broken, nor is told that a manager is closed.
    pub(super) fn needless(&mut self) {
        let mut found = Vec::new();
        for lease in &self.leases {
            let why = lease.gave_up.as_ref().filter(|(_, why)| why.ends_with("closed"));
            let known = lease.fired.as_ref().filter(|(_, cause)| cause == "closed");
            if let Some((at, _)) = why.or(known) {
                let text = format!("{}: {} is told that it is closed", lease.name, lease.who);
                found.push(("contradiction", *at, text));
            }
            let setting = self.setting(&lease.name);
            let lost = lease.fired.as_ref().filter(|(_, cause)| cause == "expired");
            let unreleased = lease.unreleased.as_ref().filter(|(_, why)| why == "unavailable");
            // A lease is lost if none of its renewals was answered. A release is tried for the time of an attempt, and a fault at
            // any time in it may be why it fails. Where threads had a processor for longer than `awake` meanwhile, it was not
            // for want of one: an answer takes some milliseconds, and renewals are tried again.
            let attempt = setting.attempt();
            let (from, at, enough, awake, what) = match (lost, unreleased, lease.released) {
                (Some((at, _)), ..) => {
                    let renewal = setting.ttl / 3 + 2 * attempt + REACTION;
                    let from = at.saturating_sub(setting.ttl * 9 / 10);
                    (from, *at, renewal, attempt, "lost its lease")
                }
                (None, Some((at, _)), Some(from)) => {
                    (from, *at, at - from, attempt / 3, "cannot release it")
                }
                _ => continue,
            };
            let span = (from, at);
            let of_server = self
                .faults_on(&setting.server)
                .map(|(kind, fault)| (kind, (fault.0, fault.1 + self.aftermath(kind))));
            let of_process = self
                .faults_on(&lease.who)
                .map(|(kind, fault)| (kind, (fault.0, fault.1 + SECOND / 2)));
            let faults = of_server.chain(of_process);
            let mut broken: Vec<Span> = faults
                .filter(|(kind, _)| self.excuses(kind) && !HARMLESS.contains(&base(kind)))
                .map(|(_, fault)| fault)
                .collect();
            broken.sort_unstable();
            let whole = longest_uncovered(span, &broken);
            let broken = whole.1 - whole.0 < enough;
            let stalls = self.stalls.iter().flat_map(|(who, stalls)| {
                // A process that was frozen says nothing of the machine.
                let frozen = |stall: &Span| {
                    let mut faults = self.faults_on(who).filter(|(kind, _)| *kind == "Freeze");
                    faults.any(|(_, fault)| overlap(fault, *stall).is_some())
                };
                stalls.iter().filter(move |stall| !frozen(stall))
            });
            let stalled: u64 =
                stalls.filter_map(|stall| overlap(*stall, span)).map(|part| part.1 - part.0).sum();
            let is_starved = whole.1 - whole.0 - self.starved_for(&lease.who, whole) < awake;
            let held_up = stalled >= setting.ttl / 20 || is_starved;
            if self.rules.keeps_leases && !broken && !held_up {
                let text = format!("{}: {} {what} for nothing", lease.name, lease.who);
                found.push(("needless loss", at, text));
            }
        }
        for (rule, at, text) in found {
            self.find(rule, at, text);
        }
    }

    /// How long renewals may be held up after a fault of a server: one that comes back may take a while to serve.
    fn aftermath(&self, kind: &str) -> u64 {
        let away = kind.starts_with("Crash") || kind.starts_with("Freeze");
        if away { self.rules.recovery.max(SECOND / 2) } else { SECOND / 2 }
    }

    fn end(&self) -> u64 {
        self.history.last().map_or(0, |event| event.at)
    }
}

/// When the last of a lease was over, by its process.
fn had_until(lease: &Lease, setting: &Setting) -> Option<u64> {
    lease.forgot.map(|forgot| forgot + setting.ttl).or(lease.ended())
}

impl Key<'_> {
    fn longer_than(&self, bound: u64, span: Span, rule: &'static str, why: &str) -> Option<Found> {
        let length = span.1 - span.0;
        (length > bound).then(|| {
            let (ms, Self { who, name, number, .. }) = (length / 1_000_000, self);
            let text = format!("{name}: {who} has it by token {number} for {ms} ms, and {why}");
            (rule, span.0, text)
        })
    }
}

/// Who says which token a lease has.
pub fn known_tokens(history: &[Event]) -> HashSet<&str> {
    let reports = |event: &&Event| matches!(event.what, What::Token { .. });
    history.iter().filter(reports).map(|event| event.who.as_str()).collect()
}
