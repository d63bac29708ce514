//! Elections: candidates, terms, what a leader tells, and what observers see.

use super::*;
use futures_core::Stream;
use leasehold::{CancellationToken, Events, Leader, Leadership, View};
use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// Work that never ends, and counts how many of its kind are there.
async fn work(at_work: &AtomicUsize) -> ControlFlow<()> {
    struct Working<'a>(&'a AtomicUsize);
    impl Drop for Working<'_> {
        fn drop(&mut self) {
            self.0.fetch_sub(1, SeqCst);
        }
    }
    assert_eq!(at_work.fetch_add(1, SeqCst), 0, "led twice at a time");
    let _working = Working(at_work);
    std::future::pending().await
}

async fn campaign(leases: &LeaseManager, value: &str) -> Leadership {
    leases.election("n").candidate(value).campaign().await.expect("it leads")
}

/// A process leads and dies: nothing of it reaches the store any more.
async fn dies(setup: &Setup, value: &str) -> (Leadership, Faults) {
    let (store, faults) = FaultyStore::new(setup.memory.clone());
    let leases = LeaseManager::builder().build(store).expect("good settings");
    let me = campaign(&leases, value).await;
    faults.add(Rule::new(Fault::Hang));
    (me, faults)
}

/// The value and the term that the store has.
async fn annotated(setup: &Setup) -> (Option<String>, Option<u64>) {
    let holder = setup.other().inspect("n").await.expect("the store answers");
    let metadata = holder.and_then(|holder| holder.metadata);
    metadata.map(|metadata| (metadata.value, metadata.fence)).unwrap_or_default()
}

/// Waits until a view shows this.
async fn until(view: &mut View, shows: impl Fn(&Leader) -> bool) -> Leader {
    loop {
        let leader = view.current();
        if shows(&leader) {
            return leader;
        }
        view.changed().await;
    }
}

#[tokio::test(start_paused = true)]
async fn resigned_leader_is_followed_at_once_by_one_with_a_later_term() {
    let setup = Setup::new();
    let other = setup.other();
    let me = campaign(&setup.leases, "a").await;
    assert_eq!(annotated(&setup).await, (Some("a".into()), me.term()));
    let next = tokio::spawn(async move { campaign(&other, "b").await });
    settle().await;
    assert!(!next.is_finished());
    let term = me.term();
    let (took, next) = timed(async {
        me.resign().await.unwrap();
        next.await.unwrap()
    })
    .await;
    assert!(took < MOMENT, "{took:?}");
    assert!(next.term() > term && term.is_some());
    assert_eq!(annotated(&setup).await, (Some("b".into()), next.term()));
    drop(next);
    settle().await;
    assert_eq!(annotated(&setup).await, (None, None));
    assert_eq!(setup.recorded("n").await, None, "dropped is resigned");
}

#[tokio::test(start_paused = true)]
async fn candidates_of_one_manager_take_turns() {
    let setup = Setup::new();
    let election = setup.leases.election("n");
    let (mut one, mut two) = (election.candidate("one"), election.candidate("two"));
    let first = one.campaign().await.unwrap();
    let mut again = std::pin::pin!(one.campaign());
    assert!(poll_once(again.as_mut()).await.is_pending(), "it does not lead twice at a time");
    let term = first.term();
    let second = async { two.campaign().await.unwrap() };
    let second = async {
        tokio::select! {
            again = again.as_mut() => again.unwrap(),
            second = second => second,
        }
    };
    let (_, second) = tokio::join!(async { first.resign().await.unwrap() }, second);
    assert!(second.term() > term, "handed off, in another term");
    settle().await;
    assert_eq!(annotated(&setup).await, (Some("one".into()), second.term()));
}

#[tokio::test(start_paused = true)]
async fn candidate_whose_grant_is_gone_stands_again_and_is_no_phantom() {
    let setup = Setup::new();
    setup.faults.add(Rule::new(Fault::Hang).on(Call::Annotate).times(1));
    let mut candidate = setup.leases.election("n").candidate("a");
    let campaign = tokio::spawn(async move { candidate.campaign().await.unwrap() });
    setup.faults.until_calls(Call::Annotate, 1).await;
    assert!(setup.memory.delete("n"));
    setup.faults.heal();
    let me = campaign.await.unwrap();
    me.check().unwrap();
    assert_eq!(setup.calls(Call::Acquire), 2);
    assert_eq!(annotated(&setup).await, (Some("a".into()), me.term()));
}

#[tokio::test(start_paused = true)]
async fn candidate_leads_after_a_dead_leader_without_a_message() {
    let setup = Setup::new();
    setup.faults.add(Rule::new(Fault::Fail(unavailable())).on(Call::Subscribe));
    let _dead = dies(&setup, "dead").await;
    let (took, me) = timed(campaign(&setup.leases, "a")).await;
    assert!(took <= T + Duration::from_millis(150), "{took:?}");
    me.check().unwrap();
}

