//! Decides from one list of nodes who has a name.
//!
//! # Invariants
//!
//! 1. **A node depends on those before it alone.** Numbers only grow, so what a later one does changes nothing for it.
//! 2. **Granted stays granted.** Nodes before a node only go, or become readers. A reader before it becomes a writer only if
//!    it is alone in the queue (`lock/convert.rs`).
//! 3. **The first node decides the kind of the name**, and the size of a semaphore: a node of another kind or size behind it
//!    is refused, and goes.
//! 4. **No grant beside a node that is not leasehold's**, such as one of a Curator lock. Curator's recipes do not respect
//!    these nodes either: they sort them behind their own, whatever the numbers.

use super::names::{Child, NodeOwner, Role};
use crate::error::{Error, ErrorKind, Result};
use crate::store::contract::mode::Kind;
use crate::store::{Absence, Mode};

/// The nodes in the directory of a name.
#[derive(Debug, Default)]
pub(in crate::store::zookeeper) struct Queue {
    /// The nodes of leasehold, the oldest first, whatever else is there.
    nodes: Vec<Child>,
    /// The name of a node that is not leasehold's.
    stranger: Option<String>,
}

/// The standing of a node in its queue.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::store::zookeeper) enum Standing {
    /// It has the name.
    Granted,
    /// It is behind the node of this name, which it watches.
    Behind(String),
    /// It is the first that waits for permits: any of those before may bring them.
    Next,
}

impl Queue {
    pub(in crate::store::zookeeper) fn new(children: Vec<String>) -> Self {
        let mut queue = Self::default();
        for child in children {
            match Child::parse(child) {
                Ok(child) => queue.nodes.push(child),
                Err(name) => queue.stranger = Some(name),
            }
        }
        queue.nodes.sort_by(Child::order);
        queue
    }

    pub(in crate::store::zookeeper) fn get(&self, name: &str) -> Option<&Child> {
        self.position(name).map(|at| &self.nodes[at])
    }

    pub(in crate::store::zookeeper) fn of(&self, owner: NodeOwner) -> impl Iterator<Item = &Child> {
        self.nodes.iter().filter(move |child| child.is_of(owner))
    }

    fn position(&self, name: &str) -> Option<usize> {
        self.nodes.iter().position(|child| child.name == name)
    }

    /// Returns the number of nodes of leasehold.
    pub(in crate::store::zookeeper) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Returns whether the queue has no node of leasehold.
    pub(in crate::store::zookeeper) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Returns whether the node is the only one.
    pub(in crate::store::zookeeper) fn is_only(&self, name: &str) -> bool {
        self.stranger.is_none() && matches!(&self.nodes[..], [child] if child.name == name)
    }

    /// Returns whether another node is behind a node.
    pub(in crate::store::zookeeper) fn is_followed(&self, name: &str) -> bool {
        self.position(name).is_some_and(|at| at + 1 < self.nodes.len())
    }

    /// Returns an error if there is a node that is not leasehold's: neither kind respects the other, so both could hold.
    pub(in crate::store::zookeeper) fn alone(&self) -> Result<()> {
        let Some(name) = &self.stranger else { return Ok(()) };
        let message = format!(
            "the directory of this name in ZooKeeper has a node that is not leasehold's, {name:?}: a lock of another kind, \
             or one that a user has made. It was left untouched. Delete it, or choose another name, prefix or path"
        );
        Err(Error::new(ErrorKind::WrongType, message))
    }

    /// Returns whether a new node of this role would be granted, or an error if it may not even wait.
    pub(in crate::store::zookeeper) fn admits(&self, role: Role) -> Result<bool> {
        self.grants(role, &self.nodes)
    }

    /// Returns the standing of a node; `None` if it is not there.
    pub(in crate::store::zookeeper) fn standing(&self, name: &str) -> Result<Option<Standing>> {
        let Some(at) = self.position(name) else { return self.alone().map(|()| None) };
        let role = self.nodes[at].role;
        let before = &self.nodes[..at];
        if self.grants(role, before)? {
            return Ok(Some(Standing::Granted));
        }
        let watched = match role {
            _ if before.iter().any(|child| !child.role.suits(role)) => {
                before.iter().rfind(|child| !child.role.suits(role))
            }
            Role::Lock | Role::Writer => before.last(),
            Role::Reader(_) => before.iter().rfind(|child| child.role == Role::Writer),
            // All before it have theirs.
            Role::Permits { size, .. } if taken(before) <= u64::from(size) => None,
            Role::Permits { .. } => before.last(),
        };
        Ok(Some(watched.map_or(Standing::Next, |child| Standing::Behind(child.name.clone()))))
    }

