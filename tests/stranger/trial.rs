//! A run of a plan, and what is broken in it.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::actor::Caller;
use crate::history::{History, Leftover, Log, Outcome, Way};
use crate::judge::Breach;
use crate::plan::Plan;
use crate::promises;
use crate::world::{Site, World};

/// The seed of the environment, if there is one.
pub fn seed() -> Option<u64> {
    std::env::var("LEASEHOLD_STRANGER_SEED")
        .ok()
        .map(|seed| seed.parse().expect("LEASEHOLD_STRANGER_SEED is a number"))
}

/// How long a store is tried.
pub fn span(default: Duration) -> Duration {
    let seconds = std::env::var("LEASEHOLD_STRANGER_SECONDS").ok();
    let given =
        seconds.map(|seconds| seconds.parse().expect("LEASEHOLD_STRANGER_SECONDS is a number"));
    given.map_or(default, Duration::from_secs)
}

/// Another first seed for each run of a longer time.
pub fn first_seed(default: u64) -> u64 {
    let is_long = std::env::var("LEASEHOLD_STRANGER_SECONDS").is_ok();
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |now| now.as_secs());
    if is_long { now % 1_000_000 * 1000 } else { default }
}

/// Where and how a plan runs.
pub struct Stage {
    pub site: Site,
    pub log: Log,
    pub prefix: String,
    /// After how many TTLs a call is given up.
    pub patience: u32,
}

/// Runs a plan, and returns its history.
pub async fn play(plan: &Plan, stage: Stage) -> History {
    let log = stage.log;
    let rules = log.write(|history| history.rules.clone());
    let delay = rules.ttl / 2;
    let world =
        World::open(plan, log.clone(), stage.site, stage.prefix, rules.ttl * stage.patience).await;
    let mut tasks = tokio::task::JoinSet::new();
    for (number, actor) in plan.actors.iter().enumerate() {
        let caller = Caller { world: Arc::clone(&world), number, process: actor.process };
        let steps = actor.steps.clone();
        tasks.spawn(async move { caller.run(&steps).await });
    }
    for mishap in plan.mishaps.clone() {
        let world = Arc::clone(&world);
        tasks.spawn(async move {
            sleep(mishap.after).await;
            world.strike(mishap.process, mishap.trouble).await;
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.expect("no actor panics");
    }
    if plan.mishaps.is_empty() && rules.slack < Duration::from_millis(50) {
        // "What was dropped is released."
        sleep(Duration::from_millis(10)).await;
        for incarnation in world.all() {
            let left = incarnation.leases.holdings();
            let what = format!(
                "manager {} still holds {left:?}, 10 ms after the last lease has ended",
                incarnation.number
            );
            if !left.is_empty() {
                log.write(|history| history.leftovers.push(Leftover { what }));
            }
        }
    }
    sleep(rules.ttl + delay + rules.poll * 3 + rules.attempt * 4 + rules.slack).await;
    look_for_leftovers(&world, &log).await;
    for incarnation in world.all() {
        let _ = incarnation.leases.close().await;
    }
    log.history()
}

/// Notes what is still held when all is over.
async fn look_for_leftovers(world: &World, log: &Log) {
    let history = log.history();
    let mut leftovers = Vec::new();
    for incarnation in world.all() {
        for holding in incarnation.leases.holdings() {
            leftovers.push(format!("manager {} still holds {holding:?}", incarnation.number));
        }
    }
    let someone = world.incarnation(0);
    for name in history.names() {
        match someone.leases.inspect(&name).await {
            Ok(Some(holder)) if holder.closed.is_none() => {
                leftovers.push(format!("{name} still has {holder:?}"))
            }
            _ => {}
        }
    }
    log.write(|history| {
        history.leftovers.extend(leftovers.into_iter().map(|what| Leftover { what }))
    });
}

/// Returns the report of what is broken in a history; `None` if all is well.
pub fn report(plan: &Plan, history: &History) -> Option<String> {
    let breaches = promises::judge(history);
    if breaches.is_empty() {
        return None;
    }
    let mut text = String::new();
    let _ = writeln!(
        text,
        "seed {} on {:?}: LEASEHOLD_STRANGER_SEED={} repeats it",
        plan.seed, plan.backend, plan.seed
    );
    let _ = writeln!(text, "{:?}, {} processes", plan.settings, plan.processes);
    let mut last = String::new();
    for Breach { promise, sentence, name, what } in breaches.iter().take(4) {
        let _ = writeln!(text, "{promise}: {what}\n  \"{sentence}\"");
        if *name != last {
            let _ = writeln!(text, "{}", history.story(name));
        }
        last.clone_from(name);
    }
    let _ = writeln!(text, "{} in all", breaches.len());
    Some(text)
}

/// What happened in many runs, so that one sees that something did.
#[derive(Default)]
pub struct Tally(std::collections::BTreeMap<String, usize>);

impl Tally {
    pub fn add(&mut self, history: &History) {
        let mut count = |what: String| *self.0.entry(what).or_default() += 1;
        for call in &history.calls {
            let outcome = match &call.outcome {
                Outcome::Failed(failure) => format!("{:?}", failure.kind),
                other => format!("{other:?}"),
            };
            count(format!("{:?} {outcome}", call.object));
            if call.nested {
                count(format!("nested {outcome}"));
            }
            if matches!(call.way, Way::Steal | Way::StealAfter(_) | Way::Change) {
                let way = format!("{:?}", call.way);
                count(format!("{} {outcome}", way.split('(').next().unwrap_or_default()));
            }
        }
        for held in &history.leases {
            if let Some(lost) = held.lost {
                count(format!("lost {:?}", lost.loss));
            }
            if let Some(end) = &held.end {
                count(format!("ended by {:?}", end.how));
            }
        }
        for act in &history.acts {
            let deed = format!("{:?}", act.deed);
            count(format!("act {}", deed.split(' ').next().unwrap_or_default()));
        }
        for job in &history.jobs {
            let outcome = format!("{:?}", job.outcome);
            count(format!("job {}", outcome.split([' ', '(']).next().unwrap_or_default()));
        }
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (what, count) in &self.0 {
            write!(f, "{what}: {count}; ")?;
        }
        Ok(())
    }
}

/// Removes what a broken promise does not need: actors, steps, mishaps. Runs each smaller plan again.
pub fn shrink(plan: &Plan, promise: &str, run: impl Fn(&Plan) -> History) -> Plan {
    let breaks =
        |plan: &Plan| promises::judge(&run(plan)).iter().any(|breach| breach.promise == promise);
    let mut best = plan.clone();
    let limit = Instant::now() + Duration::from_secs(20);
    loop {
        let mut smaller = Vec::new();
        for index in 0..best.actors.len() {
            let mut next = best.clone();
            next.actors.remove(index);
            smaller.push(next);
        }
        for index in 0..best.mishaps.len() {
            let mut next = best.clone();
            next.mishaps.remove(index);
            smaller.push(next);
        }
        for actor in 0..best.actors.len() {
            for step in 0..best.actors[actor].steps.len() {
                let mut next = best.clone();
                next.actors[actor].steps.remove(step);
                smaller.push(next);
            }
        }
        match smaller.into_iter().find(|next| Instant::now() < limit && breaks(next)) {
            Some(next) => best = next,
            None => return best,
        }
    }
}
