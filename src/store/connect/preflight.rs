//! What connecting does about servers whose settings may cost leases.

use super::finding::{Check, Finding};
use crate::error::{Error, ErrorKind};
use std::error::Error as StdError;
use std::fmt;

/// What connecting does about a Redis server whose settings may cost leases.
///
/// See [`Builder::preflight`](crate::Builder::preflight).
///
/// ```
/// use leasehold::Preflight;
/// use leasehold::store::Check;
///
/// // A managed server that keeps all writes, and shows no append-only file.
/// let preflight = Preflight::refuse().allow(Check::Persistence);
/// # let _ = preflight;
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Preflight {
    action: Action,
    /// A bit for each [`Check`] that is allowed to find something.
    allowed: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Action {
    Off,
    Warn,
    Refuse,
}

impl Preflight {
    /// Does not ask for the settings.
    #[must_use]
    pub const fn off() -> Self {
        Self { action: Action::Off, allowed: 0 }
    }

    /// Writes one warning to the log for each [`Finding`]. This is the default.
    #[must_use]
    pub const fn warn() -> Self {
        Self { action: Action::Warn, allowed: 0 }
    }

    /// Fails with [`Unfit`](ErrorKind::Unfit), which lists all findings.
    #[must_use]
    pub const fn refuse() -> Self {
        Self { action: Action::Refuse, allowed: 0 }
    }

    /// Allows what a check finds: it is neither refused nor a warning. Call it once for each check.
    ///
    /// It is for a finding whose cost you know: a managed server that keeps its writes without an append-only file, or a
    /// cluster in which a failover may cost leases. [`Builder::examine`](crate::Builder::examine) reports it all the same.
    #[must_use]
    pub const fn allow(self, check: Check) -> Self {
        Self { allowed: self.allowed | check.bit(), ..self }
    }

    #[cfg_attr(not(feature = "redis"), allow(dead_code))]
    pub(crate) fn asks(self) -> bool {
        self.action != Action::Off
    }

    #[cfg_attr(not(feature = "redis"), allow(dead_code))]
    pub(crate) fn refuses(self) -> bool {
        self.action == Action::Refuse
    }

    pub(crate) fn allows(self, check: Check) -> bool {
        self.allowed & check.bit() != 0
    }
}

/// Is [`Preflight::warn`].
impl Default for Preflight {
    fn default() -> Self {
        Self::warn()
    }
}

impl fmt::Debug for Preflight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let allowed: Vec<_> = Check::ALL.into_iter().filter(|check| self.allows(*check)).collect();
        let mut shown = f.debug_struct("Preflight");
        shown.field("action", &self.action).field("allowed", &allowed).finish()
    }
}

/// The findings for which [`Preflight::refuse`] refused to connect: the [`source`](StdError::source) of an [`Error`] of the
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preflight_allows_the_checks_that_it_names_and_no_other() {
        for check in Check::ALL {
            let allowed = Check::ALL.into_iter().filter(|other| {
                let preflight = Preflight::refuse().allow(check).allow(check);
                assert!(preflight.refuses() && preflight.asks());
                preflight.allows(*other)
            });
            assert_eq!(allowed.collect::<Vec<_>>(), [check]);
        }
        let two = Preflight::warn().allow(Check::Info).allow(Check::Role);
        assert_eq!(format!("{two:?}"), "Preflight { action: Warn, allowed: [Role, Info] }");
        assert!(!two.refuses() && !Preflight::off().asks());
        assert_eq!(Preflight::default(), Preflight::warn());
    }
}
