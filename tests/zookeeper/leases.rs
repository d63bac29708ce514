//! Leases on one ZooKeeper server.

use super::kinds::counted;
use kit::pipe::{Pace, Pipe};
use kit::relay::{Relay, Traffic, request};
use kit::trace::{Trace, Traced};
use kit::zookeeper::{Look, ZooKeeper, directory};
use kit::{connect_in_the_end, within};
use leasehold::clock::Clock;
use leasehold::{Builder, ErrorKind, LeaseManager};
use std::time::Duration;
use tracing::Level;

/// Ten of the server's ticks.
const T: Duration = Duration::from_secs(2);
const LONG: Duration = Duration::from_secs(15);

fn builder() -> Builder {
    LeaseManager::builder().ttl(T)
}

async fn connect(url: &str) -> LeaseManager {
    connect_in_the_end(builder(), url).await
}

#[tokio::test]
async fn lock_is_one_node_and_its_release_is_awaited() {
    let server = ZooKeeper::start();
    let (leases, look) = (connect(&server.url()).await, Look::at(&server.hosts()).await);
    for name in ["orders:42", "a/b", "..", "naïve ☕ \0"] {
        let lease = leases.lock(name).lock().await.expect("free");
        let nodes = look.nodes(name).await;
        assert_eq!(nodes.len(), 1, "{nodes:?}");
        let path = format!("{}/{}", directory(name), nodes[0]);
        let (_, stat) = look.0.get_data(&path).await.expect("it is there");
        assert_eq!(lease.fence(), u64::try_from(stat.czxid).ok());
        lease.unlock().await.expect("released");
        assert!(look.nodes(name).await.is_empty());
    }
    leases.close().await.expect("all is released");
}

#[tokio::test]
async fn holder_enters_again_on_the_same_node() {
    let server = ZooKeeper::start();
    let (leases, look) = (connect(&server.url()).await, Look::at(&server.hosts()).await);
    let contender = connect(&server.url()).await;
    let mut lock = leases.lock("job");
    let mut held = Vec::new();
    for count in 1..=3 {
        held.push(lock.lock().await.expect("ours"));
        let holding = counted(&contender, count).await;
        assert_eq!((holding.hold_count, holding.remaining), (count, None));
        assert_eq!(held[0].fence(), held[held.len() - 1].fence());
        assert_eq!(look.nodes("job").await.len(), 1);
    }
    while let Some(lease) = held.pop() {
        assert!(contender.lock("job").try_lock().await.expect("an answer").is_none());
        lease.unlock().await.expect("ours");
    }
    assert!(contender.lock("job").try_lock().await.expect("an answer").is_some());
}

#[tokio::test]
async fn waiters_of_all_processes_enter_in_order_watching_one_node() {
    let server = ZooKeeper::start();
    let look = Look::at(&server.hosts()).await;
    let holder = connect(&server.url()).await;
    let first = holder.lock("job").lock().await.expect("free");
    let mut waiters = Vec::new();
    let (sender, mut order) = tokio::sync::mpsc::unbounded_channel();
    for number in 0..4 {
        // They are woken, or they are late.
        let leases = builder().max_poll_interval(LONG * 4).connect(&server.url()).await;
        let (leases, sender) = (leases.expect("the server is there"), sender.clone());
        waiters.push(tokio::spawn(async move {
            let lease = leases.lock("job").lock().await.expect("in the end");
            sender.send((number, lease.fence())).expect("a receiver counts");
            tokio::time::sleep(Duration::from_millis(20)).await;
            lease.unlock().await.expect("released");
        }));
        look.until_nodes("job", number + 2).await;
    }
    // A waiter sets its watch right after its node.
    kit::eventually(LONG, || server.number(0, "zk_watch_count") >= 4).await;
    assert_eq!(server.number(0, "zk_watch_count"), 4);
    let watches = server.ask(0, "wchs").expect("the server tells its watches");
    assert!(watches.contains("4 connections watching 4 paths"), "{watches}");
    let mut last = first.fence();
    first.unlock().await.expect("released");
    for number in 0..4 {
        let (next, fence) = within(LONG, order.recv()).await.expect("a waiter");
        assert_eq!(next, number);
        assert!(fence > last, "{last:?}, then {fence:?}");
        last = fence;
    }
    for waiter in waiters {
        within(LONG, waiter).await.expect("it ends well");
    }
    assert!(look.nodes("job").await.is_empty());
}

