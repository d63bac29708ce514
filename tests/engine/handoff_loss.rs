//! Failures during hand-offs: losses, the closing of the manager, and waiters that are not
//! there anymore.

use super::handoff::{Waiter, handed, in_line, on_the_wire};
use super::*;
use tokio::task::JoinHandle;

const PERIOD: Duration = Duration::from_secs(10);
const CAUSES: [Loss; 5] = [Loss::Gone, Loss::Expired, Loss::Revoked, Loss::MaxHold, Loss::Closed];

fn prone_to(cause: Loss) -> Setup {
    let builder = LeaseManager::builder();
    Setup::with(if cause == Loss::MaxHold { builder.max_hold(2 * T) } else { builder })
}

/// Makes it happen to the holder of "n" in the first process.
async fn strike(setup: &Setup, cause: Loss) {
    match cause {
        Loss::Gone => assert!(setup.memory.delete("n")),
        Loss::Expired => setup.faults.add(Rule::new(Fault::Hang).on(Call::Renew)),
        Loss::Revoked => assert!(setup.leases.force_unlock("n", "test").await.unwrap()),
        Loss::Closed => {
            let leases = setup.leases.clone();
            tokio::spawn(async move { leases.close().await.unwrap() });
            tokio::task::yield_now().await;
        }
        _ => {}
    }
}

/// The loss of a lease that was handed off, which must never be reported.
struct HandedOff {
    reported: JoinHandle<Loss>,
    lost: Pin<Box<dyn Future<Output = Loss> + Send>>,
}

/// Passes a lease on; its own token fires by that.
async fn hand_off(lease: Lease, next: Waiter) -> (HandedOff, Lease) {
    let (reported, lost) = (tokio::spawn(lease.lost()), Box::pin(lease.lost()));
    let token = lease.cancellation_token();
    tokio::task::yield_now().await;
    assert!(!token.is_cancelled());
    lease.unlock().await.unwrap();
    assert!(token.is_cancelled());
    (HandedOff { reported, lost }, handed(next))
}

