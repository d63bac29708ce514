//! Leasehold's part while the child runs: it renews, reports each renewal to the keeper, forwards signals, and stays until the
//! tree has ended.

use super::cgroup::Cgroup;
use super::clock::{Moment, Until, notice};
use super::environment::Scope;
use super::held::Entry;
use super::keeper::Charge;
use super::message::{Order, Report, send_file, send_line};
use super::program::{Program, ended_by};
use super::signals::{OTHER, Signals};
use super::tree::{Tree, own_group};
use super::{KEEPER, Run, environment, signals, terminal};
use crate::duration;
use crate::exit::{Exit, Failure};
use crate::output::say;
use leasehold::Loss;
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, getpid, kill_current_process_group, kill_process,
    set_child_subreaper, wait, waitpid,
};
use std::collections::HashSet;
use std::io::{self, stdin};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as Socket;
use std::os::unix::process::CommandExt;
use std::pin::Pin;
use std::process::{Command, Stdio};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::time::sleep;

/// How often leasehold looks for a confirmed renewal. It looks more often when the deadline is near.
const LOOK: Duration = Duration::from_millis(250);
const SHORTEST_LOOK: Duration = Duration::from_millis(10);
/// The time between two looks at what is still alive, where leasehold kills the tree itself.
const ROUND: Duration = Duration::from_millis(5);
/// How long the keeper may take to end.
const LAST: Duration = Duration::from_secs(1);

/// What the child runs under.
pub(super) struct Grant<'a> {
    pub(super) scope: Scope,
    pub(super) entries: Vec<Entry>,
    pub(super) slot: Option<u32>,
    pub(super) grace: Duration,
    /// Returns until when the lease may be relied on, without a further renewal.
    pub(super) stop: &'a dyn Fn() -> Moment,
    pub(super) lost: Pin<Box<dyn Future<Output = Loss> + Send>>,
}

impl Grant<'_> {
    fn until(&self) -> Until {
        Until::new((self.stop)(), self.grace)
    }
}

/// How the child's run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The tree has ended by itself, or by a signal that was forwarded.
    Ended(u8),
    /// The lease was lost, and the tree was stopped.
    Lost,
    /// The keeper was killed, and the tree was stopped.
    Unkept,
}

/// Runs the child under a lease, until the whole tree has ended.
pub(super) async fn supervise(
    run: &Program,
    mut grant: Grant<'_>,
    signals: &mut Signals,
) -> Result<Outcome, Failure> {
    signals.receive(&OTHER).map_err(failed)?;
    // What the keeper leaves behind when it is killed comes to this process.
    set_child_subreaper(Some(getpid())).map_err(|error| failed(error.into()))?;
    let cgroup = if run.no_cgroup { None } else { Cgroup::create() };
    if run.verbose {
        say(match &cgroup {
            Some(_) => "the tree has a cgroup and a group of its own",
            None => {
                "the tree has a group of its own; what leaves the group is found as a descendant"
            }
        });
    }
    let terminal = terminal::is_for_child();
    let charge = Charge {
        until: grant.until(),
        on_lost: run.on_lost,
        close: run.close,
        cgroup: cgroup.clone(),
        terminal,
        home: own_group(),
    };
    let keeper = Keeper::start(run, &grant, &charge);
    if keeper.is_err()
        && let Some(cgroup) = &cgroup
    {
        cgroup.remove();
    }
    let (keeper, reports) = keeper.map_err(failed)?;
    let mut reports = BufReader::new(reports).lines();
    let mut session = Session {
        run,
        keeper,
        sent: charge.until,
        tree: Tree { group: None, cgroup },
        has_terminal: terminal,
        is_paused: false,
        interrupts: 0,
        is_lost: false,
        overdue: None,
        code: None,
    };
    loop {
        let look = ((grant.stop)().left() / 20).clamp(SHORTEST_LOOK, LOOK);
        tokio::select! {
            biased;
            line = reports.next_line() => match line {
                Ok(Some(line)) => match Report::parse(&line) {
                    Some(Report::Gone(code)) => {
                        session.keeper.end().await;
                        return Ok(session.outcome(code));
                    }
                    Some(report) => session.hear(report, &grant),
                    None => {}
                },
                Ok(None) | Err(_) => break,
            },
            loss = &mut grant.lost, if !session.is_lost => session.lose(loss, &grant),
            signal = signals.next() => session.signalled(signal),
            () = session.is_overdue(), if session.overdue.is_some() => {
                say("the keeper does not stop the tree; leasehold does it");
                break;
            }
            () = sleep(look) => session.forward_renewal(&grant),
        }
    }
    session.stop_alone(&mut grant).await
}

