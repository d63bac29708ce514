//! Fencing tokens.

use super::party::*;
use crate::error::ErrorKind;
use crate::store::{
    Fencing, HolderId, Mode, RenewBatch, Reservation, Reserve, Store, TokenVerdict,
};
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

/// Asks to reserve a block from `first` for the holder of a party.
async fn reserve(party: &Party<'_>, holder: HolderId, first: u64) -> TokenVerdict {
    let fencing = Fencing::new(BLOCK, Some(LONG));
    let items = vec![Reservation::new(party.target(), holder, first, fencing)];
    let reserved = party.store.reserve(Reserve::new(items, PATIENCE)).await.expect("an answer");
    assert_eq!(reserved.verdicts.len(), 1, "one item, {:?}", reserved.verdicts);
    reserved.verdicts.into_iter().next().and_then(Result::ok).expect("a verdict")
}

/// A proposal reserves nothing; a token that the caller names is stored if the holder is there and it is larger than the last
/// one, and by no second copy. Clauses 2 and 8.
pub async fn token_that_the_caller_names_must_be_larger(harness: &dyn Harness) {
    let store = harness.store().await;
    let can = store.capabilities();
    if !can.reserves {
        let error = store.reserve(Reserve::new(Vec::new(), PATIENCE)).await.expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        return;
    }
    let modes = [Mode::Exclusive, Mode::Read, Mode::Write];
    for mode in modes.into_iter().filter(|mode| can.supports(*mode)) {
        let mut party = Party::new(harness, &unique("named")).await.to(mode);
        let other = HolderId::new(uuid::Uuid::new_v4(), 1);
        party.fencing = Some(Fencing::proposal());
        let first = granted(party.acquire().await).fence.expect("a proposal");
        let again = granted(party.acquire().await).fence.expect("a proposal");
        assert!(again >= first, "{mode:?}: {again} after {first}");
        let gone = reserve(&party, other, first).await;
        assert!(matches!(gone, TokenVerdict::NotYours(_)), "{mode:?}: {gone:?}");
        assert_eq!(reserve(&party, party.holder, first).await, TokenVerdict::Stored, "{mode:?}");
        let last = first + u64::from(BLOCK) - 1;
        for late in [first, first - 1, last] {
            let verdict = reserve(&party, party.holder, late).await;
            assert_eq!(verdict, TokenVerdict::outrun(last), "{mode:?}");
        }
        assert!(granted(party.acquire().await).fence > Some(last), "{mode:?}");
        assert_eq!(released(party.release(0).await), None);
        let late = reserve(&party, party.holder, last + 1).await;
        assert!(matches!(late, TokenVerdict::NotYours(_)), "{mode:?}: {late:?}");
        // A grant of the store itself goes on behind it.
        party.fencing = Some(Fencing::new(BLOCK, Some(LONG)));
        assert!(granted(party.again().acquire().await).fence > Some(last), "{mode:?}");
        assert_eq!(released(party.release(0).await), None);
    }
}
