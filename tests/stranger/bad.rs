//! Histories written by hand, each of which breaks one promise: the judge can say no.

use std::time::Duration;

use leasehold::{ErrorKind, Loss};

use crate::history::{
    Act, Backend, Body, Call, Deed, End, Ending, Failure, Held, History, JobCall, JobOutcome,
    Leftover, Lost, Mode, Object, Outcome, Rules, Stamp, Way,
};
use crate::promises;

const NAME: &str = "a";

/// A moment, in milliseconds, which is its number too.
fn ms(at: u64) -> Stamp {
    Stamp { order: at, at: Duration::from_millis(at) }
}

fn empty() -> History {
    History::new(Rules {
        backend: Backend::Memory,
        ttl: Duration::from_secs(1),
        attempt: Duration::from_millis(166),
        poll: Duration::from_millis(333),
        grace: Duration::from_millis(100),
        linger: None,
        max_hold: None,
        stall_after: None,
        fencing: true,
        slack: Duration::from_millis(8),
    })
}

/// Adds a call of a handle of its own, which has ended.
fn call(history: &mut History, from: u64, to: u64, outcome: Outcome) -> usize {
    let handle = history.calls.len() as u64 + 1;
    history.calls.push(Call {
        actor: 0,
        manager: 0,
        handle,
        object: Object::Lock,
        names: vec![NAME.to_owned()],
        any: false,
        mode: Mode::Alone,
        way: Way::Wait,
        nested: false,
        min_hold: None,
        lock_delay: Duration::ZERO,
        start: ms(from),
        polled: ms(to - 1),
        unpolled: None,
        end: Some(ms(to)),
        outcome,
    });
    history.calls.len() - 1
}

/// Adds a call that was granted at once, and its lease, which was good until a moment and then unlocked.
fn lease(history: &mut History, from: u64, until: u64) -> usize {
    let number = call(history, from, from + 2, Outcome::Granted);
    let fence = Some(from);
    history.leases.push(Held {
        call: number,
        name: NAME.to_owned(),
        handle: history.calls[number].handle,
        manager: 0,
        mode: Mode::Alone,
        nested: false,
        fence,
        hold_count: 1,
        remaining: Duration::from_millis(880),
        polled: ms(from + 1),
        start: ms(from + 2),
        good_until: ms(until),
        unfired_until: ms(until),
        reported: None,
        holder: format!("holder {number}"),
        lost: None,
        end: Some(End {
            how: Ending::Unlock,
            begin: ms(until + 1),
            done: Some(ms(until + 2)),
            failure: None,
            remaining: Duration::from_millis(500),
            token_fired: true,
        }),
    });
    history.leases.len() - 1
}

fn in_mode(history: &mut History, lease: usize, mode: Mode) {
    let object = if matches!(mode, Mode::Permits { .. }) { Object::Semaphore } else { Object::Rw };
    let number = history.leases[lease].call;
    history.leases[lease].mode = mode;
    history.calls[number].mode = mode;
    history.calls[number].object = object;
}

fn act(history: &mut History, deed: Deed, from: u64, to: u64) {
    history.acts.push(Act { deed, manager: 0, start: ms(from), end: Some(ms(to)), failure: None });
}

fn failure(kind: ErrorKind) -> Failure {
    Failure { kind, loss: None, text: String::new() }
}

fn job(history: &mut History, from: u64, to: u64, outcome: JobOutcome) -> usize {
    let (keep, wait) = (Duration::from_secs(5), Duration::ZERO);
    let body = matches!(outcome, JobOutcome::Ran).then(|| Body {
        start: ms(from + 1),
        good_until: ms(to - 2),
        returned_ok: Some(ms(to - 1)),
    });
    let key = NAME.to_owned();
    history.jobs.push(JobCall {
        key,
        manager: 0,
        keep,
        wait,
        start: ms(from),
        body,
        end: Some(ms(to)),
        outcome,
    });
    history.jobs.len() - 1
}

#[track_caller]
fn breaks(history: &History, promise: &str) {
    let found: Vec<&str> = promises::judge(history).iter().map(|breach| breach.promise).collect();
    assert!(
        found.contains(&promise),
        "found {found:?} in place of {promise}:\n{}",
        history.story(NAME)
    );
}

