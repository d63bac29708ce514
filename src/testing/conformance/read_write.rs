//! Read-write locks. A store without them passes, because it refuses the modes.

use super::party::*;
use crate::error::Result;
use crate::store::{Absence, Acquired, Arrival, Mode, Release, Released, Wait};
use crate::testing::Harness;
use std::time::Duration;
use tokio::time::timeout;

/// Clause 1, for the modes that share a name.
pub async fn readers_share_a_name_and_exclude_a_writer(harness: &dyn Harness) {
    let name = unique("rw");
    let one = Party::of(harness, &name, Mode::Read).await;
    let two = Party::of(harness, &name, Mode::Read).await;
    let writer = Party::of(harness, &name, Mode::Write).await;
    if !one.supported() || !writer.supported() {
        return;
    }
    granted(one.acquire().await);
    granted(two.acquire().await);
    let left = held(writer.acquire().await);
    assert!(one.fresh(left, one.now()) || left <= Some(one.ttl), "{left:?}");
    let holders = one.holders().await;
    assert_eq!(holders.len(), 2);
    assert!(holders.iter().all(|holder| holder.mode == Mode::Read), "{holders:?}");
    assert_eq!(released(one.release(0).await), None);
    held(writer.acquire().await);
    assert_eq!(released(two.release(0).await), None);
    granted(writer.acquire().await);
    let holders = writer.holders().await;
    assert!(matches!(&holders[..], [holder] if holder.mode == Mode::Write), "{holders:?}");
    held(one.acquire().await);
    recorded(writer.release(2).await);
    assert_eq!(released(writer.release(1).await), None);
    held(two.acquire().await);
    assert_eq!(released(writer.release(0).await), None);
    granted(one.acquire().await);
    assert!(one.force().await);
    granted(writer.acquire().await);
}

/// Clause 8, for the modes that share a name: also beside other readers, and after a change of the mode.
pub async fn fences_of_readers_grow_between_those_of_writers(harness: &dyn Harness) {
    let name = unique("rw-fence");
    let reader = Party::of(harness, &name, Mode::Read).await;
    if !reader.supported() || !reader.store.capabilities().fencing {
        return;
    }
    let mut last = None;
    for _ in 0..3 {
        let writer = Party::of(harness, &name, Mode::Write).await;
        let written = granted(writer.acquire().await).fence;
        assert!(written > last, "{written:?} after {last:?}");
        assert_eq!(released(writer.release(0).await), None);
        let mut readers = Vec::new();
        for _ in 0..3 {
            let reader = Party::of(harness, &name, Mode::Read).await;
            let fence = granted(reader.acquire().await).fence;
            match readers.last() {
                None => assert!(reader.follows(written, fence), "{fence:?} after {written:?}"),
                Some((last, _)) => assert!(fence > *last, "{fence:?} after {last:?}"),
            }
            readers.push((fence, reader));
        }
        for (fence, reader) in &readers {
            assert_eq!(granted(reader.acquire().await).fence, *fence, "the same grant again");
        }
        last = readers.last().and_then(|(fence, _)| *fence);
        for (_, reader) in readers {
            assert_eq!(released(reader.release(0).await), None);
        }
        // The only reader becomes the writer, and a reader again.
        let reads = Party::of(harness, &name, Mode::Read).await;
        let read = granted(reads.acquire().await).fence;
        assert!(read > last, "{read:?} after {last:?}");
        let writes = reads.to(Mode::Write);
        let written = granted(writes.convert().await).fence;
        assert!(written > read, "{written:?} after {read:?}");
        let reads = writes.to(Mode::Read);
        let page = granted(reads.convert().await).fence;
        assert!(page >= written, "{page:?} after {written:?}");
        let beside = Party::of(harness, &name, Mode::Read).await;
        last = granted(beside.acquire().await).fence;
        assert!(last > page, "{last:?} after {page:?}");
        for party in [reads, beside] {
            assert_eq!(released(party.release(0).await), None);
        }
    }
}

