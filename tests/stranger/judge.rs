//! What the promises ask of a history: when a name may have been held, and what was done to it.

use std::time::Duration;

use leasehold::Loss;

use crate::history::{
    Act, Call, Deed, End, Ending, Held, History, Mode, Object, Outcome, Stamp, Way,
};

/// A promise that was broken.
#[derive(Clone, Debug)]
pub struct Breach {
    pub promise: &'static str,
    pub sentence: &'static str,
    pub name: String,
    pub what: String,
}

/// A span of time.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    pub from: Duration,
    pub to: Duration,
}

impl Window {
    pub fn has(&self, at: Duration) -> bool {
        self.from <= at && at <= self.to
    }

    pub fn meets(&self, other: Self) -> bool {
        self.from <= other.to && other.from <= self.to
    }
}

/// Later than all that happens.
const END: Duration = Duration::from_secs(u32::MAX as u64);

impl Act {
    pub fn window(&self) -> Window {
        Window { from: self.start.at, to: self.end.map_or(END, |end| end.at) }
    }

    /// Whether it takes a name from its holder.
    pub fn is_force_on(&self, name: &str) -> bool {
        match &self.deed {
            Deed::Steal { name: n } | Deed::Force { name: n, .. } | Deed::Delete { name: n } => {
                n == name
            }
            _ => false,
        }
    }
}

impl Held {
    /// Whether it was good after its grant, at least for a moment.
    pub fn was_good(&self) -> bool {
        self.good_until.order > self.start.order
    }

    /// Whether both cannot be held at one time.
    pub fn excludes(&self, other: &Self) -> bool {
        let is_other_holder = self.handle != other.handle || !self.nested && !other.nested;
        let are_readers = self.mode == Mode::Read && other.mode == Mode::Read;
        let are_permits =
            matches!((self.mode, other.mode), (Mode::Permits { .. }, Mode::Permits { .. }));
        is_other_holder && !are_readers && !are_permits
    }

    /// Whether it ended by a release that succeeded, before any loss.
    pub fn clean_end(&self) -> Option<&End> {
        let end = self.end.as_ref()?;
        let released = matches!(
            end.how,
            Ending::Unlock | Ending::UnlockNow | Ending::Drop | Ending::UnlockDropped
        );
        (released && self.lost.is_none() && end.failure.is_none() && end.done.is_some())
            .then_some(end)
    }
}

impl Call {
    pub fn end_at(&self) -> Duration {
        self.end.map_or(END, |end| end.at)
    }

    pub fn window(&self) -> Window {
        Window { from: self.start.at, to: self.end_at() }
    }

    pub fn took(&self) -> Duration {
        self.end_at() - self.start.at
    }

    pub fn has(&self, name: &str) -> bool {
        self.names.iter().any(|n| n == name)
    }

    /// Whether it was there, and had no answer, when something happened.
    pub fn waits_at(&self, stamp: Stamp) -> bool {
        self.start.order < stamp.order && self.end.is_none_or(|end| stamp.order < end.order)
    }
}

