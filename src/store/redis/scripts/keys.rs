//! Derives keys and channels from names, to the byte as Redisson does.

use crate::store::contract::mode::Kind;
use crate::store::{HolderId, Name, Target};
use std::fmt;
use uuid::Uuid;

/// The keys of a manager, which all begin with its prefix.
#[derive(Clone, Debug)]
pub(in crate::store::redis) struct Keys {
    prefix: String,
}

impl Keys {
    pub(in crate::store::redis) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned() }
    }

    pub(in crate::store::redis) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns the key in parts, as the others do; the call joins them.
    pub(in crate::store::redis) fn lock<'a>(&'a self, name: &'a Name) -> [&'a str; 2] {
        [&self.prefix, name.as_str()]
    }

    pub(super) fn fence<'a>(&'a self, name: &'a Name) -> [&'a str; 5] {
        self.derived("redisson_lock_token:", name)
    }

    pub(in crate::store::redis) fn channel<'a>(&'a self, name: &'a Name) -> [&'a str; 5] {
        self.derived("redisson_lock__channel:", name)
    }

    /// Returns the channel of the wake-ups of a target.
    pub(in crate::store::redis) fn channel_of<'a>(&'a self, target: &'a Target) -> [&'a str; 5] {
        match target.mode.kind() {
            Kind::Lock => self.channel(&target.name),
            Kind::ReadWrite => self.rw_channel(&target.name),
            Kind::Semaphore => self.permits_channel(&target.name),
        }
    }

    /// Returns the key under which a reader's time to live is kept.
    pub(super) fn reader(&self, name: &Name, holder: HolderId) -> String {
        self.with_suffix(name, format_args!("{holder}:rwlock_timeout:1"))
    }

    /// Returns the channel of a read-write lock.
    pub(super) fn rw_channel<'a>(&'a self, name: &'a Name) -> [&'a str; 5] {
        self.derived("redisson_rwlock:", name)
    }

    /// Returns the keys that have the arrival of the oldest waiter among the readers and among the writers. Redisson has no
    /// such keys.
    pub(super) fn sides<'a>(&'a self, name: &'a Name) -> [[&'a str; 5]; 2] {
        [self.derived("leasehold_read:", name), self.derived("leasehold_write:", name)]
    }

    /// Returns the keys of the line of a lock: the arrival of each manager that waits, and when it lapses.
    pub(super) fn in_line<'a>(&'a self, name: &'a Name) -> [[&'a str; 5]; 2] {
        [self.derived("leasehold_line:", name), self.derived("leasehold_lapse:", name)]
    }

    /// Returns the key of the permits that are out.
    pub(in crate::store::redis) fn permits(&self, name: &Name) -> String {
        self.with_suffix(name, format_args!("timeout"))
    }

    /// Returns the key of the sizes that a semaphore had before. Redisson has no such key.
    pub(super) fn sizes<'a>(&'a self, name: &'a Name) -> [&'a str; 5] {
        self.derived("leasehold_sizes:", name)
    }

    /// Returns the key of the description of a holder. Redisson has no such key.
    pub(super) fn metadata<'a>(&'a self, name: &'a Name) -> [&'a str; 5] {
        self.derived("leasehold_meta:", name)
    }

    /// Returns the channel of those that observe it.
    pub(in crate::store::redis) fn leader_channel<'a>(&'a self, name: &'a Name) -> [&'a str; 5] {
        self.derived("leasehold_leader:", name)
    }

    /// Returns the channel of a semaphore.
    pub(super) fn permits_channel<'a>(&'a self, name: &'a Name) -> [&'a str; 5] {
        self.derived("redisson_sc:", name)
    }

    /// Returns the key of the note about the last act on a lock. Redisson has no such key.
    pub(in crate::store::redis) fn note<'a>(&'a self, name: &'a Name) -> [&'a str; 5] {
        self.derived("leasehold_note:", name)
    }

    /// Returns the beginning of the channels of the inboxes of managers, before their uuid.
    pub(in crate::store::redis) fn inbox(&self) -> [&str; 2] {
        ["leasehold_inbox:", &self.prefix]
    }

    /// Returns the key of the description of a manager. It belongs to no name, so it has a slot of its own.
    pub(super) fn manager<'a>(&'a self, manager: &'a str) -> [&'a str; 3] {
        [&self.prefix, "leasehold:manager:", manager]
    }

    fn with_suffix(&self, name: &Name, suffix: fmt::Arguments<'_>) -> String {
        format!("{}:{suffix}", self.derived("", name).concat())
    }

    /// Returns whether the key of a lock has a brace, so that those which are derived from it need none.
    pub(super) fn has_brace(&self, name: &Name) -> bool {
        self.lock(name).iter().any(|part| part.contains('{'))
    }

    fn derived<'a>(&'a self, kind: &'static str, name: &'a Name) -> [&'a str; 5] {
        let (open, close) = if self.has_brace(name) { ("", "") } else { ("{", "}") };
        [kind, open, &self.prefix, name.as_str(), close]
    }
}

/// Returns a text as a part of a pattern, in which no character of it has a meaning.
pub(in crate::store::redis) fn pattern_of(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len());
    for char in text.chars() {
        if matches!(char, '*' | '?' | '[' | ']' | '\\' | '^') {
            pattern.push('\\');
        }
        pattern.push(char);
    }
    pattern
}

/// Returns what follows the uuid of a manager and a colon; `None` if a text does not begin with them.
pub(in crate::store::redis) fn behind_manager(text: &str) -> Option<&str> {
    let (manager, rest) = text.split_once(':')?;
    (manager.len() == 36 && Uuid::try_parse(manager).is_ok()).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_matches_no_other_beginning() {
        assert_eq!(pattern_of("app:"), "app:");
        assert_eq!(pattern_of("{a}[b]*?\\"), "{a}\\[b\\]\\*\\?\\\\");
        assert_eq!(pattern_of(""), "");
    }

    #[test]
    fn derived_names_are_redissons_to_the_byte() {
        let keys = Keys::new("");
        let plain = Name::new("myLock").unwrap();
        assert_eq!(keys.lock(&plain).concat(), "myLock");
        assert_eq!(keys.channel(&plain).concat(), "redisson_lock__channel:{myLock}");
        assert_eq!(keys.fence(&plain).concat(), "redisson_lock_token:{myLock}");
        let tagged = Name::new("x{a}y").unwrap();
        assert_eq!(keys.channel(&tagged).concat(), "redisson_lock__channel:x{a}y");
        let holder = HolderId::new(uuid::Uuid::nil(), 7);
        let reader = "00000000-0000-0000-0000-000000000000:7:rwlock_timeout:1";
        assert_eq!(keys.reader(&plain, holder), format!("{{myLock}}:{reader}"));
        assert_eq!(keys.reader(&tagged, holder), format!("x{{a}}y:{reader}"));
        assert_eq!(keys.rw_channel(&plain).concat(), "redisson_rwlock:{myLock}");
        assert_eq!(keys.permits(&plain), "{myLock}:timeout");
        assert_eq!(keys.permits_channel(&plain).concat(), "redisson_sc:{myLock}");
        let sides = ["leasehold_read:{myLock}", "leasehold_write:{myLock}"];
        assert_eq!(keys.sides(&plain).map(|key| key.concat()), sides);
        let line = ["leasehold_line:{myLock}", "leasehold_lapse:{myLock}"];
        assert_eq!(keys.in_line(&plain).map(|key| key.concat()), line);
        let keys = Keys::new("{t}:");
        assert_eq!(keys.channel(&plain).concat(), "redisson_lock__channel:{t}:myLock");
    }
}
