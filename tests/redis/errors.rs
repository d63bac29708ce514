//! Errors are sorted, report what to do, and leave nothing behind.

use super::{JAVA, exists, lock, millis, refused_only};
use std::error::Error as _;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::thread;
use std::time::{Duration, Instant};

use kit::look::{channel, fence_key, others, subscribers};
use kit::trace::{Trace, Traced};
use kit::{Proxy, Reply, Resp, Server, eventually, within};
use leasehold::{Builder, Error, ErrorKind, Fate, LeaseManager, LeaseState, Loss};
use tokio::task::JoinSet;
use tracing::Level;

const LONG: Duration = Duration::from_secs(10);

/// All that leasehold needs on keys and channels that begin with `app:`.
const MINIMAL: [&str; 27] = [
    "resetkeys",
    "resetchannels",
    "~app:*",
    "~redisson_lock_token:{app:*",
    "~redisson_lock_token:app:*",
    "~leasehold_note:{app:*",
    "~leasehold_note:app:*",
    "&leasehold_inbox:app:*",
    "&redisson_lock__channel:{app:*",
    "&redisson_lock__channel:app:*",
    "-@all",
    "+eval",
    "+evalsha",
    "+hset",
    "+hdel",
    "+hexists",
    "+hgetall",
    "+pexpire",
    "+pttl",
    "+time",
    "+get",
    "+set",
    "+exists",
    "+del",
    "+publish",
    "+subscribe",
    "+unsubscribe",
];

fn ttl(ttl: Duration) -> Builder {
    LeaseManager::builder().ttl(ttl)
}

pub fn app() -> Builder {
    LeaseManager::builder().prefix("app:")
}

async fn connect(server: &Server) -> LeaseManager {
    LeaseManager::connect(&server.url()).await.expect("a manager")
}

/// Replaces the user `lease`, whose password is `secret`.
#[track_caller]
pub fn set_user(server: &Server, rules: &[&str]) {
    let mut command = vec!["ACL", "SETUSER", "lease", "reset", "on", ">secret"];
    command.extend(rules);
    assert_eq!(server.command(&command).error(), None);
}

pub fn lease_url(server: &Server) -> String {
    format!("redis://lease:secret@127.0.0.1:{}", server.port())
}

fn keys(server: &Server, pattern: &str) -> Vec<String> {
    let keys = server.command(&["KEYS", pattern]).list();
    keys.into_iter().map(Reply::text).collect()
}

/// All that an error shows of itself.
fn shown(error: &Error) -> String {
    let mut shown = format!("{error} {error:?} {error:#?}");
    let mut source = error.source();
    while let Some(error) = source {
        shown.push_str(&format!(" {error} {error:?}"));
        source = error.source();
    }
    shown
}

#[tokio::test]
async fn wrong_password_is_denied_and_no_secret_is_shown() {
    let trace = Trace::of_all_threads();
    let server = Server::start_with(&["--requirepass", "right-secret-1"]);
    set_user(&server, &["~*", "&*", "+@all"]);
    let port = server.port();
    for (credentials, secret) in [
        ("default:wrong-secret-2@", "wrong-secret-2"),
        (":wrong-secret-3@", "wrong-secret-3"),
        ("lease:wrong-secret-4@", "wrong-secret-4"),
        ("nobody:wrong-secret-5@", "wrong-secret-5"),
        ("", "right-secret-1"),
    ] {
        let start = Instant::now();
        let url = format!("redis://{credentials}127.0.0.1:{port}");
        let error = LeaseManager::connect(&url).await.expect_err("denied");
        assert_eq!(error.kind(), ErrorKind::Denied, "{credentials}: {error}");
        assert_eq!(error.fate(), Fate::NotExecuted, "{credentials}");
        assert!(!shown(&error).contains(secret), "{}", shown(&error));
        // Asking again does not help, nor does it take the 3 s that an answer may.
        assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    }

    let url = server.url_as("default", "right-secret-1", 0);
    let builder = LeaseManager::builder();
    let leases = builder.clone().connect(&url).await.expect("a manager");
    let lease = lock(&leases, "job").await;
    let handles = (leases.lock("job"), leases.holder());
    let debugs = format!("{builder:?} {leases:?} {leases:#?} {handles:?} {lease:?}");
    assert!(!debugs.contains("secret"), "{debugs}");
    lease.unlock().await.expect("a release");
    leases.close().await.expect("nothing to release");

    let bad = LeaseManager::connect("redis://u:secret-6@127.0.0.1:x").await.expect_err("bad");
    assert!(!shown(&bad).contains("secret-6"), "{}", shown(&bad));
    for event in trace.events() {
        let text = format!("{event:?}");
        assert!(!text.contains("secret-"), "{text}");
    }
    assert!(trace.events().iter().any(|event| event.field("name") == "job"), "nothing was traced");
}

