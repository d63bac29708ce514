//! A server that refuses every renewal, for a while or for good: the lease is kept until its time is over.
#![cfg(target_os = "linux")]

use std::fs;
use std::time::Duration;

use kit::fault::{
    LONG, boottime, connect, let_in, lock, millis, owner, renewal, undisturbed, wait_for, watch,
};
use kit::look::calls;
use kit::{Resp, Server, eventually};
use leasehold::{ErrorKind, LeaseState, Loss};
use tempfile::TempDir;
use tokio::task::JoinSet;

/// A way to refuse every renewal from now on, and its end.
struct Refusal {
    what: &'static str,
    options: &'static [&'static str],
    begin: &'static [&'static [&'static str]],
    end: &'static [&'static [&'static str]],
    /// The errors that a caller that locks meanwhile may get.
    reported: &'static [ErrorKind],
}

const REFUSALS: [Refusal; 6] = [
    Refusal {
        what: "NOREPLICAS",
        options: &[],
        begin: &[&["CONFIG", "SET", "min-replicas-to-write", "1"]],
        end: &[&["CONFIG", "SET", "min-replicas-to-write", "0"]],
        reported: &[ErrorKind::Rejected],
    },
    Refusal {
        what: "READONLY",
        options: &[],
        begin: &[&["REPLICAOF", "127.0.0.1", "1"]],
        end: &[&["REPLICAOF", "NO", "ONE"]],
        reported: &[ErrorKind::Rejected, ErrorKind::Unavailable],
    },
    Refusal {
        // The directory, which is removed, is one of its own.
        what: "MISCONF",
        options: &["--save", "3600 1"],
        begin: &[&["BGSAVE"]],
        end: &[&["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"]],
        reported: &[ErrorKind::Rejected],
    },
    Refusal {
        what: "a right that is missing",
        options: &[],
        begin: &[&["ACL", "SETUSER", "default", "-pexpire"]],
        end: &[&["ACL", "SETUSER", "default", "+pexpire"]],
        reported: &[ErrorKind::Denied],
    },
    Refusal {
        // Who is connected stays so: only new connections are asked for it.
        what: "NOAUTH",
        options: &[],
        begin: &[
            &["CONFIG", "SET", "requirepass", "secret"],
            &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"],
        ],
        end: &[&["CONFIG", "SET", "requirepass", ""]],
        reported: &[ErrorKind::Denied],
    },
    Refusal {
        what: "no room for clients",
        options: &[],
        begin: &[
            &["CONFIG", "SET", "maxclients", "1"],
            &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"],
        ],
        end: &[&["CONFIG", "SET", "maxclients", "100"]],
        reported: &[ErrorKind::Unavailable],
    },
];

impl Refusal {
    /// A server for it; the directory is its own.
    fn server(&self) -> (Server, TempDir) {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().to_str().expect("a path in UTF-8");
        let server = Server::start_with(&[self.options, &["--dir", path]].concat());
        (server, dir)
    }

    fn run(commands: &[&[&str]], connection: &mut Resp) {
        for command in commands {
            let reply = connection.command(command);
            assert_eq!(reply.error(), None, "{command:?}");
        }
    }

    async fn begin(&self, connection: &mut Resp, dir: &TempDir) {
        if self.what == "MISCONF" {
            fs::remove_dir_all(dir.path()).expect("the directory can be removed");
        }
        Self::run(self.begin, connection);
        if self.what == "MISCONF" {
            eventually(LONG, || {
                let info = connection.command(&["INFO", "persistence"]).text();
                info.contains("rdb_last_bgsave_status:err")
            })
            .await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn token_fires_at_c_exactly_when_every_renewal_is_refused() {
    const T: Duration = millis(3_000);
    let mut all = JoinSet::new();
    for refusal in &REFUSALS {
        all.spawn(undisturbed(move || async move {
            let what = refusal.what;
            let (server, dir) = refusal.server();
            let mut connection = server.connection();
            let leases = connect(&server.url(), T).await;
            let others = connect(&server.url(), T).await;
            let lease = lock(&leases, "job").await;
            let lost = watch(&lease);
            renewal(&server, "job").await;
            let now = boottime();
            let left = connection.command(&["PTTL", "job"]).int();
            let end = now + millis(u64::try_from(left).expect("it was just renewed"));
            refusal.begin(&mut connection, &dir).await;
            // The lease is held in the middle of it too, whatever the errors are.
            tokio::time::sleep(T / 2).await;
            lease.check().expect("it is ours until its time is over");
            let error = others.lock("other").lock().await.expect_err("refused");
            assert!(refusal.reported.contains(&error.kind()), "{what}: {error}");

            let (loss, reported) = lost.await.expect("no panic");
            assert_eq!(loss, Loss::Expired, "{what}");
            assert!(reported < end, "{what}: {:?} too late", reported - end);
            // The grace, 1 % and 2 ms; some for the way of the renewal.
            let c = end - T / 10 - T / 100 - millis(2 + 150);
            assert!(reported > c, "{what}: {:?} before its time", c - reported);
            // Tried again, but not in a loop without pauses.
            let count = calls(&mut connection, "evalsha");
            assert!(count < 200, "{what}: {count} calls");
            let info = connection.command(&["INFO", "stats"]).text();
            let opened = info.lines().find_map(|line| {
                line.strip_prefix("total_connections_received:")?.trim().parse().ok()
            });
            let opened: u32 = opened.expect("a number of connections");
            // There are eight connections, each made again after T/20. Without a pause there would be thousands.
            assert!(opened < 500, "{what}: {opened} connections");

            Refusal::run(refusal.end, &mut connection);
            let healed = boottime();
            let next = loop {
                // The waiters' connections may still be on their way back.
                match others.lock("job").lock().await {
                    Ok(next) => break next,
                    Err(error) => {
                        assert!(refusal.reported.contains(&error.kind()), "{what}: {error}")
                    }
                }
                tokio::time::sleep(millis(5)).await;
            };
            assert!(boottime() - healed < T * 2, "{what}: {:?}", boottime() - healed);
            assert!(next.fence() > lease.fence(), "{what}");
            next.unlock().await.expect("a release");
        }));
    }
    all.join_all().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_that_end_before_c_cost_no_lease() {
    const T: Duration = millis(3_000);
    let mut all = JoinSet::new();
    for refusal in &REFUSALS {
        all.spawn(undisturbed(move || async move {
            let what = refusal.what;
            let (server, dir) = refusal.server();
            let mut connection = server.connection();
            let leases = connect(&server.url(), T).await;
            let lease = lock(&leases, "job").await;
            let token = owner(&server, "job");
            let lost = watch(&lease);
            renewal(&server, "job").await;
            refusal.begin(&mut connection, &dir).await;
            // At the reconnect, or when the next renewal is due.
            eventually(LONG, || lease.state() != LeaseState::Held).await;
            assert_eq!(lease.state(), LeaseState::AtRisk, "{what}");
            Refusal::run(refusal.end, &mut connection);
            eventually(LONG, || lease.state() != LeaseState::AtRisk).await;
            assert_eq!(lease.state(), LeaseState::Held, "{what}");
            let found = connection.command(&["HGETALL", "job"]).pairs().remove(0).0;
            assert_eq!(found, token, "{what}");
            assert!(!lost.is_finished(), "{what}");
            lease.unlock().await.expect("a release");
        }));
    }
    all.join_all().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restart_with_a_long_loading_costs_no_lease() {
    const T: Duration = millis(3_000);
    undisturbed(|| async {
        // Half a millisecond for each of 1600 keys.
        let server = Server::start_with(&[
            "--key-load-delay",
            "500",
            "--loading-process-events-interval-bytes",
            "1024",
        ]);
        let fill = "for i = 1, 1600 do redis.call('SET', 'filler:' .. i, string.rep('x', 100)) end";
        server.command(&["EVAL", fill, "0"]);
        let leases = connect(&server.url(), T).await;
        let others = connect(&server.url(), T).await;
        let lease = lock(&leases, "job").await;
        let token = owner(&server, "job");
        let waiting = wait_for(&others, "job");
        renewal(&server, "job").await;
        server.command(&["SAVE"]);
        server.restart();
        let loading = || {
            let reply = server.command(&["PTTL", "job"]);
            reply.error().is_some_and(|text| text.starts_with("LOADING"))
        };
        assert!(loading(), "it is not loading");
        eventually(LONG, || !loading()).await;
        renewal(&server, "job").await;
        lease.check().expect("held");
        assert_eq!(owner(&server, "job"), token);
        assert!(!waiting.is_finished());
        lease.unlock().await.expect("a release");
        let_in(waiting).await.0.unlock().await.expect("a release");
    })
    .await;
}
