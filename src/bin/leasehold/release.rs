//! The end of a command that has waited for a name, or has held it: for how long the store is asked to free the name.

use crate::output::say;
use leasehold::{CloseError, LeaseManager};
use std::convert::Infallible;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// How long a wait that has ended is taken back: its arrival in a line, and a grant that may be on its way.
pub(crate) const TAKEN_BACK: Duration = Duration::from_secs(2);
/// After this time it is said that a release goes on.
const QUIET: Duration = Duration::from_secs(1);
/// So many signals end a release.
const SIGNALS: u32 = 2;

/// Closes a manager that holds nothing, within this time.
pub(crate) async fn give_up(leases: &LeaseManager, time: Duration) {
    if let Ok(Err(error)) = timeout(time, leases.close()).await {
        say(&unconfirmed(&error));
    }
}

/// Says what follows from a release that has failed.
pub(crate) fn unconfirmed(error: &CloseError) -> String {
    format!("the store has not confirmed the release; the name is free after the ttl: {error}")
}

/// The release of names, which the second signal ends.
#[derive(Debug)]
pub(crate) struct Release<'a> {
    names: &'a str,
    /// How many signals have come.
    signals: u32,
    is_said: bool,
}

impl<'a> Release<'a> {
    /// Begins a release after so many signals.
    pub(crate) fn after(signals: u32, names: &'a str) -> Self {
        Self { names, signals, is_said: false }
    }

    /// Does a part of the release. Returns `None` if signals have ended it, which is said.
    pub(crate) async fn part<T>(
        &mut self,
        work: impl Future<Output = T>,
        mut signal: impl AsyncFnMut(),
    ) -> Option<T> {
        let Self { names, signals, is_said } = self;
        if *signals >= SIGNALS {
            return None;
        }
        let left =
            if *signals == 0 { "INT or TERM twice ends" } else { "another INT or TERM ends" };
        let says = async {
            if !*is_said {
                sleep(QUIET).await;
                *is_said = true;
                say(&format!(
                    "{names}: the store has not confirmed the release; it is asked again for up to half a minute, which {left}"
                ));
            }
            std::future::pending::<Infallible>().await
        };
        let ended = async {
            while *signals < SIGNALS {
                signal().await;
                *signals += 1;
            }
        };
        tokio::select! {
            biased;
            done = work => Some(done),
            () = ended => {
                say(&format!("{names}: not released; free after the ttl"));
                None
            }
            never = says => match never {},
        }
    }
}
