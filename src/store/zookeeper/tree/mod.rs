//! The nodes of the tree: directories, names and holds.

pub(super) mod directories;
pub(super) mod holds;
pub(super) mod names;
mod nodes;
