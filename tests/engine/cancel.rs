//! Dropping any future at any await leaves neither a lease nor a place in the queue behind.

use super::*;
use leasehold::store::{Acquire, HolderId, Name, Release, Released, Store, Target};
use uuid::Uuid;

const TICK: Duration = Duration::from_millis(10);

/// What the store is like while a future is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weather {
    Fair,
    /// Every call takes a while, so that there are many awaits to be dropped at.
    Slow,
    /// The first reply to each kind of call is lost.
    Lossy,
    /// The first acquire runs ten seconds after its caller got the error that the store does not answer.
    Haunted,
}

impl Weather {
    const ALL: [Self; 4] = [Self::Fair, Self::Slow, Self::Lossy, Self::Haunted];

    fn set_in(self, faults: &Faults) {
        if self != Self::Fair {
            faults.add(Rule::new(Fault::Delay(TICK)));
        }
        match self {
            Self::Fair | Self::Slow => {}
            Self::Lossy => {
                for call in [Call::Acquire, Call::Release, Call::Subscribe, Call::Renew] {
                    faults.add(Rule::new(Fault::LoseReply).on(call).times(1));
                }
            }
            Self::Haunted => faults.add(Rule::new(Fault::RunLate).on(Call::Acquire).times(1)),
        }
    }
}

/// When a future is dropped.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    /// After so many polls.
    pub(super) polls: usize,
    /// Not right after the last of them, but when it has been woken for the next.
    woken: bool,
}

impl Cut {
    /// The output, if the future was faster.
    pub(super) async fn run<F: Future>(self, future: F) -> Option<F::Output> {
        let mut future = Box::pin(future);
        let mut left = self.polls;
        poll_fn(move |cx| {
            if left == 0 {
                return Poll::Ready(None);
            }
            left -= 1;
            match future.as_mut().poll(cx) {
                Poll::Ready(output) => Poll::Ready(Some(output)),
                Poll::Pending if left == 0 && !self.woken => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            }
        })
        .await
    }
}

/// Runs a story again and again, cutting it one await later each time, until it says that its
/// future was faster than the cut. After each the name "n" must be free.
pub(super) async fn at_every_await(story: impl AsyncFn(&Setup, Cut) -> bool) {
    at_every_await_in(&Weather::ALL, story).await;
}

async fn at_every_await_in(weathers: &[Weather], story: impl AsyncFn(&Setup, Cut) -> bool) {
    let enters = async |leases: &LeaseManager| leases.lock("n").lock_timeout(T).await;
    at_every_await_until(weathers, enters, story).await;
}

/// The same with other locks than the plain one, which others enter by `enters`.
pub(super) async fn at_every_await_of(
    enters: impl AsyncFn(&LeaseManager) -> Result<Option<Lease>>,
    story: impl AsyncFn(&Setup, Cut) -> bool,
) {
    at_every_await_until(&Weather::ALL, enters, story).await;
}

async fn at_every_await_until(
    weathers: &[Weather],
    enters: impl AsyncFn(&LeaseManager) -> Result<Option<Lease>>,
    story: impl AsyncFn(&Setup, Cut) -> bool,
) {
    for &weather in weathers {
        for woken in [false, true] {
            let mut cut = Cut { polls: 0, woken };
            loop {
                let setup = Setup::new();
                weather.set_in(&setup.faults);
                let faster = story(&setup, cut).await;
                let context = format!("{weather:?}, {cut:?}");
                if weather == Weather::Haunted {
                    sleep(Duration::from_secs(10)).await;
                    setup.faults.heal();
                    // Its token is released every T/10.
                    sleep(T / 10).await;
                }
                expect_entry(&setup, &enters, &context).await;
                if faster {
                    break;
                }
                cut.polls += 1;
                assert!(cut.polls < 1000, "it never ends: {context}");
            }
            let dropped_at_an_await = cut.polls > 1;
            assert!(weather != Weather::Slow || dropped_at_an_await, "nothing was tried out");
        }
    }
}

/// Others get in soon, then we do again, and in the end nothing is left.
pub(super) async fn expect_free(setup: &Setup, context: &str) {
    let enters = async |leases: &LeaseManager| leases.lock("n").lock_timeout(T).await;
    expect_entry(setup, &enters, context).await;
}

async fn expect_entry(
    setup: &Setup,
    enters: &impl AsyncFn(&LeaseManager) -> Result<Option<Lease>>,
    context: &str,
) {
    for leases in [&setup.other(), &setup.leases] {
        let (took, lease) = timed(enters(leases)).await;
        match lease {
            Ok(Some(lease)) => lease.unlock().await.expect("it was ours"),
            Err(error) if error.kind() == ErrorKind::Closed => {}
            other => panic!("{other:?} after {context}"),
        }
        // A poll, when the subscription was lost, and a release that is tried again.
        assert!(took < Duration::from_secs(2), "{took:?} after {context}");
    }
    sleep(T).await;
    assert!(setup.memory.is_empty(), "{context}");
    assert_eq!(listeners(&setup.memory).await, 0, "{context}");
    let renewals = setup.calls(Call::Renew);
    sleep(T).await;
    assert_eq!(setup.calls(Call::Renew), renewals, "somebody is renewed still, {context}");
}

