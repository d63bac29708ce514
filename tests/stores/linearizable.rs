//! Concurrent histories of the stores are linearizable: what several clients were told is what they would
//! have been told had each operation run at one instant between its call and its return.
//!
//! Expiry is an operation too, whose window opens at the earliest end of the time to live, and never closes.
//! So is a request whose answer was lost: it may run at any time after its call.
//!
//! `LEASEHOLD_SEED` replays the choices of a run that failed, though not its timing.

use leasehold::store::{
    Absence, Acquire, Acquired, Fencing, ForceRelease, HolderId, Inspect, MemoryStore, Name,
    Release, Released, RenewBatch, Renewal, Store, Target,
};
use leasehold::{ErrorKind, Fate};
use porcupine_rs::{CheckResult, Model, Operation, check_operations_timeout};
use std::env;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::runtime::{Builder, Runtime};
use uuid::Uuid;

const TTL: Duration = Duration::from_millis(60);
/// A server counts whole milliseconds, and its clock is not ours.
const EARLY: Duration = Duration::from_millis(2);
const BLOCK: u64 = 4;
const TIMEOUT: Duration = Duration::from_millis(500);
const CLIENTS: u64 = 4;
const STEPS: usize = 12;
const ROUNDS: usize = 12;
/// How many names are under test at once.
const NAMES: usize = 4;

/// What a client asked for and was told: `None` if its answer is unknown.
#[derive(Clone, Debug, PartialEq)]
enum Op {
    /// The first fencing token, or `Err` if somebody else holds.
    Acquire(u64, Option<Result<u64, ()>>),
    Nest(u64, u32, Option<Option<Absence>>),
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
            Op::Acquire(who, told) => self.acquire(call, *who, *told),
            Op::Nest(who, count, told) => {
                let result = self.own(*who).map(|hold| (hold.count, hold.set_by) = (*count, call));
                told.is_none_or(|told| told == result.err())
            }
            Op::Renew(who, told) => {
                let result = self.own(*who).map(|hold| hold.set_by = call);
                told.is_none_or(|told| told == result.err())
            }
            Op::Release(who, count, told) => {
                let result = self.own(*who).map(|hold| hold.count = *count);
                if result.is_ok() && *count == 0 {
                    self.hold = None;
                }
                told.is_none_or(|told| told == result.err())
            }
            Op::Force(told) => {
                let was = self.hold.take().is_some();
                told.is_none_or(|told| told == was)
            }
            Op::Read(told) => self.hold.as_ref().map(|hold| (hold.who, hold.count)) == *told,
            Op::Lapse(of) => {
                self.hold.take_if(|hold| hold.set_by == *of);
                true
            }
        }
    }

    fn acquire(&mut self, call: i64, who: u64, told: Option<Result<u64, ()>>) -> bool {
        let fence = match self.own(who) {
            Err(Absence::Taken) => return told.is_none_or(|told| told.is_err()),
            Ok(hold) => {
                (hold.count, hold.set_by) = (1, call);
                hold.fence
            }
            Err(_) => {
                self.hold = Some(Hold { who, count: 1, fence: None, set_by: call });
                None
            }
        };
        match (told, fence) {
            (None, _) => true,
            (Some(Err(())), _) => false,
            (Some(Ok(told)), Some(fence)) => told == fence,
            // The first to be told of it.
            (Some(Ok(told)), None) => {
                let grows = told > self.last_fence;
                self.last_fence = told + BLOCK - 1;
                self.hold.iter_mut().for_each(|hold| hold.fence = Some(told));
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

/// When an operation was called, and when it returned: never, if its answer is unknown.
#[derive(Clone, Debug)]
struct Record {
    call: i64,
    returned: Option<i64>,
    op: Op,
}

impl Record {
    /// Whose time to live it may have set.
    fn keeps(&self) -> Option<u64> {
        match self.op {
            Op::Acquire(who, None | Some(Ok(_)))
            | Op::Nest(who, _, None | Some(None))
            | Op::Renew(who, None | Some(None)) => Some(who),
            _ => None,
        }
    }

    /// Whether a time to live of `who`, which was set before `returned`, is surely of no account by `end`.
    fn ends(&self, who: u64, returned: i64, end: i64) -> bool {
        let sure = self.call > returned && self.returned.is_some_and(|returned| returned < end);
        sure && match self.op {
            Op::Release(own, 0, Some(None)) => own == who,
            _ => self.keeps() == Some(who),
        }
    }
}

pub fn nanos(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).expect("a test is shorter than 292 years")
}

/// The history of one name, with the expiries that there may have been.
fn is_linearizable(history: &[Record]) -> bool {
    let operation = |call, returned: Option<i64>, op| Operation::<Locks> {
        client_id: None,
        call_time: call,
        return_time: returned.unwrap_or(i64::MAX),
        op: (call, op),
        metadata: None,
    };
    let mut operations: Vec<_> = history
        .iter()
        .map(|record| operation(record.call, record.returned, record.op.clone()))
        .collect();
    for record in history {
        let Some(who) = record.keeps() else { continue };
        let end = record.call + nanos(TTL - EARLY);
        let superseded = |returned| history.iter().any(|other| other.ends(who, returned, end));
        // Not one more than needed: each doubles the ways to look at.
        if !record.returned.is_some_and(superseded) {
            operations.push(operation(end, None, Op::Lapse(record.call)));
        }
    }
    match check_operations_timeout(&operations, Duration::from_secs(20)) {
        CheckResult::Ok => true,
        CheckResult::Illegal => false,
        CheckResult::Unknown => panic!("the search takes too long: {history:#?}"),
    }
}

/// Small numbers that look random (xorshift).
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) % limit
    }
}

