//! The soak's oracle on histories made by hand: it accepts the good ones, and finds what is bad in each of
//! the others.

use kit::soak::history;
use kit::soak::oracle::{Excuse, Verdict, judge};

/// A history of the name `ash`, and of names that several share, with T = 1 s on the server `kept`, in lines of
/// `<ms> <who> <what>`.
fn verdict(lines: &str) -> Verdict {
    let names = ["ash", "rw-ash", "pool3-ash", "lead-ash", "job-ash", "loot-ash"];
    let mut events: Vec<String> = names.map(|name| format!("0 soak name {name} kept 1000")).into();
    for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (ms, rest) = line.split_once(' ').expect("a time and what happened");
        // In the fields, a number with `ms` behind it is a time as well.
        let words = rest.split(' ').map(|word| match word.strip_suffix("ms") {
            Some(number) => format!("{number}000000"),
            None => word.to_owned(),
        });
        events.push(format!("{ms}000000 {}", words.collect::<Vec<_>>().join(" ")));
    }
    let text = events.join("\n") + "\n";
    let mut history = history::read(&text);
    assert_eq!(history.len(), events.len(), "a line is not an event:\n{text}");
    history.sort_by_key(|event| event.at);
    judge(&history)
}

#[track_caller]
fn accepts(lines: &str) {
    let findings = verdict(lines).findings;
    assert!(findings.is_empty(), "found {findings:?}");
}

#[track_caller]
fn finds(rule: &str, lines: &str) {
    let findings = verdict(lines).findings;
    assert!(!findings.is_empty(), "nothing was found");
    let others = findings.iter().filter(|finding| finding.rule != rule).count();
    assert_eq!(others, 0, "expected only {rule}, found {findings:?}");
}

/// A lease by checks alone, with a hold of its own: who, the number, the mode, the fencing token, and from when to when. Its
/// holder looks at it up to the end.
fn lease(who: &str, ask: u64, mode: &str, fence: u64, from: u64, until: u64) -> String {
    let (name, mode) = match mode {
        "lock" => ("ash", String::new()),
        "read" | "write" => ("rw-ash", format!("{from} {who} shares {ask} {mode} 0\n")),
        permits => ("pool3-ash", format!("{from} {who} shares {ask} permits {permits}\n")),
    };
    format!(
        "{from} {who} wanted {ask} {name} lock 0\n{mode}{from} {who} granted {ask} {fence} check
         {until} {who} released {ask} {until}ms\n"
    )
}

/// An exclusive lease.
fn lock(who: &str, ask: u64, fence: u64, from: u64, until: u64) -> String {
    lease(who, ask, "lock", fence, from, until)
}

#[test]
fn holders_one_after_the_other_are_accepted() {
    let nested = "42 p1.1 nested 0 228 2\n".to_owned();
    accepts(&[lock("p0.1", 0, 100, 11, 40), lock("p1.1", 0, 228, 41, 60), nested].concat());
}

#[test]
fn lease_handed_off_inside_a_process_is_accepted() {
    accepts(&[lock("p0.1", 0, 100, 11, 20), lock("p0.1", 1, 101, 21, 30)].concat());
}

#[test]
fn two_who_believe_at_once_are_found() {
    for second in ["p1.1", "p0.1"] {
        let both = [lock("p0.1", 0, 100, 11, 40), lock(second, 7, 228, 30, 60)];
        finds("overlap", &both.concat());
    }
}

#[test]
fn overlap_is_found_behind_a_shorter_one_that_is_excused() {
    let leases = [
        lock("p0.1", 0, 100, 11, 1600),
        lock("p1.1", 0, 228, 31, 40),
        lock("p1.1", 1, 356, 1501, 1700),
    ];
    finds("overlap", &(leases.concat() + "20 soak wiped 21ms ash"));
}

/// The last check at `last_ok`, lost at 950 by the clock; the next holder at 1005.
fn expiry(last_ok: u64) -> String {
    format!(
        "10 p0.1 wanted 0 ash lock 0
         11 p0.1 granted 0 100 check
         20 p1.1 wanted 0 ash lock 0
         950 p0.1 fired 0 {last_ok}ms expired
         1005 p1.1 granted 0 228 check
         1050 p1.1 released 0 1049ms"
    )
}

#[test]
fn step_that_began_with_a_check_has_the_grace_to_end() {
    accepts(&expiry(890));
    finds("overlap", &expiry(920));
}

/// What a renewal confirmed too late is released as soon as the holder has unlocked.
#[test]
fn holder_that_knows_and_has_unlocked_has_no_grace() {
    accepts(&expiry(920).replace("expired", "expired\n951 p0.1 unreleased 0 lost-expired"));
}

#[test]
fn check_after_the_next_grant_is_found_however_late_written() {
    let late = "10 p0.1 wanted 0 ash lock 0
         11 p0.1 granted 0 100 check
         20 p1.1 wanted 0 ash lock 0
         1005 p1.1 granted 0 228 check
         1006 p1.1 checked 0 1006ms
         5000 p0.1 stalled 3900
         5001 p0.1 checked 0 1020ms
         5002 p1.1 released 0 1900ms";
    finds("overlap", late);
}

#[test]
fn process_that_was_killed_believes_nothing_after_its_grace() {
    accepts(
        "10 p0.1 wanted 0 ash lock 0
         11 p0.1 granted 0 100 check
         12 p0.1 checked 0 12ms
         20 p1.1 wanted 0 ash lock 0
         30 soak fault 300ms p0.1 Kill
         1017 p1.1 granted 0 228 check
         1050 p1.1 released 0 1049ms",
    );
}

