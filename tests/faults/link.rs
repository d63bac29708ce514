//! What a link does to bytes: it is slow, cuts them into pieces, hangs up; and what a manager that is closed
//! over a good one cannot give back.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::{connect, ttl};
use kit::look::{believes_no_longer_than_the_key_lives, exists, others, recorded, renewal};
use kit::{Pace, Pipe, Server, eventually, lock, millis, within};
use leasehold::{ErrorKind, LeaseState};

const LONG: Duration = Duration::from_secs(15);

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
    eventually(LONG, || recorded(&server, "job").1 == 2).await;
    inner.unlock().await.expect("a lower count");
    let mut other = others.lock("job");
    let waiter = tokio::spawn(async move { other.lock().await.expect("a lease") });
    renewal(&server, "job", LONG).await;
    eventually(LONG, || outer.state() == LeaseState::Held).await;
    assert!(!outer.cancellation_token().is_cancelled());
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
async fn slow_network_costs_its_round_trip_and_no_lease() {
    // An attempt may take 600 ms.
    const T: Duration = Duration::from_secs(6);
    const ONE_WAY: Duration = millis(100);
    let server = Server::start();
    let mut connection = server.connection();
    let pipe = Pipe::start(server.port());
    let leases = connect(ttl(T), &pipe.url()).await;
    let slow = Pace { latency: ONE_WAY, ..Pace::default() };
    let mut held = Vec::new();
    for name in ["first", "later"] {
        pipe.set(slow);
        let start = Instant::now();
        let lease = lock(&leases, name).await;
        let (left, took) = (lease.remaining(), start.elapsed());
        assert!(took >= ONE_WAY * 2, "{name}: {took:?}");
        // The token fires 5.338 s after the send: what is left is shorter by the round trip.
        assert!(left <= millis(5_338) - ONE_WAY * 2, "{name}: {left:?} after {took:?}");
        believes_no_longer_than_the_key_lives(&lease, &server);
        held.push(lease);
        // By the second time this runtime has a connection of its own, besides the manager's three.
        pipe.set(Pace::default());
        eventually(LONG, || others(&mut connection) == 4).await;
        // The server has it a moment before we do.
        tokio::time::sleep(millis(300)).await;
    }
    pipe.set(slow);
    for _ in 0..2 {
        renewal(&server, "first", LONG).await;
        for lease in &held {
            eventually(LONG, || lease.remaining() > T / 2).await;
            believes_no_longer_than_the_key_lives(lease, &server);
            assert!(!lease.cancellation_token().is_cancelled());
        }
    }
    for lease in held {
        lease.unlock().await.expect("a release");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_closed_before_a_byte_are_retried_without_haste() {
    const T: Duration = Duration::from_secs(3);
    let server = Server::start();
    let pipe = Pipe::start(server.port());
    let closed = Pace { closed: true, ..Pace::default() };
    // It is reported at the start.
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
    assert!(!lease.cancellation_token().is_cancelled());
    pipe.set(Pace::default());
    eventually(LONG, || others(&mut connection) >= 3).await;
    eventually(LONG, || lease.state() == LeaseState::Held).await;
    assert!(!lease.cancellation_token().is_cancelled());
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
        // Another program has put something else there, which we must not delete.
        server.command(&["SET", name, "x", "PX", "5000"]);
    }
    let (closing, closed) = (leases.clone(), held[99].cancellation_token());
    let report = tokio::spawn(async move { closing.close().await });
    // Half of the work stops when its token fires, the other half does not.
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
    assert!(held.iter().all(|lease| lease.cancellation_token().is_cancelled()));
    let mut connection = server.connection();
    eventually(LONG, || connection.command(&["KEYS", "*"]).list().is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_server_that_hangs_up_is_unavailable_and_not_hammered() {
    use std::io::Read;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const HANDSHAKE: u8 = 22;
    let trace = kit::trace::Trace::of_all_threads();
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
    // No task goes on after the error.
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
