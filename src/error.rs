//! Errors: their kind, their fate, and the reason of a loss.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

/// The result of a leasehold operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An operation that failed.
///
/// - [`kind`](Error::kind) says what to do next.
/// - [`is_retryable`](Error::is_retryable) returns whether the same call may succeed later.
/// - [`loss`](Error::loss) returns why a lease was lost.
/// - [`fate`](Error::fate) returns whether the store executed the operation.
///
/// `Display` writes one line; the original error is the [`source`](StdError::source). Connection URLs and passwords
/// never appear in either of them.
///
/// ```
/// use leasehold::{ErrorKind, LeaseManager};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let leases = LeaseManager::in_memory();
/// let error = leases.lock("").lock().await.unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::Invalid);
/// assert!(!error.is_retryable());
/// # }
/// ```
#[derive(Clone)]
pub struct Error(Arc<Inner>);

struct Inner {
    kind: ErrorKind,
    fate: Fate,
    loss: Option<Loss>,
    message: Cow<'static, str>,
    /// Whether the store serves no name at all: it was not reached, or refuses the login.
    for_all_names: bool,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

/// The kind of an [`Error`], by what the caller can do about it.
///
/// [`errors`](crate::guide::errors) says for each kind what is known, and what a service should do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The lease is lost and never comes back; lock again for a new one.
    Lost,
    /// The store could not be reached or did not answer in time; a retry may succeed.
    Unavailable,
    /// The store refuses the credentials, they lack a permission, or a TLS certificate is not trusted; fix them.
    Denied,
    /// The store is up but refuses writes: it is out of memory, read-only, or too few replicas have
    /// acknowledged the grant. A retry may succeed.
    Rejected,
    /// A setting of the server may cost leases, and [`Preflight::refuse`](crate::Preflight::refuse) is set; change the
    /// server. The [`source`](StdError::source) is [`Unfit`](crate::store::Unfit), which lists what was found.
    Unfit,
    /// The name is in use as another kind of lock, or its key holds something that is no lock; it was left untouched.
    WrongType,
    /// A name, duration, URL or setting is not valid, or does not fit the store; fix the call.
    Invalid,
    /// The reply could not be understood: this is not the expected server, a proxy rewrites replies, or a store breaks
    /// its [contract](crate::store::Store).
    Protocol,
    /// The manager was closed, or closed itself after a panic of its watchdog; make a new manager.
    Closed,
    /// The store does not support the call, the server lacks a command, or a feature of the crate is off; choose another
    /// store or server, or turn the feature on.
    Unsupported,
}

/// The fate of an operation that failed: whether the store executed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fate {
    /// The store executed it; its effect stands.
    Executed,
    /// The store did not execute it and will not.
    NotExecuted,
    /// Not known: the store may have executed it, or may still do so.
    Unknown,
}

/// The reason why a lease was lost.
///
/// A loss is an error of its own, and converts into an [`Error`] of the kind [`Lost`](ErrorKind::Lost).
///
/// ```
/// use leasehold::{Error, ErrorKind, Loss};
///
/// let error = Error::from(Loss::Expired);
/// assert_eq!(error.kind(), ErrorKind::Lost);
/// assert_eq!(error.loss(), Some(Loss::Expired));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Loss {
    /// No renewal was confirmed in time, so the store may have let the lease expire. Also the reason if the engine
    /// panicked, or if no thread could watch the lease.
    Expired,
    /// The store no longer has the lease: deleted, flushed, evicted, or lost in a restart or failover.
    Gone,
    /// Another holder has the name now, or its key no longer holds a lock.
    Taken,
    /// [`force_unlock`](crate::LeaseManager::force_unlock) released the name. [`Lease::note`](crate::Lease::note) says why.
    Revoked,
    /// [`Lock::steal`](crate::Lock::steal) took the name for another holder. [`Lease::note`](crate::Lease::note) says why.
    Stolen,
    /// The lease was held for longer than [`max_hold`](crate::Builder::max_hold).
    MaxHold,
    /// The manager was [closed](crate::LeaseManager::close).
    Closed,
    /// The holder has not reported [progress](crate::Lease::progress) for [`stall_after`](crate::Builder::stall_after); or,
    /// in events and counters only, a call that had a part of its names, and no lease yet, was not polled for a TTL.
    Stalled,
}

