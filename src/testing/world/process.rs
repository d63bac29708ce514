//! One process of a world: its manager, the way of its requests to the store, and what is known of its leases.

use super::World;
use super::gate::Gate;
use super::judge::{End, Lease, Token};
use super::story::{Seconds, Who};
use crate::engine::{Core, Hold, Phase};
use crate::manager::{Builder, LeaseManager};
use crate::observe::{EventKind, Events};
use crate::store::{MemoryStore, Mode, Name};
use crate::testing::{Fault, Faults, FaultyStore, Rule};
use crate::util::sync::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The number of events that are kept until the story has them. A story has fewer at one instant.
const EVENTS: usize = 100_000;

pub(super) struct Process {
    pub(super) leases: LeaseManager,
    pub(super) gate: Arc<Gate>,
    faults: Faults,
    link: Mutex<Link>,
    events: Mutex<Option<Events>>,
}

/// What is wrong with the way to the store.
#[derive(Clone, Copy, Debug, Default)]
struct Link {
    is_cut: bool,
    /// The number of freezes that have not ended.
    frozen: u32,
    delay: Option<Duration>,
}

impl Link {
    fn hangs(self) -> bool {
        self.is_cut || self.frozen > 0
    }
}

impl Process {
    /// Creates a manager on the current runtime.
    pub(super) fn new(store: &MemoryStore, settings: Builder) -> Self {
        let (store, faults) = FaultyStore::new(store.clone());
        let leases = match settings.without_server().build(store.yielding()) {
            Ok(leases) => leases,
            Err(error) => panic!("the settings of the managers are refused: {error}"),
        };
        let events = Mutex::new(Some(leases.events(EVENTS)));
        Self { leases, gate: Arc::default(), faults, link: Mutex::default(), events }
    }

    pub(super) fn cut(&self) {
        self.change(|link| link.is_cut = true);
    }

    pub(super) fn delay(&self, by: Duration) {
        self.change(|link| link.delay = Some(by));
    }

    /// Returns whether there was something to heal.
    pub(super) fn heal(&self) -> bool {
        let was = *self.link.lock();
        let is_struck = was.is_cut || was.delay.is_some();
        if is_struck {
            self.change(|link| *link = Link { frozen: link.frozen, ..Link::default() });
        }
        is_struck
    }

    pub(super) fn freeze(&self) {
        self.gate.freeze();
        self.change(|link| link.frozen += 1);
    }

    /// Ends one freeze. Returns whether it was the last one.
    pub(super) fn thaw(&self) -> bool {
        self.change(|link| link.frozen = link.frozen.saturating_sub(1));
        self.gate.thaw();
        !self.gate.is_frozen()
    }

    /// Changes the way to the store, and the rules of its faults with it.
    fn change(&self, change: impl FnOnce(&mut Link)) {
        let mut link = self.link.lock();
        let hung = link.hangs();
        change(&mut link);
        let now = *link;
        drop(link);
        if hung && now.hangs() {
            return; // what hangs must not arrive
        }
        self.faults.heal();
        if now.hangs() {
            self.faults.silence();
        } else if let Some(by) = now.delay {
            self.faults.add(Rule::new(Fault::Delay(by)));
        }
    }

    fn core(&self) -> &Arc<Core> {
        self.leases.core()
    }

    /// Returns the time in which work must stop after a loss.
    pub(super) fn grace(&self) -> Duration {
        self.core().timing.grace
    }

    pub(super) fn ttl(&self) -> Duration {
        self.core().timing.ttl
    }

    pub(super) fn holds(&self) -> Vec<Arc<Hold>> {
        self.core().queue.holds()
    }

    pub(super) fn held(&self, manager: usize, token: &Token) -> Option<Held> {
        let name = Name::new(&token.name).ok()?;
        let core = self.core();
        let holds = core.queue.holds_of(&name);
        let hold = holds.into_iter().find(|hold| hold.fence == Some(token.fence))?;
        hold.in_use(core)?;
        let age = core.now().saturating_duration_since(hold.chain_began());
        Some(Held { manager, core: Arc::clone(core), hold, age })
    }

