//! A person at a terminal, and outputs that take no more.

use std::fs::{File, OpenOptions};
use std::process::Stdio;

use kit::fault::{connect, let_in, wait_for};
use kit::{Server, eventually, millis};
use rustix::process::Signal;

use super::tree::Tree;
use super::{LONG, Running, TTL, leasehold, run};
use crate::terminal::Terminal;

/// The words as a shell reads them.
fn line(words: &[&str]) -> String {
    let quoted = words.iter().map(|word| format!("'{}'", word.replace('\'', r"'\''")));
    quoted.collect::<Vec<_>>().join(" ")
}

fn run_line(words: &[&str]) -> String {
    line(&[&[env!("CARGO_BIN_EXE_leasehold"), "run", "--ttl", TTL], words].concat())
}

/// A tree by a file, since a line of a terminal is short.
fn tree_line(tree: &Tree, name: &str, folder: &tempfile::TempDir) -> String {
    let file = folder.path().join("start");
    std::fs::write(&file, format!("exec {}\n", line(&tree.command()))).expect("a file");
    run_line(&[name, "--", "sh", file.to_str().expect("UTF-8")])
}

#[tokio::test]
async fn program_reads_the_terminal_and_the_shell_gets_it_back() {
    let server = Server::start();
    let mut terminal = Terminal::open(&server.url());
    let script = r#"a=sk; printf "a$a "; read word; echo "go""t:$word""#;
    terminal.enter(&run_line(&["job", "--", "sh", "-c", script]));
    terminal.shows("ask ");
    terminal.enter("blue");
    terminal.shows("got:blue");
    terminal.enter("echo co''de-$?");
    terminal.shows("code-0");
    // The shell was not stopped by its own read, and its job control works.
    terminal.enter(&run_line(&["job", "--", "sh", "-c", "test -t 0 && test -t 1 && exit 5"]));
    terminal.enter("echo no''w-$?");
    terminal.shows("now-5");
}

#[tokio::test]
async fn interrupt_ends_the_program_and_the_run() {
    let server = Server::start();
    let folder = tempfile::tempdir().expect("a folder");
    let mut terminal = Terminal::open(&server.url());
    let tree = Tree::new(false);
    terminal.enter(&tree_line(&tree, "job", &folder));
    tree.grown().await;
    terminal.press("\x03");
    // What left the group is ended too, or waited for: a second one ends it.
    tokio::time::sleep(millis(500)).await;
    terminal.press("\x03");
    eventually(LONG, || tree.alive().is_empty()).await;
    terminal.enter("echo co''de-$?");
    terminal.shows("code-1");
    assert!(
        ["code-130", "code-137"].iter().any(|code| terminal.screen().contains(code)),
        "{}",
        terminal.screen()
    );
    eventually(LONG, || server.command(&["EXISTS", "job"]).int() == 0).await;
}

/// The prompt is back, and what was stopped never goes on beside the next holder.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tree_is_gone_after_ctrl_z() {
    let server = Server::start();
    for deaf in [false, true] {
        let folder = tempfile::tempdir().expect("a folder");
        let mut terminal = Terminal::open(&server.url());
        let tree = Tree::new(deaf);
        terminal.enter(&tree_line(&tree, "job", &folder));
        tree.grown().await;
        let others = connect(&server.url(), millis(3_000)).await;
        let waiting = wait_for(&others, "job");
        terminal.press("\x1a");
        terminal.enter("echo promp''t");
        terminal.shows("prompt");
        let (lease, _) = let_in(waiting).await;
        assert!(tree.alive().is_empty(), "the rival has the name, deaf: {deaf}");
        lease.unlock().await.expect("a release");
        terminal.enter("fg; echo co''de-$?");
        terminal.shows("code-123");
    }
}

/// Stopped for a moment, it goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn program_goes_on_after_a_short_ctrl_z() {
    let server = Server::start();
    let mut terminal = Terminal::open(&server.url());
    // A shell between vfork and exec cannot be stopped, with or without leasehold. So the script starts all before it prints.
    let script = r#"a=go; sleep 1 & echo "${a}ing"; wait; echo "${a}ne"; exit 4"#;
    let words = ["run", "--ttl", "20s", "job", "--", "sh", "-c", script];
    terminal.enter(&line(&[&[env!("CARGO_BIN_EXE_leasehold")], &words[..]].concat()));
    terminal.shows("going");
    terminal.press("\x1a");
    terminal.enter("echo promp''t");
    terminal.shows("prompt");
    terminal.enter("fg; echo co''de-$?");
    terminal.shows("gone");
    terminal.shows("code-4");
}

