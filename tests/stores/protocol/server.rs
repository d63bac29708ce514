//! The server: one name, its key, and the memory of its last fencing token.

use super::rules::{Rule, Rules, T};

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
    pub token: Token,
    pub count: u8,
    /// Ticks of the server's clock until it expires; `None`: never.
    pub ttl: Option<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Server {
    pub key: Option<Key>,
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
            Op::Nest(count) => self.change(token, |key| (key.count, key.ttl) = (count, Some(T))),
            Op::Renew => {
                if self.key.is_none() && !rules.keep(Rule::RenewalsNeverCreate) {
                    self.revive(token, 1, Some(T));
                }
                self.change(token, |key| key.ttl = Some(T))
            }
            Op::Record(count) => {
                if self.key.is_none() && !rules.keep(Rule::CountsNeverCreate) {
                    self.revive(token, count, None);
                }
                self.change(token, |key| key.count = count)
            }
            Op::Release => {
                let by_token = rules.keep(Rule::ReleaseByToken);
                if self.key.is_some_and(|key| key.token == token || !by_token) {
                    (self.key, self.expired) = (None, false);
                    return Verdict::Done;
                }
                Verdict::NotYours
            }
        }
    }

    fn acquire(&mut self, token: Token, rules: Rules) -> Verdict {
        match &mut self.key {
            None => {
                let first = self.last_fence + 1;
                self.last_fence += rules.block();
                self.key = Some(Key { token, count: 1, ttl: Some(T) });
                Verdict::Granted(first)
            }
            // The same token: the same grant, with the same fencing token.
            Some(key) if key.token == token => {
                key.count = if rules.keep(Rule::CountsAreAbsolute) { 1 } else { key.count + 1 };
                key.ttl = Some(T);
                Verdict::Granted(self.last_fence + 1 - rules.block())
            }
            Some(_) => Verdict::Held,
        }
    }

    fn change(&mut self, token: Token, change: impl FnOnce(&mut Key)) -> Verdict {
        match &mut self.key {
            Some(key) if key.token == token => {
                change(key);
                Verdict::Done
            }
            _ => Verdict::NotYours,
        }
    }

    fn revive(&mut self, token: Token, count: u8, ttl: Option<u8>) {
        self.key = Some(Key { token, count, ttl });
        self.revived = true;
    }

    pub fn holds(&self, token: Token) -> bool {
        self.key.is_some_and(|key| key.token == token)
    }

    /// The server's clock goes on, by 1 unless it is stepped.
    pub fn tick(&mut self, ticks: u8) {
        if let Some(Key { ttl: Some(ttl), .. }) = &mut self.key {
            *ttl = ttl.saturating_sub(ticks);
            if *ttl == 0 {
                (self.key, self.expired) = (None, true);
            }
        }
    }
}
