//! Runs a test in a world for each seed, and reports the first one that breaks a rule.

use super::World;
use super::dice::Dice;
use super::judge::{Breach, Seen, Verdict};
use super::still::Still;
use super::storm::{Storm, Strike};
use super::story::{Seconds, Story};
use super::watch;
use crate::error::Result;
use crate::manager::{Builder, LeaseManager};
use std::any::Any;
use std::env;
use std::error::Error;
use std::fmt;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::timeout;

/// The variable that chooses one seed.
const VARIABLE: &str = "LEASEHOLD_SEED";
/// So that the faults of a seed do not depend on the number of managers.
const STORM: u64 = 0x73_74_6f_72_6d;
const FAULTS_SHOWN: usize = 6;

/// The worlds of a test, one for each seed: see [`World::seeds`] and [`World::by_hand`].
#[derive(Clone, Debug)]
#[must_use = "no world begins before `run`"]
pub struct Seeds {
    seeds: Vec<u64>,
    managers: usize,
    settings: Builder,
    /// What a seed may choose; none where only the test strikes.
    strikes: Vec<Strike>,
    limit: Duration,
    prints: bool,
}

impl Seeds {
    pub(super) fn new(seeds: Vec<u64>) -> Self {
        let text = env::var(VARIABLE).ok().filter(|text| !text.is_empty());
        let chosen = text.map(|text| match text.parse() {
            Ok(seed) => vec![seed],
            Err(_) => panic!("{VARIABLE} must be the number of a seed, not {text:?}"),
        });
        let prints = chosen.is_some();
        let strikes = Strike::ALL.to_vec();
        Self { seeds: chosen.unwrap_or(seeds), strikes, prints, ..Self::by_hand() }
    }

    pub(super) fn by_hand() -> Self {
        Self {
            seeds: vec![0],
            managers: 2,
            settings: LeaseManager::builder(),
            strikes: Vec::new(),
            limit: Duration::from_secs(60 * 60),
            prints: false,
        }
    }

    /// Sets the number of managers, each a process of its own; 2 by default.
    ///
    /// # Panics
    ///
    /// Panics if it is 0.
    pub fn managers(self, managers: usize) -> Self {
        assert!(managers > 0, "a world has at least one manager, not 0");
        Self { managers, ..self }
    }

    /// Sets the settings of the managers: those of your service. By default they are those of
    /// [`LeaseManager::builder`](crate::LeaseManager::builder). The seed sets [`Builder::seed`](crate::Builder::seed). Those that
    /// a memory store does not have are ignored: of connections to servers, such as [`prefix`](crate::Builder::prefix) and
    /// [`layout`](crate::Builder::layout), [`on_overrun`](crate::Builder::on_overrun), and
    /// [`dedicated_thread`](crate::Builder::dedicated_thread).
    ///
    /// Faults come at each quarter of a TTL on the average, and end after ten. Work that lasts for less than the
    /// [grace](crate::Builder::grace) is never too long, and a service whose work is over in some seconds meets few faults in
    /// its work: let it work for several TTLs, or give it a shorter [`ttl`](crate::Builder::ttl).
    ///
    /// ```
    /// use leasehold::{LeaseManager, testing::World};
    /// use std::time::Duration;
    ///
    /// let worlds = World::seeds(0..20).settings(LeaseManager::builder().ttl(Duration::from_secs(5)));
    /// # let _ = worlds;
    /// ```
    pub fn settings(self, settings: Builder) -> Self {
        Self { settings, ..self }
    }

    /// Sets the faults that a seed may choose; all of them by default. Each seed chooses some of these, and strikes with them
    /// for ten TTLs. After that all is healed, so that the code under test can come to its end.
    pub fn only(self, strikes: impl IntoIterator<Item = Strike>) -> Self {
        Self { strikes: strikes.into_iter().collect(), ..self }
    }

