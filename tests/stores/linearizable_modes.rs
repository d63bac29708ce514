//! Concurrent histories of readers, writers and holders of permits are linearizable, as those of
//! [`super::linearizable`] are.
//!
//! Whoever has a name at one time has it by one fencing token: the writer's, or that of the readers who are there together.

use super::history::{self, BLOCK, Dice, Record, TIMEOUT, TTL, Trial, one_by_one, runtime};
use leasehold::store::{
    Absence, Acquire, Acquired, Fencing, HolderId, Inspect, MemoryStore, Mode, Release, Released,
    RenewBatch, RenewCall, Renewal, Store, Target,
};
use porcupine_rs::Model;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const SIZE: u32 = 3;
const STEPS: usize = 10;
const ROUNDS: usize = 10;

/// The mode of a holder, as it may be kept in a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Side {
    Read,
    Write,
    Permits(u32),
}

impl Side {
    fn mode(self) -> Mode {
        match self {
            Self::Read => Mode::Read,
            Self::Write => Mode::Write,
            Self::Permits(take) => Mode::Permits { size: SIZE, take },
        }
    }

    fn of(mode: Mode) -> Self {
        match mode {
            Mode::Read => Self::Read,
            Mode::Write => Self::Write,
            Mode::Permits { take, .. } => Self::Permits(take),
            other => panic!("{other:?}"),
        }
    }

    fn is_exclusive(self) -> bool {
        self == Self::Write
    }
}

/// A fencing token, or 0 for permits; `Held`, or what the holder found.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Answer {
    Granted(u64),
    Held,
    Absent(Absence),
}

/// What a client asked for and was told: `None` if its answer is unknown.
#[derive(Clone, Debug, PartialEq)]
enum Op {
    Acquire(u64, Side, Option<Answer>),
    Convert(u64, Side, Option<Answer>),
    Renew(u64, Side, Option<Option<Absence>>),
    Release(u64, Side, Option<Option<Absence>>),
    Look(BTreeMap<u64, Side>),
    /// The time to live that this call has set is over.
    Lapse(i64),
}

#[derive(Clone, Debug)]
struct Shared;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    holds: BTreeMap<u64, Hold>,
    /// No token up to here may be given again.
    last_fence: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Hold {
    side: Side,
    /// The call that has set the time to live.
    set_by: i64,
    /// The greatest fencing token that was known of when it was granted: its own is larger.
    after: u64,
    /// Its fencing token; `None`: nobody was told yet.
    fence: Option<u64>,
    /// Whether the store may have forgotten that token: a renewal can keep a reader whose time was over, and Redis has the
    /// token in the key of that time. The next request then reserves one.
    forgotten: bool,
}

impl State {
    fn absence(&self, side: Side) -> Absence {
        let excludes = |hold: &Hold| hold.side.is_exclusive() || side.is_exclusive();
        if self.holds.values().any(excludes) { Absence::Taken } else { Absence::Gone }
    }

    /// Whether this is what a store may say.
    fn run(&mut self, call: i64, op: &Op) -> bool {
        match op {
            Op::Acquire(who, side, answer) => self.acquire(call, *who, *side, *answer),
            Op::Convert(who, side, answer) => self.convert(call, *who, *side, *answer),
            Op::Renew(who, side, answer) => {
                let absence = self.absence(*side);
                let result = match self.holds.get_mut(who) {
                    // The store has lost the change to a writer.
                    Some(hold) if (hold.side, *side) == (Side::Read, Side::Write) => Some(absence),
                    Some(hold) => {
                        hold.forgotten |= hold.side == Side::Read;
                        hold.set_by = call;
                        None
                    }
                    None => Some(absence),
                };
                answer.is_none_or(|answer| answer == result)
            }
            Op::Release(who, side, answer) => {
                let absence = self.absence(*side);
                // A writer whose change the store has lost finds nothing, and leaves nothing.
                let is_its_own = |hold: Hold| (hold.side, *side) != (Side::Read, Side::Write);
                let result = (!self.holds.remove(who).is_some_and(is_its_own)).then_some(absence);
                answer.is_none_or(|answer| answer == result)
            }
            Op::Look(answer) => {
                // On Redis, permits whose time is over are not shown, and can be released until an acquire takes them.
                let may_hide = |side| matches!(side, Side::Permits(_));
                let is_there = |(who, side): (&u64, &Side)| {
                    self.holds.get(who).is_some_and(|hold| hold.side == *side)
                };
                let is_shown =
                    |(who, hold): (&u64, &Hold)| answer.contains_key(who) || may_hide(hold.side);
                answer.iter().all(is_there) && self.holds.iter().all(is_shown)
            }
            Op::Lapse(of) => {
                self.holds.retain(|_, hold| hold.set_by != *of);
                true
            }
        }
    }

