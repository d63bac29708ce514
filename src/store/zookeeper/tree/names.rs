//! The paths and names of nodes.
//!
//! ```text
//! <chroot>/leasehold/locks/<name, percent-encoded>/   a container node, which the servers delete when empty; its data is
//!                                                     the size of a semaphore
//!     h~<holder id>~<sequence>                        of an exclusive lock
//!     w~<uuid>~<sequence>                             of a waiter for one
//!     x~<owner>~<sequence>                            of a writer
//!     r<token>~<owner>~<sequence>                     of a reader; the token is the fencing token of one that was a
//!                                                     writer, and 0 for others
//!     p<take>of<size>~<owner>~<sequence>              of permits
//! <chroot>/leasehold/sessions/<uuid>                  written to keep a session proven
//! <chroot>/leasehold/managers/<beginning of a uuid>   the description of a manager
//! ```
//!
//! The owner is a holder id, or the uuid of a waiter. The data of a node that holds is the holder id and the hold count, and
//! that of a waiter is empty. All nodes of a name are one queue, in the order of their numbers. A name shows all that is
//! needed to decide who holds, so one list decides it.

use crate::store::contract::mode::Kind;
use crate::store::{HolderId, Mode, Name};
use std::cmp::Ordering;
use std::fmt::{self, Write};
use uuid::Uuid;

#[derive(Clone, Debug)]
pub(in crate::store::zookeeper) struct Names {
    /// The key prefix, as for other stores.
    pub(in crate::store::zookeeper) prefix: String,
    pub(in crate::store::zookeeper) root: String,
}

impl Names {
    pub(in crate::store::zookeeper) fn new(chroot: &str, prefix: &str) -> Self {
        Self { prefix: prefix.to_owned(), root: format!("{chroot}/leasehold") }
    }

    pub(in crate::store::zookeeper) fn locks(&self) -> String {
        format!("{}/locks", self.root)
    }

    pub(in crate::store::zookeeper) fn sessions(&self) -> String {
        format!("{}/sessions", self.root)
    }

    pub(in crate::store::zookeeper) fn managers(&self) -> String {
        format!("{}/managers", self.root)
    }

    /// Returns the directory of a lock.
    pub(in crate::store::zookeeper) fn lock(&self, name: &Name) -> String {
        let mut path = self.locks();
        path.push('/');
        encode(&self.prefix, &mut path);
        encode(name.as_str(), &mut path);
        path
    }

    /// Returns the name whose directory is a child of [`locks`](Self::locks); `None` if it is none of this prefix.
    pub(in crate::store::zookeeper) fn name(&self, child: &str) -> Option<Name> {
        Name::new(decode(child)?.strip_prefix(&self.prefix)?).ok()
    }
}

/// Decodes what [`encode`] has written. `None` for anything else, such as a node that a user has made.
fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            byte => byte,
        });
    }
    let decoded = String::from_utf8(bytes).ok()?;
    let mut again = String::with_capacity(text.len());
    encode(&decoded, &mut again);
    (again == text).then_some(decoded)
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
pub(in crate::store::zookeeper) enum NodeOwner {
    Acquire(HolderId),
    Waiter(Uuid),
}

impl fmt::Display for NodeOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Acquire(holder) => write!(f, "{holder}"),
            Self::Waiter(id) => write!(f, "{}", id.as_hyphenated()),
        }
    }
}

/// What a node is in its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store::zookeeper) enum Role {
    Lock,
    /// A reader, with its fencing token if it was a writer. Earlier versions read that from the name.
    Reader(Option<u64>),
    Writer,
    Permits {
        size: u32,
        take: u32,
    },
}

impl Role {
    /// Returns what a new node of a mode is.
    pub(in crate::store::zookeeper) fn of(mode: Mode) -> Self {
        match mode {
            Mode::Exclusive => Self::Lock,
            Mode::Read => Self::Reader(None),
            Mode::Write => Self::Writer,
            Mode::Permits { size, take } => Self::Permits { size, take },
        }
    }

