//! A client: the leasehold of one process, as far as one name goes.
//!
//! Ages are ticks of its own clock since `s`, when the request in question was sent.

use crate::rules::{HANDOFFS, Rule, Rules, T};
use crate::server::{Op, Token, Verdict};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Client {
    number: u8,
    /// How many tokens it has drawn.
    pub drawn: u8,
    /// By how much its clock is behind.
    pub lag: u8,
    pub phase: Phase,
    /// What is released by its token until T after the last send.
    pub sweeps: Vec<Sweep>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub enum Phase {
    #[default]
    Idle,
    Asking {
        token: Token,
        flight: Option<u8>,
        /// The age of an earlier request whose fate is unknown.
        unsure: Option<u8>,
    },
    /// It believes.
    Held(Hold),
    /// Told at C; its work stops until D.
    Stopping { token: Token, age: u8, unsure: Option<u8> },
    /// Its belief ended before the release was sent.
    Releasing { hold: Hold, flight: u8 },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Hold {
    pub token: Token,
    pub fence: u8,
    /// Since the last confirmed grant or renewal was sent.
    pub age: u8,
    pub count: u8,
    /// The highest count that it has asked the server for.
    pub asked: u8,
    /// How often it was handed off.
    pub passed: u8,
    /// The renewal under way.
    pub renewal: Option<u8>,
    /// A renewal was not answered.
    pub at_risk: bool,
    /// The operation under way that writes the count; one at a time.
    pub op: Option<(Op, u8)>,
    /// The server has this count.
    pub recorded: bool,
    /// Some request of it was given up, so that a copy may be on its way.
    pub copies: bool,
    unsure: Option<u8>,
}

/// A token that may have been granted, or may still be, unknown to its client.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sweep {
    pub token: Token,
    /// Since the last acquire was sent.
    pub age: u8,
    pub flight: Option<u8>,
    /// Only one acquire is unknown, so one release that found it is enough.
    single: bool,
}

/// What a client may send next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Send {
    Acquire,
    AskAgain,
    Renew,
    Nest,
    Leave,
    ReleaseAgain,
    Sweep(usize),
}

pub type Sent = (Token, Op);

impl Client {
    pub fn new(number: u8) -> Self {
        Self { number, drawn: 0, lag: 0, phase: Phase::Idle, sweeps: Vec::new() }
    }

    /// `None`: not now.
    pub fn send(&mut self, what: Send) -> Option<Sent> {
        match what {
            Send::Acquire => self.acquire(),
            Send::AskAgain => self.ask_again(),
            Send::Renew => self.renew(),
            Send::Nest => self.nest(),
            Send::Leave => self.leave(),
            Send::ReleaseAgain => self.release_again(),
            Send::Sweep(i) => self.send_sweep(i),
        }
    }

    pub fn believes(&self) -> Option<&Hold> {
        match &self.phase {
            Phase::Held(hold) => Some(hold),
            _ => None,
        }
    }

    /// Whether it will still do something about this token.
    pub fn cares_for(&self, token: Token) -> bool {
        let phase = match &self.phase {
            Phase::Idle => None,
            Phase::Asking { token, .. } | Phase::Stopping { token, .. } => Some(*token),
            Phase::Held(hold) | Phase::Releasing { hold, .. } => Some(hold.token),
        };
        phase == Some(token) || self.sweeps.iter().any(|sweep| sweep.token == token)
    }

    pub fn is_idle(&self) -> bool {
        self.phase == Phase::Idle && self.sweeps.is_empty()
    }

    fn hold(&mut self) -> Option<&mut Hold> {
        match &mut self.phase {
            Phase::Held(hold) => Some(hold),
            _ => None,
        }
    }

    /// A new token for each outermost acquire.
    fn acquire(&mut self) -> Option<Sent> {
        if self.phase != Phase::Idle {
            return None;
        }
        let token = Token { client: self.number, number: self.drawn };
        self.drawn += 1;
        self.phase = Phase::Asking { token, flight: Some(0), unsure: None };
        Some((token, Op::Acquire))
    }

    /// Asks again with the same token: after 'held', or when no answer came in time.
    fn ask_again(&mut self) -> Option<Sent> {
        let Phase::Asking { token, flight, unsure } = &mut self.phase else { return None };
        match flight {
            Some(0) => return None,
            Some(age) => *unsure = Some(*age),
            None => {}
        }
        *flight = Some(0);
        Some((*token, Op::Acquire))
    }

    /// The caller's future is dropped; what was sent is released by its token.
    pub fn abandon(&mut self, rules: Rules) -> bool {
        let Phase::Asking { token, flight, unsure } = self.phase else { return false };
        self.phase = Phase::Idle;
        let single = flight.is_none() || unsure.is_none();
        self.sweep(rules, token, flight.or(unsure), single);
        true
    }