    fn acquire(&mut self, call: i64, who: u64, side: Side, answer: Option<Answer>) -> bool {
        if let Some(hold) = self.holds.get_mut(&who) {
            if (hold.side, side) == (Side::Read, Side::Write) {
                return answer.is_none_or(|answer| answer == Answer::Held);
            }
            hold.set_by = call;
            if hold.side != side {
                // A late copy of a request from when the writer was a reader: nobody waits for its answer.
                return answer.is_none_or(|answer| matches!(answer, Answer::Granted(_)));
            }
            return self.is_granted(who, answer);
        }
        let permits = |hold: &Hold| if let Side::Permits(take) = hold.side { take } else { 0 };
        let held = match side {
            Side::Write => !self.holds.is_empty(),
            Side::Read => self.holds.values().any(|hold| hold.side == Side::Write),
            Side::Permits(take) => self.holds.values().map(permits).sum::<u32>() + take > SIZE,
        };
        if held {
            return answer.is_none_or(|answer| answer == Answer::Held);
        }
        self.holds.insert(
            who,
            Hold { side, set_by: call, after: self.last_fence, fence: None, forgotten: false },
        );
        self.is_granted(who, answer)
    }

    fn convert(&mut self, call: i64, who: u64, side: Side, answer: Option<Answer>) -> bool {
        let (absence, alone) = (self.absence(side), self.holds.len() == 1);
        let Some(hold) = self.holds.get_mut(&who) else {
            return answer.is_none_or(|answer| answer == Answer::Absent(absence));
        };
        if (hold.side, side) == (Side::Read, Side::Write) && !alone {
            return answer.is_none_or(|answer| answer == Answer::Held);
        }
        if hold.side != side {
            (hold.after, hold.fence) = (self.last_fence, None);
        }
        (hold.side, hold.set_by) = (side, call);
        self.is_granted(who, answer)
    }

    fn is_granted(&mut self, who: u64, answer: Option<Answer>) -> bool {
        let answer = match answer {
            None => return true,
            Some(Answer::Granted(answer)) => answer,
            Some(_) => return false,
        };
        let taken = self.holds.values().any(|hold| hold.fence == Some(answer));
        let Some(hold) = self.holds.get_mut(&who) else { return false };
        if matches!(hold.side, Side::Permits(_)) {
            return answer == 0;
        }
        let is_next = hold.forgotten && answer > self.last_fence;
        if let Some(fence) = hold.fence
            && !is_next
        {
            return answer == fence;
        }
        // The first to be told of it. Readers that came later may have been told of theirs before.
        let newest = if hold.side == Side::Write { answer + BLOCK - 1 } else { answer };
        hold.fence = Some(answer);
        self.last_fence = self.last_fence.max(newest);
        answer > hold.after && !taken
    }
}

impl Model for Shared {
    type State = State;
    type Op = (i64, Op);
    type Metadata = ();

    fn init() -> State {
        State { holds: BTreeMap::new(), last_fence: 0 }
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
            Self::Acquire(who, _, None | Some(Answer::Granted(_)))
            | Self::Convert(who, _, None | Some(Answer::Granted(_)))
            | Self::Renew(who, _, None | Some(None)) => Some(who),
            _ => None,
        }
    }

    fn releases(&self) -> Option<u64> {
        match *self {
            Self::Release(who, _, Some(None)) => Some(who),
            _ => None,
        }
    }

    fn is_look(&self) -> bool {
        matches!(self, Self::Look(_))
    }

    fn lapse(call: i64) -> Self {
        Self::Lapse(call)
    }
}

