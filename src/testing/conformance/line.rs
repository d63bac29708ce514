//! Lines: the order of the managers that wait for an exclusive lock. A store without them passes, because it refuses arrivals.

use super::party::*;
use crate::error::{ErrorKind, Fate, Result};
use crate::store::{
    About, Acquired, Arrival, Inspect, Keep, Line, Mark, Name, Release, Released, Wait,
    WaitingManager,
};
use crate::testing::Harness;
use std::time::Duration;
use tokio::time::timeout;

/// Returns whether the store keeps arrivals.
fn has_line(party: &Party<'_>) -> bool {
    party.store.capabilities().line == Line::Arrivals
}

/// An arrival that is kept for long, and one of a call that does not wait.
fn waits(seconds: u64) -> Arrival {
    Arrival::new(Duration::from_secs(seconds), LONG)
}

const TRIES: Arrival = Arrival { waited: Duration::ZERO, kept: Duration::ZERO };

async fn asks(party: &Party<'_>, arrival: Arrival) -> Result<Acquired> {
    party.store.acquire(party.request().with_arrival(Some(arrival))).await
}

async fn leaves(party: &Party<'_>) -> Result<Released> {
    leaves_to(party, None).await
}

/// Gives up the arrival, or replaces it by that of the next waiter of the manager.
async fn leaves_to(party: &Party<'_>, next: Option<Arrival>) -> Result<Released> {
    let release = Release::arrival(party.target(), party.holder, PATIENCE);
    party.store.release(release.with_arrival(next)).await
}

/// Checks that it was done, whether there was an arrival or not.
#[track_caller]
fn left(verdict: Result<Released>) {
    assert_eq!(verdict.expect("an answer"), Released::done(0));
}

async fn line(party: &Party<'_>) -> Result<Vec<WaitingManager>> {
    let request = Inspect::new(party.target(), PATIENCE).with_about(About::Line);
    party.store.inspect(request).await.map(|inspection| inspection.line)
}

/// Expects these managers in the line.
async fn lined(parties: &[&Party<'_>]) {
    let expected: Vec<String> =
        parties.iter().map(|party| party.holder.manager().to_string()).collect();
    let waiting = line(parties[0]).await.expect("the store returns the line");
    let found: Vec<_> = waiting.iter().map(|waiting| waiting.manager.clone()).collect();
    assert_eq!(found, expected);
}

async fn three<'a>(harness: &'a dyn Harness, name: &Name) -> [Party<'a>; 3] {
    [
        Party::new(harness, name).await,
        Party::new(harness, name).await,
        Party::new(harness, name).await,
    ]
}

#[track_caller]
fn oldest(verdict: Result<Acquired>) -> Option<Duration> {
    match verdict {
        Ok(Acquired::Granted { oldest, .. }) => oldest,
        other => panic!("expected a grant, the store says {other:?}"),
    }
}

/// See [`Line`]: an arrival is refused, not ignored, and nothing is executed.
pub async fn arrival_in_a_line_that_does_not_exist_is_refused(harness: &dyn Harness) {
    let party = Party::new(harness, &unique("no-line")).await;
    if has_line(&party) {
        return;
    }
    for arrival in [waits(1), TRIES] {
        let error = asks(&party, arrival).await.expect_err("arrivals are not supported");
        assert_eq!((error.kind(), error.fate()), (ErrorKind::Unsupported, Fate::NotExecuted));
    }
    assert!(party.holding().await.is_none());
    let errors = [line(&party).await.map(drop), leaves(&party).await.map(drop)];
    for error in errors.map(|result| result.expect_err("there is no line")) {
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }
    granted(party.acquire().await);
    assert_eq!(released(party.release(0).await), None);
}

/// The oldest waiter gets the name, and nothing passes it but requests without an arrival.
pub async fn line_is_in_the_order_of_arrival(harness: &dyn Harness) {
    let name = unique("line-order");
    let [holder, old, young] = three(harness, &name).await;
    if !has_line(&holder) {
        return;
    }
    assert_eq!(oldest(asks(&holder, waits(0)).await), None);
    for (party, arrival) in [(&young, waits(10)), (&old, waits(20))] {
        let left = held(asks(party, arrival).await);
        assert!(left.is_none_or(|left| left <= holder.ttl), "{left:?}");
    }
    lined(&[&old, &young]).await;
    let (one, other) = Party::two(harness, &name).await;
    assert_eq!(released(holder.release(0).await), None);
    // The name is free, for the oldest.
    for (party, arrival) in [(&young, waits(10)), (&one, TRIES)] {
        let left = held(asks(party, arrival).await).expect("until the arrival lapses");
        assert!(left <= LONG, "{left:?}");
    }
    lined(&[&old, &young]).await;
    granted(other.acquire().await);
    assert_eq!(released(other.release(0).await), None);
    let waited = oldest(asks(&old, waits(20)).await).expect("one waits");
    let passed = Duration::from_secs(10);
    assert!(waited + harness.slack() >= passed && waited < passed + PATIENCE, "{waited:?}");
    lined(&[&young]).await;
    assert_eq!(released(old.release(0).await), None);
    assert_eq!(oldest(asks(&young, waits(10)).await), None);
    assert!(line(&one).await.expect("an answer").is_empty());
    // Now there is no waiter.
    assert_eq!(released(young.release(0).await), None);
    granted(asks(&one, TRIES).await);
}

