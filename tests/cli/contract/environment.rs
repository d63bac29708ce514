//! What a child finds in its environment, and which secrets it does not.

use std::collections::BTreeMap;
use std::fs;

use kit::{Server, eventually};
use leasehold::LeaseManager;
use rustix::process::Signal;

use super::{Ended, LONG, Running, descendants, ended, keepers, leasehold, parts, run};

const SECRET: &str = "s3cr3t-of-the-test";

/// The variables that a child has printed with `env`.
fn variables(ended: &Ended) -> BTreeMap<String, String> {
    let pairs = ended.out.lines().filter_map(|line| line.split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// This command as a shell would call it.
fn quoted() -> String {
    format!("'{}'", env!("CARGO_BIN_EXE_leasehold"))
}

#[tokio::test]
async fn child_knows_its_name_fence_and_slot() {
    let server = Server::start();
    let others = LeaseManager::connect(&server.url()).await.expect("a manager");
    let running =
        Running::start(run(&server.url(), &["job", "--", "sh", "-c", "env; exec sleep 1000"]));
    eventually(LONG, || running.text("out").contains("LEASEHOLD_HELD")).await;
    let holder = others.inspect("job").await.expect("an answer").expect("a holder");
    // Hand-offs have tokens up to this one.
    let reserved = server.command(&["GET", "redisson_lock_token:{job}"]).text();
    running.signal(Signal::TERM);
    let found = variables(&running.end().await);
    assert_eq!(found["LEASEHOLD_NAME"], "job");
    let fence = &found["LEASEHOLD_FENCE"];
    let number = |text: &str| text.parse::<u64>().expect("a number");
    assert!((number(&reserved) - 100..=number(&reserved)).contains(&number(fence)), "{fence}");
    assert_eq!(found["LEASEHOLD_HOLDER"], holder.holder);
    assert_eq!(found["LEASEHOLD_HELD"], format!("job={fence}"));
    assert!(!found.contains_key("LEASEHOLD_SLOT"), "there is none");

    let done = ended(run(&server.url(), &["--slot", "4", "gpu", "--", "env"])).await.with(0);
    let slot: u32 = variables(&done)["LEASEHOLD_SLOT"].parse().expect("a number");
    assert!(slot < 4, "{slot}");
}

/// A larger number each time, as the resource needs it.
#[tokio::test]
async fn fences_of_two_runs_grow() {
    let server = Server::start();
    let mut fences = Vec::new();
    for _ in 0..2 {
        let done = ended(run(&server.url(), &["job", "--", "env"])).await.with(0);
        fences.push(variables(&done)["LEASEHOLD_FENCE"].parse::<u64>().expect("a number"));
    }
    assert!(fences[0] < fences[1], "{fences:?}");
}

#[tokio::test]
async fn innermost_run_wins_and_all_are_listed() {
    let server = Server::start();
    let script = format!("{} run --ttl 3s inner -- env", quoted());
    let done = ended(run(&server.url(), &["outer", "--", "sh", "-c", &script])).await.with(0);
    let found = variables(&done);
    assert_eq!(found["LEASEHOLD_NAME"], "inner");
    let held: Vec<&str> = found["LEASEHOLD_HELD"].split(',').collect();
    let names: Vec<&str> = held.iter().filter_map(|pair| Some(pair.split_once('=')?.0)).collect();
    assert_eq!(names, ["outer", "inner"]);
    assert!(held[1].ends_with(&found["LEASEHOLD_FENCE"]), "{found:?}");
    // A variable of the outer one that the inner one does not set would be about another lease.
    let script = format!("{} run --ttl 3s inner -- env", quoted());
    let done = ended(run(&server.url(), &["--slot", "4", "gpu", "--", "sh", "-c", &script])).await;
    assert!(!variables(&done.with(0)).contains_key("LEASEHOLD_SLOT"), "that of the outer run");
}

/// It would wait for itself.
#[tokio::test]
async fn nested_run_of_a_held_name_is_refused_or_enters() {
    let server = Server::start();
    let nested = |options: &str| format!("{} run {options} job -- sh -c 'exit 8'", quoted());
    let done = ended(run(&server.url(), &["job", "--", "sh", "-c", &nested("")])).await.with(125);
    assert!(done.err.contains("job"), "{done:?}");
    let entering = nested("--enter");
    ended(run(&server.url(), &["job", "--", "sh", "-c", &entering])).await.with(8);
    // Two names below, too.
    let between = format!("{} run other -- {}", quoted(), nested(""));
    ended(run(&server.url(), &["job", "--", "sh", "-c", &between])).await.with(125);
    // Another name whose text contains this one is another name.
    let longer = format!("{} run jo -- sh -c 'exit 8'", quoted());
    ended(run(&server.url(), &["job", "--", "sh", "-c", &longer])).await.with(8);
}

/// What a name may contain is no end of it.
#[tokio::test]
async fn names_with_separators_are_not_mistaken_for_others() {
    let server = Server::start();
    let inner = format!("{} run --ttl 3s -n b -- sh -c 'exit 8'", quoted());
    for name in ["a=1,b", "a,b=2", "b,", "x b", "a\nb"] {
        let done = ended(run(&server.url(), &[name, "--", "sh", "-c", &inner])).await;
        assert_eq!(done.code(), 8, "{name:?}: {done:?}");
    }
}

#[tokio::test]
async fn password_is_in_no_process_below_and_in_no_message() {
    let server = Server::start_with(&["--requirepass", SECRET]);
    let url = server.url_as("default", SECRET, 0);
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("password");
    fs::write(&file, SECRET).expect("a file");
    let by_variable = || run(&url, &["job", "--", "sh", "-c", "echo in; sleep 1000 & wait"]);
    let by_file = || {
        let mut command = by_variable();
        command.env("LEASEHOLD_URL", server.url()).env("LEASEHOLD_PASSWORD_FILE", &file);
        command
    };
    for (way, command) in [("url", by_variable()), ("file", by_file())] {
        let running = Running::start(command);
        eventually(LONG, || running.text("out").contains("in")).await;
        // The keeper, the shell and the sleep, which begins after the word.
        eventually(LONG, || descendants(running.child.id()).len() >= 3).await;
        let below = descendants(running.child.id());
        assert_eq!(keepers(&running).len(), 1, "{way}: one keeper");
        for pid in below {
            for kind in ["environ", "cmdline"] {
                let found = parts(pid, kind);
                let is_there = found.iter().any(|part| part.contains(SECRET));
                assert!(!is_there, "{way}: {pid} {kind}: {found:?}");
            }
        }
        let words = parts(running.child.id(), "cmdline");
        assert!(!words.iter().any(|word| word.contains(SECRET)), "{way}: {words:?}");
        running.signal(Signal::TERM);
        let done = running.end().await;
        assert!(!(done.out + &done.err).contains(SECRET), "{way}");
    }
}

/// Other users of the machine could read it.
#[tokio::test]
async fn password_in_an_option_is_refused() {
    let mut command = leasehold("");
    let url = format!("redis://default:{SECRET}@127.0.0.1");
    command.env_remove("LEASEHOLD_URL").args(["--url", &url, "run", "job", "--", "true"]);
    let done = ended(command).await.with(125);
    assert!(done.err.contains("LEASEHOLD_PASSWORD_FILE"), "{done:?}");
    assert!(!done.err.contains(SECRET), "{done:?}");
}

#[tokio::test]
async fn wrong_password_is_reported_without_its_text() {
    let server = Server::start_with(&["--requirepass", "another"]);
    let url = server.url_as("default", SECRET, 0);
    for variable in ["error", "trace"] {
        let mut command = run(&url, &["--fail-fast", "job", "--", "true"]);
        command.env("RUST_LOG", variable);
        let done = ended(command).await.with(125);
        assert!(!done.err.is_empty() && !done.err.contains(SECRET), "{}", done.err);
    }
    // One that cannot be read as a URL, too.
    for broken in [format!("redis://default:{SECRET}@"), format!("redis//:{SECRET}@host")] {
        let done = ended(run(&broken, &["--fail-fast", "job", "--", "true"])).await.with(125);
        assert!(!done.err.is_empty() && !done.err.contains(SECRET), "{}", done.err);
    }
}
