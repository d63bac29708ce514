//! The command `leasehold`: runs a program under a lease, shows who holds what, and finds out why.
//!
//! It uses the public API of the library alone. Each subcommand is a file, with its arguments and what it does. They share
//! the way to the store ([`connection`]), durations as people write them ([`duration`]), what is printed ([`output`]), and
//! the exit codes ([`exit`]). All words of its own go to the standard error.

mod acquire;
mod connection;
mod doctor;
mod duration;
mod exit;
mod hold;
mod holder_table;
mod inspect;
mod leader;
mod list;
mod outage;
mod output;
mod pages;
mod release;
#[cfg_attr(not(target_os = "linux"), path = "run/elsewhere.rs")]
mod run;
mod runtime;
mod signals;
mod unlock;
mod wait;
mod waiters;

use clap::{Parser, Subcommand};
use connection::Connection;
use exit::{Exit, Failure};
use runtime::on_runtime;
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
    Run(run::Run),
    Hold(hold::Hold),
    Wait(wait::Wait),
    Elect(run::Elect),
    Leader(leader::ShowLeader),
    List(list::ListArgs),
    Inspect(inspect::InspectArgs),
    Waiters(waiters::WaitersArgs),
    Unlock(unlock::Unlock),
    Doctor(doctor::Doctor),
    Completions(pages::Completions),
    Man(pages::Man),
}

fn main() -> ExitCode {
    if let Some(code) = run::helper() {
        return code;
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // What was asked for, such as the help, is no failure.
            let failed = error.use_stderr();
            let _ = error.print();
            return if failed { Exit::FAILED } else { Exit::SUCCESS }.into();
        }
    };
    match execute(cli) {
        Ok(exit) => exit.into(),
        Err(failure) => failure.report(),
    }
}

fn execute(cli: Cli) -> Result<Exit, Failure> {
    let connection = cli.connection;
    match cli.command {
        Command::Run(run) => run.execute(&connection),
        Command::Hold(hold) => on_runtime(hold.execute(&connection)),
        Command::Wait(wait) => on_runtime(wait.execute(&connection)),
        Command::List(args) => on_runtime(list::list(connection, args)),
        Command::Inspect(args) => on_runtime(inspect::inspect(connection, args)),
        Command::Waiters(args) => on_runtime(waiters::waiters(connection, args)),
        Command::Unlock(unlock) => on_runtime(unlock.execute(&connection)),
        Command::Elect(elect) => elect.execute(&connection),
        Command::Leader(leader) => on_runtime(leader.execute(&connection)),
        Command::Completions(completions) => completions.execute(),
        Command::Man(man) => man.execute(),
        Command::Doctor(doctor) => on_runtime(doctor.run(connection)),
    }
}
