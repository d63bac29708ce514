//! Acts of one manager on the hold of another: steals and wishes, their reasons, the notes that they leave, and the inbox of a manager.

use super::mode::Mode;
use super::name::Name;
use super::request::{Acquire, ForceRelease, Inspect};
use super::target::Target;
use super::verdict::{Absence, Acquired};
use crate::error::{Error, ErrorKind, Result};
use crate::store::Store;
use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::mpsc;

/// The longest text of a reason in bytes.
const LONGEST_TEXT: usize = 1024;

/// For how long a store keeps a note.
pub(crate) const NOTE_KEPT: Duration = Duration::from_secs(24 * 60 * 60);

/// The number of hints that an inbox keeps until they are read. Later ones are dropped: hints may be lost.
const INBOX_SIZE: usize = 256;

/// The author of an act on the hold of another, and its reason. Both are as public as the name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reason {
    /// The author: a process, a service, a person.
    pub by: Arc<str>,
    /// The reason, for the old holder and for operators.
    pub why: Arc<str>,
}

impl Reason {
    /// Creates a reason.
    ///
    /// # Errors
    ///
    /// [`Invalid`](crate::ErrorKind::Invalid) if `why` is empty, or one of the texts has more than 1024 bytes.
    ///
    /// ```
    /// use leasehold::store::Reason;
    ///
    /// assert!(Reason::new("host:7", "the import hangs").is_ok());
    /// assert!(Reason::new("host:7", "").is_err());
    /// ```
    pub fn new(by: &str, why: &str) -> Result<Self> {
        if why.trim().is_empty() {
            return Err(Error::invalid(
                "the reason is empty; say why, because the old holder reads it",
            ));
        }
        if let Some(long) = [by, why].into_iter().map(str::len).find(|len| *len > LONGEST_TEXT) {
            return Err(Error::invalid(format!(
                "a reason has {long} bytes; at most {LONGEST_TEXT} are allowed"
            )));
        }
        Ok(Self { by: by.into(), why: why.into() })
    }
}

/// The kind of an act on the hold of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Act {
    /// [`Lock::steal_after`](crate::Lock::steal_after) waits for the name, and takes it soon.
    Wanted,
    /// [`Lock::steal`](crate::Lock::steal) has taken the name.
    Stolen,
    /// [`force_unlock`](crate::LeaseManager::force_unlock) has released the name.
    Forced,
}

impl Act {
    /// Returns the word of the act in a store.
    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "for a store that keeps texts"))]
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Wanted => "want",
            Self::Stolen => "steal",
            Self::Forced => "force",
        }
    }

    /// Returns the act of a word.
    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "for a store that keeps texts"))]
    pub(crate) fn of_word(word: &str) -> Option<Self> {
        [Self::Wanted, Self::Stolen, Self::Forced].into_iter().find(|act| act.word() == word)
    }

    /// Returns what a holder finds instead of its hold after the act.
    pub(crate) fn absence(self) -> Option<Absence> {
        match self {
            Self::Wanted => None,
            Self::Stolen => Some(Absence::Stolen),
            Self::Forced => Some(Absence::Forced),
        }
    }
}

/// The note that an act leaves for the old holder. [`Lease::note`](crate::Lease::note) reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Note {
    /// What was done.
    pub act: Act,
    /// The author: the host and the process id, unless the manager describes itself otherwise.
    pub by: String,
    /// The reason that the author gave.
    pub why: String,
    /// When it was done, by the clock of the store.
    pub at: SystemTime,
    /// The fencing token of the new holder, for [`Act::Stolen`] with fencing tokens. Writes with a smaller one are late.
    pub fence_to_beat: Option<u64>,
}

impl Note {
    /// Creates a note, for authors of a [`Store`].
    #[must_use]
    pub fn new(act: Act, Reason { by, why }: Reason, at: SystemTime) -> Self {
        Self { act, by: by.as_ref().into(), why: why.as_ref().into(), at, fence_to_beat: None }
    }