    pub(in crate::store::zookeeper) fn mode(self) -> Mode {
        match self {
            Self::Lock => Mode::Exclusive,
            Self::Reader(_) => Mode::Read,
            Self::Writer => Mode::Write,
            Self::Permits { size, take } => Mode::Permits { size, take },
        }
    }

    pub(in crate::store::zookeeper) fn kind(self) -> Kind {
        self.mode().kind()
    }

    /// Returns whether both can be in one queue.
    pub(in crate::store::zookeeper) fn suits(self, other: Self) -> bool {
        match (self, other) {
            (Self::Permits { size: one, .. }, Self::Permits { size: other, .. }) => one == other,
            _ => self.kind() == other.kind(),
        }
    }

    /// Returns the name of such a node, without the sequence number that the server appends.
    pub(in crate::store::zookeeper) fn prefix(self, owner: NodeOwner) -> String {
        match (self, owner) {
            (Self::Lock, NodeOwner::Acquire(_)) => format!("h~{owner}~"),
            (Self::Lock, NodeOwner::Waiter(_)) => format!("w~{owner}~"),
            (Self::Reader(token), _) => format!("r{}~{owner}~", token.unwrap_or(0)),
            (Self::Writer, _) => format!("x~{owner}~"),
            (Self::Permits { size, take }, _) => format!("p{take}of{size}~{owner}~"),
        }
    }

    pub(in crate::store::zookeeper) fn parse(text: &str) -> Option<Self> {
        match text {
            "h" | "w" => Some(Self::Lock),
            "x" => Some(Self::Writer),
            _ => {
                if let Some(token) = text.strip_prefix('r') {
                    let token: u64 = token.parse().ok()?;
                    return Some(Self::Reader(Some(token).filter(|token| *token > 0)));
                }
                let (take, size) = text.strip_prefix('p')?.split_once("of")?;
                Some(Self::Permits { size: size.parse().ok()?, take: take.parse().ok()? })
            }
        }
    }
}

/// A node in the queue of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::store::zookeeper) struct Child {
    pub(in crate::store::zookeeper) name: String,
    pub(in crate::store::zookeeper) role: Role,
    sequence: i32,
}

impl Child {
    /// Parses the name of a node; returns the name itself if the node is not one of ours.
    pub(in crate::store::zookeeper) fn parse(name: String) -> Result<Self, String> {
        match Self::parts(&name) {
            Some((role, sequence)) => Ok(Self { name, role, sequence }),
            None => Err(name),
        }
    }

    fn parts(name: &str) -> Option<(Role, i32)> {
        let (rest, sequence) = name.rsplit_once('~')?;
        let (role, owner) = rest.split_once('~')?;
        if !is_owner(owner) {
            return None;
        }
        Some((Role::parse(role)?, sequence.parse().ok()?))
    }

    pub(in crate::store::zookeeper) fn is_of(&self, owner: NodeOwner) -> bool {
        self.name.split('~').nth(1) == Some(&owner.to_string())
    }

    /// Returns the number of permits of the name, if it is a node of a semaphore.
    pub(super) fn size(&self) -> Option<u32> {
        match self.role {
            Role::Permits { size, .. } => Some(size),
            Role::Lock | Role::Reader(_) | Role::Writer => None,
        }
    }

    /// Compares by age. The server's counter wraps around.
    pub(in crate::store::zookeeper) fn order(&self, other: &Self) -> Ordering {
        self.sequence.wrapping_sub(other.sequence).cmp(&0)
    }
}

/// Returns whether this is a holder id, or the uuid of a waiter.
fn is_owner(text: &str) -> bool {
    let (id, number) = text.split_once(':').unwrap_or((text, "0"));
    let digits = |byte: u8| byte.is_ascii_digit() || byte == b'.';
    Uuid::try_parse(id).is_ok() && !number.is_empty() && number.bytes().all(digits)
}

