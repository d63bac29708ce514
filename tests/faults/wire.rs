//! A network loses, repeats and delays requests and replies.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::{connect, ttl};
use kit::look::{believes_no_longer_than_the_key_lives, exists, fence_key, recorded, renewal};
use kit::{Mode, Proxy, Server, eventually, in_line, lock, millis, within};
use leasehold::{Builder, ErrorKind, Lease, LeaseManager, LeaseState, Loss};
use tokio::task::JoinSet;

const LONG: Duration = Duration::from_secs(15);

async fn behind_proxy(builder: Builder) -> (Server, Proxy, LeaseManager) {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let leases = connect(builder, &proxy.url()).await;
    (server, proxy, leases)
}

/// Lock, enter again, be renewed, leave, unlock: all of it works, whatever happens to one reply.
async fn life(server: &Server, leases: &LeaseManager, name: &str) {
    let mut lock = leases.lock(name);
    let outer = lock.lock().await.unwrap_or_else(|error| panic!("{name}: {error:?}"));
    believes_no_longer_than_the_key_lives(&outer, server);
    assert_eq!(recorded(server, name).1, 1, "{name}");
    let inner = lock.lock().await.unwrap_or_else(|error| panic!("{name}: {error:?}"));
    eventually(LONG, || recorded(server, name).1 == 2).await;
    assert_eq!(outer.hold_count(), 2, "{name}");
    assert_eq!(outer.fence(), inner.fence(), "{name}");
    renewal(server, name, LONG).await;
    eventually(LONG, || outer.state() == LeaseState::Held).await;
    believes_no_longer_than_the_key_lives(&outer, server);
    assert!(!outer.cancellation_token().is_cancelled(), "{name}");
    inner.unlock().await.unwrap_or_else(|error| panic!("{name}: {error:?}"));
    assert_eq!(outer.hold_count(), 1, "{name}");
    eventually(LONG, || recorded(server, name).1 == 1).await;
    let fence = outer.fence();
    outer.unlock().await.unwrap_or_else(|error| panic!("{name}: {error:?}"));
    assert!(!exists(server, name), "{name}");
    let next = lock.lock_timeout(LONG).await.expect("an answer").expect("a lease");
    assert!(next.fence() > fence, "{name}");
    next.unlock().await.unwrap_or_else(|error| panic!("{name}: {error:?}"));
    assert!(!exists(server, name), "{name}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whichever_reply_about_a_name_is_lost_its_whole_life_goes_on() {
    let server = Arc::new(Server::start());
    let mut lives = JoinSet::new();
    // Acquire, both counts, renewal, the release; and what is asked for a second time.
    for n in 1..=6 {
        let server = Arc::clone(&server);
        lives.spawn(async move {
            let proxy = Proxy::start(server.port());
            let leases = connect(ttl(millis(4_000)), &proxy.url()).await;
            let name = format!("job:{n}");
            proxy.drop_reply_of(n, &name);
            life(&server, &leases, &name).await;
            assert_eq!(proxy.dropped(), 1, "{name}");
            leases.close().await.expect("nothing to release");
        });
    }
    lives.join_all().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whichever_reply_of_all_is_lost_one_tries_again_and_goes_on() {
    let server = Arc::new(Server::start());
    let mut lives = JoinSet::new();
    for n in 1..=24 {
        let server = Arc::clone(&server);
        lives.spawn(async move {
            let proxy = Proxy::start(server.port());
            // Every request has an end of line in it.
            proxy.drop_reply_of(n, "\r\n");
            let leases = match ttl(millis(4_000)).connect(&proxy.url()).await {
                Ok(leases) => leases,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Unavailable, "{n}: {error:?}");
                    connect(ttl(millis(4_000)), &proxy.url()).await
                }
            };
            life(&server, &leases, &format!("job:{n}")).await;
            leases.close().await.expect("nothing to release");
            proxy.dropped()
        });
        while lives.len() >= 8 {
            assert_eq!(lives.join_next().await.expect("one").expect("no panic"), 1);
        }
    }
    lives.join_all().await;
    let mut connection = server.connection();
    // A connection that was probed without success left a key of five seconds at most.
    eventually(LONG, || connection.command(&["KEYS", "leasehold-probe:*"]).list().is_empty()).await;
}