fn failed(error: io::Error) -> Failure {
    Failure::new(format!("the keeper cannot be started: {error}"))
}

/// The keeper, as leasehold knows it.
struct Keeper {
    pid: Pid,
    orders: OwnedWriteHalf,
}

impl Keeper {
    fn start(
        run: &Program,
        grant: &Grant<'_>,
        charge: &Charge,
    ) -> io::Result<(Self, tokio::net::unix::OwnedReadHalf)> {
        let (ours, theirs) = Socket::pair()?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0("leasehold-keeper").arg(KEEPER).args(charge.args()).args(&run.command);
        command.stdin(Stdio::from(OwnedFd::from(theirs))).process_group(0);
        environment::set(&mut command, grant.scope, &grant.entries, grant.slot);
        let child = command.spawn()?;
        // It has the other end of the socket, which must end with the keeper.
        drop(command);
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::other("it has no number"))?;
        send_file(&ours, stdin().as_fd())?;
        ours.set_nonblocking(true)?;
        let (reports, orders) = UnixStream::from_std(ours)?.into_split();
        Ok((Self { pid, orders }, reports))
    }

    /// Sends an order. If the keeper does not read, as when it is stopped, what it has not done by the loss is done without it.
    fn order(&self, order: Order) {
        send_line(&self.orders, order);
    }

    /// Ends the keeper, which has nothing left to do.
    async fn end(&self) {
        self.order(Order::Done);
        let end = Moment::now().after(LAST);
        while let Ok(None) = waitpid(Some(self.pid), WaitOptions::NOHANG) {
            if end.left().is_zero() {
                let _ = kill_process(self.pid, Signal::KILL);
            }
            sleep(Duration::from_millis(1)).await;
        }
    }
}

struct Session<'a> {
    run: &'a Program,
    keeper: Keeper,
    /// What the keeper knows.
    sent: Until,
    tree: Tree,
    /// The child has the terminal, or had it before it was stopped.
    has_terminal: bool,
    /// A person wants this job to stop.
    is_paused: bool,
    interrupts: u32,
    is_lost: bool,
    /// When the keeper has not done what it is for.
    overdue: Option<Moment>,
    /// That of the child, once it has ended.
    code: Option<u8>,
}

