//! In which mode each node has a hold that was changed between reading and writing.
//!
//! A hold reads by any majority that has it, in either mode: a node that has it as the writer refuses more than it must. It
//! writes only by nodes that are known to have it as the writer, and that no request can change back any more.

use crate::error::{Error, ErrorKind, Fate, Result};
use crate::store::{Acquired, Mode};

/// A set of nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Nodes(u16);

impl Nodes {
    fn contain(self, node: usize) -> bool {
        self.0 & (1 << node) != 0
    }

    fn set(&mut self, node: usize, contained: bool) {
        self.0 = self.0 & !(1 << node) | u16::from(contained) << node;
    }
}

/// The mode that each node has a hold in, as far as it is known.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NodeModes {
    readers: Nodes,
    writers: Nodes,
    /// The nodes at which a request without an answer may still make it a reader, or the writer.
    may_read: Nodes,
    may_write: Nodes,
}

/// A change of the mode at one node, between its request and its answer.
#[derive(Clone, Copy)]
pub(super) struct Change {
    node: usize,
    mode: Mode,
    /// Whether an earlier request for the same may still run.
    is_repeated: bool,
}

impl NodeModes {
    /// Records that a change is about to be sent. Returns `None` if it must not be sent.
    pub(super) fn begin(&mut self, node: usize, mode: Mode) -> Option<Change> {
        let writes = mode == Mode::Write;
        if writes && self.may_read.contain(node) {
            // Its answer would not last.
            return None;
        }
        self.forget(node);
        let pending = if writes { &mut self.may_write } else { &mut self.may_read };
        let is_repeated = pending.contain(node);
        pending.set(node, true);
        Some(Change { node, mode, is_repeated })
    }

    /// Records the answer to a change.
    pub(super) fn end(&mut self, change: Change, verdict: &Result<Acquired>) {
        let Change { node, mode, is_repeated } = change;
        let writes = mode == Mode::Write;
        if !is_repeated && !verdict.as_ref().is_err_and(|error| error.fate() != Fate::NotExecuted) {
            let pending = if writes { &mut self.may_write } else { &mut self.may_read };
            pending.set(node, false);
        }
        match verdict {
            Ok(Acquired::Granted { .. }) if writes => self.writers.set(node, true),
            // Refused to the reader that it is.
            Ok(Acquired::Granted { .. } | Acquired::Held { .. }) => self.readers.set(node, true),
            Ok(Acquired::NotYours(_)) | Err(_) => {}
        }
    }

    /// Records that a node does not have the hold, or may not have it.
    pub(super) fn forget(&mut self, node: usize) {
        self.readers.set(node, false);
        self.writers.set(node, false);
    }

    /// Records that the key of the writer was made again.
    pub(super) fn made_writer(&mut self, node: usize) {
        self.writers.set(node, true);
    }

    /// Returns whether a node counts for the writer.
    pub(super) fn writes(&self, node: usize) -> bool {
        self.writers.contain(node) && !self.may_read.contain(node)
    }

    /// Returns whether a node may have a hold of this mode in the other one, and can be set right.
    pub(super) fn strays(&self, node: usize, mode: Mode) -> bool {
        match mode {
            Mode::Write => !self.writers.contain(node) && !self.may_read.contain(node),
            _ => !self.readers.contain(node) || self.may_write.contain(node),
        }
    }
}

/// Returns the vote of a node that may have the writer as a reader.
pub(super) fn stray() -> Error {
    let message = "it may have the holder as a reader only";
    Error::new(ErrorKind::Unavailable, message).with_fate(Fate::Executed)
}

/// Returns the error of a change that was not sent.
pub(super) fn unsettled() -> Error {
    let message = "not asked, because an earlier request without an answer may still make the holder a reader";
    Error::new(ErrorKind::Unavailable, message).with_fate(Fate::NotExecuted)
}

/// Returns the mode in which a node renews and releases a holder that reads or writes there: a quorum knows by itself which of
/// its nodes have the writer.
pub(super) fn either(mode: Mode) -> Mode {
    match mode {
        Mode::Write => Mode::Read,
        mode => mode,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::store::Absence;

    fn lost(fate: Fate) -> Result<Acquired> {
        Err(Error::new(ErrorKind::Unavailable, "out of order").with_fate(fate))
    }

    fn granted() -> Result<Acquired> {
        Ok(Acquired::granted(Clock::system().now(), None))
    }

    fn change(node_modes: &mut NodeModes, mode: Mode, verdict: Result<Acquired>) -> bool {
        match node_modes.begin(3, mode) {
            Some(change) => {
                node_modes.end(change, &verdict);
                true
            }
            None => false,
        }
    }

    #[test]
    fn node_counts_for_the_writer_once_it_has_confirmed_the_change() {
        for (verdict, writes) in [
            (granted(), true),
            (Ok(Acquired::held(None)), false),
            (Ok(Acquired::NotYours(Absence::Gone)), false),
            (lost(Fate::NotExecuted), false),
            (lost(Fate::Unknown), false),
        ] {
            let mut node_modes = NodeModes::default();
            assert!(change(&mut node_modes, Mode::Write, verdict.clone()));
            assert_eq!(node_modes.writes(3), writes, "{verdict:?}");
            assert_eq!(node_modes.strays(3, Mode::Write), !writes);
            assert!(!node_modes.writes(2), "another node");
            // A late grant harms no writer.
            assert!(change(&mut node_modes, Mode::Write, granted()));
            assert!(node_modes.writes(3));
            node_modes.forget(3);
            assert!(!node_modes.writes(3));
        }
    }

    #[test]
    fn change_back_that_may_still_run_rules_out_the_node() {
        for (verdict, late) in [
            (granted(), false),
            (Ok(Acquired::NotYours(Absence::Gone)), false),
            (lost(Fate::NotExecuted), false),
            (lost(Fate::Unknown), true),
        ] {
            let mut node_modes = NodeModes::default();
            change(&mut node_modes, Mode::Write, granted());
            change(&mut node_modes, Mode::Read, verdict.clone());
            // The first request is still on its way.
            change(&mut node_modes, Mode::Read, granted());
            assert_eq!(change(&mut node_modes, Mode::Write, granted()), !late, "{verdict:?}");
            assert_eq!(node_modes.writes(3), !late, "{verdict:?}");
            node_modes.made_writer(3);
            assert_eq!(node_modes.writes(3), !late, "{verdict:?}");
        }
    }

    #[test]
    fn reader_is_set_right_while_it_may_be_the_writer() {
        let mut node_modes = NodeModes::default();
        change(&mut node_modes, Mode::Write, lost(Fate::Unknown));
        for _ in 0..2 {
            assert!(node_modes.strays(3, Mode::Read));
            // The change may run after this.
            change(&mut node_modes, Mode::Read, granted());
        }
        let mut node_modes = NodeModes::default();
        change(&mut node_modes, Mode::Write, granted());
        assert!(node_modes.strays(3, Mode::Read));
        change(&mut node_modes, Mode::Read, granted());
        assert!(!node_modes.strays(3, Mode::Read));
    }
}