    /// Sets the time that one run may take, in virtual time; an hour by default. A run that takes longer fails as
    /// [`Unfinished`](Breach::Unfinished). Give a service that never ends a `tokio::time::timeout`.
    pub fn limit(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    /// Runs a test in each world. It is in no process, so that nothing freezes it.
    ///
    /// The world ends with the future, or with the verdict of the judge. Work that then goes on under a lost lease has its
    /// [grace](crate::Builder::grace) first.
    ///
    /// ```
    /// use leasehold::testing::World;
    /// use std::time::Duration;
    ///
    /// let run = World::by_hand().managers(2).run(|world| async move {
    ///     let lease = world.manager(0).lock("orders").lock().await?;
    ///     world.expire("orders");
    ///     let _next = world.manager(1).lock("orders").lock().await?; // the store has forgotten the first lease
    ///     lease.lost().await;
    ///     Ok(())
    /// });
    /// run.unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// A [`Failure`], of the first seed that breaks a rule, panics or returns an error; or of the last one, as
    /// [`NoWork`](Breach::NoWork), if no seed has reported work. Its `Debug` is the whole story, so `unwrap` prints it.
    ///
    /// # Panics
    ///
    /// Panics in a tokio runtime, as in `#[tokio::test]`; if there are no seeds; and if the managers refuse their
    /// [settings](Seeds::settings).
    pub fn run<T>(self, test: impl Fn(World) -> T) -> Result<(), Failure>
    where
        T: Future<Output = Result<()>>,
    {
        assert!(
            Handle::try_current().is_err(),
            "a world makes its own runtime: call `run` in a `#[test]` without tokio's"
        );
        assert!(!self.seeds.is_empty(), "there are no seeds, so no world would begin");
        let mut seen = Seen::default();
        let last = self.seeds.len() - 1;
        for (at, seed) in self.seeds.iter().enumerate() {
            let Played { verdict, story, seen: here } = self.play(*seed, &test);
            if self.prints {
                println!("seed {seed}:\n{}", story.all_lines());
            }
            seen = seen.and(here);
            let nothing = at == last && self.must_show_work() && seen.shows_nothing();
            let Some(verdict) = verdict.or_else(|| nothing.then(|| self.no_work())) else {
                continue;
            };
            let again = self.play(*seed, &test).story;
            let differs = story.first_difference(&again);
            let seed = self.has_chance().then_some(*seed);
            return Err(Failure(Box::new(Report { seed, verdict, story, differs })));
        }
        Ok(())
    }

    /// Returns whether the seed decides anything.
    fn has_chance(&self) -> bool {
        !self.strikes.is_empty()
    }

    /// Returns whether a run without work shows nothing. One seed of many may have none, and a test by hand checks for itself.
    fn must_show_work(&self) -> bool {
        self.has_chance() && !self.prints
    }

    fn no_work(&self) -> Verdict {
        let seeds = self.seeds.len();
        let text = format!(
            "no code has reported work, in any of the seeds ({seeds}): this is the story of the last"
        );
        Verdict { breach: Breach::NoWork, text }
    }

    /// Runs one seed from its beginning to its end.
    pub(super) fn play<T>(&self, seed: u64, test: &impl Fn(World) -> T) -> Played
    where
        T: Future<Output = Result<()>>,
    {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = match runtime.enable_time().start_paused(true).build() {
            Ok(runtime) => runtime,
            Err(error) => panic!("no runtime for the world: {error}"),
        };
        runtime.block_on(async {
            let world = World::new(seed, self.managers, &self.settings);
            if self.has_chance() {
                world.begin_storm(Storm::new(Dice::new(seed ^ STORM), &self.strikes, world.ttl()));
            }
            let run = caught(Still::watch(&world, async { test(world.clone()).await }));
            let end = tokio::select! {
                biased;
                () = world.judged() => None,
                end = timeout(self.limit, run) => Some(end),
            };
            match end {
                None => {}
                Some(Ok(Ok(Ok(())))) => drop(timeout(self.limit, watch::settle_all(&world)).await),
                Some(Ok(Ok(Err(error)))) => world.fail(Breach::Error, error.to_string()),
                Some(Ok(Err(panic))) => world.fail(Breach::Panic, panic.text()),
                Some(Err(_)) => {
                    let limit = Seconds(self.limit);
                    world.fail(Breach::Unfinished, format!("it is not finished after {limit}"));
                }
            }
            world.played()
        })
    }
}

/// The end of one run.
pub(super) struct Played {
    pub(super) verdict: Option<Verdict>,
    pub(super) story: Story,
    pub(super) seen: Seen,
}

/// The payload of a panic.
pub(super) struct Panic(pub(super) Box<dyn Any + Send>);

impl Panic {
    pub(super) fn text(&self) -> String {
        let text = self.0.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| self.0.downcast_ref::<String>().cloned());
        text.map_or("a panic".to_owned(), |text| format!("panicked: {text}"))
    }
}

/// Returns the panic of a future in place of its output.
pub(super) async fn caught<F: Future>(future: F) -> Result<F::Output, Panic> {
    let mut future = pin!(future);
    poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
        Ok(poll) => poll.map(Ok),
        Err(panic) => Poll::Ready(Err(Panic(panic))),
    })
    .await
}

/// A run in which a rule was broken. Its `Display` and its `Debug` are the story: the rule, who broke it and when, in virtual
/// time, the last faults before it, and all that happened.
///
/// ```
/// use leasehold::testing::{Breach, World};
/// use std::time::Duration;
///
/// let run = World::by_hand().managers(2).run(|world| async move {
///     let lease = world.manager(0).lock("orders").lock().await?;
///     let _work = world.enter("orders", lease.fence());
///     world.cut(0);
///     tokio::time::sleep(Duration::from_secs(60)).await; // the lease is lost, and the work goes on
///     Ok(())
/// });
/// let failure = run.unwrap_err();
/// assert_eq!(failure.breach(), Breach::AfterLoss);
/// assert!(failure.to_string().contains("cuts manager 0 off"));
/// ```
pub struct Failure(Box<Report>);

struct Report {
    /// `None` where only the test strikes.
    seed: Option<u64>,
    verdict: Verdict,
    story: Story,
    /// Where the second run of the seed was another story.
    differs: Option<String>,
}

impl Failure {
    /// Returns the seed; `None` of a world [by hand](World::by_hand).
    #[must_use]
    pub fn seed(&self) -> Option<u64> {
        self.0.seed
    }

    /// Returns the rule that was broken.
    #[must_use]
    pub fn breach(&self) -> Breach {
        self.0.verdict.breach
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { seed, verdict: Verdict { breach, text }, story, differs } = &*self.0;
        match seed {
            Some(seed) => writeln!(f, "seed {seed} breaks the rule: {breach}")?,
            None => writeln!(f, "the rule is broken: {breach}")?,
        }
        writeln!(f, "  {text}\n  {}", breach.advice())?;
        let faults = story.last_faults(FAULTS_SHOWN);
        if !faults.is_empty() {
            writeln!(f, "\nthe last faults before:\n{faults}")?;
        }
        writeln!(f, "\nthe story:\n{story}")?;
        if let Some(differs) = differs {
            writeln!(
                f,
                "\nA second run of the same seed was another story, so the code under test does something that the seed does \
                 not decide (see \"Time\" in the documentation of World):\n{differs}"
            )?;
        }
        match seed {
            Some(seed) => write!(f, "\nrepeat it alone: {VARIABLE}={seed}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What `unwrap` prints begins on a line of its own.
        write!(f, "\n\n{self}\n")
    }
}

impl Error for Failure {}