/// Clauses 2, 4 and 5, for the modes that share a name.
pub async fn read_write_requests_may_run_twice(harness: &dyn Harness) {
    for mode in [Mode::Read, Mode::Write] {
        let name = unique("rw-twice");
        let party = Party::of(harness, &name, mode).await;
        if !party.supported() {
            continue;
        }
        for count in [2, 3] {
            assert_eq!(released(party.release(count).await), Some(Absence::Gone));
        }
        assert_eq!(not_yours(party.convert().await), Absence::Gone);
        assert_eq!(renewed(party.renew().await), Some(Absence::Gone));
        assert!(party.holders().await.is_empty());
        let first = granted(party.acquire().await);
        let again = granted(party.acquire().await);
        assert_eq!(first.fence, again.fence);
        for _ in 0..2 {
            recorded(party.release(2).await);
            assert_eq!(renewed(party.renew().await), None);
            assert_eq!(released(party.release(1).await), None);
        }
        assert_eq!(party.holders().await.len(), 1);
        assert_eq!(released(party.release(0).await), None);
        assert_eq!(released(party.release(0).await), Some(Absence::Gone));
        assert_eq!(renewed(party.renew().await), Some(Absence::Gone));
        assert!(party.holders().await.is_empty());
        // Late copies meet a later holder, and leave it alone.
        let writer = Party::of(harness, &name, Mode::Write).await;
        granted(writer.acquire().await);
        assert_eq!(released(party.release(0).await), Some(Absence::Taken));
        assert_eq!(renewed(party.renew().await), Some(Absence::Taken));
        assert_eq!(released(party.release(2).await), Some(Absence::Taken));
        assert_eq!(renewed(writer.renew().await), None);
        assert_eq!(released(writer.release(0).await), None);
    }
}

/// See [`Acquire::converts`](crate::store::Acquire::converts).
pub async fn mode_changes_only_on_request_and_only_for_the_sole_reader(harness: &dyn Harness) {
    let name = unique("rw-change");
    let other = Party::of(harness, &name, Mode::Read).await;
    let reads = Party::of(harness, &name, Mode::Read).await;
    if !reads.supported() {
        return;
    }
    let writes = Party::of(harness, &name, Mode::Write).await.same_as(&reads);
    // A writer becomes a reader.
    let written = granted(writes.acquire().await);
    let first = granted(reads.acquire().await);
    held(other.acquire().await);
    assert_eq!(first.fence.is_some(), written.fence.is_some(), "a late copy changes nothing");
    for _ in 0..2 {
        let page = granted(reads.convert().await);
        assert!(page.fence >= written.fence);
    }
    assert_eq!(renewed(reads.renew().await), None);
    if can_lose_changes(&writes) {
        assert!(renewed(writes.renew().await).is_some());
    }
    let joined = granted(other.acquire().await);
    assert!(joined.fence >= written.fence);
    // Not the sole reader.
    for _ in 0..2 {
        held(writes.convert().await);
        held(writes.acquire().await);
    }
    assert_eq!(reads.holders().await.len(), 2);
    assert_eq!(released(other.release(0).await), None);
    held(writes.acquire().await);
    for _ in 0..2 {
        let written = granted(writes.convert().await);
        assert!(written.fence > joined.fence || written.fence.is_none());
    }
    held(other.acquire().await);
    // Renewals and releases go by the holder, in whichever mode it is.
    for party in [&reads, &writes] {
        assert_eq!(renewed(party.renew().await), None);
    }
    assert_eq!(released(reads.release(0).await), None);
    assert_eq!(released(writes.release(0).await), Some(Absence::Gone));
    granted(other.acquire().await);
    let lost = Party::of(harness, &name, Mode::Read).await;
    granted(lost.acquire().await);
    let lost = lost.to(Mode::Write);
    if can_lose_changes(&lost) {
        assert!(released(lost.release(0).await).is_some(), "it was no writer");
    }
}

/// Returns whether the store can lose a change of the mode. One that does not know the remaining time, because a session keeps
/// its leases, loses no change without the session. A quorum knows by itself which nodes have the change.
fn can_lose_changes(party: &Party<'_>) -> bool {
    party.store.capabilities().time_left && party.harness.keeps_arrivals_of_readers()
}

/// Asks with an arrival that is kept for `kept`, as a waiter that has waited for so many milliseconds.
async fn asks(party: &Party<'_>, waited: u64, kept: Duration) -> Result<Acquired> {
    let arrival = Arrival::new(Duration::from_millis(waited), kept);
    party.store.acquire(party.request().with_arrival(Some(arrival))).await
}

