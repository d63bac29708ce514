//! Concurrent histories of exclusive locks are linearizable on the stores.

use super::history::{
    self, BLOCK, Dice, EARLY, Record, TIMEOUT, TTL, Trial, nanos, one_by_one, runtime,
};
use leasehold::store::{
    Absence, Acquire, Acquired, Fencing, ForceRelease, HolderId, Inspect, MemoryStore, Release,
    Released, RenewBatch, RenewCall, Renewal, Store, Target,
};
use porcupine_rs::Model;
use std::sync::Arc;
use std::time::Duration;

const STEPS: usize = 12;
const ROUNDS: usize = 12;

/// What a client asked for and was told: `None` if its answer is unknown.
#[derive(Clone, Debug, PartialEq)]
enum Op {
    /// The first fencing token, or `Err` if somebody else holds.
    Acquire(u64, Option<Result<u64, ()>>),
    Renew(u64, Option<Option<Absence>>),
    Release(u64, u32, Option<Option<Absence>>),
    Force(Option<bool>),
    /// Who holds, and the count.
    Read(Option<(u64, u32)>),
    /// The time to live that this call has set is over.
    Lapse(i64),
}

/// Each name has a history of its own; with each operation goes its call, to know by whom a time to live was set.
#[derive(Clone, Debug)]
struct Locks;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    hold: Option<Hold>,
    /// No fencing token up to here may be given again.
    last_fence: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Hold {
    who: u64,
    count: u32,
    /// `None`: nobody was told yet.
    fence: Option<u64>,
    /// The call that has set the time to live.
    set_by: i64,
}

impl State {
    fn own(&mut self, who: u64) -> Result<&mut Hold, Absence> {
        match &mut self.hold {
            None => Err(Absence::Gone),
            Some(hold) if hold.who != who => Err(Absence::Taken),
            Some(hold) => Ok(hold),
        }
    }

    /// Whether this is what a store may say.
    fn run(&mut self, call: i64, op: &Op) -> bool {
        match op {
            Op::Acquire(who, answer) => self.acquire(call, *who, *answer),
            Op::Renew(who, answer) => {
                let result = self.own(*who).map(|hold| hold.set_by = call);
                answer.is_none_or(|answer| answer == result.err())
            }
            Op::Release(who, count, answer) => {
                let result = self.own(*who).map(|hold| hold.count = *count);
                if result.is_ok() && *count == 0 {
                    self.hold = None;
                }
                answer.is_none_or(|answer| answer == result.err())
            }
            Op::Force(answer) => {
                let was = self.hold.take().is_some();
                answer.is_none_or(|answer| answer == was)
            }
            Op::Read(answer) => self.hold.as_ref().map(|hold| (hold.who, hold.count)) == *answer,
            Op::Lapse(of) => {
                self.hold.take_if(|hold| hold.set_by == *of);
                true
            }
        }
    }

    fn acquire(&mut self, call: i64, who: u64, answer: Option<Result<u64, ()>>) -> bool {
        let fence = match self.own(who) {
            Err(Absence::Taken) => return answer.is_none_or(|answer| answer.is_err()),
            Ok(hold) => {
                hold.set_by = call;
                hold.fence
            }
            Err(_) => {
                self.hold = Some(Hold { who, count: 1, fence: None, set_by: call });
                None
            }
        };
        match (answer, fence) {
            (None, _) => true,
            (Some(Err(())), _) => false,
            (Some(Ok(answer)), Some(fence)) => answer == fence,
            // The first to be told of it.
            (Some(Ok(answer)), None) => {
                let grows = answer > self.last_fence;
                self.last_fence = answer + BLOCK - 1;
                self.hold.iter_mut().for_each(|hold| hold.fence = Some(answer));
                grows
            }
        }
    }
}

impl Model for Locks {
    type State = State;
    type Op = (i64, Op);
    type Metadata = ();

    fn init() -> State {
        State { hold: None, last_fence: 0 }
    }

    fn step(state: &State, (call, op): &(i64, Op)) -> (bool, State) {
        let mut next = state.clone();
        let accepted = next.run(*call, op);
        (accepted, next)
    }
}

impl history::Op for Op {
    fn keeps(&self) -> Option<u64> {
        match *self {
            Self::Acquire(who, None | Some(Ok(_))) | Self::Renew(who, None | Some(None)) => {
                Some(who)
            }
            _ => None,
        }
    }

    fn releases(&self) -> Option<u64> {
        match *self {
            Self::Release(who, 0, Some(None)) => Some(who),
            _ => None,
        }
    }

    fn is_look(&self) -> bool {
        matches!(self, Self::Read(_))
    }

    fn lapse(call: i64) -> Self {
        Self::Lapse(call)
    }
}

fn is_linearizable(history: &[Record<Op>]) -> bool {
    history::is_linearizable::<Locks, Op>(history)
}

impl Trial<Op> {
    fn holder(&self, who: u64) -> HolderId {
        HolderId::new(self.manager, who)
    }

