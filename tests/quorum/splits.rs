//! Several processes ask at once and split the votes, and the rest of an own vote stays behind.

use super::*;
use leasehold::testing::Call;
use std::cell::Cell;

/// Each process has a node nearby, which grants to it first.
#[tokio::test(start_paused = true)]
async fn split_of_one_each_converges() {
    let mut splits = 0;
    for seed in 0..60u64 {
        let nodes = Nodes::new(3);
        let inside = Cell::new(0);
        let processes: Vec<_> = (0..3).map(|_| nodes.process()).collect();
        for (i, (_, faults)) in processes.iter().enumerate() {
            for (j, node) in faults.iter().enumerate() {
                let far = ((j + 3 - i) % 3) as u64;
                let delay = Duration::from_millis(far * (1 + seed % 20));
                node.add(Rule::new(Fault::Delay(delay)).on(Call::Acquire).on(Call::Release));
            }
        }
        let turn = |leases: LeaseManager| {
            let inside = &inside;
            async move {
                let lease = leases.lock("job").lock().await.expect("granted");
                inside.set(inside.get() + 1);
                assert_eq!(inside.get(), 1, "two holders");
                sleep(Duration::from_millis(10)).await;
                inside.set(inside.get() - 1);
                drop(lease);
            }
        };
        let all = async {
            tokio::join!(
                turn(processes[0].0.clone()),
                turn(processes[1].0.clone()),
                turn(processes[2].0.clone())
            )
        };
        let (time, _) = timed(all).await;
        assert!(time <= 2 * T, "seed {seed} took {time:?}");
        let calls: usize = processes.iter().map(|(_, faults)| faults[0].calls(Call::Acquire)).sum();
        splits += usize::from(calls > 6);
    }
    assert!(splits > 10, "only {splits} runs met a split");
}

#[tokio::test(start_paused = true)]
async fn split_of_five_converges() {
    for seed in 0..20u64 {
        let nodes = Nodes::new(5);
        let mut tasks = tokio::task::JoinSet::new();
        let start = Instant::now();
        for i in 0..5u64 {
            let (leases, faults) = nodes.process();
            for (j, node) in faults.iter().enumerate() {
                let far = (j as u64 + 5 - i) % 5;
                let delay = Duration::from_millis(far * (1 + seed));
                node.add(Rule::new(Fault::Delay(delay)).on(Call::Acquire));
            }
            tasks.spawn(async move { drop(leases.lock("job").lock().await.expect("granted")) });
        }
        tasks.join_all().await;
        assert!(start.elapsed() <= 2 * T, "seed {seed} took {:?}", start.elapsed());
    }
}

/// The release at node 3 failed; node 1 is down; the own key on node 3 must not stand in the way.
#[tokio::test(start_paused = true)]
async fn own_keys_never_vote_against_oneself() {
    let nodes = Nodes::new(3);
    let (leases, faults) = nodes.process();
    let lease = leases.lock("job").lock().await.expect("granted");
    faults[2].add(down().on(Call::Release).times(1));
    lease.unlock().await.expect("two of three release");
    assert_eq!(nodes.keys(), [0, 0, 1]);
    faults[0].add(down());
    let mut lock = leases.lock("job");
    let (time, again) = timed(lock.try_lock()).await;
    assert!(again.expect("two of three answer").is_some());
    assert_eq!(time, Duration::ZERO);
}

/// Attempts that fail must not stand in the way of the next of the same call.
#[tokio::test(start_paused = true)]
async fn attempt_that_lost_does_not_stand_in_the_way_of_the_next() {
    let nodes = Nodes::new(3);
    let (leases, faults) = nodes.process();
    // The reply of node 3 is lost in the first attempt, and the others are down for it.
    faults[0].add(down().on(Call::Acquire).times(1));
    faults[1].add(down().on(Call::Acquire).times(1));
    faults[2].add(Rule::new(Fault::LoseReply).on(Call::Acquire).times(1));
    let mut lock = leases.lock("job");
    let (time, lease) = timed(lock.lock()).await;
    drop(lease.expect("granted in the second attempt"));
    assert!(time < Duration::from_secs(2), "{time:?}");
    settle().await;
    assert!(nodes.free(), "{:?}", nodes.keys());
}

/// A release that was given up on runs late, after the next grant of the same call.
#[tokio::test(start_paused = true)]
async fn release_of_a_lost_attempt_does_not_undo_the_next_grant() {
    let nodes = Nodes::new(3);
    let (leases, faults) = nodes.process();
    faults[0].add(down().on(Call::Acquire).times(1));
    faults[1].add(down().on(Call::Acquire).times(1));
    faults[2].add(Rule::new(Fault::RunLate).on(Call::Release).times(1));
    let lease = leases.lock("job").lock().await.expect("granted in the second attempt");
    faults[2].heal();
    settle().await;
    assert_eq!(nodes.keys(), [1, 1, 1]);
    lease.check().expect("held");
}

/// Only one node's message arrives.
#[tokio::test(start_paused = true)]
async fn wake_up_from_any_node_wakes() {
    for node in 0..3 {
        let nodes = Nodes::new(3);
        let (here, _) = nodes.process();
        let (there, faults) = nodes.process();
        for (i, faults) in faults.iter().enumerate() {
            if i != node {
                faults.add(down().on(Call::Subscribe));
            }
        }
        let lease = here.lock("job").lock().await.expect("granted");
        let waiter = tokio::spawn(async move { there.lock("job").lock().await.map(drop) });
        faults[node].until_calls(Call::Acquire, 2).await;
        settle().await;
        let start = Instant::now();
        lease.unlock().await.expect("held");
        waiter.await.expect("no panic").expect("granted");
        assert!(start.elapsed() < Duration::from_millis(200), "{:?}", start.elapsed());
    }
}

/// The holder lacks a node. Whoever takes that one in vain and gives it back wakes the others, and himself.
#[tokio::test(start_paused = true)]
async fn waiters_do_not_keep_each_other_awake() {
    let nodes = Nodes::new(3);
    let (here, faults) = nodes.process();
    faults[2].add(down());
    let lease = here.lock("job").lock().await.expect("two of three grant");
    let mut waiters = tokio::task::JoinSet::new();
    let mut calls = Vec::new();
    for _ in 0..3 {
        let (there, faults) = nodes.process();
        calls.push(faults[0].clone());
        waiters.spawn(async move { there.lock("job").lock().await.map(drop) });
    }
    sleep(T).await;
    for faults in calls {
        let asked = faults.calls(Call::Acquire);
        assert!(asked < 500, "asked {asked} times in {T:?}");
    }
    lease.unlock().await.expect("held");
    for granted in waiters.join_all().await {
        granted.expect("granted");
    }
}

/// A process that waits for a silent node keeps the others from the nodes that it has.
#[tokio::test(start_paused = true)]
async fn silent_node_does_not_slow_down_those_who_contend() {
    let nodes = Nodes::new(5);
    let mut tasks = tokio::task::JoinSet::new();
    let start = Instant::now();
    for i in 0..4u64 {
        let (leases, faults) = nodes.process();
        faults[4].add(Rule::new(Fault::Hang));
        for (j, node) in faults[..4].iter().enumerate() {
            let far = (j as u64 + 4 - i) % 4;
            node.add(Rule::new(Fault::Delay(Duration::from_millis(far))).on(Call::Acquire));
        }
        tasks.spawn(async move {
            for _ in 0..10 {
                drop(leases.lock("job").lock().await.expect("granted"));
            }
        });
    }
    tasks.join_all().await;
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}
