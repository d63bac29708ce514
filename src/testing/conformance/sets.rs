//! Several names in one step: all of them or none.

use super::party::*;
use crate::error::{ErrorKind, Result};
use crate::store::{Acquired, Name, SetVerdicts};
use crate::testing::Harness;

/// Three names of one holder, on one server of a cluster.
struct Set<'a>([Party<'a>; 3]);

impl<'a> Set<'a> {
    /// Returns `None` for a store that does not grant them in one step, after it has refused to.
    async fn of(harness: &'a dyn Harness, what: &str) -> Option<Self> {
        let tag = unique(what);
        let name = |at| Name::new(&format!("{{{tag}}}:{at}")).expect("a good name");
        let first = Party::new(harness, &name(0)).await;
        let mut second = Party::new(harness, &name(1)).await.same_as(&first);
        second.next();
        let mut third = Party::new(harness, &name(2)).await.same_as(&second);
        third.next();
        let set = Self([first, second, third]);
        if set.0[0].store.is_atomic(&set.0.each_ref().map(|party| &party.name)) {
            return Some(set);
        }
        assert_eq!(set.acquire().await.expect_err("no set").kind(), ErrorKind::Unsupported);
        None
    }

    async fn acquire(&self) -> Result<SetVerdicts> {
        let requests = self.0.iter().map(|party| party.request()).collect();
        self.0[0].store.acquire_all(requests).await
    }

    async fn verdicts(&self) -> [Result<Option<Acquired>>; 3] {
        let verdicts = self.acquire().await.expect("verdicts");
        verdicts.try_into().expect("a verdict for each name")
    }

    /// Returns the fencing tokens of a grant.
    async fn granted(&self) -> [Option<u64>; 3] {
        self.verdicts().await.map(|verdict| granted(some(verdict)).fence)
    }

    /// Returns which names are held by this set.
    async fn held(&self) -> [bool; 3] {
        let [first, second, third] = &self.0;
        [first.holds(1).await, second.holds(1).await, third.holds(1).await]
    }

    async fn release(&self) {
        for party in &self.0 {
            assert_eq!(released(party.release(0).await), None);
        }
    }
}

/// Returns the verdict on a name that was not left alone.
#[track_caller]
fn some(verdict: Result<Option<Acquired>>) -> Result<Acquired> {
    verdict.map(|verdict| verdict.expect("a verdict of its own"))
}

#[track_caller]
fn left_alone(verdict: &Result<Option<Acquired>>) {
    assert!(
        matches!(verdict, Ok(None)),
        "expected a name to be left alone, the store says {verdict:?}"
    );
}

/// Each name has a hold, a time to live and a fencing token of its own.
pub async fn set_of_free_names_is_granted(harness: &dyn Harness) {
    let Some(set) = Set::of(harness, "set-free").await else { return };
    let since = set.0[0].now();
    let fences = set.granted().await;
    assert_eq!(set.held().await, [true; 3]);
    for (party, fence) in set.0.iter().zip(fences) {
        assert_eq!(fence.is_some(), party.store.capabilities().fencing);
        let left = party.holding().await.and_then(|holding| holding.remaining);
        assert!(party.fresh(left, since), "{left:?}");
    }
    set.release().await;
    let later = set.granted().await;
    for (party, (before, after)) in set.0.iter().zip(fences.into_iter().zip(later)) {
        assert!(party.follows(before, after), "{after:?} after {before:?}");
    }
}

/// The verdict on a held name has the time that its holder has left, as that of a single acquire.
pub async fn set_with_a_held_name_takes_no_name(harness: &dyn Harness) {
    for at in 0..3 {
        let Some(set) = Set::of(harness, "set-held").await else { return };
        let holder = Party::new(harness, &set.0[at].name).await;
        let since = holder.now();
        granted(holder.acquire().await);
        for (other, verdict) in set.verdicts().await.into_iter().enumerate() {
            if other == at {
                let left = held(some(verdict));
                assert!(holder.fresh(left, since), "{left:?}");
            } else {
                left_alone(&verdict);
                let mut party = Party::new(harness, &set.0[other].name).await;
                granted(party.again().acquire().await);
                assert_eq!(released(party.release(0).await), None);
            }
        }
        assert_eq!(set.held().await, [false; 3]);
        assert!(holder.holds(1).await);
        assert_eq!(released(holder.release(0).await), None);
        set.granted().await;
    }
}

/// Checks that a repeated grant has the same fencing tokens, so that a lost reply costs nothing. Clauses 2 and 5.
pub async fn set_is_granted_again_with_the_same_fences(harness: &dyn Harness) {
    let Some(set) = Set::of(harness, "set-again").await else { return };
    let fences = set.granted().await;
    assert_eq!(set.granted().await, fences);
    // One of them was lost meanwhile.
    assert!(set.0[1].force().await);
    let [first, second, third] = set.granted().await;
    assert_eq!([first, third], [fences[0], fences[2]]);
    assert!(set.0[1].follows(fences[1], second), "{second:?} after {fences:?}");
    assert_eq!(set.held().await, [true; 3]);
}

/// Checks that a late copy that finds another holder acquires no name, and leaves what the set still holds. Clause 2.
pub async fn late_copy_of_a_set_changes_nothing(harness: &dyn Harness) {
    let Some(set) = Set::of(harness, "set-late").await else { return };
    set.granted().await;
    assert_eq!(released(set.0[0].release(0).await), None);
    assert!(set.0[1].force().await);
    let other = Party::new(harness, &set.0[1].name).await;
    granted(other.acquire().await);
    let [first, second, third] = set.verdicts().await;
    left_alone(&first);
    held(some(second));
    left_alone(&third);
    assert_eq!(set.held().await, [false, false, true]);
    assert!(other.holds(1).await);
}

/// Checks that the other names stay free. Clause 11.
pub async fn set_with_what_is_not_a_lock_takes_no_name(harness: &dyn Harness) {
    let Some(set) = Set::of(harness, "set-kind").await else { return };
    if !harness.occupy(&set.0[1].name).await {
        return;
    }
    let [first, second, third] = set.verdicts().await;
    left_alone(&first);
    wrong_type(second);
    left_alone(&third);
    for party in [&set.0[0], &set.0[2]] {
        assert_eq!(party.holding().await, None);
    }
}
