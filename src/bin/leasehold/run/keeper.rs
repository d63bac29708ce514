//! The keeper: a small process between leasehold and the child, which kills the tree in time, whatever becomes of leasehold.
//!
//! It has no connection to the store. With each confirmed renewal leasehold says until when the tree may run, and a timer of
//! the kernel wakes it then. If leasehold ends without a word, the socket between them says so. It is in a group of its own, so
//! that the keys of the terminal and a signal to leasehold's group do not reach it, and it survives the signals that stop a
//! service as a whole.

use super::cgroup::Cgroup;
use super::clock::{Moment, Until};
use super::message::{Order, Report, receive_file, send_line};
use super::signals::{ENDING, OTHER, Signals};
use super::tree::Tree;
use super::{LAUNCH, signals, terminal};
use crate::exit::Exit;
use crate::output::say;
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, WaitStatus, getpid, set_child_subreaper, wait,
    waitid,
};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use std::collections::HashSet;
use std::ffi::OsString;
use std::io::{self, IsTerminal, stderr, stdin};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as Socket;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::yield_now;
use tokio::time::sleep;

/// The time from one look for what is still alive to the next, while the tree is killed. It grows, for a process that may not be
/// killed.
const ROUND: Duration = Duration::from_millis(5);
/// How many processes are reaped before the next look at the clock and at what leasehold says.
const AT_ONCE: usize = 32;
/// The time after which an end is seen without a signal.
const LONGEST_UNSEEN: Duration = Duration::from_millis(500);
const LONGEST_ROUND: Duration = Duration::from_millis(200);

/// What leasehold says when it starts the keeper.
#[derive(Debug)]
pub(super) struct Charge {
    pub(super) until: Until,
    pub(super) on_lost: Signal,
    /// The end of the child is the end of the tree.
    pub(super) close: bool,
    pub(super) cgroup: Option<Cgroup>,
    /// The child waits until it has the terminal.
    pub(super) terminal: bool,
    /// The group of leasehold, which gets the terminal back. `None` if it lies outside of this namespace.
    pub(super) home: Option<Pid>,
}

impl Charge {
    /// Writes it as arguments, before those of the child.
    pub(super) fn args(&self) -> [OsString; 7] {
        let cgroup = self.cgroup.as_ref().map(|cgroup| cgroup.path().into());
        [
            self.until.stop.0.to_string().into(),
            self.until.kill.0.to_string().into(),
            self.on_lost.as_raw().to_string().into(),
            u8::from(self.close).to_string().into(),
            cgroup.unwrap_or_default(),
            u8::from(self.terminal).to_string().into(),
            self.home.map_or(0, |home| home.as_raw_nonzero().get()).to_string().into(),
        ]
    }

    /// Reads what [`args`](Self::args) has written.
    fn parse(args: &mut impl Iterator<Item = OsString>) -> Option<Self> {
        let mut word = || args.next();
        let number = |word: Option<OsString>| word?.to_str()?.parse::<u64>().ok();
        let small = |number: u64| i32::try_from(number).ok();
        let stop = Moment(number(word())?);
        let kill = Moment(number(word())?);
        let on_lost = Signal::from_named_raw(small(number(word())?)?)?;
        let close = number(word())? == 1;
        let cgroup = word().filter(|path| !path.is_empty());
        let cgroup = cgroup.map(|path| Cgroup::at(PathBuf::from(path)));
        let terminal = number(word())? == 1;
        let home = Pid::from_raw(small(number(word())?)?);
        Some(Self { until: Until { stop, kill }, on_lost, close, cgroup, terminal, home })
    }
}

/// Runs the keeper. The arguments: a [`Charge`], the program and its arguments. The standard input is the socket.
pub(super) fn main(mut args: impl Iterator<Item = OsString>) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let result = match (Charge::parse(&mut args), runtime) {
        (Some(charge), Ok(runtime)) => runtime.block_on(keep(charge, args)),
        (None, _) => Err(io::Error::other("this is no command for people")),
        (_, Err(error)) => Err(error),
    };
    match result {
        Ok(()) => Exit::SUCCESS.into(),
        Err(error) => {
            say(&format!("the keeper failed: {error}"));
            Exit::FAILED.into()
        }
    }
}

