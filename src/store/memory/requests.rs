//! Releases, renewals, and changes of the size.

use super::{Shared, State};
use crate::clock::Instant;
use crate::error::Result;
use crate::store::contract::mode::Kind;
use crate::store::{Mode, Release, Released, RenewBatch, Renewed, Resize, Target};

impl State {
    pub(super) fn release(&mut self, request: &Release, now: Instant) -> Result<Released> {
        let Release { target, holder, count, .. } = request;
        let (name, mode) = (&target.name, target.mode);
        let keep = request.mark()?;
        let shared = self.of_kind(name, mode.kind(), now)?;
        if let Some(shared) = shared {
            let ended = shared.release(*holder, mode, *count);
            return Ok(ended.verdict(|| self.wake(name, Some(*holder))));
        }
        Ok(match keep {
            Some(keep) => self.close(request, keep, now),
            None => self.release_exclusive(request, now),
        })
    }

    /// Gives up a place.
    pub(super) fn release_arrival(&mut self, request: &Release, now: Instant) -> Result<Released> {
        let Target { name, mode } = &request.target;
        match mode {
            Mode::Exclusive => self.leave(name, request.holder, request.place, now),
            Mode::Read | Mode::Write => {
                let shared = self.of_kind(name, mode.kind(), now)?;
                if shared.is_some_and(|shared| shared.leave(request.holder, *mode)) {
                    self.wake(name, None);
                }
            }
            Mode::Permits { .. } => {}
        }
        Ok(Released::done(0))
    }

    pub(super) fn release_exclusive(&mut self, request: &Release, now: Instant) -> Released {
        let name = &request.target.name;
        match self.own(name, request.holder, now) {
            Err(absence) => Released::NotYours(absence),
            Ok(entry) if request.count > 0 => {
                entry.count = request.count;
                Released::done(0)
            }
            Ok(_) => {
                self.holds.remove(name);
                let listeners = self.wake(name, Some(request.holder));
                Released::done(if self.released_in_line(request, now) { 0 } else { listeners })
            }
        }
    }

    pub(super) fn resize(&mut self, request: &Resize, now: Instant) -> Result<Option<u32>> {
        let name = &request.name;
        self.of_kind(name, Kind::Semaphore, now)?;
        self.sweep(now);
        let shared = self.shared.entry(name.clone());
        let shared = shared.or_insert_with(|| Shared::new(Kind::Semaphore));
        let before = shared.resize(request, now);
        self.wake(name, None);
        Ok(before)
    }

    pub(super) fn renew(&mut self, batch: &RenewBatch, now: Instant) -> Renewed {
        let verdicts = batch.items.iter().map(|item| {
            let expires = now + batch.ttl_of(item);
            let (name, mode) = (&item.target.name, item.target.mode);
            if let Some(shared) = self.of_kind(name, mode.kind(), now)? {
                let absence = shared.renew(item.holder, mode, expires);
                return Ok(absence.map(|absence| self.noted(name, item.holder, absence, now)));
            }
            Ok(match self.own(name, item.holder, now) {
                Err(absence) => Some(self.noted(name, item.holder, absence, now)),
                Ok(entry) => {
                    entry.expires = expires;
                    None
                }
            })
        });
        Renewed::new(now, verdicts.collect())
    }
}
