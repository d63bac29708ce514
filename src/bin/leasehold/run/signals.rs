//! The signals that reach leasehold, and their names.

use crate::exit::{Exit, Failure};
use crate::signals::{cannot_listen, is_ignored};
use rustix::process::{Signal, WaitStatus};
use std::io;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// Those that end a wait.
pub(super) const ENDING: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];
/// Those that are forwarded, too, while the child runs.
pub(super) const OTHER: [Signal; 5] =
    [Signal::USR1, Signal::USR2, Signal::WINCH, Signal::CONT, Signal::TSTP];

const NAMES: [(&str, Signal); 12] = [
    ("TERM", Signal::TERM),
    ("INT", Signal::INT),
    ("HUP", Signal::HUP),
    ("QUIT", Signal::QUIT),
    ("KILL", Signal::KILL),
    ("USR1", Signal::USR1),
    ("USR2", Signal::USR2),
    ("WINCH", Signal::WINCH),
    ("CONT", Signal::CONT),
    ("TSTP", Signal::TSTP),
    ("ABRT", Signal::ABORT),
    ("ALRM", Signal::ALARM),
];

/// Reads a signal: `TERM`, `SIGTERM` or `15`.
pub(super) fn parse(text: &str) -> Result<Signal, String> {
    let upper = text.to_ascii_uppercase();
    let word = upper.strip_prefix("SIG").unwrap_or(&upper);
    let named = NAMES.iter().find(|(name, _)| *name == word).map(|(_, signal)| *signal);
    let numbered = || Signal::from_named_raw(word.parse().ok()?);
    named
        .or_else(numbered)
        .ok_or_else(|| format!("expected a signal such as TERM, INT or 15, not {text:?}"))
}

/// Writes a signal as [`parse`] reads it.
pub(super) fn text(signal: Signal) -> String {
    let named = NAMES.iter().find(|(_, other)| *other == signal);
    named.map_or_else(|| signal.as_raw().to_string(), |(name, _)| (*name).to_owned())
}

/// Returns the exit code of a process as a shell has it.
pub(super) fn code(status: WaitStatus) -> u8 {
    let signalled = || status.terminating_signal().map(|signal| 128 + signal);
    let code = status.exit_status().or_else(signalled);
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(Exit::FAILED.0)
}

/// The signals that have reached this process.
#[derive(Debug)]
pub(super) struct Signals {
    sender: mpsc::UnboundedSender<Signal>,
    received: mpsc::UnboundedReceiver<Signal>,
}

impl Signals {
    /// Receives those that end a wait.
    pub(super) fn of_endings() -> Result<Self, Failure> {
        let signals = Self::new();
        signals.receive(&ENDING).map_err(cannot_listen)?;
        Ok(signals)
    }

    pub(super) fn new() -> Self {
        let (sender, received) = mpsc::unbounded_channel();
        Self { sender, received }
    }

    /// Receives these signals from now on, but for those that were ignored when this process began, as by `nohup`: the child
    /// inherits that.
    pub(super) fn receive(&self, signals: &[Signal]) -> io::Result<()> {
        for &which in signals {
            if is_ignored(which.as_raw()) {
                continue;
            }
            let mut arrivals = signal(SignalKind::from_raw(which.as_raw()))?;
            let sender = self.sender.clone();
            tokio::spawn(async move {
                while arrivals.recv().await.is_some() && sender.send(which).is_ok() {}
            });
        }
        Ok(())
    }

    /// Waits for the next one that ends a wait.
    pub(super) async fn ending(&mut self) {
        while !ENDING.contains(&self.next().await) {}
    }

    /// Waits for the next signal.
    pub(super) async fn next(&mut self) -> Signal {
        match self.received.recv().await {
            Some(signal) => signal,
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_read_by_name_and_number() {
        for text in ["TERM", "SIGTERM", "term", "15"] {
            assert_eq!(parse(text), Ok(Signal::TERM), "{text}");
        }
        assert!(parse("NO").is_err() && parse("0").is_err() && parse("").is_err());
        assert_eq!(text(Signal::USR1), "USR1");
    }
}
