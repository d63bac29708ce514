//! Acts on the hold of another, and their reasons.

use super::verdict::Absence;
use crate::error::{Error, Result};
use std::sync::Arc;

/// The longest text of a reason in bytes.
const LONGEST_TEXT: usize = 1024;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

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
