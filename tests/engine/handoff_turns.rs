//! Crowds that never rest: other processes get their turn all the same, and whatever happens at the same
//! time, there is one holder.

use super::*;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Tasks of one process that lock "n" again and again, each holding it for a while.
struct Callers {
    tasks: JoinSet<()>,
    turns: Arc<AtomicUsize>,
}

impl Callers {
    fn gather(leases: &LeaseManager, size: usize, hold: Duration) -> Self {
        let mut callers = Self { tasks: JoinSet::new(), turns: Arc::default() };
        for _ in 0..size {
            let (mut lock, turns) = (leases.lock("n"), Arc::clone(&callers.turns));
            callers.tasks.spawn(async move {
                for round in 0.. {
                    let lease = lock.lock().await.unwrap();
                    turns.fetch_add(1, Ordering::Relaxed);
                    sleep(hold).await;
                    lease.check().unwrap();
                    if round % 2 == 0 {
                        drop(lease);
                    } else {
                        lease.unlock().await.unwrap();
                    }
                }
            });
        }
        callers
    }

    fn turns(&self) -> usize {
        self.turns.load(Ordering::Relaxed)
    }

    /// Ends it, unless one of it has failed before.
    async fn go(mut self) {
        if let Some(ended) = self.tasks.try_join_next() {
            ended.unwrap();
        }
        self.tasks.shutdown().await;
    }
}

#[test]
fn another_process_gets_in_after_the_bound_at_the_latest() {
    for bound in [0, 3, 127] {
        watched(move || async move {
            let setup = Setup::with(LeaseManager::builder().max_local_handoffs(bound));
            let callers = Callers::gather(&setup.leases, 10, MOMENT);
            let mut theirs = setup.other().lock("n");
            let mut last = None;
            for round in 1..=20 {
                // Not always at the same place of a chain.
                sleep(round * 7 * MOMENT).await;
                let before = callers.turns();
                let (took, lease) = timed(theirs.lock()).await;
                let lease = lease.unwrap();
                let ahead = callers.turns() - before;
                assert!(ahead <= bound as usize + 1, "{ahead} went first with a bound of {bound}");
                assert!(took <= (bound + 2) * 2 * MOMENT, "{took:?}");
                assert!(lease.fence() > last);
                last = lease.fence();
                lease.unlock().await.unwrap();
            }
            assert!(callers.turns() > 400, "{} turns", callers.turns());
            callers.go().await;
            settle().await;
            assert!(setup.memory.is_empty());
        });
    }
}

#[test]
fn process_elsewhere_enters_after_a_tenth_of_the_ttl_at_latest() {
    watched(async || {
        let hold = T / 70;
        let setup = Setup::with(LeaseManager::builder().max_local_handoffs(9_999));
        let callers = Callers::gather(&setup.leases, 10, hold);
        let mut theirs = setup.other().lock("n");
        for round in 0..20 {
            sleep(round * T / 50).await;
            let (took, lease) = timed(theirs.lock()).await;
            // The chain that it met, and the last holder of it.
            assert!(took <= T / 10 + hold + 5 * MOMENT, "{took:?}");
            lease.unwrap().unlock().await.unwrap();
        }
        callers.go().await;
    });
}

#[test]
fn callers_of_two_processes_take_turns() {
    watched(async || {
        let setup = Setup::with(LeaseManager::builder().max_local_handoffs(7));
        let other =
            LeaseManager::builder().max_local_handoffs(7).build(setup.memory.clone()).unwrap();
        let hold = 3 * MOMENT;
        let here = Callers::gather(&setup.leases, 5, hold);
        let there = Callers::gather(&other, 5, hold);
        sleep(T).await;
        let (ours, theirs) = (here.turns(), there.turns());
        assert!(ours.abs_diff(theirs) <= (ours + theirs) / 10, "{ours} and {theirs}");
        // A chain has seven holders: after 20 ms all waiters that were there at its grant have been served.
        let asked = setup.calls(Call::Acquire);
        assert!(asked <= 3 * ours / 7 + 10, "{asked} requests for {ours} turns");
        here.go().await;
        there.go().await;
    });
}

