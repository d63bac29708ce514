//! `leasehold run`: runs a program while this machine has a name.
//!
//! Four processes of this binary take part. *Leasehold* has the connection to the store and the lease ([`supervise`]). The
//! *keeper* ([`keeper`]) is its child, and the parent of the program: it kills the tree when the lease may end, whatever becomes of
//! leasehold. The process that becomes the program runs [`launch`] first. A helper returns the terminal ([`terminal`]).
//!
//! Nothing of the tree runs when the name may belong to another process. With C, the cancellation deadline, and D, the expiry
//! deadline a grace later, the tree gets a signal at C and is killed at four fifths of the grace. Where one of the two
//! processes cannot do that, the other one does:
//!
//! | what happens | what ends the tree, and when |
//! |---|---|
//! | the lease is lost, the store does not answer | the keeper, by an order of leasehold or by its own timer |
//! | leasehold is stopped | the keeper, by its timer |
//! | leasehold is killed | the keeper: the signal at once, the kill before D |
//! | the keeper is killed | the kernel kills the program at once, and leasehold the rest of the tree |
//! | the keeper is stopped | leasehold, after the time at which the keeper should have done it |
//! | both are killed at once | the kernel kills the program; what it has started lives on |

mod cgroup;
mod clock;
mod elect;
mod environment;
mod held;
mod keeper;
mod launch;
mod message;
mod once;
mod program;
mod signals;
mod supervise;
mod terminal;
mod tree;

use crate::acquire::{self, Limit, ModeArgs, WaitArgs};
use crate::connection::Connection;
use crate::duration;
use crate::exit::{Exit, Failure};
use crate::outage::Outage;
use crate::output::say;
use crate::release::{Release, TAKEN_BACK, give_up};
use crate::runtime::on_runtime;
use clap::Args;
pub(crate) use elect::Elect;
use environment::{Mode, Outer, Scope};
use held::Held;
use leasehold::{Builder, LeaseManager};
use once::Done;
use program::{Program, ended_by};
use signals::Signals;
use std::convert::Infallible;
use std::env;
use std::io::{IsTerminal, stderr};
use std::process::ExitCode;
use std::time::Duration;
use supervise::{Grant, Outcome, supervise};
use tokio::time::sleep;

/// The first argument of the helper processes of this binary; that of the terminal is in [`terminal`].
const KEEPER: &str = "__keeper";
const LAUNCH: &str = "__launch";

/// Run a program under a lease; the exit code is that of the program
///
/// The lease is kept until the program and all that it has started have ended. If the lease is lost, they get a signal, and
/// are killed before another process can have the name. That holds also if leasehold itself is stopped or killed: a second
/// process of it, the keeper, kills them in time. If the keeper is killed, the program is killed at once.
///
/// What it cannot stop in time: a process that runs as another user, such as one of sudo, unless leasehold runs as root or has a
/// cgroup of its own (-v says so); what another service starts for the program, such as a container of docker; and all of
/// it while the whole machine is frozen. If leasehold and its keeper are killed in the same moment, the program ends, and what it
/// has started lives on.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct Run {
    /// The names, all of which are held while the program runs
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    #[command(flatten)]
    mode: ModeArgs,
    /// Run the program once: a success closes the name for this time, and later runs end at once with 0
    #[arg(long, group = "mode", value_name = "TIME", value_parser = duration::parse)]
    once: Option<Duration>,
    #[command(flatten)]
    wait: WaitArgs,
    /// The exit code when the lease was lost
    #[arg(long, value_name = "CODE", default_value_t = Exit::LOST.0)]
    lost_code: u8,
    /// Inside a run of the same name, run the program at once instead of failing
    #[arg(long)]
    enter: bool,
    /// Fail at once if the store does not answer
    #[arg(long)]
    fail_fast: bool,
    #[command(flatten)]
    program: Program,
}

