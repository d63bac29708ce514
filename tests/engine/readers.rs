//! Readers of one process share a hold: what that saves, what it leaves separate, and that nobody waits longer for it.

use super::cancel::{Cut, at_every_await_of};
use super::*;
use leasehold::{LeaseState, ReadLease, RwLock, Upgraded, WriteLease};
use tokio::task::JoinSet;

fn lock(leases: &LeaseManager) -> RwLock {
    leases.rw_lock("n")
}

async fn reads(leases: &LeaseManager) -> ReadLease {
    lock(leases).read().await.unwrap()
}

/// The requests for a name and the releases so far.
fn sent(setup: &Setup) -> (usize, usize) {
    (setup.calls(Call::Acquire), setup.calls(Call::Release))
}

#[tokio::test(start_paused = true)]
async fn reader_that_joins_sends_nothing_and_has_its_own_lease() {
    let setup = Setup::new();
    let mut handles = [(); 3].map(|()| lock(&setup.leases));
    let [first, second, third] = &mut handles;
    let one = first.read().await.unwrap();
    let two = second.read().await.unwrap();
    let three = third.try_read().await.unwrap().expect("no writer is there");
    let inner = second.read().await.unwrap();
    assert_eq!(sent(&setup), (1, 0));
    assert_eq!([&one, &two, &inner, &three].map(|lease| lease.hold_count()), [1, 2, 2, 1]);
    for lease in [&two, &three, &inner] {
        assert_eq!((lease.fence(), lease.holder_id()), (one.fence(), one.holder_id()));
    }
    assert_eq!(setup.recorded("n").await, Some(1));
    let tokens = [&one, &two, &three].map(|lease| lease.cancellation_token());
    two.unlock().await.unwrap();
    assert_eq!(tokens.each_ref().map(|token| token.is_cancelled()), [false, true, false]);
    assert_eq!((inner.hold_count(), one.hold_count()), (1, 1));
    // The first to come leaves before the others.
    one.unlock().await.unwrap();
    drop(inner);
    settle().await;
    assert_eq!(sent(&setup), (1, 0));
    assert_eq!(failed(third.write().await), ErrorKind::Invalid);
    sleep(T * 2).await;
    three.check().unwrap();
    three.unlock().await.unwrap();
    assert_eq!(sent(&setup), (1, 1));
    assert!(setup.memory.is_empty());
}

