//! Numbered slots: any of them, the one of an index, and what a wait for any costs.

use super::*;
use leasehold::{Slot, Slots};
use std::collections::BTreeSet;
use tokio::time::timeout;

async fn taken(slots: &Slots, count: usize) -> Vec<Slot> {
    let mut taken = Vec::new();
    for _ in 0..count {
        taken.push(slots.take().await.unwrap());
    }
    taken
}

#[tokio::test(start_paused = true)]
async fn each_index_is_taken_once() {
    for size in [1, 2, 7, 40] {
        let setup = Setup::new();
        let (here, there) = (setup.leases.slots("s", size), setup.other().slots("s", size));
        let mut slots = Vec::new();
        for number in 0..size {
            let set = if number % 2 == 0 { &here } else { &there };
            slots.push(set.try_take().await.unwrap().expect("one is free"));
        }
        let indexes: BTreeSet<u32> = slots.iter().map(Slot::index).collect();
        assert_eq!(indexes, (0..size).collect());
        assert!(here.try_take().await.unwrap().is_none());
        assert!(there.take_timeout(Duration::ZERO).await.unwrap().is_none());
        for slot in &slots {
            assert_eq!(slot.name(), format!("s#{}", slot.index()));
            slot.check().unwrap();
        }
    }
}

/// With 16 slots it waits for all; of 40 it waits for some and looks again after the poll interval.
#[tokio::test(start_paused = true)]
async fn waiting_caller_gets_the_slot_that_is_free_first() {
    for (size, limit) in [(1, MOMENT), (16, MOMENT), (40, Duration::from_millis(1100))] {
        let setup = Setup::new();
        let slots = setup.leases.slots("s", size);
        let mut all = taken(&slots, size as usize).await;
        let waiter = tokio::spawn({
            let slots = slots.clone();
            async move { slots.take().await.unwrap() }
        });
        sleep(Duration::from_millis(333)).await;
        assert!(!waiter.is_finished());
        let free = all.swap_remove(size as usize / 2);
        let (index, fence) = (free.index(), free.fence());
        free.unlock().await.unwrap();
        let (took, slot) = timed(timeout(T, waiter)).await;
        let slot = slot.expect("granted in time").unwrap();
        assert_eq!(slot.index(), index);
        assert!(slot.fence() > fence);
        assert!(took <= limit, "{took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn wait_for_any_leaves_the_other_slots_free() {
    let setup = Setup::new();
    let slots = setup.leases.slots("s", 4);
    let all = taken(&slots, 4).await;
    let waiter = tokio::spawn({
        let slots = slots.clone();
        async move { slots.take().await.unwrap() }
    });
    settle().await;
    // All are free in one moment, so several are on their way to the waiter.
    drop(all);
    let slot = timeout(T, waiter).await.expect("granted in time").unwrap();
    settle().await;
    let rest = taken(&setup.other().slots("s", 4), 3).await;
    assert!(rest.iter().all(|other| other.index() != slot.index()));
}

#[tokio::test(start_paused = true)]
async fn wait_ends_with_its_time_and_leaves_nothing() {
    for size in [3, 40] {
        let setup = Setup::new();
        let slots = setup.leases.slots("s", size);
        let all = taken(&slots, size as usize).await;
        let limit = Duration::from_secs(10);
        let (took, slot) = timed(slots.take_timeout(limit)).await;
        assert!(slot.unwrap().is_none() && took == limit, "{took:?}");
        drop(all);
        settle().await;
        for index in 0..size {
            assert_eq!(setup.recorded(&format!("s#{index}")).await, None);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn slot_of_an_index_is_a_lock_of_its_own() {
    let setup = Setup::new();
    let slots = setup.leases.slots("s", 3);
    let two = slots.take_index(2).await.unwrap();
    assert_eq!(two.index(), 2);
    assert!(slots.try_take_index(2).await.unwrap().is_none());
    assert!(setup.other().lock("s#2").try_lock().await.unwrap().is_none());
    let one = slots.try_take_index(1).await.unwrap().unwrap();
    let lease = one.into_lease();
    assert_eq!(lease.name(), "s#1");
    let token = two.cancellation_token();
    setup.leases.force_unlock("s#2", "test").await.unwrap();
    assert!(token.is_cancelled());
    assert_eq!(lost(two.unlock().await), Loss::Revoked);
}

#[tokio::test(start_paused = true)]
async fn bad_sets_and_indexes_are_refused_with_advice() {
    let leases = LeaseManager::in_memory();
    let slots = leases.slots("s", 3);
    let message = |slot: Result<Slot>| slot.unwrap_err().to_string();
    let outside = "invalid: there is no slot 3; the indexes are 0 to 2";
    assert_eq!(message(slots.take_index(3).await), outside);
    assert_eq!(slots.try_take_index(3).await.unwrap_err().to_string(), outside);
    let none = leases.slots("s", 0);
    let expected = "invalid: \"s\" has 0 slots; give it at least one";
    assert_eq!(message(none.take().await), expected);
    assert_eq!(message(none.take_index(0).await), expected);
    assert_eq!(none.try_take().await.unwrap_err().to_string(), expected);
    assert_eq!(none.take_timeout(MOMENT).await.unwrap_err().to_string(), expected);
    let long = leases.slots("x".repeat(511), 11);
    assert_eq!(failed(long.take().await), ErrorKind::Invalid);
    assert_eq!(failed(leases.slots("", 1).take().await), ErrorKind::Invalid);
}

#[tokio::test(start_paused = true)]
async fn silent_store_is_reported_after_one_ttl() {
    for size in [2, 40] {
        let setup = Setup::new();
        setup.faults.add(Rule::new(Fault::Fail(unavailable())).on(Call::Acquire));
        let slots = setup.leases.slots("s", size);
        assert_eq!(failed(slots.try_take().await), ErrorKind::Unavailable);
        let (took, result) = timed(slots.take()).await;
        assert_eq!(failed(result), ErrorKind::Unavailable);
        assert!((T..T * 2).contains(&took), "{took:?}");
        assert_eq!(failed(slots.take_timeout(ATTEMPT).await), ErrorKind::Unavailable);
    }
}

#[tokio::test(start_paused = true)]
async fn outage_shorter_than_the_ttl_is_waited_out() {
    for size in [2, 40] {
        let setup = Setup::new();
        setup.faults.add(Rule::new(Fault::Fail(unavailable())).on(Call::Acquire));
        let slots = setup.leases.slots("s", size);
        let waiter = tokio::spawn(async move { slots.take().await.map(drop) });
        sleep(T / 2).await;
        setup.faults.heal();
        waiter.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn silent_store_has_no_slot_taken() {
    for (size, calls) in [(1, 4), (2, 3), (4, 6)] {
        let setup = Setup::new();
        setup.faults.add(Rule::new(Fault::Hang).on(Call::Acquire));
        let mut takers = tokio::task::JoinSet::new();
        for _ in 0..calls {
            let slots = setup.leases.slots("s", size);
            takers.spawn(
                async move { slots.take_timeout(Duration::from_millis(400)).await.map(drop) },
            );
        }
        while let Some(taken) = takers.join_next().await {
            assert_eq!(
                failed(taken.expect("no panic").map(Some)),
                ErrorKind::Unavailable,
                "{size} slots"
            );
        }
    }
}

/// It waits for all of them, and all are handed to it at once.
#[tokio::test(start_paused = true)]
async fn min_hold_closes_no_slot_but_the_one_taken() {
    let setup = Setup::new();
    let slots = setup.leases.slots("s", 4);
    let all = taken(&slots, 4).await;
    let waiting = slots.clone().min_hold(T);
    let waiter = tokio::spawn(async move { waiting.take().await.unwrap() });
    settle().await;
    drop(all);
    let slot = waiter.await.unwrap();
    settle().await;
    for index in (0..4).filter(|index| *index != slot.index()) {
        assert_eq!(setup.recorded(&format!("s#{index}")).await, None, "{index}");
    }
    let name = slot.name().to_owned();
    slot.unlock().await.unwrap();
    assert_eq!(setup.recorded(&name).await, Some(0), "closed");
}

/// The second asks nothing while the request of the first is on its way, and hears its answer.
#[tokio::test(start_paused = true)]
async fn slot_that_another_call_asks_for_is_no_silence() {
    for limit in [30, 1_000].map(Duration::from_millis) {
        let setup = Setup::new();
        let theirs = setup.held_elsewhere("s#0").await;
        let latency = Duration::from_millis(20);
        setup.faults.add(Rule::new(Fault::Delay(latency)).on(Call::Acquire));
        let slots = setup.leases.slots("s", 1);
        let (first, second) = tokio::join!(slots.take_timeout(limit), async {
            sleep(MOMENT).await;
            slots.take_timeout(limit).await
        });
        assert!(first.unwrap().is_none() && second.unwrap().is_none());
        drop(theirs);
    }
}
