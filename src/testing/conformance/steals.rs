//! Steals, wishes and notes. A store without steals returns `Unsupported`; the others agree on what follows.

use super::party::*;
use crate::clock::Instant;
use crate::error::ErrorKind;
use crate::store::{Absence, Acquired, Act, Fencing, ForceRelease, Hint, HolderId, Mode, Want};
use crate::testing::Harness;
use std::time::Duration;
use tokio::time::timeout;
use uuid::Uuid;

/// Returns whether the verdict of a renewal fits a hold that ended by this act. A store without notes does not know it.
fn is_reported(absence: Option<Absence>, act: Act) -> bool {
    absence == act.absence() || matches!(absence, Some(Absence::Taken | Absence::Gone))
}

/// The new holder has the name with a larger fencing token, and the next renewal of the old one shows it.
pub async fn stolen_name_has_the_new_holder_only(harness: &dyn Harness) {
    let (old, thief) = Party::two(harness, &unique("steal")).await;
    let before = granted(old.acquire().await);
    recorded(old.release(2).await);
    if !thief.steals() {
        let error = thief.steal(&old).await.expect_err("it has no steals");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(old.holds(2).await);
        return;
    }
    let after = granted(thief.steal(&old).await);
    assert!(thief.holds(1).await, "the count is that of the new holder");
    assert!(old.follows(before.fence, after.fence), "{:?} {:?}", before.fence, after.fence);
    let absence = renewed(old.renew().await);
    assert!(is_reported(absence, Act::Stolen), "{absence:?}");
    assert!(released(old.release(3).await).is_some());
    assert!(released(old.release(0).await).is_some());
    assert!(thief.holds(1).await);
    if let Some(note) = old.note().await {
        assert_eq!((note.act, &*note.by, &*note.why), (Act::Stolen, "host:7", WHY));
        assert!(note.fence_to_beat.is_none() || note.fence_to_beat == after.fence);
        assert_eq!(absence, Some(Absence::Stolen), "a store with notes reports the act");
    }
    assert_eq!(thief.note().await, None, "it is not for the new holder");
    assert_eq!(released(thief.release(0).await), None);
}

/// Copies find the new holder; when that has released, they take the name from no other, and grant nothing.
pub async fn steal_may_run_twice_and_late(harness: &dyn Harness) {
    let (old, thief) = Party::two(harness, &unique("steal-late")).await;
    let next = Party::new(harness, &old.name).await;
    if !thief.steals() {
        return;
    }
    granted(old.acquire().await);
    let first = granted(thief.steal(&old).await);
    let again = granted(thief.steal(&old).await);
    assert_eq!(first.fence, again.fence);
    assert!(thief.holds(1).await);
    assert_eq!(released(thief.release(0).await), None);
    assert_eq!(not_yours(thief.steal(&old).await), Absence::Gone, "the name is free");
    assert!(next.holding().await.is_none());
    let fence = granted(next.acquire().await).fence;
    held(thief.steal(&old).await);
    assert!(next.holds(1).await);
    // The old holder has it again, as a client that uses its id again.
    assert_eq!(released(next.release(0).await), None);
    assert!(fence.is_none() || fence > first.fence);
}

/// An old holder whose id is used again, as by a thread of Redisson, is not stolen from by a late copy.
pub async fn late_steal_leaves_an_old_holder_that_is_back(harness: &dyn Harness) {
    let (old, thief) = Party::two(harness, &unique("steal-back")).await;
    granted(old.acquire().await);
    if !thief.steals() {
        return;
    }
    granted(thief.steal(&old).await);
    // A store that steals in two steps, and has no fencing tokens, knows no such clients either.
    let note = old.note().await;
    let has_notes = note.is_some_and(|note| note.fence_to_beat.is_some());
    assert_eq!(released(thief.release(0).await), None);
    granted(old.acquire().await);
    if has_notes {
        held(thief.steal(&old).await);
        assert!(old.holds(1).await);
    }
}

