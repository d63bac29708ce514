//! Checks that `tests/engine/unpolled.rs` puts each future of the public API aside, except those that keep no name.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Futures, or all of a module, without a case there, and why.
const WITHOUT: &[(&str, &str)] = &[
    ("Builder::connect", "there is no lease yet"),
    ("Builder::examine", "it has no lease"),
    ("Events::next", "it keeps no name"),
    ("LeaseManager::connect", "there is no lease yet"),
    ("LeaseManager::holders", "it only asks"),
    ("LeaseManager::inspect", "it only asks"),
    ("LeaseManager::owner_of", "it only asks"),
    ("LeaseManager::waiters", "it only asks"),
    ("Leadership::proclaim", "its caller still has the lease"),
    ("Lease::describe_now", "its caller still has the lease"),
    ("Lease::ensure_remaining", "its caller still has the lease"),
    ("Lease::lost", "it keeps no name"),
    ("Lease::note", "its caller still has the lease"),
    ("Lease::run", "its caller still has the lease"),
    ("Lease::wanted", "it keeps no name"),
    ("Listing::next", "it keeps no name"),
    ("MultiLease::lost", "it keeps no name"),
    ("MultiLease::run", "its caller still has the lease"),
    ("Semaphore::resize", "it keeps no permit"),
    ("Semaphore::usage", "it only asks"),
    ("View::changed", "it keeps no name"),
    ("clock::", "it keeps no name"),
    ("store::", "what the engine sends is its own, and a store alone has no watchdog"),
    ("testing::", "for tests"),
    ("tower::", "a request that is worked on has its lease"),
];

/// Returns the futures in the list of the public API, such as `Lock::lock`.
fn futures(listed: &str) -> BTreeSet<String> {
    let (mut of, mut found) = ("", BTreeSet::new());
    for line in listed.lines() {
        if let Some(path) = line.strip_prefix("leasehold::") {
            of = path;
        } else if line.contains("Future for ") {
            found.insert(of.to_owned());
        } else if line.contains("async fn ") || line.contains("Future<Output") {
            let name = line.split_once("fn ").map_or("", |(_, rest)| rest);
            let end = name.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(name.len());
            found.insert(format!("{of}::{}", &name[..end]));
        }
    }
    found
}

#[test]
fn futures_of_the_public_api_are_left_unpolled_by_a_test() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let read = |file: &str| fs::read_to_string(tests.join(file)).expect("readable");
    let (futures, cases) = (futures(&read("house/public-api.txt")), read("engine/unpolled.rs"));
    assert!(futures.contains("Lock::lock") && futures.contains("tower::LeaseFuture"));
    let is_excused = |future: &String| {
        let is_it =
            |entry: &str| future == entry || entry.ends_with("::") && future.starts_with(entry);
        WITHOUT.iter().any(|(entry, _)| is_it(entry))
    };
    let has_case = |future: &String| cases.contains(&format!("\"{future}\" =>"));
    let missing: Vec<_> =
        futures.iter().filter(|future| !is_excused(future) && !has_case(future)).collect();
    assert!(
        missing.is_empty(),
        "these futures have no case in tests/engine/unpolled.rs and no reason in tests/house/unpolled.rs: {missing:?}"
    );
    let both: Vec<_> =
        futures.iter().filter(|future| is_excused(future) && has_case(future)).collect();
    assert!(both.is_empty(), "these futures have a case and a reason to have none: {both:?}");
    for (entry, _) in WITHOUT {
        assert!(futures.iter().any(|future| future.starts_with(entry)), "{entry} is no future");
    }
}
