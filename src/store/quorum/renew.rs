//! Renews holds, by a majority for each item of a batch.

use super::node::Ballot;
use super::tally::{Tally, absence, describe_renewed};
use super::{Inner, node_limit};
use crate::error::Result;
use crate::store::{Absence, HolderId, RenewBatch, Renewed};
use crate::util::reached::Rare;
use crate::util::trace;
use std::sync::Arc;
use tracing::Level;

pub(super) async fn renew(inner: Arc<Inner>, batch: RenewBatch) -> Result<Renewed> {
    batch.items.iter().try_for_each(|item| inner.require(item.target.mode))?;
    let limit = node_limit(batch.timeout);
    let holders: Vec<HolderId> =
        batch.items.iter().map(|item| inner.holds.holder_of(item.holder)).collect();
    let sent = inner.clock.now();
    let (decision, ballot) = Ballot::new(sent);
    let mut tally = inner.ask(|node, answers| {
        let holds = Arc::clone(&inner.holds);
        node.renew(holds, batch.clone(), holders.clone(), limit, ballot.clone(), answers)
    });
    let majority = tally.majority();
    let clear = |tally: &Tally<_>| {
        (0..batch.items.len()).all(|item| {
            let (renewed, lost) = count(tally, item);
            renewed >= majority || lost >= majority
        })
    };
    tally.collect(batch.timeout, clear).await;
    let verdicts: Vec<Result<Option<Absence>>> =
        (0..batch.items.len()).map(|item| verdict(&tally, item, majority)).collect();
    let renewed: Arc<[bool]> = verdicts.iter().map(|v| matches!(v, Ok(None))).collect();
    for (item, renewed) in batch.items.iter().zip(renewed.iter()) {
        if *renewed {
            let until = sent + batch.ttl_of(item);
            inner.holds.update(item.holder, |held| held.until = held.until.max(until));
        }
    }
    decision.send_replace(Some(renewed));
    Ok(Renewed::new(sent, verdicts))
}

type Verdicts = Vec<Result<Option<Absence>>>;

/// Returns how many nodes renewed an item of a batch, and how many do not have it.
fn count(tally: &Tally<Verdicts>, item: usize) -> (usize, usize) {
    let mut counts = (0, 0);
    for verdicts in tally.verdicts() {
        match verdicts[item] {
            Ok(None) => counts.0 += 1,
            Ok(Some(_)) => counts.1 += 1,
            Err(_) => {}
        }
    }
    counts
}

fn verdict(tally: &Tally<Verdicts>, item: usize, majority: usize) -> Result<Option<Absence>> {
    let (renewed, lost) = count(tally, item);
    if renewed >= majority {
        let is_missing = |answer: &Result<Verdicts>| {
            answer.as_ref().map_or(true, |verdicts| !matches!(verdicts[item], Ok(None)))
        };
        let some_are_missing = || tally.answers.iter().flatten().any(is_missing);
        Rare::QuorumRenewedByMajority.reached_if(some_are_missing);
        return Ok(None);
    }
    let (mut one, _) = Tally::new(tally.answers.len());
    one.answers = tally
        .answers
        .iter()
        .map(|answer| match answer {
            None => None,
            Some(Ok(verdicts)) => Some(verdicts[item].clone()),
            Some(Err(error)) => Some(Err(error.clone())),
        })
        .collect();
    let nodes = one.no_majority(describe_renewed);
    if lost >= majority {
        Rare::QuorumLostByMajority.reached();
        trace::later(Level::WARN, || {
            let nodes = nodes.clone();
            move || tracing::warn!(%nodes, "a majority no longer has it")
        });
        let absences = one.verdicts().copied().flatten();
        return Ok(Some(absence(absences, one.votes(Option::is_none), majority)));
    }
    Err(nodes)
}
