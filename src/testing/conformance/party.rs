//! The clients of a store, and their checks of its verdicts.

use crate::clock::Instant;
use crate::error::{ErrorKind, Result};
use crate::store::{
    About, Absence, Acquire, Acquired, Fencing, ForceRelease, HolderId, HolderInfo, Inspect,
    Inspection, Mode, Name, Note, Reason, Release, Released, RenewBatch, RenewCall, Renewal,
    Renewed, Steal, Store, Target, Want,
};
use crate::testing::Harness;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// A time to live that no test outlasts.
pub(super) const LONG: Duration = Duration::from_secs(60);
pub(super) const BLOCK: u32 = 64;
/// The time after which a wake-up counts as lost.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// Why a party steals, asks or forces.
pub(super) const WHY: &str = "the import of {a.csv} hangs";

/// One flow of control that asks for a name, with its own handle and holder.
pub(super) struct Party<'a> {
    pub(super) harness: &'a dyn Harness,
    pub(super) store: Arc<dyn Store>,
    pub(super) name: Name,
    pub(super) holder: HolderId,
    pub(super) ttl: Duration,
    pub(super) fencing: Option<Fencing>,
    pub(super) mode: Mode,
}

impl<'a> Party<'a> {
    pub(super) async fn new(harness: &'a dyn Harness, name: &Name) -> Self {
        Self {
            harness,
            store: harness.store().await,
            name: name.clone(),
            holder: HolderId::new(Uuid::new_v4(), 1),
            ttl: LONG,
            fencing: Some(Fencing::new(BLOCK, Some(LONG))),
            mode: Mode::Exclusive,
        }
    }

    pub(super) async fn two(harness: &'a dyn Harness, name: &Name) -> (Self, Self) {
        (Self::new(harness, name).await, Self::new(harness, name).await)
    }

    pub(super) fn short(mut self) -> Self {
        self.ttl = self.harness.ttl();
        self
    }

    /// Returns the same handle with the next holder.
    pub(super) fn again(&mut self) -> &Self {
        self.holder = HolderId::new(Uuid::new_v4(), 1);
        self
    }

    pub(super) fn now(&self) -> Instant {
        self.store.clock().now()
    }

    pub(super) fn request(&self) -> Acquire {
        Acquire::new(self.target(), self.holder, self.ttl, PATIENCE).with_fencing(self.fencing)
    }

    pub(super) fn target(&self) -> Target {
        Target::new(self.name.clone(), self.mode)
    }