#[tokio::test]
async fn waiters_of_one_process_have_a_fence_each() {
    let server = ZooKeeper::start();
    let relay = Relay::to_server(server.port(0));
    let leases = connect(&relay.url()).await;
    let first = leases.lock("job").lock().await.expect("free");
    let mut last = first.fence();
    let waiters: Vec<_> = (0..5)
        .map(|_| {
            let mut lock = leases.lock("job");
            tokio::spawn(async move {
                let lease = lock.lock().await.expect("in the end");
                let fence = lease.fence();
                lease.unlock().await.expect("released");
                fence
            })
        })
        .collect();
    tokio::task::yield_now().await;
    first.unlock().await.expect("released");
    let mut fences = Vec::new();
    for waiter in waiters {
        fences.push(within(LONG, waiter).await.expect("it ends well"));
    }
    for fence in fences {
        assert!(fence > last, "{last:?}, then {fence:?}");
        last = fence;
    }
    // Each is a node of its own; one is the session's, and one found no directory.
    assert!(relay.times_of(request::CREATE).len() >= 6 + 2);
}

#[tokio::test]
async fn fences_grow_over_managers_sessions_and_lost_directories() {
    let server = ZooKeeper::start();
    let look = Look::at(&server.hosts()).await;
    let mut last = None;
    for _ in 0..3 {
        let leases = connect(&server.url()).await;
        for _ in 0..3 {
            let lease = leases.lock("job").lock().await.expect("free");
            assert!(lease.fence() > last, "{last:?}, then {:?}", lease.fence());
            last = lease.fence();
            lease.unlock().await.expect("released");
        }
        leases.close().await.expect("all is released");
        look.0.delete(&directory("job"), None).await.expect("it is empty");
    }
}

#[tokio::test]
async fn dropped_waiters_leave_no_node() {
    let server = ZooKeeper::start();
    let relay = Relay::to_server(server.port(0));
    let look = Look::at(&server.hosts()).await;
    let (holder, leases) = (connect(&server.url()).await, connect(&relay.url()).await);
    let lease = holder.lock("job").lock().await.expect("free");
    for round in 0..40 {
        let mut lock = leases.lock("job");
        let limit = Duration::from_micros(250 * round);
        let given_up = tokio::time::timeout(limit, lock.lock()).await;
        assert!(given_up.is_err());
    }
    look.until_nodes("job", 1).await;
    // Also when nothing passes at that moment: all of it is sent later.
    let mut lock = leases.lock("job");
    relay.set(Traffic::Hold);
    assert!(tokio::time::timeout(T / 10, lock.lock()).await.is_err());
    relay.set(Traffic::Pass);
    lease.unlock().await.expect("released");
    look.until_nodes("job", 0).await;
    for round in 0..20 {
        let limit = Duration::from_micros(100 * round);
        drop(tokio::time::timeout(limit, lock.lock()).await);
    }
    look.until_nodes("job", 0).await;
}

#[tokio::test]
async fn lost_answer_to_a_creation_leaves_one_node() {
    let server = ZooKeeper::start();
    let relay = Relay::to_server(server.port(0));
    let (leases, look) = (connect(&relay.url()).await, Look::at(&server.hosts()).await);
    // So that the creation that is hit is that of the node.
    leases.lock("job").lock().await.expect("free").unlock().await.expect("released");
    let creations = || relay.times_of(request::CREATE).len();
    let before = creations();
    relay.lose_reply_of(request::CREATE);
    let lease = within(LONG, leases.lock("job").lock()).await.expect("in the end");
    assert_eq!(relay.lost(), 1);
    assert_eq!(look.nodes("job").await.len(), 1);
    // It has found what it had made.
    assert_eq!(creations(), before + 1);
    lease.check().expect("held");
    lease.unlock().await.expect("released");
    look.until_nodes("job", 0).await;
    // This one has no waiter.
    relay.lose_reply_of(request::CREATE);
    let mut lock = leases.lock("job");
    drop(lock.try_lock().await);
    assert_eq!(relay.lost(), 2);
    look.until_nodes("job", 0).await;
}

