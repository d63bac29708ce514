//! Any story at all: random steps of four handles in two processes, against a model of what each
//! of them must be told. Replies get lost, and steps follow each other before the last is settled.
//! A story and its seed, which decides the jitter, are all there is to it: told again, it is the same.

use super::*;
use leasehold::Lock;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestError, TestRunner};

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
    /// An operator deletes the key.
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
    /// Where among the keys its own begins.
    since: usize,
    /// The count that the store surely had when it last had the key.
    recorded: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Entered(usize),
    Busy,
    /// The store's answer was lost, and there was but one attempt.
    Silence,
    Done,
    Lost(Loss),
}

#[derive(Clone, Copy, Debug)]
enum Expected {
    Just(Answer),
    /// The key is not the handle's own, which its process learns by this call.
    Loss,
}

struct Model {
    /// The handles that have had the key in the store, one after the other.
    keys: Vec<Option<usize>>,
    /// The first of them that may have been there since the last look at the leases.
    recent: usize,
    holds: [Hold; HANDLES],
    /// Something may still be under way.
    unsettled: bool,
    /// A reply to a release was lost.
    lossy: bool,
}

impl Model {
    fn new() -> Self {
        let holds = Default::default();
        Self { keys: vec![None], recent: 0, holds, unsettled: false, lossy: false }
    }

    /// The handle whose key is in the store.
    fn key(&self) -> Option<usize> {
        *self.keys.last().expect("the first is never taken out")
    }

    fn believes(&self, handle: usize) -> bool {
        self.holds[handle].leases > 0 && self.holds[handle].lost.is_none()
    }

    /// A handle has found out a loss. One of the recent keys must be its cause.
    fn learn(&mut self, handle: usize, loss: Loss) -> Result<(), TestCaseError> {
        let hold = &mut self.holds[handle];
        let recent = &self.keys[self.recent.max(hold.since)..];
        let caused = recent.iter().any(|key| match key {
            None => matches!(loss, Loss::Gone | Loss::Revoked),
            Some(holder) => *holder != handle && matches!(loss, Loss::Taken | Loss::Revoked),
        });
        prop_assert!(caused, "handle {handle}: {loss:?}, with the keys {recent:?}");
        hold.lost = Some(loss);
        Ok(())
    }

    fn hear(
        &mut self,
        handle: usize,
        answer: Answer,
        expected: Expected,
    ) -> Result<(), TestCaseError> {
        match (answer, expected) {
            (Answer::Lost(loss), Expected::Loss) => self.learn(handle, loss),
            (_, Expected::Loss) => Err(TestCaseError::fail(format!("{answer:?}, not a loss"))),
            (_, Expected::Just(expected)) => {
                prop_assert_eq!(answer, expected);
                Ok(())
            }
        }
    }

    /// A nested call asks nothing of the store.
    fn try_lock(&self, handle: usize) -> Answer {
        let hold = self.holds[handle];
        let here = (0..HANDLES).filter(|other| process(*other) == process(handle));
        match hold.lost {
            Some(loss) => Answer::Lost(loss),
            None if hold.leases > 0 => Answer::Entered(hold.leases + 1),
            None if self.key().is_some() => Answer::Busy,
            None if here.into_iter().any(|other| self.believes(other)) => Answer::Busy,
            None => Answer::Entered(1),
        }
    }

    fn entered(&mut self, handle: usize) {
        let hold = &mut self.holds[handle];
        hold.leases += 1;
        if hold.leases == 1 {
            (hold.since, hold.recorded) = (self.keys.len(), Some(1));
            self.keys.push(Some(handle));
        } else {
            self.count_changes(handle);
        }
    }

    /// A record of a new count is under way.
    fn count_changes(&mut self, handle: usize) {
        self.unsettled = true;
        if self.key() == Some(handle) {
            self.holds[handle].recorded = None;
        }
    }

    fn unlock(&self, handle: usize) -> Expected {
        match self.holds[handle].lost {
            Some(loss) => Expected::Just(Answer::Lost(loss)),
            None if self.holds[handle].leases > 1 => Expected::Just(Answer::Done),
            None if self.key() != Some(handle) => Expected::Loss,
            None => Expected::Just(Answer::Done),
        }
    }

    /// One lease less.
    fn end(&mut self, handle: usize) {
        self.holds[handle].leases -= 1;
        if self.holds[handle].leases == 0 {
            let hold = std::mem::take(&mut self.holds[handle]);
            if self.key() == Some(handle) && hold.lost.is_none() {
                self.keys.push(None);
            }
        } else {
            self.count_changes(handle);
        }
    }

