//! Runs the command `leasehold` as a person would.

#[cfg(target_os = "linux")]
mod contract;
mod doctor;
#[cfg(target_os = "linux")]
mod elect;
mod hold;
mod look;
#[cfg(target_os = "linux")]
mod run;
#[cfg(target_os = "linux")]
mod terminal;

use kit::Server;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command};

/// The command, on a server.
fn leasehold(server: &Server) -> Command {
    let mut command = bare();
    command.env("LEASEHOLD_URL", server.url());
    command
}

/// The command, without a store.
fn bare() -> Command {
    let mut command = program(env!("CARGO_BIN_EXE_leasehold"));
    command.env_remove("LEASEHOLD_URL").env_remove("LEASEHOLD_PASSWORD_FILE");
    command
}

/// A program that ignores no signal.
///
/// The tests may run in the background, where a shell ignores some, and `leasehold` leaves ignored what was ignored.
fn program(path: &str) -> Command {
    if cfg!(target_os = "linux") {
        let mut command = Command::new("env");
        command.args(["--default-signal", path]);
        command
    } else {
        Command::new(path)
    }
}

/// Sends a signal to a program that was started.
#[cfg(unix)]
fn send(child: &Child, signal: rustix::process::Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_child(child), signal).expect("sent");
}

/// The lines that a program prints.
struct Lines(std::io::Lines<BufReader<Box<dyn Read + Send>>>);

impl Lines {
    fn of(output: impl Read + Send + 'static) -> Self {
        Self(BufReader::new(Box::new(output) as Box<dyn Read + Send>).lines())
    }

    fn next(&mut self) -> Option<String> {
        self.0.next().map(|line| line.expect("readable"))
    }
}
