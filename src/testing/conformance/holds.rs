//! Holds: grants, counts, releases and renewals.

use super::party::*;
use crate::store::{Absence, Acquired, Name, RenewBatch};
use crate::testing::Harness;
use tokio::task::JoinSet;
use uuid::Uuid;

/// The grant carries a fencing token if the store has any, and other handles see the hold.
pub async fn free_name_is_granted(harness: &dyn Harness) {
    let (party, other) = Party::two(harness, &unique("free")).await;
    let grant = granted(party.acquire().await);
    assert_eq!(grant.fence.is_some(), party.store.capabilities().fencing);
    assert!(party.holds(1).await);
    let seen = other.holding().await.map(|holding| holding.holder);
    assert_eq!(seen, Some(party.holder.to_string()));
}

/// The verdict has the longest time that the holder has left.
pub async fn held_name_is_refused_with_the_time_it_has_left(harness: &dyn Harness) {
    let (holder, other) = Party::two(harness, &unique("held")).await;
    let since = holder.now();
    granted(holder.acquire().await);
    let left = held(other.acquire().await);
    assert!(holder.fresh(left, since), "{left:?}");
    harness.elapse(harness.ttl()).await;
    let less = held(other.acquire().await);
    assert!(less < left || left.is_none(), "{less:?} after {left:?}");
    assert!(holder.fresh(less, since), "{less:?}");
    assert!(holder.holds(1).await);
}

/// The store decides requests that arrive together one after the other. Clause 1.
pub async fn only_one_of_many_requests_is_granted(harness: &dyn Harness) {
    let name = unique("rivals");
    let mut requests = JoinSet::new();
    for _ in 0..5 {
        let mut party = Party::new(harness, &name).await;
        for _ in 0..5 {
            let request = party.again().request();
            requests.spawn(party.store.acquire(request));
        }
    }
    let verdicts = requests.join_all().await;
    let grants = verdicts.iter().filter(|verdict| matches!(verdict, Ok(Acquired::Granted { .. })));
    assert_eq!(grants.count(), 1, "{verdicts:?}");
}

/// So a lost reply costs nothing: the request is sent again. Clause 5.
pub async fn same_holder_id_is_granted_again_with_the_same_fence(harness: &dyn Harness) {
    let party = Party::new(harness, &unique("again")).await;
    let first = granted(party.acquire().await);
    harness.elapse(harness.ttl()).await;
    let since = party.now();
    let second = granted(party.acquire().await);
    assert_eq!(second.fence, first.fence);
    assert!(second.sent >= since);
    assert!(party.holds(1).await);
    let left = party.holding().await.and_then(|holding| holding.remaining);
    assert!(party.fresh(left, since), "{left:?}");
}

/// It sets the count, higher or lower, and leaves the time to live as it is. Clause 2.
pub async fn record_sets_the_count_and_nothing_else(harness: &dyn Harness) {
    let party = Party::new(harness, &unique("count")).await;
    let since = party.now();
    granted(party.acquire().await);
    harness.elapse(harness.ttl()).await;
    for count in [2, 3, 3, 7, 2] {
        recorded(party.release(count).await);
        assert!(party.holds(count.into()).await, "count {count}");
        let left = party.holding().await.and_then(|holding| holding.remaining);
        assert!(party.fresh(left, since), "{left:?}");
    }
}

/// Its hold is gone, so the store must report that, and must not grant another. Clause 4.
pub async fn record_never_creates(harness: &dyn Harness) {
    let (party, other) = Party::two(harness, &unique("creates")).await;
    assert_eq!(released(party.release(2).await), Some(Absence::Gone));
    assert_eq!(party.holding().await, None);
    granted(other.acquire().await);
    assert_eq!(released(party.release(2).await), Some(Absence::Taken));
    assert!(other.holds(1).await);
}

/// At a lower count the name is still held; at zero the next acquire is granted. Clause 2.
pub async fn release_lowers_the_count_and_at_zero_gives_back(harness: &dyn Harness) {
    let (party, other) = Party::two(harness, &unique("release")).await;
    granted(party.acquire().await);
    recorded(party.release(3).await);
    for count in [2, 1] {
        assert_eq!(released(party.release(count).await), None);
        assert!(party.holds(count.into()).await, "count {count}");
        held(other.acquire().await);
    }
    assert_eq!(released(party.release(0).await), None);
    assert_eq!(party.holding().await, None);
    granted(other.acquire().await);
}

