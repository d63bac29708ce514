//! The model: clients, the server, and a network that loses, delays, doubles and reorders.

use crate::client::{Client, Hold, Phase, Send};
use crate::rules::{DRIFT, GRACE, Rules, Sharing, T};
use crate::server::{Key, Op, Server, Token, Verdict};
use stateright::{Model, Property};
use std::collections::BTreeSet;

/// What a run of the checker covers.
#[derive(Clone, Copy, Debug)]
pub struct Scope {
    pub rules: Rules,
    pub clients: u8,
    /// How many tokens each client may draw.
    pub tokens: u8,
    /// How many [`Fault`]s there may be in all, besides losses and delays, of which there may be any.
    pub faults: u8,
    /// Which faults.
    pub kinds: &'static [Fault],
    /// All but the first client only ask, hold and release.
    pub plain_clients: bool,
    pub nesting: bool,
    pub handoff: bool,
    pub abandon: bool,
    /// Clocks may drift.
    pub drift: bool,
    /// How many requests may be sent in all.
    pub requests: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A request runs, and once more, later.
    Double,
    /// A request runs when its sender has long stopped to wait for it.
    Late,
    /// The server restarts without its keys, or an operator deletes them, or a failover loses them.
    LoseKeys,
    /// The server's clock is stepped forward, by T.
    StepForward,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    pub server: Server,
    pub clients: Vec<Client>,
    requests: BTreeSet<Message>,
    replies: BTreeSet<(Message, Verdict)>,
    sent: u8,
    faults: u8,
    /// To look back: something went wrong, or a hold was not renewed in time.
    disturbed: bool,
    /// To look back: the fencing token of who believed last, and whether one was not larger than that before.
    newest: u8,
    unordered: bool,
}

/// A request that was sent `age` ago by its client's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Message {
    token: Token,
    op: Op,
    age: u8,
}

/// The numbers are those of clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Send(usize, Send),
    /// The future of an acquire is dropped.
    Abandon(usize),
    /// A lower count got no answer, and is let be.
    ForgetRecord(usize),
    HandOff(usize),
    /// A request arrives and runs.
    Run(Message),
    /// A reply arrives.
    Answer(Message, Verdict),
    /// Time passes. With `Some`, that client's clock falls behind by a tick, or catches up.
    Tick(Option<usize>),
    RunTwice(Message),
    RunLate(Message),
    LoseKeys,
    StepForward,
}

impl Model for Scope {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World {
            server: Server::default(),
            clients: (0..self.clients).map(Client::new).collect(),
            requests: BTreeSet::new(),
            replies: BTreeSet::new(),
            sent: 0,
            faults: self.faults,
            disturbed: false,
            newest: 0,
            unordered: false,
        }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        for (i, client) in world.clients.iter().enumerate() {
            let mut send = |what| actions.push(Action::Send(i, what));
            if client.drawn < self.tokens {
                send(Send::Acquire);
            }
            send(Send::AskAgain);
            send(Send::Leave);
            (0..client.sweeps.len()).for_each(|sweep| send(Send::Sweep(sweep)));
            if i > 0 && self.plain_clients {
                continue;
            }
            send(Send::Renew);
            send(Send::ReleaseAgain);
            if self.abandon {
                actions.push(Action::Abandon(i));
            }
            if self.nesting {
                actions.extend([Action::Send(i, Send::Nest), Action::ForgetRecord(i)]);
            }
            if self.handoff {
                actions.push(Action::HandOff(i));
            }
        }
        actions.push(Action::Tick(None));
        if self.drift {
            // One is enough, because a clock matters only between its client and the server.
            actions.push(Action::Tick(Some(0)));
        }
        for message in &world.requests {
            match message.age {
                T => actions.push(Action::RunLate(*message)),
                _ => actions.extend([Action::Run(*message), Action::RunTwice(*message)]),
            }
        }
        for (message, verdict) in &world.replies {
            actions.push(Action::Answer(*message, *verdict));
        }
        actions.extend([Action::LoseKeys, Action::StepForward]);
    }

    fn next_state(&self, last: &World, action: Action) -> Option<World> {
        let mut world = last.clone();
        world.go_on(self, action).then(|| {
            world.forget_replies();
            world
        })
    }

    fn properties(&self) -> Vec<Property<Self>> {
        super::properties::all()
    }
}

impl World {
    /// Whether this can happen.
    fn go_on(&mut self, scope: &Scope, action: Action) -> bool {
        let rules = scope.rules;
        match action {
            Action::Send(i, what) => match self.clients[i].send(what) {
                Some((token, op)) => {
                    self.sent += 1;
                    self.sent <= scope.requests
                        && self.requests.insert(Message { token, op, age: 0 })
                }
                None => false,
            },
            Action::Abandon(i) => self.clients[i].abandon(rules),
            Action::ForgetRecord(i) => self.clients[i].forget_record(),
            Action::HandOff(i) => {
                let passed = self.clients[i].hand_off(rules);
                if passed {
                    self.begins(scope, i);
                }
                passed
            }
            Action::Tick(drift) => self.tick(scope, drift),
            Action::Run(message) => {
                self.requests.remove(&message);
                self.run(scope, message);
                true
            }
            Action::RunTwice(message) => {
                self.run(scope, message);
                self.fault(scope, Fault::Double)
            }
            Action::RunLate(message) => {
                self.requests.remove(&message);
                self.run(scope, message);
                self.fault(scope, Fault::Late)
            }
            Action::Answer(message, verdict) => {
                self.replies.remove(&(message, verdict));
                self.disturbed |= message.op == Op::Release && message.age > 0;
                let i = usize::from(message.token.client);
                let believed = self.clients[i].believes().is_some();
                self.clients[i].answer(rules, (message.token, message.op), verdict, message.age);
                if !believed && self.clients[i].believes().is_some() {
                    self.begins(scope, i);
                }
                true
            }
            Action::LoseKeys => {
                self.server.keys.clear();
                self.fault(scope, Fault::LoseKeys)
            }
            Action::StepForward => {
                self.server.tick(T);
                self.fault(scope, Fault::StepForward)
            }
        }
    }