/// Returns the path of a node that replaces another one in the queue.
pub(in crate::store::zookeeper) fn replacement(path: &str, role: Role, owner: NodeOwner) -> String {
    let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
    let sequence = name.rsplit_once('~').map_or("", |(_, sequence)| sequence);
    format!("{directory}/{}{sequence}", role.prefix(owner))
}

/// Returns the data of a holder's node. The description of the holder follows on lines of its own.
pub(in crate::store::zookeeper) fn record(holder: HolderId, count: u32) -> String {
    format!("{holder} {count}")
}

/// Parses the holder id and hold count in the data of a node; `None` for a waiter.
pub(in crate::store::zookeeper) fn parse_record(data: &[u8]) -> Option<(String, u64)> {
    let text = std::str::from_utf8(data).ok()?;
    let (holder, count) = text.split('\n').next()?.split_once(' ')?;
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
        for name in ["orders-42_A", "a/b", "..", "\0é%"] {
            let path = path(name);
            let child = path.strip_prefix("/app/leasehold/locks/").unwrap();
            assert_eq!(names.name(child).unwrap().as_str(), name);
        }
        for other in ["orders", "p%3a1", "p:1", "p%3A%", "p%3A%FF", "p%3A"] {
            assert_eq!(names.name(other), None, "{other}");
        }
        assert_eq!(names.sessions(), "/app/leasehold/sessions");
    }

    #[test]
    fn node_name_has_its_role_and_its_owner() {
        let holder = NodeOwner::Acquire(HolderId::new(Uuid::nil(), 7));
        let waiter = NodeOwner::Waiter(Uuid::nil());
        let uuid = Uuid::nil();
        for (role, by_holder, by_waiter) in [
            (Role::Lock, format!("h~{uuid}:7~"), format!("w~{uuid}~")),
            (Role::Writer, format!("x~{uuid}:7~"), format!("x~{uuid}~")),
            (Role::Reader(None), format!("r0~{uuid}:7~"), format!("r0~{uuid}~")),
            (Role::Reader(Some(12)), format!("r12~{uuid}:7~"), format!("r12~{uuid}~")),
            (
                Role::Permits { size: 5, take: 2 },
                format!("p2of5~{uuid}:7~"),
                format!("p2of5~{uuid}~"),
            ),
        ] {
            for (owner, other, name) in [(holder, waiter, by_holder), (waiter, holder, by_waiter)] {
                assert_eq!(role.prefix(owner), name);
                let child = Child::parse(format!("{name}0000000003")).unwrap();
                assert_eq!((child.role, child.sequence), (role, 3));
                assert!(child.is_of(owner) && !child.is_of(other));
            }
        }
        let seventy_seven = NodeOwner::Acquire(HolderId::new(Uuid::nil(), 77));
        let child = Child::parse(format!("h~{uuid}:7~0000000003")).unwrap();
        assert!(!child.is_of(seventy_seven));
    }

    #[test]
    fn node_that_replaces_another_has_its_number() {
        let (holder, waiter) = (HolderId::new(Uuid::nil(), 7), Uuid::nil());
        let owner = NodeOwner::Acquire(holder);
        let path = replacement(&format!("/locks/job/x~{waiter}~-000000005"), Role::Writer, owner);
        assert_eq!(path, format!("/locks/job/x~{holder}~-000000005"));
        let path = replacement(&path, Role::Reader(Some(9)), owner);
        assert_eq!(path, format!("/locks/job/r9~{holder}~-000000005"));
    }

    #[test]
    fn record_is_read_as_it_was_written() {
        let holder = HolderId::new(Uuid::nil(), 7);
        let text = record(holder, 3);
        assert_eq!(parse_record(text.as_bytes()), Some((holder.to_string(), 3)));
        assert_eq!(parse_record(b""), None);
    }
}