/// See [`Arrival`]. A store that keeps no arrivals may grant in any order, as far as the modes allow.
pub async fn older_waiter_of_the_other_side_goes_first(harness: &dyn Harness) {
    let name = unique("rw-line");
    let reads = Party::of(harness, &name, Mode::Read).await;
    if !reads.supported() || !reads.store.capabilities().time_left {
        return;
    }
    let writer = Party::of(harness, &name, Mode::Write).await;
    let late = Party::of(harness, &name, Mode::Read).await;
    granted(reads.acquire().await);
    held(asks(&writer, 500, LONG).await);
    // A reader that came later waits, one that came earlier does not.
    held(late.acquire().await);
    held(asks(&late, 100, LONG).await);
    let early = Party::of(harness, &name, Mode::Read).await;
    granted(asks(&early, 60_000, LONG).await);
    assert_eq!(released(early.release(0).await), None);
    assert_eq!(released(reads.release(0).await), None);
    granted(asks(&writer, 500, LONG).await);
    if !harness.keeps_arrivals_of_readers() {
        return;
    }
    // Now a reader waits, and a writer that came later lets it go first.
    held(asks(&late, 500, LONG).await);
    assert_eq!(released(writer.release(0).await), None);
    let other = Party::of(harness, &name, Mode::Write).await;
    held(other.acquire().await);
    granted(asks(&late, 500, LONG).await);
    assert_eq!(released(late.release(0).await), None);
    granted(other.acquire().await);
}

/// Returns whether the store keeps the arrivals of both sides. One that does not know the remaining time has an order of its own.
fn keeps_arrivals(party: &Party<'_>) -> bool {
    party.store.capabilities().time_left && party.harness.keeps_arrivals_of_readers()
}

/// See [`Arrival`]. A younger waiter of the same side does not keep the arrival of one that is gone.
pub async fn arrival_lapses_with_its_own_waiter(harness: &dyn Harness) {
    let name = unique("rw-gone");
    let holder = Party::of(harness, &name, Mode::Write).await;
    if !holder.supported() || !keeps_arrivals(&holder) {
        return;
    }
    let gone = Party::of(harness, &name, Mode::Read).await;
    let reads = Party::of(harness, &name, Mode::Read).await;
    let writes = Party::of(harness, &name, Mode::Write).await;
    granted(holder.acquire().await);
    held(asks(&gone, 900, harness.ttl()).await);
    held(asks(&writes, 500, LONG).await);
    held(asks(&reads, 200, LONG).await);
    assert_eq!(released(holder.release(0).await), None);
    held(asks(&reads, 200, LONG).await);
    harness.elapse(harness.ttl() + harness.slack()).await;
    granted(asks(&writes, 500, LONG).await);
}

/// See [`Arrival`]. What a waiter said first counts, so that two that arrive together do not refuse each other.
pub async fn one_of_two_waiters_always_goes_first(harness: &dyn Harness) {
    let name = unique("rw-pair");
    let holder = Party::of(harness, &name, Mode::Write).await;
    if !holder.supported() || !keeps_arrivals(&holder) {
        return;
    }
    for first in [Mode::Read, Mode::Write] {
        let second = if first == Mode::Read { Mode::Write } else { Mode::Read };
        let holder = Party::of(harness, &name, Mode::Write).await;
        let first = Party::of(harness, &name, first).await;
        let second = Party::of(harness, &name, second).await;
        granted(holder.acquire().await);
        held(asks(&first, 200, LONG).await);
        held(asks(&second, 100, LONG).await);
        assert_eq!(released(holder.release(0).await), None);
        // As after a request that took longer, or when the clock of the store was set.
        held(asks(&second, 0, LONG).await);
        granted(asks(&first, 0, LONG).await);
        assert_eq!(released(first.release(0).await), None);
        granted(asks(&second, 0, LONG).await);
        assert_eq!(released(second.release(0).await), None);
    }
}

