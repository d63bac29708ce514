//! Both of leasehold's requests in one call: the floor for many at once.

use super::bare::{self, FENCED, TOKEN};

/// Returns leasehold's script for many requests.
pub fn batch_script() -> String {
    bare::script("batch")
}

const PLAIN: [&str; 4] = ["30000", "1", "1", "0"];

/// What follows EVALSHA and the script's hash for an acquire and a release of one name.
pub fn pair_in_one(name: &str, fenced: bool) -> Vec<String> {
    let (fence, tokens) = (bare::fence_key(name), format!("{TOKEN},{TOKEN}"));
    let words = if fenced {
        [&["3", name, &fence, name], &FENCED[..], &[&tokens, "SFR"]].concat()
    } else {
        [&["2", name, name], &PLAIN[..], &[&tokens, "SAR"]].concat()
    };
    words.into_iter().map(String::from).collect()
}
