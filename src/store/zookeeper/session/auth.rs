//! Credentials for the servers.

use crate::error::{Error, Result};
use crate::store::connect::percent::decode;
use std::fmt;

const HINT: &str = "write zookeeper://user:password@host and percent-encode odd characters";

/// A user and a password for the scheme `digest`. Never shown.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct User(String);

impl User {
    pub(super) const SCHEME: &'static str = "digest";

    /// Parses the percent-encoded `user:password` of a URL.
    pub(in crate::store::zookeeper) fn parse(text: &str) -> Result<Self> {
        // Errors never echo it.
        let invalid = |what: &str| Error::invalid(format!("the URL's {what}; {HINT}"));
        let Some((user, password)) = text.split_once(':') else {
            return Err(invalid("user has no password"));
        };
        // Otherwise, with a user for each server, the password would contain all servers but the last.
        if text.contains(['@', ',']) {
            return Err(invalid("credentials cannot be read"));
        }
        let decoded = |text| decode(text).ok_or_else(|| invalid("credentials cannot be read"));
        let user = decoded(user)?;
        let password = decoded(password)?;
        if user.is_empty() || password.is_empty() {
            return Err(invalid("user or password is empty"));
        }
        // The servers take the text before the first colon for the user.
        if user.contains(':') {
            return Err(invalid("user has a colon, which ZooKeeper does not allow"));
        }
        Ok(Self(format!("{user}:{password}")))
    }

    /// Returns the bytes that the servers get.
    pub(super) fn secret(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("User")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_decoded_and_never_shown() {
        let user = User::parse("sh%C3%B6p:hunter2%40%3a%25:x").unwrap();
        assert_eq!(user.secret(), "shöp:hunter2@:%:x".as_bytes());
        assert_eq!(format!("{user:?}"), "User");
    }

    #[test]
    fn bad_ones_say_what_to_do_and_are_not_echoed() {
        for (text, hint) in [
            ("hunter2", "has no password"),
            (":hunter2", "is empty"),
            ("hunter2:", "is empty"),
            ("hunter2%3a:x", "colon"),
            ("me:hunter2%", "cannot be read"),
            ("me:hunter2%4", "cannot be read"),
            ("me:hunter2%+1", "cannot be read"),
            ("me:hunter2%FF", "cannot be read"),
            ("me:hunter2@zk1,you:hunter2", "cannot be read"),
        ] {
            let error = User::parse(text).unwrap_err();
            let shown = format!("{error} {error:?}");
            assert!(shown.contains(hint) && shown.contains("percent-encode"), "{text}: {shown}");
            assert!(!shown.contains("hunter2"), "{shown}");
        }
    }
}
