//! What `leasehold doctor` finds about real servers.

use kit::step_clock::StepClock;
use kit::zookeeper::ZooKeeper;
use kit::{Cluster, Mode, Proxy, Sentinels, Server, permissions};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Keeps all that a single server should keep.
const DURABLE: [&str; 2] = ["--appendonly", "yes"];

/// What a run has printed.
#[derive(Debug)]
struct Report {
    exit: Option<i32>,
    stdout: String,
    stderr: String,
}

struct Found {
    check: String,
    severity: String,
    server: String,
    message: String,
}

impl Report {
    /// Runs it for a URL, which the variable names: it may have a password.
    fn of(url: &str, arguments: &[&str]) -> Self {
        Self::with_variables(&[("LEASEHOLD_URL", url)], arguments)
    }

    fn with_variables(variables: &[(&str, &str)], arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
        for name in ["LEASEHOLD_URL", "LEASEHOLD_USER", "LEASEHOLD_PASSWORD_FILE"] {
            command.env_remove(name);
        }
        command.envs(variables.iter().copied());
        let output = command.arg("doctor").args(arguments).output().expect("it runs");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        let (stdout, stderr) = (text(output.stdout), text(output.stderr));
        assert!(!(stdout.clone() + &stderr).contains("hunter2"), "{stdout}{stderr}");
        Self { exit: output.status.code(), stdout, stderr }
    }

    fn json(url: &str, arguments: &[&str]) -> Self {
        Self::of(url, &[arguments, &["--json"]].concat())
    }

    fn findings(&self) -> Vec<Found> {
        let read = |line: &str| {
            let value: Value = serde_json::from_str(line).expect("an object a line");
            let text = |name: &str| value[name].as_str().expect("a text").to_owned();
            let severity = text("severity");
            Found {
                check: text("check"),
                severity,
                server: text("server"),
                message: text("message"),
            }
        };
        self.stdout.lines().map(read).collect()
    }

    /// The checks with this severity, each with its server and its message.
    fn with(&self, severity: &str) -> Vec<String> {
        let found = self.findings().into_iter().filter(|found| found.severity == severity);
        found
            .map(|Found { check, server, message, .. }| format!("{check} {server} {message}"))
            .collect()
    }

    /// Asserts that one finding with this severity has all these words.
    #[track_caller]
    fn has(&self, severity: &str, words: &[&str]) {
        let found = self.with(severity);
        let is_there = found.iter().any(|found| words.iter().all(|word| found.contains(word)));
        assert!(is_there, "no {severity} with {words:?} in {self:#?}");
    }
}

#[test]
fn fine_server_is_0_and_each_check_says_what_was_seen() {
    let server = Server::start_with(&DURABLE);
    let start = Instant::now();
    let report = Report::json(&server.url(), &[]);
    assert_eq!(report.exit, Some(0), "{report:#?}");
    assert_eq!(report.stderr, "");
    let checks: Vec<String> = report.findings().into_iter().map(|found| found.check).collect();
    for check in [
        "reachable",
        "round-trip",
        "version",
        "role",
        "eviction",
        "persistence",
        "replicas",
        "stalls",
        "limits",
        "leftovers",
        "clock",
        "permissions",
        "wake-ups",
    ] {
        assert!(checks.iter().any(|found| found == check), "{check} in {report:#?}");
    }
    assert!(start.elapsed() > Duration::from_secs(10), "the clock is watched");
    assert_eq!(server.command(&["DBSIZE"]).int(), 0, "nothing is left");
}

#[test]
fn settings_that_cost_leases_are_found_in_one_run() {
    let server = Server::start_with(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]);
    let holder = "00000000-0000-4000-8000-000000000000:7";
    server.command(&["HSET", "app:stuck", holder, "1"]);
    server.command(&["HSET", "app:user", "name", "Ann"]);
    server.command(&["CONFIG", "SET", "timeout", "20"]);
    server.command(&["CONFIG", "SET", "slowlog-log-slower-than", "1000000"]);
    server.command(&["DEBUG", "SLEEP", "1.6"]);
    let report = Report::json(&server.url(), &["--prefix", "app:"]);
    assert_eq!(report.exit, Some(2), "{report:#?}");
    report.has("failure", &["eviction", "allkeys-lru", "noeviction"]);
    report.has("warning", &["persistence", "appendonly yes"]);
    report.has("warning", &["leftovers", "1 keys", "app:stuck"]);
    report.has("warning", &["limits", "20s"]);
    report.has("warning", &["stalls", "DEBUG", "slow log"]);
    report.has("fine", &["permissions", "app:"]);
}