#[test]
fn one_task_that_locks_again_at_once_keeps_nobody_out() {
    for drops in [false, true] {
        watched(move || async move {
            let setup = Setup::new();
            let mut lease = setup.leases.lock("n").lock().await.unwrap();
            for _ in 0..10 {
                let mut theirs = setup.other().lock("n");
                let waiter = tokio::spawn(async move { drop(theirs.lock().await.unwrap()) });
                settle().await;
                let mut rounds = 0;
                while !waiter.is_finished() {
                    rounds += 1;
                    assert!(rounds <= 2, "it was faster {rounds} times, by a drop: {drops}");
                    if drops {
                        drop(lease);
                    } else {
                        lease.unlock().await.unwrap();
                    }
                    lease = setup.leases.lock("n").lock().await.unwrap();
                }
                waiter.await.unwrap();
            }
        });
    }
}

#[tokio::test(start_paused = true)]
async fn waiter_that_yields_can_still_give_up_in_time() {
    let setup = Setup::new();
    // A slow way to the store makes for a long wait.
    let slow = Duration::from_millis(100);
    setup.faults.add(Rule::new(Fault::Delay(slow)).on(Call::Release));
    let lease = setup.leases.lock("n").lock().await.unwrap();
    let mut theirs = setup.other().lock("n");
    let theirs = tokio::spawn(async move { theirs.lock().await.unwrap() });
    settle().await;
    lease.unlock().await.unwrap();
    for limit in [MOMENT, slow] {
        let (took, none) = timed(setup.leases.lock("n").lock_timeout(limit)).await;
        assert!(none.unwrap().is_none());
        assert!(took <= limit, "{took:?}");
    }
    drop(theirs.await.unwrap());
    let (took, lease) = timed(setup.leases.lock("n").lock()).await;
    lease.unwrap().check().unwrap();
    assert!(took <= 2 * slow, "{took:?}");
}

/// The flows of one process that believe to hold the name, in real time.
#[derive(Default)]
struct Watch {
    /// How often a task began, and ended, to force the lock open.
    begun: AtomicUsize,
    ended: AtomicUsize,
    inside: Mutex<Vec<(usize, usize, CancellationToken)>>,
    visits: AtomicUsize,
    /// Whether the lock is forced open in another process.
    elsewhere: bool,
    /// The visits from whose asking to their end nobody forced anything.
    undisturbed: AtomicUsize,
}

impl Watch {
    async fn force(&self, leases: &LeaseManager) {
        self.begun.fetch_add(1, Ordering::SeqCst);
        leases.force_unlock("n", "test").await.unwrap();
        self.ended.fetch_add(1, Ordering::SeqCst);
    }

    /// To be asked before the lock is.
    fn ended(&self) -> usize {
        self.ended.load(Ordering::SeqCst)
    }

    fn forced_since(&self, ended: usize) -> bool {
        self.begun.load(Ordering::SeqCst) != ended
    }

    async fn visit(&self, lease: &Lease, since: usize) {
        let id = self.visits.fetch_add(1, Ordering::SeqCst);
        let token = lease.cancellation_token();
        {
            let mut inside = self.inside.lock().unwrap();
            for (_, since, other) in inside.iter() {
                let believes = !other.is_cancelled() && !self.forced_since(*since);
                assert!(!believes || token.is_cancelled(), "two believe to be alone");
            }
            inside.push((id, since, token));
        }
        tokio::task::yield_now().await;
        self.inside.lock().unwrap().retain(|(other, ..)| *other != id);
        let check = lease.check();
        if !self.forced_since(since) {
            match check {
                Ok(()) => drop(self.undisturbed.fetch_add(1, Ordering::SeqCst)),
                // Another process forced it open, and said so at once. A later note replaces an earlier one.
                Err(error) => {
                    let loss = error.loss();
                    assert!(self.elsewhere, "nobody took it away: {loss:?}");
                    assert!(
                        matches!(loss, Some(Loss::Revoked | Loss::Taken | Loss::Gone)),
                        "{loss:?}"
                    );
                }
            }
        }
    }
}

