//! `leasehold run` and `elect`, where there is no Linux: they say that they cannot run a program.

use crate::connection::Connection;
use crate::exit::{Exit, Failure};
use clap::Args;
use std::ffi::OsString;
use std::process::ExitCode;

#[derive(Debug, Args)]
pub(crate) struct NoProgram {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
    args: Vec<OsString>,
}

/// No process of this binary has another task here.
pub(crate) fn helper() -> Option<ExitCode> {
    None
}

pub(crate) type Run = NoProgram;
pub(crate) type Elect = NoProgram;

impl NoProgram {
    pub(crate) fn execute(self, _: &Connection) -> Result<Exit, Failure> {
        let _ = self.args;
        Err(Failure::new(
            "this needs Linux: only there the whole tree of a program can be stopped before its lease ends; use hold",
        ))
    }
}