/// One name, and what all clients were told of it.
struct Trial {
    store: Arc<dyn Store>,
    name: Name,
    manager: Uuid,
    start: Instant,
    history: Mutex<Vec<Record>>,
}

impl Trial {
    fn new(store: Arc<dyn Store>) -> Arc<Self> {
        let manager = Uuid::new_v4();
        let name = Name::new(&format!("linear:{manager}")).expect("a good name");
        Arc::new(Self { store, name, manager, start: Instant::now(), history: Mutex::default() })
    }

    fn token(&self, who: u64) -> HolderId {
        HolderId::new(self.manager, who)
    }

    /// Runs an operation and keeps what came of it; whether it was done.
    async fn run(&self, op: Op) -> bool {
        let call = nanos(self.start.elapsed());
        let result = self.ask(op.clone()).await;
        let now = nanos(self.start.elapsed());
        let (returned, op) = match result {
            Ok(op) => (Some(now), op),
            Err(error) if error.fate() == Fate::NotExecuted => return false,
            Err(error) if error.kind() == ErrorKind::Unavailable => (None, op),
            Err(error) => panic!("{op:?}: {error}"),
        };
        // A look that got no answer tells nothing.
        if returned.is_none() && matches!(op, Op::Read(_)) {
            return false;
        }
        let record = Record { call, returned, op };
        let done = returned.is_some() && record.keeps().is_some();
        self.history.lock().unwrap_or_else(PoisonError::into_inner).push(record);
        done
    }

    /// The same operation with what was told.
    async fn ask(&self, op: Op) -> leasehold::Result<Op> {
        let target = Target::exclusive(self.name.clone());
        let acquire = |who, count, fencing| {
            Acquire::new(target.clone(), self.token(who), TTL, TIMEOUT)
                .with_count(count)
                .with_fencing(fencing)
        };
        Ok(match op {
            Op::Acquire(who, _) => {
                let retention = Some(Duration::from_secs(60));
                let fencing = Fencing::new(BLOCK as u32, retention);
                let told = match self.store.acquire(acquire(who, 1, Some(fencing))).await? {
                    Acquired::Granted { fence, .. } => Ok(fence.expect("a fencing token")),
                    Acquired::Held { .. } => Err(()),
                    other => panic!("an outermost acquire: {other:?}"),
                };
                Op::Acquire(who, Some(told))
            }
            Op::Nest(who, count, _) => {
                let told = match self.store.acquire(acquire(who, count, None)).await? {
                    Acquired::Granted { .. } => None,
                    Acquired::NotYours(absence) => Some(absence),
                    other => panic!("a nested acquire is not told {other:?}"),
                };
                Op::Nest(who, count, Some(told))
            }
            Op::Renew(who, _) => {
                let items = vec![Renewal::new(target, self.token(who))];
                let mut renewed = self.store.renew(RenewBatch::new(items, TTL, TIMEOUT)).await?;
                Op::Renew(who, Some(renewed.verdicts.remove(0)?))
            }
            Op::Release(who, count, _) => {
                let request = Release::new(target, self.token(who), count, TIMEOUT);
                let told = match self.store.release(request).await? {
                    Released::Done { .. } => None,
                    Released::NotYours(absence) => Some(absence),
                    other => panic!("{other:?}"),
                };
                Op::Release(who, count, Some(told))
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
                (2..5, true) => Op::Nest(who, 2 + dice.below(2) as u32, None),
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
            match dice.below(10) {
                0 => tokio::time::sleep(TTL + TTL / 5).await,
                1..7 => tokio::time::sleep(Duration::from_micros(dice.below(3000))).await,
                _ => {}
            }
        }
    }

    fn history(&self) -> Vec<Record> {
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner).clone();
        history.sort_by_key(|record| record.call);
        history
    }
}

pub fn seed() -> u64 {
    match env::var("LEASEHOLD_SEED") {
        Ok(text) => text.parse().expect("LEASEHOLD_SEED is a number"),
        Err(_) => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
            u64::from(now.subsec_nanos())
        }
    }
}

pub fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

