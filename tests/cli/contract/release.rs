//! How a command ends that has held a name, or has waited for it, whatever becomes of its output and of the store.

use std::io::Write;
use std::process::Stdio;
use std::time::Instant;

use kit::{Mode, Proxy, Server, eventually, lock, millis};
use leasehold::LeaseManager;
use rustix::process::Signal;

use super::{LONG, Running, leasehold, waiting};

/// Starts `hold`, and waits until it has the name.
async fn holds(url: &str, ttl: &str, name: &str) -> Running {
    let mut command = leasehold(url);
    command.args(["hold", "--ttl", ttl, name]).stdin(Stdio::piped());
    let running = Running::start(command);
    eventually(LONG, || running.text("out").contains(name)).await;
    running
}

#[tokio::test]
async fn hold_that_is_cut_off_ends_before_the_name_is_free() {
    let server = Server::start();
    let others = LeaseManager::connect(&server.url()).await.expect("a manager");
    let cut_off = async |mode: Mode| {
        let proxy = Proxy::start(server.port());
        let name = format!("{mode:?}");
        let mut held = holds(&proxy.url(), "10s", &name).await;
        proxy.set(mode);
        eventually(LONG, || held.text("err").contains("is lost")).await;
        let lost = Instant::now();
        eventually(LONG, || held.has_ended()).await;
        let took = lost.elapsed();
        let holder = others.inspect(&name).await.expect("an answer");
        assert!(holder.is_some() && took < millis(700), "{name}: {took:?} of a grace of 1 s");
        held.end().await.with(123);
    };
    tokio::join!(cut_off(Mode::BlackHole), cut_off(Mode::Refuse));
}

#[tokio::test]
async fn hold_whose_reader_is_gone_releases_the_name() {
    let server = Server::start();
    let others = LeaseManager::connect(&server.url()).await.expect("a manager");
    let lease = lock(&others, "job").await;
    let mut command = leasehold(&server.url());
    command.args(["hold", "job"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("started");
    drop(child.stdout.take());
    eventually(LONG, || waiting(&server, "job") == 1).await;
    lease.unlock().await.expect("a release");
    assert_eq!(child.wait().expect("ended").code(), Some(125));
    assert_eq!(server.command(&["EXISTS", "job"]).int(), 0);
}

#[tokio::test]
async fn reader_that_has_seen_enough_is_no_failure() {
    let server = Server::start();
    let others = LeaseManager::connect(&server.url()).await.expect("a manager");
    let _lease = lock(&others, "job").await;
    for words in [&["list", "--all"][..], &["list", "--json", "--all"], &["leader", "job", "-f"]] {
        let mut command = leasehold(&server.url());
        command.args(words).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("started");
        drop(child.stdout.take());
        let output = child.wait_with_output().expect("ended");
        assert_eq!((output.status.code(), &*output.stderr), (Some(0), &b""[..]), "{words:?}");
    }
}

#[tokio::test]
async fn signal_ends_a_hold_whose_line_is_not_read() {
    let server = Server::start();
    let (_reader, mut writer) = std::io::pipe().expect("a pipe");
    let size = rustix::pipe::fcntl_getpipe_size(&writer).expect("a size");
    writer.write_all(&vec![b'x'; size]).expect("room");
    let mut command = leasehold(&server.url());
    command.args(["hold", "job"]).stdin(Stdio::piped()).stdout(writer);
    let mut child = command.spawn().expect("started");
    drop(command);
    eventually(LONG, || server.command(&["EXISTS", "job"]).int() == 1).await;
    tokio::time::sleep(millis(300)).await;
    assert!(child.try_wait().expect("a child").is_none(), "it waits for the reader");
    crate::send(&child, Signal::TERM);
    let ended = Instant::now();
    while child.try_wait().expect("a child").is_none() && ended.elapsed() < LONG {
        tokio::time::sleep(millis(10)).await;
    }
    let status = child.try_wait().expect("a child");
    let _ = child.kill();
    assert_eq!(status.and_then(|status| status.code()), Some(0));
    assert_eq!(server.command(&["EXISTS", "job"]).int(), 0);
}

/// Nothing is held then, so an answer is of little use.
#[tokio::test]
async fn wait_that_has_ended_is_taken_back_in_two_seconds() {
    let server = Server::start();
    let others = LeaseManager::connect(&server.url()).await.expect("a manager");
    let waits = async |words: &str| {
        let proxy = Proxy::start(server.port());
        let _lease = lock(&others, words).await;
        let mut command = leasehold(&proxy.url());
        command.args(words.split(' ')).args(["-w", "2s", words]);
        if words != "hold" {
            command.args(["--", "true"]);
        }
        let mut running = Running::start(command);
        eventually(LONG, || waiting(&server, words) == 1).await;
        let begun = Instant::now();
        proxy.set(Mode::BlackHole);
        eventually(LONG, || running.has_ended()).await;
        let took = begun.elapsed();
        let ended = running.end().await;
        assert!([124, 125].contains(&ended.code()), "{words}: {ended:?}");
        // The last request of a job is waited for.
        let attempt = if words.contains("--once") { 3_000 } else { 0 };
        assert!(took < millis(2_000 + attempt + 2_000 + 1_500), "{words}: {took:?}");
    };
    tokio::join!(waits("hold"), waits("run"), waits("run --once 1h"));
}

#[tokio::test]
async fn second_signal_ends_a_release() {
    let server = Server::start();
    let folder = tempfile::tempdir().expect("a folder");
    let releases = async |words: &str| {
        let file = folder.path().join(words).display().to_string();
        let proxy = Proxy::start(server.port());
        let running = if words == "hold" {
            holds(&proxy.url(), "30s", words).await
        } else {
            let mut command = leasehold(&proxy.url());
            let script = r#"until [ -e "$0" ]; do sleep 0.05; done; exit 3"#;
            command.args(words.split(' ')).args([words, "--", "sh", "-c", script, &file]);
            Running::start(command)
        };
        eventually(LONG, || server.command(&["EXISTS", words]).int() == 1).await;
        tokio::time::sleep(millis(500)).await;
        proxy.set(Mode::BlackHole);
        if words == "hold" {
            running.signal(Signal::TERM);
        } else {
            std::fs::write(&file, "").expect("a file");
        }
        let said = format!("{words}: the store has not confirmed the release");
        eventually(LONG, || running.text("err").contains(&said)).await;
        let begun = Instant::now();
        if words != "hold" {
            running.signal(Signal::INT);
        }
        running.signal(Signal::TERM);
        let code = if words == "hold" { 125 } else { 3 };
        let ended = running.end().await.with(code);
        assert!(ended.err.contains("not released; free after the ttl"), "{ended:?}");
        assert!(begun.elapsed() < millis(2_500), "{words}: {:?}", begun.elapsed());
    };
    let once = releases("run --once 1h");
    tokio::join!(releases("hold"), releases("run"), once, releases("elect"));
}

#[tokio::test]
async fn release_that_fails_is_said_with_what_follows() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let mut held = holds(&proxy.url(), "6s", "job").await;
    proxy.set(Mode::BlackHole);
    drop(held.child.stdin.take());
    let ended = held.end().await.with(125);
    assert!(ended.err.contains("job") && ended.err.contains("free after the ttl"), "{ended:?}");
}
