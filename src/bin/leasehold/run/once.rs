//! `--once`: the program runs once for a key, on one machine.

use super::Run;
use super::clock::Moment;
use super::held::Entry;
use super::signals::Signals;
use super::supervise::{Grant, Outcome, supervise};
use crate::acquire::Limit;
use crate::connection::Connection;
use crate::exit::Failure;
use crate::output::say;
use crate::release::Release;
use leasehold::{Closed, Lease, LeaseManager, Loss, Once};
use rustix::process::Signal;
use std::cell::Cell;
use std::pin::{Pin, pin};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::sleep;

/// The longest wait that a job has.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 60 * 60);
const LOOK: Duration = Duration::from_millis(50);

/// What became of the program.
pub(super) enum Done {
    Ran(Outcome),
    /// Another machine runs it.
    Busy,
    /// It was done before.
    Before(Closed),
    /// A signal has ended the wait.
    Signalled(Signal),
}

/// What became of the part that runs the program.
enum Child {
    Ran(Result<Outcome, Failure>),
    /// The library has not begun.
    None,
    /// The wait was ended.
    Signalled(Signal),
}

/// What the supervision needs of the lease, which the library keeps.
struct Begun {
    entry: Entry,
    lost: Pin<Box<dyn Future<Output = Loss> + Send>>,
}

/// Runs the program, if the key is not closed. A success closes it for the time of `--once`.
///
/// Fails with an outage only if nothing has run.
pub(super) async fn run_once(
    run: &Run,
    connection: &Connection,
    leases: &LeaseManager,
    limit: Limit,
    signals: &mut Signals,
    release: &mut Release<'_>,
) -> Result<Done, Failure> {
    let name = run.names.first().map(String::as_str).unwrap_or_default();
    let wait = limit.left().unwrap_or(FOREVER).min(FOREVER);
    let keep = run.once.unwrap_or_default();
    let job = leases.once(name).keep(keep).wait(wait).label(run.program.label());
    let stop = Cell::new(Moment::default());
    let (begin, begun) = oneshot::channel();
    let (end, ended) = oneshot::channel::<Outcome>();
    // The library drops this when the lease is lost. The tree must end in order then, so it is supervised beside it.
    let body = async |lease: &Lease| {
        let read = || Moment::by(|| lease.remaining());
        stop.set(read());
        let lost = Box::pin(lease.lost());
        let _ = begin.send(Begun { entry: Entry::new(name, lease), lost });
        let mut ended = ended;
        loop {
            tokio::select! {
                biased;
                outcome = &mut ended => return match outcome {
                    Ok(Outcome::Ended(0)) => Ok(()),
                    _ => Err(()),
                },
                () = sleep(LOOK) => stop.set(read()),
            }
        }
    };
    let child = async {
        let Begun { entry, lost } = tokio::select! {
            begun = begun => match begun {
                Ok(begun) => begun,
                Err(_) => return Child::None,
            },
            signal = signals.next() => return Child::Signalled(signal),
        };
        let read = || stop.get();
        let scope = run.scope(connection);
        let grace = run.program.grace(connection);
        let grant = Grant { scope, entries: vec![entry], slot: None, grace, stop: &read, lost };
        let outcome = supervise(&run.program, grant, signals).await;
        if let Ok(outcome) = &outcome {
            let _ = end.send(*outcome);
        }
        Child::Ran(outcome)
    };
    let mut work = pin!(job.run(body));
    let mut once = None;
    let child = {
        let mut child = pin!(child);
        tokio::select! {
            biased;
            child = &mut child => child,
            done = &mut work => {
                once = Some(done);
                child.await
            }
        }
    };
    if let Child::Signalled(signal) = child {
        // The wait ends with the call, which is dropped.
        return Ok(Done::Signalled(signal));
    }
    let once = match once {
        Some(once) => Some(once),
        // The success is written, or the name is released.
        None => release.part(work, async || signals.ending().await).await,
    };
    if let Child::Ran(outcome) = child {
        let outcome = outcome?;
        match once {
            Some(Ok(Once::Unconfirmed(_, error))) => {
                say(&format!(
                    "the store did not confirm that this is done; it may run once more: {error}"
                ));
            }
            Some(Err(error)) if outcome != Outcome::Lost => say(&error.to_string()),
            None if outcome == Outcome::Ended(0) => {
                say("the store did not confirm that this is done; it may run once more");
            }
            _ => {}
        }
        return Ok(Done::Ran(outcome));
    }
    match once {
        Some(Err(error)) => Err(error.into()),
        Some(Ok(Once::AlreadyDone(closed))) => Ok(Done::Before(closed)),
        _ => Ok(Done::Busy),
    }
}
