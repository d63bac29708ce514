//! Releases holds, by a majority.

use super::tally::{Tally, absence, describe_released};
use super::{Inner, node_limit};
use crate::error::{Fate, Result};
use crate::store::{Release, Released};
use std::sync::Arc;

/// Gives up the arrival of a writer at each node. Where that fails, it lapses.
pub(super) async fn release_arrival(inner: Arc<Inner>, request: Release) -> Result<Released> {
    let limit = node_limit(request.timeout);
    let mut tally = inner.ask(|node, answers| {
        let holder = node.holder_id(request.holder);
        let request = Release { holder, timeout: limit, ..request.clone() };
        async move { answers.send(node.index, node.store.release(request).await) }
    });
    let answered = |tally: &Tally<Released>| tally.votes(|_| true).yes >= tally.majority();
    tally.collect(request.timeout, answered).await;
    if answered(&tally) { Ok(Released::done(0)) } else { Err(tally.no_majority(|_| "given up")) }
}

pub(super) async fn release(inner: Arc<Inner>, request: Release) -> Result<Released> {
    inner.require(request.target.mode)?;
    let keeps = request.mark()?.is_some();
    let outer = request.holder;
    let timeout = request.timeout;
    let limit = node_limit(timeout);
    let is_last = request.count == 0;
    let held = inner.holds.update(outer, |held| match request.count {
        0 => held.releasing = true,
        count => held.count = count,
    });
    let holder = held.as_ref().map_or(outer, |held| held.holder);
    let owed = held.map(|held| (inner.clock.now() + held.ttl, held.key_nodes));
    let mut tally = inner.ask(|node, answers| {
        let holder = node.holder_id(holder);
        let request = Release { holder, timeout: limit, ..request.clone() };
        let owed = owed.clone();
        async move {
            if is_last {
                node.release(request, owed, answers).await;
            } else {
                node.record(request, answers).await;
            }
        }
    });
    let done = |verdict: &Released| matches!(verdict, Released::Done { .. });
    let majority = tally.majority();
    tally
        .collect(timeout, |tally| {
            let votes = tally.votes(done);
            votes.yes >= majority || votes.no >= majority
        })
        .await;
    let votes = tally.votes(done);
    // A mark closes the name only at a majority.
    let unclear = keeps && votes.yes < majority && votes.no < majority;
    if votes.yes + votes.no < majority || unclear {
        let error = tally.no_majority(describe_released);
        // The nodes are swept, so it may still be done where it was not sent.
        return Err(if is_last { error.with_fate(Fate::Unknown) } else { error });
    }
    if is_last {
        inner.holds.remove(outer);
    }
    if votes.no >= majority {
        let absences = tally.verdicts().filter_map(|verdict| match verdict {
            Released::NotYours(absence) => Some(*absence),
            Released::Done { .. } => None,
        });
        return Ok(Released::NotYours(absence(absences, votes, majority)));
    }
    // Some nodes had it, and no majority had lost it.
    let listeners = tally.verdicts().map(|verdict| match verdict {
        Released::Done { listeners } => *listeners,
        Released::NotYours(_) => 0,
    });
    Ok(Released::done(listeners.max().unwrap_or_default()))
}
