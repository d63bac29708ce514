//! The reports of a quorum: errors, losses and holders.

use super::*;
use leasehold::Loss;
use leasehold::store::{
    Acquire, Acquired, HolderId, NoMajority, NodeVerdict, RenewBatch, RenewCall, Renewal, Target,
};
use leasehold::testing::Call;
use std::error::Error as _;
use uuid::Uuid;

#[tokio::test(start_paused = true)]
async fn error_has_the_verdict_of_each_node() {
    let nodes = Nodes::new(3);
    let (leases, faults) = nodes.process();
    faults[0].add(down());
    faults[1].add(Rule::new(Fault::LoseReply).on(Call::Acquire));
    let error = leases.lock("job").try_lock().await.expect_err("no majority");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let text = error.to_string();
    for part in ["3 nodes", "node 1: unavailable: out of order", "node 2: unavailable: the reply"] {
        assert!(text.contains(part), "{text}");
    }
    let source = error.source().and_then(|source| source.downcast_ref::<NoMajority>());
    let verdicts = source.expect("the verdicts").verdicts();
    assert_eq!(verdicts.len(), 3);
    assert!(matches!(verdicts[0], NodeVerdict::Failed(_)));
}

#[tokio::test(start_paused = true)]
async fn error_is_of_the_kind_on_which_a_majority_agrees() {
    for (count, kind) in [(1, None), (2, Some(ErrorKind::Denied)), (3, Some(ErrorKind::Denied))] {
        let nodes = Nodes::new(3);
        let (leases, faults) = nodes.process();
        for node in &faults[..count] {
            node.add(Rule::new(Fault::Fail(Error::new(ErrorKind::Denied, "no right"))));
        }
        let result = leases.lock("job").try_lock().await;
        assert_eq!(result.err().map(|error| error.kind()), kind, "{count} deny");
    }
}

#[tokio::test(start_paused = true)]
async fn loss_is_taken_if_somebody_else_can_have_the_majority() {
    let nodes = Nodes::new(3);
    let (leases, faults) = nodes.process();
    // Two nodes are enough to know of the loss. The third is not waited for.
    for (taken, cause) in [(0, Loss::Gone), (1, Loss::Taken), (2, Loss::Taken)] {
        let lease = leases.lock("job").lock().await.expect("granted");
        for node in &nodes.0[..2] {
            assert!(node.delete("job"));
        }
        for node in &nodes.0[..taken] {
            let contender = LeaseManager::builder().ttl(T).build(node.clone()).expect("settings");
            contender.lock("job").lock().await.expect("free here").forget();
        }
        faults[0].reconnect();
        assert_eq!(lease.lost().await, cause, "{taken} taken");
        for node in &nodes.0 {
            let _ = node.delete("job");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn holder_is_whoever_has_a_majority() {
    let nodes = Nodes::new(3);
    let (leases, faults) = nodes.process();
    let lease = leases.lock("job").lock().await.expect("granted");
    let holding = leases.inspect("job").await.expect("answers").expect("held");
    assert!(!holding.holder.contains('.'), "{holding:?}");
    faults[0].add(down());
    assert_eq!(leases.inspect("job").await.expect("answers"), Some(holding));
    nodes.0[1].delete("job");
    // One has it, one does not, one is silent: not known.
    let error = leases.inspect("job").await.expect_err("no majority");
    assert!(error.to_string().contains("node 2: free"), "{error}");
    faults[0].heal();
    nodes.0[0].delete("job");
    assert_eq!(leases.inspect("job").await.expect("answers"), None);
    // One has it; another that is silent can make a majority, and be nobody's.
    for silence in [down(), Rule::new(Fault::Hang)] {
        faults[1].add(silence);
        leases.inspect("job").await.expect_err("no majority");
    }
    drop(lease);
}

#[tokio::test(start_paused = true)]
async fn force_unlock_needs_a_majority_that_answers() {
    let nodes = Nodes::new(3);
    let (leases, _) = nodes.process();
    let (operator, faults) = nodes.process();
    let lease = leases.lock("job").lock().await.expect("granted");
    faults[0].add(down());
    assert!(operator.force_unlock("job", "test").await.expect("two of three answer"));
    assert!(
        !operator.force_unlock("other", "test").await.expect("two of three answer"),
        "it was free"
    );
    faults[1].add(down());
    operator.force_unlock("job", "test").await.expect_err("one of three answers");
    drop(lease);
}

#[tokio::test(start_paused = true)]
async fn quorum_has_three_to_fifteen_nodes_on_one_clock() {
    for (count, good) in
        [(0, false), (1, false), (2, false), (3, true), (4, true), (15, true), (16, false)]
    {
        let result = Quorum::new(Nodes::new(count).handles().0);
        assert_eq!(result.is_ok(), good, "{count}");
        if let Err(error) = result {
            assert_eq!(error.kind(), ErrorKind::Invalid);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn list_of_urls_makes_a_quorum() {
    let leases = LeaseManager::connect("memory:,memory:, memory:").await.expect("three nodes");
    assert!(format!("{leases:?}").contains("Quorum"), "{leases:?}");
    let lease = leases.lock("job").lock().await.expect("granted");
    lease.unlock().await.expect("held");
    let error = LeaseManager::connect("memory:,memory:").await.expect_err("two are refused");
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

/// The deadline counts from before the first send, however long the nodes take.
#[tokio::test(start_paused = true)]
async fn verdicts_say_when_the_first_request_left() {
    let (stores, faults) = Nodes::new(3).handles();
    for node in &faults {
        node.add(Rule::new(Fault::Delay(Duration::from_secs(1))));
    }
    let quorum = Quorum::new(stores).expect("enough nodes");
    let (target, holder) = (Target::exclusive(name("job")), HolderId::new(Uuid::new_v4(), 1));
    let before = quorum.clock().now();
    let request = Acquire::new(target.clone(), holder, T, T / 10);
    match quorum.acquire(request).await {
        Ok(Acquired::Granted { sent, .. }) => assert_eq!(sent, before),
        other => panic!("{other:?}"),
    }
    let before = quorum.clock().now();
    let items = vec![Renewal::new(target, holder)];
    let renewed =
        RenewCall::join(quorum.renew(RenewBatch::new(items, T, T / 10))).await.expect("a verdict");
    assert_eq!(renewed.sent, before);
    assert!(matches!(renewed.verdicts[..], [Ok(None)]), "{renewed:?}");
}

#[tokio::test(start_paused = true)]
async fn quorum_is_connected_by_a_list_of_urls_and_by_no_single_one() {
    let quorum = Quorum::connect("memory:,memory:,memory:").await.expect("three nodes");
    let request = Acquire::new(Target::exclusive(name("job")), HolderId::new(Uuid::nil(), 1), T, T);
    let verdict = quorum.acquire(request).await;
    assert!(matches!(verdict, Ok(Acquired::Granted { .. })), "{verdict:?}");
    for urls in ["memory:", "memory:,memory:"] {
        let error = Quorum::connect(urls).await.expect_err("too few");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{urls}");
    }
}
