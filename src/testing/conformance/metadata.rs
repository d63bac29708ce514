//! Metadata: the description of a holder. A store without it passes, because it refuses it.

use super::party::*;
use crate::error::{ErrorKind, Result};
use crate::store::{Annotate, Describe, Metadata, Mode, Owner, Owners, Topic, Wait, Wakeups};
use crate::testing::Harness;
use std::time::{Duration, SystemTime};
use tokio::time::timeout;
use uuid::Uuid;

fn value(revision: u64) -> Metadata {
    Metadata::new(Owner::new("conformance").version("1"), revision)
        .with_label(Some("two\nlines".into()))
        .with_value(Some(format!("value {revision}")))
        .with_fence(Some(7))
        .with_since(Some(SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_123)))
}

async fn writes(party: &Party<'_>, metadata: Option<Metadata>) -> Result<bool> {
    let request = Annotate::new(party.target(), party.holder, metadata, LONG, PATIENCE);
    party.store.annotate(request).await
}

/// Returns whether the holder has the name.
async fn records(party: &Party<'_>, revision: u64) -> bool {
    writes(party, Some(value(revision))).await.expect("the store keeps metadata")
}

async fn deletes(party: &Party<'_>) -> bool {
    writes(party, None).await.expect("the store deletes metadata")
}

async fn reported(party: &Party<'_>) -> Option<Metadata> {
    party.holding().await.and_then(|holder| holder.metadata).map(|metadata| *metadata)
}

async fn watches(party: &Party<'_>) -> Option<Wakeups> {
    let request = Wait::new(party.target(), None, PATIENCE).with_topic(Topic::Metadata);
    party.store.subscribe(request).await.expect("the store accepts observers")
}

/// Returns whether the store keeps none. The question is about another name: a write that is late at one node of a quorum
/// would be that of the holder which the test makes next.
async fn refuses(harness: &dyn Harness) -> bool {
    let stranger = Party::new(harness, &unique("metadata-refused")).await;
    match writes(&stranger, Some(value(1))).await {
        Ok(there) => {
            assert!(!there, "nobody has the name");
            false
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            true
        }
    }
}

/// See [`Store::annotate`](crate::store::Store::annotate): only a present holder writes, and only what it has written is
/// reported.
pub async fn metadata_is_that_of_the_present_holder(harness: &dyn Harness) {
    let (one, other) = Party::two(harness, &unique("metadata")).await;
    if refuses(harness).await {
        return;
    }
    granted(one.acquire().await);
    assert_eq!(reported(&one).await, None);
    assert!(records(&one, 2).await);
    assert_eq!(reported(&other).await, Some(value(2)), "every part of it");
    assert!(!records(&other, 9).await, "it does not hold");
    assert!(!deletes(&other).await, "it has written nothing");
    assert_eq!(reported(&other).await, Some(value(2)));
    released(one.release(0).await);
    assert!(!records(&one, 3).await, "it holds no more");
    granted(other.acquire().await);
    assert_eq!(reported(&other).await, None, "never that of an earlier holder");
    deletes(&one).await;
    assert!(records(&other, 1).await, "numbers are those of one holder");
    assert!(!deletes(&one).await, "late");
    assert_eq!(reported(&one).await, Some(value(1)));
    assert!(deletes(&other).await);
    assert_eq!(reported(&one).await, None);
    assert!(other.holds(1).await, "the lock stays");
}

/// Clause 2: a copy that comes late changes nothing.
pub async fn metadata_may_be_written_twice_and_late(harness: &dyn Harness) {
    let one = Party::new(harness, &unique("metadata-late")).await;
    if refuses(harness).await {
        return;
    }
    granted(one.acquire().await);
    for (revision, newest) in [(1, 1), (1, 1), (3, 3), (2, 3), (3, 3), (4, 4)] {
        assert!(records(&one, revision).await);
        assert_eq!(reported(&one).await, Some(value(newest)));
    }
    assert!(deletes(&one).await);
    assert!(!deletes(&one).await);
}

