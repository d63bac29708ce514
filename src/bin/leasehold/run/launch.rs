//! The last steps before the child's program, in the process that becomes it.
//!
//! The keeper starts this binary, in a group of its own. It dies with the keeper by the kernel, enters the cgroup before it is
//! any other program, waits for the terminal, and becomes the program.

use super::cgroup::Cgroup;
use super::environment;
use crate::exit::{Exit, Failure};
use crate::output::say;
use rustix::process::{Pid, Signal, getpgrp, getppid, set_parent_process_death_signal};
use rustix::termios::tcgetpgrp;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::thread;
use std::time::Duration;

/// How long it waits for the terminal: leasehold may be slow, and the program can do without.
const LONGEST_WAIT: Duration = Duration::from_millis(500);
const STEP: Duration = Duration::from_millis(2);

/// Becomes the program. The arguments: the keeper, the cgroup or nothing, whether to wait for the terminal, the program and its
/// arguments.
pub(super) fn main(mut args: impl Iterator<Item = OsString>) -> ExitCode {
    let mut text = || args.next().unwrap_or_default();
    let keeper = text();
    let cgroup = text();
    let terminal = text();
    let Some(program) = args.next() else {
        return Exit::FAILED.into();
    };
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let keeper = keeper.to_str().and_then(|keeper| Pid::from_raw(keeper.parse().ok()?));
    if keeper.is_none() || getppid() != keeper {
        // The keeper has ended before the line above: nothing would stop the program.
        return Exit::FAILED.into();
    }
    if !cgroup.is_empty()
        && let Err(error) = Cgroup::at(PathBuf::from(cgroup)).enter()
    {
        say(&format!("the cgroup cannot be entered: {error}"));
    }
    if terminal == "1" {
        wait_for_terminal();
    }
    let command: Vec<_> = std::iter::once(program).chain(args).collect();
    become_program(&command).report()
}

/// Becomes a program. Returns only if that fails.
pub(super) fn become_program(command: &[OsString]) -> Failure {
    let Some((program, args)) = command.split_first() else {
        return Failure::new("there is no program to run");
    };
    let mut command = Command::new(program);
    environment::remove_secrets(&mut command);
    let error = command.args(args).exec();
    let program = program.display();
    match error.kind() {
        ErrorKind::NotFound => {
            Failure::new(format!("{program} is not found: {error}")).with_exit(Exit::NOT_FOUND)
        }
        _ => Failure::new(format!("{program} cannot be executed: {error}"))
            .with_exit(Exit::CANNOT_EXECUTE),
    }
}

fn wait_for_terminal() {
    let own = getpgrp();
    for _ in 0..LONGEST_WAIT.as_millis() / STEP.as_millis() {
        if tcgetpgrp(std::io::stdin()).map_or(true, |group| group == own) {
            return;
        }
        thread::sleep(STEP);
    }
}