/// The holder goes by its token alone and wakes at 1300; the next holder was there at 1005.
const LATE_TOKEN: &str = "10 p0.1 wanted 0 ash lock 0
     11 p0.1 granted 0 100 token
     20 p1.1 wanted 0 ash lock 0
     1005 p1.1 granted 0 228 check
     1006 p1.1 checked 0 1100ms
     1300 p0.1 fired 0 0ms expired
     1500 p1.1 released 0 1499ms";

#[test]
fn token_that_fires_late_is_found_if_the_process_was_awake() {
    finds("overlap", LATE_TOKEN);
    accepts(&format!("{LATE_TOKEN}\n1300 p0.1 stalled 300"));
    accepts(&format!("{LATE_TOKEN}\n900 soak fault 1299ms p0.1 Freeze"));
}

/// A wipe at 20 to 25, one more holder at `granted`, and the old one until `until`.
fn wipe(granted: u64, until: u64) -> String {
    [
        lock("p0.1", 0, 100, 11, until),
        "20 soak wiped 25ms ash\n".to_owned(),
        lock("p1.1", 0, 228, granted, until + 500),
    ]
    .concat()
}

#[test]
fn wipe_excuses_for_a_time_to_live_and_no_longer() {
    accepts(&wipe(30, 1000));
    finds("overlap", &wipe(30, 1100));
    finds("overlap", &wipe(15, 1000));
}

#[test]
fn forced_unlock_excuses_as_a_wipe_does() {
    let forced =
        wipe(30, 1000).replace("20 soak wiped 25ms ash", "20 p2.1 forcing 9 ash\n25 p2.1 forced 9");
    accepts(&forced);
    let forced =
        wipe(30, 1100).replace("20 soak wiped 25ms ash", "20 p2.1 forcing 9 ash\n25 p2.1 forced 9");
    finds("overlap", &forced);
    // Without an answer it may have come at any time.
    accepts(&wipe(30, 1100).replace("20 soak wiped 25ms ash", "20 p2.1 forcing 9 ash"));
}

#[test]
fn fence_that_goes_back_is_found() {
    let after = |fence| [lock("p0.1", 0, 100, 11, 20), lock("p1.1", 0, fence, 31, 40)].concat();
    accepts(&after(101));
    finds("fence", &after(100));
    finds("fence", &after(99));
}

#[test]
fn fence_that_goes_back_is_found_long_after_the_greater_one() {
    let leases = [
        lock("p0.1", 0, 300, 11, 12),
        lock("p1.1", 0, 100, 31, 32),
        lock("p1.1", 1, 200, 2001, 2002),
    ];
    finds("fence", &(leases.concat() + "20 soak wiped 21ms ash"));
}

#[test]
fn nested_lease_with_another_fence_is_found() {
    finds("fence", &(lock("p0.1", 0, 100, 11, 20) + "12 p0.1 nested 0 101 2"));
}

#[test]
fn lost_update_and_a_fence_to_be_refused_are_found() {
    let writes = |values: [(u64, u64); 3]| {
        values.map(|(value, fence)| format!("9 p0.1 wrote ash {value} {fence}\n")).concat()
    };
    accepts(&writes([(1, 100), (2, 100), (3, 228)]));
    finds("update", &writes([(1, 100), (2, 100), (2, 228)]));
    finds("update", &writes([(1, 100), (2, 228), (3, 100)]));
    finds("update", &writes([(1, 100), (3, 228), (4, 229)]));
}

/// A waiter waits from 1000 to 3000; the server has no key from 1100 on until `until`.
fn waits(until: u64) -> String {
    format!(
        "1000 p0.1 wanted 0 ash lock 0
         1100 soak free {until}ms ash
         3000 p0.1 granted 0 100 check
         3010 p0.1 released 0 3009ms"
    )
}

#[test]
fn waiter_who_starves_beside_a_free_name_is_found() {
    accepts(&waits(1800));
    finds("waiting", &waits(2900));
}

#[test]
fn waiter_may_wait_on_a_broken_path_and_in_a_frozen_process() {
    for broken in ["p0.1 HoldReplies", "kept Crash", "p0.1 Freeze"] {
        accepts(&format!("{}\n900 soak fault 1300ms {broken}", waits(2900)));
    }
    finds("waiting", &format!("{}\n900 soak fault 1300ms p1.1 HoldReplies", waits(2900)));
    accepts(&format!("{}\n2900 p0.1 stalled 1500", waits(2900)));
}

#[test]
fn free_name_that_others_take_meanwhile_is_nobody_starving() {
    let others = [lock("p1.1", 0, 90, 1501, 1502), lock("p1.1", 1, 91, 2101, 2102)];
    accepts(&format!("{}\n{}", waits(2700), others.concat()));
}

/// A lease until 20, whose key is on the server until `until`.
fn keys(until: u64) -> String {
    format!(
        "1 p0.1 manager uuid
         10 p0.1 wanted 0 ash lock 0
         11 p0.1 granted 0 100 check
         15 soak kept {until}ms ash uuid 1
         20 p0.1 released 0 19ms"
    )
}

