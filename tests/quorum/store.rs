//! The quorum by itself, as a store: what the engine would catch as well.

use super::{Duration, MOMENT, Nodes, T, down, name, settle, sleep, timed};
use leasehold::ErrorKind;
use leasehold::store::{Acquire, Acquired, Mode, Name, Quorum, Store, Token};
use leasehold::testing::{Call, Fault, Rule};
use uuid::Uuid;

fn acquire(name: &Name, token: Token, count: u32, timeout: Duration) -> Acquire {
    let (name, mode, fencing) = (name.clone(), Mode::Exclusive, None);
    Acquire { name, token, mode, count, ttl: T, fencing, timeout }
}

fn late(delay: Duration) -> Rule {
    Rule::new(Fault::Delay(delay)).on(Call::Acquire)
}

/// Half of T is what a grant must leave, after 1 % for the servers' clocks and 2 ms for rounding.
#[tokio::test(start_paused = true)]
async fn a_grant_that_leaves_less_than_half_is_refused_and_given_back() {
    let just = T - T / 100 - Duration::from_millis(2) - T / 2;
    for (delay, enough) in [(just, true), (just + MOMENT, false)] {
        let nodes = Nodes::new(3);
        let (stores, faults) = nodes.handles();
        faults.iter().for_each(|node| node.add(late(delay)));
        let quorum = Quorum::new(stores).expect("enough nodes");
        let token = Token::new(Uuid::new_v4(), 1);
        // Each node may take a part of the time only, so the whole is longer than anybody would wait.
        let verdict = quorum.acquire(acquire(&name("job"), token, 1, T * 4)).await;
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
async fn a_grant_that_nobody_awaits_is_given_back() {
    let nodes = Nodes::new(3);
    let (stores, faults) = nodes.handles();
    faults.iter().for_each(|node| node.add(late(Duration::from_millis(50))));
    let quorum = Quorum::new(stores).expect("enough nodes");
    let token = Token::new(Uuid::new_v4(), 1);
    drop(quorum.acquire(acquire(&name("job"), token, 1, T / 10)));
    sleep(Duration::from_millis(10)).await;
    assert!(nodes.free(), "it is on its way");
    sleep(Duration::from_millis(100)).await;
    assert!(nodes.free(), "{:?}", nodes.keys());
}

#[tokio::test(start_paused = true)]
async fn a_nested_grant_that_nobody_awaits_leaves_the_outer_one() {
    let nodes = Nodes::new(3);
    let (stores, _) = nodes.handles();
    let quorum = Quorum::new(stores).expect("enough nodes");
    let (name, token) = (name("job"), Token::new(Uuid::new_v4(), 1));
    quorum.acquire(acquire(&name, token, 1, T / 10)).await.expect("free");
    drop(quorum.acquire(acquire(&name, token, 2, T / 10)));
    settle().await;
    assert_eq!(nodes.keys(), [1; 3]);
    let holding = quorum.inspect(&name).await.expect("answers").expect("held");
    assert_eq!(holding.hold_count, 2);
}

/// One node is somebody else's, one is free, one is out of reach: it may be a split, so it is tried again.
#[tokio::test(start_paused = true)]
async fn a_split_is_tried_again_but_not_beyond_the_time_limit() {
    let nodes = Nodes::new(3);
    let (stores, faults) = nodes.handles();
    let name = name("job");
    stores[0].acquire(acquire(&name, Token::new(Uuid::new_v4(), 1), 1, T)).await.expect("free");
    faults[2].add(down());
    let quorum = Quorum::new(stores).expect("enough nodes");
    for millis in [3, 40, 400] {
        let (asked, timeout) = (faults[1].calls(Call::Acquire), Duration::from_millis(millis));
        let token = Token::new(Uuid::new_v4(), 1);
        let (took, verdict) = timed(quorum.acquire(acquire(&name, token, 1, timeout))).await;
        assert!(matches!(verdict, Ok(Acquired::Held { .. })), "{verdict:?}");
        assert!(took <= timeout, "{took:?} of {timeout:?}");
        let rounds = faults[1].calls(Call::Acquire) - asked;
        assert!((1..=6).contains(&rounds), "{rounds} in {took:?}");
        assert!(millis < 400 || rounds == 6, "{rounds}: there was time for more");
    }
}