    /// Runs an operation; whether it was done, and set a time to live.
    async fn run(&self, op: Op) -> bool {
        let answer = self.keep(op.clone(), self.ask(op)).await;
        answer.is_some_and(|answer| history::Op::keeps(&answer).is_some())
    }

    /// The same operation with what was told.
    async fn ask(&self, op: Op) -> leasehold::Result<Op> {
        let target = Target::exclusive(self.name.clone());
        Ok(match op {
            Op::Acquire(who, _) => {
                let retention = Some(Duration::from_secs(60));
                let fencing = Fencing::new(BLOCK as u32, retention);
                let request = Acquire::new(target, self.holder(who), TTL, TIMEOUT)
                    .with_fencing(Some(fencing));
                let answer = match self.store.acquire(request).await? {
                    Acquired::Granted { fence, .. } => Ok(fence.expect("a fencing token")),
                    Acquired::Held { .. } => Err(()),
                    other => panic!("an outermost acquire: {other:?}"),
                };
                Op::Acquire(who, Some(answer))
            }
            Op::Renew(who, _) => {
                let items = vec![Renewal::new(target, self.holder(who))];
                let mut renewed =
                    RenewCall::join(self.store.renew(RenewBatch::new(items, TTL, TIMEOUT))).await?;
                Op::Renew(who, Some(renewed.verdicts.remove(0)?))
            }
            Op::Release(who, count, _) => {
                let request = Release::new(target, self.holder(who), count, TIMEOUT);
                let answer = match self.store.release(request).await? {
                    Released::Done { .. } => None,
                    Released::NotYours(absence) => Some(absence),
                    other => panic!("{other:?}"),
                };
                Op::Release(who, count, Some(answer))
            }
            Op::Force(_) => {
                let request = ForceRelease::new(target, TIMEOUT);
                Op::Force(Some(self.store.force_release(request).await?))
            }
            Op::Read(_) => {
                let looked = self.store.inspect(Inspect::new(target, TIMEOUT)).await?;
                let holding = looked.into_holder();
                Op::Read(holding.map(|holding| {
                    let number = holding.holder.rsplit_once(':').map(|(_, number)| number.parse());
                    let who = number.expect("uuid and number").expect("a number");
                    (who, u32::try_from(holding.hold_count).expect("a small count"))
                }))
            }
            Op::Lapse(_) => panic!("nobody can ask for it"),
        })
    }

    /// One client: what it asks for follows from its dice, and from whether it holds.
    async fn client(self: Arc<Self>, number: u64, mut dice: Dice) {
        let (mut grants, mut holds) = (0, false);
        for _ in 0..STEPS {
            let who = number * 1000 + grants;
            let op = match (dice.below(12), holds) {
                (0, _) => Op::Read(None),
                (1, _) if dice.below(4) == 0 => Op::Force(None),
                (2..5, true) => Op::Release(who, 2 + dice.below(2) as u32, None),
                (5..8, true) => Op::Renew(who, None),
                (8, true) => Op::Release(who, 1, None),
                (9.., true) => Op::Release(who, 0, None),
                // A late copy of something that is over.
                (2, false) => Op::Renew(who, None),
                (3, false) => Op::Release(who, 0, None),
                _ => Op::Acquire(who, None),
            };
            if dice.below(8) == 0 {
                // Twice at once.
                tokio::join!(self.run(op.clone()), self.run(op.clone()));
            }
            let kept = self.run(op.clone()).await;
            match op {
                Op::Acquire(..) => holds = kept,
                Op::Release(_, 0, _) => {
                    holds = false;
                    // Never used again, unless as a late copy.
                    grants += u64::from(dice.below(4) > 0);
                }
                _ => {}
            }
            dice.pause().await;
        }
    }
}

async fn rounds(store: Arc<dyn Store>, during: impl Fn(usize)) -> Vec<Vec<Record<Op>>> {
    history::rounds::<Locks, _, _>((store, "linear:"), ROUNDS, during, Trial::client).await
}

/// A test that meets none of what it is about shows nothing.
fn assert_varied(histories: &[Vec<Record<Op>>]) {
    let all = || histories.iter().flatten();
    let count = |is: fn(&Op) -> bool| all().filter(|record| is(&record.op)).count();
    let granted = count(|op| matches!(op, Op::Acquire(_, Some(Ok(_)))));
    let held = count(|op| matches!(op, Op::Acquire(_, Some(Err(())))));
    let counted = count(|op| matches!(op, Op::Release(_, 1.., Some(None))));
    let renewed = count(|op| matches!(op, Op::Renew(_, Some(None))));
    let absent =
        count(|op| matches!(op, Op::Renew(_, Some(Some(_))) | Op::Release(_, _, Some(Some(_)))));
    let released = count(|op| matches!(op, Op::Release(_, 0, Some(None))));
    let forced = count(|op| matches!(op, Op::Force(Some(true))));
    let unknown = all().filter(|record| record.returned.is_none()).count();
    println!(
        "{} histories of {} operations: {granted} granted, {held} held, {counted} counted, {renewed} \
         renewed, {absent} found absent, {released} released, {forced} forced, {unknown} unknown",
        histories.len(),
        all().count()
    );
    for number in [granted, held, counted, renewed, absent, released, forced] {
        assert!(number > 0);
    }
}

