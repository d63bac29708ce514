//! A cgroup of its own for the tree, where this process may make one: version 2, in its own cgroup.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// How often what runs in a cgroup is moved, as it may fork meanwhile.
const LONGEST_MOVE: u32 = 100;

/// The most cgroups of this number that earlier processes may have left.
const MOST_LEFT: u32 = 1000;

/// A cgroup that holds the tree and nothing else.
#[derive(Clone, Debug)]
pub(super) struct Cgroup(PathBuf);

impl Cgroup {
    /// Makes one inside that of this process. Returns `None` where it may not.
    pub(super) fn create() -> Option<Self> {
        let own = own()?;
        let pid = std::process::id();
        // One that was killed has left its cgroup, and another namespace has the same numbers of processes.
        let names = (0..MOST_LEFT).map(|count| own.join(format!("leasehold-{pid}-{count}")));
        let cgroup = Self(first_new(names)?);
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

/// Makes the first of these folders that is not there. Returns `None` if it may not.
fn first_new(paths: impl IntoIterator<Item = PathBuf>) -> Option<PathBuf> {
    for path in paths {
        match fs::create_dir(&path) {
            Ok(()) => return Some(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(_) => return None,
        }
    }
    None
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_that_was_left_is_passed_over() {
        let own = std::env::temp_dir().join(format!("leasehold-cgroup-{}", std::process::id()));
        let names = || (0..2).map(|count| own.join(count.to_string()));
        assert_eq!(first_new(names()), None, "it may not");
        fs::create_dir(&own).expect("a folder");
        let made = [(); 3].map(|()| first_new(names()));
        fs::remove_dir_all(&own).expect("the folder");
        assert_eq!(made, [Some(own.join("0")), Some(own.join("1")), None]);
    }
}
