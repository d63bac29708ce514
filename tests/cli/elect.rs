//! `elect`.

use crate::{Lines, leasehold, send};
use kit::Server;
use leasehold::LeaseManager;
use rustix::process::Signal;
use std::process::Stdio;

#[tokio::test(flavor = "multi_thread")]
async fn candidate_that_loses_the_lead_stands_again() {
    let server = Server::start();
    let leases = LeaseManager::connect(server.url()).await.expect("connected");
    let mut child = leasehold(&server)
        .args(["elect", "e", "--value", "10.0.0.7", "--", "sh", "-c"])
        .arg("echo $LEASEHOLD_FENCE; exec sleep 1000")
        .stdout(Stdio::piped())
        .spawn()
        .expect("started");
    let mut lines = Lines::of(child.stdout.take().expect("piped"));
    let mut term = move || lines.next().expect("a line").parse::<u64>().expect("a term");
    let first = term();
    let shown = leasehold(&server).args(["leader", "e"]).output().expect("ended");
    assert!(String::from_utf8_lossy(&shown.stdout).contains("10.0.0.7"), "{shown:?}");
    assert!(leases.force_unlock("e", "a test").await.expect("released"));
    assert!(term() > first, "the program runs again, in a later term");
    send(&child, Signal::TERM);
    assert_eq!(child.wait().expect("ended").code(), Some(128 + 15));
    assert_eq!(leases.inspect("e").await.expect("an answer"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn program_that_ends_gives_up_the_lead() {
    let server = Server::start();
    let leases = LeaseManager::connect(server.url()).await.expect("connected");
    let output = leasehold(&server).args(["elect", "e", "--", "sh", "-c", "exit 7"]).output();
    assert_eq!(output.expect("ended").status.code(), Some(7));
    assert_eq!(leases.inspect("e").await.expect("an answer"), None);
    let nested = leasehold(&server)
        .args(["elect", "e", "--", env!("CARGO_BIN_EXE_leasehold"), "elect", "e", "--", "true"])
        .output();
    assert_eq!(nested.expect("ended").status.code(), Some(125));
}
