//! Holders in their own processes are killed, terminated, stopped, or forget their leases.
//!
//! All moments are by `CLOCK_BOOTTIME`, so that those of several processes have one order.
#![cfg(target_os = "linux")]

use std::cell::RefCell;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use kit::fault::{
    LONG, Resource, boottime, connect, end_of, exists, let_in, lock, millis, owner, renewal,
    undisturbed, wait_for, watch,
};
use kit::holder::{Event, Holder};
use kit::{Mode, Proxy, Server, eventually, preload};
use leasehold::{Lease, LeaseManager, Loss};
use rustix::process::{Pid, Signal, kill_process};
use tokio::task::JoinSet;

/// For a round trip, a wake-up and the scheduler.
const ROOM: Duration = millis(500);

/// Looks at the times to live of all locks until it is stopped. Returns how often, and whether one had none.
fn sample(server: &Server, over: &Arc<AtomicBool>) -> thread::JoinHandle<usize> {
    let mut connection = server.connection();
    let over = Arc::clone(over);
    let look = "local n = 0 for _, key in ipairs(redis.call('KEYS', 'job:*')) do \
                if redis.call('PTTL', key) == -1 then n = n + 1 end end return n";
    thread::spawn(move || {
        let mut looks = 0;
        while !over.load(Ordering::Relaxed) {
            let endless = connection.command(&["EVAL", look, "0"]).int();
            assert_eq!(endless, 0, "a lock without a time to live");
            looks += 1;
            thread::sleep(millis(1));
        }
        looks
    })
}