    /// Replies that no client waits for.
    fn forget_replies(&mut self) {
        let clients = &self.clients;
        self.replies.retain(|(message, _)| {
            let client = &clients[usize::from(message.token.client)];
            client.waits_for((message.token, message.op), message.age)
        });
    }

    fn run(&mut self, scope: &Scope, message: Message) {
        let verdict = self.server.run(message.token, message.op, scope.rules);
        self.replies.insert((message, verdict));
    }

    fn fault(&mut self, scope: &Scope, fault: Fault) -> bool {
        if self.faults == 0 || !scope.kinds.contains(&fault) {
            return false;
        }
        self.faults -= 1;
        self.disturbed = true;
        true
    }

    fn begins(&mut self, scope: &Scope, i: usize) {
        if scope.rules.sharing == Sharing::Exclusive
            && let Some(hold) = self.clients[i].believes()
        {
            self.unordered |= hold.fence <= self.newest;
            self.newest = hold.fence;
        }
    }

    fn tick(&mut self, scope: &Scope, drift: Option<usize>) -> bool {
        let steps: Vec<u8> = (0..self.clients.len())
            .map(|i| match (drift == Some(i), &mut self.clients[i].lag) {
                (true, lag @ 0..DRIFT) => {
                    *lag += 1;
                    0
                }
                (true, lag) => {
                    *lag -= 1;
                    2
                }
                (false, _) => 1,
            })
            .collect();
        for (client, steps) in self.clients.iter_mut().zip(&steps) {
            self.disturbed |= client.tick(scope.rules, *steps);
        }
        self.server.tick(1);
        let older = |message: Message| {
            let age = message.age + steps[usize::from(message.token.client)];
            Message { age: age.min(T), ..message }
        };
        let late = self.faults > 0 && scope.kinds.contains(&Fault::Late);
        let under_way = self.requests.len();
        let requests = std::mem::take(&mut self.requests).into_iter().map(older);
        self.requests = requests.filter(|message| message.age < T || late).collect();
        // Without a `Late`, what did not arrive in T never does.
        self.disturbed |= !late && self.requests.len() < under_way;
        let replies = std::mem::take(&mut self.replies).into_iter();
        let replies = replies.map(|(message, verdict)| (older(message), verdict));
        self.replies = replies.collect();
        true
    }

    pub fn believers(&self) -> impl Iterator<Item = &Hold> {
        self.clients.iter().filter_map(Client::believes)
    }

    fn key(&self, token: Token) -> Option<&Key> {
        self.server.keys.get(&token)
    }

    /// Whether those that believe may hold the name at once.
    pub fn believers_may_share(&self, scope: &Scope) -> bool {
        scope.rules.sharing.allows(self.believers().map(|hold| hold.token.client))
    }

    /// Whether a key of this token, with more than `least` ticks to live, is there.
    fn keeps(&self, token: Token, least: u8) -> bool {
        self.key(token).is_some_and(|key| key.ttl.is_none_or(|ttl| ttl > least))
    }

    /// Each believer's key is there for longer than the grace.
    pub fn believers_are_covered(&self) -> bool {
        self.believers().all(|hold| self.keeps(hold.token, GRACE))
    }

    /// The name cannot be granted while a holder whose token has fired still has its grace.
    pub fn grace_is_covered(&self) -> bool {
        self.clients.iter().all(|client| match client.phase {
            Phase::Stopping { token, .. } => self.keeps(token, 0),
            _ => true,
        })
    }

    pub fn fences_grow(&self) -> bool {
        !self.unordered
    }

    pub fn fences_differ(&self, scope: &Scope) -> bool {
        if scope.rules.sharing != Sharing::Exclusive {
            return true;
        }
        let fences: BTreeSet<u8> = self.believers().map(|hold| hold.fence).collect();
        fences.len() == self.believers().count()
    }

    pub fn keys_end(&self) -> bool {
        self.server.keys.values().all(|key| key.ttl.is_some() && key.untouched < T)
    }

    pub fn counts_were_asked_for(&self) -> bool {
        self.believers().all(|hold| self.key(hold.token).is_none_or(|key| key.count <= hold.asked))
    }

    /// When nothing is under way and nothing went wrong, the server knows the count.
    pub fn counts_agree(&self) -> bool {
        self.believers().all(|hold| {
            let quiet = self.requests.iter().all(|message| message.token != hold.token);
            let sure = hold.recorded && !hold.copies && !self.disturbed;
            let agrees = self.key(hold.token).is_some_and(|key| key.count == hold.count);
            !quiet || !sure || agrees
        })
    }

    /// When nothing is under way and nothing went wrong, nothing is left behind.
    pub fn nothing_is_left(&self) -> bool {
        let idle = self.clients.iter().all(Client::is_idle) && self.requests.is_empty();
        self.disturbed || !idle || self.server.keys.is_empty()
    }

    /// The server keeps a key that no client has or wants.
    pub fn has_orphan(&self) -> bool {
        let cared = |token| self.clients.iter().any(|client| client.cares_for(token));
        self.server.keys.keys().any(|token| !cared(*token))
    }
}
