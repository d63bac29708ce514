//! The signals that ask this process to end.

use crate::exit::{Exit, Failure};
use std::io;
#[cfg(unix)]
use std::pin::pin;
#[cfg(unix)]
use std::task::{Context, Poll, Waker};

/// Waits for the signals that ask this process to end, from its creation on.
#[derive(Debug)]
pub(crate) struct Endings {
    #[cfg(unix)]
    signals: Vec<(u8, tokio::signal::unix::Signal)>,
}

impl Endings {
    #[cfg(unix)]
    pub(crate) fn new() -> Result<Self, Failure> {
        use tokio::signal::unix::{SignalKind, signal};
        let endings = [
            SignalKind::interrupt(),
            SignalKind::terminate(),
            SignalKind::hangup(),
            SignalKind::quit(),
        ];
        let signals: io::Result<Vec<_>> = endings
            .into_iter()
            .filter(|kind| !is_ignored(kind.as_raw_value()))
            .map(|kind| Ok((u8::try_from(kind.as_raw_value()).unwrap_or(0), signal(kind)?)))
            .collect();
        Ok(Self { signals: signals.map_err(cannot_listen)? })
    }

    #[cfg(not(unix))]
    pub(crate) fn new() -> Result<Self, Failure> {
        Ok(Self {})
    }

    /// Waits for the next one, and returns its number.
    #[cfg(unix)]
    pub(crate) async fn recv(&mut self) -> u8 {
        std::future::poll_fn(|context| {
            for (number, signal) in &mut self.signals {
                if signal.poll_recv(context).is_ready() {
                    return Poll::Ready(*number);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Returns the number of one that has come since it was asked for last.
    #[cfg(unix)]
    pub(crate) fn received(&mut self) -> Option<u8> {
        let mut next = pin!(self.recv());
        match next.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(number) => Some(number),
            Poll::Pending => None,
        }
    }

    #[cfg(not(unix))]
    pub(crate) async fn recv(&mut self) -> u8 {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
        2
    }
}

#[cfg(unix)]
pub(crate) fn cannot_listen(error: io::Error) -> Failure {
    Failure::new(format!("signals cannot be received: {error}"))
}

/// The exit code of a program that a signal has ended.
pub(crate) fn ended_by(signal: u8) -> Exit {
    Exit(128 + signal)
}

/// Returns whether a signal was ignored when this process began, as HUP by `nohup`: it stays so. Known on Linux alone.
#[cfg(unix)]
pub(crate) fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & (1 << (signal - 1)) != 0)
}