#[tokio::test]
async fn failure_to_connect_names_the_address_and_what_to_do() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = closed.local_addr().expect("an address").port();
    drop(closed);
    let web = listener(web);
    let secured = Server::start_with(&["--requirepass", "right"]);
    let listens = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let silent = listens.local_addr().expect("an address").port();
    for (url, kind, address, advice) in [
        (
            format!("redis://127.0.0.1:{port}"),
            ErrorKind::Unavailable,
            format!("127.0.0.1:{port}"),
            "start the server",
        ),
        (
            "redis://no-such-host.invalid:6379".to_owned(),
            ErrorKind::Unavailable,
            "no-such-host.invalid:6379".to_owned(),
            "cannot be resolved",
        ),
        (
            format!("redis://127.0.0.1:{}", web),
            ErrorKind::Unavailable,
            format!("127.0.0.1:{}", web),
            "is it Redis",
        ),
        (
            format!("redis://:wrong-secret@127.0.0.1:{}", secured.port()),
            ErrorKind::Denied,
            format!("127.0.0.1:{}", secured.port()),
            "check those of the URL",
        ),
        (
            "redis+unix:///no/such/socket".to_owned(),
            ErrorKind::Unavailable,
            "/no/such/socket".to_owned(),
            "no such socket",
        ),
        (
            format!("redis-sentinel://127.0.0.1:{port}?sentinelServiceName=m"),
            ErrorKind::Unavailable,
            format!("127.0.0.1:{port}"),
            "start the server",
        ),
        (
            format!("redis-cluster://127.0.0.1:{port}"),
            ErrorKind::Unavailable,
            format!("127.0.0.1:{port}"),
            "start the server",
        ),
        (
            format!("redis://127.0.0.1:{silent}"),
            ErrorKind::Unavailable,
            format!("127.0.0.1:{silent}"),
            "is it up",
        ),
    ] {
        let start = Instant::now();
        let builder = LeaseManager::builder().ttl(Duration::from_secs(3));
        let error = builder.connect(&url).await.expect_err("no server");
        let text = error.to_string();
        println!("{url} in {:.1?}: {text}", start.elapsed());
        assert_eq!(error.kind(), kind, "{url}: {text}");
        assert!(text.contains(&format!("cannot connect to {address}: ")), "{url}: {text}");
        assert!(text.contains(advice), "{url}: {text}");
        assert!(!shown(&error).contains("wrong-secret"), "{text}");
    }
}

#[tokio::test]
async fn missing_right_is_denied_and_named_at_the_start() {
    let server = Server::start();
    for right in [
        "evalsha", "hset", "pexpire", "pttl", "get", "set", "time", "hexists", "exists", "hdel",
        "del",
    ] {
        set_user(&server, &[&MINIMAL[..], &[&format!("-{right}")]].concat());
        let error = app().connect(&lease_url(&server)).await.expect_err(right);
        assert_eq!(error.kind(), ErrorKind::Denied, "{right}: {error}");
        let text = error.to_string().to_lowercase();
        assert!(
            text.contains(&format!("'{right}'")) || text.contains(&format!("+{right}")),
            "{text}"
        );
        let needed_first = ["evalsha", "hset", "pexpire", "pttl", "set", "time"].contains(&right);
        for key in keys(&server, "app:*") {
            let left = server.command(&["PTTL", &key]).int();
            assert!(!needed_first && (1..=5_000).contains(&left), "{right}: {key} {left}");
            server.command(&["DEL", &key]);
        }
    }
}

#[tokio::test]
async fn right_taken_away_later_is_denied_and_leaves_no_key() {
    let server = Server::start();
    for right in ["evalsha", "hset", "pexpire", "pttl", "set", "time"] {
        set_user(&server, &MINIMAL);
        let leases = app().connect(&lease_url(&server)).await.expect("a manager");
        server.command(&["ACL", "SETUSER", "lease", &format!("-{right}")]);
        let start = Instant::now();
        let error = leases.lock("job").lock().await.expect_err(right);
        assert_eq!(error.kind(), ErrorKind::Denied, "{right}: {error}");
        assert!(start.elapsed() < LONG, "{right}: it is of no use to wait");
        let error = leases.lock("job").try_lock().await.expect_err(right);
        assert_eq!(error.kind(), ErrorKind::Denied, "{right}: {error}");
        assert_eq!(keys(&server, "app:*"), [""; 0], "{right}");
    }
}

