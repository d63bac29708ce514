//! Tests of modes that share a name, on a store for the tests.

use super::acquire::{WaitLimit, acquire};
use super::hold::convert::convert;
use super::machine::hold::Phase;
use super::machine::share::Share;
use super::machine::timing::Timing;
use super::run::Engine;
use super::shared::core::{Core, Settings};
use super::shared::hold::Hold;
use crate::clock::Clock;
use crate::error::{ErrorKind, Loss, Result};
use crate::store::{
    Absence, Acquire, Acquired, Capabilities, ForceRelease, HolderId, Inspect, Inspection, Mode,
    Name, Reason, Release, Released, RenewBatch, RenewCall, Renewed, Store, StoreFuture, Uptime,
    Wait, Wakeups,
};
use async_trait::async_trait;
use std::collections::HashMap;
use std::future::ready;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::time::{advance, sleep};
use tokio_util::sync::CancellationToken;

const T: Duration = Duration::from_secs(3);

/// Keeps the holders of one name, by their modes. Nothing expires.
#[derive(Debug)]
struct SharedStore {
    clock: Clock,
    holders: Mutex<HashMap<HolderId, Mode>>,
    /// The modes that were asked for.
    asked: Mutex<Vec<Mode>>,
    renewed: Mutex<HashMap<HolderId, u32>>,
}

impl SharedStore {
    fn holders(&self) -> MutexGuard<'_, HashMap<HolderId, Mode>> {
        self.holders.lock().unwrap()
    }

    fn renewals(&self, hold: &Hold) -> u32 {
        self.renewed.lock().unwrap().get(&hold.holder).copied().unwrap_or_default()
    }

    fn absence(&self, holder: HolderId) -> Option<Absence> {
        (!self.holders().contains_key(&holder)).then_some(Absence::Gone)
    }
}

#[async_trait]
impl Store for SharedStore {
    fn clock(&self) -> Clock {
        self.clock.clone()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
            .with_wakeups(false)
            .with_steals(false)
            .with_mode(Mode::Read)
            .with_mode(Mode::Write)
    }

    fn acquire(&self, request: Acquire) -> StoreFuture<Acquired> {
        self.asked.lock().unwrap().push(request.target.mode);
        let mut holders = self.holders();
        let readers = holders.values().all(|mode| *mode == Mode::Read);
        let free = match request.target.mode {
            Mode::Read => readers,
            Mode::Exclusive | Mode::Write => holders.is_empty(),
            Mode::Permits { .. } => panic!("this store does not support permits"),
        };
        let verdict = if free {
            holders.insert(request.holder, request.target.mode);
            Acquired::granted(self.clock().now(), None)
        } else {
            Acquired::held(None)
        };
        Box::pin(async move { Ok(verdict) })
    }

    fn release(&self, request: Release) -> StoreFuture<Released> {
        if let Err(error) = request.require_hold() {
            return Box::pin(std::future::ready(Err(error)));
        }
        let absence = self.absence(request.holder);
        self.holders().remove(&request.holder);
        let verdict = absence.map_or(Released::done(0), Released::NotYours);
        Box::pin(async move { Ok(verdict) })
    }

    fn renew(&self, batch: RenewBatch) -> Vec<RenewCall> {
        let renew = |holder: HolderId| {
            *self.renewed.lock().unwrap().entry(holder).or_default() += 1;
            Ok(self.absence(holder))
        };
        let verdicts = batch.items.iter().map(|item| renew(item.holder)).collect();
        let renewed = Renewed::new(self.clock().now(), verdicts);
        RenewCall::divide(batch, usize::MAX, |_| 0, |_| Box::pin(ready(Ok(renewed.clone()))))
    }

    async fn inspect(&self, _: Inspect) -> Result<Inspection> {
        Ok(Inspection::new([]))
    }

    async fn force_release(&self, _: ForceRelease) -> Result<bool> {
        let held = !self.holders().is_empty();
        self.holders().clear();
        Ok(held)
    }

    async fn subscribe(&self, _: Wait) -> Result<Option<Wakeups>> {
        Ok(None)
    }

    async fn uptime(&self, _: Duration) -> Result<Uptime> {
        Ok(Uptime::new(None))
    }

    async fn close(&self, _: Duration) {}
}

struct Setup {
    store: Arc<SharedStore>,
    engine: Arc<Engine>,
    name: Name,
}

impl Setup {
    fn new() -> Self {
        let store = Arc::new(SharedStore {
            clock: Clock::tokio(),
            holders: Mutex::default(),
            asked: Mutex::default(),
            renewed: Mutex::default(),
        });
        let poll_bound = Duration::from_millis(100);
        let settings = Settings { poll_bound, handoff_bound: 100, ..Settings::PLAIN };
        let timing = Timing::new(T).unwrap();
        let core = Core::new(Arc::clone(&store) as _, timing, settings, true);
        Self { store, engine: Engine::on_caller(core), name: Name::new("n").unwrap() }
    }

    fn core(&self) -> &Arc<Core> {
        &self.engine.core
    }

    async fn ask(&self, mode: Mode, limit: WaitLimit) -> Result<Option<Arc<Hold>>> {
        let claim = acquire(self.core(), &self.name, mode, &mut None, limit).await?;
        Ok(claim.map(|claim| claim.into_hold()))
    }

    async fn lock(&self, mode: Mode) -> Arc<Hold> {
        self.ask(mode, WaitLimit::Forever).await.unwrap().expect("a hold")
    }

    /// Begins two read holds, the second when the first can no longer be joined.
    async fn two_readers(&self) -> [Arc<Hold>; 2] {
        let first = self.lock(Mode::Read).await;
        sleep(T / 10).await;
        [first, self.lock(Mode::Read).await]
    }