impl Trial<Op> {
    /// Returns whether the name is that of a semaphore, as every second one is.
    fn is_pool(&self) -> bool {
        self.number % 2 == 1
    }

    fn holder(&self, who: u64) -> HolderId {
        HolderId::new(self.manager, who)
    }

    fn target(&self, side: Side) -> Target {
        Target::new(self.name.clone(), side.mode())
    }

    /// Runs an operation; returns what was told.
    async fn run(&self, op: Op) -> Option<Op> {
        self.keep(op.clone(), self.ask(op)).await
    }

    async fn acquire(&self, who: u64, side: Side, converts: bool) -> leasehold::Result<Answer> {
        let fencing = Fencing::new(BLOCK as u32, Some(Duration::from_secs(60)));
        let request = Acquire::new(self.target(side), self.holder(who), TTL, TIMEOUT)
            .with_fencing(Some(fencing))
            .with_converts(converts);
        Ok(match self.store.acquire(request).await? {
            Acquired::Granted { fence, .. } => Answer::Granted(fence.unwrap_or(0)),
            Acquired::Held { .. } => Answer::Held,
            Acquired::NotYours(absence) => Answer::Absent(absence),
            other => panic!("{other:?}"),
        })
    }

    /// The same operation with what was told.
    async fn ask(&self, op: Op) -> leasehold::Result<Op> {
        Ok(match op {
            Op::Acquire(who, side, _) => {
                Op::Acquire(who, side, Some(self.acquire(who, side, false).await?))
            }
            Op::Convert(who, side, _) => {
                Op::Convert(who, side, Some(self.acquire(who, side, true).await?))
            }
            Op::Renew(who, side, _) => {
                let items = vec![Renewal::new(self.target(side), self.holder(who))];
                let mut renewed =
                    RenewCall::join(self.store.renew(RenewBatch::new(items, TTL, TIMEOUT))).await?;
                Op::Renew(who, side, Some(renewed.verdicts.remove(0)?))
            }
            Op::Release(who, side, _) => {
                let request = Release::new(self.target(side), self.holder(who), 0, TIMEOUT);
                let answer = match self.store.release(request).await? {
                    Released::Done { .. } => None,
                    Released::NotYours(absence) => Some(absence),
                    other => panic!("{other:?}"),
                };
                Op::Release(who, side, Some(answer))
            }
            Op::Look(_) => {
                let side = if self.is_pool() { Side::Permits(1) } else { Side::Read };
                let looked = self.store.inspect(Inspect::new(self.target(side), TIMEOUT)).await?;
                let holder = |info: leasehold::store::HolderInfo| {
                    let number = info.holder.rsplit_once(':').map(|(_, number)| number.parse());
                    let who = number.expect("uuid and number").expect("a number");
                    (who, Side::of(info.mode))
                };
                Op::Look(looked.holders.into_iter().map(holder).collect())
            }
            Op::Lapse(_) => panic!("nobody can ask for it"),
        })
    }

    fn side(&self, dice: &mut Dice) -> Side {
        match (self.is_pool(), dice.below(3)) {
            (true, _) => Side::Permits(1 + dice.below(SIZE.into()) as u32),
            (false, 0) => Side::Write,
            (false, _) => Side::Read,
        }
    }

