//! A call in the queue of its name: the guard of its wait there, and that of its permission to ask the store.

use crate::clock::Instant;
use crate::engine::machine::contention::{Demand, HolderSlot};
use crate::engine::machine::name::TurnOutcome;
use crate::engine::shared::hold::Hold;
use crate::engine::shared::options::{NO_OPTIONS, Options};
use crate::engine::shared::queue::{
    Begun, Found, GrantedTurn, HandedOff, PermitsRequest, Queue, Waits,
};
use crate::engine::shared::wakers::{TurnNumber, WakeReceiver};
use crate::store::{Mode, Name};
use crate::util::reached::Rare;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// An offer that a waiter took up.
pub(crate) enum Admission {
    /// The permission to ask the store.
    Turn(Turn),
    /// A read hold that it may join.
    Join(Arc<Hold>),
    /// A hold that another call of this process handed off. The waiter must still accept it.
    Hold(HandedOff),
}

/// A waiter in the queue. Leaving is O(log n), but O(n) in the middle of n offers. Dropping it gives up its offer.
pub(crate) struct WaiterGuard<'a> {
    queue: &'a Arc<Queue>,
    name: &'a Name,
    options: &'a Options,
    demand: Demand,
    /// Its number, by which waiters are in order, once it has given a pulse.
    waiter: Option<u64>,
    /// Whether it may be in the queue.
    queued: bool,
    /// Is sent to when an offer comes. Created when it has to wait.
    woken: Option<WakeReceiver>,
    /// A hold that came with the wake-up, for the next pulse.
    handed_off: Option<HandedOff>,
}

impl<'a> WaiterGuard<'a> {
    /// Creates the guard of a waiter for a name. It enters the queue at its first [`pulse`](Self::pulse).
    pub(in crate::engine) fn new(queue: &'a Arc<Queue>, name: &'a Name, mode: Mode) -> Self {
        Self {
            queue,
            name,
            options: &NO_OPTIONS,
            demand: Demand {
                mode,
                arrived: Instant::ZERO,
                fair: false,
                lock_delay: Duration::ZERO,
            },
            waiter: None,
            queued: false,
            woken: None,
            handed_off: None,
        }
    }

    /// Sets the time of its arrival, and whether it takes part in the line of the name.
    pub(crate) fn arrived(mut self, time: Instant, fair: bool) -> Self {
        self.demand.arrived = time;
        self.demand.fair = fair;
        if fair {
            self.queue.set_fair();
        }
        self
    }

    /// Sets the options of the handle that waits.
    pub(crate) fn with(mut self, options: &'a Options) -> Self {
        self.options = options;
        self.demand.lock_delay = options.lock_delay();
        self
    }

    /// Returns its number, by which waiters are in order, once it has given a pulse.
    pub(in crate::engine) fn number(&self) -> Option<u64> {
        self.waiter
    }

    /// Waits until it is woken for an offer, after a pulse that found none.
    pub(crate) async fn woken(&mut self) {
        if let Some(woken) = &mut self.woken {
            // It ends without a message when its turn begins.
            self.handed_off = woken.await.ok().flatten();
            self.woken = None;
        }
    }

    /// Returns whether it waits for the end of a hold of this process and is the first waiter that is
    /// polled.
    pub(crate) fn is_first_behind_a_hold(&self, now: Instant) -> bool {
        self.waiter.is_some_and(|waiter| {
            self.queue.is_first_behind_a_hold(self.name, waiter, self.demand.mode, now)
        })
    }

    /// Returns the hold that came with the last wake-up, if one did, once.
    fn handed_off(&mut self) -> Option<HandedOff> {
        if let Some(Ok(offered)) = self.woken.as_mut().map(oneshot::Receiver::try_recv) {
            self.woken = None;
            self.handed_off = offered;
        }
        self.handed_off.take()
    }

    /// Gives a pulse, and takes its offer, if there is one. A waiter calls this again whenever it is
    /// [`woken`](WaiterGuard::woken), each
    /// [`Timing::pulse_period`](crate::engine::machine::timing::Timing::pulse_period), and after a turn or an
    /// offered hold that brought no hold: it keeps its number.
    pub(crate) fn pulse(&mut self, now: Instant) -> Result<Admission, Waits> {
        if let Some(offered) = self.handed_off() {
            // The hand-off took it out of the queue.
            self.queued = false;
            return Ok(Admission::Hold(offered));
        }
        let Self { queue, name, options, demand, .. } = *self;
        let found = queue.pulse(name, &mut self.waiter, demand, options, now);
        self.queued = matches!(found, Found::Nothing { .. });
        match found {
            Found::Turn(begun) => {
                Ok(Admission::Turn(Turn::new(queue, name, demand.mode, begun, self.waiter)))
            }
            Found::Join(hold) => Ok(Admission::Join(hold)),
            Found::Hold(offered) => Ok(Admission::Hold(offered)),
            Found::Nothing { waits, woken } => {
                self.woken = woken.or(self.woken.take());
                Err(waits)
            }
        }
    }
}

