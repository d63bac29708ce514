//! The faults of calls, and which calls they strike.

use super::call::Call;
use crate::clock::Instant;
use crate::error::{Error, ErrorKind, Fate};
use crate::store::Name;
use std::time::Duration;

/// The fault of a call.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Fault {
    /// The request arrives only after [`Faults::heal`](crate::testing::Faults::heal). Then the operation runs and answers.
    Hang,
    /// The operation runs at once, and answers after [`Faults::heal`](crate::testing::Faults::heal).
    HoldReply,
    /// The operation runs, and the answer is [`Unavailable`](ErrorKind::Unavailable), fate unknown.
    LoseReply,
    /// The answer is that of [`LoseReply`](Fault::LoseReply), and the operation runs after
    /// [`Faults::heal`](crate::testing::Faults::heal), when no caller expects it.
    RunLate,
    /// The operation does not run, and this error is the answer.
    Fail(Error),
    /// The request arrives after this time, by tokio's clock.
    Delay(Duration),
    /// The store panics when its future is polled.
    Panic,
}

impl Fault {
    /// Creates the fault of a store that is away: the operation does not run, and the answer is
    /// [`Unavailable`](ErrorKind::Unavailable).
    pub fn unavailable() -> Self {
        let error = Error::new(ErrorKind::Unavailable, "the store is away, by a rule of the test");
        Self::Fail(error.with_fate(Fate::NotExecuted))
    }
}

/// A fault and the calls that it strikes: all calls, unless narrowed down.
#[derive(Clone, Debug)]
#[must_use = "a rule does nothing until it is added to the faults"]
pub struct Rule {
    fault: Fault,
    calls: Vec<Call>,
    names: Vec<String>,
    times: usize,
    /// When it ends by itself.
    end: Option<Instant>,
}

impl Rule {
    /// Creates a rule that strikes every call until [`Faults::heal`](crate::testing::Faults::heal).
    pub fn new(fault: Fault) -> Self {
        Self { fault, calls: Vec::new(), names: Vec::new(), times: usize::MAX, end: None }
    }

    /// Strikes only calls of this kind. Each further call of this method adds a kind.
    pub fn on(mut self, call: Call) -> Self {
        self.calls.push(call);
        self
    }

    /// Strikes only calls about this name, and batches with it. Each further call of this method adds a name.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.names.push(name.into());
        self
    }

    /// Strikes at most this many times.
    pub fn times(mut self, times: usize) -> Self {
        self.times = times;
        self
    }

    /// Ends by itself at this time, by the clock of the store.
    pub(super) fn until(self, end: Instant) -> Self {
        Self { end: Some(end), ..self }
    }

    pub(super) fn strikes(&self, call: Call, names: &[&Name], now: Instant) -> bool {
        let of_name = |wanted: &String| names.iter().any(|name| name.as_str() == wanted);
        self.times > 0
            && self.end.is_none_or(|end| now < end)
            && (self.calls.is_empty() || self.calls.contains(&call))
            && (self.names.is_empty() || self.names.iter().any(of_name))
    }

    /// Returns whether it makes all calls hang.
    pub(super) fn is_silence(&self, now: Instant) -> bool {
        let is_of_all = self.calls.is_empty() && self.names.is_empty();
        let is_over = self.times == 0 || self.end.is_some_and(|end| now >= end);
        matches!(self.fault, Fault::Hang) && is_of_all && !is_over
    }

    /// Returns the fault of a call that it strikes, and counts the call.
    pub(super) fn strike(&mut self) -> Fault {
        self.times -= 1;
        self.fault.clone()
    }
}