/// The client would take the next answer on such a connection for the lost one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_whose_name_is_not_answered_is_given_no_calls() {
    let (server, proxy, leases) = behind_proxy(ttl(Duration::from_secs(10))).await;
    // The name of the connection that the first lock on this runtime asks for.
    proxy.answer(1, "SETNAME", b"");
    let lease = lock(&leases, "job").await;
    eventually(LONG, || proxy.answered() == 1).await;
    let named = || {
        let list = server.command(&["CLIENT", "LIST"]).text();
        let mut others = list.lines().filter(|line| !line.contains("cmd=client"));
        others.all(|line| !line.contains(" name= "))
    };
    // Another connection has replaced it.
    eventually(LONG, named).await;
    lease.unlock().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_reply_to_a_call_of_many_costs_none_of_them_anything() {
    const MANY: usize = 40;
    let (server, proxy, leases) = behind_proxy(ttl(millis(4_000)).fencing(false)).await;
    let mut connection = server.connection();
    let mut tasks = JoinSet::new();
    // The first may go alone, and most of the others wait for it and leave as one call.
    proxy.drop_reply_of(1, "job:20:");
    for i in 0..MANY {
        let mut lock = leases.lock(format!("job:{i}:"));
        tasks.spawn(async move { lock.lock().await.expect("a lease") });
    }
    let held = tasks.join_all().await;
    assert_eq!(proxy.dropped(), 1);
    assert_eq!(connection.command(&["KEYS", "job:*"]).list().len(), MANY);
    for lease in &held {
        assert_eq!(recorded(&server, lease.name()).1, 1);
        believes_no_longer_than_the_key_lives(lease, &server);
    }
    // The next call is that of their renewals, or the first of some.
    proxy.drop_reply_of(1, "job:");
    eventually(LONG, || proxy.dropped() == 2).await;
    eventually(LONG, || held.iter().all(|lease| lease.remaining() > millis(2_800))).await;
    proxy.drop_reply_of(2, "job:");
    let mut tasks = JoinSet::new();
    for lease in held {
        tasks.spawn(lease.unlock());
    }
    for released in tasks.join_all().await {
        released.expect("the second attempt finds it done");
    }
    assert_eq!(proxy.dropped(), 3);
    assert!(connection.command(&["KEYS", "job:*"]).list().is_empty());
}

