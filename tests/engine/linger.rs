//! A hold that lingers: it rests when nobody waits, the next call of this process takes it over without a request, and
//! everything else has it released.

use super::handoff::{handed, in_line};
use super::*;
use leasehold::{EventKind, Events};
use std::pin::pin;

const L: Duration = Duration::from_millis(20);
/// The longest one.
const LONG: Duration = Duration::from_secs(3);

fn lingering(linger: Duration) -> Setup {
    Setup::with(LeaseManager::builder().linger(linger))
}

/// Another process that lingers.
fn other(setup: &Setup) -> LeaseManager {
    let builder = LeaseManager::builder().linger(LONG);
    builder.build(setup.memory.clone()).expect("good settings")
}

/// The calls that a change of holder can cost.
fn calls(setup: &Setup) -> (usize, usize) {
    (setup.calls(Call::Acquire), setup.calls(Call::Release))
}

/// Lets a hold of "n" rest.
async fn rest(setup: &Setup) {
    setup.leases.lock("n").lock().await.unwrap().unlock().await.unwrap();
    assert!(!setup.memory.is_empty());
}

/// Fails unless "n" is released without any time.
#[track_caller]
fn assert_released(setup: &Setup) {
    assert!(setup.memory.is_empty(), "it rests");
}

/// What has happened, as words.
async fn words(events: &mut Events) -> Vec<String> {
    let mut words = Vec::new();
    while let Poll::Ready(Some(event)) = poll_once(pin!(events.next())).await {
        words.push(match event.kind() {
            EventKind::Granted { how, was_waiting, .. } => format!("{how:?} {was_waiting}"),
            kind => format!("{kind:?}").split([' ', '{']).next().unwrap_or_default().to_owned(),
        });
    }
    words
}

#[tokio::test(start_paused = true)]
async fn next_lock_costs_no_request() {
    let setup = lingering(LONG);
    let mut lock = setup.leases.lock("n");
    let (mut holder, mut fence) = (None, None);
    let start = Instant::now();
    for round in 0..100 {
        let lease = match round % 4 {
            0 => lock.lock().await.unwrap(),
            1 => lock.try_lock().await.unwrap().expect("nobody else has it"),
            2 => lock.lock_timeout(LONG).await.unwrap().expect("nobody else has it"),
            _ => setup.leases.lock("n").lock().await.unwrap(),
        };
        lease.check().unwrap();
        assert_eq!(lease.hold_count(), 1);
        assert!(lease.fence() > fence, "{:?} after {fence:?}", lease.fence());
        assert_eq!(*holder.get_or_insert(lease.holder_id()), lease.holder_id());
        fence = lease.fence();
        let token = lease.cancellation_token();
        if round % 2 == 0 {
            drop(lease)
        } else {
            lease.unlock().await.unwrap()
        }
        assert!(token.is_cancelled());
    }
    assert_eq!((calls(&setup), start.elapsed()), ((1, 0), Duration::ZERO));
    sleep(LONG + MOMENT).await;
    assert_eq!(calls(&setup), (1, 1));
    assert_released(&setup);
    let next = setup.other().lock("n").lock().await.unwrap();
    assert!(next.fence() > fence);
}

