//! What a run does while it waits, and how several runs share a name.

use std::collections::BTreeSet;
use std::fs;

use kit::{Mode, Proxy, Server, eventually, lock};
use leasehold::LeaseManager;
use rustix::process::Signal;

use super::{LONG, Running, ended, run, waiting};

/// Nothing is left of a run that a signal has ended, in a line or without one.
#[tokio::test]
async fn signal_ends_the_wait_and_leaves_no_arrival() {
    let server = Server::start();
    let others = LeaseManager::connect(&server.url()).await.expect("a manager");
    let plain = lock(&others, "plain").await;
    let fair = others.fair_lock("fair").lock().await.expect("a lease");
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT] {
        let run_plain = Running::start(run(&server.url(), &["plain", "--", "false"]));
        let run_fair =
            Running::start(run(&server.url(), &["--fair", "-w", "60s", "fair", "--", "false"]));
        eventually(LONG, || waiting(&server, "plain") == 1).await;
        in_line(&others, 1).await;
        for running in [run_plain, run_fair] {
            running.signal(signal);
            let done = running.end().await;
            assert_eq!(done.code(), 128 + signal.as_raw(), "{done:?}");
        }
        in_line(&others, 0).await;
        eventually(LONG, || waiting(&server, "plain") == 0).await;
    }
    plain.unlock().await.expect("a release");
    fair.unlock().await.expect("a release");
    // Nothing is left that the next one would wait for.
    ended(run(&server.url(), &["-n", "plain", "--", "true"])).await.with(0);
    ended(run(&server.url(), &["-n", "--fair", "fair", "--", "true"])).await.with(0);
}

/// Waits until the line of `fair` has so many.
async fn in_line(leases: &LeaseManager, expected: usize) {
    let found = async {
        while leases.waiters("fair").await.expect("an answer").len() != expected {
            tokio::time::sleep(kit::millis(20)).await;
        }
    };
    kit::within(LONG, found).await;
}

#[tokio::test]
async fn run_waits_out_an_outage() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let others = LeaseManager::connect(&server.url()).await.expect("a manager");
    for options in [&[][..], &["--once", "1m"]] {
        let lease = lock(&others, "job").await;
        let words = [options, &["job", "--", "sh", "-c", "exit 6"]].concat();
        let mut running = Running::start(run(&proxy.url(), &words));
        eventually(LONG, || waiting(&server, "job") == 1).await;
        proxy.set(Mode::Refuse);
        lease.unlock().await.expect("a release");
        // Longer than all attempts of one call.
        tokio::time::sleep(kit::millis(5_000)).await;
        assert!(!running.has_ended(), "{}", running.text("err"));
        proxy.set(Mode::Pass);
        running.end().await.with(6);
    }
}

#[tokio::test]
async fn runs_of_one_name_do_not_overlap() {
    let server = Server::start();
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("log");
    let script = format!("echo in >> {0}; sleep 0.2; echo out >> {0}", log.display());
    let one = || Running::start(run(&server.url(), &["job", "--", "sh", "-c", &script]));
    let runs: Vec<Running> = (0..5).map(|_| one()).collect();
    for running in runs {
        running.end().await.with(0);
    }
    let log = fs::read_to_string(log).expect("a log");
    assert_eq!(log, "in\nout\n".repeat(5));
}

/// Each program ends when it has seen the others.
#[tokio::test]
async fn readers_and_permits_run_together() {
    let server = Server::start();
    for options in [&["--shared"][..], &["--permit", "2"]] {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name).display().to_string();
        let meet = r#": > "$0"; until [ -e "$1" ]; do sleep 0.05; done"#;
        let name = format!("together{}", options[0]);
        let one = |mine: &str, other: &str| {
            let [mine, other] = [path(mine), path(other)];
            let child = [name.as_str(), "--", "sh", "-c", meet, &mine, &other];
            Running::start(run(&server.url(), &[options, &child].concat()))
        };
        let [first, second] = [one("a", "b"), one("b", "a")];
        first.end().await.with(0);
        second.end().await.with(0);
    }
}

#[tokio::test]
async fn writer_waits_for_readers() {
    let server = Server::start();
    let others = LeaseManager::connect(&server.url()).await.expect("a manager");
    let mut prices = others.rw_lock("prices");
    let reading = prices.read().await.expect("a lease");
    let url = server.url();
    ended(run(&url, &["-n", "--exclusive", "prices", "--", "true"])).await.with(124);
    ended(run(&url, &["-n", "--shared", "prices", "--", "true"])).await.with(0);
    reading.unlock().await.expect("a release");
    let writing = prices.write().await.expect("a lease");
    ended(run(&url, &["-n", "--shared", "prices", "--", "true"])).await.with(124);
    writing.unlock().await.expect("a release");
    ended(run(&url, &["-n", "--exclusive", "prices", "--", "true"])).await.with(0);
}

#[tokio::test]
async fn several_names_are_held_all_or_none() {
    let server = Server::start();
    let others = LeaseManager::connect(&server.url()).await.expect("a manager");
    let url = server.url();
    let held = lock(&others, "b").await;
    ended(run(&url, &["-n", "a", "b", "--", "true"])).await.with(124);
    ended(run(&url, &["-n", "a", "--", "true"])).await.with(0);
    held.unlock().await.expect("a release");
    let both = Running::start(run(&url, &["a", "b", "--", "sh", "-c", "echo in; sleep 1000"]));
    eventually(LONG, || both.text("out").contains("in")).await;
    for name in ["a", "b"] {
        ended(run(&url, &["-n", name, "--", "true"])).await.with(124);
    }
    both.signal(Signal::TERM);
    assert_eq!(both.end().await.code(), 143);
    ended(run(&url, &["-n", "a", "b", "--", "true"])).await.with(0);
}

#[tokio::test]
async fn slots_have_different_numbers() {
    let server = Server::start();
    let script = "echo $LEASEHOLD_SLOT; sleep 1000";
    let one =
        || Running::start(run(&server.url(), &["--slot", "3", "gpu", "--", "sh", "-c", script]));
    let runs: Vec<Running> = (0..3).map(|_| one()).collect();
    let number = |running: &Running| running.text("out").trim().parse::<u32>().ok();
    eventually(LONG, || runs.iter().all(|running| number(running).is_some())).await;
    let numbers: BTreeSet<u32> = runs.iter().filter_map(number).collect();
    assert_eq!(numbers, BTreeSet::from([0, 1, 2]));
    ended(run(&server.url(), &["-n", "--slot", "3", "gpu", "--", "true"])).await.with(124);
    for running in &runs {
        running.signal(Signal::TERM);
    }
}
