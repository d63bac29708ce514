//! The engine: acquires, holds, renews and releases leases. It knows stores only by their trait.
//!
//! # Map
//!
//! | files | what they do |
//! |---|---|
//! | [`core`], [`engine`] | the data that all leases share; the tasks and threads that work on it ([`thread`], [`spare`], [`alarm`]) |
//! | [`hold`], [`state`], [`life`] | one hold: its data, its pure state machine, its transitions with what follows from them |
//! | [`acquire`], [`attempt`], [`ask`], [`hints`] | the acquire loop, its requests in flight, the calls of the store, what wakes a waiter |
//! | [`queue`], [`slot`], [`turn`], [`ticket`], [`seat`], [`pause`] | who of this process asks next, and when waiters elsewhere go first |
//! | [`handoff`] | passes a hold to the next waiter of this process |
//! | [`watchdog`], [`schedule`], [`renewal`], [`worker`] | renewals in batches, and the tokens that fire without one |
//! | [`release`], [`job`], [`reaper`] | releases from `unlock` and Drop, and sweeps of unknown outcomes |
//! | [`close`], [`revoke`] | the end of all leases, and a name that is forced open |
//! | [`timing`] | T, C, D and what follows from them |
//!
//! # Invariants
//!
//! 1. **Lost is terminal.** No transition leaves `Lost`; a late or doubled reply changes nothing.
//!    So a holder that was told can rely on it.
//! 2. **Only a confirmed grant or renewal moves the deadline**, each by its own `sent`, and
//!    only forward. A failed or unanswered attempt never does.
//! 3. **After `C` no reply counts and no renewal is sent.** Otherwise a key would be kept alive
//!    for a holder that has given up.
//! 4. **The process's count is the truth**, the store's its record. At most one operation that
//!    writes the count is under way (`busy`), so the record is known or known to be unknown.
//! 5. **Count zero closes the hold in the same step.** Belief ends (the leases' tokens fired) before
//!    a release is sent, and nothing can re-enter a hold that is being released.
//!    An operation that nobody polls keeps nothing: without a live lease nothing is renewed, and after the loss, or
//!    `D`, the hold is over whatever is under way.
//! 6. **A loss fires the token exactly once**, outside the lock, before another one of this process may ask.
//! 7. **Tokens first.** When the key is still ours at a loss (`max_hold`, `close`), it is owed to
//!    the store: released when the last lease is dropped or after the grace, never before.
//! 8. **Nothing delays a token.** What fires tokens at `C` ([`watchdog`]) runs no store, no client, no log
//!    subscriber and no user code but wakers. All that touches the store runs elsewhere ([`worker`]). Traces are
//!    written by a thread of their own ([`trace`]).
//! 9. **Tokens depend on no runtime of the user**, unless the clock is tokio's, which only a runtime can pause.
//!    Then watchdog and worker are one task of a runtime. When that ends, those who wait or hold elsewhere take
//!    the place, and until then a [`spare`] watchdog fires the tokens.
//! 10. **Only `close` closes.** A poll of ours that panics is told from a panic elsewhere ([`alarm`]); the tokens
//!     fire, and what is asked later is told that the watchdog has panicked.
//!
//! Lock order: a hold's state, then the schedule or the queue. Who waits for a change is woken with
//! no lock held.
//!
//! # Shutdown order
//!
//! `close` cancels `closed`: no call gets a lease any more. It fires all tokens, waits for the releases and for the calls
//! under way, and cancels `stop`. The worker finishes its tasks within bounds, ends the store's connections, gives up what
//! is left, and cancels `stopped`. Dropping the last manager cancels `stop` alone.

mod acquire;
mod alarm;
mod ask;
mod attempt;
mod close;
mod core;
#[expect(clippy::module_inception, reason = "it runs what the folder is about")]
mod engine;
mod handoff;
mod hints;
mod hold;
mod job;
mod life;
mod pause;
mod queue;
mod reaper;
mod release;
mod renewal;
mod revoke;
mod schedule;
mod seat;
mod slot;
mod spare;
mod state;
mod thread;
mod ticket;
mod timing;
mod turn;
mod wake;
mod watchdog;
mod worker;

pub(crate) use acquire::{Claim, WaitLimit, acquire};
pub(crate) use close::Closed;
pub(crate) use core::{Core, Settings};
pub(crate) use engine::Engine;
pub(crate) use hold::Hold;
pub(crate) use state::Phase;
pub(crate) use timing::Timing;
