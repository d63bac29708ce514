//! Compares the stores with a model that fits on a page: to any requests, in
//! any order, they give the same answers.

use leasehold::store::{
    Absence, Acquire, Acquired, Fencing, ForceRelease, HolderId, Inspect, MemoryStore, Name,
    Release, Released, RenewBatch, RenewCall, Renewal, Store, Target,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use uuid::Uuid;

pub const TTL: Duration = Duration::from_secs(30);
pub const BLOCK: u64 = 7;
pub const TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
enum Op {
    Acquire {
        who: u64,
        name: usize,
    },
    /// Also records a count.
    Release {
        who: u64,
        name: usize,
        count: u32,
    },
    Renew {
        whom: Vec<(u64, usize)>,
    },
    Force {
        name: usize,
    },
    /// An operator's deletion.
    Delete {
        name: usize,
    },
    /// All that is held expires.
    Lapse,
}

/// What a store answers, and the model.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    /// A store returns the fencing token; the model returns the number of the grant.
    Granted(u64),
    Held,
    Absent(Absence),
    Done,
    Renewed(Vec<Option<Absence>>),
    Was(bool),
}

fn ops() -> impl Strategy<Value = Vec<(Op, bool)>> {
    let (who, name) = (0..3_u64, 0..2_usize);
    let both = (who, name.clone());
    let op = prop_oneof![
        6 => both.clone().prop_map(|(who, name)| Op::Acquire { who, name }),
        11 => (both.clone(), prop_oneof![3 => Just(0), 5 => 1..5_u32])
            .prop_map(|((who, name), count)| Op::Release { who, name, count }),
        3 => prop::collection::vec(both, 1..6).prop_map(|whom| Op::Renew { whom }),
        1 => name.clone().prop_map(|name| Op::Force { name }),
        1 => name.prop_map(|name| Op::Delete { name }),
        1 => Just(Op::Lapse),
    ];
    // Every operation may run twice.
    prop::collection::vec((op, prop::bool::weighted(0.2)), 1..40)
}

/// The whole contract, without time.
#[derive(Default)]
struct Model {
    holds: BTreeMap<usize, Hold>,
    grants: u64,
}

#[derive(Clone, Copy)]
struct Hold {
    who: u64,
    count: u32,
    grant: u64,
}

impl Model {
    fn own(&mut self, who: u64, name: usize) -> Result<&mut Hold, Absence> {
        match self.holds.get_mut(&name) {
            None => Err(Absence::Gone),
            Some(hold) if hold.who != who => Err(Absence::Taken),
            Some(hold) => Ok(hold),
        }
    }

    fn run(&mut self, op: &Op) -> Verdict {
        match *op {
            Op::Acquire { who, name } => match self.own(who, name) {
                Ok(hold) => Verdict::Granted(hold.grant),
                Err(Absence::Taken) => Verdict::Held,
                Err(_) => {
                    self.grants += 1;
                    let grant = self.grants;
                    self.holds.insert(name, Hold { who, count: 1, grant });
                    Verdict::Granted(grant)
                }
            },
            Op::Release { who, name, count } => match self.own(who, name) {
                Ok(hold) if count > 0 => {
                    hold.count = count;
                    Verdict::Done
                }
                Ok(_) => {
                    self.holds.remove(&name);
                    Verdict::Done
                }
                Err(absence) => Verdict::Absent(absence),
            },
            Op::Renew { ref whom } => Verdict::Renewed(
                whom.iter().map(|(who, name)| self.own(*who, *name).err()).collect(),
            ),
            Op::Force { name } | Op::Delete { name } => {
                Verdict::Was(self.holds.remove(&name).is_some())
            }
            Op::Lapse => {
                self.holds.clear();
                Verdict::Done
            }
        }
    }
}

/// A store, and what only somebody beside it can do to it.
pub trait Subject {
    fn label(&self) -> &'static str;
    fn runtime(&self) -> &Runtime;
    fn store(&self) -> &Arc<dyn Store>;
    fn delete(&self, name: &Name) -> bool;
    fn lapse(&self, names: &[Name]);
    /// The same for names that several share, and for all that is kept of them.
    fn lapse_shared(&self, names: &[Name]);
    /// An operator deletes all that is kept of a name that several share; what is remembered of it goes too.
    fn delete_shared(&self, name: &Name);
    /// Forgets who waits for a read-write lock, where that is kept apart from it.
    fn forget_line(&self, name: &Name);
}

pub struct Memory {
    runtime: Runtime,
    store: MemoryStore,
    shared: Arc<dyn Store>,
}

impl Memory {
    pub fn new() -> Self {
        let runtime = Builder::new_current_thread().enable_all().start_paused(true).build();
        let runtime = runtime.expect("a runtime");
        let store = runtime.block_on(async { MemoryStore::new() });
        let shared = Arc::new(store.clone());
        Self { runtime, store, shared }
    }
}

