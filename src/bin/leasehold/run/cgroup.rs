//! A cgroup of its own for the tree, where this process may make one: version 2, in its own cgroup.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// How often what runs in a cgroup is moved, as it may fork meanwhile.
const LONGEST_MOVE: u32 = 100;

/// A cgroup that holds the tree and nothing else.
#[derive(Clone, Debug)]
pub(super) struct Cgroup(PathBuf);

impl Cgroup {
    /// Makes one inside that of this process. Returns `None` where it may not.
    pub(super) fn create() -> Option<Self> {
        let path = own()?.join(format!("leasehold-{}", std::process::id()));
        fs::create_dir(&path).ok()?;
        let cgroup = Self(path);
        // A kernel before 5.14 cannot kill a whole cgroup.
        if cgroup.0.join("cgroup.kill").exists() {
            return Some(cgroup);
        }
        cgroup.remove();
        None
    }

    /// Names one that another process has made.
    pub(super) fn at(path: PathBuf) -> Self {
        Self(path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Moves this process into it.
    pub(super) fn enter(&self) -> io::Result<()> {
        fs::write(self.0.join("cgroup.procs"), "0")
    }

    /// Kills all that is in it, whichever user it runs as.
    pub(super) fn kill(&self) {
        let _ = fs::write(self.0.join("cgroup.kill"), "1");
    }

    /// Removes it with what still runs in it, which goes to the cgroup of leasehold.
    pub(super) fn dissolve(&self) {
        let home = self.0.parent().map(|home| home.join("cgroup.procs"));
        for _ in 0..LONGEST_MOVE {
            if let Some(home) = &home {
                empty(&self.0, home);
            }
            self.remove();
            if !self.0.exists() {
                return;
            }
        }
    }

    /// Removes it, if it is empty, with those that the tree has made in it.
    pub(super) fn remove(&self) {
        remove(&self.0);
    }
}

/// Moves all that runs in a cgroup to another one.
fn empty(path: &Path, other: &Path) {
    below(path).for_each(|path| empty(&path, other));
    let processes = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
    for process in processes.lines() {
        let _ = fs::write(other, process);
    }
}

fn remove(path: &Path) {
    below(path).for_each(|path| remove(&path));
    let _ = fs::remove_dir(path);
}

/// Returns the cgroups that were made in a cgroup.
fn below(path: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders.map(|entry| entry.path())
}

/// Returns the directory of the cgroup that this process is in.
fn own() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mount = mounts.lines().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(3);
        let root = fields.next()?;
        let point = fields.next()?;
        kind.starts_with("cgroup2 ").then(|| (root.to_owned(), point.to_owned()))
    });
    let (root, point) = mount?;
    let cgroups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = cgroups.lines().find_map(|line| line.strip_prefix("0::"))?;
    // A mount can show a part of the hierarchy alone.
    let inside = Path::new(path).strip_prefix(&root).ok()?;
    Some(Path::new(&point).join(inside))
}