#[test]
fn key_of_which_its_process_knows_nothing_is_found() {
    accepts(&keys(400));
    finds("orphan", &keys(900));
    accepts(&format!("{}\n21 p0.1 forgot 0", keys(900)));
    accepts(&format!("{}\n12 soak fault 13ms p0.1 LoseOneReply", keys(900)));
    accepts(&format!("{}\n300 p0.1 wanted 1 ash lock 0\n700 p0.1 gave-up 1 dropped", keys(900)));
    finds(
        "orphan",
        &format!("{}\n300 p1.1 wanted 1 ash lock 0\n700 p1.1 gave-up 1 dropped", keys(900)),
    );
}

#[test]
fn key_of_a_token_without_lease_is_found_beside_waiters() {
    let waits = "300 p0.1 wanted 1 ash lock 0";
    let key = |number: u64, until: u64| {
        format!(
            "1 p0.1 manager uuid
             10 p0.1 wanted 0 ash lock 0
             11 p0.1 granted 0 100 check
             11 p0.1 token 0 1
             20 p0.1 released 0 19ms
             {waits}
             15 soak kept {until}ms ash uuid {number}
             2000 p0.1 gave-up 1 dropped"
        )
    };
    accepts(&key(1, 900));
    accepts(&key(2, 500));
    finds("orphan", &key(2, 900));
    // After a stall of the server it has less time than after other faults.
    accepts(&format!("{}\n12 soak fault 300ms kept Freeze(0)", key(2, 1200)));
    finds("orphan", &format!("{}\n12 soak fault 300ms kept Freeze(0)", key(2, 1900)));
    accepts(&format!("{}\n12 soak fault 300ms kept Crash(0)", key(2, 1900)));
    accepts(&format!("{}\n301 p0.1 unpolled 1", key(2, 900)));
    // A call for a set that waits for another name, until it gives up.
    let set = |until| {
        key(2, until).replace(waits, "300 p0.1 wanted 1 ash set 0").replace("2000 p", "700 p")
    };
    accepts(&set(1100));
    finds("orphan", &set(1500));
}

#[test]
fn key_that_nobody_has_is_found_though_others_wait_for_it() {
    let waits = "12 p0.1 wanted 1 ash lock 0\n5000 p0.1 gave-up 1 dropped";
    accepts(&format!("{}\n{waits}", keys(1800)));
    finds("idle", &format!("{}\n{waits}", keys(2500)));
    finds("idle", &format!("{}\n{waits}\n600 soak fault 4000ms p0.1 BlockLog", keys(2500)));
    accepts(&format!("{}\n{waits}\n600 soak fault 610ms p0.1 HoldRequests", keys(2500)));
}

#[test]
fn waiter_behind_a_future_that_nobody_polls_is_not_found() {
    let waits =
        "1000 p0.1 wanted 0 ash lock 0\n1100 soak free 2900ms ash\n3000 p0.1 gave-up 0 dropped";
    finds("waiting", waits);
    accepts(&format!(
        "{waits}\n900 p0.1 wanted 1 ash unpolled 0\n901 p0.1 unpolled 1\n2901 p0.1 gave-up 1 dropped"
    ));
    finds(
        "waiting",
        &format!(
            "{waits}\n900 p1.1 wanted 0 ash unpolled 0\n901 p1.1 unpolled 0\n2901 p1.1 gave-up 0 dropped"
        ),
    );
}

#[test]
fn lease_expired_for_nothing_and_unclosed_manager_are_found() {
    let lost = |cause: &str| {
        format!(
            "1 soak run 7 5 redis
             3000 p0.1 wanted 0 ash lock 0
             3001 p0.1 granted 0 100 check
             5000 p0.1 fired 0 4900ms {cause}"
        )
    };
    finds("needless loss", &lost("expired"));
    finds("needless loss", &format!("{}\n3500 soak fault 5000ms p0.1 BlockLog", lost("expired")));
    finds(
        "needless loss",
        &format!("{}\n3500 soak fault 5000ms kept HalfMoveSlot(1)", lost("expired")),
    );
    accepts(&format!("{}\n4000 soak fault 4900ms p0.1 BlackHole", lost("expired")));
    accepts(&format!("{}\n4900 p2.1 stalled 400", lost("expired")));
    let frozen = "4500 soak fault 4900ms p2.1 Freeze\n4900 p2.1 stalled 400";
    finds("needless loss", &format!("{}\n{frozen}", lost("expired")));
    accepts(&lost("maxhold"));
    let unreleased = lost("x").replace(
        "5000 p0.1 fired 0 4900ms x",
        "4900 p0.1 released 0 4899ms\n5000 p0.1 unreleased 0 unavailable",
    );
    finds("needless loss", &unreleased);
    finds("needless loss", &format!("{unreleased}\n3500 soak fault 5000ms kept HalfMoveSlot(1)"));
    accepts(&format!("{unreleased}\n4000 soak fault 4900ms kept Freeze(0)"));
    accepts(&unreleased.replace("unavailable", "lost-gone"));
    // A release is tried for an attempt of T/6. With a processor for some of that time it would have been answered.
    let slow = unreleased.replace("5000 p0.1 unreleased", "5200 p0.1 unreleased");
    finds("needless loss", &slow);
    for starved in ["p0.1 starved 260", "soak starved 260"] {
        accepts(&format!("{slow}\n5170 {starved}"));
    }
    accepts(&format!("{slow}\n5050 p0.1 starved 150\n5180 soak starved 130"));
    finds("needless loss", &format!("{slow}\n5050 p0.1 starved 150\n5100 p0.1 starved 150"));
    for starved in ["p0.1 starved 200", "p1.1 starved 300"] {
        finds("needless loss", &format!("{slow}\n5170 {starved}"));
    }
    accepts(&format!("{}\n4950 p0.1 starved 800", lost("expired")));
    finds("needless loss", &format!("{}\n4950 p0.1 starved 600", lost("expired")));
    finds("contradiction", &lost("closed"));
}