#[tokio::test(start_paused = true)]
async fn leading_never_ends_by_itself_and_never_doubles() {
    let setup = Setup::new();
    let (terms, at_work) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (count, working) = (Arc::clone(&terms), Arc::clone(&at_work));
    let mut candidate = setup.leases.election("n").candidate("a");
    let leading = tokio::spawn(async move {
        candidate
            .lead(async move |me| {
                me.check().unwrap();
                count.fetch_add(1, SeqCst);
                work(&working).await
            })
            .await
    });
    settle().await;
    // Each of these ends a term, or keeps the next from beginning for a while.
    for term in 1..=4 {
        assert_eq!((terms.load(SeqCst), at_work.load(SeqCst)), (term, 1));
        let fault = match term {
            1 => None,
            2 => Some(Fault::Hang),
            3 => Some(Fault::Fail(unavailable())),
            _ => Some(Fault::Fail(Error::new(ErrorKind::Denied, "no permission"))),
        };
        setup.memory.delete("n");
        if let Some(fault) = fault {
            setup.faults.add(Rule::new(fault));
            sleep(T * 10).await;
            assert_eq!(at_work.load(SeqCst), 0, "the work ends by the loss");
            assert!(!leading.is_finished(), "{term}");
            setup.faults.heal();
        }
        sleep(T).await;
    }
    assert_eq!((terms.load(SeqCst), at_work.load(SeqCst)), (5, 1));
    setup.leases.close().await.unwrap();
    let error = leading.await.unwrap().unwrap_err();
    assert_eq!((error.kind(), at_work.load(SeqCst)), (ErrorKind::Closed, 0));
    assert_eq!(setup.recorded("n").await, None, "released by close, not by the clock");
}

