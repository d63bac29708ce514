//! Records the hold count in the store, for those who look at it there.
//!
//! # Invariants
//!
//! 1. **Nothing waits for it**: neither a call, nor a hand-off, a change of the mode or the release.
//! 2. **One at a time for a holder id**, whichever hold has it. So records arrive in their order, but for one that was given
//!    up without an answer and runs later.
//! 3. **After a pause**, so that short nested calls send nothing: what counts is the count when the record leaves.

use super::renew;
use crate::engine::machine::hold::Recorder;
use crate::engine::shared::calls::{self, caught, in_time};
use crate::engine::shared::core::Core;
use crate::engine::shared::hold::Hold;
use crate::engine::shared::job::Job;
use crate::engine::shared::lifecycle::Stage;
use crate::engine::shared::{answers, report};
use crate::observe::Operation;
use crate::store::{HolderId, Name, Release, Released};
use crate::util::reached::Rare;
use crate::util::trace;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use tracing::Level;

/// The time after which a changed count is recorded.
const PAUSE: Duration = Duration::from_millis(10);

/// The records of one holder id. If its runtime ends, dropping it submits it again.
pub(in crate::engine) struct Record<'a> {
    core: &'a Arc<Core>,
    name: Name,
    holder: HolderId,
    ended: bool,
}

impl<'a> Record<'a> {
    pub(in crate::engine) fn new(core: &'a Arc<Core>, name: Name, holder: HolderId) -> Self {
        Self { core, name, holder, ended: false }
    }

    /// Records the count until the store has it, or the engine ends: then nothing looks at it any more.
    pub(in crate::engine) async fn run(mut self) {
        tokio::select! {
            biased;
            () = self.core.life.until(Stage::Ending) => {}
            () = self.record_all() => {}
        }
        self.ended = true;
    }

    async fn record_all(&self) {
        loop {
            tokio::time::sleep(PAUSE).await;
            let Some((hold, count)) = self.begin() else { return };
            self.record(&hold, count).await;
        }
    }

    /// Returns the count to record, and the hold that has it.
    fn begin(&self) -> Option<(Arc<Hold>, u32)> {
        let begun = self.on_hold(|hold| {
            let state = &mut hold.lock().state;
            state.has_record().then(|| Some((Arc::clone(hold), state.begin_record()?)))
        });
        begun.flatten()
    }

    /// Takes a step on the hold that has the holder id now. A step that finds that the hold has just handed the record off
    /// returns `None`, and is repeated on the next one.
    fn on_hold<R>(&self, step: impl Fn(&Arc<Hold>) -> Option<R>) -> Option<R> {
        let mut last = None;
        loop {
            let hold = self.core.queue.hold_of(&self.name, self.holder);
            let hold =
                hold.filter(|hold| last.as_ref().is_none_or(|last| !Arc::ptr_eq(last, hold)))?;
            if let Some(result) = step(&hold) {
                return Some(result);
            }
            last = Some(hold);
        }
    }

    async fn record(&self, by: &Arc<Hold>, count: u32) {
        let core = self.core;
        if !core.can.counts {
            self.on_hold(|hold| hold.end_record(core, Recorder::Same, Ok(None)).then_some(()));
            return;
        }
        let request = Release::new(by.target(), self.holder, count, core.timing.attempt);
        let sent = core.now();
        let verdict =
            in_time(core.timing.attempt * 2, caught(&mut calls::release(core, request))).await;
        let refused = |released: &Released| matches!(released, Released::NotYours(_));
        report::count_answer(core, Operation::Release, &verdict, refused, sent, 1);
        if let Err(error) = &verdict {
            answers::note_failure(core, &self.name, error);
            trace::later(Level::DEBUG, || {
                let name = self.name.clone();
                let error = error.clone();
                move || tracing::debug!(name = name.as_str(), %error, "hold count not recorded")
            });
        }
        let verdict = verdict.map(|released| match released {
            Released::Done { .. } => None,
            Released::NotYours(absence) => Some(absence),
        });
        let found = self.on_hold(|hold| {
            let recorder = match (hold.number == by.number, hold.mode == by.mode) {
                (true, _) => Recorder::Same,
                (false, true) => Recorder::Before,
                (false, false) => Recorder::OtherMode,
            };
            let changes = |by| by == Recorder::OtherMode || hold.is_busy();
            let is_absent = matches!(verdict, Ok(Some(_)));
            Rare::AbsenceAfterHandOff.reached_if(|| is_absent && recorder == Recorder::Before);
            Rare::AbsenceAfterChange.reached_if(|| is_absent && changes(recorder));
            hold.end_record(core, recorder, verdict.clone()).then(|| Arc::clone(hold))
        });
        if let (Some(hold), Ok(Some(_))) = (found, verdict) {
            // A renewal that is in flight may have run before, so one more follows it. A hold that is lost waits for none.
            drop(timeout(core.timing.attempt * 2, renew::renew_now(core, &hold)).await);
        }
    }
}

impl Drop for Record<'_> {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let requeued = self.on_hold(|hold| {
            let state = &mut hold.lock().state;
            state.has_record().then(|| state.requeue_record())
        });
        if requeued.is_some() {
            Rare::RecordRequeued.reached();
            self.core.submit(Job::Record { name: self.name.clone(), holder: self.holder });
        }
    }
}