    async fn unlock(&self, hold: &Arc<Hold>) -> Result<()> {
        hold.unlock(self.core(), Share::FIRST).await
    }

    fn is_held(&self, hold: &Arc<Hold>) -> bool {
        hold.phase(self.core()) == Phase::Held
    }
}

#[tokio::test(start_paused = true)]
async fn read_holds_of_one_name_are_renewed_each_by_itself() {
    let setup = Setup::new();
    let [one, other] = setup.two_readers().await;
    assert_ne!(one.holder, other.holder);
    assert_ne!(one.number, other.number);
    for _ in 0..4 {
        advance(T / 3).await;
        sleep(Duration::from_millis(1)).await;
    }
    for hold in [&one, &other] {
        assert!(setup.is_held(hold) && setup.store.renewals(hold) >= 3);
    }
}

#[tokio::test(start_paused = true)]
async fn read_hold_that_is_lost_leaves_the_other_as_it_is() {
    let setup = Setup::new();
    let [one, other] = setup.two_readers().await;
    let tokens = [one.lost_token(), other.lost_token()];
    setup.store.holders().remove(&one.holder);
    tokens[0].cancelled().await;
    assert_eq!(one.loss(), Some(Loss::Gone));
    assert!(!tokens[1].is_cancelled() && setup.is_held(&other));
    setup.unlock(&other).await.unwrap();
    assert!(setup.store.holders().is_empty());
}

#[tokio::test(start_paused = true)]
async fn read_holds_are_released_one_by_one_and_a_writer_enters() {
    let setup = Setup::new();
    let [one, other] = setup.two_readers().await;
    setup.unlock(&one).await.unwrap();
    assert_eq!(setup.store.holders().keys().collect::<Vec<_>>(), [&other.holder]);
    assert!(setup.is_held(&other));
    let writer = setup.lock(Mode::Write);
    let last = async {
        sleep(T / 10).await;
        setup.unlock(&other).await.unwrap();
    };
    let (writer, ()) = tokio::join!(writer, last);
    assert_eq!(setup.store.holders().values().collect::<Vec<_>>(), [&Mode::Write]);
    // Neither a hold nor a turn stays behind.
    assert_eq!(setup.core().queue.holds().len(), 1);
    setup.unlock(&writer).await.unwrap();
    assert!(setup.core().queue.holds().is_empty());
}

#[tokio::test(start_paused = true)]
async fn readers_that_come_after_a_writer_wait_behind_it() {
    let setup = Setup::new();
    let first = setup.lock(Mode::Read).await;
    let order = Mutex::new(Vec::new());
    let writer = async {
        let hold = setup.lock(Mode::Write).await;
        order.lock().unwrap().push("writer");
        setup.unlock(&hold).await.unwrap();
    };
    let reader = async {
        sleep(Duration::from_millis(1)).await;
        let once = setup.ask(Mode::Read, WaitLimit::Once).await.unwrap();
        assert!(once.is_none(), "it overtakes the writer");
        let hold = setup.lock(Mode::Read).await;
        order.lock().unwrap().push("reader");
        hold
    };
    let last = async {
        sleep(T / 10).await;
        setup.unlock(&first).await.unwrap();
    };
    let ((), one, other, ()) = tokio::join!(writer, reader, reader_beside(&setup), last);
    assert_eq!(*order.lock().unwrap(), ["writer", "reader"]);
    assert!(Arc::ptr_eq(&one, &other), "both readers share a hold");
    assert_eq!(setup.store.holders().len(), 1);
    drop((one, other));
}

async fn reader_beside(setup: &Setup) -> Arc<Hold> {
    sleep(Duration::from_millis(2)).await;
    setup.lock(Mode::Read).await
}

#[tokio::test(start_paused = true)]
async fn revoke_and_close_reach_all_holds_of_a_name() {
    let setup = Setup::new();
    let holds = setup.two_readers().await;
    assert!(setup.core().revoke(&setup.name, &Reason::new("a", "b").unwrap()).await.unwrap());
    assert!(holds.iter().all(|hold| hold.loss() == Some(Loss::Revoked)));
    for hold in holds {
        let _ = setup.unlock(&hold).await;
    }
    let holds = setup.two_readers().await;
    let closed = setup.core().close().await;
    assert!(holds.iter().all(|hold| hold.loss() == Some(Loss::Closed)));
    assert_eq!((closed.released, closed.failed.len()), (2, 0));
    assert!(setup.store.holders().is_empty());
}

#[tokio::test(start_paused = true)]
async fn mode_the_store_does_not_support_is_never_asked_for() {
    let setup = Setup::new();
    let permits = Mode::Permits { size: 2, take: 1 };
    for limit in [WaitLimit::Once, WaitLimit::For(T), WaitLimit::Forever] {
        let Err(error) = setup.ask(permits, limit).await else { panic!("it was asked") };
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }
    assert!(setup.store.asked.lock().unwrap().is_empty());
    drop(setup.lock(Mode::Write).await);
    assert_eq!(*setup.store.asked.lock().unwrap(), [Mode::Write]);
}

/// This store makes no reader of a writer.
#[tokio::test(start_paused = true)]
async fn downgrade_that_is_refused_does_not_give_the_writer_back() {
    let setup = Setup::new();
    let writer = setup.lock(Mode::Write).await;
    let token = CancellationToken::new();
    let refused = convert(setup.core(), &writer, Mode::Read, Some(&token)).await;
    assert_eq!(refused.err().map(|error| error.kind()), Some(ErrorKind::Unavailable));
    assert!(token.is_cancelled());
    setup.unlock(&writer).await.unwrap();
    assert!(setup.store.holders().is_empty());
}
