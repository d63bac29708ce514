//! `--once`: the program runs once for a key, on one machine.

use super::Run;
use super::clock::Moment;
use super::environment::Scope;
use super::held::Entry;
use super::signals::Signals;
use super::supervise::{Grant, Outcome, supervise};
use crate::acquire::Limit;
use crate::exit::Failure;
use crate::output::say;
use leasehold::{Closed, Error, ErrorKind, Lease, LeaseManager, Loss, Once};
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
    /// The store does not answer, and nothing has run.
    Unavailable(Error),
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

/// Runs the program, if the key is not closed. A success closes it for `keep`.
pub(super) async fn run_once(
    run: &Run,
    leases: &LeaseManager,
    scope: Scope,
    keep: Duration,
    limit: Limit,
    grace: Duration,
    signals: &mut Signals,
) -> Result<Done, Failure> {
    let name = run.names.first().map(String::as_str).unwrap_or_default();
    let wait = limit.left().unwrap_or(FOREVER).min(FOREVER);
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
        let grant = Grant { scope, entries: vec![entry], slot: None, grace, stop: &read, lost };
        let outcome = supervise(&run.program, grant, signals).await;
        if let Ok(outcome) = &outcome {
            let _ = end.send(*outcome);
        }
        Child::Ran(outcome)
    };
    let mut work = pin!(job.run(body));
    let mut child = pin!(child);
    let mut once = None;
    let child = tokio::select! {
        biased;
        child = &mut child => child,
        done = &mut work => {
            once = Some(done);
            child.await
        }
    };
    if let Child::Signalled(signal) = child {
        // The wait ends with the call, which is dropped.
        return Ok(Done::Signalled(signal));
    }
    let once = match once {
        Some(once) => once,
        None => work.await,
    };
    if let Child::Ran(outcome) = child {
        let outcome = outcome?;
        match once {
            Ok(Once::Unconfirmed(_, error)) => {
                say(&format!(
                    "the store did not confirm that this is done; it may run once more: {error}"
                ));
            }
            Err(error) if outcome != Outcome::Lost => say(&error.to_string()),
            _ => {}
        }
        return Ok(Done::Ran(outcome));
    }
    match once {
        Err(error) if error.kind() == ErrorKind::Unavailable => Ok(Done::Unavailable(error)),
        Err(error) => Err(error.into()),
        Ok(Once::AlreadyDone(closed)) => Ok(Done::Before(closed)),
        Ok(_) => Ok(Done::Busy),
    }
}