/// Clauses 2 and 5, for arrivals.
pub async fn requests_with_an_arrival_may_run_twice_and_late(harness: &dyn Harness) {
    let name = unique("line-twice");
    let [holder, mut waiter, other] = three(harness, &name).await;
    if !has_line(&holder) {
        return;
    }
    let first = granted(asks(&holder, waits(0)).await);
    let again = granted(asks(&holder, waits(0)).await);
    assert_eq!(first.fence, again.fence);
    assert!(line(&holder).await.expect("an answer").is_empty(), "a holder does not wait");
    // A later copy makes no arrival younger.
    held(asks(&waiter, waits(20)).await);
    held(asks(&waiter, waits(1)).await);
    held(asks(&other, waits(10)).await);
    lined(&[&waiter, &other]).await;
    // The next waiter of the manager comes with its own age, and late copies for the one before change nothing.
    let before = waiter.holder;
    waiter.next();
    held(asks(&waiter, waits(5)).await);
    lined(&[&other, &waiter]).await;
    let later = std::mem::replace(&mut waiter.holder, before);
    held(asks(&waiter, waits(20)).await);
    for _ in 0..2 {
        left(leaves(&waiter).await);
    }
    lined(&[&other, &waiter]).await;
    waiter.holder = later;
    for _ in 0..2 {
        left(leaves(&waiter).await);
    }
    lined(&[&other]).await;
    // A record of a count records no arrival.
    for count in [2, 1] {
        recorded(holder.release(count).await);
    }
    lined(&[&other]).await;
    assert_eq!(released(holder.release(0).await), None);
}

/// See [`Release::arrival`].
pub async fn release_records_the_arrival_of_the_next_waiter(harness: &dyn Harness) {
    let name = unique("line-release");
    let [holder, other, third] = three(harness, &name).await;
    if !has_line(&holder) {
        return;
    }
    let gives = async |arrival| {
        let release = Release::new(holder.target(), holder.holder, 0, PATIENCE);
        holder.store.release(release.with_arrival(Some(arrival))).await
    };
    granted(asks(&holder, waits(0)).await);
    held(asks(&other, waits(10)).await);
    match gives(waits(20)).await {
        Ok(Released::Done { listeners }) => assert_eq!(listeners, 0, "the line orders them"),
        verdict => panic!("{verdict:?}"),
    }
    lined(&[&holder, &other]).await;
    held(asks(&other, waits(10)).await);
    // A late copy releases nothing and records no arrival.
    let mut next_of = Party::new(harness, &name).await;
    next_of.holder = holder.holder;
    next_of.next();
    granted(asks(&next_of, waits(20)).await);
    assert!(released(gives(waits(30)).await).is_some());
    lined(&[&other]).await;
    assert_eq!(released(next_of.release(0).await), None);
    left(leaves(&other).await);
    // Without a next waiter it takes none.
    granted(asks(&third, waits(0)).await);
    let release = Release::new(third.target(), third.holder, 0, PATIENCE).with_arrival(Some(TRIES));
    assert_eq!(released(third.store.release(release).await), None);
    assert!(line(&third).await.expect("an answer").is_empty());
}

/// A name that is closed by a mark has a line too, and the refusal names the mark.
pub async fn waiter_behind_a_mark_is_in_the_line(harness: &dyn Harness) {
    let name = unique("line-mark");
    let [holder, first, second] = three(harness, &name).await;
    if !has_line(&holder) || !holder.store.capabilities().keeps {
        return;
    }
    granted(holder.acquire().await);
    let keep = Keep::new(Mark::Done, LONG);
    let done = Release::new(holder.target(), holder.holder, 0, PATIENCE).with_keep(Some(keep));
    assert_eq!(released(holder.store.release(done).await), None);
    for (party, seconds) in [(&second, 1), (&first, 2)] {
        match asks(party, waits(seconds)).await {
            Ok(Acquired::Held { closed, .. }) => assert_eq!(closed, Some(Mark::Done)),
            other => panic!("not held: {other:?}"),
        }
    }
    lined(&[&first, &second]).await;
    assert!(holder.force().await);
}

