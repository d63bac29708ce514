//! The exit codes, which are those of `timeout` of the GNU core utilities where both have a case.

use leasehold::{Error, ErrorKind};
use std::process::ExitCode;

/// The code with which the command ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exit(pub(crate) u8);

impl Exit {
    pub(crate) const SUCCESS: Exit = Exit(0);
    /// The lease was lost, and all that ran under it was stopped.
    pub(crate) const LOST: Exit = Exit(123);
    /// The name was not free in time.
    pub(crate) const BUSY: Exit = Exit(124);
    /// The command itself failed: the store, permissions, options.
    pub(crate) const FAILED: Exit = Exit(125);
    /// The program cannot be executed.
    pub(crate) const CANNOT_EXECUTE: Exit = Exit(126);
    /// There is no such program.
    pub(crate) const NOT_FOUND: Exit = Exit(127);
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit.0)
    }
}

/// Why the command ends without having done what it was asked for.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    pub(crate) message: String,
    /// That of the error of the library, if it is one.
    pub(crate) kind: Option<ErrorKind>,
}

impl Failure {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { exit: Exit::FAILED, message: message.into(), kind: None }
    }

    /// The reader of the output has seen enough: the command ends with 0, without a word.
    pub(crate) fn unread() -> Self {
        Self { exit: Exit::SUCCESS, ..Self::new("") }
    }

    pub(crate) fn with_exit(mut self, exit: Exit) -> Self {
        self.exit = exit;
        self
    }

    /// Says why on the standard error.
    pub(crate) fn report(self) -> ExitCode {
        if !self.message.is_empty() {
            crate::output::say(&self.message);
        }
        self.exit.into()
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { kind: Some(error.kind()), ..Self::new(error.to_string()) }
    }
}
