//! What a network does to requests and replies: loses, repeats, delays and cuts them.
#![cfg(feature = "redis")]

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::look::{fence_key, others};
use common::{Mode, Pace, Pipe, Proxy, Server, eventually, within};
use leasehold::{Builder, ErrorKind, Lease, LeaseManager, LeaseState, Loss};
use tokio::task::JoinSet;

const LONG: Duration = Duration::from_secs(15);

const fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn ttl(ttl: Duration) -> Builder {
    LeaseManager::builder().ttl(ttl)
}

async fn connect(builder: Builder, url: &str) -> LeaseManager {
    builder.connect(url).await.expect("a manager")
}

async fn lock(leases: &LeaseManager, name: &str) -> Lease {
    leases.lock(name).lock().await.expect("a lease")
}

fn exists(server: &Server, name: &str) -> bool {
    server.command(&["EXISTS", name]).int() == 1
}

/// The owner of a lock, and the hold count that the server has.
#[track_caller]
fn recorded(server: &Server, name: &str) -> (String, i64) {
    let pairs = server.command(&["HGETALL", name]).pairs();
    let [(owner, count)] = pairs.try_into().expect("one owner");
    (owner, count.parse().expect("a count"))
}

/// Waits for the next renewal of a key.
async fn renewal(server: &Server, name: &str) {
    let mut connection = server.connection();
    let mut last = i64::MAX;
    eventually(LONG, || {
        let left = connection.command(&["PTTL", name]).int();
        let renewed = left > last.saturating_add(20);
        last = left;
        renewed
    })
    .await;
}

/// What is believed here ends before what the server keeps.
#[track_caller]
fn believes_no_longer_than_the_key_lives(lease: &Lease, server: &Server) {
    let now = Instant::now();
    let believed = now + lease.remaining();
    let asked = Instant::now();
    let left = server.command(&["PTTL", lease.name()]).int();
    let left = u64::try_from(left).expect("a key with a time to live");
    assert!(believed < asked + millis(left), "{:?} too long", believed - (asked + millis(left)));
}

