//! The quorum alone, as a store, without the engine, which would catch some of its faults too.

use super::{Duration, MOMENT, Nodes, T, down, name, settle, sleep, timed};
use kit::reached::Must;
use leasehold::store::{
    Absence, Acquire, Acquired, ForceRelease, HolderId, Inspect, Name, Quorum, Release, Released,
    RenewBatch, RenewCall, Renewal, Store, Target, Wait,
};
use leasehold::testing::{Call, Fault, Rule};
use leasehold::{Error, ErrorKind};
use std::task::Poll;
use uuid::Uuid;

fn acquire(name: &Name, token: HolderId, timeout: Duration) -> Acquire {
    Acquire::new(target(name), token, T, timeout)
}

fn release(name: &Name, token: HolderId, count: u32) -> Release {
    Release::new(target(name), token, count, T / 10)
}

fn target(name: &Name) -> Target {
    Target::exclusive(name.clone())
}

fn unavailable() -> Error {
    Error::new(ErrorKind::Unavailable, "out of order")
}

fn late(delay: Duration) -> Rule {
    Rule::new(Fault::Delay(delay)).on(Call::Acquire)
}

#[tokio::test(start_paused = true)]
async fn grant_whose_future_was_dropped_is_released() {
    let _reached = Must::reach("QuorumCallerGone");
    let nodes = Nodes::new(3);
    let (stores, _) = nodes.handles();
    let quorum = Quorum::new(stores).expect("enough nodes");
    let token = HolderId::new(Uuid::new_v4(), 1);
    drop(quorum.acquire(acquire(&name("job"), token, T / 10)));
    settle().await;
    assert!(nodes.free(), "{:?}", nodes.keys());
}

