//! The names of this process behind one lock, and the effects of their transitions.
//!
//! [`NameState`] decides; this is the shell around it. It has the time, the wakers of the waiters by their numbers, the
//! subscriptions of the calls that ask for permits, and what goes beyond one name: the pauses for waiters elsewhere, and the open arrivals in the line.
//!
//! # Invariants
//!
//! 1. **A name has a state exactly as long as it has an occupant.**
//! 2. **Nothing is dropped, woken or sent while the map is locked.** A transition returns its [`Effects`]. The wakers are
//!    taken out under the lock, and used after it.
//! 3. **A waiter has one waker at a time.** Whatever takes it out of the map wakes it.

use super::core::Core;
use super::hold::Hold;
use super::options::{NO_OPTIONS, Options};
use super::wakers::{ByNumber, TurnNumber, WaitingCall, WakeReceiver, WakeSender, Wakers, wake};
use crate::clock::{Clock, Instant};
use crate::engine::machine::chain::Chain;
use crate::engine::machine::contention::{Demand, LastAsk};
use crate::engine::machine::count::Share;
use crate::engine::machine::effects::{Effect, Effects, Few, Limits, Numbers, Step, Times};
use crate::engine::machine::mode;
use crate::engine::machine::name::{
    Admitted, Granted, NameState, Silence, SlottedHold, TurnOutcome,
};
use crate::engine::machine::pause::{Heard, Pauses};
use crate::engine::machine::pulse::Pulse;
use crate::engine::machine::timing::Timing;
use crate::store::{HolderId, Mode, Name, NameMap, Wakeups};
use crate::util::sync::{Mutex, MutexGuard};
use std::collections::HashSet;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use tokio::sync::oneshot;

pub(crate) struct Queue {
    state: Mutex<QueueState>,
    clock: Clock,
    limits: Limits,
    /// Set with the first waiter of a fair lock.
    is_fair: AtomicBool,
    /// The owner of this queue, to which holds return that no waiter has accepted.
    core: Weak<Core>,
}

type State = NameState<Arc<Hold>>;

struct QueueState {
    names: NameMap<State>,
    numbers: Numbers,
    wakers: Wakers,
    pauses: Pauses,
    /// The last time that this process forced a name open, whichever it was: a turn that was reclaimed has no place
    /// where its own name could be remembered.
    forced: Option<Instant>,
    /// The open arrivals in the line: see [`line`](super::line).
    arrivals: NameMap<OpenedArrival>,
    /// What hears of releases, by the number of the turn whose request came first: see [`LastAsk`].
    subscriptions: ByNumber<Arc<Wakeups>>,
}

/// The arrival that a release has recorded for the first local waiter, until that one asks, and its holder id.
struct OpenedArrival {
    holder: HolderId,
    arrived: Instant,
}

/// The last request for permits of a call, from which the next one goes on: see [`LastAsk`].
pub(in crate::engine) struct PermitsRequest {
    pub(in crate::engine) mode: Mode,
    /// When the store is asked again, without a hint.
    pub(in crate::engine) again_at: Instant,
    /// Announces each release since the request. `None` if some may be missed.
    pub(in crate::engine) wakeups: Option<Arc<Wakeups>>,
}

/// A hold on its way to a waiter. Dropping it hands the hold off to the next waiter, or releases it.
pub(crate) struct HandedOff {
    core: Weak<Core>,
    pub(in crate::engine) hold: Option<Arc<Hold>>,
}

impl Drop for HandedOff {
    fn drop(&mut self) {
        if let (Some(hold), Some(core)) = (self.hold.take(), self.core.upgrade()) {
            (core.callbacks.leave)(&core, &hold, Share::FIRST);
        }
    }
}

/// Effects on their way out of the lock: with the wakers instead of the numbers. [`Queue::perform`] performs them.
#[must_use = "waiters wait for it"]
#[derive(Default)]
pub(crate) struct Deferred(Few<DeferredEffect>);

/// An [`Effect`] with the waker of its waiter.
enum DeferredEffect {
    Drop(Arc<Hold>),
    Return(Arc<Hold>),
    HandOff { to: WaitingCall, hold: Arc<Hold> },
    Wake(WakeSender),
    Forget(Arc<Wakeups>),
}

/// A waiter to wake, maybe with a hold.
struct WakeUp {
    waker: WakeSender,
    offered: Option<HandedOff>,
}

/// A turn that has begun.
pub(in crate::engine) struct Begun {
    pub(in crate::engine) number: u64,
    /// The earliest time to ask the store, if waiters elsewhere go first.
    pub(in crate::engine) not_before: Option<Instant>,
    /// The last request of the call that asked before, if a hold was handed off to that one.
    pub(in crate::engine) last_ask: Option<PermitsRequest>,
}

