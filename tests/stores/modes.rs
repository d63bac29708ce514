//! The model of [`super::model`] for names that several share: to any requests of readers, writers and holders of permits,
//! in any order, the stores give the same answers.
//!
//! What the layouts of the stores do not have in common is not compared, or not asked for: the count of a reader, which Redis
//! keeps at 1; the count of a writer after a late copy of a request from when it was a reader, and the fencing token that
//! this copy gets; nested requests for permits, and releases of a part of them, which no lease ever sends.

use super::model::{BLOCK, Memory, Redis, Subject, TIMEOUT, TTL};
use leasehold::store::{
    Absence, Acquire, Acquired, Arrival, Fencing, ForceRelease, HolderId, Inspect, Mode, Name,
    Release, Released, RenewBatch, RenewCall, Renewal, Target,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use uuid::Uuid;

const SIZE: u32 = 3;
/// In place of the number of a grant: the fencing token does not matter.
const ANY: u64 = u64::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    Read,
    Write,
    Permits,
}

#[derive(Clone, Debug)]
enum Op {
    /// With the place of a waiter who has waited for so long, or without one.
    Acquire {
        who: u64,
        side: Side,
        waited: Option<u64>,
    },
    Convert {
        who: u64,
        side: Side,
    },
    Release {
        who: u64,
        side: Side,
        count: u32,
    },
    Renew {
        whom: Vec<(u64, Side)>,
    },
    Force {
        pool: bool,
    },
    Delete {
        pool: bool,
    },
    Lapse,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    /// The number of the grant; 0 for permits.
    Granted(u64),
    Held,
    Absent(Absence),
    Done,
    Renewed(Vec<Option<Absence>>),
}

fn ops() -> impl Strategy<Value = Vec<(Op, bool)>> {
    let who = 0..4_u64;
    let rw = prop_oneof![Just(Side::Read), Just(Side::Write)];
    let side = prop_oneof![2 => Just(Side::Read), 2 => Just(Side::Write), 2 => Just(Side::Permits)];
    let both = (who.clone(), side);
    // Readers and writers never came at the same time.
    let waits = prop::option::weighted(0.4, 1..6_u64);
    let op = prop_oneof![
        8 => (both.clone(), waits).prop_map(|((who, side), waited)| {
            let odd = u64::from(side == Side::Write);
            Op::Acquire { who, side, waited: waited.map(|k| 20 * k + 10 * odd) }
        }),
        5 => (who, rw).prop_map(|(who, side)| Op::Convert { who, side }),
        8 => (both.clone(), prop::bool::weighted(0.6), 1..5_u32).prop_map(
            |((who, side), all, left)| {
                let all = all || side == Side::Permits;
                Op::Release { who, side, count: if all { 0 } else { left } }
            }
        ),
        3 => prop::collection::vec(both, 1..6).prop_map(|whom| Op::Renew { whom }),
        1 => any::<bool>().prop_map(|pool| Op::Force { pool }),
        1 => any::<bool>().prop_map(|pool| Op::Delete { pool }),
        1 => Just(Op::Lapse),
    ];
    prop::collection::vec((op, prop::bool::weighted(0.2)), 1..50)
}

/// How many permits each of them takes, always.
fn take(who: u64) -> u32 {
    1 + (who % u64::from(SIZE)) as u32
}

#[derive(Clone, Copy)]
struct Hold {
    side: Side,
    /// `None` where the stores need not agree.
    count: Option<u32>,
    grant: u64,
}

/// The contract of modes that share a name, without time.
#[derive(Default)]
struct Model {
    /// Of the read-write lock, and of the semaphore.
    holds: [BTreeMap<u64, Hold>; 2],
    /// For how long the oldest reader and the oldest writer have waited, and who they are.
    line: [Option<(u64, u64)>; 2],
    grants: u64,
}

impl Model {
    fn of(&mut self, side: Side) -> &mut BTreeMap<u64, Hold> {
        &mut self.holds[usize::from(side == Side::Permits)]
    }

    fn own(&mut self, who: u64, side: Side) -> Result<&mut Hold, Absence> {
        let holds = self.of(side);
        let shares = |hold: &Hold| hold.side == side && side != Side::Write;
        let absence = if holds.values().all(shares) { Absence::Gone } else { Absence::Taken };
        holds.get_mut(&who).ok_or(absence)
    }

