//! The fencing tokens of a quorum, without their code: every order of events within small bounds, and random ones beyond.
//!
//! A few nodes, a few grants. A message may be lost, be late, run twice, and overtake others; a hold may vanish from a node at
//! any moment, as by expiry or `DEL`. So nothing here relies on exclusion. Time is in ticks: T is [`T`] of them, and a tick is
//! [`MICROS`] of a node's clock. The clocks differ by the [`skew`](Tokens::skew) of each.
//!
//! | here | there |
//! |---|---|
//! | `World::propose` | `propose.lua`, `MemoryStore`: `max(last + 1, clock)`, without writing |
//! | `Action::Choose` | `store/quorum/tokens.rs`, `Numbering::number`: the largest proposal of the majority that is counted |
//! | `World::store` | `reserve.lua`, `store/memory/requests.rs`: only a token that is larger than the last one |
//! | `Action::Raise` | `Numbering::number`: a larger token, where others were quicker |
//! | `Action::Complete` | the same, and `Reported::check_age` in `store/quorum/node/mod.rs`: stored by a majority that is old enough |

use stateright::{Checker, HasDiscoveries, Model, Property};
use std::collections::BTreeSet;

/// T in ticks.
pub const T: i16 = 1;
/// A tick of a node's clock.
pub const MICROS: i16 = 8;
/// The tokens that a grant reserves.
const BLOCK: i16 = 2;

pub const DISTINCT: &str = "no two grants have the same fencing token";
pub const GROWING: &str =
    "a grant that began after another was complete has a larger fencing token";
pub const BOTH: &str = "both of two grants are complete";
pub const RAISED: &str = "a grant is complete whose first choice was outrun";

/// A rule of the protocol, to be dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenRule {
    /// A node stores only a token that is larger than the last one.
    Strict,
    /// A node counts only when it has been up for T.
    Age,
    /// The grant counts only if a majority has stored its token.
    Stored,
}

