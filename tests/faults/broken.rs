//! A waker of a caller panics where an answer is delivered: in a task that serves others, too.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};

use kit::fault::{LONG, connect, lock, millis};
use kit::{Server, eventually, within};
use leasehold::LeaseManager;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Panics whenever it is woken.
struct Panics(Arc<AtomicUsize>);

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
        // Without the panic hook, whose backtraces would keep the processors from other tests.
        std::panic::resume_unwind(Box::new("a waker"));
    }
}

/// Polls some calls once, at the same time, and keeps them until the answers have met their wakers.
async fn poll_with_panics(leases: &LeaseManager, calls: usize) {
    let woken = Arc::default();
    let waker = Waker::from(Arc::new(Panics(Arc::clone(&woken))));
    let mut round = 0;
    loop {
        round += 1;
        let name = |call| format!("struck {round} {call}");
        let mut locks: Vec<_> = (0..calls).map(|call| leases.lock(name(call))).collect();
        let mut pending: Vec<Pin<Box<dyn Future<Output = _> + Send>>> = Vec::new();
        for lock in &mut locks {
            pending.push(Box::pin(lock.try_lock()));
        }
        // If this thread is held up in its poll, the answer can be there at once.
        pending
            .retain_mut(|call| call.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        if pending.len() == calls {
            eventually(LONG, || woken.load(Ordering::SeqCst) > 0).await;
            return;
        }
    }
}

/// Everything works again soon: lone calls, and those that leave together.
async fn everything_works(leases: &LeaseManager, round: usize) {
    let mut granted = false;
    for _ in 0..200 {
        let mut lock = leases.lock(format!("lone {round}"));
        let tried = within(LONG, lock.try_lock()).await;
        granted = matches!(tried, Ok(Some(_)));
        if granted {
            break;
        }
        sleep(millis(20)).await;
    }
    assert!(granted, "round {round}: nothing is granted any more");
    let mut calls = JoinSet::new();
    for n in 0..30 {
        let mut lock = leases.lock(format!("many {round} {n}"));
        calls.spawn(async move { within(LONG, lock.lock()).await.map(drop) });
    }
    for answer in calls.join_all().await {
        answer.expect("a lease");
    }
}

async fn strike(calls: usize) {
    let server = Server::start();
    let leases = connect(&server.url(), millis(5_000)).await;
    let held = lock(&leases, "job").await;
    // The connection of this runtime is there.
    let own = || server.command(&["CLIENT", "LIST"]).text().lines().count() >= 5;
    eventually(LONG, own).await;
    for round in 0..3 {
        poll_with_panics(&leases, calls).await;
        everything_works(&leases, round).await;
    }
    held.check().expect("it was kept");
    assert!(leases.health().is_live());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waker_that_panics_at_a_lone_answer_costs_no_connection() {
    strike(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wakers_that_panic_at_answers_of_a_batch_harm_no_other() {
    strike(20).await;
}
