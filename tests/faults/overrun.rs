//! Work that goes on after the loss of its lease ends with its process, before another process has the name.
#![cfg(target_os = "linux")]

use std::env;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use kit::fault::{boottime, connect, let_in, millis, wait_for};
use kit::holder::Holder;
use kit::{Mode, Proxy, Server, preload};
use rustix::process::Signal;

const T: Duration = millis(1_500);
/// T/10.
const GRACE: Duration = millis(150);

/// The number of runs in which an old holder writes until its end: more in the long form.
fn runs() -> usize {
    env::var("LEASEHOLD_OVERRUNS").map_or(5, |runs| runs.parse().expect("a number of runs"))
}

fn is_aborted(status: ExitStatus) -> bool {
    status.signal() == Some(Signal::ABORT.as_raw())
}

/// By the watchdog, where nothing else has ended it.
fn is_killed(status: ExitStatus) -> bool {
    status.signal() == Some(Signal::KILL.as_raw())
}

/// Starts a process that holds `job` by way of the proxy, and whose workers all hang while a thread writes without a pause.
async fn hanging(mut holder: Holder, server: &Server, proxy: &Proxy, action: &str) -> Holder {
    holder.send(&format!("overrun {action}"));
    holder.hold(&proxy.url(), T, "job").await;
    holder.send(&format!("work job {}", server.port()));
    holder.event(&["works"]).await;
    holder.send("hang");
    holder.event(&["hangs"]).await;
    holder
}

/// Cuts the holder off, and lets another manager write as soon as it has the name. Returns its fencing token.
async fn next_writes(server: &Server, proxy: &Proxy) -> String {
    let others = connect(&server.url(), T).await;
    let waiting = wait_for(&others, "job");
    proxy.set(Mode::BlackHole);
    let (lease, _) = let_in(waiting).await;
    let fence = lease.fence().expect("fencing is on").to_string();
    server.command(&["RPUSH", "written", &fence]);
    fence
}

/// No write of the old holder is sent after the first one of the new holder. The old one hangs in calls that block all threads of
/// its runtime, and what it writes goes another way than its renewals.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_whose_work_hangs_ends_before_the_next_holder_writes() {
    for run in 0..runs() {
        let server = Server::start();
        let proxy = Proxy::start(server.port());
        let action = if run % 2 == 0 { "abort" } else { "75" };
        let mut holder = hanging(Holder::start(), &server, &proxy, action).await;
        let fence = next_writes(&server, &proxy).await;
        let status = holder.ended().await;
        match action {
            "abort" => assert!(is_aborted(status), "{status}"),
            _ => assert_eq!(status.code(), Some(75), "{status}"),
        }
        let last = server.command(&["LINDEX", "written", "-1"]).text();
        assert_eq!(last, fence, "run {run}: the old holder wrote after the new one");
        let written = server.command(&["LLEN", "written"]).int();
        assert!(written > 100, "run {run}: only {written} writes");
    }
}

/// The line to the standard error is tried and not waited for, and neither are the handlers of the exit and of SIGABRT.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_ends_although_its_last_line_or_exit_is_stuck() {
    let folder = tempfile::tempdir().expect("a folder");
    let library = folder.path().join("hangs.so");
    preload::compile(preload::HANGS, &library);
    let preload = format!("LD_PRELOAD={}", library.display());
    // Open for reading, too, so that it neither blocks nor fails, and it is not read.
    let pipe = folder.path().join("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status().expect("mkfifo");
    assert!(made.success());
    let unread = format!("exec \"$@\" 2<>{}", pipe.display());
    let clogged = ["sh", "-c", &unread, "sh"];
    let starts: [(&[&str], &str); 3] =
        [(&["env", &preload], "75"), (&["env", &preload], "abort"), (&clogged, "abort")];
    for (program, action) in starts {
        let server = Server::start();
        let proxy = Proxy::start(server.port());
        let mut holder = Holder::start_by(program);
        if program == clogged {
            holder.send("clog");
        }
        let mut holder = hanging(holder, &server, &proxy, action).await;
        let fence = next_writes(&server, &proxy).await;
        let status = holder.ended().await;
        assert!(is_killed(status), "{program:?}, {action}: {status}");
        assert_eq!(server.command(&["LINDEX", "written", "-1"]).text(), fence, "{program:?}");
    }
}

/// Between the token and the action: the store still keeps the name, so there is time for the exit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_that_was_stopped_after_its_loss_exits_as_it_wakes() {
    // The grace is 600 ms, so that the signal comes within it.
    const T: Duration = millis(6_000);
    let server = Server::start();
    let mut holder = Holder::start();
    holder.send("overrun 75");
    holder.hold(&server.url(), T, "job").await;
    server.command(&["DEL", "job"]);
    holder.event(&["fired", "job"]).await;
    holder.stop();
    tokio::time::sleep(T / 5).await;
    holder.signal(Signal::CONT);
    let status = holder.ended().await;
    assert_eq!(status.code(), Some(75), "{status}");
}

/// It could not act while it was stopped, and nothing could keep what it had sent from arriving. It ends at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_that_was_stopped_beyond_the_ttl_ends_as_it_wakes() {
    let server = Server::start();
    let mut holder = Holder::start();
    holder.send("overrun abort");
    holder.hold(&server.url(), T, "job").await;
    let others = connect(&server.url(), T).await;
    let waiting = wait_for(&others, "job");
    holder.stop();
    let (_lease, _) = let_in(waiting).await;
    let woken = holder.signal(Signal::CONT);
    let status = holder.ended().await;
    let took = boottime() - woken;
    assert!(is_aborted(status), "{status}");
    assert!(took < GRACE + millis(500), "ended after {took:?}");
}