    /// Returns the same handle and holder in another mode.
    pub(super) fn to(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Returns the holder and the handle of another party, in the mode of this one.
    pub(super) fn same_as(mut self, other: &Self) -> Self {
        self.holder = other.holder;
        self.store = Arc::clone(&other.store);
        self
    }

    /// Becomes the next holder of its manager.
    pub(super) fn next(&mut self) {
        self.holder = HolderId::new(self.holder.manager(), self.holder.number() + 1);
    }

    /// Returns a new holder in a mode.
    pub(super) async fn of(harness: &'a dyn Harness, name: &Name, mode: Mode) -> Self {
        Self::new(harness, name).await.to(mode)
    }

    /// Asks to change the mode of the hold to that of this party.
    pub(super) async fn convert(&self) -> Result<Acquired> {
        self.store.acquire(self.request().with_converts(true)).await
    }

    /// Returns whether the store has this mode.
    pub(super) fn supported(&self) -> bool {
        self.store.capabilities().supports(self.mode)
    }

    /// Returns the holders as the store knows them, in their order of the text.
    pub(super) async fn holders(&self) -> Vec<HolderInfo> {
        let inspection = self.store.inspect(Inspect::new(self.target(), PATIENCE)).await;
        let mut holders = inspection.expect("the store returns the holders").holders;
        holders.sort_by(|one, other| one.holder.cmp(&other.holder));
        holders
    }

    pub(super) async fn acquire(&self) -> Result<Acquired> {
        self.store.acquire(self.request()).await
    }

    /// Records a hold count, or releases at 0.
    pub(super) async fn release(&self, count: u32) -> Result<Released> {
        let request = Release::new(self.target(), self.holder, count, PATIENCE);
        self.store.release(request).await
    }

    /// Takes the name from another party.
    pub(super) async fn steal(&self, from: &Party<'_>) -> Result<Acquired> {
        let steal = Steal::new(from.holder.to_string(), reason());
        self.store.acquire(self.request().with_steal(Some(steal))).await
    }

    pub(super) async fn want(&self, from: &Party<'_>) -> Result<bool> {
        let from = from.holder.to_string();
        self.store.want(Want::new(self.target(), from, reason(), PATIENCE)).await
    }

    pub(super) async fn note(&self) -> Option<Note> {
        let request = Inspect::new(self.target(), PATIENCE).with_about(About::Note(self.holder));
        self.store.inspect(request).await.expect("the store returns the note").note
    }

    pub(super) fn steals(&self) -> bool {
        self.store.capabilities().steals
    }

    pub(super) fn renewal(&self) -> Renewal {
        Renewal::new(self.target(), self.holder)
    }

    pub(super) async fn renew(&self) -> Result<Renewed> {
        self.renew_all(vec![self.renewal()]).await
    }

    pub(super) async fn renew_all(&self, items: Vec<Renewal>) -> Result<Renewed> {
        self.renew_batch(RenewBatch::new(items, self.ttl, PATIENCE)).await
    }

    /// Renews all items of a batch, each by one of the calls that the store makes of it.
    pub(super) async fn renew_batch(&self, batch: RenewBatch) -> Result<Renewed> {
        let count = batch.items.len();
        let calls = self.store.renew(batch);
        let mut items: Vec<usize> = calls.iter().flat_map(|call| call.items.clone()).collect();
        items.sort_unstable();
        assert!(items.into_iter().eq(0..count), "each item is in one call: {calls:?}");
        RenewCall::join(calls).await
    }

    pub(super) async fn look(&self) -> Result<Option<HolderInfo>> {
        let inspection = self.store.inspect(Inspect::new(self.target(), PATIENCE)).await?;
        assert!(inspection.holders.len() <= 1, "{inspection:?}");
        Ok(inspection.into_holder())
    }

    pub(super) async fn look_any(&self) -> Result<Inspection> {
        self.store.inspect(Inspect::new(self.target(), PATIENCE)).await
    }

    pub(super) async fn holding(&self) -> Option<HolderInfo> {
        self.look().await.expect("the store returns the holders")
    }

    pub(super) async fn try_force(&self) -> Result<bool> {
        self.store.force_release(ForceRelease::new(self.target(), PATIENCE)).await
    }

    pub(super) async fn force(&self) -> bool {
        self.try_force().await.expect("the store takes the name away")
    }

    /// Returns what the store reports of a hold count: that of a store without counts is always 1.
    pub(super) fn reported(&self, count: u64) -> u64 {
        if self.store.capabilities().counts { count } else { count.min(1) }
    }

    /// Returns whether the hold is there with this count.
    pub(super) async fn holds(&self, count: u64) -> bool {
        let count = self.reported(count);
        let holding = self.holding().await;
        holding.is_some_and(|holding| {
            holding.holder == self.holder.to_string() && holding.hold_count == count
        })
    }

    /// Acquires the name, and lets the hold expire.
    pub(super) async fn lapse(&self) {
        granted(self.acquire().await);
        self.outlast().await;
    }

    pub(super) async fn outlast(&self) {
        self.harness.elapse(self.ttl + self.harness.slack()).await;
    }

    /// Returns whether `left`, reported now, fits a time to live that was set at `since` or later.
    ///
    /// A store that does not know it reports `None`.
    pub(super) fn fresh(&self, left: Option<Duration>, since: Instant) -> bool {
        if !self.store.capabilities().time_left {
            return left.is_none();
        }
        let passed = self.now().saturating_duration_since(since);
        let slack = self.harness.slack();
        left.is_some_and(|left| left <= self.ttl + slack && left + passed + slack >= self.ttl)
    }

    /// Whether one fencing token follows on the block of another, where there are any.
    pub(super) fn follows(&self, before: Option<u64>, after: Option<u64>) -> bool {
        let capabilities = self.store.capabilities();
        let block = if capabilities.fence_blocks { BLOCK } else { 1 };
        match (capabilities.fencing, before, after) {
            (true, Some(before), Some(after)) => after >= before + u64::from(block),
            (false, None, None) => true,
            _ => false,
        }
    }
}

pub(super) struct Grant {
    pub(super) sent: Instant,
    pub(super) fence: Option<u64>,
}

#[track_caller]
pub(super) fn granted(verdict: Result<Acquired>) -> Grant {
    match verdict {
        Ok(Acquired::Granted { sent, fence, .. }) => Grant { sent, fence },
        other => panic!("expected a grant, the store says {other:?}"),
    }
}

#[track_caller]
pub(super) fn held(verdict: Result<Acquired>) -> Option<Duration> {
    match verdict {
        Ok(Acquired::Held { remaining, .. }) => remaining,
        other => panic!("expected another holder, the store says {other:?}"),
    }
}

#[track_caller]
pub(super) fn not_yours(verdict: Result<Acquired>) -> Absence {
    match verdict {
        Ok(Acquired::NotYours(absence)) => absence,
        other => panic!("expected a refusal, the store says {other:?}"),
    }
}

/// Checks that a hold count was recorded.
#[track_caller]
pub(super) fn recorded(verdict: Result<Released>) {
    assert_eq!(released(verdict), None);
}

#[track_caller]
pub(super) fn released(verdict: Result<Released>) -> Option<Absence> {
    match verdict {
        Ok(Released::Done { .. }) => None,
        Ok(Released::NotYours(absence)) => Some(absence),
        Err(error) => panic!("expected an answer to a release, the store says {error:?}"),
    }
}

#[track_caller]
pub(super) fn renewed(verdict: Result<Renewed>) -> Option<Absence> {
    match verdict.map(|renewed| renewed.verdicts) {
        Ok(verdicts) => match &verdicts[..] {
            [Ok(absence)] => *absence,
            other => panic!("expected one verdict on a renewal, the store says {other:?}"),
        },
        Err(error) => panic!("expected verdicts on a renewal, the store says {error:?}"),
    }
}

#[track_caller]
pub(super) fn wrong_type<T: std::fmt::Debug>(verdict: Result<T>) {
    match verdict {
        Err(error) if error.kind() == ErrorKind::WrongType => {}
        other => panic!("expected WrongType, the store says {other:?}"),
    }
}

pub(super) fn reason() -> Reason {
    Reason::new("host:7", WHY).expect("a good reason")
}

pub(super) fn unique(label: &str) -> Name {
    Name::new(&format!("conformance:{label}:{}", Uuid::new_v4())).expect("a good name")
}