/// What a run covers.
#[derive(Clone, Copy, Debug)]
pub struct Tokens {
    /// By how much the clock of each node is ahead.
    pub skew: &'static [i16],
    pub grants: usize,
    /// For how many ticks it goes on.
    pub ticks: i16,
    /// How often a node may restart without its keys.
    pub restarts: u8,
    /// How often a running node may be flushed.
    pub flushes: u8,
    /// How often a grant may choose a larger token.
    pub raises: u8,
    pub dropped: &'static [TokenRule],
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    time: i16,
    restarts: u8,
    flushes: u8,
    nodes: Vec<Node>,
    grants: Vec<Grant>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Node {
    /// The last token; `None` if there is none, or none is known.
    last: Option<i16>,
    holder: Option<usize>,
    started: i16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Grant {
    phase: Phase,
    sent: i16,
    /// The largest token of a grant that was complete when this one began.
    floor: i16,
    proposals: Vec<Option<i16>>,
    /// The tokens that it has chosen. The last one counts.
    chosen: Vec<i16>,
    /// Whether each node counts for that one.
    votes: Vec<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Idle,
    First,
    Second,
    Complete,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Begin(usize),
    /// A request of the first round runs at a node, however late.
    First {
        grant: usize,
        node: usize,
    },
    /// The ballot counts a majority with this as its largest proposal.
    Choose {
        grant: usize,
        first: i16,
    },
    /// A request of the second round runs at a node, however late, with the choice of this number.
    Second {
        grant: usize,
        node: usize,
        choice: usize,
    },
    /// The ballot hears of the last token of a node that was quicker.
    Raise {
        grant: usize,
        node: usize,
    },
    Complete(usize),
    Vanish(usize),
    Restart(usize),
    Flush(usize),
    Tick,
}

impl Grant {
    fn first(&self) -> i16 {
        self.chosen.last().copied().unwrap_or_default()
    }

    fn last(&self) -> i16 {
        self.first() + BLOCK - 1
    }
}

impl Tokens {
    fn has(&self, rule: TokenRule) -> bool {
        !self.dropped.contains(&rule)
    }

    fn majority(&self) -> usize {
        self.skew.len() / 2 + 1
    }

    fn propose(&self, world: &World, node: usize) -> i16 {
        let clock = world.time * MICROS + self.skew[node] + 1;
        world.nodes[node].last.map_or(clock, |last| clock.max(last + 1))
    }

    /// Returns the largest proposals that the majorities of a grant can have.
    fn choices(&self, grant: &Grant) -> Vec<i16> {
        let mut proposals: Vec<i16> = grant.proposals.iter().flatten().copied().collect();
        proposals.sort_unstable();
        let mut choices = proposals.split_off(proposals.len().min(self.majority() - 1));
        choices.dedup();
        choices
    }

    fn store(&self, world: &mut World, number: usize, node: usize, choice: usize) {
        let (grant, at) = (&mut world.grants[number], &mut world.nodes[node]);
        let first = grant.chosen[choice];
        if at.holder != Some(number)
            || self.has(TokenRule::Strict) && at.last.is_some_and(|last| last >= first)
        {
            return;
        }
        at.last = Some(first + BLOCK - 1);
        let old = !self.has(TokenRule::Age) || at.started + T <= grant.sent;
        if choice + 1 == grant.chosen.len() && old && grant.phase == Phase::Second {
            grant.votes[node] = true;
        }
    }

    /// Runs a random story of so many steps. Returns whether each grant that is complete is as it must be, and how many
    /// are.
    pub fn random(&self, seed: u64, steps: usize) -> Story {
        let mut dice = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut roll = |sides: usize| {
            dice ^= dice << 13;
            dice ^= dice >> 7;
            dice ^= dice << 17;
            (dice >> 11) as usize % sides.max(1)
        };
        let mut world = self.init_states().swap_remove(0);
        for _ in 0..steps {
            let mut actions = Vec::new();
            self.actions(&world, &mut actions);
            // Disturbances are rarer than messages.
            let is_rare = |action: &Action| {
                matches!(
                    action,
                    Action::Vanish(_) | Action::Restart(_) | Action::Flush(_) | Action::Tick
                )
            };
            let rare = roll(8) == 0;
            actions.retain(|action| is_rare(action) == rare);
            if actions.is_empty() {
                continue;
            }
            let action = actions[roll(actions.len())];
            if let Some(next) = self.next_state(&world, action) {
                world = next;
            }
            if !world.differ() || !world.grow() {
                return Story { good: false, complete: world.complete().count() };
            }
        }
        Story { good: true, complete: world.complete().count() }
    }
}

/// How a random story ended.
pub struct Story {
    /// Whether all tokens are distinct, and grow.
    pub good: bool,
    /// The number of grants that are complete.
    pub complete: usize,
}

impl World {
    fn complete(&self) -> impl Iterator<Item = &Grant> {
        self.grants.iter().filter(|grant| grant.phase == Phase::Complete)
    }

    fn differ(&self) -> bool {
        let mut blocks: Vec<(i16, i16)> =
            self.complete().map(|grant| (grant.first(), grant.last())).collect();
        blocks.sort_unstable();
        blocks.windows(2).all(|pair| pair[0].1 < pair[1].0)
    }

    fn grow(&self) -> bool {
        self.complete().all(|grant| grant.first() > grant.floor)
    }
}

impl Model for Tokens {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let nodes = self.skew.len();
        let node = Node { last: None, holder: None, started: -T };
        let grant = Grant {
            phase: Phase::Idle,
            sent: 0,
            floor: 0,
            proposals: vec![None; nodes],
            chosen: Vec::new(),
            votes: vec![false; nodes],
        };
        vec![World {
            time: 0,
            restarts: self.restarts,
            flushes: self.flushes,
            nodes: vec![node; nodes],
            grants: vec![grant; self.grants],
        }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        if world.complete().count() == self.grants {
            // No token can change any more.
            return;
        }
        for (number, grant) in world.grants.iter().enumerate() {
            if grant.phase == Phase::Idle {
                // They differ in nothing but their numbers.
                if number == 0 || world.grants[number - 1].phase != Phase::Idle {
                    actions.push(Action::Begin(number));
                }
                continue;
            }
            for (node, at) in world.nodes.iter().enumerate() {
                if at.holder.is_none() {
                    actions.push(Action::First { grant: number, node });
                }
                if at.holder == Some(number) {
                    let chosen = 0..grant.chosen.len();
                    actions.extend(chosen.map(|choice| Action::Second {
                        grant: number,
                        node,
                        choice,
                    }));
                    let outrun = at.last.is_some_and(|last| last >= grant.first());
                    let raises = usize::from(self.raises);
                    if grant.phase == Phase::Second && outrun && grant.chosen.len() <= raises {
                        actions.push(Action::Raise { grant: number, node });
                    }
                }
            }
            if grant.phase == Phase::First {
                let choices = self.choices(grant).into_iter();
                actions.extend(choices.map(|first| Action::Choose { grant: number, first }));
            }
            let votes = grant.votes.iter().filter(|vote| **vote).count();
            let enough = votes >= self.majority() || !self.has(TokenRule::Stored) && votes > 0;
            if grant.phase == Phase::Second && enough {
                actions.push(Action::Complete(number));
            }
        }
        for (node, at) in world.nodes.iter().enumerate() {
            if at.holder.is_some() {
                actions.push(Action::Vanish(node));
            }
            // One that knows nothing has nothing to forget.
            if at.last.is_some() && world.restarts > 0 {
                actions.push(Action::Restart(node));
            }
            if at.last.is_some() && world.flushes > 0 {
                actions.push(Action::Flush(node));
            }
        }
        if world.time < self.ticks {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, last: &World, action: Action) -> Option<World> {
        let mut world = last.clone();
        match action {
            Action::Begin(number) => {
                let floor = last.complete().map(Grant::last).max().unwrap_or_default();
                let grant = &mut world.grants[number];
                (grant.phase, grant.sent, grant.floor) = (Phase::First, last.time, floor);
            }
            Action::First { grant, node } => {
                world.nodes[node].holder = Some(grant);
                let proposal = self.propose(last, node);
                let grant = &mut world.grants[grant];
                if grant.phase == Phase::First && grant.proposals[node].is_none() {
                    grant.proposals[node] = Some(proposal);
                }
            }
            Action::Choose { grant, first } => {
                let grant = &mut world.grants[grant];
                grant.phase = Phase::Second;
                grant.chosen.push(first);
                // They have done their work.
                grant.proposals.fill(None);
            }
            Action::Second { grant, node, choice } => self.store(&mut world, grant, node, choice),
            Action::Raise { grant, node } => {
                let known = last.nodes[node].last?;
                let grant = &mut world.grants[grant];
                let next = known.max(grant.last()) + 1;
                grant.chosen.push(next);
                grant.votes.fill(false);
            }
            Action::Complete(number) => {
                let grant = &mut world.grants[number];
                (grant.phase, grant.sent) = (Phase::Complete, 0);
                // They have done their work, too.
                grant.votes.fill(false);
            }
            Action::Vanish(node) => world.nodes[node].holder = None,
            Action::Restart(node) => {
                world.restarts -= 1;
                world.nodes[node] = Node { last: None, holder: None, started: last.time };
            }
            Action::Flush(node) => {
                world.flushes -= 1;
                let started = last.nodes[node].started;
                world.nodes[node] = Node { last: None, holder: None, started };
            }
            Action::Tick => world.time += 1,
        }
        (world != *last).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(DISTINCT, |_, world: &World| world.differ()),
            Property::always(GROWING, |_, world: &World| world.grow()),
            Property::sometimes(BOTH, |_, world: &World| world.complete().count() > 1),
            Property::sometimes(RAISED, |_, world: &World| {
                world.complete().any(|grant| grant.chosen.len() > 1)
            }),
        ]
    }
}

/// Visits all of a scope, and demands that no token is wrong, and that all of `met` was met. Returns the number of states.
pub fn tokens_hold(title: &str, scope: Tokens, met: &[&'static str]) -> usize {
    let checker = scope.checker().threads(2).spawn_bfs().join();
    let states = checker.unique_state_count();
    println!("{title}: {states} states, the farthest after {} steps", checker.max_depth());
    for bad in [DISTINCT, GROWING] {
        if let Some(path) = checker.discovery(bad) {
            panic!("{title}: not so: {bad}: {:#?}", path.into_actions());
        }
    }
    for name in met {
        assert!(checker.discovery(name).is_some(), "{title}: never met: {name}");
    }
    states
}

/// Without a rule, or beyond what is promised, this is found broken.
pub fn tokens_break(scope: Tokens, property: &'static str) {
    let found = HasDiscoveries::AnyOf(BTreeSet::from([property]));
    let checker = scope.checker().threads(2).finish_when(found).spawn_bfs().join();
    let (states, dropped) = (checker.unique_state_count(), scope.dropped);
    match checker.discovery(property) {
        Some(path) => {
            let steps = path.into_actions().len();
            println!("without {dropped:?}: {steps} steps to break it, {states} states: {property}");
        }
        None => panic!("without {dropped:?} it should not be so that {property} ({states} states)"),
    }
}
