//! Credentials that change while a manager runs.

use super::{lock, millis};
use kit::reached::Must;
use kit::trace::Trace;
use kit::{Cluster, Mode, Proxy, Sentinels, Server, eventually, in_line, look, within};
use leasehold::store::{ConnectOptions, MemoryStore, RedisStore};
use leasehold::{
    Builder, Credentials, CredentialsRequest, Error, ErrorKind, Lease, LeaseManager, PasswordFile,
};
use std::collections::BTreeSet;
use std::fs;
use std::future::pending;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

const LONG: Duration = Duration::from_secs(60);
const T: Duration = Duration::from_secs(4);
/// Where no connection may be lost: a request that has no answer for a tenth of it costs the connection, and a busy machine may
/// stand still for the 400 ms that this is with [`T`].
const PATIENT: Duration = Duration::from_secs(10);
/// How many leases one socket cannot take the renewals of: some 4 MB.
const MANY: usize = 2_500;

/// What the provider does.
#[derive(Clone, Debug, PartialEq)]
enum Does {
    Returns(String),
    Fails,
    Hangs,
    /// Keeps its thread.
    Blocks,
    Panics,
}

/// A provider in the hand of a test.
#[derive(Clone)]
struct Vault {
    does: Arc<Mutex<Does>>,
    user: Arc<Mutex<&'static str>>,
    valid_for: Option<Duration>,
    delay: Duration,
    asked: Arc<Mutex<Vec<CredentialsRequest>>>,
}

impl Vault {
    fn new(password: &str) -> Self {
        Self {
            does: Arc::new(Mutex::new(Does::Returns(password.to_owned()))),
            user: Arc::new(Mutex::new("lease")),
            valid_for: None,
            delay: Duration::ZERO,
            asked: Arc::default(),
        }
    }

    /// Returns how often it was asked before.
    fn set(&self, does: Does) -> usize {
        let asked = self.asked.lock().expect("no panic");
        *self.does.lock().expect("no panic") = does;
        asked.len()
    }

    fn returns(&self, password: &str) {
        self.set(Does::Returns(password.to_owned()));
    }

    fn asked(&self) -> Vec<CredentialsRequest> {
        self.asked.lock().expect("no panic").clone()
    }

    async fn answer(self, request: CredentialsRequest) -> Result<Credentials, String> {
        let does = {
            let mut asked = self.asked.lock().expect("no panic");
            asked.push(request.clone());
            self.does.lock().expect("no panic").clone()
        };
        sleep(self.delay).await;
        if request.is_sentinel() {
            let credentials = Credentials::password("hunter-of-sentinels").user("watcher");
            return Ok(credentials.valid_for(Duration::from_secs(1)));
        }
        let password = match does {
            Does::Returns(password) => password,
            Does::Fails => return Err("no token today".to_owned()),
            Does::Hangs => pending().await,
            Does::Blocks => {
                while *self.does.lock().expect("no panic") == Does::Blocks {
                    thread::sleep(millis(10));
                }
                return Err("it was blocked".to_owned());
            }
            Does::Panics => panic!("on purpose"),
        };
        let credentials =
            Credentials::password(password).user(*self.user.lock().expect("no panic"));
        Ok(match self.valid_for {
            Some(time) => credentials.valid_for(time),
            None => credentials,
        })
    }

    fn builder(&self) -> Builder {
        let vault = self.clone();
        let ask = move |request| vault.clone().answer(request);
        LeaseManager::builder().ttl(T).credentials(ask)
    }
}

fn set_user(server: &Server, password: &str) {
    let words = ["ACL", "SETUSER", "lease", "on", password, "~*", "&*", "+@all"];
    assert_eq!(server.command(&words).error(), None);
}

fn kill_user(server: &Server) {
    server.command(&["CLIENT", "KILL", "USER", "lease"]);
}

/// The ids of the connections of the manager, of those that are subscribed or of the others.
fn connections(server: &Server, subscribed: bool) -> BTreeSet<String> {
    connections_of(server, "lease", subscribed)
}

fn connections_of(server: &Server, user: &str, subscribed: bool) -> BTreeSet<String> {
    let list = server.command(&["CLIENT", "LIST"]).text();
    let ours = list.lines().filter(|line| line.contains(&format!(" user={user} ")));
    let ours = ours.filter(|line| line.contains(" sub=0 ") != subscribed);
    ours.map(|line| line.split(' ').next().unwrap_or_default().to_owned()).collect()
}

