//! Requests that run the real scripts, with the simulated server beside them: it says what each reply should be, by its own rules.
//! What the engine hears is the reply of the scripts.
//!
//! The two may differ in this, and in nothing else:
//!
//! 1. Scripts remove readers and permits that have expired only for a request that needs what they have. Until then they may be
//!    found: renewed, released, changed, or in the way of a writer, for as long as the hash lasts. The server calls them ghosts.
//!    What is there again must exclude nothing that is there.
//! 2. A writer that is a reader has lost its mode, and hears that its hold is gone, while the server goes by the holder alone.
//! 3. A note says of a hold that is gone that it was forced open.
//! 4. A fencing token is larger than all before; the server does not say which one it is. A reader whose own key had expired has a
//!    new one.
//! 5. The time that is left of another's hold of a read-write lock is that of the hash.
//! 6. The first acquire of permits makes the semaphore, and wakes clients that came before there was one.
//! 7. A description outlives the hold, and is deleted for whom it is of, also after it.
//! 8. A late copy of the request of a reader that writes by now hears of the last token of the writer. Its caller had its reply.
//! 9. A forced release as of another kind, after a refusal that the simulation made up, is refused, and deletes nothing.

use super::{Inner, World};
use crate::plan::HoldId;
use crate::scripts::{Scripts, channels_of};
use crate::server::{Deed, Entry, permits};
use kit::lua::Message;
use leasehold::clock::Instant;
use leasehold::store::{
    Absence, Acquire, Acquired, Annotate, ForceRelease, HolderId, HolderInfo, Inspect, Inspection,
    Layout, Mark, Mode, Name, Release, Released, RenewBatch, Renewal, Target, Want,
};
use leasehold::{Error, ErrorKind, Result};
use std::collections::{BTreeMap, HashSet};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

/// What a release did.
pub struct Let {
    pub absence: Option<Absence>,
    /// Whether others may be let in now.
    pub freed: bool,
    /// Whether waiters are woken.
    pub wakes: bool,
}

/// Of times in whole milliseconds.
const ROUNDED: Duration = Duration::from_millis(1);

impl Inner {
    /// Lends the scripts, which know who listens.
    fn lend(&mut self) -> Option<Scripts> {
        let scripts = self.scripts.take()?;
        let mut listeners = BTreeMap::new();
        for subscriber in &self.subscriptions {
            *listeners.entry(subscriber.name.to_string()).or_insert(0) += 1;
        }
        scripts.listen(&listeners);
        Some(scripts)
    }

