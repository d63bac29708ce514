//! The view of other programs on the server: keys, fields, times to live, messages and scripts.

use super::{JAVA, exists, lock_by_hand, millis};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kit::look::{calls, channel, fence_key};
use kit::{Mode as ProxyMode, Proxy, Resp, Server, eventually};
use leasehold::store::{ConnectOptions, Mode, RedisStore};
use leasehold::{Builder, ErrorKind, Lease, LeaseManager, LeaseState, Lock, Loss};
use tokio::task::JoinSet;

const LONG: Duration = Duration::from_secs(10);

async fn connect(server: &Server) -> LeaseManager {
    LeaseManager::connect(&server.url()).await.expect("a manager")
}

async fn connect_with(server: &Server, builder: Builder) -> LeaseManager {
    builder.connect(&server.url()).await.expect("a manager")
}

/// The one field of the hash under `key`, and its count.
#[track_caller]
fn hash(server: &Server, key: &str) -> (String, String) {
    let mut pairs = server.command(&["HGETALL", key]).pairs();
    assert_eq!(pairs.len(), 1, "{pairs:?}");
    pairs.remove(0)
}

fn pttl(server: &Server, key: &str) -> i64 {
    server.command(&["PTTL", key]).int()
}

fn fence_of(lease: &leasehold::Lease) -> i64 {
    let fence = lease.fence().expect("a fencing token");
    i64::try_from(fence).expect("a fencing token that a signed number holds")
}

/// Hears all that is published on a server.
struct Ear(Resp);

impl Ear {
    fn on(server: &Server) -> Self {
        let mut connection = server.connection();
        connection.command(&["PSUBSCRIBE", "*"]);
        Self(connection)
    }

    /// What was published since the last call, with its channels.
    fn heard(&mut self, server: &Server) -> Vec<(String, String)> {
        server.command(&["PUBLISH", "the end", ""]);
        let mut heard = Vec::new();
        loop {
            let message = self.0.receive().expect("a message").list();
            let [_, _, channel, payload] = message.try_into().expect("a message of a pattern");
            let channel = channel.text();
            if channel == "the end" {
                return heard;
            }
            heard.push((channel, payload.text()));
        }
    }
}

fn words(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    let owned = |(a, b): &(&str, &str)| (a.to_string(), b.to_string());
    pairs.iter().map(owned).collect()
}

