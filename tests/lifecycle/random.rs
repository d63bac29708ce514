//! Any story at all: random steps of four handles in two processes, against a model of what each
//! of them must be told.

use super::*;
use leasehold::Lock;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

/// Handles 0 and 1 belong to one process, 2 and 3 to another.
const HANDLES: usize = 4;

fn process(handle: usize) -> usize {
    handle / 2
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Try(usize),
    /// Ends one of the leases of a handle, counted round.
    Unlock(usize, usize),
    Drop(usize, usize),
    /// Somebody deletes the key.
    Delete,
    /// One of the processes forces the lock open.
    Force(usize),
    /// Long enough for every renewal to have been tried.
    Wait,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let handle = 0..HANDLES;
    let step = prop_oneof![
        8 => handle.clone().prop_map(Step::Try),
        4 => (handle.clone(), 0..3_usize).prop_map(|(handle, i)| Step::Unlock(handle, i)),
        4 => (handle, 0..3_usize).prop_map(|(handle, i)| Step::Drop(handle, i)),
        1 => Just(Step::Delete),
        1 => (0..2_usize).prop_map(Step::Force),
        1 => Just(Step::Wait),
    ];
    prop::collection::vec(step, 1..60)
}

/// What a handle has, as far as its process knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Hold {
    leases: usize,
    lost: Option<Loss>,
}

#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Entered(u32),
    Busy,
    Done,
    Lost(Loss),
}

#[derive(Default)]
struct Model {
    /// Whose key is in the store.
    key: Option<usize>,
    holds: [Hold; HANDLES],
}

impl Model {
    fn believes(&self, handle: usize) -> bool {
        self.holds[handle].leases > 0 && self.holds[handle].lost.is_none()
    }

    /// The store tells a handle that the key is not its own, if so.
    fn find_out(&mut self, handle: usize) -> Option<Loss> {
        let loss = match self.key {
            Some(holder) if holder == handle => return None,
            Some(_) => Loss::Taken,
            None => Loss::Gone,
        };
        self.holds[handle].lost = Some(loss);
        Some(loss)
    }

    fn try_lock(&mut self, handle: usize) -> Answer {
        let hold = self.holds[handle];
        if hold.leases > 0 {
            if let Some(loss) = hold.lost.or_else(|| self.find_out(handle)) {
                return Answer::Lost(loss);
            }
        } else {
            let here = (0..HANDLES).filter(|other| process(*other) == process(handle));
            if self.key.is_some() || here.into_iter().any(|other| self.believes(other)) {
                return Answer::Busy;
            }
            self.key = Some(handle);
        }
        self.holds[handle].leases += 1;
        Answer::Entered(self.holds[handle].leases as u32)
    }

    /// One lease less, with the answer of an unlock.
    fn end(&mut self, handle: usize) -> Answer {
        let loss = self.holds[handle].lost.or_else(|| self.find_out(handle));
        self.holds[handle].leases -= 1;
        if self.holds[handle].leases == 0 {
            self.holds[handle] = Hold::default();
            if self.key == Some(handle) && loss.is_none() {
                self.key = None;
            }
        }
        loss.map_or(Answer::Done, Answer::Lost)
    }

    fn force(&mut self, from: usize) -> bool {
        for handle in 0..HANDLES {
            if process(handle) == from && self.believes(handle) {
                self.holds[handle].lost = Some(Loss::Revoked);
            }
        }
        self.key.take().is_some()
    }

    fn wait(&mut self) {
        for handle in 0..HANDLES {
            if self.believes(handle) {
                self.find_out(handle);
            }
        }
    }
}

struct Trial {
    memory: MemoryStore,
    processes: [LeaseManager; 2],
    locks: Vec<Lock>,
    leases: Vec<Vec<Lease>>,
    fence: Option<u64>,
}