#[test]
fn memory_store_is_linearizable() {
    let histories = runtime().block_on(async {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        rounds(store, |_| {}).await
    });
    assert_varied(&histories);
}

#[test]
fn redis_store_is_linearizable() {
    let server = kit::Server::start();
    let histories = runtime().block_on(async {
        let store = leasehold::testing::redis_store(&server.url(), TTL).await;
        rounds(store.expect("the server is there"), |_| {}).await
    });
    assert_varied(&histories);
}

#[test]
fn redis_store_is_linearizable_when_replies_are_lost() {
    let server = kit::Server::start();
    let proxy = kit::Proxy::start(server.port());
    let histories = runtime().block_on(async {
        let store = leasehold::testing::redis_store(&proxy.url(), TTL).await;
        let store = store.expect("the server is there");
        // The connection is closed with the reply, so what was under way on it is unknown as well.
        rounds(store, |round| proxy.drop_reply_of(3 + 5 * (round % 4), "linear:")).await
    });
    assert_varied(&histories);
    assert!(proxy.dropped() > 0, "no reply was lost");
    let unknown = histories.iter().flatten().filter(|record| record.returned.is_none());
    assert!(unknown.count() > 0, "no outcome was unknown");
}

#[test]
fn double_grant_is_refused() {
    let first = Op::Acquire(1, Some(Ok(10)));
    assert!(is_linearizable(&one_by_one(&[first.clone(), Op::Acquire(2, Some(Err(())))])));
    assert!(!is_linearizable(&one_by_one(&[first, Op::Acquire(2, Some(Ok(20)))])));
}

#[test]
fn grant_after_the_ttl_is_accepted_and_one_before_is_not() {
    let mut history = one_by_one(&[Op::Acquire(1, Some(Ok(10))), Op::Acquire(2, Some(Ok(20)))]);
    for (after, accepted) in [(TTL - EARLY * 2, false), (TTL, true)] {
        history[1].call = nanos(after) - 1_000;
        history[1].returned = Some(nanos(after));
        assert_eq!(is_linearizable(&history), accepted, "{after:?}");
    }
}

#[test]
fn fencing_token_that_does_not_grow_is_refused() {
    let grants = |fence| {
        let release = Op::Release(1, 0, Some(None));
        [Op::Acquire(1, Some(Ok(10))), release, Op::Acquire(2, Some(Ok(fence)))]
    };
    for (fence, accepted) in [(9, false), (10, false), (10 + BLOCK - 1, false), (10 + BLOCK, true)]
    {
        assert_eq!(is_linearizable(&one_by_one(&grants(fence))), accepted, "{fence}");
    }
}

#[test]
fn same_grant_with_another_fencing_token_is_refused() {
    let again = |fence| [Op::Acquire(1, Some(Ok(10))), Op::Acquire(1, Some(Ok(fence)))];
    assert!(is_linearizable(&one_by_one(&again(10))));
    assert!(!is_linearizable(&one_by_one(&again(20))));
}

#[test]
fn renewal_that_revives_and_a_count_not_set_are_refused() {
    let ended = [Op::Acquire(1, Some(Ok(10))), Op::Release(1, 0, Some(None))];
    let renewed = |absence| [&ended[..], &[Op::Renew(1, Some(absence))]].concat();
    assert!(is_linearizable(&one_by_one(&renewed(Some(Absence::Gone)))));
    assert!(!is_linearizable(&one_by_one(&renewed(None))));

    let counted = |count| {
        let record = Op::Release(1, 2, Some(None));
        [Op::Acquire(1, Some(Ok(10))), record, Op::Read(Some((1, count)))]
    };
    assert!(is_linearizable(&one_by_one(&counted(2))));
    assert!(!is_linearizable(&one_by_one(&counted(3))));
}

#[test]
fn acquire_without_an_answer_may_have_run_or_not() {
    for answer in [Ok(20), Err(())] {
        let mut history = one_by_one(&[Op::Acquire(1, None), Op::Acquire(2, Some(answer))]);
        history[0].returned = None;
        assert!(is_linearizable(&history), "{answer:?}");
    }
}

/// Real histories, each with one answer changed.
#[test]
fn history_of_memory_with_one_fence_changed_is_refused() {
    let histories = runtime().block_on(async {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        rounds(store, |_| {}).await
    });
    let mut changed = 0;
    for mut history in histories {
        let last = history.iter_mut().rev().find_map(|record| match &mut record.op {
            Op::Acquire(_, Some(Ok(fence))) => Some(fence),
            _ => None,
        });
        if let Some(fence) = last {
            *fence = 0;
            changed += 1;
            assert!(!is_linearizable(&history), "{history:#?}");
        }
    }
    assert!(changed > 0);
}
