//! What a timed call returns when its time has passed: nothing, or that the store is silent.

use super::*;
use leasehold::Fate;
use std::error::Error as _;

/// Longer than the calls, shorter than an attempt.
const ROUND_TRIP: Duration = Duration::from_millis(50);
const SHORT: Duration = Duration::from_millis(10);

/// Makes a timed call of one kind for a name.
async fn call(leases: &LeaseManager, kind: usize, name: &str) -> Result<bool> {
    match kind {
        0 => leases.lock(name).lock_timeout(SHORT).await.map(|lease| lease.is_some()),
        1 => leases.fair_lock(name).lock_timeout(SHORT).await.map(|lease| lease.is_some()),
        2 => leases.rw_lock(name).read_timeout(SHORT).await.map(|lease| lease.is_some()),
        3 => leases.rw_lock(name).write_timeout(SHORT).await.map(|lease| lease.is_some()),
        4 => leases.semaphore(name, 2).acquire_timeout(SHORT).await.map(|lease| lease.is_some()),
        5 => leases.slots(name, 3).take_timeout(SHORT).await.map(|slot| slot.is_some()),
        6 => leases.holder().lock_timeout(name, SHORT).await.map(|lease| lease.is_some()),
        _ => {
            let other = format!("{name}:other");
            let mut names = leases.multi_lock([name, &other]).unwrap();
            names.lock_timeout(SHORT).await.map(|lease| lease.is_some())
        }
    }
}

const KINDS: std::ops::Range<usize> = 0..8;

/// A caller that has little left of its deadline sees no outage while the store answers others.
#[tokio::test(start_paused = true)]
async fn timeout_shorter_than_a_round_trip_is_no_outage() {
    for kind in KINDS {
        let setup = Setup::new();
        drop(setup.leases.lock("served").lock().await.unwrap());
        setup.faults.add(Rule::new(Fault::Delay(ROUND_TRIP)).on(Call::Acquire));
        let (took, result) = timed(call(&setup.leases, kind, "n")).await;
        assert!(!result.expect("the store answers"), "{kind}");
        assert_eq!(took, SHORT, "{kind}");
        // The late grant is released.
        sleep(ROUND_TRIP * 4).await;
        assert!(setup.memory.is_empty(), "{kind}");
    }
}

/// The answers come after the calls have gone.
#[tokio::test(start_paused = true)]
async fn answers_to_calls_that_gave_up_show_that_the_store_serves() {
    for kind in KINDS {
        let setup = Setup::new();
        setup.faults.add(Rule::new(Fault::Delay(ROUND_TRIP)).on(Call::Acquire));
        assert_eq!(failed(call(&setup.leases, kind, "n").await.map(Some)), ErrorKind::Unavailable);
        sleep(ROUND_TRIP * 2).await;
        assert!(!call(&setup.leases, kind, "m").await.expect("the store answers"), "{kind}");
    }
}

#[tokio::test(start_paused = true)]
async fn answer_older_than_an_attempt_is_none() {
    for kind in KINDS {
        let setup = Setup::new();
        drop(setup.leases.lock("served").lock().await.unwrap());
        sleep(ATTEMPT).await;
        setup.faults.add(Rule::new(Fault::Hang).on(Call::Acquire));
        let (took, result) = timed(call(&setup.leases, kind, "n")).await;
        assert_eq!((took, failed(result.map(Some))), (SHORT, ErrorKind::Unavailable), "{kind}");
    }
}

#[tokio::test(start_paused = true)]
async fn renewal_and_refusal_do_not_show_that_names_are_granted() {
    for kind in KINDS {
        let setup = Setup::new();
        let _held = setup.leases.lock("held").lock().await.unwrap();
        sleep(ATTEMPT).await;
        setup.faults.until_calls(Call::Renew, 1).await;
        settle().await;
        let denied = Error::new(ErrorKind::Denied, "not for you");
        setup.faults.add(Rule::new(Fault::Fail(denied)).on(Call::Acquire).times(1));
        assert_eq!(failed(setup.leases.lock("denied").try_lock().await), ErrorKind::Denied);
        setup.faults.add(Rule::new(Fault::Hang).on(Call::Acquire));
        let result = call(&setup.leases, kind, "n").await;
        assert_eq!(failed(result.map(Some)), ErrorKind::Unavailable, "{kind}");
    }
}

#[tokio::test(start_paused = true)]
async fn timeout_in_an_outage_names_the_last_failure() {
    for kind in KINDS {
        let setup = Setup::new();
        let refused =
            Error::new(ErrorKind::Unavailable, "db:6379 refuses").with_fate(Fate::Unknown);
        setup.faults.add(Rule::new(Fault::Fail(refused)).on(Call::Acquire).times(1));
        assert_eq!(failed(setup.leases.lock("m").try_lock().await), ErrorKind::Unavailable);
        setup.faults.add(Rule::new(Fault::Hang).on(Call::Acquire));
        let error = call(&setup.leases, kind, "n").await.expect_err("an outage");
        assert!(error.to_string().contains("db:6379 refuses"), "{kind}: {error}");
        assert!(error.source().is_some(), "{kind}: {error:?}");
        assert!(error.is_retryable(), "{kind}: {error}");
    }
}

/// It looks only at the names that it has asked for.
#[tokio::test]
async fn slots_by_the_billion_are_given_up_in_time() {
    let setup = Setup::new();
    setup.faults.add(Rule::new(Fault::Hang).on(Call::Acquire));
    let slots = setup.leases.slots("s", u32::MAX);
    let start = std::time::Instant::now();
    assert_eq!(failed(slots.take_timeout(SHORT).await), ErrorKind::Unavailable);
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}
