//! What a request is about: a name, and the kind of possession.

use super::name::Name;
use crate::error::{Error, ErrorKind, Result};

/// The kind of possession that a request is about.
///
/// A store says which modes it has with [`Capabilities::supports`](super::Capabilities::supports), and answers
/// [`Unsupported`](ErrorKind::Unsupported) to a request of any other. It matches on the mode without a wildcard
/// that grants, so that a mode that it does not know is never granted as another one. The modes of one name do not
/// meet: a request for a name that is held in a mode which cannot share it with that of the request is refused as held,
/// and one for a name that is kept as another kind of lock is [`WrongType`](ErrorKind::WrongType).
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
    /// All who share the name agree on `size`.
    Permits {
        /// How many permits there are in all.
        size: u32,
        /// How many of them the holder has.
        take: u32,
    },
}

impl Mode {
    /// Makes the error of a store that does not have this mode; nothing was executed.
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

/// What a request is about: a name, in a mode.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Target {
    /// The name.
    pub name: Name,
    /// The kind of possession.
    pub mode: Mode,
}

impl Target {
    /// Makes the target of a name in a mode.
    #[must_use]
    pub fn new(name: Name, mode: Mode) -> Self {
        Self { name, mode }
    }

    /// Makes the target of a name in [`Mode::Exclusive`].
    #[must_use]
    pub fn exclusive(name: Name) -> Self {
        Self::new(name, Mode::Exclusive)
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
