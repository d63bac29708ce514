//! From names to what Redis sees; Redisson's derivations, to the byte.

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

    pub(super) fn lock(&self, name: &Name) -> String {
        format!("{}{name}", self.prefix)
    }

    pub(super) fn fence(&self, name: &Name) -> String {
        derived("redisson_lock_token", &self.lock(name))
    }

    pub(super) fn channel(&self, name: &Name) -> String {
        derived("redisson_lock__channel", &self.lock(name))
    }
}

fn derived(prefix: &str, key: &str) -> String {
    if key.contains('{') { format!("{prefix}:{key}") } else { format!("{prefix}:{{{key}}}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derived_names_are_redissons_to_the_byte() {
        let keys = Keys::new("");
        let plain = Name::new("myLock").unwrap();
        assert_eq!(keys.lock(&plain), "myLock");
        assert_eq!(keys.channel(&plain), "redisson_lock__channel:{myLock}");
        assert_eq!(keys.fence(&plain), "redisson_lock_token:{myLock}");
        let tagged = Name::new("x{a}y").unwrap();
        assert_eq!(keys.channel(&tagged), "redisson_lock__channel:x{a}y");
        let keys = Keys::new("{t}:");
        assert_eq!(keys.channel(&plain), "redisson_lock__channel:{t}:myLock");
    }
}
