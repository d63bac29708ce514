//! Runtimes end, or unwind, while others share the manager. In real time, because runtimes share no paused clock.

use super::*;
use futures_core::Stream;
use leasehold::View;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use tokio::runtime::{Builder as Runtimes, Runtime};
use tokio::time::timeout;

const T: Duration = Duration::from_secs(2);
const LONG: Duration = Duration::from_secs(60);

fn runtime() -> Runtime {
    Runtimes::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
}

/// Two runtimes, and a manager whose work is done on the first.
fn setup() -> (Runtime, Runtime, Setup) {
    let (first, second) = (runtime(), runtime());
    let builder = LeaseManager::builder().ttl(T).max_local_handoffs(0);
    let setup = first.block_on(async { Setup::with(builder) });
    (first, second, setup)
}

#[test]
fn waiter_elsewhere_takes_over_when_the_engines_runtime_ends() {
    let (first, second, setup) = setup();
    let lease = second.block_on(async { setup.leases.lock("n").lock().await.unwrap() });
    let mut lock = setup.leases.lock("n");
    let mut waiting = Box::pin(async move { lock.lock().await.map(|lease| lease.hold_count()) });
    assert!(second.block_on(async { poll_once(waiting.as_mut()).await.is_pending() }));
    let waiter = second.spawn(waiting);
    drop(first);
    drop(lease);
    let entered = second.block_on(async { timeout(LONG, waiter).await });
    assert_eq!(entered.expect("in time").unwrap().unwrap(), 1);
}

#[test]
fn hold_elsewhere_is_renewed_when_the_engines_runtime_ends() {
    let _reached = Must::reach("TakenOver");
    let (first, second, setup) = setup();
    // Both have begun to wait before it ends.
    let (working, watched, lost) = second.block_on(async {
        let lease = setup.leases.lock("working").lock().await.unwrap();
        let mut working = Box::pin(async move { lease.run(std::future::pending::<()>()).await });
        assert!(poll_once(working.as_mut()).await.is_pending());
        let watched = setup.leases.lock("told").lock().await.unwrap();
        let mut lost = Box::pin(watched.lost());
        assert!(poll_once(lost.as_mut()).await.is_pending());
        (tokio::spawn(working), watched, tokio::spawn(lost))
    });
    drop(first);
    let renewals = setup.calls(Call::Renew);
    second.block_on(async {
        let renewed = setup.faults.until_calls(Call::Renew, renewals + 8);
        timeout(LONG, renewed).await.expect("renewed");
        watched.check().unwrap();
        assert!(!working.is_finished() && !lost.is_finished());
    });
}

#[test]
fn count_is_recorded_although_the_engines_runtime_ends() {
    let _reached = Must::reach("RecordRequeued");
    let (first, second, setup) = setup();
    let mut lock = setup.leases.lock("n");
    setup.faults.add(Rule::new(Fault::Hang).on(Call::Release).times(1));
    let leases = second.block_on(async {
        let leases = [lock.lock().await.unwrap(), lock.lock().await.unwrap()];
        timeout(LONG, setup.faults.until_calls(Call::Release, 1)).await.expect("sent");
        leases
    });
    drop(first);
    second.block_on(async {
        setup.leases.lock("m").lock().await.unwrap().unlock().await.unwrap();
        timeout(LONG, setup.faults.until_calls(Call::Release, 3)).await.expect("sent again");
        assert_eq!(leases[0].hold_count(), 2);
    });
}

/// No future is polled for a holder that has only its token.
#[test]
fn token_fires_before_the_next_enters_if_nobody_takes_over() {
    let (first, second, setup) = setup();
    let other = second.block_on(async { setup.other() });
    let lease = second.block_on(async { setup.leases.lock("n").lock().await.unwrap() });
    let token = lease.cancellation_token();
    drop(first);
    let next = second.block_on(async { timeout(LONG, other.lock("n").lock()).await });
    assert!(token.is_cancelled());
    drop(next.expect("in time").unwrap());
    assert_eq!(lost(lease.check()), Loss::Expired);
    // The next that locks sets the manager to work again.
    second.block_on(async { setup.leases.lock("m").lock().await.unwrap().unlock().await.unwrap() });
}

/// The runtime that the manager works on is blocked until the test ends.
#[test]
fn token_fires_before_the_next_enters_beside_a_blocked_runtime() {
    let (made, setup) = std::sync::mpsc::channel();
    let (unblock, blocked) = std::sync::mpsc::channel::<()>();
    let first = std::thread::spawn(move || {
        let runtime = Runtimes::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            made.send(Setup::with(LeaseManager::builder().ttl(T))).expect("it is awaited");
            let _ = blocked.recv();
        });
    });
    let (setup, second) = (setup.recv().expect("a manager"), runtime());
    second.block_on(async {
        let other = setup.other();
        let lease = setup.leases.lock("n").lock().await.unwrap();
        let token = lease.cancellation_token();
        let working = tokio::spawn(async move { lease.run(std::future::pending::<()>()).await });
        let next = timeout(LONG, other.lock("n").lock()).await;
        assert!(token.is_cancelled());
        drop(next.expect("in time").unwrap());
        let ended = timeout(LONG, working).await.expect("in time").expect("no panic");
        assert_eq!(lost(ended), Loss::Expired);
    });
    drop(unblock);
    first.join().expect("no panic");
}