/// Clause 3, for arrivals.
pub async fn arrival_lapses_by_itself(harness: &dyn Harness) {
    let name = unique("line-lapse");
    let [holder, dead, other] = three(harness, &name).await;
    if !has_line(&holder) {
        return;
    }
    let kept = harness.ttl();
    granted(asks(&holder, waits(0)).await);
    held(asks(&dead, Arrival::new(LONG, kept)).await);
    assert_eq!(released(holder.release(0).await), None);
    let left = held(asks(&other, waits(1)).await).expect("until the arrival lapses");
    assert!(left <= kept, "{left:?}");
    harness.elapse(kept + harness.slack()).await;
    lined(&[&other]).await;
    assert_eq!(oldest(asks(&other, waits(1)).await), None);
    assert!(line(&other).await.expect("an answer").is_empty());
    assert_eq!(released(other.release(0).await), None);
}

/// The first in the line may have been refused by that arrival.
pub async fn arrival_that_moves_back_wakes_the_first(harness: &dyn Harness) {
    let name = unique("line-back");
    let [holder, gone, first] = three(harness, &name).await;
    if !has_line(&holder) || !holder.store.capabilities().wakeups {
        return;
    }
    granted(asks(&holder, waits(0)).await);
    held(asks(&gone, waits(20)).await);
    assert_eq!(released(holder.release(0).await), None);
    held(asks(&first, waits(10)).await);
    let wait = Wait::new(first.target(), Some(first.holder), PATIENCE);
    let mut wakeups = first.store.subscribe(wait).await.expect("wake-ups").expect("some");
    // A subscription may count as a hint.
    while timeout(Duration::from_millis(300), wakeups.recv()).await.is_ok() {}
    let mut later = Party::new(harness, &name).await.same_as(&gone);
    later.next();
    held(asks(&later, waits(5)).await);
    timeout(PATIENCE, wakeups.recv()).await.expect("it is woken");
    granted(asks(&first, waits(10)).await);
    assert_eq!(released(first.release(0).await), None);
}

/// See [`Release::arrival`].
pub async fn arrival_that_is_left_goes_to_the_next_waiter(harness: &dyn Harness) {
    let name = unique("line-next");
    let [holder, gone, younger] = three(harness, &name).await;
    if !has_line(&holder) {
        return;
    }
    granted(asks(&holder, waits(0)).await);
    held(asks(&gone, waits(900)).await);
    held(asks(&younger, waits(300)).await);
    assert_eq!(released(holder.release(0).await), None);
    for _ in 0..2 {
        // Also twice.
        left(leaves_to(&gone, Some(waits(600))).await);
        lined(&[&gone, &younger]).await;
        held(asks(&younger, waits(300)).await);
    }
    let mut next = Party::new(harness, &name).await.same_as(&gone);
    next.next();
    granted(asks(&next, waits(600)).await);
    // A late copy leaves no arrival.
    left(leaves_to(&gone, Some(waits(600))).await);
    lined(&[&younger]).await;
    // One that came after the younger one is behind it.
    held(asks(&gone, waits(900)).await);
    left(leaves_to(&gone, Some(waits(100))).await);
    lined(&[&younger, &gone]).await;
    assert_eq!(released(next.release(0).await), None);
    granted(asks(&younger, waits(300)).await);
    assert_eq!(released(younger.release(0).await), None);
}

/// See [`Ends::Arrival`](crate::store::Ends::Arrival).
pub async fn arrival_that_is_left_wakes_the_others(harness: &dyn Harness) {
    // Its manager may have a later waiter, who came after the others.
    for has_later in [false, true] {
        let name = unique("line-leave");
        let [holder, first, other] = three(harness, &name).await;
        if !has_line(&holder) || !holder.store.capabilities().wakeups {
            return;
        }
        granted(asks(&holder, waits(0)).await);
        held(asks(&first, waits(20)).await);
        assert_eq!(released(holder.release(0).await), None);
        held(asks(&other, waits(10)).await);
        if has_later {
            let mut later = Party::new(harness, &name).await.same_as(&first);
            later.next();
            held(asks(&later, waits(5)).await);
        }
        let wait = Wait::new(other.target(), Some(other.holder), PATIENCE);
        let mut wakeups = other.store.subscribe(wait).await.expect("wake-ups").expect("some");
        // A subscription may count as a hint.
        while timeout(Duration::from_millis(300), wakeups.recv()).await.is_ok() {}
        left(leaves(&first).await);
        timeout(PATIENCE, wakeups.recv()).await.expect("it is woken");
        granted(asks(&other, waits(10)).await);
        assert_eq!(released(other.release(0).await), None);
    }
}
