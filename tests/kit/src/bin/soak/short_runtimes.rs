//! Flows of control on a runtime that does not last, with the managers of the whole process; and many calls at once.

use crate::faults::Process as Kind;
use crate::holder::{Order, Process, SHARERS};
use crate::inner_faults::unwind;
use crate::random::Random;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio::time::sleep;

/// So many flows of control are on that runtime.
const CALLERS: u64 = 4;
/// And so many beside them share names.
const SHARING_CALLERS: u64 = 3;
/// The generators of these callers follow those of the others.
const FIRST_PART: u64 = 1000;
/// So many ask at once, again after a pause; in a flood they are more.
const BURST: usize = 20;
const FLOOD: usize = 60;
const PAUSE: Duration = Duration::from_millis(50);

/// Lets flows of control live on one runtime after the other, until there is to be rest.
pub fn live(process: &Arc<Process>, seed: u64) {
    let mut first = FIRST_PART;
    while *process.orders.borrow() == Order::Work {
        // It unwinds on purpose, with the runtime in it.
        if let Ok(Err(error)) = catch_unwind(AssertUnwindSafe(|| life(process, seed, first))) {
            return process.broken(format!("short runtimes: {error}"));
        }
        first += CALLERS;
    }
}

fn life(process: &Arc<Process>, seed: u64, first: u64) -> Result<(), String> {
    let mut ends = process.inner_faults.short_runtimes.subscribe();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    runtime.block_on(async {
        let mut callers = JoinSet::new();
        for part in first..first + CALLERS {
            callers.spawn(process.caller(seed, part)?.live());
        }
        for part in first..first + SHARING_CALLERS {
            callers.spawn(process.caller(seed, SHARERS.end + part)?.live_shared());
        }
        tokio::select! {
            () = process.all_end(&mut callers) => {}
            _ = ends.changed() => {
                if matches!(*ends.borrow(), Some((Kind::UnwindRuntime, _))) {
                    unwind();
                }
            }
        }
        Ok(())
    })
}

/// Asks for names without waiting, many at once, whenever it is told to.
pub async fn burst(process: Arc<Process>, mut random: Random) {
    let (mut comes, mut orders) = (process.inner_faults.burst.subscribe(), process.orders.clone());
    let mut asked = 0;
    while *process.orders.borrow() == Order::Work {
        let came = tokio::select! {
            _ = comes.changed() => *comes.borrow_and_update(),
            _ = orders.changed() => return,
        };
        let Some((kind, until)) = came else { continue };
        let mut all = JoinSet::new();
        while Instant::now() < until {
            match kind {
                Kind::Flood => (0..FLOOD).for_each(|_| {
                    asked += 1;
                    all.spawn(try_another(Arc::clone(&process), asked));
                }),
                _ => (0..BURST).for_each(|_| {
                    let at = random.below(process.places.len());
                    all.spawn(try_once(Arc::clone(&process), at));
                }),
            }
            sleep(PAUSE).await;
            // What has ended is to take no memory.
            while let Some(ended) = all.try_join_next() {
                process.ended(ended);
            }
        }
        process.all_end(&mut all).await;
    }
}

/// Tries a name that nobody else wants: of one name, one request at a time is under way.
async fn try_another(process: Arc<Process>, number: usize) {
    let place = &process.places[number % process.places.len()];
    let name = format!("{}-of-{}-{number}", place.name, process.log.who());
    let _ = place.leases.lock(name).try_lock().await;
}

async fn try_once(process: Arc<Process>, at: usize) {
    let place = &process.places[at];
    let ask = process.log.wanted(&place.name, "try", 0);
    let taken = place.leases.lock(&place.name).try_lock().await;
    if let Some((ask, lease)) = ask.brought(taken).await {
        ask.granted(&lease, false).check(&lease);
    }
}