    pub(super) fn acquire(
        &mut self,
        now: u64,
        sent: Instant,
        request: &Acquire,
        hold: HoldId,
    ) -> (Acquired, Deed) {
        let Some(mut scripts) = self.lend() else {
            return self.server.acquire(now, sent, request, hold);
        };
        let heard = scripts.acquire(&self.server, now, hold.0, request);
        let name = &request.target.name;
        let had_ghosts = self.server.has_ghosts(name, now);
        let reads = request.target.mode == Mode::Read;
        let mut ghost = self.server.exorcise(name, request.holder, now);
        if matches!(heard.verdict, Ok(Acquired::Granted { .. }))
            && (request.converts || reads)
            && let Some(ghost) = ghost.take()
        {
            // 1.
            self.revive(now, &request.target, ghost, request.ttl, request);
        }
        let late_reader =
            reads && !request.converts && self.server.is_writer(name, request.holder, now);
        let before = self.server.copy();
        let last = self.server.last_fence(name);
        let (expected, mut deed) = self.server.acquire(now, sent, request, hold);
        let verdict = match heard.verdict {
            Ok(verdict) => verdict,
            Err(error) => {
                self.judge.fail(now, format_args!("a script refuses {request:?}: {error}"));
                expected
            }
        };
        let mut wrong = None;
        let verdict = match (verdict, expected) {
            (
                Acquired::Granted { fence, reached, oldest, .. },
                Acquired::Granted { fence: known, .. },
            ) => {
                let block = request.fencing.map_or(1, |fencing| u64::from(fencing.block.max(1)));
                let block = if request.target.mode == Mode::Read { 1 } else { block };
                match (fence, known) {
                    (None, None) => {}
                    // 8.
                    (Some(_), Some(_)) if late_reader => {}
                    (Some(fence), Some(known)) => {
                        let fresh = fence > last && (deed != Deed::Again || reads);
                        if !fresh && (deed != Deed::Again || fence != known) {
                            wrong = Some(format!("the token {fence}, after {last}; had {known}"));
                        }
                        let last = if fresh { fence + block - 1 } else { last };
                        self.server.set_fence(name, request.holder, now, [fence, last]);
                    }
                    _ => wrong = Some("a token, or none".to_owned()),
                }
                let mut granted = Acquired::granted(sent, fence).with_oldest(oldest);
                if reached {
                    granted = Acquired::granted_with_fence_reached(sent, fence).with_oldest(oldest);
                }
                granted
            }
            (
                Acquired::Held { remaining, closed, lingers, .. },
                Acquired::Held { remaining: left, lingers: rests, .. },
            ) => {
                let near = match (remaining, left) {
                    (Some(one), Some(other)) => one.abs_diff(other) <= ROUNDED,
                    _ => false,
                };
                // 5.
                let shared = matches!(request.target.mode, Mode::Read | Mode::Write);
                let mark = self.server.mark(name, now).filter(|mark| *mark == Mark::Done);
                if !near && !shared || closed != mark || lingers != rests {
                    wrong = Some("another refusal".to_owned());
                }
                verdict
            }
            (Acquired::NotYours(one), Acquired::NotYours(other)) => {
                if one != other && !had_ghosts {
                    wrong = Some("another absence".to_owned());
                }
                verdict
            }
            // 1. A reader that would write, beside others.
            (Acquired::Held { .. }, Acquired::NotYours(_))
                if request.converts && ghost.is_some() =>
            {
                self.server.haunt(name, ghost.take());
                verdict
            }
            // 1.
            (Acquired::Held { .. }, Acquired::Granted { .. })
                if had_ghosts && request.target.mode == Mode::Write =>
            {
                self.server.restore(before);
                self.server.wait(now, request, hold);
                deed = Deed::Nothing;
                verdict
            }
            _ => {
                wrong = Some("another verdict".to_owned());
                verdict
            }
        };
        let downgraded = deed == Deed::Changed && request.target.mode == Mode::Read;
        // 6.
        let makes = matches!(request.target.mode, Mode::Permits { .. }) && deed == Deed::Created;
        if wakes(name, &heard.published) != downgraded && !makes {
            wrong = wrong.or(Some(format!("published {:?}", heard.published)));
        }
        if let Some(wrong) = wrong {
            let what = format_args!("{wrong}: {verdict:?}, not {expected:?}, to {request:?}");
            self.judge.fail(now, what);
        }
        self.look(&mut scripts, &request.target, now);
        self.scripts = Some(scripts);
        (verdict, deed)
    }

    pub(super) fn release(&mut self, now: u64, request: &Release, hold: HoldId) -> Let {
        let Some(mut scripts) = self.lend() else {
            let (absence, freed) = self.server.release(now, request);
            return Let { absence, freed, wakes: freed };
        };
        let heard = scripts.release(&self.server, now, hold.0, request);
        let (name, mode) = (&request.target.name, request.target.mode);
        let had_ghosts = self.server.has_ghosts(name, now);
        let was_ghost = self.server.exorcise(name, request.holder, now).is_some();
        let is_reader = self.server.is_reader(name, request.holder, now);
        let marked = self.server.mark(name, now).is_some();
        let (known, freed) = self.server.release(now, request);
        let keeps = request.count == 0 && request.keep.is_some();
        let wakes = wakes(name, &heard.published);
        let absence = match &heard.verdict {
            Ok(Released::NotYours(absence)) => Some(*absence),
            Ok(_) => None,
            Err(error) => {
                self.judge.fail(now, format_args!("a script refuses {request:?}: {error}"));
                known
            }
        };
        let (lost_mode, ghost) = (is_reader && mode == Mode::Write, was_ghost || had_ghosts);
        let same = absence == known
            // 2.
            || lost_mode && known.is_none()
            // 1.
            || was_ghost && known.is_some()
            || ghost && absence.is_some() && known.is_some();
        let expected = freed || keeps && known.is_none() && !marked;
        if !same || wakes != expected && !ghost {
            let what = format_args!(
                "{:?}, woken: {wakes}, not {known:?}, {expected}, to {request:?}",
                heard.verdict
            );
            self.judge.fail(now, what);
        }
        self.look(&mut scripts, &request.target, now);
        self.scripts = Some(scripts);
        Let { absence, freed, wakes }
    }

