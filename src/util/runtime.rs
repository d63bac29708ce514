//! The runtime of the caller.

use std::panic::Location;
use tokio::runtime::Handle;

/// Spawns a task on a runtime. If that has ended, the task is dropped here.
#[cfg(all(feature = "redis", not(all(test, shuttle))))]
pub(crate) fn spawn_on(runtime: &Handle, task: impl Future<Output = ()> + Send + 'static) {
    runtime.spawn(task);
}

// In tests of how threads interleave, shuttle runs the tasks: nothing drives a runtime there. It does not end before they do, unless
// their handles are dropped.
#[cfg(all(feature = "redis", test, shuttle))]
pub(crate) fn spawn_on(_runtime: &Handle, task: impl Future<Output = ()> + Send + 'static) {
    std::mem::forget(shuttle::future::spawn(task));
}

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