    /// Returns whether a node is granted behind others.
    fn grants(&self, role: Role, before: &[Child]) -> Result<bool> {
        self.alone()?;
        let Some(first) = before.first() else { return Ok(true) };
        match (first.role, role) {
            (Role::Permits { size: has, .. }, Role::Permits { size, .. }) if has != size => {
                return Err(Error::other_size(has.into(), size));
            }
            (first, role) if !first.suits(role) => return Err(first.kind().wrong_type()),
            _ => {}
        }
        Ok(match role {
            // They are refused, and will go.
            _ if !before.iter().all(|child| child.role.suits(role)) => false,
            Role::Lock | Role::Writer => false,
            Role::Reader(_) => before.iter().all(|child| child.role != Role::Writer),
            Role::Permits { size, take } => taken(before) + u64::from(take) <= u64::from(size),
        })
    }

    /// Returns the nodes that have the name, even if their owners do not know yet, or an error if it is of another kind.
    pub(in crate::store::zookeeper) fn holders(&self, kind: Kind) -> Result<&[Child]> {
        let Some(first) = self.nodes.first() else { return self.alone().map(|()| &self.nodes[..]) };
        if first.role.kind() != kind {
            return Err(first.role.kind().wrong_type());
        }
        let is_reader = |child: &&Child| matches!(child.role, Role::Reader(_));
        let count = match first.role {
            Role::Lock | Role::Writer => 1,
            Role::Reader(_) => self.nodes.iter().take_while(is_reader).count(),
            Role::Permits { size, .. } => {
                let mut out = 0;
                let fits = |child: &&Child| {
                    out += u64::from(child.role.mode().permits());
                    child.role.suits(first.role) && out <= u64::from(size)
                };
                self.nodes.iter().take_while(fits).count()
            }
        };
        Ok(&self.nodes[..count])
    }

    /// Returns what the name is in use as; `None` if it has no node of leasehold.
    pub(in crate::store::zookeeper) fn kind(&self) -> Option<Kind> {
        Some(self.nodes.first()?.role.kind())
    }

    /// Returns the number of permits of the name, if it is in use as a semaphore.
    pub(in crate::store::zookeeper) fn size(&self) -> Option<u32> {
        self.nodes.first()?.size()
    }

    /// Returns why a hold of this mode is absent.
    pub(in crate::store::zookeeper) fn absence(&self, mode: Mode) -> Absence {
        let shares = |child: &Child| match mode {
            Mode::Read => matches!(child.role, Role::Reader(_)),
            Mode::Permits { .. } => child.role.kind() == Kind::Semaphore,
            Mode::Exclusive | Mode::Write => false,
        };
        match self.stranger.is_none() && self.nodes.iter().all(shares) {
            true => Absence::Gone,
            false => Absence::Taken,
        }
    }
}