    /// One client: what it asks for follows from its dice, and from what it holds.
    async fn client(self: Arc<Self>, number: u64, mut dice: Dice) {
        let (mut grants, mut holds) = (0, None);
        // What a holder asks for at first, in case a copy of it comes late.
        let mut first = self.side(&mut dice);
        for _ in 0..STEPS {
            let who = number * 1000 + grants;
            let op = match (dice.below(12), holds) {
                (0, _) => Op::Look(BTreeMap::new()),
                (1..5, Some(Side::Read)) => Op::Convert(who, Side::Write, None),
                (1..5, Some(Side::Write)) => Op::Convert(who, Side::Read, None),
                (5, Some(_)) => Op::Acquire(who, first, None),
                (..8, Some(side)) => Op::Renew(who, side, None),
                (_, Some(side)) => Op::Release(who, side, None),
                // A late copy of something that is over.
                (1, None) => Op::Renew(who, first, None),
                (2, None) => Op::Release(who, first, None),
                (3, None) if !self.is_pool() => Op::Convert(who, Side::Read, None),
                _ => Op::Acquire(who, first, None),
            };
            let changes = matches!(op, Op::Convert(..));
            if dice.below(8) == 0 && !changes {
                // Twice at once.
                tokio::join!(self.run(op.clone()), self.run(op.clone()));
            }
            match self.run(op.clone()).await {
                Some(Op::Acquire(_, _, Some(Answer::Granted(_))) | Op::Renew(_, _, Some(None))) => {
                    holds = holds.or(Some(first))
                }
                Some(Op::Convert(_, side, Some(Answer::Granted(_)))) => holds = Some(side),
                Some(Op::Convert(_, _, Some(Answer::Held)) | Op::Acquire(..) | Op::Look(_)) => {}
                _ => {
                    // Never used again, unless as a late copy; and never after a change whose outcome is unknown.
                    holds = None;
                    if dice.below(4) > 0 || changes {
                        grants += 1;
                        first = self.side(&mut dice);
                    }
                }
            }
            dice.pause().await;
        }
    }
}

async fn rounds(store: Arc<dyn Store>, during: impl Fn(usize)) -> Vec<Vec<Record<Op>>> {
    history::rounds::<Shared, _, _>((store, "shared:"), ROUNDS, during, Trial::client).await
}

/// A test that meets none of what it is about shows nothing.
fn assert_varied(histories: &[Vec<Record<Op>>]) {
    let count =
        |is: fn(&Op) -> bool| histories.iter().flatten().filter(|record| is(&record.op)).count();
    let granted = |answer: &Option<Answer>| matches!(answer, Some(Answer::Granted(_)));
    let numbers = [
        ("reads", count(|op| matches!(op, Op::Acquire(_, Side::Read, Some(Answer::Granted(_)))))),
        ("writes", count(|op| matches!(op, Op::Acquire(_, Side::Write, Some(Answer::Granted(_)))))),
        ("held", count(|op| matches!(op, Op::Acquire(_, _, Some(Answer::Held))))),
        (
            "upgrades",
            count(|op| matches!(op, Op::Convert(_, Side::Write, Some(Answer::Granted(_))))),
        ),
        ("refused", count(|op| matches!(op, Op::Convert(_, _, Some(Answer::Held))))),
        (
            "downgrades",
            count(|op| matches!(op, Op::Convert(_, Side::Read, Some(Answer::Granted(_))))),
        ),
        (
            "permits",
            count(|op| matches!(op, Op::Acquire(_, Side::Permits(_), answer) if answer.is_some())),
        ),
        ("together", count(|op| matches!(op, Op::Look(answer) if answer.len() > 1))),
    ];
    let all: usize = histories.iter().map(Vec::len).sum();
    println!("{} histories of {all} operations: {numbers:?}", histories.len());
    assert!(histories.iter().flatten().any(|record| match &record.op {
        Op::Acquire(_, Side::Permits(_), answer) => granted(answer),
        _ => false,
    }));
    for (what, number) in numbers {
        assert!(number > 0, "no {what}");
    }
}

#[test]
fn memory_store_with_modes_is_linearizable() {
    let store: Arc<dyn Store> = Arc::new(runtime().block_on(async { MemoryStore::new() }));
    assert_varied(&runtime().block_on(rounds(store, |_| {})));
}

#[test]
fn redis_store_with_modes_is_linearizable() {
    let server = kit::Server::start();
    let histories = runtime().block_on(async {
        let store = leasehold::testing::redis_store(&server.url(), TTL).await;
        rounds(store.expect("the server is there"), |_| {}).await
    });
    assert_varied(&histories);
}