const EXIT_CODES: &str = "\
Exit codes: that of the program; 128 + n if it ended by signal n; 123 the lease was lost; 124 the name was not free in
time; 125 leasehold failed; 126 the program cannot be executed; 127 it is not found.

The program has LEASEHOLD_NAME, LEASEHOLD_FENCE (the fencing token), LEASEHOLD_HOLDER (the holder id), LEASEHOLD_SLOT (the
number of the slot) and LEASEHOLD_HELD (name=fence of all runs around it). Lists have commas, and a comma in a name of a list is
%2C. It does not get LEASEHOLD_URL if that has a password.";

/// Runs what another process of this binary has started it for, if it is no command of a person.
pub(crate) fn helper() -> Option<ExitCode> {
    let mut args = env::args_os().skip(1);
    let word = args.next()?;
    match word.to_str()? {
        KEEPER => Some(keeper::main(args)),
        LAUNCH => Some(launch::main(args)),
        terminal::HELPER => Some(terminal::main(args)),
        _ => None,
    }
}

impl Run {
    pub(crate) fn execute(self, connection: &Connection) -> Result<Exit, Failure> {
        let scope = self.scope(connection);
        let outer: Vec<_> = self.names.iter().filter_map(|name| scope.outer(name)).collect();
        match outer.is_empty() {
            true => on_runtime(self.run(connection)),
            false => self.nested(connection, &outer),
        }
    }

    fn scope(&self, connection: &Connection) -> Scope {
        Scope::new(connection, Mode::of(self.mode.mode()))
    }

    /// Runs inside a run of one of these names: this one would wait for itself.
    fn nested(self, connection: &Connection, outer: &[Outer]) -> Result<Exit, Failure> {
        let names = self.names.join(", ");
        if !self.enter {
            return Err(Failure::new(format!(
                "{names}: a run around this one has it (LEASEHOLD_HELD), so this one would wait forever; --enter runs the program at once"
            )));
        }
        if outer.len() < self.names.len() || !outer.iter().all(|outer| outer.is_same_mode) {
            return Err(Failure::new(format!(
                "--enter needs a run around this one that has {names} in the same way"
            )));
        }
        on_runtime(async {
            let leases = connection.connect().await?;
            // The run around this one may have ended, where a process has outlived it.
            for (name, outer) in self.names.iter().zip(outer) {
                let holders = leases.holders(name).await?;
                // A permit and a slot have another text in the store.
                let mode = self.mode.mode();
                let is_part = matches!(mode, acquire::Mode::Permit(_) | acquire::Mode::Slot(_));
                if !is_part && !holders.iter().any(|holder| holder.holder == outer.holder) {
                    return Err(Failure::new(format!(
                        "{}: the run around this one does not have it any more",
                        name
                    )));
                }
            }
            Ok(Exit::SUCCESS)
        })?;
        Err(launch::become_program(&self.program.command))
    }

    async fn run(self, connection: &Connection) -> Result<Exit, Failure> {
        let builder = self.builder(connection)?;
        let mut signals = Signals::of_endings()?;
        let limit = self.wait.begin();
        let outage = Outage::new(limit).fails_fast(self.fail_fast);
        let leases = tokio::select! {
            leases = outage.connect(connection, &builder) => leases?,
            signal = signals.next() => return Ok(ended_by(signal)),
        };
        if self.once.is_some() {
            return self.run_once(connection, &leases, limit, &mut signals).await;
        }
        let ended = tokio::select! {
            held = held::acquire(&self, &leases, limit) => match held {
                Ok(Some(held)) => {
                    return self.run_with(connection, &leases, held, &mut signals).await;
                }
                Ok(None) => Ok(self.busy()),
                Err(failure) => Err(failure),
            },
            signal = signals.next() => Ok(ended_by(signal)),
            never = self.says_that_it_waits() => match never {},
        };
        give_up(&leases, TAKEN_BACK).await;
        ended
    }