    /// Gives up the place of a waiter.
    pub(super) fn leave(&mut self, world: &Arc<World>, now: u64, request: &Release, hold: HoldId) {
        let Target { name, mode, .. } = &request.target;
        let expected = self.server.leave(now, name, *mode, hold);
        let mut wakes = expected;
        if let Some(mut scripts) = self.lend() {
            let heard = scripts.release(&self.server, now, hold.0, request);
            wakes = self::wakes(name, &heard.published);
            // 1.
            let same = wakes == expected || self.server.has_ghosts(name, now);
            if !same || heard.verdict.is_err() {
                let what = format_args!(
                    "{:?}, woken: {wakes}, not {expected}, to {request:?}",
                    heard.verdict
                );
                self.judge.fail(now, what);
            }
            self.look(&mut scripts, &request.target, now);
            self.scripts = Some(scripts);
        }
        if wakes {
            self.wake(world, name);
        }
    }

    /// Renews those that are not refused.
    pub(super) fn renew(
        &mut self,
        now: u64,
        client: usize,
        batch: &RenewBatch,
        refused: &[Option<Error>],
    ) -> Vec<Result<Option<Absence>>> {
        let mut sent = batch.clone();
        let mut at = refused.iter();
        sent.items.retain(|_| at.next().is_some_and(Option::is_none));
        let items = sent.items.clone();
        let mut heard = match self.lend() {
            Some(mut scripts) => {
                let heard = scripts.renew(&self.server, now, client, sent);
                let verdicts = match heard.verdict {
                    Ok(renewed) => renewed.verdicts,
                    Err(error) => {
                        self.judge.fail(now, format_args!("a script refuses {batch:?}: {error}"));
                        vec![Err(error); items.len()]
                    }
                };
                let verdicts = items.iter().zip(verdicts);
                let verdicts: Vec<_> = verdicts
                    .map(|(item, heard)| self.renewed(now, client, item, batch, heard))
                    .collect();
                for item in &items {
                    self.look(&mut scripts, &item.target, now);
                }
                self.scripts = Some(scripts);
                verdicts
            }
            None => {
                let renew = |item: &Renewal| Ok(self.server.renew(now, item, batch.ttl));
                items.iter().map(renew).collect()
            }
        }
        .into_iter();
        let verdict = |refused: &Option<Error>| match refused {
            Some(error) => Err(error.clone()),
            None => heard.next().expect("one for each"),
        };
        refused.iter().map(verdict).collect()
    }

    fn renewed(
        &mut self,
        now: u64,
        client: usize,
        item: &Renewal,
        batch: &RenewBatch,
        heard: Result<Option<Absence>>,
    ) -> Result<Option<Absence>> {
        let Target { name, mode, .. } = &item.target;
        let had_ghosts = self.server.has_ghosts(name, now);
        let ghost = self.server.exorcise(name, item.holder, now);
        let was_ghost = ghost.is_some();
        if let (Ok(None), Some(ghost)) = (&heard, ghost) {
            // 1.
            self.revive(now, &item.target, ghost, batch.ttl, item);
        }
        let is_reader = self.server.is_reader(name, item.holder, now);
        let before = self.server.copy();
        let known = self.server.renew(now, item, batch.ttl);
        let same = match (&heard, known) {
            (Ok(heard), known) if *heard == known => true,
            // 3.
            (Ok(Some(Absence::Forced)), Some(_)) => {
                self.judge.forced.contains(&(client, item.holder.number()))
            }
            // 2.
            (Ok(Some(_)), None) if is_reader && *mode == Mode::Write => {
                self.server.restore(before);
                true
            }
            // 1.
            (Ok(Some(_)), Some(_)) => had_ghosts || was_ghost,
            _ => false,
        };
        if !same {
            self.judge.fail(now, format_args!("{heard:?}, not {known:?}, to {item:?}"));
        }
        heard
    }

    /// Has what had expired there again, which must exclude nothing.
    fn revive(&mut self, now: u64, target: &Target, ghost: Entry, ttl: Duration, to: &dyn Debug) {
        let Target { name, mode, .. } = target;
        self.server.revive(name, ghost, now, ttl);
        let entries = self.server.holders(name, now);
        let out: u32 = entries.iter().map(|entry| permits(entry.mode)).sum();
        let excluded = match mode {
            Mode::Permits { size, .. } => out > *size,
            _ => entries.iter().any(|entry| entry.mode == Mode::Write),
        };
        if excluded {
            self.judge.fail(now, format_args!("{name} is there again beside others: {to:?}"));
        }
    }

