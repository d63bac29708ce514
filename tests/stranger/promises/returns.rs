//! What calls return, and how soon.

use std::time::Duration;

use leasehold::ErrorKind;

use crate::history::{
    Backend, Call, Deed, Ending, Failure, Held, History, JobOutcome, Mode, Object, Outcome, Way,
};
use crate::judge::{Breach, Window};

/// A nested call asks nothing of the store, and fails by a loss alone.
pub fn nested_call_is_at_once(history: &History) -> Vec<Breach> {
    let sentence = "reentrancy: Neither sends a request, so neither waits for the store nor fails because of it. A nested \
                    `lock` fails with `Lost` once this process knows the loss.";
    let mut breaches = Vec::new();
    for (number, call) in history.calls.iter().enumerate().filter(|(_, call)| call.nested) {
        let is_slow = call.end.is_some()
            && call.took() > history.rules.slack
            && !history.trouble_in(call.window());
        let is_wrong = match &call.outcome {
            Outcome::Granted => false,
            // A manager that was closed has lost all leases, too.
            Outcome::Failed(failure) => {
                !matches!(failure.kind, ErrorKind::Lost | ErrorKind::Closed)
            }
            _ => true,
        };
        if is_slow || is_wrong {
            let what = format!(
                "the nested call {number} took {:?} and ended with {:?}",
                call.took(),
                call.outcome
            );
            breaches.push(Breach {
                promise: "nested_call_is_at_once",
                sentence,
                name: call.names[0].clone(),
                what,
            });
        }
    }
    breaches
}

/// A lease counts the leases of its handle.
pub fn hold_count_counts(history: &History) -> Vec<Breach> {
    let sentence = "`Lease::hold_count`: Returns how many live leases the handle of this lease has in the hold: 1, and one more \
                    for each nested call.";
    let mut breaches = Vec::new();
    for held in history.leases.iter().filter(|held| held.was_good()) {
        let is_alive = |other: &&Held| {
            let began = other.start.order <= held.start.order;
            let goes_on = other.end.as_ref().is_none_or(|end| end.begin.order > held.start.order);
            other.handle == held.handle && other.name == held.name && began && goes_on
        };
        let count = history.leases.iter().filter(is_alive).count();
        if usize::try_from(held.hold_count) != Ok(count) {
            let what = format!(
                "the lease of call {} is one of {count}, and says {}",
                held.call, held.hold_count
            );
            breaches.push(Breach {
                promise: "hold_count_counts",
                sentence,
                name: held.name.clone(),
                what,
            });
        }
    }
    breaches
}

/// Whether the guide knows a reason for an error.
fn has_reason(history: &History, call: &Call, failure: &Failure) -> bool {
    let Some(end) = call.end else { return false };
    let backend = history.rules.backend;
    match failure.kind {
        ErrorKind::Closed => history.acts.iter().any(|act| {
            matches!(act.deed, Deed::Close { manager, .. } if manager == call.manager)
                && act.start.order < end.order
        }),
        ErrorKind::Lost => {
            let nested = call.nested || call.way == Way::Change;
            nested
                && failure.loss.is_some_and(|loss| {
                    call.names.iter().any(|name| history.has_cause(name, call.manager, loss, end))
                })
        }
        ErrorKind::Unavailable => {
            let span = Window { from: call.start.at.saturating_sub(history.rules.ttl), to: end.at };
            // "`Unavailable` if the time passes without an answer of the store."
            let answers = match backend {
                // "A call whose time is shorter than an attempt may return `Unavailable` while the votes are split."
                Backend::Quorum => history.rules.attempt,
                _ => history.rules.attempt / 4,
            };
            let is_short = matches!(call.way, Way::Timed(time) if time < answers);
            // A busy machine may need a whole attempt for itself.
            let is_busy = history.rules.slack > history.rules.attempt;
            // "... also because the future was not polled."
            let is_late = call.unpolled.is_some() && call.way != Way::Wait;
            // "... between the two rounds of its grant"
            let is_forced = backend == Backend::Quorum
                && history.acts.iter().any(|act| {
                    act.window().meets(call.window())
                        && call.names.iter().any(|name| act.is_force_on(name))
                });
            is_short || is_busy || is_late || is_forced || history.trouble_of(call.manager, span)
        }
        ErrorKind::WrongType => is_another_kind(history, call),
        ErrorKind::Unsupported => match backend {
            Backend::Quorum => matches!(call.object, Object::Fair | Object::Semaphore),
            Backend::ZooKeeper => call.min_hold.is_some() || !call.lock_delay.is_zero(),
            _ => false,
        },
        _ => false,
    }
}

