//! The paths and names of nodes.
//!
//! ```text
//! <chroot>/leasehold/locks/<name, percent-encoded>/   a container node, which the servers delete when empty
//!     h~<holder id>~<sequence>                        of an acquire; data: holder id and hold count
//!     w~<uuid>~<sequence>                             of a waiter; data empty until it holds
//! <chroot>/leasehold/sessions/<uuid>                  written to keep a session proven
//! ```
//!
//! All nodes of a lock are one queue. The one with the lowest sequence number holds the lock, unless the directory has a
//! node of another kind, such as one of a Curator lock: then no acquire is granted, and only a hold that was granted before
//! stays. Curator's recipes do not respect these nodes either: they sort them behind their own, whatever the numbers.

use crate::error::{Error, ErrorKind, Result};
use crate::store::{HolderId, Name};
use std::cmp::Ordering;
use std::fmt::Write;
use uuid::Uuid;

#[derive(Clone, Debug)]
pub(super) struct Names {
    /// The key prefix, as for other stores.
    pub(super) prefix: String,
    pub(super) root: String,
}

impl Names {
    pub(super) fn new(chroot: &str, prefix: &str) -> Self {
        Self { prefix: prefix.to_owned(), root: format!("{chroot}/leasehold") }
    }

    pub(super) fn locks(&self) -> String {
        format!("{}/locks", self.root)
    }

    pub(super) fn sessions(&self) -> String {
        format!("{}/sessions", self.root)
    }

    /// Returns the directory of a lock.
    pub(super) fn lock(&self, name: &Name) -> String {
        let mut path = self.locks();
        path.push('/');
        encode(&self.prefix, &mut path);
        encode(name.as_str(), &mut path);
        path
    }
}

/// Percent-encodes a name: ZooKeeper refuses some characters and takes slashes for levels. A name with its prefix has at
/// most 768 bytes, so the result is far below the limit of a server.
fn encode(text: &str, out: &mut String) {
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' => out.push(char::from(byte)),
            // Writing to a string does not fail.
            _ => drop(write!(out, "%{byte:02X}")),
        }
    }
}

/// The owner of a node in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeOwner {
    Acquire(HolderId),
    Waiter(Uuid),
}

impl NodeOwner {
    /// Returns the path of such a node, without the sequence number that the server appends.
    pub(super) fn path(self, directory: &str) -> String {
        format!("{directory}/{}", self.part())
    }

    fn part(self) -> String {
        match self {
            Self::Acquire(holder) => format!("h~{holder}~"),
            Self::Waiter(id) => format!("w~{}~", id.as_hyphenated()),
        }
    }
}

/// A node in the queue of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Child {
    pub(super) name: String,
    sequence: i32,
}

impl Child {
    /// Parses the name of a node; returns the name itself if the node is not one of ours.
    fn parse(name: String) -> Result<Self, String> {
        let ours = |owner: &str| owner.starts_with("h~") || owner.starts_with("w~");
        let sequence = name.rsplit_once('~').filter(|(owner, _)| ours(owner));
        match sequence.and_then(|(_, sequence)| sequence.parse().ok()) {
            Some(sequence) => Ok(Self { name, sequence }),
            None => Err(name),
        }
    }

    pub(super) fn is_of(&self, owner: NodeOwner) -> bool {
        let (part, _) = self.name.split_at(self.name.rfind('~').map_or(0, |at| at + 1));
        part == owner.part()
    }

    /// Compares by age. The server's counter wraps around.
    fn order(&self, other: &Self) -> Ordering {
        self.sequence.wrapping_sub(other.sequence).cmp(&0)
    }
}

/// The nodes in the directory of a lock.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// The nodes of this kind of lock, the oldest first, whatever else is there.
    pub(super) own: Vec<Child>,
    /// The name of a node of another kind.
    stranger: Option<String>,
}

impl Queue {
    pub(super) fn new(children: Vec<String>) -> Self {
        let mut queue = Self::default();
        for child in children {
            match Child::parse(child) {
                Ok(child) => queue.own.push(child),
                Err(name) => queue.stranger = Some(name),
            }
        }
        queue.own.sort_by(Child::order);
        queue
    }