/// What a waiter finds at a pulse.
pub(in crate::engine) enum Found {
    Turn(Begun),
    Join(Arc<Hold>),
    Hold(HandedOff),
    Nothing {
        waits: Waits,
        /// Its wake-up, unless it has one already.
        woken: Option<WakeReceiver>,
    },
}

/// The waiter has no offer.
pub(crate) struct Waits {
    /// When the oldest request of this name left that the store has not answered.
    pub(crate) silent_since: Option<Instant>,
    /// Whether this process may use the name as another kind of lock.
    pub(crate) mixed: bool,
    /// The hold that rests, if one does: its rest is to end.
    pub(crate) resting: Option<Arc<Hold>>,
}

/// A hold that is handed off.
#[must_use = "its waiter waits for it"]
pub(in crate::engine) struct Handoff {
    pub(in crate::engine) hold: Arc<Hold>,
    pub(in crate::engine) effects: Deferred,
}

/// A hold that is in its slot.
#[must_use = "waiters wait for it"]
pub(in crate::engine) struct Installed {
    /// Whether the name may have been forced open or taken since the request.
    pub(in crate::engine) is_doubted: bool,
    pub(in crate::engine) effects: Deferred,
}

/// What a pulse leads to, with what is only there to be dropped.
struct Polled {
    found: Found,
    _gone: Option<WaitingCall>,
}

/// A grant of the store for a turn.
#[derive(Clone, Copy)]
pub(in crate::engine) struct GrantedTurn {
    pub(in crate::engine) turn: TurnNumber,
    pub(in crate::engine) mode: Mode,
    /// Whether its hold takes part in the line of the name.
    pub(in crate::engine) fair: bool,
    /// The time at which the request was sent.
    pub(in crate::engine) sent: Instant,
    /// Whether the request was sent in this turn, and not in one before it.
    pub(in crate::engine) is_own: bool,
}

impl QueueState {
    /// Runs a transition of a name, which has a state only while it has an occupant.
    fn run<R>(
        &mut self,
        name: &Name,
        times: Times,
        effects: &mut Effects<Arc<Hold>>,
        run: impl FnOnce(&mut State, &mut Step<'_, Arc<Hold>>) -> R,
    ) -> R {
        let mut step = Step { times, numbers: &mut self.numbers, effects };
        let mut entry = match self.names.entry(name.clone()) {
            Entry::Occupied(occupied) => occupied,
            Entry::Vacant(vacant) => vacant.insert_entry(State::default()),
        };
        let result = run(entry.get_mut(), &mut step);
        if entry.get().is_idle() {
            entry.remove();
        }
        result
    }

    /// Replaces the numbers in effects by wakers.
    fn defer(&mut self, effects: Effects<Arc<Hold>>) -> Deferred {
        let mut deferred = Few::default();
        effects.each(|effect| {
            deferred.extend(match effect {
                Effect::Drop(hold) => Some(DeferredEffect::Drop(hold)),
                Effect::Return(hold) => Some(DeferredEffect::Return(hold)),
                Effect::HandOff { to, hold } => Some(match self.wakers.remove(to) {
                    Some(to) => DeferredEffect::HandOff { to, hold },
                    None => DeferredEffect::Return(hold),
                }),
                Effect::Wake(number) => self.wakers.take(number).map(DeferredEffect::Wake),
                Effect::Forget(number) => {
                    self.subscriptions.remove(number).map(DeferredEffect::Forget)
                }
            });
        });
        Deferred(deferred)
    }
}

impl Queue {
    pub(crate) fn new(clock: Clock, timing: &Timing, core: Weak<Core>) -> Self {
        let state = QueueState {
            names: NameMap::default(),
            numbers: Numbers::default(),
            wakers: Wakers::default(),
            pauses: Pauses::new(timing.ttl),
            forced: None,
            arrivals: NameMap::default(),
            subscriptions: ByNumber::default(),
        };
        let limits = Limits {
            attempt: timing.attempt,
            patience: timing.ttl / 4,
            joins: timing.longest_chain,
        };
        Self { state: Mutex::new(state), clock, limits, is_fair: AtomicBool::new(false), core }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock()
    }

    /// Runs a change with the lock held, and performs the effects without it.
    fn locked<R>(&self, run: impl FnOnce(&mut QueueState, &mut Effects<Arc<Hold>>) -> R) -> R {
        let mut effects = Effects::default();
        let mut state = self.lock();
        let result = run(&mut state, &mut effects);
        // Mostly there are none.
        if !effects.is_empty() {
            let effects = state.defer(effects);
            drop(state);
            self.perform(effects);
        }
        result
    }

