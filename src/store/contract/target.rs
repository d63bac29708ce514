//! The target of a request: a name and a mode.

use super::mode::Mode;
use super::name::Name;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::Result;

/// The target of a request: a name in a mode.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Target {
    /// The name.
    pub name: Name,
    /// The mode.
    pub mode: Mode,
}

impl Target {
    /// Creates the target of a name in a mode.
    #[must_use]
    pub fn new(name: Name, mode: Mode) -> Self {
        Self { name, mode }
    }

    /// Creates the target of a name in [`Mode::Exclusive`].
    #[must_use]
    pub fn exclusive(name: Name) -> Self {
        Self::new(name, Mode::Exclusive)
    }

    /// Returns the name, for a store that has no mode but [`Mode::Exclusive`].
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported) for any other mode.
    pub fn into_exclusive(self) -> Result<Name> {
        self.require_exclusive().map(|()| self.name)
    }

    /// Refuses every mode but [`Mode::Exclusive`], for a store that has no other.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported) for any other mode.
    pub fn require_exclusive(&self) -> Result<()> {
        match self.mode {
            Mode::Exclusive => Ok(()),
            Mode::Read | Mode::Write | Mode::Permits { .. } => Err(self.mode.unsupported()),
        }
    }
}