/// In the background it is not stopped for the terminal's sake.
#[tokio::test]
async fn run_in_the_background_leaves_the_terminal_alone() {
    let server = Server::start();
    let mut terminal = Terminal::open(&server.url());
    let script = r#"a=backg; sleep 0.5; echo "${a}round"; exit 7"#;
    terminal.enter(&format!("{} &", run_line(&["job", "--", "sh", "-c", script])));
    terminal.enter("echo sti''ll");
    terminal.shows("still");
    terminal.shows("background");
    terminal.enter("wait %1; echo co''de-$?");
    terminal.shows("code-7");
}

#[tokio::test]
async fn narrow_terminal_is_no_reason_to_fail() {
    let server = Server::start();
    let mut terminal = Terminal::open(&server.url());
    for (columns, n) in [(1, 0), (20, 1)] {
        terminal.enter(&format!("stty cols {columns}"));
        let program = env!("CARGO_BIN_EXE_leasehold");
        terminal.enter(&format!("'{program}' run --help; echo hel''p-{n}-$?"));
        terminal.shows(&format!("help-{n}-0"));
        terminal.enter(&format!("{}; echo ra''n-{n}-$?", run_line(&["job", "--", "true"])));
        terminal.shows(&format!("ran-{n}-0"));
    }
}

/// The output is the child's. The command has nothing to write there.
#[tokio::test]
async fn outputs_that_take_nothing_are_the_childs_business() {
    let server = Server::start();
    let full = || OpenOptions::new().write(true).open("/dev/full").expect("a device");
    for code in [0, 3] {
        let script = format!("exit {code}");
        let mut command = run(&server.url(), &["job", "--", "sh", "-c", &script]);
        command.stdout(full()).stderr(full());
        let status = command.status().expect("the command starts");
        assert_eq!(status.code(), Some(code));
        // Without the three descriptors at all.
        let words = [
            env!("CARGO_BIN_EXE_leasehold"),
            "run",
            "--ttl",
            TTL,
            "job",
            "--",
            "sh",
            "-c",
            &script,
        ];
        let mut shell = leasehold(&server.url());
        let closing = format!("exec {} <&- >&- 2>&-", line(&words));
        let mut closed = crate::program("sh");
        closed.args(["-c", &closing]);
        for (name, value) in shell.stdin(Stdio::null()).get_envs() {
            match value {
                Some(value) => closed.env(name, value),
                None => closed.env_remove(name),
            };
        }
        assert_eq!(closed.status().expect("a shell").code(), Some(code), "closed");
    }
    // A loss is said for nothing, and the code is the same.
    let tree = Tree::new(false);
    let mut command = run(&server.url(), &tree.words("job"));
    command.stdout(full()).stderr(full());
    let mut child = command.spawn().expect("the command starts");
    tree.grown().await;
    let others = connect(&server.url(), millis(3_000)).await;
    assert!(others.force_unlock("job", "a test").await.expect("an answer"));
    eventually(LONG, || child.try_wait().expect("a child").is_some()).await;
    assert_eq!(child.wait().expect("an end").code(), Some(123));
    assert!(tree.alive().is_empty(), "{:?}", tree.alive());
}

/// The child's input and output are those of the command.
#[tokio::test]
async fn child_reads_the_input_and_writes_the_output() {
    let server = Server::start();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("input");
    std::fs::write(&file, "a line\n").expect("a file");
    let mut command = run(&server.url(), &["job", "--", "sh", "-c", "cat; echo told >&2"]);
    command.stdin(File::open(&file).expect("a file"));
    let output = command.output().expect("the command starts");
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(output.stdout, b"a line\n");
    assert_eq!(output.stderr, b"told\n");
}

/// One that does not end by itself, and does not listen.
#[tokio::test]
async fn second_interrupt_kills() {
    let server = Server::start();
    let tree = Tree::new(true);
    let mut running = Running::start(run(&server.url(), &tree.words("job")));
    tree.grown().await;
    running.signal(Signal::INT);
    tokio::time::sleep(millis(1_000)).await;
    assert!(!running.has_ended(), "the first one is forwarded, and the tree is deaf");
    running.signal(Signal::INT);
    let done = running.end().await;
    assert_eq!(done.code(), 137, "{done:?}");
    assert!(tree.alive().is_empty(), "{:?}", tree.alive());
    assert_eq!(server.command(&["EXISTS", "job"]).int(), 0, "it is not released");
}