impl Trial {
    fn new() -> Self {
        let memory = MemoryStore::new();
        let process = || LeaseManager::builder().store(memory.clone()).expect("good settings");
        let processes = [process(), process()];
        let locks = [0, 0, 1, 1].map(|i: usize| processes[i].lock("n")).into();
        let leases = (0..HANDLES).map(|_| Vec::new()).collect();
        Self { memory, processes, locks, leases, fence: None }
    }

    async fn try_lock(&mut self, handle: usize) -> Result<Answer, TestCaseError> {
        match self.locks[handle].try_lock().await {
            Ok(Some(lease)) => {
                let count = lease.hold_count();
                if count == 1 {
                    prop_assert!(lease.fence() > self.fence, "{:?}", lease.fence());
                    self.fence = lease.fence();
                }
                self.leases[handle].push(lease);
                Ok(Answer::Entered(count))
            }
            Ok(None) => Ok(Answer::Busy),
            Err(error) => loss(error).map(Answer::Lost),
        }
    }

    fn take(&mut self, handle: usize, i: usize) -> Option<Lease> {
        let leases = &mut self.leases[handle];
        (!leases.is_empty()).then(|| leases.remove(i % leases.len()))
    }

    /// Compares what all leases and the store say with the model.
    async fn compare(&self, model: &Model) -> Result<(), TestCaseError> {
        for (handle, (leases, hold)) in self.leases.iter().zip(&model.holds).enumerate() {
            prop_assert_eq!(leases.len(), hold.leases);
            for lease in leases {
                let said = lease.check().err().and_then(|error| error.loss());
                prop_assert_eq!(said, hold.lost, "handle {}", handle);
                prop_assert_eq!(lease.token().is_cancelled(), hold.lost.is_some());
                prop_assert_eq!(lease.hold_count() as usize, hold.leases);
            }
        }
        let there = self.processes[0].inspect("n").await;
        let there = there.expect("the store answers").map(|holding| holding.hold_count as usize);
        let expected = model.key.map(|handle| model.holds[handle].leases);
        prop_assert_eq!(there, expected, "in the store");
        Ok(())
    }
}

fn loss(error: Error) -> Result<Loss, TestCaseError> {
    error.loss().ok_or_else(|| TestCaseError::fail(format!("{error:?}")))
}

async fn play(steps: &[Step]) -> Result<(), TestCaseError> {
    let (mut trial, mut model) = (Trial::new(), Model::default());
    for step in steps {
        match *step {
            Step::Try(handle) => {
                prop_assert_eq!(trial.try_lock(handle).await?, model.try_lock(handle), "{:?}", step)
            }
            Step::Unlock(handle, i) => {
                let Some(lease) = trial.take(handle, i) else { continue };
                let answer = match lease.unlock().await {
                    Ok(()) => Answer::Done,
                    Err(error) => Answer::Lost(loss(error)?),
                };
                prop_assert_eq!(answer, model.end(handle), "{:?}", step);
            }
            Step::Drop(handle, i) => {
                let Some(lease) = trial.take(handle, i) else { continue };
                drop(lease);
                model.end(handle);
            }
            Step::Delete => {
                prop_assert_eq!(trial.memory.delete("n"), model.key.take().is_some());
            }
            Step::Force(from) => {
                let forced = trial.processes[from].force_unlock("n").await;
                prop_assert_eq!(forced.expect("the store answers"), model.force(from));
            }
            Step::Wait => {
                sleep(T).await;
                model.wait();
            }
        }
        settle().await;
        trial.compare(&model).await.map_err(|error| match error {
            TestCaseError::Fail(why) => TestCaseError::fail(format!("after {step:?}: {why}")),
            other => other,
        })?;
    }
    Ok(())
}

#[test]
fn any_story_ends_as_told() {
    let config = Config { source_file: Some(file!()), ..Config::with_cases(1000) };
    let result = TestRunner::new(config).run(&steps(), |steps| {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().start_paused(true).build().expect("a runtime");
        runtime.block_on(play(&steps))
    });
    if let Err(failure) = result {
        panic!("{failure}");
    }
}
