//! What the judge looks at again when time has passed.

use super::judge::{Doubt, End, Kept, Stop, Token};
use super::process::Held;
use super::{INSTANT, World};
use std::time::Duration;
use tokio::time::sleep;

/// Waits for the end of the lease under which the work goes on, and then for that of the time to stop.
pub(super) async fn lease(world: World, id: u64, token: Token, held: Held) {
    match held.ended().await {
        End::Over => world.judge(|judge, now| judge.after_release(now, id)),
        end @ End::Lost(_) => {
            world.judge(|judge, now| judge.ended(now, &token, end));
            time_to_stop(&world, id, &token).await;
        }
    }
}

/// Looks for the lease of work that began with a token of which no manager has a lease.
pub(super) async fn find_lease(world: World, id: u64, token: Token) {
    sleep(INSTANT).await;
    world.judge(|judge, now| judge.without_lease(now, &token));
    time_to_stop(&world, id, &token).await;
}

/// Waits until the work must have stopped, if its lease is lost.
async fn time_to_stop(world: &World, id: u64, token: &Token) {
    while let Some(left) = until_stop(world, token).await {
        if left.is_zero() {
            return world.judge(|judge, now| judge.after_loss(now, id, "still works on"));
        }
        sleep(left).await;
    }
}

/// Waits until the process of a lost lease runs, and returns the time until its work must have stopped.
async fn until_stop(world: &World, token: &Token) -> Option<Duration> {
    let Stop { manager, .. } = world.judge(|judge, _| judge.must_stop(token))?;
    world.process(manager).gate.until_it_runs().await;
    // The thaw has changed it.
    let Stop { at, .. } = world.judge(|judge, _| judge.must_stop(token))?;
    Some(at.saturating_add(INSTANT).saturating_sub(world.now()))
}

/// Looks at the leases of a doubt when it comes up.
pub(super) fn kept(world: &World, doubt: &Doubt) -> Kept {
    let lives = |token: &Token| world.held(token).is_some();
    Kept { earlier: lives(&doubt.earlier), later: lives(&doubt.later) }
}

/// Looks at a doubt again.
pub(super) async fn settle(world: World, doubt: Doubt, kept: Kept) {
    sleep(INSTANT).await;
    let name = &doubt.later.name;
    let ago = world.0.store.taken_ago(name);
    world.judge(|judge, now| {
        if let Some(ago) = ago {
            judge.forgets(now.saturating_sub(ago), Some(name));
        }
        judge.settle(now, &doubt, kept);
    });
}

/// Waits until the judge has looked at all that is in doubt, and until work under lost leases must have stopped.
pub(super) async fn settle_all(world: &World) {
    sleep(2 * INSTANT).await;
    while let Some(token) = world.judge(|judge, _| {
        let is_open = judge.verdict().is_none();
        judge.work_after_loss().filter(|_| is_open)
    }) {
        let left = until_stop(world, &token).await.unwrap_or_default();
        sleep(left + INSTANT).await;
    }
}
