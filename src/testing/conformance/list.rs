//! Which names are in use. A store that does not know them returns `Unsupported`.

use super::party::*;
use crate::error::ErrorKind;
use crate::store::{List, Mode};
use crate::testing::Harness;
use std::collections::BTreeMap;

/// See [`Store::list`](crate::store::Store::list). A store without it passes, because it refuses it.
pub async fn names_in_use_are_listed(harness: &dyn Harness) {
    let beginning = unique("list[*]?");
    let mut parties = Vec::new();
    for (number, mode) in
        [Mode::Exclusive, Mode::Exclusive, Mode::Read, Mode::Write].iter().enumerate()
    {
        let name = crate::store::Name::new(&format!("{beginning}:{number}")).expect("a name");
        let party = Party::new(harness, &name).await.to(*mode);
        if party.store.capabilities().supports(*mode) {
            granted(party.acquire().await);
            parties.push(party);
        }
    }
    let free = parties.remove(0);
    released(free.release(0).await);
    let request = List::new(format!("{beginning}:"), PATIENCE).with_page_size(1);
    let mut pages = match free.store.list(request) {
        Ok(pages) => pages,
        Err(error) => return assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}"),
    };
    let mut found = BTreeMap::new();
    while let Some(page) = pages.next().await.expect("the store answers") {
        found.extend(page.into_iter().map(|listed| (listed.name.to_string(), listed.kind)));
    }
    // It may be there: it was in use a moment ago.
    found.remove(free.name.as_str());
    let held = parties.iter().map(|party| (party.name.to_string(), party.mode.kind()));
    assert_eq!(found, held.collect());
}