/// See [`Ends::Arrival`](crate::store::Ends::Arrival). A store that keeps no arrivals has nothing to give up.
pub async fn arrival_of_a_side_is_given_up_once(harness: &dyn Harness) {
    let name = unique("rw-leave");
    let reads = Party::of(harness, &name, Mode::Read).await;
    if !reads.supported() || !reads.store.capabilities().time_left {
        return;
    }
    let leaves = async |party: &Party<'_>| {
        let release = Release::arrival(party.target(), party.holder, PATIENCE);
        assert_eq!(party.store.release(release).await.expect("an answer"), Released::done(0));
    };
    granted(reads.acquire().await);
    let mut writer = Party::of(harness, &name, Mode::Write).await;
    let late = Party::of(harness, &name, Mode::Read).await;
    held(asks(&writer, 5000, LONG).await);
    held(asks(&late, 1000, LONG).await);
    let between = Party::of(harness, &name, Mode::Read).await;
    held(asks(&between, 4000, LONG).await);
    let earlier = writer.holder;
    writer.next();
    // With its own arrival.
    held(asks(&writer, 3000, LONG).await);
    granted(asks(&between, 4000, LONG).await);
    assert_eq!(released(between.release(0).await), None);
    let later = std::mem::replace(&mut writer.holder, earlier);
    leaves(&writer).await;
    // Its manager has a later waiter. A late copy of its own request is not the last one either.
    held(asks(&writer, 5000, LONG).await);
    leaves(&writer).await;
    held(asks(&late, 1000, LONG).await);
    // A call that does not wait takes nothing over.
    writer.holder = later;
    writer.next();
    held(asks(&writer, 0, Duration::ZERO).await);
    writer.holder = later;
    let capabilities = late.store.capabilities();
    let mut wakeups = None;
    if capabilities.wakeups {
        let wait = Wait::new(late.target(), Some(late.holder), PATIENCE);
        let mut signals = late.store.subscribe(wait).await.expect("wake-ups").expect("some");
        // A subscription may count as a hint.
        while timeout(Duration::from_millis(300), signals.recv()).await.is_ok() {}
        wakeups = Some(signals);
    }
    for _ in 0..2 {
        leaves(&writer).await;
    }
    if let Some(mut wakeups) = wakeups {
        timeout(PATIENCE, wakeups.recv())
            .await
            .expect("an arrival that is given up wakes a reader");
    }
    granted(asks(&late, 1000, LONG).await);
    for reads in [reads, late] {
        assert_eq!(released(reads.release(0).await), None);
    }
    // A reader gives its arrival up, too.
    granted(writer.acquire().await);
    let gone = Party::of(harness, &name, Mode::Read).await;
    held(asks(&gone, 9000, LONG).await);
    leaves(&gone).await;
    assert_eq!(released(writer.release(0).await), None);
    granted(asks(&Party::of(harness, &name, Mode::Write).await, 0, LONG).await);
}

/// Clauses 3 and 7, for the modes that share a name.
pub async fn readers_expire_one_by_one(harness: &dyn Harness) {
    let name = unique("rw-expiry");
    let gone = Party::of(harness, &name, Mode::Read).await.short();
    let mut stays = Party::of(harness, &name, Mode::Read).await.short();
    let writer = Party::of(harness, &name, Mode::Write).await;
    if !gone.supported() {
        return;
    }
    granted(gone.acquire().await);
    granted(stays.acquire().await);
    stays.ttl = LONG;
    assert_eq!(renewed(stays.renew().await), None);
    gone.outlast().await;
    held(writer.acquire().await);
    assert_eq!(renewed(stays.renew().await), None);
    assert_eq!(released(stays.release(0).await), None);
    granted(writer.acquire().await);
    assert_eq!(renewed(gone.renew().await), Some(Absence::Taken));
    assert_eq!(released(writer.release(0).await), None);
    let short = Party::of(harness, &name, Mode::Write).await.short();
    granted(short.acquire().await);
    short.outlast().await;
    granted(gone.acquire().await);
}

/// The last reader wakes a writer; a writer that releases, or becomes a reader, wakes a reader.
pub async fn read_write_releases_wake_waiters(harness: &dyn Harness) {
    let name = unique("rw-wake");
    let reads = Party::of(harness, &name, Mode::Read).await;
    if !reads.supported() || !reads.store.capabilities().wakeups {
        return;
    }
    let waits = async |mode: Mode| {
        let waiter = Party::of(harness, &name, mode).await;
        let wait = Wait::new(waiter.target(), Some(waiter.holder), PATIENCE);
        let mut wakeups = waiter.store.subscribe(wait).await.expect("wake-ups").expect("some");
        // A subscription may count as a hint.
        while timeout(Duration::from_millis(300), wakeups.recv()).await.is_ok() {}
        (waiter, wakeups)
    };
    granted(reads.acquire().await);
    let (writes, mut wakeups) = waits(Mode::Write).await;
    assert_eq!(released(reads.release(0).await), None);
    timeout(PATIENCE, wakeups.recv()).await.expect("the last reader wakes a writer");
    granted(writes.acquire().await);
    let (waiter, mut wakeups) = waits(Mode::Read).await;
    let page = Party::of(harness, &name, Mode::Read).await.same_as(&writes);
    granted(page.convert().await);
    timeout(PATIENCE, wakeups.recv()).await.expect("a downgrade wakes a reader");
    granted(waiter.acquire().await);
    for party in [page, waiter] {
        assert_eq!(released(party.release(0).await), None);
    }
    let writes = Party::of(harness, &name, Mode::Write).await;
    granted(writes.acquire().await);
    let (_waiter, mut wakeups) = waits(Mode::Read).await;
    assert!(writes.force().await);
    timeout(PATIENCE, wakeups.recv()).await.expect("a forced release wakes a reader");
}
