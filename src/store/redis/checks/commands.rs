//! The answers to the commands of an examination.

use super::info::is_refusal;
use crate::error::{Error, Result};
use crate::store::connect::finding::{Check, Finding, Severity};
use crate::store::redis::link::command::Reply;
use crate::store::redis::link::inquiry::Inquiry;
use crate::store::redis::scripts::reply;

/// What became of a question to a server.
#[derive(Clone, Debug)]
pub(super) enum Asked {
    Answered(Reply),
    /// The user may not ask it.
    Forbidden,
    /// The user may not ask it of this key.
    KeyOutOfReach,
    /// The server knows no such command.
    Unknown,
}

/// Asks a question. An error is one of the connection, after which nothing more is asked.
pub(super) async fn ask(inquiry: &Inquiry, words: &[&str]) -> Result<Asked> {
    sort(inquiry.ask(words).await)
}

fn sort(answer: Result<Reply>) -> Result<Asked> {
    match answer {
        Ok(answer) => Ok(Asked::Answered(answer)),
        Err(error) if reply::is_key_out_of_reach(&error) => Ok(Asked::KeyOutOfReach),
        Err(error) if is_forbidden(&error) => Ok(Asked::Forbidden),
        Err(error) if is_refusal(&error) => Ok(Asked::Unknown),
        Err(error) => Err(error),
    }
}

fn is_forbidden(error: &Error) -> bool {
    reply::words_of(error).is_some_and(|words| words.starts_with("NOPERM "))
}

impl Asked {
    pub(super) fn answer(&self) -> Option<&Reply> {
        match self {
            Self::Answered(answer) => Some(answer),
            Self::Forbidden | Self::KeyOutOfReach | Self::Unknown => None,
        }
    }

    /// Returns a finding that something was not checked, with the rule that would allow it. `None` if it was.
    pub(super) fn not_checked(
        &self,
        check: Check,
        name: &str,
        what: &str,
        rule: &str,
    ) -> Option<Finding> {
        let advice = match self {
            Self::Answered(_) => return None,
            Self::Forbidden => format!("does not let this user see {what}; grant {rule}"),
            Self::KeyOutOfReach => {
                format!(
                    "does not let this user touch the keys, so {what} are not seen; grant the prefix as a key pattern (~)"
                )
            }
            Self::Unknown => format!("has no command to see {what}"),
        };
        Some(Finding::new(check, Severity::NotChecked, name, advice))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::store::redis::checks) fn text(text: &str) -> Reply {
        Reply::Text(text.to_owned())
    }

    pub(in crate::store::redis::checks) fn number(number: i64) -> Reply {
        Reply::Int(number)
    }

    pub(in crate::store::redis::checks) fn list(list: Vec<Reply>) -> Reply {
        Reply::List(list)
    }

    pub(in crate::store::redis::checks) fn refused() -> Asked {
        let words = "NOPERM this user has no permissions to run the 'config|get' command";
        sort(Err(reply::classify(words))).unwrap()
    }

    #[test]
    fn refusals_are_no_errors_of_the_connection() {
        assert!(matches!(refused(), Asked::Forbidden));
        let unknown = sort(Err(reply::classify("ERR unknown command 'LATENCY'"))).unwrap();
        assert!(matches!(unknown, Asked::Unknown));
        let finding = unknown.not_checked(Check::Stalls, "it", "its slow log", "+slowlog|get");
        let finding = finding.unwrap();
        assert_eq!(finding.severity, Severity::NotChecked);
        assert!(!finding.message().contains("grant"), "{finding}");
        let words = "NOPERM No permissions to access a key";
        let of_a_key = sort(Err(reply::classify(words))).unwrap();
        let finding = of_a_key.not_checked(Check::Leftovers, "it", "keys", "+pttl").unwrap();
        assert!(finding.message().contains("key pattern"), "{finding}");
        assert!(!finding.message().contains("+pttl"), "{finding}");
        assert!(sort(Err(reply::classify("NOAUTH Authentication required."))).is_err());
        assert!(sort(Ok(text("OK"))).unwrap().not_checked(Check::Info, "it", "x", "y").is_none());
    }
}