/// How many listen for wake-ups on the name "n".
async fn listeners(memory: &MemoryStore) -> u64 {
    let target = Target::exclusive(Name::new("n").unwrap());
    let holder = HolderId::new(Uuid::nil(), 0);
    memory.acquire(Acquire::new(target.clone(), holder, T, T)).await.unwrap();
    match memory.release(Release::new(target, holder, 0, T)).await.unwrap() {
        Released::Done { listeners, .. } => listeners,
        other => panic!("{other:?}"),
    }
}

/// Another process has the name for a while.
pub(super) async fn busy_elsewhere(setup: &Setup) {
    let lease = setup.held_elsewhere("n").await;
    tokio::spawn(async move {
        sleep(TICK * 10).await;
        drop(lease);
    });
}

/// Another handle of the same process has the name for a while.
pub(super) async fn busy_here(setup: &Setup) {
    let lease = setup.leases.lock("n").lock().await.expect("free");
    tokio::spawn(async move {
        sleep(TICK * 10).await;
        drop(lease);
    });
}

#[tokio::test(start_paused = true)]
async fn lock() {
    at_every_await(async |setup, cut| cut.run(setup.leases.lock("n").lock()).await.is_some()).await;
}

#[tokio::test(start_paused = true)]
async fn lock_while_another_process_holds() {
    at_every_await(async |setup, cut| {
        busy_elsewhere(setup).await;
        cut.run(setup.leases.lock("n").lock()).await.is_some()
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn lock_while_another_handle_holds() {
    at_every_await(async |setup, cut| {
        busy_here(setup).await;
        cut.run(setup.leases.lock("n").lock()).await.is_some()
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn lock_with_others_behind_in_the_line() {
    at_every_await(async |setup, cut| {
        busy_here(setup).await;
        let mut lock = setup.leases.lock("n");
        let mut cut_off = Box::pin(cut.run(lock.lock()));
        let started = poll_once(cut_off.as_mut()).await;
        let mut behind = setup.leases.lock("n");
        let behind = tokio::spawn(async move { behind.lock_timeout(T).await });
        let faster = match started {
            Poll::Ready(output) => output.is_some(),
            Poll::Pending => cut_off.await.is_some(),
        };
        assert!(behind.await.unwrap().unwrap().is_some(), "{cut:?}");
        faster
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn try_lock() {
    at_every_await(async |setup, cut| cut.run(setup.leases.lock("n").try_lock()).await.is_some())
        .await;
}

#[tokio::test(start_paused = true)]
async fn try_lock_while_another_process_holds() {
    at_every_await(async |setup, cut| {
        busy_elsewhere(setup).await;
        cut.run(setup.leases.lock("n").try_lock()).await.is_some()
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn lock_timeout() {
    for limit in [0, 1, 4, 8, 12, 20] {
        at_every_await(async |setup, cut| {
            busy_elsewhere(setup).await;
            cut.run(setup.leases.lock("n").lock_timeout(TICK * limit)).await.is_some()
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn lock_again_while_the_own_release_is_under_way() {
    at_every_await(async |setup, cut| {
        let mut lock = setup.leases.lock("n");
        drop(lock.lock().await.unwrap());
        cut.run(lock.lock()).await.is_some()
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn unlock() {
    at_every_await(async |setup, cut| {
        let lease = setup.leases.lock("n").lock().await.unwrap();
        cut.run(lease.unlock()).await.is_some()
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn with() {
    at_every_await(async |setup, cut| {
        let mut lock = setup.leases.lock("n");
        let work = lock.with(async |lock, lease| {
            sleep(TICK).await;
            let inner = lock.lock().await.unwrap();
            assert_eq!(lease.hold_count(), 2);
            sleep(TICK).await;
            drop(inner);
        });
        cut.run(work).await.is_some()
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn run() {
    at_every_await(async |setup, cut| {
        let lease = setup.leases.lock("n").lock().await.unwrap();
        let work = async {
            for _ in 0..5 {
                sleep(TICK).await;
            }
        };
        let faster = cut.run(lease.run(work)).await.is_some();
        lease.check().unwrap();
        faster
    })
    .await;
}

#[test]
fn ensure() {
    watched(async || {
        at_every_await(async |setup, cut| {
            let lease = setup.leases.lock("n").lock().await.unwrap();
            setup.faults.add(Rule::new(Fault::Fail(unavailable())).on(Call::Renew));
            sleep(T / 2).await;
            setup.faults.heal();
            assert!(lease.remaining() < T / 2);
            let faster = cut.run(lease.ensure_remaining(T / 2)).await.is_some();
            lease.check().unwrap();
            faster
        })
        .await;
    });
}

#[tokio::test(start_paused = true)]
async fn force_unlock() {
    at_every_await(async |setup, cut| {
        let lease = setup.leases.lock("n").lock().await.unwrap();
        let faster = cut.run(setup.leases.force_unlock("n", "test")).await.is_some();
        if cut.polls > 0 {
            assert_eq!(lost(lease.check()), Loss::Revoked, "{cut:?}");
        }
        // It is unknown whether the name was released. The caller calls again to be sure.
        if !faster {
            setup.leases.force_unlock("n", "test").await.unwrap();
        }
        faster
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn close() {
    // What runs after the connection was closed can only expire.
    let weathers = [Weather::Fair, Weather::Slow, Weather::Lossy];
    at_every_await_in(&weathers, async |setup, cut| {
        let lease = setup.leases.lock("n").lock().await.unwrap();
        let faster = match cut.run(setup.leases.close()).await {
            Some(result) => {
                result.unwrap();
                true
            }
            None => false,
        };
        if cut.polls > 0 {
            assert_eq!(lost(lease.check()), Loss::Closed, "{cut:?}");
        }
        faster
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn abandoned_acquire_answered_later_is_released() {
    for fault in [Fault::Hang, Fault::HoldReply, Fault::RunLate] {
        let setup = Setup::new();
        let mut lock = setup.leases.lock("n");
        setup.faults.add(Rule::new(fault.clone()).on(Call::Acquire));
        let mut acquire = Box::pin(lock.lock());
        assert!(poll_once(acquire.as_mut()).await.is_pending());
        drop(acquire);
        sleep(Duration::from_secs(5)).await;
        setup.faults.heal();
        // At once where the answer is still awaited; where it was given up, every T/10.
        let patience = if matches!(fault, Fault::RunLate) { T / 10 } else { MOMENT };
        sleep(patience).await;
        assert_eq!(setup.recorded("n").await, None, "{fault:?}");
        expect_free(&setup, &format!("{fault:?}")).await;
    }
}

#[tokio::test(start_paused = true)]
async fn abandoned_hold_is_released_although_releases_fail_at_first() {
    let setup = Setup::new();
    setup.faults.add(Rule::new(Fault::LoseReply).on(Call::Acquire).times(1));
    setup.faults.add(Rule::new(Fault::Fail(unavailable())).on(Call::Release).times(3));
    let mut lock = setup.leases.lock("n");
    let mut acquire = Box::pin(lock.lock());
    assert!(poll_once(acquire.as_mut()).await.is_pending());
    drop(acquire);
    assert_eq!(setup.memory.len(), 1);
    let (took, lease) = timed(setup.other().lock("n").lock()).await;
    drop(lease.unwrap());
    assert!(took <= T / 10 * 3 + MOMENT, "{took:?}");
    assert!(setup.calls(Call::Release) >= 4);
}

#[tokio::test(start_paused = true)]
async fn abandoned_hold_is_released_right_after_a_reconnect() {
    let setup = Setup::new();
    setup.faults.add(Rule::new(Fault::RunLate).on(Call::Acquire).times(1));
    let mut lock = setup.leases.lock("n");
    let mut acquire = Box::pin(lock.lock());
    assert!(poll_once(acquire.as_mut()).await.is_pending());
    drop(acquire);
    sleep(T / 10 + T / 20).await;
    let releases = setup.calls(Call::Release);
    // What was held up on the old connection runs, and the new one is there.
    setup.faults.heal();
    settle().await;
    assert_eq!((setup.memory.len(), setup.calls(Call::Release)), (1, releases));
    setup.faults.reconnect();
    settle().await;
    assert!(setup.memory.is_empty());
}

#[tokio::test(start_paused = true)]
async fn waiter_that_gives_up_on_another_process_owes_nothing() {
    let setup = Setup::new();
    let theirs = setup.held_elsewhere("n").await;
    assert!(setup.leases.lock("n").lock_timeout(3 * T).await.unwrap().is_none());
    sleep(T).await;
    assert_eq!(setup.calls(Call::Release), 0);
    theirs.check().unwrap();
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_tasks_are_aborted_while_their_turns_come() {
    let setup = Setup::new();
    let lease = setup.leases.lock("n").lock().await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..10_000 {
        let mut lock = setup.leases.lock("n");
        tasks.spawn(async move { drop(lock.lock().await) });
    }
    settle().await;
    lease.unlock().await.unwrap();
    // Some have had their turn, one has it, the others wait.
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
    tasks.shutdown().await;
    expect_free(&setup, "ten thousand aborted tasks").await;
}
