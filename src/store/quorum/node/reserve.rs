//! Collects the reservations of fencing tokens that wait for a node, and sends them as one call.

use super::Reported;
use super::queue::timed_out;
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::store::{Reservation, Reserve, Reserved, Store, TokenVerdict};
use crate::util::sync::Mutex;
use std::time::Duration;
use tokio::sync::{Mutex as AsyncMutex, oneshot};

/// The answer to one reservation: what the node reported after it, and the verdict.
type Answer = Result<(Reported, Result<TokenVerdict>)>;

/// The reservations that have not been sent.
#[derive(Default)]
pub(super) struct Reservations {
    waiting: Mutex<Vec<Waiting>>,
    /// Held by the caller that sends for all.
    sending: AsyncMutex<()>,
}

struct Waiting {
    item: Reservation,
    answer: oneshot::Sender<Answer>,
}

impl Reservations {
    /// Sends a reservation, in a call that begins after this one. Those that wait while a call is under way leave together.
    pub(super) async fn send(
        &self,
        store: &dyn Store,
        clock: &Clock,
        item: Reservation,
        limit: Duration,
    ) -> Answer {
        let (answer, mut answered) = oneshot::channel();
        self.waiting.lock().push(Waiting { item, answer });
        let _sending = self.sending.lock().await;
        match answered.try_recv() {
            Ok(answer) => return answer,
            // Its sender was dropped with its call.
            Err(oneshot::error::TryRecvError::Closed) => return Err(timed_out()),
            Err(oneshot::error::TryRecvError::Empty) => {}
        }
        let mut waiting = std::mem::take(&mut *self.waiting.lock());
        // A caller that has given up waits for no answer, and its ballot does not count on it.
        waiting.retain(|waiting| !waiting.answer.is_closed());
        let (items, answers): (Vec<_>, Vec<_>) =
            waiting.into_iter().map(|waiting| (waiting.item, waiting.answer)).unzip();
        let count = items.len();
        let reply = store.reserve(Reserve::new(items, limit)).await;
        let at = clock.now();
        let reply = reply.and_then(|reserved| match reserved.verdicts.len() {
            len if len == count => Ok(reserved),
            _ => Err(Error::protocol("answered for a different number of reservations")),
        });
        match reply {
            Ok(Reserved { uptime, verdicts }) => {
                for (answer, verdict) in answers.into_iter().zip(verdicts) {
                    let reported = Reported { at, uptime: uptime.clone() };
                    drop(answer.send(Ok((reported, verdict))));
                }
            }
            Err(error) => {
                answers.into_iter().for_each(|answer| drop(answer.send(Err(error.clone()))));
            }
        }
        answered.try_recv().unwrap_or_else(|_| Err(timed_out()))
    }
}
