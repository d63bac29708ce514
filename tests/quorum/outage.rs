//! Outages under a flood of calls: what is kept for nodes that answer nothing is bounded, and is over soon after them.

use super::*;
use kit::reached::Must;
use leasehold::Fate;
use leasehold::store::{Acquire, Acquired, HolderId, Release, Target};
use leasehold::testing::Call;
use tokio::runtime::{Builder, Handle};
use tokio::task::JoinSet;
use uuid::Uuid;

/// The time limit of a request to a node.
const LIMIT: Duration = Duration::from_millis(1_500);
/// The time from one call of a flood to the next.
const PAUSE: Duration = Duration::from_millis(3);
/// Tasks for the acquires that a silent node may have, for their callers, and for the releases behind them.
const MOST: usize = 5_000;

/// The ways in which a node answers nothing.
fn outages() -> [Rule; 4] {
    let unsent = Error::new(ErrorKind::Unavailable, "no way there").with_fate(Fate::NotExecuted);
    [
        Rule::new(Fault::Hang),
        Rule::new(Fault::HoldReply),
        Rule::new(Fault::Fail(unsent)),
        Rule::new(Fault::Fail(Error::new(ErrorKind::Unavailable, "out of order"))),
    ]
}

fn tasks() -> usize {
    Handle::current().metrics().num_alive_tasks()
}

/// One process, which has locked before. Returns the number of tasks as well, which counts nothing of a process before it:
/// threads that the paused clock does not know may still end its tasks.
async fn process(nodes: &Nodes) -> (LeaseManager, Vec<Faults>, usize) {
    let start = std::time::Instant::now();
    while tasks() > 0 {
        assert!(start.elapsed() < Duration::from_secs(30), "{} tasks are left", tasks());
        settle().await;
    }
    let (leases, faults) = nodes.process();
    drop(leases.lock("job").lock().await.expect("granted"));
    // A node that answers after the other two may be swept until its grant would have expired.
    sleep(T).await;
    settle().await;
    (leases, faults, tasks())
}

/// Calls `try_lock` for new names again and again, for so long.
async fn flood(leases: &LeaseManager, time: Duration, calls: &mut JoinSet<bool>) {
    let start = Instant::now();
    while start.elapsed() < time {
        let mut lock = leases.lock(format!("job:{}", Uuid::new_v4()));
        calls.spawn(async move {
            let (time, lease) = timed(lock.try_lock()).await;
            let granted = matches!(lease, Ok(Some(_)));
            assert!(!granted || time == Duration::ZERO, "it waited for {time:?}");
            granted
        });
        sleep(PAUSE).await;
        while calls.try_join_next().is_some() {}
    }
}

/// One node of three is silent, and no call is slower for it; or two are, and none is granted.
#[tokio::test(start_paused = true)]
async fn outage_is_bounded_under_a_flood() {
    let _reached = Must::reach("QuorumNotAsked");
    for (outage, silent) in
        outages().into_iter().flat_map(|outage| [(outage.clone(), 1), (outage, 2)])
    {
        let label = format!("{silent} of three: {outage:?}");
        let nodes = Nodes::new(3);
        let (leases, faults, base) = process(&nodes).await;
        faults[..silent].iter().for_each(|node| node.add(outage.clone()));
        let mut calls = JoinSet::new();
        flood(&leases, T / 3, &mut calls).await;
        let before = tasks() - base;
        flood(&leases, T / 2, &mut calls).await;
        let after = tasks() - base;
        assert!(before < MOST && after <= before, "{label}: {before} tasks, then {after}");
        while let Some(granted) = calls.join_next().await {
            assert_eq!(granted.expect("no panic"), silent == 1, "{label}");
        }

        faults.iter().for_each(Faults::heal);
        sleep(2 * LIMIT).await;
        assert!(nodes.free(), "{label}: {:?}", nodes.keys());
        let lease = leases.lock("job").try_lock().await.expect("all answer").expect("free");
        settle().await;
        assert!(silent == 2 || nodes.keys() == [1; 3], "{label}: {:?}", nodes.keys());
        drop(lease);
        settle().await;
        assert!(nodes.free(), "{label}: {:?}", nodes.keys());
        // What may still come is swept until it would have expired.
        sleep(T).await;
        assert_eq!(tasks(), base, "{label}");
    }
}

