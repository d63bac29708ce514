//! The runtime of the caller.

use std::panic::Location;
use tokio::runtime::Handle;

/// Panics outside a tokio runtime, with advice: tokio's own panic comes later and has none.
#[track_caller]
pub(crate) fn need() {
    need_at(None);
}

/// Panics as [`need`] does. The advice names the location of the call, if it is known: a future is polled elsewhere.
#[track_caller]
pub(crate) fn need_at(caller: Option<&Location<'_>>) {
    if Handle::try_current().is_ok() {
        return;
    }
    let location = caller.map(|caller| format!(", in the call at {caller}")).unwrap_or_default();
    panic!(
        "leasehold needs a tokio runtime{location}: call this inside #[tokio::main], #[tokio::test] or Runtime::block_on"
    );
}
