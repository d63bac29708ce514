//! What connecting does about servers whose settings may cost leases.

use crate::error::{Error, ErrorKind};
use std::error::Error as StdError;
use std::fmt;

/// What connecting does about a Redis server whose settings may cost leases.
///
/// See [`Builder::preflight`](crate::Builder::preflight).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Preflight {
    /// Does not ask for the settings.
    Off,
    /// Writes one warning to the log for each [`Finding`].
    #[default]
    Warn,
    /// Fails with [`Unfit`](ErrorKind::Unfit), which lists all findings.
    Refuse,
}

/// A setting of a server that may cost leases.
///
/// It displays as a sentence that says what follows from the setting, and what to change.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// What was checked.
    pub check: Check,
    /// Which server it is: `host:port` or the path of its socket, or `node 2` of a quorum.
    pub server: String,
    advice: String,
}

/// What a [`Finding`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Check {
    /// The server may evict the key of a lease that is held.
    Eviction,
    /// The server is a replica.
    Role,
    /// The server is too old.
    Version,
    /// The server forgets all leases when it restarts.
    Persistence,
    /// The server has fewer replicas than [`replicas`](crate::Builder::replicas) demands.
    Replicas,
    /// The user may not run `INFO`, so nothing is known.
    Info,
}

impl Finding {
    #[cfg_attr(not(feature = "redis"), allow(dead_code))]
    pub(crate) fn new(check: Check, server: &str, advice: impl Into<String>) -> Self {
        Self { check, server: server.to_owned(), advice: advice.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.server, self.advice)
    }
}

/// The findings for which [`Preflight::Refuse`] refused to connect: the [`source`](StdError::source) of an [`Error`] of the
/// kind [`Unfit`](ErrorKind::Unfit).
#[derive(Clone, Debug)]
pub struct Unfit {
    findings: Vec<Finding>,
}

impl Unfit {
    /// Returns all findings, of all servers.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    pub(crate) fn error(findings: Vec<Finding>) -> Error {
        let unfit = Self { findings };
        Error::new(ErrorKind::Unfit, unfit.to_string()).with_source(unfit)
    }

    /// Returns the findings of an error, if it is one for findings.
    pub(crate) fn of(error: &Error) -> Option<&Self> {
        error.source()?.downcast_ref()
    }
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, finding) in self.findings.iter().enumerate() {
            write!(f, "{}{finding}", if index == 0 { "" } else { "; also " })?;
        }
        Ok(())
    }
}

impl StdError for Unfit {}
