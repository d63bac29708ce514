//! The ways to make the engine of a manager: from a URL, on a store, in memory.

use super::Builder;
use super::builder::timing_of;
use crate::clock::Clock;
use crate::engine::{Core, Engine, Overrun, Overruns, Timing, presence};
use crate::error::{Error, ErrorKind, Result};
use crate::store::connect::options::{Common, in_task};
use crate::store::url::Backend;
use crate::store::{Check, Finding, MemoryStore, Owner, Severity, Store};
use crate::util::runtime;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

pub(super) async fn connect(builder: Builder, url: impl AsRef<str>) -> Result<Arc<Engine>> {
    runtime::need();
    let (timing, settings) = builder.checked()?;
    let needed = Needed::of(&builder);
    let owner = builder.owner.clone();
    let on_overrun = builder.on_overrun.clone();
    let manager = manager_id(&builder);
    let backend = parse(url.as_ref(), &builder, manager, &timing)?;
    let observers = builder.observers;
    let timing = match backend.lease_time() {
        Some(lease_time) => timing_of(lease_time, builder.grace)?,
        None => timing,
    };
    let remote = backend.dedicated_thread();
    if builder.dedicated_thread.unwrap_or(remote) {
        Engine::on_own_threads(async move || {
            let store = open(backend, Clock::system(), needed, timing.attempt).await?;
            let core = Engine::core(manager, store, timing, settings, false);
            describe(&core, owner);
            watch_overruns(&core, on_overrun)?;
            presence::introduce(&core).await;
            observers.start(&core.events).map(|()| core)
        })
        .await
    } else {
        on_overrun.as_ref().map_or(Ok(()), |action| Overruns::check(action, true))?;
        // A server's time goes on during a suspend; what is in memory may follow a paused clock.
        let clock = if remote { Clock::system() } else { Clock::tokio() };
        let store = in_task(open(backend, clock, needed, timing.attempt)).await?;
        let core = Engine::core(manager, store, timing, settings, true);
        describe(&core, owner);
        presence::introduce(&core).await;
        observers.start(&core.events)?;
        Ok(Engine::on_caller(core))
    }
}

/// Examines the servers of a URL.
pub(super) async fn examine(builder: Builder, url: &str) -> Vec<Finding> {
    runtime::need();
    let of_settings = |error: Error| {
        let advice = error.message().to_owned();
        vec![Finding::new(Check::Settings, Severity::Failure, "all", advice)]
    };
    let timing = match builder.checked() {
        Ok((timing, _)) => timing,
        Err(error) => return of_settings(error),
    };
    let backend = match parse(url, &builder, manager_id(&builder), &timing) {
        Ok(backend) => backend,
        Err(error) => return of_settings(error),
    };
    match in_task(async move { Ok(backend.examine(timing.ttl).await) }).await {
        Ok(examination) => examination.findings,
        Err(error) => of_settings(error),
    }
}

/// Reads a URL, with the settings of a builder for its connections.
fn parse(url: &str, builder: &Builder, manager: Uuid, timing: &Timing) -> Result<Backend> {
    let client_name = match &builder.owner {
        Some(owner) => Common::client_name(owner, manager),
        None => Common::client_name(&Owner::new(""), manager),
    };
    let Timing { ttl, attempt, .. } = *timing;
    let common = Common { ttl, attempt, remote: builder.remote.clone(), client_name };
    Backend::parse(url, &common)
}

pub(super) fn build(builder: Builder, store: impl Store) -> Result<Arc<Engine>> {
    let (timing, settings) = builder.checked()?;
    builder.remote.refuse("a store that is given to `build`")?;
    Needed::of(&builder).check(&store)?;
    let dedicated_thread = builder.dedicated_thread.unwrap_or(!store.clock().is_tokio());
    let on_caller = !dedicated_thread;
    let core = Engine::core(manager_id(&builder), Arc::new(store), timing, settings, on_caller);
    describe(&core, builder.owner);
    watch_overruns(&core, builder.on_overrun)?;
    builder.observers.start(&core.events)?;
    Engine::new(core)
}

pub(super) fn in_memory() -> Arc<Engine> {
    let timing = Timing::DEFAULT;
    let settings = Builder::default().settings(&timing);
    let store = Arc::new(MemoryStore::new());
    Engine::on_caller(Engine::core(Uuid::new_v4(), store, timing, settings, true))
}

fn describe(core: &Core, owner: Option<Owner>) {
    if let Some(owner) = owner {
        core.descriptions.describe(owner);
    }
}

/// Starts the thread for leases that outlive their loss, if there is an action.
fn watch_overruns(core: &Core, action: Option<Overrun>) -> Result<()> {
    let Some(action) = action else { return Ok(()) };
    core.overruns.start(&action, core.clock(), core.on_caller)?;
    core.overruns.set_default(action);
    Ok(())
}

/// Draws the id of a manager. That of one that lingers is of version 8, by which other managers know it: see
/// [`HolderId::lingers`](crate::store::HolderId::lingers).
fn manager_id(builder: &Builder) -> Uuid {
    let random = Uuid::new_v4();
    match builder.linger {
        Some(_) => uuid::Builder::from_custom_bytes(random.into_bytes()).into_uuid(),
        None => random,
    }
}

/// Connects, and checks that the store has what the settings need.
async fn open(
    backend: Backend,
    clock: Clock,
    needed: Needed,
    timeout: Duration,
) -> Result<Arc<dyn Store>> {
    let store = backend.open(clock).await?;
    let checked = needed.check(&*store);
    if checked.is_err() {
        store.close(timeout).await;
    }
    checked.map(|()| store)
}

/// The abilities that the settings need.
#[derive(Clone, Copy)]
struct Needed {
    /// The setting that needs fencing tokens.
    fencing: Option<&'static str>,
    lingers: bool,
}

impl Needed {
    fn of(builder: &Builder) -> Self {
        Self { fencing: builder.needs_fencing(), lingers: builder.linger.is_some() }
    }

    fn check(self, store: &dyn Store) -> Result<()> {
        let can = store.capabilities();
        if let Some(setting) = self.fencing.filter(|_| !can.fencing) {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "{setting} is set, but this store has no fencing tokens; leave it out, or use a store that has them"
                ),
            ));
        }
        if self.lingers && !can.lingers {
            let message = "linger is set, but in this store no other process could ask for a hold that rests; leave it out, or use Redis or memory";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        Ok(())
    }
}