/// A hold keeps its description, whatever else happens to it, and ends with it.
pub async fn metadata_lives_as_long_as_the_hold(harness: &dyn Harness) {
    let one = Party::new(harness, &unique("metadata-life")).await;
    if refuses(harness).await {
        return;
    }
    granted(one.acquire().await);
    assert!(records(&one, 1).await);
    recorded(one.release(2).await);
    one.renew().await.expect("renewed");
    assert_eq!(reported(&one).await, Some(value(1)));
    released(one.release(1).await);
    assert!(one.holds(1).await);
    assert_eq!(reported(&one).await, Some(value(1)));
    recorded(one.release(2).await);
    assert!(records(&one, 2).await);
    assert!(one.holds(2).await, "the hold count is not touched");
    let one = one.short();
    one.renew().await.expect("renewed");
    one.outlast().await;
    assert!(one.holding().await.is_none());
    assert!(!records(&one, 3).await, "it has expired");
    let next = Party::new(harness, &one.name).await;
    granted(next.acquire().await);
    assert_eq!(reported(&next).await, None);
}

/// See [`Topic::Metadata`].
pub async fn metadata_wakes_observers(harness: &dyn Harness) {
    let (one, other) = Party::two(harness, &unique("metadata-watch")).await;
    if refuses(harness).await {
        return;
    }
    let Some(mut hints) = watches(&other).await else { return };
    granted(one.acquire().await);
    // The subscription may have been on its way until now.
    for revision in 1.. {
        assert!(records(&one, revision).await);
        if timeout(PATIENCE / 50, hints.recv()).await.is_ok() {
            break;
        }
        assert!(revision < 50, "nobody was woken");
    }
    while timeout(PATIENCE / 50, hints.recv()).await.is_ok() {}
    assert!(records(&one, 100).await);
    timeout(PATIENCE, hints.recv()).await.expect("woken by what is written");
    while timeout(PATIENCE / 50, hints.recv()).await.is_ok() {}
    assert!(deletes(&one).await);
    timeout(PATIENCE, hints.recv()).await.expect("woken by what is deleted");
}

/// In a mode that several holders share there is none.
pub async fn metadata_of_a_shared_name_is_refused(harness: &dyn Harness) {
    for mode in [Mode::Read, Mode::Permits { size: 2, take: 1 }] {
        let party = Party::of(harness, &unique("metadata-shared"), mode).await;
        let error =
            writes(&party, Some(value(1))).await.expect_err("only exclusive holds have metadata");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }
}

/// See [`Store::describe`](crate::store::Store::describe). A store without it passes, because it refuses it.
pub async fn description_of_a_manager_is_kept_until_it_is_deleted(harness: &dyn Harness) {
    let store = harness.store().await;
    let one = Uuid::new_v4();
    let other = Uuid::new_v4();
    let describe = |manager, owner: Option<Owner>| {
        let request = Describe::new(manager, owner, LONG, PATIENCE);
        let store = &store;
        async move { store.describe(request).await }
    };
    let known = async || {
        let keys = [one, other].map(|manager| manager.to_string()[..18].to_owned());
        store.owners(Owners::new(keys.to_vec(), PATIENCE)).await.expect("the store answers")
    };
    let owner = Owner::new("conformance").version("1\n2").host("");
    if let Err(error) = describe(one, Some(owner.clone())).await {
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        return;
    }
    assert_eq!(known().await, [Some(owner.clone()), None]);
    let later = Owner { pid: 7, ..owner };
    for _ in 0..2 {
        describe(one, Some(later.clone())).await.expect("it is written again");
        assert_eq!(known().await, [Some(later.clone()), None]);
    }
    describe(other, None).await.expect("there is nothing to delete");
    for _ in 0..2 {
        describe(one, None).await.expect("it is deleted");
        assert_eq!(known().await, [None, None]);
    }
}
