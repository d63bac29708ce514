//! Any story at all: random steps of four handles in two processes, against a model of what each
//! of them must be told. Replies get lost, and steps follow each other before the last is settled.

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
    /// The next reply to such a call of the first process is lost.
    Lose(Call),
}

/// For what was retried after a lost reply to be done.
const RETRIED: Duration = Duration::from_secs(3);

/// Steps, each with whether all is settled before the next.
fn steps() -> impl Strategy<Value = Vec<(Step, bool)>> {
    let handle = 0..HANDLES;
    let step = prop_oneof![
        8 => handle.clone().prop_map(Step::Try),
        4 => (handle.clone(), 0..3_usize).prop_map(|(handle, i)| Step::Unlock(handle, i)),
        4 => (handle, 0..3_usize).prop_map(|(handle, i)| Step::Drop(handle, i)),
        1 => Just(Step::Delete),
        1 => (0..2_usize).prop_map(Step::Force),
        1 => Just(Step::Wait),
        2 => prop::sample::select(vec![Call::Acquire, Call::Release, Call::Renew])
            .prop_map(Step::Lose),
    ];
    prop::collection::vec((step, prop::bool::weighted(0.6)), 1..60)
}

/// What a handle has, as far as its process knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Hold {
    leases: usize,
    lost: Option<Loss>,
    /// It was lost while something was under way, which may have been the cause.
    unsure: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Entered(u32),
    Busy,
    /// The store's answer was lost, and there was but one attempt.
    Silence,
    Done,
    Lost(Loss),
}