#[test]
fn replica_is_a_failure() {
    let primary = Server::start();
    let replica = Server::start();
    replica.command(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]);
    let report = Report::json(&replica.url(), &[]);
    assert_eq!(report.exit, Some(2), "{report:#?}");
    report.has("failure", &["role", "is a replica"]);
    assert_eq!(report.with("failure").len(), 1, "once: {report:#?}");
}

#[test]
fn check_that_is_forbidden_is_not_green_and_has_the_rule() {
    let server = Server::start_with(&DURABLE);
    let words = permissions::of_one_server();
    let set = |user: &str, more: &[&str]| {
        let user = ["ACL", "SETUSER", user, "on", ">hunter2"];
        server.command(&[&user[..], &words[..], more].concat());
    };
    set("lease", &[]);
    set("poor", &["-hset"]);
    set("deaf", &["resetchannels"]);
    set("mute", &["-publish"]);
    set("blind", &["-hgetall"]);
    let url = |user: &str| server.url_as(user, "hunter2", 0);
    let poor = thread::spawn({
        let url = url("poor");
        move || Report::json(&url, &["--prefix", "app:"])
    });
    let [mute, blind] = ["mute", "blind"].map(|user| {
        let url = url(user);
        thread::spawn(move || Report::json(&url, &["--prefix", "app:"]))
    });
    let elsewhere = thread::spawn({
        let url = url("lease");
        move || Report::json(&url, &["--prefix", "other:"])
    });
    let deaf = thread::spawn({
        let url = url("deaf");
        move || Report::json(&url, &["--prefix", "app:"])
    });
    let report = Report::json(&url("lease"), &["--prefix", "app:"]);
    assert_eq!(report.exit, Some(1), "{report:#?}");
    for words in [
        &["info", "+info"][..],
        &["stalls", "+latency|latest"],
        &["stalls", "+slowlog|get"],
        &["limits", "+config|get"],
        &["leftovers", "+scan"],
    ] {
        report.has("not-checked", words);
    }
    report.has("fine", &["permissions"]);
    report.has("fine", &["wake-ups"]);
    report.has("fine", &["clock"]);

    let report = poor.join().expect("a report");
    assert_eq!(report.exit, Some(2), "{report:#?}");
    report.has("failure", &["permissions", "grant +hset"]);

    let [mute, blind] = [mute, blind].map(|report| report.join().expect("a report"));
    mute.has("warning", &["wake-ups", "+publish"]);
    blind.has("not-checked", &["round-trip", "+hgetall"]);

    let report = elsewhere.join().expect("a report");
    assert_eq!(report.exit, Some(1), "{report:#?}");
    report.has("not-checked", &["permissions", "~other:*"]);

    let report = deaf.join().expect("a report");
    assert_eq!(report.exit, Some(1), "{report:#?}");
    // In a message of its own, or, where the refusal comes late, in that of messages that do not arrive.
    report.has("warning", &["wake-ups", "&redisson_lock__channel:{app:*"]);
}

#[test]
fn password_among_the_arguments_is_refused() {
    let url = "redis://:hunter2@127.0.0.1:1";
    for arguments in [&[url][..], &["--url", url]] {
        let report = Report::with_variables(&[], arguments);
        assert_eq!(report.exit, Some(125), "{report:#?}");
        assert!(report.stderr.contains("LEASEHOLD_PASSWORD_FILE"), "{report:#?}");
    }
    assert_eq!(Report::with_variables(&[], &["memory:"]).exit, Some(0), "no password");
}

#[test]
fn store_to_which_no_manager_connects_is_diagnosed() {
    let server = Server::start_with(&["--requirepass", "secret"]);
    let away = format!("redis://127.0.0.1:{}", kit::server::free_port());
    for (url, words) in [
        (server.url_as("default", "hunter2", 0), &["permissions", "WRONGPASS"][..]),
        (server.url(), &["permissions", "password"]),
        (away, &["reachable", "connection refused"]),
        ("localhost:6379".to_owned(), &["settings", "scheme"]),
        ("redis://a,redis://b".to_owned(), &["settings", "3"]),
    ] {
        let report = Report::json(&url, &[]);
        assert_eq!(report.exit, Some(2), "{report:#?}");
        report.has("failure", words);
        assert_eq!(report.with("failure").len(), 1, "once: {report:#?}");
    }
    let report = Report::json("memory:", &[]);
    assert_eq!(report.exit, Some(0), "{report:#?}");
    let report = Report::json("memory:", &["--ttl", "1ms"]);
    assert_eq!(report.exit, Some(2), "{report:#?}");
    let report = Report::with_variables(&[], &[]);
    assert_eq!(report.exit, Some(125), "{report:#?}");
}