/// Lock, enter again, be renewed, leave, unlock: all of it works, whatever happens to one reply.
async fn life(server: &Server, leases: &LeaseManager, name: &str) {
    let mut lock = leases.lock(name);
    let outer = lock.lock().await.unwrap_or_else(|error| panic!("{name}: {error:?}"));
    believes_no_longer_than_the_key_lives(&outer, server);
    assert_eq!(recorded(server, name).1, 1, "{name}");
    let inner = lock.lock().await.unwrap_or_else(|error| panic!("{name}: {error:?}"));
    believes_no_longer_than_the_key_lives(&outer, server);
    assert_eq!((outer.hold_count(), recorded(server, name).1), (2, 2), "{name}");
    assert_eq!(outer.fence(), inner.fence(), "{name}");
    renewal(server, name).await;
    eventually(LONG, || outer.state() == LeaseState::Held).await;
    believes_no_longer_than_the_key_lives(&outer, server);
    assert!(!outer.token().is_cancelled(), "{name}");
    inner.unlock().await.unwrap_or_else(|error| panic!("{name}: {error:?}"));
    assert_eq!(outer.hold_count(), 1, "{name}");
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
    // Acquire, nested acquire, renewal, the lower count, the release; and what is asked for a second time.
    for n in 1..=6 {
        let server = Arc::clone(&server);
        lives.spawn(async move {
            let proxy = Proxy::start(server.port());
            let leases = connect(ttl(millis(2_000)), &proxy.url()).await;
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
            let leases = match ttl(millis(2_000)).connect(&proxy.url()).await {
                Ok(leases) => leases,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Unavailable, "{n}: {error:?}");
                    connect(ttl(millis(2_000)), &proxy.url()).await
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
    // Those that tried out a connection in vain have left a key of five seconds at most.
    eventually(LONG, || connection.command(&["KEYS", "leasehold-probe:*"]).list().is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lost_reply_to_a_call_of_many_costs_none_of_them_anything() {
    const MANY: usize = 40;
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let leases = connect(ttl(millis(3_000)).fencing(false), &proxy.url()).await;
    let mut connection = server.connection();
    let mut tasks = JoinSet::new();
    // The first goes alone, and most of the others wait for it and leave as one call.
    proxy.drop_reply_of(2, "job:");
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
    eventually(LONG, || held.iter().all(|lease| lease.remaining() > millis(2_000))).await;
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
async fn handed_on(leases: &LeaseManager, name: &str) -> Lease {
    let mut lease = lock(leases, name).await;
    let mut line = JoinSet::new();
    for _ in 0..4 {
        let mut lock = leases.lock(name);
        line.spawn(async move { lock.lock().await.expect("a lease") });
    }
    // All of them are in line by then.
    tokio::time::sleep(millis(20)).await;
    while !line.is_empty() {
        let fence = lease.fence().expect("a fencing token");
        lease.unlock().await.expect("a release");
        lease = within(LONG, line.join_next()).await.expect("one of them").expect("no panic");
        assert_eq!(lease.fence(), Some(fence + 1), "from hand to hand");
    }
    lease
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_release_after_a_hand_over_may_lose_its_reply() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    // A chain may last a tenth of it.
    let leases = connect(ttl(Duration::from_secs(30)), &proxy.url()).await;
    let last = handed_on(&leases, "job").await;
    let asked = || proxy.requests().iter().filter(|text| text.contains("job")).count();
    let before = asked();
    proxy.drop_reply_of(1, "job");
    last.unlock().await.expect("the second attempt finds it done");
    assert_eq!((proxy.dropped(), asked()), (1, before + 2));
    assert!(!exists(&server, "job"));
    lock(&leases, "job").await.unlock().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_renewal_after_a_hand_over_may_lose_its_reply() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let leases = connect(ttl(millis(3_000)), &proxy.url()).await;
    let last = handed_on(&leases, "job").await;
    let (owner, count) = recorded(&server, "job");
    assert_eq!(count, 1);
    let fence = last.fence();
    // The next request with this owner is the renewal.
    proxy.drop_reply_of(1, &owner);
    eventually(LONG, || proxy.dropped() == 1).await;
    renewal(&server, "job").await;
    eventually(LONG, || last.state() == LeaseState::Held).await;
    believes_no_longer_than_the_key_lives(&last, &server);
    assert!(!last.token().is_cancelled());
    assert_eq!((last.fence(), last.hold_count()), (fence, 1));
    assert_eq!(recorded(&server, "job"), (owner, 1));
    last.unlock().await.expect("a release");
    assert!(!exists(&server, "job"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_copy_of_any_request_takes_nothing_from_its_holder_nor_from_the_next() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let leases = connect(ttl(millis(2_000)), &proxy.url()).await;
    let rivals = connect(ttl(millis(2_000)), &server.url()).await;
    let mut lock = leases.lock("job");
    let outer = lock.lock().await.expect("a lease");
    let (owner, _) = recorded(&server, "job");
    let reserved = || server.command(&["GET", &fence_key("job")]).int();
    let fences = reserved();

    assert!(!proxy.replay(&owner).is_empty(), "the acquire, once more");
    assert_eq!((recorded(&server, "job"), reserved()), ((owner.clone(), 1), fences));
    let inner = lock.lock().await.expect("a nested lease");
    proxy.replay(&owner);
    assert_eq!((recorded(&server, "job"), reserved()), ((owner.clone(), 2), fences));
    inner.unlock().await.expect("a lower count");
    renewal(&server, "job").await;
    let copies = proxy.replay(&owner);
    assert!(copies.len() >= 4, "{copies:?}");
    assert!(server.command(&["PTTL", "job"]).int() <= 2_000);
    assert_eq!((recorded(&server, "job"), reserved()), ((owner.clone(), 1), fences));
    outer.check().expect("held");
    assert_eq!(outer.hold_count(), 1);
    outer.unlock().await.expect("a release");

    let next = rivals.lock("job").lock().await.expect("the rival's");
    let theirs = recorded(&server, "job");
    let fences = reserved();
    for _ in 0..2 {
        proxy.replay(&owner);
        assert_eq!((recorded(&server, "job"), reserved()), (theirs.clone(), fences));
    }
    renewal(&server, "job").await;
    assert_eq!(next.state(), LeaseState::Held);
    next.unlock().await.expect("a release");
    assert!(!exists(&server, "job"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_of_an_acquire_that_comes_after_its_release_keeps_the_name_for_t_at_most() {
    const T: Duration = millis(1_500);
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    // Only acquires without a fencing token have this step, and the try-out asks for one.
    let leases = connect(ttl(T).fencing(false), &proxy.url()).await;
    let rivals = connect(ttl(T).fencing(false), &server.url()).await;
    lock(&leases, "job").await.unlock().await.expect("a release");
    assert!(!exists(&server, "job"));
    let copied = Instant::now();
    proxy.replay("\r\nSA\r\n");
    let left = server.command(&["PTTL", "job"]).int();
    assert!((1..=T.as_millis() as i64).contains(&left), "nobody's, but never without end: {left}");
    // Nobody renews it, and nobody believes in it.
    let lease = within(LONG, rivals.lock("job").lock()).await.expect("a lease");
    assert!(copied.elapsed() >= millis(u64::try_from(left).expect("positive")));
    lease.unlock().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_that_run_after_they_were_given_up_make_no_lease_longer() {
    const T: Duration = millis(3_000);
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let leases = connect(ttl(T), &proxy.url()).await;
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
    // Now it is given up, and what was on the way arrives right after.
    proxy.set(Mode::HoldRequests);
    assert_eq!(within(LONG, lease.lost()).await, Loss::Expired);
    proxy.set(Mode::Pass);
    assert_eq!(lease.remaining(), Duration::ZERO);
    assert_eq!(lease.state(), LeaseState::Lost, "lost is for good");
    let rivals = connect(ttl(T), &server.url()).await;
    let next = within(LONG, rivals.lock("job").lock()).await.expect("a lease");
    assert!(next.fence() > lease.fence());
    next.unlock().await.expect("a release");
    assert_eq!(lease.unlock().await.expect_err("lost").loss(), Some(Loss::Expired));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_runs_after_it_was_given_up_is_nothing_to_the_next_holder() {
    const T: Duration = millis(1_500);
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let leases = connect(ttl(T), &proxy.url()).await;
    let rivals = connect(ttl(T), &server.url()).await;
    let lease = lock(&leases, "job").await;
    let (owner, _) = recorded(&server, "job");
    let asked = || proxy.requests().iter().filter(|text| text.contains(&owner)).count();
    let before = asked();
    proxy.set(Mode::HoldRequests);
    let error = lease.unlock().await.expect_err("no answer");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    // The key can only expire.
    let next = within(LONG, rivals.lock("job").lock()).await.expect("a lease");
    let theirs = recorded(&server, "job");
    assert_eq!(asked(), before);
    proxy.set(Mode::Pass);
    eventually(LONG, || asked() > before).await;
    renewal(&server, "job").await;
    assert_eq!(recorded(&server, "job"), theirs);
    assert_eq!(next.state(), LeaseState::Held);
    next.unlock().await.expect("a release");
}

/// Two processes at one pace, over which everything works, a wake-up too.
async fn everything_works(pace: Pace, slow_start: bool) {
    const T: Duration = Duration::from_secs(6);
    let server = Server::start();
    let pipe = Pipe::start(server.port());
    if slow_start {
        pipe.set(pace);
    }
    let leases = connect(ttl(T), &pipe.url()).await;
    let others = connect(ttl(T), &pipe.url()).await;
    pipe.set(pace);
    let mut lock = leases.lock("job");
    let outer = lock.lock().await.expect("a lease");
    believes_no_longer_than_the_key_lives(&outer, &server);
    let inner = lock.lock().await.expect("a nested lease");
    assert_eq!(recorded(&server, "job").1, 2);
    inner.unlock().await.expect("a lower count");
    let mut other = others.lock("job");
    let waiter = tokio::spawn(async move { other.lock().await.expect("a lease") });
    renewal(&server, "job").await;
    eventually(LONG, || outer.state() == LeaseState::Held).await;
    assert!(!outer.token().is_cancelled());
    outer.unlock().await.expect("a release");
    let next = within(LONG, waiter).await.expect("no panic");
    next.unlock().await.expect("a release");
    assert!(!exists(&server, "job"));
    leases.close().await.expect("nothing to release");
    others.close().await.expect("nothing to release");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_and_requests_in_pieces_of_one_byte_are_understood() {
    everything_works(Pace { piece: 1, ..Pace::default() }, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_that_drip_are_waited_for() {
    // About twenty pieces of a request and two of its reply, in an attempt of 0.6 s.
    everything_works(Pace { piece: 16, gap: millis(5), ..Pace::default() }, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_network_costs_its_round_trip_and_no_lease() {
    // An attempt may take 600 ms.
    const T: Duration = Duration::from_secs(6);
    const ONE_WAY: Duration = millis(100);
    let server = Server::start();
    let pipe = Pipe::start(server.port());
    let leases = connect(ttl(T), &pipe.url()).await;
    pipe.set(Pace { latency: ONE_WAY, ..Pace::default() });
    let start = Instant::now();
    let lease = lock(&leases, "job").await;
    let (left, took) = (lease.remaining(), start.elapsed());
    assert!(took >= ONE_WAY * 2, "{took:?}");
    // The token fires 5.338 s after the send: what is left is shorter by the round trip.
    assert!(left <= millis(5_338) - ONE_WAY * 2, "{left:?} after {took:?}");
    believes_no_longer_than_the_key_lives(&lease, &server);
    for _ in 0..2 {
        renewal(&server, "job").await;
        eventually(LONG, || lease.remaining() > T / 2).await;
        believes_no_longer_than_the_key_lives(&lease, &server);
        assert!(!lease.token().is_cancelled());
    }
    lease.unlock().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_close_before_a_byte_are_tried_again_without_haste() {
    const T: Duration = Duration::from_secs(3);
    let server = Server::start();
    let pipe = Pipe::start(server.port());
    let closed = Pace { closed: true, ..Pace::default() };
    // At the start it is told.
    pipe.set(closed);
    let start = Instant::now();
    let error = ttl(T).connect(&pipe.url()).await.expect_err("closed");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    assert!(pipe.accepted() <= 20, "{} connections", pipe.accepted());
    pipe.set(Pace::default());

    // Later it is a risk, and tried again with gaps that grow to T/20.
    let leases = connect(ttl(T), &pipe.url()).await;
    let lease = lock(&leases, "job").await;
    let mut connection = server.connection();
    pipe.set(closed);
    pipe.close_all();
    let before = pipe.accepted();
    tokio::time::sleep(millis(1_000)).await;
    let tried = pipe.accepted() - before;
    assert!(tried >= 3, "nobody tries: {tried}");
    assert!(tried <= 4 * 50, "a hot loop: {tried} connections in a second");
    assert!(!lease.token().is_cancelled());
    pipe.set(Pace::default());
    eventually(LONG, || others(&mut connection) >= 3).await;
    eventually(LONG, || lease.state() == LeaseState::Held).await;
    assert!(!lease.token().is_cancelled());
    lease.unlock().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn close_frees_97_of_100_and_names_the_3_that_it_could_not() {
    let server = Server::start();
    let leases = connect(ttl(Duration::from_secs(6)).fencing(false), &server.url()).await;
    let mut held = Vec::new();
    for i in 0..100 {
        held.push(lock(&leases, &format!("job:{i}")).await);
    }
    let bad: BTreeSet<&str> = ["job:7", "job:8", "job:77"].into();
    for name in &bad {
        // Somebody has put something else there, which is not ours to delete.
        server.command(&["SET", name, "x", "PX", "5000"]);
    }
    let (closing, closed) = (leases.clone(), held[99].token());
    let report = tokio::spawn(async move { closing.close().await });
    // Half of the work stops when it is told, the other half does not.
    closed.cancelled().await;
    drop(held.split_off(50));
    let error = report.await.expect("no panic").expect_err("three are left");
    assert_eq!((error.released(), error.failed().len()), (97, 3));
    let names: BTreeSet<&str> = error.failed().iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, bad);
    for (name, error) in error.failed() {
        assert_eq!(error.kind(), ErrorKind::WrongType, "{name}: {error}");
    }
    assert!(error.to_string().starts_with("3 of 100 leases could not be released"), "{error}");
    assert!(held.iter().all(|lease| lease.token().is_cancelled()));
    let mut connection = server.connection();
    eventually(LONG, || connection.command(&["KEYS", "*"]).list().is_empty()).await;
}

#[cfg(feature = "rustls")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tls_server_that_hangs_up_after_the_hello_is_unavailable_and_not_hammered() {
    use std::io::Read;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const HANDSHAKE: u8 = 22;
    let trace = common::trace::Trace::of_all_threads();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    let hellos = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&hellos);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut hello = [0; 1024];
            let length = stream.read(&mut hello).unwrap_or(0);
            let is_hello = length > 5 && hello[0] == HANDSHAKE;
            counted.fetch_add(usize::from(is_hello), Ordering::Relaxed);
        }
    });
    let start = Instant::now();
    let url = format!("rediss://app:secret-7@localhost:{port}");
    let error = ttl(Duration::from_secs(3)).connect(&url).await.expect_err("no server");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
    let tried = hellos.load(Ordering::Relaxed);
    assert!((1..=20).contains(&tried), "{tried} hellos");
    // Nor does anybody go on after the error.
    tokio::time::sleep(millis(500)).await;
    let later = hellos.load(Ordering::Relaxed);
    assert!(later <= tried + 1, "{tried} hellos, then {later}");
    let shown = format!("{error} {error:?} {:?}", std::error::Error::source(&error));
    assert!(!shown.contains("secret-7"), "{shown}");
    for event in trace.events() {
        let text = format!("{event:?}");
        assert!(!text.contains("secret-7"), "{text}");
    }
}
