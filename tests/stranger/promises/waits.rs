//! How long calls wait.

use std::time::Duration;

use crate::history::{Backend, Call, History, Object, Outcome, Way};
use crate::judge::{Breach, Window};

/// How long a name may be free until a call that waits for it is granted it.
fn bound(history: &History, call: &Call) -> Duration {
    let rules = &history.rules;
    // A poll, two attempts, and the pause in which a manager lets others go first.
    let calm = !history
        .trouble_in(Window { from: call.start.at.saturating_sub(rules.ttl), to: call.end_at() });
    let attempts =
        if calm && rules.backend == Backend::Memory { Duration::ZERO } else { rules.attempt * 2 };
    let plain = rules.poll + attempts + Duration::from_millis(500) + rules.slack;
    let arrivals = (rules.poll * 3).max(rules.attempt * 2);
    match call.object {
        Object::Fair | Object::Rw => plain + arrivals,
        // It looks again after a poll, and asks for one name after the other after a third of the TTL.
        Object::Multi => plain * 2 + rules.ttl / 3,
        _ => plain,
    }
}

/// A call that waits is granted a name that no other call has or wants.
pub fn free_name_is_granted(history: &History) -> Vec<Breach> {
    let sentence = "faults: A waiter asks by the clock: one poll interval at most. (settings: `max_poll_interval` is how long a \
                    waiter sleeps without asking, should a wake-up be lost.) `lock_timeout`: returns `None` if other holders \
                    have it until then.";
    let mut breaches = Vec::new();
    for (number, call) in history.calls.iter().enumerate() {
        let waits = matches!(call.way, Way::Wait | Way::Timed(_)) && !call.nested;
        let counts = matches!(call.outcome, Outcome::Granted | Outcome::Refused | Outcome::Stuck);
        if !waits || !counts {
            continue;
        }
        let idle = history.idle_wait(number);
        if idle > bound(history, call) {
            let what = format!(
                "call {number} waited for {idle:?} while nothing held the name, and ended with {:?}",
                call.outcome
            );
            breaches.push(Breach {
                promise: "free_name_is_granted",
                sentence,
                name: call.names[0].clone(),
                what,
            });
        }
    }
    breaches
}

/// A call that was given up after far too long is reported, whatever held its name.
pub fn stuck_call(history: &History) -> Vec<Breach> {
    let sentence = "family: Sets that overlap cannot deadlock, in whatever order their names are given. Neither side starves.";
    let stuck = history.calls.iter().enumerate().filter(|(_, call)| call.outcome == Outcome::Stuck);
    let breach = |(number, call): (usize, &Call)| {
        let what = format!("call {number} waited for {:?}", call.took());
        Breach { promise: "stuck_call", sentence, name: call.names[0].clone(), what }
    };
    stuck.map(breach).collect()
}

/// A call with a limit ends in time.
pub fn limits_are_kept(history: &History) -> Vec<Breach> {
    let sentence = "`Lock::lock_timeout`: Waits until this handle holds the lock, for at most `timeout`. `try_lock`: Makes one \
                    attempt. (errors: `Unavailable` after one or two attempts.)";
    let rules = &history.rules;
    let mut breaches = Vec::new();
    for (number, call) in
        history.calls.iter().enumerate().filter(|(_, call)| call.end.is_some() && !call.nested)
    {
        let names = u32::try_from(call.names.len()).expect("few");
        // Requests that run late do so for up to a TTL after the trouble, and may hold a name for one.
        let span = Window { from: call.start.at.saturating_sub(rules.ttl * 2), to: call.end_at() };
        // It may wait for two attempts of another call first. Slots are asked one after the other.
        let is_busy = rules.slack > rules.attempt;
        // "If the store has not answered a request of that handle for longer than an attempt, this call waits for the
        // answer": one that was not polled has not heard it either.
        let is_behind_unpolled = history.calls.iter().enumerate().any(|(index, other)| {
            index != number
                && other.manager == call.manager
                && other.names.iter().any(|name| call.has(name))
                && other.unpolled.is_some_and(|pause| {
                    Window { from: pause.from.at, to: pause.to.at }.meets(call.window())
                })
        });
        let attempts = if is_busy || is_behind_unpolled || history.trouble_in(span) {
            rules.attempt * 4 * names
        } else {
            Duration::from_millis(2) * names
        };
        let limit = match call.way {
            Way::Try => attempts,
            Way::Timed(time) if time.is_zero() => attempts,
            Way::Timed(time) => time,
            _ => continue,
        };
        let paused = call.unpolled.map_or(Duration::ZERO, |pause| pause.to.at - call.start.at);
        if call.took() > limit.max(paused) + rules.slack {
            let what = format!("call {number} took {:?}, and may take {limit:?}", call.took());
            breaches.push(Breach {
                promise: "limits_are_kept",
                sentence,
                name: call.names[0].clone(),
                what,
            });
        }
    }
    breaches
}

/// `lock` goes on asking for a TTL before it gives up.
pub fn silence_lasts_a_ttl(history: &History) -> Vec<Breach> {
    let sentence = "errors: `lock` itself retries while the store is unavailable, for one TTL at most. `Lock::lock`: \
                    `Unavailable`: the store did not answer for one TTL.";
    let mut breaches = Vec::new();
    let rules = &history.rules;
    // On a busy machine servers that are well may be silent.
    if rules.slack > rules.attempt {
        return breaches;
    }
    let time = if rules.backend == crate::history::Backend::ZooKeeper {
        rules.ttl * 3 / 4
    } else {
        rules.ttl
    };
    for (number, call) in history.calls.iter().enumerate() {
        let Outcome::Failed(failure) = &call.outcome else { continue };
        // A silence from before the call does not count: each call waits for a TTL of its own.
        let is_early = call.took() + rules.slack < time * 9 / 10;
        if failure.kind == leasehold::ErrorKind::Unavailable
            && call.way == Way::Wait
            && !call.nested
            && is_early
        {
            let what = format!("call {number} gave up after {:?}", call.took());
            breaches.push(Breach {
                promise: "silence_lasts_a_ttl",
                sentence,
                name: call.names[0].clone(),
                what,
            });
        }
    }
    breaches
}