/// A moment within `range`, another each time.
fn at_random(range: Duration) -> Duration {
    range * (boottime().subsec_nanos() / 7 % 1_000) / 1_000
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_holder_is_followed_within_the_ttl_by_a_larger_fence() {
    const T: Duration = millis(1_500);
    undisturbed(|| async {
        let server = Arc::new(Server::start());
        let over = Arc::new(AtomicBool::new(false));
        let sampler = sample(&server, &over);
        let mut rounds = JoinSet::new();
        for round in 0..6 {
            let server = Arc::clone(&server);
            rounds.spawn(async move {
                let name = format!("job:{round}");
                let others = connect(&server.url(), T).await;
                let mut holder = Holder::start();
                holder.send(&format!("connect {} {}", server.url(), T.as_millis()));
                // Killed while it holds, or anywhere in taking and giving back.
                let churns = round % 2 == 1;
                holder.send(&format!("{} {name}", if churns { "churn" } else { "lock" }));
                holder.event(&["granted", &name]).await;
                let waiting = (!churns).then(|| wait_for(&others, &name));
                tokio::time::sleep(at_random(T)).await;
                let killed = holder.signal(Signal::KILL);
                let status = holder.ended().await;
                assert!(!status.success(), "{status}");
                let waiting = waiting.unwrap_or_else(|| wait_for(&others, &name));
                let (next, entered) = let_in(waiting).await;
                let took = entered.saturating_sub(killed);
                assert!(took < T + ROOM, "{name}: entered after {took:?}");
                if !churns {
                    assert!(entered > killed, "{name}: entered before the end of the holder");
                }
                // The last grant may not have been reported.
                let reported =
                    holder.events().into_iter().filter(|event| event.word(0) == "granted");
                let last = reported.map(|event| event.number(2)).max().expect("at least one grant");
                assert!(next.fence().expect("fencing is on") > last, "{name}");
                next.unlock().await.expect("a release");
            });
        }
        rounds.join_all().await;
        over.store(true, Ordering::Relaxed);
        let looks = sampler.join().expect("each lock had a time to live, always");
        assert!(looks > 50, "only {looks} looks");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_sigterm_a_process_that_closes_releases_all_it_has() {
    // Nothing expires meanwhile.
    const T: Duration = Duration::from_secs(30);
    undisturbed(|| async {
        let server = Server::start();
        let others = connect(&server.url(), T).await;
        let mut holder = Holder::start();
        let mut waiting = Vec::new();
        holder.hold(&server.url(), T, "job:0").await;
        for name in ["job:0", "job:1", "job:2"] {
            if name != "job:0" {
                holder.send(&format!("lock {name}"));
                holder.event(&["granted", name]).await;
            }
            waiting.push(wait_for(&others, name));
        }
        let terminated = holder.signal(Signal::TERM);
        let closed = holder.event(&["closed"]).await;
        assert_eq!((closed.word(1), closed.word(2)), ("3", ""));
        assert!(holder.ended().await.success());
        for waiting in waiting {
            let (_next, entered) = let_in(waiting).await;
            // The work stops at once here; else the grace of two seconds would be waited for.
            assert!(entered - terminated < millis(1_900), "{:?}", entered - terminated);
        }
        for name in ["job:0", "job:1", "job:2"] {
            let fired = holder.happened(&["fired", name, "Closed"]);
            assert!(fired.is_some_and(|fired| fired.at <= closed.at), "{name}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_in_an_outage_reports_what_is_left_and_ends_in_time() {
    const T: Duration = millis(1_500);
    // The grace, and four attempts of 250 ms.
    const BUDGET: Duration = millis(1_150);
    undisturbed(|| async {
        let server = Server::start();
        let proxy = Proxy::start(server.port());
        let others = connect(&server.url(), T).await;
        let mut holder = Holder::start();
        holder.hold(&proxy.url(), T, "job:0").await;
        holder.send("lock job:1");
        holder.event(&["granted", "job:1"]).await;
        let waiting = ["job:0", "job:1"].map(|name| (name, wait_for(&others, name)));
        proxy.set(Mode::BlackHole);
        let ends = waiting.each_ref().map(|(name, _)| end_of(&server, name));
        let terminated = holder.signal(Signal::TERM);
        let closed = holder.event(&["closed"]).await;
        let reported: Vec<&str> = closed.words[1..].iter().map(String::as_str).collect();
        assert_eq!(reported, ["0", "job:0", "job:1"]);
        let took = closed.at - terminated;
        assert!(took < BUDGET + ROOM, "{took:?}");
        assert!(holder.ended().await.success());
        for ((name, waiting), end) in waiting.into_iter().zip(ends) {
            let (_next, entered) = let_in(waiting).await;
            let fired = holder.happened(&["fired", name, "Closed"]).expect("told");
            assert!(fired.at < entered, "{name}");
            assert!(entered < end + ROOM, "{name}: {:?} late", entered - end);
        }
    })
    .await;
}

/// A process that stands still for 2 T, from some time after a renewal on.
async fn stopped_too_long(after: Duration) {
    const T: Duration = millis(1_500);
    undisturbed(move || async move {
        let server = Server::start();
        let proxy = Proxy::start(server.port());
        let others = connect(&server.url(), T).await;
        let mut holder = Holder::start();
        let granted = holder.hold(&proxy.url(), T, "job").await;
        let token = owner(&server, "job");
        holder.send("watch job");
        holder.event(&["checking", "job"]).await;
        renewal(&server, "job").await;
        let waiting = wait_for(&others, "job");

        tokio::time::sleep(after).await;
        let stopped = holder.stop();
        // After 375 ms of 450: a renewal may stand between its decision and the socket, and be written afterwards.
        let due = server.command(&["PTTL", "job"]).int() < 1_125;
        let about_it = || {
            let requests = proxy.requests().into_iter();
            requests.filter(|text| text.contains(&token)).collect::<Vec<_>>()
        };
        // The first request is the acquire, all others are renewals by one script.
        let script = about_it()[1].split(' ').nth(1).expect("EVALSHA and the script").to_owned();
        let renewals = || about_it().iter().filter(|text| text.contains(&script)).count();
        let (next, entered) = let_in(waiting).await;
        assert!(entered < stopped + T + ROOM, "{:?}", entered - stopped);
        let sent = renewals();
        tokio::time::sleep((stopped + T * 2).saturating_sub(boottime())).await;

        // Nothing gets through, so that it can only know it from its clock.
        proxy.set(Mode::BlackHole);
        let continued = holder.signal(Signal::CONT);
        let refused = holder.event(&["refused", "job"]).await;
        let good = Duration::from_nanos(refused.number(2));
        assert!(good < entered, "a check was good {:?} after the next entered", good - entered);
        assert!(good < stopped, "the first check after the stop was good");
        assert!(refused.at < continued + ROOM, "{:?}", refused.at - continued);
        let fired = holder.event(&["fired", "job"]).await;
        assert_eq!(fired.word(2), "Expired");
        assert!(fired.at < continued + ROOM, "{:?}", fired.at - continued);

        // What it has to send arrives now. A release is no harm: its token is not there any more. It owes
        // one if the answer to its last renewal was still unread when it was stopped.
        proxy.set(Mode::Pass);
        holder.send("unlock job");
        holder.event(&["refused-unlock", "job", "Lost"]).await;
        holder.send("close");
        holder.event(&["closed", "0"]).await;
        let late = renewals() - sent;
        assert!(late <= usize::from(due), "a lease whose time is over was renewed {late} times");
        next.check().expect("the next holder's");
        assert_eq!(server.command(&["HEXISTS", "job", &token]).int(), 0);
        renewal(&server, "job").await;

        let mut resource = Resource::default();
        assert!(resource.write(&next));
        assert!(!resource.write_with(granted.number(2)), "the older fence must be refused");
        next.unlock().await.expect("a release");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_stopped_too_long_finds_out_alone_and_harms_nobody() {
    // The next renewal is due 450 to 500 ms after one.
    let mut phases = JoinSet::new();
    for after in [0, 150, 300, 450, 475] {
        phases.spawn(stopped_too_long(millis(after)));
    }
    phases.join_all().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_stop_costs_no_lease() {
    const T: Duration = millis(3_000);
    undisturbed(|| async {
        let server = Server::start();
        let others = connect(&server.url(), T).await;
        let mut holder = Holder::start();
        holder.hold(&server.url(), T, "job").await;
        let token = owner(&server, "job");
        renewal(&server, "job").await;
        let waiting = wait_for(&others, "job");
        let stopped = holder.stop();
        // The next renewal is overdue by then.
        tokio::time::sleep(T / 2).await;
        let left = server.command(&["PTTL", "job"]).int();
        assert!(left < 1_600, "it was renewed in the stop: {left}");
        let continued = holder.signal(Signal::CONT);
        let renewed = || server.command(&["PTTL", "job"]).int() > 2_500;
        eventually(LONG, renewed).await;
        assert!(boottime() < continued + T / 3, "{:?}", boottime() - continued);
        assert_eq!(owner(&server, "job"), token);
        holder.send("state job");
        holder.event(&["state", "job", "Held"]).await;
        assert!(!waiting.is_finished() && boottime() > stopped);
        holder.send("unlock job");
        holder.event(&["unlocked", "job"]).await;
        let_in(waiting).await.0.unlock().await.expect("a release");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forked_child_neither_renews_nor_releases() {
    const T: Duration = millis(1_500);
    undisturbed(|| async {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let library = dir.path().join("forks.so");
        preload::compile(preload::FORKS, &library);
        let preload = format!("LD_PRELOAD={}", library.display());
        let server = Server::start();
        let others = connect(&server.url(), T).await;
        let mut holder = Holder::start_by(&["env", &preload]);
        let granted = holder.hold(&server.url(), T, "job").await;
        let token = owner(&server, "job");
        let waiting = wait_for(&others, "job");

        // One that exits, with whatever is done then, takes nothing from its parent.
        holder.signal(Signal::USR2);
        for _ in 0..4 {
            renewal(&server, "job").await;
        }
        assert_eq!(owner(&server, "job"), token);
        assert!(!waiting.is_finished());

        // One that lives on has the parent's memory and connections, and no watchdog.
        holder.signal(Signal::USR1);
        let forked = holder.event(&["forked"]).await.number(1);
        let forked = Pid::from_raw(i32::try_from(forked).expect("a process id"));
        let forked = forked.expect("a process id");
        assert_ne!(forked, holder.pid());
        renewal(&server, "job").await;
        let killed = holder.signal(Signal::KILL);
        let (next, entered) = let_in(waiting).await;
        kill_process(forked, Signal::KILL).expect("the child was there all the time");
        assert!(entered > killed && entered < killed + T + ROOM, "{:?}", entered - killed);
        assert!(next.fence() > Some(granted.number(2)));
        renewal(&server, "job").await;
        next.unlock().await.expect("a release");
    })
    .await;
}

/// `CLOCK_BOOTTIME` is an hour ahead of the monotonic clock for it, as after a suspend of an hour.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn boot_time_ahead_of_monotonic_changes_nothing_for_leases() {
    const T: Duration = millis(2_000);
    const AHEAD: Duration = Duration::from_secs(3_600);
    if kit::namespaces::unchecked() {
        return;
    }
    undisturbed(|| async {
        let server = Server::start();
        let proxy = Proxy::start(server.port());
        let others = connect(&server.url(), T).await;
        let shift = ["--time", "--boottime", "3600", "--fork", "--kill-child"];
        let mut holder = kit::namespaces::unshared(&shift);
        let Event { at, .. } = holder.hold(&proxy.url(), T, "job").await;
        assert!(at > boottime() + AHEAD / 2, "the offset has no effect");
        let waiting = wait_for(&others, "job");
        for _ in 0..4 {
            renewal(&server, "job").await;
        }
        assert!(!waiting.is_finished());
        proxy.set(Mode::BlackHole);
        let end = end_of(&server, "job");
        let fired = holder.event(&["fired", "job", "Expired"]).await;
        assert!(fired.at < end + AHEAD, "{:?} too late", fired.at - end - AHEAD);
        let (next, entered) = waiting.await.expect("no panic");
        assert!(entered + AHEAD > fired.at);
        next.expect("a lease").unlock().await.expect("a release");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lease_never_dropped_is_renewed_and_bounded_by_max_hold() {
    const T: Duration = millis(1_500);
    const MAX: Duration = millis(2_000);
    let server = Server::start();
    let others = connect(&server.url(), T).await;
    for max in [None, Some(MAX)] {
        let name = format!("job:{max:?}");
        let builder = LeaseManager::builder().ttl(T);
        let builder = max.map_or(builder.clone(), |max| builder.max_hold(max));
        let leases = builder.connect(&server.url()).await.expect("a manager");
        let granted = boottime();
        let lease = lock(&leases, &name).await;
        let lost = watch(&lease);
        mem::forget(lease);
        let waiting = wait_for(&others, &name);
        if max.is_none() {
            tokio::time::sleep(T * 3).await;
            assert!(!waiting.is_finished() && !lost.is_finished());
            assert!(exists(&server, &name));
            // Only the end of the manager gives it back.
            leases.close().await.expect("released");
            assert_eq!(lost.await.expect("no panic").0, Loss::Closed);
        } else {
            let (loss, reported) = lost.await.expect("no panic");
            assert_eq!(loss, Loss::MaxHold);
            assert!(reported >= granted + MAX, "{:?}", reported - granted);
        }
        // Released after the grace, for it is never dropped.
        let_in(waiting).await.0.unlock().await.expect("a release");
    }
}

thread_local! {
    static AT_THE_END: RefCell<Option<Lease>> = const { RefCell::new(None) };
}

/// Leaves a lease to the destructors of a thread's locals.
fn drop_at_the_end_of_a_thread(lease: Lease) {
    let thread = thread::spawn(move || AT_THE_END.set(Some(lease)));
    thread.join().expect("dropping there does not panic");
}

#[test]
fn lease_dropped_with_thread_locals_is_released() {
    const T: Duration = Duration::from_secs(30);
    let server = Server::start();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let (leases, first, second, waiting) = runtime.block_on(async {
        let (leases, others) = (connect(&server.url(), T).await, connect(&server.url(), T).await);
        let (first, second) = (lock(&leases, "job:0").await, lock(&leases, "job:1").await);
        let waiting = wait_for(&others, "job:0");
        (leases, first, second, waiting)
    });
    drop_at_the_end_of_a_thread(first);
    let (next, _) = runtime.block_on(waiting).expect("no panic");
    drop(next.expect("a lease"));

    runtime.shutdown_background();
    drop_at_the_end_of_a_thread(second);
    let start = boottime();
    while exists(&server, "job:1") {
        assert!(boottime() - start < LONG, "it was not released");
        thread::sleep(millis(5));
    }
    drop(leases);
}

/// Two processes, the holder and the thief, after both listen to their inboxes.
async fn holder_and_thief(server: &Server, ttl: Duration) -> (Holder, Holder, Event) {
    let (mut old, mut thief) = (Holder::start(), Holder::start());
    let granted = old.hold(&server.url(), ttl, "job:stolen").await;
    thief.send(&format!("connect {} {}", server.url(), ttl.as_millis()));
    let inboxes = || server.command(&["PUBSUB", "CHANNELS", "leasehold_inbox:*"]).list().len();
    eventually(LONG, || inboxes() == 2).await;
    (old, thief, granted)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holder_of_another_process_learns_of_a_steal_at_once() {
    const T: Duration = millis(15_000);
    let server = Server::start();
    let (old, mut thief, first) = holder_and_thief(&server, T).await;
    thief.send("steal job:stolen");
    let stolen = thief.event(&["granted", "job:stolen"]).await;
    assert!(stolen.number(2) > first.number(2), "a larger fencing token");
    let reported = old.event(&["fired", "job:stolen"]).await;
    assert_eq!(reported.word(2), "Stolen");
    // The first renewal after the grant is due after a third of T.
    let took = reported.at.saturating_sub(stolen.at);
    assert!(took < T / 6 && reported.at - first.at < T / 3 - millis(500), "told after {took:?}");
    thief.send("state job:stolen");
    assert_eq!(thief.event(&["state", "job:stolen"]).await.word(2), "Held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paused_holder_learns_of_a_steal_when_it_goes_on() {
    const T: Duration = millis(30_000);
    let server = Server::start();
    let (mut old, mut thief, _) = holder_and_thief(&server, T).await;
    old.stop();
    thief.send("steal job:stolen");
    thief.event(&["granted", "job:stolen"]).await;
    assert!(old.happened(&["fired", "job:stolen"]).is_none(), "it stands still");
    let went_on = old.signal(Signal::CONT);
    let reported = old.event(&["fired", "job:stolen"]).await;
    assert_eq!(reported.word(2), "Stolen");
    assert!(reported.at - went_on < T / 6, "told after {:?}", reported.at - went_on);
    // Whatever it does then, the new holder keeps the name.
    old.send("unlock job:stolen");
    assert_eq!(old.event(&["refused-unlock", "job:stolen"]).await.word(2), "Lost");
    thief.send("unlock job:stolen");
    thief.event(&["unlocked", "job:stolen"]).await;
}
