//! Changes a hold between reading and writing.
//!
//! The change counts when a majority has made it. What the others have does no harm, and is set right with the next
//! renewal:
//!
//! - **A writer becomes a reader.** A node that has not changed refuses other readers.
//! - **The only reader becomes the writer.** A node that has not changed does not count for the writer ([`sides`]). If no
//!   majority has changed, those that have are changed back; until then they refuse other readers. The hold reads on if a
//!   majority has it in either mode.
//!
//! [`sides`]: super::node::node_modes

use super::acquire::{granted, remaining, stale};
use super::holds::{Held, Holds, Places};
use super::node::node_modes::{Sides, unsettled};
use super::node::queue::bounded;
use super::node::{Ballot, Node};
use super::tally::{Answers, Tally, absence, describe_acquired};
use super::{Inner, node_limit};
use crate::error::{Error, ErrorKind, Fate, Result};
use crate::store::{Absence, Acquire, Acquired, HolderId, Mode, Target};
use std::sync::Arc;

impl Inner {
    /// Changes the mode of a hold.
    pub(super) async fn convert(self: Arc<Self>, request: Acquire) -> Result<Acquired> {
        let (outer, mode, limit) =
            (request.holder, request.target.mode, node_limit(request.timeout));
        let sent = self.clock.now();
        let known = self.holds.find(outer);
        if known.as_ref().is_some_and(|held| held.releasing) {
            return Ok(Acquired::NotYours(Absence::Gone));
        }
        let holder = known.as_ref().map_or(outer, |held| held.holder);
        if known.is_none() {
            // Another handle may have acquired it.
            let (places, sides) = (Places::all(), Some(Sides::default()));
            let (count, ttl, until) = (1, request.ttl, sent + request.ttl);
            let (mode, releasing) = (Mode::Read, false);
            let held = Held { holder, count, ttl, until, releasing, places, mode, sides };
            self.holds.insert(outer, held, sent);
        } else if mode == Mode::Read {
            // No lease writes any more, whatever becomes of this.
            self.holds.update(outer, |held| held.mode = mode);
        }
        let (decide, ballot) = Ballot::new(sent);
        let mut tally = self.ask(|node, answers| {
            let (holder, target) = (node.holder_id(holder), request.target.clone());
            let request = Acquire {
                target,
                holder,
                fencing: None,
                place: None,
                steal: None,
                timeout: limit,
                ..request
            };
            node.convert((Arc::clone(&self.holds), outer), request, ballot.clone(), answers)
        });
        let majority = tally.majority();
        let clear = |tally: &Tally<Acquired>| {
            let (changed, there) = (tally.votes(granted), tally.votes(is_there));
            let refused = changed.yes + changed.pending < majority;
            let known = there.yes >= majority || there.yes + there.pending < majority;
            changed.yes >= majority || refused && known
        };
        tally.collect(request.timeout, clear).await;
        let (changed, there) = (tally.votes(granted), tally.votes(is_there));
        let is_stale = stale(request.ttl, sent, self.clock.now());
        let is_changed = changed.yes >= majority && !is_stale;
        self.holds.update(outer, |held| {
            held.mode = if is_changed { mode } else { Mode::Read };
            if is_changed {
                (held.count, held.until) = (1, held.until.max(sent + request.ttl));
            }
        });
        decide.send_replace(Some(is_changed));
        if is_changed {
            return Ok(Acquired::granted(sent, None));
        }
        if mode == Mode::Write && there.yes >= majority {
            return Ok(Acquired::held(remaining(&tally)));
        }
        if known.is_none() {
            self.holds.remove(outer);
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
}

fn is_there(verdict: &Acquired) -> bool {
    !matches!(verdict, Acquired::NotYours(_))
}

impl Node {
    /// Changes the mode here. Changes the writer back into a reader unless the decision is to keep it.
    async fn convert(
        self: Arc<Self>,
        hold: (Arc<Holds>, HolderId),
        request: Acquire,
        mut ballot: Ballot<bool>,
        answers: Answers<Acquired>,
    ) {
        // Kept to the end, so that no other change comes between.
        let mut head = self.queues.head(&request.target, request.holder).await;
        if ballot.is_over() {
            return;
        }
        let writes = request.target.mode == Mode::Write;
        if writes && head.find(request.holder).is_some() {
            // An acquire that may still run could make a reader of it.
            return answers.send(self.index, Err(unsettled()));
        }
        let verdict = self.change(&hold, &request).await;
        let may_have_changed = match &verdict {
            Ok(verdict) => granted(verdict),
            Err(error) => error.fate() != Fate::NotExecuted,
        };
        let vote = match verdict {
            Ok(Acquired::Granted { .. }) => self.check(&request, &ballot).await.and(verdict),
            verdict => verdict,
        };
        answers.send(self.index, vote);
        let keeps = ballot.decided().await == Some(true);
        if writes && may_have_changed && !keeps {
            let target = Target::new(request.target.name.clone(), Mode::Read);
            let _ = self.change(&hold, &Acquire { target, ..request }).await;
        }
        drop(head);
    }

    /// Sends a change of the mode, and records what is known of this node then.
    pub(super) async fn change(
        &self,
        (holds, outer): &(Arc<Holds>, HolderId),
        request: &Acquire,
    ) -> Result<Acquired> {
        let mut change = None;
        holds.update(*outer, |held| {
            let sides = held.sides.get_or_insert_default();
            change = sides.begin(self.index, request.target.mode);
        });
        let Some(change) = change else { return Err(unsettled()) };
        let verdict = bounded(request.timeout, self.store.acquire(request.clone())).await.0;
        holds.update(*outer, |held| {
            held.sides.iter_mut().for_each(|sides| sides.end(change, &verdict));
        });
        verdict
    }
}