impl Drop for WaiterGuard<'_> {
    fn drop(&mut self) {
        if let Some(waiter) = self.waiter.filter(|_| self.queued) {
            self.queue.withdraw(self.name, waiter);
        }
        Rare::HandedOffToDropped.reached_if(|| self.handed_off().is_some());
    }
}

/// The permission to ask the store for a name. The hold of a grant takes over its [`HolderSlot`]; otherwise,
/// dropping the turn ends it.
pub(crate) struct Turn {
    queue: Arc<Queue>,
    name: Name,
    turn: TurnNumber,
    mode: Mode,
    /// True if a hold has the slot.
    granted: bool,
    /// Whether its hold takes part in the line of the name.
    fair: bool,
    not_before: Option<Instant>,
    /// The last request of the call that asked before, if a hold was handed off to that one.
    pub(in crate::engine) last_ask: Option<PermitsRequest>,
}

impl Turn {
    /// Returns a turn at once, unless another call of this process waits for the name or blocks it.
    pub(in crate::engine) fn at_once(
        queue: &Arc<Queue>,
        name: &Name,
        mode: Mode,
        now: Instant,
    ) -> Option<Self> {
        let begun = queue.try_enter(name, mode, now)?;
        Some(Self::new(queue, name, mode, begun, None))
    }

    /// Returns a turn at once, whatever else of this process asks for the name, holds it or waits: for a steal.
    pub(in crate::engine) fn seize(
        queue: &Arc<Queue>,
        name: &Name,
        mode: Mode,
        now: Instant,
    ) -> Self {
        Self::new(queue, name, mode, queue.seize_turn(name, mode, now), None)
    }

    /// Creates the guard of a turn that has begun, for the waiter of this number if it has waited.
    fn new(queue: &Arc<Queue>, name: &Name, mode: Mode, begun: Begun, waiter: Option<u64>) -> Self {
        let Begun { number, not_before, last_ask } = begun;
        let turn = TurnNumber { number, waiter: waiter.unwrap_or(number) };
        Self {
            queue: Arc::clone(queue),
            name: name.clone(),
            turn,
            mode,
            granted: false,
            fair: false,
            not_before,
            last_ask,
        }
    }

    /// Returns the earliest time to ask the store, if waiters elsewhere go first.
    pub(crate) fn not_before(&self) -> Option<Instant> {
        self.not_before
    }

    /// Sets whether its hold takes part in the line of the name. If so, it counts as one that waiters elsewhere listen to.
    pub(crate) fn set_fair(&mut self, fair: bool) {
        self.fair = fair;
    }

    /// Sets the time by which the next step follows. After that, waiters may reclaim the turn.
    pub(crate) fn set_due(&self, time: Instant) {
        self.queue.set_due(&self.name, self.turn.number, time);
    }

    /// Records a request to the store at `now`, and that the next step follows by `due`. Returns the time of the first
    /// unanswered request, or `None` if the turn was reclaimed.
    pub(crate) fn asked(&self, now: Instant, due: Instant) -> Option<Instant> {
        self.queue.turn_asks(&self.name, self.turn.number, now, due)
    }

    /// Records that the store has refused the request: this call waits, and others have the name.
    pub(crate) fn held_elsewhere(&self) {
        self.queue.turn_refused(&self.name, self.turn.number);
        self.queue.saw_another(&self.name);
    }

    /// Keeps the turn after a grant of the request sent at `sent`, by its own call or by one before it. It keeps it even if
    /// the turn was reclaimed meanwhile: the store cannot grant the name to the turns that replaced it and that exclude
    /// this mode.
    pub(crate) fn keep(&self, sent: Instant, is_own: bool) -> TurnOutcome {
        let Self { turn, mode, fair, .. } = *self;
        self.queue.keep(&self.name, GrantedTurn { turn, mode, fair, sent, is_own })
    }

    /// Waits until the turn ends because a grant that another call heard of late has taken the name, or because it was
    /// reclaimed.
    pub(in crate::engine) async fn ended(&self) {
        if let Some(woken) = self.queue.listen_to_turn(&self.name, self.turn.number) {
            // Its own call ends it without a message.
            drop(woken.await);
        }
    }

    /// Lets holds be handed off to the call that has this turn.
    pub(in crate::engine) fn seek(&self, options: &Options) -> WakeReceiver {
        self.queue.seek(&self.name, self.turn, options)
    }

    /// Records the last request of this call, for the next turn, if a hold is handed off to this call.
    pub(super) fn note_ask(&self, last: PermitsRequest) {
        self.queue.note_ask(&self.name, self.turn.number, last);
    }

    /// Returns the number of its occupant in the queue.
    pub(in crate::engine) fn number(&self) -> u64 {
        self.turn.number
    }

    /// Turns it into the slot of a hold, after [`TurnOutcome::Kept`].
    pub(in crate::engine) fn into_slot(mut self) -> Option<HolderSlot> {
        self.granted = true;
        HolderSlot::new(self.turn.number)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !self.granted {
            self.queue.end_turn(&self.name, self.turn);
        }
    }
}
