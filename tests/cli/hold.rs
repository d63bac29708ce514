//! `hold`, `wait`, `unlock`, `leader`, `completions` and `man`.

use crate::{Lines, leasehold};
use kit::Server;
use leasehold::{LeaseManager, Loss};
use std::io::Read;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

async fn manager(server: &Server) -> LeaseManager {
    LeaseManager::connect(server.url()).await.expect("connected")
}

/// Starts `hold`, and waits until it has said that it holds the name.
fn holds(server: &Server, arguments: &[&str]) -> (Child, Lines, serde_json::Value) {
    let mut child = leasehold(server)
        .arg("hold")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    let mut lines = Lines::of(child.stdout.take().expect("piped"));
    let line = lines.next().expect("a line");
    let line = serde_json::from_str(&line).expect("a line of JSON");
    (child, lines, line)
}

#[tokio::test(flavor = "multi_thread")]
async fn hold_holds_until_its_input_ends() {
    let server = Server::start();
    let leases = manager(&server).await;
    let (mut child, _lines, line) = holds(&server, &["a", "--label", "deploy"]);
    let holder = leases.inspect("a").await.expect("an answer").expect("held");
    assert_eq!(line["name"], "a");
    assert_eq!(line["holder"], holder.holder.as_str());
    assert!(line["fence"].as_u64().is_some_and(|fence| fence > 0), "{line}");
    assert_eq!(holder.owner.expect("described").pid, child.id());
    let label = async || {
        let holder = leases.inspect("a").await.expect("an answer").expect("held");
        holder.metadata.and_then(|metadata| metadata.label)
    };
    while label().await.as_deref() != Some("deploy") {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    drop(child.stdin.take());
    assert_eq!(child.wait().expect("ended").code(), Some(0));
    assert_eq!(leases.inspect("a").await.expect("an answer"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn hold_ends_when_its_lease_is_lost() {
    let server = Server::start();
    let leases = manager(&server).await;
    let (mut child, _lines, _) = holds(&server, &["a"]);
    // A wait for the child would close its input.
    let _input = child.stdin.take();
    assert!(leases.force_unlock("a", "its host is gone").await.expect("released"));
    let mut said = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut said).expect("text");
    assert_eq!(child.wait().expect("ended").code(), Some(123));
    assert!(said.contains("a is lost") && said.contains("its host is gone"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn hold_of_a_name_that_is_held_ends_with_124() {
    let server = Server::start();
    let leases = manager(&server).await;
    let lease = leases.lock("a").lock().await.expect("a lease");
    for arguments in [&["a", "-n"][..], &["a", "--wait", "100ms"]] {
        let output = leasehold(&server).arg("hold").args(arguments).output().expect("ended");
        assert_eq!(output.status.code(), Some(124), "{output:?}");
        assert!(output.stdout.is_empty());
    }
    lease.unlock().await.expect("released");
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_hold_a_name_together_and_a_writer_alone() {
    let server = Server::start();
    let (mut one, _one, _) = holds(&server, &["a", "--shared"]);
    let (mut other, _other, _) = holds(&server, &["a", "--shared"]);
    let writer = leasehold(&server).args(["hold", "a", "--exclusive", "-n"]).output();
    assert_eq!(writer.expect("ended").status.code(), Some(124));
    for child in [&mut one, &mut other] {
        drop(child.stdin.take());
        assert_eq!(child.wait().expect("ended").code(), Some(0));
    }
    let (mut writer, _writer, _) = holds(&server, &["a", "--exclusive"]);
    drop(writer.stdin.take());
    assert_eq!(writer.wait().expect("ended").code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn hold_has_permits_slots_and_a_code_of_its_own() {
    let server = Server::start();
    for option in ["--permit=2", "--slot=2"] {
        let name = &format!("a{option}");
        let (mut one, _one, first) = holds(&server, &[name, option]);
        let (mut other, _other, second) = holds(&server, &[name, option]);
        let arguments = ["hold", name, option, "-n", "-E", "7"];
        let third = leasehold(&server).args(arguments).output().expect("ended");
        assert_eq!(third.status.code(), Some(7), "{third:?}");
        let mut slots = [&first, &second].map(|line| line["slot"].as_u64());
        slots.sort();
        let expected = if option == "--slot=2" { [Some(0), Some(1)] } else { [None, None] };
        assert_eq!(slots, expected, "{first} {second}");
        for child in [&mut one, &mut other] {
            drop(child.stdin.take());
            assert_eq!(child.wait().expect("ended").code(), Some(0));
        }
    }
    let both = leasehold(&server).args(["hold", "a", "--slot=2", "--fair"]).output();
    assert_eq!(both.expect("ended").status.code(), Some(125));
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn signal_while_hold_waits_leaves_no_arrival_in_a_line() {
    let server = Server::start();
    let leases = manager(&server).await;
    let lease = leases.fair_lock("a").lock().await.expect("a lease");
    let mut child = leasehold(&server).args(["hold", "a", "--fair"]).spawn().expect("started");
    while leases.waiters("a").await.expect("an answer").is_empty() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    crate::send(&child, rustix::process::Signal::TERM);
    assert_eq!(child.wait().expect("ended").code(), Some(128 + 15));
    assert_eq!(leases.waiters("a").await.expect("an answer"), []);
    lease.unlock().await.expect("released");
}

#[tokio::test(flavor = "multi_thread")]
async fn wait_ends_when_the_name_is_free_or_held() {
    let server = Server::start();
    let leases = manager(&server).await;
    let lease = leases.lock("a").lock().await.expect("a lease");
    let late = leasehold(&server).args(["wait", "a", "--wait", "300ms"]).output().expect("ended");
    assert_eq!(late.status.code(), Some(124));
    let held = leasehold(&server).args(["wait", "a", "--until", "held"]).output().expect("ended");
    assert_eq!(held.status.code(), Some(0));
    let mut free = leasehold(&server).args(["wait", "a"]).spawn().expect("started");
    lease.unlock().await.expect("released");
    assert_eq!(free.wait().expect("ended").code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn unlock_asks_or_wants_yes_and_says_why() {
    let server = Server::start();
    let leases = manager(&server).await;
    let mut lock = leases.lock("a");
    let lease = lock.lock().await.expect("a lease");
    let refused = |arguments: &[&str]| {
        let output = leasehold(&server).arg("unlock").args(arguments).output().expect("ended");
        assert_eq!(output.status.code(), Some(125), "{output:?}");
    };
    refused(&["a", "--why", "a test"]);
    refused(&["a", "--force"]);
    refused(&["a", "--force", "--why", "a test"]);
    lease.check().expect("not taken away");
    let output = leasehold(&server)
        .args(["unlock", "a", "--force", "--why", "a test", "--yes", "--json"])
        .output()
        .expect("ended");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(output.stdout, b"{\"name\":\"a\",\"released\":true}\n");
    let again = leasehold(&server)
        .args(["unlock", "a", "--force", "--why", "a test", "--yes"])
        .output()
        .expect("ended");
    assert_eq!(again.status.code(), Some(1), "{again:?}");
    assert_eq!(lease.lost().await, Loss::Revoked);
    let note = lease.note().await.expect("an answer").expect("a note");
    assert!(note.why.contains("a test"), "{note:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn leader_is_shown_and_followed() {
    let server = Server::start();
    let leases = manager(&server).await;
    let none = leasehold(&server).args(["leader", "e"]).output().expect("ended");
    assert_eq!(none.status.code(), Some(1), "{none:?}");
    let mut child = leasehold(&server)
        .args(["leader", "e", "--follow", "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("started");
    let mut lines = Lines::of(child.stdout.take().expect("piped"));
    let mut next = move || -> serde_json::Value {
        serde_json::from_str(&lines.next().expect("a line")).expect("a line of JSON")
    };
    assert_eq!(next()["leader"], serde_json::Value::Null);
    let me = leases.election("e").candidate("10.0.0.7").campaign().await.expect("elected");
    while next()["leader"] != "10.0.0.7" {}
    let shown = leasehold(&server).args(["leader", "e"]).output().expect("ended");
    assert!(String::from_utf8_lossy(&shown.stdout).contains("10.0.0.7"), "{shown:?}");
    me.resign().await.expect("resigned");
    while next()["leader"] != serde_json::Value::Null {}
    child.kill().expect("killed");
    child.wait().expect("ended");
}

#[test]
fn completions_and_manual_pages_are_printed() {
    let text = |arguments: &[&str]| {
        let output = crate::bare().args(arguments).output().expect("ended");
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    for shell in ["bash", "zsh", "fish"] {
        assert!(text(&["completions", shell]).contains("leasehold"), "{shell}");
    }
    assert!(text(&["man"]).contains(".TH leasehold 1"));
    assert!(text(&["man", "hold"]).contains("standard input"));
    let synopsis = |command: &str| {
        let page = text(&["man", command]);
        page.split_once(".SH SYNOPSIS\n").expect("a synopsis").1.lines().next().map(str::to_owned)
    };
    let run = r"leasehold run [OPTIONS] <NAME>... \-\- <COMMAND>...";
    assert_eq!(synopsis("run").as_deref(), Some(run));
    assert_eq!(synopsis("hold").as_deref(), Some("leasehold hold [OPTIONS] <NAME>"));
    assert!(text(&["man", "run"]).contains(".SH DESCRIPTION"));
    // A file, and a program with its arguments.
    let zsh = text(&["completions", "zsh"]);
    assert!(zsh.contains(":FILE:_files'") && zsh.contains("_cmdambivalent"), "{zsh}");
    assert!(zsh.contains(":shell -- The shell:(bash elvish fish powershell zsh)"), "{zsh}");
}

#[test]
fn bad_usage_and_a_store_that_is_not_named_end_with_125() {
    let start = Instant::now();
    for arguments in [&["hold"][..], &["frobnicate"], &["hold", "a", "--wait", "x"], &["hold", "a"]]
    {
        let output = crate::bare().args(arguments).output().expect("ended");
        assert_eq!(output.status.code(), Some(125), "{arguments:?}: {output:?}");
        assert!(!output.stderr.is_empty() && output.stdout.is_empty(), "{arguments:?}: {output:?}");
    }
    assert!(start.elapsed() < Duration::from_secs(60));
    assert_eq!(crate::bare().arg("--help").output().expect("ended").status.code(), Some(0));
}