impl HandedOff {
    async fn never_lost(mut self, cause: Loss) {
        assert!(!self.reported.is_finished(), "{cause:?}");
        assert!(poll_once(self.lost.as_mut()).await.is_pending(), "{cause:?}");
        self.reported.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn loss_ends_the_holder_and_the_next_gets_a_new_grant() {
    for cause in CAUSES {
        let setup = prone_to(cause);
        let first = setup.leases.lock("n").lock().await.unwrap();
        let wire = on_the_wire(&setup).await;
        let (next, then) = (in_line(&setup.leases).await, in_line(&setup.leases).await);
        let mut last = in_line(&setup.leases).await;
        let (first, second) = hand_off(first, next).await;
        let (second, lease) = hand_off(second, then).await;
        let token = lease.cancellation_token();
        settle().await;
        assert!(!token.is_cancelled());

        strike(&setup, cause).await;
        assert_eq!(lease.lost().await, cause);
        assert!(token.is_cancelled());
        assert_eq!(lost(lease.check()), cause);
        let fence = lease.fence();
        setup.faults.heal();
        if cause == Loss::Closed {
            assert_eq!(failed(last.await), ErrorKind::Closed);
            assert_eq!(lost(lease.unlock().await), cause);
        } else {
            if cause == Loss::MaxHold {
                assert!(poll_once(last.as_mut()).await.is_pending(), "tokens first");
            }
            assert_eq!(lost(lease.unlock().await), cause);
            let lease = tokio::time::timeout(T, last).await.expect("a turn").unwrap();
            assert_ne!(on_the_wire(&setup).await, wire, "{cause:?}");
            assert!(lease.fence() > fence, "{cause:?}");
            lease.check().unwrap();
            lease.unlock().await.unwrap();
        }
        sleep(T).await;
        assert!(setup.memory.is_empty(), "{cause:?}");
        first.never_lost(cause).await;
        second.never_lost(cause).await;
    }
}

/// Lets two waiters look, and tells who they were on the wire, in the order in which they got in.
async fn newcomers(setup: &Setup, waiters: [Waiter; 2]) -> Vec<String> {
    let order = std::cell::RefCell::new(Vec::new());
    let visit = async |waiter: Waiter| {
        let lease = waiter.await.unwrap();
        lease.check().unwrap();
        assert!(lease.remaining() >= T / 2 - GRACE, "{:?}", lease.remaining());
        let wire = on_the_wire(setup).await;
        order.borrow_mut().push(wire);
        settle().await;
        lease.check().unwrap();
        lease.unlock().await.unwrap();
    };
    let [next, last] = waiters;
    tokio::join!(visit(next), visit(last));
    order.into_inner()
}

#[tokio::test(start_paused = true)]
async fn hold_lost_on_the_way_is_nobodys() {
    for cause in CAUSES {
        let setup = prone_to(cause);
        let lease = setup.leases.lock("n").lock().await.unwrap();
        let wire = on_the_wire(&setup).await;
        let (next, last) = (in_line(&setup.leases).await, in_line(&setup.leases).await);
        let passed = lease.lost();
        lease.unlock().await.unwrap();
        // A waiter that is not polled has it.
        strike(&setup, cause).await;
        sleep(if cause == Loss::MaxHold { 2 * T + MOMENT } else { C + MOMENT }).await;
        setup.faults.heal();
        if cause == Loss::Closed {
            assert_eq!(failed(next.await), ErrorKind::Closed);
            assert_eq!(failed(last.await), ErrorKind::Closed);
        } else {
            let (took, newcomers) = timed(newcomers(&setup, [next, last])).await;
            assert!(took <= T - C + 10 * MOMENT, "{took:?} after {cause:?}");
            assert!(!newcomers.contains(&wire), "{cause:?}");
        }
        settle().await;
        assert!(setup.memory.is_empty(), "{cause:?}");
        assert!(poll_once(Box::pin(passed).as_mut()).await.is_pending(), "{cause:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn closing_takes_back_what_is_on_the_way() {
    for looks in [true, false] {
        let setup = Setup::new();
        let lease = setup.leases.lock("n").lock().await.unwrap();
        let next = in_line(&setup.leases).await;
        lease.unlock().await.unwrap();
        let leases = setup.leases.clone();
        let closing = tokio::spawn(async move { timed(leases.close()).await });
        tokio::task::yield_now().await;
        let next = if looks {
            assert_eq!(failed(next.await), ErrorKind::Closed);
            None
        } else {
            Some(next)
        };
        let theirs = setup.other().lock("n").lock().await.unwrap();
        let (took, result) = closing.await.unwrap();
        result.unwrap();
        // A waiter that is not polled may be at work, as far as the engine knows.
        if looks {
            assert!(took <= 2 * MOMENT, "{took:?}");
        } else {
            assert!(took >= GRACE, "{took:?}");
        }
        drop(next);
        settle().await;
        theirs.check().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn each_holder_has_all_of_max_hold() {
    let max = Duration::from_millis(700);
    let setup = Setup::with(LeaseManager::builder().max_hold(max));
    let mut lease = setup.leases.lock("n").lock().await.unwrap();
    for _ in 0..4 {
        let next = in_line(&setup.leases).await;
        sleep(max - MOMENT).await;
        lease.check().unwrap();
        lease.unlock().await.unwrap();
        lease = handed(next);
    }
    assert_eq!(setup.calls(Call::Acquire), 1);
    let next = in_line(&setup.leases).await;
    let (took, loss) = timed(lease.lost()).await;
    assert_eq!(loss, Loss::MaxHold);
    assert!((max..=max + MOMENT).contains(&took), "{took:?}");
    // A hold that is lost or over must not be handed off.
    drop(lease);
    let lease = next.await.unwrap();
    assert_eq!((setup.calls(Call::Acquire), setup.calls(Call::Release)), (2, 1));
    lease.check().unwrap();
}

/// This is on the machine's clock: the only thread is frozen, so no task has noticed.
#[tokio::test]
async fn hold_kept_too_long_is_not_handed_off_even_if_unnoticed() {
    let max = Duration::from_millis(20);
    let setup = Setup::with(LeaseManager::builder().max_hold(max));
    for end in ["unlock", "drop"] {
        let grants = setup.calls(Call::Acquire);
        let lease = setup.leases.lock("n").lock().await.unwrap();
        let next = in_line(&setup.leases).await;
        std::thread::sleep(max);
        match end {
            "unlock" => assert_eq!(lost(lease.unlock().await), Loss::MaxHold),
            _ => drop(lease),
        }
        next.await.unwrap().unlock().await.unwrap();
        assert_eq!(setup.calls(Call::Acquire), grants + 2, "{end}");
    }
}

#[tokio::test(start_paused = true)]
async fn waiter_that_went_away_is_passed_over_whenever_that_was() {
    const WAITERS: usize = 6;
    // Each waiter stays, goes before it is its turn, or goes when the hold is in its hands.
    for story in 0..3_usize.pow(WAITERS as u32) {
        let setup = Setup::new();
        let lease = setup.leases.lock("n").lock().await.unwrap();
        let (mut line, mut staying) = (Vec::new(), 0);
        for i in 0..WAITERS {
            let waiter = in_line(&setup.leases).await;
            let fate = story / 3_usize.pow(i as u32) % 3;
            staying += usize::from(fate == 0);
            line.push((fate, Some(waiter)));
        }
        for (fate, waiter) in &mut line {
            if *fate == 1 {
                *waiter = None;
            }
        }
        drop(lease);
        for (fate, waiter) in line {
            match waiter {
                Some(waiter) if fate == 0 => drop(handed(waiter)),
                waiter => drop(waiter),
            }
        }
        settle().await;
        assert!(setup.memory.is_empty(), "story {story}");
        let calls = (setup.calls(Call::Acquire), setup.calls(Call::Release));
        assert_eq!(calls, (1, 1), "story {story}, {staying} stayed");
        assert!(setup.leases.lock("n").try_lock().await.unwrap().is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn hold_that_nobody_looked_at_for_too_long_is_not_taken() {
    // Before it was half over, after that, when its token had fired, and when another holder had it.
    let looks = [T / 4, T / 2 + MOMENT, C + MOMENT, T + MOMENT];
    for looked_after in looks {
        let setup = Setup::new();
        let lease = setup.leases.lock("n").lock().await.unwrap();
        let wire = on_the_wire(&setup).await;
        // The watchdog is frozen with the waiter and renews nothing.
        setup.faults.add(Rule::new(Fault::Hang).on(Call::Renew));
        let (next, last) = (in_line(&setup.leases).await, in_line(&setup.leases).await);
        drop(lease);
        tokio::time::advance(looked_after).await;
        let theirs = if looked_after > T { Some(setup.held_elsewhere("n").await) } else { None };
        setup.faults.heal();
        let elsewhere = async {
            settle().await;
            drop(theirs);
        };
        let (newcomers, ()) = tokio::join!(newcomers(&setup, [next, last]), elsewhere);
        // The last one comes after a tenth of the time to live in any case.
        let stale = looked_after > T / 2;
        assert_eq!(newcomers[0] != wire, stale, "after {looked_after:?}");
        assert_ne!(newcomers[1], wire, "after {looked_after:?}");
        sleep(T).await;
        assert!(setup.memory.is_empty(), "after {looked_after:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_has_it_is_renewed_as_if_it_had_been_granted_to_him() {
    let setup = Setup::new();
    let start = Instant::now();
    let mut lease = setup.leases.lock("n").lock().await.unwrap();
    for _ in 0..5 {
        let next = in_line(&setup.leases).await;
        sleep(T / 60).await;
        lease.unlock().await.unwrap();
        lease = handed(next);
    }
    // Every T/3 since the grant, less up to a tenth of that, and not since it changed hands.
    setup.faults.until_calls(Call::Renew, 1).await;
    let first = start.elapsed();
    assert!(first > PERIOD - PERIOD / 10 - MOMENT && first <= PERIOD + MOMENT, "{first:?}");
    for _ in 0..50 {
        sleep(T / 10).await;
        lease.check().unwrap();
        assert!(lease.remaining() > C - PERIOD - 2 * MOMENT);
    }
    let renewals = setup.calls(Call::Renew);
    assert!((15..=18).contains(&renewals), "{renewals}");
    lease.unlock().await.unwrap();
    let renewals = setup.calls(Call::Renew);
    sleep(3 * T).await;
    assert_eq!(setup.calls(Call::Renew), renewals, "nobody has it");
}

#[tokio::test(start_paused = true)]
async fn slow_holders_lose_nothing_over_many_chains() {
    let setup = Setup::new();
    let mut tasks = tokio::task::JoinSet::new();
    let start = Instant::now();
    for _ in 0..5 {
        let mut lock = setup.leases.lock("n");
        tasks.spawn(async move {
            while start.elapsed() < 5 * T {
                let lease = lock.lock().await.unwrap();
                let (token, lost) = (lease.cancellation_token(), tokio::spawn(lease.lost()));
                sleep(T / 20).await;
                assert!(!token.is_cancelled() && !lost.is_finished());
                lease.unlock().await.unwrap();
                lost.abort();
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    let (grants, renewals) = (setup.calls(Call::Acquire), setup.calls(Call::Renew));
    // Two turns to a chain, and a grant is as good as a renewal.
    assert!((50..=56).contains(&grants), "{grants}");
    assert_eq!(renewals, 0);
    assert!(setup.memory.is_empty());
    sleep(3 * T).await;
    assert_eq!(setup.calls(Call::Renew), 0);
}

/// On a stack that a recursion over the line would not fit on.
#[test]
fn line_of_ten_thousand_needs_no_stack() {
    const WAITERS: usize = 10_000;
    let story = async |dropped: bool| {
        let setup = Setup::with(LeaseManager::builder().max_local_handoffs(9_999));
        let mut lease = setup.leases.lock("n").lock().await.unwrap();
        let mut line = Vec::new();
        for _ in 1..WAITERS {
            line.push(in_line(&setup.leases).await);
        }
        if dropped {
            // The first one has the hold when it is dropped, then the second, and so on.
            drop(lease);
            drop(line);
        } else {
            for next in line {
                drop(lease);
                lease = handed(next);
            }
            drop(lease);
        }
        settle().await;
        assert!(setup.memory.is_empty());
        assert_eq!((setup.calls(Call::Acquire), setup.calls(Call::Release)), (1, 1));
    };
    for dropped in [false, true] {
        let thread = std::thread::Builder::new().stack_size(128 * 1024);
        let run = move || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_all().start_paused(true).build().expect("a runtime");
            runtime.block_on(Box::pin(story(dropped)));
        };
        thread.spawn(run).expect("a thread").join().expect("no panic");
    }
}