#[test]
fn redis_store_with_modes_is_linearizable_when_replies_are_lost() {
    let server = kit::Server::start();
    let proxy = kit::Proxy::start(server.port());
    let histories = runtime().block_on(async {
        let store = leasehold::testing::redis_store(&proxy.url(), TTL).await;
        let store = store.expect("the server is there");
        rounds(store, |round| proxy.drop_reply_of(3 + 5 * (round % 4), "shared:")).await
    });
    assert_varied(&histories);
    assert!(proxy.dropped() > 0, "no reply was lost");
}

fn took(who: u64, side: Side, fence: u64) -> Op {
    Op::Acquire(who, side, Some(Answer::Granted(fence)))
}

fn changed(who: u64, side: Side, fence: u64) -> Op {
    Op::Convert(who, side, Some(Answer::Granted(fence)))
}

#[track_caller]
fn accepts(ops: &[Op]) {
    assert!(history::is_linearizable::<Shared, _>(&one_by_one(ops)), "{ops:?}");
}

#[track_caller]
fn refuses(ops: &[Op]) {
    assert!(!history::is_linearizable::<Shared, _>(&one_by_one(ops)), "{ops:?}");
}

#[test]
fn reader_admitted_beside_a_writer_is_refused() {
    accepts(&[took(1, Side::Read, 10), took(2, Side::Read, 11)]);
    refuses(&[took(1, Side::Read, 10), took(2, Side::Write, 20)]);
    refuses(&[took(1, Side::Write, 10), took(2, Side::Read, 20)]);
}

#[test]
fn token_of_a_reader_that_does_not_grow_is_refused() {
    let lost = Op::Acquire(1, Side::Read, None);
    accepts(&[lost.clone(), took(2, Side::Read, 11), took(1, Side::Read, 10)]);
    for fence in [10, 9] {
        refuses(&[took(1, Side::Read, 10), took(2, Side::Read, fence)]);
    }
    refuses(&[lost, took(2, Side::Read, 11), took(1, Side::Read, 11)]);
    refuses(&[took(1, Side::Read, 10), took(2, Side::Read, 11), took(1, Side::Read, 11)]);
    refuses(&[took(1, Side::Write, 10), changed(1, Side::Read, 20), took(2, Side::Read, 20)]);
}

#[test]
fn change_of_mode_that_lets_somebody_in_is_refused() {
    let writer = [took(1, Side::Write, 10), changed(1, Side::Read, 20)];
    accepts(&[&writer[..], &[took(2, Side::Read, 21)]].concat());
    refuses(&[&writer[..], &[took(2, Side::Write, 30)]].concat());
    let readers = [took(1, Side::Read, 10), took(2, Side::Read, 11)];
    accepts(&[&readers[..], &[Op::Convert(1, Side::Write, Some(Answer::Held))]].concat());
    refuses(&[&readers[..], &[changed(1, Side::Write, 20)]].concat());
    refuses(&[took(1, Side::Write, 10), changed(1, Side::Read, 10 + BLOCK - 1)]);
    refuses(&[took(1, Side::Read, 10), changed(1, Side::Write, 10)]);
}

#[test]
fn reader_that_is_renewed_or_released_as_a_writer_is_refused() {
    let taken = Some(Absence::Taken);
    for op in [Op::Renew, Op::Release] {
        let then = |held: Side, side: Side, answer| [took(1, held, 10), op(1, side, Some(answer))];
        accepts(&then(Side::Read, Side::Write, taken));
        refuses(&then(Side::Read, Side::Write, None));
        // A request of the reader that it was may come late.
        accepts(&then(Side::Write, Side::Read, None));
        refuses(&then(Side::Write, Side::Read, taken));
    }
}

#[test]
fn permit_too_many_is_refused() {
    let two = [took(1, Side::Permits(1), 0), took(2, Side::Permits(2), 0)];
    accepts(&two);
    accepts(&[&two[..], &[Op::Acquire(3, Side::Permits(1), Some(Answer::Held))]].concat());
    refuses(&[&two[..], &[took(3, Side::Permits(1), 0)]].concat());
    refuses(&[took(1, Side::Permits(1), 7)]);
}