/// It neither lowers nor ends another hold, nor creates one. Clause 4.
pub async fn release_by_another_holder_id_changes_nothing(harness: &dyn Harness) {
    let (party, other) = Party::two(harness, &unique("foreign")).await;
    for count in [0, 1] {
        assert_eq!(released(other.release(count).await), Some(Absence::Gone));
        assert_eq!(party.holding().await, None);
    }
    granted(party.acquire().await);
    recorded(party.release(2).await);
    for count in [0, 1] {
        assert_eq!(released(other.release(count).await), Some(Absence::Taken));
        assert!(party.holds(2).await);
    }
}

/// Three renewals have the effect of one. Clause 2.
pub async fn renewal_sets_the_time_to_live_and_never_adds_to_it(harness: &dyn Harness) {
    let party = Party::new(harness, &unique("renew")).await;
    granted(party.acquire().await);
    recorded(party.release(2).await);
    harness.elapse(harness.ttl()).await;
    for _ in 0..3 {
        let since = party.now();
        assert_eq!(renewed(party.renew().await), None);
        let left = party.holding().await.and_then(|holding| holding.remaining);
        assert!(party.fresh(left, since), "{left:?}");
    }
    assert!(party.holds(2).await);
}

/// It creates no hold, and leaves the hold of another holder as it is. Clause 4.
pub async fn renewal_never_creates(harness: &dyn Harness) {
    let (mut party, other) = Party::two(harness, &unique("revive")).await;
    assert_eq!(renewed(party.renew().await), Some(Absence::Gone));
    assert_eq!(party.holding().await, None);
    let since = other.now();
    granted(other.acquire().await);
    party.ttl = LONG * 10;
    assert_eq!(renewed(party.renew().await), Some(Absence::Taken));
    assert!(other.holds(1).await);
    let left = other.holding().await.and_then(|holding| holding.remaining);
    assert!(other.fresh(left, since), "{left:?}");
}

/// The batch has as many items as the store takes at once: held, gone and taken ones in turn.
pub async fn batch_of_renewals_is_answered_one_by_one_in_order(harness: &dyn Harness) {
    let name = unique("batch");
    let (mut party, mut other) = Party::two(harness, &name).await;
    let size = party.store.capabilities().renewal_batch.clamp(1, 300);
    let mut batch = Vec::new();
    for i in 0..size {
        let name = Name::new(&format!("{name}:{i}")).expect("a good name");
        (party.name, other.name) = (name.clone(), name);
        match i % 3 {
            0 => drop(granted(party.again().acquire().await)),
            1 => drop(granted(other.again().acquire().await)),
            _ => {}
        }
        batch.push(party.renewal());
    }
    let verdicts = party.renew_all(batch).await;
    let verdicts = verdicts.expect("the store answers the batch").verdicts;
    assert_eq!(verdicts.len(), size);
    for (i, verdict) in verdicts.into_iter().enumerate() {
        let expected = [None, Some(Absence::Taken), Some(Absence::Gone)][i % 3];
        assert_eq!(verdict.expect("a verdict on each"), expected, "number {i}");
    }
}

/// That holds for any number of items, whatever time they had left before.
pub async fn batch_has_one_time_to_live_for_all_its_items(harness: &dyn Harness) {
    let name = unique("batch-ttl");
    let mut party = Party::new(harness, &name).await;
    let size = party.store.capabilities().renewal_batch.clamp(1, 20);
    let name = |i: usize| Name::new(&format!("{name}:{i}")).expect("a good name");
    let mut items = Vec::new();
    for i in 0..size {
        party.name = name(i);
        party.ttl = if i % 2 == 0 { LONG } else { LONG / 2 };
        granted(party.acquire().await);
        items.push(party.renewal().with_keep_fence(i % 3 == 0));
    }
    for ttl in [LONG / 3, LONG] {
        party.ttl = ttl;
        let since = party.now();
        let batch = RenewBatch::new(items.clone(), ttl, PATIENCE).with_fence_retention(Some(LONG));
        let renewed = party.renew_batch(batch).await.expect("the store answers the batch");
        assert!(renewed.verdicts.iter().all(|verdict| matches!(verdict, Ok(None))), "{renewed:?}");
        for i in 0..size {
            party.name = name(i);
            let left = party.holding().await.expect("held").remaining;
            assert!(party.fresh(left, since), "number {i}: {left:?} left of {ttl:?}");
        }
    }
}