/// Passes a lock on from hand to hand in memory, up to the last of a few.
async fn handed_off(leases: &LeaseManager, name: &str) -> Lease {
    let mut lease = lock(leases, name).await;
    let waiter = |_| {
        let mut lock = leases.lock(name);
        in_line(async move { lock.lock().await.expect("a lease") })
    };
    for next in Vec::from_iter((0..4).map(waiter)) {
        let fence = lease.fence().expect("a fencing token");
        lease.unlock().await.expect("a release");
        lease = within(LONG, next).await.expect("no panic");
        assert_eq!(lease.fence(), Some(fence + 1), "from hand to hand");
    }
    lease
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn last_release_after_a_handoff_may_lose_its_reply() {
    // A chain may last a tenth of it.
    let (server, proxy, leases) = behind_proxy(ttl(Duration::from_secs(30))).await;
    let last = handed_off(&leases, "job").await;
    let asked = || proxy.requests().iter().filter(|text| text.contains("job")).count();
    let before = asked();
    proxy.drop_reply_of(1, "job");
    last.unlock().await.expect("the second attempt finds it done");
    assert_eq!((proxy.dropped(), asked()), (1, before + 2));
    assert!(!exists(&server, "job"));
    lock(&leases, "job").await.unlock().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewal_after_a_handoff_may_lose_its_reply() {
    let (server, proxy, leases) = behind_proxy(ttl(millis(6_000))).await;
    // A chain may last a tenth of it.
    let last = handed_off(&leases, "job").await;
    let (owner, count) = recorded(&server, "job");
    assert_eq!(count, 1);
    let fence = last.fence();
    // The next request with this owner is the renewal.
    proxy.drop_reply_of(1, &owner);
    eventually(LONG, || proxy.dropped() == 1).await;
    renewal(&server, "job", LONG).await;
    eventually(LONG, || last.state() == LeaseState::Held).await;
    believes_no_longer_than_the_key_lives(&last, &server);
    assert!(!last.cancellation_token().is_cancelled());
    assert_eq!((last.fence(), last.hold_count()), (fence, 1));
    assert_eq!(recorded(&server, "job"), (owner, 1));
    last.unlock().await.expect("a release");
    assert!(!exists(&server, "job"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_copied_late_takes_nothing_from_holder_nor_next() {
    let (server, proxy, leases) = behind_proxy(ttl(millis(2_000))).await;
    let others = connect(ttl(millis(2_000)), &server.url()).await;
    let mut lock = leases.lock("job");
    let outer = lock.lock().await.expect("a lease");
    let (owner, _) = recorded(&server, "job");
    let reserved = || server.command(&["GET", &fence_key("job")]).int();
    let fences = reserved();

    assert!(!proxy.replay(&owner).is_empty(), "the acquire, once more");
    assert_eq!((recorded(&server, "job"), reserved()), ((owner.clone(), 1), fences));
    let inner = lock.lock().await.expect("a nested lease");
    eventually(LONG, || recorded(&server, "job").1 == 2).await;
    proxy.replay(&owner);
    assert_eq!((recorded(&server, "job"), reserved()), ((owner.clone(), 2), fences));
    inner.unlock().await.expect("a lower count");
    eventually(LONG, || recorded(&server, "job").1 == 1).await;
    renewal(&server, "job", LONG).await;
    let copies = proxy.replay(&owner);
    assert!(copies.len() >= 4, "{copies:?}");
    assert!(server.command(&["PTTL", "job"]).int() <= 2_000);
    assert_eq!((recorded(&server, "job"), reserved()), ((owner.clone(), 1), fences));
    outer.check().expect("held");
    assert_eq!(outer.hold_count(), 1);
    outer.unlock().await.expect("a release");

    let next = others.lock("job").lock().await.expect("the rival's");
    let theirs = recorded(&server, "job");
    let fences = reserved();
    for _ in 0..2 {
        proxy.replay(&owner);
        assert_eq!((recorded(&server, "job"), reserved()), (theirs.clone(), fences));
    }
    renewal(&server, "job", LONG).await;
    assert_eq!(next.state(), LeaseState::Held);
    next.unlock().await.expect("a release");
    assert!(!exists(&server, "job"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquire_copied_after_its_release_keeps_the_name_t_at_most() {
    const T: Duration = millis(1_500);
    // Of the requests so far, only the acquire has this time to live.
    let (server, proxy, leases) = behind_proxy(ttl(T).fencing(false)).await;
    let others = connect(ttl(T).fencing(false), &server.url()).await;
    lock(&leases, "job").await.unlock().await.expect("a release");
    assert!(!exists(&server, "job"));
    let copied = Instant::now();
    proxy.replay(&format!("\r\n{}\r\n", T.as_millis()));
    let left = server.command(&["PTTL", "job"]).int();
    assert!((1..=T.as_millis() as i64).contains(&left), "nobody's, but never without end: {left}");
    // It is not renewed, and no task believes to hold it.
    let lease = within(LONG, others.lock("job").lock()).await.expect("a lease");
    assert!(copied.elapsed() >= millis(u64::try_from(left).expect("positive")));
    lease.unlock().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_run_after_they_were_given_up_make_no_lease_longer() {
    const T: Duration = millis(3_000);
    let (server, proxy, leases) = behind_proxy(ttl(T)).await;
    let lease = lock(&leases, "job").await;
    for _ in 0..2 {
        proxy.set(Mode::HoldRequests);
        eventually(LONG, || lease.state() == LeaseState::AtRisk).await;
        let before = lease.remaining();
        tokio::time::sleep(millis(50)).await;
        assert!(lease.remaining() < before, "nothing was confirmed");
        proxy.set(Mode::Pass);
        eventually(LONG, || lease.state() == LeaseState::Held).await;
        believes_no_longer_than_the_key_lives(&lease, &server);
    }
    // The request is given up now, and arrives right after that.
    proxy.set(Mode::HoldRequests);
    assert_eq!(within(LONG, lease.lost()).await, Loss::Expired);
    proxy.set(Mode::Pass);
    assert_eq!(lease.remaining(), Duration::ZERO);
    assert_eq!(lease.state(), LeaseState::Lost, "lost is for good");
    let others = connect(ttl(T), &server.url()).await;
    let next = within(LONG, others.lock("job").lock()).await.expect("a lease");
    assert!(next.fence() > lease.fence());
    next.unlock().await.expect("a release");
    assert_eq!(lease.unlock().await.expect_err("lost").loss(), Some(Loss::Expired));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn release_run_after_it_was_given_up_spares_the_next_holder() {
    const T: Duration = millis(1_500);
    let (server, proxy, leases) = behind_proxy(ttl(T)).await;
    let others = connect(ttl(T), &server.url()).await;
    let lease = lock(&leases, "job").await;
    let (owner, _) = recorded(&server, "job");
    let asked = || proxy.requests().iter().filter(|text| text.contains(&owner)).count();
    let before = asked();
    proxy.set(Mode::HoldRequests);
    let error = lease.unlock().await.expect_err("no answer");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    // The key can only expire.
    let next = within(LONG, others.lock("job").lock()).await.expect("a lease");
    let theirs = recorded(&server, "job");
    assert_eq!(asked(), before);
    proxy.set(Mode::Pass);
    eventually(LONG, || asked() > before).await;
    renewal(&server, "job", LONG).await;
    assert_eq!(recorded(&server, "job"), theirs);
    assert_eq!(next.state(), LeaseState::Held);
    next.unlock().await.expect("a release");
}