/// Whether someone has, or had just now, or asked for a name of a call as another kind of lock.
fn is_another_kind(history: &History, call: &Call) -> bool {
    let span =
        Window { from: call.start.at.saturating_sub(history.rules.ttl * 2), to: call.end_at() };
    let differs = |other: &&Call| (other.object == Object::Rw) != (call.object == Object::Rw);
    history.calls.iter().filter(differs).any(|other| {
        other.names.iter().any(|name| call.has(name)) && {
            let left = history
                .leases
                .iter()
                .filter(|held| other.has(&held.name))
                .any(|held| history.kept(held).meets(call.window()));
            left || other.window().meets(span)
        }
    })
}

/// A name is one kind of lock at a time.
pub fn another_kind_is_refused(history: &History) -> Vec<Breach> {
    let sentence = "family: A name is one kind of lock at a time: a request for another kind returns `WrongType`, and changes \
                    nothing.";
    let mut breaches = Vec::new();
    for (number, call) in history
        .calls
        .iter()
        .enumerate()
        .filter(|(_, call)| call.end.is_some() && call.names.len() == 1)
    {
        let rw = call.object == Object::Rw;
        let holder = history.leases.iter().find(|held| {
            let lasts = call.end.is_some_and(|end| {
                held.start.order < call.start.order && end.order < held.good_until.order
            });
            call.has(&held.name) && lasts && (history.calls[held.call].object == Object::Rw) != rw
        });
        let is_wrong = match &call.outcome {
            // A call behind others of its manager has not asked yet.
            Outcome::Refused | Outcome::Abandoned => false,
            Outcome::Failed(failure) => !matches!(
                failure.kind,
                ErrorKind::WrongType | ErrorKind::Closed | ErrorKind::Unavailable
            ),
            _ => true,
        };
        if let Some(holder) = holder
            .filter(|_| is_wrong && !history.acts.iter().any(|act| act.is_force_on(&call.names[0])))
        {
            let what = format!(
                "call {number} ended with {:?} beside the lease of call {}",
                call.outcome, holder.call
            );
            breaches.push(Breach {
                promise: "another_kind_is_refused",
                sentence,
                name: call.names[0].clone(),
                what,
            });
        }
    }
    breaches
}

/// What an observer sees of the terms of an election.
pub fn view_goes_forward(history: &History) -> Vec<Breach> {
    let sentence = "leader-election: Its terms never go back (...). It never shows the value of the last leader for a new one.";
    let mut breaches = Vec::new();
    for (index, seen) in history.sightings.iter().enumerate() {
        let before = history.sightings[..index].iter().filter(|before| before.view == seen.view);
        let goes_back = before
            .filter_map(|before| before.term)
            .max()
            .zip(seen.term)
            .is_some_and(|terms| terms.1 < terms.0);
        // The lease may be handed off under one id.
        let its =
            |held: &&Held| held.name == seen.name && seen.holder.as_ref() == Some(&held.holder);
        let values: Vec<String> = history
            .leases
            .iter()
            .filter(its)
            .map(|held| format!("actor {}", history.calls[held.call].actor))
            .collect();
        let is_strange =
            !values.is_empty() && seen.value.as_ref().is_some_and(|value| !values.contains(value));
        let lost_data =
            history.disturbed(&seen.name).iter().any(|window| window.from <= seen.at.at);
        if goes_back && !lost_data || is_strange {
            let what = format!("{seen:?}; its values are {values:?}");
            breaches.push(Breach {
                promise: "view_goes_forward",
                sentence,
                name: seen.name.clone(),
                what,
            });
        }
    }
    breaches
}

/// An error has a reason in the table of errors; contention is none.
pub fn errors_have_reasons(history: &History) -> Vec<Breach> {
    let sentence = "errors: A lock that is taken is not an error: `try_lock` and `lock_timeout` return `Ok(None)`. (And the \
                    table of the kinds of errors.)";
    let mut breaches = Vec::new();
    let mut add = |name: &str, what: String| {
        breaches.push(Breach {
            promise: "errors_have_reasons",
            sentence,
            name: name.to_owned(),
            what,
        });
    };
    for (number, call) in history.calls.iter().enumerate() {
        if let Outcome::Failed(failure) = &call.outcome
            && !has_reason(history, call, failure)
        {
            add(&call.names[0], format!("call {number} returned {failure:?}"));
        }
    }
    for held in &history.leases {
        let Some(end) = &held.end else { continue };
        let Some(failure) = &end.failure else { continue };
        let span = Window {
            from: end.begin.at.saturating_sub(history.rules.ttl),
            to: end.done.map_or(end.begin.at, |done| done.at),
        };
        let is_known = match failure.kind {
            ErrorKind::Lost => true,
            ErrorKind::Unavailable => {
                history.rules.slack > history.rules.attempt
                    || history.trouble_of(held.manager, span)
            }
            _ => false,
        };
        if !is_known {
            add(
                &held.name,
                format!("the end of the lease of call {} returned {failure:?}", held.call),
            );
        }
    }
    for job in &history.jobs {
        let JobOutcome::Failed(failure) = &job.outcome else { continue };
        let Some(end) = job.end else { continue };
        let span = Window { from: job.start.at.saturating_sub(history.rules.ttl), to: end.at };
        let closes = history.acts.iter().any(|act| {
            matches!(act.deed, Deed::Close { manager, .. } if manager == job.manager)
                && act.start.order < end.order
        });
        let is_known = match failure.kind {
            ErrorKind::Closed => closes,
            ErrorKind::Lost => {
                failure.loss.is_some_and(|loss| history.has_cause(&job.key, job.manager, loss, end))
            }
            ErrorKind::Unavailable => {
                history.rules.slack > history.rules.attempt || history.trouble_of(job.manager, span)
            }
            ErrorKind::Unsupported => history.rules.backend == Backend::ZooKeeper,
            _ => false,
        };
        if !is_known {
            add(&job.key, format!("a job returned {failure:?}"));
        }
    }
    breaches
}

