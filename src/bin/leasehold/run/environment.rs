//! The variables of the child: what it has, and no secret.

use super::held::Entry;
use crate::connection::{Connection, has_secret};
use std::env;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::process::Command;

const URL: &str = "LEASEHOLD_URL";
const HELD: &str = "LEASEHOLD_HELD";
/// For runs within this one, beside [`HELD`], which is for people: an [`Outer`] for each name.
const OUTER: &str = "LEASEHOLD_OUTER";

/// How a name is held. Names of different kinds are different locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Lock,
    Reader,
    Writer,
    Permit,
    Slot,
}

impl Kind {
    /// Returns the letter of the kind, and that of the lock it is a part of.
    fn letters(self) -> (char, char) {
        match self {
            Kind::Lock => ('l', 'l'),
            Kind::Reader => ('r', 'w'),
            Kind::Writer => ('w', 'w'),
            Kind::Permit => ('p', 'p'),
            Kind::Slot => ('s', 's'),
        }
    }
}

/// Where names are held: a store, a prefix, and a kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    store: u64,
    kind: Kind,
}

/// What a run around this one has.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Outer {
    pub(super) holder: String,
    /// It is held in the same way, so a program can run under it as under a lease of this run.
    pub(super) is_same_kind: bool,
}

impl Place {
    pub(super) fn new(connection: &Connection, kind: Kind) -> Self {
        let mut hasher = DefaultHasher::new();
        (&connection.url, &connection.prefix).hash(&mut hasher);
        Self { store: hasher.finish(), kind }
    }

    /// Returns the number of a lock.
    fn number(self, name: &str) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.store, self.kind.letters().1, name).hash(&mut hasher);
        hasher.finish()
    }

    /// Returns what a run around this one has of a name. The innermost counts.
    pub(super) fn outer(self, name: &str) -> Option<Outer> {
        self.find(&env::var(OUTER).unwrap_or_default(), name)
    }

    fn find(self, list: &str, name: &str) -> Option<Outer> {
        let number = format!("{:016x}", self.number(name));
        list.rsplit(',').find_map(|entry| {
            let mut parts = entry.splitn(3, '/');
            let (lock, kind) = (parts.next()?, parts.next()?);
            let holder = parts.next()?.to_owned();
            let is_same_kind = kind == self.kind.letters().0.to_string();
            (lock == number).then_some(Outer { holder, is_same_kind })
        })
    }

    /// Writes what [`find`](Self::find) reads.
    fn write(self, entry: &Entry) -> String {
        format!("{:016x}/{}/{}", self.number(&entry.name), self.kind.letters().0, entry.token)
    }
}

/// Sets the variables of a command that runs under these leases. Those of the innermost run win.
pub(super) fn set(command: &mut Command, place: Place, entries: &[Entry], slot: Option<u32>) {
    let fence = |entry: &Entry| entry.fence.map(|fence| fence.to_string()).unwrap_or_default();
    let list =
        |part: &dyn Fn(&Entry) -> String| entries.iter().map(part).collect::<Vec<_>>().join(",");
    command.env("LEASEHOLD_NAME", list(&|entry| entry.name.clone()));
    command.env("LEASEHOLD_FENCE", list(&fence));
    command.env("LEASEHOLD_HOLDER", list(&|entry| entry.token.clone()));
    match slot {
        Some(slot) => command.env("LEASEHOLD_SLOT", slot.to_string()),
        None => command.env_remove("LEASEHOLD_SLOT"),
    };
    let ours = list(&|entry| format!("{}={}", escaped(&entry.name), fence(entry)));
    append(command, HELD, &ours);
    append(command, OUTER, &list(&|entry| place.write(entry)));
    remove_secrets(command);
}

/// Appends to a list in a variable.
fn append(command: &mut Command, variable: &str, ours: &str) {
    let mut list = env::var_os(variable).filter(|held| !held.is_empty()).unwrap_or_default();
    if !list.is_empty() {
        list.push(",");
    }
    list.push(ours);
    command.env(variable, list);
}

/// Removes the URL, if it has a password.
pub(super) fn remove_secrets(command: &mut Command) {
    if env::var(URL).is_ok_and(|url| has_secret(&url)) {
        command.env_remove(URL);
    }
}

/// Writes a name without a comma, which divides the list.
fn escaped(name: &str) -> String {
    name.replace('%', "%25").replace(',', "%2C")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_is_found_by_its_store_its_kind_and_its_name() {
        let place = |store, kind| Place { store, kind };
        let entry =
            |token: &str| Entry { name: "a,/1".to_owned(), fence: None, token: token.to_owned() };
        let list = [
            place(1, Kind::Lock).write(&entry("x:1")),
            place(1, Kind::Reader).write(&entry("x:2")),
        ];
        let list = list.join(",");
        let found = |place: Place, name| place.find(&list, name);
        let outer =
            |holder: &str, is_same_kind| Some(Outer { holder: holder.to_owned(), is_same_kind });
        assert_eq!(found(place(1, Kind::Lock), "a,/1"), outer("x:1", true));
        assert_eq!(found(place(1, Kind::Reader), "a,/1"), outer("x:2", true));
        assert_eq!(found(place(1, Kind::Writer), "a,/1"), outer("x:2", false));
        assert_eq!(found(place(1, Kind::Permit), "a,/1"), None);
        assert_eq!(found(place(2, Kind::Lock), "a,/1"), None);
        assert_eq!(found(place(1, Kind::Lock), "a"), None);
        assert_eq!(place(1, Kind::Lock).find("", "a"), None);
    }
}
