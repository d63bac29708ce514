//! The fallback watchdog: a second one for engines that run on a runtime of the user.
//!
//! Such a runtime may end, or user code may block it. When it has ended, a call that waits or holds on another runtime
//! restarts the engine there. A holder that has only its token makes no call, and nothing restarts a runtime that is
//! blocked. So one thread of the process watches all these engines, and fires tokens at `C`. It renews nothing: the store
//! may live on that runtime.
//!
//! It looks at the schedule a little after the first entry is due, and at least every T/4, or more often with a long grace: no
//! hold that begins after a look has its `C` before the next one, also not one that is handed off with T/2 left. So no call
//! pays for it. Only when the watchdog is late, or does not end what it has begun, it looks at each hold.
//! `max_hold` and `stall_after` can fire later, by the time between two looks.

use super::panic_guard::guarded;
use super::shared::core::Core;
use super::shared::hold::Hold;
use super::shared::lifecycle::Stage;
use super::shared::schedule::Group;
use super::thread::spawn_thread;
use crate::clock::{self, Instant, Sleeper};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::mpsc;

/// The least time after which the watchdog counts as late.
const SHORTEST_LAG: Duration = Duration::from_millis(1);

static ENGINES: OnceLock<Option<mpsc::UnboundedSender<Arc<Core>>>> = OnceLock::new();

/// Watches an engine to its end. The first call in a process starts the thread.
pub(super) fn watch(core: &Arc<Core>) {
    let engines = ENGINES.get_or_init(|| {
        let (sender, engines) = mpsc::unbounded_channel();
        spawn_thread("leasehold-spare", async move || run(engines).await).ok().map(|()| sender)
    });
    if let Some(engines) = engines {
        // Fails only if the thread has panicked.
        let _ = engines.send(Arc::clone(core));
    }
}

/// Returns whether the thread runs.
pub(super) fn is_there() -> bool {
    ENGINES.get().and_then(Option::as_ref).is_some_and(|engines| !engines.is_closed())
}

async fn run(mut engines: mpsc::UnboundedReceiver<Arc<Core>>) {
    while let Some(core) = engines.recv().await {
        tokio::spawn(async move {
            tokio::select! {
                biased;
                () = core.life.until(Stage::Ending) => {}
                () = guarded(&core, watch_over(&core)) => {}
            }
        });
    }
}

async fn watch_over(core: &Arc<Core>) {
    let mut sleeper = Sleeper::new(core.clock());
    loop {
        let next = look(core);
        sleeper.until(next).await;
    }
}

/// Fires the tokens that are due, if the watchdog is late. Returns the time of the next look.
fn look(core: &Arc<Core>) -> Instant {
    let now = core.now();
    let ttl = core.timing.ttl;
    let latest = now + (ttl / 4).min((ttl / 2).saturating_sub(core.timing.grace));
    // While it works, what was due is in no schedule: a waker that blocks can hold it up.
    let began = *core.tick.lock();
    let Some(first) = began.into_iter().chain(core.schedule.first()).min() else { return latest };
    if has_paused_clock(core) {
        return latest;
    }
    let late = first + (core.timing.grace / 4).max(SHORTEST_LAG);
    if now < late {
        return late.min(latest);
    }
    let mut group = Group::new(core, None, 0);
    let holds = core.queue.holds();
    let ends = holds.iter().filter_map(|hold| ends_at(core, hold, now, &mut group));
    let next = ends.fold(latest, Instant::min);
    group.end();
    next
}

/// Applies the clock. Returns when the hold is lost if nothing happens before, or `None` if it is over.
fn ends_at(
    core: &Arc<Core>,
    hold: &Arc<Hold>,
    now: Instant,
    group: &mut Group<'_>,
) -> Option<Instant> {
    hold.update_locked(core, now, hold.lock(), Some(group), |state, now| {
        state.expire(&core.timing, now);
        state.believed().then(|| state.ends_at(&core.timing))
    })
}

/// Returns whether the clock of the engine is one of tokio that is paused on the runtime on which the engine runs.
fn has_paused_clock(core: &Core) -> bool {
    core.clock().is_tokio()
        && core.runtime.lock().as_ref().is_some_and(|runtime| {
            let _entered = runtime.enter();
            clock::is_paused()
        })
}
