//! The server: one name, the key of each holder, and the memory of its last fencing token.

use crate::rules::{Rule, Rules, Sharing, T};
use std::collections::BTreeMap;

/// The holder of an acquire: it belongs to a client, and is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token {
    pub client: u8,
    pub number: u8,
}

/// What is asked for. All of it is absolute, so that it may run twice, or late.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Op {
    /// The outermost acquire (`acquire.lua` with the count 1).
    Acquire,
    /// A nested acquire: the count that is to be (`acquire.lua`).
    Nest(u8),
    /// Check and extend (`renew.lua`).
    Renew,
    /// The count that remains (`release.lua` with a count).
    Record(u8),
    /// Gives back (`release.lua` without a count).
    Release,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verdict {
    /// Granted, with the first of the reserved fencing tokens.
    Granted(u8),
    /// An outermost acquire found another holder.
    Held,
    Done,
    NotYours,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    pub count: u8,
    /// Ticks of the server's clock until it expires; `None`: never.
    pub ttl: Option<u8>,
    /// To look back: ticks since a request of its holder last set the time to live.
    pub untouched: u8,
}

impl Key {
    fn new(count: u8, ttl: Option<u8>) -> Self {
        Self { count, ttl, untouched: 0 }
    }

    fn extend(&mut self) {
        (self.ttl, self.untouched) = (Some(T), 0);
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Server {
    /// Of an exclusive lock there is one at most.
    pub keys: BTreeMap<Token, Key>,
    /// Who entered last.
    newest: Option<Token>,
    /// The last fencing token that was reserved. Where its memory is lost, the server's clock stands in for
    /// it, which is always ahead; so it survives here.
    pub last_fence: u8,
    /// To look back: the last key ended by its time to live.
    pub expired: bool,
    /// To look back: a key was made by something else than an outermost acquire.
    pub revived: bool,
}

impl Server {
    /// Runs a request, all at one instant.
    pub fn run(&mut self, token: Token, op: Op, rules: Rules) -> Verdict {
        match op {
            Op::Acquire => self.acquire(token, rules),
            Op::Nest(count) => self.change(token, rules, true, |key| key.count = count),
            Op::Renew => {
                if self.keys.is_empty() && !rules.keep(Rule::RenewalsNeverCreate) {
                    self.revive(token, Key::new(1, Some(T)));
                }
                self.change(token, rules, true, |_| {})
            }
            Op::Record(count) => {
                if self.keys.is_empty() && !rules.keep(Rule::CountsNeverCreate) {
                    self.revive(token, Key::new(count, None));
                }
                self.change(token, rules, false, |key| key.count = count)
            }
            Op::Release => {
                let ended = match rules.keep(Rule::ReleaseByToken) {
                    true => self.keys.remove(&token).is_some(),
                    false => !std::mem::take(&mut self.keys).is_empty(),
                };
                self.expired &= !ended;
                if ended { Verdict::Done } else { Verdict::NotYours }
            }
        }
    }

    fn acquire(&mut self, token: Token, rules: Rules) -> Verdict {
        // Only exclusive locks have them here.
        let fences = rules.sharing == Sharing::Exclusive;
        let block = if fences { rules.block() } else { 0 };
        let fence = |last: u8| if fences { last + 1 - block } else { 0 };
        if let Some(key) = self.keys.get_mut(&token) {
            // The same token: the same grant, with the same fencing token.
            key.count = if rules.keep(Rule::CountsAreAbsolute) { 1 } else { key.count + 1 };
            self.extend(token, rules);
            return Verdict::Granted(fence(self.last_fence));
        }
        if !self.admits(token, rules) {
            return Verdict::Held;
        }
        self.last_fence += block;
        self.keys.insert(token, Key::new(1, Some(T)));
        self.extend(token, rules);
        self.newest = (rules.sharing == Sharing::Readers).then_some(token);
        Verdict::Granted(fence(self.last_fence))
    }

    fn admits(&self, token: Token, rules: Rules) -> bool {
        let all = rules.keep(Rule::AllReaders);
        let counts = |holder: &&Token| all || self.newest == Some(**holder);
        let holders = self.keys.keys().filter(counts).map(|holder| holder.client);
        rules.sharing.allows(holders.chain([token.client]))
    }

    fn extend(&mut self, token: Token, rules: Rules) {
        for (holder, key) in &mut self.keys {
            if *holder == token {
                key.extend();
            } else if !rules.keep(Rule::OwnExpiry) {
                key.ttl = Some(T);
            }
        }
    }

    fn change(
        &mut self,
        token: Token,
        rules: Rules,
        extends: bool,
        change: impl FnOnce(&mut Key),
    ) -> Verdict {
        let Some(key) = self.keys.get_mut(&token) else { return Verdict::NotYours };
        change(key);
        if extends {
            self.extend(token, rules);
        }
        Verdict::Done
    }

    fn revive(&mut self, token: Token, key: Key) {
        self.keys.insert(token, key);
        self.revived = true;
    }

    /// The server's clock goes on, by 1 unless it is stepped.
    pub fn tick(&mut self, ticks: u8) {
        let before = self.keys.len();
        self.keys.retain(|_, key| {
            key.untouched = (key.untouched + ticks).min(T + 1);
            if let Some(ttl) = &mut key.ttl {
                *ttl = ttl.saturating_sub(ticks);
            }
            key.ttl != Some(0)
        });
        self.expired |= self.keys.len() < before;
    }
}
