//! Holds end by release, expiry, deletion or force, and waiters are woken.

use super::party::*;
use crate::store::{Absence, Acquired, Wait, Wakeups};
use crate::testing::Harness;
use std::time::Duration;
use tokio::time::timeout;

/// There is one after every operation that leaves a hold. Clause 3.
pub async fn there_is_always_a_time_to_live(harness: &dyn Harness) {
    let (party, other) = Party::two(harness, &unique("ttl")).await;
    for step in ["grant", "same", "count", "renewal", "release", "other"] {
        match step {
            "grant" | "same" => drop(granted(party.acquire().await)),
            "count" => recorded(party.release(2).await),
            "renewal" => assert_eq!(renewed(party.renew().await), None),
            "release" => assert_eq!(released(party.release(1).await), None),
            _ => drop(held(other.acquire().await)),
        }
        let holding = party.holding().await.expect("held");
        let has_time = party.store.capabilities().time_left;
        assert_eq!(holding.remaining.is_some(), has_time, "after {step}: {holding:?}");
    }
}

/// The other asks again and again, closer and closer to the end. Clause 7.
pub async fn hold_expires_after_its_time_to_live_and_not_before(harness: &dyn Harness) {
    let (holder, other) = Party::two(harness, &unique("expiry")).await;
    let holder = holder.short();
    let grant = granted(holder.acquire().await);
    let running = holder.now();
    // A clock that runs 1 % faster, and rounding: the engine allows for both.
    let promised = holder.ttl - holder.ttl / 100 - Duration::from_millis(2);
    loop {
        let asked = other.now().saturating_duration_since(running);
        match other.acquire().await {
            Ok(Acquired::Held { remaining, .. }) => {
                assert!(asked <= holder.ttl + harness.slack(), "held after {asked:?}");
                let pause = remaining.unwrap_or_default() / 2;
                harness.elapse(pause.max(Duration::from_millis(1))).await;
            }
            verdict => {
                granted(verdict);
                let kept = other.now().saturating_duration_since(grant.sent);
                assert!(kept >= promised, "kept for {kept:?} of {:?}", holder.ttl);
                return;
            }
        }
    }
}

/// No request of its holder brings it back. Clause 4.
pub async fn expired_hold_does_not_come_back(harness: &dyn Harness) {
    let party = Party::new(harness, &unique("expired")).await.short();
    party.lapse().await;
    assert_eq!(party.holding().await, None);
    assert_eq!(released(party.release(2).await), Some(Absence::Gone));
    assert_eq!(renewed(party.renew().await), Some(Absence::Gone));
    assert_eq!(released(party.release(1).await), Some(Absence::Gone));
    assert_eq!(released(party.release(0).await), Some(Absence::Gone));
    assert!(!party.force().await);
    assert_eq!(party.holding().await, None);
}

/// Without the renewal it would have expired. Clause 7.
pub async fn renewed_hold_outlives_its_first_time_to_live(harness: &dyn Harness) {
    let (mut party, other) = Party::two(harness, &unique("outlive")).await;
    party.ttl = harness.ttl();
    granted(party.acquire().await);
    party.ttl = LONG;
    assert_eq!(renewed(party.renew().await), None);
    harness.elapse(harness.ttl() + harness.slack()).await;
    held(other.acquire().await);
    assert!(party.holds(1).await);
}

/// The time is after the call and not after the store ran the operation: the deadline counts from it. Clause 6.
pub async fn verdicts_say_when_the_request_left(harness: &dyn Harness) {
    let party = Party::new(harness, &unique("sent")).await;
    for round in 0..10 {
        let before = party.now();
        let sent = if round % 2 == 0 {
            granted(party.acquire().await).sent
        } else {
            let renewed = party.renew().await.expect("verdicts");
            renewed.sent
        };
        let answered = party.now();
        assert!(before <= sent && sent <= answered, "{before:?} {sent:?}");
        let left = party.holding().await.and_then(|holding| holding.remaining);
        assert_eq!(left.is_some(), party.store.capabilities().time_left);
        let Some(left) = left.map(|left| left + harness.slack()) else { continue };
        // It ran at `looked - (ttl - left)` at the latest.
        let looked = party.now();
        assert!(sent + party.ttl <= looked + left, "{sent:?} {looked:?} {left:?}");
    }
}

/// Requests of its holder report it, and the name is free. Clause 4.
pub async fn deleted_hold_is_gone(harness: &dyn Harness) {
    let name = unique("deleted");
    let (party, other) = Party::two(harness, &name).await;
    granted(party.acquire().await);
    harness.lose(&name).await;
    assert_eq!(party.holding().await, None);
    assert_eq!(renewed(party.renew().await), Some(Absence::Gone));
    assert_eq!(released(party.release(2).await), Some(Absence::Gone));
    assert_eq!(released(party.release(1).await), Some(Absence::Gone));
    assert_eq!(released(party.release(0).await), Some(Absence::Gone));
    granted(other.acquire().await);
    assert_eq!(renewed(party.renew().await), Some(Absence::Taken));
}

/// The verdict reports whether there was one.
pub async fn forced_release_ends_any_hold(harness: &dyn Harness) {
    let (party, other) = Party::two(harness, &unique("force")).await;
    assert!(!other.force().await);
    granted(party.acquire().await);
    recorded(party.release(2).await);
    assert!(other.force().await);
    assert_eq!(renewed(party.renew().await), Some(Absence::Gone));
    granted(other.acquire().await);
}

/// The test waits as the engine does: it asks once more before it sleeps.
async fn listen(party: &Party<'_>) -> Option<Wakeups> {
    let wait = Wait::new(party.target(), Some(party.holder), PATIENCE);
    let wakeups = party.store.subscribe(wait).await;
    let wakeups = wakeups.expect("the store takes subscriptions");
    assert_eq!(wakeups.is_some(), party.store.capabilities().wakeups);
    held(party.acquire().await);
    wakeups
}

async fn heard(wakeups: Option<Wakeups>) -> bool {
    match wakeups {
        Some(mut wakeups) => timeout(PATIENCE, wakeups.recv()).await.is_ok(),
        None => true,
    }
}

/// It wakes all that subscribed before. A release that only lowers the count need not.
pub async fn last_release_wakes_a_waiter(harness: &dyn Harness) {
    let (party, waiter) = Party::two(harness, &unique("wake")).await;
    granted(party.acquire().await);
    let wakeups = listen(&waiter).await;
    recorded(party.release(2).await);
    assert_eq!(released(party.release(1).await), None);
    assert_eq!(released(party.release(0).await), None);
    assert!(heard(wakeups).await, "the waiter sleeps on");
}

/// It wakes a waiter as the last release does.
pub async fn forced_release_wakes_a_waiter(harness: &dyn Harness) {
    let (party, waiter) = Party::two(harness, &unique("wake-force")).await;
    granted(party.acquire().await);
    let wakeups = listen(&waiter).await;
    assert!(party.force().await);
    assert!(heard(wakeups).await, "the waiter sleeps on");
}

/// Its holds stay until they expire, and nothing changes for other handles. Clause 7.
pub async fn closing_one_handle_leaves_the_leases(harness: &dyn Harness) {
    let (party, other) = Party::two(harness, &unique("close")).await;
    granted(party.acquire().await);
    party.store.close(PATIENCE).await;
    held(other.acquire().await);
    assert!(other.force().await);
    granted(other.acquire().await);
}