impl Subject for Memory {
    fn label(&self) -> &'static str {
        "memory"
    }

    fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    fn store(&self) -> &Arc<dyn Store> {
        &self.shared
    }

    fn delete(&self, name: &Name) -> bool {
        self.runtime.block_on(async { self.store.delete(name.as_str()) })
    }

    fn lapse(&self, _: &[Name]) {
        self.runtime.block_on(tokio::time::advance(TTL));
    }

    fn lapse_shared(&self, names: &[Name]) {
        self.lapse(names);
    }

    fn delete_shared(&self, name: &Name) {
        self.delete(name);
    }

    fn forget_line(&self, _: &Name) {}
}

pub struct Redis {
    runtime: Runtime,
    server: kit::Server,
    connection: std::cell::RefCell<kit::Resp>,
    store: Arc<dyn Store>,
}

impl Redis {
    pub fn start() -> Self {
        // Not the paused runtime: its clock would jump ahead while a reply is on its way.
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let server = kit::Server::start();
        let mut connection = server.connection();
        // What has expired stays there until a script meets it: the harder case.
        connection.command(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"]);
        let store = runtime.block_on(leasehold::testing::redis_store(&server.url(), TTL));
        let store = store.expect("the server is there");
        Self { runtime, server, connection: connection.into(), store }
    }
}

impl Subject for Redis {
    fn label(&self) -> &'static str {
        "redis"
    }

    fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    fn delete(&self, name: &Name) -> bool {
        self.server.command(&["DEL", name.as_str()]).int() > 0
    }

    /// Cuts the time to live down to a millisecond: nobody wants to wait for T in each of a
    /// thousand steps. Then waits for the server's clock to pass the end, without a look at the
    /// keys, since a look would delete them.
    fn lapse(&self, names: &[Name]) {
        let mut connection = self.connection.borrow_mut();
        let mut end = 0;
        for name in names {
            connection.command(&["PEXPIRE", name.as_str(), "1"]);
            end = end.max(connection.command(&["PEXPIRETIME", name.as_str()]).int());
        }
        loop {
            let time = connection.command(&["TIME"]).list();
            if time[0].int() * 1000 + time[1].int() / 1000 > end {
                return;
            }
        }
    }

    /// Permits whose time is over stay until an acquire counts them as free, and may be renewed until then; here they are
    /// counted at once. The rest are keys.
    fn lapse_shared(&self, names: &[Name]) {
        const LAPSE: &str = "
            for _, key in ipairs(redis.call('KEYS', '*' .. ARGV[1] .. '*')) do
                local kind = redis.call('TYPE', key).ok
                if kind == 'zset' then
                    redis.call('INCRBY', key:match('^{(.*)}:timeout$'), redis.call('ZCARD', key))
                    redis.call('DEL', key)
                elseif kind == 'hash' or key:find(':rwlock_timeout:') or key:find('^leasehold_%a+:') then
                    redis.call('PEXPIRE', key, 1)
                end
            end
            return redis.call('TIME')";
        let mut connection = self.connection.borrow_mut();
        let now = |time: Vec<kit::Reply>| time[0].int() * 1000 + time[1].int() / 1000;
        let mut last = 0;
        for name in names {
            last = now(connection.command(&["EVAL", LAPSE, "0", name.as_str()]).list());
        }
        while now(connection.command(&["TIME"]).list()) <= last + 1 {}
    }

    fn delete_shared(&self, name: &Name) {
        self.server.command(&["DEL", name.as_str(), &format!("{{{name}}}:timeout")]);
        self.forget_line(name);
    }

    fn forget_line(&self, name: &Name) {
        let side = |side: &str| format!("leasehold_{side}:{{{name}}}");
        self.server.command(&["DEL", &side("read"), &side("write")]);
    }
}

/// One run of a store: its names and tokens, and the fencing tokens it has given.
struct Trial<'a> {
    subject: &'a dyn Subject,
    names: Vec<Name>,
    manager: Uuid,
    /// By name, of each grant.
    fences: Vec<BTreeMap<u64, u64>>,
}

impl<'a> Trial<'a> {
    fn new(subject: &'a dyn Subject) -> Self {
        let manager = Uuid::new_v4();
        let name = |i: usize| Name::new(&format!("model:{manager}:{i}")).expect("a good name");
        Self { subject, names: vec![name(0), name(1)], manager, fences: vec![BTreeMap::new(); 2] }
    }

    fn target(&self, name: usize) -> Target {
        Target::exclusive(self.names[name].clone())
    }

    fn token(&self, who: u64) -> HolderId {
        HolderId::new(self.manager, who)
    }

