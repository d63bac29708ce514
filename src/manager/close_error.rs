//! The report of a close that failed.

use crate::error::Error;
use std::fmt;

/// The report of a [`LeaseManager::close`](crate::LeaseManager::close) that could not release every name.
///
/// It converts into an [`Error`] like the first failure, so that `?` works in a function that returns
/// [`leasehold::Result`](crate::Result).
#[derive(Debug)]
pub struct CloseError {
    pub(super) released: usize,
    /// Never empty.
    pub(super) failed: Vec<(String, Error)>,
}

impl CloseError {
    /// Returns the number of names that were released.
    pub fn released(&self) -> usize {
        self.released
    }

    /// Returns the names that were not released, each with the reason. They expire within one [TTL](crate::Builder::ttl), or
    /// after the TTL and the [`lock_delay`](crate::Lock::lock_delay) of their handle.
    pub fn failed(&self) -> &[(String, Error)] {
        &self.failed
    }
}

impl fmt::Display for CloseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { released, failed } = self;
        write!(f, "{} of {} leases could not be released", failed.len(), released + failed.len())?;
        if let Some((name, error)) = failed.first() {
            write!(f, "; the first: {name:?}, {error}")?;
        }
        Ok(())
    }
}

impl From<CloseError> for Error {
    fn from(report: CloseError) -> Self {
        let message = report.to_string();
        let first = report.failed.into_iter().next().map(|(_, error)| error);
        first.unwrap_or_else(Self::silent).with_message(message)
    }
}

impl std::error::Error for CloseError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.failed.first().map(|(_, error)| error as _)
    }
}
