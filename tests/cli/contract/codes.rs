//! The table of exit codes.

use std::fs;
use std::time::Instant;

use kit::{Server, eventually, lock, millis};
use leasehold::LeaseManager;
use rustix::process::Signal;

use super::tree::Tree;
use super::{LONG, Running, ended, leasehold, run};

#[tokio::test]
async fn child_that_ends_gives_its_own_code() {
    let server = Server::start();
    for code in [0, 1, 3, 123, 255] {
        let script = format!("exit {code}");
        let done = ended(run(&server.url(), &["job", "--", "sh", "-c", &script])).await;
        assert_eq!(done.with(code).err, "", "a child that ends is no news");
    }
    assert_eq!(server.command(&["EXISTS", "job"]).int(), 0, "the name is free again");
}

#[tokio::test]
async fn child_that_a_signal_ends_gives_128_and_its_number() {
    let server = Server::start();
    for (name, number) in [("TERM", 15), ("KILL", 9), ("HUP", 1), ("USR1", 10)] {
        let script = format!("kill -{name} $$");
        ended(run(&server.url(), &["job", "--", "sh", "-c", &script])).await.with(128 + number);
    }
}

#[tokio::test]
async fn missing_program_is_127_and_one_without_permission_126() {
    let server = Server::start();
    let folder = tempfile::tempdir().expect("a folder");
    let text = folder.path().join("text");
    fs::write(&text, "no program").expect("a file");
    for program in ["/no/such/program", "no-such-program-on-any-path"] {
        let done = ended(run(&server.url(), &["job", "--", program])).await.with(127);
        assert!(done.err.contains(program), "{done:?}");
    }
    for program in [text.as_path(), folder.path()] {
        let program = program.to_str().expect("UTF-8");
        let done = ended(run(&server.url(), &["job", "--", program])).await.with(126);
        assert!(done.err.contains(program), "{done:?}");
    }
    assert_eq!(server.command(&["EXISTS", "job"]).int(), 0, "the name is free again");
}

#[tokio::test]
async fn taken_name_is_124_or_the_code_that_was_asked_for() {
    let server = Server::start();
    let others = LeaseManager::connect(&server.url()).await.expect("a manager");
    let lease = lock(&others, "job").await;
    let folder = tempfile::tempdir().expect("a folder");
    let trace = folder.path().join("trace");
    let child = ["job", "--", "touch", trace.to_str().expect("UTF-8")];
    let cases: [(&[&str], i32); 7] = [
        (&["-n"], 124),
        (&["-w", "1s"], 124),
        (&["--wait", "1s"], 124),
        (&["-n", "--busy-code", "0"], 0),
        (&["-n", "-E", "75"], 75),
        (&["-w", "1s", "--busy-code", "0"], 0),
        (&["-n", "--fair"], 124),
    ];
    for (options, code) in cases {
        let start = Instant::now();
        ended(run(&server.url(), &[options, &child[..]].concat())).await.with(code);
        if options.iter().any(|option| option.starts_with("-w") || *option == "--wait") {
            assert!(start.elapsed() >= millis(1_000), "{options:?}: it did not wait");
        }
        assert!(!trace.exists(), "{options:?}: the child ran without the lease");
    }
    lease.unlock().await.expect("a release");
    ended(run(&server.url(), &[&["-n"][..], &child].concat())).await.with(0);
    assert!(trace.exists(), "the child did not run");
}

#[tokio::test]
async fn command_that_cannot_do_its_work_is_125() {
    let server = Server::start();
    let url = server.url();
    let cases: [&[&str]; 9] = [
        &["run", "job", "--no-such-option", "--", "true"],
        &["run", "job", "--"],
        &["run", "--", "true"],
        &["run", "--ttl", "1s", "job", "--", "true"],
        &["run", "-w", "soon", "job", "--", "true"],
        &["run", "-n", "-w", "1s", "job", "--", "true"],
        &["run", "--shared", "--permit", "3", "job", "--", "true"],
        &["run", "--on-lost", "NOSUCH", "job", "--", "true"],
        &["run", "--url", "gopher://127.0.0.1", "job", "--", "true"],
    ];
    for words in cases {
        let mut command = leasehold(&url);
        command.args(words);
        let done = ended(command).await.with(125);
        assert!(!done.err.is_empty(), "{words:?}: no word of why");
        assert!(!done.err.contains("panicked"), "{words:?}: {}", done.err);
        assert_eq!(done.out, "", "{words:?}");
    }
    let mut without_store = run("", &["job", "--", "true"]);
    without_store.env_remove("LEASEHOLD_URL");
    let done = ended(without_store).await.with(125);
    assert!(done.err.contains("LEASEHOLD_URL"), "{done:?}");
    // Nothing listens there.
    let nowhere = format!("redis://127.0.0.1:{}", kit::server::free_port());
    let done = ended(run(&nowhere, &["--fail-fast", "job", "--", "true"])).await.with(125);
    assert!(!done.err.is_empty(), "no word of why");
}