    /// Runs a change with the lock held. Returns the effects, which are to be performed without it.
    fn deferred<R>(
        &self,
        run: impl FnOnce(&mut QueueState, &mut Effects<Arc<Hold>>) -> R,
    ) -> (R, Deferred) {
        let mut effects = Effects::default();
        let mut state = self.lock();
        let result = run(&mut state, &mut effects);
        // As in `locked`.
        let deferred = if effects.is_empty() { Deferred::default() } else { state.defer(effects) };
        (result, deferred)
    }

    /// Performs effects. Call it with no lock held: a waker of a user runs here, and may block.
    #[inline]
    pub(in crate::engine) fn perform(&self, effects: Deferred) {
        if !effects.0.is_empty() {
            self.perform_each(effects);
        }
    }

    fn perform_each(&self, effects: Deferred) {
        // A waker may block: it delays no hold that goes to the next waiter.
        let mut woken = Few::default();
        effects.0.each(|effect| match effect {
            DeferredEffect::Drop(hold) => drop(hold),
            DeferredEffect::Forget(wakeups) => drop(wakeups),
            DeferredEffect::Return(hold) => drop(self.on_its_way(hold)),
            DeferredEffect::HandOff { to, hold } => {
                let offered = Some(self.on_its_way(hold));
                woken.extend(to.waker.map(|waker| WakeUp { waker, offered }));
            }
            DeferredEffect::Wake(waker) => woken.push(WakeUp { waker, offered: None }),
        });
        woken.each(|WakeUp { waker, offered }| wake(waker, offered));
    }

    fn on_its_way(&self, hold: Arc<Hold>) -> HandedOff {
        HandedOff { core: Weak::clone(&self.core), hold: Some(hold) }
    }

    /// Looks at a name that has an occupant.
    fn look<R>(&self, name: &Name, look: impl FnOnce(&State) -> R) -> Option<R> {
        self.lock().names.get(name).map(look)
    }

    /// Changes a name that has an occupant, without effects.
    fn note<R>(&self, name: &Name, note: impl FnOnce(&mut State) -> R) -> Option<R> {
        self.lock().names.get_mut(name).map(note)
    }
}

/// Waiters and turns.
impl Queue {
    /// Begins a turn at once, unless another call of this process waits for the name or blocks it.
    pub(in crate::engine) fn try_enter(
        &self,
        name: &Name,
        mode: Mode,
        now: Instant,
    ) -> Option<Begun> {
        let times = self.limits.at(now);
        self.locked(|queue, effects| {
            let enter = |state: &mut State, step: &mut Step<'_, _>| state.try_enter(mode, step);
            let number = queue.run(name, times, effects, enter)?;
            Some(Begun { number, not_before: queue.pauses.not_before(name, now), last_ask: None })
        })
    }

    /// Begins a turn at once, whatever else of this process asks for the name, holds it or waits: for a steal.
    pub(in crate::engine) fn seize_turn(&self, name: &Name, mode: Mode, now: Instant) -> Begun {
        let offer = Pulse::until(now + self.limits.attempt * 3);
        let times = Times { offer, ..self.limits.at(now) };
        self.locked(|queue, effects| {
            let number = queue.run(name, times, effects, |state, step| state.seize(mode, step));
            Begun { number, not_before: queue.pauses.not_before(name, now), last_ask: None }
        })
    }

    /// Records a pulse of a waiter, which gets a number at its first one. A waiter that finds nothing is in the queue.
    pub(in crate::engine) fn pulse(
        &self,
        name: &Name,
        waiter: &mut Option<u64>,
        demand: Demand,
        options: &Options,
        now: Instant,
    ) -> Found {
        let times = self.limits.at(now);
        let polled = self.locked(|queue, effects| {
            let waiter = *waiter.get_or_insert_with(|| queue.numbers.draw());
            let admitted = queue.run(name, times, effects, |state, step| {
                state.pulse(waiter, demand, step).ok_or_else(|| Waits {
                    silent_since: state.silence().map(|silence| silence.since),
                    mixed: state.is_mixed(demand.mode),
                    resting: state.resting().cloned(),
                })
            });
            let admitted = match admitted {
                Ok(admitted) => admitted,
                Err(waits) => {
                    let woken = queue.wakers.listen(waiter, options);
                    return Polled { found: Found::Nothing { waits, woken }, _gone: None };
                }
            };
            let found = match admitted {
                Admitted::Turn(number, last) => Found::Turn(Begun {
                    number,
                    not_before: queue.pauses.not_before(name, now),
                    last_ask: last.map(|LastAsk { by, mode, again_at }| PermitsRequest {
                        mode,
                        again_at,
                        wakeups: queue.subscriptions.remove(by),
                    }),
                }),
                Admitted::Join(hold) => Found::Join(hold),
                Admitted::Hold(hold) => Found::Hold(self.on_its_way(hold)),
            };
            Polled { found, _gone: queue.wakers.remove(waiter) }
        });
        polled.found
    }