impl History {
    pub fn of(&self, name: &str) -> Vec<&Held> {
        let mut leases: Vec<&Held> = self.leases.iter().filter(|held| held.name == name).collect();
        leases.sort_by_key(|held| held.start);
        leases
    }

    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> =
            self.calls.iter().flat_map(|call| call.names.iter().cloned()).collect();
        names.sort();
        names.dedup();
        names
    }

    /// The longest delay of a handle for a name.
    pub fn delay(&self, name: &str) -> Duration {
        self.calls
            .iter()
            .filter(|call| call.has(name))
            .map(|call| call.lock_delay)
            .max()
            .unwrap_or_default()
    }

    /// Whether a store was away for anyone, or the machine stood still, in a window.
    pub fn trouble_in(&self, window: Window) -> bool {
        let is_trouble = |act: &&Act| matches!(act.deed, Deed::Trouble { .. } | Deed::Stall);
        self.acts.iter().filter(is_trouble).any(|act| act.window().meets(window))
    }

    /// Whether a store was away for this manager.
    pub fn trouble_of(&self, manager: usize, window: Window) -> bool {
        self.acts.iter().filter(|act| act.window().meets(window)).any(|act| match act.deed {
            Deed::Trouble { manager: who } => who.is_none_or(|who| who == manager),
            Deed::Stall => true,
            _ => false,
        })
    }

    /// When two holders may overlap by design: from a steal or a forced release until the old holder has learned of it.
    pub fn disturbed(&self, name: &str) -> Vec<Window> {
        let mut windows = Vec::new();
        for act in self.acts.iter().filter(|act| act.is_force_on(name)) {
            let mut window = act.window();
            window.to = window.to.saturating_add(self.rules.learns());
            let abandoned = |call: &Call| {
                call.has(name)
                    && call.outcome == Outcome::Abandoned
                    && matches!(call.way, Way::Steal | Way::StealAfter(_))
            };
            if self.trouble_in(window) || self.calls.iter().any(abandoned) || act.failure.is_some()
            {
                window.to = window.to.saturating_add(self.rules.ttl);
            }
            windows.push(window);
        }
        windows
    }

    /// Returns what is left of a window outside of others.
    pub fn outside(&self, window: Window, others: &[Window]) -> Option<Window> {
        let mut left = vec![window];
        for other in others {
            left = left
                .into_iter()
                .flat_map(|part| {
                    if !part.meets(*other) {
                        return vec![part];
                    }
                    let mut parts = Vec::new();
                    if part.from < other.from {
                        parts.push(Window { from: part.from, to: other.from });
                    }
                    if other.to < part.to {
                        parts.push(Window { from: other.to, to: part.to });
                    }
                    parts
                })
                .collect();
        }
        left.into_iter().max_by_key(|part| part.to - part.from)
    }

    /// Whether a loss has a cause that the guide knows.
    pub fn has_cause(&self, name: &str, manager: usize, loss: Loss, seen: Stamp) -> bool {
        let forced = |is: fn(&Deed) -> bool| {
            self.acts
                .iter()
                .any(|act| act.is_force_on(name) && is(&act.deed) && act.start.order < seen.order)
        };
        let recent = Window { from: seen.at.saturating_sub(self.rules.ttl * 2), to: seen.at };
        match loss {
            Loss::MaxHold => self.rules.max_hold.is_some(),
            Loss::Stalled => self.rules.stall_after.is_some(),
            Loss::Closed => self.acts.iter().any(|act| {
                matches!(act.deed, Deed::Close { manager: who, .. } if who == manager)
                    && act.start.order < seen.order
            }),
            Loss::Stolen => forced(|deed| matches!(deed, Deed::Steal { .. })),
            Loss::Revoked => forced(|deed| matches!(deed, Deed::Force { .. })),
            Loss::Gone | Loss::Taken => forced(|_| true) || self.trouble_in(recent),
            Loss::Expired => self.trouble_of(manager, recent),
            _ => false,
        }
    }

    /// For how long a hold may keep others out after its lease has ended.
    fn tail(&self, held: &Held) -> Duration {
        let rules = &self.rules;
        let call = &self.calls[held.call];
        let long = rules.ttl + call.lock_delay + rules.slack;
        let Some(end) = &held.end else { return long };
        let done = end.done.map_or(END, |done| done.at);
        let around = Window {
            from: end.begin.at.saturating_sub(rules.ttl),
            to: done.saturating_add(rules.attempt * 2),
        };
        if held.lost.is_some() || end.failure.is_some() || self.trouble_in(around) {
            return long;
        }
        let lingers = matches!(call.object, Object::Lock | Object::Holder);
        let linger =
            if lingers && rules.linger.is_some() { rules.ttl / 10 } else { Duration::ZERO };
        match end.how {
            Ending::Unlock => linger,
            Ending::UnlockNow => Duration::ZERO,
            Ending::Drop | Ending::UnlockDropped => linger + rules.attempt,
            Ending::Forget | Ending::Changed => long,
        }
    }

    /// When a lease may have kept others out: from the poll that returned it until it was surely free.
    pub fn kept(&self, held: &Held) -> Window {
        let ended = held.end.as_ref().map_or(END, |end| end.done.map_or(END, |done| done.at));
        let mut to = ended.saturating_add(self.tail(held));
        if let Some(min) = self.calls[held.call].min_hold {
            to = to.max(held.start.at + min);
        }
        Window { from: held.polled.at, to }
    }

    /// When a call may have kept others out without a lease that it returned, or after it.
    pub fn kept_by_call(&self, call: &Call, sets_wait: bool) -> Option<Window> {
        let rules = &self.rules;
        let from = call.start.at;
        let to = call.end_at();
        let long = rules.ttl + call.lock_delay + rules.slack;
        // "A waiter's arrival in a fair or read-write lock is kept for up to three poll intervals", or two attempts.
        let arrival = if matches!(call.object, Object::Fair | Object::Rw) {
            (rules.poll * 3).max(rules.attempt * 2) + rules.slack
        } else {
            rules.attempt
        };
        let troubled = self.trouble_in(Window {
            from: from.saturating_sub(rules.ttl),
            to: to.saturating_add(rules.attempt * 2),
        });
        // "A grant that it has not seen ends after a TTL at most."
        if let Some(pause) = call.unpolled {
            return Some(Window { from: pause.from.at, to: to.saturating_add(long) });
        }
        let from = if call.object == Object::Multi && sets_wait { from } else { call.polled.at };
        match &call.outcome {
            Outcome::Abandoned if !troubled => {
                Some(Window { from, to: to + arrival.max(rules.attempt * 2) })
            }
            Outcome::Abandoned | Outcome::Failed(_) => Some(Window { from, to: to + long }),
            Outcome::Refused if troubled => Some(Window { from, to: to + long }),
            Outcome::Refused => Some(Window { from, to: to + arrival }),
            Outcome::Granted if call.any => Some(Window { from, to: to + rules.attempt * 2 }),
            _ if call.object == Object::Multi && sets_wait => {
                Some(Window { from, to: to.saturating_add(rules.attempt) })
            }
            _ => None,
        }
    }

    /// When others may have kept a call from a name.
    pub fn blockers(&self, name: &str, number: usize, sets_wait: bool) -> Vec<Window> {
        let me = &self.calls[number];
        let mut windows = Vec::new();
        for held in self.leases.iter().filter(|held| held.name == name && held.call != number) {
            windows.push(self.kept(held));
        }
        for (other, call) in self.calls.iter().enumerate().filter(|(_, call)| call.has(name)) {
            if other != number && call.handle != me.handle {
                windows.extend(self.kept_by_call(call, sets_wait));
            }
        }
        if let Some(pause) = me.unpolled {
            windows.push(Window { from: pause.from.at, to: pause.to.at });
        }
        let delay = self.delay(name);
        for act in &self.acts {
            let mut window = act.window();
            let after = match act.deed {
                Deed::Trouble { .. } | Deed::Stall => {
                    self.rules.ttl + delay + self.rules.attempt * 2
                }
                Deed::Close { .. } => self.rules.ttl + delay,
                _ if act.is_force_on(name) => self.rules.learns() + self.rules.ttl + delay,
                _ => continue,
            };
            window.to = window.to.saturating_add(after);
            windows.push(window);
        }
        windows
    }

    /// Returns the longest time for which a call waited although nothing kept it from what it asked for.
    pub fn idle_wait(&self, number: usize) -> Duration {
        let call = &self.calls[number];
        let sets_wait = call.outcome != Outcome::Stuck;
        let gap = |windows: &[Window]| {
            self.outside(call.window(), windows).map_or(Duration::ZERO, |part| part.to - part.from)
        };
        if call.any {
            return call
                .names
                .iter()
                .map(|name| gap(&self.blockers(name, number, sets_wait)))
                .max()
                .unwrap_or_default();
        }
        let all: Vec<Window> =
            call.names.iter().flat_map(|name| self.blockers(name, number, sets_wait)).collect();
        gap(&all)
    }
}
