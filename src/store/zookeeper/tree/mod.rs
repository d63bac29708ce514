//! The tree: directories, the names of nodes, and the queue that the nodes of a name are.

pub(super) mod directories;
pub(super) mod names;
pub(super) mod queue;
