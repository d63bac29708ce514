//! Many tasks on many threads lock, nest, give up, drop and unlock at random: there are never two
//! holders, and nothing is left in the end. In real time.

use super::*;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Waker};

const TASKS: u64 = 12;
const ROUNDS: u64 = 200;

/// Numbers that look random, the same in each run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % sides
    }
}

#[derive(Default)]
struct Room {
    taken: AtomicBool,
    last_fence: AtomicU64,
    entered: AtomicU64,
}

impl Room {
    /// What a lease is for: alone from here to the end, and later than all before.
    async fn visit(&self, lease: &Lease, dice: &mut Dice) {
        assert!(!self.taken.swap(true, Ordering::SeqCst), "two inside");
        let fence = lease.fence().expect("a fence");
        let last = self.last_fence.swap(fence, Ordering::SeqCst);
        assert!(fence > last, "{fence} after {last}");
        for _ in 0..dice.roll(3) {
            tokio::task::yield_now().await;
        }
        self.entered.fetch_add(1, Ordering::SeqCst);
        lease.check().unwrap();
        self.taken.store(false, Ordering::SeqCst);
    }
}

async fn visitor(leases: LeaseManager, room: Arc<Room>, mut dice: Dice) {
    let mut lock = leases.lock("room");
    for _ in 0..ROUNDS {
        let lease = match dice.roll(4) {
            0 => lock.try_lock().await.unwrap(),
            1 => match lock.lock_timeout(Duration::from_micros(dice.roll(500))).await {
                // Less than a round trip: the store has not answered by then.
                Err(error) if error.kind() == ErrorKind::Unavailable => None,
                result => result.unwrap(),
            },
            2 => {
                // Given up at any await.
                let patience = Duration::from_micros(dice.roll(300));
                tokio::time::timeout(patience, lock.lock()).await.ok().transpose().unwrap()
            }
            _ => Some(lock.lock().await.unwrap()),
        };
        let Some(outer) = lease else { continue };
        room.visit(&outer, &mut dice).await;
        if dice.roll(3) == 0 {
            let inner = lock.lock().await.unwrap();
            assert_eq!((inner.hold_count(), inner.fence()), (2, outer.fence()));
            if dice.roll(2) == 0 {
                drop(inner);
            } else {
                inner.unlock().await.unwrap();
            }
        }
        match dice.roll(3) {
            0 => drop(outer),
            1 => std::thread::spawn(move || drop(outer)).join().unwrap(),
            _ => outer.unlock().await.unwrap(),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn never_two_inside_and_nothing_left() {
    let setup = Setup::new();
    // The others have a faster way to the store.
    setup.faults.add(Rule::new(Fault::Delay(MOMENT)));
    let processes = [setup.leases.clone(), setup.other(), setup.other()];
    let room = Arc::new(Room::default());
    let mut visitors = tokio::task::JoinSet::new();
    for (seed, leases) in (0..TASKS).zip(processes.iter().cycle()) {
        visitors.spawn(visitor(leases.clone(), Arc::clone(&room), Dice(seed)));
    }
    while let Some(visitor) = visitors.join_next().await {
        visitor.unwrap();
    }
    assert!(room.entered.load(Ordering::SeqCst) > TASKS * ROUNDS / 4);
    for leases in processes {
        leases.close().await.unwrap();
    }
    assert!(setup.memory.is_empty());
}

/// The turn comes to those who leave in that very moment, on another thread, and must come past them.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn turn_is_not_lost_on_those_who_leave_as_it_comes() {
    let leases = LeaseManager::in_memory();
    let over = Arc::new(AtomicBool::new(false));
    let mut leaving = Vec::new();
    for _ in 0..3 {
        let (mut lock, over) = (leases.lock("n"), Arc::clone(&over));
        leaving.push(tokio::task::spawn_blocking(move || {
            let mut cx = Context::from_waker(Waker::noop());
            while !over.load(Ordering::Relaxed) {
                let mut waiter = pin!(lock.lock());
                drop(waiter.as_mut().poll(&mut cx));
            }
        }));
    }
    let mut lock = leases.lock("n");
    let passing = async {
        for _ in 0..3000 {
            lock.lock().await.unwrap().unlock().await.unwrap();
        }
    };
    let passed = tokio::time::timeout(Duration::from_secs(120), passing).await;
    over.store(true, Ordering::Relaxed);
    for thread in leaving {
        thread.await.unwrap();
    }
    passed.expect("a turn was lost");
    leases.close().await.unwrap();
}

/// What is ready at once, in a loop: each of these must let others of its thread run now and then.
#[tokio::test(start_paused = true)]
async fn calls_that_are_ready_at_once_yield_now_and_then() {
    let leases = LeaseManager::in_memory();
    let mut lock = leases.lock("n");
    let mut nested = leases.lock("held");
    let held = nested.lock().await.unwrap();
    let over = Arc::new(AtomicBool::new(false));
    for kind in 0..9 {
        over.store(false, Ordering::Relaxed);
        let flag = Arc::clone(&over);
        tokio::spawn(async move { flag.store(true, Ordering::Relaxed) });
        let mut rounds = 0;
        while !over.load(Ordering::Relaxed) {
            match kind {
                0 => lock.lock().await.unwrap().unlock().await.unwrap(),
                1 => drop(lock.lock().await.unwrap()),
                2 => lock.with(async |_, _| ()).await.unwrap(),
                3 => assert!(leases.lock("held").try_lock().await.unwrap().is_none()),
                4 => nested.lock().await.unwrap().unlock().await.unwrap(),
                5 => held.ensure_remaining(MOMENT).await.unwrap(),
                6 => held.run(async {}).await.unwrap(),
                7 => drop(leases.inspect("held").await.unwrap()),
                _ => drop(leases.force_unlock("other", "test").await.unwrap()),
            }
            rounds += 1;
            assert!(rounds < 1000, "call {kind} keeps the thread to itself");
        }
    }
}
