//! Who comes first.

use std::time::Duration;

use crate::history::{Call, Deed, History, Mode, Object, Outcome, Way};
use crate::judge::{Breach, Window};

fn waiters<'a>(history: &'a History, name: &str) -> Vec<&'a Call> {
    let is_one = |call: &&Call| {
        let waits = matches!(call.way, Way::Wait)
            || matches!(call.way, Way::Timed(time) if !time.is_zero());
        let in_line = !matches!(call.object, Object::Multi | Object::Slots);
        // A term of `lead` is noted when it begins.
        let is_term = call.end.is_some_and(|end| end.order == call.start.order);
        waits && in_line && !is_term && !call.nested && call.names == [name]
    };
    history.calls.iter().filter(is_one).collect()
}

/// Whether `second` surely had its lease while `first` still waited.
fn passes(history: &History, second: &Call, first: &Call) -> bool {
    let late = second.end.is_some_and(|end| end.at + history.rules.slack < first.polled.at);
    // "If it is not polled, other calls pass it."
    let goes_on = first.unpolled.is_none()
        && first.outcome != Outcome::Abandoned
        && !matches!(first.outcome, Outcome::Failed(_));
    second.outcome == Outcome::Granted && late && goes_on
}

fn is_calm(history: &History, name: &str, first: &Call) -> bool {
    let span = first.window();
    !history.trouble_in(span)
        && !history.acts.iter().any(|act| act.is_force_on(name) && act.window().meets(span))
}

/// Handles of one manager are served in the order in which they came.
pub fn order_in_a_manager(history: &History) -> Vec<Breach> {
    let sentence = "settings: Handles of one manager wait in the order of arrival. (`RwLock`: Among the handles of a manager, \
                    a reader that comes after a waiting writer waits behind it. `Semaphore`: The calls of one manager get \
                    their permits in the order of arrival; one that asks for many is not overtaken.)";
    let mut breaches = Vec::new();
    for name in history.names() {
        let calls = waiters(history, &name);
        for second in &calls {
            for first in &calls {
                let came_first = first.start.at + history.rules.slack < second.start.at;
                let are_readers = first.mode == Mode::Read && second.mode == Mode::Read;
                if first.manager != second.manager || !came_first || are_readers {
                    continue;
                }
                let closes = history.acts.iter().any(|act| matches!(act.deed, Deed::Close { manager, .. } if manager == first.manager));
                if passes(history, second, first) && is_calm(history, &name, first) && !closes {
                    breaches.push(Breach {
                        promise: "order_in_a_manager",
                        sentence,
                        name: name.clone(),
                        what: passing(second, first),
                    });
                }
            }
        }
    }
    breaches
}

/// Fair handles of all processes are served in the order in which they came.
pub fn fair_order(history: &History) -> Vec<Breach> {
    let sentence = "`LeaseManager::fair_lock`: The lock goes to the fair handle that has waited longest, whichever process it \
                    is in. (If no other manager waited at the grant, it hands off for 20 ms.)";
    // A hand-off within 20 ms may pass one that came after the grant.
    let hand_offs = Duration::from_millis(20);
    let mut breaches = Vec::new();
    for name in history.names() {
        let calls = waiters(history, &name);
        if calls.iter().any(|call| call.object != Object::Fair) {
            continue;
        }
        for second in &calls {
            for first in &calls {
                let came_first = first.start.at + hand_offs + history.rules.slack < second.start.at;
                let closes = history.acts.iter().any(|act| {
                    matches!(act.deed, Deed::Close { .. })
                        && act.window().meets(Window { from: Duration::ZERO, to: first.end_at() })
                });
                // "While the oldest waiter of a manager is not polled, ..."
                let is_behind = calls.iter().any(|oldest| {
                    oldest.manager == first.manager
                        && oldest.start.at <= first.start.at
                        && oldest.unpolled.is_some()
                });
                if came_first
                    && passes(history, second, first)
                    && is_calm(history, &name, first)
                    && !closes
                    && !is_behind
                {
                    breaches.push(Breach {
                        promise: "fair_order",
                        sentence,
                        name: name.clone(),
                        what: passing(second, first),
                    });
                }
            }
        }
    }
    breaches
}

/// Says which call was granted before which.
fn passing(second: &Call, first: &Call) -> String {
    format!(
        "the call from {:?} was granted {:?} while that from {:?} waited until {:?}",
        second.start.at, second.end, first.start.at, first.end
    )
}
