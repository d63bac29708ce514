//! Semaphores, and kinds of locks that meet under one name. A store without semaphores passes, because it refuses the
//! mode.

use super::party::*;
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Absence, Acquired, Mode, Name, Resize, Wait};
use crate::testing::Harness;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

const fn permits(take: u32) -> Mode {
    Mode::Permits { size: 4, take }
}

async fn party<'a>(harness: &'a dyn Harness, name: &Name, take: u32) -> Party<'a> {
    Party::of(harness, name, permits(take)).await
}

/// Clauses 1, 2 and 5, for permits.
pub async fn permits_are_counted(harness: &dyn Harness) {
    let name = unique("permits");
    let one = party(harness, &name, 1).await;
    let three = party(harness, &name, 3).await;
    let two = party(harness, &name, 2).await;
    if !one.supported() {
        return;
    }
    for _ in 0..2 {
        granted(one.acquire().await);
        granted(three.acquire().await);
    }
    held(two.acquire().await);
    let holders = one.holders().await;
    assert_eq!(holders.iter().map(|holder| holder.hold_count).sum::<u64>(), 4, "{holders:?}");
    assert_eq!(holders.len(), 2);
    let other = Party::of(harness, &name, Mode::Permits { size: 5, take: 1 }).await;
    match other.acquire().await {
        Err(error) if error.kind() == ErrorKind::Invalid => {}
        verdict => panic!("expected another size to be refused, the store says {verdict:?}"),
    }
    for party in [&one, &three] {
        assert_eq!(renewed(party.renew().await), None);
    }
    assert_eq!(released(three.release(0).await), None);
    assert_eq!(released(three.release(0).await), Some(Absence::Gone));
    assert_eq!(renewed(three.renew().await), Some(Absence::Gone));
    granted(two.acquire().await);
    held(three.acquire().await);
    assert_eq!(released(one.release(0).await), None);
    assert_eq!(released(two.release(0).await), None);
    assert!(one.holders().await.is_empty());
    // An idle semaphore keeps its size.
    assert!(other.acquire().await.is_err_and(|error| error.kind() == ErrorKind::Invalid));
    granted(one.acquire().await);
    assert!(one.force().await && !one.force().await);
    granted(other.acquire().await);
}

/// A bundle is granted whole, and renewed whole.
pub async fn bundle_of_permits_is_all_or_none(harness: &dyn Harness) {
    let name = unique("bundle");
    let two = party(harness, &name, 2).await;
    let bundle = party(harness, &name, 3).await;
    if !two.supported() {
        return;
    }
    granted(two.acquire().await);
    for _ in 0..3 {
        held(bundle.acquire().await);
    }
    let rest = party(harness, &name, 2).await;
    granted(rest.acquire().await);
    assert_eq!(two.holders().await.len(), 2, "a bundle that was refused has nothing");
    for party in [&two, &rest] {
        assert_eq!(released(party.release(0).await), None);
    }
    granted(bundle.acquire().await);
    assert_eq!(renewed(bundle.renew().await), None);
    assert!(two.force().await);
    assert_eq!(renewed(bundle.renew().await), Some(Absence::Gone));
}

/// Clauses 3 and 7, for permits.
pub async fn permits_expire_and_come_back(harness: &dyn Harness) {
    let name = unique("permits-expiry");
    let gone = party(harness, &name, 3).await.short();
    let mut stays = party(harness, &name, 1).await.short();
    let next = party(harness, &name, 2).await;
    if !gone.supported() {
        return;
    }
    granted(gone.acquire().await);
    granted(stays.acquire().await);
    stays.ttl = LONG;
    assert_eq!(renewed(stays.renew().await), None);
    held(next.acquire().await);
    gone.outlast().await;
    granted(next.acquire().await);
    assert_eq!(renewed(gone.renew().await), Some(Absence::Gone));
    assert_eq!(renewed(stays.renew().await), None);
    assert_eq!(stays.holders().await.len(), 2);
}

/// Each release of permits wakes a waiter, which may need no more.
pub async fn release_of_permits_wakes_a_waiter(harness: &dyn Harness) {
    let name = unique("permits-wake");
    let one = party(harness, &name, 1).await;
    let three = party(harness, &name, 3).await;
    if !one.supported() || !one.store.capabilities().wakeups {
        return;
    }
    granted(one.acquire().await);
    granted(three.acquire().await);
    let waiter = party(harness, &name, 1).await;
    let wait = Wait::new(waiter.target(), Some(waiter.holder), PATIENCE);
    let mut wakeups = waiter.store.subscribe(wait).await.expect("wake-ups").expect("some");
    while timeout(Duration::from_millis(300), wakeups.recv()).await.is_ok() {}
    assert_eq!(released(one.release(0).await), None);
    timeout(PATIENCE, wakeups.recv()).await.expect("a release wakes a waiter");
}

