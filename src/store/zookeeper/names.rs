//! Where things are in the tree.
//!
//! ```text
//! <chroot>/leasehold/locks/<name, percent-encoded>/   a container node, which goes when empty
//!     h~<token>~<sequence>                            of an acquire; data: token and hold count
//!     w~<uuid>~<sequence>                             of a waiter; data empty until it holds
//! <chroot>/leasehold/sessions/<uuid>                  written to keep a session proven
//! ```
//!
//! All in one line, whoever has the lowest sequence number holds.

use crate::store::{HolderId, Name};
use std::cmp::Ordering;
use std::fmt::Write;
use uuid::Uuid;

#[derive(Clone, Debug)]
pub(super) struct Names {
    /// Of the keys, as for other stores.
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

    /// The directory of a lock.
    pub(super) fn lock(&self, name: &Name) -> String {
        let mut path = self.locks();
        path.push('/');
        encode(&self.prefix, &mut path);
        encode(name.as_str(), &mut path);
        path
    }
}

/// ZooKeeper refuses some characters and takes slashes for levels. Names have 768 bytes at most with their
/// prefix, so what comes out is far below what a server takes.
fn encode(text: &str, out: &mut String) {
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' => out.push(char::from(byte)),
            // Writing to a string does not fail.
            _ => drop(write!(out, "%{byte:02X}")),
        }
    }
}

/// Whose a node in the line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    Acquire(HolderId),
    Place(Uuid),
}

impl Who {
    /// The path of such a node, but for the sequence number that the server appends.
    pub(super) fn path(self, directory: &str) -> String {
        format!("{directory}/{}", self.part())
    }

    fn part(self) -> String {
        match self {
            Self::Acquire(token) => format!("h~{token}~"),
            Self::Place(id) => format!("w~{}~", id.as_hyphenated()),
        }
    }
}

/// A node in the line of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Child {
    pub(super) name: String,
    sequence: i32,
}

impl Child {
    /// `None`: not of this kind.
    pub(super) fn parse(name: String) -> Option<Self> {
        let (who, sequence) = name.rsplit_once('~')?;
        let known = who.starts_with("h~") || who.starts_with("w~");
        let sequence = sequence.parse().ok().filter(|_| known)?;
        Some(Self { name, sequence })
    }

    pub(super) fn is_of(&self, who: Who) -> bool {
        let (part, _) = self.name.split_at(self.name.rfind('~').map_or(0, |at| at + 1));
        part == who.part()
    }

    /// The server's counter starts again from below when it is full.
    fn order(&self, other: &Self) -> Ordering {
        self.sequence.wrapping_sub(other.sequence).cmp(&0)
    }
}

/// The nodes of a lock in their order.
pub(super) fn line(children: Vec<String>) -> Vec<Child> {
    let mut line: Vec<Child> = children.into_iter().filter_map(Child::parse).collect();
    line.sort_by(Child::order);
    line
}

/// What a node of a holder says.
pub(super) fn record(token: HolderId, count: u32) -> String {
    format!("{token} {count}")
}

/// The token and hold count that a node says; `None` while it only waits.
pub(super) fn parse_record(data: &[u8]) -> Option<(String, u64)> {
    let (token, count) = std::str::from_utf8(data).ok()?.split_once(' ')?;
    Some((token.to_owned(), count.parse().ok()?))
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
    fn a_node_says_whose_it_is() {
        let token = HolderId::new(Uuid::nil(), 7);
        let path = |who: Who| who.path("/locks/job");
        assert_eq!(path(Who::Acquire(token)), format!("/locks/job/h~{token}~"));
        assert_eq!(path(Who::Place(Uuid::nil())), format!("/locks/job/w~{}~", Uuid::nil()));
    }

    #[test]
    fn the_line_is_in_the_order_of_the_numbers_also_past_the_last() {
        let token = HolderId::new(Uuid::nil(), 7);
        let name = |who: Who, sequence: &str| format!("{}{sequence}", who.part());
        let (holder, waiter) = (Who::Acquire(token), Who::Place(Uuid::nil()));
        let children = vec![
            "_c_other-lock-0000000001".to_owned(),
            name(waiter, "-2147483648"),
            name(holder, "2147483646"),
            name(waiter, "2147483647"),
        ];
        let line = line(children);
        let sequences: Vec<i32> = line.iter().map(|child| child.sequence).collect();
        assert_eq!(sequences, [i32::MAX - 1, i32::MAX, i32::MIN]);
        assert!(line[0].is_of(holder) && !line[0].is_of(waiter));
        assert!(line[1].is_of(waiter) && !line[1].is_of(Who::Place(Uuid::max())));
        assert!(!line[0].is_of(Who::Acquire(HolderId::new(Uuid::nil(), 77))));
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let token = HolderId::new(Uuid::nil(), 7);
        let text = record(token, 3);
        assert_eq!(parse_record(text.as_bytes()), Some((token.to_string(), 3)));
        assert_eq!(parse_record(b""), None);
    }
}
