//! Changes a hold between reading and writing.
//!
//! The change counts when a majority has made it. What the others have does no harm, and is set right with the next
//! renewal:
//!
//! - **A writer becomes a reader.** A node that has not changed refuses other readers.
//! - **The only reader becomes the writer.** A node that has not changed does not count for the writer ([`node_modes`]). If no
//!   majority has changed, those that have are changed back; until then they refuse other readers. The hold reads on if a
//!   majority has it in either mode.
//!
//! [`node_modes`]: super::node_modes

use super::holds::{Held, KeyNodes};
use super::node::{Ballot, BallotAnswers, convert as node_convert};
use super::node_modes::NodeModes;
use super::tally::{Tally, absence, describe_acquired, granted, remaining};
use super::tokens::Numbering;
use super::{Inner, node_limit, stale};
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Absence, Acquire, Acquired, Mode};
use std::sync::Arc;

/// Changes the mode of a hold.
pub(super) async fn convert(inner: Arc<Inner>, request: Acquire) -> Result<Acquired> {
    let outer = request.holder;
    let mode = request.target.mode;
    let limit = node_limit(request.timeout);
    let sent = inner.clock.now();
    let known = inner.holds.find(outer);
    if known.as_ref().is_some_and(|held| held.releasing) {
        return Ok(Acquired::NotYours(Absence::Gone));
    }
    let holder = known.as_ref().map_or(outer, |held| held.holder);
    if known.is_none() {
        // Another handle may have acquired it.
        let held = Held {
            holder,
            count: 1,
            ttl: request.ttl,
            until: sent + request.ttl,
            releasing: false,
            key_nodes: KeyNodes::all(),
            mode: Mode::Read,
            fence: None,
            node_modes: Some(NodeModes::default()),
        };
        inner.holds.insert(outer, held, sent);
    } else if mode == Mode::Read {
        // No lease writes any more, whatever becomes of this.
        inner.holds.update(outer, |held| held.mode = mode);
    }
    let (decide, ballot) = Ballot::new(sent);
    let (numbering, round) = inner
        .fencing_of(&request)
        .map(|fencing| Numbering::new(inner.nodes.len(), request.target.mode, fencing))
        .unzip();
    let mut tally = inner.ask(|node, answers| {
        let answers = BallotAnswers { verdicts: answers, round: round.clone() };
        let request = node.request(&request, holder, limit);
        let holds = Arc::clone(&inner.holds);
        node_convert::convert(node, holds, outer, request, ballot.clone(), answers)
    });
    let majority = tally.majority();
    let clear = |tally: &Tally<Acquired>| {
        let changed = tally.votes(granted);
        let there = tally.votes(is_there);
        let refused = changed.yes + changed.pending < majority;
        let known = there.yes >= majority || there.yes + there.pending < majority;
        changed.yes >= majority || refused && known
    };
    tally.collect(request.timeout, clear).await;
    let passed = inner.clock.now().saturating_duration_since(sent);
    // It is a new grant, with a token of its own.
    let fence = match numbering {
        Some(numbering) => {
            numbering.number(&mut tally, request.timeout.saturating_sub(passed)).await
        }
        None => None,
    };
    let changed = tally.votes(granted);
    let there = tally.votes(is_there);
    let is_stale = stale(request.ttl, sent, inner.clock.now());
    let is_changed = changed.yes >= majority && !is_stale;
    inner.holds.update(outer, |held| {
        held.mode = if is_changed { mode } else { Mode::Read };
        if is_changed {
            (held.count, held.until) = (1, held.until.max(sent + request.ttl));
            held.fence = fence;
        }
    });
    decide.send_replace(Some(is_changed));
    if is_changed {
        return Ok(Acquired::granted(sent, fence));
    }
    if mode == Mode::Write && there.yes >= majority {
        return Ok(Acquired::held(remaining(&tally)));
    }
    if known.is_none() {
        inner.holds.remove(outer);
    }
    if there.no >= majority {
        let absences = tally.verdicts().filter_map(|verdict| match verdict {
            Acquired::NotYours(absence) => Some(*absence),
            _ => None,
        });
        return Ok(Acquired::NotYours(absence(absences, there, majority)));
    }
    if changed.yes >= majority {
        let message = "a majority changed the mode, but too late to be of use";
        return Err(Error::new(ErrorKind::Unavailable, message));
    }
    Err(tally.no_majority(describe_acquired))
}

fn is_there(verdict: &Acquired) -> bool {
    !matches!(verdict, Acquired::NotYours(_))
}
