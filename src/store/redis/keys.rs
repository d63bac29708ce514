//! Derives keys and channels from names, to the byte as Redisson does.

use crate::store::Name;

/// The keys of a manager, which all begin with its prefix.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    prefix: String,
}

impl Keys {
    pub(super) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned() }
    }

    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns the key in parts, as the others do; the call joins them.
    pub(super) fn lock<'a>(&'a self, name: &'a Name) -> [&'a str; 2] {
        [&self.prefix, name.as_str()]
    }

    pub(super) fn fence<'a>(&'a self, name: &'a Name) -> [&'a str; 5] {
        self.derived("redisson_lock_token:", name)
    }

    pub(super) fn channel<'a>(&'a self, name: &'a Name) -> [&'a str; 5] {
        self.derived("redisson_lock__channel:", name)
    }

    fn derived<'a>(&'a self, kind: &'static str, name: &'a Name) -> [&'a str; 5] {
        let tagged = self.lock(name).iter().any(|part| part.contains('{'));
        let (open, close) = if tagged { ("", "") } else { ("{", "}") };
        [kind, open, &self.prefix, name.as_str(), close]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derived_names_are_redissons_to_the_byte() {
        let keys = Keys::new("");
        let plain = Name::new("myLock").unwrap();
        assert_eq!(keys.lock(&plain).concat(), "myLock");
        assert_eq!(keys.channel(&plain).concat(), "redisson_lock__channel:{myLock}");
        assert_eq!(keys.fence(&plain).concat(), "redisson_lock_token:{myLock}");
        let tagged = Name::new("x{a}y").unwrap();
        assert_eq!(keys.channel(&tagged).concat(), "redisson_lock__channel:x{a}y");
        let keys = Keys::new("{t}:");
        assert_eq!(keys.channel(&plain).concat(), "redisson_lock__channel:{t}:myLock");
    }
}