    fn sweep(&mut self, rules: Rules, token: Token, age: Option<u8>, single: bool) {
        if let Some(age) = age
            && rules.keep(Rule::Sweep)
        {
            self.sweeps.push(Sweep { token, age, flight: None, single });
            self.sweeps.sort();
        }
    }

    /// Releases a token now and then, until T after its last acquire was sent.
    fn send_sweep(&mut self, i: usize) -> Option<Sent> {
        let sweep = self.sweeps.get_mut(i)?;
        if sweep.flight == Some(0) {
            return None;
        }
        sweep.flight = Some(0);
        Some((sweep.token, Op::Release))
    }

    fn renew(&mut self) -> Option<Sent> {
        let hold = self.hold()?;
        // One under way is given up first, if it is older.
        if hold.age == 0 || hold.renewal == Some(0) {
            return None;
        }
        hold.at_risk |= hold.renewal.is_some();
        hold.copies |= hold.renewal.is_some();
        hold.renewal = Some(0);
        Some((hold.token, Op::Renew))
    }

    /// Enters once more, or asks for it again.
    fn nest(&mut self) -> Option<Sent> {
        let hold = self.hold()?;
        let count = match hold.op {
            None if hold.count == 1 => 2,
            Some((Op::Nest(count), 1..)) => {
                hold.copies = true;
                count
            }
            _ => return None,
        };
        hold.asked = hold.asked.max(count);
        hold.recorded = false;
        hold.op = Some((Op::Nest(count), 0));
        Some((hold.token, Op::Nest(count)))
    }

    /// A lower count that got no answer is let be: it is only a record.
    pub fn forget_record(&mut self) -> bool {
        match self.hold() {
            Some(hold) if matches!(hold.op, Some((Op::Record(_), 1..))) => {
                (hold.op, hold.copies) = (None, true);
                true
            }
            _ => false,
        }
    }

    /// One lease less. The last one ends belief in the same step.
    fn leave(&mut self) -> Option<Sent> {
        let hold = self.hold()?;
        if hold.op.is_some() {
            return None;
        }
        let token = hold.token;
        hold.count -= 1;
        if hold.count > 0 {
            let op = Op::Record(hold.count);
            (hold.op, hold.recorded) = (Some((op, 0)), false);
            return Some((token, op));
        }
        self.phase = Phase::Releasing { hold: hold.clone(), flight: 0 };
        Some((token, Op::Release))
    }

    fn release_again(&mut self) -> Option<Sent> {
        match &mut self.phase {
            Phase::Releasing { hold, flight: flight @ 1.. } => {
                *flight = 0;
                Some((hold.token, Op::Release))
            }
            _ => None,
        }
    }

    /// Passes the hold on to a waiter of this process, in memory.
    pub fn hand_off(&mut self, rules: Rules) -> bool {
        let hold = match &mut self.phase {
            Phase::Held(hold) => hold,
            Phase::Releasing { hold, .. } if !rules.keep(Rule::HandOffBeforeRelease) => {
                hold.count = 1;
                hold
            }
            _ => return false,
        };
        let sure = hold.count == 1
            && hold.recorded
            && hold.op.is_none()
            && hold.renewal.is_none()
            && !hold.at_risk;
        if !sure || hold.passed == HANDOFFS || rules.stale(hold.age) {
            return false;
        }
        // For the holder before, the hold is over; this is the next one's.
        let (fence, passed) = (hold.fence + 1, hold.passed + 1);
        self.phase = Phase::Held(Hold { fence, passed, asked: 1, ..hold.clone() });
        true
    }

    /// Whether it waits for the reply to this request. An answer to one that was given up reaches nobody.
    pub fn waits_for(&self, (token, op): Sent, age: u8) -> bool {
        let sweeps = |sweep: &Sweep| sweep.token == token && sweep.flight == Some(age);
        op == Op::Release && self.sweeps.iter().any(sweeps)
            || match &self.phase {
                Phase::Asking { token: own, flight, .. } => {
                    *own == token && op == Op::Acquire && *flight == Some(age)
                }
                Phase::Held(hold) if op == Op::Renew => {
                    hold.token == token && hold.renewal == Some(age)
                }
                Phase::Held(hold) => hold.token == token && hold.op == Some((op, age)),
                Phase::Releasing { hold, flight } => {
                    hold.token == token && op == Op::Release && *flight == age
                }
                Phase::Idle | Phase::Stopping { .. } => false,
            }
    }