    pub(super) fn annotate(&mut self, now: u64, request: &Annotate, hold: HoldId) -> bool {
        let known = self.server.annotate(now, request);
        let Some(mut scripts) = self.lend() else { return known };
        let heard = scripts.annotate(&self.server, now, hold.0, request);
        let same = match heard.verdict {
            // 7.
            Ok(there) => there == known || request.metadata.is_none() && there,
            Err(_) => false,
        };
        if !same {
            self.judge.fail(now, format_args!("{:?}, not {known}, to {request:?}", heard.verdict));
        }
        self.scripts = Some(scripts);
        heard.verdict.unwrap_or(known)
    }

    pub(super) fn inspect(&mut self, now: u64, request: &Inspect) -> Inspection {
        let name = &request.target.name;
        let entries = self.server.holders(name, now);
        let known = Inspection::new(entries.iter().cloned().map(|entry| entry.info(now)));
        let shared = entries.iter().any(|entry| entry.mode != Mode::Exclusive);
        if shared || request.target.mode != Mode::Exclusive {
            return known;
        }
        let Some(scripts) = self.lend() else { return known };
        let heard = scripts.inspect(&self.server, now, request.clone());
        let real = |info: &HolderInfo| real_names(&scripts, info);
        match &heard.verdict {
            Ok(heard) if heard.holders.len() == known.holders.len() => {
                for (heard, known) in heard.holders.iter().zip(&known.holders) {
                    let mut heard = real(heard);
                    // It is not known here how much is left.
                    heard.remaining = None;
                    if !same_info(&heard, known, scripts.layout) {
                        self.judge.fail(now, format_args!("seen {heard:?}, not {known:?}"));
                    }
                }
            }
            heard if self.server.has_ghosts(name, now) => drop(heard.clone()),
            heard => self.judge.fail(now, format_args!("seen {heard:?}, not {known:?}")),
        }
        self.scripts = Some(scripts);
        known
    }

    /// Asks the manager that has a name to give up a hold that rests.
    pub(super) fn want(&mut self, world: &Arc<World>, now: u64, request: &Want) -> bool {
        let name = &request.target.name;
        let Some(scripts) = self.lend() else { return self.ask_to_yield(world, name) };
        let heard = scripts.want(&self.server, now, request.clone());
        let known = self.server.lingering(name, now);
        if heard.verdict.as_ref().ok() != Some(&known.is_some()) {
            self.judge
                .fail(now, format_args!("{:?}, not {known:?}, to {request:?}", heard.verdict));
        }
        let manager = heard.published.iter().find_map(|message| {
            let channel = String::from_utf8_lossy(&message.channel);
            let manager = scripts.manager_of(channel.strip_prefix("leasehold_inbox:")?)?;
            (message.text == format!("yield {name}").into_bytes()).then_some(manager)
        });
        if manager != known {
            self.judge.fail(now, format_args!("{manager:?} is asked for {name}, not {known:?}"));
        }
        self.scripts = Some(scripts);
        match manager {
            Some(manager) => self.send_hint(world, name, manager),
            None => false,
        }
    }

    /// Deletes what is under a name; whose it was.
    pub(super) fn force(&mut self, now: u64, request: &ForceRelease) -> Vec<HoldId> {
        let Target { name, mode, .. } = &request.target;
        let Some(mut scripts) = self.lend() else { return self.server.delete(name, now) };
        let heard = scripts.force(&self.server, now, request.clone());
        let kinds = self.server.holders(name, now);
        let is_of_another = kinds.iter().any(|entry| !is_of_one_kind(entry.mode, *mode));
        let is_refused = |error: &Error| error.kind() == ErrorKind::WrongType;
        if is_of_another && heard.verdict.as_ref().is_err_and(is_refused) {
            // 9.
            self.scripts = Some(scripts);
            return Vec::new();
        }
        let had_ghosts = self.server.has_ghosts(name, now);
        let held = self.server.delete(name, now);
        self.judge.forced.extend(&held);
        let same = heard.verdict.as_ref().ok() == Some(&!held.is_empty());
        if !same && !had_ghosts || !wakes(name, &heard.published) {
            self.judge.fail(now, format_args!("{:?}, not {held:?}, to {request:?}", heard.verdict));
        }
        self.look(&mut scripts, &request.target, now);
        self.scripts = Some(scripts);
        held
    }

