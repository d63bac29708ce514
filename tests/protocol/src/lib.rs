//! The lock protocol, without its code: every order of events within small bounds, by a model checker.
//!
//! One name, one server, two or three clients; they exclude each other, or are a writer and readers, or want
//! permits. A client stands for a process: the model leaves out its tasks and its queue. Time is in ticks. A tick
//! moves all clocks; a client's may fall behind the server's by [`rules::DRIFT`] in T, and catch up. Messages may
//! be lost (they never arrive), be late, arrive in any order, and run twice. A server that restarts with its keys
//! does nothing that these do not: all that was under way is lost.
//!
//! | here | there |
//! |---|---|
//! | `Server::run` | the scripts in `store/redis/scripts`, each at one instant; `store/memory/mod.rs` |
//! | `Rules::{deadline, cancel, stale}` | `engine/machine/timing.rs`: D and C count from `s`, before the send |
//! | `Client::{acquire, ask_again}` | `engine/acquire/mod.rs`, `ask_store`: one token for all requests of an acquire |
//! | `Client::granted` | the same: a grant with less than T/2 left is released |
//! | `Client::{abandon, send_sweep}` | `engine/acquire/acquire_guard.rs`, `AcquireGuard`, and `engine/shared/job.rs`, `Sweep`: released by its holder id until T after the last send |
//! | `Client::{renew, confirmed}` | `engine/background/mod.rs`, `State::renewed`: only a confirmation moves D, by its own `s` |
//! | `Client::nest` | `engine/machine/count.rs`: one operation at a time, and the count is absolute |
//! | `Client::{leave, release_again}` | `engine/machine/count.rs`, `engine/hold/release.rs`: belief ends before the release is sent; retried until D |
//! | `Client::hand_off` | `engine/hold/handoff.rs`, `State::may_hand_off`: bounded, only what is sure, with a reserved fencing token |
//! | `Client::tick` | `State::expire`: reported lost at C, and no renewal after it; over at D |
//!
//! The fencing tokens of a quorum have a model of their own, [`tokens`].
//!
//! What must be so is in [`properties`]. `tests/stores/protocol.rs` checks it with all rules, then drops one rule each, and
//! sees the checker find what goes wrong: a model that cannot fail shows nothing.
//!
//! A crate of its own, because it is compiled with optimization: the checker visits a million states.

mod client;
pub mod properties;
pub mod rules;
mod server;
pub mod tokens;
mod world;

pub use world::{Fault, Scope};

use properties::SOMETIMES;
use rules::{Rule, Rules};
use stateright::{Checker, HasDiscoveries, Model};
use std::collections::BTreeSet;

/// Visits all of a scope, and demands that nothing bad was found except `broken`, and all of `met`.
pub fn holds(title: &str, scope: Scope, broken: &[&str], met: &[&str]) {
    let checker = scope.checker().threads(2).spawn_bfs().join();
    let (states, depth) = (checker.unique_state_count(), checker.max_depth());
    println!("{title}: {states} states, the farthest after {depth} steps");
    for (name, path) in checker.discoveries() {
        let good = broken.contains(&name) || met.contains(&name) || SOMETIMES.contains(&name);
        assert!(good, "{title}: not so: {name}: {:#?}", path.into_actions());
    }
    for name in broken.iter().chain(met) {
        let found = checker.discoveries().keys().any(|found| found == name);
        assert!(found, "{title}: never met: {name}");
    }
}

/// Without a rule, what it is there for is found broken.
pub fn breaks(dropped: &'static [Rule], scope: Scope, property: &'static str) {
    let found = HasDiscoveries::AnyOf(BTreeSet::from([property]));
    let scope = Scope { rules: Rules { dropped, ..scope.rules }, ..scope };
    let checker = scope.checker().threads(2).finish_when(found).spawn_bfs().join();
    let states = checker.unique_state_count();
    match checker.discovery(property) {
        Some(path) => {
            let steps = path.into_actions().len();
            println!("without {dropped:?}: {steps} steps to break it, {states} states: {property}");
        }
        None => panic!("without {dropped:?} it should not be so that {property} ({states} states)"),
    }
}
