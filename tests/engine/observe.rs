//! What observers, the stream of events, statistics, health and holdings tell, and that no observer harms a lease.

use super::*;
use leasehold::{Event, EventKind, Events, LeaseState, Observer, Refusal};
use std::pin::pin;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};

/// The longest wait for a thread, in real time.
const LIMIT: Duration = Duration::from_secs(30);

/// The events that have come, as words.
async fn words(events: &mut Events) -> Vec<String> {
    let mut words = Vec::new();
    while let Poll::Ready(Some(event)) = poll_once(pin!(events.next())).await {
        words.push(word(&event));
    }
    words
}

fn word(event: &Event) -> String {
    let word = match event.kind() {
        EventKind::Waiting { ahead, .. } => format!("waits behind {ahead}"),
        EventKind::Granted { how, was_waiting, .. } => {
            let from = if *was_waiting { " after a wait" } else { "" };
            format!("granted by {how:?}{from}")
        }
        EventKind::NotGranted { why, .. } => format!("not granted: {}", reason(why)),
        EventKind::Lost { cause, .. } => format!("lost: {cause:?}"),
        EventKind::NotReleased { error, .. } => {
            format!("not released: {:?}", error.as_ref().map(Error::kind))
        }
        EventKind::ModeChanged { from, .. } => format!("changed from {from:?}"),
        kind => format!("{kind:?}").split([' ', '{']).next().unwrap_or_default().to_owned(),
    };
    assert_eq!(event.class(), "all");
    match event.name() {
        Some("n") | None => word,
        Some(other) => format!("{other}: {word}"),
    }
}