/// Also when they are known to the server, by an earlier manager, until it forgets them.
#[tokio::test]
async fn eval_refused_fails_whether_the_scripts_are_known() {
    let server = Server::start();
    for known in [false, true] {
        if known {
            set_user(&server, &MINIMAL);
            let leases = app().connect(&lease_url(&server)).await.expect("a manager");
            lock(&leases, "job").await.unlock().await.expect("a release");
            leases.close().await.expect("closed");
        }
        set_user(&server, &[&MINIMAL[..], &["-eval"]].concat());
        let error = app().connect(&lease_url(&server)).await.expect_err("no right");
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(error.to_string().contains("'eval'"), "{error}");
        assert_eq!(keys(&server, "app:*"), [""; 0]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_without_a_right_to_publish_or_subscribe_poll() {
    const BOUND: Duration = millis(200);
    let server = Server::start();
    for rights in [
        &["-publish"][..],
        &["-subscribe"],
        &["-unsubscribe"],
        &["resetchannels"],
        &["-publish", "-subscribe", "-unsubscribe", "resetchannels"],
    ] {
        set_user(&server, &[&MINIMAL[..], rights].concat());
        let builder = app().max_poll_interval(BOUND);
        let leases = builder.clone().connect(&lease_url(&server)).await.expect("a manager");
        let contenders = builder.connect(&lease_url(&server)).await.expect("a manager");
        let lease = lock(&leases, "job").await;
        let mut contender = contenders.lock("job");
        let contender = tokio::spawn(async move { contender.lock().await.expect("a lease") });
        tokio::time::sleep(BOUND * 2).await;
        assert!(!contender.is_finished());
        let start = Instant::now();
        lease.unlock().await.expect("released, though nobody was told");
        let lease = contender.await.expect("no panic");
        // Nothing else would let it in within the time to live.
        assert!(start.elapsed() < LONG, "{rights:?}: {:?}", start.elapsed());
        lease.unlock().await.expect("a release");
        assert_eq!(keys(&server, "app:*"), [""; 0], "{rights:?}");
    }
}

#[tokio::test]
async fn release_that_is_denied_says_so_and_is_made_up_for() {
    let server = Server::start();
    set_user(&server, &MINIMAL);
    let leases = app().connect(&lease_url(&server)).await.expect("a manager");
    let lease = lock(&leases, "job").await;
    let dropped = lock(&leases, "dropped").await;
    server.command(&["ACL", "SETUSER", "lease", "-hdel"]);
    drop(dropped);
    let error = lease.unlock().await.expect_err("denied");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert_eq!(keys(&server, "app:*").len(), 2);
    server.command(&["ACL", "SETUSER", "lease", "+hdel"]);
    // Tried again every 1.5 s, and long before the lease would end.
    eventually(LONG, || keys(&server, "app:*").is_empty()).await;
}

#[tokio::test]
async fn hgetall_refused_denies_only_inspect() {
    let server = Server::start();
    set_user(&server, &[&MINIMAL[..], &["-hgetall"]].concat());
    let leases = app().connect(&lease_url(&server)).await.expect("a manager");
    let lease = lock(&leases, "job").await;
    let error = leases.inspect("job").await.expect_err("denied");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    lease.unlock().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn minimal_permissions_are_enough_for_everything() {
    const T: Duration = millis(1_500);
    let server = Server::start();
    set_user(&server, &MINIMAL);
    let builder = app().ttl(T).fence_retention(Some(T * 2));
    let mut connection = server.connection();
    let leases = builder.clone().connect(&lease_url(&server)).await.expect("a manager");
    let contenders = builder.connect(&lease_url(&server)).await.expect("a manager");
    for name in ["job", "{tag}job"] {
        let mut lock = leases.lock(name);
        let outer = lock.lock().await.expect("a lease");
        let inner = lock.lock().await.expect("a nested lease");
        assert!(outer.fence().is_some());
        assert!(contenders.lock(name).try_lock().await.expect("an answer").is_none());
        let key = format!("app:{name}");
        eventually(LONG, || connection.command(&["HVALS", &key]).list()[0].int() == 2).await;
        let holding = contenders.inspect(name).await.expect("an answer").expect("a holder");
        assert_eq!(holding.hold_count, 2);
        inner.unlock().await.expect("a release");
        let mut contender = contenders.lock(name);
        let contender = tokio::spawn(async move { contender.lock().await.expect("a lease") });
        // It listens to Redisson's channel, which brings braces of its own if the name has none.
        let key = format!("app:{name}");
        let key = if name.contains('{') { key } else { format!("{{{key}}}") };
        let channel = format!("redisson_lock__channel:{key}");
        eventually(LONG, || subscribers(&mut connection, &channel) == 1).await;
        // Renewals, of the fencing token's memory too.
        tokio::time::sleep(T * 2).await;
        outer.check().expect("held");
        assert!(exists(&server, &format!("app:{name}")));
        let start = Instant::now();
        outer.unlock().await.expect("a release");
        let lease = contender.await.expect("no panic");
        assert!(start.elapsed() < T, "{:?}", start.elapsed());

        // Why a lease is lost is seen, too.
        assert!(leases.force_unlock(name, "test").await.expect("an answer"));
        assert_eq!(within(LONG, lease.lost()).await, Loss::Revoked);
        drop(lease);
        let lease = contenders.lock(name).lock().await.expect("a lease");
        server.command(&["DEL", &format!("app:{name}")]);
        let next = leases.lock(name).lock().await.expect("a lease");
        assert_eq!(within(LONG, lease.lost()).await, Loss::Taken);
        drop((lease, next));
        eventually(LONG, || !exists(&server, &format!("app:{name}"))).await;
    }
    server.command(&["SCRIPT", "FLUSH"]);
    server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
    server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    lock(&leases, "job").await.unlock().await.expect("a release");
    leases.close().await.expect("nothing to release");
    contenders.close().await.expect("nothing to release");
    refused_only(&server, &["leasehold_meta:", "pubsub|numsub"]);
}

/// Names with braces need the two that the guide lists apart.
#[test]
fn least_permissions_of_these_tests_are_those_of_the_guide() {
    let braces =
        ["~redisson_lock_token:app:*", "~leasehold_note:app:*", "&redisson_lock__channel:app:*"];
    let mut least = MINIMAL.to_vec();
    least.retain(|word| !braces.contains(word));
    let mut documented = kit::permissions::of_one_server();
    least.sort_unstable();
    documented.sort_unstable();
    assert_eq!(least, documented);
}

#[tokio::test]
async fn url_with_database_0_needs_no_right_to_select() {
    let server = Server::start();
    set_user(&server, &MINIMAL);
    let url = server.url_as("lease", "secret", 0);
    let leases = app().connect(&url).await.expect("it is the database one is in anyway");
    lock(&leases, "job").await.unlock().await.expect("a release");
}

#[tokio::test]
async fn database_needs_the_permission_select_and_the_error_names_it() {
    let server = Server::start();
    set_user(&server, &MINIMAL);
    let url = server.url_as("lease", "secret", 3);
    let error = app().connect(&url).await.expect_err("denied");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("'select'"), "{error}");
    set_user(&server, &[&MINIMAL[..], &["+select"]].concat());
    let leases = app().connect(&url).await.expect("a manager");
    lock(&leases, "job").await.unlock().await.expect("a release");
}

#[tokio::test]
async fn exists_refused_leaves_the_cause_of_a_loss_unknown() {
    let server = Server::start();
    set_user(&server, &MINIMAL);
    let leases = app().ttl(millis(900)).connect(&lease_url(&server)).await.expect("a manager");
    let lease = lock(&leases, "job").await;
    server.command(&["ACL", "SETUSER", "lease", "-exists"]);
    server.command(&["DEL", "app:job"]);
    // It is not known why, so it is tried again until the time is up.
    assert_eq!(within(LONG, lease.lost()).await, Loss::Expired);
    drop(lease);
}

#[tokio::test]
async fn user_of_a_prefix_cannot_lock_beyond_it() {
    let trace = Trace::of_all_threads();
    let server = Server::start();
    set_user(&server, &MINIMAL);
    // Without the prefix, the try-out's key is out of reach too, which proves nothing.
    let leases = LeaseManager::connect(&lease_url(&server)).await.expect("a manager");
    // A prefix that the user may not touch shows in the log.
    let warns =
        |event: &Traced| event.level == Level::WARN && event.message().contains("leasehold-probe:");
    eventually(LONG, || !trace.matching(warns).is_empty()).await;
    let error = leases.lock("job").lock().await.expect_err("out of reach");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    let lease = lock(&leases, "app:job").await;
    lease.unlock().await.expect("a release");
    assert_eq!(keys(&server, "job"), [""; 0]);
    // The permission for the fence's key is missing.
    set_user(&server, &[&MINIMAL[..], &["resetkeys", "~app:*"]].concat());
    let error = leases.lock("app:job").lock().await.expect_err("out of reach");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert_eq!(keys(&server, "app:*"), [""; 0]);
}

/// Many leases are renewed by one call, which the server refuses as a whole for the sake of one key.
#[tokio::test]
async fn key_that_is_put_out_of_reach_costs_no_other_lease() {
    const T: Duration = millis(1_500);
    let server = Server::start();
    set_user(&server, &["~*", "&*", "+@all"]);
    let leases = ttl(T).connect(&lease_url(&server)).await.expect("a manager");
    let mut kept = Vec::new();
    for i in 0..5 {
        kept.push(lock(&leases, &format!("kept:{i}")).await);
    }
    let taken = lock(&leases, "taken").await;
    let changed = Instant::now();
    server.command(&["ACL", "SETUSER", "lease", "resetkeys", "~*kept*"]);
    assert_eq!(within(LONG, taken.lost()).await, Loss::Expired);
    while changed.elapsed() < T * 3 {
        kept.iter().for_each(|lease| lease.check().expect("within its rights"));
        tokio::time::sleep(T / 20).await;
    }
    for lease in kept {
        lease.unlock().await.expect("a release");
    }
}

/// The call for all names is refused as a whole, and the server does not tell for which.
#[tokio::test]
async fn set_with_a_key_out_of_reach_names_it() {
    let server = Server::start();
    set_user(&server, &["~*kept*", "~leasehold-probe*", "&*", "+@all"]);
    let leases = LeaseManager::connect(&lease_url(&server)).await.expect("a manager");
    for names in [["kept:1", "taken"], ["kept:1", "a:taken"]] {
        let mut set = leases.multi_lock(names).expect("good names");
        let error = set.lock().await.expect_err("out of reach");
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(error.to_string().contains(names[1]), "{error}");
        eventually(LONG, || !exists(&server, "kept:1")).await;
    }
    let mut set = leases.multi_lock(["kept:1", "kept:2"]).expect("good names");
    set.lock().await.expect("granted").unlock().await.expect("held");
}

/// The fencing token of the second name cannot grow, which is found when the first one is taken already.
#[tokio::test]
async fn set_that_fails_half_way_leaves_no_name() {
    let server = Server::start();
    let leases = connect(&server).await;
    for bad in ["a", "b", "c"] {
        let key = fence_key(bad);
        server.command(&["SET", &key, "text"]);
        let mut set = leases.multi_lock(["a", "b", "c"]).expect("good names");
        for error in
            [set.try_lock().await.expect_err("no token"), set.lock().await.expect_err("no token")]
        {
            assert_eq!(error.kind(), ErrorKind::WrongType, "{error}");
            assert!(error.to_string().contains(&format!("\"{bad}\"")), "{error}");
        }
        assert_eq!(server.command(&["EXISTS", "a", "b", "c"]).int(), 0);
        server.command(&["DEL", &key]);
        set.lock().await.expect("granted").unlock().await.expect("held");
    }
}

#[tokio::test]
async fn key_of_another_type_is_left_alone() {
    let server = Server::start();
    let leases = connect(&server).await;
    let table: [(&str, &[&str]); 5] = [
        ("string", &["SET", "string", "x"]),
        ("list", &["RPUSH", "list", "x"]),
        ("set", &["SADD", "set", "x"]),
        ("zset", &["ZADD", "zset", "1", "x"]),
        ("stream", &["XADD", "stream", "*", "x", "1"]),
    ];
    for (name, command) in table {
        server.command(command);
        let before = server.command(&["DUMP", name]);
        let start = Instant::now();
        for error in [
            leases.lock(name).lock().await.expect_err(name),
            leases.lock(name).try_lock().await.expect_err(name),
            leases.lock(name).lock_timeout(LONG).await.expect_err(name),
            leases.inspect(name).await.expect_err(name),
            leases.force_unlock(name, "test").await.expect_err(name),
        ] {
            assert_eq!(error.kind(), ErrorKind::WrongType, "{name}: {error}");
            assert_eq!(error.fate(), Fate::NotExecuted, "{name}: {error}");
        }
        assert!(start.elapsed() < LONG, "nothing is waited for: {:?}", start.elapsed());
        assert_eq!(server.command(&["DUMP", name]), before);
        assert_eq!(server.command(&["PTTL", name]), Reply::Int(-1));
        assert!(!exists(&server, &fence_key(name)));
    }
}

#[tokio::test]
async fn fence_key_that_holds_no_number_is_left_alone() {
    let server = Server::start();
    let leases = connect(&server).await;
    let key = fence_key("job");
    let table: [&[&str]; 8] = [
        &["RPUSH", &key, "x"],
        &["HSET", &key, "x", "1"],
        &["SET", &key, "somebody's"],
        &["SET", &key, ""],
        &["SET", &key, "12 apples"],
        &["SET", &key, "nan"],
        &["SET", &key, "inf"],
        &["SET", &key, "1e300"],
    ];
    for command in table {
        server.command(&["DEL", &key]);
        server.command(command);
        let before = server.command(&["DUMP", &key]);
        let error = leases.lock("job").lock().await.err();
        let kind = error.as_ref().map(Error::kind);
        assert_eq!(kind, Some(ErrorKind::WrongType), "{command:?}: {error:?}");
        assert!(!exists(&server, "job"), "{command:?}");
        assert_eq!(server.command(&["DUMP", &key]), before, "{command:?}");
    }
    // Odd numbers are numbers.
    for text in ["-5", "0", "1.5", "7"] {
        server.command(&["SET", &key, text]);
        let lease = lock(&leases, "job").await;
        assert!(lease.fence().is_some_and(|fence| fence > 1_500_000_000_000_000), "{text}");
        lease.unlock().await.expect("a release");
    }
}

#[tokio::test]
async fn fence_too_large_to_be_counted_on_is_refused_or_grows() {
    let server = Server::start();
    let leases = connect(&server).await;
    for last in [(1u64 << 53) - 2, (1 << 53) - 1, 1 << 53, (1 << 53) + 1, 1 << 60] {
        server.command(&["SET", &fence_key("job"), &last.to_string()]);
        for _ in 0..3 {
            match leases.lock("job").lock().await {
                Ok(lease) => {
                    let fence = lease.fence().expect("a fencing token");
                    assert!(fence > last, "{fence} after {last}");
                    lease.unlock().await.expect("a release");
                }
                Err(error) => {
                    assert_ne!(error.kind(), ErrorKind::Unavailable, "{last}: {error}");
                    assert!(!exists(&server, "job"), "{last}");
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_without_memory_rejects_locks_and_renews_leases() {
    const T: Duration = millis(3_000);
    let server = Server::start();
    let leases = ttl(T).connect(&server.url()).await.expect("a manager");
    let mut held = leases.lock("held");
    let outer = held.lock().await.expect("a lease");
    let inner = held.lock().await.expect("a nested lease");
    let other = lock(&leases, "other").await;
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);

    let start = Instant::now();
    let error = leases.lock("job").lock().await.expect_err("no memory");
    assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
    assert!(start.elapsed() < T, "it is of no use to wait");
    let error = leases.lock("job").try_lock().await.expect_err("no memory");
    assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
    assert!(!exists(&server, "job"));
    // No client can connect again either.
    let error = LeaseManager::connect(&server.url()).await.expect_err("no memory");
    assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");

    // Renewed for longer than the time to live, and never at risk.
    let start = Instant::now();
    while start.elapsed() < T * 3 / 2 {
        assert_eq!(outer.state(), LeaseState::Held);
        tokio::time::sleep(millis(10)).await;
    }
    // Entered again, and left: the count is only a record.
    let third = held.lock().await.expect("a nested lease");
    assert_eq!(third.hold_count(), 3);
    third.unlock().await.expect("a refused record is no error");
    inner.unlock().await.expect("a refused record is no error");
    assert_eq!(outer.hold_count(), 1);
    assert_eq!(outer.state(), LeaseState::Held);
    outer.unlock().await.expect("a release");
    other.unlock().await.expect("a release");
    assert!(!exists(&server, "held") && !exists(&server, "other"));
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    lock(&leases, "job").await.unlock().await.expect("a release");
}

#[tokio::test]
async fn server_that_takes_no_writes_rejects_locks() {
    let server = Server::start();
    let table: [[&[&str]; 2]; 2] = [
        [&["REPLICAOF", "127.0.0.1", "1"], &["REPLICAOF", "NO", "ONE"]],
        [
            &["CONFIG", "SET", "min-replicas-to-write", "1"],
            &["CONFIG", "SET", "min-replicas-to-write", "0"],
        ],
    ];
    for [harm, heal] in table {
        let leases = connect(&server).await;
        server.command(harm);
        let start = Instant::now();
        let error = leases.lock("job").lock().await.expect_err("no writes");
        assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
        assert!(harm[0] == "CONFIG" || error.fate() == Fate::NotExecuted, "{error}");
        assert!(start.elapsed() < LONG, "it is of no use to wait: {:?}", start.elapsed());
        let error = LeaseManager::connect(&server.url()).await.expect_err("no writes");
        assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
        server.command(heal);
        lock(&leases, "job").await.unlock().await.expect("a release");
    }
}

#[tokio::test]
async fn replica_without_its_master_is_waited_for() {
    let server = Server::start_with(&["--replica-serve-stale-data", "no"]);
    let leases = connect(&server).await;
    server.command(&["REPLICAOF", "127.0.0.1", "1"]);
    let error = leases.lock("job").try_lock().await.expect_err("no master");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(error.fate(), Fate::NotExecuted, "{error}");
    let mut waiter = leases.lock("job");
    let waiter = tokio::spawn(async move { waiter.lock().await });
    tokio::time::sleep(millis(200)).await;
    assert!(!waiter.is_finished());
    server.command(&["REPLICAOF", "NO", "ONE"]);
    let lease = waiter.await.expect("no panic").expect("a lease");
    lease.unlock().await.expect("a release");
}

#[tokio::test]
async fn loading_server_is_waited_for() {
    // Half a millisecond for each key.
    let server = Server::start_with(&[
        "--key-load-delay",
        "500",
        "--loading-process-events-interval-bytes",
        "1024",
    ]);
    let leases = connect(&server).await;
    let fill = "for i = 1, 2000 do redis.call('SET', 'filler:' .. i, string.rep('x', 100)) end";
    server.command(&["EVAL", fill, "0"]);
    server.command(&["SAVE"]);
    server.restart();
    let loading = server.command(&["GET", "x"]);
    assert!(loading.error().is_some_and(|text| text.starts_with("LOADING")), "{loading:?}");
    let error = LeaseManager::connect(&server.url()).await.expect_err("it is loading");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let lease = lock(&leases, "job").await;
    assert_eq!(server.command(&["EXISTS", "filler:2000"]), Reply::Int(1));
    lease.unlock().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn busy_server_is_waited_for_and_costs_no_lease() {
    const T: Duration = millis(3_000);
    let server = Server::start_with(&["--busy-reply-threshold", "20"]);
    let leases = ttl(T).connect(&server.url()).await.expect("a manager");
    let lease = lock(&leases, "held").await;
    let mut endless = server.connection();
    endless.send(&["EVAL", "while true do end", "0"]).expect("sent");
    let mut connection = server.connection();
    let mut busy = || connection.command(&["PING"]).error().is_some();
    eventually(LONG, &mut busy).await;
    let mut waiter = leases.lock("job");
    let waiter = tokio::spawn(async move { waiter.lock().await });
    eventually(LONG, || lease.state() == LeaseState::AtRisk).await;
    assert!(!waiter.is_finished());
    assert_eq!(connection.command(&["SCRIPT", "KILL"]).error(), None);
    waiter.await.expect("no panic").expect("a lease").unlock().await.expect("a release");
    eventually(LONG, || lease.state() == LeaseState::Held).await;
    lease.unlock().await.expect("a release");
}

/// A web server on a port that is taken for that of Redis.
fn web(mut stream: std::net::TcpStream) {
    let mut request = [0; 1024];
    while let Ok(1..) = stream.read(&mut request) {
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
    }
}

/// A listener that does `serve` with each connection; returns its port.
fn listener(serve: fn(std::net::TcpStream)) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || serve(stream));
        }
    });
    port
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_that_is_not_redis_fails_in_bounded_time() {
    let noise = listener(|mut stream| {
        let _ = stream.write_all(&[0, 255, 7, 13, 10, 1, 2, 3]);
        let _ = stream.read(&mut [0; 1024]);
    });
    let closing = listener(drop);
    let numbers = listener(|mut stream| {
        let mut request = [0; 1024];
        while let Ok(1..) = stream.read(&mut request) {
            let _ = stream.write_all(b":7\r\n");
        }
    });
    let silent = listener(|mut stream| {
        let mut request = [0; 1024];
        while let Ok(1..) = stream.read(&mut request) {}
    });
    for (what, port) in [
        ("http", listener(web)),
        ("noise", noise),
        ("closing", closing),
        ("numbers", numbers),
        ("silent", silent),
    ] {
        for credentials in ["", "user:secret@"] {
            let url = format!("redis://{credentials}127.0.0.1:{port}");
            let start = Instant::now();
            let error = ttl(Duration::from_secs(1)).connect(&url).await.expect_err(what);
            let expected = [ErrorKind::Unavailable, ErrorKind::Protocol];
            assert!(expected.contains(&error.kind()), "{what} {credentials}: {error:?}");
            assert!(start.elapsed() < LONG, "{what}: {:?}", start.elapsed());
        }
    }
}

#[tokio::test]
async fn database_that_the_server_has_not_is_refused() {
    let server = Server::start();
    let error = LeaseManager::connect(&format!("{}/200", server.url()))
        .await
        .expect_err("the server has 16");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}

#[tokio::test]
async fn url_that_makes_no_sense_is_invalid_and_says_what_would() {
    for (url, hint) in [
        ("localhost:6379", "redis://"),
        ("", "redis://"),
        ("http://localhost", "redis"),
        ("redis://", "redis://host:6379"),
        ("redis://host:99999", "redis://user:password@host:6379/0"),
        ("redis://localhost/x", "0 to 255"),
        ("redis://localhost?db=3", "path"),
        ("redis+unix://", "redis+unix:///path"),
    ] {
        let error = LeaseManager::connect(url).await.expect_err(url);
        assert_eq!(error.kind(), ErrorKind::Invalid, "{url}: {error}");
        assert!(error.to_string().contains(hint), "{url}: {error}");
    }
}

#[tokio::test]
async fn odd_names_are_names() {
    let server = Server::start();
    let leases = connect(&server).await;
    let long = "x".repeat(512);
    for name in ["a b", "naïve ☕", "tab\tnew\nline", "nul\0byte", "'quo\"ted", "*", &long] {
        let lease = lock(&leases, name).await;
        assert!(exists(&server, name), "{name:?}");
        let holding = leases.inspect(name).await.expect("an answer");
        assert!(holding.is_some(), "{name:?}");
        lease.unlock().await.expect("a release");
        assert!(!exists(&server, name), "{name:?}");
    }
}

#[tokio::test]
async fn full_server_is_unavailable() {
    let server = Server::start();
    let mut connection = server.connection();
    for (room, dedicated_thread) in
        [("1", true), ("2", true), ("3", true), ("2", false), ("3", false)]
    {
        connection.command(&["CONFIG", "SET", "maxclients", room]);
        let start = Instant::now();
        let builder = LeaseManager::builder().dedicated_thread(dedicated_thread);
        let error = builder.connect(&server.url()).await.expect_err("no room");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{room}: {error}");
        assert!(start.elapsed() < LONG, "{:?}", start.elapsed());
        // What was connected is given up.
        eventually(LONG, || others(&mut connection) == 0).await;
    }
    connection.command(&["CONFIG", "SET", "maxclients", "100"]);
    let leases = connect(&server).await;
    lock(&leases, "job").await.unlock().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn password_changed_for_a_while_costs_only_the_connection() {
    const T: Duration = millis(1_000);
    let server = Server::start();
    set_user(&server, &["~*", "&*", "+@all"]);
    let leases = ttl(T).connect(&lease_url(&server)).await.expect("a manager");
    let lease = lock(&leases, "job").await;
    server.command(&["ACL", "SETUSER", "lease", "resetpass", ">other"]);
    server.command(&["CLIENT", "KILL", "USER", "lease"]);
    assert_eq!(within(LONG, lease.lost()).await, Loss::Expired);
    drop(lease);
    let error = leases.lock("job").lock().await.expect_err("no connection");
    assert_eq!((error.kind(), error.fate()), (ErrorKind::Denied, Fate::NotExecuted), "{error}");
    assert!(!shown(&error).contains("secret"), "{}", shown(&error));
    // After it is corrected, all is well.
    server.command(&["ACL", "SETUSER", "lease", "resetpass", ">secret"]);
    let start = Instant::now();
    let lease = loop {
        match leases.lock("job").lock().await {
            Ok(lease) => break lease,
            Err(error) => assert!(start.elapsed() < LONG, "{error}"),
        }
    };
    tokio::time::sleep(T).await;
    lease.check().expect("renewals work again, too");
    let mut waiter = leases.lock("java");
    server.command(&["HSET", "java", JAVA, "1"]);
    let waiter = tokio::spawn(async move { waiter.lock().await });
    let mut connection = server.connection();
    eventually(LONG, || subscribers(&mut connection, &channel("java")) == 1).await;
    server.command(&["DEL", "java"]);
    waiter.await.expect("no panic").expect("a lease").unlock().await.expect("a release");
    lease.unlock().await.expect("a release");
}

/// A server that no longer accepts the credentials reports that at the next connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credentials_refused_at_a_reconnect_are_denied_until_right() {
    const KILL: &[&str] = &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"];
    type Commands = &'static [&'static [&'static str]];
    let wrong: [(&str, Commands, Commands, &str); 4] = [
        (
            "lease:secret@",
            &[&["ACL", "SETUSER", "lease", "resetpass", ">other"], KILL],
            &[&["ACL", "SETUSER", "lease", "resetpass", ">secret"]],
            "WRONGPASS",
        ),
        (
            "lease:secret@",
            &[&["ACL", "DELUSER", "lease"]],
            &[&["ACL", "SETUSER", "lease", "on", ">secret", "~*", "&*", "+@all"]],
            "WRONGPASS",
        ),
        (
            "lease:secret@",
            &[&["ACL", "SETUSER", "lease", "off"], KILL],
            &[&["ACL", "SETUSER", "lease", "on"]],
            "WRONGPASS",
        ),
        (
            "",
            &[&["CONFIG", "SET", "requirepass", "secret"], KILL],
            &[&["CONFIG", "SET", "requirepass", ""]],
            "NOAUTH",
        ),
    ];
    for (credentials, begin, end, word) in wrong {
        let server = Server::start();
        set_user(&server, &["~*", "&*", "+@all"]);
        let url = format!("redis://{credentials}127.0.0.1:{}", server.port());
        let leases = ttl(millis(10_000)).connect(&url).await.expect("a manager");
        lock(&leases, "job").await.unlock().await.expect("a release");
        let mut operator = server.connection();
        for command in begin {
            assert_eq!(operator.command(command).error(), None, "{command:?}");
        }
        let error = leases.lock("job").lock().await.expect_err("refused");
        // The first request may have left on the connection that was closed.
        let fates = [Fate::NotExecuted, Fate::Unknown];
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(fates.contains(&error.fate()), "{error}");
        assert!(error.to_string().contains(word), "{begin:?}: {error}");
        assert!(!shown(&error).contains("secret"), "{}", shown(&error));
        // Many callers that ask at once also get the error in the time of one.
        let asked: Vec<_> = (0..1000).map(|at| leases.lock(format!("job:{at}"))).collect();
        let mut asked: JoinSet<_> =
            asked.into_iter().map(|mut lock| async move { lock.try_lock().await }).collect();
        while let Some(verdict) = asked.join_next().await {
            let error = verdict.expect("no panic").expect_err("refused");
            assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        }
        for command in end {
            assert_eq!(operator.command(command).error(), None, "{command:?}");
        }
        let start = Instant::now();
        let lease = loop {
            match leases.lock("job").lock().await {
                Ok(lease) => break lease,
                Err(error) => assert!(start.elapsed() < LONG, "{error}"),
            }
        };
        lease.unlock().await.expect("a release");
        // A server that is away is not a refusal, whatever the error before was.
        server.kill();
        let error = leases.lock("job").try_lock().await.expect_err("nobody there");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_in_mid_handshake_is_unavailable() {
    let server = Server::start_with(&["--requirepass", "secret"]);
    let proxy = Proxy::start(server.port());
    proxy.drop_reply_of(1, "AUTH");
    let url = format!("redis://:secret@127.0.0.1:{}", proxy.port());
    match LeaseManager::connect(&url).await {
        // The client may have tried again by itself.
        Ok(leases) => drop(lock(&leases, "job").await),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}"),
    }
    assert_eq!(proxy.dropped(), 1);
    let _ = Resp::connect(proxy.port());
}
