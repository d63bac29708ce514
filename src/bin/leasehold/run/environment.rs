//! The variables of the child: what it has, and no secret.

use super::held::Entry;
use crate::connection::has_secret;
use std::env;
use std::process::Command;

const URL: &str = "LEASEHOLD_URL";
const HELD: &str = "LEASEHOLD_HELD";

/// Sets the variables of a command that runs under these leases. Those of the innermost run win.
pub(super) fn set(command: &mut Command, entries: &[Entry], slot: Option<u32>) {
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
    let outer = env::var(HELD).ok().filter(|held| !held.is_empty());
    command.env(HELD, outer.map_or(ours.clone(), |outer| format!("{outer},{ours}")));
    remove_secrets(command);
}

/// Removes the URL, if it has a password.
pub(super) fn remove_secrets(command: &mut Command) {
    if env::var(URL).is_ok_and(|url| has_secret(&url)) {
        command.env_remove(URL);
    }
}

/// Returns whether a run around this one has a name.
pub(super) fn is_held(name: &str) -> bool {
    env::var(HELD).is_ok_and(|held| names(&held).any(|held| held == escaped(name)))
}

/// Returns the names of a list of `name=token`.
fn names(held: &str) -> impl Iterator<Item = &str> {
    held.split(',').map(|pair| pair.rsplit_once('=').map_or(pair, |(name, _)| name))
}

/// Writes a name without a comma, which divides the list.
fn escaped(name: &str) -> String {
    name.replace('%', "%25").replace(',', "%2C")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_the_list() {
        let list = format!("{}=5,b=c=,d=7", escaped("a,1"));
        assert_eq!(names(&list).collect::<Vec<_>>(), ["a%2C1", "b=c", "d"]);
    }
}