/// See [`Inspection::waiting`](crate::store::Inspection::waiting). A store may not know how many wait.
pub async fn waiters_for_permits_are_counted(harness: &dyn Harness) {
    let name = unique("permits-waiting");
    let all = party(harness, &name, 4).await;
    let waiter = party(harness, &name, 1).await;
    if !all.supported() || !all.store.capabilities().wakeups {
        return;
    }
    let counted = async || all.look_any().await.expect("the store returns the holders").waiting;
    granted(all.acquire().await);
    let Some(before) = counted().await else { return };
    assert_eq!(before, 0, "one holds, and none waits");
    // A waiter asks, and listens meanwhile.
    held(waiter.acquire().await);
    let wait = Wait::new(waiter.target(), Some(waiter.holder), PATIENCE);
    let mut wakeups = waiter.store.subscribe(wait).await.expect("wake-ups").expect("some");
    let enters = async {
        while counted().await != Some(1) {
            _ = timeout(Duration::from_millis(10), wakeups.recv()).await;
        }
    };
    timeout(PATIENCE, enters).await.expect("a waiter is counted");
    drop(wakeups);
    assert_eq!(released(waiter.release(0).await), Some(Absence::Gone));
    assert_eq!(released(all.release(0).await), None);
}

async fn resize(party: &Party<'_>, size: u32) -> Result<Option<u32>> {
    party.store.resize(Resize::new(party.name.clone(), size, Some(LONG), PATIENCE)).await
}

/// Returns whether the store has semaphores, and can change their sizes.
async fn can_resize(party: &Party<'_>) -> bool {
    let request = Resize::new(unique("resize-can"), 1, Some(LONG), PATIENCE);
    let unsupported = |error: &Error| error.kind() == ErrorKind::Unsupported;
    party.supported() && !party.store.resize(request).await.as_ref().is_err_and(unsupported)
}

async fn resized(party: &Party<'_>, size: u32) -> Option<u32> {
    resize(party, size).await.expect("the store sets the size")
}

/// Returns a new holder, with its own handle, of `take` permits of `size`.
async fn sized<'a>(harness: &'a dyn Harness, name: &Name, size: u32, take: u32) -> Party<'a> {
    Party::of(harness, name, Mode::Permits { size, take }).await
}

#[track_caller]
fn invalid(verdict: Result<Acquired>) {
    match verdict {
        Err(error) if error.kind() == ErrorKind::Invalid => {}
        verdict => panic!("expected the size to be refused, the store says {verdict:?}"),
    }
}

/// Permits that a resize adds are granted at once.
pub async fn resize_that_grows_wakes_waiters(harness: &dyn Harness) {
    let name = unique("resize-wake");
    let all = party(harness, &name, 4).await;
    let waiter = party(harness, &name, 2).await;
    if !can_resize(&all).await {
        return;
    }
    granted(all.acquire().await);
    held(waiter.acquire().await);
    let wait = Wait::new(waiter.target(), Some(waiter.holder), PATIENCE);
    let wakes = waiter.store.capabilities().wakeups;
    let mut wakeups = match wakes {
        true => waiter.store.subscribe(wait).await.expect("wake-ups"),
        false => None,
    };
    if let Some(wakeups) = &mut wakeups {
        while timeout(Duration::from_millis(300), wakeups.recv()).await.is_ok() {}
    }
    assert_eq!(resized(&all, 6).await, Some(4));
    if let Some(wakeups) = &mut wakeups {
        timeout(PATIENCE, wakeups.recv()).await.expect("a resize wakes a waiter");
    }
    granted(waiter.acquire().await);
    held(party(harness, &name, 1).await.acquire().await);
    assert_eq!(all.look_any().await.expect("an answer").size, Some(6));
}

/// Permits that are out stay out, and count.
pub async fn resize_below_what_is_out_takes_nothing_away(harness: &dyn Harness) {
    let name = unique("resize-shrink");
    let one = party(harness, &name, 1).await;
    let three = party(harness, &name, 3).await;
    if !can_resize(&one).await {
        return;
    }
    granted(one.acquire().await);
    granted(three.acquire().await);
    assert_eq!(resized(&one, 2).await, Some(4));
    let next = sized(harness, &name, 2, 1).await;
    held(next.acquire().await);
    for party in [&one, &three] {
        assert_eq!(renewed(party.renew().await), None);
    }
    assert_eq!(three.holders().await.len(), 2);
    assert_eq!(released(one.release(0).await), None);
    held(next.acquire().await);
    assert_eq!(released(three.release(0).await), None);
    granted(next.acquire().await);
    let both = sized(harness, &name, 2, 2).await;
    held(both.acquire().await);
    assert_eq!(released(next.release(0).await), None);
    granted(both.acquire().await);
}

