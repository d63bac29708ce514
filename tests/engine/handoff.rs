//! Hand-offs in this process: their cost, their order, and the holds that are released instead of
//! handed off.

use super::*;

/// The time after its grant in which a hold is handed off.
const CHAIN: Duration = Duration::from_secs(3);

/// A waiter for the name "n" that is polled only on request.
pub(super) type Waiter = Pin<Box<dyn Future<Output = Result<Lease>> + Send>>;

/// Puts a waiter in the queue.
pub(super) async fn in_line(leases: &LeaseManager) -> Waiter {
    let mut lock = leases.lock("n");
    // Whether it has been handed something must not depend on how much else its task has done.
    let waiting = tokio::task::unconstrained(async move { lock.lock().await });
    let mut waiter: Waiter = Box::pin(waiting);
    assert!(poll_once(waiter.as_mut()).await.is_pending());
    waiter
}

/// Returns the hold that the first waiter was handed. The waiter sends no request.
#[track_caller]
pub(super) fn handed(mut waiter: Waiter) -> Lease {
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    match waiter.as_mut().poll(&mut cx) {
        Poll::Ready(lease) => lease.expect("a lease"),
        Poll::Pending => panic!("nothing was passed on"),
    }
}

/// Returns the holder of "n" by the store.
pub(super) async fn on_the_wire(setup: &Setup) -> String {
    let holding = setup.other().inspect("n").await.expect("the store answers");
    let holding = holding.expect("somebody has it");
    assert_eq!(holding.hold_count, 1, "of {}", holding.holder);
    holding.holder
}

/// The calls that a change of holder can cost.
fn calls(setup: &Setup) -> (usize, usize) {
    (setup.calls(Call::Acquire), setup.calls(Call::Release))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Unlock,
    Drop,
    /// On a thread that knows of no runtime.
    DropOutside,
    Panic,
}

impl End {
    const ALL: [Self; 4] = [Self::Unlock, Self::Drop, Self::DropOutside, Self::Panic];

