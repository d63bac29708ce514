//! The variables of the child: what it has, and no secret.

use super::held::Entry;
use crate::acquire;
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
pub(super) enum Mode {
    Lock,
    Reader,
    Writer,
    Permit,
    Slot,
}

impl Mode {
    pub(super) fn of(mode: acquire::Mode) -> Self {
        match mode {
            acquire::Mode::Lock | acquire::Mode::Fair => Mode::Lock,
            acquire::Mode::Reader => Mode::Reader,
            acquire::Mode::Writer => Mode::Writer,
            acquire::Mode::Permit(_) => Mode::Permit,
            acquire::Mode::Slot(_) => Mode::Slot,
        }
    }

    fn letter(self) -> char {
        match self {
            Mode::Lock => 'l',
            Mode::Reader => 'r',
            Mode::Writer => 'w',
            Mode::Permit => 'p',
            Mode::Slot => 's',
        }
    }

    /// Returns the mode that stands for all of the same lock.
    fn of_lock(self) -> Self {
        match self {
            Mode::Reader => Mode::Writer,
            mode => mode,
        }
    }
}

/// Where names are held: a store, a prefix, and a mode.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scope {
    store: u64,
    mode: Mode,
}

/// What a run around this one has.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Outer {
    pub(super) holder: String,
    /// It is held in the same way, so a program can run under it as under a lease of this run.
    pub(super) is_same_mode: bool,
}

impl Scope {
    pub(super) fn new(connection: &Connection, mode: Mode) -> Self {
        let mut hasher = DefaultHasher::new();
        (&connection.url, &connection.prefix).hash(&mut hasher);
        Self { store: hasher.finish(), mode }
    }

    /// Returns the number of a lock.
    fn number(self, name: &str) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.store, self.mode.of_lock(), name).hash(&mut hasher);
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
            let lock = parts.next()?;
            let mode = parts.next()?;
            let holder = parts.next()?.to_owned();
            let is_same_mode = mode == self.mode.letter().to_string();
            (lock == number).then_some(Outer { holder, is_same_mode })
        })
    }

    /// Writes what [`find`](Self::find) reads.
    fn write(self, entry: &Entry) -> String {
        format!("{:016x}/{}/{}", self.number(&entry.name), self.mode.letter(), entry.token)
    }
}

/// Sets the variables of a command that runs under these leases. Those of the innermost run win.
pub(super) fn set(command: &mut Command, scope: Scope, entries: &[Entry], slot: Option<u32>) {
    let fence = |entry: &Entry| entry.fence.map(|fence| fence.to_string()).unwrap_or_default();
    let list =
        |part: &dyn Fn(&Entry) -> String| entries.iter().map(part).collect::<Vec<_>>().join(",");
    command.env(
        "LEASEHOLD_NAME",
        match entries {
            [only] => only.name.clone(),
            _ => list(&|entry| escaped(&entry.name)),
        },
    );
    command.env("LEASEHOLD_FENCE", list(&fence));
    command.env("LEASEHOLD_HOLDER", list(&|entry| entry.token.clone()));
    match slot {
        Some(slot) => command.env("LEASEHOLD_SLOT", slot.to_string()),
        None => command.env_remove("LEASEHOLD_SLOT"),
    };
    let ours = list(&|entry| format!("{}={}", escaped(&entry.name), fence(entry)));
    append(command, HELD, &ours);
    append(command, OUTER, &list(&|entry| scope.write(entry)));
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
    fn lock_is_found_by_its_store_mode_and_name() {
        let scope = |store, mode| Scope { store, mode };
        let entry =
            |token: &str| Entry { name: "a,/1".to_owned(), fence: None, token: token.to_owned() };
        let list = [
            scope(1, Mode::Lock).write(&entry("x:1")),
            scope(1, Mode::Reader).write(&entry("x:2")),
        ];
        let list = list.join(",");
        let found = |scope: Scope, name| scope.find(&list, name);
        let outer =
            |holder: &str, is_same_mode| Some(Outer { holder: holder.to_owned(), is_same_mode });
        assert_eq!(found(scope(1, Mode::Lock), "a,/1"), outer("x:1", true));
        assert_eq!(found(scope(1, Mode::Reader), "a,/1"), outer("x:2", true));
        assert_eq!(found(scope(1, Mode::Writer), "a,/1"), outer("x:2", false));
        assert_eq!(found(scope(1, Mode::Permit), "a,/1"), None);
        assert_eq!(found(scope(2, Mode::Lock), "a,/1"), None);
        assert_eq!(found(scope(1, Mode::Lock), "a"), None);
        assert_eq!(scope(1, Mode::Lock).find("", "a"), None);
    }
}
