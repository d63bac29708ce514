//! `leasehold run`, where there is no Linux: it says that it cannot run a program.

use crate::connection::Connection;
use crate::exit::{Exit, Failure};
use clap::Args;
use std::ffi::OsString;
use std::process::ExitCode;

#[derive(Debug, Args)]
pub(crate) struct Run {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
    args: Vec<OsString>,
}

/// No process of this binary has another task here.
pub(crate) fn helper() -> Option<ExitCode> {
    None
}

impl Run {
    pub(crate) fn execute(self, _: &Connection) -> Result<Exit, Failure> {
        let _ = self.args;
        Err(Failure::new(
            "run needs Linux: only there the whole tree of a program can be stopped before its lease ends; use hold",
        ))
    }
}
