//! A redis-server whose wall clock can be stepped while it runs.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use tempfile::TempDir;

use super::{Server, preload};

/// The server, and the file that its clock looks at.
pub struct StepClock {
    pub server: Server,
    step: File,
    _dir: TempDir,
}

impl StepClock {
    pub fn start() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (library, path) = (dir.path().join("step_clock.so"), dir.path().join("step"));
        preload::compile(include_bytes!("step_clock.c"), &library);
        fs::write(&path, 0_i64.to_ne_bytes()).expect("a file for the step");
        let variables = [("LD_PRELOAD", library.as_path()), ("STEP_CLOCK", path.as_path())];
        let server = Server::start_in(&[], &variables);
        let step = File::options().write(true).open(&path).expect("the file of the step");
        Self { server, step, _dir: dir }
    }

    pub fn forward(&self, by: Duration) {
        self.set(i64::try_from(by.as_micros()).expect("a step within reason"));
    }

    pub fn back(&self, by: Duration) {
        self.set(-i64::try_from(by.as_micros()).expect("a step within reason"));
    }

    /// Sets how far the clock is ahead of the true one; returns once the server shows it.
    fn set(&self, micros: i64) {
        let before = self.seconds();
        self.step.write_all_at(&micros.to_ne_bytes(), 0).expect("the step can be written");
        let moved = (self.seconds() - before) * 1_000_000;
        assert!((moved - micros).abs() < 3_000_000, "the step of {micros} us shows as {moved}");
    }

    fn seconds(&self) -> i64 {
        self.server.command(&["TIME"]).list()[0].int()
    }
}