    /// Removes a waiter that goes from the queue.
    pub(in crate::engine) fn withdraw(&self, name: &Name, waiter: u64) {
        let times = self.limits.at(self.clock.now());
        let gone = self.locked(|queue, effects| {
            queue.run(name, times, effects, |state, step| state.withdraw(waiter, step));
            queue.wakers.remove(waiter)
        });
        drop(gone);
    }

    /// Ends a turn that brought no hold.
    pub(in crate::engine) fn end_turn(&self, name: &Name, turn: TurnNumber) {
        let times = self.limits.at(self.clock.now());
        let gone = self.locked(|queue, effects| {
            queue.run(name, times, effects, |state, step| state.leave(turn.number, step));
            queue.wakers.remove_of(turn)
        });
        drop(gone);
    }

    /// Ends a slot, and admits the waiters that it blocked. Returns the effects.
    pub(in crate::engine) fn leave(&self, now: Instant, name: &Name, number: u64) -> Deferred {
        let times = self.limits.at(now);
        let (_, effects) = self.deferred(|queue, effects| {
            queue.run(name, times, effects, |state, step| state.leave(number, step))
        });
        effects
    }

    /// Sets the time by which the next step of a turn follows. After that, waiters may reclaim the turn.
    pub(in crate::engine) fn set_due(&self, name: &Name, number: u64, due: Instant) {
        self.note(name, |state| state.record_pulse(number, Pulse::until(due)));
    }

    /// Records a request of a turn at `now`, and that its next step follows by `due`. Returns the time of the first
    /// unanswered request, or `None` if the turn was reclaimed.
    pub(in crate::engine) fn turn_asks(
        &self,
        name: &Name,
        number: u64,
        now: Instant,
        due: Instant,
    ) -> Option<Instant> {
        self.note(name, |state| state.asks(number, now, Pulse::until(due))).flatten()
    }

    /// Records that the store has refused the request of a turn.
    pub(in crate::engine) fn turn_refused(&self, name: &Name, number: u64) {
        self.note(name, |state| state.refuse(number));
    }

    /// Keeps a turn after a grant. See [`NameState::keep`].
    pub(in crate::engine) fn keep(&self, name: &Name, granted: GrantedTurn) -> TurnOutcome {
        let GrantedTurn { turn, mode, fair, sent, is_own } = granted;
        let mut gone = [None, None];
        let kept = self.locked(|queue, effects| {
            let is_heard = fair || queue.pauses.is_heard(name);
            let granted = Granted {
                number: turn.number,
                mode,
                is_own,
                was_forced: queue.forced >= Some(sent),
                served_at: is_heard.then(|| queue.numbers.last()),
            };
            let times = self.limits.at(sent);
            let keep =
                |state: &mut State, step: &mut Step<'_, _>| state.keep(granted, step.effects);
            let kept = queue.run(name, times, effects, keep);
            if kept == TurnOutcome::Kept {
                gone = queue.wakers.remove_of(turn);
            }
            kept
        });
        drop(gone);
        kept
    }

    /// Returns a wake-up for the end of a turn that its call does not end itself; `None` if it has ended.
    pub(in crate::engine) fn listen_to_turn(
        &self,
        name: &Name,
        number: u64,
    ) -> Option<WakeReceiver> {
        let mut queue = self.lock();
        let has_it = queue.names.get(name).is_some_and(|state| state.has(number));
        if !has_it {
            return None;
        }
        // That of a wait before it has no receiver any more.
        drop(queue.wakers.take(number));
        queue.wakers.listen(number, &NO_OPTIONS)
    }

    /// Lets holds be handed off to the call that has this turn. Returns what brings them.
    pub(in crate::engine) fn seek(
        &self,
        name: &Name,
        turn: TurnNumber,
        options: &Options,
    ) -> WakeReceiver {
        let woken = self.locked(|queue, effects| {
            let delay = options.lock_delay();
            let state = queue.names.get_mut(name)?;
            let seeks = state.seek(turn.number, turn.waiter, delay, effects);
            if seeks { queue.wakers.listen(turn.waiter, options) } else { None }
        });
        // Otherwise none comes.
        woken.unwrap_or_else(|| oneshot::channel().1)
    }

    /// Records the last request of the turn of this number, for the next turn, if a hold is handed off to its call.
    pub(in crate::engine) fn note_ask(&self, name: &Name, number: u64, asked: PermitsRequest) {
        let PermitsRequest { mode, again_at, wakeups: mut gone } = asked;
        let last = LastAsk { by: number, mode, again_at };
        let mut queue = self.lock();
        if queue.names.get_mut(name).is_some_and(|state| state.note_ask(last)) {
            gone = match gone {
                Some(wakeups) => queue.subscriptions.insert(number, wakeups),
                None => queue.subscriptions.remove(number),
            };
        }
        drop(queue);
        drop(gone);
    }

