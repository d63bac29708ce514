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
mod environment;
mod held;
mod keeper;
mod launch;
mod message;
mod once;
mod signals;
mod supervise;
mod terminal;
mod tree;

use crate::connection::Connection;
use crate::duration;
use crate::exit::{Exit, Failure};
use crate::on_runtime;
use crate::output::say;
use clap::Args;
use held::{Held, Limit};
use leasehold::{Builder, LeaseManager};
use once::Done;
use rustix::process::Signal;
use signals::{ENDING, Signals};
use std::env;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;
use supervise::{Grant, Outcome, supervise};

/// The words that make this binary another process than leasehold.
const KEEPER: &str = "__keeper";
const LAUNCH: &str = "__launch";

/// Below it, what is left after the signal is too short for any program.
const SHORTEST_TTL: Duration = Duration::from_secs(3);

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
    /// Hold the name as a reader, beside other readers
    #[arg(long, group = "kind")]
    shared: bool,
    /// Hold the name alone, without any of those that hold it with --shared
    ///
    /// Without either, the name is a lock, which is another kind of name.
    #[arg(long, group = "kind")]
    exclusive: bool,
    /// Hold one of SIZE permits of the name
    #[arg(long, group = "kind", value_name = "SIZE")]
    permit: Option<u32>,
    /// Hold one of N slots of the name; LEASEHOLD_SLOT is its number
    #[arg(long, group = "kind", value_name = "N")]
    slot: Option<u32>,
    /// Run the program once: a success closes the name for this time, and later runs end at once with 0
    #[arg(long, group = "kind", value_name = "TIME", value_parser = duration::parse)]
    once: Option<Duration>,
    /// Get the name in the order of arrival
    #[arg(long, group = "kind")]
    fair: bool,
    /// How long to wait for the names; without it, forever
    #[arg(short, long, value_name = "TIME", value_parser = duration::parse)]
    wait: Option<Duration>,
    /// Do not wait
    #[arg(short, conflicts_with = "wait")]
    no_wait: bool,
    /// The time to stop in before others can have the name: at most a third of the ttl, which is the default
    ///
    /// The program gets the signal of --on-lost at the beginning of this time, and is killed after four fifths of it. A longer one
    /// leaves less time to retry a renewal.
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    grace: Option<Duration>,
    /// The signal that the program and all that it has started get when the lease is lost
    #[arg(long, value_name = "SIGNAL", default_value = "TERM", value_parser = signals::parse)]
    on_lost: Signal,
    /// The exit code when the lease was lost
    #[arg(long, value_name = "CODE", default_value_t = Exit::LOST.0)]
    lost_code: u8,
    /// The exit code when the name was not free in time
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = Exit::BUSY.0)]
    busy_code: u8,
    /// Release the name when the program ends, even if something that it has started still runs
    #[arg(short = 'o', long)]
    close: bool,
    /// Inside a run of the same name, run the program at once instead of failing
    #[arg(long)]
    enter: bool,
    /// Fail at once if the store does not answer
    #[arg(long)]
    fail_fast: bool,
    /// Make no cgroup for the program
    #[arg(long)]
    no_cgroup: bool,
    /// Say what happens
    #[arg(short, long)]
    verbose: bool,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

const EXIT_CODES: &str = "\
Exit codes: that of the program; 128 + n if it ended by signal n; 123 the lease was lost; 124 the name was not free in
time; 125 leasehold failed; 126 the program cannot be executed; 127 it is not found.

