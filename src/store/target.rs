//! The target of a request: a name and a mode.

use super::name::Name;
use crate::error::{Error, ErrorKind, Result};

/// The mode of a lock.
///
/// [`Capabilities::supports`](super::Capabilities::supports) returns whether a store has a mode. A store returns
/// [`Unsupported`](ErrorKind::Unsupported) for any other. It matches on the mode without a wildcard that grants, so
/// that it never grants an unknown mode as another one. The stores of this crate support `Exclusive` alone; the other
/// modes are for stores of your own, and no handle of this version asks for them. A name that is held in a mode that cannot be shared with the
/// requested one is held; a name that is kept as another lock is [`WrongType`](ErrorKind::WrongType).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Mode {
    /// Has one holder at a time, which may re-enter.
    #[default]
    Exclusive,
    /// Shares the name with other readers.
    Read,
    /// Has the name alone, against readers and writers.
    Write,
    /// Takes `take` of the `size` permits that the name has.
    ///
    /// All processes that share the name must use the same `size`.
    Permits {
        /// The number of permits of the name.
        size: u32,
        /// The number of permits of the holder.
        take: u32,
    },
}

impl Mode {
    /// Returns the error of a store without this mode. Nothing was executed.
    #[must_use]
    pub fn unsupported(self) -> Error {
        let what = match self {
            Self::Exclusive => "exclusive locks",
            Self::Read | Self::Write => "read-write locks",
            Self::Permits { .. } => "semaphores",
        };
        Error::new(ErrorKind::Unsupported, format!("the store does not support {what}"))
    }
}

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