    /// Wakes all waiters.
    pub(crate) fn wake_all(&self) {
        let mut woken = Vec::new();
        let mut queue = self.lock();
        let QueueState { names, wakers, .. } = &mut *queue;
        for state in names.values_mut() {
            let mut effects = Effects::default();
            state.wake_all(&mut effects);
            effects.each(|effect| {
                if let Effect::Wake(number) = effect {
                    woken.extend(wakers.take(number));
                }
            });
        }
        drop(queue);
        woken.into_iter().for_each(|waker| wake(waker, None));
    }
}

/// Holds.
impl Queue {
    /// Puts the hold of a grant into the slot of this number. Its effects must be performed. It is doubted if the name may have been forced open or taken
    /// after the request, which was sent at `sent`.
    pub(in crate::engine) fn install(
        &self,
        hold: &Arc<Hold>,
        number: u64,
        sent: Instant,
    ) -> Installed {
        let (is_doubted, effects) = self.deferred(|queue, effects| {
            let Some(state) = queue.names.get_mut(&hold.name) else { return false };
            let doubted = state.install(self.slotted(number, hold, sent), hold.began);
            if state.shares_with_waiters(hold.mode) {
                let times = self.limits.at(self.clock.now());
                state.advance(&mut Step { times, numbers: &mut queue.numbers, effects });
            }
            doubted
        });
        Installed { is_doubted, effects }
    }

    fn slotted(&self, number: u64, hold: &Arc<Hold>, sent: Instant) -> SlottedHold<Arc<Hold>> {
        let joined_until = sent + self.limits.joins;
        SlottedHold { number, mode: hold.mode, hold: Arc::clone(hold), joined_until }
    }

    /// Returns whether a hold of a name may have a waiter to which it is handed off.
    pub(in crate::engine) fn is_contended(&self, name: &Name) -> bool {
        self.look(name, State::is_contended) == Some(true)
    }

    /// Installs the hold of `next` in the slot of the hold before, and offers it to the first waiter that is polled, if there
    /// is one that it may be handed off to. Its effects must be performed.
    pub(in crate::engine) fn hand_off(
        &self,
        name: &Name,
        slot: u64,
        now: Instant,
        chain: &Chain,
        next: impl FnOnce(Options) -> Arc<Hold>,
    ) -> Option<Handoff> {
        let times = self.limits.at(now);
        let mut effects = Effects::default();
        let mut guard = self.lock();
        let QueueState { names, numbers, wakers, .. } = &mut *guard;
        let state = names.get_mut(name)?;
        let recipient = state.recipient(slot, chain, times)?;
        let hold = next(wakers.options(recipient.waiter_no));
        let mut step = Step { times, numbers, effects: &mut effects };
        state.hand_off(slot, recipient, Arc::clone(&hold), &mut step);
        let effects = guard.defer(effects);
        drop(guard);
        Some(Handoff { hold, effects })
    }

    /// Installs the hold of `next` in the slot of the hold before, where it rests, if no call waits. `next` may refuse.
    pub(in crate::engine) fn rest(
        &self,
        name: &Name,
        slot: u64,
        next: impl FnOnce() -> Option<Arc<Hold>>,
    ) -> Option<Handoff> {
        let mut effects = Effects::default();
        let mut guard = self.lock();
        let state = guard.names.get_mut(name).filter(|state| state.may_rest(slot))?;
        let hold = next()?;
        state.rest(slot, Arc::clone(&hold), &mut effects);
        let effects = guard.defer(effects);
        drop(guard);
        Some(Handoff { hold, effects })
    }

    /// Returns the hold of a name that rests.
    pub(in crate::engine) fn resting(&self, name: &Name) -> Option<Arc<Hold>> {
        self.look(name, |state| state.resting().cloned()).flatten()
    }

    /// Withdraws the offer of `hold` from a waiter that did not accept it in time. Returns the effects.
    pub(in crate::engine) fn recall(&self, hold: &Arc<Hold>) -> Deferred {
        let ((), effects) = self.deferred(|queue, effects| {
            if let Some(state) = queue.names.get_mut(&hold.name) {
                state.recall(hold, effects);
            }
        });
        effects
    }

    /// Returns the hold that a reader of another handle may join now: the youngest one, if none waits in the queue.
    pub(in crate::engine) fn joinable(&self, name: &Name) -> Option<Arc<Hold>> {
        self.look(name, |state| state.read_hold(self.clock.now()).cloned()).flatten()
    }

    /// Lets no further reader join this hold.
    pub(in crate::engine) fn disband(&self, hold: &Arc<Hold>) {
        self.note(&hold.name, |state| state.disband(hold));
    }