    /// Sets the [`fence_to_beat`](Self::fence_to_beat).
    #[must_use]
    pub fn with_fence_to_beat(self, fence_to_beat: Option<u64>) -> Self {
        Self { fence_to_beat, ..self }
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let done = match self.act {
            Act::Wanted => "wanted",
            Act::Stolen => "stolen",
            Act::Forced => "forced open",
        };
        write!(f, "{done} by {}: {}", self.by, self.why)
    }
}

/// Takes a name from its holder, as part of an [`Acquire`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Steal {
    /// The holder from which it is taken, as [`Store::inspect`] reports it. It is taken from no other.
    pub from: String,
    /// The author of the steal, and its reason.
    pub reason: Reason,
}

impl Steal {
    /// Creates the part of an acquire that takes the name from this holder.
    #[must_use]
    pub fn new(from: String, reason: Reason) -> Self {
        Self { from, reason }
    }

    /// Returns the error of a mode in which a name cannot be stolen. Nothing was executed.
    #[must_use]
    pub fn unsupported(mode: Mode) -> Error {
        let message = match mode {
            Mode::Exclusive => {
                "the store cannot take a name from its holder; use `force_unlock`, and lock the name then"
            }
            Mode::Read | Mode::Write => {
                "a read-write lock cannot be stolen: it can have several holders; use `force_unlock`, and lock it then"
            }
            Mode::Permits { .. } => {
                "permits cannot be stolen; use `force_unlock`, which takes all permits of the semaphore away"
            }
        };
        Error::new(ErrorKind::Unsupported, message)
    }

    /// Refuses a mode in which a name cannot be stolen.
    pub(crate) fn check_mode(mode: Mode) -> Result<()> {
        if mode == Mode::Exclusive { Ok(()) } else { Err(Self::unsupported(mode)) }
    }
}

/// A request that reports to a holder that its name is wanted.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Want {
    /// The name and the mode.
    pub target: Target,
    /// The holder, as [`Store::inspect`] reports it.
    pub from: String,
    /// The author of the wish, and its reason.
    pub reason: Reason,
    /// Whether only a hold that rests is wanted, of whichever holder, because a manager waits for the name: see
    /// [`Capabilities::lingers`](crate::store::Capabilities::lingers). Then `from` and `reason` are empty, no note is left, and
    /// the hint is [`Hint::Yield`].
    pub only_resting: bool,
    /// The time that the attempt may take.
    pub timeout: Duration,
}

impl Want {
    /// Creates the request.
    #[must_use]
    pub fn new(target: Target, from: String, reason: Reason, timeout: Duration) -> Self {
        Self { target, from, reason, only_resting: false, timeout }
    }

    /// Creates the request for a name that a manager waits for, whose hold may rest.
    #[must_use]
    pub fn resting(target: Target, timeout: Duration) -> Self {
        let reason = Reason { by: "".into(), why: "".into() };
        Self { only_resting: true, ..Self::new(target, String::new(), reason, timeout) }
    }
}

/// A hint for a manager. It can be late, lost or spurious.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Hint {
    /// A hold of this name may have been taken away.
    Verify(Name),
    /// A hold of this name is wanted.
    Want(Name),
    /// Another manager asks for this name: a hold that rests is to be released.
    Yield(Name),
}

impl Hint {
    /// Reads a message.
    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "for a store that keeps texts"))]
    pub(crate) fn of_message(text: &str) -> Option<Self> {
        let (word, name) = text.split_once(' ')?;
        let name = Name::new(name).ok()?;
        match word {
            "verify" => Some(Self::Verify(name)),
            "want" => Some(Self::Want(name)),
            "yield" => Some(Self::Yield(name)),
            _ => None,
        }
    }
}

/// The inbox of a manager: hints about its holds. Dropping it ends the subscription.
#[derive(Debug)]
pub struct Inbox {
    /// Dropped first: the subscription finds its sender closed.
    hints: mpsc::Receiver<Hint>,
    _subscription: Box<dyn Any + Send + Sync>,
}

/// The end of an [`Inbox`] that the store keeps.
#[derive(Clone, Debug)]
pub struct InboxSender(mpsc::Sender<Hint>);