#[tokio::test]
async fn lost_answer_to_a_waiters_creation_leaves_one_node() {
    let server = ZooKeeper::start();
    let relay = Relay::to_server(server.port(0));
    let look = Look::at(&server.hosts()).await;
    let (holder, leases) = (connect(&server.url()).await, connect(&relay.url()).await);
    let lease = holder.lock("job").lock().await.expect("free");
    relay.lose_reply_of(request::CREATE);
    let mut lock = leases.lock("job");
    let waiter = tokio::spawn(async move { lock.lock().await });
    kit::eventually(LONG, || relay.lost() == 1).await;
    // It is in the line again, and once.
    look.until_nodes("job", 2).await;
    lease.unlock().await.expect("released");
    let lease = within(LONG, waiter).await.expect("it runs").expect("in the end");
    look.until_nodes("job", 1).await;
    lease.unlock().await.expect("released");
    look.until_nodes("job", 0).await;
}

#[tokio::test]
async fn place_that_was_taken_over_in_vain_is_left_for_a_new_one() {
    let server = ZooKeeper::start();
    let relay = Relay::to_server(server.port(0));
    let look = Look::at(&server.hosts()).await;
    let holder = connect(&server.url()).await;
    // No heartbeat comes between, and the clock grants nothing.
    let leases = LeaseManager::builder().ttl(T * 20).max_poll_interval(LONG * 4);
    let leases = leases.connect(&relay.url()).await.expect("the server is there");
    let lease = holder.lock("job").lock().await.expect("free");
    let mut lock = leases.lock("job");
    let waiter = tokio::spawn(async move { lock.lock().await });
    look.until_nodes("job", 2).await;
    relay.lose_reply_and_refuse(request::SET_DATA);
    lease.unlock().await.expect("released");
    kit::eventually(LONG, || relay.lost() == 1).await;
    // Its node is first and has its token, when an operator deletes it.
    let nodes = look.nodes("job").await;
    assert_eq!(nodes.len(), 1, "{nodes:?}");
    look.0.delete(&format!("{}/{}", directory("job"), nodes[0]), None).await.expect("deleted");
    relay.set(Traffic::Pass);
    let lease = within(LONG, waiter).await.expect("it runs").expect("in the end");
    lease.check().expect("held");
    lease.unlock().await.expect("released");
    look.until_nodes("job", 0).await;
}

#[tokio::test]
async fn lost_answer_to_a_release_leaves_no_node() {
    let server = ZooKeeper::start();
    let relay = Relay::to_server(server.port(0));
    let (leases, look) = (connect(&relay.url()).await, Look::at(&server.hosts()).await);
    let lease = leases.lock("job").lock().await.expect("free");
    relay.lose_reply_of(request::DELETE);
    // The result does not depend on when it was reported.
    drop(within(LONG, lease.unlock()).await);
    assert_eq!(relay.lost(), 1);
    look.until_nodes("job", 0).await;
    let lease = within(LONG, leases.lock("job").lock()).await.expect("free");
    lease.unlock().await.expect("released");
}