    /// A reply to the request of this token that was sent `age` ago, and that it waits for.
    pub fn answer(&mut self, rules: Rules, (token, op): Sent, verdict: Verdict, age: u8) {
        let sweep = |sweep: &Sweep| sweep.token == token && sweep.flight == Some(age);
        if op == Op::Release
            && let Some(i) = self.sweeps.iter().position(sweep)
        {
            let sweep = &mut self.sweeps[i];
            sweep.flight = None;
            // Its absence proves nothing: the grant may still be on its way.
            if sweep.age == T || (verdict == Verdict::Done && sweep.single) {
                self.sweeps.remove(i);
            }
            return;
        }
        match (&mut self.phase, op) {
            (Phase::Asking { token: own, flight, unsure }, Op::Acquire)
                if *own == token && *flight == Some(age) =>
            {
                let unsure = *unsure;
                match verdict {
                    Verdict::Granted(fence) => self.granted(rules, token, fence, age, unsure),
                    _ => *flight = None,
                }
            }
            (Phase::Held(hold), Op::Renew) if hold.token == token && hold.renewal == Some(age) => {
                hold.renewal = None;
                hold.at_risk = false;
                self.confirmed(verdict, age);
            }
            (Phase::Held(hold), Op::Nest(count)) if hold.op == Some((op, age)) => {
                (hold.op, hold.count, hold.recorded) = (None, count, true);
                self.confirmed(verdict, age);
            }
            (Phase::Held(hold), Op::Record(_)) if hold.op == Some((op, age)) => {
                (hold.op, hold.recorded) = (None, true);
                if verdict == Verdict::NotYours {
                    self.phase = Phase::Idle;
                }
            }
            (Phase::Releasing { hold, flight }, Op::Release)
                if hold.token == token && *flight == age =>
            {
                let unsure = hold.unsure;
                self.over(rules, token, unsure);
            }
            _ => {}
        }
    }

    fn granted(&mut self, rules: Rules, token: Token, fence: u8, age: u8, unsure: Option<u8>) {
        let sent = age;
        let age = if rules.keep(Rule::DeadlineFromSend) { age } else { 0 };
        if rules.stale(age) {
            self.phase = Phase::Idle;
            return self.sweep(rules, token, Some(sent), unsure.is_none());
        }
        self.phase = Phase::Held(Hold {
            token,
            fence,
            age,
            count: 1,
            asked: 1,
            passed: 0,
            renewal: None,
            at_risk: false,
            op: None,
            recorded: true,
            copies: unsure.is_some(),
            unsure,
        });
    }

    /// Only a confirmed grant or renewal moves D, by its own `s`, and only forward.
    fn confirmed(&mut self, verdict: Verdict, age: u8) {
        match (&mut self.phase, verdict) {
            (_, Verdict::NotYours) => self.phase = Phase::Idle,
            (Phase::Held(hold), _) => hold.age = hold.age.min(age),
            _ => {}
        }
    }

    /// The client's clock goes on. Whether it had to give something up.
    pub fn tick(&mut self, rules: Rules, ticks: u8) -> bool {
        let older = |age: &mut u8| *age = (*age + ticks).min(T);
        self.sweeps.iter_mut().for_each(|sweep| {
            older(&mut sweep.age);
            sweep.flight.iter_mut().for_each(older);
        });
        let sweeps = self.sweeps.len();
        self.sweeps.retain(|sweep| sweep.age < T || matches!(sweep.flight, None | Some(0)));
        let unanswered = self.sweeps.len() < sweeps;
        match &mut self.phase {
            Phase::Idle => {}
            Phase::Asking { flight, unsure, .. } => {
                flight.iter_mut().for_each(older);
                unsure.iter_mut().for_each(older);
            }
            Phase::Stopping { token, age, unsure } => {
                older(age);
                unsure.iter_mut().for_each(older);
                if *age >= rules.deadline() {
                    let (token, unsure) = (*token, *unsure);
                    self.over(rules, token, unsure);
                }
            }
            Phase::Held(hold) => {
                hold.older(older);
                let Hold { token, age, unsure, .. } = *hold;
                if age >= rules.deadline() {
                    self.over(rules, token, unsure);
                    return true;
                } else if age >= rules.cancel() {
                    self.phase = Phase::Stopping { token, age, unsure };
                    return true;
                }
            }
            Phase::Releasing { hold, flight } => {
                hold.older(older);
                older(flight);
                if hold.age >= rules.deadline() {
                    let (token, unsure) = (hold.token, hold.unsure);
                    self.over(rules, token, unsure);
                    return true;
                }
            }
        }
        unanswered
    }

    /// Nothing is left of a hold but what copies of its acquire may still do.
    fn over(&mut self, rules: Rules, token: Token, unsure: Option<u8>) {
        self.phase = Phase::Idle;
        self.sweep(rules, token, unsure.filter(|age| *age < T), false);
    }
}

impl Hold {
    fn older(&mut self, mut older: impl FnMut(&mut u8)) {
        older(&mut self.age);
        self.renewal.iter_mut().for_each(&mut older);
        self.unsure.iter_mut().for_each(&mut older);
        self.op.iter_mut().for_each(|(_, age)| older(age));
    }
}