impl Error {
    /// Creates an error with one line that says what is wrong and what to do.
    ///
    /// Use it in a [`Store`](crate::store::Store) of your own. The fate is [`Unknown`](Fate::Unknown) for
    /// [`Unavailable`](ErrorKind::Unavailable) and [`Protocol`](ErrorKind::Protocol), and
    /// [`NotExecuted`](Fate::NotExecuted) for every other kind; [`with_fate`](Error::with_fate) changes it.
    ///
    /// ```
    /// use leasehold::{Error, ErrorKind, Fate};
    ///
    /// let error = Error::new(ErrorKind::Unavailable, "no connection").with_fate(Fate::NotExecuted);
    /// assert_eq!(error.to_string(), "unavailable: no connection");
    /// ```
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        let fate = match kind {
            ErrorKind::Unavailable | ErrorKind::Protocol => Fate::Unknown,
            _ => Fate::NotExecuted,
        };
        Self(Arc::new(Inner {
            kind,
            fate,
            loss: None,
            message: message.into(),
            for_all_names: false,
            source: None,
        }))
    }

    pub(crate) fn lost(loss: Loss) -> Self {
        Self(Arc::new(Inner {
            kind: ErrorKind::Lost,
            fate: Fate::NotExecuted,
            loss: Some(loss),
            message: Cow::Borrowed(loss.sentence()),
            for_all_names: false,
            source: None,
        }))
    }

    pub(crate) fn closed() -> Self {
        Self::new(ErrorKind::Closed, "this manager was closed; make a new one to lock again")
    }

    pub(crate) fn silent() -> Self {
        Self::new(ErrorKind::Unavailable, "the store did not answer in time")
    }

    /// The error of a call without an answer in time, with the last failure that is known.
    pub(crate) fn silent_since(failure: &Self) -> Self {
        // A refused login is no outage.
        let kind = if failure.is_for_all_names() { failure.kind() } else { ErrorKind::Unavailable };
        let message =
            format!("the store did not answer in time; before that: {}", failure.message());
        let error = Self::new(kind, message).with_fate(Fate::Unknown).with_source(failure.clone());
        if failure.is_for_all_names() { error.for_all_names() } else { error }
    }

    /// The error of a thread that could not be started.
    pub(crate) fn no_thread(message: &'static str, error: std::io::Error) -> Self {
        Self::new(ErrorKind::Unavailable, message).with_fate(Fate::NotExecuted).with_source(error)
    }

    pub(crate) fn invalid(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    /// The error of a semaphore that has another size.
    pub(crate) fn other_size(has: i64, asked: u32) -> Self {
        Self::invalid(format!(
            "the semaphore has {has} permits and was asked for with {asked}; use one size in all processes, or \
             resize it"
        ))
    }

    /// The error of an acquire that no semaphore of this size can grant.
    pub(crate) fn not_so_many(take: u32, size: u32) -> Self {
        Self::invalid(format!(
            "{take} of {size} permits cannot be acquired; take at least 1, and at most as many as the semaphore has"
        ))
    }

    pub(crate) fn protocol(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Protocol, message)
    }

    /// Sets whether the store executed the operation.
    #[must_use]
    pub fn with_fate(self, fate: Fate) -> Self {
        self.rebuild(|inner| inner.fate = fate)
    }

    /// Sets the underlying error.
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
            for_all_names: shared.for_all_names,
            source: shared.source.clone(),
        });
        change(&mut inner);
        Self(Arc::new(inner))
    }

    /// Returns the kind of failure.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns whether the store executed the operation.
    pub fn fate(&self) -> Fate {
        self.0.fate
    }

    /// Returns why the lease was lost.
    ///
    /// `Some` for every loss that leasehold reports. `None` for every other kind, and for an error of the kind
    /// [`Lost`](ErrorKind::Lost) that was made with [`Error::new`].
    pub fn loss(&self) -> Option<Loss> {
        self.0.loss
    }

    /// Returns whether the same call may succeed later, with nothing changed in the code, the settings or the
    /// permissions.
    ///
    /// True for [`Unavailable`](ErrorKind::Unavailable) and [`Rejected`](ErrorKind::Rejected): outages, timeouts and a
    /// server that cannot write end by themselves. False for every other kind. A [`Lost`](ErrorKind::Lost) lease never
    /// comes back: drop it, lock again, and begin its work from the start.
    ///
    /// It is safe to lock again whatever the [`fate`](Error::fate) of the failed call: a grant that this call may still
    /// get is released, or expires. Wait between two attempts.
    ///
    /// ```
    /// use leasehold::{Error, ErrorKind};
    ///
    /// assert!(Error::new(ErrorKind::Unavailable, "no connection").is_retryable());
    /// assert!(!Error::new(ErrorKind::Denied, "wrong password").is_retryable());
    /// ```
    pub fn is_retryable(&self) -> bool {
        matches!(self.kind(), ErrorKind::Unavailable | ErrorKind::Rejected)
    }

    /// Puts what failed, such as a server, before the message.
    #[cfg_attr(
        not(any(feature = "redis", feature = "zookeeper")),
        allow(dead_code, reason = "for stores behind a network")
    )]
    pub(crate) fn at(self, location: &str) -> Self {
        let message = format!("{location}: {}", self.message());
        self.rebuild(|inner| inner.message = message.into())
    }

    /// Puts the name that failed before the message.
    pub(crate) fn of_name(self, name: &str) -> Self {
        let message = format!("{name:?}: {}", self.message());
        self.rebuild(|inner| inner.message = message.into())
    }

    /// Returns one error for all names that failed: a loss if one of them was lost, otherwise like the first.
    pub(crate) fn of_names(failed: Vec<(String, Error)>) -> Option<Self> {
        let lost = failed.iter().find(|(_, error)| error.kind() == ErrorKind::Lost);
        let (_, worst) = lost.or(failed.first())?.clone();
        let each = failed.iter().map(|(name, error)| format!("{name:?}: {}", error.message()));
        let message = each.collect::<Vec<_>>().join("; ");
        Some(worst.rebuild(|inner| inner.message = message.into()))
    }

    /// Returns the same error with another message.
    pub(crate) fn with_message(self, message: String) -> Self {
        self.rebuild(|inner| inner.message = message.into())
    }

    /// Returns the message without the kind.
    pub(crate) fn message(&self) -> &str {
        &self.0.message
    }

    /// Returns the same error without its source, which may be of a user's type.
    pub(crate) fn without_source(&self) -> Self {
        let error = Self::new(self.kind(), self.message().to_owned()).with_fate(self.fate());
        if self.is_for_all_names() { error.for_all_names() } else { error }
    }

    /// Marks it as an error of a store that serves no name at all: it was not reached, or refuses the login.
    pub(crate) fn for_all_names(self) -> Self {
        self.rebuild(|inner| inner.for_all_names = true)
    }

    pub(crate) fn is_for_all_names(&self) -> bool {
        self.0.for_all_names
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
            Self::Unfit => "unfit",
            Self::WrongType => "wrong type",
            Self::Invalid => "invalid",
            Self::Protocol => "protocol error",
            Self::Closed => "closed",
            Self::Unsupported => "unsupported",
        }
    }
}