    fn acquire(&self, who: u64, name: usize) -> leasehold::Result<Acquired> {
        let fencing = Fencing::new(BLOCK as u32, Some(TTL * 2));
        let request = Acquire::new(self.target(name), self.token(who), TTL, TIMEOUT)
            .with_fencing(Some(fencing));
        self.subject.runtime().block_on(async { self.subject.store().acquire(request).await })
    }

    fn release(&self, who: u64, name: usize, count: u32) -> leasehold::Result<Released> {
        let request = Release::new(self.target(name), self.token(who), count, TIMEOUT);
        self.subject.runtime().block_on(async { self.subject.store().release(request).await })
    }

    fn run(&self, op: &Op) -> leasehold::Result<Verdict> {
        let store = self.subject.store();
        let runtime = self.subject.runtime();
        Ok(match op {
            Op::Acquire { who, name } => match self.acquire(*who, *name)? {
                Acquired::Granted { fence, .. } => Verdict::Granted(fence.expect("a fence")),
                Acquired::Held { remaining, .. } => {
                    assert!(remaining.is_some_and(|left| left <= TTL), "{remaining:?}");
                    Verdict::Held
                }
                Acquired::NotYours(absence) => Verdict::Absent(absence),
                other => panic!("{other:?}"),
            },
            Op::Release { who, name, count } => match self.release(*who, *name, *count)? {
                Released::Done { .. } => Verdict::Done,
                Released::NotYours(absence) => Verdict::Absent(absence),
                other => panic!("{other:?}"),
            },
            Op::Renew { whom } => {
                let renewal = |(who, name): &(u64, usize)| {
                    Renewal::new(self.target(*name), self.token(*who)).with_keep_fence(true)
                };
                let batch = RenewBatch::new(whom.iter().map(renewal).collect(), TTL, TIMEOUT)
                    .with_fence_retention(Some(TTL * 2));
                let renewed = runtime.block_on(RenewCall::join(store.renew(batch)))?;
                Verdict::Renewed(renewed.verdicts.into_iter().collect::<Result<_, _>>()?)
            }
            Op::Force { name } => {
                let request = ForceRelease::new(self.target(*name), TIMEOUT);
                Verdict::Was(runtime.block_on(store.force_release(request))?)
            }
            Op::Delete { name } => Verdict::Was(self.subject.delete(&self.names[*name])),
            Op::Lapse => {
                self.subject.lapse(&self.names);
                Verdict::Done
            }
        })
    }

    /// Compares verdicts; of fences, that the same grant has the same, and later ones larger ones.
    fn check(
        &mut self,
        op: &Op,
        expected: &Verdict,
        verdict: Verdict,
    ) -> Result<(), TestCaseError> {
        let label = self.subject.label();
        let (Op::Acquire { name, .. }, Verdict::Granted(grant), Verdict::Granted(fence)) =
            (op, expected, &verdict)
        else {
            prop_assert_eq!(&verdict, expected, "{}: {:?}", label, op);
            return Ok(());
        };
        let fences = &mut self.fences[*name];
        if let Some(same) = fences.get(grant) {
            prop_assert_eq!(same, fence, "{}: the same grant of {:?}", label, op);
        } else if let Some((_, last)) = fences.last_key_value() {
            prop_assert!(*fence >= last + BLOCK, "{label}: {fence} after {last}");
        }
        fences.insert(*grant, *fence);
        Ok(())
    }

    /// Compares holders and counts.
    fn compare(&self, model: &Model, op: &Op) -> Result<(), TestCaseError> {
        let label = self.subject.label();
        for i in 0..self.names.len() {
            let request = Inspect::new(self.target(i), TIMEOUT);
            let looked = self.subject.runtime().block_on(self.subject.store().inspect(request));
            let looked = looked.map_err(|error| TestCaseError::fail(error.to_string()))?;
            let holding = looked.into_holder();
            if let Some(holding) = &holding {
                let left = holding.remaining;
                prop_assert!(left.is_some_and(|left| left <= TTL), "{label}: {left:?} left");
            }
            let seen = holding.map(|holding| (holding.holder, holding.hold_count));
            let hold = model.holds.get(&i);
            let expected = hold.map(|hold| (self.token(hold.who).to_string(), hold.count.into()));
            prop_assert_eq!(seen, expected, "{}: who holds name {} after {:?}", label, i, op);
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
                let verdict =
                    trial.run(op).map_err(|error| TestCaseError::fail(error.to_string()))?;
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
fn stores_and_the_model_agree() {
    let memory = Memory::new();
    let redis = Redis::start();
    let subjects: &[&dyn Subject] = &[&memory, &redis];
    let config = Config { source_file: Some(file!()), ..Config::default() };
    let result = TestRunner::new(config).run(&ops(), |ops| agree(subjects, &ops));
    if let Err(failure) = result {
        panic!("{failure}");
    }
}