#[test]
fn limit_that_is_outstayed_and_a_wait_without_end_are_found() {
    let limit = |until: u64| {
        format!("1000 p0.1 wanted 0 ash timeout 200\n{until} p0.1 gave-up 0 not-granted")
    };
    accepts(&limit(1250));
    finds("waiting", &limit(2000));
    finds("waiting", "1000 p0.1 wanted 0 ash lock 0\n70000 p1.1 stalled 1");
}

#[test]
fn leftovers_wrong_counts_and_contradictions_are_found() {
    finds("left over", "9 soak left the key ash on kept");
    finds("left over", "9 soak left the channel redisson_lock__channel:{ash} on kept");
    finds("left over", "9 soak undying ash");
    accepts("9 soak counted ash 2 2 1\n10 soak counted ash 0 0 0");
    finds("count", "9 soak counted ash 2 1 1");
    finds("count", "9 soak counted ash 0 1 1");
    finds("count", "9 soak counted ash 2 2 2");
    finds("contradiction", "9 p0.1 broken ash was lost, and came back");
}

#[test]
fn whole_run_must_meet_what_it_is_for() {
    finds("never happened", "1 soak run 7 60 redis");
    accepts("1 soak run 7 20 redis");
    let coverage = verdict(
        "10 p0.1 wanted 0 ash lock 0
         11 p0.1 granted 0 100 check
         12 p0.1 at-risk 0
         13 p0.1 safe 0
         14 p0.1 nested 0 100 2
         15 p0.1 wanted 1 ash lock 0
         20 p0.1 released 0 19ms
         21 p0.1 granted 1 101 check
         30 soak fault 40ms p0.1 Kill
         1040 p1.1 wanted 0 ash lock 0
         1041 p1.1 granted 0 228 check
         1100 soak fault 2200ms p1.1 Freeze
         2201 p1.1 fired 0 1100ms expired
         2202 p1.1 refused ash 228
         3000 soak seen 1 requests sent twice
         3000 soak seen 2 replies or requests lost
         3000 soak seen 3 reconnects",
    )
    .coverage;
    let never: Vec<_> = coverage.iter().filter(|(_, count)| *count == 0).collect();
    assert!(never.is_empty(), "{never:?}");
}

/// One name on a quorum: lost by the word of the store at 300, granted to another at 320.
fn gone(last_ok: u64, cause: &str) -> String {
    format!(
        "1 soak run 7 20 quorum
         10 p0.1 wanted 0 ash lock 0
         11 p0.1 granted 0 0 check
         20 p1.1 wanted 0 ash lock 0
         300 p0.1 fired 0 {last_ok}ms {cause}
         320 p1.1 granted 0 1 check
         330 p1.1 released 0 329ms"
    )
}

#[test]
fn loss_by_word_of_a_quorum_has_no_grace_and_is_counted() {
    let reported = verdict(&gone(298, "gone"));
    assert!(reported.findings.is_empty(), "{:?}", reported.findings);
    let [excused] = &reported.excused[..] else { panic!("{:?}", reported.excused) };
    assert_eq!((excused.why, excused.nanos), (Excuse::Reported, 10_000_000));
    // By the clock there is one, and on other stores.
    finds("overlap", &gone(298, "expired"));
    finds("overlap", &gone(298, "gone").replace("20 quorum", "20 redis"));
    // Another is granted the name before that.
    finds("overlap", &gone(298, "gone").replace("320 p1.1 granted", "290 p1.1 granted"));
}

/// Granted by a primary at `granted`, which another one replaced from 2000 to 3000.
fn replaced(granted: u64, next: u64) -> String {
    [
        "1 soak run 7 20 sentinel\n2000 soak replaced 3000ms ash\n".to_owned(),
        lock("p0.1", 0, 100, granted, next + 10),
        lock("p1.1", 0, 200, next, next + 20),
    ]
    .concat()
}

#[test]
fn grant_of_a_replaced_primary_alone_is_excused_for_a_ttl() {
    for (granted, next) in [(1100, 2100), (2500, 3100), (2500, 3900)] {
        let lost = verdict(&replaced(granted, next));
        assert!(lost.findings.is_empty(), "{:?}", lost.findings);
        let [excused] = &lost.excused[..] else { panic!("{:?}", lost.excused) };
        assert_eq!((excused.why, excused.nanos), (Excuse::Replaced, 10_000_000));
    }
    // What its replicas had, and what came long after.
    finds("overlap", &replaced(900, 2100));
    finds("overlap", &replaced(2500, 3995));
    finds("overlap", &replaced(2500, 4100));
}

/// The key then expires up to T/3 early, and the holder does not see it in time.
#[test]
fn renewal_lost_in_a_failover_is_excused_after_a_standstill() {
    let history = |next| format!("0 soak name ash sentinel 5000\n{}", replaced(900, next));
    let frozen = |next| format!("{}\n2500 soak fault 4500ms p0.1 Freeze", history(next));
    accepts(&frozen(4400));
    finds("overlap", &history(4400));
    // So early the key was still there, and so late the lease had ended.
    finds("overlap", &frozen(4300));
    finds("overlap", &frozen(8100));
    // It was awake again in time.
    finds("overlap", &format!("{}\n2500 soak fault 3200ms p0.1 Freeze", history(4400)));
}