/// Neither a third holder nor a free name is touched.
pub async fn steal_from_whoever_does_not_hold_takes_nothing(harness: &dyn Harness) {
    let (holder, thief) = Party::two(harness, &unique("steal-other")).await;
    let absent = Party::new(harness, &holder.name).await;
    if !thief.steals() {
        return;
    }
    assert_eq!(not_yours(thief.steal(&absent).await), Absence::Gone);
    assert!(holder.holding().await.is_none());
    granted(holder.acquire().await);
    held(thief.steal(&absent).await);
    assert!(holder.holds(1).await);
    assert_eq!(renewed(holder.renew().await), None);
    assert_eq!(holder.note().await, None);
}

/// What is stolen expires like any other grant.
pub async fn stolen_hold_expires_after_its_time_to_live(harness: &dyn Harness) {
    let (old, thief) = Party::two(harness, &unique("steal-ttl")).await;
    let thief = thief.short();
    granted(old.acquire().await);
    if !thief.steals() {
        return;
    }
    let since: Instant = thief.now();
    granted(thief.steal(&old).await);
    let left = thief.holding().await.and_then(|holding| holding.remaining);
    assert!(thief.fresh(left, since), "{left:?}");
    thief.outlast().await;
    assert!(thief.holding().await.is_none());
}

/// In the other modes it is refused, and nothing runs.
pub async fn steal_in_another_mode_is_refused(harness: &dyn Harness) {
    for mode in [Mode::Read, Mode::Write, Mode::Permits { size: 2, take: 1 }] {
        let name = unique("steal-mode");
        let old = Party::of(harness, &name, mode).await;
        let thief = Party::of(harness, &name, mode).await;
        if !old.supported() {
            continue;
        }
        granted(old.acquire().await);
        let error = thief.steal(&old).await.expect_err("it is no exclusive lock");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{mode:?}");
        assert_eq!(renewed(old.renew().await), None, "{mode:?}");
    }
}

/// A name that is wanted is held on, and the holder finds the note. The hint arrives where there are inboxes.
pub async fn wish_leaves_a_note_and_the_hold(harness: &dyn Harness) {
    let (holder, other) = Party::two(harness, &unique("want")).await;
    let inbox = holder.store.inbox(holder.holder.manager());
    match other.want(&holder).await {
        Err(error) if error.kind() == ErrorKind::Unsupported => return,
        sent => assert!(!sent.expect("an answer"), "no party holds it"),
    }
    assert_eq!(holder.note().await, None);
    granted(holder.acquire().await);
    assert!(!holder.want(&other).await.expect("an answer"), "the other does not hold it");
    for _ in 0..2 {
        assert!(other.want(&holder).await.expect("an answer"));
    }
    assert!(holder.holds(1).await);
    assert_eq!(renewed(holder.renew().await), None);
    let note = holder.note().await.expect("a note");
    assert_eq!((note.act, &*note.why, note.fence_to_beat), (Act::Wanted, WHY, None));
    let Some(mut inbox) = inbox else { return };
    // The subscription may still be on its way, and messages may be lost.
    let heard = async {
        loop {
            other.want(&holder).await.expect("an answer");
            let hint = timeout(Duration::from_millis(200), inbox.recv()).await;
            if let Ok(hint) = hint {
                return hint;
            }
        }
    };
    let heard = timeout(PATIENCE, heard).await.expect("a hint in time");
    assert_eq!(heard, Some(Hint::Want(holder.name.clone())));
    while let Ok(more) = timeout(Duration::from_millis(200), inbox.recv()).await {
        assert_eq!(more, Some(Hint::Want(holder.name.clone())));
    }
    if other.steals() {
        granted(other.steal(&holder).await);
        let heard = timeout(PATIENCE, inbox.recv()).await.expect("a hint in time");
        assert_eq!(heard, Some(Hint::Verify(holder.name.clone())));
    }
}

