//! A terminal of its own, with a shell in it.

use std::env;
use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Far above what any step takes.
const LONG: Duration = Duration::from_secs(30);

pub struct Terminal {
    script: Child,
    keys: ChildStdin,
    screen: Arc<Mutex<String>>,
}

impl Terminal {
    /// Opens one with an interactive shell, which has job control.
    pub fn open(url: &str) -> Self {
        let mut terminal = Self::running(url, "bash --norc --noprofile -i");
        // A word that is not what was typed.
        terminal.enter("echo rea''dy");
        terminal.shows("ready");
        terminal
    }

    /// Opens one in which a shell runs this line.
    pub fn running(url: &str, line: &str) -> Self {
        let mut command = crate::program("script");
        for (name, _) in env::vars_os() {
            if name.to_string_lossy().starts_with("LEASEHOLD_") {
                command.env_remove(name);
            }
        }
        command.args(["-qfc", line, "/dev/null"]).env("LEASEHOLD_URL", url);
        command.env("PS1", "$ ").env("TERM", "dumb").env("HISTFILE", "/dev/null");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut script = command.spawn().expect("script, of util-linux");
        let keys = script.stdin.take().expect("it was asked for");
        let mut output = script.stdout.take().expect("it was asked for");
        let screen = Arc::new(Mutex::new(String::new()));
        let sink = Arc::clone(&screen);
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                let text = String::from_utf8_lossy(&bytes[..count]).into_owned();
                sink.lock().expect("no panic").push_str(&text);
            }
        });
        Self { script, keys, screen }
    }

    pub fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("a terminal");
        self.keys.flush().expect("a terminal");
    }

    pub fn enter(&mut self, line: &str) {
        self.press(&format!("{line}\n"));
    }

    pub fn screen(&self) -> String {
        self.screen.lock().expect("no panic").clone()
    }

    /// Waits for a text.
    #[track_caller]
    pub fn shows(&self, text: &str) {
        let end = Instant::now() + LONG;
        while !self.screen().contains(text) {
            assert!(Instant::now() < end, "no {text:?} on the screen: {}", self.screen());
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.script.kill();
        let _ = self.script.wait();
    }
}