#[test]
fn takeover_from_a_living_primary_is_known_to_who_is_awake() {
    let succeeded =
        |granted, next| replaced(granted, next).replace("soak replaced", "soak succeeded");
    accepts(&succeeded(2500, 2900));
    finds("overlap", &succeeded(900, 2100));
    finds("overlap", &succeeded(2500, 3100));
    for asleep in ["2100 soak fault 2500ms p0.1 Freeze", "2500 p0.1 stalled 400"] {
        accepts(&format!("{}\n{asleep}", succeeded(2500, 3100)));
    }
}

/// The older lease is the new primary's.
#[test]
fn grant_of_a_replaced_primary_after_a_standstill_is_excused() {
    let history = |next| replaced(2500, next).replace("soak replaced", "soak succeeded");
    let frozen = |next| format!("{}\n2400 soak fault 3200ms p1.1 Freeze", history(next));
    accepts(&frozen(3210));
    accepts(&frozen(4180));
    finds("overlap", &frozen(4200));
    finds("overlap", &history(3210));
    // It stood still when the failover was over.
    finds("overlap", &format!("{}\n3100 soak fault 3200ms p1.1 Freeze", history(3210)));
    // Of a primary that is gone, nothing is granted.
    let replaced = frozen(4100).replace("succeeded", "replaced");
    accepts(&replaced);
    let crash = "1 soak name ash sentinel 1000\n2000 soak fault 3000ms sentinel CrashPrimary(0)";
    finds("overlap", &format!("{replaced}\n{crash}"));
}

/// Of two who wait until then for a name that another process has, one hears nothing.
fn unheard(until: u64) -> String {
    format!(
        "900 p1.1 wanted 0 ash lock 0
         901 p1.1 granted 0 100 check
         950 p0.1 wanted 0 ash lock 0
         950 p2.1 wanted 0 ash timeout 4000
         1000 soak silent 6000ms p0 kept
         {} p1.1 released 0 {}ms
         {until} p0.1 granted 0 228 check
         {until} p2.1 gave-up 0 dropped
         {} p0.1 released 0 {until}ms",
        until - 1,
        until - 2,
        until + 1
    )
}

#[test]
fn silent_subscription_not_replaced_is_found_while_one_waits() {
    accepts(&unheard(2400));
    finds("silence", &unheard(3000));
    accepts(&unheard(3000).replace("soak silent 6000ms", "soak silent 2400ms"));
    accepts(&unheard(3000).replace(
        "ash lock 0\n         950 p2.1",
        "ash unpolled 0\n 951 p0.1 unpolled 0\n 950 p2.1",
    ));
    accepts(&format!("{}\n1500 soak fault 1600ms p0.1 BlackHole", unheard(3000)));
    accepts(&format!("{}\n2900 p0.1 stalled 900", unheard(3000)));
    finds("silence", &format!("{}\n1500 soak fault 1600ms p1.1 BlackHole", unheard(3000)));
    finds("silence", &format!("{}\n1500 soak fault 1600ms p0.1 BlockLog", unheard(3000)));
    // What its own process has, nobody tells it of.
    accepts(
        "900 p0.1 wanted 0 ash lock 0
         901 p0.1 granted 0 100 check
         950 p0.1 wanted 1 ash lock 0
         1000 soak silent 6000ms p0 kept
         3000 p0.1 released 0 2999ms
         3001 p0.1 granted 1 101 check
         3002 p0.1 released 1 3001ms",
    );
}

#[test]
fn memory_that_grows_with_an_outage_is_found() {
    let flood = |kib: u64| {
        format!(
            "1000 soak fault 9000ms p0.1 Flood
             1100 p0.1 memory 20000
             4500 p0.1 memory 30000
             8900 p0.1 memory {kib}
             8900 p1.1 memory 90000
             9500 p0.1 memory 90000"
        )
    };
    accepts(&flood(32_000));
    finds("memory", &flood(40_000));
}

#[test]
fn history_is_read_as_written_but_for_a_line_cut_by_a_kill() {
    let lines = "1 p0.1 wanted 0 ash timeout 250\n2 soak seen 4 replies or requests lost\n\
                 3 soak fault 9 p0.1 BlackHole\n4 p0.1 released 0 3\n";
    let events = history::read(&format!("{lines}5 p0.1 granted 0 1"));
    let written: String = events.iter().map(|event| format!("{event}\n")).collect();
    assert_eq!(written, lines);
}

fn all(parts: &[String]) -> String {
    parts.concat()
}

#[test]
fn readers_beside_each_other_and_writers_alone_are_accepted() {
    accepts(&all(&[
        lease("p0.1", 0, "read", 100, 10, 40),
        lease("p1.1", 0, "read", 102, 20, 50),
        lease("p0.2", 0, "read", 100, 30, 50),
        lease("p0.1", 1, "read", 101, 45, 60),
        lease("p1.1", 1, "write", 228, 70, 80),
        lease("p0.1", 2, "write", 356, 80, 90),
        lease("p2.1", 0, "read", 400, 91, 99),
    ]));
}