/// A name that is locked again and again keeps nothing at the silent node either.
#[tokio::test(start_paused = true)]
async fn name_locked_again_and_again_piles_up_nothing() {
    for outage in outages() {
        let label = format!("{outage:?}");
        let nodes = Nodes::new(3);
        let (leases, faults, base) = process(&nodes).await;
        faults[1].add(outage);
        let mut most = 0;
        let mut lock = leases.lock("job");
        for _ in 0..T.as_millis() / PAUSE.as_millis() {
            let (time, lease) = timed(lock.lock()).await;
            lease.expect("two of three grant").unlock().await.expect("two of three release");
            assert_eq!(time, Duration::ZERO, "{label}");
            most = most.max(tasks().saturating_sub(base));
            sleep(PAUSE).await;
        }
        assert!(most < MOST, "{label}: {most} tasks");
        faults[1].heal();
        sleep(2 * LIMIT).await;
        assert!(nodes.free(), "{label}: {:?}", nodes.keys());
    }
}

/// Holds rely on all that is open at the node, so no release shows that it answers again.
#[tokio::test(start_paused = true)]
async fn node_of_many_holds_is_asked_again_after_a_renewal() {
    let nodes = Nodes::new(3);
    let (leases, faults, _) = process(&nodes).await;
    faults[1].add(Rule::new(Fault::HoldReply));
    let mut held = Vec::new();
    for number in 0..1_100 {
        held.push(leases.lock(format!("job:{number}")).lock().await.expect("two of three grant"));
    }
    sleep(3 * LIMIT).await;
    faults[1].heal();
    sleep(PERIOD).await;
    faults[0].add(down());
    let lease = leases.lock("job").try_lock().await.expect("two of three answer");
    assert!(lease.is_some());
}

/// The nodes that a release did not reach are swept: the next attempt may find it done.
#[tokio::test(start_paused = true)]
async fn release_that_reaches_no_node_may_still_be_done() {
    let unsent = Error::new(ErrorKind::Unavailable, "no way there").with_fate(Fate::NotExecuted);
    let fault = Rule::new(Fault::Fail(unsent)).on(Call::Release);
    let nodes = Nodes::new(3);
    let (stores, faults) = nodes.handles();
    let quorum = Quorum::new(stores).expect("enough nodes");
    let (target, holder) = (Target::exclusive(name("job")), HolderId::new(Uuid::new_v4(), 1));
    let verdict = quorum.acquire(Acquire::new(target.clone(), holder, T, 2 * LIMIT)).await;
    assert!(matches!(verdict, Ok(Acquired::Granted { .. })), "{verdict:?}");
    faults.iter().for_each(|node| node.add(fault.clone()));
    let release = Release::new(target, holder, 0, 2 * LIMIT);
    let error = quorum.release(release).await.expect_err("no node gets it");
    assert_eq!(error.fate(), Fate::Unknown);
    faults.iter().for_each(Faults::heal);
    sleep(LIMIT + MOMENT).await;
    assert!(nodes.free(), "{:?}", nodes.keys());

    // The engine tries again, before and after the sweep.
    let (leases, faults) = nodes.process();
    let mut unlocks = JoinSet::new();
    for number in 0..50 {
        let lease = leases.lock(format!("job:{number}")).lock().await.expect("granted");
        unlocks.spawn(lease.unlock());
    }
    faults.iter().for_each(|node| node.add(fault.clone()));
    sleep(LIMIT - MOMENT).await;
    faults.iter().for_each(Faults::heal);
    while let Some(unlocked) = unlocks.join_next().await {
        let lost = unlocked.expect("no panic").is_err_and(|error| error.kind() == ErrorKind::Lost);
        assert!(!lost, "its own sweep released it");
    }
}

/// A stopped server runs what it has received when it goes on, also long after the request.
#[tokio::test(start_paused = true)]
async fn acquires_that_run_after_a_long_outage_are_released() {
    let nodes = Nodes::new(3);
    let (leases, faults, base) = process(&nodes).await;
    for node in &faults[..2] {
        node.add(Rule::new(Fault::RunLate).on(Call::Acquire));
        node.add(Rule::new(Fault::Hang).on(Call::Release));
    }
    leases.lock("job").try_lock().await.expect_err("one of three");
    sleep(2 * T).await;
    faults.iter().for_each(Faults::heal);
    sleep(2 * LIMIT).await;
    assert!(nodes.free(), "{:?}", nodes.keys());
    sleep(T).await;
    assert_eq!(tasks(), base);
}