/// Not all processes know of a resize.
pub async fn resize_leaves_handles_with_a_former_size_working(harness: &dyn Harness) {
    let name = unique("resize-former");
    let first = party(harness, &name, 1).await;
    if !can_resize(&first).await {
        return;
    }
    granted(first.acquire().await);
    // Twice is once.
    assert_eq!((resized(&first, 6).await, resized(&first, 6).await), (Some(4), Some(6)));
    granted(party(harness, &name, 2).await.acquire().await);
    granted(sized(harness, &name, 6, 1).await.acquire().await);
    invalid(sized(harness, &name, 5, 1).await.acquire().await);
    invalid(sized(harness, &name, 7, 1).await.acquire().await);
    assert_eq!(released(first.release(0).await), None);
    assert_eq!(resized(&first, 3).await, Some(6));
    held(first.acquire().await);
    // It has no more than 3.
    invalid(party(harness, &name, 4).await.acquire().await);
    assert_eq!(resized(&first, 4).await, Some(3));
    granted(sized(harness, &name, 3, 1).await.acquire().await);
    held(sized(harness, &name, 6, 1).await.acquire().await);
    assert!(first.force().await);
    granted(sized(harness, &name, 9, 1).await.acquire().await);
    invalid(party(harness, &name, 1).await.acquire().await);
}

/// There need be no permits out.
pub async fn resize_makes_a_semaphore_and_resizes_an_idle_one(harness: &dyn Harness) {
    let name = unique("resize-idle");
    let four = party(harness, &name, 4).await;
    if !can_resize(&four).await {
        return;
    }
    assert_eq!(resized(&four, 2).await, None);
    invalid(four.acquire().await);
    let two = sized(harness, &name, 2, 2).await;
    granted(two.acquire().await);
    assert_eq!(released(two.release(0).await), None);
    assert_eq!(resized(&four, 4).await, Some(2));
    granted(four.acquire().await);
    held(two.acquire().await);
}

/// What is in use as another kind of lock stays as it is, and a store without permits refuses.
pub async fn resize_is_for_semaphores_only(harness: &dyn Harness) {
    for mode in [Mode::Exclusive, Mode::Read, Mode::Write] {
        let name = unique("resize-kinds");
        let holder = Party::of(harness, &name, mode).await;
        if !can_resize(&party(harness, &name, 1).await).await {
            let error = resize(&holder, 2).await.expect_err("there are no semaphores");
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        } else if holder.supported() {
            granted(holder.acquire().await);
            wrong_type(resize(&holder, 2).await);
            assert_eq!(renewed(holder.renew().await), None, "{mode:?}");
        }
    }
}

/// Clause 11: what is in use as another kind of lock stays as it is.
pub async fn kinds_of_locks_do_not_mix(harness: &dyn Harness) {
    let modes = [Mode::Exclusive, Mode::Read, Mode::Write, permits(1)];
    for held_as in modes {
        let name = unique("kinds");
        let holder = Party::of(harness, &name, held_as).await;
        if !holder.supported() {
            continue;
        }
        granted(holder.acquire().await);
        for asked_as in modes.into_iter().filter(|mode| mode.kind() != held_as.kind()) {
            let party = Party::of(harness, &name, asked_as).await;
            if !party.supported() {
                continue;
            }
            wrong_type(party.acquire().await);
            wrong_type(party.look_any().await);
            wrong_type(party.try_force().await);
        }
        assert_eq!(renewed(holder.renew().await), None, "{held_as:?}");
        assert_eq!(holder.holders().await.len(), 1, "{held_as:?}");
        assert_eq!(released(holder.release(0).await), None);
    }
}

/// A manager renews its holds of all kinds in one batch.
pub async fn batch_of_several_kinds_is_answered_in_order(harness: &dyn Harness) {
    let store = harness.store().await;
    let mut parties = Vec::new();
    for round in 0..3 {
        for mode in [Mode::Exclusive, permits(2), Mode::Read, Mode::Write] {
            let mut party = Party::of(harness, &unique("mixed"), mode).await;
            party.store = Arc::clone(&store);
            if party.supported() {
                granted(party.acquire().await);
                if round == 1 {
                    assert_eq!(released(party.release(0).await), None);
                }
                parties.push((round, party));
            }
        }
    }
    let most = parties[0].1.store.capabilities().renewal_batch;
    for part in parties.chunks(most) {
        let items = part.iter().map(|(_, party)| party.renewal()).collect();
        let renewed = part[0].1.renew_all(items).await.expect("an answer");
        for ((round, party), verdict) in part.iter().zip(renewed.verdicts) {
            let expected = (*round == 1).then_some(Absence::Gone);
            assert_eq!(verdict.expect("a verdict"), expected, "{:?}", party.mode);
        }
    }
}