    /// Returns the holds that the store has granted to this manager a short time ago.
    pub(super) fn granted_within(&self, within: Duration) -> Vec<Arc<Hold>> {
        let now = self.core().now();
        let mut holds = self.holds();
        holds.retain(|hold| now.saturating_duration_since(hold.chain_began()) <= within);
        holds
    }
}

/// A hold with a lease.
pub(super) struct Held {
    pub(super) manager: usize,
    core: Arc<Core>,
    hold: Arc<Hold>,
    /// The time since the store granted it; hand-offs keep that.
    age: Duration,
}

impl Held {
    /// Returns the lease as the judge knows it.
    pub(super) fn lease(&self, now: Duration) -> Lease {
        let reads = self.hold.mode == Mode::Read;
        Lease::new(self.manager, reads, now.saturating_sub(self.age))
    }

    /// Waits until its leases are gone, or lost.
    pub(super) async fn ended(&self) -> End {
        let look = |_: &Hold| match self.hold.in_use(&self.core) {
            Some(Phase::Lost(loss)) => Some(End::Lost(loss)),
            Some(_) => None,
            None => Some(self.hold.loss().map_or(End::Over, End::Lost)),
        };
        self.hold.until(look).await
    }
}

/// Writes what happens to the leases of a manager into the story, and reports it to the judge.
pub(super) async fn record(world: World, manager: usize) {
    let Some(mut events) = world.process(manager).events.lock().take() else { return };
    // The tokens of the holds, for events that do not name theirs.
    let mut fences = BTreeMap::<Id, u64>::new();
    while let Some(event) = events.next().await {
        let Some(name) = event.name().map(str::to_owned) else { continue };
        let reads = event.mode() == Some(Mode::Read);
        let id = event.holder().map(|holder| Id { name: name.clone(), holder: holder.number() });
        let token = |fence: u64| Token { name: name.clone(), fence };
        // That of the hold before, if this one was handed off: the store has granted both at once.
        let known = id.as_ref().and_then(|id| fences.get(id).copied()).map(token);
        let ends = |how: End| {
            if let Some(token) = &known {
                world.judge(|judge, now| judge.ended(now, token, how));
            }
        };
        let with_token = |fence: Option<u64>| {
            fence.map_or(format!("{name:?}"), |fence| token(fence).to_string())
        };
        let named = with_token(known.as_ref().map(|token| token.fence));
        let begins = |fence: Option<u64>| {
            let lease = |began| Lease::new(manager, reads, began);
            world.judge(|judge, now| match fence {
                Some(fence) => {
                    let began = known.as_ref().and_then(|token| judge.began(token));
                    judge.granted(token(fence), lease(began.unwrap_or(now)));
                }
                None => judge.granted_without_token(),
            });
        };
        let what = match event.kind() {
            EventKind::Waiting { .. } => format!("waits for {name:?}"),
            EventKind::Granted { fence, .. } => {
                begins(*fence);
                fences.extend(id.zip(*fence));
                format!("gets {}", with_token(*fence))
            }
            EventKind::ModeChanged { fence, .. } => {
                ends(End::Over);
                begins(*fence);
                fences.extend(id.zip(*fence));
                format!("changes the mode of {}", with_token(*fence))
            }
            EventKind::NotGranted { why, .. } => format!("does not get {name:?}: {why:?}"),
            EventKind::AtRisk { left, .. } => {
                format!("may lose {named}: a renewal failed, {} are left", Seconds(*left))
            }
            EventKind::Recovered => format!("has renewed {named} again"),
            EventKind::Lost { cause, .. } => {
                ends(End::Lost(*cause));
                format!("loses {named}: {cause}")
            }
            EventKind::HandedOff { .. } => {
                ends(End::Over);
                format!("hands {named} off to its next waiter")
            }
            EventKind::Released { .. } => {
                ends(End::Over);
                format!("releases {named}")
            }
            EventKind::NotReleased { .. } => {
                ends(End::Over);
                format!("cannot release {named} in the store")
            }
            _ => continue,
        };
        world.add_line(Who::Manager(manager), what);
    }
}

/// What names a hold in the events of one manager: the holder id but for its random part.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Id {
    name: String,
    holder: u64,
}