#[tokio::test(start_paused = true)]
async fn silent_node_is_swept_by_one_request_at_a_time() {
    const CALLS: usize = 200;
    let nodes = Nodes::new(3);
    let (leases, faults, _) = process(&nodes).await;
    faults[..2].iter().for_each(|node| node.add(down()));
    let mut calls = JoinSet::new();
    for number in 0..CALLS {
        let mut lock = leases.lock(format!("job:{number}"));
        calls.spawn(async move { lock.try_lock().await.expect_err("one of three") });
    }
    calls.join_all().await;
    settle().await;
    let before = faults[0].calls(Call::Release);
    for round in 1..4 {
        sleep(LIMIT).await;
        assert_eq!(faults[0].calls(Call::Release), before + round);
    }
    // Many at once, when it answers.
    faults[0].heal();
    faults[0].add(Rule::new(Fault::Delay(Duration::from_millis(10))));
    sleep(LIMIT + Duration::from_millis(100)).await;
    assert_eq!(faults[0].calls(Call::Release), before + 3 + CALLS);
}

#[tokio::test(start_paused = true)]
async fn name_that_is_never_answered_keeps_no_other_from_the_sweep() {
    // The order of the names is random.
    for _ in 0..10 {
        let nodes = Nodes::new(3);
        let (leases, faults) = nodes.process();
        let held = [leases.lock("bad").lock().await, leases.lock("good").lock().await];
        faults[0].add(down());
        for lease in held {
            lease.expect("granted").unlock().await.expect("two of three release");
        }
        settle().await;
        faults[0].heal();
        faults[0].add(Rule::new(Fault::Hang).on(Call::Release).name("bad"));
        sleep(5 * LIMIT).await;
        assert_eq!(nodes.keys(), [1, 0, 0]);
    }
}

#[tokio::test(start_paused = true)]
async fn close_tries_once_more_to_release_what_is_owed() {
    for answers in [true, false] {
        let nodes = Nodes::new(3);
        let (stores, faults) = nodes.handles();
        let quorum = Quorum::new(stores).expect("enough nodes");
        let (target, holder) = (Target::exclusive(name("job")), HolderId::new(Uuid::new_v4(), 1));
        let verdict = quorum.acquire(Acquire::new(target.clone(), holder, T, 2 * LIMIT)).await;
        assert!(matches!(verdict, Ok(Acquired::Granted { .. })), "{verdict:?}");
        faults[0].add(down());
        quorum.release(Release::new(target, holder, 0, 2 * LIMIT)).await.expect("two of three");
        settle().await;
        assert_eq!(nodes.keys(), [1, 0, 0]);
        let before = faults[0].calls(Call::Release);
        if answers {
            faults[0].heal();
        }
        let (time, ()) = timed(quorum.close(T)).await;
        assert_eq!(time, Duration::ZERO);
        assert_eq!(faults[0].calls(Call::Release), before + 1);
        assert_eq!(nodes.free(), answers);
    }
}

/// Calls of one runtime fill what the silent nodes may have, and no task of it is left to sweep.
#[test]
fn runtime_that_ends_in_an_outage_leaves_its_sweep_to_others() {
    const CALLS: u64 = 1_100;
    const TTL: Duration = Duration::from_secs(60);
    let runtime = || Builder::new_current_thread().enable_all().build().expect("a runtime");
    let limit = Duration::from_millis(100);
    let nodes = Nodes::new(3);
    let (stores, faults) = nodes.handles();
    let quorum = Arc::new(Quorum::new(stores).expect("enough nodes"));
    let manager = Uuid::new_v4();
    let ask = |number: u64| {
        let target = Target::exclusive(name(&format!("job:{number}")));
        quorum.acquire(Acquire::new(target, HolderId::new(manager, number), TTL, 2 * limit))
    };
    faults[..2].iter().for_each(|node| node.add(Rule::new(Fault::HoldReply)));
    let first = runtime();
    first.block_on(async {
        let mut calls = JoinSet::new();
        (1..=CALLS).for_each(|number| drop(calls.spawn(ask(number))));
        while let Some(verdict) = calls.join_next().await {
            verdict.expect("no panic").expect_err("one of three");
        }
    });
    drop(first);
    runtime().block_on(async {
        let refused = ask(CALLS + 1).await.expect_err("one of three");
        assert!(refused.to_string().contains("not asked"), "{refused}");
        assert_eq!(refused.fate(), Fate::NotExecuted);
        assert_eq!(faults[2].calls(Call::Acquire), CALLS as usize, "the last node is not asked");
        faults[..2].iter().for_each(Faults::heal);
        kit::eventually(TTL / 2, || nodes.free()).await;
        let verdict = ask(CALLS + 2).await;
        assert!(matches!(verdict, Ok(Acquired::Granted { .. })), "{verdict:?}");
    });
}
