//! Fencing tokens.

use super::party::*;
use crate::store::{Fencing, RenewBatch};
use crate::testing::Harness;

/// After release, deletion, force or expiry, the next grant has a larger one. Clause 8.
pub async fn fences_grow_whatever_ends_a_hold(harness: &dyn Harness) {
    let name = unique("fences");
    let mut party = Party::new(harness, &name).await;
    let mut last = granted(party.acquire().await).fence;
    for end in ["release", "delete", "force", "expiry"] {
        match end {
            "release" => assert_eq!(released(party.release(0).await), None),
            "delete" => harness.lose(&name).await,
            "force" => assert!(party.force().await),
            _ => {
                party.ttl = harness.ttl();
                assert_eq!(renewed(party.renew().await), None);
                party.outlast().await;
            }
        }
        let next = granted(party.again().acquire().await).fence;
        assert!(party.follows(last, next), "{last:?}, {next:?} after {end}");
        last = next;
    }
}

/// The holder may use every token of the block, so no other grant may get one of them. Clause 8.
pub async fn reserved_block_of_fences_is_never_given_again(harness: &dyn Harness) {
    let mut party = Party::new(harness, &unique("block")).await;
    let mut last = None;
    for round in 0..20 {
        let next = granted(party.again().acquire().await).fence;
        assert!(round == 0 || party.follows(last, next), "{last:?}, {next:?}");
        last = next;
        assert_eq!(released(party.release(0).await), None);
    }
}

/// A long hold must not outlive what the store remembers of its fencing token. Clause 8.
pub async fn memory_of_the_last_fence_is_renewed(harness: &dyn Harness) {
    // The block is so large that a clock alone, without memory, would not pass it in time.
    let block = 1_000_000;
    let mut party = Party::new(harness, &unique("memory")).await;
    party.fencing = Some(Fencing::new(block, Some(harness.ttl())));
    let first = granted(party.acquire().await).fence;
    let items = vec![party.renewal().with_keep_fence(true)];
    let batch = RenewBatch::new(items, party.ttl, PATIENCE).with_fence_retention(Some(LONG));
    assert_eq!(renewed(party.renew_batch(batch).await), None);
    harness.elapse(harness.ttl() + harness.slack()).await;
    assert_eq!(released(party.release(0).await), None);
    let second = granted(party.again().acquire().await).fence;
    let block = if party.store.capabilities().fence_blocks { block } else { 1 };
    let least = first.map(|first| first + u64::from(block));
    assert!(second >= least, "{first:?}, then {second:?}");
}

/// They grow also after the store has forgotten the last one. Clause 8.
pub async fn fences_grow_beyond_the_memory_of_the_last(harness: &dyn Harness) {
    let mut party = Party::new(harness, &unique("forgotten")).await;
    party.fencing = Some(Fencing::new(BLOCK, Some(harness.ttl())));
    let first = granted(party.acquire().await).fence;
    assert_eq!(released(party.release(0).await), None);
    harness.elapse(harness.ttl() + harness.slack()).await;
    let second = granted(party.again().acquire().await).fence;
    assert!(party.follows(first, second), "{first:?}, then {second:?}");
}

/// An acquire that requests none gets none, and is granted all the same.
pub async fn without_fencing_there_is_no_fence(harness: &dyn Harness) {
    let mut party = Party::new(harness, &unique("unfenced")).await;
    party.fencing = None;
    assert_eq!(granted(party.acquire().await).fence, None);
    assert_eq!(granted(party.acquire().await).fence, None);
}