/// Many short histories, each of a name of its own; all of them are returned.
async fn rounds(stores: &[Arc<dyn Store>], during: impl Fn(usize)) -> Vec<Vec<Record>> {
    let seed = seed();
    println!("LEASEHOLD_SEED={seed}");
    let mut histories = Vec::new();
    for round in 0..ROUNDS {
        let mut trials = Vec::new();
        let mut clients = tokio::task::JoinSet::new();
        during(round);
        for name in 0..NAMES {
            let trial = Trial::new(Arc::clone(&stores[0]));
            for number in 0..CLIENTS {
                let dice = Dice::new(seed + (round * 1000 + name * 10) as u64 + number);
                clients.spawn(Arc::clone(&trial).client(number, dice));
            }
            trials.push(trial);
        }
        while let Some(client) = clients.join_next().await {
            client.expect("a client that does not panic");
        }
        for trial in trials {
            let history = trial.history();
            assert!(is_linearizable(&history), "LEASEHOLD_SEED={seed}: {history:#?}");
            histories.push(history);
        }
    }
    histories
}

/// A test that meets none of what it is about shows nothing.
fn assert_varied(histories: &[Vec<Record>]) {
    let all = || histories.iter().flatten();
    let count = |is: fn(&Op) -> bool| all().filter(|record| is(&record.op)).count();
    let granted = count(|op| matches!(op, Op::Acquire(_, Some(Ok(_)))));
    let held = count(|op| matches!(op, Op::Acquire(_, Some(Err(())))));
    let nested = count(|op| matches!(op, Op::Nest(_, _, Some(None))));
    let renewed = count(|op| matches!(op, Op::Renew(_, Some(None))));
    let absent = count(|op| {
        matches!(
            op,
            Op::Renew(_, Some(Some(_)))
                | Op::Nest(_, _, Some(Some(_)))
                | Op::Release(_, _, Some(Some(_)))
        )
    });
    let released = count(|op| matches!(op, Op::Release(_, 0, Some(None))));
    let forced = count(|op| matches!(op, Op::Force(Some(true))));
    let unknown = all().filter(|record| record.returned.is_none()).count();
    println!(
        "{} histories of {} operations: {granted} granted, {held} held, {nested} nested, {renewed} \
         renewed, {absent} found absent, {released} released, {forced} forced, {unknown} unknown",
        histories.len(),
        all().count()
    );
    for number in [granted, held, nested, renewed, absent, released, forced] {
        assert!(number > 0);
    }
}

#[test]
fn memory_store_is_linearizable() {
    let histories = runtime().block_on(async {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        rounds(&[store], |_| {}).await
    });
    assert_varied(&histories);
}

#[test]
fn redis_store_is_linearizable() {
    let server = kit::Server::start();
    let histories = runtime().block_on(async {
        let store = leasehold::testing::redis_store(&server.url(), TTL).await;
        rounds(&[store.expect("the server is there")], |_| {}).await
    });
    assert_varied(&histories);
}

#[test]
fn redis_store_is_linearizable_when_replies_are_lost() {
    let server = kit::Server::start();
    let proxy = kit::Proxy::start(server.port());
    let histories = runtime().block_on(async {
        let store = leasehold::testing::redis_store(&proxy.url(), TTL).await;
        let stores = [store.expect("the server is there")];
        // The connection is closed with the reply, so what was under way on it is unknown as well.
        rounds(&stores, |round| proxy.drop_reply_of(3 + 5 * (round % 4), "linear:")).await
    });
    assert_varied(&histories);
    assert!(proxy.dropped() > 0, "no reply was lost");
    let unknown = histories.iter().flatten().filter(|record| record.returned.is_none());
    assert!(unknown.count() > 0, "no outcome was unknown");
}

/// Operations one after the other, a millisecond apart, each with its own duration of half of one.
fn one_by_one(ops: &[Op]) -> Vec<Record> {
    let at = |i: usize| i as i64 * 1_000_000;
    let record = |(i, op): (usize, &Op)| Record {
        call: at(i),
        returned: Some(at(i) + 500_000),
        op: op.clone(),
    };
    ops.iter().enumerate().map(record).collect()
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

    let nested = |count| {
        let nest = Op::Nest(1, 2, Some(None));
        [Op::Acquire(1, Some(Ok(10))), nest, Op::Read(Some((1, count)))]
    };
    assert!(is_linearizable(&one_by_one(&nested(2))));
    assert!(!is_linearizable(&one_by_one(&nested(3))));
}

#[test]
fn acquire_without_an_answer_may_have_run_or_not() {
    for told in [Ok(20), Err(())] {
        let mut history = one_by_one(&[Op::Acquire(1, None), Op::Acquire(2, Some(told))]);
        history[0].returned = None;
        assert!(is_linearizable(&history), "{told:?}");
    }
}

/// Real histories, each with one answer changed.
#[test]
fn history_of_memory_with_one_fence_changed_is_refused() {
    let histories = runtime().block_on(async {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        rounds(&[store], |_| {}).await
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
