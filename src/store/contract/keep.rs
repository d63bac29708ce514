//! Marks that keep a name closed after its release.

use super::mode::Mode;
use crate::error::{Error, ErrorKind};
use std::time::Duration;

/// The reason why a name is closed without a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mark {
    /// The work for which the name was held is done.
    Done,
    /// The hold was released before the shortest time for which its handle keeps the name.
    Kept,
}

impl Mark {
    /// Returns the text that stands in the place of the holder's id.
    #[must_use]
    pub fn holder(self) -> &'static str {
        match self {
            Self::Done => "leasehold:done",
            Self::Kept => "leasehold:kept",
        }
    }
}

/// Keeps a name closed for a time after a [`Release`](crate::store::Release): a mark takes the place of the holder.
///
/// To every request the mark is a hold of another holder, which is never renewed or released. A release of the holder
/// that has left the mark changes nothing. Where the store can tell, it is [done](crate::store::Released::Done) once
/// more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Keep {
    /// The reason.
    pub mark: Mark,
    /// The time from the release for which the name stays closed, in whole milliseconds, at least 1.
    pub time: Duration,
}

impl Keep {
    /// Creates a mark that keeps a name closed for `time`.
    #[must_use]
    pub fn new(mark: Mark, time: Duration) -> Self {
        Self { mark, time }
    }

    /// Returns the error of a store that cannot keep a name closed. Nothing was executed.
    #[must_use]
    pub fn unsupported() -> Error {
        let message = "the store cannot keep a name closed after its release; use Redis, a quorum of it, or memory";
        Error::new(ErrorKind::Unsupported, message)
    }

    /// Refuses a mark on a name that several holders can share.
    pub(crate) fn require_exclusive(keep: Option<Self>, mode: Mode) -> Result<(), Error> {
        match (keep, mode) {
            (None, _) | (Some(_), Mode::Exclusive) => Ok(()),
            (Some(_), Mode::Read | Mode::Write | Mode::Permits { .. }) => {
                let message = "only an exclusive lock can keep its name closed; use `lock`";
                Err(Error::new(ErrorKind::Unsupported, message))
            }
        }
    }
}

/// A name that a mark keeps closed. The end of a manager is [`ErrorKind::Closed`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Closed {
    /// The reason.
    pub mark: Mark,
    /// The time since the release.
    pub ago: Duration,
    /// The id of the holder that released it.
    pub by: String,
}

impl Closed {
    /// Creates the description of a name that `by` has closed so long ago.
    #[must_use]
    pub fn new(mark: Mark, ago: Duration, by: String) -> Self {
        Self { mark, ago, by }
    }
}