async fn keep(charge: Charge, command: impl Iterator<Item = OsString>) -> io::Result<()> {
    set_child_subreaper(Some(getpid()))?;
    let socket = Socket::from(stdin().as_fd().try_clone_to_owned()?);
    let input = receive_file(&socket)?;
    socket.set_nonblocking(true)?;
    let (orders, reports) = UnixStream::from_std(socket)?.into_split();
    let mut orders = BufReader::new(orders).lines();
    // They only must not end it: leasehold gets its own.
    let survived = Signals::new();
    survived.receive(&ENDING)?;
    survived.receive(&OTHER)?;
    let mut children = signal(SignalKind::child())?;
    let timer = Timer::new()?;
    if charge.until.stop <= Moment::now() {
        // Leasehold was stopped before it came to this.
        send_line(&reports, Report::Expired);
        send_line(&reports, Report::Gone(Exit::FAILED.0));
        return Ok(());
    }
    let child = launch(&charge, input.try_clone()?, command)?;
    let mut keeper = Keeper {
        tree: Tree { group: Some(child), cgroup: charge.cgroup.clone() },
        until: charge.until,
        charge,
        child,
        input,
        reports: Some(reports),
        phase: Phase::Running,
        code: None,
        has_more: false,
        denied: HashSet::new(),
        rounds: 0,
    };
    keeper.report(Report::Started(child.as_raw_nonzero().get()));
    keeper.reap();
    while !keeper.is_over() {
        keeper.look_at_clock();
        timer.set(keeper.due())?;
        tokio::select! {
            biased;
            due = timer.0.readable() => {
                due?.clear_ready();
                keeper.look_at_clock();
            }
            line = orders.next_line(), if keeper.reports.is_some() => match line {
                Ok(Some(line)) => keeper.follow(Order::parse(&line)),
                Ok(None) | Err(_) => keeper.be_alone(),
            },
            _ = children.recv() => keeper.reap(),
            () = yield_now(), if keeper.has_more => keeper.reap(),
            // The caller may have blocked the signal that a child sends.
            () = sleep(LONGEST_UNSEEN) => keeper.reap(),
        }
    }
    Ok(())
}

/// Starts the process that becomes the child.
fn launch(
    charge: &Charge,
    input: OwnedFd,
    command: impl Iterator<Item = OsString>,
) -> io::Result<Pid> {
    let mut launch = Command::new("/proc/self/exe");
    launch.arg(LAUNCH).arg(getpid().as_raw_nonzero().to_string());
    launch.arg(charge.cgroup.as_ref().map(|cgroup| cgroup.path()).unwrap_or("".as_ref()));
    launch.arg(u8::from(charge.terminal).to_string()).args(command);
    let child = launch.stdin(Stdio::from(input)).process_group(0).spawn()?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    pid.ok_or_else(|| io::Error::other("the child has no number"))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    /// The tree was asked to stop, and is killed at this moment.
    Stopping(Moment),
    /// The tree is killed, again and again until it has ended; next at this moment.
    Killing(Moment),
    /// The tree has ended.
    Gone,
    Over,
}

struct Keeper {
    charge: Charge,
    tree: Tree,
    until: Until,
    child: Pid,
    /// The standard input of the child.
    input: OwnedFd,
    /// `None` when leasehold has ended.
    reports: Option<OwnedWriteHalf>,
    phase: Phase,
    code: Option<u8>,
    /// More processes may have ended than were reaped.
    has_more: bool,
    denied: HashSet<Pid>,
    /// How often the tree was killed.
    rounds: u32,
}

impl Keeper {
    fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// Returns when there is something to do by the clock.
    fn due(&self) -> Option<Moment> {
        match self.phase {
            Phase::Running => Some(self.until.stop),
            Phase::Stopping(due) | Phase::Killing(due) => Some(due),
            Phase::Gone | Phase::Over => None,
        }
    }

    fn look_at_clock(&mut self) {
        if self.due().is_none_or(|due| due > Moment::now()) {
            return;
        }
        match self.phase {
            Phase::Running => {
                self.report(Report::Expired);
                self.stop(self.until.kill);
            }
            Phase::Stopping(_) | Phase::Killing(_) => self.kill(),
            Phase::Gone | Phase::Over => {}
        }
    }

    fn follow(&mut self, order: Option<Order>) {
        match order {
            // A renewal that is heard of after the tree was asked to stop comes too late for it.
            Some(Order::Until(until)) => self.until = until,
            Some(Order::Lost(kill)) if self.phase == Phase::Running => self.stop(kill),
            Some(Order::Signal(signal)) => self.tree.signal_group(signal),
            Some(Order::Kill) if self.phase != Phase::Gone => self.kill(),
            Some(Order::Done) => self.phase = Phase::Over,
            Some(Order::Lost(_) | Order::Kill) | None => {}
        }
    }