    async fn end(self, lease: Lease) {
        match self {
            Self::Unlock => lease.unlock().await.unwrap(),
            Self::Drop => drop(lease),
            Self::DropOutside => std::thread::spawn(move || drop(lease)).join().unwrap(),
            Self::Panic => {
                let task = tokio::spawn(async move {
                    let _lease = lease;
                    panic!("in the work of a holder");
                });
                assert!(task.await.unwrap_err().is_panic());
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn line_of_waiters_costs_one_acquire_and_one_release() {
    for end in End::ALL {
        let setup = Setup::new();
        let mut lease = setup.leases.lock("n").lock().await.unwrap();
        let wire = on_the_wire(&setup).await;
        let mut line = std::collections::VecDeque::new();
        for _ in 0..50 {
            line.push_back(in_line(&setup.leases).await);
        }
        let start = Instant::now();
        while let Some(next) = line.pop_front() {
            let token = lease.cancellation_token();
            end.end(lease).await;
            assert!(token.is_cancelled());
            // In the order of arrival.
            if let Some(later) = line.front_mut() {
                assert!(poll_once(later.as_mut()).await.is_pending(), "{end:?}");
            }
            lease = handed(next);
            lease.check().unwrap();
            assert!(!lease.cancellation_token().is_cancelled());
            assert_eq!(lease.hold_count(), 1);
            assert_eq!(on_the_wire(&setup).await, wire, "{end:?}");
        }
        assert_eq!((calls(&setup), start.elapsed()), ((1, 0), Duration::ZERO), "{end:?}");
        end.end(lease).await;
        settle().await;
        assert_eq!(calls(&setup), (1, 1), "{end:?}");
        assert!(setup.memory.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn fences_grow_with_hand_offs_and_between_processes() {
    let setup = Setup::with(LeaseManager::builder().max_local_handoffs(6));
    let other = setup.other();
    let mut last = None;
    for _ in 0..5 {
        // A whole chain of seven uses up all that its grant has reserved.
        let mut line = Vec::new();
        let mut lease = setup.leases.lock("n").lock().await.unwrap();
        for _ in 0..6 {
            line.push(in_line(&setup.leases).await);
        }
        let grants = setup.calls(Call::Acquire);
        for next in line {
            assert!(lease.fence().is_some() && lease.fence() > last, "{:?}", lease.fence());
            last = lease.fence();
            drop(lease);
            lease = handed(next);
        }
        assert!(lease.fence() > last, "{:?}", lease.fence());
        last = lease.fence();
        lease.unlock().await.unwrap();
        assert_eq!(setup.calls(Call::Acquire), grants);

        let theirs = other.lock("n").lock().await.unwrap();
        assert!(theirs.fence() > last, "{:?} after {last:?}", theirs.fence());
        last = theirs.fence();
        theirs.unlock().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn hand_off_works_without_fencing_tokens_too() {
    let setup = Setup::with(LeaseManager::builder().fencing(false));
    let mut lease = setup.leases.lock("n").lock().await.unwrap();
    for _ in 0..20 {
        assert_eq!(lease.fence(), None);
        let next = in_line(&setup.leases).await;
        lease.unlock().await.unwrap();
        lease = handed(next);
    }
    lease.unlock().await.unwrap();
    assert_eq!(calls(&setup), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn after_the_bound_the_store_is_asked_again() {
    let with = |bound| Setup::with(LeaseManager::builder().max_local_handoffs(bound));
    let cases =
        [(with(0), 1), (with(1), 2), (with(3), 4), (with(9_999), 9_999), (Setup::new(), 128)];
    for (setup, holders) in cases {
        let chains = if holders > 1000 { 1 } else { 3 };
        let mut line = Vec::new();
        for _ in 1..chains * holders {
            line.push(setup.leases.lock("n"));
        }
        let mut lease = setup.leases.lock("n").lock().await.unwrap();
        let mut waiting = std::collections::VecDeque::new();
        for mut lock in line {
            let mut waiter = Box::pin(async move { lock.lock().await });
            assert!(poll_once(waiter.as_mut()).await.is_pending());
            waiting.push_back(waiter);
        }
        let mut done: usize = 1;
        while let Some(next) = waiting.pop_front() {
            lease.unlock().await.unwrap();
            lease = next.await.unwrap();
            done += 1;
            let chain = done.div_ceil(holders);
            assert_eq!(calls(&setup), (chain, chain - 1), "at holder {done} of {holders}");
        }
        lease.unlock().await.unwrap();
        assert_eq!(calls(&setup), (chains, chains), "{holders} at a time");
        assert!(setup.memory.is_empty());
    }
}

#[test]
fn bound_beyond_9999_is_invalid_and_says_so() {
    let with = |bound| LeaseManager::builder().max_local_handoffs(bound).dedicated_thread(true);
    for bound in [10_000, u32::MAX] {
        let error = with(bound).build(MemoryStore::new()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        let text = error.to_string();
        assert!(text.contains("max_local_handoffs") && text.contains("9999"), "{text}");
    }
    for bound in [0, 9_999] {
        assert!(with(bound).build(MemoryStore::new()).is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn hold_is_released_a_tenth_of_the_ttl_after_its_grant() {
    let setup = Setup::new();
    for (held, passed) in [(CHAIN - MOMENT, true), (CHAIN, false), (CHAIN + MOMENT, false)] {
        let lease = setup.leases.lock("n").lock().await.unwrap();
        let wire = on_the_wire(&setup).await;
        let next = in_line(&setup.leases).await;
        sleep(held).await;
        lease.unlock().await.unwrap();
        next.await.unwrap().check().unwrap();
        assert_eq!(on_the_wire(&setup).await == wire, passed, "after {held:?}");
        settle().await;
    }
    // Short turns add up.
    let mut lease = setup.leases.lock("n").lock().await.unwrap();
    let granted = Instant::now();
    let wire = on_the_wire(&setup).await;
    while on_the_wire(&setup).await == wire {
        assert!(granted.elapsed() <= CHAIN, "{:?}", granted.elapsed());
        let next = in_line(&setup.leases).await;
        sleep(CHAIN / 8).await;
        lease.unlock().await.unwrap();
        lease = next.await.unwrap();
    }
    assert_eq!(granted.elapsed(), CHAIN);
}

#[tokio::test(start_paused = true)]
async fn grant_that_took_long_is_handed_off_for_less_time() {
    for (took, passed) in [(CHAIN - 2 * MOMENT, true), (CHAIN, false), (T / 3, false)] {
        let setup = Setup::new();
        setup.faults.add(Rule::new(Fault::Delay(took)).on(Call::Acquire).times(1));
        let lease = setup.leases.lock("n").lock().await.unwrap();
        let wire = on_the_wire(&setup).await;
        let next = in_line(&setup.leases).await;
        lease.unlock().await.unwrap();
        next.await.unwrap().check().unwrap();
        assert_eq!(on_the_wire(&setup).await == wire, passed, "after {took:?}");
    }
}

/// Ends a lease that must not be handed off: the waiter gets a new grant.
async fn expect_released(setup: &Setup, lease: Lease, wire: &str, context: &str) {
    let releases = setup.calls(Call::Release);
    let fence = lease.fence();
    let next = in_line(&setup.leases).await;
    drop(lease);
    let (took, lease) = timed(next).await;
    let lease = lease.unwrap();
    assert!(took < Duration::from_secs(1), "{took:?}, {context}");
    assert!(lease.fence() > fence, "{context}");
    assert_ne!(on_the_wire(setup).await, wire, "{context}");
    assert!(setup.calls(Call::Release) > releases, "{context}");
    lease.unlock().await.unwrap();
    settle().await;
    assert!(setup.memory.is_empty(), "{context}");
}

#[tokio::test(start_paused = true)]
async fn lease_at_risk_or_being_renewed_is_released() {
    for fault in [None, Some(Fault::Fail(unavailable())), Some(Fault::Hang)] {
        let setup = Setup::new();
        let lease = setup.leases.lock("n").lock().await.unwrap();
        let wire = on_the_wire(&setup).await;
        settle().await;
        let context = format!("{fault:?}");
        let sound = fault.is_none();
        if let Some(fault) = fault {
            setup.faults.add(Rule::new(fault).on(Call::Renew));
        }
        // It brings a renewal forward.
        setup.faults.reconnect();
        settle().await;
        assert_eq!(setup.calls(Call::Renew), 1);
        if sound {
            let next = in_line(&setup.leases).await;
            drop(lease);
            drop(handed(next));
        } else {
            expect_released(&setup, lease, &wire, &context).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn lease_held_again_after_a_risk_is_handed_off() {
    let setup = Setup::new();
    let lease = setup.leases.lock("n").lock().await.unwrap();
    settle().await;
    setup.faults.add(Rule::new(Fault::LoseReply).on(Call::Renew).times(1));
    setup.faults.reconnect();
    setup.faults.until_calls(Call::Renew, 2).await;
    settle().await;
    let next = in_line(&setup.leases).await;
    lease.unlock().await.unwrap();
    let lease = handed(next);
    sleep(2 * T).await;
    lease.check().unwrap();
}

#[tokio::test(start_paused = true)]
async fn count_of_the_last_holder_holds_up_no_hand_off() {
    for story in ["to be recorded", "in flight", "not recorded"] {
        let setup = Setup::new();
        let mut lock = setup.leases.lock("n");
        let (outer, inner) = (lock.lock().await.unwrap(), lock.lock().await.unwrap());
        counted().await;
        assert_eq!(setup.recorded("n").await, Some(2));
        let next = in_line(&setup.leases).await;
        match story {
            "in flight" => setup.faults.add(Rule::new(Fault::Delay(50 * MOMENT)).on(Call::Release)),
            "not recorded" => {
                setup.faults.add(Rule::new(Fault::Fail(unavailable())).on(Call::Release).times(1));
            }
            _ => {}
        }
        inner.unlock().await.unwrap();
        if story != "to be recorded" {
            sleep(12 * MOMENT).await;
        }
        outer.unlock().await.unwrap();
        let lease = handed(next);
        assert_eq!(calls(&setup).0, 1, "{story}");
        sleep(100 * MOMENT).await;
        assert_eq!((lease.hold_count(), setup.recorded("n").await), (1, Some(1)), "{story}");
        lease.unlock().await.unwrap();
        assert!(setup.memory.is_empty(), "{story}");
    }
}

#[tokio::test(start_paused = true)]
async fn record_that_finds_nothing_verifies_the_next_hold() {
    let _reached = Must::reach("AbsenceAfterHandOff");
    let setup = Setup::new();
    let mut lock = setup.leases.lock("n");
    let (outer, inner) = (lock.lock().await.unwrap(), lock.lock().await.unwrap());
    let next = in_line(&setup.leases).await;
    setup.faults.add(Rule::new(Fault::Delay(20 * MOMENT)).on(Call::Release).times(1));
    sleep(15 * MOMENT).await;
    inner.unlock().await.unwrap();
    outer.unlock().await.unwrap();
    let lease = handed(next);
    assert!(setup.memory.delete("n"));
    sleep(30 * MOMENT).await;
    assert_eq!(setup.calls(Call::Renew), 1);
    assert_eq!(lost(lease.check()), Loss::Gone);
}

#[tokio::test(start_paused = true)]
async fn nested_holder_passes_on_at_the_last_of_its_leases() {
    for inner_first in [true, false] {
        let setup = Setup::new();
        let mut lock = setup.leases.lock("n");
        let (outer, inner) = (lock.lock().await.unwrap(), lock.lock().await.unwrap());
        let mut then = setup.leases.lock("n");
        let mut next = Box::pin(then.lock());
        assert!(poll_once(next.as_mut()).await.is_pending());
        let (first, last) = if inner_first { (inner, outer) } else { (outer, inner) };
        if inner_first {
            first.unlock().await.unwrap();
        } else {
            drop(first);
            settle().await;
        }
        let wire = on_the_wire(&setup).await;
        assert!(poll_once(next.as_mut()).await.is_pending());
        let before = calls(&setup);
        if inner_first {
            last.unlock().await.unwrap();
        } else {
            drop(last);
        }
        let Poll::Ready(Ok(outer)) = poll_once(next.as_mut()).await else {
            panic!("nothing was passed on, the inner first: {inner_first}")
        };
        assert_eq!((outer.hold_count(), calls(&setup)), (1, before));
        assert_eq!(on_the_wire(&setup).await, wire);
        // The new holder can re-enter as often.
        drop(next);
        let inner = then.lock().await.unwrap();
        assert_eq!((inner.hold_count(), inner.fence()), (2, outer.fence()));
        counted().await;
        assert_eq!(setup.recorded("n").await, Some(2));
        inner.unlock().await.unwrap();
        outer.unlock().await.unwrap();
        assert!(setup.memory.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn handle_after_a_hand_off_waits_like_others() {
    let setup = Setup::new();
    let mut lock = setup.leases.lock("n");
    let lease = lock.lock().await.unwrap();
    let (next, last) = (in_line(&setup.leases).await, in_line(&setup.leases).await);
    lease.unlock().await.unwrap();
    assert!(lock.try_lock().await.unwrap().is_none());
    let mut again = Box::pin(lock.lock());
    assert!(poll_once(again.as_mut()).await.is_pending());
    drop(handed(next));
    assert!(poll_once(again.as_mut()).await.is_pending());
    drop(handed(last));
    let lease = again.await.unwrap();
    assert_eq!((lease.hold_count(), calls(&setup)), (1, (1, 0)));
}

#[tokio::test(start_paused = true)]
async fn forgotten_lease_is_not_handed_off() {
    for nested in [false, true] {
        let setup = Setup::new();
        let mut lock = setup.leases.lock("n");
        let lease = lock.lock().await.unwrap();
        let inner = if nested { Some(lock.lock().await.unwrap()) } else { None };
        let next = in_line(&setup.leases).await;
        // From here on the time to live runs; the last one of the hold counts.
        if let Some(inner) = inner {
            inner.unlock().await.unwrap();
        }
        lease.forget();
        let (took, lease) = timed(next).await;
        lease.unwrap().check().unwrap();
        assert!((T..T + Duration::from_millis(10)).contains(&took), "{took:?}");
        assert_eq!(setup.calls(Call::Renew), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn try_lock_amid_hand_offs_is_none_at_once_and_costs_no_call() {
    let setup = Setup::new();
    let mut tried = setup.leases.lock("n");
    let mut lease = setup.leases.lock("n").lock().await.unwrap();
    for _ in 0..10 {
        let next = in_line(&setup.leases).await;
        assert!(tried.try_lock().await.unwrap().is_none(), "past the holder");
        lease.unlock().await.unwrap();
        // It is nobody's in this moment, but on its way.
        let (took, none) = timed(tried.try_lock()).await;
        assert!(none.unwrap().is_none() && took.is_zero(), "past what is on its way");
        assert!(tried.lock_timeout(Duration::ZERO).await.unwrap().is_none());
        lease = handed(next);
    }
    assert_eq!(calls(&setup), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn waiter_too_long_for_its_hand_gives_up_its_place() {
    let setup = Setup::new();
    let mut lease = setup.leases.lock("n").lock().await.unwrap();
    let limit = Duration::from_millis(250);
    let mut lock = setup.leases.lock("n");
    let first = in_line(&setup.leases).await;
    let mut impatient = Box::pin(timed(lock.lock_timeout(limit)));
    assert!(poll_once(impatient.as_mut()).await.is_pending());
    let last = in_line(&setup.leases).await;
    let holding = async {
        sleep(limit / 2).await;
        lease.unlock().await.unwrap();
        lease = handed(first);
        sleep(limit).await;
        lease
    };
    let ((took, given_up), lease) = tokio::join!(impatient, holding);
    assert!(given_up.unwrap().is_none());
    assert_eq!(took, limit);
    lease.unlock().await.unwrap();
    drop(handed(last));
    assert_eq!(calls(&setup).0, 1);
}
