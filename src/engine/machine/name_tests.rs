//! One name, transition by transition: a state, an input, and the effects that are expected.
//!
//! # Rare states
//!
//! A simulation should reach each of these. `name_tests` has the exact effects; the other tests go through the engine.
//!
//! | state | tested in |
//! |---|---|
//! | a hold is handed off to a waiter that was dropped | `hold_of_a_waiter_that_goes_is_returned`; `life::hold_of_a_waiter_that_is_dropped_goes_to_the_next` |
//! | a hold is handed off to a waiter that was woken just before | `hold_waits_for_a_waiter_that_was_woken_just_before`; `life::waiter_just_woken_finds_its_hold_at_the_next_check_in` |
//! | a hold is offered to a waiter that is not polled, and taken back | `hold_that_is_not_accepted_in_time_is_returned`; `engine::unpolled::hold_handed_to_a_future_that_nobody_polls_is_taken_back` |
//! | a hold that was offered ends before its waiter accepts it | `hold_that_ends_on_its_way_is_returned`; `engine::wait::waiter_handed_a_hold_lost_on_the_way_keeps_its_place` |
//! | a turn is offered to a waiter that is not polled | `turn_not_taken_up_goes_on_and_its_waiter_keeps_its_place`; `engine::unpolled::turn_of_a_future_nobody_polls_goes_to_the_next_in_line` |
//! | a turn is offered to a waiter that was dropped | `turn_of_a_waiter_that_goes_is_offered_to_the_next` |
//! | a turn is reclaimed from a call that asks | `turn_that_is_overdue_is_reclaimed` |
//! | a turn that was reclaimed ends | `turn_that_was_reclaimed_ends_without_effect` |
//! | a grant comes for a turn that was reclaimed | `late_grant_takes_the_turn_of_a_waiter_and_wakes_it`; `engine::unpolled::grant_heard_of_late_by_a_future_put_aside_is_its_own` |
//! | a late grant meets another hold | `grant_is_excluded_by_another_hold` |
//! | a late grant of a name that is idle since | `grant_counts_when_the_name_is_idle` |
//! | the name is forced open between a request and its grant | `grant_is_refused_after_a_forced_release` |
//! | it is forced open, or taken elsewhere, between grant and hold | `hold_is_doubted_after_a_forced_release` |
//! | a waiter comes back before a turn that was offered behind it | `waiter_that_comes_back_is_before_a_turn_not_taken_up` |
//! | no waiter is polled | `name_is_free_when_no_waiter_is_polled`, `waiters_are_not_overtaken_after_a_stall` |
//! | a hundred waiters that are not polled are before one that is | `waiters_that_are_not_polled_are_passed_over_at_once` |
//! | a hold is handed off to a call that asks for permits | `permit_is_handed_off_to_the_call_that_asks`; `engine::permit_handoff` |
//! | the same before that call has taken up its turn | `permit_is_handed_off_to_a_waiter_with_a_turn` |
//! | the same between the grant of that call and its hold | `call_that_has_a_grant_keeps_its_slot_at_a_hand_off` |
//! | a read hold ends before a waiter has joined it | `reader_that_has_not_joined_waits_at_its_place_again` |
//! | a reader becomes a writer while a waiter is about to join it | `reader_may_join_a_hold_that_has_become_a_writer` |
//! | an upgrade is refused | `upgrade_that_is_refused_admits_readers` |
//! | a silence ends with the last turn | `silence_ends_with_the_last_turn` |
//! | a chain is not young, and waiters elsewhere listen | `old_chain_serves_those_that_were_there_at_its_grant` |
//! | a semaphore has become smaller | `permit_granted_before_a_resize_is_not_handed_off` |
//! | the next waiter has another mode, another `lock_delay` or came too late for the line | `hold_is_handed_off_to_the_first_waiter_if_it_suits` |

use super::effects::{Effects, Numbers};
use super::name::{Admitted, Granted, Kept, Limits, NameState, Seated, Silence, Step};
use super::scope::{Chain, HandoffScope};
use super::waiters::Demand;
use crate::clock::Instant;
use crate::store::Mode;
use Effect::{Dropped, HandedOff, Returned, Woken};
use std::time::Duration;

const LIMITS: Limits = Limits {
    attempt: Duration::from_millis(10),
    patience: Duration::from_millis(100),
    joins: Duration::from_millis(50),
};

const X: Mode = Mode::Exclusive;
const PERMIT: Mode = Mode::Permits { size: 3, take: 1 };
const TWO_PERMITS: Mode = Mode::Permits { size: 3, take: 2 };

const CHAIN: Chain = Chain {
    began: Instant::ZERO,
    is_young: true,
    scope: HandoffScope::Plain,
    delay: Duration::ZERO,
};

fn at(ms: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(1) + Duration::from_millis(ms)
}

type Hold = &'static str;

#[derive(Debug, PartialEq, Eq)]
enum Effect {
    Dropped(Hold),
    Returned(Hold),
    HandedOff(u64, Hold),
    Woken(u64),
}

/// A name whose time is `ms`.
#[derive(Default)]
struct Rig {
    state: NameState<Hold>,
    numbers: Numbers,
    ms: u64,
    effects: Vec<Effect>,
}

