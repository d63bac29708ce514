//! The terminal: its foreground group is that of the child while the child runs.
//!
//! A process outside the foreground group is stopped when it changes that group. So leasehold gives the terminal away while it
//! is in that group itself, and a helper that joins the child's group returns it.

use super::tree;
use crate::exit::Exit;
use rustix::process::{Pid, getpid, getppid};
use rustix::termios::{tcgetpgrp, tcsetpgrp};
use std::ffi::OsString;
use std::io::{IsTerminal, stdin, stdout};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};

/// The word that makes this binary the helper.
pub(super) const HELPER: &str = "__foreground";

/// Returns whether the child gets the terminal at once: it reads from it and writes to it. Another program of a pipeline may need
/// it otherwise, such as a pager; then the child gets it when it asks.
pub(super) fn is_for_child() -> bool {
    stdout().is_terminal() && is_ours()
}

/// Returns whether the standard input is a terminal, and this process is in the foreground.
pub(super) fn is_ours() -> bool {
    stdin().is_terminal() && tcgetpgrp(stdin()).is_ok_and(|group| Some(group) == tree::own_group())
}

/// Makes a group that of the foreground, from within that one.
pub(super) fn give(group: Pid) {
    let _ = tcsetpgrp(stdin(), group);
}

/// Returns the terminal to `home`, if `group` is in the foreground.
pub(super) fn return_to(terminal: &OwnedFd, group: Pid, home: Option<Pid>) {
    let Some(home) = home else {
        return;
    };
    if !terminal.is_terminal() || !tcgetpgrp(terminal).is_ok_and(|now| now == group) {
        return;
    }
    let Ok(terminal) = terminal.as_fd().try_clone_to_owned() else {
        return;
    };
    let mut helper = Command::new("/proc/self/exe");
    helper.args([HELPER, &home.as_raw_nonzero().to_string()]);
    helper.stdin(Stdio::from(terminal)).stdout(Stdio::null()).stderr(Stdio::null());
    helper.process_group(group.as_raw_nonzero().get());
    if let Ok(mut helper) = helper.spawn() {
        let _ = helper.wait();
    }
}

/// The helper. The argument: the group that gets the terminal.
pub(super) fn main(mut args: impl Iterator<Item = OsString>) -> ExitCode {
    let group = args.next().and_then(|text| Pid::from_raw(text.to_str()?.parse().ok()?));
    match group.map(|group| tcsetpgrp(stdin(), group)) {
        Some(Ok(())) => Exit::SUCCESS.into(),
        _ => Exit::FAILED.into(),
    }
}

/// Returns whether a shell can continue this process when it is stopped: one of the same session has started it.
pub(super) fn has_shell() -> bool {
    getppid().is_some_and(|parent| tree::session(parent) == tree::session(getpid()))
}