/// Locks again and again until it is stopped, or the manager is closed.
async fn wander(leases: LeaseManager, watch: Arc<Watch>, over: Arc<AtomicBool>) {
    let mut lock = leases.lock("n");
    for round in 0.. {
        if over.load(Ordering::SeqCst) {
            return;
        }
        let since = watch.ended();
        let lease = match lock.lock().await {
            Ok(lease) => lease,
            Err(error) if error.kind() == ErrorKind::Closed => return,
            Err(error) => panic!("{error:?}"),
        };
        watch.visit(&lease, since).await;
        if round % 2 == 0 {
            drop(lease);
        } else if let Err(error) = lease.unlock().await {
            assert_eq!(error.kind(), ErrorKind::Lost, "{error:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn hand_offs_without_rest_while_a_lock_is_forced_open() {
    let setup = Setup::with(LeaseManager::builder().max_local_handoffs(50));
    let over = Arc::new(AtomicBool::new(false));
    let mut tasks = JoinSet::new();
    // What is forced open here is not known to the other process, nor to whom it passes it on there.
    let [watch, elsewhere] =
        [false, true].map(|elsewhere| Arc::new(Watch { elsewhere, ..Watch::default() }));
    let other = setup.other();
    for i in 0..8 {
        let (leases, watch) = if i < 5 { (&setup.leases, &watch) } else { (&other, &elsewhere) };
        tasks.spawn(wander(leases.clone(), Arc::clone(watch), Arc::clone(&over)));
    }
    for _ in 0..300 {
        watch.force(&setup.leases).await;
        sleep(MOMENT).await;
    }
    over.store(true, Ordering::SeqCst);
    let all = async {
        while let Some(task) = tasks.join_next().await {
            task.unwrap();
        }
    };
    tokio::time::timeout(Duration::from_secs(20), all).await.expect("somebody hangs");
    for watch in [watch, elsewhere] {
        let (visits, undisturbed) = (&watch.visits, &watch.undisturbed);
        assert!(undisturbed.load(Ordering::SeqCst) > 300, "{undisturbed:?} of {visits:?}");
    }
    setup.leases.close().await.unwrap();
    other.close().await.unwrap();
    assert!(setup.memory.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn close_amid_hand_offs_without_rest_leaves_nothing() {
    let setup = Setup::new();
    for round in 0..40 {
        let leases = setup.other();
        let (watch, over) = (Arc::new(Watch::default()), Arc::new(AtomicBool::new(false)));
        let mut tasks = JoinSet::new();
        for _ in 0..6 {
            tasks.spawn(wander(leases.clone(), Arc::clone(&watch), Arc::clone(&over)));
        }
        sleep(Duration::from_micros(200 * round)).await;
        // The holder learns of a loss by the closing, and disturbs no other holder.
        watch.begun.fetch_add(1, Ordering::SeqCst);
        let (took, result) = timed(leases.close()).await;
        result.unwrap();
        assert!(took < GRACE / 2, "{took:?}: somebody did not let go");
        let all = async {
            while let Some(task) = tasks.join_next().await {
                task.unwrap();
            }
        };
        tokio::time::timeout(Duration::from_secs(20), all).await.expect("somebody hangs");
        assert!(setup.memory.is_empty(), "round {round}");
    }
}

/// A call that is polled once and dropped takes the name again and again, and never waits.
#[tokio::test(start_paused = true)]
async fn grant_that_no_call_took_goes_to_a_waiter_elsewhere() {
    let setup = Setup::new();
    let mut lock = setup.leases.lock("n");
    setup.faults.add(Rule::new(Fault::HoldReply).on(Call::Acquire).times(1));
    assert!(poll_once(Box::pin(lock.lock()).as_mut()).await.is_pending());
    let other = setup.other();
    let theirs = tokio::spawn(async move { other.lock("n").lock().await });
    settle().await;
    setup.faults.heal();
    setup.faults.until_calls(Call::Release, 1).await;
    let asked = setup.calls(Call::Acquire);
    assert!(poll_once(Box::pin(lock.lock()).as_mut()).await.is_pending());
    assert_eq!(setup.calls(Call::Acquire), asked, "it waits for its turn");
    let (took, theirs) = timed(theirs).await;
    assert_eq!(took, Duration::ZERO);
    theirs.expect("no panic").expect("its turn").unlock().await.expect("held");
}
