//! The program that runs under a lease, and what becomes of it when the lease is lost: what `run` and `elect` share.

use super::signals;
use crate::connection::Connection;
use crate::duration;
use crate::exit::{Exit, Failure};
use clap::{Args, ValueHint};
use leasehold::Builder;
use rustix::process::Signal;
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

/// Below it, what is left after the signal is too short for any program.
const SHORTEST_TTL: Duration = Duration::from_secs(3);

#[derive(Debug, Args)]
pub(super) struct Program {
    /// The time to stop in before others can have the name: at most a third of the ttl, which is the default
    ///
    /// The program gets the signal of --on-lost at the beginning of this time, and is killed after four fifths of it. A longer one
    /// leaves less time to retry a renewal.
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    grace: Option<Duration>,
    /// The signal that the program and all that it has started get when the lease is lost
    #[arg(long, value_name = "SIGNAL", default_value = "TERM", value_parser = signals::parse)]
    pub(super) on_lost: Signal,
    /// Release the name when the program ends, even if something that it has started still runs
    #[arg(short = 'o', long)]
    pub(super) close: bool,
    /// Make no cgroup for the program
    #[arg(long)]
    pub(super) no_cgroup: bool,
    /// Say what happens
    #[arg(short, long)]
    pub(super) verbose: bool,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND", value_hint = ValueHint::CommandWithArguments)]
    pub(super) command: Vec<OsString>,
}

impl Program {
    /// Returns a builder whose leases leave the grace to the program.
    pub(super) fn builder(&self, connection: &Connection) -> Result<Builder, Failure> {
        if connection.ttl < SHORTEST_TTL {
            return Err(Failure::new(format!(
                "a ttl of {} leaves a program no time to stop; choose at least {}",
                duration::text(connection.ttl),
                duration::text(SHORTEST_TTL)
            )));
        }
        Ok(connection.builder()?.grace(self.grace(connection)))
    }

    pub(super) fn grace(&self, connection: &Connection) -> Duration {
        // Of a session of ZooKeeper, a lease lasts for three quarters.
        let is_zookeeper =
            connection.url.as_deref().is_some_and(|url| url.starts_with("zookeeper"));
        let lasts = if is_zookeeper { connection.ttl * 3 / 4 } else { connection.ttl };
        let longest = u64::try_from(lasts.as_millis() / 3).unwrap_or(u64::MAX);
        self.grace.unwrap_or(Duration::from_millis(longest))
    }

    /// Returns what others see beside the name: the program.
    pub(super) fn label(&self) -> String {
        let program = self.command.first().map(Path::new).and_then(Path::file_name);
        program.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }
}

/// Returns the exit code of a wait that a signal has ended.
pub(super) fn ended_by(signal: Signal) -> Exit {
    u8::try_from(signal.as_raw()).map_or(Exit::FAILED, crate::signals::ended_by)
}