#[test]
fn reader_beside_a_writer_is_found_whoever_came_first() {
    for (first, second) in [("read", "write"), ("write", "read"), ("write", "write")] {
        for who in ["p0.1", "p1.1"] {
            finds(
                "overlap",
                &all(&[lease("p0.1", 0, first, 100, 10, 40), lease(who, 7, second, 228, 30, 60)]),
            );
        }
    }
    // Behind a reader that ends sooner.
    finds(
        "overlap",
        &all(&[
            lease("p0.1", 0, "read", 100, 10, 90),
            lease("p1.1", 0, "read", 101, 20, 30),
            lease("p2.1", 0, "write", 228, 40, 60),
        ]),
    );
}

#[test]
fn readers_of_two_processes_with_one_fence_are_found() {
    let second = |who, fence| {
        all(&[lease("p0.1", 0, "read", 100, 10, 40), lease(who, 7, "read", fence, 30, 60)])
    };
    for fence in [99, 101] {
        accepts(&second("p1.1", fence));
    }
    finds("fence", &second("p1.1", 100));
    accepts(&second("p0.2", 100));
}

#[test]
fn fences_of_readers_lie_between_those_of_writers() {
    let after = |first: (&str, u64), second: (&str, u64)| {
        all(&[
            lease("p0.1", 0, first.0, first.1, 10, 40),
            lease("p1.1", 0, second.0, second.1, 50, 60),
        ])
    };
    for fence in [99, 100, 101] {
        accepts(&after(("read", 100), ("read", fence)));
    }
    for (first, second) in [("read", "write"), ("write", "read"), ("write", "write")] {
        accepts(&after((first, 100), (second, 101)));
        finds("fence", &after((first, 100), (second, 100)));
    }
}

#[test]
fn update_lost_under_a_write_lease_is_found() {
    finds("update", "9 p0.1 wrote rw-ash 1 100\n10 p1.1 wrote rw-ash 1 228");
}

/// A writer that becomes a reader from 40 to 60, or a reader that tries to become the writer and stays one; and a rival.
fn changed(how: &str, next: &str, from: u64) -> String {
    let (before, fence) = if how == "downgrade" { ("write", 228) } else { ("read", 100) };
    let fences = if next == "read" { fence + 1 } else { 500 };
    all(&[
        lease("p0.1", 0, before, 100, 10, 40),
        format!(
            "40 p0.1 wanted 1 rw-ash {how} 0
             40 p0.1 shares 1 read 0
             60 p0.1 granted 1 {fence} check
             80 p0.1 released 1 80ms\n"
        ),
        lease("p1.1", 0, next, fences, from, from + 5),
    ])
}

#[test]
fn writer_let_in_while_a_mode_changes_is_found() {
    for how in ["downgrade", "upgrade"] {
        accepts(&changed(how, "read", 50));
        accepts(&changed(how, "write", 80));
        finds("overlap", &changed(how, "write", 50));
        finds("overlap", &changed(how, "write", 70));
    }
    // The upgrade alone does not make it the writer before it returns.
    let upgraded = |until| {
        all(&[
            lease("p0.1", 0, "read", 100, 10, 40),
            "40 p0.1 wanted 1 rw-ash upgrade 0
             40 p0.1 shares 1 write 0
             60 p0.1 granted 1 228 check
             80 p0.1 released 1 80ms\n"
                .to_owned(),
            lease("p1.1", 0, "read", 101, 20, until),
        ])
    };
    accepts(&upgraded(59));
    finds("overlap", &upgraded(61));
}

#[test]
fn permit_too_many_is_found_and_the_last_one_is_not() {
    let last = |permits| {
        all(&[
            lease("p0.1", 0, "1", 0, 10, 60),
            lease("p1.1", 0, "1", 0, 20, 50),
            lease("p0.1", 1, permits, 0, 30, 70),
            lease("p2.1", 0, "2", 0, 60, 80),
        ])
    };
    accepts(&last("1"));
    finds("overlap", &last("2"));
    let late =
        |from| all(&[lease("p0.1", 0, "3", 0, 10, 60), lease("p1.1", 0, "1", 0, from, from + 9)]);
    accepts(&late(60));
    finds("overlap", &late(59));
    finds("fence", &lease("p0.1", 0, "1", 100, 10, 20));
}

#[test]
fn holders_of_a_name_that_was_taken_away_are_excused() {
    let permits = |next| {
        all(&[
            lease("p0.1", 0, "3", 0, 10, 1500),
            "20 soak wiped 30ms pool3-ash\n".to_owned(),
            lease("p1.1", 0, "2", 0, next, 1600),
        ])
    };
    let lost = verdict(&permits(100));
    // Until T after it they may not know.
    let rules: Vec<_> =
        lost.findings.iter().map(|found| (found.rule, found.at / 1_000_000)).collect();
    assert_eq!(rules, [("overlap", 1030)]);
    accepts(&permits(100).replace("1500", "900"));
    finds("overlap", &permits(1100));
    // Both came after it.
    finds("overlap", &all(&[permits(100), lease("p2.1", 0, "2", 0, 110, 120)]));
    finds("overlap", &permits(100).replace("pool3-ash\n", "ash\n"));
    let reader = |wiped: &str| {
        all(&[
            lease("p0.1", 0, "read", 100, 10, 900),
            format!("20 soak wiped 30ms {wiped}\n"),
            lease("p1.1", 0, "write", 228, 100, 200),
        ])
    };
    accepts(&reader("rw-ash"));
    finds("overlap", &reader("ash"));
    // Permits that a primary granted that was replaced.
    let replaced = |granted| {
        let permits = permits(2500).replace("20 soak wiped 30ms", "2000 soak replaced 2400ms");
        permits
            .replace("10 p0.1", &format!("{granted} p0.1"))
            .replace("1500", "2800")
            .replace("1600", "2900")
    };
    accepts(&replaced(1500));
    finds("overlap", &replaced(900));
}

