//! Finds the holders that a majority has.

use super::Inner;
use super::metadata::newest;
use super::tally::Tally;
use crate::error::Result;
use crate::store::{HolderInfo, Inspect, Inspection, Mode, Store, StoreFuture};
use std::cmp::Reverse;
use std::sync::Arc;

pub(super) async fn inspect(inner: &Arc<Inner>, request: Inspect) -> Result<Inspection> {
    inner.require(request.target.mode)?;
    let limit = request.timeout;
    let tally = inner.query_all(limit, move |store: Arc<dyn Store>| -> StoreFuture<_> {
        let request = request.clone();
        Box::pin(async move {
            let inspection = store.inspect(request).await?;
            let waiting = inspection.waiting;
            Ok((at_node(inspection), waiting))
        })
    });
    let tally = tally.await;
    let mut found: Vec<&HolderInfo> = tally.verdicts().flat_map(|(holders, _)| holders).collect();
    found.sort_by(|one, other| one.holder.cmp(&other.holder));
    let majority = tally.majority();
    let same = || found.chunk_by(|one, other| one.holder == other.holder);
    let holders: Vec<_> = same().filter_map(|same| of_majority(same, majority)).collect();
    let votes = tally.votes(|(holders, _)| !holders.is_empty());
    let silent = votes.failed + votes.pending;
    let most = same().map(<[_]>::len).max().unwrap_or(0);
    // No holder has a majority, whatever the silent nodes have.
    if !holders.is_empty() || most + silent < majority {
        // A waiter is subscribed at every node that it reaches.
        let waiting = tally.verdicts().filter_map(|(_, waiting)| *waiting).max();
        return Ok(Inspection::new(holders).with_waiting(waiting));
    }
    Err(no_majority(&tally))
}

fn no_majority(tally: &Tally<(Vec<HolderInfo>, Option<u64>)>) -> crate::error::Error {
    tally.no_majority(|(holders, _)| if holders.is_empty() { "free" } else { "held" })
}

/// Returns the holders at a node, each of them once.
fn at_node(inspection: Inspection) -> Vec<HolderInfo> {
    let mut holders = inspection.holders;
    for holding in &mut holders {
        // The attempts of one hold have one holder.
        if let Some((holder, _)) = holding.holder.split_once('.') {
            holding.holder = holder.to_owned();
        }
        if let Some(closed) = &mut holding.closed
            && let Some((by, _)) = closed.by.split_once('.')
        {
            closed.by = by.to_owned();
        }
    }
    holders.sort_by(|one, other| {
        one.holder.cmp(&other.holder).then(other.remaining.cmp(&one.remaining))
    });
    holders.dedup_by(|one, other| one.holder == other.holder);
    holders
}

/// Returns a holder if a majority has it, with the least time to live that a majority has at least. Without a majority for
/// the writer, it can be a reader at most.
fn of_majority(same: &[&HolderInfo], majority: usize) -> Option<HolderInfo> {
    let mut same = same.to_vec();
    same.sort_by_key(|holding| Reverse(holding.remaining));
    let least = (*same.get(majority - 1)?).clone();
    let writers = same.iter().filter(|holding| holding.mode == Mode::Write).count();
    match least.mode {
        Mode::Read | Mode::Write => {
            let mode = if writers >= majority { Mode::Write } else { Mode::Read };
            Some(least.with_mode(mode))
        }
        Mode::Exclusive => Some(least.with_metadata(newest(&same))),
        Mode::Permits { .. } => Some(least),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn holding(holder: &str, mode: Mode, seconds: u64) -> HolderInfo {
        let left = Some(Duration::from_secs(seconds));
        HolderInfo::new(holder.into(), 1, left).with_mode(mode)
    }

    #[test]
    fn attempts_of_a_holder_count_once_at_a_node() {
        let read = |holder, seconds| holding(holder, Mode::Read, seconds);
        let found = [read("a:1.1", 3), read("a:1.1.7", 9), read("a:2.1", 5)];
        assert_eq!(at_node(Inspection::new(found)), [read("a:1", 9), read("a:2", 5)]);
    }

    #[test]
    fn writer_is_whoever_a_majority_has_as_the_writer() {
        let (read, write) = (|s| holding("a:1", Mode::Read, s), |s| holding("a:1", Mode::Write, s));
        for (found, expected) in [
            (vec![write(9), write(7), read(8)], Some(write(8))),
            (vec![write(9), read(7), read(8)], Some(read(8))),
            (vec![write(9), read(7)], Some(read(7))),
            (vec![write(9)], None),
        ] {
            let found: Vec<&HolderInfo> = found.iter().collect();
            assert_eq!(of_majority(&found, 2), expected, "{found:?}");
        }
    }
}