    fn run(&mut self, op: &Op) -> Verdict {
        match *op {
            Op::Acquire { who, side, waited } => self.acquire(who, side, waited),
            Op::Convert { who, side } => self.convert(who, side),
            Op::Release { who, side, count } => match self.own(who, side) {
                Ok(hold) if (hold.side, side) == (Side::Read, Side::Write) => {
                    if count == 0 {
                        self.of(side).remove(&who);
                    }
                    Verdict::Absent(Absence::Taken)
                }
                Ok(_) if count == 0 => {
                    self.of(side).remove(&who);
                    Verdict::Done
                }
                Ok(hold) => {
                    hold.count = Some(count);
                    Verdict::Done
                }
                Err(absence) => Verdict::Absent(absence),
            },
            Op::Renew { ref whom } => Verdict::Renewed(
                whom.iter()
                    .map(|(who, side)| match self.own(*who, *side) {
                        Ok(hold) if (hold.side, *side) == (Side::Read, Side::Write) => {
                            Some(Absence::Taken)
                        }
                        own => own.err(),
                    })
                    .collect(),
            ),
            Op::Force { pool } | Op::Delete { pool } => {
                self.holds[usize::from(pool)].clear();
                if !pool {
                    self.line = [None; 2];
                }
                Verdict::Done
            }
            Op::Lapse => {
                self.holds.iter_mut().for_each(BTreeMap::clear);
                self.line = [None; 2];
                Verdict::Done
            }
        }
    }

    fn acquire(&mut self, who: u64, side: Side, waited: Option<u64>) -> Verdict {
        if let Some(hold) = self.of(side).get_mut(&who) {
            if (hold.side, side) == (Side::Read, Side::Write) {
                return Verdict::Held;
            }
            hold.count = hold.count.filter(|_| hold.side == side);
            return Verdict::Granted(if hold.side == side { hold.grant } else { ANY });
        }
        let (own, other) = (usize::from(side == Side::Write), usize::from(side != Side::Write));
        let holds = self.of(side);
        let excluded = match side {
            Side::Write => !holds.is_empty(),
            Side::Read => holds.values().any(|hold| hold.side == Side::Write),
            Side::Permits => holds.keys().map(|who| take(*who)).sum::<u32>() + take(who) > SIZE,
        };
        let mine = self.line[own].filter(|first| first.1 == who);
        let since = match (mine, waited) {
            (Some(first), Some(waited)) => first.0.max(waited),
            _ => waited.unwrap_or(0),
        };
        let older = self.line[other].is_some_and(|first| first.0 > since);
        if excluded || older && side != Side::Permits {
            let first = self.line[own].is_none_or(|first| first.1 == who || first.0 < since);
            if side != Side::Permits && waited.is_some() && first {
                self.line[own] = Some((since, who));
            }
            return Verdict::Held;
        }
        let grant = if side == Side::Permits { 0 } else { self.grant() };
        if side != Side::Permits {
            self.line[own].take_if(|first| first.1 == who);
        }
        self.of(side).insert(who, Hold { side, count: Some(1), grant });
        Verdict::Granted(grant)
    }

    fn grant(&mut self) -> u64 {
        self.grants += 1;
        self.grants
    }

    fn convert(&mut self, who: u64, side: Side) -> Verdict {
        let (alone, writer_waits) = (self.holds[0].len() == 1, self.line[1].is_some());
        let hold = match self.own(who, side) {
            Ok(hold) => *hold,
            Err(absence) => return Verdict::Absent(absence),
        };
        if (hold.side, side) == (Side::Read, Side::Write) && (!alone || writer_waits) {
            return Verdict::Held;
        }
        if hold.side == side {
            return Verdict::Granted(hold.grant);
        }
        let grant = self.grant();
        self.holds[0].insert(who, Hold { side, count: Some(1), grant });
        Verdict::Granted(grant)
    }
}

/// One run of a store: its names and holders, and the fencing tokens it has given for each grant.
struct Trial<'a> {
    subject: &'a dyn Subject,
    names: [Name; 2],
    manager: Uuid,
    fences: BTreeMap<u64, (u64, Side)>,
}

impl<'a> Trial<'a> {
    fn new(subject: &'a dyn Subject) -> Self {
        let manager = Uuid::new_v4();
        let name = |kind: &str| Name::new(&format!("{kind}:{manager}")).expect("a good name");
        let names = [name("rw"), name("pool")];
        Self { subject, names, manager, fences: BTreeMap::new() }
    }

    fn target(&self, who: u64, side: Side) -> Target {
        let (at, mode) = match side {
            Side::Read => (0, Mode::Read),
            Side::Write => (0, Mode::Write),
            Side::Permits => (1, Mode::Permits { size: SIZE, take: take(who) }),
        };
        Target::new(self.names[at].clone(), mode)
    }

    fn any(&self, pool: bool) -> Target {
        self.target(0, if pool { Side::Permits } else { Side::Read })
    }

