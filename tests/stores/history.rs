//! Concurrent histories of a store: clients that run operations at once, and the check that what they were told is what
//! they would have been told had each operation run at one instant between its call and its return.
//!
//! Expiry is an operation too, whose window opens at the earliest end of the time to live, and never closes.
//! So is a request whose answer was lost: it may run at any time after its call.
//!
//! `LEASEHOLD_SEED` replays the choices of a run that failed, though not its timing.

use leasehold::store::{Name, Store};
use leasehold::{ErrorKind, Fate};
use porcupine_rs::{CheckResult, Model, Operation, check_operations_timeout};
use std::env;
use std::fmt::Debug;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::runtime::{Builder, Runtime};
use uuid::Uuid;

pub const TTL: Duration = Duration::from_millis(60);
/// A server counts whole milliseconds, and its clock is not ours.
pub const EARLY: Duration = Duration::from_millis(2);
pub const BLOCK: u64 = 4;
pub const TIMEOUT: Duration = Duration::from_millis(500);
const CLIENTS: u64 = 4;
/// The number of names under test at once.
const NAMES: usize = 4;

/// What a client asked for, and was told.
pub trait Op: Clone + Debug {
    /// Returns the holder whose time to live it may have set.
    fn keeps(&self) -> Option<u64>;

    /// Returns the holder that it has released for sure.
    fn releases(&self) -> Option<u64>;

    /// Returns whether it changes nothing.
    fn is_look(&self) -> bool;

    /// Returns the end of the time to live that a call has set.
    fn lapse(call: i64) -> Self;
}

/// When an operation was called, and when it returned: never, if its answer is unknown.
#[derive(Clone, Debug)]
pub struct Record<O> {
    pub call: i64,
    pub returned: Option<i64>,
    pub op: O,
}

impl<O: Op> Record<O> {
    /// Whether a time to live of `who`, which was set before `returned`, is surely of no account by `end`.
    fn ends(&self, who: u64, returned: i64, end: i64) -> bool {
        let sure = self.call > returned && self.returned.is_some_and(|returned| returned < end);
        sure && (self.op.releases() == Some(who) || self.op.keeps() == Some(who))
    }
}

pub fn nanos(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).expect("a test is shorter than 292 years")
}

/// Whether the model accepts the history of one name, with the expiries that there may have been.
pub fn is_linearizable<M, O>(history: &[Record<O>]) -> bool
where
    M: Model<Op = (i64, O), Metadata = ()>,
    O: Op,
{
    let operation = |call, returned: Option<i64>, op| Operation::<M> {
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
        let Some(who) = record.op.keeps() else { continue };
        let end = record.call + nanos(TTL - EARLY);
        let superseded = |returned| history.iter().any(|other| other.ends(who, returned, end));
        // Not one more than needed: each doubles the ways to look at.
        if !record.returned.is_some_and(superseded) {
            operations.push(operation(end, None, O::lapse(record.call)));
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

    /// Waits for a short time, and now and then until a time to live is over.
    pub async fn pause(&mut self) {
        match self.below(10) {
            0 => tokio::time::sleep(TTL + TTL / 5).await,
            1..7 => tokio::time::sleep(Duration::from_micros(self.below(3000))).await,
            _ => {}
        }
    }
}

/// One name, and what all clients were told of it.
pub struct Trial<O> {
    pub store: Arc<dyn Store>,
    pub name: Name,
    pub manager: Uuid,
    /// Its place among the names under test at once.
    pub number: usize,
    start: Instant,
    history: Mutex<Vec<Record<O>>>,
}

impl<O: Op> Trial<O> {
    fn new(store: Arc<dyn Store>, prefix: &str, number: usize) -> Arc<Self> {
        let manager = Uuid::new_v4();
        let name = Name::new(&format!("{prefix}{manager}")).expect("a good name");
        let (start, history) = (Instant::now(), Mutex::default());
        Arc::new(Self { store, name, manager, number, start, history })
    }

    /// Awaits an operation and keeps what came of it; returns what was told.
    pub async fn keep(
        &self,
        op: O,
        asked: impl Future<Output = leasehold::Result<O>>,
    ) -> Option<O> {
        let call = nanos(self.start.elapsed());
        let result = asked.await;
        let now = nanos(self.start.elapsed());
        let (returned, op) = match result {
            Ok(op) => (Some(now), op),
            Err(error) if error.fate() == Fate::NotExecuted => return None,
            Err(error) if error.kind() == ErrorKind::Unavailable => (None, op),
            Err(error) => panic!("{op:?}: {error}"),
        };
        // A look that got no answer tells nothing.
        if returned.is_none() && op.is_look() {
            return None;
        }
        let record = Record { call, returned, op: op.clone() };
        self.history.lock().unwrap_or_else(PoisonError::into_inner).push(record);
        returned.map(|_| op)
    }

    fn history(&self) -> Vec<Record<O>> {
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

/// Runs many short histories, each of a name of its own, and returns them. The model must accept each.
pub async fn rounds<M, O, F>(
    (store, prefix): (Arc<dyn Store>, &str),
    count: usize,
    during: impl Fn(usize),
    client: impl Fn(Arc<Trial<O>>, u64, Dice) -> F,
) -> Vec<Vec<Record<O>>>
where
    M: Model<Op = (i64, O), Metadata = ()>,
    O: Op + Send + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let seed = seed();
    println!("LEASEHOLD_SEED={seed}");
    let mut histories = Vec::new();
    for round in 0..count {
        let mut trials = Vec::new();
        let mut clients = tokio::task::JoinSet::new();
        during(round);
        for name in 0..NAMES {
            let trial = Trial::new(Arc::clone(&store), prefix, name);
            for number in 0..CLIENTS {
                let dice = Dice::new(seed + (round * 1000 + name * 10) as u64 + number);
                clients.spawn(client(Arc::clone(&trial), number, dice));
            }
            trials.push(trial);
        }
        while let Some(client) = clients.join_next().await {
            client.expect("a client that does not panic");
        }
        for trial in trials {
            let history = trial.history();
            assert!(is_linearizable::<M, O>(&history), "LEASEHOLD_SEED={seed}: {history:#?}");
            histories.push(history);
        }
    }
    histories
}

/// Returns operations one after the other, a millisecond apart, each with its own duration of half of one.
pub fn one_by_one<O: Clone>(ops: &[O]) -> Vec<Record<O>> {
    let at = |i: usize| i as i64 * 1_000_000;
    let record = |(i, op): (usize, &O)| Record {
        call: at(i),
        returned: Some(at(i) + 500_000),
        op: op.clone(),
    };
    ops.iter().enumerate().map(record).collect()
}
