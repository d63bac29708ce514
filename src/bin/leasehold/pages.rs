//! `completions` and `man`: what a package of the command installs beside it.

use crate::Cli;
use crate::exit::{Exit, Failure};
use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;
use std::io::{self, Write};

/// Print the completions for a shell
#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell
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
    /// The subcommand; without it, the page of leasehold
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
        print(page(command).map_err(|error| Failure::new(error.to_string()))?.as_bytes())
    }
}

/// Returns a manual page, whose synopsis is the line of usage of the help: that of `clap_mangen` lacks the `--` before a program,
/// and has each option.
fn page(mut command: Command) -> io::Result<String> {
    const SYNOPSIS: &str = ".SH SYNOPSIS\n";
    let usage = command.render_usage().to_string();
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page)?;
    let page = String::from_utf8_lossy(&page).into_owned();
    let usage = usage.trim_start_matches("Usage: ").replace('-', "\\-");
    Ok(match page.split_once(SYNOPSIS) {
        Some((before, rest)) => {
            let behind = rest.split_once("\n.SH ").map_or("", |(_, behind)| behind);
            format!("{before}{SYNOPSIS}{usage}\n.SH {behind}")
        }
        None => page,
    })
}

fn print(text: &[u8]) -> Result<Exit, Failure> {
    match io::stdout().write_all(text).and_then(|()| io::stdout().flush()) {
        Ok(()) => Ok(Exit::SUCCESS),
        Err(error) => Err(Failure::new(format!("the standard output cannot be written: {error}"))),
    }
}
