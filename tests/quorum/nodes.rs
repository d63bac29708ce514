//! Nodes that are down, slow, or come back empty.

use super::*;
use leasehold::store::{Inspect, Target};
use leasehold::testing::Call;
use leasehold::{Fate, LeaseState, Loss};

#[tokio::test(start_paused = true)]
async fn lease_survives_exactly_while_a_majority_holds_it() {
    for count in [3, 5] {
        let nodes = Nodes::new(count);
        let (leases, faults) = nodes.process();
        let lease = leases.lock("job").lock().await.expect("granted");
        let minority = (count - 1) / 2;
        faults[..minority].iter().for_each(|node| node.add(down()));
        sleep(3 * T).await;
        assert_eq!(lease.state(), LeaseState::Held, "{minority} of {count} are down");

        faults[minority].add(down());
        let (time, loss) = tokio::time::timeout(T, timed(lease.lost())).await.expect("lost");
        assert_eq!(loss, Loss::Expired);
        assert!(time <= C && time + PERIOD >= C, "{time:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_granted_without_a_majority() {
    let nodes = Nodes::new(5);
    let (leases, faults) = nodes.process();
    faults[..3].iter().for_each(|node| node.add(down()));
    let error = leases.lock("job").try_lock().await.expect_err("two of five are no majority");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    settle().await;
    assert!(nodes.free(), "the two give back: {:?}", nodes.keys());
    faults[0].heal();
    assert!(leases.lock("job").try_lock().await.expect("three answer").is_some());
}

#[tokio::test(start_paused = true)]
async fn node_that_never_answers_delays_nobody() {
    let nodes = Nodes::new(3);
    let (leases, faults) = nodes.process();
    faults[1].add(Rule::new(Fault::Hang));
    let mut lock = leases.lock("job");
    let (time, lease) = timed(lock.lock()).await;
    let lease = lease.expect("two of three grant");
    assert_eq!(time, Duration::ZERO);
    sleep(3 * T).await;
    assert_eq!(lease.state(), LeaseState::Held);
    let (time, released) = timed(lease.unlock()).await;
    released.expect("two of three release");
    assert_eq!(time, Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn grant_that_comes_too_late_is_released() {
    let nodes = Nodes::new(3);
    let (leases, faults) = nodes.process();
    faults[0].add(down());
    faults[1].add(down());
    // Longer than any attempt.
    faults[2].add(Rule::new(Fault::Delay(Duration::from_secs(5))).on(Call::Acquire));
    leases.lock("job").try_lock().await.expect_err("no majority");
    faults[2].heal();
    sleep(Duration::from_secs(6)).await;
    assert!(nodes.free(), "{:?}", nodes.keys());
}

/// The hold was released meanwhile, and the release found nothing at the node.
#[tokio::test(start_paused = true)]
async fn grant_that_comes_after_the_unlock_is_released() {
    let nodes = Nodes::new(3);
    let (leases, faults) = nodes.process();
    // Longer than the time limit of a node.
    faults[2].add(Rule::new(Fault::Delay(Duration::from_secs(2))).on(Call::Acquire));
    let lease = leases.lock("job").lock().await.expect("two of three grant");
    lease.unlock().await.expect("two of three release");
    sleep(Duration::from_secs(2) + MOMENT).await;
    assert!(nodes.free(), "{:?}", nodes.keys());
}

#[tokio::test(start_paused = true)]
async fn grants_without_a_majority_are_released_on_every_node() {
    let nodes = Nodes::new(3);
    let (rival, to_rival) = nodes.process();
    // The rival has just a majority.
    to_rival[2].add(down());
    let _lease = rival.lock("job").lock().await.expect("granted");
    let (leases, _) = nodes.process();
    assert!(leases.lock("job").try_lock().await.expect("an answer").is_none());
    settle().await;
    assert_eq!(nodes.keys(), [1, 1, 0]);
}

#[tokio::test(start_paused = true)]
async fn dropped_acquire_leaves_nothing_behind() {
    for polls in 0..40 {
        let nodes = Nodes::new(3);
        let (leases, faults) = nodes.process();
        for (i, node) in faults.iter().enumerate() {
            let delay = Duration::from_millis(5 * i as u64);
            node.add(Rule::new(Fault::Delay(delay)).on(Call::Acquire));
        }
        let mut lock = leases.lock("job");
        let given_up = tokio::time::timeout(Duration::from_micros(500 * polls), lock.lock()).await;
        drop(given_up);
        sleep(Duration::from_millis(50)).await;
        assert!(nodes.free(), "given up after {polls}: {:?}", nodes.keys());
    }
}

#[tokio::test(start_paused = true)]
async fn node_that_comes_back_empty_gets_the_key_and_the_count_back() {
    let nodes = Nodes::new(3);
    let (leases, _) = nodes.process();
    let mut lock = leases.lock("job");
    let outer = lock.lock().await.expect("granted");
    let inner = lock.lock().await.expect("entered");
    nodes.0[0].restart();
    assert_eq!(nodes.keys(), [0, 1, 1]);
    sleep(PERIOD + MOMENT).await;
    assert_eq!(nodes.keys(), [1, 1, 1]);
    let inspect = Inspect::new(Target::exclusive(name("job")), T);
    let looked = nodes.0[0].inspect(inspect).await.expect("answers");
    let holding = looked.into_holder().expect("held");
    assert_eq!(holding.hold_count, 2);
    inner.unlock().await.expect("held");
    outer.unlock().await.expect("held");
    settle().await;
    assert!(nodes.free());
}

#[tokio::test(start_paused = true)]
async fn node_down_for_the_grant_gets_the_key_and_the_release() {
    let nodes = Nodes::new(3);
    let (leases, faults) = nodes.process();
    let unsent = Error::new(ErrorKind::Unavailable, "no way there").with_fate(Fate::NotExecuted);
    faults[0].add(Rule::new(Fault::Fail(unsent)));
    let lease = leases.lock("job").lock().await.expect("two of three grant");
    faults[0].heal();
    sleep(PERIOD + MOMENT).await;
    assert_eq!(nodes.keys(), [1, 1, 1]);
    lease.unlock().await.expect("held");
    settle().await;
    assert!(nodes.free(), "{:?}", nodes.keys());
}

#[tokio::test(start_paused = true)]
async fn key_is_never_made_again_for_others_nor_after_the_release() {
    let nodes = Nodes::new(3);
    let (leases, faults) = nodes.process();
    let lease = leases.lock("job").lock().await.expect("granted");
    nodes.0[0].delete("job");
    // The making takes long, and the release comes meanwhile.
    faults[0].add(Rule::new(Fault::Delay(Duration::from_secs(1))).on(Call::Acquire));
    faults[0].until_calls(Call::Acquire, 2).await;
    lease.unlock().await.expect("held");
    sleep(Duration::from_secs(2)).await;
    assert!(nodes.free(), "{:?}", nodes.keys());
}

/// The node reports late that the key is gone, and by then it has been released.
#[tokio::test(start_paused = true)]
async fn late_answer_does_not_make_the_key_of_a_released_hold_again() {
    let nodes = Nodes::new(3);
    let (leases, faults) = nodes.process();
    let lease = leases.lock("job").lock().await.expect("granted");
    nodes.0[0].delete("job");
    faults[0].add(Rule::new(Fault::Delay(Duration::from_secs(1))).on(Call::Renew));
    // The release at the slow node is under way for longer than that.
    faults[0].add(Rule::new(Fault::Delay(Duration::from_millis(1400))).on(Call::Release).times(1));
    faults[0].until_calls(Call::Renew, 1).await;
    settle().await;
    lease.unlock().await.expect("two of three release");
    sleep(Duration::from_millis(1_500)).await;
    assert_eq!(faults[0].calls(Call::Acquire), 1, "the first");
    assert!(nodes.free(), "{:?}", nodes.keys());
}

/// The heart of it: A has nodes 1 and 2, node 2 forgets, and B reaches 2 and 3.
#[tokio::test(start_paused = true)]
async fn restarted_node_does_not_help_a_second_holder_to_a_majority() {
    let nodes = Nodes::new(3);
    let (here, faults) = nodes.process();
    faults[2].add(down());
    let lease = here.lock("job").lock().await.expect("two of three grant");
    assert_eq!(nodes.keys(), [1, 1, 0]);
    nodes.0[1].restart();

    let (there, _) = nodes.process();
    let start = Instant::now();
    let mut lock = there.lock("job");
    let second = loop {
        if let Ok(Some(second)) = lock.try_lock().await {
            break second;
        }
        sleep(Duration::from_millis(100)).await;
    };
    assert!(lease.check().is_err(), "two holders after {:?}", start.elapsed());
    assert!(start.elapsed() >= T - PERIOD, "{:?}", start.elapsed());
    assert!(start.elapsed() <= 2 * T, "{:?}", start.elapsed());
    drop(second);
}

/// Two nodes that are one server vote once, and the error reports that. The name does not seem to be held.
#[tokio::test(start_paused = true)]
async fn one_server_that_is_two_nodes_votes_once() {
    let mut nodes = Nodes::new(3);
    nodes.0[1] = nodes.0[0].clone();
    let (leases, faults) = nodes.process();
    let lease = leases.lock("job").lock().await.expect("two servers of three");
    sleep(3 * T).await;
    assert_eq!(lease.state(), LeaseState::Held);
    assert!(leases.lock("job").try_lock().await.expect("an answer").is_none(), "held");
    lease.unlock().await.expect("held");

    faults[2].add(down());
    let error = leases.lock("job").try_lock().await.expect_err("one server of three");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let text = error.to_string();
    assert!(text.contains("leads to the server of node") && text.contains("granted"), "{text}");
    settle().await;
    assert!(nodes.free(), "{:?}", nodes.keys());
}

/// The same for a lease: renewals at one server do not add up.
#[tokio::test(start_paused = true)]
async fn one_server_that_is_two_nodes_renews_once() {
    let mut nodes = Nodes::new(3);
    nodes.0[1] = nodes.0[0].clone();
    let (leases, faults) = nodes.process();
    let lease = leases.lock("job").lock().await.expect("two servers of three");
    faults[2].add(down());
    let (time, loss) = tokio::time::timeout(T, timed(lease.lost())).await.expect("lost");
    assert_eq!(loss, Loss::Expired);
    assert!(time <= C && time + 2 * MOMENT >= C, "{time:?}");
}

/// The same for renewals: a key that was made on a young node does not prolong a lease.
#[tokio::test(start_paused = true)]
async fn young_node_renews_no_lease() {
    let nodes = Nodes::new(3);
    let (leases, faults) = nodes.process();
    let lease = leases.lock("job").lock().await.expect("granted");
    nodes.0[0].restart();
    faults[0].reconnect();
    settle().await;
    assert_eq!(nodes.keys(), [1, 1, 1], "made again");
    // Node 1 is young, node 2 goes away: 3 alone is left.
    faults[1].add(down());
    let (time, loss) = tokio::time::timeout(T, timed(lease.lost())).await.expect("lost");
    assert_eq!(loss, Loss::Expired);
    assert!(time <= C && time + 2 * MOMENT >= C, "{time:?}");
}

#[tokio::test(start_paused = true)]
async fn rolling_restarts_neither_erode_nor_double_a_lease() {
    for count in [3, 5] {
        let nodes = Nodes::new(count);
        let (leases, _) = nodes.process();
        let (rival, _) = nodes.process();
        let lease = leases.lock("job").lock().await.expect("granted");
        for round in 0..3 * count {
            nodes.0[round % count].restart();
            for _ in 0..14 {
                sleep(PERIOD / 3).await;
                let second = rival.lock("job").try_lock().await;
                assert!(!matches!(second, Ok(Some(_))), "doubled in round {round}");
                assert_eq!(lease.state(), LeaseState::Held, "eroded in round {round}");
            }
        }
        assert_eq!(nodes.keys(), vec![1; count]);
    }
}

#[tokio::test(start_paused = true)]
async fn restart_of_all_nodes_grants_nothing_for_the_ttl() {
    let nodes = Nodes::new(3);
    let (leases, faults) = nodes.process();
    let lease = leases.lock("job").lock().await.expect("granted");
    nodes.0.iter().for_each(MemoryStore::restart);
    let start = Instant::now();
    faults[0].reconnect();
    assert_eq!(lease.lost().await, Loss::Gone);
    assert!(start.elapsed() <= MOMENT, "a reconnect verifies");
    let (rival, _) = nodes.process();
    let second = loop {
        match rival.lock("job").lock_timeout(T).await {
            Ok(Some(second)) => break second,
            _ => assert!(start.elapsed() < 3 * T, "never granted again"),
        }
    };
    assert!(start.elapsed() >= T);
    drop(second);
}

#[tokio::test(start_paused = true)]
async fn closing_gives_everything_back() {
    let nodes = Nodes::new(5);
    let (leases, faults) = nodes.process();
    faults[4].add(Rule::new(Fault::Delay(Duration::from_millis(500))));
    for i in 0..10 {
        leases.lock(format!("job:{i}")).lock().await.expect("granted").forget();
    }
    let kept = leases.lock("kept").lock().await.expect("granted");
    drop(kept);
    leases.close().await.expect("a majority releases");
    assert_eq!(nodes.keys()[0], 10, "what was forgotten expires");
    sleep(T).await;
    assert!(nodes.free(), "{:?}", nodes.keys());
}

/// A steal in two steps: the old holder releases, and the next one is granted, between the look and the forced release.
#[tokio::test(start_paused = true)]
async fn steal_forces_no_holder_out_that_came_after_the_look() {
    let nodes = Nodes::new(3);
    let (thief, faults) = nodes.process();
    let ((first, _), (second, _)) = (nodes.process(), nodes.process());
    let old = first.lock("job").lock().await.expect("granted");
    faults.iter().for_each(|node| node.add(Rule::new(Fault::Hang).on(Call::ForceRelease)));
    let stealing = tokio::spawn(async move { thief.lock("job").steal("it hangs").await });
    settle().await;
    old.unlock().await.expect("released");
    settle().await;
    let next = second.lock("job").lock().await.expect("granted");
    assert!(faults.iter().all(|node| node.calls(Call::ForceRelease) == 1));
    faults.iter().for_each(Faults::heal);
    assert!(stealing.await.expect("no panic").expect("an answer").is_none());
    sleep(T).await;
    next.check().expect("held");
    assert_eq!(nodes.keys(), [1, 1, 1]);
}
