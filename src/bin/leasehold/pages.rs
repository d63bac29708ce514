//! `completions` and `man`: what a package of the command installs beside it.

use crate::Cli;
use crate::exit::{Exit, Failure};
use clap::{Args, CommandFactory};
use clap_complete::Shell;
use std::io::{self, Write};

/// Print the completions for a shell
#[derive(Debug, Args)]
pub(crate) struct Completions {
    shell: Shell,
}

impl Completions {
    pub(crate) fn execute(self) -> Result<Exit, Failure> {
        let mut text = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "leasehold", &mut text);
        print(&text)
    }
}

/// Print the manual page of leasehold, or of a subcommand
#[derive(Debug, Args)]
pub(crate) struct Man {
    /// The subcommand
    command: Option<String>,
}

impl Man {
    pub(crate) fn execute(self) -> Result<Exit, Failure> {
        let mut root = Cli::command();
        root.build();
        let command = match &self.command {
            Some(name) => root.find_subcommand(name).cloned().ok_or_else(|| {
                Failure::new(format!(
                    "there is no subcommand {name:?}; leasehold --help lists them"
                ))
            })?,
            None => root,
        };
        let mut text = Vec::new();
        clap_mangen::Man::new(command)
            .render(&mut text)
            .map_err(|error| Failure::new(error.to_string()))?;
        print(&text)
    }
}

fn print(text: &[u8]) -> Result<Exit, Failure> {
    match io::stdout().write_all(text).and_then(|()| io::stdout().flush()) {
        Ok(()) => Ok(Exit::SUCCESS),
        Err(error) => Err(Failure::new(format!("the standard output cannot be written: {error}"))),
    }
}