/// It answers each question, so it is examined to the end, and its times are judged by fewer requests.
#[test]
fn slow_server_is_judged_by_fewer_requests() {
    let server = Server::start_with(&DURABLE);
    let proxy = Proxy::start(server.port());
    proxy.set(Mode::Delay(Duration::from_millis(200)));
    let report = Report::json(&proxy.url(), &[]);
    report.has("fine", &["round-trip", "for the slowest of 1"]);
    report.has("not-checked", &["clock", "too slowly"]);
    report.has("fine", &["reachable", "answers"]);
    assert_eq!(report.exit, Some(1), "{report:#?}");
}

#[test]
fn primary_that_is_demoted_meanwhile_is_a_failure() {
    let other = Server::start();
    let server = Server::start_with(&DURABLE);
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_secs(8));
            server.command(&["REPLICAOF", "127.0.0.1", &other.port().to_string()]);
        });
        let report = Report::json(&server.url(), &[]);
        report.has("failure", &["role", "while it was examined"]);
        report.has("fine", &["role", "is a primary"]);
        assert_eq!(report.exit, Some(2), "{report:#?}");
    });
}

#[test]
fn server_without_memory_is_a_failure_of_its_limits() {
    let server = Server::start();
    server.command(&["CONFIG", "SET", "maxmemory", "100kb"]);
    let report = Report::json(&server.url(), &[]);
    assert_eq!(report.exit, Some(2), "{report:#?}");
    report.has("failure", &["limits", "out of memory"]);
    report.has("warning", &["limits", "raise maxmemory"]);
    assert_eq!(report.with("failure").len(), 1, "once: {report:#?}");
}

#[test]
fn permissions_that_no_lock_uses_are_asked_for() {
    let server = Server::start_with(&DURABLE);
    let words = permissions::of_one_server();
    let report = |user: &str, more: &[&str]| {
        let name = ["ACL", "SETUSER", user, "on", ">hunter2"];
        let words = [&name[..], &words, &["+acl|whoami", "+acl|dryrun"], more].concat();
        assert_eq!(server.command(&words).error(), None);
        let url = server.url_as(user, "hunter2", 0);
        thread::spawn(move || Report::json(&url, &["--prefix", "app:"]))
    };
    let full = report("full", &[]);
    let silent = report("silent", &["-unsubscribe"]);
    let deaf = report("deaf", &["resetchannels", "&redisson_lock__channel:{app:*"]);
    let keys = ["resetkeys", "~app:*", "~redisson_lock_token:{app:*"];
    let blind = report("blind", &keys);
    let [full, silent, deaf, blind] =
        [full, silent, deaf, blind].map(|report| report.join().expect("a report"));
    full.has("fine", &["permissions", "hear of forced releases"]);
    silent.has("warning", &["permissions", "grant +unsubscribe"]);
    deaf.has("warning", &["permissions", "grant &leasehold_inbox:app:*"]);
    blind.has("warning", &["permissions", "grant ~leasehold_note:{app:*"]);
    // What is tried after the permissions is tried all the same.
    blind.has("fine", &["wake-ups"]);
}

/// It is there, and says nothing.
#[test]
fn silent_server_is_a_failure_in_time() {
    let server = Server::start();
    server.pause();
    let start = Instant::now();
    let report = Report::json(&server.url(), &[]);
    assert_eq!(report.exit, Some(2), "{report:#?}");
    report.has("failure", &["reachable", "in time"]);
    assert!(start.elapsed() < Duration::from_secs(40), "{:?}", start.elapsed());
    server.resume();
}