/// A key of a name that several share, seen until `until`; one that was given back at 20.
fn kept_beside_others(name: &str, id: &str, mode: &str, until: u64) -> String {
    all(&[
        "1 p0.1 manager 0123-4567-89ab\n".to_owned(),
        lease("p0.1", 0, mode, u64::from(mode == "read") * 100, 11, 20),
        format!("15 soak kept {until}ms {name} {id} 1\n"),
    ])
}

#[test]
fn key_of_a_reader_or_a_permit_that_nobody_has_is_found() {
    for (name, id, mode) in [("rw-ash", "0123-4567-89ab", "read"), ("pool3-ash", "0123-4567-", "1")]
    {
        accepts(&kept_beside_others(name, id, mode, 400));
        finds("orphan", &kept_beside_others(name, id, mode, 900));
    }
    for key in ["rw-ash", "{rw-ash}:u:1:rwlock_timeout:1", "leasehold_read:{rw-ash}"] {
        finds("left over", &format!("9 soak undying {key}"));
        finds("left over", &format!("9 soak left the key {key} on kept"));
    }
    finds("left over", "9 soak undying {pool3-ash}:timeout");
    finds("left over", "9 soak left 1 permits of 3, not of 3, of pool3-ash on kept");
}

#[test]
fn free_name_waits_for_a_place_that_is_forgotten_no_longer() {
    let of = |name: &str, until| waits(until).replace("ash", name);
    accepts(&of("rw-ash", 2800));
    finds("waiting", &of("rw-ash", 2998).replace("3000", "3200").replace("2998ms", "3150ms"));
    finds("waiting", &of("pool3-ash", 2900).replace("granted 0 100", "granted 0 0"));
}

#[test]
fn whole_run_with_shared_names_must_meet_their_modes() {
    let run = |parts: &[String]| {
        let coverage = verdict(&all(parts)).coverage;
        let new = |what: &str| what != "contended waits";
        let some = coverage.iter().filter(|(what, count)| *count > 0 && new(what));
        some.map(|(what, _)| *what).collect::<Vec<_>>()
    };
    let read = lease("p0.1", 0, "read", 100, 10, 40);
    let permit = lease("p0.1", 9, "1", 0, 10, 40);
    assert_eq!(
        run(&[read.clone(), lease("p1.1", 0, "read", 101, 20, 50)]),
        ["readers beside each other"]
    );
    assert_eq!(run(&[changed("downgrade", "read", 300)]), ["writers", "downgrades"]);
    assert_eq!(run(&[changed("upgrade", "read", 300)]), ["upgrades refused"]);
    let beside = [permit.clone(), lease("p1.1", 0, "2", 0, 20, 50)];
    assert_eq!(run(&beside), ["permits beside each other", "bundles of permits"]);
    let asked: Vec<_> =
        verdict(&all(&[read, permit])).coverage.into_iter().map(|(what, _)| what).collect();
    assert!(asked.contains(&"upgrades") && asked.contains(&"bundles of permits"), "{asked:?}");
    assert!(!verdict("").coverage.iter().any(|(what, _)| *what == "upgrades"));
}

#[test]
fn reader_beside_those_that_a_failover_brought_back_is_judged() {
    let history = |mode, granted, fence| {
        all(&[
            lease("p0.1", 0, "read", 100, 10, 800),
            lease("p1.1", 0, "write", 228, granted, granted + 10),
            "2000 soak replaced 2400ms rw-ash\n".to_owned(),
            // Another reader in between changes nothing.
            lease("p0.1", 1, "read", 300, 3450, 3600),
            lease("p2.1", 0, mode, fence, 3700, 3800),
        ])
    };
    for (mode, granted) in [("read", 1900), ("write", 1900), ("read", 900)] {
        accepts(&history(mode, granted, 301));
        finds("fence", &history(mode, granted, 100));
    }
    accepts(&history("read", 1900, 229));
    finds("fence", &history("write", 1900, 229));
}

/// A job that is done at 30, and known to be done at 31, by a process that then asks for it again.
fn job(lines: &str) -> String {
    format!(
        "10 p0.1 wanted 0 job-ash once 0
         11 p0.1 granted 0 100 check
         30 p0.1 released 0 29ms
         31 p0.1 ran 0 500
         {lines}"
    )
}

/// Another run of it.
fn again(at: u64) -> String {
    format!(
        "{} p1.1 wanted 0 job-ash once 0
         {at} p1.1 granted 0 228 check
         {} p1.1 released 0 {at}ms",
        at - 1,
        at + 10
    )
}

#[test]
fn job_that_runs_twice_while_its_key_is_closed_is_found() {
    accepts(&job(&again(540)));
    finds("job", &job(&again(400)));
    // Nobody has promised to keep the key where it was taken away.
    accepts(&job(&format!("200 soak wiped 201ms job-ash\n{}", again(400))));
    finds("job", &job(&format!("5 soak wiped 6ms ash\n{}", again(400))));
    // A run that failed, or that does not know whether it was done, closes nothing.
    let failed = job(&again(400)).replace("31 p0.1 ran 0 500", "29 p0.1 failed 0");
    accepts(&failed);
    let unknown = job(&again(400)).replace("31 p0.1 ran 0 500", "31 p0.1 unreleased 0 unavailable");
    accepts(&unknown);
}