/// What a store does not support is refused.
pub fn unsupported_is_refused(history: &History) -> Vec<Breach> {
    let sentence = "family: Where a store does not support an object, each call returns `Unsupported`, before anything is sent.";
    let is_wrong = |call: &&Call| {
        let cannot = match history.rules.backend {
            Backend::Quorum => matches!(call.object, Object::Fair | Object::Semaphore),
            Backend::ZooKeeper => call.min_hold.is_some() || !call.lock_delay.is_zero(),
            _ => false,
        };
        cannot && matches!(call.outcome, Outcome::Granted | Outcome::Refused)
    };
    let breach = |call: &Call| {
        let what = format!("{:?} {:?} ended with {:?}", call.object, call.way, call.outcome);
        Breach { promise: "unsupported_is_refused", sentence, name: call.names[0].clone(), what }
    };
    history.calls.iter().filter(is_wrong).map(breach).collect()
}

/// A call that does not wait is refused only if the name is taken.
pub fn refusal_has_a_reason(history: &History) -> Vec<Breach> {
    let sentence = "`Lock::try_lock`: Locks if the name is free now; returns `None` if it is not. (`RwLock::try_read`: if no \
                    writer holds the name now or waits for it.)";
    let mut breaches = Vec::new();
    for (number, call) in history.calls.iter().enumerate() {
        let is_try = match call.way {
            Way::Try => true,
            Way::Timed(time) => time.is_zero(),
            // An upgrade is refused for the same reasons.
            Way::Change => call.mode == Mode::Write,
            _ => false,
        };
        if call.outcome != Outcome::Refused || !is_try || history.trouble_in(around(history, call))
        {
            continue;
        }
        let is_free = |name: &String| !is_kept(history, number, name);
        let refused_without_reason =
            if call.any { call.names.iter().any(is_free) } else { call.names.iter().all(is_free) };
        if refused_without_reason {
            let what = format!("call {number} was refused, and nothing held the name");
            breaches.push(Breach {
                promise: "refusal_has_a_reason",
                sentence,
                name: call.names[0].clone(),
                what,
            });
        }
    }
    breaches
}

fn around(history: &History, call: &Call) -> Window {
    Window { from: call.start.at.saturating_sub(history.rules.ttl), to: call.end_at() }
}

/// Whether something may have kept a call from a name.
fn is_kept(history: &History, number: usize, name: &str) -> bool {
    let call = &history.calls[number];
    let window = call.window();
    let reads = call.mode == Mode::Read;
    let calls = history.calls.iter().enumerate().filter(|(other, _)| *other != number);
    // Another call that was under way, or what it may have left behind.
    let by_call = calls.filter(|(_, other)| other.has(name) && other.handle != call.handle).any(
        |(_, other)| {
            let only_reads = reads && other.mode == Mode::Read && other.way != Way::Change;
            let left = history.kept_by_call(other, true).is_some_and(|kept| kept.meets(window));
            !only_reads && (other.window().meets(window) && !other.nested || left)
        },
    );
    let by_lease = if let Mode::Permits { count, size } = call.mode {
        let held = history
            .leases
            .iter()
            .filter(|held| held.name == name && history.kept(held).meets(window));
        let sum: u32 = held
            .filter_map(|held| {
                if let Mode::Permits { count, .. } = held.mode { Some(count) } else { None }
            })
            .sum();
        sum + count > size
    } else {
        let keeps = |held: &&Held| {
            held.name == name
                && held.call != number
                && held.handle != call.handle
                && !(reads && held.mode == Mode::Read)
        };
        history.leases.iter().filter(keeps).any(|held| history.kept(held).meets(window))
    };
    let by_act = history.acts.iter().any(|act| {
        let after = history.rules.ttl + history.delay(name) + history.rules.learns();
        let span = Window { from: act.start.at, to: act.window().to.saturating_add(after) };
        (act.is_force_on(name) || matches!(act.deed, Deed::Close { .. })) && span.meets(window)
    });
    by_call || by_lease || by_act
}