impl Rig {
    /// Runs a transition now, and keeps its effects for [`effects`](Self::effects).
    fn run<R>(&mut self, run: impl FnOnce(&mut NameState<Hold>, &mut Step<'_, Hold>) -> R) -> R {
        let mut effects = Effects::default();
        let times = LIMITS.at(at(self.ms));
        let mut step = Step { times, numbers: &mut self.numbers, effects: &mut effects };
        let result = run(&mut self.state, &mut step);
        let Effects { dropped, returned, handed_off, woken } = effects;
        self.effects.extend(dropped.into_iter().map(Dropped));
        self.effects.extend(returned.into_iter().map(Returned));
        self.effects.extend(handed_off.map(|handed| HandedOff(handed.to, handed.hold)));
        self.effects.extend(woken.into_iter().map(Woken));
        result
    }

    /// Returns the effects since the last look.
    fn effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    fn pulse_of(&mut self, ticket: u64, demand: Demand) -> Option<Admitted<Hold>> {
        self.run(|state, step| state.pulse(ticket, demand, step))
    }

    fn pulse_in(&mut self, ticket: u64, mode: Mode) -> Option<Admitted<Hold>> {
        let lock_delay = Duration::ZERO;
        self.pulse_of(ticket, Demand { mode, arrived: at(0), fair: false, lock_delay })
    }

    fn pulse(&mut self, ticket: u64) -> Option<Admitted<Hold>> {
        self.pulse_in(ticket, X)
    }

    fn turn_of(&mut self, ticket: u64) -> u64 {
        match self.pulse(ticket) {
            Some(Admitted::Turn(number)) => number,
            other => panic!("no turn but {other:?}"),
        }
    }

    /// Puts new waiters into the queue.
    fn waiters<const N: usize>(&mut self, mode: Mode) -> [u64; N] {
        [(); N].map(|()| {
            let ticket = self.numbers.draw();
            assert_eq!(self.pulse_in(ticket, mode), None);
            ticket
        })
    }

    fn try_enter(&mut self, mode: Mode) -> Option<u64> {
        self.run(|state, step| state.try_enter(mode, step))
    }

    fn leave(&mut self, number: u64) -> bool {
        self.run(|state, step| state.leave(number, step))
    }

    fn withdraw(&mut self, ticket: u64) {
        self.run(|state, step| state.withdraw(ticket, step));
    }

    fn keep_in(&mut self, number: u64, mode: Mode, was_forced: bool) -> Kept {
        let granted = Granted { number, mode, is_own: true, was_forced, served_at: None };
        self.run(|state, step| state.keep(granted, step.effects))
    }

    fn keep(&mut self, number: u64) -> Kept {
        self.keep_in(number, X, false)
    }

    fn seated(&self, number: u64, mode: Mode, hold: Hold) -> Seated<Hold> {
        Seated { number, mode, hold, joined_until: at(self.ms) + LIMITS.joins }
    }

    /// Installs a hold. Returns whether it is doubted.
    fn install(&mut self, number: u64, mode: Mode, hold: Hold) -> bool {
        let seated = self.seated(number, mode, hold);
        self.run(|state, step| {
            let doubted = state.install(seated, step.times.now);
            if state.shares_with_waiters(mode) {
                state.advance(step);
            }
            doubted
        })
    }

    /// Begins a hold. Returns the number of its slot.
    fn hold(&mut self, mode: Mode, hold: Hold) -> u64 {
        let number = self.try_enter(mode).expect("a turn");
        assert_eq!(self.keep_in(number, mode, false), Kept::Yes);
        assert!(!self.install(number, mode, hold));
        number
    }

    /// Hands the hold of a slot off. Returns whether there is a waiter for it.
    fn hand_off(&mut self, slot: u64, chain: &Chain, next: Hold) -> bool {
        let times = LIMITS.at(at(self.ms));
        let Some(recipient) = self.state.recipient(slot, chain, times) else { return false };
        self.run(|state, step| state.hand_off(slot, recipient, next, step));
        true
    }
}

/// Returns a turn, and three waiters behind it.
fn three_behind_a_turn() -> (Rig, u64, [u64; 3]) {
    let mut rig = Rig::default();
    let first = rig.try_enter(X).expect("a turn");
    let waiters = rig.waiters(X);
    assert_eq!(rig.effects(), []);
    (rig, first, waiters)
}

/// Returns a hold, and three waiters behind it.
fn three_behind_a_hold() -> (Rig, u64, [u64; 3]) {
    let mut rig = Rig::default();
    let slot = rig.hold(X, "a");
    let waiters = rig.waiters(X);
    (rig, slot, waiters)
}

#[test]
fn turn_alone_and_its_hold_have_no_effect_but_the_end() {
    let mut rig = Rig::default();
    let slot = rig.hold(X, "a");
    assert_eq!(rig.effects(), []);
    assert!(rig.leave(slot));
    assert_eq!(rig.effects(), [Dropped("a")]);
    assert!(rig.state.is_idle());
}

#[test]
fn turns_are_offered_in_the_order_of_tickets() {
    let (mut rig, first, [second, third, _]) = three_behind_a_turn();
    assert_eq!(rig.try_enter(X), None);
    assert!(rig.leave(first));
    assert_eq!(rig.effects(), [Woken(second)]);
    assert_eq!(rig.pulse(third), None);
    let turn = rig.turn_of(second);
    assert_eq!(rig.effects(), []);
    assert!(rig.leave(turn));
    assert_eq!(rig.effects(), [Woken(third)]);
}

#[test]
fn waiter_that_goes_is_passed_over() {
    let (mut rig, first, [second, third, _]) = three_behind_a_turn();
    rig.withdraw(second);
    assert_eq!(rig.effects(), []);
    rig.leave(first);
    assert_eq!(rig.effects(), [Woken(third)]);
}

#[test]
fn turn_of_a_waiter_that_goes_is_offered_to_the_next() {
    let (mut rig, first, [second, third, _]) = three_behind_a_turn();
    rig.leave(first);
    assert_eq!(rig.effects(), [Woken(second)]);
    rig.withdraw(second);
    assert_eq!(rig.effects(), [Woken(third)]);
}

#[test]
fn name_is_idle_after_its_last_turn_whatever_waited() {
    let (mut rig, first, waiters) = three_behind_a_turn();
    waiters.into_iter().for_each(|waiter| rig.withdraw(waiter));
    rig.leave(first);
    assert_eq!(rig.effects(), []);
    assert!(rig.state.is_idle() && rig.state.waiting() == 0);
}

#[test]
fn waiters_are_woken_once_until_their_next_pulse() {
    let (mut rig, _, [second, third, fourth]) = three_behind_a_turn();
    rig.run(|state, step| state.wake_all(step.effects));
    assert_eq!(rig.effects(), [Woken(second), Woken(third), Woken(fourth)]);
    assert_eq!(rig.pulse(third), None, "it waits on");
    rig.run(|state, step| state.wake_all(step.effects));
    assert_eq!(rig.effects(), [Woken(third)]);
}

#[test]
fn turn_not_taken_up_goes_on_and_its_waiter_keeps_its_place() {
    let (mut rig, first, [late, second, third]) = three_behind_a_turn();
    rig.leave(first);
    assert_eq!(rig.effects(), [Woken(late)]);
    assert_eq!(rig.pulse(second), None, "it is not due yet");
    rig.ms = 11;
    let taken = rig.turn_of(second);
    // It comes back in time to be the first of the two.
    assert_eq!(rig.pulse(late), None);
    rig.effects();
    rig.leave(taken);
    assert_eq!(rig.effects(), [Woken(late)]);
    assert_eq!(rig.pulse(third), None);
    let turn = rig.turn_of(late);
    rig.leave(turn);
    rig.turn_of(third);
}

#[test]
fn waiter_that_comes_back_is_before_a_turn_not_taken_up() {
    let (mut rig, first, [second, third, fourth]) = three_behind_a_turn();
    rig.leave(first);
    rig.ms = 11;
    rig.effects();
    assert_eq!(rig.pulse(fourth), None, "the turn of the second is the third's now");
    // The number of a turn stands for its call, which is none here.
    assert!(rig.effects().contains(&Woken(third)));
    let turn = rig.turn_of(second);
    assert_eq!((rig.pulse(third), rig.pulse(fourth)), (None, None));
    rig.leave(turn);
    assert_eq!(rig.pulse(fourth), None);
    let turn = rig.turn_of(third);
    rig.leave(turn);
    rig.turn_of(fourth);
}

#[test]
fn turn_that_is_overdue_is_reclaimed() {
    let (mut rig, first, [second, third, _]) = three_behind_a_turn();
    assert_eq!(rig.state.asks(first, at(0), at(60)), Some(at(0)));
    rig.ms = 60;
    assert_eq!(rig.pulse(second), None, "it is not overdue yet");
    assert_eq!(rig.pulse(third), None);
    rig.ms = 61;
    let taken = rig.turn_of(second);
    assert_eq!(rig.effects(), [Woken(first)], "its call learns it, if it is polled");
    assert_eq!(rig.state.asks(first, at(61), at(99)), None);
    rig.state.set_due(first, at(0));
    assert_eq!(rig.pulse(third), None, "the second has it");
    rig.leave(taken);
    rig.turn_of(third);
}

#[test]
fn turn_that_was_reclaimed_ends_without_effect() {
    let (mut rig, first, [second, third, _]) = three_behind_a_turn();
    rig.ms = 11;
    rig.turn_of(second);
    rig.effects();
    assert!(!rig.leave(first));
    assert_eq!(rig.effects(), []);
    assert_eq!(rig.pulse(third), None);
}

#[test]
fn waiters_that_are_not_polled_are_passed_over_at_once() {
    let mut rig = Rig::default();
    rig.try_enter(X).expect("a turn");
    let aside: [u64; 100] = rig.waiters(X);
    rig.ms = 500;
    let last = rig.numbers.draw();
    let taken = rig.turn_of(last);
    let woken = rig.effects();
    assert!(aside.iter().all(|ticket| woken.contains(&Woken(*ticket))), "out of the queue");
    rig.state.set_due(taken, at(600));
    // They give a pulse again, and are back in the queue.
    assert!(aside.iter().all(|ticket| rig.pulse(*ticket).is_none()));
    rig.leave(taken);
    let turn = rig.turn_of(aside[0]);
    rig.leave(turn);
    rig.turn_of(aside[1]);
}

#[test]
fn late_grant_takes_the_turn_of_a_waiter_and_wakes_it() {
    let (mut rig, first, [second, third, _]) = three_behind_a_turn();
    rig.ms = 20;
    let taken = rig.turn_of(second);
    rig.effects();
    assert_eq!(rig.keep(first), Kept::Yes);
    assert_eq!(rig.effects(), [Woken(taken)], "its call need not wait for the poll bound");
    assert_eq!(rig.state.asks(taken, at(20), at(99)), None);
    assert_eq!(rig.keep(taken), Kept::Excluded, "the first has a hold");
    assert!(!rig.leave(taken));
    rig.ms = 900;
    assert_eq!(rig.pulse(third), None, "a hold is never overdue");
    assert_eq!(rig.try_enter(X), None);
    rig.leave(first);
    rig.turn_of(third);
}

#[test]
fn late_grant_voids_an_offered_turn() {
    let (mut rig, first, [second, third, fourth]) = three_behind_a_turn();
    rig.ms = 20;
    let taken = rig.turn_of(second);
    rig.leave(taken);
    rig.effects();
    assert_eq!(rig.keep(first), Kept::Yes);
    assert_eq!((rig.pulse(third), rig.pulse(fourth)), (None, None));
    rig.effects();
    rig.leave(first);
    assert_eq!(rig.effects(), [Woken(third)]);
    rig.turn_of(third);
}

#[test]
fn grant_is_excluded_by_another_hold() {
    let mut rig = Rig::default();
    let late = rig.try_enter(X).expect("a turn");
    rig.ms = 11;
    let slot = rig.hold(X, "b");
    assert_eq!(rig.keep(late), Kept::Excluded);
    assert_eq!(rig.effects(), [Woken(late)], "when it was reclaimed");
    assert_eq!(rig.state.holds().collect::<Vec<_>>(), [&"b"]);
    assert!(rig.state.has(slot) && !rig.state.has(late));
}

#[test]
fn grant_counts_when_the_name_is_idle() {
    let mut rig = Rig::default();
    let late = rig.try_enter(X).expect("a turn");
    rig.ms = 11;
    let turn = rig.try_enter(X).expect("reclaimed");
    rig.leave(turn);
    assert!(rig.state.is_idle());
    assert_eq!(rig.keep(late), Kept::Yes);
    rig.ms = 900;
    assert_eq!(rig.try_enter(X), None);
    rig.leave(late);
    assert!(rig.state.is_idle());
}

#[test]
fn grant_is_refused_after_a_forced_release() {
    // Marked, with whether the turn sent the request, and whether this process forced any name open since then.
    let cases = [
        (false, true, false, Kept::Yes),
        (false, true, true, Kept::Yes),
        (false, false, true, Kept::Forced),
        (true, true, false, Kept::Forced),
    ];
    for (is_marked, is_own, was_forced, kept) in cases {
        let mut rig = Rig::default();
        let number = rig.try_enter(X).expect("a turn");
        if is_marked {
            rig.state.mark_forced(None);
        }
        let granted = Granted { number, mode: X, is_own, was_forced, served_at: None };
        assert_eq!(rig.run(|state, step| state.keep(granted, step.effects)), kept);
    }
    let mut rig = Rig::default();
    assert_eq!(rig.keep_in(7, X, true), Kept::Forced, "a turn that was reclaimed");
    assert!(rig.state.is_idle());
}

#[test]
fn hold_is_doubted_after_a_forced_release() {
    for (is_forced, by) in [(true, None), (true, Some(1)), (false, None)] {
        let mut rig = Rig::default();
        let number = rig.try_enter(X).expect("a turn");
        assert_eq!((number, rig.keep(number)), (1, Kept::Yes));
        match is_forced {
            true => rig.state.mark_forced(by),
            false => rig.state.mark_doubted(),
        }
        assert_eq!(rig.install(number, X, "a"), by.is_none(), "unless it forced it itself");
    }
}

#[test]
fn request_forgets_what_was_forced_before_it() {
    let mut rig = Rig::default();
    let number = rig.try_enter(X).expect("a turn");
    rig.state.mark_forced(None);
    rig.state.mark_doubted();
    assert_eq!(rig.state.asks(number, at(0), at(9)), Some(at(0)));
    assert_eq!(rig.keep(number), Kept::Yes);
    assert!(!rig.install(number, X, "a"));
}

#[test]
fn waiters_are_not_overtaken_after_a_stall() {
    let (mut rig, first, waiters) = three_behind_a_turn();
    rig.ms = 5_000;
    rig.leave(first);
    assert_eq!(rig.effects(), [Woken(waiters[0])], "none is polled, so none is passed over");
    assert_eq!(rig.try_enter(X), None);
    rig.turn_of(waiters[0]);
    assert_eq!(rig.try_enter(X), None);
}

#[test]
fn name_is_free_when_no_waiter_is_polled() {
    let (mut rig, first, waiters) = three_behind_a_turn();
    rig.leave(first);
    rig.ms = 5_000;
    let taken = rig.try_enter(X).expect("a turn");
    assert!(waiters.iter().all(|waiter| rig.pulse(*waiter).is_none()));
    rig.leave(taken);
    rig.turn_of(waiters[0]);
}

#[test]
fn hold_comes_with_the_wake_up_of_its_waiter() {
    let (mut rig, slot, [second, third, _]) = three_behind_a_hold();
    assert!(rig.hand_off(slot, &CHAIN, "b"));
    assert_eq!(rig.effects(), [Dropped("a"), HandedOff(second, "b")]);
    assert_eq!(rig.state.holds().collect::<Vec<_>>(), [&"b"]);
    assert_eq!(rig.pulse(third), None);
    rig.leave(slot);
    assert_eq!(rig.effects(), [Dropped("b"), Woken(third)]);
}

#[test]
fn hold_waits_for_a_waiter_that_was_woken_just_before() {
    let (mut rig, slot, [second, third, _]) = three_behind_a_hold();
    rig.run(|state, step| state.wake_all(step.effects));
    rig.effects();
    assert!(rig.hand_off(slot, &CHAIN, "b"));
    assert_eq!(rig.effects(), [Dropped("a")]);
    assert_eq!(rig.pulse(third), None, "it is the second one's");
    assert_eq!(rig.pulse(second), Some(Admitted::Hold("b")));
    assert_eq!(rig.effects(), []);
}

/// Returns a hold that waits for a waiter that was woken just before.
fn offered() -> (Rig, u64, [u64; 3]) {
    let (mut rig, slot, waiters) = three_behind_a_hold();
    rig.run(|state, step| state.wake_all(step.effects));
    assert!(rig.hand_off(slot, &CHAIN, "b"));
    rig.effects();
    (rig, slot, waiters)
}

#[test]
fn hold_of_a_waiter_that_goes_is_returned() {
    let (mut rig, slot, [second, third, _]) = offered();
    rig.withdraw(second);
    assert_eq!(rig.effects(), [Returned("b")]);
    // The shell hands it off again.
    rig.pulse(third);
    assert!(rig.hand_off(slot, &CHAIN, "c"));
    assert_eq!(rig.effects(), [Dropped("b"), HandedOff(third, "c")]);
}

#[test]
fn hold_that_is_not_accepted_in_time_is_returned() {
    let (mut rig, _, [second, third, _]) = offered();
    rig.run(|state, step| state.miss(&"other", step.effects));
    assert_eq!(rig.effects(), []);
    rig.run(|state, step| state.miss(&"b", step.effects));
    assert_eq!(rig.effects(), [Returned("b")]);
    assert_eq!(rig.pulse(third), None);
    assert_eq!(rig.pulse(second), None, "it keeps its place");
    assert!(rig.state.is_first(second, at(0)));
}

#[test]
fn hold_that_ends_on_its_way_is_returned() {
    let (mut rig, slot, [second, third, _]) = offered();
    rig.pulse(third);
    rig.leave(slot);
    assert_eq!(rig.effects(), [Dropped("b"), Returned("b"), Woken(third)]);
    // It is first again as soon as it gives a pulse.
    rig.turn_of(second);
}

#[test]
fn hold_is_handed_off_to_the_first_waiter_if_it_suits() {
    let fair = |ms| Demand { mode: X, arrived: at(ms), fair: true, lock_delay: Duration::ZERO };
    let plain = Demand { fair: false, ..fair(0) };
    let delayed = Demand { lock_delay: Duration::from_secs(1), ..plain };
    let scope = |scope| Chain { scope, ..CHAIN };
    let before = scope(HandoffScope::Before(at(50)));
    let cases = [
        (plain, CHAIN, true),
        (fair(0), CHAIN, false),
        (fair(0), scope(HandoffScope::All), true),
        (fair(49), before, true),
        (fair(50), before, false),
        (delayed, CHAIN, false),
        (delayed, Chain { delay: Duration::from_secs(1), ..CHAIN }, true),
        (Demand { mode: Mode::Write, ..plain }, CHAIN, false),
    ];
    for (demand, chain, suits) in cases {
        let mut rig = Rig::default();
        let slot = rig.hold(X, "a");
        assert_eq!(rig.pulse_of(90, demand), None);
        // One behind it suits, and overtakes none.
        assert_eq!(rig.pulse_of(91, Demand { arrived: at(0), ..plain }), None);
        assert_eq!(rig.hand_off(slot, &chain, "b"), suits, "{demand:?} {chain:?}");
        let expected = [Dropped("a"), HandedOff(90, "b")];
        assert_eq!(rig.effects(), if suits { &expected[..] } else { &[] });
    }
}

#[test]
fn hold_is_handed_off_to_the_first_waiter_that_is_polled() {
    let (mut rig, slot, [second, third, _]) = three_behind_a_hold();
    rig.ms = 150;
    assert_eq!(rig.pulse(third), None);
    assert!(!rig.state.is_first(second, LIMITS.polled_since(at(150))));
    assert!(rig.hand_off(slot, &CHAIN, "b"));
    assert_eq!(rig.effects(), [Dropped("a"), HandedOff(third, "b")]);
}

#[test]
fn old_chain_serves_those_that_were_there_at_its_grant() {
    for (is_young, served_at, serves) in [(false, 4, false), (false, 5, true), (true, 4, true)] {
        let mut rig = Rig::default();
        let number = rig.try_enter(X).expect("a turn");
        let served_at = Some(served_at);
        let granted = Granted { number, mode: X, is_own: true, was_forced: false, served_at };
        assert_eq!(rig.run(|state, step| state.keep(granted, step.effects)), Kept::Yes);
        rig.install(number, X, "a");
        assert_eq!(rig.pulse(5), None);
        assert_eq!(rig.hand_off(number, &Chain { is_young, ..CHAIN }, "b"), serves);
    }
}

#[test]
fn grant_that_waiters_elsewhere_do_not_listen_to_limits_no_chain() {
    let mut rig = Rig::default();
    for (served_at, serves) in [(Some(4), false), (None, true)] {
        let number = rig.try_enter(X).expect("a turn");
        let granted = Granted { number, mode: X, is_own: true, was_forced: false, served_at };
        assert_eq!(rig.run(|state, step| state.keep(granted, step.effects)), Kept::Yes);
        rig.install(number, X, "a");
        assert_eq!(rig.pulse(50), None);
        assert_eq!(rig.hand_off(number, &Chain { is_young: false, ..CHAIN }, "b"), serves);
        rig.withdraw(50);
        // Another turn keeps the name from being idle.
        let other = rig.run(|state, step| state.seize(X, step));
        rig.leave(number);
        assert_eq!(rig.keep(other), Kept::Yes);
        rig.leave(other);
    }
}

#[test]
fn waiter_is_polled_until_its_patience_ends() {
    for (ms, is_passed_over) in [(100, false), (101, true)] {
        let mut rig = Rig::default();
        rig.try_enter(X).expect("a turn");
        let [first] = rig.waiters(X);
        rig.ms = ms;
        let second = rig.numbers.draw();
        assert_eq!(rig.pulse(second).is_some(), is_passed_over);
        assert_eq!(rig.state.is_first(first, LIMITS.polled_since(at(ms))), !is_passed_over);
    }
}

#[test]
fn idle_name_forgets_a_silence() {
    let mut rig = Rig::default();
    let turn = rig.try_enter(X).expect("a turn");
    rig.state.asks(turn, at(0), at(10));
    rig.ms = 11;
    rig.try_enter(X).expect("reclaimed");
    assert_eq!(rig.state.silence(), None);
}

#[test]
fn permits_are_granted_side_by_side_and_asked_for_one_by_one() {
    let mut rig = Rig::default();
    let first = rig.try_enter(PERMIT).expect("a turn");
    let [second, third] = rig.waiters(PERMIT);
    assert_eq!(rig.keep_in(first, PERMIT, false), Kept::Yes);
    rig.install(first, PERMIT, "a");
    assert_eq!(rig.effects(), [Woken(second)]);
    assert_eq!(rig.pulse_in(third, PERMIT), None);
    let Some(Admitted::Turn(turn)) = rig.pulse_in(second, PERMIT) else { panic!("no turn") };
    rig.state.refuse(turn);
    assert_eq!(rig.try_enter(PERMIT), None, "one that was refused comes first");
}

/// Returns a permit, and a call that asks for another, with its ticket and the number of its turn.
fn asking_for_permits(mode: Mode) -> (Rig, u64, u64, u64) {
    let mut rig = Rig::default();
    let slot = rig.hold(PERMIT, "a");
    let ticket = rig.numbers.draw();
    let Some(Admitted::Turn(turn)) = rig.pulse_in(ticket, mode) else { panic!("no turn") };
    (rig, slot, ticket, turn)
}

#[test]
fn permit_is_handed_off_to_the_call_that_asks() {
    for (mode, suits) in [(PERMIT, true), (TWO_PERMITS, false)] {
        let (mut rig, slot, ticket, turn) = asking_for_permits(mode);
        assert!(!rig.hand_off(slot, &CHAIN, "b"), "it does not seek yet");
        assert!(rig.run(|state, step| state.seek(turn, ticket, Duration::ZERO, step.effects)));
        let [next] = rig.waiters(mode);
        assert_eq!(rig.hand_off(slot, &CHAIN, "b"), suits);
        let expected = [Dropped("a"), HandedOff(ticket, "b"), Woken(next)];
        assert_eq!(rig.effects(), if suits { &expected[..] } else { &[] });
        assert_eq!(rig.state.has(turn), !suits, "its turn ends in the same step");
    }
}

#[test]
fn permit_is_not_handed_off_to_a_call_that_is_not_polled_or_differs() {
    for (ms, delay, suits) in [(10, 0, true), (11, 0, false), (10, 1, false)] {
        let (mut rig, slot, ticket, turn) = asking_for_permits(PERMIT);
        let delay = Duration::from_millis(delay);
        rig.run(|state, step| state.seek(turn, ticket, delay, step.effects));
        rig.ms = ms;
        assert_eq!(rig.hand_off(slot, &CHAIN, "b"), suits);
    }
}

#[test]
fn call_that_has_a_grant_keeps_its_slot_at_a_hand_off() {
    let (mut rig, slot, ticket, turn) = asking_for_permits(PERMIT);
    rig.run(|state, step| state.seek(turn, ticket, Duration::ZERO, step.effects));
    assert_eq!(rig.keep_in(turn, PERMIT, false), Kept::Yes);
    // Its hold is not installed yet.
    assert!(!rig.hand_off(slot, &CHAIN, "b"));
    assert_eq!(rig.effects(), []);
    assert!(!rig.install(turn, PERMIT, "c"));
    assert_eq!(rig.state.holds().collect::<Vec<_>>(), [&"a", &"c"]);
}

#[test]
fn permit_is_handed_off_to_a_waiter_with_a_turn() {
    let (mut rig, slot, _, turn) = asking_for_permits(PERMIT);
    let [second, third] = rig.waiters(PERMIT);
    rig.leave(turn);
    assert_eq!(rig.effects(), [Woken(second)]);
    assert!(rig.hand_off(slot, &CHAIN, "b"));
    assert_eq!(rig.effects(), [Dropped("a"), Woken(third)]);
    assert_eq!(rig.pulse_in(second, PERMIT), Some(Admitted::Hold("b")));
}

#[test]
fn seeker_is_woken_when_its_turn_is_reclaimed() {
    let (mut rig, _, ticket, turn) = asking_for_permits(PERMIT);
    assert!(rig.run(|state, step| state.seek(turn, ticket, Duration::ZERO, step.effects)));
    let [next] = rig.waiters(PERMIT);
    rig.ms = 11;
    assert!(matches!(rig.pulse_in(next, PERMIT), Some(Admitted::Turn(_))));
    assert_eq!(rig.effects(), [Woken(ticket), Woken(turn)]);
    assert!(!rig.run(|state, step| state.seek(turn, ticket, Duration::ZERO, step.effects)));
}

#[test]
fn permit_granted_before_a_resize_is_not_handed_off() {
    let mut rig = Rig::default();
    let slot = rig.hold(PERMIT, "a");
    let turn = rig.try_enter(PERMIT).expect("a turn");
    let [_] = rig.waiters(PERMIT);
    rig.leave(turn);
    rig.state.shrunk(at(5));
    for (began, may) in [(5, false), (6, true)] {
        let chain = Chain { began: at(began), ..CHAIN };
        let recipient = rig.state.recipient(slot, &chain, LIMITS.at(at(0)));
        assert_eq!(recipient.is_some(), may);
    }
}

#[test]
fn readers_join_in_order_up_to_a_writer() {
    let mut rig = Rig::default();
    let turn = rig.try_enter(Mode::Read).expect("a turn");
    let [one, other] = rig.waiters(Mode::Read);
    let [writer] = rig.waiters(Mode::Write);
    let [last] = rig.waiters(Mode::Read);
    assert_eq!(rig.keep_in(turn, Mode::Read, false), Kept::Yes);
    rig.install(turn, Mode::Read, "a");
    assert_eq!(rig.effects(), [Woken(one), Woken(other)]);
    assert_eq!(rig.pulse_in(other, Mode::Read), Some(Admitted::Join("a")));
    assert_eq!(rig.pulse_in(one, Mode::Read), Some(Admitted::Join("a")));
    assert_eq!(rig.pulse_in(last, Mode::Read), None);
    assert_eq!(rig.state.cohort(at(0)), None, "it would overtake the writer");
    rig.leave(turn);
    assert_eq!(rig.effects(), [Dropped("a"), Woken(writer)]);
}

#[test]
fn reader_with_an_offered_turn_does_not_join() {
    let mut rig = Rig::default();
    let turn = rig.try_enter(Mode::Read).expect("a turn");
    let [one, other] = rig.waiters(Mode::Read);
    rig.leave(turn);
    assert_eq!(rig.effects(), [Woken(one)]);
    // Readers that wait are no contention for one that makes one attempt.
    let turn = rig.try_enter(Mode::Read).expect("a turn");
    assert_eq!(rig.keep_in(turn, Mode::Read, false), Kept::Yes);
    rig.install(turn, Mode::Read, "a");
    assert_eq!(rig.effects(), [Woken(other)]);
    assert!(matches!(rig.pulse_in(one, Mode::Read), Some(Admitted::Turn(_))));
    assert_eq!(rig.pulse_in(other, Mode::Read), Some(Admitted::Join("a")));
}

#[test]
fn readers_join_a_writer_that_has_become_a_reader() {
    let mut rig = Rig::default();
    let slot = rig.hold(Mode::Write, "w");
    let [reader] = rig.waiters(Mode::Read);
    let seated = rig.seated(slot, Mode::Read, "r");
    rig.run(|state, step| state.reseat(seated, step));
    assert_eq!(rig.effects(), [Dropped("w"), Woken(reader)]);
    assert_eq!(rig.pulse_in(reader, Mode::Read), Some(Admitted::Join("r")));
}

#[test]
fn reader_that_has_not_waited_joins_for_a_while() {
    let mut rig = Rig::default();
    rig.hold(Mode::Read, "a");
    assert_eq!(rig.state.cohort(at(49)), Some(&"a"));
    assert_eq!(rig.state.cohort(at(50)), None);
    rig.state.disband(&"other");
    assert_eq!(rig.state.cohort(at(0)), Some(&"a"));
    rig.state.saw_another(at(0));
    assert_eq!(rig.state.cohort(at(0)), None, "a writer waits elsewhere");
}

#[test]
fn reader_that_has_not_joined_waits_at_its_place_again() {
    let mut rig = Rig::default();
    let turn = rig.try_enter(Mode::Read).expect("a turn");
    let [reader] = rig.waiters(Mode::Read);
    let [writer] = rig.waiters(Mode::Write);
    assert_eq!(rig.keep_in(turn, Mode::Read, false), Kept::Yes);
    rig.install(turn, Mode::Read, "a");
    assert_eq!(rig.effects(), [Woken(reader)]);
    assert_eq!(rig.state.waiting(), 1, "the reader is about to join");
    rig.leave(turn);
    // The reader has been woken already. It finds a turn at its pulse.
    assert_eq!(rig.effects(), [Dropped("a"), Dropped("a")]);
    assert!(matches!(rig.pulse_in(reader, Mode::Read), Some(Admitted::Turn(_))));
    assert_eq!(rig.pulse_in(writer, Mode::Write), None);
}

#[test]
fn reader_may_join_a_hold_that_has_become_a_writer() {
    let mut rig = Rig::default();
    let turn = rig.try_enter(Mode::Read).expect("a turn");
    let [reader] = rig.waiters(Mode::Read);
    assert_eq!(rig.keep_in(turn, Mode::Read, false), Kept::Yes);
    rig.install(turn, Mode::Read, "a");
    assert!(rig.state.begin_upgrade(turn));
    let seated = rig.seated(turn, Mode::Write, "w");
    rig.run(|state, step| state.reseat(seated, step));
    assert_eq!(rig.effects(), [Woken(reader), Dropped("a")]);
    // The join fails, because the hold is over, and the reader waits again.
    assert_eq!(rig.pulse_in(reader, Mode::Read), Some(Admitted::Join("a")));
    assert_eq!(rig.pulse_in(reader, Mode::Read), None);
    rig.leave(turn);
    assert_eq!(rig.effects(), [Dropped("w"), Woken(reader)]);
}

#[test]
fn upgrade_needs_a_reader_that_is_alone() {
    let mut rig = Rig::default();
    let slot = rig.hold(Mode::Read, "a");
    let other = rig.try_enter(Mode::Read).expect("a turn");
    assert!(!rig.state.begin_upgrade(slot));
    rig.leave(other);
    let [_] = rig.waiters(Mode::Write);
    assert!(!rig.state.begin_upgrade(slot));
}

#[test]
fn upgrade_that_is_refused_admits_readers() {
    let mut rig = Rig::default();
    let slot = rig.hold(Mode::Read, "a");
    assert!(rig.state.begin_upgrade(slot));
    let [reader] = rig.waiters(Mode::Read);
    rig.run(|state, step| state.end_upgrade(slot, Mode::Read, step));
    assert_eq!(rig.effects(), [Woken(reader)]);
    assert_eq!(rig.pulse_in(reader, Mode::Read), Some(Admitted::Join("a")));
}

#[test]
fn silence_begins_with_the_first_request_that_is_not_answered() {
    let mut rig = Rig::default();
    let turn = rig.try_enter(X).expect("a turn");
    rig.state.answered(at(1));
    assert_eq!(rig.state.silence(), None);
    assert_eq!(rig.state.asks(turn, at(2), at(9)), Some(at(2)));
    assert_eq!(rig.state.asks(turn, at(4), at(9)), Some(at(2)));
    rig.state.unanswered(at(5));
    assert_eq!(rig.state.silence(), Some(Silence { since: at(2), heard: Some(at(1)) }));
    rig.state.saw_another(at(6));
    assert_eq!(rig.state.silence(), None);
}

#[test]
fn silence_ends_with_the_last_turn() {
    let mut rig = Rig::default();
    rig.hold(PERMIT, "a");
    let turn = rig.try_enter(PERMIT).expect("a turn");
    rig.state.asks(turn, at(2), at(9));
    rig.leave(turn);
    assert_eq!(rig.state.silence(), None, "the request was that of the turn");
    let (mut rig, first, [second, _, _]) = three_behind_a_turn();
    rig.state.asks(first, at(2), at(9));
    rig.leave(first);
    rig.turn_of(second);
    assert!(rig.state.silence().is_some(), "the next one asks, too");
}

#[test]
fn name_is_asked_what_it_is_used_as() {
    let mut rig = Rig::default();
    let turn = rig.try_enter(X).expect("a turn");
    assert_eq!(rig.state.used_otherwise(PERMIT).count(), 0, "the store has not answered yet");
    assert!(rig.state.is_mixed(PERMIT) && !rig.state.is_mixed(X));
    rig.state.refuse(turn);
    assert_eq!(rig.state.used_otherwise(PERMIT).count(), 1);
    assert_eq!(rig.state.used_otherwise(X).count(), 0);
    let [waiter, other] = rig.waiters(X);
    assert_eq!((rig.state.ahead(Some(waiter)), rig.state.ahead(Some(other))), (0, 1));
    assert_eq!((rig.state.ahead(None), rig.state.next_arrival(at(0))), (2, None));
}