#[tokio::test(start_paused = true)]
async fn handle_whose_leases_ended_may_write_when_others_are_gone() {
    let setup = Setup::new();
    let (mut one, mut two) = (lock(&setup.leases), lock(&setup.leases));
    let (page, beside) = (one.read().await.unwrap(), two.read().await.unwrap());
    page.unlock().await.unwrap();
    assert!(one.try_write().await.unwrap().is_none(), "another handle reads");
    let again = one.read().await.unwrap();
    assert_eq!((again.hold_count(), sent(&setup)), (1, (1, 0)));
    drop((again, beside));
    settle().await;
    one.try_write().await.unwrap().expect("nobody reads").unlock().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn readers_ask_again_after_a_tenth_of_the_ttl() {
    let setup = Setup::new();
    let old = reads(&setup.leases).await;
    sleep(T / 10 - MOMENT).await;
    let joined = reads(&setup.leases).await;
    sleep(MOMENT * 2).await;
    let young = reads(&setup.leases).await;
    let beside = reads(&setup.leases).await;
    assert_eq!(joined.holder_id(), old.holder_id());
    assert_ne!(young.holder_id(), old.holder_id());
    assert_eq!(beside.holder_id(), young.holder_id());
    assert_eq!(sent(&setup), (2, 0));
    drop((old, joined));
    settle().await;
    assert_eq!(sent(&setup), (2, 1), "the old one is over by itself");
    young.check().unwrap();
}

#[tokio::test(start_paused = true)]
async fn readers_that_come_at_once_send_one_request() {
    let setup = Setup::new();
    setup.faults.add(Rule::new(Fault::Delay(MOMENT * 10)).on(Call::Acquire));
    let mut readers = JoinSet::new();
    for i in 0..64 {
        let mut handle = lock(&setup.leases);
        readers.spawn(async move {
            match i % 3 {
                0 => handle.read().await.unwrap(),
                1 => handle.read_timeout(T).await.unwrap().expect("in time"),
                _ => {
                    // It is no contention that another reader asks.
                    let page = handle.try_read().await.unwrap();
                    page.expect("no writer is there")
                }
            }
        });
    }
    let (took, pages) = timed(readers.join_all()).await;
    assert!(took <= MOMENT * 11, "{took:?}");
    let asked = setup.calls(Call::Acquire);
    assert!(asked <= 1 + 64 / 3, "{asked} requests: those that make one attempt, and one");
    drop(pages);
    settle().await;
    assert!(setup.memory.is_empty());
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_readers_send_a_bounded_number_of_requests() {
    let setup = Setup::new();
    let mut readers = JoinSet::new();
    for i in 0..10_000u64 {
        let mut handle = lock(&setup.leases);
        readers.spawn(async move {
            sleep(Duration::from_micros(i * 7_919 % 3_000_000)).await;
            for _ in 0..10 {
                let page = handle.read().await.unwrap();
                sleep(T / 20).await;
                page.unlock().await.unwrap();
                sleep(T / 20).await;
            }
        });
    }
    let (took, _) = timed(readers.join_all()).await;
    let tenths = took.as_millis() as usize / (T / 10).as_millis() as usize + 1;
    let (asked, released) = sent(&setup);
    assert!(asked <= tenths && released <= asked, "{asked}, {released} in {tenths} tenths");
    assert!(setup.memory.is_empty());
}

#[tokio::test(start_paused = true)]
async fn writer_that_waits_here_is_not_overtaken() {
    let setup = Setup::new();
    let page = reads(&setup.leases).await;
    let mut writer = lock(&setup.leases);
    let mut writes = Box::pin(writer.write());
    assert!(poll_once(writes.as_mut()).await.is_pending());
    assert!(lock(&setup.leases).try_read().await.unwrap().is_none());
    let mut reader = lock(&setup.leases);
    let mut late = Box::pin(reader.read());
    assert!(poll_once(late.as_mut()).await.is_pending());
    page.unlock().await.unwrap();
    let edit = writes.await.unwrap();
    assert!(poll_once(late.as_mut()).await.is_pending());
    edit.unlock().await.unwrap();
    drop(late.await.unwrap());
    // A writer that went away holds up nobody.
    let page = reads(&setup.leases).await;
    let mut gone = Box::pin(writer.write());
    assert!(poll_once(gone.as_mut()).await.is_pending());
    drop(gone);
    let before = sent(&setup).0;
    let beside = reads(&setup.leases).await;
    assert_eq!((beside.holder_id(), sent(&setup).0), (page.holder_id(), before));
}

/// Readers of several processes overlap all the time, and most of them join.
#[tokio::test(start_paused = true)]
async fn writer_elsewhere_is_served_among_readers_that_join() {
    const READ: Duration = Duration::from_millis(400);
    let setup = Setup::new();
    let managers = [setup.leases.clone(), setup.other(), setup.other()];
    let mut readers = JoinSet::new();
    for i in 0..30u64 {
        let mut handle = lock(&managers[i as usize % 3]);
        readers.spawn(async move {
            sleep(Duration::from_millis(13 * i)).await;
            loop {
                let page = handle.read().await.unwrap();
                sleep(READ).await;
                page.unlock().await.unwrap();
            }
        });
    }
    sleep(Duration::from_secs(1)).await;
    let elsewhere = setup.other();
    for _ in 0..20 {
        let (took, edit) = timed(lock(&elsewhere).write()).await;
        // One poll interval.
        let bound = READ + T / 10 + Duration::from_secs(1) + MOMENT * 10;
        assert!(took <= bound, "{took:?}");
        drop(edit);
        sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn loss_ends_all_leases_of_the_readers_at_once() {
    for cause in [Loss::Expired, Loss::Gone, Loss::Revoked, Loss::Closed, Loss::MaxHold] {
        let max = T / 2;
        let builder = LeaseManager::builder();
        let limited = cause == Loss::MaxHold;
        let setup = Setup::with(if limited { builder.max_hold(max) } else { builder });
        let mut handles = [(); 3].map(|()| lock(&setup.leases));
        let mut pages = Vec::new();
        for handle in &mut handles {
            pages.push(handle.read().await.unwrap());
            sleep(MOMENT).await;
        }
        match cause {
            Loss::Expired => setup.faults.add(Rule::new(Fault::Fail(unavailable()))),
            Loss::Gone => assert!(setup.memory.delete("n")),
            Loss::Revoked => assert!(setup.leases.force_unlock("n", "test").await.unwrap()),
            Loss::Closed => {
                let closing = setup.leases.clone();
                tokio::spawn(async move { closing.close().await });
            }
            _ => {}
        }
        let mut losses = JoinSet::new();
        for page in &pages {
            losses.spawn(timed(page.lost()));
        }
        let losses = losses.join_all().await;
        assert!(losses.iter().all(|loss| *loss == (losses[0].0, cause)), "{losses:?}");
        if limited {
            assert_eq!(losses[0].0, max - MOMENT * 3, "from the grant");
        }
        assert!(pages.iter().all(|page| page.state() == LeaseState::Lost));
        if cause == Loss::Closed {
            continue;
        }
        setup.faults.heal();
        let [first, ..] = &mut handles;
        assert_eq!(lost(first.read().await), cause);
        for page in pages {
            assert_eq!(lost(page.unlock().await), cause);
        }
        sleep(GRACE * 2).await;
        assert!(setup.memory.is_empty(), "{cause:?}");
        drop(first.read().await.unwrap());
    }
}

/// The time of a writer counts for what it becomes. A reader that comes, or has waited, has its own.
#[tokio::test(start_paused = true)]
async fn time_of_a_writer_that_became_a_reader_ends_no_other() {
    let max = T / 2;
    let setup = Setup::with(LeaseManager::builder().max_hold(max));
    let edit = lock(&setup.leases).write().await.unwrap();
    let leases = setup.leases.clone();
    let waiting = tokio::spawn(async move { reads(&leases).await });
    sleep(max - MOMENT).await;
    let page = edit.downgrade().await.unwrap();
    let waited = waiting.await.unwrap();
    let beside = reads(&setup.leases).await;
    let (rest, own) = tokio::join!(timed(page.lost()), timed(beside.lost()));
    assert_eq!((rest, own), ((MOMENT, Loss::MaxHold), (max, Loss::MaxHold)));
    assert_eq!(lost(waited.unlock().await), Loss::MaxHold);
}

/// The hold that the readers share may be older by a tenth of T, or by a tenth of `max_hold` if that is shorter.
#[tokio::test(start_paused = true)]
async fn reader_has_nine_tenths_of_a_short_max_hold() {
    for max in [T / 100, T / 15, T / 10, T / 5, T * 2] {
        let tenth = (max / 10).min(T / 10);
        let ages = [(tenth - MOMENT, true), (tenth + MOMENT, false), (max - MOMENT, false)];
        for (age, is_shared) in ages {
            let setup = Setup::with(LeaseManager::builder().max_hold(max));
            let old = reads(&setup.leases).await;
            sleep(age).await;
            let page = reads(&setup.leases).await;
            assert_eq!(page.holder_id() == old.holder_id(), is_shared, "{max:?}, {age:?}");
            let expected = if is_shared { max - age } else { max };
            assert_eq!(timed(page.lost()).await, (expected, Loss::MaxHold), "{max:?}, {age:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn readers_forced_open_are_joined_no_more() {
    let setup = Setup::new();
    let page = reads(&setup.leases).await;
    assert!(setup.leases.force_unlock("n", "test").await.unwrap());
    let fresh = reads(&setup.leases).await;
    assert_ne!(fresh.holder_id(), page.holder_id());
    fresh.check().unwrap();
    let holding = setup.other().inspect("n").await.unwrap().expect("held");
    assert_eq!(holding.holder, fresh.holder_id().to_string());
}

#[tokio::test(start_paused = true)]
async fn hold_being_released_is_joined_no_more() {
    let setup = Setup::new();
    setup.faults.add(Rule::new(Fault::Delay(MOMENT * 10)).on(Call::Release));
    let page = reads(&setup.leases).await;
    let holder = page.holder_id();
    let unlocking = tokio::spawn(page.unlock());
    settle().await;
    let fresh = reads(&setup.leases).await;
    assert_ne!(fresh.holder_id(), holder);
    unlocking.await.unwrap().unwrap();
    sleep(T).await;
    fresh.check().unwrap();
}

#[tokio::test(start_paused = true)]
async fn upgrade_needs_the_only_lease_of_the_readers() {
    for first_upgrades in [true, false] {
        let setup = Setup::new();
        let (one, two) = (reads(&setup.leases).await, reads(&setup.leases).await);
        let (upgrades, other) = if first_upgrades { (one, two) } else { (two, one) };
        let before = sent(&setup);
        let Upgraded::Read(page) = upgrades.try_upgrade().await.unwrap() else {
            panic!("two read")
        };
        let Upgraded::Read(other) = other.try_upgrade().await.unwrap() else { panic!("two read") };
        assert_eq!(sent(&setup), before);
        other.check().unwrap();
        other.unlock().await.unwrap();
        let Upgraded::Write(edit) = page.try_upgrade().await.unwrap() else { panic!("alone") };
        assert!(lock(&setup.leases).try_read().await.unwrap().is_none());
        let page = edit.downgrade().await.unwrap();
        let asked = sent(&setup).0;
        // What a writer has become can be joined as a grant can.
        let beside = reads(&setup.leases).await;
        assert_eq!((beside.fence(), sent(&setup).0), (page.fence(), asked));
        drop((page, beside));
        settle().await;
        assert!(setup.memory.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn reader_waits_while_another_becomes_the_writer() {
    let setup = Setup::new();
    let mut handle = lock(&setup.leases);
    let page = handle.read().await.unwrap();
    setup.faults.add(Rule::new(Fault::Delay(MOMENT * 10)).on(Call::Acquire));
    let upgrading = tokio::spawn(page.try_upgrade());
    settle().await;
    assert!(lock(&setup.leases).try_read().await.unwrap().is_none());
    let waits = tokio::spawn({
        let mut other = lock(&setup.leases);
        async move { other.read().await }
    });
    settle().await;
    assert!(!waits.is_finished());
    let Upgraded::Write(edit) = upgrading.await.unwrap().unwrap() else { panic!("alone") };
    let again = handle.read().await.unwrap();
    assert!(!waits.is_finished());
    drop((again, edit));
    waits.await.unwrap().unwrap().unlock().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn reader_forgotten_leaves_the_others_as_they_are() {
    let setup = Setup::new();
    let (one, two) = (reads(&setup.leases).await, reads(&setup.leases).await);
    one.into_lease().forget();
    sleep(T * 2).await;
    two.check().unwrap();
    two.unlock().await.unwrap();
    assert!(setup.memory.is_empty());
}

/// A reader that asks and is not polled: those behind it go on when its request is overdue.
#[tokio::test(start_paused = true)]
async fn reader_not_polled_holds_up_others_for_an_attempt_or_two() {
    let setup = Setup::new();
    setup.faults.add(Rule::new(Fault::Delay(MOMENT)).on(Call::Acquire));
    let mut unpolled = lock(&setup.leases);
    let mut unpolled = Box::pin(unpolled.read());
    assert!(poll_once(unpolled.as_mut()).await.is_pending());
    let (took, page) = timed(reads(&setup.leases)).await;
    assert!(took <= ATTEMPT * 4, "{took:?}");
    // One in line that is not polled holds up nobody.
    let mut behind = lock(&setup.leases);
    let mut behind = Box::pin(behind.read());
    sleep(T / 10).await;
    let mut asks = lock(&setup.leases);
    let mut asks = Box::pin(asks.read());
    assert!(poll_once(asks.as_mut()).await.is_pending());
    assert!(poll_once(behind.as_mut()).await.is_pending());
    let beside = tokio::spawn({
        let mut handle = lock(&setup.leases);
        async move { timed(handle.read()).await }
    });
    let young = asks.await.unwrap();
    let (took, beside) = beside.await.unwrap();
    assert!(took <= MOMENT * 3, "{took:?}");
    assert_eq!(beside.unwrap().holder_id(), young.holder_id());
    drop((page, behind, unpolled, young));
    sleep(T).await;
    assert!(setup.memory.is_empty());
}

async fn enters(leases: &LeaseManager) -> Result<Option<Lease>> {
    Ok(lock(leases).write_timeout(T).await?.map(WriteLease::into_lease))
}

#[tokio::test(start_paused = true)]
async fn reader_dropped_while_it_joins_leaves_nothing() {
    /// Behind a reader that asks.
    async fn behind(setup: &Setup, cut: Cut) -> bool {
        let mut first = lock(&setup.leases);
        let mut first = Box::pin(first.read());
        let _ = poll_once(first.as_mut()).await;
        let asking = tokio::spawn({
            let mut asks = lock(&setup.leases);
            async move { drop(asks.read().await) }
        });
        let faster = cut.run(lock(&setup.leases).read()).await.is_some();
        drop(first);
        let _ = asking.await;
        faster
    }
    /// The one that asks, while another waits behind it.
    async fn before(setup: &Setup, cut: Cut) -> bool {
        let waits = tokio::spawn({
            let mut waits = lock(&setup.leases);
            async move {
                tokio::task::yield_now().await;
                drop(waits.read().await);
            }
        });
        let faster = cut.run(lock(&setup.leases).read()).await.is_some();
        let _ = waits.await;
        faster
    }
    /// Of two leases, in both orders.
    async fn unlocks(setup: &Setup, cut: Cut) -> bool {
        let Ok(one) = lock(&setup.leases).read().await else { return true };
        let Ok(two) = lock(&setup.leases).read().await else { return true };
        let (stays, goes) = if cut.polls.is_multiple_of(2) { (one, two) } else { (two, one) };
        let faster = cut.run(goes.unlock()).await.is_some();
        let last = cut.run(stays.unlock()).await.is_some();
        faster && last
    }
    at_every_await_of(enters, behind).await;
    at_every_await_of(enters, before).await;
    at_every_await_of(enters, unlocks).await;
}

/// Real threads: readers join, leave and upgrade, a writer enters, and some futures are dropped.
#[test]
fn readers_and_a_writer_never_meet_on_many_threads() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicI64, Ordering};

    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(4).enable_all().build().unwrap();
    runtime.block_on(async {
        let builder = LeaseManager::builder().ttl(Duration::from_secs(3));
        let leases = builder.build(leasehold::store::MemoryStore::new()).unwrap();
        let inside = Arc::new(AtomicI64::new(0));
        let mut tasks = JoinSet::new();
        for i in 0..16 {
            let (mut handle, inside) = (lock(&leases), Arc::clone(&inside));
            tasks.spawn(async move {
                for round in 0..400 {
                    if i == 0 {
                        let edit = handle.write().await.unwrap();
                        assert_eq!(inside.swap(-1, Ordering::SeqCst), 0);
                        tokio::task::yield_now().await;
                        edit.check().unwrap();
                        assert_eq!(inside.swap(0, Ordering::SeqCst), -1);
                        continue;
                    }
                    if round % 5 == 0 {
                        let _ = tokio::time::timeout(Duration::ZERO, handle.read()).await;
                    }
                    let page = handle.read().await.unwrap();
                    assert_eq!(page.hold_count(), 1);
                    assert!(inside.fetch_add(1, Ordering::SeqCst) >= 0);
                    tokio::task::yield_now().await;
                    page.check().unwrap();
                    inside.fetch_sub(1, Ordering::SeqCst);
                    if round % 7 == 0
                        && let Upgraded::Write(edit) = page.try_upgrade().await.unwrap()
                    {
                        assert_eq!(inside.swap(-1, Ordering::SeqCst), 0);
                        edit.check().unwrap();
                        assert_eq!(inside.swap(0, Ordering::SeqCst), -1);
                    }
                }
            });
        }
        tasks.join_all().await;
        leases.close().await.unwrap();
    });
}