fn reason(why: &Refusal) -> String {
    match why {
        Refusal::Failed(error) => format!("{:?}", error.kind()),
        other => format!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn events_report_the_life_of_a_lease_in_order() {
    let setup = Setup::new();
    let mut events = setup.leases.events(100);
    let mut lock = setup.leases.lock("n");
    let lease = lock.lock().await.unwrap();
    let nested = lock.lock().await.unwrap();
    nested.unlock().await.unwrap();
    assert_eq!(words(&mut events).await, ["granted by Store"], "a re-entry is none");
    setup.faults.add(Rule::new(Fault::Fail(unavailable())).on(Call::Renew).times(1));
    setup.faults.until_calls(Call::Renew, 2).await;
    settle().await;
    assert_eq!(words(&mut events).await, ["AtRisk", "Recovered"]);
    lease.unlock().await.unwrap();
    assert_eq!(words(&mut events).await, ["Released"]);
}

#[tokio::test(start_paused = true)]
async fn event_has_name_mode_holder_and_times() {
    let setup = Setup::new();
    let mut events = setup.leases.events(100);
    let held = setup.leases.lock("n").lock().await.unwrap();
    let mut waiter = setup.leases.lock("n");
    let mut waiting = pin!(waiter.lock());
    assert!(poll_once(waiting.as_mut()).await.is_pending());
    sleep(T / 5).await;
    let (holder, fence) = (held.holder_id(), held.fence());
    held.unlock().await.unwrap();
    let lease = waiting.await.unwrap();
    let mut all = Vec::new();
    while let Poll::Ready(Some(event)) = poll_once(pin!(events.next())).await {
        all.push(event);
    }
    let reported: Vec<_> = all.iter().map(word).collect();
    assert_eq!(
        reported,
        ["granted by Store", "waits behind 0", "Released", "granted by Store after a wait"]
    );
    assert!(all.iter().all(|event| event.mode() == Some(leasehold::store::Mode::Exclusive)));
    assert_eq!(all[0].holder(), Some(holder));
    assert_eq!((all[1].holder(), all[2].holder()), (None, Some(holder)));
    assert_eq!(all[3].holder(), Some(lease.holder_id()));
    assert!(
        matches!(all[0].kind(), EventKind::Granted { fence: reported, .. } if *reported == fence)
    );
    assert!(matches!(all[2].kind(), EventKind::Released { held, .. } if *held >= T / 5));
    assert!(matches!(all[3].kind(), EventKind::Granted { waited, .. } if *waited >= T / 5));
}

#[tokio::test(start_paused = true)]
async fn hand_off_is_reported_by_both_holders() {
    let setup = Setup::new();
    let mut events = setup.leases.events(100);
    let held = setup.leases.lock("n").lock().await.unwrap();
    let mut handles = [(); 2].map(|()| setup.leases.lock("n"));
    let [one, two] = &mut handles;
    let (mut first, mut second) = (pin!(one.lock()), pin!(two.lock()));
    assert!(poll_once(first.as_mut()).await.is_pending());
    assert!(poll_once(second.as_mut()).await.is_pending());
    assert_eq!(setup.leases.stats().waiters, 2);
    assert_eq!(setup.leases.holdings()[0].waiters, 2);
    held.unlock().await.unwrap();
    let lease = first.await.unwrap();
    assert_eq!(
        words(&mut events).await,
        [
            "granted by Store",
            "waits behind 0",
            "waits behind 1",
            "HandedOff",
            "granted by HandedOff after a wait"
        ]
    );
    let holding = setup.leases.holdings();
    assert_eq!(holding.len(), 1);
    assert_eq!((holding[0].fence, holding[0].waiters), (lease.fence(), 1));
    drop(lease);
    drop(second.await.unwrap());
    settle().await;
    let stats = setup.leases.stats();
    assert_eq!((stats.granted, stats.handed_off, stats.released, stats.waiters), (1, 2, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn hold_that_no_waiter_accepts_is_reported_by_no_grant() {
    let setup = Setup::new();
    let mut events = setup.leases.events(100);
    let held = setup.leases.lock("n").lock().await.unwrap();
    let mut waiter = setup.leases.lock("n");
    {
        let mut waiting = pin!(waiter.lock());
        assert!(poll_once(waiting.as_mut()).await.is_pending());
        held.unlock().await.unwrap();
        assert_eq!(setup.leases.holdings(), []);
    }
    settle().await;
    let reported = ["granted by Store", "waits behind 0", "HandedOff", "not granted: Dropped"];
    assert_eq!(words(&mut events).await, reported);
    assert_eq!(setup.leases.stats().waiters, 0);
    assert!(setup.memory.is_empty());
}

#[tokio::test(start_paused = true)]
async fn readers_that_join_are_reported_and_counted() {
    let setup = Setup::new();
    let mut events = setup.leases.events(100);
    let one = setup.leases.rw_lock("n").read().await.unwrap();
    let two = setup.leases.rw_lock("n").read().await.unwrap();
    let holdings = setup.leases.holdings();
    assert_eq!((holdings.len(), holdings[0].hold_count), (1, 2));
    assert_eq!(holdings[0].mode, leasehold::store::Mode::Read);
    drop(one);
    two.unlock().await.unwrap();
    assert_eq!(words(&mut events).await, ["granted by Store", "granted by Joined", "Released"]);
    let mut lock = setup.leases.rw_lock("n");
    let writes = lock.write().await.unwrap();
    let reads = writes.downgrade().await.unwrap();
    drop(reads);
    settle().await;
    assert_eq!(words(&mut events).await, ["granted by Store", "changed from Write", "Released"]);
    let stats = setup.leases.stats();
    assert_eq!((stats.granted, stats.joined, stats.released), (2, 1, 2));
}

#[tokio::test(start_paused = true)]
async fn call_without_a_lease_is_reported_with_its_reason() {
    let setup = Setup::new();
    let _held = setup.held_elsewhere("n").await;
    let mut events = setup.leases.events(100);
    let mut lock = setup.leases.lock("n");
    assert!(lock.try_lock().await.unwrap().is_none());
    assert!(lock.lock_timeout(T).await.unwrap().is_none());
    assert!(poll_once(pin!(lock.lock())).await.is_pending());
    setup.faults.add(Rule::new(Fault::Fail(Error::new(ErrorKind::Denied, "no"))).on(Call::Acquire));
    lock.lock().await.unwrap_err();
    assert_eq!(
        words(&mut events).await,
        [
            "not granted: Busy",
            "waits behind 0",
            "not granted: TimedOut",
            "waits behind 0",
            "not granted: Dropped",
            "not granted: Denied"
        ]
    );
    let stats = setup.leases.stats();
    assert_eq!((stats.busy, stats.timed_out, stats.dropped, stats.failed), (1, 1, 1, 1));
    assert_eq!(stats.waiters, 0);
}

#[tokio::test(start_paused = true)]
async fn loss_is_reported_once_with_its_cause() {
    let setup = Setup::new();
    let mut events = setup.leases.events(100);
    let lease = setup.leases.lock("n").lock().await.unwrap();
    setup.faults.add(Rule::new(Fault::Hang).on(Call::Renew));
    sleep(T / 2).await;
    let health = setup.leases.health();
    assert_eq!((health.at_risk, health.losses_1m), (1, 0));
    assert_eq!(setup.leases.holdings()[0].state, LeaseState::AtRisk);
    lease.lost().await;
    let health = setup.leases.health();
    assert_eq!((health.at_risk, health.losses_1m), (0, 1));
    assert!(health.store_silent_for > T / 4, "{health:?}");
    assert!(health.is_live() && health.is_ready());
    let reported = words(&mut events).await;
    assert_eq!(reported, ["granted by Store", "AtRisk", "lost: Expired"]);
    let stats = setup.leases.stats();
    assert_eq!((stats.lost, stats.lost_by(Loss::Expired), stats.lost_by(Loss::Gone)), (1, 1, 0));
    setup.faults.heal();
    drop(lease);
    sleep(2 * T).await;
    assert_eq!(words(&mut events).await, Vec::<String>::new());
    assert_eq!(setup.leases.health().losses_1m, 0);
    assert_eq!(
        setup.leases.health().store_silent_for,
        Duration::ZERO,
        "nothing was asked for long"
    );
    let mut lock = setup.leases.lock("m");
    setup.faults.add(Rule::new(Fault::Fail(unavailable())).on(Call::Acquire));
    lock.try_lock().await.unwrap_err();
    sleep(T / 2).await;
    assert_eq!(setup.leases.health().store_silent_for, T / 2);
    setup.faults.heal();
    // An answer ends the silence.
    lock.lock().await.unwrap().unlock().await.unwrap();
    assert_eq!(setup.leases.health().store_silent_for, Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn loss_that_the_release_finds_is_reported() {
    let setup = Setup::new();
    let mut events = setup.leases.events(100);
    let lease = setup.leases.lock("n").lock().await.unwrap();
    setup.other().force_unlock("n", "test").await.unwrap();
    lease.unlock().await.unwrap_err();
    assert_eq!(words(&mut events).await, ["granted by Store", "lost: Gone"]);
}

#[tokio::test(start_paused = true)]
async fn release_that_fails_is_reported() {
    let setup = Setup::new();
    let mut events = setup.leases.events(100);
    let lease = setup.leases.lock("n").lock().await.unwrap();
    setup.faults.add(Rule::new(Fault::Fail(unavailable())).on(Call::Release));
    drop(lease);
    sleep(2 * T).await;
    assert_eq!(words(&mut events).await, ["granted by Store", "not released: Some(Unavailable)"]);
    setup.leases.lock("m").lock().await.unwrap().forget();
    settle().await;
    assert_eq!(words(&mut events).await, ["m: granted by Store", "m: not released: None"]);
    assert_eq!(setup.leases.stats().not_released, 2);
}

#[tokio::test(start_paused = true)]
async fn reconnect_is_reported() {
    let setup = Setup::new();
    let mut events = setup.leases.events(100);
    setup.faults.reconnect();
    settle().await;
    assert_eq!(words(&mut events).await, ["Reconnected"]);
    assert_eq!(setup.leases.stats().reconnects, 1);
}

#[tokio::test(start_paused = true)]
async fn stream_drops_the_oldest_events_and_counts_them() {
    let setup = Setup::new();
    let mut events = setup.leases.events(2);
    let mut empty = setup.leases.events(0);
    for name in ["a", "b", "c"] {
        setup.leases.lock(name).lock().await.unwrap().forget();
    }
    assert_eq!(events.dropped(), 0, "none was taken yet");
    assert_eq!(
        events.next().await.and_then(|event| event.name().map(str::to_owned)),
        Some("c".into())
    );
    assert_eq!(events.dropped(), 4);
    assert_eq!(words(&mut events).await, ["c: not released: None"]);
    assert_eq!(events.dropped(), 4);
    assert_eq!(words(&mut empty).await, ["c: not released: None"]);
    assert_eq!(empty.dropped(), 5);
}

#[tokio::test(start_paused = true)]
async fn stream_ends_with_the_last_event_of_a_close() {
    let setup = Setup::new();
    let mut events = setup.leases.events(100);
    let lease = setup.leases.lock("n").lock().await.unwrap();
    let waits = tokio::spawn(async move {
        let mut words = Vec::new();
        while let Some(event) = events.next().await {
            words.push(word(&event));
        }
        (words, events)
    });
    settle().await;
    let closing = tokio::spawn({
        let leases = setup.leases.clone();
        async move { leases.close().await }
    });
    settle().await;
    drop(lease);
    closing.await.unwrap().unwrap();
    let (reported, mut events) = waits.await.unwrap();
    assert_eq!(reported, ["granted by Store", "lost: Closed"]);
    assert!(events.next().await.is_none());
    assert!(setup.leases.events(1).next().await.is_none());
    let health = setup.leases.health();
    assert!(health.closed && !health.is_ready() && health.is_live());
    assert_eq!(health.losses_1m, 0, "a close is no failure");
}

#[tokio::test(start_paused = true)]
async fn stream_ends_with_the_last_manager() {
    let setup = Setup::new();
    let mut events = setup.leases.events(100);
    drop(setup.leases);
    assert!(events.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn dropped_wait_for_an_event_loses_none() {
    let setup = Setup::new();
    let mut events = setup.leases.events(100);
    for _ in 0..3 {
        assert!(poll_once(pin!(events.next())).await.is_pending());
    }
    let lease = setup.leases.lock("n").lock().await.unwrap();
    assert_eq!(words(&mut events).await, ["granted by Store"]);
    {
        let mut next = pin!(events.next());
        assert!(poll_once(next.as_mut()).await.is_pending());
        lease.unlock().await.unwrap();
    }
    assert_eq!(words(&mut events).await, ["Released"]);
}

#[tokio::test(start_paused = true)]
async fn stream_wakes_the_task_that_polled_it_last() {
    let setup = Setup::new();
    let mut events = setup.leases.events(100);
    assert!(poll_once(pin!(events.next())).await.is_pending());
    let reported = tokio::spawn(async move { events.next().await.map(|event| word(&event)) });
    settle().await;
    let _lease = setup.leases.lock("n").lock().await.unwrap();
    assert_eq!(reported.await.unwrap().as_deref(), Some("granted by Store"));
}

#[tokio::test(start_paused = true)]
async fn holdings_show_what_this_manager_holds() {
    let setup = Setup::new();
    let _elsewhere = setup.held_elsewhere("x").await;
    assert_eq!(setup.leases.holdings(), []);
    let mut lock = setup.leases.lock("a");
    let (lease, nested) = (lock.lock().await.unwrap(), lock.lock().await.unwrap());
    sleep(T / 6).await;
    let permit = setup.leases.semaphore("s", 3).acquire_many(2).await.unwrap();
    let holdings = setup.leases.holdings();
    let [a, s] = &holdings[..] else { panic!("{holdings:?}") };
    assert_eq!((a.name.as_str(), a.hold_count, a.state), ("a", 2, LeaseState::Held));
    assert_eq!((a.holder, a.fence), (lease.holder_id(), lease.fence()));
    assert_eq!((a.remaining, a.age), (lease.remaining(), T / 6));
    assert_eq!((a.class, &a.label), ("all", &None));
    assert_eq!(s.name, "s");
    assert!(s.mode == leasehold::store::Mode::Permits { size: 3, take: 2 }, "{s:?}");
    drop((nested, permit));
    setup.leases.force_unlock("a", "test").await.unwrap();
    settle().await;
    assert!(lease.check().is_err());
    assert_eq!(setup.leases.holdings(), []);
    assert_eq!(setup.leases.health().losses_1m, 1);
}

/// An observer that passes each event on, and then does something.
struct Then<F>(Mutex<Sender<String>>, F);

impl<F: Fn(&Event) + Send + Sync + 'static> Observer for Then<F> {
    fn event(&self, event: &Event) {
        let _ = self.0.lock().unwrap().send(word(event));
        (self.1)(event);
    }
}

fn observed(then: impl Fn(&Event) + Send + Sync + 'static) -> (Setup, Receiver<String>) {
    let (reported, seen) = mpsc::channel();
    let setup = Setup::with(LeaseManager::builder().observer(Then(Mutex::new(reported), then)));
    (setup, seen)
}

#[tokio::test(start_paused = true)]
async fn observer_that_panics_misses_only_that_event() {
    let (setup, seen) = observed(|event| {
        assert!(!matches!(event.kind(), EventKind::Granted { .. }), "of the observer");
    });
    for _ in 0..2 {
        setup.leases.lock("n").lock().await.unwrap().unlock().await.unwrap();
    }
    for reported in ["granted by Store", "Released", "granted by Store", "Released"] {
        assert_eq!(seen.recv_timeout(LIMIT).unwrap(), reported);
    }
}

/// An error whose drop on the thread of an observer says so, and panics.
#[derive(Debug)]
struct PanicsAtItsEnd(Sender<()>);

impl std::fmt::Display for PanicsAtItsEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a bug")
    }
}

impl std::error::Error for PanicsAtItsEnd {}

impl Drop for PanicsAtItsEnd {
    fn drop(&mut self) {
        if std::thread::current().name() == Some("leasehold-events") {
            let _ = self.0.send(());
            panic!("of the error");
        }
    }
}

/// Two panics of one unwinding would end the process.
#[tokio::test(start_paused = true)]
async fn events_whose_errors_panic_at_their_end_harm_nothing() {
    let (resume, blocked) = mpsc::channel::<()>();
    let blocked = Mutex::new(blocked);
    let (setup, seen) = observed(move |_| {
        let _ = blocked.lock().unwrap().recv();
    });
    let lease = setup.leases.lock("n").lock().await.unwrap();
    assert_eq!(seen.recv_timeout(LIMIT).unwrap(), "granted by Store");
    // The observer is blocked, so that it gets the rest at once, and is the last to have the errors.
    let (ended, ends) = mpsc::channel();
    for _ in 0..3 {
        let error = unavailable().with_source(PanicsAtItsEnd(ended.clone()));
        setup.faults.add(Rule::new(Fault::Fail(error)).on(Call::Acquire).times(1));
        assert!(setup.leases.lock("m").try_lock().await.is_err());
    }
    setup.faults.heal();
    drop(resume);
    (0..3).for_each(|_| ends.recv_timeout(LIMIT).unwrap());
    lease.unlock().await.unwrap();
    while seen.recv_timeout(LIMIT).unwrap() != "Released" {}
    setup.leases.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn observer_that_blocks_delays_no_lease_and_no_token() {
    let (resume, blocked) = mpsc::channel::<()>();
    let blocked = Mutex::new(blocked);
    let (setup, seen) = observed(move |_| {
        let _ = blocked.lock().unwrap().recv();
    });
    let mut stream = setup.leases.events(100);
    let lease = setup.leases.lock("n").lock().await.unwrap();
    assert_eq!(seen.recv_timeout(LIMIT).unwrap(), "granted by Store");
    // From here on the observer is blocked.
    sleep(3 * T).await;
    assert_eq!(lease.state(), LeaseState::Held);
    for _ in 0..100 {
        setup.leases.lock("m").lock().await.unwrap().unlock().await.unwrap();
    }
    setup.faults.until_calls(Call::Renew, setup.calls(Call::Renew) + 1).await;
    settle().await;
    setup.faults.add(Rule::new(Fault::Hang).on(Call::Renew));
    let start = Instant::now();
    lease.cancellation_token().cancelled().await;
    let late = start.elapsed() + MOMENT;
    assert!(late <= C + MOMENT && late >= C - MOMENT, "{late:?}");
    assert!(words(&mut stream).await.contains(&"lost: Expired".to_owned()), "others see it");
    assert!(seen.try_recv().is_err(), "it is still blocked");
    drop(resume);
    let reported: Vec<_> = std::iter::from_fn(|| seen.recv_timeout(LIMIT).ok()).take(202).collect();
    assert_eq!(reported.last().map(String::as_str), Some("lost: Expired"));
}

#[tokio::test(start_paused = true)]
async fn slow_observer_of_10_000_leases_delays_no_renewal() {
    const LEASES: usize = 10_000;
    let (setup, _seen) = observed(|_| std::thread::sleep(MOMENT));
    let mut leases = Vec::new();
    for number in 0..LEASES {
        leases.push(setup.leases.lock(format!("n{number}")).lock().await.unwrap());
    }
    sleep(3 * T).await;
    assert!(leases.iter().all(|lease| lease.state() == LeaseState::Held));
    assert_eq!(setup.leases.stats().at_risk, 0);
    let granted = Instant::now();
    setup.faults.add(Rule::new(Fault::Hang).on(Call::Renew));
    for lease in &leases {
        lease.cancellation_token().cancelled().await;
    }
    assert!(granted.elapsed() <= C + MOMENT, "{:?}", granted.elapsed());
    assert_eq!(setup.leases.stats().lost_by(Loss::Expired), LEASES as u64);
}

/// Counts what it misses.
struct Misses(Sender<u64>, Mutex<Receiver<()>>);

impl Observer for Misses {
    fn event(&self, _: &Event) {
        let _ = self.1.lock().unwrap().recv();
    }

    fn dropped(&self, count: u64) {
        let _ = self.0.send(count);
    }
}

#[tokio::test(start_paused = true)]
async fn observer_that_is_far_behind_hears_how_many_it_missed() {
    const EVENTS: u64 = 65_536;
    let (missed, misses) = mpsc::channel();
    let (resume, blocked) = mpsc::channel();
    let setup = Setup::with(LeaseManager::builder().observer(Misses(missed, Mutex::new(blocked))));
    let mut lock = setup.leases.lock("n");
    for _ in 0..EVENTS {
        lock.lock().await.unwrap().unlock().await.unwrap();
    }
    drop(resume);
    let missed: u64 = std::iter::from_fn(|| misses.recv_timeout(LIMIT / 10).ok()).sum();
    // It has taken a first batch before the rest came.
    assert!((1..=EVENTS).contains(&missed), "{missed}");
}

#[tokio::test]
async fn close_waits_until_observers_have_seen_the_end() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let reported = Arc::clone(&seen);
    let (sender, _) = mpsc::channel();
    let then = Then(Mutex::new(sender), move |event: &Event| {
        std::thread::sleep(MOMENT * 20);
        reported.lock().unwrap().push(word(event));
    });
    let leases = LeaseManager::builder().observer(then).connect("memory:").await.unwrap();
    drop(leases.lock("n").lock().await.unwrap());
    leases.close().await.unwrap();
    assert_eq!(*seen.lock().unwrap(), ["granted by Store", "Released"]);
}

#[tokio::test(start_paused = true)]
async fn observer_may_lock_with_the_manager_it_observes() {
    let leases: Arc<Mutex<Option<LeaseManager>>> = Arc::default();
    let own = Arc::clone(&leases);
    let (setup, seen) = observed(move |_| {
        let leases = own.lock().unwrap().clone();
        if let Some(leases) = leases {
            assert_eq!(leases.holdings().len(), 1);
            assert_eq!(leases.stats().granted, 1);
        }
    });
    *leases.lock().unwrap() = Some(setup.leases.clone());
    let _lease = setup.leases.lock("n").lock().await.unwrap();
    assert_eq!(seen.recv_timeout(LIMIT).unwrap(), "granted by Store");
    leases.lock().unwrap().take();
}

#[tokio::test(start_paused = true)]
async fn class_is_that_of_the_handle_or_of_the_name() {
    let setup = Setup::with(LeaseManager::builder().classify(|name| match name {
        "n" => "letter",
        _ => "other",
    }));
    let mut events = setup.leases.events(100);
    let lease = setup.leases.lock("n").lock().await.unwrap();
    let permit = setup.leases.semaphore("s", 1).acquire().await.unwrap();
    let own = setup.leases.lock("o").class("own").lock().await.unwrap();
    let classes = setup.leases.holdings().iter().map(|holding| holding.class).collect::<Vec<_>>();
    assert_eq!(classes, ["letter", "other", "own"]);
    for class in classes {
        assert_eq!(events.next().await.map(|event| event.class()), Some(class));
    }
    drop((lease, permit, own));
}

/// Each kind has a class and a label of its own.
#[tokio::test(start_paused = true)]
async fn every_kind_of_handle_has_a_class_and_a_label() {
    let Setup { leases, .. } = &Setup::new();
    let mut multi = leases.multi_lock(["m1", "m2"]).unwrap().class("multi").label("of multi");
    let election = leases.election("e");
    let mut candidate = election.candidate("me").class("election").label("of election");
    let (mut read, mut write) = (leases.rw_lock("r"), leases.rw_lock("w"));
    (read, write) = (read.class("read").label("of read"), write.class("write").label("of write"));
    let job = leases.once("j").class("job").label("of job");
    let held = (
        leases.lock("l").class("lock").label("of lock").lock().await.unwrap(),
        leases.fair_lock("f").class("fair").label("of fair").lock().await.unwrap(),
        (read.read().await.unwrap(), write.write().await.unwrap()),
        leases.semaphore("s", 2).class("semaphore").label("of semaphore").acquire().await.unwrap(),
        leases.slots("n", 2).class("slots").label("of slots").take().await.unwrap(),
        multi.lock().await.unwrap(),
        candidate.campaign().await.unwrap(),
    );
    let classes = job.run(async |_| {
        let mut reported = Vec::new();
        for holding in leases.holdings() {
            assert_eq!(holding.label, Some(format!("of {}", holding.class)), "{}", holding.name);
            reported.push(holding.class);
        }
        Ok::<_, ()>(reported)
    });
    let Ok(leasehold::Once::Ran(mut classes)) = classes.await else { panic!("it is free") };
    classes.sort_unstable();
    let all = "election fair job lock multi multi read semaphore slots write";
    assert_eq!(classes.join(" "), all);
    drop(held);
}

/// Their waits end while holds are handed off, so that some take up an offer that they were not woken for.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn hand_off_is_reported_before_the_grant_that_follows() {
    let setup = Setup::new();
    let mut events = setup.leases.events(1_000_000);
    let mut tasks = tokio::task::JoinSet::new();
    for ended in 0..24_u64 {
        let mut lock = setup.leases.lock("n");
        tasks.spawn(async move {
            for round in 0..500_u64 {
                let limit = Duration::from_micros((ended * 37 + round * 101) % 4096);
                if let Ok(Some(lease)) = lock.lock_timeout(limit).await {
                    lease.unlock().await.unwrap();
                }
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    let (mut held, mut grants) = (false, 0);
    while let Poll::Ready(Some(event)) = poll_once(pin!(events.next())).await {
        match event.kind() {
            EventKind::Granted { .. } => {
                assert!(!held, "grant {grants} comes before the end of the hold before it");
                (held, grants) = (true, grants + 1);
            }
            EventKind::HandedOff { .. } | EventKind::Released { .. } => held = false,
            _ => {}
        }
    }
    assert!(grants > 1_000 && events.dropped() == 0, "{grants} grants");
}