#[tokio::test]
async fn lock_is_a_hash_of_one_owner_and_its_hold_count() {
    let server = Server::start();
    let leases = connect(&server).await;
    let mut lock = leases.lock("orders:42");
    let outer = lock.lock().await.expect("a lease");
    assert_eq!(server.command(&["TYPE", "orders:42"]).text(), "hash");
    let (owner, count) = hash(&server, "orders:42");
    assert_eq!(count, "1");

    // <uuid v4, lower case, hyphenated>:<number>
    let (uuid, number) = owner.split_once(':').expect("a colon");
    let groups: Vec<&str> = uuid.split('-').collect();
    let lengths: Vec<usize> = groups.iter().map(|group| group.len()).collect();
    assert_eq!(lengths, [8, 4, 4, 4, 12], "{uuid}");
    let hex = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
    assert!(groups.concat().chars().all(hex), "{uuid}");
    assert!(groups[2].starts_with('4'), "{uuid} is not of version 4");
    assert!(groups[3].starts_with(['8', '9', 'a', 'b']), "{uuid}");
    assert!(number.parse::<i64>().is_ok_and(|number| number >= 0), "{number}");

    let inner = lock.lock().await.expect("a nested lease");
    for (lease, count) in [(Some(inner), "2"), (None, "1")] {
        eventually(LONG, || hash(&server, "orders:42") == (owner.clone(), count.to_owned())).await;
        if let Some(inner) = lease {
            assert_eq!(inner.fence(), outer.fence());
            inner.unlock().await.expect("a release");
        }
    }
    outer.unlock().await.expect("a release");
    assert!(!exists(&server, "orders:42"));

    // The next grant draws a new number, another manager a new uuid.
    let again = lock.lock().await.expect("a lease");
    let (second, _) = hash(&server, "orders:42");
    assert_ne!(second, owner);
    assert_eq!(second.split_once(':').expect("a colon").0, uuid);
    let others = connect(&server).await;
    let other = others.lock("b").lock().await.expect("a lease");
    assert_ne!(hash(&server, "b").0.split_once(':').expect("a colon").0, uuid);
    drop((again, other));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watchdog_keeps_the_ttl_up_and_nothing_is_ever_without_one() {
    const T: i64 = 4_500;
    let server = Server::start();
    let leases = connect_with(&server, LeaseManager::builder().ttl(millis(T as u64))).await;
    let lease = leases.lock("held").lock().await.expect("a lease");

    let done = Arc::new(AtomicBool::new(false));
    let mut connection = server.connection();
    let sampler = thread::spawn({
        let done = Arc::clone(&done);
        move || {
            let (mut lowest, mut renewals, mut last) = (i64::MAX, 0, 0);
            let mut endless = 0;
            while !done.load(Ordering::Relaxed) {
                let held = connection.command(&["PTTL", "held"]).int();
                lowest = lowest.min(held);
                renewals += u32::from(held > last + 50);
                last = held;
                assert!(held <= T, "{held}");
                assert_eq!(connection.command(&["HLEN", "held"]).int(), 1);
                endless += u32::from(connection.command(&["PTTL", "busy"]).int() == -1);
                // Two processors are enough for the tests beside this one, too.
                thread::sleep(millis(1));
            }
            (lowest, renewals, endless)
        }
    });
    // Meanwhile another name is acquired, re-entered and released all the time.
    let start = Instant::now();
    while start.elapsed() < millis(2 * T as u64) {
        let mut lock = leases.lock("busy");
        let outer = lock.lock().await.expect("a lease");
        let inner = lock.lock().await.expect("a nested lease");
        inner.unlock().await.expect("a release");
        outer.unlock().await.expect("a release");
    }
    done.store(true, Ordering::Relaxed);
    let (lowest, renewals, endless) = sampler.join().expect("every sample was right");
    // Renewed at every third, it is never much below two thirds.
    assert!(lowest > T / 2, "it fell to {lowest} ms");
    assert!(renewals >= 5, "{renewals}");
    assert_eq!(endless, 0, "it was seen without a time to live");
    lease.check().expect("held");
    lease.unlock().await.expect("a release");
}

#[tokio::test]
async fn last_release_publishes_exactly_0_on_redissons_channel() {
    let server = Server::start();
    let leases = connect(&server).await;
    let mut ear = Ear::on(&server);
    for (name, channel) in [
        ("plain", "redisson_lock__channel:{plain}"),
        ("x{tag}y", "redisson_lock__channel:x{tag}y"),
        ("{a}{b}", "redisson_lock__channel:{a}{b}"),
    ] {
        let mut lock = leases.lock(name);
        let outer = lock.lock().await.expect("a lease");
        let inner = lock.lock().await.expect("a nested lease");
        eventually(LONG, || hash(&server, name).1 == "2").await;
        inner.unlock().await.expect("a release");
        eventually(LONG, || hash(&server, name).1 == "1").await;
        assert_eq!(ear.heard(&server), [], "a partial release is no release");
        assert!(exists(&server, name));
        outer.unlock().await.expect("a release");
        assert!(!exists(&server, name));
        assert_eq!(ear.heard(&server), words(&[(channel, "0")]));

        // Dropping does the same.
        drop(lock.lock().await.expect("a lease"));
        eventually(LONG, || !exists(&server, name)).await;
        assert_eq!(ear.heard(&server), words(&[(channel, "0")]));
    }
}

#[tokio::test]
async fn prefix_goes_before_every_key_and_channel() {
    let server = Server::start();
    for (prefix, key, fence, channel) in [
        ("app:", "app:job", "redisson_lock_token:{app:job}", "redisson_lock__channel:{app:job}"),
        ("{t}:", "{t}:job", "redisson_lock_token:{t}:job", "redisson_lock__channel:{t}:job"),
    ] {
        let leases = connect_with(&server, LeaseManager::builder().prefix(prefix)).await;
        let mut ear = Ear::on(&server);
        let lease = leases.lock("job").lock().await.expect("a lease");
        assert_eq!(lease.name(), "job");
        assert_eq!(hash(&server, key).1, "1");
        assert_eq!(server.command(&["TYPE", fence]).text(), "string");
        let holding = leases.inspect("job").await.expect("an answer");
        assert_eq!(holding.expect("a holder").holder, hash(&server, key).0);
        lease.unlock().await.expect("a release");
        assert_eq!(ear.heard(&server), words(&[(channel, "0")]));
        assert!(!exists(&server, "job"));
    }
}

#[tokio::test]
async fn fencing_token_is_kept_beside_the_lock_for_an_hour() {
    let server = Server::start();
    let leases = connect(&server).await;
    let time = |server: &Server| {
        let time = server.command(&["TIME"]).list();
        time[0].int() * 1_000_000 + time[1].int()
    };
    let before = time(&server);
    let lease = leases.lock("job").lock().await.expect("a lease");
    let fence = fence_of(&lease);
    assert!((before..=time(&server)).contains(&fence), "{fence}");
    let key = fence_key("job");
    assert_eq!(server.command(&["TYPE", &key]).text(), "string");
    // A grant may reserve some more for hand-offs in the process.
    let last = server.command(&["GET", &key]).int();
    assert!((fence..fence + 128).contains(&last), "{last}, {fence}");
    const HOUR: i64 = 60 * 60 * 1000;
    let left = pttl(&server, &key);
    assert!((HOUR - 60_000..=HOUR).contains(&left), "{left}");
    lease.unlock().await.expect("a release");
    assert!(exists(&server, &key), "it outlives the lock");
}

#[tokio::test]
async fn memory_of_the_fencing_token_can_be_endless() {
    let server = Server::start();
    let endless = connect_with(&server, LeaseManager::builder().fence_retention(None)).await;
    let lease = endless.lock("a").lock().await.expect("a lease");
    assert!(lease.fence().is_some());
    assert_eq!(pttl(&server, &fence_key("a")), -1);
    drop(lease);

    // A key without an end stays so, whoever acquires next; so does the counter of a Java client.
    let day = connect(&server).await;
    server.command(&["INCR", &fence_key("java")]);
    for (name, last) in [("a", server.command(&["GET", &fence_key("a")]).int()), ("java", 1)] {
        let lease = day.lock(name).lock().await.expect("a lease");
        assert!(fence_of(&lease) > last, "{name}");
        assert_eq!(pttl(&server, &fence_key(name)), -1, "{name}");
    }
}

#[tokio::test]
async fn fencing_tokens_grow_whatever_the_server_forgets() {
    let server = Server::start();
    let ttl = millis(1_500);
    let leases = connect_with(&server, LeaseManager::builder().ttl(ttl)).await;
    let others = connect_with(&server, LeaseManager::builder().ttl(ttl)).await;
    let mut last = 0;
    let mut grown = async |leases: &LeaseManager, what: &str| {
        let lease = leases.lock("job").lock().await.expect("a lease");
        let fence = fence_of(&lease);
        assert!(fence > last, "{what}: {fence} after {last}");
        last = fence;
        lease
    };
    grown(&leases, "at first").await.forget();
    let lease = grown(&others, "after an expiry").await;
    lease.unlock().await.expect("a release");
    let lease = grown(&leases, "after a release").await;
    drop(lease);
    let lease = grown(&others, "after a drop").await;
    server.command(&["FLUSHALL"]);
    grown(&leases, "after FLUSHALL").await.forget();
    drop(lease);
    server.restart();
    let lease = grown(&others, "after a restart").await;
    let far = fence_of(&lease) + 3_600_000_000;
    lease.unlock().await.expect("a release");
    // Another client's clock was an hour ahead, or a Java client counts from there.
    server.command(&["SET", &fence_key("job"), &far.to_string()]);
    let lease = grown(&leases, "after a leap").await;
    assert_eq!(fence_of(&lease), far + 1);
    lease.unlock().await.expect("a release");
    grown(&others, "after the leap").await.forget();
}

/// As it is, or percent-encoded.
#[tokio::test]
async fn unix_socket_may_have_any_name() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let socket = dir.path().join("my schöne ☕ 100%.sock");
    let path = socket.to_str().expect("a path in UTF-8");
    let server = Server::start();
    let plain = server.unix_url();
    let plain = plain.strip_prefix("redis+unix://").expect("the scheme of unix sockets");
    std::os::unix::fs::symlink(plain, &socket).expect("a link in a directory of our own");
    let encoded: String = path
        .bytes()
        .map(|byte| match byte {
            b'/' | b'.' => char::from(byte).to_string(),
            byte => format!("%{byte:02x}"),
        })
        .collect();
    for path in [encoded, path.replace('%', "%25")] {
        let leases = LeaseManager::connect(&format!("redis+unix://{path}")).await;
        let lease = leases.expect("a manager").lock("job").lock().await.expect("a lease");
        assert!(exists(&server, "job"));
        lease.unlock().await.expect("a release");
    }
}

