//! The engine: acquires, holds, renews and releases leases. It knows stores only by their trait.
//!
//! `ARCHITECTURE.md` has a map of its rooms.
//!
//! # Invariants
//!
//! 1. **Lost is terminal.** No transition leaves `Lost`; a late or doubled reply changes nothing.
//!    So a holder can rely on a loss that it has seen.
//! 2. **Only a confirmed grant or renewal moves the deadline**, each by its own `sent`, and only
//!    forward. A failed or unanswered attempt never does.
//! 3. **After `C` no reply counts and no renewal is sent.** Otherwise a key would be kept alive for
//!    a holder that has given up.
//! 4. **The count in the process is the truth**, the store's count its record. At most one record of a holder id is in
//!    flight. Releases, hand-offs and changes of the mode do not wait for it, so the store's count may be late.
//! 5. **Count zero closes the hold in the same step.** The tokens of its leases have fired or no
//!    lease is left before a release is sent, and nothing can re-enter a hold that is being
//!    released. An operation that is not polled keeps nothing: without a live lease that a caller
//!    has, or a pulse, nothing is renewed. A hold is over at a loss that owes no release, and otherwise after the release or at `D`,
//!    whatever is in progress.
//! 6. **A loss fires the token exactly once**, outside the lock, before another waiter of this
//!    process may ask.
//! 7. **Tokens first.** When the key is still ours at a loss (`max_hold`, `stall_after`, `close`), a release is
//!    owed to the store: it is sent when the last lease is dropped or after the grace, never
//!    before.
//! 8. **Nothing delays a token.** The code that fires tokens at `C` ([`watchdog`]) runs no store,
//!    no client, no log subscriber and no user code but wakers. Everything that calls the store
//!    runs elsewhere ([`background`]). Traces are written by their own thread ([`trace`](crate::util::trace)).
//! 9. **Tokens depend on no runtime of the user**, unless the clock is tokio's, which only a
//!    runtime can pause. Then watchdog and worker are one task of a runtime. When that runtime
//!    ends, a call that waits or holds on another runtime restarts them there. Until then, and
//!    while that runtime is blocked, the fallback watchdog ([`run`]) fires the tokens.
//! 10. **Only `close` closes.** A panic in a poll of the engine is distinguished from a panic
//!     elsewhere (`guarded` in [`run`]). It fires the tokens, and later calls return an error that names the
//!     panic.
//! 11. **Fencing tokens never go back**, in any mode: each grant has a larger one than every grant that was complete when it
//!     began, across expiry, deletion, flush, failover and restart, unless a server's clock steps back. A hand-off has a token
//!     that the grant has reserved, or one that lies behind the store's clock for sure. A quorum hands off with reserved ones only,
//!     and has one exception: a `FLUSHALL` on a running node is no restart, so no time to live passes before that node
//!     counts again. Then tokens grow only as the clocks of its nodes do.
//!
//! Lock order: a hold's state, then the schedule or the queue. Waiters are woken with no lock held.
//!
//! # Shutdown order
//!
//! [`Stage`] has the stages. `close` enters `Closed`: no call gets a lease any more. It fires all tokens, waits for the
//! releases and for the calls in progress, and enters `Ending`. The worker finishes its tasks within
//! bounds, ends the store's connections, gives up the remaining releases, and enters `Ended`.
//! Dropping the last manager enters `Ending` at once.

mod acquire;
mod admin;
mod background;
mod hold;
#[cfg(all(test, shuttle))]
mod interleavings;
mod machine;
mod run;
mod shared;
mod watchdog;

pub(crate) use acquire::set::SetCall;
pub(crate) use acquire::{
    AFTER_EXPIRY, AcquireSpec, Claim, Polling, WaitLimit, acquire, acquire_as,
};
pub(crate) use admin::close::{self, CloseOutcome};
pub(crate) use admin::revoke;
pub(crate) use admin::steal::{steal, want};
pub(crate) use background::presence;
pub(crate) use hold::describe::{self, LeaderEntry};
pub(crate) use hold::readers::{Converted, convert};
pub(crate) use hold::{handoff, release, renew};
pub(crate) use machine::count::Share;
pub(crate) use machine::hold::Phase;
pub(crate) use machine::policy::CallSite;
pub(crate) use machine::timing::Timing;
pub(crate) use run::Engine;
pub(crate) use shared::answers::{self, Timed, Unanswered};
pub(crate) use shared::calls;
pub(crate) use shared::core::Core;
pub(crate) use shared::hold::Hold;
pub(crate) use shared::lifecycle::Stage;
pub(crate) use shared::options::{Options, Settings, check_stall_after, setters};
pub(crate) use shared::overrun::Overruns;
pub use shared::overrun::{Overrun, OverrunHook, OverrunReport};
pub(crate) use shared::pulse::CallPulse;
pub(crate) use shared::report::{self, StoreRefusal};