impl Loss {
    /// All reasons, in the order in which they are declared, so that each is found at its own number.
    pub(crate) const ALL: &[Self] = &[
        Self::Expired,
        Self::Gone,
        Self::Taken,
        Self::Revoked,
        Self::Stolen,
        Self::MaxHold,
        Self::Closed,
        Self::Stalled,
    ];

    /// Returns the word of the reason in metrics. A new reason belongs in [`ALL`](Self::ALL) too.
    #[cfg(feature = "metrics")]
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Gone => "gone",
            Self::Taken => "taken",
            Self::Revoked => "revoked",
            Self::Stolen => "stolen",
            Self::MaxHold => "max_hold",
            Self::Closed => "closed",
            Self::Stalled => "stalled",
        }
    }

    fn sentence(self) -> &'static str {
        match self {
            Self::Expired => "no renewal was confirmed before the lease could expire",
            Self::Gone => {
                "the store no longer has the lease (deleted, flushed, evicted or failed over)"
            }
            Self::Taken => "another holder has the name now",
            Self::Revoked => "force_unlock released the name",
            Self::Stolen => "another holder has stolen the name",
            Self::MaxHold => "the lease was held for longer than max_hold",
            Self::Closed => "the manager was closed",
            Self::Stalled => "the holder reported no progress for stall_after",
        }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.sentence())
    }
}