    /// Marks a slot as one of [`Mode::Write`], if nothing else of this process holds the name, asks or waits for it.
    /// Returns whether it did.
    pub(in crate::engine) fn begin_upgrade(&self, name: &Name, number: u64) -> bool {
        self.note(name, |state| state.begin_upgrade(number)) == Some(true)
    }

    /// Sets the mode of a slot back after an upgrade that was refused. Admits the waiters that may ask now.
    pub(in crate::engine) fn end_upgrade(&self, name: &Name, number: u64, mode: Mode) {
        let times = self.limits.at(self.clock.now());
        self.locked(|queue, effects| {
            queue.run(name, times, effects, |state, step| state.end_upgrade(number, mode, step));
        });
    }

    /// Puts a hold of another mode into its slot, granted by a request of `sent`. Admits the waiters that may ask now.
    pub(in crate::engine) fn replace_in_slot(
        &self,
        hold: &Arc<Hold>,
        number: u64,
        sent: Instant,
    ) -> Deferred {
        let times = self.limits.at(self.clock.now());
        let slotted = self.slotted(number, hold, sent);
        let ((), effects) = self.deferred(|queue, effects| {
            queue.run(&hold.name, times, effects, |state, step| {
                state.replace_in_slot(slotted, step)
            });
        });
        effects
    }

    /// Returns the hold of a name that has this holder id.
    pub(in crate::engine) fn hold_of(&self, name: &Name, holder: HolderId) -> Option<Arc<Hold>> {
        self.look(name, |state| state.holds().find(|hold| hold.holder == holder).cloned()).flatten()
    }

    /// Calls `visit` for each hold of a name, also for one that is handed off while this runs. `visit` must keep a hold from being
    /// handed off again and again, as its loss does, or a renewal that is due.
    pub(in crate::engine) fn each_hold_of(&self, name: &Name, mut visit: impl FnMut(&Arc<Hold>)) {
        let mut visited = HashSet::new();
        loop {
            let mut new = self.holds_of(name);
            new.retain(|hold| visited.insert(hold.number));
            if new.is_empty() {
                return;
            }
            new.iter().for_each(&mut visit);
        }
    }

    /// Returns the holds that this process has of a name.
    pub(crate) fn holds_of(&self, name: &Name) -> Vec<Arc<Hold>> {
        self.look(name, |state| state.holds().cloned().collect()).unwrap_or_default()
    }

    /// Returns all holds of this process, in the order in which they were requested.
    pub(crate) fn holds(&self) -> Vec<Arc<Hold>> {
        let state = self.lock();
        let mut holds: Vec<Arc<Hold>> =
            state.names.values().flat_map(State::holds).cloned().collect();
        drop(state);
        holds.sort_unstable_by_key(|hold| hold.holder.number());
        holds
    }

    /// Returns all holds of this process, each with the number of waiters for its name, in the order in which they were
    /// requested.
    pub(crate) fn held(&self) -> Vec<(Arc<Hold>, usize)> {
        let queue = self.lock();
        let mut held = Vec::with_capacity(queue.names.len());
        for state in queue.names.values() {
            let waiters = state.waiting();
            held.extend(state.holds().map(|hold| (Arc::clone(hold), waiters)));
        }
        drop(queue);
        held.sort_unstable_by_key(|(hold, _)| hold.holder.number());
        held
    }

    /// Returns the modes of another kind than `mode` in which this process has a name, or waits for it after an answer of
    /// the store, and the holds.
    pub(in crate::engine) fn used_otherwise(
        &self,
        name: &Name,
        mode: Mode,
    ) -> Vec<(Mode, Option<Arc<Hold>>)> {
        let others = |state: &State| {
            let others = state.used_otherwise(mode);
            others.map(|other| (other.mode, other.hold().cloned())).collect()
        };
        self.look(name, others).unwrap_or_default()
    }

    /// Returns whether this waiter waits for the end of a hold of this process and is the first one that is polled.
    pub(in crate::engine) fn is_first_behind_a_hold(
        &self,
        name: &Name,
        waiter: u64,
        mode: Mode,
        now: Instant,
    ) -> bool {
        let is_first = |state: &State| {
            let excludes = |hold: &Arc<Hold>| !mode::can_share(hold.mode, mode);
            state.holds().next().is_some_and(excludes) && state.is_first(waiter, now)
        };
        self.look(name, is_first) == Some(true)
    }

    /// Returns the number of waiters for a name before that of this number.
    pub(in crate::engine) fn ahead(&self, name: &Name, number: Option<u64>) -> usize {
        self.look(name, |state| state.ahead(number)).unwrap_or_default()
    }

