//! The command `leasehold`: runs a program under a lease, shows who holds what, and finds out why.
//!
//! It uses the public API of the library alone. Each subcommand is a file, with its arguments and what it does. They share
//! the way to the store ([`connection`]), durations as people write them ([`duration`]), what is printed ([`output`]), and
//! the exit codes ([`exit`]). All words of its own go to the standard error.

mod connection;
mod duration;
mod exit;
mod inspect;
mod list;
mod look;
mod output;
mod waiters;

use clap::{Parser, Subcommand};
use connection::Connection;
use exit::{Exit, Failure};
use std::process::ExitCode;

/// Run a program under a distributed lease, see who holds what, and find out why.
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Try the way to the store
    Ping,
    List(list::ListArgs),
    Inspect(inspect::InspectArgs),
    Waiters(waiters::WaitersArgs),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match execute(cli) {
        Ok(exit) => exit.into(),
        Err(failure) => failure.report(),
    }
}

fn execute(cli: Cli) -> Result<Exit, Failure> {
    let connection = cli.connection;
    match cli.command {
        Command::Ping => on_runtime(async move {
            let leases = connection.connect().await?;
            output::line("connected")?;
            leases.close().await.map_err(|error| Failure::new(error.to_string()))?;
            Ok(Exit::SUCCESS)
        }),
        Command::List(args) => on_runtime(list::list(connection, args)),
        Command::Inspect(args) => on_runtime(inspect::inspect(connection, args)),
        Command::Waiters(args) => on_runtime(waiters::waiters(connection, args)),
    }
}

/// Runs what a subcommand does to its end, on a runtime of its own.
fn on_runtime(work: impl Future<Output = Result<Exit, Failure>>) -> Result<Exit, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Failure::new(format!("there is no runtime: {error}")))?;
    let result = runtime.block_on(work);
    // A read of the standard input may be under way for ever.
    runtime.shutdown_background();
    result
}