    fn holder(&self, who: u64) -> HolderId {
        // A place belongs to a manager, so each of them is one.
        HolderId::new(Uuid::from_u128(self.manager.as_u128().wrapping_add(who.into())), who)
    }

    fn acquire(
        &self,
        (who, side): (u64, Side),
        change: impl FnOnce(Acquire) -> Acquire,
    ) -> leasehold::Result<Verdict> {
        let fencing = Fencing::new(BLOCK as u32, Some(TTL * 100));
        let request = Acquire::new(self.target(who, side), self.holder(who), TTL, TIMEOUT)
            .with_fencing(Some(fencing));
        let runtime = self.subject.runtime();
        let request = change(request);
        let acquired = runtime.block_on(async { self.subject.store().acquire(request).await })?;
        Ok(match acquired {
            Acquired::Granted { fence, .. } if side != Side::Permits => {
                Verdict::Granted(fence.expect("a fence"))
            }
            Acquired::Granted { fence, .. } => Verdict::Granted(fence.unwrap_or(0)),
            Acquired::Held { .. } => Verdict::Held,
            Acquired::NotYours(absence) => Verdict::Absent(absence),
            other => panic!("{other:?}"),
        })
    }

    fn run(&self, op: &Op) -> leasehold::Result<Verdict> {
        let (store, runtime) = (self.subject.store(), self.subject.runtime());
        match *op {
            Op::Acquire { who, side, waited } => {
                let waited = waited.map(Duration::from_secs);
                let place = waited.map(|waited| Arrival::new(waited, TTL));
                self.acquire((who, side), |request| request.with_arrival(place))
            }
            Op::Convert { who, side } => {
                self.acquire((who, side), |request| request.with_converts(true))
            }
            Op::Release { who, side, count } => {
                let target = self.target(who, side);
                let request = Release::new(target, self.holder(who), count, TIMEOUT);
                Ok(match runtime.block_on(async { store.release(request).await })? {
                    Released::Done { .. } => Verdict::Done,
                    Released::NotYours(absence) => Verdict::Absent(absence),
                    other => panic!("{other:?}"),
                })
            }
            Op::Renew { ref whom } => {
                let renewal = |(who, side): &(u64, Side)| {
                    Renewal::new(self.target(*who, *side), self.holder(*who))
                };
                let batch = RenewBatch::new(whom.iter().map(renewal).collect(), TTL, TIMEOUT);
                let renewed = runtime.block_on(RenewCall::join(store.renew(batch)))?;
                let verdicts = renewed.verdicts.into_iter().collect::<Result<_, _>>()?;
                Ok(Verdict::Renewed(verdicts))
            }
            Op::Force { pool } => {
                let request = ForceRelease::new(self.any(pool), TIMEOUT);
                runtime.block_on(store.force_release(request))?;
                // Who waits keeps his place on Redis, and not in memory.
                if !pool {
                    self.subject.forget_line(&self.names[0]);
                }
                Ok(Verdict::Done)
            }
            Op::Delete { pool } => {
                self.subject.delete_shared(&self.names[usize::from(pool)]);
                Ok(Verdict::Done)
            }
            Op::Lapse => {
                self.subject.lapse_shared(&self.names);
                Ok(Verdict::Done)
            }
        }
    }

    /// Compares verdicts; of fences, that the same grant has the same, and later ones larger ones.
    fn check(
        &mut self,
        op: &Op,
        expected: &Verdict,
        verdict: Verdict,
    ) -> Result<(), TestCaseError> {
        let label = self.subject.label();
        let (Verdict::Granted(grant), Verdict::Granted(fence)) = (expected, &verdict) else {
            prop_assert_eq!(&verdict, expected, "{}: {:?}", label, op);
            return Ok(());
        };
        let (Op::Acquire { side, .. } | Op::Convert { side, .. }) = op else { return Ok(()) };
        if *grant == ANY {
            return Ok(());
        }
        if *side == Side::Permits {
            prop_assert_eq!(*fence, 0, "{}: a permit has a fence", label);
            return Ok(());
        }
        if let Some((same, _)) = self.fences.get(grant) {
            prop_assert_eq!(same, fence, "{}: the same grant of {:?}", label, op);
            return Ok(());
        }
        if let Some((last, side)) = self.fences.last_key_value().map(|(_, last)| *last) {
            let reserved = if side == Side::Write { BLOCK } else { 1 };
            prop_assert!(*fence >= last + reserved, "{label}: {op:?}: {fence} after {last}");
        }
        self.fences.insert(*grant, (*fence, *side));
        Ok(())
    }

