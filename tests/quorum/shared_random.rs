//! Random stories of readers and writers in several processes, at nodes whose requests are lost, late or without an answer,
//! and which restart empty. What each of them believes is checked all the time.

use super::fates::{FATES, Fate, Fated, TTL, process};
use super::*;
use leasehold::{ReadLease, Upgraded, WriteLease};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use tokio::task::LocalSet;

/// A small random number generator.
#[derive(Clone)]
struct Chance(u64);

impl Chance {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }

    fn millis(&mut self, limit: u64) -> Duration {
        Duration::from_millis(self.below(limit))
    }
}

enum Guard {
    Reads(ReadLease),
    Writes(WriteLease),
}

/// What each flow of control has.
#[derive(Clone, Default)]
struct Board {
    guards: Rc<RefCell<HashMap<usize, Guard>>>,
    /// How many reads, writes, downgrades, upgrades and refused upgrades there were, and pairs of readers.
    counts: Rc<RefCell<[usize; 6]>>,
}

impl Board {
    fn put(&self, me: usize, guard: Guard, count: usize) {
        self.guards.borrow_mut().insert(me, guard);
        self.counts.borrow_mut()[count] += 1;
        self.check();
    }

    fn take(&self, me: usize) -> Option<Guard> {
        self.guards.borrow_mut().remove(&me)
    }

    /// A believed writer is alone.
    fn check(&self) {
        let guards = self.guards.borrow();
        let (mut readers, mut writers) = (0, 0);
        for guard in guards.values() {
            match guard {
                Guard::Reads(page) => readers += usize::from(page.check().is_ok()),
                Guard::Writes(edit) => writers += usize::from(edit.check().is_ok()),
            }
        }
        assert!(writers == 0 || writers + readers == 1, "{readers} readers, {writers} writers");
        self.counts.borrow_mut()[5] += usize::from(readers > 1);
    }
}

async fn live(me: usize, leases: LeaseManager, board: Board, mut chance: Chance) {
    let mut lock = leases.rw_lock("job");
    for _ in 0..8 {
        sleep(chance.millis(300)).await;
        // A call may be given up at any moment.
        let patience = chance.millis(900);
        if chance.below(3) == 0 {
            match tokio::time::timeout(patience, lock.write()).await {
                Ok(Ok(edit)) => board.put(me, Guard::Writes(edit), 1),
                _ => continue,
            }
        } else {
            match tokio::time::timeout(patience, lock.read()).await {
                Ok(Ok(page)) => board.put(me, Guard::Reads(page), 0),
                _ => continue,
            }
        }
        for _ in 0..chance.below(4) {
            sleep(chance.millis(400)).await;
            match board.take(me) {
                Some(Guard::Writes(edit)) => match edit.downgrade().await {
                    Ok(page) => board.put(me, Guard::Reads(page), 2),
                    Err(_) => break,
                },
                Some(Guard::Reads(page)) => match page.try_upgrade().await {
                    Ok(Upgraded::Write(edit)) => board.put(me, Guard::Writes(edit), 3),
                    Ok(Upgraded::Read(page)) => board.put(me, Guard::Reads(page), 4),
                    Err(_) => break,
                },
                None => break,
            }
        }
        sleep(chance.millis(400)).await;
        match board.take(me) {
            Some(Guard::Reads(page)) if chance.below(2) == 0 => drop(page.unlock().await),
            Some(Guard::Writes(edit)) if chance.below(2) == 0 => drop(edit.unlock().await),
            guard => drop(guard),
        }
    }
}

/// One story. Returns what happened in it.
fn story(seed: u64, count: usize) -> [usize; 6] {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().start_paused(true).build().expect("a runtime");
    let local = LocalSet::new();
    let story = async {
        let mut chance = Chance::new(seed);
        let nodes: Vec<MemoryStore> = (0..count).map(|_| MemoryStore::new()).collect();
        let board = Board::default();
        let harm = chance.below(40);
        let mut lives = Vec::new();
        for at in 0..3 {
            let ways: Vec<Fated> = nodes.iter().map(|node| Fated::of(node.clone())).collect();
            for way in &ways {
                for _ in 0..150 {
                    let fate = FATES[chance.below(4) as usize];
                    way.meet(if chance.below(100) < harm { fate } else { Fate::Runs });
                }
            }
            let leases = process(&ways);
            for flow in 0..2 {
                let seed = Chance::new(seed * 100 + at * 10 + flow);
                let me = (at * 2 + flow) as usize;
                lives.push(tokio::task::spawn_local(live(me, leases.clone(), board.clone(), seed)));
            }
        }
        let watching = tokio::task::spawn_local({
            let board = board.clone();
            async move {
                loop {
                    board.check();
                    sleep(Duration::from_millis(5)).await;
                }
            }
        });
        if chance.below(2) == 0 {
            // One at a time, with T and a renewal between them.
            for _ in 0..2 {
                sleep(chance.millis(800)).await;
                nodes[chance.below(count as u64) as usize].restart();
                sleep(TTL * 3 / 2).await;
            }
        }
        for life in lives {
            life.await.unwrap_or_else(|panic| panic!("seed {seed}: {panic}"));
        }
        assert!(!watching.is_finished(), "seed {seed}");
        watching.abort();
        sleep(TTL * 3).await;
        for node in &nodes {
            assert!(node.is_empty(), "seed {seed}: left behind");
        }
        let ways: Vec<Fated> = nodes.iter().map(|node| Fated::of(node.clone())).collect();
        let again = process(&ways).rw_lock("job").try_write().await;
        assert!(matches!(again, Ok(Some(_))), "seed {seed}: {again:?}");
        *board.counts.borrow()
    };
    runtime.block_on(local.run_until(story))
}

fn stories(count: usize, seeds: std::ops::Range<u64>) {
    let seeds = match std::env::var("LEASEHOLD_SEED") {
        Ok(seed) => {
            let seed: u64 = seed.parse().expect("a number");
            seed..seed + 1
        }
        Err(_) => seeds,
    };
    let mut all = [0; 6];
    for seed in seeds.clone() {
        let counts = story(seed, count);
        all.iter_mut().zip(counts).for_each(|(all, count)| *all += count);
    }
    println!(
        "reads, writes, downgrades, upgrades, refused ones, moments with several readers: {all:?}"
    );
    // A story has one upgrade on average, so that twenty never have none (e^-20).
    assert!(seeds.end - seeds.start == 1 || all.iter().all(|count| *count > 0), "{all:?}");
}

#[test]
fn random_stories_on_three_nodes_keep_writers_alone() {
    stories(3, 0..60);
}

#[test]
fn random_stories_on_four_nodes_keep_writers_alone() {
    stories(4, 1_000..1_020);
}

#[test]
fn random_stories_on_five_nodes_keep_writers_alone() {
    stories(5, 2_000..2_030);
}