    /// What is over is not there again when the clock is set back.
    pub(super) fn forget_what_is_over(&mut self, now: u64) {
        let Some(scripts) = &self.scripts else { return };
        scripts.keys(&self.server, now, |keys| keys.names());
        self.server.forget_what_is_over(now);
    }

    /// Compares what is under a name.
    fn look(&mut self, scripts: &mut Scripts, target: &Target, now: u64) {
        let name = &target.name;
        match target.mode {
            Mode::Exclusive => self.look_at_lock(scripts, name, now),
            Mode::Permits { .. } => {}
            _ => self.look_at_readers(scripts, name, now),
        }
    }

    fn look_at_lock(&mut self, scripts: &mut Scripts, name: &Name, now: u64) {
        let there = scripts.lock_of(&self.server, name, now);
        let entries = self.server.holders(name, now);
        let known = entries.first().map(|entry| {
            let holder = scripts.holder(entry.hold.0, entry.token).to_string();
            let text = match entry.closed {
                Some((mark, _)) => format!("{} {holder}", mark.holder()),
                None if scripts.layout == Layout::Plain => holder,
                None => format!("{holder} {}", entry.count),
            };
            (text, Some(entry.expires))
        });
        if there != known {
            self.judge.fail(now, format_args!("under {name} is {there:?}, not {known:?}"));
        }
    }

    fn look_at_readers(&mut self, scripts: &mut Scripts, name: &Name, now: u64) {
        let hash = scripts.readers_of(&self.server, name, now);
        let holder = |scripts: &mut Scripts, (hold, token): (HoldId, HolderId)| {
            scripts.holder(hold.0, token).to_string()
        };
        let ends = hash.as_ref().and_then(|hash| hash.ends);
        let mut there = HashSet::new();
        for (hold, token) in self.server.all_of(name) {
            let field = holder(scripts, (hold, token));
            if hash.as_ref().is_some_and(|hash| hash.fields.contains(&field)) {
                there.insert(token);
            }
        }
        self.server.see(name, ends, |token| there.contains(&token));
        for entry in self.server.holders(name, now) {
            let mut field = holder(scripts, (entry.hold, entry.token));
            if entry.mode == Mode::Write {
                field.push_str(":write");
            }
            let named = hash.as_ref().is_some_and(|hash| hash.fields.contains(&field));
            let kept = ends.is_some_and(|ends| ends >= entry.expires);
            if !named || !kept {
                self.judge.fail(now, format_args!("{name} has {hash:?}, and not {field}"));
            }
        }
        if hash.is_some_and(|hash| hash.ends.is_none()) {
            self.judge.fail(now, format_args!("{name} has no time to live"));
        }
    }
}

/// Whether holders in these modes may have one name after another.
fn is_of_one_kind(one: Mode, other: Mode) -> bool {
    let number = |mode| match mode {
        Mode::Permits { .. } => 2,
        Mode::Read | Mode::Write => 1,
        _ => 0,
    };
    number(one) == number(other)
}

/// Whether a message wakes the waiters of a name.
fn wakes(name: &Name, published: &[Message]) -> bool {
    let channels = channels_of(name.as_str());
    published.iter().any(|message| channels.contains(&message.channel))
}

/// With the ids that managers really have.
fn real_names(scripts: &Scripts, info: &HolderInfo) -> HolderInfo {
    let mut info = info.clone();
    let real = |text: &str| {
        let (manager, rest) = text.split_once(':')?;
        Some(format!("{}:{rest}", scripts.manager_of(manager)?))
    };
    info.holder = real(&info.holder).unwrap_or(info.holder);
    if let Some(closed) = &mut info.closed {
        closed.by = real(&closed.by).unwrap_or(closed.by.clone());
        closed.ago = Duration::from_millis(closed.ago.as_millis() as u64);
    }
    info
}

fn same_info(heard: &HolderInfo, known: &HolderInfo, layout: Layout) -> bool {
    let counted = layout == Layout::Plain || heard.hold_count == known.hold_count;
    let closed = match (&heard.closed, &known.closed) {
        (Some(one), Some(other)) => (one.mark, &one.by) == (other.mark, &other.by),
        (one, other) => one.is_none() && other.is_none(),
    };
    let revision = |info: &HolderInfo| info.metadata.as_ref().map(|metadata| metadata.revision);
    // 7.
    let described = known.metadata.is_none() || revision(heard) == revision(known);
    heard.holder == known.holder && (heard.closed.is_some() || counted && described) && closed
}