#[tokio::test]
async fn lease_is_believed_a_session_after_the_write_before_the_last() {
    let server = ZooKeeper::start();
    let relay = Relay::to_server(server.port(0));
    let leases = connect(&relay.url()).await;
    let clock = Clock::system();
    let writes = || relay.times_of(request::SET_DATA);
    kit::eventually(LONG, || writes().len() >= 2).await;
    for number in 0..100 {
        let lease = leases.lock(format!("job:{number}")).lock().await.expect("free");
        let believed_until = clock.now() + lease.remaining();
        // It passed the relay after it was sent.
        let writes = writes();
        let one_before = writes[writes.len() - 2];
        assert!(believed_until <= one_before + T, "{believed_until:?}, but {writes:?}");
        // Nothing but the proof writes while these are held.
        lease.unlock().await.expect("released");
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
}

#[tokio::test]
async fn many_leases_cost_one_write_in_a_quarter_of_the_session() {
    let server = ZooKeeper::start();
    let relay = Relay::to_server(server.port(0));
    let leases = connect(&relay.url()).await;
    let mut held = Vec::new();
    for number in 0..60 {
        held.push(leases.lock(format!("job:{number}")).lock().await.expect("free"));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let clock = Clock::system();
    let start = clock.now();
    tokio::time::sleep(2 * T).await;
    let since = |kind| relay.times_of(kind).into_iter().filter(|at| *at >= start).count();
    let (writes, reads) = (since(request::SET_DATA), since(request::EXISTS));
    for lease in &held {
        lease.check().expect("held");
    }
    // One each T/5 at most, each T/4 as a rule; all leases are as fresh as the last of them.
    let passed = clock.now().saturating_duration_since(start);
    let most = passed.as_millis() / (T / 5).as_millis() + 1;
    assert!(writes as u128 <= most, "{writes} in {passed:?}");
    assert!(writes >= 4, "{writes}");
    // A lease that was renewed is not due at once again.
    println!("{writes} writes, {reads} reads");
    assert!(reads <= 2 * writes * held.len(), "{reads} reads, {writes} writes");
}

#[tokio::test]
async fn deleted_node_is_a_lost_lease_at_the_next_renewal() {
    let server = ZooKeeper::start();
    let (leases, look) = (connect(&server.url()).await, Look::at(&server.hosts()).await);
    let lease = leases.lock("job").lock().await.expect("free");
    let other = leases.lock("other").lock().await.expect("free");
    let nodes = look.nodes("job").await;
    look.0.delete(&format!("{}/{}", directory("job"), nodes[0]), None).await.expect("deleted");
    assert_eq!(within(LONG, lease.lost()).await, leasehold::Loss::Gone);
    other.check().expect("held");
    assert!(leases.lock("job").try_lock().await.expect("an answer").is_some());
}

#[tokio::test]
async fn forgotten_lease_ends_although_its_session_lives() {
    let server = ZooKeeper::start();
    let (leases, contender) = (connect(&server.url()).await, connect(&server.url()).await);
    leases.lock("job").lock().await.expect("free").forget();
    assert!(contender.lock("job").try_lock().await.expect("an answer").is_none());
    let lease = within(LONG, contender.lock("job").lock()).await.expect("in the end");
    lease.unlock().await.expect("released");
}

#[tokio::test]
async fn time_to_live_that_the_server_does_not_give_is_refused() {
    let server = ZooKeeper::start();
    for (ttl, hint) in
        [(999, "at least 1 s"), (100_001, "at most 100s"), (86_400_000, "at most 100s")]
    {
        let ttl = Duration::from_millis(ttl);
        let builder = LeaseManager::builder().ttl(ttl).fence_retention(None);
        let error = builder.connect(&server.url()).await.expect_err("it is refused");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(hint), "{error}");
    }
    let nobody = Relay::to_server(server.port(0));
    nobody.set(Traffic::Refuse);
    let error = builder().connect(&nobody.url()).await.expect_err("nobody answers");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

#[tokio::test]
async fn after_close_what_was_not_released_ends_by_itself() {
    let server = ZooKeeper::start();
    let (leases, contender) = (connect(&server.url()).await, connect(&server.url()).await);
    leases.lock("job").lock().await.expect("free").forget();
    leases.close().await.expect("nothing is left to release");
    assert!(contender.lock("job").try_lock().await.expect("an answer").is_none());
    let lease = within(LONG, contender.lock("job").lock()).await.expect("in the end");
    lease.unlock().await.expect("released");
    drop(leases);
}

#[tokio::test]
async fn waiter_that_is_not_polled_keeps_nobody_waiting_long() {
    let server = ZooKeeper::start();
    let look = Look::at(&server.hosts()).await;
    let (holder, idle) = (connect(&server.url()).await, connect(&server.url()).await);
    let next = builder().max_poll_interval(LONG * 4).connect(&server.url()).await;
    let next = next.expect("the server is there");
    let lease = holder.lock("job").lock().await.expect("free");
    let mut lock = idle.lock("job");
    let mut waiting = Box::pin(lock.lock());
    tokio::select! {
        _ = &mut waiting => panic!("it is held"),
        () = look.until_nodes("job", 2) => {}
    }
    lease.unlock().await.expect("released");
    for _ in 0..2 {
        let lease = within(LONG, next.lock("job").lock()).await.expect("in the end");
        // The other is in the line again, behind it.
        look.until_nodes("job", 2).await;
        lease.unlock().await.expect("released");
    }
    let lease = within(LONG, waiting).await.expect("in the end");
    lease.unlock().await.expect("released");
    look.until_nodes("job", 0).await;
}

#[tokio::test]
async fn waiter_that_is_far_away_gets_its_turns_among_near_ones() {
    let server = ZooKeeper::start();
    let pipe = Pipe::start(server.port(0));
    let far = connect(&pipe.url().replace("redis", "zookeeper")).await;
    // Writes that are a quarter of T apart prove nothing of one another then.
    pipe.set(Pace { latency: Duration::from_millis(70), ..Pace::default() });
    let mut near = tokio::task::JoinSet::new();
    for _ in 0..2 {
        let leases = connect(&server.url()).await;
        near.spawn(async move {
            loop {
                let lease = leases.lock("job").lock().await.expect("in the end");
                tokio::time::sleep(Duration::from_millis(20)).await;
                lease.unlock().await.expect("released");
            }
        });
    }
    let mut last = None;
    for _ in 0..6 {
        let lease = within(LONG, far.lock("job").lock()).await.expect("in the end");
        assert!(lease.fence() > last);
        last = lease.fence();
        lease.unlock().await.expect("released");
    }
    // No caller got an error.
    assert!(near.try_join_next().is_none());
}

/// The servers do so too, a minute later, and not more than 10 000 in a minute.
#[tokio::test]
async fn directories_of_names_not_used_again_are_cleared_away() {
    let server = ZooKeeper::start();
    let (leases, look) = (connect(&server.url()).await, Look::at(&server.hosts()).await);
    let kept = leases.lock("kept").lock().await.expect("free");
    for number in 0..150 {
        let lease = leases.lock(format!("job:{number}")).lock().await.expect("free");
        lease.unlock().await.expect("released");
    }
    look.until_children("/leasehold/locks", 1).await;
    kept.check().expect("held");
    kept.unlock().await.expect("released");
}

#[tokio::test]
async fn user_refused_or_with_nothing_left_leaves_no_session() {
    let server = ZooKeeper::start();
    let sessions = || server.number(0, "zk_global_sessions");
    assert_eq!(sessions(), 0);
    for _ in 0..3 {
        let longer = builder().ttl(Duration::from_millis(100_001));
        longer.connect(&server.url()).await.expect_err("it is refused");
    }
    kit::eventually(T / 2, || sessions() == 0).await;
    let leases = builder().ttl(40 * T).connect(&server.url()).await.expect("the server is there");
    let lease = leases.lock("job").lock().await.expect("free");
    assert_eq!(sessions(), 1);
    lease.unlock().await.expect("released");
    leases.close().await.expect("nothing is left to release");
    kit::eventually(T / 2, || sessions() == 0).await;
}

/// The servers' tick is not told, but the shortest timeout is, which is two of them.
#[tokio::test]
async fn time_to_live_of_less_than_three_ticks_is_warned_of() {
    let trace = Trace::of_all_threads();
    let server = ZooKeeper::start_with("tickTime=500");
    let warned = |ttl: Duration| {
        let warns = |event: &Traced| {
            event.level == Level::WARN
                && event.message().contains(&format!("a time to live of {ttl:?} is near"))
        };
        !trace.matching(warns).is_empty()
    };
    let sessions = || server.number(0, "zk_global_sessions");
    for (millis, short) in [(1_000, true), (1_400, true), (1_600, false), (20_000, false)] {
        let ttl = Duration::from_millis(millis);
        let leases = builder().ttl(ttl).connect(&server.url()).await.expect("the server is there");
        kit::eventually(LONG, || sessions() == 1 && warned(ttl) == short).await;
        leases.close().await.expect("nothing is held");
        kit::eventually(LONG, || sessions() == 0).await;
        assert_eq!(warned(ttl), short);
    }
}
