//! The child and all that came from it: found, signalled and killed.
//!
//! A process is found as a descendant. The keeper is the reaper of its orphans, and leasehold that of the keeper's, so nothing
//! leaves the tree by becoming a daemon. What another service starts on behalf of the child, as `systemd-run` and `docker run`
//! do, is no part of it.

use super::cgroup::Cgroup;
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, getpid, kill_process_group, pidfd_open, pidfd_send_signal,
};
use std::collections::HashMap;
use std::fs;

/// All that this process has to stop.
#[derive(Debug)]
pub(super) struct Tree {
    /// The group of the child, while its leader is not reaped: until then no other group can have its number.
    pub(super) group: Option<Pid>,
    pub(super) cgroup: Option<Cgroup>,
}

/// A process below this one.
#[derive(Clone, Copy, Debug)]
struct Process {
    pid: Pid,
    parent: i32,
    group: i32,
    session: i32,
    is_dead: bool,
}

/// Returns the group of this process. `None` if it lies outside of the namespace, as that of a container's first process may: a
/// system call says 0 then, which is no [`Pid`].
pub(super) fn own_group() -> Option<Pid> {
    Pid::from_raw(read(getpid().as_raw_nonzero().get())?.group)
}

/// Returns the number of the session of a process; `None` if it is not known.
pub(super) fn session(pid: Pid) -> Option<i32> {
    Some(read(pid.as_raw_nonzero().get())?.session)
}

impl Tree {
    /// Sends a signal to the group of the child; to the whole tree if the child has ended.
    pub(super) fn signal_group(&self, signal: Signal) {
        match self.group {
            Some(group) => {
                let _ = kill_process_group(group, signal);
            }
            None => {
                self.signal_each(signal, None);
            }
        }
    }

    /// Sends a signal once to each process of the tree, and wakes those that are stopped. Returns those that may not be
    /// signalled.
    pub(super) fn signal(&self, signal: Signal) -> Vec<Pid> {
        if let Some(group) = self.group {
            let _ = kill_process_group(group, signal);
            let _ = kill_process_group(group, Signal::CONT);
        }
        let denied = self.signal_each(signal, self.group);
        self.signal_each(Signal::CONT, self.group);
        denied
    }

    /// Kills what is there of the tree now. What it forks meanwhile is found by the next call. Returns those that may not be
    /// killed.
    pub(super) fn kill(&self) -> Vec<Pid> {
        if let Some(cgroup) = &self.cgroup {
            cgroup.kill();
        }
        if let Some(group) = self.group {
            let _ = kill_process_group(group, Signal::KILL);
        }
        self.signal_each(Signal::KILL, None)
    }

    fn signal_each(&self, signal: Signal, except: Option<Pid>) -> Vec<Pid> {
        let except = except.map(|group| group.as_raw_nonzero().get());
        let below = descendants().into_iter();
        let asked = below.filter(|process| !process.is_dead && Some(process.group) != except);
        asked.filter(|process| is_denied(*process, signal)).map(|process| process.pid).collect()
    }
}

/// Sends a signal. Returns whether it may not be sent.
fn is_denied(process: Process, signal: Signal) -> bool {
    let Ok(handle) = pidfd_open(process.pid, PidfdFlags::empty()) else {
        return false;
    };
    // The number may be that of another process by now. That of the handle is the one that has this parent.
    let is_same = read(process.pid.as_raw_nonzero().get())
        .is_some_and(|now| now.parent == process.parent || is_orphan(now));
    is_same && pidfd_send_signal(handle, signal) == Err(Errno::PERM)
}

/// Returns whether this process has become the parent of a process.
fn is_orphan(process: Process) -> bool {
    process.parent == getpid().as_raw_nonzero().get()
}

/// Returns all processes below this one.
fn descendants() -> Vec<Process> {
    let names = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = names.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut children: HashMap<i32, Vec<Process>> = HashMap::new();
    for process in numbers.filter_map(read) {
        children.entry(process.parent).or_default().push(process);
    }
    let mut found = Vec::new();
    let mut parents = vec![getpid().as_raw_nonzero().get()];
    while let Some(parent) = parents.pop() {
        let below = children.remove(&parent).unwrap_or_default();
        parents.extend(below.iter().map(|process| process.pid.as_raw_nonzero().get()));
        found.extend(below);
    }
    found
}

/// Reads what the kernel knows of a process.
fn read(number: i32) -> Option<Process> {
    let text = fs::read(format!("/proc/{number}/stat")).ok()?;
    // The name of the program stands in brackets, and may have brackets itself.
    let end = text.iter().rposition(|byte| *byte == b')')?;
    let fields = String::from_utf8_lossy(&text[end + 1..]);
    let mut fields = fields.split_ascii_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    let session = fields.next()?.parse().ok()?;
    let is_dead = matches!(state, "Z" | "X");
    Some(Process { pid: Pid::from_raw(number)?, parent, group, session, is_dead })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    /// A child, because those of the test itself may lie outside of the namespace.
    #[test]
    fn group_and_session_are_those_that_a_process_was_given() {
        for (program, args) in [("cat", &[][..]), ("setsid", &["cat"][..])] {
            let is_session = program == "setsid";
            let mut command = Command::new(program);
            command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
            // A leader of a group cannot make a session without a fork.
            if !is_session {
                command.process_group(0);
            }
            let mut child = command.spawn().expect("a child");
            // `setsid` has done its work when `cat` answers.
            echo(&mut child);
            let number = i32::try_from(child.id()).expect("a number");
            let pid = Pid::from_raw(number).expect("not 0");
            assert_eq!(read(number).expect("it runs").group, number);
            let expected = if is_session { Some(number) } else { session(getpid()) };
            assert_eq!(session(pid), expected);
            drop(child.stdin.take());
            child.wait().expect("its end");
            assert_eq!(session(pid), None);
        }
    }

    fn echo(child: &mut std::process::Child) {
        let mut byte = [b'x'];
        child.stdin.as_mut().expect("a pipe").write_all(&byte).expect("written");
        child.stdout.as_mut().expect("a pipe").read_exact(&mut byte).expect("read");
    }
}