The program has LEASEHOLD_NAME, LEASEHOLD_FENCE (the fencing token), LEASEHOLD_HOLDER (the holder id), LEASEHOLD_SLOT and
LEASEHOLD_HELD (name=fence of all runs around it); lists have commas. It does not get LEASEHOLD_URL if that has a password.";

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
        let held = self.names.iter().filter(|name| environment::is_held(name)).count();
        if held > 0 {
            return self.nested(held);
        }
        on_runtime(self.run(connection))
    }

    /// Runs inside a run of one of these names: this one would wait for itself.
    fn nested(&self, held: usize) -> Result<Exit, Failure> {
        if !self.enter {
            let names = self.names.join(", ");
            return Err(Failure::new(format!(
                "{names}: a run around this one has it (LEASEHOLD_HELD), so this one would wait forever; --enter runs the program at once"
            )));
        }
        if held < self.names.len() {
            return Err(Failure::new(
                "--enter needs all of the names in LEASEHOLD_HELD; this run has others, too",
            ));
        }
        Err(launch::become_program(&self.command))
    }

    async fn run(self, connection: &Connection) -> Result<Exit, Failure> {
        let builder = self.builder(connection)?;
        let mut signals = Signals::new();
        signals
            .receive(&ENDING)
            .map_err(|error| Failure::new(format!("signals cannot be received: {error}")))?;
        let limit = Limit::new(&self);
        let leases = tokio::select! {
            leases = held::connect(&self, connection, &builder, limit) => leases?,
            signal = signals.next() => return Ok(ended_by(signal)),
        };
        let result = self.run_with(connection, &leases, limit, &mut signals).await;
        // It gives up arrivals of a wait that has ended, and tries a release again that was not confirmed.
        if let Err(error) = leases.close().await {
            say(&format!(
                "the store has not confirmed the release; the name is free after the ttl: {error}"
            ));
        }
        result
    }

    async fn run_with(
        &self,
        connection: &Connection,
        leases: &LeaseManager,
        limit: Limit,
        signals: &mut Signals,
    ) -> Result<Exit, Failure> {
        let grace = self.grace(connection);
        if let Some(keep) = self.once {
            return match once::run_once(self, leases, keep, limit, grace, signals).await? {
                Done::Ran(outcome) => Ok(supervise::exit(self, outcome)),
                Done::Busy => Ok(self.busy()),
                Done::Before(closed) => {
                    if self.verbose {
                        say(&format!("{} is done: {closed:?}", self.names.join(", ")));
                    }
                    Ok(Exit::SUCCESS)
                }
            };
        }
        let held = tokio::select! {
            held = held::acquire(self, leases, limit) => held?,
            signal = signals.next() => return Ok(ended_by(signal)),
        };
        let Some(held) = held else {
            return Ok(self.busy());
        };
        let outcome = self.supervise(&held, grace, signals).await;
        // A lost lease has nothing to release. One whose release fails is tried again when the manager is closed.
        if !matches!(outcome, Ok(Outcome::Lost))
            && let Err(error) = held.unlock().await
            && self.verbose
        {
            say(&format!("the release failed: {error}"));
        }
        Ok(supervise::exit(self, outcome?))
    }

    async fn supervise(
        &self,
        held: &Held,
        grace: Duration,
        signals: &mut Signals,
    ) -> Result<Outcome, Failure> {
        let stop = || held.stop();
        let grant = Grant {
            entries: held.entries(&self.names),
            slot: held.slot(),
            grace,
            stop: &stop,
            lost: held.lost(),
        };
        supervise(self, grant, signals).await
    }

    fn builder(&self, connection: &Connection) -> Result<Builder, Failure> {
        if connection.ttl < SHORTEST_TTL {
            return Err(Failure::new(format!(
                "a ttl of {} leaves a program no time to stop; choose at least {}",
                duration::text(connection.ttl),
                duration::text(SHORTEST_TTL)
            )));
        }
        let has_mode = self.shared || self.fair || self.permit.is_some() || self.slot.is_some();
        if self.names.len() > 1 && (has_mode || self.once.is_some()) {
            return Err(Failure::new(
                "--shared, --exclusive, --permit, --slot, --once and --fair take one name; several names are locked exclusively",
            ));
        }
        Ok(connection.builder()?.grace(self.grace(connection)))
    }

    fn grace(&self, connection: &Connection) -> Duration {
        // Of a session of ZooKeeper, a lease lasts for three quarters.
        let is_zookeeper =
            connection.url.as_deref().is_some_and(|url| url.starts_with("zookeeper"));
        let lasts = if is_zookeeper { connection.ttl * 3 / 4 } else { connection.ttl };
        let longest = u64::try_from(lasts.as_millis() / 3).unwrap_or(u64::MAX);
        self.grace.unwrap_or(Duration::from_millis(longest))
    }

    /// Returns what others see beside the name: the program.
    fn label(&self) -> String {
        let program = self.command.first().map(Path::new).and_then(Path::file_name);
        program.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }

    fn busy(&self) -> Exit {
        if self.verbose {
            say(&format!("{} was not free in time", self.names.join(", ")));
        }
        Exit(self.busy_code)
    }
}

/// Returns the exit code of a wait that a signal has ended.
fn ended_by(signal: Signal) -> Exit {
    Exit(u8::try_from(128 + signal.as_raw()).unwrap_or(Exit::FAILED.0))
}

/// Says that a process cannot be stopped.
fn denied(pid: i32) -> String {
    format!(
        "process {pid} runs as another user and cannot be stopped; the name may be another's while it runs"
    )
}