/// A new lease has more than half of its time.
pub fn fresh_lease_has_half(history: &History) -> Vec<Breach> {
    let sentence = "reentrancy: It may be at risk, or less than half of the TTL may be left in the store, where a new grant of one \
                    name has more.";
    let mut breaches = Vec::new();
    let rules = &history.rules;
    let time = if rules.backend == Backend::ZooKeeper { rules.ttl * 3 / 4 } else { rules.ttl };
    for held in history.leases.iter().filter(|held| !held.nested && held.was_good()) {
        let call = &history.calls[held.call];
        // A set keeps the names that it has while it waits for the others, so that they are not new.
        let limited = rules.max_hold.is_some()
            || history.trouble_in(around(history, call))
            || matches!(call.object, Object::Election | Object::Multi);
        if !limited && held.remaining + rules.grace + rules.slack < time / 2 {
            let what = format!("the new lease of call {} had {:?} left", held.call, held.remaining);
            breaches.push(Breach {
                promise: "fresh_lease_has_half",
                sentence,
                name: held.name.clone(),
                what,
            });
        }
    }
    breaches
}

/// A forced release returns whether the name was held.
pub fn force_reports_a_holder(history: &History) -> Vec<Breach> {
    let sentence = "`LeaseManager::force_unlock`: Returns whether it was held.";
    let mut breaches = Vec::new();
    for act in &history.acts {
        let Deed::Force { name, found: Some(false) } = &act.deed else { continue };
        let Some(end) = act.end else { continue };
        let held = history.leases.iter().find(|held| {
            held.name == *name
                && held.start.order < act.start.order
                && held.good_until.order > end.order
        });
        let others = history
            .acts
            .iter()
            .filter(|other| other.is_force_on(name) && other.window().meets(act.window()))
            .count();
        if let Some(held) = held.filter(|_| {
            others == 1 && !history.disturbed(name).iter().any(|window| window.from < act.start.at)
        }) {
            let what = format!(
                "the name of call {} was held all the while, and the answer was no",
                held.call
            );
            breaches.push(Breach {
                promise: "force_reports_a_holder",
                sentence,
                name: name.clone(),
                what,
            });
        }
    }
    breaches
}

/// A close takes no longer than it may.
pub fn close_ends_in_time(history: &History) -> Vec<Breach> {
    let sentence = "`LeaseManager::close`: The call takes at most the grace and four attempts.";
    let limit = history.rules.grace + history.rules.attempt * 4 + history.rules.slack;
    let is_late = |act: &&crate::history::Act| {
        matches!(act.deed, Deed::Close { .. })
            && act.window().to.saturating_sub(act.start.at) > limit
    };
    let stalls = history.acts.iter().any(|act| act.deed == Deed::Stall);
    let breach = |act: &crate::history::Act| {
        let what = format!(
            "it took {:?}, and may take {limit:?}",
            act.window().to.saturating_sub(act.start.at)
        );
        Breach { promise: "close_ends_in_time", sentence, name: String::new(), what }
    };
    history.acts.iter().filter(is_late).filter(|_| !stalls).map(breach).collect()
}

/// When all is over, nothing is left.
pub fn nothing_is_left(history: &History) -> Vec<Breach> {
    let sentence = "guarantees: A dropped future keeps the name from others for at most one TTL, or for the TTL and the \
                    `lock_delay` of its handle. testing: what was dropped is released.";
    let breach = |left: &crate::history::Leftover| Breach {
        promise: "nothing_is_left",
        sentence,
        name: String::new(),
        what: left.what.clone(),
    };
    let limit = Duration::from_millis(500) + history.rules.slack;
    // A nested or shared release waits for nothing; the others wait for the store.
    let unlocks = history.leases.iter().filter(|held| {
        let Some(end) = &held.end else { return false };
        let took = end.done.map_or(Duration::MAX, |done| done.at - end.begin.at);
        let span =
            Window { from: end.begin.at.saturating_sub(history.rules.ttl), to: end.begin.at };
        let is_unlock = matches!(end.how, Ending::Unlock | Ending::UnlockNow);
        is_unlock && took > limit.max(history.rules.attempt * 2) && !history.trouble_in(span)
    });
    let slow = unlocks.map(|held| {
        let what = format!("the release of call {} took too long", held.call);
        Breach { promise: "nothing_is_left", sentence, name: held.name.clone(), what }
    });
    history.leftovers.iter().map(breach).chain(slow).collect()
}