impl StdError for Loss {}

impl From<Loss> for Error {
    fn from(loss: Loss) -> Self {
        Self::lost(loss)
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
    fn lost_error_carries_its_cause_and_one_line() {
        let error = Error::lost(Loss::Taken);
        assert_eq!(error.kind(), ErrorKind::Lost);
        assert_eq!(error.loss(), Some(Loss::Taken));
        assert_eq!(error.to_string(), "lost: another holder has the name now");
    }

    #[test]
    fn reason_of_a_loss_is_found_at_its_own_number() {
        for (place, loss) in Loss::ALL.iter().enumerate() {
            assert_eq!(*loss as usize, place, "{loss:?}");
        }
    }

    #[test]
    fn source_survives_a_change_of_fate_on_a_shared_error() {
        let error =
            Error::new(ErrorKind::Unavailable, "x").with_source(std::io::Error::other("io"));
        let changed = error.clone().with_fate(Fate::NotExecuted);
        assert_eq!(error.fate(), Fate::Unknown);
        assert_eq!(changed.fate(), Fate::NotExecuted);
        assert_eq!(StdError::source(&changed).unwrap().to_string(), "io");
    }
    #[test]
    fn loss_is_an_error_and_becomes_one_of_ours() {
        let loss: Box<dyn StdError + Send + Sync> = Box::new(Loss::MaxHold);
        assert_eq!(loss.to_string(), "the lease was held for longer than max_hold");
        let lost = || -> Result<()> { Err(Loss::MaxHold)? };
        assert_eq!(lost().unwrap_err().loss(), Some(Loss::MaxHold));
    }

    #[test]
    fn only_what_ends_by_itself_is_retryable() {
        for (kind, retryable, fate) in [
            (ErrorKind::Lost, false, Fate::NotExecuted),
            (ErrorKind::Unavailable, true, Fate::Unknown),
            (ErrorKind::Denied, false, Fate::NotExecuted),
            (ErrorKind::Rejected, true, Fate::NotExecuted),
            (ErrorKind::Unfit, false, Fate::NotExecuted),
            (ErrorKind::WrongType, false, Fate::NotExecuted),
            (ErrorKind::Invalid, false, Fate::NotExecuted),
            (ErrorKind::Protocol, false, Fate::Unknown),
            (ErrorKind::Closed, false, Fate::NotExecuted),
            (ErrorKind::Unsupported, false, Fate::NotExecuted),
        ] {
            let error = Error::new(kind, "");
            assert_eq!((error.is_retryable(), error.fate()), (retryable, fate), "{kind:?}");
        }
    }
}