#[test]
fn table_in_a_pipe_has_neither_colours_nor_progress() {
    let away = format!("redis://127.0.0.1:{}", kit::server::free_port());
    let report = Report::of(&away, &[]);
    let [line] = report.stdout.lines().collect::<Vec<_>>()[..] else { panic!("{report:#?}") };
    assert!(line.starts_with("failure      reachable  127.0.0.1:"), "{line}");
    assert_eq!(report.stderr, "leasehold: 0 fine, 0 not checked, 0 warnings, 1 failures\n");
}

/// It answers each request with an error that would change the title of a terminal.
#[test]
fn words_of_a_server_do_not_act_on_the_terminal() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("redis://{}", listener.local_addr().expect("an address"));
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            thread::spawn(move || {
                let mut asked = [0; 1000];
                while stream.read(&mut asked).is_ok_and(|read| read > 0) {
                    let _ = stream.write_all(b"-WRONGPASS \x1b]0;hunted\x07\r\n");
                }
            });
        }
    });
    let report = Report::of(&url, &[]);
    assert_eq!(report.exit, Some(2), "{report:#?}");
    let is_shown = |text: &str| text.contains("hunted") && !text.contains(['\x1b', '\x07']);
    assert!(is_shown(&report.stdout), "{report:#?}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    let output = command.args(["inspect", "job", "--url", &url]).output().expect("it runs");
    assert_eq!(output.status.code(), Some(125));
    assert!(is_shown(&String::from_utf8_lossy(&output.stderr)), "{output:?}");
}

#[test]
fn clock_that_runs_fast_or_is_stepped_is_a_failure() {
    let clock = StepClock::start();
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let start = Instant::now();
            while !ended.load(Ordering::Relaxed) {
                clock.forward(start.elapsed() / 50);
                thread::sleep(Duration::from_millis(20));
            }
        });
        let report = Report::json(&clock.server.url(), &[]);
        ended.store(true, Ordering::Relaxed);
        assert_eq!(report.exit, Some(2), "{report:#?}");
        report.has("failure", &["clock", "% faster"]);
    });
    let clock = StepClock::start();
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_secs(8));
            clock.forward(Duration::from_secs(2));
        });
        let report = Report::json(&clock.server.url(), &[]);
        report.has("failure", &["clock", "stepped by +2.0"]);
    });
}

#[test]
fn quorum_is_judged_by_its_majority_and_its_clocks() {
    let servers = [Server::start(), Server::start()];
    let clock = StepClock::start();
    clock.forward(Duration::from_secs(5));
    let [one, two] = &servers;
    let away = format!("redis://127.0.0.1:{}", kit::server::free_port());
    let list = |urls: &[&str]| urls.join(",");
    let apart = list(&[&one.url(), &two.url(), &clock.server.url()]);
    let apart = thread::spawn(move || Report::json(&apart, &[]));
    let report = Report::json(&list(&[&one.url(), &two.url(), &away]), &[]);
    assert_eq!(report.exit, Some(1), "{report:#?}");
    report.has("warning", &["reachable node 3", "connection refused"]);
    report.has("warning", &["fleet all", "2 of 3 nodes"]);
    report.has("fine", &["persistence node 1"]);
    report.has("fine", &["wake-ups node 2"]);
    let report = apart.join().expect("a report");
    assert_eq!(report.exit, Some(1), "{report:#?}");
    report.has("warning", &["clock all", "that of node 3"]);
    report.has("fine", &["fleet all", "3 nodes"]);
    let report =
        Report::json(&list(&[&one.url(), &away, &away.replace("127.0.0.1", "localhost")]), &[]);
    assert_eq!(report.exit, Some(2), "{report:#?}");
    report.has("failure", &["fleet all", "1 of 3 nodes"]);
}

#[test]
fn nodes_that_refuse_the_user_do_not_count() {
    let servers = [Server::start(), Server::start(), Server::start()];
    let urls = || servers.iter().map(Server::url).collect::<Vec<_>>();
    for server in &servers[..2] {
        server.command(&["CONFIG", "SET", "requirepass", "other"]);
    }
    let report = Report::json(&urls().join(","), &[]);
    report.has("failure", &["permissions node 1", "LEASEHOLD_PASSWORD_FILE"]);
    report.has("failure", &["fleet all", "1 of 3 nodes"]);
    let servers = [Server::start(), Server::start(), Server::start()];
    for server in &servers {
        let user = ["ACL", "SETUSER", "lease", "on", ">hunter2"];
        server.command(&[&user[..], &permissions::of_one_server(), &["-info"]].concat());
    }
    let urls: Vec<_> = servers.iter().map(|server| server.url_as("lease", "hunter2", 0)).collect();
    let report = Report::json(&urls.join(","), &["--prefix", "app:"]);
    assert_eq!(report.exit, Some(2), "{report:#?}");
    report.has("failure", &["info node 1", "grant +info"]);
    report.has("not-checked", &["fleet all", "run_id"]);
}