    /// Leasehold has ended without a word, so the lease is not renewed any more.
    fn be_alone(&mut self) {
        self.reports = None;
        match self.phase {
            Phase::Running => self.stop(self.until.kill),
            Phase::Gone => self.phase = Phase::Over,
            Phase::Stopping(_) | Phase::Killing(_) | Phase::Over => {}
        }
    }

    /// Asks the tree to stop, and kills it at `kill`, or earlier if the lease ends earlier.
    fn stop(&mut self, kill: Moment) {
        let kill = kill.min(self.until.kill);
        if self.charge.on_lost == Signal::KILL || kill <= Moment::now() {
            return self.kill();
        }
        self.phase = Phase::Stopping(kill);
        let denied = self.tree.signal(self.charge.on_lost);
        self.deny(denied);
    }

    fn kill(&mut self) {
        let denied = self.tree.kill();
        self.rounds += 1;
        let round = (ROUND * (1 + self.rounds / 50)).min(LONGEST_ROUND);
        self.phase = Phase::Killing(Moment::now().after(round));
        self.deny(denied);
        self.reap();
    }

    /// Says once of each process that it cannot be stopped.
    fn deny(&mut self, denied: Vec<Pid>) {
        for pid in denied {
            if !self.denied.insert(pid) {
                continue;
            }
            let number = pid.as_raw_nonzero().get();
            self.report(Report::Denied(number));
            // A process in the background may be stopped when it writes to a terminal.
            if self.reports.is_none() && !stderr().is_terminal() {
                say(&super::denied(number));
            }
        }
    }

    /// Sees which processes have ended or were stopped.
    fn reap(&mut self) {
        self.has_more = false;
        if matches!(self.phase, Phase::Gone | Phase::Over) {
            return;
        }
        if self.tree.group.is_some() {
            let peek = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            if let Ok(Some(_)) = waitid(WaitId::Pid(self.child), peek) {
                // As long as it is not reaped, its group exists.
                terminal::return_to(&self.input, self.child, self.charge.home);
            }
        }
        // A tree can make orphans as fast as they are reaped.
        for reaped in 1..=AT_ONCE {
            match wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
                Ok(Some((pid, status))) if pid == self.child => self.child_changed(status),
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => break,
                Err(_) => return self.gone(),
            }
            self.has_more = reaped == AT_ONCE;
        }
        if self.charge.close && self.tree.group.is_none() && self.phase == Phase::Running {
            self.gone();
        }
    }

    fn child_changed(&mut self, status: WaitStatus) {
        if let Some(signal) = status.stopping_signal() {
            terminal::return_to(&self.input, self.child, self.charge.home);
            return self.report(Report::Stopped(signal));
        }
        let code = signals::code(status);
        self.code = Some(code);
        self.tree.group = None;
        self.report(Report::Ended(code));
    }

    fn gone(&mut self) {
        if let Some(cgroup) = &self.charge.cgroup {
            cgroup.dissolve();
        }
        self.phase = Phase::Gone;
        self.report(Report::Gone(self.code.unwrap_or(Exit::FAILED.0)));
        if self.reports.is_none() {
            self.phase = Phase::Over;
        }
    }

    /// Reports to leasehold. If it does not read, as when it is stopped, the socket has room for more than is ever said.
    fn report(&mut self, report: Report) {
        if let Some(reports) = &self.reports {
            send_line(reports, report);
        }
    }
}

/// A timer of the kernel, on the clock that goes on while the machine is suspended.
struct Timer(AsyncFd<OwnedFd>);

impl Timer {
    // The way around the deprecation is not there in the oldest tokio that the crate takes.
    #[allow(deprecated)]
    fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self(AsyncFd::new(timerfd_create(TimerfdClockId::Boottime, flags)?)?))
    }

    fn set(&self, due: Option<Moment>) -> io::Result<()> {
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        let it_value = due.map_or(never, Moment::timespec);
        let timer = Itimerspec { it_interval: never, it_value };
        timerfd_settime(self.0.get_ref(), TimerfdTimerFlags::ABSTIME, &timer)?;
        Ok(())
    }
}
