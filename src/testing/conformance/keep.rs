//! Names that stay closed after a release, and renewals with a time to live of their own.

use super::party::*;
use crate::error::ErrorKind;
use crate::store::{Absence, Acquired, Keep, Mark, Mode, Release, Released, RenewBatch};
use crate::testing::Harness;
use std::time::Duration;

async fn close(party: &Party<'_>, count: u32, keep: Keep) -> crate::Result<Released> {
    let request = Release::new(party.target(), party.holder, count, PATIENCE);
    party.store.release(request.with_keep(Some(keep))).await
}

fn done(time: Duration) -> Keep {
    Keep::new(Mark::Done, time)
}

/// The mark is a hold without a holder, and names its kind. A store that cannot keep it leaves the hold as it is.
pub async fn release_with_a_mark_keeps_the_name_closed(harness: &dyn Harness) {
    let (party, other) = Party::two(harness, &unique("closed")).await;
    for mark in [Mark::Done, Mark::Kept] {
        granted(party.acquire().await);
        let since = party.now();
        let closed = close(&party, 0, Keep::new(mark, LONG)).await;
        if !party.store.capabilities().keeps {
            assert_eq!(closed.expect_err("it cannot").kind(), ErrorKind::Unsupported);
            assert!(party.holds(1).await);
            assert_eq!(released(party.release(0).await), None);
            continue;
        }
        assert_eq!(released(closed), None);
        let refused = other.acquire().await;
        match refused {
            Ok(Acquired::Held { closed, .. }) if mark == Mark::Done => {
                assert_eq!(closed, Some(mark), "the refusal names it");
            }
            Ok(Acquired::Held { closed, .. }) => {
                assert!(closed.is_none_or(|closed| closed == mark), "{closed:?}");
            }
            _ => {}
        }
        let left = held(refused);
        assert!(party.fresh(left, since), "{left:?}");
        let holding = other.holding().await.expect("the name is closed");
        assert_eq!((&*holding.holder, holding.hold_count), (mark.holder(), 0));
        assert!(party.fresh(holding.remaining, since), "{holding:?}");
        let closed = holding.closed.expect("by a mark");
        assert_eq!((closed.mark, closed.by), (mark, party.holder.to_string()));
        assert!(closed.ago <= party.now().saturating_duration_since(since) + harness.slack());
        assert!(party.force().await);
        assert_eq!(other.holding().await, None);
    }
}

/// What comes twice, or late, leaves the mark as it is. Clause 2.
pub async fn mark_stays_whatever_comes_late(harness: &dyn Harness) {
    let (party, other) = Party::two(harness, &unique("marked")).await;
    if !party.store.capabilities().keeps {
        return;
    }
    granted(party.acquire().await);
    let since = party.now();
    assert_eq!(released(close(&party, 0, done(LONG)).await), None);
    let mark = async |when: &str| {
        let holding = other.holding().await.unwrap_or_else(|| panic!("gone after {when}"));
        assert!(party.fresh(holding.remaining, since), "{holding:?} after {when}");
        assert_eq!(holding.closed.map(|closed| closed.mark), Some(Mark::Done), "{when}");
    };
    let again = released(close(&party, 0, done(LONG * 2)).await);
    assert!(matches!(again, None | Some(Absence::Taken)), "{again:?}");
    mark("the same once more").await;
    assert_eq!(released(close(&other, 0, done(LONG * 2)).await), Some(Absence::Taken));
    mark("that of another").await;
    assert_eq!(released(party.release(0).await), Some(Absence::Taken));
    mark("a release").await;
    assert_eq!(renewed(party.renew().await), Some(Absence::Taken));
    mark("a renewal").await;
    held(party.acquire().await);
    mark("an acquire").await;
    assert_eq!(released(party.release(2).await), Some(Absence::Taken));
    mark("a record of a count").await;
}

/// At the end of its time the name is free. Clause 3.
pub async fn mark_ends_by_itself(harness: &dyn Harness) {
    let (party, other) = Party::two(harness, &unique("reopens")).await;
    if !party.store.capabilities().keeps {
        return;
    }
    let first = granted(party.acquire().await);
    assert_eq!(released(close(&party, 0, done(harness.ttl())).await), None);
    held(other.acquire().await);
    harness.elapse(harness.ttl() + harness.slack()).await;
    assert_eq!(other.holding().await, None);
    let second = granted(other.acquire().await);
    assert!(other.follows(first.fence, second.fence), "{:?}, {:?}", first.fence, second.fence);
    assert_eq!(released(close(&party, 0, done(LONG)).await), Some(Absence::Taken));
    assert!(other.holds(1).await, "a late copy harms nobody");
}

/// A request that only lowers the count leaves no mark, and one for a hold that is not there neither. Clause 4.
pub async fn mark_needs_the_last_lease_of_a_hold(harness: &dyn Harness) {
    let party = Party::new(harness, &unique("lowers")).await;
    if !party.store.capabilities().keeps {
        return;
    }
    assert_eq!(released(close(&party, 0, done(LONG)).await), Some(Absence::Gone));
    assert_eq!(party.holding().await, None);
    granted(party.acquire().await);
    recorded(party.release(2).await);
    assert_eq!(released(close(&party, 1, done(LONG)).await), None);
    assert!(party.holds(1).await);
}

/// Only an exclusive lock can keep its name closed. Clause 11.
pub async fn mark_of_another_mode_is_refused(harness: &dyn Harness) {
    for mode in [Mode::Read, Mode::Write, Mode::Permits { size: 2, take: 1 }] {
        let party = Party::of(harness, &unique("mode"), mode).await;
        if !party.supported() {
            continue;
        }
        granted(party.acquire().await);
        let refused = close(&party, 0, done(LONG)).await.expect_err("it is refused");
        assert_eq!(refused.kind(), ErrorKind::Unsupported, "{mode:?}");
        assert_eq!(party.holders().await.len(), 1, "{mode:?}");
        assert_eq!(released(party.release(0).await), None);
    }
}

/// A batch sets the time to live of each item. Clause 7.
pub async fn renewal_sets_a_time_to_live_of_its_own(harness: &dyn Harness) {
    let party = Party::new(harness, &unique("own-ttl")).await.short();
    if !party.store.capabilities().own_ttl {
        return;
    }
    let mut others = Vec::new();
    for label in ["first", "long", "last"] {
        // The batch is the first to make it short: on a slow machine it might end before that.
        let other = Party::new(harness, &unique(label)).await;
        granted(other.acquire().await);
        others.push(other);
    }
    let own = |other: &Party<'_>| Some(LONG).filter(|_| other.name.as_str().contains("long"));
    let item = |other| Party::renewal(other).with_ttl(own(other));
    let batch = RenewBatch::new(others.iter().map(item).collect(), party.ttl, PATIENCE);
    let verdicts = party.renew_batch(batch).await.expect("an answer").verdicts;
    assert!(verdicts.iter().all(|verdict| matches!(verdict, Ok(None))), "{verdicts:?}");
    party.outlast().await;
    for other in &others {
        assert_eq!(other.holding().await.is_some(), own(other).is_some(), "{}", other.name);
    }
}