    /// Compares holders, modes and counts.
    fn compare(&self, model: &Model, op: &Op) -> Result<(), TestCaseError> {
        let label = self.subject.label();
        for pool in [false, true] {
            let request = Inspect::new(self.any(pool), TIMEOUT);
            let looked = self.subject.runtime().block_on(self.subject.store().inspect(request));
            let looked = looked.map_err(|error| TestCaseError::fail(error.to_string()))?;
            let holds = &model.holds[usize::from(pool)];
            let mut seen = BTreeSet::new();
            for info in looked.holders {
                let number = info.holder.rsplit(':').next().and_then(|number| number.parse().ok());
                let who: u64 = number.expect("a holder ends with its number");
                let side = match info.mode {
                    Mode::Read => Side::Read,
                    Mode::Write => Side::Write,
                    Mode::Permits { take, size } => {
                        prop_assert_eq!((take, size), (self::take(who), SIZE));
                        Side::Permits
                    }
                    other => return Err(TestCaseError::fail(format!("{other:?}"))),
                };
                let left = info.remaining;
                prop_assert!(left.is_some_and(|left| left <= TTL), "{label}: {left:?} left");
                let count = holds.get(&who).and_then(|hold| hold.count);
                if let (Side::Write, Some(count)) = (side, count) {
                    prop_assert_eq!(info.hold_count, u64::from(count), "{}: {:?}", label, op);
                }
                seen.insert((who, side));
            }
            let expected = holds.iter().map(|(who, hold)| (*who, hold.side)).collect();
            prop_assert_eq!(seen, expected, "{}: who holds after {:?}", label, op);
        }
        Ok(())
    }
}

fn agree(subjects: &[&dyn Subject], ops: &[(Op, bool)]) -> Result<(), TestCaseError> {
    let mut model = Model::default();
    let mut trials: Vec<Trial> = subjects.iter().map(|subject| Trial::new(*subject)).collect();
    for (op, twice) in ops {
        for _ in 0..=u8::from(*twice) {
            let expected = model.run(op);
            for trial in &mut trials {
                let verdict = trial.run(op);
                let verdict = verdict.map_err(|error| TestCaseError::fail(error.to_string()))?;
                trial.check(op, &expected, verdict)?;
            }
        }
        for trial in &trials {
            trial.compare(&model, op)?;
        }
    }
    Ok(())
}

#[test]
fn stores_and_the_model_of_modes_agree() {
    let memory = Memory::new();
    let redis = Redis::start();
    let subjects: &[&dyn Subject] = &[&memory, &redis];
    let config = Config { source_file: Some(file!()), ..Config::default() };
    let result = TestRunner::new(config).run(&ops(), |ops| agree(subjects, &ops));
    if let Err(failure) = result {
        panic!("{failure}");
    }
}

/// Two who came first have gone, a reader and a writer. Those who wait behind them ask again and again, and keep only places
/// of their own.
fn who_waits_behind_two_that_are_gone_is_served(subject: &dyn Subject) {
    const KEPT: Duration = Duration::from_millis(150);
    let (trial, start) = (Trial::new(subject), std::time::Instant::now());
    let now = || subject.runtime().block_on(async { tokio::time::Instant::now() });
    let (began, label) = (now(), subject.label());
    let ask = |who, side, before: u64| {
        let waited = Duration::from_millis(before) + now().duration_since(began);
        let place = Some(Arrival::new(waited, KEPT));
        trial.acquire((who, side), |request| request.with_arrival(place)).expect("an answer")
    };
    let writer = trial.acquire((0, Side::Write), |request| request).expect("an answer");
    assert!(matches!(writer, Verdict::Granted(_)), "{label}: {writer:?}");
    for (who, side, before) in [(1, Side::Read, 40), (2, Side::Write, 30)] {
        assert_eq!(ask(who, side, before), Verdict::Held, "{label}");
    }
    let (mut reader, mut second) = (ask(3, Side::Read, 20), ask(4, Side::Write, 10));
    let release = Op::Release { who: 0, side: Side::Write, count: 0 };
    assert_eq!(trial.run(&release).expect("an answer"), Verdict::Done, "{label}");
    while (&reader, &second) == (&Verdict::Held, &Verdict::Held) {
        assert!(now().duration_since(began) < KEPT * 10, "{label}: nobody is served");
        assert!(start.elapsed() < Duration::from_secs(60), "{label}: nobody is served");
        subject.runtime().block_on(async { tokio::time::sleep(KEPT / 3).await });
        (reader, second) = (ask(3, Side::Read, 20), ask(4, Side::Write, 10));
    }
    assert!(matches!(reader, Verdict::Granted(_)), "{label}: the older one is first");
}

#[test]
fn places_of_waiters_that_are_gone_are_forgotten() {
    who_waits_behind_two_that_are_gone_is_served(&Memory::new());
    who_waits_behind_two_that_are_gone_is_served(&Redis::start());
}