    /// Returns whether a call of this process asks or waits for a name.
    pub(crate) fn is_awaited_here(&self, name: &Name) -> bool {
        self.look(name, |state| state.has_waiters() || state.is_asked_for()) == Some(true)
    }
}

/// What is heard about names.
impl Queue {
    /// Records a release in the store. If waiters elsewhere heard it, the next turn pauses before
    /// it asks; `None` means that no waiter elsewhere heard it.
    pub(crate) fn released(&self, name: &Name, now: Instant, heard: Option<Heard>) {
        let mut state = self.lock();
        match heard {
            Some(heard) => state.pauses.begin(name, heard),
            None => state.pauses.unheard(name, now),
        }
    }

    /// Returns the time until which waiters elsewhere go first, if that is to come.
    pub(crate) fn not_before(&self, name: &Name) -> Option<Instant> {
        self.lock().pauses.not_before(name, self.clock.now())
    }

    /// Records that the store has made a semaphore smaller, if this process has permits of it. Only the store knows when enough
    /// of them are released, so no hold that it has granted is handed off any more.
    pub(in crate::engine) fn shrunk(&self, name: &Name) {
        let now = self.clock.now();
        self.note(name, |state| state.shrunk(now));
    }

    /// Records that this process forced a name open, at the latest at `now`, or takes it from its holder for the turn of the
    /// number `by`: each other request so far may have been granted before.
    pub(crate) fn forced(&self, name: &Name, now: Instant, by: Option<u64>) {
        let mut queue = self.lock();
        queue.forced = Some(now);
        if let Some(state) = queue.names.get_mut(name) {
            state.mark_forced(by);
        }
    }

    /// Records that another manager says that it has taken a name. A grant that is on its way is verified when it arrives:
    /// it may have come before.
    pub(in crate::engine) fn doubted(&self, name: &Name) {
        self.note(name, State::mark_doubted);
    }

    /// Records a request at `now` that the store has not answered.
    pub(crate) fn unanswered(&self, name: &Name, now: Instant) {
        self.note(name, |state| state.unanswered(now));
    }

    /// Records that the store answered.
    pub(crate) fn answered(&self, name: &Name) {
        let now = self.clock.now();
        self.note(name, |state| state.answered(now));
    }

    /// Records that the store answered that a name is held elsewhere.
    pub(crate) fn saw_another(&self, name: &Name) {
        let now = self.clock.now();
        let mut queue = self.lock();
        queue.pauses.saw_another(name);
        if let Some(state) = queue.names.get_mut(name) {
            state.saw_another(now);
        }
    }

    /// Returns the silence of the store about a name; `None` if it has answered all requests.
    pub(crate) fn silence(&self, name: &Name) -> Option<Silence> {
        self.look(name, State::silence).flatten()
    }
}

/// The line of the waiters of all processes: see [`line`](super::line).
impl Queue {
    /// Returns whether this process has used a fair lock.
    pub(in crate::engine) fn is_fair(&self) -> bool {
        self.is_fair.load(Ordering::Relaxed)
    }

    /// Records that this process uses a fair lock.
    pub(in crate::engine) fn set_fair(&self) {
        self.is_fair.store(true, Ordering::Relaxed);
    }

    /// Returns the arrival of the waiter that asks next, if it takes part in the line.
    pub(in crate::engine) fn next_arrival(&self, name: &Name, now: Instant) -> Option<Instant> {
        self.look(name, |state| state.next_arrival(now)).flatten()
    }

    /// Opens the arrival that a request of `holder` has recorded for the waiter that asks next. Returns it.
    pub(in crate::engine) fn open_arrival(
        &self,
        name: &Name,
        holder: HolderId,
        now: Instant,
    ) -> Option<Instant> {
        let mut queue = self.lock();
        let arrived = queue.names.get(name)?.next_arrival(now)?;
        queue.arrivals.insert(name.clone(), OpenedArrival { holder, arrived });
        Some(arrived)
    }

    /// Records that an open arrival is that of a waiter that asks: its request refreshes it.
    pub(in crate::engine) fn claim_arrival(&self, name: &Name) {
        let mut queue = self.lock();
        if !queue.arrivals.is_empty() {
            queue.arrivals.remove(name);
        }
    }