/// Returns how many permits nodes have or wait for.
fn taken(nodes: &[Child]) -> u64 {
    nodes.iter().map(|child| u64::from(child.role.mode().permits())).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    /// Makes a queue of these roles, numbered from 1.
    fn queue(roles: &[&str]) -> Queue {
        let numbers = 1..=roles.len();
        Queue::new(numbers.zip(roles).map(|(number, role)| node(role, number)).collect())
    }

    fn node(role: &str, number: usize) -> String {
        format!("{role}~{}~{number:010}", Uuid::nil())
    }

    fn standing(roles: &[&str], number: usize) -> Standing {
        queue(roles).standing(&node(roles[number - 1], number)).unwrap().unwrap()
    }

    fn refusal(roles: &[&str], number: usize) -> ErrorKind {
        queue(roles).standing(&node(roles[number - 1], number)).unwrap_err().kind()
    }

    #[test]
    fn queue_is_in_the_order_of_the_numbers_also_past_the_last() {
        let name = |sequence: &str| format!("w~{}~{sequence}", Uuid::nil());
        let names = [name("2147483646"), name("2147483647"), name("-2147483648")];
        let shuffled = vec![names[2].clone(), names[0].clone(), names[1].clone()];
        let queue = Queue::new(shuffled);
        let sorted: Vec<&String> = queue.nodes.iter().map(|child| &child.name).collect();
        assert_eq!(sorted, names.iter().collect::<Vec<_>>());
    }

    #[test]
    fn nodes_of_strangers_are_named_and_not_in_the_queue() {
        let own = node("w", 3);
        for other in [
            "_c_2a5f9f6e-lock-0000000001",
            "read-0000000001",
            "x~1~0000000001",
            "h~1~",
            "h~0000000001",
            "r~00000000-0000-0000-0000-000000000000~0000000001",
            "p1~00000000-0000-0000-0000-000000000000~0000000001",
            "orders",
        ] {
            let queue = Queue::new(vec![own.clone(), other.to_owned()]);
            assert_eq!(queue.nodes.len(), 1);
            for error in [queue.alone().unwrap_err(), queue.standing(&own).unwrap_err()] {
                assert_eq!(error.kind(), ErrorKind::WrongType);
                assert!(error.to_string().contains(other), "{error}");
            }
        }
    }

    #[test]
    fn writer_and_lock_wait_for_all_before_and_watch_the_last() {
        for role in ["x", "h"] {
            assert_eq!(standing(&[role, role], 1), Standing::Granted);
            assert_eq!(standing(&[role, role, role], 3), Standing::Behind(node(role, 2)));
        }
        assert_eq!(standing(&["r0", "r5", "x"], 3), Standing::Behind(node("r5", 2)));
    }

    #[test]
    fn reader_waits_for_writers_before_it_alone() {
        assert_eq!(standing(&["r0", "r5", "x"], 2), Standing::Granted);
        assert_eq!(
            standing(&["r0", "x", "r0", "x", "r0", "r0"], 6),
            Standing::Behind(node("x", 4))
        );
        assert!(queue(&["r0", "r7"]).admits(Role::Reader(None)).unwrap());
        assert!(!queue(&["r0", "x"]).admits(Role::Reader(None)).unwrap());
        assert!(!queue(&["r0"]).admits(Role::Writer).unwrap());
    }

    #[test]
    fn permits_are_served_in_order_whatever_later_ones_want() {
        let roles = ["p2of4", "p1of4", "p3of4", "p1of4"];
        assert_eq!(standing(&roles, 2), Standing::Granted);
        // There is one, but not three.
        assert_eq!(standing(&roles, 3), Standing::Next);
        assert_eq!(standing(&roles, 4), Standing::Behind(node("p3of4", 3)));
        assert!(!queue(&roles).admits(Role::Permits { size: 4, take: 1 }).unwrap());
        let holders = queue(&roles);
        assert_eq!(holders.holders(Kind::Semaphore).unwrap().len(), 2);
        assert_eq!(standing(&["p1of4", "p3of4"], 2), Standing::Granted);
        assert_eq!(refusal(&["p1of4", "p1of5"], 2), ErrorKind::Invalid);
        assert_eq!(standing(&["p1of4", "p1of5"], 1), Standing::Granted);
        // The second will go.
        assert_eq!(standing(&["p1of4", "p1of5", "p1of4"], 3), Standing::Behind(node("p1of5", 2)));
        assert_eq!(standing(&["r0", "h", "r0"], 3), Standing::Behind(node("h", 2)));
    }

    #[test]
    fn node_behind_one_of_another_lock_is_refused() {
        for [first, second] in
            [["h", "x"], ["h", "p1of2"], ["r0", "h"], ["x", "p1of2"], ["p1of2", "r0"]]
        {
            assert_eq!(refusal(&[first, second], 2), ErrorKind::WrongType, "{first}, {second}");
            assert_eq!(standing(&[first, second], 1), Standing::Granted, "{first}, {second}");
            let queue = queue(&[first, second]);
            assert!(queue.admits(Role::parse(second).unwrap()).is_err());
            assert!(queue.holders(Role::parse(second).unwrap().kind()).is_err());
            assert_eq!(queue.holders(Role::parse(first).unwrap().kind()).unwrap().len(), 1);
        }
    }

    #[test]
    fn absence_is_of_what_excludes_the_mode() {
        let permits = Mode::Permits { size: 4, take: 1 };
        for (roles, mode, absence) in [
            (&["r0", "r5"][..], Mode::Read, Absence::Gone),
            (&["r0", "x"], Mode::Read, Absence::Taken),
            (&["r0"], Mode::Write, Absence::Taken),
            (&["p1of4"], permits, Absence::Gone),
            (&["h"], permits, Absence::Taken),
            (&["h"], Mode::Exclusive, Absence::Taken),
            (&[], Mode::Exclusive, Absence::Gone),
        ] {
            assert_eq!(queue(roles).absence(mode), absence, "{roles:?}, {mode:?}");
        }
    }
}
