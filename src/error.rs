//! What can go wrong, sorted by what is known.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

/// The result of a leasehold operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation failed.
///
/// The kind says what to do next, [`loss`](Error::loss) why a lease was lost, and
/// [`fate`](Error::fate) whether the store ran the operation. `Display` is one line; the
/// original error is kept as the [`source`](StdError::source). Connection URLs and
/// passwords never appear in it.
///
/// ```
/// use leasehold::{ErrorKind, LeaseManager};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let leases = LeaseManager::in_memory();
/// let error = leases.lock("").lock().await.unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::Invalid);
/// # });
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct Error(Arc<Inner>);

struct Inner {
    kind: ErrorKind,
    fate: Fate,
    loss: Option<Loss>,
    message: Cow<'static, str>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

/// The kinds of [`Error`]: what the caller can do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The lease is lost and will not come back; lock again for a new one.
    Lost,
    /// The store could not be reached or did not answer in time; retrying may help.
    Unavailable,
    /// The store refuses these credentials, or they lack a right.
    Denied,
    /// The store is up but refuses writes: out of memory, read-only, too few replicas.
    Rejected,
    /// The key under this name holds something that is not a lock; it was left untouched.
    WrongType,
    /// A name, duration, URL, setting or reply makes no sense.
    Invalid,
    /// The manager was closed.
    Closed,
    /// The store cannot do this.
    Unsupported,
}

/// Whether the store ran the operation that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fate {
    /// It ran; its effect stands.
    Executed,
    /// It did not run and will not.
    NotExecuted,
    /// Not known: it may have run, or may still run later.
    Unknown,
}

/// Why a lease was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Loss {
    /// No renewal was confirmed in time, so the store may have let the lease expire.
    Expired,
    /// The store no longer has it: deleted, flushed, evicted, or lost in a restart or failover.
    Gone,
    /// Somebody else holds the name now.
    Taken,
    /// [`force_unlock`](crate::LeaseManager::force_unlock) took it away.
    Revoked,
    /// It was held for longer than [`max_hold`](crate::Builder::max_hold).
    MaxHold,
    /// The manager was [closed](crate::LeaseManager::close).
    Closed,
}

impl Error {
    /// Makes an error of a kind, with one line that says what happened and what to do.
    ///
    /// For those who write a [`Store`](crate::store::Store). The fate is
    /// [`Unknown`](Fate::Unknown) for [`Unavailable`](ErrorKind::Unavailable) and
    /// [`NotExecuted`](Fate::NotExecuted) for every other kind, until
    /// [`with_fate`](Error::with_fate) says otherwise.
    ///
    /// ```
    /// use leasehold::{Error, ErrorKind, Fate};
    ///
    /// let error = Error::new(ErrorKind::Unavailable, "no connection").with_fate(Fate::NotExecuted);
    /// assert_eq!(error.to_string(), "unavailable: no connection");
    /// ```
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        let fate = match kind {
            ErrorKind::Unavailable => Fate::Unknown,
            _ => Fate::NotExecuted,
        };
        Self(Arc::new(Inner { kind, fate, loss: None, message: message.into(), source: None }))
    }

    pub(crate) fn lost(loss: Loss) -> Self {
        Self(Arc::new(Inner {
            kind: ErrorKind::Lost,
            fate: Fate::NotExecuted,
            loss: Some(loss),
            message: Cow::Borrowed(loss.sentence()),
            source: None,
        }))
    }

    pub(crate) fn closed() -> Self {
        Self::new(ErrorKind::Closed, "this manager was closed; make a new one to lock again")
    }

    pub(crate) fn silent() -> Self {
        Self::new(ErrorKind::Unavailable, "the store did not answer in time")
    }

    pub(crate) fn invalid(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    /// Says whether the store ran the operation.
    #[must_use]
    pub fn with_fate(self, fate: Fate) -> Self {
        self.rebuild(|inner| inner.fate = fate)
    }

    /// Keeps the error underneath.
    #[must_use]
    pub fn with_source(self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.rebuild(|inner| inner.source = Some(Arc::new(source)))
    }

    fn rebuild(self, change: impl FnOnce(&mut Inner)) -> Self {
        let mut inner = Arc::try_unwrap(self.0).unwrap_or_else(|shared| Inner {
            kind: shared.kind,
            fate: shared.fate,
            loss: shared.loss,
            message: shared.message.clone(),
            source: shared.source.clone(),
        });
        change(&mut inner);
        Self(Arc::new(inner))
    }

    /// What kind of failure this is.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Whether the store ran the operation.
    pub fn fate(&self) -> Fate {
        self.0.fate
    }

    /// Why the lease was lost; `Some` exactly when the kind is [`ErrorKind::Lost`].
    pub fn loss(&self) -> Option<Loss> {
        self.0.loss
    }

    /// What happened, without the kind.
    #[cfg(feature = "redis")]
    pub(crate) fn message(&self) -> &str {
        &self.0.message
    }

    pub(crate) fn is_unavailable(&self) -> bool {
        self.kind() == ErrorKind::Unavailable
    }
}

impl ErrorKind {
    fn word(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Unavailable => "unavailable",
            Self::Denied => "denied",
            Self::Rejected => "rejected",
            Self::WrongType => "wrong type",
            Self::Invalid => "invalid",
            Self::Closed => "closed",
            Self::Unsupported => "unsupported",
        }
    }
}

impl Loss {
    fn sentence(self) -> &'static str {
        match self {
            Self::Expired => "no renewal was confirmed before the lease could expire",
            Self::Gone => {
                "the store no longer has the lease (deleted, flushed, evicted or failed over)"
            }
            Self::Taken => "somebody else holds the name now",
            Self::Revoked => "force_unlock took the lease away",
            Self::MaxHold => "the lease was held for longer than max_hold",
            Self::Closed => "the manager was closed",
        }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.sentence())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.kind.word(), self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Error");
        out.field("kind", &self.0.kind).field("fate", &self.0.fate);
        if let Some(loss) = self.0.loss {
            out.field("loss", &loss);
        }
        out.field("message", &self.0.message);
        if let Some(source) = &self.0.source {
            out.field("source", source);
        }
        out.finish()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_error_carries_its_cause_and_one_line() {
        let error = Error::lost(Loss::Taken);
        assert_eq!(error.kind(), ErrorKind::Lost);
        assert_eq!(error.loss(), Some(Loss::Taken));
        assert_eq!(error.to_string(), "lost: somebody else holds the name now");
    }

    #[test]
    fn the_source_survives_a_change_of_fate_on_a_shared_error() {
        let error =
            Error::new(ErrorKind::Unavailable, "x").with_source(std::io::Error::other("io"));
        let changed = error.clone().with_fate(Fate::NotExecuted);
        assert_eq!(error.fate(), Fate::Unknown);
        assert_eq!(changed.fate(), Fate::NotExecuted);
        assert_eq!(StdError::source(&changed).unwrap().to_string(), "io");
    }
}
