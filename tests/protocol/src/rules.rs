//! The rules that make the protocol right, each of which a variant of the model can do without; and the
//! durations that the rules of time lead to.

/// The time to live that the server grants, in ticks.
pub const T: u8 = 4;
/// For how many ticks a client's clock may fall behind the server's in T.
pub const DRIFT: u8 = 1;
/// How long before D the token fires.
pub const GRACE: u8 = 1;
/// How often a hold is handed off in memory at most.
pub const HANDOFFS: u8 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// D counts from before the request was sent, not from its reply.
    DeadlineFromSend,
    /// D is earlier than T by the clocks' rate error ...
    Margin,
    /// ... and the token fires a grace earlier still.
    Grace,
    /// A release deletes its own token's hold only.
    ReleaseByToken,
    /// An acquire sets the count, and does not increment it.
    CountsAreAbsolute,
    /// A renewal never makes a key.
    RenewalsNeverCreate,
    /// Nor does a lower count.
    CountsNeverCreate,
    /// A grant without a waiter is released by its token.
    Sweep,
    /// A hold is handed off before its release is decided, or not at all.
    HandOffBeforeRelease,
    /// A grant reserves a fencing token for each time that it may be handed off.
    ReservedFences,
    /// Each of several holders of a name has a time to live of its own.
    OwnExpiry,
    /// A writer waits for all readers, not only for the last one that entered.
    AllReaders,
}

/// Who may hold the name at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    #[default]
    Exclusive,
    /// The first client writes, all others read.
    Readers,
    Permits(usize),
}

impl Sharing {
    /// Whether these clients may hold the name at once.
    pub fn allows(self, mut clients: impl Iterator<Item = u8>) -> bool {
        match self {
            Sharing::Exclusive => clients.count() <= 1,
            Sharing::Readers => {
                let (mut count, mut writes) = (0, false);
                clients
                    .by_ref()
                    .for_each(|client| (count, writes) = (count + 1, writes || client == 0));
                count <= 1 || !writes
            }
            Sharing::Permits(size) => clients.count() <= size,
        }
    }
}

/// All rules but those that are dropped.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    pub dropped: &'static [Rule],
    pub sharing: Sharing,
}

impl Rules {
    pub fn keep(self, rule: Rule) -> bool {
        !self.dropped.contains(&rule)
    }

    /// D: until when after `s` the server surely keeps the key.
    pub fn deadline(self) -> u8 {
        if self.keep(Rule::Margin) { T - DRIFT } else { T }
    }

    /// C: until when after `s` the holder believes.
    pub fn cancel(self) -> u8 {
        if self.keep(Rule::Grace) { self.deadline() - GRACE } else { self.deadline() }
    }

    /// Whether what was confirmed `age` ago has too little left to be worth having.
    pub fn stale(self, age: u8) -> bool {
        2 * self.deadline().saturating_sub(age) < T
    }

    /// How many fencing tokens a grant reserves.
    pub fn block(self) -> u8 {
        if self.keep(Rule::ReservedFences) { HANDOFFS + 1 } else { 1 }
    }
}
