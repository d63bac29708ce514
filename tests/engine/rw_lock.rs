//! Read-write locks: one writer or many readers, in each order of events.

use super::cancel::{Cut, at_every_await_of};
use super::*;
use leasehold::store::{Capabilities, Mode, Name, Release, Store, Target};
use leasehold::{ReadLease, RwLock, Upgraded, WriteLease};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use tokio::task::JoinSet;
use tokio::time::timeout;

fn lock(leases: &LeaseManager) -> RwLock {
    leases.rw_lock("n")
}

async fn reads(leases: &LeaseManager) -> Option<ReadLease> {
    lock(leases).try_read().await.unwrap()
}

async fn writes(leases: &LeaseManager) -> Option<WriteLease> {
    lock(leases).try_write().await.unwrap()
}

/// The number of holders that the store has.
async fn holders(setup: &Setup) -> usize {
    setup.other().holders("n").await.unwrap().len()
}

#[tokio::test(start_paused = true)]
async fn readers_share_and_a_writer_is_alone() {
    let setup = Setup::new();
    let other = setup.other();
    let (one, two) = (reads(&setup.leases).await.unwrap(), reads(&other).await.unwrap());
    let three = reads(&setup.leases).await.unwrap();
    assert!(writes(&setup.leases).await.is_none() && writes(&other).await.is_none());
    assert_eq!(one.fence(), three.fence(), "they share a hold");
    assert!(two.fence() > one.fence(), "of another process");
    for lease in [one, two, three] {
        lease.unlock().await.unwrap();
    }
    let edit = writes(&other).await.unwrap();
    assert!(reads(&setup.leases).await.is_none() && writes(&setup.leases).await.is_none());
    edit.unlock().await.unwrap();
    assert!(reads(&setup.leases).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn fences_order_readers_between_writers() {
    let setup = Setup::new();
    let other = setup.other();
    let mut last = 0;
    for _ in 0..3 {
        let edit = writes(&setup.leases).await.unwrap();
        let (written, page) = (edit.fence().unwrap(), edit.downgrade().await.unwrap());
        let joined = reads(&other).await.unwrap();
        let read = page.fence().unwrap();
        let beside = joined.fence().unwrap();
        assert!(
            last < written && written < read && read < beside,
            "{last} {written} {read} {beside}"
        );
        last = beside;
        drop((page, joined));
        settle().await;
        let page = reads(&other).await.unwrap();
        assert!(page.fence().unwrap() > last);
        last = page.fence().unwrap();
        let Upgraded::Write(edit) = page.try_upgrade().await.unwrap() else { panic!("alone") };
        assert!(edit.fence().unwrap() > last);
        last = edit.fence().unwrap();
        edit.unlock().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn handle_reenters_what_it_has() {
    let setup = Setup::new();
    let mut handle = lock(&setup.leases);
    let outer = handle.read().await.unwrap();
    let inner = handle.read().await.unwrap();
    assert_eq!((outer.hold_count(), holders(&setup).await), (2, 1));
    for result in [handle.write().await, handle.write_timeout(T).await.map(Option::unwrap)] {
        assert_eq!(failed(result), ErrorKind::Invalid);
    }
    inner.unlock().await.unwrap();
    outer.unlock().await.unwrap();
    let outer = handle.write().await.unwrap();
    let (inner, page) = (handle.write().await.unwrap(), handle.read().await.unwrap());
    assert_eq!(outer.hold_count(), 3);
    drop(outer);
    drop(inner);
    settle().await;
    assert!(reads(&setup.other()).await.is_none(), "the name stays locked for writing");
    let Upgraded::Read(page) = page.try_upgrade().await.unwrap() else { panic!("a read lease") };
    page.unlock().await.unwrap();
    assert!(setup.memory.is_empty());
}

#[tokio::test(start_paused = true)]
async fn downgrade_lets_readers_in_and_no_writer() {
    let setup = Setup::new();
    let other = setup.other();
    let edit = writes(&setup.leases).await.unwrap();
    let token = edit.cancellation_token();
    let here = tokio::spawn({
        let mut here = lock(&setup.leases);
        async move { here.read().await.unwrap() }
    });
    let there = tokio::spawn({
        let mut there = lock(&other);
        async move { there.read().await.unwrap() }
    });
    settle().await;
    let page = edit.downgrade().await.unwrap();
    assert!(token.is_cancelled(), "the write lease has ended");
    let (took, (here, there)) = timed(async { (here.await.unwrap(), there.await.unwrap()) }).await;
    assert!(took < MOMENT * 2, "{took:?}");
    assert!(writes(&other).await.is_none());
    assert_eq!(holders(&setup).await, 2, "one for each process");
    sleep(T * 3).await;
    for lease in [page, here, there] {
        lease.check().unwrap();
        lease.unlock().await.unwrap();
    }
    assert!(setup.memory.is_empty());
}

/// Tasks that write have its token, and readers are in once the store has the request.
#[tokio::test(start_paused = true)]
async fn downgrade_fires_the_token_before_it_asks_the_store() {
    let setup = Setup::new();
    let edit = writes(&setup.leases).await.unwrap();
    let token = edit.cancellation_token();
    setup.faults.add(Rule::new(Fault::HoldReply).on(Call::Acquire).times(1));
    let mut downgrade = Box::pin(edit.downgrade());
    assert!(!token.is_cancelled());
    assert!(poll_once(downgrade.as_mut()).await.is_pending());
    assert!(token.is_cancelled());
    let theirs = reads(&setup.other()).await.expect("the store has made a reader");
    setup.faults.heal();
    let page = downgrade.await.unwrap();
    assert!(!page.cancellation_token().is_cancelled(), "it has a new one");
    drop((page, theirs));
}

/// A renewal that left before a downgrade, reaches the store after it, and finds no writer there. The answer to the
/// downgrade comes last.
#[tokio::test(start_paused = true)]
async fn renewal_that_passes_the_answer_to_a_downgrade_costs_no_lease() {
    let _reached = Must::reach("TakenByItself");
    let setup = Setup::new();
    let mut handle = setup.leases.rw_lock("n");
    let edit = handle.write().await.unwrap();
    setup.faults.add(Rule::new(Fault::Delay(2 * MOMENT)).on(Call::Renew).times(1));
    setup.faults.until_calls(Call::Renew, 1).await;
    setup.faults.add(Rule::new(Fault::HoldReply).on(Call::Acquire));
    let mut downgrade = Box::pin(edit.downgrade());
    assert!(poll_once(downgrade.as_mut()).await.is_pending());
    sleep(10 * MOMENT).await;
    setup.faults.heal();
    let page = downgrade.await.expect("a reader");
    sleep(2 * T).await;
    page.check().unwrap();
    page.unlock().await.unwrap();
}

/// Of a name that is free, the downgrade has made no reader.
#[tokio::test(start_paused = true)]
async fn renewal_that_finds_the_name_free_ends_a_downgrading_lease() {
    let setup = Setup::new();
    let edit = writes(&setup.leases).await.unwrap();
    setup.faults.add(Rule::new(Fault::Delay(2 * MOMENT)).on(Call::Renew).times(1));
    setup.faults.until_calls(Call::Renew, 1).await;
    setup.faults.add(Rule::new(Fault::Hang).on(Call::Acquire));
    let mut downgrade = Box::pin(edit.downgrade());
    assert!(poll_once(downgrade.as_mut()).await.is_pending());
    assert!(setup.memory.delete("n"));
    let (took, result) = timed(downgrade).await;
    assert!(took <= 2 * MOMENT, "{took:?}");
    assert_eq!(lost(result.map(drop)), Loss::Gone);
    assert!(setup.memory.is_empty());
}

#[tokio::test(start_paused = true)]
async fn handle_knows_its_lease_after_a_downgrade() {
    let setup = Setup::new();
    let mut handle = lock(&setup.leases);
    let edit = handle.write().await.unwrap();
    let page = edit.downgrade().await.unwrap();
    assert_eq!(failed(handle.write().await), ErrorKind::Invalid);
    let again = handle.read().await.unwrap();
    assert_eq!((again.hold_count(), holders(&setup).await), (2, 1));
    let Upgraded::Read(page) = page.try_upgrade().await.unwrap() else { panic!("two leases") };
    drop(again);
    let Upgraded::Write(edit) = page.try_upgrade().await.unwrap() else { panic!("alone") };
    let inner = handle.write().await.unwrap();
    assert_eq!(inner.hold_count(), 2);
    // Not its only lease: nothing changes, and the name stays locked for writing until both have ended.
    let token = edit.cancellation_token();
    let page = edit.downgrade().await.unwrap();
    assert!(!token.is_cancelled() && reads(&setup.other()).await.is_none());
    inner.unlock().await.unwrap();
    assert!(!token.is_cancelled() && reads(&setup.other()).await.is_none());
    let Upgraded::Read(page) = page.try_upgrade().await.unwrap() else { panic!("a read lease") };
    page.unlock().await.unwrap();
    assert!(token.is_cancelled() && reads(&setup.other()).await.is_some());
}

/// The handle waits for its own change, and not for the lease that comes of it.
#[tokio::test(start_paused = true)]
async fn handle_does_not_wait_for_itself_during_a_change() {
    let setup = Setup::new();
    let mut handle = lock(&setup.leases);
    for entry_first in [false, true] {
        setup.faults.add(Rule::new(Fault::Delay(MOMENT)).on(Call::Acquire));
        let page = handle.read().await.unwrap();
        let again = timeout(T, handle.read());
        let (upgraded, again) = match entry_first {
            true => {
                let (again, upgraded) = tokio::join!(again, page.try_upgrade());
                (upgraded, again)
            }
            false => tokio::join!(page.try_upgrade(), again),
        };
        let again = again.expect("at once").unwrap();
        assert_eq!(again.hold_count(), 2);
        assert_eq!(matches!(upgraded.unwrap(), Upgraded::Read(_)), entry_first);
        drop(again);
        settle().await;
        assert!(setup.memory.is_empty());
    }
    let edit = handle.write().await.unwrap();
    let (page, again) = tokio::join!(edit.downgrade(), timeout(T, handle.write()));
    assert_eq!(failed(again.expect("at once")), ErrorKind::Invalid, "it reads now");
    let page = page.unwrap();
    let twice = async {
        let Upgraded::Write(edit) = page.try_upgrade().await.unwrap() else { panic!("alone") };
        edit.downgrade().await.unwrap()
    };
    let (page, again) = tokio::join!(twice, timeout(T, handle.read()));
    let again = again.expect("at once").unwrap();
    assert_eq!((page.hold_count(), again.hold_count()), (2, 2));
    drop((page, again));
    settle().await;
    assert!(setup.memory.is_empty());
}

/// What the store granted before, it does not have any more, and it grants the name to another.
#[tokio::test(start_paused = true)]
async fn grants_that_arrive_after_force_unlock_are_no_leases() {
    let setup = Setup::new();
    setup.faults.add(Rule::new(Fault::HoldReply).on(Call::Acquire).times(3));
    let mut readers = JoinSet::new();
    for _ in 0..3 {
        let mut reader = lock(&setup.leases);
        readers.spawn(async move { reader.read().await.unwrap() });
    }
    settle().await;
    assert!(setup.leases.force_unlock("n", "test").await.unwrap());
    let edit = writes(&setup.other()).await.expect("it was forced open");
    setup.faults.heal();
    sleep(T / 10).await;
    assert!(readers.try_join_next().is_none(), "a reader believes beside the writer");
    edit.unlock().await.unwrap();
    for page in readers.join_all().await {
        page.check().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn name_held_here_as_another_kind_is_refused_at_once() {
    let setup = Setup::new();
    let page = reads(&setup.leases).await.unwrap();
    let (mut other_lock, other_pool) = (setup.leases.lock("n"), setup.leases.semaphore("n", 2));
    assert_eq!(failed(other_lock.try_lock().await), ErrorKind::WrongType);
    assert_eq!(failed(other_pool.try_acquire().await), ErrorKind::WrongType);
    let (took, waited) = timed(timeout(T, other_lock.lock())).await;
    assert_eq!((took, failed(waited.unwrap())), (Duration::ZERO, ErrorKind::WrongType));
    let (took, waited) = timed(timeout(T, other_pool.acquire())).await;
    assert_eq!((took, failed(waited.unwrap())), (Duration::ZERO, ErrorKind::WrongType));
    // A name that is about to be free is of no kind.
    drop(page);
    let lease = timeout(T, other_lock.lock()).await.unwrap().unwrap();
    assert_eq!(failed(lock(&setup.leases).try_read().await), ErrorKind::WrongType);
    let (took, waited) = timed(timeout(T, lock(&setup.leases).write())).await;
    assert_eq!((took, failed(waited.unwrap())), (Duration::ZERO, ErrorKind::WrongType));
    lease.unlock().await.unwrap();
}

/// One that waits here shows what kind the name is elsewhere.
#[tokio::test(start_paused = true)]
async fn name_awaited_here_as_another_kind_is_refused() {
    let setup = Setup::new();
    let edit = writes(&setup.other()).await.unwrap();
    let mut reader = lock(&setup.leases);
    let waits = tokio::spawn(async move { reader.read().await });
    settle().await;
    let mut other_lock = setup.leases.lock("n");
    assert_eq!(failed(other_lock.try_lock().await), ErrorKind::WrongType);
    let (took, waited) = timed(timeout(T, other_lock.lock())).await;
    assert_eq!((took, failed(waited.unwrap())), (Duration::ZERO, ErrorKind::WrongType));
    edit.unlock().await.unwrap();
    waits.await.unwrap().unwrap().unlock().await.unwrap();
    // While its first request is unanswered, it shows nothing: it may be refused itself.
    setup.faults.add(Rule::new(Fault::Delay(MOMENT)).on(Call::Acquire).times(1));
    let edit = lock(&setup.leases);
    let waits = tokio::spawn({
        let mut edit = edit;
        async move { edit.write().await.unwrap() }
    });
    settle().await;
    let (took, waited) = timed(timeout(T, other_lock.lock())).await;
    assert_eq!(failed(waited.unwrap()), ErrorKind::WrongType);
    assert!(took < Duration::from_millis(100), "{took:?}");
    waits.await.unwrap().unlock().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn upgrade_is_refused_while_others_read_or_wait() {
    let setup = Setup::new();
    let other = setup.other();
    let page = reads(&setup.leases).await.unwrap();
    for manager in [&setup.leases, &other] {
        let beside = reads(manager).await.unwrap();
        let Upgraded::Read(still) = reads(&other).await.unwrap().try_upgrade().await.unwrap()
        else {
            panic!("others read");
        };
        drop((still, beside));
    }
    settle().await;
    // A writer waits, elsewhere and here.
    let mut page = page;
    for manager in [&other, &setup.leases] {
        let mut writer = lock(manager);
        let waits = tokio::spawn(async move { writer.write_timeout(T / 10).await });
        settle().await;
        page = match page.try_upgrade().await.unwrap() {
            Upgraded::Read(page) => page,
            Upgraded::Write(_) => panic!("one waits to write"),
        };
        assert!(waits.await.unwrap().unwrap().is_none());
    }
    sleep(T).await;
    let Upgraded::Write(edit) = page.try_upgrade().await.unwrap() else { panic!("alone") };
    sleep(T * 2).await;
    edit.check().unwrap();
    edit.unlock().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn one_of_many_upgrades_wins_and_none_waits() {
    let setup = Setup::new();
    let other = setup.other();
    for round in 0..20 {
        let mut racing = JoinSet::new();
        for i in 0..6 {
            let mut handle = lock(if i % 2 == 0 { &setup.leases } else { &other });
            racing.spawn(async move {
                let page = handle.read().await.unwrap();
                tokio::task::yield_now().await;
                match timed(page.try_upgrade()).await {
                    (took, Ok(upgraded)) => {
                        assert!(took < MOMENT, "it waited for {took:?}");
                        if let Upgraded::Write(edit) = upgraded {
                            edit.unlock().await.unwrap();
                        }
                    }
                    (_, Err(error)) => panic!("{error}"),
                }
            });
        }
        let (took, _) = timed(racing.join_all()).await;
        assert!(took < T / 10, "round {round}: {took:?}");
        settle().await;
        assert!(setup.memory.is_empty());
    }
}

/// Readers overlap all the time, in two processes; still the writer enters when those that were there have left.
#[tokio::test(start_paused = true)]
async fn stream_of_readers_does_not_starve_a_writer() {
    for writes_here in [true, false] {
        let setup = Setup::new();
        let other = setup.other();
        let mut readers = JoinSet::new();
        for i in 0..6u64 {
            let mut handle = lock(if i % 2 == 0 { &setup.leases } else { &other });
            readers.spawn(async move {
                sleep(Duration::from_millis(37 * i)).await;
                loop {
                    let page = handle.read().await.unwrap();
                    sleep(Duration::from_millis(200)).await;
                    page.unlock().await.unwrap();
                }
            });
        }
        sleep(Duration::from_secs(1)).await;
        for _ in 0..20 {
            let mut writer = lock(if writes_here { &setup.leases } else { &other });
            let (took, edit) = timed(writer.write()).await;
            // The longest read, the time for which readers join, and a poll of the writer.
            let bound = Duration::from_millis(200) + T / 10 + Duration::from_millis(1_010);
            assert!(took < bound, "{took:?}");
            drop(edit);
            sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Another process asks for the same side now and then, and gives up soon.
#[tokio::test(start_paused = true)]
async fn short_waiters_do_not_shorten_the_place_of_a_writer() {
    let setup = Setup::new();
    let mut others = JoinSet::new();
    for i in 0..4u64 {
        let mut handle = lock(&setup.other());
        others.spawn(async move {
            sleep(Duration::from_millis(300 * i)).await;
            loop {
                let page = handle.read().await.unwrap();
                sleep(Duration::from_millis(1_200)).await;
                page.unlock().await.unwrap();
            }
        });
    }
    let mut short = lock(&setup.other());
    others.spawn(async move {
        loop {
            drop(short.write_timeout(Duration::from_millis(20)).await.unwrap());
            sleep(Duration::from_millis(50)).await;
        }
    });
    sleep(Duration::from_secs(2)).await;
    for _ in 0..10 {
        let (took, edit) = timed(lock(&setup.leases).write()).await;
        assert!(took < Duration::from_millis(3_300), "{took:?}");
        drop(edit);
        sleep(Duration::from_millis(700)).await;
    }
}

/// An old reader gives up; a writer came after it, and a younger reader of the same process or of another one after that.
#[tokio::test(start_paused = true)]
async fn reader_that_gave_up_blocks_no_free_name() {
    for same_process in [true, false] {
        let setup = Setup::new();
        let (here, holder) = (setup.other(), setup.other());
        let there = if same_process { here.clone() } else { setup.other() };
        let edit = lock(&holder).write().await.unwrap();
        let ms = Duration::from_millis;
        let gives_up =
            async { assert!(lock(&here).read_timeout(ms(900)).await.unwrap().is_none()) };
        let writes = async {
            sleep(ms(300)).await;
            lock(&setup.leases).write().await.unwrap().unlock().await.unwrap();
        };
        let reads = async {
            sleep(ms(600)).await;
            lock(&there).read().await.unwrap().unlock().await.unwrap();
        };
        let unlocks = async {
            sleep(ms(950)).await;
            edit.unlock().await.unwrap();
        };
        let (took, _) = timed(async { tokio::join!(gives_up, writes, reads, unlocks) }).await;
        // The place of the one that gave up lapses with its limit.
        assert!(took < Duration::from_millis(2_500), "{took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn stream_of_writers_does_not_starve_a_reader() {
    let setup = Setup::new();
    let other = setup.other();
    let mut writers = JoinSet::new();
    for i in 0..6 {
        let mut handle = lock(if i % 2 == 0 { &setup.leases } else { &other });
        writers.spawn(async move {
            loop {
                let edit = handle.write().await.unwrap();
                sleep(Duration::from_millis(20)).await;
                edit.unlock().await.unwrap();
            }
        });
    }
    sleep(Duration::from_secs(1)).await;
    for _ in 0..20 {
        let (took, page) = timed(lock(&setup.other()).read()).await;
        assert!(took < Duration::from_secs(5), "{took:?}");
        drop(page);
        sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn waiter_that_is_gone_does_not_delay_the_other_side() {
    let setup = Setup::new();
    let other = setup.other();
    let page = reads(&setup.leases).await.unwrap();
    sleep(T / 10).await;
    let mut gone = lock(&other);
    let mut gone = Box::pin(gone.write());
    assert!(poll_once(gone.as_mut()).await.is_pending());
    settle().await;
    assert!(reads(&setup.leases).await.is_none(), "a writer waits");
    let mut late = lock(&setup.leases);
    let mut late = Box::pin(late.read());
    assert!(poll_once(late.as_mut()).await.is_pending());
    settle().await;
    drop(gone);
    let (took, late) = timed(late).await;
    assert!(took < Duration::from_millis(10), "{took:?}");
    drop(late);
    // One with a limit leaves no longer a trace than it waits.
    assert!(lock(&other).write_timeout(T / 30).await.unwrap().is_none());
    settle().await;
    assert!(reads(&setup.leases).await.is_some());
    drop(page);
}

#[tokio::test(start_paused = true)]
async fn losses_leave_other_readers_alone() {
    let setup = Setup::new();
    let (one, two) = (reads(&setup.leases).await.unwrap(), reads(&setup.other()).await.unwrap());
    setup.faults.add(Rule::new(Fault::Fail(unavailable())).on(Call::Renew));
    let (took, loss) = timed(one.lost()).await;
    assert_eq!((took, loss), (C, Loss::Expired));
    two.check().unwrap();
    assert_eq!(holders(&setup).await, 2, "it has not expired yet");
    sleep(GRACE * 2).await;
    assert_eq!(holders(&setup).await, 1);
    setup.faults.heal();
    drop(one);
    assert!(setup.leases.force_unlock("n", "test").await.unwrap());
    sleep(T / 2).await;
    assert_eq!(lost(two.check()), Loss::Revoked);
    let edit = writes(&setup.leases).await.unwrap();
    assert!(setup.leases.force_unlock("n", "test").await.unwrap());
    assert_eq!(lost(edit.check()), Loss::Revoked);
    let edit = writes(&setup.leases).await.unwrap();
    assert!(setup.memory.delete("n"));
    sleep(T / 2).await;
    assert_eq!(lost(edit.downgrade().await), Loss::Gone);
}

#[tokio::test(start_paused = true)]
async fn change_without_an_answer_releases_the_name() {
    for fault in [Fault::LoseReply, Fault::Hang, Fault::Fail(unavailable()), Fault::RunLate] {
        for upgrades in [false, true] {
            let setup = Setup::new();
            let edit = writes(&setup.leases).await.unwrap();
            let rule = Rule::new(fault.clone()).on(Call::Acquire).times(1);
            let kind = if upgrades {
                let page = edit.downgrade().await.unwrap();
                setup.faults.add(rule);
                failed(page.try_upgrade().await)
            } else {
                setup.faults.add(rule);
                failed(edit.downgrade().await)
            };
            assert_eq!(kind, ErrorKind::Unavailable, "{fault:?}");
            setup.faults.heal();
            let (took, entered) = timed(lock(&setup.other()).write_timeout(T)).await;
            entered.unwrap().expect("it was released").unlock().await.unwrap();
            assert!(took <= ATTEMPT * 2, "{took:?} after {fault:?}, {upgrades}");
            sleep(T).await;
            assert!(setup.memory.is_empty());
        }
    }
}

/// Others enter as writers.
async fn enters(leases: &LeaseManager) -> Result<Option<Lease>> {
    Ok(lock(leases).write_timeout(T).await?.map(WriteLease::into_lease))
}

#[tokio::test(start_paused = true)]
async fn dropped_call_leaves_nothing_behind() {
    async fn read(setup: &Setup, cut: Cut) -> bool {
        cut.run(lock(&setup.leases).read()).await.is_some()
    }
    async fn write(setup: &Setup, cut: Cut) -> bool {
        cut.run(lock(&setup.leases).write()).await.is_some()
    }
    async fn write_behind_a_reader(setup: &Setup, cut: Cut) -> bool {
        let page = reads(&setup.other()).await.expect("it is free");
        tokio::spawn(async move {
            sleep(Duration::from_millis(100)).await;
            drop(page);
        });
        cut.run(lock(&setup.leases).write()).await.is_some()
    }
    at_every_await_of(enters, read).await;
    at_every_await_of(enters, write).await;
    at_every_await_of(enters, write_behind_a_reader).await;
}

#[tokio::test(start_paused = true)]
async fn dropped_change_leaves_nothing_behind() {
    async fn downgrade(setup: &Setup, cut: Cut) -> bool {
        let Ok(edit) = lock(&setup.leases).write().await else { return true };
        cut.run(edit.downgrade()).await.is_some()
    }
    async fn upgrade(setup: &Setup, cut: Cut) -> bool {
        let Ok(page) = lock(&setup.leases).read().await else { return true };
        cut.run(page.try_upgrade()).await.is_some()
    }
    at_every_await_of(enters, downgrade).await;
    at_every_await_of(enters, upgrade).await;
}

#[tokio::test(start_paused = true)]
async fn kinds_of_locks_do_not_mix() {
    let setup = Setup::new();
    let (leases, other) = (&setup.leases, setup.other());
    let semaphore = other.semaphore("n", 2);
    let plain = leases.lock("n").lock().await.unwrap();
    assert_eq!(failed(lock(&other).read().await), ErrorKind::WrongType);
    assert_eq!(failed(lock(&other).write().await), ErrorKind::WrongType);
    assert_eq!(failed(semaphore.acquire().await), ErrorKind::WrongType);
    plain.unlock().await.unwrap();
    for write in [false, true] {
        let mut handle = lock(leases);
        let lease = match write {
            true => handle.write().await.unwrap().into_lease(),
            false => handle.read().await.unwrap().into_lease(),
        };
        assert_eq!(failed(other.lock("n").lock().await), ErrorKind::WrongType);
        assert_eq!(failed(semaphore.try_acquire().await), ErrorKind::WrongType);
        assert_eq!(failed(semaphore.usage().await), ErrorKind::WrongType);
        lease.check().unwrap();
        lease.unlock().await.unwrap();
    }
    let permit = semaphore.acquire().await.unwrap();
    let error = leases.lock("n").lock().await.unwrap_err();
    assert!(error.to_string().contains("in use as a semaphore"), "{error}");
    assert_eq!(failed(lock(leases).read().await), ErrorKind::WrongType);
    permit.unlock().await.unwrap();
    assert_eq!(failed(lock(leases).read().await), ErrorKind::WrongType, "its size is kept");
    leases.force_unlock("n", "test").await.unwrap();
    assert!(reads(leases).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn store_without_the_modes_refuses() {
    let (store, faults) = FaultyStore::new(MemoryStore::new());
    let store = store.with_capabilities(Capabilities::default());
    let leases = LeaseManager::builder().build(store).unwrap();
    assert_eq!(failed(lock(&leases).read().await), ErrorKind::Unsupported);
    assert_eq!(failed(lock(&leases).try_write().await), ErrorKind::Unsupported);
    let error = leases.semaphore("n", 2).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("slots"), "{error}");
    assert_eq!(faults.calls(Call::Acquire), 0);
}

#[tokio::test(start_paused = true)]
async fn store_without_a_mode_refuses_that_mode_only() {
    let (store, faults) = FaultyStore::new(MemoryStore::new());
    let modes = Capabilities::default().with_mode(Mode::Read).with_mode(Mode::Write);
    let leases = LeaseManager::builder().build(store.with_capabilities(modes)).unwrap();
    let pool = leases.semaphore("n", 2);
    assert_eq!(failed(pool.try_acquire().await), ErrorKind::Unsupported);
    assert_eq!(failed(pool.acquire_timeout(T).await), ErrorKind::Unsupported);
    assert_eq!(failed(pool.acquire().await), ErrorKind::Unsupported);
    assert_eq!(faults.calls(Call::Acquire), 0);
    drop(lock(&leases).write().await.unwrap());
    assert_eq!(faults.calls(Call::Acquire), 1);
}

/// Two reads of one manager, the second when the hold of the first is joined no more.
async fn two_readers(leases: &LeaseManager) -> [ReadLease; 2] {
    let first = lock(leases).read().await.unwrap();
    sleep(T / 10).await;
    [first, lock(leases).read().await.unwrap()]
}

#[tokio::test(start_paused = true)]
async fn read_holds_of_one_manager_are_renewed_each_by_itself() {
    let setup = Setup::new();
    let [one, other] = two_readers(&setup.leases).await;
    assert_ne!(one.holder_id(), other.holder_id());
    sleep(T * 2).await;
    one.check().unwrap();
    other.check().unwrap();
    assert_eq!(holders(&setup).await, 2, "both have been renewed");
}

#[tokio::test(start_paused = true)]
async fn read_hold_that_is_lost_leaves_the_other_as_it_is() {
    let setup = Setup::new();
    let [one, other] = two_readers(&setup.leases).await;
    let target = Target::new(Name::new("n").unwrap(), Mode::Read);
    setup.memory.release(Release::new(target, one.holder_id(), 0, T)).await.unwrap();
    assert_eq!(one.lost().await, Loss::Gone);
    other.check().unwrap();
    other.unlock().await.unwrap();
    assert!(setup.memory.is_empty());
}

#[tokio::test(start_paused = true)]
async fn read_holds_are_released_one_by_one_and_a_writer_enters() {
    let setup = Setup::new();
    let [one, other] = two_readers(&setup.leases).await;
    let left = other.holder_id().to_string();
    one.unlock().await.unwrap();
    let theirs = setup.other().holders("n").await.unwrap();
    assert_eq!(theirs.iter().map(|holder| &holder.holder).collect::<Vec<_>>(), [&left]);
    other.check().unwrap();
    let mut writer = lock(&setup.leases);
    let last = async {
        sleep(T / 10).await;
        other.unlock().await.unwrap();
    };
    let (edit, ()) = tokio::join!(writer.write(), last);
    let edit = edit.unwrap();
    let modes = |leases: &LeaseManager| {
        leases.holdings().iter().map(|holding| holding.mode).collect::<Vec<_>>()
    };
    assert_eq!((modes(&setup.leases), holders(&setup).await), (vec![Mode::Write], 1));
    edit.unlock().await.unwrap();
    assert!(modes(&setup.leases).is_empty() && setup.memory.is_empty());
}

#[tokio::test(start_paused = true)]
async fn readers_behind_a_writer_enter_together() {
    let setup = Setup::new();
    let first = reads(&setup.leases).await.unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut waits = JoinSet::new();
    for who in ["writer", "reader", "reader"] {
        let (mut handle, order) = (lock(&setup.leases), Arc::clone(&order));
        waits.spawn(async move {
            let lease = match who {
                "writer" => handle.write().await.unwrap().into_lease(),
                _ => handle.read().await.unwrap().into_lease(),
            };
            order.lock().unwrap().push(who);
            (who == "reader").then_some(lease)
        });
        settle().await;
    }
    first.unlock().await.unwrap();
    let pages: Vec<_> = waits.join_all().await.into_iter().flatten().collect();
    assert_eq!(*order.lock().unwrap(), ["writer", "reader", "reader"]);
    assert_eq!(pages[0].holder_id(), pages[1].holder_id());
    assert_eq!(holders(&setup).await, 1);
}

#[tokio::test(start_paused = true)]
async fn force_unlock_and_close_reach_all_holds_of_a_name() {
    let setup = Setup::new();
    let pages = two_readers(&setup.leases).await;
    assert!(setup.leases.force_unlock("n", "test").await.unwrap());
    for page in pages {
        assert_eq!(lost(page.check()), Loss::Revoked);
    }
    settle().await;
    let released = setup.calls(Call::Release);
    let pages = two_readers(&setup.leases).await;
    setup.leases.close().await.unwrap();
    for page in pages {
        assert_eq!(lost(page.check()), Loss::Closed);
    }
    assert_eq!(setup.calls(Call::Release) - released, 2);
    assert!(setup.memory.is_empty());
}

/// Readers and writers of three managers, who drop, convert and cancel as they like.
#[test]
fn writers_are_alone_in_every_schedule() {
    watched(|| async {
        let setup = Setup::new();
        let managers = [setup.leases.clone(), setup.other(), setup.other()];
        let inside = Arc::new(AtomicI64::new(0));
        let met = Arc::new(Mutex::new([0u32; 4]));
        let mut tasks = JoinSet::new();
        for i in 0..6u64 {
            let mut handle = lock(&managers[i as usize % 3]);
            let (inside, met) = (Arc::clone(&inside), Arc::clone(&met));
            tasks.spawn(async move {
                let mut seed = i * 7919 + 1;
                let mut draw = move |below: u64| {
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (seed >> 33) % below
                };
                for _ in 0..400 {
                    let pause = Duration::from_millis(draw(5));
                    let limit = Duration::from_millis(draw(200) + 1);
                    sleep(Duration::from_millis(draw(20))).await;
                    if draw(4) == 0 {
                        let Some(edit) = handle.write_timeout(limit).await.unwrap() else {
                            continue;
                        };
                        assert_eq!(inside.swap(-1, Ordering::SeqCst), 0, "a writer beside others");
                        sleep(pause).await;
                        edit.check().unwrap();
                        met.lock().unwrap()[0] += 1;
                        if draw(3) == 0 {
                            assert_eq!(inside.swap(1, Ordering::SeqCst), -1);
                            let page = edit.downgrade().await.unwrap();
                            sleep(pause).await;
                            page.check().unwrap();
                            met.lock().unwrap()[1] += 1;
                            inside.fetch_sub(1, Ordering::SeqCst);
                            drop(page);
                        } else {
                            assert_eq!(inside.swap(0, Ordering::SeqCst), -1);
                            drop(edit);
                        }
                    } else if let Some(page) = handle.read_timeout(limit).await.unwrap() {
                        let others = inside.fetch_add(1, Ordering::SeqCst);
                        assert!(others >= 0, "a reader beside the writer");
                        sleep(pause).await;
                        page.check().unwrap();
                        met.lock().unwrap()[2] += 1;
                        inside.fetch_sub(1, Ordering::SeqCst);
                        if draw(4) == 0
                            && let Upgraded::Write(edit) = page.try_upgrade().await.unwrap()
                        {
                            assert_eq!(inside.swap(-1, Ordering::SeqCst), 0, "an upgrade");
                            sleep(pause).await;
                            edit.check().unwrap();
                            met.lock().unwrap()[3] += 1;
                            assert_eq!(inside.swap(0, Ordering::SeqCst), -1);
                        }
                    }
                }
            });
        }
        tasks.join_all().await;
        let met = *met.lock().unwrap();
        assert!(met.iter().all(|count| *count > 10), "{met:?}");
        settle().await;
        assert!(setup.memory.is_empty());
    });
}