#[track_caller]
fn keeps(history: &History) {
    let found = promises::judge(history);
    assert!(found.is_empty(), "{found:#?}\n{}", history.story(NAME));
}

#[test]
fn good_history_breaks_nothing() {
    let mut history = empty();
    lease(&mut history, 10, 100);
    let waits = lease(&mut history, 50, 200);
    let number = history.leases[waits].call;
    // It was granted the name after the first had unlocked.
    history.calls[number].polled = ms(103);
    history.calls[number].end = Some(ms(104));
    history.leases[waits].polled = ms(103);
    history.leases[waits].start = ms(104);
    history.leases[waits].fence = Some(11);
    keeps(&history);
}

#[test]
fn two_holders_break_exclusion() {
    let mut history = empty();
    lease(&mut history, 10, 100);
    lease(&mut history, 50, 200);
    breaks(&history, "locks_exclude");
    breaks(&history, "token_fires_before_the_next_grant");
    // By design, while the old holder does not know yet.
    act(&mut history, Deed::Steal { name: NAME.to_owned() }, 40, 45);
    let found = promises::locks_exclude(&history);
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn reader_beside_a_writer_breaks_exclusion() {
    let mut history = empty();
    let reader = lease(&mut history, 10, 100);
    let writer = lease(&mut history, 50, 200);
    in_mode(&mut history, reader, Mode::Read);
    in_mode(&mut history, writer, Mode::Write);
    breaks(&history, "locks_exclude");
    in_mode(&mut history, writer, Mode::Read);
    assert!(promises::locks_exclude(&history).is_empty());
}

#[test]
fn permits_above_the_size_are_found() {
    let mut history = empty();
    for from in [10, 20, 30] {
        let held = lease(&mut history, from, 200 + from);
        in_mode(&mut history, held, Mode::Permits { count: 1, size: 2 });
    }
    breaks(&history, "permits_keep_the_size");
}

#[test]
fn writer_before_a_downgraded_reader_is_found() {
    let mut history = empty();
    let writer = lease(&mut history, 10, 50);
    in_mode(&mut history, writer, Mode::Write);
    let other = lease(&mut history, 60, 70);
    in_mode(&mut history, other, Mode::Write);
    let reader = lease(&mut history, 80, 100);
    in_mode(&mut history, reader, Mode::Read);
    history.leases[reader].handle = history.leases[writer].handle;
    let number = history.leases[reader].call;
    history.calls[number].way = Way::Change;
    breaks(&history, "downgrade_lets_no_writer_in");
}

#[test]
fn grant_within_the_grace_of_a_close_is_found() {
    let mut history = empty();
    let held = lease(&mut history, 10, 49);
    act(&mut history, Deed::Close { manager: 0, failed: Vec::new() }, 50, 60);
    history.leases[held].lost = Some(Lost { seen: ms(65), loss: Some(Loss::Closed) });
    history.leases[held].end = None;
    let next = lease(&mut history, 80, 120);
    history.leases[next].manager = 1;
    let number = history.leases[next].call;
    history.calls[number].manager = 1;
    breaks(&history, "close_waits_for_the_grace");
}

#[test]
fn holder_that_never_learns_of_a_steal_is_found() {
    let mut history = empty();
    lease(&mut history, 10, 3000);
    let thief = lease(&mut history, 50, 2900);
    let number = history.leases[thief].call;
    history.calls[number].way = Way::Steal;
    act(&mut history, Deed::Steal { name: NAME.to_owned() }, 49, 52);
    breaks(&history, "stolen_holder_learns");
    breaks(&history, "locks_exclude");
}

#[test]
fn fences_that_do_not_grow_are_found() {
    let mut history = empty();
    lease(&mut history, 10, 100);
    let later = lease(&mut history, 200, 300);
    history.leases[later].fence = Some(10);
    breaks(&history, "fences_grow");
    in_mode(&mut history, 0, Mode::Write);
    in_mode(&mut history, later, Mode::Read);
    breaks(&history, "fences_grow");
    history.leases[later].fence = None;
    breaks(&history, "fences_are_there");
}

#[test]
fn nested_lease_with_another_fence_is_found() {
    let mut history = empty();
    let outer = lease(&mut history, 10, 300);
    let inner = lease(&mut history, 50, 100);
    history.leases[inner].handle = history.leases[outer].handle;
    history.leases[inner].nested = true;
    breaks(&history, "fences_are_there");
}

#[test]
fn readers_of_two_managers_with_one_fence_are_found() {
    let mut history = empty();
    for from in [10, 20] {
        let reader = lease(&mut history, from, 100);
        in_mode(&mut history, reader, Mode::Read);
        history.leases[reader].fence = Some(7);
        history.leases[reader].manager = usize::from(from == 20);
    }
    breaks(&history, "readers_have_their_own");
}

#[test]
fn thief_with_a_small_fence_is_found() {
    let mut history = empty();
    lease(&mut history, 10, 60);
    let thief = lease(&mut history, 50, 100);
    history.leases[thief].fence = Some(3);
    let number = history.leases[thief].call;
    history.calls[number].way = Way::Steal;
    breaks(&history, "steal_has_a_larger_fence");
}

#[test]
fn job_that_runs_again_is_found() {
    let mut history = empty();
    job(&mut history, 10, 100, JobOutcome::Ran);
    job(&mut history, 200, 300, JobOutcome::Ran);
    breaks(&history, "job_runs_once");
    let mut history = empty();
    job(&mut history, 10, 100, JobOutcome::Ran);
    job(&mut history, 50, 90, JobOutcome::Ran);
    breaks(&history, "jobs_exclude");
    let mut history = empty();
    job(&mut history, 10, 100, JobOutcome::AlreadyDone { ago: Duration::ZERO });
    breaks(&history, "done_only_if_it_ran");
}

#[test]
fn loss_without_a_cause_is_found() {
    for loss in [
        Loss::Expired,
        Loss::Gone,
        Loss::Taken,
        Loss::Revoked,
        Loss::Stolen,
        Loss::MaxHold,
        Loss::Closed,
        Loss::Stalled,
    ] {
        let mut history = empty();
        let held = lease(&mut history, 10, 100);
        history.leases[held].lost = Some(Lost { seen: ms(110), loss: Some(loss) });
        breaks(&history, "losses_have_causes");
    }
}

#[test]
fn hold_beyond_max_hold_is_found() {
    let mut history = empty();
    history.rules.max_hold = Some(Duration::from_millis(500));
    lease(&mut history, 10, 700);
    breaks(&history, "max_hold_ends_a_lease");
    let mut history = empty();
    history.rules.max_hold = Some(Duration::from_millis(500));
    let held = lease(&mut history, 10, 20);
    history.leases[held].lost = Some(Lost { seen: ms(30), loss: Some(Loss::MaxHold) });
    breaks(&history, "max_hold_ends_a_lease");
}

#[test]
fn grant_of_a_closed_name_is_found() {
    let mut history = empty();
    let held = lease(&mut history, 10, 20);
    let number = history.leases[held].call;
    history.calls[number].min_hold = Some(Duration::from_millis(400));
    lease(&mut history, 100, 200);
    breaks(&history, "min_hold_keeps_the_name");

    let mut history = empty();
    history.rules.max_hold = Some(Duration::from_millis(10));
    let held = lease(&mut history, 10, 20);
    let number = history.leases[held].call;
    history.calls[number].lock_delay = Duration::from_millis(400);
    history.leases[held].lost = Some(Lost { seen: ms(25), loss: Some(Loss::MaxHold) });
    lease(&mut history, 100, 200);
    breaks(&history, "delay_keeps_the_name");

    let mut history = empty();
    let held = lease(&mut history, 10, 20);
    history.leases[held].end.as_mut().expect("an end").how = Ending::Forget;
    lease(&mut history, 100, 200);
    breaks(&history, "forget_keeps_the_name");
}

#[test]
fn token_that_does_not_fire_at_the_end_is_found() {
    let mut history = empty();
    let held = lease(&mut history, 10, 20);
    history.leases[held].end.as_mut().expect("an end").token_fired = false;
    breaks(&history, "token_fires_at_the_end");
}

#[test]
fn grant_of_a_closed_manager_is_found() {
    let mut history = empty();
    act(&mut history, Deed::Close { manager: 0, failed: Vec::new() }, 5, 8);
    lease(&mut history, 10, 20);
    breaks(&history, "closed_call_fails");
    let mut history = empty();
    act(&mut history, Deed::Close { manager: 0, failed: Vec::new() }, 5, 5000);
    breaks(&history, "close_ends_in_time");
}

#[test]
fn waiter_that_is_passed_is_found() {
    let mut history = empty();
    call(&mut history, 10, 500, Outcome::Granted);
    lease(&mut history, 100, 120);
    breaks(&history, "order_in_a_manager");
    for call in &mut history.calls {
        call.object = Object::Fair;
    }
    history.calls[1].manager = 1;
    breaks(&history, "fair_order");
}

#[test]
fn slow_nested_call_is_found() {
    let mut history = empty();
    let number = call(&mut history, 10, 100, Outcome::Granted);
    history.calls[number].nested = true;
    breaks(&history, "nested_call_is_at_once");
    let number = call(&mut history, 110, 112, Outcome::Failed(failure(ErrorKind::Unavailable)));
    history.calls[number].nested = true;
    breaks(&history, "nested_call_is_at_once");
}

#[test]
fn error_without_a_reason_is_found() {
    use ErrorKind::{
        Closed, Denied, Invalid, Lost, Protocol, Rejected, Unavailable, Unsupported, WrongType,
    };
    for kind in
        [Closed, Denied, Invalid, Lost, Protocol, Rejected, Unavailable, Unsupported, WrongType]
    {
        let mut history = empty();
        call(&mut history, 10, 20, Outcome::Failed(failure(kind)));
        breaks(&history, "errors_have_reasons");
    }
    let mut history = empty();
    let held = lease(&mut history, 10, 20);
    history.leases[held].end.as_mut().expect("an end").failure =
        Some(failure(ErrorKind::Unavailable));
    breaks(&history, "errors_have_reasons");
    let mut history = empty();
    job(&mut history, 10, 20, JobOutcome::Failed(failure(ErrorKind::WrongType)));
    breaks(&history, "errors_have_reasons");
}

#[test]
fn fair_lock_of_a_quorum_is_found() {
    let mut history = empty();
    history.rules.backend = Backend::Quorum;
    let held = lease(&mut history, 10, 20);
    let number = history.leases[held].call;
    history.calls[number].object = Object::Fair;
    breaks(&history, "unsupported_is_refused");
}

#[test]
fn refusal_of_a_free_name_is_found() {
    let mut history = empty();
    lease(&mut history, 10, 20);
    let number = call(&mut history, 500, 502, Outcome::Refused);
    history.calls[number].way = Way::Try;
    breaks(&history, "refusal_has_a_reason");
    let mut history = empty();
    lease(&mut history, 10, 600);
    let number = call(&mut history, 500, 502, Outcome::Refused);
    history.calls[number].way = Way::Try;
    keeps(&history);
}

#[test]
fn new_lease_without_time_is_found() {
    let mut history = empty();
    let held = lease(&mut history, 10, 20);
    history.leases[held].remaining = Duration::from_millis(300);
    breaks(&history, "fresh_lease_has_half");
}

#[test]
fn force_that_finds_no_holder_is_found() {
    let mut history = empty();
    lease(&mut history, 10, 200);
    act(&mut history, Deed::Force { name: NAME.to_owned(), found: Some(false) }, 100, 110);
    breaks(&history, "force_reports_a_holder");
}

#[test]
fn what_is_left_is_found() {
    let mut history = empty();
    history.leftovers.push(Leftover { what: "a hold".to_owned() });
    breaks(&history, "nothing_is_left");
}

#[test]
fn waiter_of_a_free_name_is_found() {
    let mut history = empty();
    call(&mut history, 10, 4000, Outcome::Granted);
    breaks(&history, "free_name_is_granted");
    let mut history = empty();
    call(&mut history, 10, 4000, Outcome::Stuck);
    breaks(&history, "stuck_call");
    breaks(&history, "free_name_is_granted");
}

#[test]
fn call_beyond_its_limit_is_found() {
    let mut history = empty();
    lease(&mut history, 5, 900);
    let number = call(&mut history, 10, 500, Outcome::Refused);
    history.calls[number].way = Way::Timed(Duration::from_millis(100));
    breaks(&history, "limits_are_kept");
    history.calls[number].way = Way::Try;
    breaks(&history, "limits_are_kept");
    let mut history = empty();
    act(&mut history, Deed::Trouble { manager: None }, 10, 600);
    call(&mut history, 11, 300, Outcome::Failed(failure(ErrorKind::Unavailable)));
    breaks(&history, "silence_lasts_a_ttl");
}

#[test]
fn lease_that_comes_back_is_found() {
    let mut history = empty();
    let held = lease(&mut history, 10, 100);
    history.leases[held].lost = Some(Lost { seen: ms(50), loss: Some(Loss::Closed) });
    breaks(&history, "lost_lease_stays_lost");
}

#[test]
fn token_that_outlives_a_close_or_a_steal_is_found() {
    let mut history = empty();
    lease(&mut history, 10, 100);
    act(&mut history, Deed::Close { manager: 0, failed: Vec::new() }, 50, 60);
    breaks(&history, "close_fires_all_tokens");
    let mut history = empty();
    lease(&mut history, 10, 100);
    act(&mut history, Deed::Force { name: NAME.to_owned(), found: Some(true) }, 50, 60);
    breaks(&history, "force_fires_tokens_here");
}

#[test]
fn steal_without_patience_is_found() {
    let mut history = empty();
    let old = lease(&mut history, 10, 55);
    act(&mut history, Deed::Steal { name: NAME.to_owned() }, 49, 70);
    let thief = lease(&mut history, 50, 100);
    let number = history.leases[thief].call;
    history.calls[number].way = Way::StealAfter(Duration::from_millis(500));
    history.leases[old].lost = Some(Lost { seen: ms(60), loss: Some(Loss::Stolen) });
    breaks(&history, "patience_lasts");
}

#[test]
fn holder_that_stalls_is_found() {
    let mut history = empty();
    history.rules.stall_after = Some(Duration::from_millis(100));
    lease(&mut history, 10, 300);
    breaks(&history, "stall_ends_a_lease");
    let mut history = empty();
    history.rules.stall_after = Some(Duration::from_millis(100));
    let held = lease(&mut history, 10, 300);
    history.leases[held].reported = Some(ms(290));
    history.leases[held].lost = Some(Lost { seen: ms(310), loss: Some(Loss::Stalled) });
    breaks(&history, "stall_ends_a_lease");
}

#[test]
fn grant_beside_another_kind_is_found() {
    let mut history = empty();
    lease(&mut history, 10, 300);
    let reader = lease(&mut history, 50, 100);
    in_mode(&mut history, reader, Mode::Read);
    breaks(&history, "another_kind_is_refused");
}

#[test]
fn view_that_goes_back_is_found() {
    let mut history = empty();
    lease(&mut history, 10, 300);
    for (at, term) in [(50, 7), (60, 6)] {
        history.sightings.push(crate::history::Sighting {
            view: 1,
            name: NAME.to_owned(),
            at: ms(at),
            term: Some(term),
            holder: None,
            value: None,
        });
    }
    breaks(&history, "view_goes_forward");
    let mut history = empty();
    lease(&mut history, 10, 300);
    history.sightings.push(crate::history::Sighting {
        view: 1,
        name: NAME.to_owned(),
        at: ms(50),
        term: None,
        holder: Some("holder 0".to_owned()),
        value: Some("actor 5".to_owned()),
    });
    breaks(&history, "view_goes_forward");
}

#[test]
fn lease_that_counts_wrong_is_found() {
    let mut history = empty();
    let held = lease(&mut history, 10, 300);
    history.leases[held].hold_count = 2;
    breaks(&history, "hold_count_counts");
}