#[tokio::test(start_paused = true)]
async fn refused_candidate_asks_ever_less_often_and_ends_at_once() {
    let setup = Setup::new();
    let denied = Error::new(ErrorKind::Denied, "no permission");
    setup.faults.add(Rule::new(Fault::Fail(denied)).on(Call::Acquire));
    let stop = CancellationToken::new();
    let mut candidate = setup.leases.election("n").candidate("a").until(stop.clone());
    let leading =
        tokio::spawn(async move { candidate.lead(async |_| panic!("it does not lead")).await });
    sleep(Duration::from_secs(60)).await;
    let calls = setup.calls(Call::Acquire);
    assert!((10..60).contains(&calls), "{calls}");
    // In a pause of seconds.
    let (took, ()) = timed(async {
        stop.cancel();
        leading.await.unwrap().unwrap();
    })
    .await;
    assert!(took <= MOMENT, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn body_of_a_candidate_that_never_led_never_ran() {
    let setup = Setup::new();
    let _leader = campaign(&setup.other(), "other").await;
    let mut candidate = setup.leases.election("n").candidate("a");
    let leading = candidate.lead(async |_| panic!("it does not lead"));
    assert!(tokio::time::timeout(T * 3, leading).await.is_err());
    let stop = CancellationToken::new();
    let mut candidate = setup.leases.election("n").candidate("a").until(stop.clone());
    let leading = candidate.lead(async |_| panic!("it does not lead"));
    tokio::join!(async { leading.await.unwrap() }, async {
        settle().await;
        stop.cancel();
    });
}

#[tokio::test(start_paused = true)]
async fn work_ends_before_its_name_is_released() {
    let setup = Setup::new();
    let stop = CancellationToken::new();
    for graceful in [Duration::ZERO, T * 2] {
        let other = setup.other();
        let stop = stop.child_token();
        let mut candidate = setup.leases.election("n").candidate("a");
        candidate = candidate.until(stop.clone()).graceful(graceful);
        let mut tidied = false;
        let leading = candidate.lead(async |me| {
            me.retiring().cancelled().await;
            sleep(T).await;
            assert!(other.lock("n").try_lock().await.unwrap().is_none(), "it still leads");
            me.check().unwrap();
            tidied = true;
            Continue(())
        });
        let (took, ()) = timed(async {
            tokio::join!(async { leading.await.unwrap() }, async {
                settle().await;
                stop.cancel();
            });
        })
        .await;
        assert_eq!(tidied, !graceful.is_zero());
        assert!(took <= if tidied { T + MOMENT * 2 } else { MOMENT * 2 }, "{took:?}");
        assert!(other.lock("n").try_lock().await.unwrap().is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn loss_gives_no_time_however_graceful() {
    let setup = Setup::new();
    let mut candidate = setup.leases.election("n").candidate("a").graceful(T * 10);
    let at_work = Arc::new(AtomicUsize::new(0));
    let working = Arc::clone(&at_work);
    let leading =
        tokio::spawn(async move { candidate.lead(async move |_| work(&working).await).await });
    settle().await;
    setup.faults.add(Rule::new(Fault::Hang));
    sleep(C).await;
    assert_eq!(at_work.load(SeqCst), 0);
    leading.abort();
}

#[tokio::test(start_paused = true)]
async fn end_of_a_body_releases_at_once() {
    let setup = Setup::new();
    let other = setup.other();
    let is_free = async || other.lock("n").try_lock().await.unwrap().is_some();
    setup.leases.election("n").candidate("a").lead(async |_| Break(())).await.unwrap();
    assert!(is_free().await, "broken");
    let mut candidate = setup.leases.election("n").candidate("a");
    let panicking =
        tokio::spawn(async move { candidate.lead(async |_| panic!("on purpose")).await });
    assert!(panicking.await.unwrap_err().is_panic());
    settle().await;
    assert!(is_free().await, "a panic");
    let mut candidate = setup.leases.election("n").candidate("a");
    let dropped =
        tokio::time::timeout(MOMENT, candidate.lead(async |_| std::future::pending().await));
    assert!(dropped.await.is_err());
    settle().await;
    assert!(is_free().await, "dropped");
}

/// Its last stretch has no await, so it is not dropped. What it did may count for nothing, so its output does not either.
#[tokio::test(start_paused = true)]
async fn body_that_breaks_after_the_loss_is_called_again() {
    let setup = Setup::new();
    let (leases, mut calls) = (&setup.leases, 0);
    let mut candidate = leases.election("n").candidate("a");
    let leading = candidate.lead(async |_| {
        calls += 1;
        if calls == 1 {
            let mut revoked = Box::pin(leases.force_unlock("n", "test"));
            assert!(poll_once(revoked.as_mut()).await.is_ready());
        }
        Break(())
    });
    leading.await.unwrap();
    assert_eq!(calls, 2);
}

#[tokio::test(start_paused = true)]
async fn body_that_continues_lets_others_lead() {
    let setup = Setup::new();
    let (other, terms) = (setup.other(), AtomicUsize::new(0));
    let mut candidate = setup.leases.election("n").candidate("a");
    let leading = candidate.lead(async |_| {
        terms.fetch_add(1, SeqCst);
        settle().await;
        Continue(())
    });
    let led = async {
        for _ in 0..3 {
            campaign(&other, "b").await.resign().await.unwrap();
        }
    };
    tokio::select! {
        biased;
        ended = leading => panic!("{ended:?}"),
        () = led => {}
    }
    assert!((1..=4).contains(&terms.load(SeqCst)), "{terms:?}");
}

#[tokio::test(start_paused = true)]
async fn value_is_written_only_by_the_present_leader() {
    let setup = Setup::new();
    let me = campaign(&setup.leases, "a").await;
    me.proclaim("a2").await.unwrap();
    assert_eq!(annotated(&setup).await.0.as_deref(), Some("a2"));
    settle().await;
    setup.memory.delete("n");
    let next = campaign(&setup.other(), "b").await;
    let lost = me.proclaim("a3").await;
    assert_eq!(super::lost(lost), Loss::Taken);
    assert!(me.cancellation_token().is_cancelled());
    assert_eq!(super::lost(me.proclaim("a4").await), Loss::Taken, "nothing is sent");
    assert_eq!(annotated(&setup).await, (Some("b".into()), next.term()));
    drop(me);
    settle().await;
    assert_eq!(annotated(&setup).await, (Some("b".into()), next.term()));
}

#[tokio::test(start_paused = true)]
async fn value_that_arrives_late_replaces_no_later_one() {
    let setup = Setup::new();
    let me = campaign(&setup.leases, "a").await;
    setup.faults.add(Rule::new(Fault::RunLate).on(Call::Annotate).times(1));
    let error = me.proclaim("old").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    me.proclaim("new").await.unwrap();
    setup.faults.heal();
    settle().await;
    assert_eq!(annotated(&setup).await.0.as_deref(), Some("new"));
}

#[tokio::test(start_paused = true)]
async fn value_that_could_not_be_written_follows_at_a_renewal() {
    let setup = Setup::new();
    setup.faults.add(Rule::new(Fault::Fail(unavailable())).on(Call::Annotate).times(2));
    let me = campaign(&setup.leases, "a").await;
    assert_eq!(annotated(&setup).await, (None, None));
    sleep(T).await;
    assert_eq!(annotated(&setup).await, (Some("a".into()), me.term()));
    // Not again before the store would forget it.
    let calls = setup.calls(Call::Annotate);
    sleep(T * 10).await;
    assert_eq!(setup.calls(Call::Annotate), calls);
    sleep(Duration::from_secs(1000)).await;
    assert!(setup.calls(Call::Annotate) > calls);
    sleep(Duration::from_secs(10_000)).await;
    assert_eq!(annotated(&setup).await, (Some("a".into()), me.term()), "kept as long as it leads");
}

/// The events that have come, as words.
async fn words(events: &mut Events) -> Vec<String> {
    let mut words = Vec::new();
    while let Poll::Ready(Some(event)) = poll_once(std::pin::pin!(events.next())).await {
        let word = format!("{:?}", event.kind());
        words.extend(word.split([' ', '{']).next().map(str::to_owned));
    }
    words
}

#[tokio::test(start_paused = true)]
async fn observers_hear_of_a_leader_once_the_store_has_its_value() {
    let setup = Setup::new();
    let mut events = setup.leases.events(100);
    setup.faults.add(Rule::new(Fault::Hang).on(Call::Annotate).times(1));
    let leases = setup.leases.clone();
    let leads = tokio::spawn(async move { campaign(&leases, "a").await });
    setup.faults.until_calls(Call::Annotate, 1).await;
    settle().await;
    assert_eq!(words(&mut events).await, ["Granted"], "no value yet");
    setup.faults.heal();
    let me = leads.await.unwrap();
    assert_eq!(words(&mut events).await, ["Leads"]);
    assert_eq!(annotated(&setup).await, (Some("a".into()), me.term()));
    me.resign().await.unwrap();
    assert_eq!(words(&mut events).await, ["Released"]);
    // It leads also without an answer of the store, but not if the store has lost it meanwhile.
    setup.faults.add(Rule::new(Fault::Fail(unavailable())).on(Call::Annotate).times(1));
    campaign(&setup.leases, "a").await.resign().await.unwrap();
    assert_eq!(words(&mut events).await, ["Granted", "Leads", "Released"]);
    setup.faults.add(Rule::new(Fault::Hang).on(Call::Annotate).times(1));
    let leases = setup.leases.clone();
    let leads = tokio::spawn(async move { campaign(&leases, "a").await });
    let calls = setup.calls(Call::Annotate);
    setup.faults.until_calls(Call::Annotate, calls + 1).await;
    assert!(setup.memory.delete("n"));
    setup.faults.heal();
    leads.await.unwrap().resign().await.unwrap();
    let events = words(&mut events).await;
    assert_eq!(events, ["Granted", "Waiting", "Lost", "Granted", "Leads", "Released"]);
}

#[tokio::test(start_paused = true)]
async fn name_that_is_kept_closed_has_no_leader() {
    let setup = Setup::new();
    let mut lock = setup.leases.lock("n").min_hold(T * 2);
    lock.lock().await.unwrap().unlock().await.unwrap();
    let job = setup.leases.once("job").run(async |_| Ok::<_, ()>(()));
    assert!(matches!(job.await, Ok(leasehold::Once::Ran(()))));
    for name in ["n", "job"] {
        let holder = setup.other().inspect(name).await.unwrap().expect("a mark");
        assert!(holder.closed.is_some(), "{holder:?}");
        let leader = setup.other().election(name).observe().changed().await;
        assert!(leader.is_vacant(), "{leader:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn candidate_that_may_not_annotate_does_not_lead() {
    let setup = Setup::new();
    let denied = Error::new(ErrorKind::Denied, "no permission");
    setup.faults.add(Rule::new(Fault::Fail(denied)).on(Call::Annotate).times(1));
    let error = setup.leases.election("n").candidate("a").campaign().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    settle().await;
    assert_eq!(setup.recorded("n").await, None);
    for (name, value) in [("", "a".to_owned()), ("n", "x".repeat(4097))] {
        let mut candidate = setup.leases.election(name).candidate(value);
        let error = candidate.lead(async |_| panic!("it does not lead")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
    let mut candidate = setup.leases.election("n").candidate("a").label("x".repeat(257));
    assert_eq!(candidate.campaign().await.unwrap_err().kind(), ErrorKind::Invalid);
    let me = campaign(&setup.leases, "a").await;
    let error = me.proclaim("x".repeat(4097)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

#[tokio::test(start_paused = true)]
async fn leader_is_overdue_while_its_work_goes_on_after_the_loss() {
    let setup = Setup::new();
    let me = campaign(&setup.leases, "a").await;
    assert!(!me.health().is_overdue(Duration::ZERO));
    sleep(T).await;
    setup.leases.force_unlock("n", "test").await.unwrap();
    sleep(T).await;
    let health = me.health();
    assert_eq!(setup.leases.health().leading, std::slice::from_ref(&health));
    assert_eq!((health.lost_for, health.term), (Some(T), me.term()));
    assert!(health.is_overdue(T - MOMENT) && !health.is_overdue(T));
    assert!(setup.leases.health().is_live(), "what to make of it is up to the service");
    drop(me);
    assert!(setup.leases.health().leading.is_empty());
}

#[tokio::test(start_paused = true)]
async fn view_shows_each_leader_with_its_own_value_and_nobody() {
    let setup = Setup::new();
    let mut view = setup.leases.election("n").observe();
    assert!(view.current().stale_since.is_some(), "not known yet");
    assert!(view.changed().await.is_vacant());
    let (mut last, other) = (None, setup.other());
    for value in ["a", "b", "c"] {
        let me = campaign(&other, value).await;
        let leader = until(&mut view, |leader| leader.value.is_some()).await;
        assert_eq!(leader.value.as_deref(), Some(value));
        assert_eq!(leader.holder, Some(me.holder_id().to_string()));
        assert_eq!(leader.owner.map(|owner| owner.pid), Some(std::process::id()));
        assert!(leader.term == me.term() && leader.term > last);
        last = leader.term;
        let (took, ()) = timed(async {
            me.proclaim(format!("{value}2")).await.unwrap();
            until(&mut view, |leader| leader.value == Some(format!("{value}2"))).await;
            me.resign().await.unwrap();
            until(&mut view, Leader::is_vacant).await;
        })
        .await;
        assert!(took <= MOMENT * 2, "{took:?}");
    }
    // A leader that dies tells nothing.
    let _dead = dies(&setup, "dead").await;
    until(&mut view, |leader| leader.value.as_deref() == Some("dead")).await;
    let (took, _) = timed(until(&mut view, Leader::is_vacant)).await;
    assert!(took <= T + MOMENT * 10, "{took:?}");
}

/// What a view gives as a stream.
async fn next(view: &mut View) -> Leader {
    let mut view = Pin::new(view);
    let next = poll_fn(|cx| view.as_mut().poll_next(cx)).await;
    next.expect("the stream never ends")
}

#[tokio::test(start_paused = true)]
async fn view_is_a_stream_of_its_changes() {
    let setup = Setup::new();
    let mut view = setup.leases.election("n").observe();
    assert!(next(&mut view).await.is_vacant(), "nobody is a state");
    let other = setup.other();
    let mut last = None;
    for value in ["a", "b"] {
        let me = campaign(&other, value).await;
        let leader = loop {
            let leader = next(&mut view).await;
            if leader.value.is_some() {
                break leader;
            }
        };
        assert_eq!((leader.value.as_deref(), leader.term), (Some(value), me.term()));
        assert!(leader.term > last);
        last = leader.term;
        me.resign().await.unwrap();
        assert!(next(&mut view).await.is_vacant());
    }
    // Each change is returned once, by the stream or by `changed`, and a wait that is dropped loses none.
    let mut waits = Box::pin(next(&mut view));
    assert!(poll_once(waits.as_mut()).await.is_pending());
    drop(waits);
    let me = campaign(&other, "c").await;
    while view.changed().await.value.is_none() {}
    let mut clone = view.clone();
    for view in [&mut view, &mut clone] {
        let again = poll_once(std::pin::pin!(next(view))).await;
        assert!(again.is_pending(), "told twice: {again:?}");
    }
    let mut waits = Box::pin(next(&mut view));
    assert!(poll_once(waits.as_mut()).await.is_pending());
    drop(waits);
    me.resign().await.unwrap();
    settle().await;
    assert!(next(&mut view).await.is_vacant());
    assert!(next(&mut clone).await.is_vacant());
    setup.leases.close().await.unwrap();
    assert!(next(&mut view).await.stale_since.is_some(), "nobody looks");
    assert!(tokio::time::timeout(T * 10, next(&mut view)).await.is_err(), "it never ends");
}

#[tokio::test(start_paused = true)]
async fn terms_of_a_stream_never_go_back() {
    let setup = Setup::new();
    let mut view = setup.leases.election("n").observe();
    let other = setup.other();
    let seen = tokio::spawn(async move {
        let mut seen = Vec::new();
        while seen.len() < 3 {
            let leader = next(&mut view).await;
            if leader.stale_since.is_none() {
                seen.extend(leader.term.filter(|term| seen.last() != Some(term)));
            }
        }
        seen
    });
    settle().await;
    let mut terms = Vec::new();
    for value in ["a", "b", "c"] {
        let me = campaign(&other, value).await;
        terms.extend(me.term());
        settle().await;
        me.resign().await.unwrap();
        settle().await;
        // A server that was behind still has a leader of before, until its time is over.
        leads_with(&setup, terms.last().map(|term| term - 1), T / 2).await;
        sleep(T).await;
    }
    assert_eq!(seen.await.unwrap(), terms);
    assert!(terms.is_sorted());
}

#[tokio::test(start_paused = true)]
async fn view_sees_the_end_of_a_dead_leader_when_it_expires() {
    // It would read later by the clock, and nobody sends a message.
    let setup = Setup::with(LeaseManager::builder().max_poll_interval(T * 2 / 3));
    let mut view = setup.leases.election("n").observe();
    let _dead = dies(&setup, "dead").await;
    until(&mut view, |leader| leader.value.is_some()).await;
    let (took, _) = timed(until(&mut view, Leader::is_vacant)).await;
    assert!(took <= T + MOMENT * 10, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn view_reads_once_more_soon_after_it_has_subscribed() {
    let setup = Setup::new();
    let mut view = setup.leases.election("n").observe();
    until(&mut view, Leader::is_vacant).await;
    sleep(Duration::from_millis(150)).await;
    // At once, when it has subscribed, and for what came before the subscription counted.
    assert_eq!(setup.calls(Call::Inspect), 3);
    sleep(T / 4).await;
    assert_eq!(setup.calls(Call::Inspect), 3, "then by messages and the clock");
}

#[tokio::test(start_paused = true)]
async fn leader_that_resigns_leads_no_more_while_the_store_is_silent() {
    let setup = Setup::new();
    let me = campaign(&setup.leases, "a").await;
    setup.faults.add(Rule::new(Fault::Hang).on(Call::Release));
    let resigning = tokio::spawn(me.resign());
    setup.faults.until_calls(Call::Release, 1).await;
    assert!(setup.leases.health().leading.is_empty());
    setup.faults.heal();
    resigning.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn view_without_contact_says_so_and_goes_on() {
    let setup = Setup::new();
    let me = campaign(&setup.other(), "a").await;
    let mut view = setup.leases.election("n").observe();
    until(&mut view, |leader| leader.value.is_some()).await;
    for fault in [Fault::Fail(unavailable()), Fault::Hang, Fault::Panic] {
        setup.faults.add(Rule::new(fault));
        let leader = until(&mut view, |leader| leader.stale_since.is_some()).await;
        assert_eq!(leader.value.as_deref(), Some("a"), "what was known");
        sleep(T * 10).await;
        setup.faults.heal();
        until(&mut view, |leader| leader.stale_since.is_none()).await;
    }
    me.resign().await.unwrap();
    until(&mut view, Leader::is_vacant).await;
    setup.leases.close().await.unwrap();
    until(&mut view, |leader| leader.stale_since.is_some()).await;
    while poll_once(std::pin::pin!(view.changed())).await.is_ready() {}
    assert!(tokio::time::timeout(T, view.changed()).await.is_err(), "it never ends");
}

#[tokio::test(start_paused = true)]
async fn view_whose_subscription_fails_reads_by_the_clock() {
    let setup = Setup::new();
    let denied = Error::new(ErrorKind::Denied, "no permission");
    setup.faults.add(Rule::new(Fault::Fail(denied)).on(Call::Watch));
    let mut view = setup.leases.election("n").observe();
    until(&mut view, Leader::is_vacant).await;
    let _me = campaign(&setup.other(), "a").await;
    let (took, _) = timed(until(&mut view, |leader| leader.value.is_some())).await;
    assert!(took <= T / 3 + MOMENT, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn term_of_a_view_never_goes_back() {
    let setup = Setup::new();
    let mut view = setup.leases.election("n").observe();
    let me = campaign(&setup.other(), "new").await;
    let term = until(&mut view, |leader| leader.term.is_some()).await.term;
    me.resign().await.unwrap();
    until(&mut view, Leader::is_vacant).await;
    // As by a replica that was behind when it was promoted.
    leads_with(&setup, term.map(|term| term - 1), T).await;
    sleep(T - MOMENT * 10).await;
    let leader = view.current();
    assert!(leader.stale_since.is_some() && leader.term.is_none(), "{leader:?}");
    until(&mut view, |leader| leader.stale_since.is_none()).await;
    let _next = campaign(&setup.other(), "next").await;
    assert!(until(&mut view, |leader| leader.term.is_some()).await.term > term);
}

#[tokio::test(start_paused = true)]
async fn view_follows_a_store_that_has_lost_its_data() {
    let setup = Setup::new();
    let mut view = setup.leases.election("n").observe();
    let me = campaign(&setup.other(), "old").await;
    let term = until(&mut view, |leader| leader.term.is_some()).await.term;
    me.resign().await.unwrap();
    until(&mut view, Leader::is_vacant).await;
    // The terms begin anew, and a leader leads for longer than what a server that is behind still has.
    leads_with(&setup, term.map(|term| term - 1), T * 10).await;
    let shown = until(&mut view, |leader| leader.stale_since.is_none() && leader.term.is_some());
    let (took, leader) = timed(tokio::time::timeout(T * 3, shown)).await;
    let leader = leader.expect("it follows");
    assert!(leader.term < term && leader.value.as_deref() == Some("by hand"), "{leader:?}");
    assert!(took > T && took < T * 2, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn view_reads_while_a_subscription_hangs() {
    let setup = Setup::new();
    setup.faults.add(Rule::new(Fault::Hang).on(Call::Watch));
    let mut view = setup.leases.election("n").observe();
    let (took, _) = timed(until(&mut view, Leader::is_vacant)).await;
    assert!(took <= MOMENT, "{took:?}");
    sleep(T * 10).await;
    assert!(setup.calls(Call::Watch) < 100, "{}", setup.calls(Call::Watch));
    setup.faults.heal();
    sleep(T).await;
    let me = campaign(&setup.other(), "a").await;
    let (took, _) = timed(until(&mut view, |leader| leader.term == me.term())).await;
    assert!(took <= MOMENT, "subscribed: {took:?}");
}

#[tokio::test(start_paused = true)]
async fn next_leader_of_one_manager_shows_nothing_of_the_one_before() {
    let setup = Setup::new();
    let election = setup.leases.election("n");
    let (mut one, mut two) = (election.candidate("one"), election.candidate("two"));
    let first = one.campaign().await.unwrap();
    let holder = first.holder_id().to_string();
    setup.faults.add(Rule::new(Fault::Hang).on(Call::Annotate));
    let waiting = tokio::spawn(async move { two.campaign().await.unwrap() });
    settle().await;
    first.resign().await.unwrap();
    sleep(T).await;
    let seen = setup.other().inspect("n").await.unwrap().expect("the next one");
    assert!(seen.metadata.is_none() && seen.holder != holder, "{seen:?}");
    waiting.abort();
}

/// A leader is in the store, with this term, and for this time.
async fn leads_with(setup: &Setup, term: Option<u64>, ttl: Duration) {
    let target = leasehold::store::Target::exclusive(leasehold::store::Name::new("n").unwrap());
    let holder = leasehold::store::HolderId::new(uuid(), 1);
    let store: &dyn leasehold::store::Store = &setup.memory;
    let acquire = leasehold::store::Acquire::new(target.clone(), holder, ttl, T);
    store.acquire(acquire).await.unwrap();
    let annotated = leasehold::Metadata::new(leasehold::Owner::new("old"), 1)
        .with_value(Some("by hand".to_owned()))
        .with_fence(term);
    let annotate = leasehold::store::Annotate::new(target, holder, Some(annotated), ttl, T);
    assert!(store.annotate(annotate).await.unwrap());
}

fn uuid() -> uuid::Uuid {
    uuid::Uuid::from_u128(7)
}

#[test]
fn view_outlives_the_runtime_of_its_task() {
    let setup = Setup::new();
    let runtime =
        || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let first = runtime();
    let mut view = first.block_on(async {
        let mut view = setup.leases.election("n").observe();
        until(&mut view, Leader::is_vacant).await;
        view
    });
    drop(first);
    assert!(view.current().stale_since.is_some(), "nobody looks");
    // Also for those that never wait for a change.
    let second = runtime();
    second.block_on(async {
        let polled = async {
            while view.current().stale_since.is_some() {
                sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), polled).await.expect("it looks again");
    });
    drop(second);
    runtime().block_on(async {
        until(&mut view, Leader::is_vacant).await;
        let _me = campaign(&setup.leases, "a").await;
        until(&mut view, |leader| leader.value.is_some()).await;
    });
}

#[tokio::test(start_paused = true)]
async fn label_is_recorded_at_a_renewal_and_deleted_by_the_release() {
    let setup = Setup::new();
    let metadata = async || {
        let holder = setup.leases.inspect("n").await.unwrap();
        holder.and_then(|holder| holder.metadata)
    };
    let mut lock = setup.leases.lock("n").label("import");
    let lease = lock.lock().await.unwrap();
    sleep(T / 3 - T / 30).await;
    assert!(metadata().await.is_none());
    sleep(T / 30 + MOMENT).await;
    let annotated = metadata().await.expect("told");
    assert_eq!((annotated.label.as_deref(), annotated.fence), (Some("import"), lease.fence()));
    assert_eq!(annotated.owner.pid, std::process::id());
    lease.unlock().await.unwrap();
    settle().await;
    assert_eq!(setup.calls(Call::Annotate), 2);
    // Nothing for holds without a label, and for short ones.
    let _other = setup.leases.lock("other").lock().await.unwrap();
    for _ in 0..10 {
        lock.lock().await.unwrap().unlock().await.unwrap();
    }
    sleep(T).await;
    assert_eq!(setup.calls(Call::Annotate), 2);
}

#[tokio::test(start_paused = true)]
async fn hand_off_replaces_the_label() {
    let setup = Setup::with(LeaseManager::builder().describe(leasehold::Owner::new("svc")));
    let mut first = setup.leases.lock("n").label("first");
    let lease = first.lock().await.unwrap();
    lease.describe_now().await.unwrap();
    let mut second = setup.leases.lock("n").label("second");
    let waiting = tokio::spawn(async move { second.lock().await.unwrap() });
    settle().await;
    lease.unlock().await.unwrap();
    let lease = waiting.await.unwrap();
    settle().await;
    assert_eq!(setup.calls(Call::Acquire), 1, "handed off");
    let annotated = setup.leases.inspect("n").await.unwrap().unwrap().metadata.expect("told");
    assert_eq!((annotated.label.as_deref(), annotated.fence), (Some("second"), lease.fence()));
    assert_eq!(annotated.owner.service, "svc");
}

#[tokio::test(start_paused = true)]
async fn labels_of_many_holds_delay_no_renewal() {
    let setup = Setup::with(LeaseManager::builder().describe(leasehold::Owner::new("svc")));
    let mut leases = Vec::new();
    for number in 0..1_000 {
        let mut lock = setup.leases.lock(format!("n{number}")).label("one of many");
        leases.push(lock.lock().await.unwrap());
    }
    setup.faults.add(Rule::new(Fault::Hang).on(Call::Annotate));
    sleep(T / 2).await;
    assert!((1..=8).contains(&setup.calls(Call::Annotate)), "{}", setup.calls(Call::Annotate));
    sleep(T * 3).await;
    assert!(leases.iter().all(|lease| lease.check().is_ok()));
    setup.faults.heal();
    sleep(T).await;
    for number in [0, 500, 999] {
        let holder = setup.leases.inspect(format!("n{number}")).await.unwrap().unwrap();
        assert!(holder.metadata.is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn label_that_failed_is_recorded_once_in_the_end() {
    let setup = Setup::with(LeaseManager::builder().describe(leasehold::Owner::new("svc")));
    let mut leases = Vec::new();
    // More than wait at one time.
    for number in 0..1_200 {
        let name = format!("n{number}");
        setup.faults.add(Rule::new(Fault::Fail(unavailable())).on(Call::Annotate).name(&name));
        leases.push(setup.leases.lock(name).label("one of many").lock().await.unwrap());
    }
    let _lease = setup.leases.lock("other").label("another").lock().await.unwrap();
    sleep(T * 10).await;
    let annotated = setup.other().inspect("other").await.unwrap().unwrap().metadata;
    assert!(annotated.is_some(), "it has its turn among those that fail");
    let before = setup.calls(Call::Annotate);
    setup.faults.heal();
    sleep(T * 2).await;
    let calls = setup.calls(Call::Annotate) - before;
    assert_eq!(calls, leases.len());
    for number in [0, 600, 1_199] {
        let holder = setup.other().inspect(format!("n{number}")).await.unwrap().unwrap();
        assert!(holder.metadata.is_some());
    }
}

/// Nothing keeps the holds that have ended behind requests that hang.
#[tokio::test(start_paused = true)]
async fn description_of_a_hold_that_has_ended_is_not_sent() {
    let setup = Setup::with(LeaseManager::builder().describe(leasehold::Owner::new("svc")));
    let mut leases = Vec::new();
    for number in 0..100 {
        let lease = setup.leases.lock(format!("n{number}")).label("one of many").lock().await;
        leases.push(lease.unwrap());
    }
    setup.faults.add(Rule::new(Fault::Hang).on(Call::Annotate));
    sleep(T / 3).await;
    assert_eq!(setup.calls(Call::Annotate), 8);
    drop(leases);
    sleep(MOMENT).await;
    let (took, closed) = timed(setup.leases.close()).await;
    closed.unwrap();
    assert!(took <= GRACE + 4 * ATTEMPT, "{took:?}");
    // Eight to tell, and as many to delete it.
    assert!(setup.calls(Call::Annotate) <= 16, "{}", setup.calls(Call::Annotate));
}

/// No request of a lock is about it.
#[tokio::test(start_paused = true)]
async fn manager_is_described_from_its_start_to_its_end() {
    let owner = leasehold::Owner::new("svc").version("7");
    let setup = Setup::with(LeaseManager::builder().describe(owner.clone()));
    let other = setup.other();
    let mut held = Vec::new();
    for number in 0..100 {
        held.push(setup.leases.lock(format!("n{number}")).lock().await.unwrap());
    }
    let seen = async |name: &str| other.inspect(name).await.unwrap().unwrap().owner;
    // On the caller's runtime, the worker runs when the caller lets it.
    settle().await;
    assert_eq!(seen("n7").await, Some(owner.clone()));
    assert_eq!(setup.calls(Call::Describe), 1);
    let _page = setup.leases.rw_lock("page").read().await.unwrap();
    let permit = setup.leases.semaphore("pool", 3).acquire().await.unwrap();
    assert_eq!(
        (seen("page").await, seen("pool").await),
        (Some(owner.clone()), Some(owner.clone()))
    );
    assert_eq!(other.owner_of(permit.holder_id().to_string()).await.unwrap(), Some(owner.clone()));
    sleep(T * 3 + T / 6).await;
    assert_eq!(seen("n7").await, Some(owner.clone()));
    assert_eq!((setup.calls(Call::Describe), setup.calls(Call::Annotate)), (10, 0));

    // A store that has forgotten it has it again after the reconnect, and one that refuses it at the next try.
    setup.faults.add(Rule::new(Fault::Fail(unavailable())).on(Call::Describe).times(2));
    setup.faults.reconnect();
    settle().await;
    assert_eq!(setup.calls(Call::Describe), 11);
    sleep(T).await;
    assert_eq!(seen("n7").await, Some(owner));

    let line = held.remove(0).holder_id().to_string();
    drop((held, permit));
    setup.leases.close().await.unwrap();
    assert_eq!(other.owner_of(line).await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn manager_that_may_not_describe_itself_works_without() {
    let setup = Setup::with(LeaseManager::builder().describe(leasehold::Owner::new("svc")));
    let denied = leasehold::Error::new(leasehold::ErrorKind::Denied, "no");
    setup.faults.add(Rule::new(Fault::Fail(denied)).on(Call::Describe));
    sleep(T * 5).await;
    let lease = setup.leases.lock("n").lock().await.unwrap();
    assert_eq!(setup.other().inspect("n").await.unwrap().unwrap().owner, None);
    // The manager itself knows.
    let own = setup.leases.inspect("n").await.unwrap().unwrap().owner;
    assert_eq!(own.map(|owner| owner.service).as_deref(), Some("svc"));
    assert!(setup.calls(Call::Describe) <= 2, "{}", setup.calls(Call::Describe));
    drop(lease);
}