#[test]
fn each_server_of_a_cluster_is_examined() {
    let cluster = Cluster::start_durable();
    let report = Report::json(&cluster.url(), &[]);
    assert_eq!(report.with("failure"), [""; 0], "{report:#?}");
    report.has("fine", &["fleet", "sees a whole cluster of 3 primaries"]);
    report.has("fine", &["clock all", "servers differ"]);
    report.has("fine", &["permissions all"]);
    report.has("fine", &["wake-ups all"]);
    let servers = report.findings().into_iter().filter(|found| found.check == "round-trip");
    assert_eq!(servers.count(), 3, "{report:#?}");
}

#[test]
fn key_that_a_cluster_refuses_ends_no_examination() {
    let cluster = Cluster::start_durable();
    let examine = |node: &Server| {
        let url = node.url();
        thread::spawn(move || Report::json(&url, &[]))
    };
    for report in cluster.nodes.iter().map(examine).collect::<Vec<_>>() {
        let report = report.join().expect("a report");
        report.has("failure", &["cluster-mode", "redis-cluster://"]);
        report.has("fine", &["clock"]);
        report.has("fine", &["limits"]);
    }
    let node = cluster.node_of("job");
    node.command(&["CONFIG", "SET", "cluster-require-full-coverage", "yes"]);
    node.command(&["CLUSTER", "DELSLOTS", &cluster.slot("job").to_string()]);
    let report = Report::json(&cluster.url(), &[]);
    assert_eq!(report.exit, Some(2), "{report:#?}");
    report.has("failure", &["fleet", &node.port().to_string(), "slots assigned"]);
    report.has("not-checked", &["round-trip", &node.port().to_string(), "cluster is down"]);
    report.has("fine", &["clock", &node.port().to_string()]);
}

/// It is the first server of the URL.
#[test]
fn dead_primary_does_not_hide_the_other_servers() {
    let cluster = Cluster::start_durable();
    let [dead, other] = [0, 1].map(|node| cluster.nodes[node].port().to_string());
    cluster.nodes[0].kill();
    let start = Instant::now();
    let report = Report::json(&cluster.url(), &[]);
    assert_eq!(report.exit, Some(2), "{report:#?}");
    report.has("failure", &["reachable", &dead, "refused"]);
    report.has("fine", &["reachable", &other]);
    report.has("fine", &["clock", &other]);
    assert!(start.elapsed() < Duration::from_secs(90), "{:?}", start.elapsed());
}

#[test]
fn sentinels_and_the_servers_behind_them_are_examined() {
    let fleet = Sentinels::start("");
    let report = Report::json(&fleet.url(), &[]);
    assert_eq!(report.with("failure"), [""; 0], "{report:#?}");
    assert_eq!(report.exit, Some(1), "{report:#?}");
    report.has("warning", &["failover", &fleet.primary_port().to_string()]);
    report.has("fine", &["is a replica that follows its primary"]);
    report.has("fine", &["fleet", "down-after-milliseconds"]);
}

#[test]
fn servers_of_zookeeper_are_examined() {
    let server = ZooKeeper::start();
    let report = Report::json(&server.url(), &[]);
    assert_eq!(report.exit, Some(1), "one server: {report:#?}");
    report.has("fine", &["version", "is ZooKeeper 3."]);
    report.has("fine", &["role", "standalone"]);
    report.has("fine", &["session", "30s"]);
    // The servers of the tests run so.
    report.has("warning", &["persistence", "forceSync=no"]);
    report.has("fine", &["permissions all"]);
    report.has("warning", &["fleet all", "one server"]);
    let report = Report::json(&server.url(), &["--ttl", "2h"]);
    assert_eq!(report.exit, Some(2), "{report:#?}");
    report.has("failure", &["session", "maxSessionTimeout"]);
    let away = format!("zookeeper://127.0.0.1:{}", kit::server::free_port());
    let report = Report::json(&away, &[]);
    assert_eq!(report.exit, Some(2), "{report:#?}");
    report.has("failure", &["reachable"]);
}
