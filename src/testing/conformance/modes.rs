//! Modes: a store refuses the modes that it does not support.

use super::party::*;
use crate::error::{ErrorKind, Fate, Result};
use crate::store::{
    ForceRelease, Inspect, Mode, Release, RenewBatch, RenewCall, Renewal, Store, Target, Wait,
};
use crate::testing::Harness;

/// The modes that a store need not have.
const OTHERS: [Mode; 3] = [Mode::Read, Mode::Write, Mode::Permits { size: 3, take: 1 }];

#[track_caller]
fn unsupported<T: std::fmt::Debug>(mode: Mode, verdict: Result<T>) {
    match verdict {
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            assert_eq!(error.fate(), Fate::NotExecuted, "{mode:?}");
        }
        other => panic!("expected Unsupported for {mode:?}, the store says {other:?}"),
    }
}

/// Every operation returns `Unsupported` and leaves a hold of another mode as it is. Clause 11.
pub async fn mode_that_is_not_supported_is_refused(harness: &dyn Harness) {
    let (holder, other) = Party::two(harness, &unique("mode")).await;
    let store = &other.store;
    let modes = OTHERS.into_iter().filter(|mode| !store.capabilities().supports(*mode));
    for mode in modes {
        for held in [false, true] {
            if held {
                granted(holder.acquire().await);
                recorded(holder.release(2).await);
            }
            let target = || Target::new(other.name.clone(), mode);
            for (party, count) in [(&other, 0), (&other, 1), (&holder, 0), (&holder, 2)] {
                let mut request = party.request();
                request.target = target();
                unsupported(mode, store.acquire(request).await);
                let release = Release::new(target(), party.holder, count, PATIENCE);
                unsupported(mode, store.release(release).await);
                let items = vec![Renewal::new(target(), party.holder)];
                unsupported(
                    mode,
                    RenewCall::join(store.renew(RenewBatch::new(items, LONG, PATIENCE))).await,
                );
            }
            unsupported(mode, store.inspect(Inspect::new(target(), PATIENCE)).await);
            unsupported(mode, store.force_release(ForceRelease::new(target(), PATIENCE)).await);
            let wait = Wait::new(target(), Some(other.holder), PATIENCE);
            unsupported(mode, store.subscribe(wait).await);
            assert_eq!(holder.holding().await.is_some(), held, "{mode:?}");
        }
        assert!(holder.holds(2).await, "{mode:?}");
        assert_eq!(released(holder.release(0).await), None);
    }
}

/// None of its items is renewed, even if all others have a mode that is supported. Clause 11.
pub async fn batch_with_a_mode_that_is_not_supported_is_refused(harness: &dyn Harness) {
    let party = Party::new(harness, &unique("mode-batch")).await;
    let store = &party.store;
    let since = party.now();
    granted(party.acquire().await);
    let modes = OTHERS.into_iter().filter(|mode| !store.capabilities().supports(*mode));
    for mode in modes {
        let other = Renewal::new(Target::new(unique("mode-item"), mode), party.holder);
        for items in [vec![party.renewal(), other.clone()], vec![other, party.renewal()]] {
            unsupported(
                mode,
                RenewCall::join(store.renew(RenewBatch::new(items, LONG * 10, PATIENCE))).await,
            );
        }
    }
    let left = party.holding().await.and_then(|holding| holding.remaining);
    assert!(party.fresh(left, since), "{left:?}");
}
