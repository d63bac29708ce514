//! What a holder process writes down, as it happens: after a SIGKILL, all but the last line is there.

use crate::history::{Event, What, now};
use leasehold::{Lease, Loss};
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A check is written down at most so often; the last one always is, unless the process is killed.
const OFTEN: u64 = 20_000_000;

pub struct Diary {
    who: String,
    file: Mutex<File>,
    asks: AtomicU64,
}

impl Diary {
    pub fn open(who: &str, path: impl AsRef<Path>) -> io::Result<Self> {
        let file = File::options().create(true).append(true).open(path)?;
        Ok(Self { who: who.to_owned(), file: Mutex::new(file), asks: AtomicU64::new(0) })
    }

    pub fn who(&self) -> &str {
        &self.who
    }

    pub fn write(&self, what: What) {
        let at = now();
        let line = format!("{}\n", Event { at, who: self.who.clone(), what });
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        // One call for a line, so that a kill leaves whole ones.
        if let Err(error) = file.write_all(line.as_bytes()) {
            eprintln!("{}: the diary cannot be written: {error}", self.who);
            std::process::exit(2);
        }
    }

    /// A flow of control is about to ask; returns the number of the lease that may come of it.
    pub fn wanted(&self, name: &str, how: &str, limit_ms: u64) -> u64 {
        let ask = self.asks.fetch_add(1, Ordering::Relaxed);
        self.write(What::Wanted { ask, name: name.to_owned(), how: how.to_owned(), limit_ms });
        ask
    }

    pub fn gave_up(&self, ask: u64, why: &str) {
        self.write(What::GaveUp { ask, why: why.to_owned() });
    }

    /// The call has returned with a lease.
    pub fn granted(self: &Arc<Self>, ask: u64, lease: &Lease, by_token: bool) -> Belief {
        let by = if by_token { "token" } else { "check" }.to_owned();
        self.write(What::Granted { ask, fence: lease.fence().unwrap_or_default(), by });
        Belief { diary: Arc::clone(self), ask, last_ok: 0, written: 0, at_risk: false, over: false }
    }
}

/// What one holder believes of its lease; a drop before the loss says that it is about to be given back.
pub struct Belief {
    diary: Arc<Diary>,
    ask: u64,
    last_ok: u64,
    written: u64,
    at_risk: bool,
    over: bool,
}

impl Belief {
    pub fn ask(&self) -> u64 {
        self.ask
    }

    /// `check()`, called after `before`, was Ok.
    pub fn checked(&mut self, before: u64, at_risk: bool) {
        self.last_ok = before;
        if before - self.written > OFTEN {
            self.written = before;
            self.diary.write(What::Checked { ask: self.ask, last_ok: before });
        }
        if at_risk != self.at_risk {
            self.at_risk = at_risk;
            let ask = self.ask;
            self.diary.write(if at_risk { What::AtRisk { ask } } else { What::Safe { ask } });
        }
    }

    pub fn nested(&self, lease: &Lease) {
        let (fence, count) = (lease.fence().unwrap_or_default(), lease.hold_count());
        self.diary.write(What::Nested { ask: self.ask, fence, count });
    }

    pub fn fired(&mut self, loss: Option<Loss>) {
        self.over = true;
        let (ask, last_ok) = (self.ask, self.last_ok);
        self.diary.write(What::Fired { ask, last_ok, cause: loss_word(loss) });
    }
}

impl Drop for Belief {
    fn drop(&mut self) {
        if !self.over {
            self.diary.write(What::Released { ask: self.ask, last_ok: self.last_ok });
        }
    }
}

/// A word for the history.
pub fn loss_word(loss: Option<Loss>) -> String {
    loss.map_or_else(|| "unknown".to_owned(), |loss| format!("{loss:?}").to_lowercase())
}
