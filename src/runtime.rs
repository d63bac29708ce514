//! The runtime of the caller.

use tokio::runtime::Handle;

/// Panics outside a tokio runtime, with advice: tokio's own panic comes later and has none.
pub(crate) fn need() {
    assert!(
        Handle::try_current().is_ok(),
        "leasehold needs a tokio runtime: call this inside #[tokio::main], #[tokio::test] or Runtime::block_on"
    );
}