    /// Removes the arrival that is open for a waiter which goes. Returns the holder id that has recorded it.
    pub(in crate::engine) fn abandoned_arrival(
        &self,
        name: &Name,
        arrived: Instant,
    ) -> Option<HolderId> {
        let mut queue = self.lock();
        if queue.arrivals.is_empty() || queue.arrivals.get(name)?.arrived != arrived {
            return None;
        }
        queue.arrivals.remove(name).map(|opened| opened.holder)
    }
}

#[cfg(test)]
impl Queue {
    /// Returns whether nothing is kept for any name.
    pub(in crate::engine) fn is_empty(&self) -> bool {
        let queue = self.lock();
        queue.names.is_empty() && queue.wakers.size().0 == 0 && queue.subscriptions.size().0 == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::acquire::turn::{Admission, Turn, WaiterGuard};
    use crate::engine::shared::core::core_in_memory;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    fn is_ready(future: impl Future) -> bool {
        pin!(future).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    fn name(name: &str) -> Name {
        Name::new(name).unwrap()
    }

    fn turn(core: &Core, name: &Name) -> Turn {
        Turn::at_once(&core.queue, name, Mode::Exclusive, core.now()).expect("a turn")
    }

    /// Returns the guard of a waiter that is in the queue.
    fn waiter<'a>(core: &'a Core, name: &'a Name) -> WaiterGuard<'a> {
        let mut waiter = WaiterGuard::new(&core.queue, name, Mode::Exclusive);
        assert!(waiter.pulse(core.now()).is_err());
        waiter
    }

    #[test]
    fn waiters_of_all_names_are_woken_at_once() {
        let core = core_in_memory();
        let names = [name("n"), name("m")];
        let turns = names.each_ref().map(|name| turn(&core, name));
        let mut waiting = names.each_ref().map(|name| waiter(&core, name));
        assert!(waiting.iter_mut().all(|waiter| !is_ready(waiter.woken())));
        core.queue.wake_all();
        for waiter in &mut waiting {
            assert!(is_ready(waiter.woken()));
            assert!(waiter.pulse(core.now()).is_err(), "it waits on");
            assert!(!is_ready(waiter.woken()));
        }
        drop(turns);
    }

    #[test]
    fn queue_is_empty_after_its_last_waiter_and_turn() {
        let (core, name) = (core_in_memory(), name("n"));
        let first = turn(&core, &name);
        let waiters: Vec<_> = (0..10_000).map(|_| waiter(&core, &name)).collect();
        drop(waiters);
        assert!(core.queue.lock().wakers.size().1 < 1_000, "it keeps no memory");
        drop(first);
        assert!(core.queue.is_empty());
        drop(turn(&core, &name));
    }

    #[test]
    fn turn_wakes_the_waiter_behind_it_when_it_is_dropped() {
        let (core, name) = (core_in_memory(), name("n"));
        let first = turn(&core, &name);
        let [mut gone, mut second, mut third] = [(); 3].map(|()| waiter(&core, &name));
        assert!(!is_ready(gone.woken()));
        drop(gone);
        drop(first);
        assert!(is_ready(second.woken()) && !is_ready(third.woken()));
        let Ok(Admission::Turn(turn)) = second.pulse(core.now()) else { panic!("no turn") };
        drop((turn, second));
        assert!(is_ready(third.woken()));
        drop(third);
        assert!(core.queue.is_empty());
    }

    #[test]
    fn late_grant_wakes_the_call_whose_turn_it_takes() {
        let (core, name) = (core_in_memory(), name("n"));
        let sent = core.now();
        let late = turn(&core, &name);
        let now = sent + core.timing.ttl;
        let other = Turn::at_once(&core.queue, &name, Mode::Exclusive, now).expect("reclaimed");
        assert!(is_ready(late.ended()), "it is gone already");
        assert!(!is_ready(other.ended()));
        {
            let mut ended = pin!(other.ended());
            let mut context = Context::from_waker(Waker::noop());
            assert!(ended.as_mut().poll(&mut context).is_pending());
            assert_eq!(late.keep(sent, true), TurnOutcome::Kept);
            assert!(ended.as_mut().poll(&mut context).is_ready());
        }
        assert_eq!(other.asked(now, now), None);
        drop((late, other));
        assert!(core.queue.is_empty());
    }

    #[test]
    fn wakers_are_gone_with_their_calls() {
        let (core, name) = (core_in_memory(), name("n"));
        let mode = Mode::Permits { size: 1, take: 1 };
        let mut first = WaiterGuard::new(&core.queue, &name, mode);
        let Ok(Admission::Turn(turn)) = first.pulse(core.now()) else { panic!("no turn") };
        let mut passed = turn.seek(&NO_OPTIONS);
        assert!(!is_ready(turn.ended()));
        assert_eq!(core.queue.lock().wakers.size().0, 2);
        assert!(!is_ready(&mut passed));
        drop(turn);
        assert!(is_ready(passed), "no hold comes any more");
        assert!(core.queue.is_empty());
        let Ok(Admission::Turn(turn)) = first.pulse(core.now()) else { panic!("no turn") };
        let _passed = turn.seek(&NO_OPTIONS);
        assert_eq!(turn.keep(core.now(), true), TurnOutcome::Kept);
        assert_eq!(core.queue.lock().wakers.size().0, 0);
        drop(turn);
        assert!(core.queue.is_empty());
    }
}