/// Half of T is what a grant must leave, after 1 % for the servers' clocks and 2 ms for rounding.
#[tokio::test(start_paused = true)]
async fn grant_that_leaves_less_than_half_is_released() {
    let _reached = Must::reach("QuorumTooLate");
    let just = T - T / 100 - Duration::from_millis(2) - T / 2;
    for (delay, enough) in [(just, true), (just + MOMENT, false)] {
        let nodes = Nodes::new(3);
        let (stores, faults) = nodes.handles();
        faults.iter().for_each(|node| node.add(late(delay)));
        let quorum = Quorum::new(stores).expect("enough nodes");
        let token = HolderId::new(Uuid::new_v4(), 1);
        // Each node may take only a part of the time, so the whole is longer than any caller would wait.
        let verdict = quorum.acquire(acquire(&name("job"), token, T * 4)).await;
        if enough {
            assert!(matches!(verdict, Ok(Acquired::Granted { .. })), "{verdict:?}");
            assert_eq!(nodes.keys(), [1; 3]);
        } else {
            let error = verdict.expect_err("too late");
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert!(error.to_string().contains("too late"), "{error}");
            settle().await;
            assert!(nodes.free(), "{:?}", nodes.keys());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn count_that_nobody_awaits_is_recorded() {
    let nodes = Nodes::new(3);
    let (stores, _) = nodes.handles();
    let quorum = Quorum::new(stores).expect("enough nodes");
    let (name, token) = (name("job"), HolderId::new(Uuid::new_v4(), 1));
    quorum.acquire(acquire(&name, token, T / 10)).await.expect("free");
    let mut record = quorum.release(release(&name, token, 2));
    // The first poll sends it.
    let sent = std::future::poll_fn(|cx| Poll::Ready(record.as_mut().poll(cx).is_pending())).await;
    assert!(sent);
    drop(record);
    settle().await;
    assert_eq!(nodes.keys(), [1; 3]);
    let looked = quorum.inspect(Inspect::new(target(&name), T / 10)).await.expect("answers");
    let holding = looked.into_holder().expect("held");
    assert_eq!(holding.hold_count, 2);
}

/// One node has another holder, one is free, one is out of reach: it may be a split, so it is tried again.
#[tokio::test(start_paused = true)]
async fn split_is_tried_again_but_not_beyond_the_time_limit() {
    let nodes = Nodes::new(3);
    let (stores, faults) = nodes.handles();
    let name = name("job");
    stores[0].acquire(acquire(&name, HolderId::new(Uuid::new_v4(), 1), T)).await.expect("free");
    faults[2].add(down());
    let quorum = Quorum::new(stores).expect("enough nodes");
    for millis in [3, 40, 400] {
        let (asked, timeout) = (faults[1].calls(Call::Acquire), Duration::from_millis(millis));
        let token = HolderId::new(Uuid::new_v4(), 1);
        let (took, verdict) = timed(quorum.acquire(acquire(&name, token, timeout))).await;
        assert!(matches!(verdict, Ok(Acquired::Held { .. })), "{verdict:?}");
        assert!(took <= timeout, "{took:?} of {timeout:?}");
        let rounds = faults[1].calls(Call::Acquire) - asked;
        assert!((1..=6).contains(&rounds), "{rounds} in {took:?}");
        assert!(millis < 400 || rounds == 6, "{rounds}: there was time for more");
    }
}

/// The second attempt of an acquire goes by another token at the nodes, and so does all that follows.
#[tokio::test(start_paused = true)]
async fn grant_of_a_second_attempt_is_counted_renewed_and_released() {
    let nodes = Nodes::new(3);
    let (stores, _) = nodes.handles();
    let (name, rival, token) =
        (name("job"), HolderId::new(Uuid::new_v4(), 1), HolderId::new(Uuid::new_v4(), 1));
    for store in &stores[..2] {
        store.acquire(acquire(&name, rival, T)).await.expect("free");
    }
    let quorum = Quorum::new(stores.clone()).expect("enough nodes");
    let verdict = quorum.acquire(acquire(&name, token, MOMENT * 5)).await;
    assert!(matches!(verdict, Ok(Acquired::Held { .. })), "{verdict:?}");
    for store in &stores[..2] {
        store.release(release(&name, rival, 0)).await.expect("there");
    }
    let verdict = quorum.acquire(acquire(&name, token, T / 10)).await;
    assert!(matches!(verdict, Ok(Acquired::Granted { .. })), "{verdict:?}");
    let recorded = quorum.release(release(&name, token, 2)).await;
    assert!(matches!(recorded, Ok(Released::Done { .. })), "{recorded:?}");
    let items = vec![Renewal::new(target(&name), token)];
    let renewed =
        RenewCall::join(quorum.renew(RenewBatch::new(items, T, T / 10))).await.expect("verdicts");
    assert!(matches!(renewed.verdicts[..], [Ok(None)]), "{renewed:?}");
    let released = quorum.release(release(&name, token, 0)).await;
    assert!(matches!(released, Ok(Released::Done { .. })), "{released:?}");
    settle().await;
    assert!(nodes.free(), "{:?}", nodes.keys());
}

/// A node that does not take a release at once is asked again every T/20, not left to the time to live.
#[tokio::test(start_paused = true)]
async fn release_that_a_node_missed_is_sent_again_soon() {
    for granted in [true, false] {
        let nodes = Nodes::new(3);
        let (stores, faults) = nodes.handles();
        let (name, token) = (name("job"), HolderId::new(Uuid::new_v4(), 1));
        let quorum = Quorum::new(stores).expect("enough nodes");
        faults[2].add(Rule::new(Fault::Fail(unavailable())).on(Call::Release));
        if granted {
            quorum.acquire(acquire(&name, token, T / 10)).await.expect("free");
            let release = release(&name, token, 0);
            quorum.release(release).await.expect("a majority released");
        } else {
            faults[..2].iter().for_each(|node| node.add(down()));
            quorum.acquire(acquire(&name, token, T / 10)).await.expect_err("no majority");
        }
        sleep(T / 4).await;
        assert_eq!(nodes.keys(), [0, 0, 1], "granted: {granted}");
        faults.iter().for_each(leasehold::testing::Faults::heal);
        sleep(T / 10).await;
        assert!(nodes.free(), "granted: {granted}: {:?}", nodes.keys());
    }
}

/// Its age when it answers is what counts, less the time that has passed since the first request left.
#[tokio::test(start_paused = true)]
async fn node_counts_when_it_was_up_a_ttl_before_the_first_request() {
    let late = Duration::from_millis(100);
    for (age, counts) in [(T, true), (T - MOMENT, false)] {
        let nodes = Nodes::new(3);
        let (stores, faults) = nodes.handles();
        let quorum = Quorum::new(stores).expect("enough nodes");
        faults[2].add(down());
        nodes.0[1].restart();
        sleep(age).await;
        faults[1].add(Rule::new(Fault::Delay(late)).on(Call::Uptime));
        let token = HolderId::new(Uuid::new_v4(), 1);
        let verdict = quorum.acquire(acquire(&name("job"), token, T / 10)).await;
        assert_eq!(verdict.is_ok(), counts, "{age:?}: {verdict:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn many_grants_share_one_question_for_the_age_of_a_node() {
    let nodes = Nodes::new(3);
    let (stores, faults) = nodes.handles();
    let quorum = Quorum::new(stores).expect("enough nodes");
    faults[0].add(Rule::new(Fault::Delay(Duration::from_millis(20))).on(Call::Uptime));
    let manager = Uuid::new_v4();
    let grants = (1..=50).map(|number| {
        let name = name(&format!("job:{number}"));
        quorum.acquire(acquire(&name, HolderId::new(manager, number), T / 10))
    });
    for grant in grants.collect::<Vec<_>>() {
        grant.await.expect("free");
    }
    sleep(Duration::from_millis(100)).await;
    let asked = faults[0].calls(Call::Uptime);
    assert!((1..=3).contains(&asked), "{asked}");
}

/// A node has half of the timeout, so that a slow one leaves time for what follows.
#[tokio::test(start_paused = true)]
async fn node_has_half_of_the_time_for_its_answer() {
    let timeout = Duration::from_millis(400);
    for (millis, counts) in [(199, true), (201, false)] {
        let nodes = Nodes::new(3);
        let (stores, faults) = nodes.handles();
        let quorum = Quorum::new(stores).expect("enough nodes");
        let (name, token) = (name("job"), HolderId::new(Uuid::new_v4(), 1));
        let slow = |call| {
            let rule = || Rule::new(Fault::Delay(Duration::from_millis(millis))).on(call);
            faults[1..].iter().for_each(|node| node.add(rule()));
        };
        let heal = || faults.iter().for_each(leasehold::testing::Faults::heal);

        slow(Call::Acquire);
        let verdict = quorum.acquire(acquire(&name, token, timeout)).await;
        assert_eq!(verdict.is_ok(), counts, "{millis}: {verdict:?}");
        heal();
        sleep(timeout).await;
        quorum.acquire(acquire(&name, token, timeout)).await.expect("free, or ours");
        slow(Call::Release);
        for count in [2, 1, 0] {
            let release = Release::new(target(&name), token, count, timeout);
            let verdict = quorum.release(release).await;
            assert_eq!(verdict.is_ok(), counts, "to {count}, {millis}: {verdict:?}");
        }
    }
}

/// A majority is enough.
#[tokio::test(start_paused = true)]
async fn silent_node_does_not_slow_down_what_is_counted_or_released() {
    let nodes = Nodes::new(3);
    let (stores, faults) = nodes.handles();
    let quorum = Quorum::new(stores).expect("enough nodes");
    let (name, token) = (name("job"), HolderId::new(Uuid::new_v4(), 1));
    quorum.acquire(acquire(&name, token, T / 10)).await.expect("free");
    faults[1].add(Rule::new(Fault::Hang));
    for count in [2, 1, 0] {
        let release = release(&name, token, count);
        let (took, verdict) = timed(quorum.release(release)).await;
        assert!(matches!(verdict, Ok(Released::Done { .. })), "{verdict:?}");
        assert_eq!(took, Duration::ZERO);
    }
}

/// Another holder has a majority, and the third node is silent: the verdict is clear at once.
#[tokio::test(start_paused = true)]
async fn loss_is_found_without_the_silent_node() {
    let nodes = Nodes::new(3);
    let (stores, faults) = nodes.handles();
    let (name, rival) = (name("job"), HolderId::new(Uuid::new_v4(), 1));
    for store in &stores[..2] {
        store.acquire(acquire(&name, rival, T)).await.expect("free");
    }
    let quorum = Quorum::new(stores).expect("enough nodes");
    faults[2].add(Rule::new(Fault::Hang));
    let token = HolderId::new(Uuid::new_v4(), 1);
    let (took, verdict) = timed(quorum.release(release(&name, token, 2))).await;
    assert!(matches!(verdict, Ok(Released::NotYours(Absence::Taken))), "{verdict:?}");
    assert_eq!(took, Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn release_needs_the_word_of_a_majority() {
    for (down, fails) in [(1, false), (2, true)] {
        let nodes = Nodes::new(3);
        let (stores, faults) = nodes.handles();
        let quorum = Quorum::new(stores).expect("enough nodes");
        let (name, token) = (name("job"), HolderId::new(Uuid::new_v4(), 1));
        quorum.acquire(acquire(&name, token, T / 10)).await.expect("free");
        let rule = || Rule::new(Fault::Fail(unavailable())).on(Call::Release);
        faults[..down].iter().for_each(|node| node.add(rule()));
        let release = release(&name, token, 0);
        let verdict = quorum.release(release).await;
        assert_eq!(verdict.is_err(), fails, "{down} down: {verdict:?}");
        if let Err(error) = verdict {
            assert!(error.to_string().contains("node 3: done"), "{error}");
        }
    }
}

/// One node has lost it, the two others gave it back.
#[tokio::test(start_paused = true)]
async fn release_is_done_where_a_majority_had_it() {
    let nodes = Nodes::new(3);
    let (stores, _) = nodes.handles();
    let quorum = Quorum::new(stores).expect("enough nodes");
    let (name, token) = (name("job"), HolderId::new(Uuid::new_v4(), 1));
    quorum.acquire(acquire(&name, token, T / 10)).await.expect("free");
    nodes.0[0].force_release(ForceRelease::new(target(&name), T / 10)).await.expect("memory");
    let verdict = quorum.release(release(&name, token, 0)).await;
    assert!(matches!(verdict, Ok(Released::Done { .. })), "{verdict:?}");
}

/// The answer of a node got lost: its key is the hold's like the others, and stays.
#[tokio::test(start_paused = true)]
async fn key_whose_grant_got_lost_stays_while_the_hold_lives() {
    for fault in [Fault::LoseReply, Fault::HoldReply, Fault::Hang] {
        let nodes = Nodes::new(3);
        let (stores, faults) = nodes.handles();
        let quorum = Quorum::new(stores).expect("enough nodes");
        let (name, token) = (name("job"), HolderId::new(Uuid::new_v4(), 1));
        faults[2].add(Rule::new(fault.clone()).on(Call::Acquire));
        quorum.acquire(acquire(&name, token, T / 10)).await.expect("two of three");
        sleep(T / 10).await;
        faults[2].heal();
        sleep(T / 4).await;
        assert_eq!(nodes.keys(), [1; 3], "{fault:?}");
        quorum.release(release(&name, token, 0)).await.expect("held");
        settle().await;
        assert!(nodes.free(), "{fault:?}: {:?}", nodes.keys());
    }
}

/// What may have come too late is released every T/20 while the nodes are silent, and no longer when it has expired.
#[tokio::test(start_paused = true)]
async fn nothing_is_released_when_it_has_expired() {
    let nodes = Nodes::new(3);
    let (stores, faults) = nodes.handles();
    let quorum = Quorum::new(stores).expect("enough nodes");
    faults.iter().for_each(|node| node.add(Rule::new(Fault::LoseReply)));
    let token = HolderId::new(Uuid::new_v4(), 1);
    quorum.acquire(acquire(&name("job"), token, T / 10)).await.expect_err("no answers");
    sleep(T * 2).await;
    let asked = || -> usize { faults.iter().map(|node| node.calls(Call::Release)).sum() };
    let before = asked();
    assert!(before >= 3 * 18, "{before}");
    sleep(T * 2).await;
    assert!(asked() >= 2 * before, "it may still come");
    faults.iter().for_each(|node| node.heal());
    sleep(T + T / 10).await;
    let before = asked();
    sleep(T * 2).await;
    assert_eq!(asked(), before);
    let (took, ()) = timed(quorum.close(T)).await;
    assert_eq!(took, Duration::ZERO, "nothing is under way");
}

/// The release of a lost attempt fails, so the node still has our hold: that is no sign of another holder.
#[tokio::test(start_paused = true)]
async fn own_key_that_cannot_be_released_is_no_holder() {
    let nodes = Nodes::new(3);
    let (stores, faults) = nodes.handles();
    let quorum = Quorum::new(stores).expect("enough nodes");
    let lost = |fault: Fault, call| {
        faults[1..].iter().for_each(|node| node.add(Rule::new(fault.clone()).on(call)))
    };
    lost(Fault::LoseReply, Call::Acquire);
    lost(Fault::Fail(unavailable()), Call::Release);
    let manager = Uuid::new_v4();
    quorum
        .acquire(acquire(&name("job"), HolderId::new(manager, 1), T / 10))
        .await
        .expect_err("one");
    faults[1..].iter().for_each(leasehold::testing::Faults::heal);
    lost(Fault::Fail(unavailable()), Call::Release);
    let verdict = quorum.acquire(acquire(&name("job"), HolderId::new(manager, 2), T / 10)).await;
    let error = verdict.expect_err("neither granted nor held");
    assert!(error.to_string().contains("an earlier key of our own"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn quorum_is_as_old_as_its_majority() {
    let nodes = Nodes::new(3);
    let (stores, faults) = nodes.handles();
    let quorum = Quorum::new(stores).expect("enough nodes");
    assert_eq!(quorum.uptime(T).await.expect("up").age, None);
    nodes.0[0].restart();
    assert_eq!(quorum.uptime(T).await.expect("up").age, None);
    sleep(T).await;
    nodes.0[1].restart();
    sleep(T).await;
    assert_eq!(quorum.uptime(T).await.expect("up").age, Some(T * 2));
    faults[2].add(down());
    assert_eq!(quorum.uptime(T).await.expect("two are up").age, Some(T));
    faults[1].add(down());
    quorum.uptime(T).await.expect_err("one of three");
}

#[tokio::test(start_paused = true)]
async fn capabilities_of_a_quorum_are_those_of_its_nodes() {
    let (stores, faults) = Nodes::new(3).handles();
    let node = stores[0].capabilities();
    let quorum = Quorum::new(stores).expect("enough nodes");
    let can = quorum.capabilities();
    assert!(can.fencing && !can.reserves && can.time_left && can.wakeups);
    assert_eq!(can.renewal_batch, node.renewal_batch);
    let wait = || Wait::new(target(&name("job")), None, T);
    assert!(quorum.subscribe(wait()).await.expect("all are up").is_some());
    faults.iter().for_each(|node| node.add(down().on(Call::Subscribe)));
    let error = quorum.subscribe(wait()).await.expect_err("nobody subscribed");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

#[test]
fn outside_a_runtime_nobody_listens_for_reconnects() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let quorum = {
        let _in = runtime.enter();
        Quorum::new(Nodes::new(3).handles().0).expect("enough nodes")
    };
    assert!(quorum.reconnects().is_none());
    let _in = runtime.enter();
    assert!(quorum.reconnects().is_some());
}