/// With a reason, a forced release leaves a note for the holder; without one, it leaves none.
pub async fn forced_release_with_a_reason_leaves_a_note(harness: &dyn Harness) {
    for mode in [Mode::Exclusive, Mode::Read, Mode::Write] {
        let (holder, other) = Party::two(harness, &unique("force-note")).await;
        let holder = holder.to(mode);
        let other = other.to(mode);
        if !holder.supported() {
            continue;
        }
        granted(holder.acquire().await);
        assert!(other.force().await);
        assert_eq!(holder.note().await, None);
        let absence = renewed(holder.renew().await);
        assert!(absence.is_some() && absence != Some(Absence::Forced), "{mode:?}");
        granted(holder.acquire().await);
        let force = ForceRelease::new(other.target(), PATIENCE).with_reason(Some(reason()));
        assert!(other.store.force_release(force).await.expect("an answer"));
        let absence = renewed(holder.renew().await);
        assert!(is_reported(absence, Act::Forced), "{mode:?} {absence:?}");
        if let Some(note) = holder.note().await {
            assert_eq!((note.act, &*note.why), (Act::Forced, WHY));
            assert_eq!(absence, Some(Absence::Forced), "{mode:?}");
            assert!(note.at.elapsed().is_ok_and(|ago| ago < Duration::from_secs(3600)));
        }
    }
}

/// The holder that is named is freed, and no other.
pub async fn forced_release_from_one_holder_frees_no_other(harness: &dyn Harness) {
    let (holder, other) = Party::two(harness, &unique("force-from")).await;
    for reason in [None, Some(reason())] {
        granted(holder.acquire().await);
        let force = async |from: &Party<'_>| {
            let force = ForceRelease::new(holder.target(), PATIENCE).with_reason(reason.clone());
            let force = force.with_from(Some(from.holder.to_string()));
            other.store.force_release(force).await.expect("an answer")
        };
        assert!(!force(&other).await);
        assert!(holder.holds(1).await);
        assert_eq!(renewed(holder.renew().await), None);
        assert!(force(&holder).await);
        assert!(holder.holding().await.is_none());
        assert!(renewed(holder.renew().await).is_some());
        assert!(!force(&holder).await, "it is free");
    }
}

/// The fence of a steal is reserved in a block, as that of any grant.
pub async fn fences_grow_from_steal_to_steal(harness: &dyn Harness) {
    let mut old = Party::new(harness, &unique("steal-fence")).await;
    old.fencing = Some(Fencing::new(BLOCK, Some(LONG)));
    if !old.steals() {
        return;
    }
    let mut before = granted(old.acquire().await).fence;
    for _ in 0..5 {
        let thief = Party::new(harness, &old.name).await;
        let after = granted(thief.steal(&old).await).fence;
        assert!(old.follows(before, after), "{before:?} {after:?}");
        (old, before) = (thief, after);
    }
}

/// A refusal reports that the holder's manager lingers, and the question of the one that waits reaches its inbox. No other
/// manager is asked.
pub async fn manager_that_lingers_is_asked_to_yield(harness: &dyn Harness) {
    let (mut holder, other) = Party::two(harness, &unique("rest")).await;
    if !holder.store.capabilities().lingers {
        return;
    }
    let manager = uuid::Builder::from_custom_bytes(Uuid::new_v4().into_bytes()).into_uuid();
    let mut inbox = holder.store.inbox(manager).expect("it has inboxes");
    for lingers in [false, true] {
        if lingers {
            holder.holder = HolderId::new(manager, 1);
        }
        let ask = || other.store.want(Want::resting(other.target(), PATIENCE));
        assert!(!ask().await.expect("an answer"), "it is free");
        granted(holder.acquire().await);
        match other.acquire().await {
            Ok(Acquired::Held { remaining, closed: None, lingers: reported }) => {
                assert_eq!(reported, lingers);
                assert!(remaining.is_some_and(|left| left <= LONG && left > LONG / 2));
            }
            verdict => panic!("{verdict:?}"),
        }
        assert_eq!(ask().await.expect("an answer"), lingers);
        if lingers {
            // The subscription may not be there yet.
            let hint = loop {
                let heard = timeout(Duration::from_millis(200), inbox.recv()).await;
                if let Ok(Some(hint)) = heard {
                    break hint;
                }
                ask().await.expect("an answer");
            };
            assert_eq!(hint, Hint::Yield(holder.name.clone()));
        }
        assert!(holder.holds(1).await, "a question takes nothing");
        assert_eq!(holder.note().await, None);
        assert_eq!(released(holder.release(0).await), None);
    }
}
