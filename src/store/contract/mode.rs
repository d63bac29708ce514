//! The mode of a request, and what each kind of lock has in common.

use crate::error::{Error, ErrorKind};
use std::time::Duration;

/// The mode of a lock.
///
/// [`Capabilities::supports`](crate::store::Capabilities::supports) returns whether a store has a mode. A store returns
/// [`Unsupported`](ErrorKind::Unsupported) for any other. It matches on the mode without a wildcard that grants, so
/// that it never grants an unknown mode as another one. A name that is held in a mode that cannot be shared with the
/// requested one is held; a name that is in use as another kind of lock is [`WrongType`](ErrorKind::WrongType).
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

/// The shortest time for which an idle semaphore is kept.
pub(crate) const IDLE_SEMAPHORE: Duration = Duration::from_secs(24 * 60 * 60);

/// What a name is used as. Only modes of one kind share a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// An exclusive lock: [`Mode::Exclusive`].
    Lock,
    /// A read-write lock: [`Mode::Read`] and [`Mode::Write`].
    ReadWrite,
    /// A semaphore: [`Mode::Permits`].
    Semaphore,
}

impl Kind {
    /// Returns the error of a request of another kind.
    pub(crate) fn wrong_type(self) -> Error {
        let (what, method) = match self {
            Self::Lock => ("an exclusive lock", "lock"),
            Self::ReadWrite => ("a read-write lock", "rw_lock"),
            Self::Semaphore => ("a semaphore", "semaphore"),
        };
        let message = format!(
            "the name is in use as {what}; use it by `{method}` only, or choose another name"
        );
        Error::new(ErrorKind::WrongType, message)
    }
}

impl Mode {
    /// Returns what a name of this mode is used as.
    pub(crate) fn kind(self) -> Kind {
        match self {
            Self::Exclusive => Kind::Lock,
            Self::Read | Self::Write => Kind::ReadWrite,
            Self::Permits { .. } => Kind::Semaphore,
        }
    }

    /// The number of modes, whatever their permits.
    pub(crate) const COUNT: usize = 4;

    /// Returns the number of the mode, from 0 to below [`COUNT`](Mode::COUNT).
    pub(crate) fn index(self) -> usize {
        match self {
            Self::Exclusive => 0,
            Self::Read => 1,
            Self::Write => 2,
            Self::Permits { .. } => 3,
        }
    }

    /// Returns the number of permits of a holder; 0 for a lock.
    pub(crate) fn permits(self) -> u32 {
        match self {
            Self::Permits { take, .. } => take,
            Self::Exclusive | Self::Read | Self::Write => 0,
        }
    }

    /// Returns the error of a store without this mode. Nothing was executed.
    #[must_use]
    pub fn unsupported(self) -> Error {
        let message = match self {
            Self::Exclusive => "the store does not support exclusive locks",
            Self::Read | Self::Write => "the store does not support read-write locks; use `lock`",
            Self::Permits { .. } => "the store does not support semaphores; use `slots`",
        };
        Error::new(ErrorKind::Unsupported, message)
    }
}