/// Locks and unlocks names all the time, and collects the errors.
struct Load {
    task: JoinHandle<Vec<Error>>,
    rounds: Arc<AtomicU64>,
    end: Arc<AtomicBool>,
}

impl Load {
    fn start(leases: &LeaseManager) -> Self {
        let (end, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let task = {
            let (leases, end, rounds) = (leases.clone(), Arc::clone(&end), Arc::clone(&rounds));
            tokio::spawn(async move {
                let mut errors = Vec::new();
                while !end.load(Ordering::Relaxed) {
                    let round = rounds.fetch_add(1, Ordering::Relaxed);
                    let mut lock = leases.lock(format!("load:{}", round % 16));
                    match lock.lock().await {
                        Ok(lease) => errors.extend(lease.unlock().await.err()),
                        Err(error) => errors.push(error),
                    }
                    sleep(millis(1)).await;
                }
                errors
            })
        };
        Self { task, rounds, end }
    }

    async fn goes_on(&self) {
        let rounds = self.rounds.load(Ordering::Relaxed);
        eventually(LONG, || self.rounds.load(Ordering::Relaxed) > rounds + 20).await;
    }

    async fn end(self) -> Vec<Error> {
        self.end.store(true, Ordering::Relaxed);
        self.task.await.expect("no panic")
    }

    async fn end_without_errors(self, promise: &str) {
        let errors = self.end().await;
        assert!(errors.is_empty(), "{promise}: {errors:?}");
    }
}

/// A manager that reaches its server through a proxy.
struct Proxied {
    server: Server,
    vault: Vault,
    proxy: Proxy,
    leases: LeaseManager,
}

impl Proxied {
    /// Starts a server whose user has a password that the vault returns.
    async fn start(valid_for: Duration) -> Self {
        let server = Server::start();
        set_user(&server, ">hunter0");
        let vault = Vault { valid_for: Some(valid_for), ..Vault::new("hunter0") };
        let proxy = Proxy::start(server.port());
        let leases = vault.builder().ttl(PATIENT).connect(proxy.url()).await.expect("a manager");
        Self { server, vault, proxy, leases }
    }
}

#[track_caller]
fn is_held(lease: &Lease) {
    lease.check().expect("held");
}

async fn locks_in_the_end(leases: &LeaseManager, name: &str) {
    within(LONG, async {
        loop {
            match leases.lock(name).lock().await {
                Ok(lease) => return drop(lease.unlock().await),
                Err(_) => sleep(millis(20)).await,
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn password_that_changes_under_load_costs_no_lease() {
    let server = Server::start();
    set_user(&server, ">hunter0");
    let vault = Vault::new("hunter0");
    let leases = vault.builder().connect(server.url()).await.expect("a manager");
    let held = lock(&leases, "held").await;
    let load = Load::start(&leases);
    let start = Instant::now();
    for round in 1..=6 {
        // As a rotation does it: both are valid for a moment, then the old one is revoked.
        let (old, new) = (format!("<hunter{}", round - 1), format!("hunter{round}"));
        set_user(&server, &format!(">{new}"));
        vault.returns(&new);
        set_user(&server, &old);
        kill_user(&server);
        load.goes_on().await;
        sleep(T / 3).await;
        is_held(&held);
    }
    assert!(start.elapsed() > T);
    for error in load.end().await {
        // A request whose connection was cut.
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    held.unlock().await.expect("held to its end");
    leases.close().await.expect("closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_in_use_authenticates_before_credentials_lapse() {
    let Proxied { server, vault, proxy, leases } = Proxied::start(Duration::from_secs(2)).await;
    let held = lock(&leases, "held").await;
    let load = Load::start(&leases);
    eventually(LONG, || connections(&server, true).len() == 1).await;
    let (requests, subscribed) = (connections(&server, false), connections(&server, true));
    assert!(requests.len() >= 2, "{requests:?}");
    for round in 1..=3 {
        let new = format!("hunter{round}");
        set_user(&server, &format!(">{new}"));
        vault.returns(&new);
        let (logins, asked) = (proxy.count("AUTH"), vault.asked().len());
        eventually(LONG, || proxy.count("AUTH") >= logins + 6).await;
        // A call at a time, whose result connections may share.
        assert!(vault.asked().len() > asked);
        set_user(&server, &format!("<hunter{}", round - 1));
    }
    // The server shows as whom: each of the same connections becomes another user.
    assert!(connections(&server, false).is_superset(&requests), "they are the same connections");
    server.command(&["ACL", "SETUSER", "heir", "on", ">hunter3", "~*", "&*", "+@all"]);
    *vault.user.lock().expect("no panic") = "heir";
    eventually(LONG, || connections_of(&server, "heir", false).is_superset(&requests)).await;
    // One that is subscribed has another one in its place, and hears of a release.
    let now = || connections_of(&server, "heir", true);
    eventually(LONG, || now().len() == 1 && now().is_disjoint(&subscribed)).await;
    let other = LeaseManager::connect(server.url()).await.expect("a manager");
    let theirs = lock(&other, "theirs").await;
    let waiting = in_line({
        let leases = leases.clone();
        async move { drop(lock(&leases, "theirs").await) }
    });
    let (channel, mut look) = (look::channel("theirs"), server.connection());
    eventually(LONG, || look::subscribers(&mut look, &channel) == 1).await;
    theirs.unlock().await.expect("released");
    within(LONG, waiting).await.expect("woken");
    load.end_without_errors("nothing in flight has failed").await;
    held.unlock().await.expect("held to its end");
    leases.close().await.expect("closed");
    other.close().await.expect("closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn login_that_is_refused_keeps_the_connection_in_use() {
    let trace = Trace::of_all_threads();
    let Proxied { server, vault, proxy, leases } = Proxied::start(Duration::from_secs(2)).await;
    let held = lock(&leases, "held").await;
    let load = Load::start(&leases);
    // The old one is revoked before there is a new one.
    set_user(&server, "<hunter0");
    let logins = proxy.count("AUTH");
    eventually(LONG, || proxy.count("AUTH") >= logins + 6).await;
    sleep(PATIENT).await;
    is_held(&held);
    load.end_without_errors("the server keeps to the login before").await;
    let port = proxy.port().to_string();
    let of_login = |event: &kit::trace::Traced| {
        event.field("server").ends_with(&port) && event.message().contains("cannot authenticate")
    };
    eventually(LONG, || !trace.matching(of_login).is_empty()).await;
    let lines = trace.matching(of_login);
    assert!(lines.len() <= 2, "one a minute: {lines:?}");
    assert!(lines[0].field("cause").contains("what the credentials provider returns"), "{lines:?}");
    // A new connection is refused at once, and named.
    kill_user(&server);
    let error = within(LONG, async {
        loop {
            match leases.lock("other").try_lock().await {
                Err(error) if error.kind() == ErrorKind::Unavailable => {}
                other => return other.expect_err("no login"),
            }
        }
    })
    .await;
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("what the credentials provider returns"), "{error}");
    set_user(&server, ">hunter1");
    vault.returns("hunter1");
    locks_in_the_end(&leases, "other").await;
    leases.close().await.expect("closed");
    drop(held);
    let shown = format!("{:?} {:?} {error:?} {leases:?}", trace.matching(|_| true), trace.spans());
    assert!(!shown.contains("hunter"), "a secret is shown");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn provider_that_is_broken_delays_nothing_that_works() {
    let server = Server::start();
    set_user(&server, ">hunter0");
    for (does, says) in [
        (Does::Fails, "the credentials provider failed: no token today"),
        (Does::Hangs, "the credentials provider did not return within 750ms"),
        (Does::Panics, "the credentials provider panicked"),
        (Does::Blocks, "the credentials provider did not return within 750ms"),
    ] {
        let vault = Vault { valid_for: Some(Duration::from_secs(1)), ..Vault::new("hunter0") };
        let leases = vault.builder().ttl(PATIENT).connect(server.url()).await.expect("a manager");
        let held = lock(&leases, "held").await;
        let requests = connections(&server, false);
        let asked = vault.set(does.clone());
        eventually(LONG, || vault.asked().len() > asked).await;
        let load = Load::start(&leases);
        let start = Instant::now();
        while start.elapsed() < PATIENT + PATIENT / 4 {
            load.goes_on().await;
            is_held(&held);
        }
        load.end_without_errors(&format!("{does:?}")).await;
        assert!(connections(&server, false).is_superset(&requests), "{does:?}");
        // Without a connection, the error names the provider. It is an outage, not a refusal.
        kill_user(&server);
        within(LONG, async {
            loop {
                let error = leases.lock("other").try_lock().await.expect_err("no connection");
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                if error.to_string().contains(says) {
                    break;
                }
            }
        })
        .await;
        vault.returns("hunter0");
        locks_in_the_end(&leases, "other").await;
        drop(held);
        leases.close().await.expect("closed");
    }
}

/// A server that stands still for a moment costs the connection for requests, and no lease: that for renewals goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_outlive_a_silence_while_the_provider_is_broken() {
    let _reached = Must::reach("RedisSilenceOutlived");
    let Proxied { server, vault, proxy, leases } = Proxied::start(PATIENT * 100).await;
    let held = lock(&leases, "held").await;
    for does in [Does::Fails, Does::Hangs, Does::Panics] {
        let before = connections(&server, false);
        vault.set(does.clone());
        proxy.set(Mode::HoldReplies);
        // That for requests is given up.
        leases.lock("silent").try_lock().await.expect_err("no answer");
        // A renewal is sent meanwhile, and has no answer for an attempt.
        sleep(PATIENT / 2).await;
        proxy.set(Mode::Pass);
        eventually(LONG, || held.remaining() > PATIENT * 3 / 4).await;
        let after = connections(&server, false);
        assert_eq!(after.intersection(&before).count(), 1, "{does:?}: {before:?}, {after:?}");
        vault.returns("hunter0");
        locks_in_the_end(&leases, "other").await;
    }
    // With credentials, each connection that is silent is replaced.
    let before = connections(&server, false);
    proxy.set(Mode::HoldReplies);
    leases.lock("silent").try_lock().await.expect_err("no answer");
    sleep(PATIENT / 2).await;
    proxy.set(Mode::Pass);
    locks_in_the_end(&leases, "other").await;
    eventually(LONG, || connections(&server, false).is_disjoint(&before)).await;
    is_held(&held);
    drop(held);
    leases.close().await.expect("closed");
}

/// What was sent on a silent connection does not arrive later, whatever the provider does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_without_an_answer_does_not_run_once_the_link_is_back() {
    let Proxied { server, vault, proxy, leases } = Proxied::start(T * 100).await;
    let url = format!("redis://lease:hunter0@127.0.0.1:{}", server.port());
    let other = LeaseManager::connect(&url).await.expect("a manager");
    vault.set(Does::Fails);
    proxy.freeze();
    let mut free = leases.lock("free");
    let (forced, locked) = tokio::join!(leases.force_unlock("job", "a test"), free.try_lock());
    for error in [forced.expect_err("no answer"), locked.expect_err("no answer")] {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    let job = lock(&other, "job").await;
    // Long enough for a connection that is given up.
    sleep(PATIENT / 10 * 4).await;
    proxy.thaw();
    vault.returns("hunter0");
    locks_in_the_end(&leases, "later").await;
    sleep(PATIENT / 10).await;
    is_held(&job);
    assert_eq!(other.holders("free").await.expect("an answer"), []);
    leases.close().await.expect("closed");
}

/// fred's task waits for the socket then, and reads no command that would replace the connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_whose_socket_is_full_is_replaced() {
    let _reached = Must::reach("RedisClientStuck");
    let trace = Trace::of_all_threads();
    let server = Server::start();
    set_user(&server, ">hunter0");
    let vault = Vault::new("hunter0");
    let proxy = Proxy::start(server.port());
    let leases = vault.builder().ttl(PATIENT).connect(proxy.url()).await.expect("a manager");
    // Their renewals, which are tried again until the leases are lost, are more than the system keeps for a socket.
    let mut many = Vec::new();
    for first in (0..MANY).step_by(100) {
        let mut locks = JoinSet::new();
        for number in first..first + 100 {
            let leases = leases.clone();
            let name = format!("{number}:{}", "x".repeat(480));
            locks.spawn(async move { lock(&leases, &name).await });
        }
        many.extend(locks.join_all().await);
    }
    vault.set(Does::Fails);
    proxy.freeze();
    let has_ended = |event: &kit::trace::Traced| {
        event.message().contains("the client of a connection has ended")
    };
    eventually(LONG, || !trace.matching(has_ended).is_empty()).await;
    vault.returns("hunter0");
    locks_in_the_end(&leases, "other").await;
    let held = lock(&leases, "held").await;
    sleep(PATIENT / 2).await;
    eventually(LONG, || held.remaining() > PATIENT * 3 / 4).await;
    drop((many, held));
    leases.close().await.expect("closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_provider_delays_a_new_connection_alone() {
    let server = Server::start();
    set_user(&server, ">hunter0");
    let delay = millis(300);
    let vault = Vault { valid_for: Some(Duration::from_secs(1)), delay, ..Vault::new("hunter0") };
    let leases = vault.builder().ttl(PATIENT).connect(server.url()).await.expect("a manager");
    let held = lock(&leases, "held").await;
    let load = Load::start(&leases);
    let asked = vault.asked().len();
    eventually(LONG, || vault.asked().len() > asked + 5).await;
    load.end_without_errors("").await;
    kill_user(&server);
    locks_in_the_end(&leases, "other").await;
    is_held(&held);
    held.unlock().await.expect("held to its end");
    leases.close().await.expect("closed");
}

#[tokio::test]
async fn credentials_that_do_not_fit_are_refused_with_what_to_do() {
    let server = Server::start();
    set_user(&server, ">hunter0");
    let wrong = LeaseManager::builder().credentials(Credentials::password("hunter1").user("lease"));
    let error = wrong.clone().connect(server.url()).await.expect_err("a wrong password");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("what the credentials provider returns"), "{error}");
    assert!(!format!("{error:?} {wrong:?}").contains("hunter"));
    let sentinel = "redis-sentinel://h?sentinelServiceName=m";
    for url in [
        "redis://lease@127.0.0.1".to_owned(),
        "redis://:hunter0@127.0.0.1".to_owned(),
        "redis+unix://u:hunter0@localhost/socket".to_owned(),
        "redis-cluster://u:hunter0@127.0.0.1".to_owned(),
        "redis://127.0.0.1:1,redis://u:hunter0@127.0.0.1:2,redis://127.0.0.1:3".to_owned(),
        format!("{sentinel}&sentinelPassword=hunter0"),
    ] {
        let error = wrong.clone().connect(&url).await.expect_err(&url);
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains("leave them out of the URL"), "{error}");
        assert!(!format!("{error:?}").contains("hunter"), "{error:?}");
    }
    for url in ["memory:", "zookeeper://127.0.0.1"] {
        let error = wrong.clone().connect(url).await.expect_err(url);
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("the setting credentials does not apply"), "{error}");
    }
    let error = wrong.build(MemoryStore::new()).expect_err("no server");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    // A server that wants a password, where the provider has none.
    server.command(&["CONFIG", "SET", "requirepass", "hunter2"]);
    let none = LeaseManager::builder().credentials(Credentials::none());
    let error = none.connect(server.url()).await.expect_err("no password");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("have the credentials provider return one"), "{error}");
    // Without a manager, and over a socket.
    let options = ConnectOptions::new().credentials(Credentials::password("hunter2"));
    RedisStore::connect_with(&server.unix_url(), &options).await.expect("a store");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn password_file_is_read_at_each_connect() {
    let server = Server::start();
    set_user(&server, ">hunter0");
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("password");
    let builder = || {
        let file = PasswordFile::new(&path).user("lease");
        LeaseManager::builder().ttl(T).credentials(file)
    };
    let error = builder().connect(server.url()).await.expect_err("no file yet");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("cannot be read"), "{error}");
    fs::write(&path, "hunter0\n").expect("written");
    let leases = builder().connect(server.url()).await.expect("a manager");
    let held = lock(&leases, "held").await;
    set_user(&server, ">hunter1");
    fs::write(&path, "hunter1\n").expect("written");
    set_user(&server, "<hunter0");
    kill_user(&server);
    locks_in_the_end(&leases, "other").await;
    held.unlock().await.expect("held to its end");
    leases.close().await.expect("closed");
}

/// The servers that were asked for, without those in front of which is a sentinel.
fn servers_asked(vault: &Vault) -> BTreeSet<String> {
    let asked = vault.asked().into_iter().filter(|request| !request.is_sentinel());
    asked.map(|request| request.server().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_and_servers_have_credentials_of_their_own() {
    let sentinels = Sentinels::start("");
    for sentinel in &sentinels.sentinels {
        let user = ["watcher", "on", ">hunter-of-sentinels", "~*", "&*", "+@all"];
        assert_eq!(sentinel.command(&[&["ACL", "SETUSER"], &user[..]].concat()).error(), None);
        sentinel.command(&["ACL", "SETUSER", "default", "-sentinel", "-subscribe"]);
    }
    let servers = &sentinels.servers;
    servers.iter().for_each(|server| set_user(server, ">hunter0"));
    let vault = Vault { valid_for: Some(Duration::from_secs(2)), ..Vault::new("hunter0") };
    let leases = vault.builder().connect(sentinels.url()).await.expect("a manager");
    let held = lock(&leases, "held").await;
    let load = Load::start(&leases);
    for round in 1..=2 {
        let (old, new) = (format!("<hunter{}", round - 1), format!("hunter{round}"));
        servers.iter().for_each(|server| set_user(server, &format!(">{new}")));
        vault.returns(&new);
        servers.iter().for_each(|server| set_user(server, &old));
        servers.iter().for_each(kill_user);
        load.goes_on().await;
        sleep(T / 2).await;
        is_held(&held);
    }
    for error in load.end().await {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    assert!(vault.asked().iter().any(CredentialsRequest::is_sentinel));
    // A connection that listens for a failover is there all the time, and is another one before its login lapses.
    let listening = || connections_of(&sentinels.sentinels[0], "watcher", true);
    eventually(LONG, || !listening().is_empty()).await;
    let (first, start) = (listening(), Instant::now());
    while start.elapsed() < T {
        assert!(!listening().is_empty(), "after {:?}", start.elapsed());
        sleep(millis(5)).await;
    }
    assert!(listening().is_disjoint(&first), "none was replaced");
    held.unlock().await.expect("held to its end");
    leases.close().await.expect("closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_server_of_a_cluster_is_asked_for() {
    let cluster = Cluster::start();
    let nodes = &cluster.nodes;
    nodes.iter().for_each(|server| set_user(server, ">hunter0"));
    let vault = Vault { valid_for: Some(Duration::from_secs(2)), ..Vault::new("hunter0") };
    let leases = vault.builder().connect(cluster.url()).await.expect("a manager");
    let mut held = Vec::new();
    for node in 0..3 {
        held.push(lock(&leases, &cluster.name_on(node, "held")).await);
    }
    let load = Load::start(&leases);
    nodes.iter().for_each(|server| set_user(server, ">hunter1"));
    vault.returns("hunter1");
    nodes.iter().for_each(|server| set_user(server, "<hunter0"));
    nodes.iter().for_each(kill_user);
    load.goes_on().await;
    sleep(T + T / 4).await;
    for error in load.end().await {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    for lease in held {
        lease.unlock().await.expect("held to its end");
    }
    assert!(servers_asked(&vault).len() >= 3, "{:?}", servers_asked(&vault));
    leases.close().await.expect("closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_of_a_quorum_change_their_password_one_by_one() {
    let servers = [0, 1, 2].map(|_| Server::start());
    servers.iter().for_each(|server| set_user(server, ">hunter0"));
    let vault = Vault::new("hunter0");
    let urls = servers.each_ref().map(Server::url).join(",");
    let leases = vault.builder().connect(&urls).await.expect("a manager");
    // A server that has just started counts after the time to live.
    sleep(T + Duration::from_secs(1)).await;
    let held = within(LONG, lock(&leases, "held")).await;
    let load = Load::start(&leases);
    servers.iter().for_each(|server| set_user(server, ">hunter1"));
    vault.returns("hunter1");
    for server in &servers {
        set_user(server, "<hunter0");
        kill_user(server);
        load.goes_on().await;
        sleep(T / 2).await;
        is_held(&held);
    }
    for error in load.end().await {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    held.unlock().await.expect("held to its end");
    assert_eq!(servers_asked(&vault).len(), 3);
    leases.close().await.expect("closed");
}

/// A server that stands still is no reason to keep the provider's answer for later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn login_on_a_silent_server_waits_for_the_next_connection() {
    let Proxied { server: _server, proxy, leases, .. } =
        Proxied::start(Duration::from_secs(1)).await;
    drop(lock(&leases, "job").await);
    proxy.set(Mode::BlackHole);
    sleep(T).await;
    proxy.set(Mode::Pass);
    locks_in_the_end(&leases, "job").await;
    leases.close().await.expect("closed");
}