    /// Runs the program while this process has the names, and releases them.
    async fn run_with(
        &self,
        connection: &Connection,
        leases: &LeaseManager,
        held: Held,
        signals: &mut Signals,
    ) -> Result<Exit, Failure> {
        let grace = self.program.grace(connection);
        let outcome = tokio::select! {
            outcome = self.supervise(connection, &held, grace, signals) => outcome,
            never = held.described() => match never {},
        };
        if matches!(outcome, Ok(Outcome::Lost)) {
            held.say_why().await;
            drop(held);
            give_up(leases, TAKEN_BACK).await;
        } else {
            let names = self.names.join(", ");
            let work = held::release(held.unlock(), leases, self.program.verbose);
            Release::after(0, &names).part(work, async || signals.ending().await).await;
        }
        Ok(supervise::exit(self, outcome?))
    }

    /// Runs the program once.
    async fn run_once(
        &self,
        connection: &Connection,
        leases: &LeaseManager,
        limit: Limit,
        signals: &mut Signals,
    ) -> Result<Exit, Failure> {
        let names = self.names.join(", ");
        let mut release = Release::after(0, &names);
        let done = self.once_in_outages(connection, leases, limit, signals, &mut release).await;
        match done {
            Ok(Done::Ran(Outcome::Ended(_) | Outcome::Unkept)) => {
                release.part(held::close(leases), async || signals.ending().await).await;
            }
            _ => give_up(leases, TAKEN_BACK).await,
        }
        Ok(match done? {
            Done::Ran(outcome) => supervise::exit(self, outcome),
            Done::Busy => self.busy(),
            Done::Before(closed) => {
                if self.program.verbose {
                    say(&format!("{names} is done: {closed:?}"));
                }
                Exit::SUCCESS
            }
            Done::Signalled(signal) => ended_by(signal),
        })
    }

    /// While the store does not answer, it tries again, as long as the wait allows it.
    async fn once_in_outages(
        &self,
        connection: &Connection,
        leases: &LeaseManager,
        limit: Limit,
        signals: &mut Signals,
        release: &mut Release<'_>,
    ) -> Result<Done, Failure> {
        let mut outage = Outage::new(limit).fails_fast(self.fail_fast);
        loop {
            match once::run_once(self, connection, leases, limit, signals, release).await {
                Ok(done) => return Ok(done),
                Err(failure) => tokio::select! {
                    paused = outage.pause(failure) => paused?,
                    signal = signals.next() => return Ok(Done::Signalled(signal)),
                },
            }
        }
    }

    async fn supervise(
        &self,
        connection: &Connection,
        held: &Held,
        grace: Duration,
        signals: &mut Signals,
    ) -> Result<Outcome, Failure> {
        let stop = || held.stop();
        let grant = Grant {
            scope: self.scope(connection),
            entries: held.entries(&self.names),
            slot: held.slot(),
            grace,
            stop: &stop,
            lost: held.lost(),
        };
        supervise(&self.program, grant, signals).await
    }

    fn builder(&self, connection: &Connection) -> Result<Builder, Failure> {
        let has_mode = self.mode.mode() != acquire::Mode::Lock;
        if self.names.len() > 1 && (has_mode || self.once.is_some()) {
            return Err(Failure::new(
                "--shared, --exclusive, --permit, --slot, --once and --fair take one name; several names are locked exclusively",
            ));
        }
        self.program.builder(connection)
    }

    /// Says after a second what it waits for, on a terminal or with `--verbose`.
    async fn says_that_it_waits(&self) -> Infallible {
        if self.program.verbose || stderr().is_terminal() {
            sleep(Duration::from_secs(1)).await;
            say(&format!("waits for {}", self.names.join(", ")));
        }
        std::future::pending().await
    }

    fn busy(&self) -> Exit {
        if self.program.verbose {
            say(&format!("{} was not free in time", self.names.join(", ")));
        }
        self.wait.busy()
    }
}

/// Says that a process cannot be stopped.
fn denied(pid: i32) -> String {
    format!(
        "process {pid} runs as another user and cannot be stopped; the name may be another's while it runs"
    )
}