    /// All that was under way has ended. A record that found no key was told so.
    fn settled(&mut self) -> Result<(), TestCaseError> {
        self.unsettled = false;
        for handle in 0..HANDLES {
            let (believes, own) = (self.believes(handle), self.key() == Some(handle));
            // A record of which the reply is lost is not sent again.
            let is_sure = !(self.lossy && process(handle) == 0);
            let hold = &mut self.holds[handle];
            let differs = hold.recorded.is_some_and(|recorded| recorded != hold.leases);
            prop_assert!(!(believes && !own && differs && is_sure), "handle {handle} was not told");
            if believes && own {
                hold.recorded = Some(hold.leases);
            }
        }
        Ok(())
    }

    /// Returns whether there was a key.
    fn delete(&mut self) -> bool {
        let there = self.key().is_some();
        self.keys.push(None);
        there
    }

    fn force(&mut self, from: usize) -> bool {
        for handle in 0..HANDLES {
            if process(handle) == from && self.believes(handle) {
                self.holds[handle].lost = Some(Loss::Revoked);
            }
        }
        self.delete()
    }

    /// Checks that no handle believes in a key that is not its own.
    fn check_seen(&self) -> Result<(), TestCaseError> {
        for handle in 0..HANDLES {
            let right = !self.believes(handle) || self.key() == Some(handle);
            prop_assert!(right, "handle {handle} was not told");
        }
        Ok(())
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
    /// With the jitter of both processes from `seed`.
    fn new(seed: u64) -> Self {
        let setup = Setup::with(LeaseManager::builder().seed(seed));
        let other = LeaseManager::builder().seed(!seed).build(setup.memory.clone());
        let processes = [setup.leases.clone(), other.expect("good settings")];
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
                Ok(Answer::Entered(count as usize))
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

    /// Tells the model what renewals, and what else is under way, have found out by now: they do so at any
    /// moment of a step that takes time.
    fn look(&self, model: &mut Model) -> Result<(), TestCaseError> {
        for (handle, leases) in self.leases.iter().enumerate() {
            let found = leases.first().and_then(|lease| lease.check().err()?.loss());
            if let (true, Some(loss)) = (model.believes(handle), found) {
                model.learn(handle, loss)?;
            }
        }
        if !model.unsettled {
            model.recent = model.keys.len() - 1;
        }
        Ok(())
    }

    /// Lets all that is under way end.
    async fn settle(&self, model: &mut Model) -> Result<(), TestCaseError> {
        sleep(RETRIED).await;
        self.look(model)?;
        model.settled()?;
        self.look(model)
    }

    /// Compares all leases and the store with the model.
    async fn compare(&self, model: &Model) -> Result<(), TestCaseError> {
        for (handle, leases) in self.leases.iter().enumerate() {
            let hold = model.holds[handle];
            prop_assert_eq!(leases.len(), hold.leases);
            for lease in leases {
                let said = lease.check().err().and_then(|error| error.loss());
                prop_assert_eq!(said, hold.lost, "handle {}", handle);
                prop_assert_eq!(lease.cancellation_token().is_cancelled(), hold.lost.is_some());
                prop_assert_eq!(lease.hold_count() as usize, hold.leases);
            }
        }
        let there = self.setup.recorded("n").await.map(|count| count as usize);
        let expected = model.key().map(|handle| model.holds[handle].leases);
        prop_assert_eq!(there, expected, "in the store");
        Ok(())
    }

    async fn play(&mut self, model: &mut Model, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Try(handle) => {
                let expected = model.try_lock(handle);
                let answer = self.try_lock(handle).await?;
                if answer == Answer::Silence {
                    if let Answer::Entered(1) = expected {
                        // A grant without an answer is released in the background.
                        model.keys.extend([Some(handle), None]);
                    }
                    return self.settle(model).await;
                }
                if answer == Answer::Busy && model.unsettled {
                    // A release may still be on its way.
                    return Ok(());
                }
                model.hear(handle, answer, Expected::Just(expected))?;
                if let Answer::Entered(_) = answer {
                    model.entered(handle);
                }
            }
            Step::Unlock(handle, i) => {
                let Some(lease) = self.take(handle, i) else { return Ok(()) };
                let expected = model.unlock(handle);
                let answer = match lease.unlock().await {
                    Ok(()) => Answer::Done,
                    Err(error) => Answer::Lost(loss(error)?),
                };
                // When a reply was lost, a release that finds no key may have deleted it itself.
                let unknown = matches!(expected, Expected::Loss) && answer == Answer::Done;
                if !(unknown && model.lossy && process(handle) == 0) {
                    model.hear(handle, answer, expected)?;
                }
                model.end(handle);
            }
            Step::Drop(handle, i) => {
                if self.take(handle, i).is_some() {
                    model.unsettled = true;
                    model.end(handle);
                }
            }
            Step::Delete => {
                let (deleted, expected) = (self.setup.memory.delete("n"), model.delete());
                prop_assert!(deleted == expected || model.unsettled);
            }
            Step::Force(from) => {
                let expected = model.force(from);
                let forced =
                    self.processes[from].force_unlock("n", "test").await.expect("an answer");
                prop_assert!(forced == expected || model.unsettled);
            }
            Step::Wait => {
                sleep(T).await;
                self.look(model)?;
                model.check_seen()?;
            }
            Step::Lose(call) => {
                // One at a time: a call that is not answered again and again says so.
                self.setup.faults.heal();
                self.be_slow();
                self.setup.faults.add(Rule::new(Fault::LoseReply).on(call).times(1));
                model.lossy |= call == Call::Release;
            }
        }
        self.look(model)
    }
}

fn loss(error: Error) -> Result<Loss, TestCaseError> {
    error.loss().ok_or_else(|| TestCaseError::fail(format!("{error:?}")))
}

/// Runs a story, in which all chance comes from `seed`, and returns how long it took.
fn replay(seed: u64, steps: &[(Step, bool)]) -> Result<Duration, TestCaseError> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().start_paused(true).build().expect("a runtime");
    runtime.block_on(async {
        let start = Instant::now();
        let (mut trial, mut model) = (Trial::new(seed), Model::new());
        for (i, (step, settled)) in steps.iter().enumerate() {
            let context = |error| match error {
                TestCaseError::Fail(why) => {
                    TestCaseError::fail(format!("step {i}, {step:?}: {why}"))
                }
                other => other,
            };
            trial.play(&mut model, *step).await.map_err(context)?;
            if *settled {
                trial.settle(&mut model).await.map_err(context)?;
                trial.compare(&model).await.map_err(context)?;
            }
        }
        Ok(start.elapsed())
    })
}