#[tokio::test]
async fn inspect_returns_what_the_server_has() {
    let server = Server::start();
    let leases = connect(&server).await;
    let others = connect(&server).await;
    assert_eq!(others.inspect("job").await.expect("an answer"), None);
    let mut lock = leases.lock("job");
    let outer = lock.lock().await.expect("a lease");
    let inner = lock.lock().await.expect("a nested lease");
    eventually(LONG, || hash(&server, "job").1 == "2").await;
    let holding = others.inspect("job").await.expect("an answer").expect("a holder");
    assert_eq!(holding.holder, hash(&server, "job").0);
    assert_eq!(holding.hold_count, 2);
    let remaining = holding.remaining.expect("a time to live");
    assert!(
        remaining > Duration::from_secs(20) && remaining <= Duration::from_secs(30),
        "{remaining:?}"
    );
    drop((inner, outer));

    // What others may have put there.
    server.command(&["HSET", "endless", JAVA, "3"]);
    let holding = leases.inspect("endless").await.expect("an answer").expect("a holder");
    assert_eq!((holding.hold_count, holding.remaining), (3, None));
    server.command(&["HSET", "rw", "mode", "read", JAVA, "1"]);
    server.command(&["SET", "text", "x"]);
    let holding = leases.inspect("rw").await.expect("an answer").expect("a reader");
    assert_eq!((holding.holder.as_str(), holding.mode), (JAVA, Mode::Read));
    let error = leases.inspect("text").await.expect_err("it is no lock");
    assert_eq!(error.kind(), ErrorKind::WrongType, "{error}");
    assert!(exists(&server, "rw") && exists(&server, "text"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn force_unlock_takes_a_lock_from_whoever_has_it() {
    let server = Server::start();
    let leases = connect(&server).await;
    let mut ear = Ear::on(&server);
    assert!(!leases.force_unlock("job", "test").await.expect("an answer"));

    // From a holder in the same manager: its token has fired when the call returns.
    let lease = leases.lock("job").lock().await.expect("a lease");
    ear.heard(&server);
    assert!(leases.force_unlock("job", "test").await.expect("an answer"));
    assert_eq!(lease.check().expect_err("revoked").loss(), Some(Loss::Revoked));
    assert!(lease.cancellation_token().is_cancelled());
    assert!(!exists(&server, "job"));
    let mut heard = ear.heard(&server);
    heard.retain(|(channel, _)| !channel.starts_with("leasehold_inbox:"));
    assert_eq!(heard, words(&[(&channel("job"), "0")]));
    drop(lease);

    // From a Java client; but never something that is not a lock.
    lock_by_hand(&server, "java", Duration::from_secs(30));
    assert!(leases.force_unlock("java", "test").await.expect("an answer"));
    assert!(!exists(&server, "java"));
    server.command(&["SET", "text", "x"]);
    let error = leases.force_unlock("text", "test").await.expect_err("it is no lock");
    assert_eq!(error.kind(), ErrorKind::WrongType, "{error}");
    assert_eq!(server.command(&["GET", "text"]).text(), "x");
}

#[tokio::test]
async fn unix_socket_serves_as_well() {
    let server = Server::start();
    let leases = LeaseManager::connect(&server.unix_url()).await.expect("a manager");
    let lease = leases.lock("job").lock().await.expect("a lease");
    assert_eq!(hash(&server, "job").1, "1");
    lease.unlock().await.expect("a release");
    assert!(!exists(&server, "job"));
    let list = server.command(&["CLIENT", "LIST"]).text();
    assert!(list.contains("redis.sock"), "{list}");

    let third =
        LeaseManager::connect(&format!("{}?db=3", server.unix_url())).await.expect("a manager");
    let lease = third.lock("job").lock().await.expect("a lease");
    let mut connection = server.connection();
    connection.command(&["SELECT", "3"]);
    assert_eq!(connection.command(&["EXISTS", "job"]).int(), 1);
    assert!(!exists(&server, "job"));
    drop(lease);
}

#[tokio::test]
async fn user_password_and_database_come_from_the_url() {
    let server = Server::start();
    let user = ["ACL", "SETUSER", "lease", "on", ">s@fe/1", "~*", "&*"];
    server.command(&[&user[..], &["+@all"]].concat());
    server.command(&["ACL", "SETUSER", "default", "off"]);
    let mut connection = server.connection();
    connection.command(&["AUTH", "lease", "s@fe/1"]);
    connection.command(&["SELECT", "3"]);

    let leases =
        LeaseManager::connect(&server.url_as("lease", "s%40fe%2F1", 3)).await.expect("a manager");
    let lease = leases.lock("job").lock().await.expect("a lease");
    assert_eq!(connection.command(&["EXISTS", "job"]).int(), 1);
    connection.command(&["SELECT", "0"]);
    assert_eq!(connection.command(&["EXISTS", "job"]).int(), 0);
    lease.unlock().await.expect("a release");
    let list = connection.command(&["CLIENT", "LIST"]).text();
    let ours = list.lines().filter(|line| line.contains("user=lease"));
    assert!(ours.count() > 2, "{list}");
}

#[tokio::test]
async fn password_alone_is_that_of_the_default_user() {
    let server = Server::start_with(&["--requirepass", "secret"]);
    let url = format!("redis://:secret@127.0.0.1:{}", server.port());
    let leases = LeaseManager::connect(&url).await.expect("a manager");
    let lease = leases.lock("job").lock().await.expect("a lease");
    assert!(exists(&server, "job"));
    lease.unlock().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_that_the_server_forgets_are_sent_again_unseen() {
    let server = Server::start();
    let ttl = millis(6_000);
    let leases = connect_with(&server, LeaseManager::builder().ttl(ttl)).await;
    let lease = leases.lock("held").lock().await.expect("a lease");
    let mut connection = server.connection();
    connection.command(&["CONFIG", "RESETSTAT"]);
    let start = Instant::now();
    while start.elapsed() < ttl + ttl / 6 {
        connection.command(&["SCRIPT", "FLUSH"]);
        let mut lock = leases.lock("busy");
        let outer = lock.lock().await.expect("a lease");
        connection.command(&["SCRIPT", "FLUSH"]);
        let inner = lock.lock().await.expect("a nested lease");
        connection.command(&["SCRIPT", "FLUSH"]);
        inner.unlock().await.expect("a release");
        outer.unlock().await.expect("a release");
        assert_eq!(lease.state(), LeaseState::Held);
    }
    // Had a renewal failed, the lease would be lost by now.
    lease.check().expect("held");
    assert!(pttl(&server, "held") > 0);
    assert!(calls(&mut connection, "eval") > 3, "none was forgotten");
    connection.command(&["SCRIPT", "FLUSH"]);
    assert!(leases.inspect("held").await.expect("an answer").is_some());
    connection.command(&["SCRIPT", "FLUSH"]);
    assert!(leases.force_unlock("held", "test").await.expect("an answer"));
}

#[tokio::test]
async fn requests_that_wait_for_the_connection_leave_as_two_calls() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let leases = LeaseManager::connect(&proxy.url()).await.expect("a manager");
    // While the replies to two calls are on their way, a hundred more arrive.
    proxy.set(ProxyMode::HoldReplies);
    let mut early = JoinSet::new();
    for name in ["first", "second"] {
        let mut lock = leases.lock(name);
        early.spawn(async move { lock.lock().await });
        eventually(LONG, || exists(&server, name)).await;
    }
    let before = proxy.count("EVALSHA");
    let started = Arc::new(AtomicUsize::new(0));
    let mut others = JoinSet::new();
    for i in 0..100 {
        let mut lock = leases.lock(format!("other:{i}"));
        let started = Arc::clone(&started);
        others.spawn(async move {
            started.fetch_add(1, Ordering::Relaxed);
            lock.lock().await
        });
    }
    eventually(LONG, || started.load(Ordering::Relaxed) == 100).await;
    assert_eq!(proxy.count("EVALSHA"), before);
    proxy.set(ProxyMode::Pass);
    for lease in early.join_all().await {
        lease.expect("a lease").forget();
    }
    for lease in others.join_all().await {
        lease.expect("a lease").forget();
    }
    // Half of what is under way in each. A driver on another thread can look while only some have come.
    let calls = proxy.count("EVALSHA") - before;
    assert!((2..=5).contains(&calls), "{calls} calls for a hundred requests");
}

/// Runs a call for each of `items` at the same time: no reply comes before all have begun.
async fn all_at_once<I: Send + 'static, T: Send + 'static, F>(
    proxy: &Proxy,
    items: impl IntoIterator<Item = I>,
    call: impl Fn(I) -> F,
) -> Vec<T>
where
    F: Future<Output = T> + Send + 'static,
{
    proxy.set(ProxyMode::HoldReplies);
    let started = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for item in items {
        let (started, call) = (Arc::clone(&started), call(item));
        tasks.spawn(async move {
            started.fetch_add(1, Ordering::Relaxed);
            call.await
        });
    }
    eventually(LONG, || started.load(Ordering::Relaxed) == tasks.len()).await;
    proxy.set(ProxyMode::Pass);
    tasks.join_all().await
}

#[tokio::test]
async fn many_concurrent_operations_need_few_calls() {
    const LOCKS: usize = 500;
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let leases = LeaseManager::connect(&proxy.url()).await.expect("a manager");
    let before = proxy.count("EVALSHA");
    let mut connection = server.connection();
    connection.command(&["CONFIG", "RESETSTAT"]);
    let locks = (0..LOCKS).map(|i| leases.lock(format!("job:{i}")));
    let lock = async |mut lock: Lock| lock.lock().await.expect("a lease");
    let held = all_at_once(&proxy, locks, lock).await;
    all_at_once(&proxy, held, async |lease: Lease| lease.unlock().await.expect("a release")).await;
    assert_eq!(calls(&mut connection, "hdel"), LOCKS as i64, "each was locked and released");
    let sent = proxy.count("EVALSHA") - before;
    assert!(sent < 2 * LOCKS / 20, "{sent} calls for {LOCKS} pairs");
}

#[tokio::test]
async fn bad_name_in_a_batch_spoils_no_other() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let leases = LeaseManager::connect(&proxy.url()).await.expect("a manager");
    server.command(&["SET", "job:10", "somebody's"]);
    server.command(&["RPUSH", "job:20", "somebody's"]);
    server.command(&["SET", &fence_key("job:30"), "somebody's"]);
    server.command(&["HSET", &fence_key("job:40"), "somebody's", "1"]);
    proxy.set(ProxyMode::HoldReplies);
    let mut first = leases.lock("first");
    let first = tokio::spawn(async move { first.lock().await });
    eventually(LONG, || exists(&server, "first")).await;
    let locks = (0..60).map(|i| (i, leases.lock(format!("job:{i}"))));
    let lock = async |(i, mut lock): (_, Lock)| (i, lock.lock().await);
    let others = all_at_once(&proxy, locks, lock).await;
    let mut granted = 0;
    for (i, lease) in others {
        match lease {
            Ok(lease) => {
                assert!(![10, 20, 30, 40].contains(&i), "{i}");
                granted += 1;
                lease.unlock().await.expect("a release");
            }
            Err(error) => {
                assert!([10, 20, 30, 40].contains(&i), "{i}: {error}");
                assert_eq!(error.kind(), ErrorKind::WrongType, "{i}: {error}");
            }
        }
    }
    assert_eq!(granted, 56);
    assert_eq!(server.command(&["GET", "job:10"]).text(), "somebody's");
    assert_eq!(server.command(&["LLEN", "job:20"]).int(), 1);
    assert_eq!(server.command(&["GET", &fence_key("job:30")]).text(), "somebody's");
    assert_eq!(server.command(&["HLEN", &fence_key("job:40")]).int(), 1);
    assert!(!exists(&server, "job:30") && !exists(&server, "job:40"));
    drop(first.await.expect("no panic").expect("a lease"));
}

/// What acquires have in common is sent once; here it changes from one to the next.
#[tokio::test]
async fn acquires_of_every_kind_share_a_call() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    // A grant reserves one fencing token only.
    let builder = LeaseManager::builder().max_local_handoffs(0);
    let leases = builder.connect(&proxy.url()).await.expect("a manager");
    proxy.set(ProxyMode::HoldReplies);
    let mut tasks = JoinSet::new();
    for name in ["first", "second"] {
        let mut lock = leases.lock(name);
        tasks.spawn(async move { lock.lock().await.expect("a lease") });
        eventually(LONG, || exists(&server, name)).await;
    }
    let before = proxy.count("EVALSHA");
    for i in 0..40 {
        let delay = if i % 2 == 0 { Duration::ZERO } else { LONG };
        let mut lock = leases.lock(format!("job:{i}")).lock_delay(delay);
        tasks.spawn(async move { lock.lock().await.expect("a lease") });
    }
    tokio::time::sleep(millis(100)).await;
    proxy.set(ProxyMode::Pass);
    let leases = tasks.join_all().await;
    // Two, unless a busy machine keeps one reply apart from the other.
    let calls = proxy.count("EVALSHA") - before;
    assert!((2..=5).contains(&calls), "{calls} calls");
    for lease in &leases {
        assert_eq!(hash(&server, lease.name()).1, "1", "{}", lease.name());
        assert_eq!(
            server.command(&["GET", &fence_key(lease.name())]).text(),
            fence_of(lease).to_string()
        );
    }
    let mut releases = JoinSet::new();
    for lease in leases {
        releases.spawn(async move { lease.unlock().await.expect("a release") });
    }
    releases.join_all().await;
    eventually(LONG, || {
        server
            .command(&["KEYS", "*:*"])
            .list()
            .iter()
            .all(|key| format!("{key:?}").contains("token"))
    })
    .await;
}

/// The settings of the server are the store's; the manager has the rest.
#[tokio::test]
async fn store_that_was_connected_without_a_manager_serves_one() {
    let server = Server::start();
    let options = ConnectOptions::new().prefix("shop:").ttl(LONG);
    let store = RedisStore::connect_with(&server.url(), &options).await.expect("a store");
    let leases = LeaseManager::builder().ttl(LONG).build(store).expect("a manager");
    let lease = leases.lock("job").lock().await.expect("a lease");
    assert_eq!(hash(&server, "shop:job").1, "1");
    lease.unlock().await.expect("held");
    leases.close().await.expect("released");
    let list = format!("{0},{0},{0}", server.url());
    let error = RedisStore::connect(&list).await.expect_err("a list is no server");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let options = ConnectOptions::new().ttl(Duration::ZERO);
    let error = RedisStore::connect_with(&server.url(), &options).await.expect_err("no time");
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

/// The first does not leave before the others.
#[tokio::test]
async fn set_of_names_is_acquired_in_one_call_and_released_in_one() {
    let server = Server::start();
    // Another thread, which sends them until this runtime has a connection of its own, could send the first too early.
    let builder = LeaseManager::builder().dedicated_thread(false);
    let leases = connect_with(&server, builder).await;
    let mut set = leases.multi_lock(["a", "b", "c", "d", "e", "f", "g", "h"]).expect("good names");
    // The server may not know the scripts before.
    set.lock().await.expect("a lease").unlock().await.expect("held");
    let mut connection = server.connection();
    let before = calls(&mut connection, "evalsha");
    let lease = set.lock().await.expect("a lease");
    assert_eq!(calls(&mut connection, "evalsha") - before, 1);
    lease.unlock().await.expect("held");
    assert_eq!(calls(&mut connection, "evalsha") - before, 2);
}