#[tokio::test(start_paused = true)]
async fn rest_ends_when_its_time_ends() {
    let setup = lingering(L);
    rest(&setup).await;
    sleep(L - MOMENT).await;
    assert_eq!(calls(&setup), (1, 0));
    sleep(2 * MOMENT).await;
    assert_eq!(calls(&setup), (1, 1));
    assert_released(&setup);
    // A hold that is taken over is renewed as any other one.
    rest(&setup).await;
    let lease = setup.leases.lock("n").lock().await.unwrap();
    sleep(3 * T).await;
    lease.check().unwrap();
    assert_eq!(calls(&setup), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn lease_that_is_dropped_outside_a_runtime_rests_too() {
    let setup = lingering(L);
    let lease = setup.leases.lock("n").lock().await.unwrap();
    std::thread::spawn(move || drop(lease)).join().unwrap();
    assert!(!setup.memory.is_empty());
    // The paused clock of the runtime is not that of the other thread.
    sleep(LONG).await;
    assert_released(&setup);
}

#[tokio::test(start_paused = true)]
async fn chain_ends_after_so_many_and_after_a_tenth_of_the_ttl() {
    let setup = Setup::with(LeaseManager::builder().linger(LONG).max_local_handoffs(3));
    for _ in 0..3 {
        rest(&setup).await;
    }
    setup.leases.lock("n").lock().await.unwrap().unlock().await.unwrap();
    assert_eq!(calls(&setup), (1, 1));
    assert_released(&setup);

    let setup = lingering(LONG);
    rest(&setup).await;
    sleep(LONG - L).await;
    // What is left of the chain.
    rest(&setup).await;
    sleep(L - MOMENT).await;
    assert_eq!(calls(&setup), (1, 0));
    sleep(2 * MOMENT).await;
    assert_eq!(calls(&setup), (1, 1));
    let lease = setup.leases.lock("n").lock().await.unwrap();
    sleep(LONG).await;
    lease.unlock().await.unwrap();
    assert_released(&setup);
}

#[tokio::test(start_paused = true)]
async fn waiter_in_line_is_handed_the_hold_before_it_rests() {
    let setup = lingering(LONG);
    let lease = setup.leases.lock("n").lock().await.unwrap();
    let (first, second) = (in_line(&setup.leases).await, in_line(&setup.leases).await);
    drop(lease);
    drop(handed(first));
    drop(handed(second));
    assert_eq!(calls(&setup), (1, 0));
    // Now it rests, and the next call has it at its first poll.
    let mut lock = setup.leases.lock("n");
    assert!(poll_once(pin!(lock.lock())).await.is_ready());
    assert_eq!(calls(&setup), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn process_that_asks_gets_the_name_at_once() {
    for asks_by_try in [false, true] {
        let setup = lingering(LONG);
        let other = if asks_by_try { other(&setup) } else { setup.other() };
        settle().await;
        rest(&setup).await;
        let start = Instant::now();
        let mut lock = other.lock("n");
        let lease = if asks_by_try {
            assert!(lock.try_lock().await.unwrap().is_none(), "it rests");
            settle().await;
            lock.try_lock().await.unwrap().expect("a name that was given up")
        } else {
            lock.lock().await.unwrap()
        };
        assert!(start.elapsed() <= 2 * MOMENT, "{:?}", start.elapsed());
        assert_eq!(calls(&setup), (1, 1));
        lease.unlock_now().await.unwrap();
        assert_released(&setup);
    }
}

#[tokio::test(start_paused = true)]
async fn hold_that_was_asked_for_rests_no_more() {
    let setup = lingering(LONG);
    let theirs = setup.other();
    settle().await;
    let lease = setup.leases.lock("n").lock().await.unwrap();
    let waiter = in_line(&setup.leases).await;
    assert!(theirs.lock("n").try_lock().await.unwrap().is_none());
    settle().await;
    // What was asked ends no hand-off.
    drop(lease);
    let lease = handed(waiter);
    assert_eq!(calls(&setup), (1, 0));
    lease.unlock().await.unwrap();
    assert_released(&setup);
}

#[tokio::test(start_paused = true)]
async fn process_that_is_not_heard_waits_for_the_rest_of_the_time() {
    let setup = lingering(L);
    rest(&setup).await;
    // By a store that brings no question.
    let (deaf, faults) = FaultyStore::new(setup.memory.clone());
    faults.add(Rule::new(Fault::Hang).on(Call::Want));
    let deaf = LeaseManager::builder().build(deaf).unwrap();
    let (took, lease) = timed(async { deaf.lock("n").lock().await }).await;
    drop(lease.unwrap());
    assert!(took >= L - MOMENT && took <= L + 2 * MOMENT, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn unlock_now_releases_in_the_store() {
    let setup = lingering(LONG);
    let lease = setup.leases.lock("n").lock().await.unwrap();
    lease.unlock_now().await.unwrap();
    assert_eq!(calls(&setup), (1, 1));
    assert_released(&setup);
    // Its error is that of the store.
    let lease = setup.leases.lock("n").lock().await.unwrap();
    setup.faults.add(Rule::new(Fault::Fail(unavailable())).on(Call::Release));
    assert_eq!(failed(lease.unlock_now().await), ErrorKind::Unavailable);
    // Dropped before its first poll, it is finished in the background.
    setup.faults.heal();
    settle().await;
    sleep(T).await;
    let lease = setup.leases.lock("n").lock().await.unwrap();
    drop(lease.unlock_now());
    settle().await;
    assert!(!setup.memory.is_empty(), "as a lease that is dropped");
}

#[tokio::test(start_paused = true)]
async fn nested_lease_ends_no_hold() {
    let setup = lingering(L);
    let mut lock = setup.leases.lock("n");
    let outer = lock.lock().await.unwrap();
    let inner = lock.lock().await.unwrap();
    counted().await;
    inner.unlock().await.unwrap();
    outer.check().unwrap();
    sleep(2 * L).await;
    outer.unlock().await.unwrap();
    let again = lock.lock().await.unwrap();
    assert_eq!((again.hold_count(), calls(&setup).0), (1, 1));
    let nested = lock.lock().await.unwrap();
    assert_eq!(again.hold_count(), 2);
    drop((again, nested));
    sleep(2 * L).await;
    assert_released(&setup);
}

#[tokio::test(start_paused = true)]
async fn handle_that_the_hold_does_not_suit_asks_the_store() {
    let setup = lingering(LONG);
    let start = Instant::now();
    rest(&setup).await;
    let delayed = setup.leases.lock("n").lock_delay(L).lock().await.unwrap();
    assert_eq!(calls(&setup), (2, 1));
    delayed.unlock().await.unwrap();
    // Of the same delay.
    let delayed = setup.leases.lock("n").lock_delay(L).lock().await.unwrap();
    assert_eq!(calls(&setup), (2, 1));
    delayed.unlock_now().await.unwrap();

    rest(&setup).await;
    let fair = setup.leases.fair_lock("n").lock().await.unwrap();
    fair.unlock().await.unwrap();
    assert_released(&setup);

    rest(&setup).await;
    let mut writer = setup.leases.rw_lock("n");
    writer.write().await.unwrap().unlock().await.unwrap();
    rest(&setup).await;
    let edit = writer.try_write().await.unwrap().expect("nobody has it");
    edit.unlock().await.unwrap();
    rest(&setup).await;
    let fair = setup.leases.fair_lock("n").try_lock().await.unwrap().expect("nobody has it");
    fair.unlock().await.unwrap();
    assert_released(&setup);
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn only_plain_locks_rest() {
    let setup = lingering(LONG);
    let mut rw = setup.leases.rw_lock("n");
    rw.write().await.unwrap().unlock().await.unwrap();
    assert_released(&setup);
    rw.read().await.unwrap().unlock().await.unwrap();
    assert_released(&setup);
    setup.leases.semaphore("p", 2).acquire().await.unwrap().unlock().await.unwrap();
    setup.leases.slots("s", 2).take().await.unwrap().unlock().await.unwrap();
    let mut set = setup.leases.multi_lock(["a", "b"]).unwrap();
    set.lock().await.unwrap().unlock().await.unwrap();
    let mut fair = setup.leases.fair_lock("n");
    fair.lock().await.unwrap().unlock().await.unwrap();
    for name in ["n", "s#0", "s#1", "a", "b"] {
        assert!(setup.other().inspect(name).await.unwrap().is_none(), "{name} rests");
    }
    // Of its own hold that rests, a set takes a name over.
    setup.leases.lock("a").lock().await.unwrap().unlock().await.unwrap();
    let both = set.lock().await.unwrap();
    both.check().unwrap();
    both.unlock().await.unwrap();
    assert!(setup.other().inspect("a").await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn hold_with_a_mark_of_its_own_does_not_rest() {
    let setup = lingering(LONG);
    let lease = setup.leases.lock("n").min_hold(L).lock().await.unwrap();
    lease.unlock().await.unwrap();
    let closed = setup.other().inspect("n").await.unwrap().expect("a mark");
    assert!(closed.closed.is_some());
    sleep(2 * L).await;

    let theirs = setup.other();
    settle().await;
    let lease = setup.leases.lock("n").lock().await.unwrap();
    let mut lock = theirs.lock("n");
    let mut stealing = pin!(lock.steal_after(LONG, "mine"));
    assert!(poll_once(stealing.as_mut()).await.is_pending());
    settle().await;
    lease.unlock().await.unwrap();
    let (took, stolen) = timed(stealing).await;
    stolen.unwrap().expect("a name that was released").check().unwrap();
    assert!(took <= 2 * MOMENT, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn events_and_holdings_show_no_lease_that_rests() {
    let setup = lingering(L);
    let mut events = setup.leases.events(100);
    let mut lock = setup.leases.lock("n");
    lock.lock().await.unwrap().unlock().await.unwrap();
    assert_eq!(words(&mut events).await, ["Store false", "Released"]);
    assert!(setup.leases.holdings().is_empty());
    let lease = lock.lock().await.unwrap();
    assert_eq!(setup.leases.holdings().len(), 1);
    lease.unlock().await.unwrap();
    assert_eq!(words(&mut events).await, ["HandedOff false", "Released"]);
    sleep(2 * L).await;
    assert_eq!(words(&mut events).await, [""; 0]);
    let stats = setup.leases.stats();
    assert_eq!((stats.granted, stats.handed_off, stats.released), (1, 1, 2));
}

#[tokio::test(start_paused = true)]
async fn loss_of_what_rests_is_no_event() {
    let setup = lingering(LONG);
    let theirs = setup.other();
    settle().await;
    for act in 0..5 {
        rest(&setup).await;
        let mut events = setup.leases.events(100);
        match act {
            0 => assert!(setup.leases.force_unlock("n", "now").await.unwrap()),
            1 => assert!(theirs.force_unlock("n", "now").await.unwrap()),
            2 => {
                let stolen = theirs.lock("n").steal("now").await.unwrap().expect("one");
                settle().await;
                stolen.check().unwrap();
                stolen.unlock_now().await.unwrap();
            }
            3 => {
                let stolen = setup.leases.lock("n").steal("now").await.unwrap().expect("one");
                stolen.check().unwrap();
                assert_eq!(words(&mut events).await, ["Stolen false"]);
                stolen.unlock_now().await.unwrap();
                assert_eq!(words(&mut events).await, ["Released"]);
            }
            _ => assert!(setup.memory.delete("n")),
        }
        settle().await;
        assert_eq!(words(&mut events).await, [""; 0], "act {act}");
        if act < 4 {
            assert_released(&setup);
        }
        // Nothing is left in the way.
        let lease = setup.leases.lock("n").lock().await.unwrap();
        lease.unlock_now().await.ok();
        setup.leases.lock("n").lock().await.unwrap().unlock_now().await.unwrap();
        assert_released(&setup);
    }
}

#[tokio::test(start_paused = true)]
async fn lease_at_risk_is_released() {
    let setup = lingering(LONG);
    let lease = setup.leases.lock("n").lock().await.unwrap();
    setup.faults.add(Rule::new(Fault::Fail(unavailable())).on(Call::Renew));
    // Has it renewed at once.
    setup.faults.reconnect();
    settle().await;
    assert_eq!(lease.state(), leasehold::LeaseState::AtRisk);
    lease.unlock().await.unwrap();
    assert_released(&setup);
}

#[tokio::test(start_paused = true)]
async fn reconnect_ends_the_rest() {
    let setup = lingering(LONG);
    rest(&setup).await;
    settle().await;
    setup.faults.reconnect();
    settle().await;
    assert_released(&setup);
}

#[tokio::test(start_paused = true)]
async fn end_of_the_manager_releases_what_rests() {
    let setup = lingering(LONG);
    rest(&setup).await;
    let (took, closed) = timed(setup.leases.close()).await;
    closed.unwrap();
    assert!(took <= 2 * MOMENT, "{took:?}");
    assert_released(&setup);

    let Setup { leases, memory, faults } = lingering(LONG);
    leases.lock("n").lock().await.unwrap().unlock().await.unwrap();
    assert!(!memory.is_empty());
    drop((leases, faults));
    settle().await;
    assert!(memory.is_empty(), "it outlives its manager");
}

#[tokio::test(start_paused = true)]
async fn release_of_what_rests_is_tried_again() {
    let setup = lingering(L);
    rest(&setup).await;
    setup.faults.add(Rule::new(Fault::Fail(unavailable())).on(Call::Release).times(2));
    sleep(L + T / 2).await;
    assert!(calls(&setup).1 >= 3);
    assert_released(&setup);
}

/// A call that comes while the release of what rested is under way sleeps until it is answered.
#[test]
fn call_waits_for_the_release_of_what_rested() {
    watched(|| async {
        let setup = lingering(L);
        rest(&setup).await;
        setup.faults.add(Rule::new(Fault::Delay(L)).on(Call::Release));
        sleep(L + MOMENT).await;
        assert_eq!(calls(&setup), (1, 1));
        let (took, lease) = timed(async { setup.leases.lock("n").lock().await }).await;
        assert!(took >= L - 2 * MOMENT && took <= L + 2 * MOMENT, "{took:?}");
        drop(lease.unwrap());
        assert_eq!(calls(&setup).0, 2);
        // One attempt waits for it too.
        sleep(2 * L).await;
        rest(&setup).await;
        sleep(L + MOMENT).await;
        let mut lock = setup.leases.lock("n");
        let lease = lock.try_lock().await.unwrap();
        assert!(lease.is_some(), "nobody has it");
    });
}

#[tokio::test(start_paused = true)]
async fn time_is_at_most_a_tenth_of_the_ttl() {
    let built = |builder: Builder| builder.build(MemoryStore::new()).map(|_| ());
    built(LeaseManager::builder().linger(LONG)).unwrap();
    let error = built(LeaseManager::builder().linger(LONG + MOMENT)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("at most a tenth of the ttl, 3s"), "{error}");
    let error = built(LeaseManager::builder().linger(L).max_local_handoffs(0));
    assert_eq!(failed(error), ErrorKind::Invalid);
    let (store, _) = FaultyStore::new(MemoryStore::new());
    let store = store.with_capabilities(leasehold::store::Capabilities::default());
    let error = LeaseManager::builder().linger(L).build(store).map(|_| ());
    assert_eq!(failed(error), ErrorKind::Unsupported);
    // Zero is off.
    let setup = Setup::with(LeaseManager::builder().linger(Duration::ZERO));
    setup.leases.lock("n").lock().await.unwrap().unlock().await.unwrap();
    assert_released(&setup);
}
