//! Removes directories that no `drop` removes: those of servers that a static holds, and those of a process that is killed.

use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{LazyLock, Mutex, PoisonError};

/// A process that waits for the end of this one. It goes on when one interrupts the tests.
const SCRIPT: &str = r#"
trap '' HUP INT TERM
while IFS= read -r dir; do set -- "$@" "$dir"; done
tries=0
until rm -rf -- "$@" || [ "$tries" -ge 10 ]; do tries=$((tries + 1)); sleep 1; done
"#;

pub struct Janitor {
    shell: Child,
}

impl Janitor {
    pub fn start() -> Self {
        let shell = Command::new("sh")
            .args(["-c", SCRIPT])
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a shell starts");
        Self { shell }
    }

    /// Has the directory removed when this value, or the process, is gone, if it is still there.
    pub fn remove_in_the_end(&mut self, dir: &Path) {
        let orders = self.shell.stdin.as_mut().expect("a pipe");
        writeln!(orders, "{}", dir.display()).expect("the shell listens");
    }
}

impl Drop for Janitor {
    fn drop(&mut self) {
        // Waiting closes the pipe first.
        _ = self.shell.wait();
    }
}

/// Has the directory removed when this process is gone.
pub fn remove_in_the_end(dir: &Path) {
    static JANITOR: LazyLock<Mutex<Janitor>> = LazyLock::new(|| Mutex::new(Janitor::start()));
    JANITOR.lock().unwrap_or_else(PoisonError::into_inner).remove_in_the_end(dir);
}