impl Session<'_> {
    fn outcome(&self, code: u8) -> Outcome {
        if self.is_lost { Outcome::Lost } else { Outcome::Ended(code) }
    }

    async fn is_overdue(&self) {
        sleep(self.overdue.map_or(Duration::MAX, Moment::left)).await;
    }

    /// Reports a renewal to the keeper.
    fn forward_renewal(&mut self, grant: &Grant<'_>) {
        let until = grant.until();
        // Two readings of the clock for one deadline differ by a little.
        if !self.is_lost && until.stop > self.sent.stop.after(Duration::from_millis(1)) {
            self.sent = until;
            self.keeper.order(Order::Until(until));
        }
    }

    fn hear(&mut self, report: Report, grant: &Grant<'_>) {
        match report {
            Report::Started(pid) => {
                self.tree.group = Pid::from_raw(pid);
                if self.has_terminal {
                    self.give_terminal();
                }
            }
            Report::Stopped(signal) => self.stopped(signal, grant),
            Report::Expired if !self.is_lost => {
                self.lose(Loss::Expired, grant);
            }
            Report::Denied(pid) => {
                // The keeper does what can be done, and leasehold could do no more.
                self.overdue = None;
                say(&super::denied(pid));
            }
            Report::Ended(code) => {
                // Its number may be that of another group from now on.
                self.tree.group = None;
                self.code = Some(code);
                // The terminal has sent it to the child's group alone, so the next one is the second.
                if self.has_terminal && code == ended_by(Signal::INT).0 {
                    self.interrupts += 1;
                }
                if self.run.verbose {
                    say(&format!("the program has ended with {code}"));
                }
            }
            Report::Expired | Report::Gone(_) => {}
        }
    }

    fn lose(&mut self, loss: Loss, grant: &Grant<'_>) {
        self.is_lost = true;
        let notice = notice(grant.grace);
        let kill = Moment::now().after(notice).min(self.sent.kill);
        self.keeper.order(Order::Lost(kill));
        self.overdue = Some(kill.after(grant.grace / 20));
        let signal = signals::text(self.run.on_lost);
        let left = duration::text(kill.left());
        let names: Vec<_> = grant.entries.iter().map(|entry| entry.name.as_str()).collect();
        let names = names.join(", ");
        say(&format!("{names} is lost: {loss}; the program gets {signal}, and KILL in {left}"));
    }

    fn signalled(&mut self, signal: Signal) {
        match signal {
            Signal::INT => self.interrupts += 1,
            Signal::TSTP => self.is_paused = true,
            Signal::CONT => self.is_paused = false,
            _ => {}
        }
        match signal {
            Signal::INT if self.interrupts > 1 => {
                self.keeper.order(Order::Kill);
                // If the keeper is stopped, leasehold does it.
                self.overdue.get_or_insert(Moment::now().after(LAST));
            }
            Signal::CONT => {
                if terminal::is_ours() && (self.has_terminal || terminal::is_for_child()) {
                    self.give_terminal();
                }
                self.keeper.order(Order::Signal(signal));
            }
            _ => self.keeper.order(Order::Signal(signal)),
        }
    }

    fn give_terminal(&mut self) {
        if let Some(group) = self.tree.group
            && terminal::is_ours()
        {
            self.has_terminal = true;
            terminal::give(group);
        }
    }

    /// The child was stopped: this process stops, too, as a job of a shell does. Nothing is renewed then, and the keeper ends the
    /// tree in time, unless the job is continued before.
    fn stopped(&mut self, signal: i32, grant: &Grant<'_>) {
        let asks = [Signal::TTIN, Signal::TTOU].iter().any(|asks| asks.as_raw() == signal);
        if asks && terminal::is_ours() {
            self.give_terminal();
            return self.keeper.order(Order::Signal(Signal::CONT));
        }
        let is_job = terminal::has_shell() && (self.has_terminal || asks || self.is_paused);
        if !is_job {
            // What has stopped it will continue it, and it needs the lease then. On a terminal without a shell, nothing can.
            if self.has_terminal {
                self.give_terminal();
                self.keeper.order(Order::Signal(Signal::CONT));
            }
            return;
        }
        let left = duration::text((grant.stop)().left());
        say(&format!("stopped; the program is ended in {left}, unless you continue it before"));
        let _ = kill_current_process_group(Signal::STOP);
    }

    /// Stops the tree without the keeper, which is gone or stopped. The orphans of the keeper are below this process.
    async fn stop_alone(mut self, grant: &mut Grant<'_>) -> Result<Outcome, Failure> {
        if !self.is_lost && self.overdue.is_none() {
            say("the keeper was killed; the program is killed, too");
        }
        let mut denied = HashSet::new();
        loop {
            for pid in self.tree.kill() {
                if denied.insert(pid) {
                    say(&super::denied(pid.as_raw_nonzero().get()));
                }
            }
            // All is killed by now; what follows is only to see it end.
            self.tree.group = None;
            loop {
                match wait(WaitOptions::NOHANG) {
                    Ok(Some(_)) | Err(Errno::INTR) => {}
                    Ok(None) => break,
                    Err(_) => {
                        if let Some(cgroup) = &self.tree.cgroup {
                            cgroup.remove();
                        }
                        return Ok(if self.is_lost { Outcome::Lost } else { Outcome::Unkept });
                    }
                }
            }
            tokio::select! {
                _ = &mut grant.lost, if !self.is_lost => self.is_lost = true,
                () = sleep(ROUND) => {}
            }
        }
    }
}

/// Returns the code with which leasehold ends.
pub(super) fn exit(run: &Run, outcome: Outcome) -> Exit {
    match outcome {
        Outcome::Ended(code) => Exit(code),
        Outcome::Lost => Exit(run.lost_code),
        Outcome::Unkept => Exit::FAILED,
    }
}
