//! Finds code that never waits, so that virtual time stands still.

use super::World;
use super::judge::Breach;
use super::story::Seconds;
use std::future::poll_fn;
use std::pin::pin;
use std::time::Duration;

/// The number of polls at one instant after which no more is to be expected.
const POLLS: u32 = 100_000;

/// The number of polls at the current instant.
#[derive(Debug, Default)]
pub(super) struct Still {
    at: Duration,
    polls: u32,
}

impl Still {
    /// Runs code under test, and ends the run if it is polled again and again at one instant.
    pub(super) async fn watch<F: Future>(world: &World, code: F) -> F::Output {
        let mut code = pin!(code);
        poll_fn(|cx| {
            if world.0.still.lock().poll(world.now()) {
                let at = Seconds(world.now());
                let text = format!(
                    "time stands still at {at}: the code under test is ready again and again, and waits for no timer; let it \
                     sleep where it asks once more"
                );
                world.fail(Breach::Unfinished, text);
            }
            code.as_mut().poll(cx)
        })
        .await
    }

    /// Counts a poll. Returns whether it is one too many.
    fn poll(&mut self, now: Duration) -> bool {
        if self.at != now {
            *self = Self { at: now, polls: 0 };
        }
        self.polls = self.polls.saturating_add(1);
        self.polls == POLLS
    }
}