struct Blocks(Mutex<std::sync::mpsc::Receiver<()>>);

impl Wake for Blocks {
    fn wake(self: Arc<Self>) {
        let _ = self.0.lock().unwrap().recv();
    }
}

/// What the watchdog has taken out of the schedule is looked at all the same.
#[test]
fn waker_that_blocks_the_watchdog_holds_up_no_other_token() {
    let (made, setup) = std::sync::mpsc::channel();
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let (unblock, blocked) = std::sync::mpsc::channel::<()>();
    let first = std::thread::spawn(move || {
        let runtime = Runtimes::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            made.send(Setup::with(LeaseManager::builder().ttl(T))).expect("it is awaited");
            let _ = ended.await;
        });
    });
    let (setup, second) = (setup.recv().expect("a manager"), runtime());
    second.block_on(async {
        let mut leases = Vec::new();
        for number in 0..20 {
            leases.push(setup.leases.lock(format!("n{number}")).lock().await.unwrap());
        }
        // Renewed together, they are due together.
        while setup.calls(Call::Renew) == 0 {
            tokio::task::yield_now().await;
        }
        setup.faults.add(Rule::new(Fault::Fail(unavailable())).on(Call::Renew));
        let tokens: Vec<_> = leases.iter().map(Lease::cancellation_token).collect();
        let mut waiting = Box::pin(tokens[0].clone().cancelled_owned());
        let waker = Waker::from(Arc::new(Blocks(Mutex::new(blocked))));
        assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        for (number, token) in tokens.iter().enumerate().skip(1) {
            let left = leases[number].remaining();
            timeout(left + LONG, token.cancelled()).await.expect("its token fires");
        }
        drop(unblock);
    });
    drop(end);
    first.join().expect("no panic");
}

/// Only its runtime knows how late it is on a clock that can be paused.
#[tokio::test(start_paused = true)]
async fn lease_in_paused_time_outlives_a_blocked_runtime() {
    let ttl = Duration::from_millis(100);
    let setup = Setup::with(LeaseManager::builder().ttl(ttl));
    let lease = setup.leases.lock("n").lock().await.unwrap();
    settle().await;
    std::thread::sleep(3 * ttl);
    lease.check().expect("no time has passed");
    sleep(3 * ttl).await;
    lease.check().expect("renewed");
}

/// As `#[tokio::test]` drops its runtime when an assertion fails.
#[test]
fn panic_that_unwinds_the_engines_runtime_closes_nothing() {
    let second = runtime();
    let leases = LeaseManager::in_memory();
    let mut held = None;
    let panic = catch_unwind(AssertUnwindSafe(|| {
        let first = Runtimes::new_current_thread().enable_all().build().expect("a runtime");
        first.block_on(async {
            leases.lock("mine").lock().await.unwrap().unlock().await.unwrap();
            tokio::task::yield_now().await;
        });
        held = Some(second.block_on(async { leases.lock("theirs").lock().await.unwrap() }));
        first.block_on(async { panic!("a failed assertion") });
    }));
    panic.expect_err("it was told to");
    let held = held.expect("a lease");
    held.check().unwrap();
    second.block_on(async {
        leases.lock("another").lock().await.unwrap().unlock().await.unwrap();
        held.unlock().await.unwrap();
        leases.close().await.unwrap();
    });
}

/// The next flow does not wait for its request, whose timer never fires.
#[test]
fn permit_request_of_a_runtime_that_stands_still_is_asked_again() {
    let first = Runtimes::new_current_thread().enable_all().build().expect("a runtime");
    let second = runtime();
    let setup = second.block_on(async { Setup::with(LeaseManager::builder().ttl(T)) });
    let pool = |leases: &LeaseManager| leases.semaphore("pool", 2);
    let (own, theirs) = second.block_on(async {
        let own = pool(&setup.leases).acquire().await.unwrap();
        (own, pool(&setup.other()).acquire().await.unwrap())
    });
    setup.faults.add(Rule::new(Fault::Delay(T * 2)).on(Call::Acquire).times(1));
    let semaphores = [pool(&setup.leases), pool(&setup.leases)];
    let mut asking = Box::pin(semaphores[0].acquire());
    assert!(first.block_on(async { poll_once(asking.as_mut()).await.is_pending() }));
    let mut waiting = Box::pin(semaphores[1].acquire());
    assert!(second.block_on(async { poll_once(waiting.as_mut()).await.is_pending() }));
    second.block_on(own.unlock()).unwrap();
    let handed_off = first.block_on(asking).unwrap();
    second.block_on(theirs.unlock()).unwrap();
    let granted = second.block_on(async { timeout(LONG, waiting).await });
    granted.expect("in time").unwrap().check().unwrap();
    drop(handed_off);
}

struct Bomb;