#[test]
fn story_ends_as_the_model_has_it() {
    // What fails is printed as a whole: no file is left behind.
    let config = Config { failure_persistence: None, ..Config::default() };
    let stories = (any::<u64>().no_shrink(), steps());
    let result =
        TestRunner::new(config).run(&stories, |(seed, steps)| replay(seed, &steps).map(|_| ()));
    match result {
        Ok(()) => {}
        Err(TestError::Fail(why, (seed, steps))) => {
            panic!("{why}\nto tell it again, put it among the others:\n({seed}, &{steps:?})")
        }
        Err(TestError::Abort(why)) => panic!("{why}"),
    }
}

/// Found by chance.
#[test]
fn stories_that_once_failed_end_well() {
    use Call::*;
    use Step::*;
    let stories: &[(u64, &[(Step, bool)])] = &[
        // The reply to the last release is lost, and the key was deleted, but whether before or after that
        // release cannot be told.
        (
            0,
            &[
                (Try(0), false),
                (Try(0), false),
                (Delete, false),
                (Drop(0, 0), false),
                (Lose(Release), false),
                (Unlock(0, 0), false),
            ],
        ),
        // A renewal finds a loss out while a call of another handle is under way, before that changes the key.
        (
            11002493915882200532,
            &[
                (Try(3), false),
                (Try(3), false),
                (Try(0), true),
                (Lose(Acquire), false),
                (Try(0), true),
                (Try(0), true),
                (Try(3), true),
                (Unlock(0, 0), true),
                (Delete, true),
                (Try(0), false),
                (Unlock(3, 0), false),
            ],
        ),
        // The same while a release is tried again; then another handle of that process may enter.
        (
            3975394373280096789,
            &[
                (Try(2), true),
                (Delete, false),
                (Lose(Release), true),
                (Try(1), false),
                (Unlock(3, 0), true),
                (Unlock(1, 0), false),
                (Try(3), false),
            ],
        ),
    ];
    for (seed, steps) in stories {
        if let Err(failure) = replay(*seed, steps) {
            panic!("({seed}, &{steps:?}): {failure}");
        }
    }
}

#[test]
fn story_takes_the_same_time_again() {
    // The release is tried again after a pause with jitter.
    let steps =
        [(Step::Try(0), true), (Step::Lose(Call::Release), true), (Step::Unlock(0, 0), false)];
    let time = |seed| replay(seed, &steps).expect("as the model has it");
    assert_eq!(time(1), time(1));
    assert_ne!(time(1), time(2));
}