/// Client libraries resend requests that they take for lost. Clause 2.
pub async fn every_operation_may_run_twice(harness: &dyn Harness) {
    let (party, other) = Party::two(harness, &unique("twice")).await;
    let first = granted(party.acquire().await);
    let second = granted(party.acquire().await);
    assert_eq!(first.fence, second.fence);
    assert!(party.holds(1).await);
    for _ in 0..2 {
        recorded(party.release(2).await);
        assert!(party.holds(2).await);
    }
    for _ in 0..2 {
        assert_eq!(renewed(party.renew().await), None);
        assert!(party.holds(2).await);
    }
    for _ in 0..2 {
        assert_eq!(released(party.release(1).await), None);
        assert!(party.holds(1).await);
    }
    assert_eq!(released(party.release(0).await), None);
    assert_eq!(released(party.release(0).await), Some(Absence::Gone));
    granted(other.acquire().await);
    assert!(other.force().await);
    assert!(!other.force().await);
    assert_eq!(party.holding().await, None);
}

/// The late request is of an earlier hold, and the name has another holder by now. Clause 2.
pub async fn what_arrives_late_changes_nothing(harness: &dyn Harness) {
    let (party, other) = Party::two(harness, &unique("late")).await;
    granted(party.acquire().await);
    assert_eq!(released(party.release(0).await), None);
    granted(other.acquire().await);
    recorded(other.release(2).await);
    assert_eq!(released(party.release(2).await), Some(Absence::Taken));
    assert_eq!(renewed(party.renew().await), Some(Absence::Taken));
    assert_eq!(released(party.release(1).await), Some(Absence::Taken));
    assert_eq!(released(party.release(0).await), Some(Absence::Taken));
    held(party.acquire().await);
    assert!(other.holds(2).await);
}

/// It returns the holder id, the count and the remaining time, and nothing for a free name.
pub async fn inspection_reports_the_holder(harness: &dyn Harness) {
    let (party, other) = Party::two(harness, &unique("inspect")).await;
    assert_eq!(other.holding().await, None);
    let since = party.now();
    granted(party.acquire().await);
    recorded(party.release(4).await);
    let holding = other.holding().await.expect("held");
    assert_eq!(holding.holder, party.holder.to_string());
    assert_eq!(holding.hold_count, party.reported(4));
    assert!(party.fresh(holding.remaining, since), "{holding:?}");
    assert_eq!(released(party.release(0).await), None);
    assert_eq!(other.holding().await, None);
}

/// Every operation returns `WrongType`, and the other items of a batch are not affected. Clause 11.
pub async fn what_is_not_a_lock_is_left_alone(harness: &dyn Harness) {
    let name = unique("type");
    let (party, other) = Party::two(harness, &name).await;
    let neighbour = Party::new(harness, &unique("neighbour")).await;
    granted(neighbour.acquire().await);
    let batch = vec![party.renewal(), neighbour.renewal(), party.renewal()];
    if harness.occupy(&name).await {
        for _ in 0..2 {
            wrong_type(party.acquire().await);
            wrong_type(party.release(2).await);
            wrong_type(party.release(1).await);
            wrong_type(party.release(0).await);
            wrong_type(party.look().await);
            wrong_type(party.try_force().await);
        }
        let verdicts = party.renew_all(batch).await;
        let mut verdicts = verdicts.expect("an answer").verdicts.into_iter();
        wrong_type(verdicts.next().expect("a verdict"));
        assert!(matches!(verdicts.next(), Some(Ok(None))));
        wrong_type(verdicts.next().expect("a verdict"));
        // It is still there.
        wrong_type(other.acquire().await);
        harness.lose(&name).await;
    }
    assert!(neighbour.holds(1).await);
    granted(party.acquire().await);
}

/// Names have braces, white space, control characters, letters of many scripts, and up to 512 bytes.
pub async fn names_are_taken_as_they_are(harness: &dyn Harness) {
    let run = Uuid::new_v4();
    let mut names = vec![format!("{run}"), format!("{run} "), format!(" {run}")];
    for odd in ["{a}", "x{a}y", "{{a}}", "é☕锁", "a\nb", "a\0b", "*?[a]", "'\"\\", "%s"] {
        names.push(format!("{odd}:{run}"));
    }
    names.push(format!("{run}{}", "x".repeat(512 - 36)));
    names.push(format!("{run}{}", "é".repeat((512 - 36) / 2)));
    let (mut party, mut other) = Party::two(harness, &unique("odd")).await;
    let mut grants = Vec::new();
    for name in &names {
        party.name = Name::new(name).expect("a good name");
        other.name = party.name.clone();
        granted(party.again().acquire().await);
        held(other.acquire().await);
        grants.push((party.name.clone(), party.holder));
    }
    for (name, holder) in grants {
        (party.name, party.holder) = (name, holder);
        assert!(party.holds(1).await, "{:?}", party.name);
        assert_eq!(renewed(party.renew().await), None, "{:?}", party.name);
        assert_eq!(released(party.release(0).await), None, "{:?}", party.name);
        assert_eq!(party.holding().await, None, "{:?}", party.name);
    }
}