    /// Returns the nodes of this kind of lock, or an error if there are nodes of another kind: neither kind respects the
    /// other, so both could hold.
    pub(super) fn alone(&self) -> Result<&[Child]> {
        let Some(name) = &self.stranger else { return Ok(&self.own) };
        let message = format!(
            "the directory of this name in ZooKeeper has a node that is not leasehold's, {name:?}: a lock of another kind, \
             or one that a user has made. It was left untouched. Delete it, or choose another name, prefix or path"
        );
        Err(Error::new(ErrorKind::WrongType, message))
    }
}

/// Returns the data of a holder's node.
pub(super) fn record(holder: HolderId, count: u32) -> String {
    format!("{holder} {count}")
}

/// Parses the holder id and hold count in the data of a node; `None` for a waiter.
pub(super) fn parse_record(data: &[u8]) -> Option<(String, u64)> {
    let (holder, count) = std::str::from_utf8(data).ok()?.split_once(' ')?;
    Some((holder.to_owned(), count.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_one_level_each_and_differ() {
        let names = Names::new("/app", "p:");
        let path = |name: &str| names.lock(&Name::new(name).unwrap());
        assert_eq!(path("orders-42_A"), "/app/leasehold/locks/p%3Aorders-42_A");
        assert_eq!(path("a/b"), "/app/leasehold/locks/p%3Aa%2Fb");
        assert_eq!(path(".."), "/app/leasehold/locks/p%3A%2E%2E");
        assert_eq!(path("\0é%"), "/app/leasehold/locks/p%3A%00%C3%A9%25");
        assert_ne!(path("a%2Fb"), path("a/b"));
        assert_eq!(names.sessions(), "/app/leasehold/sessions");
    }

    #[test]
    fn node_name_has_its_owner() {
        let holder = HolderId::new(Uuid::nil(), 7);
        let path = |owner: NodeOwner| owner.path("/locks/job");
        assert_eq!(path(NodeOwner::Acquire(holder)), format!("/locks/job/h~{holder}~"));
        assert_eq!(path(NodeOwner::Waiter(Uuid::nil())), format!("/locks/job/w~{}~", Uuid::nil()));
    }

    #[test]
    fn queue_is_in_the_order_of_the_numbers_also_past_the_last() {
        let holder = HolderId::new(Uuid::nil(), 7);
        let name = |owner: NodeOwner, sequence: &str| format!("{}{sequence}", owner.part());
        let (holder, waiter) = (NodeOwner::Acquire(holder), NodeOwner::Waiter(Uuid::nil()));
        let children = vec![
            name(waiter, "-2147483648"),
            name(holder, "2147483646"),
            name(waiter, "2147483647"),
        ];
        let queue = Queue::new(children);
        let line = queue.alone().unwrap();
        let sequences: Vec<i32> = line.iter().map(|child| child.sequence).collect();
        assert_eq!(sequences, [i32::MAX - 1, i32::MAX, i32::MIN]);
        assert!(line[0].is_of(holder) && !line[0].is_of(waiter));
        assert!(line[1].is_of(waiter) && !line[1].is_of(NodeOwner::Waiter(Uuid::max())));
        assert!(!line[0].is_of(NodeOwner::Acquire(HolderId::new(Uuid::nil(), 77))));
    }

    #[test]
    fn nodes_of_other_kinds_are_named_and_not_in_the_queue() {
        let own = format!("{}0000000003", NodeOwner::Waiter(Uuid::nil()).part());
        for other in [
            "_c_2a5f9f6e-lock-0000000001",
            "read-0000000001",
            "x~1~0000000001",
            "h~1~",
            "h~0000000001",
            "orders",
        ] {
            let queue = Queue::new(vec![own.clone(), other.to_owned()]);
            assert_eq!(queue.own.len(), 1);
            let error = queue.alone().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::WrongType);
            assert!(error.to_string().contains(other), "{error}");
        }
    }

    #[test]
    fn record_is_read_as_it_was_written() {
        let holder = HolderId::new(Uuid::nil(), 7);
        let text = record(holder, 3);
        assert_eq!(parse_record(text.as_bytes()), Some((holder.to_string(), 3)));
        assert_eq!(parse_record(b""), None);
    }
}
