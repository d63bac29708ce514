//! The log of a holder process, written as things happen: after a SIGKILL, all but the last line is there.

use kit::soak::history::{Event, What, now};
use leasehold::{Lease, LeaseState, Loss, Result};
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::sleep;

/// A check is written down at most so often; the last one always is, unless the process is killed.
const OFTEN: u64 = 20_000_000;

pub struct WorkerLog {
    who: String,
    file: Mutex<File>,
    asks: AtomicU64,
}

impl WorkerLog {
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
            eprintln!("{}: the log cannot be written: {error}", self.who);
            std::process::exit(2);
        }
    }

    /// A flow of control is about to ask.
    pub fn wanted(self: &Arc<Self>, name: &str, how: &str, limit_ms: u64) -> Ask {
        let number = self.asks.fetch_add(1, Ordering::Relaxed);
        let (name, how) = (name.to_owned(), how.to_owned());
        self.write(What::Wanted { ask: number, name, how, limit_ms });
        Ask { log: Arc::clone(self), number, open: true }
    }

    pub fn gave_up(&self, ask: u64, why: &str) {
        self.write(What::GaveUp { ask, why: why.to_owned() });
    }
}

/// A call that may return with a lease; dropped in the middle of it, it was given up.
pub struct Ask {
    log: Arc<WorkerLog>,
    pub number: u64,
    open: bool,
}

impl Ask {
    pub fn gave_up(mut self, why: &str) {
        self.open = false;
        self.log.gave_up(self.number, why);
    }

    /// Returns what the call brought. Without a lease, it was given up.
    pub async fn brought<T>(self, taken: Result<Option<T>>) -> Option<(Self, T)> {
        match taken {
            Ok(Some(lease)) => Some((self, lease)),
            Ok(None) => {
                self.gave_up("not-granted");
                None
            }
            Err(error) => {
                self.gave_up(&error_word(&error));
                // Do not hammer what cannot answer.
                sleep(Duration::from_millis(20)).await;
                None
            }
        }
    }

    /// In which mode of a name that several share.
    pub fn in_mode(self, mode: &str, permits: u32) -> Self {
        let (ask, mode) = (self.number, mode.to_owned());
        self.log.write(What::Shares { ask, mode, permits });
        self
    }

    /// Its future is not polled from now on.
    pub fn is_unpolled(&self) {
        self.log.write(What::Unpolled { ask: self.number });
    }

    /// The call has returned with a lease.
    pub fn granted(mut self, lease: &Lease, by_token: bool) -> Belief {
        self.open = false;
        let by = if by_token { "token" } else { "check" }.to_owned();
        let (log, ask) = (Arc::clone(&self.log), self.number);
        log.write(What::Granted { ask, fence: lease.fence().unwrap_or_default(), by });
        log.write(What::Token { ask, number: number_of(lease) });
        Belief { log, ask, last_ok: 0, written: 0, at_risk: false, over: false }
    }
}

impl Drop for Ask {
    fn drop(&mut self) {
        if self.open {
            self.log.gave_up(self.number, "dropped");
        }
    }
}

/// What one holder believes of its lease; a drop before the loss says that it is about to be given back.
pub struct Belief {
    log: Arc<WorkerLog>,
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

    /// Whether its loss was told.
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// Looks at the lease once. Returns whether it is still there.
    pub fn check(&mut self, lease: &Lease) -> bool {
        let before = now();
        match lease.check() {
            Ok(()) => self.checked(before, lease.state() == LeaseState::AtRisk),
            Err(error) => self.fired(error.loss()),
        }
        !self.over
    }

    /// `check()`, called after `before`, was Ok.
    fn checked(&mut self, before: u64, at_risk: bool) {
        self.last_ok = before;
        if before - self.written > OFTEN {
            self.written = before;
            self.log.write(What::Checked { ask: self.ask, last_ok: before });
        }
        if at_risk != self.at_risk {
            self.at_risk = at_risk;
            let ask = self.ask;
            self.log.write(if at_risk { What::AtRisk { ask } } else { What::Safe { ask } });
        }
    }

    pub fn nested(&self, lease: &Lease) {
        let (fence, count) = (lease.fence().unwrap_or_default(), lease.hold_count());
        self.log.write(What::Nested { ask: self.ask, fence, count });
    }

    pub fn fired(&mut self, loss: Option<Loss>) {
        self.over = true;
        let (ask, last_ok) = (self.ask, self.last_ok);
        self.log.write(What::Fired { ask, last_ok, cause: loss_word(loss) });
    }
}

impl Drop for Belief {
    fn drop(&mut self) {
        if !self.over {
            self.log.write(What::Released { ask: self.ask, last_ok: self.last_ok });
        }
    }
}

/// Which token a lease has: its debug format ends the holder with the number.
fn number_of(lease: &Lease) -> u64 {
    let text = format!("{lease:?}");
    let digits = text.split_once("…:").map(|(_, rest)| rest).unwrap_or_default();
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().unwrap_or_default()
}

/// A word for the history.
pub fn loss_word(loss: Option<Loss>) -> String {
    loss.map_or_else(|| "unknown".to_owned(), |loss| format!("{loss:?}").to_lowercase())
}

pub fn error_word(error: &leasehold::Error) -> String {
    match error.loss() {
        Some(loss) => format!("lost-{}", loss_word(Some(loss))),
        None => format!("{:?}", error.kind()).to_lowercase(),
    }
}