/// The lease is taken away, which no clock foretells.
#[tokio::test]
async fn lease_that_is_lost_is_123_and_the_tree_is_gone() {
    let server = Server::start();
    let others = LeaseManager::connect(&server.url()).await.expect("a manager");
    for deaf in [false, true] {
        let tree = Tree::new(deaf);
        let running = Running::start(run(&server.url(), &tree.words("job")));
        tree.grown().await;
        assert!(others.force_unlock("job", "a test").await.expect("an answer"), "it is held");
        let done = running.end().await.with(123);
        assert!(done.err.contains("lost"), "{done:?}");
        assert!(tree.alive().is_empty(), "deaf: {deaf}");
    }
}

/// A job that another replica has done is done.
#[tokio::test]
async fn job_that_is_done_is_not_run_again() {
    let server = Server::start();
    let folder = tempfile::tempdir().expect("a folder");
    let trace = folder.path().join("trace");
    let script = format!("echo run >> {}; exit $0", trace.display());
    let once = |code| run(&server.url(), &["--once", "1h", "job", "--", "sh", "-c", &script, code]);
    ended(once("7")).await.with(7);
    ended(once("0")).await.with(0);
    ended(once("0")).await.with(0);
    let runs = fs::read_to_string(&trace).expect("a trace");
    assert_eq!(runs.lines().count(), 2, "the one that failed, and the one that did it");
}

/// The whole tree keeps the lease, as with `flock`.
#[tokio::test]
async fn lease_ends_with_the_last_process_of_the_tree() {
    let server = Server::start();
    let others = LeaseManager::connect(&server.url()).await.expect("a manager");
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let [go, done] = [path("go"), path("done")];
    let script =
        r#"setsid sh -c 'until [ -e "$0" ]; do sleep 0.05; done; : > "$1"' "$0" "$1" & exit 5"#;
    let child = ["job", "--", "sh", "-c", script, &go, &done];

    let running = Running::start(run(&server.url(), &child));
    eventually(LONG, || server.command(&["EXISTS", "job"]).int() == 1).await;
    let mut next = others.lock("job");
    let early = next.lock_timeout(millis(1_500)).await.expect("an answer");
    assert!(early.is_none(), "a process of the tree still runs");
    fs::write(&go, "").expect("a file");
    let lease = kit::within(LONG, next.lock()).await.expect("a lease");
    assert!(fs::exists(&done).expect("an answer"), "the lease ended before the tree");
    running.end().await.with(5);
    lease.unlock().await.expect("a release");

    // With -o the lease ends with the direct child.
    fs::remove_file(&go).expect("a file");
    fs::remove_file(&done).expect("a file");
    let running = Running::start(run(&server.url(), &[&["-o"][..], &child].concat()));
    running.end().await.with(5);
    let _lease = kit::within(LONG, next.lock()).await.expect("a lease");
    assert!(!fs::exists(&done).expect("an answer"), "the process in the background has ended");
    fs::write(&go, "").expect("a file");
    eventually(LONG, || fs::exists(&done).expect("an answer")).await;
}

/// What a person sends to the command is for the program.
#[tokio::test]
async fn signals_reach_the_child_and_its_code_is_the_answer() {
    let server = Server::start();
    let cases = [
        (Signal::TERM, "TERM", 15),
        (Signal::INT, "INT", 2),
        (Signal::HUP, "HUP", 1),
        (Signal::QUIT, "QUIT", 3),
        (Signal::USR1, "USR1", 10),
        (Signal::USR2, "USR2", 12),
    ];
    for (signal, name, number) in cases {
        for handled in [true, false] {
            let script = if handled {
                format!(
                    "trap 'echo heard; exit 9' {name}; echo ready; while :; do sleep 0.05; done"
                )
            } else {
                format!("trap - {name}; echo ready; while :; do sleep 0.05; done")
            };
            let running = Running::start(run(&server.url(), &["job", "--", "sh", "-c", &script]));
            eventually(LONG, || running.text("out").contains("ready")).await;
            running.signal(signal);
            let done = running.end().await;
            if handled {
                assert!(done.with(9).out.contains("heard"), "{name}");
            } else {
                assert_eq!(done.code(), 128 + number, "{name}: {done:?}");
            }
            assert_eq!(server.command(&["EXISTS", "job"]).int(), 0, "{name}: it is not released");
        }
    }
}

/// The lease outlives many times its time to live, and the child stops at nothing but its end.
#[tokio::test]
async fn child_runs_longer_than_the_time_to_live() {
    let server = Server::start();
    let others = LeaseManager::connect(&server.url()).await.expect("a manager");
    let running = Running::start(run(&server.url(), &["job", "--", "sh", "-c", "sleep 8; exit 4"]));
    eventually(LONG, || server.command(&["EXISTS", "job"]).int() == 1).await;
    let mut lock = others.lock("job");
    let free = lock.lock_timeout(millis(6_000)).await.expect("an answer");
    assert!(free.is_none(), "the lease was not renewed");
    running.end().await.with(4);
}