#[derive(Default)]
struct Model {
    /// Whose key is in the store.
    key: Option<usize>,
    holds: [Hold; HANDLES],
    /// Something may still be under way.
    unsettled: bool,
    /// A reply to a release was lost.
    lossy: bool,
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
        self.lose(handle, loss);
        Some(loss)
    }

    fn lose(&mut self, handle: usize, loss: Loss) {
        self.holds[handle].lost = Some(loss);
        self.holds[handle].unsure = self.unsettled;
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

    /// Compares an answer; before all is settled, of a loss only that it is one.
    fn hear(&self, answer: Answer, expected: Answer) -> Result<(), TestCaseError> {
        if let (true, Answer::Lost(_), Answer::Lost(_)) = (self.unsettled, &answer, &expected) {
            return Ok(());
        }
        prop_assert_eq!(answer, expected);
        Ok(())
    }

    fn force(&mut self, from: usize) -> bool {
        for handle in 0..HANDLES {
            if process(handle) == from && self.believes(handle) {
                self.lose(handle, Loss::Revoked);
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
    setup: Setup,
    processes: [LeaseManager; 2],
    locks: Vec<Lock>,
    leases: Vec<Vec<Lease>>,
    fence: Option<u64>,
}

impl Trial {
    fn new() -> Self {
        let setup = Setup::new();
        let processes = [setup.leases.clone(), setup.other()];
        let locks = (0..HANDLES).map(|handle| processes[process(handle)].lock("n")).collect();
        let leases = (0..HANDLES).map(|_| Vec::new()).collect();
        let trial = Self { setup, processes, locks, leases, fence: None };
        trial.be_slow();
        trial
    }

    /// Calls of the first process overlap with what comes next.
    fn be_slow(&self) {
        self.setup.faults.add(Rule::new(Fault::Delay(Duration::from_millis(3))));
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
            Err(error) if error.kind() == ErrorKind::Unavailable => Ok(Answer::Silence),
            Err(error) => loss(error).map(Answer::Lost),
        }
    }

    fn take(&mut self, handle: usize, i: usize) -> Option<Lease> {
        let leases = &mut self.leases[handle];
        (!leases.is_empty()).then(|| leases.remove(i % leases.len()))
    }

    /// Lets all that is under way end. Meanwhile renewals may find out what the model knows, or not
    /// yet.
    async fn settle(&self, model: &mut Model) {
        sleep(RETRIED).await;
        for (handle, leases) in self.leases.iter().enumerate() {
            let found = leases.first().and_then(|lease| lease.check().err()?.loss());
            if found.is_some() && model.believes(handle) {
                // Who had the name at that moment is not known.
                model.unsettled = true;
                model.find_out(handle);
            }
            let hold = &mut model.holds[handle];
            if std::mem::take(&mut hold.unsure) && hold.lost.is_some() {
                hold.lost = found;
            }
        }
        model.unsettled = false;
    }

    /// Compares what all leases and the store say with the model.
    async fn compare(&self, model: &Model) -> Result<(), TestCaseError> {
        for (handle, leases) in self.leases.iter().enumerate() {
            let hold = model.holds[handle];
            prop_assert_eq!(leases.len(), hold.leases);
            for lease in leases {
                let said = lease.check().err().and_then(|error| error.loss());
                prop_assert_eq!(said, hold.lost, "handle {}", handle);
                prop_assert_eq!(lease.token().is_cancelled(), hold.lost.is_some());
                prop_assert_eq!(lease.hold_count() as usize, hold.leases);
            }
        }
        let there = self.setup.recorded("n").await.map(|count| count as usize);
        let expected = model.key.map(|handle| model.holds[handle].leases);
        prop_assert_eq!(there, expected, "in the store");
        Ok(())
    }

    async fn play(&mut self, model: &mut Model, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Try(handle) => {
                let before = (model.key, model.holds);
                let expected = model.try_lock(handle);
                let answer = self.try_lock(handle).await?;
                // Somebody's release may still be on its way; and a lost reply changes nothing.
                let busy = answer == Answer::Busy && model.unsettled;
                if answer != expected && (busy || answer == Answer::Silence) {
                    (model.key, model.holds) = before;
                    if answer == Answer::Silence {
                        // What it may have been granted is given back in the background.
                        self.settle(model).await;
                    }
                } else {
                    model.hear(answer, expected)?;
                }
            }
            Step::Unlock(handle, i) => {
                let Some(lease) = self.take(handle, i) else { return Ok(()) };
                let answer = match lease.unlock().await {
                    Ok(()) => Answer::Done,
                    Err(error) => Answer::Lost(loss(error)?),
                };
                let known = model.holds[handle];
                let expected = model.end(handle);
                // When a reply was lost, nobody can tell whether the release or somebody else ended it.
                let unknown = known.lost.is_none() || known.unsure;
                let unsure = model.lossy && process(handle) == 0 && unknown;
                if unsure && answer == Answer::Done {
                    model.holds[handle].lost = None;
                } else {
                    model.hear(answer, expected)?;
                }
            }
            Step::Drop(handle, i) => {
                if self.take(handle, i).is_some() {
                    let known = model.holds[handle].lost;
                    model.unsettled = true;
                    model.end(handle);
                    if model.lossy && process(handle) == 0 && model.holds[handle].leases > 0 {
                        // Whether it finds out a loss is seen when it is settled.
                        model.holds[handle].lost = known;
                    }
                }
            }
            Step::Delete => {
                let deleted = self.setup.memory.delete("n");
                let expected = model.key.take().is_some();
                prop_assert!(deleted == expected || model.unsettled);
            }
            Step::Force(from) => {
                let forced = self.processes[from].force_unlock("n").await;
                let (forced, expected) = (forced.expect("an answer"), model.force(from));
                prop_assert!(forced == expected || model.unsettled);
            }
            Step::Wait => {
                sleep(T).await;
                model.wait();
            }
            Step::Lose(call) => {
                // One at a time: who is not answered again and again is told so.
                self.setup.faults.heal();
                self.be_slow();
                self.setup.faults.add(Rule::new(Fault::LoseReply).on(call).times(1));
                model.lossy |= call == Call::Release;
            }
        }
        Ok(())
    }
}

fn loss(error: Error) -> Result<Loss, TestCaseError> {
    error.loss().ok_or_else(|| TestCaseError::fail(format!("{error:?}")))
}

async fn tell(steps: &[(Step, bool)]) -> Result<(), TestCaseError> {
    let (mut trial, mut model) = (Trial::new(), Model::default());
    for (i, (step, settled)) in steps.iter().enumerate() {
        let context = |error| match error {
            TestCaseError::Fail(why) => TestCaseError::fail(format!("step {i}, {step:?}: {why}")),
            other => other,
        };
        trial.play(&mut model, *step).await.map_err(context)?;
        if *settled {
            trial.settle(&mut model).await;
            trial.compare(&model).await.map_err(context)?;
        }
    }
    Ok(())
}

#[test]
fn any_story_ends_as_told() {
    let config = Config { source_file: Some(file!()), ..Config::default() };
    let result = TestRunner::new(config).run(&steps(), |steps| {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().start_paused(true).build().expect("a runtime");
        runtime.block_on(tell(&steps))
    });
    if let Err(failure) = result {
        panic!("{failure}");
    }
}

/// Found by chance: the reply to the last release is lost, and somebody else has deleted the key, but
/// whether before or after that release nobody can tell.
#[test]
fn a_release_without_an_answer_counts_though_the_key_was_deleted() {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().start_paused(true).build().expect("a runtime");
    let steps = [
        Step::Try(0),
        Step::Try(0),
        Step::Delete,
        Step::Drop(0, 0),
        Step::Lose(Call::Release),
        Step::Unlock(0, 0),
    ];
    let told = runtime.block_on(tell(&steps.map(|step| (step, false))));
    told.expect("as the model has it");
}