#[test]
fn quorum_may_open_a_job_after_a_crash_of_a_node() {
    let run = "0 soak run 1 10 quorum\n";
    let twice = job(&again(400));
    finds("job", &format!("{run}{twice}"));
    accepts(&format!("{run}{twice}\n100 soak fault 150ms kept Crash(1)"));
    finds("job", &format!("{run}{twice}\n100 soak fault 150ms kept Freeze(1)"));
}

/// The mark of the first run is on a primary that was replaced, or the second run was granted by one.
#[test]
fn job_of_a_process_that_missed_a_failover_may_run_twice() {
    let twice = job(&again(400));
    let failover = "0 soak run 1 10 sentinel\n1 soak replaced 5ms job-ash";
    let history = |frozen: &str| format!("{failover}\n{frozen}\n{twice}");
    for who in ["p0.1", "p1.1"] {
        accepts(&history(&format!("2 soak fault 9ms {who} Freeze")));
        finds("job", &history(&format!("6 soak fault 9ms {who} Freeze")));
    }
    finds("job", &history("2 soak fault 9ms p2.1 Freeze"));
}

#[test]
fn job_that_was_done_before_by_nobody_is_found() {
    let reported =
        |at: u64| format!("{} p1.1 wanted 5 job-ash once 0\n{at} p1.1 gave-up 5 before", at - 2);
    accepts(&job(&reported(400)));
    finds("job", &reported(400));
    finds("job", &job(&reported(900)));
    finds("job", &job(&reported(400)).replace("31 p0.1 ran 0 500", "29 p0.1 failed 0"));
    // The answer was lost, or the process killed.
    accepts(&job(&reported(900)).replace("31 p0.1 ran 0 500", "31 p0.1 unreleased 0 unavailable"));
}

/// A thief at 30; the old holder believes until some time after it.
fn theft(fences: (u64, u64), until: u64) -> String {
    let (old, new) = fences;
    format!(
        "10 p0.1 wanted 0 loot-ash lock 0
         11 p0.1 granted 0 {old} check
         25 p1.1 wanted 0 loot-ash steal 0
         26 p1.1 stealing 0 loot-ash
         30 p1.1 granted 0 {new} check
         31 p1.1 stolen 0
         {until} p0.1 fired 0 {until}ms stolen
         2000 p1.1 released 0 1999ms"
    )
}

#[test]
fn overlap_after_a_theft_is_excused_until_it_must_be_known() {
    accepts(&theft((100, 228), 35));
    accepts(&theft((100, 228), 600));
    finds("steal", &theft((100, 228), 700));
    let why: Vec<Excuse> =
        verdict(&theft((100, 228), 600)).excused.iter().map(|excused| excused.why).collect();
    assert_eq!(why, [Excuse::Stolen]);
    // Where something is broken, it may hear of it from the clock alone.
    accepts(&format!("{}\n30 soak fault 500ms p0.1 BlackHole", theft((100, 228), 900)));
    // A lock that nobody steals from is no place for it.
    let quiet: String = theft((100, 228), 35)
        .lines()
        .filter(|line| !line.contains("steal") && !line.contains("stolen 0"))
        .map(|line| line.to_owned() + "\n")
        .collect();
    let quiet = quiet + "29 p1.1 wanted 0 loot-ash lock 0";
    finds("overlap", &quiet.replace("35 p0.1", "135 p0.1").replace("35ms", "135ms"));
}

#[test]
fn thief_without_the_largest_fence_is_found() {
    finds("steal", &theft((228, 100), 35));
    finds("steal", &theft((228, 228), 35));
    // Handed off by the process of the old holder, before it knew.
    let handed = |fence: u64, until: u64| {
        format!(
            "{}
             20 p0.1 wanted 9 loot-ash lock 0
             36 p0.1 granted 9 {fence} check
             {until} p0.1 fired 9 {until}ms stolen",
            theft((100, 228), 35)
        )
    };
    accepts(&handed(101, 300));
    finds("steal", &handed(101, 700));
}

#[test]
fn view_whose_terms_go_back_is_found() {
    let sees = |at: u64, who: &str, term: u64, holder: &str, value: &str| {
        format!("{at} {who} observed lead-ash {term} {holder} {value}\n")
    };
    let good = sees(10, "p0.1", 5, "m:1", "-") + &sees(11, "p0.1", 5, "m:1", "m:1");
    let good = good + &sees(12, "p0.1", 0, "m:2", "none") + &sees(13, "p0.1", 7, "m:2", "m:2");
    accepts(&good);
    // Another view may be behind.
    accepts(&(good.clone() + &sees(14, "p1.1", 5, "m:1", "m:1")));
    finds("term", &(good.clone() + &sees(14, "p0.1", 5, "m:1", "m:1")));
    finds("term", &(good.clone() + &sees(14, "p1.1", 7, "m:3", "m:3")));
    finds("value", &(good + &sees(14, "p0.1", 9, "m:3", "m:2")));
}

#[test]
fn leaders_who_believe_at_once_are_found() {
    let next = |granted: u64, term: u64| {
        format!(
            "10 p0.1 wanted 0 lead-ash lead 0
             11 p0.1 granted 0 100 check
             12 p1.1 wanted 0 lead-ash campaign 600
             40 p0.1 released 0 39ms
             {granted} p1.1 granted 0 {term} check
             60 p1.1 released 0 59ms"
        )
    };
    accepts(&next(41, 228));
    finds("overlap", &next(30, 228));
    finds("fence", &next(41, 99));
}