impl Wake for Bomb {
    fn wake(self: Arc<Self>) {
        panic!("a waker that panics");
    }
}

/// A waker is the only code of the user that the watchdog runs.
#[tokio::test]
async fn waker_that_panics_strikes_nobody_else() {
    for dedicated_thread in [false, true] {
        let (store, faults) = FaultyStore::new(MemoryStore::new());
        let builder =
            LeaseManager::builder().ttl(Duration::from_secs(1)).dedicated_thread(dedicated_thread);
        let leases = builder.build(store).expect("a manager");
        let struck = leases.lock("struck").lock().await.unwrap();
        let other = leases.lock("other").lock().await.unwrap();
        let (token, watched) = (struck.cancellation_token(), other.cancellation_token());
        let waker = Waker::from(Arc::new(Bomb));
        let mut fires = Box::pin(token.cancelled());
        assert!(fires.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        faults.add(Rule::new(Fault::Hang).on(Call::Renew));
        timeout(LONG, watched.cancelled()).await.expect("told");
        assert_eq!(lost(other.check()), Loss::Expired);
        assert_eq!(lost(struck.check()), Loss::Expired);
        faults.heal();
        // The watchdog goes on.
        let next = leases.lock("next").lock().await.unwrap();
        let before = faults.calls(Call::Renew);
        let renewed = async {
            while faults.calls(Call::Renew) == before {
                sleep(MOMENT).await;
            }
        };
        timeout(LONG, renewed).await.expect("in time");
        drop(next);
    }
}

#[tokio::test(start_paused = true)]
async fn waker_that_panics_at_the_end_of_a_lease_keeps_no_name() {
    type End = fn(Lease) -> Pin<Box<dyn Future<Output = Result<()>>>>;
    let ends: [End; 3] = [
        |lease| Box::pin(async move { lease.unlock().await }),
        |lease| Box::pin(async move { lease.unlock_now().await }),
        |lease| {
            drop(lease);
            Box::pin(std::future::ready(Ok(())))
        },
    ];
    for end in ends {
        let setup = Setup::new();
        let lease = setup.leases.lock("n").lock().await.expect("free");
        let token = lease.cancellation_token();
        let mut fires = Box::pin(token.cancelled());
        let waker = Waker::from(Arc::new(Bomb));
        assert!(fires.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        end(lease).await.expect("released");
        settle().await;
        drop(setup.other().lock("n").try_lock().await.expect("no error").expect("free"));
        assert!(setup.leases.holdings().is_empty());
    }
    // A reader that becomes the writer: its first token fires, too.
    let setup = Setup::new();
    let mut prices = setup.leases.rw_lock("n");
    let page = prices.read().await.expect("free");
    let token = page.cancellation_token();
    let mut fires = Box::pin(token.cancelled());
    let waker = Waker::from(Arc::new(Bomb));
    assert!(fires.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    drop(page.try_upgrade().await.expect("no error"));
    settle().await;
    drop(setup.other().rw_lock("n").try_write().await.expect("no error").expect("free"));
}

/// The runtime of its first poll stands still from then on, and so do the timers that were made there.
#[test]
fn campaign_that_moves_to_another_runtime_leads() {
    let ttl = T / 4;
    let (first, second) = (runtime(), runtime());
    let builder = LeaseManager::builder().ttl(ttl);
    let setup = first.block_on(async { Setup::with(builder) });
    let held = first.block_on(setup.held_elsewhere("n"));
    let election = setup.leases.election("n");
    let mut campaign = Box::pin(async move {
        let leader = election.candidate("me").campaign().await.expect("free");
        leader.check().expect("held");
    });
    let still = Runtimes::new_current_thread().enable_all().build().expect("a runtime");
    assert!(still.block_on(async { poll_once(campaign.as_mut()).await.is_pending() }));
    let leads = second.spawn(campaign);
    second.block_on(async {
        sleep(2 * ttl).await;
        held.unlock().await.expect("held");
        timeout(LONG, leads).await.expect("in time").expect("no panic");
    });
    assert_eq!(setup.leases.stats().lost, 0);
}

#[test]
fn stream_of_a_view_goes_on_at_another_runtime() {
    let (_first, second, setup) = setup();
    let mut view = second.block_on(async { setup.leases.election("n").observe() });
    let next = async |view: &mut View| poll_fn(|cx| Pin::new(&mut *view).poll_next(cx)).await;
    // It waits at a runtime that ends.
    let third = runtime();
    third.block_on(async {
        let is_led =
            async { while next(&mut view).await.is_some_and(|leader| leader.holder.is_none()) {} };
        timeout(Duration::from_millis(100), is_led).await.expect_err("there is no leader");
    });
    drop(third);
    second.block_on(async {
        // No change is there to be returned at once.
        assert!(poll_once(pin!(next(&mut view))).await.is_pending());
        let mut candidate = setup.leases.election("n").candidate("v");
        let leads = candidate.campaign().await.unwrap();
        let is_seen = async {
            while next(&mut view).await.and_then(|leader| leader.term) != leads.fence() {}
        };
        timeout(LONG, is_seen).await.expect("the stream goes on");
    });
}