impl Inbox {
    /// Creates an inbox, whose `subscription` is dropped with it.
    ///
    /// ```
    /// use leasehold::store::{Hint, Inbox, Name};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let (sender, mut inbox) = Inbox::new(());
    /// let hint = Hint::Verify(Name::new("orders:42").unwrap());
    /// sender.send(hint.clone());
    /// assert_eq!(inbox.recv().await, Some(hint));
    /// # });
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn new(subscription: impl Any + Send + Sync) -> (InboxSender, Self) {
        let (sender, hints) = mpsc::channel(INBOX_SIZE);
        (InboxSender(sender), Self { hints, _subscription: Box::new(subscription) })
    }

    /// Waits for a hint. Returns `None` when the store sends no more.
    ///
    /// # Cancel safety
    ///
    /// Safe: a hint is not lost.
    pub async fn recv(&mut self) -> Option<Hint> {
        self.hints.recv().await
    }
}

impl InboxSender {
    /// Sends a hint, without waiting. It is dropped if too many are unread.
    pub fn send(&self, hint: Hint) {
        let _ = self.0.try_send(hint);
    }

    /// Returns whether the inbox was dropped.
    pub fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}

/// Steals by a forced release and an acquire, for a store without one step for both: another holder may come between, and
/// then it is refused. It never forces another holder out than the one that is named.
pub(crate) async fn steal_by_force<S: Store + ?Sized>(
    store: &S,
    acquire: Acquire,
    Steal { from, reason }: Steal,
) -> Result<Acquired> {
    let target = acquire.target.clone();
    let timeout = acquire.timeout;
    Steal::check_mode(target.mode)?;
    let holder = store.inspect(Inspect::new(target.clone(), timeout)).await?.into_holder();
    match holder {
        None => return Ok(Acquired::NotYours(Absence::Gone)),
        // A copy of the request: an acquire recognises its own.
        Some(holder) if holder.holder == acquire.holder.to_string() => {}
        Some(holder) if holder.holder == from => {
            let force = ForceRelease::new(target, timeout).with_reason(Some(reason));
            store.force_release(force.with_from(Some(from)).of_a_steal()).await?;
        }
        Some(holder) => return Ok(Acquired::held(holder.remaining)),
    }
    store.acquire(acquire).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_is_read_only_as_a_hint_about_a_name() {
        let name = |name| Name::new(name).unwrap();
        assert_eq!(Hint::of_message("verify a b"), Some(Hint::Verify(name("a b"))));
        assert_eq!(Hint::of_message("want {t}:a"), Some(Hint::Want(name("{t}:a"))));
        assert_eq!(Hint::of_message("yield a"), Some(Hint::Yield(name("a"))));
        for text in ["", "verify", "verify ", "steal a", "verify {a", "0"] {
            assert_eq!(Hint::of_message(text), None, "{text}");
        }
    }

    #[test]
    fn inbox_that_nothing_reads_drops_hints_and_never_grows() {
        let (sender, mut inbox) = Inbox::new(());
        let hint = Hint::Verify(Name::new("n").unwrap());
        for _ in 0..INBOX_SIZE * 2 {
            sender.send(hint.clone());
        }
        let mut kept = 0;
        while inbox.hints.try_recv().is_ok() {
            kept += 1;
        }
        assert_eq!(kept, INBOX_SIZE);
        drop(inbox);
        assert!(sender.is_closed());
    }

    #[test]
    fn reason_is_bounded_and_never_empty() {
        let long = "x".repeat(LONGEST_TEXT);
        assert!(Reason::new(&long, &long).is_ok());
        let too_long = "x".repeat(LONGEST_TEXT + 1);
        for (by, why) in [("a", ""), ("a", "  "), ("a", &*too_long), (&*too_long, "b")] {
            let error = Reason::new(by, why).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{}", error);
        }
    }

    #[test]
    fn act_is_found_by_its_word() {
        for act in [Act::Wanted, Act::Stolen, Act::Forced] {
            assert_eq!(Act::of_word(act.word()), Some(act));
        }
        assert_eq!(Act::of_word("other"), None);
    }
}
